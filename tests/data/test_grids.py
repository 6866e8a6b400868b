r"""Grids against exact integrals, known distances, spherical harmonics and another interpolator."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator
from scipy.special import sph_harm_y

from appa.data.grids import KINDS, RADIUS, Grid, conservative, great_circle
from appa.errors import DataError

SPHERE = 4 * np.pi * RADIUS**2


def harmonic(latitude, longitude):
    r"""A sum of real spherical harmonics of degrees 1 to 6."""
    theta, lam = np.radians(90 - np.asarray(latitude)), np.radians(longitude)
    terms = ((1, 1, 1.0), (2, 0, -0.6), (3, 1, 0.8), (4, 2, 0.7), (5, 1, -0.5), (6, 3, 0.4))
    return sum(a * sph_harm_y(n, m, theta, lam + 0.3 * n).real for n, m, a in terms)


def on(grid, f):
    return f(*np.meshgrid(grid.latitude, grid.longitude, indexing="ij"))


def interpolate(grid, field, latitude, longitude, vector=False):
    index, weight = grid.interpolation(latitude, longitude, vector=vector)
    return (field.reshape(-1)[index] * weight).sum(-1)


def orders(errors):
    return np.log2(np.asarray(errors[:-1]) / np.asarray(errors[1:]))


# Latitudes and areas


def test_known_latitudes():
    assert Grid("equiangular", 721, 1440).latitude[[0, 1, 360, -1]].tolist() == [90, 89.75, 0, -90]
    assert Grid("equiangular-cells", 32, 64).latitude[0] == 87.1875
    # N24, as tabulated for T31 models
    tabulated = [87.159, 83.479, 79.777, 76.070]
    assert Grid("gaussian", 48, 96).latitude[:4] == pytest.approx(tabulated, abs=5e-4)
    assert Grid("gaussian", 48, 96).longitude[-1] == 356.25


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(2, 2), (48, 96), (33, 65), (721, 1440)])
def test_areas_fill_the_sphere(kind, shape):
    grid = Grid(kind, *shape)
    assert grid.area.shape == shape
    assert (grid.area > 0).all()
    assert grid.area.sum() == pytest.approx(SPHERE, rel=1e-14)
    assert grid.weights.mean() == pytest.approx(1, rel=1e-14)
    assert (np.diff(grid.latitude) < 0).all()
    assert np.abs(grid.latitude + grid.latitude[::-1]).max() < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_points_lie_in_their_cells(kind):
    grid = Grid(kind, 61, 120)
    mu = np.sin(np.radians(grid.latitude))
    assert (grid.edges[:-1] >= mu).all()
    assert (grid.edges[1:] <= mu).all()
    assert np.abs(-np.diff(grid.edges) - grid.thickness).max() < 1e-14


def test_cap_area_is_archimedes():
    # 0.25° with poles: the cap above 89.875° N has area 2πR²(1 - sin φ) = 4πR² sin²((90° - φ)/2)
    grid = Grid("equiangular", 721, 1440)
    cap = SPHERE * np.sin(np.radians(0.125) / 2) ** 2
    assert grid.area[0].sum() == pytest.approx(cap, rel=1e-12)


@pytest.mark.parametrize("degree", [0, 1, 2, 4, 8, 30, 94])
def test_gaussian_quadrature_is_exact(degree):
    grid = Grid("gaussian", 48, 96)
    mu = np.sin(np.radians(grid.latitude))[:, None]
    exact = SPHERE / (degree + 1) if degree % 2 == 0 else 0.0
    assert (grid.area * mu**degree).sum() == pytest.approx(exact, rel=1e-12, abs=1e-12 * SPHERE)


@pytest.mark.parametrize("kind", ["equiangular", "equiangular-cells"])
@pytest.mark.parametrize("degree", [2, 4, 6])
def test_equiangular_quadrature_is_second_order(kind, degree):
    errors = []
    for h in (24, 48, 96, 192):
        grid = Grid(kind, h, 8)
        mu = np.sin(np.radians(grid.latitude))[:, None]
        errors.append(abs((grid.area * mu**degree).sum() / SPHERE - 1 / (degree + 1)))
    assert orders(errors)[-1] == pytest.approx(2, abs=0.1)


# Distances


def test_known_distances():
    quarter = np.pi / 2 * RADIUS
    assert great_circle(90, 17, 0, -130) == pytest.approx(quarter, rel=1e-15)
    assert great_circle(0, 350, 0, 10) == pytest.approx(np.pi / 9 * RADIUS, rel=1e-14)
    assert great_circle(12.3, 45.6, 12.3, 405.6) == pytest.approx(0, abs=1e-6)
    # London to New York
    km = great_circle(51.5074, -0.1278, 40.7128, -74.0060, radius=6371.0)
    assert km == pytest.approx(5570.2, abs=0.1)


def test_neighbours_and_antipodes_keep_their_digits():
    # A tenth of a millimetre along a meridian, where the arc cosine of a dot product gives 0.
    assert great_circle(40, 5, 40 + 1e-9, 5) == pytest.approx(np.radians(1e-9) * RADIUS, rel=1e-5)
    assert great_circle(33.3, 21, -33.3, 201) == pytest.approx(np.pi * RADIUS, rel=1e-15)
    near = great_circle(33.3, 21, -33.3 + 1e-6, 201)
    assert np.pi * RADIUS - near == pytest.approx(np.radians(1e-6) * RADIUS, rel=1e-6)


def test_distance_agrees_with_dot_product():
    rng = np.random.default_rng(0)
    lat = np.degrees(np.arcsin(rng.uniform(-1, 1, (2, 1000))))
    lon = rng.uniform(-180, 360, (2, 1000))
    phi, lam = np.radians(lat), np.radians(lon)
    xyz = np.stack((np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)))
    expected = RADIUS * np.arccos(np.clip((xyz[:, 0] * xyz[:, 1]).sum(0), -1, 1))
    found = great_circle(lat[0], lon[0], lat[1], lon[1])
    # the arc cosine loses digits towards 0 and π: √ε radians at worst
    assert np.abs(found - expected).max() < 2e-8 * RADIUS
    assert np.abs(found - great_circle(lat[1], lon[1], lat[0], lon[0])).max() < 1e-6


# Interpolation


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(5, 8), (6, 7), (2, 2)])
def test_weights_form_a_mean_anywhere(kind, shape):
    rng = np.random.default_rng(1)
    lat = np.concatenate((rng.uniform(-90, 90, 500), [90, -90, 90, -90, 0, 0]))
    lon = np.concatenate((rng.uniform(-720, 1080, 500), [0, 359.9, -180, 720, -1e-20, 360]))
    index, weight = Grid(kind, *shape).interpolation(lat, lon)
    assert index.shape == weight.shape == (506, 4)
    assert index.dtype == np.int64
    assert index.min() >= 0
    assert index.max() < shape[0] * shape[1]
    assert weight.min() >= 0
    assert np.abs(weight.sum(-1) - 1).max() < 1e-14


@pytest.mark.parametrize("kind", KINDS)
def test_grid_points_keep_their_values(kind):
    grid = Grid(kind, 12, 25)
    field = np.random.default_rng(2).normal(size=grid.shape)
    lat, lon = np.meshgrid(grid.latitude, grid.longitude, indexing="ij")
    for turn in (-360, 0, 720):
        found = interpolate(grid, field, lat.ravel(), lon.ravel() + turn).reshape(grid.shape)
        assert np.abs(found - field).max() < 1e-11


@pytest.mark.parametrize("kind", KINDS)
def test_interior_agrees_with_scipy(kind):
    grid = Grid(kind, 19, 36)
    field = np.random.default_rng(3).normal(size=grid.shape)
    other = RegularGridInterpolator((grid.latitude[::-1], grid.longitude), field[::-1])
    rng = np.random.default_rng(4)
    lat = rng.uniform(grid.latitude[-1], grid.latitude[0], 500)
    lon = rng.uniform(0, grid.longitude[-1], 500)
    expected = other(np.stack((lat, lon), -1))
    assert np.abs(interpolate(grid, field, lat, lon) - expected).max() < 1e-12
    assert np.abs(interpolate(grid, field, lat, lon - 360) - expected).max() < 1e-11


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("odd", [0, 1], ids=["even", "odd"])
@pytest.mark.parametrize("place", ["sphere", "caps", "seam"])
def test_harmonics_converge_at_second_order(kind, odd, place):
    rng = np.random.default_rng(5)
    n, errors = 4000, []
    x, y, side = rng.uniform(0, 1, n), rng.uniform(0, 1, n), rng.choice([-1, 1], n)
    for h in (32, 64, 128, 256):
        grid = Grid(kind, h, 2 * h + odd)
        lat, lon = np.degrees(np.arcsin(2 * y - 1)), 360 * x
        if place == "caps":  # between the last row (with poles: the last but one) and the pole
            row = grid.latitude[1 if kind == "equiangular" else 0]
            lat = side * (row + y * (90 - row))
        if place == "seam":  # between the last longitude and the first
            lon = grid.longitude[-1] + x * (360 - grid.longitude[-1])
        found = interpolate(grid, on(grid, harmonic), lat, lon)
        errors.append(np.abs(found - harmonic(lat, lon)).max())
    assert errors[-1] < 2e-3
    assert orders(errors).min() >= 1.9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("odd", [0, 1], ids=["even", "odd"])
def test_wind_over_the_pole(kind, odd):
    # Solid-body rotation about the axis through (0° N, 0° E): u = -sin φ cos λ, v = sin λ
    def u(lat, lon):
        return -np.sin(np.radians(lat)) * np.cos(np.radians(lon))

    def v(lat, lon):
        return np.sin(np.radians(lon)) + 0 * lat

    rng = np.random.default_rng(6)
    x, y, side = rng.uniform(0, 1, 2000), rng.uniform(0, 1, 2000), rng.choice([-1, 1], 2000)
    errors, scalar = [], []
    for h in (16, 32, 64, 128):
        grid = Grid(kind, h, 2 * h + odd)
        row = grid.latitude[1 if kind == "equiangular" else 0]
        lat, lon = side * (row + y * (90 - row)), 360 * x
        for component in (u, v):
            field, exact = on(grid, component), component(lat, lon)
            errors.append(np.abs(interpolate(grid, field, lat, lon, vector=True) - exact).max())
            scalar.append(np.abs(interpolate(grid, field, lat, lon) - exact).max())
    errors = np.reshape(errors, (4, 2)).max(1)
    assert errors[-1] < 1e-3
    assert orders(errors).min() >= 1.9
    # taken for a scalar the wind is wrong there at any resolution, unless the poles are points
    assert (min(scalar) > 0.5) == (kind != "equiangular")


@pytest.mark.parametrize(
    ("latitude", "longitude", "told"),
    [
        ([0, 90.5, 12], [0, 0, 0], "latitude 90.5 in row 1"),
        ([0, 1, np.nan], [0, 0, 0], "latitude nan in row 2"),
        ([-91], [0], "latitude -91 in row 0"),
        ([0, 0], [10, np.inf], "longitude inf in row 1"),
        ([0, 0], [np.nan, 10], "longitude nan in row 0"),
    ],
)
def test_impossible_places_are_named(latitude, longitude, told):
    with pytest.raises(DataError, match=told):
        Grid("gaussian", 48, 96).interpolation(latitude, longitude)


# Remapping

PAIRS = [
    (Grid("equiangular", 91, 180), Grid("equiangular", 31, 60)),
    (Grid("equiangular", 91, 180), Grid("gaussian", 24, 48)),
    (Grid("gaussian", 24, 48), Grid("equiangular-cells", 45, 91)),
    (Grid("equiangular-cells", 32, 63), Grid("equiangular", 19, 36)),
]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_remapping_conserves(source, target):
    field = np.random.default_rng(7).normal(3, 1, size=(2, *source.shape))
    found = source.regrid(field, target)
    assert found.shape == (2, *target.shape)
    integral = (field * source.area).sum((-2, -1))
    assert (found * target.area).sum((-2, -1)) == pytest.approx(integral, rel=1e-12)
    constant = source.regrid(np.full(source.shape, 5.25), target)
    assert np.abs(constant - 5.25).max() < 1e-13


def test_remapping_is_the_mean_over_the_cell():
    # Each target cell sampled densely, uniformly in area; where a sample falls is found from the
    # midpoints between the source's coordinates, not from its areas.
    source, target = Grid("equiangular", 7, 9), Grid("equiangular-cells", 4, 5)
    field = np.random.default_rng(8).normal(size=source.shape)
    found = source.regrid(field, target)
    n = 400
    s = (np.arange(n) + 0.5) / n
    middle = (source.latitude[1:] + source.latitude[:-1]) / 2
    for i, j in np.ndindex(target.shape):
        south, north = np.sin(np.radians(-45 * np.array([i + 1, i]) + 90))
        lat = np.degrees(np.arcsin(south + s * (north - south)))
        lon = 72 * (j - 0.5 + s)
        rows = np.searchsorted(-middle, -lat)
        columns = np.round(lon / 40).astype(int) % 9
        expected = field[np.ix_(rows, columns)].mean()
        assert found[i, j] == pytest.approx(expected, abs=2e-2)


def test_remapping_knows_what_is_undefined():
    source, target = Grid("equiangular-cells", 12, 24), Grid("equiangular-cells", 6, 12)
    field = np.full(source.shape, 280.0, np.float32)
    field[:, 5:18] = np.nan  # target columns are centred on the even ones of the source
    found = source.regrid(field, target)
    assert found.dtype == np.float32
    defined = [0, 1, 2, 9, 10, 11]
    assert np.isfinite(found[:, defined]).all()
    assert np.isnan(found[:, [3, 4, 5, 6, 7, 8]]).all()
    assert np.abs(found[:, defined] - 280).max() < 1e-4
    # column 2 is three quarters defined: 4 whole and a half of 3, but not of 5
    strict = source.regrid(field, target, coverage=0.8)
    assert np.isnan(strict[:, 2]).all()
    assert np.isfinite(strict[:, 1]).all()
    assert np.isnan(source.regrid(np.full(source.shape, np.nan), target)).all()


def test_remapping_matrices_are_shares():
    rows, columns = conservative(Grid("gaussian", 48, 96), Grid("equiangular", 19, 36))
    assert rows.shape == (19, 48)
    assert columns.shape == (36, 96)
    for matrix in (rows, columns):
        assert matrix.min() >= 0
        assert np.abs(matrix.sum(-1) - 1).max() < 1e-14
    # 10° around 0° E reaches both ends of the circle
    assert columns[0, 0] == pytest.approx(0.375)
    assert columns[0, -1] == pytest.approx(0.3125)
    assert columns[0, 1] == pytest.approx(0.3125)


def test_field_of_another_shape_is_refused():
    with pytest.raises(DataError, match=r"found \(1440, 721\)"):
        Grid("equiangular", 721, 1440).regrid(np.zeros((1440, 721)), Grid("equiangular", 121, 240))


# Recognition


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(48, 96), (121, 240), (64, 129), (640, 1280)])
def test_coordinates_are_recognised(kind, shape):
    grid = Grid(kind, *shape)
    lat, lon = grid.latitude.astype(np.float32), grid.longitude.astype(np.float32)
    assert Grid.from_coordinates(lat, lon) == grid
    assert Grid.from_coordinates(lat[::-1], np.roll((lon + 180) % 360 - 180, shape[1] // 2)) == grid
    assert Grid.from_coordinates(np.round(grid.latitude, 3), np.round(grid.longitude, 3)) == grid


def test_coordinates_of_public_era5_are_recognised():
    lat = np.arange(-90, 90.25, 0.25, dtype=np.float32)
    lon = np.arange(0, 360, 0.25, dtype=np.float32)
    assert Grid.from_coordinates(lat, lon) == Grid("equiangular", 721, 1440)
    assert Grid.from_coordinates(lat, lon[::-1]) == Grid("equiangular", 721, 1440)


def moved(values, index, by):
    values = np.array(values)
    values[index] += by
    return values


LAT, LON = Grid("equiangular", 121, 240).latitude, Grid("equiangular", 121, 240).longitude


@pytest.mark.parametrize(
    ("latitude", "longitude", "told"),
    [
        (moved(LAT, 40, 0.1), LON, "121 latitudes from 90 to -90 are of no known grid"),
        (LAT[:60], LON, "60 latitudes from 90 to 1.5 are of no known grid"),
        (LAT[np.r_[1, 0, 2:121]], LON, "no known grid"),
        (moved(LAT, 3, np.nan), LON, "latitude must be"),
        (np.meshgrid(LAT, LON)[0], LON, "latitude must be"),
        (LON, LAT, "latitude 358.5 is outside"),
        (LAT, LON[:120], "120 longitudes from 0 to 178.5 are not spaced by 3"),
        (LAT, moved(LON, 7, 0.2), "not spaced by 1.5"),
        (LAT, LON + 0.75, "start at 0.75"),
        (LAT, np.append(LON, 360), "longitude 360 repeats"),
        (LAT, np.random.default_rng(9).permutation(LON), "in no order"),
    ],
)
def test_other_coordinates_are_refused(latitude, longitude, told):
    with pytest.raises(DataError, match=told):
        Grid.from_coordinates(latitude, longitude)


def test_wrong_grids_are_refused():
    with pytest.raises(DataError, match="did you mean 'gaussian'"):
        Grid("gausian", 48, 96)
    with pytest.raises(DataError, match="found 1 and 96"):
        Grid("gaussian", 1, 96)


def test_grids_travel_and_compare():
    grid = Grid("gaussian", 48, 96)
    assert grid.area.sum() > 0
    again = pickle.loads(pickle.dumps(grid))
    assert again == grid
    assert hash(again) == hash(grid)
    with pytest.raises(ValueError, match="read-only"):
        grid.latitude[0] = 0
