r"""The denoiser: the mean of clean windows given a noisy one.

The transformer :math:`F_\phi` sees its input, and predicts its target, at unit variance whatever
the noise level,

.. math::
    d_\phi(z_t) = \frac{z_t}{\sigma_t^2 + 1} + \frac{\sigma_t}{\sqrt{\sigma_t^2 + 1}} \,
    F_\phi \left( \frac{z_t}{\sqrt{\sigma_t^2 + 1}}, 10 \log \sigma_t \right)
    \approx \mathbb{E}[z \mid z_t] ,

and denoising score matching minimizes :math:`(1 / \sigma_t^2 + 1) \, \| d_\phi(z_t) - z \|^2`.

A network's means are right on average where it was trained: where noise was added to truth.
What a sampler comes to has gone through means that were a little wrong, the network finds less in
it, and draws lose variance. It is made up for by understating the noise to it, at levels around
:math:`\sigma = 10` where that happens,

.. math:: d_\phi(z_t; \sigma_t (1 - u \, e^{-\log^2 (\sigma_t / 10) / 2})) ,

with :math:`u` such that draws have the variance of the truth, see `docs/training.md`. Sampling with
shifted levels is known against this exposure bias; the share and its place are measured.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn as nn
from torch import Tensor

from ..data.clock import clock_features
from .schedule import RectifiedSchedule

__all__ = ["Denoiser", "as_clock"]

CENTRE = 10.0  # the level at which noise is understated most
YEAR = 100.0  # no clock is as large, and no year of interest as small


def less(sigma_t: Tensor, understated: float) -> Tensor:
    r"""Noise levels, understated by a share at :data:`CENTRE`, and by less around it."""
    return sigma_t * (1 - understated * torch.exp(-torch.log(sigma_t / CENTRE).square() / 2))


class Denoiser(nn.Module):
    r"""Creates a denoiser of windows.

    Arguments:
        backbone: The network :math:`F_\phi`, called with a window, :math:`10 \log \sigma_t` and
            the clock; see :class:`appa.nn.transformer.Transformer`.
        schedule: The noise schedule.
        understated: The share :math:`u` by which noise is understated.
    """

    def __init__(self, backbone: Any, schedule: RectifiedSchedule, understated: float = 0.0):
        super().__init__()
        self.backbone, self.schedule, self.understated = backbone, schedule, understated
        #: The hours :math:`W` of a window, and the shape :math:`(C, H, W')` of a latent.
        self.window: int = backbone.shape[0]
        self.latent_shape: tuple[int, int, int] = (backbone.channels, *backbone.shape[1:])

    def forward(
        self, z_t: Tensor, sigma_t: Tensor | float, dates: Any, *, exactly: bool = False
    ) -> Tensor:
        r"""
        Arguments:
            z_t: Noisy windows, with shape :math:`(B, W, C, H, W')`.
            sigma_t: Their noise levels :math:`\sigma_t > 0`, with shape :math:`()`, :math:`(B)` or
                :math:`(B, 1, 1, 1, 1)`.
            dates: Their hours, see :func:`as_clock`.
            exactly: Whether noise is not understated.

        Returns:
            The means :math:`d_\phi(z_t)`, with shape :math:`(B, W, C, H, W')`.
        """
        expected = (self.window, *self.latent_shape)
        if z_t.ndim != 5 or z_t.shape[1:] != expected:
            raise ValueError(
                f"z_t has shape {tuple(z_t.shape)}, expected windows (B, W, C, H, W') = "
                f"(B, {', '.join(map(str, expected))}); longer trajectories are composed of windows"
            )
        sigma_t = _levels(sigma_t, z_t)
        if self.understated and not exactly:
            sigma_t = less(sigma_t, self.understated)
        clock = as_clock(dates, z_t)
        s = sigma_t.view(-1, *[1] * (z_t.ndim - 1))
        c = torch.rsqrt(s * s + 1)
        output = self.backbone((c * z_t).to(z_t.dtype), 10 * torch.log(sigma_t), clock)
        # the quotient, not the square of c: both are exact in the limits of small and large noise
        return (z_t / (s * s + 1) + s * c * output).to(z_t.dtype)

    def loss(self, z: Tensor, sigma_t: Tensor, dates: Any, noise: Tensor) -> Tensor:
        r"""The denoising loss of windows, whose noise is given.

        Arguments:
            z: Clean windows, with shape :math:`(B, W, C, H, W')`.
            sigma_t: Noise levels :math:`\sigma_t`, with shape :math:`(B)`.
            dates: The windows' hours, see :func:`as_clock`.
            noise: Standard normal noise, with the shape of `z`.

        Returns:
            The mean of :math:`(1 / \sigma_t^2 + 1) \, (d_\phi(z_t) - z)^2` of each window, with
            shape :math:`(B)`.
        """
        s = sigma_t.view(-1, *[1] * (z.ndim - 1))
        error = self(z + s * noise, sigma_t, dates, exactly=True) - z
        return (error * torch.sqrt(1 / (s * s) + 1)).square().flatten(1).mean(dim=1)


def _levels(sigma_t: Tensor | float, z_t: Tensor) -> Tensor:
    r"""The noise level of each window, with shape :math:`(B)`."""
    # Values are looked at where they are on the host: a device would have to be waited for.
    if not isinstance(sigma_t, Tensor) or _on_host(sigma_t):
        least = float(sigma_t.min() if isinstance(sigma_t, Tensor) else np.min(sigma_t))
        if not least > 0:
            raise ValueError(f"sigma_t is {least:g}, expected noise levels above 0")
    # in half precision, the square of a large noise level is infinite
    dtype = torch.promote_types(z_t.dtype, torch.float32)
    sigma_t = torch.as_tensor(sigma_t, dtype=dtype, device=z_t.device)
    size = z_t.shape[0]
    if sigma_t.ndim > 1 and sigma_t.shape[1:].numel() == 1:
        sigma_t = sigma_t.flatten()
    if sigma_t.ndim > 1 or sigma_t.numel() not in (1, size):
        raise ValueError(
            f"sigma_t has shape {tuple(sigma_t.shape)}, expected (), ({size},) or "
            f"({size}, 1, 1, 1, 1) for {size} windows"
        )
    return sigma_t.expand(size)


def _on_host(x: Tensor) -> bool:
    # what is compiled, mapped over, or counted with fake tensors, has no values to look at
    if x.device.type != "cpu" or type(x) is not Tensor or torch.compiler.is_compiling():
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(x)  # pyright: ignore[reportAttributeAccessIssue]


def as_clock(dates: Any, z: Tensor) -> Tensor:
    r"""The clock of windows, as the network takes it.

    Arguments:
        dates: The hours of windows: `datetime64` with shape :math:`(W)` or :math:`(B, W)`, integers
            (year, month, day, hour) with shape :math:`(W, 4)` or :math:`(B, W, 4)`, or the clock
            itself, floating point with shape :math:`(W, 4)` or :math:`(B, W, 4)`.
        z: The windows, with shape :math:`(B, W, C, H, W')`.

    Returns:
        The clock, with shape :math:`(B, W, 4)`.
    """
    if not (isinstance(dates, Tensor) and dates.is_floating_point()):
        if isinstance(dates, Tensor):
            dates = dates.cpu().numpy()
        dates = torch.from_numpy(clock_features(dates))
    elif _on_host(dates) and (most := float(dates.abs().max())) > YEAR:
        raise ValueError(
            f"dates in floating point are the clock, sines and cosines, found {most:g}; give "
            "(year, month, day, hour) as integers: dates.long()"
        )
    clock = dates.to(z)
    if clock.ndim < 2 or clock.shape[-1] != 4:
        raise ValueError(f"the clock has shape {tuple(clock.shape)}, expected (W, 4) or (B, W, 4)")
    if clock.shape[-2] != z.shape[1]:
        raise ValueError(f"{clock.shape[-2]} dates for windows of {z.shape[1]} hours")
    return clock.expand(z.shape[0], -1, -1)
