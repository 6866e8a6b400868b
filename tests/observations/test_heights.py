r"""Stations above and below the model's ground, against integrated and simulated atmospheres."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from scipy.integrate import solve_ivp
from scipy.interpolate import CubicHermiteSpline

import appa
from appa.data.grids import Grid
from appa.data.planet.vertical import Constants, sea_level_pressure
from appa.data.states import Standardizer
from appa.data.variables import R_DRY, G
from appa.errors import DataError
from appa.observations.heights import Heights, ground_pressure, station_pressure
from appa.observations.operators import StateSpace, compile_observations

HOUR = np.datetime64("2021-03-21T00", "ns")
GRID = Grid("equiangular-cells", 12, 24)
NAMES = ("2m_temperature", "mean_sea_level_pressure")
MEAN, STD = (280.0, 101_000.0), (15.0, 1000.0)


def double(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def space(ground: float | None) -> StateSpace:
    r"""Two fields above flat ground."""
    stats = xr.Dataset(coords={"statistic": ["mean", "std"]})
    for name, mean, std in zip(NAMES, MEAN, STD, strict=True):
        stats[name] = ("statistic", [mean, std])
    standardizer = Standardizer(stats, NAMES, (), ())
    return StateSpace(standardizer, GRID, None if ground is None else np.full(GRID.shape, ground))


def state(t2m: float, sea: float) -> torch.Tensor:
    x = [(t2m - MEAN[0]) / STD[0], (sea - MEAN[1]) / STD[1]]
    return double(*x)[None, :, None, None].expand(1, 2, *GRID.shape)


def compiled(space, variable, value, error, elevation, heights=None):
    elevation = np.atleast_1d(np.asarray(elevation, float))
    table = pd.DataFrame({"elevation": elevation, "value": value, "error": error})
    table = table.assign(hour=HOUR, time=HOUR, latitude=47.3, longitude=8.6, level=np.nan)
    table = table.assign(variable=variable, station=[f"s{k}" for k in range(len(table))])
    observations = SimpleNamespace(points=table, gridded=None)
    return compile_observations(observations, space, [HOUR], heights)


# Pressure


@pytest.mark.parametrize("lapse", [6.5e-3, 0.0, -3e-3, 9.8e-3])
@pytest.mark.parametrize("above", [-700.0, 35.0, 1500.0])
def test_station_pressure_is_hydrostatic(lapse, above):
    r"""Against dp/dz = −g p / R T integrated from the ground to the station."""
    ground, t2m, sea = 420.0, 283.0, 101_700.0
    p_g = ground_pressure(double(sea), double(t2m), double(ground)).item()
    path = solve_ivp(
        lambda z, p: -G * p / (R_DRY * (t2m - lapse * z)), (0, above), [p_g], rtol=1e-10, atol=1e-6
    )
    args = double(sea), double(t2m), double(ground + above), double(ground)
    assert station_pressure(*args, lapse).item() == pytest.approx(path.y[0, -1], rel=1e-7)
    single = station_pressure(*(a.float() for a in args), lapse).item()
    assert single == pytest.approx(path.y[0, -1], rel=5e-7)


def test_ground_pressure_undoes_the_reduction_to_sea_level():
    r"""In cold, mild, warm and hot air, above and below the sea."""
    t, z = np.meshgrid(np.linspace(220, 315, 39), np.linspace(-300, 5000, 54))
    p = 101_325 * np.exp(-z / 8000)
    sea = sea_level_pressure(p, G * z, t, 1.0, Constants(G, R_DRY))
    back = ground_pressure(*(torch.from_numpy(a) for a in (sea, t, z)))
    np.testing.assert_allclose(back.numpy(), p, rtol=1e-10)


def test_ground_pressure_of_an_atmosphere():
    r"""The planet's geopotential is an integral from its surface pressure, which a store does not
    hold: where the geopotential of levels, a cubic with slope −R T_v, meets that of the ground.
    The difference is that of the 2 m temperature, and as large as `reduction_error` says."""
    ds = appa.open_store("planet").isel(time=[0]).load()
    phi_s = ds["geopotential_at_surface"].values.astype(float)
    log_p = np.log(100.0 * ds["level"].values)
    tv = (ds["temperature"] * (1 + 0.608 * ds["specific_humidity"])).values[0].astype(float)
    phi = ds["geopotential"].values[0].astype(float)
    z, exact = phi_s / G, np.full(phi_s.shape, np.nan)
    high = np.argwhere((z > 500) & (np.indices(z.shape).sum(0) % 3 == 0))
    for i, j in high:
        slope = -2 / 7 * 1004.64 * tv[:, i, j]
        profile = CubicHermiteSpline(log_p, phi[:, i, j] - phi_s[i, j], slope)
        roots = profile.roots()
        exact[i, j] = np.exp(roots[(roots > 10) & (roots < 11.7)][0])
    fields = (ds[name].values[0].astype(float) for name in NAMES[::-1])
    got = ground_pressure(*(torch.from_numpy(a) for a in (*fields, z))).numpy()
    seen = np.isfinite(exact)
    error = Heights().pressure_error(exact[seen], z[seen], z[seen])
    scaled = (got - exact)[seen] / error
    assert seen.sum() > 150
    # differences are of one air mass and one sign: their size, not their distribution
    assert 0.5 < np.sqrt((scaled**2).mean()) < 1.5
    assert np.abs(scaled).max() < 5


def test_error_of_pressure_is_that_of_its_temperatures():
    r"""Against the pressures of many draws of lapse rate and temperature of the reduction."""
    rng, n, heights = np.random.default_rng(0), 20_000, Heights()
    ground, elevation = 700.0, 1600.0
    # the standard atmosphere, whose ground is at 283.6 K
    t2m, sea = 288.15 - 6.5e-3 * ground, 101_325.0
    lapse = 6.5e-3 + 3e-3 * rng.standard_normal(n)
    star = t2m + rng.standard_normal(n)
    p_g = ground_pressure(double(sea), torch.from_numpy(star), double(ground)).numpy()
    above = elevation - ground
    p = p_g * (1 - lapse * above / t2m) ** (G / (R_DRY * lapse))
    got = heights.pressure_error(p.mean(), np.array(elevation), np.array(ground))
    # a standard deviation of n draws is known to 1/√(2n), 0.5 %; linearization adds 2 %
    assert got == pytest.approx(p.std(), rel=0.04)


def test_pressure_at_a_station():
    t2m, sea, ground = 285.0, 101_900.0, 300.0
    elevation = np.array([300.0, 900.0, 30.0])
    exact = station_pressure(double(sea), double(t2m), double(*elevation), double(ground)).numpy()
    (operator,) = compiled(space(ground), "surface_pressure", exact, 50.0, elevation)
    extra = Heights().pressure_error(exact, elevation, np.full(3, ground))
    np.testing.assert_allclose(operator.error, np.hypot(50, extra), rtol=1e-6)
    assert extra[1] > 1.5 * extra[0] > 0
    for dtype, tolerance in ((torch.float64, 1e-4), (torch.float32, 1e-3)):
        departure = operator.departure(state(t2m, sea).to(dtype))
        torch.testing.assert_close(departure, torch.zeros_like(departure), rtol=0, atol=tolerance)
    # a station read 50 Pa high
    (operator,) = compiled(space(ground), "surface_pressure", exact + 50, 50.0, elevation)
    expected = 50 / np.hypot(50, extra)
    np.testing.assert_allclose(operator.departure(state(t2m, sea))[0], expected, rtol=2e-3)


def test_pressure_without_a_height_is_no_observation():
    operators = compiled(space(300.0), "surface_pressure", 9.8e4, 50.0, [np.nan, 310.0, np.nan])
    assert len(operators[0]) == 1
    reason, count, example = operators.excluded.iloc[0]
    assert (reason, count) == ("pressure without elevation", 2)
    assert "47.30, 8.60 (s0)" in example


# Temperature


def test_temperature_is_compared_at_the_station():
    elevation = np.array([500.0, 1500.0, 0.0, np.nan])
    above = np.array([0.0, 1.0, -0.5, 0.0])  # km
    # 6.5 K a kilometre colder above the ground
    value = 284.0 - 6.5 * above
    (operator,) = compiled(space(500.0), "2m_temperature", value, 0.4, elevation)
    np.testing.assert_allclose(operator.departure(state(284.0, 1e5)), np.zeros((1, 4)), atol=1e-4)
    # and uncertain by 3 K a kilometre
    np.testing.assert_allclose(operator.error, np.hypot(0.4, 3 * above), rtol=1e-6)
    np.testing.assert_allclose(operator.rows["error"], np.hypot(0.4, 3 * above), rtol=1e-6)
    # the model 1 K warmer
    expected = -1 / np.hypot(0.4, 3 * above)
    np.testing.assert_allclose(operator.departure(state(285.0, 1e5))[0], expected, rtol=1e-4)


def test_lapse_rate_is_an_option():
    heights = Heights(lapse=0.0, lapse_error=0.0)
    (operator,) = compiled(space(500.0), "2m_temperature", 284.0, 0.4, [1500.0], heights)
    assert operator.error.item() == pytest.approx(0.4)
    assert operator.departure(state(284.0, 1e5)).item() == pytest.approx(0, abs=1e-4)


def test_far_from_the_ground_is_excluded_and_counted():
    elevation = [100.0, 1999.0, 2001.0, 4000.0]
    for variable, value in (("2m_temperature", 280.0), ("surface_pressure", 8e4)):
        operators = compiled(space(500.0), variable, value, 1.0, elevation)
        assert operators[0].rows["station"].tolist() == ["s0", "s1"]
        assert operators.excluded["count"].tolist() == [2]
        assert operators.excluded["reason"][0] == "more than 1500 m from the model's ground"
        assert f"{variable} at 47.30, 8.60 (s2)" in operators.excluded["example"][0]
    operators = compiled(space(500.0), "2m_temperature", 280.0, 1.0, elevation, Heights(limit=5000))
    assert len(operators[0]) == 4
    assert not len(operators.excluded)
    # sea-level pressure is at no height of a station's
    operators = compiled(space(500.0), "mean_sea_level_pressure", 1e5, 100.0, elevation)
    assert len(operators[0]) == 4


def test_a_model_without_orography_adjusts_nothing():
    (operator,) = compiled(space(None), "2m_temperature", 284.0, 0.4, [1500.0])
    assert operator.departure(state(284.0, 1e5)).item() == pytest.approx(0, abs=1e-4)
    assert operator.error.item() == pytest.approx(0.4)
    # pressure still falls with height: its ground is taken to be the station's
    exact = ground_pressure(double(1e5), double(284.0), double(1500.0)).item()
    (operator,) = compiled(space(None), "surface_pressure", exact, 50.0, [1500.0])
    assert operator.departure(state(284.0, 1e5)).item() == pytest.approx(0, abs=1e-3)


def test_mistakes():
    with pytest.raises(DataError, match=r"lapse rate of 6\.5 K/m; give kelvins a metre"):
        Heights(lapse=6.5)
    with pytest.raises(DataError, match="found a limit of -1"):
        Heights(limit=-1)
    with pytest.raises(DataError, match=r"ground has shape \(3, 4\) but the grid is \(12, 24\)"):
        StateSpace(space(None).standardizer, GRID, np.zeros((3, 4)))
