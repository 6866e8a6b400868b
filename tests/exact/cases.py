r"""The cases: a process, a network and the observations of one truth drawn from the process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .posteriors import Gaussian, Network, condition
from .processes import Process, ar1, ar2, space

__all__ = ["CASES", "Case", "long", "mixed", "single"]


@dataclass
class Case:
    r"""A process, and observations of :math:`L` hours of it."""

    process: Process
    network: Network

    @property
    def hours(self) -> int:
        return self.network.hours

    @property
    def shape(self) -> tuple[int, int, int]:
        r"""The shape of a latent."""
        return (self.process.dims, 1, 1)

    @cached_property
    def prior(self) -> Gaussian:
        n = self.hours * self.process.dims
        return Gaussian(np.zeros(n), self.process.covariance(self.hours))

    @cached_property
    def posterior(self) -> Gaussian:
        return condition(self.prior, *self.network.joint())


def observed(process: Process, matrices: list, errors: list, seed: int = 0) -> Case:
    r"""Observes a truth drawn from the process; errors are standard deviations, and correlated
    by 0.3 in an hour, so that :math:`R` is not diagonal."""
    rng = np.random.default_rng(seed)
    hours, dims = len(matrices), process.dims
    covs = [
        np.outer(e, e) * (0.7 * np.eye(len(e)) + 0.3 * np.ones((len(e), len(e)))) for e in errors
    ]
    values = [np.zeros(len(a)) for a in matrices]
    cov = process.covariance(hours)
    z = np.linalg.cholesky(cov + 1e-14 * np.eye(len(cov))) @ rng.standard_normal(len(cov))
    network = Network(matrices, covs, values).observe(z.reshape(hours, dims), rng)
    return Case(process, network)


CASES = ("dense", "sparse", "gap", "forecast")


def long(case: str, memory: str = "ar2", hours: int = 72, dims: int = 2, seed: int = 0) -> Case:
    r"""A trajectory longer than a window, observed with an error of 0.1.

    Arguments:
        case: `dense`, one number an hour, by turns; `sparse`, but every twelfth hour;
            `gap`, as dense, but for the middle third; `forecast`, as dense, but the first third
            alone; `none`.
        memory: `ar1` or `ar2`.
        hours: The length :math:`L`.
        dims: The numbers :math:`D` of a latent.
        seed: The seed of the truth and of the errors.
    """
    third, eye = hours // 3, np.eye(dims)
    matrices = []
    for i in range(hours):
        turn = eye[i % dims][None]
        matrices.append(
            {
                "dense": turn,
                "sparse": eye[i // 12 % dims][None] if i % 12 == 6 else eye[:0],
                "gap": eye[:0] if third <= i < 2 * third else turn,
                "forecast": turn if i < third else eye[:0],
                "none": eye[:0],
            }[case]
        )
    process = {"ar1": ar1, "ar2": ar2}[memory](space(dims))
    return observed(process, matrices, [np.full(len(a), 0.1) for a in matrices], seed)


def mixed(memory: str = "ar2", hours: int = 24, dims: int = 4, count: int = 12) -> Case:
    r"""More observations than latents: `count` an hour of `dims` numbers, each of a mix of them
    but the last, which nobody sees; errors are 1 % and 10 % by turns, and two thirds of the hours
    are observed."""
    rng = np.random.default_rng(1)
    process = {"ar1": ar1, "ar2": ar2}[memory](space(dims))
    matrices, errors = [], []
    for i in range(hours):
        n = 0 if i % 3 == 2 else count * 3 // 2
        a = rng.standard_normal((n, dims)) / np.sqrt(dims)
        a[:, -1] = 0
        matrices.append(a)
        errors.append(np.where(np.arange(n) % 2, 0.01, 0.1))
    return observed(process, matrices, errors)


def single(error: float, memory: str = "ar2", hours: int = 24, dims: int = 4) -> Case:
    r"""One observation, of the first number at mid-window: its value is one, whatever its error."""
    process = {"ar1": ar1, "ar2": ar2}[memory](space(dims))
    matrices = [np.eye(dims)[: int(i == hours // 2)] for i in range(hours)]
    covs = [error**2 * np.eye(len(a)) for a in matrices]
    return Case(process, Network(matrices, covs, [np.ones(len(a)) for a in matrices]))
