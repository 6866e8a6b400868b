r"""Simulating members of the planet into a store, hour by hour.

Each member occupies calendar years of its own, and the first months of each, from rest, are thrown
away. Work goes in blocks of a few days: all members advance through a block on the device while
those before are written, and the members' state between blocks is kept every so often, so that a
simulation that was killed goes on.

Hours of one trajectory resemble each other. A plan may therefore store a stretch of hours out of
each block only, and pass over the rest at the speed of the spin-up: more weather in less room. What
is stored may be something else that is made of the states on the device they are on, such as their
latents, which take a sixtieth of the room: see :class:`Transform`.
"""

from __future__ import annotations

import math
import os
import time
import zipfile
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...errors import DataError, StoreError
from ...progress import progress
from ..variables import LEVELS, VARIABLES
from . import MODEL, TITLE
from .circulation import GRID, Circulation, Run

if TYPE_CHECKING:
    import xarray as xr

    from ..writing import StoreWriter

__all__ = ["Plan", "Transform", "simulate"]

BLOCK = 5  # days: 365 = 5 · 73, so that blocks never straddle two members
AHEAD = 2  # blocks that may wait to be written while another is computed
RESTS = 10  # times as long as saving the members' state takes, it is not saved again
HELD_OUT = (2010, 2021, 2030)  # the first validation, first test and last test year


@dataclass(frozen=True)
class Plan:
    r"""What to simulate.

    A year is 365 days, so that every member has the same length: each leap year among a member's
    years ends it a day earlier, on 30 December for one.

    Arguments:
        members: How many independent trajectories to train on.
        days: The length of each in days; 365 times its years.
        first_year: The first member's first year; the next member begins in the year after its
            last, and so on.
        seed: Members of another seed, or of another year, are other trajectories.
        every: Hours between states. Where it does not divide a day, states are of more hours of
            the day than otherwise: 10 gives every second, 8 the same three.
        spin_up: Days thrown away before the first state. Weather takes about 90 to develop, and
            half a year to settle: after 90, the first weeks are not of the climate yet.
        diurnal: Whether the sun rises and sets, see :mod:`appa.data.planet.sun`.
        stretch: Hours stored out of every `each` days, the first ones. By default, all.
        each: Days from the beginning of a stretch to that of the next.
        held_out: How many members for validation, and how many for testing, are simulated beside
            them: those of the years 2020, 2019, … and of 2021, 2022, ….
    """

    members: int = 1
    days: int = 365
    first_year: int = 2021
    seed: int = 0
    every: int = 1
    spin_up: int = 180
    diurnal: bool = True
    stretch: int | None = None
    each: int | None = None
    held_out: int = 0

    def __post_init__(self) -> None:
        for name, low in (
            ("members", 1),
            ("days", 1),
            ("every", 1),
            ("seed", 0),
            ("spin_up", 1),
            ("held_out", 0),
        ):
            if getattr(self, name) < low:
                raise DataError(f"{name} must be at least {low}; found {getattr(self, name)}")
        self._check_stretches()
        if self.stretch is None and self.stored % self.every:
            raise DataError(
                f"every must divide the {self.stored} hours that are simulated at once; found "
                f"{self.every}"
            )
        self._check_years()

    def _check_stretches(self) -> None:
        if (self.stretch is None) != (self.each is None):
            raise DataError(
                f"stretch and each go together, hours out of days; found stretch {self.stretch} "
                f"and each {self.each}: e.g. --stretch 48 --each 5"
            )
        if self.stretch is None or self.each is None:
            return
        if self.each < 1 or self.days % self.each:
            raise DataError(
                f"each must divide the {self.days} days of a member; found {self.each}: e.g. 5 or "
                f"73 for years of 365 days, or another number of --days"
            )
        if not 1 <= self.stretch <= 24 * self.each or self.stretch % self.every:
            raise DataError(
                f"stretch must be at most the {24 * self.each} hours of {self.each} days and a "
                f"multiple of every, {self.every}; found {self.stretch}"
            )

    def _check_years(self) -> None:
        last = self.first_year + self.members * self.years - 1
        if self.first_year < 1700 or last > 2260:
            raise DataError(
                f"members would occupy the years {self.first_year}–{last}, outside 1700–2260; "
                f"choose fewer members or years, or another first year"
            )
        validation, test, end = HELD_OUT
        if self.held_out * self.years > end + 1 - test:
            raise DataError(
                f"held out, {self.held_out} members of {self.years} year(s) exceed the test years "
                f"{test}–{end}; choose at most {(end + 1 - test) // self.years}"
            )
        if self.held_out and last >= validation:
            raise DataError(
                f"members to train on would occupy the years {self.first_year}–{last}, and "
                f"{validation}–{end} are those of members held out; choose another first year, "
                f"e.g. --first-year 1901, or fewer members or years"
            )

    @property
    def years(self) -> int:
        r"""Calendar years a member occupies."""
        return math.ceil(self.days / 365)

    @property
    def block(self) -> int:
        r"""Days in a block: what is computed, written and marked as finished together."""
        if self.each is not None:
            return self.each
        return BLOCK if self.days % BLOCK == 0 else 1

    @property
    def stored(self) -> int:
        r"""The hours of a block that are stored, the first ones; every so many of them."""
        return 24 * self.block if self.stretch is None else self.stretch

    @property
    def trajectories(self) -> int:
        r"""The number of members, those held out included."""
        return self.members + 2 * self.held_out

    def starts(self) -> np.ndarray:
        r"""The first hour of each member, ascending, with shape :math:`(M)`."""
        train = self.first_year + self.years * np.arange(self.members)
        held_out = HELD_OUT[1] + self.years * np.arange(-self.held_out, self.held_out)
        years = np.concatenate([train, held_out])
        return (years - 1970).astype("datetime64[Y]").astype("datetime64[h]")

    def times(self) -> np.ndarray:
        r"""The hours of all members, one after another, with shape :math:`(M \cdot T)`."""
        blocks = 24 * np.arange(0, self.days, self.block)
        hours = blocks[:, None] + np.arange(0, self.stored, self.every)
        hours = hours.reshape(-1).astype("timedelta64[h]")
        return (self.starts()[:, None] + hours).reshape(-1).astype("datetime64[ns]")

    @property
    def nbytes(self) -> int:
        r"""The size of the store without compression."""
        channels = sum(1 if v.surface else len(LEVELS) for v in VARIABLES.values())
        states = self.trajectories * (self.days // self.block) * (self.stored // self.every)
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

    def described(self) -> dict[str, Any]:
        r"""The plan as plain values, less what is not asked for: plans of before go on."""
        unset = {"stretch": None, "each": None, "held_out": 0}
        return {k: v for k, v in asdict(self).items() if k not in unset or v != unset[k]}


class Transform(Protocol):
    r"""What is stored instead of states, see :class:`appa.tasks.encoding.Encoder`."""

    plan: dict[str, str]  # what it is: a rerun with another does not continue this one

    def template(self, states: xr.Dataset) -> xr.Dataset:
        r"""The store, made of that of the states; neither has values yet."""
        ...

    def fields(self, states: dict[str, Any]) -> dict[str, np.ndarray]:
        r"""What is stored, :math:`(M, T, ...)` each, made of states on their device; not finite
        for members whose states are not."""
        ...

    def note(self, writer: StoreWriter, block: int, fields: dict[str, np.ndarray]) -> None:
        r"""Keeps what it will want to know about a block that was written, :math:`(T, ...)`."""
        ...

    def finish(self, writer: StoreWriter) -> None:
        r"""Finishes the store."""
        ...


def simulate(
    path: str | Path,
    plan: Plan,
    *,
    compression: str = "none",
    circulation: Circulation | None = None,
    transform: Transform | None = None,
) -> None:
    r"""Simulates members into a store.

    Killed and called again with the same plan, it goes on from the state of the members saved
    last, writes again what follows it and, on the same device, gives what an uninterrupted run
    would have. On another, rounding differs, yet no trajectory has a seam.

    Arguments:
        path: The store to write.
        plan: What to simulate.
        compression: `"none"` or `"zstd"`, see :class:`appa.data.writing.StoreWriter`.
        circulation: The model, by default a new one.
        transform: Stores something else instead of states.
    """
    from ..writing import StoreWriter

    # Says so where the extra is not installed.
    circulation = circulation or Circulation(plan.diurnal)
    length = plan.block if plan.each is None else BLOCK  # of a block of the spin-up, in days
    spins, count = math.ceil(plan.spin_up / length), plan.days // plan.block
    begin = plan.starts() - np.timedelta64(24 * length * spins, "h")
    # One function, compiled once, takes members through the spin-up and from stretch to stretch.
    gap = 24 * plan.block - plan.stored
    piece = math.gcd(24 * length, gap)

    def passed(run: Run, hours: int) -> Run:
        for _ in range(hours // piece):
            run = circulation.spin_up(run, piece / 24)
        return run

    template = _template(plan, circulation.static())
    if transform:  # which knows its plan from then on
        template = transform.template(template)
    with (
        StoreWriter(
            path,
            template,
            block=plan.stored // plan.every,
            compression=compression,
            plan={"job": "simulate", **plan.described(), **(transform.plan if transform else {})},
        ) as writer,
        ThreadPoolExecutor(min(os.cpu_count() or 1, 16)) as pool,
        ThreadPoolExecutor(1) as behind,
        progress(
            (spins * length + plan.days) * plan.trajectories, "simulating", unit="days"
        ) as bar,
    ):
        states = _States(writer.directory / "state.npz")
        run, done = states.load(circulation.start(plan.seeds(), begin))
        lengths = [length * plan.trajectories] * spins + [plan.block * plan.trajectories] * count
        bar.skip(sum(lengths[:done]))

        def finish(before: Future | None, n: int, run: Run, fields: dict[str, Any]) -> None:
            if before is not None:
                before.result()  # where it failed, nothing after it may count as done
            if fields:
                _write(fields, n - spins, plan, writer, pool, transform)
            states.save(run, n + 1)
            bar.advance(lengths[n])

        # A block is copied from the device and written while the next ones are computed, by
        # threads: launching a block's kernels keeps this one as long as the device is busy.
        waiting: deque[Future] = deque()
        for n in range(done, spins + count):
            fields: dict[str, Any] = {}
            if n < spins:
                run = passed(run, 24 * length)
            else:
                run, fields = circulation.advance(run, plan.stored / 24, plan.every)
                run = passed(run, gap)
            before = waiting[-1] if waiting else None
            waiting.append(behind.submit(finish, before, n, run, fields))
            while len(waiting) > AHEAD:
                waiting.popleft().result()
        for job in waiting:
            job.result()
        if transform:
            transform.finish(writer)
        else:
            writer.finish()


def _write(
    fields: dict[str, Any],
    block: int,
    plan: Plan,
    writer: StoreWriter,
    pool: ThreadPoolExecutor,
    transform: Transform | None,
) -> None:
    r"""Writes a block of all members, and marks it.

    Arguments:
        fields: The fields on the device, each :math:`(M, T, ...)`.
        block: The number of the block.
    """
    places = [m * (plan.days // plan.block) + block for m in range(plan.trajectories)]
    if transform:
        fields = transform.fields(fields)

    def put(name: str, member: int, values: np.ndarray) -> None:
        # A model that blew up must not fill a store with NaN. A sum shows it and needs no memory.
        with np.errstate(all="ignore"):
            looked_at = transform is not None or name == "temperature"
            finite = not looked_at or np.isfinite(values.sum())
        if not finite:
            day = plan.starts()[member].astype("datetime64[D]") + block * plan.block
            raise DataError(
                f"member {member} (seed {plan.seeds()[member]}) became unstable in the "
                f"{plan.block} days from {day}; choose another --seed"
            )
        writer.put(name, places[member] * writer.block, values)

    def copy(name: str, field: Any) -> list[Future]:
        host = np.asarray(field)
        return [pool.submit(put, name, m, values) for m, values in enumerate(host)]

    for copied in [pool.submit(copy, name, field) for name, field in fields.items()]:
        for job in copied.result():
            job.result()

    def done(member: int) -> None:
        if transform:
            own = {name: field[member] for name, field in fields.items()}
            transform.note(writer, places[member], own)
        writer.mark(places[member])

    for _ in pool.map(done, range(plan.trajectories)):
        pass


class _States:
    r"""The members' state between blocks, kept so that a killed simulation can go on."""

    def __init__(self, path: Path):
        self.path = path
        self.cost = self.last = 0.0  # seconds the last one took, and when it ended

    def save(self, run: Run, done: int) -> None:
        r"""Saves the state after `done` blocks, or waits until it is ready: not so often that it
        would take more than a small share of the time."""
        import jax

        jax.block_until_ready(run)
        start = time.monotonic()
        if start - self.last < RESTS * self.cost:
            return
        leaves = [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(run)]
        part = self.path.with_suffix(".part")
        try:
            with open(part, "wb") as file:
                np.savez(file, *leaves, done=done)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.path)
        except OSError as error:
            raise StoreError(
                f"cannot write {self.path} ({error}); what is finished is kept: make room and rerun"
            ) from error
        self.last = time.monotonic()
        self.cost = self.last - start

    def load(self, template: Run) -> tuple[Run, int]:
        r"""The state saved last and how many blocks precede it, or the template and 0."""
        import jax
        import jax.numpy as jnp

        if not self.path.exists():
            return template, 0
        structure = jax.tree_util.tree_structure(template)
        try:
            with np.load(self.path) as saved:
                leaves = [jnp.asarray(saved[f"arr_{i}"]) for i in range(structure.num_leaves)]
                return jax.tree_util.tree_unflatten(structure, leaves), int(saved["done"])
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise StoreError(
                f"{self.path}, where members go on from, cannot be read ({error}); remove it, and "
                "they begin again"
            ) from error


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
        trajectory=np.repeat(years, len(times) // plan.trajectories),
    )
    template = template.assign_attrs(
        title=TITLE,
        source=f"jcm {version('jcm')} {MODEL}",
        Conventions="CF-1.11",
        plan=str(plan.described()),
    )
    if plan.stretch is not None:  # gaps that are meant, for appa data check
        template.attrs["hours_between_stretches"] = 24 * plan.block - plan.stored + plan.every
    return template
