r"""Maps of the globe.

A field is drawn as the boxes it consists of, so that a map shows what the data hold and no more.
The default projection is Equal Earth (Šavrič, Patterson & Jenny, 2018),

.. math::
    \sin \theta & = \tfrac{\sqrt 3}{2} \sin \varphi \\
    x & = \frac{2 \sqrt 3 \, \lambda \cos \theta}
               {3 \, (9 A_4 \theta^8 + 7 A_3 \theta^6 + 3 A_2 \theta^2 + A_1)} \\
    y & = A_4 \theta^9 + A_3 \theta^7 + A_2 \theta^3 + A_1 \theta

in which equal areas stay equal: coverage can be judged by eye. Coastlines are the half-way
contour of the land mask that travels with the store; nothing is downloaded.

Figures are returned, not shown or saved, and no window system is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from ..errors import DataError, nearest
from .style import BLANK, INK, MUTED, label, limits, require, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["PROJECTIONS", "moment", "plot_map", "plot_observations"]

Limits = tuple[float, float]


def equal_earth(latitude: ArrayLike, longitude: ArrayLike) -> tuple[NDArray, NDArray]:
    r"""Equal Earth coordinates on the unit sphere, of places in degrees."""
    a1, a2, a3, a4 = 1.340264, -0.081106, 0.000893, 0.003796
    theta = np.arcsin(np.sqrt(3) / 2 * np.sin(np.radians(latitude)))
    slope = 9 * a4 * theta**8 + 7 * a3 * theta**6 + 3 * a2 * theta**2 + a1
    x = 2 * np.sqrt(3) / 3 * np.radians(longitude) * np.cos(theta) / slope
    y = a4 * theta**9 + a3 * theta**7 + a2 * theta**3 + a1 * theta
    x, y = np.broadcast_arrays(x, y)
    return x, y


def plate_carree(latitude: ArrayLike, longitude: ArrayLike) -> tuple[NDArray, NDArray]:
    r"""Longitude and latitude as they are, in radians."""
    x, y = np.broadcast_arrays(np.radians(longitude), np.radians(latitude))
    return x, y


PROJECTIONS: dict[str, Callable[[ArrayLike, ArrayLike], tuple[NDArray, NDArray]]] = {
    "equal-earth": equal_earth,
    "plate-carree": plate_carree,
}


def project(name: str | None) -> Callable[[ArrayLike, ArrayLike], tuple[NDArray, NDArray]]:
    name = name or "equal-earth"
    if name not in PROJECTIONS:
        raise DataError(f"unknown projection {name!r}{nearest(name, PROJECTIONS)}")
    return PROJECTIONS[name]


def wrap(longitude: ArrayLike) -> NDArray:
    r"""Longitudes in :math:`[-180, 180)`."""
    return (np.asarray(longitude, dtype=np.float64) + 180) % 360 - 180


def globe(ax: Axes | None, projection: str | None, ticks: tuple[bool, bool]) -> tuple[Figure, Axes]:
    r"""An empty globe: outline, graticule and its labels (of latitude, of longitude)."""
    require()
    from matplotlib.figure import Figure

    if ax is None:
        ax = Figure(figsize=(8, 4.4), layout="constrained").add_subplot()
    forward = project(projection)

    side = np.linspace(-90, 90, 181)
    x, y = forward(np.concatenate([side, side[::-1]]), np.repeat([180.0, -180.0], 181))
    ax.fill(x, y, facecolor=BLANK, edgecolor="none", zorder=0)
    ax.plot(np.append(x, x[0]), np.append(y, y[0]), color=INK, linewidth=0.8, zorder=5)
    line: dict[str, Any] = {"color": INK, "linewidth": 0.4, "alpha": 0.22, "zorder": 3}
    for latitude in (-60, -30, 0, 30, 60):
        ax.plot(*forward(latitude, np.linspace(-180, 180, 181)), **line)
    for longitude in (-120, -60, 0, 60, 120):
        ax.plot(*forward(side, longitude), **line)

    text: dict[str, Any] = {"color": MUTED, "fontsize": 7, "annotation_clip": False}
    if ticks[0]:
        for latitude in (-60, -30, 0, 30, 60):
            x0, y0 = forward(latitude, -180.0)
            name = "0°" if latitude == 0 else f"{abs(latitude)}°{'S' if latitude < 0 else 'N'}"
            ax.annotate(
                name, (x0, y0), (-5, 0), textcoords="offset points", ha="right", va="center", **text
            )
    if ticks[1]:
        for longitude in (-120, -60, 0, 60, 120):
            x0, y0 = forward(-90.0, longitude)
            name = "0°" if longitude == 0 else f"{abs(longitude)}°{'W' if longitude < 0 else 'E'}"
            ax.annotate(
                name, (x0, y0), (0, -3), textcoords="offset points", ha="center", va="top", **text
            )

    ax.set_aspect("equal")
    ax.set_axis_off()
    ax.set_xlim(1.01 * x.min(), 1.01 * x.max())
    ax.set_ylim(1.01 * y.min(), 1.01 * y.max())
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure, ax


def split(field: xr.DataArray) -> tuple[NDArray, NDArray, NDArray]:
    r"""A field's boxes from 180° W to 180° E: edges and values.

    The column that lies on the date line is cut in two.

    Returns:
        Latitudes of the edges :math:`(H + 1)`, longitudes :math:`(W' + 1)`, values
        :math:`(H, W')`.
    """

    from ..data.grids import Grid

    if set(field.dims) != {"latitude", "longitude"}:
        raise DataError(
            f"a map needs a field of latitude and longitude, found {field.dims}; select one time "
            "and level first, for example ds['geopotential'].isel(time=0).sel(level=500)"
        )
    field = field.transpose("latitude", "longitude")
    grid = Grid.from_coordinates(field["latitude"].values, field["longitude"].values)
    width = 360 / grid.longitudes
    west = wrap(grid.longitude - width / 2)
    order = np.argsort(west)
    edges = west[order]
    values = np.asarray(field.values, dtype=np.float64)[:, order]
    if edges[0] > -180 + 1e-9:  # the last box reaches over the date line
        edges = np.concatenate([[-180.0], edges])
        values = np.concatenate([values[:, -1:], values], axis=1)
    edges = np.append(edges, 180.0)
    return np.degrees(np.arcsin(grid.edges)), edges, values


def add_coastline(ax: Axes, land: xr.DataArray, projection: str | None) -> None:
    r"""Draws the half-way contour of a land mask."""
    from matplotlib import patheffects

    land = land.transpose("latitude", "longitude")
    longitude = wrap(land["longitude"].values)
    order = np.argsort(longitude)
    longitude, mask = longitude[order], land.values[:, order].astype(np.float64)
    # Beyond both ends by a column, and to the poles: the contour is cut at the outline.
    longitude = np.concatenate([[longitude[-1] - 360], longitude, [longitude[0] + 360]])
    mask = np.concatenate([mask[:, -1:], mask, mask[:, :1]], axis=1)
    x, y = project(projection)(land["latitude"].values[:, None], longitude[None, :])
    contour = ax.contour(x, y, mask, levels=[0.5], colors=[INK], linewidths=0.6, zorder=4)
    contour.set_gid("coastline")
    contour.set_path_effects([patheffects.withStroke(linewidth=1.5, foreground="white", alpha=0.4)])
    contour.set_clip_path(ax.patches[0])


def colours(name: str, ends: Limits) -> dict[str, Any]:
    import cmocean
    from matplotlib.colors import Normalize

    return {"cmap": cmocean.cm.cmap_d[style(name).colours], "norm": Normalize(*ends)}


def add_boxes(ax: Axes, field: xr.DataArray, name: str, ends: Limits, projection: str | None):
    latitude, longitude, values = split(field)
    x, y = project(projection)(latitude[:, None], longitude[None, :])
    shown = np.ma.masked_invalid(style(name).shown(values))
    mesh = ax.pcolormesh(x, y, shown, rasterized=True, zorder=1, **colours(name, ends))
    mesh.set_clip_path(ax.patches[0])
    mesh.set_gid("field")
    return mesh


def add_colorbar(
    figure: Figure,
    axes: Axes | Sequence[Axes],
    artist: Any,
    name: str,
    values: ArrayLike,
    shrink: float = 0.75,
    location: str = "right",
):
    r"""A colour bar with its unit, pointed where values lie beyond its ends."""
    shown, (low, high) = style(name).shown(values), artist.get_clim()
    shown = shown[np.isfinite(shown)]
    below, above = bool((shown < low).any()), bool((shown > high).any())
    extend = {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[(below, above)]
    return draw_colorbar(figure, axes, artist, style(name).units, extend, shrink, location)


def draw_colorbar(
    figure: Figure,
    axes: Axes | Sequence[Axes],
    artist: Any,
    words: str,
    extend: str = "neither",
    shrink: float = 0.75,
    location: str = "right",
):
    r"""A colour bar in the style of all figures, to the right of axes or below them."""
    bar = figure.colorbar(
        artist, ax=axes, extend=extend, shrink=shrink, aspect=18, pad=0.015, location=location
    )
    bar.set_label(words, color=INK, fontsize=9)
    bar.outline.set_visible(False)  # pyright: ignore
    bar.ax.tick_params(color=MUTED, labelcolor=INK, labelsize=8, length=2.5)
    return bar


def plot_map(
    field: xr.DataArray,
    *,
    land: xr.DataArray | None = None,
    name: str | None = None,
    ends: Limits | None = None,
    title: str | None = None,
    colorbar: bool = True,
    ticks: tuple[bool, bool] = (True, True),
    projection: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    r"""Draws a field on the globe.

    Arguments:
        field: A field of latitude and longitude, in its stored unit.
        land: The land mask to draw the coastline of.
        name: The variable it is, by default the field's own name.
        ends: The ends of the colour scale in the unit shown, by default the field's range.
        title: The title, by default the variable with its level and time.
        colorbar: Whether to draw a colour bar.
        ticks: Whether to label parallels and meridians.
        projection: `equal-earth` (default) or `plate-carree`.
        ax: Axes to draw in, by default those of a new figure.

    Example:
        >>> ds = appa.open_store("planet")
        >>> figure = plot_map(ds["2m_temperature"].isel(time=0), land=ds["land_sea_mask"])
        >>> figure.savefig("t2m.png", dpi=150)
    """

    name = name or str(field.name)
    ends = ends or limits(name, field.values)
    figure, ax = globe(ax, projection, ticks)
    mesh = add_boxes(ax, field, name, ends, projection)
    if land is not None:
        add_coastline(ax, land, projection)
    if colorbar:
        add_colorbar(figure, ax, mesh, name, field.values)

    if title is None:
        level = int(field["level"]) if "level" in field.coords else None
        title = label(name, level)
        if "time" in field.coords and field["time"].ndim == 0:
            title += f" · {moment(field['time'].values)}"
    ax.set_title(title, color=INK, fontsize=10, loc="left")
    return figure


def moment(time: Any) -> str:
    r"""A time as one reads it, `21 March 2021, 00 UTC`."""
    time = pd.Timestamp(time)
    return f"{time.day} {time:%B %Y, %H} UTC"


def plot_observations(
    name: str,
    table: pd.DataFrame | None = None,
    swath: xr.Dataset | None = None,
    *,
    level: int | None = None,
    land: xr.DataArray | None = None,
    ends: Limits | None = None,
    title: str | None = None,
    colorbar: bool = True,
    ticks: tuple[bool, bool] = (True, True),
    projection: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    r"""Draws what a network saw of a variable: stations as dots, swaths as boxes.

    Where a place was seen more than once, the latest value is shown.

    Arguments:
        name: The variable.
        table: Point observations, of any variables and times.
        swath: Gridded observations, of any variables and times.
        level: The level in hPa, where the variable has levels.

    The others are those of :func:`plot_map`; so are the defaults.
    """

    figure, ax = globe(ax, projection, ticks)
    rows = latest_rows(table, name, level)
    field = latest_field(swath, name, level)
    values = np.concatenate(
        [rows["value"].to_numpy(), np.zeros(0) if field is None else field.values.ravel()]
    )
    ends = ends or limits(name, values)

    artist = None
    if field is not None:
        artist = add_boxes(ax, field, name, ends, projection)
    if land is not None:
        add_coastline(ax, land, projection)
    if len(rows) or artist is None:
        x, y = project(projection)(rows["latitude"].to_numpy(), wrap(rows["longitude"]))
        artist = ax.scatter(
            x,
            y,
            c=style(name).shown(rows["value"]),
            s=22,
            edgecolors=INK,
            linewidths=0.6,
            zorder=6,
            gid="stations",
            **colours(name, ends),
        )
    if colorbar:
        add_colorbar(figure, ax, artist, name, values)
    ax.set_title(title or label(name, level), color=INK, fontsize=10, loc="left")
    return figure


def latest_rows(table: pd.DataFrame | None, name: str, level: int | None) -> pd.DataFrame:
    if table is None:
        return pd.DataFrame({"latitude": [], "longitude": [], "value": []}, dtype=np.float64)
    chosen = (table["variable"] == name) & (
        table["level"].isna() if level is None else table["level"] == level
    )
    rows = table.loc[chosen, :].sort_values("time", kind="stable")
    return rows.drop_duplicates(["latitude", "longitude"], keep="last")


def latest_field(swath: xr.Dataset | None, name: str, level: int | None) -> xr.DataArray | None:
    if swath is None or name not in swath:
        return None
    field = swath[name] if level is None else swath[name].sel(level=level)
    latest = field.isel(time=-1, drop=True)
    for k in reversed(range(field.sizes["time"] - 1)):
        latest = latest.fillna(field.isel(time=k, drop=True))
    return latest
