r"""The covariance of a window's observations, against matrices written out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr

from appa.data.grids import Grid
from appa.errors import DataError
from appa.observations.blocks import Blocks
from appa.observations.collection import Observations
from appa.observations.errors import WindowCovariance, rows_std
from appa.observations.operators import compile_observations
from appa.observations.representation import Representation

from .small_space import ROW, START, compiled, dense_space, make_space

GRID = Grid("equiangular-cells", 9, 16)
T2M, U10, V10, SST = (
    "2m_temperature",
    "10m_u_component_of_wind",
    "10m_v_component_of_wind",
    "sea_surface_temperature",
)
MEMORY = np.array([0.9, 0.5, 0.5])[:, None] ** np.arange(24)
SD = 2.0


def matrix_of(cov_y: WindowCovariance) -> torch.Tensor:
    root = cov_y.color(torch.eye(len(cov_y)))  # transposed
    return root.mT @ root


def setting(std=0.1, length=1500.0, state=0.0, cross=None, correlation=MEMORY[:1], **names):
    names = names or {"surface": (T2M, U10, V10)}
    space = make_space(GRID, std=SD, **names)
    channels = space.standardizer.channels
    return space, Representation.of(GRID, channels, std, correlation, length, state, cross)


def stations(hours: int, seed: int = 0) -> list:
    r"""Rows of five stations far apart that miss some hours, and of a place seen once."""
    rng = np.random.default_rng(seed)
    latitude, longitude = (41, -30, 35, -41, 5), (12, 80, 152, 220, 300)
    rows = [
        (t, name, np.nan, latitude[k], longitude[k], 0.02 if name == T2M else 0.1)
        for t in range(hours)
        for k in range(5)
        for name in (T2M, U10)
        if rng.random() < 0.6
    ]
    return [*rows, (2, V10, np.nan, 11.0, 12.0, 0.3)]


def written_out(operators, rep, space, temporal: bool) -> np.ndarray:
    r"""I + S K S entry by entry."""
    rows = []
    for t, operator in enumerate(operators):
        if operator is None:
            continue
        std = rows_std(rep, operator.rows, space)
        for k, row in enumerate(operator.rows.itertuples()):
            rows.append((t, row.variable, row.latitude, row.longitude, std[k]))
    names = [c.variable for c in rep.channels]
    matrix = np.eye(len(rows))
    for i, (t, name, *place, s) in enumerate(rows):
        for j, (t2, name2, *place2, s2) in enumerate(rows):
            if i == j or (temporal and name == name2 and place == place2):
                matrix[i, j] += s * s2 * rep.in_time(names.index(name), t - t2)
    return matrix


@pytest.mark.parametrize("representation", ["none", "diagonal", "temporal"])
def test_product(representation):
    space, rep = setting(correlation=MEMORY)
    operators = compiled(space, 8, stations(8))
    operators[5] = None  # an hour that saw nothing
    cov_y = WindowCovariance(operators, rep, space, representation)
    n = sum(len(o) for o in operators if o is not None)
    expected = written_out(operators, rep, space, representation == "temporal")
    expected = np.eye(n) if representation == "none" else expected
    v = torch.randn(3, n, generator=torch.Generator().manual_seed(0))
    matrix = matrix_of(cov_y)
    assert torch.allclose(matrix, torch.from_numpy(expected).float(), rtol=1e-4, atol=1e-4)
    assert torch.allclose(cov_y.color(v)[1], cov_y.color(v[1]), rtol=1e-5)  # one member by itself
    assert cov_y.variance.numpy() == pytest.approx(np.diag(expected), rel=1e-5)
    assert torch.allclose(cov_y.solve(v @ matrix), v, atol=1e-3)
    assert torch.allclose(cov_y.whiten(cov_y.color(v)), v, atol=1e-3)
    assert torch.allclose(cov_y.whiten(cov_y.whiten(v), transposed=True), cov_y.solve(v), atol=1e-3)
    root = cov_y.color(torch.eye(n))
    assert (root.T @ root).numpy() == pytest.approx(expected, rel=1e-3, abs=1e-3)
    if representation == "temporal":  # and r is large, so that the others are far from it
        assert abs(expected - np.diag(np.diag(expected))).max() > 10


def test_fields_and_stations_together():
    # A place of a field is another than the station that happens to have its number.
    names = {"surface": (T2M,), "atmospheric": ("temperature",), "levels": (500,)}
    space, rep = setting(correlation=MEMORY[:2], **names)
    hours = START + np.arange(3) * np.timedelta64(1, "h")
    seen = np.zeros((3, 1, *GRID.shape), bool)
    seen[0, 0, 2:4, 1:5] = seen[2, 0, 3:6, 4:8] = True  # (3, 4) is seen twice
    dims, coords = ("time", "level", "latitude", "longitude"), {"time": hours, "level": [500]}
    coords |= {"latitude": GRID.latitude, "longitude": GRID.longitude}
    swath = xr.Dataset(
        {
            "temperature": (dims, np.where(seen, 0.0, np.nan)),
            "temperature_error": (dims, np.where(seen, 0.2, np.nan)),
        },
        coords,
    )
    points = [(T2M, np.nan, 20.0, 33.0, 0.1, t) for t in hours]
    table = pd.DataFrame(points, columns=[*ROW, "time"])
    table = table.assign(hour=table["time"], value=0.0, station="A", elevation=np.nan)
    operators = compile_observations(Observations(table, swath), space, hours)
    cov_y = WindowCovariance(operators, rep, space)
    n = int(seen.sum()) + 3
    matrix = matrix_of(cov_y).numpy()
    assert len(cov_y) == n
    s = 0.1 * SD / 0.2
    off = matrix - np.diag(np.diag(matrix))
    assert (off != 0).sum() == 2 + 3 * 2  # one point, and the pairs of the station's hours
    field = np.concatenate([o.rows["gridded"].to_numpy() for o in operators])
    # neighbours on the grid count by the squares of their correlations
    squares = dense_space(rep, 1) ** 2
    factor = [squares[np.ix_(now, now)].sum(1) for now in seen.reshape(3, -1)]
    found = (np.diag(matrix)[field] - 1) / s**2
    assert found == pytest.approx(np.concatenate(factor), abs=0.01)
    assert found.min() > 1.2
    first, second = (f[k] for f, k in ((factor[0], 7), (factor[2], 0)))  # of (3, 4)
    expected = s**2 * np.sqrt(first * second) * 0.5**2
    assert off[np.ix_(field, field)].max() == pytest.approx(expected, rel=0.01)
    assert not off[np.ix_(field, ~field)].any()


def test_without_a_representation():
    space, _ = setting()
    operators = compiled(space, 8, stations(8))
    cov_y = WindowCovariance(operators, None, space)
    v = torch.randn(2, len(cov_y))
    assert torch.equal(cov_y.color(v), v)
    assert len(WindowCovariance([None, None], None, space)) == 0


def test_two_reports_of_one_hour_share_what_is_not_expressed():
    space, rep = setting(length=1.0)
    row = (1, T2M, np.nan, GRID.latitude[3], GRID.longitude[5])
    operators = compiled(space, 3, [(*row, 0.1), (*row, 0.2)])
    cov_y = WindowCovariance(operators, rep, space)
    s = np.array([0.1 * SD / 0.1, 0.1 * SD / 0.2])
    expected = np.eye(2) + np.outer(s, s)
    assert matrix_of(cov_y).numpy() == pytest.approx(expected, rel=1e-4)


# ---------------------------------------------------------------- neighbours


def crowd(rows, length=1500.0, cross=None, representation="temporal", **names) -> np.ndarray:
    r"""By how much the variance of r at rows is inflated."""
    space, rep = setting(length=length, cross=cross, **names)
    operators = compiled(space, 1 + max(t for t, *_ in rows), rows)
    cov_y = WindowCovariance(operators, rep, space, representation)
    std = [rows_std(rep, o.rows, space, operator=o) for o in operators if o is not None]
    return (cov_y.variance.double().numpy() - 1) / np.concatenate(std) ** 2


def test_what_stands_alone_is_left_alone():
    places = [(25.0, 12.3), (-15.0, 100.0), (89.0, 150.0), (-35.0, 200.0)]
    for name in (T2M, V10):
        found = crowd([(t, name, np.nan, *place, 0.1) for t in (0, 1) for place in places])
        assert found == pytest.approx(1.0, abs=1e-5)
    # nor are those of other variables, and of other hours, neighbours
    here = (20.0, 33.0, 0.1)
    found = crowd([(0, T2M, np.nan, *here), (0, U10, np.nan, *here), (1, V10, np.nan, *here)])
    assert found == pytest.approx(1.0, abs=1e-5)


def test_stations_close_to_each_other_are_one():
    places = [(10.0 + k / 100, 33.0) for k in range(5)]
    rows = [(0, T2M, np.nan, *place, 0.1) for place in places]
    assert crowd(rows) == pytest.approx(5.0, rel=1e-2)
    # reports of one place have a block, which knows
    same = [(0, T2M, np.nan, *places[0], error) for error in (0.1, 0.2)]
    assert crowd(same) == pytest.approx(1.0, abs=1e-5)


def test_levels_of_a_profile():
    levels = (500, 600, 700, 850)
    cross = 0.8 ** np.abs(np.subtract.outer(range(4), range(4)))
    names = {"atmospheric": ("temperature",), "levels": levels}
    rows = [(0, "temperature", level, 21.0, 33.0, 0.1) for level in levels]
    assert crowd(rows, cross=cross, **names) == pytest.approx((cross**2).sum(1), rel=1e-4)
    one = [(0, "temperature", 640.0, 21.0, 33.0, 0.1)]  # between two
    assert crowd(one, cross=cross, **names) == pytest.approx(1.0, abs=1e-5)


def test_derived_observables_have_neighbours_too():
    rows = [(0, "10m_wind_speed", np.nan, lat, 33.0, 0.1) for lat in (10.0, 10.01)]
    assert crowd(rows) == pytest.approx(2.0, rel=1e-2)


@pytest.mark.parametrize("length", [0.1, 1.0, 2.0])
def test_latents_under_a_swath(length):
    r"""Nine by nine points on five levels: the spread of latents is 0.90 and 0.96 of their error
    where r's length is one and two rows; it is 0.48 and 0.36 if neighbours do not count."""
    grid, levels = Grid("gaussian", 32, 64), (500, 600, 700, 850, 925)
    row = np.pi * 6371 / 32
    space = make_space(grid, (), ("temperature",), levels, std=SD)
    apart = np.abs(np.subtract.outer(range(5), range(5)))
    cross = (0.7 if length > 0.5 else 0.0) ** apart
    rep = Representation.of(
        grid, space.standardizer.channels, 0.1, MEMORY[:1], length * row, cross=cross
    )
    i, j = (k.ravel() for k in np.meshgrid(np.arange(10, 19), np.arange(7, 16), indexing="ij"))
    rows = [
        (0, "temperature", level, grid.latitude[a], grid.longitude[b], 0.1)
        for level in levels
        for a, b in zip(i, j, strict=True)
    ]
    operators = compiled(space, 1, rows)
    table = operators[0].rows
    level = table["level"].map({p: k for k, p in enumerate(levels)}).to_numpy()
    point = [
        64 * int(np.argmin(abs(grid.latitude - a))) + int(np.argmin(abs(grid.longitude - b)))
        for a, b in zip(table["latitude"], table["longitude"], strict=True)
    ]
    # in units of the observations' errors; latents vary over four rows, and over levels
    s = 0.1 * SD / 0.1
    r = (
        np.eye(len(rows))
        + s**2 * dense_space(rep, 0)[np.ix_(point, point)] * cross[level][:, level]
    )
    latitude, longitude = np.radians(table["latitude"]), np.radians(table["longitude"])
    p = np.stack(
        [np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude)], axis=-1
    )
    p = np.concatenate([p, np.sin(latitude).to_numpy()[:, None]], axis=1)
    chord = 6371 * np.linalg.norm(p[:, None] - p, axis=-1)
    c = (3 * s) ** 2 * np.exp(-((chord / (4 * row)) ** 2) / 2) * (0.95**apart)[level][:, level]

    def ratio(variance):
        gain = c @ np.linalg.inv(c + np.diag(variance))
        left = np.eye(len(c)) - gain
        error = left @ c @ left.T + gain @ r @ gain.T
        return np.sqrt(np.trace(c - gain @ c) / np.trace(error))

    with_neighbours = ratio(WindowCovariance(operators, rep, space).variance.double().numpy())
    without = ratio(np.full(len(c), 1 + s**2))
    assert with_neighbours == pytest.approx(1.0, abs=0.12)
    if length > 0.5:
        assert without < 0.5
    else:
        assert with_neighbours == pytest.approx(without, abs=1e-4)


# ---------------------------------------------------------------- standard deviations


def test_on_and_between_grid_points():
    std = np.linspace(0.05, 0.3, 9 * 16).reshape(GRID.shape)
    space, rep = setting(std)
    latitude = [GRID.latitude[3], (GRID.latitude[3] + GRID.latitude[4]) / 2]
    longitude = [GRID.longitude[6], (GRID.longitude[6] + GRID.longitude[7]) / 2]
    rows = [(0, T2M, np.nan, *place, 0.1) for place in zip(latitude, longitude, strict=True)]
    operators = compiled(space, 1, rows)
    found = rows_std(rep, operators[0].rows, space)
    assert found[0] == pytest.approx(std[3, 6] * SD / 0.1)
    corners = [3 * 16 + 6, 3 * 16 + 7, 4 * 16 + 6, 4 * 16 + 7]
    s = std.ravel()[corners] / 4
    variance = s @ dense_space(rep, 0)[np.ix_(corners, corners)] @ s
    assert found[1] == pytest.approx(np.sqrt(variance) * SD / 0.1)
    assert found[1] < 0.9 * s.sum() * SD / 0.1  # what is small averages out
    # as of r drawn at the corners
    root = np.linalg.cholesky(dense_space(rep, 0)[np.ix_(corners, corners)])
    draws = np.random.default_rng(0).standard_normal((20_000, 4)) @ root.T @ s
    assert draws.std() * SD / 0.1 == pytest.approx(found[1], rel=4 / np.sqrt(2 * 20_000))


def test_smooth_r_is_interpolated():
    fine = Grid("equiangular-cells", 45, 90)  # 445 km
    space = make_space(fine, (T2M,), std=SD)
    rep = Representation.of(fine, space.standardizer.channels, 0.1, MEMORY[:1], 2000.0)
    operators = compiled(space, 1, [(0, T2M, np.nan, 33.3, 44.4, 0.1)])
    found = rows_std(rep, operators[0].rows, space)
    assert found[0] == pytest.approx(0.1 * SD / 0.1, rel=0.02)


def test_coasts():
    land = np.zeros(GRID.shape, bool)
    land[3, 6] = True
    std = np.where(land, 0.0, 0.1)
    space = make_space(GRID, (SST,), std=SD, land=land)
    rep = Representation.of(GRID, space.standardizer.channels, std, MEMORY[:1], 1500.0)
    middle = (
        (GRID.latitude[3] + GRID.latitude[4]) / 2,
        (GRID.longitude[6] + GRID.longitude[7]) / 2,
    )
    operators = compiled(space, 1, [(0, SST, np.nan, *middle, 0.1)])
    corners = [3 * 16 + 7, 4 * 16 + 6, 4 * 16 + 7]
    s = np.full(3, 0.1 / 3)
    variance = s @ dense_space(rep, 0)[np.ix_(corners, corners)] @ s
    found = rows_std(rep, operators[0].rows, space)
    assert found[0] == pytest.approx(np.sqrt(variance) * SD / 0.1)


def test_between_levels():
    names = {"atmospheric": ("temperature",), "levels": (500, 850)}
    std = np.array([0.1, 0.3])[:, None, None]
    space, rep = setting(std, correlation=MEMORY[:2], **names)
    place = (GRID.latitude[2], GRID.longitude[2])
    middle = np.sqrt(500 * 850)
    rows = [(0, "temperature", level, *place, 0.1) for level in (500, 850, middle)]
    operators = compiled(space, 1, rows)
    table = operators[0].rows
    found = rows_std(rep, table, space)
    by_level = dict(zip(table["level"].round(3), found, strict=True))
    assert by_level[500] == pytest.approx(0.1 * SD / 0.1)
    assert by_level[850] == pytest.approx(0.3 * SD / 0.1)
    assert by_level[round(middle, 3)] == pytest.approx(0.2 * SD / 0.1)


@pytest.mark.parametrize("together", [-0.5, 0.0, 0.8])
def test_wind_speed(together):
    # About a wind of (3, 4) m/s its change is 0.6 of u's and 0.8 of v's, to first order in r.
    std = np.array([0.1, 0.01, 0.02])[:, None, None]
    state = np.array([0.0, 3 / SD, 4 / SD])[:, None, None]
    cross = np.eye(3)
    cross[1, 2] = cross[2, 1] = together
    space, rep = setting(std, state=state, cross=cross, correlation=MEMORY, length=3e4)
    place = (GRID.latitude[2], GRID.longitude[2])
    rows = [(t, "10m_wind_speed", np.nan, *place, 0.1) for t in range(3)]
    operators = compiled(space, 3, rows)
    cov_y = WindowCovariance(operators, rep, space)
    u, v = 0.6 * 0.01 * SD / 0.1, 0.8 * 0.02 * SD / 0.1
    s2 = u**2 + v**2 + 2 * together * u * v
    assert cov_y.variance.numpy() - 1 == pytest.approx(s2, rel=0.02)
    # u and v have one correlation here, so the speed has it too
    matrix = matrix_of(cov_y).numpy()
    assert matrix[0, 2] == pytest.approx(s2 * 0.5**2, rel=0.03)


def test_wind_direction_goes_around():
    # A weak wind from 350°: one standard deviation of u turns it across north.
    std = np.array([0.1, 0.1, 0.0])[:, None, None]
    angle = np.radians(350)
    state = np.array([0.0, -np.sin(angle) / SD, -np.cos(angle) / SD])[:, None, None]
    space, rep = setting(std, state=state)
    operators = compiled(space, 1, [(0, "10m_wind_direction", np.nan, 5.0, 22.5, 10.0)])
    before = np.degrees(np.arctan2(np.sin(angle), np.cos(angle)))
    after = np.degrees(np.arctan2(np.sin(angle) - 0.1 * SD, np.cos(angle)))
    found = rows_std(rep, operators[0].rows, space, operator=operators[0])
    assert found[0] == pytest.approx(abs(after - before) / 10, rel=1e-3)


def test_mistakes():
    space, rep = setting()
    operators = compiled(space, 2, stations(2))
    with pytest.raises(DataError, match="did you mean 'temporal'"):
        WindowCovariance(operators, rep, space, "temporl")
    with pytest.raises(DataError, match="estimate it with this model"):
        WindowCovariance(operators, rep, make_space(GRID, (T2M,)))
    rows = compiled(space, 1, [(0, "10m_wind_speed", np.nan, 0.0, 0.0, 1.0)])[0].rows
    with pytest.raises(DataError, match="give the operator"):
        rows_std(rep, rows, space)


def test_errors_that_are_too_small():
    r"""A matrix without a factor, and one that has it in double precision only."""
    here = (np.zeros(2, np.int64), np.array([0, 1]))
    same, almost = np.array([[1.0, 1.0]]), np.array([[1.0, 1 - 1e-9]])
    kind = np.zeros(2, np.int64)
    with pytest.raises(DataError, match=r"too small .* by a factor of 1e\+09"):
        Blocks(*here, np.full(2, 1e9), kind, same)
    cov_y = Blocks(*here, np.full(2, 1e5), kind, almost)
    v = torch.randn(3, 2, generator=torch.Generator().manual_seed(0)).double()
    expected = np.array([[1.0, 1 - 1e-9], [1 - 1e-9, 1.0]]) * 1e10 + np.eye(2)
    root = np.linalg.cholesky(expected)
    torch.testing.assert_close(cov_y.color(v), v @ torch.from_numpy(root).T, rtol=1e-5, atol=1e-5)
