r"""Settings of a draw: a configuration's, a named one's, or a user's own.

Names stand for settings that belong together:

* `paper`, the published runs, number for number: predictor–corrector on the rectified schedule,
  two iterations of GMRES, composed windows, observations taken at their word; forecasts slide a
  window, half of which is given and half new.
* `draft`, a quick look: few steps and iterations.
* `model`, what its configuration says: by default what was found to be worth its cost
  (`benchmarks/README.md`), whichever model it is.
"""

from __future__ import annotations

from typing import Any

import torch

from ..config import Config, parse_config
from ..diffusion.guidance import GUIDANCES, Guidance
from ..diffusion.guidance.mmps import PROBES
from ..diffusion.sampling import Sampler
from ..diffusion.sequential import schedule
from ..diffusion.trajectory import joints, padded_length
from ..errors import ConfigError, nearest
from ..sections import Sampling

__all__ = ["OBSERVED", "SETTINGS", "Settings", "forecast_mode"]

# Settings about observations, which have nothing to act on in a forecast.
OBSERVED = ("lag", "curvature", "representation", "background", "threshold")

SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {
        "sampler": "predictor-corrector",
        "steps": 32,
        "corrections": 2,
        "correction_size": 0.1,
        "mode": "composed",
        "guidance": "mmps",
        "solver": "gmres",
        "iterations": 2,
        "tolerance": 0.0,
        "curvature": 0,
        "representation": "none",
        "residual": False,
        "understated": 0.0,
    },
    "draft": {
        "sampler": "multistep",
        "steps": 16,
        "iterations": 6,
        "tolerance": 0.05,
    },
    "model": {},
}


class Settings(Sampling):
    r"""The settings of a draw, see :class:`appa.sections.Sampling`."""

    @classmethod
    def of(cls, config: Config, name: str | None = None, **overrides: Any) -> Settings:
        r"""
        Arguments:
            config: The configuration, whose `sampling` they are by default.
            name: One of :data:`SETTINGS`.
            overrides: Single settings; :py:`None` leaves one as it is.

        Example:
            >>> Settings.of(model.config, "paper", steps=64)
        """
        if name is not None and name not in SETTINGS:
            raise ConfigError(f"unknown setting {name!r}{nearest(name, SETTINGS)}")
        chosen = {key: value for key, value in overrides.items() if value is not None}
        unknown = [key for key in chosen if key not in cls.model_fields]
        if unknown:
            known = list(cls.model_fields)
            raise ConfigError(f"unknown setting {unknown[0]!r}{nearest(unknown[0], known)}")
        named = dict(SETTINGS.get(name or "", {}))
        if name == "paper":  # 12 of its 24 hours are given, and 12 new
            half = config.window // 2
            named |= {"past": half, "lag": 0, "new": config.window - half}
        values = config.sampling.model_dump() | named | chosen
        # through the configuration, which knows what fits its window and says what does not
        checked = config.model_dump() | {"sampling": values}
        return cls(**parse_config(checked).sampling.model_dump())

    @classmethod
    def ahead(
        cls, config: Config, name: str | None = None, all_at_once: bool = False, **overrides: Any
    ) -> Settings:
        r"""The settings of a forecast.

        A mode that the configuration or a named setting has is that of periods with observations:
        the paper composes these, but slides a window over forecasts. So do forecasts here, unless a
        mode is asked for. What would have nothing to act on is an error.

        Arguments:
            config, name, overrides: As of :meth:`of`.
            all_at_once: Whether all hours are drawn together, as with `mode="composed"`.
        """
        chosen = {key: value for key, value in overrides.items() if value is not None}
        mode = forecast_mode(chosen.get("mode", "auto"), all_at_once)
        for key in OBSERVED:
            if key in chosen:
                raise ConfigError(
                    f"found {key}={chosen[key]}, which is about observations: a forecast has none; "
                    "leave it out, or give it to the analysis the forecast starts from"
                )
        for key, of in (("stride", "composed"), ("new", "sequential"), ("sweeps", "sequential")):
            if key in chosen and mode != of:
                raise ConfigError(
                    f"found {key}={chosen[key]}, which is about {of} windows, but this forecast's "
                    f"are {mode}; leave it out, or ask for mode={of!r} (--mode {of})"
                )
        return cls.of(config, name, **chosen | {"mode": mode})

    def on(self, device: torch.device | str) -> Settings:
        r"""The same, and what depends on the device decided: what an ensemble is drawn with is
        what it says it was, and goes on with."""
        from .precision import Precision

        name = Precision(self.precision, torch.device(device)).name
        return self.model_copy(update={"precision": name})

    def sampler_of(self) -> Sampler:
        r"""The sampler."""
        return Sampler(
            self.sampler,
            self.steps,
            corrections=self.corrections,
            delta=self.correction_size,
        )

    def guidance_of(self) -> Guidance:
        r"""The guidance."""
        probes = {"probes": self.curvature} if self.guidance == "mmps" else {}
        return GUIDANCES[self.guidance](
            solver=self.solver,
            iterations=self.iterations,
            tolerance=self.tolerance,
            early=self.early,
            **probes,
        )

    def probes_of(self, curved: bool) -> int:
        r"""The probes of curvature that guidance makes of a window, with observations of a curved
        observable or without any."""
        if self.guidance != "mmps":
            return 0
        if self.curvature is None:
            return PROBES if curved else 0
        return self.curvature

    def lag_of(self, window: int) -> int:
        r"""The lag, by default two fifths of the hours a window adds, or what `new` leaves of it:
        8 of 24 with 4 given."""
        if self.lag is not None:
            return self.lag
        lag = (2 * (window - self.past)) // 5
        return lag if self.new is None else min(lag, window - self.past - self.new)

    def sequential(self, hours: int, window: int, known: int = 0) -> bool:
        r"""Whether windows are drawn one after the other, rather than composed."""
        if self.mode == "auto":
            return hours > window or known > 0
        return self.mode == "sequential"

    def joints(self, hours: int, window: int, known: int = 0, observed: bool = True) -> list[int]:
        r"""The hours of a trajectory at which another window begins to give it.

        Arguments:
            hours: The hours :math:`L` of the trajectory, those that are known included.
            window: The hours :math:`W` of a window.
            known: The first hours that were known, of a forecast.
            observed: Whether there are observations.
        """
        if not self.sequential(hours, window, known):
            found = joints(padded_length(hours, window, self.stride), window, self.stride)
            return [hour for hour in found if hour < hours]
        lag = self.lag_of(window) if observed else 0
        giver = [-1] * max(hours, window)
        drawn = schedule(hours, window, known, self.past, lag, self.new, self.sweeps)
        for number, w in enumerate(drawn):
            for t in range(window)[w.kept]:
                giver[w.start + t] = number
        return [t for t in range(1, hours) if giver[t] != giver[t - 1]]


def forecast_mode(mode: str, all_at_once: bool = False) -> str:
    r"""How a forecast's windows are drawn: one after another, unless composed ones or, which is the
    same, all hours at once are asked for."""
    if all_at_once and mode == "sequential":
        raise ConfigError(
            "found mode='sequential', but all hours at once are asked for, which composes windows; "
            "leave out mode (--mode) or all_at_once (--all-at-once)"
        )
    return "composed" if all_at_once or mode == "composed" else "sequential"
