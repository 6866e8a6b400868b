r"""Records of what a network saw: from a store to files, whole or not at all.

Stations' observations go to a table, Parquet or CSV, and satellites' to a gridded dataset, NetCDF
or Zarr. Hours are observed in blocks that fit in memory, which changes nothing: noise belongs to
the hour. All files appear at once when all are complete; until then, and if anything fails, none
of them does.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..errors import DataError, StoreError
from .networks import Network
from .synthesis import check_share, hold_out, observe

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Record", "beside", "hours_of", "record", "together"]

TABLES = (".parquet", ".csv", ".csv.gz")
GRIDDED = (".nc", ".zarr")
BLOCK = 2**30  # bytes of a block's swath, with its errors


def hours_of(ds: xr.Dataset, start: str | None = None, hours: int = 24) -> xr.Dataset:
    r"""A period of a store, every state of which must be there.

    Arguments:
        ds: A canonical dataset, of states an hour or more apart.
        start: The first hour, by default the store's first.
        hours: The length of the period.
    """

    held = ds["time"].values.astype("datetime64[ns]")
    try:
        first = held[0] if start is None else np.datetime64(start.strip().removesuffix("Z"), "ns")
    except ValueError:
        raise DataError(f"start {start!r} is no date; for example 2021-03-21T06") from None
    if hours < 1:
        raise DataError(f"cannot observe {hours} hours; give 1 or more")
    apart = np.diff(np.unique(held)).min() if len(held) > 1 else np.timedelta64(1, "h")
    times = np.arange(first, first + np.timedelta64(hours, "h"), apart)
    absent = times[~np.isin(times, held)]
    if len(absent):
        raise DataError(
            f"the store lacks {len(absent)} of the {len(times)} hours asked for, the first is "
            f"{_hour(absent[0])}; it holds {_hour(held.min())} to {_hour(held.max())}"
        )
    order = np.argsort(held, kind="stable")
    return ds.isel(time=order[np.searchsorted(held, times, sorter=order)])


@dataclass(frozen=True)
class Record:
    r"""What was written.

    Arguments:
        table: The stations' observations that are for use.
        held: Those held out, if any were to be.
        gridded: The number of values in the swaths.
        files: What they hold, `stations`, `held out` or `satellites`, and the files.
    """

    table: pd.DataFrame
    held: pd.DataFrame | None
    gridded: int
    files: dict[str, Path]


def beside(out: str | Path, word: str, suffix: str | None = None) -> Path:
    r"""The name of another file beside a table, `obs.parquet` → `obs.WORD.parquet`."""
    out = Path(out)
    old = next((s for s in reversed(TABLES) if out.name.endswith(s)), out.suffix)
    return out.with_name(f"{out.name.removesuffix(old)}.{word}{suffix or old}")


def record(
    ds: xr.Dataset,
    network: Network,
    out: str | Path,
    *,
    swath: str | Path | None = None,
    held_out: float | None = None,
    held_out_to: str | Path | None = None,
    seed: int = 0,
    statistics: xr.Dataset | None = None,
    overwrite: bool = False,
    attrs: Mapping[str, Any] | None = None,
) -> Record:
    r"""Observes a store with a network and writes what it sees.

    Arguments:
        ds: The truth, see :func:`~appa.observations.synthesis.observe`.
        network: The network.
        out: The table to write: `.parquet`, `.csv` or `.csv.gz`. Without stations there is none.
        swath: The dataset to write: `.nc` or `.zarr`, by default `.swath.nc` beside the table.
            Without satellites there is none.
        held_out: The share of stations to hold out, see
            :func:`~appa.observations.synthesis.hold_out`.
        held_out_to: The table to write those to, by default `.held-out` beside the other.
        seed: Selects the noise and the stations held out.
        statistics: Means and standard deviations, by default the dataset's own.
        overwrite: Whether files that exist are replaced.
        attrs: What else to note in the files.
    """

    from .. import __version__
    from ..data.statistics import compute

    files: dict[str, Path] = {}
    if len(network.stations):
        files["stations"] = _named(out, TABLES, "table")
    if held_out is not None:
        check_share(held_out)
        if not len(network.stations):
            raise DataError("there are no stations to hold out; ask for some, or hold out none")
        files["held out"] = _named(held_out_to or beside(out, "held-out"), TABLES, "table")
    if network.satellites:
        files["satellites"] = _named(swath or beside(out, "swath", ".nc"), GRIDDED, "dataset")
    if not files:
        raise DataError("the network has neither stations nor satellites: there is nothing to see")

    notes = {"source": f"appa {__version__}", "network": network.name, "seed": int(seed)}
    notes.update(attrs or {})
    with together(list(files.values()), overwrite) as partial:
        if statistics is None:
            statistics = compute(ds)
        tables, swaths, gridded = [], [], 0
        target = partial.get(files["satellites"]) if "satellites" in files else None
        for block in _blocks(ds, network):
            table, seen = observe(block, network, seed=seed, statistics=statistics)
            tables.append(table)
            if target is None:
                continue
            for name in seen.data_vars:
                if not str(name).endswith("_error"):
                    gridded += int(np.isfinite(seen[name].values).sum())
            seen.attrs = {"Conventions": "CF-1.11", "title": "synthetic observations", **notes}
            if target.suffix == ".zarr":
                _append(seen, target)
            else:
                swaths.append(seen)
        if swaths:
            _write_netcdf(swaths, Path(str(target)))
        elif target is not None:
            _consolidate(target)

        table, held = pd.concat(tables, ignore_index=True), None
        if held_out is not None:
            table, held = hold_out(table, held_out, seed)
            _write_table(held, partial[files["held out"]], {**notes, "held_out": held_out})
        if "stations" in files:
            _write_table(table, partial[files["stations"]], notes)

    return Record(table, held, gridded, files)


def _blocks(ds: xr.Dataset, network: Network) -> Iterator[xr.Dataset]:
    levels = ds.sizes.get("level", 1)
    seen = {name for satellite in network.satellites for name in satellite.variables}
    hour = 8 * max(len(seen), 1) * levels * ds.sizes["latitude"] * ds.sizes["longitude"]
    size = max(BLOCK // hour, 1)
    for start in range(0, ds.sizes["time"], size):
        yield ds.isel(time=slice(start, start + size))


def _named(path: str | Path, suffixes: Sequence[str], what: str) -> Path:
    path = Path(path)
    if not path.name.endswith(tuple(suffixes)):
        raise DataError(
            f"{str(path)!r} names no {what}; give a name that ends in {', '.join(suffixes)}"
        )
    return path


def _write_table(table: pd.DataFrame, path: Path, notes: Mapping[str, Any]) -> None:
    if path.suffix == ".parquet":
        attrs: dict[Any, Any] = dict(notes)
        table.attrs = attrs
        table.to_parquet(path, index=False)
    else:
        table.to_csv(path, index=False, date_format="%Y-%m-%dT%H:%M", float_format="%.9g")


TIME: dict[str, Any] = {"units": "seconds since 1970-01-01", "dtype": "int64"}


def _write_netcdf(swaths: list[xr.Dataset], path: Path) -> None:
    import xarray as xr

    whole = swaths[0] if len(swaths) == 1 else xr.concat(swaths, "time")
    encoding: dict[Any, Any] = {n: {"zlib": True, "complevel": 1} for n in whole.data_vars}
    whole.to_netcdf(path, encoding={**encoding, "time": TIME})


def _append(seen: xr.Dataset, path: Path) -> None:
    for var in seen.variables.values():
        var.encoding = {}
    if path.exists():
        seen.to_zarr(path, append_dim="time", consolidated=False)
        return
    encoding: dict[Any, Any] = {n: {"chunks": (1, *seen[n].shape[1:])} for n in seen.data_vars}
    seen.to_zarr(path, consolidated=False, encoding={**encoding, "time": TIME})


def _consolidate(path: Path) -> None:
    import zarr

    with warnings.catch_warnings():
        # Not in the v3 specification, but readers look for it.
        warnings.filterwarnings("ignore", message="Consolidated metadata")
        zarr.consolidate_metadata(str(path))


@contextmanager
def together(paths: Sequence[Path], overwrite: bool = False) -> Iterator[dict[Path, Path]]:
    r"""Gives a name beside each file to write to. They become the files when all is done."""
    if len({p.resolve() for p in paths}) < len(paths):
        raise DataError(f"two files have one name: {', '.join(map(str, paths))}; give each its own")
    for path in paths:
        if path.exists() and not overwrite:
            raise StoreError(f"{str(path)!r} exists already; choose another name, or --overwrite")
        if path.is_dir() and not (path / "zarr.json").exists() and not (path / ".zgroup").exists():
            raise StoreError(f"{str(path)!r} is a folder and no Zarr store; choose another name")
    folders = {}
    try:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            folders[path] = Path(tempfile.mkdtemp(dir=path.parent, prefix=".appa-observe-"))
        yield {path: folder / path.name for path, folder in folders.items()}
        for path, folder in folders.items():
            if path.is_dir():
                os.replace(path, folder / "old")
            os.replace(folder / path.name, path)
    except OSError as error:
        raise StoreError(
            f"cannot write {error.filename or paths[0]}: {error.strerror or error}; name a folder "
            "that can be written to and has room"
        ) from error
    finally:
        for folder in folders.values():
            shutil.rmtree(folder, ignore_errors=True)


def _hour(time: Any) -> str:
    return str(np.datetime64(time, "h"))
