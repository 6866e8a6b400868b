r"""What is known without observations, or without a model: estimates to stand beside others.

* :func:`climate` is the normal distribution of the weather of a season and hour at each point,
  from its climatology :math:`\mu(t)` and the deviation :math:`\sigma` of anomalies.
* :func:`persistence` is the last state of an analysis, member by member, at later hours. Its mean
  is the persistence of the mean.
* :func:`persisted` is the truth of the hour a forecast was issued at, at the forecast's hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from ..data.climatology import regressors
from ..data.clock import as_datetime64
from ..errors import DataError
from .streaming import open_climatology

__all__ = ["climate", "persisted", "persistence"]

HOURS = 24  # evaluated at once


def climate(
    climatology: Any,
    times: Any,
    variables: Sequence[str] | None = None,
    levels: Sequence[int] | None = None,
) -> xr.Dataset:
    r"""A climatology at given hours, lazily, for :func:`appa.evaluate`.

    Arguments:
        climatology: A climatology, its file, or `"planet"` for the bundled one.
        times: The hours.
        variables, levels: Those wanted, of which the climatology's are given; by default all.

    Returns:
        For each variable its mean, with dimensions `(time, ...)`, as Dask arrays, and
        `<variable>_std`, its standard deviation.
    """
    clim = open_climatology(climatology)
    if clim is None or "coefficient" not in clim.dims:
        raise DataError(f"{climatology} is no climatology; fit one: appa data climatology")
    names = [str(name) for name in clim.data_vars if f"{name}_std" in clim]
    names = [name for name in names if variables is None or name in variables]
    if levels is not None and "level" in clim.dims:
        clim = clim.sel(level=[p for p in clim["level"].values if p in levels])
    times = np.atleast_1d(as_datetime64(times)).astype("datetime64[ns]")
    x = regressors(times, int(clim.attrs["harmonics"]), int(clim.attrs["diurnal"]))
    x = xr.DataArray(x.astype(np.float32), {"time": times}, ("time", "coefficient"))
    x, found = x.chunk(time=HOURS), {}
    for name in names:
        mean = xr.dot(x, clim[name].drop_vars("coefficient"), dim="coefficient")
        found[name] = mean.assign_attrs(clim[name].attrs)
        found[f"{name}_std"] = clim[f"{name}_std"]
    return xr.Dataset(found, attrs={"called": "climatology"})


def persistence(analysis: xr.Dataset, times: Any) -> xr.Dataset:
    r"""The last state of an analysis at later hours, which takes no memory.

    Arguments:
        analysis: The analysis, with or without members.
        times: The hours.
    """
    last = analysis.drop_vars("latents", errors="ignore").isel(time=-1, drop=True)
    return last.expand_dims(time=np.atleast_1d(as_datetime64(times)).astype("datetime64[ns]"))


def persisted(truth: xr.Dataset, run: xr.Dataset, variables: Sequence[str] | None = None) -> Any:
    r"""The truth of the hour a forecast was issued at, at the forecast's hours.

    Arguments:
        truth: The truth, which has that hour.
        run: A forecast, see :func:`appa.evaluation.forecasts.issued`.
        variables: Those wanted, by default all.
    """
    from .forecasts import issued

    start = issued(run)
    if start is None:
        raise DataError(
            "what persists is the last hour that was known, and the run does not say which: "
            "persistence is for forecasts"
        )
    if start not in truth["time"].values:
        raise DataError(f"the truth has no {start.astype('datetime64[h]')} to persist")
    names = [n for n in truth.data_vars if "time" in truth[n].dims]
    names = [n for n in names if variables is None or n in variables]
    found = persistence(truth[names].sel(time=[start]), run["time"].values)
    return found.assign_attrs(forecast_reference_time=str(start))
