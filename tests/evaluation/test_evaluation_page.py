r"""What `docs/evaluation.md` shows, runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

from appa.cli import application
from appa.config import load_config
from appa.data.planet.simulation import Plan
from appa.data.stores import open_store

PAGE = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text()
SPREAD = {"analysis": 0.5, "other": 2.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    r"""Ensembles about the planet's truth, of which it could be one more member."""
    folder = tmp_path_factory.mktemp("page")
    names = ["2m_temperature", "temperature"]
    truth = open_store("planet")[names].isel(time=slice(0, 6)).sel(level=[500, 850]).load()
    rng = np.random.default_rng(0)
    for name, std in SPREAD.items():
        centre = {k: v + std * rng.standard_normal(v.shape) for k, v in truth.items()}
        members = [
            xr.Dataset({k: v + std * rng.standard_normal(v.shape) for k, v in centre.items()})
            for _ in range(4)
        ]
        ds = xr.concat(members, "member").astype(np.float32)
        for k in names:
            ds[k].attrs = truth[k].attrs
        ds.to_zarr(folder / f"{name}.zarr", zarr_format=3)
    return folder


def test_commands(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (block,) = re.findall(r"<!-- begin commands -->(.*?)<!-- end commands -->", PAGE, re.S)
    said = []
    for line in block.strip().splitlines():
        name, *arguments = shlex.split(line)
        assert name == "appa"
        result = CliRunner().invoke(application(), arguments)
        if result.exception is not None:
            raise result.exception
        said.append(result.output)
        if "--out" in arguments:
            assert Path(arguments[arguments.index("--out") + 1]).stat().st_size > 5000
    # the mean of four is off by √(1 + 1/4) of the spread
    for table in re.findall(r"^t2m .*", said[0], re.M):
        skill, spread, ratio = map(float, table.split()[2:5])
        assert skill == pytest.approx(0.5 * np.sqrt(5 / 4), rel=0.03)
        assert spread == pytest.approx(0.5, rel=0.03)
        assert ratio == pytest.approx(1, abs=0.03)
    assert len(re.findall(r"^t2m .*", said[0], re.M)) == 2  # globe and tropics


def test_what_long_commands_ask_for_exists():
    r"""Those that draw for minutes are understood, and their dates are in the store they name."""
    from typer.main import get_command

    lines = re.findall(r"^    appa ((?:calibrate|budget) .*)", PAGE, re.M)
    assert [line.split()[0] for line in lines] == ["calibrate", "budget"]
    for line in lines:
        name, *arguments = shlex.split(line)
        command = get_command(application()).commands[name]  # type: ignore[attr-defined]
        given = command.make_context(name, arguments).params
        if "truth" not in given:
            continue
        runs = [given["every"] * k + np.arange(given["hours"]) for k in range(given["count"])]
        hours = np.datetime64(given["start"], "h") + np.concatenate(runs)
        assert np.isin(hours, open_store(given["truth"])["time"].values).all(), line


def given(line: str) -> tuple[str, dict[str, Any]]:
    r"""The command of a line, and what it is told: an option that is not there is an error."""
    from typer.main import get_command

    name, *words = shlex.split(line)
    assert name == "appa"
    command: Any = get_command(application())
    path = []
    while hasattr(command, "commands"):
        path.append(words.pop(0))
        command = command.commands[path[-1]]
    return " ".join(path), command.make_context(path[-1], words).params


def hours_of(start: str, hours: int) -> set[np.datetime64]:
    return set(np.datetime64(start, "h") + np.arange(hours))


def test_the_filter_and_increments_fit_together():
    r"""What is long to run is understood, every file named is made by a line above, of hours that
    are there; and what stands beside an increment is a background: of the observation's hour
    neither the filter nor the model has observations."""
    kinds = ("data simulate", "observe", "baseline letkf", "increment")
    lines = re.findall(r"^    (appa .*)", PAGE.replace("\\\n", " "), re.M)
    told = [given(line) for line in lines if line.split(" ", 1)[1].startswith(kinds)]
    assert {name for name, _ in told} == set(kinds)
    # the hours of what each file holds, or of which it was made
    made: dict[str, set[np.datetime64]] = {}
    beside = 0
    for name, about in told:
        if name == "data simulate":
            plan = Plan(
                *(about[key] for key in ("members", "days", "first_year", "seed", "every")),
                *(about[key] for key in ("spin_up", "diurnal", "stretch", "each", "held_out")),
            )
            made[str(about["out"])] = set(plan.times().astype("datetime64[h]"))
            continue
        if name == "observe":
            seen = hours_of(about["start"], about["hours"])
            assert seen <= made[about["store"]]
            made[str(about["out"])] = made[str(about["out"].with_suffix(".swath.nc"))] = seen
            continue
        if name == "baseline letkf":
            cycled = hours_of(about["start"], about["hours"])
            for path in about["observations"]:
                assert made[path] <= cycled
                assert len(cycled - made[path]) <= 1
            if about["tune"] is not None:
                assert cycled <= made[about["tune"]]
            assert about["tuned"] is None or str(about["tuned"]) in made
            kept = sorted(cycled)[about["discard"] :]
            made[str(about["out"])] = set(kept)
            continue
        assert about["model"] == "planet"
        window = about["hours"] or load_config("planet").window
        hour = np.datetime64(about["start"], "h") + about["hour"]
        assert about["hour"] < window
        period = hours_of(about["start"], window)
        for path in about["known"] or ():
            assert period - made[path] == {hour}
        if about["beside"] is not None:
            assert about["known"]
            assert hour in made[str(about["beside"])]
            beside += 1
    assert beside == 1


def test_python(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    (lines,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(compile(lines, "evaluation.md", "exec"), {})
    assert float(capsys.readouterr().out.split()[-1]) == pytest.approx(1, abs=0.03)
