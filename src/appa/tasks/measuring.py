r"""What a pass through each network takes on this device, and a product with the covariance of what
the decoder lacks, by running one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..diffusion.guidance.linear import Linearized
from ..diffusion.likelihood import probed_gain, probed_strength
from ..observations.harmonics import Alike
from ..observations.residual import ResidualSampler
from .fields import Field
from .model import Model
from .precision import Precision

__all__ = ["Cost", "interpolating", "measure"]


@dataclass(frozen=True)
class Cost:
    r"""Seconds of passes, one window or state each, and bytes of weights."""

    seconds: tuple[float, float, float, float]
    weights: int


class Everything:
    r"""Observes all of the first state of a window, to see what a state costs."""

    def __init__(self, model: Model, shape: tuple[int, ...], precision: Precision):
        self.model, self.precision = model, precision
        self.variance = torch.ones(math.prod(shape))

    def departure(self, z: Tensor) -> Tensor:
        with self.precision():
            return -self.model.decode(z[:, 0]).flatten(1)

    def linearize(self, z: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        with self.precision():
            x, changes = self.model.linearize(z[:, 0])

        def product(w: Tensor) -> Tensor:
            with self.precision():
                return changes(w[:, 0]).flatten(1)

        return -x.flatten(1), product

    def whiten(self, v: Tensor, transposed: bool = False) -> Tensor:
        return v

    def gain(self, z: Tensor) -> Tensor:
        return probed_gain(self, z)

    def strength(self, z: Tensor) -> Tensor:
        return probed_strength(self, z)

    def members(self, chosen: slice) -> Everything:
        return self


def measure(model: Model, windows: int = 1, precision: Precision | None = None) -> Cost:
    r"""Runs one pass of each kind on the model's device, and says what they cost.

    Arguments:
        model: The model.
        windows: The number of windows denoised at once, over which time is divided.
        precision: That of the networks, by default single.
    """
    precision = precision or Precision("float32", model.device)
    denoiser = precision.denoiser(model.denoiser)
    config, device = model.config, model.device
    dates = np.datetime64("2000-01-01T00") + np.arange(config.window) * np.timedelta64(1, "h")
    shape = (windows, config.window, *config.latent_shape)
    generator = torch.Generator().manual_seed(0)
    z_t = torch.randn(shape, generator=generator).to(device)

    def denoise(z: Tensor) -> Tensor:
        return denoiser(z, 1.0, dates)

    with torch.no_grad():
        forward = _time(lambda: denoise(z_t), device)
    backward = _time_back(denoise, z_t)

    z, everything = z_t.detach()[:1, :1], Everything(model, config.state_shape, precision)
    decode = _time(lambda: Linearized(everything, z), device)
    observed = Linearized(everything, z)
    u = torch.ones_like(observed.departure)
    down = _time(lambda: observed.At(u), device)
    up = _time(lambda: observed.A(z), device)

    networks = (model.autoencoder, model.denoiser)
    weights = sum(p.numel() * p.element_size() for net in networks for p in net.parameters())
    return Cost((forward / windows, backward / windows, decode, (down + up) / 2), weights)


def interpolating(model: Model, chosen: Sequence[Field], hours: int, most: int) -> float:
    r"""Seconds of an iteration of the solves that draw what the decoder lacks of a member.

    Arguments:
        model: The model, which knows its covariance.
        chosen: The fields.
        hours: The number of hours.
        most: The number of channels that memory has room for.
    """
    rep = model.representation
    assert rep is not None
    sampler, total = ResidualSampler(rep, device=model.device), 0.0
    channels = [c for field in chosen for c in field.channels]
    for _, levels in groupby(channels, lambda c: rep.channels[c].variable):
        own = list(levels)
        prior = Alike([sampler.prior(c, hours) for c in own[:most]])
        f = torch.ones(len(own[:most]), 1, hours, *model.grid.shape, device=model.device)
        once = _time(lambda prior=prior, f=f: prior.matmul(f), model.device, least=1e-3)
        total += once * len(own) / len(f)
    return total


def _time_back(run: Callable[[Tensor], Tensor], x: Tensor) -> float:
    r"""Seconds of a backward pass, whose graph ends here."""
    with torch.enable_grad():
        y = run(x.requires_grad_())
    v = torch.ones_like(y)
    return _time(lambda: torch.autograd.grad(y, x, v, retain_graph=True), x.device)


def _time(run: Callable[[], Any], device: torch.device, least: float = 0.2) -> float:
    r"""Seconds a call takes: the shortest of a few, after one to warm up."""
    best, spent = math.inf, 0.0
    run()
    while spent < least:
        _wait(device)
        begun = time.perf_counter()
        run()
        _wait(device)
        took = time.perf_counter() - begun
        best, spent = min(best, took), spent + took
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
