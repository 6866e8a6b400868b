r"""Streaming over the hours of a store: blocks that fit in memory, reduced as a tree.

A store is cut into blocks of consecutive hours. Each is summarized on its own, in parallel, and the
summaries are merged eight at a time, so that a worker never holds more than a block of one
variable and the merging is as parallel as the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import StoreError
from ..progress import progress

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr
    from dask.distributed import Client

__all__ = ["BLOCK_BYTES", "cause", "connect", "load", "read", "reduce_blocks", "time_blocks"]

BLOCK_BYTES = 2**26  # a block of one variable: 64 MiB, or one hour where an hour is larger
FAN_IN = 8
TIMEOUT = 30  # seconds a scheduler has to answer
SPACE = ("level", "latitude", "longitude")

S = TypeVar("S")


def time_blocks(ds: xr.Dataset, longest: int = 720) -> list[tuple[int, int]]:
    r"""Cuts the hours of a dataset into blocks, as pairs `(start, stop)`.

    The largest variable of a block has at most :data:`BLOCK_BYTES`. Blocks end where the store's
    own chunks end, since a chunk is read whole or not at all.

    Arguments:
        ds: A dataset with a dimension `time`.
        longest: The most hours in a block.
    """
    hours, size, chunk = ds.sizes["time"], 1, 1
    for var in ds.data_vars.values():
        if "time" in var.dims:
            size = max(size, var.nbytes // max(hours, 1))
            chunk = max(chunk, _chunk(var))
    block = max(1, min(BLOCK_BYTES // size, longest))
    if chunk > 1:
        block = max(1, block // chunk) * chunk
    return [(start, min(start + block, hours)) for start in range(0, hours, block)]


def _chunk(var: xr.DataArray) -> int:
    r"""Hours in a chunk of a variable, as stored."""
    if var.chunks is not None:
        return max(var.chunks[var.dims.index("time")])
    return int(var.encoding.get("preferred_chunks", {}).get("time", 1))


def read(ds: xr.Dataset, name: str, start: int, stop: int) -> np.ndarray:
    r"""The values of a variable for a block of hours, time and level first.

    Returns:
        An array with shape :math:`(T, L, H, W)`, :math:`L = 1` without levels.
    """
    var = ds[name].isel(time=slice(start, stop))
    var = var.transpose("time", *(d for d in SPACE if d in var.dims))
    array = load(var)
    return array if "level" in var.dims else array[:, None]


def load(var: xr.DataArray) -> np.ndarray:
    r"""The values of a variable; those that cannot be read raise a :class:`StoreError`."""
    try:
        # A task reads in its own thread: a nested scheduler would oversubscribe the machine, or
        # wait for itself on a cluster.
        return var.load(scheduler="synchronous").to_numpy()
    except MemoryError:
        raise
    except Exception as error:  # each file system and codec has exceptions of its own
        first = last = ""
        if "time" in var.coords and var["time"].size:
            hours = var["time"].values.reshape(-1).astype("datetime64[h]")
            first, last = str(hours[0]), str(hours[-1])
        when = f" from {first} to {last}" if first != last else f" at {first}" if first else ""
        raise StoreError(
            f"{var.name}{when} cannot be read ({cause(error)}): the store is damaged or out of "
            "reach; `appa data check STORE` lists all such hours: fetch or write them again"
        ) from error


def cause(error: BaseException) -> str:
    r"""An error in a line."""
    lines = str(error).splitlines() or ["no reason"]
    return lines[0] if isinstance(error, StoreError) else f"{type(error).__name__}: {lines[0]}"


def reduce_blocks(
    work: Callable[[Any], S],
    merge: Callable[[list[S]], S],
    parts: Sequence[Any],
    *,
    scheduler: Any = None,
    workers: int | None = None,
    description: str | None = "reading",
    unit: str = "blocks",
) -> S:
    r"""Applies `work` to all parts and merges the results, keeping their order.

    Arguments:
        work: Summarizes a part.
        merge: Merges a list of consecutive summaries.
        parts: What to work on.
        scheduler: A `dask.distributed.Client`, the address of a Dask scheduler, or nothing for
            threads of this process.
        workers: The number of threads; as many as there are cores by default.
        description, unit: For the progress shown; none without a description.
    """
    if scheduler is not None:
        return _distributed(work, merge, parts, scheduler, description, unit)

    from dask.base import compute
    from dask.callbacks import Callback
    from dask.delayed import delayed

    leaf = delayed(work, pure=False)
    level = [leaf(part, dask_key_name=f"work-{i}") for i, part in enumerate(parts)]
    total = _tree(level, delayed(merge, pure=False))
    with _shown(len(parts), description, unit) as p:

        def count(key: Any, *_: Any) -> None:
            if p is not None and str(key).startswith("work-"):
                p.advance()

        with Callback(posttask=count):
            return compute(total, scheduler="threads", num_workers=workers)[0]


def connect(address: str) -> Client:
    r"""A client of the Dask scheduler at an address, such as `"tcp://host:8786"`."""
    from dask.distributed import Client
    from distributed.comm.addressing import get_address_host_port

    try:
        # A client of no address fails too, but then waits a minute for itself on exit.
        if not address.startswith("inproc://"):
            get_address_host_port(address)
        # As the default, one that does not answer would leave every later computation without.
        return Client(address, timeout=TIMEOUT, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise StoreError(
            f"no Dask scheduler answers at {address!r} ({error}); `dask scheduler` starts one and "
            "prints its address, such as tcp://host:8786"
        ) from error


def _distributed(
    work: Callable,
    merge: Callable,
    parts: Sequence,
    scheduler: Any,
    description: str | None,
    unit: str,
) -> Any:
    from dask.distributed import Client, as_completed

    client = scheduler if isinstance(scheduler, Client) else connect(scheduler)
    try:
        leaves = client.map(work, list(parts), pure=False)
        total = _tree(leaves, lambda group: client.submit(merge, group, pure=False))
        with _shown(len(parts), description, unit) as p:
            for future in as_completed(leaves, loop=client.loop):
                future.result()  # an error is raised as soon as it happens, not at the end
                if p is not None:
                    p.advance()
        return total.result()
    finally:
        if client is not scheduler:
            client.close()


def _shown(total: int, description: str | None, unit: str) -> Any:
    return progress(total, description, unit) if description else nullcontext()


def _tree(level: list, merge: Callable) -> Any:
    while True:
        level = [merge(level[i : i + FAN_IN]) for i in range(0, len(level), FAN_IN)]
        if len(level) == 1:
            return level[0]
