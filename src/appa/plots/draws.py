r"""Maps of what a prior draws, beside the truth, and all figures of a set of scores.

Curves are in :mod:`appa.plots.prior`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from .fields import SPREAD, add_field
from .maps import moment, plot_map
from .prior import (
    at_length,
    panels,
    place,
    plot_autocorrelation,
    plot_changes,
    plot_errors,
    plot_rmse,
    plot_seam,
    plot_spectra,
    plot_variance,
)
from .style import INK, label, limits, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["figures", "plot_examples", "plot_moments"]

MAPS = ("t2m", "u10", "z500", "q700")


def figures(scores: xr.Dataset) -> dict[str, Figure]:
    r"""All figures of scores, by name: those of reconstructions, or those of a prior."""
    if "length" not in scores.dims:
        return {
            "rmse": plot_rmse(scores),
            "errors": plot_errors(scores),
            "spectra": plot_spectra(scores),
            "seam": plot_seam(scores),
        }
    land = scores.get("land_sea_mask")
    return {
        "examples": plot_examples(scores, land),
        "moments": plot_moments(scores, land),
        "spectra": plot_spectra(scores),
        "autocorrelation": plot_autocorrelation(scores),
        "variance": plot_variance(scores),
        "changes": plot_changes(scores),
        "seam": plot_seam(scores),
    }


def plot_moments(
    scores: xr.Dataset,
    land: xr.DataArray | None = None,
    channels: Sequence[str] = MAPS,
    length: int | None = None,
) -> Figure:
    r"""Draws the mean and the weather's standard deviation at each point, truth beside draws.

    Arguments:
        scores: Scores of the prior.
        land: The land mask to draw the coastline of.
        channels: The channels, of which those there are drawn.
        length: The length of trajectories; by default the first.
    """
    scores = at_length(scores, length)
    known = [c for c in channels if c in scores["mapped"].values]
    figure, axes = panels(len(known), 4, (12.4, 0.4 + 1.75 * len(known)))
    for row, channel in zip(axes, known, strict=True):
        variable, _ = place(scores, channel)
        at = scores.sel(mapped=channel)
        ends = limits(variable, at["mean"].sel(source="truth").values)
        most = style(variable).scale * np.nanquantile(at["weather_std"].sel(source="truth"), 0.99)
        for k, source in enumerate(("truth", "draws")):
            plot_map(
                at["mean"].sel(source=source),
                name=variable,
                land=land,
                ends=ends,
                title=f"{channel}, mean, {source}",
                ax=row[k],
                ticks=(False, False),
            )
            field = at["weather_std"].sel(source=source)
            title = f"{channel}, weather, {source}"
            _deviation(row[2 + k], field, land, variable, float(most), title)
    return figure


def plot_examples(
    scores: xr.Dataset,
    land: xr.DataArray | None = None,
    channels: Sequence[str] = MAPS,
    length: int | None = None,
) -> Figure:
    r"""Draws a state of the truth beside one drawn for the same hour: alike in kind, not in place.

    Arguments:
        scores, land, channels, length: As in :func:`plot_moments`.
    """
    scores = at_length(scores, length)
    known = [c for c in channels if c in scores["mapped"].values]
    figure, axes = panels(len(known), 2, (7.6, 0.4 + 1.95 * len(known)))
    for row, channel in zip(axes, known, strict=True):
        variable, level = place(scores, channel)
        fields = scores["example"].sel(mapped=channel)
        ends = limits(variable, fields.sel(source="truth").values)
        for ax, source, words in zip(row, ("truth", "draws"), ("truth", "a draw"), strict=True):
            plot_map(
                fields.sel(source=source),
                name=variable,
                land=land,
                ends=ends,
                title=f"{label(variable, level)}, {words}",
                ax=ax,
                ticks=(False, False),
            )
    when = moment(scores["example_time"].values)
    figure.suptitle(when, color=INK, fontsize=9, x=0.01, ha="left")
    return figure


def _deviation(
    ax: Axes, field: xr.DataArray, land: Any, variable: str, most: float, title: str
) -> None:
    common: Any = {"land": land, "ticks": (False, False), "gid": "deviation"}
    add_field(ax, field, variable, colours=SPREAD, ends=(0.0, most), **common)
    ax.set_title(title, color=INK, fontsize=10, loc="left")
