r"""A training from the command line: it says what it will do, does it, and says how it went."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..config import Config
from ..costs import autoencoder_parameters, denoiser_parameters
from ..data.sources import open_source
from ..data.windows import find_hours
from ..errors import nearest
from ..tasks.folders import AUTOENCODER, ModelError, missing, read_config
from .logs import KINDS, LogError
from .loop import train_autoencoder, train_denoiser
from .options import Options, Outcome, TrainingError, shares
from .scales import origin

__all__ = ["alone", "intentions", "start"]

TRAIN = {"autoencoder": train_autoencoder, "denoiser": train_denoiser}


def start(network: str, **arguments: Any) -> Outcome:
    r"""Trains a network, and tells about it on standard error; the same on every rank.

    Arguments:
        network: `autoencoder` or `denoiser`.
        arguments: See :func:`appa.training.loop.train_autoencoder` and
            :func:`appa.training.loop.train_denoiser`.
    """
    lines = intentions(network, arguments, int(os.environ.get("WORLD_SIZE", "1")))
    first = int(os.environ.get("RANK", "0")) == 0
    if first:
        print("\n".join(lines), file=sys.stderr, flush=True)
    folder = _folder(arguments) / "training" / network
    with alone(folder) if first else nullcontext():
        outcome = TRAIN[network](**arguments)
    if first and not outcome.interrupted:
        found = {name: outcome.metrics.get(name) for name in ("loss", "rmse")}
        told = ", ".join(f"{name} {x:.4g}" for name, x in found.items() if x is not None)
        print(
            f"{_folder(arguments) / f'{network}.safetensors'} is complete after {outcome.step} "
            f"updates{f'; validation: {told}' if told else ''}",
            file=sys.stderr,
            flush=True,
        )
    return outcome


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    r"""Raises if another process is in the same block for a folder; a killed one is not.

    Two trainings in one folder would take turns in overwriting each other's checkpoints.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise TrainingError(f"{folder} cannot be written ({error}); choose another") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise TrainingError(
            f"another process is training in {folder}; wait until it ends, or choose another folder"
        ) from None
    except OSError:
        pass  # some network file systems have no locks
    try:
        yield
    finally:
        with suppress(OSError):  # nothing is left of a training that could not begin
            folder.rmdir()
            folder.parent.rmdir()
            folder.parent.parent.rmdir()
        os.close(descriptor)


def intentions(network: str, arguments: Mapping[str, Any], world: int = 1) -> list[str]:
    r"""What a training is about to do, in a few lines; an error where it cannot.

    Arguments:
        network: `autoencoder` or `denoiser`.
        arguments: Those of :func:`start`.
        world: The number of ranks.
    """
    known = {field.name for field in fields(Options)}
    Options(**{name: value for name, value in arguments.items() if name in known})
    if (logger := arguments.get("logger", "none")) not in KINDS:
        raise LogError(f"unknown logger {logger!r}{nearest(logger, KINDS)}")
    out, data = _folder(arguments), arguments["data"]
    if network == "autoencoder":
        config: Config = arguments["config"]
        settings, parameters = config.training.autoencoder, autoencoder_parameters(config)
        what = "states", config.state_shape
        scales = origin(config, open_source(data), out, arguments.get("statistics"))
    else:
        config = read_config(out)
        if not (out / AUTOENCODER).is_file():
            raise ModelError(
                f"{missing(out / AUTOENCODER)}; a denoiser learns the latents of the autoencoder "
                f"beside it: train that first (appa train autoencoder PRESET --data STORE --out "
                f"{out}), or copy it there, and encode with it (appa encode {out} STORE LATENTS)"
            )
        settings, parameters = config.training.denoiser, denoiser_parameters(config)
        what = f"windows of {config.window} latents", config.latent_shape
        scales = f"of latents, those in {data}"
    hours = _hours(config, data)
    steps = arguments.get("steps") or settings.steps
    micro, accumulation = shares(settings.batch_size, world, arguments.get("micro_batch"))
    lines = [
        f"{network}: {_count(parameters)} parameters, {what[0]} {' × '.join(map(str, what[1]))}",
        f"data: {hours:,} hours of the training split in {data}",
        f"statistics: {scales}",
        f"updates: {steps:,} of {settings.batch_size} = "
        f"{micro} at once × {accumulation} accumulated × {world} rank{'s' * (world > 1)}, with "
        f"{settings.optimizer}",
    ]
    if steps <= settings.warmup:
        highest = steps / (settings.warmup + 1)
        lines.append(
            f"warm-up: {settings.warmup:,} updates, which this training does not outlast: its "
            f"learning rate ends at {highest:.2g} of {settings.learning_rate:g}; to have all of "
            f"it, set training.{network}.warmup below {steps:,}"
        )
    return [*lines, f"writes to {out}"]


def _folder(arguments: Mapping[str, Any]) -> Path:
    return Path(arguments["out"] if "out" in arguments else arguments["run"])


def _hours(config: Config, data: Any) -> int:
    period = config.data.splits.period("train")
    first, last = find_hours(open_source(data), period.start, period.stop)
    return max(0, last - first)


def _count(n: int) -> str:
    return f"{n / 1e6:.1f} M" if n >= 1e6 else f"{n:,}"
