r"""Networks: where and when observations are made.

A network is a list of stations, which see surface variables at their own place every hour, and
satellites, which see upper-air variables at the grid points in their swath. Noise is given as a
share of each variable's standard deviation, as in the paper: 1 % for stations, 10 % for
satellites. Either may also see derived observables, whose errors are given in their own unit.

The two networks that have a name share the reference orbiter, at 800 km and 75° with 5° of view,
which sees about 5 % of the area an hour at any resolution. They differ in their stations:

* `paper-density` has the paper's density, stations at 1 % of the grid points;
* `paper-stations` has the real list, every packaged place known to report. The paper's grid has
  100 points a station; a 48×96 grid has fewer points than there are stations, which stand in 28 %
  of its boxes. What is seen there says little of what the paper's network sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from ..data.variables import ATMOSPHERIC, SURFACE, VARIABLES
from ..errors import DataError, nearest
from .orbits import KILOMETRES, Orbit, Orbiter, footprints, swath, view
from .stations import boxes, places, reporting, stations

if TYPE_CHECKING:
    from ..data.grids import Grid

__all__ = [
    "NETWORKS",
    "SATELLITE_ERROR",
    "STATION_ERROR",
    "Network",
    "Satellite",
    "boxes",
    "constellation",
    "footprints",
    "named_network",
    "places",
    "stations",
    "view",
]

STATION_ERROR, SATELLITE_ERROR = 0.01, 0.10  # the paper's, in standard deviations


@dataclass(frozen=True)
class Satellite:
    r"""A satellite and what it sees.

    Arguments:
        orbit: Its orbit: circular, or real by :class:`~appa.observations.elements.Elements`.
        radius: Its great-circle radius of view, in degrees; see :func:`view` for kilometres.
        variables: The variables it sees at all levels, or other observables.
        noise: One standard deviation of its noise, as a share of each variable's.
        footprint: The size of what it sees at once, in kilometres. Of grid points closer than
            that one is seen, as :func:`footprints` has it; 0 for all of them.
        errors: One standard deviation of the noise in the observable's unit, instead of a share
            of its own, by name. Derived observables need one.
        name: What it is called.

    Example:
        >>> orbit = find_elements("weather.tle", "METOP-B")
        >>> Satellite(orbit, radius=view(2200), footprint=50, name="AMSU-A on METOP-B")
    """

    orbit: Orbiter = field(default_factory=Orbit)
    radius: float = 5.0
    variables: tuple[str, ...] = ATMOSPHERIC
    noise: float = SATELLITE_ERROR
    footprint: float = 0.0
    errors: Mapping[str, float] = field(default_factory=dict, hash=False)
    name: str = ""

    def __post_init__(self) -> None:
        check_noise(self.noise, "a satellite's")
        check_variables(self.variables, self.errors)
        horizon = self.orbit.horizon
        if not 0 < self.radius <= horizon:
            raise DataError(
                f"found a radius of view of {self.radius:g}°; at an altitude of "
                f"{self.orbit.altitude / 1e3:.0f} km the horizon is {horizon:.1f}° away: give more "
                "than 0 and at most that, for example radius=5"
            )
        if not 0 <= self.footprint < math.inf:
            raise DataError(
                f"found a footprint of {self.footprint:g} km; give 0 or more, for example 50"
            )

    @property
    def width(self) -> float:
        r"""The width of its swath on the ground, in kilometres."""
        return 2 * KILOMETRES * self.radius

    def sees(self, grid: Grid, times: ArrayLike) -> NDArray:
        r"""Which grid points are seen in each hour, with shape :math:`(T, H, W)`."""
        seen = swath(self.orbit, grid.latitude[:, None], grid.longitude, times, self.radius)
        return seen & footprints(grid, self.footprint) if self.footprint else seen


def constellation(number: int, satellite: Satellite | None = None) -> tuple[Satellite, ...]:
    r"""Copies of a satellite on orbits spaced evenly.

    Nodes are :math:`180° / n` apart: northbound and southbound passes of all come at evenly spaced
    local times, as those of the early-morning, mid-morning and afternoon orbits of real ones. In 12
    hours 1, 2 and 3 copies of the reference orbiter see 51, 81 and 93 % of the area.

    Arguments:
        number: How many, 0 or more.
        satellite: The satellite, by default the reference orbiter.
    """

    if number < 0:
        raise DataError(f"found a constellation of {number} satellites; give 0 or more")
    satellite = satellite or Satellite()
    if not hasattr(satellite.orbit, "node"):
        raise DataError(f"{type(satellite.orbit).__name__} has no node to turn; give an Orbit")
    copies = []
    for k in range(number):
        orbit = replace(satellite.orbit, node=satellite.orbit.node + 180 * k / number)  # pyright: ignore
        copies.append(replace(satellite, orbit=orbit))
    return tuple(copies)


@dataclass(frozen=True)
class Network:
    r"""Stations and satellites.

    Arguments:
        name: What it is called.
        stations: The places: `station` (a unique code), `latitude`, `longitude`, `elevation` in
            metres.
        satellites: The satellites.
        variables: The variables each station sees, or other observables; sea surface temperature
            only at sea.
        noise: One standard deviation of a station's noise, as a share of each variable's.
        errors: One standard deviation of the noise in the observable's unit, instead of a share
            of its own, by name. Derived observables need one.
    """

    name: str
    stations: pd.DataFrame
    satellites: tuple[Satellite, ...] = ()
    variables: tuple[str, ...] = SURFACE
    noise: float = STATION_ERROR
    errors: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_noise(self.noise, "a station's")
        check_variables(self.variables, self.errors)
        for name in self.variables:
            if observed_levels(name) == "level":
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
        so_far, rows = np.zeros(grid.shape, dtype=bool), []
        for time in times:
            seen = np.zeros(grid.shape, dtype=bool)
            for satellite in self.satellites:
                seen |= satellite.sees(grid, time)[0]
            so_far |= seen
            rows.append(((seen * share).sum(), (so_far * share).sum()))
        occupied = np.unique(boxes(grid, self.stations["latitude"], self.stations["longitude"]))
        satellites, since_start = 100 * np.array(rows).reshape(-1, 2).T

        return pd.DataFrame(
            {
                "stations": 100 * len(occupied) / share.size,
                "satellites": satellites,
                "since_start": since_start,
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


def check_variables(names: Iterable[str], errors: Mapping[str, float]) -> None:
    r"""Raises an error that names the nearest observable where one is unknown, and where one has
    no error."""
    if isinstance(names, str):
        raise DataError(f"found {names!r} for variables; give a tuple, for example ({names!r},)")
    for name in names:
        observed_levels(name)
        if name not in VARIABLES and name not in errors:
            raise DataError(
                f"{name!r} is derived and has no standard deviation to take a share of; give its "
                f"error in its own unit, for example errors={{{name!r}: 1.0}}"
            )
    for name, error in errors.items():
        if name not in names:
            raise DataError(
                f"found an error of {name!r}, which is not seen: {', '.join(names)} are"
            )
        if not isinstance(error, Real) or not 0 < error < math.inf:
            raise DataError(
                f"found {error!r} for the error of {name!r}; give one standard deviation above 0"
            )


def observed_levels(name: str) -> str:
    r"""Whether an observable is of the `surface`, a `level` or a `column`."""
    if name in VARIABLES:
        return "surface" if VARIABLES[name].surface else "level"
    from .observables import find

    return find(name).levels


def paper_density(
    grid: Grid, number: int | None, seed: int, listed: pd.DataFrame | None = None
) -> Network:
    r"""The paper's network at its own density: stations at 1 % of grid points, one orbiter."""
    chosen = stations(grid, number, seed=seed, listed=listed)
    return Network("paper-density", chosen, (Satellite(),))


def paper_stations(
    grid: Grid, number: int | None, seed: int, listed: pd.DataFrame | None = None
) -> Network:
    r"""The paper's network at its own places: every one that reports, one orbiter."""
    if number is None:
        chosen = reporting(listed)
    else:
        chosen = stations(grid, number, seed=seed, listed=listed)
    return Network("paper-stations", chosen, (Satellite(),))


NETWORKS: dict[str, Callable[[Grid, int | None, int, pd.DataFrame | None], Network]] = {
    "paper-density": paper_density,
    "paper-stations": paper_stations,
}


def named_network(
    grid: Grid,
    name: str = "paper-density",
    *,
    stations: int | None = None,
    satellites: Sequence[Satellite] | None = None,
    station_error: float | None = None,
    satellite_error: float | None = None,
    seed: int = 0,
    listed: pd.DataFrame | None = None,
) -> Network:
    r"""A network by name.

    Arguments:
        grid: The grid to be observed.
        name: One of :data:`NETWORKS`.
        stations: How many stations instead of the network's own number, at most one a box.
        satellites: The satellites instead of the network's own, each with its noise.
        station_error: The stations' noise instead of the network's own.
        satellite_error: The noise of the network's own satellites instead of theirs.
        seed: Selects the stations.
        listed: The list of places to take stations from instead of the packaged one, for example
            of :func:`~appa.observations.stations.read_stations`.

    Example:
        >>> network = named_network(Grid("gaussian", 48, 96))
        >>> len(network.stations)
        46
    """

    if name not in NETWORKS:
        raise DataError(f"unknown network {name!r}{nearest(name, NETWORKS)}")
    network = NETWORKS[name](grid, stations, seed, listed)
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
