r"""Small spaces of states, and observations of them, for the tests of representation errors."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from appa.data.grids import Grid
from appa.data.states import Standardizer
from appa.data.variables import VARIABLES
from appa.observations.collection import Observations
from appa.observations.operators import StateSpace, compile_observations

START = np.datetime64("2021-03-21T00", "ns")
ROW = ["variable", "level", "latitude", "longitude", "error"]
RADIUS = 6371.229  # km


def make_space(grid: Grid, surface=(), atmospheric=(), levels=(), mean=0.0, std=2.0, land=None):
    r"""A space whose channels have the same mean and standard deviation."""
    stats = xr.Dataset(coords={"statistic": ["mean", "std"], "level": list(levels)})
    for name in surface:
        stats[name] = ("statistic", np.array([mean, std]))
    for name in atmospheric:
        stats[name] = (("statistic", "level"), np.full((2, len(levels)), [[mean], [std]]))
    standardizer = Standardizer(stats, surface, atmospheric, levels, land)
    return StateSpace(standardizer, grid, None, land)


def compiled(space: StateSpace, hours: int, rows) -> list:
    r"""Operators of rows (hour, variable, level, latitude, longitude, error), all of value 0."""
    table = pd.DataFrame(rows, columns=["t", *ROW])
    table["time"] = table["hour"] = START + table["t"].to_numpy() * np.timedelta64(1, "h")
    table["level"] = table["level"].astype(float)
    table = table.assign(value=0.0, station="", elevation=np.nan)
    times = START + np.arange(hours) * np.timedelta64(1, "h")
    return compile_observations(Observations(table.drop(columns="t")), space, times)


def direction(variable: str, latitude, longitude) -> np.ndarray | None:
    r"""The Cartesian unit vectors that a wind's component is along, with shape (n, 3)."""
    phi, lam = np.radians(latitude), np.radians(longitude)
    name = VARIABLES[variable].standard_name
    if name == "eastward_wind":
        return np.stack([-np.sin(lam), np.cos(lam), 0 * lam], -1)
    if name == "northward_wind":
        return np.stack(
            [-np.sin(phi) * np.cos(lam), -np.sin(phi) * np.sin(lam), np.cos(phi)], axis=-1
        )
    return None


def places(grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    latitude, longitude = np.meshgrid(grid.latitude, grid.longitude, indexing="ij")
    return latitude.ravel(), longitude.ravel()


def dense_space(rep, channel: int) -> np.ndarray:
    r"""The correlation of all grid points, from the angles between them."""
    latitude, longitude = places(rep.grid)
    phi, lam = np.radians(latitude), np.radians(longitude)
    p = np.stack([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)], -1)
    chord = np.linalg.norm(p[:, None] - p[None], axis=-1)
    rho = rep.in_space(channel, 2 * RADIUS * np.arcsin(np.clip(chord / 2, 0, 1)))
    along = direction(rep.channels[channel].variable, latitude, longitude)
    return rho if along is None else rho * (along @ along.T)


def dense_time(rep, channel: int, hours: int) -> np.ndarray:
    lag = np.arange(hours)
    return rep.in_time(channel, np.abs(lag[:, None] - lag))


def dense(rep, channel: int, hours: int) -> np.ndarray:
    r"""The covariance B of a channel, with rows and columns (hour, point)."""
    s = np.tile(rep.std[channel].ravel(), hours)
    both = np.kron(dense_time(rep, channel, hours), dense_space(rep, channel))
    return s[:, None] * both * s
