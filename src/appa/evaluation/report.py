r"""The evidence for a run: everything that is known of an ensemble beside the truth, gathered.

What is computed, and how, is told where it is: scores and their differences to baselines
(:mod:`~appa.evaluation.scores`, :mod:`~appa.evaluation.comparison`), calibration
(:mod:`~appa.evaluation.calibration`), scores of whole fields and spread by wavelength
(:mod:`~appa.evaluation.multivariate`), spectra, signed errors
(:mod:`~appa.evaluation.distributions`), balances, the paper's figure of them
(:mod:`~appa.evaluation.consistency`), what changes from hour to hour, and what observations say
(:mod:`~appa.evaluation.innovations`). Each reads the ensemble a block of hours at
a time; nothing here holds more. Scores are of all channels. What is drawn, and what takes a
transform or pairs of members, is of a few.

A part that a run cannot have is missing, and :attr:`Evidence.missing` says why: one member has no
spread, three days no test of uniformity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from .. import __version__
from ..data.stores import open_store
from ..errors import AppaError, DataError
from .balances import balances, constants_of
from .baselines import climate
from .calibration import calibration
from .comparison import compare
from .ensembles import averages, matched, scored_channels, short_name
from .forecasts import HOUR, issued
from .multivariate import field_scores, spread_spectra
from .regions import REGIONS
from .report_runs import joined_stretches, named, opened, started, stretches
from .scores import metrics, pool

if TYPE_CHECKING:
    from ..observations.collection import Observations
    from .departures import Departures

__all__ = ["Evidence", "gather", "shown_channels"]

DRAWN = ("t2m", "msl", "z500", "t850", "u850", "q700")  # of which those that are there
MOST = 6  # channels that are drawn
STATES = 8  # of the truth, and of members, whose physical consistency is looked at
RUN, CLIMATE = "run", "climatology"


@dataclass
class Evidence:
    r"""What is known of a run.

    Arguments:
        about: What the run is, in words, by what they are about.
        configuration: The model's configuration, as text.
        ensemble, truth: Both at the hours that both have, lazily.
        channels: Those that are drawn.
        means: Statistics hour by hour of the run and of what stands beside it, by name: see
            :func:`~appa.evaluation.ensembles.averages`. The run is the first, and called
            :data:`RUN`.
        differences: The run less each of the others, with intervals, by name: see
            :func:`~appa.evaluation.comparison.compare`.
        start: The last hour that was known, of a forecast.
        calibration, wavelengths, spectra, balances, temporal: What the functions of that name
            found; `wavelengths` is of :func:`~appa.evaluation.multivariate.spread_spectra`.
        errors: Histograms of signed errors: see
            :func:`~appa.evaluation.distributions.signed_errors`.
        consistency: The physical consistency of `truth` and `members`, of a few states: see
            :func:`~appa.evaluation.consistency.physical_consistency`.
        fields: Energy and variogram scores of the run and of other ensembles, by name.
        innovations, verification: Tables of observations that were seen, and held out.
        seen: The former themselves.
        missing: Why a part is missing, by its name.
    """

    about: dict[str, str]
    configuration: str
    ensemble: xr.Dataset
    truth: xr.Dataset
    channels: list[str]
    means: dict[str, xr.Dataset]
    differences: dict[str, xr.Dataset] = field(default_factory=dict)
    start: np.datetime64 | None = None
    calibration: xr.Dataset | None = None
    wavelengths: xr.Dataset | None = None
    spectra: xr.Dataset | None = None
    balances: xr.Dataset | None = None
    temporal: xr.Dataset | None = None
    errors: xr.Dataset | None = None
    consistency: dict[str, xr.Dataset] | None = None
    fields: dict[str, xr.Dataset] = field(default_factory=dict)
    innovations: pd.DataFrame | None = None
    verification: pd.DataFrame | None = None
    seen: Observations | None = None
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def members(self) -> int:
        r"""The number of members."""
        return int(self.ensemble.sizes["member"])

    def scores(self) -> dict[str, xr.Dataset]:
        r"""Scores of each hour, with dimensions `(region, time, channel)`, by name."""
        return {name: metrics(part) for name, part in self.means.items()}

    def pooled(self) -> dict[str, xr.Dataset]:
        r"""Scores of all hours together, with dimensions `(region, channel)`, by name."""
        return {name: metrics(pool(part)) for name, part in self.means.items()}


def gather(
    run: xr.Dataset | str | Path | Sequence[str],
    truth: Any,
    *,
    climatology: Any = None,
    baselines: Mapping[str, xr.Dataset | str | Path] | None = None,
    variables: Sequence[str] | None = None,
    regions: Sequence[str] | None = None,
    observations: Any = None,
    held_out: Any = None,
    background: xr.Dataset | str | Path | None = None,
    days: int = 1,
    seed: int = 0,
    workers: int | None = None,
) -> Evidence:
    r"""Gathers the evidence for a run.

    Arguments:
        run: The ensemble as a dataset or its path. Analyses of several dates, as
            :func:`~appa.evaluation.forecasts.open_runs` takes them, are one after another.
        truth: The truth, what :func:`appa.open_store` takes.
        climatology: A climatology to stand beside it, its file, or `"planet"`.
        baselines: Other ensembles or states to stand beside it, by name.
        variables: Variables, or channels such as `"z500"`; by default all that both have.
        regions: Names of :data:`~appa.evaluation.regions.REGIONS`; by default all.
        observations: Those the run has seen, or that a forecast is compared with.
        held_out: Those it has not seen.
        background: An ensemble of the same hours that has seen no observations, for O−B.
        days: The days of a block, of intervals and tests.
        seed: The seed of resampling and of broken ties.
        workers: The number of threads.

    Example:
        >>> evidence = gather("analysis.zarr", "planet", climatology="planet")
        >>> evidence.pooled()["run"]["skill"].sel(channel="z500", region="global")
    """
    path = None if isinstance(run, xr.Dataset) else named(run)
    name = str(truth) if isinstance(truth, str | Path) else None
    run, truth = opened(run), open_store(truth)
    ensemble, matching = matched(run.drop_vars("latents", errors="ignore"), truth)
    if regions is None:
        regions = [r for r in REGIONS if r not in ("land", "ocean") or "land_sea_mask" in truth]
    chosen: dict[str, Any] = {"variables": variables, "workers": workers}
    channels = shown_channels(ensemble, matching, variables)

    # what was given wrongly is told before the work
    others = _beside(ensemble, climatology, baselines or {})
    seen = _observed(run, ensemble, matching, observations, held_out, background)
    means = {RUN: averages(ensemble, matching, regions=regions, **chosen)}
    for key, other in others.items():
        means[key] = _average(key, other, matching, means[RUN], regions, workers)
    evidence = Evidence(
        about=_about(run, ensemble, path, name),
        configuration=str(run.attrs.get("configuration", "")),
        ensemble=ensemble,
        truth=matching,
        channels=channels,
        means=means,
        start=issued(run),
    )
    for key, other in others.items():
        if other.sizes.get("time", 1) < ensemble.sizes["time"]:
            told = f"{other.sizes.get('time', 1)} of {ensemble.sizes['time']}, and scored at those"
            evidence.about[f"hours of {key}"] = told
    if seen is not None:
        evidence.innovations, evidence.verification = seen.innovations, seen.verification
        evidence.seen = seen.seen
        evidence.about |= seen.about
    whole = started(means[RUN], ensemble)
    runs = len(np.unique(whole["start"])) if "start" in whole.coords else 1
    for key in others:
        found = compare(started(means[key], ensemble), whole, days=days, seed=seed)
        evidence.differences[key] = found.assign_attrs(runs=runs)

    few: dict[str, Any] = {"variables": channels, "workers": workers}
    several = evidence.members > 1
    lone = "the run has one member, and it takes several"
    parts: dict[str, Any] = {"spectra": partial(_spectra, ensemble, matching, **few)}
    parts["errors"] = partial(_errors, ensemble, matching, **few)
    parts["balances"] = partial(balances, ensemble, matching, workers=workers)
    parts["consistency"] = partial(_consistency, ensemble, matching)
    parts["temporal"] = partial(_temporal, ensemble, matching, run, few)
    if several:
        options = {"regions": regions, "days": days, "seed": seed, **chosen}
        parts["calibration"] = partial(calibration, ensemble, matching, **options)
        parts["wavelengths"] = partial(spread_spectra, ensemble, matching, **few)
    else:
        evidence.missing |= dict.fromkeys(("calibration", "wavelengths"), lone)
    for key, work in parts.items():
        try:
            setattr(evidence, key, work())
        except AppaError as error:  # a part that cannot be is told, and the others are
            evidence.missing[key] = str(error)
    if evidence.balances is None and "balances" not in evidence.missing:
        evidence.missing["balances"] = (
            "the run has not both geopotential and temperature on two levels, or wind on one"
        )
    ensembles = {RUN: ensemble, **{k: v for k, v in others.items() if k != CLIMATE}}
    for key, other in ensembles.items():
        known = [c for c in channels if c in means[key]["channel"].values]
        if known:
            evidence.fields[key] = field_scores(
                other, matching, regions=("global",), variables=known, workers=workers
            )
    return evidence


def shown_channels(
    estimate: xr.Dataset, truth: xr.Dataset, variables: Sequence[str] | None = None
) -> list[str]:
    r"""The channels that are drawn: of those that are there the usual ones, or else the first."""
    known = [short_name(*c) for c in scored_channels(estimate, truth, variables)]
    return ([c for c in DRAWN if c in known] or known)[:MOST]


# ---------------------------------------------------------------- what the run is


def _about(
    run: xr.Dataset, ensemble: xr.Dataset, path: str | None, truth: str | None
) -> dict[str, str]:
    hours = ensemble["time"].values.astype("datetime64[h]")
    span = f"{hours[0]} to {hours[-1]} UTC" if len(hours) > 1 else f"{hours[0]} UTC"
    within = f" in {count} stretches" if (count := len(stretches(ensemble))) > 1 else ""
    levels = ensemble["level"].values.tolist() if "level" in ensemble.dims else []
    found: dict[str, Any] = {
        "run": path,
        "title": run.attrs.get("title"),
        "task": run.attrs.get("task"),
        "truth": truth,
        "hours": f"{len(hours)} {'hour' if len(hours) == 1 else 'hours'}{within}, {span}",
        "members": str(ensemble.sizes["member"]),
        "grid": f"{ensemble.sizes['latitude']} × {ensemble.sizes['longitude']}",
        "levels": ", ".join(map(str, levels)) + " hPa" if levels else None,
        "model": run.attrs.get("model"),
        "digest of the model": run.attrs.get("model_digest"),
        "digest of its observations": run.attrs.get("observations_digest"),
        "seed": run.attrs.get("seed"),
        "settings": run.attrs.get("settings"),
        "drawn by": run.attrs.get("source"),
        "scored by": f"appa {__version__}, numpy {np.__version__}, xarray {xr.__version__}",
    }
    return {key: str(value) for key, value in found.items() if value is not None}


# ---------------------------------------------------------------- what stands beside it


def _beside(
    ensemble: xr.Dataset, climatology: Any, baselines: Mapping[str, Any]
) -> dict[str, xr.Dataset]:
    r"""The climatology and other estimates by name, at the hours of the run."""
    found: dict[str, xr.Dataset] = {}
    for name, other in baselines.items():
        if name in (RUN, CLIMATE):
            raise DataError(f"a baseline cannot be called {name!r}; choose another name")
        other = opened(other).drop_vars("latents", errors="ignore")
        if "time" in other.dims:
            common = np.isin(other["time"].values, ensemble["time"].values)
            if not common.any():
                first, last = other["time"].values[[0, -1]].astype("datetime64[h]")
                raise DataError(
                    f"the baseline {name} has {first} to {last}, and no hour of the run; give one "
                    "of the same hours"
                )
            other = other.isel(time=np.flatnonzero(common))
        found[name] = other
    if climatology is not None:
        levels = ensemble["level"].values.tolist() if "level" in ensemble.coords else None
        names = [str(name) for name in ensemble.data_vars]
        found[CLIMATE] = climate(climatology, ensemble["time"].values, names, levels)
    return found


def _average(
    name: str,
    other: xr.Dataset,
    truth: xr.Dataset,
    run: xr.Dataset,
    regions: Sequence[str],
    workers: int | None,
) -> xr.Dataset:
    r"""Statistics of another estimate, of those of the run's channels that it has."""
    known = {short_name(*c) for c in scored_channels(other, truth, None)}
    both = [c for c in run["channel"].values.tolist() if c in known]
    if not both:
        raise DataError(f"the baseline {name} has none of the run's variables; leave it out")
    return averages(other, truth, variables=both, regions=regions, workers=workers)


# ---------------------------------------------------------------- single parts


def _spectra(ensemble: xr.Dataset, truth: xr.Dataset, **few: Any) -> xr.Dataset:
    from .distributions import spectra

    return spectra(ensemble, truth, **few)


def _errors(ensemble: xr.Dataset, truth: xr.Dataset, **few: Any) -> xr.Dataset:
    from .distributions import signed_errors

    return signed_errors(ensemble, truth, **few)


def _consistency(ensemble: xr.Dataset, truth: xr.Dataset) -> dict[str, xr.Dataset]:
    r"""The physical consistency of some states of the truth and of as many of members."""
    from .consistency import physical_consistency, states_beside

    if "level" not in ensemble.dims or "level" not in truth.dims:
        raise DataError("the run has no levels, which altitudes and winds are compared at")
    members = ensemble.isel(member=slice(STATES))
    true, _ = states_beside(members, truth, STATES)
    _, drawn = states_beside(members, truth, max(1, STATES // members.sizes["member"]))
    constants = constants_of(truth)
    parts = {"truth": true, "members": drawn}
    return {name: physical_consistency(part, constants) for name, part in parts.items()}


def _temporal(
    ensemble: xr.Dataset, truth: xr.Dataset, run: xr.Dataset, few: dict[str, Any]
) -> xr.Dataset:
    from .temporal import temporal_consistency

    parts = joined_stretches(run, ensemble)
    apart = {float(step / HOUR) for part in parts for step in np.diff(part["time"].values)}
    if apart - {1.0}:
        told = " or ".join(f"{step:g}" for step in sorted(apart))
        raise DataError(f"states are {told} h apart, and tendencies and spectra take every hour")
    return temporal_consistency(parts, truth, **few)


def _observed(
    run: xr.Dataset,
    ensemble: xr.Dataset,
    truth: xr.Dataset,
    observations: Any,
    held_out: Any,
    background: Any,
) -> Departures | None:
    r"""What observations say, of which the run has seen some and not others."""
    from .departures import departures

    if observations is None and held_out is None:
        return None
    prior = None if background is None else opened(background)
    return departures(ensemble, truth, observations, held_out, prior, seen=issued(run) is None)
