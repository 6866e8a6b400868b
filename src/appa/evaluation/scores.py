r"""Scores: how far an estimate is from the truth.

The root-mean-square error weighs each grid point by its area and leaves out undefined values,

.. math:: \operatorname{RMSE} = \sqrt{\frac{\sum_i w_i (\hat{x}_i - x_i)^2}{\sum_i w_i}}

where :math:`i` runs over the hours and grid points at which both are defined and :math:`w` is the
weight of the latitude. In units of the variable's standard deviation :math:`s`, it is
:math:`\operatorname{RMSE} / s`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from ..data.grids import Grid
from ..errors import DataError

__all__ = ["rmse", "standardized_rmse"]

DIMENSIONS = ("time", "latitude", "longitude")


def rmse(
    estimate: xr.DataArray, truth: xr.DataArray, dims: Sequence[str] = DIMENSIONS
) -> xr.DataArray:
    r"""Root-mean-square error by area, in double precision.

    Arguments:
        estimate: The estimate, with dimensions in any order.
        truth: The truth, at the same hours and places.
        dims: The dimensions averaged over; others, such as levels and members, stay.

    Returns:
        The error, NaN where nothing is defined in both.
    """

    try:
        estimate, truth = xr.align(estimate, truth, join="exact")
    except ValueError as error:
        raise DataError(
            f"estimate and truth are not of the same hours and places: {error}; select those "
            "both have, for example with xarray.align(estimate, truth, join='inner')"
        ) from None
    grid = Grid.from_coordinates(truth["latitude"].values, truth["longitude"].values)
    weights = xr.DataArray(grid.weights, {"latitude": truth["latitude"]})
    square = (estimate.astype(np.float64) - truth.astype(np.float64)) ** 2
    # the weighted mean leaves NaN out of both sums
    return square.weighted(weights).mean([dim for dim in dims if dim in square.dims]) ** 0.5


def standardized_rmse(
    estimate: xr.DataArray,
    truth: xr.DataArray,
    deviation: xr.DataArray | float,
    dims: Sequence[str] = DIMENSIONS,
) -> xr.DataArray:
    r"""Root-mean-square error by area, in standard deviations.

    Arguments:
        estimate, truth, dims: As in :func:`rmse`.
        deviation: The variable's standard deviation, by level where it has levels.

    Example:
        >>> deviation = statistics["geopotential"].sel(statistic="std")
        >>> standardized_rmse(analysis["geopotential"], truth["geopotential"], deviation)
    """

    return rmse(estimate, truth, dims) / deviation
