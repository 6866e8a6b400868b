r"""What is drawn and scored of one date, for `results.py`.

A date is an hour, *now*: what is known is observed until then, and what is forecast comes after.
Its jobs are in the order of :meth:`Worker.jobs`, each with products that are files of their own,
`OUT/parts/DATE/PRODUCT.nc`. A job whose products are all there is done. Products are means over
regions, counts and spectra, never ensembles, and no state is decoded that is not scored.

Members of a date are drawn at once. Dates are drawn by several processes on one device, each with
its own: that fills the gaps between kernels, and the cores with what is done on them (compiling
observations, noise, scores), while another draws.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from results_draws import HOUR, Diverged, Draws
from results_plan import KIND, Plan, Variation, scored_hours
from torch import Tensor

from appa.data import netcdf
from appa.errors import AppaError
from appa.evaluation.balances import balances
from appa.evaluation.baselines import climate, persistence
from appa.evaluation.covariances import Covariance
from appa.evaluation.cycling import Cycling
from appa.evaluation.cycling import Settings as Filter
from appa.evaluation.distributions import spectra
from appa.evaluation.interpolation import Settings as Tuned
from appa.evaluation.interpolation import interpolate
from appa.evaluation.letkf_members import year_of_weather
from appa.evaluation.multivariate import spread_spectra
from appa.evaluation.perfect import cycle
from appa.evaluation.ranking import rank_counts
from appa.evaluation.temporal import temporal_consistency
from appa.tasks.analyses import open_analysis
from appa.tasks.assimilation import given_observations
from appa.tasks.ensembles import to_dataset
from appa.tasks.settings import Settings
from appa.tasks.simulated import synthesize

__all__ = ["Job", "Worker"]

TRAJECTORIES = 4  # that the LETKF has its first members of, eight states of each
CYCLED = (1, 2, 4, 8, 16, 24, 48, 72, 96, 120)  # hours it has seen by then, at which it is scored
SHORTEST = 8  # hours of which changes are told


class Job(NamedTuple):
    r"""Something to be drawn, and the files it becomes."""

    name: str
    products: tuple[str, ...]
    run: Callable[[Callable[[str], bool]], dict[str, xr.Dataset]]


class Worker(Draws):
    r"""Does the jobs of dates.

    Arguments:
        plan: What is to be done.
    """

    def __init__(self, plan: Plan):
        super().__init__(plan)
        self.covariance = Covariance.load(plan.covariance) if plan.covariance else None
        self.tuned = Tuned.load(plan.tuned) if plan.tuned else Tuned()
        self.filter = Filter.load(plan.letkf) if plan.letkf else None
        self.took: dict[str, float] = {}

    # ---------------------------------------------------------------- what there is to do

    def jobs(self, number: int) -> list[Job]:
        r"""The jobs of a date, the most important first.

        Arguments:
            number: The number of the date; not every one has variations.
        """
        plan, found = self.plan, []
        for hours in plan.windows:
            names = [f"reanalysis-{hours}"]
            if hours == plan.windows[0]:
                names += [f"{kind}-{hours}" for kind in ("ranks", "spectra", "wavelengths")]
                names += [f"balances-{hours}"]
            if hours in (plan.windows[0], max(plan.windows)) and hours >= SHORTEST:
                names += [f"changes-{hours}"]
            if hours == plan.source:
                names += ["forecast", "persistence-analysis"]
            found.append(Job(names[0], tuple(names), partial(self._window, hours, names)))
        names = ("persistence-truth", "decoder", "decoder-balances")
        names += ("climatology",) if plan.climatology else ()
        found.insert(1, Job("baselines", names, self._baselines))
        found.insert(2, Job("forecast-full", ("forecast-full", "forecast-encoded"), self._full))
        found.insert(3, Job("prior", ("prior",), self._prior))
        for hours in plan.controlled if self.covariance is not None else ():
            kinds = ["interpolation"]
            if hours == plan.windows[0]:
                kinds += [f"interpolation-{kind}" for kind in ("ranks", "spectra", "balances")]
            names = tuple(f"{kind}-{hours}" for kind in kinds)
            found.append(Job(names[0], names, partial(self._interpolation, hours)))
        if self.filter is not None and number % plan.rarely == 0:
            found.append(Job("letkf", ("letkf", "letkf-cycled"), self._letkf))
        for v in plan.variations if number % plan.each == 0 else ():
            if self._varies(v):
                found.append(Job(v.product, (v.product,), partial(self._variation, v)))
        return [job for job in found if not plan.only or job.name in plan.only]

    def path(self, now: np.datetime64, product: str) -> Path:
        r"""The file of a product."""
        return Path(self.plan.out) / "parts" / str(now.astype("datetime64[h]")) / f"{product}.nc"

    def missing(self, number: int, now: np.datetime64) -> list[Job]:
        r"""The jobs of a date that are not done."""
        return [j for j in self.jobs(number) if not all(map(self._there(now), j.products))]

    def _there(self, now: np.datetime64) -> Callable[[str], bool]:
        return lambda product: self.path(now, product).exists()

    def _varies(self, v: Variation) -> bool:
        r"""Whether a variation differs from the run it is compared with, and there is one."""
        return self.plan.hours_of(v) in self.plan.windows and (
            bool(v.network) or self._settings(v) != self.settings
        )

    def _settings(self, v: Variation) -> Settings:
        if v.named is not None:
            name = None if v.named == "default" else v.named
            return Settings.of(self.model.config, name, **v.settings)
        base = self.settings.model_dump() | dict(v.settings)
        return Settings.of(self.model.config, **base)

    def run(
        self,
        number: int,
        now: np.datetime64,
        end: float = np.inf,
        tell: Callable[[str], Any] = lambda line: None,
    ) -> dict[str, float]:
        r"""Does the jobs of a date that are missing, as far as time allows.

        Arguments:
            number: The date's number.
            now: The date.
            end: When to be done, as :func:`time.time` counts.
            tell: What is called with a line on each job.

        Returns:
            The seconds that each of them took.
        """
        done: dict[str, float] = {}
        there = self._there(now)
        for job in self.missing(number, now):
            # what took long before will again; of what is not known the worst is expected
            expected = self.took.get(job.name, max(self.took.values(), default=0.0))
            if time.time() + 1.2 * expected > end:
                break
            begun = time.time()
            try:
                self.load(now)
                found = self._run(job, there)
            except (AppaError, RuntimeError) as error:  # of memory too; the others may fit
                tell(f"{now.astype('datetime64[h]')} {job.name} failed: {error}")
                torch.cuda.empty_cache()
                continue
            for product, ds in found.items():
                if not there(product):
                    netcdf.save(small(ds), self.path(now, product), KIND)
            done[job.name] = self.took[job.name] = time.time() - begun
            tell(f"{now.astype('datetime64[h]')} {job.name}: {done[job.name]:.1f} s")
        return done

    def _run(self, job: Job, there: Callable[[str], bool]) -> dict[str, xr.Dataset]:
        found, diverged = {}, 0
        try:
            found = job.run(there)
        except Diverged:
            diverged = 1
        # what there is nothing to tell of is a file too: it is done
        nothing = xr.Dataset(attrs={"diverged": diverged})
        return {product: found.get(product, nothing) for product in job.products}

    # ---------------------------------------------------------------- jobs

    def _window(
        self, hours: int, wanted: Sequence[str], there: Callable[[str], bool]
    ) -> dict[str, xr.Dataset]:
        plan, found = self.plan, {}
        drawn = self.reanalysis(hours, self.settings, self.observed())
        chosen = scored_hours(hours)
        analysis = self.states(drawn, chosen)
        found[f"reanalysis-{hours}"] = self.averages(analysis, drawn.cost)
        if hours == plan.windows[0]:
            found |= {
                f"{kind}-{hours}": ds
                for kind, ds in self._structure(analysis).items()
                if not there(f"{kind}-{hours}")
            }
        if f"changes-{hours}" in wanted:
            every = analysis if len(chosen) == hours else self.states(drawn, range(hours))
            found[f"changes-{hours}"] = temporal_consistency(
                every, self.truth, variables=self._few(every), joints=drawn.joints, workers=1
            )
        if hours == plan.source:
            after = self.now + HOUR * np.array(plan.leads)
            found["persistence-analysis"] = self.averages(persistence(analysis, after))
            later = self.forecast(drawn.z, drawn.residual)
            ahead = self.states(later, [lead - 1 for lead in plan.leads])
            found["forecast"] = self.averages(ahead, later.cost)
        return found

    def _structure(self, analysis: xr.Dataset) -> dict[str, xr.Dataset]:
        r"""Ranks of some hours, and spectra and balances of the last and of one in the middle."""
        few = self._few(analysis)
        last = analysis.sizes["time"] - 1
        two = analysis.isel(time=sorted({last // 2, last}))
        found = {"ranks": self._ranks(analysis)}
        found["spectra"] = by_state(partial(spectra, variables=few, workers=1), two, self.truth)
        if analysis.sizes["member"] > 1:
            found["wavelengths"] = spread_spectra(two, self.truth, variables=few, workers=1)
        return found | self._balances(two)

    def _balances(self, states: xr.Dataset) -> dict[str, xr.Dataset]:
        r"""Balances of states, where these have the variables."""
        if balances(states.isel(member=[0], time=[0]), self.truth, workers=1) is None:
            return {}
        return {"balances": by_state(partial(balances, workers=1), states, self.truth)}

    def _few(self, ds: xr.Dataset) -> list[str]:
        r"""The channels of which more than scores is kept."""
        known = [channel.name for channel in self.model.config.channels]
        return [name for name in self.plan.channels if name in known] or known

    def _ranks(self, analysis: xr.Dataset) -> xr.Dataset:
        r"""Counts of ranks of all hours together, since a date is one sample."""
        plan, few = self.plan, self._few(analysis)
        some = analysis.isel(time=scored_hours(analysis.sizes["time"], 4))
        counts = rank_counts(some, self.truth, variables=few, regions=plan.regions, workers=1)
        total = counts[["count"]].sum("time").expand_dims(time=[self.now])
        return total.assign(sorted=counts["sorted"]) if "sorted" in counts else total

    def _baselines(self, there: Callable[[str], bool]) -> dict[str, xr.Dataset]:
        plan = self.plan
        after = self.now + HOUR * np.array(plan.leads)
        last = self.truth.sel(time=[self.now])
        found = {"persistence-truth": self.averages(persistence(last, after))}
        hours = self.truth.sel(time=self.now - HOUR * np.arange(min(24, plan.before))[::6][::-1])
        with torch.no_grad():
            z = self.model.encode(self._tensor(hours))
        times = hours["time"].values
        decoded = to_dataset(self.model, z[None], times, attrs={})
        found["decoder"] = self.averages(decoded)
        found |= {f"decoder-{kind}": ds for kind, ds in self._balances(decoded).items()}
        if plan.climatology:
            times = self.truth["time"].values
            times = times[times > self.now - HOUR * min(24, plan.before)]
            found["climatology"] = self.averages(climate(plan.climatology, times).compute())
        return found

    def _tensor(self, ds: xr.Dataset) -> Tensor:
        assert self.model.standardizer is not None
        return self.model.standardizer.to_tensor(ds).to(self.model.device)

    @torch.no_grad()
    def _full(self, there: Callable[[str], bool]) -> dict[str, xr.Dataset]:
        first = self.now - HOUR * (self.settings.past - 1)
        x = self._tensor(self.truth.sel(time=slice(first, self.now)))
        z = self.model.encode(x)
        drawn = self.forecast(z[None], (x - self.model.decode(z))[None])
        leads = [lead - 1 for lead in self.plan.leads]
        found = {"forecast-full": self.averages(self.states(drawn, leads), drawn.cost)}
        # the same without what the decoder lacks, which is what the paper has
        bare = self.states(drawn._replace(residual=None), leads)
        return found | {"forecast-encoded": self.averages(bare)}

    def _prior(self, there: Callable[[str], bool]) -> dict[str, xr.Dataset]:
        # windows side by side: what happens between them does not change a score
        update = {"mode": "composed", "stride": self.model.config.window}
        settings = self.settings.model_copy(update=update)
        start, hours = self.now + HOUR, self.plan.after
        posterior, _ = given_observations(self.model, None, start, hours, settings)
        drawn = self.draw(posterior)
        ahead = self.states(drawn, [lead - 1 for lead in self.plan.leads])
        return {"prior": self.averages(ahead, drawn.cost)}

    def _interpolation(self, hours: int, there: Callable[[str], bool]) -> dict[str, xr.Dataset]:
        assert self.covariance is not None
        plan = self.plan
        begun = time.perf_counter()
        ds = interpolate(
            self.covariance,
            self.observed(),
            self.now - HOUR * (hours - 1),
            hours,
            members=plan.members,
            seed=plan.seed,
            settings=self.tuned,
            batch=plan.members,
            device=self.model.device,
        )
        cost = {"seconds": (time.perf_counter() - begun) / plan.members}
        cost |= {"solver_residual": ds.attrs["residual"], "iterations": ds.attrs["iterations"]}
        ds = ds.isel(time=scored_hours(hours))
        found = {f"interpolation-{hours}": self.averages(ds, cost)}
        if hours != plan.windows[0]:
            return found
        found[f"interpolation-ranks-{hours}"] = self._ranks(ds)
        two = ds.isel(time=sorted({(ds.sizes["time"] - 1) // 2, ds.sizes["time"] - 1}))
        few = self._few(ds)
        energy = by_state(partial(spectra, variables=few, workers=1), two, self.truth)
        found[f"interpolation-spectra-{hours}"] = energy
        some = two.isel(member=slice(2))
        found |= {f"interpolation-{k}-{hours}": part for k, part in self._balances(some).items()}
        return found

    @cached_property
    def cycling(self) -> Cycling:
        r"""The LETKF, compiled once."""
        return Cycling(self.filter)

    def weather(self) -> Path:
        r"""The file of the year that its first members are of, of all dates the same."""
        path = Path(self.plan.weather or Path(self.plan.out) / "weather.npz")
        count = min(TRAJECTORIES, self.cycling.settings.members)
        year_of_weather(self.cycling.circulation, path, count, seed=self.plan.seed)
        return path

    def _letkf(self, there: Callable[[str], bool]) -> dict[str, xr.Dataset]:
        r"""The last hour of a filter that is cycled with the planet's own model until now, and
        hours on the way there: after so many it knows what a window of as many holds."""
        plan, begun = self.plan, time.perf_counter()
        names = [n for n in self.truth.data_vars if n in self.store]
        hours = self.now - HOUR * np.arange(plan.cycled)[::-1]
        truth = self.store[names].sel(time=hours).load()
        seen = synthesize(self.model, truth, self.network(), plan.seed)
        with tempfile.TemporaryDirectory() as folder:
            path = cycle(
                seen,
                hours[0],
                plan.cycled,
                Path(folder) / "letkf.zarr",
                seed=plan.seed,
                trajectories=TRAJECTORIES,
                weather=self.weather(),
                cycling=self.cycling,
            )
            cost = {"seconds": time.perf_counter() - begun, "cycles": plan.cycled}
            after = sorted({*(h for h in CYCLED if h < plan.cycled), plan.cycled})
            analysis = open_analysis(path).isel(time=[h - 1 for h in after])
            every = self.averages(analysis, cost, truth)
        return {"letkf": every.isel(time=[-1]), "letkf-cycled": every}

    def _variation(self, v: Variation, there: Callable[[str], bool]) -> dict[str, xr.Dataset]:
        hours = self.plan.hours_of(v)
        drawn = self.reanalysis(hours, self._settings(v), self.observed(**v.network))
        ds = self.states(drawn, scored_hours(hours, 8))
        return {v.product: self.averages(ds, drawn.cost)}


# ---------------------------------------------------------------- parts


def by_state(function: Callable[..., Any], ds: xr.Dataset, truth: xr.Dataset) -> xr.Dataset:
    r"""What a function that gives quantiles over states finds of each state, along `state`: those
    of several dates can be joined, and quantiles taken then."""
    parts: list[xr.Dataset] = []
    for t in range(ds.sizes["time"]):
        for m in range(ds.sizes["member"]):
            found = function(ds.isel(member=[m], time=[t]), truth)
            parts.append(found.sel(quantile=0.5, drop=True))
    return xr.concat(parts, "state", coords="minimal", compat="override")


def small(ds: xr.Dataset) -> xr.Dataset:
    r"""A dataset in single precision, compressed where it is written."""
    ds = ds.copy()
    for name in list(ds.data_vars):
        if ds[name].dtype.kind == "f":
            ds[name] = ds[name].astype(np.float32)
            ds[name].encoding = {"zlib": True, "complevel": 4} if ds[name].ndim else {}
    return ds
