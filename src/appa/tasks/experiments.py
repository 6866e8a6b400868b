r"""Experiments with a truth that is known: where an analysis' error comes from.

An *error budget* is a list of variations, each one thing different from a reference that is
converged: many steps, solves to a small residual. All are of the same dates, observations and
seed, so that differences are paired; which are real is for
:func:`appa.evaluation.budget.error_budget_table`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..data import netcdf
from ..data.clock import as_datetime64
from ..data.stores import open_store
from ..data.variables import VARIABLES
from ..errors import DataError, StoreError, nearest
from ..observations.collection import Observations
from ..observations.networks import Network
from ..observations.truth import available
from ..progress import progress
from .assimilation import reanalysis
from .ensembles import model_digest
from .model import Model
from .settings import Settings
from .simulated import digest_of, distort, once, prepared, simulate, synthesize

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["CONVERGED", "Variation", "error_budget", "variations"]

KIND = netcdf.Kind("means", "means of statistics", "make them with: appa budget")
CONVERGED: dict[str, Any] = {
    "sampler": "multistep",
    "steps": 128,
    "iterations": 100,
    "early": 100,
    "tolerance": 1e-3,
}
HOUR = np.timedelta64(3600, "s")
WINDOWS = ("composed", "sequential", "apart")


@dataclass(frozen=True)
class Variation:
    r"""One thing that differs from the reference.

    Arguments:
        name: Its name.
        about: What it tells, in words.
        settings: Settings that differ.
        change: How observations differ, see :func:`~appa.tasks.simulated.distort`.
        kind: `reanalysis`; `decoder`, the truth encoded and decoded; `prior`, a truth drawn from
            the prior in place of the real one; `unobserved`, the prior itself; or `apart`, windows
            that know nothing of each other.
    """

    name: str
    about: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    change: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "reanalysis"


def variations(
    settings: Settings, reference: Settings, withheld: Sequence[str] = ()
) -> list[Variation]:
    r"""The variations of a budget.

    Arguments:
        settings: The settings whose errors are told apart.
        reference: Those of the converged reference.
        withheld: Variables whose observations are withheld, one after the other.
    """
    given = settings.model_dump()

    def own(*keys: str) -> dict[str, Any]:
        return {key: given[key] for key in keys}

    found = [
        Variation("reference", "converged"),
        Variation("setting", "as it is set", given),
        Variation("decoder", "the truth, encoded and decoded", kind="decoder"),
        Variation("prior", "a truth drawn from the prior", kind="prior"),
        Variation("unobserved", "the prior, without observations", kind="unobserved"),
        Variation("solver", "solves as set", own("solver", "iterations", "early", "tolerance")),
        Variation("steps", "steps as set", own("sampler", "steps", "corrections")),
        Variation("guidance", "guidance as set", own("guidance", "curvature")),
        Variation("composed", "windows composed", {"mode": "composed"}),
        Variation("sequential", "windows one after another", {"mode": "sequential"}),
        Variation("apart", "windows without each other", kind="apart"),
        Variation(
            "representation",
            "the decoder's errors ignored",
            {"representation": "none", "residual": False},
        ),
        Variation("errors × 0.5", "errors told too small", change={"errors": 0.5}),
        Variation("errors × 2", "errors told too large", change={"errors": 2.0}),
        Variation("bias", "observations biased by their error", change={"bias": 1.0}),
    ]
    found += [
        Variation(f"without {name}", "withheld", change={"without": [name]}) for name in withheld
    ]
    base = reference.model_dump()
    # what sets what the reference has is no variation
    return [
        v for v in found if not v.settings or v.name == "setting" or base | dict(v.settings) != base
    ]


def error_budget(
    model: Model,
    truth: Any,
    network: Network,
    dates: Sequence[Any],
    *,
    hours: int = 24,
    members: int = 10,
    settings: Settings | None = None,
    reference: Mapping[str, Any] | None = None,
    chosen: Sequence[str] | None = None,
    withheld: Sequence[str] = (),
    variables: Sequence[str] | None = None,
    regions: Sequence[str] = ("global",),
    seed: int = 0,
    out: str | Path | None = None,
    batch: int | None = None,
    workers: int = 1,
) -> dict[str, xr.Dataset]:
    r"""Scores variations of a reanalysis against a truth that is known.

    Arguments:
        model: The model.
        truth: The truth, what :func:`appa.open_store` takes.
        network: The network that observes it.
        dates: The first hour of each run, at least `hours` apart.
        hours: The hours of each.
        members: The members of each.
        settings: The settings whose errors are told apart, by default the model's.
        reference: What the converged reference has instead.
        chosen: Names of variations, by default all of :func:`variations`, those of windows where
            there are several; the reference is always among them.
        withheld: Variables whose observations are withheld, one after the other, by their names or
            short ones.
        variables: The variables scored.
        regions: Of `global`, `tropics`, …
        seed: The seed of observations and members.
        out: A folder for what is found of each date, from which a killed run goes on.
        batch, workers: As of :func:`appa.tasks.assimilation.reanalysis`.

    Returns:
        The means of statistics of each variation, of all dates, for
        :func:`appa.evaluation.budget.error_budget_table`.
    """
    import xarray as xr

    from ..evaluation.ensembles import averages

    settings = settings or Settings.of(model.config)
    base = settings.model_dump() | dict(CONVERGED if reference is None else reference)
    converged = Settings.of(model.config, **base)
    store = open_store(truth)
    every = variations(settings, converged, _observed(network, store, withheld))
    names = [v.name for v in every]
    for name in chosen or ():
        if name not in names:
            raise DataError(f"there is no variation {name!r}{nearest(name, names)}")
    if chosen is None:  # of one window there is nothing to compose
        chosen = names if hours > model.config.window else [n for n in names if n not in WINDOWS]
    wanted = [v for v in every if v.name in ("reference", *chosen)]
    starts = np.sort(np.array([as_datetime64(date) for date in dates]).astype("datetime64[h]"))
    if not len(starts) or (np.diff(starts) < np.timedelta64(hours, "h")).any():
        raise DataError(
            f"dates must be at least {hours} hours apart, found {list(map(str, starts))}"
        )
    _scored(model, store, variables, regions)
    needed = np.add.outer(starts, np.arange(hours)).ravel()
    missing = ~np.isin(needed, as_datetime64(store["time"].values).astype("datetime64[h]"))
    if missing.any():
        raise DataError(
            f"the truth has no {needed[missing][0]}, which is among {len(starts)} runs of {hours} "
            f"hours from {starts[0]}; choose fewer or other dates"
        )
    found: dict[str, list[xr.Dataset]] = {v.name: [] for v in wanted}
    with ExitStack() as stack:
        folder = None
        if out is not None:
            key = {
                "model_digest": model_digest(model),
                "network": digest_of(network),
                "hours": hours,
                "members": members,
                "settings": settings.model_dump(),
                "reference": converged.model_dump(),
                "variables": None if variables is None else list(variables),
                "regions": list(regions),
                "seed": seed,
            }
            folder = prepared(out, key, stack)
        stack.enter_context(once())
        bar = stack.enter_context(
            progress(len(starts) * len(wanted), "drawing a budget", unit="runs")
        )
        for start in starts:
            here = store.sel(time=start + np.arange(hours) * np.timedelta64(1, "h")).load()
            seen = synthesize(model, here, network, seed)
            digest = seen.digest()
            for v in wanted:
                name = v.name.replace(" ", "-").replace("×", "x")
                path = None if folder is None else folder / f"{name}-{start}.nc"
                if path is not None and path.exists():
                    part = netcdf.load(path, KIND)
                    if part.attrs.get("observations") != digest:
                        raise StoreError(
                            f"{path} is of other observations: the truth is not the one it was "
                            "begun with; give that, or choose another folder"
                        )
                    found[v.name].append(part)
                    bar.skip(1)
                    continue
                options = {"members": members, "batch": batch, "workers": workers}
                ensemble, against = _drawn(
                    model, v, converged, network, here, seen, hours, seed, options
                )
                means = averages(ensemble, against, variables=variables, regions=regions)
                means = means.assign_coords(start=("time", np.full(hours, start, "datetime64[ns]")))
                means = means.assign_attrs(observations=digest)
                if path is not None:
                    netcdf.save(means, path, KIND)
                found[v.name].append(means)
                bar.advance()
    return {
        name: xr.concat(
            parts, "time", coords="minimal", compat="override", combine_attrs="override"
        )
        for name, parts in found.items()
    }


def _observed(network: Network, store: xr.Dataset, words: Sequence[str]) -> list[str]:
    r"""The variables that words stand for, which the network sees of the store."""
    seen = [*(network.variables if len(network.stations) else ())]
    seen += [name for satellite in network.satellites for name in satellite.variables]
    names = [name for name in dict.fromkeys(seen) if available(store, name)]
    short = {VARIABLES[name].short: name for name in names if name in VARIABLES}
    for word in words:
        if word not in (*names, *short):
            hint = nearest(word, [*names, *short])
            raise DataError(f"the network sees no {word!r} to withhold{hint}")
    return list(dict.fromkeys(short.get(word, word) for word in words))


def _scored(
    model: Model, store: xr.Dataset, variables: Sequence[str] | None, regions: Sequence[str]
) -> None:
    r"""Raises where something is to be scored that there is not, before anything is drawn."""
    from ..evaluation.ensembles import scored_channels
    from ..evaluation.regions import region_weights

    assert model.standardizer is not None
    known = [name for name in model.standardizer.names if name in store]
    scored_channels(store[known].sel(_levels(model, store)), store, variables)
    region_weights(model.grid, regions, store.get("land_sea_mask"))


def _levels(model: Model, store: xr.Dataset) -> dict[str, list[int]]:
    if "level" not in store.dims:
        return {}
    return {"level": [p for p in model.config.data.levels if p in store["level"].values]}


def _drawn(
    model: Model,
    v: Variation,
    base: Settings,
    network: Network,
    truth: xr.Dataset,
    seen: Observations,
    hours: int,
    seed: int,
    options: dict[str, Any],
) -> tuple[xr.Dataset, xr.Dataset]:
    r"""The ensemble of one variation of one date, and its truth."""
    import xarray as xr

    settings = Settings.of(model.config, **(base.model_dump() | dict(v.settings)))
    start = truth["time"].values[0]
    if v.kind == "decoder":
        assert model.standardizer is not None
        with torch.no_grad():
            z = model.encode(model.standardizer.to_tensor(truth).to(model.device))
        ensemble = model.to_dataset(z[None], truth["time"].values)
    elif v.kind == "prior":
        both = {"settings": settings, "truths": base, "seed": seed, **options}
        ensemble, truth, _ = simulate(model, network, start, hours, **both)
    elif v.kind == "apart":
        window, parts = model.config.window, []
        for first in range(0, hours, window):
            here, length = start + first * HOUR, min(window, hours - first)
            part = _between(seen, here, length)
            parts.append(
                reanalysis(model, part, here, length, seed=seed, settings=settings, **options)
            )
        ensemble = xr.concat(parts, "time", combine_attrs="override")
    else:
        given = None if v.kind == "unobserved" else distort(seen, **v.change)
        ensemble = reanalysis(model, given, start, hours, seed=seed, settings=settings, **options)
    return ensemble.drop_vars("latents", errors="ignore"), truth


def _between(seen: Observations, start: Any, hours: int) -> Observations | None:
    r"""The observations of some hours, or none."""
    there = start + HOUR * np.arange(hours)
    if not np.isin(seen.hours.astype("datetime64[s]"), there.astype("datetime64[s]")).any():
        return None
    return seen.between(start, hours)
