r"""Reanalysis, filtering and forecasting: draws from one posterior.

========================= =============================================== =====================
task                      what is drawn                                   what is given out
========================= =============================================== =====================
:func:`reanalysis`        :math:`p(x^{1:L} \mid y^{1:L})`                 all hours
:func:`filtering`         the same                                        the last hour
:func:`forecast`          :math:`p(x^{K+1:L} \mid x^{1:K})`, the past     the hours after
                          drawn by a reanalysis or given as states
========================= =============================================== =====================

Members are drawn a few at a time, decoded and written; where there is a place to write to, a run
that is killed goes on at its last step.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..costs import decoder_convolutions
from ..data.clock import as_datetime64
from ..errors import DataError
from ..observations.checks import describe, join
from ..observations.collection import Observations
from ..observations.operators import StateSpace, compile_observations
from ..observations.reading import read_observations
from ..progress import progress
from .analyses import past_latents
from .background import against_prior
from .ensembles import EnsembleArrays, provenance
from .fields import free_memory
from .folders import digest
from .model import Model
from .output import EnsembleWriter
from .posterior import Posterior
from .resuming import RunState
from .settings import Settings

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["filtering", "forecast", "reanalysis"]

HOUR = np.timedelta64(3600, "s")
ENOUGH = 0.1  # the relative residual of a solve above which a user is told


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
        options: `variables`, `levels`, `latents`, `negatives`, see
            :class:`~appa.tasks.ensembles.Ensemble`; of a dataset in memory, latents are kept.

    Returns:
        A dataset with dimensions `(member, time, level, latitude, longitude)`.
    """
    settings = settings or Settings.of(model.config)
    posterior, observed = given_observations(model, observations, start, hours, settings)
    run = Run(model, posterior, "reanalysis", members, seed, observed, batch)
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
    **options: Any,
) -> xr.Dataset:
    r"""Draws the last state of a period, given observations up to it.

    The arguments are those of :func:`reanalysis`, of which it is the last hour.
    """
    settings = settings or Settings.of(model.config)
    posterior, observed = given_observations(model, observations, start, hours, settings)
    run = Run(model, posterior, "filter", members, seed, observed, batch)
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
        seed, settings, out, batch, options: As of :func:`reanalysis`.
        all_at_once: Whether all hours are drawn together, in composed windows. By default, windows
            are drawn one after another, `settings.new` hours each.
    """
    settings = settings or Settings.of(model.config)
    mode = "composed" if all_at_once else "sequential"
    settings = settings.model_copy(update={"mode": mode})
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
    posterior = Posterior(model, times, settings, known=past)
    count = len(past) if members is None else members
    run = Run(model, posterior, "forecast", count, seed, None, batch)
    return run(slice(past.shape[1], None), out, options)


# ---------------------------------------------------------------- what is given


def given_observations(
    model: Model, observations: Any, start: Any, hours: int, settings: Settings
) -> tuple[Posterior, Any]:
    r"""The posterior given observations, and those of them that were used."""
    first = as_datetime64(start)
    if first.ndim or first != first.astype("datetime64[h]"):
        raise DataError(f"found start {start}, expected one whole hour, e.g. 2021-03-21T00")
    if hours < 1:
        raise DataError(f"a period has 1 hour or more, found hours={hours}")
    times = first + HOUR * np.arange(hours)
    if observations is None:
        return Posterior(model, times, settings), None
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
    if settings.background != "none":
        prior = Posterior(model, times, settings)
        operators, far = against_prior(prior, operators, settings.background, settings.threshold)
        left_out = join([left_out, far])
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


# ---------------------------------------------------------------- the run


class Run:
    r"""A run: members are drawn, decoded and given out.

    Arguments:
        model: The model.
        posterior: What is drawn from.
        task: Its name.
        members: The number of members.
        seed: The seed.
        observations: The observations, if any.
        batch: The number of members drawn at once.
    """

    def __init__(
        self,
        model: Model,
        posterior: Posterior,
        task: str,
        members: int,
        seed: int,
        observations: Any,
        batch: int | None,
    ):
        if members < 1:
            raise DataError(f"an ensemble has 1 member or more, found members={members}")
        if seed < 0:
            raise DataError(f"found the seed {seed}; give a whole number of 0 or more")
        self.model, self.posterior, self.members, self.seed = model, posterior, members, seed
        self.batch = batch
        self.attrs = provenance(
            model,
            task,
            seed=seed,
            settings=posterior.settings.model_dump(),
            observations=observations,
        )

    def __call__(self, hours: slice, out: str | Path | None, options: dict[str, Any]) -> xr.Dataset:
        r"""
        Arguments:
            hours: Which hours of the posterior are given out.
            out: Where to.
            options: What of them, see :class:`~appa.tasks.ensembles.Ensemble`.
        """
        times = self.posterior.times[hours]
        steps = self.posterior.windows * self.posterior.sampler.steps
        arguments = (self.model, times, self.members)
        with ExitStack() as stack:
            keeper = None
            if out is None:
                ensemble = EnsembleArrays(
                    *arguments, attrs=self.attrs, **({"latents": True} | options)
                )
            else:
                key = {
                    **{k: v for k, v in self.attrs.items() if k not in ("model", "source")},
                    "period": [str(t) for t in self.posterior.times[[0, -1]]],
                    "members": self.members,
                    "past": hashed(self.posterior.known),
                    "statistics": hashed(self.model.statistics),
                    "representation": hashed(
                        getattr(self.posterior.representation, "dataset", None)
                    ),
                }
                ensemble = stack.enter_context(
                    EnsembleWriter(out, *arguments, attrs=self.attrs, **options)
                )
                keeper = stack.enter_context(RunState(f"{out}.run", key))
            batch = self._batch(keeper)
            chunks = [range(i, min(i + batch, self.members)) for i in range(0, self.members, batch)]
            bar = stack.enter_context(progress(len(chunks) * steps, "drawing", unit="steps"))
            for chunk in chunks:
                if isinstance(ensemble, EnsembleWriter) and ensemble.written(
                    list(chunk), slice(None)
                ):
                    for _ in range(steps):
                        bar.advance()
                    continue
                name = f"members-{chunk[0]}-{chunk[-1]}"
                z = self.posterior.draw(
                    chunk,
                    self.seed,
                    batch=batch,
                    advance=bar.advance,
                    keeper=keeper,
                    name=name,
                )
                r = self.posterior.residual(z, chunk, self.seed)
                r = None if r is None else r[:, hours]
                ensemble.write(list(chunk), slice(None), z[:, hours], r)
                if keeper is not None:
                    keeper.done(name)
            guidance = self.posterior.guidance
            if guidance.tolerance and guidance.residual > max(ENOUGH, 2 * guidance.tolerance):
                warnings.warn(
                    f"a linear system was left with a residual of {guidance.residual:.2g} of its "
                    f"right-hand side after {guidance.iterations} iterations; observations may fit "
                    "less well than they should: allow more iterations",
                    stacklevel=4,
                )
            ensemble.attrs |= {
                "solver_residual": guidance.residual,
                "solver_products": guidance.products,
            }
            result = ensemble.finish()
            if keeper is not None:
                keeper.remove()
        if out is None:
            return result  # type: ignore[return-value]
        import xarray as xr

        path = Path(out)
        return xr.open_dataset(path, chunks={}) if path.suffix == ".nc" else xr.open_zarr(path)

    def _batch(self, keeper: RunState | None) -> int:
        r"""The number of members drawn at once: a run that goes on keeps to its first choice."""
        kept = keeper.load("batch") if keeper else None
        seen = sum(op is not None for op in self.posterior.operators)
        most, self.posterior.at_once = affordable(self.model, min(self.posterior.window, seen))
        if self.batch is None and kept is not None:
            return int(kept["members"])
        batch = min(self.members, self.batch or most)
        if keeper is not None:
            keeper.done("batch", {"members": torch.tensor(batch)})
        return batch


def affordable(model: Model, observed: int) -> tuple[int, int | None]:
    r"""The number of members whose windows fit in memory at once, and of hours that are decoded at
    once if not even one member's do.

    Guidance keeps what the decoder computes for each observed hour: after each convolution,
    normalization and activation, and once more for products with its Jacobian; and what the
    transformer computes, some twenty numbers for each channel of a token in each block.

    Arguments:
        model: The model.
        observed: The number of hours of a window that are observed.
    """
    config = model.config
    hour = 2 * 3 * 4 * sum(d * pixels for _, d, pixels in decoder_convolutions(config))
    window = 20 * 4 * config.tokens * config.denoiser.width * config.denoiser.blocks
    if model.device.type == "cuda":
        free = torch.cuda.mem_get_info(model.device)[0]
    else:
        free = free_memory()
    most = int(0.6 * free)
    members = most // (window + observed * hour)
    if members or not observed:
        return max(1, members), None
    return 1, max(1, (most - window) // hour)


def hashed(data: Tensor | xr.Dataset | None) -> str | None:
    r"""A hash of a forecast's past, or of what is known of states."""
    if data is None:
        return None
    if not isinstance(data, Tensor):
        numbers = {str(k): v.values for k, v in data.variables.items() if v.dtype.kind in "fiub"}
        return digest({k: torch.from_numpy(v.astype(np.float32)) for k, v in numbers.items()})
    return digest({"known": data})
