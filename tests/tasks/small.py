r"""A small model and a small store, for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import xarray as xr

from appa.config import Config, parse_config
from appa.data import statistics
from appa.data.writing import StoreWriter, make_template
from appa.tasks.building import build_autoencoder, build_denoiser
from appa.tasks.folders import gather, write_config, write_statistics, write_weights

SURFACE = ("2m_temperature", "sea_surface_temperature")
ATMOSPHERIC = ("temperature",)
LEVELS = (500, 850)
H, W = 9, 16
T, GAP, CHANGE = 50, 17, 31  # three hours are missing before hour 17; another trajectory from 31
LAND = np.zeros((H, W), bool)
LAND[2:5, 3:9] = True


def config(**changes) -> Config:
    values = {
        "extends": "planet",
        "data": {
            "surface": SURFACE,
            "atmospheric": ATMOSPHERIC,
            "levels": LEVELS,
            "grid": {"kind": "equiangular", "latitudes": H, "longitudes": W},
            "splits": {
                "train": ["2001-01-01", "2001-01-01"],
                "validation": ["2001-01-02", "2001-01-02"],
                "test": ["2001-01-03", "2001-12-31"],
            },
        },
        "window": 4,
        "autoencoder": {
            "normals": False,
            "latent_channels": 3,
            "hidden_channels": [4, 6],
            "blocks": 1,
            "decoder_channels": [4, 6],
            "decoder_blocks": 1,
        },
        "denoiser": {"width": 16, "blocks": 1, "heads": 2, "modulation": 8},
        "sampling": {"stride": 2, "past": 2, "understated": 0},
    }
    return parse_config(values | changes)


def hours() -> np.ndarray:
    time = np.datetime64("2001-01-01T03", "ns") + np.arange(T) * np.timedelta64(1, "h")
    time[GAP:] += np.timedelta64(3, "h")
    return time


def states() -> xr.Dataset:
    r"""Fields that differ in every hour, channel and cell; SST is undefined over land."""
    ds = make_template(
        hours(),
        np.linspace(90, -90, H),
        np.arange(W) * 360 / W,
        LEVELS,
        surface=SURFACE,
        atmospheric=ATMOSPHERIC,
        static={"land_sea_mask": LAND},
        trajectory=(np.arange(T) >= CHANGE).astype(int),
    )
    t, i = np.ogrid[:T, : H * W]
    for k, name in enumerate((*SURFACE, *ATMOSPHERIC)):
        x = [
            280 + 10 * k + 7 * np.sin(0.31 * t * (c + 1) + 0.17 * i + k)
            for c in range(ds[name].sizes.get("level", 1))
        ]
        x = np.stack(x, axis=1).reshape(ds[name].shape).astype(np.float32)
        ds[name] = ds[name].copy(data=np.where(LAND, np.nan, x) if k == 1 else x)
    return ds


def write_states(path: Path) -> Path:
    ds = states()
    with StoreWriter(path, ds, block=12) as writer:
        for i in writer.remaining:
            writer.write(i, ds.isel(time=writer.blocks[i]))
        return writer.finish()


def write_model(folder: Path, seed: int = 0, denoiser: bool = False) -> Path:
    r"""A model folder with fresh weights."""
    torch.manual_seed(seed)
    write_config(folder, config())
    write_weights(folder / "autoencoder.safetensors", build_autoencoder(config()).state_dict())
    if denoiser:
        tensors = {f"denoiser.{k}": v for k, v in build_denoiser(config()).state_dict().items()}
        latents = {"latents.mean": torch.randn(3), "latents.std": torch.rand(3) + 0.5}
        write_weights(folder / "denoiser.safetensors", tensors | latents)
    ds = states()
    stats = statistics.compute(ds, split=("2001-01-01", "2001-01-01"))
    write_statistics(folder, gather(stats, ds))
    return folder
