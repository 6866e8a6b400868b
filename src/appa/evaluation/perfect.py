r"""The filter of a perfect model as a baseline: from climate to analyses on disk.

What made the planet's truth also forecasts the members (:mod:`appa.evaluation.cycling`), which no
analysis of a real atmosphere can have: the strongest classical answer this planet allows. Members
start as other weather of the same season, which knows nothing of the truth, and the first cycles
are thrown away. Localization and inflation are tuned on dates, and best on a trajectory, that are
not scored.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..data.clock import as_datetime64
from ..data.planet.circulation import GRID, Circulation, Run
from ..data.planet.simulation import _States as States
from ..errors import DataError
from ..observations.operators import Operators, compile_observations
from ..observations.reading import read_observations
from ..progress import progress
from .cycling import Cycling, Settings

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from ..observations.collection import Observations

__all__ = ["cycle", "dated", "first_members", "tune"]

BLOCK, APART = 5, 10  # days of a call of the model while it spins up, and between states of one run


def first_members(
    circulation: Circulation,
    members: int,
    start: Any,
    *,
    seed: int = 0,
    spin_up: int = 180,
    trajectories: int | None = None,
) -> Run:
    r"""Members that know nothing: independent weather of the season.

    Arguments:
        circulation: The model.
        members: The number of members.
        start: The hour.
        seed: Selects the weather. The planet's own members have other seeds.
        spin_up: Days from rest, in blocks of 5.
        trajectories: The number of simulations members are taken from, by default one each.
            Of fewer, states ten days apart are taken, and given the date they are nearest to.
    """
    import jax
    import jax.numpy as jnp

    start = as_datetime64(start).astype("datetime64[h]")
    count = min(trajectories or members, members)
    _spins(count, spin_up)
    each = math.ceil(members / count)
    day = start.astype("datetime64[D]")
    days = spin_up + APART * (each - 1)
    # From midnight on, as the planet's members begin: radiation, every third step, keeps time.
    begin = (day - (spin_up + APART * (each - 1) // 2)).astype("datetime64[h]")
    source = np.random.SeedSequence([seed, members, int(day.astype(int))])
    seeds = [int(k >> 1) for k in source.generate_state(count)]
    run, taken = circulation.start(seeds, np.repeat(begin, count)), []
    with progress(days * count, "members spin up", unit="days") as bar:
        for done in range(BLOCK, days + 1, BLOCK):
            run = circulation.spin_up(run, BLOCK)
            jax.block_until_ready(run)
            bar.advance(BLOCK * count)
            if done >= spin_up and (done - spin_up) % APART == 0:
                taken.append(run)
    joined = jax.tree_util.tree_map(lambda *a: jnp.concatenate(a)[:members], *taken)
    joined = dated(circulation, joined, day)
    for _ in range(int((start - day.astype("datetime64[h]")).astype(int))):
        joined, _ = circulation.advance(joined, 1 / 24)
    return joined


def dated(circulation: Circulation, run: Run, start: Any) -> Run:
    r"""The same weather at another date: of the same season, and of the same hour of the day.

    Members that were spun up once serve other dates so, as many as are scored.
    """
    import jax
    import jax.numpy as jnp

    hour = as_datetime64(start).astype("datetime64[h]").reshape(1)
    clock = circulation.start([0], hour).state.time
    same = jax.tree_util.tree_map(lambda x: jnp.repeat(x, len(run.precipitation), axis=0), clock)
    return Run(run.state.replace(time=same), run.precipitation)


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
        settings: How it is cycled.
        discard: Hours of the first cycles, which are not written.
        seed, spin_up, trajectories: See :func:`first_members`.
        cycling: A filter whose functions are compiled already, instead of `settings`.
        first: The members before the first hour, by default :func:`first_members`.
    """
    from ..data.writing import StoreWriter

    cycling = cycling or Cycling(settings)
    s = cycling.settings
    times, used, operators = _given(cycling, observations, start, hours, discard)
    if first is None:  # before anything is left behind
        _spins(min(trajectories or s.members, s.members), spin_up)
    plan = {
        "job": "letkf",
        "settings": asdict(s),
        "seed": seed,
        "spin_up": spin_up,
        "trajectories": trajectories,
        "discard": discard,
        "observations": used.digest(),
    }
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
    choices: Mapping[str, Sequence[Any]],
    *,
    settings: Settings | None = None,
    discard: int = 0,
    seed: int = 0,
    spin_up: int = 180,
    trajectories: int | None = None,
    cycling: Cycling | None = None,
    first: Run | None = None,
) -> pd.DataFrame:
    r"""Scores settings on dates that are not to be scored later, all from the same members.

    Arguments:
        observations, start, hours, settings, discard, seed, spin_up, trajectories, cycling: As of
            :func:`cycle`. Hours that are discarded are not scored.
        truth: A store that has these hours.
        choices: What is tried, by the name of a setting, in all combinations.
        first: The members before the first hour, by default :func:`first_members`.

    Returns:
        A table of the choices, best first, with `error`, the root-mean-square error of the mean in
        standard deviations, averaged over channels, `spread` and their `ratio`. Prescribed sea
        surface temperature takes no part. Settings that the model did not survive are last.

    Example:
        >>> table = tune("obs.parquet", truth, "2019-06-01", 72, {"length": [500, 800, 1200]})
        >>> best = table.iloc[0]
    """
    import pandas as pd

    cycling = cycling or Cycling(settings)
    for name in choices:
        if name not in asdict(cycling.settings) or name == "members":
            known = [k for k in asdict(cycling.settings) if k != "members"]
            raise DataError(f"found {name!r} to tune; there are {', '.join(known)}")
    table = [dict(zip(choices, c, strict=True)) for c in itertools.product(*choices.values())]
    filters = [cycling.tuned(**chosen) for chosen in table]
    times, _, operators = _given(cycling, observations, start, hours, discard)
    for other in filters:
        _whole(other.settings.every, hours, discard)
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
        )
    keep = [c.variable != "sea_surface_temperature" for c in cycling.space.standardizer.channels]
    area = torch.from_numpy(GRID.area / GRID.area.sum())
    with progress(hours * len(filters), "tuning", unit="hours") as bar:
        for chosen, other in zip(table, filters, strict=True):
            run, every, sums = first, other.settings.every, []
            for k in range(0, hours, every):
                run, analysis = other(run, operators[k : k + every])
                bar.advance(every)
                if not _stable(analysis):
                    bar.skip(hours - k - every)
                    sums = [torch.full((2, 1, sum(keep)), torch.nan)]
                    break
                if k < discard:
                    continue
                x = other.states(analysis).double().cpu()
                here = truth.sel(time=times[k : k + every].astype("datetime64[ns]"))
                error = (x.mean(0) - other.space.standardizer.to_tensor(here)) ** 2
                sums.append((torch.stack([error, x.var(0)]) * area).sum((-2, -1))[:, :, keep])
            error, spread = torch.cat(sums, 1).mean(1).sqrt()
            # of M members, the mean has an error of 1/M of their variance
            ratio = math.sqrt((s.members + 1) / s.members) * spread.mean() / error.mean()
            chosen |= {
                "error": float(error.mean()),
                "spread": float(spread.mean()),
                "ratio": float(ratio),
            }
    return pd.DataFrame(table).sort_values("error", ignore_index=True, na_position="last")


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


def _spins(count: int, days: int) -> None:
    if count < 1 or days < BLOCK or days % BLOCK:
        raise DataError(
            f"found {count} trajectories and {days} days of spin-up; give 1 or more, and a "
            f"multiple of {BLOCK} days"
        )


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
