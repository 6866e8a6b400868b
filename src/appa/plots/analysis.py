r"""Pictures of an ensemble beside the truth and what was seen of it.

Truth, members and mean of a variable share one scale, that of the truth, in all hours, so that they
can be compared by eye. Spread is drawn from 0 in colours of its own, the same for all variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from ..errors import DataError
from .curves import plot_scores
from .fields import SPREAD, add_field, field_of, hour_of, locate, magnitude
from .gallery import PANELS
from .maps import add_colorbar, draw_colorbar, moment, plot_map, plot_observations
from .style import INK, label, limits, require, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_ensemble", "plot_scores"]

COLUMNS = tuple(PANELS[k] for k in (0, 1, 3, 4))


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
        hours: The hours, as dates or numbers of hours since the ensemble's first; by default its
            last.
        members: How many members are drawn, the first ones.
        projection: As of :func:`~appa.plots.maps.plot_map`.

    Example:
        >>> figure = plot_ensemble(truth, analysis, table, swath, panels=[("geopotential", 500)])
    """
    require()
    from matplotlib.figure import Figure

    if "member" not in ensemble.dims:
        raise DataError("an ensemble has a dimension 'member'; draw single states with plot_map")
    wanted = [None] if hours is None else list(np.atleast_1d(hours))
    chosen = [hour_of(ensemble, hour) for hour in wanted]
    places = [locate(ensemble, *panel) for panel in panels]
    for place in places:
        locate(truth, *place)
    for hour in chosen:
        hour_of(truth, hour)
    columns = [(name, level, hour) for name, level in places for hour in chosen]
    members = min(members, ensemble.sizes["member"])
    seen = table is not None or swath is not None
    rows = ["Truth", *(["Observations"] if seen else [])]
    rows += [f"Member {k + 1}" for k in range(members)]
    rows += ["Mean", *(["Spread"] if ensemble.sizes["member"] > 1 else [])]

    land = truth.get("land_sea_mask")
    size = (0.4 + 3.3 * len(columns), 0.9 + 1.78 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(rows), len(columns), squeeze=False)
    common: dict[str, Any] = {"land": land, "projection": projection, "colorbar": False}
    for place in dict.fromkeys((name, level) for name, level, _ in columns):
        here = [k for k, column in enumerate(columns) if column[:2] == place]
        name, level = place
        fields = [[field_of(ds, *columns[k]).load() for k in here] for ds in (truth, ensemble)]
        values = np.concatenate([y.values.ravel() for y in fields[0]])
        apart = [x.std("member", ddof=1) for x in fields[1]] if "Spread" in rows else []
        scale = style(name).scale
        widest = magnitude(scale * np.array([x.values for x in apart]))
        ends, meshes = limits(name, values), {}
        for k, y, x in zip(here, *fields, strict=True):
            shown = {"Truth": y, "Mean": x.mean("member")}
            shown |= {f"Member {m + 1}": x.isel(member=m) for m in range(members)}
            for i, row in enumerate(rows):
                ax, ticks = axes[i, k], (k == 0, False)  # meridians are too close to tell
                if row == "Observations":
                    hour = columns[k][2]
                    points = None if table is None else table.loc[table["time"] <= hour, :]
                    boxes = None if swath is None else swath.sel(time=slice(None, hour))
                    options: Any = {"level": level, "ends": ends, "title": " ", **common}
                    plot_observations(name, points, boxes, ax=ax, ticks=ticks, **options)
                elif row == "Spread":
                    options = {"colours": SPREAD, "ends": widest, "gid": "spread", **common}
                    field = apart[here.index(k)]
                    _, _, meshes[row] = add_field(ax, field, name, ticks=ticks, **options)
                else:
                    options = {"name": name, "ends": ends, "title": " ", **common}
                    plot_map(shown[row], ax=ax, ticks=ticks, **options)
                    meshes["value"] = next(c for c in ax.collections if c.get_gid() == "field")
                ax.set_title("")
            title = f"{label(name, level)}\n{moment(columns[k][2])}"
            axes[0, k].set_title(title, color=INK, fontsize=10)
        # one scale, and one bar, of all hours of a variable
        shrink = 0.8 if len(here) == 1 else 0.5
        above = list(axes[: len(rows) - bool(apart), here].flat)
        add_colorbar(figure, above, meshes["value"], name, values, shrink, "bottom")
        if apart:
            below, unit = list(axes[-1, here]), style(name).difference
            draw_colorbar(figure, below, meshes["Spread"], unit, "max", shrink, "bottom")
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
