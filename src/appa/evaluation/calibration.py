r"""Calibration: whether the truth could be one more member.

Where members :math:`x_1, \dots, x_M` and truth :math:`y` are drawn alike, the rank of the truth,
the number of members below it, is each of :math:`0, \dots, M` with probability
:math:`1 / (M + 1)`, whatever the distribution. Ties, as of precipitation, are broken at random.
Most follows from the frequencies :math:`f_r` of ranks, by area:

* The probability integral transform (PIT) of a truth of rank :math:`r` lies somewhere in
  :math:`[r, r + 1] / (M + 1)`, evenly; histograms of any number of bins share it out.
* The interval between the :math:`k`-th lowest and the :math:`k`-th highest member covers the truth
  where :math:`k \leq r \leq M - k`, with probability :math:`(M + 1 - 2 k) / (M + 1)`. A central
  interval of nominal probability :math:`p` is that of :math:`k = (1 - p) (M + 1) / 2`, rounded,
  1 at least: what is expected of it is told beside what is found. Ten members have no interval of
  90 %; the widest covers 82 %.
* The mean :math:`\langle u \rangle - 1/2` of the PIT above 0 is that of an ensemble too low, and
  :math:`12 \, \langle (u - 1/2)^2 \rangle` above 1 that of one too sure of itself or biased.

Ranks of neighbours and of hours are not independent, and a :math:`\chi^2` test that counts them so
rejects any ensemble. Here days are the sample, or of several runs the days they start on: with
:math:`f_b` the frequencies of block :math:`b` of :math:`n`, of all its hours and points, and
:math:`\omega_b` its share of the weight,

.. math::
    S = \tfrac{n}{n - 1} \sum_b \omega_b^2 \, (f_b - f) (f_b - f)^\top , \qquad
    F = \frac{\| f - \tfrac{1}{M + 1} \|^2}{\operatorname{tr} S}
        \sim F_{\nu, \, \nu (n - 1)} , \qquad
    \nu = \frac{(\operatorname{tr} \Sigma)^2}{\operatorname{tr} \Sigma^2}

after Satterthwaite, with the traces of :math:`\Sigma = \operatorname{E}[S]` estimated without bias.
As many independent ranks as would scatter by as much, :math:`\frac{M}{M + 1} / \operatorname{tr}
S`, are the *effective* ones. Bias and dispersion, which look in one direction each, are tested by
Student's :math:`t_{n - 1}`, and see more with few days. Of calibrated ensembles, these tests reject
4 to 6 % at the level of 5 % where days have many independent ranks; where all points of a day have
nearly the same rank, the worst case, 3, 7 and 8 % (ranks, bias, dispersion) with 6 days, 4, 6 and
6 % with 30. With fewer than 6 blocks nothing is tested. Days that follow one another count as
fewer, :math:`m` for :math:`n`, by the correlation of their frequencies, biases or dispersions
(:mod:`appa.evaluation.bootstrap`): :math:`\tfrac{n}{m - 1}` stands for :math:`\tfrac{n}{n - 1}`,
and :math:`m - 1` for :math:`n - 1` elsewhere. Of 30 days on which members and truth keep a
correlation of 0.5 with the day before, 5, 6 and 8 % are rejected, and of 10 days 12, 13 and 8 %;
taken for independent, it would be 26, 24 and 12 % of both.

*Reliability* asks whether a larger spread goes with a larger error. Points sorted by the spread of
the very members they are scored with would be selected for chance too: small spreads are small
partly by luck, and a calibrated ensemble seems too sure there. Half of the members sort the points,
the other half are scored, and the halves change places. Given the former, the latter and the truth
are still drawn alike, so that both sides agree in expectation,

.. math:: \operatorname{E} \left[ \tfrac{M' + 1}{M'} \operatorname{variance} \right]
    = \operatorname{E} \left[ \text{squared error} \right] , \qquad M' = M / 2 .

Normal distributions in place of members have a PIT of their own, counted in 20 equal bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from ..errors import DataError
from .bootstrap import independent, places
from .comparison import FEWEST
from .ranking import SORTED, rank_counts

__all__ = [
    "INTERVALS",
    "calibration",
    "coverage",
    "frequencies",
    "pit",
    "reliability",
    "uniformity",
    "uniformity_test",
]

INTERVALS = (0.5, 0.8, 0.9)


def frequencies(counts: xr.Dataset, dim: str | None = "time") -> xr.DataArray:
    r"""The frequencies of ranks, of all hours together, or of each with `dim=None`; a flat
    histogram is :math:`1 / (M + 1)` everywhere."""
    count = counts["count"] if dim is None else counts["count"].sum(dim)
    total = count.sum("rank")
    attrs = {"long_name": "frequency of the truth's rank among members", "units": "1"}
    return (count / total.where(total > 0)).assign_attrs(attrs)


def pit(counts: xr.Dataset, bins: int = 10, dim: str | None = "time") -> xr.DataArray:
    r"""The histogram of the PIT as a density, 1 everywhere where calibrated, with a dimension
    `pit` of the bins' centres."""
    f = frequencies(counts, dim)
    k, edges = f.sizes["rank"], np.linspace(0, 1, bins + 1)
    below = np.clip(edges[:, None] * k - np.arange(k), 0, 1)  # of a rank's share, by edge
    share = xr.DataArray(np.diff(below, axis=0), dims=("pit", "rank"))
    density = xr.dot(f, share, dim="rank") * bins
    density = density.assign_coords(pit=(edges[1:] + edges[:-1]) / 2)
    attrs = {"long_name": "density of the probability integral transform", "units": "1"}
    return density.assign_attrs(attrs)


def coverage(
    counts: xr.Dataset, intervals: Sequence[float] = INTERVALS, dim: str | None = "time"
) -> xr.Dataset:
    r"""How often central intervals hold the truth.

    Arguments:
        counts: What :func:`~appa.evaluation.ranking.rank_counts` found.
        intervals: Nominal probabilities :math:`p`.
        dim: What they are joined over; nothing for each hour.

    Returns:
        `coverage`, and `expected`, that of as many members drawn as the truth is, along `interval`.
    """
    f = frequencies(counts, dim)
    k, found, expected = f.sizes["rank"], [], []
    for p in intervals:
        if not 0 < p < 1:
            raise DataError(f"found an interval of {p}, expected a probability such as 0.9")
        # half up, where rounding to even would take different sides
        cut = min(max(1, int((1 - p) * k / 2 + 0.5 + 1e-9)), (k - 1) // 2)
        found.append(f.isel(rank=slice(cut, k - cut)).sum("rank", skipna=False))
        expected.append((k - 2 * cut) / k)
    attrs = {"long_name": "share of truths within the central interval", "units": "1"}
    ds = xr.concat(found, "interval").assign_attrs(attrs).to_dataset(name="coverage")
    attrs = {"long_name": "coverage of a calibrated ensemble of this size", "units": "1"}
    ds["expected"] = ("interval", expected, attrs)
    return ds.assign_coords(interval=list(intervals))


def reliability(counts: xr.Dataset, groups: int = 10) -> xr.Dataset:
    r"""Spread and error of groups of equal area, from the least to the largest spread.

    Returns:
        `expected` and `found` root-mean-square errors with dimensions `(region, channel, group)`,
        where `group` is the middle of the group's quantiles, and their `ratio`: below 1, the
        ensemble is too sure of itself there.
    """
    if "sorted" not in counts:
        raise DataError(
            f"{counts.attrs['members']} members cannot sort points by their spread and be scored "
            f"apart; it takes {SORTED}"
        )
    sums = counts["sorted"].transpose("region", "channel", "spread_bin", "sum")
    total = np.cumsum(np.insert(sums.values, 0, 0.0, axis=2), axis=2)
    means = np.full((2, *total.shape[:2], groups), np.nan)
    for i, j in np.ndindex(*total.shape[:2]):
        weight, *errors = total[i, j].T
        if weight[-1] > 0:  # a bin that lies in two groups is shared out
            cuts = np.linspace(0, weight[-1], groups + 1)
            for c, error in enumerate(errors):
                means[c, i, j] = np.diff(np.interp(cuts, weight, error)) / np.diff(cuts)
    expected, found = np.sqrt(means)
    dims = ("region", "channel", "group")
    told = "root-mean-square error of members, sorted by the spread of others, "
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(found > 0, expected / found, np.nan)
    data = {
        "expected": (dims, expected, {"long_name": told + "expected from their spread"}),
        "found": (dims, found, {"long_name": told + "found"}),
        "ratio": (dims, ratio, {"long_name": "expected over found error", "units": "1"}),
    }
    coords = {k: v for k, v in sums.coords.items() if k != "sum"}
    return xr.Dataset(data, {**coords, "group": (np.arange(groups) + 0.5) / groups})


def uniformity_test(
    f: np.ndarray, weight: np.ndarray, place: np.ndarray | None = None
) -> dict[str, float]:
    r"""Tests whether ranks are uniform.

    Arguments:
        f: The frequencies of ranks in blocks, with shape :math:`(n, K)`.
        weight: The blocks' weights, with shape :math:`(n)`.
        place: The blocks' places, ascending, with shape :math:`(n)`: neighbours, which are 1 apart,
            may resemble each other. Without, all are independent.

    Returns:
        `bias` and `dispersion`, 0 and 1 where uniform; `p`, `p_bias` and `p_dispersion`, the
        probabilities of frequencies as uneven by chance, and `effective`, the number of independent
        ranks, which are NaN with fewer than 6 blocks; `blocks`, their number, and `independent`,
        as how many they count of ranks.
    """
    from scipy import stats

    place = 2 * np.arange(len(f)) if place is None else place
    f, weight, place = (part[weight > 0] for part in (f, weight, place))
    n, k = f.shape
    nothing = dict.fromkeys(("bias", "dispersion", "p", "p_bias", "p_dispersion", "effective"))
    found = {key: np.nan for key in nothing} | {"blocks": float(n), "independent": float(n)}
    if n == 0:
        return found
    share = weight / weight.sum()
    mean = share @ f
    u = (np.arange(k) + 0.5) / k - 0.5
    # within a rank the PIT is even, with variance 1 / (12 k²)
    contrasts = {"bias": (u, 0.0), "dispersion": (12 * (u**2 + 1 / (12 * k**2)), 1.0)}
    for key, (c, _) in contrasts.items():
        found[key] = float(mean @ c)
    if n < FEWEST:
        return found
    d = share[:, None] * (f - mean) * np.sqrt(n)
    counted = [float(independent(f, place))]
    for key, (c, null) in contrasts.items():
        counted.append(float(independent((f @ c)[:, None], place)))
        m = counted[-1] - 1
        error = np.sqrt(((d @ c) ** 2).sum() / m) if m > 0 else 0.0
        if error > 0:
            found[f"p_{key}"] = float(2 * stats.t.sf(abs(found[key] - null) / error, m))
    # what lasts longest scatters most in the mean, though little of all ranks may be of it
    found["independent"] = min(counted)
    m = found["independent"] - 1
    gram = d @ d.T / m if m > 0 else np.zeros((n, n))
    trace, square = np.trace(gram), (gram**2).sum()
    if trace > 0:
        degrees = ((m + 1) * trace**2 - 2 * square) / max(m * square - trace**2, 1e-12 * trace**2)
        degrees = float(np.clip(degrees, 1, k - 1))
        ratio = ((mean - 1 / k) ** 2).sum() / trace
        found["p"] = float(stats.f.sf(ratio, degrees, degrees * m))
        found["effective"] = float((1 - 1 / k) / trace)
    return found


def uniformity(counts: xr.Dataset, days: int = 1) -> xr.Dataset:
    r"""Tests the ranks of each region and channel, with blocks of days as the sample; see
    :func:`uniformity_test` for what it returns.

    Arguments:
        counts: What :func:`~appa.evaluation.ranking.rank_counts` found.
        days: The days of a block; of several runs, told apart by a coordinate `start`, those
            within which they start.
    """
    if days < 1:
        raise DataError(f"a block has 1 day or more, found days={days}")
    count = counts["count"].transpose("time", "region", "channel", "rank")
    # the hours of a run are not independent, though they may be of two days
    label = count["start" if "start" in count.coords else "time"]
    place, block = places(label.values, days)
    total = np.zeros((len(place), *count.shape[1:]))
    np.add.at(total, block, count.values)
    weight = total.sum(axis=-1)
    f = total / np.where(weight > 0, weight, np.nan)[..., None]
    tests = [
        [uniformity_test(f[:, i, j], weight[:, i, j], place) for j in range(f.shape[2])]
        for i in range(f.shape[1])
    ]
    told = {
        "bias": "mean of the PIT less 1/2: above 0, the ensemble is too low",
        "dispersion": "12 times the mean square of the PIT less 1/2: above 1, too sure or biased",
        "p": "probability of ranks as uneven by chance",
        "p_bias": "probability of a bias as large by chance",
        "p_dispersion": "probability of a dispersion as far from 1 by chance",
        "effective": "number of independent ranks that would scatter as much",
        "blocks": "number of blocks",
        "independent": "number of independent blocks that they count as",
    }
    data = {}
    for key, text in told.items():
        values = [[test[key] for test in row] for row in tests]
        data[key] = (("region", "channel"), values, {"long_name": text, "units": "1"})
    coords = {k: v for k, v in count.coords.items() if "time" not in v.dims}
    return xr.Dataset(data, coords, {"days": days, "members": counts.attrs["members"]})


def calibration(
    estimate: xr.Dataset | str | Path,
    truth: Any,
    *,
    days: int = 1,
    intervals: Sequence[float] = INTERVALS,
    groups: int = 10,
    **kwargs: Any,
) -> xr.Dataset:
    r"""All of it, of all hours together.

    Arguments:
        estimate: The ensemble as a dataset or its path.
        truth, kwargs: As of :func:`~appa.evaluation.ranking.rank_counts`.
        days: The days of a block of the test of uniformity.
        intervals: The central intervals.
        groups: The groups of reliability.

    Returns:
        `frequency` by `rank`, `pit` by bin, `coverage` and `coverage_expected` by `interval`,
        `reliability_expected`, `reliability_found` and `reliability_ratio` by `group` (with 4
        members or more), and what :func:`uniformity` finds, for each region and channel.

    Example:
        >>> found = calibration(analysis, "planet", regions=("global", "tropics"))
        >>> found["coverage"].sel(channel="z500", interval=0.8)
    """
    if isinstance(estimate, str | Path):
        from ..tasks.analyses import open_analysis

        estimate = open_analysis(estimate)
    counts = rank_counts(estimate, truth, **kwargs)
    ds = uniformity(counts, days)
    ds["frequency"] = frequencies(counts)
    ds["pit"] = pit(counts)
    covered = coverage(counts, intervals)
    ds["coverage"], ds["coverage_expected"] = covered["coverage"], covered["expected"]
    if "sorted" in counts:
        for name, value in reliability(counts, groups).data_vars.items():
            ds[f"reliability_{name}"] = value
    return ds.assign_attrs(counts.attrs, days=days)
