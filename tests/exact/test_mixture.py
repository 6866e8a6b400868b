r"""Two or three modes and an observation that is not linear, against numerical integration."""

import numpy as np
import pytest

from .drawing import converged, draw
from .mixtures import MIXTURES, Mixture, Speed
from .priors import MixtureDenoiser

DRAWS = 4096
CHANCE = 3 * np.sqrt(0.25 / DRAWS)  # 2.3 points


@pytest.mark.parametrize("name", MIXTURES)
def test_prior(name):
    r"""Without observations, components are drawn in proportion."""
    m = MIXTURES[name]
    far = Mixture(m.weights, m.means, m.stds, m.function, m.y, error=1e6)
    denoiser = MixtureDenoiser(m.weights, m.means, m.stds)
    noise = np.random.default_rng(0).standard_normal((DRAWS, m.means.shape[1]))
    modes = m.modes(draw(denoiser, [None], noise, 1, 1))
    shares = np.bincount(modes, minlength=2 ** m.means.shape[1]) / DRAWS
    assert np.abs(shares - far.posterior()).max() < 0.02 + CHANCE


@pytest.mark.parametrize("name", MIXTURES)
def test_modes_in_proportion(name):
    m = MIXTURES[name]
    shares = m.drawn(DRAWS)
    assert np.abs(shares - m.posterior()).max() < 0.10, shares


def test_speed_among_many_latents():
    r"""Signs of 256 latents are a rough estimate of what two of them do; other signs at each step
    and of each member make it a good one, whatever the seed. Of 256 draws the mean is uncertain by
    a sixteenth of the standard deviation; the method's own error is another twentieth. The tangent
    alone, and signs that members share, are farther off."""
    speed = Speed(latents=256)
    mean, std = speed.posterior()
    draws = [speed.drawn(256, seed=seed) for seed in range(3)]
    for found in draws:
        assert abs(found.mean() - mean) < (3 / 16 + 0.05) * std
    found = np.concatenate(draws)
    assert abs(found.mean() - mean) < 0.1 * std
    assert abs(found.std() / std - 1) < 0.1
    assert abs(speed.drawn(256, guidance=converged(probes=0)).mean() - mean) > 0.25 * std


def test_signs_are_a_members_own():
    r"""With the same noise, what other signs change is the members' to forget: it averages out. And
    it is the same in any batch."""
    speed = Speed(latents=64)
    a, b = (speed.drawn(128, seed=0, first=first) for first in (0, 1000))
    each = (a - b).std()
    assert each > 0.02
    assert abs((a - b).mean()) < 4 * each / 128**0.5
    for batch in (1, 50):
        again = speed.drawn(6, seed=0, first=0, batch=batch)
        np.testing.assert_allclose(again, speed.drawn(6, seed=0, first=0), rtol=0, atol=1e-6)
