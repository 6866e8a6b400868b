r"""Simulating members of the planet into a store, hour by hour.

Each member occupies calendar years of its own, and the first months of each, from rest, are thrown
away. Work goes in blocks of a few days: all members advance through a block on the device while
the one before is written, and the members' state between blocks is kept, so that a simulation
that was killed goes on.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import DataError
from ...progress import progress
from ..variables import LEVELS, VARIABLES
from .circulation import GRID, Circulation, Run

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Plan", "simulate"]

BLOCK = 5  # days: 365 = 5 · 73, so that blocks never straddle two members


@dataclass(frozen=True)
class Plan:
    r"""What to simulate.

    A year is 365 days, so that every member has the same length: each leap year among a member's
    years ends it a day earlier, on 30 December for one.

    Arguments:
        members: How many independent trajectories.
        days: The length of each in days; 365 times its years.
        first_year: The first member's first year; the next member begins in the year after its
            last, and so on.
        seed: Members of another seed, or of another year, are other trajectories.
        every: Hours between states.
        spin_up: Days thrown away before the first state; weather takes about 90 to
            develop, the stratosphere longer.
        diurnal: Whether the sun rises and sets, see :mod:`appa.data.planet.sun`.
    """

    members: int = 1
    days: int = 365
    first_year: int = 2021
    seed: int = 0
    every: int = 1
    spin_up: int = 180
    diurnal: bool = True

    def __post_init__(self) -> None:
        for name, low in (("members", 1), ("days", 1), ("every", 1), ("seed", 0), ("spin_up", 1)):
            if getattr(self, name) < low:
                raise DataError(f"{name} must be at least {low}; found {getattr(self, name)}")
        if 24 % self.every:
            raise DataError(f"every must divide 24 hours; found {self.every}")
        last = self.first_year + self.members * self.years - 1
        if self.first_year < 1700 or last > 2260:
            raise DataError(
                f"members would occupy the years {self.first_year}–{last}, outside 1700–2260; "
                f"choose fewer members or years, or another first year"
            )

    @property
    def years(self) -> int:
        r"""Calendar years a member occupies."""
        return math.ceil(self.days / 365)

    @property
    def block(self) -> int:
        r"""Days in a block: what is computed, written and marked as finished together."""
        return BLOCK if self.days % BLOCK == 0 else 1

    def starts(self) -> np.ndarray:
        r"""The first hour of each member, with shape :math:`(M)`."""
        years = self.first_year + self.years * np.arange(self.members)
        return (years - 1970).astype("datetime64[Y]").astype("datetime64[h]")

    def times(self) -> np.ndarray:
        r"""The hours of all members, one after another, with shape :math:`(M \cdot T)`."""
        hours = np.arange(0, 24 * self.days, self.every).astype("timedelta64[h]")
        return (self.starts()[:, None] + hours).reshape(-1).astype("datetime64[ns]")

    @property
    def nbytes(self) -> int:
        r"""The size of the store without compression."""
        channels = sum(1 if v.surface else len(LEVELS) for v in VARIABLES.values())
        states = self.members * self.days * 24 // self.every
        return states * channels * GRID.shape[0] * GRID.shape[1] * 4

    def seeds(self) -> list[int]:
        r"""A seed for each member, from the plan's and its first year's.

        The year takes part because forcing repeats every year: members that shared a seed would be
        the same trajectory under two dates.
        """
        years = self.starts().astype("datetime64[Y]").astype(int) + 1970
        return [
            int(np.random.SeedSequence([self.seed, int(year)]).generate_state(1)[0] >> 1)
            for year in years
        ]


def simulate(path: str | Path, plan: Plan, *, compression: str = "none") -> None:
    r"""Simulates members into a store.

    Killed and called again with the same plan, it goes on from the last finished block and, on the
    same device, writes what an uninterrupted run would have.

    Arguments:
        path: The store to write.
        plan: What to simulate.
        compression: `"none"` or `"zstd"`, see :class:`appa.data.writing.StoreWriter`.
    """
    from ..writing import StoreWriter

    circulation = Circulation(plan.diurnal)  # says so where the extra is not installed
    import jax

    spins, count = math.ceil(plan.spin_up / plan.block), plan.days // plan.block
    begin = plan.starts() - np.timedelta64(24 * plan.block * spins, "h")
    days = plan.block * plan.members
    with (
        StoreWriter(
            path,
            _template(plan, circulation.static()),
            block=24 * plan.block // plan.every,
            compression=compression,
            plan={"job": "simulate", **asdict(plan)},
        ) as writer,
        ThreadPoolExecutor(min(plan.members, 8)) as pool,
        progress((spins + count) * days, "simulating", unit="days") as bar,
    ):
        states = _States(writer.directory / "state.npz")
        run, done = states.load(circulation.start(plan.seeds(), begin))
        bar.skip(done * days)
        for n in range(done, spins):
            run = jax.block_until_ready(circulation.spin_up(run, plan.block))
            bar.advance(days)
            if n % 5 == 4 or n == spins - 1:
                states.save(run, n + 1)

        def write(block: int, after: Run, fields: dict[str, Any]) -> None:
            host = {name: np.asarray(field) for name, field in fields.items()}
            _finite(host, block, plan)
            places = [m * count + block for m in range(plan.members)]
            jobs = [
                pool.submit(writer.write, place, _block(host, m, writer.blocks[place], plan))
                for m, place in enumerate(places)
            ]
            for job in jobs:
                job.result()
            states.save(after, spins + block + 1)
            bar.advance(days)

        # Keep the device busy: a block is written while the next one is computed.
        ahead: tuple[int, Run, dict[str, Any]] | None = None
        for n in range(max(done - spins, 0), count + 1):
            behind, ahead = ahead, None
            if n < count:
                run, fields = circulation.advance(run, plan.block, plan.every)
                ahead = (n, run, fields)
            if behind is not None:
                write(*behind)
        writer.finish()


class _States:
    r"""The members' state between blocks, kept so that a killed simulation can go on."""

    def __init__(self, path: Path):
        self.path = path

    def save(self, run: Run, done: int) -> None:
        import jax

        leaves = [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(run)]
        part = self.path.with_suffix(".part")
        with open(part, "wb") as file:
            np.savez(file, *leaves, done=done)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.path)

    def load(self, template: Run) -> tuple[Run, int]:
        r"""The state saved last and how many blocks precede it, or the template and 0."""
        import jax
        import jax.numpy as jnp

        if not self.path.exists():
            return template, 0
        structure = jax.tree_util.tree_structure(template)
        with np.load(self.path) as saved:
            leaves = [jnp.asarray(saved[f"arr_{i}"]) for i in range(structure.num_leaves)]
            return jax.tree_util.tree_unflatten(structure, leaves), int(saved["done"])


def _finite(fields: dict[str, np.ndarray], block: int, plan: Plan) -> None:
    r"""A model that blew up must not fill a store with NaN."""
    temperature = fields["temperature"]
    for m in range(plan.members):
        if not np.isfinite(temperature[m]).all():
            day = plan.starts()[m].astype("datetime64[D]") + block * plan.block
            raise DataError(
                f"member {m} (seed {plan.seeds()[m]}) became unstable in the {plan.block} days "
                f"from {day}; choose another --seed"
            )


def _template(plan: Plan, static: dict[str, np.ndarray]) -> xr.Dataset:
    r"""The store's coordinates, static fields and variables, without data."""
    from importlib.metadata import version

    from ..layout import make_template

    years = plan.starts().astype("datetime64[Y]").astype(int) + 1970
    times = plan.times()
    template = make_template(
        times,
        GRID.latitude,
        GRID.longitude,
        static=static,
        # A trajectory is named by its first year. Beside other members, or on another device,
        # rounding differs and so, after weeks, does its weather.
        trajectory=np.repeat(years, len(times) // plan.members),
    )
    return template.assign_attrs(
        title="A simulated planet in ERA5's schema",
        source=f"jcm {version('jcm')} (SPEEDY physics, T31L8)",
        Conventions="CF-1.11",
        plan=str(asdict(plan)),
    )


def _block(fields: dict[str, np.ndarray], member: int, where: slice, plan: Plan) -> xr.Dataset:
    r"""One member's block as a dataset."""
    import xarray as xr

    horizontal = ("latitude", "longitude")
    return xr.Dataset(
        {
            name: (
                ("time", *horizontal)
                if VARIABLES[name].surface
                else ("time", "level", *horizontal),
                field[member],
            )
            for name, field in fields.items()
        },
        {"time": plan.times()[where]},
    )
