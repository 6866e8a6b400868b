from __future__ import annotations

import errno
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
import xarray as xr
from typer.testing import CliRunner

pytest.importorskip("matplotlib", reason="the extra 'plots' is not installed")
pytest.importorskip("cmocean", reason="the extra 'plots' is not installed")

from matplotlib.image import imread

import appa
import appa.cli.demo
import appa.demo
from appa.data.grids import Grid
from appa.data.statistics import compute
from appa.data.stores import open_store
from appa.data.variables import ATMOSPHERIC, SURFACE
from appa.demo import CHANNELS, first_hours, observe_day, summarize, write
from appa.errors import AppaError, DataError
from appa.sections import Observations

GRID = Grid("gaussian", 24, 48)
NAMES = ["t2m", "u10", "v10", "msl", "sst", "tp", "t850", "z500", "q700"]


def application() -> typer.Typer:
    app = typer.Typer()
    appa.cli.demo.register(app)
    return app


def weather(hours: int = 3) -> xr.Dataset:
    r"""White noise on land and sea, enough to count what is seen of it."""
    rng = np.random.default_rng(0)
    levels = [500, 700, 850]
    coords = {
        "time": pd.date_range("2021-03-21", periods=hours, freq="h"),
        "level": levels,
        "latitude": GRID.latitude,
        "longitude": GRID.longitude,
    }
    ds = xr.Dataset(coords=coords)
    for name in SURFACE:
        dims = ("time", "latitude", "longitude")
        ds[name] = (dims, rng.normal(280, 2, (hours, *GRID.shape)).astype("float32"))
    for name in ATMOSPHERIC:
        dims = ("time", "level", "latitude", "longitude")
        ds[name] = (dims, rng.normal(50, 2, (hours, 3, *GRID.shape)).astype("float32"))
    ds["land_sea_mask"] = (("latitude", "longitude"), np.zeros(GRID.shape, "float32"))
    ds["land_sea_mask"][:, :24] = 1
    ds["sea_surface_temperature"] = ds["sea_surface_temperature"].where(ds["land_sea_mask"] < 0.5)
    return ds


def test_nine_channels():
    assert [channel.name for channel in CHANNELS] == NAMES


def test_summary_counts_what_was_seen():
    truth = weather()
    stats = compute(truth)
    expected = xr.full_like(truth, 0.0) + stats.sel(statistic="mean", drop=True)
    errors = Observations(station_error=0.03, satellite_error=0.25)
    day = observe_day(truth, stats, expected, errors)
    summary = summarize(day)
    assert list(summary.index) == NAMES
    stations = len(day.network.stations)
    assert stations == 12  # 1 % of 24 × 48, rounded
    assert (summary.loc[["t2m", "u10", "v10", "msl", "tp"], "n"] == 3 * stations).all()
    assert 0 < summary.loc["sst", "n"] < 3 * stations
    seen = sum(s.sees(GRID, truth["time"].values).sum() for s in day.network.satellites)
    assert (summary.loc[["t850", "z500", "q700"], "n"] == seen).all()

    # White noise of standard deviation 2: climatology is off by one standard deviation, the
    # errors are 3 % and 25 % of 2, to the sampling error of a few thousand draws.
    np.testing.assert_allclose(summary["climatology"], 1, atol=5 / np.sqrt(2 * 3 * 500))
    np.testing.assert_allclose(summary["error"][:6], 0.06, rtol=0.1)
    np.testing.assert_allclose(summary["error"][6:], 0.5, rtol=0.1)
    sampling = 5 * 2 / np.sqrt(seen)
    np.testing.assert_allclose(summary["mean"][6:], 50, atol=sampling)


def test_demo_end_to_end(tmp_path):
    r"""The command itself, on the bundled planet; its files open and hold what it says."""
    folder = tmp_path / "out" / "demo"
    command = ["demo", str(folder), "--model", "none"]
    result = CliRunner().invoke(application(), command, catch_exceptions=False)
    assert result.exit_code == 0
    names = ["stations.csv", "swath.nc", "observations.png", "network.png"]
    assert sorted(p.name for p in folder.iterdir()) == sorted(names)
    for name in names:
        assert name in result.output
    assert "46, in 1.0 % of the boxes" in result.output

    truth = open_store("planet").isel(time=slice(24)).load()
    table = pd.read_csv(folder / "stations.csv", parse_dates=["time"])
    assert table["station"].nunique() == 46
    assert table["level"].isna().all()
    assert sorted(table["variable"].unique()) == sorted(SURFACE)
    assert set(table["time"]) == set(pd.DatetimeIndex(truth["time"].values))
    assert f"{len(table):,} observations" in re.sub(r"\s+", " ", result.output.replace("│", ""))
    # Against xarray's interpolation, which knows neither wrapping nor poles: well inside.
    rows = table[(table["variable"] == "2m_temperature") & table["longitude"].between(5, 350)]
    rows = rows[rows["latitude"].abs() < 80]
    exact = truth["2m_temperature"].interp(
        {c: xr.DataArray(rows[c].to_numpy(), dims="row") for c in ("time", "latitude", "longitude")}
    )
    z = (rows["value"].to_numpy() - exact.values) / rows["error"].to_numpy()
    assert np.abs(z).max() < 6
    assert z.std() == pytest.approx(1, abs=5 / np.sqrt(2 * len(z)))

    with xr.open_dataset(folder / "swath.nc") as swath:
        assert swath.attrs["Conventions"].startswith("CF")
        assert swath.attrs["source"] == f"appa {appa.__version__}"
        np.testing.assert_array_equal(swath["time"], truth["time"])
        np.testing.assert_array_equal(swath["level"], truth["level"])
        for name in ATMOSPHERIC:
            assert swath[name].attrs["units"] == truth[name].attrs["units"]
            z = ((swath[name] - truth[name]) / swath[f"{name}_error"]).values
            share = np.isfinite(z).mean()
            assert 0.05 < share < 0.07
            assert np.nanstd(z) == pytest.approx(1, abs=5 / np.sqrt(2 * np.isfinite(z).sum()))

    for name in ("observations.png", "network.png"):
        image = imread(folder / name)
        assert min(image.shape[:2]) > 600
        assert len(np.unique((image[::4, ::4, :3] * 255).astype(int).reshape(-1, 3), axis=0)) > 200


def test_as_many_hours_as_there_are(tmp_path):
    hours = open_store("planet").sizes["time"]
    with pytest.raises(DataError, match=f"has {hours}"):
        first_hours(hours + 1)
    folder = tmp_path / "never"
    command = ["demo", str(folder), "--model", "none", "--hours", "0"]
    result = CliRunner().invoke(application(), command)
    assert isinstance(result.exception, DataError)
    assert "0 hours" in str(result.exception)
    assert not folder.exists()


def refused(tmp_path) -> dict[str, Path]:
    (tmp_path / "file").write_text("mine")
    # Nobody can write there, the superuser neither.
    unwritable = {"unwritable": Path("/proc/self")} if Path("/proc/self").is_dir() else {}
    return {"a file": tmp_path / "file", "below a file": tmp_path / "file" / "demo", **unwritable}


def test_folders_that_cannot_be_written_to(tmp_path, monkeypatch):
    r"""One message, before anything is observed; what was there stays."""

    def work(*_, **__):
        raise AssertionError("observed before the folder was seen to")

    monkeypatch.setattr(appa.demo, "observe_planet", work)
    for path in refused(tmp_path).values():
        result = CliRunner().invoke(application(), ["demo", str(path), "--model", "none"])
        assert isinstance(result.exception, AppaError), result.exception
        assert f"cannot write {path}: " in str(result.exception)
        assert "for example appa demo" in str(result.exception)
    assert (tmp_path / "file").read_text() == "mine"


def test_files_are_written_whole(tmp_path, monkeypatch):
    r"""Where writing fails half way, the files of before are there and nothing else."""
    truth = weather(1)
    stats = compute(truth)
    day = observe_day(truth, stats, truth, Observations())
    names = ["stations.csv", "swath.nc"]
    for name in names:
        (tmp_path / name).write_text("before")

    def write_half(ds: xr.Dataset, path: Path, **_) -> None:
        path.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(xr.Dataset, "to_netcdf", write_half)
        with pytest.raises(AppaError, match="No space left on device; name a folder"):
            write(day, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    assert [(tmp_path / name).read_text() for name in names] == ["before", "before"]
    assert write(day, tmp_path) == [tmp_path / name for name in names]
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    assert len(pd.read_csv(tmp_path / "stations.csv")) == len(day.table)


# ---------------------------------------------------------------- the chain


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    r"""A small model of the planet's fields that knows nothing, with few steps."""
    import torch

    from appa.config import parse_config
    from appa.data import planet
    from appa.tasks.building import build_autoencoder, build_denoiser
    from appa.tasks.folders import gather
    from appa.tasks.model import Model

    part = {"hidden_channels": [8, 8, 8], "blocks": 0, "latent_channels": 4}
    part |= {"decoder_channels": [8, 8, 8], "decoder_blocks": 0, "normals": False}
    config = parse_config(
        {
            "extends": "planet",
            "window": 8,
            "autoencoder": part,
            "denoiser": {"width": 16, "blocks": 1, "heads": 2, "modulation": 8, "patch": 2},
            "sampling": {"stride": 4, "past": 2, "steps": 3, "iterations": 2, "tolerance": 0.0},
        }
    )
    torch.manual_seed(0)
    networks = build_autoencoder(config), build_denoiser(config)
    statistics = gather(planet.statistics(), open_store("planet").isel(time=slice(1)))
    moments = torch.zeros(4), torch.ones(4)
    folder = tmp_path_factory.mktemp("model") / "tiny"
    return Model(config, *networks, *moments, statistics, "tiny").save(folder)


@pytest.fixture
def blank(monkeypatch):
    r"""Blank pictures, which take longer than draws do here: one test looks at those of the chain,
    another at those of observations."""
    from matplotlib.figure import Figure

    monkeypatch.setattr("appa.cli.demo.draw", lambda *_: [])
    for name in ("plot_ensemble", "plot_scores"):
        monkeypatch.setattr(f"appa.plots.analysis.{name}", lambda *_, **__: Figure())


@pytest.mark.slow
def test_chain_end_to_end(tmp_path, model, monkeypatch):
    r"""Observations, reanalysis, forecast and scores; the scores again from what was saved."""
    from appa.evaluation.scores import rmse

    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("appa.chain.cores", lambda: 1)  # what several do is tested with tasks
    command = ["demo", str(tmp_path), "--model", str(model), "--setting", "model"]
    command += ["--hours", "8", "--ahead", "7", "--seed", "3"]
    # What is another's stays, an earlier ensemble does not.
    place = tmp_path / "analysis.zarr" / "zarr.json"
    place.parent.mkdir()
    place.write_text("{}")
    result = CliRunner().invoke(application(), command)
    assert "is in the way" in str(result.exception)
    place.write_text('{"attributes": {"model_digest": "0"}}')

    result = CliRunner().invoke(application(), command, catch_exceptions=False)
    assert result.exit_code == 0
    names = {"analysis.zarr", "forecast.zarr", "scores.nc", "analysis.png", "scores.png"}
    names |= {"stations.csv", "swath.nc", "observations.png", "network.png"}
    assert {p.name for p in tmp_path.iterdir()} == names
    output = result.output
    for told in ("2 members, 3 steps of the multistep sampler", "appa evaluate", *names):
        assert told in output

    truth = open_store("planet").isel(time=slice(15)).load()
    analysis = xr.open_zarr(tmp_path / "analysis.zarr").load()
    forecast = xr.open_zarr(tmp_path / "forecast.zarr").load()
    assert forecast["time"].values[0] == analysis["time"].values[-1] + np.timedelta64(1, "h")
    assert analysis.sizes["member"] == forecast.sizes["member"] == 2
    assert (analysis.sizes["time"], forecast.sizes["time"]) == (8, 7)
    scores = xr.open_dataset(tmp_path / "scores.nc").isel(region=0)
    skill = scores["skill"].sel(channel="z500")
    assert scores["channel"].values.tolist() == NAMES
    exact = truth["geopotential"].sel(level=500)

    def distance(estimate, hours) -> float:
        return float(rmse(estimate, exact.isel(time=hours), ("latitude", "longitude")).squeeze())

    mean = analysis["geopotential"].sel(level=500).mean("member")
    now = skill.isel(time=7)
    assert float(now.sel(estimate="analysis")) == pytest.approx(distance(mean[-1], 7), rel=1e-5)
    later = forecast["geopotential"].sel(level=500).mean("member")
    six = skill.isel(time=13)
    found = distance(later[5], 13)
    assert float(six.sel(estimate="forecast")) == pytest.approx(found, rel=1e-5)
    stays = mean[-1].drop_vars("time").expand_dims(time=exact["time"].values[13:14])[0]
    found = distance(stays, 13)
    assert float(six.sel(estimate="persistence")) == pytest.approx(found, rel=1e-5)
    # In the unit of maps: the first of the numbers beside z500 of the table of 6 hours.
    table = output.split("Forecast, 6 hours ahead")[1].split("Forecast, 7 hours ahead")[0]
    numbers = [float(x) for x in re.search(r"z500 +dam +(.*)", table)[1].split()]
    shown = 0.1 / 9.80665 * six.sel(estimate=["forecast", "climatology", "prior", "persistence"])
    np.testing.assert_allclose(numbers[:4], shown, rtol=6e-3)
    assert len(numbers) == 9

    for name in ("analysis.png", "scores.png"):
        image = imread(tmp_path / name)
        assert min(image.shape[:2]) > 600
        assert len(np.unique((image[::4, ::4, :3] * 255).astype(int).reshape(-1, 3), axis=0)) > 50


def test_a_chain_that_was_killed(tmp_path, model, monkeypatch, blank):
    r"""Begun otherwise, it says what is there and touches nothing; as it was begun, it goes on."""
    from appa.tasks.output import EnsembleWriter

    monkeypatch.setenv("COLUMNS", "1000")  # paths are long, and lines are looked for
    monkeypatch.setattr("appa.chain.cores", lambda: 1)
    finish = EnsembleWriter.finish

    def killed(task: str):
        def end(writer: EnsembleWriter) -> Path:
            if writer.attrs["task"] == task:
                raise KeyboardInterrupt
            return finish(writer)

        return end

    folder = tmp_path / "demo"
    command = ["demo", str(folder), "--model", str(model), "--setting", "model", "--steps", "2"]
    command += ["--hours", "2", "--ahead", "1", "--members", "1"]
    for task, name in (("reanalysis", "analysis"), ("forecast", "forecast")):
        with monkeypatch.context() as patch:
            patch.setattr(EnsembleWriter, "finish", killed(task))
            CliRunner().invoke(application(), command)
        left = {f"{name}.zarr.partial", f"{name}.zarr.run"}
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
        assert left <= {path.name for path in before}
        assert folder / f"{name}.zarr" not in before
        for more, told in (
            (["--seed", "4"], "seed was 0, is 4"),
            (["--steps", "3"], "settings.steps was 2, is 3"),
            (["--members", "2"], "members was 1, is 2"),
            (["--hours", "3"], "last hour was"),
        ):
            result = CliRunner().invoke(application(), [*command, *more])
            assert isinstance(result.exception, AppaError), result.exception
            message = str(result.exception)
            assert "begun otherwise: " in message
            assert told in message
            assert "goes on when it is run as it was begun" in message
            assert all(str(folder / place) in message for place in left)
            assert f"another folder than {folder}" in message
            assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before

    # once more, killed when all but the scores is there
    drawn = folder / "analysis.zarr"
    before = {path: path.stat().st_mtime_ns for path in drawn.rglob("*")}
    with monkeypatch.context() as patch:
        patch.setattr("appa.evaluation.ensembles.averages", interrupted)
        CliRunner().invoke(application(), command)
    assert (folder / "forecast.zarr").exists()
    before |= {path: path.stat().st_mtime_ns for path in (folder / "forecast.zarr").rglob("*")}
    result = CliRunner().invoke(application(), command, catch_exceptions=False)
    told = re.sub(r"\s+", " ", result.output)
    assert "analysis.zarr is whole: going on from it" in told
    assert "forecast.zarr is whole, too" in told
    both = [*drawn.rglob("*"), *(folder / "forecast.zarr").rglob("*")]
    assert {path: path.stat().st_mtime_ns for path in both} == before
    # what was scored is of another day: it is drawn anew
    result = CliRunner().invoke(application(), command, catch_exceptions=False)
    assert "is whole" not in result.output
    names = ["analysis.zarr", "forecast.zarr", "scores.nc", "analysis.png", "scores.png"]
    assert sorted(p.name for p in folder.iterdir()) == sorted([*names, "stations.csv", "swath.nc"])


def interrupted(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.slow
def test_the_bundled_model(tmp_path, monkeypatch, blank):
    r"""Four hours with few steps and one member: far from what it can do, nearer the truth than
    climatology in what moves slowly."""
    monkeypatch.setattr("appa.chain.cores", lambda: 1)
    command = ["demo", str(tmp_path), "--hours", "4", "--ahead", "1", "--members", "1"]
    CliRunner().invoke(application(), [*command, "--steps", "3"], catch_exceptions=False)
    truth = open_store("planet")
    for name, hours in (("analysis", slice(0, 4)), ("forecast", slice(4, 5))):
        ds = xr.open_zarr(tmp_path / f"{name}.zarr")
        np.testing.assert_array_equal(ds["time"], truth["time"][hours])
        assert set(ds.data_vars) >= {*SURFACE, *ATMOSPHERIC}
        assert np.isfinite(ds["geopotential"]).all()
    with xr.open_dataset(tmp_path / "scores.nc") as scores:
        assert scores["channel"].values.tolist() == NAMES
        found = scores.isel(region=0)
        for estimate, hours in (("analysis", slice(0, 4)), ("forecast", slice(4, 5))):
            own = found.sel(estimate=estimate).isel(time=hours)
            assert np.isfinite(own["skill"]).all()
            assert np.isfinite(own["crps"]).all()
            for channel in ("z500", "msl"):
                error, other = (
                    float((s["skill"].sel(channel=channel) ** 2).mean())
                    for s in (own, found.sel(estimate="climatology").isel(time=hours))
                )
                assert error < other


def test_a_model_of_another_planet(tmp_path):
    r"""Is refused before anything is observed."""
    from .tasks import small

    folder = small.write_model(tmp_path / "model", denoiser=True)
    command = ["demo", str(tmp_path / "out"), "--model", str(folder)]
    result = CliRunner().invoke(application(), command)
    assert isinstance(result.exception, AppaError)
    assert "grid" in str(result.exception)
    assert not (tmp_path / "out" / "stations.csv").exists()
    hours = open_store("planet").sizes["time"]
    command = ["demo", str(tmp_path / "out"), "--model", str(folder), "--ahead", str(hours)]
    assert f"has {hours}" in str(CliRunner().invoke(application(), command).exception)


def test_computing_draws_nothing():
    r"""Figures are the command line's."""
    code = (
        "import sys, appa.demo as d; d.summarize(d.observe_planet(d.first_hours(1)));"
        "sys.exit(any(n.startswith(('appa.plots', 'appa.cli', 'matplotlib')) for n in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_info():
    import torch

    result = CliRunner().invoke(application(), ["info"], catch_exceptions=False)
    assert result.exit_code == 0
    for word in (torch.__version__, xr.__version__, np.__version__, "cpu", "48×96", "71 channels"):
        assert word in result.output
    for preset in ("planet", "era5-1.5deg", "era5-0.25deg"):
        assert f"appa config show {preset}" in result.output
    for package in ("azula", "heavyball", "pyarrow", "sgp4"):
        assert re.search(rf"{package} +{re.escape(version(package))}\s", result.output)


def test_info_on_what_is_not_installed(monkeypatch):
    monkeypatch.setattr("appa.info.installed", lambda package: None)
    monkeypatch.setenv("COLUMNS", "200")
    result = CliRunner().invoke(application(), ["info"], catch_exceptions=False)
    assert "not installed; pip install 'appa-assimilation[train]'" in result.output


def test_info_on_models(tmp_path, monkeypatch):
    r"""A whole one, one without a denoiser, and one whose configuration is damaged."""
    from appa.info import models

    from .tasks import small

    folders = {n: small.write_model(tmp_path / n, denoiser=n == "a") for n in "abc"}
    (folders["c"] / "config.yaml").write_text("window: none\n")
    monkeypatch.setattr("appa.tasks.loading.bundled", lambda: folders)
    found = models()
    assert list(found) == ["a", "b", "c"]
    assert re.fullmatch(r"states 4 × 9 × 16, latents 3 × \d × 8, windows of 4 h, .* MB", found["a"])
    assert "no denoiser" in found["b"]
    assert "window" in found["c"]
