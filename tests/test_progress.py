r"""Progress in logs and on terminals, by a clock that the tests turn."""

from __future__ import annotations

import io
import re

import pytest

from appa import progress as module
from appa.progress import Share, progress


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def work(clock: Clock, steps: int, seconds: float, skipped: int = 0) -> None:
    with progress(steps, "drawing", unit="steps") as p:
        p.skip(skipped)
        for _ in range(steps - skipped):
            clock.now += seconds
            p.advance()


def test_a_log_hears_of_what_takes_longer_than_five_seconds(clock, capsys):
    work(clock, 10, 0.4)
    assert capsys.readouterr().err == ""
    work(clock, 3, 3.0)
    assert capsys.readouterr().err == "drawing: 2/3 steps, 3 s left\n"


def test_lines_in_a_log_are_ten_seconds_apart(clock, capsys):
    work(clock, 40, 1.0)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"drawing: {n}/40 steps, {40 - n} s left" for n in (6, 17, 28, 39)]


def test_what_was_done_before_says_nothing_about_speed(clock, capsys):
    work(clock, 12, 6.0, skipped=10)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["drawing: 11/12 steps, 6 s left"]


def test_a_slow_beginning_is_forgotten(clock, capsys):
    with progress(32, "training") as p:
        for n in range(32):
            clock.now += 1.0 if n else 60.0
            p.advance()
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"training: {n}/32 steps, {s} s left" for n, s in ((1, 1860), (12, 20), (23, 9))
    ]


@pytest.mark.parametrize(("seconds", "stays"), [(0.1, False), (1.0, True)])
def test_a_bar_stays_where_it_took_long(clock, monkeypatch, seconds, stays):
    r"""What is left on a terminal is what follows the last line erased."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    work(clock, 10, seconds)
    told = terminal.getvalue()
    assert "drawing" in told
    left = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", told.rpartition("\x1b[2K")[2])
    assert ("10/10 steps" in left) == stays
    assert bool(left.strip()) == stays


def test_many_small_things_are_a_few_steps():
    steps = []
    share = Share(steps.append, 71, 3)
    for n in (1, 30, 20, 20):
        share(n)
    assert steps == [0, 1, 1, 1]
