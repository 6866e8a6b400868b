r"""`appa data fetch`: arguments, presets, messages, exit status."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from appa.cli import main
from appa.config import load_config
from appa.data.grids import Grid

from ..data.public_layout import canonical, hours, write_weatherbench2

TIMES = hours("2020-01-01", 26)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weatherbench2(tmp_path_factory.mktemp("source") / "wb2.zarr", TIMES, (13, 24))


def run(monkeypatch: pytest.MonkeyPatch, *args: object) -> int:
    monkeypatch.setattr(sys, "argv", ["appa", "data", "fetch", *map(str, args)])
    with pytest.raises(SystemExit) as exit:
        main()
    return int(exit.value.code or 0)


def test_selection(source: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    out = tmp_path / "out.zarr"
    args = [
        "--start",
        "2020-01-01T06",
        "--end",
        "2020-01-01",
        "--every",
        6,
        "--compression",
        "zstd",
    ]
    args += ["--variables", "temperature, 2m_temperature", "--levels", "850,500", "--workers", 1]
    assert run(monkeypatch, source, out, *args) == 0
    said = capsys.readouterr()
    assert f"{out} is complete" in said.out
    assert "3, 2020-01-01T06 to 2020-01-01T18, every 6 h" in said.err
    assert "at most 14.06 kB" in said.err
    ds = xr.open_zarr(out).load()
    expected = canonical(TIMES[6:24:6], (13, 24)).sel(level=[500, 850])
    xr.testing.assert_equal(ds, expected[list(ds.data_vars)])
    assert {"temperature", "2m_temperature"} <= set(ds.data_vars)
    assert run(monkeypatch, source, out, *args) == 2
    assert "exists already" in capsys.readouterr().err


def test_preset(source: Path, tmp_path: Path, monkeypatch) -> None:
    r"""Variables, levels and grid are the configuration's; what the options say wins."""
    config = tmp_path / "mine.yaml"
    config.write_text(
        "extends: planet\n"
        f"data: {{source: {source}, levels: [500, 850], surface: [2m_temperature],\n"
        "  splits: {train: [2020-01-01, 2020-01-01], validation: [2020-01-02, 2020-01-02],\n"
        "           test: [2020-01-03, 2020-01-03]}}\n"
    )
    grid = load_config(config).grid
    out = tmp_path / "out.zarr"
    assert run(monkeypatch, out, "--preset", config, "--end", "2020-01-01T02") == 0
    ds = xr.open_zarr(out)
    assert list(ds.time.values) == list(TIMES[:3])  # from the start of the training split
    assert list(ds.level.values) == [500, 850]
    np.testing.assert_allclose(ds.latitude, grid.latitude)
    assert "10m_u_component_of_wind" not in ds

    other = tmp_path / "other.zarr"
    args = ["--preset", config, "--end", "2020-01-01T02", "--grid", "gaussian:6x12"]
    assert run(monkeypatch, source, other, *args) == 0
    np.testing.assert_allclose(xr.open_zarr(other).latitude, Grid("gaussian", 6, 12).latitude)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["OUT", "--start", "2020-01-01", "--end", "2020-01-01"], "there is no source"),
        (["SOURCE", "OUT"], "say which hours: --start and --end"),
        (["SOURCE", "OUT", "--start", "2020-01-01", "--end", "2020-01-09"], "lacks 190 of"),
        (["SOURCE", "OUT", "MORE", "--start", "2020", "--end", "2020"], "expected [SOURCE] OUT"),
        (["SOURCE", "OUT", "--levels", "surface", "--start", "2020", "--end", "2020"], "not hPa"),
        (["SOURCE", "OUT", "--grid", "1.5", "--start", "2020", "--end", "2020"], "is no grid"),
        (["SOURCE", "OUT", "--variables", "t2m", "--start", "2020", "--end", "2020"], "'t2m'"),
        (["SOURCE", "OUT", "--levels", "", "--start", "2020", "--end", "2020"], "no level is"),
        (
            ["SOURCE", "OUT", "--variables", "", "--start", "2020", "--end", "2020"],
            "no variable is",
        ),
        (["weatherbench", "OUT", "--start", "2020", "--end", "2020"], "mean 'weatherbench2'?"),
        (["OUT", "--preset", "era5-1.5", "--start", "2020", "--end", "2020"], "'era5-1.5deg'"),
        (
            [
                "SOURCE",
                "OUT",
                "--compression",
                "lz4",
                "--start",
                "2020-01-01",
                "--end",
                "2020-01-01",
            ],
            "neither 'none' nor 'zstd'",
        ),
    ],
)
def test_mistakes(
    args: list[str], message: str, source: Path, tmp_path, monkeypatch, capsys
) -> None:
    names = {"SOURCE": str(source), "OUT": str(tmp_path / "out.zarr")}
    assert run(monkeypatch, *(names.get(arg, arg) for arg in args)) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("error: ")
    assert message in said
    assert not list(tmp_path.iterdir())


def test_help(monkeypatch, capsys) -> None:
    assert run(monkeypatch, "--help") == 0
    said = capsys.readouterr().out
    assert "Example: appa data fetch" in said
    for option in ("--preset", "--scheduler", "--grid", "--every", "--workers", "--variables"):
        assert option in said
