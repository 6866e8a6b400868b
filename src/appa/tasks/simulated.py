r"""Simulation-based calibration: truths from the prior, observed, and drawn again.

A simulation is a trajectory drawn from the model's prior, observed by a network, and an ensemble
drawn given these observations by the task under any settings. Its truth, its observations' noise
and its members have seeds of their own, which follow from one seed and the simulation's number, so
that simulations may be added later. What the ranks say is in :mod:`appa.evaluation.simulation`.

What members of an exact posterior would share with the truth is the misfit to the observations, 1
by observation: see there. Draws are not exact, and some of what they leave is in the code. Truths
have an :math:`r`, what the decoder cannot express, that is correlated in space
(:mod:`appa.observations.residual`); in the likelihood of latents a diagonal covariance stands for
that (:mod:`appa.observations.crowding`), so that latents are not quite drawn from the posterior of
such truths. Given latents, :math:`r` is drawn by its own covariance, but for precipitation, whose
is bent to have no states below zero. Solves end at a tolerance, and MMPS takes what is left to know
for Gaussian. The ratio of misfits tells what all of it comes to, not which it is.

Each simulation's ranks and misfits are a file, `OUT/0007.nc`; a run that is killed goes on with
those that are missing. Files that have ranks alone are older, and count for these.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..data import netcdf
from ..data.clock import as_datetime64
from ..data.variables import STATIC
from ..errors import DataError, StoreError, nearest
from ..locks import hold
from ..observations.collection import Observations
from ..observations.networks import Network
from ..observations.operators import StateSpace, compile_observations
from ..observations.reading import read_observations
from ..observations.synthesis import observe
from ..progress import progress
from .assimilation import reanalysis
from .ensembles import model_digest
from .model import Model
from .resuming import differences
from .settings import Settings

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["distort", "misfits", "simulate", "simulation_based_calibration", "synthesize"]

KIND = netcdf.Kind("ranks", "ranks of a simulation", "make them with: appa calibrate")
PROJECTIONS = 8


def synthesize(model: Model, truth: xr.Dataset, network: Network, seed: int) -> Observations:
    r"""Observes a truth of the model's variables with a network.

    Arguments:
        model: The model, whose statistics scale the noise and whose ground stations stand on.
        truth: The truth, without members.
        network: The network.
        seed: Selects the noise.
    """
    if model.statistics is None:
        raise DataError(f"{model.origin} has no statistics of its states, which noise is scaled by")
    known = model.statistics
    static = {name: known[name] for name in STATIC if name in known and name not in truth}
    table, swath = observe(truth.assign(static), network, seed=seed, statistics=known)
    parts: list[Any] = [table] if len(table) else []
    parts += [swath] if swath.data_vars else []
    return read_observations(parts, levels=model.config.data.levels)


def distort(
    observations: Observations,
    *,
    errors: float = 1.0,
    bias: float = 0.0,
    without: Sequence[str] = (),
) -> Observations:
    r"""Observations that are not what they say.

    Arguments:
        observations: The observations.
        errors: What their errors are multiplied by, not their noise.
        bias: What is added to values, in units of their errors as they were.
        without: Variables that are left out.
    """
    if not errors > 0:
        raise DataError(f"found errors={errors}, expected a factor above 0")
    known = observations.variables
    for name in without:
        if name not in known:
            raise DataError(f"there is no {name!r} to withhold{nearest(name, known)}")
    points = observations.points.loc[~observations.points["variable"].isin(list(without))].copy()
    points["value"] += bias * points["error"]
    points["error"] *= errors
    gridded = observations.gridded
    if gridded is not None:
        gone = [f"{name}{end}" for name in without for end in ("", "_error") if name in gridded]
        gridded = gridded.drop_vars(gone)
        for name in [str(n) for n in gridded.data_vars if f"{n}_error" in gridded]:
            error = gridded[f"{name}_error"]
            shifted = (gridded[name] + bias * error).assign_attrs(gridded[name].attrs)
            gridded = gridded.assign(
                {name: shifted, f"{name}_error": (errors * error).assign_attrs(error.attrs)}
            )
        gridded = gridded if gridded.data_vars else None
    found = Observations(points, gridded, observations.excluded, observations.notes)
    if not found:
        raise DataError(f"without {', '.join(without)} no observation is left")
    return found


def misfits(model: Model, observations: Observations, ds: xr.Dataset) -> np.ndarray:
    r"""The mean square of departures of each member from observations, in units of their errors,
    with shape :math:`(M)`."""
    assert model.standardizer is not None
    operators = compile_observations(observations, StateSpace.of(model), ds["time"].values)
    total, count = np.zeros(ds.sizes["member"]), 0
    for hour, operator in enumerate(operators):
        if operator is not None:
            x = model.standardizer.to_tensor(ds.isel(time=hour))
            total += operator.departure(x).double().square().sum(dim=1).cpu().numpy()
            count += len(operator)
    return total / max(count, 1)


def simulate(
    model: Model,
    network: Network,
    start: Any,
    hours: int,
    *,
    members: int,
    settings: Settings,
    truths: Settings,
    seed: int,
    number: int = 0,
    change: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[xr.Dataset, xr.Dataset, Observations]:
    r"""Draws a truth from the prior, observes it, and draws members of the posterior.

    Arguments:
        model: The model.
        network: The network.
        start: The first hour.
        hours: The number of hours.
        members: The number of members.
        settings: How members are drawn.
        truths: How the truth is drawn.
        seed: The seed.
        number: The simulation's number.
        change: What the task is told of the observations instead, see
            :func:`distort`.
        options: As of :func:`appa.tasks.assimilation.reanalysis`.

    Returns:
        Members, truth, and the observations as they were made.
    """
    seeds = np.random.SeedSequence([seed, number]).generate_state(3)
    # negative humidity is kept: of two that are clipped none is the larger
    both = {"latents": True, "negatives": "keep"}
    first, noise, last = (int(s) for s in seeds)
    truth = reanalysis(
        model, None, start, hours, members=1, seed=first, settings=truths, **both
    ).isel(member=0, drop=True)
    seen = synthesize(model, truth, network, noise)
    told = distort(seen, **change) if change else seen
    ensemble = reanalysis(
        model,
        told,
        start,
        hours,
        members=members,
        seed=last,
        settings=settings,
        **both,
        **options,
    )
    return ensemble, truth, seen


def simulation_based_calibration(
    model: Model,
    network: Network,
    dates: Sequence[Any],
    *,
    hours: int = 24,
    members: int = 15,
    settings: Settings | None = None,
    truths: Settings | None = None,
    change: Mapping[str, Any] | None = None,
    regions: Sequence[str] = ("global",),
    seed: int = 0,
    out: str | Path | None = None,
    batch: int | None = None,
    workers: int = 1,
) -> xr.Dataset:
    r"""Tests a sampler on truths that are draws of its own prior.

    Arguments:
        model: The model.
        network: The network that observes.
        dates: The first hour of each simulation; the same may come again, with another truth.
        hours: The hours of each.
        members: The members of each: there is one rank more.
        settings: How members are drawn, by default as the model's configuration says.
        truths: How truths are drawn, by default with 128 steps, and windows one after another.
        change: What the task is told of the observations instead of what is so, see
            :func:`distort`: `{"errors": 0.5}` is one too sure of them.
        regions: Of `global`, `tropics`, …
        seed: The seed.
        out: A folder for the ranks and misfits of each simulation, from which a killed run goes on.
        batch, workers: As of :func:`appa.tasks.assimilation.reanalysis`.

    Returns:
        What :func:`appa.evaluation.simulation.simulated_calibration` says.

    Example:
        >>> network = named_network(model.grid)
        >>> found = simulation_based_calibration(model, network, ["2021-03-21T00"] * 30)
        >>> found["latent_dispersion"].mean()
    """
    from ..evaluation.regions import REGIONS
    from ..evaluation.simulation import projections, simulated_calibration, simulated_ranks

    settings = settings or Settings.of(model.config)
    if truths is None:  # as they are, whatever the settings that are tested
        fine = {"sampler": "multistep", "steps": 128, "iterations": 20, "tolerance": 0.01}
        truths = Settings.of(model.config, mode="auto", lag=0, background="none", **fine)
    if members < 2:
        raise DataError(f"a rank is one among members: found {members}, expected 2 or more")
    if not len(dates):
        raise DataError("there is no date to simulate; give one or more")
    for name in regions:
        if name not in REGIONS:
            raise DataError(f"unknown region {name!r}{nearest(name, REGIONS)}")
    starts = [str(as_datetime64(date).astype("datetime64[h]")) for date in dates]
    parts = []
    with ExitStack() as stack:
        folder = None
        if out is not None:
            key = {
                "model_digest": model_digest(model),
                "network": digest_of(network),
                "hours": hours,
                "members": members,
                "settings": settings.model_dump(),
                "truths": truths.model_dump(),
                "change": dict(change or {}),
                "regions": list(regions),
                "seed": seed,
            }
            folder = prepared(out, key, stack)
        stack.enter_context(once())
        bar = stack.enter_context(progress(len(starts), "simulating", unit="simulations"))
        for number, start in enumerate(starts):
            path = None if folder is None else folder / f"{number:04d}.nc"
            if path is not None and path.exists():
                ranks = netcdf.load(path, KIND)
                if ranks.attrs["start"] != start:
                    raise StoreError(
                        f"{path} is of {ranks.attrs['start']}, but simulation {number} is to be of "
                        f"{start}; give the dates it was begun with, more after them, or another "
                        "folder"
                    )
                parts.append(ranks)
                bar.skip(1)
                continue
            ensemble, truth, seen = simulate(
                model,
                network,
                start,
                hours,
                members=members,
                settings=settings,
                truths=truths,
                seed=seed,
                number=number,
                change=change,
                batch=batch,
                workers=workers,
            )
            with torch.no_grad():
                found = misfits(model, seen, truth.expand_dims("member"))
                quantities = {"misfit": (float(found[0]), misfits(model, seen, ensemble))}
            z, others = (
                projections(ds["latents"].values, PROJECTIONS, seed) for ds in (truth, ensemble)
            )
            for k in range(PROJECTIONS):
                quantities[f"projection {k}"] = (float(z[k]), others[:, k])
            ranks = simulated_ranks(ensemble, truth, quantities, regions=regions, seed=number)
            ranks = ranks.assign_attrs(start=start, number=number)
            if path is not None:
                netcdf.save(ranks, path, KIND)
            parts.append(ranks)
            bar.advance()
    return simulated_calibration(parts)


@contextmanager
def once() -> Iterator[None]:
    r"""Tells a warning that many runs have in common once."""
    seen: set[str] = set()
    with warnings.catch_warnings():
        show = warnings.showwarning

        def first(message: Any, *args: Any, **kwargs: Any) -> None:
            if str(message) not in seen:
                seen.add(str(message))
                show(message, *args, **kwargs)

        warnings.showwarning = first
        yield


def prepared(out: str | Path, key: Mapping[str, Any], stack: ExitStack) -> Path:
    r"""A folder for the parts of a run, which is of one key and one process."""
    folder, plain = Path(out), json.loads(json.dumps(dict(key)))
    notes = folder / "key.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(hold(folder))
        if notes.exists():
            if told := list(differences(json.loads(notes.read_text()), plain)):
                raise StoreError(
                    f"{folder} was begun otherwise: {'; '.join(told)}. Rerun as it was begun to go "
                    "on, or choose another folder"
                )
        elif any(p.name != "lock" for p in folder.iterdir()):
            raise StoreError(f"{folder} is in the way: it holds no run of this kind; move it")
        else:
            partial = notes.with_name(f".{notes.name}.partial")
            partial.write_text(json.dumps(plain, indent=1))
            partial.replace(notes)
    except OSError as error:
        raise StoreError(f"cannot write {folder} ({error}); choose another folder") from error
    return folder


def digest_of(network: Network) -> str:
    r"""A hash of a network."""
    words = [network.name, network.stations.to_csv(), repr(network.satellites)]
    words += [repr((network.variables, network.noise, sorted(network.errors.items())))]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]
