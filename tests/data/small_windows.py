r"""A small store with a gap and two trajectories, whose values tell where they come from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr

from appa.data.windows import WindowLoader
from appa.data.writing import StoreWriter, make_template

LEVELS = (200, 500, 850, 1000)
SURFACE = ("2m_temperature", "sea_surface_temperature")
ATMOSPHERIC = ("temperature", "geopotential")
NAMES = (*SURFACE, *ATMOSPHERIC)
H, W = 7, 12  # a row of 336 bytes: nothing is aligned
T, GAP, CHANGE = 60, 26, 45  # a gap before hour 26, another trajectory from hour 45
RUNS = [(0, 26), (26, 45), (45, 60)]
LAND = np.zeros((H, W), bool)
LAND[2:4, 3:9] = True


def dates() -> np.ndarray:
    time = np.datetime64("2001-12-31T00", "ns") + np.arange(T) * np.timedelta64(1, "h")
    time[GAP:] += np.timedelta64(5, "h")
    return time


def fields(name: str) -> np.ndarray:
    r"""Values that tell where they come from, different in every hour, channel and cell."""
    levels = 1 if name in SURFACE else len(LEVELS)
    t, c, i = np.ogrid[:T, :levels, : H * W]
    x = 10.0 * NAMES.index(name) + np.sin(0.37 * t + 1.3 * c + 0.11 * i) + 2 * c
    x = x.reshape(T, levels, H, W).astype(np.float32)
    return x[:, 0] if name in SURFACE else x


def states() -> np.ndarray:
    r"""All states as stored, with shape (T, C, H, W)."""
    parts = [fields(name) for name in NAMES]
    x = np.concatenate([p[:, None] if p.ndim == 3 else p for p in parts], axis=1)
    x[:, 1][:, LAND] = np.nan
    return x


def dataset() -> xr.Dataset:
    template = make_template(
        dates(),
        np.linspace(90, -90, H),
        np.arange(W) * 360 / W,
        LEVELS,
        surface=SURFACE,
        atmospheric=ATMOSPHERIC,
        static={"land_sea_mask": LAND},
        trajectory=(np.arange(T) >= CHANGE).astype(int),
    )
    x, c = states(), 0
    for name in NAMES:
        n = 1 if name in SURFACE else len(LEVELS)
        template[name] = template[name].copy(data=x[:, c] if n == 1 else x[:, c : c + n])
        c += n
    return template


def statistics() -> xr.Dataset:
    x = states().astype(np.float64)
    mean, std, c = np.nanmean(x, (0, 2, 3)), np.nanstd(x, (0, 2, 3)), 0
    stats: dict[str, tuple] = {}
    for name in NAMES:
        n = 1 if name in SURFACE else len(LEVELS)
        pair = np.stack([mean[c : c + n], std[c : c + n]])
        stats[name] = (("statistic",), pair[:, 0]) if n == 1 else (("statistic", "level"), pair)
        c += n
    return xr.Dataset(stats, {"statistic": ["mean", "std"], "level": list(LEVELS)})


def standardized() -> np.ndarray:
    x = states().astype(np.float64)
    x = (x - np.nanmean(x, (0, 2, 3), keepdims=True)) / np.nanstd(x, (0, 2, 3), keepdims=True)
    return np.nan_to_num(x, nan=0.0)


def write(path: Path, ds: xr.Dataset, compression: str = "none") -> Path:
    with StoreWriter(path, ds, block=24, compression=compression) as writer:
        for i, hours in enumerate(writer.blocks):
            writer.write(i, ds.isel(time=hours).drop_vars("land_sea_mask", errors="ignore"))
        return writer.finish()


def hours_of(loader: WindowLoader) -> list[list[int]]:
    r"""The hours of each window handed out, recognized by their dates."""
    place = {t: i for i, t in enumerate(dates().astype("datetime64[h]"))}
    return [[place[t] for t in window] for _, batch in loader for window in batch]
