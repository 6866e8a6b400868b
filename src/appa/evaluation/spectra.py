r"""Power spectra on the sphere: how much of a field's variance lies at each wavelength.

A field is a sum of orthonormal spherical harmonics,
:math:`f = \sum_{l m} a_{l m} Y_{l m}`, and its energy at the total wavenumber :math:`l` is

.. math:: S_l = \frac{1}{4 \pi} \sum_{m=-l}^{l} |a_{l m}|^2 , \qquad
    \sum_l S_l = \frac{1}{4 \pi} \int f^2 \, \mathrm{d} \Omega ,

in the field's unit squared: the sum is the mean square by area (Parseval). A wavenumber stands for
the wavelength :math:`2 \pi R / \sqrt{l (l + 1)}` (Jeans' relation): the Laplacian has the
eigenvalue :math:`- l (l + 1) / R^2`.

The transform is exact for fields without harmonics beyond the grid's last wavenumber: :math:`H - 1`
for Gaussian latitudes and for cells, :math:`H - 2` with poles, and no more than half the longitudes
tell apart, :math:`(W - 1) / 2`. Components of the wind are taken as scalars. A field that is
undefined somewhere, as SST is over land, has no spectrum: its energies are NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..data.grids import RADIUS, Grid
from ..errors import AppaError, DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["QUANTILES", "Spectra", "power_spectrum", "truncation", "wavelength"]

# geometries as ducc0 names them, and the last wavenumber below the number of latitudes
GEOMETRIES = {"gaussian": ("GL", 1), "equiangular-cells": ("F1", 1), "equiangular": ("CC", 2)}

QUANTILES = (0.05, 0.5, 0.95)


def truncation(grid: Grid) -> int:
    r"""The last wavenumber a grid resolves in all directions."""
    _, below = GEOMETRIES[grid.kind]
    return min(grid.latitudes - below, (grid.longitudes - 1) // 2)


def wavelength(wavenumber: np.ndarray | int) -> np.ndarray:
    r"""Wavelengths :math:`2 \pi R / \sqrt{l (l + 1)}` in km; infinite for :math:`l = 0`."""
    degree = np.asarray(wavenumber, np.float64)
    with np.errstate(divide="ignore"):
        return 2 * np.pi * RADIUS / 1e3 / np.sqrt(degree * (degree + 1))


def power_spectrum(fields: np.ndarray, grid: Grid, *, threads: int = 1) -> np.ndarray:
    r"""The energy of fields by total wavenumber.

    Arguments:
        fields: Fields from north to south, with shape :math:`(*, H, W)`.
        grid: Their grid.
        threads: Threads of a transform; worth it from about 1,000 longitudes, 0 for all.

    Returns:
        :math:`S_0, \dots, S_L` in the unit squared, with shape :math:`(*, L + 1)`,
        :math:`L` being the grid's :func:`truncation`.

    Example:
        >>> ds = appa.open_store("planet")
        >>> grid = Grid.from_coordinates(ds.latitude, ds.longitude)
        >>> power_spectrum(ds["geopotential"].sel(level=500).values, grid).shape
        (96, 48)
    """
    try:
        import ducc0
    except ImportError:
        raise AppaError(
            "spectra need 'ducc0', which is not installed; run "
            "pip install 'appa-assimilation[evaluation]'"
        ) from None
    fields = np.asarray(fields)
    if fields.shape[-2:] != grid.shape:
        raise DataError(
            f"fields have shape {fields.shape}, expected (*, {', '.join(map(str, grid.shape))})"
        )

    last, (geometry, _) = truncation(grid), GEOMETRIES[grid.kind]
    # coefficients come with m ≥ 0, order by order; those with m > 0 stand for −m too
    wavenumber = np.concatenate([np.arange(m, last + 1) for m in range(last + 1)])
    twice = np.where(np.arange(len(wavenumber)) <= last, 1.0, 2.0)
    lead = fields.shape[:-2]
    spectra = np.empty((int(np.prod(lead)), last + 1))
    for k, field in enumerate(fields.reshape(-1, *grid.shape)):
        # In single precision rounding would pass for energy where spectra are steep.
        a = ducc0.sht.analysis_2d(
            map=np.ascontiguousarray(field[None], np.float64),
            spin=0,
            lmax=last,
            geometry=geometry,
            nthreads=threads,
        )[0]
        power = twice * (a.real**2 + a.imag**2)
        spectra[k] = np.bincount(wavenumber, power, last + 1) / (4 * np.pi)
    return spectra.reshape(*lead, last + 1)


class Spectra:
    r"""Collects the spectra of many states, for their median and spread.

    Arguments:
        grid: The grid of the fields.
        scale: What multiplies each channel, with shape :math:`(C)`, for instance to turn
            standardized fields into physical ones.
    """

    def __init__(self, grid: Grid, scale: Sequence[float] | np.ndarray):
        self.grid = grid
        self.scale = np.asarray(scale, np.float64)
        self.threads = 0 if grid.longitudes >= 1000 else 1
        self.parts: list[np.ndarray] = []

    def update(self, fields: np.ndarray) -> None:
        r"""Adds states, with shape :math:`(N, C, H, W)`."""
        power = power_spectrum(fields, self.grid, threads=self.threads)
        self.parts.append(self.scale[:, None] ** 2 * power)

    def quantiles(self, q: Sequence[float] = QUANTILES) -> np.ndarray:
        r"""Quantiles over the states, with shape :math:`(Q, C, L + 1)`."""
        return np.quantile(np.concatenate(self.parts), q, axis=0)
