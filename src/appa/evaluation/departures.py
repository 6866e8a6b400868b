r"""Observations beside an ensemble that is known by its dataset alone, without the model.

Observables need the states' physical values only: whitened by the observation's error, a departure
does not depend on how states are standardized. So any means and deviations serve, and those of the
truth's first hour do; the variables and levels are the ensemble's own. What follows from the
departures is in :mod:`appa.evaluation.innovations`.

The observations' errors are taken for what they say. What a decoder cannot express is an error too,
where its model draws none: then O−A looks larger than expected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from ..data.grids import Grid
from ..data.states import Standardizer, undefined
from ..data.variables import LEVELS, VARIABLES
from ..errors import DataError
from ..progress import progress
from .innovations import hour_states, innovations, verification

if TYPE_CHECKING:
    from ..observations.collection import Observations
    from ..observations.operators import Operators, StateSpace

__all__ = ["Departures", "departures", "space_of"]


@dataclass
class Departures:
    r"""What observations say of an ensemble.

    Arguments:
        innovations, verification: Tables of observations that were seen, and held out.
        seen: The former themselves, of the ensemble's hours.
        about: Of which observations they are, in words.
    """

    innovations: pd.DataFrame | None = None
    verification: pd.DataFrame | None = None
    seen: Observations | None = None
    about: dict[str, str] = field(default_factory=dict)


def departures(
    ensemble: xr.Dataset,
    truth: xr.Dataset,
    observations: Any = None,
    held_out: Any = None,
    background: xr.Dataset | None = None,
    *,
    seen: bool = True,
) -> Departures:
    r"""Compares an ensemble with observations, an hour at a time.

    Arguments:
        ensemble: The ensemble, with dimensions `(member, time, ...)`.
        truth: The truth at its hours, for the ground and for scales of variables.
        observations, held_out: What :func:`appa.read_observations` takes: those the ensemble has
            seen, and those it has not.
        background: An ensemble of the same hours that has seen neither.
        seen: Whether the ensemble has seen the former: a forecast has not, and is a background.
    """
    if ensemble.sizes.get("member", 1) < 2:
        raise DataError(
            "innovations take 2 members or more, and the run has 1; leave the observations out"
        )
    space, found = space_of(ensemble, truth), Departures()
    times = ensemble["time"].values
    if observations is not None:
        used, operators = _compiled(observations, space, times)
        found.seen = used
        found.about["digest of the observations given"] = _digest(used, ensemble)
        found.about["observations given"] = _told(operators)
        prior = None if background is None else _states(background, space, times, "O−B")
        states = _states(ensemble, space, times, "O−A" if seen else "O−B")
        sides = (prior, states) if seen else (states, None)
        found.innovations = innovations(operators, *sides, by=("variable", "level"))
    if held_out is not None:
        _, operators = _compiled(held_out, space, times)
        found.about["observations held out"] = _told(operators)
        states = _states(ensemble, space, times, "held out")
        found.verification = verification(operators, states)
    return found


def space_of(ensemble: xr.Dataset, truth: xr.Dataset) -> StateSpace:
    r"""The states of an ensemble: its own variables and levels, on its grid."""
    from ..observations.operators import StateSpace

    names = [name for name in VARIABLES if name in ensemble and name in truth]
    if not names:
        raise DataError("the run has no variable that observations could be compared with")
    levels = [int(p) for p in ensemble["level"].values] if "level" in ensemble.dims else []
    hour = truth[names].isel(time=0)
    moments: dict[str, Any] = {}
    for name in names:
        values = hour[name] if not levels or "level" not in hour[name].dims else None
        values = hour[name].sel(level=levels) if values is None else values
        space = ("latitude", "longitude")
        std = values.std(space)
        pair = [values.mean(space), xr.where(std > 0, std, 1.0)]
        moments[name] = xr.concat(pair, "statistic", coords="minimal", compat="override")
    statistics = xr.Dataset(moments).assign_coords(statistic=["mean", "std"])
    states = Standardizer(
        statistics.compute(),
        surface=[name for name in names if VARIABLES[name].surface],
        atmospheric=[name for name in names if not VARIABLES[name].surface],
        levels=levels,
        land_mask=undefined(ensemble),
    )
    grid = Grid.from_coordinates(truth["latitude"].values, truth["longitude"].values)
    return StateSpace.from_statistics(states, grid, truth)


def _compiled(source: Any, space: StateSpace, times: np.ndarray) -> tuple[Observations, Operators]:
    r"""The observations of a period, and their operators."""
    from ..observations.operators import compile_observations
    from ..observations.reading import read_observations

    levels = space.standardizer.levels or LEVELS
    hours = int((times[-1] - times[0]) / np.timedelta64(1, "h")) + 1
    used = read_observations(source, levels=levels).between(times[0], hours)
    operators = compile_observations(used, space, times)
    if all(operator is None for operator in operators):
        raise DataError(
            "no observation can be compared with the run's states:\n"
            f"{operators.excluded.to_string(index=False)}"
        )
    return used, operators


def _states(ds: xr.Dataset, space: StateSpace, times: np.ndarray, what: str) -> Iterator[Any]:
    with progress(len(times), what, unit="hours") as p:
        for states in hour_states(ds, space, times):
            yield states
            p.advance()


def _digest(used: Observations, ensemble: xr.Dataset) -> str:
    digest, known = used.digest(), ensemble.attrs.get("observations_digest")
    if known is None:
        return digest
    return f"{digest}, {'the same' if digest == known else 'not those the run has seen'}"


def _told(operators: Operators) -> str:
    count = sum(len(operator) for operator in operators if operator is not None)
    left = sum(operators.excluded["count"].tolist())
    return f"{count:,} compared" + (f", {left:,} left out" if left else "")
