r"""From a standardized state to physical values at places: a few numbers a place.

The value of a variable at a place and pressure is a weighted sum over the four surrounding points
on one level, or on the two levels about it,

.. math:: a = \sum_k w_k \, (\mu_{c_k} + \sigma_{c_k} \, x_{c_k, i_k})
    = \underbrace{\textstyle \sum_k w_k \mu_{c_k}}_{\text{offset}}
    + \sum_k (w_k \sigma_{c_k}) \, x_{c_k, i_k} ,

so that an observation costs 4 or 8 numbers of the state, and 1 at a grid point. Between levels
weights are linear in :math:`\ln p`. Components of the wind change sign across a pole, and points
on land take no part in what is defined at sea only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.variables import VARIABLES, G
from ..errors import DataError

if TYPE_CHECKING:
    from ..data.grids import Grid
    from ..data.states import Standardizer
    from ..tasks.model import Model

__all__ = ["Gather", "StateSpace", "Stencils"]

ON_LEVEL = 1e-6  # of ln p, within which a pressure is a level's
AT_SEA = 1e-6  # the least weight of sea points about a place at sea


@dataclass(frozen=True, eq=False)
class StateSpace:
    r"""Where states live: what observations need to know of a model.

    Arguments:
        standardizer: What its channels are, and their means and standard deviations.
        grid: The grid.
        ground: The height of the ground in metres, with shape :math:`(H, W)`, if it is known.
        land: Where the sea surface is undefined, with shape :math:`(H, W)`, if it is known.

    Example:
        >>> space = StateSpace.of(appa.load("planet"))
    """

    standardizer: Standardizer
    grid: Grid
    ground: NDArray | None = None
    land: NDArray | None = None

    @classmethod
    def of(cls, model: Model) -> StateSpace:
        r"""That of a model."""
        if model.standardizer is None:
            raise DataError(
                f"{model.origin} has no named channels or no statistics of its states, so that "
                "observations mean nothing to it; import it again with them: appa import-official "
                "RUN OUT --statistics FILE"
            )
        return cls.from_statistics(model.standardizer, model.grid, model.statistics)

    @classmethod
    def from_statistics(cls, standardizer: Standardizer, grid: Grid, static: Any) -> StateSpace:
        r"""That of a standardizer, with the ground of a dataset that has
        `geopotential_at_surface`, or of none."""
        ground = None
        if static is not None and "geopotential_at_surface" in static:
            ground = static["geopotential_at_surface"].transpose("latitude", "longitude")
            ground = np.asarray(ground.values, np.float64) / G
        return cls(standardizer, grid, ground, standardizer.land)

    def __post_init__(self) -> None:
        for name, field in (("ground", self.ground), ("land", self.land)):
            if field is not None and field.shape != self.grid.shape:
                raise DataError(
                    f"the {name} has shape {field.shape} but the grid is {self.grid.shape}; give "
                    "that of this grid"
                )

    @cached_property
    def levels(self) -> NDArray[np.float64]:
        r"""The levels in hPa from the top down, with shape :math:`(K)`."""
        return np.sort(np.asarray(self.standardizer.levels, np.float64))

    @property
    def shape(self) -> tuple[int, int, int]:
        r""":math:`(C, H, W)`."""
        return len(self.standardizer.channels), *self.grid.shape

    @cached_property
    def mean(self) -> NDArray[np.float64]:
        r"""Means of the channels, with shape :math:`(C)`."""
        return self.standardizer.mean.flatten().double().numpy()

    @cached_property
    def std(self) -> NDArray[np.float64]:
        r"""Standard deviations of the channels, with shape :math:`(C)`."""
        return self.standardizer.std.flatten().double().numpy()

    @cached_property
    def _channels(self) -> dict[str, NDArray[np.int64]]:
        table: dict[str, list[tuple[int, int]]] = {}
        for c, channel in enumerate(self.standardizer.channels):
            table.setdefault(channel.variable, []).append((channel.level or 0, c))
        return {name: np.array([c for _, c in sorted(pairs)]) for name, pairs in table.items()}

    def __contains__(self, variable: str) -> bool:
        return variable in self._channels

    def channels(self, variable: str) -> NDArray[np.int64]:
        r"""The channels of a variable: one, or those of all levels from the top down."""
        return self._channels[variable]

    def within(self, level: NDArray) -> NDArray[np.bool_]:
        r"""Which pressures in hPa lie between the uppermost and the lowest level."""
        if not len(self.levels):
            return np.zeros(np.shape(level), dtype=bool)
        low, high = self.levels[[0, -1]] * [1 - ON_LEVEL, 1 + ON_LEVEL]
        return (level >= low) & (level <= high)

    def on_level(self, level: NDArray) -> NDArray[np.bool_]:
        r"""Which pressures in hPa are levels."""
        last = len(self.levels) - 1
        lower = np.searchsorted(self.levels, level)  # the nearest is one of the two about it
        about = (self.levels[np.clip(k, 0, last)] for k in (lower - 1, lower))
        upper, lower = (np.abs(np.log(level / p)) < ON_LEVEL for p in about)
        return upper | lower

    def bracket(self, level: NDArray) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        r"""The levels about pressures in hPa, as indices into :attr:`levels`, and their weights.

        Returns:
            Indices and weights, with shape :math:`(n, 1)` if all pressures are levels,
            :math:`(n, 2)` otherwise.
        """
        x, logs = np.log(level), np.log(self.levels)
        upper = np.clip(np.searchsorted(logs, x, side="right") - 1, 0, max(len(logs) - 2, 0))
        lower = np.minimum(upper + 1, len(logs) - 1)
        closer = np.where(logs[lower] - x < x - logs[upper], lower, upper)
        if (np.abs(x - logs[closer]) < ON_LEVEL).all():
            return closer[:, None], np.ones((len(x), 1))
        share = np.clip((x - logs[upper]) / (logs[lower] - logs[upper]), 0, 1)
        return np.stack([upper, lower], axis=1), np.stack([1 - share, share], axis=1)


@dataclass(frozen=True, eq=False)
class Gather:
    r"""A sparse affine map of flattened states :math:`(B, N)` to :math:`(B, n)`.

    Arguments:
        index: Which numbers, with shape :math:`(n, k)`.
        weight: Their weights, with shape :math:`(n, k)`.
        offset: What is added, with shape :math:`(n)`, if anything is.
    """

    index: Tensor
    weight: Tensor
    offset: Tensor | None = None

    def __call__(self, flat: Tensor) -> Tensor:
        # index_select, since its derivative adds rows rather than sorting indices
        values = flat.index_select(1, self.index.flatten()).unflatten(1, self.index.shape)
        total = (values * self.weight.to(flat.dtype)).sum(dim=-1)
        return total if self.offset is None else total + self.offset.to(flat.dtype)

    def to(self, device: Any) -> Gather:
        r"""The same on another device."""
        offset = None if self.offset is None else self.offset.to(device)
        return Gather(self.index.to(device), self.weight.to(device), offset)


@dataclass(frozen=True, eq=False)
class Stencils:
    r"""The stencils of :math:`n` places: grid points if `point` says which, any others if not."""

    space: StateSpace
    latitude: NDArray
    longitude: NDArray
    point: NDArray | None = None

    @cached_property
    def scalar(self) -> tuple[NDArray, NDArray]:
        r"""Flat indices and weights of the points about each place, with shape
        :math:`(n, 4)` or :math:`(n, 1)`."""
        return self._interpolation(False)

    @cached_property
    def vector(self) -> tuple[NDArray, NDArray]:
        r"""Those of a component of the wind."""
        return self.scalar if self.point is not None else self._interpolation(True)

    @cached_property
    def sea(self) -> tuple[NDArray, NDArray]:
        r"""Those among points at sea; weights are 0 where there are none."""
        index, weight = self.scalar
        if self.space.land is None:
            return index, weight
        weight = np.where(self.space.land.ravel()[index], 0.0, weight)
        total = weight.sum(axis=-1, keepdims=True)
        return index, np.divide(weight, total, out=np.zeros_like(weight), where=total > AT_SEA)

    @property
    def at_sea(self) -> NDArray[np.bool_]:
        r"""Which places have a point at sea about them."""
        return self.sea[1].sum(axis=-1) > 0

    def _interpolation(self, vector: bool) -> tuple[NDArray, NDArray]:
        if self.point is not None:
            return self.point[:, None], np.ones((len(self.point), 1))
        return self.space.grid.interpolation(self.latitude, self.longitude, vector)

    def ground(self) -> NDArray[np.float64] | None:
        r"""The model's ground in metres, with shape :math:`(n)`."""
        if self.space.ground is None:
            return None
        index, weight = self.scalar
        return (self.space.ground.ravel()[index] * weight).sum(axis=-1)

    def affine(
        self, variable: str, level: NDArray | None = None
    ) -> tuple[NDArray, NDArray, NDArray]:
        r"""Physical values of a variable, at levels in hPa if it has levels.

        Returns:
            Indices into flattened states and weights, with shape :math:`(n, k)`, and offsets,
            with shape :math:`(n)`.
        """
        space, var = self.space, VARIABLES[variable]
        wind = var.standard_name in ("eastward_wind", "northward_wind")
        index, weight = self.vector if wind else self.sea if var.missing else self.scalar
        channels = space.channels(variable)
        if level is None:
            c, vertical = channels[:1], np.ones((1, 1))
            c = np.broadcast_to(c, (len(index), 1))
        else:
            k, vertical = space.bracket(level)
            c = channels[k]
        h, w = space.grid.shape
        index = (c[:, :, None] * (h * w) + index[:, None, :]).reshape(len(index), -1)
        both = vertical[:, :, None] * weight[:, None, :]
        offset = (both * space.mean[c][:, :, None]).sum(axis=(1, 2))
        scaled = both * space.std[c][:, :, None]
        return index, scaled.reshape(index.shape), offset

    def gather(self, variable: str, level: NDArray | float | None = None) -> Gather:
        r"""The same as tensors; a number stands for the same level everywhere."""
        if level is not None:
            level = np.broadcast_to(np.asarray(level, np.float64), self.latitude.shape)
        index, weight, offset = self.affine(variable, level)
        return Gather(torch.from_numpy(index), single(weight), single(offset))

    def column(self, variable: str) -> Gather:
        r"""All levels of a variable from the top down, flattened from :math:`(K, n)`."""
        parts = [self.affine(variable, np.full(self.latitude.shape, p)) for p in self.space.levels]
        index, weight, offset = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Gather(torch.from_numpy(index), single(weight), single(offset))


def single(array: NDArray) -> Tensor:
    r"""A tensor in single precision."""
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
