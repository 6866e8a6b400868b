r"""Faults planted in clean stores: each is found, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import xarray as xr

from appa.data import climatology, reduction
from appa.data.checks import Finding, check
from appa.data.stores import open_store
from appa.data.timeline import check_times
from appa.data.variables import LEVELS, VARIABLES, plausible, standard_height
from appa.errors import DataError, StoreError

from .public_layout import canonical, hours
from .test_statistics import damaged_store

FEW = (200, 500, 850, 1000)
NAMES = tuple(VARIABLES)

# Amplitude of weather, in the variable's unit; humidity's is a share of itself
WEATHER = {
    "2m_temperature": 4.0,
    "10m_u_component_of_wind": 4.0,
    "10m_v_component_of_wind": 4.0,
    "mean_sea_level_pressure": 700.0,
    "sea_surface_temperature": 0.3,
    "total_precipitation": 8e-5,
    "temperature": 3.0,
    "u_component_of_wind": 8.0,
    "v_component_of_wind": 8.0,
    "geopotential": 500.0,
    "specific_humidity": 0.15,
}


def planet(start: str, n: int, seed: int = 0, every: int = 1, levels=FEW) -> xr.Dataset:
    r"""The made-up planet of `public_layout` with weather: travelling waves at random places."""
    times = hours(start, n, every)
    ds = canonical(times, levels=levels)
    rng = np.random.default_rng(seed)
    t = (times - np.datetime64("2000-01-01", "ns")) / np.timedelta64(1, "h")
    lat, lon = ds["latitude"].values[:, None], np.deg2rad(ds["longitude"].values)
    for name, amplitude in WEATHER.items():
        field = ds[name].values if "level" in ds[name].dims else ds[name].values[:, None]
        for k in range(field.shape[1]):
            weather = np.zeros((n, *field.shape[2:]))
            for _ in range(12):
                m, period = rng.integers(1, 8), rng.uniform(60, 200)
                phase = m * lon - 2 * np.pi * (t / period)[:, None] + rng.uniform(0, 2 * np.pi)
                envelope = np.exp(-(((lat - rng.uniform(-70, 70)) / 20) ** 2))
                weather += rng.normal() * envelope * np.cos(phase)[:, None]
            weather *= amplitude / np.sqrt(6)
            if name == "specific_humidity":
                field[:, k] *= np.exp(weather)
            else:
                field[:, k] += weather
    rain = ds["total_precipitation"].values
    rain[:] = np.maximum(rain, 0)
    return ds


@pytest.fixture(scope="module")
def clim() -> xr.Dataset:
    r"""Fitted on the weather of another seed."""
    return climatology.fit(planet("2018-01-01", 365, seed=99, every=24), harmonics=2)


@pytest.fixture(scope="module")
def month() -> xr.Dataset:
    return planet("2020-02-10", 30 * 24, seed=1)


@pytest.fixture(scope="module")
def days() -> xr.Dataset:
    return planet("2020-06-20", 72, seed=2)


Expected = tuple[str, str, str, str | None, str | None, int]


def summary(findings: list[Finding]) -> list[Expected]:
    def text(t):
        return None if t is None else str(t.astype("datetime64[h]"))

    return [(f.kind, f.variable, f.level, text(f.start), text(f.stop), f.hours) for f in findings]


def turn(ds: xr.Dataset, which: slice, names=NAMES, levels=None) -> xr.Dataset:
    r"""A copy with north and south exchanged."""
    ds = ds.copy(deep=True)
    for name in names:
        x = ds[name].values[which]
        if levels is None or x.ndim == 3:
            x[:] = x[..., ::-1, :].copy()
        else:
            k = [FEW.index(level) for level in levels]
            x[:, k] = x[:, k][..., ::-1, :]
    return ds


def change(ds: xr.Dataset, name: str, function: Callable, which=slice(None), level=None):
    r"""A copy with a function applied to a variable."""
    ds = ds.copy(deep=True)
    x = ds[name].values[which]
    if level is not None:
        x = x[:, FEW.index(level)]
    x[:] = function(x)
    return ds


# Clean ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "start", ["2020-01-10", "2020-03-20", "2020-05-05", "2020-07-15", "2020-10-01"]
)
@pytest.mark.parametrize("seed", [3, 4])
def test_clean_stores_have_no_findings(clim, start, seed):
    assert check(planet(start, 48, seed), climatology=clim) == []


def test_clean_month(clim, month):
    assert check(month, climatology=clim) == []


@pytest.mark.parametrize("every", [6, 24])
def test_clean_stores_of_longer_steps(clim, every):
    ds = planet("2020-01-01", 60, seed=6, every=every)
    assert check(ds, climatology=clim, hourly=every) == []


def test_noise_without_pattern_is_not_flipped(clim):
    r"""Fields without memory say nothing about latitude: no claim is made."""
    rng = np.random.default_rng(0)
    ds = planet("2020-06-20", 48, seed=2)[["10m_v_component_of_wind", "v_component_of_wind"]]
    for name in ds:
        ds[name].values[:] = 5 * rng.standard_normal(ds[name].shape)
    assert check(ds, climatology=clim) == []
    # nor fields that are their own mirror image, or turn over smoothly through zero
    lat = np.sin(np.deg2rad(ds["latitude"].values))[:, None]
    ds["10m_v_component_of_wind"].values[:] = lat**2 * (1 + np.arange(48)[:, None, None])
    turning = np.cos(2 * np.pi * np.arange(48) / 24)[:, None, None]
    ds["v_component_of_wind"].values[:] = (10 * turning * lat)[:, None]
    assert check(ds, climatology=clim) == []


# Flipped latitude -------------------------------------------------------------------------------


def test_one_flipped_day_in_thirty(clim, month):
    expected = [("flipped latitude", "all", "", "2020-02-22T00", "2020-02-22T23", 24)]
    flipped = turn(month, slice(12 * 24, 13 * 24))
    assert summary(check(flipped, climatology=clim)) == expected


@pytest.mark.parametrize("name", NAMES)
def test_one_variable_flipped_for_a_day(clim, days, name):
    level = "" if VARIABLES[name].surface else "all"
    expected = [("flipped latitude", name, level, "2020-06-21T05", "2020-06-22T04", 24)]
    assert summary(check(turn(days, slice(29, 53), [name]), climatology=clim)) == expected


@pytest.mark.parametrize(
    ("which", "first", "last"),
    [
        (slice(0, 24), "2020-06-20T00", "2020-06-20T23"),
        (slice(48, 72), "2020-06-22T00", "2020-06-22T23"),
        (slice(40, 41), "2020-06-21T16", "2020-06-21T16"),
        (slice(47, 49), "2020-06-21T23", "2020-06-22T00"),
        (slice(0, 72), "2020-06-20T00", "2020-06-22T23"),
        (slice(3, 70), "2020-06-20T03", "2020-06-22T21"),
    ],
)
def test_flipped_at_the_edges_for_an_hour_and_altogether(clim, days, which, first, last):
    found = summary(check(turn(days, which), climatology=clim))
    assert found == [("flipped latitude", "all", "", first, last, len(range(72)[which]))]


@pytest.mark.parametrize("start", ["2020-01-15", "2020-04-10", "2020-08-01", "2020-10-20"])
def test_a_store_of_one_flipped_day(clim, start):
    ds = planet(start, 24, seed=7)
    found = summary(check(turn(ds, slice(None)), climatology=clim))
    assert found == [("flipped latitude", "all", "", f"{start}T00", f"{start}T23", 24)]


def test_some_levels_flipped(clim, days):
    ds = turn(days, slice(10, 20), ["v_component_of_wind"], [500, 850])
    ds = turn(ds, slice(60, 72), ["geopotential"], [200, 500])
    assert summary(check(ds, climatology=clim)) == [
        ("flipped latitude", "geopotential", "200, 500", "2020-06-22T12", "2020-06-22T23", 12),
        (
            "flipped latitude",
            "v_component_of_wind",
            "500, 850",
            "2020-06-20T10",
            "2020-06-20T19",
            10,
        ),
    ]


def test_one_variable_flipped_in_the_whole_store(clim, days):
    for name in ("2m_temperature", "temperature", "specific_humidity"):
        level = "" if VARIABLES[name].surface else "all"
        found = summary(check(turn(days, slice(None), [name]), climatology=clim))
        assert found == [("flipped latitude", name, level, "2020-06-20T00", "2020-06-22T23", 72)]


def test_flipped_days_between_gaps(clim):
    r"""Days far apart are not connected: each is judged by the climatology."""
    ds = xr.concat(
        [planet(f"2020-{m:02d}-05", 24, seed=m) for m in (1, 3, 5, 7)], "time", data_vars="minimal"
    )
    ds = ds.assign_coords(trajectory=("time", np.repeat([0, 1, 2, 3], 24)))
    assert check(ds, climatology=clim) == []
    found = summary(check(turn(ds, slice(48, 72)), climatology=clim))
    assert found == [("flipped latitude", "all", "", "2020-05-05T00", "2020-05-05T23", 24)]


def test_flipped_daily_states(clim):
    ds = planet("2020-01-01", 40, seed=8, every=24)
    names = ["2m_temperature", "geopotential", "sea_surface_temperature"]
    found = summary(check(turn(ds, slice(20, 21), names), climatology=clim, hourly=24))
    assert found == [
        ("flipped latitude", "2m_temperature", "", "2020-01-21T00", "2020-01-21T00", 1),
        ("flipped latitude", "geopotential", "all", "2020-01-21T00", "2020-01-21T00", 1),
        ("flipped latitude", "sea_surface_temperature", "", "2020-01-21T00", "2020-01-21T00", 1),
    ]


# Time -------------------------------------------------------------------------------------------


def test_missing_hours(clim, days):
    ds = days.isel(time=[*range(5), *range(8, 30), *range(31, 72)])
    assert summary(check(ds, climatology=clim)) == [
        ("missing hours", "", "", "2020-06-20T05", "2020-06-20T07", 3),
        ("missing hours", "", "", "2020-06-21T06", "2020-06-21T06", 1),
    ]


def test_many_gaps_are_one_finding(clim, month):
    ds = month.isel(time=np.setdiff1d(np.arange(720), np.arange(30, 700, 60)))
    (finding,) = check(ds, climatology=clim)
    assert (finding.kind, finding.hours, finding.spells) == ("missing hours", 12, 12)
    assert finding.when == "2020-02-11T06 … 2020-03-09T18, 12 hours in 12 spells"


def test_repeated_hours(clim, days):
    ds = days.isel(time=[*range(10), 9, 9, *range(10, 72)])
    found = check(ds, climatology=clim)
    assert summary(found) == [("repeated hours", "", "", "2020-06-20T09", "2020-06-20T09", 1)]
    assert "3 states" in found[0].found


def test_unsorted_hours(clim, days):
    ds = days.isel(time=[*range(10), 11, 10, *range(12, 72)])
    found = summary(check(ds, climatology=clim))
    assert found == [("unsorted hours", "", "", "2020-06-20T10", "2020-06-20T10", 1)]


def test_hours_off_the_hour(clim, days):
    times = days["time"].values.copy()
    times[7] += np.timedelta64(20, "m")
    times[30] -= np.timedelta64(1, "s")
    (finding,) = check(days.assign_coords(time=times), climatology=clim)
    assert (finding.kind, finding.hours, finding.spells) == ("off the hour", 2, 2)
    assert finding.when.startswith("2020-06-20T07:20 … ")


def test_trajectories_may_jump(clim, days):
    later = planet("2024-02-01", 48, seed=9)
    ds = xr.concat([days, later], "time", data_vars="minimal")
    assert [f.kind for f in check(ds, climatology=clim)] == ["missing hours"]
    ds = ds.assign_coords(trajectory=("time", np.repeat([1, 2], [72, 48])))
    assert check(ds, climatology=clim) == []
    # a gap inside the second is still a gap
    found = summary(check(ds.isel(time=[*range(80), *range(81, 120)]), climatology=clim))
    assert found == [("missing hours", "", "", "2024-02-01T08", "2024-02-01T08", 1)]


def test_a_store_of_another_step_is_one_finding():
    times = hours("2020-01-01", 400, every=6)
    (finding,) = check_times(times, np.zeros(400))
    assert finding.found == "a state every 6 hours, expected every 1"
    assert check_times(times, np.zeros(400), hourly=6) == []
    found = check_times(np.delete(times, 50), np.zeros(399), hourly=6)
    assert summary(found) == [("missing hours", "", "", "2020-01-13T12", "2020-01-13T12", 1)]
    assert len(check_times(np.delete(times, 50), np.zeros(399))) == 2


def test_stretches_are_meant():
    r"""Three days out of every fifteen: no gap is missing but one that is not like the others."""
    hours = (360 * np.arange(8)[:, None] + np.arange(72)).ravel()
    times = np.datetime64("2021-01-01T00", "ns") + hours * np.timedelta64(1, "h")
    between = 360 - 72 + 1
    one = np.zeros(len(times))
    assert check_times(times, one, between=between) == []
    assert [f.kind for f in check_times(times, one)] == ["missing hours"]
    (finding,) = check_times(np.delete(times, [100, 101]), one[2:], between=between)
    assert (finding.kind, finding.hours) == ("missing hours", 2)
    assert finding.start == times[100]


# Values -----------------------------------------------------------------------------------------

UNITS = [
    ("2m_temperature", "°C", lambda x: x - 273.15),
    ("sea_surface_temperature", "°C", lambda x: x - 273.15),
    ("temperature", "°C", lambda x: x - 273.15),
    ("mean_sea_level_pressure", "hPa", lambda x: x / 100),
    ("total_precipitation", "mm", lambda x: x * 1000),
    ("geopotential", "m (geopotential height)", lambda x: x / 9.80665),
    ("specific_humidity", "g kg-1", lambda x: x * 1000),
]


@pytest.mark.parametrize("which", [slice(None), slice(30, 36)])
@pytest.mark.parametrize(("name", "unit", "function"), UNITS)
def test_mistaken_units_are_named(clim, days, name, unit, function, which):
    found = check(change(days, name, function, which), climatology=clim)
    when = days["time"].values[which].astype("datetime64[h]")
    level = "" if VARIABLES[name].surface else "all"
    expected = [("units", name, level, str(when[0]), str(when[-1]), len(when))]
    assert summary(found) == expected
    assert f"in {unit}, not {VARIABLES[name].units}" in found[0].found
    # what it says to do makes it right
    word, number = found[0].advice.split()[0], float(found[0].advice.split()[-1])
    wrong = function(np.float64(280.0))
    right = wrong * number if word == "multiply" else wrong + number
    assert abs(right - 280) < 1e-3


def test_values_out_of_range(clim, days):
    ds = change(days, "2m_temperature", lambda x: x, slice(0, 1))
    ds["2m_temperature"].values[20:23, 4, 5] = 400
    ds["temperature"].values[50, 1, 3, :2] = 9.96921e36  # the usual fill value of NetCDF
    ds["u_component_of_wind"].values[60, 0, 9, 9] = -200
    found = check(ds, climatology=clim)
    assert summary(found) == [
        ("range", "2m_temperature", "", "2020-06-20T20", "2020-06-20T22", 3),
        ("range", "temperature", "500", "2020-06-22T02", "2020-06-22T02", 1),
        ("range", "u_component_of_wind", "200", "2020-06-22T12", "2020-06-22T12", 1),
    ]
    assert found[0].found == "up to 1 points from 400 to 400 K"
    assert "up to 2 points" in found[1].found
    assert "expected 190 to 305 at 500 hPa" in found[1].advice


def test_geopotential_of_another_level(clim, days):
    r"""A level in the place of another: plausible somewhere, but not there."""
    ds = days.copy(deep=True)
    ds["geopotential"].values[:, 1] = ds["geopotential"].values[:, 2]
    found = summary(check(ds, climatology=clim))
    assert found == [("range", "geopotential", "500", "2020-06-20T00", "2020-06-22T23", 72)]


def test_undefined_and_infinite(clim, days):
    ds = days.copy(deep=True)
    ds["temperature"].values[10:14, 2, 5, 5] = np.nan
    ds["mean_sea_level_pressure"].values[33, 4, :7] = np.inf
    ds["v_component_of_wind"].values[48:, :, 0] = np.nan
    found = check(ds, climatology=clim)
    assert summary(found) == [
        ("infinite", "mean_sea_level_pressure", "", "2020-06-21T09", "2020-06-21T09", 1),
        ("undefined", "temperature", "850", "2020-06-20T10", "2020-06-20T13", 4),
        ("undefined", "v_component_of_wind", "all", "2020-06-22T00", "2020-06-22T23", 24),
    ]
    assert found[0].found == "infinite at up to 7 of 684 points"


def test_hours_that_are_wholly_undefined(clim, days):
    ds = days.copy(deep=True)
    for name in NAMES:
        ds[name].values[[0, 1, 2, 40, 71]] = np.nan
    assert summary(check(ds, climatology=clim)) == [
        ("undefined", "all", "", "2020-06-20T00", "2020-06-20T02", 3),
        ("undefined", "all", "", "2020-06-21T16", "2020-06-21T16", 1),
        ("undefined", "all", "", "2020-06-22T23", "2020-06-22T23", 1),
    ]


def test_sst_over_sea_and_land(clim, days):
    sst = "sea_surface_temperature"
    land = days["land_sea_mask"].values > 0
    j, i = np.argwhere(~land)[100]
    ds = days.copy(deep=True)
    ds[sst].values[11, j, i] = np.nan
    ds[sst].values[50:53][:, land] = 280
    found = check(ds, climatology=clim)
    assert summary(found) == [
        ("undefined", sst, "", "2020-06-20T11", "2020-06-20T11", 1),
        ("undefined", sst, "", "2020-06-22T02", "2020-06-22T04", 3),
    ]
    # the same hole in every hour is seen by the land mask alone
    ds = days.copy(deep=True)
    places = [(j, i) for j in range(2, 17) for i in range(1, 35)]
    j, i = next((j, i) for j, i in places if not land[j - 1 : j + 2, i - 1 : i + 2].any())
    ds[sst].values[:, j, i] = np.nan
    assert summary(check(ds, climatology=clim)) == [("undefined", sst, "", None, None, 0)]
    assert check(ds.drop_vars("land_sea_mask"), climatology=clim) == []


def test_stuck_fields(clim, days):
    ds = days.copy(deep=True)
    ds["total_precipitation"].values[21:25] = ds["total_precipitation"].values[20]
    ds["temperature"].values[48, 3] = ds["temperature"].values[47, 3]
    found = summary(check(ds, climatology=clim))
    assert found == [
        ("stuck", "temperature", "1000", "2020-06-22T00", "2020-06-22T00", 1),
        ("stuck", "total_precipitation", "", "2020-06-20T21", "2020-06-21T00", 4),
    ]
    for name in NAMES:
        ds[name].values[:] = days[name].values
        ds[name].values[60:64] = ds[name].values[59]
    found = summary(check(ds, climatology=clim))
    assert found == [("stuck", "all", "", "2020-06-22T12", "2020-06-22T15", 4)]
    # SST alone is often given once a day
    ds = days.copy(deep=True)
    ds["sea_surface_temperature"].values[:24] = ds["sea_surface_temperature"].values[0]
    assert check(ds, climatology=clim) == []


def test_static_fields(clim, days):
    ds = days.copy(deep=True)
    ds["land_sea_mask"].values[:] *= 100  # per cent
    ds["geopotential_at_surface"].values[3, 3] = np.nan
    assert [(f.kind, f.variable) for f in check(ds, climatology=clim)] == [
        ("range", "land_sea_mask"),
        ("undefined", "geopotential_at_surface"),
    ]


# Inventory --------------------------------------------------------------------------------------


def test_missing_levels(clim):
    ds = planet("2020-06-20", 3, seed=2, levels=LEVELS)
    assert check(ds, climatology=clim) == []
    found = check(ds.drop_sel(level=[600, 925]), climatology=clim)
    assert [(f.kind, f.level) for f in found] == [("missing level", "600, 925")]
    assert check(ds.sel(level=[500, 850]), climatology=clim) == []  # meant, for all we know


def test_what_a_preset_expects(clim):
    from appa.config import load_config

    config = load_config("era5-0.25deg")
    ds = planet("2020-06-20", 3, seed=2, levels=LEVELS)
    ds = ds.drop_vars("total_precipitation").drop_sel(level=50)
    found = check(ds, climatology=clim, expect=config)
    assert [(f.kind, f.variable, f.level) for f in found] == [
        ("missing variable", "total_precipitation", ""),
        ("grid", "", ""),
        ("missing level", "all on levels", "50"),
    ]
    assert found[1].found == "19×36, expected 721×1440"
    assert "--grid equiangular:721x1440" in found[1].advice
    assert all(f.advice for f in found)


def test_grids_of_the_same_shape_differ(bundled):
    r"""48 latitudes are Gaussian or not: half a degree apart, and half a cell at the poles."""
    from appa.config import load_config

    config = load_config("planet")
    hour = bundled.isel(time=slice(0, 2))
    assert check(hour, expect=config) == []
    cells = hour.assign_coords(latitude=90 - 180 * (np.arange(48) + 0.5) / 48)
    found = [f.found for f in check(cells, expect=config) if f.kind == "grid"]
    assert found == ["equiangular-cells 48×96, expected gaussian 48×96"]
    part = check(hour.isel(latitude=slice(0, 20)), expect=config)
    assert "20×96 points of no known grid" in next(f.found for f in part if f.kind == "grid")


def test_short_names_are_not_passed_over(clim, tmp_path):
    ds = planet("2020-06-20", 3, seed=2, levels=LEVELS)
    names = {"2m_temperature": "t2m", "geopotential": "z", "land_sea_mask": "lsm"}
    short = ds.rename(names).assign(q=ds["specific_humidity"], vo=ds["temperature"])
    short.to_zarr(tmp_path / "a.zarr", consolidated=False)
    short.isel(time=slice(0, 2)).to_netcdf(tmp_path / "0.nc")
    short.isel(time=[2]).to_netcdf(tmp_path / "1.nc")
    sources = (short, tmp_path / "a.zarr", tmp_path / "0.nc", str(tmp_path / "*.nc"))
    for source in sources:
        found = check(open_store(source), climatology=clim)
        assert {(f.kind, f.variable) for f in found} == {
            ("unrecognised", "t2m"),
            ("unrecognised", "z"),
            ("unrecognised", "lsm"),
        }
        words = {f.variable: (f.found, f.advice) for f in found}
        assert words["t2m"] == (
            "t2m was not recognised; WeatherBench2's name is 2m_temperature",
            "rename it: ds.rename({'t2m': '2m_temperature'})",
        )
    # the note does not travel into what is written
    open_store(tmp_path / "a.zarr").to_netcdf(tmp_path / "copy.nc")
    assert check(open_store(tmp_path / "copy.nc"), climatology=clim) == []


# Damage -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["appa", "zarr"])
def test_damaged_hours_are_found(clim, days, layout, tmp_path):
    path = damaged_store(tmp_path / "a.zarr", days, layout)
    with pytest.raises((RuntimeError, ValueError)):  # the damage is real
        xr.open_zarr(path, consolidated=False)["geopotential"].load()
    found = check(open_store(path), climatology=clim)
    assert {(f.kind, f.variable, f.level) for f in found} == {("damaged", "geopotential", "all")}
    assert all("cannot be read (" in f.found and "again" in f.advice for f in found)
    if layout == "zarr":  # one chunk, one hour; a shard may lose several
        assert sum(f.hours for f in found) == 1


def test_damaged_fields_that_other_fields_need(clim, days, tmp_path):
    r"""SST tells land from sea, and the land mask does: what is left of them still is checked."""
    sst = "sea_surface_temperature"
    encoding = {name: {"chunks": (1, *days[name].shape[1:])} for name in NAMES}
    days.to_zarr(tmp_path / "a.zarr", zarr_format=2, encoding=encoding)
    (tmp_path / "a.zarr" / sst / "0.0.0").write_bytes(b"damaged")
    (tmp_path / "a.zarr" / "land_sea_mask" / "0.0").write_bytes(b"damaged")
    found = check(open_store(tmp_path / "a.zarr"), climatology=clim)
    assert summary(found) == [
        ("damaged", "land_sea_mask", "", None, None, 0),
        ("damaged", sst, "", "2020-06-20T00", "2020-06-20T00", 1),
    ]
    (tmp_path / "a.zarr" / "time" / "0").write_bytes(b"damaged")
    with pytest.raises((StoreError, DataError), match="damaged"):
        open_store(tmp_path / "a.zarr")


# How it is read ---------------------------------------------------------------------------------


def faulty(days: xr.Dataset) -> xr.Dataset:
    ds = turn(days, slice(20, 50), ["temperature", "10m_v_component_of_wind"])
    ds = change(ds, "mean_sea_level_pressure", lambda x: x / 100, slice(15, 33))
    ds["geopotential"].values[30:34, 1, 2, 2] = np.nan
    ds["2m_temperature"].values[25] = ds["2m_temperature"].values[24]
    return ds.isel(time=[*range(40), *range(42, 72)])


def test_blocks_and_schedulers_do_not_matter(clim, days, monkeypatch):
    ds = faulty(days)
    expected = check(ds, climatology=clim)
    assert len(expected) == 6
    for size in (1, 7 * 4 * 19 * 36 * 4):
        monkeypatch.setattr(reduction, "BLOCK_BYTES", size)
        assert check(ds, climatology=clim, workers=2) == expected
    assert check(ds.chunk(time=10), climatology=clim) == expected

    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
    )
    with cluster, distributed.Client(cluster) as client:
        assert check(ds, climatology=clim, scheduler=client) == expected


def test_every_hour_is_read_once(clim, days):
    r"""Except for the few hours whose SST tells where land is."""
    reads: dict[str, int] = {}

    class Counted(xr.backends.BackendArray):
        def __init__(self, name, values):
            self.name, self.values = name, values
            self.shape, self.dtype = values.shape, values.dtype

        def __getitem__(self, key):
            support = xr.core.indexing.IndexingSupport.BASIC
            return xr.core.indexing.explicit_indexing_adapter(key, self.shape, support, self.read)

        def read(self, key):
            out = self.values[key]
            reads[self.name] = reads.get(self.name, 0) + out.size
            return out

    ds = days.copy()
    for name in NAMES:
        lazy = xr.core.indexing.LazilyIndexedArray(Counted(name, days[name].values))
        ds[name] = (days[name].dims, lazy)
    assert check(ds, climatology=clim) == []
    field = 19 * 36
    for name in NAMES:
        extra = 25 * field if name == "sea_surface_temperature" else 0
        assert reads[name] == days[name].size + extra


def test_nothing_to_check(days):
    with pytest.raises(DataError, match="nothing to check"):
        check(days.isel(time=slice(0, 0)))
    with pytest.raises(DataError, match="several members"):
        check(days.expand_dims("member"))


def test_standard_atmosphere():
    r"""Heights of the ICAO standard atmosphere (Doc 7488), and ranges around them."""
    table = {
        1000: 111,
        850: 1457,
        700: 3012,
        500: 5574,
        250: 10363,
        100: 16180,
        50: 20576,
        10: 31055,
    }
    for level, height in table.items():
        assert abs(standard_height(level) - height) < 1
        low, high = plausible("geopotential", level)
        assert low < 9.80665 * height < high
    # every known variable has a range at each level, inside that of all levels
    for name, var in VARIABLES.items():
        for level in [None] if var.surface else LEVELS:
            low, high = plausible(name, level)
            assert var.plausible[0] - 5e3 <= low < high <= var.plausible[1] + 5e3


# The bundled planet: real dynamics, and the bundled climatology as reference ---------------------


@pytest.fixture(scope="module")
def bundled() -> xr.Dataset:
    return open_store("planet").isel(time=slice(0, 60)).load()


def test_the_bundled_planet_is_clean(bundled):
    assert check(bundled) == []


def test_a_flipped_day_of_the_bundled_planet(bundled):
    (finding,) = check(turn(bundled, slice(20, 44)))
    assert (finding.kind, finding.variable, finding.hours) == ("flipped latitude", "all", 24)
    assert finding.start == bundled["time"].values[20]


def test_the_bundled_planet_upside_down(bundled):
    (finding,) = check(turn(bundled, slice(None)))
    assert (finding.kind, finding.variable, finding.hours) == ("flipped latitude", "all", 60)
    (finding,) = check(turn(bundled.isel(time=slice(0, 24)), slice(None)))
    assert (finding.kind, finding.variable, finding.hours) == ("flipped latitude", "all", 24)


@pytest.mark.parametrize(
    "name", ["2m_temperature", "10m_v_component_of_wind", "geopotential", "total_precipitation"]
)
def test_a_flipped_day_of_one_of_its_variables(bundled, name):
    (finding,) = check(turn(bundled, slice(30, 54), [name]))
    assert (finding.kind, finding.variable, finding.hours) == ("flipped latitude", name, 24)


def test_a_dry_region_is_not_stuck():
    ds = open_store("planet").isel(time=slice(0, 12)).load()
    ds["total_precipitation"][:] = 0.0
    assert [f for f in check(ds) if f.kind == "stuck"] == []
    ds["10m_u_component_of_wind"][5] = ds["10m_u_component_of_wind"][4]
    assert [f.variable for f in check(ds) if f.kind == "stuck"] == ["10m_u_component_of_wind"]
