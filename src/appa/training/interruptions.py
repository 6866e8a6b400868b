r"""Signals that ask a process to end, collected so that it can end well."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .distribution import Ranks

__all__ = ["Together", "interruptions"]

# Each question waits for the device and the slowest rank: of quick updates, several go by.
SECONDS, UPDATES = 1.0, 10


@contextmanager
def interruptions() -> Iterator[list[int]]:
    r"""Collects what would end the process, SIGTERM and SIGINT, once: the second time, it does."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    kinds = (signal.SIGTERM, signal.SIGINT)
    before = {kind: signal.getsignal(kind) for kind in kinds}

    def note(kind: int, _: Any) -> None:
        asked.append(kind)
        for other in kinds:
            signal.signal(other, before[other])

    for kind in kinds:
        signal.signal(kind, note)
    try:
        yield asked
    finally:
        for kind in kinds:
            signal.signal(kind, before[kind])


class Together:
    r"""Whether any rank was asked to stop, asked of all about every second.

    A rank cannot stop alone: others would wait for it. What an update takes differs from rank to
    rank, and when to ask must not: it goes by the slowest, which all learn when they ask.

    Arguments:
        ranks: The ranks.
        step: The updates done before.
    """

    def __init__(self, ranks: Ranks, step: int):
        self.ranks = ranks
        self.step, self.next, self.clock = step, step + 1, time.perf_counter()

    def __call__(self, step: int, asked: bool) -> bool:
        r"""
        Arguments:
            step: The updates done.
            asked: Whether this rank was asked to stop.
        """
        if self.ranks.world == 1:
            return asked
        if step < self.next:
            return False
        took = (time.perf_counter() - self.clock) / max(1, step - self.step)
        stop, slowest = self.ranks.largest(float(asked), took)
        pause = int(SECONDS / max(slowest, SECONDS / UPDATES))
        self.step, self.next, self.clock = step, step + max(1, pause), time.perf_counter()
        return bool(stop)
