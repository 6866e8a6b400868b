r"""A sun that rises and sets.

SPEEDY's insolation at the top of the atmosphere is its daily mean, a function of latitude
:math:`\phi` and season only. This term follows it and multiplies it by

.. math:: \frac{\max(0, \cos \zeta)}{\overline{\max(0, \cos \zeta)}} , \qquad
    \cos \zeta = \sin \phi \sin \delta + \cos \phi \cos \delta \cos h ,

with :math:`\delta` the declination, :math:`h` the hour angle, and the mean over a day in closed
form, :math:`(h_0 \sin \phi \sin \delta + \sin h_0 \cos \phi \cos \delta) / \pi`,
:math:`\cos h_0 = - \tan \phi \tan \delta`. The day's sum is unchanged, so the climate hardly is;
land warms in the afternoon. Shortwave radiation is updated every 90 minutes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["daily_cycle", "declination", "with_diurnal_sun"]


def declination(year_progress: Any) -> Any:
    r"""The sun's declination :math:`\delta` in radians, Spencer's series as SPEEDY has it."""
    xp = np if isinstance(year_progress, float | np.ndarray) else _jax_numpy()
    a = 2 * np.pi * year_progress
    return (
        0.006918
        - 0.399912 * xp.cos(a)
        + 0.070257 * xp.sin(a)
        - 0.006758 * xp.cos(2 * a)
        + 0.000907 * xp.sin(2 * a)
        - 0.002697 * xp.cos(3 * a)
        + 0.001480 * xp.sin(3 * a)
    )


def daily_cycle(latitude: Any, hour_angle: Any, delta: Any) -> Any:
    r"""Insolation in units of its daily mean.

    Arguments:
        latitude: :math:`\phi` in radians.
        hour_angle: :math:`h` in radians, 0 at noon.
        delta: The declination :math:`\delta` in radians.
    """
    xp = np if isinstance(hour_angle, np.ndarray) else _jax_numpy()
    s = xp.sin(latitude) * xp.sin(delta)
    c = xp.cos(latitude) * xp.cos(delta)
    half_day = xp.arccos(xp.clip(-s / c, -1.0, 1.0))
    mean = (half_day * s + xp.sin(half_day) * c) / np.pi
    now = xp.maximum(s + c * xp.cos(hour_angle), 0.0)
    # In polar night both vanish, and so does what is multiplied.
    return xp.where(mean > 1e-4, now / xp.maximum(mean, 1e-4), 1.0)


def with_diurnal_sun(physics: Any, latitude: np.ndarray, longitude: np.ndarray) -> Any:
    r"""SPEEDY's physics with insolation by the hour.

    Arguments:
        physics: The composed physics, from `speedy_physics()`.
        latitude, longitude: The model's grid in radians, with shapes :math:`(H)` and :math:`(W)`.
    """
    from jcm.physics.speedy.speedy_terms import SpeedyTermBase
    from jcm.physics_interface import PhysicsTendency

    class DiurnalSun(SpeedyTermBase):
        name = "diurnal_sun"
        category = "forcing"

        def __call__(self, state: Any, diagnostics: dict, forcing: Any, terrain: Any) -> Any:
            sun = forcing.solar
            angle = sun.synodic_phase + longitude[:, None] - np.pi  # (W, H), as the model has it
            cycle = daily_cycle(latitude[None], angle, declination(sun.tyear))
            shortwave = diagnostics["_shortwave_rad"]
            shortwave = shortwave.copy(
                fsol=shortwave.fsol * cycle,
                ozupp=shortwave.ozupp * cycle,
                ozone=shortwave.ozone * cycle,
            )
            zero = PhysicsTendency.zeros(state.temperature.shape)
            return zero, {**diagnostics, "_shortwave_rad": shortwave}

    terms = list(physics.terms)
    # Insolation is set by the forcing term and used by those after it.
    at = next(i for i, term in enumerate(terms) if term.name == "speedy_forcing") + 1
    return type(physics)([*terms[:at], DiurnalSun(), *terms[at:]])


def _jax_numpy() -> Any:
    import jax.numpy as jnp

    return jnp
