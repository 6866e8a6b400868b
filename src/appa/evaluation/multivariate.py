r"""Scores of whole fields: whether members are right together, and at which scales.

With members :math:`x_m`, truth :math:`y`, departures :math:`d_m = x_m - y`, and the norm
:math:`\|d\|^2 = \sum_i w_i d_i^2` by area, :math:`\sum_i w_i = 1`, the *energy score* is

.. math:: \frac{1}{M} \sum_m \| d_m \| - \frac{1}{2 M (M - 1)} \sum_{m, n} \| d_m - d_n \| ,

the CRPS of fields, and the *variogram score* over pairs :math:`(i, j)` of points is

.. math:: \left\langle \left( \bar{v}_{i j} - |y_i - y_j|^p \right)^2
    - \frac{1}{M} \operatorname{var}_m v_{m i j} \right\rangle_{i j} , \qquad
    v_{m i j} = |x_{m i} - x_{m j}|^p , \quad p = \tfrac{1}{2} ,

which a wrong correlation costs more than the energy score. Both are fair: their expectations do not
depend on :math:`M`, and are least where members and truth are drawn alike. With one member there is
nothing to subtract. They are `fair` in `scoringrules`, where norms have no weights and pairs are
all, summed twice; its default `nrg` has :math:`M^2` for :math:`M (M - 1)` in the former and nothing
subtracted in the latter. The former is in the field's unit, the latter in its power :math:`2 p`.

At a wavenumber :math:`l`, with :math:`S_l` the energy of a field
(:mod:`appa.evaluation.spectra`), members drawn as the truth is have

.. math:: \operatorname{E} \left[ \tfrac{M + 1}{M} \, V_l \right] = \operatorname{E} [ E_l ] ,
    \qquad V_l = \tfrac{1}{M - 1} \sum_m S_l(x_m - \bar{x}) , \quad E_l = S_l(\bar{x} - y) ,

and the root of their ratio is the spread/skill ratio of that wavelength: below 1, too sure of
itself. Summed over wavenumbers, both are the scores of :mod:`appa.evaluation.scores`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from ..data.grids import RADIUS, Grid
from ..data.reduction import reduce_blocks
from ..data.stores import open_store
from ..errors import DataError
from .ensembles import blocks_of, matched, read_block, scored_channels, short_name
from .regions import region_weights
from .spectra import power_spectrum, truncation, wavelength

__all__ = ["choose_pairs", "energy_score", "field_scores", "spread_spectra", "variogram_score"]


# ---------------------------------------------------------------- of arrays


def energy_score(d: np.ndarray, w: np.ndarray | None = None) -> np.ndarray:
    r"""The energy score.

    Arguments:
        d: Departures :math:`x_m - y`, with shape :math:`(M, *, N)`.
        w: Weights :math:`w_i`, with shape :math:`(N)`; by default 1.

    Returns:
        The scores, with shape :math:`(*)`.
    """
    a = np.moveaxis(np.asarray(d, np.float64), 0, -2)
    if w is not None:
        a = a * np.sqrt(w)
    m, first = a.shape[-2], np.sqrt((a**2).sum(axis=-1)).mean(axis=-1)
    if m == 1:
        return first
    a = a - a.mean(axis=-2, keepdims=True)  # of a common error, squares would lose digits
    gram = a @ a.swapaxes(-2, -1)
    square = np.diagonal(gram, axis1=-2, axis2=-1)
    apart = square[..., :, None] + square[..., None, :] - 2 * gram
    apart[..., np.arange(m), np.arange(m)] = 0.0
    return first - np.sqrt(np.maximum(apart, 0.0)).sum(axis=(-2, -1)) / (2 * m * (m - 1))


def variogram_score(
    x: np.ndarray,
    y: np.ndarray,
    pairs: np.ndarray,
    w: np.ndarray | None = None,
    p: float = 0.5,
) -> np.ndarray:
    r"""The variogram score.

    Arguments:
        x: Members, with shape :math:`(M, *, N)`.
        y: The truth, with shape :math:`(*, N)`.
        pairs: Pairs of points as indices, with shape :math:`(P, 2)`.
        w: Weights of pairs with sum 1, with shape :math:`(P)`; by default :math:`1 / P`.
        p: The power.

    Returns:
        The scores, with shape :math:`(*)`.
    """
    i, j = np.asarray(pairs).T
    v = np.abs(np.subtract(x[..., i], x[..., j], dtype=np.float64)) ** p
    u = np.abs(np.subtract(y[..., i], y[..., j], dtype=np.float64)) ** p
    square = (v.mean(axis=0) - u) ** 2
    if len(v) > 1:
        square = square - v.var(axis=0, ddof=1) / len(v)
    return square.mean(axis=-1) if w is None else square @ w


def choose_pairs(grid: Grid, count: int = 4096, reach: float = 1000.0, seed: int = 0) -> np.ndarray:
    r"""Pairs of grid points no farther apart than a reach, about evenly over the globe.

    The first is drawn by area and the second is the grid point nearest to one drawn by area from
    the cap around it, if it is another.

    Arguments:
        grid: The grid.
        count: The number of pairs :math:`P`.
        reach: The radius of the cap in km.
        seed: The seed.

    Returns:
        Flat indices, with shape :math:`(P, 2)`.
    """
    from scipy.spatial import KDTree

    phi, lam = np.meshgrid(np.radians(grid.latitude), np.radians(grid.longitude), indexing="ij")
    points = np.stack([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)], axis=-1)
    points, tree = points.reshape(-1, 3), KDTree(points.reshape(-1, 3))
    area = np.broadcast_to(grid.weights[:, None], grid.shape).reshape(-1)
    rng, found = np.random.default_rng(seed), np.empty((0, 2), np.int64)
    angle = min(reach * 1e3 / RADIUS, np.pi)
    for _ in range(100):
        i = rng.choice(len(area), count, p=area / area.sum())
        cosine = rng.uniform(np.cos(angle), 1, count)
        across = np.cross(points[i], rng.normal(size=(count, 3)))  # a bearing at random
        across /= np.linalg.norm(across, axis=-1, keepdims=True)
        ends = cosine[:, None] * points[i] + np.sqrt(1 - cosine**2)[:, None] * across
        j = tree.query(ends)[1]
        apart = np.linalg.norm(points[i] - points[j], axis=-1)
        near = (i != j) & (apart <= 2 * np.sin(angle / 2) + 1e-12)
        found = np.concatenate([found, np.stack([i, j], axis=-1)[near]])
        if len(found) >= count:
            return found[:count]
    raise DataError(f"{grid} has no pairs of points within {reach:g} km; give a longer reach")


# ---------------------------------------------------------------- over a dataset


def field_scores(
    estimate: xr.Dataset,
    truth: Any,
    *,
    variables: Sequence[str] | None = None,
    regions: Sequence[str] = ("global",),
    pairs: np.ndarray | None = None,
    p: float = 0.5,
    scheduler: Any = None,
    workers: int | None = None,
) -> xr.Dataset:
    r"""Energy and variogram scores of fields, hour by hour, a block of hours in memory.

    A point takes part where the truth and all members are defined, a pair where both its points
    do. In a region, a pair counts with the product of its points' shares in it.

    Arguments:
        estimate, truth, variables, regions, scheduler, workers: As of
            :func:`appa.evaluation.ensembles.averages`.
        pairs: Pairs of points, see :func:`choose_pairs`, whose defaults are the default.
        p: The power of the variogram score.

    Returns:
        `energy` and `variogram`, with dimensions `(region, time, channel)`; scores of all hours are
        their means.
    """
    regions = (regions,) if isinstance(regions, str) else tuple(regions)
    estimate, truth, grid, channels = _opened(estimate, truth, variables)
    pairs = choose_pairs(grid) if pairs is None else np.asarray(pairs)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.min() < 0 or pairs.max() >= grid.area.size:
        raise DataError(
            f"pairs have shape {pairs.shape} and indices from {pairs.min()} to {pairs.max()}; "
            f"expected (P, 2) and 0 to {grid.area.size - 1}, see choose_pairs"
        )
    weights = region_weights(grid, regions, truth.get("land_sea_mask")).reshape(len(regions), -1)
    found = _over_blocks(
        partial(_score, estimate, truth, weights, grid, pairs, p),
        estimate,
        channels,
        scheduler=scheduler,
        workers=workers,
    )
    values = np.full((2, len(regions), estimate.sizes["time"], len(channels)), np.nan)
    for index, hours, part in found:
        values[:, :, hours, index] = part
    dims, told = ("region", "time", "channel"), {"long_name": "energy score of fields, fair"}
    about = {"long_name": "variogram score of fields, fair", "power": p, "pairs": len(pairs)}
    data = {"energy": (dims, values[0], told), "variogram": (dims, values[1], about)}
    coords = {"region": list(regions), "time": estimate["time"].values}
    coords |= _coordinates(truth, channels)
    return xr.Dataset(data, coords, {"members": estimate.sizes["member"]})


def _score(
    estimate: xr.Dataset,
    truth: xr.Dataset,
    weights: np.ndarray,
    grid: Grid,
    pairs: np.ndarray,
    p: float,
    part: Any,
) -> np.ndarray:
    r"""Both scores of a part, with shape :math:`(2, R, T, K)`."""
    x, y = _both(estimate, truth, part)
    area = np.broadcast_to(grid.weights[:, None], grid.shape).reshape(-1)
    share = weights / area
    found = np.full((2, len(weights), *y.shape[:2]), np.nan)
    for t, k in np.ndindex(*y.shape[:2]):
        members, one = x[:, t, k].reshape(len(x), -1), y[t, k].reshape(-1)
        d = members - one
        defined = np.asarray(~np.isnan(d).any(axis=0))
        both = pairs[defined[pairs].all(axis=1)]
        for g in range(len(weights)):
            inside = defined & (weights[g] > 0)
            if inside.any():
                w = weights[g, inside] / weights[g, inside].sum()
                found[0, g, t, k] = energy_score(d[:, inside], w)
            w = share[g, both].prod(axis=1)
            if w.sum() > 0:
                found[1, g, t, k] = variogram_score(members, one, both, w / w.sum(), p)
    return found


def spread_spectra(
    estimate: xr.Dataset,
    truth: Any,
    *,
    variables: Sequence[str] | None = None,
    by: str = "all",
    scheduler: Any = None,
    workers: int | None = None,
) -> xr.Dataset:
    r"""Spread and error by wavelength, a block of hours in memory.

    Arguments:
        estimate, truth, variables, scheduler, workers: As of
            :func:`appa.evaluation.ensembles.averages`. A field that is undefined somewhere has no
            spectrum, and its hour takes no part.
        by: `"all"` for the means over hours, `"time"` for each hour.

    Returns:
        `variance` :math:`V_l` and `error` :math:`E_l` in the unit squared and `ratio`, with
        dimensions `([time], channel, wavenumber)`, and `wavelength` in km.
    """
    if by not in ("time", "all"):
        raise DataError(f"found by={by!r}, expected 'time' or 'all'")
    estimate, truth, grid, channels = _opened(estimate, truth, variables)
    members, hours = estimate.sizes["member"], estimate.sizes["time"]
    if members < 2:
        raise DataError("a single member has no spread; give an ensemble of 2 members or more")
    found = _over_blocks(
        partial(_spectra, estimate, truth, grid, by),
        estimate,
        channels,
        scheduler=scheduler,
        workers=workers,
    )
    rows = hours if by == "time" else 1
    sums = np.zeros((3, rows, len(channels), truncation(grid) + 1))
    for index, block, part in found:
        sums[:, block if by == "time" else slice(None), index] += part
    error, variance = sums[:2] / np.where(sums[2] > 0, sums[2], np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.sqrt((members + 1) / members * np.where(error > 0, variance / error, np.nan))
    dims = ("time", "channel", "wavenumber")
    told = "by total wavenumber, in the unit squared"
    data = {
        "error": (dims, error, {"long_name": f"energy of the mean's error {told}"}),
        "variance": (dims, variance, {"long_name": f"energy of the spread {told}"}),
        "ratio": (dims, ratio, {"long_name": "spread over skill, corrected", "units": "1"}),
    }
    degree = np.arange(sums.shape[-1])
    coords: dict[str, Any] = {"wavenumber": degree, **_coordinates(truth, channels)}
    coords["wavelength"] = ("wavenumber", wavelength(degree), {"units": "km"})
    ds = xr.Dataset(data, coords, {"members": members, "hours": hours})
    return ds.assign_coords(time=estimate["time"].values) if by == "time" else ds.isel(time=0)


def _spectra(estimate: xr.Dataset, truth: xr.Dataset, grid: Grid, by: str, part: Any) -> np.ndarray:
    r"""Sums of error and variance, and the number of hours, with shape :math:`(3, T, K, L + 1)`,
    :math:`T = 1` of all hours."""
    x, y = _both(estimate, truth, part)
    last = truncation(grid) + 1
    found = np.zeros((3, len(y) if by == "time" else 1, y.shape[1], last))
    for t in range(len(y)):
        d = x[:, t].astype(np.float64) - y[t]
        mean = d.mean(axis=0)
        whole = ~np.isnan(mean).any(axis=(-2, -1))
        values = np.zeros((3, len(mean), last))
        values[0, whole] = power_spectrum(mean[whole], grid)
        apart = power_spectrum(d[:, whole] - mean[whole], grid)
        values[1, whole] = apart.sum(axis=0) / (len(d) - 1)
        values[2, whole] = 1.0
        found[:, t if by == "time" else 0] += values
    return found


# ---------------------------------------------------------------- what both need


def _opened(estimate: xr.Dataset, truth: Any, variables: Sequence[str] | None) -> Any:
    truth = open_store(truth)
    estimate, truth = matched(estimate, truth)
    grid = Grid.from_coordinates(truth["latitude"].values, truth["longitude"].values)
    return estimate, truth, grid, scored_channels(estimate, truth, variables)


def _over_blocks(work: Any, estimate: xr.Dataset, channels: Any, **kwargs: Any) -> list[Any]:
    r"""What `work` finds of each part, after its channels' indices and its hours."""
    names = list(dict.fromkeys(name for name, _ in channels))
    parts = [part for name in names for part in blocks_of(estimate, name, channels)]
    found = reduce_blocks(
        lambda part: [(part, work(part))],
        lambda groups: [item for group in groups for item in group],
        parts,
        description="scoring",
        **kwargs,
    )
    places = {channel: k for k, channel in enumerate(channels)}
    return [
        ([places[name, level] for level in levels], slice(start, stop), values)
        for (name, levels, start, stop), values in found
    ]


def _both(estimate: xr.Dataset, truth: xr.Dataset, part: Any) -> tuple[np.ndarray, np.ndarray]:
    r"""Members :math:`(M, T, K, H, W)` and truth :math:`(T, K, H, W)` of a part."""
    name, levels, start, stop = part
    hours = slice(start, stop)
    return read_block(estimate[name], levels, hours), read_block(truth[name], levels, hours)[0]


def _coordinates(truth: xr.Dataset, channels: Any) -> dict[str, Any]:
    levels = [np.nan if p is None else float(p) for _, p in channels]
    units = [str(truth[name].attrs.get("units", "1")) for name, _ in channels]
    return {
        "channel": (
            "channel",
            [short_name(*c) for c in channels],
            {"long_name": "variable and level"},
        ),
        "variable": ("channel", [name for name, _ in channels]),
        "level": ("channel", levels, {"units": "hPa"}),
        "units": ("channel", units),
    }
