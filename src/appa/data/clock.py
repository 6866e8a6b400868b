r"""The clock: progress of the year, hour of the day, local time.

With :math:`h` hours since 1 January and :math:`n` hours in that year, 8760 or 8784, the progress of
the year is :math:`h / n \in [0, 1)`. Local time is the sun's, :math:`\text{UTC} + \lambda / 15°`,
not a time zone's. Both enter a network as sine and cosine of :math:`2 \pi` times the share of the
year or the day that has passed.

Times are UTC, `datetime64` arrays or what converts to them (`pandas`, `datetime`), or integers
:math:`(*, 4)` of year, month, day and hour, as in the authors' files.
"""

from __future__ import annotations

from datetime import UTC
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import DataError

__all__ = ["as_datetime64", "clock_features", "hour_of_day", "local_time", "year_progress"]

Array = NDArray[np.float64]


def as_datetime64(times: Any) -> NDArray[np.datetime64]:
    r"""Times as `datetime64`, in seconds, from any of the accepted forms.

    Example:
        >>> as_datetime64([[2021, 3, 21, 0], [2021, 3, 21, 1]])
        array(['2021-03-21T00:00:00', '2021-03-21T01:00:00'], dtype='datetime64[s]')
    """
    array = np.asarray(times)
    if array.dtype.kind in "iu":
        array = _from_integers(array)
    elif array.dtype.kind != "M":
        try:
            if array.dtype.kind not in "OSU":
                raise TypeError("numbers have no calendar")
            if array.dtype.kind == "O":
                array = np.asarray(np.vectorize(_utc, otypes=[object])(array))
            array = array.astype("datetime64[s]")
        except (TypeError, ValueError) as error:
            raise DataError(
                f"times of type {array.dtype} are not dates ({error}); give datetime64, for "
                "example numpy.datetime64('2021-03-21T00'), or integers (year, month, day, hour)"
            ) from None
    if np.isnat(array).any():
        raise DataError(f"a time is missing (NaT) at position {int(np.argmax(np.isnat(array)))}")
    return array.astype("datetime64[s]")


def year_progress(times: Any) -> Array:
    r"""The share of the year that has passed, in :math:`[0, 1)`, with shape :math:`(*)`."""
    time = as_datetime64(times)
    year = time.astype("datetime64[Y]")
    start = year.astype("datetime64[s]")
    end = (year + 1).astype("datetime64[s]")
    return (time - start) / (end - start)


def hour_of_day(times: Any) -> Array:
    r"""Hours since midnight UTC, in :math:`[0, 24)`, with shape :math:`(*)`."""
    time = as_datetime64(times)
    midnight = time.astype("datetime64[D]").astype("datetime64[s]")
    return (time - midnight).astype(np.float64) / 3600


def local_time(times: Any, longitude: ArrayLike) -> Array:
    r"""Hours since local midnight by the sun, in :math:`[0, 24)`.

    Arguments:
        times: Times, with shape :math:`(*)`.
        longitude: Longitudes in degrees in any convention, broadcasting with the times: for a
            map of each time, `local_time(times[:, None], grid.longitude)`.
    """
    hour = np.mod(hour_of_day(times) + np.asarray(longitude, np.float64) / 15, 24.0)
    # the remainder of a tiny negative number rounds to 24
    return np.where(hour >= 24, 0.0, hour)


def clock_features(times: Any, longitude: ArrayLike = 0.0) -> Array:
    r"""Sine and cosine of the year's progress and of the time of day.

    Arguments:
        times: Times, with shape :math:`(*)`.
        longitude: Longitudes for local time, broadcasting with the times; 0 gives UTC.

    Returns:
        :math:`(\sin, \cos)` of the year, then of the day, with shape :math:`(*, 4)`.
    """
    day = 2 * np.pi / 24 * local_time(times, longitude)
    year = np.broadcast_to(2 * np.pi * year_progress(times), day.shape)
    return np.stack((np.sin(year), np.cos(year), np.sin(day), np.cos(day)), axis=-1)


def _utc(time: Any) -> Any:
    # python and pandas keep a time zone, numpy has none
    if getattr(time, "tzinfo", None) is None:
        return time
    return time.astimezone(UTC).replace(tzinfo=None)


def _from_integers(array: NDArray[np.integer]) -> NDArray[np.datetime64]:
    if array.ndim == 0 or array.shape[-1] != 4:
        raise DataError(
            f"times as integers have shape (..., 4): year, month, day, hour; found {array.shape}"
        )
    year, month, day, hour = np.moveaxis(array.astype(np.int64), -1, 0)
    first = (year - 1970).astype("datetime64[Y]").astype("datetime64[M]") + (month - 1)
    time = first.astype("datetime64[D]") + (day - 1)
    # a 31 April has run over into May, a month 13 into the next year
    good = (month >= 1) & (month <= 12) & (day >= 1) & (hour >= 0) & (hour < 24)
    good &= time.astype("datetime64[M]") == first
    if not good.all():
        wrong = array.reshape(-1, 4)[int(np.argmin(good))].tolist()
        raise DataError(f"{wrong} is no date; expected [year, month, day, hour from 0 to 23]")
    return time.astype("datetime64[h]") + hour
