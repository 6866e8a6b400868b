r"""Gridded observations, read from datasets.

A dataset has a field for each observable, NaN where nothing was seen, and `<variable>_error` beside
it. Fields are canonicalized one by one, so that each has its own unit and its error gets no offset,
and are screened as tables are, an hour at a time, see :mod:`appa.observations.screening`. Files
are read through Dask, in pieces: counting what is unusable takes a pass over the data but no
memory, and the values stay on disk until they are asked for. Fields in memory of which nothing is
left out are not copied: they are the arrays that were given.

Fields of derived observables, and fields that do not cover a whole grid, become points: a value at
a grid point is a value at a place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from xarray.core import indexing

from ..data.canonical import ALIASES, canonicalize, is_rearranged
from ..data.grids import Grid
from ..data.layout import COORDINATES
from ..data.variables import STATIC, VARIABLES
from ..errors import DataError
from . import observables
from .checks import UNKNOWN, join, table
from .collection import Observations, rows_of
from .screening import Field, screen_field
from .units import conversion, looks_like, plausible_range, recognise, wrong_units

__all__ = ["Rules", "default_error", "has_grid", "read_gridded"]

SAMPLE = 100_000  # values that tell a field's unit


class Rules(NamedTuple):
    r"""What a caller said about a source, with names of ours."""

    units: dict[str, str]
    error: dict[str, Any]
    tolerance: np.timedelta64
    levels: Sequence[float]
    columns: dict[str, str]
    several: bool  # sources, of which each may lack a column that another has


def has_grid(ds: xr.Dataset) -> bool:
    r"""Whether latitudes and longitudes are dimensions; else a dataset is a list of points."""
    return all(any(a in ds.dims for a in ALIASES[dim]) for dim in ("latitude", "longitude"))


def default_error(error: Mapping[str, Any], name: str, units: str) -> float | None:
    r"""The error given for a variable, in the unit its values are in.

    Arguments:
        error: A number for each variable, in its values' unit, or text with a unit: `"1 hPa"`.
        name: The observable.
        units: The unit values of it are in.
    """
    given = error.get(name)
    if given is None:
        return None
    text, _, unit = str(given).strip().partition(" ")
    try:
        number = float(text)
    except ValueError:
        number = np.nan
    if not number > 0:
        raise DataError(
            f"found {given!r} for the error of {name!r}; give one standard deviation above 0 in "
            f"its values' unit, or with a unit: error={{{name!r}: '1 {units}'}}"
        )
    if unit:
        target = observables.find(name).units
        number *= conversion(unit, target, name)[0] / conversion(units, target, name)[0]
    return number


def read_gridded(ds: xr.Dataset, where: str, rules: Rules) -> Observations:
    r"""Reads a dataset whose variables go by names of observables; see `read_observations`."""
    units, error, tolerance, levels = rules[:4]
    if any(alias in ds.dims for alias in ALIASES["member"]):
        raise DataError(
            f"{where}: found several members, but there is one truth to be observed; select a "
            "member first, for example ds.isel(number=0)"
        )
    fields, excluded, notes = _find(ds, where)
    _check_errors(ds, fields, error, where)
    parts: list[Observations] = []
    wrong: list[str] = []
    for key, (name, level, implied) in fields.items():
        said = units.get(name) or ds[key].attrs.get("units") or implied
        try:
            one, message = _pair(ds, key, name, level, said, error)
        except DataError as wrong_about:
            raise DataError(f"{where}: {key!r}: {wrong_about}") from None
        if one is None:
            wrong.append(message)
            continue
        pair, counts, left = screen_field(one, where, tolerance, levels)
        parts.append(_place(pair, name, table(counts), left))
    if wrong:
        raise DataError(f"{where}: " + "\n".join(wrong))
    out = Observations(excluded=excluded, notes=notes)
    for part in parts:
        out = out + part
    return out


Fields = dict[str, tuple[str, float | None, str | None]]


def _find(ds: xr.Dataset, where: str) -> tuple[Fields, pd.DataFrame, list[str]]:
    r"""Which variables are fields of which observables, the level a name has and the unit implied;
    what is of none; and what is not used, as notes."""
    found: Fields = {}
    unknown: list[pd.DataFrame] = []
    unused: list[str] = []
    errors = {f"{key}_error" for key in ds.data_vars}
    for key in map(str, ds.data_vars):
        if key in errors:
            continue
        # a single level may be a scalar; without any, z is the ground's, as ERA5 calls it
        places = {*ds[key].dims, *ds[key].coords}
        ground = key == "z" and not places.intersection(ALIASES["level"])
        if ds[key].ndim < 2 or key in (*STATIC, "lsm") or ground:
            unused.append(f"{key!r}, which has no level" if ground else repr(key))
            continue
        known = recognise(key)
        if known is None:
            count = int(ds[key].notnull().sum())
            unknown.append(table({UNKNOWN: (count, f"{key!r} in {where}")}))
        elif known[:2] in [field[:2] for field in found.values()]:
            raise DataError(f"{where}: found {known[0]!r} twice, the second as {key!r}; drop one")
        else:
            found[key] = known
    notes = [f"{where}: not used: {', '.join(unused)}"] if unused else []
    return found, join(unknown), notes


def _check_errors(ds: xr.Dataset, fields: Fields, error: Any, where: str) -> None:
    lacking = [k for k, f in fields.items() if f"{k}_error" not in ds and f[0] not in error]
    if lacking:
        key = lacking[0]
        raise DataError(
            f"{where}: {', '.join(lacking)} came without errors; give one standard deviation each, "
            f"as error={{{fields[key][0]!r}: …}}, or as a field beside it: "
            f"ds[{key + '_error'!r}] = xr.full_like(ds[{key!r}], …)"
        )


def _pair(
    ds: xr.Dataset,
    key: str,
    name: str,
    level: float | None,
    said: object,
    error: Mapping[str, Any],
) -> tuple[Field | None, str]:
    r"""A field and its error, canonical, and what converts them to the observable's unit; or what
    is wrong with it."""
    target = observables.find(name).units
    told = str(said or target)
    scale, offset = conversion(told, target, name)
    raw = _canonical(ds, key, name, level)
    levels = raw["level"].values if "level" in raw.dims else np.array([np.nan])
    sample, rows = _sample(raw)
    ranges = np.array([plausible_range(name, p) for p in levels])[rows]
    if likely := looks_like(name, sample, *ranges.T, units=told if said else None):
        return None, wrong_units(name, sample, told, likely)
    default = None
    if name in error or f"{key}_error" not in ds:
        default = scale * (default_error(error, name, told) or np.nan)
    if f"{key}_error" not in ds:
        return Field(name, raw, _constant(raw, default), scale, offset), ""
    sd = _canonical(ds, f"{key}_error", name, level)
    by = conversion(units_of_error(ds[f"{key}_error"], told), target, name)[0]
    raw, sd = xr.align(raw, sd, join="outer", copy=False)
    return Field(name, raw, sd, scale, offset, by, default), ""


def _constant(raw: xr.DataArray, number: float | None) -> xr.DataArray:
    r"""A field of one number, which takes no memory."""
    one = np.float32(np.nan if number is None else number)
    if raw.chunks is not None:
        return xr.full_like(raw, one)
    return xr.DataArray(np.broadcast_to(one, raw.shape), raw.coords, raw.dims)


def units_of_error(sd: xr.DataArray, told: str) -> str:
    r"""The unit of an error: its own, or its values'."""
    return str(sd.attrs.get("units") or told)


def _canonical(ds: xr.Dataset, key: str, name: str, level: float | None) -> xr.DataArray:
    r"""One field in the canonical form, under whatever name, in the unit it is in; at the level its
    name has, as `z500`, where it has no other."""
    levels = observables.find(name).levels == "level"
    stand_in = "temperature" if levels else "2m_temperature"
    one = ds[[key]].rename({key: stand_in})
    places = {str(place) for place in (*one.dims, *one.coords)}
    if levels and level is not None and not places.intersection(ALIASES["level"]):
        one = one.assign_coords(level=((), level, {"units": "hPa"}))
        places.add("level")
    for dim, example in (("time", "['2021-03-21T06']"), ("level", "[500]")):
        if (dim == "time" or levels) and not places.intersection(ALIASES[dim]):
            named = f", or name it after one, {key}500" if dim == "level" else ""
            raise DataError(
                f"there is no {dim}; the dimensions are {', '.join(map(str, ds[key].dims))}: give "
                f"it one, for example with ds.expand_dims({dim}={example}){named}"
            )
    one[stand_in].attrs = {}
    given = one[stand_in].variable
    if isinstance(given._data, np.ndarray):  # to be moved and rounded an hour at a time
        lazy = indexing.LazilyIndexedArray(indexing.NumpyIndexingAdapter(given._data))
        one = one.assign({stand_in: xr.Variable(given.dims, lazy)})
    found = canonicalize(one)[stand_in]
    found.attrs = {}  # drop_attrs would read it
    if isinstance(given._data, np.ndarray) and not is_rearranged(found.variable):
        found = xr.DataArray(given._data.reshape(found.shape), found.coords, found.dims)
    if levels and level is not None and level not in found["level"].values:
        at = ", ".join(f"{p:g}" for p in found["level"].values)
        raise DataError(f"its name says {level:g} hPa, and its level {at}; correct one of them")
    return found


def _sample(raw: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    r"""Some of a field's values, and the place of each one's level."""
    values, rows, count = [], [], 0
    for k in range(raw.sizes["time"]):
        x = raw.isel(time=k).values.reshape(-1, raw.shape[-2] * raw.shape[-1])
        j, i = np.nonzero(np.isfinite(x))
        values.append(x[j, i])
        rows.append(j)
        count += len(j)
        if count >= SAMPLE:
            break
    return np.concatenate(values).astype(np.float64), np.concatenate(rows)


def _place(pair: xr.Dataset, name: str, excluded: pd.DataFrame, count: int) -> Observations:
    r"""The field as a field, or as points where it cannot be one."""
    if not pair.sizes.get("time"):
        return Observations(excluded=excluded)
    whole = name in VARIABLES
    try:
        Grid.from_coordinates(pair["latitude"].values, pair["longitude"].values)
    except DataError:
        whole = False
    if not whole:
        return Observations(rows_of(pair), None, excluded)
    for dim in pair.dims:
        pair[dim].attrs = dict(COORDINATES[str(dim)])
    attrs = VARIABLES[name].attrs
    pair[name].attrs = {**attrs, "ancillary_variables": f"{name}_error"}
    pair[f"{name}_error"].attrs = {
        "long_name": f"{attrs['long_name']} error, one standard deviation",
        "standard_name": f"{attrs['standard_name']} standard_error",
        "units": attrs["units"],
    }
    return Observations(None, pair, excluded, count=count)
