r"""The first members of a filter, which know nothing: independent weather of the season.

Members are states of a few simulations at midnight, ten days apart, given the date they are
nearest to. A year of such states in a file has members for all dates: what takes longest is done
once. Of a state the dynamics are kept; the physics begin anew, as at the start of a simulation.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..data.clock import as_datetime64
from ..data.planet.circulation import Circulation, Run
from ..errors import DataError, StoreError
from ..progress import progress

__all__ = ["first_members", "spins", "year_of_weather"]

BLOCK, APART = 5, 10  # days of a call of the model while it spins up, and between states of one run
YEAR = 365
BEGIN = np.datetime64("2001-01-01")  # of a year in a file, which is of any


def first_members(
    circulation: Circulation,
    members: int,
    start: Any,
    *,
    seed: int = 0,
    spin_up: int = 180,
    trajectories: int | None = None,
    weather: str | Path | None = None,
) -> Run:
    r"""Members that know nothing: independent weather of the season.

    Arguments:
        circulation: The model.
        members: The number of members.
        start: The hour.
        seed: Selects the weather. The planet's own members have other seeds.
        spin_up: Days from rest, in blocks of 5.
        trajectories: The number of simulations members are taken from, by default one each.
            Of fewer, states ten days apart are taken, those nearest to the date.
        weather: A file of a year of them, see :func:`year_of_weather`; by default those around
            the date are simulated.
    """
    import jax
    import jax.numpy as jnp

    start = as_datetime64(start).astype("datetime64[h]")
    count = min(trajectories or members, members)
    each, day = math.ceil(members / count), start.astype("datetime64[D]")
    if weather is not None and each > (most := math.ceil(YEAR / APART)):
        raise DataError(
            f"a year of weather has {most} states of a trajectory, and {members} members of "
            f"{count} take {each}; ask for more trajectories"
        )
    if weather is None:
        spins(count, spin_up)
        seeds = _seeds(count, seed, members, int(day.astype(int)))
        found = _states(circulation, seeds, day - APART * (each - 1) // 2, each, spin_up)
        taken = [jax.tree_util.tree_leaves(state) for state in found]
    else:
        year = year_of_weather(circulation, weather, count, seed=seed, spin_up=spin_up)
        passed = (day - day.astype("datetime64[Y]").astype("datetime64[D]")).astype(int)
        apart = np.abs(APART * np.arange(len(year[0])) - passed)
        near = np.argsort(np.minimum(apart, YEAR - apart), kind="stable")[:each]
        taken = [[leaf[k] for leaf in year] for k in sorted(near)]
    clock = circulation.start([0], day.astype("datetime64[h]").reshape(1))
    blank = jax.tree_util.tree_map(lambda x: jnp.repeat(x, members, axis=0), clock)
    leaves = [jnp.concatenate(parts)[:members] for parts in zip(*taken, strict=True)]
    structure = jax.tree_util.tree_structure((blank.state.dynamics, blank.precipitation))
    dynamics, precipitation = jax.tree_util.tree_unflatten(structure, leaves)
    run = Run(blank.state.replace(dynamics=dynamics), precipitation)
    for _ in range(int((start - day.astype("datetime64[h]")).astype(int))):
        run, _ = circulation.advance(run, 1 / 24)
    return run


def year_of_weather(
    circulation: Circulation,
    path: str | Path,
    trajectories: int,
    *,
    seed: int = 0,
    spin_up: int = 180,
) -> list[np.ndarray]:
    r"""States of a year, ten days apart, from a file that is made if it is not there.

    Arguments:
        circulation: The model.
        path: The file, a `.npz`.
        trajectories: The number of simulations.
        seed, spin_up: As of :func:`first_members`. A file of others is refused.

    Returns:
        What dynamics and precipitation consist of, each with shape :math:`(n, k, *)` for
        :math:`n` states of :math:`k` simulations.
    """
    import jax

    spins(trajectories, spin_up)
    path, key = Path(path), {"trajectories": trajectories, "seed": seed, "spin_up": spin_up}
    if path.suffix != ".npz":
        raise StoreError(f"found {str(path)!r} for a year of weather; name a .npz")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        states = _states(circulation, _seeds(trajectories, seed), BEGIN, math.ceil(YEAR / APART),
                         spin_up)  # fmt: skip
        # one after another in the memory of this machine, where there is room for a year
        parts = [[np.asarray(x) for x in jax.tree_util.tree_leaves(state)] for state in states]
        partial = path.with_name(f".{path.stem}.{os.getpid()}.npz")
        try:
            stacked = [np.stack(leaves) for leaves in zip(*parts, strict=True)]
            np.savez(partial, *stacked, key=json.dumps(key))
            partial.replace(path)
        except OSError as error:
            raise StoreError(f"cannot write {path} ({error}); choose another folder") from error
        finally:
            partial.unlink(missing_ok=True)
    try:
        with np.load(path) as saved:
            known = json.loads(str(saved["key"]))
            leaves = [saved[f"arr_{k}"] for k in range(len(saved.files) - 1)]
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise StoreError(
            f"{path} holds no year of weather ({error}); remove it, and it is made again"
        ) from error
    if known != key:
        raise StoreError(
            f"{path} is of {known}, and {key} was asked for; ask for the former, or name another"
        )
    return leaves


def spins(count: int, days: int) -> None:
    r"""Raises where members cannot be spun up so."""
    if count < 1 or days < BLOCK or days % BLOCK:
        raise DataError(
            f"found {count} trajectories and {days} days of spin-up; give 1 or more, and a "
            f"multiple of {BLOCK} days"
        )


def _seeds(count: int, *source: int) -> list[int]:
    return [int(k >> 1) for k in np.random.SeedSequence(source).generate_state(count)]


def _states(
    circulation: Circulation, seeds: list[int], first: np.datetime64, count: int, spin_up: int
) -> Iterator[tuple[Any, Any]]:
    r"""The dynamics and precipitation of simulations at the midnight of a day, and every ten days
    after it."""
    import jax

    # From midnight on, as the planet's members begin: radiation, every third step, keeps time.
    begin = (first - spin_up).astype("datetime64[h]")
    run = circulation.start(seeds, np.repeat(begin, len(seeds)))
    days = spin_up + APART * (count - 1)
    with progress(days * len(seeds), "members spin up", unit="days") as bar:
        for done in range(BLOCK, days + 1, BLOCK):
            run = circulation.spin_up(run, BLOCK)
            jax.block_until_ready(run)
            bar.advance(BLOCK * len(seeds))
            if done >= spin_up and (done - spin_up) % APART == 0:
                yield run.state.dynamics, run.precipitation
