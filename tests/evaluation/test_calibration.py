r"""Calibration of ensembles that are calibrated, biased, too sure and too unsure by construction.

With truths from N(b, τ²) and members from N(0, 1), the rank given the truth is binomial, so that
its frequencies are an integral over the truth."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy import stats

from appa.data.grids import Grid
from appa.errors import DataError
from appa.evaluation.calibration import (
    calibration,
    coverage,
    frequencies,
    pit,
    reliability,
    uniformity,
    uniformity_test,
)
from appa.evaluation.ranking import rank_counts, truth_ranks

GRID = Grid("gaussian", 24, 48)
SPACE = ("latitude", "longitude")
CASES = {"calibrated": (0, 1), "biased": (0.5, 1), "sure": (0, 1.5), "unsure": (0, 0.6)}
# the number of independent points that count as much as those of an hour do by area
POINTS = GRID.area.sum() ** 2 / (GRID.area**2).sum()


def dataset(values: np.ndarray, *, name: str = "2m_temperature", freq: str = "h") -> xr.Dataset:
    dims = ("member", "time", *SPACE)[4 - values.ndim :]
    times = pd.date_range("2021-03-21", periods=values.shape[-3], freq=freq)
    coords = {"time": times, "latitude": GRID.latitude, "longitude": GRID.longitude}
    return xr.Dataset({name: (dims, values)}, coords)


def drawn(case: str, members: int, hours: int, seed: int = 0, freq: str = "h"):
    r"""Members and truth, independent at all points and hours."""
    bias, deviation = CASES[case]
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(members, hours, *GRID.shape)).astype("float32")
    y = rng.normal(bias, deviation, (hours, *GRID.shape)).astype("float32")
    return dataset(x, freq=freq), dataset(y, freq=freq)


def expected_frequencies(case: str, members: int) -> np.ndarray:
    bias, deviation = CASES[case]
    y = np.linspace(bias - 9 * deviation, bias + 9 * deviation, 20_001)
    density = stats.norm.pdf(y, bias, deviation) * (y[1] - y[0])
    return stats.binom.pmf(np.arange(members + 1)[:, None], members, stats.norm.cdf(y)) @ density


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("members", [4, 9])
def test_ranks_of_normal_ensembles(case, members):
    r"""Frequencies, PIT and coverage within 4.5 standard errors of the integral; the truth of a
    calibrated ensemble has all ranks alike, whatever is integrated."""
    hours = 8
    counts = rank_counts(*drawn(case, members, hours))
    f, expected = frequencies(counts)[0, 0].values, expected_frequencies(case, members)
    if case == "calibrated":
        np.testing.assert_allclose(expected, 1 / (members + 1), atol=1e-9)
    error = np.sqrt(expected * (1 - expected) / (hours * POINTS))
    assert np.abs(f - expected).max() < 4.5 * error.max()
    assert f.sum() == pytest.approx(1)

    # as many bins as ranks, and half as many
    np.testing.assert_allclose(pit(counts, members + 1)[0, 0], f * (members + 1))
    if members == 9:
        np.testing.assert_allclose(pit(counts, 5)[0, 0], 5 * f.reshape(5, 2).sum(1))
        found = coverage(counts)
        # between the 3rd (50 %: 2.5, half up) and 1st (80 and 90 %) from each side, of ten ranks
        np.testing.assert_allclose(found["expected"], [0.4, 0.8, 0.8])
        inside = np.array([expected[3:7].sum(), expected[1:9].sum(), expected[1:9].sum()])
        error = np.sqrt(inside * (1 - inside) / (hours * POINTS))
        assert (np.abs(found["coverage"][:, 0, 0] - inside) < 4.5 * error).all()


@pytest.mark.parametrize("case", CASES)
def test_normal_distributions(case):
    r"""The PIT of N(0, 1) where truths are N(b, τ²), and intervals that need no rounding."""
    bias, deviation = CASES[case]
    _, truth = drawn(case, 1, 8)
    estimate = truth * 0
    estimate["2m_temperature_std"] = estimate["2m_temperature"].isel(time=0, drop=True) + 1
    counts = rank_counts(estimate, truth)
    edges = stats.norm.ppf(np.linspace(0, 1, 21))
    expected = np.diff(stats.norm.cdf(edges, bias, deviation))
    error = np.sqrt(expected * (1 - expected) / (8 * POINTS))
    assert (np.abs(frequencies(counts)[0, 0] - expected) < 4.5 * error).all()
    found = coverage(counts)
    np.testing.assert_allclose(found["expected"], [0.5, 0.8, 0.9])
    half = stats.norm.ppf([0.75, 0.9, 0.95])
    inside = stats.norm.cdf(half, bias, deviation) - stats.norm.cdf(-half, bias, deviation)
    error = np.sqrt(inside * (1 - inside) / (8 * POINTS))
    assert (np.abs(found["coverage"][:, 0, 0] - inside) < 4.5 * error).all()


def test_ties_are_broken_evenly_and_alike():
    r"""Nothing but zeros, as of precipitation where it is dry, whatever the blocks of hours."""
    zeros = np.zeros((5, 4, *GRID.shape), "float32")
    estimate, truth = dataset(zeros), dataset(zeros[0])
    counts = rank_counts(estimate, truth)
    f = frequencies(counts)[0, 0]
    assert np.abs(f - 1 / 6).max() < 4.5 * np.sqrt(1 / 6 * 5 / 6 / (4 * POINTS))
    some = slice(1, 4)
    again = rank_counts(estimate.isel(time=some).chunk(time=1), truth)
    np.testing.assert_array_equal(again["count"], counts["count"].isel(time=some))
    other = rank_counts(estimate, truth, seed=1)
    assert np.abs(other["count"] - counts["count"]).max() > 0
    d = np.array([[-1.0, 0.0], [0.0, 0.0], [2.0, 3.0]])
    ranks = [truth_ranks(d, np.random.default_rng(k)) for k in range(200)]
    assert set(np.array(ranks)[:, 0]) == {1, 2}
    assert set(np.array(ranks)[:, 1]) == {0, 1, 2}


def test_area_and_what_is_undefined():
    r"""Truths above all members in the north, below them in the south, and not known in a belt."""
    north = GRID.latitude[:, None] > 0
    values = np.where(north, 1.0, -1.0) * np.ones((2, *GRID.shape))
    values[:, 10:14] = np.nan
    values[1, :, :24] = np.nan
    x = np.random.default_rng(0).uniform(-0.5, 0.5, (3, 2, *GRID.shape))
    x[1, 0, 0, 0] = np.nan
    counts = rank_counts(dataset(x), dataset(values), regions=("global", "northern-extratropics"))
    area = np.broadcast_to(GRID.weights[:, None], GRID.shape)
    np.testing.assert_allclose(
        counts["count"][0, 0, 0, [3, 0]], [area[:10].sum() - area[0, 0], area[14:].sum()]
    )
    np.testing.assert_allclose(counts["count"][0, 1, 0, [3, 0]], area[:10, 24:].sum())
    rows = GRID.latitude >= 20
    assert float(counts["count"][1, 1, 0, 3]) == pytest.approx(area[rows][:, 24:].sum())
    assert not counts["count"][1, ..., :3].any()


# ---------------------------------------------------------------- the test


def correlated(n: int, m: int, points: int, shift: float, scale: float, rng) -> np.ndarray:
    r"""Frequencies in n days, of points that are nearly the same: a correlation of 0.95."""
    common = rng.normal(size=(m + 1, n, 1)) * np.sqrt(0.95)
    z = common + rng.normal(size=(m + 1, n, points)) * np.sqrt(0.05)
    rank = (z[1:] < shift + scale * z[0]).sum(axis=0)
    return np.stack([np.bincount(row, minlength=m + 1) / points for row in rank])


@pytest.mark.parametrize("n", [6, 10, 30])
def test_size_of_the_test(n):
    r"""Of calibrated ensembles with correlated points, about as many are rejected as the module
    says, at most; a χ² test of points that are thought independent rejects most."""
    rng, trials, points, m = np.random.default_rng(n), 400, 60, 9
    found, naive = [], []
    for _ in range(trials):
        f = correlated(n, m, points, 0, 1, rng)
        found.append(uniformity_test(f, np.ones(n)))
        naive.append(stats.chisquare(f.sum(axis=0) * points).pvalue)
    for key, share in {"p": 0.05, "p_bias": 0.07, "p_dispersion": 0.08}.items():
        p = np.array([test[key] for test in found])
        assert 0.005 < (p < 0.05).mean() < share + 3.5 * np.sqrt(share * (1 - share) / trials)
    assert (np.array(naive) < 0.05).mean() > 0.95
    # of n days with nearly one rank each, not 60
    effective = np.median([test["effective"] for test in found])
    assert n / 2 < effective < 5 * n


def test_days_that_follow_one_another():
    r"""Of 30 days on which members and truth remember half of the day before, 5, 6 and 8 % of
    calibrated ensembles are rejected; taken for independent, an eighth to a quarter are. Days that
    are apart, or do not remember, are as they were."""
    rng, trials, n, m, points = np.random.default_rng(0), 300, 30, 9, 40
    row, alone = [], []
    for _ in range(trials):
        z = rng.normal(size=(m + 1, n, 1))
        for t in range(1, n):
            z[:, t] = 0.5 * z[:, t - 1] + np.sqrt(0.75) * z[:, t]
        z = (z + rng.normal(size=(m + 1, n, points))) / np.sqrt(2)
        rank = (z[1:] < z[0]).sum(axis=0)
        f = np.stack([np.bincount(day, minlength=m + 1) / points for day in rank])
        row.append(uniformity_test(f, np.ones(n), np.arange(n)))
        alone.append(uniformity_test(f, np.ones(n), 2 * np.arange(n)))
        assert alone[-1] == uniformity_test(f, np.ones(n))
    for key, share, more in (("p", 0.05, 0.2), ("p_bias", 0.06, 0.2), ("p_dispersion", 0.08, 0.1)):
        most = share + 3 * np.sqrt(share * (1 - share) / trials)
        assert np.mean([test[key] < 0.05 for test in row]) < most
        assert np.mean([test[key] < 0.05 for test in alone]) > more - 3 * np.sqrt(more / trials)


def test_power_and_direction():
    rng, n, m = np.random.default_rng(0), 40, 9
    cases = {"biased": (0.8, 1), "sure": (0, 2.5), "unsure": (0, 0.4)}
    found = {
        k: uniformity_test(correlated(n, m, 30, *v, rng), np.ones(n)) for k, v in cases.items()
    }
    for test in found.values():
        assert test["p"] < 0.01
    assert found["biased"]["bias"] > 0.1
    assert found["biased"]["p_bias"] < 0.001
    assert found["sure"]["dispersion"] > 1.2
    assert found["sure"]["p_dispersion"] < 0.001
    assert found["unsure"]["dispersion"] < 0.8
    assert found["unsure"]["p_dispersion"] < 0.001
    assert min(found["sure"]["p_bias"], found["unsure"]["p_bias"]) > 0.01


def test_runs_are_the_blocks():
    r"""Six runs of a day from noon, and the points of each with one rank: halves of a run are no
    two samples."""
    rng = np.random.default_rng(0)
    rank, runs = np.repeat(rng.integers(0, 5, 6), 24), np.repeat(np.arange(6), 24)
    start = pd.date_range("2021-03-21T12", periods=6, freq="48h")[runs]
    members = np.arange(1.0, 5)[:, None, None, None]
    x = np.broadcast_to(members - 0.5, (4, 144, *GRID.shape)).astype("float32")
    y = np.broadcast_to(rank[:, None, None], (144, *GRID.shape)).astype("float32")
    times = start + pd.to_timedelta(np.tile(np.arange(24), 6), unit="h")
    estimate, truth = (dataset(values).assign_coords(time=times) for values in (x, y))
    found = calibration(estimate.assign_coords(start=("time", start)), truth)
    assert found["blocks"].item() == 6
    alike = uniformity_test(np.eye(5)[rank[::24]], np.ones(6))
    for name in ("p", "p_bias", "p_dispersion", "effective"):
        assert found[name].item() == pytest.approx(alike[name])
    assert "start" not in found.coords
    days = calibration(estimate, truth)  # that does not say which runs it is of
    assert days["blocks"].item() == 12
    assert days["independent"].item() < 8  # every second has the ranks of the one before
    apart = uniformity_test(np.eye(5)[rank[::12]], np.ones(12))
    assert apart["p_bias"] < min(days["p_bias"].item(), found["p_bias"].item())


def test_independent_points_are_all_effective():
    r"""Independent ranks in blocks of unequal size: as many as there are, within the scatter of
    a variance from 200 blocks of 9 directions."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(50, 150, 200)
    f = np.stack([np.bincount(rng.integers(0, 10, n), minlength=10) / n for n in sizes])
    found = uniformity_test(f, sizes.astype(float))
    # blocks of unequal size scatter no less than all ranks together
    assert found["effective"] == pytest.approx(sizes.sum(), rel=4 * np.sqrt(2 / (199 * 9)))
    exact = uniformity_test(np.full((7, 4), 0.25), np.ones(7))
    assert exact["bias"] == 0
    assert exact["dispersion"] == pytest.approx(1)
    few = uniformity_test(f[:5], np.ones(5))
    assert np.isnan(few["p"])
    assert np.isfinite(few["bias"])
    assert few["blocks"] == 5


@pytest.mark.parametrize("case", CASES)
def test_all_of_it(case):
    r"""Of four hours of every second of ten days, in one call."""
    estimate, truth = drawn(case, 9, 40)
    times = pd.date_range("2021-03-21", periods=10, freq="2D").repeat(4)
    times += pd.to_timedelta(np.tile([0, 6, 12, 18], 10), "h")
    estimate, truth = (ds.assign_coords(time=times) for ds in (estimate, truth))
    truth["2m_temperature"].attrs["units"] = "K"
    found = calibration(estimate, truth, regions=("global", "tropics")).sel(channel="t2m")
    assert found["units"] == "K"
    assert found.attrs["members"] == 9
    world = found.sel(region="global")
    assert world["blocks"] == 10
    if case == "calibrated":
        assert float(found["p"].min()) > 0.001
        assert abs(world["bias"]) < 4 / np.sqrt(12 * 40 * POINTS)
    else:
        assert float(found["p"].max()) < 1e-6
        sign = {"biased": world["bias"], "sure": world["dispersion"] - 1}
        assert float(sign.get(case, 1 - world["dispersion"])) > 0.05
    np.testing.assert_allclose(found["frequency"].sum("rank"), 1)
    assert set(found["coverage"].dims) == {"region", "interval"}
    # independent points: the days scatter as 4 hours of them would
    assert float(world["effective"]) == pytest.approx(40 * POINTS, rel=5 * np.sqrt(2 / (9 * 9)))


# ---------------------------------------------------------------- reliability


@pytest.mark.parametrize("members", [8, 9])
@pytest.mark.parametrize("factor", [1.0, 0.5, 2.0])
def test_reliability_by_spread(members, factor):
    r"""Truths with a deviation of their own at each point, over an octave and a half, and members
    with that times a factor: expected over found error is
    :math:`\sqrt{(1 + 1/M') c^2 / (1 + c^2 / M')}` in every group."""
    rng = np.random.default_rng(members)
    sigma = 2 ** rng.uniform(-0.75, 0.75, GRID.shape)
    x = factor * sigma * rng.normal(size=(members, 20, *GRID.shape))
    y = sigma * rng.normal(size=(20, *GRID.shape))
    found = reliability(rank_counts(dataset(x), dataset(y)), groups=5).isel(region=0, channel=0)
    half = members / 2
    ratio = np.sqrt((1 + 1 / half) * factor**2 / (1 + factor**2 / half))
    # errors of the two halves are one truth's, and dominated by it
    np.testing.assert_allclose(found["ratio"], ratio, rtol=4.5 / np.sqrt(2 * 20 * POINTS / 5))
    assert (np.diff(found["expected"]) > 0).all()


def test_chance_does_not_sort():
    r"""Where all points are alike, small spreads are chance, and the spread of other members and
    the error are the same in every group. Sorted by their own spread they would not be."""
    estimate, truth = drawn("calibrated", 6, 20)
    found = reliability(rank_counts(estimate, truth), groups=4).isel(region=0, channel=0)
    tolerance = 4.5 / np.sqrt(2 * 20 * POINTS / 4)
    np.testing.assert_allclose(found["expected"], np.sqrt(4 / 3), rtol=tolerance)
    np.testing.assert_allclose(found["found"], np.sqrt(4 / 3), rtol=tolerance)
    own = np.sort(estimate["2m_temperature"].values.std(axis=0, ddof=1).ravel())
    assert own[: len(own) // 4].mean() < 0.75


def test_reliability_of_normal_distributions():
    rng = np.random.default_rng(0)
    sigma = 2 ** rng.uniform(-1, 1, (20, *GRID.shape))
    truth = dataset(0.5 * sigma * rng.normal(size=sigma.shape))
    estimate = (truth * 0).assign({"2m_temperature_std": dataset(sigma)["2m_temperature"]})
    found = reliability(rank_counts(estimate, truth), groups=2).isel(region=0, channel=0)
    np.testing.assert_allclose(found["ratio"], 2, rtol=4.5 / np.sqrt(2 * 20 * POINTS / 2))
    # by area, groups are the halves of σ: mean squares of 2^u for u below and above 0
    halves = np.sqrt([(1 - 2**-2) / np.log(4), (2**2 - 1) / np.log(4)])
    np.testing.assert_allclose(found["expected"], halves, rtol=0.02)


def test_errors():
    estimate, truth = drawn("calibrated", 3, 2)
    with pytest.raises(DataError, match="it takes 4"):
        reliability(rank_counts(estimate, truth))
    with pytest.raises(DataError, match="single state"):
        rank_counts(estimate.isel(member=0), truth)
    counts = rank_counts(estimate, truth)
    with pytest.raises(DataError, match=r"0\.9"):
        coverage(counts, [90])
    with pytest.raises(DataError, match="days=0"):
        uniformity(counts, days=0)
    assert uniformity(counts)["blocks"].item() == 1
    assert np.isnan(uniformity(counts)["p"]).all()
