r"""The `appa` command as a whole: its version, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib import metadata

import pytest

APPA = [sys.executable, "-c", "from appa.cli import main; main()"]


def test_version():
    result = subprocess.run([*APPA, "--version"], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"appa {metadata.version('appa-assimilation')}\n"


def test_help_says_what_it_is():
    result = subprocess.run([*APPA, "--help"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0
    for word in ("Reconstructs the global atmosphere", "--version", "config", "data", "demo"):
        assert word in result.stdout


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["data", "fetch", "out.zarr", "--preset", "{}"],
         "stopped; the same command goes on where it was\n"),
        (["config", "show", "{}"], "stopped\n"),
    ],
)  # fmt: skip
def test_interrupted(arguments, told, tmp_path):
    r"""The configuration is a pipe nobody writes to: the command waits until it is stopped."""
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    command = [*APPA, *(a.format(pipe) for a in arguments)]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that run in the background ignore Ctrl-C, and what they start would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    end, deadline = None, time.monotonic() + 60
    try:
        while end is None:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            try:  # it opens once the command reads
                end = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        for patience in (20, 60):
            try:
                out, err = process.communicate(timeout=patience)
                break
            except subprocess.TimeoutExpired:  # where Python was busy, it may miss the first
                process.send_signal(signal.SIGINT)
    finally:
        process.kill()
        if end is not None:
            os.close(end)
    assert (process.returncode, out, err) == (130, "", told)
