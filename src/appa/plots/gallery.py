r"""Galleries: a row a variable, from what is true to what is known of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import ArrayLike

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
    wrap,
)
from .style import INK, label, limits, require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..data.grids import Grid
    from ..observations.networks import Network

__all__ = ["PANELS", "plot_gallery", "plot_network"]

PANELS: tuple[tuple[str, int | None], ...] = (
    ("2m_temperature", None),
    ("mean_sea_level_pressure", None),
    ("10m_u_component_of_wind", None),
    ("geopotential", 500),
    ("specific_humidity", 700),
)


def plot_gallery(
    truth: xr.Dataset,
    table: pd.DataFrame,
    swath: xr.Dataset,
    *,
    panels: Sequence[tuple[str, int | None]] = PANELS,
    projection: str | None = None,
) -> Figure:
    r"""Draws the truth beside what was seen of it, in its last hour and in all of its hours.

    Arguments:
        truth: The truth, a canonical dataset; its last hour is drawn.
        table: Point observations of it.
        swath: Gridded observations of it.
        panels: The rows, as variable and level.
        projection: As in :func:`~appa.plots.maps.plot_map`.
    """

    require()
    from matplotlib.figure import Figure

    hours = truth.sizes["time"]
    now = truth["time"].values[-1]
    land = truth.get("land_sea_mask")
    height = 0.6 + 2.06 * len(panels)
    figure = Figure(figsize=(12.6, height), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - 0.1 / height))  # pyright: ignore
    axes = figure.subplots(len(panels), 3, squeeze=False)
    titles = (f"Truth, {moment(now)}", "Seen in that hour", f"Seen in {hours} hours, latest value")

    for k, (row, (name, level)) in enumerate(zip(axes, panels, strict=True)):
        field = truth[name].isel(time=-1)
        field = field if level is None else field.sel(level=level)
        ends = limits(name, field.values)
        last = k == len(panels) - 1
        common = {
            "land": land,
            "ends": ends,
            "projection": projection,
            "colorbar": False,
            "title": " ",
        }
        plot_map(field, ax=row[0], ticks=(True, last), **common)
        for ax, times in zip(row[1:], (slice(now, now), slice(None)), strict=True):
            points = table if times == slice(None) else table.loc[table["time"] == now, :]
            gridded = swath.sel(time=times)
            plot_observations(
                name, points, gridded, level=level, ax=ax, ticks=(False, last), **common
            )
        mesh = next(c for c in row[0].collections if c.get_gid() == "field")
        add_colorbar(figure, list(row), mesh, name, field.values, shrink=0.86)
        row[0].set_title(label(name, level), color=INK, fontsize=10, loc="left")

    for ax, title in zip(axes[0], titles, strict=True):
        ax.annotate(
            title,
            (0.5, 1),
            (0, 22),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="center",
            color=INK,
            fontsize=11,
            weight="bold",
        )
    return figure


def plot_network(
    network: Network,
    grid: Grid,
    times: ArrayLike,
    *,
    land: xr.DataArray | None = None,
    projection: str | None = None,
) -> Figure:
    r"""Draws a network: its stations, and when satellites last saw each box.

    Arguments:
        network: The network.
        grid: The grid it observes.
        times: The hours, as `datetime64`, with shape :math:`(T)`.
        land, projection: As in :func:`~appa.plots.maps.plot_map`.
    """

    import cmocean

    times = np.asarray(times, dtype="datetime64[ns]")
    seen = np.zeros((len(times), *grid.shape), dtype=bool)
    for satellite in network.satellites:
        seen |= satellite.sees(grid, times)
    hours = np.arange(len(times))[:, None, None]
    last = np.where(seen, hours, -1).max(axis=0).astype(np.float64)
    last[last < 0] = np.nan
    ago = xr.DataArray(
        len(times) - 1 - last,
        coords={"latitude": grid.latitude, "longitude": grid.longitude},
        dims=("latitude", "longitude"),
    )

    figure, ax = globe(None, projection, (True, True))
    forward = project(projection)
    latitude, longitude, values = split(ago)
    mesh = ax.pcolormesh(
        *forward(latitude[:, None], longitude[None, :]),
        np.ma.masked_invalid(values),
        cmap=cmocean.cm.cmap_d["deep_r"],
        vmin=-0.5,
        vmax=max(len(times), 2) - 0.5,
        rasterized=True,
        zorder=1,
    )
    mesh.set_clip_path(ax.patches[0])
    draw_colorbar(figure, ax, mesh, "hours since last seen")
    if land is not None:
        add_coastline(ax, land, projection)

    places = network.stations
    ax.scatter(
        *forward(places["latitude"].to_numpy(), wrap(places["longitude"])),
        s=20,
        color="#f2a541",
        edgecolors=INK,
        linewidths=0.6,
        zorder=6,
        gid="stations",
    )
    coverage = network.coverage(grid, times).iloc[-1]
    ax.set_title(
        f"{network.name} · {len(places)} stations, {coverage['stations']:.1f} % of boxes · "
        f"swaths, {coverage['since_start']:.0f} % of the area in {len(times)} h",
        color=INK,
        fontsize=10,
        loc="left",
    )
    return figure
