r"""A folder of many small files as a few archives, and back."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["pack", "unpack", "write_json"]

VOLUME = 15 * 2**20  # bytes of an archive


def write_json(path: Path, value: Any) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(value, indent=1) + "\n")
    partial.replace(path)


def pack(folder: Path, out: Path, most: int = VOLUME) -> list[Path]:
    r"""Writes what is there to a few archives.

    Arguments:
        folder: The folder of what is done.
        out: Where `results-0.zip`, … go.
        most: Their size at most, in bytes.
    """
    out.mkdir(parents=True, exist_ok=True)
    files = [folder / "key.json", folder / "about.json", *sorted(folder.glob("parts/*/*.nc"))]
    found: list[Path] = []
    while files:
        target = out / f"results-{len(found)}.zip"
        partial = target.with_name(f".{target.name}.partial")
        size = 0
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            while files and (size == 0 or size + files[0].stat().st_size < most):
                path = files.pop(0)
                name = path.relative_to(folder).as_posix()
                archive.write(path, name)
                size += archive.getinfo(name).compress_size + 300  # and its entries
        partial.replace(target)
        found.append(target)
    return found


def unpack(archives: Sequence[Path], folder: Path) -> None:
    r"""Puts what archives hold in its place; what is there stays."""
    for path in archives:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                target = folder / name
                if target.exists() or not target.resolve().is_relative_to(folder.resolve()):
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                partial = target.with_name(f".{target.name}.partial")
                partial.write_bytes(archive.read(name))
                partial.replace(target)
