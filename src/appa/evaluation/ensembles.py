r"""Statistics of an ensemble against the truth, averaged over regions hour by hour.

With members :math:`x_1, \dots, x_M` of the truth :math:`y` at a point, and departures
:math:`d_m = x_m - y` in increasing order :math:`d_{(1)} \leq \dots \leq d_{(M)}`,

.. math::
    \text{squared error} & = \bar{d}^2 \\
    \text{variance} & = \frac{1}{M - 1} \sum_m (d_m - \bar{d})^2 \\
    \text{CRPS} & = \frac{1}{M} \sum_m |d_m|
        - \frac{1}{2 M (M - 1)} \sum_{m, n} |d_m - d_n|
      = \frac{1}{M} \sum_m |d_m| - \frac{1}{M (M - 1)} \sum_m (2 m - M - 1) \, d_{(m)}

the last in :math:`O(M \log M)`. This is the fair CRPS, whose expectation does not depend on
:math:`M` and is least where members and truth are drawn alike; single ones may be negative. With
one member the variance is undefined and the CRPS is :math:`|d|`. All three depend on departures
only, which single precision holds without loss where members are near the truth.

Elsewhere, this CRPS is `fair` and `pwm` of `scoringrules`, whose default `qd` has :math:`M^2` for
:math:`M (M - 1)` and is larger by :math:`1 / M` of the second term. The paper sums it over points
without weights; here it is a mean by area.

A normal distribution :math:`\mathcal{N}(\mu, \sigma^2)` in place of members has

.. math:: \text{CRPS} = \sigma \left[ \omega \, (2 \Phi(\omega) - 1) + 2 \varphi(\omega)
    - \pi^{-1/2} \right] , \qquad \omega = (y - \mu) / \sigma .

Means of these statistics accumulate over parts of a dataset; scores follow from the means
(:mod:`appa.evaluation.scores`). No more is held than a part of one variable
(:mod:`appa.evaluation.partition`).
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from ..data import reduction
from ..data.grids import Grid
from ..data.reduction import load, reduce_blocks, time_blocks
from ..data.stores import open_store
from ..data.variables import VARIABLES, Channel
from ..errors import DataError, nearest
from .partition import Part, active_client, parts_of, with_dimension
from .regions import region_weights

__all__ = [
    "STATISTICS",
    "averages",
    "blocks_of",
    "ensemble_statistics",
    "matched",
    "normal_statistics",
    "read_block",
    "scored_channels",
    "short_name",
]

STATISTICS = ("squared_error", "variance", "crps")
SPACE = ("latitude", "longitude")
MOST = 2**28  # bytes of all members of a part of one variable
SLAB = 2**20  # values of all members that statistics are computed of at once


# ---------------------------------------------------------------- at a point


def ensemble_statistics(d: Any) -> dict[str, Any]:
    r"""The statistics of departures :math:`(M, *)`, each with shape :math:`(*)`, of an array or,
    where they are, of a tensor."""
    m = len(d)
    mean, crps = d.mean(axis=0), abs(d).mean(axis=0)
    if m == 1:
        return {"squared_error": mean**2, "variance": np.nan * mean, "crps": crps}
    ranks = (2 * np.arange(1, m + 1) - m - 1) / (m * (m - 1))
    if isinstance(d, np.ndarray):
        # not by a product of matrices: parts are scored side by side, and BLAS has threads
        apart = np.einsum("m,m...->...", ranks.astype(d.dtype), np.sort(d, axis=0))
        variance = d.var(axis=0, ddof=1)
    else:
        apart, variance = d.sort(0).values.movedim(0, -1) @ d.new_tensor(ranks), d.var(0)
    return {"squared_error": mean**2, "variance": variance, "crps": crps - apart}


def normal_statistics(d: np.ndarray, sigma: np.ndarray) -> dict[str, np.ndarray]:
    r"""The statistics of normal distributions with departures :math:`\mu - y` and deviations
    :math:`\sigma`, both with shape :math:`(*)`."""
    from scipy.special import erf

    d, sigma = np.asarray(d, np.float64), np.asarray(sigma, np.float64)
    w = np.abs(d) / np.where(sigma > 0, sigma, 1)
    density = np.exp(-(w**2) / 2) / math.sqrt(2 * math.pi)
    crps = sigma * (w * erf(w / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))
    crps = np.where(sigma > 0, crps, np.where(np.isnan(sigma), np.nan, np.abs(d)))
    variance = np.broadcast_to(sigma**2, d.shape)
    return {"squared_error": d**2, "variance": variance, "crps": crps}


# ---------------------------------------------------------------- over a dataset


def averages(
    estimate: xr.Dataset,
    truth: Any,
    *,
    variables: Sequence[str] | None = None,
    regions: Sequence[str] = ("global",),
    scheduler: Any = None,
    workers: int | None = None,
    description: str | None = "scoring",
) -> xr.Dataset:
    r"""Averages the statistics over regions, hour by hour.

    A point takes part where the truth and all members are defined; where the truth alone is, that
    is told with a warning.

    Arguments:
        estimate: Dimensions `([member], time, [level], latitude, longitude)` in any order, in
            memory, lazy or of Dask arrays. Without members, a variable is a single state, or where
            there is a `<variable>_std`, the mean of normal distributions with that deviation.
        truth: The truth, what :func:`appa.open_store` takes. Hours and levels that only one of the
            two has are left out, with a warning.
        variables: Variables, or single channels such as `"z500"`; by default all that both have.
        regions: Names of :data:`~appa.evaluation.regions.REGIONS`.
        scheduler, workers, description: As of :func:`appa.data.reduction.reduce_blocks`; without a
            scheduler, the Dask client that is active, unless the estimate is in memory.

    Returns:
        `squared_error`, `variance` and `crps` with dimensions `(region, time, channel)`, `weight`,
        the area they are means over, and `share`, of the region's.
    """
    regions = (regions,) if isinstance(regions, str) else tuple(regions)
    truth = open_store(truth)
    estimate, truth = matched(estimate, truth)
    channels = scored_channels(estimate, truth, variables)
    grid = Grid.from_coordinates(truth["latitude"].values, truth["longitude"].values)
    weights = region_weights(grid, regions, truth.get("land_sea_mask"))

    names = list(dict.fromkeys(name for name, _ in channels))
    members = estimate.sizes["member"]
    parts: list[Part] = []
    for name in names:
        levels = [level for n, level in channels if n == name]
        parts += parts_of(
            estimate[name], name, levels, members, min(reduction.BLOCK_BYTES, MOST), MOST
        )
    kept = [n for name in names for n in (name, f"{name}_std") if n in estimate]
    work = partial(_work, estimate[kept], truth[names], weights)
    found = reduce_blocks(
        work,
        lambda groups: [item for group in groups for item in group],
        parts,
        scheduler=active_client(work) if scheduler is None else scheduler,
        workers=workers,
        description=description,
    )

    places = {channel: k for k, channel in enumerate(channels)}
    sums = np.zeros((2 + len(STATISTICS), len(weights), estimate.sizes["time"], len(channels)))
    for part, values in found:
        index = [places[part.name, level] for level in part.levels]
        sums[:, :, part.hours, index] += values
    weight = sums[-2]
    _tell_undefined(weight, sums[-1], channels)
    means = sums[:-2] / np.where(weight > 0, weight, np.nan)
    dims = ("region", "time", "channel")
    data: dict[str, Any] = {
        name: (dims, value) for name, value in zip(STATISTICS, means, strict=True)
    }
    data["weight"] = (dims, weight)
    data["share"] = (dims, weight / weights.sum(axis=(1, 2))[:, None, None])
    if members == 1 and any(f"{name}_std" in estimate for name in names):
        members = 0  # none: normal distributions
    coords = {
        "region": list(regions),
        "time": estimate["time"].values,
        "channel": [short_name(*channel) for channel in channels],
        "variable": ("channel", [name for name, _ in channels]),
        "level": ("channel", [np.nan if p is None else float(p) for _, p in channels]),
        "units": ("channel", [str(truth[name].attrs.get("units", "1")) for name, _ in channels]),
    }
    return xr.Dataset(data, coords, {"members": members})


def matched(estimate: xr.Dataset, truth: xr.Dataset) -> tuple[xr.Dataset, xr.Dataset]:
    r"""Both at the hours that both have, on the same grid; the estimate with members. Errors call
    it what its attribute `called` says."""
    called = estimate.attrs.get("called", "estimate")
    for dim in SPACE:
        if dim not in estimate.coords:
            raise DataError(f"the {called} has no {dim}; it has {', '.join(map(str, estimate))}")
    found = Grid.from_coordinates(estimate["latitude"].values, estimate["longitude"].values)
    grid = Grid.from_coordinates(truth["latitude"].values, truth["longitude"].values)
    if found != grid:
        raise DataError(
            f"the {called} is on {found}, the truth on {grid}; regrid one of them, see Grid.regrid"
        )
    for dim in SPACE:  # coordinates may be rounded, but not in another order
        if np.abs(estimate[dim].values - truth[dim].values).max() > 0.01 * 360 / grid.longitudes:
            raise DataError(
                f"{dim} of the {called} is not in canonical order, from north to south and from 0 "
                "eastwards; open it with appa.open_store(estimate)"
            )
    for dim in ("member", "time"):
        estimate = with_dimension(estimate, dim)
    wanted, there = pd.Index(estimate["time"].values), pd.Index(truth["time"].values)
    if not there.is_unique:
        raise DataError("the truth has hours twice; select one of its trajectories")
    places = there.get_indexer(wanted)
    if (places < 0).all():
        spans = [f"{_hour(index.min())} to {_hour(index.max())}" for index in (wanted, there)]
        raise DataError(
            f"the {called}, {spans[0]}, and the truth, {spans[1]}, have no hour in common"
        )
    if (places < 0).any():
        told = wanted[places < 0]
        warnings.warn(
            f"{len(told)} of {len(wanted)} hours are not scored: the truth has no "
            f"{_hour(told[0])}" + (", …" if len(told) > 1 else ""),
            stacklevel=4,
        )
        estimate = estimate.isel(time=np.flatnonzero(places >= 0))
        places = places[places >= 0]
    if (np.diff(places) == 1).all():  # as a slice, which every store reads at its best
        return estimate, truth.isel(time=slice(int(places[0]), int(places[-1]) + 1))
    return estimate, truth.isel(time=places)


def _hour(time: Any) -> str:
    r"""An hour, with its minutes where it is none of the clock."""
    return f"{time:%Y-%m-%dT%H:%M}" if time.minute else f"{time:%Y-%m-%dT%H}"


def scored_channels(
    estimate: xr.Dataset, truth: xr.Dataset, variables: Sequence[str] | None
) -> list[tuple[str, int | None]]:
    r"""The channels to score, as variable and level."""
    known: list[tuple[str, int | None]] = []
    order = {name: k for k, name in enumerate(VARIABLES)}  # of a state
    names = sorted(map(str, estimate.data_vars), key=lambda n: order.get(n, len(order)))
    for name in names:
        if name not in truth or not {*SPACE, "time"} <= set(truth[name].dims):
            continue
        if "level" not in estimate[name].dims:
            known.append((name, None))
            continue
        levels = [int(p) for p in estimate["level"].values]
        lost = [p for p in levels if p not in truth["level"].values]
        if lost:
            warnings.warn(f"{name} is not scored at {lost} hPa: the truth has none", stacklevel=4)
        known += [(name, p) for p in levels if p not in lost]
    if not known:
        raise DataError(
            f"estimate and truth have no variable in common: {', '.join(map(str, estimate))} and "
            f"{', '.join(map(str, truth))}"
        )
    if variables is None:
        return known
    chosen: list[tuple[str, int | None]] = []
    for word in variables:
        fits = [channel for channel in known if word in (channel[0], short_name(*channel))]
        if not fits:
            words = dict.fromkeys(w for c in known for w in (c[0], short_name(*c)))
            raise DataError(f"estimate and truth have no {word!r}{nearest(word, words)}")
        chosen += fits
    return list(dict.fromkeys(chosen))


def short_name(name: str, level: int | None) -> str:
    if name in VARIABLES:
        return Channel(name, level).name
    return name if level is None else f"{name}_{level}"


def blocks_of(estimate: xr.Dataset, name: str, channels: Sequence[tuple[str, int | None]]) -> Any:
    r"""Cuts a variable into blocks of hours, and of levels where an hour is too large; of fields
    that are whole."""
    levels = [level for n, level in channels if n == name]
    chosen = estimate[[name]] if levels == [None] else estimate[[name]].sel(level=levels)
    hour = max(1, chosen[name].nbytes // max(1, chosen.sizes["time"]))
    longest = max(1, MOST * len(levels) // hour)  # of one level, even where chunks are longer
    for first, last in time_blocks(chosen):
        for start in range(first, last, longest):
            stop = min(start + longest, last)
            size = math.ceil(len(levels) / math.ceil(hour * (stop - start) / MOST))
            for k in range(0, len(levels), size):
                yield name, tuple(levels[k : k + size]), start, stop


def _work(estimate: xr.Dataset, truth: xr.Dataset, weights: np.ndarray, part: Part) -> list[Any]:
    r"""The weighted sums of the statistics of a part, and as the last the sums of weights where all
    are defined and where the truth is, with shape :math:`(5, R, T, K)`."""
    name, box = part.name, part[1:]
    y, x = read_block(truth[name], *box)[0], read_block(estimate[name], *box)
    sigma = None
    if f"{name}_std" in estimate and len(x) == 1:
        sigma = np.broadcast_to(read_block(estimate[f"{name}_std"], *box)[0], y.shape)
    weights = weights[:, part.rows, part.columns]
    sums = np.zeros((len(STATISTICS) + 2, len(weights), *y.shape[:2]))
    # what is computed on the way is of an hour, or of some rows of one level where that is large
    hours, levels, height, width = y.shape
    step = levels if len(x) * levels * height * width <= SLAB else 1
    rows = max(1, min(height, SLAB // (len(x) * step * width)))
    starts = (range(hours), range(0, levels, step), range(0, height, rows))
    for t, k, i in itertools.product(*starts):
        here = (t, slice(k, k + step), slice(i, i + rows))
        d = x[:, *here] - y[here]
        found = ensemble_statistics(d) if sigma is None else normal_statistics(d[0], sigma[here])
        undefined = np.isnan(found["crps"])
        area = weights[:, here[2]].reshape(len(weights), -1)
        for n, statistic in enumerate((*(found[key] for key in STATISTICS), 1.0)):
            value = np.where(undefined, 0.0, statistic).reshape(len(undefined), -1)
            sums[n, :, t, here[1]] += np.einsum("kn,rn->rk", value, area)
        there = ~np.isnan(y[here]).reshape(len(undefined), -1)
        sums[-1, :, t, here[1]] += np.einsum("kn,rn->rk", there, area)
    return [(part, sums)]


def _tell_undefined(
    weight: np.ndarray, known: np.ndarray, channels: Sequence[tuple[str, int | None]]
) -> None:
    r"""Warns where an estimate is undefined and the truth is not: its scores are of fewer points,
    which may be the easier ones.

    Arguments:
        weight: The area that is scored, with shape :math:`(R, T, C)`.
        known: The area of which there is truth, the same.
        channels: The channels, as variable and level.
    """
    lost = 1 - weight.sum(axis=(0, 1)) / np.maximum(known.sum(axis=(0, 1)), np.finfo(float).tiny)
    found = [k for k, share in enumerate(lost) if known[..., k].any() and share > 1e-9]
    if found:
        worst = max(found, key=lost.__getitem__)
        more = f", and {len(found) - 1} more," if len(found) > 1 else ""
        warnings.warn(
            f"{100 * lost[worst]:.2g} % of {short_name(*channels[worst])}{more} is undefined (NaN) "
            "in the estimate where there is truth: scores are of the rest",
            stacklevel=3,
        )


def read_block(
    var: xr.DataArray,
    levels: tuple[Any, ...],
    hours: slice,
    rows: slice = slice(None),
    columns: slice = slice(None),
) -> np.ndarray:
    r"""The values of a block, with shape :math:`(M, T, K, H, W)`."""
    if "time" in var.dims:
        var = var.isel(time=hours)
    if levels != (None,):
        var = var.sel(level=list(levels))
    var = var.isel(latitude=rows, longitude=columns)
    for dim in ("level", "time", "member"):
        if dim not in var.dims:
            var = var.expand_dims(dim)
    return load(var.transpose("member", "time", "level", *SPACE))
