r"""What does scoring cost? Time and memory against the size of an ensemble, and the usual ways.

    python benchmarks/evaluation.py [--large] [--directory DIR] [--output FILE] [--ways WAY ...]

Writes ensembles of noise to DIR (up to 0.3 GB each, with --large 6 GB, deleted after use), a field
on several levels in chunks of one member, as `appa` writes them, and scores each in several ways:
RMSE of the mean, spread and fair CRPS of every hour, by area. Every measurement is a process of its
own, which has scored a small ensemble before. Time is by the clock, and of all cores together;
memory is the largest resident set over what it was before, in MB of 10⁶ bytes.

- reading: every value once, a chunk at a time, and nothing else.
- scoringrules: the ensemble in memory, CRPS by `scoringrules` (`estimator="pwm"`, which is fair and
  does not compare all pairs), the rest by xarray.
- xskillscore: the ensemble in memory, `crps_ensemble`, which is not fair, and `rmse`. Left out if
  not installed.
- xarray, pairs: hour by hour, WeatherBench-X's formulas in xarray, with the differences of all
  pairs of members, its default.
- xarray, ranks: the same with `use_sort=True`, by the ranks of members.
- appa: :func:`appa.evaluate` on as many threads as there are cores.

All must agree with one another before anything is told. A way that needs more than half of the
memory that is free has no figures.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

WAYS = ("reading", "scoringrules", "xskillscore", "xarray, pairs", "xarray, ranks", "appa")
SCORES = ("skill", "spread", "crps")
LEVELS = (50, 100, 150, 200, 250, 300, 400, 500, 600, 700, 850, 925, 1000)
CHUNK = 4 * 2**20


class Case(NamedTuple):
    members: int
    hours: int
    levels: int
    shape: tuple[int, int]

    @property
    def nbytes(self) -> int:
        return 4 * self.members * self.hours * self.levels * self.shape[0] * self.shape[1]

    @property
    def label(self) -> str:
        h, w = self.shape
        return f"{self.members} × {self.hours} h × {self.levels} × {h}×{w}"


SMALL = (
    Case(10, 24, 13, (48, 96)),
    Case(10, 96, 13, (48, 96)),
    Case(50, 8, 13, (48, 96)),
    Case(10, 12, 5, (121, 240)),
    Case(10, 2, 2, (721, 1440)),
)
LARGE = (Case(10, 720, 13, (48, 96)), Case(50, 48, 13, (121, 240)), Case(50, 6, 5, (721, 1440)))


def write(folder: Path, case: Case) -> None:
    r"""An ensemble and its truth, both noise."""
    import dask.array
    import xarray as xr
    import zarr

    h, w = case.shape
    latitude = np.linspace(90, -90, h) if h % 2 else 90 - (np.arange(h) + 0.5) * 180 / h
    coords = {
        "time": np.datetime64("2021-01-01", "ns") + np.arange(case.hours) * np.timedelta64(1, "h"),
        "level": list(LEVELS[-case.levels :]),
        "latitude": latitude,
        "longitude": np.arange(w) * 360 / w,
    }
    dims, shape = ("time", "level", "latitude", "longitude"), (case.hours, case.levels, h, w)
    hours = max(1, min(case.hours, CHUNK // (4 * case.levels * h * w)))
    rng = np.random.default_rng(0)
    for name, members in (("ensemble", case.members), ("truth", 0)):
        lead = (members,) if members else ()
        blank = dask.array.empty((*lead, *shape), chunks=-1, dtype=np.float32)
        var = ((*("member",)[: len(lead)], *dims), blank, {"units": "K"})
        more = {"member": np.arange(members)} if members else {}
        ds = xr.Dataset({"temperature": var}, coords | more)
        chunks = (*(1 for _ in lead), hours, *shape[1:])
        encoding: Any = {"temperature": {"chunks": chunks, "compressors": None}}
        path = folder / f"{name}.zarr"
        ds.to_zarr(path, zarr_format=3, consolidated=False, compute=False, encoding=encoding)
        array: Any = zarr.open_array(path / "temperature", mode="r+")
        for m in range(members or 1):
            for t in range(0, case.hours, hours):
                part = slice(t, min(t + hours, case.hours))
                size = (part.stop - t, *shape[1:])
                values = 250 + 5 * rng.standard_normal(size, dtype=np.float32)
                array[(m, part) if members else part] = values


# ---------------------------------------------------------------- ways to score
# Each returns, by level, scores pooled over all hours.


def weights(ds: Any) -> Any:
    r"""Areas of latitudes, with edges half way between them."""
    import xarray as xr

    phi = np.deg2rad(ds["latitude"].values)
    edges = np.concatenate([[np.pi / 2], (phi[1:] + phi[:-1]) / 2, [-np.pi / 2]])
    return xr.DataArray(-np.diff(np.sin(edges)), {"latitude": ds["latitude"]})


def opened(folder: Path) -> tuple[Any, Any]:
    import xarray as xr

    options: dict[str, Any] = {"chunks": None, "consolidated": False}
    pair = (xr.open_zarr(folder / f"{name}.zarr", **options) for name in ("ensemble", "truth"))
    x, y = (ds["temperature"] for ds in pair)
    return x, y


def by_reading(folder: Path) -> dict[str, Any]:
    x, y = opened(folder)
    step = x.encoding["preferred_chunks"]["time"]
    for t in range(0, x.sizes["time"], step):
        for m in range(x.sizes["member"]):
            _ = x.isel(member=m, time=slice(t, t + step)).values
        _ = y.isel(time=slice(t, t + step)).values
    return {}


def by_scoringrules(folder: Path) -> dict[str, Any]:
    import scoringrules as sr

    x, y = opened(folder)
    w = weights(x)
    x, y = x.load(), y.load()
    crps = sr.crps_ensemble(y.values, x.values, m_axis=0, estimator="pwm", backend="numpy")
    return totals((x.mean("member") - y) ** 2, x.var("member", ddof=1), y.copy(data=crps), w)


def by_xskillscore(folder: Path) -> dict[str, Any]:
    import xskillscore as xs  # type: ignore[import-not-found]

    x, y = opened(folder)
    w = weights(x)
    x, y = x.load(), y.load()
    crps = xs.crps_ensemble(y, x, dim=[])
    return totals((x.mean("member") - y) ** 2, x.var("member", ddof=1), crps, w)


def by_hour(folder: Path, ranks: bool) -> dict[str, Any]:
    x, y = opened(folder)
    w, m = weights(x), x.sizes["member"]
    parts = []
    for t in range(x.sizes["time"]):
        p, q = x.isel(time=[t]).load(), y.isel(time=[t]).load()
        if ranks:
            order = np.argsort(p.values, axis=0)
            rank = np.empty(order.shape, dtype=int)
            place = np.arange(1, m + 1).reshape(-1, *[1] * (p.ndim - 1))
            np.put_along_axis(rank, order, np.broadcast_to(place, order.shape), axis=0)
            spread = 2 * ((2 * p.copy(data=rank) - m - 1) * p).mean("member") / (m - 1)
        else:
            other = p.rename(member="member_2")
            spread = abs(p - other).sum(("member", "member_2")) / (m * (m - 1))
        crps = abs(p - q).mean("member") - 0.5 * spread
        parts.append(totals((p.mean("member") - q) ** 2, p.var("member", ddof=1), crps, w, False))
    return final({k: sum(part[k] for part in parts) / len(parts) for k in SCORES})


def totals(error: Any, variance: Any, crps: Any, w: Any, last: bool = True) -> dict[str, Any]:
    found = {}
    for name, value in zip(SCORES, (error, variance, crps), strict=True):
        mean = value.astype(np.float64).weighted(w).mean(("time", "latitude", "longitude"))
        found[name] = mean.values
    return final(found) if last else found


def final(means: dict[str, Any]) -> dict[str, Any]:
    roots = {k: np.sqrt(means[k]) for k in ("skill", "spread")}
    return {k: np.asarray(v).tolist() for k, v in (means | roots).items()}


def by_appa(folder: Path) -> dict[str, Any]:
    from appa.evaluation.scores import evaluate

    scores = evaluate(folder / "ensemble.zarr", folder / "truth.zarr", by="all").isel(region=0)
    return {name: scores[name].values.tolist() for name in SCORES}


def measure(way: str, folder: Path) -> dict[str, Any]:
    r"""Runs one way, in this process."""
    run = {
        "reading": by_reading,
        "scoringrules": by_scoringrules,
        "xskillscore": by_xskillscore,
        "xarray, pairs": lambda f: by_hour(f, False),
        "xarray, ranks": lambda f: by_hour(f, True),
        "appa": by_appa,
    }[way]
    free = int(re.search(r"MemAvailable: +(\d+)", Path("/proc/meminfo").read_text())[1])  # type: ignore[index]
    resource.setrlimit(resource.RLIMIT_DATA, (512 * free, 512 * free))
    with tempfile.TemporaryDirectory() as name:  # what is imported on the way counts for none
        write(Path(name), Case(2, 1, 1, (8, 16)))
        run(Path(name))
    before = status("VmRSS")
    start, used = time.perf_counter(), time.process_time()
    scores = run(folder)
    elapsed, used = time.perf_counter() - start, time.process_time() - used
    memory = status("VmHWM") - before
    return {"seconds": elapsed, "core_seconds": used, "memory": memory, "scores": scores}


def status(key: str) -> int:
    r"""Bytes this process has now, `VmRSS`, or has had at most, `VmHWM`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("memory is read from /proc, which this system does not have")


# ---------------------------------------------------------------- the table


def agree(found: dict[str, dict[str, Any]]) -> None:
    known = {way: r["scores"] for way, r in found.items() if r["scores"] and way != "xskillscore"}
    first = next(iter(known), "")
    for way in known:
        for name in SCORES:
            np.testing.assert_allclose(
                known[way][name], known[first][name], rtol=1e-5, err_msg=f"{name} of {way}"
            )


def table(rows: list[dict[str, Any]]) -> str:
    heads = "| members × hours × levels × grid | MB | way | s | core s | × appa | MB of memory |"
    lines = [heads, "|---|---:|---|---:|---:|---:|---:|"]
    for row in rows:
        size = row["bytes"]
        lines.append(
            f"| {row['case']} | {size / 1e6:,.0f} | {row['way']} | {row['seconds']:.2f} | "
            f"{row['core_seconds']:.2f} | {row['times_appa']:.1f} | {row['memory'] / 1e6:,.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--large", action="store_true", help="ensembles up to 6 GB too")
    parser.add_argument(
        "--directory", type=Path, help="where stores go, by default a temporary one"
    )
    parser.add_argument("--output", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--rounds", type=int, default=1, help="of which the cheapest counts")
    parser.add_argument("--measure", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure[0], Path(args.measure[1]))))
        return

    ways = [way for way in WAYS if way in (*args.ways, "appa")]
    for way in ("scoringrules", "xskillscore"):
        if way in ways and not importlib.util.find_spec(way):
            print(f"{way} is not installed: left out", file=sys.stderr)
            ways.remove(way)
    rows: list[dict[str, Any]] = []
    for case in SMALL + (LARGE if args.large else ()):
        with tempfile.TemporaryDirectory(dir=args.directory) as name:
            folder, found = Path(name), {}
            print(f"writing {case.label}", file=sys.stderr, flush=True)
            write(folder, case)
            for way in ways:
                print(f"  {way}", file=sys.stderr, flush=True)
                runs = [run for _ in range(args.rounds) if (run := _apart(way, folder))]
                if runs:
                    found[way] = min(runs, key=lambda run: run["core_seconds"])
            agree(found)
            for way, run in found.items():
                row = {"case": case.label, **case._asdict(), "bytes": case.nbytes, "way": way}
                row |= {key: run[key] for key in ("seconds", "core_seconds", "memory")}
                own = found.get("appa", {"core_seconds": np.nan})["core_seconds"]
                row["times_appa"] = run["core_seconds"] / own
                rows.append(row)
    print(table(rows))
    if args.output:
        args.output.write_text(json.dumps({"cores": os.cpu_count(), "rows": rows}, indent=1) + "\n")


def _apart(way: str, folder: Path) -> dict[str, Any] | None:
    r"""Measures in a process of its own; nothing where it runs out of memory."""
    command = [sys.executable, __file__, "--measure", way, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if "MemoryError" in done.stderr or "ENOMEM" in done.stderr or done.returncode < 0:
        print(f"  {way} runs out of memory", file=sys.stderr)
        return None
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
