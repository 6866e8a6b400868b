r"""From the σ levels of a circulation model to pressure levels.

Between full levels, temperature, wind and relative humidity are linear in :math:`\ln p`: specific
humidity falls with temperature, by a factor of ten between two levels, and would come out
supersaturated between saturated levels. In the uppermost layer, where relative humidity means
nothing, specific humidity itself is linear. Below the lowest full level the column has a constant
lapse rate :math:`\Gamma`, that is

.. math:: T(p) = T_b \left( \frac{p}{p_b} \right)^\alpha , \qquad \alpha = \frac{R \Gamma}{g} ,

down to the ground and through it, where :math:`b` is the lowest full level; wind and humidity
keep its values. Geopotential is the exact hydrostatic integral of that profile,

.. math:: \Phi(p) = \Phi_s + R \int_{\ln p}^{\ln p_s} T_v \, \mathrm{d} \ln p' ,

with :math:`T_v = T (1 + \epsilon q)`: a quadratic in :math:`\ln p` between levels, and
:math:`\Phi_b - R T_{v,b} ((p / p_b)^\alpha - 1) / \alpha` below. Under high ground :math:`\alpha`
is reduced so that the temperature extrapolated to sea level stays below 298 K, and sea-level
pressure follows the usual reduction for warm and cold ground; both as in ECMWF's FULL-POS, whose
fields these stand in for.

The functions take numpy or JAX arrays alike. Levels run from the top down.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "CONSTANTS",
    "Constants",
    "PressureLevels",
    "saturation_humidity",
    "sea_level_pressure",
    "to_pressure_levels",
]


class Constants(NamedTuple):
    r"""Physical constants, in SI units, as the circulation model has them."""

    gravity: float = 9.81  # m s⁻²
    gas: float = 2 / 7 * 1004.64  # J kg⁻¹ K⁻¹, dry air
    virtual: float = 0.608  # ε = R_v/R − 1
    lapse: float = 0.0065  # Γ, K m⁻¹


CONSTANTS = Constants()


class PressureLevels(NamedTuple):
    r"""Fields on pressure levels, each :math:`(P, ...)`."""

    temperature: Any
    u_component_of_wind: Any
    v_component_of_wind: Any
    geopotential: Any
    specific_humidity: Any


def to_pressure_levels(
    pressure: np.ndarray,
    sigma: np.ndarray,
    surface_pressure,
    surface_geopotential,
    temperature,
    u,
    v,
    humidity,
    constants: Constants = CONSTANTS,
) -> PressureLevels:
    r"""Interpolates columns to pressure levels, below the ground too.

    Arguments:
        pressure: The target levels in Pa, with shape :math:`(P)`.
        sigma: The full levels :math:`\sigma = p / p_s`, from the top down, with shape :math:`(K)`.
        surface_pressure: :math:`p_s` in Pa, with shape :math:`(...)`.
        surface_geopotential: :math:`\Phi_s` in m² s⁻², with shape :math:`(...)`.
        temperature, u, v, humidity: The fields on full levels, with shape :math:`(K, ...)`.
    """
    xp = temperature.__array_namespace__()
    c, R = constants, constants.gas
    ndim = len(temperature.shape) - 1

    def column(a) -> Any:
        return xp.reshape(xp.asarray(a, dtype=temperature.dtype), (-1,) + (1,) * ndim)

    log_sigma = column(np.log(sigma))
    x = column(np.log(pressure)) - xp.log(surface_pressure)[None]  # ln(p / p_s), (P, ...)
    virtual = temperature * (1 + c.virtual * humidity)

    # Full levels, from the ground up. Between the lowest one and the ground α is Γ's own.
    alpha = R * c.lapse / c.gravity
    drop = xp.expm1(-alpha * log_sigma[-1])
    lowest = surface_geopotential + R * virtual[-1] / alpha * drop
    layer = R * (virtual[1:] + virtual[:-1]) / 2 * (log_sigma[1:] - log_sigma[:-1])
    above = xp.flip(xp.cumulative_sum(xp.flip(layer, axis=0), axis=0), axis=0)
    geopotential = xp.concat([lowest + above, lowest[None]], axis=0)

    # The layer each target is in: levels k and k + 1, and how far below k.
    k = xp.clip(xp.sum(x[:, None] >= log_sigma[None], axis=1) - 1, 0, len(sigma) - 2)
    dx = xp.take_along_axis(xp.broadcast_to(log_sigma, temperature.shape), k, axis=0)
    step = xp.take_along_axis(
        xp.broadcast_to(log_sigma[1:] - log_sigma[:-1], layer.shape), k, axis=0
    )
    w = xp.clip((x - dx) / step, 0.0, 1.0)

    def interpolate(field) -> Any:
        upper = xp.take_along_axis(field, k, axis=0)
        return upper + w * (xp.take_along_axis(field, k + 1, axis=0) - upper)

    t, tv = interpolate(temperature), interpolate(virtual)
    full = column(sigma) * surface_pressure[None]
    relative = interpolate(humidity / saturation_humidity(temperature, full))
    q = relative * saturation_humidity(t, column(pressure))
    q = xp.where(k == 0, interpolate(humidity), q)
    below = xp.take_along_axis(geopotential, k + 1, axis=0)
    tv_below = xp.take_along_axis(virtual, k + 1, axis=0)
    z = below + R * (tv + tv_below) / 2 * (1 - w) * step

    # Below the lowest level, above and under the ground.
    ground = temperature[-1] * xp.exp(-alpha * log_sigma[-1])
    under = _alpha_under_ground(ground, surface_geopotential, c)
    y = x - log_sigma[-1]  # ln(p / p_b)
    y_air, y_soil = xp.minimum(y, -log_sigma[-1]), xp.maximum(x, xp.zeros_like(x))
    factor = xp.exp(alpha * y_air + under * y_soil)
    t_low = temperature[-1] * factor
    # ∫ exp(α y) dy, stable as α → 0 since expm1(a)/a → 1.
    soil = y_soil * _expm1_ratio(under * y_soil, xp)
    z_low = lowest - R * virtual[-1] * (
        xp.expm1(alpha * y_air) / alpha + xp.exp(alpha * y_air) * soil
    )
    low = y > 0
    return PressureLevels(
        xp.where(low, t_low, t),
        interpolate(u),
        interpolate(v),
        xp.where(low, z_low, z),
        xp.where(low, humidity[-1][None], q),
    )


def saturation_humidity(temperature, pressure):
    r"""Saturation specific humidity in kg kg⁻¹, over water or, below freezing, ice.

    SPEEDY's formula: :math:`q_s = 0.622 e_s / (p - 0.378 e_s)`, with Tetens' :math:`e_s`.

    Arguments:
        temperature: In K, with shape :math:`(...)`.
        pressure: In Pa, with shape :math:`(...)`.
    """
    xp = temperature.__array_namespace__()
    ice = temperature < 273.16
    rate, offset = xp.where(ice, 21.875, 17.269), xp.where(ice, 7.66, 35.86)
    vapour = 610.8 * xp.exp(rate * (temperature - 273.16) / (temperature - offset))
    # Warm air at low pressure would boil; the planet has none, but a test may.
    return 0.622 * vapour / xp.maximum(pressure - 0.378 * vapour, 0.5 * pressure)


def sea_level_pressure(
    surface_pressure, surface_geopotential, temperature, sigma: float, constants=CONSTANTS
):
    r"""Reduces surface pressure to mean sea level.

    .. math:: p_0 = p_s \exp \left( \frac{\Phi_s}{R T_*} (1 - x/2 + x^2/3) \right) ,
        \qquad x = \frac{\alpha \Phi_s}{R T_*}

    with :math:`T_*` the temperature of the ground under a constant lapse rate, moderated where it
    or the sea-level temperature is below 255 K or above 290.5 K.

    Arguments:
        surface_pressure: :math:`p_s` in Pa, with shape :math:`(...)`.
        surface_geopotential: :math:`\Phi_s`, with shape :math:`(...)`.
        temperature: The lowest full level's temperature in K, with shape :math:`(...)`.
        sigma: That level's :math:`\sigma`.
    """
    xp = temperature.__array_namespace__()
    c, R = constants, constants.gas
    phi = surface_geopotential
    ground = temperature * sigma ** (-R * c.lapse / c.gravity)
    sea = ground + c.lapse * phi / c.gravity

    # α = RΓ'/g with Γ' such that the sea-level temperature is 290.5 K where it would be warmer.
    safe = xp.where(xp.abs(phi) < 1.0, xp.ones_like(phi), phi)
    moderated = xp.where(ground <= 290.5, R * (290.5 - ground) / safe, xp.zeros_like(phi))
    alpha = xp.where(sea > 290.5, moderated, R * c.lapse / c.gravity)
    alpha = xp.clip(alpha, 0.0, R * c.lapse / c.gravity)
    star = xp.where((sea > 290.5) & (ground > 290.5), (290.5 + ground) / 2, ground)
    star = xp.where(ground < 255.0, (255.0 + ground) / 2, star)

    x = alpha * phi / (R * star)
    return surface_pressure * xp.exp(phi / (R * star) * (1 - x / 2 + x**2 / 3))


def _alpha_under_ground(ground, surface_geopotential, c: Constants):
    r"""The exponent under the ground: Γ's own, less where the sea level would pass 298 K.

    The limit sets in between 2000 m and 2500 m of height, so that no field jumps.
    """
    xp = ground.__array_namespace__()
    height = surface_geopotential / c.gravity
    sea = ground + c.lapse * height
    limited = xp.minimum(sea, xp.full_like(sea, 298.0))
    blend = xp.clip((height - 2000.0) / 500.0, 0.0, 1.0)
    lapse = (sea + blend * (limited - sea) - ground) / xp.maximum(height, xp.ones_like(height))
    lapse = xp.where(height > 2000.0, xp.maximum(lapse, xp.zeros_like(lapse)), c.lapse)
    return c.gas * lapse / c.gravity


def _expm1_ratio(a, xp):
    r""":math:`(e^a - 1) / a`, and 1 at 0."""
    small = xp.abs(a) < 1e-4
    safe = xp.where(small, xp.ones_like(a), a)
    return xp.where(small, 1 + a / 2, xp.expm1(safe) / safe)
