r"""Scores: how far an estimate is from the truth, and whether it knows.

With :math:`\langle \cdot \rangle` the mean over hours and grid points at which both are defined,
the latter by area, and the statistics of :mod:`appa.evaluation.ensembles` at a point,

.. math::
    \text{skill} & = \sqrt{\langle \text{squared error} \rangle} \\
    \text{spread} & = \sqrt{\langle \text{variance} \rangle} \\
    \text{ratio} & = \sqrt{\tfrac{M + 1}{M}} \; \text{spread} / \text{skill} \\
    \text{CRPS} & = \langle \text{CRPS} \rangle .

Skill is the root-mean-square error of the ensemble's mean. A ratio of 1 is that of an ensemble
drawn as the truth is, below 1 it is too sure of itself. Roots are taken last: the skill of many
hours is not the mean of theirs. Divided by the variable's standard deviation, scores are
standardized.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from ..data.clock import as_datetime64
from ..data.grids import Grid
from ..errors import DataError
from .ensembles import STATISTICS, averages

__all__ = ["evaluate", "metrics", "pool", "rmse", "standardized_rmse"]

DIMENSIONS = ("time", "latitude", "longitude")
DIMENSIONAL = {
    "skill": "root-mean-square error of the ensemble mean",
    "spread": "root of the mean variance of the ensemble",
    "crps": "continuous ranked probability score, fair",
}


def evaluate(
    estimate: xr.Dataset | str | Path,
    truth: Any,
    *,
    variables: Sequence[str] | None = None,
    regions: Sequence[str] = ("global",),
    statistics: xr.Dataset | None = None,
    by: str = "time",
    start: Any = None,
    scheduler: Any = None,
    workers: int | None = None,
) -> xr.Dataset:
    r"""Scores an estimate against the truth, a block of hours at a time.

    Arguments:
        estimate: An ensemble, or a single state an hour, as a dataset or its path; with
            `<variable>_std` beside a variable, normal distributions.
        truth: The truth, a dataset, or a store that :func:`appa.open_store` opens.
        variables: Variables, or single channels such as `"z500"`; by default all that both have.
        regions: Of `global`, `northern-extratropics`, `southern-extratropics`, `tropics`, `land`
            and `ocean`.
        statistics: Standard deviations of the variables, for standardized scores too.
        by: `"time"` for the scores of each hour, `"all"` for those of all hours together.
        start: The last hour that was known, of a forecast: hours are then told by `lead_time` too.
        scheduler, workers: A Dask client or the address of a scheduler, and the number of threads.

    Returns:
        `skill`, `spread`, `ratio` and `crps`, with dimensions `(region, [time], channel)`, in the
        coordinate `units`, and `share`, the part of the region's area they are of.

    Example:
        >>> scores = evaluate(analysis, "planet", regions=("global", "tropics"))
        >>> scores["crps"].sel(channel="z500", region="global")
    """
    if by not in ("time", "all"):
        raise DataError(f"found by={by!r}, expected 'time' or 'all'")
    if isinstance(estimate, str | Path):
        from ..tasks.analyses import open_analysis

        estimate = open_analysis(estimate)
    means = averages(
        estimate,
        truth,
        variables=variables,
        regions=regions,
        scheduler=scheduler,
        workers=workers,
    )
    scores = metrics(means if by == "time" else pool(means), statistics)
    if start is not None and by == "time":
        lead = (means["time"].values - as_datetime64(start)) / np.timedelta64(1, "h")
        attrs = {"units": "h", "long_name": "hours since the last that was known"}
        scores = scores.assign_coords(lead_time=("time", lead, attrs))
    return scores


def pool(means: xr.Dataset, dim: str = "time") -> xr.Dataset:
    r"""Joins means along a dimension, each with its weight."""
    weight = means["weight"]
    total = weight.sum(dim)
    found = {}
    for name in STATISTICS:
        value = means[name].where(weight > 0, 0.0)  # what has no weight is undefined
        found[name] = (value * weight).sum(dim, skipna=False) / total.where(total > 0)
    found["weight"], found["share"] = total, means["share"].mean(dim)
    return xr.Dataset(found).assign_attrs(means.attrs)


def metrics(means: xr.Dataset, statistics: xr.Dataset | None = None) -> xr.Dataset:
    r"""The scores that follow from means of statistics."""
    m = int(means.attrs["members"])
    found = {
        "skill": np.sqrt(means["squared_error"]),
        "spread": np.sqrt(means["variance"]),
        "crps": means["crps"],
    }
    # of a normal distribution there are, so to say, infinitely many members
    correction = np.sqrt((m + 1) / m) if m else 1.0
    skill = found["skill"].where(found["skill"] > 0)
    scores = {
        name: value.assign_attrs(long_name=DIMENSIONAL[name]) for name, value in found.items()
    }
    told = "spread over skill, corrected for the number of members"
    scores["ratio"] = (correction * found["spread"] / skill).assign_attrs(long_name=told, units="1")
    told = "share of the region's area that is scored"
    scores["share"] = means["share"].assign_attrs(long_name=told, units="1")
    if statistics is not None:
        std = xr.DataArray(_deviations(means, statistics), {"channel": means["channel"]})
        for name, value in found.items():
            attrs = {"long_name": f"{DIMENSIONAL[name]}, standardized", "units": "1"}
            scores[f"{name}_standardized"] = (value / std).assign_attrs(attrs)
    ds = xr.Dataset(scores).assign_attrs(means.attrs)
    ds["channel"].attrs["long_name"] = "variable and level"
    ds["level"].attrs["units"] = "hPa"
    return ds


def _deviations(means: xr.Dataset, statistics: xr.Dataset) -> list[float]:
    r"""The standard deviation of each channel."""
    found = []
    for name, level in zip(means["variable"].values, means["level"].values, strict=True):
        if name not in statistics:
            raise DataError(f"the statistics have no {name}; compute them: appa data statistics")
        std = statistics[name].sel(statistic="std")
        found.append(float(std if np.isnan(level) else std.sel(level=level)))
    return found


def rmse(
    estimate: xr.DataArray, truth: xr.DataArray, dims: Sequence[str] = DIMENSIONS
) -> xr.DataArray:
    r"""Root-mean-square error by area, in double precision.

    Arguments:
        estimate: The estimate, with dimensions in any order.
        truth: The truth, at the same hours and places.
        dims: The dimensions averaged over; others, such as levels and members, stay.

    Returns:
        The error, NaN where nothing is defined in both.
    """

    try:
        estimate, truth = xr.align(estimate, truth, join="exact")
    except ValueError as error:
        raise DataError(
            f"estimate and truth are not of the same hours and places: {error}; select those "
            "both have, for example with xarray.align(estimate, truth, join='inner')"
        ) from None
    grid = Grid.from_coordinates(truth["latitude"].values, truth["longitude"].values)
    weights = xr.DataArray(grid.weights, {"latitude": truth["latitude"]})
    square = (estimate.astype(np.float64) - truth.astype(np.float64)) ** 2
    # the weighted mean leaves NaN out of both sums
    return square.weighted(weights).mean([dim for dim in dims if dim in square.dims]) ** 0.5


def standardized_rmse(
    estimate: xr.DataArray,
    truth: xr.DataArray,
    deviation: xr.DataArray | float,
    dims: Sequence[str] = DIMENSIONS,
) -> xr.DataArray:
    r"""Root-mean-square error by area, in standard deviations.

    Arguments:
        estimate, truth, dims: As in :func:`rmse`.
        deviation: The variable's standard deviation, by level where it has levels.

    Example:
        >>> deviation = statistics["geopotential"].sel(statistic="std")
        >>> standardized_rmse(analysis["geopotential"], truth["geopotential"], deviation)
    """

    return rmse(estimate, truth, dims) / deviation
