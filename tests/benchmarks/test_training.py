r"""The benchmark of training runs as its page has it, for a moment."""

from __future__ import annotations

import importlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from appa.config import load_config
from appa.costs import denoiser_flops

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_operations_are_counted(monkeypatch):
    r"""Without computing anything."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    found = importlib.import_module("windows").operations(load_config("planet"))
    assert found["denoise"] == pytest.approx(denoiser_flops(load_config("planet")), rel=0.06)


def test_the_default_preset_trains(tmp_path, monkeypatch, capsys):
    r"""Both networks of the planet, a few updates each; in this process, which is quicker."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    training = importlib.import_module("training")
    monkeypatch.setattr(training, "ProcessPoolExecutor", lambda n, *_, **__: ThreadPoolExecutor(n))
    output = tmp_path / "training.json"
    training.main(
        [
            *("--minutes", "0.001", "--hours", "24", "--batch", "1", "--ways", "plain"),
            *("--directory", str(tmp_path), "--output", str(output)),
        ]
    )
    found = json.loads(output.read_text())
    assert found["preset"] == "planet"
    assert [(row["network"], row["unit"]) for row in found["rows"]] == [
        ("autoencoder", "states"),
        ("denoiser", "windows"),
    ]
    assert all(row["updates"] >= 1 and row["per_second"] > 0 for row in found["rows"])
    assert "| denoiser | 1 | plain |" in capsys.readouterr().out
