r"""Reconstruction scores of autoencoders that spoil states in a known way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xarray as xr
from scipy import stats

from appa.data.windows import WindowLoader
from appa.errors import DataError
from appa.evaluation.reconstruction import EDGES, resolved, score_autoencoder, seam, summarize
from appa.evaluation.scores import standardized_rmse
from appa.evaluation.streaming import Climate, Domain, spread
from appa.tasks.building import build_autoencoder
from appa.tasks.model import Model

from .worlds import (
    GRID,
    LAND,
    MEAN,
    NAMES,
    SEASON,
    SPREAD,
    STD,
    Identity,
    climatology,
    config,
    dataset,
    memory,
    model,
    season,
    statistics,
    stretches,
)

pytest.importorskip("ducc0")

WEIGHTS = GRID.weights[:, None] * np.ones(GRID.shape)
SEA = WEIGHTS * ~LAND


@pytest.fixture(scope="module")
def store() -> xr.Dataset:
    r"""White noise about the season: 40 stretches of 6 hours in two years of training, and as many
    in two of test."""
    parts = []
    for first, seed in (("2001-01-03", 1), ("2004-01-03", 2)):
        times = stretches(40, 6, first, days=18)
        x = SPREAD * memory(40, 6, 0.0, seed) + season(times)[..., None, None, None]
        parts.append(dataset(x.reshape(-1, 4, *GRID.shape), times.ravel()))
    return xr.concat(parts, "time")


def score(spoil, store, **options) -> xr.Dataset:
    options = {"states": 10_000, "batch": 7, "spectra": 10} | options
    return score_autoencoder(model(Identity(spoil)), store, **options)


def test_identity(store):
    found = score(lambda z: z, store, climatology=climatology())
    assert found.attrs["states"] == 240
    assert found["channel"].values.tolist() == list(NAMES)
    for name in ("rmse", "bias", "rmse_year", "rmse_weather", "outside", "error_longitude"):
        assert (found[name] == 0).all()
    np.testing.assert_array_equal(found["spectrum"][0], found["spectrum"][1])
    np.testing.assert_array_equal(found["steps"][0], found["steps"][1])
    assert np.isnan(found["spectrum"].sel(channel="sst")).all()
    assert np.isfinite(found["spectrum"].sel(channel="z850")).all()


def test_constant_bias(store):
    r"""A bias is the error, in its bin, and at no longitude more than at another."""
    bias = torch.tensor([0.255, -0.125, 0.005, 1.5]).view(4, 1, 1)
    found = score(lambda z: z + bias, store, climatology=climatology())
    expected = bias.flatten().double().numpy()
    np.testing.assert_allclose(found["bias"], expected, rtol=1e-5)
    np.testing.assert_allclose(found["rmse"], abs(expected), rtol=1e-5)
    for channel, value in zip(NAMES[:3], expected, strict=False):
        row = found["histogram"].sel(channel=channel)
        assert row.max() == pytest.approx(1, abs=1e-6)
        assert row["bin"][int(row.values.argmax())] == pytest.approx(value)
    assert found["outside"].values.tolist() == pytest.approx([0, 0, 0, 1])
    # in units of the weather, whose variance is averaged by area, of SST over the sea
    over = np.sqrt([(w * SPREAD**2).sum() / w.sum() for w in (WEIGHTS, SEA, WEIGHTS, WEIGHTS)])
    np.testing.assert_allclose(found["weather"], over, rtol=1e-6)
    np.testing.assert_allclose(found["rmse_weather"], abs(expected) / over, rtol=1e-5)
    told = summarize(found)
    assert told["rmse"] == pytest.approx(abs(expected).mean(), rel=1e-5)
    assert told["rmse_by_variable"]["geopotential"] == pytest.approx(0.7525, rel=1e-5)
    assert told["weather_headline"].keys() == {"t2m", "z500"}
    for edge in told["seam_error"].values():
        assert edge == pytest.approx(1, abs=1e-5)


def test_errors_are_weighed_by_area_and_over_the_sea(store):
    r"""An error in one row counts as its area; one of SST over land does not count."""
    where = torch.zeros(4, *GRID.shape)
    where[[0, 2], 0] = 1.0
    where[3, 3] = 1.0
    where[1][torch.from_numpy(LAND)] = 9.0
    found = score(lambda z: z + where, store)
    rows = GRID.weights / GRID.weights.sum()
    expected = np.sqrt([rows[0], 0, rows[0], rows[3]])
    np.testing.assert_allclose(found["rmse"], expected, rtol=1e-6)
    assert found["histogram"].sel(channel="sst").max() == pytest.approx(1, abs=1e-6)


def test_agrees_with_the_score_of_datasets(store):
    r"""The same states scored as datasets, by other code."""
    noise = torch.randn(4, *GRID.shape, generator=torch.Generator().manual_seed(0)) * 0.1
    found = score(lambda z: z + noise, store, split=None)
    estimate = store.copy()
    y = STD[:, None, None] * noise.numpy()
    estimate["2m_temperature"] = store["2m_temperature"] + y[0]
    estimate["sea_surface_temperature"] = store["sea_surface_temperature"] + y[1]
    estimate["geopotential"] = store["geopotential"] + y[2:]
    for k, name in enumerate(("2m_temperature", "sea_surface_temperature")):
        expected = standardized_rmse(estimate[name], store[name], STD[k])
        assert float(found["rmse"][k]) == pytest.approx(float(expected), rel=1e-4)
    expected = standardized_rmse(estimate["geopotential"], store["geopotential"], STD[2:])
    np.testing.assert_allclose(found["rmse"][2:], expected, rtol=1e-4)


def test_noise(store):
    r"""Errors that are Gaussian noise have its deviation and its distribution, flat in longitude:
    within four or five standard errors of 128 values a state, 240 states."""
    generator = torch.Generator().manual_seed(3)

    def spoil(z):
        return z + 0.3 * torch.randn(z.shape, generator=generator)

    found = score(spoil, store)
    n = 240 * 128 / 2  # area weights cost less than half of the points
    np.testing.assert_allclose(found["rmse"], 0.3, rtol=4 / np.sqrt(2 * n))
    np.testing.assert_allclose(found["bias"], 0, atol=4 * 0.3 / np.sqrt(n))
    law = np.diff(stats.norm(scale=0.3).cdf(EDGES))
    tolerance = 5 * np.sqrt(law / n) + 1e-4
    assert (abs(found["histogram"] - law) < tolerance).all()
    # noise adds 0.09 × 2 to the squares of differences, which are 2 SPREAD² plus the noise's
    weight = GRID.weights / GRID.weights.sum()
    square = 2 * (weight * SPREAD[:, 0] ** 2).sum()
    steps = found["steps"].sel(channel="z500").mean("longitude")
    np.testing.assert_allclose(steps, [square, square + 0.18], rtol=0.05)
    for edge in (summarize(found)[name] for name in ("seam_error", "seam_steps")):
        assert 0.9 < edge["seam"] < 1.1


def test_by_year_and_against_training(store):
    r"""Each year by itself, and the gap to the training years, against sums over the store."""
    found = score(lambda z: 1.1 * z, store)
    train = score(lambda z: 1.1 * z, store, split="train")
    assert found["year"].values.tolist() == [2004, 2005]
    assert int(found["states_year"].sum()) == 240
    x = (store["2m_temperature"] - MEAN[0]) / STD[0]
    square = (x**2).weighted(xr.DataArray(GRID.weights, {"latitude": x["latitude"]}))
    square = square.mean(["latitude", "longitude"]).groupby("time.year").mean()
    for year in (2004, 2005):
        expected = 0.1 * np.sqrt(float(square.sel(year=year)))
        assert float(found["rmse_year"].sel(year=year, channel="t2m")) == pytest.approx(
            expected, rel=1e-4
        )
    told = summarize(found, train)
    assert told["test_over_train"] == pytest.approx(
        float(found["rmse"].mean() / train["rmse"].mean())
    )
    assert told["rmse_by_year"].keys() == {2004, 2005}


def test_a_seam_is_seen(store):
    r"""An error of the last column shows in both measures, one inside in neither."""
    for column, seen in ((-1, True), (6, False)):
        where = torch.zeros(GRID.shape)
        where[:, column] = 1.0
        told = summarize(score(lambda z, where=where: z + where + 0.01, store))
        for name in ("seam_error", "seam_steps"):
            assert (told[name]["seam"] > 1.5 * told[name]["high"]) == seen


def test_seam_of_flat_and_of_empty_profiles():
    flat = np.ones((3, 16))
    flat[1] *= 7
    flat[2, 4] = np.nan
    assert seam(flat) == pytest.approx({"seam": 1, "low": 1, "high": 1})
    flat[:, -1] *= 2
    assert seam(flat)["seam"] == pytest.approx(2)
    assert np.isnan(seam(np.zeros((2, 8)))["seam"])


def test_resolved_wavelengths(store):
    r"""Where a smoothing removes all energy beyond a wavenumber, that is found."""
    found = score(lambda z: z, store)
    found["spectrum"][1, :, 2, 5:] *= 0.1
    told = resolved(found, "reconstruction")
    assert told["z500"] == pytest.approx(float(found["wavelength"][4]))
    assert told["t2m"] == pytest.approx(float(found["wavelength"][7]))
    assert "sst" not in told


def test_states_are_spread_over_the_split(store):
    r"""One of each equal part of the hours, whatever the seed; all where more are asked for."""
    loader = WindowLoader(store, 1, 8, shuffle=False, drop_last=False)
    total = len(loader.starts)
    starts = [spread(WindowLoader(store, 1, 8, shuffle=False), 30, seed).starts for seed in (0, 1)]
    for chosen in starts:
        assert (chosen * 30 // total == np.arange(30)).all()
    assert (starts[0] != starts[1]).any()
    assert len(spread(loader, 10**6).starts) == total
    found = score(lambda z: z, store, split=("2004-06", "2005-02"), states=9)
    assert found.attrs["states"] == 9


def test_climate_of_any_hour():
    r"""The season is that of the formula; SST over land stays 0."""
    domain = Domain(model(), channels=("sst", "z500"))
    times = stretches(7, 3)
    found = Climate(climatology(), domain).at(times)
    expected = np.broadcast_to(season(times)[..., None, None, None], found.shape).copy()
    expected[:, :, 0, LAND] = 0.0
    np.testing.assert_allclose(found.numpy(), expected, atol=3e-6 * SEASON)


def test_refusals(store):
    spoiled = model()
    with pytest.raises(DataError, match="unknown split 'tset'; did you mean 'test'"):
        score_autoencoder(spoiled, store, "tset")
    with pytest.raises(DataError, match="no channel 'z5000'; did you mean 'z500'"):
        Domain(spoiled, channels=("z5000",))
    other = climatology().isel(longitude=slice(None, None, 2))
    with pytest.raises(DataError, match="the climatology is of Grid"):
        score_autoencoder(spoiled, store, climatology=other)
    with pytest.raises(DataError, match="has no 'geopotential_std'"):
        score_autoencoder(spoiled, store, climatology=climatology().drop_vars("geopotential_std"))
    spoiled.standardizer = None
    with pytest.raises(DataError, match="no statistics of states"):
        score_autoencoder(spoiled, store)


def test_a_network(store):
    r"""A network with random weights: its error is that of its own decoder and encoder."""
    torch.manual_seed(0)
    real = Model(config(), build_autoencoder(config()), statistics=statistics())
    found = score_autoencoder(real, store, states=10_000, spectra=1)
    x = real.standardizer.to_tensor(store.sel(time=slice("2004", "2005")))  # type: ignore[union-attr]
    with torch.no_grad():
        error = (real.autoencoder(x) - x).double().numpy()
    weights = np.stack([WEIGHTS, SEA, WEIGHTS, WEIGHTS])
    square = (weights * error**2).sum((-2, -1)).mean(0) / weights.sum((-2, -1))
    np.testing.assert_allclose(found["rmse"], np.sqrt(square), rtol=1e-4)
