r"""A training: updates, what is told about them, and checkpoints to go on from.

Between two lines of the log the host does not look at the device: a loss that is not finite is
found a few updates late, but before the next checkpoint.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..progress import Progress, progress
from ..tasks.folders import CONFIG, digest, fit, read_weights, write_weights
from .distribution import Ranks, load, load_optimizer, optimizer_state, whole
from .interruptions import Together, interruptions
from .keeping import checkpoints, held, keep_apart, keep_config
from .logs import Logs
from .options import Options, Outcome, TrainingError, differences
from .tasks import Task
from .updates import Updates

__all__ = ["Trainer"]


class Trainer(Updates):
    r"""A training under way.

    Arguments:
        task: What is trained.
        folder: The run folder.
        ranks: The ranks that train.
        options: How.
    """

    def __init__(self, task: Task, folder: str | Path, ranks: Ranks, options: Options):
        self.folder = Path(folder)
        self.checkpoints = checkpoints(self.folder, task.name)
        if options.init is not None and not self.checkpoints.steps():
            _begin_with(task, Path(options.init))
        super().__init__(task, ranks, options)
        self.metrics: dict[str, float] = {}
        self.done = 0  # updates here
        self.seconds = self.waited_in_all = 0.0

    def run(self) -> Outcome:
        r"""Trains to the end, or until told to stop. What is at its end is left as it is."""
        task, options, stopped = self.task, self.options, False
        if self.step < self.settings.steps:
            self.ranks.first(lambda: keep_config(self.folder, task.config, task.name, write=False))
            batches = task.validation(self.ranks, self.micro, options.validation)
            if batches is None:
                self.tell("the store has no hours of the validation split: nothing is validated")
            _ = self.feed  # what its data lack is found before the folder changes
            with self._logs() as logs:
                self._prepare()
                stopped = self._train(batches, logs)
        count, seconds = self.done * self.settings.batch_size, max(self.seconds, 1e-9)
        return Outcome(
            self.step,
            stopped and self.step < self.settings.steps,
            self.metrics,
            count / seconds,
            self.waited_in_all / seconds,
        )

    def _train(self, batches: Any, logs: Logs | None) -> bool:
        r"""Takes the updates that are left; whether it was told to stop."""
        options, steps = self.options, self.settings.steps
        begun, stopped = self.step, False
        shown = progress(steps, self.task.name, "steps") if self.ranks.main else nullcontext()
        with shown as p, interruptions() as asked:
            if p is not None:
                p.skip(begun)
            told, clock = Together(self.ranks, begun), time.perf_counter()
            while self.step < steps and not stopped:
                try:
                    self.advance()
                except torch.OutOfMemoryError as error:
                    raise self._too_large(error) from error
                if p is not None:
                    p.advance()
                stopped = told(self.step, bool(asked))
                last = self.step == steps or stopped
                saves = last or self.step % options.every == 0
                validates = batches is not None and (
                    self.step % options.validate_every == 0 or self.step == steps
                )
                if last or saves or validates or self.step % options.log_every == 0:
                    self._log(logs, p, time.perf_counter() - clock)
                    if batches is not None and validates:
                        self._validate(batches, logs)
                    if saves:
                        self.save()
                    clock = time.perf_counter()
            if stopped and self.step < steps:
                self.tell(
                    f"interrupted: the checkpoint of step {self.step} is saved in {self.folder}; "
                    "the same command goes on from there"
                )
        return stopped

    def _prepare(self) -> None:
        r"""Writes what the folder holds besides weights, on the first rank."""
        stay = self.ranks.first(lambda: self.task.prepare(self.folder))
        if stay:
            lines = "".join(f"\n  {key}: {a}, given is {b}" for key, (a, b) in stay.items())
            self.tell(
                f"{self.folder / CONFIG} keeps what the {self.task.name} does not depend on:{lines}"
            )

    # What is told

    @contextmanager
    def _logs(self) -> Iterator[Logs | None]:
        r"""The logs, on the first rank."""
        folder, opened = self.folder / "training" / self.task.name, []

        def begin() -> None:
            config, begun = self.task.config, self.step or None
            opened.append(Logs(folder, self.options.logger, config, resume_step=begun))

        self.ranks.first(begin)
        with opened[0] if opened else nullcontext() as logs:
            yield logs

    def _log(self, logs: Logs | None, p: Progress | None, seconds: float) -> None:
        r"""Looks at the losses since the last time, and tells them."""
        if not self.losses:
            return
        n = len(self.losses)
        both = torch.stack((torch.stack(self.losses), torch.stack(self.norms).float()))
        losses, norms = self.ranks.mean(both).tolist()
        self.losses.clear()
        self.norms.clear()
        for k, (loss, norm) in enumerate(zip(losses, norms, strict=True)):
            # a norm that is not finite is how float16 finds its scale
            if not math.isfinite(loss) or not (self.scaler.is_enabled() or math.isfinite(norm)):
                what = f"loss is {loss}" if not math.isfinite(loss) else f"gradient norm is {norm}"
                raise TrainingError(
                    f"the {what} at step {self.step - n + k}: the training of the {self.task.name} "
                    "diverged, or its data are not finite; look for faults with appa data check "
                    "STORE, lower learning_rate or clip, or use another precision than "
                    f"{self.settings.precision}. "
                    f"Checkpoints: {self.checkpoints.steps() or 'none yet'}"
                )
        self.done += n
        self.seconds += seconds
        self.waited_in_all += self.waited
        rate = n * self.settings.batch_size / max(seconds, 1e-9)
        found = {
            "train/loss": sum(losses) / n,
            "train/gradient_norm": norms[-1],
            "train/learning_rate": float(self.optimizer.param_groups[0]["lr"]),
            f"speed/{self.task.unit}_per_second": rate,
            "speed/share_waiting_for_data": min(1.0, self.waited / max(seconds, 1e-9)),
        }
        if self.ranks.device.type == "cuda":
            found["speed/memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
        self.waited = 0.0
        self._note(logs, found)
        if p is not None:
            p.description = (
                f"{self.task.name}: loss {found['train/loss']:.4g}, gradient {norms[-1]:.3g}, "
                f"{rate:.0f} {self.task.unit}/s"
            )
            if p.bar is not None:
                p.bar.update(p.bar.task_ids[0], description=p.description)

    def _validate(self, batches: Any, logs: Logs | None) -> None:
        averaged = nullcontext() if self.ema is None else self.ema.applied()
        with averaged, self.autocast(), torch.no_grad():
            self.network.eval()
            self.metrics = self.task.metrics(batches, self.ranks)
            figure = self.task.figure(next(iter(batches)))
            self.network.train()
        found = {f"validation/{name}": value for name, value in self.metrics.items()}
        self._note(logs, found, figure)

    def _note(self, logs: Logs | None, found: Mapping[str, float], figure: Any = None) -> None:
        r"""Logs numbers and a picture. What cannot be written ends all ranks, not the first alone,
        which the others would wait for."""

        def note() -> None:
            if logs is not None:
                logs.scalars(self.step, found)
                if figure is not None:
                    logs.figure(self.step, "reconstruction", figure)

        self.ranks.first(note)

    def _too_large(self, error: Exception) -> TrainingError:
        told = (str(error).splitlines() or ["out of memory"])[0].split(". ")[0]
        smaller = f"--micro-batch {max(1, self.micro // 2)}, " if self.micro > 1 else ""
        return TrainingError(
            f"{self.micro} {self.task.unit} at once do not fit on {self.ranks.device} ({told}); "
            f"give {smaller}--checkpointing, --streamed if data are resident, or more devices and "
            "--strategy fsdp: none of these changes what is learned"
        )

    # Checkpoints

    def save(self) -> None:
        r"""Writes a checkpoint, and the weights to the run folder."""
        ranks = self.ranks
        state = {
            "config": self.task.config.to_yaml(),
            "seed": self.options.seed,
            "made_by": self.task.made_by,
            "scale": self.task.scale,
            "model": whole(ranks, self.network.state_dict()),
            "ema": self.ema and whole(ranks, self.ema.state_dict()),
            "optimizer": optimizer_state(ranks, self.optimizer),
            "scaler": self.scaler.state_dict(),
            "loader": self.feed.state_dict(),
        }

        def write() -> None:
            self.checkpoints.save(self.step, state)
            self._export(self._weights(state))

        ranks.first(write)

    def _weights(self, state: Mapping[str, Any]) -> dict[str, Tensor]:
        r"""The tensors that the run folder has of a checkpoint."""
        return self.task.export(state["model"] | (state["ema"] or {}))

    def _export(self, tensors: Mapping[str, Tensor]) -> None:
        write_weights(self.folder / self.task.file, tensors, autoencoder=self.task.made_by)

    def _mend(self, step: int, state: Mapping[str, Any]) -> None:
        r"""Writes the weights of a checkpoint to the run folder unless they are there: killed after
        the checkpoint, it had not written them yet."""
        tensors = self._weights(state)
        there, then = held(self.folder / self.task.file), digest(tensors)
        if self.task.name == "autoencoder":
            keep_apart(self.folder, there and there[1], then, step < self.settings.steps)
        if there == (self.task.made_by, then):
            return
        if there is not None and there[1] != then and self._from_elsewhere(step):
            file = self.folder / self.task.file
            aside = file.with_name(f"{file.stem}.replaced{file.suffix}")
            file.replace(aside)
            warnings.warn(
                f"{file} is later than its checkpoint of step {step}, and not of it: it is "
                f"{aside.name} now, and the checkpoint's weights are in its place",
                stacklevel=2,
            )
        self._export(tensors)

    def _from_elsewhere(self, step: int) -> bool:
        r"""Whether weights that are not a checkpoint's were written after it: those of the
        checkpoint before it, where it was killed in between, are older."""
        file = self.folder / self.task.file
        return file.stat().st_mtime > self.checkpoints.written(step)

    def resume(self) -> bool:
        r"""Goes on from the last checkpoint, if there is one."""
        found = self.checkpoints.latest()
        self.ranks.agree(-1 if found is None else found[0], "the last checkpoint")
        if found is None:
            return False
        step, state = found
        self._compare(step, state)
        self.task.made_by = self.task.made_by or state.get("made_by")  # latents may not tell
        self.ranks.first(lambda: self._mend(step, state))
        load(self.network.state_dict(), state["model"])
        if self.ema is not None:
            load(self.ema.state_dict(), state["ema"])
        load_optimizer(self.optimizer, state["optimizer"])
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        self.step, self.place = step, state["loader"]
        self.tell(f"going on from step {step}")
        return True

    def _compare(self, step: int, state: Mapping[str, Any]) -> None:
        told = differences(state["config"], self.task.config, self.task.name)
        if state["seed"] != self.options.seed:
            told["seed"] = (state["seed"], self.options.seed)
        of = "states" if self.task.name == "autoencoder" else "the latents"
        for what, before, now in (
            ("autoencoder of the latents", state.get("made_by"), self.task.made_by),
            (f"statistics of {of}", state.get("scale"), self.task.scale),
        ):
            if before != now and before is not None and now is not None:
                told[what] = (before[:12], now[:12])
        key = f"training.{self.task.name}.steps"
        steps = told.pop(key, None)
        if self.options.stretch and self.settings.steps < step:
            raise TrainingError(
                f"{self.folder} holds a training that is at step {step}, beyond --steps "
                f"{self.settings.steps}: updates are not undone; give {step} or more, or choose "
                "another folder"
            )
        if steps is not None and not self.options.stretch:
            told[key] = steps
        if told:
            lines = "".join(f"\n  {k}: was {a}, is {b}" for k, (a, b) in told.items())
            raise TrainingError(
                f"{self.folder} holds a training that is at step {step}, with other settings:"
                f"{lines}\ngo on with the settings it began with, or choose another folder; for "
                "another number of updates, give it with --steps"
            )
        if steps is not None and self.settings.decay != "none":
            self.tell(
                f"{steps[1]} updates instead of {steps[0]}: the learning rate now decays over "
                f"{steps[1]}"
            )


def _begin_with(task: Task, path: Path) -> None:
    r"""Takes over the weights of a model folder, or of a file."""
    path = path / task.file if path.is_dir() else path
    tensors, prefix = read_weights(path), "denoiser."
    if task.name == "denoiser":
        tensors = {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
    fit(task.network, tensors, path)
