r"""The figures of `docs/planet.md`; `tools/planet_page.py` calls these and saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cmocean
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from appa.data.variables import G
from appa.evaluation.diurnal import by_local_hour, daily_harmonic
from appa.evaluation.physics import (
    PLANET,
    geostrophic_balance,
    geostrophic_wind,
    global_mean,
    hydrostatic_error,
    hydrostatic_residual,
    relative_humidity,
)
from appa.plots.maps import add_coastline, globe, plot_map, project, split
from appa.plots.style import INK, MUTED, finish, legend

__all__ = ["balances", "day", "maps", "rounding", "save", "seasons", "zonal"]

# Okabe and Ito's colours, told apart by everybody.
BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
DPI = 90
PANELS = (
    ("2m_temperature", None),
    ("mean_sea_level_pressure", None),
    ("geopotential", 500),
    ("u_component_of_wind", 250),
    ("specific_humidity", 700),
    ("total_precipitation", None),
)


def save(figure: Figure, path: Path) -> int:
    r"""Writes a figure and returns its size in bytes."""
    figure.savefig(path, dpi=DPI, facecolor="white", pil_kwargs={"optimize": True})
    return path.stat().st_size


def maps(ds: xr.Dataset) -> Figure:
    r"""Six fields at noon of the first day."""
    now = ds.isel(time=12)
    figure = Figure(figsize=(11, 8.6), layout="constrained")
    for ax, (name, level) in zip(figure.subplots(3, 2).flat, PANELS, strict=True):
        field = now[name] if level is None else now[name].sel(level=level)
        plot_map(field, land=ds["land_sea_mask"], ax=ax)
    return figure


def draw(
    ax: Axes, field: xr.DataArray, land: xr.DataArray, colours: str, unit: str, title: str, ends
):
    r"""A map of something that is no variable of its own."""
    figure, ax = globe(ax, None, (True, True))
    latitude, longitude, values = split(field)
    x, y = project(None)(latitude[:, None], longitude[None, :])
    mesh = ax.pcolormesh(
        x, y, values, cmap=cmocean.cm.cmap_d[colours], vmin=ends[0], vmax=ends[1], rasterized=True
    )
    mesh.set_clip_path(ax.patches[0])
    add_coastline(ax, land, None)
    extend = "max" if values.max() > ends[1] else "neither"
    extend = "both" if values.min() < ends[0] else extend
    bar = figure.colorbar(mesh, ax=ax, shrink=0.75, aspect=18, pad=0.015, extend=extend)
    finish_bar(bar, unit)
    ax.set_title(title, color=INK, fontsize=10, loc="left")


def finish_bar(bar: Any, unit: str) -> None:
    bar.set_label(unit, color=INK, fontsize=9)
    bar.outline.set_visible(False)
    bar.ax.tick_params(color=MUTED, labelcolor=INK, labelsize=8, length=2.5)


def pressure_axis(ax: Axes) -> None:
    ax.set_yscale("log")
    ax.set_ylim(1000, 50)
    ax.set_yticks(
        [50, 100, 200, 300, 500, 700, 1000], ["50", "100", "200", "300", "500", "700", "1000"]
    )
    ax.minorticks_off()


def zonal(months: xr.Dataset) -> Figure:
    r"""Temperature, wind and relative humidity by latitude and level, in January and July."""
    months = months.assign(relative=100 * relative_humidity(months, "speedy"))
    panels = (
        ("temperature", "Temperature", "°C", "thermal", np.arange(-110, 31, 10)),
        ("u_component_of_wind", "Eastward wind", "m/s", "balance", np.arange(-60, 61, 5)),
        ("relative", "Relative humidity", "%", "tempo", np.arange(0, 101, 10)),
    )
    figure = Figure(figsize=(11.5, 6.4), layout="constrained")
    for row, (month, word) in zip(
        figure.subplots(2, 3), ((1, "January"), (7, "July")), strict=True
    ):
        for ax, (name, title, unit, colours, levels) in zip(row, panels, strict=True):
            field = months[name].sel(month=month).mean("longitude").transpose("level", "latitude")
            values = field.values - (273.15 if unit == "°C" else 0)
            x = np.sin(np.radians(field["latitude"].values))
            filled = ax.contourf(
                x, field["level"], values, levels, cmap=cmocean.cm.cmap_d[colours], extend="both"
            )
            lines = ax.contour(x, field["level"], values, levels[::2], colors=INK, linewidths=0.4)
            ax.clabel(lines, fontsize=6.5, fmt="%g")
            pressure_axis(ax)
            degrees = np.array([-60, -30, 0, 30, 60])
            ax.set_xticks(np.sin(np.radians(degrees)), ["60° S", "30° S", "0°", "30° N", "60° N"])
            finish_bar(figure.colorbar(filled, ax=ax, aspect=22, pad=0.02), unit)
            finish(ax, "", "hPa" if name == "temperature" else "", f"{title}, {word}")
    return figure


def seasons(months: xr.Dataset, land: xr.DataArray) -> Figure:
    r"""Precipitation and sea-level pressure in January and July."""
    figure = Figure(figsize=(11, 5.9), layout="constrained")
    rows = (
        (
            24e3 * months["total_precipitation"].clip(min=0),
            "rain",
            "mm/day",
            "Precipitation",
            (0, 12),
        ),
        (
            months["mean_sea_level_pressure"] / 100,
            "matter_r",
            "hPa",
            "Sea-level pressure",
            (985, 1030),
        ),
    )
    for axes, (field, colours, unit, title, ends) in zip(figure.subplots(2, 2), rows, strict=True):
        for ax, (month, word) in zip(axes, ((1, "January"), (7, "July")), strict=True):
            draw(ax, field.sel(month=month), land, colours, unit, f"{title}, {word}", ends)
    return figure


def rounding(ds: xr.Dataset) -> np.ndarray:
    r"""What rounding adds to the rms thickness of each layer, in metres.

    Values of a packed field are multiples of a step, and so the smallest difference between two
    of them is one.
    """
    steps = []
    for level in ds["level"].values:
        values = np.unique(ds["geopotential"].sel(level=level).values.astype(np.float64))
        gaps = np.diff(values)
        steps.append(gaps[gaps > 1e-6 * np.abs(values).max()].min())
    variance = (np.array(steps) / G) ** 2 / 12
    return np.sqrt(variance[1:] + variance[:-1])


def balances(ds: xr.Dataset) -> Figure:
    r"""Hydrostatic residuals by layer, and the wind beside the geostrophic wind."""
    figure = Figure(figsize=(11, 8), layout="constrained")
    (one, two), (three, four) = figure.subplots(2, 2)
    keep = (abs(ds["latitude"]) >= 20) & (abs(ds["latitude"]) <= 80)

    residual = hydrostatic_residual(ds, PLANET)
    error = hydrostatic_error(ds, PLANET)
    middle = np.sqrt(residual["top"].values * residual["bottom"].values)
    rms = [np.sqrt(global_mean(f**2).mean("time")) for f in (residual, error)]
    one.plot(rms[0], middle, "o-", color=BLUE, label="residual, rms")
    one.plot(rounding(ds), middle, "s--", color=ORANGE, label="rounding of the excerpt")
    one.plot(rms[1], middle, "^:", color=GREEN, label="curvature between levels, estimated")
    one.set_xscale("log")
    one.set_xlim(0.1, 100)
    pressure_axis(one)
    finish(one, "m", "hPa", "Hydrostatic balance: thickness from z less that from T and q")
    legend(one, loc="upper left")

    at = ds.sel(level=500)
    geo = geostrophic_wind(at, PLANET, equator=20)
    u, v = (at[name].where(keep) for name in geo)
    u_g, v_g = (field.where(keep) for field in geo.values())
    speed, speed_g = np.hypot(u, v).values.ravel(), np.hypot(u_g, v_g).values.ravel()
    good = np.isfinite(speed) & np.isfinite(speed_g)
    hexes = two.hexbin(
        speed_g[good], speed[good], gridsize=60, extent=(0, 60, 0, 60), norm=LogNorm(), mincnt=1,
        cmap=cmocean.cm.cmap_d["dense"], linewidths=0.1,
    )  # fmt: skip
    two.plot([0, 60], [0, 60], color=ORANGE, linewidth=1)
    two.set_aspect("equal")
    finish_bar(figure.colorbar(hexes, ax=two, aspect=22, pad=0.02), "points and hours")
    finish(two, "geostrophic wind, m/s", "wind, m/s", "Speed at 500 hPa, 20–80° from the equator")

    edges = np.arange(0, 181, 3)
    for level, colour in ((500, BLUE), (850, GREEN), (1000, ORANGE)):
        at = ds.sel(level=level)
        geo = geostrophic_wind(at, PLANET, equator=20)
        u, v = (at[name].where(keep) for name in geo)
        u_g, v_g = geo.values()
        cross = np.sign(ds["latitude"]) * (u_g * v - v_g * u)
        angle = 90 + np.degrees(np.arctan2(cross, u * u_g + v * v_g))
        weight = np.cos(np.radians(ds["latitude"])) * xr.ones_like(angle)
        good = np.isfinite(angle.values)
        count, _ = np.histogram(angle.values[good], edges, weights=weight.values[good])
        share = 100 * count / weight.values[good].sum()
        three.stairs(share, edges, color=colour, label=f"{level} hPa", linewidth=1.5)
    three.axvline(90, color=MUTED, linewidth=0.8)
    three.set_xticks([0, 45, 90, 135, 180])
    finish(
        three,
        "degrees; beyond 90 towards low pressure",
        "% in 3°",
        "Angle from the gradient to the wind",
    )
    legend(three, loc="upper left")

    balance = geostrophic_balance(ds, PLANET)
    level = balance["level"]
    four.plot(balance["correlation"], level, "o-", color=BLUE, label="correlation of vectors")
    four.plot(
        balance["speed_correlation"], level, "s--", color=ORANGE, label="correlation of speeds"
    )
    four.plot(balance["ratio"], level, "^:", color=GREEN, label="speed, actual / geostrophic")
    four.set_xlim(0.7, 1)
    pressure_axis(four)
    finish(four, "", "hPa", "Geostrophic balance by level")
    legend(four, loc="lower left")
    return figure


def day(ds: xr.Dataset, bands: dict[str, tuple[float, float]]) -> Figure:
    r"""The day: temperature by local time, where it varies, and the tide of pressure."""
    figure = Figure(figsize=(11, 6.6), layout="constrained")
    (one, two), axes = figure.subplots(2, 2)
    land = ds["land_sea_mask"] >= 0.5
    hours = np.arange(25)

    cycle = by_local_hour(ds["2m_temperature"])
    cycle = cycle - cycle.mean("hour")
    for (name, (low, high)), colour in zip(
        bands.items(), (BLUE, ORANGE, GREEN, PURPLE), strict=True
    ):
        here = (ds["latitude"] >= low) & (ds["latitude"] < high)
        for mask, dashes in ((land, "-"), (~land, ":")):
            line = global_mean(cycle.where(here & mask)).values
            label = name if dashes == "-" else None
            one.plot(hours, np.append(line, line[0]), dashes, color=colour, label=label)
    finish(one, "local solar time, h", "K", "2 m temperature: land, and sea dotted")
    legend(one, loc="upper left")

    pressure = by_local_hour(ds["mean_sea_level_pressure"] / 100)
    inside = abs(ds["latitude"]) < 20
    line = global_mean((pressure - pressure.mean("hour")).where(inside)).values
    two.plot(hours, np.append(line, line[0]), color=BLUE, label="planet, excerpt")
    fine = np.linspace(0, 24, 97)
    cubed = float(
        global_mean(np.cos(np.radians(ds["latitude"] + 0 * ds["land_sea_mask"])).where(inside) ** 3)
    )
    first = 0.6 * np.cos(2 * np.pi / 24 * (fine - 5.2))
    second = 1.16 * np.cos(4 * np.pi / 24 * (fine - 9.7))
    two.plot(fine, cubed * (first + second), "--", color=ORANGE, label="Earth")
    finish(two, "local solar time, h", "hPa", "Sea-level pressure, 20° S–20° N")
    legend(two, loc="upper right")
    for ax in (one, two):
        ax.set_xticks(range(0, 25, 3))
        ax.axhline(0, color=MUTED, linewidth=0.6)

    first = 2 * daily_harmonic(ds["2m_temperature"], 1)["amplitude"]
    second = daily_harmonic(ds["mean_sea_level_pressure"] / 100, 2)["amplitude"]
    mask = ds["land_sea_mask"]
    draw(
        axes[0],
        first,
        mask,
        "amp",
        "K",
        "2 m temperature: range of the day's first harmonic",
        (0, 8),
    )
    draw(axes[1], second, mask, "dense", "hPa", "Sea-level pressure: semidiurnal amplitude", (0, 2))
    return figure
