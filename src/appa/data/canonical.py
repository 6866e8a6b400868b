r"""One form for every dataset.

Dimensions (member,) time, level (ascending, hPa), latitude (90 → −90), longitude (0 → 360);
float32; WeatherBench2 names and CF attributes. Whatever order a dataset comes in, its values move
only when they are read: a dimension's order is an index :math:`\pi` into the source,
:math:`x_i = s_{\pi(i)}`, and a read of :math:`x_K` becomes a read of the smallest range of the
source that covers :math:`\pi(K)`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing

from ..errors import DataError
from .layout import COORDINATES
from .variables import SPELLINGS, STATIC, VARIABLES, conversion

__all__ = [
    "ALIASES",
    "DIMENSIONS",
    "canonical_chunks",
    "canonicalize",
    "is_rearranged",
    "unrecognised",
]

DIMENSIONS = ("member", "time", "level", "latitude", "longitude")

# Other names coordinates are found under; WeatherBench2's come first.
ALIASES: dict[str, tuple[str, ...]] = {
    "member": ("member", "number", "realization", "ensemble"),
    "time": ("time", "valid_time"),
    "level": ("level", "pressure_level", "isobaricInhPa", "plev", "pressure"),
    "latitude": ("latitude", "lat"),
    "longitude": ("longitude", "lon"),
}

# Names variables go by elsewhere, ERA5's own files for one.
SHORT = {**{v.short: v.name for v in VARIABLES.values()}, "lsm": "land_sea_mask"}
NOTE = "unrecognised"  # of an opened dataset's encoding, which is not written with it

Order = np.ndarray | None  # where each value comes from in the source; None: in place


class Rearranged(BackendArray):
    r"""A variable's values with dimensions and orders as asked, read when indexed.

    xarray's own lazy transposition turns into pointwise indexing, which Zarr is slow at.
    """

    def __init__(
        self,
        source: xr.Variable,
        dims: tuple[str, ...],
        orders: Mapping[str, Order],
        units: tuple[float, float] = (1.0, 0.0),
    ):
        self.source, self.dims, self.orders, self.units = source, dims, dict(orders), units
        self.shape = tuple(source.sizes.get(dim, 1) for dim in dims)
        self.dtype = np.dtype(np.float32)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        support = indexing.IndexingSupport.OUTER
        return indexing.explicit_indexing_adapter(key, self.shape, support, self._read)

    def _read(self, key: tuple[Any, ...]) -> np.ndarray:
        read: dict[Hashable, Any] = {}
        after: dict[str, Any] = {}  # of the dimensions that remain, what to take of what is read
        for dim, k in zip(self.dims, key, strict=True):
            order = self.orders.get(dim)
            then: Any = slice(None)
            if dim not in self.source.dims:
                then = k
            elif order is None:
                read[dim] = k
            else:
                read[dim], then = _cover(order[k])
            if not isinstance(k, (int, np.integer)):
                after[dim] = then
        part = self.source.isel(read)
        values = part.values  # read first: a lazy transposition is what this class avoids
        values = values.transpose([part.dims.index(dim) for dim in after if dim in read])
        for axis, (dim, then) in enumerate(after.items()):
            if dim not in read:
                values = np.expand_dims(values, axis)
            values = values[(slice(None),) * axis + (then,)]
        if self.units != (1.0, 0.0):
            values = values * self.units[0] + self.units[1]
        return np.ascontiguousarray(values, dtype=self.dtype)


def is_rearranged(var: xr.Variable) -> bool:
    r"""Whether a variable's values are moved when they are read."""
    return isinstance(getattr(var._data, "array", None), Rearranged)


def _cover(index: Any) -> tuple[Any, Any]:
    r"""What to read from the source for `index`, and what to take of it afterwards."""
    if np.ndim(index) == 0:
        return int(index), slice(None)
    if index.size == 0:
        return slice(0, 0), slice(None)
    low, high = int(index.min()), int(index.max())
    if high - low + 1 > 2 * index.size:
        return np.unique(index, return_inverse=True)
    step = np.diff(index)
    if (step == 1).all():
        then: Any = slice(None)
    elif (step == -1).all():
        then = slice(None, None, -1)
    else:
        then = index - low
    return slice(low, high + 1), then


def canonicalize(ds: xr.Dataset) -> xr.Dataset:
    r"""The same data in the canonical form; nothing but coordinates is read.

    Variables Appa does not know are dropped; see :func:`unrecognised`.

    Arguments:
        ds: A dataset with WeatherBench2's variable names, dimensions in any order, latitude in
            either direction, and longitude from 0 to 360 or −180 to 180 with any start.
    """
    known = [str(n) for n in ds.data_vars if n in VARIABLES or n in STATIC]
    if not known:
        raise DataError(_unknown(ds))
    strangers = unrecognised(ds)
    ds = ds.set_coords([name for name in ("trajectory",) if name in ds.data_vars])[known]
    chunks = {name: ds[name].encoding.get("preferred_chunks", {}) for name in known}
    names = _names(ds)
    renamed = {old: new for old, new in names.items() if old != new}
    ds = ds.drop_vars([new for new in renamed.values() if new in ds.variables]).rename(renamed)

    coords: dict[str, Any] = {}
    orders: dict[str, Order] = {}
    used = {dim for name in known for dim in _dimensions(name)}
    for dim, read in (("level", _level), ("latitude", _latitude), ("longitude", _longitude)):
        if dim in used:
            values = _values(ds, dim)
            if dim == "level":
                values = _hectopascals(values, ds[dim].attrs.get("units"))
            values, orders[dim] = read(values)
            coords[dim] = (dim, values, COORDINATES[dim])
    if "time" in used:
        coords["time"] = ("time", _time(_values(ds, "time")), COORDINATES["time"])
    if "member" in ds.dims and "member" in ds.variables:
        coords["member"] = ("member", _values(ds, "member"), {"long_name": "ensemble member"})
    if "trajectory" in ds.coords and ds["trajectory"].dims == ("time",):
        value = ds["trajectory"].values.astype(np.int64)
        coords["trajectory"] = ("time", value, COORDINATES["trajectory"])

    data = {}
    for name in [name for name in (*VARIABLES, *STATIC) if name in known]:
        data[name] = _rearrange(ds, name, orders)
        data[name].attrs = dict(STATIC[name] if name in STATIC else VARIABLES[name].attrs)
        stored = {names.get(dim, dim): size for dim, size in chunks[name].items()}
        data[name].encoding = {"preferred_chunks": stored} if stored else {}
    out = xr.Dataset(data, coords, ds.attrs)
    if strangers:
        out.encoding[NOTE] = strangers
    return out


def unrecognised(ds: xr.Dataset) -> dict[str, str]:
    r"""Variables that were dropped, or would be, though they seem to be known by another name.

    Returns:
        The name WeatherBench2 has for each, of those that the dataset has not beside.

    Example:
        >>> unrecognised(open_store("cds.nc"))
        {'t2m': '2m_temperature'}
    """
    found = dict(ds.encoding.get(NOTE, {}))
    for key, var in ds.data_vars.items():
        name = SHORT.get(str(key))
        if str(key) == "z" and not any(alias in var.dims for alias in ALIASES["level"]):
            name = "geopotential_at_surface"  # as ERA5 calls it too
        if name is not None and var.ndim >= 2:
            found[str(key)] = name
    return {key: name for key, name in found.items() if name not in ds}


def canonical_chunks(ds: xr.Dataset, chunks: Mapping[str, int] | str) -> xr.Dataset:
    r"""Chunks a canonical dataset for Dask: as stored, but for the dimensions `chunks` names."""
    if isinstance(chunks, str):
        return ds.chunk(chunks)
    stored: dict[Hashable, int] = {}
    for var in ds.data_vars.values():
        for dim, size in var.encoding.get("preferred_chunks", {}).items():
            if dim in ds.dims:
                stored[dim] = max(size, stored.get(dim, 1))
    return ds.chunk({**stored, **{dim: n for dim, n in chunks.items() if dim in ds.dims}})


def _unknown(ds: xr.Dataset) -> str:
    found = [f"{old} → {new}" for old, new in unrecognised(ds).items()]
    if found:
        return f"variables go by short names; rename them to WeatherBench2's: {', '.join(found)}"
    return (
        f"there is no variable with a WeatherBench2 name, such as {_list(list(VARIABLES)[:3])}; "
        f"found {_list(ds.data_vars)}"
    )


def _names(ds: xr.Dataset) -> dict[Hashable, str]:
    r"""Which of the dataset's names stand for the canonical dimensions."""
    names: dict[Hashable, str] = {}
    for dim, aliases in ALIASES.items():
        present = [name for name in aliases if name in ds.dims]
        if not present and dim != "member":  # a single hour or level may be a scalar
            present = [name for name in aliases if name in ds.coords]
        if present:
            names[present[0]] = dim
    return names


def _dimensions(name: str) -> tuple[str, ...]:
    if name in STATIC:
        return ("latitude", "longitude")
    level = () if VARIABLES[name].surface else ("level",)
    return ("time", *level, "latitude", "longitude")


def _values(ds: xr.Dataset, dim: str) -> np.ndarray:
    if dim not in ds.variables:
        if dim in ds.dims:
            raise DataError(f"dimension {dim} has no coordinate: its values are unknown")
        raise DataError(f"there is no {dim}; the dimensions are {_list(ds.dims)}")
    try:
        values = np.atleast_1d(ds[dim].values)
    except Exception as error:  # each codec has exceptions of its own
        raise DataError(
            f"{dim} cannot be read ({type(error).__name__}: {error}): the store is damaged; fetch "
            "or write it again"
        ) from error
    if values.ndim > 1:
        raise DataError(f"{dim} has dimensions {ds[dim].dims}: only regular grids are read")
    if dim != "time" and (values.dtype.kind not in "iuf" or not np.isfinite(values).all()):
        raise DataError(f"{dim} has values that are no numbers: {_list(values[:8])}")
    return values


def _distinct(dim: str, values: np.ndarray) -> None:
    unique, counts = np.unique(values, return_counts=True)
    if (counts > 1).any():
        raise DataError(f"{dim} {unique[counts > 1][0]} appears {counts.max()} times")


def _time(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "O" and hasattr(values[0], "calendar"):
        raise DataError(f"time has the calendar {values[0].calendar}; only the usual one is read")
    if values.dtype.kind != "M":
        raise DataError(
            f"time has values that are no dates: {_list(values[:3])}; an attribute such as "
            "units='hours since 1900-01-01' makes them dates"
        )
    if np.isnat(values).any():
        raise DataError(f"time is undefined in {np.isnat(values).sum()} of {values.size} places")
    return values.astype("datetime64[ns]")


def _hectopascals(values: np.ndarray, units: Any) -> np.ndarray:
    r"""Levels in hPa, by their units, or where they have none by what can be."""
    told = str(units or "").strip().lower()
    pascals = told in ("pa", "pascal", "pascals")
    if not told or told not in (*SPELLINGS["hPa"], "pa", "pascal", "pascals"):
        pascals = bool(values.max() > 2000)  # no pressure on this planet in hPa
    return values / 100 if pascals else values


def _level(values: np.ndarray) -> tuple[np.ndarray, Order]:
    values = values.astype(np.float64)
    levels = np.rint(values).astype(np.int64)
    if (np.abs(values - levels) > 1e-3).any() or levels.min() < 1:
        raise DataError(f"level must be whole hPa; found {_list(values)}: select those that are")
    _distinct("level", levels)
    order = np.argsort(levels)
    return levels[order], None if (np.diff(order) == 1).all() else order


def _latitude(values: np.ndarray) -> tuple[np.ndarray, Order]:
    values = values.astype(np.float64)
    worst = values[np.abs(values).argmax()]
    if abs(worst) > 90 + 1e-4:
        raise DataError(f"latitude {worst:g} is outside −90 to 90")
    _distinct("latitude", values)
    step = np.diff(values)
    if not ((step > 0).all() or (step < 0).all()):
        k = int(np.argmax(np.sign(step) != np.sign(step[0])))
        raise DataError(
            f"latitude runs neither up nor down: {_list(values[max(k - 1, 0) : k + 3])} around "
            f"position {k}; sort it with ds.sortby('latitude') if the fields follow it"
        )
    values = values.clip(-90, 90)
    if step.size == 0 or step[0] < 0:
        return values, None
    return values[::-1].copy(), np.arange(values.size)[::-1].copy()


def _longitude(values: np.ndarray) -> tuple[np.ndarray, Order]:
    values = values.astype(np.float64)
    if values.min() < -180 - 1e-4 or values.max() > 360 + 1e-4:
        raise DataError(
            f"longitude from {values.min():g} to {values.max():g} is in neither 0 to 360 nor "
            "−180 to 180"
        )
    wrapped = np.where(values < -1e-9, values + 360, np.abs(values))
    wrapped = np.where(wrapped >= 360 - 1e-9, wrapped - 360, wrapped).clip(0)
    if wrapped.size > 1 and abs(abs(values[-1] - values[0]) - 360) < 1e-6:
        raise DataError(
            f"longitude {values[0]:g} and {values[-1]:g} are the same: drop one with "
            "ds.isel(longitude=slice(-1))"
        )
    _distinct("longitude", wrapped)
    order = np.argsort(wrapped)
    turn = np.diff(order) % max(order.size, 1)
    if not ((turn == 1).all() or (turn == order.size - 1).all()):
        raise DataError(f"longitude goes back and forth: it begins {_list(values[:6])}")
    return wrapped[order], None if (np.diff(order) == 1).all() else order


def _rearrange(ds: xr.Dataset, name: str, orders: Mapping[str, Order]) -> xr.Variable:
    r"""A variable with the dimensions it should have, in order."""
    var = ds.variables[name]
    expected = _dimensions(name)
    for dim in [dim for dim in var.dims if dim not in expected and dim != "member"]:
        if dim == "time":  # a field that does not change, stored hour by hour
            var = var.isel(time=_first(ds))
        elif var.sizes[dim] == 1:
            var = var.isel({dim: 0})
        else:
            raise DataError(f"{name} has a dimension {dim!r} of {var.sizes[dim]}: select one")
    for dim in expected:
        if dim not in var.dims and (dim not in ("time", "level") or ds[dim].ndim > 0):
            raise DataError(f"{name} has no {dim}: its dimensions are {_list(ds[name].dims)}")

    dims = (("member",) if "member" in var.dims else ()) + expected
    moved = {dim: order for dim in dims if (order := orders.get(dim)) is not None}
    units = conversion(name, ds[name].attrs.get("units"))
    if dims == var.dims and not moved and var.dtype == np.float32 and units == (1.0, 0.0):
        return var.copy(deep=False)
    if isinstance(var._data, indexing.ExplicitlyIndexed):
        return xr.Variable(dims, indexing.LazilyIndexedArray(Rearranged(var, dims, moved, units)))
    var = var.isel({dim: order for dim, order in moved.items() if dim in var.dims})
    if units != (1.0, 0.0):
        var = var * units[0] + units[1]
    return (
        var.set_dims([*(d for d in dims if d not in var.dims), *var.dims])
        .transpose(*dims)
        .astype(np.float32)
    )


def _first(ds: xr.Dataset) -> int:
    # ARCO ERA5's time axis begins before its data.
    times = ds.indexes["time"]
    start = ds.attrs.get("valid_time_start", times[0])
    return min(int(times.searchsorted(np.datetime64(start, "ns"))), len(times) - 1)


def _list(items: Any) -> str:
    return ", ".join(str(item) for item in items) or "none"
