r"""Columns whose pressure, temperature and height are known in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from appa.data.planet.vertical import (
    CONSTANTS,
    saturation_humidity,
    sea_level_pressure,
    to_pressure_levels,
)

C = CONSTANTS
ALPHA = C.gas * C.lapse / C.gravity
LEVELS = 100.0 * np.array([50, 100, 150, 200, 250, 300, 400, 500, 600, 700, 850, 925, 1000])
SIGMA = np.array([0.025, 0.095, 0.2, 0.34, 0.51, 0.685, 0.835, 0.95])  # SPEEDY's


def columns(profile, pressure, geopotential, sigma=SIGMA, humidity=0.0):
    r"""Pressure levels of columns whose temperature is a function of p / p_s."""
    pressure, geopotential = np.atleast_1d(pressure), np.atleast_1d(geopotential)
    temperature = profile(sigma)[:, None] * np.ones(len(pressure))
    wind = np.log(sigma)[:, None] * np.ones(len(pressure))
    q = np.full_like(temperature, humidity)
    return to_pressure_levels(LEVELS, sigma, pressure, geopotential, temperature, wind, -wind, q)


@pytest.mark.parametrize("humidity", [0.0, 0.01])
def test_isothermal_column_is_exact_above_the_lowest_level(humidity):
    pressure, ground = np.array([101e3, 97e3, 62e3]), np.array([0.0, 3e3, 38e3])
    got = columns(lambda s: 250.0 + 0 * s, pressure, ground, humidity=humidity)

    virtual = 250.0 * (1 + C.virtual * humidity)
    # The lapse rate between the ground and the lowest level is Γ, not 0.
    lowest = ground + C.gas * virtual / ALPHA * np.expm1(-ALPHA * np.log(SIGMA[-1]))
    exact = lowest - C.gas * virtual * np.log(LEVELS[:, None] / (SIGMA[-1] * pressure))
    above = LEVELS[:, None] < SIGMA[-1] * pressure
    np.testing.assert_allclose(got.geopotential[above], exact[above], rtol=1e-12)
    np.testing.assert_allclose(got.temperature[above], 250.0, rtol=1e-12)


def test_constant_lapse_rate_is_exact_near_and_under_low_ground():
    pressure, ground = np.array([100.5e3, 98e3, 93e3]), np.array([50.0, 2e3, 7e3])
    got = columns(lambda s: 285.0 * s**ALPHA, pressure, ground)
    ratio = LEVELS[:, None] / pressure
    low = ratio > SIGMA[-1]
    assert low[-1].all()
    assert (ratio > 1).any()
    exact = ground - C.gas * 285.0 / ALPHA * (ratio**ALPHA - 1)
    np.testing.assert_allclose(got.temperature[low], (285.0 * ratio**ALPHA)[low], rtol=1e-12)
    np.testing.assert_allclose(got.geopotential[low], exact[low], rtol=1e-12, atol=1e-8)


def test_second_order_in_the_number_of_levels():
    errors = []
    for n in (16, 32, 64):
        sigma = np.exp(np.linspace(np.log(0.02), np.log(0.99), n))
        got = columns(lambda s: 285.0 * s**ALPHA, [101e3], [0.0], sigma)
        exact = -C.gas * 285.0 / ALPHA * ((LEVELS[:, None] / 101e3) ** ALPHA - 1)
        errors.append(np.abs(got.geopotential - exact).max())
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert (orders > 1.9).all(), orders


def test_geopotential_is_the_hydrostatic_integral_of_the_temperature():
    # dΦ/dlnp = −R T_v everywhere, through the lowest level and through the ground, high or low.
    ground = np.array([0.0, 5e3, 24e3, 45e3])
    pressure = 101e3 * np.exp(-ground / (C.gas * 280))
    rng = np.random.default_rng(0)
    temperature = (285.0 * SIGMA**ALPHA + rng.normal(0, 4, 8))[:, None] * np.ones(4)
    q = 0.7 * saturation_humidity(temperature, SIGMA[:, None] * pressure)
    q[0] = 3e-6
    levels = np.exp(np.linspace(np.log(4e3), np.log(103e3), 4001))
    got = to_pressure_levels(levels, SIGMA, pressure, ground, temperature, q, q, q)
    slope = np.diff(got.geopotential, axis=0) / np.diff(np.log(levels))[:, None]
    virtual = got.temperature * (1 + C.virtual * got.specific_humidity)
    middle = (virtual[1:] + virtual[:-1]) / 2
    # T_v is linear in ln p between levels and q is not: up to ε T Δq / 4, 0.2 K here.
    np.testing.assert_allclose(-slope / C.gas, middle, atol=0.2)


def test_saturated_columns_stay_saturated_and_no_more():
    pressure, ground = np.array([101e3, 80e3]), np.array([0.0, 19e3])
    temperature = (290.0 * SIGMA**ALPHA)[:, None] * np.ones(2)
    q = saturation_humidity(temperature, SIGMA[:, None] * pressure)
    got = to_pressure_levels(LEVELS, SIGMA, pressure, ground, temperature, q, q, q)
    ratio = LEVELS[:, None] / pressure
    within = (ratio > SIGMA[1]) & (ratio < SIGMA[-1])
    relative = got.specific_humidity / saturation_humidity(got.temperature, LEVELS[:, None])
    np.testing.assert_allclose(relative[within], 1.0, rtol=1e-9)
    # Below the lowest level humidity is held, as the air there is the same.
    np.testing.assert_allclose(
        got.specific_humidity[ratio > SIGMA[-1]],
        np.broadcast_to(q[-1], ratio.shape)[ratio > SIGMA[-1]],
    )


def test_saturation_of_known_points():
    # Saturation vapour pressure of water at 0 °C and 20 °C: 6.11 and 23.39 hPa (WMO); ice at
    # −20 °C: 1.032 hPa. q = 0.622 e / (p − 0.378 e).
    for celsius, e, within in ((0.0, 611.0, 0.002), (20.0, 2339.0, 0.003), (-20.0, 103.2, 0.005)):
        q = 0.622 * e / (1e5 - 0.378 * e)
        got = saturation_humidity(np.array(273.15 + celsius), np.array(1e5))
        assert abs(got / q - 1) < within, (celsius, got, q)


def test_winds_are_linear_in_log_pressure_and_held_below():
    got = columns(lambda s: 280.0 + 0 * s, [100e3], [0.0])
    expected = np.minimum(np.log(LEVELS / 100e3), np.log(SIGMA[-1]))
    np.testing.assert_allclose(got.u_component_of_wind[:, 0], expected, rtol=1e-12)
    np.testing.assert_allclose(got.v_component_of_wind[:, 0], -expected, rtol=1e-12)


def test_no_jump_where_the_ground_rises_through_the_limit():
    # A jump stays as large however fine the slope is sampled; a continuous field's steps halve.
    largest = []
    for n in (1501, 3001):
        ground = C.gravity * np.linspace(1500, 3000, n)
        pressure = 101e3 * np.exp(-ground / (C.gas * 290))
        got = columns(lambda s: 300.0 * s**ALPHA, pressure, ground)
        fields = (got.temperature[-1], got.geopotential[-1])
        largest.append([np.abs(np.diff(field)).max() for field in fields])
    np.testing.assert_allclose(np.divide(*largest), 2.0, rtol=0.05)


def test_sea_level_pressure_of_a_constant_lapse_rate():
    ground = np.array([-3e3, 0.0, 1e3, 4e3])
    pressure = 101_325.0 * (1 - C.lapse * ground / C.gravity / 285.0) ** (1 / ALPHA)
    surface = 285.0 - C.lapse * ground / C.gravity
    got = sea_level_pressure(pressure, ground, surface * SIGMA[-1] ** ALPHA, SIGMA[-1])
    # The reduction is a series to second order in αΦ/RT ≤ 0.02.
    np.testing.assert_allclose(got, 101_325.0, rtol=1e-5)


def test_jax_and_numpy_agree():
    jnp = pytest.importorskip("jax.numpy", reason="the extra 'planet' is not installed")
    arguments = (np.array([100e3, 70e3]), np.array([1e3, 29e3]))
    temperature = 285.0 * SIGMA[:, None] ** ALPHA * np.ones(2)
    fields = (temperature, temperature, -temperature, 1e-3 * np.ones((8, 2)))
    got = to_pressure_levels(LEVELS, SIGMA, *arguments, *fields)
    jax = to_pressure_levels(LEVELS, SIGMA, *map(jnp.asarray, arguments), *map(jnp.asarray, fields))
    for a, b in zip(got, jax, strict=True):
        # float32, and heights are differences of terms as large as the largest.
        np.testing.assert_allclose(np.asarray(b), a, rtol=2e-5, atol=1e-6 * np.abs(a).max())
