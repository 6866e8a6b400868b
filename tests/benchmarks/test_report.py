r"""What benchmarks tell: whose run a section is of, what fits in memory, and what comes first."""

from __future__ import annotations

import argparse
import importlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def report(path: Path, head: dict[str, Any], only: list[str] | None = None, limit: float = 60.0):
    arguments = argparse.Namespace(only=only, limit=limit, seconds=None)
    return importlib.import_module("common").Report(path, head, arguments)


def rows(value: int):
    yield {"row": 1}, lambda: {"found": value}


def test_sections_keep_the_head_of_their_run(tmp_path):
    r"""A rate of another run is not taken for this one's; a file of before heads were kept has one
    for all of its sections."""
    path = tmp_path / "report.json"
    old = {"machine": "A", "sections": {"first": {"rows": [{"found": 0}]}}}
    path.write_text(json.dumps(old))
    report(path, {"machine": "B"}, ["second"]).section("second", rows(1))
    report(path, {"machine": "C"}, ["third"]).section("third", rows(2))
    found = json.loads(path.read_text())
    heads = {name: section["head"]["machine"] for name, section in found["sections"].items()}
    assert heads == {"first": "A", "second": "B", "third": "C"}
    assert found["machine"] == "C"
    report(path, {"machine": "D"}).section("first", rows(3))  # all are run: nothing stays
    assert list(json.loads(path.read_text())["sections"]) == ["first"]


def test_a_section_may_have_several_times_the_limit(tmp_path):
    r"""Without a limit nothing is run; with any times none, neither."""
    path, none = tmp_path / "report.json", {"failed": "no time was left"}
    for limit, times, expected in ((60.0, 2.0, {"row": 1, "found": 1}), (0.0, 2.0, none)):
        report(path, {}, limit=limit).section("some", rows(1), times=times)
        assert json.loads(path.read_text())["sections"]["some"]["rows"] == [expected]


@pytest.mark.parametrize(
    ("planned", "held", "expected"),
    [
        (0, 6, [("all", False), (12, False), (6, True)]),  # found out by running out of it
        (12, 12, [("all", False), (12, True)]),  # known before
        (0, 24, [("all", True)]),
        (0, 0, [("all", False), (12, False), (6, False), (3, False), (1, False)]),
    ],
)
def test_fewer_hours_are_decoded_at_once_where_memory_is_short(planned, held, expected):
    r"""A byte an hour: `planned`, if any, are free; a run holds as many hours as `held`."""
    fitting = importlib.import_module("evaluations").fitting
    guarded = importlib.import_module("common").guarded
    ran: list[int] = []

    def run(m: int, at_once: int | None) -> dict[str, Any]:
        ran.append(at_once or 24)
        if ran[-1] > held:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return {"s": 1.0}

    attempts = fitting(4, run, lambda m, h: (h or 24) if planned else 0, lambda: planned)
    found = list(guarded(attempts, time.perf_counter() + 60))
    assert [(label["hours at once"], "s" in row) for label, row in found] == expected
    assert all(hours <= planned for hours in ran) or not planned


def test_what_fails_otherwise_is_not_tried_again():
    r"""A run that takes too long takes longer with fewer hours at once."""
    fitting = importlib.import_module("evaluations").fitting
    guarded = importlib.import_module("common").guarded

    def run(m: int, at_once: int | None) -> dict[str, Any]:
        raise TimeoutError("took more than 60 s")

    found = list(guarded(fitting(1, run, lambda *_: 0, lambda: 0), time.perf_counter() + 60))
    assert [row["failed"] for _, row in found] == ["TimeoutError: took more than 60 s"]


def test_parts_with_targets_come_first():
    r"""Those of the issue, before kernels of attention: decoder, transformer, training steps."""
    bench, passes = importlib.import_module("bench"), importlib.import_module("passes")
    one = bench.Bench("planet", torch.device("cpu"), "float32", rounds=1)
    labels = []
    for label, _ in passes.parts(one, compiled=True):
        if label["part"].startswith("attention"):
            break
        labels.append((label["part"].split(",")[0], label["way"], label["batch"]))
    for part in ("decoder forward", "transformer forward"):
        assert {(part, "appa", 1), (part, "appa", 4)} <= set(labels)
    for network in ("autoencoder", "denoiser"):
        assert (f"{network} training step", "appa", 1) in labels
    last = max(k for k, (part, way, _) in enumerate(labels) if part == "decoder forward")
    assert labels[last] == ("decoder forward", "compiled", 4)
    assert last == 2


def test_a_whole_reanalysis_is_timed_part_by_part():
    r"""Parts are within the whole, and nothing of them is counted twice."""
    bench, evaluations = importlib.import_module("bench"), importlib.import_module("evaluations")
    one = bench.Bench("planet", torch.device("cpu"), "float32", rounds=1)
    found = {
        label["part"]: run() for label, run in evaluations.whole(one, ("draft",), steps=1, hours=2)
    }
    assert list(found) == ["observing", "reading", "reanalysis, draft"]
    assert found["reading"]["observations"] > 10_000
    row = found["reanalysis, draft"]
    parts = ("compiling s", "drawing s", "decoding and writing s", "else s")
    assert all(row[part] > 0 for part in parts)
    assert sum(row[part] for part in parts) == pytest.approx(row["s"])
    assert row["products"] >= 1
