r"""`appa data check`, `statistics` and `climatology`, as a user runs them."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

from appa.cli.data import app
from appa.data import climatology, statistics
from appa.errors import StoreError
from appa.tasks import encoding

from ..data.test_checks import planet, turn

runner = CliRunner()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    r"""Two days in a Zarr store in WeatherBench2's order, and the climatology beside."""
    folder = tmp_path_factory.mktemp("cli")
    ds = planet("2020-06-20", 48, seed=1)
    for name, data in (("clean", ds), ("flipped", turn(ds, slice(24, 48)))):
        data = data.isel(latitude=slice(None, None, -1))
        data = data.transpose("time", "level", "longitude", "latitude")
        data.to_zarr(folder / f"{name}.zarr", zarr_format=2)
    year = planet("2018-01-01", 365, seed=99, every=24)
    year.to_netcdf(folder / "year.nc")
    climatology.save(climatology.fit(year, harmonics=2), folder / "climatology.nc")
    return folder


def run(*args) -> tuple[int, str]:
    r"""The status and what is on standard output: progress is on the other where it is slow."""
    result = runner.invoke(app, [str(a) for a in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_check_of_a_clean_store(store):
    code, output = run("check", store / "clean.zarr", "--climatology", store / "climatology.nc")
    assert code == 0
    assert output.startswith("clean: ")
    assert (
        "11 variables (26 channels), 48 hours from 2020-06-20T00 to 2020-06-21T23, 19×36" in output
    )


def test_check_of_a_faulty_store(store):
    code, output = run("check", store / "flipped.zarr", "--climatology", store / "climatology.nc")
    assert code == 1
    assert "flipped latitude" in output
    assert "2020-06-21T00 … 2020-06-21T23, 24 hours" in output
    assert output.endswith("flipped.zarr: 1 finding\n")


@pytest.mark.parametrize("width", [60, 80])
def test_findings_on_a_narrow_terminal(store, width, monkeypatch):
    r"""Folded, but no hour is cut."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    code, output = run("check", store / "flipped.zarr", "--climatology", store / "climatology.nc")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
    assert code == 1
    assert max(map(len, plain.splitlines()[:-1])) <= width
    assert plain.count("2020-06-21T00") == 1
    assert plain.count("2020-06-21T23,") == 1


def test_check_of_the_bundled_planet():
    code, output = run("check", "planet", "--expect", "planet")
    assert (code, output[:14]) == (0, "clean: planet,")


def test_check_against_a_preset_and_a_step(store):
    options = ["--climatology", store / "climatology.nc"]
    code, output = run("check", store / "clean.zarr", "--expect", "era5-1.5deg", *options)
    assert code == 1
    assert "missing level" in output
    assert "19×36, expected" in output
    code, output = run("check", store / "year.nc", "--step", 24, *options)
    assert (code, output[:6]) == (0, "clean:")


def test_statistics(store, tmp_path):
    out = tmp_path / "statistics.nc"
    code, output = run("statistics", store / "clean.zarr", out, "--start", "2020-06-21")
    assert code == 0
    assert "11 variables over 24 hours, 2020-06-21T00 to 2020-06-21T23" in output
    x = xr.open_zarr(store / "clean.zarr")["temperature"].sel(level=500, time="2020-06-21").values
    found = statistics.load(out)["temperature"].sel(level=500).values
    x = x.astype(np.float64)
    np.testing.assert_allclose(found, [x.mean(), x.std()], rtol=1e-6)


def test_statistics_of_a_training_period(store, tmp_path):
    r"""A configuration's training years; the store has others."""
    from appa.errors import DataError

    with pytest.raises(DataError, match="no hours from 1993-01-01T00 to 2019-12-31T23"):
        run("statistics", store / "clean.zarr", tmp_path / "s.nc", "--config", "era5-1.5deg")
    code, output = run(
        "statistics", store / "year.nc", tmp_path / "s.nc", "--config", "era5-1.5deg"
    )
    assert code == 0
    assert "over 365 hours" in output


def test_climatology(store, tmp_path):
    out = tmp_path / "climatology.nc"
    code, output = run("climatology", store / "year.nc", out, "--harmonics", 2)
    assert code == 0
    assert "2 harmonics of the year" in output
    xr.testing.assert_allclose(
        climatology.load(out), climatology.load(store / "climatology.nc"), rtol=1e-6
    )


def test_simulated_states_are_encoded_where_it_says(tmp_path, monkeypatch):
    places = []

    def encode(model, plan, out, **options):
        places.append(options["device"])

    monkeypatch.setattr(encoding, "encode_simulation", encode)
    args = ["simulate", tmp_path / "z.zarr", "--days", 1, "--encode", "planet"]
    for more in (["--device", "cuda:1"], []):
        assert run(*args, *more)[0] == 0
    assert places == ["cuda:1", None]


@pytest.mark.parametrize("command", ["statistics", "climatology"])
def test_out_is_tried_before_the_work(store, tmp_path, command, monkeypatch):
    victim = tmp_path / "victim.nc"
    victim.write_bytes((store / "year.nc").read_bytes())
    before = victim.read_bytes()

    def never(*_, **__):
        raise AssertionError("the work was begun")

    monkeypatch.setattr(statistics, "compute", never)
    monkeypatch.setattr(climatology, "fit", never)
    for source, out, message in (
        (victim, victim, "is the store itself"),
        (store / "year.nc", victim, "exists already"),
        (victim, tmp_path, "is a folder"),
        (victim, victim / "deep" / "out.nc", "cannot be written"),
    ):
        with pytest.raises(StoreError, match=message):
            run(command, source, out)
    assert victim.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["victim.nc"]


def test_statistics_of_short_names(store, tmp_path):
    ds = xr.open_dataset(store / "year.nc").isel(time=slice(0, 4))
    ds.rename({"2m_temperature": "t2m"}).to_netcdf(tmp_path / "a.nc")
    arguments = ["statistics", str(tmp_path / "a.nc"), str(tmp_path / "s.nc")]
    result = runner.invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert "warning: t2m of" in result.stderr
    assert "WeatherBench2's name is 2m_temperature" in result.stderr
    assert "10 variables" in result.stdout


def test_errors_are_one_message(store):
    r"""A store too short for a climatology: status 2, the cause, no traceback."""
    result = subprocess.run(
        [sys.executable, "-c", "from appa.cli import main; main()", "data", "climatology",
         str(store / "clean.zarr"), str(store / "never.nc")],
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("error: a record of 48 hours over 1.958 days")
    assert "Traceback" not in result.stderr
    assert not (store / "never.nc").exists()


def test_a_scheduler_that_cannot_be(store):
    r"""One message, at once: nothing of the failed connection is left to complain or wait for."""
    result = subprocess.run(
        [sys.executable, "-c", "from appa.cli import main; main()", "data", "check",
         str(store / "clean.zarr"), "--scheduler", "nope"],
        capture_output=True,
        text=True,
        timeout=50,  # less than the minute a forgotten client waits
    )  # fmt: skip
    assert result.returncode == 2
    assert result.stderr.startswith("error: no Dask scheduler answers at 'nope'")
    assert "Traceback" not in result.stderr
