r"""The demonstration: the bundled planet, seen through the default network.

It observes a day of a simulated atmosphere with stations at 1 % of the grid's points and one
satellite, and tells what was seen of nine variables. Beside each stands the error of its
climatology, in standard deviations: what one knows of the weather without observations.

The command line prints and draws it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from . import __version__
from .data.variables import Channel
from .errors import AppaError, DataError

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from .data.grids import Grid
    from .observations.networks import Network
    from .sections import Observations

__all__ = [
    "CHANNELS",
    "Day",
    "first_hours",
    "make_folder",
    "observe_day",
    "observe_planet",
    "summarize",
    "write",
]

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


def first_hours(hours: int = 24) -> xr.Dataset:
    r"""The first hours of the bundled planet."""
    from .data.stores import open_store

    truth = open_store("planet")
    if not 1 <= hours <= truth.sizes["time"]:
        raise DataError(
            f"{hours} hours asked for, but the bundled planet has {truth.sizes['time']}; "
            "for example appa demo --hours 24"
        )
    return truth.isel(time=slice(hours))


def observe_planet(truth: xr.Dataset, *, seed: int = 0) -> Day:
    r"""Observes hours of the bundled planet, with the errors of its preset.

    Arguments:
        truth: The hours.
        seed: Selects stations and noise.
    """

    from .config import load_config
    from .data import climatology, planet

    expected = climatology.evaluate(planet.climatology(), truth["time"].values)
    errors = load_config("planet").observations
    return observe_day(truth, planet.statistics(), expected, errors, seed=seed)


def observe_day(
    truth: xr.Dataset,
    statistics: xr.Dataset,
    expected: xr.Dataset,
    errors: Observations,
    *,
    seed: int = 0,
) -> Day:
    r"""Observes a dataset with the default network, whose errors are a configuration's."""
    from .data.grids import Grid
    from .observations.networks import named_network
    from .observations.synthesis import observe

    truth = truth.load()
    grid = Grid.from_coordinates(truth["latitude"].values, truth["longitude"].values)
    network = named_network(grid, seed=seed, **errors.model_dump())
    table, swath = observe(truth, network, seed=seed, statistics=statistics)
    return Day(truth, statistics, expected, grid, network, table, swath)


def summarize(day: Day) -> pd.DataFrame:
    r"""What was seen of each of :data:`CHANNELS`, in its stored unit.

    Returns:
        By channel: `n` observations, their `mean` and standard deviation `sd`, their `error`,
        and `climatology`, the standardized error of the climatology.
    """

    import pandas as pd

    from .evaluation.scores import standardized_rmse

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
            "climatology": float(
                standardized_rmse(expected, truth, std.sel(statistic="std", drop=True))
            ),
        }
    return pd.DataFrame.from_dict(rows, orient="index").astype({"n": int})


def make_folder(directory: str | Path) -> Path:
    r"""Makes a folder and sees that files can be written into it, before work is done for them."""
    directory = Path(directory)
    with _told(directory):
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    return directory


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        exists = isinstance(error, FileExistsError)
        cause = "it is a file" if exists else error.strerror or str(error)
        raise AppaError(
            f"cannot write {path}: {cause}; name a folder that can be written "
            "to, for example appa demo my-demo"
        ) from error


def write(day: Day, directory: str | Path) -> list[Path]:
    r"""Writes the observations into a folder, as CSV and NetCDF."""
    from .observations.records import together

    directory = make_folder(directory)
    stations, swath = directory / "stations.csv", directory / "swath.nc"
    encoding = {name: {"zlib": True, "complevel": 4} for name in day.swath.data_vars}
    encoding["time"] = {"units": "hours since 1900-01-01", "dtype": "int64"}
    with together([stations, swath], overwrite=True) as paths:
        day.table.to_csv(
            paths[stations], index=False, float_format="%.8g", date_format="%Y-%m-%dT%H:%M"
        )
        day.swath.assign_attrs(
            Conventions="CF-1.11",
            title=f"synthetic satellite observations by the network {day.network.name}",
            source=f"appa {__version__}",
        ).to_netcdf(paths[swath], encoding=encoding)
    return [stations, swath]
