r"""Systems of observations that are of one channel each, see :mod:`appa.observations.residual`.

In whitened units :math:`H` reads the fields of a channel, over the hours of a period, at four
corners around each place; its rows are divided by errors and multiplied by the deviation of
:math:`r`, so that fields have unit variance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..solvers import Solution, cg
from .blocks import Blocks, Inverses
from .errors import corners, kinds_of, parts_of, places_std
from .harmonics import Alike, Correlated
from .representation import Representation
from .stencils import StateSpace

__all__ = ["Piece", "Places", "Rows", "System", "by_channel", "rows_of"]

# Where a channel was observed: the hour, which rows of its operator, which of all observations.
Piece = tuple[int, NDArray[np.int64], NDArray[np.int64]]


@dataclass
class Rows:
    r"""The observations of a channel: :math:`H` in whitened units, of fields of unit variance."""

    place: Tensor  # (n, 4), of the period's fields, flattened
    weight: Tensor  # (n, 4)
    blocks: Blocks
    which: Tensor  # (n), of all observations

    def to(self, device: torch.device) -> Rows:
        place, weight, which = (t.to(device) for t in (self.place, self.weight, self.which))
        return Rows(place, weight, self.blocks.to(device), which)

    def alike(self, other: Rows) -> bool:
        r"""Whether both are of the same places and hours."""
        if not torch.equal(self.place, other.place):
            return False
        rows = ([rows for rows, _ in r.blocks.blocks] for r in (self, other))
        return all(torch.equal(a, b) for a, b in zip_longest(*rows, fillvalue=self.place))


class System:
    r"""The systems :math:`(H B H^\top + I) x = b` of channels that are observed alike.

    Arguments:
        rows: The observations of each channel, :math:`K` of them.
        priors: Their correlations.
        shape: That of the fields of a channel, :math:`(L, H, W)`.
    """

    def __init__(self, rows: Sequence[Rows], priors: Sequence[Correlated], shape: Sequence[int]):
        self.place, self.shape = rows[0].place, tuple(shape)
        self.weight = torch.stack([r.weight for r in rows])[:, None]
        self.which = torch.stack([r.which for r in rows])
        self.prior, self.inverses = Alike(priors), Inverses([r.blocks for r in rows])

    def observe(self, u: Tensor) -> Tensor:
        r"""The products :math:`H u` with fields :math:`(K, M, L, H, W)`."""
        flat = u.flatten(2).index_select(2, self.place.flatten())
        return (flat.unflatten(2, self.place.shape) * self.weight).sum(-1)

    def spread(self, v: Tensor) -> Tensor:
        r"""The products :math:`B H^\top v` with vectors :math:`(K, M, n)`."""
        flat = v.new_zeros(*v.shape[:2], math.prod(self.shape))
        parts = (v.unsqueeze(-1) * self.weight).flatten(2)
        flat.index_add_(2, self.place.flatten(), parts)
        return self.prior.matmul(flat.unflatten(2, self.shape))

    def solve(self, b: Tensor, iterations: int, tolerance: float) -> Solution:
        r"""Solutions of :math:`(K, M, n)`, as :math:`(K M, n)`."""
        lead = b.shape[:2]

        def product(v: Tensor) -> Tensor:
            return v + self.observe(self.spread(v.unflatten(0, lead))).flatten(0, 1)

        def precondition(v: Tensor) -> Tensor:
            return self.inverses.matmul(v.unflatten(0, lead)).flatten(0, 1)

        return cg(product, b.flatten(0, 1), iterations, tolerance, precondition)


def by_channel(operators: Sequence[Any], space: StateSpace) -> dict[int, list[Piece]]:
    r"""The observations of each channel that are of it alone."""
    found: dict[int, list[Piece]] = {}
    offset = 0
    for t, operator in enumerate(operators):
        if operator is None:
            continue
        kinds, keys = kinds_of(operator.rows)
        for kind, (name, level) in enumerate(keys):
            shares = parts_of(space, name, level)
            if shares is not None and len(shares) == 1:
                which = np.flatnonzero(kinds == kind)
                found.setdefault(next(iter(shares)), []).append((t, which, which + offset))
        offset += len(operator.rows)
    return found


@dataclass
class Places:
    r"""Where and how well all observations of a period were made, one hour after the other. Tables
    are slow to take rows from, and channels are many."""

    hour: NDArray[np.int64]
    latitude: NDArray[np.float64]
    longitude: NDArray[np.float64]
    group: NDArray[np.int64]  # those of one place share one
    error: NDArray[np.float64]

    @classmethod
    def of(cls, operators: Sequence[Any]) -> Places:
        r"""Those of hours, :py:`None` where nothing was seen; of one or more."""
        seen = [(t, operator) for t, operator in enumerate(operators) if operator is not None]
        columns = ["latitude", "longitude", "place", "gridded"]
        table = pd.concat([operator.rows[columns] for _, operator in seen])
        return cls(
            np.repeat([t for t, _ in seen], [len(operator.rows) for _, operator in seen]),
            table["latitude"].to_numpy(np.float64),
            table["longitude"].to_numpy(np.float64),
            table.groupby(columns[2:], sort=False).ngroup().to_numpy(),
            np.concatenate([operator.error.double().cpu().numpy() for _, operator in seen]),
        )


def rows_of(
    places: Places,
    pieces: list[Piece],
    rep: Representation,
    space: StateSpace,
    channel: int,
    correlation: Tensor,
) -> Rows:
    r"""The observations of a channel, in the order of their hours."""
    points = int(np.prod(rep.grid.shape))
    which = np.concatenate([every for _, _, every in pieces])
    hour = places.hour[which]
    latitude, longitude = places.latitude[which], places.longitude[which]
    index, weight = corners(rep, space, channel, latitude, longitude)
    scale = (space.std[channel] / places.error[which])[:, None]
    weight = weight * scale * rep.std[channel].reshape(-1)[index]
    std = places_std(rep, space, channel, latitude, longitude) * scale[:, 0]
    blocks = Blocks(
        places.group[which], hour, std, np.zeros_like(hour), correlation.cpu().numpy()[None]
    )
    return Rows(
        torch.from_numpy(index + points * hour[:, None]),
        torch.from_numpy(weight).float(),
        blocks,
        torch.from_numpy(which),
    )
