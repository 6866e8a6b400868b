r"""What `docs/observations.md` shows, runs, and prints what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from appa.cli import application
from appa.observations.observables import find

from ..tasks.small import write_model

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "observations.md").read_text()
TABLES = re.findall(r"```csv\n(.*?)```", PAGE, re.S)


def test_the_page_from_top_to_bottom(tmp_path, monkeypatch, capsys, registry):
    monkeypatch.chdir(tmp_path)
    for name, csv in zip(("stations.csv", "airports.csv"), TABLES, strict=True):
        Path(name).write_text(csv)
    (block,) = re.findall(r"<!-- begin commands -->(.*?)<!-- end commands -->", PAGE, re.S)
    commands = [shlex.split(line) for line in block.strip().splitlines()]
    assert len(commands) == 2
    for name, *arguments in commands:
        assert name == "appa"
        result = CliRunner().invoke(application(), arguments)
        if result.exception is not None:
            raise result.exception

    printed = re.findall(r"```text\n(.*?)```", PAGE, re.S)
    scope: dict = {}
    capsys.readouterr()
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 7
    outputs = []
    for lines in blocks:
        exec(compile(lines, "observations.md", "exec"), scope)
        outputs.append(capsys.readouterr().out)
    assert [out for out in outputs if out][:2] == printed
    assert find("wind_power").units == "W m-2"
    assert {"temperature", "2m_temperature"} <= set(scope["observations"].variables)


def test_airports(tmp_path, monkeypatch):
    r"""The command reads all of the table, with a model that is small and knows nothing."""
    monkeypatch.chdir(tmp_path)
    Path("airports.csv").write_text(TABLES[1])
    Path("runs/planet").mkdir(parents=True)
    write_model(Path("runs/planet"), denoiser=True)
    (block,) = re.findall(r"<!-- begin airports -->(.*?)<!-- end airports -->", PAGE, re.S)
    (name, *arguments), *more = [shlex.split(line) for line in block.strip().splitlines()]
    assert name == "appa"
    assert not more
    quick = ["--steps", "2", "--members", "1", "--representation", "none"]
    result = CliRunner().invoke(application(), [*arguments, *quick])
    if result.exception is not None:
        raise result.exception
    assert re.search(r"2m_temperature +3 +2 +2", result.output)
    assert "nothing was excluded\nairports.csv: not used: 'SKY'\n" in result.output
    assert Path("analysis.zarr").is_dir()


def test_its_options_exist():
    known: set[str] = set()
    for command in ("observe", "reanalysis", "representation", "evaluate"):
        shown = CliRunner().invoke(application(), [command, "--help"], env={"COLUMNS": "200"})
        known |= set(re.findall(r"--[a-z][a-z-]*", shown.output))
    named = set(re.findall(r"(?<![\w<!-])--[a-z][a-z-]*", PAGE))
    assert {"--units", "--background", "--thin", "--data"} <= named <= known


def test_the_example_has_what_the_page_promises():
    r"""A dozen rows, of which a NaN, a pole, a misspelling and a repetition are left out."""
    csv = TABLES[0]
    assert len(csv.strip().splitlines()) == 1 + 12
    assert "8 observations in 3 hours" in PAGE
