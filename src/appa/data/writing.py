r"""How every long job writes a store.

A store is built in `OUT.partial/` and renamed to `OUT` when it is complete, so that no reader of
any kind ever sees half a store under its name; until then `OUT.partial/` has no root metadata, and
is no store to a Zarr reader either. Time is cut into blocks. A variable's part of a block that is
on disk leaves a marker in `OUT.partial/.appa/`, and a rerun with the same plan writes the others
only. Zarr writes a shard under another name and renames it, so that a process killed at any time
leaves whole shards, and no marker where one is missing.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from ..errors import DataError, StoreError, UnfinishedStoreError
from ..locks import hold
from .layout import COORDINATES, make_template, shard_hours
from .shards import write_shard

__all__ = ["COORDINATES", "StoreWriter", "make_template", "shard_hours", "unfinished"]

FORMAT = 1


class StoreWriter:
    r"""Writes a store block by block, in any order, from any number of processes.

    One job holds a store's lock. Copies of the writer that are pickled into workers do not: they
    write blocks on behalf of the job.

    Arguments:
        path: The store's path, which must not exist yet.
        template: Coordinates, and variables with their dimensions, types and attributes. Variables
            along time start with that dimension and their values are not looked at; those without
            time are written at once.
        block: The hours of a block, by default those of a shard. A shard holds the largest number
            of hours that divides a block and that :func:`shard_hours` allows.
        compression: `"none"`, or `"zstd"` for Blosc with shuffled bytes.
        plan: What the job is, as plain JSON. A rerun continues only what has the same plan.

    Example:
        >>> with StoreWriter("era5.zarr", template, plan={"source": "arco"}) as writer:
        ...     for i in writer.remaining:
        ...         writer.write(i, source.isel(time=writer.blocks[i]))
        ...     writer.finish()
    """

    def __init__(
        self,
        path: str | Path,
        template: xr.Dataset,
        *,
        block: int | None = None,
        compression: str = "none",
        plan: Mapping[str, Any] | None = None,
    ):
        self.path = Path(os.path.abspath(path))
        self.path_partial = self.path.with_name(self.path.name + ".partial")
        self.directory = self.path_partial / ".appa"
        self._coords: xr.Dataset | None = None
        self._lock: Any = None

        if compression not in ("none", "zstd"):
            raise StoreError(f"compression {compression!r} is neither 'none' nor 'zstd'")
        if "time" not in template.dims or template.sizes["time"] == 0:
            raise StoreError(f"there is no time to write to {self.path}: the template has none")
        self.variables: dict[str, tuple[str, ...]] = {}
        self.forms: dict[str, tuple[tuple[int, ...], np.dtype]] = {}  # an hour's shape, and type
        largest = 1
        for name, var in template.data_vars.items():
            if "time" not in var.dims:
                continue
            if var.dims[0] != "time":
                raise StoreError(f"the dimensions of {name!r} are {var.dims}: time must be first")
            self.variables[str(name)] = tuple(map(str, var.dims))
            self.forms[str(name)] = (var.shape[1:], var.dtype)
            largest = max(largest, var.dtype.itemsize * int(np.prod(var.shape[1:])))
        if not self.variables:
            raise StoreError(f"there is nothing to write to {self.path}: no variable has time")

        most = shard_hours(largest, 1)
        self.hours = int(template.sizes["time"])
        self.block = int(block or most)
        self.shard = next(n for n in range(min(most, self.block), 0, -1) if self.block % n == 0)
        self.compression = compression
        self.plan = json.loads(json.dumps(dict(plan or {})))

        try:
            self._begin(template)
        except OSError as error:
            self.close()
            raise self._failed(error) from error
        except BaseException:
            self.close()
            raise

    # ---------------------------------------------------------------- beginning and continuing

    def _begin(self, template: xr.Dataset) -> None:
        if self.path.exists():
            # A job killed between renaming and tidying up leaves its notes in a finished store.
            shutil.rmtree(self.path / ".appa", ignore_errors=True)
            raise StoreError(f"{self.path} exists already; remove it or choose another name")
        if (
            self.path_partial.exists()
            and not self.directory.exists()
            and (not self.path_partial.is_dir() or any(self.path_partial.iterdir()))
        ):
            raise StoreError(
                f"{self.path_partial} is in the way: it is not an unfinished store of Appa; "
                "move it elsewhere"
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        self._acquire()

        signature = self._signature(template)
        notes = self.directory / "plan.json"
        if notes.exists():
            differences = list(_differences(json.loads(notes.read_text()), signature))
            if differences:
                raise StoreError(
                    f"{self.path_partial} was begun with another plan: {'; '.join(differences)}. "
                    f"Rerun with the plan it was begun with, or remove {self.path_partial}"
                )
            return

        # Nothing, or killed before the first block: begin anew.
        for item in [*self.path_partial.iterdir(), *self.directory.iterdir()]:
            if item.name not in (".appa", "lock"):
                shutil.rmtree(item) if item.is_dir() else item.unlink()
        self._create(template)
        _write_atomically(notes, json.dumps(signature, indent=1))

    def _acquire(self) -> None:
        self._lock = hold(self.directory, self.path)
        if self.path.exists() or not (self.directory / "lock").exists():
            raise StoreError(f"{self.path} was finished by another process just now")

    def _signature(self, template: xr.Dataset) -> dict[str, Any]:
        described: dict[str, Any] = {
            "format": FORMAT,
            "plan": self.plan,
            "block": self.block,
            "shard": self.shard,
            "compression": self.compression,
            "variables": {name: list(dims) for name, dims in self.variables.items()},
        }
        for name, var in template.variables.items():
            if name in self.variables:
                continue
            values = np.ascontiguousarray(var.values)
            if values.dtype.kind == "M":
                values = values.astype("datetime64[s]")
            ends = values.ravel()[[0, -1]] if values.size else []
            described[str(name)] = {
                "shape": list(values.shape),
                "ends": [str(end) for end in ends],
                "digest": hashlib.sha256(values.tobytes()).hexdigest()[:16],
            }
        return described

    def _create(self, template: xr.Dataset) -> None:
        import zarr
        from zarr.codecs import BloscCodec
        from zarr.storage import LocalStore

        root = self.directory / "template.zarr"
        fixed = template.drop_vars(list(self.variables)).load()
        encoding: dict[Any, dict[str, Any]] = {
            name: {"_FillValue": None} for name, v in fixed.variables.items() if v.dtype.kind == "f"
        }
        whole = (fixed.time.values.astype("datetime64[s]").astype(np.int64) % 3600 == 0).all()
        unit = "hours" if whole else "seconds"
        encoding["time"] = {"units": f"{unit} since 1900-01-01", "dtype": "int64"}
        for var in fixed.variables.values():
            var.encoding = {}
        for name, var in fixed.variables.items():
            encoding.setdefault(name, {})["chunks"] = var.shape
        fixed.to_zarr(root, mode="w", zarr_format=3, consolidated=False, encoding=encoding)
        compressors = None
        if self.compression == "zstd":
            compressors = BloscCodec(cname="zstd", clevel=3, shuffle="shuffle")
        for name, dims in self.variables.items():
            var = template[name]
            zarr.create_array(
                LocalStore(root / name),
                shape=var.shape,
                chunks=(1, *var.shape[1:]),
                shards=(self.shard, *var.shape[1:]),
                dtype=var.dtype,
                compressors=compressors,
                filters=None,
                fill_value=np.nan if var.dtype.kind == "f" else 0,
                dimension_names=dims,
                attributes=_plain(var.attrs),
            )
            (self.directory / "done" / name).mkdir(parents=True)
        with warnings.catch_warnings():
            # Not in the v3 specification, but readers over HTTP cannot list, hence need it.
            warnings.filterwarnings("ignore", message="Consolidated metadata")
            zarr.consolidate_metadata(root, zarr_format=3)
        for item in root.iterdir():
            if item.is_dir():  # all but the root's metadata: that makes a store
                shutil.copytree(item, self.path_partial / item.name)

    # ---------------------------------------------------------------- the state of the work

    @property
    def coords(self) -> xr.Dataset:
        r"""The coordinates and the fields without time, read back from disk."""
        if self._coords is None:
            root = self.directory / "template.zarr"
            template = xr.open_zarr(root, chunks=None)
            self._coords = template.drop_vars(list(self.variables)).load()
        return self._coords

    @property
    def blocks(self) -> list[slice]:
        r"""The hours of each block."""
        return [
            slice(start, min(start + self.block, self.hours))
            for start in range(0, self.hours, self.block)
        ]

    @property
    def finished(self) -> set[int]:
        r"""The blocks of which every variable is on disk."""
        return set.intersection(*(self._marked(name) for name in self.variables))

    @property
    def remaining(self) -> list[int]:
        r"""The blocks left to write, in order."""
        finished = self.finished
        return [i for i in range(len(self.blocks)) if i not in finished]

    def missing(self, i: int) -> list[str]:
        r"""The variables of block `i` that are not on disk yet."""
        done = self.directory / "done"
        return [name for name in self.variables if not (done / name / str(i)).exists()]

    def _marked(self, name: str) -> set[int]:
        names = os.listdir(self.directory / "done" / name)
        return {int(marker) for marker in names if marker.isdigit()}

    # ---------------------------------------------------------------- writing

    def write(self, i: int, block: xr.Dataset) -> None:
        r"""Writes block `i` and marks it; of some variables, where `block` has only some."""
        names = [name for name in self.variables if name in block]
        unknown = [str(name) for name in block.data_vars if name not in self.variables]
        unknown = [name for name in unknown if name not in self.coords]
        if unknown or not names:
            raise DataError(
                f"block {i} of {self.path} has {', '.join(unknown) or 'no variable'}; "
                f"expected {', '.join(self.variables)}"
            )
        hours = self.blocks[i]
        for name, index in block.indexes.items():
            if name not in self.coords:
                continue
            known = self.coords.indexes[name]
            if not index.equals(known[hours] if name == "time" else known):
                raise DataError(f"block {i} of {self.path} has another {name} than its place")
        for name in names:
            self.put(name, hours.start, block[name].transpose(*self.variables[name]).values)
        self.mark(i, names)

    def put(self, name: str, start: int, values: np.ndarray) -> None:
        r"""Writes whole shards of a variable from hour `start` on, and marks nothing.

        For jobs that hold less than a block in memory; :meth:`mark` follows when it is complete.
        """
        stop = start + len(values)
        shape, dtype = self.forms[name]
        if start % self.shard or (stop % self.shard and stop != self.hours):
            raise StoreError(f"hours {start} to {stop} are not whole shards of {self.shard} hours")
        if values.shape[1:] != shape:
            raise DataError(f"{name} has shape {values.shape[1:]}, not {shape}")
        if not (self.path_partial / name).is_dir():
            raise StoreError(f"{self.path_partial} is gone: its job has ended, or it was moved")
        array = None if self.compression == "none" else self._array(name)
        try:
            # One shard at a time, since Zarr holds a second copy of what it encodes.
            for first in range(start, stop, self.shard):
                last = min(first + self.shard, stop)
                part = values[first - start : last - start]
                key = "/".join(["c", str(first // self.shard), *["0"] * len(shape)])
                file = self.path_partial / name / key
                if array is None:
                    write_shard(file, part.astype(dtype, copy=False), self.shard)
                    continue
                array[first:last] = part
                with open(file, "rb") as f:
                    os.fsync(f.fileno())
        except OSError as error:
            raise self._failed(error) from error

    def _array(self, name: str) -> Any:
        import zarr
        from zarr.storage import LocalStore

        array = zarr.open_array(LocalStore(self.path_partial / name), mode="r+")
        # An hour that is all NaN is an hour too (opening ignores this configuration).
        return array.with_config({"write_empty_chunks": True})

    def mark(self, i: int, names: Iterable[str] | None = None) -> None:
        r"""Marks variables of block `i` as written, by default all."""
        try:
            for name in self.variables if names is None else names:
                _write_atomically(self.directory / "done" / name / str(i), "")
        except OSError as error:
            raise self._failed(error) from error

    def finish(self) -> Path:
        r"""Gives the complete store its name; refuses where blocks are missing."""
        remaining = self.remaining
        if remaining:
            what = ", ".join(self.missing(remaining[0]))
            raise UnfinishedStoreError(
                f"{len(remaining)} of the {len(self.blocks)} blocks of {self.path} are not "
                f"written, the first is block {remaining[0]} ({what}); rerun to write them"
            )
        if self.path.exists():
            raise StoreError(f"{self.path} exists already; remove it and rerun to finish")
        try:
            for name in self.variables:  # what killed writers left
                for stray in (self.path_partial / name).rglob("*.partial"):
                    stray.unlink()
            group = (self.directory / "template.zarr" / "zarr.json").read_text()
            _write_atomically(self.path_partial / "zarr.json", group)
            os.rename(self.path_partial, self.path)
        except OSError as error:
            raise self._failed(error) from error
        shutil.rmtree(self.path / ".appa", ignore_errors=True)
        self.close()
        return self.path

    def _failed(self, error: OSError) -> StoreError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return StoreError(
                f"no room left for {self.path_partial} ({error.strerror}); what is finished is "
                "kept: make room and rerun"
            )
        return StoreError(f"cannot write {self.path_partial}: {error}")

    # ---------------------------------------------------------------- one job, many workers

    def close(self) -> None:
        r"""Lets another job go on with the store."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None, "_coords": None}

    def __repr__(self) -> str:
        done = "closed" if not self.directory.exists() else f"{len(self.finished)} finished"
        return f"StoreWriter({str(self.path)!r}, {len(self.blocks)} blocks, {done})"


def unfinished(path: str | Path) -> tuple[int, int] | None:
    r"""The finished and all blocks of the unfinished store at `path`, itself an `X.partial` or `X`.

    Returns:
        `None` where there is no unfinished store.
    """
    path = Path(path)
    partial = path if path.name.endswith(".partial") else path.with_name(path.name + ".partial")
    if not (partial / ".appa").is_dir():
        return None
    try:
        signature = json.loads((partial / ".appa" / "plan.json").read_text())
    except (OSError, ValueError):
        return 0, 0
    marked = []
    for name in signature["variables"]:
        with contextlib.suppress(OSError):
            marked.append({m for m in os.listdir(partial / ".appa" / "done" / name) if m.isdigit()})
    blocks = -(-signature["time"]["shape"][0] // signature["block"])
    return len(set.intersection(*marked)) if marked else 0, blocks


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "w") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, path)


def _plain(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(k): v.tolist() if hasattr(v, "tolist") else v for k, v in attrs.items()}


def _differences(old: Any, new: Any, where: str = "") -> Iterable[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        if "digest" in old and "digest" in new:
            if old != new:
                yield f"{where} was {_span(old)}, is {_span(new)}"
            return
        for key in [*old, *(key for key in new if key not in old)]:
            name = key if where in ("", "plan") else f"{where}.{key}"
            yield from _differences(old.get(key), new.get(key), name)
    elif old != new:
        yield f"{where} was {old!r}, is {new!r}"


def _span(described: Mapping[str, Any]) -> str:
    ends = " to ".join(described["ends"])
    return f"{'×'.join(map(str, described['shape'])) or 'one'} values from {ends}"
