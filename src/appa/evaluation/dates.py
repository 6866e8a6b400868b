r"""Scores by lead time with intervals, of one system from each of several dates.

Runs begin at dates that are far enough apart to be independent. At each lead time the means of
their statistics are pooled, and the scores follow; intervals are those of a bootstrap over the
dates that have that lead time and channel, with the quantiles widened for few
(:mod:`appa.evaluation.bootstrap`). A date is drawn with all of its hours. Intervals of two curves
may overlap where their difference is real: that is for
:func:`~appa.evaluation.comparison.compare`, which pairs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from ..errors import DataError
from .bootstrap import block_sums, draws, ends, samples
from .forecasts import HOUR, by_lead
from .scores import metrics, pool, scores_from

__all__ = ["over_dates"]

SCORES = ("skill", "spread", "crps", "ratio")


def over_dates(
    means: xr.Dataset | Sequence[xr.Dataset],
    starts: Sequence[Any] | None = None,
    *,
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> xr.Dataset:
    r"""Pools runs from several dates by lead time.

    Arguments:
        means: The means of statistics of forecasts, see
            :func:`appa.evaluation.forecasts.run_averages`, or those of each run, see
            :func:`appa.evaluation.ensembles.averages`.
        starts: The last hour that was known to each run, by default the one before its first.
        resamples: The number of samples.
        confidence: The confidence of intervals.
        seed: The seed.

    Returns:
        `skill`, `spread`, `crps` and `ratio` with dimensions `(region, lead_time, channel)`, and
        the ends of their intervals, `<score>_low` and `<score>_high`, where there are two dates or
        more.

    Example:
        >>> over_dates([averages(run, truth) for run in forecasts])["crps"].sel(lead_time=24)
    """
    joined = means if isinstance(means, xr.Dataset) else _joined(means, starts)
    if "init_time" not in joined.dims:
        raise DataError(
            f"means by {', '.join(map(str, joined.dims))} are not of several dates; give those of "
            "each run"
        )
    scores, n = metrics(pool(joined, "init_time")), joined.sizes["init_time"]
    if n > 1:
        scores = scores.assign(_intervals(joined, scores["crps"], resamples, confidence, seed))
    about = {"dates": n, "resamples": resamples, "confidence": confidence}
    return scores.assign_attrs(about, seed=seed).transpose("region", "lead_time", "channel", ...)


def _joined(means: Sequence[xr.Dataset], starts: Sequence[Any] | None) -> xr.Dataset:
    r"""The means of runs by date and lead time, at lead times that all have."""
    if not means:
        raise DataError("there is no run to pool; give one or more")
    if starts is None:
        starts = [part["time"].values.min() - HOUR for part in means]
    if len(starts) != len(means):
        raise DataError(f"found {len(starts)} starts of {len(means)} runs; give one for each")
    if len({int(part.attrs["members"]) for part in means}) > 1:
        counts = ", ".join(str(part.attrs["members"]) for part in means)
        raise DataError(f"runs have {counts} members; pool those with as many")
    parts = [by_lead(part, start) for part, start in zip(means, starts, strict=True)]
    options: Any = {"coords": "minimal", "compat": "override", "combine_attrs": "override"}
    try:
        joined = xr.concat(parts, "init_time", join="inner", **options)
    except ValueError as error:
        raise DataError(f"the runs do not fit together ({error}); give runs of one kind") from None
    if joined.sizes["lead_time"] == 0:
        raise DataError("the runs have no lead time in common; give runs that begin alike")
    return joined


def _intervals(
    joined: xr.Dataset, like: xr.DataArray, resamples: int, confidence: float, seed: int
) -> dict[str, xr.DataArray]:
    r"""The ends of the intervals of each score, from the dates that a cell has."""
    like = like.transpose("region", "lead_time", "channel")
    sums = block_sums(
        joined.transpose("region", "init_time", "lead_time", "channel"),
        "init_time",
        np.arange(joined.sizes["init_time"]),
    )
    filled = sums["weight"] > 0
    count = filled.sum(axis=0)
    found = {score: np.full((2, like.size), np.nan) for score in SCORES}
    for cells, counts in draws(filled, count, resamples, seed):
        drawn = scores_from(samples(sums, cells, counts), int(joined.attrs["members"]))
        for score in SCORES:
            found[score][:, cells] = ends(drawn[score], count[cells[0]], 0.5 + confidence / 2)
    return {
        f"{score}_{end}": like.copy(data=values.reshape(like.shape)).drop_attrs()
        for score, pair in found.items()
        for end, values in zip(("low", "high"), pair, strict=True)
    }
