r"""What guided evaluations and whole reanalyses cost, and how it grows."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from bench import AT_ONCE, Bench, Rows
from common import GIB, measure, out_of_memory, peak, planet_states, release
from torch import Tensor

import appa
from appa.data.planet import statistics
from appa.machine import free_memory
from appa.nn import fusing
from appa.tasks import assimilation
from appa.tasks.memory import Memory
from appa.tasks.output import EnsembleWriter
from appa.tasks.posterior import Posterior
from appa.tasks.precision import Precision

__all__ = ["fitting", "grids", "guided", "lengths", "observed", "reanalysis", "whole"]


def guided(bench: Bench, members: Sequence[int]) -> tuple[Rows, Callable[[list], None]]:
    r"""A guided evaluation, plain and ours, for numbers of members; and what compares the rows."""
    answers: dict[str, Tensor] = {}
    cuda = bench.device.type == "cuda"

    def plain() -> dict[str, Any]:
        world = bench.world
        operators, z_t = world.operators(), world.noisy(1)
        return took("plain", lambda: world.plain(z_t, operators), 1, 1)

    def took(way: str, run: Callable[[], Tensor], m: int, rounds: int) -> dict[str, Any]:
        world = bench.world

        def kept() -> None:
            answer = run()
            if m == 1:
                answers[way] = answer.cpu()

        found = measure(kept, bench.device, rounds)
        return {
            "observations": sum(len(op) for op in world.operators() if op is not None),
            "s": found["seconds"],
            "s a member": found["seconds"] / m,
            "floor s": m * bench.floor(world.window),
            "× floor": found["seconds"] / m / bench.floor(world.window),
            "GiB": found["gibibytes"],
        }

    def ours(m: int, at_once: int | None) -> dict[str, Any]:
        world = bench.world
        likelihood, z_t = world.likelihood(world.operators(), at_once), world.noisy(m)
        found = took("appa", lambda: world.appa(z_t, likelihood), m, bench.rounds)
        return found | {"planned GiB": planned(m, at_once) / GIB}

    def planned(m: int, at_once: int | None) -> int:
        world = bench.world
        sizes = [len(op) for op in world.operators() if op is not None]
        return Memory(world.config, bench.iterations, world.precision.size).total(
            m, at_once or len(sizes), sum(sizes), world.model.autoencoder.at_once
        )

    def free() -> int:
        release(bench.device)
        return free_memory(bench.device)

    def loose(at_once: int | None) -> dict[str, Any]:
        fusing.FUSED = False
        try:
            return ours(1, at_once)
        finally:
            fusing.FUSED = True

    def single(at_once: int | None) -> dict[str, Any]:
        world = bench.world
        kept, world.precision = world.precision, Precision("float32", bench.device)
        tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        try:
            likelihood, z_t = world.likelihood(world.operators(), at_once), world.noisy(1)
            start = time.perf_counter()
            answers["single"] = world.appa(z_t, likelihood).cpu()
            answers["mean"] = world.denoise(z_t).detach().cpu()
            return {"s": time.perf_counter() - start}
        finally:
            world.precision = kept
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = tf32

    def rows() -> Rows:
        yield {"way": "plain", "members": 1}, plain
        for m in members:
            at_once = yield from fitting(m, ours, planned, free)
            if m == 1 and cuda and fusing.FUSED:
                label = {"way": "appa, nothing fused", "members": 1}
                yield label, lambda at_once=at_once: loose(at_once)
            if m == 1:  # against which both are compared
                same = not cuda and bench.precision == "float32"
                way = "appa, 3 hours at once" if same else "appa, single precision"
                yield {"way": way, "members": 1, "hours at once": 3}, lambda: single(3)

    def finish(found: list[dict[str, Any]]) -> None:
        one = {row["way"]: row["s"] for row in found if row["members"] == 1}
        reference = answers.get("single")
        for row in found:
            way, m = row["way"], row["members"]
            if "plain" in one and "s a member" in row:
                row["× plain"] = one["plain"] / row["s a member"]
            if way == "appa" and "appa" in one:
                row["of one member's"] = row["s"] / one["appa"]
            if m == 1 and way in answers and reference is not None:
                correction = (reference - answers["mean"]).norm()
                row["error"] = float((answers[way] - reference).norm() / correction)

    return rows(), finish


def fitting(
    m: int,
    run: Callable[[int, int | None], dict[str, Any]],
    planned: Callable[[int, int | None], int],
    free: Callable[[], int],
) -> Generator[tuple[dict[str, Any], Callable[[], dict[str, Any]]], None, int | None]:
    r"""Rows of as many hours decoded at once as fit in memory: fewer are tried where more are
    planned to take what is not free, or fail for want of it. What fails otherwise ends it.

    Arguments:
        m: The number of members.
        run: What measures them, with so many hours at once.
        planned: The bytes that it is planned to take.
        free: The bytes that there are.

    Returns:
        The hours at once of the last row.
    """
    ended: list[bool] = []

    def tried(at_once: int | None) -> dict[str, Any]:
        held, most = planned(m, at_once), free()
        if held > most:
            told = f"not tried, {most / GIB:.3g} GiB are free"
            return {"planned GiB": held / GIB, "failed": told}
        ended.append(True)
        try:
            return run(m, at_once)
        except Exception as error:
            if out_of_memory(error):
                ended.clear()
            raise

    for at_once in AT_ONCE:
        label = {"way": "appa", "members": m, "hours at once": at_once or "all"}
        yield label, lambda at_once=at_once: tried(at_once)
        if ended:
            break
    return at_once


def cores(device: torch.device, seconds: float) -> dict[str, float]:
    r"""Seconds of all cores together, where it is they that compute."""
    return {} if device.type == "cuda" else {"core s": seconds}


def lengths(bench: Bench, hours: Sequence[int]) -> Rows:
    r"""An evaluation of a trajectory, all of its composed windows guided."""

    def run(length: int) -> dict[str, Any]:
        denoiser, z_t = bench.world.trajectory(length, bench.world.operators())
        found = measure(lambda: denoiser.mean(z_t, 1.0), bench.device, max(1, bench.rounds - 1))
        return {
            "windows": denoiser.windows,
            "s": found["seconds"],
            **cores(bench.device, found["core_seconds"]),
            "s a window": found["seconds"] / denoiser.windows,
            "GiB": found["gibibytes"],
        }

    for length in hours:
        yield {"hours": length}, lambda length=length: run(length)


def observed(bench: Bench, counts: Sequence[int], hours: Sequence[int]) -> Rows:
    r"""A guided evaluation against the number of observations, and of hours with any."""

    def run(count: int | None, h: int | None) -> dict[str, Any]:
        world = bench.world
        operators, z_t = world.operators(count, h), world.noisy(1)
        likelihood = world.likelihood(operators)
        found = measure(lambda: world.appa(z_t, likelihood), bench.device, bench.rounds)
        return {
            "observations": len(likelihood.variance),
            "s": found["seconds"],
            **cores(bench.device, found["core_seconds"]),
            "GiB": found["gibibytes"],
        }

    for count in counts:
        yield {"hours": bench.config.window}, lambda count=count: run(count, None)
    for h in hours:
        yield {"hours": h}, lambda h=h: run(None, h)


def grids(benches: Sequence[tuple[str, Callable[[], Bench]]]) -> Rows:
    r"""A guided evaluation of one member on several grids, plain and ours."""

    def run(make: Callable[[], Bench]) -> dict[str, Any]:
        bench = make()
        world, h = bench.world, bench.config.window
        operators, z_t = world.operators(), world.noisy(1)
        slow = measure(lambda: world.plain(z_t, operators), bench.device, 1)
        likelihood = world.likelihood(operators)
        fast = measure(lambda: world.appa(z_t, likelihood), bench.device, bench.rounds)
        return {
            "grid": "×".join(map(str, bench.config.grid.shape)),
            "observations": len(likelihood.variance),
            "plain s": slow["seconds"],
            "appa s": fast["seconds"],
            "× plain": slow["seconds"] / fast["seconds"],
            "floor s": bench.floor(h),
            "GiB": fast["gibibytes"],
        }

    for preset, make in benches:
        yield {"preset": preset}, lambda make=make: run(make)


def reanalysis(
    device: torch.device, cases: Sequence[tuple[int, int, dict[str, Any]]], model: str = "planet"
) -> Rows:
    r"""Whole reanalyses of the planet by a trained model, as users call them.

    Arguments:
        device: Where.
        cases: Hours, members and settings of each, which are the model's but for these.
        model: The model.
    """
    loaded = appa.load(model).to(device)
    hours = max(case[0] for case in cases)
    ds = planet_states(loaded.config, hours)
    network = appa.named_network(loaded.grid)
    seen = appa.read_observations(list(appa.observe(ds, network, statistics=statistics())))

    def run(length: int, members: int, settings: dict[str, Any]) -> dict[str, Any]:
        release(device)
        start, own = time.perf_counter(), time.process_time()
        result = loaded.reanalysis(
            seen,
            ds.time.values[0],
            length,
            members=members,
            variables=["2m_temperature"],
            **settings,
        )
        took, own = time.perf_counter() - start, time.process_time() - own
        memory = torch.cuda.max_memory_allocated() / GIB if device.type == "cuda" else None
        return {
            "products": int(result.attrs["solver_products"]),
            "s": took,
            **cores(device, own),
            "s a member and day": took / members / (length / 24),
            "GiB": memory,
        }

    for length, members, settings in cases:
        told = ", ".join(f"{key} {value}" for key, value in settings.items())
        label = {"hours": length, "members": members, "settings": told or "the model's"}
        yield label, lambda case=(length, members, settings): run(*case)


def whole(bench: Bench, settings: Sequence[str], steps: int | None = None, hours: int = 24) -> Rows:
    r"""Whole reanalyses of one member with fresh weights, from the truth to a store on disk, as
    users call them: the planet, brought to the preset's grid and in memory, is observed,
    observations are read, and with each of the settings latents are drawn, decoded and written.
    What the decoder lacks is not drawn, since of fresh weights it was never measured.
    *Else* is what a run does beside these, hashes of weights and observations for example. Memory
    of the host is the process's largest, on CUDA since it began.

    Arguments:
        bench: The world.
        settings: Names.
        steps: The number of steps, by default the settings'.
        hours: The number of hours.
    """
    world, device = bench.world, bench.device
    ds, seen = planet_states(bench.config, hours).load(), []

    def run(part: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        release(device)
        start = time.perf_counter()
        found = part()
        row = {"s": time.perf_counter() - start} | found
        if "drawing s" in found:
            row["else s"] = row["s"] - sum(v for key, v in found.items() if key.endswith(" s"))
        if device.type == "cuda":
            row["GiB"] = torch.cuda.max_memory_allocated() / GIB
        return row | {"host GiB": peak() / GIB}

    def observing() -> dict[str, Any]:
        seen[:] = appa.observe(ds, world.network, statistics=statistics())
        return {}

    def reading() -> dict[str, Any]:
        seen[:] = [appa.read_observations(seen, levels=bench.config.data.levels)]
        return {"observations": len(seen[0])}

    def drawing(setting: str) -> dict[str, Any]:
        took: dict[str, float] = {}
        given = {"setting": setting, "steps": steps, "precision": bench.precision, "members": 1}
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings(action="ignore"))  # fresh weights fit none
            for name, owner, function in (
                ("compiling s", assimilation, "compile_observations"),
                ("drawing s", Posterior, "draw"),
                ("decoding and writing s", EnsembleWriter, "write"),
            ):
                stack.enter_context(clocked(took, name, owner, function, device))
            out, start = Path(folder) / "analysis.zarr", ds.time.values[0]
            attrs = world.model.reanalysis(seen[0], start, hours, out=out, **given).attrs
        return {"products": int(attrs["solver_products"])} | took

    yield {"part": "observing"}, lambda: run(observing)
    yield {"part": "reading"}, lambda: run(reading)
    for name in settings:
        yield {"part": f"reanalysis, {name}"}, lambda name=name: run(lambda: drawing(name))


@contextmanager
def clocked(
    took: dict[str, float], name: str, owner: Any, function: str, device: torch.device
) -> Iterator[None]:
    r"""Adds up the seconds that calls of a function take."""
    called = getattr(owner, function)

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return called(*args, **kwargs)
        finally:
            if device.type == "cuda":
                torch.cuda.synchronize()
            took[name] = took.get(name, 0.0) + time.perf_counter() - start

    with patch.object(owner, function, timed):
        yield
