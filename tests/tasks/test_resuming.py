r"""Runs that are killed, damaged, or begun otherwise."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import appa.tasks.resuming as resuming
from appa.errors import StoreError
from appa.tasks.resuming import RunError, RunState, differences

from ..processes import Process

STEPS = 40
ALWAYS = float("inf")


def step(z: torch.Tensor, window: int, i: int) -> torch.Tensor:
    noise = torch.randn(64, generator=torch.Generator().manual_seed(1000 * window + i))
    return 0.9 * z + torch.sin(z.roll(1)) / 7 + 0.1 * noise


def draw(folder: Path, pause: float = 0.0) -> None:
    r"""Draws two windows, the second given the first, each step with noise of its own.

    Arguments:
        folder: The run's.
        pause: The seconds a step takes.
    """
    with RunState(folder, {"seed": 0}, share=ALWAYS) as state:
        past = torch.zeros(64)
        for window in range(2):
            name = f"members-0-4/window-{window}"
            kept = state.load(name)
            if state.finished(name):
                assert kept is not None
                past = kept["z"]
                continue
            z, first = (past + 1, 0) if kept is None else (kept["z"], int(kept["step"]))
            print("begin", window, first, flush=True)
            for i in range(first, STEPS):
                time.sleep(pause)
                z = step(z, window, i)
                state.save(name, {"z": z}, i + 1)
            state.done(name, {"z": z})
            past = z
        torch.save(past, f"{folder}.pt")
        state.remove()


@pytest.mark.slow
def test_killed_and_the_answer_is_the_same(tmp_path):
    r"""Killed in its second window, a run goes on there and ends with the bits it would have."""
    folder = tmp_path / "run"
    with Process(draw, folder, 0.03) as process:
        process.until(lambda: list(folder.rglob("window-1/step-*5.safetensors")))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    with Process(draw, folder) as again:
        assert again.wait() == 0, again.said
        told = again.said.split()
    assert told[:2] == ["begin", "1"]  # not window 0
    assert int(told[2]) >= 5
    assert not folder.exists()

    z = torch.zeros(64)
    for window in range(2):
        z = z + 1
        for i in range(STEPS):
            z = step(z, window, i)
    assert torch.equal(torch.load(f"{folder}.pt"), z)


def bits(x: torch.Tensor) -> list[int]:
    return x.contiguous().reshape(-1).view(torch.uint8).tolist()


def test_what_is_saved_comes_back(tmp_path):
    r"""Of any kind, bit for bit: NaN and negative zero too."""
    tensors = {
        "z": torch.tensor([[1.0, float("nan")], [-0.0, float("inf")]]),
        "view": torch.arange(6).reshape(2, 3).T,
        "half": torch.tensor([1 / 3], dtype=torch.bfloat16),
        "none": torch.zeros(0, 3),
        "flag": torch.tensor(True),
    }
    with RunState(tmp_path / "run", {}, share=ALWAYS) as state:
        assert state.save("draw", tensors, 3)
    with RunState(tmp_path / "run", {}) as state:
        kept = state.load("draw")
        assert state.load("other") is None
    assert kept is not None
    assert kept.pop("step") == 3
    assert kept.keys() == tensors.keys()
    for name, x in tensors.items():
        assert (kept[name].dtype, kept[name].shape) == (x.dtype, x.shape)
        assert bits(kept[name]) == bits(x)


def test_steps_are_written_now_and_then(tmp_path):
    r"""The first at once. The rest is kept until the run ends with an error; unless it was written
    over by then."""

    def draw_and_stop() -> None:
        with RunState(tmp_path / "run", {}, share=0) as state:
            z = torch.zeros(3)
            for i in range(5):
                z = z + 1
                assert state.save("draw", {"z": z}, i + 1) == (i == 0)
            shared = torch.zeros(3)
            state.save("in-place", {"z": shared}, 1)
            shared += 1
            assert [f.name for f in tmp_path.rglob("*.safetensors")] == [
                "step-00000001.safetensors"
            ]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draw_and_stop()
    with RunState(tmp_path / "run", {}) as state:
        kept = state.load("draw")
        assert kept is not None
        assert kept["step"] == 5
        assert torch.equal(kept["z"], torch.full((3,), 5.0))
        assert state.load("in-place") is None


def test_steps_are_written_where_that_is_cheap(tmp_path, monkeypatch):
    r"""Of steps of 1 s and writes of 0.22 s, a twentieth of the time is one every five steps."""
    now = 0.0

    def write(*_: object) -> None:
        nonlocal now
        now += 0.22

    monkeypatch.setattr(resuming.time, "monotonic", lambda: now)
    monkeypatch.setattr(resuming, "_write", write)
    written = []
    with RunState(tmp_path / "run", {}) as state:
        for i in range(1, 19):
            now += 1.0
            if state.save("draw", {"z": torch.zeros(1)}, i):
                written.append(i)
    assert written == [1, 6, 11, 16]


def test_an_interrupted_write_is_made_up_for(tmp_path, monkeypatch):
    r"""What ends a run may come while it writes."""
    write, calls = resuming._write, []

    def interrupted(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        write(*arguments)

    monkeypatch.setattr(resuming, "_write", interrupted)

    def draw_and_stop() -> None:
        with RunState(tmp_path / "run", {}, share=ALWAYS) as state:
            for i in (1, 2):
                state.save("draw", {"z": torch.full((2,), float(i))}, i)

    with pytest.raises(KeyboardInterrupt):
        draw_and_stop()
    with RunState(tmp_path / "run", {}) as state:
        kept = state.load("draw")
    assert kept is not None
    assert kept["step"] == 2


def test_two_steps_are_kept(tmp_path):
    with RunState(tmp_path / "run", {}, share=ALWAYS) as state:
        for i in (1, 2, 3, 4):
            state.save("draw", {"z": torch.full((2,), float(i))}, i)
        files = sorted((tmp_path / "run" / "draw").iterdir())
        assert [f.name for f in files] == ["step-00000003.safetensors", "step-00000004.safetensors"]
        state.save("draw", {"z": torch.zeros(2)}, 2)  # a second try from an earlier step
        assert [f.name for f in (tmp_path / "run" / "draw").iterdir()] == [
            "step-00000002.safetensors"
        ]


@pytest.mark.parametrize("how", ["cut", "flipped", "empty"])
def test_damage_is_found(tmp_path, how):
    r"""The step before is used, and with both damaged, none; never wrong numbers."""
    with RunState(tmp_path / "run", {}, share=ALWAYS) as state:
        for i in (1, 2):
            state.save("draw", {"z": torch.full((64,), float(i))}, i)
    files = sorted((tmp_path / "run" / "draw").iterdir())
    for k, file in enumerate(reversed(files)):
        data = bytearray(file.read_bytes())
        if how == "flipped":
            data[-5] ^= 1
        file.write_bytes(data if how == "flipped" else data[: len(data) // 2 * (how == "cut")])
        with RunState(tmp_path / "run", {}) as state:
            with pytest.warns(UserWarning, match="damaged"):
                kept = state.load("draw")
            if k == 0:
                assert kept is not None
                assert kept["step"] == 1
                assert (kept["z"] == 1).all()
            else:
                assert kept is None


def test_another_run_is_refused(tmp_path):
    key = {"seed": 0, "settings": {"steps": 32}, "configuration": "window: 24\nx: 1\n"}
    with RunState(tmp_path / "run", key, share=ALWAYS) as state:
        state.save("draw", {"z": torch.zeros(2)}, 1)
    other = {"seed": 1, "settings": {"steps": 64}, "configuration": "window: 24\nx: 2\n"}
    with pytest.raises(RunError, match=r"seed was 0, is 1; settings.steps was 32, is 64; .*x: 2"):
        RunState(tmp_path / "run", other)
    with RunState(tmp_path / "run", key) as state:  # the refusal has left it as it was
        assert state.load("draw") is not None


def test_one_process_at_a_time(tmp_path):
    with (
        RunState(tmp_path / "run", {}),
        pytest.raises(StoreError, match=f"process {os.getpid()}"),
    ):
        RunState(tmp_path / "run", {})


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("")
    with pytest.raises(RunError, match="in the way"):
        RunState(tmp_path / "run", {})
    assert (tmp_path / "run" / "thesis.tex").exists()


def test_names_stay_inside(tmp_path):
    with RunState(tmp_path / "run", {}) as state:
        for name in ("../x", "/x", "a//b", ".."):
            with pytest.raises(ValueError, match="no name"):
                state.load(name)


def test_differences():
    assert list(differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 1}})) == ["c was 2, is None"]
