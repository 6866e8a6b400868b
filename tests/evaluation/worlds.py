r"""Small worlds whose statistics are known: noise with a chosen memory about a chosen climate."""

from __future__ import annotations

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from appa.config import Config, parse_config
from appa.data.grids import Grid
from appa.diffusion.schedule import RectifiedSchedule
from appa.tasks.building import build_autoencoder, build_denoiser
from appa.tasks.model import Model

GRID = Grid("gaussian", 8, 16)
NAMES = ("t2m", "sst", "z500", "z850")
SURFACE = ("2m_temperature", "sea_surface_temperature")
MEAN = np.array([280.0, 290.0, 55_000.0, 14_000.0])
STD = np.array([20.0, 10.0, 3_000.0, 1_500.0])
SEASON = 0.8  # amplitude of the year's first sine, standardized
LAND = np.zeros(GRID.shape, bool)
LAND[2:5, 3:9] = True
# of the weather, standardized: larger in the north
SPREAD = np.linspace(0.5, 0.2, 8)[:, None] * np.ones(16)


def config(window: int = 8, **autoencoder) -> Config:
    small = {
        "normals": False,
        "latent_channels": 4,
        "hidden_channels": [4, 6],
        "blocks": 1,
        "decoder_channels": [4, 6],
        "decoder_blocks": 1,
    }
    return parse_config(
        {
            "extends": "planet",
            "data": {
                "surface": list(SURFACE),
                "atmospheric": ["geopotential"],
                "levels": [500, 850],
                "grid": {"kind": "gaussian", "latitudes": 8, "longitudes": 16},
                "splits": {
                    "train": ["2001-01-01", "2002-12-31"],
                    "validation": ["2003-01-01", "2003-12-31"],
                    "test": ["2004-01-01", "2005-12-31"],
                },
            },
            "window": window,
            "autoencoder": small | autoencoder,
            "denoiser": {"width": 16, "blocks": 1, "heads": 2, "modulation": 8, "patch": 2},
            "sampling": {"stride": window // 2, "past": window // 2, "understated": 0},
        }
    )


def dataset(values: np.ndarray, times: np.ndarray) -> xr.Dataset:
    r"""A store of standardized states, with shape (T, 4, H, W)."""
    y = values * STD[:, None, None] + MEAN[:, None, None]
    y[:, 1, LAND] = np.nan
    surface = ("time", "latitude", "longitude")
    return xr.Dataset(
        {
            SURFACE[0]: (surface, y[:, 0].astype(np.float32)),
            SURFACE[1]: (surface, y[:, 1].astype(np.float32)),
            "geopotential": (("time", "level", *surface[1:]), y[:, 2:].astype(np.float32)),
        },
        {
            "time": times.astype("datetime64[ns]"),
            "level": [500, 850],
            "latitude": GRID.latitude,
            "longitude": GRID.longitude,
        },
    )


def statistics() -> xr.Dataset:
    pair = np.stack([MEAN, STD])
    ds = xr.Dataset(
        {
            SURFACE[0]: ("statistic", pair[:, 0]),
            SURFACE[1]: ("statistic", pair[:, 1]),
            "geopotential": (("statistic", "level"), pair[:, 2:]),
        },
        {"statistic": ["mean", "std"], "level": [500, 850]},
    )
    ds["undefined"] = (("latitude", "longitude"), LAND)
    return ds.assign_coords(latitude=GRID.latitude, longitude=GRID.longitude)


def climatology() -> xr.Dataset:
    r"""A mean and the year's first sine in every channel, and the weather's deviation."""
    shape = (3, 4, *GRID.shape)
    beta = np.zeros(shape)
    beta[0] = MEAN[:, None, None]
    beta[2] = SEASON * STD[:, None, None]
    spread = STD[:, None, None] * SPREAD
    beta[:, 1, LAND] = spread[1, LAND] = np.nan
    space = ("latitude", "longitude")
    return xr.Dataset(
        {
            SURFACE[0]: (("coefficient", *space), beta[:, 0]),
            SURFACE[1]: (("coefficient", *space), beta[:, 1]),
            "geopotential": (("coefficient", "level", *space), beta[:, 2:]),
            f"{SURFACE[0]}_std": (space, spread[0]),
            f"{SURFACE[1]}_std": (space, spread[1]),
            "geopotential_std": (("level", *space), spread[2:]),
        },
        {
            "coefficient": ["mean", "annual_cos_1", "annual_sin_1"],
            "level": [500, 850],
            "latitude": GRID.latitude,
            "longitude": GRID.longitude,
        },
        {"harmonics": 1, "diurnal": 0},
    )


def season(times: np.ndarray) -> np.ndarray:
    r"""The expected value at each time, in standard deviations."""
    year = times.astype("datetime64[Y]")
    hours = (year + 1).astype("datetime64[h]") - year.astype("datetime64[h]")
    share = (times.astype("datetime64[h]") - year.astype("datetime64[h]")) / hours
    return SEASON * np.sin(2 * np.pi * share)


def memory(count: int, hours: int, rho: float, seed: int) -> np.ndarray:
    r"""Noise of unit variance with autocorrelation ρ^τ, independent in space: (N, L, 4, H, W)."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, hours, 4, *GRID.shape))
    for t in range(1, hours):
        x[:, t] = rho * x[:, t - 1] + np.sqrt(1 - rho**2) * x[:, t]
    return x


def stretches(count: int, hours: int, first: str = "2004-01-03", days: int = 11) -> np.ndarray:
    r"""Hours in stretches, with gaps between: (N, L)."""
    starts = np.datetime64(first, "h") + 24 * days * np.arange(count) + 5 * np.arange(count)
    return starts[:, None] + np.arange(hours)


class Identity(nn.Module):
    r"""An autoencoder that keeps everything, and then spoils it in a known way."""

    def __init__(self, spoil=lambda x: x):
        super().__init__()
        self.spoil = spoil
        self.weight = nn.Parameter(torch.zeros(()))

    def encode(self, x: Tensor) -> Tensor:
        return x

    def decode(self, z: Tensor) -> Tensor:
        return self.spoil(z)


class Gaussian(nn.Module):
    r"""The exact denoiser of noise with memory ρ about the season, scaled by the spread:
    :math:`\mu + \Sigma (\Sigma + \sigma^2 I)^{-1} (z_t - \mu)`, diagonal in space and in the
    eigenvectors of the correlation in time."""

    def __init__(self, window: int, rho: float):
        super().__init__()
        self.window, self.schedule = window, RectifiedSchedule(1e-3, 1e3)
        self.latent_shape = (4, *GRID.shape)
        self.backbone = nn.Linear(1, 1)  # of which only the place is asked
        hours = np.arange(window)
        values, vectors = np.linalg.eigh(rho ** abs(hours[:, None] - hours))
        self.values = torch.from_numpy(values).float()
        self.vectors = torch.from_numpy(vectors).float()
        self.variance = torch.from_numpy(SPREAD**2).float()

    def forward(self, z: Tensor, sigma_t: Tensor, clock: Tensor) -> Tensor:
        mean = SEASON * clock[..., 0, None, None, None]
        a = torch.einsum("st,bs...->bt...", self.vectors, z - mean)
        prior = self.values[:, None, None, None] * self.variance
        a = a * prior / (prior + sigma_t**2)
        return mean + torch.einsum("ts,bs...->bt...", self.vectors, a)


def model(autoencoder: nn.Module | None = None, window: int = 8, rho: float = 0.9) -> Model:
    r"""A model whose latents are its states."""
    return Model(
        config(window, latent_noise=0.0),
        autoencoder or Identity(),  # type: ignore[arg-type]
        Gaussian(window, rho),  # type: ignore[arg-type]
        torch.zeros(4),
        torch.ones(4),
        statistics(),
    )


def untrained() -> Model:
    r"""A model of real networks, with random weights."""
    torch.manual_seed(0)
    about = config()
    networks = build_autoencoder(about), build_denoiser(about)
    return Model(about, *networks, torch.zeros(4), torch.ones(4), statistics())
