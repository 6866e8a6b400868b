r"""The covariance of r: correlation functions, and a known r found again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xarray as xr

from appa.data.grids import Grid
from appa.data.variables import Channel
from appa.errors import AppaError, DataError
from appa.observations.correlations import Mixture, SpaceAtoms, TimeAtoms
from appa.observations.representation import Representation, estimate

from .small_space import RADIUS, direction, places

T2M, SST, U10, V10 = (
    Channel(name)
    for name in (
        "2m_temperature",
        "sea_surface_temperature",
        "10m_u_component_of_wind",
        "10m_v_component_of_wind",
    )
)
GRID = Grid("gaussian", 16, 32)


def angles(rng, n: int) -> np.ndarray:
    p = rng.standard_normal((n, 3))
    p /= np.linalg.norm(p, axis=1, keepdims=True)
    return RADIUS * np.arccos(np.clip(p @ p.T, -1, 1))


# ---------------------------------------------------------------- correlation functions


@pytest.mark.parametrize("k", range(len(SpaceAtoms(1000.0))))
def test_components_are_correlations_on_the_sphere(k):
    d = angles(np.random.default_rng(0), 300)
    matrix = SpaceAtoms(1000.0)(k, d + 0.1 - 0.1 * np.eye(300))
    assert np.linalg.eigvalsh(matrix).min() > -1e-6


@pytest.mark.parametrize(
    ("value", "tolerance"),
    [
        (lambda t: 0.9**t, 0.02),
        (lambda t: (1 + t / 8) * np.exp(-t / 8), 0.02),  # AR(2) with a double root
        (lambda t: 0.3 + 0.7 * 0.8**t, 0.2),  # measured for a day, it may or may not go on
        (lambda t: np.where(t == 0, 1, 0.5 * np.exp(-t / 6)), 0.02),
    ],
)
def test_mixture_in_time(value, tolerance):
    lag = np.arange(24)
    mixture = Mixture(TimeAtoms(), lag, value(lag))
    assert abs(mixture(lag) - value(lag)).max() < 0.01
    far = np.arange(24, 96)
    assert abs(mixture(far) - value(far)).max() < tolerance
    hours = np.arange(96)
    matrix = mixture(np.abs(hours[:, None] - hours))
    assert np.linalg.eigvalsh(matrix).min() > -1e-9


def test_mixture_of_what_is_no_correlation():
    # Noise added to a correlation gives negative eigenvalues, which the mixture has not.
    rng, lag = np.random.default_rng(1), np.arange(24)
    noisy = 0.98**lag + 0.05 * rng.standard_normal(24) * (lag > 0)
    index = np.abs(lag[:, None] - lag)
    assert np.linalg.eigvalsh(noisy[index]).min() < -0.05
    mixture = Mixture(TimeAtoms(), lag, noisy)
    assert np.linalg.eigvalsh(mixture(index)).min() > -1e-9
    assert abs(mixture(lag) - 0.98**lag).max() < 0.1


def test_mixture_in_space_has_negative_lobes():
    # r of a low-pass decoder, as in a plane: large scales are missing from it.
    d = np.arange(0, 4000, 200.0)
    value = np.exp(-((d / 600) ** 2) / 2) * (1 - (d / 600) ** 2 / 2)
    mixture = Mixture(SpaceAtoms(400.0), d, value)
    assert value.min() < -0.1
    assert abs(mixture(d) - value).max() < 0.02
    matrix = mixture(angles(np.random.default_rng(2), 400))
    assert np.linalg.eigvalsh(matrix).min() > -1e-4  # a spline stands for it


# ---------------------------------------------------------------- estimation


def known_residuals(channels, std, length, memory, segments, hours, seed=0):
    r"""AR(1) in time, Gaussian in space by a dense Cholesky factor: (S, T, C, H, W)."""
    rng = np.random.default_rng(seed)
    latitude, longitude = places(GRID)
    phi, lam = np.radians(latitude), np.radians(longitude)
    p = np.stack([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)], -1)
    chord = RADIUS * np.linalg.norm(p[:, None] - p[None], axis=-1)
    out = np.empty((segments, hours, len(channels), GRID.latitudes * GRID.longitudes))
    for c, channel in enumerate(channels):
        rho = np.exp(-((chord / length) ** 2) / 2)  # of the chord, hence definite
        along = direction(channel.variable, latitude, longitude)
        rho = rho if along is None else rho * (along @ along.T)
        root = np.linalg.cholesky(rho + 1e-9 * np.eye(len(rho)))
        r = rng.standard_normal((segments, len(rho))) @ root.T
        for t in range(hours):
            out[:, t, c] = r
            new = rng.standard_normal((segments, len(rho))) @ root.T
            r = memory * r + np.sqrt(1 - memory**2) * new
    shape = (segments, hours, len(channels), *GRID.shape)
    return torch.from_numpy(out.reshape(shape) * std).float()


def test_a_known_residual_is_found_again():
    memory, length, segments, hours = 0.8, 1500.0, 40, 24
    std = 0.1 * (1.5 + np.sin(np.radians(places(GRID)[1])).reshape(GRID.shape))
    r = known_residuals([T2M, V10], std, length, memory, segments, hours)
    # r is a third of the state, and the reconstruction the rest
    rep = estimate(lambda x: x * 2 / 3, 3 * r, GRID, 12, channels=[T2M, V10])

    # A point's variance is estimated from hours of which (1 − m²)/(1 + m²) are independent.
    independent = segments * hours * (1 - memory**2) / (1 + memory**2)
    error = rep.std / std - 1
    assert np.sqrt((error**2).mean()) == pytest.approx(np.sqrt(1 / (2 * independent)), rel=0.4)
    # Bartlett: a correlation's variance at long lags is (1 + m²)/(1 − m²)/N. Of N, half the hours
    # are left at a lag of 12, for each of 4πR²/πl² places, of which large s leave fewer.
    lag, fourth = np.arange(13), (std**2).mean() ** 2 / (std**4).mean()
    regions = 4 * (RADIUS / length) ** 2 * fourth
    tolerance = 4 / np.sqrt(independent / 2 * regions)
    assert tolerance < 0.07
    assert abs(rep.dataset["correlation"].values - memory**lag).max() < tolerance
    assert abs(rep.in_time(0, lag) - memory**lag).max() < tolerance
    distance = np.linspace(0, 5000, 41)
    chord = 2 * RADIUS * np.sin(distance / RADIUS / 2)
    for c in (0, 1):
        assert rep.length[c] == pytest.approx(length, rel=0.05)
        assert abs(rep.in_space(c, distance) - np.exp(-((chord / length) ** 2) / 2)).max() < 0.06
    assert abs(rep.cross - np.eye(2)).max() < 0.05
    assert rep.dataset.attrs["hours"] == segments * hours


def test_what_is_always_wrong_persists():
    bias = torch.rand(1, *GRID.shape, generator=torch.Generator().manual_seed(0)) + 0.5
    x = torch.randn(48, 1, *GRID.shape, generator=torch.Generator().manual_seed(1))
    rep = estimate(lambda x: x - bias, x.split(24), GRID, 23, channels=[T2M])
    assert rep.std == pytest.approx(bias.numpy(), rel=1e-5)
    assert rep.dataset["correlation"].values == pytest.approx(1.0, abs=1e-5)
    assert rep.in_time(0, [0, 12, 23]) == pytest.approx(1.0, abs=1e-3)


def test_a_wind_blowing_over_the_pole_is_one_wind():
    # One Cartesian vector everywhere: its components turn with east and north, wholly correlated.
    rng, (latitude, longitude) = np.random.default_rng(3), places(GRID)
    along = [direction(c.variable, latitude, longitude) for c in (U10, V10)]
    a = rng.standard_normal((2000, 3))
    x = torch.from_numpy(np.stack([a @ e.T for e in along], 1)).float()
    x = x.reshape(100, 20, 2, *GRID.shape)
    rep = estimate(torch.zeros_like, x, GRID, 1, channels=[U10, V10])
    assert rep.dataset["spatial"].values == pytest.approx(1.0, abs=0.05)
    one = rep.between(0, 89.0, 0.0, 89.0, 180.0)  # u on both sides of the pole is opposite
    assert one < -0.9


def test_land_takes_no_part():
    land = np.zeros(GRID.shape, bool)
    land[:, 5:14] = True
    r = known_residuals([T2M, SST], 0.2, 1500.0, 0.5, 20, 12)
    rough = r.clone()
    rough[:, :, 1] = torch.where(torch.from_numpy(land), 50.0, rough[:, :, 1])
    rep = estimate(torch.zeros_like, rough, GRID, 6, channels=[T2M, SST], land=land)
    assert (rep.std[1][land] == 0).all()
    assert rep.std[1][~land].mean() == pytest.approx(0.2, rel=0.05)
    assert rep.length[1] == pytest.approx(1500, rel=0.15)
    assert rep.dataset["correlation"].values[1, 1] == pytest.approx(0.5, abs=0.05)


def test_channels_that_err_together():
    x = torch.randn(30, 2, *GRID.shape, generator=torch.Generator().manual_seed(0))
    x[:, 1] = 0.6 * x[:, 0] + 0.8 * x[:, 1]
    rep = estimate(torch.zeros_like, x.split(2), GRID, 1, channels=[T2M, U10])
    assert rep.cross[0, 1] == pytest.approx(0.6, abs=4 / np.sqrt(30 * 300))


def test_a_perfect_decoder_leaves_nothing():
    x = torch.randn(4, 1, *GRID.shape)
    rep = estimate(torch.clone, [x], GRID, 3, channels=[T2M])
    assert (rep.std == 0).all()
    assert np.isfinite(rep.in_time(0, [0, 1, 2])).all()
    assert np.isfinite(rep.in_space(0, [0.0, 500.0])).all()


# ---------------------------------------------------------------- files


def test_file(tmp_path):
    rep = Representation.of(GRID, [T2M, U10], 0.1, 0.9 ** np.arange(24), [800.0, 1200.0])
    rep.save(tmp_path / "representation.nc")
    again = Representation.load(tmp_path)  # a model folder
    assert again.channels == rep.channels
    assert again.grid == GRID
    assert again.std == pytest.approx(rep.std, rel=2**-7)
    lag, distance = np.arange(48), np.linspace(0, 3000, 9)
    assert again.in_time(1, lag) == pytest.approx(rep.in_time(1, lag), abs=1e-5)
    assert again.in_space(1, distance) == pytest.approx(rep.in_space(1, distance), abs=1e-5)
    assert again.length == pytest.approx([800, 1200], rel=0.05)
    with pytest.raises(AppaError, match="no file with a representation error"):
        Representation.load(tmp_path / "other.nc")
    with pytest.raises(DataError, match="lacks correlation"):
        Representation(xr.Dataset({"std": rep.dataset["std"]}))


def test_segments_that_will_not_do():
    x = torch.randn(3, 1, *GRID.shape)
    with pytest.raises(DataError, match="one trajectory's hours at a time"):
        estimate(torch.zeros_like, [x[:, :, :4]], GRID, channels=[T2M])
    with pytest.raises(DataError, match="no two of them in one segment"):
        estimate(torch.zeros_like, x.split(1), GRID, channels=[T2M])
    with pytest.raises(DataError, match="not finite"):
        estimate(lambda x: x / 0, [x], GRID, channels=[T2M])
