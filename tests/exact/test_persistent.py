r"""Errors that persist, in windows drawn one after another.

What a window is given tells of the hours it is given, not of the errors they were observed with:
those go on into the hours it draws, and are known from the observations of the hours given.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from appa.diffusion.sequential import draw_sequential, schedule

from .affine import compare, moments
from .drawing import Starts, converged, many_steps
from .posteriors import Gaussian, condition
from .priors import GaussianDenoiser, LinearLikelihood, dates
from .processes import ar1

HOURS, WINDOW, PAST, LAG = 36, 12, 3, 4


def errors(memory: float, sd: float = 0.3, noise: float = 0.05) -> np.ndarray:
    lag = np.abs(np.subtract.outer(np.arange(HOURS), np.arange(HOURS)))
    return noise**2 * np.eye(HOURS) + sd**2 * np.exp(-lag / memory)


def draws(process, R: np.ndarray, y: np.ndarray, all_hours: bool):
    r"""The moments of windows drawn one after another, each observed in the hours it draws or in
    all."""
    denoiser = GaussianDenoiser(process, WINDOW)
    count = len(schedule(HOURS, WINDOW, 0, PAST, LAG, None, 0))
    sampler = many_steps()
    first = float(sampler.levels(denoiser.schedule)[0])

    def observe(start: int, free: Iterable[int]) -> LinearLikelihood:
        hours = np.array(range(WINDOW) if all_hours else sorted(free))
        std = np.sqrt(np.diag(R))[start + hours]
        a = np.eye(WINDOW)[hours] / std[:, None]
        r = R[np.ix_(start + hours, start + hours)] / std[:, None] / std
        return LinearLikelihood(a, r, y[start + hours] / std)

    def sample(noises: np.ndarray) -> np.ndarray:
        starts = np.split(noises, count, axis=1)
        z = draw_sequential(
            denoiser,  # type: ignore[arg-type]
            dates(HOURS),
            range(len(noises)),
            guidance=converged(),
            sampler=sampler,
            observe=observe,
            noise=1e-3,
            past=PAST,
            lag=LAG,
            keeper=Starts(starts, (WINDOW, 1, 1, 1), first),
        )
        return z.flatten(1).numpy()

    return moments(sample, WINDOW * count)


@pytest.mark.parametrize("memory", [12.0, 200.0])
def test_errors_that_persist_are_seen_in_hours_that_are_given(memory):
    process = ar1(np.eye(1))
    prior = process.covariance(HOURS)
    R = errors(memory)
    rng = np.random.default_rng(0)
    y = np.linalg.cholesky(prior + R) @ rng.standard_normal(HOURS)
    exact = condition(Gaussian(np.zeros(HOURS), prior), np.eye(HOURS), R, y)
    right = compare(draws(process, R, y, all_hours=True), exact)
    wrong = compare(draws(process, R, y, all_hours=False), exact)
    # a lag of four hours is what is left
    assert right.cov < 0.05, right
    assert right.mean < 0.15, right
    assert wrong.cov > 3 * right.cov, wrong
