r"""The derived observables that come with the package.

Wind speed and direction at 10 m, relative humidity, layer thickness, pressure at a station, total
column water vapour, and brightness temperatures. Each is differentiable at every state, however
unlikely: temperatures are kept within 150 K to 350 K where a formula has a pole, and calm air has
a speed with a gradient.

Brightness temperatures are those of a black surface under a non-scattering atmosphere, seen from
straight above. A gas that is well mixed absorbs in the wing of a pressure-broadened line in
proportion to :math:`p^2`, so that from the pressure :math:`p` to space the transmittance, and with
it the weighting function, is

.. math:: \mathcal{T}(p) = e^{-(p / p_\ast)^2} , \qquad
    W(p) = - \frac{\mathrm{d} \mathcal{T}}{\mathrm{d} \ln p}
    = 2 \left( \frac{p}{p_\ast} \right)^2 e^{-(p / p_\ast)^2} ,

which peaks at :math:`p_\ast` and is 1.22 wide in :math:`\ln p`, between 8 and 9 km. In the
Rayleigh-Jeans limit

.. math:: T_b = \int_0^{p_s} T \, W \, \mathrm{d} \ln p + \mathcal{T}(p_s) \, T_s
    = T_1 + \int_{p_1}^{p_s} \mathcal{T} \, \mathrm{d} T
    + \mathcal{T}(p_s) \, (T_s - T(p_s)) ,

the second form by parts, with the air above the uppermost level, :math:`p_1`, at its temperature:
the weights sum to 1 whatever the quadrature. The peaks are near those of AMSU-A's channels 4 to 9
in the oxygen band at 50 to 60 GHz, in round numbers. What they are not: a radiative transfer model.
Clouds, rain, water vapour, the angle of view, the surface's emissivity and the skin's own
temperature (the surface has that of the air at 2 m) are not in them, so that real radiances need a
bias correction and a larger error in channels 4 and 5, which see the ground.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..data.saturation import SATURATION, TRIPLE
from ..data.variables import G, standard_height
from ..errors import DataError
from .heights import station_pressure
from .observables import REGISTRY, Observable, family, observable

__all__ = [
    "CHANNELS",
    "brightness_temperature",
    "relative_humidity",
    "saturation_pressure",
    "surface_pressure",
    "total_column_water_vapour",
    "wind_direction",
    "wind_speed",
]

WIND = ("10m_u_component_of_wind", "10m_v_component_of_wind")
GROUND = ("mean_sea_level_pressure", "2m_temperature")
CALM = 1e-2  # m s⁻¹, below which speed is rounded off and direction has no gradient
VAPOUR = 0.621981  # R / R_v
MOISTURE = 3  # q is linear in this power of pressure

# Pressures in hPa near which the weighting functions of AMSU-A's channels peak, seen from above.
CHANNELS: dict[int, float] = {4: 1000.0, 5: 700.0, 6: 400.0, 7: 270.0, 8: 180.0, 9: 90.0}
NODES, WEIGHTS = ((a / 2).tolist() for a in np.polynomial.legendre.leggauss(5))


# Wind


@observable("10m_wind_speed", units="m s-1", inputs=WIND, plausible=(0, 110))
def wind_speed(u: Tensor, v: Tensor) -> Tensor:
    r"""Speed :math:`\sqrt{u^2 + v^2 + \epsilon^2}` with :math:`\epsilon` = 1 cm/s."""
    return torch.sqrt(u**2 + v**2 + CALM**2)


@observable("10m_wind_direction", units="degree", inputs=WIND, plausible=(-360, 360), period=360.0)
def wind_direction(u: Tensor, v: Tensor) -> Tensor:
    r"""Where the wind comes from, clockwise from north: 270° is a westerly.

    An error of :math:`\sigma` in either component is one of :math:`\sigma / |u|` in direction, in
    radians: directions of weak winds have large errors.
    """
    calm = u**2 + v**2 < CALM**2
    north = torch.where(calm, torch.full_like(v, -1.0), v)
    east = torch.where(calm, torch.zeros_like(u), u)
    return torch.rad2deg(torch.atan2(-east, -north)).remainder(360.0)


# Humidity


def saturation_pressure(temperature: Tensor) -> Tensor:
    r"""Saturation vapour pressure in Pa, as ECMWF's model has it: over water above freezing, over
    ice below -23 °C, and over both between."""
    e0, c_water, t_water, c_ice, t_ice, cold = SATURATION["ifs"]
    t = temperature.clamp(150.0, 350.0)
    water = e0 * torch.exp(c_water * (t - TRIPLE) / (t - t_water))
    ice = e0 * torch.exp(c_ice * (t - TRIPLE) / (t - t_ice))
    share = ((t - cold) / (TRIPLE - cold)).clamp(0.0, 1.0) ** 2
    return ice + share * (water - ice)


@observable(
    "relative_humidity",
    units="%",
    inputs=("temperature", "specific_humidity"),
    levels="level",
    plausible=(0, 170),
)
def relative_humidity(temperature: Tensor, humidity: Tensor, *, pressure: Tensor) -> Tensor:
    r"""Vapour pressure in units of its saturation,

    .. math:: 100 \, \frac{e}{e_s(T)} , \qquad e = \frac{q \, p}{\epsilon + (1 - \epsilon) q} ,
        \qquad \epsilon = R / R_v .
    """
    q = humidity.clamp(-0.1, 0.5)  # no pole at q = −ε / (1 − ε)
    vapour = q * pressure / (VAPOUR + (1 - VAPOUR) * q)
    return 100 * vapour / saturation_pressure(temperature)


@observable(
    "total_column_water_vapour",
    units="kg m-2",
    inputs=("specific_humidity", *GROUND),
    levels="column",
    plausible=(0, 120),
)
def total_column_water_vapour(
    humidity: Tensor,
    sea: Tensor,
    temperature: Tensor,
    *,
    pressure: Tensor,
    elevation: Tensor,
    ground: Tensor,
    lapse: float,
) -> Tensor:
    r"""Water vapour above the station, or above the model's ground,

    .. math:: \frac{1}{g} \int_0^{p_s} q \, \mathrm{d} p .

    Between levels :math:`q` is linear in :math:`p^3`, which is how vapour falls off with a scale
    height of a quarter to a third of the air's; it is constant above the uppermost level and below
    the lowest. Levels under the ground take no part.
    """
    # in units of 1000 hPa: fourth powers in single precision
    p = pressure / 1e5
    p_s = station_pressure(sea, temperature, elevation, ground, lapse).unsqueeze(-2) / 1e5
    above, below = humidity[..., :-1, :], humidity[..., 1:, :]
    top, step = p[:-1], p[1:] - p[:-1]
    d = torch.minimum((p_s - top).clamp(min=0.0), step)
    # ∫ (p³ − p_k³) dp over the layer, without the difference of fourth powers
    cubic = d**2 * (1.5 * top**2 + top * d + d**2 / 4)
    layers = above * d + (below - above) * cubic / (p[1:] ** MOISTURE - top**MOISTURE)
    rest = humidity[..., :1, :] * p[:1] + humidity[..., -1:, :] * (p_s - p[-1:]).clamp(min=0.0)
    return (layers.sum(dim=-2) + rest.squeeze(-2)) * 1e5 / G


# Mass


@observable("surface_pressure", units="Pa", inputs=GROUND, plausible=(40_000, 110_000))
def surface_pressure(
    sea: Tensor, temperature: Tensor, *, elevation: Tensor, ground: Tensor, lapse: float
) -> Tensor:
    r"""Pressure at the station's height, see :mod:`appa.observations.heights`."""
    return station_pressure(sea, temperature, elevation, ground, lapse)


def layer_thickness(upper: Tensor, lower: Tensor) -> Tensor:
    r"""Thickness :math:`(\Phi_1 - \Phi_2) / g` in geopotential metres."""
    return (upper - lower) / G


@family(r"thickness_(\d+)_(\d+)")
def thickness(first: str, second: str) -> Observable:
    r"""The thickness between two pressures in hPa, e.g. `thickness_500_1000`, in metres.

    Plausible is what a layer 60 K colder or warmer than the standard atmosphere's has.
    """
    top, bottom = sorted((int(first), int(second)))
    name = f"thickness_{first}_{second}"
    if not 0 < top < bottom:
        raise DataError(
            f"found {name!r}, a layer between {top} and {bottom} hPa; give two pressures, for "
            "example thickness_500_1000"
        )
    mean = standard_height(top) - standard_height(bottom)
    margin = 60 * 29.27 * math.log(bottom / top)  # R/g = 29.27 m a kelvin
    return Observable(
        name,
        "m",
        (f"geopotential_{top}", f"geopotential_{bottom}"),
        layer_thickness,
        plausible=(mean - margin, mean + margin),
        long_name=f"thickness between {top} and {bottom} hPa",
    )


# Radiation


def brightness_temperature(
    temperature: Tensor, surface: Tensor, p_s: Tensor, pressure: Tensor, peak: float
) -> Tensor:
    r"""Brightness temperature :math:`T_b` in K.

    Arguments:
        temperature: The column in K, linear in :math:`\ln p` between levels and constant beyond,
            with shape :math:`(*, K, n)`.
        surface: The surface's temperature :math:`T_s` in K, with shape :math:`(*, n)`.
        p_s: Pressure at the surface in Pa, with shape :math:`(*, n)`.
        pressure: The levels in Pa from the top down, with shape :math:`(K, 1)`.
        peak: The pressure :math:`p_\ast` of the channel in Pa.
    """
    x, x_s = torch.log(pressure / peak), torch.log(p_s.clamp(min=1e3) / peak)
    top, step = x[:-1], x[1:] - x[:-1]
    share = ((x_s.unsqueeze(-2) - top) / step).clamp(0.0, 1.0)  # of each layer, above the ground
    mean = torch.zeros_like(share)  # of 𝒯 over the layer, times that share
    for node, weight in zip(NODES, WEIGHTS, strict=True):
        mean = mean + weight * share * transmittance(top + (node + 0.5) * share * step)
    through = transmittance(x_s)
    change = temperature[..., 1:, :] - temperature[..., :-1, :]
    air = (change * (mean - through.unsqueeze(-2) * share)).sum(dim=-2)
    first = temperature[..., 0, :]
    return first + air + through * (surface - first)


def transmittance(x: Tensor) -> Tensor:
    r"""Transmittance :math:`\mathcal{T}` to space from :math:`x = \ln (p / p_\ast)`."""
    return torch.exp(-torch.exp(2 * x))


def radiance(
    column: Tensor,
    sea: Tensor,
    temperature: Tensor,
    *,
    pressure: Tensor,
    ground: Tensor,
    peak: float,
) -> Tensor:
    r"""Brightness temperature above the model's ground, of a channel that peaks at `peak` in Pa."""
    p_s = station_pressure(sea, temperature, ground, ground)
    return brightness_temperature(column, temperature, p_s, pressure, peak)


for _channel, _peak in CHANNELS.items():
    observable(
        f"brightness_temperature_amsua_{_channel}",
        units="K",
        inputs=("temperature", *GROUND),
        levels="column",
        plausible=(150, 320),
        long_name=f"brightness temperature as AMSU-A's channel {_channel} weights the air",
    )(partial(radiance, peak=100 * _peak))  # not a closure, which no process could be sent
REGISTRY["thickness_500_1000"] = thickness("500", "1000")  # one of its family, to be found by
