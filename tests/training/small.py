r"""A tiny planet of random fields, and networks to fit it: seconds on one core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from appa.config import Config, parse_config
from appa.data.writing import StoreWriter, make_template

SURFACE = ("2m_temperature", "sea_surface_temperature")
ATMOSPHERIC = ("temperature", "geopotential")
LEVELS = (500, 850)
H, W = 8, 16
LAND = np.zeros((H, W), bool)
LAND[2:4, 3:9] = True
CHANNELS = len(SURFACE) + len(ATMOSPHERIC) * len(LEVELS)


def configuration(**changes: Any) -> Config:
    r"""A configuration; changes are given as `training__autoencoder__steps=3`."""
    adam = {"optimizer": "adam", "learning_rate": 1e-3, "batch_size": 8, "steps": 6, "ema": 0.9}
    values: dict[str, Any] = {
        "data": {
            "surface": list(SURFACE),
            "atmospheric": list(ATMOSPHERIC),
            "levels": list(LEVELS),
            "grid": {"kind": "equiangular-cells", "latitudes": H, "longitudes": W},
            "splits": {
                "train": ["2001-01-01", "2001-01-02"],
                "validation": ["2001-01-03", "2001-01-03"],
                "test": ["2001-01-04", "2001-01-04"],
            },
        },
        "window": 4,
        "autoencoder": {"latent_channels": 3, "hidden_channels": [8, 12], "blocks": 1},
        "denoiser": {"width": 16, "blocks": 2, "heads": 2, "modulation": 8},
        "training": {
            "autoencoder": {**adam, "decay": "linear"},
            "denoiser": {**adam, "decay": "none"},
        },
        "sampling": {"stride": 2, "past": 2},
    }
    for path, value in changes.items():
        *sections, key = path.split("__")
        place = values
        for section in sections:
            place = place[section]
        place[key] = value
    return parse_config(values)


def states(hours: int = 96) -> xr.Dataset:
    r"""Smooth fields that move, and noise, with SST undefined over land."""
    template = make_template(
        np.datetime64("2001-01-01T00", "ns") + np.arange(hours) * np.timedelta64(1, "h"),
        90 - 180 * (np.arange(H) + 0.5) / H,
        np.arange(W) * 360 / W,
        LEVELS,
        surface=SURFACE,
        atmospheric=ATMOSPHERIC,
        static={"land_sea_mask": LAND},
    )
    rng = np.random.default_rng(0)
    t, i, j = np.ogrid[:hours, :H, :W]
    for k, name in enumerate((*SURFACE, *ATMOSPHERIC)):
        wave = np.sin(2 * np.pi * (j / W - t / 24) + k) * np.sin(np.pi * (i + 0.5) / H)
        x = 250 + 10 * k + 8 * wave + rng.normal(size=(hours, H, W))
        if name in ATMOSPHERIC:
            x = np.stack([x + 3 * level for level in range(len(LEVELS))], axis=1)
        if name == "sea_surface_temperature":
            x[:, LAND] = np.nan
        template[name] = template[name].copy(data=x.astype(np.float32))
    return template


def write(path: Path, ds: xr.Dataset) -> Path:
    with StoreWriter(path, ds, block=24) as writer:
        for i, hours in enumerate(writer.blocks):
            writer.write(i, ds.isel(time=hours).drop_vars("land_sea_mask", errors="ignore"))
        return writer.finish()


def state_statistics() -> xr.Dataset:
    r"""The statistics of the training days, and the mask, as a run folder holds them."""
    ds = states().sel(time=slice("2001-01-01", "2001-01-02"))
    found = {}
    for name in (*SURFACE, *ATMOSPHERIC):
        over = tuple(dim for dim in ds[name].dims if dim != "level")
        pair = [ds[name].astype(float).mean(over), ds[name].astype(float).std(over)]
        found[name] = xr.concat(pair, xr.Variable("statistic", ["mean", "std"]))
    found["undefined"] = (("latitude", "longitude"), LAND)
    coords = {name: ds[name] for name in ("latitude", "longitude")}
    return xr.Dataset(found).assign_coords(coords)


def latents(config: Config, hours: int = 96) -> xr.Dataset:
    r"""Latents that are correlated in time."""
    rng = np.random.default_rng(1)
    c, h, w = config.latent_shape
    z = np.cumsum(rng.normal(size=(hours, c, h, w)), axis=0) / 4
    time = np.datetime64("2001-01-01T00", "ns") + np.arange(hours) * np.timedelta64(1, "h")
    return xr.Dataset(
        {
            "latents": (("time", "channel", "y", "x"), z.astype(np.float32)),
            "latents_mean": ("channel", z.mean(axis=(0, 2, 3)).astype(np.float32)),
            "latents_std": ("channel", z.std(axis=(0, 2, 3)).astype(np.float32)),
        },
        {"time": time},
    )
