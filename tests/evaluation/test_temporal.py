r"""Changes with time, of processes whose tendencies, spectra and jumps are known in closed form."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from appa.data.grids import Grid
from appa.errors import DataError
from appa.evaluation import temporal
from appa.evaluation.joints import joints_of
from appa.evaluation.temporal import temporal_consistency
from appa.tasks.settings import Settings

from . import worlds

GRID = Grid("gaussian", 24, 48)
START = np.datetime64("2004-01-03T00", "ns")


def dataset(values: np.ndarray, first: int = 0, **attrs) -> xr.Dataset:
    r"""2 m temperature, with shape ([M], T, H, W)."""
    lead = ("member", "time")[-(values.ndim - 2) :]
    hours = START + (first + np.arange(values.shape[-3])) * np.timedelta64(1, "h")
    coords = {"time": hours, "latitude": GRID.latitude, "longitude": GRID.longitude}
    return xr.Dataset(
        {"2m_temperature": ((*lead, "latitude", "longitude"), values.astype(np.float32))},
        coords,
        attrs,
    )


def markov(rng: np.random.Generator, shape: tuple[int, ...], rho: float) -> np.ndarray:
    r"""Unit variance and correlation ρ^τ along the third last axis."""
    x = rng.standard_normal(shape)
    t = np.moveaxis(x, -3, 0)
    for k in range(1, len(t)):
        t[k] = rho * t[k - 1] + np.sqrt(1 - rho**2) * t[k]
    return x


def test_tendencies_of_a_normal_process(monkeypatch):
    rng = np.random.default_rng(0)
    hours, rho, scale = 48, 0.9, np.where(np.abs(GRID.latitude) < 30, 1.0, 3.0)[:, None]
    truth = scale * markov(rng, (hours, *GRID.shape), rho)
    members = 0.5 * scale * markov(rng, (3, hours, *GRID.shape), rho)
    truth[:, 5, 7] = np.nan
    found = temporal_consistency(dataset(280 + members), dataset(280 + truth)).isel(channel=0)
    share = float(GRID.weights[np.abs(GRID.latitude) < 30].sum() / GRID.weights.sum())
    square = share + 9 * (1 - share)  # by area, not by points
    points = hours * np.prod(GRID.shape)
    for lag in (1, 3, 6):
        at = found.sel(lag=lag)
        expected = np.sqrt(2 * (1 - rho**lag) * square)
        # 48 × 1,152 values, of which neighbours in time are correlated
        assert at["tendency_std"].sel(source="truth") == pytest.approx(expected, rel=0.02)
        assert at["tendency_ratio"] == pytest.approx(0.5, rel=0.02)
        assert 0 < at["tendency_ratio_error"] < 0.01
        # a mixture of two normal distributions: kurtosis and quantiles
        four = 3 * (share + 81 * (1 - share)) / square**2
        assert at["tendency_kurtosis"].sel(source="truth") == pytest.approx(four, rel=0.03)
        deviation = np.sqrt(2 * (1 - rho**lag))
        for source, factor in (("truth", 1.0), ("members", 0.5)):
            q = at["tendency_quantile"].sel(source=source).values / factor / deviation
            p = share * stats.norm.cdf(q) + (1 - share) * stats.norm.cdf(q / 3)
            given = found["quantile"].values
            # chance with every sixth value independent, and the bins' 2 % of the value
            chance = 4 * np.sqrt(given * (1 - given) * 6 / points)
            density = share * stats.norm.pdf(q) + (1 - share) * stats.norm.pdf(q / 3) / 3
            assert np.all(np.abs(p - given) < chance + 0.02 * np.abs(q) * density + 1e-4)
    # the same in bands of latitudes, a member at a time
    monkeypatch.setattr(temporal, "MOST", 8 * hours * 48 * 5)
    again = temporal_consistency(dataset(280 + members), dataset(280 + truth)).isel(channel=0)
    xr.testing.assert_allclose(found, again, rtol=1e-9)


def test_spectra_of_a_wave_and_of_a_markov_process():
    rng = np.random.default_rng(1)
    hours, rho = 48, 0.8
    t = np.arange(hours)[:, None, None]
    phase = rng.uniform(0, 2 * np.pi, GRID.shape)
    wave = 2 * np.cos(2 * np.pi * t / 12 + phase)
    noise = markov(rng, (2, hours, *GRID.shape), rho)
    found = temporal_consistency(dataset(noise), dataset(wave)).isel(channel=0)
    power = found["spectrum"]
    # the wave's variance is 2, at 12 hours and, by the taper, at its neighbours
    assert float(power.sel(source="truth").sum() / hours) == pytest.approx(2, rel=1e-4)
    near = abs(found["period"] - 12) < 4.5
    assert float(power.sel(source="truth").where(near).sum() / hours) > 2 * 0.999
    # S(f) = 2 (1 − ρ²) / |1 − ρ e^{-iω}|², but for what leaks near the ends
    f = found["frequency"].values
    exact = 2 * (1 - rho**2) / np.abs(1 - rho * np.exp(-2j * np.pi * f)) ** 2
    ratio = power.sel(source="members").values / exact
    assert ratio[3:-1] == pytest.approx(1, abs=0.15)
    assert ratio[8:-1] == pytest.approx(1, abs=0.1)  # chance: 0.022
    assert (found["spectrum_ratio_error"].values > 0).all()


def test_jumps_are_found_and_told_from_the_hour_of_day():
    rng = np.random.default_rng(2)
    hours, runs, joints = 48, 2, [12, 24, 36]
    busy = np.where(np.arange(hours) % 12 == 0, 2.0, 1.0)[:, None, None]  # as windows begin
    truths, smooth, jumping = [], [], []
    for _ in range(runs):
        walk = np.cumsum(busy * rng.standard_normal((4, hours, *GRID.shape)), axis=1)
        truths.append(walk[0])
        smooth.append(walk[1:3])
        # what a window does not know of the next: an offset with a variance of 4
        offset = np.zeros((hours, *GRID.shape))
        offset[joints] = 2 * rng.standard_normal((len(joints), *GRID.shape))
        jumping.append((walk[3] + np.cumsum(offset, axis=0))[None])
    store = xr.concat([dataset(x, 100 * k) for k, x in enumerate(truths)], "time")

    def scored(parts):
        given = [dataset(x, 100 * k, joints=json.dumps(joints)) for k, x in enumerate(parts)]
        return temporal_consistency(given, store).isel(channel=0)

    fine = scored(smooth)
    assert fine.attrs["joints"] == json.dumps([joints] * runs)
    for source in ("truth", "members"):
        one = fine.sel(source=source, order=1)
        assert one["jump"] == pytest.approx(4, rel=0.05)  # weather, not windows
    for order in (1, 2):
        at = fine.sel(order=order)
        assert at["jump_excess_low"] < 1 < at["jump_excess_high"]
        assert at["jump_excess_high"] - at["jump_excess_low"] < 0.2
    torn = scored(jumping).sel(order=1)
    assert torn["jump"].sel(source="members") == pytest.approx(8, rel=0.05)
    assert torn["jump_excess"] == pytest.approx(2, rel=0.05)
    assert torn["jump_excess_low"] > 1.5
    # curvatures: squares of two neighbouring steps add, across a joint and elsewhere
    bent = scored(jumping).sel(order=2)
    assert bent["jump_excess"] == pytest.approx((8 + 1) / (4 + 1), rel=0.05)
    # without joints there is nothing to say of them
    nothing = temporal_consistency(dataset(smooth[0]), store).isel(channel=0)
    assert np.isnan(nothing["jump_excess"]).all()


def test_joints_follow_from_how_a_run_was_drawn():
    assert Settings(mode="composed", stride=12).joints(48, 24) == [18, 30]
    assert Settings(mode="auto").joints(24, 24) == []
    # 4 hours given and a lag of 8: windows keep 16, 12, 12 hours, and the last its 20
    assert Settings(past=4).joints(60, 24) == [16, 28, 40]
    assert Settings(past=4).joints(60, 24, observed=False) == [24, 44]
    # in the end, a sweep's interiors of 20 hours
    assert Settings(past=4, sweeps=2).joints(60, 24) == [20, 40]
    # a forecast from 4 hours
    assert Settings(past=4).joints(64, 24, known=4, observed=False) == [4, 24, 44]

    model = worlds.untrained()
    run = model.reanalysis(None, "2004-01-03T00", 14, members=1, mode="composed", steps=4)
    # windows of 8 hours, 4 apart, each giving its middle 4
    assert joints_of(run) == [6, 10]
    # with 4 hours known, windows add 4; the first hour told is no joint
    assert model.config.sampling.past == 4
    later = model.forecast(run, hours=12, steps=4)
    assert joints_of(later) == [4, 8]
    assert later.attrs["forecast_reference_time"] == "2004-01-03T13"
    assert joints_of(run.drop_attrs()) is None


def test_what_cannot_be_compared():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 8, *GRID.shape))
    run, truth = dataset(x), dataset(x[0])
    with pytest.raises(DataError, match="follow one another, found 2004-01-03T03 after"):
        temporal_consistency(run.isel(time=[0, 1, 3, 4]), truth)
    with pytest.raises(DataError, match="8 and 6 along time"):
        temporal_consistency([run, run.isel(time=slice(6))], truth)
    with pytest.raises(DataError, match="found runs of 3 h"):
        temporal_consistency(run.isel(time=slice(3)), truth)
