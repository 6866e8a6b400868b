r"""Batches on the device, in the order of a :class:`appa.data.windows.WindowLoader`.

The order of an epoch :math:`\pi` is a function of the seed and its number. Update :math:`s` of an
epoch takes windows :math:`\pi_{s N}, \dots, \pi_{(s + 1) N - 1}`, with :math:`N` the global batch,
however many ranks and micro-steps share it; windows too few for another update are left out, and
the next epoch begins. There are two ways to get them to the device:

* *resident*: where all hours of a split fit into a share of the device's free memory, they are read
  once and kept there, and a batch is one gather;
* *streamed*: the loader's threads read ahead, and one batch is always on its way to the device.

Both hand out the same windows, and stand in the same place after a resume.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.clock import clock_features
from ..data.windows import WindowLoader
from ..errors import DataError
from ..progress import progress

__all__ = ["Feed", "Resident", "Streamed", "make_feed"]

SHARE = 0.6  # of the device's free memory that states may take
BLOCK = 64 * 2**20  # bytes of a batch while filling the memory

Batch = tuple[Tensor, Tensor]


class Feed:
    r"""Batches of windows without end.

    Arguments:
        loader: The loader, whose batches are those of one micro-step on this rank.
        device: Where batches go.
        accumulation: The number of micro-steps of an update.
    """

    def __init__(self, loader: WindowLoader, device: torch.device, accumulation: int = 1):
        self.loader, self.device = loader, device
        total = loader.batch_size * loader.world_size * accumulation
        updates = len(loader.starts) // total
        if updates == 0:
            raise DataError(
                f"{len(loader.starts)} windows of {loader.window} hour(s) in the training split "
                f"are fewer than one update's batch of {total}; lower batch_size in the "
                "configuration, or give more hours"
            )
        #: Batches of an epoch
        self.batches = updates * accumulation
        self.state = loader.state_dict()

    def __iter__(self) -> Iterator[Batch]:
        r"""Windows :math:`(B, W, C, H, W')` and their clock :math:`(B, W, 4)`."""
        return self

    def __next__(self) -> Batch:
        raise StopIteration

    def state_dict(self) -> dict[str, Any]:
        r"""Where the epoch stands, after the last batch that was handed out."""
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        r"""Continues where the state was taken, by this kind of feed or the other."""
        self.loader.load_state_dict(state)
        self.state = self.loader.state_dict()


class Resident(Feed):
    r"""Batches gathered from hours that are all on the device.

    Arguments:
        loader: The loader, whose batches are those of one micro-step on this rank.
        hours: A loader of the same hours one by one, in order of time.
        device: Where hours are kept.
        accumulation: The number of micro-steps of an update.
        dtype: The type they are kept in.
    """

    def __init__(
        self,
        loader: WindowLoader,
        hours: WindowLoader,
        device: torch.device,
        accumulation: int = 1,
        dtype: torch.dtype = torch.float16,
    ):
        super().__init__(loader, device, accumulation)
        self.first = int(hours.starts[0])
        n = int(hours.starts[-1]) - self.first + 1
        self.hours = torch.empty((n, *hours.shape), dtype=dtype, device=device)
        shown = progress(n, "reading to the device", "hours")
        with shown if loader.rank == 0 else nullcontext() as p:
            done = 0
            for x, _ in hours:
                m = min(len(x), n - done)
                # to the device as it is, and to its type there
                self.hours[done : done + m] = x[:m, 0].to(device, non_blocking=True)
                done += m
                if p is not None:
                    p.advance(m)
        times = hours.times[self.first : self.first + n]
        self.clock = torch.from_numpy(clock_features(times)).float().to(device)
        self.window = torch.arange(loader.window, device=device)
        self.epoch = -1
        self.order = self.window

    def __next__(self) -> Batch:
        loader = self.loader
        if loader.batch >= self.batches:
            loader.set_epoch(loader.epoch + 1)
        if loader.epoch != self.epoch:
            # once an epoch, so that a batch takes nothing from the host
            self.epoch = loader.epoch
            order = np.ascontiguousarray(loader.order(self.epoch) - self.first)
            self.order = torch.from_numpy(order).to(self.device)
        start = (loader.batch * loader.world_size + loader.rank) * loader.batch_size
        index = self.order[start : start + loader.batch_size, None] + self.window
        loader.batch += 1
        self.state = loader.state_dict()
        return self.hours[index], self.clock[index]


class Streamed(Feed):
    r"""Batches of a loader, the next one on its way to the device while one is used."""

    def __init__(self, loader: WindowLoader, device: torch.device, accumulation: int = 1):
        super().__init__(loader, device, accumulation)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.ahead: tuple[Batch, dict[str, Any]] | None = None
        self.batch_iterator: Iterator[Any] | None = None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.ahead = self.batch_iterator = None

    def __next__(self) -> Batch:
        batch, self.state = self.ahead or self._fetch()
        if self.stream is None:
            return batch
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
        for tensor in batch:
            tensor.record_stream(torch.cuda.current_stream(self.device))
        self.ahead = self._fetch()
        return batch

    def _fetch(self) -> tuple[Batch, dict[str, Any]]:
        loader = self.loader
        if loader.batch >= self.batches:
            # The rest of the epoch is left out, and what was being read of it.
            self.batch_iterator = None
            loader.set_epoch(loader.epoch + 1)
        if self.batch_iterator is None:
            loader.resumed = True  # from where it stands
            self.batch_iterator = iter(loader)
        x, dates = next(self.batch_iterator)
        clock = torch.from_numpy(clock_features(dates)).float()
        if self.stream is None:
            return (x, clock), loader.state_dict()
        with torch.cuda.stream(self.stream):
            pair = (x, clock.pin_memory())
            batch = tuple(y.to(self.device, non_blocking=True) for y in pair)
        return batch, loader.state_dict()  # type: ignore[return-value]


def make_feed(
    store: Any,
    window: int,
    batch_size: int,
    device: torch.device,
    *,
    accumulation: int = 1,
    dtype: torch.dtype = torch.float16,
    resident: bool | None = None,
    place: dict[str, Any] | None = None,
    **options: Any,
) -> Feed:
    r"""Batches of a store on a device.

    Arguments:
        store: The store of states or latents.
        window: The number of hours :math:`W` in a window.
        batch_size: The number of windows of a micro-step on this rank.
        device: Where batches go.
        accumulation: The number of micro-steps of an update.
        dtype: The type that resident hours are kept in.
        resident: Whether hours are kept on the device. By default, on a CUDA device where they
            fit into a share of its free memory.
        place: Where to go on, as :meth:`Feed.state_dict` told it. By default, at the beginning.
        options: Options of :class:`appa.data.windows.WindowLoader`.
    """
    pin = device.type == "cuda"
    # what is too little for an update is left out, and told, by the feed
    loader = WindowLoader(store, window, batch_size, pin_memory=pin, drop_last=False, **options)
    if place is not None:  # before all hours are read: it may be of another store
        loader.load_state_dict(place)
    hours = int(loader.starts[-1] - loader.starts[0]) + window
    nbytes = hours * int(np.prod(loader.shape)) * dtype.itemsize
    if resident is None:
        resident = pin and nbytes <= SHARE * torch.cuda.mem_get_info(device)[0]
    if not resident:
        return Streamed(loader, device, accumulation)
    n = max(1, BLOCK // (4 * int(np.prod(loader.shape))))
    alone = {"shuffle": False, "rank": 0, "world_size": 1, "drop_last": False, "prefetch": 2}
    every = WindowLoader(store, 1, min(n, hours), pin_memory=pin, **{**options, **alone})
    return Resident(loader, every, device, accumulation, dtype)
