r"""Tests of ranks, one a simulation, on ranks that are uniform and on ones that are not."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from appa.errors import DataError
from appa.evaluation.simulation import (
    simulated_calibration,
    simulated_ranks,
    single_rank_test,
    summarize,
)


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


def test_misfits_are_kept_and_their_ratio_told():
    r"""Of means over simulations: (1.5 + 2.5) / (1 + 3), not the mean of 1.5 and 5/6; their spread
    is that of each. Files of an older version have ranks alone, and count for these."""
    nothing = xr.Dataset(coords={"member": [0, 1]})
    given = [(1.0, np.array([1.0, 2.0])), (3.0, np.array([2.0, 3.0]))]
    parts = [
        simulated_ranks(nothing, nothing, {"misfit": of, "projection 0": (0.0, np.zeros(2))})
        for of in given
    ]
    for part, (value, others) in zip(parts, given, strict=True):
        at = part.sel(quantity="misfit")
        assert at["scalar_truth"] == value
        np.testing.assert_array_equal(at["scalar_members"], others)
    found = simulated_calibration(parts)
    assert float(found["misfit_ratio"]) == pytest.approx(1)
    assert float(found["misfit_spread"]) == pytest.approx((1.5 - 2.5 / 3) / np.sqrt(2))
    assert found["misfit"].sel(source="members").values.tolist() == [1.5, 2.5]
    assert summarize(found)["misfit"] == pytest.approx(1)

    old = [part.drop_vars(["scalar_truth", "scalar_members"]) for part in parts]
    both = simulated_calibration([old[0], parts[1]])
    assert both.attrs["simulations"] == 2
    assert float(both["misfit_ratio"]) == pytest.approx(2.5 / 3)
    assert np.isnan(both["misfit_spread"])  # of one
    ranks = simulated_calibration(old)
    assert "misfit_ratio" not in ranks
    assert "misfit" not in summarize(ranks)
    for name in ranks.data_vars:
        np.testing.assert_array_equal(ranks[name], found[name])
