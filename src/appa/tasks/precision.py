r"""The precision that networks are evaluated in.

On a GPU matrix products and convolutions are several times faster in half precision than in single,
and fused attention is made for it. Passes through the networks and their Jacobians take it there;
preconditioning, observation operators, solvers and samplers stay in single precision. Of the two
half precisions `float16` rounds eight times finer than `bfloat16`, whose range nothing here needs:
the networks see numbers of unit size, and an error of 1 % of a standard deviation, that of
stations, is near what `bfloat16` makes of a state.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..diffusion.denoiser import Denoiser
from ..nn.layers import magnitude
from .folders import ModelError
from .settings import Settings

__all__ = ["Precision"]


class Precision:
    r"""Creates a precision.

    Arguments:
        name: `float32`, `bfloat16`, `float16`, or `auto`, which is `float16` on CUDA and
            `float32` elsewhere.
        device: Where the networks are.
    """

    def __init__(self, name: str, device: torch.device):
        if name == "auto":
            name = "float16" if device.type == "cuda" else "float32"
        self.name, self.device, self.dtype = name, device, getattr(torch, name)

    @classmethod
    def of(cls, settings: Settings, device: torch.device) -> Precision:
        r"""The precision of settings."""
        return cls(settings.precision, device)

    @property
    def size(self) -> int:
        r"""The bytes of a number."""
        return self.dtype.itemsize

    def __call__(self) -> AbstractContextManager[Any]:
        r"""A context in which networks are evaluated."""
        half = self.dtype != torch.float32
        return torch.autocast(self.device.type, self.dtype if half else None, enabled=half)

    def denoiser(self, denoiser: Denoiser, understated: float = 0.0) -> Denoiser:
        r"""A denoiser whose network is evaluated in this precision, with noise understated to it.
        Weights are shared."""
        single = self.dtype == torch.float32
        if single and not understated:
            return denoiser
        network = denoiser.backbone if single else Cast(denoiser.backbone, self)
        return Denoiser(network, denoiser.schedule, understated)


class Cast(nn.Module):
    r"""A network that is evaluated in a precision, and gives what its input has."""

    def __init__(self, network: Any, precision: Precision):
        super().__init__()
        self.network, self.precision = network, precision
        self.channels, self.shape = network.channels, network.shape

    def forward(self, z: Tensor, *arguments: Tensor) -> Tensor:
        size: list[Tensor] = []
        narrow = self.precision.dtype == torch.float16
        with self.precision():
            y = self.network(_Restored.apply(z, size) if narrow else z, *arguments).to(z.dtype)
        if narrow and not bool(y.isfinite().all()):
            raise ModelError(
                "what is drawn is no longer finite: the networks give numbers beyond 65,504, the "
                "most that float16 has, or latents are far from those they know; draw in another "
                "precision, --precision bfloat16 or float32"
            )
        return _Scaled.apply(y, size) if narrow else y  # type: ignore[return-value]


class _Scaled(torch.autograd.Function):
    r"""The identity, whose gradients are divided by their magnitude."""

    @staticmethod
    def forward(ctx, y: Tensor, size: list[Tensor]) -> Tensor:
        ctx.size = size
        return y.view_as(y)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor) -> tuple[Tensor, None]:
        ctx.size[:] = [magnitude(dy).to(dy.dtype).view(-1, *[1] * (dy.ndim - 1))]
        return dy / ctx.size[0], None


class _Restored(torch.autograd.Function):
    r"""The identity, whose gradients are multiplied by what :class:`_Scaled` divided by."""

    @staticmethod
    def forward(ctx, z: Tensor, size: list[Tensor]) -> Tensor:
        ctx.size = size
        return z.view_as(z)

    @staticmethod
    @once_differentiable
    def backward(ctx, dz: Tensor) -> tuple[Tensor, None]:
        return dz * ctx.size[0], None
