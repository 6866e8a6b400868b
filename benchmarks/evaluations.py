r"""What guided evaluations and whole reanalyses cost, and how it grows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from bench import AT_ONCE, Bench, Rows
from common import measure, planet_states, release
from torch import Tensor

import appa
from appa.data.planet import statistics
from appa.nn import fusing
from appa.tasks.memory import Memory
from appa.tasks.precision import Precision

__all__ = ["grids", "guided", "lengths", "observed", "reanalysis"]


def guided(bench: Bench, members: Sequence[int]) -> tuple[Rows, Callable[[list], None]]:
    r"""A guided evaluation, plain and ours, for numbers of members; and what compares the rows."""
    answers: dict[str, Tensor] = {}

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
        hours = at_once or sum(map(len, likelihood.groups))
        held = Memory(world.config, bench.iterations, world.precision.size).total(
            m, hours, len(likelihood.variance), world.model.autoencoder.at_once
        )
        return found | {"planned GiB": held / 2**30}

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
            done: list[Any] = []

            def run(m: int, at_once: int | None, done: list = done) -> dict[str, Any]:
                done.append(ours(m, at_once))
                return done[0]

            for at_once in AT_ONCE if m == 1 else AT_ONCE[:1]:
                label = {"way": "appa", "members": m, "hours at once": at_once or "all"}
                yield label, lambda run=run, m=m, at_once=at_once: run(m, at_once)
                if done:
                    break
            if m == 1 and bench.device.type == "cuda" and fusing.FUSED:
                label = {"way": "appa, nothing fused", "members": 1}
                yield label, lambda at_once=at_once: loose(at_once)
            if m == 1:  # against which both are compared
                yield {"way": "appa, single precision", "members": 1}, lambda: single(3)

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


def lengths(bench: Bench, hours: Sequence[int]) -> Rows:
    r"""An evaluation of a trajectory, all of its composed windows guided."""

    def run(length: int) -> dict[str, Any]:
        denoiser, z_t = bench.world.trajectory(length, bench.world.operators())
        found = measure(lambda: denoiser.mean(z_t, 1.0), bench.device, max(1, bench.rounds - 1))
        return {
            "windows": denoiser.windows,
            "s": found["seconds"],
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
        start = time.perf_counter()
        result = loaded.reanalysis(
            seen,
            ds.time.values[0],
            length,
            members=members,
            variables=["2m_temperature"],
            **settings,
        )
        took = time.perf_counter() - start
        memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
        return {
            "products": int(result.attrs["solver_products"]),
            "s": took,
            "s a member and day": took / members / (length / 24),
            "GiB": memory,
        }

    for length, members, settings in cases:
        told = ", ".join(f"{key} {value}" for key, value in settings.items())
        label = {"hours": length, "members": members, "settings": told or "the model's"}
        yield label, lambda case=(length, members, settings): run(*case)
