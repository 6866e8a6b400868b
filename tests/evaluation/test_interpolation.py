r"""Optimal interpolation against dense Gaussian conditioning, written out in NumPy."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from typer.testing import CliRunner

from appa.cli.baseline import app
from appa.data.grids import Grid
from appa.errors import AppaError, ConfigError, DataError
from appa.evaluation.anomalies import estimate
from appa.evaluation.autoregression import Autoregression
from appa.evaluation.conditioning import Interpolation, Observed
from appa.evaluation.covariances import Covariance, Prior
from appa.evaluation.ensembles import averages
from appa.evaluation.interpolation import Settings, interpolate, tune
from appa.observations.collection import Observations
from appa.observations.operators import compile_observations
from appa.observations.reading import read_observations
from appa.tasks.analyses import open_analysis

from . import worlds

GRID = Grid("gaussian", 4, 8)
C, H, W = 4, 4, 8
M, K, LAGS, HOURS = 4, 3, 2, 5  # waves 0 to 3 have modes; the window is longer than the lags
MEAN, STD = np.array([3.0, -4.0, 280.0, 250.0]), np.array([5.0, 4.0, 20.0, 10.0])
NAMES = ["10m_u_component_of_wind", "10m_v_component_of_wind", "temperature", "temperature"]
START = np.datetime64("2021-03-21T00", "s")
TIMES = START + np.arange(HOURS) * np.timedelta64(3600, "s")


class World:
    r"""A covariance made by hand: dynamics A of modes, whose correlations at lag l are A^l."""

    def __init__(self, seed: int = 0):
        rng = np.random.default_rng(seed)
        shape = (M, K, C, H)
        self.u = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
        a = rng.standard_normal((M, K, K)) + 1j * rng.standard_normal((M, K, K))
        self.u[0], a[0] = self.u[0].real, a[0].real  # the mean along a parallel is real
        self.a = 0.9 * a / np.linalg.norm(a, 2, axis=(1, 2))[:, None, None]
        self.residual = rng.uniform(0.2, 1.0, (W // 2 + 1, C, H))
        self.rho = rng.uniform(0.3, 0.9, (W // 2 + 1, C))
        self.variance = rng.uniform(0.1, 0.4, (C, H, W))
        self.mean = 0.3 * rng.standard_normal((C, H, W))

    def dataset(self) -> xr.Dataset:
        lags = np.stack([np.stack([np.linalg.matrix_power(a, n) for a in self.a]) for n in (1, 2)])
        rest = np.stack([self.rho, self.rho**2]) + 0j
        space = ("channel", "latitude", "longitude")

        def parts(x: np.ndarray) -> np.ndarray:
            return np.stack([np.real(x), np.imag(x)])

        return xr.Dataset(
            {
                "climate": (("coefficient", *space), self.mean[None]),
                "variance": (("season", *space), self.variance[None]),
                "modes": (("part", "wave", "mode", *space[:2]), parts(self.u)),
                "lags": (("part", "lag", "wave", "mode", "other"), parts(lags)),
                "residual": (("wavenumber", *space[:2]), self.residual),
                "residual_lags": (("part", "lag", "wavenumber", "channel"), parts(rest)),
                "mean": ("channel", MEAN),
                "std": ("channel", STD),
            },
            {
                "channel": ["u10", "v10", "t500", "t850"],
                "variable": ("channel", NAMES),
                "level": ("channel", [np.nan, np.nan, 500.0, 850.0]),
                "latitude": GRID.latitude,
                "longitude": GRID.longitude,
            },
            {"harmonics": 0, "diurnal": 0},
        )

    def dense(self, hours: int = HOURS) -> np.ndarray:
        r"""B by the inverse transform of each wave's covariance, term by term."""
        lon = np.radians(GRID.longitude)
        apart = lon[:, None] - lon
        b = np.zeros((hours, C, H, W, hours, C, H, W))
        for s in range(hours):
            for t in range(s + 1):
                for m in range(W // 2 + 1):
                    block = np.zeros((C, H, C, H), complex)
                    if m < M:
                        r = np.linalg.matrix_power(self.a[m], s - t)
                        block += np.einsum("ich,ij,jdg->chdg", self.u[m], r, self.u[m].conj())
                    for c in range(C):
                        for h in range(H):
                            power = self.residual[m, c, h] * self.rho[m, c] ** (s - t)
                            block[c, h, c, h] += power
                    twice = 1 if m in (0, W // 2) else 2
                    wave = twice / W * np.exp(1j * m * apart)
                    part = np.einsum("chdg,xy->chxdgy", block, wave).real
                    b[s, :, :, :, t] += part
                if s != t:
                    b[t, :, :, :, s] = np.moveaxis(b[s, :, :, :, t], (3, 4, 5), (0, 1, 2))
        sigma = np.sqrt(np.broadcast_to(self.variance, (hours, C, H, W)))
        b *= sigma[..., None, None, None, None] * sigma
        n = hours * C * H * W
        return b.reshape(n, n)


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def dense(world: World) -> np.ndarray:
    return world.dense()


@pytest.fixture(scope="module")
def prior(world: World) -> Prior:
    return Prior(Covariance(world.dataset()), TIMES, dtype=torch.float64)


def observations() -> tuple[pd.DataFrame, np.ndarray]:
    r"""A table, and its rows of H in standardized states by hand (but for wind speed)."""
    rng = np.random.default_rng(3)
    rows, matrix = [], []
    for _ in range(40):
        t, c, h, x = (int(rng.integers(n)) for n in (HOURS, C, H, W))
        half = bool(rng.integers(2))  # midway to the next point of the parallel
        line = np.zeros((HOURS, C, H, W))
        line[t, c, h, x] = 1 - half / 2
        line[t, c, h, (x + 1) % W] += half / 2
        error = float(rng.uniform(0.05, 0.5) * STD[c])
        value = MEAN[c] + STD[c] * rng.standard_normal()
        level = np.nan if c < 2 else (500, 850)[c - 2]
        place = GRID.latitude[h], (GRID.longitude[x] + half * 22.5) % 360
        rows.append((TIMES[t], *place, NAMES[c], level, value, error))
        matrix.append(line.ravel() * STD[c] / error)
    columns = ["time", "latitude", "longitude", "variable", "level", "value", "error"]
    table = pd.DataFrame(rows, columns=columns)
    return table, np.array(matrix)


def test_the_prior_is_the_dense_covariance(prior: Prior, dense: np.ndarray):
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((3, *prior.mean.shape)))
    expected = x.flatten(1).numpy() @ dense
    torch.testing.assert_close(prior.product(x).flatten(1).numpy(), expected, rtol=1e-9, atol=1e-9)


def test_localization_is_a_product_with_a_correlation(world: World, dense: np.ndarray):
    covariance = Covariance(world.dataset())
    local = Prior(covariance, TIMES, localization=30.0, dtype=torch.float64)
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((2, *local.mean.shape)))
    apart = GRID.latitude[:, None] - GRID.latitude
    rho = np.exp(-(apart**2) / (2 * 30.0**2))
    cube = dense.reshape(HOURS * C, H, W, HOURS * C, H, W) * rho[:, None, None, :, None]
    expected = x.flatten(1).numpy() @ cube.reshape(dense.shape)
    found = local.product(x).flatten(1).numpy()
    # the taper's smallest roots are left out, a thousandth of its trace
    assert np.linalg.norm(found - expected) < 1e-2 * np.linalg.norm(expected)
    assert np.linalg.norm(found - expected) < 0.1 * np.linalg.norm(
        found - x.flatten(1).numpy() @ dense
    )
    # draws have it too: of n, products err by sqrt(2 / n) of the largest variance at most
    draws, n = local.draw(list(range(4000))).flatten(1).numpy(), 4000
    few = slice(None, None, 97)
    off = draws.T[few] @ draws / n - cube.reshape(dense.shape)[few]
    assert np.sqrt(np.mean(off**2)) < 2 * np.sqrt(2 / n) * dense.diagonal().mean()
    # another of the same covariance at once is its own, and later the first is what it was
    plain = Prior(covariance, TIMES, dtype=torch.float64).product(x).flatten(1).numpy()
    np.testing.assert_allclose(plain, x.flatten(1).numpy() @ dense, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(local.product(x).flatten(1).numpy(), found)


def test_fewer_modes_keep_the_variance(world: World, dense: np.ndarray):
    few = Prior(Covariance(world.dataset()), TIMES, modes=1, dtype=torch.float64)
    n = few.mean.numel()
    eye = torch.eye(n, dtype=torch.float64)[::7].unflatten(1, few.mean.shape)
    found = few.product(eye).flatten(1).numpy()
    np.testing.assert_allclose(np.diag(found[:, ::7]), np.diag(dense)[::7], rtol=1e-9)


def test_the_mean_and_covariance_are_those_of_gaussian_conditioning(
    prior: Prior, dense: np.ndarray
):
    table, h = observations()
    s = 1.5
    used = read_observations(table, levels=[500, 850])
    covariance = Covariance(World().dataset())
    operators = compile_observations(used, covariance.space, TIMES)
    observed = Observed(operators, prior.mean, error=s)
    solver = Interpolation(prior, observed, iterations=500, tolerance=1e-12)

    mu = prior.mean.numpy().ravel()
    channel = [2 if p == 500 else 3 if p == 850 else NAMES.index(v) for v, p in zip(
        table["variable"], table["level"], strict=True)]  # fmt: skip
    y = (table["value"].to_numpy() - MEAN[channel]) / table["error"].to_numpy()
    gain = dense @ h.T @ np.linalg.inv(h @ dense @ h.T + s**2 * np.eye(len(h)))
    # operators' weights are in single precision
    expected = mu + gain @ (y - h @ mu)
    found = solver.mean().numpy().ravel()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(expected - mu).max() > 0.3  # they were of some use

    p = dense - gain @ h @ dense
    x = torch.from_numpy(np.random.default_rng(2).standard_normal((2, *prior.mean.shape)))
    found = solver.product(x).flatten(1).numpy()
    np.testing.assert_allclose(found, x.flatten(1).numpy() @ p, atol=1e-4)

    # members are draws of it: projections on random vectors have its mean and variance
    g = np.random.default_rng(4).standard_normal((8, len(mu)))
    solver.tolerance = 1e-6
    draws = solver.draw(range(300)).flatten(1).numpy() @ g.T
    z = (draws - g @ expected) / np.sqrt(np.einsum("in,nm,im->i", g, p, g))
    assert abs(z.mean()) < 4 / np.sqrt(z.size)
    assert abs((z**2).mean() - 1) < 4 * np.sqrt(2 / z.size)
    free = prior.draw(list(range(300))).flatten(1).numpy() @ g.T
    z = free / np.sqrt(np.einsum("in,nm,im->i", g, dense, g))
    assert abs((z**2).mean() - 1) < 4 * np.sqrt(2 / z.size)


def test_wind_speed_is_linearized_at_the_climatology(world: World, prior: Prior, dense: np.ndarray):
    h, x, t, error = 1, 3, 2, 0.5
    mu = prior.mean.numpy()
    u, v = (MEAN[c] + STD[c] * mu[t, c, h, x] for c in (0, 1))
    speed = np.hypot(u, v)
    line = np.zeros(mu.shape)
    line[t, 0, h, x], line[t, 1, h, x] = STD[0] * u / speed, STD[1] * v / speed
    line = line.ravel() / error
    table = pd.DataFrame(
        {
            "time": [TIMES[t]],
            "latitude": GRID.latitude[h],
            "longitude": GRID.longitude[x],
            "variable": "10m_wind_speed",
            "level": np.nan,
            "value": speed + 2.0,
            "error": error,
        }
    )
    operators = compile_observations(
        read_observations(table), Covariance(world.dataset()).space, TIMES
    )
    solver = Interpolation(prior, Observed(operators, prior.mean), 50, 1e-10)
    b = dense @ line
    expected = mu.ravel() + b * (2.0 / error) / (line @ b + 1)
    np.testing.assert_allclose(solver.mean().numpy().ravel(), expected, atol=2e-4)


def test_measured_correlations_need_not_be_of_any_process():
    # Correlations of 0.9, then -0.9: no process has them, 1.62 - 1 + 0.9 > 0 by far.
    process = Autoregression(torch.tensor([0.9, -0.9], dtype=torch.float64)[:, None, None])
    ridge = float(process.ridge)
    x = process(torch.eye(6, dtype=torch.float64)[:, None])[:, 0]
    found = (x @ x.T).numpy()
    assert ridge > 0
    np.testing.assert_allclose(np.diag(found), 1, rtol=1e-9)
    np.testing.assert_allclose(np.diag(found, 1)[:2], 0.9 / (1 + ridge), rtol=1e-9)
    np.testing.assert_allclose(np.diag(found, 2)[:3], -0.9 / (1 + ridge), rtol=1e-9)


# ---------------------------------------------------------------- estimation


def weather(stretches: int, hours: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    r"""Waves of two numbers that travel and fade, of known correlation, and noise: standardized
    anomalies (N, L, 4, H, W) of the worlds' grid, and the covariance of its channels and hours 0
    and 3 at one point, by lag."""
    rng = np.random.default_rng(seed)
    h, w = worlds.GRID.shape
    lon = 2 * np.pi * np.arange(w) / w
    out = 0.5 * rng.standard_normal((stretches, hours, 4, h, w))
    for m, memory in ((1, 0.95 * np.exp(0.3j)), (3, 0.8 * np.exp(-0.5j))):
        z = rng.standard_normal((2, stretches, hours)) / np.sqrt(2)
        z = z[0] + 1j * z[1]
        for t in range(1, hours):
            z[:, t] = memory * z[:, t - 1] + np.sqrt(1 - abs(memory) ** 2) * z[:, t]
        pattern = np.exp(1j * np.arange(4)[:, None, None] + 1j * m * lon)  # shifted by channel
        out += np.sqrt(1 / 2) * (z[..., None, None, None] * pattern).real * np.ones((h, 1))
    return out, worlds.stretches(stretches, hours)


def store(stretches: int, hours: int, seed: int) -> xr.Dataset:
    a, times = weather(stretches, hours, seed)
    values = worlds.SPREAD * a + worlds.season(times)[:, :, None, None, None]
    ds = worlds.dataset(values.reshape(-1, *values.shape[2:]), times.ravel())
    return ds.assign_coords(trajectory=("time", np.repeat(np.arange(stretches), hours)))


def response(cov: Covariance) -> np.ndarray:
    r"""The correlations of z500 at a point with z500 and z850 of its parallel, 3 hours later."""
    times = np.datetime64("2004-02-01T00", "s") + np.arange(8) * np.timedelta64(3600, "s")
    prior = Prior(cov, times, dtype=torch.float64)
    x = torch.zeros(1, *prior.mean.shape, dtype=torch.float64)
    x[0, 2, 2, 5, 4] = 1 / prior.deviation[2, 2, 5, 4]
    return (prior.product(x)[0] / prior.deviation)[5, 2:, 5].numpy()


def expected_response() -> np.ndarray:
    lon = 2 * np.pi * (np.arange(16) - 4) / 16
    found = np.zeros((2, 16))
    for m, memory in ((1, 0.95 * np.exp(0.3j)), (3, 0.8 * np.exp(-0.5j))):
        for k in range(2):
            found[k] += 0.25 / 0.75 * (memory**3 * np.exp(1j * (k + m * lon))).real
    return found


def test_the_estimate_converges_to_the_truth():
    errors = []
    for count in (4, 64):
        cov = estimate(
            store(count, 48, seed=count), worlds.climatology(), modes=3, waves=4, lags=4, every=1
        )
        errors.append(np.sqrt(np.mean((response(cov) - expected_response()) ** 2)))
    # |z|² has a memory of 20 h, so that 64 · 48 hours are 157 numbers, of which a correlation of
    # 1/3 is known to 0.019, root mean square over the wave; of a sixteenth of them, to 0.076
    assert errors[1] < 0.04
    assert errors[0] > 2 * errors[1]


@pytest.fixture(scope="module")
def known() -> Covariance:
    return estimate(store(48, 72, seed=1), worlds.climatology(), modes=4, waves=5, lags=6)


def test_without_observations_it_is_climatology_with_its_spread(known: Covariance, tmp_path):
    path = known.save(tmp_path / "cov.nc")
    cov = Covariance.load(path)
    ds = interpolate(cov, None, "2004-05-01T00", 2, members=300, seed=2, batch=300)
    assert dict(ds.sizes) == {
        "member": 300, "time": 2, "latitude": 8, "longitude": 16, "level": 2
    }  # fmt: skip
    season = worlds.season(ds["time"].values)
    x = (ds["geopotential"].sel(level=500).values - worlds.MEAN[2]) / worlds.STD[2]
    a = (x - season[:, None, None]) / worlds.SPREAD
    # 0.25 of noise and 2 · 0.25 of waves: 5 % by 300 draws, 7 % by 48 · 72 hours of training
    # with a memory of a day, by season
    assert abs(a.mean()) < 0.05
    np.testing.assert_allclose(a.var(axis=(0, 1, 3)), 0.75, rtol=0.25)
    sst = ds["sea_surface_temperature"].values
    assert np.isnan(sst[..., worlds.LAND]).all()
    sst = (sst - worlds.MEAN[1]) / worlds.STD[1] - season[:, None, None]
    sea = np.where(worlds.LAND, np.nan, sst / worlds.SPREAD)
    np.testing.assert_allclose(np.nanvar(sea, axis=(0, 1, 3)), 0.75, rtol=0.25)


def observe(truth: xr.Dataset) -> Observations:
    return read_observations(stations(truth), levels=[500, 850])


def stations(truth: xr.Dataset) -> pd.DataFrame:
    r"""All hours of geopotential at every fourth point, almost exact."""
    part = truth["geopotential"].isel(latitude=slice(0, None, 2), longitude=slice(0, None, 4))
    table = part.to_dataframe(name="value").reset_index()[
        ["time", "level", "latitude", "longitude", "value"]
    ]
    return table.assign(variable="geopotential", error=100.0)


def test_it_is_better_than_climatology_and_tuned_elsewhere(known: Covariance):
    truth = store(3, 24, seed=9)
    starts = truth["time"].values[::24]
    obs = observe(truth)
    cases = [(obs, starts[0])]
    best, table = tune(
        known,
        cases,
        truth,
        grid={"localization": (None,), "error": (30.0, 1.0), "order": (0, 1, 400)},
        members=6,
    )
    assert (best.error, best.order) == (1.0, 1)
    assert len(table) == 3
    least = table.sort_values("crps").iloc[0]
    assert (least["error"], least["order"]) == (1.0, 1)
    with pytest.raises(DataError, match="tuned on 2004-01-03T00 to 2004-01-03T23"):
        interpolate(known, obs, starts[0] + np.timedelta64(20, "h"), 24, settings=best)

    ds = interpolate(known, obs, starts[1], 24, members=10, settings=best)
    scores = averages(ds, truth).isel(region=0).mean("time")
    sigma = worlds.STD[3] * np.sqrt(0.75 * (worlds.SPREAD[:, 0] ** 2 * worlds.GRID.weights).mean())
    # waves are seen, noise between stations is not: two thirds of the variance at the least
    z850 = scores.sel(channel="z850")
    assert float(z850["squared_error"]) < 0.6 * sigma**2
    ratio = np.sqrt(float(z850["variance"]) * 1.1 / float(z850["squared_error"]))
    assert 0.85 < ratio < 1.15
    # t2m is not observed, and shares the waves
    sigma = sigma / worlds.STD[3] * worlds.STD[0]
    assert float(scores.sel(channel="t2m")["squared_error"]) < 0.6 * sigma**2


def test_a_member_depends_on_its_seed_and_number_alone(known: Covariance):
    obs = observe(store(1, 24, seed=9))
    kwargs = {"seed": 5, "tolerance": 1e-6, "dtype": torch.float64}
    two = interpolate(known, obs, "2004-01-03T00", 6, members=2, batch=1, **kwargs)
    one = interpolate(known, obs, "2004-01-03T00", 6, members=3, **kwargs)
    np.testing.assert_allclose(
        two["geopotential"].values, one["geopotential"].values[:2], rtol=1e-5
    )


def test_bad_input_is_told(known: Covariance, tmp_path):
    hourly = store(2, 12, seed=0)
    clim = worlds.climatology()
    with pytest.raises(DataError, match="longest stretch of consecutive hours has 1"):
        estimate(hourly.isel(time=slice(0, None, 4)), clim, modes=2, lags=1)
    with pytest.raises(DataError, match="lags up to 12 cannot"):
        estimate(hourly, clim, modes=2, lags=12)
    with pytest.raises(DataError, match="no climatology"):
        estimate(hourly, hourly)
    with pytest.raises(DataError, match="modes=5; the covariance has 4"):
        interpolate(known, None, "2004-01-03T00", 2, settings=Settings(modes=5))
    with pytest.raises(DataError, match="expected one whole hour"):
        interpolate(known, None, "2004-01-03T00:30", 2)
    obs = observe(hourly)
    with pytest.raises(DataError, match="2019-01-03T00 and 2019-01-03T01"):
        interpolate(known, obs, "2019-01-03T00", 2)
    (tmp_path / "there.zarr").mkdir()
    with pytest.raises(AppaError, match="exists already"):
        interpolate(known, None, "2004-01-03T00", 2, out=tmp_path / "there.zarr")
    (tmp_path / "s.json").write_text('{"mode": 3}')
    with pytest.raises(ConfigError, match="did you mean 'modes'"):
        Settings.load(tmp_path / "s.json")


def test_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from appa.data import climatology

    store(4, 24, seed=3).to_zarr("train.zarr", consolidated=False)
    truth = store(1, 24, seed=9)
    truth.to_zarr("truth.zarr", consolidated=False)
    climatology.save(worlds.climatology(), "clim.nc")
    stations(truth).to_csv("obs.csv", index=False)
    runner = CliRunner()
    made = runner.invoke(app, ["covariance", "train.zarr", "--climatology", "clim.nc",
                               "--modes", "3", "--lags", "5", "--out", "cov.nc"])  # fmt: skip
    assert made.exit_code == 0, made.output
    assert "96 hours in 4 stretches" in made.output
    line = ["oi", "obs.csv", "--covariance", "cov.nc", "--start", "2004-01-03T00"]
    found = runner.invoke(app, [*line, "--hours", "24", "--members", "3", "--out", "oi.zarr"])
    assert found.exit_code == 0, found.output
    ds = open_analysis("oi.zarr")
    assert ds.sizes["member"] == 3
    scores = averages(ds, "truth.zarr")
    assert float(scores["share"].sel(channel="z500").min()) > 0.999

    # two of one setting, and one more of the other
    line = ["tune", "obs.csv", "--covariance", "cov.nc", "--truth", "truth.zarr", "--members", "2",
            "--start", "2004-01-03T00", "--localization", "25,none", "--out", "a.json"]  # fmt: skip
    found = runner.invoke(app, [*line, "--error", "1,2"])
    assert found.exit_code == 0, found.output
    rows = [text.split() for text in found.output.splitlines()[1:4]]
    least = min(rows, key=lambda row: float(row[4]))
    best = Settings.load("a.json")
    assert best.error == float(least[3])
    assert best.localization == (None if least[0] == "·" else float(least[0]))
    assert best.tuned
    assert {row[3] for row in rows} == {"1.0000", "2.0000"}
    assert {row[0] for row in rows} == {"25.0000", "·"}
    refused = runner.invoke(app, [*line, "--error", "1,none"])
    assert isinstance(refused.exception, ConfigError)
