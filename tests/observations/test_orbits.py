from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from appa.data.grids import Grid, great_circle
from appa.errors import DataError
from appa.observations.orbits import Orbit, swath

START = np.datetime64("2021-03-21T00", "us")
RADIUS_OF_VIEW = 5.0


def seconds(s):
    return (np.asarray(s) * 1e6).round().astype("timedelta64[us]")


def test_period_is_kepler():
    # A geostationary satellite, 35,786 km up, goes round in a sidereal day of 23 h 56 min 4.1 s.
    assert Orbit(altitude=35_786e3).period == pytest.approx(86_164.1, abs=1.0)
    # Tabulated for 800 km: 100.87 minutes.
    assert Orbit().period / 60 == pytest.approx(100.87, abs=0.01)


@pytest.mark.parametrize("inclination", [75.0, 98.7, 28.5])
def test_track_is_that_of_newton(inclination):
    r"""Against the two-body problem integrated in space, seen from a rotating Earth."""
    orbit = Orbit(inclination=inclination, node=40.0, phase=0.0, epoch="2021-03-21T00")
    gm, a, i = 3.986004418e14, 6_378_137.0 + 800e3, np.radians(inclination)
    speed = np.sqrt(gm / a)
    x0, v0 = np.array([a, 0, 0]), speed * np.array([0, np.cos(i), np.sin(i)])

    def fall(_, state):
        r = state[:3]
        return np.concatenate([state[3:], -gm * r / np.linalg.norm(r) ** 3])

    t = np.linspace(0, 6 * 3600, 200)
    path = solve_ivp(fall, (0, t[-1]), np.concatenate([x0, v0]), t_eval=t, rtol=1e-10, atol=1e-3)
    x, y, z = path.y[:3]
    latitude = np.degrees(np.arctan2(z, np.hypot(x, y)))
    longitude = 40.0 + np.degrees(np.arctan2(y, x)) - 360 * t / 86_164.0905

    found = orbit.track(START + seconds(t))
    # an arc of 1e-4 degrees is 11 m
    assert np.degrees(great_circle(*found, latitude, longitude, radius=1)).max() < 1e-4


def test_track_stays_within_inclination_and_shifts_west():
    orbit = Orbit()
    times = START + seconds(np.arange(0, 86_400, 2.0))
    latitude, longitude = orbit.track(times)
    assert np.abs(latitude).max() == pytest.approx(75.0, abs=0.01)
    assert np.abs(latitude).max() <= 75.0 + 1e-9
    assert longitude.min() >= 0
    assert longitude.max() < 360

    # Ascending nodes: the Earth turns 360° × T / sidereal day under the orbit, 25.3° to the east.
    up = np.flatnonzero((latitude[:-1] < 0) & (latitude[1:] >= 0))
    share = -latitude[up] / (latitude[up + 1] - latitude[up])
    step = (longitude[up + 1] - longitude[up] + 180) % 360 - 180
    shift = (np.diff(longitude[up] + share * step) + 180) % 360 - 180
    np.testing.assert_allclose(shift, -360 * 6052.41 / 86_164.09, atol=1e-2)


def test_swath_is_the_union_over_the_hour():
    r"""Against the smallest distance to a track sampled every quarter of a second."""
    rng = np.random.default_rng(0)
    n = 1500
    latitude = np.degrees(np.arcsin(rng.uniform(-1, 1, n)))
    longitude = rng.uniform(-180, 180, n)
    time = START + np.timedelta64(7, "h")
    seen = swath(Orbit(), latitude, longitude, [time], RADIUS_OF_VIEW)[0]

    offsets = seconds(np.arange(-1800, 1800.25, 0.25))
    track = Orbit().track(time + offsets)
    distance = np.array(
        [
            great_circle(p, q, *track, radius=1).min()
            for p, q in zip(latitude, longitude, strict=True)
        ]
    )
    distance = np.degrees(distance)
    clear = np.abs(distance - RADIUS_OF_VIEW) > 1e-3  # the samples' own error is below 1e-5
    assert clear.sum() > 0.99 * n
    np.testing.assert_array_equal(seen[clear], (distance < RADIUS_OF_VIEW)[clear])
    assert seen.sum() > 50

    instant = great_circle(latitude, longitude, *Orbit().track(time), radius=1)
    assert (np.degrees(instant) < RADIUS_OF_VIEW).sum() < 0.1 * seen.sum()


def test_swath_does_not_depend_on_the_sampling():
    grid = Grid("equiangular", 181, 360)
    times = START + np.arange(3).astype("timedelta64[h]")
    coarse = swath(Orbit(), grid.latitude[:, None], grid.longitude, times, step=10)
    fine = swath(Orbit(), grid.latitude[:, None], grid.longitude, times, step=1)
    assert (coarse != fine).sum() == 0


def test_share_of_area_is_that_of_a_tube():
    r"""Hotelling: a tube of radius r about a curve of length ℓ that doesn't meet itself covers
    2 ℓ sin r, and its two ends together a cap, 2π (1 − cos r)."""
    times = START + np.arange(48).astype("timedelta64[h]")
    track = Orbit().track(times[0] + seconds(np.arange(-1800, 1801)))
    length = great_circle(track[0][1:], track[1][1:], track[0][:-1], track[1][:-1], radius=1).sum()
    r = np.radians(RADIUS_OF_VIEW)
    exact = (2 * length * np.sin(r) + 2 * np.pi * (1 - np.cos(r))) / (4 * np.pi)
    assert 0.05 < exact < 0.055

    for grid in (Grid("gaussian", 48, 96), Grid("equiangular", 181, 360)):
        seen = swath(Orbit(), grid.latitude[:, None], grid.longitude, times)
        share = (seen * grid.area).sum((1, 2)) / grid.area.sum()
        # The edge, 2 ℓ long, cuts 2 ℓ / d boxes of width d, each of which is in or out as a whole:
        # an error uniform in ± half a box.
        d = np.pi / grid.shape[0]
        sampling = np.sqrt(2 * length / d / 12) * d**2 / (4 * np.pi)
        assert np.abs(share - exact).max() < 5 * sampling
        assert abs(share.mean() - exact) < 5 * sampling / np.sqrt(len(times))


def test_a_day_sees_three_quarters_of_the_area():
    grid = Grid("gaussian", 48, 96)
    times = START + np.arange(48).astype("timedelta64[h]")
    seen = swath(Orbit(), grid.latitude[:, None], grid.longitude, times)
    share = [(seen[:hours].any(0) * grid.area).sum() / grid.area.sum() for hours in (12, 24, 48)]
    # 50, 75 and 93 % were measured with another program. How the tracks of the second day fall
    # between those of the first hangs on a kilometre of altitude: 2 points.
    np.testing.assert_allclose(share, [0.50, 0.75, 0.93], atol=0.02)


def test_nothing_beyond_the_swath_of_the_northernmost_point():
    longitude = np.arange(0, 360, 2.0)
    times = START + np.arange(24).astype("timedelta64[h]")
    assert not swath(Orbit(), np.full(180, 80.01), longitude, times).any()
    assert not swath(Orbit(), np.full(180, -80.01), longitude, times).any()
    assert swath(Orbit(), np.full(180, 79.5), longitude, times).any()


def test_hours_are_independent_of_each_other():
    grid = Grid("gaussian", 24, 48)
    times = np.datetime64("1905-02-28T21", "us") + np.arange(6).astype("timedelta64[h]")
    together = swath(Orbit(), grid.latitude[:, None], grid.longitude, times)
    backward = swath(Orbit(), grid.latitude[:, None], grid.longitude, times[::-1])
    np.testing.assert_array_equal(together, backward[::-1])
    assert together.any((1, 2)).all()


def test_kilometres_for_metres():
    with pytest.raises(DataError, match="altitude of 800 m"):
        Orbit(altitude=800)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"altitude": np.nan}, "altitude of nan m"),
        ({"altitude": np.inf}, "altitude of inf m"),
        ({"inclination": -10.0}, "inclination of -10°; give 0 to 180°"),
        ({"inclination": np.nan}, "inclination of nan°"),
        ({"node": np.nan}, "node of nan°"),
        ({"phase": np.inf}, "phase of inf°"),
    ],
)
def test_orbits_that_are_none(options, told):
    with pytest.raises(DataError, match=told):
        Orbit(**options)


def test_horizon():
    # where the line of sight touches the ground, at a right angle to the vertical
    orbit = Orbit(altitude=800e3)
    angle = np.radians(orbit.horizon)
    satellite = np.array([7_178_137.0, 0.0])
    place = 6_378_137.0 * np.array([np.cos(angle), np.sin(angle)])
    assert place @ (satellite - place) == pytest.approx(0, abs=1e-3 * 6_378_137.0)
