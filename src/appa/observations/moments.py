r"""Moments of what the decoder cannot express, accumulated in one pass.

Trajectories come in segments of consecutive hours. Each adds its products to sums, from which
follow the standard deviations of :math:`r` and its correlations in time, in space and between
channels, see :mod:`appa.observations.representation`. Along a parallel the products of all pairs of
points come from a Fourier transform: the mean of :math:`r(\lambda) \, r(\lambda + \delta)` over
:math:`\lambda` is the transform of the power spectrum. Divided by that of :math:`s(\lambda) \,
s(\lambda + \delta)` it is the correlation, and land, where both are zero, takes no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ..data.grids import Grid, great_circle
from ..data.variables import VARIABLES, Channel
from .correlations import EARTH

__all__ = ["Sums", "directions", "distances", "turning"]

REACH = 4000.0  # km, how far correlations in space are measured
MERIDIONAL = 12  # rows, how far along meridians

Array = NDArray[np.float64]


def turning(
    channel: Channel, lat1: ArrayLike, lon1: ArrayLike, lat2: ArrayLike, lon2: ArrayLike
) -> Array:
    r"""The cosine between the directions of a vector's component at two places; 1 for scalars."""
    name = VARIABLES[channel.variable].standard_name
    turn = np.cos(np.radians(np.subtract(lon2, lon1)))
    if name == "eastward_wind":
        return turn + 0 * np.radians(np.add(lat1, lat2))
    phi1, phi2 = np.radians(lat1), np.radians(lat2)
    if name == "northward_wind":
        return np.sin(phi1) * np.sin(phi2) * turn + np.cos(phi1) * np.cos(phi2)
    return np.ones_like(turn + phi1 + phi2)


def directions(channel: Channel, grid: Grid) -> Array | None:
    r"""The Cartesian unit vectors a wind's component is along, with shape :math:`(k, H, W)` but for
    those components that are zero; nothing for scalars."""
    name = VARIABLES[channel.variable].standard_name
    phi, lam = np.radians(grid.latitude[:, None]), np.radians(grid.longitude[None])
    if name == "eastward_wind":
        along = [-np.sin(lam), np.cos(lam)]
    elif name == "northward_wind":
        along = [-np.sin(phi) * np.cos(lam), -np.sin(phi) * np.sin(lam), np.cos(phi)]
    else:
        return None
    return np.stack([np.broadcast_to(e, grid.shape) for e in along])


class Sums:
    r"""What one pass accumulates, in double precision."""

    def __init__(self, grid: Grid, defined: NDArray[np.bool_], lags: int):
        count, h, w = defined.shape
        self.grid, self.defined = grid, defined
        self.hours = self.segments = self.longest = 0
        self.weight = grid.weights / (h * w)
        self.square, self.state = np.zeros((2, count, h, w))
        self.power = np.zeros((count, h, w // 2 + 1))
        self.meridional = np.zeros((min(MERIDIONAL, h - 1), count, h))
        self.product, self.first, self.last = np.zeros((3, count, lags + 1))
        self.cross = np.zeros((count, count))

    def add(self, x: Tensor, r: Tensor) -> None:
        r = r.float() * torch.from_numpy(self.defined).to(r.device)
        weight = torch.from_numpy(self.weight[:, None]).to(r)
        hours, lags = len(r), self.product.shape[1]
        self.hours, self.segments = self.hours + hours, self.segments + 1
        self.longest = max(self.longest, hours)
        self.square += _host(r.square().sum(0))
        self.state += _host(x.float().sum(0))
        self.power += _host(torch.fft.rfft(r).abs().square().sum(0))
        for m, total in enumerate(self.meridional, start=1):
            total[:, :-m] += _host((r[:, :, :-m] * r[:, :, m:]).sum((0, -1)))
        weighted = r * weight
        squares = _host((weighted * r).sum((-2, -1)))  # (T, C)
        for lag in range(min(lags, hours)):
            pairs = (weighted[: hours - lag] * r[lag:]).sum((0, -2, -1))
            self.product[:, lag] += _host(pairs)
            self.first[:, lag] += squares[: hours - lag].sum(0)
            self.last[:, lag] += squares[lag:].sum(0)
        self.cross += _host(torch.einsum("tchw,tdhw->cd", weighted, r))

    @property
    def correlation(self) -> Array:
        # of the same pairs, so that it is never above 1
        scale = np.sqrt(self.first * self.last)
        return np.divide(self.product, scale, out=np.full_like(scale, np.nan), where=scale > 0)

    def moments(self, channels: Sequence[Channel]) -> dict[str, Any]:
        std = np.sqrt(self.square / self.hours) * self.defined
        correlation = self.correlation
        silent = ~np.isfinite(correlation[:, 0])  # perfect reconstructions have no correlation
        correlation[silent] = np.arange(correlation.shape[1]) == 0
        scale = np.sqrt(np.diag(self.cross))
        scale = np.outer(scale, scale)
        cross = np.divide(self.cross, scale, out=np.eye(len(scale)), where=scale > 0)
        known = np.isfinite(correlation).any(0)
        return {
            "std": std,
            "state": self.state / self.hours,
            "correlation": correlation[:, known],
            **self._spatial(channels, std),
            "cross": cross,
            "hours": self.hours,
            "segments": self.segments,
        }

    def _spatial(self, channels: Sequence[Channel], std: Array) -> dict[str, Array]:
        r"""Correlations by distance, with shape :math:`(C, D)`, and the mean distances of pairs."""
        grid, w = self.grid, self.grid.longitudes
        phi, lam = grid.latitude[:, None], grid.longitude[None, : w // 2 + 1]
        distance = distances(grid)
        step, count = distance[1], len(distance)
        spatial = np.full((len(channels), count), np.nan)

        # Pairs of points along parallels and along meridians: where, and the weight of each.
        here = np.zeros((1, 1))
        along = [(phi, here, phi, lam)]
        along += [(phi[:-m], here, phi[m:], here) for m in range(1, len(self.meridional) + 1)]
        weights, bins = [], []
        pairs, apart = np.zeros((2, count))
        for ends in along:
            north, south = self.weight[: len(ends[0])], self.weight[-len(ends[0]) :]
            d = great_circle(*ends, radius=EARTH)
            weights.append(np.broadcast_to(np.sqrt(north * south)[:, None], d.shape))
            bins.append(np.rint(d / step).astype(int))
            near = bins[-1] < count
            np.add.at(pairs, bins[-1][near], weights[-1][near])
            np.add.at(apart, bins[-1][near], (weights[-1] * d)[near])
        np.divide(apart, pairs, out=distance, where=pairs > 0)
        distance[0] = 0.0

        for c, channel in enumerate(channels):
            s = std[c]
            # circular correlations along each parallel
            products = [np.fft.irfft(self.power[c] / self.hours, n=w)[:, : w // 2 + 1]]
            scales = [np.fft.irfft(np.abs(np.fft.rfft(s)) ** 2, n=w)[:, : w // 2 + 1]]
            for m, total in enumerate(self.meridional, start=1):
                products.append(total[c, :-m, None] / self.hours)
                scales.append((s[:-m] * s[m:]).sum(-1, keepdims=True))
            top, bottom = np.zeros((2, count))
            parts = zip(along, weights, bins, products, scales, strict=True)
            for ends, weight, which, product, scale in parts:
                turn = turning(channel, *ends)
                kept = (which > 0) & (which < count) & (turn > 0.5)
                np.add.at(top, which[kept], (weight * product)[kept])
                np.add.at(bottom, which[kept], (weight * scale * turn)[kept])
            np.divide(top, bottom, out=spatial[c], where=bottom > 1e-12 * max(bottom.max(), 1e-30))
            spatial[c, 0] = 1.0
        return {"spatial": spatial, "distance": distance}


def distances(grid: Grid) -> Array:
    r"""Where correlations in space are measured, in km: multiples of half the grid's spacing."""
    step = np.pi * EARTH / grid.latitudes / 2
    return step * np.arange(max(int(REACH / step), 4) + 1.0)


def _host(x: Tensor) -> NDArray[Any]:
    return x.cpu().double().numpy()
