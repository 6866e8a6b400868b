r"""How each variable looks: its colours, its unit on paper, its name.

A variable has the same colours in every figure, perceptually uniform ones (`cmocean`), diverging
about zero where its sign matters. It is shown in the unit one reads maps in: pressure in hPa,
temperature in °C, humidity in g/kg, geopotential as the height it stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..data.variables import G, variable
from ..errors import AppaError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "STYLES",
    "Style",
    "apart",
    "finish",
    "label",
    "legend",
    "limits",
    "lines",
    "require",
    "style",
]

INK = "#1b2430"  # text and coastlines
MUTED = "#6b7683"  # ticks, notes
BLANK = "#d8dde2"  # where there is nothing to show

# Okabe and Ito's colours, told apart by everybody.
BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
SKY, AMBER = "#56b4e9", "#e69f00"

# What is scored has the colour it has in every figure.
LINES: dict[str, tuple[str, str]] = {
    "truth": (INK, "-"),
    "analysis": (BLUE, "-"),
    "forecast": (ORANGE, "-"),
    "prior": (PURPLE, ":"),
    "climatology": (MUTED, "--"),
    "persistence": (GREEN, "-."),
}
OTHERS = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."), (PURPLE, ":"), (AMBER, "-"), (SKY, "--"))
MARKERS = "osD^vPX*<>"
# of lines that have no markers, no two alike: solid, dashed, dash-dot, dotted, and longer ones
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (9, 2)), (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))


@dataclass(frozen=True)
class Style:
    r"""The look of a variable.

    Arguments:
        colours: The name of a `cmocean` colour map.
        label: The variable's name in words.
        units: The unit shown.
        scale, offset: From the stored unit to the one shown,
            :math:`\text{shown} = \text{scale} \cdot \text{stored} + \text{offset}`.
        diverging: Whether colours are centred on zero.
        floor: The least value that colours start from, where there is one.
    """

    colours: str
    label: str
    units: str
    scale: float = 1.0
    offset: float = 0.0
    diverging: bool = False
    floor: float | None = None

    def shown(self, values: ArrayLike) -> NDArray:
        r"""Converts values to the unit shown."""
        return self.scale * np.asarray(values, dtype=np.float64) + self.offset

    @property
    def difference(self) -> str:
        r"""The unit of differences, which have no offset: those of °C are in K."""
        return "K" if self.units == "°C" else self.units


STYLES: dict[str, Style] = {
    "2m_temperature": Style("thermal", "2 m temperature", "°C", offset=-273.15),
    "10m_u_component_of_wind": Style("balance", "10 m wind, eastward", "m/s", diverging=True),
    "10m_v_component_of_wind": Style("balance", "10 m wind, northward", "m/s", diverging=True),
    "mean_sea_level_pressure": Style("matter_r", "Sea-level pressure", "hPa", scale=0.01),
    "sea_surface_temperature": Style("thermal", "Sea surface temperature", "°C", offset=-273.15),
    "total_precipitation": Style("rain", "Precipitation", "mm/h", scale=1e3, floor=0.0),
    "temperature": Style("thermal", "Temperature", "°C", offset=-273.15),
    "u_component_of_wind": Style("balance", "Wind, eastward", "m/s", diverging=True),
    "v_component_of_wind": Style("balance", "Wind, northward", "m/s", diverging=True),
    "geopotential": Style("haline", "Geopotential height", "dam", scale=0.1 / G),
    "specific_humidity": Style("tempo", "Specific humidity", "g/kg", scale=1e3, floor=0.0),
}


def style(name: str) -> Style:
    r"""The look of the variable of that name."""
    return STYLES[variable(name).name]


def label(name: str, level: int | None = None) -> str:
    r"""A variable's name in words, with its level."""
    words = style(name).label
    return words if level is None else f"{words}, {level} hPa"


def limits(name: str, values: ArrayLike) -> tuple[float, float]:
    r"""Ends of a colour scale for stored values: all but 1 % at each end, rounded outward.

    Returns:
        The ends in the unit shown.
    """

    look = style(name)
    shown = look.shown(values)
    shown = shown[np.isfinite(shown)]
    if shown.size == 0:
        return 0.0, 1.0
    if look.diverging:
        high = float(np.quantile(np.abs(shown), 0.99))
        low = -high
    else:
        low, high = (float(q) for q in np.quantile(shown, [0.01, 0.99]))
    if look.floor is not None:
        low = look.floor
    if not high > low:
        low, high = low - 0.5, low + 0.5

    step = 10.0 ** np.floor(np.log10((high - low) / 2))
    step *= 0.5 if (high - low) / step < 10 else 1.0
    low = look.floor if look.floor is not None else float(np.floor(low / step) * step)
    return low, float(np.ceil(high / step) * step)


def lines(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    r"""The colour, dashes and marker of each of several curves: no two agree in all, so that they
    are told apart without colours too.

    Names of :data:`LINES` have theirs in every figure, others what is left of
    :data:`OTHERS`.
    """
    names = list(dict.fromkeys(names))
    taken = {LINES[name][0] for name in names if name in LINES}
    free = [look for look in OTHERS if look[0] not in taken] or list(OTHERS)
    found, k = {}, 0
    for i, name in enumerate(names):
        if name in LINES:
            colour, dashes = LINES[name]
        else:
            colour, dashes = free[k % len(free)]
            k += 1
        marker = MARKERS[i % len(MARKERS)]
        found[name] = {"color": colour, "linestyle": dashes, "marker": marker}
    return found


def apart(
    names: Iterable[str], colours: Mapping[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    r"""The colour and dashes of curves without markers: of up to six no two have the same colour,
    nor of seven the same dashes, so that they are told apart without colours too.

    Arguments:
        names: What is drawn, in order.
        colours: Those that have a colour of their own; by default the truth is dark. Of two that
            have the same, the later is given one that is left.
    """
    names, known = list(dict.fromkeys(names)), {"truth": INK} if colours is None else colours
    given: dict[str, str] = {}
    for name in names:
        if name in known and known[name] not in given.values():
            given[name] = known[name]
    every = [colour for colour, _ in OTHERS]
    free = [colour for colour in every if colour not in given.values()]
    rest = iter([*free, *every * (1 + len(names) // len(every))])
    return {
        name: {
            "color": given[name] if name in given else next(rest),
            "linestyle": DASHES[k % len(DASHES)],
        }
        for k, name in enumerate(names)
    }


def require() -> None:
    r"""Raises an error that says what to install where the figures' packages are missing."""
    try:
        import cmocean  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise AppaError(
            f"figures need {error.name!r}, which is not installed; "
            "run pip install 'appa-assimilation[plots]'"
        ) from None


def finish(ax: Axes, x: str, y: str, title: str) -> None:
    r"""Labels the axes of a plot, titles it, and leaves it two spines."""
    ax.set_xlabel(x, color=INK, fontsize=9)
    ax.set_ylabel(y, color=INK, fontsize=9)
    ax.set_title(title, color=INK, fontsize=10, loc="left")
    ax.tick_params(color=MUTED, labelcolor=INK, labelsize=8, length=2.5)
    for name, spine in ax.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(MUTED)


def legend(ax: Axes | Figure, **options: Any) -> None:
    r"""Adds a legend without a frame, to axes or to a figure."""
    ax.legend(frameon=False, fontsize=8, labelcolor=INK, **options)
