r"""Results that threads make while those before are used."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["ahead"]

A = TypeVar("A")
B = TypeVar("B")


def ahead(
    function: Callable[[A], B], items: Sequence[A], most: int, threads: int = 1
) -> Iterator[B]:
    r"""What a function gives of one item after another.

    Arguments:
        function: The function, which several threads may call at once.
        items: The items.
        most: How many results there are at most that were not taken yet.
        threads: The number of threads. With one, each is computed when it is asked for.
    """
    threads = min(threads, most, len(items))
    if threads <= 1:
        yield from map(function, items)
        return
    pending: deque[Future[B]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) == most:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:  # of one who takes no more, or of an error
            for future in pending:
                future.cancel()
