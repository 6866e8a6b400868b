r"""What the README shows, runs."""

from __future__ import annotations

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_lines_of_python_are_the_tutorial():
    r"""Which a test of its own runs."""
    block = re.findall(r"```python\n(.*?)```", README, re.S)[0]
    tutorial = (Path(__file__).parents[1] / "docs" / "tutorial.md").read_text()
    assert block == re.findall(r"```python\n(.*?)```", tutorial, re.S)[0]
    assert len([line for line in block.splitlines() if line]) <= 10


def test_the_loader_runs_too(tmp_path, monkeypatch, capsys):
    from appa.data import statistics
    from appa.data.fetch import fetch
    from appa.data.stores import open_store

    monkeypatch.chdir(tmp_path)
    fetch("planet", "era5.zarr", start="2021-03-21", end="2021-03-22")
    statistics.save(statistics.compute(open_store("era5.zarr")), "statistics.nc")
    block = re.findall(r"```python\n(.*?)```", README, re.S)[1]
    exec(compile(block, "README.md", "exec"), {})
    # 48 hours hold 25 windows of 24, so 3 whole batches of 8.
    assert capsys.readouterr().out.count("torch.Size([8, 24, 71, 48, 96])") == 3


def test_its_files_exist():
    root = Path(__file__).parents[1]
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in link:
            assert (root / link).exists(), link
