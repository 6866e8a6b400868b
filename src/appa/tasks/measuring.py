r"""What a pass through each network takes on this device, by running one.

Memory is that of the graphs which guidance keeps: the tensors that a forward pass saves for its
backward passes, each counted once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..diffusion.guidance.linear import Linearized
from ..diffusion.likelihood import probed_gain
from .model import Model

__all__ = ["Cost", "measure"]


@dataclass(frozen=True)
class Cost:
    r"""Seconds of passes, one window or state each, and bytes of weights and graphs."""

    seconds: tuple[float, float, float, float]
    weights: int
    denoiser_graph: int
    decoder_graph: int


class Everything:
    r"""Observes all of the first state of a window, to see what a state costs."""

    def __init__(self, model: Model, shape: tuple[int, ...]):
        self.model, self.variance = model, torch.ones(math.prod(shape))

    def departure(self, z: Tensor) -> Tensor:
        return -self.model.decode(z[:, 0]).flatten(1)

    def linearize(self, z: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        x, changes = self.model.linearize(z[:, 0])
        return -x.flatten(1), lambda w: changes(w[:, 0]).flatten(1)

    def whiten(self, v: Tensor, transposed: bool = False) -> Tensor:
        return v

    def gain(self, z: Tensor) -> Tensor:
        return probed_gain(self, z)

    def members(self, chosen: slice) -> Everything:
        return self


def measure(model: Model, windows: int = 1) -> Cost:
    r"""Runs one pass of each kind on the model's device, and says what they cost.

    Arguments:
        model: The model.
        windows: The number of windows denoised at once, over which time is divided.
    """
    config, device = model.config, model.device
    dates = np.datetime64("2000-01-01T00") + np.arange(config.window) * np.timedelta64(1, "h")
    shape = (windows, config.window, *config.latent_shape)
    generator = torch.Generator().manual_seed(0)
    z_t = torch.randn(shape, generator=generator).to(device)

    def denoise(z: Tensor) -> Tensor:
        return model.denoiser(z, 1.0, dates)

    with torch.no_grad():
        forward = _time(lambda: denoise(z_t), device)
    z_t.requires_grad_()
    backward, denoiser_graph = _backward(denoise, z_t)

    z, everything = z_t.detach()[:1, :1], Everything(model, config.state_shape)
    with torch.no_grad():
        decode = _time(lambda: model.decode(z[:, 0]), device)
    observed, decoder_graph = _saved(lambda: Linearized(everything, z))
    u = torch.ones_like(observed.departure)
    down = _time(lambda: observed.At(u), device)
    up = _time(lambda: observed.A(z), device)

    networks = (model.autoencoder, model.denoiser)
    weights = sum(p.numel() * p.element_size() for net in networks for p in net.parameters())
    return Cost(
        (forward / windows, backward / windows, decode, (down + up) / 2),
        weights,
        denoiser_graph // windows,
        2 * decoder_graph,  # what products with the Jacobian keep, beside what the graph does
    )


def _backward(run: Callable[[Tensor], Tensor], x: Tensor) -> tuple[float, int]:
    r"""Seconds of a backward pass, and the bytes of its graph, which ends here."""
    y, graph = _saved(lambda: run(x))
    v = torch.ones_like(y)
    return _time(lambda: torch.autograd.grad(y, x, v, retain_graph=True), x.device), graph


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


def _saved(run: Callable[[], Any]) -> tuple[Any, int]:
    r"""What a call gives, and the bytes that are kept for its backward pass."""
    kept: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        if not isinstance(x, torch.nn.Parameter):
            storage = x.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        return run(), sum(kept.values())
