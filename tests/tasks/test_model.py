r"""Models: states to latents and back, folders, and draws from the prior."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from appa.diffusion.sampling import draw
from appa.errors import DataError
from appa.observations.representation import Representation
from appa.tasks.folders import ModelError, digest, made_by, read_weights, write_weights
from appa.tasks.loading import find, load
from appa.tasks.model import Model

from . import small


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return small.write_model(tmp_path_factory.mktemp("model") / "small", denoiser=True)


@pytest.fixture(scope="module")
def model(folder) -> Model:
    return load(folder)


@pytest.fixture
def unfinished(tmp_path) -> Path:
    r"""A run whose autoencoder is trained and whose denoiser is not."""
    return small.write_model(tmp_path / "unfinished")


def states(model: Model, *lead: int) -> torch.Tensor:
    return torch.randn(*lead, *model.config.state_shape, generator=torch.Generator().manual_seed(0))


def test_latents_are_standardized(folder, model):
    r"""With deviation √(σ² + σ_z²), in double precision here."""
    weights = read_weights(folder / "denoiser.safetensors")
    mean, std = (weights[f"latents.{name}"].double() for name in ("mean", "std"))
    scale = (std**2 + model.config.autoencoder.latent_noise**2).sqrt()
    x = states(model, 2)
    raw = model.autoencoder.encode(x)
    z = (raw.double() - mean[:, None, None]) / scale[:, None, None]
    torch.testing.assert_close(model.encode(x).double(), z, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        model.decode(z.float()), model.autoencoder.decode(raw), rtol=1e-4, atol=1e-5
    )


def test_draws_have_what_the_decoder_cannot_express(folder):
    r"""Of its own size, and the same for the same seed; over land the sea surface has none."""
    pytest.importorskip("ducc0")
    model, size = load(folder), 0.3
    std = np.full(model.config.state_shape, size)
    std[1, small.LAND] = 0
    channels = model.standardizer.channels
    model.representation = Representation.of(model.grid, channels, std, [1.0, 0.5], 1000.0)
    options = {"start": "2021-01-01", "hours": 8, "members": 8, "steps": 2}
    bare, drawn = model.sample(residual=False, **options), model.sample(**options)
    r = model.standardizer.to_tensor(drawn) - model.standardizer.to_tensor(bare)
    assert abs(r[:, :, 2:].std() - size) < 0.1 * size
    assert (r[:, :, 1][..., torch.from_numpy(small.LAND)] == 0).all()
    assert drawn.equals(model.sample(**options))


def test_leading_dimensions(model):
    x = states(model, 2, 3)
    z = model.encode(x)
    assert z.shape == (2, 3, *model.config.latent_shape)
    assert model.decode(z).shape == x.shape
    torch.testing.assert_close(model.encode(x[1, 2]), z[1, 2], rtol=1e-5, atol=1e-5)


def test_gradients_reach_latents_and_no_weights(model):
    z = torch.randn(1, *model.config.latent_shape, requires_grad=True)
    model.decode(z).square().sum().backward()
    assert z.grad is not None
    assert z.grad.abs().sum() > 0
    assert not any(p.requires_grad for p in model.autoencoder.parameters())
    assert not any(p.requires_grad for p in model.denoiser.parameters())


def test_saved_and_loaded(model, tmp_path):
    again = load(model.save(tmp_path / "again"))
    assert again.config == model.config
    assert digest(again.autoencoder.state_dict()) == digest(model.autoencoder.state_dict())
    assert digest(again.denoiser.state_dict()) == digest(model.denoiser.state_dict())
    assert torch.equal(again.latent_std, model.latent_std)
    assert torch.equal(again.standardizer.mean, model.standardizer.mean)
    np.testing.assert_array_equal(again.standardizer.land, small.LAND)
    assert again.grid == model.grid


def test_saved_in_half_precision(model, tmp_path):
    again = load(model.save(tmp_path / "half", half=True))
    x = states(model, 1)
    assert again.autoencoder.encode(x).dtype == torch.float32
    # weights to 11 bits: errors of 2⁻¹¹ add up like a random walk over five convolutions
    error = again.encode(x) - model.encode(x)
    assert 0 < error.square().mean().sqrt() < 5**0.5 * 2**-11


@pytest.mark.parametrize("half", [False, True])
def test_a_saved_denoiser_knows_its_autoencoder(model, unfinished, tmp_path, half):
    r"""Half precision makes other weights, and a saved model knows those it was saved with."""
    first = model.save(tmp_path / "first", half=half)
    weights = read_weights(first / "autoencoder.safetensors")
    assert made_by(first / "denoiser.safetensors") == digest(weights)
    assert (digest(weights) == digest(model.autoencoder.state_dict())) != half
    again = load(load(first).save(tmp_path / "again", half=half))
    assert digest(again.autoencoder.state_dict()) == digest(weights)

    name = next(iter(weights))
    weights[name] = weights[name] * (1 + 2**-10)
    write_weights(first / "autoencoder.safetensors", weights, half)
    with pytest.raises(ModelError, match=r"denoiser.safetensors was trained on .*another one"):
        load(first)
    (first / "denoiser.safetensors").unlink()
    load(first)


def test_a_denoiser_that_does_not_know_its_autoencoder(folder):
    assert made_by(folder / "denoiser.safetensors") is None  # as imported ones do not
    assert load(folder).denoiser is not None


def test_without_a_denoiser(unfinished):
    model = load(unfinished)
    x = states(model, 1)
    assert model.autoencoder.decode(model.autoencoder.encode(x)).shape == x.shape
    assert "no denoiser yet" in repr(model)
    for use in (
        lambda: model.denoiser,
        lambda: model.encode(x),
        lambda: model.sample("2021-01-01", 2),
    ):
        with pytest.raises(ModelError, match=r"unfinished has no denoiser.safetensors yet.*train"):
            use()


def test_draws_are_decoded_trajectories(model):
    r"""More hours than a window has; the dataset holds what the parts give one by one."""
    options = {"hours": 7, "members": 2, "seed": 3, "steps": 4}
    ds = model.sample("2021-12-31T21", mode="composed", batch=3, **options)
    assert ds.sizes["member"] == 2
    times = np.datetime64("2021-12-31T21", "ns") + np.arange(7) * np.timedelta64(1, "h")
    np.testing.assert_array_equal(ds["time"].values, times)
    z = draw(model.denoiser, times, 2, stride=2, steps=4, seed=3)
    x = torch.stack([model.decode(z[m]) for m in range(2)])
    mean, std = (model.statistics["temperature"].sel(statistic=s).values for s in ("mean", "std"))
    temperature = x[:, :, 2:].double().numpy() * std[:, None, None] + mean[:, None, None]
    np.testing.assert_allclose(ds["temperature"].values, temperature, rtol=1e-5)
    missing = np.isnan(ds["sea_surface_temperature"].values)
    np.testing.assert_array_equal(missing, np.broadcast_to(small.LAND, missing.shape))
    # by default window after window, as of an ensemble that nothing is observed of
    ds = model.sample("2021-12-31T21", **options)
    solved = {"iterations": 8, "tolerance": 0.05}
    other = model.reanalysis(None, "2021-12-31T21", **options, **solved)
    np.testing.assert_allclose(ds["temperature"], other["temperature"], rtol=1e-5)


def test_a_member_depends_on_its_number_alone(model):
    many = model.sample("2021-01-01", hours=4, members=3, steps=3)
    one = model.sample("2021-01-01", hours=4, members=1, steps=3)
    other = model.sample("2021-01-01", hours=4, members=1, steps=3, seed=1)
    first = many["temperature"].isel(member=[0])
    np.testing.assert_allclose(one["temperature"], first, rtol=1e-5)
    assert abs(one["temperature"] - other["temperature"]).max() > 0.1
    assert abs(many["temperature"].isel(member=1) - first).max() > 0.1


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"hours": 0}, "hours must be 1 or more, found 0"),
        ({"members": 0}, "members must be 1 or more"),
        ({"stride": 3}, "stride of 3, expected from 1 to the window, 4, and even"),
        ({"stride": 6}, "stride of 6"),
        ({"start": "2021-01-01T00:30"}, "expected one whole hour"),
        ({"start": ["2021-01-01", "2021-01-02"]}, "expected one whole hour"),
    ],
)
def test_draws_that_cannot_be(model, options, match):
    with pytest.raises(DataError, match=match):
        model.sample(**{"start": "2021-01-01", "hours": 2, "steps": 1} | options)


def test_names_of_models(folder, tmp_path, monkeypatch):
    with pytest.raises(ModelError, match="no model folder nowhere, and no bundled model 'nowhere'"):
        find("nowhere")
    monkeypatch.setattr("appa.tasks.loading.resources.files", lambda package: folder.parent / "x")
    (folder.parent / "x").mkdir()
    (folder.parent / "x" / "models").symlink_to(folder.parent)
    assert find("small").samefile(folder)
    with pytest.raises(ModelError, match="no bundled model 'smal'; did you mean 'small'"):
        find("smal")
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(ModelError, match=r"is no model folder: it has no config.yaml.*a.txt"):
        load(tmp_path)


def test_files_of_two_models(unfinished, folder):
    weights = read_weights(folder / "denoiser.safetensors")
    write_weights(unfinished / "denoiser.safetensors", weights | {"latents.mean": torch.ones(4)})
    with pytest.raises(ModelError, match=r"found shape \(4,\) for latents.mean, expected 3"):
        load(unfinished)
    weights.pop("latents.std")
    write_weights(unfinished / "denoiser.safetensors", weights)
    with pytest.raises(ModelError, match=r"found none for latents.std"):
        load(unfinished)
    write_weights(unfinished / "autoencoder.safetensors", weights)
    with pytest.raises(ModelError, match=r"autoencoder.safetensors does not fit .*is missing"):
        load(unfinished)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu(folder, model):
    r"""TensorFloat-32 has 10 bits."""
    there = load(folder, device="cuda")
    assert there.device.type == "cuda"
    x = states(model, 2)
    z = there.encode(x.cuda())
    torch.testing.assert_close(z.cpu(), model.encode(x), rtol=1e-2, atol=1e-2)
    ds = there.sample("2021-01-01", hours=5, steps=2)
    assert ds.sizes["time"] == 5
