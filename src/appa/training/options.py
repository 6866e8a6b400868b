r"""How to train, here: nothing of it changes what is trained, but the seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..config import Config, parse_config
from ..errors import AppaError, ConfigError, nearest
from .distribution import STRATEGIES

__all__ = ["Options", "Outcome", "TrainingError", "differences", "merged", "others", "shares"]

SEEDS = 2**64  # what 64 bits tell apart
# sections that a network's training depends on, beside the one that says how it is trained
SECTIONS = {
    "autoencoder": ("data", "autoencoder"),
    "denoiser": ("data", "autoencoder", "window", "denoiser", "schedule"),
}
COMPILE = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class TrainingError(AppaError):
    r"""A training cannot begin, go on, or end."""


@dataclass(frozen=True)
class Options:
    r"""Options of a training.

    Arguments:
        seed: The seed of weights, order and noise.
        micro_batch: Elements on a device at once. By default, its share of a batch.
        strategy: `ddp` or `fsdp`.
        compile: A mode of `torch.compile`, or whether to compile. By default, on a CUDA device.
        workers: Threads that read.
        every: Updates between checkpoints.
        validate_every: Updates between validations.
        log_every: Updates between lines of the log.
        validation: States or windows in a validation.
        resident: Whether data are kept on the device. By default, where they fit.
        logger: `tensorboard`, `wandb` or `none`.
        init: Weights to begin with: a file, or a folder that holds it.
        stretch: Whether a run may go on with another number of updates than it began with.
    """

    seed: int = 0
    micro_batch: int | None = None
    strategy: str = "ddp"
    compile: bool | str | None = None
    workers: int = 4
    every: int = 1000
    validate_every: int = 1000
    log_every: int = 50
    validation: int = 512
    resident: bool | None = None
    logger: str = "tensorboard"
    init: str | Path | None = None
    stretch: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.seed < SEEDS:
            raise TrainingError(f"seed must be from 0 to {SEEDS - 1}, found {self.seed}")
        if self.strategy not in STRATEGIES:
            hint = nearest(self.strategy, STRATEGIES)
            raise TrainingError(f"unknown strategy {self.strategy!r}{hint}")
        if isinstance(self.compile, str) and self.compile not in COMPILE:
            hint = nearest(self.compile, COMPILE)
            raise TrainingError(f"unknown mode to compile in {self.compile!r}{hint}")
        for name in ("every", "validate_every", "log_every", "workers", "validation"):
            if getattr(self, name) < 1:
                raise TrainingError(f"{name} must be 1 or more, found {getattr(self, name)}")


@dataclass(frozen=True)
class Outcome:
    r"""How a training ended.

    Arguments:
        step: The number of updates done.
        interrupted: Whether it was told to stop before its end.
        metrics: What the last validation found.
        throughput: Elements a second since the training began or went on.
        waiting: The share of that time spent waiting for data.
    """

    step: int
    interrupted: bool
    metrics: Mapping[str, float]
    throughput: float
    waiting: float


def shares(batch: int, world: int, micro: int | None) -> tuple[int, int]:
    r"""The elements of a micro-step on a rank, and the number of micro-steps."""
    if micro is None:
        micro = batch // world
    if micro < 1 or batch % (micro * world):
        raise ConfigError(
            f"a batch of {batch} cannot be shared out over {world} rank(s) in micro-batches of "
            f"{micro}; their product must divide it"
        )
    return micro, batch // (micro * world)


def differences(before: str, now: Config, name: str) -> dict[str, tuple[Any, Any]]:
    r"""What differs in the settings that a network's training depends on.

    Arguments:
        before: A configuration, as YAML.
        now: Another.
        name: The network, `autoencoder` or `denoiser`.

    Returns:
        Both values by their key, for example `training.autoencoder.steps`.
    """
    old = parse_config(yaml.safe_load(before), "the checkpoint's configuration")
    return _differ(_relevant(old, name), _relevant(now, name))


def others(before: Config, now: Config, name: str) -> dict[str, tuple[Any, Any]]:
    r"""What differs in the settings that a network's training does not depend on; see
    :func:`differences`."""
    mine = _differ(_relevant(before, name), _relevant(now, name))
    every = _differ(before.model_dump(), now.model_dump())
    return {key: pair for key, pair in every.items() if key not in mine}


def merged(before: Config, now: Config, name: str) -> Config:
    r"""A configuration, with the settings that a network's training depends on of another."""
    sections = {key: getattr(now, key) for key in SECTIONS[name]}
    sections["data"] = now.data.model_copy(update={"source": before.data.source})
    how = {name: getattr(now.training, name)}
    sections["training"] = before.training.model_copy(update=how)
    return before.model_copy(update=sections)


def _relevant(config: Config, name: str) -> dict[str, Any]:
    values = config.model_dump()
    values["data"].pop("source")
    found = {key: values[key] for key in SECTIONS[name]}
    return {**found, "training": {name: values["training"][name]}}


def _differ(before: Any, now: Any, key: str = "") -> dict[str, tuple[Any, Any]]:
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return {} if before == now else {key: (before, now)}
    found = {}
    for k in {**before, **now}:
        found |= _differ(before.get(k), now.get(k), f"{key}.{k}".lstrip("."))
    return found
