r"""The batches that every validation takes, so that its curve tells of the network alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ..data.clock import clock_features
from ..data.windows import WindowLoader

__all__ = ["Batch", "Validation"]

KEPT = 2**30  # bytes that are kept in memory, rather than read again

#: windows, their clock, and the place of each among all
Batch = tuple[Tensor, Tensor, list[int]]


class Validation:
    r"""Batches that are the same each time, with the place of their elements among all.

    Arguments:
        loader: The loader that reads them.
        count: The number of elements to take, on all ranks.
    """

    def __init__(self, loader: WindowLoader, count: int):
        self.loader = loader
        total = loader.batch_size * loader.world_size
        self.batches = min(len(loader), -(-count // total))
        nbytes = self.batches * loader.batch_size * loader.window * 4 * int(np.prod(loader.shape))
        self.kept: list[Batch] | None = None
        self.keeps = nbytes <= KEPT

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[Batch]:
        if self.kept is None:
            kept = self._read()
            if not self.keeps:
                yield from kept
                return
            self.kept = list(kept)
        yield from self.kept

    def _read(self) -> Iterator[Batch]:
        loader = self.loader
        loader.set_epoch(0)
        total = loader.batch_size * loader.world_size
        for k, (x, dates) in zip(range(self.batches), loader, strict=False):
            clock = torch.from_numpy(clock_features(dates)).float()
            first = k * total + loader.rank * len(x)
            yield x, clock, list(range(first, first + len(x)))
