r"""The arrays that make a state: one a variable, their channels stacked in order.

A store of states has surface fields and fields on levels, stacked as
:func:`appa.data.variables.channels` says; a store of latents has one array. Each is read straight
from its files where they hold its values in order, and through xarray elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from ..errors import DataError, StoreError, nearest
from .reading import (
    LazyArray,
    Moments,
    Piece,
    ShardedArray,
    finite,
    open_array,
    read_together,
)
from .states import Standardizer, undefined
from .stores import open_store
from .variables import ATMOSPHERIC, SURFACE, VARIABLES, variable

__all__ = ["Source", "Task", "open_source", "sources"]

LATENTS = "latents"


class Source:
    r"""An array and its place among the channels of a state.

    Arguments:
        name: The name of the array.
        array: What reads it.
        offset: Its first channel in a state.
        times: The date of each hour, with shape :math:`(T)`.
        levels: The level of each channel in hPa, where the array has levels.
    """

    def __init__(
        self,
        name: str,
        array: LazyArray | ShardedArray,
        offset: int,
        times: np.ndarray,
        levels: Sequence[int] | None = None,
    ):
        self.name, self.array, self.offset = name, array, offset
        self.times, self.levels = times, levels
        self.mean: np.ndarray | None = None
        self.scale: np.ndarray | None = None
        self.undefined: np.ndarray | None = None

    def standardize(self, mean: np.ndarray, std: np.ndarray, sea: np.ndarray | None) -> None:
        r"""Standardizes what is read from now on: undefined SST becomes 0, and anything else that
        is undefined is an error.

        Arguments:
            mean: The mean :math:`\mu` of each channel.
            std: The standard deviation :math:`\sigma` of each channel.
            sea: Where SST must be defined, or nowhere.
        """
        self.mean = mean.reshape(-1, 1)
        self.scale = np.reciprocal(std.reshape(-1, 1))  # multiplying takes a quarter of the time
        if VARIABLES[self.name].missing is not None:
            everywhere = np.ones(self.array.cells, bool)
            self.undefined = everywhere if sea is None else ~sea.ravel()

    def target(self, piece: Piece, window: np.ndarray) -> np.ndarray:
        r"""Where in a window a piece goes."""
        h0, h1, c0, c1 = piece
        return window[h0:h1, self.offset + c0 : self.offset + c1]

    def moments(self, piece: Piece) -> Moments | None:
        r"""What standardizes a piece."""
        if self.mean is None or self.scale is None:
            return None
        channels = slice(piece.c0, piece.c1)
        return Moments(self.mean[channels], self.scale[channels], self.undefined)

    def check(self, start: int, piece: Piece, window: np.ndarray) -> None:
        r"""Raises if a piece is undefined anywhere."""
        out = self.target(piece, window)
        if finite(out):
            return
        bad = ~np.isfinite(out)
        h, c = np.argwhere(bad.any(axis=2))[0]
        where = f" at {self.levels[piece.c0 + c]} hPa" if self.levels else ""
        raise DataError(
            f"{self.name}{where} is undefined at {bad[h, c].sum()} of {bad[h, c].size} points at "
            f"{self.times[start + piece.h0 + h]}, where it must be defined; find all faults with: "
            "appa data check STORE"
        )


class Task:
    r"""Pieces of the windows of a batch that are read at once.

    Arguments:
        items: Positions in the batch, and what to read there of which array.
        whole: Whether the items make whole windows, which are then checked at once.
    """

    def __init__(self, items: Sequence[tuple[int, Source, Piece]], whole: bool = False):
        self.items, self.whole = items, whole
        self.standardized = all(source.mean is not None for _, source, _ in items)

    def read(self, starts: Sequence[int], windows: np.ndarray) -> None:
        r"""Reads the pieces.

        Arguments:
            starts: The first hour of each window of the batch.
            windows: The windows, with shape :math:`(B, W, C, N)`.
        """
        items = [(b, source, piece) for b, source, piece in self.items if b < len(starts)]
        together, clean = [], True
        for b, source, piece in items:
            out, moments = source.target(piece, windows[b]), source.moments(piece)
            if isinstance(source.array, ShardedArray):
                together.append((source.array, starts[b], piece, out, moments))
            else:
                clean &= source.array.read(starts[b], piece, out, moments, not self.whole)
        clean &= read_together(together, not self.whole)
        if self.whole and self.standardized:
            clean = all(finite(windows[b]) for b in {b for b, _, _ in items})
        if not clean:
            for b, source, piece in items:
                source.check(starts[b], piece, windows[b])


def open_source(store: Any) -> xr.Dataset:
    r"""Opens a store of states or of latents."""
    if isinstance(store, xr.Dataset) and LATENTS in store:
        ds = store
    elif (path := root(store)) and (path / LATENTS).is_dir():
        ds = xr.open_zarr(path, chunks=None)
    else:
        return open_store(store)

    dims = ds[LATENTS].dims
    if len(dims) != 4 or dims[0] != "time":
        raise StoreError(f"latents must have dimensions (time, channel, H, W), found {dims}")
    return ds


def root(store: Any) -> Path | None:
    r"""The directory of a local Zarr v3 store."""
    if not isinstance(store, (str, Path)):
        return None
    path = Path(str(store).removeprefix("file://"))
    return path if (path / "zarr.json").is_file() else None


def sources(
    store: Any,
    ds: xr.Dataset,
    standardizer: Standardizer | xr.Dataset | None = None,
    variables: Sequence[str] | None = None,
    levels: Sequence[int] | None = None,
) -> list[Source]:
    r"""Opens the arrays that make a state, in the order of its channels.

    Arguments:
        store: The store.
        ds: The same, as :func:`open_source` opens it.
        standardizer: What standardizes the states: a standardizer, or statistics.
        variables: The variables to read, by default those of the standardizer, or all.
        levels: The levels to read in hPa, by default those of the standardizer, or all.
    """
    if LATENTS in ds:
        if standardizer is not None or variables is not None or levels is not None:
            raise DataError(
                "a store of latents has no variables to select or standardize; leave out "
                "standardizer, variables and levels"
            )
        names, rows = [LATENTS], None
    else:
        names, levels = _select(ds, standardizer, variables, levels)
        known = ds["level"].values.tolist() if levels else []
        rows = [known.index(level) for level in levels]

    if isinstance(standardizer, xr.Dataset):
        surface = [name for name in names if VARIABLES[name].surface]
        standardizer = Standardizer(
            standardizer, surface, names[len(surface) :], levels or (), undefined(ds)
        )

    times = ds["time"].values.astype("datetime64[h]")
    found: list[Source] = []
    offset = 0
    for name in names:
        surface = name in VARIABLES and VARIABLES[name].surface
        array = _open(store, ds, name, None if surface else rows)
        at = None if surface or name == LATENTS else levels
        found.append(Source(name, array, offset, times, at))
        if standardizer is not None:
            part, sea = slice(offset, offset + array.channels), standardizer.sea
            if sea is not None and sea.shape != ds[name].shape[-2:]:
                raise DataError(
                    f"the standardizer's land mask has shape {sea.shape} but the store's grid is "
                    f"{ds[name].shape[-2:]}; give the mask of this grid"
                )
            mean, std = standardizer.mean[part].numpy(), standardizer.std[part].numpy()
            found[-1].standardize(mean, std, sea)
        offset += array.channels
    return found


def _open(
    store: Any, ds: xr.Dataset, name: str, rows: list[int] | None
) -> LazyArray | ShardedArray:
    if ds[name].dims[0] != "time":
        raise DataError(
            f"{name} has dimensions {ds[name].dims}; select one {ds[name].dims[0]}, for example "
            f"with open_store(store).isel({ds[name].dims[0]}=0)"
        )
    path = root(store)
    if path is not None and _in_order(path, ds[name]):
        array = open_array(path / name, rows)
        if array is not None:
            return array
    return LazyArray(ds[name], rows)


def _in_order(path: Path, array: xr.DataArray) -> bool:
    r"""Whether an array's file holds its values in the order the dataset has them."""
    import zarr

    stored, name = zarr.open_group(path, mode="r"), str(array.name)
    if name not in stored:
        return False
    metadata = stored[name].metadata
    return (
        getattr(metadata, "dimension_names", None) == array.dims
        and getattr(metadata, "shape", None) == array.shape
        and all(
            dim in stored and np.array_equal(np.asarray(stored[dim]), array[dim].values)
            for dim in map(str, array.dims)
            if dim in array.indexes and dim != "time"  # which is never reordered
        )
    )


def _select(
    ds: xr.Dataset,
    standardizer: Standardizer | xr.Dataset | None,
    variables: Sequence[str] | None,
    levels: Sequence[int] | None,
) -> tuple[list[str], list[int]]:
    r"""The variables and levels to read, which the store must have."""
    if isinstance(standardizer, Standardizer):
        if variables is not None or levels is not None:
            raise DataError("a standardizer has variables and levels of its own; give it or them")
        variables, levels = standardizer.names, standardizer.levels

    present = [name for name in (*SURFACE, *ATMOSPHERIC) if name in ds]
    names = present if variables is None else [variable(name).name for name in variables]
    names.sort(key=lambda name: not VARIABLES[name].surface)  # stable: surface first
    for name in names:
        if name not in ds:
            raise DataError(f"the store has no {name!r}{nearest(name, present)}")
    if not names:
        raise DataError(f"there is no variable to read; the store has {', '.join(present)}")
    if all(VARIABLES[name].surface for name in names):
        return names, []

    known = ds["level"].values.tolist()
    chosen = known if levels is None else [int(level) for level in levels]
    absent = [level for level in chosen if level not in known]
    if absent:
        raise DataError(f"the store has no level {absent[0]} hPa, only {known}")
    return names, chosen
