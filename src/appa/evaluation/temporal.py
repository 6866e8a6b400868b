r"""Temporal consistency: do members change with time as the truth does?

With :math:`x_t` the state of an hour at a point, three kinds of answers, each by area and for the
truth and the members alike:

* *tendencies* :math:`x_{t + \tau} - x_t`: their standard deviation, kurtosis
  :math:`\mu_4 / \mu_2^2` (3 of a normal distribution) and quantiles;
* *spectra*, one-sided periodograms of the :math:`L` hours of a run with Hann's taper :math:`h_t`,

  .. math:: P(f) = \frac{2}{\sum_t h_t^2} \Big| \sum_t h_t \, (x_t - \bar{x}) \,
      e^{-2 \pi i f t} \Big|^2 , \qquad f = 1 / L, \dots, 1 / 2 \; \text{h}^{-1} ,

  half of that at :math:`1 / 2`, averaged over space; their sum times :math:`1 / L` is about the
  variance in time;
* *jumps* where another window begins to give a trajectory, see :mod:`appa.evaluation.joints`.

Standard errors are those of the jackknife (:func:`~appa.evaluation.trajectories.jackknife`), over
runs where there are several, or over the members of one, which share its weather.

Quantiles are read off histograms of :math:`|x_{t + \tau} - x_t|` with 32 bins an octave, within
which values count as even: they err by no more than 2 %. No more is held than the hours of one
variable of one member in a band of latitudes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from ..data.grids import Grid
from ..data.reduction import load, reduce_blocks
from ..data.stores import open_store
from ..errors import DataError
from .ensembles import matched, scored_channels, short_name
from .joints import joints_of, jumps
from .trajectories import jackknife

__all__ = ["LAGS", "QUANTILES", "temporal_consistency"]

LAGS = (1, 3, 6)  # hours
QUANTILES = (0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
SOURCES = ("truth", "members")
SPACE = ("latitude", "longitude")
MOST = 2**26  # bytes of a block
# bins of |d|: 32 an octave from 2^-44 to 2^24 of any unit, the first for what is less
OCTAVE, LOWEST, HIGHEST = 32, -44, 24
BINS = OCTAVE * (HIGHEST - LOWEST)


# ---------------------------------------------------------------- all of it


def temporal_consistency(
    estimate: Any,
    truth: Any,
    *,
    variables: Sequence[str] | None = None,
    joints: Sequence[int] | None = None,
    lags: Sequence[int] = LAGS,
    quantiles: Sequence[float] = QUANTILES,
    confidence: float = 0.95,
    scheduler: Any = None,
    workers: int | None = None,
) -> xr.Dataset:
    r"""Compares how members and truth change with time.

    Arguments:
        estimate: An ensemble of consecutive hours as a dataset or its path, or several of the same
            number of hours, members and variables: they are pooled.
        truth: The truth, what :func:`appa.open_store` takes.
        variables: Variables, or single channels such as `"z500"`; by default all that both have.
        joints: The hours at which another window begins, counted from the first of a run, by
            default :func:`joints_of` each.
        lags: The hours :math:`\tau` of tendencies; those longer than a run are left out.
        quantiles: The quantiles of tendencies.
        confidence: The confidence of the intervals of jumps.
        scheduler, workers: As of :func:`appa.data.reduction.reduce_blocks`.

    Returns:
        With dimensions `source` (truth, members), `channel`, and

        * `lag`: `tendency_std`, `tendency_kurtosis`, `tendency_quantile` (by `quantile` too);
          `tendency_ratio`, the members' deviation over the truth's, and `tendency_ratio_error`;
        * `frequency`: `spectrum`, in the unit squared times hours, `spectrum_ratio` and
          `spectrum_ratio_error`; `period` is in hours;
        * `order` (1 for tendencies, 2 for curvatures): `jump`, the ratio of mean squares across
          joints to elsewhere, `jump_low` and `jump_high`; `jump_excess` with its ends. They are
          NaN without joints, ends with fewer than 3 of them.

    Example:
        >>> found = temporal_consistency("analysis.zarr", "planet", variables=["z500"])
        >>> found["jump_excess"].sel(channel="z500", order=1)
    """
    single = isinstance(estimate, xr.Dataset | str | Path)
    runs = [_opened(run) for run in ([estimate] if single else estimate)]
    if not runs:
        raise DataError("there is no run to compare with the truth; give one or several")
    truth = open_store(truth)
    pairs = [_pair(run, truth) for run in runs]
    channels = scored_channels(*pairs[0], variables)
    for run, _ in pairs[1:]:
        for dim in ("time", "member"):
            if run.sizes[dim] != pairs[0][0].sizes[dim]:
                raise DataError(
                    f"runs have {pairs[0][0].sizes[dim]} and {run.sizes[dim]} along {dim}; give "
                    "runs of one length and one number of members"
                )
    hours, members = pairs[0][0].sizes["time"], pairs[0][0].sizes["member"]
    lags = [lag for lag in lags if 0 < lag < hours]
    if hours < 4 or not lags:
        raise DataError(f"found runs of {hours} h; tendencies and spectra need 4 h or more")
    grid = Grid.from_coordinates(truth["latitude"].values, truth["longitude"].values)

    names = list(dict.fromkeys(name for name, _ in channels))
    parts = [
        (r, m, name, tuple(levels), band)
        for r in range(len(runs))
        for m in (None, *range(members))
        for name in names
        for levels, band in _blocks([p for n, p in channels if n == name], hours, grid)
    ]
    found = reduce_blocks(
        partial(_work, pairs, grid.weights, lags),
        _merge,
        parts,
        scheduler=scheduler,
        workers=workers,
        description="comparing changes",
    )
    sums = _Sums(len(runs), members, len(channels), hours, len(lags))
    index = {channel: k for k, channel in enumerate(channels)}
    for (r, m, name, levels, _), values in found[0]:
        sums.add(r, 0 if m is None else 1 + m, [index[name, level] for level in levels], values)
    for (source, name, levels), histogram in found[1].items():
        sums.histogram[source, [index[name, level] for level in levels]] = histogram

    data = _tendencies(sums, quantiles) | _spectra(sums)
    given = [joints if joints is not None else joints_of(run) for run in runs]
    # counted from the first hour that is compared, which may be later than a run's
    late = [
        int((pair["time"].values[0] - run["time"].values.flat[0]) / np.timedelta64(1, "h"))
        for run, (pair, _) in zip(runs, pairs, strict=True)
    ]
    places = [[t - k for t in j or ()] for j, k in zip(given, late, strict=True)]
    area = sums.area[..., None, None]
    change = sums.change / np.where(area > 0, area, np.nan)
    change = np.stack((change[:, 0], change[:, 1:].mean(axis=1)), axis=1)
    data |= jumps(change, places, confidence)
    frequency = np.fft.rfftfreq(hours)[1:]
    coords = {
        "source": list(SOURCES),
        "channel": [short_name(*channel) for channel in channels],
        "variable": ("channel", [name for name, _ in channels]),
        "level": ("channel", [np.nan if p is None else float(p) for _, p in channels]),
        "units": ("channel", [str(truth[name].attrs.get("units", "1")) for name, _ in channels]),
        "lag": ("lag", lags, {"units": "h"}),
        "quantile": list(quantiles),
        "frequency": ("frequency", frequency, {"units": "h-1"}),
        "period": ("frequency", 1 / frequency, {"units": "h"}),
        "order": [1, 2],
    }
    about = {"runs": len(runs), "members": members, "hours": hours, "confidence": confidence}
    return xr.Dataset(data, coords, about | {"joints": json.dumps(given)})


def _opened(run: Any) -> xr.Dataset:
    if isinstance(run, xr.Dataset):
        return run
    from ..tasks.analyses import open_analysis

    return open_analysis(run)


def _pair(run: xr.Dataset, truth: xr.Dataset) -> tuple[xr.Dataset, xr.Dataset]:
    run, truth = matched(run, truth)
    times = run["time"].values.astype("datetime64[h]")
    gaps = np.flatnonzero(np.diff(times) != np.timedelta64(1, "h"))
    if len(gaps):
        raise DataError(
            f"the hours of a run must follow one another, found {times[gaps[0] + 1]} after "
            f"{times[gaps[0]]}; give stretches as runs of their own"
        )
    return run, truth


def _blocks(levels: list[Any], hours: int, grid: Grid) -> list[tuple[list[Any], slice]]:
    r"""Levels and bands of latitudes that are held at once."""
    h, w = grid.shape
    rows = max(1, min(h, MOST // (8 * hours * w)))
    many = max(1, MOST // (8 * hours * rows * w))
    return [
        (levels[k : k + many], slice(row, min(row + rows, h)))
        for k in range(0, len(levels), many)
        for row in range(0, h, rows)
    ]


# ---------------------------------------------------------------- sums over space


class _Sums:
    r"""Sums by run, source (the truth, then members) and channel, weighted by area."""

    def __init__(self, runs: int, members: int, channels: int, hours: int, lags: int):
        lead = (runs, 1 + members, channels)
        self.area = np.zeros(lead)
        self.moments = np.zeros((*lead, lags, 4))  # of the first four powers
        self.power = np.zeros((*lead, hours // 2))
        self.change = np.zeros((*lead, 2, hours))  # squares, by order and hour
        # of all runs and members together
        self.histogram = np.zeros((2, channels, lags, 2 * BINS))

    def add(self, r: int, m: int, index: list[int], values: tuple[np.ndarray, ...]) -> None:
        area, moments, power, change = values
        self.area[r, m, index] += area
        self.moments[r, m, index] += moments
        self.power[r, m, index] += power
        self.change[r, m, index] += change

    def units(self, values: np.ndarray) -> np.ndarray:
        r"""Means over space of the truth and of the members, by run, or of one run by member, with
        shape :math:`(N, 2, C, *)`."""
        area = self.area.reshape(*self.area.shape, *(1,) * (values.ndim - 3))
        value = values / np.where(area > 0, area, np.nan)
        if len(value) > 1:
            return np.stack((value[:, 0], value[:, 1:].mean(axis=1)), axis=1)
        members = value[0, 1:]
        return np.stack((np.broadcast_to(value[0, :1], members.shape), members), axis=1)


def _work(pairs: Any, weights: np.ndarray, lags: Sequence[int], part: Any) -> tuple[Any, Any]:
    r"""The sums of a part, with shapes :math:`(K, *)`, and the histogram of its source."""
    from scipy.signal import periodogram

    r, m, name, levels, band = part
    run, truth = pairs[r]
    var = truth[name] if m is None else run[name].isel(member=m)
    var = var.isel(latitude=band)
    if levels != (None,):
        var = var.sel(level=list(levels))
    if "level" not in var.dims:
        var = var.expand_dims("level")
    x = load(var.transpose("level", "time", *SPACE)).astype(np.float64)
    k, hours = x.shape[:2]
    x = x.reshape(k, hours, -1)
    area = np.repeat(weights[band], x.shape[-1] // len(weights[band]))
    sums = _Sums(1, 0, k, hours, len(lags))
    for c in range(k):
        defined = ~np.isnan(x[c]).any(axis=0)
        y, w = x[c][:, defined], area[defined]
        sums.area[0, 0, c] = w.sum()
        if not len(w):
            continue
        for i, lag in enumerate(lags):
            d = y[lag:] - y[:-lag]
            each = np.broadcast_to(w / len(d), d.shape)
            sums.moments[0, 0, c, i] = [np.vdot(each, d**n) for n in (1, 2, 3, 4)]
            sums.histogram[0, c, i] = np.bincount(_bin(d).reshape(-1), each.reshape(-1), 2 * BINS)
        _, power = periodogram(y, window="hann", detrend="constant", axis=0)
        sums.power[0, 0, c] = power[1:] @ w
        sums.change[0, 0, c, 0, 1:] = np.diff(y, axis=0) ** 2 @ w
        sums.change[0, 0, c, 1, 1:-1] = np.diff(y, 2, axis=0) ** 2 @ w
    parts = (sums.area, sums.moments, sums.power, sums.change)
    small = [(part, tuple(values[0, 0] for values in parts))]
    return small, {(int(m is not None), name, levels): sums.histogram[0]}


def _merge(groups: list[Any]) -> Any:
    r"""Histograms, which are large, are added up on the way."""
    total: dict[Any, np.ndarray] = {}
    for _, histograms in groups:
        for key, histogram in histograms.items():
            total[key] = total[key] + histogram if key in total else histogram
    return [item for small, _ in groups for item in small], total


def _bin(d: np.ndarray) -> np.ndarray:
    r"""The bins of values in increasing order, those below zero first."""
    octaves = np.log2(np.maximum(np.abs(d), 2.0**LOWEST))
    size = np.minimum(OCTAVE * (octaves - LOWEST), BINS - 1).astype(np.int64)
    return np.where(d < 0, BINS - 1 - size, BINS + size)


def _edges() -> np.ndarray:
    right = 2.0 ** (LOWEST + np.arange(1, BINS + 1) / OCTAVE)
    return np.concatenate((-right[::-1], [0.0], right))


# ---------------------------------------------------------------- what follows


def _tendencies(sums: _Sums, quantiles: Sequence[float]) -> dict[str, Any]:
    units = sums.units(sums.moments)
    m1, m2, m3, m4 = np.moveaxis(units.mean(axis=0), -1, 0)
    variance = m2 - m1**2
    with np.errstate(invalid="ignore", divide="ignore"):  # a prescribed SST may not change
        kurtosis = (m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4) / variance**2

        def ratio(m: np.ndarray) -> np.ndarray:
            v = m[..., 1] - m[..., 0] ** 2
            return np.sqrt(v[:, 1] / v[:, 0])

        found, error = jackknife(units, ratio)
    edges = _edges()
    values = np.full((len(quantiles), *sums.histogram.shape[:-1]), np.nan)
    for at in np.ndindex(*sums.histogram.shape[:-1]):
        below = np.concatenate(([0.0], np.cumsum(sums.histogram[at])))
        if below[-1] > 0:
            values[(slice(None), *at)] = np.interp(quantiles, below / below[-1], edges)
    dims = ("source", "channel", "lag")
    told = {"long_name": "members' standard deviation of tendencies over the truth's", "units": "1"}
    return {
        "tendency_std": (dims, np.sqrt(variance), {"long_name": "deviation of tendencies"}),
        "tendency_kurtosis": (dims, kurtosis, {"long_name": "kurtosis", "units": "1"}),
        "tendency_quantile": (("quantile", *dims), values),
        "tendency_ratio": (dims[1:], found, told),
        "tendency_ratio_error": (dims[1:], error, {"units": "1"}),
    }


def _spectra(sums: _Sums) -> dict[str, Any]:
    units = sums.units(sums.power)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio, error = jackknife(units, lambda m: m[:, 1] / m[:, 0])
    dims = ("source", "channel", "frequency")
    told = {"long_name": "members' power over the truth's", "units": "1"}
    return {
        "spectrum": (dims, units.mean(axis=0), {"long_name": "power spectral density in time"}),
        "spectrum_ratio": (dims[1:], ratio, told),
        "spectrum_ratio_error": (dims[1:], error, {"units": "1"}),
    }
