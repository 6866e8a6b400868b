r"""Packing fields into few bytes, for what travels with the package.

A field is rounded to multiples of a step, one for each level, and along time only the differences
of the multiples are kept: weather changes little in an hour. Rounding is uniform, so the error has
a root mean square of :math:`\text{step} / \sqrt{12}`, and differences of integers add up exactly.
The integers are a plain Zarr array in a zip file; a variable is unpacked when it is first read.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends.common import BackendArray
from xarray.core import indexing

from ...errors import DataError, StoreError

__all__ = ["pack", "unpack"]

FORMAT = "appa packed 1"
UNDEFINED = -(2**15)  # of the first value of a point that is undefined at all times


def pack(ds: xr.Dataset, path: str | Path, steps: Mapping[str, np.ndarray | float]) -> None:
    r"""Packs a dataset into a zip file.

    Arguments:
        ds: The dataset. Variables without a step are kept as they are. A point of a variable is
            undefined at all times or at none.
        path: The file to write.
        steps: The step of a variable, with shape :math:`()`, or :math:`(L)` for one with levels.
    """
    import zarr
    from zarr.codecs import ZstdCodec
    from zarr.storage import ZipStore

    path = Path(path)
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    with ZipStore(part, mode="w") as store:
        group = zarr.open_group(store, mode="w", attributes={**_plain(ds.attrs), "packed": FORMAT})
        for key, var in ds.variables.items():
            name = str(key)
            attrs = _plain(var.attrs)
            values = var.values
            if name in steps:
                step = np.asarray(steps[name], np.float64)
                values = _integers(name, var, step)
                attrs["step"] = step.tolist()
            elif values.dtype.kind == "M":
                values = values.astype("datetime64[h]").astype(np.int64)
                attrs["units"] = "hours since 1970-01-01"
            elif values.dtype.kind in "OUT":
                attrs["labels"] = [str(v) for v in values]
                values = np.arange(len(values))
            array = group.create_array(
                name,
                shape=values.shape,
                chunks=values.shape,
                dtype=values.dtype,
                filters=None,
                compressors=ZstdCodec(level=22),
                attributes=attrs,
                dimension_names=[str(d) for d in var.dims],
            )
            array[...] = values
    part.replace(path)


def _integers(name: str, var: xr.Variable, step: np.ndarray) -> np.ndarray:
    r"""The multiples of the step, along time their differences."""
    step = _along_level(step, var.dims)
    multiples = np.rint(var.values / step)
    undefined = np.isnan(multiples)
    if (undefined.any(axis=0) != undefined.all(axis=0)).any() and var.dims[0] == "time":
        raise DataError(f"{name} is undefined at some points at some times only: cannot be packed")
    multiples = np.where(undefined, 0, multiples).astype(np.int64)
    if var.dims[0] == "time":
        multiples = np.diff(multiples, axis=0, prepend=0)
    if np.abs(multiples).max() >= 2**15:
        largest = np.abs(multiples).max()
        raise DataError(f"the step of {name} is too small: {largest} steps do not fit in 16 bits")
    first = undefined if var.dims[0] != "time" else undefined[:1]
    multiples[: len(first)][first] = UNDEFINED
    return multiples.astype("<i2")


def unpack(path: str | Path) -> xr.Dataset:
    r"""The dataset packed in a zip file, lazily."""
    import zarr
    from zarr.storage import ZipStore

    path = Path(path)
    try:
        group = zarr.open_group(ZipStore(path, mode="r"), mode="r")
        arrays = dict(group.arrays())
    except Exception as error:  # a damaged zip file raises whatever its cut leaves readable
        raise StoreError(
            f"{path} is missing or damaged ({type(error).__name__}: {error}); it is part of the "
            "package: install it again with pip install --force-reinstall appa-assimilation"
        ) from error
    data: dict[str, Any] = {}
    for name, array in arrays.items():
        dims = tuple(map(str, getattr(array.metadata, "dimension_names", None) or ()))
        attrs = dict(array.attrs)
        if "step" in attrs:
            step = _along_level(np.asarray(attrs.pop("step")), dims)
            lazy = indexing.LazilyIndexedArray(Packed(array, step, dims[0] == "time"))
            data[name] = xr.Variable(dims, lazy, attrs)
            continue
        values = np.asarray(array[...])
        if attrs.get("units") == "hours since 1970-01-01":
            del attrs["units"]
            values = values.astype("datetime64[h]").astype("datetime64[ns]")
        if "labels" in attrs:
            values = np.asarray(attrs.pop("labels"))
        data[name] = xr.Variable(dims, values, attrs)
    attrs = {k: v for k, v in group.attrs.items() if k != "packed"}
    ds = xr.Dataset(data, attrs=attrs)
    coords = [name for name, var in data.items() if name in var.dims or name == "trajectory"]
    return ds.set_coords(coords)


class Packed(BackendArray):
    r"""A packed variable, unpacked whole when it is first read."""

    def __init__(self, array: Any, step: np.ndarray, differences: bool):
        self.array, self.step, self.differences = array, step, differences
        self.shape = array.shape
        self.dtype = np.dtype(np.float32)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(
            key, self.shape, indexing.IndexingSupport.BASIC, self._read
        )

    def _read(self, key: tuple[Any, ...]) -> np.ndarray:
        return np.array(self.values[key])  # a copy: what a caller does to it stays theirs

    @cached_property
    def values(self) -> np.ndarray:
        multiples = self.array[...].astype(np.int32)
        undefined = multiples == UNDEFINED
        if self.differences:
            multiples = np.cumsum(multiples, axis=0, dtype=np.int32)
            undefined = np.broadcast_to(undefined[:1], multiples.shape)
        values = (multiples * self.step).astype(np.float32)
        values[undefined] = np.nan
        values.flags.writeable = False
        return values


def _along_level(step: np.ndarray, dims: Any) -> np.ndarray:
    r"""A step for each level, shaped so that it broadcasts over a variable."""
    if step.ndim == 0:
        return step
    return step.reshape([-1 if dim == "level" else 1 for dim in dims])


def _plain(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    r"""Attributes as plain JSON."""
    plain = {str(k): v.item() if isinstance(v, np.generic) else v for k, v in attrs.items()}
    return {k: v for k, v in plain.items() if k != "_FillValue"}
