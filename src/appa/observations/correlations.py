r"""Correlation functions in time and on the sphere, fitted to measured ones.

A measured correlation is noisy, known at a few distances only, and may belong to no random field at
all: a matrix made of it can have negative eigenvalues. It is replaced by the closest mixture

.. math:: \rho(d) = \sum_k a_k \, \rho_k(d), \qquad a_k \geq 0, \qquad \sum_k a_k = 1

of correlation functions, which is one itself, at all distances. The weights are found by
non-negative least squares. The components are

* in time, :math:`e^{-t/\tau} \cos \omega t` and :math:`e^{-t^2 / 2 \tau^2} \cos \omega t`, white
  noise and a constant: what persists, what is carried past, what flickers and what stays;
* in space, :math:`e^{-\chi^2 / 2 a^2} \, P_\ell(\cos d / R)`, with :math:`\chi = 2 R \sin(d / 2 R)`
  the chord, Legendre's polynomials, and white noise. Gaussians of the chord are correlations on the
  sphere, as polynomials are, hence their products are. What a decoder cannot express has small
  scales and no large ones: its correlation falls below zero before it vanishes, which the
  polynomials are for. Nor has it scales much below the grid's if it is smooth, which functions
  with kinks, of compact support, would bring with them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..data.grids import Grid

__all__ = ["EARTH", "Mixture", "Series", "SpaceAtoms", "TimeAtoms", "degrees_of"]

EARTH = 6371.229  # km, the radius of appa.data.grids
WAVES = (0.0, 1.0, 1.5, 2.0, 3.0)  # ℓ a / R
WIDEST = 3000.0  # km, the widest Gaussian

Array = NDArray[np.float64]


class TimeAtoms:
    r"""The components in time, of lags in hours."""

    def __init__(self) -> None:
        memory = np.geomspace(0.7, 700, 17)
        self.atoms = [("white", 0.0, 0.0), ("constant", 0.0, 0.0)]
        self.atoms += [("exponential", tau, k / tau) for tau in memory for k in (0, 2, 5)]
        self.atoms += [("gaussian", tau, k / tau) for tau in memory for k in (0, 1.5, 3, 6)]

    def __len__(self) -> int:
        return len(self.atoms)

    def __call__(self, k: int, lag: Array) -> Array:
        kind, tau, omega = self.atoms[k]
        if kind == "white":
            return (lag == 0).astype(np.float64)
        if kind == "constant":
            return np.ones_like(lag)
        wave = np.cos(omega * lag)
        if kind == "exponential":
            return np.exp(-np.abs(lag) / tau) * wave
        return np.exp(-((lag / tau) ** 2) / 2) * wave


class SpaceAtoms:
    r"""The components in space, of great-circle distances in km.

    Arguments:
        spacing: The distance between neighbours on the grid in km: nothing finer is told apart
            from white noise.
    """

    def __init__(self, spacing: float) -> None:
        self.spacing = spacing
        octaves = max(np.log2(WIDEST / spacing), 0.0) + 1
        widths = spacing * 2 ** np.arange(-1, octaves - 0.99, 0.5)
        finest = np.pi * EARTH / spacing
        degrees = [(a, round(k * EARTH / a)) for a in widths for k in WAVES]
        self.atoms = [(0.0, 0)] + [(a, degree) for a, degree in degrees if degree <= finest]

    def __len__(self) -> int:
        return len(self.atoms)

    def __call__(self, k: int, distance: Array) -> Array:
        from scipy.special import eval_legendre

        width, degree = self.atoms[k]
        if width == 0:  # points that coincide, as all of a pole do, are one
            return (distance < 1e-3 * self.spacing).astype(np.float64)
        chord = 2 * EARTH * np.sin(distance / (2 * EARTH))
        value = np.exp(-((chord / width) ** 2) / 2)
        return value * eval_legendre(degree, np.cos(distance / EARTH)) if degree else value


class Mixture:
    r"""The mixture of components closest to a measured correlation.

    Arguments:
        atoms: The components.
        distance: Where the correlation was measured, the first at 0, with shape :math:`(N)`.
        value: The correlation, with shape :math:`(N)`; NaN where it is unknown.
    """

    def __init__(self, atoms: TimeAtoms | SpaceAtoms, distance: ArrayLike, value: ArrayLike):
        from scipy.optimize import nnls

        distance, value = np.asarray(distance, np.float64), np.asarray(value, np.float64)
        known = np.isfinite(value)
        distance, value = distance[known], value[known]
        sure = np.where(distance == 0, 1e2, 1.0)  # one at zero, nearly exactly
        beyond, expected = _continuation(distance, value)
        sure = np.concatenate([sure, np.full(len(beyond), 0.1)])
        value = np.concatenate([value, expected])
        distance = np.concatenate([distance, beyond])
        matrix = np.stack([atoms(k, distance) for k in range(len(atoms))], axis=-1)
        weights = nnls(matrix * sure[:, None], value * sure)[0]
        self.atoms = atoms
        self.parts = [(k, a / weights.sum()) for k, a in enumerate(weights) if a > 0]

    def __call__(self, distance: ArrayLike) -> Array:
        r"""The correlation at any distances."""
        distance = np.asarray(distance, np.float64)
        total = np.zeros_like(distance)
        for k, weight in self.parts:
            total += weight * self.atoms(k, distance)
        return total


class Series:
    r"""A correlation on the sphere as Legendre's polynomials, and white noise,

    .. math:: \rho(d) = \sum_{\ell \leq L} b_\ell \, P_\ell(\cos d / R) + b_\infty \, [d = 0] ,

    with :math:`b \geq 0` and a sum of one. What a mixture has beyond degree :math:`L` is noise.

    Arguments:
        mixture: A mixture of components in space.
        degrees: The largest degree :math:`L`.
    """

    def __init__(self, mixture: Mixture, degrees: int):
        nodes, polynomials = _quadrature(degrees)
        smooth = mixture(EARTH * nodes)  # no node is at 0, where white noise is
        coefficients = np.maximum(polynomials @ smooth, 0)
        self.coefficients: Array = coefficients / max(coefficients.sum(), 1.0)
        self.white = max(1 - float(self.coefficients.sum()), 0.0)
        self.degrees = degrees

    def __call__(self, distance: ArrayLike) -> Array:
        r"""The correlation at any distances in km."""
        distance = np.asarray(distance, np.float64)
        here = distance < 1e-3 * np.pi * EARTH / self.degrees  # all of a pole's points are one
        return self._spline(distance) + self.white * here

    @cached_property
    def _spline(self) -> Callable[[Array], Array]:
        # Polynomials of all pairs of points would take minutes: a spline is within 1e-6 of them.
        from numpy.polynomial.legendre import legval
        from scipy.interpolate import CubicSpline

        nodes = np.linspace(0, np.pi, 32 * self.degrees + 1)
        return CubicSpline(EARTH * nodes, legval(np.cos(nodes), self.coefficients))


@lru_cache(maxsize=2)
def _quadrature(degrees: int) -> tuple[Array, Array]:
    r"""Angles :math:`\theta_k` and :math:`(\ell + 1/2) \, w_k P_\ell(\cos \theta_k)`, of Fejér."""
    from scipy.fft import dct

    n = 16 * (degrees + 1)  # the narrowest Gaussian's standard deviation is 8 of them
    angle = (np.arange(n) + 0.5) * np.pi / n
    series = np.zeros(n)
    series[::2] = 1 / (1 - np.arange(0.0, n, 2) ** 2)
    weight = np.asarray(dct(series, type=3)) * 2 / n
    x, out = np.cos(angle), np.empty((degrees + 1, n))
    before, current = np.zeros(n), np.ones(n)
    for degree in range(degrees + 1):
        out[degree] = (degree + 0.5) * weight * current
        following = ((2 * degree + 1) * x * current - degree * before) / (degree + 1)
        before, current = current, following
    return angle, out


def degrees_of(grid: Grid) -> int:
    r"""The largest degree a grid tells from white noise, :math:`\min(H, W / 2)`."""
    return max(min(grid.latitudes, grid.longitudes // 2), 1)


def _continuation(distance: Array, value: Array) -> tuple[Array, Array]:
    r"""What is expected beyond the last value: that it goes on to decay as in the second half.

    Components that hardly differ where the correlation was measured may differ beyond.
    """
    if len(distance) < 3:
        return np.empty(0), np.empty(0)
    half = np.searchsorted(distance, distance[-1] / 2)
    last, middle = value[-1], value[half]
    ratio = np.clip(abs(last) / max(abs(middle), 1e-6), 0, 1)
    reach = np.linspace(0.2, 3, 15) * distance[-1]
    return distance[-1] + reach, last * ratio ** (reach / (distance[-1] - distance[half]))
