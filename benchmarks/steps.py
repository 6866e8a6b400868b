r"""Training steps of fresh networks, a forward and a backward pass.

- appa: those of the loop of `appa train`, :class:`appa.training.updates.Updates`, on random states
  and windows that are on the device already: on CUDA the loss is compiled as a whole, weights and
  states have channels last, activations are kept, and `float16` has its gradients scaled. Nothing
  is updated, which takes the same whatever the batch.
- eager: the same, nothing compiled.
- plain: a loop that is written down at once, eager and checkpointed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import xarray as xr
from common import planet_states, planet_statistics

from appa.config import Config
from appa.tasks.building import build_autoencoder, build_denoiser
from appa.tasks.folders import gather
from appa.tasks.precision import Precision
from appa.training.distribution import Ranks
from appa.training.options import Options
from appa.training.tasks import AutoencoderTask, DenoiserTask, Task
from appa.training.updates import Updates

__all__ = ["make_step"]


def make_step(
    config: Config, network: str, way: str, precision: str, device: torch.device, batch: int = 1
) -> Callable[[], None]:
    r"""A training step, to be measured.

    Arguments:
        config: The configuration.
        network: `autoencoder` or `denoiser`.
        way: `appa`, `eager` or `plain`.
        precision: That of the network.
        device: Where.
        batch: States or windows.
    """
    torch.manual_seed(0)
    if way == "plain":
        return _plain(config, network, precision, device, batch)
    # without the packages that SOAP needs, of which no step is taken
    change = {"batch_size": batch, "precision": precision, "optimizer": "adam", "ema": None}
    section = getattr(config.training, network).model_copy(update=change)
    training = config.training.model_copy(update={network: section})
    config = config.model_copy(update={"training": training})
    task = _task(config, network)
    x = torch.randn(batch, task.window, *_shape(config, network), device=device)
    clock = torch.randn(batch, task.window, 4, device=device)
    task.feed = lambda *_, **__: itertools.repeat((x, clock))  # type: ignore[method-assign]
    options = Options(compile=None if way == "appa" else False, logger="none")
    updates = Updates(task, Ranks(0, 1, device), options)

    def step() -> None:
        updates.gradients()
        updates.optimizer.zero_grad(set_to_none=True)

    return step


def _task(config: Config, network: str) -> Task:
    shape = config.latent_shape
    if network == "denoiser":
        found = {
            "latents": (("time", "channel", "y", "x"), np.zeros((1, *shape), np.float32)),
            "latents_mean": ("channel", np.zeros(shape[0], np.float32)),
            "latents_std": ("channel", np.ones(shape[0], np.float32)),
        }
        return DenoiserTask(config, xr.Dataset(found))
    static = gather(planet_statistics(config), planet_states(config, 1))
    return AutoencoderTask(config, None, static)


def _shape(config: Config, network: str) -> tuple[int, ...]:
    return config.state_shape if network == "autoencoder" else config.latent_shape


def _plain(
    config: Config, network: str, precision: str, device: torch.device, batch: int
) -> Callable[[], None]:
    build = build_autoencoder if network == "autoencoder" else build_denoiser
    with torch.device(device):
        net: Any = build(config, checkpointing=True).train()
    if network == "autoencoder":
        x = torch.randn(batch, *config.state_shape, device=device)
        given: tuple[Any, ...] = (x,)
    else:
        x = torch.randn(batch, config.window, *config.latent_shape, device=device)
        clock = torch.randn(batch, config.window, 4, device=device)
        given = (x, torch.ones(batch, device=device), clock)
    context = Precision(precision, device)

    def step() -> None:
        with context():
            loss = (net(*given).float() - x).square().mean()
        loss.backward()
        net.zero_grad(set_to_none=True)

    return step
