r"""Trajectories longer than a window: three days, in windows of one."""

from functools import cache

import pytest

from .affine import compare, paired
from .cases import CASES, Case, long
from .composition import chained, composed
from .drawing import composed_draws, default_guidance, plan, sequential_draws
from .posteriors import Gaussian, kalman


@pytest.mark.parametrize("case", CASES)
def test_composition_has_its_own_moments(case):
    r"""Composed windows follow a linear flow of their own, integrated here in another way. What it
    differs from the smoother by is in the table."""
    x = long(case)
    errors = compare(composed_draws(x).moments(), composed(x), x.network.seen)
    assert max(errors.cov, errors.mean, abs(errors.seen), abs(errors.unseen)) < 0.01, errors


@cache
def drawn(case: str, memory: str) -> tuple[Case, Gaussian]:
    r"""A trajectory, and the moments of what is drawn of it window by window."""
    x = long(case, memory)
    return x, sequential_draws(x).moments()


@pytest.mark.parametrize("memory", ["ar1", "ar2"])
@pytest.mark.parametrize("case", ["dense", "forecast"])
def test_sequential(case, memory):
    x, got = drawn(case, memory)
    errors = compare(got, x.posterior, x.network.seen)
    assert max(errors.cov, abs(errors.seen), abs(errors.unseen)) < 0.03, errors
    # drawn exactly, these windows know this much
    errors = compare(got, chained(x, plan(x)), x.network.seen)
    assert max(errors.cov, errors.mean, abs(errors.seen), abs(errors.unseen)) < 0.01, errors


def test_forecast_is_the_exact_prediction():
    r"""The Kalman filter goes on without observations: two days ahead, mean within 2 % of a
    standard deviation and covariance within 3 %."""
    x, got = drawn("forecast", "ar2")
    _, after = kalman(x.process, x.network)
    for hour in (24, 36, 71):
        here = slice(2 * hour, 2 * hour + 2)
        errors = compare(got.part(here), after[hour].part(slice(0, 2)))
        assert errors.mean < 0.02
        assert errors.cov < 0.03


def test_sweeps_close_a_gap():
    r"""What later observations say of a gap comes back with the sweeps."""
    x = long("gap", "ar1", hours=48, dims=1)
    exact = [compare(chained(x, plan(x, past=2, lag=0, sweeps=n)), x.posterior) for n in (0, 4)]
    assert exact[1].cov < 0.02 < 0.2 < exact[0].cov
    got = sequential_draws(x, past=2, lag=0, sweeps=1).moments()
    assert compare(got, chained(x, plan(x, past=2, lag=0, sweeps=1))).cov < 0.01


def test_default_solver_is_enough_for_sequential():
    r"""Hours given and hours observed are solved for together, to the default's tolerance. From
    128 draws beside those of the converged solve: 1 % of chance beside the 3 %."""
    x = long("dense", hours=48, dims=1)
    near = sequential_draws(x)
    draws = sequential_draws(x, guidance=default_guidance(), noise=1e-2)
    got = paired(draws.sample, near.sample, near.size, 128)
    assert compare(got, x.posterior).cov < 0.04
