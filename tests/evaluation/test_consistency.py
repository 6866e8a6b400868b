r"""Altitudes and balance on analytic atmospheres, by the right formulas and by the paper's."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from appa.data.grids import Grid
from appa.data.variables import LEVELS, G
from appa.errors import DataError
from appa.evaluation.consistency import (
    altitude,
    altitude_difference,
    geostrophic_angle,
    hypsometric_altitude,
    physical_consistency,
    published_wind,
)
from appa.evaluation.physics import EARTH, geostrophic_balance

A, OMEGA, R = EARTH.radius, EARTH.omega, EARTH.gas
SPACE = ("latitude", "longitude")
WINDS = ("u_component_of_wind", "v_component_of_wind")


def on(grid: Grid, **fields: np.ndarray) -> xr.Dataset:
    coords = {"latitude": grid.latitude, "longitude": grid.longitude, "level": [500]}
    shape = (1, *grid.shape)
    data = {k: (("level", *SPACE), np.broadcast_to(v, shape)) for k, v in fields.items()}
    return xr.Dataset(data, coords)


def column(level: np.ndarray, temperature: np.ndarray, height: np.ndarray, **more) -> xr.Dataset:
    data = {"temperature": ("level", temperature), "geopotential": ("level", G * height)}
    return xr.Dataset(data, {"level": level}).assign(more)


# ---------------------------------------------------------------- altitude


def test_isothermal_atmosphere():
    level, p = np.array(LEVELS, float), 1003.0
    height = R * 250 / G * np.log(p / level)  # geopotential metres
    ds = column(level, np.full(13, 250.0), height, mean_sea_level_pressure=100 * p)
    assert abs(altitude_difference(ds)).max() < 1e-8
    # at 50 hPa, 22 km up, a geopotential metre is longer by a part in 290
    top = float(altitude(ds)[0])
    assert top == pytest.approx(height[0] / (1 - height[0] / A), rel=1e-12)
    assert top - height[0] == pytest.approx(height[0] ** 2 / A, rel=0.01)
    # without pressure at sea level, from the lowest level on
    assert abs(altitude_difference(ds.drop_vars("mean_sea_level_pressure"))).max() < 1e-8
    # humidity of 10 g/kg expands the air by 0.6 %
    moist = ds.assign(specific_humidity=("level", np.full(13, 0.01)))
    higher = hypsometric_altitude(moist)[7] / hypsometric_altitude(ds)[7]
    assert higher == pytest.approx(1 + 0.60779 * 0.01, rel=1e-4)

    # the paper's knows neither the pressure at sea level nor humidity nor weaker gravity aloft:
    # by hand, from 288.15 K at 1013.25 hPa to 250 K at 1000 hPa, and on as it is
    scale = 8.314462618 / 0.0289644 / G
    first = scale * np.log(1.01325) * (288.15 - 250) / np.log(288.15 / 250)
    expected = first + scale * 250 * np.log(1000 / level)
    assert hypsometric_altitude(moist, paper=True).values == pytest.approx(expected, rel=1e-9)
    difference = altitude_difference(ds, paper=True)
    assert difference.values == pytest.approx(altitude(ds).values - expected, abs=1e-6)
    assert 70 < difference[0] - difference[-1] < 85  # z² / a, 78 m


def test_constant_lapse_rate():
    # T = T₀ − Γ h is linear in h: with the standard atmosphere's p₀ and T₀ and a constant gravity,
    # the barometric formula has no error at all, and the trapezoid in ln p a small one
    level, rate = np.array(LEVELS, float), 0.0065
    exponent = 8.314462618 * rate / (0.0289644 * G)
    temperature = 288.15 * (level / 1013.25) ** exponent
    height = (288.15 - temperature) / rate
    ds = column(level, temperature, height)
    assert hypsometric_altitude(ds, paper=True).values == pytest.approx(height, abs=1e-6)
    error = altitude_difference(ds)
    assert 0 < abs(error[1:-1]).max() < 8
    with pytest.raises(DataError, match="top down"):
        hypsometric_altitude(ds.isel(level=slice(None, None, -1)))


# ---------------------------------------------------------------- wind


def solid_body(grid: Grid, u: float = 20.0) -> xr.Dataset:
    r"""U cos φ, which Φ = −a Ω U sin²φ balances geostrophically."""
    phi = np.radians(grid.latitude)[:, None]
    fields = {
        "geopotential": 5e4 - A * OMEGA * u * np.sin(phi) ** 2,
        "u_component_of_wind": u * np.cos(phi),
        "v_component_of_wind": 0 * phi,
        "temperature": 250 + 0 * phi,
    }
    return on(grid, **fields)


def test_solid_body_rotation():
    grid = Grid("equiangular-cells", 180, 8)
    ds = solid_body(grid)
    for paper in (False, True):  # along a meridian there is no metric to drop
        angle = geostrophic_angle(ds, paper=paper)
        assert abs(angle - 90).where(abs(ds["latitude"]) > 1).max() < 1e-6
    right = physical_consistency(ds)
    assert right["correlation"].values == pytest.approx(1, abs=1e-4)
    assert right["correlation"].values == pytest.approx(
        geostrophic_balance(ds)["speed_correlation"].values, abs=1e-9
    )
    # cos φ against |sin φ| cos φ, every row alike
    theirs = physical_consistency(ds, paper=True)
    covariance = 2 / (3 * np.pi) - 2 / np.pi**2
    variance = (1 / 2 - 4 / np.pi**2) * (1 / 8 - 1 / np.pi**2)
    assert covariance / np.sqrt(variance) == pytest.approx(0.202, abs=1e-3)
    assert theirs["correlation"].values == pytest.approx(covariance / variance**0.5, abs=3e-3)
    for found in (right, theirs):
        assert float(found["sine"].isel(value=-1, level=0)) == pytest.approx(20, rel=0.02)


def wave(grid: Grid) -> tuple[xr.Dataset, np.ndarray, np.ndarray]:
    r"""Φ = 10⁴ cos³φ cos(3λ + φ) with its geostrophic wind, and its gradient in radians."""
    phi, lam = np.radians(grid.latitude)[:, None], np.radians(grid.longitude)
    c, s, phase = np.cos(phi), np.sin(phi), 3 * lam + phi
    d_lam = -3e4 * c**3 * np.sin(phase)
    d_phi = 1e4 * (-3 * c**2 * s * np.cos(phase) - c**3 * np.sin(phase))
    f = 2 * OMEGA * s
    fields = {
        "geopotential": 1e4 * c**3 * np.cos(phase),
        "u_component_of_wind": -d_phi / A / f,
        "v_component_of_wind": d_lam / (A * c) / f,
    }
    return on(grid, **fields), d_lam, d_phi


def test_a_balanced_wave_is_balanced_on_the_sphere_only():
    grid = Grid("equiangular-cells", 180, 360)
    ds, d_lam, d_phi = wave(grid)
    away = (abs(ds["latitude"]) > 10) & (abs(ds["latitude"]) < 80)
    angle = geostrophic_angle(ds).where(away)
    strong = away & xr.DataArray(np.hypot(d_lam, d_phi) > 300, dims=SPACE)
    assert abs(angle - 90).where(strong).max() < 0.1
    # of pixels of a degree: as if a degree of longitude were as long as one of latitude
    dot = d_lam * ds["u_component_of_wind"] + d_phi * ds["v_component_of_wind"]
    cross = d_lam * ds["v_component_of_wind"] - d_phi * ds["u_component_of_wind"]
    expected = np.degrees(np.arctan2(np.sign(ds["latitude"]) * cross, dot))
    found = geostrophic_angle(ds, paper=True)
    assert abs(found - expected).where(strong).max() < 0.5  # of second order
    assert abs(found - 90).where(strong).max() > 40


def test_published_wind_converges_to_the_geostrophic():
    errors = {}
    for kind in ("equiangular-cells", "equiangular"):
        errors[kind] = []
        for n in (44, 88, 176):
            ds, *_ = wave(Grid(kind, n, 2 * n))
            away = (abs(ds["latitude"]) > 15) & (abs(ds["latitude"]) < 75)
            off = (published_wind(ds) - ds[list(WINDS)]).where(away)
            errors[kind].append(float(np.sqrt((off**2).to_array().mean())))
    cells, poles = (np.array(e) for e in errors.values())
    assert np.log2(cells[:-1] / cells[1:]) == pytest.approx(2, abs=0.3)
    # where rows lie on the poles there is one interval fewer than rows: of first order
    assert np.log2(poles[:-1] / poles[1:]) == pytest.approx(1, abs=0.4)


def test_many_states_are_pooled():
    grid = Grid("gaussian", 16, 32)
    parts = [solid_body(grid, u) for u in (10.0, 20.0, 30.0, 40.0)]
    whole = xr.concat(parts, "time").assign_coords(time=np.arange(4))
    ensemble = xr.concat(
        [whole.isel(time=slice(2)), whole.isel(time=slice(2, 4)).assign_coords(time=[0, 1])],
        "member",
    )
    one, two = physical_consistency(whole), physical_consistency(ensemble)
    xr.testing.assert_allclose(one, two)
    assert one.attrs["states"] == 4
    # in whatever order dimensions are
    turned = ensemble.transpose("longitude", "time", "latitude", "level", "member")
    xr.testing.assert_allclose(physical_consistency(turned), two)
    width = {"cosine": 2 / 40, "sine": 2 / 40, "difference_density": 1.0}
    for name, step in width.items():
        assert one[name].sum(one[name].dims[-1]).values * step == pytest.approx(1)
    with pytest.raises(DataError, match="needs temperature"):
        physical_consistency(whole.drop_vars("temperature"))
