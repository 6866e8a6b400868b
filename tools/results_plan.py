r"""What `results.py` is to do: windows, forecasts, variations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from appa.data import netcdf

__all__ = ["KIND", "VARIATIONS", "Plan", "Variation", "scored_hours"]

KIND = netcdf.Kind("means", "means of statistics", "make them with: python tools/results.py")


@dataclass(frozen=True)
class Variation:
    r"""A reanalysis with one thing different from the one of as many hours that is there anyway.

    Arguments:
        name: Its name.
        group: What differs, in a word.
        settings: Settings that differ.
        named: A named setting in place of the run's; `default` for the model's own.
        network: What differs of the network, see :meth:`Worker.network`.
        hours: The hours of the window, 0 for the first of the plan's.
    """

    name: str
    group: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    named: str | None = None
    network: Mapping[str, Any] = field(default_factory=dict)
    hours: int = 0

    @property
    def product(self) -> str:
        r"""The name of its file."""
        words = self.name.replace("×", "x").replace("÷", "by").replace(",", "")
        return f"v-{words.replace(' ', '-')}"


FREE = {"representation": "none", "residual": False}
# Of drafts, 60 iterations were as good as 20, and 72 steps as 24, to half a percent of CRPS (the
# table of variations of docs/results/assimilation.md).
CONVERGED = {"steps": 24, "iterations": 20, "early": 4, "tolerance": 0.02}
VARIATIONS = (
    Variation("paper", "setting", named="paper"),
    Variation("draft", "setting", named="draft"),
    Variation("default", "setting", named="default"),
    Variation("neither stage", "representation", FREE),
    Variation("without the first stage", "representation", {"representation": "none"}),
    Variation("representation diagonal", "representation", {"representation": "diagonal"}),
    Variation("without residual", "representation", {"residual": False}),
    Variation("dps", "guidance", {"guidance": "dps"}),
    Variation("sda", "guidance", {"guidance": "sda"}),
    Variation("pgdm", "guidance", {"guidance": "pgdm"}),
    Variation("jfps", "guidance", {"guidance": "jfps"}),
    Variation("tmpd", "guidance", {"guidance": "tmpd"}),
    Variation("diffpir", "guidance", {"guidance": "diffpir"}),
    Variation("iterations 2", "iterations", {"iterations": 2, "tolerance": 0.0}),
    Variation("converged", "iterations", CONVERGED),
    Variation("iterations 4 everywhere", "iterations", {"iterations": 4, "early": 4}),
    Variation("as many early", "iterations", {"early": 1000}),
    Variation("iterations 60", "iterations", {"iterations": 60, "early": 60, "tolerance": 1e-3}),
    Variation("not understated", "prior", {"understated": 0.0}),
    Variation("steps 12", "steps", {"steps": 12}),
    Variation("steps 24", "steps", {"steps": 24}),
    Variation("steps 72", "steps", {"steps": 72}),
    Variation("stations × 4", "network", network={"stations": 4.0}),
    Variation("stations ÷ 4", "network", network={"stations": 0.25}),
    Variation("3 satellites", "network", network={"satellites": 3}),
    Variation("no satellite", "network", network={"satellites": 0}),
    Variation("noise × 3", "noise", network={"noise": 3.0}),
    Variation("noise ÷ 3", "noise", network={"noise": 1 / 3}),
    Variation("composed, stride 12", "stride", {"mode": "composed", "stride": 12}, hours=48),
    Variation("composed, stride 6", "stride", {"mode": "composed", "stride": 6}, hours=48),
    Variation("sequential, a sweep", "stride", {"sweeps": 1}, hours=48),
)


@dataclass(frozen=True)
class Plan:
    r"""What is to be done, the same in every process."""

    model: str
    store: str
    out: str
    members: int = 10
    seed: int = 0
    setting: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    windows: tuple[int, ...] = (24, 1, 4, 8, 2, 16, 48, 72)
    leads: tuple[int, ...] = (1, 2, *range(3, 73, 3))
    source: int = 24
    variations: tuple[Variation, ...] = VARIATIONS
    each: int = 3
    only: tuple[str, ...] = ()
    stations: int | None = None
    regions: tuple[str, ...] = ("global",)
    channels: tuple[str, ...] = ("t2m", "u10", "msl", "t850", "z500", "u500", "v850", "q700")
    climatology: str | None = "planet"
    covariance: str | None = None
    tuned: str | None = None
    interpolated: tuple[int, ...] = ()
    letkf: str | None = None
    weather: str | None = None
    cycled: int = 0
    rarely: int = 4
    device: str = "cpu"
    processes: int = 1
    batch: int | None = None
    tf32: bool = True

    @property
    def before(self) -> int:
        r"""The hours that are observed at most, until now."""
        return max(self.windows)

    @property
    def known(self) -> int:
        r"""The hours that a date has before it, itself among them: those that the LETKF cycles
        over may be more than any window has."""
        return max(self.before, self.cycled)

    @property
    def controlled(self) -> tuple[int, ...]:
        r"""The windows that optimal interpolation stands beside, the first among them."""
        return tuple(dict.fromkeys((self.windows[0], *self.interpolated)))

    def hours_of(self, v: Variation) -> int:
        r"""The hours of a variation's window."""
        return v.hours or self.windows[0]

    @property
    def after(self) -> int:
        r"""The hours that are forecast."""
        return max(self.leads)


def scored_hours(hours: int, most: int = 24) -> list[int]:
    r"""The hours of a window that are scored: every so many, the last among them."""
    step = max(1, hours // most)
    return list(range(hours - 1, -1, -step))[::-1]
