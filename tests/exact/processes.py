r"""Gaussian processes in space and time whose every moment is known.

One number an hour follows an autoregression, :math:`z^i = \varphi_1 z^{i-1} + \varphi_2 z^{i-2} +
e^i`, with unit variance; a latent of :math:`D` numbers has the same memory, and a covariance in
space,

.. math:: \mathrm{Cov}(z^i, z^j) = \rho(|i - j|) \, K .

The planet's memory is an autocorrelation of 0.998 at 1 hour and 0.57 at 24 hours; an AR(1), which
has one parameter, keeps the latter. NumPy in double precision, and nothing of the package.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import solve_discrete_lyapunov, toeplitz
from scipy.optimize import brentq

__all__ = ["DAY", "HOUR", "Process", "ar1", "ar2", "space"]

HOUR, DAY = 0.998, 0.57  # the planet's autocorrelation at 1 and 24 hours


@dataclass(frozen=True)
class Process:
    r"""A stationary process with coefficients :math:`\varphi` in time and covariance :math:`K`
    in space, with shape :math:`(D, D)`."""

    phi: tuple[float, ...]
    space: np.ndarray

    @property
    def dims(self) -> int:
        return len(self.space)

    @cached_property
    def innovation(self) -> float:
        r"""The variance of :math:`e^i`, such that that of :math:`z^i` is one."""
        return 1 - float(np.dot(self.phi, self.autocorrelation(len(self.phi) + 1)[1:]))

    def autocorrelation(self, n: int) -> np.ndarray:
        r"""The autocorrelation :math:`\rho` at lags 0 to :math:`n - 1`, by the Yule-Walker
        equations."""
        p1, p2 = (*self.phi, 0.0)[:2]
        rho = np.ones(max(n, 2))
        rho[1] = p1 / (1 - p2)
        for k in range(2, n):
            rho[k] = p1 * rho[k - 1] + p2 * rho[k - 2]
        return rho[:n]

    def covariance(self, hours: int) -> np.ndarray:
        r"""The covariance of a trajectory, hours first, with shape :math:`(L D, L D)`."""
        return np.kron(toeplitz(self.autocorrelation(hours)), self.space)

    def companion(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        r"""The first-order form of the process: :math:`s^i = F s^{i-1} + w^i` where
        :math:`s^i = (z^i, z^{i-1}, \dots)`.

        Returns:
            The matrix :math:`F`, the covariance of :math:`w`, and the stationary covariance of
            :math:`s`, which solves :math:`P = F P F^\top + Q`.
        """
        p = len(self.phi)
        f = np.vstack((np.asarray(self.phi)[None], np.eye(p)[:-1]))
        q = np.zeros((p, p))
        q[0, 0] = self.innovation
        p0 = solve_discrete_lyapunov(f, q)
        return tuple(
            np.kron(m, k) for m, k in ((f, np.eye(self.dims)), (q, self.space), (p0, self.space))
        )


def ar1(k: np.ndarray, day: float = DAY) -> Process:
    r"""The AR(1) with an autocorrelation given at 24 hours."""
    return Process((day ** (1 / 24),), k)


def ar2(k: np.ndarray, hour: float = HOUR, day: float = DAY) -> Process:
    r"""The AR(2) with autocorrelations given at 1 and 24 hours."""

    def process(p2: float) -> Process:
        return Process((hour * (1 - p2), p2), k)

    root = brentq(
        lambda p2: process(float(p2)).autocorrelation(25)[24] - day, -0.99, 0.0, xtol=1e-14
    )
    return process(float(root))


def space(dims: int, length: float = 1.5) -> np.ndarray:
    r"""The covariance of points on a line at unit distance, :math:`e^{-d / \ell}`, with variances
    between 0.5 and 1.5."""
    std = np.sqrt(np.linspace(0.5, 1.5, dims)) if dims > 1 else np.ones(1)
    d = np.arange(dims)
    return np.exp(-np.abs(d[:, None] - d) / length) * std[:, None] * std
