from __future__ import annotations

import gzip
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from appa.data.grids import Grid
from appa.data.variables import G
from appa.errors import DataError, StoreError
from appa.observations.reading import read_observations

GRID = Grid("equiangular", 19, 36)


def long(**columns) -> pd.DataFrame:
    r"""Three hours of temperature at one place, with columns changed."""
    base = {
        "time": pd.date_range("2021-03-21", periods=3, freq="h"),
        "latitude": 50.0,
        "longitude": 4.0,
        "variable": "2m_temperature",
        "level": np.nan,
        "value": [280.0, 281.0, 282.0],
        "error": 0.5,
    }
    frame = pd.DataFrame(base | columns)
    return frame.drop(columns=[name for name, value in columns.items() if value is None])


def fields(hours=3, levels=(500, 850), grid=GRID, start="2021-03-21") -> xr.Dataset:
    rng = np.random.default_rng(0)
    coords = {
        "time": pd.date_range(start, periods=hours, freq="h"),
        "level": list(levels),
        "latitude": grid.latitude,
        "longitude": grid.longitude,
    }
    ds = xr.Dataset(coords=coords)
    shape = (hours, len(levels), *grid.shape)
    t = (250 + 5 * rng.standard_normal(shape)).astype("f4")
    t[rng.random(shape) < 0.8] = np.nan
    ds["temperature"] = (tuple(coords), t)
    ds["temperature_error"] = ds["temperature"] * 0 + np.float32(0.5)
    return ds


def counts(observations) -> dict[str, int]:
    return dict(zip(observations.excluded["reason"], observations.excluded["count"], strict=True))


def test_column_names_are_matched_kindly():
    frame = long(variable="t2m").rename(
        columns={"time": "Valid Time", "latitude": "LAT", "longitude": "lon", "error": "sigma"}
    )
    frame["Station ID"] = "06451"
    points = read_observations(frame).points
    assert points["variable"].tolist() == ["2m_temperature"] * 3
    assert points["station"].tolist() == ["06451"] * 3
    odd = frame.rename(columns={"value": "TEMP", "LAT": "phi"})
    with pytest.raises(DataError, match="has no latitude; it has"):
        read_observations(odd)
    same = read_observations(odd, columns={"TEMP": "value", "phi": "latitude"})
    pd.testing.assert_frame_equal(same.points, points)
    with pytest.raises(DataError, match="'TMP', which is not there; did you mean 'TEMP'"):
        read_observations(odd, columns={"TMP": "value"})


def test_times_become_utc():
    east = timezone(timedelta(hours=5, minutes=30))
    noon = datetime(2021, 3, 21, 12, tzinfo=UTC)
    for time in (
        ["2021-03-21T12:00Z", "2021-03-21 17:30+05:30", "2021-03-21T12"],
        ["20210321T1200", "2021032112", "202103211200"],
        [2021032112] * 3,
        [noon, noon.astimezone(east), noon],
        pd.DatetimeIndex([noon] * 3).tz_convert("America/New_York"),
    ):
        frame = long(time=time, latitude=[50.0, 51.0, 52.0])
        hours = read_observations(frame).points["hour"]
        assert hours.tolist() == [pd.Timestamp("2021-03-21T12")] * 3
    out = read_observations(long(time=["2021-03-21T12", "soon", ""]))
    assert counts(out) == {"no date": 2}
    assert "time=soon" in out.excluded["example"][0]


def test_longitudes_and_levels():
    frame = long(longitude=-73.76, variable="temperature", level=[85000, 50000, 70000], value=260)
    points = read_observations(frame).points
    np.testing.assert_allclose(points["longitude"], 286.24)
    assert points["level"].tolist() == [850, 500, 700]  # nothing on this planet is at 85000 hPa
    high = read_observations(frame.assign(level=[85, 50, 70]), units={"level": "kPa"})
    assert high.points["level"].tolist() == [850, 500, 700]
    with pytest.raises(DataError, match=r"level missing or not within the model's +3"):
        read_observations(frame.assign(level=20))
    assert len(read_observations(frame.assign(level=20, value=220), levels=(10, 1000))) == 3


def test_units_from_a_column_an_argument_or_a_name():
    frame = long(value=[15.0, 59.0, 288.15], units=["°C", "°F", ""], error=[1.0, 1.8, 1.0])
    points = read_observations(frame).points
    np.testing.assert_allclose(points["value"], 288.15)
    np.testing.assert_allclose(points["error"], 1.0)
    told = read_observations(long(value=[15.0] * 3, units="K"), units={"t2m": "degC"})
    np.testing.assert_allclose(told.points["value"], 288.15)  # the caller knows better
    height = long(variable="gh", level=500, value=5500.0, error=10.0)
    points = read_observations(height).points
    np.testing.assert_allclose(points["value"], 5500 * G)
    np.testing.assert_allclose(points["error"], 10 * G)
    feet = read_observations(long(elevation=[1000, -999.9, 0]), units={"elevation": "ft"})
    np.testing.assert_allclose(feet.points["elevation"], [304.8, -304.77, 0], atol=0.01)
    unknown = read_observations(long(elevation=[100, -999.9, 99999]))
    assert unknown.points["elevation"].isna().tolist() == [False, True, True]
    told = "2 of 3 observations have an elevation that cannot be, such as -999.9 m"
    assert told in unknown.report()
    assert read_observations(long(elevation=[100, np.nan, 0])).notes == ()
    with pytest.raises(DataError, match="'Celcius' is unknown; did you mean '°C'"):
        read_observations(long(units="Celcius"))  # nothing is left
    with pytest.raises(DataError, match="'t2mm', which is unknown; did you mean"):
        read_observations(long(), units={"t2mm": "K"})


def test_a_row_in_a_unit_of_another_kind_is_counted():
    r"""One bad row costs no other, whatever else it is asked for; a column's unit must convert."""
    frame = long(value=[15.0, 2.0, 288.15], units=["°C", "m", "K"])
    for bad, told in (("m", "is of another kind"), ("Celcius", "did you mean '°C'")):
        found = read_observations(frame.assign(units=["°C", bad, "K"]))
        np.testing.assert_allclose(found.points["value"], 288.15)
        assert counts(found) == {"unit unknown or of another kind": 1}
        assert f"row 1: variable=2m_temperature, units={bad}; " in found.excluded["example"][0]
        assert told in found.excluded["example"][0]
    kelvins = frame.drop(columns="error").assign(value=[288.0, 2.0, 288.15], units=["", "m", "K"])
    assert len(read_observations(kelvins, error={"t2m": 1.0})) == 2  # of one unit, not several
    with pytest.raises(DataError, match=r"(?s)1 of 3 observations.*of another kind"):
        read_observations(frame, strict=True)
    with pytest.raises(DataError, match=r"(?s)no observation is left of 3.*of another kind"):
        read_observations(frame.assign(units="m"))
    with pytest.raises(DataError, match="m is of another kind"):
        read_observations(frame, units={"t2m": "m"})
    with pytest.raises(DataError, match="m is of another kind"):
        read_observations(long().drop(columns="value").assign(**{"value [m]": 288.0}))


def test_a_column_in_another_unit_is_refused_as_a_whole():
    with pytest.raises(DataError, match=r"around 15 .* cannot be K; they look like °C") as info:
        read_observations(long(value=[14.0, 15.0, 16.0]))
    assert "units={'2m_temperature': '°C'}" in str(info.value)
    with pytest.raises(DataError, match="cannot be Pa; they look like hPa"):
        read_observations(long(variable="msl", value=[1013.0, 1020.0, 1000.0], units="Pa"))
    both = pd.concat([long(value=[14.0, 15.0, 16.0]), long(variable="msl", value=1013.0)])
    with pytest.raises(DataError, match=r"(?s)look like °C.*look like hPa"):
        read_observations(both)


def test_wide_tables():
    frame = pd.DataFrame(
        {
            "date": ["2021-03-21T00", "2021-03-21T01", "2021-03-21T02"],
            "lat": 50.0,
            "lon": 4.0,
            "t2m (°C)": [6.0, None, "M"],
            "t2m_error": [0.5, 0.5, 0.5],
            "z500": [54000.0, 54100.0, 54200.0],
            "z500_error": 100.0,
            "t2mm": [1.0, 2.0, None],
            "remark": ["calm", "", ""],
        }
    ).rename(columns={"t2m_error": "t2m_sd"})
    out = read_observations(frame)
    assert counts(out) == {"not a number": 1, "unknown variable": 2}
    assert "column 't2mm'" in out.excluded["example"][1]
    rows = out.points.set_index("variable")
    assert rows.loc["2m_temperature", "value"] == pytest.approx(279.15)
    assert rows.loc["geopotential", "level"].tolist() == [500] * 3
    only = read_observations(
        frame.rename(columns={"z500": "x"})[["date", "lat", "lon", "x"]],
        columns={"x": "z500"},
        error={"z": "10 gpm"},
    )
    np.testing.assert_allclose(only.points["error"], 10 * G)
    assert out.notes == ("the table: not used: 'remark'",)


def test_no_column_of_a_wide_table_vanishes():
    r"""Numbers of unknown names are counted, with the nearest name; the rest is told of."""
    frame = pd.DataFrame(
        {
            "time": pd.date_range("2021-03-21", periods=3, freq="h"),
            "lat": 50.0,
            "lon": 4.0,
            "t2m": [280.0, 281.0, 282.0],
            "t2m_error": 0.5,
            "dewpoint": [270.0, None, 275.0],
            "temp_850": [260.0, 261.0, 262.0],
            "temperature_700": [250.0, 251.0, 252.0],
            "temperature_700_error": 1.0,
            "t2m_qc": [0, 0, 1],
            "station name": ["Uccle", "Uccle", "7"],
            "manual": [True, False, False],
            "empty": np.nan,
            "date": pd.Timestamp("2021-03-21"),
        }
    )
    out = read_observations(frame)
    assert out.variables == ["2m_temperature", "temperature"]
    assert out.points["level"].dropna().tolist() == [700] * 3
    assert counts(out) == {"unknown variable": 5}
    (example,) = out.excluded["example"]
    assert "column 'dewpoint'; the nearest known is 'geopotential'" in example
    assert "column 'temp_850'; did you mean 'temperature'?" in example
    told = "the table: not used: 't2m_qc', 'station name', 'manual', 'date'"
    assert out.report().splitlines()[-1] == told
    assert told in repr(out.between("2021-03-21T00", 2) + out)
    with pytest.raises(DataError, match="'temp_850'"):
        read_observations(frame, strict=True)
    fine = frame.drop(columns=["dewpoint", "temp_850"])
    assert len(read_observations(fine, strict=True)) == 6  # flags are no observations
    assert read_observations(long(qc=1)).notes == ("the table: not used: 'qc'",)


def test_a_model_without_levels():
    assert len(read_observations(long(), levels=())) == 3
    upper = long(variable="temperature", level=500.0, value=250.0)
    out = read_observations(pd.concat([long(), upper]), levels=())
    assert counts(out) == {"level missing or not within the model's": 3}
    assert out.variables == ["2m_temperature"]
    count = int(fields()["temperature"].notnull().sum())
    with pytest.raises(DataError, match=f"source 2: no observation is left of {count:,} found"):
        read_observations([long(), fields()], levels=())


def test_errors_that_are_missing():
    bare = long(error=None)
    with pytest.raises(DataError, match=r"no column `error`.*error=\{'2m_temperature'"):
        read_observations(bare)
    celsius = bare.assign(value=[14.0, 15.0, 16.0], units="°F")
    given = read_observations(celsius.assign(value=59.0), error={"t2m": 1.8})
    np.testing.assert_allclose(given.points["error"], 1.0)  # in the unit of the values
    given = read_observations(celsius.assign(value=59.0), error={"t2m": "1 K"})
    np.testing.assert_allclose(given.points["error"], 1.0)
    some = read_observations(long(error=[0.5, np.nan, -1]), error={"t2m": 2})
    assert some.points["error"].tolist() == [0.5, 2.0]
    assert counts(some) == {"no or non-positive error": 1}
    mixed = bare.assign(value=[15, 288, 288], units=["°F", "K", "K"])
    with pytest.raises(DataError, match="several units"):
        read_observations(mixed, error={"t2m": 1.0})
    for bad in ({"t2m": 0}, {"t2m": "little"}):
        with pytest.raises(DataError, match="above 0"):
            read_observations(bare, error=bad)
    with pytest.raises(DataError, match="give one a variable"):
        read_observations(bare, error=1.0)


def test_files_are_read_alike(tmp_path):
    r"""A table of one kind of fault each, by hand, in every format."""
    frame = pd.concat(
        [
            long(station="0123"),
            long(station="NA", latitude=95.0),
            long(station="x", latitude=51.0, value=["280", "M", "1e9"]),
            long(station="x", variable="2m_temprature"),
            long(station="0123"),
        ],
        ignore_index=True,
    ).astype({"value": "str"})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_csv(tmp_path / "b.csv", index=False, sep=";", encoding="utf-8-sig")
    with gzip.open(tmp_path / "c.csv.gz", "wt") as f:
        frame.to_csv(f, index=False)
    frame.to_parquet(tmp_path / "d.parquet")
    expected = {
        "not a number": 1,
        "impossible coordinates": 3,
        "unknown variable": 3,
        "value beyond plausible range": 1,
        "duplicate": 3,
    }
    first = read_observations(frame)
    assert counts(first) == expected
    assert len(first) + sum(expected.values()) == len(frame)
    for file in tmp_path.iterdir():
        out = read_observations(file)
        assert counts(out) == expected
        assert out.digest() == first.digest()
        assert out.points["station"].tolist() == ["0123", "0123", "0123", "x"]
    line = read_observations(tmp_path / "a.csv").excluded["example"]
    assert line[0] == "a.csv line 9: variable=2m_temperature, value=M"
    assert line[2].endswith("did you mean '2m_temperature'?")
    together = read_observations(tmp_path / "*.csv")
    assert together.digest() == first.digest()
    assert counts(together)["duplicate"] == 3 + 3 + 4


def test_strict_and_nothing_left():
    bad = long(value=[280.0, np.nan, 281.0])
    with pytest.raises(DataError, match=r"(?s)1 of 3 observations cannot be used.*not a number"):
        read_observations(bad, strict=True)
    assert len(read_observations(long(), strict=True)) == 3
    with pytest.raises(DataError, match=r"(?s)no observation is left of 3.*impossible coordinates"):
        read_observations(long(latitude=99.0))
    with pytest.raises(DataError, match="the table: no observation is left of 0"):
        read_observations(long().head(0))
    with pytest.raises(DataError, match="there is no source"):
        read_observations([])
    with pytest.raises(DataError, match="found a tolerance of 'soon'; give a time of 0 or more"):
        read_observations(long(), tolerance="soon")


def test_nothing_left_of_one_source(tmp_path):
    r"""Beside a good one it is named, with what became of its rows."""
    far = long(latitude=99.0)
    far.to_csv(tmp_path / "far.csv", index=False)
    with pytest.raises(DataError, match=r"(?s)far\.csv: .*left of 3 found.*impossible coordinates"):
        read_observations([long(), tmp_path / "far.csv"])
    with pytest.raises(DataError, match=r"(?s)the table, source 2: .*left of 3 found"):
        read_observations([long(), far])
    empty = fields()
    empty["temperature"] = empty["temperature"] * np.nan
    with pytest.raises(DataError, match="the dataset, source 2: no observation is left of 0"):
        read_observations([long(), empty])
    assert len(read_observations([long(), long(latitude=51.0)])) == 6
    assert len(read_observations([long().head(0), long()])) == 3  # nothing was there to be left


def test_humidity_as_a_fraction():
    rows = long(variable="relative_humidity", level=850, value=[0.5, 0.6, 0.7], error=0.05)
    with pytest.raises(DataError, match=r"cannot be %; they look like 1: say so with units="):
        read_observations(rows)
    given = read_observations(rows, units={"relative_humidity": "1"}).points
    assert given["value"].to_numpy() == pytest.approx([50, 60, 70])
    assert given["error"].to_numpy() == pytest.approx(5.0)
    assert read_observations(rows.assign(units="%")).points["value"].max() == pytest.approx(0.7)


def test_directions_are_around_the_circle_once():
    r"""700° is no direction, as 990 for a variable one is none."""
    frame = long(variable="10m_wind_direction", value=[-10.0, 360.0, 700.0], error=5.0)
    found = read_observations(frame)
    assert found.points["value"].tolist() == [-10.0, 360.0]
    assert counts(found) == {"value beyond plausible range": 1}


def test_geopotential_of_a_single_level():
    ds = fields(levels=(500,)).rename(temperature="z", temperature_error="z_error")
    ds = ds.assign(z=ds["z"] + 54_000 - 250).isel(level=0)  # the level is a scalar now
    found = read_observations(ds)
    assert len(found) == int(ds["z"].notnull().sum())
    assert found.gridded["level"].values.tolist() == [500]
    # without a level it is the ground's, and is told of
    both = fields().assign(z=ds["z"].drop_vars("level"))
    assert read_observations(both).notes == ("the dataset: not used: 'z', which has no level",)


def test_levels_in_the_names_of_fields(tmp_path):
    r"""`t500` and `t850` are what `t` is at both levels; what has no level or time is named."""
    ds = fields()
    both = xr.Dataset()
    for p in (850, 500):
        for end in ("", "_error"):
            both[f"t{p}{end}"] = ds[f"temperature{end}"].sel(level=p, drop=True)
    found, whole = read_observations(both), read_observations(ds)
    assert found.gridded["level"].values.tolist() == [500, 850]
    xr.testing.assert_equal(found.gridded["temperature"], whole.gridded["temperature"])
    assert found.digest() == whole.digest()
    one = read_observations(both[["t500", "t500_error"]])
    assert len(one) == int(both["t500"].notnull().sum())
    mixed = read_observations(ds.isel(level=[1]).assign(both[["t500", "t500_error"]]))
    assert mixed.digest() == whole.digest()
    corner = both.isel(latitude=slice(3, 9), longitude=slice(4, 20))
    assert set(read_observations(corner).points["level"]) == {500, 850}
    with pytest.raises(DataError, match="found 'temperature' twice, the second as 't_500'"):
        read_observations(both.assign(t_500=both["t500"]), error={"t": 1.0})
    with pytest.raises(DataError, match="'t500': its name says 500 hPa, and its level 850"):
        read_observations(both[["t500", "t500_error"]].assign_coords(level=850))
    path = tmp_path / "fields.nc"
    both.rename(t500="t", t500_error="t_error").to_netcdf(path)
    with pytest.raises(DataError, match=r"fields.nc: 't': there is no level;.*or name it .* t500"):
        read_observations(path)
    both.isel(time=0, drop=True).to_netcdf(tmp_path / "hour.nc")
    with pytest.raises(DataError, match=r"hour.nc: 't850': there is no time;.*expand_dims\(time="):
        read_observations(tmp_path / "hour.nc")


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(StoreError, match="does not exist"):
        read_observations(tmp_path / "none.csv")
    with pytest.raises(StoreError, match="no file matches"):
        read_observations(tmp_path / "*.csv")
    (tmp_path / "x.parquet").write_text("no")
    with pytest.raises(StoreError, match="cannot be read"):
        read_observations(tmp_path / "x.parquet")
    (tmp_path / "x.doc").write_text("no")
    with pytest.raises(DataError, match="of no known kind"):
        read_observations(tmp_path / "x.doc")
    with pytest.raises(DataError, match="found dict"):
        read_observations({"time": 1})
    with pytest.raises(DataError, match="values but no variable"):
        read_observations(long(variable=None))
    with pytest.raises(DataError, match="neither a column `value`"):
        read_observations(long(value=None, variable=None))
    with pytest.raises(DataError, match="tolerance of '-1h'; give a time of 0 or more"):
        read_observations(long(), tolerance="-1h")
    for bare in (10, 10.0, "10", " +10 ", np.timedelta64(10)):  # of which pandas makes nanoseconds
        with pytest.raises(DataError, match=r"a number without a unit; .* such as '30min'"):
            read_observations(long(), tolerance=bare)
    late = long(time=["2021-03-21T00:09", "2021-03-21T01:11", "2021-03-21T02:00"])
    for given in ("10min", "10 min", np.timedelta64(10, "m"), timedelta(minutes=10)):
        assert len(read_observations(late, tolerance=given)) == 2
    assert len(read_observations(late, tolerance="0min")) == 1


def test_fields_in_any_order_and_unit(tmp_path):
    ds = fields()
    first = read_observations(ds)
    assert len(first) == int(ds["temperature"].notnull().sum())
    xr.testing.assert_allclose(first.gridded["temperature"], ds["temperature"])
    other = ds.rename(temperature="t", temperature_error="t_error", latitude="lat", level="plev")
    other = other.isel(lat=slice(None, None, -1)).transpose("longitude", "plev", "lat", "time")
    other = other.assign_coords(longitude=(other["longitude"] + 180) % 360 - 180).sortby(
        "longitude"
    )
    other["t"] = other["t"].astype("f8") - 273.15
    other["t"].attrs["units"] = "degC"
    again = read_observations(other)
    np.testing.assert_allclose(again.gridded["temperature"], ds["temperature"], atol=1e-4)
    np.testing.assert_allclose(again.gridded["temperature_error"], ds["temperature_error"])
    with pytest.raises(DataError, match="cannot be K; they look like °C"):
        read_observations(other, units={"t": "K"})
    ds.to_netcdf(tmp_path / "a.nc")
    ds.to_zarr(tmp_path / "b.zarr", consolidated=False)
    for file in ("a.nc", "b.zarr"):
        assert read_observations(tmp_path / file).digest() == first.digest()


def test_fields_bring_bad_values():
    ds = fields()
    t, e = ds["temperature"], ds["temperature_error"]
    some = np.argwhere(t.notnull().values)
    for k, (value, error) in enumerate([(np.inf, 1), (40.0, 1), (260.0, 0), (260.0, np.nan)]):
        t.values[tuple(some[k])], e.values[tuple(some[k])] = value, error
    out = read_observations(ds)
    assert counts(out) == {
        "not a number": 1,
        "value beyond plausible range": 1,
        "no or non-positive error": 2,
    }
    assert len(out) == len(some) - 4
    assert "of 40 at" in out.excluded["example"][1]
    values, errors = out.gridded["temperature"], out.gridded["temperature_error"]
    np.testing.assert_array_equal(values.isnull(), errors.isnull())
    high = read_observations(fields(levels=(20, 500)))
    assert counts(high) == {
        "level missing or not within the model's": int(
            fields()["temperature"].isel(level=0).notnull().sum()
        )
    }
    with pytest.raises(DataError, match=r"temperature came without errors.*error=\{'temperature'"):
        read_observations(ds[["temperature"]])
    given = read_observations(fields()[["temperature"]], error={"t": 2.0})
    assert float(given.gridded["temperature_error"].max()) == 2.0
    strange = fields().assign(cheese=fields()["temperature"])
    assert counts(read_observations(strange)) == {"unknown variable": len(some)}
    members = fields().expand_dims(number=2)
    with pytest.raises(DataError, match="select a member"):
        read_observations(members)


def test_fields_several_times_an_hour():
    r"""The nearest to the hour counts, and the other where it saw nothing."""
    a, b = fields(1), fields(1)
    b = b.roll(longitude=5, roll_coords=False)  # sees other points
    a = a.assign_coords(time=a["time"] + np.timedelta64(20, "m"))
    b = b.assign_coords(time=b["time"] - np.timedelta64(10, "m"))
    out = read_observations(xr.concat([b, a], "time"))
    x, y = (ds["temperature"].values[0] for ds in (b, a))
    expected = np.where(np.isnan(x), y, x)
    np.testing.assert_array_equal(out.gridded["temperature"].values[0], expected)
    assert counts(out) == {"duplicate": int((~np.isnan(x) & ~np.isnan(y)).sum())}
    near = read_observations(xr.concat([b, a], "time"), tolerance="15min")
    np.testing.assert_array_equal(near.gridded["temperature"].values[0], x)
    assert counts(near) == {
        "farther than the tolerance from a whole hour": int((~np.isnan(y)).sum())
    }


def test_parts_of_the_globe_and_derived_fields_become_points():
    ds = fields().isel(latitude=slice(3, 9), longitude=slice(4, 20))
    out = read_observations(ds)
    assert out.gridded is None
    row = out.points.iloc[7]
    there = ds["temperature"].sel(
        time=row["time"], level=row["level"], latitude=row["latitude"], longitude=row["longitude"]
    )
    assert float(there) == pytest.approx(row["value"])
    assert len(out) == int(ds["temperature"].notnull().sum())
    vapour = fields()["temperature"].isel(level=0, drop=True) / 10
    derived = read_observations(xr.Dataset({"tcwv": vapour}), error={"tcwv": 1.0})
    assert derived.gridded is None
    assert derived.variables == ["total_column_water_vapour"]


def test_a_dataset_of_points():
    frame = long(value=[6.0, 7.0, 8.0]).rename(columns={"value": "t2m", "error": "t2m_error"})
    ds = frame.drop(columns=["variable", "level"]).rename_axis("obs").to_xarray()
    ds["t2m"].attrs["units"] = "degC"
    points = read_observations(ds).points
    np.testing.assert_allclose(points["value"], [279.15, 280.15, 281.15])


def test_what_observe_makes_reads_back():
    r"""Nothing is lost or called bad of a network's observations, noise and all."""
    import appa
    from appa.data import planet

    ds = appa.open_store("planet").isel(time=slice(2))
    network = appa.named_network(Grid.from_coordinates(ds["latitude"], ds["longitude"]))
    made = appa.observe(ds, network, statistics=planet.statistics())
    table, swath = made[:2]
    out = read_observations([table, swath], strict=True)
    dense = sum(int(swath[n].notnull().sum()) for n in swath if f"{n}_error" in swath)
    assert len(out) == len(table) + dense


def test_rows_of_too_many_fields_are_left_out_and_told(tmp_path):
    r"""A comma in a remark costs its row; a comma at the end of each costs nothing."""
    path = tmp_path / "remarks.csv"
    head = "time,latitude,longitude,variable,value,error,remark\n"
    good = "2001-01-01T03,50,10,t2m,280,1,{}\n"
    path.write_text(head + good.format("dry") + good.format("fog, rain").replace("50", "51")
                    + good.format("").replace("50", "52"))  # fmt: skip
    found = read_observations(path)
    assert found.points["latitude"].tolist() == [50, 52]
    told = found.excluded.set_index("reason")
    assert told.loc["wrong number of fields", "count"] == 1
    assert "fog, rain" in told.loc["wrong number of fields", "example"]
    with pytest.raises(DataError, match="wrong number of fields"):
        read_observations(path, strict=True)
    path.write_text(head + good.format("").replace("\n", ",\n"))
    assert read_observations(path).points["latitude"].tolist() == [50]
