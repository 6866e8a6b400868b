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

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from ..data.grids import Grid
from ..errors import DataError
from .ensembles import STATISTICS, averages

__all__ = ["evaluate", "metrics", "pool", "rmse", "scores_from", "standardized_rmse"]

DIMENSIONS = ("time", "latitude", "longitude")
DIMENSIONAL = {
    "skill": "root-mean-square error of the ensemble mean",
    "spread": "root of the mean variance of the ensemble",
    "crps": "continuous ranked probability score, fair",
}


def evaluate(
    estimate: Any,
    truth: Any,
    *,
    variables: Sequence[str] | None = None,
    regions: Sequence[str] = ("global",),
    statistics: xr.Dataset | None = None,
    by: str | None = None,
    start: Any = None,
    scheduler: Any = None,
    workers: int | None = None,
) -> xr.Dataset:
    r"""Scores an estimate against the truth, a part at a time.

    Arguments:
        estimate: An ensemble, or a single state an hour, as a dataset or its path; with
            `<variable>_std` beside a variable, normal distributions. Several runs as a list or a
            pattern, see :func:`~appa.evaluation.forecasts.open_runs`, are pooled.
        truth: The truth, a dataset, or a store that :func:`appa.open_store` opens.
        variables: Variables, or single channels such as `"z500"`; by default all that both have.
        regions: Of `global`, `northern-hemisphere`, `southern-hemisphere`,
            `northern-extratropics`, `southern-extratropics`, `tropics`, `land` and `ocean`.
        statistics: Standard deviations of the variables, for standardized scores too.
        by: `"time"` for the scores of each hour, `"lead_time"` for those of forecasts by the hours
            since they were issued, `"all"` for those of all hours together. By default
            `"lead_time"` for several forecasts, `"time"` otherwise.
        start: The last hour that was known, of one forecast that does not say so itself. Hours are
            then told by `lead_time` too.
        scheduler, workers: A Dask client or the address of a scheduler, and the number of threads.
            Without a scheduler, the client that is active, if any.

    Returns:
        `skill`, `spread`, `ratio` and `crps`, with dimensions `(region, [time | lead_time],
        channel)`, in the coordinate `units`, and `share`, the part of the region's area they are
        of. Channels have the coordinates `variable` and `level`. Of several forecasts by time,
        dimensions are `(region, init_time, lead_time, channel)`.

    Example:
        >>> scores = evaluate(analysis, "planet", regions=("global", "tropics"))
        >>> scores["crps"].sel(channel="z500", region="global")
        >>> scores = evaluate("forecasts/*.zarr", "planet")
        >>> scores["skill"].sel(lead_time=24, region="global")
    """
    from .forecasts import by_lead, issued, open_runs, run_averages

    if by not in (None, "time", "lead_time", "all"):
        raise DataError(f"found by={by!r}, expected 'time', 'lead_time' or 'all'")
    options: dict[str, Any] = {"variables": variables, "regions": regions}
    options |= {"scheduler": scheduler, "workers": workers}
    runs = open_runs(estimate)
    if len(runs) > 1:
        if start is not None:
            raise DataError(f"found one start, {start}, for {len(runs)} runs: they must say theirs")
        means = run_averages(runs, truth, **options)
        forecasts = "lead_time" in means.dims
        if by == "lead_time" and not forecasts:
            raise DataError("the runs do not say when they were issued: they have no lead times")
        if by == "all":
            return metrics(
                pool(means, ("init_time", "lead_time") if forecasts else "time"), statistics
            )
        if by != "time" and forecasts:
            means = pool(means, "init_time")
        return metrics(means, statistics)

    means = averages(runs[0], truth, **options)
    start = issued(runs[0]) if start is None else start
    if by == "lead_time":
        if start is None:
            raise DataError(
                "the estimate does not say when it was issued: give start, the last known hour"
            )
        return metrics(pool(by_lead(means, start), "init_time"), statistics)
    scores = metrics(pool(means) if by == "all" else means, statistics)
    if start is not None and by != "all":
        leads = by_lead(means, start)["lead_time"]
        scores = scores.assign_coords(lead_time=("time", leads.values, leads.attrs))
    return scores


def pool(means: xr.Dataset, dim: str | Sequence[str] = "time") -> xr.Dataset:
    r"""Joins means along dimensions, each with its weight."""
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
    found = scores_from(means, int(means.attrs["members"]))
    ratio = found.pop("ratio")
    scores = {
        name: value.assign_attrs(long_name=DIMENSIONAL[name]) for name, value in found.items()
    }
    told = "spread over skill, corrected for the number of members"
    scores["ratio"] = ratio.assign_attrs(long_name=told, units="1")
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


def scores_from(means: Mapping[Any, Any], members: int) -> dict[str, Any]:
    r"""Skill, spread, CRPS and ratio from means of statistics, as arrays of any kind."""
    skill, spread = np.sqrt(means["squared_error"]), np.sqrt(means["variance"])
    # of a normal distribution there are, so to say, infinitely many members
    correction = np.sqrt((members + 1) / members) if members else 1.0
    ratio = correction * spread / xr.where(skill > 0, skill, np.nan)
    return {"skill": skill, "spread": spread, "crps": means["crps"], "ratio": ratio}


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
