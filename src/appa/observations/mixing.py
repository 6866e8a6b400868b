r"""Observations that see several channels of what the decoder lacks.

A row between two levels is a weighted sum of both, and a derived one is a function of several
fields. About the decoded states :math:`D(z)` of a member

.. math:: \mathcal{A}(D(z) + r) \approx \mathcal{A}(D(z)) + \sum_c H_c \, r_c ,

with the slopes of :math:`\mathcal{A}` there, times the weights its inputs are interpolated with, in
:math:`H_c`: a few numbers for each channel a row sees. Channels of :math:`r` are independent, so
that one system

.. math:: \Big( \sum_c H_c B_c H_c^\top + I \Big) x = y - \mathcal{A}(D(z)) - e'
    - \sum_c H_c r_{b, c} , \qquad r_c = r_{b, c} + B_c H_c^\top x ,

has the answer for all channels that are tied together by such rows, in which their other
observations take part as well. It is exact but for two things: the second order of
:math:`\mathcal{A}` over steps as large as :math:`r`, and the correlation between channels, which
:math:`B` does not have. Products are made one channel after the other, so that no more than one is
in memory.

Rows whose function takes whole fields have slopes everywhere, and do not take part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..solvers import Solution, cg
from .blocks import Blocks
from .errors import kinds_of
from .harmonics import Correlated
from .parts import Linear
from .representation import Representation
from .stencils import StateSpace

__all__ = ["Mixed", "Slopes", "mixed_groups", "slopes_of"]

#: Slopes of an hour's parts with respect to the numbers of a state they see, with shape
#: :math:`(M, n, k)`; :py:`None` where they are the same for every state, or not known.
Slopes = list[Tensor | None]


def slopes_of(operator: Any, x: Tensor) -> Slopes:
    r"""The slopes of an operator at standardized states :math:`(M, C, H, W)`."""
    return [None if isinstance(part, Linear) else part.slopes(x) for part in operator.parts]


@dataclass
class Entries:
    r"""The entries of :math:`H_c` in the rows of some part."""

    row: Tensor  # (e), of the group
    place: Tensor  # (e), of the period's fields, flattened
    weight: Tensor | None  # (1, e), where it is the same for all members
    source: tuple[int, int] = (0, 0)  # else the hour and part of the slopes,
    at: tuple[Tensor, Tensor] | None = None  # and which of them


@dataclass
class Mixed:
    r"""Rows of a period that tie channels together.

    Arguments:
        channels: The channels.
        which: The rows, of all observations, with shape :math:`(n)`.
        rows: Their tables, and the `hour` of each.
        entries: What each channel adds to them.
    """

    channels: list[int]
    which: Tensor
    rows: pd.DataFrame
    entries: dict[int, list[Entries]]

    def weights(self, channel: int, slopes: Sequence[Slopes]) -> list[tuple[Tensor, ...]]:
        r"""Rows, places and weights :math:`(M, e)` of a channel."""
        found = []
        for entry in self.entries[channel]:
            weight = entry.weight
            if weight is None:
                assert entry.at is not None
                own = slopes[entry.source[0]][entry.source[1]]
                assert own is not None
                weight = own[:, entry.at[0], entry.at[1]]
            found.append((entry.row, entry.place, weight))
        return found


class Coupled:
    r"""The system of a group for some members.

    Arguments:
        mixed: The rows.
        slopes: The slopes of each hour.
        rep: The covariance of :math:`r`.
        priors: The correlation of a channel over some hours.
        shape: That of the fields of a channel, :math:`(L, H, W)`.
        device: Where it is solved.
    """

    def __init__(
        self,
        mixed: Mixed,
        slopes: Sequence[Slopes],
        rep: Representation,
        priors: Callable[[int, int], Correlated],
        shape: Sequence[int],
        device: torch.device,
    ):
        self.mixed, self.rep, self.priors = mixed, rep, priors
        self.slopes, self.shape, self.device = slopes, tuple(shape), device

    def _entries(self, channel: int) -> list[tuple[Tensor, ...]]:
        std = torch.from_numpy(self.rep.std[channel].reshape(-1)).float().to(self.device)
        found = []
        for row, place, weight in self.mixed.weights(channel, self.slopes):
            row, place, weight = (t.to(self.device) for t in (row, place, weight))
            found.append((row, place, weight * std[place % len(std)]))
        return found

    def observe(self, channel: int, u: Tensor, entries: list | None = None) -> Tensor:
        r"""The products :math:`H_c u` with fields of unit variance :math:`(M, L, H, W)`."""
        flat = u.flatten(1)
        out = flat.new_zeros(len(u), len(self.mixed.which))
        for row, place, weight in entries or self._entries(channel):
            out.index_add_(1, row, flat.index_select(1, place) * weight)
        return out

    def spread(self, channel: int, v: Tensor, entries: list | None = None) -> Tensor:
        r"""The products :math:`B_c H_c^\top v` with vectors :math:`(M, n)`."""
        flat = v.new_zeros(len(v), int(np.prod(self.shape)))
        for row, place, weight in entries or self._entries(channel):
            flat.index_add_(1, place, v.index_select(1, row) * weight)
        return self.priors(channel, self.shape[0]).matmul(flat.unflatten(1, self.shape))

    def solve(self, b: Tensor, iterations: int, tolerance: float) -> Solution:
        r"""Solutions of :math:`(M, n)`."""
        entries = {c: self._entries(c) for c in self.mixed.channels}
        blocks = self._blocks(entries)

        def product(v: Tensor) -> Tensor:
            out = v
            for c, own in entries.items():
                out = out + self.observe(c, self.spread(c, v, own), own)
            return out

        return cg(product, b, iterations, tolerance, blocks.solve)

    def _blocks(self, entries: Mapping[int, list]) -> Blocks:
        r"""Each place's own hours by themselves, as members have them on average."""
        mixed, hours = self.mixed, self.shape[0]
        rows, n = mixed.rows, len(mixed.which)
        parts = {}
        for c, own in entries.items():
            total = torch.zeros(n, device=self.device)
            for row, _, weight in own:
                total.index_add_(0, row, weight.square().mean(0).sqrt())
            parts[c] = total.double().cpu().numpy() ** 2
        variance = np.sum(list(parts.values()), axis=0)
        kinds, keys = kinds_of(rows)
        lag = np.arange(hours, dtype=np.float64)
        table = np.zeros((len(keys), hours))
        for c, own in parts.items():
            share = np.bincount(kinds, own, len(keys))
            table += share[:, None] * self.rep.in_time(c, lag)
        total = np.bincount(kinds, variance, len(keys))
        table = np.where(total[:, None] > 0, table / np.maximum(total, 1e-30)[:, None], lag == 0)
        columns = ["variable", "level", "place", "gridded"]
        group = rows.groupby(columns, dropna=False, sort=False).ngroup().to_numpy()
        hour = rows["hour"].to_numpy()
        return Blocks(group, hour, np.sqrt(variance), kinds, table).to(self.device)


# ---------------------------------------------------------------- which rows, and which channels


def mixed_groups(
    operators: Sequence[Any], single: Mapping[int, Any], space: StateSpace, derived: bool
) -> list[Mixed]:
    r"""Groups of channels that rows tie together, with all rows that see them.

    Arguments:
        operators: The operators of consecutive hours, :py:`None` where nothing was seen.
        single: Where channels were seen by themselves: pieces of an hour, rows of its operator,
            and which of all observations they are.
        space: Where states live.
        derived: Whether slopes of derived observables are known.
    """
    alone = {t: np.zeros(len(op.rows), bool) for t, op in enumerate(operators) if op is not None}
    for pieces in single.values():
        for t, which, _ in pieces:
            alone[t][which] = True
    points, leader = int(np.prod(space.grid.shape)), np.arange(space.shape[0])
    parts: list[_Seen] = []
    mixing: set[int] = set()
    offset = 0
    for t, operator in enumerate(operators):
        if operator is None:
            continue
        start = 0
        for k, part in enumerate(operator.parts):
            rows, start = np.arange(start, start + len(part)), start + len(part)
            stencil = part.stencil
            if stencil is None or not (derived or isinstance(part, Linear)):
                continue
            index, weight = (a.cpu().numpy() for a in stencil)
            seen = weight != 0
            # what has no weight stands for what has
            first = np.take_along_axis(index, seen.argmax(1)[:, None], 1)
            channel = np.where(seen, index, first) // points
            parts.append(_Seen(t, k, rows, rows + offset, index % points, weight, channel, seen))
            for tied in np.unique(np.sort(channel[~alone[t][rows]], axis=1), axis=0):
                leader[np.isin(leader, leader[tied])] = leader[tied].min()
                mixing.add(int(tied[0]))
        offset += len(operator.rows)
    chosen = sorted({int(leader[c]) for c in mixing})
    return [_group(operators, parts, leader == first, points) for first in chosen]


class _Seen(NamedTuple):
    r"""What the rows of a part see of the states of an hour."""

    hour: int
    part: int
    rows: NDArray[np.int64]  # (n), of the hour's operator
    which: NDArray[np.int64]  # (n), of all observations
    point: NDArray[np.int64]  # (n, k)
    weight: NDArray[np.float32]  # (n, k)
    channel: NDArray[np.int64]  # (n, k)
    seen: NDArray[np.bool_]  # (n, k)


def _group(
    operators: Sequence[Any], parts: list[_Seen], member: NDArray[np.bool_], points: int
) -> Mixed:
    r"""The rows that see any of some channels."""
    columns = ["variable", "level", "latitude", "longitude", "place", "gridded"]
    channels = np.flatnonzero(member).tolist()
    which, tables = [], []
    shared: dict[int, list[tuple[NDArray, ...]]] = {c: [] for c in channels}
    entries: dict[int, list[Entries]] = {c: [] for c in channels}
    count = 0
    for part in parts:
        chosen = member[part.channel[:, 0]]
        if not chosen.any():
            continue
        number = count + np.cumsum(chosen) - 1
        count += int(chosen.sum())
        which.append(part.which[chosen])
        operator = operators[part.hour]
        tables.append(operator.rows[columns].iloc[part.rows[chosen]].assign(hour=part.hour))
        linear = isinstance(operator.parts[part.part], Linear)
        for c in channels:
            i, j = np.nonzero(chosen[:, None] & part.seen & (part.channel == c))
            if not len(i):
                continue
            row, place = number[i], part.point[i, j] + points * part.hour
            if linear:
                shared[c].append((row, place, part.weight[i, j]))
            else:
                at = torch.from_numpy(i), torch.from_numpy(j)
                row, place = torch.from_numpy(row), torch.from_numpy(place)
                entries[c].append(Entries(row, place, None, (part.hour, part.part), at))
    for c, found in shared.items():
        if found:
            row, place, weight = (
                torch.from_numpy(np.concatenate(a)) for a in zip(*found, strict=True)
            )
            entries[c].append(Entries(row, place, weight[None]))
    table = pd.concat(tables, ignore_index=True)
    return Mixed(channels, torch.from_numpy(np.concatenate(which)), table, entries)
