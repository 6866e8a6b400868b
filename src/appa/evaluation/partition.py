r"""Parts of an ensemble that fit in memory, whatever its chunks.

A part is a box of hours, levels, rows and columns, with all members: scores need them together.
With :math:`c` the chunk of a store and :math:`s` the box, both by dimension,

1. :math:`s = c`, since a chunk is read whole or not at all;
2. where :math:`M \prod s` values are more than memory allows, the box is cut, hours first, and
   chunks are read several times;
3. where they are few, it grows by whole chunks, in space first and along time last.

Sums over points add up over boxes. What is in a store stays there until a part is read: to join
runs, or to give one a dimension more, xarray would read all of it, but for Dask arrays
(:func:`lazily`). Parts go to a Dask cluster where a client is active and what
would have to be sent along is small: a lazy store is, an ensemble in memory is not.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import xarray as xr

from ..data.reduction import BLOCK_BYTES

__all__ = [
    "Part",
    "active_client",
    "boxes",
    "lazily",
    "parts_of",
    "stored_chunks",
    "with_dimension",
]

SENT = 2**24  # bytes that go along with every task
CUT = ("time", "level", "latitude", "longitude")  # the first are cut first, the last grow first


class Part(NamedTuple):
    r"""A box of a variable."""

    name: str
    levels: tuple[Any, ...]
    hours: slice
    rows: slice
    columns: slice


def stored_chunks(var: xr.DataArray) -> dict[str, int]:
    r"""The chunk of a variable as stored or as Dask has it; single hours and levels without."""
    found = {}
    for dim, size in var.sizes.items():
        default = size if dim in ("latitude", "longitude") else 1
        if var.chunks is not None:
            found[str(dim)] = max(var.chunks[var.dims.index(dim)])
        else:
            kept = var.encoding.get("preferred_chunks", {})
            found[str(dim)] = min(size, int(kept.get(dim, default)))
    return found


def boxes(
    sizes: Mapping[str, int], chunks: Mapping[str, int], value: int, block: int, most: int
) -> dict[str, int]:
    r"""The box that a variable is cut into.

    Arguments:
        sizes: The size of each of the dimensions `time`, `level`, `latitude` and `longitude`.
        chunks: The chunks of those that have any.
        value: The bytes at a point, of all members.
        block: The bytes a box should have.
        most: The bytes it may have at most.
    """
    box = {dim: max(1, min(sizes[dim], chunks.get(dim, 1))) for dim in CUT}

    def cost() -> int:
        return value * math.prod(box.values())

    for dim in CUT:
        if cost() > most:
            box[dim] = max(1, box[dim] * most // cost())
    for dim in reversed(CUT):
        box[dim] = min(sizes[dim], box[dim] * max(1, block // cost()))
    return box


def parts_of(
    var: xr.DataArray, name: str, levels: Sequence[Any], members: int, block: int, most: int
) -> Iterator[Part]:
    r"""Cuts the chosen levels of a variable into boxes, a box's neighbour in time last."""
    sizes = {dim: var.sizes.get(dim, 1) for dim in CUT} | {"level": len(levels)}
    box = boxes(sizes, stored_chunks(var), members * var.dtype.itemsize, block, most)
    for t in range(0, sizes["time"], box["time"]):
        for k in range(0, len(levels), box["level"]):
            for i in range(0, sizes["latitude"], box["latitude"]):
                for j in range(0, sizes["longitude"], box["longitude"]):
                    yield Part(
                        name,
                        tuple(levels[k : k + box["level"]]),
                        slice(t, min(t + box["time"], sizes["time"])),
                        slice(i, i + box["latitude"]),
                        slice(j, j + box["longitude"]),
                    )


def lazily(ds: xr.Dataset) -> xr.Dataset:
    r"""A dataset whose variables in a store are Dask arrays, in boxes as parts are; nothing is
    read. Those in memory, and those that are Dask arrays, stay as they are."""
    found = {}
    for name, var in ds.data_vars.items():
        if var.chunks is not None or var.variable._in_memory:
            continue
        kept = {"member": 1} | var.encoding.get("preferred_chunks", {})
        box = {dim: min(size, kept.get(dim, size)) for dim, size in var.sizes.items()}
        sizes = {dim: var.sizes.get(dim, 1) for dim in CUT}
        value = var.sizes.get("member", 1) * var.dtype.itemsize
        cut = boxes(sizes, stored_chunks(var), value, BLOCK_BYTES, 4 * BLOCK_BYTES)
        box |= {dim: size for dim, size in cut.items() if dim in box}
        found[name] = var.chunk(box)
    return ds.assign(found)


def with_dimension(ds: xr.Dataset, dim: str) -> xr.Dataset:
    r"""A dataset with a dimension of one more, where it lacks it; nothing is read."""
    return ds if dim in ds.dims else lazily(ds).expand_dims(dim)


def active_client(*sent: Any) -> Any:
    r"""The Dask client that is active, if any, and if what would be sent to its workers is small.

    Arguments:
        sent: What every task needs.
    """
    distributed = sys.modules.get("distributed")
    if distributed is None:  # nobody has made a client
        return None
    try:
        client = distributed.Client.current(allow_global=True)
    except ValueError:
        return None

    import cloudpickle

    buffers: list[Any] = []
    try:  # arrays are counted, not copied
        size = len(cloudpickle.dumps(sent, protocol=5, buffer_callback=buffers.append))
    except Exception:  # an open file, a lock: only this process can read it
        return None
    return client if size + sum(b.raw().nbytes for b in buffers) <= SENT else None
