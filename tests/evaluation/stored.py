r"""Datasets as they are in a store: what is read of them is counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends.common import BackendArray
from xarray.core import indexing

__all__ = ["stored"]


class Counted(BackendArray):
    r"""An array that notes how many values are read at once."""

    def __init__(self, values: np.ndarray, reads: list[int]):
        self.values, self.reads = values, reads
        self.shape, self.dtype = values.shape, values.dtype

    def __getitem__(self, key: Any) -> Any:
        kind = indexing.IndexingSupport.BASIC
        return indexing.explicit_indexing_adapter(key, self.shape, kind, self.read)

    def read(self, key: Any) -> np.ndarray:
        found = self.values[key]
        self.reads.append(found.size)
        return found


def stored(
    ds: xr.Dataset, chunks: Mapping[str, int] | None = None
) -> tuple[xr.Dataset, dict[str, list[int]]]:
    r"""A dataset that is read when it is asked for, as xarray opens a file without Dask, and the
    sizes of what was read of each variable.

    Arguments:
        ds: The dataset, in memory.
        chunks: Its chunks, of a store that has any.
    """
    reads: dict[str, list[int]] = {}
    found = ds.copy()
    for name, var in ds.data_vars.items():
        log = reads.setdefault(str(name), [])
        lazy = indexing.LazilyIndexedArray(Counted(np.asarray(var.values), log))
        found[name] = xr.Variable(var.dims, lazy, var.attrs)
        if chunks is not None:
            kept = {dim: chunks.get(str(dim), size) for dim, size in var.sizes.items()}
            found[name].encoding["preferred_chunks"] = kept
    return found, reads
