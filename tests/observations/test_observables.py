r"""Derived observables against published tables, analytic atmospheres and quadrature."""

from __future__ import annotations

import itertools
import math
import pickle
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.integrate import quad

import appa
from appa.data.grids import Grid
from appa.data.planet import statistics
from appa.data.states import Standardizer, undefined
from appa.data.variables import ATMOSPHERIC, LEVELS, SURFACE
from appa.errors import DataError
from appa.observations.derived import (
    CHANNELS,
    brightness_temperature,
    relative_humidity,
    saturation_pressure,
    total_column_water_vapour,
    wind_direction,
    wind_speed,
)
from appa.observations.observables import REGISTRY, find, known, observable, split_input
from appa.observations.operators import StateSpace, compile_observations

G, R = 9.80665, 287.05
PRESSURE = 100.0 * torch.tensor(LEVELS, dtype=torch.float64)[:, None]


def double(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture
def registry():
    r"""Observables registered by a test are gone after it."""
    find("10m_wind_speed")
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


def test_processes_can_be_sent_them():
    r"""Each comes back as it was, and brightness temperatures weight the same air."""
    for name, one in known().items():
        assert pickle.loads(pickle.dumps(one)).inputs == one.inputs, name
    n = len(LEVELS)
    column = torch.linspace(220.0, 290.0, n, dtype=torch.float64)[None, :, None]
    sea, ground, air = double(101_325.0)[None], double(0.0), double(288.0)[None]
    options = {"pressure": PRESSURE, "ground": ground}
    found = []
    for channel in CHANNELS:
        function = find(f"brightness_temperature_amsua_{channel}").function
        again = pickle.loads(pickle.dumps(function))
        found.append(float(again(column, sea, air, **options)))
        assert found[-1] == float(function(column, sea, air, **options))
    assert found == sorted(found, reverse=True)  # the higher a channel peaks, the colder


# Wind


def test_direction_is_where_the_wind_comes_from():
    # from the north, east, south, west, north-east
    u, v = double(0, -5, 0, 5, -3), double(-5, 0, 5, 0, -3)
    torch.testing.assert_close(wind_direction(u, v), double(0, 90, 180, 270, 45))


def test_direction_turns_as_the_wind_does():
    r"""Its derivative is one over the speed."""
    u, v = double(3.0, -7.0).requires_grad_(), double(4.0, 2.0).requires_grad_()
    gu, gv = torch.autograd.grad(wind_direction(u, v).sum(), (u, v))
    speed = np.hypot([3.0, -7.0], [4.0, 2.0])
    np.testing.assert_allclose(np.hypot(gu.numpy(), gv.numpy()), np.degrees(1 / speed), rtol=1e-12)


def test_calm_air_has_finite_derivatives():
    for function in (wind_speed, wind_direction):
        wind = torch.zeros(2, 3, requires_grad=True)
        value = function(wind[0], wind[1]).sum()
        (first,) = torch.autograd.grad(value, wind, create_graph=True)
        assert first.isfinite().all()
        if first.requires_grad:
            (second,) = torch.autograd.grad((first**2).sum(), wind, allow_unused=True)
            assert second is None or second.isfinite().all()
    assert wind_speed(torch.tensor(3.0), torch.tensor(4.0)).item() == pytest.approx(5, abs=1e-4)


# Humidity


def test_saturation_over_water():
    # Saturation pressure of water in Pa, from steam tables (IAPWS 1995).
    celsius, table = double(5, 10, 20, 30, 40), double(872.6, 1228.2, 2339.3, 4247.0, 7384.9)
    torch.testing.assert_close(saturation_pressure(celsius + 273.15), table, rtol=2e-3, atol=0)


def test_saturation_over_ice():
    # Vapour pressure of ice in Pa, from the CRC Handbook of Chemistry and Physics.
    celsius, table = double(-30, -40, -50, -60, -80), double(38.01, 12.84, 3.94, 1.08, 0.0548)
    torch.testing.assert_close(saturation_pressure(celsius + 273.15), table, rtol=1e-2, atol=0)
    # the triple point, where both phases meet
    assert saturation_pressure(double(273.16)).item() == pytest.approx(611.66, rel=2e-3)


def test_mixed_phase_is_between():
    t = np.linspace(250.2, 273.1, 50)
    ice = np.exp(9.550426 - 5723.265 / t + 3.53068 * np.log(t) - 0.00728332 * t)  # Murphy and Koop
    water = 611.2 * np.exp(17.62 * (t - 273.15) / (243.12 + t - 273.15))  # WMO
    mixed = saturation_pressure(torch.from_numpy(t)).numpy()
    assert (mixed > 0.997 * ice).all()
    assert (mixed < 1.003 * water).all()
    assert (np.diff(mixed) > 0).all()


def test_relative_humidity_of_saturated_air():
    # At 20 °C and 1000 hPa saturated air has a mixing ratio of 14.88 g/kg (2339.3 Pa of vapour):
    # r = 0.62198 e / (p − e), q = r / (1 + r).
    e, p = 2339.3, 1e5
    r = 0.62198 * e / (p - e)
    assert r == pytest.approx(0.0149, abs=1e-4)
    got = relative_humidity(double(293.15), double(r / (1 + r)), pressure=double(p))
    assert got.item() == pytest.approx(100, rel=2e-3)
    half = 0.62198 * (e / 2) / (p - e / 2)
    got = relative_humidity(double(293.15), double(half / (1 + half)), pressure=double(p))
    assert got.item() == pytest.approx(50, rel=2e-3)


def column_water(q, p_s: float) -> float:
    r"""Over a sea at 288.15 K whose pressure is p_s: no ground, no reduction."""
    zero = double(0.0)
    return total_column_water_vapour(
        torch.as_tensor(q, dtype=torch.float64).reshape(1, -1, 1),
        double([p_s]),
        double([288.15]),
        pressure=PRESSURE,
        elevation=zero,
        ground=zero,
        lapse=6.5e-3,
    ).item()


@pytest.mark.parametrize("p_s", [99_000.0, 87_300.0, 71_234.0, 50_000.0])
def test_water_of_an_exponential_profile(p_s):
    r"""q = q₀ (p/p₀)^λ integrates to q₀ p₀ (p_s/p₀)^(λ+1) / (λ+1) g, and constant above 50 hPa to a
    little more. Linear in s = p³, between levels it errs by at most Δs²/8 |d²q/ds²|: by nothing for
    λ = 3."""
    p, q_0 = PRESSURE[:, 0].numpy() / 1e5, 0.015
    depth = np.clip(p_s / 1e5 - p[:-1], 0, np.diff(p))
    for power in (3.0, 2.0, 2.5, 4.0):
        exact = q_0 * 1e5 * (p_s / 1e5) ** (power + 1) / (power + 1) / G
        exact += q_0 * 1e5 * p[0] ** (power + 1) * power / (power + 1) / G
        a = power / 3
        curve = q_0 * abs(a * (a - 1)) * (p**3) ** (a - 2)
        largest = np.maximum(curve[1:], curve[:-1])
        bound = (depth * np.diff(p**3) ** 2 / 8 * largest).sum() * 1e5 / G
        got = column_water(q_0 * p**power, p_s)
        assert abs(got - exact) < bound + 1e-9 * exact
        assert bound < 0.1 * exact


def test_water_of_well_mixed_air():
    # q constant: q p_s / g, wherever the surface is, below the lowest level too
    for p_s in (103_000.0, 100_000.0, 92_500.0, 63_000.0):
        exact = 0.004 * p_s / G
        assert column_water(np.full(13, 0.004), p_s) == pytest.approx(exact, rel=1e-6)
    # each hectopascal at the surface adds the humidity there: 100 Pa × q / g
    q = 0.015 * (PRESSURE[:, 0].numpy() / 1e5) ** 3
    more = column_water(q, 90_050.0) - column_water(q, 89_950.0)
    assert more == pytest.approx(100 * 0.015 * 0.9**3 / G, rel=1e-3)


# Radiation


def test_isothermal_air_has_its_own_brightness():
    for peak in CHANNELS.values():
        t = torch.full((1, 13, 2), 251.7, dtype=torch.float64)
        p_s = double([98_765.0, 61_000.0])
        got = brightness_temperature(t, t[:, 0], p_s, PRESSURE, 100 * peak)
        torch.testing.assert_close(got, t[:, 0], rtol=1e-14, atol=0)


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("p_s", [101_500.0, 88_000.0, 60_000.0])
def test_brightness_is_the_integral_of_its_definition(channel, p_s):
    x = np.log(PRESSURE[:, 0].numpy())
    profile = 210 + 60 * ((x - x[0]) / (x[-1] - x[0])) ** 2 + 4 * np.sin(3 * x)
    peak, surface = 100 * CHANNELS[channel], 281.0

    def weight(log_p):
        u = np.exp(2 * (log_p - math.log(peak)))
        return 2 * u * np.exp(-u)

    inner = [y for y in x if y < math.log(p_s)]
    edges = [math.log(1.0), *inner, math.log(p_s)]
    pieces = [
        quad(lambda y: np.interp(y, x, profile) * weight(y), a, b, epsabs=1e-10)[0]
        for a, b in itertools.pairwise(edges)
    ]
    through = math.exp(-((p_s / peak) ** 2))
    exact = sum(pieces) + through * surface

    column = torch.from_numpy(profile).reshape(1, 13, 1)
    got = brightness_temperature(column, double([surface]), double([p_s]), PRESSURE, peak)
    # five Gauss nodes a layer, and the definition cut off at 1 Pa
    assert got.item() == pytest.approx(exact, abs=2e-4)
    single = brightness_temperature(
        column.float(), torch.tensor([surface]), torch.tensor([p_s]), PRESSURE.float(), peak
    )
    assert single.item() == pytest.approx(exact, abs=1e-3)


def test_channels_see_from_the_ground_to_the_stratosphere():
    r"""Weights, the derivatives by temperature, sum to 1, and the mean of ln p under them rises
    from channel to channel."""
    means, p_s = [], double([101_000.0])
    for peak in CHANNELS.values():
        t = torch.full((1, 13, 1), 250.0, dtype=torch.float64, requires_grad=True)
        surface = torch.full((1, 1), 280.0, dtype=torch.float64, requires_grad=True)
        out = brightness_temperature(t, surface, p_s, PRESSURE, 100 * peak)
        weight, ground = torch.autograd.grad(out.sum(), (t, surface))
        assert (weight.sum() + ground.sum()).item() == pytest.approx(1, abs=1e-12)
        assert (weight > -1e-12).all()
        means.append(((weight * PRESSURE.log()).sum() / weight.sum()).exp().item() / 100)
        # what gets through: 0.36 in channel 4, 0.12 in 5, nothing above
        assert ground.item() == pytest.approx(math.exp(-((1010 / peak) ** 2)), abs=1e-12)
    assert (np.diff(means) < 0).all()


# Registration


def test_register_your_own_in_five_lines(registry):
    @observable("cold_outbreak", units="K", inputs=("2m_temperature", "temperature_850"))
    def cold_outbreak(surface, upper):
        return surface - upper * (1000 / 850) ** 0.286

    ds = appa.open_store("planet").isel(time=[0]).load()
    grid = Grid.from_coordinates(ds["latitude"], ds["longitude"])
    space = StateSpace.from_statistics(
        Standardizer(statistics(), land_mask=undefined(ds)), grid, ds
    )
    i, j = 10, 20  # at a grid point there is nothing to interpolate
    t2m = float(ds["2m_temperature"][0, i, j])
    t850 = float(ds["temperature"].sel(level=850)[0, i, j])
    table = pd.DataFrame(
        {
            "time": ds["time"].values,
            "hour": ds["time"].values,
            "latitude": grid.latitude[i],
            "longitude": grid.longitude[j],
            "variable": "cold_outbreak",
            "level": np.nan,
            "value": t2m - t850 * (1000 / 850) ** 0.286 + 1.5,
            "error": 0.5,
            "station": "here",
            "elevation": np.nan,
        }
    )
    observations = SimpleNamespace(points=table, gridded=None)
    (operator,) = compile_observations(observations, space, ds["time"].values)
    x = space.standardizer.to_tensor(ds)
    assert operator.departure(x).item() == pytest.approx(3.0, abs=1e-3)


def test_known_observables():
    assert list(known())[: len(SURFACE) + len(ATMOSPHERIC)] == [*SURFACE, *ATMOSPHERIC]
    for name in (
        "10m_wind_speed",
        "10m_wind_direction",
        "relative_humidity",
        "thickness_500_1000",
        "total_column_water_vapour",
        "surface_pressure",
        "brightness_temperature_amsua_5",
    ):
        assert known()[name] == find(name)
        low, high = find(name).plausible
        assert math.isfinite(low)
        assert low < high
    assert find("temperature").levels == "level"
    assert find("2m_temperature").levels == "surface"
    assert split_input("geopotential_500") == ("geopotential", 500)


def test_thickness_of_any_layer():
    seen = find("thickness_300_850")
    assert seen.inputs == ("geopotential_300", "geopotential_850")
    # isothermal air of 250 K: R T / g × ln(p₂/p₁)
    exact = R * 250 / G * math.log(850 / 300)
    phi = [R * 250 * math.log(1e5 / (100 * p)) for p in (300, 850)]
    assert seen.function is not None
    assert seen.function(*double(*phi)).item() == pytest.approx(exact, rel=1e-9)
    assert seen.plausible[0] < exact < seen.plausible[1]
    assert find("thickness_850_300").inputs == seen.inputs
    with pytest.raises(DataError, match="between 500 and 500 hPa; give two"):
        find("thickness_500_500")


def test_plausible_ranges_hold_the_planet():
    r"""Every point of an hour is within, and the range is no more than some times what there is."""
    ds = appa.open_store("planet").isel(time=[7]).load()
    grid = Grid.from_coordinates(ds["latitude"], ds["longitude"])
    space = StateSpace.from_statistics(
        Standardizer(statistics(), land_mask=undefined(ds)), grid, ds
    )
    x = space.standardizer.to_tensor(ds)
    lat, lon = (a.ravel() for a in np.meshgrid(grid.latitude, grid.longitude, indexing="ij"))
    for name, seen in known().items():
        if seen.itself:
            continue
        level = 700.0 if seen.levels == "level" else np.nan
        table = pd.DataFrame({"latitude": lat, "longitude": lon, "variable": name, "level": level})
        table = table.assign(value=0.0, error=1.0, station="", hour=ds["time"].values[0])
        height = np.asarray(space.ground).ravel()
        table = table.assign(elevation=height, time=table["hour"])
        observations = SimpleNamespace(points=table, gridded=None)
        operators = compile_observations(observations, space, ds["time"].values)
        (operator,) = operators
        assert operator is not None, (name, operators.excluded)
        values = operator(x)[0] * operator.error + operator.reference
        low, high = seen.plausible
        if seen.period is None:
            assert low <= values.min(), name
            assert values.max() <= high, name
            assert high - low < 30 * (values.max() - values.min()), name


def test_mistakes(registry):
    with pytest.raises(DataError, match="'10m_wind_sped'; did you mean '10m_wind_speed'"):
        find("10m_wind_sped")
    with pytest.raises(DataError, match="'2m_temprature'; did you mean '2m_temperature'"):
        observable("mine", units="K", inputs=("2m_temprature",))(lambda t: t)
    with pytest.raises(DataError, match=r"'temperature' has levels.*'temperature_500'"):
        observable("mine", units="K", inputs=("temperature",))(lambda t: t)
    with pytest.raises(DataError, match="is a variable of the state"):
        observable("2m_temperature", units="K", inputs=("2m_temperature",))(lambda t: t)
    with pytest.raises(DataError, match=r"already, by appa\.observations\.derived\.wind_speed"):
        observable("10m_wind_speed", units="K", inputs=("2m_temperature",))(lambda t: t)
    with pytest.raises(DataError, match=r"has 2 inputs, but its function takes \(t\)"):
        observable("mine", units="K", inputs=SURFACE[:2])(lambda t: t)
    with pytest.raises(DataError, match="keywords among pressure, elevation"):

        @observable("mine", units="K", inputs=SURFACE[:1])
        def mine(t, *, height):
            return t + height

    with pytest.raises(DataError, match="give a tuple"):
        observable("mine", units="K", inputs="2m_temperature")
    with pytest.raises(DataError, match="unknown levels 'colum' of 'mine'; did you mean 'column'"):
        observable("mine", units="K", inputs=SURFACE[:1], levels="colum")(lambda t: t)
    with pytest.raises(DataError, match="an angle, which does not interpolate"):
        observable("mine", units="1", inputs=SURFACE[:1], period=1.0, local=False)(lambda t: t)
    assert "mine" not in known()


def test_registering_again_replaces(registry):
    for factor in (1, 2):

        @observable("twice", units="K", inputs=("2m_temperature",))
        def twice(t, factor=factor, *, lapse):
            return factor * t

    assert find("twice").keywords == ("lapse",)
