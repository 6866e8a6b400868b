r"""Byte ranges of the files of a sharded Zarr array, as fast as the disk gives them.

A shard holds its chunks in any order. Its index, at its end, is a table of
:math:`(\text{offset}, \text{length})` as little-endian uint64, one row a chunk, all ones for a
chunk that was never written, followed by its CRC-32C.

`O_DIRECT` reads past the page cache, and asks for offset, length and memory aligned to the disk's
blocks. Chunks are not: the enclosing aligned range is read, into memory that each thread keeps.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import StoreError
from .aio import Queue

__all__ = ["BLOCK", "File", "Range", "Shards", "allocate", "read_ranges", "write_shard"]

ALIGNMENT = 4096  # bytes, a multiple of the logical block of any common disk
BLOCK = 8 << 20  # bytes to read at once; 4 to 16 MiB measure alike
FILES = 12  # shards of an array kept open: several stores of eleven stay below 1024 files
INDEXES = 4096  # shards of an array whose index is kept


class Shards:
    r"""The shards of an array, which is sharded along its first axis only.

    Arguments:
        path: The directory of the array.
        ndim: The number of dimensions of the array.
        chunks: The number of chunks in a shard.
        chunk_bytes: The size of every chunk, where it is known.
        direct: Whether to read past the page cache, where the file system allows.
    """

    def __init__(
        self,
        path: Path,
        ndim: int,
        chunks: int,
        chunk_bytes: int | None = None,
        direct: bool = True,
    ):
        self.path, self.key = path, "/".join(["c", "{}", *["0"] * (ndim - 1)])
        self.chunks, self.chunk_bytes = chunks, chunk_bytes
        self.direct = direct
        self.indexes, self.files = Cache(INDEXES), Cache(FILES)

    def locate(self, chunk: int) -> tuple[int, int, int]:
        r"""The shard that holds a chunk, the chunk's offset in it, negative if it was never
        written, and its length."""
        shard, chunk = divmod(chunk, self.chunks)
        offset, nbytes = self.index(shard)[chunk].tolist()
        return shard, offset, nbytes

    def index(self, shard: int) -> np.ndarray:
        r"""The offset and length of each chunk of a shard, with shape :math:`(n, 2)`."""
        return self.indexes.get(shard, self._index)

    def file(self, shard: int) -> File:
        r"""The open file of a shard."""
        return self.files.get(shard, self._file)

    def _file(self, shard: int) -> File:
        return File(self.path / self.key.format(shard), self.direct)

    def _index(self, shard: int) -> np.ndarray:
        r"""The offset and length of each chunk; a shard that does not exist has none."""
        import google_crc32c

        try:
            file = self.file(shard)
        except FileNotFoundError:
            return np.full((self.chunks, 2), -1)

        size, length = os.fstat(file.fd).st_size, 16 * self.chunks + 4
        if size < length:
            raise file.damaged(f"it has {size} bytes, less than its index ({length} bytes)")
        buffer, skip = file.read(size - length, length)
        data = buffer[skip : skip + length]
        if google_crc32c.value(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise file.damaged("its index does not match its checksum")

        index = np.frombuffer(data, "<i8", 2 * self.chunks).reshape(-1, 2)
        offset, nbytes = index[index[:, 0] >= 0].T
        if self.chunk_bytes is not None and (nbytes != self.chunk_bytes).any():
            raise file.damaged(f"it has chunks of {nbytes.min()} bytes, not {self.chunk_bytes}")
        if (offset + nbytes > size - length).any():
            raise file.damaged(f"it has {size} bytes, less than its index says")
        return index


class Cache:
    r"""The last `size` things made, by their number, for several threads.

    `functools.lru_cache` of a method would refer to its object, which would then keep its files
    open until the garbage collector comes by.
    """

    def __init__(self, size: int):
        self.size, self.lock = size, threading.Lock()
        self.made: OrderedDict[int, Any] = OrderedDict()

    def get(self, key: int, make: Callable[[int], Any]) -> Any:
        with self.lock:
            if key in self.made:
                self.made.move_to_end(key)
                return self.made[key]
        made = make(key)  # twice, now and then, rather than one thread waiting for another
        with self.lock:
            self.made[key] = made
            while len(self.made) > self.size:
                self.made.popitem(last=False)
        return made


class File:
    r"""An open file, closed once nothing refers to it.

    Arguments:
        path: The file.
        direct: Whether to read past the page cache, where the file system allows.
    """

    def __init__(self, path: Path, direct: bool):
        self.path, self.fd, self.direct = path, -1, direct and hasattr(os, "O_DIRECT")
        try:
            self.fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if self.direct else 0))
        except OSError as error:
            if error.errno == errno.EMFILE:
                raise StoreError(
                    f"cannot open {path}: this process has too many files open; raise the limit, "
                    "e.g. with ulimit -n 8192, or keep fewer stores and loaders alive"
                ) from error
            if not self.direct or error.errno != errno.EINVAL:
                raise
            self.fd, self.direct = os.open(path, os.O_RDONLY), False

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    def read(self, offset: int, nbytes: int) -> tuple[mmap.mmap, int]:
        r"""Reads a range of the file, see :func:`read_ranges`."""
        buffer, (at,) = read_ranges([Range(self, offset, nbytes)])
        return buffer, at

    def read_into(self, buffer: mmap.mmap, at: int, offset: int, nbytes: int, length: int) -> None:
        r"""Reads at least `nbytes` and at most `length` bytes into a buffer."""
        done, direct = 0, self.direct
        try:
            while done < nbytes:
                view = memoryview(buffer)[at + done : at + length]
                n = os.preadv(self.fd, [view], offset + done)
                if n == 0:
                    raise self.damaged(
                        f"it ends at {offset + done} bytes, before {offset + nbytes}"
                    )
                done += n
        except OSError as error:
            if not direct or error.errno != errno.EINVAL:
                raise StoreError(
                    f"cannot read {self.path} ({error}); check the disk, or copy the store again"
                ) from error
            # Some file systems accept O_DIRECT and then refuse to read.
            import fcntl

            fcntl.fcntl(self.fd, fcntl.F_SETFL, os.O_RDONLY)
            self.direct = False
            self.read_into(buffer, at, offset, nbytes, length)

    def damaged(self, found: str) -> StoreError:
        return StoreError(
            f"{self.path} is damaged: {found}. Write the store again, e.g. delete it and rerun "
            "the command that made it"
        )


def write_shard(path: Path, values: np.ndarray, chunks: int) -> None:
    r"""Writes a shard of uncompressed chunks, whole or not at all.

    By hand, since Zarr takes chunk by chunk through its codecs: for hours of 240 kB this is three
    times as fast on one thread and five times on four, which wait for each other in Zarr.

    Arguments:
        path: The file.
        values: The chunks, one after another, with shape :math:`(n, ...)` and :math:`n` at most
            `chunks`.
        chunks: The number of chunks a shard has room for.
    """
    import google_crc32c

    values = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    nbytes = values[0].nbytes
    index = np.full((chunks, 2), -1, "<i8")
    index[: len(values), 0] = nbytes * np.arange(len(values))
    index[: len(values), 1] = nbytes
    table = index.tobytes()

    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.partial")
    try:
        with open(part, "wb") as file:
            file.write(values.data)
            file.write(table)
            file.write(google_crc32c.value(table).to_bytes(4, "little"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


class Range(NamedTuple):
    r"""A range of a file."""

    file: File
    offset: int
    nbytes: int


def read_ranges(ranges: Sequence[Range]) -> tuple[mmap.mmap, list[int]]:
    r"""Reads ranges of files, several at once where that is possible.

    Returns:
        This thread's buffer, and where in it each range starts. The next read overwrites it.
    """
    skips = [offset % ALIGNMENT for _, offset, _ in ranges]
    needed = [skip + nbytes for skip, (_, _, nbytes) in zip(skips, ranges, strict=True)]
    lengths = [-(-n // ALIGNMENT) * ALIGNMENT for n in needed]
    places = [0, *itertools.accumulate(lengths)]
    offsets = [offset - skip for skip, (_, offset, _) in zip(skips, ranges, strict=True)]
    buffer = scratch(places.pop())

    done = [0] * len(ranges)
    if len(ranges) > 1 and all(file.direct for file, _, _ in ranges) and (queue := aio_queue()):
        addresses = [local.address + place for place in places]
        done = queue.read([file.fd for file, _, _ in ranges], offsets, lengths, addresses)
    for i, (file, _, _) in enumerate(ranges):
        if done[i] < needed[i]:
            file.read_into(buffer, places[i], offsets[i], needed[i], lengths[i])
    return buffer, [place + skip for place, skip in zip(places, skips, strict=True)]


local = threading.local()


def scratch(nbytes: int) -> mmap.mmap:
    r"""This thread's buffer, aligned to pages."""
    buffer = getattr(local, "buffer", None)
    if buffer is None or len(buffer) < nbytes:
        buffer = local.buffer = allocate(max(nbytes, BLOCK + 2 * ALIGNMENT))
        local.address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    return buffer


def aio_queue() -> Queue | None:
    r"""This thread's queue of reads, if the system has any."""
    if not hasattr(local, "queue"):
        try:
            local.queue = Queue()
        except OSError:
            local.queue = None
    return local.queue


def allocate(nbytes: int) -> mmap.mmap:
    r"""Memory of its own, in huge pages where there are any: the kernel then maps, and pins for
    direct reads, a few pages in place of thousands."""
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, nbytes)
    # Private: shared, as is the default, a forked process would read into its parent's memory.
    buffer = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without
            buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer
