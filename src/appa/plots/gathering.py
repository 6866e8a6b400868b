r"""What figures are drawn from, gathered by paths: runs under a label, scored beside baselines.

A run is told as `PATH`, or as `LABEL=PATH` where the file's name says too little. Several runs
under one label, or those of a pattern, are one system from several dates: their scores are by lead
time, with intervals over dates (:mod:`appa.evaluation.dates`). A file that `appa evaluate --out`
wrote stands for the scores it holds.
"""

from __future__ import annotations

import glob
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from ..data.stores import open_store
from ..errors import DataError
from ..evaluation.baselines import climate, persistence
from ..evaluation.dates import over_dates
from ..evaluation.distributions import spectra
from ..evaluation.ensembles import averages
from ..evaluation.forecasts import HOUR, by_lead, issued, open_runs
from ..evaluation.scores import metrics, pool
from ..tasks.analyses import open_analysis
from .calibration import PREFERRED
from .fields import locate
from .prior import SPECTRA

__all__ = [
    "channels_of",
    "coast_of",
    "labelled",
    "levels_of",
    "observations_of",
    "open_truth",
    "saved",
    "scores_of",
    "spectra_of",
]


def labelled(words: Sequence[str]) -> dict[str, list[str]]:
    r"""The paths of runs by their labels, patterns written out."""
    found: dict[str, list[str]] = {}
    for word in words:
        label, equals, path = word.partition("=")
        if not equals or Path(word).exists() or "/" in label:
            label, path = "", word
        if not path:
            raise DataError(f"found {word!r}; give a label and a path: LABEL=PATH")
        if glob.has_magic(path):
            paths = sorted(glob.glob(path))
            if not paths:
                raise DataError(f"no file or folder is named as {path!r} says")
            found.setdefault(label or path, []).extend(paths)
            continue
        name = label or Path(path.rstrip("/")).stem
        if not label and name in found:  # of one name, but in other folders: another run
            name = path
        found.setdefault(name, []).append(path)
    return found


def open_truth(truth: str | None) -> xr.Dataset:
    if truth is None:
        raise DataError("runs are scored against a truth; give one: --truth STORE")
    return open_store(truth)


def saved(path: str) -> dict[str, xr.Dataset] | None:
    r"""The scores a file holds, by what was scored; nothing where it is no file of scores."""
    if not (path.endswith(".nc") and Path(path).is_file()):
        return None
    from ..data import netcdf
    from ..evaluation.files import KIND

    try:
        with xr.open_dataset(path, decode_times=False) as ds:
            known = str(ds.attrs.get("format", "")).startswith(f"appa {KIND.name} ")
    except (OSError, ValueError):
        return None
    if not known:
        return None
    ds = netcdf.load(path, KIND)
    if "estimate" not in ds.dims:
        return {Path(path).stem: ds}
    parts = {str(e): ds.sel(estimate=e, drop=True) for e in ds["estimate"].values}
    # what is joined has the hours of all, and each its own
    hours = "lead_time" if "lead_time" in ds.dims else "time"
    return {e: part.dropna(hours, how="all", subset=["skill"]) for e, part in parts.items()}


def channels_of(
    run: xr.Dataset, truth: xr.Dataset, words: Sequence[str] = PREFERRED
) -> list[str] | None:
    r"""The channels usually looked at that both have, or nothing for all."""
    found = []
    for word in words:
        try:
            locate(run, word)
            locate(truth, word)
        except DataError:
            continue
        found.append(word)
    return found or None


def scores_of(
    words: Sequence[str],
    truth: str | None = None,
    *,
    variables: Sequence[str] | None = None,
    region: str = "global",
    climatology: str | None = None,
    persistent: bool = False,
    seed: int = 0,
) -> dict[str, xr.Dataset]:
    r"""Scores of runs and baselines by hour, or by lead time where a label has several dates.

    Arguments:
        words: The runs, as `PATH` or `LABEL=PATH`, or files of scores.
        truth: The truth.
        variables: Variables or channels, by default a few.
        region: The region.
        climatology: A climatology to score at the same hours.
        persistent: Whether to score the persistence of the truth too, of the last hour that was
            known to a run, or the one before its first.
        seed: The seed of intervals.
    """
    runs = labelled(words)
    files = {label: saved(paths[0]) for label, paths in runs.items() if len(paths) == 1}
    done = {label: scores for label, scores in files.items() if scores is not None}
    found: dict[str, xr.Dataset] = {}
    for label, scores in done.items():
        for name, part in scores.items():
            if region not in part["region"].values:
                known = ", ".join(part["region"].values.tolist())
                raise DataError(f"{runs[label][0]} has no scores of {region!r}; it has {known}")
            found[name if len(scores) > 1 else label] = part
    runs = {label: paths for label, paths in runs.items() if label not in done}
    if not runs:
        return found

    y = open_truth(truth)
    opened = {label: [run for p in paths for run in open_runs(p)] for label, paths in runs.items()}
    first = next(iter(opened.values()))
    chosen: Any = {"variables": variables or channels_of(first[0], y), "regions": [region]}
    times = [run["time"].values for run in first]
    if climatology is not None:
        opened["climatology"] = [climate(climatology, t, *_wanted(first[0])) for t in times]
    if persistent:
        opened["persistence"] = [
            persistence(_known(y, _start(run)), t) for run, t in zip(first, times, strict=True)
        ]
    means = {label: [averages(run, y, **chosen) for run in each] for label, each in opened.items()}
    starts = {label: [_start(run) for run in each] for label, each in opened.items()}
    starts |= {label: starts[next(iter(runs))] for label in means if label not in runs}
    if any(len(parts) > 1 for parts in means.values()):
        dated = {k: over_dates(parts, starts[k], seed=seed) for k, parts in means.items()}
        return found | dated
    for label, (part,) in means.items():
        scores = metrics(part)
        if issued(opened[label][0]) is not None:
            leads = by_lead(part, starts[label][0])["lead_time"]
            scores = scores.assign_coords(lead_time=("time", leads.values, leads.attrs))
        found[label] = scores
    return found


def _start(run: xr.Dataset) -> np.datetime64:
    r"""The last hour that was known to a run, or the one before its first."""
    start = issued(run)
    return run["time"].values.min().astype("datetime64[ns]") - HOUR if start is None else start


def _wanted(run: xr.Dataset) -> tuple[list[str], list[int] | None]:
    levels = [int(p) for p in run["level"].values] if "level" in run.coords else None
    return [str(name) for name in run.data_vars], levels


def _known(truth: xr.Dataset, start: np.datetime64) -> xr.Dataset:
    r"""The truth in the last hour that was known."""
    if start not in truth["time"].values:
        when = start.astype("datetime64[h]")
        raise DataError(f"the truth has no {when}, the hour before a run, that could persist")
    return truth.sel(time=[start])


def levels_of(
    words: Sequence[str],
    truth: str | None,
    *,
    variables: Sequence[str] | None = None,
    region: str = "global",
    statistics: str | None = None,
    climatology: str | None = None,
) -> dict[str, xr.Dataset]:
    r"""Scores of runs over all hours, of all channels, standardized too where there are statistics:
    a file, or `planet` for the bundled ones, which are the planet's by default."""
    y, stats = open_truth(truth), None
    if statistics == "planet" or (statistics is None and truth == "planet"):
        from ..data import planet

        stats = planet.statistics()
    elif statistics is not None:
        from ..data.statistics import load

        stats = load(statistics)
    opened = {
        label: [run for path in paths for run in open_runs(path)]
        for label, paths in labelled(words).items()
    }
    if climatology is not None:
        each = next(iter(opened.values()))
        known = [climate(climatology, run["time"].values, *_wanted(run)) for run in each]
        opened["climatology"] = known
    chosen: Any = {"variables": variables, "regions": [region]}
    found = {}
    for label, each in opened.items():
        parts = [pool(averages(run, y, **chosen)) for run in each]
        counts = {int(part.attrs["members"]) for part in parts}
        if len(counts) > 1:
            raise DataError(f"runs of {label!r} have {sorted(counts)} members; label them apart")
        joined = xr.concat(parts, "date", join="inner", coords="minimal", compat="override")
        found[label] = metrics(pool(joined.assign_attrs(parts[0].attrs), "date"), stats)
    return found


def spectra_of(
    words: Sequence[str], truth: str | None, *, variables: Sequence[str] | None = None
) -> xr.Dataset:
    r"""Spectra of the truth and of the members of runs, with the runs' labels as sources."""
    y, runs = open_truth(truth), labelled(words)
    if several := [label for label, paths in runs.items() if len(paths) > 1]:
        raise DataError(f"spectra are of one run a label, found several of {several[0]!r}")
    parts: list[xr.Dataset] = []
    for label, (path,) in runs.items():
        run = open_analysis(path)
        part = spectra(run, y, variables=variables or channels_of(run, y, SPECTRA))
        if len(runs) > 1:
            name = label if label != "truth" else "truth (run)"
            part = part.assign_coords(source=["truth", name])
        parts.append(part if not parts else part.isel(source=[1]))
    found = xr.concat(parts, "source", coords="minimal", compat="override", join="inner")
    known = found["spectrum"].notnull().any(["source", "quantile", "wavenumber"])
    lost = found["channel"].values[~known.values].tolist()
    if lost and not known.any():
        raise DataError(
            f"{', '.join(lost)}: what is undefined on land, or anywhere, has no spectrum"
        )
    if lost:
        warnings.warn(f"not drawn, as undefined somewhere: {', '.join(lost)}", stacklevel=2)
    return found


def coast_of(*datasets: xr.Dataset | None) -> xr.DataArray:
    r"""The land mask of the first dataset that has one, or the bundled planet's, whose continents
    are the Earth's: a coastline needs no download."""
    for ds in datasets:
        if ds is not None and "land_sea_mask" in ds:
            return ds["land_sea_mask"]
    return open_store("planet")["land_sea_mask"]


def observations_of(sources: Sequence[str] | None) -> Mapping[str, Any]:
    r"""Observations as a gallery takes them: a table and a swath, or nothing of either."""
    if not sources:
        return {}
    from ..observations.reading import read_observations

    seen = read_observations(list(sources))
    return {"table": seen.points if len(seen.points) else None, "swath": seen.gridded}
