r"""Files that sum up a store, statistics and climatologies: complete or not there at all.

A file says what it is in its attribute `format`, and only a file of the same kind is replaced by
another. Where one is to go is tried before the work it holds begins.
"""

from __future__ import annotations

import glob
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import StoreError

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["CONVENTIONS", "Kind", "load", "probe", "save"]

CONVENTIONS = "CF-1.11"


@dataclass(frozen=True)
class Kind:
    r"""A kind of file.

    Arguments:
        name: Its name, which its command has too.
        words: What a file of the kind holds, in words.
        remedy: How to get one.
        version: The version of its layout.
    """

    name: str
    words: str
    remedy: str
    version: int = 1

    @property
    def attrs(self) -> dict[str, str]:
        r"""The attributes a file is known by."""
        return {"Conventions": CONVENTIONS, "format": f"appa {self.name} {self.version}"}


def probe(path: str | Path, kind: Kind, store: Any = None) -> None:
    r"""Raises unless a file can be written to a path without loss.

    Arguments:
        path: Where the file is to go.
        kind: Its kind.
        store: The store it sums up, if that is known.
    """
    path = Path(path)
    if store is not None and _same(path, store):
        raise StoreError(
            f"{str(path)!r} is the store itself: writing {kind.words} there would replace it; "
            f"choose another name, e.g. {kind.name}.nc"
        )
    if path.is_dir():
        raise StoreError(
            f"{str(path)!r} is a folder; name a file, e.g. {str(path / f'{kind.name}.nc')!r}"
        )
    if path.exists() and (found := _format(path)) != kind.name:
        what = f"holds {found}" if found else "is no file of Appa's"
        raise StoreError(
            f"{str(path)!r} exists already and {what}: only {kind.words} may be replaced by "
            f"{kind.words}; remove it or choose another name"
        )
    folder = next(p for p in path.absolute().parents if p.exists())
    try:
        # What the file system says, not its permissions: a disk may be read-only or full.
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{path.name}."):
            pass
    except OSError as error:
        raise _unwritable(path, error) from error


def save(ds: xr.Dataset, path: str | Path, kind: Kind) -> Path:
    r"""Writes a file, which exists complete or not at all."""
    path = Path(path)
    probe(path, kind)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            ds.assign_attrs(kind.attrs).to_netcdf(partial)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:  # netCDF's library raises the latter on a full disk
        raise _unwritable(path, error) from error
    return path


def load(path: str | Path, kind: Kind) -> xr.Dataset:
    r"""Reads a NetCDF file, or a folder that is a Zarr store, into memory."""
    import xarray as xr

    path = Path(path)
    if not path.exists():
        raise StoreError(f"there is no file with {kind.words} at {str(path)!r}; {kind.remedy}")
    options: dict[str, Any] = {"engine": "zarr" if path.is_dir() else "netcdf4"}
    try:
        with xr.open_dataset(path, **options) as ds:
            return ds.load()
    except Exception as error:
        # What a damaged file raises depends on the library beneath and on where it is cut.
        cause = (str(error).splitlines() or ["no reason"])[0][:120]
        raise StoreError(
            f"{str(path)!r} cannot be read as {kind.words}: it is truncated or of another kind "
            f"({type(error).__name__}: {cause}); {kind.remedy}"
        ) from error


def _same(path: Path, store: Any) -> bool:
    if not isinstance(store, (str, Path)):
        return False
    name = str(store).removeprefix("file://")
    places = [Path(p) for p in [name, *(glob.glob(name) if glob.has_magic(name) else [])]]
    return any(p.resolve() == path.resolve() for p in places)


def _format(path: Path) -> str:
    r"""The kind of an existing file; nothing where it says none."""
    import xarray as xr

    try:
        with xr.open_dataset(path, engine="netcdf4", decode_cf=False) as ds:
            words = str(ds.attrs.get("format", "")).split()
    except Exception:  # a damaged file may be anything
        return ""
    return words[1] if len(words) > 1 and words[0] == "appa" else ""


def _unwritable(path: Path, error: Exception) -> StoreError:
    return StoreError(
        f"{str(path)!r} cannot be written ({type(error).__name__}: {error}); choose a folder that "
        "can be written to and has room"
    )
