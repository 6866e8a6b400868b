r"""Trajectories no longer than a window, against the smoother, the filter and Bayes' rule.

Moments come from basis vectors, so nothing here is a matter of chance: tolerances are the bias of
the method, 2 %.
"""

import numpy as np
import pytest

from .affine import compare
from .cases import long, mixed, single
from .drawing import composed_draws
from .posteriors import kalman

BIAS = 0.02


def check(errors, bias=BIAS):
    for name in ("mean", "cov", "seen", "unseen", "smallest", "largest"):
        assert abs(getattr(errors, name)) < bias, (name, errors)


@pytest.mark.parametrize("memory", ["ar1", "ar2"])
@pytest.mark.parametrize("hours", [24, 9])
def test_smoother(memory, hours):
    r"""A window, and less than one: nine hours, padded."""
    x = long("dense", memory, hours, dims=4)
    check(compare(composed_draws(x).moments(), x.posterior, x.network.seen))


@pytest.mark.parametrize("memory", ["ar1", "ar2"])
def test_more_observations_than_latents(memory):
    r"""144 observations of 72 numbers, with correlated errors of 1 % and 10 %, two thirds of the
    hours observed and one number never."""
    x = mixed(memory, dims=3, count=6)
    assert len(x.network) == 2 * x.hours * 3
    check(compare(composed_draws(x).moments(), x.posterior, x.network.seen))


@pytest.mark.parametrize("memory", ["ar1", "ar2"])
def test_no_observations_give_the_prior(memory):
    x = long("none", memory, 24, dims=4)
    got = composed_draws(x).moments()
    check(compare(got, x.prior))
    np.testing.assert_array_equal(got.mean, 0)


def test_last_hour_is_the_filter():
    x = long("dense", hours=24, dims=4)
    last = slice(-4, None)
    exact = kalman(x.process, x.network)[1][-1].part(slice(0, 4))
    check(compare(composed_draws(x).moments().part(last), exact))


def test_doubling_an_error_moves_the_posterior_as_bayes_says():
    r"""One observation, :math:`y = 1`, of a number of variance :math:`v`: its mean is
    :math:`v / (v + r^2)`, its variance :math:`v r^2 / (v + r^2)`, and other numbers follow by their
    correlation with it."""
    got = {}
    for r in (0.4, 0.8):
        x = single(r)
        v, here = x.process.space[0, 0], 12 * 4
        got[r] = composed_draws(x).moments()
        gain = v / (v + r**2)
        assert abs(got[r].mean[here] / gain - 1) < BIAS
        assert abs(got[r].cov[here, here] / (v * r**2 / (v + r**2)) - 1) < BIAS
        away = here - 6 * 4 + 2  # another number, six hours before
        c = x.prior.cov[here, away] / v
        assert abs(got[r].mean[away] / (c * gain) - 1) < BIAS
    # an error twice as large, of a number with variance 0.5: from 0.758 to 0.439
    assert got[0.4].mean[48] / got[0.8].mean[48] == pytest.approx(1.14 / 0.66, rel=BIAS)
