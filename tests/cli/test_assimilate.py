r"""`appa reanalysis`, `filter`, `forecast` and `plan`, as a user runs them."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import signal
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
import xarray as xr
from typer.testing import CliRunner

from appa.cli import assimilate, models, options, plan
from appa.errors import AppaError, ConfigError, DataError, StoreError
from appa.tasks.settings import OBSERVED

from ..processes import Process, command
from ..tasks import small

START, HOURS = "2001-01-03T00", 6
AHEAD = ["--steps", 3, "--iterations", 2, "--seed", 3]
QUICK = [*AHEAD, "--representation", "none"]


def application() -> typer.Typer:
    app = typer.Typer()
    assimilate.register(app)
    models.register(app)
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


OWN = """
import appa

@appa.observable("squared_temperature", units="K2", inputs=("2m_temperature",))
def square(t):
    return t**2
"""


def test_observables_of_ones_own(folder, tmp_path, registry):
    r"""From a file, here and in processes that draw; without it, they are not known."""
    table = pd.read_csv(folder / "obs.csv").dropna()
    table = table.assign(variable="squared_temperature", value=280.0**2, error=600.0, units="K2")
    table.to_csv(tmp_path / "obs.csv", index=False)
    (tmp_path / "own.py").write_text(OWN)
    args = [folder / "model", tmp_path / "obs.csv", "--start", START, "--hours", HOURS]
    args += ["--members", 2, *QUICK, "--batch", 1]
    with pytest.raises(DataError, match="squared_temperature"):
        run("reanalysis", *args, "--out", tmp_path / "x.zarr")
    args += ["--observables", tmp_path / "own.py"]
    for workers in (1, 2):
        out = tmp_path / f"{workers}.zarr"
        told = run("reanalysis", *args, "--workers", workers, "--out", out)
        assert "squared_temperature" in told
    with xr.open_zarr(tmp_path / "1.zarr") as one, xr.open_zarr(tmp_path / "2.zarr") as two:
        np.testing.assert_allclose(one["temperature"], two["temperature"], rtol=1e-5)
    start = ["--start", START, "--observables", tmp_path / "own.py"]
    told = run("plan", "reanalysis", *args[:2], *start, "--hours", HOURS, "--no-measure")
    assert "decodes" in told


def test_filter(folder, analysis, tmp_path):
    r"""The last hour of the same draw, with its window or without, and no more than asked for."""
    args = ["--start", START, "--hours", HOURS, "--members", 3, *QUICK]
    given = ["--variables", "t", "--levels", 850, "--no-latents"]
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


def test_names_of_variables(folder, tmp_path):
    r"""Short ones do; of others, what is near them, or how to say it, is told before any work."""
    args = [folder / "model", folder / "obs.csv", "--start", START, "--hours", 1, *QUICK]
    out = ["--members", 1, "--out", tmp_path / "x.zarr", "--no-latents", "--variables"]
    for words, told in (
        ("t2m,q", r"has no variable 'q'; known: .*2m_temperature.*t2m"),
        ("temprature", "did you mean 'temperature'"),
        ("t850", "a variable at a level.*--variables t --levels 850"),
    ):
        with pytest.raises(DataError, match=told):
            run("reanalysis", *args, *out, words)
    run("reanalysis", *args, *out, "t2m,temperature,t")
    with xr.open_zarr(tmp_path / "x.zarr") as ds:
        assert list(ds.data_vars) == ["2m_temperature", "temperature"]


def test_a_filter_goes_on_from_its_window(folder, tmp_path):
    r"""Killed after the window was written and before the last hour was, it has but that to do."""
    common = [folder / "model", folder / "obs.csv", "--start", START, "--hours", HOURS]
    out, window = tmp_path / "last.zarr", tmp_path / "window.zarr"
    args = [*common, "--members", 2, *QUICK, "--out", out, "--window-out", window]
    run("filter", *args)
    with xr.open_zarr(out) as ds:
        before = ds.load()
    shutil.rmtree(out)
    files = {path: path.stat().st_mtime_ns for path in window.rglob("*")}
    assert "window.zarr is whole: going on from it" in run("filter", *args)
    assert {path: path.stat().st_mtime_ns for path in window.rglob("*")} == files
    with xr.open_zarr(out) as ds:
        xr.testing.assert_identical(ds.load(), before)

    shutil.rmtree(out)
    for more, what in (
        (["--seed", 4], "seed"),
        (["--steps", 4], "settings"),
        (["--members", 3], "members"),
        (["--hours", HOURS - 1], "observations_digest, hours"),
        (["--variables", "temperature"], "variables"),
        (["--levels", 850], "levels"),
        (["--thin", 5000], "observations_digest"),
    ):
        with pytest.raises(StoreError, match=f"of another run: {what} differ; remove it"):
            run("filter", *args, *more)
    assert not out.exists()


def test_celsius_without_errors(folder, tmp_path):
    r"""A table of another kind, told of by options, is the same observations."""
    table = pd.read_csv(folder / "obs.csv")
    table["time"] = pd.to_datetime(table["time"]) + pd.Timedelta("20min")
    other = table.assign(TEMP=table["value"] - 273.15)
    other[["time", "latitude", "longitude", "TEMP"]].to_csv(tmp_path / "other.csv", index=False)
    args = ["--start", START, "--hours", HOURS, "--members", 1, *QUICK]
    args += ["--variables", "temperature"]
    column = ["--column", "TEMP=2m_temperature"]
    plan = ["plan", "filter", folder / "model", tmp_path / "other.csv", "--start", START]
    with pytest.raises(DataError, match=r"(?s)look like °C.*--units NAME="):
        run(*plan, *column)
    column += ["--units", "t2m=°C"]
    with pytest.raises(DataError, match=r"(?s)has no column `error`.*--error NAME="):
        run(*plan, *column)
    column += ["--error", "t2m=1"]
    with pytest.raises(DataError, match=r"(?s)'10', a number without a unit.*'30min'.*--within"):
        run(*plan, *column, "--within", "10")
    told = run("reanalysis", folder / "model", tmp_path / "other.csv", *args, *column,
               "--out", tmp_path / "other.zarr")  # fmt: skip
    assert "46 observations in 6 of 6 hours" in told
    run("reanalysis", folder / "model", folder / "obs.csv", *args, "--out", tmp_path / "k.zarr")
    with xr.open_zarr(tmp_path / "other.zarr") as a, xr.open_zarr(tmp_path / "k.zarr") as b:
        np.testing.assert_allclose(a["temperature"], b["temperature"], rtol=1e-4)
    with pytest.raises(DataError, match="farther than the tolerance"):
        run("filter", folder / "model", tmp_path / "other.csv", *args, *column,
            "--out", tmp_path / "x.zarr", "--within", "10min")  # fmt: skip
    for wrong in (["--units", "t2m"], ["--error", "=1"], ["--column", "TEMP="]):
        with pytest.raises(DataError, match=f"found {wrong[0]} '{wrong[1]}'; give a name and"):
            run("plan", "filter", folder / "model", "--no-measure", *wrong)


def test_what_the_model_cannot_compare_is_told_once(folder, tmp_path):
    r"""Sea surface temperature on the model's land, in the table of what is left out."""
    land = 90 - np.array([3, 5.5]) * 180 / (small.H - 1), np.array([5, 12]) * 360 / small.W
    names = ["latitude", "longitude"]
    table = pd.DataFrame(dict(zip(names, land, strict=True)))
    table = table.assign(variable="sea_surface_temperature", value=290.0, error=1.0, time=START)
    table.to_csv(tmp_path / "sst.csv", index=False)
    args = ["reanalysis", folder / "model", tmp_path / "sst.csv", "--start", START, "--hours", 1]
    args += ["--members", 1, *QUICK, "--variables", "temperature"]
    with pytest.raises(DataError, match=r"(?s)--strict refuses.*sea surface on land +1 "):
        run(*args, "--out", tmp_path / "x.zarr", "--strict")
    assert not (tmp_path / "x.zarr").exists()
    told = run(*args, "--out", tmp_path / "x.zarr")
    assert re.search(r"sea surface on land +1  sea_surface_temperature at 22.50, 112.50", told)
    assert "\n1 observations in 1 of 1 hours" in told
    assert told.count("sea surface on land") == 1
    assert "left out" not in told


def test_tables_in_warnings_lack_what_was_shown(capsys):
    with options.told(["sea surface on land"]):
        for more in ("", "\ntoo far away             2  y"):
            warnings.warn(
                f"left out:\nreason  count\nsea surface on land  1  x{more}", stacklevel=2
            )
        warnings.warn("steps are few", stacklevel=2)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "warning: left out:", "reason  count", "too far away             2  y",
        "warning: steps are few",
    ]  # fmt: skip


@pytest.mark.parametrize("how", [[], ["--all-at-once"], ["--new", 1]])
def test_forecast(folder, analysis, tmp_path, how):
    out = tmp_path / "forecast.zarr"
    run("forecast", folder / "model", analysis, "--hours", 5, "--out", out, *AHEAD, *how)
    with xr.open_zarr(out) as ds:
        assert ds.sizes["member"] == 3
        after = np.datetime64(START) + np.arange(HOURS, HOURS + 5) * np.timedelta64(1, "h")
        assert (ds["time"].values == after).all()
        assert np.isfinite(ds["2m_temperature"]).all()


def test_composed_is_all_at_once(folder, analysis, tmp_path):
    r"""Asked for by either name, of a forecast and of its plan; not what a forecast does else."""
    found, plans = {}, {}
    for name, how in {
        "default": [],
        "auto": ["--mode", "auto"],
        "once": ["--all-at-once"],
        "composed": ["--mode", "composed"],
    }.items():
        out = tmp_path / f"{name}.zarr"
        args = [folder / "model", "--hours", 5, *AHEAD[:4], *how]
        run("forecast", args[0], analysis, *args[1:], "--seed", 3, "--out", out)
        plans[name] = run("plan", "forecast", *args, "--members", 3, "--no-measure")
        with xr.open_zarr(out) as ds:
            found[name] = ds.load()
    for a, b, mode in (("default", "auto", "sequential"), ("once", "composed", "composed")):
        xr.testing.assert_identical(found[a], found[b])
        assert plans[a] == plans[b]
        assert f"a member, {mode}," in plans[a]
        assert f'"mode": "{mode}"' in found[a].attrs["settings"]
    assert not np.allclose(found["default"]["temperature"], found["once"]["temperature"])


def test_the_papers_forecast_slides_a_window(folder, analysis, tmp_path):
    r"""Though the paper's reanalyses are composed: half a window is given, and half new."""
    args = ["--hours", 5, "--setting", "paper", "--steps", 2]
    run("forecast", folder / "model", analysis, *args, "--out", tmp_path / "f.zarr")
    with xr.open_zarr(tmp_path / "f.zarr") as ds:
        settings = json.loads(ds.attrs["settings"])
        assert json.loads(ds.attrs["joints"]) == [2, 4]
    half = small.config().window // 2
    assert (settings["mode"], settings["past"], settings["new"]) == ("sequential", half, half)
    told = run("plan", "forecast", folder / "model", *args, "--no-measure")
    assert "3 a member, sequential," in told
    whole = run("plan", "forecast", folder / "model", *args, "--mode", "composed", "--no-measure")
    assert "a member, composed," in whole


@pytest.mark.parametrize("command", [["forecast"], ["plan", "forecast"]])
def test_options_a_forecast_has_no_use_for(folder, analysis, tmp_path, command):
    r"""Are refused, not ignored."""
    args = [*command, folder / "model"]
    if command == ["forecast"]:
        args += [analysis, "--out", tmp_path / "f.zarr"]
    for name, value in (
        ("--background", "check"), ("--threshold", 3), ("--representation", "none"),
        ("--lag", 1), ("--curvature", 1),
    ):  # fmt: skip
        with pytest.raises(SystemExit):
            run(*args, name, value)
    for how, match in (
        (["--stride", 2], "stride=2, which is about composed windows.*--mode composed"),
        (["--all-at-once", "--new", 1], "new=1, which is about sequential windows"),
        (["--mode", "composed", "--sweeps", 1], "sweeps=1, which is about sequential windows"),
        (["--mode", "sequential", "--all-at-once"], "leave out mode .--mode. or all_at_once"),
    ):
        with pytest.raises(ConfigError, match=match):
            run(*args, *how)
    assert list(tmp_path.iterdir()) == []


def test_forecast_from_states(folder, tmp_path):
    out = tmp_path / "forecast.zarr"
    states = folder / "states.zarr"
    args = ["--hours", 2, "--members", 2, "--at", "2001-01-01T08", "--out", out, *AHEAD]
    run("forecast", folder / "model", states, *args)
    with xr.open_zarr(out) as ds:
        assert ds.sizes["member"] == 2
        assert ds["time"].values[0] == np.datetime64("2001-01-01T09")
    args = ["--hours", 2, "--at", "2009-01-01T00", "--out", tmp_path / "x.zarr"]
    with pytest.raises(DataError, match="no hour 2009-01-01T00 to go on from"):
        run("forecast", folder / "model", states, *args)


@pytest.mark.parametrize("task", ["reanalysis", "filter", "forecast"])
def test_plan(folder, task):
    told = run("plan", task, folder / "model", "--hours", 6, "--members", 2, *AHEAD[:4])
    for row in ("denoiser calls", "decodes", "memory", "time", "output"):
        assert re.search(f"^{row} +", told, re.M), row
    assert "time" not in run("plan", task, folder / "model", "--no-measure")


def test_plan_of_observations(folder):
    r"""Hours without observations are not decoded, but for the output."""
    args = ["plan", "reanalysis", folder / "model", "--hours", 4, "--members", 1, "--no-measure"]
    args += ["--steps", 1, "--iterations", 1, "--mode", "composed"]
    obs = [folder / "obs.csv", "--start", "2001-01-03T02"]
    told = run(*args, *obs)
    assert re.search(r"decodes +8 forward, 8 backward", told)
    assert "impossible coordinates" in told  # nothing is left out without a word
    assert re.search(r"decodes +6 forward, 4 backward", run(*args, "--share", 0.5))
    assert re.search(r"decodes +4 forward, 0 backward", run(*args, "--share", 0))


def test_a_forecast_lacks_the_options_it_would_refuse():
    groups = options.drawing, options.drawing_ahead
    every, ahead = (set(inspect.signature(g).parameters) for g in groups)
    assert every - ahead == set(OBSERVED)


def test_decode(folder, analysis, tmp_path):
    r"""Latents are decoded later, to what is asked for then."""
    out = tmp_path / "t850.zarr"
    chosen = ["--variables", "temperature", "--levels", "850", "--no-latents"]
    told = run("decode", folder / "model", analysis, "--out", out, *chosen)
    got, kept = xr.open_zarr(out), xr.open_zarr(analysis)
    assert "is complete" in told
    assert got.attrs["comment"] == "decoded from latents; no residual is added"
    assert got.attrs["comment"] in told
    assert list(got.data_vars) == ["temperature"]
    np.testing.assert_allclose(
        got["temperature"].sel(level=850), kept["temperature"].sel(level=850), rtol=1e-5
    )
    again = ["--out", tmp_path / "again.zarr", "--observations", folder / "obs.csv"]
    with pytest.raises(DataError, match="without what the decoder lacks"):
        run("decode", folder / "model", analysis, *again)


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


def keep_every_step() -> None:
    from appa.tasks.resuming import RunState

    RunState.__init__.__defaults__ = (float("inf"),)


def keep_the_first_step() -> None:
    from appa.tasks.resuming import RunState

    RunState.__init__.__defaults__ = (0.0,)


@pytest.mark.slow
def test_killed_it_goes_on(folder, tmp_path):
    r"""Killed in the middle of a draw, a run ends with what it would have ended with."""
    args = ["reanalysis", folder / "model", folder / "obs.csv", "--start", START, "--hours", HOURS]
    args += ["--members", 2, *QUICK, "--steps", 10, "--batch", 2]
    whole, out = tmp_path / "whole.zarr", tmp_path / "killed.zarr"
    run(*args, "--out", whole)

    words = [str(a) for a in [*args, "--out", out]]
    with Process(partial(command, *words, before=keep_every_step)) as process:
        process.until(lambda: list(Path(f"{out}.run").rglob("window-1/step-*")))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert not out.exists()

    told = run(*args, "--out", out)
    assert "going on with it" in told
    assert "is complete" in told
    with xr.open_zarr(out) as a, xr.open_zarr(whole) as b:
        xr.testing.assert_identical(a, b)  # attributes too
    assert sorted(p.name for p in tmp_path.iterdir()) == ["killed.zarr", "whole.zarr"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_is_heard(folder, tmp_path, workers):
    r"""What Slurm and containers end a run with, and `timeout` twice: it keeps its last step, says
    so and ends, and so do processes that draw, which do not hear it themselves."""
    out = tmp_path / "ended.zarr"
    args = ["reanalysis", folder / "model", folder / "obs.csv", "--start", START, "--hours", HOURS]
    args += ["--members", 2, *QUICK, "--steps", 2000, "--batch", 1, "--workers", workers]
    words = [str(a) for a in [*args, "--out", out]]

    def last() -> int:
        files = Path(f"{out}.run").rglob("step-*")
        return max((int(re.sub(r"\D", "", f.name)) for f in files), default=0)

    with Process(partial(command, *words, before=keep_the_first_step)) as process:
        # other processes write more than the first
        process.until(lambda: last() >= workers)
        time.sleep(1.0)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        assert process.said.endswith("\nstopped; the same command goes on where it was\n")
        assert "Traceback" not in process.said
    assert last() > workers
