r"""`appa import-official` and `appa encode`, as a user runs them."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import typer
import xarray as xr
from typer.testing import CliRunner

from appa.cli.models import register
from appa.tasks.folders import ModelError, digest, write_weights
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


def test_representation_says_what_it_is_of(tmp_path):
    r"""And a model whose autoencoder is another says that it is stale, and how to make it anew."""
    folder, store = tmp_path / "model", tmp_path / "states.zarr"
    small.write_model(folder)
    small.write_states(store)
    args = ["representation", folder, "--data", store, "--split", "train", "--windows", 5]
    run(*args)
    model = load(folder)  # without a warning
    assert model.representation is not None
    attrs = model.representation.dataset.attrs
    assert attrs["autoencoder_digest"] == digest(model.autoencoder.state_dict())
    assert (attrs["store"], attrs["split"], attrs["years"]) == ("states.zarr", "train", "2001")
    assert attrs["first_hour"] >= "2001-01-01T03"
    assert attrs["last_hour"] <= "2001-01-01T23"
    assert attrs["windows"] == 5
    assert str(tmp_path) not in str(attrs)
    # half precision makes it another autoencoder, of which the file is all the same
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(model.save(tmp_path / "half", half=True)).representation is not None

    weights = {k: t + 0.1 for k, t in model.autoencoder.state_dict().items()}
    write_weights(folder / "autoencoder.safetensors", weights)
    with pytest.warns(
        UserWarning, match=r"representation.nc is stale.*make it anew with: appa rep"
    ):
        load(folder)
    run(*args)  # which is how, and can be done
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(folder)
    # files that do not say, as those of earlier versions, are taken as they are
    del attrs["autoencoder_digest"]
    model.representation.save(folder / "representation.nc")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(folder).representation is not None


@pytest.mark.parametrize("command", ["import-official", "encode"])
def test_help_has_an_example(command):
    assert f"Example: appa {command} " in run(command, "--help")
