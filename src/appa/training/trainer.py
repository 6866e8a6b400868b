r"""The steps of a training: the same for both networks, on one device or on many.

An update takes a global batch of :math:`N` elements, shared out over :math:`R` ranks and
:math:`A = N / (R B)` micro-steps of :math:`B` elements: element :math:`i` of micro-step :math:`j`
on rank :math:`r` is number :math:`(j R + r) B + i` of the batch. Gradients of the mean loss are
accumulated, clipped by their norm, and handed to the optimiser.

Between two lines of the log the host never waits for the device: losses stay there until then, so
that a loss that is not finite is found a few updates late, but before the next checkpoint.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..progress import Progress, progress
from ..tasks.folders import digest, fit, read_weights, write_weights
from .checkpoints import Checkpoints
from .distribution import Ranks
from .graphs import Graph
from .logs import Logs
from .noise import keys
from .optimizers import EMA, learning_rate, make_optimizer, set_learning_rate
from .options import Options, Outcome, TrainingError, differences, shares
from .tasks import Task

__all__ = ["Trainer"]

EAGER = 4  # updates before one is recorded: kernels are chosen and memory is taken by then
ASK_EVERY = 10  # updates between looks, of many ranks together, at whether one was interrupted


class Trainer:
    r"""A training under way.

    Arguments:
        task: What is trained.
        folder: The run folder.
        ranks: The ranks that train.
        options: How.
    """

    def __init__(self, task: Task, folder: str | Path, ranks: Ranks, options: Options):
        self.task, self.folder, self.ranks, self.options = task, Path(folder), ranks, options
        self.settings = settings = task.settings
        self.micro, self.accumulation = shares(
            settings.batch_size, ranks.world, options.micro_batch
        )
        self.network: nn.Module = task.network
        self.step, self.metrics = 0, {}
        device, cuda = ranks.device, ranks.device.type == "cuda"

        self.checkpoints = Checkpoints(self.folder / "training" / task.name / "checkpoints")
        if options.init is not None and not self.checkpoints.steps():
            self._begin_with(Path(options.init))
        task.to(device)
        if cuda and options.strategy != "fsdp":  # the layout that convolutions are fastest in
            self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        torch.backends.cudnn.benchmark = True  # shapes never change
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        mode = options.compile if options.compile is not None else cuda
        mode = "default" if mode is True else mode
        self.compiled = bool(mode)
        if ranks.world > 1 and options.strategy == "fsdp":
            if mode:
                for unit in task.units:
                    unit.compile(mode=mode, dynamic=False)
            ranks.shard(self.network, task.units)
            self.module: nn.Module = task.objective
        else:
            if mode:
                task.objective.compile(mode=mode, dynamic=False)
            self.module = ranks.replicate(task.objective)
        self.parameters = [p for p in self.network.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(
            settings.optimizer,
            self.parameters,
            settings.learning_rate,
            compile=self.compiled and cuda,
        )
        self.ema = None if settings.ema is None else EMA(self.network, settings.ema)

        # Half precision on a CPU is slow where it works at all.
        precision = settings.precision if cuda else "float32"
        self.dtype = getattr(torch, precision)
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "float16")

        self.feed = task.feed(
            ranks,
            self.micro,
            self.accumulation,
            seed=options.seed,
            workers=options.workers,
            resident=options.resident,
        )
        self.losses: list[Tensor] = []
        self.norms: list[Tensor] = []
        # What can be recorded: one device, one micro-step, and no scale to look at in between.
        self.recordable = (
            cuda
            and ranks.world == self.accumulation == 1
            and settings.optimizer == "adam"
            and precision != "float16"
        )
        self.graph: Graph | None = None
        self.eager = 0
        self.waited = self.elapsed = self.waited_in_all = 0.0
        self.done_here = 0

    # An update

    def autocast(self) -> Any:
        r"""The precision that networks are evaluated in."""
        low = self.dtype != torch.float32
        return torch.autocast(
            self.ranks.device.type, self.dtype, enabled=low, cache_enabled=not self.recordable
        )

    def advance(self) -> None:
        r"""Takes the next update; from the fifth on, where possible, as one launch."""
        if self.graph is None and (not self.recordable or self.eager < EAGER):
            self.losses.append(self.gradients())
            self.norms.append(self.update())
            self.eager += 1
            return
        began = time.perf_counter()
        x, clock = next(self.feed)
        self.waited += time.perf_counter() - began
        which = keys(self.options.seed, self.step, 0, self.micro, self.ranks.device)
        set_learning_rate(self.optimizer, self.learning_rate())
        if self.graph is None and not self._record(x, clock, which):
            loss, norm = self._recorded(x, clock, which)
        else:
            loss, norm = self.graph(x, clock, which)  # type: ignore[misc]
        if self.ema is not None:
            self.ema.update(self.step)
        self.step += 1
        self.losses.append(loss)
        self.norms.append(norm)

    def _record(self, x: Tensor, clock: Tensor, which: Tensor) -> bool:
        try:
            self.graph = Graph(self._recorded, (x, clock, which))
        except RuntimeError as error:
            self.recordable = False
            for p in self.parameters:
                p.grad = None
            self.tell(
                f"an update cannot be recorded as a CUDA graph, it is launched as it was: {error}"
            )
        return self.recordable

    def _recorded(self, x: Tensor, clock: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        for p in self.parameters:
            p.grad = None
        with self.autocast():
            loss = self.module(*self.task.inputs(x, clock, which)).mean()
        loss.backward()
        clip = math.inf if self.settings.clip is None else self.settings.clip
        norm = nn.utils.clip_grad_norm_(self.parameters, clip)
        self.optimizer.step()
        return loss.detach(), norm

    def gradients(self) -> Tensor:
        r"""Leaves the gradients of the next global batch in the parameters.

        Returns:
            The loss of this rank's part, with shape :math:`()`, on the device.
        """
        losses = []
        for j in range(self.accumulation):
            began = time.perf_counter()
            x, clock = next(self.feed)
            self.waited += time.perf_counter() - began
            first = (j * self.ranks.world + self.ranks.rank) * self.micro
            which = keys(self.options.seed, self.step, first, self.micro, self.ranks.device)
            inputs = self.task.inputs(x, clock, which)
            if self.compiled:  # what its graphs gave before may be overwritten from here on
                torch.compiler.cudagraph_mark_step_begin()
            last = j == self.accumulation - 1
            with self.ranks.accumulating(self.module, self.network, last):
                with self.autocast():
                    loss = self.module(*inputs).mean() / self.accumulation
                self.scaler.scale(loss).backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum() if len(losses) > 1 else losses[0]

    def update(self) -> Tensor:
        r"""Changes the parameters by their gradients.

        Returns:
            The norm of the gradients before clipping, with shape :math:`()`, on the device.
        """
        settings = self.settings
        self.scaler.unscale_(self.optimizer)
        clip = math.inf if settings.clip is None else settings.clip
        norm: Any = nn.utils.clip_grad_norm_(self.parameters, clip)
        if hasattr(norm, "full_tensor"):
            norm = norm.full_tensor()
        set_learning_rate(self.optimizer, self.learning_rate())
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.ema is not None:
            self.ema.update(self.step)
        self.step += 1
        return norm.detach()

    def learning_rate(self) -> float:
        r"""The learning rate of the next update."""
        s = self.settings
        return learning_rate(
            self.step, base=s.learning_rate, decay=s.decay, steps=s.steps, warmup=s.warmup
        )

    # All of them

    def run(self) -> Outcome:
        r"""Trains to the end, or until told to stop."""
        task, options, steps = self.task, self.options, self.settings.steps
        batches = task.validation(self.ranks, self.micro, options.validation)
        if batches is None:
            self.tell("the store has no hours of the validation split: nothing is validated")
        begun, stopped = self.step, False
        logs = None
        if self.ranks.main:
            logs = Logs(
                self.folder / "training" / task.name,
                options.logger,
                task.config,
                resume_step=begun or None,
            )
        shown = progress(steps, task.name, "steps") if self.ranks.main else nullcontext()
        with shown as p, logs or nullcontext(), interruptions() as asked:
            if p is not None:
                p.skip(begun)
            clock = time.perf_counter()
            while self.step < steps and not stopped:
                self.advance()
                if p is not None:
                    p.advance()
                together = self.ranks.world > 1
                if not together or self.step % ASK_EVERY == 0:
                    stopped = self.ranks.any(bool(asked)) if together else bool(asked)
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
        count, time_here = self.done_here * self.settings.batch_size, max(self.elapsed, 1e-9)
        return Outcome(
            self.step,
            stopped and self.step < steps,
            self.metrics,
            count / time_here,
            self.waited_in_all / time_here,
        )

    def tell(self, message: str) -> None:
        r"""Prints a message, once."""
        if self.ranks.main:
            print(f"{self.task.name}: {message}", file=sys.stderr, flush=True)

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
                    "diverged; lower learning_rate or clip, use another precision than "
                    f"{self.settings.precision}, and look for faults with appa data check STORE. "
                    f"Checkpoints: {self.checkpoints.steps() or 'none yet'}"
                )
        self.done_here += n
        self.elapsed += seconds
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
        if logs is not None:
            logs.scalars(self.step, found)
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
        if logs is not None:
            found = {f"validation/{name}": value for name, value in self.metrics.items()}
            logs.scalars(self.step, found)
            if figure is not None:
                logs.figure(self.step, "reconstruction", figure)

    # Checkpoints

    def weights(self) -> dict[str, Tensor]:
        r"""The weights to use, averaged if they are; on the first rank."""
        weights = self.ranks.whole(self.network.state_dict())
        if self.ema is not None:
            weights |= self.ranks.whole(dict(zip(self.ema.names, self.ema.averages, strict=True)))
        return weights

    def save(self) -> None:
        r"""Writes a checkpoint, and the weights to the run folder."""
        ranks, ema = self.ranks, self.ema
        state = {
            "config": self.task.config.to_yaml(),
            "seed": self.options.seed,
            "model": ranks.whole(self.network.state_dict()),
            "ema": ema and ranks.whole(dict(zip(ema.names, ema.averages, strict=True))),
            "optimizer": ranks.optimizer_state(self.optimizer),
            "scaler": self.scaler.state_dict(),
            "loader": self.feed.state_dict(),
        }
        if ranks.main:
            self.checkpoints.save(self.step, state)
            self._export(state)
        ranks.barrier()

    def _export(self, state: Mapping[str, Any], anew: bool = True) -> None:
        r"""Writes the weights of a checkpoint to the run folder, unless they are there."""
        path = self.folder / self.task.file
        tensors = self.task.export(state["model"] | (state["ema"] or {}))
        if anew or not path.exists() or digest(read_weights(path)) != digest(tensors):
            write_weights(path, tensors)

    def resume(self) -> bool:
        r"""Goes on from the last checkpoint, if there is one."""
        found = self.checkpoints.latest()
        self.ranks.agree(-1 if found is None else found[0], "the last checkpoint")
        if found is None:
            return False
        step, state = found
        self._compare(step, state)
        self.ranks.load(self.network.state_dict(), state["model"])
        if self.ema is not None:
            averages = dict(zip(self.ema.names, self.ema.averages, strict=True))
            self.ranks.load(averages, state["ema"])
        self.ranks.load_optimizer(self.optimizer, state["optimizer"])
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        self.feed.load_state_dict(state["loader"])
        self.step = step
        if self.ranks.main:  # killed after the checkpoint, it had not written the weights yet
            self._export(state, anew=False)
        self.tell(f"going on from step {step}")
        return True

    def _compare(self, step: int, state: Mapping[str, Any]) -> None:
        told = differences(state["config"], self.task.config, self.task.name)
        if state["seed"] != self.options.seed:
            told["seed"] = (state["seed"], self.options.seed)
        key = f"training.{self.task.name}.steps"
        steps = told.pop(key, None)
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

    def _begin_with(self, path: Path) -> None:
        path = path / self.task.file if path.is_dir() else path
        tensors = read_weights(path)
        prefix = "denoiser."
        if self.task.name == "denoiser":
            tensors = {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
        fit(self.network, tensors, path)


@contextmanager
def interruptions() -> Iterator[list[int]]:
    r"""Collects what would end the process, SIGTERM and SIGINT, once: the second time, it does."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    kinds = (signal.SIGTERM, signal.SIGINT)
    before = {kind: signal.getsignal(kind) for kind in kinds}

    def note(kind: int, _: Any) -> None:
        asked.append(kind)
        for other in kinds:
            signal.signal(other, before[other])

    for kind in kinds:
        signal.signal(kind, note)
    try:
        yield asked
    finally:
        for kind in kinds:
            signal.signal(kind, before[kind])
