r"""The expected state for a time of the year, and how far weather departs from it.

At every grid point a variable is regressed on harmonics of the progress of the year
:math:`\tau \in [0, 1)` and, if asked for, of the hour of the day :math:`h`,

.. math:: y(t) \approx \beta_0
    + \sum_{k=1}^{K} a_k \cos 2 \pi k \tau + b_k \sin 2 \pi k \tau
    + \sum_{m=1}^{M} c_m \cos \tfrac{2 \pi m h}{24} + d_m \sin \tfrac{2 \pi m h}{24} .

Hours are UTC; as each point has coefficients of its own, local time needs no place in the formula.
With :math:`X` the :math:`p = 1 + 2K + 2M` regressors, one pass over the record accumulates
:math:`X^\top X`, :math:`X^\top (y - y_0)` and :math:`\sum (y - y_0)^2`, where :math:`y_0` is the
first state: squares of geopotential itself would drown its anomalies. Then

.. math:: \beta = (X^\top X)^{-1} X^\top y , \qquad
    \sigma^2 = \frac{\|y\|^2 - \beta^\top X^\top y}{N - p} .

A record that covers only a part of the year cannot tell the harmonics apart. It is refused unless
:math:`X^\top X`, scaled to a unit diagonal, has a condition number below 30; whole years have 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DataError, StoreError
from ..progress import progress
from . import netcdf
from .clock import as_datetime64, hour_of_day, year_progress
from .reduction import read, reduce_blocks, time_blocks
from .statistics import select
from .variables import VARIABLES

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["evaluate", "fit", "load", "regressors", "save"]

KIND = netcdf.Kind("climatology", "a climatology", "fit one with: appa data climatology STORE OUT")
CONDITION = 30.0


def regressors(times: Any, harmonics: int, diurnal: int = 0) -> np.ndarray:
    r"""The matrix :math:`X` of a regression, with shape :math:`(T, 1 + 2K + 2M)`."""
    times = np.atleast_1d(as_datetime64(times))
    columns = [np.ones(len(times))]
    for count, phase in ((harmonics, year_progress(times)), (diurnal, hour_of_day(times) / 24)):
        for k in range(1, count + 1):
            columns += [np.cos(2 * np.pi * k * phase), np.sin(2 * np.pi * k * phase)]
    return np.stack(columns, axis=-1)


def fit(
    ds: xr.Dataset,
    harmonics: int = 3,
    diurnal: int = 0,
    *,
    variables: Sequence[str] | None = None,
    split: tuple[str | None, str | None] | None = None,
    scheduler: Any = None,
    workers: int | None = None,
) -> xr.Dataset:
    r"""Fits the climatology of a dataset, in one pass.

    Points where a variable is undefined at any time (SST over land) stay undefined.

    Arguments:
        ds: A canonical dataset that covers all seasons.
        harmonics: The number :math:`K` of harmonics of the year; 0 gives the mean.
        diurnal: The number :math:`M` of harmonics of the day.
        variables: The variables to fit; all known ones by default.
        split: The first and last time to take, both included.
        scheduler: A Dask client or scheduler address; by default, threads of this process.
        workers: The number of threads, each of which fits one variable at a time.

    Returns:
        For each variable its coefficients, with dimensions `(coefficient, [level], latitude,
        longitude)`, and `<variable>_std`, the standard deviation :math:`\sigma` of its anomalies.

    Example:
        >>> clim = fit(open_store("era5.zarr"))
        >>> evaluate(clim, ["2021-07-01T12"])["2m_temperature"]
    """
    import xarray as xr

    if harmonics < 0 or diurnal < 0:
        raise DataError(f"harmonics cannot be negative; found {harmonics} and {diurnal}")
    ds = select(ds, variables, split)
    names = [str(name) for name in ds.data_vars]
    x = regressors(ds["time"].values, harmonics, diurnal)
    _check_posed(ds["time"].values, x, harmonics, diurnal)

    blocks = time_blocks(ds)
    # A bar in this process cannot be moved from another: a cluster reports whole variables.
    local = scheduler is None
    bar = progress(len(blocks) * len(names), "climatology", "blocks") if local else nullcontext()
    with bar as p:
        fits = reduce_blocks(
            partial(_fit, ds, x, blocks, p.advance if p is not None else None),
            lambda parts: [item for part in parts for item in part],
            names,
            scheduler=scheduler,
            workers=workers,
            description=None if local else "climatology",
            unit="variables",
        )

    data: dict[str, Any] = {}
    for name, beta, std in fits:
        space = tuple(d for d in ("level", "latitude", "longitude") if d in ds[name].dims)
        shape = tuple(ds.sizes[d] for d in space)
        attrs = dict(ds[name].attrs)
        data[name] = (("coefficient", *space), beta.reshape(-1, *shape), attrs)
        # A deviation is no air temperature: of the names only its own stays, with the unit.
        spread = {k: v for k, v in attrs.items() if k == "units"}
        spread["long_name"] = f"standard deviation of {name} about its climatology"
        data[f"{name}_std"] = (space, std.reshape(shape), spread)

    coefficients = ["mean"]
    coefficients += [f"annual_{f}_{k + 1}" for k in range(harmonics) for f in ("cos", "sin")]
    coefficients += [f"diurnal_{f}_{k + 1}" for k in range(diurnal) for f in ("cos", "sin")]
    coords = {name: ds[name] for name in ("level", "latitude", "longitude") if name in ds.coords}
    times = ds["time"].values
    return xr.Dataset(
        data,
        {"coefficient": coefficients, **coords},
        {
            **KIND.attrs,
            "title": "harmonic climatology and standard deviation of anomalies",
            "harmonics": harmonics,
            "diurnal": diurnal,
            "hours": len(times),
            "first_time": str(times.min().astype("datetime64[h]")),
            "last_time": str(times.max().astype("datetime64[h]")),
        },
    )


def evaluate(clim: xr.Dataset, times: Any) -> xr.Dataset:
    r"""The expected states at given times, as a canonical dataset.

    Arguments:
        clim: A climatology from :func:`fit`.
        times: The times, in any form :mod:`appa.data.clock` takes.
    """
    import xarray as xr

    from .layout import COORDINATES

    times = np.atleast_1d(as_datetime64(times)).astype("datetime64[ns]")
    x = regressors(times, int(clim.attrs["harmonics"]), int(clim.attrs["diurnal"]))
    data: dict[str, Any] = {}
    for name, var in clim.data_vars.items():
        if "coefficient" not in var.dims:
            continue
        var = var.transpose("coefficient", ...)
        beta = var.values.reshape(var.shape[0], -1)
        value = (x.astype(beta.dtype) @ beta).reshape(len(times), *var.shape[1:])
        attrs = VARIABLES[str(name)].attrs if name in VARIABLES else dict(var.attrs)
        data[str(name)] = (("time", *var.dims[1:]), value.astype(np.float32), attrs)
    coords = {k: clim[k] for k in ("level", "latitude", "longitude") if k in clim.coords}
    return xr.Dataset(data, {"time": ("time", times, COORDINATES["time"]), **coords})


def save(clim: xr.Dataset, path: str | Path) -> Path:
    r"""Writes a climatology to a NetCDF file, which may replace another but nothing else."""
    return netcdf.save(clim, path, KIND)


def load(path: str | Path) -> xr.Dataset:
    r"""Reads a climatology written by :func:`save`."""
    clim = netcdf.load(path, KIND)
    if "coefficient" not in clim.dims or not {"harmonics", "diurnal"} <= set(clim.attrs):
        raise StoreError(
            f"{str(path)!r} holds no climatology: expected variables with a dimension "
            f"'coefficient', found dimensions {dict(clim.sizes)}; {KIND.remedy}"
        )
    return clim


def _fit(
    ds: xr.Dataset, x: np.ndarray, blocks: list[tuple[int, int]], tick: Any, name: str
) -> list[tuple[str, np.ndarray, np.ndarray]]:
    r"""The coefficients :math:`(p, M)` and anomaly deviations :math:`(M)` of a variable."""
    guess = read(ds, name, 0, 1).astype(np.float64).reshape(-1)
    right = np.zeros((x.shape[1], guess.size))
    squares = np.zeros(guess.size)
    for start, stop in blocks:
        y = read(ds, name, start, stop).reshape(stop - start, -1).astype(np.float64)
        y -= guess
        right += x[start:stop].T @ y
        squares += np.einsum("tm,tm->m", y, y)
        if tick is not None:
            tick()

    undefined = np.isnan(squares)
    infinite = np.count_nonzero(np.isinf(squares))
    allowed = name in VARIABLES and VARIABLES[name].missing is not None
    if infinite or (undefined.any() and not allowed):
        what = f"infinite at {infinite}" if infinite else f"undefined at {undefined.sum()}"
        raise DataError(
            f"{name} is {what} of {squares.size} points at some time, so it has no climatology "
            f"there; find when with: appa data check STORE"
        )
    beta = np.linalg.solve(x.T @ x, right)
    residual = squares - np.einsum("pm,pm->m", beta, right)
    std = np.sqrt(np.maximum(residual, 0) / (len(x) - x.shape[1]))
    std[undefined] = np.nan
    beta[0] += guess
    return [(name, beta.astype(np.float32), std.astype(np.float32))]


def _check_posed(times: np.ndarray, x: np.ndarray, harmonics: int, diurnal: int) -> None:
    r"""Raises unless the times can tell the regressors apart."""
    if _condition(x) <= CONDITION:
        return
    fewer = [
        (k, m)
        for k in range(harmonics, -1, -1)
        for m in range(diurnal, -1, -1)
        if _condition(regressors(times, k, m)) <= CONDITION
    ]
    first, last = times.min(), times.max()
    days = (last - first) / np.timedelta64(1, "D")
    covered = len(np.unique(np.floor(365 * year_progress(times)))) / 365
    raise DataError(
        f"a record of {len(times)} hours over {days:.4g} days ({first.astype('datetime64[h]')} to "
        f"{last.astype('datetime64[h]')}, {covered:.0%} of the days of a year) cannot tell "
        f"{harmonics} harmonics of the year and {diurnal} of the day apart; whole years at "
        f"{2 * diurnal + 1 if diurnal else 1} or more hours a day can"
        + (f", or ask for fewer: harmonics={fewer[0][0]}, diurnal={fewer[0][1]}" if fewer else "")
    )


def _condition(x: np.ndarray) -> float:
    r"""Condition number of the normal equations, scaled to a unit diagonal."""
    if len(x) <= x.shape[1]:
        return np.inf
    gram = x.T @ x
    scale = np.sqrt(np.diag(gram))
    if not (scale > 1e-6 * np.sqrt(len(x))).all():  # a sine sampled at its zeros
        return np.inf
    return float(np.linalg.cond(gram / np.outer(scale, scale)))
