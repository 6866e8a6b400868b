from __future__ import annotations

import numpy as np
import pytest

from appa.errors import DataError
from appa.observations.units import conversion, looks_like, plausible_range, recognise


@pytest.mark.parametrize(
    ("units", "target", "value", "expected"),
    [
        ("°C", "K", 15.0, 288.15),
        ("degC", "K", -40.0, 233.15),
        ("°F", "K", -40.0, 233.15),  # where both scales meet
        ("degrees Fahrenheit", "K", 212.0, 373.15),
        ("hPa", "Pa", 1013.25, 101325.0),
        ("mb", "Pa", 1013.25, 101325.0),
        ("inHg", "Pa", 29.921, 101324.1),  # the altimeter setting of the standard atmosphere
        ("mmHg", "Pa", 760.0, 101325.0),
        ("kt", "m s-1", 1.0, 1852 / 3600),
        ("km/h", "m s-1", 36.0, 10.0),
        ("m s**-1", "m s-1", 7.0, 7.0),
        ("mph", "m s-1", 1.0, 1609.344 / 3600),
        ("mm", "m", 3.0, 0.003),
        ("in", "m", 1.0, 0.0254),
        ("mm", "kg m-2", 25.0, 25.0),  # water weighs a kilogram a litre
        ("g/kg", "kg kg-1", 8.0, 0.008),
        ("%", "1", 55.0, 0.55),
        ("gpm", "m2 s-2", 5500.0, 5500 * 9.80665),
        ("m", "m2 s-2", 5500.0, 5500 * 9.80665),
        ("dam", "m2 s-2", 550.0, 5500 * 9.80665),
        ("dam", "m", 546.0, 5460.0),
        ("radians", "degree", np.pi, 180.0),
    ],
)
def test_conversions(units, target, value, expected):
    scale, offset = conversion(units, target)
    assert scale * value + offset == pytest.approx(expected, rel=1e-5)


def test_conversion_there_and_back():
    a, b = conversion("°F", "K")
    c, d = conversion("K", "°F")
    assert c * (a * 50.0 + b) + d == pytest.approx(50.0)


def test_unknown_units_name_the_nearest():
    with pytest.raises(DataError, match=r"'celcius' is unknown; did you mean '°C'"):
        conversion("celcius", "K", "2m_temperature")
    with pytest.raises(DataError, match=r"hPa is of another kind; units that convert: K, °C, °F"):
        conversion("hPa", "K", "2m_temperature")
    with pytest.raises(DataError, match="'dBZ' is unknown; known: m s-1"):
        conversion("dBZ", "m s-1")
    for other in ("kg", "g", "knotts", "W"):  # a mass is not meant to be a temperature
        with pytest.raises(DataError, match=f"'{other}' is unknown; known: K, °C, °F"):
            conversion(other, "K", "2m_temperature")
    with pytest.raises(DataError, match="'knotts' is unknown; did you mean 'kn'"):
        conversion("knotts", "m s-1")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("t2m", ("2m_temperature", None, None)),
        ("T2M", ("2m_temperature", None, None)),
        ("2m temperature", ("2m_temperature", None, None)),
        ("10u", ("10m_u_component_of_wind", None, None)),
        ("u10", ("10m_u_component_of_wind", None, None)),  # no wind at 10 hPa
        ("z500", ("geopotential", 500.0, None)),
        ("T850", ("temperature", 850.0, None)),
        ("gh", ("geopotential", None, "gpm")),
        ("geopotential_height", ("geopotential", None, "gpm")),
        ("thickness_500_1000", ("thickness_500_1000", None, None)),
        ("thickness_300_700", ("thickness_300_700", None, None)),
        ("10m_wind_speed", ("10m_wind_speed", None, None)),
        ("dewpoint", None),
        ("nan", None),
    ],
)
def test_names(name, expected):
    assert recognise(name) == expected


def column(name, center, spread, n=200):
    return center + spread * np.random.default_rng(0).standard_normal(n)


@pytest.mark.parametrize(
    ("name", "level", "values", "units", "expected"),
    [
        ("2m_temperature", None, column("t", 15, 6), None, "°C"),
        ("2m_temperature", None, column("t", 60, 15), None, "°F"),
        ("2m_temperature", None, column("t", 285, 10), "°C", "K"),
        ("mean_sea_level_pressure", None, column("p", 1013, 10), None, "hPa"),
        ("mean_sea_level_pressure", None, column("p", 101_300, 1000), "hPa", "Pa"),
        ("mean_sea_level_pressure", None, column("p", 29.9, 0.3), None, "inHg"),
        ("geopotential", 500, column("z", 5500, 150), None, "gpm"),
        ("geopotential", 500, column("z", 550, 15), None, "dam"),
        ("specific_humidity", 850, column("q", 7, 2), None, "g kg-1"),
        ("total_precipitation", None, np.abs(column("r", 0, 0.3)), None, "mm"),
        ("relative_humidity", 850, column("rh", 0.6, 0.1), None, "1"),
    ],
)
def test_columns_in_another_unit(name, level, values, units, expected):
    assert looks_like(name, values, *plausible_range(name, level), units)[0] == expected


@pytest.mark.parametrize(
    ("name", "level", "values"),
    [
        ("2m_temperature", None, column("t", 285, 15)),
        ("mean_sea_level_pressure", None, column("p", 101_300, 1500)),
        ("10m_u_component_of_wind", None, column("u", 0, 8)),
        ("geopotential", 500, column("z", 54_000, 1500)),
        ("specific_humidity", 850, np.abs(column("q", 0.007, 0.002))),
        ("total_precipitation", None, np.abs(column("r", 0, 3e-4))),
        ("total_precipitation", None, np.zeros(10)),
        ("relative_humidity", 850, column("rh", 60, 10)),
        ("relative_humidity", 100, np.abs(column("rh", 4, 2))),
        ("2m_temperature", None, np.array([])),
        ("2m_temperature", None, np.array([np.nan, 280.0])),
    ],
)
def test_columns_in_their_own_unit(name, level, values):
    assert looks_like(name, values, *plausible_range(name, level)) == []


def test_a_few_bad_values_are_no_other_unit():
    values = column("t", 285, 10)
    values[:80] = 12.0
    assert looks_like("2m_temperature", values, 170, 335) == []
    values[:] = -9999.0  # a sign for missing, in no unit
    assert looks_like("2m_temperature", values, 170, 335) == []
    values[::3] = 15.0
    assert looks_like("2m_temperature", values, 170, 335) == []


def test_dry_air_may_be_said_to_be_dry():
    values = np.abs(column("rh", 0.8, 0.2))  # of the stratosphere, if somebody says so
    assert looks_like("relative_humidity", values, 0, 170) == ["1"]
    assert looks_like("relative_humidity", values, 0, 170, "%") == []
    assert looks_like("relative_humidity", values, 0, 170, "1") == []
