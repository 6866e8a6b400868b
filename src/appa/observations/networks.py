r"""Networks: where and when observations are made.

A network is a list of stations, which see surface variables at their own place every hour, and
satellites, which see upper-air variables at the grid points in their swath. Noise is given as a
share of each variable's standard deviation, as in the paper: 1 % for stations, 10 % for
satellites. The satellite's orbit and view are the reference orbiter's: 800 km, 75°, 5°.

Stations are real places: airports, which is where much of the world's weather is reported from.
They crowd together where people do and are missing from the open ocean, as real stations are.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from ..data.variables import ATMOSPHERIC, SURFACE, variable
from ..errors import DataError, nearest
from .orbits import Orbit, swath

if TYPE_CHECKING:
    from ..data.grids import Grid

__all__ = [
    "NETWORKS",
    "SATELLITE_ERROR",
    "STATION_ERROR",
    "Network",
    "Satellite",
    "boxes",
    "named_network",
    "places",
    "stations",
]

FOOT = 0.3048  # m
PAPER_DENSITY = 0.01  # stations per grid point
STATION_ERROR, SATELLITE_ERROR = 0.01, 0.10  # the paper's, in standard deviations


@dataclass(frozen=True)
class Satellite:
    r"""A satellite and what it sees.

    Arguments:
        orbit: Its orbit.
        radius: Its great-circle radius of view, in degrees.
        variables: The variables it sees at all levels.
        noise: One standard deviation of its noise, as a share of each variable's.
    """

    orbit: Orbit = field(default_factory=Orbit)
    radius: float = 5.0
    variables: tuple[str, ...] = ATMOSPHERIC
    noise: float = SATELLITE_ERROR

    def __post_init__(self) -> None:
        check_noise(self.noise, "a satellite's")
        check_variables(self.variables)
        horizon = self.orbit.horizon
        if not 0 < self.radius <= horizon:
            raise DataError(
                f"found a radius of view of {self.radius:g}°; at an altitude of "
                f"{self.orbit.altitude / 1e3:g} km the horizon is {horizon:.1f}° away: give more "
                "than 0 and at most that, for example radius=5"
            )

    def sees(self, grid: Grid, times: ArrayLike) -> NDArray:
        r"""Which grid points are in the swath of each hour, with shape :math:`(T, H, W)`."""
        return swath(self.orbit, grid.latitude[:, None], grid.longitude, times, self.radius)


@dataclass(frozen=True)
class Network:
    r"""Stations and satellites.

    Arguments:
        name: What it is called.
        stations: The places: `station` (a unique code), `latitude`, `longitude`, `elevation` in
            metres.
        satellites: The satellites.
        variables: The variables each station sees; sea surface temperature only at sea.
        noise: One standard deviation of a station's noise, as a share of each variable's.
    """

    name: str
    stations: pd.DataFrame
    satellites: tuple[Satellite, ...] = ()
    variables: tuple[str, ...] = SURFACE
    noise: float = STATION_ERROR

    def __post_init__(self) -> None:
        check_noise(self.noise, "a station's")
        check_variables(self.variables)
        for name in self.variables:
            if not variable(name).surface:
                raise DataError(
                    f"stations see the surface, but {name!r} has levels; give it to a satellite, "
                    f"for example Satellite(variables=({name!r},))"
                )
        columns = ["station", "latitude", "longitude", "elevation"]
        missing = [c for c in columns if c not in self.stations]
        if missing:
            raise DataError(f"stations lack {', '.join(missing)}; they need {', '.join(columns)}")
        codes, counts = np.unique(self.stations["station"].to_numpy(str), return_counts=True)
        if (counts > 1).any():
            code = str(codes[counts > 1][0])
            raise DataError(f"station {code!r} occurs twice; give each its own code")
        latitude = self.stations["latitude"].to_numpy(float)
        longitude = self.stations["longitude"].to_numpy(float)
        away = np.flatnonzero(~(np.abs(latitude) <= 90) | ~np.isfinite(longitude))
        if len(away):
            row = self.stations.iloc[away[0]]
            raise DataError(
                f"station {row['station']!r} is at latitude {row['latitude']}, longitude "
                f"{row['longitude']}; give degrees north within ±90 and degrees east"
            )

    def coverage(self, grid: Grid, times: ArrayLike) -> pd.DataFrame:
        r"""How much of the grid is observed, in percent.

        Returns:
            By hour: `stations`, the share of the grid's points whose box holds a station;
            `satellites`, the share of the area in a swath during the hour; `since_start`, the
            share of the area in a swath in any hour so far.
        """

        times = np.atleast_1d(np.asarray(times, dtype="datetime64[ns]"))
        share = grid.area / grid.area.sum()
        seen = np.zeros((len(times), *grid.shape), dtype=bool)
        for satellite in self.satellites:
            seen |= satellite.sees(grid, times)
        so_far = np.logical_or.accumulate(seen, axis=0)
        occupied = np.unique(boxes(grid, self.stations["latitude"], self.stations["longitude"]))

        return pd.DataFrame(
            {
                "stations": 100 * len(occupied) / share.size,
                "satellites": 100 * (seen * share).sum(axis=(1, 2)),
                "since_start": 100 * (so_far * share).sum(axis=(1, 2)),
            },
            index=pd.Index(times, name="time"),
        )


def check_noise(noise: float, whose: str) -> None:
    r"""Raises an error where noise is no share of a standard deviation."""
    if not isinstance(noise, Real) or not 0 < noise < math.inf:
        raise DataError(
            f"found {noise!r} for {whose} noise; give a share of each variable's standard "
            "deviation above 0, for example noise=0.01"
        )


def check_variables(names: Iterable[str]) -> None:
    r"""Raises an error that names the nearest variable where one is unknown."""
    if isinstance(names, str):
        raise DataError(f"found {names!r} for variables; give a tuple, for example ({names!r},)")
    for name in names:
        variable(name)


def boxes(grid: Grid, latitude: ArrayLike, longitude: ArrayLike) -> NDArray:
    r"""The grid point each place is nearest to in latitude and in longitude.

    Returns:
        The flat indices into :math:`H \cdot W`, with shape :math:`(N)`.
    """

    latitude, longitude = np.asarray(latitude, float), np.asarray(longitude, float)
    south = -grid.latitude  # ascending
    row = np.searchsorted((south[1:] + south[:-1]) / 2, -latitude)
    width = grid.shape[1]
    column = np.rint((longitude - grid.longitude[0]) * width / 360).astype(int) % width

    return row * width + column


@cache
def places() -> pd.DataFrame:
    r"""The packaged list of airports.

    Returns:
        `station` (ICAO code or local identifier), `latitude`, `longitude`, `elevation` in metres
        and `major` (whether it has an IATA code, hence traffic and most often a weather report),
        some 28,000 rows. The list is :mod:`airportsdata`'s, MIT licensed.
    """

    import airportsdata

    rows = [
        (code, a["lat"], a["lon"], FOOT * a["elevation"], bool(a["iata"]))
        for code, a in airportsdata.load("ICAO").items()
    ]
    return pd.DataFrame(rows, columns=["station", "latitude", "longitude", "elevation", "major"])


def stations(grid: Grid, number: int | None = None, *, seed: int = 0) -> pd.DataFrame:
    r"""Chooses stations among real places, at most one a grid box.

    Places are ranked by a hash of the seed and their code, those with an IATA code first, and
    taken in that order where their box is still free. Regions keep the density they have in the
    list, and an update of the list leaves the rest of the choice as it was.

    Arguments:
        grid: The grid.
        number: How many, or :py:`None` for 1 % of the grid's points.
        seed: Selects the choice.

    Returns:
        `station`, `latitude`, `longitude`, `elevation`, sorted by code.
    """

    if number is None:
        number = round(PAPER_DENSITY * grid.shape[0] * grid.shape[1])
    if number < 0:
        raise DataError(f"cannot choose {number} stations; give a number of 0 or more")

    listed = places()
    rank = [
        hashlib.blake2b(f"{seed}:{code}".encode(), digest_size=8).digest()
        for code in listed["station"]
    ]
    ranked = listed.assign(
        rank=rank, box=boxes(grid, listed["latitude"], listed["longitude"])
    ).sort_values(["major", "rank"], ascending=[False, True])
    ranked = ranked.drop_duplicates("box")
    if number > len(ranked):
        raise DataError(
            f"{number} stations asked for, but the packaged places fill only {len(ranked)} boxes "
            f"of a {grid.shape[0]}×{grid.shape[1]} grid; ask for at most {len(ranked)}"
        )

    chosen = ranked.head(number).sort_values("station", ignore_index=True)
    return chosen.drop(columns=["major", "rank", "box"])


def paper_density(grid: Grid, number: int | None, seed: int) -> Network:
    r"""The paper's network at its own density: stations at 1 % of grid points, one orbiter."""
    return Network("paper-density", stations(grid, number, seed=seed), (Satellite(),))


NETWORKS: dict[str, Callable[[Grid, int | None, int], Network]] = {"paper-density": paper_density}


def named_network(
    grid: Grid,
    name: str = "paper-density",
    *,
    stations: int | None = None,
    satellites: Sequence[Satellite] | None = None,
    station_error: float | None = None,
    satellite_error: float | None = None,
    seed: int = 0,
) -> Network:
    r"""A network by name.

    Arguments:
        grid: The grid to be observed.
        name: One of :data:`NETWORKS`.
        stations: How many stations instead of the network's own number.
        satellites: The satellites instead of the network's own, each with its noise.
        station_error: The stations' noise instead of the network's own.
        satellite_error: The noise of the network's own satellites instead of theirs.
        seed: Selects the stations.

    Example:
        >>> network = named_network(Grid("gaussian", 48, 96))
        >>> len(network.stations)
        46
    """

    if name not in NETWORKS:
        raise DataError(f"unknown network {name!r}{nearest(name, NETWORKS)}")
    network = NETWORKS[name](grid, stations, seed)
    if station_error is not None:
        network = replace(network, noise=station_error)
    if satellites is not None and satellite_error is not None:
        raise DataError(
            f"found a satellite_error of {satellite_error!r} beside satellites, which have a noise "
            f"of their own; give it to them, for example Satellite(noise={satellite_error!r})"
        )
    if satellite_error is not None:
        satellites = [replace(s, noise=satellite_error) for s in network.satellites]
    if satellites is not None:
        network = replace(network, satellites=tuple(satellites))
    return network
