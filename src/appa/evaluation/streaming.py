r"""States to be scored: which of a split, how they are weighed, the climate they depart from.

Scores are taken over windows spread over a split: the hours at which windows may begin are cut into
as many equal parts as windows are asked for, and one is drawn from each. All members and seasons
then count alike, and no hour of the day is preferred.

Means over space weigh grid points by area and leave out land where SST is meant: with
:math:`w_{c i}` the weights of channel :math:`c`, :math:`\sum_i w_{c i} = 1`, the mean square of a
standardized field is :math:`\sum_i w_{c i} x_{c i}^2`. The *weather's own standard deviation* is
that of anomalies from the climatology, with the variance averaged the same way,
:math:`s_c^2 = \sum_i w_{c i} \, \sigma_{c i}^2`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..data import climatology as climatologies
from ..data.grids import Grid
from ..data.states import Standardizer, undefined
from ..data.variables import VARIABLES, Channel
from ..data.windows import WindowLoader
from ..errors import DataError, nearest

if TYPE_CHECKING:
    import xarray as xr

    from ..config import Config
    from ..tasks.model import Model

__all__ = [
    "Climate",
    "Domain",
    "open_climatology",
    "period",
    "spread",
    "weather_deviation",
    "windows",
]

SPLITS = ("train", "validation", "test")


def period(config: Config, split: str | tuple[Any, Any] | None) -> tuple[Any, Any] | None:
    r"""The first and last hour of a split: a name, two dates, or nothing for the whole store."""
    if not isinstance(split, str):
        return split
    if split not in SPLITS:
        raise DataError(f"unknown split {split!r}{nearest(split, SPLITS)}")
    hours = config.data.splits.period(split)
    return hours.start, hours.stop


def spread(loader: WindowLoader, count: int, seed: int = 0) -> WindowLoader:
    r"""Keeps one window of each of `count` equal parts of those of a loader, drawn at random."""
    total = len(loader.starts)
    if count < total:
        edges = np.arange(count + 1) * total // count
        chosen = np.random.default_rng(seed).integers(edges[:-1], edges[1:])
        loader.starts = loader.starts[chosen]
    return loader


def windows(
    model: Model,
    store: Any,
    split: str | tuple[Any, Any] | None,
    *,
    hours: int,
    count: int,
    batch: int,
    seed: int = 0,
) -> WindowLoader:
    r"""A loader of standardized windows spread over a split, in order of time."""
    loader = WindowLoader(
        store,
        hours,
        batch,
        standardizer=standardizer(model),
        split=period(model.config, split),
        shuffle=False,
        drop_last=False,
    )
    if loader.shape != tuple(model.config.state_shape):
        raise DataError(
            f"the store's states have shape {loader.shape}, the model's "
            f"{model.config.state_shape}; give a store of the model's grid"
        )
    return spread(loader, count, seed)


def standardizer(model: Model) -> Standardizer:
    if model.standardizer is None:
        raise DataError(
            "the model has no statistics of states, so a store cannot be standardized for it; "
            "import it again with --statistics FILE"
        )
    return model.standardizer


class Domain:
    r"""Where states live: their channels, grid and weights, on a device.

    Arguments:
        model: A model, with `config` and `standardizer`.
        store: The store, whose undefined SST tells land from sea where the model does not.
        channels: The names of the channels to score, e.g. `("t2m", "z500")`. By default, all.
        device: The device.
    """

    def __init__(
        self,
        model: Model,
        store: Any = None,
        channels: Sequence[str] | None = None,
        device: str | torch.device = "cpu",
    ):
        self.grid: Grid = model.config.grid
        self.device = torch.device(device)
        states = standardizer(model)
        names = [c.name for c in states.channels]
        for name in channels or ():
            if name not in names:
                raise DataError(f"the model has no channel {name!r}{nearest(name, names)}")
        #: Which channels of a state are scored, as indices.
        self.index = [names.index(name) for name in channels or names]
        self.channels: list[Channel] = [states.channels[k] for k in self.index]
        self.mean = states.mean.flatten().double().numpy()[self.index]
        self.std = states.std.flatten().double().numpy()[self.index]

        land = states.land
        if land is None and store is not None and "sst" in self.names:
            from ..data.stores import open_store

            land = undefined(open_store(store))
        #: Where each channel is defined, with shape :math:`(C, H, W)`.
        self.defined = np.ones((len(self.channels), *self.grid.shape), bool)
        if land is not None:
            self.defined[self.masked] = ~land
        weights = self.grid.weights[:, None] * self.defined
        weights = weights / weights.sum((-2, -1), keepdims=True)
        #: Weights of the points, with sum 1 for each channel and shape :math:`(C, H, W)`.
        self.weights = torch.from_numpy(weights.astype(np.float32)).to(self.device)

    @property
    def names(self) -> list[str]:
        r"""The channels' names."""
        return [c.name for c in self.channels]

    @property
    def masked(self) -> list[int]:
        r"""The channels that are undefined somewhere: they have no spectrum."""
        return [k for k, c in enumerate(self.channels) if VARIABLES[c.variable].missing]

    def select(self, x: Tensor) -> Tensor:
        r"""The scored channels of states :math:`(*, C', H, W)`."""
        everything = self.index == list(range(x.shape[-3]))
        return x if everything else x[..., self.index, :, :]

    def average(self, x: Tensor) -> Tensor:
        r"""The means over space of fields :math:`(*, C, H, W)`, with shape :math:`(*, C)`."""
        return (x * self.weights).sum((-2, -1))

    def steps(self, x: Tensor, channel: int | slice = slice(None)) -> Tensor:
        r"""The mean squares of the differences between neighbours along longitude.

        Arguments:
            x: Fields, with shape :math:`(N, C, H, W)`, or :math:`(N, H, W)` of one channel.
            channel: The channel they are of.

        Returns:
            For each column the mean over latitude, by area, and over fields, with shape
            :math:`(C, W)` or :math:`(W)`. The last column's neighbour is the first: the seam.
        """
        weights = self.weights[channel]
        weights = torch.minimum(weights, weights.roll(-1, -1))  # both must be defined
        total = weights.sum(-2)
        square = (x.roll(-1, -1) - x).square().mean(0)
        return (square * weights).sum(-2) / total.where(total > 0, torch.nan)

    def columns(self, square: Tensor) -> Tensor:
        r"""The means over latitude, and over fields, of :math:`(N, C, H, W)`: :math:`(C, W)`."""
        total = self.weights.sum(-2)
        return (square.mean(0) * self.weights).sum(-2) / total.where(total > 0, torch.nan)

    def coordinates(self) -> dict[str, Any]:
        r"""The coordinates of a dataset of scores by channel."""
        levels = [np.nan if c.level is None else float(c.level) for c in self.channels]
        return {
            "channel": self.names,
            "variable": ("channel", [c.variable for c in self.channels]),
            "level": ("channel", levels, {"units": "hPa"}),
            "latitude": ("latitude", self.grid.latitude, {"units": "degrees_north"}),
            "longitude": ("longitude", self.grid.longitude, {"units": "degrees_east"}),
        }


def open_climatology(climatology: Any) -> xr.Dataset | None:
    r"""A climatology from its file, `"planet"` for the bundled one, itself, or nothing."""
    if climatology is None or not isinstance(climatology, (str, Path)):
        return climatology
    if str(climatology) == "planet":
        from ..data import planet

        return planet.climatology()
    return climatologies.load(climatology)


def weather_deviation(climatology: xr.Dataset, domain: Domain) -> np.ndarray:
    r"""The weather's own standard deviation, standardized, with shape :math:`(C)`."""
    _same_grid(climatology, domain)
    found = []
    for k, channel in enumerate(domain.channels):
        sigma = _field(climatology, f"{channel.variable}_std", channel.level) / domain.std[k]
        weights = np.where(np.isnan(sigma), 0.0, domain.weights[k].cpu().double().numpy())
        found.append(np.sqrt((weights * np.nan_to_num(sigma) ** 2).sum() / weights.sum()))
    return np.array(found)


class Climate:
    r"""The expected standardized states at any time of the year.

    Arguments:
        climatology: A climatology, see :mod:`appa.data.climatology`.
        domain: The channels and the grid.
    """

    def __init__(self, climatology: xr.Dataset, domain: Domain):
        _same_grid(climatology, domain)
        self.harmonics = int(climatology.attrs["harmonics"])
        self.diurnal = int(climatology.attrs["diurnal"])
        count = climatology.sizes["coefficient"]
        shape = (count, len(domain.channels), *domain.grid.shape)
        self.beta = torch.empty(shape, device=domain.device)
        for k, channel in enumerate(domain.channels):
            beta = _field(climatology, channel.variable, channel.level).astype(np.float64)
            beta[0] -= domain.mean[k]
            # undefined SST is 0 after standardization, here too
            beta = np.nan_to_num(beta / domain.std[k], nan=0.0).astype(np.float32)
            self.beta[:, k] = torch.from_numpy(beta).to(domain.device)

    def at(self, times: np.ndarray, channel: int | slice = slice(None)) -> Tensor:
        r"""The expected states at times :math:`(*)`, with shape :math:`(*, C, H, W)`, or
        :math:`(*, H, W)` of one channel."""
        x = climatologies.regressors(times.reshape(-1), self.harmonics, self.diurnal)
        x = torch.from_numpy(x.astype(np.float32)).to(self.beta.device)
        beta = self.beta[:, channel]
        # a sum of products: matrix products may be of lower precision on some devices
        value = torch.zeros(len(x), *beta.shape[1:], device=beta.device)
        for p in range(len(beta)):
            value += x[:, p].view(-1, *[1] * (beta.ndim - 1)) * beta[p]
        return value.view(*times.shape, *beta.shape[1:])


def _same_grid(climatology: xr.Dataset, domain: Domain) -> None:
    found = Grid.from_coordinates(climatology["latitude"], climatology["longitude"])
    if found != domain.grid:
        raise DataError(
            f"the climatology is of {found}, the model of {domain.grid}; fit one on its grid with: "
            "appa data climatology STORE OUT"
        )


def _field(climatology: xr.Dataset, name: str, level: int | None) -> np.ndarray:
    if name not in climatology:
        known = [str(n) for n in climatology.data_vars]
        raise DataError(f"the climatology has no {name!r}{nearest(name, known)}")
    field = climatology[name]
    if level is not None:
        if level not in field["level"].values:
            there = ", ".join(map(str, field["level"].values))
            raise DataError(f"the climatology has no {name} at {level} hPa; it has {there}")
        field = field.sel(level=level)
    return field.transpose(..., "latitude", "longitude").values


def batches(x: Tensor, size: int) -> Iterator[Tensor]:
    r"""Parts of a tensor along its first dimension."""
    for start in range(0, len(x), size):
        yield x[start : start + size]
