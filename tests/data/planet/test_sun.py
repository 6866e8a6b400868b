r"""Insolation against its definition."""

from __future__ import annotations

import numpy as np
import pytest

from appa.data.planet.sun import daily_cycle, declination


@pytest.mark.parametrize("delta", [-0.409, -0.1, 0.0, 0.25, 0.409])
def test_the_day_mean_is_one_wherever_the_sun_rises(delta):
    latitude = np.radians(np.linspace(-89, 89, 60))[:, None]
    angle = np.linspace(-np.pi, np.pi, 20001)[None, :-1]
    mean = daily_cycle(latitude, angle, delta).mean(axis=1)
    rises = -np.tan(latitude[:, 0]) * np.tan(delta) < 1 - 1e-3
    np.testing.assert_allclose(mean[rises], 1.0, atol=2e-3)
    assert np.isfinite(mean).all()


def test_noon_is_brightest_and_midnight_dark():
    angle = np.linspace(-np.pi, np.pi, 25)[None]
    cycle = daily_cycle(np.zeros((1, 1)), angle, 0.0)[0]
    assert cycle.argmax() == 12
    assert cycle[0] == 0
    np.testing.assert_allclose(cycle[12], np.pi, rtol=1e-9)  # cos h over its mean, 1/π


def test_declination_at_solstices_and_equinoxes():
    # Days of year of 2021's seasons; Spencer's series is good to 0.05°, a day moves it by 0.4°.
    for day, degrees in ((79.4, 0.0), (171.2, 23.44), (264.8, 0.0), (354.7, -23.44)):
        got = np.degrees(declination(np.array(day / 365)))
        assert abs(got - degrees) < 0.6
