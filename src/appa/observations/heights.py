r"""Heights: a station stands where it stands, the model's ground where its grid can.

At :math:`\Delta z` above the model's ground, air is taken to be colder by the lapse rate,

.. math:: T(\Delta z) = T_{2\,\mathrm{m}} - \Gamma \, \Delta z , \qquad
    \sigma_T = \sigma_\Gamma \, |\Delta z| ,

and pressure follows from the hypsometric equation through a layer of that lapse rate,

.. math:: p(\Delta z)
    = p_g \left( 1 - \frac{\Gamma \Delta z}{T_{2\,\mathrm{m}}} \right)^{g / R \Gamma}
    \approx p_g \, e^{-g \Delta z / R \bar{T}} , \qquad
    \bar{T} = T_{2\,\mathrm{m}} - \tfrac{1}{2} \Gamma \Delta z .

A state has no pressure at the ground, but sea-level pressure, which ECMWF's model (and the planet)
reduces from it by a rule of its own: a standard lapse rate below the ground, moderated where that
would be hotter than 290.5 K or where the ground is colder than 255 K. :func:`ground_pressure`
undoes that rule with the 2 m temperature in the place of the lowest model level's.

Both steps err where their mean temperature does. With :math:`\partial \ln p / \partial \bar{T} = g
\, h / R \bar{T}^2` over a height :math:`h`, and independent errors,

.. math:: \frac{\sigma_p^2}{p^2} = \left( \frac{g \Delta z}{R \bar{T}^2} \cdot
    \frac{\sigma_\Gamma |\Delta z|}{2} \right)^2
    + \left( \frac{g z_g}{R \bar{T}^2} \, \sigma_\ast \right)^2 ,

where :math:`\sigma_\ast` is how far the 2 m temperature is from that of the reduction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ..data.variables import R_DRY, G
from ..errors import DataError

__all__ = ["Heights", "ground_pressure", "station_pressure"]

LAPSE = 6.5e-3  # K m⁻¹, the standard atmosphere's, and the reduction's own
WARM, COLD = 290.5, 255.0  # K, beyond which the reduction to sea level is moderated
STANDARD = 288.15  # K, the standard atmosphere at sea level


@dataclass(frozen=True)
class Heights:
    r"""How observations are compared at their height.

    Arguments:
        lapse: The lapse rate :math:`\Gamma` in K/m.
        lapse_error: Its standard deviation :math:`\sigma_\Gamma` in K/m: valleys have inversions,
            dry afternoons twice the mean.
        reduction_error: The standard deviation :math:`\sigma_\ast` in K.
        limit: The largest :math:`|\Delta z|` in metres; a station further from the model's ground
            is in another climate, and excluded.
    """

    lapse: float = LAPSE
    lapse_error: float = 3e-3
    reduction_error: float = 1.0
    limit: float = 1500.0

    def __post_init__(self) -> None:
        if not -5e-2 < self.lapse < 5e-2:
            raise DataError(
                f"found a lapse rate of {self.lapse} K/m; give kelvins a metre, for example 0.0065"
            )
        for name in ("lapse_error", "reduction_error", "limit"):
            if not getattr(self, name) >= 0:
                raise DataError(f"found a {name} of {getattr(self, name)}; give 0 or more")

    def temperature_shift(self, elevation: NDArray, ground: NDArray) -> tuple[NDArray, NDArray]:
        r"""What is added to the model's 2 m temperature at a station, and its standard deviation.

        Arguments:
            elevation: The station's height in metres, with shape :math:`(n)`.
            ground: The model's ground in metres, with shape :math:`(n)`.
        """
        above = elevation - ground
        return -self.lapse * above, self.lapse_error * np.abs(above)

    def pressure_error(self, pressure: ArrayLike, elevation: NDArray, ground: NDArray) -> NDArray:
        r"""The standard deviation of a station's computed pressure, in Pa.

        Arguments:
            pressure: The station's pressure in Pa, with shape :math:`(n)`.
            elevation, ground: As above; the temperature is the standard atmosphere's.
        """
        above = elevation - ground
        mean = np.maximum(STANDARD - LAPSE * np.maximum(ground + above / 2, 0), 200.0)
        per_kelvin = G / (R_DRY * mean**2)  # 1/(K m)
        layer = per_kelvin * self.lapse_error * above**2 / 2
        reduction = per_kelvin * self.reduction_error * np.abs(ground)
        return np.asarray(pressure) * np.hypot(layer, reduction)


def ground_pressure(sea: Tensor, temperature: Tensor, ground: Tensor) -> Tensor:
    r"""Pressure at the model's ground, from sea-level pressure.

    Arguments:
        sea: Mean sea-level pressure in Pa, with shape :math:`(*, n)`.
        temperature: Temperature of the ground in K, with shape :math:`(*, n)`.
        ground: The height of the ground in m, with shape :math:`(n)`.
    """
    t = temperature.clamp(150.0, 350.0)  # a state still full of noise is no reason for an overflow
    at_sea = t + LAPSE * ground
    # Γ z of the reduction: less where the air at sea level would be too hot, none if it is here
    warmer = torch.where(at_sea > WARM, (WARM - t).clamp(min=0.0), LAPSE * ground)
    star = torch.where((at_sea > WARM) & (t > WARM), (WARM + t) / 2, t)
    star = torch.where(t < COLD, (COLD + t) / 2, star)
    x = warmer / star
    return sea * torch.exp(-G / R_DRY * ground / star * (1 - x / 2 + x**2 / 3))


def station_pressure(
    sea: Tensor, temperature: Tensor, elevation: Tensor, ground: Tensor, lapse: float = LAPSE
) -> Tensor:
    r"""Pressure at a station's height.

    Arguments:
        sea: Mean sea-level pressure in Pa, with shape :math:`(*, n)`.
        temperature: The model's 2 m temperature in K, with shape :math:`(*, n)`.
        elevation: The station's height in m, with shape :math:`(n)`.
        ground: The model's ground in m, with shape :math:`(n)`.
        lapse: The lapse rate between the two in K/m.
    """
    t, above = temperature.clamp(150.0, 350.0), elevation - ground
    # ln(1 − x)/x = −(1 + x/2 + x²/3 + …) has no division by a lapse rate that may be 0; |x| < 0.1
    x = lapse * above / t
    series = 1 + x * (1 / 2 + x * (1 / 3 + x * (1 / 4 + x * (1 / 5 + x / 6))))
    return ground_pressure(sea, temperature, ground) * torch.exp(-G / R_DRY * above / t * series)
