r"""A training does not destroy what its folder holds: a denoiser, later settings, a scale."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import xarray as xr

import appa
from appa.config import Config, parse_config
from appa.errors import DataError
from appa.tasks.folders import (
    digest,
    made_by,
    read_config,
    read_weights,
    write_config,
    write_statistics,
    write_weights,
)
from appa.training import resident, scales, tasks, train_autoencoder, train_denoiser
from appa.training.checkpoints import Checkpoints
from appa.training.logs import LogError
from appa.training.options import Options, TrainingError
from appa.training.scales import origin

from . import small

QUIET = {"logger": "none", "device": "cpu"}
STEPS = 2


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    return small.write(tmp_path_factory.mktemp("keeping") / "store.zarr", small.states())


def autoencoder(store: Path, run: Path, config: Config | None = None, **options: Any):
    options = {"statistics": small.state_statistics(), **QUIET, **options}
    return train_autoencoder(config or small.configuration(), store, run, **options)


def latents(run: Path) -> xr.Dataset:
    r"""Latents that say that the run's autoencoder made them."""
    weights = read_weights(run / "autoencoder.safetensors")
    return small.latents(read_config(run)).assign_attrs(autoencoder=digest(weights))


@pytest.fixture(scope="module")
def trained(store) -> Path:
    r"""A run of both networks, each at its end."""
    run = store.parent / "trained"
    autoencoder(store, run, steps=STEPS)
    train_denoiser(run, latents(run), steps=STEPS, **QUIET)
    return run


@pytest.fixture
def run(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def without_denoiser(run: Path) -> Path:
    (run / "denoiser.safetensors").unlink()
    shutil.rmtree(run / "training" / "denoiser")
    return run


def contents(run: Path) -> dict[str, str]:
    r"""All files of a folder, and what they hold."""
    files = sorted(path for path in run.rglob("*") if path.is_file())
    return {str(p.relative_to(run)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


# The denoiser


def test_an_autoencoder_with_a_denoiser_is_not_trained_further(store, run):
    before = contents(run)
    told = r"has a denoiser of this autoencoder, which further training would make useless"
    with pytest.raises(TrainingError, match=told):
        autoencoder(store, run, steps=STEPS + 1)
    assert contents(run) == before
    assert appa.load(run).denoiser is not None

    # as the message says, in a copy without it
    assert autoencoder(store, without_denoiser(run), steps=STEPS + 1).step == STEPS + 1


def test_nor_after_its_last_checkpoint_was_damaged(store, tmp_path):
    r"""The checkpoint before it would be gone on from, and its weights exported."""
    run = tmp_path / "run"
    autoencoder(store, run, steps=STEPS, every=1)
    train_denoiser(run, latents(run), steps=1, **QUIET)
    (last,) = (run / "training" / "autoencoder" / "checkpoints").glob(f"step-*{STEPS}")
    (last / "state.json").write_text("{}")
    before = contents(run)
    with pytest.warns(UserWarning, match="checkpoint left out"), pytest.raises(TrainingError):
        autoencoder(store, run, steps=STEPS)
    assert contents(run) == before


def test_nor_replaced_by_its_checkpoint(store, run):
    r"""Weights that came from elsewhere, and the denoiser with them."""
    weights = {k: 2 * x for k, x in read_weights(run / "autoencoder.safetensors").items()}
    write_weights(run / "autoencoder.safetensors", weights)
    theirs = read_weights(run / "denoiser.safetensors")
    write_weights(run / "denoiser.safetensors", theirs, autoencoder=digest(weights))
    before = contents(run)
    with pytest.raises(TrainingError, match="as its checkpoint has it would make useless"):
        autoencoder(store, run, steps=STEPS)
    assert contents(run) == before


def test_a_lost_autoencoder_comes_back_beside_its_denoiser(store, run):
    weights = read_weights(run / "autoencoder.safetensors")
    (run / "autoencoder.safetensors").unlink()
    autoencoder(store, run, steps=STEPS)
    assert digest(read_weights(run / "autoencoder.safetensors")) == digest(weights)
    assert made_by(run / "denoiser.safetensors") == digest(weights)


# Weights


@pytest.mark.parametrize("network", ["autoencoder", "denoiser"])
def test_damaged_weights_are_written_again(store, run, network):
    file, data = run / f"{network}.safetensors", latents(run)
    before = made_by(file), digest(read_weights(file))
    file.write_bytes(file.read_bytes()[:-8])

    def again():
        if network == "autoencoder":
            return autoencoder(store, run, steps=STEPS)
        return train_denoiser(run, data, steps=STEPS, **QUIET)

    with pytest.warns(UserWarning, match=r"cut short.*the checkpoint has them: written again"):
        again()
    assert (made_by(file), digest(read_weights(file))) == before


def test_weights_from_elsewhere_are_kept_aside(store, tmp_path):
    r"""Put there after the last checkpoint, they are not lost when its weights come back; those of
    the checkpoint before, where a run was killed in between, are older and are replaced."""
    run = tmp_path / "run"
    autoencoder(store, run, steps=STEPS)
    file, aside = run / "autoencoder.safetensors", run / "autoencoder.replaced.safetensors"
    own = read_weights(file)
    (folder,) = (run / "training" / "autoencoder" / "checkpoints").glob("step-*")
    for later in (False, True):
        write_weights(file, {k: 2 * x for k, x in own.items()})
        when = folder.stat().st_mtime + (60 if later else -60)
        os.utime(file, (when, when))
        with pytest.warns(UserWarning, match="not of it") if later else nullcontext():
            autoencoder(store, run, steps=STEPS)
        assert digest(read_weights(file)) == digest(own)
        assert aside.exists() == later
    theirs = read_weights(aside)
    assert all(torch.equal(theirs[k], 2 * x) for k, x in own.items())


# The configuration


def set_later(run: Path) -> tuple[Config, str]:
    r"""A run whose configuration was changed by hand. Returns it, and its text."""
    values = read_config(run).model_dump()
    values["sampling"]["understated"] = 0.2
    values["training"]["denoiser"]["steps"] = 77
    values["observations"]["station_error"] = 0.5
    config = parse_config(values)
    text = "# by hand\n" + config.to_yaml()
    (run / "config.yaml").write_text(text)
    return config, text


def test_a_finished_run_writes_nothing(store, run):
    set_later(run)
    before = contents(run)
    assert autoencoder(store, run, steps=STEPS, logger="tensorboard").step == STEPS
    train_denoiser(run, latents(run), steps=STEPS, **QUIET)
    assert contents(run) == before


def test_values_set_later_stay(store, run, capsys):
    r"""What the autoencoder's training depends on is written, and nothing else."""
    config, _ = set_later(without_denoiser(run))
    autoencoder(store, run, steps=STEPS + 1)
    found, expected = read_config(run).model_dump(), config.model_dump()
    assert found["training"]["autoencoder"].pop("steps") == STEPS + 1
    assert expected["training"]["autoencoder"].pop("steps") == STEPS
    assert found == expected
    said = capsys.readouterr().err
    assert "sampling.understated: 0.2, given is 0.0\n" in said
    assert "training.denoiser.steps: 77, given is 6\n" in said
    assert "training.autoencoder" not in said


def test_a_denoiser_of_another_shape_is_not_given_another_configuration(store, run):
    r"""It does not say whose latents it knows: the autoencoder may be trained further."""
    write_weights(run / "denoiser.safetensors", read_weights(run / "denoiser.safetensors"))
    before = contents(run)
    other = small.configuration(window=6, denoiser__width=32)
    with pytest.raises(TrainingError, match="other values than those given") as error:
        autoencoder(store, run, other, steps=STEPS + 1)
    assert "\n  window: is 4, given is 6" in str(error.value)
    assert "\n  denoiser.width: is 16, given is 32" in str(error.value)
    assert contents(run) == before
    assert autoencoder(store, run, read_config(run), steps=STEPS + 1).step == STEPS + 1


def test_without_networks_a_configuration_is_what_is_given(store, tmp_path):
    r"""One of a start that came to nothing would be mixed with this one."""
    write_config(tmp_path, small.configuration(window=6, denoiser__width=32))
    autoencoder(store, tmp_path, steps=1)
    assert read_config(tmp_path) == small.configuration(training__autoencoder__steps=1)


# The scale


def forget(run: Path, network: str) -> None:
    r"""Makes the last checkpoint one of before scales were kept."""
    checkpoints = Checkpoints(run / "training" / network / "checkpoints", keep=1)
    found = checkpoints.latest()
    assert found is not None
    step, state = found
    assert len(state.pop("scale")) == 64
    checkpoints.save(step, state)


def test_a_training_goes_on_with_the_statistics_it_began_with(store, run):
    without_denoiser(run)
    stats = xr.load_dataset(run / "statistics.nc")
    write_statistics(run, stats.assign(temperature=1.01 * stats["temperature"]))
    before = contents(run)
    with pytest.raises(TrainingError, match=r"statistics of states: was \w{12}, is \w{12}"):
        autoencoder(store, run, steps=STEPS + 1, statistics=None)
    assert contents(run) == before
    forget(run, "autoencoder")
    assert autoencoder(store, run, steps=STEPS + 1, statistics=None).step == STEPS + 1


def test_and_with_the_normals(store, tmp_path):
    config = small.configuration(autoencoder__normals=True)
    autoencoder(store, tmp_path, config, steps=1)
    assert autoencoder(store, tmp_path, config, steps=2).step == 2  # from a file, the same
    stats = xr.load_dataset(tmp_path / "statistics.nc")
    write_statistics(tmp_path, stats.assign(normals=stats["normals"] + 2.0**-8))
    with pytest.raises(TrainingError, match="statistics of states: was"):
        autoencoder(store, tmp_path, config, steps=3, statistics=None)


@pytest.mark.parametrize("name", ["latents_mean", "latents_std"])
def test_and_with_the_statistics_of_its_latents(run, name):
    found = latents(run)
    other = found.assign({name: 1.01 * found[name]})
    with pytest.raises(TrainingError, match=r"statistics of the latents: was \w{12}, is \w{12}"):
        train_denoiser(run, other, steps=STEPS + 1, **QUIET)
    forget(run, "denoiser")
    assert train_denoiser(run, other, steps=STEPS + 1, **QUIET).step == STEPS + 1


# What a start that came to nothing leaves


def test_no_statistics_are_computed_for_a_logger_that_is_not_there(store, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    with pytest.raises(LogError, match="pip install wandb"):
        autoencoder(store, tmp_path / "run", statistics=None, logger="wandb")
    assert not (tmp_path / "run").exists()


def test_statistics_without_networks_bind_nobody(store, tmp_path):
    r"""Those of another configuration are computed anew, and those given are taken."""
    config, states = small.configuration(), xr.open_zarr(store)
    stats = small.state_statistics()
    write_statistics(tmp_path, stats.drop_vars("geopotential"))
    assert origin(config, states, tmp_path) == "of the training split, computed first"
    write_statistics(tmp_path, stats.sel(level=[500]))
    assert origin(config, states, tmp_path) == "of the training split, computed first"
    write_statistics(tmp_path, stats.assign(temperature=1.01 * stats["temperature"]))
    assert origin(config, states, tmp_path) == f"those in {tmp_path / 'statistics.nc'}"
    autoencoder(store, tmp_path, steps=1)
    found = appa.load(tmp_path).statistics
    xr.testing.assert_allclose(found["temperature"], stats["temperature"], rtol=1e-12)


# What is read


@pytest.fixture
def unread(monkeypatch) -> None:
    def read(*_: Any, **__: Any):
        raise AssertionError("all hours are read")

    monkeypatch.setattr(tasks, "make_feed", read)
    monkeypatch.setattr(scales.state_statistics, "compute", read)


@pytest.mark.usefixtures("unread")
def test_what_is_wrong_is_told_before_data_are_read(store, run, tmp_path):
    assert autoencoder(store, run, steps=STEPS).step == STEPS
    with pytest.raises(TrainingError, match="seed: was 0, is 1"):
        autoencoder(store, run, steps=STEPS + 1, seed=1)
    with pytest.raises(TrainingError, match="has a denoiser of this autoencoder"):
        autoencoder(store, run, steps=STEPS + 1)
    (tmp_path / "other").mkdir()
    shutil.copy(run / "autoencoder.safetensors", tmp_path / "other")
    with pytest.raises(TrainingError, match="would be overwritten"):
        autoencoder(store, tmp_path / "other", statistics=None)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["autoencoder.safetensors"]


def test_another_store_is_told_before_it_is_read(store, run, monkeypatch):
    def read(*_: Any, **__: Any):
        raise AssertionError("all hours are read")

    monkeypatch.setattr(resident, "Resident", read)
    fewer = latents(run).isel(time=slice(1, None))
    with pytest.raises(DataError, match=r"cannot resume: windows was 45, is 44"):
        train_denoiser(run, fewer, steps=STEPS + 1, resident=True, **QUIET)


# Options


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_have_64_bits(seed):
    with pytest.raises(TrainingError, match=f"seed must be from 0 to {2**64 - 1}, found {seed}"):
        Options(seed=seed)


def test_the_largest_seed(store, tmp_path):
    assert autoencoder(store, tmp_path, steps=1, seed=2**64 - 1).step == 1
    assert autoencoder(store, tmp_path, steps=2, seed=2**64 - 1).step == 2
