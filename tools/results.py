r"""Draws and scores what `docs/results/assimilation.md` shows, on one device.

    python tools/results.py planet truth.zarr --out work/results --dates 32 --members 10
    python tools/results.py planet truth.zarr --out work/results --minutes 8 --pack packed
    python tools/results.py planet truth.zarr --out work/results --resume packed/results-*.zip
    python tools/results_page.py work/results

The truth is a store of members that the model has not seen, each in calendar years of its own, in
stretches long enough for the longest window and the longest forecast. Dates are spread over the
stretches, and over the hours of the day. All cases of a date are done before the next date, the
most important first, so that a run that is cut short leaves all of them with fewer dates. What is
done is kept, a small file for each case and date, and another call goes on with the rest.

With `--minutes` nothing is begun that would not end in time. With `--pack` what is there is also
written to a folder as a few archives, of 15 MiB at most, which `--resume` unpacks elsewhere.
Several processes share the device (`--processes`), each with dates of its own, so that it draws for
some while others compile observations or score on their cores; set `OMP_NUM_THREADS=1` then, and
with the LETKF `XLA_PYTHON_CLIENT_PREALLOCATE=false`, so that the circulation model leaves room, and
`JAX_COMPILATION_CACHE_DIR`, so that it is compiled once.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results_cases import Worker
from results_files import pack, unpack, write_json
from results_plan import VARIATIONS, Plan

from appa import __version__
from appa.data.windows import runs
from appa.errors import DataError, nearest
from appa.tasks.ensembles import model_digest
from appa.tasks.simulated import digest_of, once, prepared
from appa.termination import ends_with_its_parent

HOUR = np.timedelta64(1, "h")
BETWEEN = 60.0  # seconds between two times that archives are written


def main(argv: Sequence[str] | None = None) -> None:
    args = parsed(argv)
    begun = time.time()
    end = begun + 60 * args.minutes if args.minutes else np.inf
    plan = plan_of(args)
    folder = Path(plan.out)
    if args.resume:
        unpack(args.resume, folder)
    # where others draw, this one only looks after them
    worker = Worker(plan if plan.processes == 1 else replace(plan, device="cpu"))
    first, last = args.between.split(",") if args.between else split_of(worker)
    dates = choose_dates(worker.store, plan.known, plan.after, args.dates, first, last)
    apart(worker, dates)
    names = {job.name for job in worker.jobs(0)}
    for name in plan.only:
        if name not in names:
            raise SystemExit(f"there is no job {name!r}{nearest(name, names)}")
    with ExitStack() as stack:
        prepared(folder, key_of(worker), stack)
        stack.enter_context(once())
        write_json(folder / "about.json", about(worker, plan.device, dates))
        left = [(k, now) for k, now in enumerate(dates) if worker.missing(k, now)]
        if plan.processes > 1:  # the longest first, so that all end together
            left.sort(key=lambda date: -len(worker.missing(*date)))
        total = sum(len(worker.jobs(k)) for k in range(len(dates)))
        todo = sum(len(worker.missing(k, now)) for k, now in left)
        print(f"{len(dates)} dates, {total} jobs, {total - todo} of them done", flush=True)
        if any(job.name == "letkf" for date in left for job in worker.missing(*date)):
            worker.weather()  # one for all processes
        took: dict[str, list[float]] = {}
        packed = time.time()
        for found in work_off(worker, plan, left, end):
            for name, seconds in found.items():
                took.setdefault(name, []).append(seconds)
            print(remaining(worker, dates, took, begun), flush=True)
            if args.pack and time.time() > packed + BETWEEN:
                pack(folder, args.pack)
                packed = time.time()
        if args.pack:
            volumes = pack(folder, args.pack)
            size = sum(path.stat().st_size for path in volumes) / 2**20
            print(f"packed: {len(volumes)} archives, {size:.1f} MiB", flush=True)
    missing = sum(len(worker.missing(k, now)) for k, now in enumerate(dates))
    print("done" if not missing else f"{missing} of {total} jobs are left: call again")


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    plan = Plan("", "", "")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model", help="a model's folder, or `planet`")
    add("store", help="the truth")
    add("--out", required=True, help="the folder of what is done")
    add("--dates", type=int, default=32, help="how many dates")
    add("--between", metavar="FIRST,LAST", help="days the dates are of; the model's test split")
    add("--members", type=int, default=plan.members)
    add("--seed", type=int, default=plan.seed)
    add("--setting", choices=("draft", "paper"), help="how members are drawn; as the model says")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="a single setting")
    add("--windows", default=",".join(map(str, plan.windows)), help="hours, the first scored most")
    add("--leads", default=",".join(map(str, plan.leads)), help="hours ahead that are scored")
    add("--source", type=int, default=plan.source, help="the window that forecasts start from")
    add("--each", type=int, default=plan.each, help="variations are of every so many dates")
    add("--variations", help="names, with commas; all by default, `none` for none")
    add("--only", default="", help="jobs, with commas; all by default")
    add("--stations", type=int, help="how many; 1 %% of the grid's points")
    add("--regions", default=",".join(plan.regions))
    add("--channels", default=",".join(plan.channels), help="those with spectra and ranks")
    add("--climatology", default=plan.climatology, help="its file, `none` for none")
    add("--covariance", help="of optimal interpolation, which is left out without")
    add("--tuned", help="its settings, see: appa baseline tune")
    add("--interpolated", default="", help="its windows besides the first, hours with commas")
    add("--cycled", type=int, default=plan.cycled, help="hours until a date that the LETKF has")
    add("--letkf", help="settings of the LETKF, which is left out without")
    add("--weather", help="a year its first members are of, made if it is not there: OUT's own")
    add("--rarely", type=int, default=plan.rarely, help="it is of every so many dates")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--processes", type=int, default=1, help="how many share the device")
    add("--batch", type=int, help="members drawn at once; as many as memory allows")
    add("--exact", action="store_true", help="no TF32 in products of matrices")
    add("--minutes", type=float, help="when to stop")
    add("--pack", type=Path, help="a folder for archives of what is done")
    add("--resume", type=Path, nargs="+", help="archives of an earlier call")
    return parser.parse_args(argv)


def plan_of(args: argparse.Namespace) -> Plan:
    r"""The plan that arguments ask for."""

    def words(text: str) -> tuple[str, ...]:
        return tuple(word.strip() for word in text.split(",") if word.strip())

    known = {v.product.removeprefix("v-"): v for v in VARIATIONS}
    chosen = VARIATIONS
    if args.variations is not None:
        names = () if args.variations == "none" else words(args.variations)
        for name in names:
            if name not in known:
                raise SystemExit(f"there is no variation {name!r}{nearest(name, known)}")
        chosen = tuple(known[name] for name in names)
    settings = dict(pair.partition("=")[::2] for pair in args.set)
    for key, value in settings.items():
        try:
            settings[key] = json.loads(value)
        except ValueError:  # a word
            settings[key] = value
    if args.tuned and not args.covariance:
        raise SystemExit("settings of optimal interpolation were given, and no covariance of it")
    if args.letkf and args.cycled < 1:
        raise SystemExit("settings of the LETKF were given, and no hours to cycle over: --cycled")
    if args.source not in (windows := tuple(map(int, words(args.windows)))):
        raise SystemExit(f"forecasts start from {args.source} hours, which is no window: {windows}")
    return Plan(
        model=args.model,
        store=args.store,
        out=args.out,
        members=args.members,
        seed=args.seed,
        setting=args.setting,
        settings=settings,
        windows=windows,
        leads=tuple(sorted(map(int, words(args.leads)))),
        source=args.source,
        variations=chosen,
        each=args.each,
        only=words(args.only),
        stations=args.stations,
        regions=words(args.regions),
        channels=words(args.channels),
        climatology=None if args.climatology == "none" else args.climatology,
        covariance=args.covariance,
        tuned=args.tuned,
        interpolated=tuple(map(int, words(args.interpolated))),
        letkf=args.letkf,
        weather=args.weather,
        cycled=args.cycled,
        rarely=args.rarely,
        device=args.device,
        processes=args.processes,
        batch=args.batch,
        tf32=not args.exact,
    )


# ---------------------------------------------------------------- dates


def split_of(worker: Worker) -> tuple[str, str]:
    first, last = worker.model.config.data.splits.test
    return str(first), str(last)


def choose_dates(
    store: Any, before: int, after: int, count: int, first: str, last: str
) -> list[np.datetime64]:
    r"""Dates with so many hours of the same trajectory before, themselves among them, and after.

    No two share an hour. The slack of a stretch is used to spread them over the hours of the day;
    they are in an order of which every beginning is spread over the years.

    Arguments:
        store: The truth.
        before, after: The hours until a date, and after it.
        count: How many dates.
        first, last: The first and the last day of what may be used.
    """
    times = store["time"].values.astype("datetime64[ns]")
    known = store["trajectory"].values if "trajectory" in store.coords else None
    days = times.astype("datetime64[D]")
    used = (days >= np.datetime64(first)) & (days <= np.datetime64(last))
    number, found = 0, []
    for a, b in runs(times, known):
        inside = np.flatnonzero(used[a:b]) + a
        if not len(inside):
            continue
        a, b = inside[0], inside[-1] + 1
        fits = (b - a) // (before + after)
        slack = (b - a) - fits * (before + after)
        shift = 7 * number % (slack + 1)  # 7 and 24 have no factor in common
        for k in range(fits):
            found.append(times[a + shift + k * (before + after) + before - 1])
        number += fits > 0
    if len(found) < count:
        raise DataError(
            f"the store has {len(found)} dates between {first} and {last} with {before} hours "
            f"until them and {after} after; give longer stretches, or ask for fewer than {count}"
        )
    order = np.argsort((np.arange(len(found)) * (np.sqrt(5) - 1) / 2) % 1)
    return [found[k] for k in order[:count]]


def apart(worker: Worker, dates: Sequence[np.datetime64]) -> None:
    r"""Raises where what optimal interpolation knows was tuned on a date, or estimated from it."""
    for now in dates if worker.filter is not None else ():
        worker.filter.untouched(now - HOUR * np.arange(worker.plan.known)[::-1])
    for now in dates if worker.covariance is not None else ():
        times = now - HOUR * np.arange(worker.plan.before)[::-1]
        worker.tuned.untouched(times)
        if seen := worker.covariance.seen(times):
            raise DataError(
                f"the covariance was estimated from {seen}, and {now.astype('datetime64[h]')} is "
                "among these hours; estimate it from training years: appa baseline covariance"
            )


# ---------------------------------------------------------------- work


def work_off(
    worker: Worker, plan: Plan, left: Sequence[tuple[int, np.datetime64]], end: float
) -> Iterator[dict[str, float]]:
    r"""Does dates one after another, or several at a time; gives the seconds of each one's jobs."""
    count = min(plan.processes, len(left))
    if plan.processes == 1:
        for number, now in left:
            yield worker.run(number, now, end, tell)
        return
    if not left:
        return
    context = multiprocessing.get_context("spawn")  # CUDA cannot be forked
    with ProcessPoolExecutor(count, context, begin, (plan,)) as pool:
        futures = [pool.submit(work, number, now, end) for number, now in left]
        for future in as_completed(futures):
            yield future.result()


_here: dict[str, Worker] = {}  # of a process
_open = ExitStack()


def begin(plan: Plan) -> None:
    ends_with_its_parent()
    torch.set_num_threads(1)
    _open.enter_context(once())
    _here["worker"] = Worker(plan)


def work(number: int, now: np.datetime64, end: float) -> dict[str, float]:
    return _here["worker"].run(number, now, end, tell)


def tell(line: str) -> None:
    print(line, flush=True)


def remaining(
    worker: Worker, dates: Sequence[np.datetime64], took: dict[str, list[float]], begun: float
) -> str:
    r"""How long the rest will take, from what was measured."""
    left = [job.name for k, now in enumerate(dates) for job in worker.missing(k, now)]
    known = [float(np.mean(took[name])) for name in left if name in took]
    seconds = sum(known) / worker.plan.processes
    more = "" if len(known) == len(left) else f", and {len(left) - len(known)} not measured yet"
    spent = time.time() - begun
    return f"{spent:.0f} s spent; {len(left)} jobs left, {seconds / 60:.1f} min{more}"


# ---------------------------------------------------------------- what it is


def key_of(worker: Worker) -> dict[str, Any]:
    r"""What determines the answer: a folder is of one."""
    plan = worker.plan
    rep = worker.model.representation
    return {
        "model_digest": model_digest(worker.model),
        "representation": rep is not None,
        "network": digest_of(worker.network()),
        "members": plan.members,
        "seed": plan.seed,
        "settings": worker.settings.model_dump(),
        "default": worker.model.config.sampling.model_dump(),  # of the variation of that name
        "windows": sorted(plan.windows),
        "leads": list(plan.leads),
        "source": plan.source,
        "regions": list(plan.regions),
        "channels": list(plan.channels),
        "tf32": plan.tf32,
    }


def about(worker: Worker, place: str, dates: Sequence[np.datetime64]) -> dict[str, Any]:
    r"""What the page says of the run."""
    plan, model = worker.plan, worker.model
    device = torch.device(place)
    network = worker.network()
    return {
        "model": plan.model,
        "version": __version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "processes": plan.processes,
        "dates": [str(now.astype("datetime64[h]")) for now in dates],
        "members": plan.members,
        "windows": sorted(plan.windows),
        "leads": list(plan.leads),
        "source": plan.source,
        "first": plan.windows[0],
        "stations": len(network.stations),
        "satellites": len(network.satellites),
        "settings": worker.settings.model_dump(),
        "window": model.config.window,
        "interpolation": interpolation(worker),
        "letkf": None if worker.filter is None else asdict(worker.filter) | {"hours": plan.cycled},
        "variations": [[v.product, v.name, v.group, plan.hours_of(v)] for v in plan.variations],
    }


def interpolation(worker: Worker) -> dict[str, Any] | None:
    r"""What optimal interpolation was estimated from, and tuned on."""
    if worker.covariance is None:
        return None
    keys = ("hours", "stretches", "first_time", "last_time", "explained")
    known = worker.covariance.dataset.attrs
    found = {key: known[key] for key in keys if key in known}
    found = {key: v.item() if hasattr(v, "item") else v for key, v in found.items()}
    return found | {"windows": list(worker.plan.controlled), "settings": asdict(worker.tuned)}


if __name__ == "__main__":
    main()
