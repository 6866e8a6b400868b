r"""Schedule and denoiser against azula, exact means and their limits."""

import azula.noise
import numpy as np
import pytest
import torch

from appa.diffusion.denoiser import as_clock
from appa.diffusion.schedule import RectifiedSchedule

from ..nn.mixed import mixed
from .gaussian import covariance, denoiser, hours


def test_schedule_is_the_quotient_of_azulas():
    t = torch.linspace(0, 1, 101, dtype=torch.float64)
    alpha, sigma = azula.noise.RectifiedSchedule(alpha_min=1e-3, sigma_min=1e-3)(t)
    ours = RectifiedSchedule(1e-3, 1e3)
    assert torch.allclose(ours.sigma(t), sigma / alpha, rtol=1e-12)
    assert torch.equal(ours(t)[0], torch.ones_like(t))
    assert ours.sigma(t)[[0, -1]].tolist() == pytest.approx([1e-3, 1e3])
    assert torch.allclose(ours.time(ours.sigma(t)), t, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sigma", [1e-3, 0.3, 1.0, 40.0, 1e3])
def test_parametrization_gives_the_mean(sigma):
    r"""With the ideal network, the denoiser is the Gaussian's posterior mean."""
    d = denoiser(6)
    z_t = (1 + sigma**2) ** 0.5 * torch.randn(
        3, 6, 1, 1, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    cov = covariance(6)
    eye = torch.eye(6, dtype=torch.float64)
    expected = cov @ torch.linalg.solve(cov + sigma**2 * eye, z_t.flatten(2))
    found = d(z_t, torch.tensor(sigma, dtype=torch.float64), hours(6)).flatten(2)
    assert torch.allclose(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sigma", [1e-3, 1.0, 900.0])
def test_half_precision_gives_the_mean(sigma, dtype):
    r"""Windows in half precision: the network's output and the sum are rounded, nothing else."""
    d = denoiser(6)
    z_t = (1 + sigma**2) ** 0.5 * torch.randn(
        3, 6, 1, 1, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    z_t = z_t.to(dtype)
    expected = d(z_t.double(), sigma, hours(6))
    found = d(z_t, sigma, hours(6))
    assert found.dtype == dtype
    # the network sees its input rounded, and with strong noise the mean is a small difference
    rounding = 4 * torch.finfo(dtype).eps * (1 + 1 / (1 + sigma**2) ** 0.5)
    assert (found - expected).abs().max() < rounding * expected.abs().max()


def test_mixed_precision_changes_no_loss():
    r"""Nothing beside the network is a product that would be rounded."""
    d = denoiser(6)
    generator = torch.Generator().manual_seed(0)
    z, noise = torch.randn(2, 4, 6, 1, 1, 1, generator=generator)
    sigma = torch.tensor([1e-3, 0.5, 3.0, 900.0])
    exact = d.loss(z.double(), sigma.double(), hours(6), noise.double())
    network = d.backbone.forward

    def alone(z, c, clock):
        with torch.autocast("cpu", enabled=False):
            return network(z, c, clock)

    d.backbone.forward = alone
    with mixed():
        found = d.loss(z, sigma, hours(6), noise)
    # with σ = 1e-3, what is left of the rounding of z, 6e-8, is divided by it
    torch.testing.assert_close(found.double(), exact, rtol=1e-3, atol=0)


def test_loss_is_weighted_by_its_formula():
    d = denoiser(6)
    generator = torch.Generator().manual_seed(0)
    z, noise = torch.randn(2, 4, 6, 1, 1, 1, dtype=torch.float64, generator=generator)
    sigma = torch.tensor([1e-3, 0.5, 3.0, 900.0], dtype=torch.float64)
    found = d.loss(z, sigma, hours(6), noise)
    for b, s in enumerate(sigma):
        error = d((z[b] + s * noise[b])[None], s, hours(6))
        expected = (1 / s**2 + 1) * (error[0] - z[b]).square().mean()
        assert found[b].item() == pytest.approx(expected.item(), rel=1e-9)


def test_no_loss_is_below_that_of_the_ideal():
    r"""Its expectation is :math:`(1 / \sigma^2 + 1) \, \mathrm{tr}(\Sigma - \Sigma (\Sigma +
    \sigma^2 I)^{-1} \Sigma) / W`, here within 4 standard errors."""
    d, n = denoiser(6), 4096
    generator = torch.Generator().manual_seed(0)
    cov = covariance(6)
    z = torch.randn(n, 6, dtype=torch.float64, generator=generator) @ torch.linalg.cholesky(cov).T
    noise = torch.randn(n, 6, dtype=torch.float64, generator=generator)
    sigma = torch.tensor(0.7, dtype=torch.float64)
    losses = d.loss(z.view(n, 6, 1, 1, 1), sigma.expand(n), hours(6), noise.view(n, 6, 1, 1, 1))
    rest = cov - cov @ torch.linalg.solve(cov + sigma**2 * torch.eye(6), cov)
    expected = (1 / sigma**2 + 1) * rest.trace() / 6
    assert abs(losses.mean() - expected) < 4 * losses.std() / n**0.5


def test_dates_in_any_form_are_the_same_clock():
    z = torch.zeros(2, 3, 1, 1, 1)
    dates = np.array(["2020-12-31T23", "2021-01-01T00", "2021-01-01T01"], "datetime64[h]")
    integers = np.array([[2020, 12, 31, 23], [2021, 1, 1, 0], [2021, 1, 1, 1]])
    clock = as_clock(dates, z)
    assert clock.shape == (2, 3, 4)
    for other in (integers, torch.from_numpy(integers), clock, np.stack((dates, dates))):
        assert torch.equal(as_clock(other, z), clock)
    # sine and cosine of the year, then of the day
    share = (8784 - 1) / 8784
    angles = 2 * np.pi * np.array([share, share, 23 / 24, 23 / 24])
    expected = [np.sin(angles[0]), np.cos(angles[1]), np.sin(angles[2]), np.cos(angles[3])]
    assert clock[0, 0].tolist() == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError, match="3 dates for windows of 4"):
        as_clock(dates, torch.zeros(2, 4, 1, 1, 1))


# What cannot be meant


def test_noise_levels_in_any_of_their_shapes():
    d, z_t = denoiser(6), torch.ones(2, 6, 1, 1, 1, dtype=torch.float64)
    sigma = torch.tensor([0.5, 2.0], dtype=torch.float64)
    expected = d(z_t, sigma, hours(6))
    assert torch.equal(d(z_t, sigma.view(2, 1, 1, 1, 1), hours(6)), expected)
    assert torch.equal(d(z_t, 0.5, hours(6))[0], expected[0])
    assert torch.equal(d(z_t, np.array([0.5, 2.0]), hours(6)), expected)
    mapped = torch.func.vmap(lambda s: d(z_t[:1], s, hours(6))[0])(sigma)
    assert torch.allclose(mapped, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("sigma", "told"),
    [
        (0.0, "sigma_t is 0, expected noise levels above 0"),
        (torch.tensor([1.0, -1.0]), "sigma_t is -1"),
        (torch.tensor([1.0, torch.nan]), "sigma_t is nan"),
        (torch.ones(3), r"sigma_t has shape \(3,\), expected \(\), \(2,\) or \(2, 1, 1, 1, 1\)"),
        (torch.ones(2, 6, 1, 1, 1), r"sigma_t has shape \(2, 6, 1, 1, 1\)"),
    ],
)
def test_noise_levels_that_are_none(sigma, told):
    with pytest.raises(ValueError, match=told):
        denoiser(6)(torch.ones(2, 6, 1, 1, 1), sigma, hours(6))


def test_the_authors_dates_as_floats_are_no_clock():
    dates = torch.tensor([[2021, 3, 21, hour] for hour in range(6)])
    z = torch.ones(2, 6, 1, 1, 1)
    assert as_clock(dates, z).abs().max() <= 1
    with pytest.raises(ValueError, match=r"found 2021; give .* as integers: dates.long\(\)"):
        as_clock(dates.float(), z)
    with pytest.raises(ValueError, match=r"the clock has shape \(6, 3\)"):
        as_clock(torch.zeros(6, 3), z)


@pytest.mark.parametrize("shape", [(2, 8, 1, 1, 1), (6, 1, 1, 1), (2, 6, 1, 1, 2)])
def test_windows_of_other_shapes(shape):
    with pytest.raises(ValueError, match=r"expected windows .* = \(B, 6, 1, 1, 1\)"):
        denoiser(6)(torch.ones(shape), 1.0, hours(6))
