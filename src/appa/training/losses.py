r"""The error of a reconstruction, weighted by area and by pressure.

The squared error of channel :math:`c` is averaged over the sphere with the weights :math:`a_i` of
the latitudes, and over the places where the channel is defined (:math:`m`; SST is not over land),

.. math:: e_c = \frac{\sum_{ij} m_{c,ij} \, a_i \, (\hat x_{c,ij} - x_{c,ij})^2}
    {\sum_{ij} m_{c,ij} \, a_i} , \qquad \ell = \frac{1}{C} \sum_c w_c \, e_c .

With level weights, :math:`w_c` follows Lam et al. (2023): each variable on levels counts once, its
levels shared out by their pressure, and of the surface variables 2 m temperature counts 1 and the
others a tenth,

.. math:: w_c \propto p_c / \sum_l p_l , \qquad
    w_\mathrm{t2m} \propto 1 , \qquad w_\mathrm{u10} , \dots \propto 0.1 .

Without level weights, :math:`w_c = 1`. Single variables may be given more, or less. Weights are
scaled to mean 1, so that errors of the same size in all channels give the same loss with and
without them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data.variables import VARIABLES, Channel
from ..errors import DataError

__all__ = ["WeightedError", "channel_weights"]

SURFACE_WEIGHTS = {"2m_temperature": 1.0}
SURFACE_WEIGHT = 0.1  # of the others


def channel_weights(
    channels: Sequence[Channel],
    level_weights: bool = True,
    variable_weights: Mapping[str, float] | None = None,
) -> NDArray[np.float64]:
    r"""The weights :math:`w_c` of the channels, with mean 1 and shape :math:`(C)`.

    Arguments:
        channels: The channels.
        level_weights: Whether they are weighted as by Lam et al. (2023), or all the same.
        variable_weights: What weights of single variables are multiplied with.
    """
    w = np.ones(len(channels))
    if level_weights:
        total: dict[str, float] = {}
        for c in channels:
            total[c.variable] = total.get(c.variable, 0.0) + (c.level or 0)
        w = np.array(
            [
                SURFACE_WEIGHTS.get(c.variable, SURFACE_WEIGHT)
                if c.level is None
                else c.level / total[c.variable]
                for c in channels
            ]
        )
    w = w * [(variable_weights or {}).get(c.variable, 1.0) for c in channels]
    return w / w.mean()


class WeightedError(nn.Module):
    r"""The weighted squared error of reconstructed states.

    Arguments:
        channels: The channels of a state.
        latitude: Weights :math:`a` of the latitudes, with shape :math:`(H)`.
        undefined: Where SST is undefined, booleans with shape :math:`(H, W)`, or nowhere.
        level_weights, variable_weights: See :func:`channel_weights`.
    """

    weights: Tensor
    area: Tensor

    def __init__(
        self,
        channels: Sequence[Channel],
        latitude: Any,
        undefined: Any = None,
        level_weights: bool = True,
        variable_weights: Mapping[str, float] | None = None,
    ):
        super().__init__()
        a = np.asarray(latitude, np.float64)[None, :, None]
        area = np.broadcast_to(a, (len(channels), a.size, 1))
        holes = [i for i, c in enumerate(channels) if VARIABLES[c.variable].missing == "land"]
        if undefined is not None and holes:
            m = np.asarray(undefined, bool)
            if m.ndim != 2 or m.shape[0] != a.size:
                raise DataError(
                    f"the mask of undefined places has shape {m.shape}, expected ({a.size}, W)"
                )
            if m.all():
                raise DataError("SST is undefined everywhere; leave it out of data.surface")
            area = np.broadcast_to(a, (len(channels), *m.shape)).copy()
            area[holes] *= ~m
        # an average over longitudes where all weigh the same
        area = area / area.sum(axis=(1, 2), keepdims=True)
        self.register_buffer("area", torch.from_numpy(area).float(), persistent=False)
        weights = channel_weights(channels, level_weights, variable_weights) / len(channels)
        weights = torch.from_numpy(weights)
        self.register_buffer("weights", weights.float(), persistent=False)

    def errors(self, x_hat: Tensor, x: Tensor, area: Tensor | None = None) -> Tensor:
        r"""The errors :math:`e_c` of states :math:`(B, C, H, W)`, with shape :math:`(B, C)`; with
        other areas than `self.area` where states are rotated."""
        area = self.area if area is None else area
        area = area if area.shape[-1] > 1 else area / x.shape[-1]
        error = x_hat.to(area.dtype) - x.to(area.dtype)
        return (area * error.square()).sum(dim=(-2, -1))

    def forward(self, x_hat: Tensor, x: Tensor, area: Tensor | None = None) -> Tensor:
        r"""The losses :math:`\ell` of states :math:`(B, C, H, W)`, with shape :math:`(B)`."""
        return self.mean(self.errors(x_hat, x, area))

    def mean(self, errors: Tensor) -> Tensor:
        r"""The losses :math:`(*)` of errors :math:`(*, C)`."""
        # not a matrix product, which autocast would take in half precision
        return (errors * self.weights).sum(dim=-1)
