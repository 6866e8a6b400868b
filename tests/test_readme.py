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
