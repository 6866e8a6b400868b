r"""What is minimized is what the formulas say, of what is drawn as they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from appa.training.distribution import Ranks
from appa.training.noise import keys
from appa.training.options import Options
from appa.training.trainer import Trainer

from ..nn.mixed import mixed
from . import small
from .worker import make_task

CPU = torch.device("cpu")
ALONE = Ranks(0, 1, CPU)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("objectives")
    small.write(folder / "store.zarr", small.states())
    return folder


def batch(task, n: int = 8):
    feed = task.feed(ALONE, n, 1)
    return (*next(feed), keys(0, 0, 0, n, CPU))


def test_latents_are_perturbed(folder):
    r"""The autoencoder decodes its latents with noise of deviation σ_z added, another for each."""
    task = make_task(folder, "autoencoder", autoencoder__latent_noise=0.3)
    seen = {}
    task.network.encoder.register_forward_hook(lambda *a: seen.update(encoded=a[2]))
    task.network.decoder.register_forward_hook(lambda *a: seen.update(decoded=a[1][0]))
    x, noise, turns = task.inputs(*batch(task))
    losses = task.objective(x, noise, turns)
    z = seen["encoded"]
    z = z / torch.sqrt(1 + (z / 5) ** 2)
    added = (seen["decoded"] - z) / 0.3
    # σ_z ε is in single precision
    torch.testing.assert_close(added, noise.double(), rtol=0, atol=1e-6)
    n = added.numel()
    assert abs(added.mean()) < 5 / n**0.5
    assert abs(added.var() - 1) < 5 * (2 / n) ** 0.5
    assert added.flatten(1).unique(dim=0).shape[0] == 8
    # and the loss is that of what was decoded
    y = task.network.decode(seen["decoded"])
    torch.testing.assert_close(losses, task.criterion(y, x[:, 0].double()), rtol=1e-12, atol=0)


def test_states_are_rotated(folder):
    r"""By longitudes of their own, coasts along with them: to circular convolutions, a turn by a
    latent cell is none."""
    config = {"autoencoder__latent_noise": 0.0, "training__autoencoder__rotations": True}
    task = make_task(folder, "autoencoder", **config)
    x, noise, turns = task.inputs(*batch(task))
    assert turns.min() >= 0
    assert turns.max() < small.W
    assert len(set(turns.tolist())) > 3
    losses, cell = task.objective(x, noise, turns), task.network.shape[-1] // noise.shape[-1]
    torch.testing.assert_close(losses, task.objective(x, noise, turns + cell), rtol=1e-9, atol=0)
    assert (losses - task.objective(x, noise, turns + 1)).abs().max() > 1e-4 * losses.max()
    for i, k in enumerate(turns.tolist()):
        seen = task.objective.departures(x, turns)[i]
        torch.testing.assert_close(seen, x[i, 0].double().roll(-k, -1), rtol=0, atol=0)


def test_departures_are_reconstructed(folder):
    r"""With normals the network sees states less these, which are their means over time."""
    from appa.data import climatology, statistics
    from appa.tasks.folders import gather
    from appa.tasks.normals import with_normals
    from appa.training.tasks import AutoencoderTask

    config, ds = small.configuration(autoencoder__normals=True), small.states()
    stats = gather(statistics.compute(ds), ds)
    stats = with_normals(config, stats, climatology.fit(ds, 0))
    task = AutoencoderTask(config, folder / "store.zarr", stats)
    x = torch.stack([task.standardizer.to_tensor(ds.isel(time=t)) for t in range(96)])
    seen = task.objective.departures(x[:, None])
    mean = x.double().mean(dim=0)
    torch.testing.assert_close(seen.double(), x - mean, rtol=0, atol=2.0**-9 + 1e-5)
    assert mean.abs().max() > 10 * 2.0**-9
    assert (seen[:, 1, torch.from_numpy(small.LAND)] == 0).all()
    # the loss is that of the states which the network gives of states
    noise, turns = torch.zeros(4, *config.latent_shape), torch.zeros(4, dtype=torch.long)
    with torch.no_grad():
        losses = task.objective(x[:4, None], noise, turns)
        expected = task.criterion(task.network(x[:4]), x[:4])
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=0)


def test_latents_are_standardized_with_their_noise(folder):
    r"""The denoiser is given (z + σ_z ε − μ) / √(s² + σ_z²) + σ_t ε'."""
    task = make_task(folder, "denoiser", autoencoder__latent_noise=0.5)
    seen = []

    class Spy(nn.Module):
        def forward(self, z, c, clock):
            seen.append((z, c, clock))
            return torch.zeros_like(z)

    task.network.backbone = Spy()
    x, clock, which = batch(task)
    _, perturbation, noise, sigma, _ = inputs = task.inputs(x, clock, which)
    losses = task.objective(*inputs)
    ds = small.latents(task.config)
    mean, std = (ds[f"latents_{k}"].values[:, None, None] for k in ("mean", "std"))
    z = (x.numpy() + 0.5 * perturbation.numpy() - mean) / np.sqrt(std**2 + 0.5**2)
    s = sigma.double().numpy()[:, None, None, None, None]
    ((given, c, told),) = seen
    noisy = z + s * noise.numpy()
    np.testing.assert_allclose(given.numpy(), noisy / np.sqrt(s**2 + 1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(c.numpy(), 10 * np.log(sigma.numpy()), rtol=1e-5)
    assert torch.equal(told, clock.double())
    # a network that says nothing: the prior's mean given the noise, z_t / (σ² + 1)
    expected = (1 / s**2 + 1) * (noisy / (s**2 + 1) - z) ** 2
    np.testing.assert_allclose(losses.numpy(), expected.mean(axis=(1, 2, 3, 4)), rtol=1e-3)


def test_noise_levels_are_those_of_the_schedule(folder):
    r"""The inverse of the schedule makes them uniform, from σ_min to σ_max."""
    task = make_task(folder, "denoiser")
    x, clock, _ = batch(task)
    sigma = torch.cat([task.inputs(x, clock, keys(0, s, 0, 8, CPU))[3] for s in range(1000)])
    assert 1e-3 <= sigma.min() < 2e-3
    assert 500 < sigma.max() <= 1e3
    t = task.network.schedule.time(sigma.double()).numpy()
    # the largest distance from the uniform distribution: exceeded with probability 1e-6
    distance = np.abs(np.sort(t) - (np.arange(8000) + 0.5) / 8000).max()
    assert distance < 2.7 / 8000**0.5


@pytest.mark.parametrize("network", ["autoencoder", "denoiser"])
def test_losses_in_mixed_precision(folder, network):
    r"""Within what bfloat16 rounds of a network's output, at any noise level."""
    task = make_task(folder, network)
    inputs = task.inputs(*batch(task))
    with torch.no_grad():
        exact = task.objective(*inputs)
        task.objective.float()
        with mixed():
            found = task.objective(*inputs)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=0.02, atol=0)


def test_gradients_are_clipped(folder):
    r"""To the norm that was asked for, in the direction they had; the norm told is that before."""
    found = []
    for clip in (None, 1e-3):
        task = make_task(folder, "denoiser", training__denoiser__clip=clip)
        trainer = Trainer(task, folder / "none", ALONE, Options(logger="none"))
        trainer.gradients()
        norm = trainer._descend()
        found.append((norm, torch.cat([p.grad.flatten() for p in trainer.parameters])))
    (norm, whole), (told, clipped) = found
    assert norm == told == pytest.approx(whole.norm().item())
    assert norm > 1e-2
    torch.testing.assert_close(clipped, whole * (1e-3 / (norm + 1e-6)), rtol=1e-9, atol=1e-15)


def test_saturated_latents_are_told(folder):
    r"""Half of the channels pushed beyond the bound: half of the latents."""
    task = make_task(folder, "autoencoder", autoencoder__latent_channels=4)
    batches = task.validation(ALONE, 8, 16)
    assert task.metrics(batches, ALONE)["saturated"] < 0.01
    with torch.no_grad():
        task.network.encoder.conv.bias[:2] = torch.tensor([100.0, -100.0])
    assert task.metrics(batches, ALONE)["saturated"] == pytest.approx(0.5, abs=0.01)
    assert not task.network.encoder._forward_hooks
