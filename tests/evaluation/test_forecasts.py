r"""Forecasts of several dates, whose errors at every lead time are known."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from appa.data.grids import Grid
from appa.errors import DataError, StoreError
from appa.evaluation.baselines import persisted
from appa.evaluation.comparison import compare
from appa.evaluation.forecasts import issued, open_runs, run_averages
from appa.evaluation.partition import active_client, boxes
from appa.evaluation.scores import evaluate

GRID = Grid("equiangular-cells", 8, 16)
DATES = pd.to_datetime(["2021-03-21T00", "2021-03-25T12", "2021-03-30T00"])
DIMS = ("time", "level", "latitude", "longitude")


@pytest.fixture(scope="module")
def truth() -> xr.Dataset:
    rng = np.random.default_rng(0)
    times = pd.date_range("2021-03-21", "2021-04-02", freq="h")
    coords = {"time": times, "level": [500, 850]}
    coords |= {"latitude": GRID.latitude, "longitude": GRID.longitude}
    values = rng.normal(250, 5, (len(times), 2, *GRID.shape)).astype("float32")
    ds = xr.Dataset({"temperature": (DIMS, values)}, coords)
    ds["temperature"].attrs["units"] = "K"
    return ds


def forecast(truth: xr.Dataset, date: pd.Timestamp, leads: int = 4) -> xr.Dataset:
    r"""Two members, at τ hours τ + 1 and τ − 1 above the truth: skill τ, spread √2, CRPS τ − 1."""
    times = date + pd.to_timedelta(np.arange(1, leads + 1), "h")
    lead = xr.DataArray(np.arange(1.0, leads + 1), {"time": times})
    sign = xr.DataArray([1.0, -1.0], {"member": [0, 1]})
    ds = truth[["temperature"]].sel(time=times) + lead + sign
    return ds.astype("float32").transpose("member", *DIMS).assign_attrs(task="forecast")


def check(scores: xr.Dataset, leads: int = 4) -> None:
    assert scores["skill"].dims == ("region", "lead_time", "channel")
    tau = np.arange(1.0, leads + 1)[:, None] * np.ones(2)
    np.testing.assert_array_equal(scores["lead_time"], tau[:, 0])
    at = scores.isel(region=0)
    np.testing.assert_allclose(at["skill"], tau, rtol=1e-4)
    np.testing.assert_allclose(at["spread"], math.sqrt(2), rtol=1e-4)
    np.testing.assert_allclose(at["ratio"], math.sqrt(1.5 * 2) / tau, rtol=1e-4)
    np.testing.assert_allclose(at["crps"], tau - 1, atol=1e-3)


def test_by_lead_time(truth):
    runs = [forecast(truth, date) for date in DATES]
    assert [issued(run) for run in runs] == [np.datetime64(d, "ns") for d in DATES]
    scores = evaluate(runs, truth)
    check(scores)
    assert scores["lead_time"].attrs["standard_name"] == "forecast_period"
    assert scores["variable"].values.tolist() == ["temperature"] * 2
    check(evaluate(runs[0], truth, by="lead_time"))
    one = evaluate(runs[0], truth)  # hour by hour, which are told by lead time too
    np.testing.assert_array_equal(one["lead_time"], [1, 2, 3, 4])
    assert one["skill"].dims == ("region", "time", "channel")
    every = evaluate(runs, truth, by="time")
    assert every["init_time"].values.tolist() == [d.value for d in DATES]
    total = evaluate(runs, truth, by="all").isel(region=0)
    np.testing.assert_allclose(total["skill"], math.sqrt(30 / 4), rtol=1e-4)


def test_lead_times_and_points_that_are_missing(truth):
    r"""A date without the third hour, one with half of the globe undefined, whose errors are 10
    times as large: weights of 1, 1 and ½."""
    runs = [forecast(truth, date) for date in DATES]
    runs[1] = runs[1].isel(time=[0, 1, 3]).assign_attrs(forecast_reference_time=str(DATES[1]))
    departures = runs[2] - truth
    half = xr.DataArray(GRID.latitude > 0, dims="latitude")
    runs[2] = (truth + 10 * departures).where(half).transpose("member", *DIMS)
    runs[2] = runs[2].astype("float32").assign_attrs(task="forecast")
    with pytest.warns(UserWarning, match="50 % of t500, and 1 more, is undefined"):
        skill = evaluate(runs, truth)["skill"].isel(region=0, channel=0)
    tau, share = np.arange(1, 5), np.array([2, 2, 1, 2])
    np.testing.assert_allclose(skill, tau * np.sqrt((share + 50) / (share + 0.5)), rtol=1e-4)


def test_stores(truth, tmp_path):
    r"""As paths, a pattern, in WeatherBench's layout, in any chunks and order."""
    runs = [forecast(truth, date) for date in DATES]
    chunks = [{"member": 1, "time": 4}, {"latitude": 3, "longitude": 5}, {"level": 1, "time": 1}]
    for k, (run, chunk) in enumerate(zip(runs, chunks, strict=True)):
        run = run.isel(latitude=slice(None, None, -1)) if k == 1 else run
        run.chunk(chunk).to_zarr(tmp_path / f"{k}.zarr", zarr_format=2 + k % 2, consolidated=False)
    (tmp_path / "3.zarr.partial").mkdir()
    check(evaluate(f"{tmp_path}/*.zarr*", truth))
    check(evaluate(f"{tmp_path}/0.zarr,{tmp_path}/2.zarr", truth))

    parts = []
    for date, run in zip(DATES, runs, strict=True):
        lead = run["time"].values - np.datetime64(date, "ns")
        run = run.assign_coords(time=lead).rename(time="prediction_timedelta", member="number")
        parts.append(run.expand_dims(time=[date]))
    xr.concat(parts, "time").drop_attrs().to_netcdf(tmp_path / "all.nc")
    check(evaluate(tmp_path / "all.nc", truth))
    scalar = parts[0].isel(time=0)  # one date
    assert issued(open_runs(scalar)[0]) == np.datetime64(DATES[0], "ns")

    # files of one store are no runs
    for k in range(2):
        truth.isel(time=slice(24 * k, 24 * k + 24)).to_netcdf(tmp_path / f"part{k}.nc")
    (whole,) = open_runs(f"{tmp_path}/part*.nc")
    assert whole.sizes["time"] == 48
    with pytest.raises(StoreError, match="no run matches"):
        open_runs(f"{tmp_path}/none*.zarr")


def test_persistence(truth):
    r"""Of white noise: its error is √2 of the deviation, at each lead time."""
    runs = [persisted(truth, forecast(truth, date)) for date in DATES]
    scores = evaluate(runs, truth).isel(region=0)
    assert scores.sizes["lead_time"] == 4
    error = 5 / math.sqrt(3 * 4 * 8 * 16)
    np.testing.assert_allclose(scores["skill"].mean(), 5 * math.sqrt(2), rtol=error)
    with pytest.raises(DataError, match="is for forecasts"):
        persisted(truth, truth)


def test_runs_that_do_not_fit(truth):
    runs = [forecast(truth, date) for date in DATES]
    with pytest.raises(DataError, match="2 forecasts are issued at 2021-03-21T00"):
        evaluate([runs[0], runs[0]], truth)
    with pytest.raises(DataError, match="1 of 2 runs are forecasts"):
        evaluate([runs[0], runs[1].drop_attrs()], truth)
    with pytest.raises(DataError, match="have 1, 2 members"):
        evaluate([runs[0], runs[1].isel(member=[0])], truth)
    with pytest.raises(DataError, match="2021-03-21T01 is in two of the 2 runs"):
        evaluate([runs[0].drop_attrs(), runs[0].drop_attrs()], truth)
    with pytest.raises(DataError, match="give start"):
        evaluate(runs[0].drop_attrs(), truth, by="lead_time")


# ---------------------------------------------------------------- differences


def means(dates: int, seed: int, gap: float, pairs: int = 1) -> list[xr.Dataset]:
    r"""Squared errors of two runs at three lead times: dates that are hard for both, noise that is
    common to a date's lead times, and a gap at the last lead time."""
    rng = np.random.default_rng(seed)
    hard, found = rng.gamma(4, size=(dates, 1, pairs)), []
    names = [f"t{k}" for k in range(pairs)]
    for k in range(2):
        noise = rng.normal(size=(dates, 1, pairs)) * 0.3
        value = 10 + hard + noise + k * np.array([0, 0, gap])[:, None]
        dims = ("region", "init_time", "lead_time", "channel")
        data = {n: (dims, value[None]) for n in ("squared_error", "variance", "crps")}
        data |= {n: (dims, np.ones_like(value)[None]) for n in ("weight", "share")}
        coords = {
            "region": ["global"],
            "init_time": pd.date_range("2021-01-01", periods=dates, freq="5D"),
            "lead_time": [6.0, 12.0, 24.0],
            "channel": names,
            "variable": ("channel", ["temperature"] * pairs),
            "level": ("channel", np.full(pairs, 500.0)),
            "units": ("channel", ["K"] * pairs),
        }
        found.append(xr.Dataset(data, coords, {"members": 2}))
    return found


def test_dates_are_the_blocks():
    r"""A difference at the lead time that has one; of those that have none, 5 % as meant, though
    lead times of a date are not independent."""
    found = compare(*means(12, 0, gap=1.0)).isel(region=0, channel=0)
    assert found.attrs["blocks"] == 12
    assert found["crps_real"].values.tolist()[-1]
    assert float(found["crps_difference"][-1]) == pytest.approx(1, abs=5 * 0.3 * math.sqrt(2 / 12))
    share = compare(*means(12, 1, 0.0, pairs=300), resamples=400)["crps_real"].mean()
    assert float(share) == pytest.approx(0.05, abs=0.015 + 3 * math.sqrt(0.05 * 0.95 / 300))
    few = compare(*means(12, 0, gap=1.0), days=10)  # two dates a block
    assert few.attrs["blocks"] == 6
    with pytest.raises(DataError, match="forecasts are compared with forecasts"):
        compare(means(6, 0, 0.0)[0], means(6, 0, 0.0)[0].isel(init_time=0))


def test_dates_without_a_lead_time_are_of_no_pair():
    r"""One system lacks the last lead time of 7 of 12 dates, at which the other errs by 100 more:
    the difference is that of the 5 others, which are too few."""
    a, b = means(12, 0, gap=1.0)
    late = (b["init_time"] > b["init_time"][4]) & (b["lead_time"] == 24)
    b["crps"] = xr.where(late, b["crps"] + 100, b["crps"])
    lacking = a.where(~late).assign(weight=a["weight"].where(~late, 0.0))
    found = compare(lacking, b, resamples=200).isel(region=0, channel=0)
    wanted = (b["crps"] - a["crps"]).isel(init_time=slice(5)).mean("init_time").squeeze()
    difference = found["crps_difference"].sel(lead_time=24)
    assert float(difference) == pytest.approx(float(wanted.sel(lead_time=24)))
    assert not found["crps_real"].sel(lead_time=24)
    alone = compare(*(part.sel(lead_time=[24]) for part in (lacking, b)), resamples=200)
    assert alone.attrs["blocks"] == 5
    with pytest.raises(DataError, match="nowhere defined"):
        compare(a.assign(weight=0 * a["weight"]), b)


def test_analyses_of_several_dates(truth):
    r"""Runs that begin at noon are blocks, though their hours are of two days."""
    runs = []
    for day in (21, 23, 25, 27):
        part = truth.sel(time=slice(f"2021-03-{day}T12", f"2021-03-{day + 1}T11"))
        runs.append(part[["temperature"]] + 2.0)
    scores = evaluate(runs, truth)
    assert scores.sizes["time"] == 96
    np.testing.assert_allclose(scores["skill"], 2, rtol=1e-4)
    a = run_averages(runs, truth)
    assert compare(a, a, resamples=10).attrs["blocks"] == 4
    assert compare(*[a.drop_vars("start")] * 2, resamples=10).attrs["blocks"] == 8


def test_whichever_comes_first(truth):
    r"""Three runs from noon beside one store of the same hours, or beside six runs of half the
    length: three dates, and differences of the other sign."""
    days = [f"2021-03-{day}T12" for day in (21, 23, 25)]
    whole = [truth[["temperature"]].sel(time=pd.date_range(d, periods=24, freq="h")) for d in days]
    halves = [run.isel(time=part) for run in whole for part in (slice(12), slice(12, None))]
    rng = np.random.default_rng(0)
    runs, others = (
        [run + size * rng.normal(size=run["temperature"].shape) for run in parts]
        for parts, size in ((whole, 1.0), (halves, 2.0))
    )
    a, b = run_averages(runs, truth), run_averages(others, truth)
    for other in (b.drop_vars("start"), b):
        one, two = (compare(*pair, resamples=50) for pair in ((a, other), (other, a)))
        assert one.attrs == two.attrs
        assert (one.attrs["blocks"], one.attrs["dates"]) == (3, 3)
        for name in ("skill", "crps"):
            for x, y in (("difference", "difference"), ("low", "high"), ("high", "low")):
                np.testing.assert_allclose(one[f"{name}_{x}"], -two[f"{name}_{y}"], rtol=1e-12)
            assert one[f"{name}_real"].equals(two[f"{name}_real"])


# ---------------------------------------------------------------- parts


@pytest.mark.parametrize(
    ("sizes", "chunks", "box"),
    [
        # small: all of it
        ((24, 13, 8, 16), (1, 1, 8, 16), (24, 13, 8, 16)),
        # an hour of a level of 100 kB: 10 of them in a MB
        ((24, 13, 100, 250), (1, 1, 100, 250), (1, 10, 100, 250)),
        # tiles with all hours of 400 kB: two
        ((1000, 1, 100, 250), (1000, 1, 10, 10), (1000, 1, 10, 20)),
        # a chunk of 8 MB: cut in time to 4 MB, not grown again
        ((40, 2, 100, 250), (40, 2, 100, 250), (20, 2, 100, 250)),
        # an hour of a level of 16 MB: cut in rows
        ((4, 2, 2000, 2000), (1, 1, 2000, 2000), (1, 1, 500, 2000)),
    ],
)
def test_boxes(sizes, chunks, box):
    dims = ("time", "level", "latitude", "longitude")
    sizes, chunks = (dict(zip(dims, v, strict=True)) for v in (sizes, chunks))
    found = boxes(sizes, chunks, 4, 10**6, 4 * 10**6)
    assert tuple(found[dim] for dim in dims) == box


def test_an_active_client(truth, tmp_path):
    r"""Lazy stores are scored by its workers; what is in memory stays."""
    from dask.distributed import Client

    run = forecast(truth, DATES[0])
    run.to_zarr(tmp_path / "run.zarr", zarr_format=3, consolidated=False)
    truth.to_zarr(tmp_path / "truth.zarr", zarr_format=3, consolidated=False)
    assert active_client() is None
    options = {"processes": False, "n_workers": 1, "dashboard_address": None}
    with Client(**options) as client:  # type: ignore[arg-type]
        assert active_client(open_runs(tmp_path / "run.zarr")) is client
        assert active_client(np.zeros(2**23)) is None
        check(evaluate(tmp_path / "run.zarr", tmp_path / "truth.zarr", by="lead_time"))
        held = client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.computations))
        assert held > 0
    assert active_client() is None
