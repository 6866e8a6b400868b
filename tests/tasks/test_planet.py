r"""The bundled planet: what a model that was trained has to show.

Its truth are hours of the bundled store, a member that was held out of training.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xarray as xr
from scipy.stats import t
from torch.utils.flop_counter import FlopCounterMode

import appa
from appa.data import climatology, planet
from appa.demo import first_hours, observe_planet
from appa.diffusion.sampling import Noise
from appa.evaluation.scores import rmse
from appa.observations.collection import Observations
from appa.observations.operators import StateSpace, compile_observations
from appa.observations.residual import ResidualSampler
from appa.tasks import background
from appa.tasks.loading import bundled
from appa.tasks.model import Model
from appa.tasks.posterior import Posterior
from appa.tasks.settings import Settings

SPACE = ("latitude", "longitude")


@pytest.fixture(scope="module")
def model() -> Model:
    return appa.load("planet")


@pytest.fixture(scope="module")
def truth() -> xr.Dataset:
    return first_hours(24).load()


def area(ds: xr.Dataset) -> torch.Tensor:
    return torch.tensor(
        np.cos(np.deg2rad(ds["latitude"].values)).astype("f4")[:, None] * np.ones(96, "f4")
    )


def test_it_is_small(model):
    r"""A wheel holds it, and two cores decode it."""
    assert sum(f.stat().st_size for f in bundled()["planet"].iterdir()) <= 24e6
    latent = torch.zeros(1, *model.denoiser.latent_shape)
    state = len(model.config.channels) * np.prod(model.grid.shape)
    assert state / latent.numel() >= 60
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.autoencoder.decode(latent)
    assert counter.get_total_flops() <= 1.5e9


def test_it_keeps_states(model, truth):
    r"""Within 0.11 standard deviations, the mean over channels; the weather's deviations are those
    of the climatology, which knows the season and the hour."""
    x = model.standardizer.to_tensor(truth.isel(time=slice(0, 24, 6)))
    with torch.no_grad():
        y = model.decode(model.encode(x))
    sea = torch.as_tensor(truth["land_sea_mask"].values < 0.5)
    errors, units = [], model.standardizer.std.flatten()
    for c, channel in enumerate(model.config.channels):
        w = area(truth) * (sea if channel.variable == "sea_surface_temperature" else 1)
        errors.append(float(((y - x)[:, c].square().mean(0) * w).sum() / w.sum()) ** 0.5)
    assert np.mean(errors) <= 0.11

    expected = climatology.evaluate(planet.climatology(), truth["time"].values)
    names = [(channel.variable, channel.level) for channel in model.config.channels]
    for name, level in (("temperature", 850), ("geopotential", 500), ("2m_temperature", None)):
        c = names.index((name, level))
        fields = expected[name], truth[name]
        weather = rmse(*(f if level is None else f.sel(level=level) for f in fields), SPACE)
        assert errors[c] * float(units[c]) <= 0.35 * float(weather.mean())


def test_its_autoencoder_takes_and_gives_states(model, truth):
    r"""As anyone would call it, who knows nothing of normals: to within 0.11."""
    x = model.standardizer.to_tensor(truth.isel(time=slice(0, 24, 6)))
    with torch.no_grad():
        z = model.autoencoder.encode(x)
        y = model.autoencoder.decode(z)
    assert z.shape[1:] == model.autoencoder.latent_shape
    w = area(truth)
    mean = ((y - x).square().mean(0) * w).sum((-2, -1)) / w.sum()
    assert mean.sqrt().mean() <= 0.11
    with pytest.raises(ValueError, match=r"latents have shape \(1, 72, 7, 13\)"):
        model.autoencoder.decode(torch.zeros(1, 72, 7, 13))


def test_rotated_states(model, truth):
    r"""One latent cell further east, reconstructed departures are the same, one cell further east:
    of the networks, which know no places; the normals do."""
    x = model.autoencoder.departures(model.standardizer.to_tensor(truth.isel(time=slice(1))))
    with torch.no_grad():
        a, b = (model.autoencoder(d, bare=True) for d in (x, x.roll(8, -1)))
    assert (a - a.roll(8, -1)).abs().max() > 1
    torch.testing.assert_close(b, a.roll(8, -1), atol=1e-4, rtol=0)


def test_it_rains_as_it_should(model, truth):
    r"""With what the decoder lacks, drawn: nowhere below zero, as variable as the truth, extremes
    within a factor of two of the truth's. Decoded rain is below zero where there is none, so that
    the mean has a bias of its own; cut off at zero, Gaussian draws would have twice as much."""
    z = model.encode(model.standardizer.to_tensor(truth.isel(time=slice(12))))[None]
    sampler = ResidualSampler(model.representation)
    noise = Noise(0, range(4), 0)
    k = [c.variable for c in model.config.channels].index("total_precipitation")
    with torch.no_grad():
        rain = {}
        for above in (model.above_zero(z.expand(4, -1, -1, -1, -1), model.representation, 5), {}):
            r = sampler.free(12, 4, noise, channels=[k], above=above)[:, :, 0]
            x = model.decode(z[0])[:, k] + r
            rain[bool(above)] = (x * model.standardizer.std[k] + model.standardizer.mean[k]).numpy()
    drawn, gaussian = rain[True], np.maximum(rain[False], 0)
    true = truth["total_precipitation"].values[:12]
    w = np.cos(np.deg2rad(truth["latitude"].values))[:, None]
    assert drawn.min() > -1e-8
    bias, worse = (((x - true) * w).mean() / (true * w).mean() for x in (drawn, gaussian))
    assert abs(bias) < 0.3 < worse
    assert abs(drawn.std() / true.std() - 1) < 0.15
    assert 0.5 < np.quantile(drawn, 0.999) / np.quantile(true, 0.999) < 1.5
    assert drawn.max() < 2 * true.max()
    # whatever was decoded at once
    (one,) = model.above_zero(z, model.representation, 1).values()
    (all_,) = model.above_zero(z, model.representation, 12).values()
    torch.testing.assert_close(one.state, all_.state, rtol=0, atol=1e-4)


def test_it_draws_weather(model, truth):
    r"""Winds and heights are as variable as the truth's weather, and remember the hour before."""
    drawn = model.sample("2021-03-21T00", 24, members=2, seed=0, steps=16)
    expected = climatology.evaluate(planet.climatology(), truth["time"].values)
    for name, level in (("geopotential", 500), ("u_component_of_wind", 850)):
        mean = expected[name].sel(level=level)
        anomaly = drawn[name].sel(level=level) - mean
        weather = rmse(mean, truth[name].sel(level=level), SPACE).mean()
        spread = rmse(anomaly, xr.zeros_like(anomaly), SPACE).mean()
        assert 0.7 < float(spread / weather) < 1.3
        now, then = anomaly.isel(time=slice(1, None)), anomaly.isel(time=slice(-1))
        assert np.corrcoef(now.values.ravel(), then.values.ravel())[0, 1] > 0.97


NOISE = 0.01  # of the observations below, in standard deviations


@pytest.mark.slow
@pytest.mark.parametrize("represented", [False, True])
def test_all_of_a_state_observed(model, truth, represented):
    r"""Almost without noise, the analysis is as near as the autoencoder gets; where what that lacks
    is drawn too, as near as the observations are: their error, and as much drawn."""
    hour = truth.isel(time=slice(1))
    names = [n for n in hour.data_vars if "time" in hour[n].dims]
    stats = planet.statistics()
    observed = hour[names]
    for name in names:
        std = stats[name].sel(statistic="std", drop=True)
        observed[f"{name}_error"] = xr.zeros_like(hour[name]) + NOISE * std
    if represented:
        few = {"steps": 2, "iterations": 2, "tolerance": 0.0}
    else:
        few = {"steps": 10, "iterations": 4, "tolerance": 0.0}
        few |= {"representation": "none", "residual": False}
    settings = Settings.of(model.config, "draft", **few)
    start = hour["time"].values[0]
    analysis = model.reanalysis(observed, start, 1, members=1, settings=settings)
    with torch.no_grad():
        x = model.standardizer.to_tensor(hour)
        error = model.decode(model.encode(x)) - x
        found = model.standardizer.to_tensor(analysis.isel(member=0)) - x

    def mean(e):
        return float((e.square() * area(truth)).mean((0, 2, 3)).sqrt().mean())

    assert mean(found) <= 1.1 * mean(error)
    if represented:
        assert mean(found) <= 2**0.5 * NOISE


def test_good_observations_pass_the_background_check(model, truth, monkeypatch):
    r"""Of what is true, rain and humidity included, no more is rejected than chance has it, that of
    Student's t for eight members; a downpour where it never rains is."""
    monkeypatch.setattr(background, "MEMBERS", 8)
    hours = truth.isel(time=slice(1), longitude=slice(0, None, 2))
    names = ["total_precipitation", "2m_temperature", "specific_humidity"]
    seen = hours[names].sel(level=[700]).to_dataframe().reset_index()
    std = planet.statistics().sel(statistic="std")
    errors = {n: 0.05 * float(std[n] if n in names[:2] else std[n].sel(level=700)) for n in names}
    rows = seen.melt(["time", "level", "latitude", "longitude"], names)
    rows["level"] = rows["level"].where(rows["variable"] == names[2])
    rows = rows.assign(error=rows["variable"].map(errors), station="", elevation=np.nan)
    noise = np.random.default_rng(0).standard_normal(len(rows))
    rows["value"] += rows["error"] * noise
    dry = int(np.argmin(np.where(rows["variable"] == names[0], rows["value"], np.inf)))
    rows.loc[dry, "value"] = 0.1  # m within an hour
    settings = Settings.of(model.config, "draft", steps=4)
    times = hours["time"].values
    operators = compile_observations(Observations(rows), StateSpace.of(model), times)
    prior = Posterior(model, times, settings)
    z = prior.draw(range(8), background.SEED)
    monkeypatch.setattr(prior, "draw", lambda *_, **__: z)  # once for both
    (found,), table = background.against_prior(prior, operators, "check", 5.0)
    before = operators[0].rows
    far = (found.rows["error"] > 10 * before["error"]).to_numpy()
    assert far.sum() == table["count"].sum()
    chance = 2 * t.sf(5, df=7)
    for name in names:
        own = (before["variable"] == name).to_numpy()
        most = 1 if name == names[0] else 2 * chance * own.sum()
        assert far[own].sum() <= most, name
    assert before["value"][far & (before["variable"] == names[0])].tolist() == [0.1]
    # with Huber's likelihood the downpour moves the mean as one 5 deviations away would, and what
    # is usual counts for all it is worth
    (kept,), _ = background.against_prior(prior, operators, "huber", 5.0)
    factor = (kept.rows["error"] / before["error"]).to_numpy()
    assert (factor[~far] == 1).all()
    with torch.no_grad():
        d = operators[0].departure(model.decode(z[:, 0])).double().numpy()
    d, s = d.mean(0)[far], d.std(0, ddof=1)[far]
    lacks = background._lacking(prior, operators[0]).numpy()[far]
    gain = s**2 / (s**2 + factor[far] ** 2 + lacks**2)
    edge = 5 * np.sqrt(s**2 * (1 + 1 / 8) + 1 + lacks**2)
    np.testing.assert_allclose(gain * abs(d), s**2 / (s**2 + 1 + lacks**2) * edge, rtol=1e-4)


def test_observations_help(model, truth):
    r"""Three hours of 46 stations and an orbiter, few steps: a member is nearer the truth than the
    one drawn from the same noise without them, nearest where it was seen."""
    hours = truth.isel(time=slice(3))
    start = hours["time"].values[0]
    day = observe_planet(hours)
    settings = Settings.of(model.config, "draft", steps=4, iterations=2, tolerance=0.0)
    seen = [day.table, day.swath]
    analysis = model.reanalysis(seen, start, 3, members=1, settings=settings).isel(member=0)
    prior = model.reanalysis(None, start, 3, members=1, settings=settings).isel(member=0)
    for name, level in (("geopotential", 500), ("temperature", 850)):
        known, guess, exact = (ds[name].sel(level=level) for ds in (analysis, prior, hours))
        seen = np.isfinite(day.swath[name].sel(level=level)).values
        assert rmse(known, exact).mean() < 0.9 * rmse(guess, exact).mean()
        error = np.abs((known - exact).values)
        assert error[seen].mean() < 0.6 * np.abs((guess - exact).values)[seen].mean()
