r"""Observations made of a known atmosphere.

A network observes a store: each value is the truth at its place plus Gaussian noise,

.. math:: y = \mathcal{A}(x) + \sigma \, \varepsilon, \qquad \varepsilon \sim \mathcal{N}(0, 1),
    \qquad \sigma = \eta \, s

with :math:`s` the standard deviation of the variable (and level) over the training period and
:math:`\eta` the network's noise. :math:`\mathcal{A}` interpolates bilinearly to a station and
selects the grid points in a swath. The noise is really added, and :math:`\sigma` is recorded as
the error, in the variable's unit. It is not clipped: a dry gauge may read a little below zero.

Each hour, variable and level has a random stream of its own, derived from the seed. An
observation is the same whichever other hours or variables are observed with it, and in whatever
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from ..data.variables import VARIABLES, G, Variable
from ..errors import DataError
from ..progress import progress
from .networks import Network, boxes

if TYPE_CHECKING:
    from ..data.grids import Grid

__all__ = ["COLUMNS", "observe"]

COLUMNS = (
    "time",
    "latitude",
    "longitude",
    "variable",
    "level",
    "value",
    "error",
    "station",
    "elevation",
)

STATION, SWATH = 0, 1


def stream(seed: int, time: np.datetime64, kind: int, variable: str, level: int = 0):
    r"""The random stream of one variable and level in one hour."""
    hour = int(time.astype("datetime64[h]").astype(np.int64)) % 2**64  # before 1970 too
    key = (kind, list(VARIABLES).index(variable), level)
    return np.random.default_rng(np.random.SeedSequence([seed, hour], spawn_key=key))


def deviation(statistics: xr.Dataset, variable: str, levels: NDArray | None = None) -> NDArray:
    r"""The standard deviation of a variable, on the levels given if it has any."""
    if variable not in statistics:
        raise DataError(
            f"the statistics lack {variable!r}, so that its noise is unknown; they hold "
            f"{', '.join(map(str, statistics.data_vars))}"
        )
    std = statistics[variable].sel(statistic="std")
    if levels is not None:
        missing = sorted(set(levels.tolist()) - set(std["level"].values.tolist()))
        if missing:
            raise DataError(f"the statistics of {variable!r} lack the levels {missing}")
        std = std.sel(level=levels)
    return np.asarray(std.values, dtype=np.float64)


def select(ds: xr.Dataset, variables: Sequence[str]) -> list[Variable]:
    r"""Those of a network's variables that the store holds."""
    return [VARIABLES[name] for name in dict.fromkeys(variables) if name in ds]


def observe(
    ds: xr.Dataset,
    network: Network,
    *,
    seed: int = 0,
    statistics: xr.Dataset | None = None,
) -> tuple[pd.DataFrame, xr.Dataset]:
    r"""Observes a store with a network, every hour of it.

    Arguments:
        ds: The truth, in any form :func:`~appa.data.canonical.canonicalize` takes.
        network: The network. It sees those of its variables that the dataset holds.
        seed: Selects the noise, 0 or more.
        statistics: Means and standard deviations of the variables, or :py:`None` for the
            dataset's own.

    Returns:
        The stations' observations as a table and the satellites' as a dataset.

        The table has one row an observation with columns :data:`COLUMNS`, `level` being empty
        at the surface. The dataset is gridded, NaN where nothing was seen, with
        `<variable>_error` beside each variable, in the canonical form whatever that of `ds`.

    Example:
        >>> ds = appa.open_store("planet").isel(time=slice(24))
        >>> network = named_network(Grid.from_coordinates(ds.latitude, ds.longitude))
        >>> table, swath = observe(ds, network)
    """

    from ..data.canonical import canonicalize
    from ..data.grids import Grid

    if not isinstance(seed, Integral) or seed < 0:
        raise DataError(f"found the seed {seed!r}; give a whole number of 0 or more")
    ds = canonicalize(ds)
    if "member" in ds.dims:
        raise DataError(
            f"found {ds.sizes['member']} members, but there is one truth; select a member first, "
            "for example ds.isel(member=0)"
        )
    if statistics is None:
        from ..data.statistics import compute

        statistics = compute(ds)

    sought = {*network.variables, *(v for s in network.satellites for v in s.variables)}
    if not any(name in ds for name in sought):
        raise DataError(
            f"the network sees {', '.join(sorted(sought))}, but the store holds "
            f"{', '.join(map(str, ds.data_vars))}: nothing to observe"
        )

    grid = Grid.from_coordinates(ds["latitude"].values, ds["longitude"].values)
    table = observe_stations(ds, network, grid, statistics, seed)
    swath = observe_swath(ds, network, grid, statistics, seed)

    return table, swath


def observe_stations(
    ds: xr.Dataset, network: Network, grid: Grid, statistics: xr.Dataset, seed: int
) -> pd.DataFrame:
    r"""The stations' part of :func:`observe`, of a canonical dataset.

    A station is at sea, and sees the sea surface, where the grid point it is nearest to has
    `land_sea_mask` below one half; the surrounding points on land take no part in the
    interpolation. Its elevation is that of the store's own ground, on which it stands, if the
    store has orography: the height of the real place is another planet's.
    """

    places = network.stations
    latitude, longitude = places["latitude"].to_numpy(), places["longitude"].to_numpy() % 360
    codes, box = places["station"].to_numpy(), boxes(grid, latitude, longitude)
    scalar = grid.interpolation(latitude, longitude)
    vector = grid.interpolation(latitude, longitude, vector=True)

    elevation = places["elevation"].to_numpy(dtype=np.float64)
    if "geopotential_at_surface" in ds:
        elevation = interpolate(ds["geopotential_at_surface"].values, scalar) / G
    sea = np.ones(len(places), dtype=bool)
    if "land_sea_mask" in ds:
        sea = ds["land_sea_mask"].values.ravel()[box] < 0.5

    variables = select(ds, network.variables)
    errors = {v.name: network.noise * float(deviation(statistics, v.name)) for v in variables}
    parts: list[pd.DataFrame] = []

    with progress(ds.sizes["time"], "stations", unit="hours") as bar:
        for k, time in enumerate(ds["time"].values):
            for v in variables:
                state = ds[v.name].isel(time=k).values
                wind = v.standard_name in ("eastward_wind", "northward_wind")
                truth = interpolate(state, vector if wind else scalar, v.missing is not None)
                seen = sea & np.isfinite(state.ravel()[box]) if v.missing else np.isfinite(truth)
                if not v.missing and not seen.all():
                    raise DataError(
                        f"{v.name!r} is NaN at {time} near {codes[~seen][0]!r}; "
                        "appa data check lists such hours"
                    )
                noise = stream(seed, time, STATION, v.name).standard_normal(len(places))
                value = truth + errors[v.name] * noise
                parts.append(
                    pd.DataFrame(
                        {
                            "time": time,
                            "latitude": latitude[seen],
                            "longitude": longitude[seen],
                            "variable": v.name,
                            "level": np.nan,
                            "value": value[seen],
                            "error": errors[v.name],
                            "station": codes[seen],
                            "elevation": elevation[seen],
                        }
                    )
                )
            bar.advance()

    if not parts:
        return pd.DataFrame({name: [] for name in COLUMNS})
    return pd.concat(parts, ignore_index=True)


def interpolate(
    state: NDArray, interpolation: tuple[NDArray, NDArray], defined_only: bool = False
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


def observe_swath(
    ds: xr.Dataset, network: Network, grid: Grid, statistics: xr.Dataset, seed: int
) -> xr.Dataset:
    r"""The satellites' part of :func:`observe`, of a canonical dataset.

    Where several satellites see a point in the same hour, it holds the mean of what they see
    weighted by precision, whose error is :math:`(\sum_s \sigma_s^{-2})^{-1/2}`.
    """

    times = ds["time"].values
    sees = [satellite.sees(grid, times) for satellite in network.satellites]
    variables = select(ds, [name for s in network.satellites for name in s.variables])
    swath = xr.Dataset(coords={name: ds[name] for name in ds.indexes})

    with progress(len(times) * len(variables), "satellites", unit="fields") as bar:
        for v in variables:
            levels = None if v.surface else ds["level"].values
            std = np.atleast_1d(deviation(statistics, v.name, levels))
            shape = (len(times), len(std), *grid.shape)
            values = np.full(shape, np.nan, dtype=np.float32)
            errors = np.full(shape, np.nan, dtype=np.float32)

            for k, time in enumerate(times):
                precision = np.zeros(grid.shape)  # in standard deviations
                for satellite, seen in zip(network.satellites, sees, strict=True):
                    if v.name in satellite.variables:
                        precision += seen[k] / satellite.noise**2
                truth = ds[v.name].isel(time=k).values.reshape(shape[1:])
                seen = precision > 0
                for j, level in enumerate([0] if levels is None else levels):
                    # Drawn for the whole grid, so that noise at a point doesn't depend on
                    # what else is in view.
                    random = stream(seed, time, SWATH, v.name, int(level))
                    noise = random.standard_normal(grid.shape, dtype=np.float32)
                    sigma = std[j] / np.sqrt(precision[seen])
                    values[k, j, seen] = truth[j, seen] + sigma * noise[seen]
                    errors[k, j, seen] = np.where(np.isfinite(truth[j, seen]), sigma, np.nan)
                bar.advance()

            dims = ds[v.name].dims
            swath[v.name] = (dims, values.reshape(ds[v.name].shape), dict(v.attrs))
            swath[v.name].attrs["ancillary_variables"] = f"{v.name}_error"
            swath[f"{v.name}_error"] = (dims, errors.reshape(ds[v.name].shape))
            swath[f"{v.name}_error"].attrs = {
                "long_name": f"{v.attrs['long_name']} error, one standard deviation",
                "standard_name": f"{v.standard_name} standard_error",
                "units": v.units,
            }

    return swath
