from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import pytest
import torch

from appa.config import load_config
from appa.errors import AppaError
from appa.training.logs import LogError, Logs


def entries(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def curve(folder, name):
    r"""A curve as TensorBoard itself shows it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return [(e.step, e.value) for e in events.Scalars(name)]


def test_numbers_in_both_logs(tmp_path):
    folder = tmp_path / "training"
    with Logs(folder, config=load_config("planet")) as logs:
        for step in (1, 2, 3):
            logs.scalars(step, {"train/loss": torch.tensor(1 / step), "train/rate": step * 8})
    found = entries(folder)
    assert [(e["step"], e["train/rate"]) for e in found] == [(1, 8.0), (2, 16.0), (3, 24.0)]
    assert [e["train/loss"] for e in found] == [float(torch.tensor(1 / k)) for k in (1, 2, 3)]
    assert all(abs(e["time"] - time.time()) < 60 for e in found)
    single = [float(torch.tensor(1 / k)) for k in (1, 2, 3)]
    assert curve(folder, "train/loss") == list(zip((1, 2, 3), single, strict=True))


def test_lines_are_there_before_the_end(tmp_path):
    r"""Each line reaches the file at once: a killed process leaves what it told."""
    logs = Logs(tmp_path, "none")
    logs.scalars(1, {"loss": 1.0})
    assert [e["step"] for e in entries(tmp_path)] == [1]
    logs.close()


def test_a_resumed_run_tells_each_step_once(tmp_path):
    with Logs(tmp_path) as logs:
        for step in range(10):
            logs.scalars(step, {"loss": 100.0 + step})
    with Logs(tmp_path, resume_step=4) as logs:
        for step in range(5, 8):
            logs.scalars(step, {"loss": 200.0 + step})
    expected = [(k, 100.0 + k) for k in range(5)] + [(k, 200.0 + k) for k in range(5, 8)]
    assert [(e["step"], e["loss"]) for e in entries(tmp_path)] == expected
    assert curve(tmp_path, "loss") == expected


def test_a_run_that_begins_anew_forgets(tmp_path):
    for start in (10.0, 20.0):
        with Logs(tmp_path) as logs:
            logs.scalars(0, {"loss": start})
    assert [e["loss"] for e in entries(tmp_path)] == [20.0]
    assert curve(tmp_path, "loss") == [(0, 20.0)]


def test_half_a_line_is_dropped(tmp_path):
    with Logs(tmp_path, "none") as logs:
        logs.scalars(1, {"loss": 1.0})
        logs.scalars(2, {"loss": 2.0})
    path = tmp_path / "log.jsonl"
    os.truncate(path, path.stat().st_size - 5)
    with Logs(tmp_path, "none", resume_step=2) as logs:
        logs.scalars(3, {"loss": 3.0})
    assert [e["step"] for e in entries(tmp_path)] == [1, 3]


def test_a_loss_that_diverged_is_null(tmp_path):
    with Logs(tmp_path) as logs:
        logs.scalars(1, {"loss": math.nan, "norm": math.inf, "rate": 2})

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    (line,) = (tmp_path / "log.jsonl").read_text().splitlines()
    entry = json.loads(line, parse_constant=refuse)
    assert (entry["loss"], entry["norm"], entry["rate"]) == (None, None, 2.0)
    assert math.isnan(curve(tmp_path, "loss")[0][1])


def test_pictures(tmp_path):
    from matplotlib.figure import Figure
    from matplotlib.image import imread
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Logs(tmp_path) as logs:
        for step in (5, 10):
            figure = Figure(figsize=(2, 1), dpi=50)
            figure.add_axes((0, 0, 1, 1)).imshow([[0, step]])
            path = logs.figure(step, "validation/picture", figure)
            assert path == tmp_path / "pictures" / f"validation-picture-{step:08d}.png"
            assert imread(path).shape == (50, 100, 4)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    shown = events.Images("validation/picture")
    assert [(e.step, e.width, e.height) for e in shown] == [(5, 100, 50), (10, 100, 50)]

    Logs(tmp_path, "none", resume_step=7).close()
    held = [p.name for p in (tmp_path / "pictures").iterdir()]
    assert held == ["validation-picture-00000005.png"]


def test_the_configuration_is_told(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    Logs(tmp_path, config=load_config("era5-0.25deg")).close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    (text,) = events.Tensors("config/text_summary")
    assert "latent_channels: 128" in text.tensor_proto.string_val[0].decode()


def test_none_writes_no_events(tmp_path):
    Logs(tmp_path, "none").close()
    assert [p.name for p in tmp_path.iterdir()] == ["log.jsonl"]


def test_unknown_logger(tmp_path):
    with pytest.raises(AppaError, match="did you mean 'tensorboard'"):
        Logs(tmp_path, "tensorbord")


@pytest.mark.parametrize(("kind", "package"), [("wandb", "wandb"), ("tensorboard", "tensorboard")])
def test_a_missing_package_is_named(tmp_path, kind, package):
    r"""In a process where the package cannot be imported, installed or not."""
    script = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from appa.errors import AppaError\n"
        "from appa.training.logs import Logs\n"
        f"try: Logs({str(tmp_path / 'run')!r}, {kind!r})\n"
        "except AppaError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "is not installed" in done.stdout, done.stderr
    assert f"pip install {package}" in done.stdout
    assert "--logger none" in done.stdout
    assert not (tmp_path / "run").exists()


def test_wandb_is_imported_only_if_asked(tmp_path):
    script = (
        "import sys\n"
        "from appa.training.logs import Logs\n"
        f"Logs({str(tmp_path)!r}, 'tensorboard').close()\n"
        "assert 'wandb' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


class Run:
    r"""What stands in for a run of Weights & Biases: it keeps what it is told."""

    def __init__(self, **options):
        self.options, self.told, self.metrics, self.finished = options, [], {}, False

    def define_metric(self, name, step_metric=None):
        self.metrics[name] = step_metric

    def log(self, values):
        assert not self.finished
        self.told.append(values)

    def finish(self):
        self.finished = True


@pytest.fixture
def runs(monkeypatch):
    r"""The runs begun with a module in place of `wandb`, which has the calls that are made."""
    from types import ModuleType

    begun: list[Run] = []

    def init(**options):
        begun.append(Run(**options))
        return begun[-1]

    module = ModuleType("wandb")
    monkeypatch.setattr(module, "init", init, raising=False)
    monkeypatch.setattr(module, "Image", lambda path: ("image", path), raising=False)
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return begun


def test_wandb_is_told(tmp_path, runs):
    from matplotlib.figure import Figure

    with Logs(tmp_path, "wandb", config=load_config("planet")) as logs:
        logs.scalars(5, {"loss": torch.tensor(0.5), "rate": 2})
        path = logs.figure(5, "reconstruction", Figure(figsize=(1, 1), dpi=20))
    (run,) = runs
    assert (run.options["project"], run.options["dir"]) == ("appa", str(tmp_path))
    assert run.options["config"]["autoencoder"]["latent_channels"] == 72
    assert run.told == [
        {"step": 5, "loss": 0.5, "rate": 2.0},
        {"step": 5, "reconstruction": ("image", str(path))},
    ]
    # its own count goes up with every call: curves are drawn over ours
    assert run.metrics == {"step": None, "*": "step"}
    assert run.finished
    assert entries(tmp_path)[0]["loss"] == 0.5  # beside it, as ever


def test_wandb_goes_on_under_the_same_name(tmp_path, runs, monkeypatch):
    with Logs(tmp_path, "wandb") as logs:
        logs.scalars(1, {"loss": 1.0})
    with Logs(tmp_path, "wandb", resume_step=1) as logs:
        logs.scalars(2, {"loss": 0.5})
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    Logs(tmp_path, "wandb").close()  # begins anew
    first, again, anew = (run.options for run in runs)
    assert first["id"] == again["id"] != anew["id"]
    assert all(options["resume"] == "allow" for options in (first, again, anew))
    assert (again["project"], anew["project"]) == ("appa", "mine")
    assert [run.told for run in runs[:2]] == [
        [{"step": 1, "loss": 1.0}],
        [{"step": 2, "loss": 0.5}],
    ]
    assert all(run.finished for run in runs)


@pytest.mark.parametrize("error", [RuntimeError("no API key\nrun this"), OSError("no route")])
def test_wandb_that_does_not_begin(tmp_path, runs, monkeypatch, error):
    r"""Its errors are of its own kinds: not logged in, not connected."""

    def init(**_):
        raise error

    monkeypatch.setattr(sys.modules["wandb"], "init", init)
    with pytest.raises(LogError) as found:
        Logs(tmp_path, "wandb")
    told = str(found.value)
    assert f"({type(error).__name__}: {str(error).splitlines()[0]})" in told
    for way in ("wandb login", "WANDB_MODE=offline", "--logger tensorboard"):
        assert way in told
    assert "\n" not in told


def test_wandb_offline(tmp_path, monkeypatch):
    r"""The package itself, where it is installed."""
    pytest.importorskip("wandb", reason="Weights & Biases is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with Logs(tmp_path, "wandb", config={"a": 1}) as logs:
        logs.scalars(1, {"loss": 1.0})
    assert list((tmp_path / "wandb").glob("offline-run-*"))
    assert entries(tmp_path)[0]["loss"] == 1.0


@pytest.mark.parametrize(
    ("checkpoint", "told"),
    [(True, "goes on from the last checkpoint"), (False, "starts from the beginning")],
)
def test_a_full_disk_is_told(tmp_path, checkpoint, told):
    r"""A log on a device that is always full."""
    if checkpoint:
        (tmp_path / "checkpoints" / "step-00000004").mkdir(parents=True)
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    logs = Logs(tmp_path, "none")
    logs.file.close()
    logs.file = open("/dev/full", "a", buffering=1)  # noqa: SIM115
    with pytest.raises(AppaError, match=rf"No space left.*the same command {told}"):
        logs.scalars(1, {"loss": 1.0})
    with pytest.warns(UserWarning, match="No space left"):
        logs.close()


@contextmanager
def no_room():
    r"""The system takes no bytes more, in whatever file, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def printed(monkeypatch):
    r"""The threads whose errors Python would print with a traceback."""
    heard: list[threading.Thread] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: heard.append(args.thread))
    return heard


def test_a_full_disk_when_tensorboard_begins(tmp_path, printed):
    r"""Its thread fails, and the message is all that is seen of it."""
    before = threading.excepthook
    with no_room(), pytest.raises(AppaError, match=r"File too large.*starts from the beginning"):
        Logs(tmp_path)
    assert printed == []
    assert threading.excepthook is before


def test_a_full_disk_while_tensorboard_writes(tmp_path, printed):
    r"""What is not written is told at the latest where the log ends; other threads are heard."""
    before, others = threading.excepthook, threading.enumerate()
    logs = Logs(tmp_path)
    (writing,) = (thread for thread in threading.enumerate() if thread not in others)
    logs.file.close()
    logs.file = open(os.devnull, "a")  # noqa: SIM115 # its own error would come first
    with no_room():
        with suppress(LogError):
            logs.scalars(1, {"loss": 1.0})
        writing.join(60)
    with pytest.warns(UserWarning, match="File too large"):
        logs.close()
    assert printed == []
    assert threading.excepthook is before

    with Logs(tmp_path):
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
    assert printed == [thread]


@pytest.mark.filterwarnings("error")
def test_a_full_disk_is_told_once(tmp_path, printed):
    with pytest.raises(LogError, match="File too large"), Logs(tmp_path) as logs, no_room():
        logs.scalars(1, {"loss": 1.0})
    assert printed == []


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AppaError, match="cannot be written"):
        Logs(tmp_path / "file" / "training", "none")
