r"""Spectra and errors of ensembles whose distributions are known, and intervals over dates."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy import stats

from appa.data.grids import Grid
from appa.errors import DataError
from appa.evaluation.dates import over_dates
from appa.evaluation.distributions import signed_errors, spectra
from appa.evaluation.ensembles import averages
from appa.evaluation.scores import evaluate

GRID = Grid("gaussian", 12, 24)
TIMES = pd.date_range("2021-03-21", periods=5, freq="h")
RTOL = 1e-6  # stores are in single precision
DIMS = ("time", "latitude", "longitude")


def world(values: np.ndarray, land: bool = False, start: str = "2021-03-21") -> xr.Dataset:
    times = pd.date_range(start, periods=len(values), freq="h")
    values = np.broadcast_to(values, (len(times), *GRID.shape)).copy()
    if land:
        values[:, :3] = np.nan
    coords = {"time": times, "latitude": GRID.latitude, "longitude": GRID.longitude}
    return xr.Dataset({"2m_temperature": (DIMS, values, {"units": "K"})}, coords)


def test_spectra_of_a_harmonic():
    r"""sin φ has the mean square 1/3, all of it at l = 1; members are 1, 2 and 3 times that."""
    pytest.importorskip("ducc0", reason="the extra 'evaluation' is not installed")
    wave = np.sin(np.radians(GRID.latitude))[:, None] * np.ones(GRID.shape)
    truth = world(np.stack([wave] * 5))
    members = truth * xr.DataArray([1.0, 2.0, 3.0], dims="member")
    found = spectra(members, truth, hours=3)
    assert found.attrs == {"members": 3, "hours": 3}
    energy = found["spectrum"].isel(channel=0)
    np.testing.assert_allclose(energy.sel(source="truth")[:, 1], 1 / 3, rtol=RTOL)
    expected = np.quantile(np.repeat([1.0, 4.0, 9.0], 3), [0.05, 0.5, 0.95]) / 3
    np.testing.assert_allclose(energy.sel(source="members")[:, 1], expected, rtol=RTOL)
    rest = energy.isel(wavenumber=[0, *range(2, energy.sizes["wavenumber"])])
    assert float(abs(rest).max()) < 1e-12
    assert found["wavelength"].values[1] == pytest.approx(2 * np.pi * 6371 / np.sqrt(2), rel=1e-3)
    assert np.isnan(spectra(members, world(np.zeros((5, 1, 1)), land=True))["spectrum"][0]).all()
    with pytest.raises(DataError, match="hours=0"):
        spectra(members, truth, hours=0)


def test_signed_errors_lie_where_they_are():
    r"""Members are 1 too low and 3 too high everywhere: half of the area each, and a bias of 1."""
    truth = world(np.random.default_rng(0).normal(280, 9, (5, *GRID.shape)), land=True)
    members = truth + xr.DataArray([-1.0, 3.0], dims="member")
    found = signed_errors(members, truth, bins=41).isel(channel=0)
    width = float(found["error"][1] - found["error"][0])
    assert float(found["error"][-1]) + width / 2 == pytest.approx(4 * np.sqrt(5))
    share = found["density"] * width
    for source, places in {"members": {-1.0: 0.5, 3.0: 0.5}, "mean": {1.0: 1.0}}.items():
        of = share.sel(source=source)
        for error, area in places.items():
            k = np.abs(found["error"].values - error).argmin()
            assert float(of[k]) == pytest.approx(area)
        assert float(of.sum()) == pytest.approx(1)
        assert float(found["bias"].sel(source=source)) == pytest.approx(1)
    assert found["outside"].values.tolist() == [0, 0]

    # one hour far off, which bins from others do not reach; points count by area
    values = np.zeros((5, *GRID.shape))
    values[1, :6] = 100.0
    values += 1.0
    one = signed_errors(world(values), world(np.zeros((5, 1, 1)))).isel(channel=0)
    assert one["source"].values.tolist() == ["members"]
    assert float(one["outside"][0]) == pytest.approx(0.1)  # a hemisphere of one hour of five
    assert float(one["bias"][0]) == pytest.approx(1 + 0.1 * 100)


def test_intervals_over_dates():
    r"""The CRPS of a state an hour is its absolute error, so that a mean over dates has the usual
    interval; skill is the root of the mean square."""
    rng = np.random.default_rng(1)
    errors = rng.normal(5, 1, 24)
    zero = np.zeros((3, 1, 1))
    parts = []
    for k, error in enumerate(errors):
        start = f"2021-03-{k + 1:02d}T06"
        grown = error * np.array([1.0, 2.0, 3.0]).reshape(3, 1, 1)
        parts.append(averages(world(grown, start=start), world(zero, start=start)))
    found = over_dates(parts).isel(region=0, channel=0)
    assert found["lead_time"].values.tolist() == [1, 2, 3]
    np.testing.assert_allclose(found["crps"], errors.mean() * np.arange(1, 4), rtol=1e-6)
    np.testing.assert_allclose(
        found["skill"], np.sqrt((errors**2).mean()) * np.arange(1, 4), rtol=1e-6
    )
    half = stats.t.ppf(0.975, 23) * errors.std(ddof=1) / np.sqrt(24)
    # ends beyond 1.7 % of 2,000 samples have an error of 3 % of the half-width, besides skewness
    np.testing.assert_allclose(
        found["crps_low"] / np.arange(1, 4), errors.mean() - half, atol=0.2 * half
    )
    np.testing.assert_allclose(
        found["crps_high"] / np.arange(1, 4), errors.mean() + half, atol=0.2 * half
    )
    assert ((found["skill_low"] < found["skill"]) & (found["skill"] < found["skill_high"])).all()
    one = over_dates(parts[:1], starts=["2021-03-01T00"])
    assert one["lead_time"].values.tolist() == [6, 7, 8]
    assert "skill_low" not in one
    alone = evaluate(world(np.full((3, 1, 1), 2.0)), world(zero))["skill"]
    np.testing.assert_allclose(alone, 2)
    with pytest.raises(DataError, match="2 starts of 24 runs"):
        over_dates(parts, starts=["2021-03-01", "2021-03-02"])
    apart = parts[1].assign_coords(time=parts[1]["time"] + np.timedelta64(30, "D"))
    with pytest.raises(DataError, match="no lead time in common"):
        over_dates([parts[0], apart], starts=["2021-03-01T05"] * 2)
