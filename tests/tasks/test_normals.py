r"""Normals: what the autoencoder does not see, and its reconstructions have all the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from appa.data import climatology, statistics
from appa.nn.autoencoder import Autoencoder
from appa.tasks.building import build_autoencoder, build_denoiser
from appa.tasks.encoding import encode
from appa.tasks.folders import NORMALS, ModelError, gather, read_weights
from appa.tasks.loading import load
from appa.tasks.model import Model
from appa.tasks.normals import with_normals

from . import small


@pytest.fixture(scope="module")
def store():
    return small.states()


@pytest.fixture(scope="module")
def model(store) -> Model:
    config = small.config()
    part = config.autoencoder.model_copy(update={"normals": True})
    config = config.model_copy(update={"autoencoder": part})
    stats = gather(statistics.compute(store), store)
    stats = with_normals(config, stats, climatology.fit(store, 0))
    torch.manual_seed(0)
    networks = build_autoencoder(config), build_denoiser(config)
    c = config.latent_shape[0]
    return Model(config, *networks, torch.zeros(c), torch.ones(c), stats)


def bare(model: Model) -> Autoencoder:
    r"""Its networks in an autoencoder that knows of no normals."""
    other = build_autoencoder(model.config)
    other.load_state_dict(model.autoencoder.state_dict())
    return other.requires_grad_(False)


def test_states_depart_from_their_mean_over_time(model, store):
    x = model.standardizer.to_tensor(store)
    mean = x.double().mean(dim=0)
    normals = model.autoencoder.normals
    torch.testing.assert_close(normals.double(), mean, rtol=0, atol=2.0**-9 + 1e-5)
    assert mean.abs().max() > 0.1
    raw, scale = bare(model).encode(x - normals), model.latent_scale[:, None, None]
    torch.testing.assert_close(model.encode(x), raw / scale, rtol=1e-5, atol=1e-5)
    y = normals + bare(model).decode(raw)
    torch.testing.assert_close(model.decode(raw / scale), y, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.reconstruct(x), y, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.autoencoder.encode(x), raw, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.autoencoder.decode(raw), y, rtol=1e-4, atol=1e-5)


def test_linearized(model):
    r"""The state is the decoder's; its changes have no normals in them."""
    generator = torch.Generator().manual_seed(0)
    z, dz = torch.randn(2, 2, *model.config.latent_shape, generator=generator)
    x, product = model.linearize(z)
    torch.testing.assert_close(x, model.decode(z), rtol=1e-5, atol=1e-5)
    _, expected = torch.func.jvp(model.decode, (z,), (dz,))
    torch.testing.assert_close(product(dz), expected, rtol=1e-4, atol=1e-5)


def test_kept(model, store, tmp_path):
    r"""Exactly, in the folder's statistics, and a store is encoded with them."""
    again = load(model.save(tmp_path / "model"))
    assert torch.equal(again.autoencoder.normals, model.autoencoder.normals)
    assert "normals" not in read_weights(tmp_path / "model" / "autoencoder.safetensors")
    import xarray as xr

    store.to_zarr(tmp_path / "store.zarr", consolidated=False)
    path = encode(tmp_path / "model", tmp_path / "store.zarr", tmp_path / "latents.zarr")
    x = model.standardizer.to_tensor(store)
    found = xr.open_zarr(path, consolidated=False)["latents"].values
    expected = bare(model).encode(x - model.autoencoder.normals).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_missing_or_of_another_grid(model):
    networks = model.autoencoder, model.denoiser, model.latent_mean, model.latent_std
    with pytest.raises(ModelError, match=r"no normals.*whole folder"):
        Model(model.config, *networks, model.statistics.drop_vars(NORMALS))
    wrong = model.statistics.drop_vars(NORMALS)
    wrong = wrong.assign({NORMALS: (("channel", "a", "b"), np.zeros((4, 2, 2)))})
    with pytest.raises(ModelError, match=r"normals have shape \(4, 2, 2\)"):
        Model(model.config, *networks, wrong)
