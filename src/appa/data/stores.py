r"""Opens whatever holds an atmosphere as the same canonical dataset.

A store is a Zarr store of version 2 or 3, NetCDF files, a URL of either, or the bundled planet.
Opening reads coordinates only; values are read when they are asked for. What cannot be opened says
why: a name that is not there, a store whose writing was interrupted, a file that is cut short.
"""

from __future__ import annotations

import difflib
import glob
import json
import os
import socket
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from ..errors import DataError, StoreError, UnfinishedStoreError
from .canonical import ALIASES, NOTE, canonical_chunks, canonicalize, unrecognised
from .direct import with_direct_reads
from .variables import STATIC, VARIABLES
from .writing import unfinished

__all__ = ["NETCDF", "canonicalize", "consolidated", "missing", "open_store"]

NETCDF = (".nc", ".nc4", ".netcdf", ".cdf", ".h5")


def open_store(
    path: str | Path | Sequence[str | Path] | xr.Dataset,
    *,
    chunks: Mapping[str, int] | str | None = None,
) -> xr.Dataset:
    r"""Opens a store as a canonical dataset, lazily.

    Arguments:
        path: `"planet"`, the path or URL of a Zarr store or NetCDF file, a pattern such as
            `"era5/*.nc"`, a list of NetCDF files, or a dataset.
        chunks: `None` to read on indexing, without Dask; otherwise the chunks of Dask arrays, `{}`
            for those of the store. Several NetCDF files are Dask arrays in any case.

    Example:
        >>> ds = open_store("era5.zarr")
        >>> ds["temperature"].sel(level=500).isel(time=0).values  # reads one hour
    """
    if isinstance(path, xr.Dataset):
        name, ds = "the dataset", path
    elif str(path) == "planet":
        from .planet import open_planet

        name, ds = "planet", open_planet()
    elif isinstance(path, (str, Path)):
        name, ds = str(path), _open(str(path))
    else:
        name, ds = f"{len(path)} files", _open_files([Path(p) for p in path])
    ds = _canonical(name, ds)
    return ds if chunks is None else canonical_chunks(ds, chunks)


def _canonical(name: str, ds: xr.Dataset) -> xr.Dataset:
    try:
        return canonicalize(ds)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None


def _open(path: str) -> xr.Dataset:
    if path.startswith("file://"):
        path = path.removeprefix("file://")
    if "://" in path or "::" in path:
        return _open_url(path)
    if glob.has_magic(path) and not os.path.exists(path):
        files = sorted(Path(p) for p in glob.glob(path))
        if not files:
            raise StoreError(f"no file matches {path}")
        return _open_files(files)

    local = Path(path)
    blocks = unfinished(local)
    if blocks and (local.name.endswith(".partial") or not local.exists()):
        done, total = blocks
        raise UnfinishedStoreError(
            f"{path} is unfinished: {done} of {total} blocks are written; rerun the command that "
            "was writing it, with the same arguments, to complete it"
        )
    if not local.exists():
        raise StoreError(missing(local))
    if local.is_file():
        return _open_files([local])
    if any((local / mark).exists() for mark in ("zarr.json", ".zgroup", ".zmetadata")):
        return _open_zarr(path, consolidated=consolidated(local))
    files = sorted(p for p in local.iterdir() if p.suffix in NETCDF)
    if files:
        return _open_files(files)
    raise StoreError(
        f"{path} is a directory but no store: it has neither zarr.json nor .zgroup, nor NetCDF "
        f"files; it holds {_some(p.name for p in local.iterdir())}"
    )


def _open_zarr(path: str, **options: Any) -> xr.Dataset:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Failed to open Zarr store with consol")
            ds = xr.open_dataset(path, engine="zarr", decode_cf=False, cache=False, **options)
    except ImportError as error:
        raise StoreError(
            f"{path} needs a package that is not installed ({error}); install the extra with "
            "pip install 'appa-assimilation[era5]'"
        ) from error
    except Exception as error:  # each file system and codec has exceptions of its own
        raise StoreError(f"{path} cannot be opened as a Zarr store: {_cause(error)}") from error
    return _decode(path, with_direct_reads(ds, path))


def _open_files(files: Sequence[Path]) -> xr.Dataset:
    for file in files:
        if not file.exists():
            raise StoreError(missing(file))
    if len(files) == 1:
        return _decode(str(files[0]), _open_netcdf(files[0]))
    # Joining lazily takes Dask; an hour a chunk keeps reads of one state small.
    parts = []
    for file in files:
        part = _canonical(str(file), _decode(str(file), _open_netcdf(file)))
        parts.append(part.chunk({"time": 1} if "time" in part.dims else {}))
    try:
        ds: Any = xr.combine_by_coords(
            parts,
            data_vars="minimal",
            coords="minimal",
            compat="override",
            join="exact",
            combine_attrs="drop_conflicts",
        )
    except ValueError as error:
        raise DataError(f"{files[0]} … {files[-1]} do not fit together: {error}") from error
    ds.encoding[NOTE] = {old: new for part in parts for old, new in unrecognised(part).items()}
    return ds


def _open_netcdf(file: Path) -> xr.Dataset:
    if file.stat().st_size == 0:
        raise StoreError(f"{file} is empty; copy or write it again")
    try:
        _check_classic(file)
        return xr.open_dataset(file, decode_cf=False, cache=False)
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        raise StoreError(
            f"{file} cannot be read as NetCDF ({_cause(error)}): it is cut short or damaged, or is "
            "something else; copy or write it again"
        ) from error


def _check_classic(file: Path) -> None:
    r"""Raises where a file of NetCDF's classic format is cut short: its library reads zeros."""
    with open(file, "rb") as f:
        if f.read(4) not in (b"CDF\x01", b"CDF\x02"):
            return

    from scipy.io import netcdf_file

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the map closes with its last array
        netcdf_file(file, mmap=True).close()


def _open_url(url: str) -> xr.Dataset:
    if url.lower().endswith(NETCDF):
        import fsspec

        try:
            options: dict[str, Any] = {_scheme(url): _options(url)}
            file = fsspec.open_local(f"simplecache::{url}", **options)
        except ImportError as error:
            raise StoreError(
                f"{url} needs a package that is not installed ({error}); install the extra with "
                "pip install 'appa-assimilation[era5]'"
            ) from error
        except Exception as error:
            raise StoreError(f"{url} cannot be copied: {_cause(error)}") from error
        return _open_files([Path(str(file))])
    if _scheme(url) in ("gs", "gcs") and not {"HTTPS_PROXY", "https_proxy"} & set(os.environ):
        # Its client would try for minutes.
        try:
            socket.getaddrinfo("storage.googleapis.com", 443)
        except OSError as error:
            raise StoreError(
                f"{url} cannot be reached: no network ({error}); connect, set HTTPS_PROXY if there "
                "is a proxy, or take a source on this machine: a path, or 'planet'"
            ) from error
    return _open_zarr(url, storage_options=_options(url) or None)


def _options(url: str) -> dict[str, Any]:
    r"""Public buckets need no account; where there is one, it is used."""
    scheme = _scheme(url)
    if scheme in ("gs", "gcs") and "GOOGLE_APPLICATION_CREDENTIALS" not in os.environ:
        return {"token": "anon"}
    if scheme in ("s3", "s3a") and not {"AWS_PROFILE", "AWS_ACCESS_KEY_ID"} & set(os.environ):
        return {"anon": True}
    return {}


def _scheme(url: str) -> str:
    return url.split("://")[0].split("::")[-1]


def _decode(path: str, ds: xr.Dataset) -> xr.Dataset:
    r"""Decodes what is known of a dataset: the rest may be in any form."""
    known = {*VARIABLES, *STATIC, "trajectory", *(a for names in ALIASES.values() for a in names)}
    strangers = unrecognised(ds)
    if any(name in VARIABLES or name in STATIC for name in ds.data_vars):
        ds = ds.drop_vars([name for name in ds.variables if name not in known])
    try:
        ds = xr.decode_cf(ds, decode_timedelta=False)
    except Exception as error:  # it reads times, and each codec has exceptions of its own
        raise StoreError(
            f"{path} cannot be decoded: {_cause(error)}; it is damaged or not CF: write it again"
        ) from error
    ds.encoding = {**ds.encoding, NOTE: strangers}
    return ds.set_coords([name for name in ("trajectory",) if name in ds])


def consolidated(path: Path) -> bool:
    r"""Whether a local Zarr store has its metadata in one place."""
    if (path / "zarr.json").exists():
        try:
            return bool(json.loads((path / "zarr.json").read_text()).get("consolidated_metadata"))
        except ValueError:
            raise StoreError(f"{path / 'zarr.json'} is damaged: it is no JSON") from None
    return (path / ".zmetadata").exists()


def missing(path: Path) -> str:
    r"""That a file or folder is missing, and what there is instead."""
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if folder != path.parent:
        return f"{path} does not exist: there is no folder {path.parent}; {folder} does exist"
    names = sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))
    stores = [name for name in names if name.endswith((".zarr", *NETCDF))] or names
    if not stores:
        return f"{path} does not exist, and {folder} is empty"
    # Every store ends in .zarr: what is alike must be the rest.
    stems = {Path(name).stem: name for name in reversed(stores)}
    close = difflib.get_close_matches(path.stem, stems, n=1, cutoff=0.6)
    hint = f"did you mean {stems[close[0]]!r}?" if close else f"{folder} holds {_some(stores)}"
    return f"{path} does not exist; {hint}"


def _some(names: Any) -> str:
    names = sorted(names)
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more if names else "nothing"


def _cause(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason'}"
