r"""Runs: members are drawn a few at a time, decoded and given out.

Where there is a place to write to, steps are kept beside it, and a run that is killed goes on at
its last; SIGTERM ends it as Ctrl-C does, with its last step kept.
"""

from __future__ import annotations

import json
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from ..machine import free_memory
from ..observations.checks import describe
from ..progress import Share, progress
from ..termination import terminable
from .background import against_prior
from .drawing import Part, Wanted, apart, drawn_part
from .ensembles import Ensemble, EnsembleArrays, determining, provenance
from .fitting import Fit
from .folders import digest
from .memory import Memory, ResidualMemory, largest_window
from .model import Model
from .output import EnsembleWriter
from .posterior import Posterior
from .resuming import RunState
from .settings import Settings

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Run", "affordable"]

ENOUGH = 0.1  # the relative residual of a solve above which a user is told


class Run:
    r"""A run.

    Arguments:
        model: The model.
        posterior: What is drawn from.
        task: Its name.
        members: The number of members.
        seed: The seed.
        observations: The observations, if any.
        batch: The number of members drawn at once, by default as many as memory allows.
        workers: The number of processes that draw.
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
        workers: int,
    ):
        for name, value, least in (
            ("members", members, 1),
            ("seed", seed, 0),
            ("workers", workers, 1),
        ):
            if value < least:
                raise DataError(f"found {name}={value}, expected {least} or more")
        if workers > 1 and model.device.type != "cpu":
            raise DataError(
                f"found workers={workers}, but the model is on {model.device}, which one process "
                "fills; several are for CPUs"
            )
        self.model, self.posterior, self.members, self.seed = model, posterior, members, seed
        self.batch, self.workers = batch, workers
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
        first = range(len(self.posterior.times))[hours][0]
        joints = [t - first for t in self.posterior.joints if first < t < first + len(times)]
        attrs = self.attrs | {"joints": json.dumps(joints)}
        if self.posterior.given:
            last = self.posterior.times[self.posterior.given - 1]
            attrs["forecast_reference_time"] = str(np.datetime_as_string(last, unit="h"))
        steps = self.posterior.windows * self.posterior.sampler.steps
        with ExitStack() as stack:
            stack.enter_context(terminable())
            keeper, folder, key = None, None, self._key()
            arguments = (self.model, times, self.members)
            if out is None:
                ensemble = EnsembleArrays(*arguments, attrs=attrs, **({"latents": True} | options))
            else:
                folder = Path(f"{out}.run")
                ensemble = stack.enter_context(
                    EnsembleWriter(out, *arguments, attrs=attrs, **options)
                )
                keeper = stack.enter_context(RunState(folder, key))
            batch = self._batch(keeper)
            ensemble.most = max(1, ensemble.most // self._shares)
            chunks = [range(i, min(i + batch, self.members)) for i in range(0, self.members, batch)]
            parts: list[Part] = []
            counts: list[dict[str, Tensor] | None] = []
            for chunk in chunks:
                if isinstance(ensemble, EnsembleWriter) and ensemble.written(
                    list(chunk), slice(None)
                ):
                    counts.append(keeper.load(Part(chunk, self.seed).name) if keeper else None)
                else:
                    parts.append(Part(chunk, self.seed))
            errors = [None if op is None else op.error for op in self.posterior.operators]
            if parts:
                self._check(keeper)
            fit = Fit(self.posterior.operators[hours], errors[hours])  # what the check has left
            ensemble.watch = fit if fit.names else None
            # what the decoder lacks takes about a fifth
            lacking = self._lacking(ensemble)
            worth = max(1, steps // 5) if lacking else 0
            each = steps + worth
            bar = stack.enter_context(progress(len(chunks) * each, "drawing", unit="steps"))
            bar.skip((len(chunks) - len(parts)) * each)
            if self.workers == 1 or len(parts) < 2:
                given = self.posterior, folder, key, bar.advance
                drawn = (drawn_part(part, *given) for part in parts)
            else:
                wanted = None
                if lacking and batch * len(times) * len(lacking) <= ensemble.most:
                    wanted = Wanted(hours, lacking, worth)
                given = self.workers, bar.advance, folder, key, wanted
                drawn = apart(self.posterior, parts, *given)
            stack.callback(drawn.close)  # of an error here, what draws elsewhere hears at once
            for part, result in zip(parts, drawn, strict=True):
                r = result.lacking
                if r is None:  # drawn as members are written
                    r = self.posterior.residual(result.z, part.members, self.seed, hours)
                    if r is not None:
                        number = len(part.members) * len(lacking)
                        r.advance = Share(bar.advance, number, worth)
                ensemble.write(list(part.members), slice(None), result.z[:, hours], r)
                left = (0.0, 0.0) if r is None else (r.left, float(r.unused))
                told = torch.tensor(left, dtype=torch.float64)
                went = {"solves": result.solves, "interpolated": told, "fit": fit.taken()}
                counts.append(went)
                if keeper is not None:
                    keeper.done(part.name, counts[-1])
            ensemble.attrs |= self._went(counts) | self._fit(fit, counts)
            finished = ensemble.finish()
            if keeper is not None:
                keeper.remove()
        if out is None:
            return finished  # type: ignore[return-value]
        import xarray as xr

        path = Path(out)
        return xr.open_dataset(path, chunks={}) if path.suffix == ".nc" else xr.open_zarr(path)

    def _key(self) -> dict[str, Any]:
        r"""What determines the answer."""
        rep = self.posterior.representation
        return {
            **determining(self.attrs),
            "period": [str(t) for t in self.posterior.times[[0, -1]]],
            "members": self.members,
            "past": hashed(self.posterior.known),
            "past_residual": hashed(self.posterior.known_residual),
            "statistics": hashed(self.model.statistics),
            "representation": hashed(None if rep is None else rep.dataset),
        }

    @property
    def _shares(self) -> int:
        r"""How many processes share the memory: while several draw, one more writes."""
        return 1 if self.workers == 1 else self.workers + 1

    def _batch(self, keeper: RunState | None) -> int:
        r"""The number of members drawn at once: a run that goes on keeps to its first choice."""
        kept = keeper.load("batch") if keeper else None
        posterior = self.posterior
        sizes = [len(op) for op in posterior.operators if op is not None]
        observed = largest_window(sizes, posterior.window)
        most, posterior.at_once = affordable(
            self.model, posterior.settings, *observed, self._shares
        )
        if posterior.representation is not None:
            drawing = ResidualMemory.of(self.model, len(posterior.times))
            free = free_memory(self.model.device) // self._shares
            posterior.residuals_at_once = drawing.affordable(free)
        if self.batch is None and kept is not None:
            return int(kept["members"])
        batch = min(-(-self.members // self.workers), self.batch or most)
        if keeper is not None:
            keeper.done("batch", {"members": torch.tensor(batch)})
        return batch

    def _lacking(self, ensemble: Ensemble) -> list[int]:
        r"""The channels of which what the decoder lacks is drawn."""
        if self.posterior.representation is None or not self.posterior.settings.residual:
            return []
        return [c for field in ensemble.fields for c in field.channels]

    def _check(self, keeper: RunState | None) -> None:
        r"""Compares observations with the prior, where that is asked for."""
        posterior, how = self.posterior, self.posterior.settings
        if how.background == "none" or all(op is None for op in posterior.operators):
            return
        prior = Posterior(self.model, posterior.times, how)
        most, _ = affordable(self.model, how, 0, 0)
        posterior.operators, far = against_prior(
            prior,
            posterior.operators,
            how.background,
            how.threshold,
            batch=min(most, self.batch or most),
            keeper=keeper,
        )
        if len(far):
            warnings.warn(f"observations are left out:\n{describe(far)}", stacklevel=5)

    def _fit(self, fit: Fit, counts: list[dict[str, Tensor] | None]) -> dict[str, Any]:
        r"""How well all members fit observations, as an attribute; none where that is not known of
        each."""
        sums = [count["fit"] for count in counts if count is not None and "fit" in count]
        if not fit.names or len(sums) < len(counts):
            return {}
        drawn = self.posterior.representation is not None and self.posterior.settings.residual
        return fit.attrs(sum(sums, torch.zeros_like(sums[0])), drawn)

    def _went(self, counts: list[dict[str, Tensor] | None]) -> dict[str, Any]:
        r"""How it went over all parts, as attributes; tells where that was not well."""
        known = [count for count in counts if count is not None]
        solved = [count["solves"].tolist() for count in known]
        residual, misfit = (max((s[k] for s in solved), default=0.0) for k in range(2))
        drawn = [count["interpolated"].tolist() for count in known]
        interpolated, unused = (max((d[k] for d in drawn), default=0.0) for k in range(2))
        # while there is much noise, what a solve leaves is left to the next
        guidance = self.posterior.guidance
        if guidance.tolerance and misfit > max(ENOUGH, 4 * guidance.tolerance):
            warnings.warn(
                f"in the end a linear system was left with a residual of {misfit:.2g} of its "
                f"right-hand side after {guidance.iterations} iterations; observations may fit "
                "less well than they should: allow more iterations",
                stacklevel=5,
            )
        if interpolated > ENOUGH / 10:
            warnings.warn(
                "what the decoder lacks was interpolated to a relative residual of "
                f"{interpolated:.2g} only: observations are too crowded for it, and analyses "
                "may fit them less well than they should; thin them, e.g. --thin 200",
                stacklevel=5,
            )
        if unused:
            warnings.warn(
                f"{unused:,.0f} observations are derived from whole fields, so that what the "
                "decoder lacks is drawn without them: analyses may not fit them as well as their "
                "errors say",
                stacklevel=5,
            )
        if len(known) < len(counts):  # killed after a part was written, before it was noted
            return {}
        return {
            "solver_residual": residual,
            "solver_residual_in_the_end": misfit,
            "solver_products": int(sum(s[2] for s in solved)),
            "residual_solver_residual": interpolated,
            "residual_unused": int(unused),
        }


# ---------------------------------------------------------------- what it takes


def affordable(
    model: Model, settings: Settings, observed: int, observations: int, workers: int = 1
) -> tuple[int, int | None]:
    r"""The number of members whose windows fit in memory at once, and of hours that are decoded at
    once if not even one member's do; see :class:`~.memory.Memory`.

    Arguments:
        model: The model.
        settings: How is drawn.
        observed: The number of hours of a window that are observed.
        observations: The number of observations in these.
        workers: The number of processes that share the memory.
    """
    free = free_memory(model.device) // workers
    states = model.autoencoder.at_once
    return Memory.of(model, settings).affordable(free, observed, observations, states)


def hashed(data: Tensor | xr.Dataset | None) -> str | None:
    r"""A hash of a forecast's past, or of what is known of states."""
    if data is None:
        return None
    if not isinstance(data, Tensor):
        numbers = {str(k): v.values for k, v in data.variables.items() if v.dtype.kind in "fiub"}
        return digest({k: torch.from_numpy(v.astype(np.float32)) for k, v in numbers.items()})
    return digest({"known": data})
