r"""How processes end.

SIGTERM, as Ctrl-C: what Slurm and containers end a process with leaves it time to keep its work.
And processes that work for another one: with it, however that ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Terminated", "ends_with_its_parent", "terminable"]


class Terminated(SystemExit):
    r"""The end of a process that was sent SIGTERM: blocks are left in order, and its exit status is
    128 + SIGTERM, as shells have it, also where it comes from another process."""

    code = 128 + signal.SIGTERM


@contextmanager
def terminable() -> Iterator[None]:
    r"""Raises :class:`Terminated` where SIGTERM comes within the block, once.

    What comes after it is ignored, for as long as the block takes to end: `timeout` and Slurm send
    it to a process and to its group. A program that handles SIGTERM itself is left to it.

    Example:
        >>> with terminable(), RunState("analysis.zarr.run", key) as state:
        ...     draw(state)
    """
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def end(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def ends_with_its_parent() -> None:
    r"""Makes a process end where the one that began it has ended, killed or not: what goes on with
    its work must not find it still at it."""
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
