r"""Copies a selection of a store, such as a public copy of ERA5, into a store for training.

The work is cut into parts, one variable in one block of hours, which Dask runs on threads or on a
cluster. A part reads one hour at a time, and so holds no more than a shard of its variable and an
hour of the source. Finished parts are kept: a rerun copies the others.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import AppaError, StoreError, nearest
from ..machine import cores
from ..progress import progress
from .grids import Grid
from .reduction import connect
from .selection import (
    Selection,
    may_be_undefined,
    open_source,
    parse_grid,
    position,
    read,
    size_in_words,
)
from .variables import ATMOSPHERIC, LEVELS, SURFACE
from .writing import StoreWriter, shard_hours, unfinished

__all__ = ["SOURCES", "Selection", "fetch", "parse_grid"]

SOURCES: dict[str, str] = {
    "arco": "gs://gcp-public-data-arco-era5/ar/full_37-1h-0p25deg-chunk-1.zarr-v3",
    "weatherbench2": (
        "gs://weatherbench2/datasets/era5/1959-2023_01_10-full_37-1h-0p25deg-chunk-1.zarr"
    ),
}


def fetch(
    source: str | Path,
    path: str | Path,
    *,
    start: str | np.datetime64,
    end: str | np.datetime64,
    surface: Sequence[str] = SURFACE,
    atmospheric: Sequence[str] = ATMOSPHERIC,
    levels: Sequence[int] = LEVELS,
    grid: Grid | None = None,
    every: int = 1,
    compression: str = "none",
    block: int | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
) -> Path:
    r"""Copies a selection of a store into a local store laid out for training.

    Arguments:
        source: `"arco"`, `"weatherbench2"`, or anything :func:`appa.data.stores.open_store` opens.
        path: The store to write. If it was begun before with the same arguments, it is completed.
        start: The first hour.
        end: The last hour; a day or a month stands for its last hour.
        surface: The surface variables.
        atmospheric: The variables on levels.
        levels: The pressure levels, in hPa.
        grid: The grid to remap to, conservatively; by default that of the source.
        every: The hours between states.
        compression: `"none"` or `"zstd"`.
        block: The hours a part holds, by default a day or a shard, whichever is longer.
        workers: The threads to run on; by default as many as cores and memory allow, at most 8.
        scheduler: The address of a Dask scheduler, whose workers see the same file system.

    Example:
        >>> fetch("weatherbench2", "era5.zarr", start="2020-01-01", end="2020-01-31",
        ...       grid=Grid("equiangular", 121, 240))
    """
    path = Path(path)
    if path.exists():
        raise StoreError(f"{path} exists already; remove it or choose another name")
    source = SOURCES.get(str(source), str(source))
    if os.path.exists(source):
        source = os.path.abspath(source)  # workers may run elsewhere
    elif source.isalnum() and source != "planet":
        raise StoreError(f"there is no source {source!r}{nearest(source, [*SOURCES, 'planet'])}")
    open_source.cache_clear()
    selection = Selection(
        source,
        str(start),
        str(end),
        tuple(surface),
        tuple(atmospheric),
        tuple(sorted({int(level) for level in levels})) if atmospheric else (),
        grid,
        every,
    )
    template = selection.template()
    block = block or max(24, shard_hours(selection.largest))
    plan = {"job": "fetch", **selection.describe()}
    print(selection.summary(template.nbytes, compression), file=sys.stderr)
    if compression == "none":
        done, total = unfinished(path) or (0, 0)
        _check_room(path, template.nbytes * (1 - done / max(total, 1)))
    with StoreWriter(path, template, block=block, compression=compression, plan=plan) as writer:
        parts = [(i, name) for i in writer.remaining for name in writer.missing(i)]
        total = len(writer.blocks) * len(writer.variables)
        if len(parts) < total:
            told = f"{total - len(parts)} of {total} parts are there already; copying the others"
            print(told, file=sys.stderr)
        copy = partial(_copy, writer, selection)
        with progress(total, f"fetching {path.name}", unit="parts") as p:
            p.skip(total - len(parts))
            if scheduler is None:
                _on_threads(copy, parts, workers or _workers(selection), p.advance)
            else:
                _on_cluster(copy, parts, scheduler, p.advance)
        for warning in _undefined(writer, source):
            print(warning, file=sys.stderr)
        return writer.finish()


# ---------------------------------------------------------------- one part


def _copy(writer: StoreWriter, selection: Selection, part: tuple[int, str]) -> None:
    r"""Copies one variable of one block, and notes the hours that have NaN and should not.

    Runs in any thread or process.
    """
    i, name = part
    undefined: dict[str, int] = {}
    ds = open_source(selection.source)
    var = ds[name]
    if "level" in var.dims:
        index = np.searchsorted(ds.level.values, selection.levels)
        # Zarr reads a slice faster than a list of positions.
        adjacent = (np.diff(index) == 1).all()
        var = var.isel(level=slice(index[0], index[-1] + 1) if adjacent else index)
    hours = writer.blocks[i]
    index = position(ds, writer.coords.time.values[hours])
    tail = var.shape[1:-2] + selection.shape
    for first in range(hours.start, hours.stop, writer.shard):
        last = min(first + writer.shard, hours.stop)
        values = np.empty((last - first, *tail), np.float32)
        for k in range(first, last):
            field = read(var.isel(time=int(index[k - hours.start])), selection.source)
            values[k - first] = selection.remap(name, field)
            points = int(np.isnan(field).sum())
            if points == field.size or (points and not may_be_undefined(name)):
                hour = writer.coords.time.values[k].astype("datetime64[h]")
                undefined[str(hour)] = points
        writer.put(name, first, values)
        del values  # before the next shard takes as much
    if undefined:  # on disk, so that a job that is killed and run again tells all
        note = writer.directory / f"undefined-{name}-{i}.json"
        note.write_text(json.dumps({"size": int(np.prod(var.shape[1:])), "hours": undefined}))
    writer.mark(i, [name])


def _undefined(writer: StoreWriter, source: str) -> list[str]:
    r"""What to say about NaN in the source, a line for each variable."""
    warnings = []
    for name in writer.variables:
        hours: dict[str, int] = {}
        size = 0
        for note in writer.directory.glob(f"undefined-{name}-*.json"):
            found = json.loads(note.read_text())
            hours.update(found["hours"])
            size = found["size"]
        if not hours:
            continue
        when = f"in 1 hour, {min(hours)}"
        if len(hours) > 1:
            when = f"in {len(hours)} hours from {min(hours)} to {max(hours)}"
        warnings.append(
            f"warning: {name} has NaN {when}, at up to {max(hours.values())} of {size} values of "
            f"an hour in {source}, where there should be none; so has the copy: see "
            f"`appa data check {writer.path.name}`"
        )
    return warnings


# ---------------------------------------------------------------- running


Copy = Callable[[tuple[int, str]], Any]
Parts = Sequence[tuple[int, str]]


def _on_threads(copy: Copy, parts: Parts, workers: int, advance: Callable[[], None]) -> list:
    import dask
    from dask.callbacks import Callback
    from dask.delayed import delayed

    task: Any = delayed(copy, pure=False, traverse=False)
    # Dask begins independent tasks with the last name: so named, they run in order of time.
    n = len(parts)
    tasks = [task(part, dask_key_name=f"{n - k:09d}") for k, part in enumerate(parts)]
    with Callback(posttask=lambda *_: advance()):
        return list(dask.compute(*tasks, scheduler="threads", num_workers=workers))  # pyright: ignore


def _on_cluster(copy: Copy, parts: Parts, address: str, advance: Callable[[], None]) -> list:
    from distributed import as_completed

    results = []
    with connect(address) as client:
        waiting = iter(parts)
        threads: Any = client.nthreads()
        ahead = 2 * max(sum(threads.values()), 1)  # parts the scheduler knows of at once
        submit = partial(client.submit, copy, pure=False)
        running = as_completed([submit(part) for part in islice(waiting, ahead)], loop=client.loop)
        for future in running:
            try:
                results.append(future.result())
            except Exception as error:
                client.cancel(list(running.futures))
                if isinstance(error, AppaError):
                    raise
                raise StoreError(
                    f"a part failed on the cluster ({type(error).__name__}: {error}); workers need "
                    "the same file system and packages. What is finished is kept: rerun to continue"
                ) from error
            advance()
            for part in islice(waiting, 1):
                running.add(submit(part))
    return results


def _workers(selection: Selection) -> int:
    r"""Threads that cores and half of the memory allow for, at most 8."""
    hours = shard_hours(selection.largest)
    ds = open_source(selection.source)
    chunk = ds.sizes["latitude"] * ds.sizes["longitude"] * ds.sizes.get("level", 1)
    # A shard and two copies while it is encoded; an hour of the source and its rearranged copy.
    need = 4 * (3 * hours * selection.largest + 2 * chunk)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # Reading over a network is mostly waiting: two threads a core.
    return int(np.clip(memory / 2 // need, 1, min(8, 2 * cores())))


def _check_room(path: Path, size: float) -> None:
    folder = next(p for p in path.absolute().parents if p.exists())
    free = shutil.disk_usage(folder).free
    if size > free:
        raise StoreError(
            f"{path} still needs {size_in_words(size)}, and {folder} has {size_in_words(free)} "
            "free; choose fewer hours or levels, a coarser grid, compression, or another disk"
        )
