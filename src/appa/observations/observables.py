r"""Observables: differentiable fields computed from a state, by name.

Every variable of a state is an observable of itself. Others are functions :math:`f` of a few of its
fields,

.. math:: \mathcal{A}(x) = f(a_1, \dots, a_m) ,

which are interpolated to the place of the observation first and restored to their units, so that
:math:`f` sees numbers, not grids. Winds are interpolated as components of a vector. What :math:`f`
is given depends on `levels`:

=========  =============================================================  ==================
`levels`   a field with levels, as an input                               a surface field
=========  =============================================================  ==================
`surface`  `geopotential_500`: at that level in hPa, :math:`(B, n)`       :math:`(B, n)`
`level`    at the observation's own level, :math:`(B, n)`                 :math:`(B, n)`
`column`   on all :math:`K` levels from the top down, :math:`(B, K, n)`   :math:`(B, n)`
=========  =============================================================  ==================

Between levels fields are linear in :math:`\ln p`. A function that names one of :data:`KEYWORDS`
among its parameters is given it as well. With `local=False` it takes whole fields,
:math:`(B, H, W)` or :math:`(B, K, H, W)`, and its result is interpolated instead: the form for
derivatives and averages in space.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..data.variables import VARIABLES
from ..errors import DataError, nearest

__all__ = ["KEYWORDS", "Observable", "family", "find", "known", "observable", "split_input"]

KINDS = ("surface", "level", "column")

# What a function may ask for, with its shape at n places (or for whole fields).
KEYWORDS: dict[str, str] = {
    "pressure": "Pa: (n) of the observations' levels, (K, 1) of a column's; (K, 1, 1) for fields",
    "elevation": "the station's height in m, (n): the model's ground where it is not known",
    "ground": "the model's orography at the place in m, (n) or (H, W)",
    "lapse": "the lapse rate in K/m, a number",
    "latitude": "degrees north, (n) or (H, 1)",
    "longitude": "degrees east, (n) or (W)",
}


@dataclass(frozen=True)
class Observable:
    r"""What may be observed.

    Arguments:
        name: Its name in tables and datasets.
        units: The unit, as CF writes it.
        inputs: The variables of a state it is computed from.
        function: The function :math:`f` of these; :py:`None` for a variable of the state itself.
        levels: `surface`, `level` or `column`, see :mod:`appa.observations.observables`.
        plausible: The range outside which a value cannot be of this planet.
        long_name: What it is, in words.
        local: Whether the function takes interpolated values, rather than whole fields.
        period: The period of an angle, whose departures are taken around the circle.
        keywords: Those of :data:`KEYWORDS` the function takes.
    """

    name: str
    units: str
    inputs: tuple[str, ...]
    function: Callable[..., Any] | None = None
    levels: str = "surface"
    plausible: tuple[float, float] = (-math.inf, math.inf)
    long_name: str = ""
    local: bool = True
    period: float | None = None
    keywords: tuple[str, ...] = ()

    @property
    def itself(self) -> bool:
        r"""Whether it is a variable of the state."""
        return self.function is None


ITSELF: dict[str, Observable] = {
    v.name: Observable(
        v.name,
        v.units,
        (v.name,),
        levels="surface" if v.surface else "level",
        plausible=v.plausible,
        long_name=v.attrs["long_name"],
    )
    for v in VARIABLES.values()
}
REGISTRY: dict[str, Observable] = {}
FAMILIES: list[tuple[re.Pattern[str], Callable[..., Observable]]] = []


def observable(
    name: str,
    *,
    units: str,
    inputs: Sequence[str],
    levels: str = "surface",
    plausible: tuple[float, float] = (-math.inf, math.inf),
    long_name: str | None = None,
    local: bool = True,
    period: float | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    r"""Registers a function as an observable.

    The function is returned as it is. It is made of differentiable operations of :mod:`torch`,
    and finite wherever a state may lie: a square root of what may be 0 has no gradient.

    Arguments:
        name: A new name; that of the same function may be registered again.
        units: The unit, as CF writes it.
        inputs: The variables it is computed from, one for each positional parameter, such as
            `"2m_temperature"`, or `"temperature_850"` at a level.
        levels: `surface`, `level` or `column`.
        plausible: The range outside which a value cannot be of this planet.
        long_name: What it is, in words; by default the name without underscores.
        local: Whether the function takes interpolated values, rather than whole fields.
        period: The period of an angle, e.g. 360 for degrees.

    Example:
        >>> @appa.observable("lifted", units="K", inputs=("temperature_500", "2m_temperature"))
        ... def lifted(upper, lower):
        ...     return upper - lower
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        new = Observable(
            name,
            units,
            tuple(inputs),
            function,
            levels,
            plausible,
            long_name or name.replace("_", " "),
            local,
            period,
            _keywords(name, function, len(inputs)),
        )
        _check(new)
        REGISTRY[name] = new
        return function

    if isinstance(inputs, str):
        raise DataError(f"found {inputs!r} for inputs; give a tuple, for example ({inputs!r},)")
    return register


def family(pattern: str) -> Callable[[Callable[..., Observable]], Callable[..., Observable]]:
    r"""Registers a function from the groups of a pattern of names to an observable."""

    def register(function: Callable[..., Observable]) -> Callable[..., Observable]:
        FAMILIES.append((re.compile(pattern), function))
        return function

    return register


def find(name: str) -> Observable:
    r"""The observable of that name; an unknown name is an error that names the nearest.

    Example:
        >>> find("10m_wind_speed").units
        'm s-1'
    """
    from . import derived  # noqa: F401  registers what comes with the package

    if name in ITSELF:
        return ITSELF[name]
    if name in REGISTRY:
        return REGISTRY[name]
    for pattern, make in FAMILIES:
        if match := pattern.fullmatch(str(name)):
            return make(*match.groups())
    raise DataError(
        f"unknown observable {name!r}{nearest(str(name), known())}; register your own with "
        "@appa.observable"
    )


def known() -> dict[str, Observable]:
    r"""Every observable by name: the variables of states first, then derived ones."""
    from . import derived  # noqa: F401

    return ITSELF | REGISTRY


def split_input(name: str) -> tuple[str, int | None]:
    r"""The variable an input names, and the level in hPa if it names one.

    Example:
        >>> split_input("geopotential_500")
        ('geopotential', 500)
    """
    if name in VARIABLES:
        return name, None
    stem, _, level = name.rpartition("_")
    if stem in VARIABLES and not VARIABLES[stem].surface and level.isdigit():
        return stem, int(level)
    raise DataError(f"unknown input {name!r}{nearest(name, VARIABLES)}")


def _check(new: Observable) -> None:
    r"""Raises where an observable cannot be what it is said to be."""
    if new.name in VARIABLES:
        raise DataError(
            f"{new.name!r} is a variable of the state; give the observable its own name"
        )
    old = REGISTRY.get(new.name)
    if old is not None and _origin(old.function) != _origin(new.function):
        raise DataError(
            f"{new.name!r} is registered already, by {_origin(old.function)}; give yours its own "
            "name"
        )
    if new.levels not in KINDS:
        raise DataError(
            f"unknown levels {new.levels!r} of {new.name!r}{nearest(new.levels, KINDS)}"
        )
    if new.period is not None and not new.local:
        raise DataError(
            f"{new.name!r} is an angle, which does not interpolate; compute it from interpolated "
            "fields, with local=True"
        )
    for text in new.inputs:
        variable, level = split_input(text)
        if new.levels == "surface" and level is None and not VARIABLES[variable].surface:
            raise DataError(
                f"{variable!r} has levels, and {new.name!r} has none; name one, for example "
                f"'{variable}_500', or give levels='level' or levels='column'"
            )


def _keywords(name: str, function: Callable[..., Any], inputs: int) -> tuple[str, ...]:
    r"""Which keywords a function takes, having checked that it takes its inputs."""
    parameters = inspect.signature(function).parameters.values()
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p for p in parameters if p.kind in plain and p.name not in KEYWORDS]
    least = sum(p.default is p.empty for p in positional)
    most = math.inf if any(p.kind is p.VAR_POSITIONAL for p in parameters) else len(positional)
    required = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
    if not least <= inputs <= most or required - set(KEYWORDS):
        raise DataError(
            f"{name!r} has {inputs} inputs, but its function takes "
            f"({', '.join(p.name for p in parameters)}); give it one parameter an input, and "
            f"keywords among {', '.join(KEYWORDS)}"
        )
    return tuple(p.name for p in parameters if p.name in KEYWORDS)


def _origin(function: Callable[..., Any] | None) -> str:
    function = getattr(function, "func", function)  # of a partial, what it calls
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
