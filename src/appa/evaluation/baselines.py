r"""What is known without observations, or without a model: estimates to stand beside others.

* :func:`climate` is the normal distribution of the weather of a season and hour at each point,
  from its climatology :math:`\mu(t)` and the deviation :math:`\sigma` of anomalies.
* :func:`persistence` is the last state of an analysis, member by member, at later hours. Its mean
  is the persistence of the mean.
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

__all__ = ["climate", "persistence"]

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
    return xr.Dataset(found)


def persistence(analysis: xr.Dataset, times: Any) -> xr.Dataset:
    r"""The last state of an analysis at later hours, which takes no memory.

    Arguments:
        analysis: The analysis, with or without members.
        times: The hours.
    """
    last = analysis.drop_vars("latents", errors="ignore").isel(time=-1, drop=True)
    return last.expand_dims(time=np.atleast_1d(as_datetime64(times)).astype("datetime64[ns]"))
