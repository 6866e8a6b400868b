r"""When observations were made, from whatever columns a table says it in.

A time may be one column, or a date and what o'clock it was: `date` or `year, month, day`, and
`hour` (`18`, `18:30`, `1830`) with `minute` and `second`, or a column `time` that has no date.
Dates alone are never taken for times where a column beside them may tell the hour.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..errors import DataError

__all__ = ["says_hours", "utc", "with_times"]

# What parts of a time are found under.
PARTS: dict[str, tuple[str, ...]] = {
    "year": ("year", "yr", "yyyy"),
    "month": ("month", "mon"),
    "day": ("day", "day_of_month"),
    "hour": ("hour", "hr", "hh", "hhmm", "hour_utc", "utc_hour", "utc", "time_of_day"),
    "minute": ("minute", "minutes"),
    "second": ("second", "seconds"),
}
DATES = ("year", "month", "day")
LIKE = r"(^|_)(hour|hr|hh|hhmm)(_|$)"  # an hour of some kind: local, of an observer
SPAN = r"forecast|lead|step|accum|duration|period"  # which is no hour of a day
UTC = ("", "utc", "gmt", "z", "h", "hour", "hours")  # what an hour's column may say of its unit
DATE = r"\d{4}-\d{2}-\d{2}|\d{8}(?:\.0)?"
CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d*)?)?|\d{1,4}(?:\.\d+)?"
DAY = 86_400  # s


def says_hours(name: str) -> bool:
    r"""Whether a column tells hours, by its name: as text it keeps its zeros, 0030 is half past."""
    return _key(name) in PARTS["hour"]


def utc(time: Any) -> NDArray:
    r"""Times in UTC, NaT where they are no dates."""
    if isinstance(time.dtype, pd.DatetimeTZDtype) or time.dtype.kind == "M":
        dates = pd.to_datetime(time, utc=True)
    else:
        # digits: 2021032103, to the hour, minute or second
        text = _text(time).str.replace(r"\.0$", "", regex=True)
        text = text.str.replace(r"^(\d{8})(\d{2})(\d{0,4})$", r"\1T\2\3", regex=True)
        dates = pd.to_datetime(text, utc=True, format="ISO8601", errors="coerce")
    return dates.dt.tz_localize(None).to_numpy("datetime64[ns]")


def with_times(
    frame: pd.DataFrame,
    roles: Mapping[str, tuple[str, str | None]],
    where: str,
    said: Collection[str] = (),
) -> tuple[pd.DataFrame, list[str]]:
    r"""The table with one column `time`, of the columns that tell it together.

    Arguments:
        frame: The table, with names of ours where columns have one.
        roles: What each of its columns is, and the unit its name has in brackets.
        where: Names the table.
        said: Columns of which the caller said what they are.

    Returns:
        The table, without the columns that became part of the time, and notes.
    """
    if not len(frame):
        return frame, []
    names = {role: old for old, (role, _) in roles.items()}
    units = {role: unit for old, (role, unit) in roles.items() if old not in said}
    keys = {_key(str(c)): str(c) for c in frame.columns}
    # a table of ours has the hours that times were matched to, with their dates
    keys = {k: c for k, c in keys.items() if not (re.search(LIKE, k) and _dated(frame[c]))}
    parts = {p: next((keys[k] for k in ks if k in keys), None) for p, ks in PARTS.items()}
    date, hour = [], parts["hour"]
    if "time" not in frame or _is_clock(frame["time"]):
        others = [str(c) for c in frame.columns if str(c).startswith("other time: ")]
        date = [c for c in others if _bare(frame[c]) or _midnight(frame[c])][:1]
        date = date or [c for p in DATES if (c := parts[p]) is not None]
        if not (date and (len(date) == 3 or date[0] in others)):
            return frame, []
        hour = "time" if "time" in frame else hour
    date = date or ["time"]
    if hour is None or str(units.get(hour) or "").lower() not in UTC:
        like = [c for k, c in keys.items() if re.search(LIKE, k) and not re.search(SPAN, k)]
        hour = next((c for c in like if _tells(frame[c])), None)
        if hour is not None and _only_dates(frame, date):
            raise DataError(_puzzle(frame, date, hour, names, where))
        if date == ["time"]:
            return frame, [_told(date, names, where)] if _bare(frame["time"]) else []
        frame = frame.assign(time=_days(frame, date)).drop(columns=date)
        return frame, [_told(date, names, where)]
    if date == ["time"] and not _only_dates(frame, date):
        return frame, []  # which says the hour itself

    seconds, used = _seconds(frame[hour]), [*date, hour]
    for part, size in (("minute", 60), ("second", 1)):
        if hour != "time" and (column := parts[part]) is not None:
            number = _number(frame[column])
            seconds = seconds + size * np.where((number >= 0) & (number < 60), number, np.nan)
            used.append(column)
    days = _days(frame, date)
    zoned = len(date) == 1 and (utc(frame[date[0]]) > days).any()  # midnight, but not in UTC
    if zoned or np.isnan(seconds).all():
        raise DataError(_puzzle(frame, date, hour, names, where))
    known = np.isfinite(seconds) & ~np.isnat(days)
    after = (np.where(known, seconds, 0) * 1e9).round().astype("timedelta64[ns]")
    time: Any = pd.Series(np.where(known, days + after, np.datetime64("NaT", "ns")))
    if not known.all():  # the report shows what was found
        found = frame[used].astype("str").agg(" ".join, axis=1)
        time = time.astype("str").where(known, "found " + found)
    drop = [c for c in used if c != "time"]
    return frame.assign(time=time.to_numpy()).drop(columns=drop), []


def _key(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def _text(column: Any) -> Any:
    return column.astype("str").str.strip()


def _number(column: Any) -> NDArray:
    found: Any = pd.to_numeric(column, errors="coerce")
    return found.to_numpy(np.float64)


def _filled(column: Any) -> Any:
    text = _text(column[column.notna()])
    return text[~text.str.lower().isin(["", "nan", "nat", "none", "na"])]


def _bare(column: Any) -> bool:
    r"""Whether a column has text of dates without any time of day."""
    if isinstance(column.dtype, pd.DatetimeTZDtype) or column.dtype.kind == "M":
        return False
    text = _filled(column)
    return len(text) > 0 and bool(text.str.fullmatch(DATE).all())


def _dated(column: Any) -> bool:
    r"""Whether a column has whole times, date and all."""
    if isinstance(column.dtype, pd.DatetimeTZDtype) or column.dtype.kind == "M":
        return True
    return bool(_filled(column).str.match(r"\d{4}-\d{2}-\d{2}").any())


def _midnight(column: Any) -> bool:
    r"""Whether all times of a column are at midnight, where they were recorded or in UTC."""
    zoned = isinstance(column.dtype, pd.DatetimeTZDtype)
    time = pd.Series(column.dt.tz_localize(None) if zoned else utc(column)).dropna()
    return len(time) > 0 and bool((time == time.dt.normalize()).all())


def _only_dates(frame: pd.DataFrame, date: list[str]) -> bool:
    return len(date) == 3 or _midnight(frame[date[0]])


def _is_clock(column: Any) -> bool:
    r"""Whether a column has times of day, without dates."""
    if column.dtype.kind == "m":
        return True
    if isinstance(column.dtype, pd.DatetimeTZDtype) or column.dtype.kind == "M":
        return False
    text = _filled(column)
    return len(text) > 0 and bool(text.str.fullmatch(f"(?:{CLOCK})Z?").all())


def _tells(column: Any) -> bool:
    r"""Whether an hour is ever another than the first of the day."""
    text = _filled(column)
    return len(text) > 0 and not bool((_number(text) == 0).all())


def _days(frame: pd.DataFrame, date: list[str]) -> NDArray:
    if len(date) == 1:
        return utc(frame[date[0]]).astype("datetime64[D]").astype("datetime64[ns]")
    numbers = {p: _number(frame[c]) for p, c in zip(DATES, date, strict=True)}
    found: Any = pd.to_datetime(pd.DataFrame(numbers), errors="coerce")
    return found.to_numpy("datetime64[ns]")


def _seconds(column: Any) -> NDArray:
    r"""Seconds since midnight, NaN where they are no time of day. Whole numbers are hours, or where
    one of the column has three digits or four, hours and minutes."""
    if column.dtype.kind == "m":
        return column.dt.total_seconds().to_numpy(np.float64)
    text = _text(column).str.upper().str.removesuffix("Z").str.replace(r"\.0+$", "", regex=True)
    text = text.where(text.str.fullmatch(CLOCK).fillna(False).astype(bool), "")
    parts = text.str.extract(r"^(\d+):(\d+)(?::(.+))?$")
    hour, minute, second = (_number(parts[k]) for k in range(3))
    second = np.where(np.isnan(second), 0.0, second)
    number = _number(text)
    long = text.str.fullmatch(r"\d{3,4}").to_numpy(bool)
    clock = long & (number <= 2400) & (number % 100 < 60)
    # 999 is no time, and says nothing of how the others are told
    number = np.where(long & ~clock, np.nan, number)
    if clock.any():
        whole = np.where(np.isnan(number), hour, number // 100)
        minute = np.where(np.isnan(number), minute, number % 100)
    else:
        whole = np.where(np.isnan(number), hour, number)
        minute = np.where(np.isnan(number), minute, 0.0)
    out = 3600 * whole + 60 * minute + second
    return np.where((minute < 60) & (second < 60) & (out <= DAY), out, np.nan)


def _told(date: list[str], names: dict[str, str], where: str) -> str:
    shown = ", ".join(repr(names.get(c, c)) for c in date)
    return f"{where}: {shown} has dates without a time of day, taken as 00 UTC"


def _puzzle(
    frame: pd.DataFrame, date: list[str], hour: str, names: dict[str, str], where: str
) -> str:
    shown, old = ", ".join(repr(names.get(c, c)) for c in date), names.get(hour, hour)
    value = next(iter(_filled(frame[hour])), "")
    return (
        f"{where}: {shown} has dates alone, and the hours of {old!r}, such as {value!r}, cannot be "
        f"joined to them as UTC; say that they are UTC with columns={{{old!r}: 'hour'}}, write "
        "both as one time in UTC, or drop the column where it is about something else"
    )
