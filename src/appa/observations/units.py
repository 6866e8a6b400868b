r"""Names and units observations come under.

A unit is linear in the one it is converted to,

.. math:: x = a \, x' + b, \qquad \sigma = a \, \sigma'

so that an error is scaled with its value, without the offset. Units that convert to each other are
a family. Some families know the field: a height of geopotential in metres is :math:`g` times as
much in m² s⁻², and a millimetre of water is a kilogram on a square metre.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ..data.variables import VARIABLES, G, plausible
from ..errors import DataError
from . import observables

__all__ = ["conversion", "looks_like", "plausible_range", "recognise", "spelling", "wrong_units"]

# What one of each is in the first of its family, as (scale, offset). The usual ones come first:
# that is the order in which a column of wrong values is compared with them.
FAMILIES: tuple[dict[str, tuple[float, float]], ...] = (
    {"K": (1, 0), "°C": (1, 273.15), "°F": (5 / 9, 273.15 - 160 / 9)},
    {
        "Pa": (1, 0),
        "hPa": (100, 0),
        "kPa": (1000, 0),
        "inHg": (3386.389, 0),
        "mmHg": (133.322387415, 0),
    },
    {"m s-1": (1, 0), "kn": (1852 / 3600, 0), "km h-1": (1 / 3.6, 0), "mph": (0.44704, 0)},
    {
        "m": (1, 0),
        "mm": (1e-3, 0),
        "gpm": (1, 0),
        "dam": (10, 0),
        "km": (1000, 0),
        "cm": (1e-2, 0),
        "in": (0.0254, 0),
        "ft": (0.3048, 0),
        "kg m-2": (1e-3, 0),  # of water
        "mm h-1": (1e-3, 0),  # over the hour
    },
    {
        "m2 s-2": (1, 0),
        "gpm": (G, 0),
        "m": (G, 0),
        "dam": (10 * G, 0),
        "km": (1000 * G, 0),
        "ft": (0.3048 * G, 0),
    },
    {"%": (1, 0), "1": (100, 0)},
    {"kg kg-1": (1, 0), "1": (1, 0), "g kg-1": (1e-3, 0), "%": (1e-2, 0), "mg kg-1": (1e-6, 0)},
    {"degree": (1, 0), "rad": (180 / np.pi, 0)},
)

# Other spellings, in lower case, without spaces, stars, carets and dots.
SPELLINGS: dict[str, tuple[str, ...]] = {
    "K": ("kelvin", "degk", "kelvins"),
    "°C": ("c", "degc", "deg_c", "celsius", "degreecelsius", "degreescelsius", "degree_celsius"),
    "°F": ("f", "degf", "deg_f", "fahrenheit", "degreefahrenheit", "degreesfahrenheit"),
    "Pa": ("pascal", "pascals"),
    "hPa": ("mb", "mbar", "millibar", "millibars", "hectopascal", "hectopascals"),
    "kPa": ("kilopascal", "kilopascals"),
    "inHg": ("inhg", "inchesofmercury", "in_hg", '"hg'),
    "mmHg": ("torr",),
    "m s-1": ("m/s", "ms-1", "mps", "metrespersecond", "meterspersecond"),
    "kn": ("kt", "kts", "knot", "knots"),
    "km h-1": ("km/h", "kmh-1", "kmh", "kph", "kmph"),
    "mph": ("mi/h", "milesperhour"),
    "m": ("metre", "metres", "meter", "meters", "mofwaterequivalent"),
    "gpm": ("geopotentialmetre", "geopotentialmeter", "geopotentialmetres", "m(gp)"),
    "mm": ("millimetre", "millimetres", "millimeter", "millimeters", "mmofwater"),
    "dam": ("gpdam", "dagpm", "decametre", "decameter"),
    "km": ("kilometre", "kilometres", "kilometer", "kilometers"),
    "cm": ("centimetre", "centimetres", "centimeter", "centimeters"),
    "in": ("inch", "inches"),
    "ft": ("foot", "feet"),
    "kg m-2": ("kg/m2", "kg/m²", "kgm-2"),
    "mm h-1": ("mm/h", "mm/hr", "mmh-1", "mmhr-1"),
    "m2 s-2": ("m2/s2", "m²/s²", "m2s-2", "j/kg", "jkg-1"),
    "kg kg-1": ("kg/kg", "kgkg-1"),
    "g kg-1": ("g/kg", "gkg-1"),
    "mg kg-1": ("mg/kg", "mgkg-1"),
    "%": ("percent", "pct"),
    "1": ("fraction", "dimensionless", "(0-1)"),
    "degree": ("degrees", "deg", "°", "degree_true", "degreestrue"),
    "rad": ("radian", "radians"),
}

# Names observables go by elsewhere, beside their own and the short ones; the unit goes with it.
NAMES: dict[str, str] = {
    **{v.short: v.name for v in VARIABLES.values()},
    **dict.fromkeys(("2t", "t2", "temperature_2m", "2_metre_temperature"), "2m_temperature"),
    **dict.fromkeys(("10u", "u10m", "10m_u_wind"), "10m_u_component_of_wind"),
    **dict.fromkeys(("10v", "v10m", "10m_v_wind"), "10m_v_component_of_wind"),
    **dict.fromkeys(
        ("mslp", "slp", "prmsl", "pmsl", "sea_level_pressure", "air_pressure_at_mean_sea_level"),
        "mean_sea_level_pressure",
    ),
    **dict.fromkeys(("precipitation", "total_precipitation_1hr", "precip"), "total_precipitation"),
    **dict.fromkeys(("eastward_wind", "u_wind"), "u_component_of_wind"),
    **dict.fromkeys(("northward_wind", "v_wind"), "v_component_of_wind"),
    **dict.fromkeys(("gh", "hgt", "geopotential_height"), "geopotential"),
    **dict.fromkeys(("r", "rh"), "relative_humidity"),
    **dict.fromkeys(("si10", "10si", "ws10", "wind_speed_10m"), "10m_wind_speed"),
    **dict.fromkeys(("wdir10", "10wdir", "wd10", "wind_direction_10m"), "10m_wind_direction"),
    **dict.fromkeys(("tcwv", "pwat"), "total_column_water_vapour"),
    **dict.fromkeys(("sp", "station_pressure"), "surface_pressure"),
}
IMPLIED: dict[str, str] = {"gh": "gpm", "hgt": "gpm", "geopotential_height": "gpm"}


def _plain(units: object) -> str:
    return re.sub(r"[\s*^·]", "", str(units)).lower()


@cache
def _spellings() -> Mapping[str, str]:
    known = {name for family in FAMILIES for name in family}
    table = {_plain(name): name for name in known}
    return table | {other: name for name, others in SPELLINGS.items() for other in others}


def spelling(units: object) -> str:
    r"""A unit as it is written here; one that is unknown stays as it is.

    Example:
        >>> spelling("deg C"), spelling("m s**-1")
        ('°C', 'm s-1')
    """
    return _spellings().get(_plain(units), str(units).strip())


def conversion(units: object, target: str, name: str = "") -> tuple[float, float]:
    r"""What turns values in one unit into another.

    Arguments:
        units: The unit values are in.
        target: The unit they should be in.
        name: What they are of, for messages.

    Returns:
        Scale and offset. The errors of values are multiplied by the scale alone.

    Example:
        >>> conversion("hPa", "Pa")
        (100.0, 0.0)
    """
    found, wanted = spelling(units), spelling(target)
    if found == wanted:
        return 1.0, 0.0
    families = [family for family in FAMILIES if wanted in family]
    # "m" begins one family and is a height of geopotential in another
    families.sort(key=lambda family: next(iter(family)) != wanted)
    for family in families:
        if found in family:
            (a, b), (c, d) = family[found], family[wanted]
            return a / c, (b - d) / c
    what = f"{name!r} is in {target}" if name else f"the unit is {target}"
    known = _spellings()
    if found in known.values():
        usual = list(families[0]) if families else [target]
        raise DataError(
            f"{what}, and {units} is of another kind; units that convert: {', '.join(usual)}"
        )
    usual = list(dict.fromkeys(u for family in families for u in family)) or [target]
    # of all that are known the nearest: one of another kind is not meant
    close = [known[s] for s in difflib.get_close_matches(_plain(units), known, n=1, cutoff=0.7)]
    likely = close and close[0] in usual
    hint = f"; did you mean {close[0]!r}?" if likely else f"; known: {', '.join(usual)}"
    raise DataError(f"{what}, and the unit {str(units)!r} is unknown{hint}")


def recognise(name: object) -> tuple[str, float | None, str | None] | None:
    r"""The observable a name stands for, a level where the name has one, and the unit it implies.

    Example:
        >>> recognise("T2M"), recognise("z500")
        (('2m_temperature', None, None), ('geopotential', 500.0, None))
    """
    plain = re.sub(r"[\s-]+", "_", str(name).strip())
    for key in dict.fromkeys((plain, plain.lower())):
        # find() makes some of its names up, a thickness between any two levels for one
        if key in observables.known() or (key not in NAMES and _exists(key)):
            return key, None, None
        if key in NAMES:
            return (NAMES[key], None, IMPLIED.get(key)) if _exists(NAMES[key]) else None
    match = re.fullmatch(r"([a-z_]*[a-z])_?(\d{2,4})(?:hpa)?", plain.lower())
    full = NAMES.get(match[1], match[1]) if match else None
    if match and full and _exists(full) and observables.find(full).levels == "level":
        return full, float(match[2]), IMPLIED.get(match[1])
    return None


def _exists(name: str) -> bool:
    try:
        observables.find(name)
    except DataError:
        return False
    return True


def plausible_range(name: str, level: float | None = None) -> tuple[float, float]:
    r"""The range outside which a value cannot be of this planet, in the observable's unit.

    Those of states begin a little below zero for precipitation and humidity, since models compute
    such. What is observed does not, but for its error; see :mod:`appa.observations.checks`.
    """
    low, high = observables.find(name).plausible
    if level is not None and np.isfinite(level) and name in VARIABLES:
        low, high = plausible(name, float(level))
    return max(low, 0.0) if name in NONNEGATIVE else low, high


NONNEGATIVE = ("total_precipitation", "specific_humidity")

# Rain in millimetres is nearly always a plausible number of metres; its mean is not.
MEANS = {"total_precipitation": (-1e-5, 0.02)}
# Humidity as a fraction is a plausible percentage, of the stratosphere: nobody else means it.
UNSAID = {"relative_humidity": (2.0, np.inf)}


def looks_like(
    name: str, values: NDArray, low: NDArray, high: NDArray, units: str | None = None
) -> list[str]:
    r"""The units a column of values is in, where it cannot be the one it is said to be in.

    It is said to be in another unit where it seems so as a whole: fewer than half as many values
    are plausible as would be in that unit, of which half or more are. Single bad values do not
    make it so. Zeros count for nothing: they are the same in most units.

    Arguments:
        name: The observable.
        values: The values as given, with shape :math:`(N)`.
        low, high: The plausible ranges, in the observable's unit, with shape :math:`(N)` or none.
        units: The unit they are said to be in, by default the observable's own, as nobody said.

    Returns:
        The units that fit, the usual ones first; none where the values are what they are said
        to be.
    """
    target = observables.find(name).units
    values, low, high = (np.asarray(a) for a in np.broadcast_arrays(values, low, high))
    some = np.isfinite(values) & (values != 0)
    values, low, high = values[some], low[some], high[some]
    if not len(values):
        return []
    means = MEANS | UNSAID if units is None else MEANS
    mean_low, mean_high = means.get(name, (-np.inf, np.inf))

    def share(scale: float, offset: float) -> float:
        x = scale * values + offset
        good = (x >= low) & (x <= high)
        # of what is plausible alone: a missing value such as -9999 is in no unit
        mean = x[good].mean() if good.any() else 0.0
        return float(good.mean()) * bool(mean_low <= mean <= mean_high)

    told = conversion(units or target, target, name)
    claimed = share(*told)
    if claimed > 0.5:
        return []
    wanted, found = spelling(target), {}
    for family in FAMILIES:
        for other in family if wanted in family else ():
            by = conversion(other, target)
            if by != told and other not in found and by not in [b for _, b in found.values()]:
                found[other] = share(*by), by
    fits = {u: p for u, (p, _) in found.items() if p >= 0.5 and p > 2 * claimed}
    best = max(fits.values(), default=0.0)
    return [u for u, p in fits.items() if p >= 0.8 * best]


def wrong_units(name: str, values: NDArray, units: str, likely: list[str]) -> str:
    r"""Says that a column of values is not in the unit it is said to be in."""
    x = values[np.isfinite(values)]
    other = f", or that they are {units} all the same" if name in UNSAID else ""
    return (
        f"{name!r} has values around {np.median(x):.4g} (from {x.min():.4g} to {x.max():.4g}), "
        f"which cannot be {units}; they look like {' or '.join(likely)}: say so with "
        f"units={{{name!r}: {likely[0]!r}}}, or in a column `units`{other}"
    )
