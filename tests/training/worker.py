r"""What one rank of several does in the tests."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from appa.training.distribution import Ranks, distributed, whole
from appa.training.options import Options
from appa.training.tasks import AutoencoderTask, DenoiserTask, Task
from appa.training.trainer import Trainer

from . import small

UPDATES = 4
CASES = {
    "autoencoder-ddp": ("autoencoder", "ddp", "adam"),
    "autoencoder-fsdp": ("autoencoder", "fsdp", "adam"),
    "denoiser-ddp": ("denoiser", "ddp", "adam"),
    "denoiser-fsdp": ("denoiser", "fsdp", "adam"),
    "soap-fsdp": ("autoencoder", "fsdp", "soap"),
}


def make_task(folder: Path, name: str, optimizer: str = "adam", **changes: Any) -> Task:
    r"""A task in double precision, whose sums in other orders agree to many digits."""
    changes = {f"training__{name}__optimizer": optimizer, **changes}
    config = small.configuration(**changes)
    torch.manual_seed(0)
    if name == "denoiser":
        task: Task = DenoiserTask(config, small.latents(config))
    else:
        stats = small.state_statistics()
        if config.autoencoder.normals:
            normals = np.random.default_rng(2).normal(size=config.state_shape)
            stats["normals"] = (("channel", "latitude", "longitude"), normals)
        task = AutoencoderTask(config, folder / "store.zarr", stats)
    if optimizer != "soap":  # whose moments are in single precision anyway
        task.objective.double()
    return task


def make_trainer(folder: Path, case: str, ranks: Ranks, run: Path, **options: Any) -> Trainer:
    name, strategy, optimizer = CASES[case]
    # what no rank trains, all have
    changes = {"autoencoder__normals": True} if name == "autoencoder" else {}
    task = make_task(folder, name, optimizer, **changes)
    chosen = Options(strategy=strategy, logger="none", every=2, **options)
    return Trainer(task, run, ranks, chosen)


def results(trainer: Trainer) -> dict[str, Any]:
    r"""Gradients of the first update, losses of a few, and the weights after them."""
    ranks = trainer.ranks
    losses, norms = [], []
    gradients: dict[str, Any] = {}
    for s in range(UPDATES):
        losses.append(ranks.mean(trainer.gradients()))
        if s == 0:
            named = trainer.network.named_parameters()
            gradients = whole(ranks, {name: p.grad for name, p in named})
        norms.append(trainer.update())
        if s == 1:
            trainer.save()
    return {
        "gradients": gradients,
        "losses": torch.stack(losses),
        "norms": torch.stack(norms),
        **weights(trainer),
    }


def resumed(trainer: Trainer) -> dict[str, Any]:
    r"""The weights after the same updates, the first two of them in another process's memory."""
    assert trainer.resume()
    assert trainer.step == 2
    while trainer.step < UPDATES:
        trainer.gradients()
        trainer.update()
    return weights(trainer)


def weights(trainer: Trainer) -> dict[str, Any]:
    r"""The weights and their averages, whole."""
    return {
        "weights": whole(trainer.ranks, trainer.network.state_dict()),
        "averages": whole(trainer.ranks, trainer.ema.state_dict()),
    }


def main(folder: Path, out: Path) -> None:
    # every rank would tell the user of it
    warnings.filterwarnings("error", message="FSDP2-wrapped module", category=UserWarning)
    with distributed("cpu") as ranks:
        found = {}
        for case in CASES:
            run = out / case
            found[case] = results(make_trainer(folder, case, ranks, run, micro_batch=2))
            found[f"{case}-resumed"] = resumed(
                make_trainer(folder, case, ranks, run, micro_batch=2)
            )
        if ranks.main:
            torch.save(found, out / "results.pt")
