r"""Whether a run is no worse than another: pairs of which the difference is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy import stats

from appa.errors import DataError
from appa.evaluation.bootstrap import independent
from appa.evaluation.budget import error_budget_table
from appa.evaluation.comparison import FEWEST, compare, no_worse
from appa.evaluation.dates import over_dates


def means(crps: np.ndarray, freq: str = "3D") -> xr.Dataset:
    r"""A run of independent dates with these CRPS, and their squares as squared errors; with
    shape (dates, channels)."""
    dims, crps = ("region", "time", "channel"), crps[None]
    data = {name: (dims, crps**2) for name in ("squared_error", "variance")}
    data |= {name: (dims, np.ones_like(crps)) for name in ("weight", "share")}
    time = pd.date_range("2021-01-01", periods=crps.shape[1], freq=freq)
    names = [f"t{k}" for k in range(crps.shape[2])]
    coords = {"region": ["global"], "time": time, "channel": names}
    for name, value in (("variable", "t2m"), ("level", np.nan), ("units", "K")):
        coords[name] = ("channel", [value] * len(names))
    return xr.Dataset(data | {"crps": (dims, crps)}, coords, {"members": 4})


def pair(difference: float, noise: float, dates: int = 20) -> list[xr.Dataset]:
    r"""Runs of CRPS 1 and 1 + difference + noise, whose mean is 0 and deviation is known."""
    e = np.random.default_rng(0).permutation(stats.norm.ppf((np.arange(dates) + 0.5) / dates))
    a = np.ones((dates, 1))
    return [means(a), means(a + difference + noise * e[:, None] / e.std())]


def told(a: xr.Dataset, b: xr.Dataset, margin: float = 2.0, score: str = "crps") -> str:
    return no_worse(compare(a, b), margin, score).item()


def test_what_is_known_of_small_and_large_noise():
    r"""Bounds are 1.7 noise / √20 from the difference, in the order of 0.04 % and of 20 %."""
    for difference, expected, swapped in ((0.0, "no worse", "no worse"),
                                          (0.05, "worse", "no worse"),
                                          (-0.05, "no worse", "worse")):  # fmt: skip
        a, b = pair(difference, 0.001)
        for score in ("crps", "skill"):  # which is the root of what is squared
            assert told(a, b, score=score) == expected
            assert told(b, a, score=score) == swapped
        a, b = pair(difference, 0.5)
        assert told(a, b) == told(b, a) == "not told"
    # worse for sure, and yet by less than the margin
    a, b = pair(0.01, 0.001)
    assert compare(a, b)["crps_real"]
    assert told(a, b) == "no worse"
    assert told(a, b, 0.5) == "worse"
    # the interval of a difference may hold 0, and the run be neither
    found = compare(*pair(0.0, 0.1))
    assert not found["crps_real"]
    assert no_worse(found, 2.0).item() == "not told"
    assert no_worse(found, 10.0).item() == "no worse"
    assert told(a, a) == "no worse"
    with pytest.raises(DataError, match="in percent, 0 or more, found -2"):
        no_worse(found, -2.0)


def test_bounds_are_students():
    r"""Of a difference with noise σ, t σ / √(n − 1) to either side with one case in twenty beyond;
    quantiles of B samples have a deviation of √(p (1 − p) / B) over the density at them."""
    n, noise, resamples = 20, 0.1, 20_000
    found = compare(*pair(0.03, noise, n), resamples=resamples)
    t = stats.t.ppf(0.95, n - 1)
    z = t * np.sqrt(n / (n - 1))
    error = 3 * np.sqrt(stats.norm.cdf(z) * stats.norm.sf(z) / resamples) / stats.norm.pdf(z) / z
    for key, sign in (("least", -1), ("most", 1)):
        width = sign * (found[f"crps_{key}"].item() - 0.03)
        assert width == pytest.approx(t * noise / np.sqrt(n - 1), rel=error)


def test_one_in_twenty_at_the_margin():
    r"""Of 400 runs that are worse by the margin exactly, those called no worse are not more than
    5 %, to three deviations of a binomial share; nor those called worse. What makes dates hard is
    common to both: their CRPS differ by half, the difference by 4 %."""
    rng, shape = np.random.default_rng(0), (12, 400)
    hard = rng.gamma(4, size=shape) / 4
    a, b = (means(1 + hard + rng.normal(gap, 0.06, shape)) for gap in (0.0, 0.02 * 2))
    found = no_worse(compare(a, b, resamples=1000), 2.0)
    most = 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)
    for word in ("no worse", "worse"):
        share = float((found == word).mean())
        assert 0.1 - most <= share <= most
    # equal ones are most often seen to be no worse by three times their deviation, 1.2 %
    same = means(1 + hard + rng.normal(0, 0.06, shape))
    assert float((no_worse(compare(a, same, resamples=1000), 4.0) == "no worse").mean()) > 0.8


def test_too_few_dates_tell_nothing():
    few, enough = (pair(0.0, 1e-6, n) for n in (FEWEST - 1, FEWEST))
    assert told(*few) == "not told"
    assert told(*enough) == "no worse"
    # of which one has no value: its weight is 0
    lost = enough[1].copy(deep=True)
    lost["weight"][0, 0] = 0
    assert told(enough[0], lost) == "not told"
    alone = means(np.ones((1, 1)))
    assert told(alone, alone) == "not told"


# ---------------------------------------------------------------- days that follow one another


def remembering(rho: float, days: int, pairs: int, rng: np.random.Generator) -> np.ndarray:
    r"""Normal noise whose correlation over a day is ρ, with shape (days, pairs)."""
    x = rng.normal(size=(days, pairs))
    for t in range(1, days):
        x[t] = rho * x[t - 1] + np.sqrt(1 - rho**2) * x[t]
    return x


def test_how_many_blocks_count():
    r"""Against the sum of all covariances: the mean of blocks with a correlation of ρ has the
    variance of m independent ones. The estimate is of 2,000 days, with an error of
    √(1 − ρ²) / √2000, of which m / n changes by 2 / (1 + ρ)² as much."""
    days = 2000
    for rho in (0.0, 0.3, 0.6):
        x = remembering(rho, days, 1, np.random.default_rng(1))
        lags = np.abs(np.subtract.outer(np.arange(days), np.arange(days)))
        exact = days / (rho**lags).sum() if rho else 1.0
        error = 4 * 2 / (1 + rho) ** 2 * np.sqrt((1 - rho**2) / days)
        found = independent(x, np.arange(days)) / days
        assert float(found) == pytest.approx(exact, abs=error)
    # neighbours that are 2 apart or more are dates of their own
    assert float(independent(x, 2 * np.arange(days))) == days
    # two stretches: pairs across the gap are not neighbours, but resemble each other by their lag
    gap = np.r_[np.arange(8), 9 + np.arange(8)]
    x = np.r_[np.ones(8), -np.ones(8)][:, None] + 0.1 * remembering(
        0, 16, 1, np.random.default_rng(0)
    )
    r = np.mean([(x[i] - x.mean()) * (x[i + 1] - x.mean()) for i in range(15) if i != 7]) / x.var()
    rho = min(r + (1 + 4 * r) / 16, 0.99)
    exact = 16**2 / (rho ** np.abs(np.subtract.outer(gap, gap))).sum()
    assert float(independent(x, gap)) == pytest.approx(exact, rel=1e-9)
    # what does not change, but for rounding, is not correlated
    assert float(independent(1 + 1e-9 * x, np.arange(16))) == 16


def test_days_in_a_row_are_not_too_sure():
    r"""Of 30 consecutive days without a difference, whose errors remember half of the day before,
    less than 10 % are called real, to three deviations of a binomial share; as if they were dates
    apart, a quarter are."""
    rng, shape = np.random.default_rng(0), (30, 600)
    hard = 10 + rng.gamma(4, size=shape)
    a, b = (hard + 0.5 * remembering(0.5, *shape, rng) for _ in range(2))
    error = 3 * np.sqrt(0.1 * 0.9 / 600)
    found = compare(means(a, "D"), means(b, "D"), resamples=500)
    for score in ("skill", "crps"):
        assert float(found[f"{score}_real"].mean()) < 0.1 + error
    assert 7 < float(found["independent"].median()) < 15  # of (1 − ρ) / (1 + ρ) · 30 = 10
    apart = compare(means(a), means(b), resamples=500)
    assert float(apart["crps_real"].mean()) > 0.2
    assert (apart["independent"] == 30).all()
    # a gap of three deviations of a mean of independent days is found as often as by Student's t,
    # noncentral, from dates that are apart, and nearly so from days that follow one another
    rng = np.random.default_rng(1)
    a, b = (hard + 0.5 * rng.normal(size=shape) for _ in range(2))
    b += 3 * 0.5 * np.sqrt(2 / 30)
    power = stats.nct.sf(stats.t.ppf(0.975, 29), 29, 3)
    error = 3 * np.sqrt(power * (1 - power) / 600)
    for freq, least in (("3D", power), ("D", power - 0.1)):
        found = float(compare(means(a, freq), means(b, freq), resamples=500)["crps_real"].mean())
        assert least - error < found < power + error


# ---------------------------------------------------------------- cells with fewer blocks


def test_a_cell_has_the_interval_of_its_own_dates():
    r"""A channel that is there on 8 of 40 dates beside one that is on all: as if the 8 were all
    there is, but for rounding; and that at one date alone has no interval."""
    rng = np.random.default_rng(0)
    a, b = (means(5 + rng.gamma(4, size=(40, 3))) for _ in range(2))
    few = rng.choice(40, 8, replace=False)
    some = np.isin(np.arange(40), few)
    weight = a["weight"].copy()
    weight[0, ~some, 1] = 0
    weight[0, 1:, 2] = 0
    found = compare(*(run.assign(weight=weight) for run in (a, b)))
    alone = compare(*(run.isel(time=np.sort(few), channel=[1]) for run in (a, b)))
    for name in [str(n) for n in alone if "ratio" not in str(n)]:  # which is the same for all
        at, value = found[name].isel(channel=[1]), alone[name]
        np.testing.assert_allclose(at, value, rtol=1e-12, atol=1e-12, err_msg=name)
    every = compare(*(run.isel(channel=[0]) for run in (a, b)))
    np.testing.assert_array_equal(found["crps_low"].isel(channel=[0]), every["crps_low"])
    assert np.isnan(found["crps_low"].isel(channel=2)).all()
    assert found["independent"].values.tolist() == [[40, 8, 1]]


def test_a_lead_time_has_the_interval_of_its_own_dates():
    r"""Two dates of 16 reach the last lead time: draws without either do not take its interval
    away, which is that of the two."""
    rng = np.random.default_rng(0)
    run = means(5 + rng.gamma(4, size=(16, 2))).rename(time="init_time", channel="lead_time")
    run = run.drop_vars(["variable", "level", "units"]).assign_coords(lead_time=[6.0, 12.0])
    about = {"variable": "2m_temperature", "level": np.nan, "units": "K"}
    run = run.expand_dims(channel=["t2m"]).assign_coords(
        {k: ("channel", [v]) for k, v in about.items()}
    )
    weight = run["weight"].copy()
    weight.loc[{"lead_time": 12.0, "init_time": run["init_time"][2:]}] = 0
    found = over_dates(run.assign(weight=weight))
    for k, dates in ((0, 16), (1, 2)):
        alone = over_dates(run.isel(lead_time=[k], init_time=slice(dates)))
        for name in ("skill_low", "skill_high", "crps_low", "ratio_high"):
            at = found[name].isel(lead_time=[k])
            assert np.isfinite(at).all()
            np.testing.assert_array_equal(at, alone[name])


def test_pairs_are_of_the_same_points():
    r"""A run that is undefined where the other is not errs less, there: such pairs are left out,
    and what is left is as if they had not been."""
    rng = np.random.default_rng(0)
    a, b = (means(5 + rng.gamma(4, size=(20, 2))) for _ in range(2))
    weight = b["weight"].copy()
    weight[0, :8, 1] = 0.75
    with pytest.warns(UserWarning, match="8 of 40 pairs .* B lacks 25 % of the area that A has t1"):
        found = compare(a, b.assign(weight=weight))
    expected = compare(*(run.isel(time=slice(8, None)) for run in (a, b)))
    assert found["filled"].values.tolist() == [[20, 12]]
    for name in ("crps_difference", "crps_low", "skill_high"):
        np.testing.assert_allclose(found[name][0, 1], expected[name][0, 1], rtol=1e-12)
    with (
        pytest.warns(UserWarning, match="40 of 40 pairs"),
        pytest.raises(DataError, match="nowhere defined at the same points"),
    ):
        compare(a.assign(weight=a["weight"] / 2), b)


def test_a_budget_has_verdicts():
    a, worse = pair(0.05, 0.001)
    table = error_budget_table({"reference": a, "steps": worse, "solver": pair(0.01, 0.001)[1]})
    found = table.set_index(["variation", "score"])["verdict"]
    for score in ("skill", "crps"):
        assert found["steps", score] == "worse"
        assert found["solver", score] == "no worse"
    assert found["reference"].isna().all()
    assert pd.isna(found["steps", "ratio"])  # which is not better the smaller
    wide = error_budget_table({"reference": a, "steps": worse}, margin=6)
    assert wide["verdict"].dropna().tolist() == ["no worse"] * 2
