r"""Devices by name: those that are here are found, of others it is said what they are."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

import appa
from appa.cli import application
from appa.errors import AppaError
from appa.machine import find_device

WRONG = {"foo": "unknown device 'foo'; known: cpu, cuda", "cuda": "no CUDA device; .*give cpu"}


@pytest.fixture(autouse=True)
def without_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_those_that_are_here():
    for name in (None, "cpu", torch.device("cpu")):
        assert find_device(name) == torch.device("cpu")
    assert find_device("meta").type == "meta"  # whatever torch knows


def test_those_that_are_counted(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_device() == find_device("cuda") == torch.device("cuda")
    assert find_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(AppaError, match="no CUDA device 2: there are 2, counted from 0"):
        find_device("cuda:2")
    with pytest.raises(AppaError, match="unknown device 'cuda:b'; did you mean 'cuda'"):
        find_device("cuda:b")


@pytest.mark.parametrize("name", list(WRONG))
def test_a_model_goes_nowhere_else(name):
    with pytest.raises(AppaError, match=WRONG[name]):
        appa.load("planet", name)
    with pytest.raises(AppaError, match=WRONG[name]):
        appa.load("planet").to(name)


@pytest.mark.parametrize("name", list(WRONG))
@pytest.mark.parametrize(
    "command",
    [
        "score autoencoder planet --data planet --out scores --no-figures",
        "score prior planet --data planet --out scores --climatology planet --no-figures",
        "reanalysis planet none.parquet --start 2021-03-21T00 --hours 1 --out out.zarr",
        "plan reanalysis planet --hours 1",
        "representation planet --data planet",
        "data simulate latents.zarr --days 1 --encode planet",
        "baseline covariance planet --climatology planet --out covariance.nc",
    ],
)
def test_commands(tmp_path, monkeypatch, command, name):
    r"""Before there is work, or a file."""
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(application(), [*command.split(), "--device", name])
    assert isinstance(result.exception, AppaError), result.output
    with pytest.raises(AppaError, match=WRONG[name]):
        raise result.exception
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
