r"""The tables of `README.md`: each a header and rows, computed.

`python tools/exact_table.py` writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from appa.diffusion.guidance import GUIDANCES, Guidance
from appa.diffusion.sampling import Sampler
from appa.sections import Sampling
from appa.tasks.settings import SETTINGS as NAMED

from .affine import Errors, compare, paired
from .cases import CASES, Case, long, mixed, single
from .composition import chained, composed
from .drawing import (
    Draws,
    composed_draws,
    converged,
    default_guidance,
    default_sampler,
    draw,
    many_steps,
    plan,
    sequential_draws,
)
from .mixtures import MIXTURES, Speed
from .posteriors import Gaussian
from .priors import GaussianDenoiser
from .processes import Process, ar2

__all__ = ["TABLES", "Table"]


@dataclass
class Table:
    r"""A table, with a heading for each column."""

    header: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def percent(x: float, sign: bool = False) -> str:
    r"""A relative error; below 100 %, with a digit after the point."""
    if abs(x) > 100:
        return "> 10,000 %"
    digits = 0 if abs(x) >= 1 else 1 if abs(x) >= 0.001 else 2
    return f"{100 * x:{'+' if sign else ''}.{digits}f} %"


def short(x: float) -> str:
    return f"{x:.2f}" if abs(x) < 100 else "> 100"


DRAWS = 128  # where moments are not known from basis vectors
NAMES = {"ar1": "AR(1)", "ar2": "AR(2)"}
COLUMNS = ["mean", "covariance", "observed", "unobserved", "smallest", "largest"]


def cells(e: Errors) -> list[str]:
    four = (e.seen, e.unseen, e.smallest, e.largest)
    signed = [percent(x, True) if x else "–" for x in four]
    return [f"{e.mean:.3f}", percent(e.cov), *signed]


WINDOW: dict[str, Callable[[str], Case]] = {
    "dense": lambda memory: long("dense", memory, 24, 4),
    "dense, 9 hours": lambda memory: long("dense", memory, 9, 4),
    "mixed 1 % and 10 %": lambda memory: mixed(memory, dims=3, count=6),
    "one observation": lambda memory: single(0.1, memory),
    "none": lambda memory: long("none", memory, 24, 4),
}


def one_window(cases: Sequence[str] = tuple(WINDOW)) -> Table:
    r"""Trajectories up to a window, converged solves."""
    rows = []
    for memory in ("ar1", "ar2"):
        for name in cases:
            x = WINDOW[name](memory)
            e = compare(composed_draws(x).moments(), x.posterior, x.network.seen)
            size = f"{len(x.network)} / {x.hours * x.process.dims}"
            rows.append([NAMES[memory], name, size, *cells(e)])
    return Table(["memory", "case", "observations / latents", *COLUMNS], rows)


def understated(cases: Sequence[str] = tuple(WINDOW), share: float = 0.25) -> Table:
    r"""The same, with noise understated to the exact denoiser as models do to their networks."""
    rows = []
    for name in cases:
        x = WINDOW[name]("ar2")
        e = compare(composed_draws(x, understated=share).moments(), x.posterior, x.network.seen)
        rows.append([name, *cells(e)])
    return Table(["case", *COLUMNS], rows)


STDS = (0.004, 0.01, 0.03, 0.1, 1.0)


def variances(sampler: Sampler) -> np.ndarray:
    r"""The variance, relative to the exact, of numbers of each of these deviations.

    Any well-observed direction is one of these. Corrections are linear in their noise too, so one
    member a noise says all.
    """
    denoiser = GaussianDenoiser(Process((0.0,), np.diag(np.square(STDS))), window=1)
    noises = 1 + (sampler.steps * sampler.corrections if "corrector" in sampler.name else 0)
    basis = np.repeat(np.eye(noises), len(STDS), axis=1)  # all numbers, one noise
    z = draw(denoiser, [None], basis, 1, 1, sampler)
    return (z**2).sum(axis=0) / np.square(STDS) - 1


def samplers() -> Table:
    r"""Samplers, by what they make of directions known to a standard deviation."""
    rows = []
    d = default_sampler()
    for name, sampler in {
        "`multistep`, the default": d,
        "`multistep`": Sampler("multistep", 16),
        "`multistep` ": Sampler("multistep", 36),
        "`multistep`  ": Sampler("multistep", 64),
        "`ddim`": Sampler("ddim", 32),
        "`ddim` ": Sampler("ddim", 256),
        "`predictor-corrector`, the paper's": Sampler("predictor-corrector", 32),
        "`predictor-corrector`": Sampler("predictor-corrector", 256),
    }.items():
        values = [percent(v, True) for v in variances(sampler)]
        rows.append([name.strip(), str(sampler.evaluations), *values])
    return Table(["sampler", "evaluations", *[f"sd {s:g}" for s in STDS]], rows)


PAIR: dict[str, Callable[[], Case]] = {
    "dense": lambda: long("dense", "ar2", 24, 4),
    "mixed": lambda: mixed("ar2", dims=3, count=6),
}


@cache
def window_case(name: str) -> tuple[Case, Draws, Gaussian]:
    r"""A case, what draws of converged MMPS give of it, and the moments of these."""
    x = PAIR[name]()
    draws = composed_draws(x)
    return x, draws, draws.moments()


def solvers(chosen: Sequence[int] | None = None, cases: Sequence[str] = tuple(PAIR)) -> Table:
    r"""MMPS with solves that stop early; some of the rows, or all."""
    rows = []
    s = default_guidance()
    tried = [("gmres", n, 0.0) for n in (1, 2, 5, 10, 20)]
    tried += [("cg", n, 0.0) for n in (2, 5, 10, 20)]
    tried += [("gmres", 1000, 0.1), ("gmres", 1000, 0.01), ("gmres", 1000, 0.001)]
    tried += [(s.solver, s.iterations, s.tolerance)]
    for i, (solver, iterations, tolerance) in enumerate(tried):
        if chosen is not None and i not in chosen:
            continue
        row = [f"`{solver}`"]
        row.append(f"{iterations}" if iterations < 1000 else "any")
        row.append(f"{tolerance:g}" if tolerance else "–")
        early = None
        if i == len(tried) - 1:
            row[0], early = f"{row[0]}, the default", s.early
        for x, near, known in map(window_case, cases):
            g = GUIDANCES["mmps"](
                solver=solver, iterations=iterations, tolerance=tolerance, early=early
            )
            d = composed_draws(x, guidance=g)
            got = paired(d.sample, near.sample, d.size, DRAWS, known)
            e = compare(got, x.posterior, x.network.seen)
            products = g.products / many_steps().evaluations
            row += [f"{products:.1f}", f"{e.mean:.2f}", percent(e.seen, True)]
        rows.append(row)
    header = ["solver", "iterations", "tolerance"]
    for name in cases:
        header += [f"{name}: products", "mean", "observed"]
    return Table(header, rows)


SETTINGS: dict[str, dict[str, Any]] = {
    "`draft`": NAMED["draft"],
    "`draft`, 4 iterations everywhere": NAMED["draft"] | {"iterations": 4, "early": 4},
    "the default": {},
    "36 steps, 20 iterations": {"steps": 36, "iterations": 20, "tolerance": 0.01},
    "the default, as many early": {"early": Sampling().iterations},
}


def settings(names: Sequence[str] = tuple(SETTINGS), cases: Sequence[str] = tuple(PAIR)) -> Table:
    r"""Whole settings: sampler and solver, from draws beside those of converged MMPS."""
    rows = []
    for name in names:
        s = Sampling(**SETTINGS[name])
        row = [name, f"{s.steps}", f"{s.iterations}, {s.early}", f"{s.tolerance:g}"]
        for x, near, known in map(window_case, cases):
            g = GUIDANCES["mmps"](
                solver=s.solver, iterations=s.iterations, tolerance=s.tolerance, early=s.early
            )
            d = composed_draws(x, sampler=Sampler(s.sampler, s.steps), guidance=g)
            e = compare(paired(d.sample, near.sample, d.size, DRAWS, known), x.posterior,
                        x.network.seen)  # fmt: skip
            row += [
                f"{g.products}",
                f"{e.mean:.2f}",
                percent(e.seen, True),
                percent(e.unseen, True),
            ]
        rows.append(row)
    header = ["setting", "steps", "iterations, early", "tolerance"]
    for name in cases:
        header += [f"{name}: products", "mean", "observed", "unobserved"]
    return Table(header, rows)


def guidances(names: Sequence[str] = tuple(GUIDANCES), cases: Sequence[str] = tuple(PAIR)) -> Table:
    r"""Other guidances, from draws beside those of converged MMPS."""
    rows = []
    for name in names:
        row = [f"`{name}`"]
        for x, near, known in map(window_case, cases):
            got = known
            if name != "mmps":
                g = GUIDANCES[name](iterations=200, tolerance=1e-3)
                sample = composed_draws(x, guidance=g).sample
                got = paired(sample, near.sample, near.size, DRAWS, known)
            e = compare(got, x.posterior, x.network.seen)
            row += [short(e.mean), percent(e.seen, True), short(e.spread)]
        rows.append(row)
    header = ["guidance"]
    for name in cases:
        header += [f"{name}: mean", "observed", "spread"]
    return Table(header, rows)


TRUTHS = 16


def averaged(method: Callable[[Case], Gaussian], case: str, memory: str, **kwargs) -> list[str]:
    r"""The errors of a method: those of the mean are averages over truths, whose covariance is
    the same."""
    away, lost, spread, exact = [], [], 0.0, 0.0
    errors = None
    for seed in range(TRUTHS):
        x = long(case, memory, seed=seed, **kwargs)
        got = method(x)
        errors = compare(got, x.posterior, x.network.seen)
        away.append(errors.mean**2)
        lost.append(((got.mean - x.posterior.mean) ** 2).sum())
        spread, exact = np.trace(got.cov), np.trace(x.posterior.cov)
    assert errors is not None
    skill = np.sqrt((exact + np.mean(lost)) / exact)
    ratio = np.sqrt(spread / (exact + np.mean(lost)))
    return [percent(errors.cov), f"{np.sqrt(np.mean(away)):.2f}", f"×{skill:.2f}", f"{ratio:.2f}"]


METHODS: dict[str, Callable[[Case], Gaussian]] = {
    "composed": composed,
    "sequential": lambda x: chained(x, plan(x)),
    "sequential, 4 sweeps": lambda x: chained(x, plan(x, sweeps=4)),
    "sequential, 2 hours given, 4 sweeps": lambda x: chained(x, plan(x, past=2, sweeps=4)),
}


def lengths(
    memories: Sequence[str] = ("ar1", "ar2"), methods: Sequence[str] = tuple(METHODS)
) -> Table:
    r"""Three days in windows of one, against the smoother."""
    rows = []
    for memory in memories:
        for name in methods:
            row = [NAMES[memory], name]
            for case in CASES:
                row.append(", ".join(averaged(METHODS[name], case, memory)))
            rows.append(row)
    return Table(["memory", "windows", *CASES], rows)


DRAWN: dict[str, Callable[[Case], Draws]] = {
    "composed": composed_draws,
    "sequential": sequential_draws,
    "sequential, hours given to 0.01": partial(sequential_draws, noise=0.01),
    "sequential, hours given to 0.02": partial(sequential_draws, noise=0.02),
}


def agreement(names: Sequence[str] = tuple(DRAWN), cases: Sequence[str] = CASES) -> Table:
    r"""The package's draws against the references of the table above."""
    rows = []
    for name in names:
        draws, reference = DRAWN[name], METHODS[name.split(",")[0]]
        row = [name]
        for case in cases:
            x = long(case)
            e = compare(draws(x).moments(), reference(x), x.network.seen)
            row.append(percent(e.cov))
        rows.append(row)
    return Table(["windows", *cases], rows)


def memory_hours() -> float:
    r"""The memory of the AR(2): the sum of its autocorrelations, of both signs of lag."""
    return float(2 * ar2(np.eye(1)).autocorrelation(2000).sum() - 1)


WINDOWS = ((8, 4), (16, 8), (24, 12), (24, 6), (24, 2), (32, 16), (48, 24), (64, 32))


def windows(choices: Sequence[tuple[int, int]] = WINDOWS) -> Table:
    r"""The bias of composition by the window's length over the memory, over four days."""
    rows = []
    for window, stride in choices:
        row = [str(window), str(stride), f"{window / memory_hours():.2f}"]
        for case in (*CASES, "none"):
            x = long(case, hours=96, dims=1)
            e = compare(composed(x, window, stride), x.posterior)
            row.append(percent(e.cov) + f", {e.spread:.2f}")
        rows.append(row)
    return Table(["window", "stride", "window / memory", *CASES, "none"], rows)


def mixtures(labels: Sequence[str] | None = None) -> Table:
    r"""Weights of modes, in points, the worst of each mixture; some of the rows, or all."""
    s = many_steps()
    settings: dict[str, tuple[Sampler, Guidance]] = {
        "`mmps`": (s, converged()),
        "`mmps`, `curvature: 0`": (s, converged(probes=0)),
        "`mmps`, the paper's `predictor-corrector`": (
            Sampler("predictor-corrector", 32),
            converged(probes=0),
        ),
        "`mmps`, 128 steps with 8 corrections of 0.2": (
            Sampler("predictor-corrector", 128, corrections=8, delta=0.2),
            converged(probes=0),
        ),
    }
    settings |= {f"`{name}`": (s, GUIDANCES[name]()) for name in GUIDANCES if name != "mmps"}
    rows = []
    for label, (sampler, g) in settings.items():
        if labels is not None and label not in labels:
            continue
        row = [label, str(sampler.evaluations)]
        for m in MIXTURES.values():
            off = np.abs(m.drawn(4096, sampler=sampler, guidance=g) - m.posterior()).max()
            row.append(f"{100 * off:.0f}")
        rows.append(row)
    return Table(["guidance", "evaluations", *[f"y = {name}" for name in MIXTURES]], rows)


PROBES = {"the default": None, "`curvature: 0`": 0, "`curvature: 8`": 8}


SPEEDS = {64: 4096, 256: 4096, 1024: 1024}  # draws, by the number of latents


def speeds(
    latents: Sequence[int] = (64, 256, 1024), labels: Sequence[str] = tuple(PROBES)
) -> Table:
    r"""A wind of which the speed is seen, among latents of any number."""
    mean, std = Speed(latents[0]).posterior()
    rows = [["exact", *[f"{mean:.2f}, {std:.2f}"] * len(latents)]]
    for label in labels:
        g = converged(probes=PROBES[label])
        draws = [Speed(n).drawn(SPEEDS[n], guidance=g) for n in latents]
        rows.append([f"`mmps`, {label}", *[f"{u.mean():.2f}, {u.std():.2f}" for u in draws]])
    if len(labels) == len(PROBES):  # for as long as all others, of the fewest latents alone
        sampler = Sampler("predictor-corrector", 128, corrections=8, delta=0.2)
        u = Speed(latents[0]).drawn(SPEEDS[latents[0]], sampler=sampler)
        found = f"{u.mean():.2f}, {u.std():.2f}"
        label = "`mmps`, 128 steps with 8 corrections of 0.2"
        rows.append([label, found, *["·"] * (len(latents) - 1)])
    return Table(["guidance", *[f"{n:,} latents" for n in latents]], rows)


TABLES: dict[str, Callable[[], Table]] = {
    "one window": one_window,
    "understated": understated,
    "samplers": samplers,
    "solvers": solvers,
    "settings": settings,
    "guidances": guidances,
    "lengths": lengths,
    "agreement": agreement,
    "windows": windows,
    "mixtures": mixtures,
    "speeds": speeds,
}


def read(text: str, name: str) -> Iterator[list[str]]:
    r"""The rows of a table of the page, without its header."""
    block = text.split(f"<!-- begin {name} -->")[1].split(f"<!-- end {name} -->")[0]
    for line in block.strip().splitlines()[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]
