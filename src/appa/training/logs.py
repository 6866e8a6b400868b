r"""What a training tells: numbers by step, and pictures.

Every number goes to `log.jsonl`, one line a step, whatever else is chosen: TensorBoard, Weights &
Biases, or nothing. A run that goes on from a checkpoint repeats the steps after it; what was told
of them before is dropped, so that each step is told once.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import threading
import time
import uuid
import warnings
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ..errors import AppaError, nearest
from .checkpoints import Checkpoints

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..config import Config

__all__ = ["KINDS", "LogError", "Logs", "check_logger"]

KINDS = ("tensorboard", "wandb", "none")
WRITING = "tensorboard.summary.writer.event_file_writer"  # where TensorBoard's threads come from


class LogError(AppaError):
    r"""A log cannot be written."""


def check_logger(kind: str) -> None:
    r"""Raises unless there is such a logger here."""
    _package(kind)


class Logs:
    r"""Writes the logs of one training, from one process.

    Arguments:
        folder: The folder of the training.
        kind: `"tensorboard"`, `"wandb"` or `"none"`; `log.jsonl` is written in any case.
        config: The configuration, told along with the numbers.
        resume_step: The step of the checkpoint that the training goes on from. What was logged
            after it is dropped; all of it if :py:`None`, for a training that begins.

    Example:
        >>> logs = Logs("run/training/autoencoder", resume_step=2000)
        >>> logs.scalars(2001, {"train/loss": 0.25, "train/gradient_norm": 1.5})
        >>> logs.figure(2001, "reconstruction", fig)
        >>> logs.close()
    """

    def __init__(
        self,
        folder: str | Path,
        kind: str = "tensorboard",
        config: Config | Mapping[str, Any] | None = None,
        resume_step: int | None = None,
    ):
        # Missing packages are told before anything is touched.
        module = _package(kind)
        self.folder, self.kind = Path(folder), kind
        self.path = self.folder / "log.jsonl"
        self.pictures = self.folder / "pictures"
        last = -1 if resume_step is None else resume_step
        values = config if isinstance(config, Mapping) else config and config.model_dump()
        self.writer, self.run = None, None
        self.quiet = Quiet() if kind == "tensorboard" else None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._drop(last)
            self.file = open(self.path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115
            if kind == "tensorboard":
                self.writer = _begin_tensorboard(module, self.folder, last, values)
            elif kind == "wandb":
                self.run = _begin_wandb(module, self.folder, last, values)
        except OSError as error:
            if self.quiet is not None:
                self.quiet.end()
            raise self._unwritten(error) from error

    def scalars(self, step: int, values: Mapping[str, Any]) -> None:
        r"""Logs numbers, or tensors of one element, under their names."""
        numbers = {name: float(value) for name, value in values.items()}
        entry: dict[str, Any] = {"step": step, "time": round(time.time(), 3)}
        # JSON has no NaN: a loss that diverged is null.
        entry |= {name: x if math.isfinite(x) else None for name, x in numbers.items()}
        try:
            self.file.write(json.dumps(entry) + "\n")
            if self.writer is not None:
                for name, x in numbers.items():
                    self.writer.add_scalar(name, x, step)
        except OSError as error:
            raise self._unwritten(error) from error
        if self.run is not None:
            self.run.log({"step": step, **numbers})

    def figure(self, step: int, name: str, figure: Figure) -> Path:
        r"""Writes a picture to `pictures/NAME-STEP.png`, and to the logger.

        Returns:
            The file.
        """
        path = self.pictures / f"{name.replace('/', '-')}-{step:08d}.png"
        partial = path.with_suffix(".partial")
        try:
            self.pictures.mkdir(exist_ok=True)
            figure.savefig(partial, format="png")
            os.replace(partial, path)
            if self.writer is not None:
                self.writer.add_figure(name, figure, step, close=False)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise self._unwritten(error) from error
        if self.run is not None:
            self.run.log({"step": step, name: _wandb().Image(str(path))})
        return path

    def close(self) -> None:
        r"""Writes what is held back. What cannot be is a warning: the training is over."""
        for end in (
            self.file.close,
            self.writer and self.writer.flush,  # which says what was not written, closing does not
            self.writer and self.writer.close,
            self.quiet and self.quiet.end,
            self.run and self.run.finish,
        ):
            try:
                if end is not None:
                    end()
            except OSError as error:
                warnings.warn(str(self._unwritten(error)), stacklevel=2)

    def __enter__(self) -> Logs:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        with warnings.catch_warnings():
            if kind is not None and issubclass(kind, LogError):
                warnings.simplefilter("ignore")  # it is told once
            self.close()

    def _drop(self, last: int) -> None:
        r"""Forgets what was logged after a step, and half a line that a killed process left."""
        if self.path.exists():
            kept = []
            for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    if json.loads(line)["step"] <= last:
                        kept.append(line + "\n")
                except (ValueError, KeyError, TypeError):
                    continue
            partial = self.path.with_suffix(".partial")
            partial.write_text("".join(kept), encoding="utf-8")
            os.replace(partial, self.path)
        if self.pictures.exists():
            for path in self.pictures.iterdir():
                step = re.fullmatch(r".*-(\d{8,})\.(?:png|partial)", path.name)
                if step and (int(step[1]) > last or path.suffix == ".partial"):
                    path.unlink()

    def _unwritten(self, error: OSError) -> LogError:
        there = Checkpoints(self.folder / "checkpoints").steps()
        begins = "goes on from the last checkpoint" if there else "starts from the beginning"
        return LogError(
            f"the log in {self.folder} cannot be written ({error.strerror or error}); make room or "
            f"make it writable, and the same command {begins}"
        )


def _package(kind: str) -> Any:
    r"""What a logger writes with, if it is a package."""
    if kind not in KINDS:
        raise LogError(f"unknown logger {kind!r}{nearest(kind, KINDS)}")
    return _tensorboard() if kind == "tensorboard" else _wandb() if kind == "wandb" else None


# TensorBoard


def _tensorboard() -> Any:
    try:
        import tensorboard  # noqa: F401
        from torch.utils import tensorboard as module
    except ImportError as error:
        raise LogError(
            f"TensorBoard is not installed ({error}); pip install tensorboard, or log to log.jsonl "
            "alone with --logger none"
        ) from error
    return module


class Quiet:
    r"""Keeps the errors of TensorBoard's thread from standard error, until its end.

    TensorBoard writes in a thread of its own, whose error on a full disk Python prints with a
    traceback. Nothing is lost without it: the writer raises the same error where it is called next.
    """

    def __init__(self) -> None:
        self.others = weakref.WeakSet(threading.enumerate())
        self.before = threading.excepthook
        threading.excepthook = self.hear

    def hear(self, args: Any) -> None:
        if not self.mine(args.thread):
            self.before(args)

    def mine(self, thread: threading.Thread | None) -> bool:
        return type(thread).__module__ == WRITING and thread not in self.others

    def end(self) -> None:
        # what has failed may not have come to its error yet
        for thread in filter(self.mine, threading.enumerate()):
            thread.join(1.0)
        if threading.excepthook == self.hear:
            threading.excepthook = self.before


def _begin_tensorboard(
    module: Any, folder: Path, last: int, values: Mapping[str, Any] | None
) -> Any:
    again = any(folder.glob("events.out.tfevents.*"))
    writer = module.SummaryWriter(
        str(folder), purge_step=last + 1 if again else None, flush_secs=30
    )
    if values is not None and last < 0:
        text = yaml.safe_dump(json.loads(json.dumps(values, default=str)), sort_keys=False)
        writer.add_text("config", f"```yaml\n{text}```")
    return writer


# Weights & Biases


def _wandb() -> Any:
    try:
        return importlib.import_module("wandb")
    except ImportError as error:
        raise LogError(
            f"Weights & Biases is not installed ({error}); pip install wandb, or choose --logger "
            "tensorboard or --logger none"
        ) from error


def _begin_wandb(module: Any, folder: Path, last: int, values: Mapping[str, Any] | None) -> Any:
    r"""A run that goes on under its name. W&B forgets nothing: repeated steps are told twice."""
    name = folder / "wandb.txt"
    if last < 0 or not name.exists():
        name.write_text(uuid.uuid4().hex[:12])
    options = {
        "project": os.environ.get("WANDB_PROJECT", "appa"),
        "dir": str(folder),
        "id": name.read_text().strip(),
        "resume": "allow",
        "config": json.loads(json.dumps(values, default=str)),
    }
    try:
        run = module.init(**options)
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
    except Exception as error:  # of its own kinds, for want of a key or of a connection
        told = (str(error).splitlines() or ["no reason"])[0]
        raise LogError(
            f"Weights & Biases does not begin ({type(error).__name__}: {told}); log in with wandb "
            "login, keep its log on this machine with WANDB_MODE=offline, or choose --logger "
            "tensorboard"
        ) from error
    return run
