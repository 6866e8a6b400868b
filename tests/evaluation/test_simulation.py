r"""Tests of ranks, one a simulation, on ranks that are uniform and on ones that are not."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from appa.errors import DataError
from appa.evaluation.simulation import simulated_calibration, single_rank_test


def test_the_share_found_uneven_by_chance_is_what_it_says():
    rng = np.random.default_rng(0)
    counts = rng.multinomial(40, np.full(8, 1 / 8), 1000)
    found = [single_rank_test(row) for row in counts]
    for key in ("p", "p_bias", "p_dispersion"):
        share = np.mean([test[key] < 0.05 for test in found])
        assert share == pytest.approx(0.05, abs=0.02)  # 3 of its standard deviations
    # a truth that is normal with twice the members' spread, and one off by a deviation
    x = rng.standard_normal((40, 7))
    for scale, shift, key in ((2.0, 0.0, "dispersion"), (1.0, 1.0, "bias")):
        ranks = (x < scale * rng.standard_normal((40, 1)) + shift).sum(axis=1)
        test = single_rank_test(np.bincount(ranks, minlength=8))
        assert test[f"p_{key}"] < 1e-3
        assert test["p"] < 0.05
    u = stats.norm.cdf(np.sqrt(0.5))  # the mean of the PIT of a truth one deviation above
    assert test["bias"] == pytest.approx(u - 0.5, abs=4 * 0.29 / np.sqrt(40))


def test_simulations_must_be_alike():
    part = xr.Dataset({"scalar": (("quantity", "rank"), np.eye(3)[:1])}, {"quantity": ["a"]})
    with pytest.raises(DataError, match=r"have \[2, 3\] members"):
        simulated_calibration([part.assign_attrs(members=m) for m in (2, 3)])
    with pytest.raises(DataError, match="no simulation"):
        simulated_calibration([])
