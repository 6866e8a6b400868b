r"""Updates of a network: the same for both networks, on one device or on many.

An update takes a global batch of :math:`N` elements, shared out over :math:`R` ranks and
:math:`A = N / (R B)` micro-steps of :math:`B` elements: element :math:`i` of micro-step :math:`j`
on rank :math:`r` is number :math:`(j R + r) B + i` of the batch. Gradients of the mean loss are
accumulated, clipped by their norm, and handed to the optimiser.

Losses and norms stay on the device, so that the host never waits for it. Where an update is all on
one device, it is recorded, and launched as one; see :mod:`appa.training.graphs`.
"""

from __future__ import annotations

import math
import sys
import time
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from .distribution import Ranks, accumulating, replicate, shard
from .graphs import Graph
from .noise import keys
from .optimizers import EMA, learning_rate, make_optimizer, set_learning_rate
from .options import Options, shares
from .resident import Feed
from .tasks import Task

__all__ = ["Updates"]

EAGER = 4  # updates before one is recorded: kernels are chosen and memory is taken by then
RECORDING = ("reduce-overhead", "max-autotune")  # modes of torch.compile that record by themselves

Batch = tuple[Tensor, Tensor, Tensor]


class Updates:
    r"""A network, its optimiser, and all that an update takes.

    Arguments:
        task: What is trained.
        ranks: The ranks that train.
        options: How.
    """

    def __init__(self, task: Task, ranks: Ranks, options: Options):
        self.task, self.ranks, self.options = task, ranks, options
        self.settings = settings = task.settings
        self.micro, self.accumulation = shares(
            settings.batch_size, ranks.world, options.micro_batch
        )
        self.network: nn.Module = task.network
        device, cuda = ranks.device, ranks.device.type == "cuda"
        mode = options.compile if options.compile is not None else cuda
        mode = "default" if mode is True else mode
        self.compiled = bool(mode)
        self.step = 0
        self.place: dict[str, Any] | None = None  # in the data, where it goes on from

        task.to(device)
        sharded = ranks.world > 1 and options.strategy == "fsdp"
        if cuda and not sharded:  # the layout that convolutions are fastest in
            self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        torch.backends.cudnn.benchmark = True  # shapes never change
        # Single precision is TF32 where a device has it.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        if sharded:
            if mode:
                for unit in task.units:
                    unit.compile(mode=mode, dynamic=False)
            shard(ranks, self.network, task.units)
            self.module: nn.Module = task.objective
        else:
            if mode:
                task.objective.compile(mode=mode, dynamic=False)
            self.module = replicate(ranks, task.objective)
        self.parameters = [p for p in self.network.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(
            settings.optimizer,
            self.parameters,
            settings.learning_rate,
            settings.betas,
            compile=self.compiled and cuda,
        )
        self.ema = None if settings.ema is None else EMA(self.network, settings.ema)

        # Half precision on a CPU is slow where it works at all.
        precision = settings.precision if cuda else "float32"
        self.dtype = getattr(torch, precision)
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "float16")

        # What can be recorded: one device, one micro-step, and no scale to look at in between.
        self.recordable = (
            cuda
            and ranks.world == self.accumulation == 1
            and settings.optimizer == "adam"
            and precision != "float16"
            and mode not in RECORDING
        )
        self.graph: Graph | None = None
        self.eager = 0
        self.waited = 0.0  # seconds, for data
        self.losses: list[Tensor] = []
        self.norms: list[Tensor] = []

    @cached_property
    def feed(self) -> Feed:
        r"""The batches. Making them may read all data to the device, which is left until they are
        needed: what is wrong with a run is found before."""
        return self.task.feed(
            self.ranks,
            self.micro,
            self.accumulation,
            seed=self.options.seed,
            workers=self.options.workers,
            resident=self.options.resident,
            place=self.place,
        )

    # All of an update

    def advance(self) -> None:
        r"""Takes the next update; from the fifth on, where possible, as one launch."""
        if self.recordable and self.eager >= EAGER:
            loss, norm = self._launch()
        else:
            loss, norm = self.gradients(), self.update()
            self.eager += 1
        self.losses.append(loss)
        self.norms.append(norm)

    def _launch(self) -> tuple[Tensor, ...]:
        batch = self._batch(0)
        set_learning_rate(self.optimizer, self.learning_rate())
        if self.graph is None:
            self._record(batch)
        found = self._whole(*batch) if self.graph is None else self.graph(*batch)
        if self.graph is None:  # gradients that a graph leaves are its own
            self.optimizer.zero_grad(set_to_none=True)
        self._updated()
        return found

    def _record(self, batch: Batch) -> None:
        try:
            self.graph = Graph(self._whole, batch)
        except RuntimeError as error:
            self.recordable = False
            self.tell(
                f"an update cannot be recorded as a CUDA graph, it is launched as it was: {error}"
            )

    def _whole(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        r"""An update of one micro-step, as far as it is the device's."""
        for p in self.parameters:
            p.grad = None
        return self._backward(*batch, last=True), self._descend()

    # Its parts

    def gradients(self) -> Tensor:
        r"""Leaves the gradients of the next global batch in the parameters.

        Returns:
            The loss of this rank's part, with shape :math:`()`, on the device.
        """
        losses = [
            self._backward(*self._batch(j), last=j == self.accumulation - 1)
            for j in range(self.accumulation)
        ]
        return torch.stack(losses).sum() if len(losses) > 1 else losses[0]

    def update(self) -> Tensor:
        r"""Changes the parameters by their gradients.

        Returns:
            The norm of the gradients before clipping, with shape :math:`()`, on the device.
        """
        set_learning_rate(self.optimizer, self.learning_rate())
        norm = self._descend()
        self.optimizer.zero_grad(set_to_none=True)
        self._updated()
        return norm

    def learning_rate(self) -> float:
        r"""The learning rate of the next update."""
        s = self.settings
        return learning_rate(
            self.step, base=s.learning_rate, decay=s.decay, steps=s.steps, warmup=s.warmup
        )

    def autocast(self) -> Any:
        r"""The precision that networks are evaluated in."""
        low = self.dtype != torch.float32
        # weights that were cast may not be kept from what was recorded to what was not
        keep = not self.recordable
        return torch.autocast(self.ranks.device.type, self.dtype, enabled=low, cache_enabled=keep)

    def tell(self, message: str) -> None:
        r"""Prints a message, once."""
        if self.ranks.main:
            print(f"{self.task.name}: {message}", file=sys.stderr, flush=True)

    def _batch(self, j: int) -> Batch:
        r"""Windows, their clock, and the keys of what is random about them, of a micro-step."""
        began = time.perf_counter()
        x, clock = next(self.feed)
        self.waited += time.perf_counter() - began
        first = (j * self.ranks.world + self.ranks.rank) * self.micro
        return x, clock, keys(self.options.seed, self.step, first, self.micro, self.ranks.device)

    def _backward(self, x: Tensor, clock: Tensor, which: Tensor, last: bool) -> Tensor:
        r"""Adds to the gradients those of a micro-step; returns its share of the loss."""
        inputs = self.task.inputs(x, clock, which)
        if self.compiled:  # what its graphs gave before may be overwritten from here on
            torch.compiler.cudagraph_mark_step_begin()
        with accumulating(self.module, self.network, last):
            with self.autocast():
                loss = self.module(*inputs).mean() / self.accumulation
            self.scaler.scale(loss).backward()
        return loss.detach()

    def _descend(self) -> Tensor:
        r"""Clips the gradients and takes a step along them; returns their norm."""
        self.scaler.unscale_(self.optimizer)
        clip = math.inf if self.settings.clip is None else self.settings.clip
        norm: Any = nn.utils.clip_grad_norm_(self.parameters, clip)
        norm = (norm.full_tensor() if hasattr(norm, "full_tensor") else norm).detach()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return norm

    def _updated(self) -> None:
        if self.ema is not None:
            self.ema.update(self.step)
        self.step += 1
