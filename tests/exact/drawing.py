r"""The package's samplers on the exact cases, with noise given rather than drawn.

A sampler is a map from standard normal noise, with shape :math:`(B, n)`, to draws, with shape
:math:`(B, m)`, see :func:`~.affine.moments`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from appa.diffusion.guidance import GUIDANCES, Guidance
from appa.diffusion.guidance.mmps import MMPS
from appa.diffusion.likelihood import NumberedLikelihood
from appa.diffusion.sampling import Sampler, integrate
from appa.diffusion.sequential import draw_sequential, schedule
from appa.diffusion.trajectory import TrajectoryDenoiser
from appa.sections import Sampling

from .affine import moments
from .cases import Case
from .composition import Step
from .posteriors import Gaussian
from .priors import Analytic, GaussianDenoiser, LinearLikelihood, dates

__all__ = [
    "Draws",
    "composed_draws",
    "converged",
    "default_guidance",
    "default_sampler",
    "draw",
    "many_steps",
    "plan",
    "sequential_draws",
]


class Draws(NamedTuple):
    r"""A sampler of a case, from noise to draws."""

    sample: Callable[[np.ndarray], np.ndarray]
    size: int  #: of the noise

    def moments(self) -> Gaussian:
        return moments(self.sample, self.size)


class Given:
    r"""Noise that is given, with shape :math:`(B, n)`, as a sampler asks for it: that of the start,
    then, where there are corrections, theirs."""

    def __init__(self, noise: np.ndarray):
        self.noise = torch.from_numpy(np.ascontiguousarray(noise))
        self.used = 0

    def __call__(self, shape: Sequence[int], *step: int) -> Tensor:
        start, self.used = self.used, self.used + int(np.prod(shape))
        return self.noise[:, start : self.used].reshape(-1, *shape)


class Starts:
    r"""A keeper of draws that go on from their very beginning: each window from its own noise, with
    shape :math:`(B, n)`."""

    def __init__(self, starts: Sequence[np.ndarray], shape: Sequence[int], sigma: float):
        scale = (1 + sigma**2) ** 0.5
        self.starts = [torch.from_numpy(z * scale).reshape(len(z), *shape) for z in starts]

    def load(self, name: str) -> dict[str, Tensor] | None:
        if "window-" not in name:
            return None
        return {"z": self.starts[int(name.split("window-")[1])], "step": torch.tensor(0)}

    def save(
        self, name: str, tensors: Mapping[str, Tensor], step: int, force: bool = False
    ) -> None:
        pass

    def done(self, name: str, tensors: Mapping[str, Tensor] | None = None) -> None:
        pass


def converged(
    solver: str = "gmres", tolerance: float = 1e-7, probes: int | None = None
) -> Guidance:
    r"""MMPS, each system solved to the end; by default with probes where observables are curved."""
    return MMPS(probes, solver=solver, iterations=1000, tolerance=tolerance)


def default_sampler() -> Sampler:
    r"""The sampler of a configuration that says nothing."""
    s = Sampling()
    return Sampler(s.sampler, s.steps, corrections=s.corrections, delta=s.correction_size)


def many_steps() -> Sampler:
    r"""So many steps that next to all errors are those of what is drawn, not of drawing it."""
    return Sampler("multistep", 36)


def default_guidance() -> Guidance:
    r"""The guidance of a configuration that says nothing."""
    s = Sampling()
    return GUIDANCES[s.guidance](
        solver=s.solver, iterations=s.iterations, tolerance=s.tolerance, early=s.early
    )


def draw(
    denoiser: Analytic,
    likelihoods: Sequence[Any],
    noise: np.ndarray,
    hours: int,
    stride: int = 12,
    sampler: Sampler | None = None,
    guidance: Guidance | None = None,
    first: int = 0,
    batch: int | None = None,
) -> np.ndarray:
    r"""Draws of composed trajectories from noise, with shape :math:`(B, L D)`, by members whose
    numbers begin at the first."""
    numbers = range(first, first + len(noise))
    seen = [part and NumberedLikelihood(part, numbers) for part in likelihoods]
    seen = seen if any(part is not None for part in seen) else ()
    trajectory = TrajectoryDenoiser(
        denoiser,  # type: ignore[arg-type]
        dates(hours),
        stride,
        batch,
        guidance=guidance or converged(),
        likelihoods=seen,
    )
    z = integrate(
        trajectory.mean,
        (hours, *denoiser.latent_shape),
        sampler or many_steps(),
        denoiser.schedule,
        Given(noise),  # type: ignore[arg-type]
        torch.zeros((), dtype=torch.float64),
    )
    return z.flatten(1).numpy()


def composed_draws(
    case: Case,
    window: int = 24,
    stride: int = 12,
    sampler: Sampler | None = None,
    guidance: Guidance | None = None,
    understated: float = 0.0,
) -> Draws:
    r"""Draws of a case, its windows guided each by its own observations; a trajectory shorter
    than a window is padded with hours that nobody looks at."""
    sampler = sampler or many_steps()
    dims, hours = case.process.dims, max(window, case.hours)
    denoiser = GaussianDenoiser(case.process, window)
    denoiser.understated = understated
    network = case.network.padded(hours)
    parts = [network[i : i + window] for i in range(0, hours - window + 1, stride)]
    likelihoods = [LinearLikelihood.of(part) for part in parts]

    def sample(noise: np.ndarray) -> np.ndarray:
        z = draw(denoiser, likelihoods, noise, hours, stride, sampler, guidance)
        return z[:, : case.hours * dims]

    noises = 1 + (sampler.steps * sampler.corrections if "corrector" in sampler.name else 0)
    return Draws(sample, hours * dims * noises)


def sequential_draws(
    case: Case,
    window: int = 24,
    sampler: Sampler | None = None,
    guidance: Guidance | None = None,
    past: int = 4,
    lag: int = 8,
    sweeps: int = 0,
    noise: float = 1e-3,
) -> Draws:
    r"""Draws of a case window after window: a map of all windows' first noises."""
    denoiser = GaussianDenoiser(case.process, window)
    count = len(schedule(case.hours, window, 0, past, lag, None, sweeps))
    first = float((sampler or many_steps()).levels(denoiser.schedule)[0])

    def observe(start: int, hours: Sequence[int]) -> LinearLikelihood | None:
        chosen = case.network.only([start + i for i in hours])
        return LinearLikelihood.of(chosen[start : start + window])

    def sample(noises: np.ndarray) -> np.ndarray:
        starts = np.split(noises, count, axis=1)
        z = draw_sequential(
            denoiser,  # type: ignore[arg-type]
            dates(case.hours),
            range(len(noises)),
            guidance=guidance or converged(),
            sampler=sampler or many_steps(),
            observe=observe,
            noise=noise,
            past=past,
            lag=lag,
            sweeps=sweeps,
            keeper=Starts(starts, (window, *case.shape), first),
        )
        return z.flatten(1).numpy()

    return Draws(sample, window * case.process.dims * count)


def plan(case: Case, window: int = 24, past: int = 4, lag: int = 8, sweeps: int = 0) -> list[Step]:
    r"""The windows of :func:`sequential_draws`, for :func:`~.composition.chained`."""
    return [
        Step(
            w.start,
            tuple(w.start + i for i in w.given),
            tuple(range(w.start + w.kept.start, w.start + w.kept.stop)),
        )
        for w in schedule(case.hours, window, 0, past, lag, None, sweeps)
    ]
