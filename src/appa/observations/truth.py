r"""What would be observed of a known atmosphere without noise, in double precision.

Fields are interpolated bilinearly to a place; a derived observable is its function of these. The
operators of :mod:`appa.observations.operators` do the same to standardized states, in single
precision and with gradients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from ..data.variables import VARIABLES, G
from ..errors import DataError
from .observables import ITSELF, Observable, find, split_input

if TYPE_CHECKING:
    from ..data.grids import Grid

__all__ = ["Places", "available", "evaluate", "inputs", "interpolate", "lookup"]

Interpolation = tuple[NDArray, NDArray]


def interpolate(
    state: NDArray, interpolation: Interpolation, defined_only: bool = False
) -> NDArray:
    r"""Interpolates a field to places.

    Arguments:
        state: The field, with shape :math:`(H, W)`.
        interpolation: Indices and weights, each with shape :math:`(N, 4)`.
        defined_only: Whether undefined points are left out and the others' weights rescaled.

    Returns:
        The values, with shape :math:`(N)`; NaN where all four points are undefined.
    """

    index, weight = interpolation
    values = state.astype(np.float64).ravel()[index]
    if not defined_only:
        return (weight * values).sum(axis=-1)
    defined = np.isfinite(values)
    total = (weight * defined).sum(axis=-1)
    value = (weight * np.where(defined, values, 0.0)).sum(axis=-1)
    return np.divide(value, total, out=np.full(len(value), np.nan), where=total > 0)


@dataclass(frozen=True)
class Places:
    r"""Where fields are seen.

    Arguments:
        latitude: Degrees north, with shape :math:`(N)`.
        longitude: Degrees east, with shape :math:`(N)`.
        scalar: How fields are interpolated; :py:`None` for the grid's points, row by row.
        vector: How components of a vector are.
        ground: The height of the store's ground in metres with shape :math:`(N)`, if it has any.
    """

    latitude: NDArray
    longitude: NDArray
    scalar: Interpolation | None
    vector: Interpolation | None
    ground: NDArray | None = None

    @classmethod
    def at(cls, ds: xr.Dataset, grid: Grid, latitude: NDArray, longitude: NDArray) -> Places:
        r"""Any places."""
        scalar = grid.interpolation(latitude, longitude)
        vector = grid.interpolation(latitude, longitude, vector=True)
        ground = None
        if "geopotential_at_surface" in ds:
            ground = interpolate(ds["geopotential_at_surface"].values, scalar) / G
        return cls(latitude, longitude, scalar, vector, ground)

    @classmethod
    def of(cls, ds: xr.Dataset, grid: Grid) -> Places:
        r"""The grid's own points, row by row."""
        ground = None
        if "geopotential_at_surface" in ds:
            ground = ds["geopotential_at_surface"].values.astype(np.float64).ravel() / G
        latitude, longitude = np.meshgrid(grid.latitude, grid.longitude, indexing="ij")
        return cls(latitude.ravel(), longitude.ravel(), None, None, ground)


def lookup(name: str) -> Observable:
    r"""The observable of that name, without importing derived ones for a variable."""
    return ITSELF[name] if name in ITSELF else find(name)


def inputs(name: str) -> list[str]:
    r"""The variables an observable is computed from."""
    return list(dict.fromkeys(split_input(text)[0] for text in lookup(name).inputs))


def available(ds: xr.Dataset, name: str) -> bool:
    r"""Whether a store holds all that an observable is computed from."""
    return all(variable in ds for variable in inputs(name))


def evaluate(
    ds: xr.Dataset, name: str, hour: int, places: Places, level: int | None = None
) -> NDArray:
    r"""An observable of one hour of a store.

    Arguments:
        ds: A canonical dataset.
        name: The observable.
        hour: The position of the hour.
        places: Where to evaluate it.
        level: The level in hPa, if the observable has levels.

    Returns:
        The values, with shape :math:`(N)`, undefined where it is.
    """

    seen = lookup(name)
    if seen.function is None:
        return _at(ds, name, hour, places, level)

    import torch

    column = seen.levels == "column"
    arguments = []
    for text in seen.inputs:
        variable, fixed = split_input(text)
        levels = _levels(ds, variable, fixed if fixed is not None else level, column)
        if seen.local:
            parts = [_at(ds, variable, hour, places, p) for p in levels]
        else:
            parts = [_field(ds, variable, hour, p).astype(np.float64) for p in levels]
        whole = np.stack(parts) if column and levels != [None] and fixed is None else parts[0]
        arguments.append(torch.from_numpy(whole[None]))
    value = seen.function(*arguments, **_keywords(ds, seen, places, level))[0].numpy()
    return value if seen.local else _placed(value, places.scalar)


def _levels(ds: xr.Dataset, variable: str, level: int | None, column: bool) -> list:
    if VARIABLES[variable].surface:
        return [None]
    return ds["level"].values.tolist() if column and level is None else [level]


def _at(ds: xr.Dataset, variable: str, hour: int, places: Places, level: int | None) -> NDArray:
    v = VARIABLES[variable]
    wind = v.standard_name in ("eastward_wind", "northward_wind")
    field = _field(ds, variable, hour, level)
    return _placed(field, places.vector if wind else places.scalar, v.missing is not None)


def _placed(field: NDArray, by: Interpolation | None, defined_only: bool = False) -> NDArray:
    return field.astype(np.float64).ravel() if by is None else interpolate(field, by, defined_only)


def _field(ds: xr.Dataset, variable: str, hour: int, level: int | None) -> NDArray:
    r"""A field, linear in the logarithm of pressure between levels."""
    field = ds[variable].isel(time=hour)
    if level is None:
        return field.values
    held = ds["level"].values
    if level in held:
        return field.sel(level=level).values
    if not held.min() < level < held.max():
        raise DataError(
            f"{variable!r} is needed at {level} hPa, but the store holds {held.min()} to "
            f"{held.max()} hPa"
        )
    below = int(np.searchsorted(held, level))
    top, bottom = float(held[below - 1]), float(held[below])
    share = math.log(level / top) / math.log(bottom / top)
    upper, lower = (field.isel(level=k).values.astype(np.float64) for k in (below - 1, below))
    return (1 - share) * upper + share * lower


def _keywords(ds: xr.Dataset, seen: Observable, places: Places, level: int | None) -> dict:
    r"""What an observable's function takes beside its inputs. Stations stand on the ground."""
    import torch

    from .heights import LAPSE

    given: dict[str, object] = {"lapse": LAPSE}
    if level is not None:
        given["pressure"] = torch.full((len(places.latitude),), 100.0 * level, dtype=torch.float64)
    elif "level" in ds.dims:
        pressure = torch.from_numpy(100.0 * ds["level"].values.astype(np.float64))[:, None]
        given["pressure"] = pressure if seen.local else pressure[..., None]
    latitude, longitude = places.latitude, places.longitude
    if not seen.local:
        latitude, longitude = ds["latitude"].values[:, None], ds["longitude"].values
    given["latitude"], given["longitude"] = (
        torch.tensor(np.array(a, np.float64)) for a in (latitude, longitude)
    )
    ground = places.ground
    if ground is not None and not seen.local:
        ground = ds["geopotential_at_surface"].values.astype(np.float64) / G
    if ground is not None:
        given["ground"] = given["elevation"] = torch.from_numpy(ground)
    missing = [name for name in seen.keywords if name not in given]
    if missing:
        raise DataError(
            f"{seen.name!r} needs {', '.join(missing)}, which the store does not tell: it lacks "
            "geopotential_at_surface or levels"
        )
    return {name: given[name] for name in seen.keywords}
