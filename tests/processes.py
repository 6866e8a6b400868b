r"""Processes of their own for tests, forked from one that has imported what they need.

Starting an interpreter and importing torch takes seconds; a process that has done so once and does
nothing else is forked in milliseconds. What is forked shares no memory, has signals and limits of
its own and can be killed, as any process.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

__all__ = ["Process", "command", "ranks"]

# One thread and no device: sums are always in the same order.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "appa.cli",
        "appa.cli.data",
        "appa.training.start",
        "appa.tasks.encoding",
        "appa.tasks.output",
        "torch._dynamo",  # what the first update of an optimizer imports
        "torch.distributed.fsdp",
        "torch.utils.tensorboard",
        "matplotlib.figure",
        "zarr.api.synchronous",
        "dask.array",
        "distributed",  # which xarray looks for when it writes a file
        "netCDF4",
        "pint",
        "pytest",
    ]
)


def _call(
    path: str, environment: Mapping[str, str], function: Callable, arguments: tuple[Any, ...]
) -> None:
    r"""What a process does: all it says goes to a file."""
    os.environ.clear()
    os.environ.update(environment)
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)
    function(*arguments)


class Process:
    r"""A function in a process of its own.

    Arguments:
        function: The function, of a module.
        arguments: Its arguments.
        environment: Variables beside those of the tests.
    """

    def __init__(self, function: Callable, *arguments: Any, **environment: str):
        descriptor, name = tempfile.mkstemp(suffix=".txt")
        os.close(descriptor)
        self.path = Path(name)
        variables = {**os.environ, **ENVIRONMENT, **environment}
        with mock.patch.dict(os.environ, ENVIRONMENT):  # of the server, when it starts
            multiprocessing.forkserver.ensure_running()
        self.process = CONTEXT.Process(target=_call, args=(name, variables, function, arguments))
        self.process.start()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        r"""Ends it, if it has not."""
        self.process.kill()
        self.process.join()
        self.path.unlink()

    @property
    def status(self) -> int | None:
        r"""Its exit status, less than zero if a signal ended it; none if it goes on."""
        return self.process.exitcode

    @property
    def said(self) -> str:
        r"""What it has written to its output and its errors."""
        return self.path.read_text()

    def send_signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def wait(self, seconds: float = 300) -> int:
        r"""Waits for its end. Returns its status."""
        self.process.join(seconds)
        assert self.status is not None, f"still running after {seconds} s: {self.said}"
        return self.status

    def until(self, condition: Callable[[], Any], seconds: float = 120) -> None:
        r"""Waits for something it does, before its end."""
        end = time.monotonic() + seconds
        while not condition():
            assert self.status is None, self.said
            assert time.monotonic() < end, self.said
            time.sleep(0.002)


def command(*arguments: str, before: Callable[[], Any] | None = None) -> None:
    r"""The command `appa`, for a process."""
    from appa.cli import main

    if before is not None:
        before()
    sys.argv = ["appa", *arguments]
    main()


def ranks(function: Callable, *arguments: Any, count: int = 2) -> list[str]:
    r"""Calls a function on several ranks, which find each other as under `torchrun`.

    Returns:
        What each said.
    """
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    where = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
    }
    with ExitStack() as stack:
        started = []
        for rank in map(str, range(count)):
            process = Process(function, *arguments, RANK=rank, LOCAL_RANK=rank, **where)
            started.append(stack.enter_context(process))
        end = time.monotonic() + 300
        while any(process.status is None for process in started):
            # where one fails, others would wait for it
            if any(process.status for process in started) or time.monotonic() > end:
                break
            time.sleep(0.01)
        said = [process.said for process in started]
        assert [process.status for process in started] == [0] * count, said
    return said
