r"""A planet to begin with: the circulation model JCM, hour by hour, in ERA5's schema.

JCM (SPEEDY physics on a spectral dynamical core) runs at T31 on 8 σ levels, whose 48×96 Gaussian
grid is the planet's. Members start at rest, isothermal and in hydrostatic balance with the
mountains, with the mass of Earth's atmosphere (mean surface pressure 985.5 hPa) and a random
perturbation of surface pressure of their own; the first months are thrown away. All members
advance together, vectorized: one on a laptop, dozens on a GPU, by the same code.

Each member occupies calendar years of its own. Sea surface temperature, sea ice and land
temperature are prescribed from a climatology: see `docs/planet.md` for what this planet lacks.
"""

from __future__ import annotations

import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...errors import AppaError, DataError
from ...progress import progress
from ..grids import Grid
from ..variables import LEVELS, VARIABLES
from .sun import with_diurnal_sun
from .vertical import CONSTANTS, sea_level_pressure, to_pressure_levels

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["GRID", "Circulation", "Plan", "simulate"]

GRID = Grid("gaussian", 48, 96)
STEP = 30  # minutes
PER_HOUR = 60 // STEP
MASS = 98_550.0  # Pa, Earth's mean surface pressure (Trenberth & Smith, 2005)
FREEZING = 271.46  # K, of sea water: what ERA5 has for the sea under ice
BLOCK = 5  # days: 365 = 5 · 73, so that blocks never straddle two members


@dataclass(frozen=True)
class Plan:
    r"""What to simulate.

    A year is 365 days: a member ends on 30 December where its last year, or an odd number of its
    years, is a leap year, so that every member has the same length.

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


class Run(NamedTuple):
    r"""Members under way: the model's state, and the past hour's precipitation in metres."""

    state: Any
    precipitation: Any


class Circulation:
    r"""JCM with the planet's terrain and forcing, and its output in ERA5's schema."""

    def __init__(self, diurnal: bool = True) -> None:
        try:
            import jcm  # noqa: F401
        except ImportError as error:
            raise AppaError(
                f"simulating a planet needs the circulation model JCM, which cannot be imported "
                f"({error}); install the extra: pip install 'appa-assimilation[planet]'"
            ) from error

        import jax.numpy as jnp
        from jcm.forcing import ForcingData
        from jcm.model import Model
        from jcm.physics.speedy.speedy_coords import get_speedy_coords
        from jcm.physics.speedy.speedy_terms import speedy_physics
        from jcm.terrain import TerrainData

        folder = resources.files("jcm") / "data" / "bc" / "t30" / "clim"
        coords = get_speedy_coords()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            terrain = TerrainData.from_file(str(folder / "terrain.nc"), coords=coords)
            self.forcing = ForcingData.from_file(str(folder / "forcing.nc"), coords)
        physics = speedy_physics()
        if diurnal:
            horizontal = coords.horizontal
            physics = with_diurnal_sun(physics, horizontal.latitudes, horizontal.longitudes)
        self.model: Any = Model(coords=coords, terrain=terrain, physics=physics, time_step=STEP)
        self.horizontal = coords.horizontal
        self.sigma = np.asarray(coords.vertical.centers, dtype=np.float64)
        # The ground the dynamics feels is the truncated one, and so must be every reduction.
        orography = self.horizontal.to_nodal(self.model.dycore._truncated_orography)
        self.surface_geopotential = CONSTANTS.gravity * jnp.asarray(orography)
        self.land = jnp.asarray(terrain.fmask)
        self.functions: dict[tuple[int, int | None], Any] = {}

    def static(self) -> dict[str, np.ndarray]:
        r"""The land-sea mask and the ground's geopotential, each :math:`(H, W)`."""
        return {
            "land_sea_mask": _canonical(np.asarray(self.land)),
            "geopotential_at_surface": _canonical(np.asarray(self.surface_geopotential)),
        }

    def start(self, seeds: list[int], times: np.ndarray) -> Run:
        r"""Members at rest at their times, stacked along a leading axis."""
        import jax
        import jax.numpy as jnp
        import jax_datetime as jdt
        from jcm.model import RunState

        states = [self._rest(seed) for seed in seeds]
        stack = partial(jax.tree_util.tree_map, lambda *a: jnp.stack([jnp.asarray(x) for x in a]))
        carry = self.model.initial_physics_carry()
        days, hours = np.divmod(times.astype("datetime64[h]").astype(np.int64), 24)
        clock = jdt.Datetime(
            jdt.Timedelta(
                days=jnp.asarray(days, jnp.int32), seconds=jnp.asarray(3600 * hours, jnp.int32)
            )
        )
        step = jnp.zeros(len(seeds), jnp.int32)
        state = RunState(stack(*states), stack(*[carry] * len(seeds)), clock, step)
        return Run(state, jnp.zeros((len(seeds), *self.land.shape)))

    def _rest(self, seed: int) -> Any:
        import jax.numpy as jnp

        state = self.model.initial_state(random_seed=seed)
        perturbation = self.horizontal.to_nodal(state.log_surface_pressure)
        # An isothermal atmosphere at rest is balanced where p_s = exp(−Φ_s / RT), up to a factor.
        balance = -self.surface_geopotential / (CONSTANTS.gas * 288.0)
        log_pressure = perturbation + balance
        area = jnp.asarray(GRID.area[::-1].T)  # (longitude, latitude), as the model has it
        mean = jnp.sum(jnp.exp(log_pressure) * area) / jnp.sum(area)
        reference = self.model.dycore.constants.p0
        log_pressure = log_pressure + jnp.log(MASS / reference) - jnp.log(mean)
        return state.replace(log_surface_pressure=self.horizontal.to_modal(log_pressure))

    def advance(self, run: Run, days: int, every: int = 1) -> tuple[Run, dict[str, Any]]:
        r"""Advances all members and keeps their states.

        Arguments:
            run: The members at their hour, from :meth:`start` or an earlier call.
            days: How far.
            every: Hours between the states kept; `run`'s own is the first.

        Returns:
            The members after `days`, and the states kept on the way, as fields with shape
            :math:`(M, T, H, W)` or :math:`(M, T, P, H, W)`.
        """
        return self._compiled(days, every)(run)

    def spin_up(self, run: Run, days: int) -> Run:
        r"""Advances all members and keeps nothing but their last state."""
        return self._compiled(days, None)(run)[0]

    def _compiled(self, days: int, every: int | None) -> Any:
        if (days, every) not in self.functions:
            import jax

            function = partial(self._advance, days=days, every=every)
            self.functions[days, every] = jax.jit(jax.vmap(function))
        return self.functions[days, every]

    def _advance(self, run: Run, *, days: int, every: int | None) -> tuple[Run, dict[str, Any]]:
        import jax.numpy as jnp

        after, predictions = self.model.run_from_state_with_carry(
            run.state.dynamics,
            self.forcing,
            save_interval=STEP / 1440,
            total_time=days,
            initial_physics_state=run.state.physics,
            initial_time=run.state.time,
            initial_step=run.state.step,
        )
        # An hour's sum of precipitation belongs to the hour's end, so the last one of this call
        # is the first one of the next.
        rate = predictions.physics["surface_exchange"].precipitation  # kg m⁻² s⁻¹, by step
        sums = rate.reshape(-1, PER_HOUR, *rate.shape[1:]).sum(1) * (STEP * 60 / 1000)
        sums = jnp.concat([run.precipitation[None], jnp.maximum(sums, 0.0)])
        after = Run(after, sums[-1])
        if every is None:
            return after, {}

        # Saved dynamics are those at the end of a step, saved physics those at its beginning:
        # hour k is the dynamics after 2k steps and the physics of the step that follows.
        first = self.model.dycore.to_physics_state(run.state.dynamics)
        hours = slice(0, 24 * days, every)

        def dynamics(name: str) -> Any:
            ends = getattr(predictions.dynamics, name)[PER_HOUR - 1 :: PER_HOUR]
            return jnp.concat([getattr(first, name)[None], ends])[hours]

        def column(name: str) -> Any:
            return jnp.moveaxis(dynamics(name), 1, 0)

        surface = predictions.physics["_surface_flux"]
        pressure = dynamics("normalized_surface_pressure") * self.model.dycore.constants.p0
        temperature = column("temperature")
        levels = to_pressure_levels(
            100.0 * np.array(LEVELS),
            self.sigma,
            pressure,
            self.surface_geopotential,
            temperature,
            column("u_wind"),
            column("v_wind"),
            # Spectral transport rings: a trace of negative humidity over deserts and at the top.
            jnp.maximum(column("specific_humidity"), 0.0),
        )
        fields = {
            "2m_temperature": surface.t0[::PER_HOUR][hours],
            "10m_u_component_of_wind": surface.u0[::PER_HOUR][hours],
            "10m_v_component_of_wind": surface.v0[::PER_HOUR][hours],
            "mean_sea_level_pressure": sea_level_pressure(
                pressure, self.surface_geopotential, temperature[-1], float(self.sigma[-1])
            ),
            "sea_surface_temperature": self._sea(run.state.time, np.arange(24 * days)[hours]),
            "total_precipitation": sums[hours],
        }
        fields |= {name: jnp.moveaxis(f, 0, 1) for name, f in levels._asdict().items()}
        return after, {name: _canonical(f) for name, f in fields.items()}

    def _sea(self, time: Any, hours: np.ndarray) -> Any:
        r"""Sea surface temperature, NaN over land, with shape :math:`(T, ...)`."""
        import jax
        import jax.numpy as jnp
        import jax_datetime as jdt
        from jcm.date import DateData

        def at(hour: Any) -> Any:
            date = DateData.set_date(
                model_time=time + jdt.Timedelta(seconds=3600 * hour),
                model_step=jnp.int32(0),
                dt_seconds=STEP * 60.0,
            )
            return self.forcing.select(date).sea_surface_temperature

        sea = jax.vmap(at)(jnp.asarray(hours, jnp.int32))
        return jnp.where(self.land < 0.5, jnp.maximum(sea, FREEZING), jnp.nan)


def _canonical(field: Any) -> Any:
    r"""From the model's axes (…, longitude, latitude), south first, to the canonical ones."""
    return field.swapaxes(-1, -2)[..., ::-1, :]


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

    count = plan.days // plan.block
    writer = StoreWriter(
        path,
        _template(plan, circulation.static()),
        block=24 * plan.block // plan.every,
        compression=compression,
        plan={"job": "simulate", **asdict(plan)},
    )
    states = _States(writer.directory / "state.npz")
    spin_up = [plan.block] * (plan.spin_up // plan.block)
    begin = plan.starts() - np.timedelta64(24 * sum(spin_up), "h")
    run, done = states.load(circulation.start(plan.seeds(), begin))

    # Keep the device busy: a block is written while the next one is computed.
    with (
        ThreadPoolExecutor(max(1, min(plan.members, 8))) as pool,
        progress(
            (len(spin_up) + count) * plan.block * plan.members, "simulating", unit="days"
        ) as bar,
    ):
        bar.skip(done * plan.block * plan.members)
        pending: tuple[int, Any, dict[str, Any]] | None = None
        for n in range(done, len(spin_up) + count + 1):
            ahead = None
            if n < len(spin_up):
                run = jax.block_until_ready(circulation.spin_up(run, plan.block))
                bar.advance(plan.block * plan.members)
                if n % 5 == 4 or n == len(spin_up) - 1:
                    states.save(run, n + 1)
                continue
            if n < len(spin_up) + count:
                run, fields = circulation.advance(run, plan.block, plan.every)
                ahead = (n, run, fields)
            if pending is not None:
                n_done, run_done, fields = pending
                host = {name: np.asarray(field) for name, field in fields.items()}
                _finite(host, n_done - len(spin_up), plan)
                blocks = [m * count + n_done - len(spin_up) for m in range(plan.members)]
                jobs = [
                    pool.submit(writer.write, block, _block(host, m, writer.blocks[block], plan))
                    for m, block in enumerate(blocks)
                ]
                for job in jobs:
                    job.result()
                states.save(run_done, n_done + 1)
                bar.advance(plan.block * plan.members)
            pending = ahead
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
        # A trajectory is named by its first year: the same in every store it is part of.
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
