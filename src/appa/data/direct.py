r"""xarray's lazy arrays over direct reads.

Opened through Zarr, a variable of a store in the layout of :mod:`appa.data.writing` is read an
hour at a time through its codecs, which costs more than the disk does. Here the same hours are
ranges of bytes read by :mod:`appa.data.reading`, and everything that goes through
:func:`appa.open_store`, statistics and checks as well as a notebook, is as fast as the loader.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends.common import BackendArray
from xarray.core import indexing

from .reading import Piece, ShardedArray, open_array

__all__ = ["DirectArray", "with_direct_reads"]


class DirectArray(BackendArray):
    r"""A lazy array :math:`(T, [C,] H, W)` over the files of a Zarr array.

    Arguments:
        path: The directory of the array.
        shape: The array's shape.
    """

    def __init__(self, path: Path, shape: tuple[int, ...]):
        array = open_array(path)
        assert array is not None
        self.path, self.shape, self.array = path, shape, array
        self.dtype = np.dtype(np.float32)

    def __reduce__(self) -> Any:
        # Open files stay in their process.
        return DirectArray, (self.path, self.shape)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(
            key, self.shape, indexing.IndexingSupport.OUTER_1VECTOR, self._read
        )

    def _read(self, key: tuple[Any, ...]) -> np.ndarray:
        hours = np.arange(self.shape[0])[key[0]]
        rows = np.arange(self.array.channels)
        if len(self.shape) == 4:
            rows = rows[key[1]]
        c0, c1 = (int(rows.min()), int(rows.max()) + 1) if rows.size else (0, 0)

        out = np.empty((hours.size, c1 - c0, self.array.cells), self.dtype)
        for i, start, n in _runs(np.atleast_1d(hours)):
            for piece in self._pieces(n, c0, c1):
                target = out[i + piece.h0 : i + piece.h1, piece.c0 - c0 : piece.c1 - c0]
                self.array.read(start, piece, target, None)

        out = out.reshape(*hours.shape, c1 - c0, *self.shape[-2:])
        if len(self.shape) == 3:
            level: Any = 0
        elif np.array_equal(rows, np.arange(c0, c1)):
            level = slice(None)
        else:
            level = rows - c0
        return out[(..., level, slice(None), slice(None))][(..., *key[-2:])]

    def _pieces(self, hours: int, c0: int, c1: int) -> list[Piece]:
        if (c0, c1) == (0, self.array.channels):
            return self.array.pieces(hours)
        return [Piece(h, h + 1, c0, c1) for h in range(hours)] if c1 > c0 else []


def with_direct_reads(ds: xr.Dataset, path: str | Path) -> xr.Dataset:
    r"""The dataset of a local Zarr store, its variables read directly where their layout allows."""
    variables = {}
    for name, var in ds.variables.items():
        array = open_array(Path(path) / str(name)) if var.ndim >= 3 else None
        # Compressed hours need a whole hour's room: they stay with Zarr, which is as fast there.
        if array is not None and type(array) is ShardedArray and var.dtype == np.float32:
            lazy = indexing.LazilyIndexedArray(DirectArray(Path(path) / str(name), var.shape))
            variables[name] = xr.Variable(var.dims, lazy, var.attrs, var.encoding)
    return ds.assign(variables)


def _runs(hours: np.ndarray) -> Iterator[tuple[int, int, int]]:
    r"""Splits hours into runs of consecutive ones, as `(position, first hour, length)`."""
    if hours.size:
        breaks = np.flatnonzero(np.diff(hours) != 1) + 1
        for i, j in itertools.pairwise([0, *breaks.tolist(), hours.size]):
            yield i, int(hours[i]), j - i
