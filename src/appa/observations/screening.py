r"""Screens fields an hour at a time.

Of a swath, one value in twenty is there. An hour of a field is gone through level by level, and
what is unusable is looked for among the values that are there: beside the field itself, that takes
the memory of a level. A field :math:`v` and its error :math:`\sigma` end as

.. math:: (v, \sigma)_i = \begin{cases} (v_i, \sigma_i) & v_i \text{ is usable} \\
    (\text{NaN}, \text{NaN}) & \text{otherwise} \end{cases}

Those in memory that are so already are kept as they are, rather than as a copy; those of files stay
there, and are screened again as they are read if there is anything to leave out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from .checks import (
    DUPLICATE,
    ERROR,
    LEVEL,
    NUMBER,
    RANGE,
    TOLERANCE,
    between_levels,
    margin,
    match_hours,
)
from .collection import merge
from .units import plausible_range

__all__ = ["Field", "screen_field"]

ORDER = (NUMBER, LEVEL, RANGE, ERROR, TOLERANCE)


@dataclass(frozen=True, eq=False)
class Field:
    r"""A canonical field and its error, in a unit that is still to be converted.

    Arguments:
        name: The observable.
        value, sd: The field and its error, with dimensions time (, level), latitude, longitude.
        scale, offset: What converts values.
        sd_scale: What converts errors.
        default: The error of values that come without, in the observable's unit, if there is one.
    """

    name: str
    value: xr.DataArray
    sd: xr.DataArray
    scale: float = 1.0
    offset: float = 0.0
    sd_scale: float = 1.0
    default: float | None = None

    @property
    def chunked(self) -> bool:
        r"""Whether it is read through Dask."""
        return self.value.chunks is not None or self.sd.chunks is not None

    def convert(self) -> Field:
        r"""The same in the observable's unit: when it is read, if that is through Dask."""
        value, sd = self.value, self.sd
        if (self.scale, self.offset) != (1, 0):
            value = value * np.float32(self.scale) + np.float32(self.offset)
        if self.sd_scale != 1:
            sd = sd * np.float32(self.sd_scale)
        if self.default is not None:
            sd = sd.fillna(np.float32(self.default))
        return Field(self.name, value, sd)

    def read(self, start: int, stop: int) -> tuple[NDArray, NDArray]:
        r"""Values and errors of some times, in the observable's unit."""
        some = slice(start, stop)
        part = replace(self, value=self.value.isel(time=some), sd=self.sd.isel(time=some)).convert()
        both = xr.Dataset({"value": part.value, "sd": part.sd}).compute()
        return both["value"].values, both["sd"].values

    def shared(self) -> tuple[NDArray | None, NDArray | None]:
        r"""The arrays themselves, of what is in memory and needs no conversion."""
        same = (self.scale, self.offset) == (1, 0), self.sd_scale == 1 and self.default is None
        arrays = [v.variable._data for v in (self.value, self.sd)]
        value, sd = (
            a if ok and isinstance(a, np.ndarray) and a.dtype == np.float32 else None
            for a, ok in zip(arrays, same, strict=True)
        )
        return value, sd


@dataclass(eq=False)
class Screen:
    r"""What is usable of a field, and how much is not.

    Arguments:
        low, high: Plausible ranges by level, one without levels.
        right: Which levels lie between the model's.
    """

    low: list[Any]
    high: list[Any]
    right: list[bool]
    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, tuple[int, int, int, float]] = field(default_factory=dict)
    kept: int = 0
    clean: tuple[bool, bool] = (True, True)

    @classmethod
    def of(cls, one: Field, levels: Sequence[float]) -> Screen:
        r"""That of a field."""
        if "level" not in one.value.dims:
            low, high = plausible_range(one.name)
            return cls([low], [high], [True])
        p = one.value["level"].values
        ranges = np.array([plausible_range(one.name, x) for x in p], np.float64).reshape(-1, 2)
        return cls(list(ranges[:, 0]), list(ranges[:, 1]), list(between_levels(p, levels)))

    def hour(self, x: NDArray, sd: NDArray, near: bool, time: int) -> tuple[list, list]:
        r"""Counts what is unusable in one hour.

        Arguments:
            x, sd: Values and errors, with shape :math:`(H, W)` or :math:`(L, H, W)`.
            near: Whether its time is near enough to a whole hour.
            time: Its place among the times.

        Returns:
            By level, the flat indices of values to be left out; and of errors, or :py:`None` where
            there is nothing to leave out.
        """
        gone, alone = [], []
        shape = (len(self.low), -1)
        for j, (a, b) in enumerate(zip(x.reshape(shape), sd.reshape(shape), strict=True)):
            seen = np.flatnonzero(~np.isnan(a))
            v, s = a[seen], b[seen]
            why = self.reasons(v, s, j, near)
            bad = np.flatnonzero(why >= 0)
            if len(bad):
                found, at, n = np.unique(why[bad], return_index=True, return_counts=True)
                for k, i, count in zip(found, bad[at], n, strict=True):
                    reason = ORDER[k]
                    self.counts[reason] = self.counts.get(reason, 0) + int(count)
                    here = (time, j, int(seen[i]), float(v[i]))
                    self.first[reason] = min(self.first.get(reason, here), here)
            gone.append(seen[bad] if len(bad) else None)
            left = len(seen) - len(bad)
            self.kept += left
            # errors of what is kept are numbers: as many as those are all there should be
            beside = np.count_nonzero(~np.isnan(b)) != left
            if beside:
                over = ~np.isnan(b)
                over[np.delete(seen, bad)] = False
            alone.append(np.flatnonzero(over) if beside else None)
        dirty = tuple(any(part is not None for part in parts) for parts in (gone, alone))
        self.clean = self.clean[0] and not dirty[0], self.clean[1] and not dirty[1]
        return gone, alone

    def reasons(self, v: NDArray, sd: NDArray, level: int, near: bool) -> NDArray:
        r"""Which reason applies first to each value of a level: its place in :data:`ORDER`, or
        −1."""
        low, high = self.low[level], self.high[level]
        down, up = (margin(sd, low, high, below) for below in (True, False))
        why = np.full(len(v), -1 if near else ORDER.index(TOLERANCE), np.int8)
        why[~((sd > 0) & (sd < np.inf))] = ORDER.index(ERROR)
        why[~((v >= low - down) & (v <= high + up))] = ORDER.index(RANGE)
        if not self.right[level]:
            why[:] = ORDER.index(LEVEL)
        why[np.isinf(v)] = ORDER.index(NUMBER)
        return why

    def table(self, one: Field, where: str) -> dict[str, tuple[int, str]]:
        r"""By reason, how many values and which was the first."""
        out = {}
        for reason in ORDER:
            if n := self.counts.get(reason):
                out[reason] = n, _example(one, *self.first[reason], where)
        return out


def screen_field(
    one: Field, where: str, tolerance: np.timedelta64, levels: Sequence[float]
) -> tuple[xr.Dataset, dict[str, tuple[int, str]], int]:
    r"""A field without what is unusable, at whole hours.

    Arguments:
        one: The field.
        where: What it is of, for messages.
        tolerance: How far from a whole hour a time may be.
        levels: The model's levels in hPa.

    Returns:
        The field and its error in the observable's unit, what is left out by reason, and the number
        of values left.
    """
    hour, distance = match_hours(one.value["time"].values)
    near, screen = distance <= tolerance, Screen.of(one, levels)
    # several times of one hour: the nearest first, and where it is NaN the next
    order = np.lexsort((np.arange(len(hour)), distance, hour))
    order = order[near[order]]
    starts = np.diff(hour[order], prepend=np.datetime64("NaT", "ns")) != np.timedelta64(0)
    if one.chunked:
        pair, again = _lazy(one, screen, near, hour, order, starts)
    else:
        pair, again = _eager(one, screen, near, hour, order, starts)
    counts = screen.table(one, where)
    if not starts.all():
        some = f"{one.name} of {len(order)} times in {int(starts.sum())} hours"
        counts[DUPLICATE] = again, some
    return pair, counts, screen.kept - again


def _eager(
    one: Field, screen: Screen, near: NDArray, hour: NDArray, order: NDArray, starts: NDArray
) -> tuple[xr.Dataset, int]:
    r"""The field in memory: the arrays given, if that is what they are, or others."""
    times = order[starts]
    in_place = np.array_equal(times, np.arange(len(hour)))
    shape = (len(times), *one.value.shape[1:])
    out = list(one.shared()) if in_place else [None, None]
    mine = [a is None for a in out]
    out = [np.empty(shape, np.float32) if a is None else a for a in out]
    again, t = 0, -1
    for k in np.flatnonzero(~near).tolist():  # which are counted alone
        x, sd = (a[0] for a in one.read(k, k + 1))
        screen.hour(x, sd, False, k)
    for k, fresh in zip(order.tolist(), starts.tolist(), strict=True):
        t += int(fresh)
        x, sd = read = [a[0] for a in one.read(k, k + 1)]
        rejected = screen.hour(x, sd, True, k)
        for i, (a, gone) in enumerate(zip(read, rejected, strict=True)):
            dirty = any(part is not None for part in gone)
            if not fresh:
                a = _without(a.copy(), gone)
                have, new = ~np.isnan(out[i][t]), ~np.isnan(a)
                again += int(np.count_nonzero(have & new)) if i == 0 else 0
                np.copyto(out[i][t], a, where=new & ~have)
                continue
            if dirty and not mine[i]:
                out[i], mine[i] = out[i].copy(), True
            elif mine[i]:
                out[i][t] = a
            if dirty:
                _without(out[i][t], gone)
    places = one.value.coords.to_dataset().isel(time=times)
    coords = (places if starts.all() else places.reset_coords(drop=True)).coords
    # one error for all is an array that cannot be written to, which its owner may want to
    out = [a if a.flags.writeable else a.copy() for a in out]
    names, dims = (one.name, f"{one.name}_error"), one.value.dims
    pair = xr.Dataset({n: (dims, a) for n, a in zip(names, out, strict=True)}, coords)
    return pair.assign_coords(time=hour[times]), again


def _without(a: NDArray, gone: list) -> NDArray:
    r"""An hour with NaN at flat indices of its levels, in place."""
    levels = a.reshape(len(gone), -1)
    assert np.may_share_memory(levels, a)
    for level, index in zip(levels, gone, strict=True):
        if index is not None:
            level[index] = np.nan
    return a


def _lazy(
    one: Field, screen: Screen, near: NDArray, hour: NDArray, order: NDArray, starts: NDArray
) -> tuple[xr.Dataset, int]:
    r"""The field as it will be read; what is unusable is counted now, some hours in memory."""
    chunks = one.value.chunksizes.get("time") or one.sd.chunksizes["time"]
    edges = np.cumsum([0, *chunks])
    for start, stop in pairwise(edges.tolist()):
        x, sd = one.read(start, stop)
        for k in range(start, stop):
            screen.hour(x[k - start], sd[k - start], bool(near[k]), k)
    one = one.convert()
    value, sd = one.value, one.sd
    if screen.clean != (True, True):
        dims = [d for d in value.dims if d == "level"]
        by_level = [
            xr.DataArray(np.array(a), dims=dims or None) if dims else a[0]
            for a in (screen.low, screen.high, screen.right)
        ]
        value, sd = xr.apply_ufunc(
            _usable,
            value,
            sd,
            *by_level,
            xr.DataArray(near, dims="time"),
            output_core_dims=[[], []],
            dask="parallelized",
            output_dtypes=[np.float32, np.float32],
        )
    pair = xr.Dataset({one.name: value, f"{one.name}_error": sd})
    turn = np.arange(len(order)) - np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))
    parts = []
    for k in range(int(turn.max(initial=-1)) + 1):
        times = order[turn == k]
        some = slice(None) if np.array_equal(times, np.arange(len(hour))) else times
        parts.append(pair.isel(time=some).assign_coords(time=hour[times]))
    if len(parts) > 1:
        return merge(parts)
    return (parts[0] if parts else pair.isel(time=slice(0))), 0


def _usable(
    x: NDArray, sd: NDArray, low: Any, high: Any, right: Any, near: Any
) -> tuple[NDArray, NDArray]:
    r"""Blocks of a field and its error without what is unusable."""
    x, sd = x.copy(), sd.copy()
    if not x.size:
        return x, sd
    near = np.broadcast_to(near, x.shape)[..., 0, 0]
    low, high, right = (list(np.ravel(a)) for a in (low, high, right))
    slabs = (x.shape[0], len(low), -1)
    for k, (a, b) in enumerate(zip(x.reshape(slabs), sd.reshape(slabs), strict=True)):
        gone, alone = Screen(low, high, right).hour(a, b, bool(near[k].all()), k)
        _without(x[k], gone)
        _without(sd[k], alone)
    return x, sd


def _example(one: Field, time: int, level: int, place: int, value: float, where: str) -> str:
    da = one.value
    latitude, longitude = da["latitude"].values, da["longitude"].values
    row, column = divmod(place, len(longitude))
    at = f" at {int(da['level'].values[level])} hPa" if "level" in da.coords else ""
    when = np.datetime_as_string(da["time"].values[time], "m")
    return (
        f"{where}: {one.name}{at} of {value:.6g} at {float(latitude[row]):g}, "
        f"{float(longitude[column]):g}, {when}"
    )
