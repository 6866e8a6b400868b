r"""`appa` as a user runs it, on a slice of the bundled planet that trains in seconds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from safetensors.torch import load_file

from appa.config import load_config
from appa.data.stores import open_store
from appa.data.writing import StoreWriter

from ..processes import Process, command

CONFIG = """
extends: planet
data:
  surface: [2m_temperature, sea_surface_temperature]
  atmospheric: [temperature, specific_humidity]
  levels: [500, 850]
  splits:
    train: [2021-03-21, 2021-03-22]
    validation: [2021-03-23, 2021-03-23]
    test: [2021-03-24, 2021-03-24]
window: 4
autoencoder:
  latent_channels: 4
  hidden_channels: [8, 8, 12, 16]
  decoder_channels: [8, 8, 12, 16]
denoiser:
  width: 32
  blocks: 2
  heads: 2
  modulation: 16
training:
  autoencoder:
    variable_weights: {2m_temperature: 1}
    learning_rate: 1.0e-2
    batch_size: 4
    steps: 24
    ema: 0.9
  denoiser: {learning_rate: 2.0e-3, batch_size: 4, steps: 24, ema: 0.9}
sampling:
  stride: 2
  past: 2
"""


def write_config(folder: Path) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(CONFIG)
    return path


def write_store(folder: Path) -> Path:
    r"""Four days of six channels, hourly, uncompressed as training reads them."""
    names = ["2m_temperature", "sea_surface_temperature", "temperature", "specific_humidity"]
    ds = open_store("planet")[[*names, "land_sea_mask"]].sel(level=[500, 850]).load()
    with StoreWriter(folder / "store.zarr", ds, block=24) as writer:
        for i, hours in enumerate(writer.blocks):
            writer.write(i, ds[names].isel(time=hours))
        return writer.finish()


def write_latents(folder: Path) -> Path:
    r"""Latents of those days that no autoencoder made: noise that changes slowly."""
    times = pd.date_range("2021-03-21", periods=96, freq="h")
    z = np.random.default_rng(0).normal(size=(96, 4, 6, 12)).cumsum(axis=0).astype(np.float32)
    z /= z.std()
    ds = xr.Dataset(
        {
            "latents": (("time", "channel", "y", "x"), z),
            "latents_mean": ("channel", z.mean((0, 2, 3))),
            "latents_std": ("channel", z.std((0, 2, 3))),
        },
        {"time": times},
    )
    with StoreWriter(folder / "latents.zarr", ds, block=24) as writer:
        for i, hours in enumerate(writer.blocks):
            writer.write(i, ds[["latents"]].isel(time=hours))
        return writer.finish()


def write_run(run: Path, config: Path) -> Path:
    r"""A run folder, as training the autoencoder leaves it; its weights are fresh."""
    from appa.tasks import folders
    from appa.tasks.building import build_autoencoder

    chosen = load_config(config)
    folders.write_config(run, chosen)
    if not (run / folders.AUTOENCODER).exists():
        folders.write_weights(run / folders.AUTOENCODER, build_autoencoder(chosen).state_dict())
    return run


def slow_down() -> None:
    r"""Makes every update take a moment longer, so that there is time to interrupt them."""
    import time

    from appa.training.updates import Updates

    advance = Updates.advance

    def slowly(self: Updates) -> None:
        time.sleep(0.05)
        advance(self)

    Updates.advance = slowly


def begin(*arguments: object, before: Callable[[], Any] | None = None) -> Process:
    r"""Begins a command in a process of its own, where a function is called before."""
    return Process(partial(command, *map(str, arguments), before=before))


def appa(*arguments: object, status: int = 0, before: Callable[[], Any] | None = None) -> str:
    r"""Runs a command to its end, and returns what it said."""
    with begin(*arguments, before=before) as process:
        assert process.wait() == status, process.said
        return process.said


def same_weights(a: Path, b: Path) -> bool:
    r"""Whether two files hold the same tensors, bit for bit."""
    x, y = load_file(a), load_file(b)
    return x.keys() == y.keys() and all(
        x[k].dtype == y[k].dtype and x[k].numpy().tobytes() == y[k].numpy().tobytes() for k in x
    )
