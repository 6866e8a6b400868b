from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import xarray as xr

pytest.importorskip("matplotlib", reason="the extra 'plots' is not installed")
pytest.importorskip("cmocean", reason="the extra 'plots' is not installed")

from matplotlib.figure import Figure
from matplotlib.image import imread

from appa.data.grids import Grid
from appa.data.variables import VARIABLES
from appa.errors import DataError
from appa.observations.networks import named_network
from appa.plots.gallery import plot_gallery, plot_network
from appa.plots.maps import equal_earth, plot_map, plot_observations
from appa.plots.style import STYLES, limits, style

GRIDS = [Grid("gaussian", 48, 96), Grid("equiangular", 19, 36), Grid("equiangular-cells", 9, 15)]
GRID = GRIDS[0]


def field(name: str, grid: Grid = GRID, **coords) -> xr.DataArray:
    r"""A field that is different in every box."""
    values = 280 + np.arange(grid.shape[0] * grid.shape[1]).reshape(grid.shape) / 100
    return xr.DataArray(
        values,
        dims=("latitude", "longitude"),
        coords={"latitude": grid.latitude, "longitude": grid.longitude, **coords},
        name=name,
    )


def cap(grid: Grid = GRID, edge: float = 30.0) -> xr.DataArray:
    r"""Land north of a parallel, its mask linear in latitude around it."""
    mask = np.clip(0.5 + (grid.latitude - edge) / 40, 0, 1)[:, None] * np.ones(grid.shape[1])
    return field("land_sea_mask", grid).copy(data=mask)


def tagged(ax, gid: str):
    return [artist for artist in ax.get_children() if artist.get_gid() == gid]


def pixels(figure: Figure) -> np.ndarray:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=60)
    buffer.seek(0)
    return imread(buffer)[..., :3]


def test_equal_earth_is_equal_area():
    r"""Its Jacobian is :math:`\cos \varphi`, and its outline has the published proportions."""
    latitude, longitude = np.meshgrid(np.linspace(-85, 85, 35), np.linspace(-170, 170, 35))
    h = 1e-4
    d = [
        np.subtract(
            equal_earth(latitude + a, longitude + b), equal_earth(latitude - a, longitude - b)
        )
        for a, b in ((h, 0), (0, h))
    ]
    jacobian = (d[1][0] * d[0][1] - d[1][1] * d[0][0]) / np.radians(2 * h) ** 2
    np.testing.assert_allclose(jacobian, np.cos(np.radians(latitude)), atol=1e-6)
    # Its authors give a height to width of 1 to 2.05458.
    assert equal_earth(0, 180)[0] / equal_earth(90, 0)[1] == pytest.approx(2.05458, abs=1e-5)


@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: g.kind)
def test_map_shows_every_box_at_its_place(grid):
    figure = plot_map(field("2m_temperature", grid), projection="plate-carree")
    (mesh,) = tagged(figure.axes[0], "field")
    edges = np.degrees(mesh.get_coordinates())
    shown = mesh.get_array().reshape(edges.shape[0] - 1, -1)
    assert edges[..., 0].min() == pytest.approx(-180)
    assert edges[..., 0].max() == pytest.approx(180)
    assert np.abs(edges[..., 1]).max() == pytest.approx(90)

    # Any place: the value drawn there is that of its nearest grid point, in °C.
    rng = np.random.default_rng(0)
    for latitude, longitude in zip(
        rng.uniform(-89, 89, 200), rng.uniform(-180, 180, 200), strict=True
    ):
        row = np.flatnonzero((edges[:-1, 0, 1] > latitude) & (edges[1:, 0, 1] <= latitude))
        column = np.flatnonzero((edges[0, :-1, 0] <= longitude) & (edges[0, 1:, 0] > longitude))
        j = round(longitude % 360 / 360 * grid.shape[1]) % grid.shape[1]
        i = np.searchsorted(-grid.edges, -np.sin(np.radians(latitude))) - 1
        value = 280 - 273.15 + (i * grid.shape[1] + j) / 100
        assert shown[row.item(), column.item()] == pytest.approx(value)


def test_map_has_coastline_unit_and_ticks():
    ds = field("mean_sea_level_pressure", time=np.datetime64("2021-03-21T06"))
    figure = plot_map(ds, land=cap())
    assert isinstance(figure, Figure)
    ax, bar = figure.axes
    (coast,) = tagged(ax, "coastline")
    y = np.concatenate([path.vertices[:, 1] for path in coast.get_paths()])
    # The latitudes of the contour, back from the projection: 30°, as planted.
    latitude = np.linspace(20, 40, 2001)
    found = np.interp(y, equal_earth(latitude, 0)[1], latitude)
    np.testing.assert_allclose(found, 30, atol=0.05)
    assert bar.get_ylabel() == "hPa"
    assert ax.get_title(loc="left") == "Sea-level pressure · 21 March 2021, 06 UTC"
    labels = {text.get_text() for text in ax.texts}
    assert {"60°N", "30°S", "0°", "120°W", "60°E"} <= labels


def test_image_is_drawn_without_a_window_system():
    image = pixels(plot_map(field("2m_temperature"), land=cap()))
    assert np.isfinite(image).all()
    colours = np.unique((image.reshape(-1, 3) * 255).astype(int), axis=0)
    assert len(colours) > 100
    code = "import sys, appa.plots.gallery; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_limits_hold_the_data_and_centre_winds():
    rng = np.random.default_rng(0)
    for name in VARIABLES:
        low, high = limits(name, rng.normal(0.003, 0.001, 10_000) / style(name).scale)
        shown = rng.normal(0.003, 0.001, 10_000) + style(name).offset
        assert low < high
        if style(name).diverging:
            assert low == -high
        elif style(name).floor is None:
            assert ((shown >= low) & (shown <= high)).mean() >= 0.97
    assert limits("2m_temperature", np.full(4, 280.0)) != (0, 0)
    assert limits("2m_temperature", np.full(4, np.nan)) == (0.0, 1.0)


def test_every_variable_has_a_style():
    assert set(STYLES) == set(VARIABLES)
    # known conversions
    assert style("2m_temperature").shown(273.15) == pytest.approx(0)
    assert style("mean_sea_level_pressure").shown(101_325) == pytest.approx(1013.25)
    assert style("geopotential").shown(9.80665 * 5500) == pytest.approx(550)
    assert style("specific_humidity").shown(0.012) == pytest.approx(12)
    assert style("total_precipitation").shown(0.001) == pytest.approx(1)


def observations():
    r"""Two stations, one reporting twice; a swath of two boxes, one of them seen twice."""
    times = pd.to_datetime(["2021-03-21T00", "2021-03-21T01"])
    table = pd.DataFrame(
        {
            "time": [times[1], times[0], times[0], times[0]],
            "latitude": [10.0, 10.0, -40.0, 10.0],
            "longitude": [350.0, 350.0, 170.0, 350.0],
            "variable": ["2m_temperature"] * 3 + ["mean_sea_level_pressure"],
            "level": np.nan,
            "value": [290.0, 270.0, 280.0, 101_000.0],
        }
    )
    values = np.full((2, 1, *GRID.shape), np.nan)
    values[0, 0, 20, 30], values[1, 0, 20, 30], values[0, 0, 10, 5] = 250.0, 260.0, 240.0
    dims = ("time", "level", "latitude", "longitude")
    coords = {
        "time": times,
        "level": [500],
        "latitude": GRID.latitude,
        "longitude": GRID.longitude,
    }
    return table, xr.Dataset({"temperature": (dims, values)}, coords)


def test_stations_are_dots_with_their_latest_value():
    table, swath = observations()
    figure = plot_observations("2m_temperature", table, swath, land=cap())
    ax, bar = figure.axes
    (dots,) = tagged(ax, "stations")
    order = np.argsort(dots.get_array())
    np.testing.assert_allclose(dots.get_array()[order], [280 - 273.15, 290 - 273.15])
    expected = np.stack(equal_earth([-40.0, 10.0], [170.0, -10.0]), axis=-1)
    np.testing.assert_allclose(dots.get_offsets()[order], expected)
    assert bar.get_ylabel() == "°C"


def test_swaths_are_boxes_with_their_latest_value():
    table, swath = observations()
    figure = plot_observations("temperature", table, swath, level=500)
    (mesh,) = tagged(figure.axes[0], "field")
    shown = np.sort(mesh.get_array().compressed())
    np.testing.assert_allclose(shown, [240 - 273.15, 260 - 273.15])


def test_nothing_seen_is_a_blank_globe():
    table, swath = observations()
    image = pixels(plot_observations("10m_u_component_of_wind", table, swath))
    assert np.isfinite(image).all()


def test_gallery_and_network():
    times = pd.date_range("2021-03-21", periods=2, freq="h")
    truth = xr.Dataset({"2m_temperature": field("2m_temperature"), "land_sea_mask": cap()})
    truth["2m_temperature"] = truth["2m_temperature"].expand_dims(time=times)
    truth["temperature"] = truth["2m_temperature"].expand_dims(level=[500]).transpose("time", ...)
    panels = [("2m_temperature", None), ("temperature", 500)]
    figure = plot_gallery(truth, *observations(), panels=panels)
    maps = [ax for ax in figure.axes if tagged(ax, "coastline")]
    assert len(maps) == 6
    assert [ax.get_ylabel() for ax in figure.axes if ax.get_ylabel()] == ["°C", "°C"]
    titles = {text.get_text() for ax in figure.axes for text in ax.texts}
    assert "Truth, 21 March 2021, 01 UTC" in titles
    # The last hour: one station of two, one box of two.
    assert [len(tagged(maps[k], "stations")[0].get_offsets()) for k in (1, 2)] == [1, 2]
    assert len(tagged(maps[4], "field")[0].get_array().compressed()) == 1
    assert len(tagged(maps[5], "field")[0].get_array().compressed()) == 2
    assert np.isfinite(pixels(figure)).all()

    network = named_network(GRID)
    figure = plot_network(network, GRID, times.values, land=cap())
    ax, bar = figure.axes
    assert bar.get_ylabel() == "hours since last seen"
    assert len(tagged(ax, "stations")[0].get_offsets()) == 46


def test_mistakes():
    with pytest.raises(DataError, match="did you mean 'equal-earth'"):
        plot_map(field("2m_temperature"), projection="equalearth")
    with pytest.raises(DataError, match="select one time"):
        plot_map(field("2m_temperature").expand_dims(time=2))
    with pytest.raises(DataError, match="unknown variable"):
        plot_map(field("2m_temperture"))
