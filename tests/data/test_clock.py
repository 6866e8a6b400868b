r"""The clock against python's datetime."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pytest

from appa.data.clock import (
    as_datetime64,
    clock_features,
    hour_of_day,
    local_time,
    year_progress,
)
from appa.errors import DataError

# Ordinary and leap years, a century that is none (1900) and one that is (2000), their ends, and
# the day after 28 February.
MOMENTS = [
    datetime(year, month, day, hour)
    for year in (1900, 1999, 2000, 2020, 2021)
    for month, day, hour in ((1, 1, 0), (2, 28, 23), (3, 1, 0), (7, 2, 12), (12, 31, 23))
] + [datetime(2020, 2, 29, 6), datetime(2000, 2, 29, 18)]


def expected_progress(t):
    start, end = datetime(t.year, 1, 1), datetime(t.year + 1, 1, 1)
    return (t - start).total_seconds() / (end - start).total_seconds()


def forms(moments):
    yield "datetime64[ns]", np.array(moments, dtype="datetime64[ns]")
    yield "datetime64[h]", np.array(moments, dtype="datetime64[h]")
    yield "pandas", pd.DatetimeIndex(moments)
    yield "series", pd.Series(moments)
    yield "datetime", moments
    yield "strings", [t.isoformat() for t in moments]
    yield "integers", np.array([[t.year, t.month, t.day, t.hour] for t in moments], dtype=np.int32)
    yield "lists", [[t.year, t.month, t.day, t.hour] for t in moments]


@pytest.mark.parametrize("form", [name for name, _ in forms(MOMENTS)])
def test_against_datetime(form):
    times = dict(forms(MOMENTS))[form]
    progress = year_progress(times)
    assert progress.shape == (len(MOMENTS),)
    assert progress == pytest.approx([expected_progress(t) for t in MOMENTS], abs=1e-15)
    assert (progress >= 0).all()
    assert (progress < 1).all()
    assert hour_of_day(times).tolist() == [t.hour for t in MOMENTS]


def test_leap_years_have_8784_hours():
    for year, hours in ((1900, 8760), (2000, 8784), (2020, 8784), (2021, 8760)):
        hour = year_progress(np.datetime64(f"{year}-12-31T23"))
        assert hour == pytest.approx((hours - 1) / hours, abs=1e-15)


def test_minutes_count():
    assert hour_of_day(np.datetime64("2021-03-21T06:45")) == 6.75


def test_other_shapes():
    times = np.array([[2020, 2, 29, 6], [2021, 1, 1, 0]])
    assert year_progress(times[:, None]).shape == (2, 1)
    assert year_progress([2021, 1, 1, 0]).shape == ()
    assert year_progress(np.datetime64("2021-01-01")) == 0


def test_zones_become_utc():
    utc = pd.date_range("2021-03-21", periods=3, freq="h", tz="UTC")
    tokyo = utc.tz_convert("Asia/Tokyo")
    for times in (tokyo, pd.Series(tokyo), list(tokyo.to_pydatetime()), tokyo[:1]):
        assert hour_of_day(times).tolist() == [0, 1, 2][: len(times)]
    assert hour_of_day(tokyo[2]) == 2


def test_local_time_against_datetime():
    # A zone of a whole number of hours every 15°
    for longitude in range(-180, 180, 15):
        zone = timezone(timedelta(hours=longitude / 15))
        for t in MOMENTS[:6]:
            there = t.replace(tzinfo=UTC).astimezone(zone).hour
            for turn in (0, 360, -720):
                assert local_time(t, longitude + turn) == pytest.approx(there, abs=1e-12)


def test_local_time_stays_below_24_and_broadcasts():
    times = np.arange("2021-01-01", "2021-01-03", dtype="datetime64[h]")
    longitude = np.array([-1e-15, 0, 7.5, 179.9, 359.999999])
    local = local_time(times[:, None], longitude)
    assert local.shape == (48, 5)
    assert local.min() >= 0
    assert local.max() < 24
    assert local[0, 2] == 0.5
    assert local_time(times[0], -1e-15) == 0


def test_features():
    times = ["2021-01-01T00", "2021-07-02T12", "2021-01-01T06"]
    features = clock_features(times)
    assert features.shape == (3, 4)
    assert features[0] == pytest.approx([0, 1, 0, 1], abs=1e-15)
    # 2 July noon is the middle of an ordinary year
    assert features[1] == pytest.approx([0, -1, 0, -1], abs=1e-12)
    assert features[2, 2:] == pytest.approx([1, 0], abs=1e-15)
    # noon by the sun at 180° when it is midnight UTC
    assert clock_features(times[0], 180)[2:] == pytest.approx([0, -1], abs=1e-12)
    maps = clock_features(as_datetime64(times)[:, None], np.arange(0, 360, 90))
    assert maps.shape == (3, 4, 4)
    assert (maps**2).sum(-1) == pytest.approx(2 * np.ones((3, 4)))


@pytest.mark.parametrize(
    ("times", "told"),
    [
        ([[2021, 2, 29, 0]], r"\[2021, 2, 29, 0\] is no date"),
        ([[2021, 1, 1, 0], [2021, 13, 1, 0]], r"\[2021, 13, 1, 0\] is no date"),
        ([[2021, 1, 1, 24]], r"\[2021, 1, 1, 24\] is no date"),
        ([[2021, 0, 1, 0]], r"\[2021, 0, 1, 0\] is no date"),
        ([1, 2, 3], r"found \(3,\)"),
        ([0.5, 1.5], "float64 are not dates"),
        (["yesterday"], "not dates"),
        (np.array(["2021-01-01", "NaT"], dtype="datetime64[h]"), "missing .NaT. at position 1"),
    ],
)
def test_what_is_no_time_is_refused(times, told):
    with pytest.raises(DataError, match=told):
        year_progress(times)
