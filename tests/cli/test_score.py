r"""`appa score`, as a user runs it: a model folder and a store in, scores and figures out."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from appa.cli.score import app
from appa.data import climatology as climatologies
from appa.errors import AppaError, DataError, StoreError
from appa.evaluation.files import load_scores, load_summary, save_scores

from ..evaluation.worlds import (
    GRID,
    NAMES,
    SPREAD,
    climatology,
    dataset,
    memory,
    season,
    stretches,
    untrained,
)

pytest.importorskip("ducc0")

runner = CliRunner()


def run(*args) -> str:
    result = runner.invoke(app, [str(a) for a in args])
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    r"""A model with random weights, a store with hours of training and of test, a climatology."""
    folder = tmp_path_factory.mktemp("score")
    model = untrained()
    model.save(folder / "model")
    times = np.concatenate([stretches(6, 16, "2001-02-01"), stretches(6, 16, "2004-02-01")])
    x = SPREAD * memory(12, 16, 0.9, 0) + season(times)[..., None, None, None]
    ds = dataset(x.reshape(-1, 4, *GRID.shape), times.ravel())
    ds["land_sea_mask"] = (("latitude", "longitude"), np.zeros(GRID.shape, np.float32))
    ds.to_zarr(folder / "store.zarr")
    climatologies.save(climatology(), folder / "climatology.nc")
    return folder


def test_autoencoder(folder):
    pytest.importorskip("matplotlib")
    out = folder / "autoencoder"
    told = run(
        *("autoencoder", folder / "model", "--data", folder / "store.zarr", "--out", out),
        *("--train-data", folder / "store.zarr", "--states", 40, "--device", "cpu"),
        *("--climatology", folder / "climatology.nc"),
    )
    names = {path.name for path in out.iterdir()}
    figures = {f"autoencoder-{kind}.png" for kind in ("rmse", "errors", "spectra", "seam")}
    assert names == {"autoencoder.nc", "autoencoder.json"} | figures
    assert max(path.stat().st_size for path in out.glob("*.png")) < 150_000
    scores, summary = load_scores(out, "autoencoder"), load_summary(out, "autoencoder")
    assert scores["channel"].values.tolist() == list(NAMES)
    assert scores.attrs["states"] == summary["states"] == 40
    assert summary["rmse"] == pytest.approx(float(scores["rmse"].mean()))
    assert summary["test_over_train"] > 0
    assert summary["model"]["compression"] == pytest.approx(4 * 8 * 16 / (4 * 4 * 8))
    assert f"standardized RMSE {summary['rmse']:.4f}, the mean over 4 channels of 40 states" in told
    gap = 100 * abs(summary["rmse"] / summary["rmse_train"] - 1)
    assert f"{summary['rmse_train']:.4f} in training, {gap:.0f} % apart" in told
    # A line a variable, over its levels, and the channels aloft that have a target.
    rows = re.findall(r"│ (\S.*?) +│ +([\d.]+) │ +([\d.·]+) │", told)
    rmse, weather = summary["rmse_by_channel"], summary["weather_by_channel"]
    assert rows == [
        ("t2m", f"{rmse['t2m']:.3f}", f"{weather['t2m']:.2f}"),
        ("sst", f"{rmse['sst']:.3f}", f"{weather['sst']:.2f}"),
        (
            "z, 2 levels",
            f"{(rmse['z500'] + rmse['z850']) / 2:.3f}",
            f"{(weather['z500'] + weather['z850']) / 2:.2f}",
        ),
        ("z500", f"{rmse['z500']:.3f}", f"{weather['z500']:.2f}"),
    ]


def test_prior(folder):
    out = folder / "prior"
    told = run(
        *("prior", folder / "model", "--data", folder / "store.zarr", "--out", out),
        *("--climatology", folder / "climatology.nc", "--members", 3, "--hours", "16,8,8"),
        *("--steps", 3, "--no-figures", "--device", "cpu"),
    )
    assert {path.name for path in out.iterdir()} == {"prior.nc", "prior.json"}
    scores, summary = load_scores(out, "prior"), load_summary(out, "prior")
    assert scores["length"].values.tolist() == [8, 16]
    assert summary["members"] == 3
    assert summary["stride"] == 4
    assert set(summary["lengths"]) == {"8", "16"}
    assert "land_sea_mask" in scores
    assert "16 h, 3 trajectories: draws (truth)" in told
    rho = summary["lengths"]["8"]["autocorrelation"]["t2m"]["1"]
    assert f"{rho['draws']:.3f} ({rho['truth']:.3f})" in told
    # Only trajectories of more than a window have joints.
    across = [at["draws"] for at in summary["lengths"]["16"]["tendency_across"].values()]
    joints = f"joints of windows are {min(across):.2f} to {max(across):.2f} times those elsewhere"
    assert joints in told
    assert told.count("joints of windows") == 1


def test_page_of_results(folder, tmp_path, monkeypatch):
    r"""The page quotes the scores, says what is not reached, and keeps words written by hand."""
    pytest.importorskip("matplotlib")
    for name in ("autoencoder", "prior"):
        where = ("--data", folder / "store.zarr", "--out", tmp_path / "scores")
        more = ("--states", 20) if name == "autoencoder" else ("--members", 2, "--hours", "8,16")
        steps = () if name == "autoencoder" else ("--steps", 2)
        climate = ("--climatology", folder / "climatology.nc", "--no-figures")
        run(name, folder / "model", *where, *more, *steps, *climate)
        if name == "prior":
            where = (*where[:-1], tmp_path / "scores" / "composed")
            run(name, folder / "model", *where, *more, *steps, *climate, "--mode", "composed")
    shutil.copytree(tmp_path / "scores", tmp_path / "half", ignore=lambda *_: ["composed"])
    for path in (tmp_path / "half").glob("prior.*"):
        path.unlink()
    tool = Path(__file__).parents[2] / "tools" / "prior_page.py"
    page = tmp_path / "results" / "prior.md"
    models = [f"planet={tmp_path / 'scores'}", f"planet-large={tmp_path / 'half'}"]
    arguments = [str(tool), *models, "--out", str(page.parent)]
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.syspath_prepend(str(tool.parent))
    runpy.run_path(str(tool), run_name="__main__")
    text = page.read_text()
    summary = load_summary(tmp_path / "scores", "autoencoder")
    row = f"| reconstruction RMSE, mean over channels | ≤ 0.11 | {summary['rmse']:.3f} | **no** |"
    assert row in text
    assert "| compression | ≥ 60× | 4× | **no** |" in text
    assert "| compression | ≥ 120× | 4× | **no** |" in text  # of one without a prior
    long = load_summary(tmp_path / "scores" / "composed", "prior")["lengths"]["16"]
    least = long["variance_by_hour"]["least"]
    assert re.search(rf"{least:.2f} to [0-9.]+ of the truth's \(planet, 16 h composed\)", text)
    assert "draws less truth, 16 h window after window |" in text
    rho = load_summary(tmp_path / "scores", "prior")["lengths"]["8"]["autocorrelation"]["z500"]["1"]
    assert f"| z500 | {rho['draws']:.3f} ({rho['truth']:.3f}) |".replace("-", "−") in text
    shown = re.findall(r"\(figures/(.*?)\)", text)
    assert len(shown) == 10
    assert all((page.parent / "figures" / name).exists() for name in shown)

    page.write_text(text.replace("## Memory", "## Memory, by hand"))
    monkeypatch.setattr(sys, "argv", [*arguments, "--no-figures"])
    runpy.run_path(str(tool), run_name="__main__")
    assert page.read_text() == text.replace("## Memory", "## Memory, by hand")


def test_refusals(folder, tmp_path):
    model, store = folder / "model", folder / "store.zarr"
    with pytest.raises(DataError, match="hours 'a day' are not lengths"):
        run(
            *("prior", model, "--data", store, "--out", tmp_path, "--climatology", "planet"),
            *("--hours", "a day"),
        )
    climate = folder / "climatology.nc"
    for hours, least in (("1", 1), ("0", 0), ("8,1", 1)):
        with pytest.raises(DataError, match=f"trajectories of {least} hours, expected 2 or more"):
            run(
                *("prior", model, "--data", store, "--out", tmp_path, "--climatology", climate),
                *("--hours", hours),
            )
    with pytest.raises(DataError, match="a stride of 3, expected from 1 to the window, 8"):
        run(
            *("prior", model, "--data", store, "--out", tmp_path, "--climatology", climate),
            *("--stride", 3),
        )
    with pytest.raises(DataError, match="the climatology is of Grid"):
        run("prior", model, "--data", store, "--out", tmp_path, "--climatology", "planet")
    with pytest.raises(AppaError, match="no model folder"):
        run("autoencoder", folder / "nothing", "--data", store, "--out", tmp_path)
    assert not list(tmp_path.iterdir())


def test_figures_that_cannot_be_drawn_are_told_first(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cmocean", None)  # as if it were not installed
    with pytest.raises(AppaError, match=r"pip install 'appa-assimilation\[plots\]'"):
        run("autoencoder", folder / "model", "--data", folder / "store.zarr", "--out", tmp_path)
    assert not list(tmp_path.iterdir())


def test_files_keep_what_is_not_known(tmp_path):
    r"""NaN is null in JSON, which has none; other files are not replaced by scores."""
    scores = climatology()[["2m_temperature"]]
    summary = {"seam": {"low": float("nan")}, "list": [1.0, float("inf")], "years": {2004: 0.5}}
    save_scores(scores, summary, tmp_path, "a")
    found = json.loads((tmp_path / "a.json").read_text())
    assert found == {"seam": {"low": None}, "list": [1.0, None], "years": {"2004": 0.5}}
    np.testing.assert_array_equal(
        load_scores(tmp_path, "a")["2m_temperature"], scores["2m_temperature"]
    )
    climatologies.save(climatology(), tmp_path / "b.nc")
    with pytest.raises(StoreError, match="holds climatology"):
        save_scores(scores, summary, tmp_path, "b")
    (tmp_path / "c.json").mkdir()
    with pytest.raises(StoreError, match=r"cannot write '.*c\.json' \(.*directory"):
        save_scores(scores, summary, tmp_path, "c")
    assert not list(tmp_path.glob(".*"))
