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
    make it a good one. The tolerance is a fifth of the exact standard deviation, which the tangent
    alone does not meet."""
    speed = Speed(latents=256)
    mean, std = speed.posterior()
    found = speed.drawn(512)
    assert abs(found.mean() - mean) < 0.2 * std
    assert abs(found.std() / std - 1) < 0.1
    assert abs(speed.drawn(512, guidance=converged(probes=0)).mean() - mean) > 0.25 * std
