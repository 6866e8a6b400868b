r"""What observations there are, hour by hour, as far as costs depend on it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..data.clock import as_datetime64
from ..data.grids import Grid
from ..errors import DataError
from ..observations.collection import Observations, values_of
from ..observations.observables import ITSELF
from ..observations.operators import StateSpace, compile_observations
from ..observations.stations import boxes
from .model import Model

__all__ = ["coverage", "curved_hours", "seen_hours", "sizes"]


def seen_hours(observations: Any, start: Any, hours: int) -> np.ndarray:
    r"""Which hours have observations, as booleans with shape :math:`(L)`.

    Arguments:
        observations: Observations, whose `hours` are looked at; a share of the hours from 0 to 1,
            spread evenly; or :py:`None` for none.
        start: The first hour, needed with observations.
        hours: The number of hours :math:`L`.
    """
    if observations is None:
        return np.zeros(hours, bool)
    if isinstance(observations, int | float):
        if not 0 <= observations <= 1:
            raise DataError(f"found {observations} for the share of observed hours; give 0 to 1")
        places = np.arange(hours)
        return np.floor((places + 1) * observations) > np.floor(places * observations)
    if start is None:
        raise DataError("say when the period starts: --start, e.g. --start 2021-03-21T00")
    first = as_datetime64(start).astype("datetime64[h]")
    seen = np.unique(np.asarray(observations.hours).astype("datetime64[h]"))
    return np.isin(first + np.arange(hours), seen)


def curved_hours(model: Model, observations: Any, start: Any, hours: int) -> np.ndarray:
    r"""Which hours have observations of a curved observable, see :mod:`appa.observations.parts`, as
    booleans with shape :math:`(L)`. Where only a share of the hours is known, none has.

    The arguments are those of :func:`seen_hours`, and the model. Fields are of variables of the
    state, which are linear: of the others alone, points, operators are made.
    """
    none = np.zeros(hours, bool)
    if observations is None or isinstance(observations, int | float):
        return none
    points = observations.points
    others = points[~points["variable"].isin(list(ITSELF))]
    if not len(others):
        return none
    times = as_datetime64(start).astype("datetime64[h]") + np.arange(hours)
    operators = compile_observations(Observations(others), StateSpace.of(model), times)
    return np.array([op is not None and bool(op.curved.any()) for op in operators])


def coverage(observations: Any, grid: Grid) -> tuple[float, float]:
    r"""How much of a grid is observed, in percent of its area: in an hour with observations, on
    average, and in any of them. A place counts for the cell it is in."""
    share = (grid.area / grid.area.sum()).ravel()
    ever, by_hour = np.zeros(share.size, bool), []
    points, fields = observations.points, observations.gridded
    hours = points["hour"].to_numpy("datetime64[ns]")
    where = boxes(grid, points["latitude"], points["longitude"]) if len(points) else hours
    for hour in observations.hours:
        seen = np.zeros(share.size, bool)
        seen[where[hours == hour].astype(int)] = True
        if fields is not None and hour in fields["time"].values:
            now = [v.sel(time=hour).notnull() for v in values_of(fields)]
            now = [v.any("level") if "level" in v.dims else v for v in now]
            row, column = np.nonzero(np.any([v.values for v in now], axis=0))
            places = fields["latitude"].values[row], fields["longitude"].values[column]
            seen[boxes(grid, *places)] = True
        ever |= seen
        by_hour.append(share[seen].sum())
    return 100 * float(np.mean(by_hour or [0])), 100 * float(share[ever].sum())


def sizes(observations: Any, start: Any, hours: int) -> list[int]:
    r"""The number of observations of each hour that has any; of a share of hours, unknown, none."""
    if isinstance(observations, int | float):
        return [0] * int(seen_hours(observations, start, hours).sum())
    inside = observations.between(start, hours)
    found = {hour: 0 for hour in inside.hours}
    for hour, count in inside.points["hour"].value_counts().items():
        found[np.datetime64(hour, "ns")] += int(count)
    for values in [] if inside.gridded is None else values_of(inside.gridded):
        rest = [dim for dim in values.dims if dim != "time"]
        counts = values.notnull().sum(rest)
        for hour, count in zip(values["time"].values, counts.values, strict=True):
            found[np.datetime64(hour, "ns")] += int(count)
    return list(found.values())
