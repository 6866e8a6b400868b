r"""What `docs/tutorial.md` shows, runs: with fewer hours and steps."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from appa.tasks.settings import SETTINGS

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()


@pytest.mark.slow
def test_tutorial(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="the extra 'plots' is not installed")
    import matplotlib

    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(SETTINGS, "draft", {"steps": 2, "iterations": 1, "tolerance": 0.0})
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    names: dict = {}
    for block in blocks:
        few = block.replace("slice(0, 24)", "slice(0, 2)")
        few = few.replace("hours=24", "hours=2").replace("hours=48", "hours=2")
        exec(compile(few, "tutorial.md", "exec"), names)
    analysis, forecast = names["analysis"], names["forecast"]
    assert forecast["time"].values[0] - analysis["time"].values[-1] == np.timedelta64(1, "h")
    assert analysis.sizes["member"] == forecast.sizes["member"] == 2
    xr.testing.assert_equal(names["ds"].load(), analysis.load())
    printed = capsys.readouterr().out
    for name in ("t2m", "z500"):
        row = names["scores"].sel(channel=name, region="global").mean("time")
        assert f"{float(row['skill']):.3f}"[:4] in re.search(rf"^{name} .*", printed, re.M)[0]
        assert float(row["ratio"]) > 0
