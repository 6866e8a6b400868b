r"""What `docs/training.md` shows to try, runs."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from appa.cli import application
from appa.cli.data import simulate

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "training.md").read_text()


def test_a_few_minutes_on_a_laptop(tmp_path, monkeypatch):
    r"""Its configuration, commands and lines of Python, with fewer updates and steps, and no
    figures."""
    for package in ("ducc0", "tensorboard"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    (config,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    assert config.count("steps: 100") == 2
    Path("tiny.yaml").write_text(config.replace("steps: 100", "steps: 2"))
    (block,) = re.findall(r"<!-- begin tiny -->(.*?)<!-- end tiny -->", PAGE, re.S)
    commands = [shlex.split(line) for line in block.replace("\\\n", " ").strip().splitlines()]
    assert len(commands) == 6
    assert commands[-1][-2:] == ["--steps", "8"]
    commands[-1][-1] = "2"
    for name, *arguments in commands:
        assert name == "appa"
        arguments += ["--no-figures"] * (arguments[0] == "score")  # tests/plots has those
        result = CliRunner().invoke(application(), arguments)
        if result.exception is not None:
            raise result.exception
    assert {"autoencoder.json", "prior.json"} <= {
        p.name for p in Path("runs/tiny/scores").iterdir()
    }
    assert list(Path("runs/tiny/training/autoencoder").glob("events.out.tfevents.*"))

    # what validation finds is in the table of curves
    for network in ("autoencoder", "denoiser"):
        log = Path(f"runs/tiny/training/{network}/log.jsonl").read_text().splitlines()
        for name in {k for line in log for k in json.loads(line) if k.startswith("validation/")}:
            told = re.sub(r"sigma_[\d.]+_[\d.]+", "sigma_A_B", name)
            told = re.sub(r"validation/rmse/\w+", "…/rmse/VARIABLE", told)
            assert f"`{told}`" in PAGE, name

    (lines,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert lines.count("steps=8") == 1
    scope: dict = {}
    lines = lines.replace("steps=8", "steps=2")
    exec(compile(lines, "training.md", "exec"), scope)
    assert dict(scope["draws"].sizes) == {
        "member": 2,
        "time": 8,
        "level": 13,
        "latitude": 48,
        "longitude": 96,
    }


def recipe(preset: str, work: Path) -> str:
    r"""The commands of the recipe, which are told instead of run."""
    script = ["sh", str(ROOT / "recipes/planet.sh"), preset]
    where = {"PATH": os.environ["PATH"], "APPA": "echo appa", "WORK": str(work), "WORKERS": "2"}
    return subprocess.run(script, env=where, check=True, capture_output=True, text=True).stdout


def test_the_recipe_simulates_what_the_planets_page_shows(tmp_path):
    found = []
    page = (ROOT / "docs/planet.md").read_text().replace("\\\n", " ")
    for text in (page, recipe("planet", tmp_path)):
        lines = re.findall(r"data simulate .*--held-out.*--stretch.*", text)
        found.append([dict(re.findall(r"--([a-z-]+) (\d+)", line)) for line in lines])
    assert found[0] == found[1]
    assert [(options["members"], options["each"]) for options in found[0]] == [
        ("36", "15"),  # states
        ("36", "5"),  # latents
    ]
    default = inspect.signature(simulate).parameters["spin_up"].default
    page = " ".join((ROOT / "docs/planet.md").read_text().split())
    days = re.findall(r"(\d+) days are thrown away", page)
    assert days == [str(default)] * 2


@pytest.mark.parametrize("preset", ["planet", "planet-large"])
def test_the_recipes_commands_are_understood(preset, tmp_path):
    r"""Every option of every command is one it has, and what a step reads an earlier one wrote."""
    shown = recipe(preset, tmp_path)
    written = {"planet", preset}
    for line in (line for line in shown.splitlines() if line.startswith("appa ")):
        words = shlex.split(line)[1:]
        group = words[:2] if words[0] in ("data", "train", "score") else words[:1]
        told = CliRunner().invoke(application(), [*group, "--help"], env={"COLUMNS": "200"})
        options = {word for word in words if word.startswith("--")}
        assert options <= set(re.findall(r"--[a-z][a-z-]*", told.output)), line
        places = words[len(group) : len(group) + 1]
        named = dict(pairwise(words))
        reads = {named[o] for o in ("--data", "--train-data", "--encode") if o in named}
        if group == ["data", "simulate"]:
            written |= {*places}
        elif group == ["train", "autoencoder"]:
            written.add(named["--out"])
        else:
            reads |= {*places}
        assert reads <= written, line
    steps = re.findall(r"^== (.*)", shown, flags=re.MULTILINE)
    assert len(steps) == 8
    assert steps[-1] == "score-prior"


def test_its_files_and_options_exist():
    for link in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / link).exists(), link
    known = set()
    for group, command in (
        *(("train", name) for name in ("autoencoder", "denoiser")),
        *(("score", name) for name in ("autoencoder", "prior")),
        *(("data", name) for name in ("fetch", "check", "statistics", "climatology")),
        *((None, name) for name in ("encode", "import-official", "representation", "reanalysis")),
    ):
        words = [command] if group is None else [group, command]
        shown = CliRunner().invoke(application(), [*words, "--help"], env={"COLUMNS": "200"})
        known |= set(re.findall(r"--[a-z][a-z-]*", shown.output))
    launchers = {"--nproc-per-node", "--no-python", "--nnodes", "--rdzv-backend"}
    launchers |= {"--rdzv-endpoint", "--logdir"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", PAGE)) <= known | launchers
