r"""Observations: points in a table, fields on a grid, and what was excluded.

Values are counted one by one: a row of the table is a value, and so is each grid point of a field
that is not NaN. A set of observations is not changed once it is made; what takes some away returns
another set, with the number taken away under its reason. For sets :math:`a, b`

.. math:: |a + b| = |a| + |b| - d

where :math:`d` is the number of values that both have, counted as duplicates: the one nearest to
the whole hour stays, or else the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray
from pandas.core.util.hashing import hash_pandas_object

from ..data.clock import as_datetime64
from ..data.grids import same_places
from ..errors import DataError
from .checks import DUPLICATE, PERIOD, describe, join, match_hours, repeated, table
from .synthesis import COLUMNS

__all__ = ["Observations", "rows_of", "values_of"]

HASHED = ("time", "latitude", "longitude", "level", "value", "error", "elevation")
MOST = 50_000_000  # rows of a table, beyond which a field has to stay a field


class Observations:
    r"""What was observed, ready to be assimilated.

    Made by :func:`~appa.observations.reading.read_observations`; the constructor checks nothing.

    Arguments:
        points: One row a value, with columns :data:`~appa.observations.synthesis.COLUMNS` and
            `hour`, the whole hour it is matched to.
        gridded: A canonical dataset of the model's variables, NaN where nothing was seen, with
            `<variable>_error` beside each, NaN in the same places; or :py:`None`.
        excluded: What is no longer here: `reason`, `count`, `example`.
        notes: What else a reader of the report should know, a line each.
        count: The number of values, if it is known; fields are counted if not.

    Example:
        >>> observations = appa.read_observations("stations.csv")
        >>> len(observations), observations.hours[0]
        (41, numpy.datetime64('2021-03-21T00:00:00.000000000'))
    """

    def __init__(
        self,
        points: pd.DataFrame | None = None,
        gridded: xr.Dataset | None = None,
        excluded: pd.DataFrame | None = None,
        notes: Iterable[str] = (),
        count: int | None = None,
    ):
        self.points = _columns(points)
        self.gridded = gridded
        self.excluded = table({}) if excluded is None else excluded
        self.notes = tuple(dict.fromkeys(notes))
        self.count = len(self.points) if gridded is None else count

    def __len__(self) -> int:
        if self.count is None:
            assert self.gridded is not None
            from dask.base import compute

            counts = compute(*(v.notnull().sum().data for v in values_of(self.gridded)))
            self.count = len(self.points) + sum(int(n) for n in counts)
        return self.count

    def __bool__(self) -> bool:  # without counting
        return len(self.points) > 0 or self.gridded is not None

    def __repr__(self) -> str:
        hours = len(self.hours)
        lines = [f"{len(self):,} observations in {hours} hour{'s' * (hours != 1)}"]
        if len(self):
            lines += [self.summary().to_string()]
        return "\n".join([*lines, "", self.report()])

    @property
    def hours(self) -> NDArray:
        r"""The hours with observations, ascending."""
        hours = self.points["hour"].to_numpy("datetime64[ns]")
        if self.gridded is not None:
            hours = np.concatenate([hours, self.gridded["time"].values.astype("datetime64[ns]")])
        return np.unique(hours)

    @property
    def variables(self) -> list[str]:
        r"""The observables, by name."""
        names = set(self.points["variable"])
        if self.gridded is not None:
            names |= {str(v.name) for v in values_of(self.gridded)}
        return sorted(names)

    def summary(self) -> pd.DataFrame:
        r"""By observable: the number of values, of places and of hours."""
        rows = {}
        for name, part in self.points.groupby("variable", observed=True):
            places = len(part[["station", "latitude", "longitude"]].drop_duplicates())
            rows[str(name)] = [(len(part), places, set(part["hour"].to_numpy("datetime64[ns]")))]
        for v in [] if self.gridded is None else values_of(self.gridded):
            count, seen, hours = 0, np.zeros(v.shape[-2:], bool), set()
            for k, hour in enumerate(v["time"].values.astype("datetime64[ns]")):
                here = v.isel(time=k).notnull().values.reshape(-1, *seen.shape)
                count, seen = count + int(here.sum()), seen | here.any(axis=0)
                hours |= {hour} if here.any() else set()
            rows.setdefault(str(v.name), []).append((count, int(seen.sum()), hours))
        out = {
            name: (
                sum(p[0] for p in parts),
                sum(p[1] for p in parts),
                len(set().union(*(p[2] for p in parts))),
            )
            for name, parts in sorted(rows.items())
        }
        return pd.DataFrame.from_dict(out, orient="index", columns=["count", "places", "hours"])

    def report(self) -> str:
        r"""What was excluded, as text, and the notes."""
        return "\n".join([describe(self.excluded), *self.notes])

    def exclude(
        self,
        rejected: Any = None,
        reason: str = "",
        gridded: Mapping[str, xr.DataArray] | None = None,
    ) -> Observations:
        r"""The same without some values, which are counted under a reason.

        Arguments:
            rejected: Which rows of the table, with shape :math:`(N)`, or none.
            reason: Why, one of :data:`~appa.observations.checks.REASONS` or another.
            gridded: Which values of fields, by variable, with their dimensions.
        """
        points, fields, count, example = self.points, self.gridded, 0, ""
        if rejected is not None:
            rejected = np.asarray(rejected, dtype=bool)
            if rejected.shape != (len(points),):
                raise DataError(
                    f"there are {len(points)} rows, and found a mask of shape {rejected.shape}; "
                    "give one value a row of `points`"
                )
            count = int(rejected.sum())
            if count:
                example = _example(points.iloc[int(np.argmax(rejected))])
                points = points.loc[~rejected]
        for name, mask in (gridded or {}).items():
            assert fields is not None
            before = int(fields[name].notnull().sum())
            new = {key: fields[key].where(~mask) for key in (name, f"{name}_error")}
            fields = fields.assign(new)
            gone = before - int(new[name].notnull().sum())
            count, example = count + gone, example or f"{name} on the grid" * bool(gone)
        excluded = join([self.excluded, table({reason: (count, example)})])
        left = None if self.count is None else self.count - count
        return Observations(points, fields, excluded, self.notes, left)

    def between(self, start: Any, hours: int) -> Observations:
        r"""Those of a period: :math:`L` hours from a start on, by the hour they are matched to.

        Arguments:
            start: The first hour, in UTC.
            hours: The number of hours :math:`L`.
        """
        first = np.datetime64(as_datetime64(start).reshape(-1)[0], "ns")
        if hours < 1:
            raise DataError(f"a period has 1 hour or more; found hours={hours}")
        end = first + np.timedelta64(int(hours), "h")
        hour = self.points["hour"].to_numpy("datetime64[ns]")
        out = self.exclude((hour < first) | (hour >= end), PERIOD)
        if self.gridded is not None:
            time = self.gridded["time"].values.astype("datetime64[ns]")
            inside = (time >= first) & (time < end)
            if not inside.all():
                some = np.flatnonzero(inside)
                if len(some) and (np.diff(some) == 1).all():  # of which nothing is copied
                    some = slice(some[0], some[-1] + 1)
                fields = self.gridded.isel(time=some) if inside.any() else None
                kept = Observations(out.points, fields)
                gone = len(self) - len(kept) - (len(self.points) - len(out.points))
                far = f"fields at {time[~inside][0].astype('datetime64[m]')}" if gone else ""
                excluded = join([out.excluded, table({PERIOD: (gone, far)})])
                out = Observations(out.points, fields, excluded, self.notes, len(kept))
        if len(self) and not len(out):
            last = end - np.timedelta64(1, "h")
            a, b, c, d = (
                np.datetime_as_string(t, "h") for t in (first, last, *self.hours[[0, -1]])
            )
            raise DataError(
                f"no observation is left between {a} and {b}: they are of {c} to {d}, UTC; choose "
                f"another period\n{describe(out.excluded)}"
            )
        return out

    def __add__(self, other: Observations) -> Observations:
        if not isinstance(other, Observations):
            return NotImplemented
        fields, more = self.gridded, other.points
        shared = 0
        if other.gridded is not None:
            if fields is None:
                fields = other.gridded
            elif same_places(fields, other.gridded):
                fields, shared = merge([fields, other.gridded])
            else:  # a value on another grid is a value at a point
                more = pd.concat([more, rows_of(other.gridded)], ignore_index=True)
        excluded = join([self.excluded, other.excluded])
        points, again = _without_duplicates([self.points, more])
        both = shared + again[0]
        gone = table({DUPLICATE: (both, again[1] or "on the grid" * bool(shared))})
        notes = (*self.notes, *other.notes)
        known = self.count is not None and other.count is not None
        count = len(self) + len(other) - both if known else None
        return Observations(points, fields, join([excluded, gone]), notes, count)

    def digest(self) -> str:
        r"""A name for exactly these values, whatever their order: 16 hexadecimal digits."""
        rows = pd.DataFrame({c: self.points[c].to_numpy() for c in HASHED})
        rows = rows.assign(**{c: self.points[c].to_numpy(object) for c in ("variable", "station")})
        numbers = rows.select_dtypes("number").columns
        rows[numbers] = rows[numbers] + 0.0  # −0 is 0
        parts = np.sort(hash_pandas_object(rows, index=False).to_numpy("uint64"))
        total = hashlib.sha256(parts.tobytes())
        for line in [] if self.gridded is None else sorted(_field_digests(self.gridded)):
            total.update(line)
        return total.hexdigest()[:16]


def _columns(points: pd.DataFrame | None) -> pd.DataFrame:
    if points is None:
        points = pd.DataFrame({name: [] for name in COLUMNS})
    points = points.reset_index(drop=True)
    if "hour" not in points:
        points = points.assign(hour=match_hours(points["time"].to_numpy("datetime64[ns]"))[0])
    names = ("latitude", "longitude", "level", "value", "error", "elevation")
    types = dict.fromkeys(("time", "hour"), "datetime64[ns]") | dict.fromkeys(names, "float64")
    types |= dict.fromkeys(("variable", "station"), "str")
    return points.loc[:, [*COLUMNS, "hour"]].astype(types)


def _example(row: Any) -> str:
    level = "" if np.isnan(row["level"]) else f" at {row['level']:g} hPa"
    where = f"{row['latitude']:g}, {row['longitude']:g}"
    station = f"{row['station']}, " if row["station"] else ""
    return f"{row['variable']}{level}, {station}{where}, {row['time']:%Y-%m-%dT%H:%M}"


def values_of(fields: xr.Dataset) -> list[xr.DataArray]:
    r"""The fields of a gridded dataset, without their errors."""
    return [fields[name] for name in fields.data_vars if f"{name}_error" in fields]


def rows_of(fields: xr.Dataset) -> pd.DataFrame:
    r"""The values of fields as rows of a table."""
    parts = []
    latitude, longitude = fields["latitude"].values, fields["longitude"].values
    count = sum(int(v.notnull().sum()) for v in values_of(fields))
    if count > MOST:
        raise DataError(
            f"{count:,} values on {len(latitude)}×{len(longitude)} points that are not a grid the "
            f"other fields are on, which makes them points; a table takes {MOST:,}: regrid or thin "
            "them first"
        )
    for v in values_of(fields):
        for k, time in enumerate(fields["time"].values):
            x, error = (a.isel(time=k).values for a in (v, fields[f"{v.name}_error"]))
            *j, row, column = np.nonzero(~np.isnan(x))
            level = fields["level"].values[j[0]] if j else np.nan
            part = {
                "time": time,
                "latitude": latitude[row],
                "longitude": longitude[column],
                "variable": str(v.name),
                "level": level,
                "value": x[(*j, row, column)],
                "error": error[(*j, row, column)],
                "station": "",
                "elevation": np.nan,
            }
            parts.append(pd.DataFrame(part))
    return _columns(pd.concat(parts, ignore_index=True) if parts else None)


def merge(parts: list[xr.Dataset]) -> tuple[xr.Dataset, int]:
    r"""Fields on one grid as one dataset, the first where several have a value; how many do."""
    out, *parts = (part.reset_coords(drop=True) for part in parts)  # of which nothing is known
    shared = 0
    for part in parts:
        # coordinates may have been rounded, and those a little apart would be others
        part = part.assign_coords({dim: out[dim] for dim in ("latitude", "longitude")})
        attrs = {k: v.attrs for ds in (part, out) for k, v in ds.variables.items()}
        both = [v.name for v in values_of(part) if v.name in out]
        if not set(out.data_vars) & set(part.data_vars) and _same_times(out, part):
            out = out.assign(part.data_vars)  # as they are, without a copy
        elif _in_memory(out) and _in_memory(part):
            out, again = _fill(out, part)
            shared += again
        else:
            shared += sum(int((out[n].notnull() & part[n].notnull()).sum()) for n in both)
            out = out.combine_first(part)
            # a union of coordinates is sorted, and latitudes run from north to south
            out = out.sortby("latitude", ascending=False)
        for key, value in attrs.items():
            out[key].attrs = value
    return out, shared


def _same_times(a: xr.Dataset, b: xr.Dataset) -> bool:
    r"""Whether two datasets have the same times, and levels if both have any."""
    return all(
        np.array_equal(a[dim].values, b[dim].values)
        for dim in ("time", "level")
        if dim in a.dims and dim in b.dims
    )


def _in_memory(fields: xr.Dataset) -> bool:
    r"""Whether all fields are arrays in single precision, hours and levels in order."""
    order = [fields.indexes[dim] for dim in FIELD[:2] if dim in fields.indexes]
    return bool(
        all(index.is_monotonic_increasing and index.is_unique for index in order)
        and all(
            isinstance(v.variable._data, np.ndarray)
            and v.dtype == np.float32
            and v.dims in (FIELD, FIELD[:1] + FIELD[2:])
            for v in fields.data_vars.values()
        )
    )


FIELD = ("time", "level", "latitude", "longitude")


def _fill(a: xr.Dataset, b: xr.Dataset) -> tuple[xr.Dataset, int]:
    r"""Two datasets in memory as one, hour by hour, and the number of values both have."""
    ends = [dim for dim in ("time", "level") if dim in a.dims or dim in b.dims]
    union = {
        dim: np.unique(np.concatenate([ds[dim].values for ds in (a, b) if dim in ds.dims]))
        for dim in ends
    }
    named = {str(v.name) for v in values_of(a)} & {str(v.name) for v in values_of(b)}
    data: dict[str, Any] = {}
    shared = 0
    for name in dict.fromkeys(map(str, (*a.data_vars, *b.data_vars))):
        sources = [ds[name] for ds in (a, b) if name in ds]
        dims = sources[0].dims
        shape = [len(union[str(d)]) if d in union else sources[0].sizes[d] for d in dims]
        if len(sources) == 1 and list(sources[0].shape) == shape:
            data[name] = dims, sources[0].values
            continue
        new = np.full(shape, np.nan, np.float32)
        for first, v in zip((True, False), sources, strict=False):
            at = np.searchsorted(union["time"], v["time"].values)
            rows = np.searchsorted(union["level"], v["level"].values) if v.ndim > 3 else None
            for k, t in enumerate(at):
                hour, x = new[t] if rows is None else new[t, rows], v.values[k]
                if first:
                    hour = x
                else:
                    have, more = ~np.isnan(hour), ~np.isnan(x)
                    shared += int(np.count_nonzero(have & more)) if name in named else 0
                    hour = np.where(have, hour, x)
                new[t if rows is None else (t, rows)] = hour
        data[name] = dims, new
    coords = {**{d: union[d] for d in ends}, **{d: a[d] for d in ("latitude", "longitude")}}
    return xr.Dataset(data, coords, a.attrs), shared


def _without_duplicates(parts: list[pd.DataFrame]) -> tuple[pd.DataFrame, tuple[int, str]]:
    parts = [p for p in parts if len(p)]
    if len(parts) < 2:
        return (parts[0] if parts else _columns(None)), (0, "")
    rows = pd.concat(parts, ignore_index=True)
    gone = repeated(rows)
    if not gone.any():
        return rows, (0, "")
    return rows.loc[~gone], (int(gone.sum()), _example(rows.iloc[int(np.argmax(gone))]))


def _field_digests(fields: xr.Dataset) -> list[bytes]:
    places = np.concatenate([fields["latitude"].values, fields["longitude"].values])
    grid = hashlib.sha256(np.round(places.astype(np.float64), 4).tobytes()).digest()
    out = []
    for v in values_of(fields):
        for k, time in enumerate(fields["time"].values.astype("datetime64[ns]")):
            x, error = (a.isel(time=k).values for a in (v, fields[f"{v.name}_error"]))
            levels = fields["level"].values if x.ndim == 3 else [0]
            shape = (len(levels), -1)
            for level, a, b in zip(levels, x.reshape(shape), error.reshape(shape), strict=True):
                seen = np.flatnonzero(~np.isnan(a))
                if len(seen):
                    head = f"{v.name} {time.astype('int64')} {float(level):g}".encode()
                    data = (seen.astype("<i8"), a[seen].astype("<f4"), b[seen].astype("<f4"))
                    body = b"".join(part.tobytes() for part in data)
                    out.append(hashlib.sha256(grid + head + body).digest())
    return out
