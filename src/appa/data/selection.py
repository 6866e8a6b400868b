r"""What to copy of a source: hours, variables, levels, and the grid to remap to.

A selection is checked against its source before anything is copied, and what the source lacks is
named. Reading is patient: a network that fails is asked again.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import xarray as xr

from ..errors import DataError, StoreError, nearest
from .canonical import unrecognised
from .grids import Grid, conservative
from .netcdf import CONVENTIONS
from .stores import open_store
from .variables import STATIC, VARIABLES, channels
from .writing import make_template

__all__ = [
    "Selection",
    "may_be_undefined",
    "open_source",
    "parse_grid",
    "position",
    "read",
    "size_in_words",
]

TRIES = 5
UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
PAUSE = 1.0  # seconds before the second try; doubles with each


def parse_grid(text: str) -> Grid:
    r"""A grid from its size, with poles unless a kind says otherwise.

    Example:
        >>> parse_grid("121x240")
        Grid(kind='equiangular', latitudes=121, longitudes=240)
        >>> parse_grid("gaussian:48x96")
        Grid(kind='gaussian', latitudes=48, longitudes=96)
    """
    kind, _, size = text.rpartition(":")
    latitudes, _, longitudes = size.lower().replace("×", "x").partition("x")
    if not (latitudes.isdecimal() and longitudes.isdecimal()):
        raise DataError(f"{text!r} is no grid; for example 121x240 or gaussian:48x96")
    return Grid(kind or "equiangular", int(latitudes), int(longitudes))


@dataclass(frozen=True)
class Selection:
    r"""What to copy of a source: checked against it before anything is copied."""

    source: str
    start: str
    end: str
    surface: tuple[str, ...]
    atmospheric: tuple[str, ...]
    levels: tuple[int, ...]
    grid: Grid | None = None
    every: int = 1
    times: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.surface and not self.atmospheric:
            raise DataError(
                f"no variable is asked for: name at least one, e.g. {next(iter(VARIABLES))}"
            )
        if self.atmospheric and not self.levels:
            raise DataError(
                f"no level is asked for, and {self.atmospheric[0]} has levels: name at least one, "
                "e.g. 500, or only variables at the surface"
            )
        channels(self.surface, self.atmospheric, self.levels)
        ds = open_source(self.source)
        if "member" in ds.dims:
            raise DataError(
                f"{self.source} has {ds.sizes['member']} members, and a store for training has "
                "none: write one of them to a store of its own, e.g. ds.isel(member=0)"
            )
        missing = [name for name in (*self.surface, *self.atmospheric) if name not in ds]
        if missing:
            short = {name: other for other, name in unrecognised(ds).items()}
            hint = nearest(missing[0], _names(ds))
            if missing[0] in short:
                hint = f"; its {short[missing[0]]!r} may be that: rename it"
            raise DataError(
                f"{self.source} has no {', '.join(missing)}{hint} (it has {', '.join(_names(ds))})"
            )
        if self.atmospheric:
            there = ds.level.values
            for level in self.levels:
                if level not in there:
                    close = there[np.abs(there - level).argmin()]
                    raise DataError(
                        f"{self.source} has no level {level} hPa; the nearest is {close}, and "
                        f"there are {', '.join(map(str, there))}"
                    )
        object.__setattr__(self, "times", self._hours(ds))
        if self.grid is not None:
            _grid(self.source)  # one that cannot be remapped is found now

    def __getstate__(self) -> dict[str, Any]:
        # The times would travel with every part; workers find them in the store.
        return {key: value for key, value in self.__dict__.items() if key != "times"}

    def _hours(self, ds: xr.Dataset) -> np.ndarray:
        r"""The hours asked for, every one of which the source must hold."""
        first, last = _date(self.start, "start"), _date(self.end, "end", last=True)
        if self.every < 1:
            raise DataError(f"every {self.every} hours is no spacing; the least is 1")
        if first > last:
            raise DataError(f"the end {self.end} is before the start {self.start}")
        times = np.arange(first, last + np.timedelta64(1, "ns"), np.timedelta64(self.every, "h"))
        held = np.asarray(ds.time.values, "datetime64[ns]")
        if not len(held):
            raise DataError(f"{self.source} holds no hours")
        # ARCO ERA5's time axis is longer than its data: these attributes say by how much.
        low, high = held.min(), held.max()
        if "valid_time_start" in ds.attrs and "valid_time_stop" in ds.attrs:
            low = max(low, _date(ds.attrs["valid_time_start"], "valid_time_start"))
            high = min(high, _date(ds.attrs["valid_time_stop"], "valid_time_stop", last=True))
        absent = times[~np.isin(times, held) | (times < low) | (times > high)]
        if len(absent):
            raise DataError(
                f"{self.source} lacks {len(absent)} of the {len(times)} hours asked for, the first "
                f"is {_hour(absent[0])}; it holds {_hour(low)} to {_hour(high)}"
            )
        once, count = np.unique(held[np.isin(held, times)], return_counts=True)
        if (count > 1).any():
            raise DataError(f"{self.source} holds {_hour(once[count > 1][0])} more than once")
        return times

    @property
    def largest(self) -> int:
        r"""The values in an hour of the largest variable."""
        return int(np.prod(self.shape)) * (len(self.levels) if self.atmospheric else 1)

    @property
    def shape(self) -> tuple[int, int]:
        r"""Latitudes and longitudes of the copy."""
        ds = open_source(self.source)
        return self.grid.shape if self.grid else (ds.sizes["latitude"], ds.sizes["longitude"])

    def template(self) -> xr.Dataset:
        r"""The store to write: coordinates, shapes, and the fields without time."""
        ds = open_source(self.source)
        latitude, longitude = ds.latitude.values, ds.longitude.values
        if self.grid:
            latitude, longitude = self.grid.latitude, self.grid.longitude
        static = {name: read(ds[name], self.source) for name in STATIC if name in ds}
        if "land_sea_mask" not in static and "sea_surface_temperature" in self.surface:
            sst = ds["sea_surface_temperature"].isel(time=position(ds, self.times[:1])[0])
            sst = read(sst, self.source)
            static["land_sea_mask"] = np.isnan(sst).astype(np.float32)
        static = {name: self.remap(name, value) for name, value in static.items()}
        trajectory = None
        if "trajectory" in ds.coords:
            trajectory = ds.trajectory.values[position(ds, self.times)]
        template = make_template(
            self.times,
            latitude,
            longitude,
            self.levels,
            surface=self.surface,
            atmospheric=self.atmospheric,
            static=static,
            trajectory=trajectory,
        )
        return template.assign_attrs(self.attrs)

    @property
    def attrs(self) -> dict[str, str]:
        r"""CF's attributes of the copy: what it is, of what, and how it came about."""
        from .. import __version__

        # The same selection gives the same store, byte for byte: hence no date.
        plan = {key: value for key, value in self.describe().items() if key != "grid"}
        if self.remaps:
            plan["grid"] = self.describe()["grid"]
        before = open_source(self.source).attrs.get("history")
        line = f"appa {__version__} fetch: {json.dumps(plan)}"
        return {
            "Conventions": CONVENTIONS,
            "title": f"states of the atmosphere every {self.every} h, {_hour(self.times[0])} to "
            f"{_hour(self.times[-1])}",
            "source": self.source,
            "history": f"{before}\n{line}" if before else line,
        }

    @property
    def remaps(self) -> bool:
        r"""Whether the copy has another grid than the source."""
        return self.grid is not None and self.grid != _grid(self.source)

    def remap(self, name: str, values: np.ndarray) -> np.ndarray:
        r"""Fields of the source, with shape :math:`(*, H, W)`, on the grid of the copy.

        A variable that may be undefined somewhere is the mean over where it is defined. In any
        other NaN is a fault, and stays: a cell that touches one is NaN.
        """
        if self.grid is None or not self.remaps:
            return values
        source = _grid(self.source)
        remapped = source.regrid(values, self.grid)
        undefined = np.isnan(values)
        if may_be_undefined(name) or not undefined.any():
            return remapped
        # Edges that coincide overlap by a rounding.
        rows, columns = ((m > 1e-9).astype(np.float32) for m in conservative(source, self.grid))
        touched = rows @ undefined.astype(np.float32) @ columns.T > 0
        return np.where(touched, np.float32(np.nan), remapped)

    def describe(self) -> dict[str, Any]:
        r"""The selection as plain values."""
        return {
            "source": self.source,
            "start": _hour(self.times[0]),
            "end": _hour(self.times[-1]),
            "every": self.every,
            "surface": self.surface,
            "atmospheric": self.atmospheric,
            "levels": self.levels,
            "grid": self.grid and [self.grid.kind, *self.grid.shape],
        }

    def summary(self, size: int, compression: str = "none") -> str:
        r"""What will be copied, for people."""
        n = len(channels(self.surface, self.atmospheric, self.levels))
        lines = [
            f"source     {self.source}",
            f"hours      {len(self.times):,}, {_hour(self.times[0])} to {_hour(self.times[-1])}, "
            f"every {self.every} h",
            f"fields     {n} ({len(self.surface)} at the surface, {len(self.atmospheric)} on "
            f"{len(self.levels)} levels) on {self.shape[0]}×{self.shape[1]}"
            + (", remapped conservatively" if self.remaps else ""),
            f"on disk    {'at most ' if compression != 'none' else ''}{size_in_words(size)}",
        ]
        return "\n".join(lines)


@lru_cache(maxsize=4)
def open_source(source: str) -> xr.Dataset:
    r"""The source, opened once a process."""
    _grid.cache_clear()
    return open_store(source)


@lru_cache(maxsize=4)
def _grid(source: str) -> Grid:
    ds = open_source(source)
    return Grid.from_coordinates(ds.latitude.values, ds.longitude.values)


def position(ds: xr.Dataset, times: np.ndarray) -> np.ndarray:
    r"""Where the source holds these hours."""
    order = np.argsort(ds.time.values, kind="stable")  # as good as free where it is sorted
    return order[np.searchsorted(ds.time.values, times, sorter=order)]


def read(array: xr.DataArray, source: str) -> np.ndarray:
    r"""Reads values; networks fail now and then, and answer a little later."""
    # A file on this machine reads the same every time.
    remote = "://" in source.removeprefix("file://")
    tries = TRIES if remote else 1
    for attempt in range(tries):
        try:
            return array.values
        except Exception as error:  # each file system has exceptions of its own
            if attempt + 1 == tries:
                where = f" at {_hour(array.time.values)}" if "time" in array.coords else ""
                after = f" after {tries} tries" if remote else ""
                repair = "rerun to" if remote else "copy or write the source again and rerun to"
                raise StoreError(
                    f"{array.name}{where} cannot be read from {source}{after} "
                    f"({type(error).__name__}: {error}); what is finished is kept: {repair} "
                    "continue"
                ) from error
            time.sleep(PAUSE * 2**attempt)
    raise AssertionError


def may_be_undefined(name: str) -> bool:
    r"""Whether a variable has places where it means nothing, as SST has over land."""
    return name in VARIABLES and VARIABLES[name].missing is not None


def size_in_words(size: float) -> str:
    r"""A number of bytes, in the unit that suits it."""
    unit, scale = next(((u, s) for u, s in UNITS if size >= s), UNITS[-1])
    return f"{size / scale:,.2f} {unit}"


def _names(ds: xr.Dataset) -> list[str]:
    return [name for name in VARIABLES if name in ds]


def _date(value: str, what: str, last: bool = False) -> np.datetime64:
    r"""A date; of a period such as a day, its first or last hour."""
    try:
        date = np.datetime64(value.strip().removesuffix("Z"))
        if np.isnat(date):
            raise ValueError
    except ValueError:
        raise DataError(f"{what} {value!r} is no date; for example 2020-01-31T18") from None
    if last and np.datetime_data(date)[0] in ("Y", "M", "W", "D"):
        date = (date + 1).astype("datetime64[h]") - 1
    return date.astype("datetime64[ns]")


def _hour(value: Any) -> str:
    r"""A time as people write it: to the hour where it is a whole one."""
    time = str(np.datetime_as_string(np.datetime64(value, "ns"), "s"))
    return time.removesuffix(":00").removesuffix(":00")
