r"""Ensembles in the layout that WeatherBench-X and WeatherBench2 read.

Predictions have two dimensions of time, the hour a forecast was issued and the lead time,
`(time, prediction_timedelta, [number,] [level,] latitude, longitude)`, which WeatherBench-X's
loaders rename to `init_time` and `lead_time` on their own (`rename_dimensions="ecmwf"`, their
default), and WeatherBench2 reads as they are. With `names="plain"` they are `init_time` and
`lead_time` on disk, for loaders with `rename_dimensions=None`. The hours of an analysis are
predictions at lead time 0. Targets, the truth, have `time` alone. Names, units and coordinates are
WeatherBench2's already: SI, levels in hPa, float32. Stores are of Zarr's format 2, which all their
versions read.

::

    from weatherbenchX.data_loaders import xarray_loaders as loaders
    predictions = loaders.PredictionsFromXarray(path="forecast.zarr")
    targets = loaders.TargetsFromXarray(path="truth.zarr", add_nan_mask=True)  # SST

Where definitions differ, with :math:`s` the mean squared error of the ensemble mean and :math:`v`
the mean variance of :math:`M` members:

* `EnsembleMean` with `RMSE` is `skill`, `CRPSEnsemble` (fair, its default) is `crps`, and
  `EnsembleRootMeanVariance` is `spread`; all agree. Of one member their CRPS is an error, ours the
  absolute error.
* `UnbiasedSpreadSkillRatio` is :math:`r = \sqrt{v / (s - v / M)}`, and `ratio` is
  :math:`R = \sqrt{(1 + 1 / M) \, v / s}`, so that :math:`r^2 = R^2 M / (M + 1 - R^2)`: both are 1
  together, and :math:`r` is farther from it.
* `GridAreaWeighting` puts the edges of cells half way between latitudes. So do we but on Gaussian
  grids, where cells have the quadrature's weights and reach the poles; there theirs, at 48
  latitudes, are 1 % off next to the poles and less than 0.1 % elsewhere.
* They leave out what is undefined where the loader of targets has `add_nan_mask=True` and the
  aggregator `masked=True`, and are NaN otherwise; we always leave it out.
* `Regions` have their edges in both neighbours: at exactly 20° a row is of the tropics too. Here it
  is of the extratropics alone. `LandSea` counts cells with half or more of land as land, where we
  count each with its share.
* `total_precipitation` is an hour's; theirs are sums over 6 or 24 hours, under names of their own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from ..data.layout import COORDINATES
from ..data.variables import VARIABLES, variable
from ..errors import DataError, StoreError
from ..evaluation.ensembles import MOST, read_block
from ..evaluation.forecasts import issued, open_runs
from ..evaluation.partition import parts_of, with_dimension
from ..progress import progress

__all__ = ["NAMES", "export"]

NAMES = {"ecmwf": ("time", "prediction_timedelta"), "plain": ("init_time", "lead_time")}
CHUNK = 2**26  # bytes
HOUR = np.timedelta64(1, "h")
UNITS = "hours since 1900-01-01"


class Axes(NamedTuple):
    r"""The dimensions of time of a store, and where the hours of each run go."""

    coords: dict[str, Any]
    places: list[np.ndarray]  # of each run, with shape (T, number of dimensions)


def export(
    source: Any,
    out: str | Path,
    *,
    kind: str | None = None,
    names: str = "ecmwf",
    variables: Sequence[str] | None = None,
) -> Path:
    r"""Writes runs, or the truth, as WeatherBench-X's loaders expect them; a part at a time.

    Arguments:
        source: What :func:`~appa.evaluation.forecasts.open_runs` opens: forecasts of one or several
            dates, analyses, or a store of states.
        out: The Zarr store, which must not exist yet.
        kind: `"predictions"` or `"targets"`; by default targets for states without members that
            are no forecast.
        names: `"ecmwf"` for `time` and `prediction_timedelta`, `"plain"` for `init_time` and
            `lead_time`, of predictions.
        variables: Those wanted, by default all.

    Example:
        >>> export("forecasts/*.zarr", "predictions.zarr")
        >>> export("planet", "truth.zarr")
    """
    out = Path(os.path.abspath(out))
    if out.exists():
        raise StoreError(f"{out} exists already; remove it or choose another name")
    if out.suffix != ".zarr":
        raise StoreError(f"found {str(out)!r} to write to; their loaders know a store by .zarr")
    if names not in NAMES:
        raise DataError(f"found names={names!r}, expected 'ecmwf' or 'plain'")
    runs = open_runs(source)
    runs = [with_dimension(run, "time") for run in runs]
    if kind is None:
        single = all(issued(r) is None and "member" not in r.dims for r in runs)
        kind = "targets" if single else "predictions"
    if kind not in ("predictions", "targets"):
        raise DataError(f"found kind={kind!r}, expected 'predictions' or 'targets'")
    chosen = _variables(runs, variables)
    _check(runs, kind)
    axes = _axes(runs, kind, names)
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        _create(partial, runs[0], chosen, axes)
        _fill(partial, runs, chosen, axes)
        os.replace(partial, out)
    except OSError as error:
        raise StoreError(f"cannot write {out} ({error}); choose another place") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return out


# ---------------------------------------------------------------- what is written


def _variables(runs: Sequence[xr.Dataset], wanted: Sequence[str] | None) -> list[str]:
    shared = [n for n in VARIABLES if all(n in run for run in runs)]
    if wanted is None:
        if not shared:
            found = ", ".join(map(str, runs[0]))
            raise DataError(f"there is no variable that WeatherBench knows; found {found}")
        return shared
    short = {VARIABLES[n].short: n for n in VARIABLES}
    chosen = [variable(short.get(name, name)).name for name in wanted]
    for name in chosen:
        if name not in shared:
            raise DataError(f"the runs have no {name}; they have {', '.join(shared)}")
    return list(dict.fromkeys(chosen))


def _check(runs: Sequence[xr.Dataset], kind: str) -> None:
    r"""Raises where runs do not fit into one store."""
    first = runs[0]
    if kind == "targets" and "member" in first.dims:
        raise DataError(
            f"targets are one state an hour, found {first.sizes['member']} members; select one, or "
            "write predictions"
        )
    for run in runs:
        for dim in ("member", "level", "latitude", "longitude"):
            a, b = (r[dim].values if dim in r.coords else r.sizes.get(dim) for r in (first, run))
            if not np.array_equal(np.asarray(a), np.asarray(b)):
                raise DataError(f"the runs differ in {dim}: they go into stores of their own")


def _axes(runs: Sequence[xr.Dataset], kind: str, names: str) -> Axes:
    times = [run["time"].values.astype("datetime64[ns]") for run in runs]
    starts = [start for run in runs if (start := issued(run)) is not None]
    if 0 < len(starts) < len(runs):
        raise DataError("some runs are forecasts and others are not; write them apart")
    if kind == "targets" or not starts:
        hours = np.concatenate(times)
        every = np.unique(hours)
        if len(every) < len(hours):
            raise DataError("runs have hours twice, and do not say when they were issued")
        places = [np.searchsorted(every, t)[:, None] for t in times]
        if kind == "targets":
            return Axes({"time": ("time", every, COORDINATES["time"])}, places)
        leads, inits = np.zeros(1, "timedelta64[ns]"), every
        places = [np.pad(p, ((0, 0), (0, 1))) for p in places]
    else:
        inits = np.unique(np.array(starts))
        if len(inits) < len(starts):
            raise DataError("two forecasts are issued at the same hour; give each date once")
        after = [t - s for t, s in zip(times, starts, strict=True)]
        leads = np.unique(np.concatenate(after))
        places = []
        for start, lead in zip(starts, after, strict=True):
            k = np.full(len(lead), np.searchsorted(inits, start))
            places.append(np.stack([k, np.searchsorted(leads, lead)], axis=1))
    init, lead = NAMES[names]
    about = {"standard_name": "forecast_reference_time", "long_name": "last hour that was known"}
    after = {"standard_name": "forecast_period", "long_name": "time since then"}
    return Axes({init: (init, inits, about), lead: (lead, leads, after)}, places)


def _create(path: Path, run: xr.Dataset, chosen: Sequence[str], axes: Axes) -> None:
    r"""The store without values."""
    import dask.array

    coords, sizes = dict(axes.coords), {dim: len(c[1]) for dim, c in axes.coords.items()}
    if "member" in run.dims:
        number = run["member"].values if "member" in run.coords else np.arange(run.sizes["member"])
        coords["number"] = ("number", number, {"standard_name": "realization", "units": "1"})
    for dim in ("level", "latitude", "longitude"):
        if any(dim in run[name].dims for name in chosen):
            coords[dim] = (dim, run[dim].values, COORDINATES[dim])
    data, encoding = {}, {}
    for name in chosen:
        dims = [*sizes, *(_renamed(d) for d in _inner(run[name]))]
        inner = [run.sizes[d] for d in _inner(run[name])]
        blank = dask.array.empty([*sizes.values(), *inner], chunks=-1, dtype=np.float32)
        data[name] = (dims, blank, VARIABLES[name].attrs)
        encoding[name] = {"chunks": (*[1] * len(sizes), *_chunk(inner))}
    for dim, (_, values, _) in axes.coords.items():
        lead = values.dtype.kind == "m"
        encoding[dim] = {"units": "hours" if lead else UNITS, "dtype": "int64"}
    attrs = {
        k: v for k, v in run.attrs.items() if k not in ("forecast_reference_time", "init_time")
    }
    ds = xr.Dataset(data, coords, attrs)
    for dim in ("latitude", "longitude"):
        encoding[dim] = {"_FillValue": None}
    ds.to_zarr(path, compute=False, consolidated=True, zarr_format=2, encoding=encoding)


def _fill(path: Path, runs: Sequence[xr.Dataset], chosen: Sequence[str], axes: Axes) -> None:
    import zarr

    group = zarr.open_group(path, mode="r+")
    with progress(len(runs) * len(chosen), "writing", "variables") as p:
        for run, places in zip(runs, axes.places, strict=True):
            for name in chosen:
                array: Any = group[name]
                var = run[name]
                levels = var["level"].values.tolist() if "level" in var.dims else [None]
                members = run.sizes.get("member", 1)
                for part in parts_of(var, name, levels, members, CHUNK, MOST):
                    values = read_block(var, *part[1:])  # (M, T, K, H, W)
                    box: list[Any] = [part.rows, part.columns]
                    if "level" in var.dims:
                        first = levels.index(part.levels[0])
                        box.insert(0, slice(first, first + len(part.levels)))
                    else:
                        values = values[:, :, 0]
                    if "member" in var.dims:
                        box.insert(0, slice(None))
                    for t, place in enumerate(places[part.hours]):
                        at = values[:, t] if "member" in var.dims else values[0, t]
                        array[(*place.tolist(), *box)] = at
                p.advance()


def _inner(var: xr.DataArray) -> list[str]:
    return [d for d in ("member", "level", "latitude", "longitude") if d in var.dims]


def _renamed(dim: str) -> str:
    return "number" if dim == "member" else dim


def _chunk(shape: Sequence[int]) -> tuple[int, ...]:
    r"""A chunk of whole fields, of as many levels and members as it may hold."""
    left, found = CHUNK // (4 * shape[-2] * shape[-1]), []
    for size in reversed(shape[:-2]):
        found.append(max(1, min(size, left)))
        left //= size
    return (*reversed(found), *shape[-2:])
