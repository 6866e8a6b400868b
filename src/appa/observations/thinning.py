r"""Fewer observations where they are dense.

Neighbours whose errors are correlated tell less than they seem to. Of the observations of one
variable, level and hour, those kept are at least a distance apart, or one a grid box. The best are
kept: those with the smallest error, of these the nearest to the whole hour, and of these some that
depend on their place alone, so that the choice is the same whatever the order. Going from the best
to the worst, each is kept unless one kept before is too close. Errors stay as they are.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray
from pandas.core.util.hashing import hash_pandas_object

from ..data.grids import RADIUS, Grid
from ..errors import DataError
from .checks import THINNED, match_hours
from .collection import Observations, values_of
from .networks import boxes
from .orbits import unit

__all__ = ["thin"]

PAIRS = 20_000_000  # of neighbours at a time, 16 bytes each


def thin(
    observations: Observations, distance_km: float | None = None, *, per_box: Grid | None = None
) -> Observations:
    r"""Keeps observations that are apart, or one a box; the others are counted as thinned.

    Points and fields are thinned apart.

    Arguments:
        observations: The observations.
        distance_km: The least great-circle distance between two of one variable, level and hour.
        per_box: A grid, of which each point's box keeps one.

    Example:
        >>> thin(observations, 100)
        >>> thin(observations, per_box=Grid("equiangular", 121, 240))
    """
    if (distance_km is None) == (per_box is None):
        raise DataError(
            f"found distance_km={distance_km!r} and per_box={per_box!r}; give one of them, for "
            "example thin(observations, 100)"
        )
    if distance_km is not None and not distance_km > 0:
        raise DataError(f"found a distance of {distance_km!r} km; give one above 0")
    reach = None if distance_km is None else 1e3 * distance_km

    points = observations.points
    latitude, longitude = points["latitude"].to_numpy(), points["longitude"].to_numpy()
    group = points.groupby(["variable", "level", "hour"], dropna=False, sort=False).ngroup()
    away = match_hours(points["time"].to_numpy())[1].astype(np.int64)
    order = np.lexsort((_scatter(latitude, longitude), away, points["error"].to_numpy()))
    kept = _keep(group.to_numpy(), latitude, longitude, order, reach, per_box)

    gridded = observations.gridded
    masks: dict[str, xr.DataArray] = {}
    if gridded is not None:
        for v in values_of(gridded):
            masks[str(v.name)] = _thin_field(v, gridded[f"{v.name}_error"], reach, per_box)
    return observations.exclude(~kept, THINNED, masks)


def _scatter(latitude: NDArray, longitude: NDArray) -> NDArray:
    r"""Numbers in no order of places, each by its place."""
    place = pd.DataFrame({"latitude": latitude, "longitude": longitude}) + 0.0
    return hash_pandas_object(place, index=False).to_numpy("uint64")


def _keep(
    group: NDArray,
    latitude: NDArray,
    longitude: NDArray,
    order: NDArray,
    reach: float | None,
    grid: Grid | None,
) -> NDArray:
    r"""Which of :math:`N` places are kept, going through them in an order, best first.

    Arguments:
        group: Which places compete, with shape :math:`(N)`.
        latitude, longitude: The places in degrees, with shape :math:`(N)`.
        order: The order, with shape :math:`(N)`.
        reach: The distance in metres, or
        grid: the grid of boxes.
    """
    kept = np.zeros(len(group), dtype=bool)
    if grid is not None:
        box = group.astype(np.int64) * grid.latitudes * grid.longitudes
        box = box + boxes(grid, latitude, longitude)
        kept[order[np.unique(box[order], return_index=True)[1]]] = True
        return kept

    assert reach is not None
    # Groups lie far apart along a fourth axis, so that one tree is enough.
    places = np.column_stack([unit(latitude, longitude), 10.0 * group])[order]
    chord = 2 * np.sin(min(reach / RADIUS, np.pi) / 2) * (1 - 1e-12)  # just apart is apart
    kept[order[_apart(places, chord)]] = True
    return kept


def _apart(places: NDArray, distance: float) -> NDArray:
    r"""Indices of places that are kept going through them in order, none too close to another."""
    from scipy.spatial import KDTree

    kept: list[int] = []
    left, size = np.arange(len(places)), 1024
    while len(left):
        tree = KDTree(places[left])
        some = places[left[:: len(left) // 1024 + 1]]
        each = np.mean(tree.query_ball_point(some, distance, return_length=True))
        if each * len(left) <= PAIRS:
            pairs = tree.query_pairs(distance, output_type="ndarray")
            return np.concatenate(
                [np.array(kept, dtype=np.int64), left[_first_of(pairs, len(left))]]
            )
        # All pairs would take too much memory; the first places clear much of it.
        gone = np.zeros(len(left), dtype=bool)
        while 2 * gone.sum() < len(left):
            size = min(size, int(PAIRS / 8 / each) + 1)
            batch = np.flatnonzero(~gone)[:size]
            near = tree.query_ball_point(places[left[batch]], distance, return_sorted=False)
            before = len(kept)
            for k, neighbours in zip(batch, near, strict=True):
                if not gone[k]:
                    kept.append(int(left[k]))
                    gone[neighbours] = True
            # those next in order may be next in place as well, and be gone with the first
            size = 2 * size if 4 * (len(kept) - before) > size else max(size // 2, 16)
        left = left[~gone]
    return np.array(kept, dtype=np.int64)


def _first_of(pairs: NDArray, number: int) -> NDArray:
    r"""Which of a number of nodes are kept going through them in order, no two of them a pair.

    Arguments:
        pairs: The pairs :math:`i < j`, with shape :math:`(E, 2)`.
        number: The number of nodes.
    """
    from scipy.sparse import csr_array

    edges = csr_array((np.ones(len(pairs), dtype=bool), pairs.T), shape=(number, number))
    gone = np.zeros(number, dtype=np.uint8)
    look = memoryview(gone.data)  # a single value of which is read five times faster
    start: list[int] = edges.indptr.tolist()  # type: ignore[assignment]
    for k in np.flatnonzero(np.diff(edges.indptr)).tolist():
        if not look[k]:
            gone[edges.indices[start[k] : start[k + 1]]] = 1
    return np.flatnonzero(gone == 0)


def _thin_field(
    value: xr.DataArray, error: xr.DataArray, reach: float | None, grid: Grid | None
) -> xr.DataArray:
    r"""Which values of a field go, hour by hour and level by level."""
    rows, columns = value["latitude"].values, value["longitude"].values
    latitude, longitude = (a.ravel() for a in np.meshgrid(rows, columns, indexing="ij"))
    scatter = _scatter(latitude, longitude)
    gone = np.zeros(value.shape, dtype=bool)
    last: tuple[NDArray, NDArray, NDArray] | None = None
    for k in range(value.sizes["time"]):
        shape = (-1, len(latitude))
        x, sd = (a.isel(time=k).values.reshape(shape) for a in (value, error))
        out = gone[k].reshape(shape)
        for j in range(len(x)):
            seen = np.flatnonzero(~np.isnan(x[j]))
            # a swath is the same on all levels; the order of errors is what counts
            rank = np.unique(sd[j, seen], return_inverse=True)[1]
            if last and np.array_equal(last[0], seen) and np.array_equal(last[1], rank):
                kept = last[2]
            else:
                order = np.lexsort((scatter[seen], rank))
                zero = np.zeros(len(seen), dtype=np.int64)
                kept = _keep(zero, latitude[seen], longitude[seen], order, reach, grid)
                last = seen, rank, kept
            out[j, seen[~kept]] = True
    return xr.DataArray(gone, dims=value.dims, coords=value.coords)
