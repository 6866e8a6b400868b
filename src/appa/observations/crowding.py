r"""How much less a crowd of observations tells than as many far from each other.

What the decoder cannot express is shared by neighbours: at points of a swath :math:`r` errs
together, and so it does on the levels of a profile. Errors taken for independent would average out
among them, and latents would be told more than was seen. Observations of one hour and one variable
get a larger variance of :math:`r` each instead, :math:`f_i s_i^2` with

.. math:: f_i = \sum_j \rho_{ij}^2 \geq 1 ,

the sum over the others and itself, of their correlations in space and between levels. As a
covariance is to be replaced by a diagonal one, this is the mean of its eigenvalues, each weighted
by itself: an error of :math:`r`'s own scales, which are those at which it matters, keeps its size.
(The sum of :math:`\rho_{ij}` is the eigenvalue of what is the same everywhere, where :math:`r` has
little or nothing.) It is 1 for what stands alone, and the number of observations of one and the
same :math:`r`.

Squared correlations are a convolution along parallels of a few rows: observations are put on the
grid with the weights they are interpolated with, and a sum over neighbours is taken back from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.grids import great_circle
from .correlations import EARTH
from .representation import Representation

__all__ = ["Layer", "crowding", "kernel", "neighbours"]

NEGLIGIBLE = 0.05  # the correlation, whose square is
LENGTHS = 4.0  # as far as neighbours are looked for
NUMBERS = 1 << 24  # at a time

Array = NDArray[np.float64]


class Layer:
    r"""Observations of one channel, or of one derived observable.

    Arguments:
        channel: Whose correlation in space is theirs.
        row: Which rows, with shape :math:`(n)`.
        share: How much of a row is of this layer, with shape :math:`(n)`.
    """

    def __init__(self, channel: int, row: NDArray[np.int64], share: Array):
        self.channel, self.row, self.share = channel, row, share


def kernel(rep: Representation, channel: int) -> Tensor:
    r"""The transform of squared correlations along parallels, of rows that are neighbours.

    Returns:
        For offsets :math:`-k, …, k` of rows, with shape :math:`(2k + 1, H, W / 2 + 1)`.
    """
    if channel not in rep.kernels:
        grid = rep.grid
        apart = np.linspace(0, LENGTHS * rep.length[channel], 200)
        large = np.abs(rep.in_space(channel, apart)) > NEGLIGIBLE
        reach = apart[min(np.flatnonzero(large)[-1] + 1, len(apart) - 1)]
        rows = min(int(np.ceil(reach / rep.spacing)), grid.latitudes - 1)
        lam = grid.longitude[: grid.longitudes // 2 + 1]
        out = np.zeros((2 * rows + 1, grid.latitudes, len(lam)), np.float32)
        for k, offset in enumerate(range(-rows, rows + 1)):
            here = np.arange(max(-offset, 0), grid.latitudes - max(offset, 0))
            north, south = grid.latitude[here, None], grid.latitude[here + offset, None]
            distance = great_circle(north, 0.0, south, lam[None], radius=EARTH)
            i, j = np.nonzero(distance <= reach)
            rho = np.zeros(distance.shape)
            rho[i, j] = rep.between(channel, north[i, 0], 0.0, south[i, 0], lam[j])
            # the transform of an even sequence, of which this is one half, is real
            out[k, here] = np.fft.hfft(rho**2, n=grid.longitudes)[:, : len(lam)]
        rep.kernels[channel] = torch.from_numpy(out)
    return rep.kernels[channel]


def neighbours(symbol: Tensor, counts: Tensor) -> Tensor:
    r"""Sums over neighbours, of maps :math:`(T, H, W)`."""
    waves = torch.fft.rfft(counts)
    out, h = torch.zeros_like(waves), counts.shape[-2]
    rows = len(symbol) // 2
    for k, offset in enumerate(range(-rows, rows + 1)):
        low, high = max(-offset, 0), h - max(offset, 0)
        out[:, low:high] += symbol[k, low:high] * waves[:, low + offset : high + offset]
    return torch.fft.irfft(out, n=counts.shape[-1])


def crowding(
    rep: Representation,
    layers: Sequence[Layer],
    together: Array,
    hour: NDArray[np.int64],
    index: NDArray[np.int64],
    weight: Array,
    itself: Array,
    once: NDArray[np.bool_],
    device: torch.device | str = "cpu",
) -> Array:
    r"""The factors :math:`f` of the observations of a variable.

    Arguments:
        rep: The covariance of :math:`r`.
        layers: What they are of.
        together: Squared correlations between layers.
        hour: The hours of rows, with shape :math:`(n)`.
        index, weight: The points they are interpolated from, with shape :math:`(n, 4)`.
        itself: The sum of a row over itself, in each layer, with shape :math:`(layers, n)`.
        once: Which rows are counted, with shape :math:`(n)`.
        device: Where it is computed.
    """
    points = int(np.prod(rep.grid.shape))
    total, alone = np.zeros((2, len(hour)))
    shares = np.zeros((len(layers), len(hour)))
    for k, layer in enumerate(layers):
        shares[k, layer.row] = layer.share
    for k in range(len(layers)):
        alone += shares[k] * itself[k] * (together[k] @ shares)
    hours = int(hour.max(initial=0)) + 1
    step = min(max(NUMBERS // (points * len(layers)), 1), hours)
    for start in range(0, hours, step):
        now = (hour >= start) & (hour < start + step)
        if not now.any():
            continue
        counts = torch.zeros(len(layers), step * points, device=device)
        for k, layer in enumerate(layers):
            some = now[layer.row] & once[layer.row]
            row = layer.row[some]
            place = torch.from_numpy(index[row] + points * (hour[row] - start)[:, None])
            value = torch.from_numpy(weight[row] * layer.share[some][:, None]).float()
            counts[k].index_add_(0, place.flatten().to(device), value.flatten().to(device))
        for k, layer in enumerate(layers):
            some = now[layer.row]
            row = layer.row[some]
            if not len(row):
                continue
            shared = torch.from_numpy(together[k]).float().to(device) @ counts
            symbol = kernel(rep, layer.channel).to(device)
            sums = neighbours(symbol, shared.view(step, *rep.grid.shape)).flatten().cpu().numpy()
            place = index[row] + points * (hour[row] - start)[:, None]
            total[row] += layer.share[some] * (weight[row] * sums[place]).sum(-1)
    factor = np.divide(total, alone, out=np.ones_like(total), where=alone > 0)
    # What is left of a transform's rounding is no neighbour.
    return np.where(factor > 1 + 1e-4, factor, 1.0)
