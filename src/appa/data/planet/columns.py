r"""The circulation model's state as columns on its grid, and changes of it.

The state is spectral: vorticity, divergence, temperature, humidity and the logarithm of surface
pressure. Whoever changes it point by point reads winds, temperature, humidity and
:math:`\ln p_s` on the grid and gives back *increments*, which are transformed and added: what is
not changed stays as it is, bit by bit, and what the truncation cannot hold of an increment is
lost. The mean of :math:`\ln p_s`, the planet's mass of air, is not changed by anything.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .circulation import Circulation, Run, _canonical

__all__ = ["Columns", "Spectral"]


class Columns(NamedTuple):
    r"""Members on the grid, in canonical axes: on :math:`K` full levels from the top down,
    :math:`(M, K, H, W)`, or at the surface, :math:`(M, H, W)`."""

    u_wind: Any  # m s⁻¹
    v_wind: Any  # m s⁻¹
    temperature: Any  # K
    humidity: Any  # kg kg⁻¹
    log_pressure: Any  # ln p_s, in the model's unit of pressure
    precipitation: Any  # m, of the past hour: not part of the dynamics


class Spectral:
    r"""Reads the columns of a run, and adds increments to it.

    Arguments:
        circulation: The model.
    """

    def __init__(self, circulation: Circulation) -> None:
        import jax

        self.circulation = circulation
        self._read = jax.jit(jax.vmap(self._columns))
        self._add = jax.jit(jax.vmap(self._added))

    def read(self, run: Run) -> Columns:
        r"""The columns of all members."""
        return self._read(run)

    def add(self, run: Run, increments: Columns) -> Run:
        r"""The run with its columns changed; precipitation stays above 0."""
        import jax.numpy as jnp

        return self._add(run, Columns(*(jnp.asarray(x, jnp.float32) for x in increments)))

    def _columns(self, run: Run) -> Columns:
        import jax.numpy as jnp

        state = self.circulation.model.dycore.to_physics_state(run.state.dynamics)
        fields = (
            state.u_wind,
            state.v_wind,
            state.temperature,
            state.specific_humidity,
            jnp.log(state.normalized_surface_pressure),
            run.precipitation,
        )
        return Columns(*map(_canonical, fields))

    def _added(self, run: Run, increments: Columns) -> Run:
        import jax.numpy as jnp
        from dinosaur.spherical_harmonic import uv_nodal_to_vor_div_modal

        u, v, temperature, humidity, log_pressure, precipitation = map(_native, increments)
        horizontal, before = self.circulation.horizontal, run.state.dynamics
        vorticity, divergence = uv_nodal_to_vor_div_modal(horizontal, u, v)
        mass = horizontal.to_modal(log_pressure).at[0, 0].set(0.0)
        water = before.tracers["specific_humidity"] + horizontal.to_modal(humidity)
        dynamics = before.replace(
            vorticity=before.vorticity + vorticity,
            divergence=before.divergence + divergence,
            temperature_variation=before.temperature_variation + horizontal.to_modal(temperature),
            log_surface_pressure=before.log_surface_pressure + mass[None],
            tracers={**before.tracers, "specific_humidity": water},
        )
        rain = jnp.maximum(run.precipitation + precipitation, 0.0)
        return Run(run.state.replace(dynamics=dynamics), rain)


def _native(field: Any) -> Any:
    r"""From canonical axes to the model's (…, longitude, latitude), south first."""
    return field[..., ::-1, :].swapaxes(-1, -2)
