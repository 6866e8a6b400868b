r"""Parts of a run, in processes of their own; what these draw is tested with the tasks."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import appa.tasks.drawing as drawing
from appa.termination import Terminated

from . import small


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_processes_end_with_their_parent():
    r"""Killed, it takes those that draw along."""
    code = (
        "import multiprocessing, os, time\n"
        "from concurrent.futures import ProcessPoolExecutor\n"
        "from appa.tasks.drawing import begin\n"
        "context = multiprocessing.get_context('spawn')\n"
        "pool = ProcessPoolExecutor(1, context, begin, (None, None, 1))\n"
        "print(pool.submit(os.getpid).result(), flush=True)\n"
        "pool.submit(time.sleep, 600).result()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    status = Path("/proc") / parent.stdout.readline().strip() / "status"
    assert "State:" in status.read_text()
    parent.kill()
    parent.wait()
    for _ in range(600):
        if not status.exists() or "State:\tZ" in status.read_text():
            return
        time.sleep(0.1)
    raise AssertionError("it goes on")


SCRIPT = """
import sys
import pandas as pd
import appa

if __name__ == "__main__":
    @appa.observable("square", units="K2", inputs=("2m_temperature",))
    def square(t):
        return t**2

    row = {"latitude": 0.0, "longitude": 0.0, "variable": "square", "value": 8e4, "error": 1e3}
    seen = pd.DataFrame([{"time": "2001-01-03T00:00", **row}])
    try:
        appa.load(sys.argv[1]).reanalysis(
            seen, "2001-01-03T00", 4, members=2, batch=1, steps=1, workers=2
        )
    except appa.errors.DataError as error:
        print(error)
"""


def test_an_observable_of_the_script_alone(tmp_path):
    r"""What is not defined where it is drawn is named; the pool does not just break."""
    (tmp_path / "script.py").write_text(SCRIPT)
    model = tmp_path / "model"
    model.mkdir()
    command = [sys.executable, "script.py", str(small.write_model(model, denoiser=True))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "function of the observable 'square', of '__main__', is not known" in done.stdout
    assert "top level of a module" in done.stdout
    assert "workers=1" in done.stdout


def test_a_process_that_was_told_to_end_begins_no_other_part(monkeypatch):
    r"""One that waits in its queue already cannot be cancelled."""
    begun = []

    def drawn(part, *_):
        begun.append(part)
        raise Terminated

    monkeypatch.setattr(drawing, "drawn_part", drawn)
    monkeypatch.setattr(drawing, "_here", {"posterior": None, "steps": None})
    for number in range(2):
        with pytest.raises(Terminated):
            drawing.work(drawing.Part(range(number, number + 1), 0), None, {})
    assert len(begun) == 1
