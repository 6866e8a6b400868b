r"""Animations: a map that moves, an hour a frame.

Colours have the same ends in all frames, so that what changes is the weather. GIF is written with
Pillow; MP4 takes `ffmpeg`, the program or the one that the package `imageio-ffmpeg` brings along.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import numpy as np
import xarray as xr

from ..errors import AppaError, DataError
from ..progress import progress
from .fields import chosen, hour_of, locate, magnitude, plot_field
from .maps import moment, split
from .saving import checked, whole
from .style import INK, label, limits, require, style

__all__ = ["FORMATS", "animate", "ffmpeg"]

FORMATS = (".gif", ".mp4")
LOOKED = 9  # frames that the ends of colours are taken from


def animate(
    ds: xr.Dataset,
    name: str,
    path: str | Path,
    level: int | None = None,
    *,
    hours: Iterable[Any] | None = None,
    show: str | int = "mean",
    truth: xr.Dataset | None = None,
    land: xr.DataArray | None = None,
    projection: str | None = None,
    fps: float = 6.0,
    dpi: float = 100,
) -> Path:
    r"""Writes an animation of a field, of which one hour is in memory at a time.

    Arguments:
        ds, name, level, show, truth, land, projection: As of
            :func:`~appa.plots.fields.plot_field`.
        path: The file, `.gif`, or `.mp4` where there is :func:`ffmpeg`.
        hours: The hours, by default all.
        fps: Frames a second.
        dpi: Dots per inch, of 8 inches.

    Example:
        >>> animate(analysis, "z500", "z500.gif", show="spread")
    """
    path = ready(path)
    if not fps > 0:
        raise DataError(f"found {fps:g} frames a second; give more than 0")
    if "time" not in ds.dims:
        raise DataError("a dataset without times has one hour; draw it with plot_field")
    variable, level = locate(ds, name, level)
    times = [hour_of(ds, h) for h in (ds["time"].values if hours is None else hours)]
    if not times:
        raise DataError("there is no hour to draw; give one or more")

    def values(hour: np.datetime64) -> tuple[np.ndarray, xr.DataArray, str, str]:
        field, words, kind = chosen(ds, variable, level, hour, show, truth)
        look, boxes = style(variable), split(field)[2]
        shown = look.shown(boxes) if kind == "value" else look.scale * boxes
        return shown, field, words, kind

    index = np.unique(np.linspace(0, len(times) - 1, min(LOOKED, len(times))).round().astype(int))
    looked = [values(times[k]) for k in index]
    _, _, words, kind = looked[0]
    if kind == "value":
        ends = limits(variable, np.concatenate([x.values.ravel() for _, x, _, _ in looked]))
    else:
        every = np.concatenate([x.ravel() for x, _, _, _ in looked])
        ends = magnitude(every, both=kind == "difference")

    def title(hour: np.datetime64) -> str:
        return " · ".join(w for w in (label(variable, level), words, moment(hour)) if w)

    options: dict[str, Any] = {"show": show, "truth": truth, "land": land, "ends": ends}
    figure = plot_field(ds, variable, level, times[0], projection=projection, **options)
    ax = figure.axes[0]
    mesh = next(c for c in ax.collections if c.get_gid() == "field")
    figure.draw_without_rendering()  # lays out once: frames must not shift
    figure.set_layout_engine("none")
    try:
        with (
            _writer(path, fps) as writer,
            whole(path) as partial,
            progress(len(times), "drawing", unit="frames") as bar,
            writer.saving(figure, str(partial), dpi),
        ):
            for hour in times:
                mesh.set_array(np.ma.masked_invalid(values(hour)[0]))
                ax.set_title(title(hour), color=INK, fontsize=10, loc="left")
                writer.grab_frame(facecolor="white")
                bar.advance()
    except CalledProcessError as error:
        raise AppaError(
            f"ffmpeg cannot write {path.name} ({error}); it may lack an encoder of H.264: write "
            f"{path.with_suffix('.gif').name}"
        ) from error
    return path


def ready(path: str | Path) -> Path:
    r"""The path, if an animation can be written there."""
    require()
    path = checked(path, FORMATS)
    if path.suffix.lower() == ".mp4" and ffmpeg() is None:
        raise AppaError(
            f"{path.name} takes ffmpeg, which is not installed or not on the path; install it or "
            f"the package imageio-ffmpeg, or write {path.with_suffix('.gif').name}, which takes "
            "nothing more"
        )
    return path


def ffmpeg() -> str | None:
    r"""The program that writes MP4: as matplotlib is told, or that of a package."""
    import matplotlib
    from matplotlib.animation import FFMpegWriter

    if FFMpegWriter.isAvailable():
        return str(matplotlib.rcParams["animation.ffmpeg_path"])
    try:
        import imageio_ffmpeg  # pyright: ignore

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError):  # it may be without one for this platform
        return None


@contextmanager
def _writer(path: Path, fps: float) -> Iterator[Any]:
    import matplotlib
    from matplotlib.animation import FFMpegWriter, PillowWriter

    if path.suffix.lower() == ".gif":
        yield PillowWriter(fps=fps)  # pyright: ignore
        return
    # even numbers of pixels, and the pixel format that players and browsers read
    extra = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2:color=white", "-pix_fmt", "yuv420p"]
    with matplotlib.rc_context({"animation.ffmpeg_path": ffmpeg()}):
        yield FFMpegWriter(fps=fps, codec="h264", extra_args=extra)  # pyright: ignore
