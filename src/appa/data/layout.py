r"""The layout of a store for training.

Zarr v3, one array a variable, an inner chunk of one hour :math:`(1, [L,] H, W)`, shards along
time. Without compression an hour is a contiguous range of bytes in its shard, hours follow each
other in order of time, and the shard ends with its index: :math:`(\text{offset}, \text{length})` as
little-endian uint64 for each hour, and a CRC-32C.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from .variables import ATMOSPHERIC, LEVELS, STATIC, SURFACE, variable

__all__ = ["COORDINATES", "make_template", "shard_hours"]

SHARD_BYTES = 256 * 2**20
SHARD_HOURS = (720, 360, 240, 144, 120, 72, 48, 24, 12, 8, 6, 4, 3, 2, 1)

COORDINATES: dict[str, dict[str, str]] = {
    "time": {"long_name": "time", "standard_name": "time", "axis": "T"},
    "level": {
        "long_name": "pressure level",
        "standard_name": "air_pressure",
        "units": "hPa",
        "positive": "down",
        "axis": "Z",
    },
    "latitude": {
        "long_name": "latitude",
        "standard_name": "latitude",
        "units": "degrees_north",
        "axis": "Y",
    },
    "longitude": {
        "long_name": "longitude",
        "standard_name": "longitude",
        "units": "degrees_east",
        "axis": "X",
    },
    "trajectory": {"long_name": "trajectory the hour belongs to"},
}


def shard_hours(values: int, itemsize: int = 4) -> int:
    r"""The hours a shard holds: at most 720 and 256 MiB, and a divisor or multiple of a day.

    Arguments:
        values: The number of values in an hour of the largest variable, :math:`L H W`.
        itemsize: The bytes of a value.

    Example:
        >>> shard_hours(13 * 721 * 1440)
        4
    """
    return next((n for n in SHARD_HOURS if n * values * itemsize <= SHARD_BYTES), 1)


def make_template(
    time: np.ndarray,
    latitude: np.ndarray,
    longitude: np.ndarray,
    levels: Sequence[int] = LEVELS,
    *,
    surface: Sequence[str] = SURFACE,
    atmospheric: Sequence[str] = ATMOSPHERIC,
    static: Mapping[str, np.ndarray] | None = None,
    trajectory: np.ndarray | None = None,
) -> xr.Dataset:
    r"""A canonical dataset with coordinates and shapes but no data, which takes no memory.

    Arguments:
        time: The hours, as datetime64, with shape :math:`(T)`.
        latitude: The latitudes from north to south, with shape :math:`(H)`.
        longitude: The longitudes from 0 eastwards, with shape :math:`(W)`.
        levels: The pressure levels, ascending, in hPa.
        surface: The surface variables.
        atmospheric: The variables on levels.
        static: Fields without time and their values, each with shape :math:`(H, W)`.
        trajectory: The trajectory each hour belongs to, with shape :math:`(T)`.
    """
    sizes = {
        "time": len(time),
        "level": len(levels),
        "latitude": len(latitude),
        "longitude": len(longitude),
    }
    data: dict[str, Any] = {}
    for name in (*surface, *atmospheric):
        dims = [dim for dim in sizes if dim != "level" or not variable(name).surface]
        blank = np.broadcast_to(np.float32(np.nan), [sizes[dim] for dim in dims])
        data[name] = (dims, blank, variable(name).attrs)
    for name, value in (static or {}).items():
        field = np.asarray(value, dtype=np.float32)
        data[name] = (("latitude", "longitude"), field, dict(STATIC[name]))
    coords: dict[str, Any] = {
        "time": ("time", np.asarray(time, dtype="datetime64[ns]"), COORDINATES["time"]),
        "latitude": ("latitude", np.asarray(latitude, np.float64), COORDINATES["latitude"]),
        "longitude": ("longitude", np.asarray(longitude, np.float64), COORDINATES["longitude"]),
    }
    if atmospheric:
        coords["level"] = ("level", np.asarray(levels, np.int64), COORDINATES["level"])
    if trajectory is not None:
        value = np.asarray(trajectory, np.int64)
        coords["trajectory"] = ("time", value, COORDINATES["trajectory"])
    return xr.Dataset(data, coords)
