r"""Times that are told by several columns: each way of writing 18:30 UTC is 18:30 UTC."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pytest

from appa.errors import DataError
from appa.observations.reading import read_observations

DAYS = ["2021-03-21", "2021-03-22"]


def table(**columns) -> pd.DataFrame:
    base = {"latitude": [50.0, 51.0], "longitude": 4.0, "variable": "2m_temperature"}
    return pd.DataFrame(base | {"value": 280.0, "error": 0.5} | columns)


def times(source, **options) -> list[str]:
    points = read_observations(source, **options).points
    return [str(t)[:16] for t in points["time"].to_numpy("datetime64[ns]")]


@pytest.mark.parametrize(
    "columns",
    [
        {"date": DAYS, "hour": [6, 18]},
        {"date": [20210321, 20210322], "Hour (UTC)": ["06", "18"]},
        {"date": pd.to_datetime(DAYS), "hour": [6.0, 18.0]},
        {"date": [datetime.date(2021, 3, 21), datetime.date(2021, 3, 22)], "hr": [6, 18]},
        {"time": DAYS, "HH": ["06:00", "18:00Z"]},
        {"year": 2021, "month": 3, "day": [21, 22], "hour": [6, 18], "minute": 0},
        {"year": [2021.0] * 2, "month": 3, "day": [21, 22], "time": ["0600", "1800"]},
        {"date": DAYS, "time": ["06:00", "18:00:00"]},
        {"date": DAYS, "time": [datetime.time(6), datetime.time(18)]},
        {"date": DAYS, "time": pd.to_timedelta(["6h", "18h"])},
        {"date": DAYS, "hhmm": [600, 1800]},
    ],
)
def test_a_date_and_an_hour_are_a_time(columns):
    for wide in (False, True):
        frame = table(**columns)
        if wide:
            frame = frame.drop(columns="variable").rename(
                columns={"value": "t2m", "error": "t2m_error"}
            )
        found = read_observations(frame)
        assert times(frame) == ["2021-03-21T06:00", "2021-03-22T18:00"]
        assert found.excluded.empty
        assert found.notes == ()


def test_minutes_and_what_is_no_hour(tmp_path):
    frame = table(date=DAYS, hour=[6, 17], minute=[20, 45], second=[0, 30])
    assert times(frame) == ["2021-03-21T06:20", "2021-03-22T17:45"]
    assert times(table(date=DAYS, hour=[5.5, 24])) == ["2021-03-21T05:30", "2021-03-23T00:00"]
    bad = read_observations(table(date=DAYS, hour=[6, 27]))
    assert bad.excluded["reason"].tolist() == ["no date"]
    assert "time=found 2021-03-22 27" in bad.excluded["example"][0]
    # a code of what is missing does not make minutes of the others' hours
    bad = read_observations(table(date=DAYS, hour=[18, 999]))
    assert bad.excluded["reason"].tolist() == ["no date"]
    assert [str(t)[:16] for t in bad.points["time"].to_numpy("datetime64[ns]")] == [
        "2021-03-21T18:00"
    ]
    # of text, zeros tell that 0030 is half past midnight and no hour
    (tmp_path / "x.csv").write_text(
        "date,hour,lat,lon,variable,value,error\n"
        "2021-03-21,0030,50,4,t2m,280,1\n2021-03-22,0010,51,4,t2m,280,1\n"
    )
    assert times(tmp_path / "x.csv") == ["2021-03-21T00:30", "2021-03-22T00:10"]


def test_times_that_say_the_hour_themselves():
    r"""An hour beside them is another one, or the same."""
    whole = ["2021-03-21T06:00", "2021-03-22T18:00"]
    found = read_observations(table(time=whole, hour=[7, 19]))
    assert found.notes == ("the table: not used: 'hour'",)
    assert times(table(time=whole, date=DAYS, local_hour=[7, 19])) == whole
    ours = read_observations(table(time=pd.to_datetime(DAYS))).points
    assert times(ours) == times(ours.assign(hour=ours["hour"].astype("str")))


def test_dates_alone_are_told_of():
    told = "the table: 'date' has dates without a time of day, taken as 00 UTC"
    assert read_observations(table(date=DAYS)).notes == (told,)
    assert read_observations(table(time=pd.to_datetime(DAYS))).notes == ()
    days = read_observations(table(year=2021, month=3, day=[21, 22]))
    assert days.points["hour"].tolist() == [pd.Timestamp(d) for d in DAYS]
    assert "'year', 'month', 'day' has dates without a time of day" in days.report()
    assert told in read_observations(table(date=DAYS, forecast_hour=[6, 12])).notes


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"date": DAYS, "local_hour": [6, 18]}, "local_hour"),
        ({"date": DAYS, "Hour (local)": [6, 18]}, r"Hour \(local\)"),
        ({"date": pd.to_datetime(DAYS), "hour": ["six", "late"]}, "hour"),
        ({"date": pd.DatetimeIndex(DAYS, tz="Asia/Tokyo"), "hour": [6, 18]}, "hour"),
        ({"year": 2021, "month": 3, "day": [21, 22], "obs_hour": [6, 18]}, "obs_hour"),
    ],
)
def test_hours_that_cannot_be_joined_are_refused(columns, named):
    with pytest.raises(DataError, match=rf"dates alone, and the hours of '{named}', such as '\w+'"):
        read_observations(table(**columns))


def test_a_caller_knows_that_an_hour_is_utc():
    frame = table(**{"date": DAYS, "Hour (local)": [6, 18]})
    said = times(frame, columns={"Hour (local)": "hour"})
    assert said == ["2021-03-21T06:00", "2021-03-22T18:00"]
    assert times(table(date=DAYS, local_hour=0))[0] == "2021-03-21T00:00"
    np.testing.assert_array_equal(
        read_observations(table(date=DAYS, hour=[6, 18])).hours,
        np.array(["2021-03-21T06", "2021-03-22T18"], "datetime64[ns]"),
    )
