r"""Pictures of calibration: ranks of the truth, coverage of intervals, reliability, signed errors.

What is expected of a calibrated ensemble of the same size is a dark line in every panel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ..errors import DataError
from .curves import check, look_of
from .style import BLUE, INK, MUTED, ORANGE, finish, legend, require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_histogram", "plot_ranks"]

MOST = 6  # channels, unless more are asked for
PREFERRED = ("t2m", "u10", "msl", "t850", "z500", "q700")
COLUMNS = 4
SOURCES = {"members": (BLUE, "-"), "mean": (ORANGE, "--")}


def plot_ranks(
    found: xr.Dataset,
    channels: Sequence[str] | None = None,
    *,
    region: str = "global",
    rows: Sequence[str] = ("ranks", "coverage"),
) -> Figure:
    r"""Draws whether the truth could be one more member: a row a question, a column a channel.

    Arguments:
        found: What :func:`appa.evaluation.calibration.calibration` found.
        channels: The channels, by default a few of those there.
        region: The region.
        rows: Of `ranks`, the frequencies of the truth's rank; `pit`, the same as a density;
            `coverage`, how often central intervals hold the truth; `reliability`, errors found
            against those expected from spread, which takes 4 members.

    Example:
        >>> plot_ranks(calibration(analysis, "planet"), ["t2m", "z500"])
    """
    require()
    from matplotlib.figure import Figure

    check(rows, ROWS, "row")
    check([region], found["region"].values.tolist(), "region")
    channels = few(found) if channels is None else list(channels)
    check(channels, found["channel"].values.tolist(), "channel")
    if "reliability" in rows and "reliability_found" not in found:
        raise DataError(
            f"{found.attrs.get('members', 'few')} members cannot tell reliability; it takes 4"
        )
    size = (0.7 + 2.45 * len(channels), 0.4 + 2.3 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(rows), len(channels), squeeze=False)
    for k, channel in enumerate(channels):
        at = found.sel(region=region, channel=channel)
        scale, unit, words = look_of(at)
        for i, row in enumerate(rows):
            ax = axes[i, k]
            x, y = ROWS[row](ax, at, scale, unit)
            finish(ax, x, y if k == 0 or row == "reliability" else "", words if i == 0 else "")
            ax.set_title(ax.get_title(loc="left"), fontsize=9, color=INK, loc="left")
    for i, row in enumerate(rows):
        if row in ("ranks", "pit"):  # one scale, so that shapes can be compared
            top = max(ax.get_ylim()[1] for ax in axes[i])
            for ax in axes[i]:
                ax.set_ylim(0, top)
    return figure


def _ranks(ax: Axes, at: xr.Dataset, scale: float, unit: str) -> tuple[str, str]:
    f = at["frequency"].values
    expected = 1 / len(f)
    edges = np.arange(len(f) + 1) - 0.5
    ax.stairs(100 * f, edges, fill=True, color=BLUE, alpha=0.55, gid="frequency")
    ax.axhline(100 * expected, color=INK, lw=1.0)
    ax.set_xlim(edges[0], edges[-1])
    ax.set_ylim(0, 100 * max(1.6 * expected, 1.25 * float(np.nanmax(f)) if f.any() else 0.0))
    told = f"bias {float(at['bias']):+.3f}\ndispersion {float(at['dispersion']):.2f}"
    if np.isfinite(p := float(at["p"])):
        told += f"\np = {p:.2g}" if p >= 0.001 else "\np < 0.001"
    _note(ax, told)
    return "rank of the truth", "frequency, %"


def _pit(ax: Axes, at: xr.Dataset, scale: float, unit: str) -> tuple[str, str]:
    density = at["pit"].values
    edges = np.linspace(0, 1, len(density) + 1)
    ax.stairs(density, edges, fill=True, color=BLUE, alpha=0.55, gid="pit")
    ax.axhline(1, color=INK, lw=1.0)
    ax.set_xlim(0, 1)
    ax.set_ylim(0, max(1.6, 1.1 * float(np.nanmax(density)) if density.any() else 0.0))
    return "probability integral transform", "density"


def _coverage(ax: Axes, at: xr.Dataset, scale: float, unit: str) -> tuple[str, str]:
    x = 100 * at["coverage_expected"].values
    ax.plot([0, 100], [0, 100], color=INK, lw=1.0)
    ax.plot(x, 100 * at["coverage"].values, "o-", color=BLUE, markersize=4, lw=1.2, gid="coverage")
    ax.set(xlim=(0, 100), ylim=(0, 100), xticks=range(0, 101, 25), yticks=range(0, 101, 25))
    return "expected coverage, %", "coverage, %"


def _reliability(ax: Axes, at: xr.Dataset, scale: float, unit: str) -> tuple[str, str]:
    x, y = (scale * at[f"reliability_{key}"].values for key in ("expected", "found"))
    both = np.concatenate([x, y])
    top = 1.08 * float(np.nanmax(both)) if np.isfinite(both).any() else 1.0
    ax.plot([0, top], [0, top], color=INK, lw=1.0)
    ax.plot(x, y, "o-", color=BLUE, markersize=4, lw=1.2, gid="reliability")
    ax.set(xlim=(0, top), ylim=(0, top))
    return f"expected error, {unit}", f"error, {unit}"


ROWS: dict[str, Callable[[Axes, xr.Dataset, float, str], tuple[str, str]]] = {
    "ranks": _ranks,
    "pit": _pit,
    "coverage": _coverage,
    "reliability": _reliability,
}


def plot_histogram(errors: xr.Dataset, channels: Sequence[str] | None = None) -> Figure:
    r"""Draws distributions of signed errors, of members and of their mean: a panel a channel.

    Arguments:
        errors: What :func:`appa.evaluation.distributions.signed_errors` found.
        channels: The channels, by default a few of those there.

    Example:
        >>> plot_histogram(signed_errors(analysis, "planet"), ["t2m", "z500"])
    """
    require()
    from matplotlib.figure import Figure

    channels = few(errors) if channels is None else list(channels)
    check(channels, errors["channel"].values.tolist(), "channel")
    columns = min(COLUMNS, len(channels))
    rows = -(-len(channels) // columns)
    figure = Figure(figsize=(0.6 + 2.8 * columns, 0.7 + 2.2 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax, channel in zip(axes.flat, channels, strict=False):
        at = errors.sel(channel=channel)
        scale, unit, words = look_of(at)
        centre = scale * at["error"].values
        half = (centre[1] - centre[0]) / 2
        edges = np.append(centre - half, centre[-1] + half)
        for source in at["source"].values.tolist():
            colour, dashes = SOURCES.get(source, (MUTED, "-"))
            density = at["density"].sel(source=source).values / scale
            look: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": 1.3}
            ax.stairs(density, edges, **look, label=source, gid="density")
        ax.axvline(0, color=INK, linewidth=0.8, alpha=0.6)
        ax.set_xlim(edges[0], edges[-1])
        ax.set_ylim(bottom=0)
        bias = scale * float(at["bias"].isel(source=0))
        beyond = 100 * float(at["outside"].isel(source=0))
        told = f"bias {bias:+.2g} {unit}\nbeyond {beyond:.2g} %"
        _note(ax, told)
        inverse = f"1/({unit})" if "/" in unit else f"1/{unit}"
        finish(ax, f"error, {unit}", f"density, {inverse}", words)
        ax.set_title(ax.get_title(loc="left"), fontsize=9, color=INK, loc="left")
    for ax in axes.flat[len(channels) :]:
        ax.set_axis_off()
    handles, words = axes.flat[0].get_legend_handles_labels()
    legend(figure, handles=handles, labels=words, loc="outside upper center", ncols=len(words))
    return figure


def _note(ax: Axes, words: str) -> None:
    r"""Writes a few figures in the corner of a panel."""
    words = words.replace("-", "−")
    look: dict[str, Any] = {"ha": "right", "va": "top", "fontsize": 7, "color": INK}
    ax.text(0.97, 0.97, words, transform=ax.transAxes, **look)


def few(ds: xr.Dataset) -> list[str]:
    r"""A few channels of many: those usually looked at, or the first."""
    known = [str(c) for c in ds["channel"].values]
    return known if len(known) <= MOST else [c for c in PREFERRED if c in known] or known[:MOST]
