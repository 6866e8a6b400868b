r"""Is the bundled planet an atmosphere? Balances, climate and the day, against what is known.

Where a tolerance depends on how the excerpt is packed, it follows from the promise the packing
makes: an error of at most 1 % of each field's standard deviation, root mean square.
"""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from appa.data import climatology
from appa.data.planet import climatology as planet_climatology
from appa.data.planet import statistics
from appa.data.stores import open_store
from appa.data.variables import G
from appa.evaluation.diurnal import by_local_hour, daily_harmonic
from appa.evaluation.physics import (
    PLANET,
    geostrophic_balance,
    geostrophic_wind,
    global_mean,
    hydrostatic_error,
    hydrostatic_residual,
    jets,
    saturation_humidity,
)

ALL = ("time", "latitude", "longitude")
PACKING = 0.01


@pytest.fixture(scope="module")
def ds() -> xr.Dataset:
    return open_store("planet").load()


@pytest.fixture(scope="module")
def year() -> xr.Dataset:
    r"""The climatology in the middle of each month, in dimensions (month, hour 0, 6, 12, 18)."""
    times = [f"2021-{month:02d}-15T{h:02d}" for month in range(1, 13) for h in (0, 6, 12, 18)]
    expected = climatology.evaluate(planet_climatology(), times)
    return expected.groupby("time.month").mean("time")


def area_mean(field: xr.DataArray) -> xr.DataArray:
    return global_mean(field).mean("time")


def autocorrelation(field: xr.DataArray, hours: int) -> float:
    r"""Of departures from the mean of the excerpt, over area and time."""
    anomaly = field - field.mean("time")
    lagged = anomaly.isel(time=slice(hours, None)).values * anomaly.isel(time=slice(-hours)).values
    lagged = anomaly.isel(time=slice(hours, None)).copy(data=lagged)
    return float(area_mean(lagged) / area_mean(anomaly**2))


# Hydrostatic balance


def test_temperature_and_geopotential_are_hydrostatic(ds):
    residual = hydrostatic_residual(ds, PLANET)
    rms = np.sqrt(area_mean(residual**2))
    # Profiles bend inside a layer at the model's own levels, which the estimate does not see:
    # twice its size allows for that. Rounding errs independently at a layer's two ends.
    curvature = 2 * np.sqrt(area_mean(hydrostatic_error(ds, PLANET) ** 2))
    height = PACKING * (ds["geopotential"].std(ALL) / G).values
    limit = np.sqrt(curvature**2 + height[:-1] ** 2 + height[1:] ** 2)
    assert (rms < limit).all(), (rms / limit).values
    assert rms.isel(layer=slice(1, None)).max() < 12  # m


def test_hydrostatic_balance_has_no_bias(ds):
    # Rounding cancels in the mean over 442,368 columns; what is left is the model's 8 levels.
    bias = abs(area_mean(hydrostatic_residual(ds, PLANET)))
    assert bias.isel(layer=0).item() < 10  # m, 50–100 hPa: one bend between two model levels
    assert bias.isel(layer=slice(1, None)).max() < 1
    # The test is sharp enough to notice that vapour is light, or a kelvin.
    dry = abs(area_mean(hydrostatic_residual(ds.drop_vars("specific_humidity"), PLANET)))
    assert dry.isel(layer=slice(8, None)).min() > 1
    warm = ds.assign(temperature=ds["temperature"] + 1.0)
    assert abs(area_mean(hydrostatic_residual(warm, PLANET))).min() > 1


# Geostrophic balance


def test_wind_is_geostrophic_outside_the_tropics(ds):
    balance = geostrophic_balance(ds[[*ds.data_vars]].sel(level=[500, 1000]), PLANET)
    at = balance.sel(level=500)
    assert at["correlation"] > 0.97
    assert at["speed_correlation"] > 0.93
    # Slower than geostrophic: air curves around lows, where the centrifugal force helps out.
    assert 0.88 < at["ratio"] < 1
    assert at["angle"] == pytest.approx(90, abs=1)
    assert at["angle_spread"] < 10
    # Friction turns the wind at the ground towards low pressure and slows it down.
    ground = balance.sel(level=1000)
    assert 97 < ground["angle"] < 115
    assert ground["ratio"] < at["ratio"]
    assert ground["correlation"] < at["correlation"]


@pytest.mark.parametrize("sign", [1, -1])
def test_both_hemispheres_are_balanced(ds, sign):
    # f changes sign: a mistake in it, or a flipped field, is seen in one hemisphere
    one = ds.sel(level=500)
    geo = geostrophic_wind(one, PLANET, equator=20)
    # next to the poles meridians are so close that rounding makes a storm
    latitude = sign * ds["latitude"].values
    keep = (latitude > 20) & (latitude < 75)
    for name, field in geo.items():
        wind, balanced = one[name].values[:, keep], field.values[:, keep]
        assert np.corrcoef(wind.ravel(), balanced.ravel())[0, 1] > 0.9
        slope = (wind * balanced).sum() / (balanced**2).sum()
        assert 0.8 < slope < 1


# Jets and winds


def test_a_westerly_jet_in_each_hemisphere(year, ds):
    u = year["u_component_of_wind"].sel(level=250)
    found = jets(u)
    # Earth's at 200–250 hPa: 20–45 m/s, 25–55° from the equator, strongest in winter.
    assert ((found["speed"] > 15) & (found["speed"] < 50)).all()
    assert ((abs(found["latitude_of_jet"]) > 22) & (abs(found["latitude_of_jet"]) < 60)).all()
    north, south = found["speed"].sel(hemisphere="north"), found["speed"].sel(hemisphere="south")
    assert north.sel(month=1) > north.sel(month=7) + 5
    assert south.sel(month=7) > south.sel(month=1) + 5
    excerpt = jets(ds["u_component_of_wind"].sel(level=250).mean("time"))
    assert (excerpt["speed"] > 20).all()


def test_trades_and_westerlies_at_the_ground(year):
    u = year["10m_u_component_of_wind"].mean(("month", "longitude"))
    latitude = abs(u["latitude"])
    assert u.where((latitude > 5) & (latitude < 20)).max() < 0
    assert u.where((latitude > 42) & (latitude < 55)).min() > 0


# Water


def test_humidity_is_positive_and_hardly_beyond_saturation(ds):
    q = ds["specific_humidity"].astype(np.float64)
    assert q.min() >= 0
    saturated = saturation_humidity(ds["temperature"], 100.0 * ds["level"], "speedy")
    beyond = area_mean((q - saturated).clip(min=0)) / area_mean(q)
    # Spectral transport rings in cold air, and SPEEDY condenses over 4 hours: the share of vapour
    # beyond saturation is next to nothing where there is vapour, and grows above.
    assert beyond.sel(level=slice(700, None)).max() < 0.002
    assert beyond.sel(level=[500, 600]).max() < 0.01
    assert beyond.sel(level=slice(250, 400)).max() < 0.06
    assert beyond.max() < 0.2
    # The tolerance is narrow: air 5 % drier or moister at saturation would be noticed below.
    close = (q > 0.95 * saturated).sel(level=925).mean()
    assert 0.02 < close < 0.4


def test_precipitation_is_that_of_earth(ds, year):
    tp = ds["total_precipitation"]
    assert tp.min() >= 0
    # Earth has 2.6–3.1 mm a day, by satellite and by reanalysis.
    excerpt = 24e3 * float(area_mean(tp))
    annual = 24e3 * float(global_mean(year["total_precipitation"]).mean())
    assert 2.2 < excerpt < 3.3
    assert 2.5 < annual < 3.1
    # It falls at the equator and at middle latitudes, not in between.
    zonal = year["total_precipitation"].mean(("month", "longitude"))
    bands = [zonal.sel(latitude=slice(high, low)).mean() for high, low in ((8, -8), (28, 18))]
    assert bands[0] > 2 * bands[1]


def test_hourly_precipitation_has_memory(ds):
    tp = ds["total_precipitation"]
    # Weather systems carry it along outside the tropics; there convection flickers.
    away = tp.where(abs(tp["latitude"]) > 35)
    assert autocorrelation(away, 1) > 0.85
    assert autocorrelation(tp, 1) > 0.3
    assert autocorrelation(tp, 24) < 0.3


# Pressure and temperature


def test_sea_level_pressure_is_that_of_earth(ds, year):
    msl = ds["mean_sea_level_pressure"] / 100
    assert 1005 < area_mean(msl) < 1015
    assert 1009 < global_mean(year["mean_sea_level_pressure"]).mean() / 100 < 1014
    assert 930 < msl.min() < 985  # a storm or two at any time
    assert 1025 < msl.max() < 1070
    # High ground leaves no trace in it: no higher or lower there than elsewhere.
    high = ds["geopotential_at_surface"] > 1000 * G
    assert abs(area_mean(msl.where(high)) - area_mean(msl.where(~high))) < 12
    # Half of it is Antarctica's, whose weather is stormier; reduced with the raw orography it
    # would be five times as large.
    assert msl.where(high).std() < 1.6 * msl.where(~high).std()


def test_surface_temperature_is_that_of_earth(ds, year):
    t2m = ds["2m_temperature"]
    assert 200 < t2m.min() < 240
    assert 300 < t2m.max() < 325
    monthly = global_mean(year["2m_temperature"])
    assert 285.5 < monthly.mean() < 289
    # As on Earth, the globe is warmest in the north's summer: there is the land.
    assert int(monthly.idxmax("month")) in (7, 8)
    assert 2 < monthly.max() - monthly.min() < 5


def test_seasons_follow_the_dates(year):
    north = global_mean(year["2m_temperature"].where(year["latitude"] > 30))
    south = global_mean(year["2m_temperature"].where(year["latitude"] < -30))
    assert int(north.idxmax("month")) in (7, 8)
    assert int(north.idxmin("month")) in (1, 2)
    assert int(south.idxmax("month")) in (1, 2)
    assert int(south.idxmin("month")) in (7, 8)


def test_sea_surface_temperature(ds):
    sst = ds["sea_surface_temperature"]
    assert (sst.isnull() == (ds["land_sea_mask"] >= 0.5)).all()
    # 271.46 K is freezing; rounding to a step errs by half of it, √3 times the rms.
    rounding = np.sqrt(3) * PACKING * float(sst.std())
    assert sst.min() >= 271.46 - rounding
    assert sst.max() < 305
    assert sst.min() < 271.46 + 0.5  # and ice has it
    # prescribed by the day
    assert float(abs(sst.diff("time")).mean()) < 0.01


# The day


@pytest.mark.parametrize("band", [(30, 60), (10, 30), (-10, 10), (-30, -10)])
def test_land_is_warmest_in_the_afternoon(ds, band):
    here = (ds["latitude"] >= band[0]) & (ds["latitude"] < band[1])
    land = ds["land_sea_mask"] >= 0.5
    cycle = by_local_hour(ds["2m_temperature"])
    on_land = global_mean(cycle.where(here & land))
    at_sea = global_mean(cycle.where(here & ~land))
    assert 14 <= int(on_land.idxmax()) <= 18
    assert 4 <= int(on_land.idxmin()) <= 9
    assert 1.5 < on_land.max() - on_land.min() < 12
    assert at_sea.max() - at_sea.min() < 0.4 * (on_land.max() - on_land.min())


def test_pressure_has_the_suns_tide(ds):
    # Earth's semidiurnal tide: 1.2 hPa at the equator, weaker away from it, with maxima near 10
    # and 22 o'clock everywhere.
    wave = daily_harmonic(ds["mean_sea_level_pressure"], 2)["wave"].mean("longitude")
    tropics = wave.sel(latitude=slice(20, -20)).mean("latitude").item()
    assert 80 < abs(tropics) < 200
    assert (-np.degrees(np.angle(tropics)) / 30) % 12 == pytest.approx(10, abs=1.5)
    assert abs(wave.sel(latitude=slice(90, 60))).mean() < abs(tropics) / 3


def test_an_hour_changes_little(ds):
    for name, level in (
        ("2m_temperature", None),
        ("mean_sea_level_pressure", None),
        ("10m_v_component_of_wind", None),
        ("geopotential", 500),
        ("temperature", 850),
        ("u_component_of_wind", 250),
        ("specific_humidity", 700),
    ):
        field = ds[name] if level is None else ds[name].sel(level=level)
        assert 0.94 < autocorrelation(field, 1) < 1
        assert autocorrelation(field, 6) < autocorrelation(field, 1)
        # no hour jumps: the largest change of the whole map is like the others
        change = np.sqrt(global_mean(field.diff("time") ** 2))
        assert change.max() < 2 * change.mean()


# The climate the excerpt belongs to


def test_statistics_are_those_of_the_training_simulation(ds):
    stats = statistics()
    assert stats.attrs["hours"] == 24 * 365 * 6  # 24 members of a year, 4-hourly
    assert stats.attrs["first_time"] == "1901-01-01T00"
    assert stats.attrs["last_time"] == "1924-12-30T20"
    means, deviations = [], []
    for name in stats.data_vars:
        moments = stats[name]
        x = (ds[name] - moments.sel(statistic="mean")) / moments.sel(statistic="std")
        # Vapour in the stratosphere has a season of its own, and little else.
        if name == "specific_humidity":
            assert abs(x.sel(level=[50, 100]).mean(ALL)).max() < 0.5
            x = x.sel(level=slice(150, None))
        means.append(np.atleast_1d(x.mean(ALL)))
        deviations.append(np.atleast_1d(x.std(ALL)))
    mean, deviation = np.concatenate(means), np.concatenate(deviations)
    assert np.abs(mean).max() < 0.25
    assert np.abs(deviation - 1).max() < 0.3
    # Its own would be 0 and 1 within the packing's error.
    assert np.abs(mean).mean() > 3 * PACKING
    assert np.abs(deviation - 1).mean() > PACKING


def test_weather_departs_from_the_climatology_as_it_should(ds):
    clim = planet_climatology()
    assert clim.attrs["hours"] == 24 * 365 * 6
    expected = climatology.evaluate(clim, ds["time"].values)
    for name, level in (("2m_temperature", None), ("geopotential", 500), ("temperature", 850)):
        anomaly, spread = ds[name] - expected[name], clim[f"{name}_std"]
        if level is not None:
            anomaly, spread = anomaly.sel(level=level), spread.sel(level=level)
        # 4 days hold few independent weathers: about 100 over the globe, so 1 ± 0.25
        ratio = float(np.sqrt(area_mean(anomaly**2) / global_mean(spread**2)))
        assert 0.75 < ratio < 1.25
