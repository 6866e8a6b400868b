r"""Satellites by their orbital elements, propagated by SGP4.

Mean elements, of a two-line set or given one by one, are propagated by :mod:`sgp4` with the
drift of node and perigee by the Earth's flattening, and drag. SGP4 gives positions :math:`r` in
TEME, whose pole is the Earth's axis and whose first axis stays among the stars. The Earth has
turned under it by :math:`\theta`, Greenwich's mean sidereal time (IAU 1982):

.. math:: r_\oplus = R_z(-\theta) \, r

UTC stands for UT1, which is at most 0.9 s away, 400 m at the equator; the wandering of the pole,
some ten metres, is left out. The point below is the one whose vertical, on WGS 84's
ellipsoid, passes through the satellite: latitudes are geographic, as those of a store.

Elements age. SGP4 is off by 1 to 3 km a day from the epoch, mostly along the track, and faster
where drag is strong; beyond :data:`MAX_AGE` days they are refused. :meth:`Elements.shifted` moves
a satellite to another time: not where it was then, but on the same orbit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import DataError, nearest
from .orbits import EQUATORIAL_RADIUS, GM, Orbit

__all__ = ["MAX_AGE", "Elements", "earth_fixed", "find_elements", "read_elements"]

MAX_AGE = 30.0  # days
FLATTENING = 1 / 298.257223563  # WGS 84
DAY = np.timedelta64(1, "D")
UNIX_EPOCH = 2_440_587.5  # Julian date
SGP4_EPOCH = 2_433_281.5  # 1949-12-31


@dataclass(frozen=True)
class Elements:
    r"""Mean orbital elements, as those of a two-line set.

    Arguments:
        inclination: The angle between orbit and equator, in degrees.
        node: The right ascension of the ascending node, in degrees.
        motion: The mean motion, in revolutions a day.
        eccentricity: The orbit's eccentricity.
        perigee: The argument of perigee, in degrees.
        anomaly: The mean anomaly, in degrees.
        epoch: The time of the elements, in UTC.
        drag: SGP4's drag term :math:`B^*`, in inverse Earth radii.
        name: The satellite's name.
        number: Its number in the catalogue of satellites.

    Example:
        >>> metop = find_elements("weather.tle", "METOP-B")
        >>> latitude, longitude = metop.track(times)
    """

    inclination: float
    node: float
    motion: float
    eccentricity: float = 0.0
    perigee: float = 0.0
    anomaly: float = 0.0
    epoch: str = "2000-01-01T00"
    drag: float = 0.0
    name: str = ""
    number: str = ""

    def __post_init__(self) -> None:
        whose = f" of {self.name}" if self.name else ""
        if not 0 <= self.inclination <= 180:
            raise DataError(f"found an inclination of {self.inclination:g}°{whose}; give 0 to 180°")
        if not 0 <= self.eccentricity < 1:
            raise DataError(
                f"found an eccentricity of {self.eccentricity:g}{whose}; give 0, a circle's, to "
                "below 1"
            )
        if not self.motion > 0 or self._lowest < EQUATORIAL_RADIUS + 100e3:
            raise DataError(
                f"found {self.motion:g} revolutions a day at an eccentricity of "
                f"{self.eccentricity:g}{whose}: no satellite stays up there; at 800 km there are "
                "14.3 a day"
            )
        for name in ("node", "perigee", "anomaly", "drag"):
            if not math.isfinite(getattr(self, name)):
                raise DataError(f"found {getattr(self, name)} for {name}{whose}; give a number")
        try:
            np.datetime64(self.epoch, "us")
        except ValueError:
            raise DataError(
                f"found the epoch {self.epoch!r}{whose}; give UTC, for example 2026-02-24T06:46"
            ) from None

    @classmethod
    def from_lines(cls, first: str, second: str, name: str = "") -> Elements:
        r"""The elements of a two-line set."""
        from sgp4.api import Satrec
        from sgp4.io import verify_checksum

        first, second, name = first.rstrip(), second.rstrip(), name.strip()
        whose = name or first[2:7].strip()
        try:
            for line, begin in ((first, "1 "), (second, "2 ")):
                if not line.startswith(begin) or len(line) < 68:
                    raise ValueError(f"a line of {len(line)} characters begins {line[:9]!r}")
            verify_checksum(first, second)
            if first[2:7] != second[2:7]:
                raise ValueError(f"its lines are of {first[2:7]} and {second[2:7]}")
            record = Satrec.twoline2rv(first, second)
            microseconds = round((record.jdsatepoch - UNIX_EPOCH) * 86_400) * 10**6
            microseconds += round(record.jdsatepochF * 86_400e6)
            epoch = np.datetime64(microseconds, "us")
        except ValueError as error:
            cause = str(error).splitlines()[0].rstrip(":")
            raise DataError(
                f"the two-line elements of {whose!r} are damaged: {cause}; fetch them again"
            ) from error

        return cls(
            inclination=math.degrees(record.inclo),
            node=math.degrees(record.nodeo),
            motion=record.no_kozai * 720 / math.pi,  # from radians a minute
            eccentricity=record.ecco,
            perigee=math.degrees(record.argpo),
            anomaly=math.degrees(record.mo),
            epoch=str(epoch),
            drag=record.bstar,
            name=name or first[2:7].strip(),
            number=first[2:7].strip(),
        )

    @classmethod
    def from_orbit(cls, orbit: Orbit, name: str = "") -> Elements:
        r"""The elements of a circular orbit, which SGP4 then perturbs."""
        turn = math.degrees(float(sidereal(np.datetime64(orbit.epoch, "us"))))
        return cls(
            inclination=orbit.inclination,
            node=(orbit.node + turn) % 360,
            motion=86_400 / orbit.period,
            anomaly=orbit.phase % 360,
            epoch=orbit.epoch,
            name=name,
        )

    @property
    def period(self) -> float:
        r"""The time of a revolution, in seconds."""
        return 86_400 / self.motion

    @property
    def axis(self) -> float:
        r"""The semi-major axis :math:`a = (GM \, T^2 / 4 \pi^2)^{1/3}`, in metres."""
        return (GM * (self.period / (2 * math.pi)) ** 2) ** (1 / 3)

    @property
    def _lowest(self) -> float:
        return self.axis * (1 - self.eccentricity)

    @property
    def altitude(self) -> float:
        r"""The height of perigee above the equatorial radius, in metres."""
        return self._lowest - EQUATORIAL_RADIUS

    @property
    def horizon(self) -> float:
        r"""The great-circle radius beyond which the ground is out of sight from perigee, in
        degrees."""
        return math.degrees(math.acos(EQUATORIAL_RADIUS / self._lowest))

    def shifted(self, time: ArrayLike) -> Elements:
        r"""The same orbit at another time, by as many whole days as come nearest.

        The node turns with the Earth, so that on that day the satellite passes over the places it
        passes over on the day of its epoch, at the same hours: a polar orbiter keeps its local
        time, a geostationary one its longitude.
        """

        old = np.datetime64(self.epoch, "us")
        days = round(float((np.datetime64(time, "us") - old) / DAY))  # pyright: ignore
        new = old + np.timedelta64(days, "D")
        turn = math.degrees(float(sidereal(new) - sidereal(old)))
        return replace(self, epoch=str(new), node=(self.node + turn) % 360)

    def age(self, times: ArrayLike) -> float:
        r"""How far from the epoch the farthest of these times is, in days."""
        times = np.asarray(times, dtype="datetime64[us]")
        apart = np.abs((times - np.datetime64(self.epoch, "us")) / DAY)
        return float(apart.max()) if apart.size else 0.0

    def position(self, times: ArrayLike) -> NDArray:
        r"""Where the satellite is, turning with the Earth.

        Arguments:
            times: UTC times as `datetime64`, with shape :math:`(*)`.

        Returns:
            Coordinates from the Earth's centre in metres, with shape :math:`(*, 3)`: towards
            0° E on the equator, 90° E on the equator, and the north pole.
        """

        from sgp4.api import SGP4_ERRORS

        times = np.asarray(times, dtype="datetime64[us]")
        if (age := self.age(times)) > MAX_AGE:
            raise DataError(
                f"the elements of {self.name or 'this satellite'} are of {self.epoch[:10]}, "
                f"{age:.0f} days away from the time asked for: after {MAX_AGE:g} days SGP4 tells "
                "nothing; take elements of that time, or move the orbit there with "
                "elements.shifted(time) or --shift-epoch"
            )
        days = times.astype("datetime64[D]")
        whole = days.astype(np.int64).ravel() + UNIX_EPOCH
        rest = ((times - days) / DAY).ravel()
        code, r, _ = _record(self).sgp4_array(whole, np.ascontiguousarray(rest, np.float64))
        if code.any():
            k = int(np.argmax(code != 0))
            raise DataError(
                f"SGP4 cannot follow {self.name or 'this satellite'} to {times.ravel()[k]}: "
                f"{SGP4_ERRORS.get(int(code[k]), code[k])}; take elements of that time"
            )
        return earth_fixed(1e3 * r.reshape(*times.shape, 3), times)

    def track(self, times: ArrayLike) -> tuple[NDArray, NDArray]:
        r"""
        Arguments:
            times: UTC times as `datetime64`, with shape :math:`(*)`.

        Returns:
            The latitudes and longitudes (0 → 360) below the satellite in degrees, with shape
            :math:`(*)`.
        """

        x, y, z = np.moveaxis(self.position(times), -1, 0)
        p, e2 = np.hypot(x, y), FLATTENING * (2 - FLATTENING)
        phi = np.arctan2(z, p)
        for _ in range(4):  # each leaves e² R / r of the error, below 1 %
            normal = EQUATORIAL_RADIUS / np.sqrt(1 - e2 * np.sin(phi) ** 2)
            phi = np.arctan2(z + e2 * normal * np.sin(phi), p)
        return np.degrees(phi), np.degrees(np.arctan2(y, x)) % 360.0


@lru_cache(maxsize=64)
def _record(elements: Elements) -> Any:
    from sgp4.api import WGS72, Satrec

    record, epoch = Satrec(), np.datetime64(elements.epoch, "us")
    since = float((epoch - np.datetime64(0, "us")) / DAY) + UNIX_EPOCH - SGP4_EPOCH
    # WGS 72's constants: two-line elements are fitted with them.
    record.sgp4init(
        WGS72,
        "i",
        0,
        since,
        elements.drag,
        0.0,
        0.0,
        elements.eccentricity,
        math.radians(elements.perigee),
        math.radians(elements.inclination),
        math.radians(elements.anomaly),
        elements.motion * math.pi / 720,
        math.radians(elements.node),
    )
    return record


def sidereal(times: ArrayLike) -> NDArray:
    r"""Greenwich's mean sidereal time :math:`\theta`, in radians."""
    from sgp4.propagation import gstime

    times = np.asarray(times, dtype="datetime64[us]")
    return np.vectorize(gstime, otypes=[float])((times - np.datetime64(0, "us")) / DAY + UNIX_EPOCH)


def earth_fixed(position: NDArray, times: ArrayLike) -> NDArray:
    r"""Turns positions in TEME into positions that turn with the Earth.

    Arguments:
        position: Positions, with shape :math:`(*, 3)`.
        times: Their times in UT1 as `datetime64`, with shape :math:`(*)`.
    """

    theta = sidereal(times)
    cosine, sine = np.cos(theta), np.sin(theta)
    x, y, z = np.moveaxis(position, -1, 0)
    return np.stack([cosine * x + sine * y, cosine * y - sine * x, z], axis=-1)


def read_elements(path: str | Path) -> list[Elements]:
    r"""Reads a file of two-line elements: pairs of lines, with or without a name above each."""
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError as error:
        raise DataError(
            f"{str(path)!r} cannot be read ({error.strerror}); give a file of two-line elements"
        ) from error

    lines = [line.rstrip() for line in lines if line.strip()]
    found, name, k = [], "", 0
    while k < len(lines):
        if lines[k].startswith("1 ") and len(lines[k]) >= 60:
            second = lines[k + 1] if k + 1 < len(lines) else ""
            found.append(Elements.from_lines(lines[k], second, name))
            name, k = "", k + 2
        else:
            name, k = lines[k].removeprefix("0 ").strip(), k + 1
    if not found:
        raise DataError(
            f"{str(path)!r} holds no two-line elements; each satellite has a line that begins with "
            "'1 ' and one that begins with '2 '"
        )
    return found


def find_elements(path: str | Path, name: str, near: ArrayLike | None = None) -> Elements:
    r"""One satellite's elements from a file of many.

    Arguments:
        path: The file.
        name: The satellite's name, the beginning of it, or its catalogue number, in any case.
        near: A time. Of several sets of the satellite, the one nearest to it is taken, and
            without it the newest.
    """

    listed, asked = read_elements(path), name.strip().casefold()
    chosen = [e for e in listed if asked in (e.name.casefold(), e.number.casefold())]
    if not chosen and asked:
        chosen = [e for e in listed if e.name.casefold().startswith(asked)]
    names = sorted({e.name for e in chosen})
    if len(names) > 1:
        raise DataError(f"{name!r} in {str(path)!r} may be {', '.join(names)}; name one")
    if not chosen:
        known = {e.name.casefold(): e.name for e in listed}
        hint = nearest(asked, known)
        for lower, proper in known.items():
            hint = hint.replace(repr(lower), repr(proper))
        raise DataError(f"there is no satellite {name!r} in {str(path)!r}{hint}")
    if near is None:
        return max(chosen, key=lambda e: e.epoch)
    return min(chosen, key=lambda e: e.age(near))
