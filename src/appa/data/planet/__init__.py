r"""The bundled planet: four days of a held-out member, and the climate it belongs to.

The excerpt is of the member of 2021, which no training or validation member shares its trajectory
with. Statistics and climatology are those of a training simulation of 24 members of a year each,
1901 to 1924, 4-hourly. `tools/bundle_planet.py` makes all of it, see `docs/planet.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["climatology", "is_planet", "open_planet", "statistics"]

TITLE = "A simulated planet in ERA5's schema"
MODEL = "(SPEEDY physics, T31L8)"


def open_planet(chunks: Mapping[str, int] | str | None = None) -> xr.Dataset:
    r"""The excerpt as a canonical dataset, each variable unpacked when it is first read."""
    from ..canonical import canonical_chunks
    from .packing import unpack

    ds = unpack(_bundled("planet.zarr.zip"))
    return ds if chunks is None else canonical_chunks(ds, chunks)


def is_planet(ds: xr.Dataset) -> bool:
    r"""Whether a store says that `appa data simulate` made it, or that it is the excerpt: those
    whose climate the bundled statistics and climatology are of."""
    source = str(ds.attrs.get("source", ""))
    return ds.attrs.get("title") == TITLE and source.startswith("jcm ") and source.endswith(MODEL)


def statistics() -> xr.Dataset:
    r"""Mean and standard deviation of each variable and level over the training simulation."""
    from ..statistics import load

    return load(_bundled("planet-statistics.nc"))


def climatology() -> xr.Dataset:
    r"""The training simulation's climatology, for :func:`appa.data.climatology.evaluate`."""
    return _climatology().copy(deep=True)


@cache
def _climatology() -> xr.Dataset:
    from .packing import unpack

    return unpack(_bundled("planet-climatology.zarr.zip")).load()


def _bundled(name: str) -> Path:
    return Path(str(resources.files("appa.data.bundled") / name))
