r"""SIGTERM, heard."""

from __future__ import annotations

import os
import pickle
import signal

import pytest

from appa.termination import Terminated, terminable


def test_it_is_heard_once():
    r"""Blocks are left in order, undisturbed by a second one, and the status is a shell's."""
    before, left = signal.getsignal(signal.SIGTERM), []

    def ended() -> None:
        with terminable():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                left.append("whole")

    with pytest.raises(Terminated) as found:
        ended()
    assert left == ["whole"]
    assert found.value.code == 143
    assert pickle.loads(pickle.dumps(found.value)).code == 143  # from a process that draws
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_program_that_hears_it_itself_is_left_to_it():
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda kind, _: heard.append(kind))
    try:
        with terminable():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]
