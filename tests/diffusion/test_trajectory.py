r"""Composition against the paper's algorithm, and draws against an exact covariance."""

import numpy as np
import pytest
import torch

from appa.diffusion.sampling import Noise, draw
from appa.diffusion.trajectory import TrajectoryDenoiser, compose, joints, padded_length

from .gaussian import covariance, denoiser, hours


def algorithm(d, z_t, sigma, dates, stride):
    r"""Algorithm 2 of the paper, line by line, its indices from 0."""
    length, window = z_t.shape[1], d.window
    a = (window - stride) // 2
    b = a + stride
    found = torch.full_like(z_t, torch.nan)
    at = lambda i: d(z_t[:, i : i + window], sigma, dates[i : i + window])  # noqa: E731
    found[:, :a] = at(0)[:, :a]
    for n in range((length - window) // stride + 1):
        i = n * stride
        found[:, i + a : i + b] = at(i)[:, a:b]
    found[:, length - window + b :] = at(length - window)[:, b:]
    return found


@pytest.mark.parametrize(("length", "stride"), [(6, 2), (10, 2), (12, 6), (14, 4), (8, 2)])
def test_composition_is_the_papers(length, stride):
    d = denoiser(6)
    z_t = torch.randn(2, length, 1, 1, 1, dtype=torch.float64)
    dates = hours(length)
    expected = algorithm(d, z_t, torch.tensor(0.5, dtype=torch.float64), dates, stride)
    for batch in (None, 1, 3):
        found = TrajectoryDenoiser(d, dates, stride, batch).mean(z_t, 0.5)
        assert torch.allclose(found, expected, rtol=0, atol=1e-12)


def test_members_may_have_dates_of_their_own():
    r"""Each member's windows get its own clock."""
    seen = []

    class Spy(torch.nn.Module):
        channels, shape = 1, (4, 1, 1)

        def forward(self, z, c, clock):
            seen.append(clock)
            return z

    d = denoiser(4)
    d.backbone = Spy()
    dates = np.stack([hours(6), hours(6) + np.timedelta64(5, "h")])
    TrajectoryDenoiser(d, dates, 2).mean(torch.zeros(2, 6, 1, 1, 1), 1.0)
    (clock,) = seen
    alone = [TrajectoryDenoiser(d, x, 2).clock[0] for x in dates]
    expected = [alone[m][n : n + 4] for m in (0, 1) for n in (0, 2)]
    assert torch.equal(clock, torch.stack(expected))


def test_lengths():
    assert [padded_length(n, 24, 12) for n in (1, 23, 24, 25, 36, 37)] == [24, 24, 24, 36, 36, 48]
    for n in range(1, 80):
        padded = padded_length(n, 24, 10)
        assert padded >= max(n, 24)
        assert (padded - 24) % 10 == 0
        assert padded - n < 10 or n < 24


def test_joints_are_where_another_window_gives():
    origin = torch.arange(5).view(1, 5, 1).expand(1, 5, 24)
    giver = compose(origin, 12)[0]
    changes = (giver.diff().nonzero().flatten() + 1).tolist()
    assert joints(72, 24, 12) == changes == [18, 30, 42, 54]


def test_what_does_not_fit_is_told():
    with pytest.raises(ValueError, match="do not fill 30 hours, but 36"):
        TrajectoryDenoiser(denoiser(24), hours(30), 12)
    with pytest.raises(ValueError, match="stride of 5 leaves no middle"):
        TrajectoryDenoiser(denoiser(24), hours(24), 5)


def test_draws_have_the_covariance_of_the_prior():
    r"""One window: no composition, so that the sampler's error is all there is. A sample covariance
    of n draws has standard errors of at most sqrt(2 / n) at unit variance; the sampler may add
    2 %."""
    n = 8192
    z = draw(denoiser(24, n), hours(24), 1, stride=12, steps=64, seed=0)[0, :, :, 0, 0].double()
    found = z @ z.T / n
    assert (found - covariance(24)).abs().max() < 4 * (2 / n) ** 0.5 + 0.02
    assert z.mean(1).abs().max() < 4 / n**0.5


def test_members_do_not_depend_on_each_other():
    d = denoiser(6)
    all_three = draw(d, hours(8), 3, stride=2, steps=8, seed=4)
    assert all_three.shape == (3, 8, 1, 1, 1)
    alone = draw(d, hours(8), [2], stride=2, steps=8, seed=4)
    assert torch.allclose(all_three[2], alone[0], rtol=0, atol=1e-6)
    assert not torch.allclose(all_three[2], draw(d, hours(8), [2], stride=2, steps=8, seed=5)[0])
    noise = Noise(0, range(64))((100,))
    assert torch.corrcoef(noise).fill_diagonal_(0).abs().max() < 5 / 100**0.5


@pytest.mark.parametrize("length", [1, 3, 6, 7, 13])
def test_any_length(length):
    z = draw(denoiser(6), hours(length), 2, stride=2, steps=4)
    assert z.shape == (2, length, 1, 1, 1)
    assert z.isfinite().all()
