r"""What makes an observation unusable, and what it is worth if it is far from expected.

Each row of a table is compared with the reasons below in their order, and is counted under the
first that applies:

.. code-block:: text

    not a number → no date → impossible coordinates → unknown variable → unit → level →
    plausible range → error → tolerance → duplicate

A value may leave the plausible range by five of its errors, but by no more than a tenth of the
range: noise is not clipped. The ranges of precipitation, humidity, water vapour and wind speed
begin at zero. Below it five errors are all that counts, up to the range itself: a dry gauge may
read below zero by what its error explains, and by nothing more.

What passes for plausible can still be wrong. Against a background with departure
:math:`d = y - \mathcal{A}(\bar{x})` and spread :math:`s`, an observation with error :math:`\sigma`
is rejected where

.. math:: |d| > k \sqrt{s^2 + \sigma^2}

or kept with a larger error, so that it pulls no harder than one :math:`k` deviations away:
Huber's likelihood, whose logarithm is quadratic up to there and linear beyond.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..data.variables import LEVELS
from ..errors import DataError
from . import observables
from .units import plausible_range

__all__ = [
    "BACKGROUND",
    "PERIOD",
    "REASONS",
    "THINNED",
    "background_check",
    "between_levels",
    "describe",
    "huber_weights",
    "join",
    "limits",
    "match_hours",
    "repeated",
    "screen",
    "table",
]

FIELDS = "wrong number of fields"
NUMBER = "not a number"
DATE = "no date"
COORDINATES = "impossible coordinates"
UNKNOWN = "unknown variable"
UNIT = "unit unknown or of another kind"
LEVEL = "level missing or not within the model's"
RANGE = "value beyond plausible range"
ERROR = "no or non-positive error"
TOLERANCE = "farther than the tolerance from a whole hour"
DUPLICATE = "duplicate"
PERIOD = "outside the period"
THINNED = "thinned"
BACKGROUND = "too far from the background"

REASONS: tuple[str, ...] = (
    FIELDS,
    NUMBER,
    DATE,
    COORDINATES,
    UNKNOWN,
    UNIT,
    LEVEL,
    RANGE,
    ERROR,
    TOLERANCE,
    DUPLICATE,
    PERIOD,
    THINNED,
    BACKGROUND,
)

HOUR = np.timedelta64(3600 * 10**9, "ns")
PLACE = 2  # decimals of a degree to which places are the same, about a kilometre


def table(counts: Mapping[str, tuple[int, str]]) -> pd.DataFrame:
    r"""A table of reasons, in order, from a count and an example of each."""
    rank = {reason: k for k, reason in enumerate(REASONS)}
    rows = [(reason, int(n), example) for reason, (n, example) in counts.items() if n]
    rows.sort(key=lambda row: rank.get(row[0], len(rank)))
    out = pd.DataFrame(rows, columns=["reason", "count", "example"])
    return out.astype({"reason": "str", "count": "int64", "example": "str"})


def join(tables: Iterable[pd.DataFrame]) -> pd.DataFrame:
    r"""One table of several: counts add up, the first example stays."""
    counts: dict[str, tuple[int, str]] = {}
    for part in tables:
        for reason, n, example in part.itertuples(index=False):
            before, first = counts.get(reason, (0, ""))
            counts[reason] = before + n, first or example
    return table(counts)


def describe(excluded: pd.DataFrame) -> str:
    r"""The table as text."""
    if excluded.empty:
        return "nothing was excluded"
    rows = [("reason", "count", "example")]
    rows += [(r, f"{n:,}", e) for r, n, e in excluded.itertuples(index=False)]
    wide = [max(len(row[k]) for row in rows) for k in range(2)]
    lines = [f"{r:<{wide[0]}}  {n:>{wide[1]}}  {e}".rstrip() for r, n, e in rows]
    return "\n".join(lines)


def match_hours(time: NDArray) -> tuple[NDArray, NDArray]:
    r"""The whole hour nearest to each time, and how far it is; half past belongs to the next."""
    time = np.asarray(time, "datetime64[ns]")
    known = ~np.isnat(time)
    filled = np.where(known, time, np.datetime64(0, "ns"))
    hour = (filled + HOUR // 2).astype("datetime64[h]").astype("datetime64[ns]")
    return (
        np.where(known, hour, np.datetime64("NaT", "ns")),
        np.where(known, np.abs(filled - hour), np.timedelta64("NaT", "ns")),
    )


def limits(variable: NDArray, level: NDArray) -> tuple[NDArray, NDArray]:
    r"""Plausible ranges of rows, in their observables' units; unlimited for those unknown.

    Arguments:
        variable: Names of observables, empty where unknown, with shape :math:`(N)`.
        level: Levels in hPa, NaN where there is none, with shape :math:`(N)`.
    """
    code, names = pd.factorize(np.asarray(variable, dtype=object))
    low, high = np.full(len(code), -np.inf), np.full(len(code), np.inf)
    for k, name in enumerate(names):
        rows = np.flatnonzero(code == k)
        if not name:
            continue
        inverse, levels = pd.factorize(level[rows])  # NaN is −1, which is the last below
        ranges = np.array([plausible_range(name, p) for p in [*levels, None]])
        low[rows], high[rows] = ranges[inverse].T
    return low, high


def between_levels(level: Any, levels: Sequence[float]) -> Any:
    r"""Which pressures lie between a model's levels, all in hPa; of a model without, none do."""
    return (level >= min(levels, default=np.inf)) & (level <= max(levels, default=-np.inf))


def margin(error: NDArray, low: NDArray, high: NDArray, below: bool) -> NDArray:
    r"""By how much values may leave their range, below it or above."""
    error = np.where(np.isfinite(error) & (error > 0), error, 0.0)
    share = np.where(low == 0, 1.0, 0.1) if below else 0.1
    return np.minimum(5 * error, (high - low) * share)


def screen(
    rows: pd.DataFrame,
    *,
    levels: Sequence[float] = LEVELS,
    tolerance: np.timedelta64 = HOUR // 2,
    foreign: NDArray | None = None,
) -> NDArray:
    r"""Which reason applies to each row first.

    Arguments:
        rows: `time`, `latitude`, `longitude`, `variable` (empty where unknown), `level`, `value`,
            `error`, `station`; values in their observables' units.
        levels: The model's levels, between which observations may lie, in hPa.
        tolerance: How far from a whole hour a time may be.
        foreign: Which rows are in a unit that does not convert to their observables', if any are.

    Returns:
        Places in :data:`REASONS`, or −1 where none applies, with shape :math:`(N)`.
    """
    reason = np.full(len(rows), -1, dtype=np.int8)

    def exclude(why: str, where: NDArray) -> None:
        reason[where & (reason < 0)] = REASONS.index(why)

    latitude, longitude, level, value, error = (
        rows[name].to_numpy(np.float64)
        for name in ("latitude", "longitude", "level", "value", "error")
    )
    time = rows["time"].to_numpy("datetime64[ns]")
    variable = rows["variable"].to_numpy(object)
    code, names = pd.factorize(variable)

    exclude(NUMBER, ~np.isfinite(value))
    exclude(DATE, np.isnat(time))
    exclude(COORDINATES, ~((np.abs(latitude) <= 90) & (longitude >= -180) & (longitude <= 360)))
    exclude(UNKNOWN, np.array([not name for name in names], dtype=bool)[code])
    if foreign is not None:
        exclude(UNIT, foreign)

    on_level = np.array([bool(n) and observables.find(n).levels == "level" for n in names])[code]
    within = between_levels(level, levels)
    exclude(LEVEL, np.where(on_level, ~within, np.isfinite(level)))

    low, high = limits(variable, np.where(on_level & within, level, np.nan))
    down, up = (margin(error, low, high, below) for below in (True, False))
    exclude(RANGE, (value < low - down) | (value > high + up))
    exclude(ERROR, ~((error > 0) & np.isfinite(error)))

    exclude(TOLERANCE, match_hours(time)[1] > tolerance)

    left = np.flatnonzero(reason < 0)
    again = repeated(rows.iloc[left])
    reason[left[again]] = REASONS.index(DUPLICATE)
    return reason


def repeated(rows: pd.DataFrame) -> NDArray:
    r"""Which rows are of the same place, hour, variable and level as a better one.

    Better is nearer to the whole hour, or else first. A place is its coordinates to a hundredth of
    a degree: codes are shared, by ships for example, and one station has several, WMO's and ICAO's.
    """
    hour, distance = match_hours(rows["time"].to_numpy("datetime64[ns]"))
    keys = pd.DataFrame(
        {
            "latitude": np.round(rows["latitude"].to_numpy(np.float64), PLACE) + 0.0,
            "longitude": np.round(rows["longitude"].to_numpy(np.float64) % 360, PLACE) % 360,
            "variable": pd.factorize(rows["variable"].to_numpy(object))[0],
            "level": rows["level"].to_numpy(np.float64),
            "hour": hour,
        }
    )
    order = np.argsort(distance, kind="stable")
    out = np.empty(len(rows), dtype=bool)
    out[order] = keys.iloc[order].duplicated().to_numpy()
    return out


def background_check(departure: Any, spread: Any, error: Any, threshold: float = 5.0) -> Any:
    r"""Which observations are too far from the background.

    Arguments:
        departure: :math:`d = y - \mathcal{A}(\bar{x})`, an array or tensor with shape :math:`(n)`.
        spread: The background's standard deviation :math:`s` at the observations, in the same
            unit, with shape :math:`(n)`.
        error: The observations' errors :math:`\sigma`, with shape :math:`(n)`.
        threshold: The number of deviations :math:`k`.

    Returns:
        Where :math:`|d| > k \sqrt{s^2 + \sigma^2}`, or where that is not known, with shape
        :math:`(n)`.

    Example:
        >>> far = background_check(departure, spread, error)
        >>> observations = observations.exclude(far, BACKGROUND)
    """
    if not threshold > 0:
        raise DataError(
            f"found a threshold of {threshold!r}; give a number of deviations above 0, such as 5"
        )
    return ~(abs(departure) <= threshold * (spread**2 + error**2) ** 0.5)


def huber_weights(departure: Any, sd: Any, k: float = 1.5) -> Any:
    r"""The factor by which the deviation that is expected is inflated, for Huber's likelihood.

    With :math:`u = d / \text{sd}`, minus its logarithm is

    .. math:: \rho(u) = \begin{cases} u^2 / 2 & |u| \leq k \\ k |u| - k^2 / 2 & |u| > k \end{cases}

    The Gaussian with the deviation inflated by :math:`f = \max(1, \sqrt{|u| / k})` has the same
    slope: :math:`u / f^2 = \rho'(u)`. Where :math:`\text{sd}` is not the error alone, the error has
    to grow by more, see :func:`appa.tasks.background.inflation`.

    Arguments:
        departure: :math:`d`, an array or tensor with shape :math:`(n)`.
        sd: Its expected standard deviation, with shape :math:`(n)`.
        k: Where the likelihood turns from quadratic to linear.

    Returns:
        The factors :math:`f \geq 1`, with shape :math:`(n)`.
    """
    if not k > 0:
        raise DataError(f"found k = {k!r}; give a number of deviations above 0, such as 1.5")
    return (abs(departure) / (k * sd)).clip(min=1.0) ** 0.5
