r"""Scores as curves: against time or lead time, and against height.

Every estimate has a colour, dashes and a marker of its own, the same in all panels, so that lines
are told apart without colours too. Where intervals are known they are bands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ..data.clock import as_datetime64
from ..data.variables import VARIABLES
from ..errors import DataError, nearest
from .maps import moment
from .style import INK, MUTED, finish, label, legend, lines, require, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_levels", "plot_scores"]

SCORES = {"skill": "Skill", "crps": "CRPS", "spread": "Spread", "ratio": "Spread / skill"}
RATIOS = ("ratio",)
MARKS = 8  # markers of a curve, about
ROW = 6  # panels of heights in a row
ROOM = 1.06  # of the largest value


def plot_scores(
    scores: Mapping[str, xr.Dataset],
    channels: Sequence[str] | None = None,
    *,
    names: Sequence[str] = ("skill", "crps", "ratio"),
    region: str = "global",
    start: Any = None,
) -> Figure:
    r"""Draws scores of several estimates against time: a row a score, a column a channel.

    Arguments:
        scores: Scores by hour, see :func:`appa.evaluate`, or by `lead_time` over several dates, see
            :func:`appa.evaluation.dates.over_dates`, by what was scored: `analysis`, `forecast`,
            `prior`, `climatology`, `persistence` have colours of their own. Where there are
            `<score>_low` and `<score>_high`, a band is drawn between them.
        channels: The channels, by default all of the first.
        names: The scores drawn, of `skill`, `spread`, `crps` and `ratio`.
        region: The region.
        start: The hour that times are counted from: by default the last that was known to a
            forecast that says so by its coordinate `lead_time`, or the first.

    Example:
        >>> plot_scores({"forecast": evaluate(forecast, truth)}, ["t2m", "z500"])
    """
    require()
    from matplotlib.figure import Figure

    for told, ds in scores.items():
        check(names, SCORES, "score")
        check([region], ds["region"].values.tolist(), f"region of {told}")
    first = next(iter(scores.values()))
    there = dict.fromkeys(str(c) for ds in scores.values() for c in ds["channel"].values)
    channels = [str(c) for c in first["channel"].values] if channels is None else list(channels)
    check(channels, there, "channel")
    leads = {told: "lead_time" in ds.dims for told, ds in scores.items()}
    if len(set(leads.values())) > 1:
        raise DataError(
            "scores by hour and by lead time do not share an axis; draw them apart, found by lead "
            f"time: {', '.join(told for told, lead in leads.items() if lead)}"
        )
    by_lead = leads[next(iter(leads))]
    zero: Any = None
    if not by_lead:
        zero = start if start is not None else _zero(scores)
        zero = as_datetime64(zero).astype("datetime64[ns]")[()]

    size = (0.8 + 2.7 * len(channels), 0.9 + 2.1 * len(names))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(names), len(channels), squeeze=False, sharex=True)
    for told, look in lines(scores).items():
        ds = scores[told]
        x = ds["lead_time"].values if zero is None else (ds["time"].values - zero) / HOUR
        for row, name in zip(axes, names, strict=True):
            for ax, channel in zip(row, channels, strict=True):
                if channel in ds["channel"].values and name in ds:
                    _curve(ax, x, ds.sel(region=region, channel=channel), name, told, look)
    below = "lead time, h" if zero is None else f"hours since {moment(zero)}"
    for i, name in enumerate(names):
        for k, channel in enumerate(channels):
            ax, (_, unit, words) = axes[i, k], look_of(_of(scores, channel))
            unit = "" if name in RATIOS else f", {unit}"
            last = i == len(names) - 1
            finish(ax, below if last else "", f"{SCORES[name]}{unit}", words if i == 0 else "")
            if name in RATIOS:
                ax.axhline(1, color=INK, lw=0.8, alpha=0.5)
            ax.set_ylim(0, _room(ax.dataLim.y1))
            if zero is not None and ax.dataLim.x0 < 0:
                ax.axvline(0, color=MUTED, lw=0.8)
    low, high = axes[0, 0].get_xlim()
    step = next((h for h in (1, 3, 6, 12, 24) if (high - low) / h <= 7), 24)
    if (high - low) / step <= 20:
        axes[0, 0].set_xticks(np.arange(np.ceil(low / step), high / step) * step)
    _legend(figure, axes.flat)
    return figure


def _curve(
    ax: Axes, x: np.ndarray, at: xr.Dataset, name: str, told: str, look: dict[str, Any]
) -> None:
    r"""Draws a score of an estimate, with its interval where that is known."""
    scale = 1.0 if name in RATIOS else look_of(at)[0]
    values = scale * at[name].values
    if not np.isfinite(values).any():
        return
    if f"{name}_low" in at:
        low, high = (scale * at[f"{name}_{end}"].values for end in ("low", "high"))
        ax.fill_between(x, low, high, color=look["color"], alpha=0.18, linewidth=0, gid="interval")
    every = max(1, len(x) // MARKS)
    ax.plot(x, values, **look, lw=1.6, markersize=3.5, markevery=every, label=told)


def plot_levels(
    scores: Mapping[str, xr.Dataset] | xr.Dataset, *, name: str = "skill", region: str = "global"
) -> Figure:
    r"""Draws scores by height: a panel a variable with levels, and one of the surface fields.

    Arguments:
        scores: Scores of all hours, see :func:`appa.evaluate` with `by="all"`, by what was scored.
        name: The score. Surface fields are drawn in standard deviations, which takes
            `<name>_standardized`, or as they are where this is a ratio; otherwise they are left
            out, as their units differ.
        region: The region.

    Example:
        >>> scores = evaluate(analysis, truth, by="all", statistics=statistics)
        >>> plot_levels({"analysis": scores})
    """
    require()
    from matplotlib.figure import Figure

    if isinstance(scores, xr.Dataset):
        scores = {"": scores}
    check([name], SCORES, "score")
    for told, ds in scores.items():
        if "time" in ds[name].dims or "lead_time" in ds[name].dims:
            raise DataError("heights are of the scores of all hours; pool them: by='all'")
        check([region], ds["region"].values.tolist(), f"region{f' of {told}' * bool(told)}")
    first = next(iter(scores.values()))
    variables = list(dict.fromkeys(first["variable"].values.tolist()))
    levelled = [v for v in variables if np.isfinite(_part(first, v)["level"].values).any()]
    surface = first["channel"].values[np.isnan(first["level"].values)].tolist()
    beside = name if name in RATIOS else f"{name}_standardized"
    surface = surface if beside in first else []
    panels = len(levelled) + bool(surface)
    if panels == 0:
        raise DataError(
            f"there is nothing to draw by height: no variable has levels, and no {beside!r} tells "
            "of surface fields; score with statistics, or variables with levels"
        )
    columns = min(ROW, panels)
    rows = -(-panels // columns)
    size = (0.6 + 2.3 * columns, 0.9 + 3.1 * rows)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    looks = lines(scores)
    for ax, variable in zip(axes.flat, levelled, strict=False):
        for told, look in looks.items():
            part = _part(scores[told].sel(region=region), variable).sortby("level")
            scale = 1.0 if name in RATIOS else look_of(part.isel(channel=0))[0]
            x, y = scale * part[name].values, part["level"].values
            ax.plot(x, y, **look, lw=1.4, markersize=3.5, label=told)
        _, unit, _ = look_of(_part(first, variable).isel(channel=0))
        words = style(variable).label if variable in VARIABLES else variable
        pressure(ax, first["level"].values)
        left = ax is axes[0, 0] or ax in axes[:, 0]
        finish(ax, SCORES[name] + ("" if name in RATIOS else f", {unit}"), "", words)
        ax.set_ylabel("pressure, hPa" if left else "", color=INK, fontsize=9)
        _from_zero(ax, name)
    if surface:
        ax = axes.flat[len(levelled)]
        for told, look in looks.items():
            ds = scores[told].sel(region=region)
            known = [c for c in surface if c in ds["channel"].values]
            values = ds[beside].sel(channel=known).values
            y = [surface.index(c) for c in known]
            ax.plot(values, y, **look | {"linestyle": ""}, markersize=4.5, label=told)
        ax.set_yticks(range(len(surface)), surface)
        ax.set_ylim(len(surface) - 0.5, -0.5)
        ax.grid(axis="y", color=MUTED, alpha=0.25, linewidth=0.6)
        unit = "" if name in RATIOS else ", standard deviations"
        finish(ax, f"{SCORES[name]}{unit}", "", "Surface fields")
        _from_zero(ax, name)
    for ax in axes.flat[panels:]:
        ax.set_axis_off()
    if any(scores):
        _legend(figure, axes.flat)
    return figure


# ---------------------------------------------------------------- parts

HOUR = np.timedelta64(1, "h")


def check(given: Iterable[str], known: Iterable[str], what: str) -> None:
    known = list(known)
    for word in given:
        if word not in known:
            raise DataError(f"there is no {what} {word!r}{nearest(str(word), known)}")


def _zero(scores: Mapping[str, xr.Dataset]) -> np.datetime64:
    r"""The last hour that was known to a forecast, or the first of all."""
    for ds in scores.values():
        if "lead_time" in ds.coords and ds["lead_time"].dims == ("time",):
            lead = np.timedelta64(round(3600 * float(ds["lead_time"][0])), "s")
            return ds["time"].values[0] - lead
    return min(ds["time"].values.min() for ds in scores.values())


def _of(scores: Mapping[str, xr.Dataset], channel: str) -> xr.Dataset:
    return next(ds.sel(channel=channel) for ds in scores.values() if channel in ds["channel"])


def _part(ds: xr.Dataset, variable: str) -> xr.Dataset:
    return ds.isel(channel=np.flatnonzero(ds["variable"].values == variable))


def _from_zero(ax: Axes, name: str) -> None:
    if name in RATIOS:
        ax.axvline(1, color=INK, lw=0.8, alpha=0.5)
    ax.set_xlim(0, _room(ax.dataLim.x1))


def _room(most: float) -> float | None:
    r"""The end of an axis from 0, with room for markers: a margin of flat curves has none."""
    return ROOM * most if np.isfinite(most) and most > 0 else None


def _legend(figure: Figure, axes: Iterable[Axes]) -> None:
    r"""One legend of all panels, above them."""
    handles: dict[str, Any] = {}
    for ax in axes:
        for handle, told in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(told, handle)
    legend(figure, handles=list(handles.values()), loc="outside upper center", ncols=len(handles))


def look_of(at: xr.Dataset) -> tuple[float, str, str]:
    r"""Scale, unit and words of a channel."""
    name, level = str(at["variable"].item()), float(at["level"])
    if name not in VARIABLES:
        unit = str(at["units"].item()) if "units" in at.coords else ""
        return 1.0, unit, str(at["channel"].item())
    look = style(name)
    return look.scale, look.difference, label(name, None if np.isnan(level) else int(level))


def pressure(ax: Axes, levels: np.ndarray) -> None:
    r"""Makes an axis one of pressure, downwards; turns it off where there are no levels."""
    there = np.unique(levels[np.isfinite(levels)])
    if len(there) == 0:
        ax.set_axis_off()
        return
    ax.set_yscale("log")
    ticks = [p for p in (50, 100, 200, 300, 500, 700, 1000) if there[0] <= p <= there[-1]]
    ticks = ticks or there.astype(int).tolist()
    ax.set_yticks(ticks, [str(p) for p in ticks])
    ax.set_ylim(1.05 * there[-1], 0.95 * there[0])
    ax.minorticks_off()
