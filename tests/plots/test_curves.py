r"""Curves and histograms hold the values of the datasets they are drawn from, with their units."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr

pytest.importorskip("matplotlib", reason="the extra 'plots' is not installed")
pytest.importorskip("cmocean", reason="the extra 'plots' is not installed")

from appa.data.grids import Grid
from appa.errors import DataError
from appa.evaluation.calibration import calibration
from appa.evaluation.dates import over_dates
from appa.evaluation.distributions import signed_errors
from appa.evaluation.ensembles import averages
from appa.evaluation.scores import evaluate
from appa.plots.calibration import plot_histogram, plot_ranks
from appa.plots.curves import plot_levels, plot_scores
from appa.plots.style import LINES, lines

from .test_maps import tagged

GRID = Grid("gaussian", 8, 16)
G = 9.80665


def world(start: str = "2021-03-21", hours: int = 3) -> xr.Dataset:
    rng = np.random.default_rng(0)
    dims = ("time", "latitude", "longitude")
    coords = {
        "time": pd.date_range(start, periods=hours, freq="h"),
        "level": [500, 850],
        "latitude": GRID.latitude,
        "longitude": GRID.longitude,
    }
    t2m = rng.normal(280, 9, (hours, *GRID.shape))
    z = rng.normal(5e4, 1e3, (hours, 2, *GRID.shape))
    data = {
        "2m_temperature": (dims, t2m, {"units": "K"}),
        "geopotential": (("time", "level", *dims[1:]), z, {"units": "m2 s-2"}),
    }
    return xr.Dataset(data, coords)


def drawn(truth: xr.Dataset, size: float, seed: int = 1, members: int = 5) -> xr.Dataset:
    rng = np.random.default_rng(seed)
    return xr.concat(
        [truth.map(lambda x: x + size * rng.normal(size=x.shape)) for _ in range(members)],
        "member",
    )


def test_lines_are_told_apart():
    names = [*LINES, "one", "two", "three", "four", "five"]
    looks = lines(names)
    assert list(looks) == names
    for name, (colour, dashes) in LINES.items():
        assert (looks[name]["color"], looks[name]["linestyle"]) == (colour, dashes)
    assert len({(v["linestyle"], v["marker"]) for v in looks.values()}) >= 10  # without colour
    assert len({tuple(v.values()) for v in looks.values()}) == len(names)
    assert len({v["color"] for v in lines(["one", "two", "three", "four"]).values()}) == 4


def test_scores_by_lead_time_have_bands():
    parts = {}
    for label, size in (("forecast", 1.0), ("mine", 2.0)):
        dates = [world(f"2021-03-{d:02d}") for d in (1, 5, 9)]
        parts[label] = [averages(drawn(y, size, k), y) for k, y in enumerate(dates)]
    scores = {label: over_dates(each) for label, each in parts.items()}
    figure = plot_scores(scores, ["z850", "t2m"], names=("skill", "spread", "crps", "ratio"))
    axes = np.array(figure.axes).reshape(4, 2)
    assert [ax.get_ylabel() for ax in axes[:, 0]] == [
        "Skill, dam",
        "Spread, dam",
        "CRPS, dam",
        "Spread / skill",
    ]
    assert axes[0, 1].get_ylabel() == "Skill, K"
    assert {ax.get_xlabel() for ax in axes[-1]} == {"lead time, h"}
    at = scores["mine"].sel(channel="z850", region="global")
    line = next(line for line in axes[2, 0].lines if line.get_label() == "mine")
    np.testing.assert_allclose(line.get_xdata(), [1, 2, 3])
    np.testing.assert_allclose(line.get_ydata(), at["crps"] * 0.1 / G, rtol=1e-12)
    band = tagged(axes[2, 0], "interval")[1].get_paths()[0].vertices
    for end, pick in (("low", np.min), ("high", np.max)):
        ends = [pick(band[np.isclose(band[:, 0], x), 1]) for x in (1, 2, 3)]
        np.testing.assert_allclose(ends, at[f"crps_{end}"] * 0.1 / G, rtol=1e-12)

    with pytest.raises(DataError, match="channel 'z700'; did you mean 'z"):
        plot_scores(scores, ["z700"])
    with pytest.raises(DataError, match="score 'skil'; did you mean 'skill'"):
        plot_scores(scores, names=["skil"])
    with pytest.raises(DataError, match="region of forecast 'tropics'"):
        plot_scores(scores, region="tropics")
    hourly = evaluate(drawn(world(), 1.0), world())
    with pytest.raises(DataError, match="do not share an axis"):
        plot_scores({**scores, "analysis": hourly})


def test_flat_curves_have_room_above():
    r"""Scores that hardly change, from 0: no curve or marker is cut by the end of its axis."""
    scores = evaluate(drawn(world(), 1.0), world())
    pooled = evaluate(drawn(world(), 1.0), world(), by="all")
    for name in ("skill", "crps", "ratio"):
        scores[name], pooled[name] = (5.0 + 1e-4 * ds[name] for ds in (scores, pooled))
    figures = {"y": plot_scores({"analysis": scores})}
    figures |= {"x": plot_levels({"analysis": pooled}, name="ratio")}
    for axis, figure in figures.items():
        figure.draw_without_rendering()
        for ax in figure.axes:
            (line,) = [line for line in ax.lines if line.get_label() == "analysis"]
            low, high = getattr(ax, f"get_{axis}lim")()
            long = ax.bbox.height if axis == "y" else ax.bbox.width  # in pixels
            room = (1 - np.max(getattr(line, f"get_{axis}data")()) / high) * long
            assert low == 0
            assert room * 72 / figure.dpi > line.get_markersize() / 2
    # the ratio that is right is in sight where none is
    pooled["ratio"] = 0.1 * pooled["ratio"]
    for ax in plot_levels({"analysis": pooled}, name="ratio").axes:
        assert ax.get_xlim()[1] > 1


def test_levels():
    truth = world()
    std = xr.DataArray(["mean", "std"], dims="statistic").rename("statistic")
    statistics = xr.Dataset(
        {
            "2m_temperature": ("statistic", [0.0, 10.0]),
            "geopotential": (("statistic", "level"), [[0.0, 0.0], [500.0, 500.0]]),
        },
        {"statistic": std.values, "level": [500, 850]},
    )
    scores = {
        name: evaluate(drawn(truth, size), truth, by="all", statistics=statistics)
        for name, size in (("analysis", 1.0), ("prior", 2.0))
    }
    figure = plot_levels(scores)
    heights, surface = figure.axes
    assert heights.get_xlabel() == "Skill, dam"
    assert heights.get_ylabel() == "pressure, hPa"
    assert heights.get_ylim()[0] > heights.get_ylim()[1]  # pressure falls upwards
    line = next(line for line in heights.lines if line.get_label() == "prior")
    expected = scores["prior"]["skill"].sel(region="global", channel=["z500", "z850"])
    np.testing.assert_allclose(line.get_xdata(), expected * 0.1 / G, rtol=1e-12)
    np.testing.assert_allclose(line.get_ydata(), [500, 850])
    assert surface.get_xlabel() == "Skill, standard deviations"
    assert [t.get_text() for t in surface.get_yticklabels()] == ["t2m"]
    (dot,) = [line for line in surface.lines if line.get_label() == "analysis"]
    one = float(scores["analysis"]["skill"].sel(region="global", channel="t2m"))
    assert dot.get_xdata()[0] == pytest.approx(one / 10)
    # without statistics surface fields have no common unit, except of a ratio
    bare = evaluate(drawn(truth, 1.0), truth, by="all")
    assert len(plot_levels(bare).axes) == 1
    assert len(plot_levels(bare, name="ratio").axes) == 2
    with pytest.raises(DataError, match="by='all'"):
        plot_levels(evaluate(drawn(truth, 1.0), truth))
    with pytest.raises(DataError, match="nothing to draw by height"):
        plot_levels(bare.sel(channel=["t2m"]))


def test_ranks_and_errors():
    truth = world()
    run = drawn(truth, 1.0)
    found = calibration(run, truth)
    rows = ("ranks", "pit", "coverage", "reliability")
    figure = plot_ranks(found, ["z500"], rows=rows)
    ranks, pit, coverage, reliability = figure.axes
    at = found.sel(region="global", channel="z500")
    (bars,) = tagged(ranks, "frequency")
    np.testing.assert_allclose(bars.get_data().values, 100 * at["frequency"], rtol=1e-12)
    assert (ranks.get_xlabel(), ranks.get_ylabel()) == ("rank of the truth", "frequency, %")
    assert ranks.lines[0].get_ydata()[0] == pytest.approx(100 / 6)  # of five members
    (bars,) = tagged(pit, "pit")
    np.testing.assert_allclose(bars.get_data().values, at["pit"], rtol=1e-12)
    (line,) = tagged(coverage, "coverage")
    np.testing.assert_allclose(line.get_ydata(), 100 * at["coverage"], rtol=1e-12)
    assert reliability.get_xlabel() == "expected error, dam"
    (line,) = tagged(reliability, "reliability")
    np.testing.assert_allclose(line.get_ydata(), at["reliability_found"] * 0.1 / G, rtol=1e-12)
    with pytest.raises(DataError, match="row 'rank'; did you mean 'ranks'"):
        plot_ranks(found, rows=["rank"])
    with pytest.raises(DataError, match="it takes 4"):
        plot_ranks(calibration(run.isel(member=[0, 1]), truth), rows=["reliability"])

    errors = signed_errors(run, truth)
    figure = plot_histogram(errors, ["z500", "t2m"])
    height, t2m = figure.axes
    assert (height.get_xlabel(), height.get_ylabel()) == ("error, dam", "density, 1/dam")
    assert (t2m.get_xlabel(), t2m.get_ylabel()) == ("error, K", "density, 1/K")
    members, _ = tagged(height, "density")
    values, edges, _ = members.get_data()
    at = errors.sel(channel="z500", source="members")
    np.testing.assert_allclose(values, at["density"] / (0.1 / G), rtol=1e-12)
    np.testing.assert_allclose((edges[1:] + edges[:-1]) / 2, at["error"] * 0.1 / G, atol=1e-12)
    # of unit noise 4 σ are all but 6e-5, and the density integrates to what is inside
    assert (values * np.diff(edges)).sum() == pytest.approx(1 - float(at["outside"]))
    with pytest.raises(DataError, match="channel 'z50'"):
        plot_histogram(errors, ["z50"])
