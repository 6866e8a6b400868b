r"""The simulation: its calendar, its output against JCM's own, and being killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import xarray as xr

from appa.data.planet import simulation
from appa.data.planet.circulation import GRID, Circulation, Run
from appa.data.planet.simulation import Plan, simulate
from appa.data.stores import open_store
from appa.data.variables import VARIABLES
from appa.data.windows import runs
from appa.errors import DataError, StoreError, UnfinishedStoreError


def test_members_have_years_of_their_own():
    plan = Plan(members=3, days=730, first_year=2019)
    times = plan.times().reshape(3, -1)
    years = [set(np.unique(t.astype("datetime64[Y]").astype(int) + 1970)) for t in times]
    assert years == [{2019, 2020}, {2021, 2022}, {2023, 2024}]
    # 365 days a year: of 2024, a leap year, the last day is left out, and of 2019–2020 too.
    assert str(times[0, -1])[:13] == "2020-12-30T23"
    assert str(times[1, -1])[:13] == "2022-12-31T23"
    assert (np.diff(times, axis=1) == np.timedelta64(1, "h")).all()


def test_no_two_years_share_a_trajectory():
    # Forcing repeats every year: one seed under two dates would be one trajectory.
    train = Plan(members=99, first_year=1901).seeds()
    test = Plan(members=1, first_year=2021).seeds()
    other = Plan(members=1, first_year=2021, seed=1).seeds()
    assert len({*train, *test, *other}) == 101
    # A member starts the same whatever it is simulated with.
    assert Plan(members=2, first_year=1950).seeds()[1] == Plan(first_year=1951).seeds()[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every": 7}, "every must divide the 120 hours"),
        ({"members": 0}, "members must be at least 1"),
        ({"members": 300, "first_year": 2000}, "2000–2299"),
        ({"stretch": 48}, "stretch and each go together"),
        ({"stretch": 48, "each": 10}, "each must divide the 365 days"),
        ({"stretch": 121, "each": 5}, "at most the 120 hours"),
        ({"stretch": 50, "each": 5, "every": 4}, "multiple of every, 4"),
        ({"held_out": 1}, "--first-year 1901"),
        ({"held_out": 11, "first_year": 1901}, "choose at most 10"),
        ({"members": 60, "days": 730, "held_out": 1, "first_year": 1901}, "1901–2020"),
    ],
)
def test_impossible_plans_are_refused(arguments, message):
    with pytest.raises(DataError, match=message):
        Plan(**arguments)


def test_stretches_are_the_first_hours_of_each_so_many_days():
    plan = Plan(members=2, days=10, first_year=2019, stretch=48, each=5, every=6)
    times = plan.times().reshape(2, 2, 8)  # members, stretches, states
    assert (np.diff(times, axis=2) == np.timedelta64(6, "h")).all()
    assert [str(t)[:13] for t in times[1, :, 0]] == ["2020-01-01T00", "2020-01-06T00"]
    assert str(times[1, 1, -1])[:13] == "2020-01-07T18"
    assert plan.nbytes == times.size * 71 * 48 * 96 * 4
    # The loader finds the stretches, and no window crosses from one to the next.
    found = runs(Plan(days=365, stretch=30, each=73).times())
    np.testing.assert_array_equal(found[:, 1] - found[:, 0], [30] * 5)


def test_members_held_out_have_the_years_of_their_splits():
    plan = Plan(members=2, days=400, first_year=1901, held_out=2)
    years = plan.starts().astype("datetime64[Y]").astype(int) + 1970
    assert years.tolist() == [1901, 1903, 2017, 2019, 2021, 2023]
    assert (np.diff(plan.times()) > np.timedelta64(0)).all()
    # Whatever it is simulated with, a member is the same.
    assert plan.seeds()[4:] == Plan(members=2, days=400, first_year=2021).seeds()


class Clockwork:
    r"""A circulation known in closed form: every value is its member's seed plus its hour.

    Arguments:
        rounding: Added each hour; another device's rounding.
        fails: Called with the hour of the first member before each step.
    """

    def __init__(self, rounding: float = 0.0, fails=lambda hour: None):
        self.rounding, self.fails = rounding, fails

    def static(self):
        zero = np.zeros(GRID.shape)
        return {"land_sea_mask": zero, "geopotential_at_surface": zero}

    def start(self, seeds, times):
        hours = times.astype("datetime64[h]").astype(np.int64)
        drift = np.zeros(len(seeds))
        return Run((np.array(seeds) % 997, hours, drift), np.zeros(len(seeds)))

    def spin_up(self, run, days):
        seeds, hours, drift = run.state
        n = round(24 * days)
        self.fails(hours[0])
        return Run((seeds, hours + n, drift + n * self.rounding), run.precipitation)

    def advance(self, run, days, every=1):
        seeds, hours, drift = run.state
        kept = np.arange(0, round(24 * days), every)
        value = self.values(seeds[:, None], hours[:, None] + kept)
        value = (value + drift[:, None] + kept * self.rounding).astype(np.float32)
        blank = np.ones((1, *GRID.shape), np.float32)
        fields = {
            name: value[..., None, None] * blank[0]
            if VARIABLES[name].surface
            else value[..., None, None, None] * np.repeat(blank, 13, axis=0)
            for name in VARIABLES
        }
        return self.spin_up(run, days), fields

    @staticmethod
    def values(seeds, hours):
        return seeds + 1000.0 * (hours % 10_000)


def expected(plan):
    times = plan.times().astype("datetime64[h]")
    seeds = np.repeat(np.array(plan.seeds()) % 997, len(times) // plan.trajectories)
    return Clockwork.values(seeds, times.astype(np.int64)).astype(np.float32)


@pytest.mark.parametrize(
    "arguments",
    [
        {"members": 2, "days": 10, "every": 6},
        {"members": 2, "days": 3, "every": 3},
        {"members": 2, "days": 10, "every": 10},
        {"members": 1, "days": 12, "stretch": 30, "each": 6, "held_out": 1},
        {"members": 2, "days": 10, "stretch": 48, "each": 10, "every": 4},
    ],
)
def test_every_state_is_stored_under_its_hour(tmp_path, arguments):
    plan = Plan(first_year=1901, spin_up=7, **arguments)
    simulate(tmp_path / "a.zarr", plan, circulation=Clockwork())
    ds = open_store(tmp_path / "a.zarr")
    np.testing.assert_array_equal(ds.time.values, plan.times())
    for name in ("2m_temperature", "geopotential"):
        values = ds[name].values.reshape(ds.sizes["time"], -1)
        np.testing.assert_array_equal(values, expected(plan)[:, None] + 0 * values)
    np.testing.assert_array_equal(ds.trajectory, ds.time.dt.year)


@pytest.mark.parametrize("rests", [0.0, 1e9])  # the state is saved after each block, or but once
def test_where_it_goes_on_there_is_no_seam(tmp_path, monkeypatch, rests):
    monkeypatch.setattr(simulation, "RESTS", rests)
    plan = Plan(members=2, days=30, first_year=1901, spin_up=5, stretch=6, each=5)
    stop = np.datetime64("1901-01-21", "h").astype(int)

    def fails(hour):
        if hour >= stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(tmp_path / "a.zarr", plan, circulation=Clockwork(fails=fails))
    with pytest.raises(UnfinishedStoreError, match="8 of 12 blocks"):
        open_store(tmp_path / "a.zarr")
    # Resumed where each hour rounds otherwise, the drift grows evenly from the state saved last:
    # blocks of the first run after it would show as a step back to none.
    simulate(tmp_path / "a.zarr", plan, circulation=Clockwork(rounding=8.0))
    values = open_store(tmp_path / "a.zarr")["2m_temperature"][:, 0, 0].values
    drift = (values - expected(plan)).reshape(2, 6, 6)
    first = 4 if rests == 0 else 0
    hours = 24 * 5 * np.arange(6)[:, None] + np.arange(6) - 24 * 5 * first
    np.testing.assert_allclose(drift, np.broadcast_to(np.maximum(8.0 * hours, 0), (2, 6, 6)))


def test_a_state_that_was_damaged_is_told(tmp_path):
    plan = Plan(members=1, days=10, first_year=1901, spin_up=5, every=12)

    def fails(hour):
        if hour >= np.datetime64("1901-01-06", "h").astype(int):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(tmp_path / "a.zarr", plan, circulation=Clockwork(fails=fails))
    state = tmp_path / "a.zarr.partial" / ".appa" / "state.npz"
    state.write_bytes(state.read_bytes()[:100])
    with pytest.raises(StoreError, match="remove it, and they begin again"):
        simulate(tmp_path / "a.zarr", plan, circulation=Clockwork())
    state.unlink()
    simulate(tmp_path / "a.zarr", plan, circulation=Clockwork())
    values = open_store(tmp_path / "a.zarr")["temperature"][:, 0, 0, 0].values
    np.testing.assert_array_equal(values, expected(plan))


def test_nothing_after_a_block_that_failed_counts_as_done(tmp_path):
    plan = Plan(members=2, days=30, first_year=1901, spin_up=5, every=12)

    class Unstable(Clockwork):
        @staticmethod
        def values(seeds, hours):
            wrong = hours == np.datetime64("1902-01-12T12", "h").astype(int)
            return np.where(wrong, np.nan, Clockwork.values(seeds, hours))

    with pytest.raises(DataError, match=r"member 1 .* unstable in the 5 days from 1902-01-11"):
        simulate(tmp_path / "a.zarr", plan, circulation=Unstable())
    with pytest.raises(UnfinishedStoreError, match="4 of 12 blocks"):
        open_store(tmp_path / "a.zarr")
    simulate(tmp_path / "a.zarr", plan, circulation=Clockwork())
    values = open_store(tmp_path / "a.zarr")["temperature"][:, 0, 0, 0].values
    np.testing.assert_array_equal(values, expected(plan))


PLAN = Plan(members=1, days=3, spin_up=1)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    r"""Where compiled functions are kept: tests and processes share them, by these variables."""
    pytest.importorskip("jcm", reason="the extra 'planet' is not installed")
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    variables = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("cache")),
        # the many small functions of a start, too
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: getattr(jax.config, name) for name in variables}
    for name, value in variables.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield {name.upper(): str(value) for name, value in variables.items()}
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def circulation(cache):
    return Circulation()


class Followed:
    r"""A circulation whose members are seen after the last day that was stored."""

    def __init__(self, circulation):
        self.circulation = circulation

    def __getattr__(self, name):
        return getattr(self.circulation, name)

    def advance(self, run, days, every=1):
        self.run, fields = self.circulation.advance(run, days, every)
        return self.run, fields


@pytest.fixture(scope="module")
def whole(circulation, tmp_path_factory):
    r"""A simulation that nothing interrupted, and its member after these four days, when it has
    begun to rain."""
    path, followed = tmp_path_factory.mktemp("whole") / "plain.zarr", Followed(circulation)
    simulate(path, PLAN, circulation=followed)
    return path, followed.run


def test_it_starts_with_earths_mass_in_balance_with_the_mountains(circulation):
    run = circulation.start([3, 4], np.array(["2021-06-01"] * 2, "datetime64[h]"))
    logs = np.asarray(circulation.horizontal.to_nodal(run.state.dynamics.log_surface_pressure))
    assert 1e-4 < abs(logs[0] - logs[1]).max() < 0.01, "members differ, by a perturbation"
    pressure = 1e5 * np.exp(logs[0, 0])
    area = GRID.area[::-1].T
    np.testing.assert_allclose((pressure * area).sum() / area.sum(), 98_550, rtol=1e-4)
    height = np.asarray(circulation.surface_geopotential)
    # ln p_s = −Φ_s / RT + const: what is left is the seed's perturbation, below half a percent.
    rest = np.log(pressure) + height / (287.04 * 288)
    assert np.ptp(rest) < 0.01
    assert np.ptp(np.log(pressure)) > 0.4


def test_precipitation_is_the_hours_sum_and_fields_belong_to_their_hour(circulation, whole):
    _, run = whole
    after, fields = circulation.advance(run, 1)
    # Passing over a day leads where storing it does, but for rounding. Convection
    # amplifies that, to a tenth of a day's change here; other weather would be 1.4 of it away.
    passed = circulation.spin_up(run, 1)
    ends = [np.asarray(r.state.dynamics.log_surface_pressure) for r in (run, after, passed)]
    assert np.linalg.norm(ends[2] - ends[1]) < 0.3 * np.linalg.norm(ends[1] - ends[0])
    assert passed.state.time == after.state.time
    assert {f.shape[:2] for f in fields.values()} == {(1, 24)}
    # To look at the first hour takes a step of it alone; two programs round differently.
    for name, seen in circulation.look(run).items():
        first = np.asarray(fields[name])[:, :1]
        apart = np.nanmax(np.abs(np.asarray(seen) - first)) / np.nanstd(first)
        assert apart < 1e-4, name

    # JCM's own hourly means, through its public averaging, and its states at the hours' ends.
    import jax

    first = jax.tree_util.tree_map(lambda a: a[0], run.state)
    arguments = {
        "total_time": 1,
        "initial_physics_state": first.physics,
        "initial_time": first.time,
        "initial_step": first.step,
    }
    _, means = circulation.model.run_from_state_with_carry(
        first.dynamics,
        circulation.forcing,
        save_interval=1 / 24,
        output_averages=True,
        **arguments,
    )
    rate = np.asarray(means.physics["surface_exchange"].precipitation)  # kg m⁻² s⁻¹
    theirs = 3.6 * rate.swapaxes(-1, -2)[:, ::-1]  # m an hour, canonical
    ours = np.asarray(fields["total_precipitation"])[0]
    ours = np.concatenate([ours, np.asarray(after.precipitation).swapaxes(-1, -2)[:, ::-1]])
    # The sum over (h − 1, h] stands at h: JCM's first mean is our second hour.
    # Two programs round differently, and rain sets in at a threshold: 1e-7 m is 0.1 µm.
    np.testing.assert_allclose(ours[1:7], theirs[:6], rtol=1e-3, atol=1e-7)
    # After half a day a point or two may be on the threshold's other side, and their neighbours
    # follow; an hour too early, it rains otherwise at most points where it rains.
    wet = theirs > 1e-6
    same, early = (
        np.isclose(hours, theirs, rtol=1e-3, atol=1e-7)[wet].mean()
        for hours in (ours[1:], ours[:-1])
    )
    assert same > 0.8  # the compiler's options make it 0.89 or more
    assert early < 0.2
    assert wet[-1].sum() > 50
    assert ours.max() > 1e-5

    # Hour 0 is the state it set out from.
    state = circulation.model.dycore.to_physics_state(first.dynamics)
    low = np.asarray(state.u_wind[-1]).T[::-1]
    got = np.asarray(fields["u_component_of_wind"])[0, 0, -1]  # 1000 hPa: held from the lowest
    under = np.asarray(state.normalized_surface_pressure).T[::-1] * 0.95 < 1.0
    np.testing.assert_allclose(got[under], low[under], atol=1e-4)

    sea = np.asarray(fields["sea_surface_temperature"])[0]
    land = circulation.static()["land_sea_mask"] >= 0.5
    np.testing.assert_array_equal(np.isnan(sea), np.broadcast_to(land, sea.shape))
    assert np.nanmin(sea) >= 271.45


SCRIPT = """
import sys
from appa.data.planet.simulation import Plan, simulate
simulate(sys.argv[1], Plan(members=1, days=3, spin_up=1))
"""


@pytest.mark.slow
def test_killed_it_goes_on_and_gives_the_same(tmp_path, cache, circulation, whole):
    r"""Another process begins it, and is killed; this one goes on."""
    env = {**os.environ, **cache}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "killed.zarr")]
    process = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    marker = tmp_path / "killed.zarr.partial" / ".appa" / "done" / "temperature" / "0"
    deadline = time.monotonic() + 400
    while not marker.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert marker.exists(), "it was killed before the first block was written"
    assert not (tmp_path / "killed.zarr").exists(), "it was finished before it could be killed"
    with pytest.raises(UnfinishedStoreError, match="of 3 blocks"):
        open_store(tmp_path / "killed.zarr")

    written = {p: p.stat().st_mtime_ns for p in marker.parents[3].glob("temperature/c/*/*/*/*")}
    simulate(tmp_path / "killed.zarr", PLAN, circulation=circulation)

    killed, plain = open_store(tmp_path / "killed.zarr"), open_store(whole[0])
    xr.testing.assert_identical(killed.load(), plain.load())
    # At most the block that was under way was written again.
    kept = [
        p
        for p, stamp in written.items()
        if (tmp_path / "killed.zarr" / p.relative_to(marker.parents[3])).stat().st_mtime_ns == stamp
    ]
    assert len(kept) >= len(written) - 2

    assert list(np.unique(plain["trajectory"])) == [2021]


def test_a_plan_that_differs_does_not_continue_another(tmp_path):
    pytest.importorskip("jcm", reason="the extra 'planet' is not installed")
    from appa.data.planet.simulation import _template
    from appa.data.writing import StoreWriter

    static = {name: np.zeros(GRID.shape) for name in ("land_sea_mask", "geopotential_at_surface")}
    plan = Plan(days=1, seed=4)
    with StoreWriter(tmp_path / "a.zarr", _template(plan, static), block=24, plan={"seed": 4}):
        pass
    with pytest.raises(Exception, match="another plan"):
        simulate(tmp_path / "a.zarr", Plan(days=1, seed=5))
