r"""Differences between two runs, and which of them are real.

Scores of neighbouring hours are not independent, so that hours are resampled in blocks of days,
the same for both runs: what makes a day hard is common to both and cancels. Of forecasts, the dates
they were issued at are the blocks, and each lead time has its interval; of analyses in several
runs, the runs. From :math:`B` samples of blocks with replacement, each with its means pooled and
its scores taken anew, follow the quantiles of the difference, widened for few blocks
(:mod:`appa.evaluation.bootstrap`). A difference is *real* where its interval excludes 0; of
differences that are not, 7.5 % are found so from 6 blocks, 6.7 % from 10 and 5.7 % from 20, where
5 % are meant to. With fewer than 6 blocks none is: the signs of 5 differences agree by chance in
:math:`2 / 2^5`, more than one case in twenty. Of many differences some are real by chance:
:func:`by_chance` says how many.

Weather remembers more than a day. Blocks that follow one another count as fewer, by the correlation
of their differences with those of the next block; where fewer than 3 are left, nothing is said. Of
30 days with a correlation of 0.3, 0.5 and 0.7, 6, 7 and 7 % of differences that are none are found
real, and of 8 days, which tell little of their correlation, 9, 13 and 17 %; taken for independent,
it would be 15, 26 and 42 % of both.

That a difference is not real is no proof that there is none. Whether a run is as good is asked the
other way round (:func:`no_worse`): it is *no worse* by a margin where the relative difference is
below it with confidence :math:`1 - \alpha`, which is the upper end of an interval of
:math:`1 - 2 \alpha`, from the same samples, and *worse* where the lower end is above it. Of runs
that are worse by the margin exactly, 6 % are called no worse from 6 blocks, and 5 % from 12 and 20.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from ..errors import DataError
from .bootstrap import FEWEST, block_sums, draws, ends, independent, places, samples
from .scores import metrics, pool, scores_from

__all__ = ["FEWEST", "LEFT", "alike", "by_chance", "compare", "no_worse"]

LEFT = 3  # independent ones that they count as at least
SAME = 1e-6  # of weights of the same points, which are added up by parts
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
        blocks to tell, see :func:`no_worse`. `filled`, the blocks that there are,
        `independent`, as how many they count where they follow one another, and `enough`, whether
        these are enough to tell.
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
    both = _paired(a["weight"], b["weight"]).transpose(dim, ...)
    there = both.values.reshape(both.sizes[dim], -1).any(axis=1)
    if not there.any():
        raise DataError(
            "the two runs are nowhere defined at the same points and hours; nothing to compare"
        )
    a, b = (run.assign(weight=run["weight"].where(both, 0.0)).isel({dim: there}) for run in (a, b))

    label = _label(a, b, dim)
    place, block = places(label, days)
    sums = [block_sums(run, dim, block) for run in (a, b)]
    filled = sums[0]["weight"] > 0
    counted = _counted(sums, filled, place)
    whole = [metrics(pool(run, dim)).transpose("region", ..., "channel") for run in (a, b)]
    dims, shape = whole[0]["crps"].dims, whole[0]["crps"].shape
    drawn = _drawn(sums, filled, counted, confidence, (resamples, seed),
                   [int(run.attrs["members"]) for run in (a, b)])  # fmt: skip
    enough = (filled.sum(axis=0) >= FEWEST) & (counted >= LEFT)
    data: dict[str, Any] = {}
    for name in COMPARED:
        values = [run[name] for run in whole]
        data[f"{name}_a"], data[f"{name}_b"] = values
        data[f"{name}_difference"] = values[1] - values[0]
        data[f"{name}_relative"] = _relative(*values)
        low, high, *rest = drawn[name]
        # of runs that are the same there is nothing to test
        real = (low > 0) | (high < 0)
        tested = ((low < high) | real) & enough
        rest[2:] = [np.where(enough, side, np.nan) for side in rest[2:]]
        keys = ("low", "high", "relative_low", "relative_high", "least", "most", "tested", "real")
        for key, value in zip(keys, (low, high, *rest, tested, real & tested), strict=True):
            data[f"{name}_{key}"] = (dims, value.reshape(shape))
    data["filled"] = (dims, filled.sum(axis=0).reshape(shape))
    data["enough"] = (dims, enough.reshape(shape))
    data["independent"] = (dims, counted.reshape(shape))
    about = {
        "blocks": len(place),
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


def alike(found: xr.Dataset) -> str:
    r"""As how many independent blocks those that resemble the next count, in words; nothing where
    all are independent.

    Arguments:
        found: What :func:`compare` found, or a part of it.
    """
    counted, filled = found["independent"].values, found["filled"].values
    if (counted >= filled).all():
        return ""
    low, high = counted[filled > 0].min(), counted.max()
    told = f"{low}" if low == high else f"{low} to {high}"
    return f", which resemble the next and count as {told}"


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


def _paired(a: xr.DataArray, b: xr.DataArray) -> xr.DataArray:
    r"""Where both runs are defined, at the same points: a date may lack a lead time in one of the
    two, or a run may be NaN where the other is not, and then their means are of different places.
    Such are left out, with a warning."""
    a, b = (w.drop_vars("start", errors="ignore") for w in (a, b))
    both = (a > 0) & (b > 0)
    apart = both & (abs(a - b) > SAME * xr.where(a > b, a, b))
    if apart.any():
        at = {
            dim: int(where[0])
            for dim, where in zip(apart.dims, apart.values.nonzero(), strict=True)
        }
        one, other = float(a.isel(at)), float(b.isel(at))
        less, more = ("A", "B") if one < other else ("B", "A")
        lost = 100 * (1 - min(one, other) / max(one, other))
        warnings.warn(
            f"{int(apart.sum())} of {int(both.sum())} pairs are not of the same points and are "
            f"left out: {less} lacks {lost:.2g} % of the area that {more} has "
            f"{apart['channel'].values[at['channel']]} of; compare runs that have the same points",
            stacklevel=3,
        )
    return both & ~apart


def _relative(a: Any, b: Any) -> Any:
    return b / xr.where(a > 0, a, np.nan) - 1


def _counted(
    sums: Sequence[dict[str, np.ndarray]], filled: np.ndarray, place: np.ndarray
) -> np.ndarray:
    r"""As how many independent blocks those of a cell count, with shape :math:`(C)`: by squared
    errors or by CRPS, whichever are fewer."""
    found = []
    for name in ("squared_error", "crps"):
        a, b = (s[name] / np.where(filled, s["weight"], np.nan) for s in sums)
        found.append(independent((b - a)[..., None], place))
    return np.rint(np.minimum(*found)).astype(np.int64)


def _drawn(
    sums: Sequence[dict[str, np.ndarray]],
    filled: np.ndarray,
    counted: np.ndarray,
    confidence: float,
    how: tuple[int, int],
    members: Sequence[int],
) -> dict[str, np.ndarray]:
    r"""The ends of intervals of each score's difference, of its relative difference, and of the
    latter to one side, with shape :math:`(6, C)`; NaN with fewer than two blocks."""
    found = {name: np.full((6, filled.shape[1]), np.nan) for name in COMPARED}
    for cells, counts in draws(filled, counted, *how):
        m = int(counted[cells[0]])
        a, b = (scores_from(samples(s, cells, counts), k)
                for s, k in zip(sums, members, strict=True))  # fmt: skip
        for name in COMPARED:
            found[name][:2, cells] = ends(b[name] - a[name], m, 0.5 + confidence / 2)
            share = _relative(a[name], b[name])
            found[name][2:, cells] = ends(share, m, 0.5 + confidence / 2, confidence)
    return found


def _label(a: xr.Dataset, b: xr.Dataset, dim: str) -> np.ndarray:
    r"""What tells the blocks of two runs apart, the same whichever comes first: the starts of the
    one that is of fewer runs, as the hours of a run are not independent, or else hours or dates."""
    starts = [run["start"].values for run in (a, b) if "start" in run.coords]
    return min(starts or [a[dim].values], key=lambda s: (len(np.unique(s)), s.tolist()))
