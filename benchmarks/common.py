r"""What benchmarks have in common."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

from appa.config import Config
from appa.data.planet import open_planet

__all__ = ["machine", "peak", "planet_states", "write_json"]


def planet_states(config: Config, hours: int | None = None) -> xr.Dataset:
    r"""The bundled planet at the nearest points of a configuration's grid, lazily."""
    planet, grid = open_planet(), config.grid
    rows = np.abs(planet.latitude.values - grid.latitude[:, None]).argmin(axis=1)
    columns = np.abs(planet.longitude.values - grid.longitude[:, None]).argmin(axis=1)
    near = planet.isel(latitude=rows, longitude=columns).sel(level=list(config.data.levels))
    near = near.isel(time=slice(hours))
    return near.assign_coords(
        latitude=("latitude", grid.latitude, planet.latitude.attrs),
        longitude=("longitude", grid.longitude, planet.longitude.attrs),
    )


def peak() -> int:
    r"""The largest resident set of this process; `ru_maxrss` would count its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def machine() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def write_json(path: Path, result: dict[str, Any]) -> None:
    path.write_text(json.dumps(result, indent=1) + "\n")
