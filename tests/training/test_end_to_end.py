r"""From a store of states to a drawn trajectory, by the commands a user gives."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import appa as package
from appa.data.stores import open_store

from .commands import appa, write_config, write_store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("end-to-end")
    write_config(folder)
    write_store(folder)
    return folder


@pytest.fixture(scope="module")
def run(folder) -> Path:
    run = folder / "run"
    data = ["--data", folder / "store.zarr", "--out", run]
    often = ["--every", 50, "--validate-every", 50, "--log-every", 10]
    appa("train", "autoencoder", folder / "tiny.yaml", *data, "--steps", 100, *often)
    appa("encode", run, folder / "store.zarr", folder / "latents.zarr")
    often = ["--every", 100, "--validate-every", 100, "--log-every", 10]
    appa("train", "denoiser", run, "--data", folder / "latents.zarr", "--steps", 200, *often)
    return run


@pytest.fixture(scope="module")
def model(run):
    return package.load(run)


def curve(run: Path, network: str, name: str) -> list[float]:
    lines = (run / "training" / network / "log.jsonl").read_text().splitlines()
    return [e[name] for e in map(json.loads, lines) if name in e]


def states(model, folder, hours: slice) -> torch.Tensor:
    return model.standardizer.to_tensor(open_store(folder / "store.zarr").isel(time=hours))


def test_the_autoencoder_learned(model, folder):
    r"""On a day it never saw, much of what departs from the normals is in its reconstructions."""
    x = states(model, folder, slice(72, 96))
    with torch.no_grad():
        y = model.reconstruct(x)
    assert x.shape == y.shape == (24, 6, 48, 96)
    error, variance = (x - y).square().mean(), model.autoencoder.departures(x).square().mean()
    assert error < 0.6 * variance
    assert variance < 0.2 * x.var()


def test_the_latents_are_those_of_the_model(model, folder):
    import xarray as xr

    ds = xr.open_zarr(folder / "latents.zarr", consolidated=False)
    assert ds["latents"].dims[:2] == ("time", "channel")
    assert ds["latents"].shape == (96, 4, 6, 12)
    x = states(model, folder, slice(0, 48))
    with torch.no_grad():
        z = model.autoencoder.encode(x).numpy()
    # one convolution's sums in another order, over at most 9 · 48 terms
    np.testing.assert_allclose(ds["latents"].values[:48], z, atol=1e-5)
    # statistics are those of the training split, the first two days
    np.testing.assert_allclose(ds["latents_mean"], z.mean((0, 2, 3)), atol=1e-5)
    np.testing.assert_allclose(ds["latents_std"], z.std((0, 2, 3)), atol=1e-4)
    np.testing.assert_allclose(model.latent_mean, z.mean((0, 2, 3)), atol=1e-5)


def test_the_denoiser_learned(model, folder):
    r"""It beats what knows the variance alone, whose weighted loss is 1 at every noise level."""
    x = states(model, folder, slice(72, 96))
    with torch.no_grad():
        z = model.encode(x).unflatten(0, (6, 4))
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(z.shape, generator=generator)
        dates = open_store(folder / "store.zarr")["time"].values[72:96].reshape(6, 4)
        sigma = torch.full((6,), 1.0)
        loss = model.denoiser.loss(z, sigma, dates, noise).mean()
        linear = (2 * (0.5 * (z + noise) - z).square()).mean()
    assert loss < 0.8 * linear


def test_the_curves(run):
    loss = curve(run, "autoencoder", "train/loss")
    assert len(loss) == 10
    assert loss[-1] < 0.5 * loss[0]
    loss = curve(run, "denoiser", "train/loss")
    assert len(loss) == 20
    assert np.mean(loss[-5:]) < 0.8 * np.mean(loss[:5])
    assert list((run / "training" / "autoencoder").glob("events.out.tfevents.*"))
    assert list((run / "training" / "autoencoder" / "pictures").glob("*.png"))


def test_a_drawn_trajectory(model):
    ds = model.sample("2021-03-24T00", hours=6, members=2, seed=0)
    assert dict(ds.sizes) == {
        "member": 2,
        "time": 6,
        "level": 2,
        "latitude": 48,
        "longitude": 96,
    }
    assert ds["time"].values[0] == np.datetime64("2021-03-24T00")
    t = ds["temperature"].sel(level=850)
    # warm at the equator, cold at the poles, whatever weather was drawn
    equator = t.sel(latitude=slice(10, -10)).mean(("time", "latitude", "longitude"))
    poles = t.where(abs(t.latitude) > 70).mean(("time", "latitude", "longitude"))
    assert ((equator - poles) > 10).all()
    assert (abs(ds["temperature"] - 260) < 80).all()
    # two members are two draws
    assert abs(t.isel(member=0) - t.isel(member=1)).max() > 0.1
