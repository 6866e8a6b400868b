r"""Planted daily cycles, found again by local time."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from appa.data.grids import Grid
from appa.errors import DataError
from appa.evaluation.diurnal import by_local_hour, daily_harmonic

GRID = Grid("gaussian", 12, 24)


def cycle(hours: int = 96, start: str = "2021-03-21T00") -> xr.DataArray:
    r"""3 cos(s − 15 h) + cos 2(s − 10 h) in local time s, on a warm and a cold hemisphere."""
    time = np.datetime64(start, "ns") + np.arange(hours) * np.timedelta64(1, "h")
    hour = (time.astype("datetime64[h]").astype(int) % 24)[:, None, None]
    local = hour + GRID.longitude / 15
    values = 3 * np.cos(2 * np.pi / 24 * (local - 15)) + np.cos(4 * np.pi / 24 * (local - 10))
    values = values + 280 + 10 * np.sign(GRID.latitude)[:, None]
    coords = {"time": time, "latitude": GRID.latitude, "longitude": GRID.longitude}
    return xr.DataArray(values, coords, ("time", "latitude", "longitude"))


@pytest.mark.parametrize("start", ["2021-03-21T00", "2021-03-21T17"])
def test_composite_is_the_same_at_all_longitudes(start):
    field = cycle(start=start)
    found = by_local_hour(field)
    assert found.dims == ("hour", "latitude", "longitude")
    assert "time" not in found.coords
    # 24 longitudes lie on whole hours: the composite is exact
    s = np.arange(24)
    expected = 3 * np.cos(2 * np.pi / 24 * (s - 15)) + np.cos(4 * np.pi / 24 * (s - 10))
    anomaly = found - found.mean("hour")
    assert np.abs(anomaly.values - expected[:, None, None]).max() < 1e-12
    assert found.mean("hour").values == pytest.approx(field.mean("time").values)


def test_composite_takes_levels_and_half_hours():
    levels = cycle().expand_dims(level=[500, 850], axis=1)
    found = by_local_hour(levels)
    assert found.dims == ("hour", "level", "latitude", "longitude")
    grid = Grid("gaussian", 12, 96)  # a longitude every quarter of an hour
    field = cycle().isel(longitude=np.zeros(96, int)).assign_coords(longitude=grid.longitude)
    hour = (np.arange(96) % 24)[:, None, None] + grid.longitude / 15
    field = field.copy(data=np.broadcast_to(np.cos(2 * np.pi / 24 * (hour - 15)), field.shape))
    found = by_local_hour(field)
    expected = np.cos(2 * np.pi / 24 * (np.arange(24) - 15))[:, None, None]
    # half an hour at the steepest slope
    assert np.abs(found.values - expected).max() <= np.sin(2 * np.pi / 24 / 2) + 1e-12


def test_composite_needs_whole_days():
    with pytest.raises(DataError, match="whole days"):
        by_local_hour(cycle(95))
    field = cycle(48)
    with pytest.raises(DataError, match="whole days"):
        by_local_hour(xr.concat([field[:20], field[22:26]], "time"))


def test_harmonics_are_told_apart():
    field = cycle()
    one, two = daily_harmonic(field, 1), daily_harmonic(field, 2)
    assert one["amplitude"].values == pytest.approx(np.full(GRID.shape, 3.0))
    assert one["hour"].values == pytest.approx(np.full(GRID.shape, 15.0))
    assert two["amplitude"].values == pytest.approx(np.full(GRID.shape, 1.0))
    assert two["hour"].values == pytest.approx(np.full(GRID.shape, 10.0))
    # both follow the sun; what stands still in universal time does not
    assert abs(two["wave"].mean("longitude")).values == pytest.approx(np.ones(12))
    still = field.isel(longitude=[0] * 24).assign_coords(longitude=field["longitude"])
    assert abs(daily_harmonic(still, 1)["wave"].mean("longitude")).max() < 1e-12
