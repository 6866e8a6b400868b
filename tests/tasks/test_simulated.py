r"""Simulations with the exact denoiser of a Gaussian prior: its sampler passes, wrong ones fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr

from appa.errors import AppaError, DataError
from appa.evaluation.budget import error_budget_table
from appa.evaluation.simulation import summarize
from appa.observations.networks import Network
from appa.tasks import increments
from appa.tasks.experiments import error_budget, variations
from appa.tasks.increments import single_observation
from appa.tasks.model import Model
from appa.tasks.settings import Settings
from appa.tasks.simulated import distort, simulation_based_calibration, synthesize

from ..evaluation import worlds

WINDOW, HOURS, RHO, SPREAD, START = 4, 2, 0.9, 0.4, "2004-01-03T00"
pytestmark = pytest.mark.filterwarnings("ignore:the model does not know what its decoder")


class Linear(worlds.Identity):
    r"""Latents that are states, one of a point; their neighbours' too, where they are mixed."""

    at_once = 64

    def __init__(self, mixed: float = 0.0):
        super().__init__()
        self.mixed = mixed

    def decode(self, z):
        return z + self.mixed * torch.roll(z, 1, -1)

    def linearize(self, z):
        return self.decode(z), self.decode


def world(mixed: float = 0.0) -> Model:
    config = worlds.config(
        WINDOW, latent_noise=0.0, hidden_channels=[4], decoder_channels=[4], decoder_blocks=1
    )
    denoiser = worlds.Gaussian(WINDOW, RHO)
    denoiser.variance = torch.full(worlds.GRID.shape, SPREAD**2)  # few eigenvalues, quick solves
    return Model(
        config,
        Linear(mixed),  # type: ignore[arg-type]
        denoiser,  # type: ignore[arg-type]
        torch.zeros(4),
        torch.ones(4),
        worlds.statistics(),
    )


def network(noise: float = 0.3) -> Network:
    r"""A station at every point, which sees 2 m temperature."""
    latitude, longitude = np.meshgrid(worlds.GRID.latitude, worlds.GRID.longitude, indexing="ij")
    places = {"latitude": latitude.ravel(), "longitude": longitude.ravel(), "elevation": 0.0}
    stations = pd.DataFrame({"station": [f"s{i}" for i in range(latitude.size)]} | places)
    return Network("every point", stations, variables=("2m_temperature",), noise=noise)


@pytest.fixture(scope="module")
def model() -> Model:
    return world()


def settings(model: Model, **changes) -> Settings:
    exact = {"steps": 24, "iterations": 30, "tolerance": 1e-3, "representation": "none"}
    return Settings.of(model.config, **(exact | changes))


def calibrated(model: Model, count: int, **options):
    dates = [START] * count
    given = {"hours": HOURS, "members": 7, "settings": settings(model), "seed": 3}
    given["truths"] = settings(model, steps=24)
    return simulation_based_calibration(model, network(), dates, **(given | options))


def exact_misfit(told: float) -> tuple[float, float]:
    r"""The members' misfit over the truth's where errors are told so many times as large, and the
    deviation of the ratio over simulations, by the Kalman filter of two hours at a point.

    With :math:`K = P (P + \tau^2 R)^{-1}` the members' departures :math:`d` from :math:`y` have the
    mean :math:`(I - K) (y - \mu)` and the covariance :math:`C = (I - K) P`.
    """
    prior = SPREAD**2 * RHO ** np.abs(np.subtract.outer(np.arange(HOURS), np.arange(HOURS)))
    error, points, members = 0.3**2 * np.eye(HOURS), 128, 7
    left = np.eye(HOURS) - prior @ np.linalg.inv(prior + told**2 * error)
    mean, spread = left @ (prior + error) @ left.T, left @ prior
    size = HOURS * error[0, 0]
    ratio = np.trace(mean + spread) / size
    # squares of members: 2 tr C² + 4 E dᵀ C d, over those of a mean that is shared, 2 tr D²; and
    # those of the truth, which is about 1, as if they were independent of these
    own = (2 * np.trace(spread @ spread) + 4 * np.trace(mean @ spread)) / members
    shared = 2 * np.trace(mean @ mean)
    deviation = np.hypot(np.sqrt(own + shared) / size, ratio * np.sqrt(2 / HOURS))
    return float(ratio), float(deviation / np.sqrt(points))


def test_an_exact_sampler_is_calibrated_and_an_overconfident_one_is_not(model):
    right = calibrated(model, 6)
    told = summarize(right)
    assert told["simulations"] == 6
    for kind in ("field", "latent", "scalar"):
        assert told[kind]["least"] > 0.05
    t2m = right.sel(region="global", channel="t2m", latent_channel=0)
    # 6 × 2 × 128 ranks, of which hours depend on each other: chance is 0.03
    assert t2m["field_dispersion"] == pytest.approx(1, abs=0.12)
    assert t2m["latent_dispersion"] == pytest.approx(1, abs=0.12)

    wrong = calibrated(model, 6, change={"errors": 0.5})
    t2m = wrong.sel(region="global", channel="t2m")
    # an hour alone: errors of (1 − K)² P + K² R = 0.072 for an assumed variance of 0.020
    assert t2m["field_dispersion"] > 1.25
    for kind in ("field", "latent", "scalar"):
        assert wrong[f"{kind}_least"] < 0.01
    # what is not observed is as before
    z500 = wrong.sel(region="global", channel="z500")
    assert z500["field_dispersion"] == pytest.approx(1, abs=0.12)
    # members fit better than the truth, always
    assert wrong.sel(quantity="misfit")["scalar_frequency"].values[-1] == pytest.approx(1)

    for found, told in ((right, 1.0), (wrong, 0.5)):
        mean, deviation = exact_misfit(told)
        off = found["misfit"].mean("simulation") - [1.0, mean]
        # of 6 truths, each one of 128 pairs of hours that are independent; members share its noise
        assert np.abs(off).max() < 4 * np.sqrt(2 / 256 / 6)
        assert float(found["misfit_ratio"]) == pytest.approx(mean, abs=4 * deviation / np.sqrt(6))
    assert exact_misfit(1.0)[0] == pytest.approx(1)
    assert exact_misfit(0.5)[0] < 0.4


def test_killed_it_goes_on(model, tmp_path, monkeypatch):
    import appa.tasks.simulated as simulated

    options = {"members": 2, "settings": settings(model, steps=4)}
    whole = calibrated(model, 2, **options)
    draw, calls = simulated.simulate, []

    def dying(*args, **kwargs):
        calls.append(kwargs["number"])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return draw(*args, **kwargs)

    monkeypatch.setattr(simulated, "simulate", dying)
    with pytest.raises(KeyboardInterrupt):
        calibrated(model, 2, out=tmp_path / "a", **options)
    resumed = calibrated(model, 2, out=tmp_path / "a", **options)
    assert calls == [0, 1, 1]
    for name in whole.data_vars:
        np.testing.assert_allclose(resumed[name], whole[name], rtol=1e-12)
    with pytest.raises(AppaError, match="seed was 3, is 4"):
        calibrated(model, 2, out=tmp_path / "a", **options, seed=4)
    with pytest.raises(DataError, match="2 or more"):
        calibrated(model, 2, members=1)


def test_observations_that_are_not_what_they_say(model):
    truth = model.reanalysis(None, START, WINDOW, members=1, steps=4).isel(member=0)
    seen = synthesize(model, truth, network(), seed=1)
    changed = distort(seen, errors=2.0, bias=0.5)
    assert (changed.points["error"] == 2 * seen.points["error"]).all()
    moved = changed.points["value"] - seen.points["value"]
    np.testing.assert_allclose(moved, 0.5 * seen.points["error"])
    with pytest.raises(DataError, match="did you mean '2m_temperature'"):
        distort(seen, without=["2m_temperatur"])
    both = synthesize(model, truth, replace(network(), variables=(*worlds.SURFACE,)), seed=1)
    left = distort(both, without=[worlds.SURFACE[1]])
    assert left.variables == [worlds.SURFACE[0]]


def covariance(model: Model) -> tuple[np.ndarray, np.ndarray]:
    r"""Of a channel's states, hours by points: exact."""
    hours = np.arange(WINDOW)
    time = RHO ** np.abs(hours[:, None] - hours)
    mix = np.eye(128) + model.autoencoder.mixed * np.kron(np.eye(8), np.roll(np.eye(16), 1, axis=0))
    return time, SPREAD**2 * mix @ mix.T


def probed(model: Model, row: int, column: int, hour: int, error: float, **more) -> xr.Dataset:
    r"""What an observation of t2m at a point changes that is 20 K from the mean."""
    place = worlds.GRID.latitude[row], worlds.GRID.longitude[column]
    more = {"members": 64, "settings": settings(model, steps=36)} | more
    return single_observation(
        model, "2m_temperature", *place, START, hour=hour, departure=20.0, error=error, **more
    )


def test_the_increment_of_one_observation_is_the_covariances():
    model = world(mixed=0.5)
    row, column, hour, error = 3, 5, 1, 10.0
    found = probed(model, row, column, hour, error)
    time, space = covariance(model)
    unit, place = worlds.STD[0], row * 16 + column
    variance = space[place, place] * unit**2
    gain = np.outer(time[:, hour], space[:, place]).reshape(WINDOW, 8, 16) * unit**2
    # B Hᵀ (H B Hᵀ + R)⁻¹ (y − H μ), with the prior's own mean, which members' differs from
    times = found["time"].values.astype("datetime64[h]")
    mean = unit * 1.5 * worlds.season(times[hour : hour + 1])[0] + worlds.MEAN[0]
    exact = gain / (variance + error**2) * (found.attrs["value"] - mean)
    got = found["2m_temperature"].values
    # posterior and prior members share their noise: what is left of chance is at most the
    # change of a standard deviation over √64, along the gain
    sure = np.sqrt(variance) * (1 - np.sqrt(error**2 / (variance + error**2)))
    chance = 4 * sure / np.sqrt(64)
    assert np.abs(got - exact).max() < chance * 1.02 + 0.02
    assert np.abs(exact).max() > 5 * chance
    # across points that share no latent, and other fields, there is none
    assert np.abs(got[exact == 0]).max() < 2e-3 * unit
    assert abs(found["geopotential"]).max() < 2e-3 * worlds.STD[2]
    # what the members' covariance says is the same but for chance, here of 64 members
    expected = found["2m_temperature_expected"].values[:, row, column]
    np.testing.assert_allclose(expected, got[:, row, column], rtol=0.4)


def test_an_increment_of_the_day_is_that_of_what_is_left(monkeypatch):
    r"""With another observation known to both, the covariance is what that one leaves of it; what
    stands beside has its members' own."""
    model = world(mixed=0.5)
    row, column, hour, error = 3, 5, 1, 10.0
    times = np.datetime64(START, "ns") + np.arange(WINDOW) * np.timedelta64(1, "h")
    place = {"latitude": worlds.GRID.latitude[row], "variable": "2m_temperature"}
    other = {"time": times[hour], "longitude": worlds.GRID.longitude[column + 1]}
    mean = worlds.MEAN[0] + worlds.STD[0] * 1.5 * worlds.season(times[hour : hour + 1])[0]
    mean = np.broadcast_to(mean, (8, 16))
    known = pd.DataFrame([place | other | {"value": mean[row, column + 1], "error": 5.0}])
    options = {"members": 64, "settings": settings(model, steps=36)}
    prior = model.reanalysis(known, START, WINDOW, negatives="keep", **options)
    found = probed(model, row, column, hour, error, observations=known, beside=prior)
    time, space = covariance(model)
    unit, here, there = worlds.STD[0], row * 16 + column, row * 16 + column + 1
    whole = np.kron(time, space) * unit**2
    at, before = hour * 128 + here, hour * 128 + there
    left = whole - np.outer(whole[:, before], whole[before]) / (whole[before, before] + 25)
    members = prior["2m_temperature"].values[:, hour, row, column]
    # the mean of all draws, of which that of 64 members differs by chance
    exact = left[:, at] / (left[at, at] + error**2) * (found.attrs["value"] - mean[row, column])
    sure = np.sqrt(left[at, at]) * (1 - np.sqrt(error**2 / (left[at, at] + error**2)))
    got = found["2m_temperature"].values.ravel()
    assert np.abs(got - exact).max() < 4 * sure / np.sqrt(64) * 1.02 + 0.02
    # the climate's own would be far more where the other is
    climate = whole[:, at] / (whole[at, at] + error**2) * (found.attrs["value"] - mean[row, column])
    assert abs(climate[before] - exact[before]) > 0.3 * climate[before]
    np.testing.assert_allclose(found.attrs["spread_beside"], members.std(ddof=1), rtol=1e-4)
    np.testing.assert_allclose(
        found["2m_temperature_beside"],
        found["2m_temperature_expected"].isel(time=hour),
        atol=1e-3 * unit,
    )
    # at the very place that is known already, it still counts: twice what one tells, but for R
    again = probed(model, row, column + 1, hour, error, observations=known, members=16)
    there = again["2m_temperature"].values[hour, row, column + 1]
    assert there == pytest.approx(20 * left[before, before] / (left[before, before] + 100), rel=0.3)
    # what cannot be is found before anything is drawn
    with monkeypatch.context() as patch:
        patch.setattr(increments, "reanalysis", None)
        for wrong in ({"error": 0.0}, {"departure": np.nan}):
            with pytest.raises(DataError, match="give a number"):
                single_observation(model, "2m_temperature", 10, 10, START, **wrong)
        with pytest.raises(DataError, match="latitude"):
            single_observation(model, "2m_temperature", 95, 10, START)
    # the mean of all levels is no value that z500 can have: it is that of its own
    aloft = single_observation(model, "geopotential", 10, 10, START, level=500, **options)
    assert aloft.attrs["value"] == pytest.approx(worlds.MEAN[2], abs=5 * worlds.STD[2])
    with pytest.raises(DataError, match="has no 2"):
        single_observation(model, "2m_temperature", 10, 10, START, beside=prior.isel(time=[2]))
    with pytest.raises(DataError, match="has no members"):
        single_observation(model, "2m_temperature", 10, 10, START, beside=prior.mean("member"))


def test_a_budget_tells_what_costs(model, tmp_path):
    r"""Of truths from the prior: a converged reference is best, and each fault costs its own."""
    dates = pd.date_range(START, periods=6, freq="2D")
    names = ["bias", "decoder", "unobserved"]
    poor = settings(model, iterations=1, tolerance=0.0)
    truths = [
        model.reanalysis(None, d, HOURS, members=1, seed=9, steps=24).isel(member=0) for d in dates
    ]
    import xarray as xr

    store = xr.concat([t.drop_vars("latents") for t in truths], "time")
    store = store.drop_vars("member")
    options = {
        "hours": HOURS,
        "members": 3,
        "settings": poor,
        "reference": {"iterations": 30, "tolerance": 1e-3},
        "chosen": names,
        "out": tmp_path / "budget",
        "variables": ["2m_temperature"],
    }
    means = error_budget(model, store, network(), dates, **options)
    table = error_budget_table(means).set_index(["variation", "score"])
    assert set(means) == {"reference", *names}
    assert len(list((tmp_path / "budget").glob("*.nc"))) == 24
    crps, skill = table.xs("crps", level="score"), table.xs("skill", level="score")
    for name in ("bias", "unobserved"):
        assert crps.loc[name, "difference"] > 0
        assert crps.loc[name, "low"] > 0
        assert crps.loc[name, "real"]
        share = crps.loc[name, "value"] / crps.loc["reference", "value"] - 1
        assert crps.loc[name, "relative"] == pytest.approx(share)
        assert crps.loc[name, "relative_low"] < share < crps.loc[name, "relative_high"]
    # the identity decodes what it encoded
    assert skill.loc["decoder", "value"] < 1e-3
    # the prior's own spread, in kelvins, and that of the mean of 3 members
    told = 20 * SPREAD * np.sqrt(1 + 1 / 3)
    assert skill.loc["unobserved", "value"] == pytest.approx(told, rel=0.05)
    # again, from what is there
    again = error_budget_table(error_budget(model, store, network(), dates, **options))
    pd.testing.assert_frame_equal(again, table.reset_index()[again.columns])
    with pytest.raises(DataError, match="at least 2 hours apart"):
        error_budget(model, store, network(), [START, START], hours=2)
    with pytest.raises(DataError, match="did you mean 'steps'"):
        error_budget(model, store, network(), dates, chosen=["step"])


def test_what_is_withheld_may_be_named_in_short(model, monkeypatch):
    import xarray as xr

    told = {}

    def drawn(model, variation, base, network, truth, *rest):
        told[variation.name] = dict(variation.change)
        return xr.concat([truth, truth], "member"), truth

    monkeypatch.setattr("appa.tasks.experiments._drawn", drawn)
    store = model.reanalysis(None, START, HOURS, members=1, seed=9, steps=2).isel(member=0)
    store = store.drop_vars(["latents", "member"])
    given = {"hours": HOURS, "withheld": ["t2m", "2m_temperature"]}
    error_budget(model, store, network(), [START], **given)
    assert told["without 2m_temperature"] == {"without": ["2m_temperature"]}
    assert sum(name.startswith("without") for name in told) == 1
    with pytest.raises(DataError, match="sees no 't2n' to withhold; did you mean 't2m'"):
        error_budget(model, store, network(), [START], hours=HOURS, withheld=["t2n"])


def test_variations_that_are_none_are_left_out(model):
    same = settings(model)
    names = [v.name for v in variations(same, same)]
    assert "solver" not in names
    assert "steps" not in names
    assert "composed" in names  # the reference decides by itself
    assert "without 2m_temperature" in [v.name for v in variations(same, same, ["2m_temperature"])]
