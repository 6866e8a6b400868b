r"""Observations made of a known atmosphere.

A network observes a store: each value is the truth at its place plus Gaussian noise,

.. math:: y = \mathcal{A}(x) + \sigma \, \varepsilon, \qquad \varepsilon \sim \mathcal{N}(0, 1),
    \qquad \sigma = \eta \, s

with :math:`s` the standard deviation of the variable (and level) over the training period and
:math:`\eta` the network's noise. :math:`\mathcal{A}` interpolates bilinearly to a station and
selects the grid points in a swath. The noise is really added, and :math:`\sigma` is recorded as
the error, in the variable's unit. It is not clipped: a dry gauge may read a little below zero.
A derived observable is computed from the truth at its place, and has a :math:`\sigma` of its own.

Each hour, variable and level has noise of its own, derived from the seed, and in it each grid point
by its place and each station by its code. An observation is the same whichever other hours,
variables or stations are observed with it, and in whatever order.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray
from scipy.special import ndtri

from ..data.variables import STATIC, VARIABLES
from ..errors import DataError
from ..progress import progress
from .networks import Network, Satellite
from .observables import Observable
from .stations import boxes, share_of
from .truth import Places, available, evaluate, inputs, interpolate, lookup

if TYPE_CHECKING:
    from ..data.grids import Grid

__all__ = ["COLUMNS", "hold_out", "interpolate", "observe"]

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


def stream(
    seed: int, time: np.datetime64, kind: int, variable: str, level: int = 0
) -> np.random.SeedSequence:
    r"""What the noise of one variable and level in one hour is derived from."""
    hour = int(time.astype("datetime64[h]").astype(np.int64)) % 2**64  # before 1970 too
    if variable in VARIABLES:
        number = list(VARIABLES).index(variable)
    else:
        number = len(VARIABLES) + int(2**32 * share_of(variable))
    key = (kind, number, level)
    return np.random.SeedSequence([seed, hour], spawn_key=key)


def station_noise(source: np.random.SeedSequence, codes: NDArray) -> NDArray:
    r"""Standard normal noise of stations, each by its code alone, with shape :math:`(n)`.

    A generator a station would be slow. The hash of its code and the stream's two words go through
    the finalizer of SplitMix64, twice, to a uniform number and the normal quantile of it.

    Arguments:
        source: The stream.
        codes: Hashes of the stations' codes, whole numbers with shape :math:`(n)`.
    """
    x = codes.astype(np.uint64)
    for word in source.generate_state(2, np.uint64):
        x = x + word  # modulo 2⁶⁴
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return ndtri(((x >> np.uint64(11)).astype(np.float64) + 0.5) / 2**53)


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


def error(
    statistics: xr.Dataset, whose: Network | Satellite, name: str, levels: NDArray | None = None
) -> NDArray:
    r"""One standard deviation of the noise, on the levels given if there are any."""
    if name in whose.errors:
        return np.full(1 if levels is None else len(levels), whose.errors[name], dtype=np.float64)
    return np.atleast_1d(whose.noise * deviation(statistics, name, levels))


def select(ds: xr.Dataset, variables: Sequence[str]) -> list[Observable]:
    r"""Those of a network's observables that can be computed from the store."""
    return [lookup(name) for name in dict.fromkeys(variables) if available(ds, name)]


def read_hour(ds: xr.Dataset, k: int, names: Sequence[str]) -> xr.Dataset:
    r"""An hour of some variables in memory, and the fields without time: each is read once."""
    static = [name for name in STATIC if name in ds]
    return ds[[*dict.fromkeys(names), *static]].isel(time=[k]).load()


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
    from ..data.statistics import compute

    if not isinstance(seed, Integral) or seed < 0:
        raise DataError(f"found the seed {seed!r}; give a whole number of 0 or more")
    ds = canonicalize(ds)
    if "member" in ds.dims:
        raise DataError(
            f"found {ds.sizes['member']} members, but there is one truth; select a member first, "
            "for example ds.isel(member=0)"
        )
    sought = {*network.variables, *(v for s in network.satellites for v in s.variables)}
    if not any(available(ds, name) for name in sought):
        raise DataError(
            f"the network sees {', '.join(sorted(sought))}, but the store holds "
            f"{', '.join(map(str, ds.data_vars))}: nothing to observe"
        )

    if statistics is None:
        statistics = compute(ds)

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

    listed = network.stations
    latitude, longitude = listed["latitude"].to_numpy(), listed["longitude"].to_numpy() % 360
    codes, box = listed["station"].to_numpy(), boxes(grid, latitude, longitude)
    places = Places.at(ds, grid, latitude, longitude)

    elevation = places.ground
    if elevation is None:
        elevation = listed["elevation"].to_numpy(dtype=np.float64)
    sea = np.ones(len(listed), dtype=bool)
    if "land_sea_mask" in ds:
        sea = ds["land_sea_mask"].values.ravel()[box] < 0.5

    observables = select(ds, network.variables)
    errors = {o.name: float(error(statistics, network, o.name)[0]) for o in observables}
    hashes = np.array([int(2**53 * share_of("noise", c)) for c in codes], dtype=np.uint64)
    parts: list[pd.DataFrame] = []

    with progress(ds.sizes["time"], "stations", unit="hours") as bar:
        for k, time in enumerate(ds["time"].values):
            hour = read_hour(ds, k, [name for o in observables for name in inputs(o.name)])
            for o in observables:
                value = evaluate(hour, o.name, 0, places)
                seen = np.isfinite(value)
                if any(VARIABLES[n].missing for n in o.inputs if n in VARIABLES):
                    if o.itself:
                        seen &= np.isfinite(hour[o.name].values.ravel()[box])
                    seen &= sea
                elif not seen.all():
                    raise DataError(
                        f"{o.name!r} is NaN at {time} near {codes[~seen][0]!r}; "
                        "appa data check lists such hours"
                    )
                noise = station_noise(stream(seed, time, STATION, o.name), hashes)
                value = value + errors[o.name] * noise
                if o.period is not None:
                    value %= o.period
                parts.append(
                    pd.DataFrame(
                        {
                            "time": time,
                            "latitude": latitude[seen],
                            "longitude": longitude[seen],
                            "variable": o.name,
                            "level": np.nan,
                            "value": value[seen],
                            "error": errors[o.name],
                            "station": codes[seen],
                            "elevation": elevation[seen],
                        }
                    )
                )
            bar.advance()

    if not parts:
        return pd.DataFrame({name: [] for name in COLUMNS})
    return pd.concat(parts, ignore_index=True)


def observe_swath(
    ds: xr.Dataset, network: Network, grid: Grid, statistics: xr.Dataset, seed: int
) -> xr.Dataset:
    r"""The satellites' part of :func:`observe`, of a canonical dataset.

    Where several satellites see a point in the same hour, it holds the mean of what they see
    weighted by precision, whose error is :math:`(\sum_s \sigma_s^{-2})^{-1/2}`.
    """

    times = ds["time"].values
    sees = [satellite.sees(grid, times) for satellite in network.satellites]
    observables = select(ds, [name for s in network.satellites for name in s.variables])
    swath = xr.Dataset(coords={name: ds[name].variable for name in ds.indexes})
    places = Places.of(ds, grid)

    with progress(len(times) * len(observables), "satellites", unit="fields") as bar:
        for o in observables:
            levels = ds["level"].values if o.levels == "level" else None
            watching = [
                (seen, error(statistics, satellite, o.name, levels))
                for satellite, seen in zip(network.satellites, sees, strict=True)
                if o.name in satellite.variables
            ]
            shape = (len(times), 1 if levels is None else len(levels), *grid.shape)
            values = np.full(shape, np.nan, dtype=np.float32)
            errors = np.full(shape, np.nan, dtype=np.float32)

            for k, time in enumerate(times):
                hour = read_hour(ds, k, inputs(o.name))
                fields = hour[o.name].values.reshape(shape[1:]) if o.itself else []
                for j, level in enumerate([None] if levels is None else levels):
                    precision = np.zeros(grid.shape)
                    for seen, sigma in watching:
                        precision += seen[k] / sigma[j] ** 2
                    seen = precision > 0
                    if not seen.any():
                        continue
                    if o.itself:
                        truth = fields[j][seen].astype(np.float64)
                    else:
                        truth = evaluate(hour, o.name, 0, places, level).reshape(grid.shape)[seen]
                    # Drawn for the whole grid, so that noise at a point doesn't depend on
                    # what else is in view.
                    source = stream(seed, time, SWATH, o.name, int(level or 0))
                    random = np.random.default_rng(source)
                    noise = random.standard_normal(grid.shape, dtype=np.float32)
                    sigma = 1 / np.sqrt(precision[seen])
                    value = truth + sigma * noise[seen]
                    values[k, j, seen] = value if o.period is None else value % o.period
                    errors[k, j, seen] = np.where(np.isfinite(truth), sigma, np.nan)
                bar.advance()

            dims = ("time", "level", "latitude", "longitude")
            if levels is None:
                dims, values, errors = (dims[0], *dims[2:]), values[:, 0], errors[:, 0]
            attrs = {"long_name": o.long_name, "units": o.units}
            if o.itself:
                attrs = dict(VARIABLES[o.name].attrs)
            swath[o.name] = (dims, values, {**attrs, "ancillary_variables": f"{o.name}_error"})
            swath[f"{o.name}_error"] = (
                dims,
                errors,
                {
                    "long_name": f"{o.long_name} error, one standard deviation",
                    **(
                        {"standard_name": f"{attrs['standard_name']} standard_error"}
                        if o.itself
                        else {}
                    ),
                    "units": o.units,
                },
            )

    return swath


def check_share(share: float) -> None:
    r"""Raises an error where no such share of the stations can be held out."""
    if not isinstance(share, Real) or not 0 < share < 1:
        raise DataError(f"cannot hold out {share!r} of the stations; give above 0 and below 1")


def hold_out(table: pd.DataFrame, share: float, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    r"""Sets a share of the stations aside, for verification.

    A station is held out where a hash of the seed and its code falls below the share: its fate
    does not hang on which others there are, on hours or on variables, and those held out at a
    share are among those held out at a larger one. Rows without a station are kept.

    Arguments:
        table: Point observations with a column `station`.
        share: The share of stations to hold out, above 0 and below 1.
        seed: Selects the stations.

    Returns:
        The observations kept and those held out, which have no station in common.
    """

    check_share(share)
    if "station" not in table:
        raise DataError("the table has no column station, by which to hold observations out")
    codes = table["station"].fillna("").astype(str)
    held = {code: share_of("hold-out", seed, code) < share for code in codes.unique() if code}
    aside = sum(held.values())
    if not 0 < aside < len(held):
        raise DataError(
            f"of {len(held)} stations {aside} would be held out at a share of {share:g} with the "
            f"seed {seed}; give another share or seed, or more stations"
        )
    mask = np.array([held.get(code, False) for code in codes], dtype=bool)
    kept, verifying = (table.loc[m].reset_index(drop=True) for m in (~mask, mask))
    return kept, verifying
