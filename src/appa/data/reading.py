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
from collections.abc import Sequence
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
    "open_array",
    "read_together",
]

PACKED = {"scale_factor", "add_offset", "missing_value"}  # attributes that change values
NAN = "AAAAAAAA+H8="  # how xarray writes NaN into attributes
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
    r"""What to subtract from the channels of a piece, and what to multiply them with, both with
    shape :math:`(c, 1)`."""

    mean: np.ndarray
    scale: np.ndarray


def put(x: np.ndarray, out: np.ndarray, moments: Moments | None, own: bool = True) -> None:
    r"""Puts values in their place, standardized on the way.

    Arguments:
        x: The values, with shape :math:`(h, c, N)`.
        out: Their place, with the same shape.
        moments: What standardizes them, if anything.
        own: Whether `x` may be overwritten. It is in cache, unlike `out`.
    """
    if moments is None:
        if x is not out:
            np.copyto(out, x, casting="same_kind")
    else:
        place = x if own and x.dtype == out.dtype else None
        centred = np.subtract(x, moments.mean, out=place, dtype=np.float32, casting="same_kind")
        np.multiply(centred, moments.scale, out=out)


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
        self, start: int, piece: Piece, out: np.ndarray, moments: Moments | None = None
    ) -> None:
        r"""Reads a piece of the window that starts at hour `start` into `out`, with shape
        :math:`(h_1 - h_0, c_1 - c_0, N)`, standardized."""
        hours = slice(start + piece.h0, start + piece.h1)
        try:
            x = self.array.isel({self.array.dims[0]: hours}).values
        except Exception as error:  # each file system and codec has exceptions of its own
            raise StoreError(
                f"cannot read {self.array.name!r} at hours {hours.start} to {hours.stop - 1} of "
                f"the store ({type(error).__name__}: {error}); check it with `appa data check`"
            ) from error
        put(x.reshape(out.shape), out, moments, own=False)


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

    def put(
        self, run: Run, data: mmap.mmap, at: int, out: np.ndarray, moments: Moments | None
    ) -> None:
        r"""Puts the values of a run, which are in `data` from `at` on, in their place."""
        target = out[run.h0 : run.h1]
        put(np.frombuffer(data, self.dtype, target.size, at).reshape(target.shape), target, moments)

    def read(
        self, start: int, piece: Piece, out: np.ndarray, moments: Moments | None = None
    ) -> None:
        r"""Reads a piece of the window that starts at hour `start` into `out`, with shape
        :math:`(h_1 - h_0, c_1 - c_0, N)`, standardized."""
        read_together([(self, start, piece, out, moments)])


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

    def put(
        self, run: Run, data: mmap.mmap, at: int, out: np.ndarray, moments: Moments | None
    ) -> None:
        r"""Decodes the values of a run, which are in `data` from `at` on, to their place."""
        assert run.range is not None
        codec = importlib.import_module(f"numcodecs.{self.codecs[0]['name']}")  # blosc or zstd
        target, file, nbytes = out[run.h0 : run.h1], run.range.file, run.range.nbytes
        in_place = self.whole and self.dtype == target.dtype
        x = target if in_place else np.empty(self.hour_bytes // self.dtype.itemsize, self.dtype)
        try:
            codec.decompress(memoryview(data)[at : at + nbytes], x)
        except (RuntimeError, ValueError) as error:
            raise file.damaged(f"a chunk cannot be decoded ({error})") from error
        put(x if in_place else x.reshape(1, -1, self.cells)[:, self.rows], target, moments)


def read_together(
    parts: Sequence[tuple[ShardedArray, int, Piece, np.ndarray, Moments | None]],
) -> None:
    r"""Reads pieces of several arrays at once, see :meth:`ShardedArray.read`.

    Arguments:
        parts: Arrays, the first hour of a window, the piece to read of it, where that goes, and
            what standardizes it.
    """
    runs = [(part, run) for part in parts for run in part[0].runs(part[1], part[2])]
    data, places = read_ranges([run.range for _, run in runs if run.range is not None])
    following = iter(places)
    for (array, _, _, out, moments), run in runs:
        if run.range is not None:
            array.put(run, data, next(following), out, moments)
        else:
            target = out[run.h0 : run.h1]
            put(np.full(target.shape, array.fill_value, np.float32), target, moments)


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
