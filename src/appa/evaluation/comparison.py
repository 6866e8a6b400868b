r"""Differences between two runs, and which of them are real.

Scores of neighbouring hours are not independent, so that hours are resampled in blocks of days,
the same for both runs: what makes a day hard is common to both and cancels. Of forecasts, the dates
they were issued at are the blocks, and each lead time has its interval; of analyses in several
runs, the runs. From :math:`B` samples
of :math:`n` blocks with replacement, each with its means pooled and its scores taken anew, the
interval of the difference is

.. math:: [Q(\alpha'), Q(1 - \alpha')] , \qquad
    \alpha' = \Phi\left( -\sqrt{\tfrac{n}{n - 1}} \; t_{n - 1}(1 - \tfrac{\alpha}{2}) \right)

with :math:`Q` the quantiles of the samples, widened for few blocks as Student's
:math:`t` widens a normal interval (Hesterberg, 2015). A difference is *real* where its interval
excludes 0; of differences that are not, 7.5 % are found so from 6 blocks, 6.7 % from 10 and 5.7 %
from 20, where 5 % are meant to. With fewer than 6 blocks none is: the signs of 5 differences agree
by chance in :math:`2 / 2^5`, more than one case in twenty. Weather remembers more than a day; where
there are weeks, take longer blocks. Of many differences some are real by chance: :func:`by_chance`
says how many.

That a difference is not real is no proof that there is none. Whether a run is as good is asked the
other way round (:func:`no_worse`): it is *no worse* by a margin where the relative difference is
below it with confidence :math:`1 - \alpha`, which is the upper end of an interval of
:math:`1 - 2 \alpha`, from the same samples, and *worse* where the lower end is above it. Of runs
that are worse by the margin exactly, 6 % are called no worse from 6 blocks, and 5 % from 12 and 20.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from ..errors import DataError
from .ensembles import STATISTICS
from .scores import metrics, pool

__all__ = ["FEWEST", "by_chance", "compare", "no_worse", "resampled"]

FEWEST = 6  # blocks
COMPARED = ("skill", "crps", "ratio")


def compare(
    a: xr.Dataset,
    b: xr.Dataset,
    *,
    days: int = 1,
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> xr.Dataset:
    r"""Compares two runs over the hours, regions and channels that both have.

    Arguments:
        a, b: Their means of statistics, see :func:`appa.evaluation.ensembles.averages`, or
            :func:`appa.evaluation.forecasts.run_averages` for several runs.
        days: The days of a block; of several runs, those within which they start.
        resamples: The number of samples :math:`B`.
        confidence: The confidence :math:`1 - \alpha` of intervals.
        seed: The seed.

    Returns:
        For skill, CRPS and ratio, with dimensions `(region, [lead_time,] channel)`: `<score>_a`,
        `<score>_b`, `<score>_difference` (b − a), `<score>_low` and `<score>_high`, the ends of its
        interval, `<score>_tested`, whether it could be real, and `<score>_real`;
        `<score>_relative` (b / a − 1), NaN where a is 0, with `<score>_relative_low` and
        `<score>_relative_high`, the ends of an interval of its own: what is hard is in a, too. The
        ends are NaN with fewer than two blocks. `<score>_least` and `<score>_most`: what the
        relative difference exceeds, and is below, with this confidence each; NaN with too few
        blocks to tell, see :func:`no_worse`.
    """
    if days < 1:
        raise DataError(f"a block has 1 day or more, found days={days}")
    keys = a["crps"].dims
    if set(keys) != set(b["crps"].dims):
        raise DataError(
            f"one run has {', '.join(map(str, keys))}, the other "
            f"{', '.join(map(str, b['crps'].dims))}: forecasts are compared with forecasts"
        )
    if any(not set(a[key].values) & set(b[key].values) for key in keys):
        what = "dates, lead times" if "init_time" in keys else "hours"
        raise DataError(f"the two runs have no {what}, regions or channels in common to compare")
    a, b = xr.align(a, b, join="inner")
    dim = "init_time" if "init_time" in keys else "time"
    # pairs only: a date may lack a lead time, or be undefined, in one of the two
    both = (
        ((a["weight"] > 0) & (b["weight"] > 0))
        .transpose(dim, ...)
        .drop_vars("start", errors="ignore")
    )
    there = both.values.reshape(both.sizes[dim], -1).any(axis=1)
    if not there.any():
        raise DataError("the two runs are nowhere defined at the same hours; nothing to compare")
    a, b = (run.assign(weight=run["weight"].where(both, 0.0)).isel({dim: there}) for run in (a, b))

    label = _label(a, b, dim)
    day = label.astype("datetime64[D]").astype(np.int64)
    _, block = np.unique((day - day.min()) // days, return_inverse=True)
    n = int(block.max()) + 1
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), resamples)
    filled = _filled(a["weight"], dim, block)
    whole = [metrics(pool(run, dim)) for run in (a, b)]
    drawn = [metrics(resampled(run, dim, block, counts)) for run in (a, b)]

    tails = _tail(n, 0.5 + confidence / 2), _tail(n, confidence)
    data: dict[str, Any] = {}
    for name in COMPARED:
        values, samples = ([run[name] for run in runs] for runs in (whole, drawn))
        data[f"{name}_a"], data[f"{name}_b"] = values
        data[f"{name}_difference"] = values[1] - values[0]
        data[f"{name}_relative"] = _relative(*values)
        low, high = _ends((samples[1] - samples[0]).values, tails[0])
        first, last, *sides = _ends(_relative(*samples).values, *tails)
        dims = samples[0].dims[1:]
        data[f"{name}_low"], data[f"{name}_high"] = (dims, low), (dims, high)
        data[f"{name}_relative_low"], data[f"{name}_relative_high"] = (dims, first), (dims, last)
        for key, side in zip(("least", "most"), sides, strict=True):
            data[f"{name}_{key}"] = (dims, np.where(filled >= FEWEST, side, np.nan))
        real = (low > 0) | (high < 0)
        # of runs that are the same there is nothing to test
        tested = ((low < high) | real) & (filled >= FEWEST)
        data[f"{name}_tested"], data[f"{name}_real"] = (dims, tested), (dims, real & tested)
    about = {
        "blocks": n,
        "dates": len(np.unique(label)),
        "days": days,
        "resamples": resamples,
        "confidence": confidence,
    }
    return xr.Dataset(data).assign_attrs(about, seed=seed)


def by_chance(found: xr.Dataset, scores: Sequence[str] = ("skill", "crps")) -> str:
    r"""About how many differences would be real if none was: :math:`\alpha` of those tested.

    Arguments:
        found: What :func:`compare` found, or a part of it.
        scores: The scores that are told of.
    """
    tested = sum(int(found[f"{score}_tested"].sum()) for score in scores)
    count = (1 - found.attrs["confidence"]) * tested
    return f"{count:.0f}" if count >= 1 else f"{count:.1g}"


def no_worse(found: xr.Dataset, margin: float = 2.0, score: str = "crps") -> xr.DataArray:
    r"""Whether run b is as good as run a, but for a margin.

    Arguments:
        found: What :func:`compare` found, or a part of it.
        margin: How much worse counts as nothing, in percent of a's score.
        score: The score, one that is better the smaller.

    Returns:
        "no worse" where the relative difference is below the margin with the confidence of `found`,
        "worse" where it is above, and "not told" where it may be either or blocks are too few.
    """
    if not 0 <= margin < np.inf:
        raise DataError(f"a margin is a share in percent, 0 or more, found {margin:g}")
    least, most = found[f"{score}_least"], found[f"{score}_most"]
    told = xr.where(most < margin / 100, "no worse", "not told")
    return xr.where(least > margin / 100, "worse", told)


def _relative(a: xr.DataArray, b: xr.DataArray) -> xr.DataArray:
    return b / a.where(a > 0) - 1


def _tail(n: int, level: float) -> float:
    r"""The :math:`\alpha'` of `n` blocks, beyond a quantile of Student's :math:`t`."""
    from scipy import stats

    if n < 2:
        return np.nan
    return float(stats.norm.cdf(-np.sqrt(n / (n - 1)) * stats.t.ppf(level, n - 1)))


def _ends(samples: np.ndarray, *tails: float) -> np.ndarray:
    r"""The quantiles :math:`\alpha'` and :math:`1 - \alpha'` of samples for each tail, or NaN
    without."""
    if np.isnan(tails).any():
        return np.full((2 * len(tails), *samples.shape[1:]), np.nan)
    return np.quantile(samples, [q for tail in tails for q in (tail, 1 - tail)], axis=0)


def _label(a: xr.Dataset, b: xr.Dataset, dim: str) -> np.ndarray:
    r"""What tells the blocks of two runs apart, the same whichever comes first: the starts of the
    one that is of fewer runs, as the hours of a run are not independent, or else hours or dates."""
    starts = [run["start"].values for run in (a, b) if "start" in run.coords]
    return min(starts or [a[dim].values], key=lambda s: (len(np.unique(s)), s.tolist()))


def _filled(weight: xr.DataArray, dim: str, block: np.ndarray) -> np.ndarray:
    r"""The number of blocks that are not empty, by region, lead time and channel."""
    there = weight.transpose(dim, "region", ..., "channel").values > 0
    found = np.zeros((int(block.max()) + 1, *there.shape[1:]), bool)
    np.logical_or.at(found, block, there)
    return found.sum(axis=0)


def resampled(means: xr.Dataset, dim: str, block: np.ndarray, counts: np.ndarray) -> xr.Dataset:
    r"""The pooled means of samples of blocks, with dimensions `(sample, region, [lead_time,]
    channel)`."""
    means = means.transpose(dim, "region", ..., "channel")
    weight = means["weight"].values
    counts = counts.astype(np.float64)

    def total(values: np.ndarray) -> np.ndarray:
        blocks = np.zeros((counts.shape[1], *values.shape[1:]))
        np.add.at(blocks, block, values)
        return np.tensordot(counts, blocks, 1)

    weights = total(weight)
    dims, found = ("sample", *means["weight"].dims[1:]), {}
    for name in STATISTICS:
        value = means[name].values
        with np.errstate(invalid="ignore"):
            found[name] = (dims, total(np.where(weight > 0, value, 0.0) * weight) / weights)
    found["share"] = found["weight"] = (dims, weights)
    coords = {k: v for k, v in means.coords.items() if dim not in v.dims}
    return xr.Dataset(found, coords, means.attrs)
