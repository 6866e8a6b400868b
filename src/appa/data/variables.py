r"""The fields of a state: names, units, plausible ranges, and their order as channels.

Names and units are WeatherBench2's. A state stacks its surface fields first and then each
pressure-level field on all levels from the top down, so that with the paper's 6 surface and 5
atmospheric variables on 13 levels it has :math:`6 + 5 \times 13 = 71` channels. Which variables and
levels a model has is configuration; this module only knows what each of them is.
"""

from __future__ import annotations

from collections.abc import Sequence
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
        Variable("temperature", "t", "K", "air_temperature", (150, 335), mistaken=CELSIUS),
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
