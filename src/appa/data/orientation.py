r"""Which hours of a store have north and south exchanged.

With :math:`P` the exchange of latitudes :math:`\varphi \to -\varphi`, a field splits into an even
and an odd part, :math:`x = x_e + x_o` with :math:`x_o = (x - P x) / 2`, and a flipped field has
:math:`-x_o`. So only odd parts are compared, by their correlation :math:`r` over the sphere:

* with the hour before. Weather changes little in an hour: in a year of a circulation model no
  variable, the meridional wind included, falls below :math:`r = 0.5` from hour to hour or
  :math:`0.2` from day to day. At a flip :math:`r` changes sign, and hours between flips have the
  same orientation. This needs no reference and works for single variables and levels, but says
  only which hours differ from which.
* with the climatology of the season, which says which of the two is right. In the same year every
  variable but the meridional wind and precipitation stays above :math:`r = 0.3`. SST is judged by
  its coasts, which do not depend on weather or model.

In both, :math:`r` counts beyond :math:`\pm 0.3` only, beyond :math:`\pm 0.5` with the climatology
of another model, and then only in seasons that do not hang on its calendar. Hours connected by the
first are judged together by the second; without a reference, the rarer orientation is the flipped
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DataError
from .climatology import regressors
from .grids import Grid
from .variables import VARIABLES, Channel

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Mirror", "Reference", "flipped", "likeness"]

CONCLUSIVE = 0.3
CONCLUSIVE_ELSEWHERE = 0.5  # with the climatology of another model
ROWS, COLUMNS = 64, 128  # enough to recognise the planet by: finer grids are thinned to these

SIGNAL = 1 / 3  # of the odd part of weather: below, a correlation of 0.5 is not to be expected
SHIFT = np.timedelta64(40, "D")

# What the climatology of another model may be trusted with: fields with a pattern of their own,
# beside weather, from these pressures (hPa) downwards.
PATTERNED: dict[str, int] = {
    "2m_temperature": 0,
    "10m_u_component_of_wind": 0,
    "mean_sea_level_pressure": 0,
    "sea_surface_temperature": 0,
    "temperature": 100,
    "u_component_of_wind": 100,
    "geopotential": 100,
    "specific_humidity": 500,
}


class Mirror:
    r"""A thinned grid that is its own mirror image, to take odd parts on.

    Arguments:
        latitude: Latitudes from north to south, with shape :math:`(H)`.
        longitude: Longitudes, with shape :math:`(W)`.
    """

    def __init__(self, latitude: np.ndarray, longitude: np.ndarray):
        half = len(latitude) // 2
        north = np.arange(0, half, max(1, len(latitude) // ROWS))
        self.rows = np.concatenate([north, len(latitude) - 1 - north[::-1]])
        self.step = max(1, len(longitude) // COLUMNS)
        self.latitude, self.longitude = latitude[self.rows], longitude[:: self.step]
        self.shape = (len(self.rows), len(self.longitude))
        self.size = len(latitude) * len(longitude)
        try:
            Grid.from_coordinates(latitude, longitude)
        except DataError:  # a part of the globe: it has no mirror image, and no global mean
            self.possible = False
        else:
            self.possible = True
        weight = np.cos(np.deg2rad(np.clip(self.latitude, -89.9, 89.9)))
        self.weight = weight / weight.mean()

    def thin(self, x: np.ndarray) -> np.ndarray:
        r"""The values of a field :math:`(*, H, W)` on the thinned grid, :math:`(*, h, w)`."""
        return x[..., self.rows, :: self.step]

    def mean(self, x: np.ndarray) -> np.ndarray:
        r"""Area mean over the defined values of a thinned field, with shape :math:`(*)`."""
        good = np.isfinite(x)
        total = (np.where(good, x, 0) * self.weight[:, None]).sum((-2, -1))
        return total / np.maximum((good * self.weight[:, None]).sum((-2, -1)), 1e-9)

    def odd(self, x: np.ndarray) -> np.ndarray:
        r"""The odd part of a thinned field, weighted by area, with shape :math:`(*, h w / 2)`.

        It is zero where it is but the rounding of an even field.
        """
        x = x.astype(np.float64)
        x = x - self.mean(x)[..., None, None]
        half = self.shape[0] // 2
        north, south = x[..., :half, :], x[..., : half - 1 : -1, :]
        weight = np.sqrt(self.weight[:half, None])
        odd = ((north - south) / 2 * weight).reshape(*x.shape[:-2], -1)
        size = np.nansum(odd**2, -1, keepdims=True)
        even = np.nansum(((north + south) / 2 * weight) ** 2, (-2, -1))[..., None]
        return np.where(size > 1e-6 * even, odd, 0.0)

    def noise(self, std: np.ndarray) -> float:
        r"""Expected :math:`\|x_o\|^2` of fields with a standard deviation, :math:`(h w)`, and
        hemispheres that know nothing of each other."""
        half = self.shape[0] // 2
        variance = std.reshape(self.shape) ** 2
        variance = (variance[:half] + variance[: half - 1 : -1]) / 4
        return float(np.nansum(variance * self.weight[:half, None]))


class Reference:
    r"""The odd part of a climatology, at the points of a mirror.

    Arguments:
        clim: A climatology, on any grid.
        mirror: Where to evaluate it.
        channels: The channels of the store.
        own: Whether the climatology is of the store's own atmosphere. If not, another model's
            spring may be a month early: it is consulted only on :data:`PATTERNED` fields and in
            seasons when the hemispheres differ in the same way 40 days before and after.
    """

    def __init__(self, clim: xr.Dataset, mirror: Mirror, channels: Sequence[Channel], own: bool):
        self.mirror, self.own = mirror, own
        self.conclusive = CONCLUSIVE if own else CONCLUSIVE_ELSEWHERE
        self.harmonics = int(clim.attrs["harmonics"]), int(clim.attrs["diurnal"])
        grid = Grid.from_coordinates(clim["latitude"].values, clim["longitude"].values)
        latitude, longitude = np.meshgrid(mirror.latitude, mirror.longitude, indexing="ij")
        index, weight = grid.interpolation(latitude, longitude)
        self.coefficients: dict[Channel, np.ndarray] = {}
        self.weather: dict[Channel, float] = {}
        for channel in channels:
            if channel.variable not in clim or not (own or _patterned(channel)):
                continue
            var = clim[channel.variable]
            if channel.level is not None:
                if channel.level not in var["level"].values:
                    continue
                var = var.sel(level=channel.level)
            beta = var.transpose("coefficient", "latitude", "longitude").to_numpy()
            beta = _interpolate(beta, index, weight).reshape(-1, *mirror.shape)
            self.weather[channel] = 0.0
            if VARIABLES[channel.variable].missing is not None:
                beta = np.concatenate([np.isnan(beta[:1]), np.zeros_like(beta[1:])])
            elif (name := f"{channel.variable}_std") in clim:
                std = clim[name] if channel.level is None else clim[name].sel(level=channel.level)
                std = std.transpose("latitude", "longitude").to_numpy()
                self.weather[channel] = mirror.noise(_interpolate(std, index, weight))
            self.coefficients[channel] = mirror.odd(beta)

    def compare(
        self, channels: Sequence[Channel], thin: np.ndarray, odd: np.ndarray, times: np.ndarray
    ) -> np.ndarray:
        r"""Correlation of fields with what is expected, where it is conclusive.

        Arguments:
            channels: The :math:`L` channels of a variable.
            thin: Its values on the thinned grid, with shape :math:`(T, L, h, w)`.
            odd: Their odd parts, with shape :math:`(T, L, h w / 2)`.
            times: The times, with shape :math:`(T)`.

        Returns:
            The correlation, 0 where inconclusive and without a reference, with shape
            :math:`(T, L)`.
        """
        found = np.zeros(odd.shape[:2])
        x, *around = (regressors(times + k * SHIFT, *self.harmonics) for k in (0, -1, 1))
        for k, channel in enumerate(channels):
            beta = self.coefficients.get(channel)
            if beta is None:
                continue
            field = odd[:, k]
            if VARIABLES[channel.variable].missing is not None:
                field = self.mirror.odd(np.isnan(thin[:, k]))
            expected = x @ beta
            found[:, k] = np.nan_to_num(likeness(field, expected)[0])
            signal = np.einsum("tn,tn->t", *[np.nan_to_num(expected)] * 2)
            found[signal < SIGNAL * self.weather[channel], k] = 0
            for other in () if self.own else around:
                found[likeness(expected, other @ beta)[0] < CONCLUSIVE, k] = 0
        return np.where(np.abs(found) < self.conclusive, 0.0, found)


def _interpolate(field: np.ndarray, index: np.ndarray, weight: np.ndarray) -> np.ndarray:
    r"""Values of fields :math:`(*, H, W)` at :math:`N` points, :math:`(*, N)`."""
    values = field.reshape(*field.shape[:-2], -1)[..., index]
    # zero times undefined is undefined, but a point on the grid needs no neighbours
    return (np.where(weight > 0, values, 0) * weight).sum(-1)


def _patterned(channel: Channel) -> bool:
    lowest = PATTERNED.get(channel.variable)
    return lowest is not None and (channel.level is None or channel.level >= lowest)


def likeness(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Correlation :math:`r` and distance :math:`\|a - b\|` of odd parts :math:`(*, N)`.

    Undefined points do not count; :math:`r` is undefined where nothing is left, or so little that
    noise could correlate.
    """
    good = np.isfinite(a) & np.isfinite(b)
    a, b = np.where(good, a, 0.0), np.where(good, b, 0.0)
    ab, aa, bb = (np.einsum("...n,...n", x, y) for x, y in ((a, b), (a, a), (b, b)))
    with np.errstate(invalid="ignore", divide="ignore"):
        r = ab / np.sqrt(aa * bb)
        enough = np.abs(r) > 4 / np.sqrt(good.sum(-1))
    r = np.where((aa > 0) & (bb > 0), np.where(enough, r, 0.0), np.nan)
    return r, np.sqrt(np.maximum(aa + bb - 2 * ab, 0))


def flipped(
    channels: Sequence[Channel],
    r: np.ndarray,
    change: np.ndarray,
    pattern: np.ndarray,
    hours: np.ndarray,
) -> np.ndarray:
    r"""Judges which channels are flipped in which hours.

    Arguments:
        channels: The :math:`C` channels.
        r: Correlation with the hour before, with shape :math:`(T, C)`.
        change: Distance from the hour before, with shape :math:`(T, C)`.
        pattern: Correlation with the reference, where conclusive, with shape :math:`(T, C)`.
        hours: Hours since the hour before, infinite at the start of a trajectory, with shape
            :math:`(T)`.

    Returns:
        Whether the channel is flipped, with shape :math:`(T, C)`.
    """
    links = np.zeros(r.shape, dtype=np.int8)
    for c, channel in enumerate(channels):
        # Patterns that persist, unlike weather, connect hours further apart.
        reach = 24 if channel.variable not in PATTERNED else 120
        near = (np.abs(hours) <= reach) & (np.abs(np.nan_to_num(r[:, c])) >= CONCLUSIVE)
        links[near, c] = np.sign(r[near, c])
        # A field that passes through zero also turns over, but without a leap.
        usual = np.median(change[near, c]) if np.count_nonzero(near) >= 4 else 0.0
        links[(links[:, c] < 0) & (change[:, c] < 1.5 * usual), c] = 0
    links[0] = 0

    # First what the reference tells; then what turns over, in keeping with it; then a level that
    # says nothing goes with its variable, and a variable with the others.
    names = [channel.variable for channel in channels]
    agreed = np.zeros(r.shape, dtype=bool)
    flips, told, turned = _judge_all(links, pattern, agreed)
    agreed[:] = _agreed(flips, told, names)[:, None]
    flips, told, turned = _judge_all(links, pattern, agreed)
    sure = told | turned
    agreed[:] = _agreed(flips, sure, names)[:, None]
    for name in set(names):
        mine = [c for c, other in enumerate(names) if other == name]
        agreed[:, mine] |= _agreed(flips[:, mine], sure[:, mine], mine)[:, None]
    return _judge_all(links, pattern, agreed)[0]


def _agreed(flips: np.ndarray, sure: np.ndarray, groups: Sequence[Any]) -> np.ndarray:
    r"""Hours in which two or more groups of channels are surely flipped and none surely not."""
    several = np.zeros(len(flips), dtype=int)
    for group in set(groups):
        several += sure[:, [group == other for other in groups]].any(1)
    return (several >= 2) & (flips | ~sure).all(1)


def _judge_all(
    links: np.ndarray, pattern: np.ndarray, agreed: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    judged = [_judge(*columns) for columns in zip(links.T, pattern.T, agreed.T, strict=True)]
    flips, told, turned = (np.stack(part, axis=1) for part in zip(*judged, strict=True))
    return flips, told, turned


def _judge(
    link: np.ndarray, pattern: np.ndarray, agreed: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""Judges one channel.

    Arguments:
        link: 1 where an hour has the orientation of the hour before, -1 where it has the other, 0
            where that is unknown, with shape :math:`(T)`.
        pattern: Correlation with the reference, with shape :math:`(T)`.
        agreed: Whether the other channels are flipped, all of them, with shape :math:`(T)`.

    Returns:
        Whether the channel is flipped, whether the reference tells so, and whether it turns over
        from hour to hour, each with shape :math:`(T)`.
    """
    segment = np.cumsum(link == 0) - 1
    # Orientation within a segment, relative to its first hour: parity of the turns since.
    turns = np.cumsum(link < 0)
    other = (turns - turns[np.flatnonzero(link == 0)][segment]) % 2 == 1

    votes = np.bincount(segment, np.where(other, -pattern, pattern))
    weight = np.bincount(segment, np.abs(pattern))
    told = (weight > 0) & (np.abs(votes) > 0.5 * weight)
    agreement = np.bincount(segment, np.where(other == agreed, 1, -1))
    reverse = np.where(told, votes, agreement) < 0
    return other ^ reverse[segment], told[segment], (np.bincount(segment, link < 0) > 0)[segment]
