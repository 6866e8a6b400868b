r"""`appa evaluate`, as a user runs it: ensembles with errors that are known."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
import xarray as xr
from typer.testing import CliRunner

from appa.cli import evaluate
from appa.data import climatology
from appa.data.grids import Grid
from appa.errors import AppaError, DataError

GRID = Grid("equiangular-cells", 8, 16)
DAYS = 8
HARD = np.array([1.4, 0.6, 1.2, 0.7, 1.3, 0.8, 1.1, 0.9])  # days, none like the next


def world(days: int = DAYS) -> xr.Dataset:
    rng = np.random.default_rng(0)
    times = pd.date_range("2021-03-21", periods=24 * days, freq="h")
    coords = {"time": times, "level": [500, 850]}
    coords |= {"latitude": GRID.latitude, "longitude": GRID.longitude}
    shape = (24 * days, 2, *GRID.shape)
    dims = ("time", "level", "latitude", "longitude")
    ds = xr.Dataset({"temperature": (dims, rng.normal(250, 5, shape).astype("float32"))}, coords)
    surface = ds["temperature"].isel(level=1, drop=True) + 30
    mask = np.broadcast_to(np.arange(16) < 4, GRID.shape).astype("float32")
    ds["2m_temperature"] = surface.assign_attrs(units="K")
    return ds.assign(land_sea_mask=(("latitude", "longitude"), mask))


def drawn(
    truth: xr.Dataset, seed: int, hard: np.ndarray | None = None, **sizes: float
) -> xr.Dataset:
    r"""Two members, with errors of a size that differs from day to day."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, size in sizes.items():
        name = {"t2m": "2m_temperature", "t": "temperature"}[name]
        noise = rng.normal(size=(2, *truth[name].shape)) * size
        day = np.repeat(HARD if hard is None else hard, 24)
        noise = noise * day.reshape(1, -1, *[1] * (truth[name].ndim - 1))
        dims = ("member", *truth[name].dims)
        found[name] = (truth[name] + xr.DataArray(noise, dims=dims)).astype("float32")
    return xr.Dataset(found).assign_coords(member=[0, 1]).transpose("member", "time", ...)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder, truth = tmp_path_factory.mktemp("evaluate"), world()
    truth.to_zarr(folder / "truth.zarr", zarr_format=3, consolidated=False)
    drawn(truth, 1, t2m=1.0, t=1.0).to_netcdf(folder / "a.nc")
    drawn(truth, 2, t2m=0.9, t=1.0).to_netcdf(folder / "b.nc")
    drawn(truth, 2, t2m=0.9, t=1.0).isel(time=slice(48)).to_netcdf(folder / "short.nc")
    return folder


def run(folder: Path, *args: str) -> str:
    app = typer.Typer()
    evaluate.register(app)
    paths = [str(folder / a) if a.endswith((".nc", ".zarr")) and "/" not in a else a for a in args]
    result = CliRunner().invoke(app, paths)
    if result.exception is not None:
        raise result.exception
    return result.output


def row(output: str, name: str) -> list[str]:
    return re.search(rf"^{name} +(.*)$", output, re.MULTILINE)[1].split()  # type: ignore[index]


def test_one(folder, tmp_path):
    r"""Skill, spread and CRPS of N(0, s) members of a truth that is 0: s/√2, s and E|e|, less half
    of E|e − e'|: (√(2/π) − 1/√π) s, with s² the mean of the days'."""
    out = tmp_path / "scores.nc"
    output = run(
        folder, "a.nc", "--truth", "truth.zarr", "--regions", "global,land", "--out", str(out)
    )
    s, mean = np.sqrt((HARD**2).mean()), HARD.mean()
    unit, skill, spread, ratio, crps = row(output, "t2m")
    error = 4 / np.sqrt(24 * DAYS * 8 * 16)
    assert unit == "K"
    assert float(skill) == pytest.approx(s / np.sqrt(2), rel=error + 5e-3)
    assert float(spread) == pytest.approx(s, rel=error + 5e-3)
    assert float(ratio) == pytest.approx(np.sqrt(1.5) * np.sqrt(2), abs=0.03)
    expected = (np.sqrt(2 / np.pi) - 1 / np.sqrt(np.pi)) * mean
    assert float(crps) == pytest.approx(expected, abs=error + 5e-4)
    assert "a.nc: 2 members, 192 hours" in output
    scores = xr.open_dataset(out)
    assert dict(scores.sizes) == {"region": 2, "time": 192, "channel": 3}
    assert scores["channel"].values.tolist() == ["t2m", "t500", "t850"]
    assert scores["skill"].attrs["long_name"]
    assert scores["level"].attrs["units"] == "hPa"


def test_two(folder):
    r"""One variable is better by a tenth, the other by chance if at all."""
    output = run(folder, "a.nc", "b.nc", "--truth", "truth.zarr")
    skill, crps = output.split("CRPS, A")
    for table in (skill, crps):
        _, a, b, difference, low, _, high, better, *verdict = row(table, "t2m")
        assert better == "B"
        assert verdict == ["no", "worse"]
        assert float(b) / float(a) == pytest.approx(0.9, abs=0.02)
        assert float(low) < float(difference) < float(high) < 0
        assert row(table, "t500")[7] == "·"
    # of t2m they resemble the next by chance
    told = (
        r"8 blocks of 24 hours, which resemble the next and count as 5 to 8: \d of 6 differences "
    )
    assert re.search(told + "are real; about 0.3 would be by chance alone", output)
    # each way the same
    output = run(folder, "b.nc", "a.nc", "--truth", "truth.zarr", "--variables", "t2m")
    assert "B, by 2 %" in output
    assert row(output, "t2m")[-2:] == ["A", "worse"]
    swapped = ["b.nc", "a.nc", "--truth", "truth.zarr", "--variables", "t2m", "--margin", "20"]
    assert row(run(folder, *swapped), "t2m")[-3:] == ["A", "no", "worse"]
    output = run(folder, "a.nc", "b.nc", "--truth", "truth.zarr", "--days", "2")
    assert "4 blocks of 48 hours: 6 or more are needed" in output
    assert row(output, "t2m")[-2:] == ["·", "·"]
    output = run(folder, "a.nc", "short.nc", "--truth", "truth.zarr")
    assert "2 blocks of 24 hours: 6 or more" in output


def test_days_that_resemble_the_next(folder, tmp_path):
    r"""A difference that grows from day to day is the same on all eight by its sign, and yet of
    days that are not independent: the command says as how many they count."""
    truth, hard = world(), np.arange(1.0, DAYS + 1)
    for name, size in (("a", 1.0), ("b", 0.8)):
        drawn(truth, 1, hard, t2m=size).to_netcdf(tmp_path / f"{name}.nc")
    pair = [str(tmp_path / "a.nc"), str(tmp_path / "b.nc")]
    output = " ".join(run(folder, *pair, "--truth", "truth.zarr").split())
    told = "8 blocks of 24 hours, which resemble the next and count as 1: 3 or more are needed"
    assert told in output
    # dates that are days apart are what they say, whatever their differences
    for path in pair:
        ds = xr.open_dataset(path).load()
        parts = [part.assign_attrs(task="forecast") for _, part in ds.groupby("time.date")]
        for k in range(0, DAYS, 2):
            parts[k].to_netcdf(path.replace(".nc", f"-{k}.nc"))
    dates = [str(tmp_path / f"{name}-*.nc") for name in "ab"]
    output = run(folder, *dates, "--truth", "truth.zarr", "--leads", "1")
    assert "4 dates: 6 or more" in " ".join(output.split())


def test_climatology(folder, tmp_path):
    r"""Of white noise: its error is its deviation, its CRPS 1/√π of it."""
    clim = climatology.fit(world().drop_vars("land_sea_mask"), harmonics=0)
    path = climatology.save(clim, tmp_path / "climatology.nc")
    output = run(folder, "a.nc", "--truth", "truth.zarr", "--climatology", str(path))
    *_, skill, crps = row(output, "t850")
    assert float(skill) == pytest.approx(5, rel=0.02)
    assert float(crps) == pytest.approx(5 / np.sqrt(np.pi), rel=0.02)
    coarse = climatology.save(clim.isel(longitude=slice(None, None, 2)), tmp_path / "coarse.nc")
    with pytest.raises(DataError, match=r"the climatology is on .*longitudes=8\), the truth"):
        run(folder, "a.nc", "--truth", "truth.zarr", "--climatology", str(coarse))
    # and beside A, where B is compared with it
    both = run(folder, "a.nc", "b.nc", "--truth", "truth.zarr", "--climatology", str(path))
    assert row(both, "t850") == row(output, "t850")
    assert row(both.split("skill, A")[1], "t2m")[-3] == "B"


def test_forecasts(folder, tmp_path):
    r"""Of eight dates, with members τ/10 above and below the truth, and 1 off for B at 6 hours; the
    truth of the hour they were issued at is √2 · 5 off."""
    truth = world()
    sign = xr.DataArray([1.0, -1.0], {"member": [0, 1]})
    for day in range(DAYS):
        part = truth[["temperature"]].isel(time=slice(24 * day + 1, 24 * day + 13))
        lead = xr.DataArray(np.arange(1.0, 13), {"time": part["time"]})
        a = (part + 0.1 * lead * sign).transpose("member", ...).assign_attrs(task="forecast")
        b = (a + (lead == 6)).assign_attrs(task="forecast")
        a.to_netcdf(tmp_path / f"a{day}.nc")
        b.to_netcdf(tmp_path / f"b{day}.nc")
    out = tmp_path / "scores.nc"
    pattern = f"{tmp_path}/a*.nc"
    output = run(folder, pattern, "--truth", "truth.zarr", "--persistence", "--out", str(out))
    assert "2 members, 8 forecasts of 1 to 12 h" in output
    titles = re.findall(r"^global, (\d+) h ahead", output, re.MULTILINE)
    assert titles == ["1", "6", "12"]
    _, _, spread, _, _, skill, _ = row(output.split("12 h ahead")[1], "t500")
    assert float(spread) == pytest.approx(1.2 * np.sqrt(2), rel=5e-3)
    error = 5 / np.sqrt(DAYS * 8 * 16)
    assert float(skill) == pytest.approx(5 * np.sqrt(2), rel=error)
    scores = xr.open_dataset(out)
    assert scores["estimate"].values.tolist() == ["A", "persistence"]
    assert dict(scores.sizes) == {"estimate": 2, "region": 1, "lead_time": 12, "channel": 2}

    output = run(folder, pattern, f"{tmp_path}/b*.nc", "--truth", "truth.zarr", "--leads", "1,6")
    one, six = output.split("global, 6 h ahead", 1)
    assert row(one, "t500")[-1] == "·"
    assert row(six, "t500")[-2:] == ["A", "worse"]
    assert "8 dates: " in six
    with pytest.raises(DataError, match="no forecast has lead time 13 h; they have 1 to 12 h"):
        run(folder, pattern, "--truth", "truth.zarr", "--leads", "13")
    for leads in ("six", ","):  # told before anything is opened: that nothing is there is not
        with pytest.raises(SystemExit):
            run(folder, "nowhere.nc", "--truth", "truth.zarr", "--leads", leads)
    with pytest.raises(SystemExit):  # a pattern without quotes
        run(folder, *sorted(map(str, tmp_path.glob("a*.nc"))), "--truth", "truth.zarr")


def test_two_of_a_kind(folder, tmp_path, monkeypatch):
    r"""A forecast beside an analysis is refused either way, and before anything is scored."""
    late = drawn(world(), 1, t2m=1.0).isel(time=slice(24)).assign_attrs(task="forecast")
    late.to_netcdf(tmp_path / "forecast.nc")
    monkeypatch.setattr("appa.evaluation.forecasts.averages", None)
    pair = [str(tmp_path / "forecast.nc"), "a.nc"]
    with pytest.raises(DataError, match="A is a forecast, and B does not say when it was issued"):
        run(folder, *pair, "--truth", "truth.zarr")
    with pytest.raises(DataError, match="B is a forecast, and A does not say when it was issued"):
        run(folder, *pair[::-1], "--truth", "truth.zarr")


def test_errors(folder, tmp_path):
    with pytest.raises(DataError, match="did you mean 'ocean'"):
        run(folder, "a.nc", "--truth", "truth.zarr", "--regions", "oceans")
    (tmp_path / "mine.nc").write_text("mine")
    with pytest.raises(AppaError, match="exists already"):
        run(folder, "a.nc", "--truth", "truth.zarr", "--out", str(tmp_path / "mine.nc"))
    with pytest.raises(AppaError, match="nothing"):
        run(folder, "nothing.zarr", "--truth", "truth.zarr")
