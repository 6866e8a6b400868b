r"""The fields of a state: names, units, plausible ranges, and their order as channels.

Names and units are WeatherBench2's. A state stacks its surface fields first and then each
pressure-level field on all levels from the top down, so that with the paper's 6 surface and 5
atmospheric variables on 13 levels it has :math:`6 + 5 \times 13 = 71` channels. Which variables and
levels a model has is configuration; this module only knows what each of them is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import DataError, nearest

__all__ = [
    "ATMOSPHERIC",
    "LEVELS",
    "STATIC",
    "SURFACE",
    "VARIABLES",
    "Channel",
    "Variable",
    "channels",
    "conversion",
    "plausible",
    "plausible_mean",
    "standard_height",
    "variable",
]

G = 9.80665  # m s⁻², standard gravity


@dataclass(frozen=True)
class Variable:
    r"""A physical field.

    Arguments:
        name: WeatherBench2's name.
        short: The usual abbreviation, for tables and figures.
        units: The unit, as CF writes it.
        standard_name: CF's standard name.
        plausible: The range outside which a value cannot be of this planet, at any level.
        surface: Whether the field has no levels.
        mistaken: Units the field is often found in by mistake, as `(name, scale, offset)` with
            :math:`\text{right} = \text{scale} \cdot \text{found} + \text{offset}`.
        missing: Where the field may be undefined: `"land"` or nowhere.
    """

    name: str
    short: str
    units: str
    standard_name: str
    plausible: tuple[float, float]
    surface: bool = False
    mistaken: tuple[tuple[str, float, float], ...] = ()
    missing: str | None = None

    @property
    def attrs(self) -> dict[str, str]:
        r"""CF attributes."""
        return {
            "long_name": self.name.replace("_", " "),
            "standard_name": self.standard_name,
            "short_name": self.short,
            "units": self.units,
        }


CELSIUS = (("°C", 1.0, 273.15),)

VARIABLES: dict[str, Variable] = {
    v.name: v
    for v in (
        Variable("2m_temperature", "t2m", "K", "air_temperature", (170, 335), True, CELSIUS),
        Variable("10m_u_component_of_wind", "u10", "m s-1", "eastward_wind", (-80, 80), True),
        Variable("10m_v_component_of_wind", "v10", "m s-1", "northward_wind", (-80, 80), True),
        Variable(
            "mean_sea_level_pressure",
            "msl",
            "Pa",
            "air_pressure_at_mean_sea_level",
            (85_000, 110_000),
            True,
            (("hPa", 100.0, 0.0),),
        ),
        Variable(
            "sea_surface_temperature",
            "sst",
            "K",
            "sea_surface_temperature",
            (265, 315),
            True,
            CELSIUS,
            missing="land",
        ),
        Variable(
            "total_precipitation",
            "tp",
            "m",
            "lwe_thickness_of_precipitation_amount",
            (-1e-5, 0.35),
            True,
            (("mm", 1e-3, 0.0),),
        ),
        Variable("temperature", "t", "K", "air_temperature", (140, 335), mistaken=CELSIUS),
        Variable("u_component_of_wind", "u", "m s-1", "eastward_wind", (-180, 180)),
        Variable("v_component_of_wind", "v", "m s-1", "northward_wind", (-180, 180)),
        Variable(
            "geopotential",
            "z",
            "m2 s-2",
            "geopotential",
            (-12_000, 330_000),
            mistaken=(("m (geopotential height)", G, 0.0),),
        ),
        Variable(
            "specific_humidity",
            "q",
            "kg kg-1",
            "specific_humidity",
            (-1e-3, 0.04),
            mistaken=(("g kg-1", 1e-3, 0.0),),
        ),
    )
}

SURFACE: tuple[str, ...] = tuple(v.name for v in VARIABLES.values() if v.surface)
ATMOSPHERIC: tuple[str, ...] = tuple(v.name for v in VARIABLES.values() if not v.surface)
LEVELS: tuple[int, ...] = (50, 100, 150, 200, 250, 300, 400, 500, 600, 700, 850, 925, 1000)

# Fields without time that travel with a store: the share of land in a cell, and the
# geopotential of the ground (orography times g).
STATIC: dict[str, dict[str, str]] = {
    "land_sea_mask": {
        "long_name": "land-sea mask",
        "standard_name": "land_area_fraction",
        "units": "1",
    },
    "geopotential_at_surface": {
        "long_name": "geopotential at the surface",
        "standard_name": "surface_geopotential",
        "units": "m2 s-2",
    },
}


@dataclass(frozen=True)
class Channel:
    r"""One channel of a state: a variable, and its level in hPa where it has levels."""

    variable: str
    level: int | None = None
    name: str = field(init=False)

    def __post_init__(self) -> None:
        short = VARIABLES[self.variable].short
        object.__setattr__(self, "name", short if self.level is None else f"{short}{self.level}")


@dataclass(frozen=True)
class Unnamed:
    r"""A channel of which no more is known than its place in the state."""

    index: int

    @property
    def name(self) -> str:
        return f"channel {self.index}"


# Other ways of writing the units a field is found in.
SPELLINGS: dict[str, tuple[str, ...]] = {
    "hPa": ("hpa", "mb", "mbar", "millibar", "millibars", "hectopascal"),
    "°C": ("°c", "c", "degc", "deg_c", "celsius", "degree_celsius", "degrees_celsius"),
    "mm": ("mm", "millimeter", "millimetre", "millimeters", "millimetres"),
    "g kg-1": ("g kg-1", "g/kg", "g kg**-1", "g kg^-1"),
    "m (geopotential height)": ("m", "gpm", "geopotential meter", "meter", "metre", "meters"),
}


def conversion(name: str, units: str | None) -> tuple[float, float]:
    r"""What turns a field's values, in the units their attribute tells, into its own units.

    Returns:
        Scale and offset: :math:`(1, 0)` for its own units, and for those not known to be others.

    Example:
        >>> conversion("mean_sea_level_pressure", "hPa")
        (100.0, 0.0)
    """
    told = " ".join(str(units or "").lower().split())
    for other, scale, offset in VARIABLES[name].mistaken if name in VARIABLES else ():
        if told in SPELLINGS[other]:
            return scale, offset
    return 1.0, 0.0


def variable(name: str) -> Variable:
    r"""The variable of that name; an unknown name is an error that names the nearest."""
    try:
        return VARIABLES[name]
    except KeyError:
        raise DataError(f"unknown variable {name!r}{nearest(name, VARIABLES)}") from None


def channels(
    surface: Sequence[str] = SURFACE,
    atmospheric: Sequence[str] = ATMOSPHERIC,
    levels: Sequence[int] = LEVELS,
) -> list[Channel]:
    r"""The channels of a state in order: surface fields, then each field on all its levels."""
    for name in surface:
        if not variable(name).surface:
            raise DataError(f"{name!r} has levels; list it under the atmospheric variables")
    for name in atmospheric:
        if variable(name).surface:
            raise DataError(f"{name!r} has no levels; list it under the surface variables")
    return [Channel(name) for name in surface] + [
        Channel(name, int(level)) for name in atmospheric for level in levels
    ]


# The standard atmosphere: bases of its layers as pressure (hPa), height (m), temperature (K) and
# the temperature's change with height (K/m).
LAYERS = (
    (1013.25, 0.0, 288.15, -6.5e-3),
    (226.3206, 11_000.0, 216.65, 0.0),
    (54.74889, 20_000.0, 216.65, 1.0e-3),
    (8.680187, 32_000.0, 228.65, 2.8e-3),
    (1.109063, 47_000.0, 270.65, 0.0),
)
R_DRY = 287.053  # J kg⁻¹ K⁻¹

# Lowest and highest temperature (K) and highest humidity (kg/kg) to be met at a pressure (hPa):
# linear in its logarithm between these. Coldest is the air over a winter pole at 50 hPa.
COLDEST = {1: 150, 10: 145, 50: 135, 100: 150, 250: 175, 500: 190, 1000: 180}
WARMEST = {1: 335, 10: 295, 50: 260, 200: 270, 300: 285, 500: 305, 850: 330, 1000: 335}
MOISTEST = {50: 5e-4, 100: 1e-3, 200: 4e-3, 300: 8e-3, 500: 0.02, 700: 0.03, 850: 0.04}


def standard_height(level: float) -> float:
    r"""Geopotential height of a pressure level (hPa) in the standard atmosphere, in metres."""
    above = [layer for layer in LAYERS if level <= layer[0]]
    pressure, height, temperature, lapse = above[-1] if above else LAYERS[0]
    log = math.log(pressure / level) * R_DRY / G
    if lapse == 0:
        return height + temperature * log
    # p = p_b (T / T_b)^(−g / RΓ), solved for the height
    return height + temperature / lapse * math.expm1(lapse * log)


def plausible(name: str, level: float | None = None) -> tuple[float, float]:
    r"""The range outside which a value cannot be of this planet, at a level if it has levels.

    Geopotential may depart from the standard atmosphere's by 900 m at 1000 hPa and more above,
    where the whole column below adds to it.
    """
    low, high = variable(name).plausible
    if level is None:
        return low, high
    if name == "temperature":
        return _between(COLDEST, level), _between(WARMEST, level)
    if name == "specific_humidity":
        high = _between(MOISTEST, level)
        return -high / 10, high
    if name == "geopotential":
        height, margin = standard_height(level), 900 + 1200 * max(math.log(1000 / level), 0)
        return G * (height - margin), G * (height + margin)
    return low, high


def plausible_mean(name: str, level: float | None = None) -> tuple[float, float]:
    r"""The range outside which a global mean cannot be of this planet.

    It is what tells mistaken units apart where the fields of both are plausible point by point:
    heights at 1000 hPa, dry air in g/kg, a rainless hour in mm.
    """
    if name == "total_precipitation":
        return -1e-5, 2e-3
    if level is not None and name == "specific_humidity":
        return -1e-4, 30 * max(8e-3 * (level / 1000) ** 3, 3e-6)
    if level is not None and name == "geopotential" and level <= 1000:
        z = G * standard_height(level)
        return 0.4 * z, 1.6 * z + 300 * G
    return plausible(name, level)


def _between(table: Mapping[int, float], level: float) -> float:
    r"""Interpolates a table linearly in the logarithm of pressure; constant beyond its ends."""
    known = sorted(table)
    level = min(max(level, known[0]), known[-1])
    above = max(p for p in known if p <= level)
    below = min(p for p in known if p >= level)
    if above == below:
        return table[above]
    share = math.log(level / above) / math.log(below / above)
    return (1 - share) * table[above] + share * table[below]
