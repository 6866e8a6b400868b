r"""Figures as files: whole, or not there at all."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import AppaError, DataError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "checked", "png", "save", "save_figure", "whole"]

FORMATS = (".png", ".pdf", ".svg")
COLOURS = (256, 128, 64, 32)  # of palettes, until a file is small enough


def checked(path: str | Path, formats: tuple[str, ...] = FORMATS) -> Path:
    r"""The path, if a file can be written there, in a format its name tells: to be asked before the
    work that the file is to hold."""
    path = Path(path)
    if path.suffix.lower() not in formats:
        told = f"ends in {path.suffix!r}" if path.suffix else "has no suffix"
        raise DataError(
            f"{str(path)!r} {told}, which tells no format to draw in; give one of "
            f"{', '.join(formats)}, e.g. {path.with_suffix(formats[0]).name}"
        )
    if path.is_dir():
        raise AppaError(f"{str(path)!r} is a folder; name a file in it")
    folder = next(p for p in path.absolute().parents if p.exists())
    with _told(path), tempfile.NamedTemporaryFile(dir=folder, prefix=f".{path.name}."):
        pass  # what the file system says, not its permissions
    return path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    r"""Gives a name beside a file to write to, which then becomes the file."""
    partial = path.with_name(f".{os.getpid()}.{path.name}")  # the suffix tells writers the format
    with _told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise AppaError(
            f"cannot write {str(path)!r} ({error.strerror or error}); choose a folder that can be "
            "written to and has room"
        ) from error


def save_figure(figure: Figure, path: str | Path, dpi: float = 150) -> Path:
    r"""Writes a figure in the format its name tells, one of :data:`FORMATS`."""
    path = checked(path)
    with whole(path) as partial:
        figure.savefig(partial, dpi=dpi, facecolor="white", bbox_inches="tight", pad_inches=0.08)
    return path


def png(figure: Figure, size: int = 150_000, dpi: float = 90) -> bytes:
    r"""A figure as PNG, with a palette where it is larger than asked for, in bytes."""
    from PIL import Image

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, facecolor="white", pil_kwargs={"optimize": True})
    with Image.open(buffer) as image:
        full = image.convert("RGB")
    for colours in COLOURS:
        if buffer.tell() <= size:
            break
        buffer = io.BytesIO()
        full.quantize(colours, dither=Image.Dither.NONE).save(buffer, "png", optimize=True)
    return buffer.getvalue()


def save(figure: Figure, path: str | Path, size: int = 150_000, dpi: float = 90) -> int:
    r"""Writes a figure as PNG, with a palette where it is larger than asked for.

    Returns:
        Its size in bytes.
    """
    content = png(figure, size, dpi)
    with whole(Path(path)) as partial:
        partial.write_bytes(content)
    return len(content)
