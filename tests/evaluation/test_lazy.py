r"""Runs in a store are read a part at a time, and once: counted by an array that is read."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import appa.data.reduction as reduction
import appa.evaluation.ensembles as ensembles
from appa.data.grids import Grid
from appa.evaluation.ensembles import matched
from appa.evaluation.forecasts import open_runs
from appa.evaluation.innovations import hour_states
from appa.evaluation.partition import lazily, with_dimension
from appa.evaluation.report import gather
from appa.evaluation.report_runs import opened
from appa.evaluation.scores import evaluate
from appa.tasks.analyses import past_latents

from ..observations.small_space import make_space
from . import worlds
from .stored import stored

GRID = Grid("gaussian", 8, 16)
HOURS, LEVELS = 12, [500, 850]
POINTS = GRID.latitudes * GRID.longitudes
CHUNKS = [None, {"time": 3, "level": 2}, {"time": 12, "latitude": 4}]


def world(hours: int = HOURS, day: int = 21) -> xr.Dataset:
    rng = np.random.default_rng(day)
    coords = {"time": pd.date_range(f"2021-03-{day}", periods=hours, freq="h"), "level": LEVELS}
    coords |= {"latitude": GRID.latitude, "longitude": GRID.longitude}
    dims = ("time", "level", "latitude", "longitude")
    upper = rng.normal(250, 5, (hours, 2, *GRID.shape)).astype("float32")
    surface = rng.normal(280, 5, (hours, *GRID.shape)).astype("float32")
    data = {"temperature": (dims, upper), "2m_temperature": ((dims[0], *dims[2:]), surface)}
    return xr.Dataset(data, coords)


def test_what_is_written_here_is_read_by_xarray():
    r"""The arrays of these tests are what xarray opens: to give them a dimension, or to join them,
    it reads them whole."""
    ds, reads = stored(world())
    assert not ds["temperature"].variable._in_memory
    ds.expand_dims("member")
    assert reads["temperature"] == [HOURS * 2 * POINTS]
    reads["temperature"].clear()
    xr.concat([ds, ds], "time")
    assert reads["temperature"] == [HOURS * 2 * POINTS] * 2


@pytest.mark.parametrize("chunks", CHUNKS)
def test_states_without_members(monkeypatch, chunks):
    r"""A dimension more reads nothing; scoring reads each value once, and a block at most."""
    truth = world()
    run = truth + xr.DataArray(np.random.default_rng(0).normal(size=HOURS), dims="time")
    run = run.astype("float32").transpose(*truth["temperature"].dims)
    expected = evaluate(run, truth)
    ds, reads = stored(run, chunks)
    found, _ = matched(ds, truth)
    assert found["temperature"].dims == ("member", "time", "level", "latitude", "longitude")
    assert not any(reads.values())
    block = 4 * 3 * 2 * POINTS  # bytes of three hours of the larger variable
    monkeypatch.setattr(reduction, "BLOCK_BYTES", block)
    monkeypatch.setattr("appa.evaluation.partition.BLOCK_BYTES", block)
    monkeypatch.setattr(ensembles, "MOST", 4 * block)
    xr.testing.assert_allclose(evaluate(ds, truth, workers=1), expected, rtol=1e-12)
    for name, sizes in reads.items():
        assert sum(sizes) == truth[name].size
        assert max(sizes) <= (4 if chunks else 1) * block / 4
        assert max(sizes) < truth[name].size or chunks == CHUNKS[-1]
    # in memory, and Dask arrays, as they are
    assert with_dimension(run, "member")["temperature"].chunks is None
    assert lazily(run.chunk(time=5))["temperature"].chunks[0] == (5, 5, 2)


@pytest.mark.parametrize("chunks", CHUNKS)
def test_runs_one_after_another(monkeypatch, chunks):
    r"""Runs of three dates are opened as one without being read; the page reads one block after
    another."""
    truth = xr.concat([world(day=day) for day in (21, 23, 25)], "time")
    reads, runs = [], []
    for k in range(3):
        part = truth.isel(time=slice(HOURS * k, HOURS * (k + 1)))
        part = xr.concat([part - 1, part + 2], "member").assign_attrs(task="reanalysis")
        ds, log = stored(part, chunks and {"member": 1} | chunks)
        runs.append(ds)
        reads.append(log)
    monkeypatch.setattr("appa.evaluation.report_runs.open_runs", lambda _: runs)
    block = 2 * 4 * 3 * 2 * POINTS
    monkeypatch.setattr("appa.evaluation.partition.BLOCK_BYTES", block)
    joined = opened("runs")
    assert joined["temperature"].shape == (2, 3 * HOURS, 2, *GRID.shape)
    assert not any(size for log in reads for size in log.values())
    part = joined["temperature"].isel(time=slice(HOURS, HOURS + 3)).load(scheduler="synchronous")
    np.testing.assert_array_equal(part, runs[1]["temperature"].isel(time=slice(3)))
    assert [sum(log["temperature"]) for log in reads][::2] == [0, 0]
    for log in reads:
        log["temperature"].clear()
    found = gather("runs", truth, regions=["global"], variables=["2m_temperature"], workers=1)
    skill = found.pooled()["run"]["skill"].item()
    assert skill == pytest.approx(0.5, rel=1e-4)
    whole = 2 * HOURS * POINTS  # of a run, by chunks of one member
    assert all(max(log["2m_temperature"]) <= whole / 2 for log in reads)
    assert not any(log["temperature"] for log in reads)


def test_hours_of_innovations():
    r"""Of states without members, an hour is read at a time."""
    space = make_space(GRID, ("2m_temperature",))
    ds, reads = stored(world()[["2m_temperature"]])
    for k, states in enumerate(hour_states(ds, space)):
        assert states.shape[:2] == (1, 1)
        assert reads["2m_temperature"] == [POINTS] * (k + 1)


def test_a_forecast_goes_on_from_the_end_of_a_store():
    r"""Of a store without members the last hours are read."""
    times = np.arange(40) * np.timedelta64(1, "h") + np.datetime64("2004-03-01", "ns")
    states = worlds.dataset(np.random.default_rng(0).normal(size=(40, 4, 8, 16)), times)
    ds, reads = stored(states, {"time": 4})
    z, hours = past_latents(worlds.untrained(), ds, 4)
    assert z.shape[:2] == (1, 4)
    np.testing.assert_array_equal(hours, times[-4:])
    assert sum(reads["2m_temperature"]) == 4 * POINTS


def test_one_forecast_with_two_times():
    r"""A dataset with lead times and one initial time is a run, and is not read to be one."""
    ds = world().rename(time="lead_time").assign_coords(
        lead_time=np.arange(HOURS) * np.timedelta64(1, "h"),
        init_time=np.datetime64("2021-03-21", "ns"),
    )  # fmt: skip
    ds, reads = stored(ds)
    (run,) = open_runs(ds)
    assert run.sizes["time"] == HOURS
    assert not any(reads.values())
