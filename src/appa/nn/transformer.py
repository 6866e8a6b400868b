r"""The diffusion transformer: a noisy window of latents to what the denoiser makes of it.

A window :math:`(T, H, W, C)` is cut into patches of :math:`p` hours, one token for each place of
the latent grid, and every token is given the clock of all :math:`T` hours. Where a token is,
:math:`(t, h, w)`, is added once through a sine encoding, and enters each attention as a rotation
of queries and keys by learned angles. The noise level modulates each block, with
:math:`a, b, c, d` from an encoding of :math:`10 \log \sigma`:

.. math::
    y & = (1 + a) \odot \mathrm{norm}(x) + b \\
    y & \leftarrow \mathrm{mlp}(y + \mathrm{attention}(y)) \\
    x & \leftarrow (x + c \odot y) / \sqrt{1 + c^2} \\
    x & \leftarrow (x + d \odot s) / \sqrt{1 + d^2}

where :math:`s` are the tokens before their place is added.

What does not depend on the token is computed once: the clock's share of the first projection, and
the sine encoding's, which is a sum over coordinates. What is done to each token between products
is one kernel each on a GPU, see :func:`appa.nn.fusing.tokenwise`.
"""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .fusing import tokenwise
from .layers import Rotation, SineEncoding

__all__ = ["Attention", "Transformer", "TransformerBlock"]


@tokenwise
def _modulated(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    r"""Tokens standardized, scaled and shifted, in the precision of products."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return ((1 + a) * F.layer_norm(x, x.shape[-1:], eps=1e-5) + b).to(a.dtype)


@tokenwise
def _turned(x: Tensor, positions: Tensor, theta: Tensor, heads: int) -> tuple[Tensor, ...]:
    r"""Queries and keys :math:`(B, N, 2 D)` divided by the root mean square of each head's
    channels, and rotated, with shape :math:`(B, N, H, D / H)` each."""
    cos, sin = (y.unflatten(-1, (heads, -1)) for y in Rotation.turns(theta, positions))
    # in single precision: half of it has no squares of what is beyond 256
    dtype = torch.promote_types(x.dtype, torch.float32)
    turned = []
    for y in x.unflatten(-1, (2, heads, -1)).unbind(2):
        y = y.to(dtype)
        y = y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + 1e-5)
        turned.append(Rotation.rotate(y, cos, sin).to(x.dtype))
    return tuple(turned)


@tokenwise
def _mixed(x: Tensor, y: Tensor, s: Tensor, c: Tensor, d: Tensor) -> Tensor:
    r"""Tokens, what a block makes of them, and what they were in the beginning, added to keep
    their variance."""
    x = (x + c * y) * torch.rsqrt(1 + c * c)
    return (x + d * s) * torch.rsqrt(1 + d * d)


class Attention(nn.Module):
    r"""Creates a self-attention with RMS-normalized, rotated queries and keys.

    Arguments:
        width: The number of channels :math:`D` of a token.
        heads: The number of heads.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.rotation = Rotation(width, heads)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        r"""
        Arguments:
            x: The tokens, with shape :math:`(B, N, D)`.
            positions: Their places, with shape :math:`(N, 3)`.
        """
        qk, v = self.qkv(x).split((2 * x.shape[-1], x.shape[-1]), dim=-1)
        q, k = _turned(qk, positions, self.rotation.theta, self.heads)
        v = v.unflatten(-1, (self.heads, -1))
        # Tokens slowest in memory, as attention's output then is: no copy is made of it.
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(-2))


class TransformerBlock(nn.Module):
    r"""Creates a modulated transformer block.

    Arguments:
        width: The number of channels :math:`D` of a token.
        heads: The number of heads.
        modulation: The number of features :math:`M` of the noise level's encoding.
    """

    def __init__(self, width: int, heads: int, modulation: int):
        super().__init__()
        last = nn.Linear(modulation, 4 * width)
        self.modulation = nn.Sequential(nn.Linear(modulation, modulation), nn.SiLU(), last)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)
        )
        with torch.no_grad():  # a block begins close to the identity
            last.weight.mul_(1e-2)
            last.bias.zero_()

    def forward(self, x: Tensor, s: Tensor, c: Tensor, positions: Tensor) -> Tensor:
        r"""
        Arguments:
            x: The tokens, with shape :math:`(B, N, D)`.
            s: The tokens before their place was added, with shape :math:`(B, N, D)`.
            c: The noise level's encoding, with shape :math:`(B, M)`.
            positions: The tokens' places, with shape :math:`(N, 3)`.
        """
        a, b, c, d = self.modulation(c).unsqueeze(-2).chunk(4, dim=-1)
        y = _modulated(x, a, b)
        y = self.mlp(y + self.attention(y, positions))
        return _mixed(x, y, s, c, d)


class Transformer(nn.Module):
    r"""Creates a diffusion transformer.

    Arguments:
        channels: The number of channels :math:`C` of a latent.
        shape: The shape :math:`(T, H, W)` of a window.
        width: The number of channels :math:`D` of a token.
        blocks: The number of blocks.
        heads: The number of heads in each.
        modulation: The number of features :math:`M` of the noise level's encoding.
        patch: The number of hours :math:`p` in a patch.
        checkpointing: Whether to keep only the activations between blocks, and compute those
            within again when gradients are.
    """

    positions: Tensor

    def __init__(
        self,
        channels: int,
        shape: tuple[int, int, int],
        width: int,
        blocks: int,
        heads: int,
        modulation: int,
        patch: int = 2,
        *,
        checkpointing: bool = False,
    ):
        super().__init__()
        if shape[0] % patch:
            raise ValueError(f"patches of {patch} hours do not divide a window of {shape[0]}")
        self.channels, self.shape, self.patch = channels, shape, patch
        self.grid = (shape[0] // patch, *shape[1:])
        self.checkpointing = checkpointing

        clock = 4 * shape[0]  # each token is given the clock of every hour
        self.embed = nn.Linear(patch * (channels + clock), width)
        self.sine = SineEncoding(width)
        self.place = nn.Linear(3 * width, width)
        self.noise = SineEncoding(modulation)
        self.blocks = nn.ModuleList(
            TransformerBlock(width, heads, modulation) for _ in range(blocks)
        )
        self.project = nn.Linear(width, patch * channels)

        coordinates = torch.meshgrid(*(torch.arange(float(n)) for n in self.grid), indexing="ij")
        positions = torch.stack(coordinates, dim=-1).flatten(0, -2)
        self.register_buffer("positions", positions, persistent=False)

    def forward(self, z: Tensor, c: Tensor, clock: Tensor) -> Tensor:
        r"""
        Arguments:
            z: The window, with shape :math:`(B, T, C, H, W)`.
            c: What tells the noise level, :math:`10 \log \sigma`, with shape :math:`(B)`.
            clock: Sine and cosine of the year and of the day at each hour, with shape
                :math:`(B, T, 4)`.

        Returns:
            The output, with shape :math:`(B, T, C, H, W)`.
        """
        s = self.tokens(z, clock)
        x = s + self.places()
        mod = self.noise(c).to(s.dtype)
        for block in self.blocks:
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(
                    block,
                    *(x, s, mod, self.positions),
                    use_reentrant=False,
                    preserve_rng_state=False,  # nothing is random
                )
            else:
                x = block(x, s, mod, self.positions)
        x = self.project(x)  # channels slowest
        x = x.unflatten(-1, (self.channels, self.patch)).unflatten(1, self.grid)
        return x.permute(0, 1, 5, 4, 2, 3).flatten(1, 2)

    def tokens(self, z: Tensor, clock: Tensor) -> Tensor:
        r"""The tokens :math:`s` of a window, with shape :math:`(B, N, D)`."""
        z = z.unflatten(1, (-1, self.patch)).permute(0, 1, 4, 5, 3, 2)  # (B, T / p, H, W, C, p)
        z = z.flatten(-2).flatten(1, 3)
        weight = self.embed.weight.unflatten(-1, (-1, self.patch))
        own, others = weight.split((self.channels, weight.shape[1] - self.channels), dim=1)
        # both clocks hour by hour: sine and cosine of the years, then of the days
        hours = torch.cat((clock[..., :2].flatten(1), clock[..., 2:].flatten(1)), dim=-1)
        shared = F.linear(hours.to(z), others.sum(dim=-1), self.embed.bias)
        return F.linear(z, own.flatten(1)) + shared.unsqueeze(-2)

    def places(self) -> Tensor:
        r"""The projected sine encoding of all places, with shape :math:`(N, D)`."""
        total, width = self.place.bias, self.place.out_features
        # Half precision does not tell neighbours apart at low frequencies; single costs nothing.
        with torch.autocast(total.device.type, enabled=False):
            for i, n in enumerate(self.grid):
                encoded = self.sine(torch.arange(n, dtype=total.dtype, device=total.device))
                weight = self.place.weight[:, i * width : (i + 1) * width]
                part = F.linear(encoded.to(weight), weight)
                total = total + part.view([-1 if j == i else 1 for j in range(3)] + [width])
        return total.flatten(0, 2)
