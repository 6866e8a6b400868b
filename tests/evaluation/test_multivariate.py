r"""Scores of fields: another library, expectations of normal ensembles, and spectra by design."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy.special import gamma

from appa.data.grids import Grid, great_circle
from appa.errors import DataError
from appa.evaluation.multivariate import (
    choose_pairs,
    energy_score,
    field_scores,
    spread_spectra,
    variogram_score,
)
from appa.evaluation.scores import evaluate

GRID = Grid("gaussian", 16, 32)
SPACE = ("latitude", "longitude")


def dataset(values: np.ndarray, name: str = "2m_temperature") -> xr.Dataset:
    dims = ("member", "time", *SPACE)[4 - values.ndim :]
    times = pd.date_range("2021-03-21", periods=values.shape[-3], freq="h")
    coords = {"time": times, "latitude": GRID.latitude, "longitude": GRID.longitude}
    return xr.Dataset({name: (dims, values)}, coords)


@pytest.mark.parametrize("members", [2, 5, 20])
def test_another_library(members):
    r"""`scoringrules` with its estimator `fair`, whose norms have no weights, and which sums each
    pair twice."""
    sr = pytest.importorskip("scoringrules", reason="the extra 'dev' is not installed")
    rng = np.random.default_rng(members)
    x, y = rng.normal(size=(members, 50, 6)), rng.normal(1, 2, size=(50, 6))
    ours = np.moveaxis(x, 0, 1)
    found = energy_score(x - y)
    expected = sr.es_ensemble(y, ours, estimator="fair", backend="numpy")
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    weights = rng.uniform(0.1, 1, 6)
    root = np.sqrt(weights)
    expected = sr.es_ensemble(y * root, ours * root, estimator="fair", backend="numpy")
    np.testing.assert_allclose(energy_score(x - y, weights), expected, rtol=0, atol=1e-12)

    pairs = np.argwhere(np.triu(np.ones((6, 6)), 1))
    for p in (0.5, 1.0):
        expected = sr.vs_ensemble(y, ours, p=p, estimator="fair", backend="numpy") / 30
        np.testing.assert_allclose(variogram_score(x, y, pairs, p=p), expected, rtol=0, atol=1e-12)
    chosen = rng.uniform(size=15)
    full = np.zeros((6, 6))
    full[tuple(pairs.T)] = chosen
    expected = sr.vs_ensemble(y, ours, np.tile(full, (50, 1, 1)), estimator="fair", backend="numpy")
    np.testing.assert_allclose(variogram_score(x, y, pairs, chosen), expected, rtol=0, atol=1e-12)
    # one member, of which both libraries' default is the same
    expected = sr.es_ensemble(y, ours[:, :1], estimator="nrg", backend="numpy")
    np.testing.assert_allclose(energy_score(x[:1] - y), expected, rtol=0, atol=1e-12)
    expected = sr.vs_ensemble(y, ours[:, :1], backend="numpy") / 30
    np.testing.assert_allclose(variogram_score(x[:1], y, pairs), expected, rtol=0, atol=1e-12)


def test_a_common_error_loses_no_digits():
    r"""Members 1e-3 apart and 1e5 off: the distances between them are still known."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=(4, 30))
    found = energy_score(1e5 + 1e-3 * a) - np.linalg.norm(1e5 + 1e-3 * a, axis=1).mean()
    apart = np.linalg.norm(a[:, None] - a, axis=-1).sum() / (2 * 4 * 3)
    assert found == pytest.approx(-1e-3 * apart, rel=1e-4)


@pytest.mark.parametrize("members", [2, 8])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_expectation_of_normal_ensembles(members, sigma):
    r"""Members N(0, σ² I) of truths N(0, I) in d dimensions: with
    :math:`c_d = \sqrt 2 \, \Gamma((d + 1) / 2) / \Gamma(d / 2)` the mean norm of N(0, I), the
    energy score is :math:`c_d (\sqrt{1 + \sigma^2} - \sigma / \sqrt 2)`, and the variogram score
    of roots :math:`(\sqrt[4]{2 \sigma^2} - \sqrt[4]{2})^2 c^2 + \sqrt 2 (c_1 - c^2)`, with
    :math:`c` the mean root of :math:`|\varepsilon|`; for any number of members."""
    rng, d, n = np.random.default_rng(members), 5, 20_000
    x, y = sigma * rng.normal(size=(members, n, d)), rng.normal(size=(n, d))
    c_d = np.sqrt(2) * gamma((d + 1) / 2) / gamma(d / 2)
    found = energy_score(x - y)
    expected = c_d * (np.sqrt(1 + sigma**2) - sigma / np.sqrt(2))
    assert abs(found.mean() - expected) < 4 * found.std() / np.sqrt(n)

    c_1, c = np.sqrt(2 / np.pi), 2**0.25 * gamma(0.75) / np.sqrt(np.pi)
    found = variogram_score(x, y, np.array([[0, 1], [2, 3]]))
    expected = np.sqrt(2) * ((np.sqrt(sigma) - 1) ** 2 * c**2 + c_1 - c**2)
    assert abs(found.mean() - expected) < 4 * found.std() / np.sqrt(n)


def test_proper():
    r"""Calibrated members are best; a wrong correlation is seen by the variogram score."""
    rng, n, m, d = np.random.default_rng(0), 4000, 8, 6
    lag = np.abs(np.arange(d)[:, None] - np.arange(d))

    def draw(*shape, rho=0.8):
        return rng.normal(size=(*shape, d)) @ np.linalg.cholesky(rho**lag).T

    y, pairs = draw(n), np.argwhere(lag == 1)
    right = draw(m, n)
    wrong = {
        "biased": right + 0.5,
        "sure": 0.5 * right,
        "unsure": 1.8 * right,
        "uncorrelated": draw(m, n, rho=0.0),
    }
    for name, x in wrong.items():
        energy = energy_score(x - y) - energy_score(right - y)
        vario = variogram_score(x, y, pairs) - variogram_score(right, y, pairs)
        assert energy.mean() > 4 * energy.std() / np.sqrt(n), name
        if name != "biased":  # which differences between points do not see
            assert vario.mean() > 4 * vario.std() / np.sqrt(n), name
    np.testing.assert_allclose(
        variogram_score(wrong["biased"], y, pairs), variogram_score(right, y, pairs), atol=1e-9
    )


def test_pairs():
    r"""As far apart as points drawn from a cap: half of its area within :math:`1 / \sqrt 2` of the
    radius, nearly; as many in the north as its area, and others with another seed."""
    grid = Grid("equiangular", 91, 180)
    pairs = choose_pairs(grid, 5000, 2000.0, seed=3)
    latitude, longitude = (
        v.ravel() for v in np.meshgrid(grid.latitude, grid.longitude, indexing="ij")
    )
    i, j = pairs.T
    apart = great_circle(latitude[i], longitude[i], latitude[j], longitude[j]) / 1e3
    assert pairs.shape == (5000, 2)
    assert apart.max() <= 2000
    assert (apart > 0).all()
    # distances are rounded to grid points 222 km apart
    assert abs(np.median(apart) - 2000 / np.sqrt(2)) < 50
    assert abs((latitude[i] > 30).mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 5000) + 0.01
    assert (choose_pairs(grid, 5000, 2000.0, seed=3) == pairs).all()
    assert (choose_pairs(grid, 5000, 2000.0, seed=4) != pairs).any()
    with pytest.raises(DataError, match="longer reach"):
        choose_pairs(GRID, 10, 1.0)


def test_fields_with_holes():
    r"""Against sums over defined points by area, and over pairs of them, in regions and hours."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, 2, *GRID.shape)), rng.normal(size=(2, *GRID.shape))
    y[1, 3:6] = np.nan
    x[2, 0, :, 4] = np.nan
    pairs = choose_pairs(GRID, 300, 3000.0)
    found = field_scores(dataset(x), dataset(y), regions=("global", "tropics"), pairs=pairs).sel(
        channel="t2m"
    )
    tropics = np.abs(GRID.latitude) < 20
    for g, rows in enumerate((np.ones(16, bool), tropics)):
        for t in range(2):
            inside = rows[:, None] & ~np.isnan(x[:, t].sum(0) + y[t])
            w = (GRID.weights[:, None] * inside)[inside]
            expected = energy_score(x[:, t][:, inside] - y[t][inside], w / w.sum())
            assert float(found["energy"][g, t]) == pytest.approx(float(expected))
            kept = pairs[inside.ravel()[pairs].all(axis=1)]
            expected = variogram_score(x[:, t].reshape(3, -1), y[t].ravel(), kept)
            assert float(found["variogram"][g, t]) == pytest.approx(float(expected))
    one = field_scores(dataset(x).isel(member=0, drop=True), dataset(y))
    skill = evaluate(dataset(x).isel(member=0, drop=True), dataset(y))["skill"]
    np.testing.assert_allclose(one["energy"], skill, rtol=1e-6)
    with pytest.raises(DataError, match="0 to 511"):
        field_scores(dataset(x), dataset(y), pairs=np.array([[0, 512]]))


# ---------------------------------------------------------------- by wavelength


def random_fields(shape: tuple[int, ...], amplitude: np.ndarray, rng) -> np.ndarray:
    r"""Isotropic normal fields whose harmonics of wavenumber l have a given deviation."""
    ducc0 = pytest.importorskip("ducc0", reason="the extra 'evaluation' is not installed")
    last = len(amplitude) - 1
    degree = np.concatenate([np.arange(m, last + 1) for m in range(last + 1)])
    real = np.arange(len(degree)) <= last
    found = np.empty((int(np.prod(shape)), *GRID.shape))
    for k in range(len(found)):
        a = rng.normal(size=len(degree)) + 1j * rng.normal(size=len(degree))
        a = np.where(real, a.real, a / np.sqrt(2)) * amplitude[degree]
        found[k] = ducc0.sht.synthesis_2d(
            alm=a[None], spin=0, lmax=last, geometry="GL", ntheta=16, nphi=32
        )[0]
    return found.reshape(*shape, *GRID.shape)


def test_spread_by_wavelength():
    r"""Members too sure at large scales, right at middle ones and too unsure at small ones: with
    amplitudes c of the truth's, the ratio is :math:`\sqrt{(1 + 1/M) c^2 / (1 + c^2 / M)}`. Each
    wavenumber of an hour has :math:`2 l + 1` independent harmonics."""
    rng, m, hours, last = np.random.default_rng(0), 5, 60, 15
    amplitude = 1.0 / (1 + np.arange(last + 1))
    c = np.where(np.arange(last + 1) < 5, 0.5, np.where(np.arange(last + 1) < 10, 1.0, 2.0))
    truth = dataset(random_fields((hours,), amplitude, rng))
    estimate = dataset(random_fields((m, hours), c * amplitude, rng))
    ds = spread_spectra(estimate, truth).sel(channel="t2m")
    expected = np.sqrt((1 + 1 / m) * c**2 / (1 + c**2 / m))
    # of a ratio of roots of mean squares, of 1 error and m - 1 deviations a harmonic
    count = hours * (2 * np.arange(last + 1) + 1)
    error = np.sqrt((1 + 1 / (m - 1)) / (2 * count))
    assert (np.abs(ds["ratio"] / expected - 1) < 4 * error).all()
    degree = np.arange(last + 1)
    power = (2 * degree + 1) * amplitude**2 * (1 + c**2 / m) / (4 * np.pi)
    assert (np.abs(ds["error"] / power - 1) < 4 * np.sqrt(2 / count)).all()

    # Parseval: the sums are those of the scores
    scores = evaluate(estimate, truth, by="all").isel(region=0).sel(channel="t2m")
    assert float(ds["error"].sum()) == pytest.approx(float(scores["skill"]) ** 2, rel=1e-5)
    assert float(ds["variance"].sum()) == pytest.approx(float(scores["spread"]) ** 2, rel=1e-5)
    assert float(ds["wavelength"][1]) == pytest.approx(2 * np.pi * 6371.229 / np.sqrt(2))

    hourly = spread_spectra(estimate.chunk(time=7), truth, by="time")
    np.testing.assert_allclose(hourly["error"].mean("time")[0], ds["error"], rtol=1e-9)


def test_bias_has_a_wavelength():
    r"""A constant error is wavenumber 0, and nothing else."""
    rng = np.random.default_rng(0)
    y = random_fields((4,), np.full(10, 0.3), rng)
    x = y + random_fields((6, 4), np.full(10, 0.3), rng)
    x = x - x.mean(axis=0) + y + 2.0
    ds = spread_spectra(dataset(x), dataset(y)).isel(channel=0)
    assert float(ds["error"][0]) == pytest.approx(4, rel=1e-6)
    assert float(ds["error"][1:].max()) < 1e-9
    assert (ds["variance"][:10] > 0.001).all()


def test_undefined_hours_take_no_part():
    rng = np.random.default_rng(0)
    y = random_fields((3,), np.full(10, 0.3), rng)
    x = y + random_fields((4, 3), np.full(10, 0.3), rng)
    whole = spread_spectra(dataset(x[:, :2]), dataset(y[:2]))
    y[2, 0, 0] = np.nan
    found = spread_spectra(dataset(x), dataset(y))
    np.testing.assert_allclose(found["error"], whole["error"])
    assert np.isnan(spread_spectra(dataset(x[:, 2:]), dataset(y[2:]), by="all")["ratio"][0]).all()
    with pytest.raises(DataError, match="single member"):
        spread_spectra(dataset(x[:1]), dataset(y))
