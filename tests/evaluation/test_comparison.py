r"""Whether a run is no worse than another: pairs of which the difference is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy import stats

from appa.errors import DataError
from appa.evaluation.budget import error_budget_table
from appa.evaluation.comparison import FEWEST, compare, no_worse


def means(crps: np.ndarray) -> xr.Dataset:
    r"""A run of independent dates with these CRPS, and their squares as squared errors; with
    shape (dates, channels)."""
    dims, crps = ("region", "time", "channel"), crps[None]
    data = {name: (dims, crps**2) for name in ("squared_error", "variance")}
    data |= {name: (dims, np.ones_like(crps)) for name in ("weight", "share")}
    time = pd.date_range("2021-01-01", periods=crps.shape[1], freq="3D")
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
