r"""Updates, however they are launched, are the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from appa.training import train_autoencoder, updates
from appa.training.checkpoints import Checkpoints
from appa.training.distribution import Ranks, load_optimizer, optimizer_state
from appa.training.loop import train
from appa.training.optimizers import make_optimizer, set_learning_rate
from appa.training.options import Options, TrainingError
from appa.training.trainer import Trainer

from . import small
from .worker import make_task

CPU = torch.device("cpu")
ALONE = Ranks(0, 1, CPU)
UPDATES = 9

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("updates")
    small.write(folder / "store.zarr", small.states())
    return folder


def trainer(folder: Path, network: str, **changes) -> Trainer:
    changes = {f"training__{network}__{key}": value for key, value in changes.items()}
    task = make_task(folder, network, **changes)
    return Trainer(task, folder / "none", ALONE, Options(logger="none"))


def steered(t: Trainer) -> list[torch.Tensor]:
    r"""What the optimiser changes: weights, moments, and their count."""
    moments = [v for s in t.optimizer.state.values() for v in s.values()]
    return [x.detach().clone() for x in (*t.parameters, *moments)]


def state(t: Trainer) -> list[torch.Tensor]:
    r"""All that updates change."""
    return [*steered(t), *(x.clone() for x in t.ema.averages)]


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


# Launches


class Played:
    r"""What a recorded function does when it is run again, without a device to record it on."""

    def __init__(self, function, inputs):
        self.function = function
        self.shapes = [x.shape for x in inputs]

    def __call__(self, *inputs):
        assert [x.shape for x in inputs] == self.shapes
        return self.function(*inputs)


class Refused:
    def __init__(self, function, inputs):
        raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize("network", ["autoencoder", "denoiser"])
@pytest.mark.parametrize("changes", [{}, {"clip": None, "decay": "linear", "warmup": 3}])
def test_recorded_updates_are_the_same(folder, monkeypatch, network, changes):
    r"""Bit by bit: losses, norms, weights, averages and moments."""
    plain = trainer(folder, network, steps=UPDATES, **changes)
    losses, norms = [], []
    for _ in range(UPDATES):
        losses.append(plain.gradients())
        norms.append(plain.update())

    monkeypatch.setattr(updates, "Graph", Played)
    recorded = trainer(folder, network, steps=UPDATES, **changes)
    recorded.recordable = True
    for s in range(UPDATES):
        recorded.advance()
        assert (recorded.graph is None) == (s < updates.EAGER)
    assert recorded.step == UPDATES
    assert equal(recorded.losses, losses)
    assert equal(recorded.norms, norms)
    assert equal(state(recorded), state(plain))


def test_what_cannot_be_recorded_is_launched_as_before(folder, monkeypatch, capsys):
    plain = trainer(folder, "denoiser")
    for _ in range(UPDATES):
        plain.advance()
    monkeypatch.setattr(updates, "Graph", Refused)
    other = trainer(folder, "denoiser")
    other.recordable = True
    for _ in range(UPDATES):
        other.advance()
    assert not other.recordable
    assert "cannot be recorded as a CUDA graph" in capsys.readouterr().err
    assert equal(state(other), state(plain))


def test_on_a_cpu_nothing_is_recorded(folder):
    t = trainer(folder, "denoiser")
    assert not t.recordable
    assert t.dtype == torch.float32  # whatever the configuration says


def test_too_little_memory(folder, tmp_path, monkeypatch):
    def full(self):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has")

    monkeypatch.setattr(Trainer, "advance", full)
    task = make_task(folder, "denoiser")
    with pytest.raises(TrainingError) as error:
        train(task, tmp_path, ALONE, Options(logger="none"))
    told = str(error.value)
    assert "8 windows at once do not fit on cpu (CUDA out of memory); give --micro-batch 4" in told
    assert "--checkpointing" in told


# Optimisers


def test_moments_are_laid_out_as_weights_are(tmp_path):
    r"""A checkpoint holds rows, a network for a GPU has channels last. Kernels that walk through
    memory, as fused ones do, would take one moment for another."""

    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Conv2d(5, 4, 3).to(memory_format=torch.channels_last)

    def steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
        for s in range(first, last):
            x = torch.randn(4, 5, 9, 9, generator=torch.Generator().manual_seed(s))
            model(x.to(memory_format=torch.channels_last)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    def adam(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-2), fused=True)

    straight = network()
    steps(straight, adam(straight), 0, 6)
    model = network()
    optimizer = adam(model)
    steps(model, optimizer, 0, 3)
    Checkpoints(tmp_path).save(3, {"optimizer": optimizer_state(ALONE, optimizer)})

    optimizer = adam(model)
    load_optimizer(optimizer, Checkpoints(tmp_path).latest()[1]["optimizer"])
    moment = optimizer.state[model.weight]["exp_avg"]
    assert moment.stride() == model.weight.stride() != moment.contiguous().stride()
    steps(model, optimizer, 3, 6)
    assert torch.equal(model.weight, straight.weight)


def test_betas():
    r"""The configuration's, or those the optimisers' authors chose."""
    p = [nn.Parameter(torch.zeros(2, 2))]
    assert make_optimizer("adam", p, 1e-3).defaults["betas"] == (0.9, 0.999)
    assert make_optimizer("adam", p, 1e-3, (0.9, 0.95)).defaults["betas"] == (0.9, 0.95)
    for betas in (None, (0.8, 0.9)):
        group = make_optimizer("soap", p, 1e-3, betas).param_groups[0]
        assert tuple(group["betas"]) == (betas or (0.95, 0.95))


def test_a_rate_that_may_be_recorded_stays_where_it_is():
    p = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([p], lr=torch.tensor(1.0), fused=True)
    p.grad = torch.ones(3)
    optimizer.step()
    load_optimizer(optimizer, optimizer_state(ALONE, optimizer))
    rate = optimizer.param_groups[0]["lr"]
    set_learning_rate(optimizer, 0.25)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 0.25


# On a GPU


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("network", ["autoencoder", "denoiser"])
@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("compile", [False, "default"])
def test_a_graph_does_what_was_recorded(folder, monkeypatch, network, resident, compile):
    r"""To the rounding of single precision, whose sums a device may order as it likes; with
    weights exchanged for their averages in between, as validation does."""
    found = []
    for eager in (10**9, updates.EAGER):
        monkeypatch.setattr(updates, "EAGER", eager)
        task = make_task(folder, network, **{f"training__{network}__decay": "linear"})
        task.objective.float()
        options = Options(logger="none", resident=resident, compile=compile)
        t = Trainer(task, folder / "none", Ranks(0, 1, torch.device("cuda", 0)), options)
        for _ in range(6):
            t.advance()
        with t.ema.applied():
            pass
        for _ in range(6):
            t.advance()
        assert (t.graph is None) == (eager > 100)
        found.append((torch.stack(t.losses).cpu(), torch.stack(t.norms).cpu()))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=1e-4)


@pytest.mark.gpu
@gpu
def test_adam_goes_on_on_a_gpu(folder, tmp_path):
    r"""The autoencoder's weights have channels last there, and its checkpoints do not."""
    config = small.configuration(training__autoencoder__precision="bfloat16")
    options = {"logger": "none", "device": "cuda", "statistics": small.state_statistics()}
    for steps in (8, 16):
        outcome = train_autoencoder(
            config, folder / "store.zarr", tmp_path, steps=steps, every=8, **options
        )
        assert outcome.step == steps
    lines = (tmp_path / "training/autoencoder/log.jsonl").read_text().splitlines()
    assert all(np.isfinite(json.loads(line).get("train/loss", 0)) for line in lines)
