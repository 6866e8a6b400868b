r"""Layers that both networks, or their levels, are made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from .fusing import pixelwise

__all__ = [
    "ChannelNorm",
    "Conv",
    "Jacobian",
    "Product",
    "ResidualBlock",
    "Rotation",
    "SineEncoding",
    "gather",
    "gather_last",
    "magnitude",
    "softclip",
    "spread",
    "spread_last",
]

#: A product with a Jacobian, :math:`dx \mapsto J \, dx`, or its transpose.
Product = Callable[[Tensor], Tensor]


class Jacobian(NamedTuple):
    r"""A Jacobian :math:`J`, known by its products."""

    product: Product
    r"""The products :math:`dx \mapsto J \, dx`."""
    transposed: Product
    r"""The products :math:`dy \mapsto J^\top dy`."""
    kept: tuple[Tensor, ...] = ()
    r"""The activations that both are computed from."""


@pixelwise
def _normalized(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    r"""Pixels standardized over their channels, and the factors of them."""
    # in single precision: half of it has no squares of what is beyond 256
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    variance, mean = torch.var_mean(wide, dim=1, keepdim=True)
    factor = torch.rsqrt(variance + eps)
    return ((wide - mean) * factor).to(x.dtype), factor


@pixelwise
def _norm_product(dx: Tensor, y: Tensor, factor: Tensor) -> Tensor:
    r"""The product with the Jacobian of a norm, see :class:`ChannelNorm`."""
    along = (y * dx).sum(dim=1, keepdim=True) / (dx.shape[1] - 1)
    change = (torch.addcmul(dx, y, along, value=-1) - dx.mean(dim=1, keepdim=True)) * factor
    return change.to(dx.dtype)


@pixelwise
def _activated(y: Tensor) -> tuple[Tensor, Tensor]:
    r"""SiLU and its slope."""
    share = torch.sigmoid(y)
    silu = y * share
    return silu, torch.addcmul(silu, share, 1 - silu)


def magnitude(v: Tensor) -> Tensor:
    r"""The powers of two by which vectors :math:`(B, *)` are divided before a product with a
    Jacobian in `float16`, with shape :math:`(B)`.

    Solvers ask for products with vectors of any size, and most of what is below
    :math:`10^{-5}` would be lost. A root mean square of :math:`2^{-6}` leaves room for sums, too.
    """
    v = v.detach().float().flatten(1)
    size = torch.linalg.vector_norm(v, dim=1) / v.shape[1] ** 0.5
    return torch.where(size > 0, size, 1).log2().round().add(6).exp2()


class Conv(nn.Conv2d):
    r"""Creates a 3×3 convolution on the sphere's grid.

    Latitude is padded with zeros, :math:`x_{-1} = x_H = 0`. So is longitude, or it closes on
    itself: :math:`x_{-1} = x_{W-1}` and :math:`x_W = x_0`.

    Arguments:
        in_channels: The number of input channels :math:`C_i`.
        out_channels: The number of output channels :math:`C_o`.
        circular: Whether longitude closes on itself.
    """

    def __init__(self, in_channels: int, out_channels: int, circular: bool = True):
        super().__init__(in_channels, out_channels, 3, padding=(1, 0 if circular else 1))
        self.circular = circular

    def forward(self, x: Tensor) -> Tensor:
        r"""
        Arguments:
            x: The input, with shape :math:`(B, C_i, H, W)`.

        Returns:
            The output, with shape :math:`(B, C_o, H, W)`.
        """
        return self._conv_forward(self._closed(x), self.weight, self.bias)

    def linearize(self, x: Tensor) -> tuple[Tensor, Jacobian]:
        r"""The output, and the Jacobian: the convolution without the bias.

        Its transpose is a convolution too, with weights turned by 180° and inputs and outputs
        exchanged: zeros and circles are the same from both sides.
        """
        y = self(x)
        dtype = y.dtype  # half precision's where it is mixed

        # Weights are turned for each product: it takes a hundredth of it, and nothing is kept.
        def transposed(dy: Tensor) -> Tensor:
            turned = self.weight.detach().to(dtype).flip(2, 3).transpose(0, 1)
            return self._linear(dy, turned.contiguous(memory_format=torch.channels_last))

        return y, Jacobian(lambda dx: self._linear(dx, self.weight.detach().to(dtype)), transposed)

    def _linear(self, dx: Tensor, weight: Tensor) -> Tensor:
        return self._conv_forward(self._closed(dx.to(weight.dtype)), weight, None)

    def _closed(self, x: Tensor) -> Tensor:
        if not self.circular:
            return x
        # as F.pad(mode="circular"), which loses the memory format
        return torch.cat((x[..., -1:], x, x[..., :1]), dim=-1)


class ChannelNorm(nn.Module):
    r"""Standardizes each pixel over its channels, with their unbiased variance.

    .. math:: y = \frac{x - \mathbb{E}[x]}{\sqrt{\mathbb{V}[x] + \epsilon}}

    Arguments:
        eps: The term :math:`\epsilon` that keeps the quotient finite.
    """

    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return _normalized(x, self.eps)[0]

    def linearize(self, x: Tensor) -> tuple[Tensor, Jacobian]:
        r"""The output, and the Jacobian there, which is symmetric.

        .. math:: dy = \frac{dx - \mathbb{E}[dx]}{s} - \frac{y}{s} \, \frac{y^\top dx}{C - 1}
            \, , \qquad s^2 = \mathbb{V}[x] + \epsilon
        """
        y, factor = _normalized(x, self.eps)

        def product(dx: Tensor) -> Tensor:
            return _norm_product(dx, y, factor)

        return y, Jacobian(product, product, (y, factor))


class ResidualBlock(nn.Module):
    r"""Creates a residual block.

    .. math:: y = x + \mathrm{conv}(\mathrm{SiLU}(\mathrm{conv}(\mathrm{norm}(x))))

    Arguments:
        channels: The number of channels :math:`C`.
        circular: Whether longitude closes on itself.
    """

    def __init__(self, channels: int, circular: bool = True):
        super().__init__()
        self.norm = ChannelNorm()
        self.conv1 = Conv(channels, channels, circular)
        self.conv2 = Conv(channels, channels, circular)
        with torch.no_grad():  # a block begins close to the identity
            self.conv2.weight.mul_(1e-2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.silu(self.conv1(self.norm(x))))

    def linearize(self, x: Tensor) -> tuple[Tensor, Jacobian]:
        r"""The output, and the Jacobian there.

        It takes what the norm gives and the slope of the activation, a third of what automatic
        differentiation would keep.
        """
        y, norm = self.norm.linearize(x)
        y, conv1 = self.conv1.linearize(y)
        y, slope = _activated(y)
        y, conv2 = self.conv2.linearize(y)

        def product(dx: Tensor) -> Tensor:
            return dx + conv2.product(slope * conv1.product(norm.product(dx)))

        def transposed(dy: Tensor) -> Tensor:
            return dy + norm.transposed(conv1.transposed(slope * conv2.transposed(dy)))

        return x + y, Jacobian(product, transposed, (*norm.kept, slope))


def spread(x: Tensor, factor: int) -> Tensor:
    r"""Moves channels :math:`(B, C f^2, H, W)` into pixels :math:`(B, C, f H, f W)`.

    As :func:`torch.nn.functional.pixel_shuffle`, which keeps the memory format on CPUs only: all
    that follows would then be converted at every convolution.
    """
    if x.is_cpu or not x.is_contiguous(memory_format=torch.channels_last):
        return F.pixel_shuffle(x, factor)
    return spread_last(x, factor)


def gather(x: Tensor, factor: int) -> Tensor:
    r"""Moves pixels :math:`(B, C, f H, f W)` into channels :math:`(B, C f^2, H, W)`, see
    :func:`spread`."""
    if x.is_cpu or not x.is_contiguous(memory_format=torch.channels_last):
        return F.pixel_unshuffle(x, factor)
    return gather_last(x, factor)


def spread_last(x: Tensor, factor: int) -> Tensor:
    r"""The same with channels last in memory, before and after."""
    x = x.movedim(1, -1).unflatten(-1, (-1, factor, factor))  # (B, H, W, C, f, f)
    x = x.permute(0, 1, 4, 2, 5, 3).flatten(3, 4).flatten(1, 2)
    return x.movedim(-1, 1)


def gather_last(x: Tensor, factor: int) -> Tensor:
    r"""The same with channels last in memory, before and after."""
    x = x.movedim(1, -1).unflatten(2, (-1, factor)).unflatten(1, (-1, factor))
    x = x.permute(0, 1, 3, 5, 2, 4).flatten(3)  # (B, H, W, C, f, f)
    return x.movedim(-1, 1)


def softclip(x: Tensor, bound: float) -> Tensor:
    r"""Bounds values smoothly to :math:`(-b, b)`, :math:`x \, (1 + x^2 / b^2)^{-1/2}`."""
    return x * torch.rsqrt(1 + (x / bound) ** 2)


class SineEncoding(nn.Module):
    r"""Creates a sine encoding, with frequencies :math:`\omega_k = 100^{-k}`, :math:`k` evenly
    from 0 to 1.

    Arguments:
        features: The number of features :math:`D`, even.
    """

    def __init__(self, features: int):
        super().__init__()
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        r"""
        Arguments:
            x: Positions, with shape :math:`(*)`.

        Returns:
            All sines, then all cosines, with shape :math:`(*, D)`, in single precision or better:
            angles are large.
        """
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        k = torch.linspace(0, 1, self.features // 2, dtype=x.dtype, device=x.device)
        angle = x[..., None] * torch.exp(-math.log(100) * k)
        return torch.cat((angle.sin(), angle.cos()), dim=-1)


class Rotation(nn.Module):
    r"""Rotates adjacent channels, paired, by angles that are linear in a token's position.

    .. math::
        \begin{pmatrix} y_{2i} \\ y_{2i+1} \end{pmatrix} =
        \begin{pmatrix} \cos \phi_i & -\sin \phi_i \\ \sin \phi_i & \cos \phi_i \end{pmatrix}
        \begin{pmatrix} x_{2i} \\ x_{2i+1} \end{pmatrix}
        \, , \qquad \phi_i = p \cdot \theta_i

    Arguments:
        width: The number of channels :math:`D`.
        heads: The number of heads that share them; each begins with all frequencies.
        dims: The number of coordinates of a position :math:`p`.
    """

    def __init__(self, width: int, heads: int, dims: int = 3):
        super().__init__()
        freqs = 100 ** -torch.linspace(0, 1, width // (2 * heads)).repeat(heads)
        directions = F.normalize(torch.randn(dims, width // 2), dim=0)
        self.theta = nn.Parameter(freqs * directions)

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        r"""Cosines and sines at positions :math:`(N, d)`, each with shape :math:`(N, D / 2)`."""
        return self.turns(self.theta, positions)

    @staticmethod
    def turns(theta: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        r"""The same, given :math:`\theta`, with shape :math:`(d, D / 2)`."""
        # not a matrix product, which autocast would take in half precision: angles are large
        dtype = torch.promote_types(theta.dtype, torch.float32)
        phi = (positions[:, :, None].to(dtype) * theta.to(dtype)).sum(dim=1)
        return phi.cos(), phi.sin()

    @staticmethod
    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        r"""Rotates :math:`x`, with shape :math:`(*, D)`, by angles of shape :math:`(*, D / 2)`."""
        a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
