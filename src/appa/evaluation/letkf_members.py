r"""The first members of a filter, which know nothing: independent weather of the season."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..data.clock import as_datetime64
from ..data.planet.circulation import Circulation, Run
from ..errors import DataError
from ..progress import progress

__all__ = ["dated", "first_members", "spins"]

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
    spins(count, spin_up)
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


def spins(count: int, days: int) -> None:
    r"""Raises where members cannot be spun up so."""
    if count < 1 or days < BLOCK or days % BLOCK:
        raise DataError(
            f"found {count} trajectories and {days} days of spin-up; give 1 or more, and a "
            f"multiple of {BLOCK} days"
        )
