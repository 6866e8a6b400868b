r"""Signals that ask a process to end, collected so that it can end well."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["interruptions"]


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
