r"""The normals: what states are at each place on average over time.

Convolutions know no places. Mountains, coasts and deserts, which are the same at every hour, an
autoencoder of whole states has to keep in each latent anew, and gets wrong in the same way each
time. With normals :math:`\bar x` it compresses departures from them,

.. math:: z = E_\psi(x - \bar x) , \qquad \hat x = \bar x + D_\psi(z) ,

which are as alike from place to place as weather is: the networks stay equivariant to rotations.
Normals are standardized as states are, and zero where a state is undefined. They are rounded to
:math:`2^{-8}`, a third of a percent of a standard deviation: what they say wrong departures say
right, and files are smaller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..data.states import Standardizer
from .folders import NORMALS, ModelError

if TYPE_CHECKING:
    import xarray as xr

    from ..config import Config

__all__ = ["read_normals", "with_normals"]

PRECISION = 2.0**-8


def with_normals(config: Config, statistics: xr.Dataset, mean: xr.Dataset) -> xr.Dataset:
    r"""Statistics of states, with the normals beside them.

    Arguments:
        config: The configuration, which says what channels there are.
        statistics: The statistics of states, as :func:`appa.tasks.folders.gather` gives them.
        mean: A climatology of the same variables, as :func:`appa.data.climatology.fit` fits it.
            Its means over time are taken, its harmonics left.
    """
    names = [*config.data.surface, *config.data.atmospheric]
    states = Standardizer.from_config(config, statistics)
    x = states.to_tensor(mean[names].sel(coefficient="mean", drop=True))
    x = np.round(x.numpy() / PRECISION) * np.float32(PRECISION)
    dims = ("channel", "latitude", "longitude")
    attrs = {"long_name": "standardized states, averaged over time", "units": "1"}
    return statistics.assign({NORMALS: (dims, x, attrs)})


def read_normals(config: Config, statistics: xr.Dataset | None) -> Tensor | None:
    r"""The normals :math:`\bar x` of a model, with shape :math:`(C, H, W)`, if it has any.

    Arguments:
        config: Its configuration.
        statistics: Its statistics, as its folder has them.
    """
    if not config.autoencoder.normals:
        return None
    if statistics is None or NORMALS not in statistics:
        raise ModelError(
            "autoencoder.normals is set, but the statistics have no normals; is statistics.nc "
            "that of this model? Copy the whole folder again"
        )
    x = torch.from_numpy(statistics[NORMALS].values.astype(np.float32))
    if tuple(x.shape) != tuple(config.state_shape):
        raise ModelError(
            f"the normals have shape {tuple(x.shape)}, but states {tuple(config.state_shape)}: the "
            "files are of two models; copy the whole folder again"
        )
    return x
