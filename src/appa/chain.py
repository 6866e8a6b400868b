r"""The demonstration's chain: observations of the bundled planet become a reanalysis, its last hour
a filter's state, and a forecast goes on from there; all three are scored.

Beside the scores of the ensembles stand those of what one would know without observations, or
without a model of what comes next:

* *climatology*, at each point the normal distribution of the weather of the season and hour;
* the *prior*, an ensemble of as many members, drawn given nothing;
* *persistence* of the analysis, whose members all stay as they are in the last hour.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .demo import CHANNELS, Day
from .errors import DataError, StoreError
from .machine import cores

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from .tasks.model import Model
    from .tasks.settings import Settings

__all__ = [
    "LEADS",
    "Chain",
    "check_begun",
    "check_fits",
    "check_free",
    "run",
    "save_scores",
    "tables",
]

LEADS = (6, 24, 48)  # hours ahead that are told
NAMES = tuple(channel.name for channel in CHANNELS)
VARIABLES = tuple(dict.fromkeys(channel.variable for channel in CHANNELS))
LEVELS = tuple(sorted({channel.level for channel in CHANNELS if channel.level is not None}))


@dataclass(frozen=True)
class Chain:
    r"""What was drawn, and how good it is.

    Arguments:
        truth: The truth, of all hours.
        analysis: The reanalysis; its last hour is the filter's.
        forecast: What comes after.
        means: The means by hour of the statistics of `analysis`, `forecast`, `climatology`,
            `prior` and `persistence`, see :func:`appa.evaluation.ensembles.averages`.
    """

    truth: xr.Dataset
    analysis: xr.Dataset
    forecast: xr.Dataset
    means: dict[str, xr.Dataset]

    @property
    def now(self) -> np.datetime64:
        r"""The last hour that was observed."""
        return self.analysis["time"].values[-1]


def check_fits(model: Model, truth: xr.Dataset) -> None:
    r"""Raises where a model is not one of the planet's fields and grid."""
    from .tasks.folders import check_grid

    _ = model.denoiser  # or its error
    check_grid(truth, model.config)
    known = [channel.name for channel in model.config.channels]
    lost = [name for name in NAMES if name not in known]
    if lost:
        raise DataError(
            f"{model.origin} has no {', '.join(lost)}, which the demonstration scores; give a "
            "model of the planet's variables"
        )


def run(
    model: Model,
    day: Day,
    truth: xr.Dataset,
    directory: Path,
    *,
    members: int,
    settings: Settings,
    seed: int = 0,
    tell: Callable[[str], Any] = lambda line: None,
) -> Chain:
    r"""Runs the chain.

    Arguments:
        model: A model of the planet.
        day: The hours that are observed, and their observations.
        truth: The same hours and those of the forecast, which come after.
        directory: Where `analysis.zarr` and `forecast.zarr` go, in place of those that are there.
        members: The number of members.
        settings: How they are drawn.
        seed: The seed.
        tell: What is called with a line on what is about to be done.
    """
    from .evaluation.baselines import climate, persistence
    from .evaluation.ensembles import averages
    from .observations.reading import read_observations
    from .tasks.assimilation import forecast, reanalysis
    from .tasks.ensembles import provenance

    check_fits(model, truth)
    check_free(directory)
    settings = settings.on(model.device)
    out = {name: directory / f"{name}.zarr" for name in ("analysis", "forecast")}
    times = truth["time"].values
    hours, ahead = day.truth.sizes["time"], len(times) - day.truth.sizes["time"]
    workers = min(members, cores() if model.device.type == "cpu" else 1)
    common: dict[str, Any] = {
        "members": members,
        "seed": seed,
        "settings": settings,
        "workers": workers,
    }

    seen = read_observations([day.table, day.swath], levels=model.config.data.levels)
    seen = seen.between(times[0], hours)
    attrs = provenance(model, "reanalysis", seed=seed, settings=settings, observations=seen)
    # what was scored is of an earlier chain; what was not is of one that was killed
    analysis = None if _scored(out["analysis"]) else _whole(out["analysis"], attrs, members)
    later = None
    if analysis is not None:
        tell(f"{out['analysis']} is whole: going on from it")
        again = provenance(model, "forecast", seed=seed, settings=_last(settings))
        if not _scored(out["forecast"]):
            later = _whole(out["forecast"], again, members)
    else:
        tell(f"drawing the reanalysis, {members} members of {hours} hours")
        shutil.rmtree(out["analysis"], ignore_errors=True)
        where: dict[str, Any] = {"out": out["analysis"], "latents": True}
        analysis = reanalysis(model, seen, times[0], hours, **where, **common)
    if later is not None and np.array_equal(later["time"].values, times[hours:]):
        tell(f"{out['forecast']} is whole, too")
    else:
        tell(f"drawing the forecast, {members} members of {ahead} hours")
        shutil.rmtree(out["forecast"], ignore_errors=True)
        how: dict[str, Any] = common | {"settings": _last(settings)}
        later = forecast(model, analysis, ahead, out=out["forecast"], **how)
    tell("drawing the prior, for comparison")
    # windows side by side: what happens between them does not change a score
    apart = settings.model_copy(update={"mode": "composed", "stride": model.config.window})
    shown: dict[str, Any] = {"variables": VARIABLES, "levels": LEVELS, "latents": False}
    prior = reanalysis(model, None, times[0], len(times), **common | {"settings": apart}, **shown)

    estimates = {
        "analysis": analysis,
        "forecast": later,
        "climatology": climate("planet", times, VARIABLES, LEVELS),
        "prior": prior,
        "persistence": persistence(analysis, times[hours:]),
    }
    means = {
        name: averages(estimate, truth, variables=NAMES) for name, estimate in estimates.items()
    }
    return Chain(truth, analysis, later, means)


def check_free(directory: Path) -> None:
    r"""Raises where something else is in the place of ensembles; earlier ones are replaced."""
    for path in (directory / "analysis.zarr", directory / "forecast.zarr"):
        try:
            attrs = json.loads((path / "zarr.json").read_text())["attributes"]
        except (OSError, ValueError, KeyError):
            attrs = {}
        if path.exists() and "model_digest" not in attrs:
            raise StoreError(f"{path} is in the way: it is no ensemble of Appa's; move it")


def check_begun(
    directory: Path,
    model: Model,
    truth: xr.Dataset,
    hours: int,
    *,
    members: int,
    settings: Settings,
    seed: int = 0,
) -> None:
    r"""Raises where a chain was begun in a folder otherwise, and not finished: before its
    observations are replaced.

    Arguments:
        directory: The folder.
        model, truth, members, settings, seed: As of :func:`run`.
        hours: The number of hours that are observed.
    """
    from .tasks.ensembles import provenance
    from .tasks.resuming import begun_otherwise, differences

    times = np.datetime_as_string(truth["time"].values, unit="h").tolist()
    settings = settings.on(model.device)
    known = max(hours - settings.past, 0)
    both = {
        "analysis": ("reanalysis", settings, times[0], times[hours - 1]),
        "forecast": ("forecast", _last(settings), times[known], times[-1]),
    }
    for name, (task, how, first, end) in both.items():
        path = directory / f"{name}.zarr"
        before = _begun(path)
        now = provenance(model, task, seed=seed, settings=how)
        now |= {"members": members, "first hour": first, "last hour": end}
        now = {key: value for key, value in now.items() if key in before}
        told = list(differences({key: before[key] for key in now}, now))
        if told:
            raise StoreError(begun_otherwise(_unfinished(path), told, f"folder than {directory}"))


def _last(settings: Settings) -> Settings:
    r"""What forecasts are drawn with."""
    return settings.model_copy(update={"mode": "sequential"})


def _scored(path: Path) -> bool:
    r"""Whether the scores beside an ensemble are later than it."""
    try:
        drawn = (path / "zarr.json").stat().st_mtime_ns
        return (path.parent / "scores.nc").stat().st_mtime_ns >= drawn
    except OSError:
        return False


def _unfinished(path: Path) -> list[Path]:
    r"""What an unfinished run has left beside the place of its ensemble."""
    beside = [path.with_name(path.name + end) for end in (".partial", ".run")]
    return [place for place in beside if place.exists()]


def _begun(path: Path) -> dict[str, Any]:
    r"""How an unfinished run was begun, as far as it says; nothing where there is none."""
    run, partial = (path.with_name(path.name + end) for end in (".run", ".partial"))
    try:
        found = json.loads((run / "key.json").read_text())
    except (OSError, ValueError):
        try:
            found = json.loads((partial / ".appa" / "ensemble.json").read_text())["attributes"]
        except (OSError, ValueError, KeyError):
            return {}
    keys = ("seed", "settings", "members", "model_digest")
    begun = {key: found[key] for key in keys if key in found}
    if "period" in found:
        first, last = (str(np.datetime64(hour, "h")) for hour in found["period"])
        begun |= {"first hour": first, "last hour": last}
    return begun


def _whole(path: Path, attrs: dict[str, Any], members: int) -> xr.Dataset | None:
    r"""The ensemble at a path, if it is there and was made like that."""
    import xarray as xr

    from .tasks.ensembles import differing

    try:
        ds = xr.open_zarr(path)
    except (OSError, ValueError):
        return None
    return ds if not differing(ds, attrs) and ds.sizes["member"] == members else None


def tables(chain: Chain) -> dict[str, pd.DataFrame]:
    r"""The scores, a table each of the reanalysis, the filter, and the forecast at some hours.

    Returns:
        By title, a row a channel: `skill` and `crps` of the ensemble, of `climatology` and `prior`
        and of a forecast's `persistence` as `skill_climatology`, …, and the `ratio` of spread to
        skill, in stored units.
    """
    import pandas as pd

    from .evaluation.scores import metrics, pool

    past, later = chain.analysis["time"].values, chain.forecast["time"].values
    leads = sorted({*(h for h in LEADS if h <= len(later)), len(later)})
    parts: dict[str, tuple[str, np.ndarray]] = {
        f"Reanalysis, {len(past)} hours": ("analysis", past),
        "Filter, the last of them": ("analysis", past[-1:]),
    }
    parts |= {f"Forecast, {h} hours ahead": ("forecast", later[h - 1 : h]) for h in leads}
    found = {}
    for title, (task, times) in parts.items():
        beside = ["climatology", "prior", *(["persistence"] if task == "forecast" else [])]
        columns = {}
        for name in (task, *beside):
            scores = metrics(pool(chain.means[name].sel(time=times))).isel(region=0)
            end = "" if name == task else f"_{name}"
            for score in ("skill", "crps", *(["ratio"] if name == task else [])):
                columns[f"{score}{end}"] = scores[score].values
        found[title] = pd.DataFrame(columns, index=list(NAMES))
    return found


def save_scores(chain: Chain, path: Path) -> Path:
    r"""Writes the scores of every hour, with a dimension `estimate`."""
    import xarray as xr

    from .data import netcdf, planet
    from .evaluation.files import KIND
    from .evaluation.scores import metrics

    parts = [metrics(means, planet.statistics()) for means in chain.means.values()]
    names = xr.DataArray(list(chain.means), dims="estimate", name="estimate")
    scores = xr.concat(parts, names, join="outer", coords="minimal", compat="override")
    return netcdf.save(scores.drop_attrs(deep=False), path, KIND)
