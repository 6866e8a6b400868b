from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import special

from appa.errors import DataError
from appa.observations.checks import (
    REASONS,
    background_check,
    describe,
    huber_weights,
    join,
    match_hours,
    screen,
    table,
)

GOOD = {
    "time": pd.Timestamp("2021-03-21T06:00"),
    "latitude": 50.0,
    "longitude": 4.0,
    "variable": "2m_temperature",
    "level": np.nan,
    "value": 280.0,
    "error": 0.5,
    "station": "A",
}


FAR = "value beyond plausible range"


def reasons(*changes: dict, **options) -> list[str | None]:
    rows = pd.DataFrame([GOOD | change for change in changes])
    return [REASONS[k] if k >= 0 else None for k in screen(rows, **options)]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, None),
        ({"value": np.nan}, "not a number"),
        ({"value": np.inf}, "not a number"),
        ({"time": pd.NaT}, "no date"),
        ({"latitude": 90.0, "longitude": 360.0}, None),
        ({"latitude": 95.0}, "impossible coordinates"),
        ({"longitude": 400.0}, "impossible coordinates"),
        ({"longitude": np.nan}, "impossible coordinates"),
        ({"variable": ""}, "unknown variable"),
        ({"level": 850.0}, "level missing or not within the model's"),
        ({"variable": "temperature"}, "level missing or not within the model's"),
        ({"variable": "temperature", "level": 1010.0}, "level missing or not within the model's"),
        ({"variable": "temperature", "level": 840.0}, None),
        ({"value": 150.0}, "value beyond plausible range"),
        (
            {"variable": "temperature", "level": 500.0, "value": 310.0},
            "value beyond plausible range",
        ),
        ({"variable": "temperature", "level": 1000.0, "value": 310.0}, None),
        ({"error": 0.0}, "no or non-positive error"),
        ({"error": np.nan}, "no or non-positive error"),
        ({"error": np.inf}, "no or non-positive error"),
    ],
)
def test_reasons(change, expected):
    assert reasons(change) == [expected]


def test_the_first_reason_counts():
    r"""Rows with everything wrong from some reason on are counted under that one."""
    wrong = {
        "not a number": {"value": np.nan},
        "no date": {"time": pd.NaT},
        "impossible coordinates": {"latitude": 95.0},
        "unknown variable": {"variable": ""},
        "level missing or not within the model's": {"level": 850.0},
        "value beyond plausible range": {"value": 1e9},
        "no or non-positive error": {"error": -1.0},
    }
    assert [reason for reason in REASONS if reason in wrong] == list(wrong)
    for k, reason in enumerate(wrong):
        change: dict = {}
        for later in list(wrong.values())[: k - len(wrong) - 1 : -1]:
            change |= later
        assert reasons(change) == [reason]
    foreign = np.array([True])
    assert reasons({"level": 850.0}, foreign=foreign) == ["unit unknown or of another kind"]
    assert reasons({"variable": ""}, foreign=foreign) == ["unknown variable"]


def test_noise_may_leave_the_range_a_little():
    r"""A dry gauge reads −2 errors, beyond the plausible range; −1 m is no rain at any error."""
    rain = {"variable": "total_precipitation", "error": 1e-4}
    assert reasons(rain | {"value": -2e-4}) == [None]
    assert reasons(rain | {"value": -1e-3}) == ["value beyond plausible range"]
    assert reasons(rain | {"value": -1.0, "error": 10.0}) == ["value beyond plausible range"]


@pytest.mark.parametrize(
    ("variable", "level", "error"),
    [
        ("10m_wind_speed", np.nan, 1.0),
        ("total_precipitation", np.nan, 1e-6),
        ("specific_humidity", 850.0, 1e-4),
        ("relative_humidity", 850.0, 2.0),
        ("total_column_water_vapour", np.nan, 0.5),
    ],
)
def test_what_is_never_below_zero(variable, level, error):
    r"""Noise takes a value below by five errors in a few of ten million; no more passes."""
    row = {"variable": variable, "level": level, "error": error}
    assert reasons(row | {"value": 0.0}) == [None]
    assert reasons(row | {"value": -4.9 * error}) == [None]
    assert reasons(row | {"value": -5.1 * error}) == ["value beyond plausible range"]
    assert reasons(row | {"value": -10.0 * error, "error": 2 * error}) == [None]


def test_hours_and_tolerance():
    times = np.array(
        ["2021-03-21T05:30", "2021-03-21T05:29:59", "1969-12-31T23:50", "NaT"], "M8[ns]"
    )
    hour, distance = match_hours(times)
    assert hour[0] == np.datetime64("2021-03-21T06")
    assert hour[1] == np.datetime64("2021-03-21T05")
    assert hour[2] == np.datetime64("1970-01-01T00")
    assert np.isnat(hour[3])
    assert distance[:3].tolist() == [1800 * 10**9, 1799 * 10**9, 600 * 10**9]

    late = {"time": pd.Timestamp("2021-03-21T06:11")}
    tolerance = np.timedelta64(10 * 60 * 10**9, "ns")
    assert reasons(late, tolerance=tolerance) == ["farther than the tolerance from a whole hour"]
    assert reasons(late) == [None]


def test_duplicates_keep_the_nearest_or_the_first():
    minutes = [10, 50, 5, 5]  # 50 is of the hour after
    rows = [{"time": pd.Timestamp(f"2021-03-21T06:{m:02}")} for m in minutes]
    assert reasons(*rows) == ["duplicate", None, None, "duplicate"]
    # other places, variables or levels are no duplicates, a place under another name is
    up = {"variable": "temperature", "value": 260.0}
    others = [{"latitude": 50.1}, up | {"level": 850.0}, up | {"level": 700.0}]
    assert reasons({}, *others) == [None] * 4
    assert reasons({"station": "06451"}, {"station": "EBBR", "latitude": 50.001}) == [
        None,
        "duplicate",
    ]
    # one that is no good for another reason does not stand in the way of the second
    assert reasons({"error": 0.0}, {}) == ["no or non-positive error", None]
    # west of Greenwich or nearly round the world
    assert reasons({"longitude": -4.0}, {"longitude": 356.0}) == [None, "duplicate"]


def test_tables_add_up():
    a = table({"duplicate": (2, "x"), "not a number": (1, "y"), "no date": (0, "")})
    assert a["reason"].tolist() == ["not a number", "duplicate"]
    b = join([a, table({"duplicate": (3, "z")}), table({})])
    assert b["count"].tolist() == [1, 5]
    assert b["example"].tolist() == ["y", "x"]
    assert describe(b).splitlines()[2].split() == ["duplicate", "5", "x"]
    assert describe(table({})) == "nothing was excluded"


def test_background_check():
    departure = np.array([0.0, 4.9, -4.9, 5.1, -5.1, np.nan])
    spread, error = np.full(6, 0.6), np.full(6, 0.8)  # together 1
    expected = [False, False, False, True, True, True]
    assert background_check(departure, spread, error).tolist() == expected
    tensors = map(torch.tensor, (departure, spread, error))
    assert background_check(*tensors).tolist() == expected
    assert background_check(departure, spread, error, 4.0).tolist() == [False] + [True] * 5
    with pytest.raises(DataError, match="above 0"):
        background_check(departure, spread, error, 0.0)


@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor])
def test_huber_is_scipys(make):
    r"""The inflated Gaussian has the slope of Huber's loss, here differenced from SciPy's."""
    sd, k, h = 2.0, 1.5, 1e-6
    d = np.array([0.0, 1.0, -2.9, 3.1, -7.0, 100.0])
    factor = np.asarray(huber_weights(make(d), make(np.full(6, sd)), k))
    slope = (special.huber(k, (d + h) / sd) - special.huber(k, (d - h) / sd)) / (2 * h / sd)
    np.testing.assert_allclose(d / sd / factor**2, slope, rtol=1e-6, atol=1e-6)
    assert factor[:3].tolist() == [1.0, 1.0, 1.0]
    assert (factor[3:] > 1).all()
    with pytest.raises(DataError, match="above 0"):
        huber_weights(d, sd, -1.0)
