r"""Ensembles on disk, written as they are drawn.

A Zarr store `(member, time, level, latitude, longitude)` is built in `OUT.partial/` and renamed to
`OUT` once it is complete, so that nothing is ever seen under its name but the whole. Members and
hours may come in any order and in parts of any size; which are there is noted in
`OUT.partial/.appa/`, and a rerun of the same ensemble goes on with the others. Where `OUT` ends in
`.nc` it is a NetCDF file, made of the store in the end.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import StoreError, UnfinishedStoreError
from ..locks import hold
from .ensembles import Ensemble, determining, model_digest, provenance, to_dataset
from .fields import NONNEGATIVE
from .model import Model
from .resuming import begun_otherwise, differences

__all__ = ["EnsembleWriter", "model_digest", "provenance", "quiet", "to_dataset"]

CHUNK_BYTES = 4 * 2**20


class EnsembleWriter(Ensemble):
    r"""Writes an ensemble to disk as it is drawn, in any order of members and hours.

    The store is built in `PATH.partial/` and renamed once complete; killed, the same ensemble goes
    on with what is written. A `PATH` that ends in `.nc` is a NetCDF file, made of the store in the
    end.

    Arguments:
        path: The path, which must not exist yet.
        args, kwargs: See :class:`Ensemble`.

    Example:
        >>> attrs = provenance(model, "reanalysis", seed=0)
        >>> with EnsembleWriter("analysis.zarr", model, times, 8, attrs=attrs) as writer:
        ...     for member, z in enumerate(draws):
        ...         writer.write([member], slice(None), z)
        ...     writer.finish()
    """

    def __init__(self, path: str | Path, model: Model, times: Any, members: int, **kwargs: Any):
        super().__init__(model, times, members, **kwargs)
        self.path = Path(os.path.abspath(path))
        self.path_partial = self.path.with_name(self.path.name + ".partial")
        self.directory = self.path_partial / ".appa"
        self._arrays: dict[str, Any] = {}
        self._lock: Any = None
        if self.path.exists():
            raise StoreError(f"{self.path} exists already; remove it or choose another name")
        if self.path_partial.exists() and not self.directory.is_dir():
            raise StoreError(
                f"{self.path_partial} is in the way: it is no unfinished ensemble; move it"
            )
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = hold(self.directory)
            self._begin()
        except OSError as error:
            self.close()
            raise self._failed(error) from error
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        signature = {
            "attributes": determining(self.attrs),
            "variables": {name: list(shape) for name, (_, shape, _) in self.shapes().items()},
            "hours": [str(t) for t in self.times[[0, -1]].astype("datetime64[h]")],
            "levels": list(self.levels),
            "negatives": self.negatives,
        }
        signature = json.loads(json.dumps(signature))
        notes = self.directory / "ensemble.json"
        if notes.exists():
            if told := list(differences(json.loads(notes.read_text()), signature)):
                steps = self.path.with_name(self.path.name + ".run")
                raise StoreError(begun_otherwise([self.path_partial, steps], told))
        else:  # nothing, or killed before the first value
            for item in self.path_partial.iterdir():
                if item != self.directory:
                    shutil.rmtree(item) if item.is_dir() else item.unlink()
            self._create()
            partial = notes.with_suffix(".partial")
            partial.write_text(json.dumps(signature, indent=1))
            os.replace(partial, notes)
        self._written, self._negative = self._read_log()

    def _create(self) -> None:
        import dask.array
        import xarray as xr
        from zarr.codecs import BloscCodec

        data, encoding = {}, {}
        compressor = BloscCodec(cname="zstd", clevel=3, shuffle="shuffle")
        for name, (dims, shape, attrs) in self.shapes().items():
            blank = dask.array.empty(shape, chunks=-1, dtype=np.float32)  # no values, no memory
            data[name] = (dims, blank, attrs)
            # a member's hours together as long as they are small
            hours = max(1, min(shape[1], CHUNK_BYTES // (4 * math.prod(shape[2:]))))
            encoding[name] = {"chunks": (1, hours, *shape[2:]), "compressors": [compressor]}
        ds = xr.Dataset(data, self.coords(), self.attrs)
        for name in ("latitude", "longitude"):
            if name in ds:
                encoding[name] = {"_FillValue": None}
        encoding["time"] = {"units": "hours since 1900-01-01", "dtype": "int64"}
        with quiet():
            ds.to_zarr(
                self.path_partial,
                mode="a",
                zarr_format=3,
                consolidated=False,
                compute=False,
                encoding=encoding,
            )

    # ---------------------------------------------------------------- what is written

    def _read_log(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        written = np.zeros((self.members, self.hours), bool)
        negative = {
            f.name: np.zeros((self.members, self.hours), np.int64)
            for f in self.fields
            if f.name in NONNEGATIVE
        }
        log = self.directory / "written.jsonl"
        for line in log.read_text().splitlines() if log.exists() else ():
            try:
                member, first, last, counts = json.loads(line)
            except ValueError:  # cut short by a kill
                continue
            written[member, first:last] = True
            for name, count in counts.items():
                negative[name][member, first:last] = count
        self._log = open(log, "a")  # noqa: SIM115
        self._log.write("\n")
        return written, negative

    def written(self, members: slice | Sequence[int], hours: slice) -> bool:
        r"""Whether a part of the ensemble is on disk."""
        chosen, (first, last) = self._part(members, hours)
        return bool(self._written[chosen, first:last].all())

    def _place(self, name: str, where: tuple[int | slice, ...], values: np.ndarray) -> None:
        import zarr
        from zarr.storage import LocalStore

        try:
            if name not in self._arrays:
                store = LocalStore(self.path_partial / name)
                self._arrays[name] = zarr.open_array(store, mode="r+")
            self._arrays[name][where] = values
        except OSError as error:
            raise self._failed(error) from error

    def _note(self, member: int, first: int, last: int, negative: dict[str, list[int]]) -> None:
        try:
            self._log.write(json.dumps([member, first, last, negative]) + "\n")
            self._log.flush()
        except OSError as error:
            raise self._failed(error) from error
        self._written[member, first:last] = True
        for name, count in negative.items():
            self._negative[name][member, first:last] = count

    # ---------------------------------------------------------------- the end

    def finish(self) -> Path:
        r"""Gives the complete ensemble its name; refuses where a part of it is missing."""
        import zarr

        if not self._written.all():
            member, hour = (int(k) for k in np.argwhere(~self._written)[0])
            raise UnfinishedStoreError(
                f"{int((~self._written).sum())} of the {self._written.size} states of {self.path} "
                f"are not written, the first of member {member} at "
                f"{self.times[hour].astype('datetime64[h]')}; rerun to write them"
            )
        try:
            for name in self._negative:
                total = {name: int(self._negative[name].sum())}
                array = zarr.open_array(self.path_partial / name, mode="r+")
                array.attrs.update(self._told(name, total))
            with quiet():
                # what became known on the way is told too
                zarr.open_group(self.path_partial, mode="r+").attrs.update(self.attrs)
                # not in the v3 specification, but readers over HTTP cannot list, hence need it
                zarr.consolidate_metadata(self.path_partial, zarr_format=3)
            if self.path.suffix == ".nc":
                self._convert()
            else:
                os.rename(self.path_partial, self.path)
                shutil.rmtree(self.path / ".appa", ignore_errors=True)
        except (OSError, RuntimeError) as error:  # netCDF's library raises the latter
            raise self._failed(error) from error
        self.close()
        return self.path

    def _convert(self) -> None:
        r"""Writes the store as a NetCDF file, a chunk at a time."""
        import xarray as xr
        from dask.config import set as set_options

        partial = self.path.with_name(f".{self.path.name}.partial")
        try:
            with xr.open_zarr(self.path_partial, chunks={}) as ds:
                encoding: dict[str, Any] = {}
                for name, var in ds.variables.items():
                    chunks = var.encoding.get("chunks")
                    time = {k: v for k, v in var.encoding.items() if k in ("units", "calendar")}
                    var.encoding = time
                    if str(name) in self.shapes():
                        encoding[str(name)] = {"zlib": True, "complevel": 1, "chunksizes": chunks}
                    elif var.dtype.kind == "f":
                        encoding[str(name)] = {"_FillValue": None}
                with set_options(scheduler="synchronous"):
                    ds.to_netcdf(partial, engine="netcdf4", encoding=encoding)
            os.replace(partial, self.path)
        finally:
            partial.unlink(missing_ok=True)
        shutil.rmtree(self.path_partial, ignore_errors=True)

    def _failed(self, error: Exception) -> StoreError:
        return StoreError(
            f"cannot write {self.path_partial} ({error}); what is there is kept: make room or "
            "mend that, and the same command goes on"
        )

    def close(self) -> None:
        r"""Lets another process go on with the ensemble."""
        for file in (self._lock, getattr(self, "_log", None)):
            if file is not None:
                file.close()
        self._lock = None

    def __enter__(self) -> EnsembleWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def quiet() -> Iterator[None]:
    r"""Zarr's warnings: that we keep notes beside its arrays, and that it is ahead of its time."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Consolidated metadata")
        warnings.filterwarnings("ignore", message="Object at .appa")
        yield
