from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy.stats import binom, chi2

from appa.data.grids import Grid
from appa.data.variables import ATMOSPHERIC, SURFACE, VARIABLES
from appa.errors import DataError
from appa.observations.networks import Network, Satellite, named_network
from appa.observations.orbits import Orbit, swath
from appa.observations.synthesis import COLUMNS, hold_out, observe

GRID = Grid("gaussian", 48, 96)
LEVELS = np.array([500, 700, 850])
WINDS = ("10m_u_component_of_wind", "10m_v_component_of_wind")


def atmosphere(hours: int = 24, start: str = "2021-03-21T00", grid: Grid = GRID) -> xr.Dataset:
    r"""Fields linear in latitude and time, which bilinear interpolation returns exactly (between
    the first and the last row). The west is sea, the east is land that rises eastward."""
    time = pd.date_range(start, periods=hours, freq="h")
    coords = {
        "time": time,
        "level": LEVELS,
        "latitude": grid.latitude,
        "longitude": grid.longitude,
    }
    ds = xr.Dataset(coords=coords)
    phi = xr.DataArray(grid.latitude, dims="latitude")
    lam = xr.DataArray(grid.longitude, dims="longitude")
    hour = xr.DataArray(np.arange(hours), dims="time")
    level = xr.DataArray(LEVELS / 1000, dims="level")
    for k, name in enumerate(SURFACE):
        ds[name] = (0.1 * hour + (100 + k + 0.3 * phi) + 0 * lam).astype("float32")
    for k, name in enumerate(ATMOSPHERIC):
        ds[name] = (50 + k + 0.3 * phi + hour * level + 0 * lam).astype("float32")
        ds[name] = ds[name].transpose("time", "level", "latitude", "longitude")
    ds["land_sea_mask"] = ((lam < 180) + 0 * phi).transpose("latitude", "longitude").astype("f4")
    ds["geopotential_at_surface"] = (9.80665 * 10 * (phi + 90) + 0 * lam).astype("f4")
    ds["sea_surface_temperature"] = ds["sea_surface_temperature"].where(ds["land_sea_mask"] < 0.5)
    return ds


def deviations(ds: xr.Dataset) -> xr.Dataset:
    r"""Made-up statistics, other than the data's own, different for each variable and level."""
    stats = xr.Dataset(coords={"statistic": ["mean", "std"], "level": LEVELS})
    for k, name in enumerate(SURFACE):
        stats[name] = ("statistic", [0.0, 2.0 + k])
    for k, name in enumerate(ATMOSPHERIC):
        stats[name] = (("statistic", "level"), [[0.0] * 3, [1.0 + k, 2.0 + k, 3.0 + k]])
    return stats


@pytest.fixture(scope="module")
def truth():
    return atmosphere()


@pytest.fixture(scope="module")
def stats(truth):
    return deviations(truth)


@pytest.fixture(scope="module")
def network():
    return named_network(GRID, stations=150)


@pytest.fixture(scope="module")
def seen(truth, stats, network):
    return observe(truth, network, statistics=stats)


def gaussian(z: np.ndarray) -> None:
    r"""Asserts that numbers may be independent standard normal draws: mean, variance and kurtosis,
    each within what one draw in a million exceeds."""
    n = z.size
    assert abs(z.mean()) < 5 / np.sqrt(n)
    low, high = chi2.ppf([5e-7, 1 - 5e-7], n)
    assert low < (z**2).sum() < high
    assert abs((z**4).mean() - 3) < 5 * np.sqrt(96 / n)  # Var(ε⁴) = 105 − 9


def test_table(seen, network, stats):
    table, _ = seen
    assert tuple(table.columns) == COLUMNS
    assert table["level"].isna().all()
    assert table["longitude"].between(0, 360, inclusive="left").all()
    for name in SURFACE:
        rows = table[table["variable"] == name]
        assert rows["error"].to_numpy() == pytest.approx(0.01 * float(stats[name][1]))
    counts = table["variable"].value_counts()
    assert (counts.drop("sea_surface_temperature") == 150 * 24).all()
    assert not table.duplicated(["time", "station", "variable"]).any()


def test_stations_see_the_truth_at_their_place_plus_noise(seen):
    table, _ = seen
    hour = (table["time"] - pd.Timestamp("2021-03-21")) / pd.Timedelta("1h")
    k = table["variable"].map({name: k for k, name in enumerate(SURFACE)})
    exact = 100 + k + 0.3 * table["latitude"] + 0.1 * hour
    inner = table["latitude"].abs() < GRID.latitude[0]
    z = ((table["value"] - exact) / table["error"])[inner].to_numpy()
    assert z.size > 17_000
    assert np.abs(z).max() < 6
    gaussian(z)

    # Neither variables nor hours share their noise.
    by_variable = table.assign(z=(table["value"] - exact) / table["error"])
    wide = by_variable.pivot_table(index=["time", "station"], columns="variable", values="z")
    wide = wide.drop(columns="sea_surface_temperature")
    correlation = np.corrcoef(wide.to_numpy().T) - np.eye(5)
    assert np.abs(correlation).max() < 5 / np.sqrt(len(wide))
    t2m = wide["2m_temperature"].unstack("time").to_numpy()
    assert abs((t2m[:, 1:] * t2m[:, :-1]).mean()) < 5 / np.sqrt(t2m[:, 1:].size)


def test_swath_is_the_truth_in_view_plus_noise(seen, truth, stats):
    _, gridded = seen
    view = swath(Orbit(), GRID.latitude[:, None], GRID.longitude, truth["time"].values)
    for name in ATMOSPHERIC:
        assert gridded[name].dims == truth[name].dims
        assert gridded[name].attrs["units"] == VARIABLES[name].units
        for level in LEVELS:
            error = gridded[f"{name}_error"].sel(level=level).values
            std = float(stats[name].sel(statistic="std", level=level))
            np.testing.assert_array_equal(np.isfinite(error), view)
            np.testing.assert_allclose(error[view], 0.1 * std, rtol=1e-6)
            difference = (gridded[name] - truth[name]).sel(level=level).values
            np.testing.assert_array_equal(np.isfinite(difference), view)
            gaussian(difference[view].astype(np.float64) / (0.1 * std))

    z = [(gridded[n] - truth[n]).values[:, j][view] for n in ATMOSPHERIC for j in range(3)]
    correlation = np.corrcoef(z) - np.eye(15)
    assert np.abs(correlation).max() < 5 / np.sqrt(view.sum())


def test_satellites_see_no_surface(seen):
    _, gridded = seen
    assert set(gridded.data_vars) == {*ATMOSPHERIC, *(f"{n}_error" for n in ATMOSPHERIC)}


def test_the_same_seed_sees_the_same(seen, truth, network, stats):
    table, gridded = observe(truth, network, statistics=stats)
    pd.testing.assert_frame_equal(table, seen[0])
    xr.testing.assert_identical(gridded, seen[1])
    other, elsewhere = observe(truth, network, statistics=stats, seed=1)
    assert not np.isclose(other["value"], table["value"], rtol=0, atol=1e-9).any()
    a, b = elsewhere["temperature"].values, gridded["temperature"].values
    assert not np.equal(a, b)[np.isfinite(a)].mean() > 1e-3


def test_independent_of_selection_order_and_chunks(seen, truth, network, stats):
    table, gridded = seen
    few = ["temperature", "2m_temperature", "geopotential", "land_sea_mask"]
    part = truth[[*few, "geopotential_at_surface"]].isel(time=[17, 3]).sel(level=[850, 500])
    table_part, gridded_part = observe(part, network, statistics=stats)
    for time in part["time"].values:
        expected = table[(table["time"] == time) & (table["variable"] == "2m_temperature")]
        found = table_part[table_part["time"] == time]
        pd.testing.assert_frame_equal(found.reset_index(drop=True), expected.reset_index(drop=True))
    whole = gridded.isel(time=[17, 3]).sel(level=[850, 500])
    for name in ("temperature", "geopotential"):
        found = gridded_part[name].sel(level=[850, 500])  # levels ascend in what is returned
        np.testing.assert_array_equal(found, whole[name])

    lazy, gridded_lazy = observe(truth.chunk(time=5), network, statistics=stats)
    pd.testing.assert_frame_equal(lazy, table)
    xr.testing.assert_equal(gridded_lazy, gridded)


def test_a_stations_noise_is_its_own(seen, truth, network, stats):
    r"""Fewer stations, in another order, see what they saw among the others."""
    table, _ = seen
    few = network.stations.iloc[[40, 3, 111, 7]]
    found, _ = observe(truth, replace(network, stations=few), statistics=stats)
    keys = ["time", "variable", "station"]
    expected = table.set_index(keys).loc[pd.MultiIndex.from_frame(found[keys])].reset_index()
    assert len(found) > 4 * 24 * 5
    pd.testing.assert_frame_equal(found, expected[list(COLUMNS)])
    others = few.assign(station=["a", "b", "c", "d"])
    renamed, _ = observe(truth, replace(network, stations=others), statistics=stats)
    assert not np.isclose(renamed["value"], found["value"], rtol=0, atol=1e-9).any()


def test_statistics_are_the_stores_own_by_default(truth, network):
    table, _ = observe(truth.isel(time=slice(2)), network)
    rows = table[table["variable"] == "2m_temperature"]
    std = truth["2m_temperature"].isel(time=slice(2)).values.astype(np.float64).std()
    assert rows["error"].to_numpy() == pytest.approx(0.01 * std, rel=1e-5)


def varied(hours: int = 2) -> xr.Dataset:
    r"""The atmosphere with another value at each point, so that none can stand for another."""
    ds, rng = atmosphere(hours), np.random.default_rng(2)
    for name in (*SURFACE, *ATMOSPHERIC):
        ds[name] = ds[name] + rng.normal(0, 10, ds[name].shape).astype("float32")
    return ds


FORMS = {
    "ascending latitude": lambda ds: ds.isel(latitude=slice(None, None, -1)),
    "descending level": lambda ds: ds.isel(level=slice(None, None, -1)),
    "transposed": lambda ds: ds.transpose("longitude", "latitude", "level", "time"),
    "±180": lambda ds: ds.assign_coords(
        longitude=(ds["longitude"] + 180) % 360 - 180
    ).sortby("longitude"),
    "other names": lambda ds: ds.rename(latitude="lat", longitude="lon", time="valid_time"),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_the_same_planet_in_another_form(form, network, stats):
    truth = varied()
    table, gridded = observe(truth, network, statistics=stats)
    table_too, gridded_too = observe(FORMS[form](truth), network, statistics=stats)
    pd.testing.assert_frame_equal(table_too, table)
    xr.testing.assert_equal(gridded_too, gridded)


def test_one_hour_without_its_dimension(network, stats):
    truth = varied()
    table, _ = observe(truth.isel(time=slice(1)), network, statistics=stats)
    pd.testing.assert_frame_equal(observe(truth.isel(time=0), network, statistics=stats)[0], table)


def at(latitude, longitude, **options) -> Network:
    frame = pd.DataFrame({"latitude": latitude, "longitude": longitude, "elevation": -1.0})
    frame["station"] = [f"S{k}" for k in range(len(frame))]
    return Network("places", frame, **options)


def test_sea_surface_is_seen_at_sea_only(stats):
    r"""Coasts at 178° and −2° of longitude, half way between grid points."""
    truth = atmosphere(hours=1)
    #   open sea, off the coast, on the coast's land side, far inland, off the other coast
    places = at([10.0, 10.0, 10.0, 10.0, 10.0], [200.0, 178.5, 177.5, 90.0, -2.5])
    table, _ = observe(truth, places, statistics=stats)
    rows = table[table["variable"] == "sea_surface_temperature"]
    assert list(rows["station"]) == ["S0", "S1", "S4"]
    # Land takes no part: off the coast too the value is that of the sea.
    z = ((rows["value"] - (104 + 0.3 * 10)) / rows["error"]).to_numpy()
    assert (np.abs(z) < 6).all()  # false for NaN
    # Elsewhere all five see everything else.
    assert (table["variable"].value_counts().drop("sea_surface_temperature") == 5).all()


def test_wind_across_the_pole(stats):
    r"""A wind of 1 m/s over the pole, :math:`u = -\sin \lambda`, :math:`v = -\sin \varphi \cos
    \lambda`: its components turn round, itself does not."""
    truth = atmosphere(hours=1)
    phi, lam = np.radians(GRID.latitude)[:, None], np.radians(GRID.longitude)
    for name, field in zip(
        WINDS, (-np.sin(lam) + 0 * phi, -np.sin(phi) * np.cos(lam)), strict=True
    ):
        truth[name] = (truth[name].dims, field[None].astype("float32"))

    latitude = np.array([89.5, 88.0, 89.9, -89.5, 60.0])
    longitude = np.array([10.0, 200.0, 350.0, 77.0, 30.0])
    table, _ = observe(truth, at(latitude, longitude, noise=1e-6), statistics=stats)
    u, v = (table[table["variable"] == name]["value"].to_numpy() for name in WINDS)
    phi, lam = np.radians(latitude), np.radians(longitude)
    # Bilinear: within (Δ²/8)(|f_φφ| + |f_λλ|), with Δ up to 5.7° across the pole.
    tolerance = np.radians(5.7) ** 2 / 8 * 2 + 1e-4
    np.testing.assert_allclose(u, -np.sin(lam), atol=tolerance)
    np.testing.assert_allclose(v, -np.sin(phi) * np.cos(lam), atol=tolerance)


def test_elevation_is_that_of_the_stores_ground(stats):
    truth = atmosphere(hours=1)
    table, _ = observe(truth, at([0.0, 45.0], [100.0, 250.0]), statistics=stats)
    heights = table.drop_duplicates("station")["elevation"].to_numpy()
    np.testing.assert_allclose(heights, [900.0, 1350.0], rtol=1e-5)
    table, _ = observe(
        truth.drop_vars("geopotential_at_surface"), at([0.0], [100.0]), statistics=stats
    )
    assert (table["elevation"] == -1.0).all()


def test_two_satellites_share_what_both_see(truth, stats):
    hour = truth.isel(time=slice(2))
    lone = Satellite()
    sharp = Satellite(noise=0.05, variables=("temperature",))
    network = at([], [], satellites=(lone, sharp))
    table, gridded = observe(hour, network, statistics=stats)
    assert len(table) == 0
    assert tuple(table.columns) == COLUMNS
    std = stats["temperature"].sel(statistic="std").values[:, None]
    error = gridded["temperature_error"].values
    expected = std / np.sqrt(1 / 0.1**2 + 1 / 0.05**2)
    for k in range(2):
        seen = np.isfinite(error[k])
        for j in range(3):
            np.testing.assert_allclose(error[k, j][seen[j]], expected[j, 0], rtol=1e-6)
    z = ((gridded["temperature"] - hour["temperature"]) / gridded["temperature_error"]).values
    gaussian(z[np.isfinite(z)].astype(np.float64))
    humid = gridded["specific_humidity_error"].sel(level=500).values
    np.testing.assert_allclose(humid[np.isfinite(humid)], 0.1 * 5.0, rtol=1e-6)


def test_noise_is_not_clipped(stats):
    truth = atmosphere(hours=4)
    truth["total_precipitation"] *= 0
    table, _ = observe(truth, named_network(GRID), statistics=stats)
    rain = table[table["variable"] == "total_precipitation"]["value"]
    assert 0.3 < (rain < 0).mean() < 0.7
    gaussian((rain / 0.07).to_numpy())


def test_years_before_1970(stats):
    table, gridded = observe(atmosphere(1, "1905-06-01T12"), named_network(GRID), statistics=stats)
    assert np.isfinite(table["value"]).all()
    assert np.isfinite(gridded["temperature"]).any()


def test_mistakes(truth, stats, network):
    broken = truth.isel(time=slice(1)).copy(deep=True)
    broken["2m_temperature"][0, 10:40] = np.nan
    with pytest.raises(DataError, match="'2m_temperature' is NaN at 2021-03-21"):
        observe(broken, network, statistics=stats)
    with pytest.raises(DataError, match="statistics lack 'temperature'"):
        observe(truth, network, statistics=stats.drop_vars("temperature"))
    with pytest.raises(DataError, match=r"lack the levels \[700\]"):
        observe(truth, network, statistics=stats.sel(level=[500, 850]))
    with pytest.raises(DataError, match=r"found the seed -1; give a whole number of 0 or more"):
        observe(truth, network, statistics=stats, seed=-1)
    with pytest.raises(DataError, match=r"found the seed 0.5"):
        observe(truth, network, statistics=stats, seed=0.5)  # pyright: ignore
    members = xr.concat([truth, truth], "member").assign_coords(member=[0, 1])
    with pytest.raises(DataError, match=r"found 2 members.*select a member"):
        observe(members, network, statistics=stats)
    with pytest.raises(DataError, match="nothing to observe"):
        observe(truth[["land_sea_mask"]], network, statistics=stats)


def test_errors_in_units(stats):
    truth = atmosphere(hours=2)
    network = at([10.0] * 50, np.linspace(190, 350, 50), errors={"2m_temperature": 0.25})
    sounder = Satellite(errors={"temperature": 0.75})
    table, gridded = observe(truth, replace(network, satellites=(sounder,)), statistics=stats)
    by_variable = table.groupby("variable")["error"].first()
    assert by_variable["2m_temperature"] == 0.25
    assert by_variable["10m_u_component_of_wind"] == pytest.approx(0.01 * 3.0)
    error = gridded["temperature_error"].values
    np.testing.assert_allclose(error[np.isfinite(error)], 0.75, rtol=1e-6)
    z = (gridded["temperature"] - truth["temperature"]).values / 0.75
    gaussian(z[np.isfinite(z)].astype(np.float64))


def test_stations_see_derived_observables(stats):
    r"""A wind of (3, 4) m/s has a speed of 5 m/s and comes from 216.87°; the thickness follows
    from the geopotentials, also of a level between."""
    truth = atmosphere(hours=2)
    for name, value in zip(WINDS, (3.0, 4.0), strict=True):
        truth[name] = xr.full_like(truth[name], value)
    for level, value in zip(LEVELS, (50_000.0, 30_000.0, 14_000.0), strict=True):
        truth["geopotential"].loc[{"level": level}] = value
    errors = {"10m_wind_speed": 0.5, "10m_wind_direction": 100.0, "thickness_600_850": 10.0}
    network = at(
        np.linspace(-60, 60, 200), np.linspace(0, 350, 200), variables=tuple(errors), errors=errors
    )
    table, gridded = observe(truth, network, statistics=stats)
    assert not gridded.data_vars
    share = np.log(600 / 500) / np.log(700 / 500)
    z600 = (1 - share) * 50_000 + share * 30_000
    exact = {
        "10m_wind_speed": np.sqrt(25 + 1e-4),
        "thickness_600_850": (z600 - 14_000) / 9.80665,
    }
    for name, value in exact.items():
        rows = table[table["variable"] == name]
        assert (rows["error"] == errors[name]).all()
        assert len(rows) == 400
        gaussian(((rows["value"] - value) / errors[name]).to_numpy())
    angle = table.loc[table["variable"] == "10m_wind_direction", "value"].to_numpy()
    assert ((angle >= 0) & (angle < 360)).all()
    mean = np.angle(np.exp(1j * np.radians(angle)).mean(), deg=True) % 360
    assert mean == pytest.approx(216.87, abs=5 * 100 / np.sqrt(400))


def test_satellites_see_derived_observables(stats):
    r"""Air as warm as the ground at all levels shines at its own temperature, whatever the
    channel; saturated air has a relative humidity of 100 %."""
    truth = atmosphere(hours=1)
    truth["temperature"] = xr.full_like(truth["temperature"], 273.16)
    truth["2m_temperature"] = xr.full_like(truth["2m_temperature"], 273.16)
    truth["mean_sea_level_pressure"] = xr.full_like(truth["mean_sea_level_pressure"], 101_325.0)
    # At the triple point saturation is at 611.2 Pa; e = 611.2 = q p / (ε + (1 − ε) q).
    for level in LEVELS:
        q = 0.621981 * 611.21 / (100 * level - (1 - 0.621981) * 611.21)
        truth["specific_humidity"].loc[{"level": level}] = q
    errors = {"brightness_temperature_amsua_6": 0.3, "relative_humidity": 2.0}
    satellite = Satellite(variables=("temperature", *errors), errors=errors)
    _, gridded = observe(truth, at([], [], satellites=(satellite,)), statistics=stats)
    view = swath(Orbit(), GRID.latitude[:, None], GRID.longitude, truth["time"].values)

    seen = gridded["brightness_temperature_amsua_6"]
    assert seen.dims == ("time", "latitude", "longitude")
    assert (seen.attrs["units"], seen.attrs["ancillary_variables"]) == ("K", f"{seen.name}_error")
    np.testing.assert_array_equal(np.isfinite(seen.values), view)
    gaussian((seen.values[view].astype(np.float64) - 273.16) / 0.3)

    humidity = gridded["relative_humidity"]
    assert humidity.dims == ("time", "level", "latitude", "longitude")
    z = (humidity.values[0][:, view[0]].astype(np.float64) - 100) / 2
    gaussian(z)
    error = gridded["relative_humidity_error"].values
    np.testing.assert_allclose(error[np.isfinite(error)], 2.0, rtol=1e-6)


def test_a_derived_observable_lacks_its_inputs(truth, stats):
    network = at([10.0], [20.0], variables=("10m_wind_speed",), errors={"10m_wind_speed": 1.0})
    with pytest.raises(DataError, match="nothing to observe"):
        observe(truth[["2m_temperature", "land_sea_mask"]], network, statistics=stats)
    column = at(
        [],
        [],
        satellites=(Satellite(variables=("surface_pressure",), errors={"surface_pressure": 1}),),
    )
    with pytest.raises(DataError, match=r"needs elevation, ground.*geopotential_at_surface"):
        observe(truth.drop_vars("geopotential_at_surface"), column, statistics=stats)


def test_stations_held_out(seen):
    table, _ = seen
    kept, held = hold_out(table, 0.2, seed=3)
    assert not set(kept["station"]) & set(held["station"])
    assert len(kept) + len(held) == len(table)
    assert tuple(held.columns) == COLUMNS
    number = held["station"].nunique()
    # 150 stations, each with a chance of 0.2
    low, high = binom.ppf([1e-4, 1 - 1e-4], 150, 0.2)
    assert low <= number <= high
    again = hold_out(table, 0.2, seed=3)
    pd.testing.assert_frame_equal(again[0], kept)
    assert set(hold_out(table, 0.2, seed=4)[1]["station"]) != set(held["station"])


def test_a_stations_fate_hangs_on_nothing_else(seen):
    table, _ = seen
    fate = set(hold_out(table, 0.2)[1]["station"])
    some = table[table["variable"] == "2m_temperature"].sample(frac=0.5, random_state=0)
    assert set(hold_out(some, 0.2)[1]["station"]) == fate & set(some["station"])
    assert fate < set(hold_out(table, 0.5)[1]["station"])
    # Nor are those held out the ones a smaller network would choose.
    chosen = set(named_network(GRID, stations=30).stations["station"])
    held = len(fate & chosen)
    low, high = binom.ppf([1e-4, 1 - 1e-4], 30, 0.2)
    assert low <= held <= high


def test_holding_out_goes_wrong(seen):
    table, _ = seen
    for share in (0, 1, -0.1, np.nan, "0.2"):
        with pytest.raises(DataError, match="give above 0 and below 1"):
            hold_out(table, share)
    one = table[table["station"] == table["station"].iloc[0]]
    with pytest.raises(DataError, match="of 1 stations"):
        hold_out(one, 0.5)
    with pytest.raises(DataError, match="no column station"):
        hold_out(table.drop(columns="station"), 0.2)
    drifting = pd.concat([table, table.head(10).assign(station=np.nan)], ignore_index=True)
    kept, held = hold_out(drifting, 0.2)
    assert kept["station"].isna().sum() == 10
    assert not held["station"].isna().any()
