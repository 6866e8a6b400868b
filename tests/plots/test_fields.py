r"""Maps of a run and animations of them, read back from figures and files."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import xarray as xr

pytest.importorskip("matplotlib", reason="the extra 'plots' is not installed")
pytest.importorskip("cmocean", reason="the extra 'plots' is not installed")

import matplotlib
from PIL import Image

from appa.data.grids import Grid
from appa.errors import AppaError, DataError
from appa.plots.animation import animate, ffmpeg
from appa.plots.fields import hour_of, locate, plot_field
from appa.plots.saving import png, save_figure, whole

from .test_maps import tagged

GRID = Grid("gaussian", 8, 16)
TIMES = pd.date_range("2021-03-21", periods=4, freq="h")
LAND = slice(2, 4)  # rows without SST


@pytest.fixture(scope="module")
def truth() -> xr.Dataset:
    rng = np.random.default_rng(0)
    coords = {"time": TIMES, "latitude": GRID.latitude, "longitude": GRID.longitude}
    values = rng.normal(285, 5, (4, *GRID.shape))
    sst = values.copy()
    sst[:, LAND] = np.nan
    dims = ("time", "latitude", "longitude")
    height = rng.normal(5e4, 1e3, (4, 2, *GRID.shape))
    data = {
        "2m_temperature": (dims, values),
        "sea_surface_temperature": (dims, sst),
        "geopotential": (("time", "level", *dims[1:]), height),
    }
    mask = np.isnan(sst[0]).astype(float)
    ds = xr.Dataset(data, coords).assign_coords(level=[500, 850])
    return ds.assign(land_sea_mask=(dims[1:], mask))


@pytest.fixture(scope="module")
def run(truth) -> xr.Dataset:
    r"""Two members, off by −1 and by 5: the mean by 2, with a deviation of √18."""
    return truth.drop_vars("land_sea_mask") + xr.DataArray([-1.0, 5.0], dims="member")


def drawn(figure) -> tuple[np.ndarray, object]:
    r"""The values of a map from the first longitude on, and what draws them."""
    (mesh,) = tagged(figure.axes[0], "field")
    values = mesh.get_array().reshape(GRID.shape[0], -1)
    # a column lies on both sides of the date line; the first longitude is in the middle
    half = GRID.shape[1] // 2
    return np.ma.concatenate([values[:, half:-1], values[:, :half]], axis=1), mesh


def test_mean_member_spread_and_difference(run, truth):
    t2m = truth["2m_temperature"].sel(time=TIMES[1]).values - 273.15
    mean, mesh = drawn(plot_field(run, "t2m", hour=1))
    np.testing.assert_allclose(mean, t2m + 2, atol=1e-9)
    member, _ = drawn(plot_field(run, "2m_temperature", hour=TIMES[1], show=0))
    np.testing.assert_allclose(member, t2m - 1, atol=1e-9)
    figure = plot_field(run, "t2m", hour="2021-03-21T01", show="spread", truth=None)
    spread, mesh = drawn(figure)
    np.testing.assert_allclose(spread, np.sqrt(18), atol=1e-9)
    assert mesh.get_clim() == pytest.approx((0, np.sqrt(18)))
    assert figure.axes[1].get_ylabel() == "K"  # not °C: an offset has no meaning here
    title = figure.axes[0].get_title(loc="left")
    assert title == "2 m temperature · spread of 2 members · 21 March 2021, 01 UTC"
    figure = plot_field(run, "z500", truth=truth, show="1")
    error, mesh = drawn(figure)
    np.testing.assert_allclose(error, 5 * 0.1 / 9.80665, rtol=1e-6)
    low, high = mesh.get_clim()
    assert low == -high
    assert figure.axes[1].get_ylabel() == "dam"
    assert len(tagged(figure.axes[0], "coastline")) == 1  # the truth's


def test_sst_is_masked_over_land(run, truth):
    for options in ({}, {"show": "spread"}, {"truth": truth}):
        values, _ = drawn(plot_field(run, "sst", **options))
        expected = np.isnan(truth["sea_surface_temperature"][-1].values)
        np.testing.assert_array_equal(np.ma.getmaskarray(values), expected)


def test_what_is_not_there(run, truth):
    with pytest.raises(DataError, match="no 't3m' to draw; did you mean 't2m'"):
        plot_field(run, "t3m")
    with pytest.raises(DataError, match="no 'geopotental' to draw; did you mean 'geopotential'"):
        plot_field(run, "geopotental", 500)
    with pytest.raises(DataError, match="geopotential has levels; choose one of 500, 850 hPa"):
        plot_field(run, "geopotential")
    with pytest.raises(DataError, match="no 700 hPa; choose one of 500, 850"):
        plot_field(run, "z", 700)
    with pytest.raises(DataError, match="has no levels"):
        plot_field(run, "t2m", 500)
    with pytest.raises(DataError, match="2021-03-22T00; there are 4, from 2021-03-21T00 to"):
        plot_field(run, "t2m", hour=24)
    with pytest.raises(DataError, match="'noon' is no hour"):
        plot_field(run, "t2m", hour="noon")
    with pytest.raises(DataError, match="no member 2; there are 2"):
        plot_field(run, "t2m", show=2)
    with pytest.raises(DataError, match="'median'; give 'mean', 'spread'"):
        plot_field(run, "t2m", show="median")
    with pytest.raises(DataError, match="single state has no spread"):
        plot_field(truth, "t2m", show="spread")
    with pytest.raises(DataError, match="leave the truth out"):
        plot_field(run, "t2m", show="spread", truth=truth)
    with pytest.raises(DataError, match="regrid"):
        plot_field(run, "t2m", truth=truth.isel(longitude=slice(0, None, 2)))
    assert locate(run, "z850") == ("geopotential", 850)
    assert hour_of(run) == np.datetime64("2021-03-21T03")


def test_an_animation_has_a_frame_an_hour(run, truth, tmp_path, monkeypatch):
    path = animate(run, "sst", tmp_path / "sst.gif", truth=truth, fps=5, dpi=30)
    with Image.open(path) as image:
        assert image.n_frames == len(TIMES)
        assert image.info["duration"] == 200
        frames = []
        for k in range(image.n_frames):
            image.seek(k)
            frames.append(np.asarray(image.convert("RGB"), int))
    assert frames[0].shape == (132, 240, 3)
    # the error is 2 everywhere, in all hours: only the title changes
    assert all((frames[0][30:] == frame[30:]).mean() > 0.98 for frame in frames)
    assert any((frames[0][:30] != frame[:30]).any() for frame in frames[1:])
    assert [p.name for p in tmp_path.iterdir()] == ["sst.gif"]
    with pytest.raises(DataError, match="no hour 2021-03-25"):
        animate(run, "t2m", tmp_path / "t2m.gif", hours=["2021-03-25"])
    with pytest.raises(DataError, match=r"\.png', which tells no format .* \.gif, \.mp4"):
        animate(run, "t2m", tmp_path / "t2m.png")
    # nor is it in a package: what is None cannot be imported
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with matplotlib.rc_context({"animation.ffmpeg_path": "no-such-ffmpeg"}):
        assert ffmpeg() is None
        with pytest.raises(AppaError, match=r"ffmpeg, which is not installed.*t2m\.gif"):
            animate(run, "t2m", tmp_path / "t2m.mp4")
    assert [p.name for p in tmp_path.iterdir()] == ["sst.gif"]


@pytest.mark.skipif(ffmpeg() is None, reason="neither ffmpeg nor imageio-ffmpeg is installed")
def test_an_animation_as_mp4(run, tmp_path):
    path = animate(run, "t2m", tmp_path / "t2m.mp4", dpi=31)
    assert path.read_bytes()[4:8] == b"ftyp"
    assert [p.name for p in tmp_path.iterdir()] == ["t2m.mp4"]


@pytest.mark.skipif(os.name != "posix", reason="takes a shell")
def test_a_program_from_a_package_is_taken(run, tmp_path, monkeypatch):
    r"""Frames go to the program that a package names, which here only counts their bytes."""
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\nfor last; do :; done\nwc -c > "$last"\n')
    program.chmod(0o755)
    package = SimpleNamespace(get_ffmpeg_exe=lambda: str(program))
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", package)
    with matplotlib.rc_context({"animation.ffmpeg_path": "no-such-ffmpeg"}):
        path = animate(run, "t2m", tmp_path / "t2m.mp4", dpi=30)
    assert int(path.read_text()) == len(TIMES) * 132 * 240 * 4  # RGBA


def test_files_are_whole_or_not_there(run, tmp_path):
    figure = plot_field(run, "t2m")
    path = save_figure(figure, tmp_path / "new" / "map.png", dpi=30)
    before = path.read_bytes()
    assert before[:8] == b"\x89PNG\r\n\x1a\n"

    def fail() -> None:
        with whole(path) as partial:
            partial.write_bytes(before[:100])
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        fail()
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["map.png"]
    with pytest.raises(DataError, match=r"'.jpeg', which tells no format .* e.g. map.png"):
        save_figure(figure, tmp_path / "map.jpeg")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(AppaError, match="is a folder"):
        save_figure(figure, tmp_path / "folder.png")
    with pytest.raises(AppaError, match="cannot write"):
        save_figure(figure, path / "map.png")
    assert len(png(figure, size=1, dpi=30)) < len(png(figure, dpi=30))
