r"""What does loading cost? States per second against the disk itself, and against the plain way.

    python benchmarks/loader.py [--quick] [--directory DIR] [--output FILE] [--ways WAY ...]

Writes stores of synthetic states to DIR (up to 10 GB, deleted at the end; use a directory on the
disk to be measured, not in memory), drops them from the page cache before every measurement, and
reads windows in random order in several ways. One GB is 10⁹ bytes of states, in single precision.

- raw disk: the shards from end to end with `O_DIRECT`, with the best of several block sizes and
  numbers of threads. Nothing is done with what is read.
- xarray: `ds.isel(time=...).load()` for each window, as stored.
- DataLoader, zarr: torch's loader, two processes that index Zarr arrays, standardized.
- tensorstore: as many windows in flight as the loader has, standardized. Left out if not installed.
- appa: batches of :class:`appa.data.windows.WindowLoader`, standardized; with direct reads (what a
  store larger than memory gets), and through the page cache in the first epoch and in later ones
  (what a store that fits in half the memory gets).

Memory is the largest resident set during the measurement over what it was before, in batches.
"""

from __future__ import annotations

import argparse
import itertools
import json
import mmap
import os
import statistics
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch.utils.data import DataLoader, Dataset

from appa.data.variables import ATMOSPHERIC, LEVELS, SURFACE, VARIABLES
from appa.data.windows import WindowLoader
from appa.data.writing import StoreWriter, make_template
from appa.progress import progress

NAMES = (*SURFACE, *ATMOSPHERIC)
CHANNELS = len(SURFACE) + len(ATMOSPHERIC) * len(LEVELS)
MEAN, STD = 0.5, 2.0  # of every channel
RAW = [(mib << 20, threads) for mib in (4, 8, 16) for threads in (1, 2, 4)]
WARM = 4  # batches before a measurement: threads start, memory is mapped


class Case(NamedTuple):
    shape: tuple[int, int]
    window: int
    batch: int

    @property
    def state_bytes(self) -> int:
        return 4 * CHANNELS * self.shape[0] * self.shape[1]

    @property
    def batch_bytes(self) -> int:
        return self.state_bytes * self.window * self.batch

    @property
    def label(self) -> str:
        return f"{self.shape[0]}×{self.shape[1]}, W = {self.window}, B = {self.batch}"


CASES = (Case((48, 96), 24, 4), Case((48, 96), 1, 64), Case((721, 1440), 1, 1))
HOURS = {(48, 96): 2160, (721, 1440): 24}
QUICK = {(48, 96): 720, (721, 1440): 12}


def write(path: Path, shape: tuple[int, int], hours: int) -> None:
    r"""A store of noise, with SST undefined on a third of the planet."""
    time = np.datetime64("2000-01-01", "ns") + np.arange(hours) * np.timedelta64(1, "h")
    latitude, longitude = np.linspace(90, -90, shape[0]), np.arange(shape[1]) * 360 / shape[1]
    template = make_template(time, latitude, longitude)
    rng = np.random.default_rng(0)
    with StoreWriter(path, template) as writer:
        with progress(len(writer.blocks), f"writing {shape[0]}×{shape[1]}", "blocks") as p:
            for i, block in enumerate(writer.blocks):
                n = len(time[block])
                for name in NAMES:
                    var = template[name]
                    x = rng.standard_normal((n, *var.shape[1:]), dtype=np.float32)
                    if VARIABLES[name].missing:
                        x[..., : shape[1] // 3] = np.nan
                    coords = {"time": time[block]}
                    writer.write(i, xr.Dataset({name: (var.dims, x)}, coords))
                p.advance()
        writer.finish()


def moments() -> xr.Dataset:
    data = {}
    for name in NAMES:
        pair = np.array([MEAN, STD])
        if VARIABLES[name].surface:
            data[name] = (("statistic",), pair)
        else:
            data[name] = (("statistic", "level"), np.repeat(pair[:, None], len(LEVELS), axis=1))
    return xr.Dataset(data, {"statistic": ["mean", "std"], "level": list(LEVELS)})


def standardize(parts: list[np.ndarray]) -> torch.Tensor:
    r"""What every other way does with the arrays of a window, in a few lines."""
    x = np.concatenate([p[:, None] if p.ndim == 3 else p for p in parts], axis=1)
    return torch.nan_to_num_(torch.from_numpy(x).sub_(MEAN).div_(STD))


# ---------------------------------------------------------------- the disk itself


def files(path: Path) -> list[Path]:
    return [file for file in sorted(path.rglob("*")) if file.is_file()]


def drop(path: Path) -> None:
    r"""Drops a store from the page cache, for which no rights are needed."""
    for file in files(path):
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def fill(path: Path) -> None:
    r"""Reads a store into the page cache."""
    for file in files(path):
        with open(file, "rb", buffering=0) as f:
            while f.read(1 << 24):
                pass


def raw(path: Path, block: int, threads: int, limit: int) -> float:
    r"""GB/s of reading whole files in order with `O_DIRECT`."""
    large = [file for file in files(path) if file.stat().st_size >= block]
    fds = [os.open(file, os.O_RDONLY | os.O_DIRECT) for file in large]
    ranges = [
        (fd, at)
        for fd, file in zip(fds, large, strict=True)
        for at in range(0, file.stat().st_size - block + 1, block)
    ][: max(1, limit // block)]
    todo, lock = iter(ranges), threading.Lock()

    def read() -> None:
        buffer = mmap.mmap(-1, block)
        while True:
            with lock:
                item = next(todo, None)
            if item is None:
                return
            os.preadv(item[0], [buffer], item[1])

    workers = [threading.Thread(target=read) for _ in range(threads)]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    elapsed = time.perf_counter() - start
    for fd in fds:
        os.close(fd)
    return len(ranges) * block / elapsed / 1e9


# ---------------------------------------------------------------- ways to load
# Each yields after every window or batch the number of states it has just loaded.


def by_xarray(path: Path, case: Case, hours: int) -> Iterator[int]:
    ds = xr.open_zarr(path, chunks=None)
    rng = np.random.default_rng(0)
    while True:
        start = int(rng.integers(hours - case.window + 1))
        ds.isel(time=slice(start, start + case.window)).load()
        yield case.window


class ZarrWindows(Dataset):
    def __init__(self, path: Path, window: int, hours: int):
        self.path, self.window, self.hours = path, window, hours
        self.arrays: list[Any] = []

    def __len__(self) -> int:
        return self.hours - self.window + 1

    def __getitem__(self, start: int) -> torch.Tensor:
        import zarr

        if not self.arrays:
            group = zarr.open_group(self.path, mode="r")
            self.arrays = [group[name] for name in NAMES]
        return standardize([a[start : start + self.window] for a in self.arrays])


def by_dataloader(path: Path, case: Case, hours: int) -> Iterator[int]:
    loader = DataLoader(
        ZarrWindows(path, case.window, hours),
        batch_size=case.batch,
        shuffle=True,
        num_workers=2,
        multiprocessing_context="forkserver",  # forked, they hang
        persistent_workers=True,
    )
    while True:
        for x in loader:
            yield x.shape[0] * x.shape[1]


def by_tensorstore(path: Path, case: Case, hours: int) -> Iterator[int]:
    import tensorstore as ts  # pyright: ignore[reportMissingImports]

    arrays = [
        ts.open(
            {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path / name)}}
        ).result()
        for name in NAMES
    ]
    rng, ahead = np.random.default_rng(0), deque()
    while True:
        while len(ahead) < min(4, 3 * case.batch):
            start = int(rng.integers(hours - case.window + 1))
            ahead.append([a[start : start + case.window].read() for a in arrays])
        standardize([future.result() for future in ahead.popleft()])
        yield case.window


def by_appa(path: Path, case: Case, hours: int, direct: bool = True) -> Iterator[int]:
    loader = WindowLoader(path, case.window, case.batch, standardizer=moments(), direct=direct)
    # Not to the end: as many batches are read ahead when the measurement stops as when it starts.
    for x, _ in itertools.islice(loader, len(loader) - loader.prefetch - 1):
        yield x.shape[0] * x.shape[1]


WAYS: dict[str, tuple[Callable[..., Iterator[int]], bool, dict[str, Any]]] = {
    "xarray": (by_xarray, False, {}),
    "DataLoader, zarr": (by_dataloader, False, {}),
    "tensorstore": (by_tensorstore, False, {}),
    "appa, page cache, first epoch": (by_appa, False, {"direct": False}),
    "appa, page cache, later epochs": (by_appa, True, {"direct": False}),
    "appa, direct": (by_appa, False, {"direct": True}),
}


class Memory(threading.Thread):
    r"""Watches the resident set of this process."""

    def __init__(self):
        super().__init__(daemon=True)
        self.before, self.peak, self.stop = self.now(), 0, threading.Event()

    @staticmethod
    def now() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    def run(self) -> None:
        while not self.stop.wait(0.02):
            self.peak = max(self.peak, self.now() - self.before)


def measure(
    way: str, path: Path, case: Case, hours: int, limit: int, seconds: float
) -> tuple[float, float | None]:
    r"""States per second of one way, and its memory in batches, if it is all in this process."""
    function, cached, options = WAYS[way]
    drop(path)
    if cached:
        fill(path)
    memory = Memory()
    memory.start()
    states = function(path, case, hours, **options)
    for _ in range(WARM if function is by_appa else 1):
        next(states)
    if not cached:
        drop(path)
    done, start = 0, time.perf_counter()
    for n in states:
        done += n
        if done * case.state_bytes >= limit or time.perf_counter() - start >= seconds:
            break
    elapsed = time.perf_counter() - start
    states.close()  # pyright: ignore[reportAttributeAccessIssue]
    memory.stop.set()
    memory.join()
    peak = None if function is by_dataloader else memory.peak / case.batch_bytes
    return done / elapsed, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small stores and short measurements")
    parser.add_argument("--directory", type=Path, default=Path("."), help="where to write stores")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(WAYS), metavar="WAY")
    parser.add_argument("--rounds", type=int, default=5, help="measurements, of which the median")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    sizes = QUICK if arguments.quick else HOURS
    limit, seconds = (1_000_000_000, 2.0) if arguments.quick else (6_000_000_000, 5.0)
    rounds = 1 if arguments.quick else arguments.rounds
    rows: list[dict[str, Any]] = []
    for shape in dict.fromkeys(case.shape for case in CASES):
        with tempfile.TemporaryDirectory(prefix="appa-loader-", dir=arguments.directory) as folder:
            path = Path(folder) / "store.zarr"
            write(path, shape, sizes[shape])
            for case in [case for case in CASES if case.shape == shape]:
                rows += run(path, case, sizes[shape], arguments.ways, limit, seconds, rounds)
    arguments.output.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))


def run(
    path: Path,
    case: Case,
    hours: int,
    ways: list[str],
    limit: int,
    seconds: float,
    rounds: int,
) -> list[dict[str, Any]]:
    r"""Measures all ways in turn, several times, since a disk's speed changes with the hour."""
    disk: dict[tuple[int, int], list[float]] = {setting: [] for setting in RAW}
    speeds: dict[str, list[float]] = {"raw disk": []}
    memory: dict[str, float] = {}
    with progress(rounds * (1 + len(ways)), case.label, "measurements") as p:
        for _ in range(rounds):
            for block, threads in RAW:
                speed = raw(path, block, threads, limit // 2) * 1e9 / case.state_bytes
                disk[block, threads].append(speed)
            p.advance()
            for way in ways:
                try:
                    speed, peak = measure(way, path, case, hours, limit, seconds)
                except ImportError:
                    continue
                finally:
                    p.advance()
                speeds.setdefault(way, []).append(speed)
                if peak is not None:
                    memory[way] = max(memory.get(way, 0.0), peak)
    speeds["raw disk"] = max(disk.values(), key=statistics.median)
    median = {way: statistics.median(values) for way, values in speeds.items()}
    return [
        {
            "case": case.label,
            "way": way,
            "states_per_second": speed,
            "gigabytes_per_second": speed * case.state_bytes / 1e9,
            "of_raw": speed / median["raw disk"],
            "times_xarray": speed / median["xarray"] if "xarray" in median else None,
            "memory_in_batches": memory.get(way),
            "rounds": speeds[way],
        }
        for way, speed in median.items()
    ]


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| states | way | states/s | GB/s | of raw disk | × xarray | memory (batches) |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        speed, memory = row["states_per_second"], row["memory_in_batches"]
        cells = (
            row["case"],
            row["way"],
            f"{speed:,.0f}" if speed >= 100 else f"{speed:.1f}",
            f"{row['gigabytes_per_second']:.2f}",
            f"{row['of_raw']:.0%}",
            "" if row["times_xarray"] is None else f"{row['times_xarray']:.1f}",
            "" if memory is None else f"{memory:.1f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
