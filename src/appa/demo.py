r"""The demonstration: the bundled planet, seen through the default network.

It observes a day of a simulated atmosphere with stations at 1 % of the grid's points and one
satellite, prints what was seen of nine variables, and writes observations and pictures. Beside
each variable stands the error of its climatology, standardized,

.. math:: e = \frac{1}{s} \sqrt{\langle (x - \bar{x})^2 \rangle}

where :math:`\langle \cdot \rangle` is the mean over hours and area and :math:`s` the variable's
standard deviation: what one knows of the weather without observations.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .data.variables import Channel
from .errors import DataError

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from rich.console import Console

    from .data.grids import Grid
    from .observations.networks import Network

__all__ = ["CHANNELS", "Day", "observe_day", "run", "standardized_rmse", "summarize", "write"]

CHANNELS: tuple[Channel, ...] = (
    Channel("2m_temperature"),
    Channel("10m_u_component_of_wind"),
    Channel("10m_v_component_of_wind"),
    Channel("mean_sea_level_pressure"),
    Channel("sea_surface_temperature"),
    Channel("total_precipitation"),
    Channel("temperature", 850),
    Channel("geopotential", 500),
    Channel("specific_humidity", 700),
)

NEXT = {
    "appa data check planet": "look for faults in the bundled store",
    "appa config show planet": "see how it is configured",
    "appa data simulate --help": "make more of it",
}


@dataclass(frozen=True)
class Day:
    r"""A truth and what a network saw of it.

    Arguments:
        truth: The truth, a canonical dataset.
        statistics: Means and standard deviations of its variables.
        expected: The climatology of the same hours.
        grid: Its grid.
        network: The network.
        table: The stations' observations.
        swath: The satellites' observations.
    """

    truth: xr.Dataset
    statistics: xr.Dataset
    expected: xr.Dataset
    grid: Grid
    network: Network
    table: pd.DataFrame
    swath: xr.Dataset


def run(
    directory: str | Path = "demo",
    *,
    hours: int = 24,
    seed: int = 0,
    console: Console | None = None,
) -> list[Path]:
    r"""Runs the demonstration.

    Arguments:
        directory: Where to write; it is created.
        hours: How many hours to observe.
        seed: Selects stations and noise.
        console: Where to print.

    Returns:
        The files written.
    """

    from rich.console import Console

    from .data import climatology, planet
    from .data.stores import open_store
    from .plots.style import require

    require()
    console = console or Console()
    truth = open_store("planet")
    if not 1 <= hours <= truth.sizes["time"]:
        raise DataError(
            f"{hours} hours asked for, but the bundled planet has {truth.sizes['time']}; "
            "for example appa demo --hours 24"
        )
    truth = truth.isel(time=slice(hours))
    expected = climatology.evaluate(planet.climatology(), truth["time"].values)

    day = observe_day(truth, planet.statistics(), expected, seed=seed)
    report(day, console)
    files = write(day, directory)

    console.print("\nWritten:")
    for path in files:
        console.print(f"  {path}", highlight=False, soft_wrap=True)
    console.print("\nNext:")
    for command, purpose in NEXT.items():
        console.print(f"  [bold]{command:<28}[/bold]{purpose}", highlight=False)
    return files


def observe_day(
    truth: xr.Dataset, statistics: xr.Dataset, expected: xr.Dataset, *, seed: int = 0
) -> Day:
    r"""Observes a dataset with the default network."""
    from .data.grids import Grid
    from .observations.networks import named_network
    from .observations.synthesis import observe

    truth = truth.load()
    grid = Grid.from_coordinates(truth["latitude"].values, truth["longitude"].values)
    network = named_network(grid, seed=seed)
    table, swath = observe(truth, network, seed=seed, statistics=statistics)
    return Day(truth, statistics, expected, grid, network, table, swath)


def standardized_rmse(
    truth: xr.DataArray, other: xr.DataArray, grid: Grid, deviation: float
) -> float:
    r"""Root of the mean squared difference over hours and area, where both are defined, in
    standard deviations."""
    other = other.transpose(*truth.dims)
    error = np.asarray(truth.values, np.float64) - np.asarray(other.values, np.float64)
    weight = np.broadcast_to(grid.weights[:, None], error.shape)
    defined = np.isfinite(error)
    mean = (weight[defined] * error[defined] ** 2).sum() / weight[defined].sum()
    return float(np.sqrt(mean)) / deviation


def summarize(day: Day) -> pd.DataFrame:
    r"""What was seen of each of :data:`CHANNELS`, in its stored unit.

    Returns:
        By channel: `n` observations, their `mean` and standard deviation `sd`, their `error`,
        and `climatology`, the standardized error of the climatology.
    """

    import pandas as pd

    rows = {}
    for channel in CHANNELS:
        name, level = channel.variable, channel.level
        truth, expected, std = day.truth[name], day.expected[name], day.statistics[name]
        if level is None:
            of_it = day.table.loc[day.table["variable"] == name, :]
            values, errors = of_it["value"].to_numpy(), of_it["error"].to_numpy()
        else:
            truth, expected, std = (f.sel(level=level) for f in (truth, expected, std))
            values = day.swath[name].sel(level=level).values
            errors = day.swath[f"{name}_error"].sel(level=level).values[np.isfinite(values)]
            values = values[np.isfinite(values)].astype(np.float64)
        rows[channel.name] = {
            "n": len(values),
            "mean": values.mean() if len(values) else np.nan,
            "sd": values.std() if len(values) else np.nan,
            "error": float(errors.mean()) if len(values) else np.nan,
            "climatology": standardized_rmse(
                truth, expected, day.grid, float(std.sel(statistic="std"))
            ),
        }
    return pd.DataFrame.from_dict(rows, orient="index").astype({"n": int})


def report(day: Day, console: Console) -> None:
    r"""Prints what the network saw."""
    from rich.table import Table

    from .plots.maps import moment
    from .plots.style import label, style

    times = day.truth["time"].values
    coverage = day.network.coverage(day.grid, times)
    upper = [name for name in day.swath.data_vars if not str(name).endswith("_error")]
    gridded = sum(int(np.isfinite(day.swath[name].values).sum()) for name in upper)
    channels = sum(day.swath[name].sizes.get("level", 1) for name in upper)

    seen = Table(box=None, show_header=False, pad_edge=False)
    seen.add_column(style="bold")
    seen.add_column()
    seen.add_row("network", day.network.name)
    h, w = day.grid.shape
    seen.add_row("period", f"{moment(times[0])} to {moment(times[-1])}: {len(times)} hours")
    seen.add_row("grid", f"{h}×{w}, {day.grid.kind}")
    seen.add_row(
        "stations",
        f"{len(day.network.stations)}, in {coverage['stations'].iloc[0]:.1f} % of the boxes; "
        f"{len(day.table):,} observations of {day.table['variable'].nunique()} surface variables",
    )
    seen.add_row(
        "satellites",
        f"{len(day.network.satellites)}, seeing {coverage['satellites'].mean():.1f} % of the area "
        f"an hour, {coverage['since_start'].iloc[-1]:.0f} % in {len(times)} hours; "
        f"{gridded:,} observations in {channels} upper-air channels",
    )
    console.print(seen, highlight=False)
    console.print()

    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),  # 80 columns must do
        caption="\nn, mean, sd, noise: of the observations. climatology: its error against the "
        "truth, in standard deviations of the variable.",
        caption_justify="left",
    )
    table.add_column("variable", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    for column in ("n", "mean", "sd", "noise", "climatology"):
        table.add_column(column, justify="right", no_wrap=True)
    summary = summarize(day)
    for channel in CHANNELS:
        look, row = style(channel.variable), summary.loc[channel.name]
        sd, error = look.scale * row["sd"], look.scale * row["error"]
        table.add_row(
            label(channel.variable, channel.level),
            look.units,
            f"{int(row['n']):,}",
            f"{float(look.shown(row['mean'])):.4g}",
            f"{sd:.3g}",
            f"{error:.2g}",
            f"{row['climatology']:.3f}",
        )
    console.print(table)


def write(day: Day, directory: str | Path) -> list[Path]:
    r"""Writes observations (CSV, NetCDF) and pictures (PNG) into a folder."""
    from .info import version
    from .plots.gallery import plot_gallery, plot_network

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    stations, swath = directory / "stations.csv", directory / "swath.nc"
    gallery, network = directory / "observations.png", directory / "network.png"

    day.table.to_csv(stations, index=False, float_format="%.8g", date_format="%Y-%m-%dT%H:%M")
    encoding = {name: {"zlib": True, "complevel": 4} for name in day.swath.data_vars}
    encoding["time"] = {"units": "hours since 1900-01-01", "dtype": "int64"}
    day.swath.assign_attrs(
        Conventions="CF-1.11",
        title=f"synthetic satellite observations by the network {day.network.name}",
        source=f"appa {version('appa-assimilation')}",
    ).to_netcdf(swath, encoding=encoding)

    plot_gallery(day.truth, day.table, day.swath).savefig(gallery, dpi=150)
    land = day.truth.get("land_sea_mask")
    times = day.truth["time"].values
    plot_network(day.network, day.grid, times, land=land).savefig(network, dpi=150)
    return [stations, swath, gallery, network]
