r"""What pictures of ensembles show, read back from the figures."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr

pytest.importorskip("matplotlib", reason="the extra 'plots' is not installed")
pytest.importorskip("cmocean", reason="the extra 'plots' is not installed")

from matplotlib.figure import Figure

from appa.data.grids import Grid
from appa.errors import DataError
from appa.evaluation.scores import evaluate
from appa.plots.analysis import plot_ensemble, plot_scores
from appa.plots.style import LINES

from .test_maps import pixels, tagged

GRID = Grid("gaussian", 16, 32)
TIMES = pd.date_range("2021-03-21", periods=3, freq="h")
SHIFTS = np.array([-3.0, 1.0, 5.0])  # of members: mean 1, deviation 4


@pytest.fixture(scope="module")
def truth() -> xr.Dataset:
    values = 280 + np.arange(GRID.shape[0] * GRID.shape[1]).reshape(GRID.shape) / 20
    values = values + np.arange(3)[:, None, None]
    coords = {"time": TIMES, "latitude": GRID.latitude, "longitude": GRID.longitude}
    dims = ("time", "latitude", "longitude")
    ds = xr.Dataset({"2m_temperature": (dims, values)}, coords)
    levels = (5e4 + 10 * ds["2m_temperature"]).expand_dims(level=[500], axis=1)
    mask = (np.abs(GRID.latitude) < 40)[:, None] * np.ones(GRID.shape)
    return ds.assign(geopotential=levels, land_sea_mask=(dims[1:], mask))


@pytest.fixture(scope="module")
def ensemble(truth) -> xr.Dataset:
    return truth.drop_vars("land_sea_mask") + xr.DataArray(SHIFTS, dims="member")


def seen() -> pd.DataFrame:
    rows = {"time": TIMES, "variable": "2m_temperature", "level": np.nan, "value": 281.0}
    return pd.DataFrame(rows | {"latitude": [10.0, 20, 30], "longitude": 50.0, "error": 0.1})


def fields(figure: Figure) -> list[np.ndarray]:
    r"""The values drawn in each map, without those on both sides of the date line."""
    found = []
    for ax in figure.axes:
        for mesh in tagged(ax, "field") + tagged(ax, "spread"):
            found.append(np.ma.filled(mesh.get_array().reshape(GRID.shape[0], -1), np.nan))
    return found


def test_rows_are_what_they_say(truth, ensemble):
    figure = plot_ensemble(truth, ensemble, seen(), panels=[("2m_temperature", None)])
    real, first, second, mean, spread = fields(figure)
    np.testing.assert_allclose(first - real, -3, atol=1e-9)
    np.testing.assert_allclose(second - real, 1, atol=1e-9)
    np.testing.assert_allclose(mean - real, 1, atol=1e-9)
    np.testing.assert_allclose(spread, 4, atol=1e-9)
    assert np.nanmax(real) == pytest.approx(float(truth["2m_temperature"][-1].max()) - 273.15)
    maps = [ax for ax in figure.axes if tagged(ax, "field")]
    assert len({ax.collections[0].get_clim() for ax in maps}) == 1  # one scale
    assert {bar.get_xlabel() for bar in figure.axes} == {"", "°C", "K"}
    words = {text.get_text() for ax in figure.axes for text in ax.texts}
    assert {"Truth", "Observations", "Member 1", "Member 2", "Mean", "Spread"} <= words
    (dots,) = [dot for ax in figure.axes for dot in tagged(ax, "stations")]
    assert len(dots.get_offsets()) == 3
    coasts = [c for ax in figure.axes for c in tagged(ax, "coastline")]
    assert len(coasts) == 6
    assert len(np.unique((pixels(figure).reshape(-1, 3) * 255).astype(int), axis=0)) > 100


def test_columns_are_hours_or_variables(truth, ensemble):
    panels = [("2m_temperature", None), ("geopotential", 500)]
    figure = plot_ensemble(truth, ensemble, seen(), panels=panels, hours=TIMES[:2], members=1)
    titles = [ax.get_title() for ax in figure.axes if ax.get_title()]
    assert titles[0] == "2 m temperature\n21 March 2021, 00 UTC"
    assert titles[3] == "Geopotential height, 500 hPa\n21 March 2021, 01 UTC"
    # what was seen by then and no more; nothing of the other variable
    counts = [len(d.get_offsets()) for ax in figure.axes for d in tagged(ax, "stations")]
    assert counts == [1, 2, 0, 0]
    one = plot_ensemble(truth, ensemble.isel(member=[0]), panels=panels[:1])
    assert len(fields(one)) == 3  # neither observations nor spread
    with pytest.raises(DataError, match="'member'"):
        plot_ensemble(truth, ensemble.isel(member=0))
    with pytest.raises(DataError, match="no hour 2021-03-22T00"):
        plot_ensemble(truth, ensemble, panels=panels[1:], hours=["2021-03-22T00"])


def test_scores_against_time(truth, ensemble):
    scores = {
        "forecast": evaluate(ensemble.isel(time=slice(1, None)), truth),
        "persistence": evaluate(ensemble.isel(member=0), truth),
    }
    figure = plot_scores(scores, ["t2m", "z500"], start=TIMES[0])
    assert figure.axes[0].get_ylabel() == "Skill, K"
    assert figure.axes[1].get_ylabel() == "Skill, dam"
    assert figure.axes[4].get_ylabel() == "Spread / skill"
    assert figure.axes[4].get_xlabel() == "hours since 21 March 2021, 00 UTC"
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    np.testing.assert_allclose(lines["forecast"].get_xdata(), [1, 2])
    np.testing.assert_allclose(lines["forecast"].get_ydata(), 1, rtol=1e-6)
    np.testing.assert_allclose(lines["persistence"].get_ydata(), 3, rtol=1e-6)
    assert lines["forecast"].get_color() == LINES["forecast"][0]
    # a single state has no ratio
    drawn = {line.get_label() for line in figure.axes[4].lines}
    assert "forecast" in drawn
    assert "persistence" not in drawn
    height = {line.get_label(): line for line in figure.axes[1].lines}
    np.testing.assert_allclose(height["forecast"].get_ydata(), 0.1 / 9.80665, rtol=1e-6)
    (legend,) = figure.legends
    assert [t.get_text() for t in legend.get_texts()] == ["forecast", "persistence"]
