r"""What the README shows, runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_lines_of_python_run(monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="the extra 'plots' is not installed")
    monkeypatch.setenv("MPLBACKEND", "agg")
    block = re.findall(r"```python\n(.*?)```", README, re.S)[0]
    scope: dict = {}
    exec(compile(block, "README.md", "exec"), scope)
    assert len(block.strip().splitlines()) <= 10
    assert "station" in capsys.readouterr().out
    # A day of the default network: 46 stations that see five variables, and some the sea.
    table, swath = scope["table"], scope["swath"]
    assert table["station"].nunique() == 46
    assert set(table["variable"]) == {name for name in scope["truth"] if name in NAMES}
    seen = swath["temperature"].sel(level=850).notnull()
    assert 0.03 < float(seen.mean()) < 0.09


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


NAMES = {
    "2m_temperature",
    "10m_u_component_of_wind",
    "10m_v_component_of_wind",
    "mean_sea_level_pressure",
    "sea_surface_temperature",
    "total_precipitation",
}


def test_its_files_exist():
    root = Path(__file__).parents[1]
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in link:
            assert (root / link).exists(), link
