r"""Runs of several dates: forecasts by lead time, analyses side by side.

A forecast issued at :math:`t_0` has a state at lead times :math:`\tau = t - t_0`. Means of
statistics of forecasts have dimensions `(region, init_time, lead_time, channel)`; pooled over
`init_time` they give scores by lead time, and dates are what is resampled for intervals
(:mod:`appa.evaluation.comparison`). Analyses of several dates stay along `time`, with a coordinate
`start` that tells the runs apart.

When a forecast was issued, the last hour that was known, its dataset says: by a scalar coordinate
or an attribute `forecast_reference_time`, as CF names it, or `init_time`; by two dimensions of
time, as WeatherBench's datasets have; or by its attribute `task`, `"forecast"`, for the hour before
its first.
"""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from ..data.canonical import canonicalize
from ..data.clock import as_datetime64
from ..data.stores import NETCDF, consolidated, open_store
from ..data.variables import VARIABLES, conversion
from ..errors import DataError, StoreError
from ..progress import progress
from .ensembles import averages
from .partition import with_dimension

__all__ = ["by_lead", "issued", "open_runs", "run_averages"]

ISSUED = ("forecast_reference_time", "init_time")
# an initial time and a lead time, as WeatherBench-X, WeatherBench2 and cfgrib name them
PAIRS = (("init_time", "lead_time"), ("time", "prediction_timedelta"), ("time", "step"))
HOUR = np.timedelta64(1, "h")
LEAD = {"long_name": "hours since the last that was known", "units": "h"}
LEAD |= {"standard_name": "forecast_period"}
INIT = {"long_name": "last hour that was known", "standard_name": "forecast_reference_time"}
START = {"long_name": "first hour of the run"}

Source = xr.Dataset | str | Path


# ---------------------------------------------------------------- what is there


def issued(run: xr.Dataset) -> np.datetime64 | None:
    r"""The last hour that was known to a forecast; :py:`None` for an analysis."""
    for name in ISSUED:
        if name in run.coords and run[name].ndim == 0:
            return _hour(run[name].values)
        if name in run.attrs:
            return _hour(run.attrs[name])
    if run.attrs.get("task") == "forecast" and run.get("time") is not None:
        return _hour(run["time"].values.reshape(-1)[0]) - HOUR
    return None


def _hour(value: Any) -> np.datetime64:
    return np.atleast_1d(as_datetime64(value).astype("datetime64[ns]"))[0]


def open_runs(source: Source | Sequence[Source]) -> list[xr.Dataset]:
    r"""Opens runs, lazily, each in canonical form.

    Arguments:
        source: A dataset, the path of one, several paths with commas, a pattern such as
            `"runs/*.zarr"`, or a list of these. A dataset with two dimensions of time is a run for
            each initial time. NetCDF files that no run wrote are the parts of one store.

    Example:
        >>> [str(issued(run)) for run in open_runs("forecasts/*.zarr")]
        ['2021-03-22T00:00:00.000000000', '2021-03-29T00:00:00.000000000']
    """
    if isinstance(source, xr.Dataset):
        return _split(source)
    if not isinstance(source, str | Path):
        found = [run for item in source for run in open_runs(item)]
        if not found:
            raise DataError("there is no run to score: the list is empty")
        return found
    text = str(source)
    if os.path.exists(text) or "://" in text:
        return _split(_open(text))
    if "," in text:
        return open_runs([word.strip() for word in text.split(",") if word.strip()])
    if not glob.has_magic(text):
        return _split(_open(text))
    paths = sorted(path for path in glob.glob(text) if not path.endswith((".partial", ".run")))
    if not paths:
        raise StoreError(f"no run matches {text!r}; found nothing to score")
    first = open_runs(paths[0])
    parts = all(path.endswith(NETCDF) for path in paths)
    if parts and len(first) == 1 and issued(first[0]) is None and "task" not in first[0].attrs:
        return [open_store(paths)]
    return first + [run for path in paths[1:] for run in open_runs(path)]


def _open(path: str) -> xr.Dataset:
    r"""A dataset as it is where it has two dimensions of time, otherwise canonical."""
    from ..tasks.analyses import open_analysis

    local = Path(path)
    zarr = any((local / mark).exists() for mark in ("zarr.json", ".zgroup", ".zmetadata"))
    if zarr or (local.is_file() and path.endswith(NETCDF)):
        how: dict[str, Any] = {"decode_timedelta": True}
        if zarr:
            how |= {"engine": "zarr", "consolidated": consolidated(local)}
        try:
            ds = xr.open_dataset(local, **how)
        except (OSError, ValueError):
            return open_analysis(path)  # which knows why
        if _pair(ds) is not None:
            return ds
        ds.close()
    with warnings.catch_warnings():  # slow to open, but as right
        warnings.filterwarnings("ignore", message="Failed to open Zarr store with consol")
        return open_analysis(path)


def _pair(ds: xr.Dataset) -> tuple[str, str] | None:
    for init, lead in PAIRS:
        if lead in ds.dims and init in ds.coords and ds[init].ndim <= 1:
            return init, lead
    return None


def _split(ds: xr.Dataset) -> list[xr.Dataset]:
    r"""The runs of a dataset, canonical."""
    pair = _pair(ds)
    if pair is None:
        return [_canonical(ds)]
    init, lead = pair
    after = ds[lead].values
    if after.dtype.kind != "m":  # not decoded
        units = str(ds[lead].attrs.get("units", "hours"))
        after = pd.to_timedelta(after, unit=units).to_numpy()  # type: ignore[call-overload]
    ds = ds.drop_vars([n for n in ("valid_time", lead) if n in ds.coords])
    ds = with_dimension(ds, init)
    runs = []
    for k, first in enumerate(ds[init].values.astype("datetime64[ns]")):
        run = ds.isel({init: k}, drop=True).rename({lead: "time"})
        run = _canonical(run.assign_coords(time=first + after))
        runs.append(run.assign_attrs(forecast_reference_time=str(first)))
    return runs


def _canonical(ds: xr.Dataset) -> xr.Dataset:
    r"""The same in canonical order and units; what is not of a state, such as the deviations of
    normal distributions, only where nothing has to be moved."""
    try:
        found = canonicalize(ds)
    except DataError:
        return ds  # with nothing of a state, or not to be understood: matching says so
    dims = [dim for dim in ("level", "latitude", "longitude") if dim in found.dims]
    if set(found.dims) <= set(ds.dims) and all(np.array_equal(ds[d], found[d]) for d in dims):
        units = {str(n): ds[n].attrs.get("units") for n in found if n in VARIABLES}
        other = [name for name, unit in units.items() if conversion(name, unit) != (1.0, 0.0)]
        return ds.assign({name: found[name] for name in other})
    if any(f"{name}_std" in ds for name in found):
        return ds
    keep = {n: ds.coords[n] for n in ISSUED if n in ds.coords and ds[n].ndim == 0}
    return found.assign_coords(keep)


# ---------------------------------------------------------------- over runs


def run_averages(runs: Sequence[xr.Dataset], truth: Any, **options: Any) -> xr.Dataset:
    r"""Averages the statistics of runs over regions.

    Arguments:
        runs: The runs, see :func:`open_runs`, all forecasts or none.
        truth: The truth, what :func:`appa.open_store` takes.
        options: As of :func:`~appa.evaluation.ensembles.averages`.

    Returns:
        The means of :func:`~appa.evaluation.ensembles.averages`, with `init_time` and `lead_time`
        in place of `time` for forecasts. Channels are those that all runs have.
    """
    starts = [issued(run) for run in runs]
    if any(s is None for s in starts) and any(s is not None for s in starts):
        raise DataError(
            f"{sum(s is not None for s in starts)} of {len(runs)} runs are forecasts, the others "
            "do not say when they were issued; score the two kinds apart"
        )
    truth = open_store(truth)
    parts = []
    with _shown(len(runs)) as (description, advance):
        for run in runs:
            parts.append(averages(run, truth, **{"description": description} | options))
            advance()
    counts = sorted({part.attrs["members"] for part in parts})
    if len(counts) > 1:
        raise DataError(
            f"the runs have {', '.join(map(str, counts))} members; scores of unequal ensembles are "
            "not pooled: score them apart"
        )
    if starts[0] is not None:
        return _side_by_side([by_lead(p, s) for p, s in zip(parts, starts, strict=True)])
    if len(parts) == 1:
        return parts[0]
    return _one_after_another(parts)


def by_lead(means: xr.Dataset, start: Any) -> xr.Dataset:
    r"""Means of one forecast with `init_time`, of one date, and `lead_time` in place of `time`."""
    start = _hour(start)
    lead = (means["time"].values - start) / HOUR
    means = means.assign_coords(lead_time=("time", lead, LEAD)).swap_dims(time="lead_time")
    order = ("region", "init_time", "lead_time", "channel")
    means = means.drop_vars("time").expand_dims(init_time=[start]).transpose(*order)
    means["init_time"].attrs = INIT
    return means


def _side_by_side(parts: list[xr.Dataset]) -> xr.Dataset:
    dates = np.concatenate([part["init_time"].values for part in parts])
    unique, counts = np.unique(dates, return_counts=True)
    if (counts > 1).any():
        twice = unique[counts > 1][0].astype("datetime64[h]")
        raise DataError(f"{counts.max()} forecasts are issued at {twice}; give each date once")
    joined = _joined(parts, "init_time").sortby("init_time").sortby("lead_time")
    joined["weight"] = joined["weight"].fillna(0.0)  # lead times that a date does not have
    return joined.transpose("region", "init_time", "lead_time", "channel")


def _one_after_another(parts: list[xr.Dataset]) -> xr.Dataset:
    parts = [
        part.assign_coords(start=("time", np.full(part.sizes["time"], part["time"].values.min())))
        for part in parts
    ]
    joined = _joined(parts, "time").sortby("time")
    if not joined.indexes["time"].is_unique:
        twice = joined.indexes["time"][joined.indexes["time"].duplicated()][0]
        raise DataError(
            f"{twice:%Y-%m-%dT%H} is in two of the {len(parts)} runs, and none says when it was "
            "issued; give runs of other hours, or forecasts with forecast_reference_time"
        )
    joined["start"].attrs = START
    return joined


def _joined(parts: list[xr.Dataset], dim: str) -> xr.Dataset:
    if len(parts) == 1:
        return parts[0]
    common = [c for c in parts[0]["channel"].values if all(c in p["channel"] for p in parts)]
    if not common:
        raise DataError("the runs have no channel in common")
    parts = [part.sel(channel=common) for part in parts]
    return xr.concat(
        parts, dim, join="outer", coords="minimal", compat="override", combine_attrs="override"
    )


@contextmanager
def _shown(count: int) -> Iterator[Any]:
    r"""Progress by parts of one run, or by runs."""
    if count == 1:
        yield "scoring", lambda: None
        return
    with progress(count, "scoring", "runs") as p:
        yield None, p.advance
