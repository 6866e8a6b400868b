r"""What fields are like beside the truth: spread by wavelength, balances by height, changes in
time.

The truth is dark and members are blue in each, with the 5–95 % range over states where there are
several. Ratios have a line at 1, where members are as the truth is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from .curves import look_of, pressure
from .fields import locate, plot_field
from .maps import moment
from .prior import panels
from .style import BLUE, INK, ORANGE, finish, label, legend, limits, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_balances", "plot_changes", "plot_four", "plot_wavelengths"]

SOURCES = {"truth": (INK, "-", "o"), "members": (BLUE, "--", "s")}
KILOMETRES = (20000, 10000, 5000, 2000, 1000, 500, 200, 100)
BALANCES = {
    "residual": ("Hypsometric residual", "m"),
    "angle": ("Wind to height gradient", "°"),
    "speed_correlation": ("Correlation of speeds", ""),
    "ratio": ("Wind over geostrophic wind", ""),
}


def words_of(ds: xr.Dataset, channel: str) -> tuple[str, float, str]:
    r"""A channel in words, the scale it is shown in, and its unit."""
    scale, unit, words = look_of(ds.sel(channel=channel))
    return words, scale, unit


def plot_four(ensemble: xr.Dataset, truth: xr.Dataset, channel: str, hour: Any = None) -> Figure:
    r"""Maps of the truth, the mean, its error and the spread, of one hour.

    Truth and mean share a scale; so do error and spread, the latter having no sign.
    """
    name, level = locate(ensemble, channel)
    hour = ensemble["time"].values[-1] if hour is None else np.datetime64(hour, "ns")
    at: dict[str, Any] = {"time": [hour]} | ({} if level is None else {"level": [level]})
    # a field of all members, read once
    x, y = (ds[[name]].sel(at).load() for ds in (ensemble, truth))
    mean = x.mean("member") if "member" in x.dims else x
    error = style(name).scale * np.abs(mean[name].values - y[name].values)
    most = (float(np.nanquantile(error, 0.99)) if np.isfinite(error).any() else 0.0) or 1.0
    common: dict[str, Any] = {"level": level, "land": truth.get("land_sea_mask")}
    ends = limits(name, y[name].values)
    figure, axes = panels(2, 2, (10.5, 5.6))
    plot_field(y, name, ax=axes[0, 0], ends=ends, title="Truth", **common)
    plot_field(mean, name, ax=axes[0, 1], ends=ends, title="Mean", **common)
    options = common | {"ends": (-most, most), "title": "Mean − truth"}
    plot_field(mean, name, ax=axes[1, 0], truth=y, **options)
    if x.sizes.get("member", 1) > 1:
        options = common | {"ends": (0, most), "title": "Spread"}
        plot_field(x, name, ax=axes[1, 1], show="spread", **options)
    else:
        axes[1, 1].set_axis_off()
    figure.suptitle(f"{label(name, level)}, {moment(hour)}", color=INK, fontsize=11)
    return figure


def plot_wavelengths(found: xr.Dataset, channels: Sequence[str]) -> Figure:
    r"""Error and spread of wavelengths, and their ratio below.

    Arguments:
        found: What :func:`appa.evaluation.multivariate.spread_spectra` found.
        channels: The channels, a column each.
    """
    known = [c for c in channels if np.isfinite(found["ratio"].sel(channel=c)).any()]
    figure, axes = panels(2, max(len(known), 1), (0.6 + 2.7 * max(len(known), 1), 4.6))
    members = found.attrs["members"]
    x = found["wavelength"].values[1:]
    for column, channel in zip(axes.T, known, strict=False):
        words, scale, unit = words_of(found, channel)
        at = found.sel(channel=channel).isel(wavenumber=slice(1, None))
        square = scale**2
        spread = (members + 1) / members * square * at["variance"]
        column[0].plot(x, square * at["error"], "-", color=INK, lw=1.4, label="error of the mean")
        column[0].plot(x, spread, "--", color=BLUE, lw=1.4, label="expected from the spread")
        column[0].set_yscale("log")
        column[1].plot(x, at["ratio"], "-", color=BLUE, lw=1.4)
        column[1].axhline(1, color=INK, lw=0.8, alpha=0.5)
        column[1].set_ylim(0, max(2.0, min(4.0, 1.05 * float(np.nanmax(at["ratio"])))))
        finish(column[0], "", f"energy, {power(unit)}", words)
        finish(column[1], "wavelength, km", "spread / skill", "")
        for ax in column:
            kilometres(ax, x)
    for ax in axes[:, len(known) :].flat:
        ax.set_axis_off()
    if known:
        legend(axes[0, 0], loc="lower left")
    return figure


def power(unit: str) -> str:
    return f"({unit})²" if "/" in unit else f"{unit}²"


def kilometres(ax: Axes, x: np.ndarray) -> None:
    r"""Makes an axis one of wavelengths, from long to short."""
    ax.set_xscale("log")
    ax.set_xlim(x[0], x[-1])
    ticks = [km for km in KILOMETRES if x[-1] <= km <= x[0]][::2]
    ax.set_xticks(ticks, [f"{km:,}" for km in ticks])
    ax.minorticks_off()


def plot_balances(found: xr.Dataset) -> Figure:
    r"""Balances by height: what :func:`appa.evaluation.balances.balances` found."""
    known = [name for name in BALANCES if name in found]
    figure, axes = panels(1, len(known), (0.6 + 2.6 * len(known), 3.7))
    for ax, name in zip(axes.flat, known, strict=True):
        if "layer" in found[name].dims:
            y = np.sqrt(found["top"].values * found["bottom"].values)  # the middle in ln p
        else:
            y = found["level"].values
        for source, (colour, dashes, mark) in SOURCES.items():
            low, median, high = found[name].sel(source=source).transpose("quantile", ...).values
            ax.fill_betweenx(y, low, high, color=colour, alpha=0.16, linewidth=0)
            look: dict[str, Any] = {"color": colour, "linestyle": dashes, "marker": mark}
            ax.plot(median, y, **look, lw=1.3, markersize=3.5, label=source)
        pressure(ax, y)
        words, unit = BALANCES[name]
        finish(ax, f"{words.lower()}, {unit}" if unit else words.lower(), "", words)
        if name == "angle":
            ax.axvline(90, color=INK, lw=0.8, alpha=0.5)
        elif name == "ratio":
            ax.axvline(1, color=INK, lw=0.8, alpha=0.5)
        elif name == "residual":
            ax.set_xlim(left=0)
    axes[0, 0].set_ylabel("pressure, hPa", color=INK, fontsize=9)
    legend(axes[0, 0], loc="best")
    return figure


def plot_changes(found: xr.Dataset, channels: Sequence[str]) -> Figure:
    r"""Spectra in time, and the distribution of changes from hour to hour below.

    Arguments:
        found: What :func:`appa.evaluation.temporal.temporal_consistency` found.
        channels: The channels, a column each.
    """
    figure, axes = panels(2, len(channels), (0.6 + 2.7 * len(channels), 4.8))
    x, lag = found["period"].values, found["lag"].values[0]
    for column, channel in zip(axes.T, channels, strict=True):
        words, scale, unit = words_of(found, channel)
        at = found.sel(channel=channel)
        for source, (colour, dashes, mark) in SOURCES.items():
            look: dict[str, Any] = {"color": colour, "linestyle": dashes, "lw": 1.4}
            values = scale**2 * at["spectrum"].sel(source=source).values
            column[0].plot(x, values, **look, marker=mark, markersize=3, label=source)
        quantile = scale * at["tendency_quantile"].sel(lag=lag)
        true, drawn = (quantile.sel(source=source).values for source in SOURCES)
        both = np.concatenate([true, drawn])
        ends = np.array([np.nanmin(both), np.nanmax(both)]) if np.isfinite(both).any() else [0, 1]
        column[1].plot(ends, ends, color=INK, lw=0.8, alpha=0.5)
        column[1].plot(true, drawn, "o-", color=ORANGE, lw=1, markersize=4)
        column[0].set_xscale("log")
        column[0].set_yscale("log")
        column[0].set_xlim(x[0], x[-1])
        ticks = [h for h in (72, 48, 24, 12, 6, 4, 3, 2) if x[-1] <= h <= x[0]]
        column[0].set_xticks(ticks, [str(h) for h in ticks])
        column[0].minorticks_off()
        finish(column[0], "period, h", f"power, {power(unit)} h", words)
        told = f"change in {lag} h, {unit}"
        finish(column[1], f"truth's {told}", f"members' {told}", "")
    legend(axes[0, 0], loc="best")
    return figure
