r"""The figure of physical consistency, of a balanced world and of one that is not."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from appa.cli import plot
from appa.data.grids import Grid
from appa.errors import DataError
from appa.plots.physics import physics_of, plot_physics

from ..evaluation.test_consistency import solid_body

pytest.importorskip("matplotlib")


@pytest.fixture
def runs(tmp_path):
    r"""A solid rotation for six hours, and two members whose winds are in its balance but noisy."""
    grid = Grid("equiangular-cells", 48, 16)
    times = np.datetime64("2021-03-21T00", "ns") + np.arange(6) * np.timedelta64(1, "h")
    one = solid_body(grid).drop_vars("time", errors="ignore")
    truth = one.expand_dims(time=times).transpose("time", "level", ...)
    noise = np.random.default_rng(0).normal(size=(2, 6, *one["u_component_of_wind"].shape))
    run = truth.expand_dims(member=[0, 1]).copy(deep=True)
    run["u_component_of_wind"] = run["u_component_of_wind"] + 10 * noise
    truth.to_netcdf(tmp_path / "truth.nc")
    run.to_netcdf(tmp_path / "run.nc")
    run.drop_vars("geopotential").to_netcdf(tmp_path / "none.nc")
    return tmp_path


def test_truth_and_members(runs, tmp_path):
    found = physics_of([f"mine={runs / 'run.nc'}"], str(runs / "truth.nc"))
    assert list(found) == ["truth", "mine"]
    assert float(found["truth"]["correlation"].min()) > 0.999
    assert float(found["mine"]["correlation"].max()) < 0.9
    figure = plot_physics(found)
    assert [text.get_text() for text in figure.axes[-1].get_legend().get_texts()] == list(found)
    np.testing.assert_allclose(figure.axes[-1].lines[0].get_xdata(), found["truth"]["correlation"])
    with pytest.raises(DataError, match="has no geopotential"):
        physics_of([str(runs / "none.nc")], str(runs / "truth.nc"))

    out = tmp_path / "physics.png"
    words = ["physics", str(runs / "run.nc"), "--truth", str(runs / "truth.nc"), "--paper"]
    result = CliRunner().invoke(plot.app, [*words, "--out", str(out), "--dpi", "30"])
    assert result.exception is None, result.exception
    assert out.exists()
