r"""Statistics of trajectories against processes whose answers are known, and draws of an exact
denoiser."""

from __future__ import annotations

import json
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import xarray as xr

from appa.diffusion.sampling import draw
from appa.errors import DataError
from appa.evaluation.prior import SOURCES, score_prior, summarize
from appa.evaluation.streaming import Climate, Domain
from appa.evaluation.trajectories import Trajectories, jackknife
from appa.observations.representation import Representation
from appa.progress import progress

from .worlds import (
    GRID,
    LAND,
    MEAN,
    NAMES,
    SPREAD,
    STD,
    Identity,
    climatology,
    dataset,
    memory,
    model,
    season,
    stretches,
    untrained,
)

pytest.importorskip("ducc0")

RHO = 0.9
AREA = GRID.weights[:, None] * np.ones(GRID.shape) / (GRID.weights.sum() * 16)
POINTS = 1 / (AREA**2).sum()  # how many equal areas would average as well


def summed(x: np.ndarray, times: np.ndarray, batch: int = 5) -> Trajectories:
    r"""Anomalies (N, L, 4, H, W) about the season, summed up in parts."""
    domain = Domain(model())
    found = Trajectories(domain, Climate(climatology(), domain), x.shape[1])
    x = x + season(times)[..., None, None, None]
    for k in range(0, len(x), batch):
        found.update(torch.from_numpy(x[k : k + batch]).float(), times[k : k + batch])
    return found


def test_autocorrelation_of_noise_with_memory():
    r"""ρ^τ, within four standard errors. The jackknife's error is that of a correlation, (1 − ρ²)²
    over the independent values, to which those of one hour belong."""
    x, times = memory(40, 12, RHO, 0), stretches(40, 12)
    value, error = summed(x, times).autocorrelation()
    lags = np.arange(12)
    assert value.shape == (4, 12)
    assert (abs(value - RHO**lags) < 4 * error + 1e-6).all()
    # of the last lag there is one pair of hours in a trajectory
    expected = (1 - RHO**22) / np.sqrt(40 * POINTS)
    assert error[[0, 2, 3], -1] == pytest.approx(expected, rel=0.4)


def test_autocorrelation_of_white_noise_and_of_what_stands_still():
    times = stretches(20, 6)
    value, error = summed(memory(20, 6, 0.0, 1), times).autocorrelation()
    np.testing.assert_allclose(value[:, 0], 1, rtol=1e-6)
    assert (abs(value[:, 1:]) < 4 * error[:, 1:]).all()
    pairs = 6 - np.arange(1, 6)  # of hours in a trajectory
    np.testing.assert_allclose(
        error[[0, 2, 3], 1:].mean(0), (20 * POINTS * pairs) ** -0.5, rtol=0.4
    )
    still = np.repeat(memory(20, 1, 0.0, 2), 6, axis=1)
    np.testing.assert_allclose(summed(still, times).autocorrelation()[0], 1, rtol=1e-5)


def test_autocorrelation_weighs_by_area():
    r"""Half of the rows stand still, the others change sign every hour."""
    times, still = stretches(8, 4), np.arange(8) < 3
    pattern = memory(8, 1, 0.0, 3)
    sign = np.where(still[None, :, None], 1.0, ((-1.0) ** np.arange(4))[:, None, None])
    x = pattern * sign[None, :, None]
    value, _ = summed(x, times).autocorrelation()
    square = (pattern[:, 0] ** 2 * AREA).sum((0, 3))  # (4, H)
    for k in (0, 2, 3):
        share = square[k, still].sum() / square[k].sum()
        expected = [1, 2 * share - 1, 1, 2 * share - 1]
        np.testing.assert_allclose(value[k], expected, atol=1e-5)


def test_variance_hour_by_hour():
    r"""An amplitude that grows, known exactly; the error is the mean's."""
    growth = np.linspace(1, 2, 6)
    pattern = memory(10, 1, 0.0, 4)
    x = pattern * growth[:, None, None, None]
    value, error = summed(x, stretches(10, 6)).variance()
    each = (pattern[:, 0, 2] ** 2 * AREA).sum((-2, -1))
    np.testing.assert_allclose(value[2], each.mean() * growth**2, rtol=1e-5)
    np.testing.assert_allclose(error[2], each.std(ddof=1) / np.sqrt(10) * growth**2, rtol=1e-4)


def test_tendencies_inside_and_across_joints():
    r"""A slope of 0.1 an hour, and jumps of 0.3 more at two joints."""
    hours, joints = 24, [9, 15]
    line = 0.1 * np.arange(hours) + 0.3 * (np.arange(hours)[:, None] >= joints).sum(1)
    times = np.broadcast_to(np.datetime64("2004-03-01T00", "h"), (6, hours))  # no season between
    found = summed(line[:, None, None, None] * np.ones((6, hours, 4, *GRID.shape)), times)
    tendency = found.changes(1)
    assert np.isnan(tendency[:, 0]).all()
    expected = np.where(np.isin(np.arange(1, hours), joints), 0.4, 0.1)
    np.testing.assert_allclose(tendency[:, 1:], np.tile(expected, (4, 1)), rtol=1e-4)
    np.testing.assert_allclose(found.across(1, joints)[0], 4, rtol=1e-4)
    np.testing.assert_allclose(found.across(1, joints)[1], 0, atol=1e-5)
    # curvature is 0 but before and after a jump
    curvature = found.changes(2)
    assert np.isnan(curvature[:, [0, -1]]).all()
    beside = [8, 9, 14, 15]
    np.testing.assert_allclose(curvature[:, beside], 0.3, rtol=1e-4)
    rest = np.setdiff1d(np.arange(1, hours - 1), beside)
    assert (curvature[:, rest] < 1e-6).all()
    assert np.isnan(found.across(1, [])[0]).all()


def test_noise_has_no_joints():
    r"""Tendencies of noise with memory, √(2 − 2ρ) everywhere."""
    found = summed(memory(30, 16, RHO, 5), stretches(30, 16))
    value, error = found.across(1, [6, 10])
    assert (abs(value - 1) < 4 * error).all()
    assert (error < 0.02).all()
    # the season changes by less than 1e-3 an hour
    np.testing.assert_allclose(found.changes(1)[:, 1:], np.sqrt(2 - 2 * RHO), rtol=0.06)


def test_moments_at_each_point():
    times = stretches(9, 5)
    x = SPREAD * memory(9, 5, RHO, 6)
    found = summed(x, times)
    whole = x + season(times)[..., None, None, None]
    mean, std, bias, weather = found.moments()
    np.testing.assert_allclose(mean, whole.mean((0, 1)), atol=1e-6)
    np.testing.assert_allclose(std, whole.std((0, 1)), atol=1e-5)
    keep = [0, 2, 3]  # the climate of SST is 0 over land
    np.testing.assert_allclose(bias[keep], x.mean((0, 1))[keep], atol=1e-6)
    np.testing.assert_allclose(weather[keep], x.std((0, 1))[keep], atol=1e-5)
    for half in (0, 1):
        np.testing.assert_allclose(found.moments(half)[0], whole[half::2].mean((0, 1)), atol=1e-6)
    assert found.count == 9
    example = MEAN[:, None, None] + STD[:, None, None] * whole[0, 0]
    np.testing.assert_allclose(found.example[0], example[0], rtol=1e-5)  # type: ignore[index]
    assert np.isnan(found.example[1][LAND]).all()  # type: ignore[index]
    assert found.example_time == times[0, 0]


def test_land_does_not_count_in_sst():
    times, x = stretches(6, 5), memory(6, 5, RHO, 7)
    other = x.copy()
    other[:, :, 1, LAND] = 50.0
    one, two = summed(x, times), summed(other, times)
    for a, b in (
        (one.autocorrelation(), two.autocorrelation()),
        (one.variance(), two.variance()),
        (one.across(1, [3]), two.across(1, [3])),
        ((one.steps(),), (two.steps(),)),
    ):
        for value, same in zip(a, b, strict=True):
            np.testing.assert_array_equal(value, same)


def test_differences_between_neighbours():
    r"""A sawtooth climbs 15 steps and falls once, at the seam."""
    x = np.broadcast_to(np.arange(16.0), (2, 3, 4, *GRID.shape))
    steps = summed(x, stretches(2, 3)).steps()
    np.testing.assert_allclose(steps[:, :-1], 1, rtol=1e-4)
    np.testing.assert_allclose(steps[:, -1], 225, rtol=1e-5)


def test_jackknife():
    r"""Of a mean it is the standard error; of a ratio, that of the delta method."""
    rng = np.random.default_rng(8)
    values = rng.standard_normal((50, 3))
    mean, error = jackknife(values, lambda m: m)
    np.testing.assert_allclose(mean, values.mean(0))
    np.testing.assert_allclose(error, values.std(0, ddof=1) / np.sqrt(50))
    pair = np.stack([3 + values[:, 0], 5 + values[:, 1]], -1)
    ratio, error = jackknife(pair, lambda m: m[..., 0] / m[..., 1])
    a, b = pair.mean(0)
    delta = np.std(pair[:, 0] / b - a * pair[:, 1] / b**2, ddof=1) / np.sqrt(50)
    assert ratio == pytest.approx(a / b)
    assert error == pytest.approx(delta, rel=0.05)
    assert np.isnan(jackknife(values[:1], lambda m: m)[1]).all()


@pytest.fixture(scope="module")
def store() -> xr.Dataset:
    r"""Noise with memory about the season, in stretches of 16 hours of two years."""
    times = stretches(36, 16, days=19)
    x = SPREAD * memory(36, 16, RHO, 9) + season(times)[..., None, None, None]
    return dataset(x.reshape(-1, 4, *GRID.shape), times.ravel())


@pytest.fixture(scope="module")
def scores(store) -> xr.Dataset:
    return score_prior(
        model(),
        store,
        climatology=climatology(),
        members=36,
        hours=(8, 16),
        channels=NAMES,
        batch=12,
        mode="composed",
    )


def test_draws_of_an_exact_prior(scores):
    r"""Draws of the truth's own process about the season of their dates agree with it: in one
    window as well as the sampler does, 2 % of the variance."""
    one = scores.sel(length=8)
    assert int(one["trajectories"]) == 36
    rho = one["autocorrelation"].sel(lag=slice(1, 7))
    error = one["autocorrelation_error"].sel(lag=slice(1, 7))
    for source in ("truth", "draws"):
        gap = abs(rho.sel(source=source) - RHO ** rho["lag"])
        assert (gap < 4 * error.sel(source=source)).all()
    variance = one["variance"].sel(hour=slice(0, 7))
    expected = one["weather"] ** 2
    found = (variance.mean("hour") / expected).sel(source="draws")
    np.testing.assert_allclose(found, 1, atol=0.02 + 4 * np.sqrt(2 / (36 * POINTS)))
    # maps differ by no more than halves of the truth suggest
    draws = one.sel(source="draws")
    assert (draws["mean_distance"] < 1.3 * one["mean_expected"]).all()
    assert (draws["std_distance"] < 1.3 * one["std_expected"]).all()
    np.testing.assert_allclose(draws["std_ratio"], 1, atol=0.05)


def test_what_the_decoder_cannot_express_is_drawn(store, scores):
    r"""Noise of its own variance and memory, here none from hour to hour, joins the draws: at each
    point v becomes v + s², and ρ v / (v + s²) remains of the correlation of an hour."""
    one, size = model(), 0.3
    std = np.full((4, *GRID.shape), size)
    std[NAMES.index("sst"), LAND] = 0
    channels = Domain(one).channels
    one.representation = Representation.of(GRID, channels, std, [1.0, 0.0, 0.0], 500.0)
    told = {"climatology": climatology(), "members": 36, "hours": (8,), "channels": NAMES}
    noisy = score_prior(one, store, batch=12, **told).sel(length=8, source="draws")
    bare = score_prior(one, store, batch=12, residual=False, **told).sel(length=8)
    xr.testing.assert_identical(
        bare["variance"], scores["variance"].sel(length=8, hour=slice(0, 7))
    )
    bare = bare.sel(source="draws")
    v, found = bare["variance"].mean("hour"), noisy["variance"].mean("hour")
    error = noisy["variance_error"].mean("hour") + bare["variance_error"].mean("hour")
    assert (abs(found - v - size**2) < 4 * error).all()
    rho = bare["autocorrelation"].sel(lag=1) * v / (v + size**2)
    error = noisy["autocorrelation_error"].sel(lag=1)
    assert (abs(noisy["autocorrelation"].sel(lag=1) - rho) < 4 * error).all()


def test_reconstructions_of_an_identity_are_the_truth(scores):
    truth, again = (scores.sel(source=s, drop=True) for s in ("truth", "reconstruction"))
    for name in ("autocorrelation", "variance", "tendency", "spectrum", "steps", "std"):
        np.testing.assert_array_equal(truth[name], again[name])
    assert (again["mean_distance"] == 0).all()


def test_composition_shows_where_windows_join(scores):
    r"""Windows of 8 at a stride of 4 give 16 hours: joints at 6 and 10. Composing independent
    windows loses variance and roughens joints, as known; the truth has neither."""
    assert scores["hour"][scores["joint"].sel(length=16) == 1].values.tolist() == [6, 10]
    assert float(scores["joint"].sel(length=8).sum()) == 0
    long = scores.sel(length=16)
    error = long["tendency_across_error"]
    assert (
        abs(long["tendency_across"] - 1).sel(source="truth") < 4 * error.sel(source="truth")
    ).all()
    rough = (long["tendency_across"] - 1 - 4 * error).sel(source="draws")
    assert (rough > 0).all()
    ratio = long["variance"].mean("hour")
    assert (ratio.sel(source="draws") < ratio.sel(source="truth")).all()
    assert np.isnan(scores["tendency_across"].sel(length=8)).all()
    assert np.isnan(scores["variance"].sel(length=8, hour=slice(8, None))).all()


def test_windows_one_after_the_other_lose_nothing(store):
    r"""Given the last hours of the window before, which say all there is to say of what a process
    of first order does next: by default longer draws keep their variance, memory and tendencies.
    Windows of 8 that give the next 4 reach hour 8, 12 and 16."""
    told = {"climatology": climatology(), "members": 24, "hours": (16,), "channels": NAMES}
    long = score_prior(model(), store, batch=12, steps=32, **told).sel(length=16)
    assert long.attrs["mode"] == "sequential"
    assert long["hour"][long["joint"] == 1].values.tolist() == [8, 12]
    draws = long.sel(source="draws")
    variance = draws["variance"].mean("hour") / long["weather"] ** 2
    np.testing.assert_allclose(variance, 1, atol=0.02 + 4 * np.sqrt(2 / (24 * POINTS)))
    gap = abs(draws["autocorrelation"] - RHO ** draws["lag"]).sel(lag=slice(1, 12))
    assert (gap < 0.02 + 4 * draws["autocorrelation_error"].sel(lag=slice(1, 12))).all()
    rough = abs(draws["tendency_across"] - 1)
    assert (rough < 0.02 + 4 * draws["tendency_across_error"]).all()


def test_summary(scores):
    told = summarize(scores)
    assert told.keys() == {"8", "16"}
    assert told["8"]["autocorrelation_gap"]["draws"] < 0.05
    assert told["8"]["autocorrelation_gap"]["reconstruction"] == 0
    assert set(told["16"]["autocorrelation"]["t2m"]["6"]) == {*SOURCES, "error"}
    assert "12" in told["16"]["autocorrelation"]["t2m"]
    assert "12" not in told["8"]["autocorrelation"]["t2m"]
    assert told["16"]["variance_by_hour"]["least"] < 1
    assert "tendency_across" in told["16"]
    assert "tendency_across" not in told["8"]
    json.dumps(told)


def test_draws_are_for_the_dates_of_the_windows(store, scores):
    r"""The first member, drawn by itself."""
    first = scores["example_time"].values[0]
    one, hours = model(), first + np.arange(8) * np.timedelta64(1, "h")
    z = draw(one.denoiser, hours, [0], stride=4, seed=0, steps=one.config.sampling.steps)
    expected = MEAN[0] + STD[0] * z[0, 0, 0].numpy()
    found = scores["example"].sel(length=8, source="draws", mapped="t2m")
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    truth = store["2m_temperature"].sel(time=first)
    found = scores["example"].sel(length=8, source="truth", mapped="t2m")
    np.testing.assert_allclose(found, truth, rtol=1e-6)


def test_one_bar_counts_all_there_is_to_draw(store, monkeypatch):
    r"""1 and 3 windows for each of 5 members, 2 steps each; the last batch has one member."""
    bars = []

    @contextmanager
    def shown(*what):
        with progress(*what) as p:
            bars.append(p)
            yield p

    monkeypatch.setattr("appa.evaluation.prior.progress", shown)
    monkeypatch.setattr("appa.tasks.prior.progress", shown)
    options = {"members": 5, "hours": [8, 16], "stride": 4, "steps": 2, "batch": 4}
    for mode in ("composed", "sequential"):  # one after the other they are as many here
        told = {"climatology": climatology(), "channels": ["t2m"], "mode": mode}
        score_prior(model(), store, **told, **options)
    assert [(p.done, p.total) for p in bars] == [(40, 40)] * 2


def test_a_bad_prior_is_seen(store):
    r"""A memory that is too short and half the spread; and a seam."""
    wall = torch.zeros(GRID.shape)
    wall[:, -1] = 1.0
    told = []
    for spoil in (lambda z: z, lambda z: z + wall):
        bad = model(Identity(spoil), rho=0.5)
        bad.denoiser.variance *= 0.25  # type: ignore[operator]
        found = score_prior(
            bad, store, climatology=climatology(), members=12, hours=[8], channels=["t2m"], batch=12
        )
        told.append(summarize(found)["8"])
    rho = told[0]["autocorrelation"]["t2m"]["1"]
    assert rho["truth"] == pytest.approx(0.9, abs=0.02)
    assert rho["draws"] == pytest.approx(0.5, abs=0.04)
    assert told[0]["std_ratio"]["t2m"] == pytest.approx(0.5, abs=0.05)
    for name in ("seam_draws", "seam_reconstruction"):
        assert told[1][name]["seam"] > 1.5 * told[1][name]["high"]
        assert told[0][name]["seam"] < 1.2


def test_refusals(store):
    with pytest.raises(DataError, match="anomalies need a climatology"):
        score_prior(model(), store, climatology=None)
    with pytest.raises(DataError, match="no window of 24 hours"):
        score_prior(model(), store, climatology=climatology(), hours=[24])
    with pytest.raises(DataError, match="trajectories of no hours, expected 2 or more"):
        score_prior(model(), store, climatology=climatology(), hours=[])


def test_the_shortest_trajectories(store):
    r"""Two hours have a change between them, and no curvature."""
    options = {"climatology": climatology(), "members": 4, "hours": [2], "channels": ["t2m"]}
    told = summarize(score_prior(model(), store, batch=4, **options))["2"]
    assert told["autocorrelation"]["t2m"]["1"]["truth"] == pytest.approx(RHO, abs=0.05)
    assert np.isfinite(told["tendency_ratio"]["t2m"])


def test_networks(store):
    r"""Networks with random weights run the same way, in any batches."""
    real = untrained()
    options = {"climatology": climatology(), "members": 3, "hours": [4, 12], "steps": 4}
    one, two = (score_prior(real, store, batch=b, decode=5, **options) for b in (1, 3))
    for name in ("autocorrelation", "variance", "std", "spectrum"):
        np.testing.assert_allclose(one[name], two[name], rtol=1e-3, atol=1e-5)
    assert one["channel"].values.tolist() == list(NAMES)
    assert one["mapped"].values.tolist() == ["t2m", "z500", "z850"]
