r"""Reads observations from tables and datasets as they come.

A table has one row a value (`time, latitude, longitude, variable, level, value, error`, and
`station, elevation, units` where known), or one column a variable with its `<variable>_error`
beside. Names are matched to ours without regard to case; times are UTC unless they say otherwise.
Values are converted to the model's units, matched to its hours, and screened: each row that cannot
be used is counted under the first reason that applies, see :mod:`appa.observations.checks`.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import xarray as xr

from ..data.canonical import ALIASES
from ..data.stores import NETCDF, consolidated, missing
from ..data.variables import LEVELS
from ..errors import DataError, StoreError, nearest
from . import checks, observables
from .collection import Observations, values_of
from .gridded import Rules, has_grid, read_gridded
from .points import ROLES, TEXT, read_table, roles_of
from .times import says_hours
from .units import NAMES, recognise

__all__ = ["read_observations"]

TABLES = (".csv", ".csv.gz", ".tsv", ".txt", ".parquet", ".pq")


def read_observations(
    source: Any,
    *,
    strict: bool = False,
    units: Mapping[str, str] | None = None,
    columns: Mapping[str, str] | None = None,
    error: Mapping[str, float | str] | None = None,
    tolerance: str | np.timedelta64 | pd.Timedelta = "30min",
    levels: Sequence[float] = LEVELS,
) -> Observations:
    r"""Reads observations, and counts those that cannot be used.

    Arguments:
        source: A path (`.csv`, `.csv.gz`, `.parquet`, `.nc`, `.zarr`; a pattern such as
            `"obs/*.csv"`), a `DataFrame`, a `Dataset`, observations, or a list of these. Fields in
            memory of which nothing is left out are shared, not copied: change them no more.
        strict: Whether to refuse a source with anything unusable, rather than exclude it.
        units: The units of variables, and of `level` and `elevation`, by name. They count for more
            than what the source says.
        columns: What columns or variables are by another name: `{"TEMP": "2m_temperature"}`.
        error: The error of variables that come without: one standard deviation, a number in the
            unit of the values or with a unit, `"1 hPa"`.
        tolerance: How far from a whole hour a time may be, with its unit: `"10min"`.
        levels: The model's levels in hPa, between which observations may lie.

    Example:
        >>> observations = read_observations("stations.csv", units={"t2m": "°C"})
        >>> observations.excluded
                 reason  count                       example
        0  not a number      1  line 5: t2m, value=nan
    """
    span = _span(tolerance)
    if isinstance(error, (int, float, str)):
        raise DataError(
            f"found error={error!r}; give one a variable: error={{'2m_temperature': {error!r}}}"
        )
    names = _named(units or {}, ("level", "elevation"), "units")
    errors, several = _named(error or {}, (), "error"), isinstance(source, (list, tuple))
    rules = Rules(names, errors, span, levels, dict(columns or {}), several)
    out, empty = Observations(), []
    for name, part in _parts(source, rules):
        if not _anything(part):
            bad = sum(part.excluded["count"].tolist())
            if not bad and part.gridded is None:  # e.g. of an hour in which nothing was reported
                empty.append(name)
                continue
            left = f"{bad:,} found:\n{checks.describe(part.excluded)}" if bad else "0 found"
            raise DataError(f"{name}: no observation is left of {left}")
        out = out + part
    if not len(out):
        raise DataError(
            f"{', '.join(empty) or 'there is no source'}: no observation is left of 0 found"
        )
    found = checks.describe(out.excluded)
    bad = sum(out.excluded["count"].tolist())
    if strict and bad:
        raise DataError(
            f"{bad:,} of {len(out) + bad:,} observations cannot be used:\n{found}\ncorrect them, "
            "or leave them out without strict"
        )
    return out


def _span(tolerance: Any) -> np.timedelta64:
    r"""How long a tolerance is. A number has to have a unit: pandas takes it for nanoseconds."""
    bare = isinstance(tolerance, (int, float)) or re.fullmatch(r"\s*[+-]?\d+\s*", str(tolerance))
    if isinstance(tolerance, np.timedelta64):
        bare = np.datetime_data(tolerance)[0] == "generic"
    try:
        span: Any = pd.NaT if bare else pd.Timedelta(tolerance)
    except (TypeError, ValueError):
        span = pd.NaT
    if not span >= pd.Timedelta(0):
        unit = ", a number without a unit" if bare else ""
        raise DataError(
            f"found a tolerance of {tolerance!r}{unit}; give a time of 0 or more with its unit, "
            "such as '30min'"
        )
    return span.to_timedelta64()


def _named(given: Mapping[str, Any], others: tuple[str, ...], what: str) -> dict[str, Any]:
    r"""A mapping by observable, whatever spelling its keys have."""
    out = {}
    for key, value in given.items():
        known = recognise(key)
        if key not in others and known is None:
            hint = nearest(str(key), [*observables.known(), *NAMES, *others])
            raise DataError(f"{what} are given for {key!r}, which is unknown{hint}")
        out[key if known is None else known[0]] = value
    return out


def _anything(part: Observations) -> bool:
    r"""Whether there is a value; a field is read up to the first hour that has one."""
    if part.count is not None:
        return part.count > 0
    fields = [] if part.gridded is None else values_of(part.gridded)
    return len(part.points) > 0 or any(
        bool(v.isel(time=k).notnull().any()) for v in fields for k in range(v.sizes["time"])
    )


def _parts(source: Any, rules: Rules) -> Iterable[tuple[str, Observations]]:
    r"""What each source has, by its name."""
    if isinstance(source, Observations):
        yield "the observations", source
    elif isinstance(source, pd.DataFrame):
        yield "the table", read_table(source, lambda k: f"row {k}", "the table", rules)
    elif isinstance(source, (xr.Dataset, xr.DataArray)):
        ds = source if isinstance(source, xr.Dataset) else source.to_dataset(name=source.name)
        yield "the dataset", _read_dataset(ds, "the dataset", rules)
    elif isinstance(source, (str, Path)):
        paths = [Path(source)]
        if glob.has_magic(str(source)) and not paths[0].exists():
            paths = [Path(p) for p in sorted(glob.glob(str(source)))]
            if not paths:
                raise StoreError(f"no file matches {source}")
        for path in paths:
            yield str(path), _read_path(path, rules)
    elif isinstance(source, (list, tuple)):
        for k, part in enumerate(source, 1):
            for name, found in _parts(part, rules):
                own = isinstance(part, (str, Path, list, tuple))  # which has a name, or gives some
                yield name if own else f"{name}, source {k}", found
    else:
        raise DataError(
            f"found {type(source).__name__} for observations; give a path, a pandas table, an "
            "xarray dataset, or a list of these"
        )


def _read_path(path: Path, rules: Rules) -> Observations:
    if not path.exists():
        raise StoreError(missing(path))
    name, file = path.name.lower(), path.name
    if name.endswith((".parquet", ".pq")):
        return read_table(_load(pd.read_parquet, path), lambda k: f"{file} row {k}", file, rules)
    if name.endswith(TABLES):
        frame, longer = _load(_read_csv, path, rules)
        if not longer:
            return read_table(frame, lambda k: f"{file} line {k + 2}", file, rules)
        # lines are not known beside those that are left out
        found = read_table(frame, lambda k: f"{file} row {k + 1} of the others", file, rules)
        example = f"{file}: {','.join(longer[0])}"
        gone = checks.table({checks.FIELDS: (len(longer), example)})
        excluded = checks.join([gone, found.excluded])
        return Observations(found.points, found.gridded, excluded, found.notes)
    if name.endswith(NETCDF) or path.is_dir():
        options: dict[str, Any] = {"cache": False, "decode_timedelta": False}
        if path.is_dir():
            options |= {"engine": "zarr", "consolidated": consolidated(path)}
        ds = _load(xr.open_dataset, path, **options)
        return _read_dataset(_by_hour(ds), file, rules)
    raise DataError(
        f"{path} is of no known kind; observations come as {', '.join((*TABLES, *NETCDF))} or .zarr"
    )


def _by_hour(ds: xr.Dataset) -> xr.Dataset:
    r"""A dataset that is read through Dask, as many hours at once as are stored together."""
    time = next((name for name in ALIASES["time"] if name in ds.dims), None)
    stored = [v.encoding.get("preferred_chunks", {}).get(time, 1) for v in ds.data_vars.values()]
    return ds.chunk({} if time is None else {time: max(stored, default=1)})


def _load(read: Callable[..., Any], path: Path, *args: Any, **options: Any) -> Any:
    try:
        return read(path, *args, **options)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except Exception as error:  # each format has exceptions of its own
        text = str(error).splitlines()[0] if str(error) else "no reason"
        raise StoreError(
            f"{path} cannot be read ({type(error).__name__}: {text}): it is cut short or damaged, "
            "or is something else; copy or write it again"
        ) from error


def _read_dataset(ds: xr.Dataset, name: str, rules: Rules) -> Observations:
    ds = ds.rename({old: new for old, new in rules.columns.items() if old in ds.variables})
    if has_grid(ds):
        return read_gridded(ds, name, rules)
    # points, each with its place and time as variables
    told = {str(k): str(v.attrs["units"]) for k, v in ds.variables.items() if "units" in v.attrs}
    told = {known[0]: unit for k, unit in told.items() if (known := recognise(k))}
    rules = rules._replace(units={**told, **rules.units})
    frame = ds.to_dataframe().reset_index()
    # a dimension `obs` numbers the points
    count = [str(d) for d in ds.dims if d not in ds.coords or d in ROLES["value"]]
    frame = frame.drop(columns=count)
    return read_table(frame, lambda k: f"row {k}", name, rules)


def _read_csv(path: Path, rules: Rules) -> tuple[pd.DataFrame, list[list[str]]]:
    r"""A table, and the lines that have more fields than it has columns, which it is without.

    Text stays text, so that stations keep their zeros; the rest is numbers where it can be.
    """
    options: dict[str, Any] = {"encoding": "utf-8-sig", "encoding_errors": "replace"}
    with fsspec.open(str(path), "rt", compression="infer", encoding="utf-8", errors="replace") as f:
        head = f.readline()  # type: ignore[union-attr]
    options["sep"] = max(",;\t", key=head.count)
    names = [str(c) for c in pd.read_csv(path, nrows=0, **options).columns]
    roles = roles_of(names, rules)
    text = [old for old, (role, _) in roles.items() if role in TEXT or says_hours(role)]
    missing = ["", "nan", "NaN", "NA", "null", "NULL", "None"]
    options |= {
        "dtype": dict.fromkeys(text, "str"),
        "keep_default_na": False,
        "na_values": {name: missing for name in names if name not in text},
        "index_col": False,  # rows that end in a comma have no index
    }
    try:
        return pd.read_csv(path, low_memory=False, **options), []
    except pd.errors.ParserError as error:
        if "fields" not in str(error):
            raise
    longer: list[list[str]] = []
    # a comma in a remark is one row's fault: append gives None, and the line is left out
    options |= {"engine": "python", "on_bad_lines": longer.append}
    return pd.read_csv(path, **options), longer
