r"""Satellites on circular orbits above a rotating Earth, and what they see.

A satellite at altitude :math:`h` on a circular orbit of radius :math:`a = R_e + h` goes round in
Kepler's period

.. math:: T = 2 \pi \sqrt{a^3 / GM}

With :math:`i` the inclination and :math:`u = u_0 + 2 \pi (t - t_0) / T` the angle travelled from
the ascending node, the point below it is at

.. math::
    \phi & = \arcsin(\sin i \sin u) \\
    \lambda & = \lambda_0 + \operatorname{atan2}(\cos i \sin u, \cos u) - \omega (t - t_0)

where :math:`\omega` is one turn in a sidereal day, :math:`\lambda_0` the longitude of the node at
:math:`t_0`, and the Earth is a sphere. The orbit's plane stays fixed among the stars: neither the
drift of the node by the Earth's flattening nor drag is in it.

The swath of an hour :math:`t` is everything within a great-circle radius of view of the track
during :math:`[t - 30\,\text{min}, t + 30\,\text{min}]`: the nearest hour is the one an observation
belongs to, and consecutive hours leave no gap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..data.grids import RADIUS
from ..errors import DataError

if TYPE_CHECKING:
    from ..data.grids import Grid

__all__ = ["Orbit", "Orbiter", "footprints", "swath", "view"]

GM = 3.986004418e14  # m³ s⁻², WGS 84
EQUATORIAL_RADIUS = 6_378_137.0  # m, WGS 84; altitudes are above it
SIDEREAL_DAY = 86_164.0905  # s
KILOMETRES = RADIUS * math.radians(1) / 1e3  # in a degree


class Orbiter(Protocol):
    r"""What a satellite follows: a circular :class:`Orbit`, the
    :class:`~appa.observations.elements.Elements` of a real one, or anything else with a track."""

    @property
    def altitude(self) -> float:
        r"""The lowest height above the equatorial radius, in metres."""
        ...

    @property
    def horizon(self) -> float:
        r"""The great-circle radius beyond which the ground is out of sight, in degrees."""
        ...

    def track(self, times: ArrayLike) -> tuple[NDArray, NDArray]:
        r"""The latitudes and longitudes (0 → 360) below the satellite in degrees."""
        ...


@dataclass(frozen=True)
class Orbit:
    r"""A circular orbit. The defaults are the reference orbiter's: 800 km, 75°.

    The paper gives neither altitude nor inclination.

    Arguments:
        altitude: The height above the equatorial radius, in metres.
        inclination: The angle between orbit and equator, in degrees.
        node: The Earth-fixed longitude of the ascending node at the epoch, in degrees.
        phase: The angle travelled from that node at the epoch, in degrees.
        epoch: The time at which node and phase are given, in UTC.
    """

    altitude: float = 800e3
    inclination: float = 75.0
    node: float = 0.0
    phase: float = 0.0
    epoch: str = "2000-01-01T00"

    def __post_init__(self) -> None:
        if not 100e3 <= self.altitude < math.inf:
            raise DataError(
                f"no satellite stays up at an altitude of {self.altitude:g} m; give metres above "
                "the equatorial radius, for example altitude=800e3"
            )
        if not 0 <= self.inclination <= 180:
            raise DataError(
                f"found an inclination of {self.inclination:g}°; give 0 to 180°, more than 90° for "
                "an orbit against the Earth's rotation, for example inclination=75"
            )
        for name, angle in (("node", self.node), ("phase", self.phase)):
            if not math.isfinite(angle):
                raise DataError(f"found a {name} of {angle:g}°; give degrees, for example 0")

    @property
    def period(self) -> float:
        r"""Kepler's period :math:`T`, in seconds."""
        return 2 * math.pi * math.sqrt((EQUATORIAL_RADIUS + self.altitude) ** 3 / GM)

    @property
    def horizon(self) -> float:
        r"""The great-circle radius beyond which the ground is out of sight,
        :math:`\arccos(R_e / a)`, in degrees."""
        return math.degrees(math.acos(EQUATORIAL_RADIUS / (EQUATORIAL_RADIUS + self.altitude)))

    def track(self, times: ArrayLike) -> tuple[NDArray, NDArray]:
        r"""
        Arguments:
            times: UTC times as `datetime64`, with shape :math:`(*)`.

        Returns:
            The latitudes and longitudes (0 → 360) below the satellite in degrees, with shape
            :math:`(*)`.
        """

        times = np.asarray(times, dtype="datetime64[us]")
        since = (times - np.datetime64(self.epoch, "us")) / np.timedelta64(1, "s")
        i = math.radians(self.inclination)
        u = math.radians(self.phase) + 2 * np.pi * since / self.period
        latitude = np.arcsin(np.sin(i) * np.sin(u))
        longitude = np.arctan2(np.cos(i) * np.sin(u), np.cos(u)) - 2 * np.pi * since / SIDEREAL_DAY

        return np.degrees(latitude), (self.node + np.degrees(longitude)) % 360.0


def unit(latitude: ArrayLike, longitude: ArrayLike) -> NDArray:
    r"""Unit vectors of places given in degrees, with shape :math:`(*, 3)`."""
    phi, lam = np.radians(latitude), np.radians(longitude)
    return np.stack([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)], axis=-1)


def swath(
    orbit: Orbiter,
    latitude: ArrayLike,
    longitude: ArrayLike,
    times: ArrayLike,
    radius: float = 5.0,
    step: float = 10.0,
) -> NDArray:
    r"""Which places a satellite sees, hour by hour.

    The track is followed from sample to sample along great circles, so that the union over the
    hour has straight edges instead of scallops. With a curvature :math:`\kappa \lesssim 2 \omega T
    / 2 \pi` owed to the Earth's rotation and samples :math:`\ell` apart, the error of its edge is
    :math:`\kappa \ell^2 / 8 \approx 2 \times 10^{-6}` radians: tens of metres.

    Arguments:
        orbit: The satellite's orbit.
        latitude: The places' latitudes in degrees, with shape :math:`(*)`.
        longitude: The places' longitudes in degrees, with shape :math:`(*)`.
        times: The hours, as `datetime64`, with shape :math:`(T)`.
        radius: The great-circle radius of view, in degrees.
        step: The seconds between samples of the track, a divisor of 3600.

    Returns:
        Whether each place was within view during each hour, with shape :math:`(T, *)`.
    """

    from scipy.spatial import KDTree

    times = np.atleast_1d(np.asarray(times, dtype="datetime64[us]"))
    points = unit(*np.broadcast_arrays(latitude, longitude))
    shape, points = points.shape[:-1], points.reshape(-1, 3)
    seen = np.zeros((len(times), len(points)), dtype=bool)

    offsets = np.linspace(-1800, 1800, round(3600 / step) + 1)
    offsets = (offsets * 1e6).round().astype("timedelta64[us]")
    sine, cosine = math.sin(math.radians(radius)), math.cos(math.radians(radius))

    for k, time in enumerate(times):
        track = unit(*orbit.track(time + offsets))
        # Within the hour a track doesn't return to itself (or stays where it is), so that the
        # nearest place on it lies beside the nearest sample. Only points near the edge need more
        # than the samples.
        length = np.linalg.norm(np.diff(track, axis=0), axis=-1).max()
        reach = 2 * math.sin(math.radians(radius) / 2) + length
        distance, nearest = KDTree(track).query(points, distance_upper_bound=reach)
        near = np.flatnonzero(np.isfinite(distance))
        p, nearest = points[near], np.asarray(nearest)[near]
        hit = np.einsum("ni,ni->n", p, track[nearest]) >= cosine

        for first in (nearest - 1, nearest):
            inside = (first >= 0) & (first + 1 < len(track))
            a, b = track[first * inside], track[first * inside + 1]
            n = np.cross(a, b)
            along_a = np.einsum("ni,ni->n", np.cross(n, a), p)
            along_b = np.einsum("ni,ni->n", np.cross(b, n), p)
            across = np.abs(np.einsum("ni,ni->n", n, p))
            within = across <= sine * np.linalg.norm(n, axis=-1)
            hit |= inside & (along_a > 0) & (along_b > 0) & within

        seen[k, near] = hit

    return seen.reshape(len(times), *shape)


def view(width: float) -> float:
    r"""The radius of view, in degrees, of a swath that many kilometres wide."""
    return width / 2 / KILOMETRES


def footprints(grid: Grid, size: float) -> NDArray:
    r"""Grid points at least a footprint apart, the same every hour.

    What an instrument sees at once is one observation. Points closer together than its footprint
    would have noises of their own where there is one noise, so that rows and, in each row, columns
    are left out. Where boxes are larger than a footprint, all points remain but those near the
    poles, where meridians meet. The value is the field's at the point, not a mean over the
    footprint: on grids this coarse a box is a mean already.

    Arguments:
        grid: The grid.
        size: The size of a footprint, in kilometres.

    Returns:
        Which points remain, with shape :math:`(H, W)`.
    """

    seen = np.zeros(grid.shape, dtype=bool)
    last, width = math.inf, grid.shape[1]
    for row, latitude in enumerate(grid.latitude):
        if KILOMETRES * abs(last - latitude) < size * (1 - 1e-9):
            continue
        last = latitude
        around = 360 * KILOMETRES * max(math.cos(math.radians(latitude)), 0.0)
        step = max(math.ceil(size * width / around - 1e-9), 1) if around > size else width
        # The last column must also be a step away from the first.
        seen[row, : (width // step) * step : step] = True
    return seen
