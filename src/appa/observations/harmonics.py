r"""Correlations on a grid of the sphere, by spherical harmonics.

A correlation that depends on distance is a sum of Legendre's polynomials with coefficients
:math:`b_\ell \geq 0`, and by the addition theorem

.. math:: \rho(d) = \sum_\ell b_\ell \, P_\ell(\cos d / R) = \sum_\ell \frac{b_\ell}{2 \ell + 1}
    \sum_m Y_{\ell m}(p) \, Y_{\ell m}(p')

of spherical harmonics of mean square one. With :math:`Y` their values at the points of a grid,
:math:`\Sigma = Y \, \mathrm{diag}(b_\ell / (2 \ell + 1)) \, Y^\top + b_\infty I`: the product with
it and its root take a Fourier transform along parallels and one matrix of associated Legendre
functions for each zonal wavenumber. These are the same for all channels, and nothing is factorized.
Degrees end at the grid's, :math:`L = \min(H, W / 2)`. What is finer is white noise,
:math:`b_\infty`, one value at a pole.

A component of the wind is that of a vector whose Cartesian components have the correlation:
:math:`u = e \cdot a`, with the unit vectors :math:`e` along it at each point. Its correlation is
:math:`\sum_k e_k \Sigma \, e_k`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.grids import Grid
from .correlations import degrees_of
from .moments import directions
from .representation import Representation

__all__ = ["Alike", "Correlated", "Harmonics", "Spatial", "root_of"]

BLOCK = 16  # wavenumbers whose matrices are one tensor


class Harmonics:
    r"""Associated Legendre functions at the latitudes of a grid.

    Arguments:
        grid: The grid.
        device: Where they are applied.
    """

    def __init__(self, grid: Grid, device: torch.device | str = "cpu"):
        self.grid, self.device = grid, torch.device(device)
        self.degrees = degrees = degrees_of(grid)
        order = np.arange(degrees + 1.0)
        sine, cosine = (f(np.radians(grid.latitude)) for f in (np.sin, np.cos))
        blocks = [
            np.zeros((min(BLOCK, degrees + 1 - m), degrees + 1 - m, grid.latitudes), np.float32)
            for m in range(0, degrees + 1, BLOCK)
        ]
        # Those of degree l from the two before, for all orders m at once.
        before, current = np.zeros((2, degrees + 1, grid.latitudes))
        sectoral = np.ones(grid.latitudes)
        for degree in range(degrees + 1):
            m = order[:degree]
            if degree:
                sectoral = sectoral * cosine * np.sqrt(1 + 0.5 / degree)
                a = np.sqrt((4 * degree**2 - 1) / (degree**2 - m**2))
                b = np.sqrt(np.maximum((degree - 1) ** 2 - m**2, 0) / (4 * (degree - 1) ** 2 - 1))
                new = a[:, None] * (sine * current[:degree] - b[:, None] * before[:degree])
                before, current = current, before
                current[:degree] = new
            current[degree] = sectoral
            for k, block in enumerate(blocks[: degree // BLOCK + 1]):
                rows = slice(k * BLOCK, k * BLOCK + len(block))
                block[:, degree - k * BLOCK] = current[rows]
        self.blocks = [torch.from_numpy(block).to(device) for block in blocks]
        self.poles = [i for i in (0, -1) if abs(abs(grid.latitude[i]) - 90) < 1e-9]

    @property
    def size(self) -> int:
        r"""The number of harmonics and points, of which :meth:`color` takes noise."""
        return (self.degrees + 1) ** 2 + self.grid.latitudes * self.grid.longitudes

    def matmul(self, power: Tensor, white: Tensor | None, f: Tensor) -> Tensor:
        r"""The products :math:`\Sigma_k f_k`.

        Arguments:
            power: The coefficients :math:`b_\ell / (2 \ell + 1)`, with shape :math:`(K, L + 1)`.
            white: Those of white noise :math:`b_\infty`, with shape :math:`(K)`, if any.
            f: Fields, with shape :math:`(K, N, H, W)`.
        """
        waves = self._waves(f.flatten(0, 1))
        parts = []
        for k, block in enumerate(self.blocks):
            m = k * BLOCK
            part = torch.bmm(waves[m : m + len(block)].flatten(1, 2), block.mT)  # (F, 2KN, L)
            part.view(len(block), 2, len(f), -1, block.shape[1]).mul_(power[:, None, m:])
            parts.append(torch.bmm(part, block))
        waves = torch.cat(parts).view_as(waves)
        out = self._fields(waves).view_as(f)
        if white is not None:
            same = f
            if self.poles:
                same = f.clone()
                same[..., self.poles, :] = f[..., self.poles, :].sum(-1, keepdim=True)
            out = out + white[:, None, None, None] * same
        return out

    def color(self, power: Tensor, white: float, eps: Tensor) -> Tensor:
        r"""Fields with covariance :math:`\Sigma`, of standard normal noise :math:`(N, size)`."""
        count, n = len(eps), self.degrees + 1
        square = eps[:, : n * n].view(count, n, n)
        # Above the diagonal those of cosines (m, l), below it those of sines (l, m - 1).
        sines = torch.cat([torch.zeros_like(square[:, :1]), square.mT[:, :-1]], dim=1)
        both = torch.stack([square, -sines]) * power.sqrt()  # (2, N, m, l)
        both = both.permute(2, 0, 1, 3).flatten(1, 2)  # (m, 2N, l)
        parts = [
            torch.bmm(both[k * BLOCK : k * BLOCK + len(block), :, k * BLOCK :], block)
            for k, block in enumerate(self.blocks)
        ]
        waves = torch.cat(parts).unflatten(1, (2, count))
        waves[1:] *= 0.5**0.5
        out = self._fields(waves)
        if white > 0:
            same = eps[:, n * n :].view_as(out)
            if self.poles:
                same = same.clone()
                same[:, self.poles] = same[:, self.poles, :1]
            out = out + white**0.5 * same
        return out

    def _waves(self, fields: Tensor) -> Tensor:
        r"""The waves :math:`(F, 2, N, H)` of fields :math:`(N, H, W)`, real and imaginary parts."""
        waves = torch.view_as_real(torch.fft.rfft(fields)[..., : self.degrees + 1])
        return waves.permute(2, 3, 0, 1).contiguous()

    def _fields(self, waves: Tensor) -> Tensor:
        r"""Fields :math:`(N, H, W)`, sums of waves :math:`(F, 2, N, H)` of both signs."""
        w = self.grid.longitudes
        waves = torch.view_as_complex(waves.permute(2, 3, 0, 1).contiguous())
        if w == 2 * self.degrees:  # of the shortest wave both signs are one
            waves[..., -1] *= 2
        return torch.fft.irfft(w * waves, n=w)


class Spatial:
    r"""The correlation :math:`\Sigma` of a channel in space.

    Arguments:
        rep: The covariance of :math:`r`.
        channel: The channel.
        harmonics: Those of the grid.
    """

    def __init__(self, rep: Representation, channel: int, harmonics: Harmonics):
        self.harmonics, device = harmonics, harmonics.device
        series = rep.series(channel)
        power = series.coefficients / (2 * np.arange(len(series.coefficients)) + 1)
        self.power = torch.from_numpy(power).float().to(device)
        self.white = series.white
        along: NDArray | None = directions(rep.channels[channel], rep.grid)
        self.along = None if along is None else torch.from_numpy(along).float().to(device)

    @property
    def size(self) -> int:
        r"""The number of normal numbers in a draw."""
        return self.harmonics.size * (1 if self.along is None else len(self.along))

    def color(self, eps: Tensor) -> Tensor:
        r"""Fields :math:`(*, H, W)` with this covariance, of noise :math:`(*, size)`."""
        flat = eps.reshape(-1, self.size)
        if self.along is None:
            out = self.harmonics.color(self.power, self.white, flat)
        else:
            out = torch.zeros((), device=flat.device)
            for e, part in zip(self.along, flat.chunk(len(self.along), dim=1), strict=True):
                out = out + e * self.harmonics.color(self.power, self.white, part)
        return out.view(*eps.shape[:-1], *out.shape[-2:])


class Correlated:
    r"""The correlation :math:`T \otimes \Sigma` of a channel, over hours and the grid.

    Arguments:
        rep: The covariance of :math:`r`.
        channel: The channel.
        hours: The number of hours :math:`L`.
        harmonics: Those of the grid.
    """

    def __init__(self, rep: Representation, channel: int, hours: int, harmonics: Harmonics):
        self.space = Spatial(rep, channel, harmonics)
        lag = np.arange(hours)
        times = rep.in_time(channel, np.abs(lag[:, None] - lag))
        self.time = torch.from_numpy(times).float().to(harmonics.device)
        self.time_root = root_of(times).to(self.time)

    def matmul(self, f: Tensor) -> Tensor:
        r"""The product with fields :math:`(M, L, H, W)`."""
        return Alike([self]).matmul(f[None])[0]

    def color(self, eps: Tensor) -> Tensor:
        r"""Fields :math:`(M, L, H, W)` with this covariance, of noise :math:`(M, L, size)`."""
        return self.space.color(self.time_root @ eps)


class Alike:
    r"""The correlations of channels of one variable, whose products are made at once: on a GPU the
    many small ones of a channel at a time are mostly waited for.

    Arguments:
        parts: Those of each channel, :math:`K` of them.
    """

    def __init__(self, parts: Sequence[Correlated]):
        spaces = [part.space for part in parts]
        self.harmonics, self.along = spaces[0].harmonics, spaces[0].along
        self.time = torch.stack([part.time for part in parts])
        self.power = torch.stack([space.power for space in spaces])
        white = [space.white for space in spaces]
        self.white = self.power.new_tensor(white) if any(b > 0 for b in white) else None

    def matmul(self, f: Tensor) -> Tensor:
        r"""The products with fields :math:`(K, M, L, H, W)`."""
        flat = torch.einsum("kst,kmthw->kmshw", self.time, f).flatten(1, 2)
        if self.along is None:
            return self.harmonics.matmul(self.power, self.white, flat).view_as(f)
        out = torch.zeros_like(flat)
        for e in self.along:
            out += e * self.harmonics.matmul(self.power, self.white, e * flat)
        return out.view_as(f)


def root_of(matrix: NDArray[np.float64]) -> Tensor:
    r"""A root of a positive semidefinite matrix, which Cholesky's fails for if it is smooth."""
    value, vector = np.linalg.eigh(matrix)
    return torch.from_numpy(vector * np.sqrt(np.maximum(value, 0)))
