r"""`appa reanalysis`, `filter`, `forecast` and `plan`, as a user runs them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
import xarray as xr
from typer.testing import CliRunner

from appa.cli import assimilate, plan
from appa.errors import AppaError, ConfigError, DataError, StoreError

from ..tasks import small

START, HOURS = "2001-01-03T00", 6
QUICK = ["--steps", 3, "--iterations", 2, "--representation", "none", "--seed", 3]


def application() -> typer.Typer:
    app = typer.Typer()
    assimilate.register(app)
    app.add_typer(plan.app, name="plan")
    return app


def run(*args) -> str:
    result = CliRunner().invoke(application(), [str(a) for a in args])
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    r"""A model with random weights, a table of observations with faults, and a store."""
    folder = tmp_path_factory.mktemp("assimilate")
    (folder / "model").mkdir()
    small.write_model(folder / "model", denoiser=True)
    small.write_states(folder / "states.zarr")
    rows = [
        (f"2001-01-03T{hour:02d}:00", 10.0 * k - 40, 30.0 * k, "2m_temperature", 280.0 + k, 1.0)
        for hour in range(HOURS)
        for k in range(8)
    ]
    rows[3] = (*rows[3][:4], np.nan, 1.0)
    rows[5] = (rows[5][0], 95.0, *rows[5][2:])
    rows.append(("2001-02-01T00:00", *rows[0][1:]))
    names = ["time", "latitude", "longitude", "variable", "value", "error"]
    pd.DataFrame(rows, columns=names).to_csv(folder / "obs.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def analysis(folder) -> Path:
    out = folder / "analysis.zarr"
    args = ["--start", START, "--hours", HOURS, "--members", 3, "--out", out, *QUICK]
    told = run("reanalysis", folder / "model", folder / "obs.csv", *args)
    assert re.search(r"not a number +1 ", told)
    assert re.search(r"outside the period +1 ", told)
    assert "46 observations in 6 of 6 hours, of " in told
    assert f"xarray.open_zarr('{out}')" in told
    return out


def test_reanalysis(folder, analysis):
    with xr.open_zarr(analysis) as ds:
        assert dict(ds.sizes)["member"] == 3
        assert (
            ds["time"].values == np.datetime64(START) + np.arange(6) * np.timedelta64(1, "h")
        ).all()
        assert set(ds.data_vars) == {*small.SURFACE, *small.ATMOSPHERIC, "latents"}
        assert ds.attrs["seed"] == 3
        assert '"steps": 3' in ds.attrs["settings"]
        assert not np.allclose(ds["2m_temperature"][0], ds["2m_temperature"][1])
    assert not Path(f"{analysis}.run").exists()
    assert not Path(f"{analysis}.partial").exists()


def test_the_same_seed_is_the_same_and_batches_do_not_matter(folder, analysis, tmp_path):
    args = ["--start", START, "--hours", HOURS, "--members", 2, "--batch", 1, *QUICK]
    out = tmp_path / "again.nc"
    told = run("reanalysis", folder / "model", folder / "obs.csv", *args, "--out", out)
    assert "xarray.open_dataset" in told
    with xr.open_zarr(analysis) as first, xr.open_dataset(out) as second:
        for name in ("2m_temperature", "temperature", "latents"):
            a, b = first[name].isel(member=slice(0, 2)), second[name]
            np.testing.assert_allclose(a, b, atol=1e-4 * float(a.std()))


def test_filter(folder, analysis, tmp_path):
    r"""The last hour of the same draw, with its window or without, and no more than asked for."""
    args = ["--start", START, "--hours", HOURS, "--members", 3, *QUICK]
    given = ["--variables", "temperature", "--levels", 850, "--no-latents"]
    common = [folder / "model", folder / "obs.csv", *args, *given]
    run("filter", *common, "--out", tmp_path / "last.zarr")
    window = ["--window-out", tmp_path / "window.zarr"]
    run("filter", *common, "--out", tmp_path / "again.zarr", *window)
    with (
        xr.open_zarr(analysis) as whole,
        xr.open_zarr(tmp_path / "last.zarr") as last,
        xr.open_zarr(tmp_path / "again.zarr") as again,
        xr.open_zarr(tmp_path / "window.zarr") as window,
    ):
        for ds in (last, again):
            assert list(ds.data_vars) == ["temperature"]
            expected = whole["temperature"].sel(level=[850]).isel(time=[-1])
            np.testing.assert_allclose(ds["temperature"], expected, rtol=1e-5)
            assert ds.attrs["task"] == "filter"
        assert window.sizes["time"] == HOURS


@pytest.mark.parametrize("how", [[], ["--all-at-once"], ["--new", 1]])
def test_forecast(folder, analysis, tmp_path, how):
    out = tmp_path / "forecast.zarr"
    run("forecast", folder / "model", analysis, "--hours", 5, "--out", out, *QUICK, *how)
    with xr.open_zarr(out) as ds:
        assert ds.sizes["member"] == 3
        after = np.datetime64(START) + np.arange(HOURS, HOURS + 5) * np.timedelta64(1, "h")
        assert (ds["time"].values == after).all()
        assert np.isfinite(ds["2m_temperature"]).all()


def test_forecast_from_states(folder, tmp_path):
    out = tmp_path / "forecast.zarr"
    states = folder / "states.zarr"
    args = ["--hours", 2, "--members", 2, "--at", "2001-01-01T08", "--out", out, *QUICK]
    run("forecast", folder / "model", states, *args)
    with xr.open_zarr(out) as ds:
        assert ds.sizes["member"] == 2
        assert ds["time"].values[0] == np.datetime64("2001-01-01T09")
    args = ["--hours", 2, "--at", "2009-01-01T00", "--out", tmp_path / "x.zarr"]
    with pytest.raises(DataError, match="no hour 2009-01-01T00 to go on from"):
        run("forecast", folder / "model", states, *args)


@pytest.mark.parametrize("task", ["reanalysis", "filter", "forecast"])
def test_plan(folder, task):
    told = run("plan", task, folder / "model", "--hours", 6, "--members", 2, *QUICK[:4])
    for row in ("denoiser calls", "decodes", "memory", "time", "output"):
        assert re.search(f"^{row} +", told, re.M), row
    assert "time" not in run("plan", task, folder / "model", "--no-measure")


def test_plan_of_observations(folder):
    r"""Hours without observations are not decoded, but for the output."""
    args = ["plan", "reanalysis", folder / "model", "--hours", 4, "--members", 1, "--no-measure"]
    args += ["--steps", 1, "--iterations", 1, "--mode", "composed"]
    obs = [folder / "obs.csv", "--start", "2001-01-03T02"]
    assert re.search(r"decodes +8 forward, 12 backward", run(*args, *obs))
    assert re.search(r"decodes +6 forward, 6 backward", run(*args, "--share", 0.5))
    assert re.search(r"decodes +4 forward, 0 backward", run(*args, "--share", 0))


def test_mistakes_are_named(folder, analysis, tmp_path):
    model, obs = folder / "model", folder / "obs.csv"
    common = ["--start", START, "--hours", HOURS, "--members", 1]
    out = ["--out", tmp_path / "x.zarr"]
    with pytest.raises(StoreError, match="exists already"):
        run("reanalysis", model, obs, *common, "--out", analysis)
    with pytest.raises(StoreError, match=r"name a \.zarr or \.nc"):
        run("reanalysis", model, obs, *common, "--out", tmp_path / "x.grib")
    with pytest.raises(AppaError, match=r"not a number"):
        run("reanalysis", model, obs, *common, *out, "--strict")
    with pytest.raises(ConfigError, match="did you mean 'paper'"):
        run("reanalysis", model, obs, *common, *out, "--setting", "papr")
    with pytest.raises(ConfigError, match="sampler"):
        run("reanalysis", model, obs, *common, *out, "--sampler", "heun")
    with pytest.raises(DataError, match="did you mean 'temperature'"):
        run("reanalysis", model, obs, *common, *out, *QUICK, "--variables", "temprature")
    with pytest.raises(DataError, match="choose another period"):
        run("reanalysis", model, obs, "--start", "2005-01-01T00", *out)
    assert list(tmp_path.iterdir()) == []


def test_help_has_examples():
    for words in (
        ["reanalysis"],
        ["filter"],
        ["forecast"],
        *(["plan", task] for task in ("reanalysis", "filter", "forecast")),
    ):
        told = re.sub(r"\s+", " ", run(*words, "--help"))
        assert f"Example: appa {' '.join(words)} " in told
        for option in ("--setting", "--steps", "--no-residual", "--variables", "--members"):
            assert option in told


# ---------------------------------------------------------------- a kill

KILLED = """
import sys
from typer.testing import CliRunner
from appa.tasks.resuming import RunState
from tests.cli.test_assimilate import run

RunState.__init__.__defaults__ = (0.0,)  # keep every step
run(*sys.argv[1:])
"""


@pytest.mark.slow
def test_killed_it_goes_on(folder, tmp_path):
    r"""Killed in the middle of a draw, a run ends with what it would have ended with."""
    args = ["reanalysis", folder / "model", folder / "obs.csv", "--start", START, "--hours", HOURS]
    args += ["--members", 2, *QUICK, "--steps", 10, "--batch", 2]
    whole, out = tmp_path / "whole.zarr", tmp_path / "killed.zarr"
    run(*args, "--out", whole)

    root = Path(__file__).parents[2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    words = [str(a) for a in [*args, "--out", out]]
    process = subprocess.Popen([sys.executable, "-c", KILLED, *words], cwd=root, env=environment)
    until = time.monotonic() + 60
    while not list(Path(f"{out}.run").rglob("window-1/step-*")):
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not out.exists()

    told = run(*args, "--out", out)
    assert "going on with it" in told
    assert "is complete" in told
    with xr.open_zarr(out) as a, xr.open_zarr(whole) as b:
        xr.testing.assert_equal(a, b)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["killed.zarr", "whole.zarr"]
