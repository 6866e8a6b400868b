r"""Draws of one date, as the package's tasks make them, with the passes they take counted.

Only hours that are scored are decoded. Members of a date are drawn at once, where they fit in
memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from results_meter import Meter
from results_plan import Plan
from torch import Tensor

import appa
from appa.evaluation.ensembles import averages
from appa.machine import free_memory
from appa.observations.collection import Observations
from appa.observations.networks import Network, constellation, named_network
from appa.tasks.assimilation import given_observations
from appa.tasks.ensembles import to_dataset
from appa.tasks.folders import ModelError
from appa.tasks.memory import ResidualMemory
from appa.tasks.posterior import Posterior
from appa.tasks.runs import affordable
from appa.tasks.settings import Settings
from appa.tasks.simulated import synthesize

__all__ = ["HOUR", "Diverged", "Drawn", "Draws"]

HOUR = np.timedelta64(1, "h")
PAST = 4  # hours whose residuals a forecast goes on from


class Drawn(NamedTuple):
    r"""Members that were drawn: latents and residuals of all hours, what they cost, and the hours
    at which another window begins."""

    z: Tensor
    residual: Tensor | None
    times: np.ndarray
    cost: dict[str, float]
    joints: list[int]


class Diverged(Exception):
    r"""Members that are not finite."""


class Draws:
    r"""Draws and scores one date after another.

    Arguments:
        plan: What is to be done.
    """

    def __init__(self, plan: Plan):
        self.plan = plan
        self.model = appa.load(plan.model).to(plan.device)
        self.settings = Settings.of(self.model.config, plan.setting, **plan.settings)
        self.store = appa.open_store(plan.store)
        self.now = np.datetime64(0, "ns")
        self.truth = xr.Dataset()
        self.seen: dict[Any, Observations] = {}
        self.most: dict[tuple[str, int, int], tuple[int, int | None]] = {}

    def load(self, now: np.datetime64) -> None:
        r"""Reads the hours of a date that are observed or scored."""
        if now == self.now:
            return
        hours = [*range(1 - self.plan.before, 1), *self.plan.leads]
        assert self.model.standardizer is not None
        names = [n for n in self.store.data_vars if n in self.model.standardizer.names]
        names += [n for n in self.store.data_vars if "time" not in self.store[n].dims]
        self.truth = self.store[names].sel(time=now + HOUR * np.array(hours)).load()
        self.now, self.seen = now, {}

    # ---------------------------------------------------------------- what is observed and drawn

    def network(self, stations: float = 1.0, satellites: int = 1, noise: float = 1.0) -> Network:
        r"""The network of the paper's density, or another.

        Arguments:
            stations: What the number of stations is multiplied by.
            satellites: The number of satellites.
            noise: What all noise is multiplied by.
        """
        grid, count = self.model.grid, self.plan.stations
        if count is None:
            count = len(named_network(grid).stations)
        errors = self.model.config.observations
        options: dict[str, Any] = {"satellite_error": noise * errors.satellite_error}
        if satellites != 1:
            flock = constellation(satellites)
            options = {"satellites": [_noisy(s, noise * errors.satellite_error) for s in flock]}
        return named_network(
            grid,
            stations=max(1, round(stations * count)),
            station_error=noise * errors.station_error,
            **options,
        )

    def observed(self, **network: Any) -> Observations:
        r"""What a network sees of the date until now."""
        key = tuple(sorted(network.items()))
        if key not in self.seen:
            hours = self.truth.sel(time=slice(None, self.now))
            if network:  # of a variation no more hours than it takes
                most = max(self.plan.hours_of(v) for v in self.plan.variations if v.network)
                hours = hours.isel(time=slice(-most, None))
            self.seen[key] = synthesize(self.model, hours, self.network(**network), self.plan.seed)
        return self.seen[key]

    def reanalysis(self, hours: int, settings: Settings, seen: Observations | None) -> Drawn:
        r"""Draws the hours until now."""
        start = self.now - HOUR * (hours - 1)
        posterior, _ = given_observations(self.model, seen, start, hours, settings)
        return self.draw(posterior)

    def forecast(self, known: Tensor, residual: Tensor | None) -> Drawn:
        r"""Draws the hours after now, as :func:`appa.tasks.assimilation.forecast` does.

        Arguments:
            known: The latents until now, with shape :math:`(M, K, c, h, w)`.
            residual: What the decoder lacks of their states, if that is known.
        """
        settings = self.settings.model_copy(update={"mode": "sequential"})
        known = known[:, -settings.past :]
        count, rep = known.shape[1], self.model.representation
        times = self.now + HOUR * np.arange(1 - count, self.plan.after + 1)
        past = residual if settings.residual and settings.representation != "none" else None
        posterior = Posterior(
            self.model,
            times,
            settings,
            representation=rep,
            known=known,
            known_residual=None if past is None else past[:, -min(PAST, count) :],
        )
        drawn = self.draw(posterior)
        r = None if drawn.residual is None else drawn.residual[:, count:]
        return drawn._replace(z=drawn.z[:, count:], residual=r, times=drawn.times[count:])

    def draw(self, posterior: Posterior) -> Drawn:
        r"""Draws members, all at once where they fit in memory."""
        plan, model, guidance = self.plan, self.model, posterior.guidance
        most, posterior.at_once = plan.batch or 0, None
        if not most:
            sizes = sorted(len(op) for op in posterior.operators if op is not None)
            sizes = sizes[-posterior.window :]  # a window has no more
            seen = 1 << sum(sizes).bit_length()  # or fewer: dates differ by a little
            # what was found at first: what this process keeps for itself is not free, but its own
            key = (posterior.settings.model_dump_json(), len(sizes), seen)
            if key not in self.most:
                self.most[key] = affordable(
                    model, posterior.settings, len(sizes), seen, plan.processes
                )
            most, posterior.at_once = self.most[key]
            free = free_memory(model.device) // plan.processes
            drawing = ResidualMemory.of(model, len(posterior.times))
            posterior.residuals_at_once = drawing.affordable(free)
        chunks = [range(k, min(k + most, plan.members)) for k in range(0, plan.members, most)]
        parts, residuals, products = [], [], 0
        with Meter(model) as meter:
            begun = time.perf_counter()
            for members in chunks:
                guidance.forget()
                try:
                    with fast(plan.tf32):
                        z = posterior.draw(members, plan.seed, batch=len(members))
                except ModelError as error:  # in half precision it is told before the end
                    raise Diverged from error
                if not bool(torch.isfinite(z).all()):
                    raise Diverged
                parts.append(z)
                r = posterior.residual(z, members, plan.seed)
                residuals.append(None if r is None else r.whole())
                products += guidance.products * len(members)
            if model.device.type == "cuda":
                torch.cuda.synchronize(model.device)
            seconds = time.perf_counter() - begun
        cost = {k: v / plan.members for k, v in meter.counts.items()}
        cost |= {"products": products / plan.members, "seconds": seconds / plan.members}
        cost |= {"processes": plan.processes, "solver_residual": guidance.residual}
        whole = [r for r in residuals if r is not None]
        residual = torch.cat(whole) if whole else None
        return Drawn(torch.cat(parts), residual, posterior.times, cost, posterior.joints)

    def states(self, drawn: Drawn, hours: Sequence[int]) -> xr.Dataset:
        r"""Decodes some hours."""
        r = drawn.residual
        r = None if r is None else r[:, list(hours)]
        times = drawn.times[list(hours)]
        return to_dataset(self.model, drawn.z[:, list(hours)], times, residual=r, attrs={})

    def averages(
        self,
        ds: xr.Dataset,
        cost: Mapping[str, float] | None = None,
        truth: xr.Dataset | None = None,
    ) -> xr.Dataset:
        r"""The means of statistics against the truth, by default that of the date."""
        truth = self.truth if truth is None else truth
        found = averages(ds, truth, regions=self.plan.regions, workers=1, description=None)
        return found.assign_attrs(cost or {})


@contextmanager
def fast(tf32: bool) -> Iterator[None]:
    r"""Multiplies matrices as tensor cores do; not where a solver goes to a small residual."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _noisy(satellite: Any, noise: float) -> Any:
    return replace(satellite, noise=noise)
