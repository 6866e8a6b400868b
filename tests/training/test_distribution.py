r"""Two processes do what one does with the same global batch, and can go on from each other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from appa.errors import AppaError
from appa.training.distribution import Ranks, distributed

from . import small
from .worker import CASES, make_trainer, results, resumed

ROOT = Path(__file__).parents[2]
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
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launch, "-m", "tests.training.worker", str(folder), str(out)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
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


# each rank to a file of its own: lines that two processes print at once run into each other
TELL = """
from pathlib import Path

def tell(rank, what):
    Path(__file__).with_name(f"rank{rank}").write_text(str(what))
"""

# a rank that waits for another to send gives up after three seconds
WAITING = """
import time
from datetime import timedelta
from torch.distributed.distributed_c10d import _set_pg_timeout
from appa.training.distribution import distributed

with distributed("cpu") as ranks:
    ranks.barrier()
    _set_pg_timeout(timedelta(seconds=3))
    told = ranks.first(lambda: time.sleep(6) or "six seconds later")
    _set_pg_timeout(timedelta(minutes=5))
    assert ranks.first(lambda: ranks.rank) == 0
    tell(ranks.rank, told)
"""

REPLICATED = """
import warnings
import torch
from appa.training.distribution import distributed, replicate

with distributed("cpu") as ranks, warnings.catch_warnings():
    warnings.simplefilter("error", FutureWarning)
    module = replicate(ranks, torch.nn.BatchNorm1d(1, affine=True))
    assert not module.will_sync_module_buffers()
    module(torch.full((2, 1), float(ranks.rank)))
    # a tenth of the mean, each rank's its own
    tell(ranks.rank, round(module.module.running_mean.item(), 3))
"""


@pytest.mark.parametrize(
    ("script", "told"),
    [
        # as statistics of a large store do
        pytest.param(WAITING, ["six seconds later"] * 2, id="the first rank may take long"),
        pytest.param(REPLICATED, ["0.0", "0.1"], id="buffers are not sent"),
    ],
)
def test_two_processes(tmp_path, script, told):
    (tmp_path / "script.py").write_text(TELL + script)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launch, str(tmp_path / "script.py")],
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"rank{rank}").read_text() for rank in range(2)] == told


def test_alone():
    with distributed("cpu") as ranks:
        assert (ranks.rank, ranks.world, ranks.device.type) == (0, 1, "cpu")
        assert ranks.main
        assert ranks.any(True)
        x = torch.arange(3.0)
        assert torch.equal(ranks.mean(x), x)


def test_devices_that_are_not_there():
    with pytest.raises(AppaError, match="did you mean 'cuda'"), distributed("cude"):
        pass
    if not torch.cuda.is_available():
        with pytest.raises(AppaError, match="no CUDA device"), distributed("cuda"):
            pass
