r"""Physical consistency of fields, as it is on a sphere and as the paper prints it.

Two estimates of altitude and two properties of the wind, each in two variants:

=================== ======================================== =======================================
\                   here                                     with `paper=True`, appendix D.2
=================== ======================================== =======================================
altitude            :math:`H = \Phi a / (g a - \Phi)`        the same
the same from       hypsometric, :math:`T_v` linear in       barometric, :math:`\ln \frac{p_0}{p_H}
temperature         :math:`\ln p`, from the pressure at sea  = \frac{M g}{R} \int_0^H \frac{
                    level, in geopotential metres, and then  \mathrm{d} h}{T_h}`, :math:`T` dry and
                    as above                                 linear in :math:`h`, from the standard
                                                             atmosphere's :math:`p_0` and
                                                             :math:`T_0`, :math:`g` constant
gradient of         :math:`\frac{1}{a} (\frac{1}{\cos        differences between pixels,
:math:`\Phi`        \varphi} \partial_\lambda,               :math:`(\partial_x, \partial_y)`: the
                    \partial_\varphi)`                       metric is dropped, and with it
                                                             :math:`\cos \varphi`
correlation of      :math:`|V|` and :math:`|V_g|`, by area,  :math:`|V|` and :math:`|\nabla \Phi|`,
magnitudes          away from the equator                    by pixel, everywhere: :math:`f` is
                                                             dropped too
=================== ======================================== =======================================

The paper's geostrophic wind does have its metric, for :math:`N_x \times N_y` pixels,

.. math:: \partial_x \Phi = \frac{4 \pi \Omega a}{N_x} \sin \varphi \cos \varphi \, v_g , \qquad
    \partial_y \Phi = - \frac{2 \pi \Omega a}{N_y} \sin \varphi \, u_g ,

with :math:`u_g` and :math:`v_g` in each other's place as printed: see :func:`published_wind`. In a
solid rotation, which is balanced, the paper's correlation is 0.20 where it should be 1; what both
variants share is that truth and members can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from ..data.variables import G
from ..errors import DataError
from ..progress import progress
from .physics import (
    EARTH,
    HORIZONTAL,
    Constants,
    _grid,
    geostrophic_wind,
    gradient,
    virtual_temperature,
)

__all__ = [
    "altitude",
    "altitude_difference",
    "geostrophic_angle",
    "hypsometric_altitude",
    "physical_consistency",
    "pixel_gradient",
    "published_wind",
    "states_beside",
]

SEA_LEVEL = "mean_sea_level_pressure"
P0, T0 = 1013.25, 288.15  # hPa and K: the standard atmosphere at sea level
MOLAR, GAS = 0.0289644, 8.314462618  # kg/mol of air, and J/(mol K)
BETWEEN = (20.0, 80.0)  # degrees from the equator
WINDS = ("u_component_of_wind", "v_component_of_wind")


# ---------------------------------------------------------------- altitude


def altitude(ds: xr.Dataset, constants: Constants = EARTH) -> xr.DataArray:
    r"""The altitude of levels from geopotential, :math:`H = \Phi a / (g a - \Phi)`, in metres."""
    return _geometric(ds["geopotential"].astype(np.float64) / G, constants)


def _geometric(height: xr.DataArray, constants: Constants) -> xr.DataArray:
    r"""Metres of geopotential metres: gravity falls off with the square of the distance."""
    return constants.radius * height / (constants.radius - height)


def hypsometric_altitude(
    ds: xr.Dataset, constants: Constants = EARTH, *, paper: bool = False
) -> xr.DataArray:
    r"""The altitude of levels from temperature, in metres.

    Arguments:
        ds: A dataset with `temperature`, and with `specific_humidity` and
            `mean_sea_level_pressure` if it has them. Without the latter, altitudes are counted
            from that of the lowest level's `geopotential`.
        constants: The planet's constants.
        paper: Whether as the paper has it.
    """
    level = ds["level"].values.astype(np.float64)
    if not (np.diff(level) > 0).all():
        raise DataError(
            f"levels must run from the top down, found {level.tolist()}; open the store with "
            "appa.open_store, or pass it the dataset"
        )
    t = ds["temperature"].astype(np.float64) if paper else virtual_temperature(ds, constants)
    t = t.transpose("level", ...)
    scale = GAS / (MOLAR * G) if paper else constants.gas / G
    lowest = t.isel(level=-1, drop=True)
    if paper:
        bottom = scale * np.log(P0 / level[-1]) * _log_mean(lowest, T0)
    elif SEA_LEVEL in ds:
        # as warm as the lowest level: 0.1 m off for 100 m of air with a usual lapse rate
        bottom = scale * np.log(ds[SEA_LEVEL].astype(np.float64) / 100 / level[-1]) * lowest
    else:
        bottom = ds["geopotential"].astype(np.float64).isel(level=-1, drop=True) / G
    heights = [bottom]
    for k in range(len(level) - 2, -1, -1):
        above, below = t.isel(level=k, drop=True), t.isel(level=k + 1, drop=True)
        mean = _log_mean(above, below) if paper else (above + below) / 2
        heights.append(heights[-1] + scale * np.log(level[k + 1] / level[k]) * mean)
    found = xr.concat(heights[::-1], ds["level"], coords="minimal", compat="override")
    found = found.transpose(*ds["temperature"].dims)
    return found if paper else _geometric(found, constants)


def _log_mean(a: xr.DataArray, b: Any) -> xr.DataArray:
    r"""The temperature for which :math:`\int \mathrm{d} h / T = \Delta h / T`, :math:`T` linear:
    :math:`(a - b) / \ln (a / b)`."""
    x = (a - b) / (a + b)
    # artanh(x) / x, by its series where it would be 0 / 0
    series = 1 + x**2 / 3 + x**4 / 5
    small = abs(x) < 1e-4
    share = xr.where(small, series, np.arctanh(x) / xr.where(small, 1.0, x))
    return (a + b) / 2 / share


def altitude_difference(
    ds: xr.Dataset, constants: Constants = EARTH, *, paper: bool = False
) -> xr.DataArray:
    r"""The paper's :math:`\Delta H`, altitude from geopotential less that from temperature."""
    return altitude(ds, constants) - hypsometric_altitude(ds, constants, paper=paper)


# ---------------------------------------------------------------- wind


def pixel_gradient(field: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    r"""Differences between pixels, eastward and northward, centred but at the poles."""
    field = field.astype(np.float64)
    _grid(field)  # from north to south
    turned = {k: field.roll(longitude=k, roll_coords=False) for k in (-1, 1)}
    axis = field.get_axis_num("latitude")
    north = -np.gradient(field.values, axis=axis)
    return ((turned[-1] - turned[1]) / 2).rename(None), field.copy(data=north).rename(None)


def published_wind(
    ds: xr.Dataset, constants: Constants = EARTH, *, equator: float = 10.0
) -> xr.Dataset:
    r"""The geostrophic wind by the paper's formulas, :math:`u_g` and :math:`v_g` each in its place.

    They are of second order, and exact in their metric, where pixels are cells of equal angles;
    with rows at the poles :math:`u_g` is too large by :math:`N_y / (N_y - 1)`.

    Arguments:
        ds: A dataset with `geopotential`.
        constants: The planet's constants.
        equator: The latitude in degrees below which it is undefined.
    """
    dx, dy = pixel_gradient(ds["geopotential"])
    phi = np.radians(ds["latitude"].where(abs(ds["latitude"]) >= max(equator, 1e-6)))
    unit = 2 * np.pi * constants.omega * constants.radius
    nx, ny = ds.sizes["longitude"], ds.sizes["latitude"]
    u = -ny / (unit * np.sin(phi)) * dy
    v = nx / (2 * unit * np.sin(phi) * np.cos(phi)) * dx
    return xr.Dataset(dict(zip(WINDS, (u, v), strict=True)))


def geostrophic_angle(
    ds: xr.Dataset, constants: Constants = EARTH, *, paper: bool = False
) -> xr.DataArray:
    r"""The angle in degrees from the gradient of geopotential to the wind, turned as the
    hemisphere turns: 90 in balance, more where air flows towards low pressure.

    Arguments:
        ds: A dataset with wind and `geopotential`.
        constants: The planet's constants.
        paper: Whether the gradient is that of pixels.
    """
    phi = ds["geopotential"]
    east, north = pixel_gradient(phi) if paper else gradient(phi, constants)
    u, v = (ds[name].astype(np.float64) for name in WINDS)
    cross, dot = east * v - north * u, east * u + north * v
    angle: Any = np.degrees(np.arctan2(np.sign(ds["latitude"]) * cross, dot))
    return angle.transpose(*phi.dims).rename(None)


# ---------------------------------------------------------------- of many states


def states_beside(
    estimate: xr.Dataset, truth: xr.Dataset, hours: int
) -> tuple[xr.Dataset, xr.Dataset]:
    r"""The truth and an estimate of the same hours, at levels that both have and at so many of the
    hours, evenly from the first to the last."""
    chosen = np.unique(np.linspace(0, truth.sizes["time"] - 1, hours).round().astype(int))
    levels = [p for p in truth["level"].values if p in estimate["level"].values]
    one, other = (ds.sel(level=levels).isel(time=chosen) for ds in (truth, estimate))
    return one, other


def physical_consistency(
    ds: xr.Dataset,
    constants: Constants = EARTH,
    *,
    paper: bool = False,
    bins: int = 40,
    differences: Sequence[float] | np.ndarray | None = None,
) -> xr.Dataset:
    r"""Distributions over all members and hours of a dataset, an hour in memory.

    Arguments:
        ds: A dataset with wind, `temperature` and `geopotential`.
        constants: The planet's constants.
        paper: Whether as the paper has it: its formulas, every pixel of the globe counting alike.
            By default points count by area, those of angles and correlations at 20 to 80° from the
            equator.
        bins: The number of bins of :math:`\cos \theta` and :math:`\sin \theta`.
        differences: The edges of the bins of :math:`\Delta H` in metres, by default 1 m apart up to
            1 km; what is beyond counts in the last ones.

    Returns:
        By `level`: `correlation`, of magnitudes; `difference_mean` and `difference_std` of
        :math:`\Delta H`; the densities `cosine` and `sine` along `value`, and `difference_density`
        along `difference`, the middles of bins.
    """
    lacking = [name for name in (*WINDS, "temperature", "geopotential") if name not in ds]
    if lacking:
        raise DataError(f"physical consistency needs {', '.join(lacking)}, which the dataset lacks")
    unit = np.linspace(-1, 1, bins + 1)
    edges = np.arange(-1000.0, 1001.0) if differences is None else np.asarray(differences, float)
    weights = xr.DataArray(_grid(ds["geopotential"]).weights, {"latitude": ds["latitude"]})
    weights, away = (xr.ones_like(weights), True) if paper else (weights, abs(ds["latitude"]))
    if not paper:
        away = (away >= BETWEEN[0]) & (away <= BETWEEN[1])
    shape = ds.sizes["level"]
    sums = np.zeros((6, shape))  # of weights, a, b, a², b² and a b
    moments = np.zeros((3, shape))
    counts = [np.zeros((shape, len(e) - 1)) for e in (unit, unit, edges)]

    def flat(field: xr.DataArray) -> np.ndarray:
        return field.transpose("level", *HORIZONTAL).values.reshape(shape, -1)

    lead = [dim for dim in ("member", "time") if dim in ds.dims]
    places = list(np.ndindex(*(ds.sizes[dim] for dim in lead)))
    wanted = [*WINDS, "temperature", "geopotential", "specific_humidity", SEA_LEVEL]
    with progress(len(places), "checking balances", unit="states") as p:
        for place in places:
            at = dict(zip(lead, place, strict=True))
            state = ds[[name for name in wanted if name in ds]].isel(at).load()
            every = np.broadcast_to(weights.values[:, None], [ds.sizes[d] for d in HORIZONTAL])
            area = xr.DataArray(every, {d: ds[d] for d in HORIZONTAL}, HORIZONTAL)
            away_area = flat(xr.ones_like(state["geopotential"]) * area.where(away, 0.0))
            speed: Any = np.hypot(*(state[name].astype(np.float64) for name in WINDS))
            other: Any
            if paper:
                other = np.hypot(*pixel_gradient(state["geopotential"]))
            else:
                other = np.hypot(*geostrophic_wind(state, constants, equator=BETWEEN[0]).values())
            angle = np.radians(flat(geostrophic_angle(state, constants, paper=paper)))
            delta = flat(altitude_difference(state, constants, paper=paper))
            a, b = flat(speed), flat(other)
            w = np.where(np.isfinite(a * b), away_area, 0.0)
            a, b = np.where(w > 0, a, 0), np.where(w > 0, b, 0)
            sums += [(w * x).sum(axis=1) for x in (1.0, a, b, a * a, b * b, a * b)]
            w = np.broadcast_to(area.values.reshape(-1), delta.shape)
            moments += [(w * delta**n).sum(axis=1) for n in (0, 1, 2)]
            for values, each, found, e in zip(
                (np.cos(angle), np.sin(angle), np.clip(delta, edges[0], edges[-1])),
                (away_area, away_area, w),
                counts,
                (unit, unit, edges),
                strict=True,
            ):
                for k in range(shape):
                    fine = np.isfinite(values[k])
                    found[k] += np.histogram(values[k][fine], e, weights=each[k][fine])[0]
            p.advance()

    n, a, b, aa, bb, ab = sums
    covariance = ab / n - a * b / n**2
    correlation = covariance / np.sqrt((aa / n - (a / n) ** 2) * (bb / n - (b / n) ** 2))
    mean = moments[1] / moments[0]
    cosine, sine, density = (
        c / c.sum(axis=1, keepdims=True) / np.diff(e)
        for c, e in zip(counts, (unit, unit, edges), strict=True)
    )
    spread = np.sqrt(np.maximum(moments[2] / moments[0] - mean**2, 0))
    told = "wind speed and magnitude of the " + ("gradient" if paper else "geostrophic wind")
    about = {"units": "m"}
    return xr.Dataset(
        {
            "correlation": ("level", correlation, {"long_name": f"correlation of {told}"}),
            "difference_mean": ("level", mean, about),
            "difference_std": ("level", spread, about),
            "cosine": (("level", "value"), cosine, {"long_name": "density of cos θ"}),
            "sine": (("level", "value"), sine, {"long_name": "density of sin θ"}),
            "difference_density": (("level", "difference"), density, {"units": "m-1"}),
        },
        {
            "level": ds["level"].values,
            "value": (unit[1:] + unit[:-1]) / 2,
            "difference": ("difference", (edges[1:] + edges[:-1]) / 2, about),
        },
        {"variant": "paper" if paper else "sphere", "states": len(places)},
    )
