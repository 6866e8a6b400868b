r"""The scales of states: which statistics standardize them, and whether they are a store's own.

They are those given, else those that the run folder has, else the bundled planet's where the store
says that it is that planet, else those of the training split, computed. A network learns nothing
from states on another scale, and goes wrong where it goes on with them: unless they were computed
just now, the statistics are compared with a few hours of the store.

Those in the run folder bind its networks. In a folder without any they are what a start that came
to nothing had computed: they are taken where they have all variables and levels, and no others are
given.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import Config, load_config
from ..data import climatology as climate
from ..data import statistics as state_statistics
from ..data.planet import climatology, is_planet
from ..data.planet import statistics as bundled
from ..data.windows import find_hours
from ..errors import DataError
from ..tasks.folders import NORMALS, STATISTICS, gather, load_statistics, write_statistics
from ..tasks.normals import with_normals
from .distribution import Ranks
from .keeping import networks
from .options import TrainingError

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["find_statistics", "origin"]

HOURS = 2  # of a store, that statistics are compared with
# Over a grid and an hour or two, standardized values have a mean near 0 and a deviation near 1. The
# weather of an hour is nowhere near these, another unit of any variable is beyond.
FAR, WIDE, NARROW = 5.0, 5.0, 0.02


def origin(config: Config, store: xr.Dataset, out: Path, given: Any = None) -> str:
    r"""Where the statistics of a training come from, in words.

    Arguments:
        config: The configuration.
        store: The store of states.
        out: The run folder.
        given: The statistics given, or a file of them, if any.
    """
    if given is not None:
        return f"those in {given}" if isinstance(given, str | Path) else "those given"
    if _holds(config, out):
        return f"those in {out / STATISTICS}"
    if _bundled(config, store):
        return "the bundled planet's, of its training simulation"
    return "of the training split, computed first"


def find_statistics(
    config: Config, store: xr.Dataset, out: Path, given: Any, ranks: Ranks
) -> xr.Dataset:
    r"""The statistics of states, with the static fields of the store and, where the autoencoder has
    them, normals.

    Arguments:
        config: The configuration.
        store: The store of states.
        out: The run folder.
        given: The statistics given, or a file of them, if any.
        ranks: The ranks, of which the first computes.
    """
    stats = _known(config, out, given, ranks)
    whose = ranks.first(lambda: origin(config, store, out, given))
    if stats is None and _bundled(config, store):
        stats = bundled()
        if config.autoencoder.normals:
            stats = with_normals(config, stats, climatology())
    if stats is None:
        split, names = _split(config), _names(config)
        ranks.first(
            lambda: write_statistics(
                out, state_statistics.compute(store, variables=names, split=split)
            )
        )
        stats = load_statistics(out / STATISTICS)
    else:
        found = stats
        ranks.first(lambda: _compare(config, store, found, whose))
    stats = gather(stats, store)
    if not config.autoencoder.normals or NORMALS in stats:
        return stats
    split, names = _split(config), _names(config)
    mean = ranks.first(lambda: climate.fit(store, 0, variables=names, split=split))
    return with_normals(config, stats, mean)


def _known(config: Config, out: Path, given: Any, ranks: Ranks) -> xr.Dataset | None:
    r"""The statistics in the run folder, or else those given, which must not be others."""
    file = out / STATISTICS
    known = load_statistics(file) if ranks.first(lambda: _holds(config, out)) else None
    if given is None:
        return known
    found = load_statistics(given) if isinstance(given, str | Path) else given
    if known is None or not ranks.first(lambda: networks(out)):
        return found
    if not _alike(known, found):
        raise TrainingError(
            f"{file} has other statistics than those given: the networks of {out} know states "
            "standardized with the former; leave out --statistics, or choose another folder"
        )
    return known


def _holds(config: Config, out: Path) -> bool:
    r"""Whether the run folder has statistics to go by: where it has no network, those of another
    configuration are none."""
    file = out / STATISTICS
    if not file.exists() or networks(out):
        return file.exists()
    stats = load_statistics(file)
    if any(name not in stats for name in _names(config)):
        return False
    levels = config.data.levels if config.data.atmospheric else ()
    return set(levels) <= set(stats["level"].values.tolist() if "level" in stats.dims else ())


def _bundled(config: Config, store: xr.Dataset) -> bool:
    return is_planet(store) and config.data.grid == load_config("planet").data.grid


def _split(config: Config) -> tuple[str, str]:
    period = config.data.splits.period("train")
    return period.start, period.stop


def _names(config: Config) -> tuple[str, ...]:
    return (*config.data.surface, *config.data.atmospheric)


def _alike(a: xr.Dataset, b: xr.Dataset) -> bool:
    r"""Whether means and deviations, and normals where both have them, are the same."""
    import xarray as xr

    names = [str(name) for name, var in a.data_vars.items() if "statistic" in var.dims]
    names += [NORMALS] if NORMALS in a and NORMALS in b else []
    a, b = (ds[[name for name in names if name in ds]].reset_coords(drop=True) for ds in (a, b))
    if "level" in a.dims and "level" in b.dims:
        b = b.sel(level=[level for level in a["level"].values if level in b["level"].values])
    try:
        xr.testing.assert_allclose(a, b, rtol=1e-6)
    except AssertionError:
        return False
    return True


def _compare(config: Config, store: xr.Dataset, stats: xr.Dataset, whose: str) -> None:
    r"""Raises where hours of the training split are not on the scale of the statistics."""
    train = store.isel(time=slice(*find_hours(store, *_split(config))))
    hours = np.unique(np.linspace(0, train.sizes["time"] - 1, HOURS).astype(int))
    if train.sizes["time"] == 0:
        return  # an error of its own, later
    for name in _names(config):
        if name not in store or name not in stats:
            continue  # likewise
        x, of = train[name].isel(time=hours), stats[name]
        if "level" in of.dims:
            shared = [k for k in config.data.levels if k in x["level"] and k in of["level"]]
            x, of = x.sel(level=shared), of.sel(level=shared)
        x = (x - of.sel(statistic="mean")) / of.sel(statistic="std")
        over = [dim for dim in x.dims if dim != "level"]
        mean, std = np.atleast_1d(x.mean(over).values), np.atleast_1d(x.std(over).values)
        wrong = (np.abs(mean) > FAR) | (std > WIDE) | (std < NARROW)
        if wrong.any():
            k = int(wrong.argmax())
            where = f" at {shared[k]} hPa" if "level" in of.dims else ""
            raise DataError(
                f"{name}{where} in the store is not on the scale of the statistics, {whose}: "
                f"standardized, it has mean {mean[k]:.3g} and deviation {std[k]:.3g}, expected "
                "about 0 and 1. Compare units, and give the store's own statistics: appa data "
                "statistics STORE FILE, then --statistics FILE; a run that has others goes on with "
                "the store it began with, or begins anew in another folder"
            )
