r"""Innovations of a normal prior and its exact posterior, with errors right, wrong and biased.

With :math:`S = H B H^\top` and observations whose errors have variance :math:`\tau^2` and are said
to have 1, :math:`\operatorname{cov}(y) = S + \tau^2 I =: Y` and the posterior's mean leaves
:math:`d_a = (S + I)^{-1} d_b`. Hours are independent cases, by whose scatter means are judged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from appa.data.grids import Grid
from appa.errors import DataError
from appa.evaluation.ensembles import ensemble_statistics
from appa.evaluation.innovations import (
    dressed_crps,
    hour_states,
    innovation_moments,
    innovations,
    verification,
    verification_moments,
)

from ..observations.small_space import compiled, make_space, places

GRID = Grid("gaussian", 6, 8)
SURFACE = ("2m_temperature", "mean_sea_level_pressure")
START = np.datetime64("2021-03-21T00", "ns")
HOURS, MEMBERS = 200, 6


class World:
    r"""A prior N(0, B) of standardized states, a network, and the posterior it makes."""

    def __init__(self):
        self.space = make_space(GRID, SURFACE, std=2.0)
        rng = np.random.default_rng(0)
        where = np.degrees(np.arcsin(rng.uniform(-0.9, 0.9, 24))), rng.uniform(0, 360, 24)
        names = np.repeat(SURFACE, 12)
        error = np.where(names == SURFACE[0], 1.0, 2.5)
        rows = [(0, names[k], np.nan, where[0][k], where[1][k], error[k]) for k in range(24)]
        [self.operator] = compiled(self.space, 1, rows)
        assert self.operator.linear
        phi, lam = np.radians(places(GRID))
        p = np.stack([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)], -1)
        near = np.exp(-((np.linalg.norm(p[:, None] - p, axis=-1) / 0.8) ** 2))
        self.B = np.kron([[1.0, 0.4], [0.4, 1.0]], near + 1e-6 * np.eye(48))
        basis = torch.eye(96, dtype=torch.float64).reshape(96, *self.space.shape)
        zero = self.operator(torch.zeros_like(basis[:1]))
        self.H = (self.operator(basis) - zero).T.numpy()
        self.S = self.H @ self.B @ self.H.T
        self.K = self.B @ self.H.T @ np.linalg.inv(self.S + np.eye(24))
        self.rows = self.operator.rows["variable"].to_numpy()

    def cases(self, tau=1.0, bias=0.0, spread=1.0, seed=1):
        r"""Operators, and lazily the prior's and the posterior's members and truths, by hour."""
        rng = np.random.default_rng(seed)
        root = np.linalg.cholesky(self.B)
        truth = rng.normal(size=(HOURS, 96)) @ root.T
        y = truth @ self.H.T + tau * rng.normal(size=(HOURS, 24)) + bias
        hours = START + np.arange(HOURS) * np.timedelta64(1, "h")
        zero = self.operator(torch.zeros(1, *self.space.shape, dtype=torch.float64))[0]
        operators = [
            replace(self.operator, hour=hour, y=zero + torch.from_numpy(one))
            for hour, one in zip(hours, y, strict=True)
        ]
        left = np.linalg.cholesky(self.B - self.K @ self.H @ self.B + 1e-9 * np.eye(96))

        def members(mean, factor, seed):
            draws = np.random.default_rng(seed)
            for one in mean:
                x = one + draws.normal(size=(MEMBERS, 96)) @ factor.T
                yield torch.from_numpy(x).reshape(MEMBERS, *self.space.shape)

        prior = members(np.zeros((HOURS, 96)), spread * root, seed + 1)
        posterior = members(y @ self.K.T, spread * left, seed + 2)
        return operators, prior, posterior, truth


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def close(table, hourly, name, expected, sigmas=4.0):
    r"""Whether a mean is as expected, within its standard error from independent hours."""
    error = hourly[name].std() / np.sqrt(HOURS)
    assert abs(table[name] - expected) < sigmas * error + 1e-6, (name, table[name], expected, error)


@pytest.mark.parametrize(("tau", "bias"), [(1.0, 0.0), (1.6, 0.0), (0.5, 0.0), (1.0, 1.2)])
def test_desroziers(world, tau, bias):
    r"""What is found is the matrix products' diagonal, and what is expected the nominal one's; with
    errors as they are said to be the two agree."""
    S, one = world.S, np.eye(24)
    Y = S + tau**2 * one + bias**2 * np.ones((24, 24))
    rest = np.linalg.inv(S + one)
    found = {
        "ob_found": Y + S / MEMBERS,
        "oa_found": rest @ Y @ rest + (one - rest) / MEMBERS,
        "error_found": rest @ Y,
        "background_found": Y - rest @ Y,
        "analysis_found": rest @ Y - rest @ Y @ rest,
    }
    nominal = {
        "ob_expected": (1 + 1 / MEMBERS) * S + one,
        "oa_expected": one - (1 - 1 / MEMBERS) * (one - rest),
        "error_expected": one,
        "background_expected": S,
        "analysis_expected": one - rest,
    }
    operators, prior, posterior, _ = world.cases(tau, bias)
    hourly = innovations(operators, prior, posterior)
    assert hourly.index.names == ["variable", "level", "hour"]
    table = hourly.groupby("variable").mean()  # hours have as many rows each
    for name in SURFACE:
        here = hourly.loc[name]
        assert len(here) == HOURS
        assert (here["count"] == 12).all()
        for key, matrix in (found | nominal).items():
            close(table.loc[name], here, key, np.diag(matrix)[world.rows == name].mean())
        close(table.loc[name], here, "ob_mean", bias)
        close(table.loc[name], here, "oa_mean", (bias * rest.sum(1))[world.rows == name].mean())
        for key in ("ob", "oa", "error", "background", "analysis"):
            value = table.loc[name, f"{key}_found"]
            ratio = table.loc[name, f"{key}_expected"] / value
            if tau == 1 and not bias:  # what is expected scatters less than what is found
                error = here[f"{key}_found"].std() / np.sqrt(HOURS) / value
                assert abs(ratio - 1) < 5 * error


def test_the_error_that_was_found_is_nearer(world):
    r"""Of errors larger than they are said to be, the estimate lies between the two."""
    operators, prior, posterior, _ = world.cases(tau=1.6)
    table = innovations(iter(operators), prior, posterior, by="variable")
    assert (table["count"] == 12 * HOURS).all()
    ratio = table["error_expected"] / table["error_found"]
    np.testing.assert_allclose(table["error_ratio"], ratio)
    assert ((table["error_found"] > 1.3) & (table["error_found"] < 1.6**2)).all()
    assert (table["ob_ratio"] < 0.95).all()


@pytest.mark.parametrize("spread", [1.0, 0.5, 1.7])
def test_held_out(world, spread):
    r"""The prior, which has seen nothing, with its spread right or wrong: in units of errors the
    ratio is :math:`\sqrt{((1 + 1/M) c^2 s + 1) / (s + c^2 s / M + 1)}` and the CRPS that of two
    normal distributions, whatever the number of members."""
    operators, prior, _, truth = world.cases(spread=spread)
    prior = list(prior)
    table = verification(operators, prior, physical=False, by="variable")
    hourly = verification(operators, prior, physical=False, by=("variable", "hour"))
    for name in SURFACE:
        s = np.diag(world.S)[world.rows == name]
        here = hourly.loc[name]
        predicted = spread**2 * s + 1
        expected = np.sqrt(2 / np.pi) * (np.sqrt(predicted + s + 1) - np.sqrt(2 * predicted) / 2)
        close(table.loc[name], here, "crps", expected.mean())
        found, spread_2 = s + spread**2 * s / MEMBERS, spread**2 * s
        square = here["departure"] ** 2
        error = square.std() / np.sqrt(HOURS) / square.mean() / 2
        assert table.loc[name, "departure"] == pytest.approx(
            np.sqrt(found.mean() + 1), rel=4 * error
        )
        ratio = np.sqrt(((1 + 1 / MEMBERS) * spread_2.mean() + 1) / (found.mean() + 1))
        assert table.loc[name, "ratio"] == pytest.approx(ratio, rel=5 * error)
        assert table.loc[name, "skill"] == pytest.approx(
            np.sqrt(found.mean()), rel=4 * error * (found.mean() + 1) / found.mean()
        )
        assert abs(table.loc[name, "bias"]) < 4 * here["bias"].std() / np.sqrt(HOURS)

    # in the unit, against the true error of the mean that no observation tells
    table = verification(operators, prior, by="variable")
    x = torch.stack(prior).reshape(HOURS, MEMBERS, 96).numpy()
    error = (x.mean(axis=1) - truth) @ world.H.T * world.operator.error.numpy()
    for name in SURFACE:
        square = error[:, world.rows == name] ** 2
        said = world.operator.error.numpy()[world.rows == name][0]
        # what an observation's own error adds to the scatter: 2 d e, and e² less its mean
        scatter = np.sqrt(4 * square.mean() * said**2 + 2 * said**4) / np.sqrt(12 * HOURS)
        found = table.loc[name, "skill"] ** 2
        assert abs(found - square.mean()) < 4 * scatter
        spread_found = (x @ world.H.T).var(axis=1, ddof=1)[:, world.rows == name].mean() * said**2
        assert table.loc[name, "spread"] == pytest.approx(np.sqrt(spread_found), rel=1e-5)


def test_errors_of_another_variance(world):
    r"""Given the variance that errors have, whitened, all is as expected again."""
    operators, prior, _, _ = world.cases(tau=1.6)
    variances = [np.full(24, 1.6**2)] * HOURS
    table = innovations(operators, prior, variances=variances, by="variable")
    assert "oa_mean" not in table
    operators, prior, _, _ = world.cases(tau=1.6)
    again = verification(operators, prior, variances=variances, by="variable", physical=False)
    for name in SURFACE:
        s = np.diag(world.S)[world.rows == name].mean()
        # at most 12 rows of an hour are one, with the scatter 2 of a squared normal variable
        tolerance = 4 * np.sqrt(2 / HOURS)
        assert table.loc[name, "ob_ratio"] == pytest.approx(1, rel=tolerance)
        assert again.loc[name, "ratio"] == pytest.approx(1, rel=tolerance / 2)
        assert again.loc[name, "spread"] == pytest.approx(np.sqrt(s), rel=tolerance)


def test_datasets_hour_by_hour(world):
    r"""States of a dataset, with an hour in which nothing was seen, and hours told apart."""
    times = START + np.arange(3) * np.timedelta64(1, "h")
    x = torch.randn(4, 3, *world.space.shape, generator=torch.Generator().manual_seed(0))
    ds = world.space.standardizer.to_dataset(x, times, GRID)
    operators = [
        replace(world.operator, hour=times[0]),
        None,
        replace(world.operator, hour=times[2]),
    ]
    table = innovations(operators, analysis=hour_states(ds, world.space), by="hour")
    assert list(table.index) == [times[0], times[2]]
    for t in (0, 2):
        d = world.operator.departure(x[:, t]).numpy()
        assert table.loc[times[t], "oa_found"] == pytest.approx((d.mean(0) ** 2).mean(), rel=1e-4)
        expected = (1 - 0.75 * d.var(0, ddof=1)).mean()
        assert table.loc[times[t], "oa_expected"] == pytest.approx(expected, rel=1e-4)
    with pytest.raises(DataError, match="has no 2021-03-25T00"):
        list(hour_states(ds, world.space, [START + np.timedelta64(4, "D")]))
    with pytest.raises(DataError, match="end after 2 hours"):
        innovations(operators, hour_states(ds, world.space, times[:2]))
    with pytest.raises(DataError, match="'variable'"):
        innovations(operators, hour_states(ds, world.space), by="variables")
    with pytest.raises(DataError, match="no hour"):
        innovations([None] * 3, hour_states(ds, world.space))
    with pytest.raises(DataError, match="2 members"):
        innovation_moments(np.zeros((1, 3)))
    with pytest.raises(DataError, match="neither"):
        innovation_moments()


def test_levels_and_what_is_undefined():
    r"""Levels are groups, none is a group too, and a departure that is not a number is left out."""
    space = make_space(GRID, SURFACE[:1], ("temperature",), (500, 850))
    rows = [(0, "temperature", level, 10.0, 20.0, 1.0) for level in (500, 850)]
    operators = compiled(space, 1, [*rows, (0, SURFACE[0], np.nan, 10.0, 20.0, 1.0)])
    x = torch.zeros(2, *space.shape)
    x[1, 2] = torch.nan  # the second level
    table = verification(operators, [x])
    assert set(table.index.get_level_values("variable")) == {"temperature", SURFACE[0]}
    assert table.loc[("temperature", 500.0), "count"] == 1
    assert ("temperature", 850.0) not in table.index
    assert table.loc[SURFACE[0]].index.isna().all()


# ---------------------------------------------------------------- the dressed CRPS


@pytest.mark.parametrize("members", [2, 3, 10])
def test_mixtures_of_another_library(members):
    r"""`scoringrules` has :math:`M^2` pairs, of which M are of a member with itself; the mean of a
    folded normal distribution is that of `scipy`."""
    sr = pytest.importorskip("scoringrules", reason="the extra 'dev' is not installed")
    rng = np.random.default_rng(members)
    d, s = rng.normal(0, 2, (members, 40)), rng.uniform(0.2, 2, 40)
    whole = sr.crps_mixnorm(np.zeros(40), -d.T, np.tile(s[:, None], members), backend="numpy")
    first = stats.foldnorm.mean(np.abs(d) / s, scale=s).mean(axis=0)
    itself = 2 * s / np.sqrt(np.pi)  # of the difference of two errors
    pairs = 2 * members**2 * (first - whole) - members * itself
    expected = first - pairs / (2 * members * (members - 1))
    np.testing.assert_allclose(dressed_crps(d, s**2), expected, rtol=0, atol=1e-10)
    # without errors, members as they are
    plain = ensemble_statistics(d)["crps"]
    np.testing.assert_allclose(dressed_crps(d, 0.0), plain, rtol=0, atol=1e-12)
    one = sr.crps_normal(np.zeros(40), -d[0], s)
    np.testing.assert_allclose(dressed_crps(d[:1], s**2), one, rtol=0, atol=1e-12)


def test_without_the_error_a_perfect_ensemble_seems_too_sure():
    rng = np.random.default_rng(0)
    n, m = 20_000, 5
    d = rng.normal(size=n) * 1.0 + rng.normal(size=n) - rng.normal(size=(m, n))
    for variance, expected in ((1.0, 1.0), (1e-12, np.sqrt(1.2 / 2.2))):
        found = verification_moments(d, variance)
        ratio = np.sqrt(found["expected"].mean() / found["square"].mean())
        assert ratio == pytest.approx(expected, rel=4 / np.sqrt(2 * n) * 1.2)
