r"""The figure of physical consistency, of a balanced world and of one that is not."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

from appa.cli import plot
from appa.data.grids import Grid
from appa.data.variables import G
from appa.errors import DataError
from appa.evaluation.physics import EARTH
from appa.plots.physics import physics_of, plot_physics, shown_levels

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


# ---------------------------------------------------------------- levels

TURNED = {250: 180.0, 500: 1.0, 1000: 25.0}  # of the wind from the geostrophic one, in degrees
WARM, COLD = 252.0, 250.0  # K


def atmosphere(temperature: float) -> xr.Dataset:
    r"""An isothermal atmosphere of 250 K that rotates as a solid body, with winds that are turned
    towards low pressure by an angle of their own at each level, and with another temperature told
    than it has."""
    grid, u = Grid("equiangular-cells", 48, 16), 20.0
    phi = np.radians(grid.latitude)[:, None] * np.ones(16)
    tilt = -EARTH.omega * EARTH.radius * u * np.sin(phi) ** 2
    level, alpha = (np.array(list(x), float)[:, None, None] for x in (TURNED, TURNED.values()))
    turn = np.radians(alpha)
    fields = {
        "geopotential": EARTH.gas * COLD * np.log(1000 / level) + tilt,
        "u_component_of_wind": u * np.cos(phi) * np.cos(turn),
        "v_component_of_wind": u * np.cos(phi) * np.sin(turn) * np.sign(phi),
        "temperature": temperature + 0 * (level + tilt),
    }
    space = ("latitude", "longitude")
    data = {name: (("time", "level", *space), values[None]) for name, values in fields.items()}
    pressure = 1e5 * np.exp(tilt / (EARTH.gas * COLD))  # where the geopotential is 0
    data["mean_sea_level_pressure"] = (("time", *space), pressure[None])
    coords = {"time": [np.datetime64("2021-03-21T00", "ns")], "level": [int(p) for p in TURNED]}
    return xr.Dataset(data, coords | {"latitude": grid.latitude, "longitude": grid.longitude})


def test_levels_are_drawn_apart(tmp_path):
    r"""At 500 hPa θ is 91°, at 1000 hPa 115°, and each is drawn alone. The truth has
    no ΔH; where temperature is told 2 K too high, it is −2/250 of the geopotential height."""
    atmosphere(COLD).to_netcdf(tmp_path / "truth.nc")
    atmosphere(WARM).expand_dims(member=[0, 1]).to_netcdf(tmp_path / "warm.nc")
    found = physics_of([str(tmp_path / "warm.nc")], str(tmp_path / "truth.nc"))
    figure = plot_physics(found)
    axes = {ax.get_title(loc="left"): ax for ax in figure.axes}
    names = [f"{what} at {p} hPa" for p in (500, 1000) for what in ("ΔH", "cos θ", "sin θ")]
    assert list(axes)[:-1] == names
    width = 2 / 40 / 2  # half a bin of the cosine's, and of the sine's
    for p, theta in ((500, 91.0), (1000, 115.0)):
        for what, of in (("cos θ", np.cos), ("sin θ", np.sin)):
            for line in axes[f"{what} at {p} hPa"].lines:
                x, y = line.get_data()
                at = x[np.argmax(y)]
                assert abs(at - of(np.radians(theta))) < width + 1e-6
                assert y.max() == pytest.approx(20)  # all of it in one bin of 0.05

    weights = Grid("equiangular-cells", 48, 16).weights
    for p in (500, 1000):
        truth, warm = (line for line in axes[f"ΔH at {p} hPa"].lines if len(line.get_xdata()) > 2)
        height = atmosphere(COLD)["geopotential"].sel(level=p).isel(time=0, longitude=0) / G
        expected = [0.0, -(WARM - COLD) / COLD * float(np.average(height, weights=weights))]
        for line, mean in zip((truth, warm), expected, strict=True):
            x, y = line.get_data()
            # by bins of x[1] − x[0]; metres of altitude are 1/1000 longer than geopotential ones
            assert np.average(x, weights=y) == pytest.approx(mean, abs=(x[1] - x[0]) / 2 + 0.5)
            assert y.sum() * (x[1] - x[0]) == pytest.approx(1, abs=0.05)
    assert all("m" in axes[n].get_xlabel() for n in names if n.startswith("ΔH"))
    assert axes["ΔH at 500 hPa"].get_ylabel() == "density, 1/m"
    # one scale of both levels, and dashes and colours of their own
    cosines = [axes[f"cos θ at {p} hPa"] for p in (500, 1000)]
    assert cosines[0].get_ylim() == cosines[1].get_ylim()
    looks = {(line.get_linestyle(), line.get_color()) for line in cosines[0].lines}
    assert len({a for a, _ in looks}) == len({b for _, b in looks}) == 2
    last = figure.axes[-1].lines
    np.testing.assert_allclose(last[1].get_ydata(), list(TURNED))


def test_the_nearest_levels_there_are():
    def having(*levels: int) -> xr.Dataset:
        return xr.Dataset(coords={"level": list(levels)})

    assert shown_levels([having(250, 500, 850, 1000)]) == [500, 1000]
    assert shown_levels([having(300, 600, 850), having(600, 850, 925)]) == [600, 850]
    assert shown_levels([having(700)]) == [700]
    with pytest.raises(DataError, match="no level in common"):
        shown_levels([having(500), having(850)])
