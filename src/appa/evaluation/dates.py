r"""Scores by lead time with intervals, of one system from each of several dates.

Runs begin at dates that are far enough apart to be independent. At each lead time the means of
their statistics are pooled, and the scores follow; intervals are those of a bootstrap over dates,
with the quantiles widened for few as in :mod:`appa.evaluation.comparison`. A date is drawn with all
of its hours. Intervals of two curves may overlap where their difference is real: that is for
:func:`~appa.evaluation.comparison.compare`, which pairs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from ..errors import DataError
from .comparison import resampled
from .forecasts import HOUR, by_lead
from .scores import metrics, pool

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
    from scipy import stats

    joined = means if isinstance(means, xr.Dataset) else _joined(means, starts)
    if "init_time" not in joined.dims:
        raise DataError(
            f"means by {', '.join(map(str, joined.dims))} are not of several dates; give those of "
            "each run"
        )
    scores, n = metrics(pool(joined, "init_time")), joined.sizes["init_time"]
    if n > 1:
        counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), resamples)
        student = stats.t.ppf(0.5 + confidence / 2, n - 1)
        tail = float(stats.norm.cdf(-np.sqrt(n / (n - 1)) * student))
        scores = scores.assign(_intervals(joined, counts, tail))
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


def _intervals(joined: xr.Dataset, counts: np.ndarray, tail: float) -> dict[str, xr.DataArray]:
    r"""The ends of the intervals of each score; samples are held of one lead time."""
    found: list[xr.Dataset] = []
    dates = np.arange(joined.sizes["init_time"])
    for k in range(joined.sizes["lead_time"]):
        at = joined.isel(lead_time=[k])
        drawn = metrics(resampled(at, "init_time", dates, counts))[list(SCORES)]
        ends = drawn.quantile([tail, 1 - tail], "sample", skipna=False)
        parts = zip(
            ("low", "high"), (ends.isel(quantile=i, drop=True) for i in (0, 1)), strict=True
        )
        found.append(xr.merge([p.rename({s: f"{s}_{e}" for s in SCORES}) for e, p in parts]))
    joint = xr.concat(found, "lead_time", coords="minimal", compat="override")
    return {str(name): value for name, value in joint.data_vars.items()}
