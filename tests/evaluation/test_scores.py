r"""Scores against sums written out, and areas known in closed form."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from appa.data.grids import Grid
from appa.errors import DataError
from appa.evaluation.scores import rmse, standardized_rmse

GRID = Grid("gaussian", 24, 48)
DIMS = ("time", "level", "latitude", "longitude")


def field(hours: int = 3, levels: int = 2) -> xr.DataArray:
    rng = np.random.default_rng(0)
    return xr.DataArray(
        rng.normal(280, 2, (hours, levels, *GRID.shape)).astype("float32"),
        coords={
            "time": pd.date_range("2021-03-21", periods=hours, freq="h"),
            "level": np.arange(levels) * 350 + 500,
            "latitude": GRID.latitude,
            "longitude": GRID.longitude,
        },
        dims=DIMS,
    )


def test_half_the_globe():
    r"""A field that is off by c on the northern half of the area and right elsewhere is off by
    :math:`c / \sqrt 2`."""
    truth = field().isel(level=0)
    north = xr.DataArray(np.where(GRID.latitude > 0, 3.0, 0.0), dims="latitude")
    error = standardized_rmse(truth + north, truth, 2.0)
    assert float(error) == pytest.approx(3 / 2 / np.sqrt(2), rel=1e-5)


def test_area_counts_not_rows():
    truth = field().isel(level=0)
    polar = xr.DataArray(np.where(np.arange(24) == 0, 1.0, 0.0), dims="latitude")
    share = np.sqrt(GRID.area[0].sum() / GRID.area.sum())
    found = rmse((truth + polar).transpose("longitude", ...), truth)
    assert float(found) == pytest.approx(share, rel=1e-4)


def test_undefined_values_take_no_part():
    r"""Against the sums, with other points undefined in each hour and in each of the two."""
    rng = np.random.default_rng(1)
    truth, estimate = field(), field() + rng.normal(size=(3, 2, *GRID.shape))
    truth = truth.where(rng.random(truth.shape) < np.array([0.9, 0.5, 0.1])[:, None, None, None])
    estimate = estimate.where(rng.random(truth.shape) < 0.8)
    found = rmse(estimate, truth)
    assert found.dims == ("level",)
    for k in range(2):
        top = bottom = 0.0
        for t, i, j in np.ndindex(3, *GRID.shape):
            d = float(estimate[t, k].values[i, j]) - float(truth[t, k].values[i, j])
            if np.isfinite(d):
                top, bottom = top + GRID.weights[i] * d**2, bottom + GRID.weights[i]
        assert float(found[k]) == pytest.approx(np.sqrt(top / bottom), rel=1e-12)
    assert np.isnan(rmse(truth * np.nan, truth)).all()


def test_levels_have_deviations_of_their_own():
    truth = field()
    shift = xr.DataArray([1.0, 3.0], {"level": truth["level"]})
    deviation = xr.DataArray([2.0, 12.0], {"level": truth["level"]})
    found = standardized_rmse(truth + shift, truth, deviation)
    np.testing.assert_allclose(found, [0.5, 0.25], rtol=1e-6)
    assert rmse(truth + shift, truth, ("latitude", "longitude")).dims == ("time", "level")


def test_other_hours_are_an_error():
    with pytest.raises(DataError, match="not of the same hours and places"):
        rmse(field().isel(time=slice(2)), field())
