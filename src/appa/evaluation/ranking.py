r"""Ranks of the truth among members, counted over regions hour by hour, and errors by spread.

With departures :math:`d_m = x_m - y`, the rank is the number of members with :math:`d_m < 0`, and
of those with :math:`d_m = 0` as many as chance has it. A normal distribution in place of members
has the rank :math:`\lfloor 20 \, \Phi((y - \mu) / \sigma) \rfloor`, as if of 19 members.

Half of the members sort points by their spread, into bins of a quarter of an octave, for which the
expected and the found squared error of the other half are summed; then the halves change places. No
more is held than a block of hours of one variable. What the counts tell is in
:mod:`appa.evaluation.calibration`.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from ..data.grids import Grid
from ..data.reduction import reduce_blocks
from ..data.stores import open_store
from ..errors import DataError
from .ensembles import blocks_of, matched, read_block, scored_channels, short_name
from .regions import region_weights

__all__ = ["SORTED", "rank_counts", "truth_ranks"]

BINS = 20  # of the PIT of a normal distribution
# spreads are sorted into bins of a quarter of an octave, from 2^-40 to 2^24 of any unit
OCTAVE, LOWEST, HIGHEST = 4, -40, 24
SPREADS = OCTAVE * (HIGHEST - LOWEST)
SORTED = 4  # members at least, to sort by two and score two


def truth_ranks(d: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    r"""The ranks of the truth among members, from departures :math:`x_m - y`.

    Arguments:
        d: Departures without NaN, with shape :math:`(M, *)`.
        rng: What breaks ties.

    Returns:
        Integers from 0, below all members, to :math:`M`, with shape :math:`(*)`.
    """
    rank, ties = (d < 0).sum(axis=0), (d == 0).sum(axis=0)
    return rank + rng.integers(0, ties + 1) if ties.any() else rank


# ---------------------------------------------------------------- over a dataset


def rank_counts(
    estimate: xr.Dataset,
    truth: Any,
    *,
    variables: Sequence[str] | None = None,
    regions: Sequence[str] = ("global",),
    seed: int = 0,
    scheduler: Any = None,
    workers: int | None = None,
) -> xr.Dataset:
    r"""Counts ranks by area, hour by hour, and sums errors by spread, a block of hours in memory.

    A point takes part where the truth and all members are defined.

    Arguments:
        estimate, truth, variables, regions, scheduler, workers: As of
            :func:`appa.evaluation.ensembles.averages`.
        seed: The seed of broken ties; they depend on nothing else than channel and hour.

    Returns:
        `count` with dimensions `(region, time, channel, rank)`, the area at which the truth had a
        rank, and with 4 members or more `sorted`, with dimensions
        `(region, channel, spread_bin, sum)`: the sums of `weight`, `expected` and `found` squared
        error of points by spread. Those of several runs can be joined: `count` along `time` with
        :func:`xarray.concat`, `sorted` by adding. A coordinate `start` along `time`, which tells
        the runs of an estimate apart, is kept.
    """
    regions = (regions,) if isinstance(regions, str) else tuple(regions)
    truth = open_store(truth)
    estimate, truth = matched(estimate, truth)
    channels = scored_channels(estimate, truth, variables)
    names = list(dict.fromkeys(name for name, _ in channels))
    members = estimate.sizes["member"]
    if members == 1:
        lacking = [name for name in names if f"{name}_std" not in estimate]
        if lacking:
            raise DataError(
                f"{lacking[0]} has one member and no {lacking[0]}_std: a single state cannot be "
                "calibrated; give an ensemble, or normal distributions"
            )
        members = 0
    grid = Grid.from_coordinates(truth["latitude"].values, truth["longitude"].values)
    weights = region_weights(grid, regions, truth.get("land_sea_mask")).reshape(len(regions), -1)

    found = reduce_blocks(
        partial(_work, estimate, truth, weights, members, seed),
        lambda groups: [item for group in groups for item in group],
        [part for name in names for part in blocks_of(estimate, name, channels)],
        scheduler=scheduler,
        workers=workers,
        description="ranking",
    )

    places = {channel: k for k, channel in enumerate(channels)}
    shape = len(regions), estimate.sizes["time"], len(channels)
    count = np.zeros((*shape, members + 1 if members else BINS))
    sums = np.zeros((shape[0], shape[2], SPREADS, 3))
    for (name, levels, start, stop), counts, values in found:
        index = [places[name, level] for level in levels]
        count[:, start:stop, index] = counts
        sums[:, index] += values
    about = {"long_name": "area by the rank of the truth among members"}
    data: dict[str, Any] = {"count": (("region", "time", "channel", "rank"), count, about)}
    if not members or members >= SORTED:
        about = {"long_name": "squared error by the spread of other members"}
        data["sorted"] = (("region", "channel", "spread_bin", "sum"), sums, about)
    units = [str(truth[name].attrs.get("units", "1")) for name, _ in channels]
    levels = [np.nan if p is None else float(p) for _, p in channels]
    coords: dict[str, Any] = {
        "region": list(regions),
        "time": estimate["time"].values,
        "channel": (
            "channel",
            [short_name(*c) for c in channels],
            {"long_name": "variable and level"},
        ),
        "variable": ("channel", [name for name, _ in channels]),
        "level": ("channel", levels, {"units": "hPa"}),
        "units": ("channel", units),
        "sum": ["weight", "expected", "found"],
    }
    if "start" in estimate.coords and estimate["start"].dims == ("time",):
        coords["start"] = estimate["start"]
    return xr.Dataset(data, coords, {"members": members, "seed": seed})


def _work(
    estimate: xr.Dataset,
    truth: xr.Dataset,
    weights: np.ndarray,
    members: int,
    seed: int,
    part: Any,
) -> list[Any]:
    r"""The counts of a part, with shape :math:`(R, T, K, M + 1)`, and its sums by spread, with
    shape :math:`(R, K, B, 3)`."""
    name, levels, start, stop = part
    hours = slice(start, stop)
    y, x = read_block(truth[name], levels, hours)[0], read_block(estimate[name], levels, hours)
    sigma = None
    if not members:
        sigma = np.broadcast_to(read_block(estimate[f"{name}_std"], levels, hours)[0], y.shape)
    times = estimate["time"].values[hours].astype("datetime64[h]").astype(np.int64)
    ranks = members + 1 if members else BINS
    counts = np.zeros((len(weights), *y.shape[:2], ranks))
    sums = np.zeros((len(weights), len(levels), SPREADS, 3))
    for t, k in np.ndindex(*y.shape[:2]):
        d = (x[:, t, k] - y[t, k]).reshape(len(x), -1)
        defined = ~np.isnan(d).any(axis=0)
        if sigma is None:
            d = d[:, defined]
            # the same draws whatever the blocks are
            key = zlib.crc32(short_name(name, levels[k]).encode())
            rank = truth_ranks(d, np.random.default_rng([seed, key, int(times[t]) % 2**63]))
            triples = _halves(d) if members >= SORTED else []
        else:
            s = sigma[t, k].reshape(-1)
            defined &= s > 0
            d, s = d[:, defined].astype(np.float64), s[defined].astype(np.float64)
            rank = _normal_ranks(d[0], s)
            triples = [(s, s**2, d[0] ** 2)]
        w = weights[:, defined]
        for g in range(len(w)):
            counts[g, t, k] = np.bincount(rank, w[g], ranks)
            for s, *values in triples:
                index = _spread_bin(s)
                for c, value in enumerate((1.0, *values)):
                    sums[g, k, :, c] += np.bincount(index, w[g] * value, SPREADS)
    return [(part, counts, sums)]


def _halves(d: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    r"""The spread of a half of the members, and the expected and found squared error of the other,
    both ways, each with shape :math:`(N)`."""
    found = []
    for a, b in ((d[::2], d[1::2]), (d[1::2], d[::2])):
        expected = (len(b) + 1) / len(b) * b.var(axis=0, ddof=1)
        found.append((a.std(axis=0, ddof=1), expected, b.mean(axis=0) ** 2))
    return found


def _spread_bin(s: np.ndarray) -> np.ndarray:
    octaves = np.log2(np.maximum(s, 2.0**LOWEST), dtype=np.float64)
    return np.minimum(OCTAVE * (octaves - LOWEST), SPREADS - 1).astype(np.int64)


def _normal_ranks(d: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    from scipy.special import ndtr

    return np.minimum(BINS * ndtr(-d / sigma), BINS - 1).astype(np.int64)
