r"""Exports, read as WeatherBench-X's loaders read them and scored by its formulas.

The library itself is on no package index; what is here was compared with its source of 2026.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import typer
import xarray as xr
from typer.testing import CliRunner

from appa.cli import export as command
from appa.data.grids import Grid
from appa.errors import DataError, StoreError
from appa.evaluation.scores import evaluate
from appa.interop.weatherbench import export

GRID = Grid("equiangular", 9, 16)
INIT = np.array(["2021-01-01", "2021-01-03", "2021-01-06"], "datetime64[ns]")
LEAD = np.array([1, 6], "timedelta64[h]").astype("timedelta64[ns]")
MEMBERS = 4


def states(times, seed: int, members: int | None = None) -> xr.Dataset:
    rng = np.random.default_rng(seed)
    lead = (("member", "time") if members else ("time",)), (members or 1, len(times))
    dims, shape = lead[0], lead[1] if members else lead[1][1:]
    space = ("latitude", "longitude")
    surface, levels = (rng.normal(size=(*shape, *k, *GRID.shape)).astype("f4") for k in ((), (2,)))
    coords = {"time": times, "level": [500, 850]}
    coords |= {"latitude": GRID.latitude, "longitude": GRID.longitude}
    return xr.Dataset(
        {
            "sea_surface_temperature": ((*dims, *space), surface),
            "temperature": ((*dims, "level", *space), levels),
        },
        coords,
    )


@pytest.fixture(scope="module")
def truth() -> xr.Dataset:
    ds = states(pd.date_range("2021-01-01", "2021-01-07", freq="h"), 9)
    ds["sea_surface_temperature"] = ds["sea_surface_temperature"].where(np.arange(16) % 3 > 0)
    return ds


@pytest.fixture(scope="module")
def runs() -> list[xr.Dataset]:
    runs = []
    for k, init in enumerate(INIT):
        times = pd.date_range(init, periods=7, freq="h")[1:]
        runs.append(states(times, k, MEMBERS).assign_attrs(task="forecast"))
    return runs


def loaded(path, **renamed: str) -> xr.Dataset:
    r"""What their loader of predictions does."""
    return xr.open_zarr(path).rename(renamed).sel(init_time=INIT, lead_time=LEAD).compute()


def weights(latitude: xr.DataArray) -> xr.DataArray:
    r"""Their areas: edges half way between latitudes, in increasing order, up to the poles."""
    phi = np.deg2rad(latitude.values[::-1])
    middle = (phi[1:] + phi[:-1]) / 2
    ends = max(phi[0] - (phi[1] - phi[0]) / 2, -np.pi / 2)
    edges = np.concatenate([[ends], middle, [-ends]])
    return latitude.copy(data=np.diff(np.sin(edges))[::-1])


def test_their_scores(runs, truth, tmp_path):
    r"""RMSE of the mean, root of the mean variance and fair CRPS by pairs, where the target is
    defined; their ratio follows from ours."""
    export(runs[::-1], tmp_path / "predictions.zarr")
    export(truth, tmp_path / "truth.zarr")
    names = {"time": "init_time", "prediction_timedelta": "lead_time"}
    p = loaded(tmp_path / "predictions.zarr", **names)
    target = xr.open_zarr(tmp_path / "truth.zarr").rename(time="valid_time")
    valid = xr.DataArray(INIT, {"init_time": INIT}) + xr.DataArray(LEAD, {"lead_time": LEAD})
    t = target.sel(valid_time=valid).compute()
    ours = evaluate(runs, truth).isel(region=0).sel(lead_time=[1, 6])

    dims = ("init_time", "latitude", "longitude")
    for name, channels in (("sea_surface_temperature", ["sst"]), ("temperature", ["t500", "t850"])):
        x, y = p[name].astype(float), t[name].astype(float)
        w = weights(y["latitude"]) * y.notnull()

        def mean(value, w=w):
            return ((value * w).sum(dims) / w.sum(dims)).values.reshape(2, -1)

        pairs = abs(x - x.rename(number="other")).sum(("number", "other"))
        crps = mean(abs(x - y).mean("number")) - 0.5 * mean(pairs / (MEMBERS * (MEMBERS - 1)))
        variance = mean(x.var("number", ddof=1))
        error = mean((x.mean("number") - y) ** 2)
        at = ours.sel(channel=channels)
        np.testing.assert_allclose(at["crps"], crps, atol=1e-6)
        np.testing.assert_allclose(at["skill"], np.sqrt(error), atol=1e-6)
        np.testing.assert_allclose(at["spread"], np.sqrt(variance), atol=1e-6)
        theirs = variance / (error - variance / MEMBERS)
        ratio = at["ratio"].values ** 2
        np.testing.assert_allclose(ratio * MEMBERS / (MEMBERS + 1 - ratio), theirs, rtol=1e-5)


def test_layout(runs, truth, tmp_path):
    export(runs, tmp_path / "ecmwf.zarr")
    export(runs, tmp_path / "plain.zarr", names="plain")
    ds = xr.open_zarr(tmp_path / "ecmwf.zarr")
    dims = ("time", "prediction_timedelta", "number", "level", "latitude", "longitude")
    assert ds["temperature"].dims == dims
    assert ds["temperature"].shape == (3, 6, MEMBERS, 2, *GRID.shape)
    assert ds["prediction_timedelta"].dtype == "timedelta64[ns]"
    assert ds["temperature"].attrs["units"] == "K"
    assert ds["level"].values.tolist() == [500, 850]
    for k, run in enumerate(runs):
        got = ds["temperature"].isel(time=k, prediction_timedelta=2, number=1).values
        np.testing.assert_array_equal(got, run["temperature"].isel(time=2, member=1))
    plain = xr.open_zarr(tmp_path / "plain.zarr")
    xr.testing.assert_equal(
        plain.compute(), ds.rename(time="init_time", prediction_timedelta="lead_time").compute()
    )
    both = [evaluate(source, truth, by="all") for source in (tmp_path / "plain.zarr", runs)]
    xr.testing.assert_allclose(*both, rtol=1e-6)


def test_analyses_and_missing_hours(runs, truth, tmp_path):
    analysis = runs[0].drop_attrs()
    export(analysis, tmp_path / "analysis.zarr", variables=["temperature"])
    ds = xr.open_zarr(tmp_path / "analysis.zarr")
    dims = ("time", "prediction_timedelta", "number", "level", "latitude", "longitude")
    assert ds["temperature"].transpose(*dims).shape == (6, 1, MEMBERS, 2, 9, 16)
    assert list(ds.data_vars) == ["temperature"]
    assert (ds["prediction_timedelta"] == np.timedelta64(0)).all()
    np.testing.assert_array_equal(ds["time"], analysis["time"])
    got = ds["temperature"].isel(prediction_timedelta=0).transpose("number", "time", ...)
    np.testing.assert_array_equal(got, analysis["temperature"])

    short = [runs[0], runs[1].isel(time=slice(3))]
    export(short, tmp_path / "short.zarr")
    values = xr.open_zarr(tmp_path / "short.zarr")["temperature"]
    undefined = values.isnull().all(("number", "level", "latitude", "longitude")).values
    np.testing.assert_array_equal(undefined, [[False] * 6, [False] * 3 + [True] * 3])


def test_errors(runs, truth, tmp_path):
    (tmp_path / "there.zarr").mkdir()
    with pytest.raises(StoreError, match="exists already"):
        export(runs, tmp_path / "there.zarr")
    with pytest.raises(StoreError, match=r"know a store by \.zarr"):
        export(runs, tmp_path / "out.nc")
    with pytest.raises(DataError, match="found 4 members"):
        export(runs[0], tmp_path / "out.zarr", kind="targets")
    with pytest.raises(DataError, match="differ in member"):
        export([runs[0], runs[1].isel(member=[0])], tmp_path / "out.zarr")
    with pytest.raises(DataError, match="have no 2m_temperature"):
        export(runs, tmp_path / "out.zarr", variables=["2m_temperature"])
    assert [path.name for path in tmp_path.iterdir()] == ["there.zarr"]


def test_command(runs, tmp_path):
    for k, run in enumerate(runs):
        run.to_netcdf(tmp_path / f"run{k}.nc")
    app = typer.Typer()
    command.register(app)
    out = tmp_path / "predictions.zarr"
    result = CliRunner().invoke(app, [f"{tmp_path}/run*.nc", str(out)], catch_exceptions=False)
    assert "time 3, prediction_timedelta 6" in result.output.replace("\n", "")
    assert xr.open_zarr(out).sizes["number"] == MEMBERS
