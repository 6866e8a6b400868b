from __future__ import annotations

import airportsdata
import numpy as np
import pandas as pd
import pytest

from appa.data.grids import Grid, great_circle
from appa.errors import DataError
from appa.observations.elements import Elements
from appa.observations.networks import (
    Network,
    Satellite,
    boxes,
    constellation,
    footprints,
    named_network,
    places,
    stations,
    view,
)
from appa.observations.orbits import Orbit

GRID = Grid("gaussian", 48, 96)
TIMES = np.datetime64("2021-03-21T00") + np.arange(24)


def test_paper_density():
    network = named_network(GRID)
    assert network.name == "paper-density"
    assert len(network.stations) == 46  # 1 % of 4608
    box = boxes(GRID, network.stations["latitude"], network.stations["longitude"])
    assert len(set(box)) == 46

    listed = airportsdata.load("ICAO")
    for row in network.stations.itertuples():
        place = listed[row.station]
        # where they are, not where the grid is
        assert (row.latitude, row.longitude) == (place["lat"], place["lon"])

    (satellite,) = network.satellites
    assert satellite.orbit.altitude == 800e3
    assert satellite.orbit.inclination == 75
    assert (satellite.radius, satellite.noise, network.noise) == (5.0, 0.10, 0.01)
    assert (len(network.variables), len(satellite.variables)) == (6, 5)


def test_elevations_are_metres():
    # From the airports' own charts: El Alto, Denver, Schiphol (below the sea).
    height = places().set_index("station")["elevation"]
    assert height["SLLP"] == pytest.approx(4061, abs=15)
    assert height["KDEN"] == pytest.approx(1656, abs=5)
    assert height["EHAM"] == pytest.approx(-3, abs=2)


@pytest.mark.parametrize(
    "grid", [GRID, Grid("equiangular", 19, 36), Grid("equiangular-cells", 8, 15)]
)
def test_boxes_are_the_nearest(grid):
    rng = np.random.default_rng(0)
    latitude = np.concatenate([rng.uniform(-90, 90, 500), [90.0, -90.0]])
    longitude = np.concatenate([rng.uniform(-180, 360, 500), [0.0, 359.999]])
    row, column = np.divmod(boxes(grid, latitude, longitude), grid.shape[1])

    apart = np.abs(latitude[:, None] - grid.latitude)
    np.testing.assert_allclose(apart[np.arange(502), row], apart.min(1), atol=1e-12)
    turn = np.abs((longitude[:, None] - grid.longitude + 180) % 360 - 180)
    np.testing.assert_allclose(turn[np.arange(502), column], turn.min(1), atol=1e-9)


def test_choice_is_deterministic_and_hangs_on_the_seed():
    first, again = stations(GRID), stations(GRID)
    pd.testing.assert_frame_equal(first, again)
    other = stations(GRID, seed=1)
    assert len(set(first["station"]) & set(other["station"])) < 10


def test_more_stations_keep_those_there_were():
    few, many = stations(GRID, 46), stations(GRID, 200)
    assert set(few["station"]) <= set(many["station"])
    assert len(stations(GRID, 0)) == 0


def test_too_many_stations():
    everywhere = places()
    occupied = len(set(boxes(GRID, everywhere["latitude"], everywhere["longitude"])))
    assert len(stations(GRID, occupied)) == occupied
    with pytest.raises(DataError, match=f"at most {occupied}"):
        stations(GRID, occupied + 1)
    with pytest.raises(DataError, match="-1 stations"):
        stations(GRID, -1)


def test_spread_is_that_of_real_places():
    r"""Denser where the list is denser, by less than the list since boxes fill up."""

    def northern(frame):
        return (frame["latitude"] > 20).mean()

    major = places().loc[places()["major"]]
    box = boxes(GRID, major["latitude"], major["longitude"])
    by_box = northern(pd.DataFrame({"latitude": GRID.latitude[np.unique(box) // 96]}))
    chosen = pd.concat([stations(GRID, seed=seed) for seed in range(8)])
    tolerance = 4 * 0.5 / np.sqrt(len(chosen))
    assert by_box - tolerance < northern(chosen) < northern(major) + tolerance


def test_coverage():
    network = named_network(GRID)
    coverage = network.coverage(GRID, TIMES)
    assert list(coverage.index) == list(pd.DatetimeIndex(TIMES))
    np.testing.assert_allclose(coverage["stations"], 100 * 46 / 4608)
    np.testing.assert_allclose(coverage["satellites"], 5.3, atol=0.5)
    assert coverage["since_start"].is_monotonic_increasing
    assert coverage["since_start"].iloc[0] == coverage["satellites"].iloc[0]
    assert coverage["since_start"].iloc[-1] == pytest.approx(75, abs=2)


def test_constellation_and_number_override():
    pair = [Satellite(), Satellite(Orbit(node=180.0))]
    network = named_network(GRID, stations=10, satellites=pair)
    assert len(network.stations) == 10
    one = named_network(GRID).coverage(GRID, TIMES)["satellites"]
    # On opposite sides of the Earth: their swaths of an hour meet near the poles only.
    two = network.coverage(GRID, TIMES)["satellites"]
    assert (two / one).between(1.6, 2.01).all()


def test_no_satellites_see_nothing():
    coverage = named_network(GRID, satellites=[]).coverage(GRID, TIMES)
    assert (coverage["since_start"] == 0).all()


def test_mistakes():
    with pytest.raises(DataError, match="did you mean 'paper-density'"):
        named_network(GRID, "paper-densty")
    good = stations(GRID, 3)
    with pytest.raises(DataError, match="lack elevation"):
        Network("mine", good.drop(columns="elevation"))
    with pytest.raises(DataError, match="occurs twice"):
        Network("mine", pd.concat([good, good]))
    with pytest.raises(DataError, match="within ±90"):
        Network("mine", good.assign(latitude=[10.0, 91.0, 0.0]))
    with pytest.raises(DataError, match="within ±90"):
        Network("mine", good.assign(latitude=[10.0, np.nan, 0.0]))


@pytest.mark.parametrize("noise", [-1.0, 0.0, np.nan, np.inf, "0.1", None])
def test_noise_is_a_share_above_nothing(noise):
    with pytest.raises(DataError, match=f"found {noise!r} for a station's noise.*noise=0.01"):
        Network("mine", stations(GRID, 3), noise=noise)
    with pytest.raises(DataError, match=f"found {noise!r} for a satellite's noise"):
        Satellite(noise=noise)


@pytest.mark.parametrize("radius", [-5.0, 0.0, 500.0, 28.0, np.nan])
def test_a_satellite_sees_to_its_horizon(radius):
    # From 800 km the horizon is arccos(6378 / 7178) = 27.3° away, from 36,000 km 81°.
    with pytest.raises(DataError, match=rf"view of {radius:g}°.*800 km the horizon is 27.3°"):
        Satellite(radius=radius)
    assert Satellite(Orbit(altitude=35_786e3), radius=80.0).radius == 80.0


def test_misspelt_variables_are_named():
    with pytest.raises(DataError, match="'2m_temprature'; did you mean '2m_temperature'"):
        Network("mine", stations(GRID, 3), variables=("2m_temprature",))
    with pytest.raises(DataError, match="'geopotental'; did you mean 'geopotential'"):
        Satellite(variables=("temperature", "geopotental"))
    with pytest.raises(DataError, match="give a tuple"):
        Satellite(variables="temperature")  # pyright: ignore
    with pytest.raises(DataError, match="'temperature' has levels; give it to a satellite"):
        Network("mine", stations(GRID, 3), variables=("2m_temperature", "temperature"))


def test_errors_of_a_configuration():
    network = named_network(GRID, station_error=0.02, satellite_error=0.3)
    assert network.noise == 0.02
    assert [s.noise for s in network.satellites] == [0.3]
    pd.testing.assert_frame_equal(network.stations, named_network(GRID).stations)
    given = named_network(GRID, satellites=[Satellite(noise=0.2)], station_error=0.02)
    assert (given.noise, given.satellites[0].noise) == (0.02, 0.2)
    with pytest.raises(DataError, match=r"satellite_error of 0.3 beside satellites"):
        named_network(GRID, satellites=[Satellite()], satellite_error=0.3)
    with pytest.raises(DataError, match="found -1 for a station's noise"):
        named_network(GRID, station_error=-1)


def test_paper_stations():
    r"""Every packaged place with an IATA code, and the other network's orbiter."""
    network = named_network(GRID, "paper-stations")
    listed = {code for code, a in airportsdata.load("ICAO").items() if a["iata"]}
    codes = set(network.stations["station"])
    assert codes <= listed
    assert len(codes) > 0.999 * len(listed)  # but for twins
    assert network.satellites == named_network(GRID).satellites
    coverage = network.coverage(GRID, TIMES[:1])
    assert 25 < coverage["stations"].iloc[0] < 34
    few = named_network(GRID, "paper-stations", stations=200)
    assert len(few.stations) == 200
    assert few.coverage(GRID, TIMES[:1])["stations"].iloc[0] == pytest.approx(100 * 200 / 4608)
    # On the paper's grid they are what they are there: 0.7 % of 721 × 1440 points, of its 1 %.
    fine = Grid("equiangular", 721, 1440)
    taken = len(set(boxes(fine, network.stations["latitude"], network.stations["longitude"])))
    assert 0.006 < taken / (721 * 1440) < 0.010


def test_networks_of_a_list_of_ones_own():
    listed = pd.DataFrame({"station": [f"S{k}" for k in range(50)], "elevation": 0.0})
    listed["latitude"], listed["longitude"] = np.linspace(-80, 80, 50), np.linspace(-170, 170, 50)
    assert set(named_network(GRID, listed=listed).stations["station"]) <= set(listed["station"])
    whole = named_network(GRID, "paper-stations", listed=listed)
    assert set(whole.stations["station"]) == set(listed["station"])


def test_constellation():
    assert constellation(0) == ()
    assert constellation(1) == (Satellite(),)
    three = constellation(3, Satellite(noise=0.2))
    assert [s.orbit.node for s in three] == [0, 60, 120]
    assert [s.noise for s in three] == [0.2] * 3
    one = named_network(GRID).coverage(GRID, TIMES[:12])
    more = named_network(GRID, satellites=three).coverage(GRID, TIMES[:12])
    assert (more["satellites"] / one["satellites"]).between(2.3, 3.01).all()
    assert more["since_start"].iloc[-1] > one["since_start"].iloc[-1] + 30
    real = constellation(2, Satellite(Elements(98.7, 10.0, 14.2, epoch="2021-03-21")))
    assert [s.orbit.node for s in real] == [10, 100]
    with pytest.raises(DataError, match="constellation of -1"):
        constellation(-1)


@pytest.mark.parametrize("grid", [GRID, Grid("equiangular", 61, 120)])
@pytest.mark.parametrize("size", [50.0, 400.0, 1000.0])
def test_footprints_are_apart(grid, size):
    row, column = np.nonzero(footprints(grid, size))
    latitude, longitude = grid.latitude[row], grid.longitude[column]
    for k in range(0, len(row), 7):
        apart = great_circle(latitude[k], longitude[k], latitude, longitude) / 1e3
        apart[k] = np.inf
        # A chord of a parallel is shorter than its arc, by at most 2/π of it near a pole.
        near_pole = abs(latitude[k]) > 80
        assert apart.min() > size * (2 / np.pi if near_pole else 0.98)
    # Nor does it thin more than it must: circles of that diameter cover a share of the sphere.
    if size > 400:
        covered = len(row) * np.pi * (size / 2) ** 2 / (4 * np.pi * 6371.0**2)
        assert 0.3 < covered < 0.91  # no packing is denser than π / √12


def test_footprints_smaller_than_boxes():
    # Boxes are 417 km wide at the equator, and 20 km in the row next to the pole.
    kept = footprints(GRID, 50.0)
    assert kept[np.abs(GRID.latitude) < 80].all()
    assert not kept[0].all()
    assert kept[0].any()
    plain, thinned = Satellite(), Satellite(footprint=1000.0)
    seen, fewer = plain.sees(GRID, TIMES[:2]), thinned.sees(GRID, TIMES[:2])
    np.testing.assert_array_equal(fewer, seen & footprints(GRID, 1000.0))


def test_width_of_a_swath():
    assert view(1111.95) == pytest.approx(5, abs=1e-3)  # 111.195 km in a degree of a great circle
    assert Satellite(radius=view(2200)).width == pytest.approx(2200)
    with pytest.raises(DataError, match="footprint of -1 km"):
        Satellite(footprint=-1)


def test_derived_observables_need_an_error():
    with pytest.raises(DataError, match=r"'10m_wind_speed' is derived.*errors=\{'10m_wind_speed'"):
        Network("mine", stations(GRID, 3), variables=("10m_wind_speed",))
    seen = Network(
        "mine", stations(GRID, 3), variables=("10m_wind_speed",), errors={"10m_wind_speed": 0.5}
    )
    assert seen.errors["10m_wind_speed"] == 0.5
    with pytest.raises(DataError, match="'relative_humidity' has levels"):
        Network(
            "mine",
            stations(GRID, 3),
            variables=("relative_humidity",),
            errors={"relative_humidity": 5.0},
        )
    with pytest.raises(DataError, match="found 0 for the error of 'temperature'"):
        Satellite(errors={"temperature": 0})
    with pytest.raises(DataError, match="error of 'geopotentials', which is not seen"):
        Satellite(errors={"geopotentials": 1.0})
