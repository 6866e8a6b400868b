r"""The parts of a run: members that are drawn together, here or in processes of their own.

On a CPU members may be drawn by several processes: they are independent of each other. Beside the
steps of a part is kept how its solves went.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..diffusion.guidance import Guidance
from ..termination import Terminated, terminable
from .posterior import Posterior
from .resuming import RunState

__all__ = ["Drawn", "Part", "apart", "drawn_part"]


def solves(guidance: Guidance) -> Tensor:
    r"""How solves went: the largest residual, the largest in the end, and the number of products,
    with shape :math:`(3)`."""
    counts = [guidance.residual, guidance.misfit, guidance.products]
    return torch.tensor(counts, dtype=torch.float64)


class Drawn(NamedTuple):
    r"""What was drawn: latents of the whole period, and how its :func:`solves` went."""

    z: Tensor
    solves: Tensor


class Part(NamedTuple):
    r"""Members that are drawn together."""

    members: range
    seed: int

    @property
    def name(self) -> str:
        return f"members-{self.members[0]}-{self.members[-1]}"

    def draw(
        self, posterior: Posterior, advance: Callable[[], None], keeper: RunState | None
    ) -> Drawn:
        r"""Draws them."""
        guidance = posterior.guidance
        guidance.forget()
        z = posterior.draw(
            self.members,
            self.seed,
            batch=len(self.members),
            advance=advance,
            keeper=None if keeper is None else Counted(keeper, guidance),
            name=self.name,
        )
        return Drawn(z, solves(guidance))


class Counted:
    r"""Where a draw keeps its steps, and beside them how its solves went so far: a run that goes on
    knows it of all its steps.

    Arguments:
        state: The steps.
        guidance: What solves, and counts.
    """

    def __init__(self, state: RunState, guidance: Guidance):
        self.state, self.guidance = state, guidance

    def load(self, name: str) -> dict[str, Tensor] | None:
        kept = self.state.load(name)
        if kept is not None:
            solved = kept.pop("solves", None)
            if solved is not None:  # else of an earlier version
                self.guidance.recall(solved.tolist())
        return kept

    def save(
        self, name: str, tensors: Mapping[str, Tensor], step: int, force: bool = False
    ) -> bool:
        return self.state.save(name, {**tensors, "solves": solves(self.guidance)}, step, force)

    def done(self, name: str, tensors: Mapping[str, Tensor] | None = None) -> None:
        self.state.done(name, tensors)


def drawn_part(
    part: Part,
    posterior: Posterior,
    folder: Path | None,
    key: dict[str, Any],
    advance: Callable[[], None],
) -> Drawn:
    r"""Draws a part, whose steps have a folder of their own in the run's: whichever process draws
    it, another finds them. They stay until the part is written."""
    with ExitStack() as stack:
        keeper = None
        if folder is not None:
            keeper = stack.enter_context(RunState(folder / part.name, key))
        return part.draw(posterior, advance, keeper)


# ---------------------------------------------------------------- several processes


def apart(
    posterior: Posterior,
    parts: list[Part],
    workers: int,
    advance: Callable[[], None],
    folder: Path | None,
    key: dict[str, Any],
) -> Generator[Drawn]:
    r"""Draws parts in processes of their own, each with its share of the threads, and gives them in
    order. While one is given, this process has the threads of those that have no more to draw."""
    # not forked: threads and libraries that are running would be in an unknown state
    context = multiprocessing.get_context("spawn")
    steps: Any = context.Queue()
    own = torch.get_num_threads()
    threads = max(1, own // workers)
    pool = ProcessPoolExecutor(workers, context, begin, (posterior, steps, threads))
    try:
        futures = [pool.submit(work, part, folder, key) for part in parts]
        for future in futures:
            while not future.done():
                wait([future], timeout=0.2, return_when=FIRST_COMPLETED)
                drain(steps, advance)
            result = future.result()
            idle = workers - sum(not other.done() for other in futures)
            torch.set_num_threads(max(own, threads * idle))
            yield result
        drain(steps, advance)
    except BaseException:
        # Ctrl-C in a terminal reaches all of them, a signal to this process does not: they keep
        # their steps and end
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        torch.set_num_threads(own)
        pool.shutdown(cancel_futures=True)


def drain(steps: Any, advance: Callable[[], None]) -> None:
    r"""Advances by the steps that processes have told of."""
    while True:
        try:
            steps.get_nowait()
        except queue.Empty:
            return
        advance()


_here: dict[str, Any] = {}  # of a process that draws: what it draws from, and where it tells


def begin(posterior: Posterior, steps: Any, threads: int) -> None:
    r"""Begins a process, which ends with its parent, however that ends: what goes on with the run
    must not find it still drawing."""
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    torch.set_num_threads(threads)
    _here.update(posterior=posterior, steps=steps)


def work(part: Part, folder: Path | None, key: dict[str, Any]) -> Drawn:
    r"""Draws a part in a process, unless that was told to end: a part that waits for it already
    cannot be taken back."""
    if _here.get("ended"):
        raise Terminated
    try:
        with terminable():
            return drawn_part(part, _here["posterior"], folder, key, lambda: _here["steps"].put(1))
    except Terminated:
        _here["ended"] = True
        raise
