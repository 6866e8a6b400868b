r"""First members, of a model whose states say when and of which simulation they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from appa.errors import DataError, StoreError

jax = pytest.importorskip("jax", reason="the circulation model is an extra, [planet]")

from appa.data.planet.circulation import Run  # noqa: E402
from appa.evaluation.letkf_members import first_members, year_of_weather  # noqa: E402


@jax.tree_util.register_dataclass
@dataclass
class State:
    dynamics: Any
    physics: Any
    time: Any

    def replace(self, **fields):
        return replace(self, **fields)


class Diary:
    r"""Dynamics are the hour since 1970 of the simulation itself, what it spun up, and its seed;
    physics count the hours since they began; a clock tells the hour it is given."""

    def __init__(self, last=np.inf):
        self.days, self.seeds, self.last = 0, [], last

    def start(self, seeds, times):
        hours = times.astype("datetime64[h]").astype(int).astype(np.float32)
        seeds = np.array(seeds, np.float32)
        self.seeds.append(tuple(seeds))
        zero = np.zeros_like(hours)
        return Run(State({"hour": hours, "seed": seeds, "spun": zero}, zero, hours), zero)

    def _passed(self, run, hours):
        d, s = run.state.dynamics, run.state
        d = d | {"hour": d["hour"] + hours, "spun": d["spun"] + hours}
        return Run(State(d, s.physics + hours, s.time + hours), run.precipitation + 1)

    def spin_up(self, run, days):
        if self.days >= self.last:
            raise KeyboardInterrupt
        self.days += days
        return self._passed(run, 24 * days)

    def advance(self, run, days):
        return self._passed(run, round(24 * days)), {}


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    "start", ["2021-03-21T00", "2030-01-02T05", "2024-12-30T01", "2431-07-01T23"]
)
def test_members_are_of_the_season_and_of_simulations_ten_days_apart(tmp_path, kept, start):
    world, start = Diary(), np.datetime64(start)
    weather = tmp_path / "year.npz" if kept else None
    run = first_members(world, 30, start, spin_up=90, trajectories=8, weather=weather)
    d = {name: np.asarray(x) for name, x in run.state.dynamics.items()}
    # all at the date, their physics as old as the hours of the day
    np.testing.assert_array_equal(run.state.time, np.full(30, start.astype(int)))
    early = int((start - start.astype("datetime64[D]").astype("datetime64[h]")).astype(int))
    np.testing.assert_array_equal(run.state.physics, np.full(30, early))
    # from eight simulations at four dates each, the last of them at one date less
    pairs = set(zip(d["seed"], d["hour"], strict=True))
    assert len(pairs) == 30
    assert sorted(np.unique(d["seed"], return_counts=True)[1]) == [3, 3] + [4] * 6
    assert d["spun"].min() >= 24 * 90
    # 10 days apart, about the date or, of a year in a file, about its day of the year
    day = (d["hour"].astype(int) - early) // 24
    if not kept:
        apart = np.unique(day - start.astype("datetime64[D]").astype(int))
        np.testing.assert_array_equal(apart, [-15, -5, 5, 15])
        return
    january = start.astype("datetime64[Y]").astype("datetime64[D]")
    today = (start.astype("datetime64[D]") - january).astype(int)
    apart = np.unique((day - (31 * 365 + 8) - today + 182) % 365 - 182)
    assert len(apart) == 4
    assert set(np.diff(apart)) <= {10, 5}  # the last ten days of a year are five
    assert np.abs(apart).max() <= 20


def test_a_year_serves_all_dates_and_is_whole_or_not_there(tmp_path):
    path = tmp_path / "folder" / "year.npz"
    options = {"spin_up": 10, "trajectories": 2, "weather": path}
    with pytest.raises(KeyboardInterrupt):
        first_members(Diary(last=100), 4, "2021-03-21T00", **options)
    assert list(tmp_path.rglob("*.npz")) == []

    world = Diary()
    first_members(world, 4, "2021-03-21T00", **options)
    assert world.days == 10 + 360  # from rest to the first of January, and to the last states
    hour, seed, spun, rain = year_of_weather(world, path, 2, spin_up=10)
    np.testing.assert_array_equal(hour[:, 0] / 24, 31 * 365 + 8 + 10 * np.arange(37))
    assert (seed[:, 0] == seed[0, 0]).all()
    assert seed[0, 0] != seed[0, 1]
    np.testing.assert_array_equal(spun[:, 1] / 24, 10 + 10 * np.arange(37))
    assert rain.shape == (37, 2)

    again = Diary()
    run = first_members(again, 4, "2025-09-30T00", **options)
    assert again.days == 0
    near = np.unique(np.asarray(run.state.dynamics["hour"])) / 24 % 365.25
    assert np.abs(near - 272).max() <= 10

    for change in ({"seed": 1}, {"spin_up": 15}, {"trajectories": 4}):
        with pytest.raises(StoreError, match="was asked for"):
            first_members(again, 4, "2025-09-30T00", **options | change)
    path.write_bytes(b"PK nothing")
    with pytest.raises(StoreError, match="holds no year of weather"):
        first_members(again, 4, "2025-09-30T00", **options)
    with pytest.raises(StoreError, match=r"name a \.npz"):
        first_members(again, 4, "2025-09-30T00", **options | {"weather": "year.zarr"})
    with pytest.raises(DataError, match="multiple of 5 days"):
        first_members(again, 4, "2025-09-30T00", **options | {"spin_up": 12})
    assert again.days == 0
