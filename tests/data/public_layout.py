r"""Synthetic stores in exactly the layouts of the public ERA5 copies.

The fields are smooth and physically plausible: temperature falls towards the poles and with
height, geopotential is its hydrostatic integral, humidity stays below saturation, winds have a jet
in each hemisphere, SST is undefined over a made-up land. They are functions of time and place, so
that a copy can be compared with the same functions evaluated anew.

=============  ================================  ==========  =======================
layout         dimensions                        latitude    time
=============  ================================  ==========  =======================
WeatherBench2  time, level, longitude, latitude  ascending   hours since 1959
ARCO           time, level, latitude, longitude  descending  hours since 1900, int64
=============  ================================  ==========  =======================

Both have all 37 ERA5 levels, chunks of one hour, variables Appa does not know, and are Zarr v2
with consolidated metadata (ARCO's ".zarr-v3" is the third version of the data, not of the format);
v3 is a choice. ARCO's time axis runs beyond the hours it holds, on both sides: the attributes
`valid_time_start` and `valid_time_stop` say which are data, the rest reads as NaN.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from appa.data.variables import LEVELS, STATIC, VARIABLES

__all__ = [
    "LEVELS_37",
    "canonical",
    "fields",
    "hours",
    "land",
    "write_arco",
    "write_weatherbench2",
]

# fmt: off
LEVELS_37: tuple[int, ...] = (
    1, 2, 3, 5, 7, 10, 20, 30, 50, 70, 100, 125, 150, 175, 200, 225, 250, 300, 350, 400, 450, 500,
    550, 600, 650, 700, 750, 775, 800, 825, 850, 875, 900, 925, 950, 975, 1000,
)
# fmt: on

R_DRY, G = 287.05, 9.80665


def hours(start: str, n: int, every: int = 1) -> np.ndarray:
    r"""`n` times from `start`, `every` hours apart."""
    return np.datetime64(start, "ns") + np.arange(n) * np.timedelta64(every, "h")


def land(latitude: np.ndarray, longitude: np.ndarray) -> np.ndarray:
    r"""Where the made-up planet has land, as 0 or 1, shape (H, W)."""
    phi, lam = np.deg2rad(latitude)[:, None], np.deg2rad(longitude)[None, :]

    def disc(lat0: float, lon0: float, radius: float) -> np.ndarray:
        cos = np.sin(phi) * np.sin(np.deg2rad(lat0)) + np.cos(phi) * np.cos(
            np.deg2rad(lat0)
        ) * np.cos(lam - np.deg2rad(lon0))
        return np.arccos(np.clip(cos, -1, 1)) < np.deg2rad(radius)

    mask = disc(50, 80, 35) | disc(45, 260, 25) | disc(5, 20, 22) | disc(-15, 300, 20)
    return (mask | disc(-90, 0, 18)).astype(np.float32)


def _height(p: np.ndarray) -> np.ndarray:
    r"""Rough height (m) of a pressure (hPa): a scale height of 7 km."""
    return 7000.0 * np.log(1013.25 / p)


def fields(
    times: np.ndarray,
    latitude: np.ndarray,
    longitude: np.ndarray,
    levels: Sequence[int] = LEVELS,
) -> dict[str, np.ndarray]:
    r"""Every known variable, as float32 (T, H, W) or (T, L, H, W), and the static (H, W)."""
    times = np.asarray(times, dtype="datetime64[ns]")
    t = (times - np.datetime64("2000-01-01", "ns")) / np.timedelta64(1, "h")
    t = t.astype(np.float64)[:, None, None]
    phi = np.deg2rad(np.asarray(latitude, dtype=np.float64))[None, :, None]
    lam = np.deg2rad(np.asarray(longitude, dtype=np.float64))[None, None, :]
    shape = (len(times), len(latitude), len(longitude))
    mask = land(np.asarray(latitude), np.asarray(longitude))

    season = np.cos(2 * np.pi * (t / 24 - 200) / 365.25)  # northern summer is +1
    wave = np.cos(phi) ** 2 * np.cos(4 * lam - 2 * np.pi * t / 120)
    ewav = np.cos(phi) ** 2 * np.sin(6 * lam + 3 * phi - 2 * np.pi * t / 77)
    base = 302 - 42 * np.sin(phi) ** 2 + 7 * np.sin(phi) + 9 * np.sin(phi) * season
    base = np.broadcast_to(base, shape)
    diurnal = np.cos(2 * np.pi * t / 24 + lam - 1.2 * np.pi) * np.cos(phi) ** 2
    msl = 101_200 + 900 * np.cos(4 * phi) * np.cos(phi) + 500 * wave + 60 * np.sin(phi)

    out: dict[str, np.ndarray] = {
        "2m_temperature": base + 2 * wave + (1 + 2 * mask) * diurnal,
        "10m_u_component_of_wind": 6 * np.sin(3 * np.abs(phi)) ** 2 - 4 * np.cos(phi) + 3 * ewav,
        "10m_v_component_of_wind": 4 * wave - 2 * np.sin(2 * phi),
        "mean_sea_level_pressure": msl,
        "sea_surface_temperature": np.where(mask > 0, np.nan, np.maximum(base + ewav, 271.4)),
        "total_precipitation": 1.2e-4 * np.clip(ewav + 0.6 * np.cos(6 * phi), 0, None),
        "land_sea_mask": mask,
        "geopotential_at_surface": G * 900 * mask * (1 + 0.3 * np.cos(3 * lam[0]) * np.cos(phi[0])),
    }

    p = np.asarray(levels, dtype=np.float64)
    order = np.argsort(-p)  # upwards, for the hydrostatic integral
    temperature = np.empty((len(times), len(p), *shape[1:]))
    geopotential = np.empty_like(temperature)
    above_p, above_t, above_z = 1013.25, base, R_DRY * base * np.log(msl / 101_325)
    for k in order:
        z = _height(p[k])
        tropopause = 205 + 15 * np.sin(phi) ** 2
        warm = base - 0.0062 * z + 2 * wave
        column = 8 * np.logaddexp(warm / 8, tropopause / 8)  # a smooth maximum of the two
        column = column + 60 * np.clip((z - 20_000) / 28_000, 0, 1)
        temperature[:, k] = column
        geopotential[:, k] = above_z + R_DRY * 0.5 * (above_t + column) * np.log(above_p / p[k])
        above_p, above_t, above_z = p[k], column, geopotential[:, k].copy()

    level = p[None, :, None, None]
    jet = np.exp(-(((np.log(level / 250)) / 0.9) ** 2))
    jets = (np.sin(2 * phi) ** 2)[:, None]
    out["temperature"] = temperature
    out["u_component_of_wind"] = 35 * jets * jet + 6 * ewav[:, None] * (0.3 + jet)
    out["v_component_of_wind"] = 9 * wave[:, None] * (0.3 + jet)
    out["geopotential"] = geopotential
    celsius = temperature - 273.15
    vapour = 6.112 * np.exp(17.67 * celsius / (celsius + 243.5))
    saturation = 0.622 * vapour / np.maximum(level - 0.378 * vapour, 0.5 * level)
    moist = 0.55 * saturation * np.exp(-_height(level) / 2e4)
    out["specific_humidity"] = 3e-6 + moist / (1 + (150 / level) ** 8)  # a dry stratosphere
    full = {"land_sea_mask": shape[1:], "geopotential_at_surface": shape[1:]}
    for name, value in out.items():
        tail = shape if name not in VARIABLES or VARIABLES[name].surface else temperature.shape
        value = np.broadcast_to(value, full.get(name, tail))
        out[name] = np.ascontiguousarray(value, dtype=np.float32)
    return out


def canonical(
    times: np.ndarray,
    shape: tuple[int, int] = (19, 36),
    levels: Sequence[int] = LEVELS_37,
) -> xr.Dataset:
    r"""The canonical dataset on an equiangular grid with poles, in memory."""
    latitude = np.linspace(90, -90, shape[0])
    longitude = np.arange(shape[1]) * (360 / shape[1])
    data = {}
    for name, value in fields(times, latitude, longitude, levels).items():
        dims = {2: (), 3: ("time",), 4: ("time", "level")}[value.ndim]
        attrs = STATIC[name] if name in STATIC else VARIABLES[name].attrs
        data[name] = ((*dims, "latitude", "longitude"), value, dict(attrs))
    return xr.Dataset(
        data,
        {
            "time": np.asarray(times, dtype="datetime64[ns]"),
            "level": np.asarray(levels, dtype=np.int64),
            "latitude": latitude,
            "longitude": longitude,
        },
    )


def _write(ds: xr.Dataset, path: str | Path, encoding: dict, zarr_format: int) -> Path:
    for name, var in ds.data_vars.items():
        chunks = tuple(1 if dim == "time" else n for dim, n in var.sizes.items())
        encoding[name] = {"chunks": chunks}
    with warnings.catch_warnings():
        # Consolidated metadata is no part of the v3 specification; the public stores have it.
        warnings.simplefilter("ignore")
        ds.to_zarr(path, mode="w", encoding=encoding, zarr_format=zarr_format, consolidated=True)
    return Path(path)


def _with_strangers(ds: xr.Dataset) -> xr.Dataset:
    r"""Adds variables of the public stores that Appa does not know."""
    return ds.assign(
        {
            "2m_dewpoint_temperature": ds["2m_temperature"] - 4,
            "boundary_layer_height": ds["2m_temperature"] * 0 + 700,
            "vertical_velocity": ds["v_component_of_wind"] * 0.01,
            "lake_depth": ds["land_sea_mask"] * 10,
        }
    )


def write_weatherbench2(
    path: str | Path,
    times: np.ndarray,
    shape: tuple[int, int] = (19, 36),
    levels: Sequence[int] = LEVELS_37,
    *,
    zarr_format: int = 2,
    static: bool = True,
) -> Path:
    r"""WeatherBench2's layout: (time, level, longitude, latitude), latitude ascending."""
    ds = _with_strangers(canonical(times, shape, levels))
    if not static:
        ds = ds.drop_vars(["land_sea_mask", "geopotential_at_surface", "lake_depth"])
    ds = ds.isel(latitude=slice(None, None, -1))
    ds = ds.transpose("time", "level", "longitude", "latitude")
    encoding = {"time": {"units": "hours since 1959-01-01", "dtype": "int64"}}
    return _write(ds, path, encoding, zarr_format)


def write_arco(
    path: str | Path,
    times: np.ndarray,
    shape: tuple[int, int] = (19, 36),
    levels: Sequence[int] = LEVELS_37,
    *,
    zarr_format: int = 2,
    padding: int = 0,
) -> Path:
    r"""ARCO ERA5's layout: (time, level, latitude, longitude), latitude descending, float32.

    With `padding`, the time axis has that many hours without data before and after `times`.
    """
    ds = _with_strangers(canonical(times, shape, levels))
    if padding:
        before = ds.time.values[0] - np.arange(padding, 0, -1) * np.timedelta64(1, "h")
        after = ds.time.values[-1] + np.arange(1, padding + 1) * np.timedelta64(1, "h")
        ds = ds.reindex(time=np.concatenate([before, ds.time.values, after]))
    ds.attrs = {
        "valid_time_start": str(np.datetime_as_string(times[0], "D")),
        "valid_time_stop": str(np.datetime_as_string(times[-1], "D")),
    }
    ds = ds.assign_coords(
        latitude=ds.latitude.astype(np.float32), longitude=ds.longitude.astype(np.float32)
    )
    encoding = {"time": {"units": "hours since 1900-01-01", "dtype": "int64"}}
    return _write(ds, path, encoding, zarr_format)
