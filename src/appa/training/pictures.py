r"""Pictures of what a network does while it learns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..data.variables import Channel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_reconstruction"]

DRAWN = ("2m_temperature", "10m_u_component_of_wind", "geopotential", "specific_humidity")
LEVEL = 600  # hPa, or the level next to it


def draw_reconstruction(
    x: np.ndarray, x_hat: np.ndarray, channels: Sequence[Channel]
) -> Figure | None:
    r"""Draws a few fields of a state, their reconstructions, and the differences.

    Arguments:
        x: A standardized state, with shape :math:`(C, H, W)`.
        x_hat: Its reconstruction, with shape :math:`(C, H, W)`.
        channels: Its channels.

    Returns:
        The figure, or :py:`None` where Matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    chosen = []
    for name in DRAWN:
        found = [i for i, c in enumerate(channels) if c.variable == name]
        if found:
            chosen.append(min(found, key=lambda i: abs((channels[i].level or 0) - LEVEL)))
    chosen = chosen or [0]

    figure = Figure(figsize=(12, 2.2 * len(chosen)), layout="constrained")
    axes = figure.subplots(len(chosen), 3, squeeze=False)
    titles = ("truth", "reconstruction", "difference")
    for row, i in zip(axes, chosen, strict=True):
        fields = (x[i], x_hat[i], x_hat[i] - x[i])
        bounds = [float(np.quantile(np.abs(f), 0.995)) or 1.0 for f in (x[i], x[i], fields[2])]
        for ax, field, bound, title in zip(row, fields, bounds, titles, strict=True):
            image = ax.imshow(field, cmap="RdBu_r", vmin=-bound, vmax=bound, aspect="auto")
            ax.set(title=f"{channels[i].name}: {title}", xticks=[], yticks=[])
            figure.colorbar(image, ax=ax)
    return figure
