r"""Curves of what a model keeps of states, and of what its prior draws; maps are in
:mod:`appa.plots.draws`.

They are drawn from the scores of :mod:`appa.evaluation.reconstruction` and
:mod:`appa.evaluation.prior` alone. Truth is black, reconstructions are blue and draws are orange;
where there is a line a variable, the variable has its colour in every figure. Spectra of whatever
sources have colours and dashes no two of which agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ..data.variables import VARIABLES
from ..evaluation.prior import PAPER
from ..evaluation.reconstruction import relative_steps
from .curves import pressure
from .saving import save
from .style import (
    AMBER,
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PURPLE,
    SKY,
    apart,
    finish,
    label,
    legend,
    require,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "plot_autocorrelation",
    "plot_changes",
    "plot_errors",
    "plot_rmse",
    "plot_seam",
    "plot_spectra",
    "plot_variance",
    "save",
]

COLOURS = {"truth": INK, "reconstruction": BLUE, "draws": ORANGE, "members": BLUE}
LINES = {"t": ORANGE, "u": PURPLE, "v": AMBER, "z": BLUE, "q": GREEN, "tp": SKY, "sst": MUTED}
LINES |= {"t2m": ORANGE, "u10": PURPLE, "v10": AMBER, "msl": BLUE}
BESIDE: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1)}  # of a legend
SPECTRA = (
    "t2m",
    "u10",
    "v10",
    "tp",
    "t850",
    "u850",
    "z850",
    "q700",
    "t250",
    "u250",
    "v500",
    "z500",
)


def plot_rmse(scores: xr.Dataset) -> Figure:
    r"""Reconstruction errors: surface fields, and the others by level; below, if they are known, in
    units of the weather. Bars span the years."""
    rows = [("rmse", "standard deviations", "Reconstruction error")]
    if "rmse_weather" in scores:
        rows.append(("rmse_weather", "of the weather's deviation", "… relative to the weather"))
    figure, axes = panels(len(rows), 2, (9.6, 0.5 + 2.9 * len(rows)), widths=(1, 1.25))
    levels = scores["level"].values
    for (left, right), (name, unit, title) in zip(axes, rows, strict=True):
        values = scores[name].values
        by_year = scores["rmse_year"] * (scores[name] / scores["rmse"])
        span = np.stack([values - by_year.min("year"), by_year.max("year") - values])
        span = np.nan_to_num(np.maximum(span, 0))
        surface = np.flatnonzero(np.isnan(levels))
        names = [str(scores["channel"].values[k]) for k in surface]
        for place, k in enumerate(surface):
            left.bar(place, values[k], color=LINES.get(names[place], MUTED), width=0.66)
        left.errorbar(
            range(len(surface)),
            values[surface],
            span[:, surface],
            fmt="none",
            ecolor=INK,
            elinewidth=1,
        )
        left.set_xticks(range(len(surface)), names)
        finish(left, "", unit, f"{title}, surface")
        for variable in _levelled(scores):
            k = np.flatnonzero(scores["variable"].values == variable)
            short = VARIABLES[variable].short
            colour = LINES.get(short, MUTED)
            right.errorbar(
                values[k],
                levels[k],
                xerr=span[:, k],
                color=colour,
                label=short,
                marker="o",
                markersize=3,
                elinewidth=0.8,
            )
        pressure(right, levels)
        right.set_xlim(left=0)
        finish(right, unit, "hPa", f"{title}, by level")
        if len(_levelled(scores)):
            legend(right, **BESIDE)
    return figure


def plot_spectra(
    scores: xr.Dataset, channels: Sequence[str] = SPECTRA, length: int | None = None
) -> Figure:
    r"""Power spectra by wavelength: medians over states, with the 5–95 % range.

    Arguments:
        scores: Scores of reconstructions, of the prior, or of an ensemble, see
            :func:`appa.evaluation.distributions.spectra`.
        channels: The channels, of which those there are drawn.
        length: The length of trajectories, where there are several; by default the first.
    """
    spectrum = at_length(scores, length)["spectrum"]
    known = [c for c in channels if c in spectrum["channel"].values]
    known = known or spectrum["channel"].values.tolist()[: len(SPECTRA)]
    known = [c for c in known if np.isfinite(spectrum.sel(channel=c)).any()]
    columns = min(4, max(len(known), 1))
    rows = -(-max(len(known), 1) // columns)
    figure, axes = panels(rows, columns, (0.4 + 2.7 * columns, 0.5 + 2.0 * rows))
    x = spectrum["wavelength"].values[1:]
    sources = spectrum["source"].values.tolist()
    looks = apart(sources, COLOURS)
    for ax, channel in zip(axes.flat, known, strict=False):
        for source in sources:
            low, median, high = spectrum.sel(channel=channel, source=source).values[:, 1:]
            colour = looks[source]["color"]
            ax.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)
            ax.plot(x, median, **looks[source], linewidth=1.2, label=source)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlim(x[0], x[-1])
        ticks = [km for km in (20000, 5000, 2000, 1000, 500, 200, 100) if x[-1] <= km <= x[0]]
        ax.set_xticks(ticks, [f"{km:,}" for km in ticks])
        ax.minorticks_off()
        finish(ax, "", f"energy, {_unit(scores, channel)}²", channel)
    below(axes, len(known), "wavelength, km")
    if known:
        legend(axes.flat[0], loc="lower left")
    return figure


def plot_errors(scores: xr.Dataset) -> Figure:
    r"""Distributions of signed reconstruction errors: surface fields, and the others over all of
    their levels."""
    figure, axes = panels(1, 2, (9.6, 3.3))
    width = float(scores["bin"][1] - scores["bin"][0])
    edges = np.append(scores["bin"].values - width / 2, scores["bin"].values[-1] + width / 2)
    surface = [v for v in dict.fromkeys(scores["variable"].values) if VARIABLES[v].surface]
    for ax, variables, title in zip(
        axes.flat,
        (surface, _levelled(scores)),
        ("Signed errors, surface", "Signed errors, all levels"),
        strict=True,
    ):
        for variable in variables:
            share = scores["histogram"][scores["variable"].values == variable].mean("channel")
            short = VARIABLES[variable].short
            colour = LINES.get(short, MUTED)
            ax.stairs(100 * share.values, edges, color=colour, label=short, linewidth=1.1)
        ax.axvline(0, color=MUTED, linewidth=0.6)
        ax.set_yscale("log")
        ax.set_ylim(bottom=1e-4)
        ax.set_xlim(edges[0], edges[-1])
        finish(ax, "standard deviations", f"% of the area in {width:.2g}", title)
        if len(variables):
            legend(ax, **BESIDE)
    return figure


def plot_autocorrelation(scores: xr.Dataset) -> Figure:
    r"""Autocorrelations by lag of truth and draws, for each length of trajectories."""
    channels = _paper(scores)
    columns = min(4, len(channels))
    rows = -(-len(channels) // columns)
    figure, axes = panels(rows, columns, (0.4 + 2.7 * columns, 0.5 + 2.1 * rows))
    styles = ("-", "--", ":", "-.")
    for ax, channel in zip(axes.flat, channels, strict=False):
        for k, length in enumerate(scores["length"].values):
            for source in ("truth", "draws"):
                at = {"length": length, "channel": channel, "source": source}
                rho = scores["autocorrelation"].sel(at).dropna("lag")
                error = scores["autocorrelation_error"].sel(at).sel(lag=rho["lag"])
                colour, x = COLOURS[source], rho["lag"].values
                ax.fill_between(
                    x, rho - 2 * error, rho + 2 * error, color=colour, alpha=0.15, linewidth=0
                )
                told = f"{source}, {length} h"
                ax.plot(x, rho, styles[k % 4], color=colour, linewidth=1.2, label=told)
        finish(ax, "", "", label(*place(scores, channel)))
        ax.set_xticks(range(0, int(scores["lag"].max()) + 2, 12))
    below(axes, len(channels), "lag, h")
    legend(axes.flat[0], loc="lower left")
    return figure


def plot_variance(scores: xr.Dataset) -> Figure:
    r"""The variance of draws hour by hour, relative to the truth's mean; dotted lines are joints of
    windows."""
    variance = scores["variance"]
    ratio = variance.sel(source="draws") / variance.sel(source="truth").mean("hour")
    return _by_hour(scores, ratio, "variance / truth's", "Variance, {} h")


def plot_changes(scores: xr.Dataset) -> Figure:
    r"""The tendencies of draws hour by hour, relative to the truth's mean; dotted lines are joints
    of windows."""
    tendency = scores["tendency"]
    mean = (tendency.sel(source="truth") ** 2).mean("hour") ** 0.5
    return _by_hour(scores, tendency.sel(source="draws") / mean, "rms / truth's", "Tendency, {} h")


def plot_seam(scores: xr.Dataset, length: int | None = None) -> Figure:
    r"""Differences between neighbouring longitudes relative to the truth's, the mean over channels
    that are defined everywhere; the last is across the seam."""
    figure, axes = panels(1, 1, (6.4, 2.8))
    ax = axes.flat[0]
    scores = at_length(scores, length)
    x = scores["longitude"].values
    x = x + (x[1] - x[0]) / 2
    for source in scores["source"].values.tolist()[1:]:
        ratio = relative_steps(scores, source).mean("channel") ** 0.5
        ax.plot(x, ratio, color=COLOURS[source], linewidth=1.2, label=source)
        ax.plot(x[-1], ratio[-1], "o", color=COLOURS[source], markersize=4)
    ax.axhline(1, color=MUTED, linewidth=0.6)
    ax.set_xticks(range(0, 361, 60))
    finish(
        ax, "degrees east; the dot is across the seam", "rms / truth's", "Neighbours' differences"
    )
    legend(ax)
    return figure


# ---------------------------------------------------------------- parts


def panels(
    rows: int, columns: int, size: tuple[float, float], widths: Sequence[float] | None = None
) -> tuple[Figure, Any]:
    require()
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, width_ratios=widths)


def below(axes: Any, count: int, words: str) -> None:
    r"""Labels the lowest panel of each column, of so many that are drawn; the rest are off."""
    for ax in axes.flat[count:]:
        ax.set_axis_off()
    columns = axes.shape[1]
    for k in range(max(0, count - columns), count):
        axes.flat[k].set_xlabel(words, color=INK, fontsize=9)


def _by_hour(scores: xr.Dataset, values: xr.DataArray, unit: str, title: str) -> Figure:
    lengths, channels = scores["length"].values, _paper(scores)
    widths = [max(float(n), 12.0) for n in lengths]
    figure, axes = panels(1, len(lengths), (9.6, 3.2), widths)
    for ax, length in zip(axes.flat, lengths, strict=True):
        joint = scores["joint"].sel(length=length)
        for hour in joint["hour"][(joint == 1).values].values:
            ax.axvline(hour - 0.5, color=MUTED, linewidth=0.8, linestyle=":")
        for k, channel in enumerate(channels):
            line = values.sel(length=length, channel=channel).dropna("hour")
            colour = (ORANGE, PURPLE, AMBER, SKY, GREEN, BLUE, INK, MUTED)[k % 8]
            ax.plot(line["hour"], line, color=colour, linewidth=1.1, label=channel)
        ax.axhline(1, color=MUTED, linewidth=0.6)
        ax.set_xticks(range(0, int(length) + 1, 6 if length <= 48 else 12))
        finish(ax, "hour of the trajectory", unit, title.format(length))
    limit = [ax.get_ylim() for ax in axes.flat]
    for ax in axes.flat:
        ax.set_ylim(min(0.8, *(low for low, _ in limit)), max(1.1, *(high for _, high in limit)))
    lines, words = axes.flat[0].get_legend_handles_labels()
    figure.legend(
        lines, words, loc="outside right upper", frameon=False, fontsize=8, labelcolor=INK
    )
    return figure


def at_length(scores: xr.Dataset, length: int | None) -> xr.Dataset:
    if "length" not in scores.dims:
        return scores
    return scores.sel(length=length) if length is not None else scores.isel(length=0)


def _levelled(scores: xr.Dataset) -> list[str]:
    return [v for v in dict.fromkeys(scores["variable"].values) if not VARIABLES[v].surface]


def place(scores: xr.Dataset, channel: str) -> tuple[str, int | None]:
    at = scores.sel(channel=channel)
    level = float(at["level"])
    return str(at["variable"].values), None if np.isnan(level) else int(level)


def _paper(scores: xr.Dataset) -> list[str]:
    known = scores["channel"].values.tolist()
    return [c for c in PAPER if c in known] or known[:8]


def _unit(scores: xr.Dataset, channel: str) -> str:
    units = VARIABLES[place(scores, channel)[0]].units
    pretty = {"m s-1": "(m/s)", "m2 s-2": "(m²/s²)", "kg kg-1": "(kg/kg)"}
    return pretty.get(units, units)
