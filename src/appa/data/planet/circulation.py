r"""The circulation model behind the planet, and its output in ERA5's schema.

JCM (SPEEDY physics on a spectral dynamical core) runs at T31 on 8 σ levels, whose 48×96 Gaussian
grid is the planet's. Members start at rest, isothermal and in hydrostatic balance with the
mountains, with the mass of Earth's atmosphere (mean surface pressure 985.5 hPa) and a random
perturbation of surface pressure of their own. All members advance together, vectorized: one on a
laptop, dozens on a GPU, by the same code. Sea surface temperature, sea ice and land temperature
are prescribed from a climatology: see `docs/planet.md` for what this planet lacks.
"""

from __future__ import annotations

import warnings
from functools import partial
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from ...errors import AppaError
from ..grids import Grid
from ..variables import LEVELS
from .sun import with_diurnal_sun
from .vertical import CONSTANTS, sea_level_pressure, to_pressure_levels

__all__ = ["GRID", "Circulation", "Run"]

GRID = Grid("gaussian", 48, 96)
STEP = 30  # minutes
PER_HOUR = 60 // STEP
MASS = 98_550.0  # Pa, Earth's mean surface pressure (Trenberth & Smith, 2005)
FREEZING = 271.46  # K, of sea water: what ERA5 has for the sea under ice


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
        self.functions: dict[tuple[int, int | None, bool], Any] = {}

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
        return _strong(Run(state, jnp.zeros((len(seeds), *self.land.shape))))

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

    def advance(self, run: Run, days: float, every: int = 1) -> tuple[Run, dict[str, Any]]:
        r"""Advances all members and keeps their states.

        Arguments:
            run: The members at their hour, from :meth:`start` or an earlier call.
            days: How far, in whole hours.
            every: Hours between the states kept; `run`'s own is the first.

        Returns:
            The members after `days`, and the states kept on the way, as fields with shape
            :math:`(M, T, H, W)` or :math:`(M, T, P, H, W)`.
        """
        return self._compiled(round(24 * days), every)(run)

    def spin_up(self, run: Run, days: float) -> Run:
        r"""Advances all members and keeps nothing but their last state."""
        return self._compiled(round(24 * days), None)(run)[0]

    def look(self, run: Run, hours: int = 1) -> dict[str, Any]:
        r"""The states that :meth:`advance` keeps of these hours, `run`'s own the first, and no way
        beyond: of the last of them a single step is taken, for its physics."""
        return self._compiled(hours, 1, beyond=False)(run)[1]

    def _compiled(self, hours: int, every: int | None, beyond: bool = True) -> Any:
        key = hours, every, beyond
        if key not in self.functions:
            import jax

            function = partial(self._advance, hours=hours, every=every, beyond=beyond)
            self.functions[key] = jax.jit(jax.vmap(function))
        return self.functions[key]

    def _advance(
        self, run: Run, *, hours: int, every: int | None, beyond: bool
    ) -> tuple[Run, dict[str, Any]]:
        import jax.numpy as jnp

        steps = hours * PER_HOUR if beyond else (hours - 1) * PER_HOUR + 1
        after, predictions = self.model.run_from_state_with_carry(
            run.state.dynamics,
            self.forcing,
            save_interval=f"{STEP} minutes",
            total_time=f"{STEP * steps} minutes",
            initial_physics_state=run.state.physics,
            initial_time=run.state.time,
            initial_step=run.state.step,
        )
        # An hour's sum of precipitation belongs to the hour's end, so the last one of this call
        # is the first one of the next.
        rate = predictions.physics["surface_exchange"].precipitation  # kg m⁻² s⁻¹, by step
        rate = rate[: steps // PER_HOUR * PER_HOUR]  # of whole hours
        sums = rate.reshape(-1, PER_HOUR, *rate.shape[1:]).sum(1) * (STEP * 60 / 1000)
        sums = jnp.concat([run.precipitation[None], jnp.maximum(sums, 0.0)])
        after = _strong(Run(after, sums[-1]))
        if every is None:
            return after, {}

        # Saved dynamics are those at the end of a step, saved physics those at its beginning:
        # hour k is the dynamics after 2k steps and the physics of the step that follows.
        first = self.model.dycore.to_physics_state(run.state.dynamics)
        kept = slice(0, hours, every)

        def dynamics(name: str) -> Any:
            ends = getattr(predictions.dynamics, name)[PER_HOUR - 1 :: PER_HOUR]
            return jnp.concat([getattr(first, name)[None], ends])[kept]

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
            "2m_temperature": surface.t0[::PER_HOUR][kept],
            "10m_u_component_of_wind": surface.u0[::PER_HOUR][kept],
            "10m_v_component_of_wind": surface.v0[::PER_HOUR][kept],
            "mean_sea_level_pressure": sea_level_pressure(
                pressure, self.surface_geopotential, temperature[-1], float(self.sigma[-1])
            ),
            "sea_surface_temperature": self._sea(run.state.time, np.arange(hours)[kept]),
            "total_precipitation": sums[kept],
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


def _strong(run: Run) -> Run:
    r"""With types that are saved: a state read back would need functions compiled again."""
    import jax

    return jax.tree_util.tree_map(lambda a: jax.lax.convert_element_type(a, a.dtype), run)


def _canonical(field: Any) -> Any:
    r"""From the model's axes (…, longitude, latitude), south first, to the canonical ones."""
    return field.swapaxes(-1, -2)[..., ::-1, :]
