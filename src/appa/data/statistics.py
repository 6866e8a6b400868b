r"""Mean and standard deviation of each variable and level, in one pass.

The moments of a block of values :math:`A` are its count, mean and sum of squared deviations,

.. math:: n_A , \qquad \mu_A = \frac{1}{n_A} \sum_i x_i , \qquad
    M_A = \sum_i (x_i - \mu_A)^2 ,

computed in double precision about the block's own mean. Blocks merge (Chan et al., 1979) with

.. math:: \mu = \mu_A + \frac{n_B}{n} \delta , \qquad
    M = M_A + M_B + \frac{n_A n_B}{n} \delta^2 , \qquad \delta = \mu_B - \mu_A ,

which never subtracts large squares: geopotential at 50 hPa, :math:`2 \times 10^5` with deviations
of a few hundred, loses no digits. The standard deviation is :math:`\sqrt{M / n}`.

Every grid point and hour counts the same, as in the paper: these are the scales of a network's
input, not climate averages, and are not weighted by area. Undefined values (SST over land) do not
count.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DataError, StoreError, nearest
from . import netcdf
from .reduction import read, reduce_blocks, time_blocks
from .variables import VARIABLES

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["compute", "load", "save", "select"]

KIND = netcdf.Kind(
    "statistics", "statistics", "compute statistics with: appa data statistics STORE OUT"
)

# count, mean and sum of squared deviations of a variable, each with shape (L)
Moments = tuple[np.ndarray, np.ndarray, np.ndarray]


def compute(
    ds: xr.Dataset,
    *,
    variables: Sequence[str] | None = None,
    split: tuple[str | None, str | None] | None = None,
    scheduler: Any = None,
    workers: int | None = None,
) -> xr.Dataset:
    r"""Computes the mean and standard deviation of each variable and level.

    Arguments:
        ds: A canonical dataset.
        variables: The variables to summarize; all that have a time by default.
        split: The first and last time to take, both included, as for `ds.sel`; either may be
            `None`. A model's statistics are those of its training years.
        scheduler: A Dask client or scheduler address; by default, threads of this process.
        workers: The number of threads.

    Returns:
        A dataset whose variables have dimensions `(statistic, [level])`, with `statistic` being
        `["mean", "std"]`, in double precision.

    Example:
        >>> stats = compute(open_store("era5.zarr"), split=("1993", "2019"))
        >>> stats["temperature"].sel(statistic="std", level=500)
    """
    import xarray as xr

    ds = select(ds, variables, split)
    names = [str(name) for name in ds.data_vars]
    moments = reduce_blocks(
        partial(_block, ds),
        _merge,
        time_blocks(ds),
        scheduler=scheduler,
        workers=workers,
        description="statistics",
    )

    data = {}
    for name in names:
        n, mean, squares = moments[name]
        std = np.sqrt(squares / np.maximum(n, 1))
        levels = ds["level"].values if "level" in ds[name].dims else None
        _validate(name, levels, n, mean, std)
        values = np.stack([mean, std])
        dims = ("statistic", "level") if levels is not None else ("statistic",)
        attrs = {k: v for k, v in ds[name].attrs.items() if k in ("long_name", "units")}
        data[name] = (dims, values if levels is not None else values[:, 0], attrs)

    coords: dict[str, Any] = {"statistic": ["mean", "std"]}
    if any("level" in dims for dims, *_ in data.values()):
        coords["level"] = ds["level"].variable
    return xr.Dataset(
        data,
        coords,
        {
            **KIND.attrs,
            "title": "mean and standard deviation over all grid points and hours",
            "hours": ds.sizes["time"],
            "first_time": str(ds["time"].values.min().astype("datetime64[h]")),
            "last_time": str(ds["time"].values.max().astype("datetime64[h]")),
        },
    )


def save(stats: xr.Dataset, path: str | Path) -> Path:
    r"""Writes statistics to a NetCDF file, which may replace other statistics but nothing else."""
    return netcdf.save(stats, path, KIND)


def load(path: str | Path) -> xr.Dataset:
    r"""Reads statistics from a file written by :func:`save`, or the authors' Zarr store.

    Both have, for each variable, dimensions `statistic` and, if it has levels, `level`, in any
    order.
    """
    stats = netcdf.load(path, KIND)
    found = set(np.atleast_1d(stats["statistic"].values)) if "statistic" in stats.coords else set()
    names = [str(name) for name, var in stats.data_vars.items() if "statistic" in var.dims]
    if not {"mean", "std"} <= found or not names:
        raise StoreError(
            f"{str(path)!r} holds no statistics: expected variables with a dimension 'statistic' "
            f"containing 'mean' and 'std', found dimensions {dict(stats.sizes)} and statistics "
            f"{sorted(map(str, found))}; {KIND.remedy}"
        )
    stats = stats[names].sel(statistic=["mean", "std"])
    if "level" in stats.dims:
        stats = stats.sortby("level")
        stats = stats.assign_coords(level=stats["level"].values.astype(int))
    stats = stats.transpose("statistic", ...)
    for name in names:
        if extra := set(stats[name].dims) - {"statistic", "level"}:
            raise StoreError(
                f"statistics of {name!r} in {str(path)!r} depend on {sorted(map(str, extra))}; "
                f"expected one mean and std for each level only; {KIND.remedy}"
            )
        mean, std = stats[name].values.astype(np.float64)
        levels = stats["level"].values if "level" in stats[name].dims else None
        _validate(name, levels, np.ones(np.size(mean)), np.atleast_1d(mean), np.atleast_1d(std))
    return stats.astype(np.float64)


def select(
    ds: xr.Dataset,
    variables: Sequence[str] | None,
    split: tuple[str | None, str | None] | None,
) -> xr.Dataset:
    r"""The part of a dataset to summarize: variables with a time, and the hours of the split."""
    if "member" in ds.dims:
        raise DataError(
            f"the dataset has {ds.sizes['member']} members; take one, for example "
            f"ds.isel(member=0), or put them one after another in time"
        )
    present = [str(name) for name, var in ds.data_vars.items() if "time" in var.dims]
    if variables is None:
        # A public store has variables Appa does not know: they cost a read and serve nobody.
        variables = [name for name in present if name in VARIABLES] or present
    for name in variables:
        if name not in present:
            raise DataError(f"the store has no variable {name!r}{nearest(name, present)}")
    return _period(ds[list(variables)], *(split or (None, None)))


def _period(ds: xr.Dataset, start: str | None, end: str | None) -> xr.Dataset:
    r"""The hours from start to end, both included: "2019" ends with its last hour."""
    import pandas as pd

    index = pd.DatetimeIndex(ds["time"].values if "time" in ds.dims else [])
    if not len(index):
        raise DataError("no hours to summarize: the store has none; is it the right store?")
    try:
        if index.is_monotonic_increasing:
            hours = index.slice_indexer(start, end)
        else:
            line = pd.Series(np.arange(len(index)), index).sort_index()
            hours = np.sort(line.loc[start:end].to_numpy())
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{start!r} to {end!r} is no period: {error}; write dates as 1993, 1993-01 or "
            f"1993-01-01T00"
        ) from error
    ds = ds.isel(time=hours)
    if not ds.sizes["time"]:
        raise DataError(
            f"no hours from {start} to {end}: the store has {len(index)} from "
            f"{index.min():%Y-%m-%dT%H} to {index.max():%Y-%m-%dT%H}; choose a period it covers"
        )
    return ds


def _block(ds: xr.Dataset, part: tuple[int, int]) -> dict[str, Moments]:
    r"""Moments of a block of hours."""
    moments = {}
    for name in map(str, ds.data_vars):
        x = read(ds, name, *part)
        columns = [_moments(x[:, k]) for k in range(x.shape[1])]
        for k, (_, mean, _) in enumerate(columns):
            if not np.isfinite(mean):
                raise _infinite(ds, name, k, part[0], x[:, k])
        n, mean, squares = np.array(columns, dtype=np.float64).T
        moments[name] = (n, mean, squares)
    return moments


def _moments(x: np.ndarray) -> tuple[int, float, float]:
    r"""Count, mean and squared deviations of the defined values; NaN where one is infinite."""
    x = x.astype(np.float64).reshape(-1)
    total = x.sum()
    if not np.isfinite(total):
        if np.isinf(x).any():
            return x.size, np.nan, np.nan
        x = x[~np.isnan(x)]
        total = x.sum()
    if x.size == 0:
        return 0, 0.0, 0.0
    mean = total / x.size
    x -= mean
    rest = x.sum()  # what rounding left in the mean
    return x.size, mean + rest / x.size, max(float(x @ x) - rest * rest / x.size, 0.0)


def _merge(parts: list[dict[str, Moments]]) -> dict[str, Moments]:
    merged = dict(parts[0])
    for part in parts[1:]:
        for name, (n_b, mean_b, squares_b) in part.items():
            n_a, mean_a, squares_a = merged[name]
            n = n_a + n_b
            share = n_b / np.maximum(n, 1)
            delta = mean_b - mean_a
            merged[name] = (
                n,
                mean_a + share * delta,
                squares_a + squares_b + n_a * share * delta**2,
            )
    return merged


def _infinite(ds: xr.Dataset, name: str, k: int, start: int, x: np.ndarray) -> DataError:
    hour = int(np.isinf(x).reshape(len(x), -1).any(-1).argmax())
    when = ds["time"].values[start + hour].astype("datetime64[h]")
    levels = ds["level"].values if "level" in ds[name].dims else None
    return DataError(
        f"{_where(name, levels, k)} is infinite at {np.isinf(x[hour]).sum()} points at {when}; "
        f"find all faults with: appa data check STORE"
    )


def _validate(
    name: str, levels: np.ndarray | None, n: np.ndarray, mean: np.ndarray, std: np.ndarray
) -> None:
    r"""Raises unless every level has a finite mean and a positive standard deviation."""
    for k in range(len(n)):
        where = _where(name, levels, k)
        if n[k] == 0 or not np.isfinite(mean[k]) or not np.isfinite(std[k]):
            raise DataError(
                f"{where} has no defined values, so no statistics; leave the variable or level "
                f"out, or find what is wrong with: appa data check STORE"
            )
        # Below what single precision resolves, a deviation is rounding.
        if std[k] <= 1e-10 * abs(mean[k]):
            raise DataError(
                f"{where} is the constant {mean[k]:g}: it cannot be standardized; leave the "
                f"variable or level out"
            )


def _where(name: str, levels: np.ndarray | None, k: int) -> str:
    return name if levels is None else f"{name} at {int(levels[k])} hPa"
