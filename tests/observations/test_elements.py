r"""Orbits by their elements, against published positions and what is known of real orbits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sgp4.api import WGS72, Satrec
from sgp4.exporter import export_tle

from appa.data.grids import Grid, great_circle
from appa.errors import DataError
from appa.observations.elements import (
    Elements,
    earth_fixed,
    find_elements,
    read_elements,
    sidereal,
)
from appa.observations.networks import Satellite, view
from appa.observations.orbits import Orbit

# The example of sgp4's documentation.
ISS = (
    "1 25544U 98067A   19343.69339541  .00001764  00000-0  38792-4 0  9991",
    "2 25544  51.6439 211.2001 0007417  17.6667  85.6398 15.50103472202482",
)
# Like Metop-B's, with a node of its own.
METOP = Elements(
    98.667, 109.0, 14.21440, 1.5e-4, 334.0, 26.0, "2026-02-24T06:00", 6.8e-5, "METOP-B"
)


def seconds(start, *span):
    return np.datetime64(start, "us") + (np.arange(*span) * 1e6).astype("timedelta64[us]")


def lines(elements: Elements, number: int) -> tuple[str, str]:
    r"""Two-line elements, as sgp4 writes them."""
    record = Satrec()
    since = (
        np.datetime64(elements.epoch, "us") - np.datetime64("1949-12-31", "us")
    ) / np.timedelta64(1, "D")
    angles = (elements.perigee, elements.inclination, elements.anomaly)
    perigee, inclination, anomaly = np.radians(angles)
    record.sgp4init(
        WGS72, "i", number, since, elements.drag, 0.0, 0.0, elements.eccentricity, perigee,
        inclination, anomaly, elements.motion * np.pi / 720, np.radians(elements.node),
    )  # fmt: skip
    return export_tle(record)


def turned(a, b):
    return (np.asarray(a) - b + 180) % 360 - 180


def test_teme_to_earth_fixed():
    # Vallado et al., Revisiting Spacetrack Report #3 (AIAA 2006-6753), appendix C, in km:
    # 2004-04-06 07:51:28.386009 UTC, which is UT1 0.4399619 s before.
    teme = np.array([5094.18016210, 6127.64465950, 6380.34453270])
    pef = np.array([-1033.47503130, 7901.30558560, 6380.34453270])
    ut1 = np.datetime64("2004-04-06T07:51:27.946047", "us")
    # A microsecond is half a millimetre; the Julian date in one number is good to 40 of them.
    np.testing.assert_allclose(earth_fixed(teme, ut1), pef, atol=5e-5)


def test_sidereal_time():
    # At J2000.0 Greenwich's mean sidereal time is 18 h 41 min 50.548 s.
    hours = 18 + 41 / 60 + 50.54841 / 3600
    assert np.degrees(sidereal("2000-01-01T12")) == pytest.approx(15 * hours, abs=1e-6)
    times = np.datetime64("2021-03-21T00", "us") + np.array([0, 86_164_090_500], "timedelta64[us]")
    turn = np.diff(np.degrees(sidereal(times)))
    assert turned(turn, 0) == pytest.approx(0, abs=1e-4)


def test_position_is_the_published_one():
    iss = Elements.from_lines(*ISS, "ISS")
    assert iss.epoch == "2019-12-09T16:38:29.363424"
    # Documented at Julian date 2458827.362605, in TEME and km, to the hundredth.
    time = np.datetime64("2019-12-09T20:42:09.072", "us")
    x, y, z = iss.position(time) / 1e3
    assert z == pytest.approx(-2820.31, abs=0.01)
    assert np.hypot(x, y) == pytest.approx(np.hypot(-6102.44, -986.33), abs=0.01)
    longitude = np.degrees(np.arctan2(-986.33, -6102.44) - sidereal(time))
    assert turned(np.degrees(np.arctan2(y, x)), longitude) == pytest.approx(0, abs=2e-4)


def test_a_polar_orbiter_is_where_metop_is():
    times = seconds(METOP.epoch, 0, 86_400, 5)
    latitude, longitude = METOP.track(times)
    position = METOP.position(times)
    height = np.linalg.norm(position, axis=-1) / 1e3 - 6371
    # 821 to 835 km above the mean radius; a perigee of its own moves that by a × 1.5e-4 = 1 km.
    assert height.min() == pytest.approx(821, abs=1.5)
    assert height.max() == pytest.approx(835, abs=1.5)
    centric = np.degrees(np.arcsin(position[:, 2] / np.linalg.norm(position, axis=-1)))
    assert centric.max() == pytest.approx(81.3, abs=0.05)
    assert centric.min() == pytest.approx(-81.3, abs=0.05)

    up = np.flatnonzero((latitude[:-1] < 0) & (latitude[1:] >= 0))
    share = -latitude[up] / (latitude[up + 1] - latitude[up])
    # Its ground track closes after 412 revolutions in 29 days.
    assert np.diff(up + share).mean() * 5 == pytest.approx(29 * 86_400 / 412, abs=0.5)
    # It is on an orbit that follows the Sun: the equator is crossed at one local time all year.
    later = seconds("2026-03-20T06:00", 0, 86_400, 5)
    local = []
    for span in (times, later):
        phi, lam = METOP.track(span)
        up = np.flatnonzero((phi[:-1] < 0) & (phi[1:] >= 0))
        hour = (span[up] - span[up].astype("datetime64[D]")) / np.timedelta64(1, "h")
        local.append(np.mean((hour + lam[up] / 15) % 24))
    assert local[0] == pytest.approx(local[1], abs=0.05)  # three minutes
    assert METOP.period / 60 == pytest.approx(101.3, abs=0.05)
    assert METOP.altitude / 1e3 == pytest.approx(819, abs=2)
    assert np.all((longitude >= 0) & (longitude < 360))


def test_latitudes_are_geographic():
    r"""The ellipsoid's normal at the point below passes through the satellite."""
    times = seconds(METOP.epoch, 0, 6000, 97)
    x = METOP.position(times)
    phi, lam = (np.radians(a) for a in METOP.track(times))
    a, b = 6_378_137.0, 6_356_752.3142
    normal = np.stack([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)], -1)
    scaled = normal * [a * a, a * a, b * b]
    ground = scaled / np.sqrt((scaled * normal).sum(-1, keepdims=True))
    np.testing.assert_allclose((ground / [a, a, b]) ** 2 @ np.ones(3), 1, rtol=1e-9)
    away = np.cross(x - ground, normal)
    assert np.linalg.norm(away, axis=-1).max() < 1  # metres off the vertical, from 820 km


def test_a_geostationary_satellite_stays():
    # At J2000.0 the meridian of Greenwich is at a right ascension of 280.4606°.
    at = Elements(0.05, 280.46062 - 75.2, 1.0027379, 1e-5, 0.0, 0.0, "2000-01-01T12")
    latitude, longitude = at.track(seconds(at.epoch, 0, 86_400, 600))
    assert np.abs(latitude).max() < 0.1
    assert np.abs(turned(longitude, -75.2)).max() < 0.1
    assert at.altitude / 1e3 == pytest.approx(35_786, abs=5)
    # It sees a cap, of which the share of the sphere is (1 − cos r) / 2, every hour.
    grid = Grid("equiangular", 181, 360)
    seen = Satellite(at, radius=60.0).sees(grid, ["2000-01-01T18"])[0]
    share = (seen * grid.area).sum() / grid.area.sum()
    assert share == pytest.approx((1 - np.cos(np.radians(60))) / 2, abs=2e-3)


@pytest.mark.parametrize("inclination", [75.0, 98.7])
def test_a_circular_orbit_is_much_the_same(inclination):
    orbit = Orbit(inclination=inclination, node=40.0, phase=30.0, epoch="2021-03-21T00")
    elements = Elements.from_orbit(orbit)
    assert elements.period == pytest.approx(orbit.period)
    assert elements.altitude == pytest.approx(orbit.altitude, abs=1)
    assert elements.horizon == pytest.approx(orbit.horizon, abs=1e-3)
    # J₂ changes rates by 3/2 J₂ (R/a)² < 0.13 %, hence angles by up to a few times 0.13 % of the
    # 360° of a revolution; flattening turns verticals by 0.19°.
    times = seconds("2021-03-21T00", 0, orbit.period, 60)
    apart = np.degrees(great_circle(*elements.track(times), *orbit.track(times), radius=1))
    assert apart.max() < 2 * 0.0013 * 360 + 0.19


def test_swath_of_a_real_orbit():
    r"""Against the distance to a finely sampled track."""
    satellite = Satellite(METOP, radius=view(2200))
    assert satellite.width == pytest.approx(2200)
    grid, hour = Grid("gaussian", 16, 32), np.datetime64("2026-02-24T08", "us")
    seen = satellite.sees(grid, [hour])[0]
    track = METOP.track(seconds(hour - np.timedelta64(1800, "s"), 0, 3601, 2))
    for row in range(16):
        for column in range(32):
            place = grid.latitude[row], grid.longitude[column]
            nearest = great_circle(*place, *track, radius=6371.229).min()
            if abs(nearest - 1100) > 1:
                assert seen[row, column] == (nearest < 1100)
    assert 20 < seen.sum() < 256


def test_files(tmp_path):
    path = tmp_path / "weather.tle"
    older = replace(METOP, epoch="2021-03-20T12", node=12.0)
    noaa = replace(METOP, name="NOAA 20 (JPSS-1)", node=200.0, motion=14.19)
    other = replace(METOP, name="METOP-C", node=300.0)
    text = ["METOP-B   ", *lines(METOP, 38771), "", "0 NOAA 20 (JPSS-1)", *lines(noaa, 43013)]
    text += ["METOP-C", *lines(other, 43689), "METOP-B", *lines(older, 38771), *ISS]
    path.write_bytes("\r\n".join(text).encode())

    found = read_elements(path)
    assert [e.name for e in found] == ["METOP-B", "NOAA 20 (JPSS-1)", "METOP-C", "METOP-B", "25544"]
    times = seconds(METOP.epoch, 0, 6000, 60)
    # A two-line set has 8 digits of a day and 4 of a degree: some ten metres.
    apart = np.linalg.norm(found[0].position(times) - METOP.position(times), axis=-1)
    assert apart.max() < 50

    assert find_elements(path, "metop-b").epoch[:10] == "2026-02-24"
    assert find_elements(path, "38771", near="2021-03-21").epoch[:10] == "2021-03-20"
    assert find_elements(path, "NOAA 20").number == "43013"
    with pytest.raises(DataError, match="may be METOP-B, METOP-C; name one"):
        find_elements(path, "metop")
    with pytest.raises(DataError, match=r"no satellite 'METOP-Q'.*did you mean 'METOP-"):
        find_elements(path, "METOP-Q")


def test_damaged_files(tmp_path):
    path = tmp_path / "weather.tle"
    first, second = lines(METOP, 38771)
    for text, told in (
        (f"METOP-B\n{first}\n{second[:20]}7{second[21:]}", "'METOP-B' are damaged.*checksum"),
        (f"METOP-B\n{first}", "damaged: a line of 0 characters"),
        (f"{first}\n{ISS[1]}", "its lines are of 38771 and 25544"),
        ("nothing\nof the sort", "holds no two-line elements"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=told):
            read_elements(path)
    with pytest.raises(DataError, match=r"cannot be read.*No such file"):
        read_elements(tmp_path / "nowhere.tle")


def test_elements_age():
    with pytest.raises(DataError, match=r"METOP-B are of 2026-02-24, 1801 days away.*shifted"):
        METOP.track(["2021-03-21"])
    METOP.track(["2026-03-26T00"])  # 29.75 days


def test_shifted_orbits_pass_over_the_same_places():
    moved = METOP.shifted("2021-03-21T20")
    assert moved.epoch == "2021-03-22T06:00:00.000000"
    times = seconds(METOP.epoch, 0, 2 * 86_400, 600)
    shift = np.datetime64(moved.epoch) - np.datetime64(METOP.epoch)
    apart = great_circle(*METOP.track(times), *moved.track(times + shift))
    assert apart.max() < 10  # metres


def test_what_falls_down():
    low = Elements(51.6, 0.0, 16.3, epoch="2021-03-21T00", drag=0.05, name="A BALLOON")
    with pytest.raises(DataError, match="cannot follow A BALLOON to 2021-0"):
        low.track(seconds("2021-03-21T00", 0, 25 * 86_400, 3600))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"motion": 20.0}, "20 revolutions a day.*stays up"),
        ({"motion": 0.0}, "0 revolutions a day"),
        ({"motion": np.nan}, "nan revolutions a day"),
        ({"eccentricity": 1.0}, "eccentricity of 1"),
        ({"inclination": 181.0}, "inclination of 181"),
        ({"node": np.nan}, "found nan for node of METOP-B"),
        ({"epoch": "soon"}, "epoch 'soon'"),
    ],
)
def test_elements_that_are_none(options, told):
    with pytest.raises(DataError, match=told):
        replace(METOP, **options)
