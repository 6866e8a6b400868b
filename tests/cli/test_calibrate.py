r"""`appa calibrate`, `appa budget` and `appa increment` with a small model that knows nothing."""

from __future__ import annotations

import re

import pandas as pd
import pytest
import typer
import xarray as xr
from typer.testing import CliRunner

import appa
from appa.cli import increment as increments
from appa.cli.calibrate import register
from appa.errors import AppaError

from ..evaluation.test_comparison import pair
from ..tasks import small


@pytest.fixture
def run(tmp_path):
    app = typer.Typer()
    register(app)
    folder = small.write_model(tmp_path / "model", denoiser=True)
    given = ["--start", "2001-01-01T03", "--hours", "2", "--members", "2", "--steps", "3"]
    given += ["--stations", "3", "--device", "cpu"]

    def invoke(command: str, *words: str) -> str:
        result = CliRunner().invoke(app, [command, str(folder), *given, *words])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.output

    return invoke


def test_calibrate(run, tmp_path):
    out = tmp_path / "ranks"
    told = run("calibrate", "--count", "1", "--out", str(out))
    assert "simulations: 1, of 2 hours and 2 members each" in told
    assert f"{out / 'calibration.nc'} is written" in told.replace("\n", "")
    assert sorted(p.name for p in out.glob("0*.nc")) == ["0000.nc"]
    # a line on how closely members fit, over how closely the truth does, as the file has it
    line = next(line for line in told.splitlines() if line.startswith("misfit"))
    assert "of one simulation: an exact posterior has 1" in line
    with xr.open_dataset(out / "0000.nc") as kept:
        values = kept.sel(quantity="misfit")
        truth, members = (float(values[f"scalar_{of}"].mean()) for of in ("truth", "members"))
    numbers = [float(n) for n in re.findall(r"\d+\.\d{3}", line)]
    assert numbers == pytest.approx([truth, members, members / truth], abs=6e-4)
    with xr.open_dataset(out / "calibration.nc") as found:
        assert found["field_frequency"].sum("rank").values == pytest.approx(1)
    with pytest.raises(AppaError, match="errors"):  # begun with other errors
        run("calibrate", "--count", "1", "--out", str(out), "--errors", "0.5")
    # as an older version left it, and goes on from there
    old = xr.load_dataset(out / "0000.nc").drop_vars(["scalar_truth", "scalar_members"])
    old.to_netcdf(out / "0000.nc")
    assert "misfit" not in run("calibrate", "--count", "1", "--out", str(out))
    assert "(1 were kept without it)" in run("calibrate", "--count", "2", "--out", str(out))


def test_budget_names_what_there_is(run, tmp_path):
    store = small.write_states(tmp_path / "truth.zarr")
    words = ["--truth", str(store), "--out", str(tmp_path / "budget")]
    with pytest.raises(AppaError, match="did you mean 'decoder'"):
        run("budget", *words, "--only", "decodr")
    words += ["--variables", "t2m", "--count", "1"]
    with pytest.raises(AppaError, match="sees no 't2n' to withhold; did you mean 't2m'"):
        run("budget", *words, "--withhold", "t2n")
    # which is a variable, but the truth has none to observe
    with pytest.raises(AppaError, match="sees no 'msl' to withhold; known: 2m_temperature, "):
        run("budget", *words, "--withhold", "msl")
    with pytest.raises(AppaError, match=r"give KEY=VALUE with commas, e\.g\. steps=48"):
        run("budget", *words, "--reference", "steps")
    with pytest.raises(AppaError, match="unknown setting 'step'; did you mean 'steps'"):
        run("budget", *words, "--reference", "step=4")
    assert not (tmp_path / "budget").exists()


def test_the_reference_of_a_budget_may_be_a_cheaper_one(run, tmp_path):
    store = small.write_states(tmp_path / "truth.zarr")
    words = ["--truth", str(store), "--variables", "t2m", "--count", "1", "--only", "setting"]
    words += ["--no-residual", "--iterations", "2", "--tolerance", "0"]
    found = {}
    for name, reference in (("same", "steps=3,iterations=2"), ("more", "steps=5,iterations=4")):
        out = tmp_path / name
        given = ["--out", str(out), "--reference", f"{reference},tolerance=0"]
        assert "or runs no worse, cannot be told" in run("budget", *words, *given)
        table = pd.read_csv(out / "budget.csv")
        table = table[(table["variation"] == "setting") & (table["score"] == "crps")]
        found[name] = table["difference"].item()
    assert found["same"] == 0
    assert found["more"] != 0


def test_a_budget_tells_what_is_no_worse(run, tmp_path, monkeypatch):
    r"""Worse by 1 %, by 5 %, and by what cannot be told among as much noise."""
    means = {"reference": pair(0, 0)[0]}
    means |= {name: pair(d, e)[1] for name, d, e in (("steps", 0.01, 0.001),
                                                     ("solver", 0.05, 0.001),
                                                     ("bias", 0.02, 0.5))}  # fmt: skip
    monkeypatch.setattr("appa.tasks.experiments.error_budget", lambda *_, **__: means)
    said = run("budget", "--truth", "planet", "--out", str(tmp_path))
    skill, crps = said.split("crps:")
    assert "no worse by 2 %" in skill
    for line in (r"reference +1 *", r"steps +\+1\.0 %\* no worse", r"solver +\+5\.0 %\* worse *",
                 r"bias +\+2\.0 %  · *"):  # fmt: skip
        assert re.search(f"^{line}$", crps, re.M), crps
    found = pd.read_csv(tmp_path / "budget.csv").set_index(["variation", "score"])["verdict"]
    verdicts = [found[name, "crps"] for name in ("steps", "solver", "bias")]
    assert verdicts == ["no worse", "worse", "not told"]
    said = run("budget", "--truth", "planet", "--out", str(tmp_path), "--margin", "6")
    assert re.search(r"^solver +\+5\.0 %\* no worse$", said.split("crps:")[1], re.M)


def test_an_increment(tmp_path):
    app = typer.Typer()
    app.command()(lambda: None)  # of one command Typer would make no group
    increments.register(app)
    folder = small.write_model(tmp_path / "model", denoiser=True)
    out = tmp_path / "one.nc"

    def invoke(channel: str, *words: str) -> str:
        given = ["--start", "2001-01-01T03", "--hours", "2", "--members", "3", "--steps", "3"]
        words = ("increment", str(folder), channel, *given, "--out", str(out), *words)
        result = CliRunner().invoke(app, words)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.output

    name = appa.load(str(folder)).config.channels[0].name
    told = invoke(name, "--at", "10,20", "--device", "cpu")
    assert "drawn           changes it by" in told
    assert re.search(r"by its members +changes it by .*; alike everywhere by -?[01]\.\d\d", told)
    with xr.open_dataset(out) as found:
        assert {"departure", "error", "value", "spread"} <= found.attrs.keys()
    # what is known besides is told, with what is left out of it
    seen = tmp_path / "seen.csv"
    lines = ["2001-01-01T03,50,10,t2m,280,1", "2001-01-01T03,95,10,t2m,280,1"]
    seen.write_text("time,latitude,longitude,variable,value,error\n" + ",\n".join([*lines, ""]))
    told = invoke(name, "--at", "10,20", "--device", "cpu", "--known", str(seen))
    assert "1 observations in 1 of 2 hours" in told
    assert "impossible" in told or "latitude" in told
    with pytest.raises(AppaError, match="latitude of 95"):
        invoke(name, "--at", "95,20")
    with pytest.raises(AppaError, match="give latitude and longitude"):
        invoke(name, "--at", "north")
    with pytest.raises(AppaError, match="no channel 't2'"):
        invoke("t2", "--at", "10,20", "--device", "cpu")
