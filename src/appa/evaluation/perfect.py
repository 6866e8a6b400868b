r"""The filter of a perfect model as a baseline: from climate to analyses on disk.

What made the planet's truth also forecasts the members (:mod:`appa.evaluation.cycling`), which no
analysis of a real atmosphere can have: the strongest classical answer this planet allows. Members
start as other weather of the same season, which knows nothing of the truth, and the first cycles
are thrown away. Localization and inflation are tuned for the least CRPS, as are the settings of
other baselines, on a trajectory that is not scored: settings carry the periods they were tuned on,
and these are refused (:mod:`appa.evaluation.tuning`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..data.clock import as_datetime64
from ..data.planet.circulation import GRID, Run
from ..data.planet.simulation import _States as States
from ..errors import DataError
from ..observations.operators import Operators, compile_observations
from ..observations.reading import read_observations
from ..progress import progress
from . import tuning
from .cycling import Cycling, Settings
from .ensembles import STATISTICS, ensemble_statistics
from .letkf_members import first_members, spins

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from ..observations.collection import Observations

__all__ = ["CHOICES", "best", "cycle", "first_members", "tune"]

#: What tuning tries by default, one setting after the other, beginning with the first of each.
CHOICES: dict[str, Sequence[Any]] = {
    "length": (500.0, 350.0, 800.0, 1200.0),
    "relaxation": (0.7, 0.5, 0.9),
    "depth": (0.3, 0.15, 0.6),
    "representation": (0.1, 0.03, 0.2),
    "inflation": (1.0, 1.05),
}


def cycle(
    observations: Any,
    start: Any,
    hours: int,
    out: str | Path,
    *,
    settings: Settings | None = None,
    discard: int = 0,
    seed: int = 0,
    spin_up: int = 180,
    trajectories: int | None = None,
    weather: str | Path | None = None,
    cycling: Cycling | None = None,
    first: Run | None = None,
) -> Path:
    r"""Cycles the filter over a period, and writes its analyses.

    Killed, the same call goes on from the members saved last.

    Arguments:
        observations: What :func:`appa.read_observations` takes.
        start: The hour of the first cycle.
        hours: The number of hours, a multiple of `settings.every`.
        out: The ensemble to write, a `.zarr` that must not exist yet.
        settings: How it is cycled; hours of a trajectory they were tuned on are refused.
        discard: Hours of the first cycles, which are not written.
        seed, spin_up, trajectories, weather: See :func:`first_members`.
        cycling: A filter whose functions are compiled already, instead of `settings`.
        first: The members before the first hour, by default :func:`first_members`.
    """
    from ..data.writing import StoreWriter

    cycling = cycling or Cycling(settings)
    s = cycling.settings
    times, used, operators = _given(cycling, observations, start, hours, discard)
    s.untouched(times)
    if first is None:  # before anything is left behind
        spins(min(trajectories or s.members, s.members), spin_up)
    plan = {
        "job": "letkf",
        "settings": _plain(s),
        "seed": seed,
        "spin_up": spin_up,
        "trajectories": trajectories,
        "discard": discard,
        "observations": used.digest(),
    }
    plan |= {} if weather is None else {"weather": True}
    template = _template(cycling, times[discard:], plan)
    with (
        StoreWriter(out, template, block=s.every, plan=plan) as writer,
        progress(hours, "cycling", unit="hours") as bar,
    ):
        states = States(writer.directory / "state.npz")
        if states.path.exists():
            blank = cycling.circulation.start if first is None else lambda *_: first
            run, done = states.load(blank([0] * s.members, np.repeat(times[0], s.members)))
        else:
            run, done = first, 0
            if run is None:
                run = first_members(
                    cycling.circulation,
                    s.members,
                    times[0],
                    seed=seed,
                    spin_up=spin_up,
                    trajectories=trajectories,
                    weather=weather,
                )
            states.save(run, 0)
        bar.skip(done * s.every)
        for k in range(done, hours // s.every):
            begin = k * s.every
            run, analysis = cycling(run, operators[begin : begin + s.every])
            if not _stable(analysis):
                raise DataError(
                    f"the model became unstable in the cycle of {times[begin]}; give a shorter "
                    "localization, or a larger error of representation"
                )
            if begin >= discard:
                for name, field in analysis.items():
                    values = np.asarray(field).swapaxes(0, 1)
                    writer.put(name, begin - discard, np.ascontiguousarray(values))
                writer.mark((begin - discard) // s.every)
            states.save(run, k + 1)
            bar.advance(s.every)
        return writer.finish()


def tune(
    observations: Any,
    truth: xr.Dataset,
    start: Any,
    hours: int,
    choices: Mapping[str, Sequence[Any]] | None = None,
    *,
    settings: Settings | None = None,
    discard: int = 0,
    seed: int = 0,
    spin_up: int = 180,
    trajectories: int | None = None,
    weather: str | Path | None = None,
    cycling: Cycling | None = None,
    first: Run | None = None,
) -> pd.DataFrame:
    r"""Scores settings on dates that are not to be scored later, all from the same members.

    Arguments:
        observations, start, hours, settings, discard, seed, spin_up, trajectories, weather,
            cycling: As of :func:`cycle`. Hours that are discarded are not scored.
        truth: A store that has these hours.
        choices: What is tried, by the name of a setting, one after the other, those before as they
            were best; by default :data:`CHOICES`.
        first: The members before the first hour, by default :func:`first_members`.

    Returns:
        A table of the choices, least `crps` first, the fair CRPS in standard deviations, averaged
        over channels, with `error`, the root-mean-square error of the mean, `spread` and their
        `ratio`. Prescribed sea surface temperature takes no part. Settings that the model did not
        survive are last. Its attributes have the periods, which :func:`best` takes along, and the
        `grid` of choices.

    Example:
        >>> table = tune("obs.parquet", truth, "2019-06-01", 72, {"length": [500, 800, 1200]})
        >>> best(table).save("tuned.json")
    """
    import pandas as pd

    cycling, choices = cycling or Cycling(settings), CHOICES if choices is None else choices
    known = [k for k in asdict(cycling.settings) if k not in ("members", "tuned")]
    for name in choices:
        if name not in known:
            raise DataError(f"found {name!r} to tune; there are {', '.join(known)}")
    times, _, operators = _given(cycling, observations, start, hours, discard)
    for every in choices.get("every", ()):
        _whole(every, hours, discard)
    missing = ~np.isin(times, as_datetime64(truth["time"].values).astype("datetime64[h]"))
    if missing.any():
        raise DataError(f"the truth has no {times[missing][0]}; choose hours that it has")
    s = cycling.settings
    if first is None:
        first = first_members(
            cycling.circulation,
            s.members,
            times[0],
            seed=seed,
            spin_up=spin_up,
            trajectories=trajectories,
            weather=weather,
        )
    keep = [c.variable != "sea_surface_temperature" for c in cycling.space.standardizer.channels]
    area = torch.from_numpy(GRID.area / GRID.area.sum())
    read: dict[int, Tensor] = {}  # hours of the truth that are scored, the same by all settings

    def scored(first: int, count: int) -> Tensor:
        for k in range(first, first + count):
            if k not in read:
                here = truth.sel(time=times[k : k + 1].astype("datetime64[ns]"))
                read[k] = cycling.space.standardizer.to_tensor(here)
        return torch.cat([read[k] for k in range(first, first + count)])

    chosen = {name: values[0] for name, values in choices.items()}
    table: dict[tuple[Any, ...], dict[str, float]] = {}
    # what is best of one setting is tried again with the next, and not cycled again
    trials = 1 + sum(len(values) - 1 for values in choices.values())
    with progress(hours * trials, "tuning", unit="hours") as bar:

        def score(chosen: dict[str, Any]) -> float:
            other, key = cycling.tuned(**chosen), tuple(chosen.values())
            if key in table:
                return table[key]["crps"]
            run, every, sums = first, other.settings.every, []
            for k in range(0, hours, every):
                run, analysis = other(run, operators[k : k + every])
                bar.advance(every)
                if not _stable(analysis):
                    bar.skip(hours - k - every)
                    sums = [np.full((3, 1, sum(keep)), np.nan)]
                    break
                if k < discard:
                    continue
                x = other.states(analysis).double()
                x = (x - scored(k, every).to(x))[:, :, keep]
                # numpy sorts ten times as fast on a CPU
                at = ensemble_statistics(x if x.is_cuda else x.numpy())
                means = [(torch.as_tensor(at[n]) * area.to(x)).sum((-2, -1)) for n in STATISTICS]
                sums.append(torch.stack(means).cpu().numpy())
            error, spread, crps = np.concatenate(sums, 1).mean(1)
            error, spread = np.sqrt(error), np.sqrt(spread)
            # of M members, the mean has an error of 1/M of their variance
            ratio = math.sqrt((s.members + 1) / s.members) * spread.mean() / error.mean()
            table[key] = chosen | {
                "crps": float(crps.mean()),
                "error": float(error.mean()),
                "spread": float(spread.mean()),
                "ratio": float(ratio),
            }
            return table[key]["crps"]

        for name, values in choices.items():
            tried = [score(chosen | {name: value}) for value in values]
            if np.isfinite(tried).any():
                chosen[name] = values[int(np.nanargmin(tried))]
    found = pd.DataFrame(list(table.values())).sort_values(
        "crps", ignore_index=True, na_position="last"
    )
    found.attrs |= {"settings": asdict(s), "tuned": list(tuning.periods(truth, [times]))}
    found.attrs["grid"] = {name: list(values) for name, values in choices.items()}
    return found


def best(table: pd.DataFrame) -> Settings:
    r"""The settings of the least CRPS of all tried, with the periods they were tuned on.

    Arguments:
        table: What :func:`tune` found.
    """
    row = table.iloc[0]
    if not np.isfinite(row["crps"]):
        raise DataError(
            "the model survived none of the settings that were tried; try a shorter localization, "
            "or a larger error of representation"
        )
    base = dict(table.attrs["settings"])
    for name, values in table.attrs["grid"].items():
        # of the grid itself: a table of numbers has lost what is none, or whole
        value = row[name]
        base[name] = (
            None if value is None or value != value else next(v for v in values if v == value)
        )
    tuned = tuple((str(a), str(b)) for a, b in table.attrs["tuned"])
    return Settings(**base | {"exclude": tuple(base["exclude"]), "tuned": tuned})


def _given(
    cycling: Cycling, observations: Any, start: Any, hours: int, discard: int
) -> tuple[np.ndarray, Observations, Operators]:
    r"""The hours, the observations of them and their operators."""
    first = as_datetime64(start)
    if first.ndim or first != first.astype("datetime64[h]"):
        raise DataError(f"found start {start}, expected one whole hour, e.g. 2021-03-21T00")
    _whole(cycling.settings.every, hours, discard)
    times = first.astype("datetime64[h]") + np.arange(hours)
    used = read_observations(observations).between(first, hours)
    operators = compile_observations(used, cycling.space, times)
    if not any(operator is not None for operator in operators):
        raise DataError(
            "no observation is left that can be compared with the planet's states:\n"
            f"{operators.excluded.to_string(index=False)}"
        )
    if not set(used.variables) - set(cycling.settings.exclude):
        raise DataError(
            f"all observations are of {', '.join(used.variables)}, which are not assimilated; give "
            "others, or exclude less"
        )
    if len(operators.excluded):
        table = operators.excluded.to_string(index=False)
        warnings.warn(f"observations are left out:\n{table}", stacklevel=3)
    return times, used, operators


def _plain(settings: Settings) -> dict[str, Any]:
    r"""Settings as they are written, the same where nothing was tuned as before that was kept."""
    found = asdict(settings)
    if not found["tuned"]:
        del found["tuned"]
    return found


def _whole(every: int, hours: int, discard: int) -> None:
    if hours < 1 or hours % every or discard % every or not 0 <= discard < hours:
        raise DataError(
            f"found {hours} hours, of which {discard} are discarded, and an analysis every "
            f"{every}: both must be multiples of it, and some must be left"
        )


def _stable(analysis: dict[str, Any]) -> bool:
    return bool(np.isfinite(np.asarray(analysis["temperature"]).sum(dtype=np.float64)))


def _template(cycling: Cycling, times: np.ndarray, plan: dict[str, Any]) -> xr.Dataset:
    r"""The coordinates and variables of the ensemble, hours first as they are written."""
    import json

    from .. import __version__
    from ..data.layout import make_template
    from ..tasks.ensembles import MEMBER

    members = cycling.settings.members
    ds = make_template(
        times.astype("datetime64[ns]"),
        GRID.latitude,
        GRID.longitude,
        static=cycling.circulation.static(),
    )
    for name, var in ds.data_vars.items():
        if "time" in var.dims:
            ds[name] = var.expand_dims(member=np.arange(members), axis=1)
    ds["member"] = ds["member"].assign_attrs(MEMBER)
    return ds.assign_attrs(
        title="LETKF of the planet, with its own circulation model",
        source=f"appa {__version__}",
        task="letkf",
        Conventions="CF-1.11",
        settings=json.dumps(plan["settings"]),
        seed=plan["seed"],
        observations_digest=plan["observations"],
    )
