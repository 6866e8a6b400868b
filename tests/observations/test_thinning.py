from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from appa.data.grids import Grid, great_circle
from appa.errors import DataError
from appa.observations import thinning
from appa.observations.collection import Observations
from appa.observations.thinning import thin


def points(n: int, seed: int = 0, levels=(500.0, 850.0), hours=2) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "time": pd.Timestamp("2021-03-21") + pd.to_timedelta(rng.integers(0, hours, n), "h"),
            "latitude": np.degrees(np.arcsin(rng.uniform(-1, 1, n))),
            "longitude": rng.uniform(0, 360, n),
            "variable": rng.choice(["temperature", "geopotential"], n),
            "level": rng.choice(levels, n),
            "value": rng.standard_normal(n),
            "error": rng.choice([0.5, 1.0, 2.0], n),
            "station": "",
            "elevation": np.nan,
        }
    )


def distances(part: pd.DataFrame) -> np.ndarray:
    latitude, longitude = part["latitude"].to_numpy(), part["longitude"].to_numpy()
    return great_circle(latitude[:, None], longitude[:, None], latitude, longitude) / 1e3


@pytest.mark.parametrize("pairs", [thinning.PAIRS, 100])
def test_kept_are_apart_and_the_others_are_close_to_better_ones(pairs, monkeypatch):
    r"""The two halves of what thinning is, whichever way it is computed."""
    monkeypatch.setattr(thinning, "PAIRS", pairs)
    before = Observations(points(1500))
    after = thin(before, 800)
    kept = after.points.set_index("value")  # values are all different
    assert after.excluded.values.tolist()[0][:2] == ["thinned", 1500 - len(after)]
    for _, group in before.points.groupby(["variable", "level", "hour"]):
        away = distances(group)
        stays = group["value"].isin(kept.index).to_numpy()
        apart = away[np.ix_(stays, stays)] + 1e9 * np.eye(stays.sum())
        assert apart.min() >= 800
        error = group["error"].to_numpy()
        for k in np.flatnonzero(~stays):
            rivals = stays & (away[k] < 800)
            assert error[rivals].min() <= error[k]
    # nothing is inflated
    errors = before.points.set_index("value").loc[kept.index, "error"]
    np.testing.assert_array_equal(errors, kept["error"])


def test_the_order_does_not_matter():
    rows = points(800)
    shuffled = rows.sample(frac=1, random_state=1)
    a, b = thin(Observations(rows), 1000), thin(Observations(shuffled), 1000)
    assert a.digest() == b.digest()
    assert a.digest() != Observations(rows).digest()


def test_across_the_date_line_and_the_pole():
    rows = points(4, levels=(500.0,), hours=1).assign(
        variable="temperature",
        latitude=[0.0, 0.0, 89.9, 89.9],
        longitude=[0.1, 359.9, 0.0, 180.0],  # 22 km each
        error=[1.0, 2.0, 3.0, 2.0],
    )
    assert thin(Observations(rows), 25).points["error"].tolist() == [1.0, 2.0]
    assert len(thin(Observations(rows), 20)) == 4


def test_one_a_box():
    grid = Grid("equiangular", 19, 36)  # 10°
    rows = points(2000, levels=(500.0,), hours=1).assign(variable="temperature")
    kept = thin(Observations(rows), per_box=grid).points

    def box(frame):  # the nearest point, by distance in degrees
        row = np.rint((90 - frame["latitude"]) / 10).astype(int)
        return row * 36 + np.rint(frame["longitude"] / 10).astype(int) % 36

    best = rows.groupby(box(rows))["error"].min()
    assert len(kept) == len(best)
    pd.testing.assert_series_equal(
        kept.set_index(box(kept))["error"].sort_index(), best, check_names=False
    )


def test_fields_are_thinned_too():
    grid = Grid("equiangular", 19, 36)
    shape = (1, 2, 19, 36)
    dims = ("time", "level", "latitude", "longitude")
    coords = {
        "time": np.array(["2021-03-21T00"], "M8[ns]"),
        "level": [500, 850],
        "latitude": grid.latitude,
        "longitude": grid.longitude,
    }
    rng = np.random.default_rng(0)
    value = np.where(rng.random(shape) < 0.7, 250.0, np.nan)
    ds = xr.Dataset(coords=coords)
    ds["temperature"] = (dims, value)
    ds["temperature_error"] = (dims, np.where(np.isnan(value), np.nan, rng.random(shape)))
    before = Observations(None, ds)
    after = thin(before, 2500)
    assert after.gridded is not None
    kept = after.gridded["temperature"].notnull()
    assert int((kept & ds["temperature"].isnull()).sum()) == 0
    assert len(before) == len(after) + after.excluded["count"].sum()
    seen = after.gridded["temperature_error"].notnull()
    np.testing.assert_array_equal(seen, kept)
    for j in range(2):
        row, column = np.nonzero(kept.values[0, j])
        away = distances(
            pd.DataFrame({"latitude": grid.latitude[row], "longitude": grid.longitude[column]})
        )
        assert (away + 1e9 * np.eye(len(row))).min() >= 2500
        # as many as of the same values in a table
        flat = ds.isel(level=[j]).to_dataframe().reset_index().dropna()
        flat = flat.rename(columns={"temperature": "value", "temperature_error": "error"})
        flat = flat.assign(variable="temperature", station="", elevation=np.nan)
        assert len(thin(Observations(flat), 2500)) == len(row)


def test_what_it_refuses():
    observations = Observations(points(3))
    for bad in ({}, {"distance_km": 5.0, "per_box": Grid("equiangular", 19, 36)}):
        with pytest.raises(DataError, match="give one of them"):
            thin(observations, **bad)
    with pytest.raises(DataError, match="above 0"):
        thin(observations, 0.0)
