r"""Grids on the sphere: cell areas, distances, interpolation to any point, conservative remapping.

A grid is the product of :math:`H` latitudes, from north to south, and :math:`W` equally spaced
longitudes :math:`\lambda_j = 360° \, j / W`. Three kinds of latitudes are known:

* `equiangular`, with both poles, :math:`\varphi_i = 90° - 180° \, i / (H - 1)`, as ERA5's;
* `equiangular-cells`, without poles, :math:`\varphi_i = 90° - 180° \, (i + 1/2) / H`;
* `gaussian`, :math:`\sin \varphi_i` the roots of the Legendre polynomial :math:`P_H`.

Each point stands for a cell. In latitude the edges of the cells lie half way between the points,
with the poles closing the first and last; those of a Gaussian grid lie where the cells have the
quadrature's weights. With :math:`\mu = \sin \varphi` a cell covers the area
:math:`R^2 \, \Delta\lambda \, \Delta\mu`, without approximation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import DataError, nearest

__all__ = ["KINDS", "RADIUS", "Grid", "conservative", "great_circle", "same_places"]

RADIUS = 6_371_229.0  # m, the sphere of ECMWF's forecast model

KINDS: tuple[str, ...] = ("equiangular", "equiangular-cells", "gaussian")

CLOSE = 5e-3  # of a cell, within which coordinates are the same: files round them

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Grid:
    r"""A grid of latitudes, from north to south, by longitudes, eastward from 0°.

    Arguments:
        kind: One of `equiangular`, `equiangular-cells`, `gaussian`.
        latitudes: The number of latitudes :math:`H`.
        longitudes: The number of longitudes :math:`W`.

    Example:
        >>> grid = Grid("equiangular", 721, 1440)
        >>> grid.latitude[:3]
        array([90.  , 89.75, 89.5 ])
    """

    kind: str
    latitudes: int
    longitudes: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise DataError(f"unknown kind of grid {self.kind!r}{nearest(self.kind, KINDS)}")
        if self.latitudes < 2 or self.longitudes < 2:
            raise DataError(
                f"a grid needs at least 2 latitudes and 2 longitudes, found {self.latitudes} and "
                f"{self.longitudes}; for example Grid('equiangular', 121, 240)"
            )

    @property
    def shape(self) -> tuple[int, int]:
        r""":math:`(H, W)`."""
        return self.latitudes, self.longitudes

    @cached_property
    def latitude(self) -> Array:
        r"""Latitudes in degrees, from north to south, with shape :math:`(H)`."""
        h = self.latitudes
        if self.kind == "equiangular":
            return _frozen(np.linspace(90.0, -90.0, h))
        if self.kind == "equiangular-cells":
            return _frozen(90.0 - 180.0 * (np.arange(h) + 0.5) / h)
        return _frozen(np.degrees(np.arcsin(_gauss(h)[0])))

    @cached_property
    def longitude(self) -> Array:
        r"""Longitudes in degrees, from 0 to below 360, with shape :math:`(W)`."""
        return _frozen(np.arange(self.longitudes) * 360.0 / self.longitudes)

    @cached_property
    def edges(self) -> Array:
        r"""Sines of the cells' edges :math:`\mu`, from 1 to -1, with shape :math:`(H + 1)`."""
        if self.kind == "gaussian":
            # The points lie inside these cells: Chebyshev, Markov and Stieltjes.
            edges = 1.0 - np.cumsum(_gauss(self.latitudes)[1])
            return _frozen(np.concatenate(([1.0], edges[:-1], [-1.0])))
        middle = (self.latitude[1:] + self.latitude[:-1]) / 2
        return _frozen(np.sin(np.radians(np.concatenate(([90.0], middle, [-90.0])))))

    @cached_property
    def thickness(self) -> Array:
        r"""The extent :math:`\Delta\mu` of each row, summing to 2, with shape :math:`(H)`."""
        if self.kind == "gaussian":
            return _frozen(_gauss(self.latitudes)[1])
        middle = (self.latitude[1:] + self.latitude[:-1]) / 2
        edges = np.radians(np.concatenate(([90.0], middle, [-90.0])))
        north, south = edges[:-1], edges[1:]
        # sin a - sin b without cancellation, which near the poles would cost half the digits
        return _frozen(2 * np.cos((north + south) / 2) * np.sin((north - south) / 2))

    @cached_property
    def area(self) -> Array:
        r"""Areas of the cells in m², summing to :math:`4 \pi R^2`, with shape :math:`(H, W)`."""
        row = RADIUS**2 * (2 * np.pi / self.longitudes) * self.thickness
        return np.broadcast_to(row[:, None], self.shape)

    @cached_property
    def weights(self) -> Array:
        r"""Weights of the latitudes by area, with mean 1 and shape :math:`(H)`."""
        return _frozen(self.thickness * (self.latitudes / self.thickness.sum()))

    def interpolation(
        self, latitude: ArrayLike, longitude: ArrayLike, vector: bool = False
    ) -> tuple[NDArray[np.int64], Array]:
        r"""Bilinear interpolation to any point of the sphere.

        .. math:: f(\varphi, \lambda) \approx \sum_{k=1}^{4} w_k \, f_{i_k}

        Longitude wraps. Poleward of the last row, where a grid has no poles, the cell between is
        closed by the same row on the other side of the pole, at :math:`\lambda + 180°`.

        Arguments:
            latitude: Latitudes of the points in degrees, with shape :math:`(N)`.
            longitude: Longitudes in degrees in any convention, with shape :math:`(N)`.
            vector: Whether the field is a component of a vector. East and north turn around across
                a pole, so the weights of points taken from there change sign.

        Returns:
            The indices :math:`i` into a field flattened to :math:`(H \cdot W)` and the weights
            :math:`w`, both with shape :math:`(N, 4)`. Weights sum to 1, unless `vector`.

        Example:
            >>> index, weight = grid.interpolation([50.6, 48.9], [5.6, 2.4])
            >>> values = (field.reshape(-1)[index] * weight).sum(axis=-1)
        """
        phi, lam = _points(latitude, longitude)
        h, w = self.shape
        rows, across = np.arange(h), np.zeros(h, dtype=bool)
        parallels = self.latitude
        if self.kind != "equiangular":
            rows = np.concatenate(([0], rows, [h - 1]))
            across = np.concatenate(([True], across, [True]))
            parallels = np.concatenate(([180 - parallels[0]], parallels, [-180 - parallels[-1]]))

        north = np.searchsorted(-parallels, -phi, side="right") - 1
        north = np.clip(north, 0, len(parallels) - 2)
        weight_south = (parallels[north] - phi) / (parallels[north] - parallels[north + 1])

        index = np.empty((len(phi), 4), dtype=np.int64)
        weight = np.empty((len(phi), 4))
        for k, (row, share) in enumerate(((north, 1 - weight_south), (north + 1, weight_south))):
            turned = across[row]
            column = np.mod(lam + 180.0 * turned, 360.0) * (w / 360.0)
            west = np.floor(column).astype(np.int64)
            weight_east = column - west
            if vector:
                share = np.where(turned, -share, share)
            # west may be W: the remainder of a tiny negative longitude rounds to 360
            index[:, 2 * k] = rows[row] * w + west % w
            index[:, 2 * k + 1] = rows[row] * w + (west + 1) % w
            weight[:, 2 * k] = share * (1 - weight_east)
            weight[:, 2 * k + 1] = share * weight_east
        return index, weight

    def regrid(self, field: NDArray, target: Grid, coverage: float = 0.5) -> NDArray:
        r"""First-order conservative remapping of a field to another grid.

        Undefined values (NaN) take no part in the means: a cell of the target has the mean over
        its defined share, and is undefined where that share is below `coverage`.

        Arguments:
            field: A field on this grid, with shape :math:`(*, H, W)`.
            target: The grid to remap to.
            coverage: The least defined share of a cell, in :math:`(0, 1]`.

        Returns:
            The field on the target, with shape :math:`(*, H', W')` and the field's precision.
        """
        field = np.asarray(field)
        if field.shape[-2:] != self.shape:
            raise DataError(
                f"a field on this grid has shape (..., {self.latitudes}, {self.longitudes}), "
                f"found {field.shape}; transpose it to (..., latitude, longitude)"
            )
        dtype = field.dtype if field.dtype in (np.float32, np.float64) else np.dtype(np.float64)
        field = field.astype(dtype, copy=False)
        rows, columns = (m.astype(dtype) for m in conservative(self, target))

        missing = np.isnan(field)
        if not missing.any():
            return rows @ field @ columns.T
        share = rows @ (~missing).astype(dtype) @ columns.T
        total = rows @ np.where(missing, 0, field).astype(dtype, copy=False) @ columns.T
        # half a cell is half a cell, even where rounding makes it a little less
        defined = share >= coverage * (1 - 1e-5)
        return np.where(defined, total / np.where(defined, share, 1), np.nan).astype(dtype)

    @classmethod
    def from_coordinates(cls, latitude: ArrayLike, longitude: ArrayLike) -> Grid:
        r"""Recognises the grid of given coordinates.

        Latitudes may run either way and longitudes start anywhere, in any convention; the grid
        returned is in canonical order. Coordinates may be rounded, to half a percent of a cell.

        Arguments:
            latitude: Latitudes in degrees, with shape :math:`(H)`.
            longitude: Longitudes in degrees, with shape :math:`(W)`.
        """
        phi, lam = np.asarray(latitude, np.float64), np.asarray(longitude, np.float64)
        for name, value in (("latitude", phi), ("longitude", lam)):
            if value.ndim != 1 or len(value) < 2 or not np.isfinite(value).all():
                raise DataError(
                    f"{name} must be a list of two or more finite numbers, found shape "
                    f"{value.shape}; only grids of latitudes by longitudes are read: regrid first"
                )
        if abs(phi).max() > 90.01:
            raise DataError(
                f"latitude {phi[abs(phi).argmax()]:g} is outside ±90; are latitude and longitude "
                "swapped?"
            )
        h, w = len(phi), len(lam)
        _check_longitude(lam)
        if phi[0] < phi[-1]:
            phi = phi[::-1]

        for kind in KINDS:
            grid = cls(kind, h, w)
            if np.abs(grid.latitude - phi).max() <= 5e-3 * 180 / h:
                return grid
        raise DataError(
            f"{h} latitudes from {phi[0]:g} to {phi[-1]:g} are of no known grid ("
            + ", ".join(f"{kind}: from {cls(kind, h, w).latitude[0]:.6g}" for kind in KINDS)
            + "); a part of the globe or an irregular grid must be regridded first"
        )


def same_places(a: Any, b: Any) -> bool:
    r"""Whether two grids or datasets have the same points, to half a percent of a cell.

    Arguments:
        a, b: What has a `latitude` and a `longitude`, in one order and convention.
    """
    for name, span in (("latitude", 180.0), ("longitude", 360.0)):
        x, y = (np.asarray(getattr(grid, name), np.float64) for grid in (a, b))
        if x.shape != y.shape or not (np.abs(x - y) <= CLOSE * span / max(len(x), 1)).all():
            return False
    return True


def great_circle(
    lat1: ArrayLike, lon1: ArrayLike, lat2: ArrayLike, lon2: ArrayLike, radius: float = RADIUS
) -> Array:
    r"""Distance along the great circle, in the unit of the radius.

    The angle comes from both its sine (a cross product) and its cosine (a dot product), so that
    it is accurate for neighbours and antipodes alike.

    Arguments:
        lat1, lon1, lat2, lon2: Coordinates in degrees; they broadcast.
        radius: The radius of the sphere, by default in metres.
    """
    phi1, phi2 = np.radians(lat1), np.radians(lat2)
    delta = np.radians(np.subtract(lon2, lon1))
    sin1, cos1, sin2, cos2 = np.sin(phi1), np.cos(phi1), np.sin(phi2), np.cos(phi2)
    cross = np.hypot(cos2 * np.sin(delta), cos1 * sin2 - sin1 * cos2 * np.cos(delta))
    dot = sin1 * sin2 + cos1 * cos2 * np.cos(delta)
    return radius * np.arctan2(cross, dot)


def conservative(source: Grid, target: Grid) -> tuple[Array, Array]:
    r"""Matrices of the first-order conservative remapping :math:`f' = A f B^\top`.

    An entry is the share of a target's cell that a source's cell covers, in
    :math:`\mu = \sin \varphi` and in longitude (which wraps): rows sum to 1, so constants stay,
    and the area integral of the field is kept.

    Returns:
        :math:`A`, with shape :math:`(H', H)`, and :math:`B`, with shape :math:`(W', W)`.
    """
    top, bottom = source.edges[:-1], source.edges[1:]
    rows = np.minimum(target.edges[:-1, None], top) - np.maximum(target.edges[1:, None], bottom)
    rows = np.maximum(rows, 0)

    west = target.longitude[:, None] - 180 / target.longitudes
    east = target.longitude[:, None] + 180 / target.longitudes
    columns = np.zeros((target.longitudes, source.longitudes))
    for turn in (-360, 0, 360):
        left = source.longitude - 180 / source.longitudes + turn
        right = source.longitude + 180 / source.longitudes + turn
        columns += np.maximum(np.minimum(east, right) - np.maximum(west, left), 0)

    return rows / rows.sum(-1, keepdims=True), columns / columns.sum(-1, keepdims=True)


def _gauss(h: int) -> tuple[Array, Array]:
    r"""Nodes from north to south and weights of the Gauss-Legendre quadrature."""
    nodes, weights = np.polynomial.legendre.leggauss(h)
    return nodes[::-1], weights[::-1] * (2 / weights.sum())


def _frozen(array: Array) -> Array:
    # Grids are shared and compared: their arrays are not to be written to.
    array = np.ascontiguousarray(array)
    array.setflags(write=False)
    return array


def _points(latitude: ArrayLike, longitude: ArrayLike) -> tuple[Array, Array]:
    phi, lam = np.broadcast_arrays(
        np.asarray(latitude, np.float64).reshape(-1), np.asarray(longitude, np.float64).reshape(-1)
    )
    good = np.abs(phi) <= 90
    if not good.all():
        row = int(np.argmin(good))
        raise DataError(
            f"latitude {phi[row]:g} in row {row} is not within -90 to 90 "
            f"({np.count_nonzero(~good)} such rows); drop them, or check that latitude and "
            "longitude are not swapped"
        )
    good = np.isfinite(lam)
    if not good.all():
        row = int(np.argmin(good))
        raise DataError(
            f"longitude {lam[row]:g} in row {row} is not a number "
            f"({np.count_nonzero(~good)} such rows); drop them"
        )
    return phi, lam


def _check_longitude(lam: Array) -> None:
    r"""Raises unless longitudes are equally spaced around the whole circle and include 0."""
    w = len(lam)
    step = 360 / w
    tolerance = 5e-3 * step
    turned = np.sort(np.mod(lam + tolerance, 360) - tolerance)
    if turned[-1] - turned[0] > tolerance and np.diff(turned).min() < tolerance:
        raise DataError(
            f"longitude {lam[-1]:g} repeats another; drop the repeated column (often 360 beside 0)"
        )
    if np.abs(np.diff(turned) - step).max() > 2 * tolerance:
        raise DataError(
            f"{w} longitudes from {lam[0]:g} to {lam[-1]:g} are not spaced by {step:g}; a part of "
            "the globe or an irregular grid must be regridded first"
        )
    if np.abs(turned - np.arange(w) * step).max() > tolerance:
        raise DataError(
            f"longitudes are spaced by {step:g} but start at {turned[0]:g}, not at 0; a shifted "
            "grid must be regridded first"
        )
    if np.abs(np.mod(np.diff(lam) + 180, 360) - 180).max() > step + 2 * tolerance:
        raise DataError("longitudes are in no order; sort them, for example with ds.sortby")
