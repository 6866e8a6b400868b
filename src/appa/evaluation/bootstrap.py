r"""Resampling of blocks: how many count as independent, and which are drawn.

A cell is a region, a lead time and a channel. Of the blocks that it has values in, :math:`n`,
samples take :math:`m` with replacement, and the ends of its interval are the quantiles

.. math:: [Q(\alpha'), Q(1 - \alpha')] , \qquad
    \alpha' = \Phi\left( -\sqrt{\tfrac{m}{m - 1}} \; t_{m - 1}(1 - \tfrac{\alpha}{2}) \right)

of samples, widened for few blocks as Student's :math:`t` widens a normal interval (Hesterberg,
2015). Blocks that a cell has no values in are not its sample: they are never drawn, and do not
count.

Independent blocks are all drawn, :math:`m = n`. Days that follow one another are not independent:
where values of blocks are correlated by :math:`\rho^{|b - c|}`, their mean has the variance of

.. math:: m = n^2 \Big/ \sum_{b, c} \rho^{|b - c|} \approx n \, \frac{1 - \rho}{1 + \rho}

independent ones (Zwiers and von Storch, 1995), which is the number that is drawn and that widens.
:math:`\rho` is the correlation :math:`r` of neighbours plus :math:`(1 + 4 r) / n`, by which it is
too small on average (Marriott and Pope, 1954), and not below 0. Blocks without a neighbour, such as
dates that are days apart, are independent; of fewer than 6 it is not asked.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr

from .ensembles import STATISTICS

__all__ = ["FEWEST", "block_sums", "draws", "ends", "independent", "places", "samples"]

FEWEST = 6  # blocks that tell anything
MOST = 0.99  # of neighbours
LEAST = 1e-3  # that is one
NONE = 1e-10  # variance over squared mean that rounding leaves
HELD = 2**22  # values of samples at once


def places(label: np.ndarray, days: int) -> tuple[np.ndarray, np.ndarray]:
    r"""Blocks of days.

    Arguments:
        label: What tells blocks apart, hours or dates, with shape :math:`(T)`.
        days: The days of a block.

    Returns:
        The places of the :math:`n` blocks, of which neighbours are 1 apart, and the block of each
        label, with shape :math:`(T)`.
    """
    day = label.astype("datetime64[D]").astype(np.int64)
    return np.unique((day - day.min()) // days, return_inverse=True)


def independent(x: np.ndarray, place: np.ndarray) -> np.ndarray:
    r"""As how many independent ones blocks count.

    Arguments:
        x: Their values, or vectors of these, with shape :math:`(n, *, K)`; NaN where there is none.
        place: Their places, ascending, with shape :math:`(n)`; neighbours are 1 apart.

    Returns:
        The number :math:`m`, with shape :math:`(*)`; no more than there are.
    """
    there = np.asarray(np.isfinite(x).all(axis=-1))
    n = there.sum(axis=0)
    many = np.maximum(n, 1)
    x = np.where(there[..., None], x, 0.0)
    mean = x.sum(axis=0) / many[..., None]
    c = np.where(there[..., None], x - mean, 0.0)
    variance = (c**2).sum(axis=(0, -1)) / many
    near = np.flatnonzero(np.diff(place) == 1)
    pairs = (there[near] & there[near + 1]).sum(axis=0)
    product = (c[near] * c[near + 1]).sum(axis=(0, -1)) / np.maximum(pairs, 1)
    known = (n >= FEWEST) & (pairs > 0) & (variance > NONE * (mean**2).sum(axis=-1))
    r = np.where(known, product / np.where(known, variance, 1.0), 0.0)
    rho = np.where(known, np.clip(r + (1 + 4 * r) / many, 0.0, MOST), 0.0)
    total, power = n.astype(np.float64), np.ones_like(rho)
    for lag in range(1, int(place[-1] - place[0]) + 1 if len(place) else 0):
        power = power * rho
        if not (power > LEAST).any():
            break
        later = np.searchsorted(place, place + lag)
        first = np.flatnonzero(
            (later < len(place)) & (place.take(later, mode="clip") == place + lag)
        )
        total += 2 * power * (there[first] & there[later[first]]).sum(axis=0)
    return n**2 / np.maximum(total, 1.0)


def block_sums(means: xr.Dataset, dim: str, block: np.ndarray) -> dict[str, np.ndarray]:
    r"""The statistics of each block times its weight, and its `weight`, with shape :math:`(n, C)`
    for all cells `(region, [lead_time,] channel)` one after another."""
    means = means.transpose(dim, "region", ..., "channel")
    weight = means["weight"].values

    def total(values: np.ndarray) -> np.ndarray:
        sums = np.zeros((int(block.max()) + 1, *values.shape[1:]))
        np.add.at(sums, block, values)
        return sums.reshape(len(sums), -1)

    found = {n: total(np.where(weight > 0, means[n].values, 0.0) * weight) for n in STATISTICS}
    return found | {"weight": total(weight)}


def draws(
    filled: np.ndarray, drawn: np.ndarray, resamples: int, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    r"""Draws samples, the same for cells that have the same blocks.

    Arguments:
        filled: Whether a cell has values in a block, with shape :math:`(n, C)`.
        drawn: The number of blocks :math:`m` of a sample, with shape :math:`(C)`; of cells with
            less than two there is none.
        resamples: The number of samples :math:`B`.
        seed: The seed.

    Returns:
        The indices of cells, and how often each block is in each sample, with shape
        :math:`(B, n)`.
    """
    keys = np.concatenate([filled, drawn[None]]).T
    groups, group = np.unique(keys, axis=0, return_inverse=True)
    for g, (*pattern, m) in enumerate(groups):
        if m < 2:
            continue
        there = np.flatnonzero(pattern)
        counts = np.zeros((resamples, len(filled)))
        rng = np.random.default_rng(seed)
        counts[:, there] = rng.multinomial(m, np.full(len(there), 1 / len(there)), resamples)
        cells = np.flatnonzero(group.reshape(-1) == g)
        for part in np.array_split(cells, -(-len(cells) * resamples // HELD)):
            yield part, counts


def samples(
    sums: dict[str, np.ndarray], cells: np.ndarray, counts: np.ndarray
) -> dict[str, np.ndarray]:
    r"""The means of statistics of samples, with shape :math:`(B, C)`."""
    weight = counts @ sums["weight"][:, cells]
    return {name: counts @ sums[name][:, cells] / weight for name in STATISTICS}


def ends(samples: np.ndarray, m: int, *levels: float) -> np.ndarray:
    r"""The quantiles :math:`\alpha'` and :math:`1 - \alpha'` of samples of :math:`m` blocks for
    each level :math:`1 - \alpha / 2`."""
    from scipy import stats

    tails = [stats.norm.cdf(-np.sqrt(m / (m - 1)) * stats.t.ppf(q, m - 1)) for q in levels]
    return np.quantile(samples, [q for tail in tails for q in (tail, 1 - tail)], axis=0)
