r"""`appa plot`: every kind writes its figure, and says what is wrong with what it is given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

pytest.importorskip("matplotlib", reason="the extra 'plots' is not installed")
pytest.importorskip("cmocean", reason="the extra 'plots' is not installed")
pytest.importorskip("ducc0", reason="the extra 'evaluation' is not installed")

from PIL import Image
from typer.testing import CliRunner

from appa.cli import plot
from appa.data import netcdf
from appa.data.grids import Grid
from appa.errors import AppaError, DataError
from appa.evaluation.files import KIND
from appa.evaluation.scores import evaluate
from appa.plots.gathering import coast_of, labelled, levels_of, scores_of, spectra_of

GRID = Grid("gaussian", 8, 16)
DIMS = ("time", "latitude", "longitude")
HOURS = 12


def world() -> xr.Dataset:
    rng = np.random.default_rng(0)
    coords = {
        "time": pd.date_range("2021-03-21", periods=HOURS, freq="h"),
        "level": [500, 850],
        "latitude": GRID.latitude,
        "longitude": GRID.longitude,
    }
    data = {
        "2m_temperature": (DIMS, rng.normal(280, 9, (HOURS, *GRID.shape)), {"units": "K"}),
        "temperature": (
            ("time", "level", *DIMS[1:]),
            rng.normal(250, 9, (HOURS, 2, *GRID.shape)),
            {"units": "K"},
        ),
        "land_sea_mask": (DIMS[1:], (rng.random(GRID.shape) < 0.3).astype(float)),
    }
    return xr.Dataset(data, coords).astype("float32")


def drawn(truth: xr.Dataset, seed: int, size: float) -> xr.Dataset:
    rng, fields = np.random.default_rng(seed), truth.drop_vars("land_sea_mask")
    members = [fields.map(lambda x: x + size * rng.normal(size=x.shape)) for _ in range(4)]
    return xr.concat(members, "member").astype("float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder, truth = tmp_path_factory.mktemp("plot"), world()
    truth.to_netcdf(folder / "truth.nc")
    run = drawn(truth, 1, 1.0)
    run.to_netcdf(folder / "a.nc")
    for k, first in enumerate((1, 5, 9)):
        run.isel(time=slice(first, first + 3)).to_netcdf(folder / f"date{k}.nc")
    netcdf.save(evaluate(run, truth), folder / "scores.nc", KIND)
    seen = truth["2m_temperature"].isel(time=0).to_dataframe().reset_index().iloc[:20]
    rows = seen.rename(columns={"2m_temperature": "value"})
    rows = rows.assign(variable="2m_temperature", error=0.5)
    rows[["time", "latitude", "longitude", "variable", "value", "error"]].to_csv(
        folder / "seen.csv", index=False
    )
    return folder


def run(folder: Path, *args: str) -> str:
    paths = [str(folder / a) if a.endswith((".nc", ".csv")) else a for a in args]
    result = CliRunner().invoke(plot.app, paths)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


COMMANDS = {
    "map": ("a.nc", "t850", "--show", "spread", "--hour", "3"),
    "gallery": (
        *("a.nc", "--truth", "truth.nc", "--variables", "t2m", "--members", "1"),
        *("--hours", "0,2021-03-21T06", "--observations", "seen.csv"),
    ),
    "skill": ("a.nc", "scores.nc", "--truth", "truth.nc", "--persistence", "--scores", "crps"),
    "spectra": ("a.nc", "--truth", "truth.nc", "--variables", "t2m"),
    "levels": ("a.nc", "--truth", "truth.nc"),
    "ranks": ("a.nc", "--truth", "truth.nc", "--variables", "t2m"),
    "histogram": ("a.nc", "--truth", "truth.nc", "--variables", "t2m,t500"),
    "animation": ("a.nc", "t2m", "--every", "6", "--truth", "truth.nc"),
}


@pytest.mark.filterwarnings("ignore:.*hours are not scored")
@pytest.mark.parametrize("kind", COMMANDS)
def test_every_kind_is_drawn(kind, folder, tmp_path):
    args = list(COMMANDS[kind])
    if kind == "skill":  # persistence takes an hour before the first
        args[0] = "date0.nc"
    out = tmp_path / f"figure.{'gif' if kind == 'animation' else 'png'}"
    output = run(folder, kind, *args, "--out", str(out), "--dpi", "30")
    assert f"{out} is written" in output.replace("\n", "")
    with Image.open(out) as image:
        colours = image.convert("RGB").getcolors(2**20)
        assert colours is not None
        assert len(colours) > 20
        if kind == "animation":
            assert image.n_frames == 2
    assert [p.name for p in tmp_path.iterdir()] == [out.name]


def test_one_label_of_several_dates(folder):
    r"""Scores are by lead time, with intervals, of runs and of what persists; of one run, by hour,
    and those of a file are the same."""
    truth = str(folder / "truth.nc")
    found = scores_of([f"mine={folder}/date?.nc"], truth, variables=["t2m"], persistent=True)
    assert list(found) == ["mine", "persistence"]
    assert found["mine"]["lead_time"].values.tolist() == [1, 2, 3]
    assert found["mine"].attrs["dates"] == 3
    at = found["mine"].isel(region=0, channel=0)
    assert (at["crps_low"] <= at["crps"]).all()
    # white noise of deviation 9 that stays as it is: √2 of it, from 3 × 128 points
    lasting = found["persistence"]["skill"].values
    np.testing.assert_allclose(lasting, 9 * np.sqrt(2), rtol=5 / np.sqrt(2 * 3 * 128))
    both = scores_of([str(folder / "a.nc"), str(folder / "scores.nc")], truth)
    np.testing.assert_allclose(
        both["a"]["skill"].sel(channel="t2m"), both["scores"]["skill"].sel(channel="t2m")
    )
    with pytest.raises(DataError, match="no scores of 'tropics'"):
        scores_of([str(folder / "scores.nc")], region="tropics")

    levels = levels_of([f"x={folder}/date?.nc"], truth)["x"]
    each = scores_of([f"x={folder}/date?.nc"], truth, variables=["t500"])["x"]
    pooled = np.sqrt((each["skill"].values ** 2).mean())
    assert levels["skill"].sel(channel="t500").item() == pytest.approx(pooled, rel=1e-6)
    assert levels.sizes == {"region": 1, "channel": 3}
    sources = spectra_of([f"x={folder}/a.nc", f"{folder}/date0.nc"], truth, variables=["t2m"])
    assert sources["source"].values.tolist() == ["truth", "x", "date0"]


def test_labels(folder):
    words = ["runs/a.zarr", "other/a.zarr", "mine=b.zarr", "mine=c.zarr", f"{folder}/date?.nc"]
    found = labelled(words)
    assert list(found) == ["a", "other/a.zarr", "mine", f"{folder}/date?.nc"]
    assert found["mine"] == ["b.zarr", "c.zarr"]
    assert len(found[f"{folder}/date?.nc"]) == 3
    assert coast_of(None, world()).shape == GRID.shape
    assert coast_of(world().drop_vars("land_sea_mask")).shape == (48, 96)  # bundled


def test_what_is_wrong(folder, tmp_path):
    assert "No such command 'mapp'" in run(folder, "mapp", "a.nc")
    with pytest.raises(DataError, match="no 't2n' to draw; did you mean 't2m'"):
        run(folder, "map", "a.nc", "t2n", "--out", str(tmp_path / "x.png"))
    with pytest.raises(DataError, match="no hour 2021-04-01T00; there are 12, from 2021-03-21T00"):
        run(folder, "map", "a.nc", "t2m", "--hour", "2021-04-01", "--out", str(tmp_path / "x.png"))
    with pytest.raises(DataError, match="give one: --truth STORE"):
        run(folder, "skill", "a.nc", "--out", str(tmp_path / "x.png"))
    with pytest.raises(DataError, match="estimate and truth have no 't2n'; did you mean"):
        run(folder, "ranks", "a.nc", "--truth", "truth.nc", "--variables", "t2n")
    # before any work: the run is not even there
    with pytest.raises(DataError, match="which tells no format"):
        run(folder, "map", "nothing.nc", "t2m", "--out", "map.bmp")
    with pytest.raises(AppaError, match="nothing"):
        run(folder, "map", "nothing.nc", "t2m", "--out", str(tmp_path / "x.png"))
    assert list(tmp_path.iterdir()) == []
