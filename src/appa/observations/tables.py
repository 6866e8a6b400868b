r"""Observations sorted for compilation: by hour, then by observable, as arrays.

Points and grids come out alike: a :class:`Table` has one row an observation, wherever it is. Rows
that lie on the model's own grid points know which, and need no interpolation. A place has a number
that it keeps in every hour: the flat index of a grid point of the model, and beyond those

.. math:: H W + \left[ \tfrac{\varphi + 90°}{\delta} \right] \tfrac{360°}{\delta}
    + \left[ \tfrac{\lambda}{\delta} \right] , \qquad \delta = 10^{-4} \text{ degrees} .
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from ..data.grids import same_places
from ..data.variables import STATIC
from ..errors import DataError
from .checks import match_hours

if TYPE_CHECKING:
    from .collection import Observations
    from .stencils import StateSpace

__all__ = ["Table", "Tables"]

TURN = 3_600_000  # places around a parallel, 1e-4 degrees apart: 11 m at the equator


@dataclass(frozen=True, eq=False)
class Table:
    r"""Observations of one observable in one hour; columns have shape :math:`(n)`.

    Arguments:
        name: The observable.
        level: Levels in hPa, NaN without.
        latitude, longitude: Places in degrees.
        value, error: Values and their standard deviations.
        elevation: Heights of the stations in m, NaN if unknown.
        station: Codes of the stations' names.
        place: Numbers of the places.
        point: Flat indices of the model's grid points, if all rows are such.
        gridded: Whether the rows come from a dataset.
    """

    name: str
    level: NDArray
    latitude: NDArray
    longitude: NDArray
    value: NDArray
    error: NDArray
    elevation: NDArray
    station: NDArray
    place: NDArray
    point: NDArray | None = None
    gridded: bool = False

    def __len__(self) -> int:
        return len(self.value)

    def take(self, keep: NDArray) -> Table:
        r"""The rows of a mask."""
        arrays = {k: v[keep] for k, v in vars(self).items() if isinstance(v, np.ndarray)}
        return replace(self, **arrays)


class Tables:
    r"""The tables of observations by hour.

    Arguments:
        observations: Points with a column `hour`, and a canonical dataset or none.
        space: Where states live.
    """

    def __init__(self, observations: Observations, space: StateSpace):
        self.points, self.gridded, self.space = observations.points, observations.gridded, space
        points, self.names = self.points, []
        self.stations = np.array([""], dtype=object)
        if len(points):
            codes, names = pd.factorize(points["variable"])
            self.names = [str(name) for name in names]
            hour = np.asarray(points["hour"], dtype="datetime64[h]").astype(np.int64)
            order = np.lexsort((codes, hour))
            self.order, self.codes, self.hour = order, codes[order], hour[order]
            self.columns = {k: self._floats(k)[order] for k in NUMBERS}
            self.station = self._stations()[order]
            latitude, longitude = self.columns["latitude"], self.columns["longitude"]
            self.place = place_number(latitude, longitude, space)
        if self.gridded is not None:
            names = list(gridded_names(self.gridded))
            self.names = list(dict.fromkeys([*self.names, *names]))
            self.times = match_hours(self.gridded["time"].values)[0].astype("datetime64[h]")

    def of(self, hour: np.datetime64) -> Iterator[Table]:
        r"""The tables of an hour."""
        if len(self.points):
            yield from self._points(hour)
        if self.gridded is not None:
            for k in np.flatnonzero(self.times == hour):
                yield from self._grids(self.gridded.isel(time=int(k)))

    def rows(self, tables: Sequence[Table]) -> pd.DataFrame:
        r"""Tables one after the other, as a frame."""
        size = [len(table) for table in tables]

        def each(values: list[Any]) -> pd.Series:
            # objects, since a few words stand in many rows
            return pd.Series(np.repeat(np.array(values, dtype=object), size), dtype=object)

        def column(name: str) -> NDArray:
            return np.concatenate([getattr(table, name) for table in tables])

        frame: dict[str, Any] = {"variable": each([table.name for table in tables])}
        frame |= {name: column(name) for name in ("level", "latitude", "longitude")}
        frame["station"] = pd.Series(self.stations[column("station")], dtype=object)
        frame |= {name: column(name) for name in ("place", "value", "error")}
        frame["gridded"] = np.repeat([table.gridded for table in tables], size)
        return pd.DataFrame(frame, copy=False)

    def _floats(self, name: str) -> NDArray:
        if name not in self.points:
            return np.full(len(self.points), np.nan)
        return self.points[name].to_numpy(dtype=np.float64, na_value=np.nan)

    def _stations(self) -> NDArray:
        if "station" not in self.points:
            return np.zeros(len(self.points), dtype=np.int64)
        codes, names = pd.factorize(self.points["station"])  # −1 where there is none
        self.stations = np.array([*map(str, names), ""], dtype=object)
        return np.where(codes < 0, len(names), codes)

    def _points(self, hour: np.datetime64) -> Iterator[Table]:
        hour_number = int(hour.astype("datetime64[h]").astype(np.int64))
        start, stop = np.searchsorted(self.hour, [hour_number, hour_number + 1])
        codes = self.codes[start:stop]
        edges = np.flatnonzero(np.diff(codes, prepend=-1, append=len(self.names)))
        for i, j in zip(edges[:-1] + start, edges[1:] + start, strict=True):
            columns: dict[str, Any] = {key: c[i:j] for key, c in self.columns.items()}
            yield Table(
                name=self.names[self.codes[i]],
                station=self.station[i:j],
                place=self.place[i:j],
                **columns,
            )

    def _grids(self, ds: xr.Dataset) -> Iterator[Table]:
        latitude = np.asarray(ds["latitude"].values, np.float64)
        longitude = np.asarray(ds["longitude"].values, np.float64)
        own, width = same_places(ds, self.space.grid), len(longitude)
        for name in gridded_names(ds):
            if f"{name}_error" not in ds:
                raise DataError(
                    f"the gridded observations have {name!r} but no '{name}_error'; give one "
                    "standard deviation of its error, in its unit"
                )
            field = ds[name]
            if extra := set(field.dims) - {"level", "latitude", "longitude"}:
                raise DataError(
                    f"gridded observations of {name!r} have dimensions {field.dims}; select one "
                    f"of {', '.join(map(str, extra))}"
                )
            field = field.transpose(..., "latitude", "longitude")
            sd = ds[f"{name}_error"].broadcast_like(field).transpose(*field.dims)
            both = xr.Dataset({"value": field.variable, "sd": sd.variable}).compute()  # read once
            values, errors = (both[k].values.reshape(-1, latitude.size * width) for k in both)
            # of single precision, and level by level: one value in twenty is there
            seen = [np.flatnonzero(np.isfinite(x)) for x in values]
            point = np.concatenate(seen)
            if not len(point):
                continue
            level = np.repeat(np.arange(len(seen)), [len(k) for k in seen])
            levels = field["level"].values.astype(float) if "level" in field.dims else [np.nan]
            phi, lam = latitude[point // width], longitude[point % width]
            n = len(point)
            yield Table(
                name=name,
                level=np.asarray(levels)[level],
                latitude=phi,
                longitude=lam,
                value=values[level, point].astype(np.float64),
                error=errors[level, point].astype(np.float64),
                elevation=np.broadcast_to(np.nan, n),
                station=np.broadcast_to(len(self.stations) - 1, n),
                place=point if own else place_number(phi, lam, self.space),
                point=point if own else None,
                gridded=True,
            )


NUMBERS = ("level", "latitude", "longitude", "value", "error", "elevation")


def gridded_names(ds: xr.Dataset) -> Iterator[str]:
    r"""The observables of a dataset."""
    for name in map(str, ds.data_vars):
        fields = {"latitude", "longitude"} <= set(ds[name].dims)
        if fields and name not in STATIC and not name.endswith("_error"):
            yield name


def place_number(latitude: NDArray, longitude: NDArray, space: StateSpace) -> NDArray:
    r"""Numbers of places, beyond those of the model's grid points."""
    h, w = space.grid.shape
    row = np.rint((latitude + 90) * (TURN / 360)).astype(np.int64)
    column = np.rint(np.mod(longitude, 360) * (TURN / 360)).astype(np.int64) % TURN
    return h * w + row * TURN + column
