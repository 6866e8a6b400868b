r"""The filter, cycled with the planet's own circulation model.

The model is perfect: what made the truth also forecasts the members. Every :math:`n` hours, members
are forecast through the next :math:`n` and seen, hour by hour, as the observations of those hours
saw the truth; the weights of :mod:`appa.evaluation.letkf` change their states at the *first* of
these hours, and forecasts from there are the analysis of all :math:`n` (the filter in four
dimensions), and lead to the next cycle. With :math:`n = 1` each hour is an analysis given all
observations up to it. With more, the last of the :math:`n` hours is, those before have seen later
observations too, and every stretch is a trajectory of the model.

Rain is not assimilated by default: it is zero in most members at most
places, and no linear combination of them resembles another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..data.grids import RADIUS
from ..data.planet.circulation import GRID, Circulation, Run
from ..data.planet.columns import Columns, Spectral
from ..data.variables import VARIABLES
from ..errors import DataError
from ..observations.observables import find
from ..observations.operators import HourOperator, StateSpace
from . import tuning
from .letkf import local_weights, relax, taper, weigh

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Cycling", "Settings", "planet_space"]

REMEDY = "tune them with: appa baseline letkf OBS --tune TRUTH --out tuned.json"
KINDS: dict[str, type] = {
    **dict.fromkeys(("members", "every"), int),
    **dict.fromkeys(("length", "depth", "inflation", "relaxation", "representation"), float),
}


@dataclass(frozen=True)
class Settings(tuning.Tuned):
    r"""How the filter is cycled.

    Arguments:
        members: The number of members :math:`M`.
        every: Hours :math:`n` between analyses.
        length: The horizontal localization, a standard deviation in km; :py:`None` for none.
        depth: The vertical localization, a standard deviation in :math:`\ln p`, or none.
        inflation: The factor :math:`\rho` of variances before an analysis.
        relaxation: The share :math:`\alpha` of the lost spread that is given back.
        representation: What an observation errs by beside its instrument, as a share of its
            variable's standard deviation: how far the truth is from what the members nearby can
            be combined to. Observations much sharper than that have few members fit them at the
            cost of all that is not seen, and the filter is lost.
        exclude: Observables that are not assimilated.
        tuned: The periods these were tuned on, see :mod:`appa.evaluation.tuning`.
    """

    kinds, remedy = KINDS, REMEDY

    members: int = 32
    every: int = 1
    length: float | None = 500.0
    depth: float | None = 0.3
    inflation: float = 1.0
    relaxation: float = 0.7
    representation: float = 0.1
    exclude: tuple[str, ...] = ("total_precipitation",)
    tuned: tuning.Periods = ()

    def __post_init__(self) -> None:
        for name, low in (("members", 2), ("every", 1), ("inflation", 1.0), ("relaxation", 0.0)):
            value = getattr(self, name)
            if value is None or not value >= low:
                raise DataError(f"found {name} {value}; give {low:g} or more")
        for name in ("length", "depth"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise DataError(f"found {name} {value:g}; give more than 0, or none")
        if self.representation is None or not 0 <= self.representation < math.inf:
            raise DataError(f"found representation {self.representation}; give 0 or more")
        for name in self.exclude:
            find(name)


class Cycling:
    r"""A filter of the planet, one cycle at a time.

    Arguments:
        settings: How it is cycled.
        circulation: The model, by default a new one.
        spectral: What reads and changes the model's state, by default of its kind.

    Example:
        >>> run, analysis = Cycling()(run, operators[:1])
    """

    def __init__(
        self,
        settings: Settings | None = None,
        circulation: Circulation | None = None,
        spectral: Spectral | None = None,
    ):
        self.settings = settings or Settings()
        self.circulation = circulation or Circulation()
        self.spectral = spectral or Spectral(self.circulation)
        self.space = planet_space(self.circulation)
        self.points = _directions(
            np.repeat(GRID.latitude, GRID.shape[1]), np.tile(GRID.longitude, GRID.shape[0])
        )

    def tuned(self, **settings: Any) -> Cycling:
        r"""The same with other settings, and what is compiled."""
        return Cycling(replace(self.settings, **settings), self.circulation, self.spectral)

    def __call__(
        self, run: Run, operators: Sequence[HourOperator | None]
    ) -> tuple[Run, dict[str, Any]]:
        r"""One cycle.

        Arguments:
            run: The members before the first of :math:`n` hours.
            operators: What was seen in each of them, none of which is to see nothing.

        Returns:
            The members before the hour that follows, and the analyses of the :math:`n` hours as
            fields with shape :math:`(M, n, H, W)` or :math:`(M, n, P, H, W)`.
        """
        if any(operator is not None for operator in operators):
            background = self.circulation.look(run, len(operators))
            run = self.analyse(run, self.states(background), operators)
        return self.circulation.advance(run, len(operators) / 24)

    def states(self, fields: dict[str, Any]) -> Tensor:
        r"""Standardized states of the model's fields, with shape :math:`(M, n, C, H, W)`."""
        parts = []
        for name in self.space.standardizer.names:
            part = _tensor(fields[name])
            parts.append(part[:, :, None] if VARIABLES[name].surface else part)
        return self.space.standardizer.standardize(torch.cat(parts, 2))

    def analyse(self, run: Run, states: Tensor, operators: Sequence[HourOperator | None]) -> Run:
        r"""The members given observations.

        Arguments:
            run: The members before the first hour.
            states: Their forecasts, with shape :math:`(M, n, C, H, W)`.
            operators: What was seen in each of the :math:`n` hours.
        """
        s, columns = self.settings, Columns(*map(_tensor, self.spectral.read(run)))
        seen = self.compare(states, operators)
        if seen is None:
            return run
        departures, rows = seen
        mean = departures.mean(0)
        device = departures.device
        _, at, place = np.unique(rows["place"].to_numpy(), return_index=True, return_inverse=True)
        there = rows[["latitude", "longitude"]].to_numpy(float)[at]
        there = _directions(*there.T).to(device)
        angle = (self.points.to(device) @ there.T).clamp(-1, 1).acos()
        vertical = None
        if s.depth is not None:
            pressure = columns.log_pressure.mean(0).cpu().numpy()
            heights = torch.from_numpy(self._heights(rows, np.exp(pressure)))
            sigma = torch.from_numpy(np.log(self.circulation.sigma))
            # those of whole columns count at all heights
            vertical = taper((sigma[:, None] - heights).nan_to_num(0.0), s.depth).to(device)
        weights = local_weights(
            mean - departures,
            mean,
            torch.from_numpy(place.reshape(-1)).to(device),
            taper(RADIUS / 1000 * angle, s.length),
            vertical,
            s.inflation,
        )

        def increments(weights: Tensor, *fields: Tensor) -> list[Tensor]:
            x = torch.stack([f.flatten(-2) for f in fields], 1).to(weights)
            x = x if x.ndim == 4 else x.unsqueeze(2)
            change = relax(x, weigh(weights, x), s.relaxation) - x
            return [c.reshape(f.shape) for c, f in zip(change.unbind(1), fields, strict=True)]

        # what is at the surface goes with the lowest level
        change = Columns(
            *increments(weights, *columns[:4]), *increments(weights[:, -1:], *columns[4:])
        )
        # linear combinations may fall below zero: no further than the model itself lets them
        dry = columns.humidity.clamp(max=0) - columns.humidity
        change = change._replace(humidity=change.humidity.clamp(min=dry))
        return self.spectral.add(run, Columns(*map(_array, change)))

    @torch.no_grad()
    def compare(
        self, states: Tensor, operators: Sequence[HourOperator | None]
    ) -> tuple[Tensor, pd.DataFrame] | None:
        r"""Whitened departures of members, with shape :math:`(M, n)`, and a table of the rows."""
        import pandas as pd

        found, rows = [], []
        for k, operator in enumerate(operators):
            if operator is None:
                continue
            keep = ~operator.rows["variable"].isin(self.settings.exclude).to_numpy(bool)
            if keep.any():
                d = operator.to(states.device).departure(states[:, k]).double()
                factor = torch.from_numpy(self._factor(operator)).to(d)
                found.append((d / factor)[:, torch.from_numpy(keep).to(d.device)])
                rows.append(operator.rows.loc[keep])
        if not found:
            return None
        return torch.cat(found, 1), pd.concat(rows, ignore_index=True)

    def _factor(self, operator: HourOperator) -> np.ndarray:
        r"""What errors grow by with that of representation."""
        import pandas as pd

        rows, share = operator.rows, self.settings.representation
        std = np.zeros(len(rows))
        kind, names = pd.factorize(rows["variable"])
        for k, name in enumerate(names if share else ()):
            if name in self.space:
                at = kind == k
                channels = self.space.channels(name)
                level, which = np.unique(rows["level"].to_numpy(float)[at], return_inverse=True)
                near = np.abs(level[:, None] - self.space.levels).argmin(1)
                std[at] = self.space.std[channels[near % len(channels)]][which]
        return np.hypot(1.0, share * std / operator.error.double().cpu().numpy())

    def _heights(self, rows: pd.DataFrame, pressure: np.ndarray) -> np.ndarray:
        r""":math:`\ln \sigma` of observations: 0 at the ground and below it, NaN of columns."""
        latitude, longitude = (rows[k].to_numpy(float) for k in ("latitude", "longitude"))
        j = np.abs(latitude[:, None] - GRID.latitude).argmin(1)
        i = np.rint(longitude / 360 * GRID.shape[1]).astype(int) % GRID.shape[1]
        below = 1e-2 * self.circulation.model.dycore.constants.p0 * pressure[j, i]
        level = rows["level"].to_numpy(float)
        columns = [n for n in rows["variable"].unique() if find(n).levels == "column"]
        ground = np.where(rows["variable"].isin(columns), np.nan, 0.0)
        return np.where(np.isnan(level), ground, np.log(np.fmin(level / below, 1.0)))


def planet_space(circulation: Circulation) -> StateSpace:
    r"""Where states of the planet live, its ground and land included."""
    import xarray as xr

    from ..data.planet import statistics
    from ..data.states import Standardizer

    static = circulation.static()
    land = static["land_sea_mask"] >= 0.5
    ds = xr.Dataset({name: (("latitude", "longitude"), v) for name, v in static.items()})
    return StateSpace.from_statistics(Standardizer(statistics(), land_mask=land), GRID, ds)


def _directions(latitude: np.ndarray, longitude: np.ndarray) -> Tensor:
    r"""Unit vectors of places, with shape :math:`(n, 3)`."""
    phi, lam = np.radians(latitude), np.radians(longitude)
    parts = [np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)]
    return torch.from_numpy(np.stack(parts, axis=-1))


def _tensor(array: Any) -> Tensor:
    r"""An array of the model as a tensor, on the same device where torch knows it."""
    where = {device.platform for device in array.devices()} if hasattr(array, "devices") else ()
    if "gpu" in where and torch.cuda.is_available():
        return torch.from_dlpack(array)
    return torch.from_numpy(np.array(array))


def _array(tensor: Tensor) -> Any:
    r"""The way back."""
    tensor = tensor.float().contiguous()
    if tensor.is_cuda:
        import jax

        return jax.dlpack.from_dlpack(tensor)
    return tensor.numpy()
