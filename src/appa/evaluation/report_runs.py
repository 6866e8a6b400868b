r"""The runs that a page is of: one, or analyses of several dates one after another.

Where one run ends and the next begins, hours do not tell: runs of consecutive days have no gap, and
their members are not each other's. Runs that are opened together have a coordinate `start` along
`time`, the first hour of the run that an hour is of.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from ..errors import DataError
from .dates import over_dates
from .forecasts import HOUR, START, by_lead, issued, open_runs
from .forecasts import _side_by_side as side_by_side
from .joints import joints_of
from .partition import lazily

__all__ = ["begun", "by_stretch", "joined_stretches", "named", "opened", "started", "stretches"]

LONGEST = 24 * HOUR  # a step of a run; states that are further apart are not one


def named(run: str | Path | Sequence[str]) -> str:
    r"""What a run is called."""
    return str(run) if isinstance(run, str | Path) else ", ".join(map(str, run))


def opened(run: xr.Dataset | str | Path | Sequence[str]) -> xr.Dataset:
    r"""A run, or analyses of several dates in the order of their hours."""
    if isinstance(run, xr.Dataset):
        return run
    runs, name = open_runs(run), named(run)
    if len(runs) == 1:
        return runs[0]
    if any(issued(one) is not None for one in runs):
        raise DataError(
            f"{name!r} is {len(runs)} runs with forecasts, and a page is of one; give one of them, "
            "or score all by lead time: appa evaluate"
        )
    runs = sorted(runs, key=lambda one: one["time"].values[0])
    times = np.concatenate([one["time"].values for one in runs])
    if len(np.unique(times)) < len(times):
        raise DataError(
            f"the {len(runs)} runs of {name!r} share hours, and a page is of one of them; give "
            "one, and others by --baseline NAME=PATH"
        )
    alike = [(set(one.data_vars), one.sizes.get("member")) for one in runs]
    if any(one != alike[0] for one in alike):
        raise DataError(
            f"the {len(runs)} runs of {name!r} have not all the same variables and members; give "
            "dates of one system"
        )
    parts = [lazily(one.drop_vars("latents", errors="ignore")) for one in runs]
    parts = [begun(part, part["time"].values) for part in parts]
    try:
        return xr.concat(  # type: ignore
            parts, "time", data_vars="minimal", coords="minimal", compat="override", join="exact",
            combine_attrs="drop_conflicts",
        )  # fmt: skip
    except ValueError as error:
        raise DataError(f"the runs of {name!r} do not fit together ({error})") from None


def begun(ds: xr.Dataset, starts: np.ndarray) -> xr.Dataset:
    r"""A run with the coordinate `start`, the first of some hours."""
    first = np.full(ds.sizes["time"], np.min(starts))
    return ds.assign_coords(start=("time", first, START))


def started(means: xr.Dataset, ensemble: xr.Dataset) -> xr.Dataset:
    r"""Means of statistics at hours of an ensemble, with the coordinate `start` if it has that."""
    if not _told(ensemble):
        return means
    return means.assign_coords(start=ensemble["start"].sel(time=means["time"]))


def _told(ds: xr.Dataset) -> bool:
    return "start" in ds.coords and ds["start"].dims == ("time",)


def stretches(ds: xr.Dataset) -> list[xr.Dataset]:
    r"""The parts of an ensemble whose states follow one another: of one run, and as far apart as
    most of it are, a day at most."""
    hours = ds["time"].values
    ends = np.flatnonzero(np.diff(ds["start"].values) != 0 * HOUR) + 1 if _told(ds) else []
    parts = []
    for a, b in zip([0, *ends], [*ends, len(hours)], strict=True):
        apart = np.diff(hours[a:b])
        steps, counts = np.unique(apart[(apart > 0 * HOUR) & (apart <= LONGEST)],
                                  return_counts=True)  # fmt: skip
        # with as many of several kinds, the shortest
        gaps = apart != steps[counts.argmax()] if len(steps) else np.ones(len(apart), bool)
        cuts = a + 1 + np.flatnonzero(gaps)
        parts += [ds.isel(time=slice(i, j)) for i, j in zip([a, *cuts], [*cuts, b], strict=True)]
    return parts


def joined_stretches(run: xr.Dataset, ensemble: xr.Dataset) -> list[xr.Dataset]:
    r"""Stretches of those hours of a run that are scored, with the joints of its windows counted
    from the first hour of each, in the attribute `joints`."""
    joints = joints_of(run) or []
    first = run["time"].values.reshape(-1)[0]
    found = []
    for part in stretches(ensemble):
        begin = part["start"].values[0] if _told(part) else first
        lost = int((part["time"].values[0] - begin) / HOUR)
        places = [hour - lost for hour in joints if lost < hour < lost + part.sizes["time"]]
        found.append(part.assign_attrs(joints=json.dumps(places)))
    return found


def by_stretch(means: xr.Dataset, parts: list[xr.Dataset]) -> xr.Dataset:
    r"""Scores by the hour of a stretch, at each over those that have it.

    Arguments:
        means: Means of statistics of the ensemble or of another estimate, which may lack hours.
        parts: The stretches.
    """
    found = []
    for part in parts:
        hours = np.isin(means["time"].values, part["time"].values)
        if hours.any():
            here = means.isel(time=np.flatnonzero(hours))
            found.append(by_lead(here, part["time"].values[0]))
    return over_dates(side_by_side(found))
