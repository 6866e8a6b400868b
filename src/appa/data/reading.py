r"""Reading hours of an array into their place in a batch.

A Zarr v3 array in the layout of :mod:`appa.data.writing` has an hour a chunk. Without compression
an hour is a range of bytes of one file: :class:`ShardedArray` reads it straight from there, a few
MiB at a time, and copies from what was just read to the batch. Consecutive hours are one read
where they are small; channels are read apart where an hour is large. With compression,
:class:`CompressedArray` reads and decodes the chunk. Reading, decoding and arithmetic release the
interpreter's lock, so threads suffice to keep a disk busy.

:class:`LazyArray` reads anything else through xarray.
"""

from __future__ import annotations

import importlib
import itertools
import json
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from ..errors import StoreError
from . import shards
from .shards import Range, Shards, read_ranges
from .variables import conversion

__all__ = [
    "CompressedArray",
    "LazyArray",
    "Moments",
    "Piece",
    "ShardedArray",
    "finite",
    "open_array",
    "read_together",
]

PACKED = {"scale_factor", "add_offset", "missing_value"}  # attributes that change values
NAN = "AAAAAAAA+H8="  # how xarray writes NaN into attributes
CACHED = 1 << 18  # values; three passes over them, 1 MiB, take a quarter less time than over 8 MiB
KEYS = {"name": "default", "configuration": {"separator": "/"}}


class Piece(NamedTuple):
    r"""A part of a window that is read at once: hours :math:`[h_0, h_1)`, channels
    :math:`[c_0, c_1)`."""

    h0: int
    h1: int
    c0: int
    c1: int


class Run(NamedTuple):
    r"""Hours :math:`[h_0, h_1)` of a piece that are one range of a file, or were never written."""

    h0: int
    h1: int
    range: Range | None


class Moments(NamedTuple):
    r"""What standardizes a piece.

    Arguments:
        mean: What to subtract from each channel, with shape :math:`(c, 1)`.
        scale: What to multiply each channel with, with shape :math:`(c, 1)`.
        undefined: Where NaN is the mean, with shape :math:`(N)`, or nowhere.
    """

    mean: np.ndarray
    scale: np.ndarray
    undefined: np.ndarray | None = None


def put(x: np.ndarray, out: np.ndarray, moments: Moments | None, check: bool = False) -> bool:
    r"""Puts values in their place, standardized.

    Arguments:
        x: The values, with shape :math:`(h, c, N)`.
        out: Their place, with the same shape.
        moments: What standardizes them. If :py:`None`, they are copied as they are.
        check: Whether to look for values that are still undefined.

    Returns:
        False if there are any.
    """
    if moments is None:
        if x is not out:
            np.copyto(out, x, casting="same_kind")
        return True

    defined = True
    for h, c, n in cut(x.shape):
        y = out[h, c, n]
        np.subtract(x[h, c, n], moments.mean[c], out=y, casting="same_kind")
        np.multiply(y, moments.scale[c], out=y)
        if moments.undefined is not None:
            np.copyto(y, 0, where=np.isnan(y) & moments.undefined[n])
        defined &= not check or finite(y)
    return defined


def cut(shape: tuple[int, ...]) -> Iterator[tuple[slice, slice, slice]]:
    r"""Cuts an array with shape :math:`(h, c, N)` into parts that stay in cache."""
    hours, channels, cells = shape
    n = min(cells, CACHED)
    c = min(channels, max(1, CACHED // cells))
    h = max(1, CACHED // (cells * channels))
    for i, j, k in itertools.product(range(0, hours, h), range(0, channels, c), range(0, cells, n)):
        yield slice(i, i + h), slice(j, j + c), slice(k, k + n)


def finite(x: np.ndarray) -> bool:
    r"""Whether all values are finite, without a mask in memory and faster than by their sum."""
    return bool(x.max() < np.inf and x.min() > -np.inf)  # both are false of NaN


class LazyArray:
    r"""Reads windows of an array through xarray, whatever holds it.

    Arguments:
        array: The array, with shape :math:`(T, H, W)` or :math:`(T, C, H, W)`.
        channels: The indices of the channels to read, or all.
    """

    def __init__(self, array: xr.DataArray, channels: Sequence[int] | None = None):
        if array.ndim == 4 and channels is not None:
            array = array.isel({array.dims[1]: list(channels)})
        self.array = array
        self.channels = array.shape[1] if array.ndim == 4 else 1
        self.cells = array.shape[-2] * array.shape[-1]

    def pieces(self, hours: int) -> list[Piece]:
        r"""How a window of so many hours is read: whole, as its chunks are unknown."""
        return [Piece(0, hours, 0, self.channels)]

    def read(
        self,
        start: int,
        piece: Piece,
        out: np.ndarray,
        moments: Moments | None = None,
        check: bool = False,
    ) -> bool:
        r"""Reads a piece of the window that starts at hour `start` into `out`, with shape
        :math:`(h_1 - h_0, c_1 - c_0, N)`, see :func:`put`."""
        hours = slice(start + piece.h0, start + piece.h1)
        try:
            x = self.array.isel({self.array.dims[0]: hours}).values
        except Exception as error:  # each file system and codec has exceptions of its own
            raise StoreError(
                f"cannot read {self.array.name!r} at hours {hours.start} to {hours.stop - 1} of "
                f"the store ({type(error).__name__}: {error}); check it with `appa data check`"
            ) from error
        return put(x.reshape(out.shape), out, moments, check)


class ShardedArray:
    r"""Reads windows of an array without compression from its files.

    Arguments:
        path: The directory of the array.
        metadata: The array's `zarr.json`.
        channels: The indices of the channels to read, or all.
    """

    def __init__(self, path: Path, metadata: dict[str, Any], channels: Sequence[int] | None = None):
        shape = metadata["shape"]
        (shard_hours, *_) = metadata["chunk_grid"]["configuration"]["chunk_shape"]
        codec, *self.codecs = metadata["codecs"][0]["configuration"]["codecs"]
        big = codec.get("configuration", {}).get("endian") == "big"

        self.dtype = np.dtype(metadata["data_type"]).newbyteorder(">" if big else "<")
        self.fill_value = float(metadata["fill_value"])
        self.cells = shape[-2] * shape[-1]
        self.row_bytes = self.cells * self.dtype.itemsize

        rows = list(range(shape[1] if len(shape) == 4 else 1))
        self.rows = rows if channels is None else list(channels)  # of a chunk, by channel
        self.whole = self.rows == rows
        self.channels = len(self.rows)
        self.hour_bytes = self.row_bytes * len(rows)

        known = None if self.codecs else self.hour_bytes
        self.shards = Shards(path, len(shape), shard_hours, known)

    def pieces(self, hours: int) -> list[Piece]:
        r"""How a window of so many hours is read."""
        if self.whole and self.hour_bytes <= shards.BLOCK:
            n = shards.BLOCK // self.hour_bytes
            return [Piece(h, min(h + n, hours), 0, self.channels) for h in range(0, hours, n)]

        n, bounds = max(1, shards.BLOCK // self.row_bytes), [0]
        for c in range(1, self.channels + 1):
            if (
                c == self.channels
                or c - bounds[-1] == n
                or self.rows[c] != self.rows[c - 1] + 1  # not adjacent in the chunk
            ):
                bounds.append(c)
        groups = list(itertools.pairwise(bounds))
        return [Piece(h, h + 1, c0, c1) for h in range(hours) for c0, c1 in groups]

    def runs(self, start: int, piece: Piece) -> list[Run]:
        r"""The byte ranges that hold a piece of the window that starts at hour `start`."""
        skip, nbytes = self.rows[piece.c0] * self.row_bytes, (piece.c1 - piece.c0) * self.row_bytes
        found: list[Run] = []
        for h in range(piece.h1 - piece.h0):
            shard, offset, length = self.shards.locate(start + piece.h0 + h)
            if offset < 0:
                found.append(Run(h, h + 1, None))
                continue
            if found and nbytes == length and found[-1].range is not None:
                last, (file, at, n) = found[-1], found[-1].range
                if file is self.shards.file(shard) and at + n == offset:
                    # Hours that follow one another in the file are one read.
                    found[-1] = Run(last.h0, h + 1, Range(file, at, n + nbytes))
                    continue
            found.append(Run(h, h + 1, Range(self.shards.file(shard), offset + skip, nbytes)))
        return found

    def values(self, run: Run, data: mmap.mmap, at: int, out: np.ndarray) -> np.ndarray:
        r"""The values of a run that is in `data` from `at` on, and goes to `out`."""
        return np.frombuffer(data, self.dtype, out.size, at).reshape(out.shape)

    def read(
        self,
        start: int,
        piece: Piece,
        out: np.ndarray,
        moments: Moments | None = None,
        check: bool = False,
    ) -> bool:
        r"""Reads a piece of the window that starts at hour `start` into `out`, with shape
        :math:`(h_1 - h_0, c_1 - c_0, N)`, see :func:`put`."""
        return read_together([(self, start, piece, out, moments)], check)


class CompressedArray(ShardedArray):
    r"""Reads windows of an array whose hours are compressed with Blosc or Zstandard."""

    def pieces(self, hours: int) -> list[Piece]:
        r"""How a window of so many hours is read: with all channels, which are decoded at once."""
        n = max(1, shards.BLOCK // self.hour_bytes)
        return [Piece(h, min(h + n, hours), 0, self.channels) for h in range(0, hours, n)]

    def runs(self, start: int, piece: Piece) -> list[Run]:
        r"""The byte ranges that hold a piece of the window that starts at hour `start`."""
        found = []
        for h in range(piece.h1 - piece.h0):
            shard, offset, nbytes = self.shards.locate(start + piece.h0 + h)
            stored = None if offset < 0 else Range(self.shards.file(shard), offset, nbytes)
            found.append(Run(h, h + 1, stored))
        return found

    def values(self, run: Run, data: mmap.mmap, at: int, out: np.ndarray) -> np.ndarray:
        r"""The values of a run that is in `data` from `at` on, and goes to `out`."""
        assert run.range is not None
        codec = importlib.import_module(f"numcodecs.{self.codecs[0]['name']}")  # blosc or zstd
        in_place = self.whole and self.dtype == out.dtype
        x = out if in_place else np.empty(self.hour_bytes // self.dtype.itemsize, self.dtype)
        try:
            codec.decompress(memoryview(data)[at : at + run.range.nbytes], x)
        except (RuntimeError, ValueError) as error:
            raise run.range.file.damaged(f"a chunk cannot be decoded ({error})") from error
        return x if in_place else x.reshape(1, -1, self.cells)[:, self.rows]


def read_together(
    parts: Sequence[tuple[ShardedArray, int, Piece, np.ndarray, Moments | None]],
    check: bool = False,
) -> bool:
    r"""Reads pieces of several arrays at once, see :meth:`ShardedArray.read`.

    Arguments:
        parts: Arrays, the first hour of a window, the piece to read of it, where that goes, and
            what standardizes it.
        check: Whether to look for values that are still undefined.

    Returns:
        False if there are any.
    """
    runs = [(part, run) for part in parts for run in part[0].runs(part[1], part[2])]
    data, places = read_ranges([run.range for _, run in runs if run.range is not None])
    following, defined = iter(places), True
    for (array, _, _, out, moments), run in runs:
        target = out[run.h0 : run.h1]
        if run.range is None:
            x = np.full(target.shape, array.fill_value, np.float32)
        else:
            x = array.values(run, data, next(following), target)
        defined &= put(x, target, moments, check)
    return defined


def open_array(path: str | Path, channels: Sequence[int] | None = None) -> ShardedArray | None:
    r"""The array in a local directory, or :py:`None` if its layout is not that of
    :mod:`appa.data.writing`.

    Arguments:
        path: The directory of the array.
        channels: The indices of the channels to read, or all.
    """
    path = Path(path)
    try:
        metadata = json.loads((path / "zarr.json").read_text())
        shape, (codec,) = metadata["shape"], metadata["codecs"]
        sharding = codec["configuration"]
        names = [c["name"] for c in sharding["codecs"]]
        matches = (
            metadata["zarr_format"] == 3
            and metadata["data_type"] in ("float16", "float32", "float64")
            and len(shape) in (3, 4)
            and metadata["chunk_grid"]["name"] == "regular"
            and metadata["chunk_grid"]["configuration"]["chunk_shape"][1:] == shape[1:]
            and metadata["chunk_key_encoding"] == KEYS
            and not metadata.get("storage_transformers")
            and PACKED.isdisjoint(metadata["attributes"])
            and conversion(path.name, metadata["attributes"].get("units")) == (1.0, 0.0)
            and metadata["attributes"].get("_FillValue", NAN) == NAN
            and codec["name"] == "sharding_indexed"
            and sharding["chunk_shape"] == [1, *shape[1:]]
            and sharding.get("index_location", "end") == "end"
            and [c["name"] for c in sharding["index_codecs"]] == ["bytes", "crc32c"]
            and sharding["index_codecs"][0]["configuration"]["endian"] == "little"
            and names in (["bytes"], ["bytes", "blosc"], ["bytes", "zstd"])
            and hasattr(os, "preadv")
        )
        if not matches:
            return None
        return (ShardedArray if len(names) == 1 else CompressedArray)(path, metadata, channels)
    except (OSError, ValueError, KeyError, TypeError):
        return None
