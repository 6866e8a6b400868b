r"""Windows of consecutive states or latents, for training.

A window is :math:`W` consecutive hours :math:`x^{s+1:s+W}` of a store that no gap in time and no
change of trajectory interrupts; :math:`W = 1` gives single states. An epoch visits every window
once, in an order drawn from the seed and the epoch's number alone: batch :math:`k` of rank
:math:`r` out of :math:`R` is a slice of that order,

.. math:: \pi_{(k R + r) B}, \dots, \pi_{(k R + r + 1) B - 1}

whatever the number of workers. Where an epoch stands is therefore one number.

Workers are threads. A local, uncompressed store in the layout of :mod:`appa.data.writing` is read
straight from its files (see :mod:`appa.data.reading`), any other through xarray.
"""

from __future__ import annotations

import itertools
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from ..errors import AppaError, DataError, StoreError
from . import shards
from .reading import ShardedArray
from .sources import Task, open_source, sources
from .states import Standardizer

__all__ = ["WindowLoader", "check_order", "find_hours", "runs"]

HOUR = np.timedelta64(1, "h")


def runs(times: np.ndarray, trajectory: np.ndarray | None = None) -> np.ndarray:
    r"""Finds the stretches of consecutive hours.

    Arguments:
        times: The dates, with shape :math:`(T)`.
        trajectory: The trajectory each date belongs to, with shape :math:`(T)`.

    Returns:
        The first and the past-the-end index of each stretch, with shape :math:`(N, 2)`.

    Example:
        >>> runs(np.array(["2021-01-01T00", "2021-01-01T01", "2021-01-01T07"], "datetime64[h]"))
        array([[0, 2],
               [2, 3]])
    """
    if len(times) == 0:
        return np.empty((0, 2), np.int64)
    broken = np.diff(times) != HOUR
    if trajectory is not None:
        broken |= np.diff(trajectory) != 0
    ends = np.flatnonzero(broken) + 1
    return np.stack([np.append(0, ends), np.append(ends, len(times))], axis=1)


def check_order(ds: xr.Dataset) -> None:
    r"""Raises where a store's time runs backwards: no split of it can be found."""
    times = ds["time"].values
    back = np.flatnonzero(np.diff(times) < np.timedelta64(0))
    if back.size:
        after, before = (str(times[back[0] + k].astype("datetime64[m]")) for k in (0, 1))
        raise DataError(
            f"the store's hours are out of order: {before} comes after {after}; sort them, e.g. "
            "ds.sortby('time'), and look for more with: appa data check STORE"
        )


def find_hours(ds: xr.Dataset, first: Any, last: Any) -> tuple[int, int]:
    r"""Where the hours between two dates are in a store, both included.

    Arguments:
        ds: The store.
        first: The first date, e.g. `"1993"`.
        last: The last date.

    Returns:
        The index of the first hour, and the one past the last.
    """
    check_order(ds)
    try:
        index = ds.indexes["time"].slice_indexer(first, last)
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(
            f"cannot find the hours from {first} to {last} in the store ({error}); give dates such "
            "as ('1993', '2019-12-31')"
        ) from error
    start, stop, _ = index.indices(ds.sizes["time"])
    return start, stop


class WindowLoader:
    r"""Iterates over batches of windows, in an order that a seed determines.

    Each iteration is one epoch, and the next one reshuffles. Batches are read ahead by threads,
    straight into the tensors that are handed out, whose memory is used again once they are
    dropped; at most `prefetch + 2` batches exist at a time, unless they are kept.

    Arguments:
        store: Anything :func:`appa.data.stores.open_store` opens, or a store with an array
            `latents` with dimensions `(time, channel, H, W)`.
        window: The number of hours :math:`W` in a window.
        batch_size: The number of windows :math:`B` in a batch, for each rank.
        standardizer: What standardizes the states, a :class:`appa.data.states.Standardizer` or
            the statistics of :mod:`appa.data.statistics`. If :py:`None`, values are as stored, NaN
            included, for instance to be standardized on the device.
        variables: The variables to read, by default those of the standardizer, or all.
        levels: The levels to read in hPa, by default those of the standardizer, or all.
        split: The first and last date, both included, e.g. `("1993", "2019")`. By default, all.
        shuffle: Whether windows come in random order, or in order of time.
        seed: The seed of that order.
        rank: The rank :math:`r` of this process.
        world_size: The number :math:`R` of processes; each has the same number of batches.
        workers: The number of threads.
        prefetch: The number of batches read ahead.
        drop_last: Whether to leave out the last windows, too few for a batch on every rank.
            Otherwise the last batch is smaller, and a few windows are repeated where ranks would
            else have different numbers of them.
        pin_memory: Whether batches are in pinned memory, where there is a CUDA device.
        direct: Whether to read past the page cache. By default, unless what is read fits in half
            the memory: then the first epoch fills the cache and the others do not touch the disk.

    Example:
        >>> loader = WindowLoader("era5.zarr", window=24, batch_size=4, split=("1993", "2019"))
        >>> for x, dates in loader:  # (4, 24, 71, 121, 240), (4, 24)
        ...     train_step(x)
        ...     state = loader.state_dict()
    """

    def __init__(
        self,
        store: str | Path | Sequence[str | Path] | xr.Dataset,
        window: int,
        batch_size: int,
        *,
        standardizer: Standardizer | xr.Dataset | None = None,
        variables: Sequence[str] | None = None,
        levels: Sequence[int] | None = None,
        split: tuple[Any, Any] | None = None,
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        workers: int = 4,
        prefetch: int = 2,
        drop_last: bool = True,
        pin_memory: bool = False,
        direct: bool | None = None,
    ):
        for name, value in (
            ("window", window),
            ("batch_size", batch_size),
            ("world_size", world_size),
            ("workers", workers),
            ("prefetch", prefetch),
        ):
            if value < 1:
                raise DataError(f"{name} must be 1 or more, found {value}")
        if not 0 <= rank < world_size:
            raise DataError(f"rank must be in 0 … {world_size - 1} (world_size - 1), found {rank}")

        self.window, self.batch_size = window, batch_size
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.rank, self.world_size = rank, world_size
        self.workers, self.prefetch = workers, prefetch
        self.pin_memory = pin_memory and torch.cuda.is_available()

        ds = open_source(store)
        times = ds["time"].values
        self.times = times.astype("datetime64[h]")
        if (self.times != times).any():
            off = times[self.times != times][0].astype("datetime64[m]")
            raise DataError(
                f"the store has a state at {off}, off the hour; the loader takes states on whole "
                "hours: select them, e.g. ds.sel(time=ds.time.dt.minute == 0), and give it that"
            )
        self.starts = self._starts(ds, split)
        self.sources = sources(store, ds, standardizer, variables, levels)
        self.shape = self._shape(ds)
        for source in self.sources:
            if isinstance(source.array, ShardedArray):
                source.array.shards.direct = self._direct() if direct is None else direct
        self.plan = self._plan()

        self.epoch = self.batch = 0
        self.resumed = False

        if len(self) == 0:
            raise DataError(
                f"{len(self.starts)} windows of {window} hours are too few for one batch of "
                f"{batch_size} windows on {world_size} rank(s); lower batch_size, or set "
                "drop_last=False"
            )

    # What is read

    def _starts(self, ds: xr.Dataset, split: tuple[Any, Any] | None) -> np.ndarray:
        start, stop = (0, len(self.times)) if split is None else find_hours(ds, *split)
        trajectory = ds["trajectory"].values[start:stop] if "trajectory" in ds.coords else None
        stretches = start + runs(self.times[start:stop], trajectory)
        lengths = stretches[:, 1] - stretches[:, 0]
        starts = [np.arange(i, j - self.window + 1) for i, j in stretches]

        if len(starts) == 0 or lengths.max() < self.window:
            found = ", ".join(map(str, np.sort(lengths)[::-1][:8])) or "none"
            within = f" from {split[0]} to {split[1]}" if split else ""
            raise DataError(
                f"no window of {self.window} hours in the store's {stop - start} hours{within}; "
                f"its longest stretches of consecutive hours have lengths: {found}. Choose a "
                "shorter window or another split; windows do not cross gaps, and need hourly states"
            )
        return np.concatenate(starts)

    def _shape(self, ds: xr.Dataset) -> tuple[int, int, int]:
        grids = {source.name: ds[source.name].shape[-2:] for source in self.sources}
        if len(set(grids.values())) > 1:
            raise DataError(f"the arrays of the store have different grids: {grids}")
        height, width = grids[self.sources[0].name]
        return sum(source.array.channels for source in self.sources), height, width

    def _direct(self) -> bool:
        hours = int(self.starts[-1] - self.starts[0]) + self.window
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return 4 * hours * int(np.prod(self.shape)) > memory / 2

    def _plan(self) -> list[Task]:
        r"""The work of a batch, in tasks of a few MiB: whole windows where they are small."""
        cells = int(np.prod(self.shape[1:]))
        n = shards.BLOCK // (4 * self.window * self.shape[0] * cells)
        pieces = [(s, piece) for s in self.sources for piece in s.array.pieces(self.window)]
        if n > 0:
            groups = [range(self.batch_size)[b : b + n] for b in range(0, self.batch_size, n)]
            return [Task([(b, *p) for b in group for p in pieces], whole=True) for group in groups]
        tasks, room = [], 0
        for b, (source, piece) in itertools.product(range(self.batch_size), pieces):
            nbytes = 4 * (piece.h1 - piece.h0) * (piece.c1 - piece.c0) * cells
            if nbytes > room:
                tasks.append([])
                room = shards.BLOCK
            tasks[-1].append((b, source, piece))
            room -= nbytes
        return [Task(items) for items in tasks]

    # In which order

    def __len__(self) -> int:
        r"""The number of batches in an epoch, the same on each rank."""
        total = self.batch_size * self.world_size
        return len(self.starts) // total if self.drop_last else -(-len(self.starts) // total)

    def order(self, epoch: int) -> np.ndarray:
        r"""The first hour of each window, in the epoch's order."""
        if not self.shuffle:
            return self.starts
        return np.random.default_rng([self.seed, epoch]).permutation(self.starts)

    def _batch(self, order: np.ndarray, k: int) -> np.ndarray:
        total = self.batch_size * self.world_size
        part = order[k * total : (k + 1) * total]
        n = -(-len(part) // self.world_size)
        if len(part) < n * self.world_size:  # the last batch, and drop_last is off
            part = np.append(part, np.resize(order, n * self.world_size - len(part)))
        return part[self.rank * n : (self.rank + 1) * n]

    def set_epoch(self, epoch: int) -> None:
        r"""Chooses the epoch of the next iteration. The current one keeps its position."""
        if epoch != self.epoch:
            self.epoch, self.batch, self.resumed = epoch, 0, False

    def state_dict(self) -> dict[str, Any]:
        r"""Where the epoch stands, after the last batch that was handed out."""
        return {
            "epoch": self.epoch,
            "windows_done": self.batch * self.batch_size * self.world_size,
            **self._identity(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        r"""Makes the next iteration continue where the state was taken.

        The number of workers may differ, and the number of ranks and the batch size too if their
        product divides the number of windows done.
        """
        found = self._identity()
        different = [
            f"{k} was {state.get(k)}, is {v}" for k, v in found.items() if state.get(k) != v
        ]
        if different:
            raise DataError(
                f"cannot resume: {'; '.join(different)}. Resume with the settings and the store "
                "of the interrupted run"
            )
        total = self.batch_size * self.world_size
        batch, rest = divmod(state["windows_done"], total)
        if rest:
            raise DataError(
                f"cannot resume after {state['windows_done']} windows with batches of "
                f"{self.batch_size} windows on {self.world_size} rank(s): choose batch_size × "
                "world_size so that it divides that number, e.g. as in the interrupted run"
            )
        self.epoch, self.batch, self.resumed = state["epoch"], batch, True

    def _identity(self) -> dict[str, Any]:
        r"""What must not change for the order to stay the same."""
        return {
            "window": self.window,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "windows": len(self.starts),
            "first": str(self.times[self.starts[0]]),
            "last": str(self.times[self.starts[-1]]),
        }

    # Iteration

    def __iter__(self) -> Iterator[tuple[Tensor, np.ndarray]]:
        r"""Iterates over the rest of the epoch after :meth:`load_state_dict`, else over all of it.

        Returns:
            Batches of states or latents, with shape :math:`(B, W, C, H, W')`, and their dates,
            datetime64[h] with shape :math:`(B, W)`.
        """
        first = self.batch if self.resumed else 0
        self.batch, self.resumed = first, False
        epoch, total = self.epoch, len(self)
        order, hours = self.order(epoch), np.arange(self.window)
        memory = Memory((self.batch_size, self.window, *self.shape), self.pin_memory)
        executor = ThreadPoolExecutor(self.workers, thread_name_prefix="appa-windows")
        ahead: deque[Batch] = deque()
        try:
            for k in range(first, total):
                # One batch for now, `prefetch` batches for later.
                while len(ahead) <= self.prefetch and k + len(ahead) < total:
                    starts = self._batch(order, k + len(ahead))
                    ahead.append(Batch(starts, self.plan, memory, executor))
                dates = self.times[ahead[0].starts[:, None] + hours]
                ahead[0].wait()
                self.batch = k + 1
                # No name here may hold a batch while another is read: its memory is used again.
                yield ahead.popleft().tensor, dates
            self.epoch, self.batch = epoch + 1, 0
        finally:
            executor.shutdown(wait=False, cancel_futures=True)

    def __repr__(self) -> str:
        fast = sum(isinstance(s.array, ShardedArray) for s in self.sources)
        return (
            f"{type(self).__name__}({len(self.starts)} windows of {self.window} × {self.shape}, "
            f"{len(self)} batches of {self.batch_size}, {fast} of {len(self.sources)} arrays "
            "read directly)"
        )


class Memory:
    r"""The memory of batches, used again once the tensor it is in and all its views are gone.

    Fresh memory is slower than the disk: its pages are first mapped, then zeroed.
    """

    def __init__(self, shape: tuple[int, ...], pin: bool):
        self.shape, self.pin = shape, pin
        self.free: list[mmap.mmap] = []

    def take(self) -> Tensor:
        if self.pin:  # torch keeps pinned memory for use again, and knows when copies have ended
            return torch.empty(self.shape, pin_memory=True)
        try:
            buffer = self.free.pop()
        except IndexError:  # none is free
            buffer = shards.allocate(4 * int(np.prod(self.shape)))
        array = np.frombuffer(buffer, np.float32)
        weakref.finalize(array, self.free.append, buffer).atexit = False
        return torch.from_numpy(array).view(self.shape)


class Batch:
    r"""A batch being read."""

    def __init__(
        self,
        starts: np.ndarray,
        plan: Sequence[Task],
        memory: Memory,
        executor: ThreadPoolExecutor,
    ):
        self.starts, self.memory = starts, memory
        self.lock = threading.Lock()
        self.buffer: Tensor | None = None
        self.futures: list[Future] = [executor.submit(self.read, task) for task in plan]

    @property
    def tensor(self) -> Tensor:
        # Memory is taken when the first task runs: by then, an earlier batch may be gone.
        with self.lock:
            if self.buffer is None:
                self.buffer = self.memory.take()
            return self.buffer[: len(self.starts)]

    def read(self, task: Task) -> None:
        tensor = self.tensor
        task.read(self.starts.tolist(), tensor.numpy().reshape(*tensor.shape[:3], -1))

    def wait(self) -> None:
        try:
            for future in self.futures:
                future.result()
        except AppaError:
            raise
        except Exception as error:
            raise StoreError(
                f"reading a batch failed ({type(error).__name__}: {error}); check the store with "
                "`appa data check`"
            ) from error
