r"""Trainings from end to end, in a run folder, which is a model folder in the making.

`train_autoencoder` makes the folder, with the configuration and the statistics of states in it;
`train_denoiser` goes on in it, with latents that :mod:`appa encode <appa.cli>` made with its
autoencoder. Either, called again with the same arguments, goes on where it was interrupted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import xarray as xr

from ..config import Config, load_config
from ..data.sources import open_source
from ..data.stores import open_store
from ..errors import DataError
from ..tasks.folders import AUTOENCODER, check_grid, digest, read_config, read_weights
from .distribution import Ranks, distributed
from .keeping import keep_weights
from .logs import check_logger
from .options import Options, Outcome, TrainingError
from .scales import find_statistics
from .tasks import AutoencoderTask, DenoiserTask, Task, named
from .trainer import Trainer

__all__ = ["train", "train_autoencoder", "train_denoiser"]


def train_autoencoder(
    config: Config | str | Path,
    data: Any,
    out: str | Path,
    *,
    statistics: str | Path | xr.Dataset | None = None,
    steps: int | None = None,
    checkpointing: bool = False,
    device: str | None = None,
    **options: Any,
) -> Outcome:
    r"""Trains an autoencoder on a store of states.

    Arguments:
        config: A configuration, a preset, or a file.
        data: The store.
        out: The run folder.
        statistics: The statistics of the states, or a file of them. By default those in the run
            folder; else the bundled ones, where the store says that it is the simulated planet;
            else those of the training years are computed.
        steps: The number of updates, instead of the configuration's.
        checkpointing: Whether activations are computed again instead of kept.
        device: `cpu` or `cuda`. By default, CUDA where there is a device.
        options: See :class:`appa.training.options.Options`.

    Example:
        >>> train_autoencoder("planet", "planet.zarr", "run", steps=20_000)
    """
    config = config if isinstance(config, Config) else load_config(config)
    config, chosen = _with_steps(config, "autoencoder", steps, options)
    out = Path(out)
    with distributed(device) as ranks:
        # what cannot be is told before statistics are computed
        ranks.first(lambda: check_logger(chosen.logger))
        ranks.first(lambda: keep_weights(out, "autoencoder"))
        store = open_store(data)
        check_grid(store, config)
        stats = find_statistics(config, store, out, statistics, ranks)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(chosen.seed)
            task = AutoencoderTask(config, data, stats, checkpointing=checkpointing)
        return train(task, out, ranks, chosen)


def train_denoiser(
    run: str | Path,
    data: Any,
    *,
    steps: int | None = None,
    checkpointing: bool = False,
    device: str | None = None,
    **options: Any,
) -> Outcome:
    r"""Trains a denoiser on a store of latents.

    Arguments:
        run: The run folder, which has an autoencoder.
        data: The store of latents, which that autoencoder encoded.
        steps: The number of updates, instead of the configuration's.
        checkpointing: Whether activations are computed again instead of kept.
        device: `cpu` or `cuda`. By default, CUDA where there is a device.
        options: See :class:`appa.training.options.Options`.

    Example:
        >>> train_denoiser("run", "latents.zarr", steps=50_000)
    """
    run = Path(run)
    config, chosen = _with_steps(read_config(run), "denoiser", steps, options)
    with distributed(device) as ranks:
        ranks.first(lambda: check_logger(chosen.logger))
        _check_latents(run, data)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(chosen.seed)
            task = DenoiserTask(config, data, checkpointing=checkpointing)
        return train(task, run, ranks, chosen)


def train(task: Task, folder: str | Path, ranks: Ranks, options: Options) -> Outcome:
    r"""Trains a network, or goes on training it.

    Arguments:
        task: What is trained.
        folder: The run folder.
        ranks: The ranks that train, see :func:`appa.training.distribution.distributed`.
        options: How.
    """
    ranks.first(lambda: keep_weights(folder, task.name))
    trainer = Trainer(task, folder, ranks, options)
    trainer.resume()
    return trainer.run()


def _with_steps(
    config: Config, name: str, steps: int | None, options: dict[str, Any]
) -> tuple[Config, Options]:
    chosen = Options(**options, stretch=steps is not None)
    if steps is None:
        return config, chosen
    if steps < 1:
        raise TrainingError(f"steps must be 1 or more, found {steps}")
    section = getattr(config.training, name).model_copy(update={"steps": steps})
    training = config.training.model_copy(update={name: section})
    return config.model_copy(update={"training": training}), chosen


def _check_latents(run: Path, data: Any) -> None:
    r"""Raises where another autoencoder than the run's made the latents."""
    made = open_source(data).attrs.get("autoencoder")
    file = run / AUTOENCODER
    if made is not None and file.exists() and made != digest(read_weights(file)):
        raise DataError(
            f"the latents in {named(data)} were encoded by another autoencoder than {file}, or "
            "before it was trained further; encode again: "
            f"appa encode {run} STORE LATENTS, or appa data simulate LATENTS --encode {run}"
        )
