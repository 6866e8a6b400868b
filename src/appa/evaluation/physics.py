r"""Is it an atmosphere? Balances and averages that hold in one.

Between two pressure levels the hypsometric equation ties geopotential to virtual temperature,

.. math:: \frac{\Phi_1 - \Phi_2}{g}
    = \frac{R}{g} \int_{\ln p_1}^{\ln p_2} T_v \, \mathrm{d} \ln p , \qquad
    T_v = T (1 + \epsilon q) ,

and away from the equator the wind follows the height contours, nearly,

.. math:: u_g = - \frac{1}{f a} \frac{\partial \Phi}{\partial \varphi} , \qquad
    v_g = \frac{1}{f a \cos \varphi} \frac{\partial \Phi}{\partial \lambda} , \qquad
    f = 2 \Omega \sin \varphi .

Functions take and return canonical `xarray` objects, of any further dimensions, and compute in
double precision. Derivatives in longitude are spectral; those in latitude are of fourth order on
the grid's own, unequal latitudes, and reach across the poles along the meridian.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from ..data.grids import RADIUS, Grid
from ..data.planet.vertical import CONSTANTS
from ..data.saturation import SATURATION, TRIPLE
from ..data.variables import G
from ..errors import DataError, nearest

__all__ = [
    "EARTH",
    "PLANET",
    "Constants",
    "geostrophic_balance",
    "geostrophic_wind",
    "global_mean",
    "gradient",
    "hydrostatic_error",
    "hydrostatic_residual",
    "hypsometric_thickness",
    "jets",
    "relative_humidity",
    "saturation_humidity",
    "thickness",
    "virtual_temperature",
]


class Constants(NamedTuple):
    r"""Physical constants, in SI units."""

    gas: float = 287.0597  # R, J kg⁻¹ K⁻¹, dry air
    virtual: float = 0.60779  # ε = R_v/R − 1
    omega: float = 7.292115e-5  # Ω, s⁻¹
    radius: float = RADIUS  # a, m


EARTH = Constants()  # as ECMWF's model, and so ERA5, has them
PLANET = Constants(CONSTANTS.gas, CONSTANTS.virtual, 7.292e-5, 6.371e6)  # as JCM has them

HORIZONTAL = ("latitude", "longitude")


# Hydrostatics


def virtual_temperature(ds: xr.Dataset, constants: Constants = EARTH) -> xr.DataArray:
    r"""The virtual temperature :math:`T_v` in K; dry air's where the dataset has no humidity."""
    temperature = ds["temperature"].astype(np.float64)
    if "specific_humidity" not in ds:
        return temperature
    return temperature * (1 + constants.virtual * ds["specific_humidity"].astype(np.float64))


def thickness(ds: xr.Dataset) -> xr.DataArray:
    r"""The thickness of the layers between levels from geopotential, in geopotential metres.

    Returns:
        The field with a dimension `layer` instead of `level`, with coordinates `top` and `bottom`,
        the layer's pressures in hPa.
    """
    phi = ds["geopotential"].astype(np.float64)
    return _layers(phi, (_upper(phi) - _lower(phi)) / G)


def hypsometric_thickness(ds: xr.Dataset, constants: Constants = EARTH) -> xr.DataArray:
    r"""The same thickness from temperature and humidity, :math:`T_v` linear in :math:`\ln p`.

    .. math:: \frac{R}{g} \frac{T_{v,1} + T_{v,2}}{2} \ln \frac{p_2}{p_1}
    """
    tv = virtual_temperature(ds, constants)
    mean = (_upper(tv) + _lower(tv)) / 2
    return _layers(tv, constants.gas / G * mean * _log_depth(tv))


def hydrostatic_residual(ds: xr.Dataset, constants: Constants = EARTH) -> xr.DataArray:
    r"""Thickness from geopotential less thickness from temperature, by layer, in metres."""
    return thickness(ds) - hypsometric_thickness(ds, constants)


def hydrostatic_error(ds: xr.Dataset, constants: Constants = EARTH) -> xr.DataArray:
    r"""How large a residual the distance of the levels explains, by layer, in metres.

    A profile curved in :math:`x = \ln p` departs from its chord, whose integral errs by

    .. math:: \frac{R}{g} \frac{\Delta x^3}{12} \left| T_v'' \right|

    where the second derivative is the larger divided difference about the layer's two levels. It
    is an estimate, not a bound: it knows the temperature at the levels only.
    """
    tv = virtual_temperature(ds, constants)
    if tv.sizes["level"] < 3:
        raise DataError(
            f"a profile's curvature needs 3 levels or more; found {tv['level'].values.tolist()}"
        )
    x = np.log(tv["level"].astype(np.float64))
    slope = (_lower(tv) - _upper(tv)) / (_lower(x) - _upper(x))
    middle = (_lower(x) + _upper(x)) / 2
    curve = abs((_lower(slope) - _upper(slope)) / (_lower(middle) - _upper(middle)))
    above = curve.pad(level=(1, 0), mode="edge").drop_vars("level", errors="ignore")
    below = curve.pad(level=(0, 1), mode="edge").drop_vars("level", errors="ignore")
    larger = xr.where(above > below, above, below)
    return _layers(tv, constants.gas / G * _log_depth(tv) ** 3 / 12 * larger)


def _upper(field: Any) -> Any:
    return field.isel(level=slice(None, -1)).drop_vars("level", errors="ignore")


def _lower(field: Any) -> Any:
    return field.isel(level=slice(1, None)).drop_vars("level", errors="ignore")


def _log_depth(field: xr.DataArray) -> xr.DataArray:
    log = np.log(field["level"].astype(np.float64))
    return _lower(log) - _upper(log)


def _layers(field: xr.DataArray, values: xr.DataArray) -> xr.DataArray:
    level = field["level"].values
    if not (np.diff(level) > 0).all():
        raise DataError(
            f"levels must run from the top down, found {level.tolist()}; open the store with "
            "appa.open_store, or pass it the dataset"
        )
    values = values.rename(level="layer").transpose(*_renamed(field.dims))
    return values.assign_coords(top=("layer", level[:-1]), bottom=("layer", level[1:])).rename(None)


def _renamed(dims: tuple) -> list[str]:
    return ["layer" if dim == "level" else str(dim) for dim in dims]


# Geostrophy


def gradient(
    field: xr.DataArray, constants: Constants = EARTH
) -> tuple[xr.DataArray, xr.DataArray]:
    r"""The gradient of a field on the sphere, eastward and northward, by metre.

    .. math:: \left( \frac{1}{a \cos \varphi} \frac{\partial}{\partial \lambda} , \,
        \frac{1}{a} \frac{\partial}{\partial \varphi} \right)

    East is undefined (NaN) at the poles themselves. The number of longitudes must be even.
    """
    field = field.transpose(..., *HORIZONTAL)
    grid = _grid(field)
    values = field.values.astype(np.float64)
    phi = np.radians(grid.latitude)
    h, w = grid.shape
    if w % 2:
        raise DataError(f"differences across the poles need an even number of longitudes, not {w}")

    spectrum = np.fft.rfft(values, axis=-1)
    wavenumber = 1j * np.arange(spectrum.shape[-1])
    wavenumber[-1] = 0  # the sawtooth: its slope at the points is nil
    cosine = np.where(np.abs(grid.latitude) > 90 - 1e-6, np.nan, np.cos(phi))
    east = np.fft.irfft(spectrum * wavenumber, n=w, axis=-1) / cosine[:, None]

    # Two rows beyond each pole: the meridian goes on down the other side.
    skip = 1 if grid.kind == "equiangular" else 0
    over, rows = [skip + 1, skip], [h - 1 - skip, h - 2 - skip]
    turned = np.roll(values, w // 2, axis=-1)
    extended = np.concatenate([turned[..., over, :], values, turned[..., rows, :]], axis=-2)
    parallels = np.concatenate([np.pi - phi[over], phi, -np.pi - phi[rows]])
    north = np.zeros_like(values)
    for offset, weight in enumerate(_five_points(parallels).T):
        north += weight[:, None] * extended[..., offset : offset + h, :]

    return (
        field.copy(data=east / constants.radius).rename(None),
        field.copy(data=north / constants.radius).rename(None),
    )


def _five_points(x: np.ndarray) -> np.ndarray:
    r"""Weights of the first derivative at all but two points at each end, :math:`(N - 4, 5)`."""
    stencil = np.lib.stride_tricks.sliding_window_view(x, 5) - x[2:-2, None]
    scale = np.abs(stencil).max(-1, keepdims=True)
    # Exact for the powers 0 to 4 of the distance, of which only the first has a slope here.
    powers = (stencil / scale)[:, None, :] ** np.arange(5)[:, None]
    slope = np.zeros((len(stencil), 5, 1))
    slope[:, 1] = 1
    return np.linalg.solve(powers, slope)[..., 0] / scale


def geostrophic_wind(
    ds: xr.Dataset, constants: Constants = EARTH, *, equator: float = 10.0
) -> xr.Dataset:
    r"""The geostrophic wind of a dataset's geopotential.

    Arguments:
        ds: A dataset with `geopotential`.
        constants: The planet's constants.
        equator: The latitude in degrees below which it is undefined (NaN), as :math:`f` vanishes.

    Returns:
        `u_component_of_wind` and `v_component_of_wind` of the geostrophic wind, in m/s.
    """
    east, north = gradient(ds["geopotential"], constants)
    latitude = ds["latitude"].where(abs(ds["latitude"]) >= max(equator, 1e-6))
    f = 2 * constants.omega * np.sin(np.radians(latitude))
    return xr.Dataset({"u_component_of_wind": -north / f, "v_component_of_wind": east / f})


def geostrophic_balance(
    ds: xr.Dataset,
    constants: Constants = EARTH,
    *,
    between: tuple[float, float] = (20.0, 80.0),
) -> xr.Dataset:
    r"""How nearly the wind :math:`V` is the geostrophic wind :math:`V_g`, by level.

    Means are over area and time, of both hemispheres.

    Arguments:
        ds: A dataset with wind and `geopotential`.
        constants: The planet's constants.
        between: The absolute latitudes in degrees to take.

    Returns:
        * `correlation`, of vectors, :math:`\langle V \cdot V_g \rangle / \sqrt{\langle |V|^2
          \rangle \langle |V_g|^2 \rangle}`;
        * `speed_correlation`, of :math:`|V|` and :math:`|V_g|`;
        * `ratio`, :math:`\sqrt{\langle |V|^2 \rangle / \langle |V_g|^2 \rangle}`;
        * `angle`, the mean angle in degrees from the gradient of geopotential to the wind, turned
          as the hemisphere turns and weighted by the product of both lengths: 90 in balance, more
          where air flows towards low pressure;
        * `angle_spread`, its circular standard deviation in degrees.
    """
    low, high = between
    keep = (abs(ds["latitude"]) >= low) & (abs(ds["latitude"]) <= high)
    geo = geostrophic_wind(ds, constants, equator=low)
    u, v = (ds[name].astype(np.float64) for name in geo)
    u_g, v_g = geo.values()

    def mean(field: Any) -> xr.DataArray:
        return _mean(field.where(keep), ("time", *HORIZONTAL))

    dot, cross = mean(u * u_g + v * v_g), u_g * v - v_g * u
    wind, balanced = mean(u**2 + v**2), mean(u_g**2 + v_g**2)
    speed, speed_g = np.hypot(u, v), np.hypot(u_g, v_g)
    covariance = mean(speed * speed_g) - mean(speed) * mean(speed_g)
    variance = (wind - mean(speed) ** 2) * (balanced - mean(speed_g) ** 2)

    # V_g is the gradient turned by 90° against the clock in the north, with it in the south.
    turn = np.sign(ds["latitude"]) * cross
    across = mean(turn)
    resultant = (np.hypot(dot, across) / mean(speed * speed_g)).clip(max=1)
    return xr.Dataset(
        {
            "correlation": dot / np.sqrt(wind * balanced),
            "speed_correlation": covariance / np.sqrt(variance),
            "ratio": np.sqrt(wind / balanced),
            "angle": 90 + np.degrees(np.arctan2(across, dot)),
            "angle_spread": np.degrees(np.sqrt(-2 * np.log(resultant))),
        }
    )


# Humidity


def saturation_humidity(
    temperature: xr.DataArray, pressure: xr.DataArray | float, formula: str = "ifs"
) -> xr.DataArray:
    r"""The specific humidity at saturation, :math:`0.622 e / (p - 0.378 e)`, in kg/kg.

    Arguments:
        temperature: Temperature in K.
        pressure: Pressure in Pa.
        formula: `ifs` as ERA5's model has it, over water, ice or both; or `speedy` as SPEEDY and
            JCM have it, over water or ice. Above freezing they agree to 0.1 %; below, SPEEDY's
            air saturates sooner, by up to 5 % down to -60 °C and 20 % at -93 °C.
    """
    if formula not in SATURATION:
        raise DataError(f"unknown formula {formula!r}{nearest(formula, SATURATION)}")
    e0, c_water, t_water, c_ice, t_ice, cold = SATURATION[formula]
    t = temperature.astype(np.float64)
    water = e0 * np.exp(c_water * (t - TRIPLE) / (t - t_water))
    ice = e0 * np.exp(c_ice * (t - TRIPLE) / (t - t_ice))
    share = ((t - cold) / max(TRIPLE - cold, 1e-9)).clip(0, 1) ** 2
    e = share * water + (1 - share) * ice
    # Thin air boils before it saturates: no more than vapour alone.
    e = xr.where(e < pressure, e, pressure)
    return 0.622 * e / (pressure - 0.378 * e)


def relative_humidity(ds: xr.Dataset, formula: str = "ifs") -> xr.DataArray:
    r"""Specific humidity in units of its saturation, 1 being saturated air."""
    pressure = 100.0 * ds["level"].astype(np.float64)
    saturated = saturation_humidity(ds["temperature"], pressure, formula)
    return ds["specific_humidity"].astype(np.float64) / saturated


# Averages


def global_mean(field: xr.DataArray) -> xr.DataArray:
    r"""The mean over the globe by area; undefined values (NaN) take no part."""
    return _mean(field, HORIZONTAL)


def _mean(field: xr.DataArray, dims: tuple[str, ...]) -> xr.DataArray:
    weights = xr.DataArray(_grid(field).weights, {"latitude": field["latitude"]})
    dims = tuple(dim for dim in dims if dim in field.dims)
    return field.astype(np.float64).weighted(weights).mean(dims)


def jets(u: xr.DataArray) -> xr.Dataset:
    r"""The strongest westerly of each hemisphere, in the mean around the globe.

    Arguments:
        u: The eastward wind, with `longitude` or averaged over it.

    Returns:
        `speed` in m/s and `latitude_of_jet` in degrees, with a dimension `hemisphere` (`north`,
        `south`) instead of latitude and longitude.
    """
    zonal = u.mean("longitude", dtype=np.float64) if "longitude" in u.dims else u
    halves: list[xr.Dataset] = []
    for name, keep in (("north", zonal["latitude"] > 0), ("south", zonal["latitude"] < 0)):
        half = zonal.isel(latitude=np.flatnonzero(keep.values))
        at = half.idxmax("latitude").rename("latitude_of_jet")
        both = xr.Dataset({"speed": half.max("latitude"), "latitude_of_jet": at})
        halves.append(both.assign_coords(hemisphere=name))
    return xr.concat(halves, "hemisphere")


def _grid(field: xr.DataArray) -> Grid:
    r"""The field's grid; its latitudes must run from north to south."""
    latitude = field["latitude"].values
    longitude = field["longitude"].values if "longitude" in field.dims else np.arange(4) * 90.0
    if latitude[0] < latitude[-1]:
        raise DataError(
            f"latitude runs from {latitude[0]:g} to {latitude[-1]:g}, not from north to south; "
            "open the store with appa.open_store, or pass it the dataset"
        )
    return Grid.from_coordinates(latitude, longitude)
