r"""Saturation vapour pressure, as two models have it.

Over water and over ice :math:`e = e_0 \exp(c \, (T - T_0) / (T - t))`. Between :math:`T_\text{ice}`
and :math:`T_0` phases mix, with the share :math:`((T - T_\text{ice}) / (T_0 - T_\text{ice}))^2` of
water.
"""

from __future__ import annotations

__all__ = ["SATURATION", "TRIPLE"]

TRIPLE = 273.16  # K, the triple point of water T₀

# e₀ in Pa, c and t over water, c and t over ice, and T_ice in K, below which all is ice
SATURATION: dict[str, tuple[float, float, float, float, float, float]] = {
    "speedy": (610.8, 17.269, 35.86, 21.875, 7.66, 273.16),
    "ifs": (611.21, 17.502, 32.19, 22.587, -0.7, 250.16),
}
