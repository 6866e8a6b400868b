r"""Training that was killed, or lost a checkpoint, ends with the weights of one that was not.

Everything here runs `appa train` in processes of their own, on one thread of a CPU.
"""

from __future__ import annotations

import json
import random
import re
import resource
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from appa.tasks.folders import read_weights
from appa.training.checkpoints import TENSORS, Checkpoints

from .commands import (
    appa,
    begin,
    same_weights,
    slow_down,
    write_config,
    write_latents,
    write_run,
    write_store,
)

pytestmark = pytest.mark.slow

STEPS = {"autoencoder": 15, "denoiser": 60}


def train(network: str, folder: Path, run: Path) -> list:
    r"""The arguments of a training, which for a denoiser goes on in a run."""
    if network == "autoencoder":
        what = [folder / "tiny.yaml", "--data", folder / "store.zarr", "--out", run]
        what += ["--logger", "none"]
    else:
        what = [write_run(run, folder / "tiny.yaml"), "--data", folder / "latents.zarr"]
    often = ["--every", 3, "--validate-every", STEPS[network], "--log-every", 2]
    return ["train", network, *what, "--steps", STEPS[network], "--seed", 1, *often]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kill")
    write_config(folder)
    write_store(folder)
    write_latents(folder)
    return folder


@pytest.fixture(scope="module")
def straight(folder) -> Callable[[str], Path]:
    r"""Runs without interruption."""
    done = set()

    def run(network: str) -> Path:
        if network not in done:
            appa(*train(network, folder, folder / f"straight-{network}"))
        done.add(network)
        return folder / f"straight-{network}"

    return run


def kill(arguments: list, checkpoints: Path, beyond: int, delay: float) -> int:
    r"""Kills a training some time after it passed a step. Returns the step it stands at then."""
    with begin(*arguments, before=slow_down) as process:
        process.until(lambda: max(Checkpoints(checkpoints).steps(), default=0) > beyond)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it was over before it could be killed"
    return max(Checkpoints(checkpoints).steps())


@pytest.mark.parametrize("network", ["autoencoder", "denoiser"])
def test_killed_and_resumed(folder, straight, network):
    expected, run = straight(network), folder / f"killed-{network}"
    arguments = train(network, folder, run)
    checkpoints = run / "training" / network / "checkpoints"
    draw = random.Random(network)
    at = 0
    for _ in range({"autoencoder": 1, "denoiser": 2}[network]):
        step = kill(arguments, checkpoints, at, draw.uniform(0.0, 0.1))
        assert at < step < STEPS[network]
        at = step
    assert f"from step {at}\n" in appa(*arguments)
    name = f"{network}.safetensors"
    assert same_weights(run / name, expected / name)
    # and the log tells each step once, with the same losses
    curves = []
    for folder in (run, expected):
        lines = (folder / "training" / network / "log.jsonl").read_text().splitlines()
        entries = [e for e in map(json.loads, lines) if "train/loss" in e]
        curves.append([(e["step"], e["train/loss"], e["train/learning_rate"]) for e in entries])
    assert curves[0] == curves[1]
    assert [step for step, _, _ in curves[0]] == sorted({step for step, _, _ in curves[0]})


def test_a_damaged_checkpoint(folder, straight):
    network, name = "autoencoder", "autoencoder.safetensors"
    run, last = folder / "damaged", STEPS["autoencoder"]
    shutil.copytree(straight(network), run)
    (run / name).unlink()
    checkpoints = run / "training" / network / "checkpoints"
    assert Checkpoints(checkpoints).steps() == [last - 3, last]
    file = checkpoints / f"step-{last:08d}" / TENSORS
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)

    said = appa(*train(network, folder, run))
    assert re.search(rf"step-{last:08d}: the bytes of {TENSORS} are not those", said)
    assert f"using step {last - 3}" in said
    assert same_weights(run / name, straight(network) / name)


def test_a_finished_run_is_left_as_it_is(folder, straight):
    network, run = "denoiser", straight("denoiser")
    before = (run / "denoiser.safetensors").read_bytes()
    said = appa(*train(network, folder, run))
    assert f"after {STEPS[network]} updates" in said
    assert (run / "denoiser.safetensors").read_bytes() == before


def test_killed_between_the_last_checkpoint_and_the_weights(folder, straight):
    name, run = "denoiser.safetensors", folder / "lost"
    shutil.copytree(straight("denoiser"), run)
    (run / name).unlink()
    appa(*train("denoiser", folder, run))
    assert same_weights(run / name, straight("denoiser") / name)


def test_a_full_disk(folder, straight):
    r"""A message, the last checkpoint intact, and once there is room, the same weights."""
    network, run, last = "denoiser", folder / "full", STEPS["denoiser"]
    shutil.copytree(straight(network), run)
    shutil.rmtree(run / "training" / network / "checkpoints" / f"step-{last:08d}")

    # The system takes no file this large, as if there were no room for it.
    size = (run / "denoiser.safetensors").stat().st_size
    fill = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
    arguments = train(network, folder, run)
    said = appa(*arguments, status=2, before=fill)
    assert f"error: disk full (File too large): the checkpoint of step {last} " in said
    assert f"the last checkpoint, at step {last - 3}, is intact" in said
    assert "Traceback" not in said
    weights = read_weights(run / "denoiser.safetensors")  # whole, and those of that checkpoint
    assert all(x.isfinite().all() for x in weights.values())

    assert f"from step {last - 3}\n" in appa(*arguments)
    assert same_weights(run / "denoiser.safetensors", straight(network) / "denoiser.safetensors")


def test_two_trainings_in_one_folder(folder, straight):
    from appa.training.start import alone

    run = straight("denoiser")
    with alone(run / "training" / "denoiser"):
        said = appa(*train("denoiser", folder, run), status=2)
    assert "another process is training in" in said
