r"""`appa observe`, as a user runs it."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import typer
import xarray as xr
from typer.testing import CliRunner

import appa
from appa.cli.observe import register
from appa.data import planet
from appa.data.grids import Grid
from appa.data.variables import SURFACE
from appa.errors import AppaError, DataError, StoreError
from appa.observations import records
from appa.observations.networks import named_network
from appa.observations.synthesis import COLUMNS, observe

from ..observations.test_elements import METOP, lines
from ..observations.test_stations import HEADER, ROWS

runner = CliRunner()


def run(*args) -> str:
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    result = runner.invoke(app, ["observe", *(str(a) for a in args)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    r"""Four hours of some of the planet, which opens quickly."""
    names = ["2m_temperature", "10m_u_component_of_wind", "10m_v_component_of_wind"]
    names += ["sea_surface_temperature", "mean_sea_level_pressure", "temperature"]
    names += ["land_sea_mask", "geopotential_at_surface"]
    path = tmp_path_factory.mktemp("truth") / "store.zarr"
    ds = appa.open_store("planet")[names].sel(level=[250, 500, 850]).isel(time=slice(4))
    for var in ds.variables.values():
        var.encoding = {}
    ds.to_zarr(path, consolidated=False)
    return path


@pytest.fixture(scope="module")
def reference(store):
    r"""What Python gives, for three hours."""
    ds = appa.open_store(store).isel(time=slice(3))
    grid = Grid.from_coordinates(ds["latitude"].values, ds["longitude"].values)
    return observe(ds, named_network(grid))


def test_the_planet(tmp_path):
    r"""Its errors are shares of the deviations over its training years."""
    out = tmp_path / "obs.parquet"
    output = run("planet", "--hours", 2, "--constellation", 0, "--out", out)
    errors = pd.read_parquet(out).groupby("variable")["error"].first()
    std = planet.statistics().sel(statistic="std")
    for name in SURFACE:
        assert errors[name] == pytest.approx(0.01 * float(std[name]))
    assert "46, in 1.0 % of the grid's boxes" in output
    assert re.search("satellites +none, and no dataset", output)


def test_files_hold_what_python_returns(tmp_path, store, reference):
    out = tmp_path / "obs.parquet"
    output = run(store, "--hours", 3, "--out", out)
    table, swath = pd.read_parquet(out), xr.load_dataset(tmp_path / "obs.swath.nc")
    pd.testing.assert_frame_equal(table, reference[0], check_dtype=False)
    assert table.attrs["network"] == "paper-density"
    xr.testing.assert_equal(swath, reference[1])
    assert swath.attrs["store"] == str(store)
    assert re.search(r"stations +46, in 1\.0 % of the grid's boxes", output)
    assert re.search(r"satellites +1, seeing 5\.\d % of the area an hour", output)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["obs.parquet", "obs.swath.nc"]


def test_csv_and_zarr_in_blocks(tmp_path, store, reference, monkeypatch):
    monkeypatch.setattr(records, "BLOCK", 1)  # an hour at a time
    run(store, "--hours", 3, "--out", tmp_path / "o.csv.gz", "--swath", tmp_path / "s.zarr")
    table = pd.read_csv(tmp_path / "o.csv.gz", parse_dates=["time"])
    assert tuple(table.columns) == COLUMNS
    np.testing.assert_allclose(table["value"], reference[0]["value"], rtol=1e-8)
    assert (table["time"] == reference[0]["time"]).all()
    swath = xr.open_zarr(tmp_path / "s.zarr", consolidated=True).load()
    xr.testing.assert_equal(swath, reference[1])


def test_a_share_of_stations_is_held_out(tmp_path, store):
    output = run(store, "--hours", 2, "--out", tmp_path / "a.csv", "--hold-out", 0.2)
    kept, held = (pd.read_csv(tmp_path / n) for n in ("a.csv", "a.held-out.csv"))
    assert not set(kept["station"]) & set(held["station"])
    number = held["station"].nunique()
    assert kept["station"].nunique() + number == 46
    assert f"{number} of 46 stations" in output

    # Other hours, errors and variables leave the choice as it was; more stations add to it.
    other = ["--start", "2021-03-21T03", "--hours", 1, "--station-error", 0.05]
    other += ["--station-variables", "2m_temperature", "--stations", 92, "--constellation", 0]
    path = tmp_path / "elsewhere.parquet"
    run(store, "--out", tmp_path / "b.csv", *other, "--hold-out", 0.2, "--hold-out-to", path)
    more, used = set(pd.read_parquet(path)["station"]), pd.read_csv(tmp_path / "b.csv")
    assert set(held["station"]) <= more
    assert not more & set(used["station"])
    assert not set(kept["station"]) & more
    assert used["error"].nunique() == 1
    assert not (tmp_path / "b.swath.nc").exists()


def test_ones_own_stations_and_satellites(tmp_path, store):
    history, weather = tmp_path / "isd-history.csv", tmp_path / "weather.tle"
    history.write_text("\n".join([HEADER, *ROWS]) + "\n")
    weather.write_text("\n".join(["METOP-B", *lines(METOP, 38771)]) + "\n")
    base = [store, "--network", "paper-stations", "--hours", 1, "--stations-file", history]
    base += ["--satellite", f"metop-b@{weather}", "--swath-width", 2200]
    with pytest.raises(DataError, match=r"elements of METOP-B are of 2026-02-24.*--shift-epoch"):
        run(*base, "--out", tmp_path / "obs.csv")
    assert not (tmp_path / "obs.csv").exists()

    output = run(*base, "--shift-epoch", "--footprint", 1000, "--out", tmp_path / "obs.csv")
    assert "2  did not report throughout 2021-03-21" in output
    assert "1 (METOP-B), seeing" in output
    codes = pd.read_csv(tmp_path / "obs.csv")["station"].unique()
    assert sorted(codes) == [
        "004000-99999",
        "010010-99999",
        "082190-99999",
        "082191-99999",
        "082192-99999",
        "A00001-12345",
    ]
    thin = xr.load_dataset(tmp_path / "obs.swath.nc")["temperature"].isel(time=0, level=0)
    run(*base, "--shift-epoch", "--active", "any", "--out", tmp_path / "all.csv")
    full = xr.load_dataset(tmp_path / "all.swath.nc")["temperature"].isel(time=0, level=0)
    assert 0 < np.isfinite(thin).sum() < 0.4 * np.isfinite(full).sum()
    assert pd.read_csv(tmp_path / "all.csv")["station"].nunique() > 6


def test_derived_observables(tmp_path, store):
    out = tmp_path / "obs.parquet"
    run(
        store, "--hours", 1, "--out", out, "--station-variables", "10m_wind_speed=0.5",
        "--satellite-variables", "temperature,brightness_temperature_amsua_7=0.3",
    )  # fmt: skip
    table = pd.read_parquet(out)
    assert set(table["variable"]) == {"10m_wind_speed"}
    assert (table["error"] == 0.5).all()
    swath = xr.load_dataset(tmp_path / "obs.swath.nc")
    assert float(swath["brightness_temperature_amsua_7_error"].max()) == pytest.approx(0.3)
    assert 200 < float(swath["brightness_temperature_amsua_7"].mean()) < 240
    # by short names, and with a hint that the command line takes
    run(
        store, "--hours", 1, "--out", tmp_path / "short.csv", "--station-variables",
        "t2m,si10=0.5,msl,2m_temperature", "--constellation", 0,
    )  # fmt: skip
    assert set(pd.read_csv(tmp_path / "short.csv")["variable"]) == {
        "2m_temperature",
        "10m_wind_speed",
        "mean_sea_level_pressure",
    }
    with pytest.raises(
        DataError, match=r"'10m_wind_speed' is derived.*for example 10m_wind_speed=1.0$"
    ):
        run(
            store,
            "--hours",
            1,
            "--out",
            tmp_path / "x.csv",
            "--station-variables",
            "10m_wind_speed",
        )
    with pytest.raises(DataError, match=r"found '10m_wind_speed=fast'"):
        run(
            store,
            "--hours",
            1,
            "--out",
            tmp_path / "x.csv",
            "--station-variables",
            "10m_wind_speed=fast",
        )


def test_existing_files_are_refused_before_anything_is_done(tmp_path, store, monkeypatch):
    out, swath = tmp_path / "obs.csv", tmp_path / "s.zarr"
    args = [store, "--hours", 1, "--stations", 3, "--out", out, "--swath", swath]
    run(*args)
    before = out.read_bytes()

    def fail(*_, **__):
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(records, "observe", fail)
        with pytest.raises(StoreError, match=r"obs.csv' exists already.*--overwrite"):
            run(*args, "--seed", 1)
    assert out.read_bytes() == before
    run(*args, "--seed", 1, "--overwrite")
    assert out.read_bytes() != before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["obs.csv", "s.zarr"]


def test_all_files_or_none(tmp_path, store, monkeypatch):
    r"""The second file fails when the first is written."""
    args = [store, "--hours", 1, "--stations", 5, "--out", tmp_path / "obs.csv"]

    def full(*_, **__):
        raise OSError(28, "No space left on device", "obs.csv")

    monkeypatch.setattr(records, "_write_table", full)
    with pytest.raises(StoreError, match="No space left"):
        run(*args)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--hours", "5"], "lacks 1 of the 5 hours.*2021-03-21T04; it holds 2021-03-21T00 to"),
        (["--start", "tomorrow"], "start 'tomorrow' is no date"),
        (["--network", "paper"], "unknown network 'paper'"),
        (["--satellite", "METOP-B"], "give NAME@FILE"),
        (["--out", "obs.txt"], "ends in .parquet, .csv, .csv.gz"),
        (["--swath", "obs.grib"], "ends in .nc, .zarr"),
        (["--stations", "0", "--constellation", "0"], "nothing to see"),
        (["--stations", "0", "--hold-out", "0.2"], "no stations to hold out"),
        (["--hold-out", "1.5"], "cannot hold out 1.5"),
        (["--hold-out", "0.2", "--hold-out-to", "obs.csv"], "two files have one name"),
        (["--active", "2021"], "without a list of stations"),
        (["--station-error", "-1"], "found -1.0 for a station's noise"),
    ],
)
def test_mistakes(tmp_path, store, args, told, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AppaError, match=told):
        run(store, "--out", "obs.csv", "--hours", "1", *args)
    assert list(tmp_path.iterdir()) == []


def test_observables_of_ones_own(store, tmp_path, registry):
    (tmp_path / "own.py").write_text(
        "import appa\n"
        "@appa.observable('squared_temperature', units='K2', inputs=('2m_temperature',))\n"
        "def square(t):\n"
        "    return t**2\n"
    )
    args = [store, "--hours", 1, "--constellation", 0, "--out", tmp_path / "obs.csv"]
    args += ["--station-variables", "2m_temperature=0.001,squared_temperature=0.1"]
    with pytest.raises(DataError, match="squared_temperature"):
        run(*args)
    run(*args, "--observables", tmp_path / "own.py")
    table = pd.read_csv(tmp_path / "obs.csv").pivot_table(
        index="station", columns="variable", values="value"
    )
    np.testing.assert_allclose(
        table["squared_temperature"], table["2m_temperature"] ** 2, rtol=0, atol=600 * 0.01
    )
