r"""Pictures of an ensemble: beside the truth and what was seen of it, and its scores in time.

Truth, members and mean of a variable share one scale, that of the truth, so that they can be
compared by eye. Spread is drawn from 0 in colours of its own, the same for all variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from ..errors import DataError
from .gallery import PANELS
from .maps import (
    add_coastline,
    add_colorbar,
    draw_colorbar,
    globe,
    moment,
    plot_map,
    plot_observations,
    project,
    split,
)
from .prior import BLUE, GREEN, ORANGE, PURPLE
from .style import INK, MUTED, finish, label, legend, limits, require, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_ensemble", "plot_scores"]

COLUMNS = tuple(PANELS[k] for k in (0, 1, 3, 4))
SPREAD = "amp"  # cmocean's, from white
SCORES = {"skill": "Skill", "crps": "CRPS", "spread": "Spread", "ratio": "Spread / skill"}
# What is scored has the colour it has in every figure.
LINES: dict[str, tuple[str, str]] = {
    "analysis": (BLUE, "-"),
    "forecast": (ORANGE, "-"),
    "prior": (PURPLE, ":"),
    "climatology": (MUTED, "--"),
    "persistence": (GREEN, "-."),
}


def plot_ensemble(
    truth: xr.Dataset,
    ensemble: xr.Dataset,
    table: pd.DataFrame | None = None,
    swath: xr.Dataset | None = None,
    *,
    panels: Sequence[tuple[str, int | None]] = COLUMNS,
    hours: Sequence[Any] | None = None,
    members: int = 2,
    projection: str | None = None,
) -> Figure:
    r"""Draws the truth, what was seen of it, members of an ensemble, its mean and its spread.

    Rows are these, columns are variables and hours.

    Arguments:
        truth: The truth, with the hours drawn.
        ensemble: An ensemble, with dimensions `(member, time, ...)`.
        table, swath: Observations: those up to an hour are drawn in its column, the latest of each
            place. Without any, their row is left out.
        panels: The variables and levels, a column for each hour of each.
        hours: The hours, by default the ensemble's last.
        members: How many members are drawn, the first ones.
        projection: As of :func:`~appa.plots.maps.plot_map`.

    Example:
        >>> figure = plot_ensemble(truth, analysis, table, swath, panels=[("geopotential", 500)])
    """
    require()
    from matplotlib.figure import Figure

    if "member" not in ensemble.dims:
        raise DataError("an ensemble has a dimension 'member'; draw single states with plot_map")
    chosen = ensemble["time"].values[-1:] if hours is None else np.atleast_1d(hours)
    chosen = np.asarray(chosen, "datetime64[ns]")
    columns = [(name, level, hour) for name, level in panels for hour in chosen]
    members = min(members, ensemble.sizes["member"])
    seen = table is not None or swath is not None
    rows = ["Truth", *(["Observations"] if seen else [])]
    rows += [f"Member {k + 1}" for k in range(members)]
    rows += ["Mean", *(["Spread"] if ensemble.sizes["member"] > 1 else [])]

    land = truth.get("land_sea_mask")
    size = (0.4 + 3.3 * len(columns), 0.9 + 1.78 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(rows), len(columns), squeeze=False)
    for k, (name, level, hour) in enumerate(columns):
        x, y = (_at(ds, name, level, hour) for ds in (ensemble, truth))
        ends = limits(name, y.values)
        common: dict[str, Any] = {"land": land, "projection": projection, "colorbar": False}
        common |= {"ends": ends, "title": " "}
        fields = {"Truth": y, "Mean": x.mean("member")}
        fields |= {f"Member {m + 1}": x.isel(member=m) for m in range(members)}
        mesh: Any = None
        for i, row in enumerate(rows):
            ax, ticks = axes[i, k], (k == 0, False)  # meridians are too close to tell
            if row == "Observations":
                points = None if table is None else table.loc[table["time"] <= hour, :]
                boxes = None if swath is None else swath.sel(time=slice(None, hour))
                plot_observations(name, points, boxes, level=level, ax=ax, ticks=ticks, **common)
            elif row == "Spread":
                _spread(ax, x.std("member", ddof=1), name, land, projection, ticks)
            else:
                plot_map(fields[row], name=name, ax=ax, ticks=ticks, **common)
                mesh = mesh or next(c for c in ax.collections if c.get_gid() == "field")
            ax.set_title("")
        above = list(axes[: len(rows) - ("Spread" in rows), k])
        add_colorbar(figure, above, mesh, name, y.values, 0.8, "bottom")
        title = f"{label(name, level)}\n{moment(hour)}"
        axes[0, k].set_title(title, color=INK, fontsize=10)
    for ax, row in zip(axes[:, 0], rows, strict=True):
        ax.annotate(
            row,
            (0, 0.5),
            (-30, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            rotation=90,
            ha="center",
            va="center",
            color=INK,
            fontsize=10,
            weight="bold",
        )
    return figure


def _at(ds: xr.Dataset, name: str, level: int | None, hour: np.datetime64) -> xr.DataArray:
    r"""A field of a dataset."""
    if name not in ds or hour not in ds["time"].values:
        raise DataError(f"there is no {name} at {hour.astype('datetime64[h]')} to draw")
    field = ds[name].sel(time=hour)
    return field if level is None else field.sel(level=level)


def _spread(
    ax: Axes,
    field: xr.DataArray,
    name: str,
    land: xr.DataArray | None,
    projection: str | None,
    ticks: tuple[bool, bool],
) -> None:
    r"""Draws a standard deviation, with its colour bar."""
    import cmocean

    figure, ax = globe(ax, projection, ticks)
    look = style(name)
    latitude, longitude, values = split(look.scale * field)
    finite = values[np.isfinite(values)]
    most = float(np.quantile(finite, 0.99)) if finite.size else 1.0
    mesh = ax.pcolormesh(
        *project(projection)(latitude[:, None], longitude[None, :]),
        np.ma.masked_invalid(values),
        cmap=cmocean.cm.cmap_d[SPREAD],
        vmin=0,
        vmax=most or 1.0,
        rasterized=True,
        zorder=1,
        gid="spread",
    )
    mesh.set_clip_path(ax.patches[0])
    if land is not None:
        add_coastline(ax, land, projection)
    words = "K" if look.units == "°C" else look.units
    draw_colorbar(figure, ax, mesh, words, "max", 0.8, "bottom")


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
        scores: Scores by hour, see :func:`appa.evaluate`, by what was scored: `analysis`,
            `forecast`, `prior`, `climatology`, `persistence` have colours of their own.
        channels: The channels, by default all of the first.
        names: The scores drawn.
        region: The region.
        start: The hour that times are counted from, by default the first; of a forecast, the last
            that was known.

    Example:
        >>> plot_scores({"forecast": evaluate(forecast, truth)}, ["t2m", "z500"])
    """
    require()
    from matplotlib.figure import Figure

    first = next(iter(scores.values()))
    channels = [str(c) for c in first["channel"].values] if channels is None else list(channels)
    zero = min(s["time"].values.min() for s in scores.values()) if start is None else start
    zero = np.datetime64(zero, "ns")
    size = (0.8 + 2.7 * len(channels), 0.9 + 2.1 * len(names))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(names), len(channels), squeeze=False, sharex=True)
    spare = iter([INK, "#56b4e9", "#e69f00", "#f0e442"])
    for told, of_it in scores.items():
        colour, line = LINES.get(told) or (next(spare, INK), "-")
        hours = (of_it["time"].values - zero) / np.timedelta64(1, "h")
        for row, name in zip(axes, names, strict=True):
            for ax, channel in zip(row, channels, strict=True):
                at = of_it.sel(region=region, channel=channel)
                values = at[name].values * (1 if name == "ratio" else _look(at)[0])
                if np.isfinite(values).any():
                    mark = "o" if len(values) == 1 else None
                    ax.plot(hours, values, line, color=colour, lw=1.6, marker=mark, label=told)
    for i, name in enumerate(names):
        for k, channel in enumerate(channels):
            ax, at = axes[i, k], first.sel(channel=channel)
            unit = "" if name == "ratio" else f", {_look(at)[1]}"
            title = _look(at)[2] if i == 0 else ""
            below = f"hours since {moment(zero)}" if i == len(names) - 1 else ""
            finish(ax, below, f"{SCORES[name]}{unit}", title)
            if name == "ratio":
                ax.axhline(1, color=INK, lw=0.8, alpha=0.5)
            ax.set_ylim(bottom=0)
            if start is not None and min(ax.get_xlim()) < 0:
                ax.axvline(0, color=MUTED, lw=0.8)
    handles: dict[str, Any] = {}
    for ax in axes.flat:
        for handle, told in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(told, handle)
    legend(figure, handles=list(handles.values()), loc="outside upper center", ncols=len(handles))
    return figure


def _look(at: xr.Dataset) -> tuple[float, str, str]:
    r"""Scale, unit and words of a channel."""
    name, level = str(at["variable"].item()), float(at["level"])
    look = style(name)
    words = label(name, None if np.isnan(level) else int(level))
    return look.scale, "K" if look.units == "°C" else look.units, words
