r"""Two processes do what one does with the same global batch, and can go on from each other."""

from __future__ import annotations

import re
import time
import warnings
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from appa.errors import AppaError
from appa.training import train_autoencoder
from appa.training.distribution import Ranks, distributed, replicate
from appa.training.interruptions import Together

from ..processes import ranks
from . import small
from .worker import CASES, main, make_trainer, results, resumed

ALONE = Ranks(0, 1, torch.device("cpu"))
# In double precision only the order of sums differs, by parts in 1e16 that Adam, which divides by
# the gradients' own size, may enlarge.
CLOSE = {"rtol": 1e-8, "atol": 1e-10}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("distribution")
    small.write(folder / "store.zarr", small.states())
    return folder


@pytest.fixture(scope="module")
def two(folder) -> dict:
    r"""What two processes found, with batches of 2 twice an update."""
    out = folder / "two"
    out.mkdir()
    ranks(main, folder, out)
    return torch.load(out / "results.pt", weights_only=True)


@pytest.fixture(scope="module", params=[case for case in CASES if case != "soap-fsdp"])
def case(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def one(folder, case) -> dict:
    r"""What one process finds, with batches of 8."""
    return results(make_trainer(folder, case, ALONE, folder / "one" / case))


def same(a: dict, b: dict) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        torch.testing.assert_close(value, b[name], msg=lambda m, n=name: f"{n}: {m}", **CLOSE)


def test_gradients(one, two, case):
    assert all(g.abs().max() > 0 for g in one["gradients"].values())
    same(one["gradients"], two[case]["gradients"])


def test_losses_and_norms(one, two, case):
    torch.testing.assert_close(one["losses"], two[case]["losses"], **CLOSE)
    torch.testing.assert_close(one["norms"], two[case]["norms"], **CLOSE)
    assert one["losses"].unique().numel() == len(one["losses"])


def test_weights(one, two, case):
    same(one["weights"], two[case]["weights"])
    same(one["averages"], two[case]["averages"])


def test_soap_under_fsdp(folder, two):
    r"""A step in a direction without gradients is rounding divided by rounding: after a few of
    SOAP's, losses agree to fewer digits than gradients do before."""
    one, two = results(make_trainer(folder, "soap-fsdp", ALONE, folder / "one")), two["soap-fsdp"]
    for name, gradient in one["gradients"].items():
        size = gradient.abs().max().item()
        torch.testing.assert_close(gradient, two["gradients"][name], rtol=0, atol=1e-5 * size)
    torch.testing.assert_close(one["losses"], two["losses"], rtol=1e-3, atol=0)
    assert two["losses"][-1] < two["losses"][0]


@pytest.mark.parametrize("case", list(CASES))
def test_resumed(two, case):
    r"""Two processes that go on from their checkpoint: bit by bit what they would have been."""
    for part in ("weights", "averages"):
        for name, value in two[case][part].items():
            assert torch.equal(value, two[f"{case}-resumed"][part][name]), name


def test_resumed_by_another_number_of_processes(folder, one, two, case):
    r"""What two processes saved whole, one takes up."""
    found = resumed(make_trainer(folder, case, ALONE, folder / "two" / case))
    same(one["weights"], found["weights"])


# What ranks do; each tells it in a file of its own.


def waiting(folder: Path) -> None:
    r"""A rank that waits for another to send gives up after three seconds."""
    from torch.distributed.distributed_c10d import _set_pg_timeout

    with distributed("cpu") as ranks:
        ranks.barrier()
        _set_pg_timeout(timedelta(seconds=3))
        told = ranks.first(lambda: time.sleep(6) or "six seconds later")
        _set_pg_timeout(timedelta(minutes=5))
        assert ranks.first(lambda: ranks.rank) == 0
        (folder / f"rank{ranks.rank}").write_text(told)


def replicated(folder: Path) -> None:
    with distributed("cpu") as ranks, warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        module = replicate(ranks, torch.nn.BatchNorm1d(1, affine=True))
        assert not module.will_sync_module_buffers()  # type: ignore[operator]
        module(torch.full((2, 1), float(ranks.rank)))
        # a tenth of the mean, each rank's its own
        mean = module.module.running_mean.item()  # type: ignore[union-attr]
        (folder / f"rank{ranks.rank}").write_text(str(round(mean, 3)))


def failing(folder: Path, out: Path, name: str, again: bool) -> None:
    r"""Where a file is to go there is a folder, or the reverse: the first rank alone finds out."""
    run, config = out / "run", small.configuration()
    options = {"statistics": small.state_statistics(), "device": "cpu", "every": 1}

    def go_on(steps: int) -> None:  # as a user does, with the logger they have by default
        train_autoencoder(config, folder / "store.zarr", run, steps=steps, **options)

    with distributed("cpu") as ranks:
        if again:
            go_on(1)
        if ranks.main:
            (run / name).unlink(missing_ok=True)
            (run / name).parent.mkdir(parents=True, exist_ok=True)
            (run / name / "full").mkdir(parents=True) if "." in name else (run / name).touch()
        ranks.barrier()
        with pytest.raises(AppaError) as error:
            go_on(2)
        (out / f"rank{ranks.rank}").write_text(f"{type(error.value).__name__}: {error.value}")


@pytest.mark.parametrize(
    ("name", "again", "told"),
    [
        ("training/autoencoder/log.jsonl", False, "LogError: the log in "),
        ("config.yaml", False, "ModelError: cannot write .*config.yaml"),
        ("autoencoder.safetensors", True, "ModelError: cannot write .*autoencoder.safetensors"),
        ("training/autoencoder/checkpoints", False, "CheckpointError: .*checkpoint of step 1 "),
    ],
)
def test_what_the_first_rank_cannot_write_ends_all(folder, tmp_path, name, again, told):
    ranks(failing, folder, tmp_path, name, again)
    first, second = ((tmp_path / f"rank{rank}").read_text() for rank in range(2))
    assert re.match(told, first)
    assert second == first


@pytest.mark.parametrize(
    ("function", "told"),
    [
        # as statistics of a large store do
        pytest.param(waiting, ["six seconds later"] * 2, id="the first rank may take long"),
        pytest.param(replicated, ["0.0", "0.1"], id="buffers are not sent"),
    ],
)
def test_two_processes(tmp_path, function, told):
    ranks(function, tmp_path)
    assert [(tmp_path / f"rank{rank}").read_text() for rank in range(2)] == told


def test_alone():
    with distributed("cpu") as ranks:
        assert (ranks.rank, ranks.world, ranks.device.type) == (0, 1, "cpu")
        assert ranks.main
        assert ranks.largest(1.0, -2.5) == [1.0, -2.5]
        x = torch.arange(3.0)
        assert torch.equal(ranks.mean(x), x)


class Many(Ranks):
    r"""Two ranks in one process: the other takes `seconds` for an update, and is never asked."""

    def largest(self, *values):
        stop, took = values
        return [stop, max(took, self.seconds)]


@pytest.mark.parametrize(
    ("seconds", "asked_at"),
    [
        (0.0, [1, 11, 21]),  # quick updates: every tenth
        (0.3, [1, 4, 7, 10, 13, 16, 19, 22]),
        (20.0, list(range(1, 23))),  # at 0.25°: a stop is noticed at the next
    ],
)
def test_when_ranks_ask_each_other(monkeypatch, seconds, asked_at):
    r"""By the slowest of them, about every second, and after ten updates at most."""
    found = []
    ranks = Many(0, 2, torch.device("cpu"))
    monkeypatch.setattr(Many, "seconds", seconds, raising=False)
    monkeypatch.setattr("appa.training.interruptions.time.perf_counter", lambda: 0.0)
    together = Together(ranks, 0)
    for step in range(1, 23):
        if together(step, True):
            found.append(step)
    assert found == asked_at
    assert Together(Ranks(0, 1, torch.device("cpu")), 0)(1, True)  # alone, at every update


def test_devices_that_are_not_there():
    with pytest.raises(AppaError, match="did you mean 'cuda'"), distributed("cude"):
        pass
    if not torch.cuda.is_available():
        with pytest.raises(AppaError, match="no CUDA device"), distributed("cuda"):
            pass
