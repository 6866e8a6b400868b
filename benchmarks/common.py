r"""What benchmarks have in common."""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import platform
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

from appa.config import Config
from appa.data.planet import climatology, open_planet, statistics
from appa.tasks.normals import with_normals

__all__ = [
    "Report",
    "arguments_of",
    "machine",
    "matmul",
    "measure",
    "out_of_memory",
    "peak",
    "planet_states",
    "planet_statistics",
    "release",
    "write_json",
]

GIB = 2**30
BEGUN = time.perf_counter()

#: The rows of a section: what each is called, and what measures it.
Rows = Iterable[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]


def planet_states(config: Config, hours: int | None = None) -> xr.Dataset:
    r"""The bundled planet at the nearest points of a configuration's grid, lazily."""
    return _nearest(open_planet(), config).isel(time=slice(hours))


def planet_statistics(config: Config) -> xr.Dataset:
    r"""The bundled planet's statistics, with normals where the autoencoder has any."""
    stats = statistics()
    if not config.autoencoder.normals:
        return stats
    return with_normals(config, stats, _nearest(climatology(), config))


def _nearest(planet: xr.Dataset, config: Config) -> xr.Dataset:
    grid = config.grid
    rows = np.abs(planet.latitude.values - grid.latitude[:, None]).argmin(axis=1)
    columns = np.abs(planet.longitude.values - grid.longitude[:, None]).argmin(axis=1)
    near = planet.isel(latitude=rows, longitude=columns).sel(level=list(config.data.levels))
    return near.assign_coords(
        latitude=("latitude", grid.latitude, planet.latitude.attrs),
        longitude=("longitude", grid.longitude, planet.longitude.attrs),
    )


# ---------------------------------------------------------------- measuring


def peak(name: str = "VmHWM") -> int:
    r"""The largest resident set of this process; `ru_maxrss` would count its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def release(device: torch.device) -> None:
    r"""Gives back what nobody holds anymore, and forgets the peak of memory."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    else:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")


def measure(
    function: Callable[[], Any], device: torch.device, rounds: int = 3, enough: float = 20.0
) -> dict[str, Any]:
    r"""The seconds of the fastest of several calls, after one that does not count, and memory.

    Arguments:
        function: What is called.
        device: Where it runs.
        rounds: The number of calls that count, at least one.
        enough: The seconds after which no more calls are made. The first, which may compile, is
            among them only if it takes six times as many; it then counts.

    Returns:
        Of `seconds`, `core_seconds`, those of all cores together, which other work on a machine
        does not lengthen as much, and `gibibytes`: on CUDA the largest allocation after the first
        call, weights and all; elsewhere the growth of the resident set.
    """
    release(device)
    cuda = device.type == "cuda"
    before = 0 if cuda else peak("VmRSS")
    found: list[float] = []
    cores: list[float] = []
    for _ in range(rounds + 1):
        start, own = time.perf_counter(), time.process_time()
        result = function()
        if cuda:
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
        cores.append(time.process_time() - own)
        del result
        if sum(found[1:]) > enough or found[0] > 6 * enough:
            break
        if cuda and len(found) == 1:  # kernels were tried out, with workspaces of any size
            torch.cuda.reset_peak_memory_stats()
    memory = torch.cuda.max_memory_allocated() if cuda else peak() - before
    return {
        "seconds": min(found[1:] or found),
        "core_seconds": min(cores[1:] or cores),
        "gibibytes": max(memory, 0) / GIB,
    }


def matmul(device: torch.device, dtype: torch.dtype) -> float:
    r"""Operations a second of a large product of matrices."""
    n = 8192 if device.type == "cuda" else 1024
    a, b = torch.randn(2, n, n, device=device).to(dtype)
    several = 20 if device.type == "cuda" else 2

    def products() -> None:
        for _ in range(several):
            torch.mm(a, b)

    return several * 2 * n**3 / measure(products, device, 5)["seconds"]


def machine(device: torch.device | None = None) -> str:
    cuda = torch.cuda.is_available() if device is None else device.type == "cuda"
    if cuda:
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


# ---------------------------------------------------------------- telling


def arguments_of(description: str | None, file: str) -> argparse.ArgumentParser:
    r"""The arguments of scripts with sections."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--only", nargs="*", metavar="SECTION", help="by default all, in order")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds of a section")
    parser.add_argument("--seconds", type=float, help="of all sections together")
    parser.add_argument("--rounds", type=int, default=3, help="of which the fastest counts")
    parser.add_argument("--output", type=Path, default=Path(file).with_suffix(".json"))
    return parser


class Report:
    r"""Runs sections, writes what they find to disk row by row, and prints tables.

    A row that fails, for want of memory or time say, is told with its reason, and the next goes
    on; so is a section that takes too long. A file that is there keeps its other sections, each
    with the head of the run it is of.

    Arguments:
        path: The file.
        head: What is told of the machine and the sizes.
        arguments: `only`, the sections to run, if not all; `limit`, the seconds that each may take;
            and `seconds`, those of the whole process, if they are limited.
    """

    def __init__(self, path: Path, head: dict[str, Any], arguments: argparse.Namespace):
        self.path, self.only, self.limit = path, arguments.only, arguments.limit
        self.end = None if arguments.seconds is None else BEGUN + arguments.seconds
        before = json.loads(path.read_text()) if self.only and path.exists() else {}
        sections = before.pop("sections", {})
        known = {name: {"head": before} | section for name, section in sections.items()}
        self.head, self.result = head, {**head, "sections": known}
        print(", ".join(f"{key} {value}" for key, value in head.items()), flush=True)

    def section(
        self,
        name: str,
        rows: Rows,
        finish: Callable[[list], None] | None = None,
        each: float = math.inf,
        times: float = 1.0,
    ) -> None:
        r"""Runs a section, if it is asked for.

        Arguments:
            name: Its name.
            rows: Its rows.
            finish: What completes rows that were measured, ratios for example.
            each: The seconds that a row may take, so that the following have theirs.
            times: How many times the limit of other sections it may take.
        """
        if self.only and name not in self.only:
            return
        found: list[dict[str, Any]] = []
        begun = time.perf_counter()
        self.result["sections"][name] = {"head": self.head, "rows": found}
        end = begun + times * self.limit
        end = end if self.end is None else min(end, self.end)
        if end <= begun:
            found.append({"failed": "no time was left"})
        for label, row in guarded(rows, end, each):
            found.append(label | row)
            write_json(self.path, self.result)
        if finish is not None:
            finish([row for row in found if "failed" not in row])
        self.result["sections"][name]["took"] = time.perf_counter() - begun
        write_json(self.path, self.result)
        print(f"\n## {name}, {time.perf_counter() - begun:.0f} s\n\n{table(found)}", flush=True)


def guarded(
    rows: Rows, end: float, each: float = math.inf
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    r"""What rows give, or why they failed, until it is too late; each has its seconds."""
    iterator = iter(rows)
    while (left := end - time.perf_counter()) > 0:
        label: dict[str, Any] = {}
        try:
            with limited(left):
                label, run = next(iterator)
            with limited(min(each, left)):
                row = run()
        except StopIteration:
            return
        except Exception as error:  # of compilers too, which make theirs of what stops them
            row = {"failed": reason(error)}
        yield label, row
        if not label:  # what makes rows has failed
            return


@contextmanager
def limited(seconds: float):
    r"""Raises a :class:`TimeoutError` where it takes longer, and again where that is caught."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"took more than {seconds:.3g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 20.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def out_of_memory(error: Exception) -> bool:
    r"""Whether it is for want of memory, which libraries and CPUs have words of their own for."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    words = ("ALLOC_FAILED", "can't allocate memory", "out of memory")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def reason(error: Exception) -> str:
    r"""Why a row failed, in a few words; nothing that it held is kept."""
    error.__traceback__ = None
    name = type(error).__name__
    if out_of_memory(error):
        return "out of memory"
    text = (str(error).strip().splitlines() or [""])[0]
    return f"{name}: {text[:120]}"


def table(rows: list[dict[str, Any]]) -> str:
    r"""Rows as a table; those that failed say why in their last column."""
    keys = list(dict.fromkeys(k for row in rows for k in row if k not in ("failed", "rounds")))
    if any("failed" in row for row in rows):
        keys.append("failed")
    lines = [f"| {' | '.join(keys)} |", f"|{'---|' * len(keys)}"]
    lines += [f"| {' | '.join(cell(row.get(key)) for key in keys)} |" for row in rows]
    return "\n".join(lines)


def cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def write_json(path: Path, result: dict[str, Any]) -> None:
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(result, indent=1) + "\n")
    partial.replace(path)
