r"""The bundled planet in six channels, networks that fit it in seconds, and the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from appa.data.fetch import fetch

# one thread: sums in one order, and no contest for cores
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "default"}

CONFIG = """\
data:
  surface: [2m_temperature, mean_sea_level_pressure]
  atmospheric: [temperature, u_component_of_wind]
  levels: [500, 850]
  grid: {kind: gaussian, latitudes: 48, longitudes: 96}
  splits:
    train: [2021-03-21, 2021-03-22]
    validation: [2021-03-23, 2021-03-23]
    test: [2021-03-24, 2021-03-24]
window: 4
autoencoder:
  latent_channels: 4
  hidden_channels: [8, 16, 16, 16]
  blocks: 1
denoiser: {width: 32, blocks: 2, heads: 2, modulation: 16}
training:
  autoencoder:
    {optimizer: soap, learning_rate: 1.0e-2, decay: linear, batch_size: 4, steps: 100, ema: 0.95}
  denoiser:
    {optimizer: adam, learning_rate: 2.0e-3, batch_size: 8, steps: 100, ema: 0.95}
sampling: {stride: 2, past: 2, steps: 8, corrections: 0}
"""


def write_config(folder: Path) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(CONFIG)
    return path


def write_store(folder: Path) -> Path:
    return fetch(
        "planet",
        folder / "store.zarr",
        start="2021-03-21",
        end="2021-03-24",
        surface=("2m_temperature", "mean_sea_level_pressure"),
        atmospheric=("temperature", "u_component_of_wind"),
        levels=(500, 850),
    )


def command(*arguments: object) -> list[str]:
    program = "from appa.cli import main; main()"
    return [sys.executable, "-c", program, *map(str, arguments)]


def appa(*arguments: object, status: int = 0) -> str:
    r"""Runs a command, and returns what it said."""
    done = subprocess.run(
        command(*arguments), env=os.environ | ENVIRONMENT, capture_output=True, text=True
    )
    said = done.stdout + done.stderr
    assert done.returncode == status, said
    return said
