r"""What composing windows gives, exactly, whoever integrates it.

With a Gaussian prior and linear observations, window :math:`n` given :math:`z_t` and its own
observations has the mean

.. math:: d_n(z_t) = P_n (P_n + \sigma^2 I)^{-1} z_t + \sigma^2 (P_n + \sigma^2 I)^{-1} \mu_n ,

where :math:`\mathcal{N}(\mu_n, P_n)` is the window's posterior. The composition takes rows of
these, and the probability flow :math:`dz / d \log \sigma = z - d(z)` stays linear: its map is
integrated to a relative 1e-5 by Runge-Kutta steps of :math:`\log \sigma`.

Drawing windows one after another, each given hours already drawn, is linear as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from .cases import Case
from .posteriors import Gaussian, condition

__all__ = ["Step", "chained", "composed"]


def composed(
    case: Case,
    window: int = 24,
    stride: int = 12,
    sigma: tuple[float, float] = (1e-3, 1e3),
    steps: int = 200,
) -> Gaussian:
    r"""The moments of the flow of composed windows, guided in each window by its observations.

    Arguments:
        case: The process and its observations, whose hours windows must fill.
        window, stride: The hours :math:`W` and :math:`\Delta`.
        sigma: The noise levels of the end and the start.
        steps: The number of steps.
    """
    dims, hours = case.process.dims, case.hours
    starts = range(0, hours - window + 1, stride)
    middle = (window - stride) // 2
    prior = Gaussian(np.zeros(window * dims), case.process.covariance(window))
    parts = []
    for n, start in enumerate(starts):
        first = 0 if n == 0 else middle
        last = window if n == len(starts) - 1 else middle + stride
        posterior = condition(prior, *case.network[start : start + window].joint())
        values, vectors = np.linalg.eigh(posterior.cov)
        columns = slice(start * dims, (start + window) * dims)
        keep = slice(first * dims, last * dims)
        rows = slice((start + first) * dims, (start + last) * dims)
        parts.append((rows, columns, keep, values.clip(min=0), vectors, vectors.T @ posterior.mean))

    size = hours * dims

    def denoise(s: float, z: np.ndarray) -> np.ndarray:
        r"""Of columns :math:`(M, b)`, the last of which alone feels the observations."""
        out = np.empty_like(z)
        for rows, columns, keep, values, vectors, mean in parts:
            gain = (vectors[keep] * (values / (values + s**2))) @ vectors.T
            out[rows] = gain @ z[columns]
            out[rows, -1] += vectors[keep] @ (s**2 / (values + s**2) * mean)
        return out

    def slope(log: float, z: np.ndarray) -> np.ndarray:
        return z - denoise(np.exp(log), z)

    grid = np.linspace(np.log(sigma[1]), np.log(sigma[0]), steps + 1)
    z = np.hstack((np.sqrt(1 + sigma[1] ** 2) * np.eye(size), np.zeros((size, 1))))
    h = grid[1] - grid[0]
    for u in grid[:-1]:
        k1 = slope(u, z)
        k2 = slope(u + h / 2, z + h / 2 * k1)
        k3 = slope(u + h / 2, z + h / 2 * k2)
        k4 = slope(u + h, z + h * k3)
        z = z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return Gaussian(z[:, -1], z[:, :-1] @ z[:, :-1].T)


class Step(NamedTuple):
    r"""One draw of a window's hours, given others of its hours."""

    start: int  #: the window's first hour
    clean: tuple[int, ...]  #: the hours it is given, already drawn
    new: tuple[int, ...]  #: the hours it draws, or draws again


def chained(case: Case, steps: Iterable[Step], window: int = 24) -> Gaussian:
    r"""The moments of drawing hours window by window, each exactly from its distribution given
    its clean hours and its window's observations.

    Hours of a window that are not drawn are left out, which is what drawing and discarding them
    gives; a window that ends beyond the trajectory looks at unobserved hours.
    """
    dims, hours = case.process.dims, case.hours
    prior = Gaussian(np.zeros(window * dims), case.process.covariance(window))
    steps = list(steps)
    size = sum(len(step.new) for step in steps) * dims
    z = np.zeros((hours * dims, size + 1))  # columns of noise, and the mean
    done = 0

    def numbers(of: tuple[int, ...], start: int = 0) -> np.ndarray:
        return (np.array(of, dtype=int)[:, None] * dims + np.arange(dims)).ravel() - start * dims

    for start, clean, new in steps:
        a, r, y = case.network[start : min(start + window, hours)].joint()
        a = np.hstack((a, np.zeros((len(a), window * dims - a.shape[1]))))
        posterior = condition(prior, a, r, y)
        k, n = numbers(clean, start), numbers(new, start)
        gain = np.linalg.solve(posterior.cov[np.ix_(k, k)], posterior.cov[np.ix_(k, n)]).T
        cov = posterior.cov[np.ix_(n, n)] - gain @ posterior.cov[np.ix_(k, n)]
        values, vectors = np.linalg.eigh(cov)
        drawn = gain @ z[numbers(clean)]
        drawn[:, -1] += posterior.mean[n] - gain @ posterior.mean[k]
        drawn[:, done : done + len(n)] += vectors * np.sqrt(values.clip(min=0))
        z[numbers(new)] = drawn
        done += len(n)
    return Gaussian(z[:, -1], z[:, :-1] @ z[:, :-1].T)
