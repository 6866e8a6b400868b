r"""Physical consistency as the paper draws it, appendix D.2.

A row a level, 500 hPa above, where the wind is nearly geostrophic, and 1000 hPa below, where
friction turns it. In each are the densities of :math:`\Delta H`, altitude from geopotential less
that from temperature, and of :math:`\cos \theta` and :math:`\sin \theta`, where :math:`\theta` is
the angle from the gradient of geopotential to the wind. In balance :math:`\theta` is 90°: the
cosine is at 0, the sine at 1. Beside them is the correlation of the magnitudes of both, by level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ..errors import DataError
from ..evaluation.balances import constants_of
from ..evaluation.consistency import physical_consistency, states_beside
from ..evaluation.ensembles import matched
from ..evaluation.forecasts import open_runs
from .curves import pressure
from .gathering import labelled, open_truth
from .style import MARKERS, apart, finish, legend, require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["physics_of", "plot_physics", "shown_levels"]

HOURS = 4  # of a run
ANGLES = {"cosine": "cos θ", "sine": "sin θ"}
LEVELS = (500.0, 1000.0)  # hPa, the paper's
BINS, FEWEST = 50, 12  # of ΔH, about, and of a single value
TAIL = 0.04  # of ΔH, that may be beyond the axis: mountains have long ones
LEAST = 1e-2  # density of sin θ that is drawn


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
        parts = states_beside(run, there, hours)
        for name, part in zip(("truth", label), parts, strict=True):
            if name not in found:
                found[name] = physical_consistency(part, constants_of(y), paper=paper)
    return found


def shown_levels(found: Iterable[xr.Dataset], wanted: Sequence[float] = LEVELS) -> list[float]:
    r"""Of the levels that all have, the nearest to those wanted in :math:`\ln p`, each once."""
    common = set.intersection(*({float(p) for p in ds["level"].values} for ds in found))
    if not common:
        raise DataError("the runs have no level in common to draw balances of; give such as do")
    near = [min(sorted(common), key=lambda p: abs(np.log(p / one))) for one in wanted]
    return list(dict.fromkeys(near))


def plot_physics(found: Mapping[str, xr.Dataset], levels: Sequence[float] = LEVELS) -> Figure:
    r"""Densities of :math:`\Delta H`, :math:`\cos \theta` and :math:`\sin \theta`, a row a level,
    and the correlation of magnitudes by level.

    Arguments:
        found: What :func:`physics_of` found, the truth first.
        levels: The levels in hPa; drawn are the nearest that there are.
    """
    require()
    from matplotlib.figure import Figure

    rows = shown_levels(found.values(), levels)
    figure = Figure(figsize=(11.4, 1.1 + 2.3 * max(len(rows), 1.4)), layout="constrained")
    grid = figure.add_gridspec(len(rows), 4)
    looks = apart(found)
    # levels share a scale, so that they can be compared
    most = {
        name: max(float(ds[name].sel(level=rows).max()) for ds in found.values()) for name in ANGLES
    }
    for i, level in enumerate(rows):
        at = {name: ds.sel(level=level) for name, ds in found.items()}
        height, *angles = (figure.add_subplot(grid[i, k]) for k in range(3))
        _differences(height, at, looks)
        finish(height, "ΔH, m", "density, 1/m", f"ΔH at {level:g} hPa")
        for ax, (name, words) in zip(angles, ANGLES.items(), strict=True):
            for told, ds in at.items():
                ax.plot(ds["value"], ds[name], **looks[told], lw=1.4)
            ax.set_xlim(-1, 1)
            ax.set_ylim(0, 1.06 * most[name])
            finish(ax, words, "density", f"{words} at {level:g} hPa")
        # all but a little of the sine is at 1, and where the rest is would not be seen
        angles[1].set_yscale("log")
        angles[1].set_ylim(LEAST, 1.5 * most["sine"])
    size = figure.add_subplot(grid[:, 3])
    for k, (name, ds) in enumerate(found.items()):
        mark: dict[str, Any] = {"marker": MARKERS[k % len(MARKERS)], "markersize": 3.5}
        size.plot(ds["correlation"], ds["level"], **looks[name], **mark, lw=1.4, label=name)
        pressure(size, ds["level"].values)
    paper = any(ds.attrs.get("variant") == "paper" for ds in found.values())
    title = f"Wind and {'gradient' if paper else 'geostrophic wind'}"
    finish(size, "correlation of magnitudes", "pressure, hPa", title)
    legend(size, loc="best")
    return figure


def _differences(
    ax: Axes, at: Mapping[str, xr.Dataset], looks: Mapping[str, dict[str, Any]]
) -> None:
    r"""The density of :math:`\Delta H`, in bins as wide as it takes to see its shape, and mean and
    deviation of each in its corner."""
    x, y = coarse([ds["difference_density"] for ds in at.values()])
    for (name, ds), density in zip(at.items(), y, strict=True):
        ax.plot(x, density, **looks[name], lw=1.4)
        mean: dict[str, Any] = {"color": looks[name]["color"], "lw": 0.7, "alpha": 0.6}
        ax.axvline(float(ds["difference_mean"]), ymax=0.6, **mean)
    ax.set_xlim(x[0], x[-1])
    ax.set_ylim(0, (1.1 + 0.1 * len(at)) * float(y.max()))  # with room for what is told
    for k, (name, ds) in enumerate(at.items()):
        told = f"{float(ds['difference_mean']):.1f} ± {float(ds['difference_std']):.1f} m"
        place: dict[str, Any] = {"ha": "right", "va": "top", "fontsize": 7}
        place |= {"color": looks[name]["color"], "transform": ax.transAxes}
        ax.text(0.98, 0.99 - 0.085 * k, told.replace("-", "−"), **place)


def coarse(densities: Sequence[xr.DataArray]) -> tuple[np.ndarray, np.ndarray]:
    r"""Densities by common, wider bins where all but :data:`TAIL` of each is.

    Arguments:
        densities: Densities along `difference`, of the same bins, which are of one width.

    Returns:
        The bins' middles :math:`(B)`, and densities :math:`(N, B)`.
    """
    middle = densities[0]["difference"].values
    y = np.stack([density.values for density in densities])
    below = np.cumsum(y, axis=1)
    below /= below[:, -1:]
    first = int((below > TAIL / 2).argmax(axis=1).min())
    last = int((below >= 1 - TAIL / 2).argmax(axis=1).max())
    group = max(1, -(-(last + 1 - first) // BINS))
    # two bins more on either side, and some about what is a single value
    room = max(2 * group, (FEWEST - (last - first)) // 2)
    first, last = max(0, first - room), min(len(middle), last + 1 + room)
    count = max(1, (last - first) // group)
    part = slice(first, first + count * group)
    x = middle[part].reshape(count, group).mean(axis=1)
    return x, y[:, part].reshape(len(y), count, group).mean(axis=-1)
