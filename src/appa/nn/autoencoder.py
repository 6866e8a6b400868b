r"""The convolutional autoencoder: states to latents and back.

An encoder :math:`E_\psi` halves the grid from level to level, moving each 2×2 pixels into
channels, and a decoder :math:`D_\psi` mirrors it. Latents are bounded, and training perturbs them,
:math:`z \sim \mathcal{N}(E_\psi(x), \sigma_z^2 I)`, so that close latents decode to close states.

The grid is padded to a multiple of the reduction :math:`f`: with zeros in latitude, half above and
half below. In longitude there are two ways. Circular convolutions close the globe at every layer:
they need no padding, and a state rotated by :math:`f` pixels has the latent rotated by one. A
*halo*, as in the published weights, wraps :math:`f` more pixels around both sides before
convolutions that see zeros beyond; latents then have two spare columns, and a seam whose error is
bounded by what the halo keeps away.

Convolutions know no places. What states are at each place on average, the *normals*
:math:`\bar x`, need not go through them: where they are known, the networks are given departures,

.. math:: z = E_\psi(x - \bar x) , \qquad \hat x = \bar x + D_\psi(z) .

The networks turn with what they are given; whole states do not, since normals stay in their place.

Many states are decoded a few at a time: what a layer gives of all of them would fill a device's
memory, or its 32-bit indices, and makes nothing faster.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from .fusing import fused
from .layers import (
    Conv,
    Jacobian,
    Product,
    ResidualBlock,
    gather,
    magnitude,
    softclip,
    spread,
)

__all__ = ["Autoencoder", "Decoder", "Encoder"]

AT_ONCE = 2**29  # numbers that a layer of the decoder gives at once, at most


class EncoderLevel(nn.Module):
    r"""A level of the encoder: 2×2 pixels into channels (but for the first), a convolution, and
    residual blocks."""

    def __init__(self, inputs: int, width: int, blocks: int, circular: bool, first: bool):
        super().__init__()
        self.reduction = 1 if first else 2
        self.conv = Conv(inputs * self.reduction**2, width, circular)
        self.blocks = nn.ModuleList(ResidualBlock(width, circular) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        if self.reduction > 1:
            x = gather(x, self.reduction)
        x = self.conv(x)
        for block in self.blocks:
            x = block(x)
        return x


class DecoderLevel(nn.Module):
    r"""A level of the decoder: residual blocks, a convolution, and channels into 2×2 pixels (but
    for the last)."""

    def __init__(self, width: int, outputs: int, blocks: int, circular: bool, last: bool):
        super().__init__()
        self.expansion = 1 if last else 2
        self.blocks = nn.ModuleList(ResidualBlock(width, circular) for _ in range(blocks))
        self.conv = Conv(width, outputs * self.expansion**2, circular)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self._spread(self.conv(x))

    def linearize(self, x: Tensor) -> tuple[Tensor, Jacobian]:
        r"""The output, and the Jacobian there."""
        x, inner = _chain([*self.blocks, self.conv], x)

        def product(dx: Tensor) -> Tensor:
            return self._spread(inner.product(dx))

        def transposed(dy: Tensor) -> Tensor:
            return inner.transposed(self._gather(dy))

        return self._spread(x), Jacobian(product, transposed, inner.kept)

    def _spread(self, x: Tensor) -> Tensor:
        return spread(x, self.expansion) if self.expansion > 1 else x

    def _gather(self, x: Tensor) -> Tensor:
        return gather(x, self.expansion) if self.expansion > 1 else x


class Encoder(nn.Module):
    r"""Creates an encoder, from the finest level to the coarsest.

    Arguments:
        channels: The number of channels :math:`C` of a state.
        latent_channels: The number of channels :math:`c` of a latent.
        widths: The number of channels at each level, finest first.
        blocks: The number of residual blocks at each level, finest first.
        circular: Whether longitude closes on itself.
    """

    def __init__(
        self,
        channels: int,
        latent_channels: int,
        widths: Sequence[int],
        blocks: Sequence[int],
        circular: bool,
    ):
        super().__init__()
        self.levels = nn.ModuleList(
            EncoderLevel(inputs, width, n, circular, first=k == 0)
            for k, (inputs, width, n) in enumerate(
                zip((channels, *widths[:-1]), widths, blocks, strict=True)
            )
        )
        self.conv = Conv(widths[-1], latent_channels, circular)
        self.checkpointing = False

    def forward(self, x: Tensor) -> Tensor:
        for level in self.levels:
            x = _call(level, x, self.checkpointing)
        return self.conv(x)


class Decoder(nn.Module):
    r"""Creates a decoder, from the coarsest level to the finest; see :class:`Encoder`."""

    def __init__(
        self,
        channels: int,
        latent_channels: int,
        widths: Sequence[int],
        blocks: Sequence[int],
        circular: bool,
    ):
        super().__init__()
        self.conv = Conv(latent_channels, widths[-1], circular)
        levels = list(zip(widths, (channels, *widths[:-1]), blocks, strict=True))
        self.levels = nn.ModuleList(
            DecoderLevel(width, outputs, n, circular, last=k == 0)
            for k, (width, outputs, n) in reversed(list(enumerate(levels)))
        )
        self.checkpointing = False

    def forward(self, z: Tensor) -> Tensor:
        x = self.conv(z)
        for level in self.levels:
            x = _call(level, x, self.checkpointing)
        return x

    def linearize(self, z: Tensor) -> tuple[Tensor, Jacobian]:
        r"""The output, and the Jacobian there."""
        return _chain([self.conv, *self.levels], z)


class Autoencoder(nn.Module):
    r"""Creates an autoencoder.

    Arguments:
        channels: The number of channels :math:`C` of a state.
        shape: The shape :math:`(H, W)` of its grid.
        latent_channels: The number of channels :math:`c` of a latent.
        hidden_channels: The number of channels at each level of the encoder, finest first.
        blocks: The number of residual blocks at each of them.
        decoder_channels: Those of the decoder, finest first. By default, the encoder's.
        decoder_blocks: Its residual blocks. By default, the encoder's.
        longitude: How longitude closes, `"circular"` or `"halo"`.
        saturation: The bound of latents, if they have one.
        checkpointing: Whether to keep only the activations between levels, and compute those
            within again when gradients are.

    `normals`, where they are set, are subtracted from states and added to them again: `encode`
    takes states and `decode` gives them, `encoder` and `decoder` know departures alone. They are
    statistics and no weights: `state_dict` is without them.
    """

    #: The normals :math:`\bar x`, with shape :math:`(C, H, W)`, if there are any.
    normals: Tensor | None

    def __init__(
        self,
        channels: int,
        shape: tuple[int, int],
        latent_channels: int,
        hidden_channels: Sequence[int],
        blocks: Sequence[int],
        decoder_channels: Sequence[int] | None = None,
        decoder_blocks: Sequence[int] | None = None,
        *,
        longitude: str = "circular",
        saturation: float | None = 5.0,
        checkpointing: bool = False,
    ):
        super().__init__()
        circular = longitude == "circular"
        self.channels, self.shape, self.saturation = channels, shape, saturation
        self.factor = 2 ** (len(hidden_channels) - 1)
        (h, w), f = shape, self.factor
        h, w = -h % f, 0 if circular else -w % f + 2 * f
        #: Rows above and below, columns left and right.
        self.padding = (h // 2, h - h // 2, w // 2, w - w // 2)
        #: Shape :math:`(c, h, w)` of a latent.
        self.latent_shape = (latent_channels, (shape[0] + h) // f, (shape[1] + w) // f)
        if circular and shape[1] % f:
            raise ValueError(f"circular convolutions need {shape[1]} to be a multiple of {f}")

        self.encoder = Encoder(channels, latent_channels, hidden_channels, blocks, circular)
        self.decoder = Decoder(
            channels,
            latent_channels,
            decoder_channels or hidden_channels,
            decoder_blocks or blocks,
            circular,
        )
        self.checkpointing = checkpointing
        self.register_buffer("normals", None, persistent=False)

    @property
    def checkpointing(self) -> bool:
        return self.encoder.checkpointing

    @checkpointing.setter
    def checkpointing(self, value: bool) -> None:
        self.encoder.checkpointing = self.decoder.checkpointing = value

    def departures(self, x: Tensor) -> Tensor:
        r"""What the networks see of states :math:`(*, C, H, W)`: themselves, or what they depart
        from the normals by."""
        return x if self.normals is None else x - self.normals.to(x)

    def states(self, x: Tensor) -> Tensor:
        r"""The states of departures :math:`(*, C, H, W)`."""
        if self.normals is None:
            return x
        # in half precision a state would lose digits that its departure has
        return x + self.normals.to(x.device, torch.promote_types(x.dtype, torch.float32))

    def encode(self, x: Tensor, bare: bool = False) -> Tensor:
        r"""
        Arguments:
            x: Standardized states, with shape :math:`(B, C, H, W)`.
            bare: Whether they are departures from the normals already.

        Returns:
            Their latents :math:`E_\psi(x - \bar x)`, with shape :math:`(B, c, h, w)`.
        """
        if x.shape[1:] != (self.channels, *self.shape):  # convolutions would take any grid
            raise ValueError(
                f"states have shape {tuple(x.shape)}, but the autoencoder's grid is {self.shape}, "
                f"with {self.channels} channels; give (B, {self.channels}, {self.shape[0]}, "
                f"{self.shape[1]})"
            )
        x = x if bare else self.departures(x)
        top, bottom, left, right = self.padding
        if left or right:
            x = F.pad(x, (left, right, 0, 0), mode="circular")
        if top or bottom:
            x = F.pad(x, (0, 0, top, bottom))
        z = self.encoder(x)
        return z if self.saturation is None else softclip(z, self.saturation)

    def decode(self, z: Tensor, bare: bool = False) -> Tensor:
        r"""
        Arguments:
            z: Latents, with shape :math:`(B, c, h, w)`.
            bare: Whether departures from the normals are wanted.

        Returns:
            Standardized states :math:`\bar x + D_\psi(z)`, with shape :math:`(B, C, H, W)`.
        """
        self._check(z)
        x = _joined([self._cropped(self.decoder(part)) for part in z.split(self.at_once)])
        return x if bare else self.states(x)

    def linearize(self, z: Tensor) -> tuple[Tensor, Product]:
        r"""Decodes, and linearizes the decoder around latents.

        Products with the Jacobian :math:`\nabla D_\psi(z)`, and with its transpose, cost a decoding
        each: a third of what automatic differentiation takes for the former, and a third of the
        memory for the latter.

        Arguments:
            z: Latents, with shape :math:`(B, c, h, w)`.

        Returns:
            The states :math:`\bar x + D_\psi(z)`, with shape :math:`(B, C, H, W)`, whose gradients
            are the products with the transpose (once: second derivatives are those of
            :meth:`decode`), and the products :math:`dz \mapsto \nabla D_\psi(z) \, dz`, of the same
            shapes.
        """
        self._check(z)
        crop = (*self.padding[::2], *self.shape)
        with torch.no_grad():
            parts = [self.decoder.linearize(part) for part in z.detach().split(self.at_once)]
            x = _joined([_cropped(y, None, *crop) for y, _ in parts])
        jacobians = [jacobian for _, jacobian in parts]
        kept = [y for jacobian in jacobians for y in jacobian.kept]
        sizes, dtype = [len(y) for y, _ in parts], parts[0][0].dtype
        del parts

        def product(dz: Tensor) -> Tensor:
            found = []
            for J, part in zip(jacobians, dz.split(sizes), strict=True):
                size = _size(part, dtype)
                dx = J.product(part if size is None else part / size)
                found.append(_cropped(dx, size, *crop))
            return _joined(found)

        def transposed(dx: Tensor) -> Tensor:
            found = []
            for J, part in zip(jacobians, dx.split(sizes), strict=True):
                size = _size(part, dtype)
                dz = J.transposed(_uncropped(part, size, self.padding, dtype))
                found.append(dz if size is None else dz * size)
            return _joined(found)

        decoded: Tensor = _Decoded.apply(z, x, transposed, *kept)  # type: ignore[assignment]
        return self.states(decoded), product

    @property
    def at_once(self) -> int:
        r"""The number of states that are decoded at once."""
        _, h, w = self.latent_shape
        convs = [level.conv for level in self.decoder.levels]
        numbers = [
            h * w * 4**k * max(conv.in_channels, conv.out_channels)  # type: ignore[union-attr]
            for k, conv in enumerate(convs)
        ]
        return max(1, AT_ONCE // max(numbers))

    def _check(self, z: Tensor) -> None:
        if z.shape[1:] != self.latent_shape:  # of any other, some of the margins would be kept
            raise ValueError(
                f"latents have shape {tuple(z.shape)}, but the autoencoder's are "
                f"{self.latent_shape}; give (B, {', '.join(map(str, self.latent_shape))})"
            )

    def _cropped(self, x: Tensor) -> Tensor:
        (top, _, left, _), (h, w) = self.padding, self.shape
        return x[..., top : top + h, left : left + w]

    def forward(self, x: Tensor, noise: Tensor | None = None, bare: bool = False) -> Tensor:
        r"""Reconstructs states from their latents,
        :math:`\bar x + D_\psi(E_\psi(x - \bar x) + \sigma_z \epsilon)`.

        Arguments:
            x: Standardized states, with shape :math:`(B, C, H, W)`.
            noise: What is added to the latents, with shape :math:`(B, c, h, w)`, if anything.
            bare: Whether they are departures from the normals, and such are wanted.
        """
        z = self.encode(x, bare)
        return self.decode(z if noise is None else z + noise, bare)


def _size(v: Tensor, dtype: torch.dtype) -> Tensor | None:
    r"""What vectors are divided by before products in a precision, see :func:`magnitude`."""
    return magnitude(v).view(-1, 1, 1, 1) if dtype == torch.float16 else None


@fused
def _cropped(x: Tensor, size: Tensor | None, top: int, left: int, h: int, w: int) -> Tensor:
    r"""What a decoder gives without its margins, times a size: in single precision at least, and
    with channels first in memory, as observations are taken from states."""
    x = x[..., top : top + h, left : left + w].to(torch.promote_types(x.dtype, torch.float32))
    return (x if size is None else x * size).contiguous()


@fused
def _uncropped(
    x: Tensor, size: Tensor | None, padding: tuple[int, int, int, int], dtype: torch.dtype
) -> Tensor:
    r"""The transpose: states with margins of zeros, as the decoder's convolutions take them."""
    top, bottom, left, right = padding
    x = (x if size is None else x / size).to(dtype)
    x = F.pad(x, (left, right, top, bottom)) if any(padding) else x
    return x.contiguous(memory_format=torch.channels_last)


def _call(module: nn.Module, x: Tensor, checkpointing: bool) -> Tensor:
    # states need no gradient, but the finest level, which takes most memory, has weights that do
    if checkpointing and torch.is_grad_enabled():
        # nothing is random: there is no state to keep, which a CUDA graph could not
        return checkpoint(module, x, use_reentrant=False, preserve_rng_state=False)  # type: ignore[return-value]
    return module(x)


def _chain(modules: Sequence[nn.Module], x: Tensor) -> tuple[Tensor, Jacobian]:
    r"""The output of modules one after another, and the Jacobian there."""
    jacobians: list[Jacobian] = []
    for module in modules:
        x, jacobian = module.linearize(x)  # type: ignore[operator]
        jacobians.append(jacobian)

    def product(dx: Tensor) -> Tensor:
        for jacobian in jacobians:
            dx = jacobian.product(dx)
        return dx

    def transposed(dy: Tensor) -> Tensor:
        for jacobian in reversed(jacobians):
            dy = jacobian.transposed(dy)
        return dy

    return x, Jacobian(product, transposed, tuple(y for j in jacobians for y in j.kept))


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0]


class _Decoded(torch.autograd.Function):
    r"""States that were decoded, with gradients by given products."""

    @staticmethod
    def forward(ctx, z: Tensor, x: Tensor, transposed: Product, *kept: Tensor) -> Tensor:
        ctx.transposed, ctx.dtype = transposed, z.dtype
        ctx.save_for_backward(*kept)  # so that whoever counts what graphs keep sees it
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, dx: Tensor) -> tuple[Tensor | None, ...]:
        nothing = [None] * (2 + len(ctx.saved_tensors))
        return ctx.transposed(dx).to(ctx.dtype), *nothing
