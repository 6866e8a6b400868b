r"""The references against each other, by roads that share nothing."""

import numpy as np
import pytest
import torch

from .affine import compare
from .cases import CASES, long, mixed
from .composition import Step, chained, composed
from .mixtures import MIXTURES
from .posteriors import kalman, smooth
from .processes import DAY, HOUR, ar1, ar2, space


def test_memory_is_the_planets():
    rho = ar2(space(3)).autocorrelation(25)
    np.testing.assert_allclose(rho[[1, 24]], [HOUR, DAY], atol=1e-10)
    np.testing.assert_allclose(ar1(space(3)).autocorrelation(25)[24], DAY, atol=1e-12)


@pytest.mark.parametrize("make", [ar1, ar2])
def test_stationary_covariance_solves_the_lyapunov_equation(make):
    r"""The Yule-Walker equations give the covariance, the Lyapunov equation that of the companion
    form: hours of both agree."""
    process = make(space(3))
    _, _, p0 = process.companion()
    np.testing.assert_allclose(p0[:3, :3], process.space, atol=1e-10)
    lags = len(p0) // 3
    hours = process.covariance(lags)
    np.testing.assert_allclose(p0, hours, atol=1e-10)


@pytest.mark.parametrize("make", [ar1, ar2])
def test_covariance_of_a_simulation(make):
    r"""20,000 runs of 30 hours: their covariance is within five standard errors."""
    process, rng = make(np.eye(1)), np.random.default_rng(0)
    f, q, p0 = process.companion()
    n = 20_000
    s = np.linalg.cholesky(p0) @ rng.standard_normal((len(p0), n))
    runs = [s[0]]
    for _ in range(29):
        s = f @ s + np.sqrt(np.diag(q))[:, None] * rng.standard_normal(s.shape)
        runs.append(s[0])
    assert np.abs(np.cov(runs) - process.covariance(30)).max() < 5 * np.sqrt(2 / n)


@pytest.mark.parametrize("memory", ["ar1", "ar2"])
@pytest.mark.parametrize("case", CASES)
def test_smoother_is_conditioning(case, memory):
    x = long(case, memory)
    d = x.process.dims
    for i, hour in enumerate(smooth(x.process, x.network)):
        exact = x.posterior.part(slice(i * d, (i + 1) * d))
        np.testing.assert_allclose(hour.mean[:d], exact.mean, atol=1e-9)
        np.testing.assert_allclose(hour.cov[:d, :d], exact.cov, atol=1e-9)


def test_filter_and_forecast_are_conditioning():
    r"""The filter at the last observed hour, and what it predicts of the hours after."""
    x = long("forecast")
    d = x.process.dims
    _, after = kalman(x.process, x.network)
    for i in (23, 24, 40, 71):
        exact = x.posterior.part(slice(i * d, (i + 1) * d))
        np.testing.assert_allclose(after[i].mean[:d], exact.mean, atol=1e-9)
        np.testing.assert_allclose(after[i].cov[:d, :d], exact.cov, atol=1e-9)


def test_one_window_composed_is_the_posterior():
    r"""Up to the noise of the last level."""
    x = long("dense", hours=24)
    errors = compare(composed(x), x.posterior)
    assert errors.cov < 1e-3
    assert errors.mean < 2e-3


def test_flow_converges_at_fourth_order():
    x = long("gap", dims=1)
    fine = composed(x, steps=800)
    coarse = [compare(composed(x, steps=n), fine).cov for n in (50, 100)]
    assert 12 < coarse[0] / coarse[1] < 24
    assert compare(composed(x), fine).cov < 1e-4


@pytest.mark.parametrize("memory", ["ar1", "ar2"])
def test_a_chain_that_knows_enough_is_exact(memory):
    r"""An AR(p) given p past hours forgets the rest: hour by hour forecasts are the exact prior,
    and a window that ends where the observations do is exact."""
    p = int(memory[-1])
    x = long("none", memory, hours=36)
    first = Step(0, (), tuple(range(24)))
    later = [Step(i - p, tuple(range(i - p, i)), (i,)) for i in range(24, 36)]
    assert compare(chained(x, [first, *later]), x.posterior).cov < 1e-9
    x = long("forecast", memory, hours=72)
    hours = [Step(i - p, tuple(range(i - p, i)), (i,)) for i in range(24, 72)]
    errors = compare(chained(x, [first, *hours]), x.posterior)
    assert max(errors.cov, errors.mean) < 1e-6


def test_mixed_has_more_observations_than_latents():
    x = mixed()
    assert len(x.network) > x.hours * x.process.dims
    error = np.sqrt(np.diag(x.network.joint()[1]))
    np.testing.assert_allclose(np.unique(error.round(12)), [0.01, 0.1])
    assert 0 < x.network.seen.mean() < 1


@pytest.mark.parametrize("name", MIXTURES)
def test_weights_of_modes_by_rejection(name):
    r"""Against the prior's draws, each accepted by its likelihood."""
    m = MIXTURES[name]
    rng = np.random.default_rng(0)
    n, dims = 400_000, m.means.shape[1]
    k = rng.choice(len(m.weights), n, p=m.weights)
    z = m.means[k] + m.stds[k, None] * rng.standard_normal((n, dims))
    away = (m.y - m.function(torch.from_numpy(z)).numpy()) / m.error
    z = z[rng.random(n) < np.exp(-0.5 * (away**2).sum(axis=1))]
    shares = np.bincount(m.modes(z), minlength=2**dims) / len(z)
    assert np.abs(shares - m.posterior()).max() < 5 * np.sqrt(0.25 / len(z))
