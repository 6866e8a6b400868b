r"""Gridded observations, read from datasets.

A dataset has a field for each observable, NaN where nothing was seen, and `<variable>_error` beside
it. Fields are canonicalized one by one, so that each has its own unit and its error gets no offset,
and are screened as tables are. Files are read through Dask, in pieces: counting what is unusable
takes a pass over the data but no memory, and the values stay on disk until they are asked for.

Fields of derived observables, and fields that do not cover a whole grid, become points: a value at
a grid point is a value at a place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from ..data.canonical import ALIASES, canonicalize
from ..data.grids import Grid
from ..data.layout import COORDINATES
from ..data.variables import STATIC, VARIABLES
from ..errors import DataError
from . import observables
from .checks import (
    DUPLICATE,
    ERROR,
    LEVEL,
    NUMBER,
    RANGE,
    TOLERANCE,
    UNKNOWN,
    between_levels,
    join,
    margin,
    match_hours,
    table,
)
from .collection import Observations, merge, rows_of
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
            pair, message = _pair(ds, key, name, level, said, error)
        except DataError as wrong_about:
            raise DataError(f"{where}: {key!r}: {wrong_about}") from None
        if message:
            wrong.append(message)
            continue
        pair, counts = _screen(pair, name, where, tolerance, levels)
        parts.append(_place(pair, name, table(counts)))
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
) -> tuple[xr.Dataset, str]:
    r"""A field and its error, canonical and in the observable's unit; or what is wrong with it."""
    target = observables.find(name).units
    told = str(said or target)
    scale, offset = conversion(told, target, name)
    raw = _canonical(ds, key, name, level)
    levels = raw["level"].values if "level" in raw.dims else np.array([np.nan])
    sample, rows = _sample(raw)
    ranges = np.array([plausible_range(name, p) for p in levels])[rows]
    if likely := looks_like(name, sample, *ranges.T, units=told if said else None):
        return xr.Dataset(), wrong_units(name, sample, told, likely)
    if f"{key}_error" in ds:
        sd = _canonical(ds, f"{key}_error", name, level)
        own = units_of_error(ds[f"{key}_error"], told)
        sd = sd * np.float32(conversion(own, target, name)[0])
        if name in error:
            sd = sd.fillna(np.float32(scale * (default_error(error, name, told) or np.nan)))
    else:
        sd = xr.full_like(raw, np.float32(scale * (default_error(error, name, told) or np.nan)))
    value = raw if (scale, offset) == (1, 0) else raw * np.float32(scale) + np.float32(offset)
    return xr.Dataset({name: value, f"{name}_error": sd}), ""


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
    found = canonicalize(one)[stand_in].drop_attrs(deep=False)
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


def _screen(
    pair: xr.Dataset, name: str, where: str, tolerance: np.timedelta64, levels: Sequence[float]
) -> tuple[xr.Dataset, dict[str, tuple[int, str]]]:
    r"""The field without what is unusable, at whole hours, and how many values were."""
    from dask.base import compute

    value, sd = pair[name], pair[f"{name}_error"]
    hour, distance = match_hours(value["time"].values)
    right: xr.DataArray | bool = True
    low, high = plausible_range(name)
    if "level" in value.dims:
        p = pair["level"]
        right = between_levels(p, levels)
        ranges = np.array([plausible_range(name, x) for x in p.values])
        low, high = (xr.DataArray(r, dims="level", coords={"level": p}) for r in ranges.T)
    lazily: dict[str, Any] = {"dask": "parallelized", "output_dtypes": [np.float64]}
    down, up = (
        xr.apply_ufunc(margin, sd, low, high, kwargs={"below": below}, **lazily)
        for below in (True, False)
    )
    near = xr.DataArray(distance <= tolerance, dims="time", coords={"time": value["time"]})
    good = value.notnull()
    rejected = {}
    for reason, holds in (
        (NUMBER, abs(value) < np.inf),
        (LEVEL, right),
        (RANGE, (value >= low - down) & (value <= high + up)),
        (ERROR, (sd > 0) & (sd < np.inf)),
        (TOLERANCE, near),
    ):
        if holds is not True:
            rejected[reason] = good & ~holds
            good = good & holds
    totals = compute(*(mask.sum().data for mask in rejected.values()))
    counts = {
        reason: (int(n), _example(value, mask, where) if n else "")
        for (reason, mask), n in zip(rejected.items(), totals, strict=True)
    }
    pair = pair.where(good.transpose(*value.dims)).isel(time=np.flatnonzero(near.values))
    hour, distance = hour[near.values], distance[near.values]

    # several times of one hour: the nearest first, and where it is NaN the next
    order = np.lexsort((np.arange(len(hour)), distance, hour))
    turn = pd.Series(hour[order]).groupby(hour[order]).cumcount().to_numpy()
    parts = [
        pair.isel(time=order[turn == k]).assign_coords(time=hour[order[turn == k]])
        for k in range(int(turn.max(initial=-1)) + 1)
    ]
    if len(parts) > 1:
        pair, again = merge(parts)
        counts[DUPLICATE] = again, f"{name} of {len(hour)} times in {parts[0].sizes['time']} hours"
    elif parts:
        pair = parts[0]
    return pair, counts


def _example(value: xr.DataArray, mask: xr.DataArray, where: str) -> str:
    mask = mask.transpose(*value.dims)
    for k in range(value.sizes["time"]):
        here = mask.isel(time=k).values
        if here.any():
            index = np.unravel_index(int(np.argmax(here)), here.shape)
            at = value.isel(time=k)[index]
            level = f" at {int(at['level'])} hPa" if "level" in at.coords else ""
            when = np.datetime_as_string(at["time"].values, "m")
            place = f"{float(at['latitude']):g}, {float(at['longitude']):g}"
            return f"{where}: {value.name}{level} of {float(at):.6g} at {place}, {when}"
    return where


def _place(pair: xr.Dataset, name: str, excluded: pd.DataFrame) -> Observations:
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
    return Observations(None, pair, excluded)
