r"""A network from words: a name, a list of stations, satellites in a file, what each sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..data.variables import VARIABLES
from ..errors import DataError
from .elements import find_elements
from .networks import Network, Satellite, constellation, named_network, view
from .stations import read_stations
from .units import recognise

if TYPE_CHECKING:
    from ..data.grids import Grid

__all__ = ["build_network", "parse_variables"]


def parse_variables(text: str | None) -> tuple[tuple[str, ...], dict[str, float]] | None:
    r"""Observables from `NAME,NAME=ERROR,…`, by whatever name, and the errors given, in each one's
    unit."""
    if text is None:
        return None
    names, errors = [], {}
    for part in filter(None, text.split(",")):
        name, equals, error = (p.strip() for p in part.partition("="))
        known = recognise(name)
        if known is not None and known[1] is None:  # networks see all levels
            name = known[0]
            if not equals and name not in VARIABLES:
                raise DataError(
                    f"{name!r} is derived and has no standard deviation to take a share of; give "
                    f"its error in its own unit, for example {name}=1.0"
                )
        names.append(name)
        if equals:
            try:
                errors[name] = float(error)
            except ValueError:
                raise DataError(
                    f"found {part!r}; give an error in the unit, e.g. 10m_wind_speed=0.5"
                ) from None
    return tuple(dict.fromkeys(names)), errors


def build_network(
    grid: Grid,
    times: np.ndarray,
    name: str = "paper-density",
    *,
    stations: int | None = None,
    stations_file: str | Path | None = None,
    active: str | None = None,
    satellites: Sequence[str] = (),
    copies: int | None = None,
    width: float | None = None,
    footprint: float | None = None,
    shift_epoch: bool = False,
    station_error: float | None = None,
    satellite_error: float | None = None,
    station_variables: str | None = None,
    satellite_variables: str | None = None,
    seed: int = 0,
) -> tuple[Network, pd.DataFrame | None]:
    r"""A named network, with what is to be different about it.

    Arguments:
        grid: The grid to be observed.
        times: The hours to be observed.
        name: One of :data:`~appa.observations.networks.NETWORKS`.
        stations: How many stations, at most one a box.
        stations_file: NOAA's `isd-history.csv`, to take stations from.
        active: The day on which they must have reported, or `any`; by default these hours.
        satellites: Real satellites, each as `NAME@FILE` of two-line elements, instead of the
            network's own.
        copies: How many copies of the reference orbiter, beside real satellites if any.
        width: The width of their swaths in kilometres.
        footprint: The size of their footprints in kilometres.
        shift_epoch: Whether real orbits are moved to these hours from whenever they were.
        station_error: The stations' noise, in standard deviations.
        satellite_error: The satellites' noise, in standard deviations.
        station_variables: What stations see, see :func:`parse_variables`.
        satellite_variables: What satellites see.
        seed: Selects the stations.

    Returns:
        The network, and the rows of the file left out, by reason, if there is a file.
    """

    listed = excluded = None
    if stations_file is not None:
        try:
            day = None if active in (None, "any") else np.datetime64(str(active), "D")
        except ValueError:
            raise DataError(f"found {active!r}; give a day, e.g. 2021-03-21, or any") from None
        period = (times.min(), times.max()) if day is None else (day, day)
        listed, excluded = read_stations(stations_file, None if active == "any" else period)
    elif active is not None:
        raise DataError(f"found active={active!r} without a list of stations to look it up in")

    changes: dict[str, Any] = {}
    if width is not None:
        changes["radius"] = view(width)
    if footprint is not None:
        changes["footprint"] = footprint
    if satellite_error is not None:
        changes["noise"] = satellite_error
    if parsed := parse_variables(satellite_variables):
        changes["variables"], changes["errors"] = parsed

    network = named_network(
        grid, name, stations=stations, station_error=station_error, seed=seed, listed=listed
    )
    own = network.satellites
    if satellites or copies is not None:
        own = constellation(copies or 0)
    flying = [replace(satellite, **changes) for satellite in own]
    for text in satellites:
        flying.append(_satellite(text, times, shift_epoch, changes))
    network = replace(network, satellites=tuple(flying))
    if parsed := parse_variables(station_variables):
        network = replace(network, variables=parsed[0], errors=parsed[1])
    return network, excluded


def _satellite(text: str, times: np.ndarray, shift: bool, changes: Mapping[str, Any]) -> Satellite:
    name, _, path = text.rpartition("@")
    if not name or not path:
        raise DataError(f"found the satellite {text!r}; give NAME@FILE, e.g. METOP-B@weather.tle")
    orbit = find_elements(path, name, near=times)
    if shift:
        orbit = orbit.shifted(times.min() + (times.max() - times.min()) / 2)
    orbit.track([times.min(), times.max()])  # elements too old are found before the work begins
    return Satellite(orbit, name=orbit.name, **changes)
