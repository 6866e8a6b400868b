r"""A training from the command line: it says what it will do, does it, and says how it went."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from ..config import Config
from ..costs import autoencoder_parameters, denoiser_parameters
from ..data.sources import open_source
from ..tasks.folders import read_config
from .loop import train_autoencoder, train_denoiser
from .options import Outcome, shares

__all__ = ["intentions", "start"]


def start(network: str, **arguments: Any) -> Outcome:
    r"""Trains a network, and tells about it on standard error; the same on every rank.

    Arguments:
        network: `autoencoder` or `denoiser`.
        arguments: See :func:`appa.training.loop.train_autoencoder` and
            :func:`appa.training.loop.train_denoiser`.
    """
    first = int(os.environ.get("RANK", "0")) == 0
    out = Path(arguments["out"] if network == "autoencoder" else arguments["run"])
    config = arguments["config"] if network == "autoencoder" else read_config(out)
    if first:
        world = int(os.environ.get("WORLD_SIZE", "1"))
        micro, steps = arguments.get("micro_batch"), arguments.get("steps")
        for line in intentions(config, network, arguments["data"], out, world, micro, steps):
            print(line, file=sys.stderr, flush=True)
    function = train_autoencoder if network == "autoencoder" else train_denoiser
    outcome = function(**arguments)
    if first and not outcome.interrupted:
        found = {name: outcome.metrics.get(name) for name in ("loss", "rmse")}
        told = ", ".join(f"{name} {x:.4g}" for name, x in found.items() if x is not None)
        print(
            f"{out / f'{network}.safetensors'} is complete after {outcome.step} updates"
            + (f"; validation: {told}" if told else ""),
            file=sys.stderr,
            flush=True,
        )
    return outcome


def intentions(
    config: Config,
    network: str,
    data: Any,
    out: Path,
    world: int = 1,
    micro_batch: int | None = None,
    steps: int | None = None,
) -> list[str]:
    r"""What a training is about to do, in a few lines."""
    states = network == "autoencoder"
    settings = config.training.autoencoder if states else config.training.denoiser
    parameters = autoencoder_parameters(config) if states else denoiser_parameters(config)
    shape = " × ".join(map(str, config.state_shape if states else config.latent_shape))
    what = f"states {shape}" if states else f"windows of {config.window} latents {shape}"
    micro, accumulation = shares(settings.batch_size, world, micro_batch)
    return [
        f"{network}: {_count(parameters)} parameters, {what}",
        f"data: {_hours(config, data):,} hours of the training split in {data}",
        f"updates: {steps or settings.steps:,} of {settings.batch_size} = {micro} at once × "
        f"{accumulation} accumulated × {world} rank{'s' if world > 1 else ''}, with "
        f"{settings.optimizer}",
        f"writes to {out}",
    ]


def _hours(config: Config, data: Any) -> int:
    period = config.data.splits.period("train")
    times = open_source(data).indexes["time"]
    first, last, _ = times.slice_indexer(period.start, period.stop).indices(len(times))
    return max(0, last - first)


def _count(n: int) -> str:
    return f"{n / 1e6:.1f} M" if n >= 1e6 else f"{n:,}"
