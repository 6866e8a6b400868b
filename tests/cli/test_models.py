r"""`appa import-official` and `appa encode`, as a user runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
import xarray as xr
from typer.testing import CliRunner

from appa.cli.models import register
from appa.tasks.folders import ModelError
from appa.tasks.loading import load

from ..tasks import small

EXAMPLE = Path(__file__).parents[1] / "data" / "official"


def run(*args) -> str:
    app = typer.Typer()
    register(app)
    result = CliRunner().invoke(app, [str(a) for a in args])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_import_official(tmp_path):
    output = run("import-official", EXAMPLE, tmp_path / "out")
    assert "out is complete" in output
    assert "states 11 × 37 × 72, latents 6 × 5 × 11" in output
    assert "without --statistics it knows standardized states only" in output
    assert load(tmp_path / "out").config.window == 6
    with pytest.raises(ModelError, match="holds no '3'; known: 0"):
        run("import-official", EXAMPLE, tmp_path / "other", "--lap", "3")


def test_encode(tmp_path):
    small.write_model(tmp_path / "model")
    small.write_states(tmp_path / "states.zarr")
    out = tmp_path / "latents.zarr"
    output = run(
        "encode", tmp_path / "model", tmp_path / "states.zarr", out, "--batch", 5, "--block", 10
    )
    assert output.endswith("latents.zarr is complete\n")
    assert xr.open_zarr(out)["latents"].shape == (small.T, *small.config().latent_shape)


@pytest.mark.parametrize("command", ["import-official", "encode"])
def test_help_has_an_example(command):
    assert f"Example: appa {command} " in run(command, "--help")
