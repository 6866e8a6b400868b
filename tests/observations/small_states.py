r"""States of few levels as an atmosphere has them, roughly, and observations of them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
import xarray as xr

import appa
from appa.data.grids import Grid
from appa.data.planet import statistics
from appa.data.states import Standardizer, undefined
from appa.data.variables import ATMOSPHERIC, SURFACE
from appa.observations.operators import HourOperator, Operators, StateSpace, compile_observations

HOUR = np.datetime64("2021-03-21T00", "ns")
LEVELS = (200, 500, 850, 1000)
U, V = "10m_u_component_of_wind", "10m_v_component_of_wind"
R, G = 287.05, 9.80665

GAUSSIAN = Grid("gaussian", 48, 96)
SMALL = Grid("equiangular-cells", 6, 8)


def moments(seed: int = 0) -> xr.Dataset:
    r"""Means and standard deviations as an atmosphere has them, roughly."""
    stats = xr.Dataset(coords={"statistic": ["mean", "std"], "level": list(LEVELS)})
    surface = ((281, 12), (1, 5), (-1, 4), (100_900, 1100), (288, 8), (1e-4, 3e-4))
    for name, pair in zip(SURFACE, surface, strict=True):
        stats[name] = ("statistic", np.array(pair, float))
    upper = {
        "temperature": ([218, 252, 274, 281], [7, 11, 14, 16]),
        "u_component_of_wind": ([14, 6, 1, 0], [17, 12, 8, 6]),
        "v_component_of_wind": ([0, 0, 0, 0], [12, 9, 6, 5]),
        "geopotential": ([115_000, 54_200, 13_800, 900], [5700, 3300, 1400, 1000]),
        "specific_humidity": ([2e-5, 9e-4, 5e-3, 7e-3], [2e-5, 1e-3, 4e-3, 6e-3]),
    }
    for name in ATMOSPHERIC:
        stats[name] = (("statistic", "level"), np.array(upper[name], float))
    return stats


def two_hours() -> tuple[xr.Dataset, StateSpace, torch.Tensor]:
    r"""Two hours of the bundled planet, where they live, and their states."""
    ds = appa.open_store("planet").isel(time=slice(0, 2)).load()
    grid = Grid.from_coordinates(ds["latitude"], ds["longitude"])
    standardizer = Standardizer(statistics(), land_mask=undefined(ds))
    space = StateSpace.from_statistics(standardizer, grid, ds)
    return ds, space, standardizer.to_tensor(ds)


def make_space(grid: Grid, land=None, ground=None) -> StateSpace:
    standardizer = Standardizer(moments(), levels=LEVELS, land_mask=land)
    return StateSpace(standardizer, grid, ground, standardizer.land)


def states(space: StateSpace, **fields) -> torch.Tensor:
    r"""A state in double precision; fields not given are at their mean."""
    x = torch.zeros(1, *space.shape, dtype=torch.float64)
    for name, field in fields.items():
        c = space.channels(name)
        y = torch.tensor(np.asarray(field), dtype=torch.float64)
        x[0, c] = (y - torch.from_numpy(space.mean[c])[:, None, None]) / torch.from_numpy(
            space.std[c]
        )[:, None, None]
    return x


def points(latitude, longitude, variable, value=0.0, error=1.0, level=np.nan, **more):
    columns = {"latitude": latitude, "longitude": longitude, "variable": variable, "level": level}
    columns |= {"value": value, "error": error, "station": "", "elevation": np.nan, "hour": HOUR}
    columns = {key: np.asarray(column) for key, column in (columns | more).items()}
    shape = np.broadcast_shapes((1,), *(column.shape for column in columns.values()))
    table = pd.DataFrame({key: np.broadcast_to(c, shape) for key, c in columns.items()})
    return SimpleNamespace(points=table.assign(time=table["hour"]), gridded=None)


def compiled(observations, space, hours=(HOUR,)) -> Operators:
    return compile_observations(observations, space, np.array(hours))


def physical(operator: HourOperator, x: torch.Tensor) -> np.ndarray:
    r"""What an operator says would be observed, in the observable's unit."""
    return (operator(x).double() * operator.error + operator.reference)[0].numpy()
