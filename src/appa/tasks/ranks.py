r"""One process or many: which of them this one is, and what they tell each other.

`torchrun` starts a process for each device and tells it, through its environment, its rank
:math:`r` and the number of processes :math:`R`; without it, :math:`R = 1` and nothing here
communicates.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.distributed_c10d import _get_default_store
from torch.distributed.rendezvous import rendezvous

from ..errors import AppaError, nearest
from ..machine import DEVICES, find_device

__all__ = ["Ranks", "distributed"]

# Where processes find each other, and how often they have: a place they met at before is not taken
# again, since one could come back to it while another is still leaving.
_meeting: list[Any] = []
_meetings = itertools.count()
_firsts = itertools.count()  # how often others waited for what the first rank alone does


@dataclass(frozen=True)
class Ranks:
    r"""The place of this process among all.

    Arguments:
        rank: The rank :math:`r`.
        world: The number of ranks :math:`R`.
        device: The device of this rank.
    """

    rank: int
    world: int
    device: torch.device

    @property
    def main(self) -> bool:
        r"""Whether this is the first rank, which writes and prints."""
        return self.rank == 0

    def barrier(self) -> None:
        r"""Waits for all ranks."""
        if self.world > 1:
            dist.barrier()

    def mean(self, x: Tensor) -> Tensor:
        r"""The mean of a tensor over ranks."""
        if self.world > 1:
            x = x.clone()
            dist.all_reduce(x)
            x /= self.world
        return x

    def largest(self, *values: float) -> list[float]:
        r"""The largest of each value over ranks."""
        if self.world == 1:
            return list(values)
        x = torch.tensor(values, dtype=torch.float32, device=self.device)
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        return x.tolist()

    def first(self, function: Callable[[], Any]) -> Any:
        r"""What a function gives on the first rank, or the error it raises there, on all.

        It may take any time: the others do not begin to receive, which has a limit, before it ends.
        """
        if self.world == 1:
            return function()
        told: list[Any] = [None]
        if self.main:
            try:
                told[0] = function()
            except AppaError as error:
                told[0] = error
        self._follow()
        dist.broadcast_object_list(told, src=0, device=self._talks)
        if isinstance(told[0], AppaError):
            raise told[0]
        return told[0]

    def _follow(self) -> None:
        r"""Waits until the first rank comes here, however long that takes."""
        store, key = _get_default_store(), f"appa-first-{next(_firsts)}"
        if self.main:
            store.set(key, "")
        pause = 1e-3
        while not store.check([key]):
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def agree(self, value: Any, what: str) -> None:
        r"""Raises unless all ranks have the same value."""
        if self.world == 1:
            return
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, value)
        if any(other != value for other in found):
            raise AppaError(
                f"ranks disagree about {what}: {found}; do all nodes see the same folder?"
            )

    @property
    def _talks(self) -> torch.device:
        r"""Where objects are when they are sent."""
        return self.device if dist.get_backend() == "nccl" else torch.device("cpu")


@contextmanager
def distributed(
    device: str | torch.device | None = None,
    *,
    backend: str | None = None,
    timeout: timedelta = timedelta(hours=1),
) -> Iterator[Ranks]:
    r"""Takes this process's place among those `torchrun` started, if it did.

    Arguments:
        device: `cpu` or `cuda`, with an index where there is one process. By default, CUDA where
            there is a device.
        backend: What processes speak through. By default, NCCL between CUDA devices, else Gloo.
        timeout: How long one waits for another; reading a large store may take one longer.

    Example:
        >>> with distributed() as ranks:
        ...     print(ranks.rank, ranks.device)
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    place = _device(device, int(os.environ.get("LOCAL_RANK", "0")), world)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if world == 1:
        yield Ranks(0, 1, place)
        return

    backend = backend or ("nccl" if place.type == "cuda" else "gloo")
    already = dist.is_initialized()
    if not already:
        if not _meeting:
            _meeting[:] = next(rendezvous("env://", timeout=timeout))
        store, rank, world = _meeting
        dist.init_process_group(
            backend,
            store=PrefixStore(f"appa-{next(_meetings)}", store),
            rank=rank,
            world_size=world,
            timeout=timeout,
            device_id=place if backend == "nccl" else None,
        )
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), place)
    finally:
        if not already:
            dist.destroy_process_group()


def _device(device: str | torch.device | None, local: int, world: int) -> torch.device:
    r"""The device of a process, by its rank on its machine where there are several."""
    if world > 1 and device is not None:
        device = str(device).partition(":")[0]
    place = find_device(device)
    if place.type not in DEVICES:
        raise AppaError(f"unknown device {str(device)!r}{nearest(place.type, DEVICES)}")
    if place.type == "cpu" or place.index is not None:
        return place
    if local >= (count := torch.cuda.device_count()):
        raise AppaError(
            f"there is no CUDA device {local}: there are {count}, counted from 0; start as many "
            "processes a node as it has devices (--nproc-per-node)"
        )
    return torch.device("cuda", local)
