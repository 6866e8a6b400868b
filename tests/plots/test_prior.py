r"""Figures of scores: what they show is what the scores hold."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

pytest.importorskip("matplotlib", reason="the extra 'plots' is not installed")
pytest.importorskip("cmocean", reason="the extra 'plots' is not installed")

from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from typer.testing import CliRunner

from appa.cli import plot
from appa.data import netcdf
from appa.evaluation.files import KIND
from appa.evaluation.spectra import wavelength
from appa.plots.draws import figures, plot_examples, plot_moments
from appa.plots.prior import (
    COLOURS,
    plot_autocorrelation,
    plot_changes,
    plot_errors,
    plot_rmse,
    plot_seam,
    plot_spectra,
    plot_variance,
    save,
)

from ..evaluation.worlds import GRID, NAMES

LEVELS = [np.nan, np.nan, 500.0, 850.0]
VARIABLES = ["2m_temperature", "sea_surface_temperature", "geopotential", "geopotential"]


def coordinates(sources: list[str]) -> dict:
    return {
        "channel": list(NAMES),
        "variable": ("channel", VARIABLES),
        "level": ("channel", LEVELS),
        "latitude": GRID.latitude,
        "longitude": GRID.longitude,
        "source": sources,
        "quantile": [0.05, 0.5, 0.95],
        "wavenumber": np.arange(8),
        "wavelength": ("wavenumber", wavelength(np.arange(8))),
    }


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).uniform(0.1, 1, shape)


@pytest.fixture
def reconstruction() -> xr.Dataset:
    c, bins = 4, 20
    spectrum = np.sort(numbers(2, 3, c, 8), axis=1)
    spectrum[:, :, 1] = np.nan
    edges = np.linspace(-1, 1, bins + 1)
    return xr.Dataset(
        {
            "rmse": ("channel", numbers(c)),
            "rmse_weather": ("channel", np.array([0.3, np.nan, 0.2, 0.25])),
            "rmse_year": (("year", "channel"), numbers(2, c)),
            "histogram": (("channel", "bin"), numbers(c, bins)),
            "steps": (("source", "channel", "longitude"), numbers(2, c, 16)),
            "spectrum": (("source", "quantile", "channel", "wavenumber"), spectrum),
        },
        coordinates(["truth", "reconstruction"])
        | {"year": [2004, 2005], "bin": (edges[1:] + edges[:-1]) / 2},
    )


@pytest.fixture
def prior() -> xr.Dataset:
    c, sources = 4, ["truth", "reconstruction", "draws"]
    shape = (2, 3, c)
    hourly = numbers(*shape, 16)
    hourly[0, ..., 8:] = np.nan
    joint = np.zeros((2, 16))
    joint[1, [6, 10]] = 1
    maps = ("length", "source", "mapped", "latitude", "longitude")
    by_hour = ("length", "source", "channel", "hour")
    field = 280 + numbers(2, 3, 2, *GRID.shape)
    field[:, :, 1] = 55_000 * field[:, :, 1] / 280
    spectrum = np.sort(numbers(2, 3, 3, c, 8), axis=2)
    spectrum[:, :, :, 1] = np.nan
    return xr.Dataset(
        {
            "autocorrelation": (("length", "source", "channel", "lag"), hourly),
            "autocorrelation_error": (("length", "source", "channel", "lag"), hourly / 50),
            "variance": (by_hour, hourly),
            "tendency": (by_hour, hourly / 3),
            "joint": (("length", "hour"), joint),
            "mean": (maps, field),
            "weather_std": (maps, numbers(2, 3, 2, *GRID.shape)),
            "example": (maps, field),
            "example_time": ("length", np.array(["2004-01-03T05"] * 2, "datetime64[ns]")),
            "steps": (("length", "source", "channel", "longitude"), numbers(*shape, 16)),
            "spectrum": (("length", "source", "quantile", "channel", "wavenumber"), spectrum),
        },
        coordinates(sources)
        | {
            "mapped": ["t2m", "z500"],
            "length": [8, 16],
            "hour": np.arange(16),
            "lag": np.arange(16),
        },
    )


def lines(ax) -> dict[str, np.ndarray]:
    return {str(line.get_label()): line.get_xydata() for line in ax.get_lines()}


def test_errors_by_variable_and_level(reconstruction):
    figure = plot_rmse(reconstruction)
    left, right, low, _ = figure.axes
    assert [bar.get_height() for bar in left.patches] == pytest.approx(
        reconstruction["rmse"].values[:2]
    )
    assert [t.get_text() for t in left.get_xticklabels()] == ["t2m", "sst"]
    container = right.containers[0]
    x, y = container.lines[0].get_data()
    np.testing.assert_allclose(x, reconstruction["rmse"][2:])
    assert y.tolist() == [500, 850]
    assert right.get_ylim()[0] > right.get_ylim()[1]  # pressure falls upwards
    assert "weather" in low.get_ylabel()
    assert len(plot_rmse(reconstruction.drop_vars("rmse_weather")).axes) == 2


def test_spectra(reconstruction, prior):
    r"""Medians by wavelength, one colour a source, with the unit squared; SST has none."""
    figure = plot_spectra(reconstruction, ("t2m", "sst", "z500"))
    shown = [ax for ax in figure.axes if ax.axison]
    assert [ax.get_title(loc="left") for ax in shown] == ["t2m", "z500"]
    labels = [ax.get_ylabel() for ax in shown]
    assert labels == ["energy, K²", "energy, (m²/s²)²"]
    found = lines(shown[0])
    for k, source in enumerate(("truth", "reconstruction")):
        np.testing.assert_allclose(found[source][:, 0], wavelength(np.arange(1, 8)))
        np.testing.assert_allclose(found[source][:, 1], reconstruction["spectrum"][k, 1, 0, 1:])
    long = plot_spectra(prior, ("z850",), length=16).axes[0]
    draws = prior["spectrum"].sel(length=16, source="draws", quantile=0.5, channel="z850")
    np.testing.assert_allclose(lines(long)["draws"][:, 1], draws[1:])
    assert long.get_lines()[2].get_color() == COLOURS["draws"]


@pytest.mark.parametrize(
    "sources",
    [
        ["truth", "members", "interpolation"],
        ["truth", "reconstruction", "members", "draws"],
        ["truth", "mine", "theirs", "another", "analysis", "filter"],
    ],
)
def test_spectra_are_told_apart(sources):
    r"""By colour, and without it by dashes: lines and the bands about them."""
    spectrum = np.sort(numbers(len(sources), 3, 4, 8), axis=1)
    dims = ("source", "quantile", "channel", "wavenumber")
    figure = plot_spectra(xr.Dataset({"spectrum": (dims, spectrum)}, coordinates(sources)), ["t2m"])
    drawn, bands = figure.axes[0].get_lines(), figure.axes[0].collections
    assert [line.get_label() for line in drawn] == sources
    assert len({to_rgb(line.get_color()) for line in drawn}) == len(sources)
    # what is drawn, not the name of it, which "--" has in common with other dashes
    assert len({str(line._unscaled_dash_pattern) for line in drawn}) == len(sources)
    for line, band in zip(drawn, bands, strict=True):
        assert to_rgb(band.get_facecolor()[0]) == to_rgb(line.get_color())
    assert drawn[0].get_color() == COLOURS["truth"]


@pytest.mark.parametrize("count", [1, 4, 5, 7, 8])
def test_the_lowest_panel_of_each_column_says_what_it_is_by(count):
    names = [f"t{p}" for p in (50, 100, 200, 300, 400, 500, 600, 700)][:count]
    dims = ("source", "quantile", "channel", "wavenumber")
    shared = coordinates(["truth"])
    shared |= {
        "channel": names,
        "variable": ("channel", ["temperature"] * count),
        "level": ("channel", [float(name[1:]) for name in names]),
    }
    scores = xr.Dataset({"spectrum": (dims, np.sort(numbers(1, 3, count, 8), axis=1))}, shared)
    columns = min(4, count)
    axes = plot_spectra(scores, names).axes
    shown = [ax for ax in axes if ax.axison]
    assert len(shown) == count
    for k, ax in enumerate(shown):
        lowest = k + columns >= count
        assert ax.get_xlabel() == ("wavelength, km" if lowest else "")


def test_signed_errors(reconstruction):
    r"""Levels of a variable are averaged; shares are in per cent."""
    left, right = plot_errors(reconstruction).axes
    assert [t.get_text() for t in left.get_legend().get_texts()] == ["t2m", "sst"]
    stairs = right.patches[0].get_data()
    np.testing.assert_allclose(stairs.values, 100 * reconstruction["histogram"][2:].mean("channel"))
    np.testing.assert_allclose(stairs.edges, np.linspace(-1, 1, 21), atol=1e-12)


def test_autocorrelation(prior):
    figure = plot_autocorrelation(prior)
    shown = [ax for ax in figure.axes if ax.axison]
    assert [ax.get_title(loc="left") for ax in shown] == [
        "2 m temperature",
        "Geopotential height, 500 hPa",
        "Geopotential height, 850 hPa",
    ]
    found = lines(shown[1])
    assert list(found) == ["truth, 8 h", "draws, 8 h", "truth, 16 h", "draws, 16 h"]
    assert len(found["draws, 8 h"]) == 8
    expected = prior["autocorrelation"].sel(length=16, source="draws", channel="z500")
    np.testing.assert_allclose(found["draws, 16 h"][:, 1], expected)


@pytest.mark.parametrize(
    ("plot", "name", "power"), [(plot_variance, "variance", 1), (plot_changes, "tendency", 2)]
)
def test_hour_by_hour(prior, plot, name, power):
    r"""Relative to the truth's mean of squares; joints are marked before their hour."""
    short, long = plot(prior).axes
    truth = prior[name].sel(length=16, source="truth", channel="t2m")
    draws = prior[name].sel(length=16, source="draws", channel="t2m")
    mean = (truth**power).mean("hour") ** (1 / power)
    np.testing.assert_allclose(lines(long)["t2m"][:, 1], draws / mean)
    dotted = [line.get_xdata()[0] for line in long.get_lines() if line.get_linestyle() == ":"]
    assert dotted == [5.5, 9.5]
    assert not [line for line in short.get_lines() if line.get_linestyle() == ":"]


def test_seam(reconstruction):
    r"""The last value lies half a cell beyond the last longitude."""
    ax = plot_seam(reconstruction).axes[0]
    found = lines(ax)["reconstruction"]
    assert found[-1, 0] == pytest.approx(348.75)
    steps = reconstruction["steps"].sel(channel=["t2m", "z500", "z850"])
    expected = np.sqrt((steps[1] / steps[0]).mean("channel"))
    np.testing.assert_allclose(found[:, 1], expected)


def test_maps(prior):
    r"""Truth and draws on one scale, with units."""
    figure = plot_moments(prior, channels=("t2m", "z500", "q700"), length=16)
    meshes = [c for ax in figure.axes for c in ax.collections if c.get_gid() == "deviation"]
    assert len(meshes) == 4
    assert meshes[0].get_clim() == meshes[1].get_clim()
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert "t2m, mean, truth" in titles
    assert "z500, weather, draws" in titles
    words = {ax.get_ylabel() for ax in figure.axes} - {""}
    assert words == {"°C", "K", "dam"}
    assert not [t for t in titles if "q700" in t]
    figure = plot_examples(prior, channels=("t2m",))
    assert "2 m temperature, a draw" in [ax.get_title(loc="left") for ax in figure.axes]


def test_all_figures_are_written(prior, reconstruction, tmp_path):
    prior["land_sea_mask"] = (("latitude", "longitude"), numbers(*GRID.shape))
    names = {
        "autoencoder": {"rmse", "errors", "spectra", "seam"},
        "prior": {
            "examples",
            "moments",
            "spectra",
            "autocorrelation",
            "variance",
            "changes",
            "seam",
        },
    }
    for name, scores in (("autoencoder", reconstruction), ("prior", prior)):
        found = figures(scores)
        assert set(found) == names[name]
        for kind, figure in found.items():
            assert isinstance(figure, Figure)
            path = tmp_path / name / f"{kind}.png"
            assert save(figure, path, dpi=40) == path.stat().st_size
            assert imread(path).std() > 0.01


def test_scores_in_a_file_are_drawn(reconstruction, tmp_path):
    r"""What `appa score autoencoder` wrote needs no truth."""
    path = netcdf.save(reconstruction, tmp_path / "autoencoder.nc", KIND)
    for kind in ("levels", "histogram"):
        out = tmp_path / f"{kind}.png"
        words = [kind, str(path), "--out", str(out), "--dpi", "20"]
        result = CliRunner().invoke(plot.app, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        assert imread(out).std() > 0.01


def test_large_figures_get_a_palette(prior, tmp_path):
    r"""Smaller, and hardly different."""
    figure = plot_moments(prior)
    full = save(figure, tmp_path / "full.png", size=10**9, dpi=60)
    less = save(figure, tmp_path / "less.png", size=full // 2, dpi=60)
    assert less <= full // 2
    a, b = (imread(tmp_path / f"{n}.png")[..., :3] for n in ("full", "less"))
    assert abs(a - b).mean() < 0.02
