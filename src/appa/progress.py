r"""Progress with time left, for anything that takes longer than a breath."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Progress", "Share", "progress"]

SHORT, BETWEEN = 5.0, 10.0  # seconds that need no word, and between two lines in a log


class Progress:
    r"""Handle to a running progress display.

    On a terminal it drives a bar, which is gone at the end if that came within five seconds;
    elsewhere (a log file, a batch job) it writes a plain line after five seconds and at most every
    ten from then on, so that logs stay short.
    """

    def __init__(self, total: int, description: str, unit: str):
        self.total, self.description, self.unit = total, description, unit
        self.done = 0
        self.start = time.monotonic()
        self.next = self.start + SHORT
        self.last = self.start, 0  # time and work of the last line
        self.bar: Any = None

    def skip(self, n: int) -> None:
        r"""Counts work found finished already: it moves the bar but not the speed."""
        self.last = self.last[0], self.last[1] + n
        self.advance(n)

    def advance(self, n: int = 1) -> None:
        self.done += n
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=self.done)
        elif (now := time.monotonic()) > self.next and self.done > self.last[1]:
            # at the speed since the last line: what begins slowly, to compile, goes on faster
            (then, before), self.last, self.next = self.last, (now, self.done), now + BETWEEN
            left = (now - then) / (self.done - before) * (self.total - self.done)
            line = f"{self.description}: {self.done}/{self.total} {self.unit}, {left:.0f} s left"
            print(line, file=sys.stderr, flush=True)


class Share:
    r"""Counts many small things as a few steps.

    Arguments:
        advance: What is called with steps.
        number: The number of things.
        worth: The number of steps they are taken for.
    """

    def __init__(self, advance: Callable[[int], None], number: int, worth: int):
        self.advance, self.number, self.worth, self.done = advance, number, worth, 0

    def __call__(self, n: int) -> None:
        before, self.done = self.worth * self.done // self.number, self.done + n
        self.advance(self.worth * self.done // self.number - before)


@contextmanager
def progress(total: int, description: str, unit: str = "steps") -> Iterator[Progress]:
    r"""Shows the progress of a block of work on standard error.

    Example:
        >>> with progress(len(blocks), "copying", unit="blocks") as p:
        ...     for block in blocks:
        ...         copy(block)
        ...         p.advance()
    """
    handle = Progress(total, description, unit)
    if not sys.stderr.isatty():
        yield handle
        return

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar

    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    with bar:
        bar.add_task(description, total=total)
        handle.bar = bar
        try:
            yield handle
        finally:
            bar.live.transient = time.monotonic() - handle.start < SHORT
