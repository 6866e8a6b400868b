r"""`appa train`, as a user runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import xarray as xr
from safetensors.torch import load_file
from typer.testing import CliRunner

from appa.cli.train import app
from appa.config import load_config
from appa.data.stores import open_store
from appa.errors import AppaError, DataError
from appa.training.start import intentions

from ..processes import ENVIRONMENT
from ..training.commands import (
    appa,
    begin,
    same_weights,
    slow_down,
    write_config,
    write_latents,
    write_run,
)

# The command in a fresh interpreter.
APPA = [sys.executable, "-c", "from appa.cli import main; main()"]


def run(*arguments: object) -> str:
    r"""Runs a command in this process: for what ends before any training begins."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    write_config(folder)
    write_latents(folder)
    return folder


@pytest.fixture
def model(folder, tmp_path) -> Path:
    r"""A run folder, as training the autoencoder leaves it."""
    return write_run(tmp_path / "run", folder / "tiny.yaml")


@pytest.mark.parametrize("network", ["autoencoder", "denoiser"])
def test_help(network):
    said = " ".join(run(network, "--help").replace("│", " ").split())
    assert f"Example: appa train {network} " in said
    for option in ("--data", "--micro-batch", "--strategy", "--slurm", "--checkpointing"):
        assert option in said


def test_help_imports_nothing_heavy():
    script = (
        "import sys\n"
        "from appa.cli import main\n"
        "sys.argv = ['appa', 'train', 'autoencoder', '--help']\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code in (0, None)\n"
        "assert not {'torch', 'xarray', 'submitit', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


# What is wrong is said before anything is written.


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["plamet", "--data", "planet"], "did you mean 'planet'"),
        (["planet", "--data", "nowhere.zarr"], "nowhere.zarr does not exist"),
        (["planet", "--data", "planet", "--strategy", "dp"], "unknown strategy 'dp'"),
        (["planet", "--data", "planet", "--logger", "wandbb"], "did you mean 'wandb'"),
        (["planet", "--data", "planet", "--device", "tpu"], "unknown device 'tpu'"),
        (["planet", "--data", "planet", "--micro-batch", "7"], "batch of 64 .* micro-batches of 7"),
        (["planet", "--data", "planet", "--seed", "9" * 20], "seed must be from 0 to .* found 9"),
        (["planet", "--data", "planet", "--slurm"], "no Slurm here"),
        (["planet", "--data", "planet", "--slurm", "--nodes", "5"], "batch of 64 .* over 5 rank"),
        (["planet", "--data", "planet", "--slurm", "--time", "1h"], "found the time '1h'"),
        (["planet", "--data", "planet", "--slurm", "--sbatch", "qos"], "'qos' is no KEY=VALUE"),
    ],
)
def test_what_is_wrong_is_told(tmp_path, monkeypatch, arguments, told):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(AppaError, match=told):
        run("autoencoder", *arguments)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("network", ["autoencoder", "denoiser"])
def test_hours_out_of_order(folder, model, tmp_path, network):
    r"""Of states and of latents; nothing is written."""
    path, told = tmp_path / "backwards", "out of order: 20.*T00:00 comes after 20.*T01:00"
    states = open_store("planet").isel(time=[1, 0, 2, 3])
    latents = xr.open_zarr(folder / "latents.zarr").isel(time=[1, 0, 2, 3])
    if network == "denoiser":
        latents.load().drop_encoding().to_zarr(path, consolidated=False)
        arguments = [model, "--data", path]
    else:
        states.load().drop_encoding().to_netcdf(path := path.with_suffix(".nc"))
        arguments = ["planet", "--data", path, "--out", tmp_path / "new"]
    with pytest.raises(DataError, match=told):
        run(network, *arguments)
    assert not (tmp_path / "new").exists()
    assert not (model / "training").exists()


def test_a_run_folder_that_is_none(tmp_path):
    with pytest.raises(AppaError, match=r"no folder .*nowhere"):
        run("denoiser", tmp_path / "nowhere", "--data", "latents.zarr")


def test_a_run_folder_without_an_autoencoder(folder, model):
    (model / "autoencoder.safetensors").unlink()
    told = r"no autoencoder.safetensors in .*run, which holds config.yaml; .*train that first"
    for more in ([], ["--slurm"]):
        with pytest.raises(AppaError, match=told):
            run("denoiser", model, "--data", folder / "latents.zarr", *more)
    assert [path.name for path in model.iterdir()] == ["config.yaml"]


def test_latents_that_are_not_there(model):
    with pytest.raises(AppaError, match=r"nowhere.zarr does not exist"):
        run("denoiser", model, "--data", model / "nowhere.zarr")


def test_states_are_no_latents(model):
    with pytest.raises(AppaError, match="appa encode"):
        run("denoiser", model, "--data", "planet")


def test_a_message_is_one_line_and_no_traceback(tmp_path):
    wrong = ["train", "denoiser", str(tmp_path / "nowhere"), "--data", "x.zarr"]
    done = subprocess.run([*APPA, *wrong], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


# What happens is said.


def test_what_is_said(folder, model):
    options = ["--steps", 4, "--micro-batch", 2, "--logger", "none"]
    said = appa("train", "denoiser", model, "--data", folder / "latents.zarr", *options)
    weights = load_file(model / "denoiser.safetensors")
    network = load_network(model)
    parameters = sum(weights[f"denoiser.{name}"].numel() for name in network)
    assert f"denoiser: {parameters:,} parameters, windows of 4 latents 4 × 6 × 12\n" in said
    assert "data: 48 hours of the training split in " in said  # two days of four
    assert "updates: 4 of 4 = 2 at once × 2 accumulated × 1 rank, with adam\n" in said
    assert "statistics: of latents, those in " in said
    assert f"writes to {model}\n" in said
    assert f"{model / 'denoiser.safetensors'} is complete after 4 updates; validation: loss" in said
    assert "going on" not in said

    said = appa("train", "denoiser", model, "--data", folder / "latents.zarr", *options)
    assert "denoiser: going on from step 4\n" in said


def test_a_warm_up_that_is_not_outlasted_is_said():
    r"""With the rate that the schedule itself gives the last update."""
    from appa.training.optimizers import learning_rate

    config = load_config("planet")
    settings = config.training.autoencoder
    assert (settings.warmup, settings.decay) == (1000, "linear")
    about = {"config": config, "data": "planet", "out": Path("run"), "logger": "none"}

    def said(steps: int) -> list[str]:
        lines = intentions("autoencoder", about | {"steps": steps})
        return [line for line in lines if line.startswith("warm-up")]

    (line,) = said(100)
    base = settings.learning_rate
    rates = [
        learning_rate(s, base=base, decay="linear", steps=100, warmup=1000) for s in range(100)
    ]
    assert f"ends at {max(rates) / base:.2g} of {base:g}; " in line
    assert "set training.autoencoder.warmup below 100" in line
    assert len(said(1000)) == 1
    assert said(1001) == []


def load_network(model: Path) -> list[str]:
    r"""The names of a network's parameters, buffers left out."""
    from appa.tasks.building import build_denoiser

    return [name for name, _ in build_denoiser(load_config(model)).named_parameters()]


def slow_down_until_ctrl_c() -> None:
    # Where the tests ignore Ctrl-C themselves, the command must not inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    slow_down()


def test_interrupted_by_the_keyboard(folder, model, tmp_path):
    r"""Ctrl-C ends it at once and loses nothing."""
    options = ["--steps", 40, "--every", 2, "--logger", "none"]
    arguments = ["train", "denoiser", model, "--data", folder / "latents.zarr", *options]
    straight = tmp_path / "straight"
    shutil.copytree(model, straight)

    with begin(*arguments, before=slow_down_until_ctrl_c) as process:
        process.until(lambda: list(model.glob("training/denoiser/checkpoints/step-????????")))
        process.send_signal(signal.SIGINT)
        status, said = process.wait(60), process.said
    assert status == 130, said
    (step,) = re.findall(r"checkpoint of step (\d+) is saved", said)
    assert said.count("goes on") == 1
    assert "Traceback" not in said

    assert f"going on from step {step}\n" in appa(*arguments)
    appa("train", "denoiser", straight, *arguments[3:])
    assert same_weights(model / "denoiser.safetensors", straight / "denoiser.safetensors")


@pytest.mark.slow
def test_the_same_command_under_torchrun(folder, model, tmp_path):
    r"""Two processes with half the batch each have the losses of one with all of it."""
    options = ["--steps", 6, "--log-every", 1, "--logger", "none"]
    arguments = ["train", "denoiser", model, "--data", folder / "latents.zarr", *options]
    one = tmp_path / "one"
    shutil.copytree(model, one)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", *APPA, *map(str, arguments)],
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    # said once, not by each
    assert done.stderr.count("4 = 2 at once × 1 accumulated × 2 ranks") == 1
    assert done.stderr.count("is complete after 6 updates") == 1
    appa("train", "denoiser", one, *arguments[3:])
    losses = []
    for run in (model, one):
        lines = (run / "training" / "denoiser" / "log.jsonl").read_text().splitlines()
        entries = map(json.loads, lines)
        losses.append([e["train/loss"] for e in entries if "train/loss" in e])
    # single precision, its sums in two orders, carried through six updates
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert len(losses[0]) == 6


def test_a_submitted_job(folder, model, tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sbatch", "srun"):
        (programs / name).write_text(
            f'#!/bin/sh\n/bin/cp "$1" "{tmp_path}/batch.sh"\necho "Submitted batch job 31"\n'
        )
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    job = ["--slurm", "--nodes", 2, "--gpus-per-node", 4, "--time", "2-0", "--partition", "gpu"]
    job += ["--workers", 6, "--account", "weather", "--sbatch", "qos=high", "--sbatch", "mem=0"]
    config = (model / "config.yaml").read_text()
    (model / "config.yaml").write_text(config.replace("batch_size: 4", "batch_size: 8"))
    said = run("denoiser", model, "--data", folder / "latents.zarr", *job)
    assert said.endswith(f"job 31 is submitted; it logs to {model}/training/denoiser/slurm\n")
    assert "8 = 1 at once × 1 accumulated × 8 ranks" in said
    asked = set(re.findall(r"#SBATCH --(\S+)", (tmp_path / "batch.sh").read_text()))
    assert asked >= {
        "job-name=appa-run-denoiser",
        "nodes=2",
        "gpus-per-node=4",
        "ntasks-per-node=4",
        "cpus-per-task=6",
        "time=2880",
        "partition=gpu",
        "account=weather",
        "qos=high",
        "mem=0",
    }
    run("denoiser", model, "--data", folder / "latents.zarr", *job, "--sbatch", "cpus_per_gpu=9")
    cores = re.findall(r"#SBATCH --cpus-per\S+", (tmp_path / "batch.sh").read_text())
    assert cores == ["#SBATCH --cpus-per-gpu=9"]
