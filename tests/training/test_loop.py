r"""Trainings go on bit by bit, learn, tell what they find, and refuse what cannot be meant."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

import appa
from appa.data.windows import WindowLoader
from appa.errors import ConfigError, DataError
from appa.tasks.folders import ModelError, digest, made_by, read_config, read_weights, write_weights
from appa.training import train_autoencoder, train_denoiser
from appa.training.checkpoints import Checkpoints
from appa.training.distribution import Ranks
from appa.training.loop import train
from appa.training.noise import GAMMA, key, keys, normal, uniform
from appa.training.noise import _mix as mix
from appa.training.options import Options, TrainingError, shares
from appa.training.resident import Resident, Streamed, make_feed
from appa.training.trainer import Trainer

from . import small
from .worker import make_task

CPU = torch.device("cpu")
ALONE = Ranks(0, 1, CPU)
QUIET = {"logger": "none", "device": "cpu"}
SOAP = {"training__autoencoder__optimizer": "soap"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("loop")
    small.write(folder / "store.zarr", small.states())
    return folder


@pytest.fixture(scope="module")
def store(folder) -> Path:
    return folder / "store.zarr"


def autoencoder(store: Path, run: Path, *, config=None, **options):
    config = config or small.configuration(**SOAP)
    options = {"statistics": small.state_statistics(), **QUIET, **options}
    return train_autoencoder(config, store, run, **options)


def same(a: Path, b: Path) -> bool:
    a, b = read_weights(a), read_weights(b)
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def lines(run: Path, name: str, network: str = "autoencoder") -> dict[int, float]:
    text = (run / "training" / network / "log.jsonl").read_text().splitlines()
    return {e["step"]: e[name] for e in map(json.loads, text) if name in e}


@pytest.fixture(scope="module")
def straight(store, folder) -> Path:
    r"""A run of both networks without interruption, over more than an epoch each."""
    run = folder / "straight"
    outcome = autoencoder(store, run, steps=14, every=4, validate_every=7, log_every=1)
    assert (outcome.step, outcome.interrupted) == (14, False)
    assert outcome.throughput > 0
    config = read_config(run)
    train_denoiser(run, small.latents(config), steps=14, log_every=5, **QUIET)
    return run


# Going on


@pytest.mark.parametrize("network", ["autoencoder", "denoiser"])
def test_interrupted(folder, store, straight, network, monkeypatch, capsys):
    r"""A signal ends it with a checkpoint; called again, it ends as one that was not."""
    run = folder / f"interrupted-{network}"

    def again():
        options = {"steps": 14, "every": 4}
        if network == "autoencoder":
            return autoencoder(store, run, **options)
        run.mkdir(exist_ok=True)
        (run / "config.yaml").write_text((straight / "config.yaml").read_text())
        return train_denoiser(run, small.latents(read_config(run)), **options, **QUIET)

    gradients = Trainer.gradients

    def interrupted(self):
        if self.step == 6:
            os.kill(os.getpid(), signal.SIGTERM)
        return gradients(self)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(Trainer, "gradients", interrupted)
    outcome = again()
    monkeypatch.setattr(Trainer, "gradients", gradients)
    assert (outcome.step, outcome.interrupted) == (7, True)
    assert signal.getsignal(signal.SIGTERM) is before
    assert "interrupted: the checkpoint of step 7" in capsys.readouterr().err

    outcome = again()
    assert (outcome.step, outcome.interrupted) == (14, False)
    assert "going on from step 7" in capsys.readouterr().err
    name = f"{network}.safetensors"
    assert same(run / name, straight / name)


def test_resident_hours_go_on_where_streamed_ones_stopped(folder, store):
    r"""Latents are kept in single precision: bit by bit the same."""
    config = small.configuration()
    weights = []
    for kinds in ((False, False), (True, True), (False, True), (True, False)):
        run = folder / "kinds" / "-".join(map(str, kinds))
        for steps, resident in zip((7, 14), kinds, strict=True):
            run.mkdir(parents=True, exist_ok=True)
            (run / "config.yaml").write_text(config.to_yaml())
            train_denoiser(run, small.latents(config), steps=steps, resident=resident, **QUIET)
        weights.append(run / "denoiser.safetensors")
    assert all(same(weights[0], other) for other in weights[1:])


def test_finished(store, straight):
    before = (straight / "autoencoder.safetensors").read_bytes()
    assert autoencoder(store, straight, steps=14).step == 14
    assert (straight / "autoencoder.safetensors").read_bytes() == before


def test_other_settings_are_refused(store, straight):
    before = (straight / "config.yaml").read_text()
    config = small.configuration(
        training__autoencoder__learning_rate=2e-3, autoencoder__latent_noise=0.1, **SOAP
    )
    with pytest.raises(TrainingError) as error:
        autoencoder(store, straight, config=config, steps=14)
    told = str(error.value)
    assert "training.autoencoder.learning_rate: was 0.001, is 0.002" in told
    assert "autoencoder.latent_noise: was 0.01, is 0.1" in told
    assert "step 14" in told
    with pytest.raises(TrainingError, match="seed: was 0, is 1"):
        autoencoder(store, straight, steps=14, seed=1)
    # the configuration's own number of updates is not what was asked for when it began
    with pytest.raises(TrainingError, match="steps: was 14, is 6"):
        autoencoder(store, straight)
    assert (straight / "config.yaml").read_text() == before


def test_more_updates_are_an_explicit_choice(store, folder, capsys):
    run = folder / "more"
    autoencoder(store, run, steps=3)
    assert autoencoder(store, run, steps=5).step == 5
    assert "the learning rate now decays over 5" in capsys.readouterr().err
    assert read_config(run).training.autoencoder.steps == 5


def test_fewer_updates_than_were_done_are_refused(store, straight):
    with pytest.raises(TrainingError, match=r"at step 14, beyond --steps 5: .*give 14 or more"):
        autoencoder(store, straight, steps=5)


def test_weights_without_a_checkpoint_are_kept(store, straight, tmp_path):
    run = tmp_path / "model"
    run.mkdir()
    data = (straight / "autoencoder.safetensors").read_bytes()
    (run / "autoencoder.safetensors").write_bytes(data)
    with pytest.raises(TrainingError, match="would be overwritten"):
        autoencoder(store, run)
    assert (run / "autoencoder.safetensors").read_bytes() == data


def test_beginning_with_weights(store, straight, tmp_path):
    r"""With updates too small to change a weight, they are what it ends with."""
    config = small.configuration(training__autoencoder__learning_rate=1e-30, **SOAP)
    autoencoder(store, tmp_path / "run", config=config, steps=2, init=straight)
    assert same(tmp_path / "run" / "autoencoder.safetensors", straight / "autoencoder.safetensors")
    other = small.configuration(autoencoder__latent_channels=5)
    with pytest.raises(ModelError, match="does not fit"):
        autoencoder(store, tmp_path / "other", config=other, init=straight)


def test_a_denoiser_keeps_to_its_autoencoder(straight, tmp_path):
    r"""Its weights say whose latents it learned, and it does not go on with those of another."""
    for name in ("config.yaml", "autoencoder.safetensors"):
        shutil.copy(straight / name, tmp_path)
    weights = read_weights(tmp_path / "autoencoder.safetensors")

    def go_on(steps: int):
        latents = small.latents(read_config(tmp_path)).assign_attrs(autoencoder=digest(weights))
        return train_denoiser(tmp_path, latents, steps=steps, **QUIET)

    go_on(2)
    assert made_by(tmp_path / "denoiser.safetensors") == digest(weights)
    found = Checkpoints(tmp_path / "training" / "denoiser" / "checkpoints").latest()
    assert found is not None
    assert found[1]["made_by"] == digest(weights)
    assert go_on(4).step == 4

    weights = {name: 2 * tensor for name, tensor in weights.items()}
    write_weights(tmp_path / "autoencoder.safetensors", weights)
    with pytest.raises(TrainingError, match=rf"of the latents: was .*, is {digest(weights)[:12]}"):
        go_on(6)


# An update


def test_accumulation(folder):
    r"""Eight states at once, or two at a time: in double precision the same but for sums' order."""
    found = []
    for micro in (8, 2):
        task = make_task(folder, "autoencoder")
        trainer = Trainer(task, folder / "none", ALONE, Options(micro_batch=micro))
        assert trainer.accumulation == 8 // micro
        loss = trainer.gradients()
        found.append([loss, *(p.grad.clone() for p in trainer.parameters)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-13)


def test_averaged_weights_are_exported(straight, store):
    r"""What a model folder holds is not the last weights, but their average."""
    steps = {"training__autoencoder__steps": 14}
    task = make_task(straight.parent, "autoencoder", "soap", **steps)
    trainer = Trainer(task, straight, ALONE, Options(stretch=True))
    trainer.resume()
    last, average = trainer.network.state_dict(), trainer.ema.state_dict()
    exported = read_weights(straight / "autoencoder.safetensors")
    for name, value in exported.items():
        assert torch.equal(value, average[name])
    assert any(not torch.equal(last[name], value) for name, value in exported.items())
    model = appa.load(straight)
    for name, value in model.autoencoder.state_dict().items():
        assert torch.equal(value, exported[name])
    latents = small.latents(model.config)
    torch.testing.assert_close(model.latent_mean, torch.from_numpy(latents.latents_mean.values))


def test_a_loss_that_is_not_finite(folder, tmp_path):
    task = make_task(folder, "denoiser")
    inputs, batches = task.inputs, iter(range(6))

    def spoilt(x, clock, keys):
        return inputs(x * np.nan if next(batches) == 4 else x, clock, keys)

    task.inputs = spoilt
    with pytest.raises(TrainingError, match="loss is nan at step 4: the training of the denoiser"):
        train(task, tmp_path, ALONE, Options(logger="none", log_every=50))
    assert not (tmp_path / "denoiser.safetensors").exists()


def test_shares():
    assert shares(64, 4, None) == (16, 1)
    assert shares(64, 4, 2) == (2, 8)
    with pytest.raises(ConfigError, match="a batch of 64 cannot be shared out over 3"):
        shares(64, 3, None)


# Data and noise


def test_noise_depends_on_its_element_alone():
    whole = normal(keys(0, 7, 0, 8, CPU), (3, 5), 1)
    parts = [normal(keys(0, 7, i, 2, CPU), (3, 5), 1) for i in range(0, 8, 2)]
    assert torch.equal(whole, torch.cat(parts))
    for seed, step, first, stream in [(1, 7, 0, 1), (0, 8, 0, 1), (0, 7, 1, 1), (0, 7, 0, 2)]:
        assert not (normal(keys(seed, step, first, 1, CPU), (3, 5), stream) == whole[0]).any()


def test_bits_are_those_of_splitmix64():
    r"""The published generator, with its published constants, in unsigned integers."""
    z = np.uint64(key(3, 1, 4) % 2**64) + np.arange(1000, dtype=np.uint64) * np.uint64(GAMMA)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    signed = np.array([key(3, 1, 4)]) + np.arange(1000) * (GAMMA - 2**64)
    assert (mix(torch.from_numpy(signed)).numpy().view(np.uint64) == z).all()


def test_noise_is_normal_and_times_are_uniform():
    many = torch.cat([keys(0, s, 0, 10, CPU) for s in range(10)])
    x = normal(many, (1001,), 0).double().numpy()
    n = x.size
    # 5 standard errors of each moment: of variances 1, 2, 15 - 0 and 96
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((x**power).mean() - moment) < 5 * (variance / n) ** 0.5
    # no two elements, and no two halves of one, have to do with each other
    assert np.abs(np.corrcoef(x) - np.eye(100)).max() < 6 / 1000**0.5
    halves = np.corrcoef(x[:, :500].ravel(), x[:, 501:].ravel())[0, 1]
    assert abs(halves) < 5 / 50_000**0.5
    t = torch.cat([uniform(keys(0, s, 0, 100, CPU), 2) for s in range(100)])
    assert ((t >= 0) & (t < 1)).all()
    # each of 20 bins expects 500; 5 standard deviations
    assert (torch.histc(t, 20, 0, 1) - 500).abs().max() < 5 * (500 * 0.95) ** 0.5


@pytest.mark.parametrize("resident", [False, True])
def test_feeds_hand_out_what_the_loader_does(store, resident):
    r"""Batch by batch over three epochs, the last too few for an update left out of each."""
    options = {"split": ("2001-01-01", "2001-01-02"), "seed": 3}
    options |= {"rank": 1, "world_size": 2}
    feed = make_feed(store, 5, 3, CPU, accumulation=2, resident=resident, **options)
    assert isinstance(feed, Resident if resident else Streamed)
    loader = WindowLoader(store, 5, 3, **options)
    assert len(loader) == 7  # of 44 windows, 42; an update takes two batches
    expected = []
    for epoch in range(3):
        loader.set_epoch(epoch)
        expected += [(x.clone(), dates) for _, (x, dates) in zip(range(6), loader, strict=False)]
    for x, dates in expected:
        y, clock = next(feed)
        # half precision has 11 bits
        tolerance = 2**-11 if resident else 0
        torch.testing.assert_close(y.float(), x, rtol=tolerance, atol=0, equal_nan=True)
        hour = np.arctan2(*clock[..., 2:].numpy().transpose(2, 0, 1)) * 12 / np.pi
        since = dates - dates.astype("datetime64[D]")
        away = (hour - since.astype(float) + 12) % 24 - 12  # midnight is 0 and 24
        np.testing.assert_allclose(away, 0, atol=1e-4)


@pytest.mark.parametrize(("batch", "accumulation"), [(8, 4), (32, 1)])
def test_too_few_windows(store, batch, accumulation):
    told = r"24 windows .* fewer than one update's batch of 32; lower batch_size in the config"
    with pytest.raises(DataError, match=told):
        make_feed(store, 1, batch, CPU, accumulation=accumulation, split=("2001-01-01",) * 2)


# What is told


def test_learning(folder, store, tmp_path):
    r"""Smooth fields, and noise of an eighth of their size: the noise remains."""
    config = small.configuration(
        training__autoencoder__learning_rate=1e-2, training__autoencoder__ema=None, **SOAP
    )
    outcome = autoencoder(store, tmp_path / "run", config=config, steps=120, log_every=10)
    loss = lines(tmp_path / "run", "train/loss")
    assert sorted(loss) == list(range(10, 121, 10))
    assert loss[120] < 0.3 * loss[10]
    assert outcome.metrics["rmse"] < 0.6


def test_validation_is_the_error_of_reconstructions(straight, store):
    r"""As the folder's model, the store and the formula give it."""
    model = appa.load(straight)
    ds = small.states().sel(time="2001-01-03")
    x = model.standardizer.to_tensor(ds)
    with torch.no_grad():
        error = (model.autoencoder(x) - x).double().numpy() ** 2
    area = np.broadcast_to(model.grid.area, (24, *model.grid.shape))
    rmse = []
    for c in range(small.CHANNELS):
        weight = area * ~small.LAND if c == 1 else area
        rmse.append(np.sqrt((error[:, c] * weight).sum() / weight.sum()))
    told = {k: lines(straight, f"validation/{k}")[14] for k in ("rmse", "rmse/temperature")}
    assert told["rmse"] == pytest.approx(np.mean(rmse), rel=1e-4)
    assert told["rmse/temperature"] == pytest.approx(np.mean(rmse[2:4]), rel=1e-4)
    assert sorted(lines(straight, "validation/loss")) == [7, 14]
    assert (straight / "training/autoencoder/pictures/reconstruction-00000014.png").exists()


def test_the_denoisers_validation_is_by_noise_level(straight):
    names = (straight / "training/denoiser/log.jsonl").read_text()
    loss = lines(straight, "validation/loss", "denoiser")[14]
    bins = ["0.001_0.01", "0.01_0.1", "0.1_1", "1_10", "10_100"]
    parts = [lines(straight, f"validation/loss/sigma_{b}", "denoiser")[14] for b in bins]
    assert min(parts) < loss < max(parts)
    # an untrained network knows the variance: the weighted loss is about 1 whatever the noise
    assert 0.3 < min(parts) < max(parts) < 3
    assert "windows_per_second" in names


def test_without_validation_hours(store, tmp_path, capsys):
    splits = {"train": ["2001-01-01", "2001-01-02"], "validation": ["2002-01-01", "2002-01-02"]}
    splits["test"] = ["2003-01-01", "2003-01-02"]
    config = small.configuration(data__splits=splits)
    outcome = autoencoder(store, tmp_path / "run", config=config, steps=1)
    assert outcome.metrics == {}
    assert "no hours of the validation split" in capsys.readouterr().err


def test_statistics_are_computed_where_none_are_given(store, tmp_path):
    autoencoder(store, tmp_path / "run", steps=1, statistics=None)
    found, expected = appa.load(tmp_path / "run").statistics, small.state_statistics()
    for name in (*small.SURFACE, *small.ATMOSPHERIC):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)
    assert (found["undefined"].values == small.LAND).all()


def test_statistics_stay_those_of_the_run(store, tmp_path):
    r"""Others are refused, and nothing is written; so it is where they bring other normals."""
    run, config = tmp_path / "run", small.configuration(autoencoder__normals=True, **SOAP)
    autoencoder(store, run, config=config, steps=1)
    mean = appa.load(run).autoencoder.normals
    x = appa.load(run).standardizer.to_tensor(appa.open_store(store).sel(time=slice("2001-01-02")))
    torch.testing.assert_close(mean, x.mean(dim=0), rtol=0, atol=2.0**-8)
    autoencoder(store, run, config=config, steps=1)
    autoencoder(store, run, config=config, steps=1, statistics=run / "statistics.nc")
    assert torch.equal(appa.load(run).autoencoder.normals, mean)
    before = (run / "statistics.nc").read_bytes()
    stats = small.state_statistics()
    others = stats.assign({"temperature": stats["temperature"] * 1.01})
    kept = xr.open_dataset(run / "statistics.nc").load()
    for given in (others, kept.assign(normals=kept["normals"] + 1)):
        with pytest.raises(TrainingError, match="other statistics than those given"):
            autoencoder(store, run, config=config, steps=2, statistics=given)
    assert (run / "statistics.nc").read_bytes() == before


def test_foreign_states(store, tmp_path):
    r"""As many latitudes, but others: they would be weighted as what they are not."""
    grid = {"kind": "gaussian", "latitudes": small.H, "longitudes": small.W}
    config = small.configuration(data__grid=grid)
    with pytest.raises(DataError, match=r"8×16 from latitudes 78\.75.* not the model's, gaussian"):
        autoencoder(store, tmp_path / "run", config=config)
    states = small.states()
    states["temperature"][5, 0, 1, 2] = np.nan
    path = small.write(tmp_path / "nan.zarr", states)
    with pytest.raises(DataError, match="temperature at 500 hPa is undefined at 1 of 128 points"):
        autoencoder(path, tmp_path / "run")
    assert not (tmp_path / "run" / "autoencoder.safetensors").exists()


def test_foreign_latents(straight):
    latents = small.latents(small.configuration(autoencoder__latent_channels=5))
    with pytest.raises(DataError, match=r"shape \(5, 4, 8\), those of the configuration \(3,"):
        train_denoiser(straight, latents, **QUIET)
    latents = small.latents(read_config(straight)).assign_attrs(autoencoder="0" * 64)
    with pytest.raises(DataError, match="encoded by another autoencoder"):
        train_denoiser(straight, latents, **QUIET)
    weights = digest(appa.load(straight).autoencoder.state_dict())
    train_denoiser(straight, latents.assign_attrs(autoencoder=weights), steps=14, **QUIET)
    with pytest.raises(DataError, match="no store of latents"):
        train_denoiser(straight, small.states(), **QUIET)
    for name in ("latents_mean", "latents_std"):
        short = latents.drop_attrs().assign({name: ("other", np.ones(2, np.float32))})
        with pytest.raises(DataError, match=rf"{name} of the dataset has shape \(2,\).* of 3 chan"):
            train_denoiser(straight, short, **QUIET)
    spoilt = latents.drop_attrs().assign(latents_std=latents.latents_std * np.nan)
    with pytest.raises(DataError, match="latents_std of the dataset are not finite"):
        train_denoiser(straight, spoilt, **QUIET)


def test_options_that_are_not():
    with pytest.raises(TrainingError, match="unknown strategy 'dpp'; did you mean 'ddp'"):
        Options(strategy="dpp")
    with pytest.raises(TrainingError, match="did you mean 'reduce-overhead'"):
        Options(compile="reduce-overheads")
    with pytest.raises(TrainingError, match="every must be 1 or more, found 0"):
        Options(every=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("mode", [False, "default", "reduce-overhead"])
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_on_a_gpu(store, tmp_path, mode, precision):
    r"""Resident in half precision, compiled or not: it learns the same, and goes on."""
    config = small.configuration(
        training__autoencoder__precision=precision,
        training__denoiser__precision=precision,
        training__autoencoder__learning_rate=1e-2,
        **SOAP,
    )
    options = {"device": "cuda", "compile": mode, "log_every": 10, "validate_every": 40}
    run = tmp_path / "run"
    autoencoder(store, run, config=config, steps=60, every=30, **options)
    outcome = autoencoder(store, run, config=config, steps=120, **options)
    loss = lines(run, "train/loss")
    assert loss[120] < 0.4 * loss[10]
    assert outcome.metrics["rmse"] < 0.7
    options |= {"logger": "none"}
    train_denoiser(run, small.latents(config), steps=60, **options)
    loss = lines(run, "train/loss", "denoiser")
    assert loss[60] < loss[10]
