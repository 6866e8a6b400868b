r"""Operators: interpolation exact where it can be, whitening, derivatives, and what is left out."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import xarray as xr
from scipy.stats import chi2

from appa.data.grids import Grid
from appa.data.planet import statistics
from appa.data.states import Standardizer
from appa.data.variables import ATMOSPHERIC, SURFACE
from appa.errors import DataError
from appa.observations.networks import Network, Satellite, stations
from appa.observations.operators import StateSpace
from appa.observations.synthesis import observe

from .small_states import (
    GAUSSIAN,
    HOUR,
    LEVELS,
    SMALL,
    G,
    R,
    U,
    V,
    compiled,
    make_space,
    moments,
    physical,
    points,
    states,
    two_hours,
)

# Interpolation


@pytest.mark.parametrize("kind", ["gaussian", "equiangular", "equiangular-cells"])
def test_linear_fields_are_exact_across_the_seam(kind):
    grid = Grid(kind, 25, 48)
    space = make_space(grid)
    rng = np.random.default_rng(0)
    lat = rng.uniform(-1, 1, 500) * grid.latitude[1]
    lon = rng.uniform(-100, 100, 500)

    def linear(phi, lam):
        return 280 + 0.3 * phi + 0.1 * ((lam + 180) % 360 - 180)

    field = linear(grid.latitude[:, None], grid.longitude)
    (operator,) = compiled(points(lat, lon, "2m_temperature"), space)
    got = physical(operator, states(space, **{"2m_temperature": field}))
    # weights in single precision, times a spread of ±80 K
    np.testing.assert_allclose(got, linear(lat, lon), atol=2e-5)
    # and in other conventions of longitude
    (other,) = compiled(points(lat, lon + 720, "2m_temperature"), space)
    x = states(space, **{"2m_temperature": field})
    torch.testing.assert_close(operator(x), other(x), rtol=0, atol=1e-5)


def test_over_the_pole():
    r"""Along a meridian and down the other side, a field linear in the distance from the pole and a
    wind that blows straight across it are exact."""
    space = make_space(GAUSSIAN)
    lat = np.array([86.0, 88.0, 89.9, 90.0, 89.0, 87.5, -88.0, -89.5])
    lon = np.array([0.0, 0.0, 0.0, 0.0, 180.0, 180.0, 0.0, 180.0])
    phi, lam = GAUSSIAN.latitude[:, None], np.radians(GAUSSIAN.longitude)
    # towards 0° east is one way: north on the side of 180°, south on that of 0°
    fields = {
        "2m_temperature": 280 + (90 - np.abs(phi)) * np.cos(lam),
        U: 7 * np.sin(lam) * np.ones_like(phi),
        V: -7 * np.cos(lam) * np.ones_like(phi) * np.sign(phi),
    }
    x = states(space, **fields)
    (t,) = compiled(points(lat, lon, "2m_temperature"), space)
    side = np.cos(np.radians(lon))
    np.testing.assert_allclose(physical(t, x), 280 + (90 - np.abs(lat)) * side, atol=2e-5)
    (v,) = compiled(points(lat, lon, V), space)
    np.testing.assert_allclose(physical(v, x), -7 * side * np.sign(lat), atol=2e-5)
    (speed,) = compiled(points(lat, lon, "10m_wind_speed"), space)
    np.testing.assert_allclose(physical(speed, x), 7, atol=1e-4)


def test_winds_of_solid_rotation():
    r"""About an axis tilted by 40°: components, speed and direction everywhere, poles too. Linear
    interpolation errs by h²/8 of the second derivative, U, in each direction."""
    space, tilt, speed = make_space(GAUSSIAN), np.radians(40), 20.0
    rng = np.random.default_rng(1)
    lat = np.degrees(np.arcsin(rng.uniform(-1, 1, 400)))
    lon = rng.uniform(0, 360, 400)

    def wind(lat, lon):
        phi, lam = np.radians(lat), np.radians(lon)
        u = speed * (np.cos(phi) * np.cos(tilt) + np.sin(phi) * np.cos(lam) * np.sin(tilt))
        return u, -speed * np.sin(lam) * np.sin(tilt) * np.ones_like(phi)

    u, v = wind(GAUSSIAN.latitude[:, None], GAUSSIAN.longitude)
    x = states(space, **{U: u, V: v})
    h = np.radians(2 * (90 - GAUSSIAN.latitude[0]))  # the widest gap, over the pole
    bound = speed * (h**2 + np.radians(3.75) ** 2) / 8
    exact_u, exact_v = wind(lat, lon)
    for name, exact in ((U, exact_u), (V, exact_v), ("10m_wind_speed", np.hypot(exact_u, exact_v))):
        (operator,) = compiled(points(lat, lon, name), space)
        assert np.abs(physical(operator, x) - exact).max() < 2 * bound, name

    exact = np.degrees(np.arctan2(-exact_u, -exact_v))
    (operator,) = compiled(points(lat, lon, "10m_wind_direction", exact), space)
    away = np.degrees(2 * bound / np.hypot(exact_u, exact_v))
    assert (np.abs(operator.departure(x)[0].numpy()) < away).all()


def test_between_levels_fields_are_linear_in_log_pressure():
    space = make_space(SMALL)
    profile = 250 + 20 * np.log(np.array(LEVELS) / 500)
    x = states(space, temperature=np.broadcast_to(profile[:, None, None], (4, *SMALL.shape)))
    level = np.array([200.0, 850.0, 1000.0, 999.99, 300.0, 500.01, 600.0, 925.0])
    (operator,) = compiled(points(10.0, 20.0, "temperature", level=level), space)
    at = operator.rows["level"].to_numpy()
    assert sorted(at) == sorted(level)
    np.testing.assert_allclose(physical(operator, x), 250 + 20 * np.log(at / 500), atol=2e-4)
    # rows on levels take four numbers of the state, those between eight
    assert {part.gather.index.shape for part in operator.parts} == {(3, 4), (5, 8)}


def test_thickness_of_an_isothermal_atmosphere():
    space = make_space(SMALL)
    phi = -R * 255 * np.log(np.array(LEVELS) / 1000)
    x = states(space, geopotential=np.broadcast_to(phi[:, None, None], (4, *SMALL.shape)))
    # between levels that the model has, and others
    for top, bottom in ((500, 1000), (300, 700)):
        (operator,) = compiled(points(-40.0, 200.0, f"thickness_{top}_{bottom}"), space)
        exact = R * 255 / G * np.log(bottom / top)
        np.testing.assert_allclose(physical(operator, x), exact, rtol=1e-6)


# Sea


def test_sea_surface_is_seen_at_sea():
    land = np.zeros(SMALL.shape, bool)
    land[2:4, :4] = True
    space = make_space(SMALL, land)
    field = np.where(land, 1e6, 290 + SMALL.latitude[:, None] / 10)  # land must take no part
    x = states(space, sea_surface_temperature=field)
    lat, lon = [15.0, -5.0, 15.0, -60.0], [90.0, 45.0, 150.0, 300.0]
    operators = compiled(points(lat, lon, "sea_surface_temperature"), space)
    (operator,) = operators
    np.testing.assert_array_equal(operator.rows["longitude"], [150, 300])
    np.testing.assert_allclose(physical(operator, x), [291.5, 284.0], atol=1e-3)
    assert operators.excluded["reason"].tolist() == ["sea surface on land"]
    assert operators.excluded["count"].tolist() == [2]


# Against synthesis


@pytest.fixture(scope="module")
def planet():
    return two_hours()


def observed(ds, noise: float):
    grid = Grid.from_coordinates(ds["latitude"], ds["longitude"])
    network = Network("n", stations(grid, 250), (Satellite(noise=noise),), noise=noise)
    table, swath = observe(ds, network, statistics=statistics())
    return SimpleNamespace(points=table.assign(hour=table["time"]), gridded=swath)


def test_no_departure_from_the_truth_without_noise(planet):
    r"""A network with hardly any noise, whose errors are then said to be 1 %: departures of ten
    standard deviations would be 1e-4 × 10."""
    ds, space, x = planet
    observations = observed(ds, 1e-6)
    observations.points["error"] *= 1e4
    for name in ATMOSPHERIC:
        observations.gridded[f"{name}_error"] *= 1e4
    operators = compiled(observations, space, ds["time"].values)
    assert not len(operators.excluded)
    counted = len(observations.points) + sum(
        int(observations.gridded[n].notnull().sum()) for n in ATMOSPHERIC
    )
    assert sum(map(len, operators)) == counted
    for k, operator in enumerate(operators):
        assert operator.linear
        departure = operator.departure(x[k : k + 1])
        assert departure.abs().max() < 2e-3
        # single precision costs as little
        exact = operator.departure(x[k : k + 1].double())
        assert (departure - exact).abs().max() < 1e-3


def test_departures_from_the_truth_are_white(planet):
    ds, space, x = planet
    operators = compiled(observed(ds, 0.05), space, ds["time"].values)
    d = torch.cat([op.departure(x[k : k + 1])[0] for k, op in enumerate(operators)]).double()
    n = len(d)
    assert n > 30_000
    assert abs(d.mean()) < 5 / np.sqrt(n)
    low, high = chi2.ppf([5e-7, 1 - 5e-7], n)
    assert low < (d**2).sum() < high


# Angles


def test_directions_depart_around_the_circle():
    space = make_space(SMALL)
    x = states(space, **{U: np.full(SMALL.shape, -np.sin(np.radians(10)))})
    x[:, space.channels(V)] = states(space, **{V: np.full(SMALL.shape, -np.cos(np.radians(10)))})[
        :, space.channels(V)
    ]  # a wind from 10°
    value = [350.0, 30.0, 10.0, 189.0, 191.0, -10.0, 370.0]
    (operator,) = compiled(points(0.0, 0.0, "10m_wind_direction", value, 5.0), space)
    expected = np.array([-20, 20, 0, 179, -179, -20, 0]) / 5
    np.testing.assert_allclose(operator.departure(x)[0], expected, atol=1e-4)


# Grids


def gridded(space: StateSpace, ds: xr.Dataset, name: str, keep: np.ndarray):
    r"""A field seen in some places, and the same as points."""
    field = ds[name].where(xr.DataArray(keep, dims=("latitude", "longitude")))
    swath = xr.Dataset({name: field, f"{name}_error": 0.1 + 0 * field})
    stacked = field.to_series().dropna().reset_index()
    table = points(stacked["latitude"], stacked["longitude"], name, stacked[name], 0.1).points
    table["level"] = stacked["level"].astype(float) if "level" in stacked else np.nan
    table["hour"] = stacked["time"]
    return swath, table


@pytest.mark.parametrize("name", ["temperature", "2m_temperature", "sea_surface_temperature"])
def test_grids_and_points_agree(planet, name):
    ds, space, x = planet
    keep = np.random.default_rng(0).random(space.grid.shape) < 0.1
    swath, table = gridded(space, ds, name, keep)
    empty = table.iloc[:0]
    as_grid = compiled(SimpleNamespace(points=empty, gridded=swath), space, ds["time"].values)
    as_rows = compiled(SimpleNamespace(points=table, gridded=None), space, ds["time"].values)
    noise = torch.randn(x.shape, generator=torch.manual_seed(0))
    for one, other in zip(as_grid, as_rows, strict=True):
        torch.testing.assert_close(one(x + noise), other(x + noise), rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(one.y, other.y, rtol=1e-4, atol=1e-3)
        assert one.rows["gridded"].all()
        assert not other.rows["gridded"].any()
        point = one.rows["place"].to_numpy()
        np.testing.assert_array_equal(
            point // 96, np.searchsorted(-space.grid.latitude, -one.rows["latitude"])
        )
        assert (other.rows["place"] >= 48 * 96).all()


def test_other_grids_are_interpolated_to(planet):
    r"""A coarse grid, its rows from south to north, and a corner of it."""
    ds, space, x = planet
    target = Grid("equiangular", 19, 36)
    index, weight = space.grid.interpolation(
        *(a.ravel() for a in np.meshgrid(target.latitude, target.longitude, indexing="ij"))
    )
    values = ds["mean_sea_level_pressure"].values.reshape(2, -1)[:, index]
    coords = {"time": ds["time"], "latitude": target.latitude, "longitude": target.longitude}
    coarse = xr.DataArray((values * weight).sum(-1).reshape(2, 19, 36), coords)
    for part in (coarse, coarse.isel(latitude=slice(None, None, -1)), coarse[:, 3:7, 20:]):
        swath = xr.Dataset(
            {"mean_sea_level_pressure": part, "mean_sea_level_pressure_error": 10 + 0 * part}
        )
        observations = SimpleNamespace(points=points([], [], "x").points, gridded=swath)
        operators = compiled(observations, space, ds["time"].values)
        assert len(operators[0]) == part[0].size
        assert operators[0].departure(x[:1]).abs().max() < 5e-3


def test_grids_without_errors():
    ds = xr.Dataset(
        {"2m_temperature": (("time", "latitude", "longitude"), np.full((1, *SMALL.shape), 280.0))},
        {"time": [HOUR], "latitude": SMALL.latitude, "longitude": SMALL.longitude},
    )
    observations = SimpleNamespace(points=points([], [], "x").points, gridded=ds)
    with pytest.raises(DataError, match="no '2m_temperature_error'; give one"):
        compiled(observations, make_space(SMALL))


# Hours, places, what is left out


def test_hours_and_places():
    space = make_space(SMALL)
    hours = HOUR + np.arange(4) * np.timedelta64(1, "h")
    rows = points(
        [50.0, 10.0, 50.0, 50.0, 10.0],
        [8.0, 359.0, 8.00001, 368.0, -1.0],
        ["2m_temperature", U, "2m_temperature", "2m_temperature", U],
        [281.0, 3.0, 282.0, 283.0, 4.0],
        hour=hours[[0, 0, 1, 3, 3]],
        station=["a", "b", "a", None, np.nan],
    )
    operators = compiled(rows, space, hours[:4])
    assert [0 if op is None else len(op) for op in operators] == [2, 1, 0, 2]
    assert operators[2] is None
    assert all(op.hour == hour for op, hour in zip(operators, hours, strict=True) if op)
    frames = [op.rows.set_index("variable") for op in operators if op]
    first, second, last = frames
    assert first.loc["2m_temperature", "place"] == second.loc["2m_temperature", "place"]
    assert first.loc["2m_temperature", "place"] == last.loc["2m_temperature", "place"]
    assert first.loc[U, "place"] == last.loc[U, "place"] != first.loc["2m_temperature", "place"]
    assert first["station"].tolist() == ["a", "b"]
    assert last["station"].tolist() == ["", ""]
    assert last.loc[U, "value"] == 4.0
    # the keys of a place are the same when compiled alone, as other windows are
    (alone,) = compiled(rows, space, hours[3:])
    assert alone.rows["place"].tolist() == operators[3].rows["place"].tolist()


def test_what_cannot_be_compared_is_counted():
    space = make_space(SMALL)
    names = ["temperature"] * 4 + ["relative_humidity", "nonsense", "thickness_50_500", U, U, U]
    level = [np.nan, 100.0, 500.0, 1001.0, np.nan, np.nan, np.nan, np.nan, np.nan, 500.0]
    rows = points(10.0, 20.0, names, level=level)
    rows.points["value"] = [1.0] * 7 + [np.nan, 1.0, 1.0]
    rows.points["error"] = [1.0] * 8 + [0.0, 1.0]
    operators = compiled(rows, space)
    (operator,) = operators
    assert operator.rows["variable"].tolist() == ["temperature", U]
    assert operator.rows["level"].isna().tolist() == [False, True]
    counts = dict(zip(operators.excluded["reason"], operators.excluded["count"], strict=True))
    assert counts == {
        "level missing": 2,
        "level beyond the model's": 3,
        "unknown variable": 1,
        "not a number": 1,
        "no or non-positive error": 1,
    }
    only = StateSpace(Standardizer(moments(), SURFACE[:2], (), ()), SMALL)
    operators = compiled(points(10.0, 20.0, [V, "10m_wind_speed", U, "temperature"]), only)
    assert operators.excluded.loc[0, ["reason", "count"]].tolist() == [
        "variable the model lacks",
        3,
    ]
    assert len(operators[0]) == 1
    nothing = compiled(points([], [], "x"), space)
    assert list(nothing) == [None]
    assert len(nothing.excluded) == 0


def test_space_of_a_model(planet):
    r"""What it asks of a model: a standardizer, a grid and the static fields of its statistics."""
    ds, space, _ = planet
    kept = statistics().assign(geopotential_at_surface=ds["geopotential_at_surface"].variable)
    model = SimpleNamespace(
        standardizer=space.standardizer, grid=space.grid, statistics=kept, origin="mine"
    )
    made = StateSpace.of(model)  # pyright: ignore
    np.testing.assert_array_equal(np.asarray(made.ground), np.asarray(space.ground))
    np.testing.assert_array_equal(np.asarray(made.land), np.isnan(ds["sea_surface_temperature"][0]))
    assert made.shape == (71, 48, 96)
    assert np.asarray(made.ground).max() == pytest.approx(5225, abs=1)
    model.statistics = statistics()
    assert StateSpace.of(model).ground is None  # pyright: ignore
    model.standardizer = None
    with pytest.raises(DataError, match="mine has no named channels or no statistics"):
        StateSpace.of(model)  # pyright: ignore
