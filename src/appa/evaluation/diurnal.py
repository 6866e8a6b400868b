r"""The day as a place lives it: averages and harmonics by local solar time.

At longitude :math:`\lambda` the local time is :math:`s = t + \lambda / 15°`, whatever a time zone
says. A harmonic with :math:`m` cycles in a day that is the same at all longitudes in :math:`s`
travels with the sun: a tide.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from ..data.clock import local_time
from ..errors import DataError

__all__ = ["by_local_hour", "daily_harmonic"]


def by_local_hour(field: xr.DataArray) -> xr.DataArray:
    r"""The mean by local solar hour, with a dimension `hour` of 24 instead of `time`.

    An hour holds the times nearest to it, to half an hour.

    Arguments:
        field: A field of whole days, hourly.
    """
    field = field.transpose("time", ..., "longitude")
    times = field["time"].values
    days, rest = divmod(len(times), 24)
    if rest or not days or (np.diff(times) != np.timedelta64(1, "h")).any():
        raise DataError(
            f"whole days of consecutive hours are needed, found {len(times)} times; for example "
            "ds.isel(time=slice(0, 96))"
        )
    mean = field.values.reshape(days, 24, *field.shape[1:]).mean(0, dtype=np.float64)
    local = np.floor(local_time(times[:24, None], field["longitude"].values) + 0.5).astype(int) % 24
    order = np.argsort(local, axis=0)  # (24, W): each longitude has each hour once
    order = order.reshape(24, *(1,) * (mean.ndim - 2), -1)
    composite = np.take_along_axis(mean, np.broadcast_to(order, mean.shape), axis=0)
    result = field.isel(time=slice(0, 24)).copy(data=composite)
    return (
        result.drop_vars(["time", "trajectory"], errors="ignore")
        .rename(time="hour")
        .assign_coords(hour=np.arange(24))
    )


def daily_harmonic(field: xr.DataArray, cycles: int = 1) -> xr.Dataset:
    r"""A harmonic of the day, in local solar time :math:`s` in hours.

    .. math:: \frac{2}{T} \sum_t x_t \, e^{- 2 \pi i m s_t / 24}

    Arguments:
        field: A field of whole days, with dimension `time`.
        cycles: The number :math:`m` of cycles a day: 1 is the diurnal one, 2 the semidiurnal.

    Returns:
        `amplitude`, in the field's unit, and `hour`, the first local solar time of its maximum;
        and `wave`, the complex harmonic itself, whose mean around the globe is the tide that
        follows the sun.
    """
    local = local_time(field["time"].values[:, None], field["longitude"].values)
    phase = xr.DataArray(
        np.exp(-2j * np.pi * cycles / 24 * local),
        {"time": field["time"], "longitude": field["longitude"]},
        ("time", "longitude"),
    )
    values = field.astype(np.float64)
    wave = 2 * ((values - values.mean("time")) * phase).mean("time")
    hour = (-np.degrees(np.arctan2(wave.imag, wave.real)) / (15 * cycles)) % (24 / cycles)
    return xr.Dataset({"amplitude": abs(wave), "hour": hour, "wave": wave})
