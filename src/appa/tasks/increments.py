r"""What one observation changes, everywhere.

The *increment of a single observation* is the change of the ensemble's mean that it makes,
everywhere: with a prior of covariance :math:`B` and a linear observation it is

.. math:: B H^\top (H B H^\top + R)^{-1} (y - H \bar{x}) ,

and so tells what the prior knows of covariances. Prior and posterior members are drawn from the
same noise, so that chance cancels but for what the observation changes.

Where other observations are known to both, the prior is the weather they tell of, and the increment
that of the day. It can then stand beside what another system's members say, an ensemble Kalman
filter's background of the same hour say: the same formula with their covariance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..data.clock import as_datetime64
from ..errors import DataError
from ..observations.collection import Observations
from ..observations.operators import HourOperator, StateSpace, compile_observations
from ..observations.reading import read_observations
from .assimilation import reanalysis
from .model import Model
from .settings import Settings

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["single_observation"]

HOUR = np.timedelta64(3600, "s")
PRIORS = ("fit", "observations")  # attributes that are of the prior alone


def single_observation(
    model: Model,
    variable: str,
    latitude: float,
    longitude: float,
    start: Any,
    *,
    hour: int = 0,
    level: float | None = None,
    departure: float | None = None,
    error: float | None = None,
    observations: Any = None,
    beside: Any = None,
    hours: int | None = None,
    members: int = 32,
    seed: int = 0,
    settings: Settings | None = None,
    batch: int | None = None,
    **options: Any,
) -> xr.Dataset:
    r"""The change of all fields that one observation makes.

    Arguments:
        model: The model.
        variable, latitude, longitude, level: What is observed, and where.
        start: The first hour of the period.
        hour: The hour of the observation, counted from the first.
        departure: How far it is from the mean of the prior, by default one standard deviation of
            the prior's members there.
        error: Its error, by default the same.
        observations: Others, which prior and posterior both know: what
            :func:`appa.read_observations` takes. Without, the prior is the climate's.
        beside: Members of another system at the hour of the observation, as a dataset or its path.
        hours: The hours of the period, by default a window.
        members: The members whose means are told.
        seed: The seed.
        settings: How they are drawn, by default as the model says.
        batch, options: As of :func:`appa.tasks.assimilation.reanalysis`.

    Returns:
        The posterior's mean less the prior's, by variable and hour; `<variable>_expected`, what
        the covariance of the prior's members says it should be; `<variable>_beside`, what that of
        the other members says in the hour of the observation, of the same departure and error;
        attributes `departure`, `error`, `value` and the prior's `spread` at the observation, and
        `spread_beside`.

    Example:
        >>> change = single_observation(model, "geopotential", 50, 10, "2021-03-21T00", level=500)
        >>> change["temperature"].isel(time=0).sel(level=850).plot()
    """
    import pandas as pd
    import xarray as xr

    from ..evaluation.budget import ensemble_increment

    if members < 2:
        raise DataError(f"found {members} members, expected 2 or more: a mean needs a spread")
    hours = model.config.window if hours is None else hours
    if not 0 <= hour < hours:
        raise DataError(f"found hour {hour}, expected from 0 to {hours - 1}")
    for name, told in (("departure", departure), ("error", error)):
        if told is not None and not (np.isfinite(told) and (name == "departure" or told > 0)):
            raise DataError(f"found {name} {told}; give a number{' above 0' * (name == 'error')}")
    settings = settings or Settings.of(model.config)
    first = as_datetime64(start)
    common = {"members": members, "seed": seed, "settings": settings, "batch": batch}
    common |= {"negatives": "keep", "latents": False, **options}
    known = None
    if observations is not None:
        known = read_observations(observations, levels=model.config.data.levels)
        known = known.between(first, hours)
    row = {
        "time": first + hour * HOUR,
        "latitude": latitude,
        "longitude": longitude,
        "variable": variable,
        "level": np.nan if level is None else level,
    }
    other = h = None
    if beside is not None:
        other = _of_hour(beside, first + hour * HOUR)
        h = _equivalents(model, other, row)
    _operator(model, row, _plausible(model, row))  # what cannot be is found before all is drawn
    prior = reanalysis(model, known, start, hours, **common)
    equivalents = _equivalents(model, prior.isel(time=hour), row)
    spread = float(equivalents.std(ddof=1))
    departure = spread if departure is None else float(departure)
    error = spread if error is None else float(error)
    value = float(equivalents.mean()) + departure
    one = pd.DataFrame([row | {"value": value, "error": error}])
    seen = read_observations(one, levels=model.config.data.levels)
    if known is not None:  # beside one of the same place, which would be a duplicate elsewhere
        points = pd.concat([known.points, seen.points], ignore_index=True)
        seen = Observations(points, known.gridded, known.excluded, known.notes)
    posterior = reanalysis(model, seen, start, hours, **common)
    names = [str(name) for name in prior.data_vars if "member" in prior[name].dims]
    change = (posterior[names].astype(np.float64) - prior[names]).mean("member")
    expected = ensemble_increment(prior[names], equivalents, departure, error)
    parts = [change, expected.rename({n: f"{n}_expected" for n in names})]
    about = {"variable": variable, "latitude": latitude, "longitude": longitude, "hour": hour}
    about |= {"departure": departure, "error": error, "value": value, "spread": spread}
    if other is not None and h is not None:
        same = [n for n in names if n in other]
        increment = ensemble_increment(other[same], h, departure, error)
        parts.append(increment.rename({n: f"{n}_beside" for n in same}))
        about["spread_beside"] = float(h.std(ddof=1))
    about |= {"title": "what one observation changes", "task": "increment"}
    about |= {"observations_digest": seen.digest()} | ({} if level is None else {"level": level})
    merged = xr.merge(parts)
    merged.attrs = {k: v for k, v in prior.attrs.items() if k not in PRIORS} | about
    return merged


def _of_hour(beside: Any, when: Any) -> xr.Dataset:
    r"""The members of another system at an hour, without it as a dimension."""
    import xarray as xr

    from .analyses import open_analysis

    ds = beside if isinstance(beside, xr.Dataset) else open_analysis(beside)
    when = when.astype("datetime64[ns]")
    if "member" not in ds.dims or ds.sizes["member"] < 2:
        raise DataError("what stands beside has no members; give an ensemble of 2 or more")
    if when not in np.atleast_1d(ds["time"].values):
        raise DataError(
            f"what stands beside has no {when.astype('datetime64[h]')}, the hour of the observation"
        )
    return (ds.sel(time=when) if "time" in ds.dims else ds).load()


def _equivalents(model: Model, ds: xr.Dataset, row: Mapping[str, Any]) -> np.ndarray:
    r"""What members would be observed as, with shape :math:`(M)`."""
    assert model.standardizer is not None
    value = _plausible(model, row)
    operator = _operator(model, row, value)
    x = model.standardizer.to_tensor(ds)
    with torch.no_grad():
        return value - operator.departure(x).double().numpy()[:, 0]


def _plausible(model: Model, row: Mapping[str, Any]) -> float:
    r"""A value that an observation can have: the mean of its channel, or of the nearest level's."""
    assert model.standardizer is not None
    found = [
        (abs((channel.level or 0) - np.nan_to_num(row["level"])), k)
        for k, channel in enumerate(model.standardizer.channels)
        if channel.variable == row["variable"]
    ]
    return float(model.standardizer.mean[min(found)[1]]) if found else 0.0


def _operator(model: Model, row: Mapping[str, Any], value: float) -> HourOperator:
    r"""What compares states with an observation of unit error."""
    import pandas as pd

    table = pd.DataFrame([{**row, "value": value, "error": 1.0}])
    seen = read_observations(table, levels=model.config.data.levels)
    operators = compile_observations(seen, StateSpace.of(model), [row["time"]])
    operator = operators[0]
    if operator is None:
        raise DataError(
            "the observation cannot be compared with the model's states:\n"
            f"{operators.excluded.to_string(index=False)}"
        )
    return operator
