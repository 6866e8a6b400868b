r"""Physical consistency as the paper draws it: altitudes, and the angle and size of the wind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ..errors import DataError
from ..evaluation.balances import constants_of
from ..evaluation.consistency import physical_consistency
from ..evaluation.ensembles import matched
from ..evaluation.forecasts import open_runs
from .curves import pressure
from .gathering import labelled, open_truth
from .prior import panels
from .style import INK, MARKERS, OTHERS, finish, legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["physics_of", "plot_physics"]

HOURS = 4  # of a run


def physics_of(
    words: Sequence[str], truth: str | None, *, paper: bool = False, hours: int = HOURS
) -> dict[str, xr.Dataset]:
    r"""The physical consistency of the truth and of runs, at some hours of the first run of each.

    Arguments:
        words: The runs, as `PATH` or `LABEL=PATH`.
        truth: The truth.
        paper: Whether by the paper's formulas, see :mod:`appa.evaluation.consistency`.
        hours: The number of hours, evenly from the first to the last.
    """
    y = open_truth(truth)
    found: dict[str, xr.Dataset] = {}
    for label, paths in labelled(words).items():
        run, there = matched(open_runs(paths[0])[0], y)
        lacking = [name for name in ("geopotential", "temperature") if name not in run]
        if lacking:
            raise DataError(f"{paths[0]} has no {', '.join(lacking)}, which balances are of")
        chosen = np.unique(np.linspace(0, run.sizes["time"] - 1, hours).round().astype(int))
        levels = [p for p in there["level"].values if p in run["level"].values]
        for name, ds in (("truth", there), (label, run)):
            if name not in found:
                part = ds.sel(level=levels).isel(time=chosen)
                found[name] = physical_consistency(part, constants_of(y), paper=paper)
    return found


def plot_physics(found: Mapping[str, xr.Dataset]) -> Figure:
    r"""Altitudes by two ways, the angle of the wind, and the correlation of magnitudes.

    Arguments:
        found: What :func:`physics_of` found, the truth first.
    """
    figure, axes = panels(1, 4, (11.4, 3.7))
    height, cosine, sine, size = axes.flat
    looks = ((INK, "-"), *OTHERS)
    for k, (name, ds) in enumerate(found.items()):
        colour, dashes = looks[k % len(looks)]
        look: dict[str, Any] = {"color": colour, "linestyle": dashes, "lw": 1.4}
        mark: dict[str, Any] = {"marker": MARKERS[k % len(MARKERS)], "markersize": 3.5}
        y = ds["level"].values
        height.plot(ds["difference_std"], y, **look, **mark)
        size.plot(ds["correlation"], y, **look, **mark, label=name)
        for ax, density in ((cosine, "cosine"), (sine, "sine")):
            ax.plot(ds["value"], ds[density].mean("level"), **look)
        for ax in (height, size):
            pressure(ax, y)
    for ax in (cosine, sine):
        ax.set_ylim(bottom=0)
    height.set_xlim(left=0)
    finish(height, "deviation, m", "pressure, hPa", "Altitude by Φ less by T")
    finish(cosine, "cos θ", "density", "Wind along the gradient of Φ")
    finish(sine, "sin θ", "density", "Wind across it")
    finish(size, "correlation", "", "Size of both, by level")
    legend(size, loc="best")
    return figure
