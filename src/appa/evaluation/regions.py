r"""Regions that scores are averaged over.

A point counts with the area of its cell, as WeatherBench weighs latitudes. The extratropics begin
at 20°, by the latitude of a cell's centre, so that they and the tropics share the globe without
overlap; so do the hemispheres, of which each has half of a row on the equator. On land a cell
counts with its share of land, on the ocean with the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..data.grids import Grid
from ..errors import DataError, nearest

__all__ = ["REGIONS", "region_weights"]

TROPICS = 20.0

REGIONS: dict[str, str] = {
    "global": "everywhere",
    "northern-hemisphere": "north of the equator",
    "southern-hemisphere": "south of the equator",
    "northern-extratropics": "20° N to the pole",
    "southern-extratropics": "20° S to the pole",
    "tropics": "20° S to 20° N",
    "land": "by the share of land",
    "ocean": "by the share of sea",
}


def region_weights(grid: Grid, regions: Sequence[str], land: Any = None) -> np.ndarray:
    r"""The weight of each point in each region, with shape :math:`(R, H, W)`.

    Arguments:
        grid: The grid.
        regions: Names of :data:`REGIONS`.
        land: The share of land, with shape :math:`(H, W)`, where it is known.
    """
    area = np.broadcast_to(grid.weights[:, None], grid.shape)
    latitude = grid.latitude[:, None]
    found = []
    for name in regions:
        if name not in REGIONS:
            raise DataError(f"unknown region {name!r}{nearest(name, REGIONS)}")
        share: Any = 1.0
        if name in ("land", "ocean"):
            if land is None:
                raise DataError(
                    f"the truth has no land_sea_mask to tell {name} by; add one to the store, or "
                    "leave the region out"
                )
            share = np.clip(np.asarray(land, np.float64), 0, 1)
            share = share if name == "land" else 1 - share
        elif name == "northern-hemisphere":
            share = np.heaviside(latitude, 0.5)
        elif name == "southern-hemisphere":
            share = np.heaviside(-latitude, 0.5)
        elif name == "northern-extratropics":
            share = latitude >= TROPICS
        elif name == "southern-extratropics":
            share = latitude <= -TROPICS
        elif name == "tropics":
            share = np.abs(latitude) < TROPICS
        found.append(area * share)
    return np.stack(found)
