r"""The parts of a run: members that are drawn together, here or in processes of their own.

On a CPU members may be drawn by several processes: they are independent of each other. So is what
the decoder lacks of them, which these draw too where it fits in memory. Beside the steps of a part
is kept how its solves went.
"""

from __future__ import annotations

import multiprocessing
import queue
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack
from itertools import islice
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..diffusion.guidance import Guidance
from ..observations import own  # noqa: F401  takes observables to processes
from ..progress import Share
from ..termination import Terminated, ends_with_its_parent, terminable
from .posterior import Posterior
from .resuming import RunState

__all__ = ["Drawn", "Lacking", "Part", "Wanted", "apart", "drawn_part"]


def solves(guidance: Guidance) -> Tensor:
    r"""How solves went: the largest residual, the largest in the end, and the number of products,
    with shape :math:`(3)`."""
    counts = [guidance.residual, guidance.misfit, guidance.products]
    return torch.tensor(counts, dtype=torch.float64)


class Lacking(NamedTuple):
    r"""What the decoder lacks of a part, drawn where its latents were; gives out as
    :class:`~.residuals.Residuals` does."""

    # (m, t, c, H, W); no tensor, as these come through shared memory, of which there may be little
    r: NDArray[np.float32]
    channels: list[int]
    left: float
    unused: int

    def __call__(self, members: slice, channels: Sequence[int]) -> Tensor:
        at = [self.channels.index(c) for c in channels]
        return torch.from_numpy(self.r[members][:, :, at])


class Drawn(NamedTuple):
    r"""What was drawn: latents of the whole period, how its :func:`solves` went, and what the
    decoder lacks, where that was asked for."""

    z: Tensor
    solves: Tensor
    lacking: Lacking | None = None


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


class Wanted(NamedTuple):
    r"""What is drawn of that which the decoder lacks: hours, channels, and the steps they are taken
    for in a bar."""

    hours: slice
    channels: list[int]
    worth: int

    def draw(
        self, posterior: Posterior, part: Part, z: Tensor, advance: Callable[[int], None]
    ) -> Lacking | None:
        r"""Draws it for the latents of a part."""
        r = posterior.residual(z, part.members, part.seed, self.hours)
        if r is None:
            return None
        r.advance = Share(advance, len(part.members) * len(self.channels), self.worth)
        drawn = r(slice(None), self.channels).numpy()
        return Lacking(drawn, self.channels, r.left, r.unused)


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
    advance: Callable[..., None],
    wanted: Wanted | None = None,
) -> Drawn:
    r"""Draws a part, whose steps have a folder of their own in the run's: whichever process draws
    it, another finds them. They stay until the part is written."""
    with ExitStack() as stack:
        keeper = None
        if folder is not None:
            keeper = stack.enter_context(RunState(folder / part.name, key))
        drawn = part.draw(posterior, advance, keeper)
    if wanted is None:
        return drawn
    return drawn._replace(lacking=wanted.draw(posterior, part, drawn.z, advance))


# ---------------------------------------------------------------- several processes


def apart(
    posterior: Posterior,
    parts: list[Part],
    workers: int,
    advance: Callable[[int], None],
    folder: Path | None,
    key: dict[str, Any],
    wanted: Wanted | None = None,
) -> Generator[Drawn]:
    r"""Draws parts in processes of their own, each with its share of the threads, and gives them in
    order."""
    # not forked: threads and libraries that are running would be in an unknown state
    context = multiprocessing.get_context("spawn")
    steps: Any = context.Queue()
    threads = max(1, torch.get_num_threads() // workers)
    pool = ProcessPoolExecutor(workers, context, begin, (posterior, steps, threads))
    try:
        # no more ahead of what is written than keeps them busy: what is drawn stays in memory
        todo, ahead = iter(parts), deque[Future[Drawn]]()
        for part in islice(todo, workers + 1):
            ahead.append(pool.submit(work, part, folder, key, wanted))
        while ahead:
            future = ahead.popleft()
            while not future.done():
                wait([future], timeout=0.2, return_when=FIRST_COMPLETED)
                drain(steps, advance)
            result = future.result()
            del future
            for part in islice(todo, 1):
                ahead.append(pool.submit(work, part, folder, key, wanted))
            yield result
        drain(steps, advance)
    except BaseException:
        # Ctrl-C in a terminal reaches all of them, a signal to this process does not: they keep
        # their steps and end
        end(list((pool._processes or {}).values()))
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def end(processes: Sequence[Any]) -> None:
    r"""Tells processes to end until they have. One that is keeping its steps does not hear it
    again; one that then waits for work, where another went before it began, would for ever."""
    while left := [process for process in processes if process.is_alive()]:
        for process in left:
            process.terminate()
        connection.wait([process.sentinel for process in left], timeout=0.5)


def drain(steps: Any, advance: Callable[[int], None]) -> None:
    r"""Advances by the steps that processes have told of."""
    while True:
        try:
            n = steps.get_nowait()
        except queue.Empty:
            return
        advance(n)


_here: dict[str, Any] = {}  # of a process that draws: what it draws from, and where it tells


def begin(posterior: Posterior, steps: Any, threads: int) -> None:
    r"""Begins a process."""
    ends_with_its_parent()
    torch.set_num_threads(threads)
    _here.update(posterior=posterior, steps=steps)


def work(
    part: Part, folder: Path | None, key: dict[str, Any], wanted: Wanted | None = None
) -> Drawn:
    r"""Draws a part in a process, unless that was told to end: a part that waits for it already
    cannot be taken back."""
    if _here.get("ended"):
        raise Terminated
    try:
        with terminable():
            tell = _here["steps"]
            return drawn_part(
                part, _here["posterior"], folder, key, lambda n=1: tell.put(n), wanted
            )
    except Terminated:
        _here["ended"] = True
        raise
