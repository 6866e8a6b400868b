from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from appa.data.grids import Grid, same_places
from appa.errors import DataError
from appa.observations.checks import BACKGROUND
from appa.observations.collection import Observations
from appa.observations.reading import read_observations

GRID = Grid("equiangular", 7, 12)
START = pd.Timestamp("2021-03-21")


@st.composite
def tables(draw, most=12) -> pd.DataFrame:
    r"""Good rows of a few places and hours, so that several tables have some in common."""
    row = st.tuples(
        st.integers(0, 5),  # hour
        st.integers(-10, 10),  # minutes
        st.sampled_from(
            [(50.25, 4.5, "A"), (50.25, 4.5, ""), (-33.0, 286.125, ""), (0.0, 0.0, "C")]
        ),
        st.sampled_from(
            [("2m_temperature", np.nan), ("temperature", 850.0), ("temperature", 500.0)]
        ),
        st.floats(220, 290),
        st.floats(0.01, 10),
    )
    rows = [
        {
            "time": START + pd.Timedelta(hours=h, minutes=m),
            "latitude": place[0],
            "longitude": place[1],
            "variable": name,
            "level": level,
            "value": value,
            "error": error,
            "station": place[2],
            "elevation": np.nan,
        }
        for h, m, place, (name, level), value, error in draw(
            st.lists(row, min_size=1, max_size=most)
        )
    ]
    return pd.DataFrame(rows)


def same(a: Observations, b: Observations) -> None:
    assert a.digest() == b.digest()
    assert len(a) == len(b)
    pd.testing.assert_frame_equal(
        a.excluded.drop(columns="example"), b.excluded.drop(columns="example")
    )


@settings(max_examples=15, deadline=None)
@given(tables(), st.randoms(use_true_random=False))
def test_tables_there_and_back_in_any_order(tmp_path_factory, table, random):
    first = read_observations(table)
    path = tmp_path_factory.mktemp("tables") / "t.parquet"
    first.points.to_parquet(path)
    again = read_observations(path, strict=True)
    pd.testing.assert_frame_equal(again.points, first.points)
    assert again.digest() == first.digest()

    order = list(range(len(first.points)))
    random.shuffle(order)
    assert read_observations(first.points.iloc[order]).digest() == first.digest()
    changed = first.points.copy()
    changed.loc[0, "value"] += 1e-9 * changed.loc[0, "value"]
    assert read_observations(changed).digest() != first.digest()


@settings(max_examples=15, deadline=None)
@given(tables(), tables(), tables())
def test_addition_is_associative(a, b, c):
    x, y, z = (read_observations(part) for part in (a, b, c))
    same((x + y) + z, x + (y + z))
    whole = x + y + z
    assert len(whole) + whole.excluded["count"].sum() == len(a) + len(b) + len(c)
    # and adding what is there already adds nothing but duplicates
    assert (whole + whole).digest() == whole.digest()
    same(x + Observations(), x)
    same(Observations() + x, x)


def fields(
    hours: int = 2, start: str = "2021-03-21", seed: int = 0, grid: Grid = GRID
) -> xr.Dataset:
    rng = np.random.default_rng(seed)
    coords = {
        "time": pd.date_range(start, periods=hours, freq="h"),
        "latitude": grid.latitude,
        "longitude": grid.longitude,
    }
    t = (280 + rng.standard_normal((hours, *grid.shape))).astype("f4")
    t[rng.random(t.shape) < 0.5] = np.nan
    ds = xr.Dataset({"2m_temperature": (tuple(coords), t)}, coords)
    ds["2m_temperature_error"] = ds["2m_temperature"] * 0 + np.float32(0.5)
    return ds


def test_fields_add_up():
    parts = [fields(2), fields(2, "2021-03-21T01", 1), fields(1, "2021-03-21T01", 2)]
    x, y, z = (read_observations(part) for part in parts)
    same((x + y) + z, x + (y + z))
    whole = x + y + z
    assert len(whole) + whole.excluded["count"].sum() == len(x) + len(y) + len(z)
    assert whole.gridded is not None
    a, b, c = (part["2m_temperature"].sel(time="2021-03-21T01").values for part in parts)
    expected = np.where(np.isnan(a), np.where(np.isnan(b), c, b), a)
    found = whole.gridded["2m_temperature"].sel(time="2021-03-21T01")
    np.testing.assert_array_equal(found, expected)
    assert (whole.gridded["latitude"].values == GRID.latitude).all()
    assert whole.gridded["2m_temperature"].attrs["units"] == "K"
    assert len(whole.hours) == 3


def test_fields_of_several_trajectories_add_up():
    r"""Stores of several members say which one an hour is of; observations need not."""
    parts = [fields(2), fields(2, "2022-03-21", 1)]
    parts = [p.assign_coords(trajectory=("time", [k] * 2)) for k, p in enumerate(parts)]
    x, y = (read_observations(part) for part in parts)
    assert len(x + y) == len(x) + len(y)
    assert (x + y).digest() == (y + x).digest()


def test_fields_on_another_grid_become_points():
    x, y = read_observations(fields()), read_observations(fields(grid=Grid("gaussian", 8, 16)))
    both = x + y
    assert both.gridded is not None
    assert both.gridded.sizes["latitude"] == 7
    assert len(both.points) == len(y)
    assert len(both) == len(x) + len(y)


def points(n: int = 6) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "time": pd.date_range(START, periods=n, freq="h"),
            "latitude": 50.0,
            "longitude": 4.0,
            "variable": "2m_temperature",
            "level": np.nan,
            "value": 280.0 + np.arange(n),
            "error": 0.5,
            "station": "A",
            "elevation": 10.0,
        }
    )


def test_between():
    both = read_observations([points(), fields(4)])
    out = both.between("2021-03-21T01", 2)
    assert out.points["value"].tolist() == [281.0, 282.0]
    assert out.gridded is not None
    assert out.gridded.sizes["time"] == 2
    assert out.hours.tolist() == np.array(["2021-03-21T01", "2021-03-21T02"], "M8[ns]").tolist()
    assert out.excluded["reason"].tolist() == ["outside the period"]
    assert out.excluded["count"].tolist() == [len(both) - len(out)]
    # an observation belongs to the hour it is matched to
    early = points(1).assign(time=pd.Timestamp("2021-03-20T23:40"))
    assert len(read_observations(early).between("2021-03-21", 1)) == 1
    with pytest.raises(DataError, match="they are of 2021-03-21T00 to 2021-03-21T05"):
        both.between("2022-01-01", 24)
    with pytest.raises(DataError, match="1 hour or more"):
        both.between("2021-03-21", 0)
    assert len(Observations().between("2021-03-21", 3)) == 0


def test_summary_counts_by_hand():
    gridded = fields(3)
    out = read_observations([points(), gridded]).summary()
    seen = gridded["2m_temperature"].notnull()
    assert out.loc["2m_temperature"].tolist() == [
        6 + int(seen.sum()),
        1 + int(seen.any("time").sum()),
        6,
    ]


def test_exclude():
    out = read_observations(points())
    rejected = out.points["value"] > 283
    less = out.exclude(rejected, BACKGROUND)
    assert len(less) == 4
    assert less.excluded["reason"].tolist() == [BACKGROUND]
    assert "2021-03-21T04:00" in less.excluded["example"][0]
    assert len(out) == 6  # as it was
    with pytest.raises(DataError, match="6 rows, and found a mask of shape"):
        out.exclude([True], BACKGROUND)


def test_digests_tell_differences():
    base = read_observations([points(), fields()])
    changes = [
        [points().assign(elevation=11.0), fields()],
        [points().assign(station="B"), fields()],
        [points(), fields(seed=1)],
        [points(), fields(start="2021-03-22")],
        [points(), fields().roll(longitude=1, roll_coords=False)],
        [points()],
        [fields()],
    ]
    digests = {base.digest(), *(read_observations(source).digest() for source in changes)}
    assert len(digests) == 1 + len(changes)
    assert len(base.digest()) == 16
    # west of Greenwich is also nearly round the world
    west = points().assign(longitude=-73.5)
    assert (
        read_observations(west).digest() == read_observations(west.assign(longitude=286.5)).digest()
    )


def test_empty():
    none = Observations()
    assert len(none) == 0
    assert not none
    assert none.hours.size == 0
    assert "0 observations" in repr(none)
    assert none.summary().empty


def test_rounded_coordinates_are_the_same_places():
    grid = Grid("gaussian", 48, 96)
    ds = xr.Dataset(coords={"latitude": grid.latitude.round(2), "longitude": grid.longitude})
    assert same_places(ds, grid)
    assert same_places(grid, grid)
    assert not same_places(ds.isel(longitude=slice(95)), grid)
    assert not same_places(ds.isel(latitude=slice(None, None, -1)), grid)
    assert not same_places(ds.assign_coords(longitude=grid.longitude + 0.05), grid)
    assert not same_places(ds, Grid("equiangular-cells", 48, 96))
