r"""Balances on analytic atmospheres, whose residuals are known in closed form."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from appa.data.grids import KINDS, Grid
from appa.data.variables import LEVELS, G
from appa.errors import DataError
from appa.evaluation.physics import (
    EARTH,
    PLANET,
    geostrophic_balance,
    geostrophic_wind,
    global_mean,
    gradient,
    hydrostatic_error,
    hydrostatic_residual,
    hypsometric_thickness,
    jets,
    relative_humidity,
    saturation_humidity,
    thickness,
)

R, A, OMEGA = EARTH.gas, EARTH.radius, EARTH.omega


def on(grid: Grid, values: np.ndarray) -> xr.DataArray:
    coords = {"latitude": grid.latitude, "longitude": grid.longitude}
    return xr.DataArray(np.broadcast_to(values, grid.shape), coords, ("latitude", "longitude"))


def column(level, temperature, geopotential, humidity=0.0) -> xr.Dataset:
    fields = {
        "temperature": temperature,
        "geopotential": geopotential,
        "specific_humidity": np.broadcast_to(humidity, len(level)),
    }
    return xr.Dataset({k: ("level", np.asarray(v)) for k, v in fields.items()}, {"level": level})


# Hydrostatics


@pytest.mark.parametrize("constants", [EARTH, PLANET])
@pytest.mark.parametrize("humidity", [0.0, 0.012])
def test_isothermal_atmosphere_is_exact(constants, humidity):
    level = np.array(LEVELS)
    virtual = 250.0 * (1 + constants.virtual * humidity)
    phi = constants.gas * virtual * np.log(1000 / level)
    ds = column(level, np.full(13, 250.0), phi, humidity)
    assert abs(hydrostatic_residual(ds, constants)).max() < 1e-9
    # the scale height of dry air at 250 K, 7.3 km, times the logarithm of 2
    if humidity == 0:
        half = thickness(ds).sel(layer=slice(7, None)).sum()
        assert half == pytest.approx(constants.gas * 250 / G * np.log(2), rel=1e-12)
        assert half == pytest.approx(5072, abs=2)


def test_humidity_is_lighter_than_air():
    # 10 g/kg lift the layer from 1000 to 925 hPa as 1.8 K of warming would
    level = np.array([925, 1000])
    dry = column(level, [280.0, 284.0], [6000.0, 0.0])
    moist = column(level, [280.0, 284.0], [6000.0, 0.0], 0.010)
    warm = column(level, 1.0060779 * np.array([280.0, 284.0]), [6000.0, 0.0])
    assert hypsometric_thickness(moist) > hypsometric_thickness(dry) + 3.8
    assert hypsometric_thickness(moist).values == pytest.approx(
        hypsometric_thickness(warm).values, rel=1e-12
    )
    missing = hypsometric_thickness(moist.drop_vars("specific_humidity"))
    assert missing.values == pytest.approx(hypsometric_thickness(dry).values)


def lapse(level: np.ndarray, rate: float = 0.0065) -> xr.Dataset:
    r"""T = T₀ (p/p₀)^(RΓ/g) and Φ = g (T₀ − T) / Γ, exactly hydrostatic."""
    temperature = 288.0 * (level / 1000) ** (R * rate / G)
    return column(level, temperature, G * (288.0 - temperature) / rate)


def test_constant_lapse_rate_converges_at_second_order():
    errors = []
    for count in (9, 17, 33, 65):
        level = np.geomspace(100, 1000, count)
        errors.append(abs(hydrostatic_residual(lapse(level)).sum()))
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert orders == pytest.approx(2, abs=0.05)
    # the leading term of the trapezoid's error, R/g Δ²/12 [dT/dlnp] over the column
    alpha, step = R * 0.0065 / G, np.log(10) / 64
    slope = alpha * 288 * (1 - 0.1**alpha)
    assert errors[-1] == pytest.approx(R / G * step**2 / 12 * slope, rel=1e-2)


def test_error_estimate_explains_the_residual():
    ds = lapse(np.array(LEVELS, dtype=np.float64))
    residual, estimate = hydrostatic_residual(ds), hydrostatic_error(ds)
    assert (residual < 0).all()  # a convex profile lies below its chord
    share = (abs(residual) / estimate).values
    assert share.max() < 1.05
    assert share.min() > 0.6
    # a kelvin too much at one level is not explained by the distance of levels
    ds["temperature"][10] += 1.0
    wrong = abs(hydrostatic_residual(ds)) - abs(residual)
    assert wrong[{"layer": [9, 10]}].values == pytest.approx(
        R / G / 2 * np.log([850 / 700, 925 / 850]), rel=0.25
    )


def test_layers_carry_their_pressures():
    ds = lapse(np.array(LEVELS, dtype=np.float64)).expand_dims(time=3, latitude=2)
    layers = hydrostatic_residual(ds)
    assert layers.dims == ("time", "latitude", "layer")
    assert layers["top"].values.tolist() == list(LEVELS[:-1])
    assert layers["bottom"].values.tolist() == list(LEVELS[1:])
    with pytest.raises(DataError, match="top down"):
        hydrostatic_residual(ds.isel(level=slice(None, None, -1)))
    with pytest.raises(DataError, match="3 levels"):
        hydrostatic_error(ds.isel(level=slice(0, 2)))


# Geostrophy


def harmonic(grid: Grid) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""cos³φ sinφ cos 3λ + sin²φ + cosφ sin λ, with its gradient on the unit sphere.

    The last two are not even in latitude, and the very last has a slope at the pole.
    """
    phi, lam = np.radians(grid.latitude)[:, None], np.radians(grid.longitude)
    c, s = np.cos(phi), np.sin(phi)
    field = c**3 * s * np.cos(3 * lam) + s**2 + c * np.sin(lam)
    east = -3 * c**2 * s * np.sin(3 * lam) + np.cos(lam)
    north = (c**4 - 3 * c**2 * s**2) * np.cos(3 * lam) + 2 * s * c - s * np.sin(lam)
    return field, east, north


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_is_exact_east_and_of_fourth_order_north(kind):
    errors = []
    for count in (24, 48, 96):
        grid = Grid(kind, count + (kind == "equiangular"), 16)
        field, east, north = harmonic(grid)
        found_east, found_north = (A * g.values for g in gradient(on(grid, field)))
        away = np.abs(grid.latitude) < 90 - 1e-6
        assert np.abs(found_east - east)[away].max() < 1e-12
        assert np.isnan(found_east[~away]).all()
        errors.append(np.abs(found_north - north).max())  # the rows next to the poles too
    assert np.log2(np.array(errors[:-1]) / errors[1:]) == pytest.approx(4, abs=0.25)
    assert errors[-1] < 1e-4


def test_gradient_needs_meridians_that_go_on():
    grid = Grid("equiangular", 19, 15)
    with pytest.raises(DataError, match="even number of longitudes"):
        gradient(on(grid, 1.0))
    with pytest.raises(DataError, match="north to south"):
        gradient(on(Grid("equiangular", 19, 16), 1.0).isel(latitude=slice(None, None, -1)))


def solid_body(grid: Grid, u: float) -> xr.Dataset:
    r"""Rotation as one, U cos φ, which Φ = Φ₀ − (aΩU + U²/2) sin²φ balances.

    The sphere bends the flow: the centrifugal force U² sin φ cos φ / a takes part.
    """
    phi = np.radians(grid.latitude)[:, None]
    return xr.Dataset(
        {
            "geopotential": on(grid, 5e4 - (A * OMEGA * u + u**2 / 2) * np.sin(phi) ** 2),
            "u_component_of_wind": on(grid, u * np.cos(phi)),
            "v_component_of_wind": on(grid, 0.0 * phi),
        }
    )


@pytest.mark.parametrize("kind", KINDS)
def test_solid_body_rotation(kind):
    # The geostrophic wind exceeds the balanced one by U / 2Ωa, the Rossby number.
    grid = Grid(kind, 64, 128)
    for u in (-20.0, 40.0):
        ds = solid_body(grid, u)
        geo = geostrophic_wind(ds, equator=5.0)
        expected = ds["u_component_of_wind"] * (1 + u / (2 * OMEGA * A))
        away = abs(ds["latitude"]) >= 5
        ratio = (geo["u_component_of_wind"] / expected).where(away & (abs(ds["latitude"]) < 89))
        assert abs(ratio - 1).max() < 2e-5
        assert ratio.isnull().sum() > 0  # at the equator
        assert abs(geo["v_component_of_wind"]).max() < 1e-6
        balance = geostrophic_balance(ds)
        assert balance["ratio"] == pytest.approx(1 / (1 + u / (2 * OMEGA * A)), rel=1e-4)
        assert balance["correlation"] == pytest.approx(1, abs=1e-9)
        assert balance["angle"] == pytest.approx(90, abs=1e-6)


def test_geostrophic_wind_converges():
    errors = []
    for count in (32, 64, 128):
        grid = Grid("gaussian", count, 8)
        ds = solid_body(grid, 40.0)
        u = geostrophic_wind(ds, equator=20.0)["u_component_of_wind"]
        errors.append(abs(u - ds["u_component_of_wind"] * (1 + 20 / OMEGA / A)).max())
    assert np.log2(np.array(errors[:-1]) / errors[1:]) == pytest.approx(4, abs=0.3)


def test_flow_across_isobars_is_measured():
    # The wind of friction: slower, and turned towards low pressure in both hemispheres.
    grid = Grid("gaussian", 32, 64)
    phi, lam = np.radians(grid.latitude)[:, None], np.radians(grid.longitude)
    ds = xr.Dataset({"geopotential": on(grid, -3e3 * np.cos(phi) ** 3 * np.cos(4 * lam + phi))})
    geo = geostrophic_wind(ds)
    u, v = geo["u_component_of_wind"], geo["v_component_of_wind"]
    turn = np.radians(20) * np.sign(ds["latitude"])
    ds["u_component_of_wind"] = 0.8 * (u * np.cos(turn) - v * np.sin(turn))
    ds["v_component_of_wind"] = 0.8 * (u * np.sin(turn) + v * np.cos(turn))
    balance = geostrophic_balance(ds)
    assert balance["angle"] == pytest.approx(110, abs=1e-9)
    assert balance["angle_spread"] == pytest.approx(0, abs=1e-5)
    assert balance["ratio"] == pytest.approx(0.8, abs=1e-9)
    assert balance["correlation"] == pytest.approx(np.cos(np.radians(20)), abs=1e-9)
    assert balance["speed_correlation"] == pytest.approx(1, abs=1e-9)
    # down the gradient, whatever the hemisphere, is 180°
    east, north = gradient(ds["geopotential"])
    ds["u_component_of_wind"], ds["v_component_of_wind"] = -east, -north
    assert geostrophic_balance(ds)["angle"] == pytest.approx(180, abs=1e-6)
    # and the tropics, where nothing is balanced, are left out
    noise = ds.copy(deep=True)
    noise["u_component_of_wind"] = ds["u_component_of_wind"].where(abs(ds["latitude"]) > 20, 99.0)
    assert geostrophic_balance(noise).equals(geostrophic_balance(ds))


# Humidity

# Vapour pressure at saturation in Pa, over water (Celsius ≥ 0) and over ice: Smithsonian
# Meteorological Tables (List, 1951), after Goff and Gratch.
WATER = {0: 610.78, 10: 1227.2, 20: 2337.3, 30: 4243.0, 40: 7377.7}
ICE = {-40: 12.83, -30: 37.98, -20: 103.2, -10: 259.7}


@pytest.mark.parametrize("formula", ["ifs", "speedy"])
def test_saturation_is_that_of_the_tables(formula):
    for celsius, e in {**WATER, **ICE}.items():
        if formula == "ifs" and -23 < celsius < 0:
            continue  # water and ice mixed
        found = saturation_humidity(xr.DataArray(celsius + 273.15), 1e5, formula)
        # SPEEDY's constants are 1.8 % low over ice at -40 °C
        assert found == pytest.approx(
            0.622 * e / (1e5 - 0.378 * e), rel=0.01 if formula == "ifs" else 0.02
        )


def test_formulas_differ_where_phases_mix():
    t = xr.DataArray(np.arange(253.0, 273.0))
    ratio = saturation_humidity(t, 5e4, "ifs") / saturation_humidity(t, 5e4, "speedy")
    assert ratio.min() > 1.0
    assert 1.03 < ratio.max() < 1.04
    with pytest.raises(DataError, match="did you mean 'ifs'"):
        saturation_humidity(t, 5e4, "isf")


def test_saturation_is_the_circulation_models():
    humidity = pytest.importorskip("jcm.physics.clouds.speedy_humidity")
    t = np.linspace(180, 310, 53)
    theirs = (
        np.asarray(humidity.get_qsat(t[None], np.full((1, 53), 1.013), 0.7))[0] / 1000
    )  # from g/kg
    ours = saturation_humidity(xr.DataArray(t), 0.7 * 101_300.0, "speedy")
    assert ours.values == pytest.approx(theirs, rel=1e-4)  # theirs in single precision


def test_relative_humidity_by_level():
    level = np.array([500, 1000])
    ds = column(level, [293.15, 293.15], [0.0, 0.0], 0.00725)
    # e(20 °C) = 2337 Pa: 14.7 g/kg at 1000 hPa, 29.6 g/kg at 500 hPa
    assert relative_humidity(ds).values == pytest.approx(
        [0.00725 / 0.02960, 0.00725 / 0.01467], rel=0.01
    )
    # Where vapour pressure exceeds the pressure there is no saturation short of vapour alone.
    hot = saturation_humidity(xr.DataArray(280.0), 500.0)
    assert hot == pytest.approx(1.0)


# Averages


@pytest.mark.parametrize("kind", KINDS)
def test_global_mean_is_by_area(kind):
    grid = Grid(kind, 45, 8)
    sine = np.sin(np.radians(grid.latitude))[:, None]
    assert global_mean(on(grid, 7.0)) == pytest.approx(7, rel=1e-14)
    assert global_mean(on(grid, sine**2)) == pytest.approx(1 / 3, abs=1e-3)
    # the mean of the northern hemisphere alone is 1/2, whatever is undefined in the other
    north = on(grid, sine).where(on(grid, sine) > 1e-9)
    assert global_mean(north) == pytest.approx(0.5, abs=0.02)


def test_jets_are_found_in_both_hemispheres():
    grid = Grid("gaussian", 48, 96)
    phi = grid.latitude[:, None]
    u = 40 * np.exp(-(((phi - 35) / 8) ** 2)) + 30 * np.exp(-(((phi + 50) / 8) ** 2)) - 5
    wave = 20 * np.cos(3 * np.radians(grid.longitude))
    found = jets(on(grid, u + wave))
    assert found["hemisphere"].values.tolist() == ["north", "south"]
    assert found["latitude_of_jet"].values == pytest.approx([35, -50], abs=2)
    assert found["speed"].values == pytest.approx([35, 25], abs=1.5)
    assert jets(on(grid, u).mean("longitude")).identical(jets(on(grid, u)))
