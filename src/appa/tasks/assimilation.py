r"""Reanalysis, filtering and forecasting: draws from one posterior.

========================= =============================================== =====================
task                      what is drawn                                   what is given out
========================= =============================================== =====================
:func:`reanalysis`        :math:`p(x^{1:L} \mid y^{1:L})`                 all hours
:func:`filtering`         the same                                        the last hour
:func:`forecast`          :math:`p(x^{K+1:L} \mid x^{1:K})`, the past     the hours after
                          drawn by a reanalysis or given as states
========================= =============================================== =====================

How members are drawn and given out is in :mod:`appa.tasks.runs`.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.clock import as_datetime64
from ..errors import DataError
from ..observations.checks import describe, join
from ..observations.collection import Observations
from ..observations.operators import StateSpace, compile_observations
from ..observations.reading import read_observations
from .analyses import past_latents, past_residuals
from .model import Model
from .posterior import Posterior
from .runs import Run
from .settings import Settings, forecast_mode

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["filtering", "forecast", "reanalysis"]

HOUR = np.timedelta64(3600, "s")


def reanalysis(
    model: Model,
    observations: Any,
    start: Any,
    hours: int,
    *,
    members: int = 8,
    seed: int = 0,
    settings: Settings | None = None,
    out: str | Path | None = None,
    batch: int | None = None,
    workers: int = 1,
    **options: Any,
) -> xr.Dataset:
    r"""Draws trajectories consistent with observations.

    Arguments:
        model: The model.
        observations: What :func:`appa.read_observations` takes; :py:`None` for none.
        start: The first hour, e.g. `"2021-03-21T00"`.
        hours: The number of hours :math:`L`.
        members: The number of members.
        seed: The seed. A member depends on the seed and its number, not on the other members.
        settings: How trajectories are drawn, by default as the model's configuration says.
        out: Where to write the ensemble, a `.zarr` or `.nc` that must not exist yet. By default it
            stays in memory.
        batch: The number of members drawn at once, by default as many as memory allows.
        workers: The number of processes that draw, on a CPU: two with a thread each are faster than
            one with two threads. A script that asks for more than one must have its `if __name__ ==
            "__main__":`.
        options: `variables`, `levels`, `latents`, `negatives`, see
            :class:`~appa.tasks.ensembles.Ensemble`; of a dataset in memory, latents are kept.

    Returns:
        A dataset with dimensions `(member, time, level, latitude, longitude)`.
    """
    settings = (settings or Settings.of(model.config)).on(model.device)
    posterior, observed = given_observations(model, observations, start, hours, settings)
    run = Run(model, posterior, "reanalysis", members, seed, observed, batch, workers)
    return run(slice(None), out, options)


def filtering(
    model: Model,
    observations: Any,
    start: Any,
    hours: int,
    *,
    members: int = 8,
    seed: int = 0,
    settings: Settings | None = None,
    out: str | Path | None = None,
    batch: int | None = None,
    workers: int = 1,
    **options: Any,
) -> xr.Dataset:
    r"""Draws the last state of a period, given observations up to it.

    The arguments are those of :func:`reanalysis`, of which it is the last hour.
    """
    settings = (settings or Settings.of(model.config)).on(model.device)
    posterior, observed = given_observations(model, observations, start, hours, settings)
    run = Run(model, posterior, "filter", members, seed, observed, batch, workers)
    return run(slice(hours - 1, None), out, options)


def forecast(
    model: Model,
    source: xr.Dataset,
    hours: int,
    *,
    members: int | None = None,
    seed: int = 0,
    settings: Settings | None = None,
    out: str | Path | None = None,
    batch: int | None = None,
    workers: int = 1,
    all_at_once: bool = False,
    **options: Any,
) -> xr.Dataset:
    r"""Draws what comes after given states.

    Arguments:
        model: The model.
        source: An analysis, which goes on from the latents it carries, or any dataset of states,
            which are encoded. Its last hours, consecutive ones, are the past: as many as
            `settings.past` asks for, or all there are.
        hours: The number of hours after the last of the source.
        members: The number of members, by default the source's. Member :math:`m` goes on from the
            source's member :math:`m`, beginning again after the last.
        seed, settings, out, batch, workers, options: As of :func:`reanalysis`.
        all_at_once: Whether all hours are drawn together, in composed windows, as where the
            settings' mode is `composed`. By default, windows are drawn one after another,
            `settings.new` hours each. See :meth:`~.settings.Settings.ahead`.
    """
    if settings is None:
        settings = Settings.ahead(model.config, all_at_once=all_at_once)
    mode = forecast_mode(settings.mode, all_at_once)
    settings = settings.model_copy(update={"mode": mode}).on(model.device)
    past, times = past_latents(model, source, settings.past)
    if past.shape[1] < 2:
        warnings.warn(
            f"the forecast starts from one hour, {times[-1]}, which does not tell where things "
            "move: give two or more",
            stacklevel=2,
        )
    if hours < 1:
        raise DataError(f"a forecast has 1 hour or more, found hours={hours}")
    times = np.concatenate([times, times[-1] + HOUR * np.arange(1, hours + 1)])
    rep, residual = model.representation, None
    if rep is not None and settings.residual:
        residual = past_residuals(model, source, past)
    posterior = Posterior(
        model, times, settings, representation=rep, known=past, known_residual=residual
    )
    count = len(past) if members is None else members
    run = Run(model, posterior, "forecast", count, seed, None, batch, workers)
    return run(slice(past.shape[1], None), out, options)


# ---------------------------------------------------------------- what is given


def given_observations(
    model: Model, observations: Any, start: Any, hours: int, settings: Settings
) -> tuple[Posterior, Any]:
    r"""The posterior given observations, and those of them that were used; against the prior they
    are checked when a :class:`~.runs.Run` begins."""
    first = as_datetime64(start)
    if first.ndim or first != first.astype("datetime64[h]"):
        raise DataError(f"found start {start}, expected one whole hour, e.g. 2021-03-21T00")
    if hours < 1:
        raise DataError(f"a period has 1 hour or more, found hours={hours}")
    times = first + HOUR * np.arange(hours)
    if observations is None:
        return Posterior(model, times, settings, representation=model.representation), None
    levels = model.config.data.levels
    used = read_observations(observations, levels=levels).between(first, hours)
    operators = compile_observations(used, StateSpace.of(model), times)
    if not any(op is not None for op in operators):
        raise DataError(
            "no observation is left that can be compared with the model's states:\n"
            f"{operators.excluded.to_string(index=False)}"
        )
    left_out = operators.excluded
    if not isinstance(observations, Observations):  # whoever made one has seen what it lacks
        left_out = join([used.excluded, left_out])
    if len(left_out):
        warnings.warn(f"observations are left out:\n{describe(left_out)}", stacklevel=3)
    rep = model.representation
    if rep is None and settings.representation != "none":
        warnings.warn(
            f"{model.origin} does not know what its decoder cannot express, so that observations "
            "are taken for as exact as their errors say and the ensemble will be too sure of "
            "itself; estimate it with: appa representation MODEL --data STORE",
            stacklevel=3,
        )
    return Posterior(model, times, settings, operators, rep), used
