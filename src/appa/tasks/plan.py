r"""What a run will cost, before it runs.

A run evaluates guided windows, and each evaluation is made of passes through two networks. With
:math:`k` iterations of the solver, an evaluation of a window with :math:`h` observed hours takes

=========== ================= ===================== ================== =======================
guidance    denoiser forward  denoiser backward     decoder forward    decoder backward
=========== ================= ===================== ================== =======================
none        1
`mmps`      1                 :math:`k + p`         :math:`h + 4 p h`  :math:`2 k \, h`
`tmpd`      1                 2                     :math:`h`          :math:`3 h`
`sda, dps`  1                 1                     :math:`h`          :math:`h`
`pgdm`      1                 1                     :math:`h`          :math:`2 k \, h`
others      1                                       :math:`h`          :math:`2 k \, h`
=========== ================= ===================== ================== =======================

where :math:`p` is the number of probes of curvature, which windows with observations of curved
observables have while there is noise (:mod:`appa.diffusion.guidance.mmps`), and the backward passes
of the decoder are products with :math:`A^\top` and with :math:`A` (see
:mod:`appa.diffusion.guidance.linear`). Hours that are given in
place of observations are guided too, but are not decoded; where a window has both, :math:`h` passes
forward and :math:`4 h` back balance them, once. In the end every state is decoded once.
Where what the decoder lacks is drawn, hours that are observed or known are decoded once more, so
are all where precipitation is given out, and states are once for each piece of the channels that
memory has room for (:func:`appa.tasks.fields.blocks`). Where observations are compared with the
prior (:mod:`appa.tasks.background`), members of it are drawn without them, and their observed hours
decoded.

Operations follow from sizes (:mod:`appa.costs`), and so does memory (:mod:`appa.tasks.memory`).
Time is measured: one pass of each kind is run on the device, and scaled by their numbers. So is
that of drawing what the decoder lacks given observations, which solves systems of its own: an
iteration is run, and taken for as many as the planet's networks need; crowded observations need
more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..costs import decoder_flops, denoiser_flops
from ..diffusion.guidance.mmps import probed
from ..diffusion.likelihood import STRENGTH_PROBES
from ..diffusion.schedule import RectifiedSchedule
from ..diffusion.sequential import schedule
from ..diffusion.trajectory import padded_length
from ..errors import DataError
from ..machine import free_memory
from ..sections import Config
from .analyses import PAST_HOURS
from .background import MEMBERS
from .fields import blocks, decode_batch, decode_bytes, fields, held
from .measuring import interpolating, measure
from .memory import Memory, ResidualMemory, largest_window
from .model import RAIN, Model
from .precision import Precision
from .runs import affordable
from .seen import curved_hours, seen_hours, sizes
from .settings import Settings

__all__ = ["Passes", "Plan", "passes", "plan"]

TASKS = ("reanalysis", "filter", "forecast")
INTERPOLATED = 40  # iterations of a channel's system: 25 to 70 on the planet
SOLVED = ("mmps", "pgdm", "jfps", "diffpir")  # guidances that solve a system


@dataclass(frozen=True)
class Passes:
    r"""Passes through the networks, of one evaluation of one window or of a whole run."""

    denoiser_forward: int = 0
    denoiser_backward: int = 0
    decoder_forward: int = 0
    decoder_backward: int = 0

    def __add__(self, other: Passes) -> Passes:
        return Passes(*(a + b for a, b in zip(self.numbers, other.numbers, strict=True)))

    def __mul__(self, n: int) -> Passes:
        return Passes(*(n * a for a in self.numbers))

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        return (
            self.denoiser_forward,
            self.denoiser_backward,
            self.decoder_forward,
            self.decoder_backward,
        )


def passes(guidance: str, iterations: int, guided: bool, observed: int, probes: int = 0) -> Passes:
    r"""The passes of one evaluation of one window of one member.

    Arguments:
        guidance: The name of the guidance.
        iterations: The iterations of its solver.
        guided: Whether anything is known of the window: observations, or hours that are given.
        observed: The number of its hours with observations.
        probes: The probes of observables' curvature, of MMPS.
    """
    if not guided:
        return Passes(1)
    solve = 2 * iterations
    back, products = {
        "mmps": (iterations + probes, solve),
        "tmpd": (2, 3),
        "sda": (1, 1),
        "pgdm": (1, solve),
        "dps": (1, 1),
    }.get(guidance, (0, solve))
    forward = 1 + 4 * probes if guidance == "mmps" else 1
    return Passes(1, back, forward * observed, products * observed)


@dataclass(frozen=True)
class Plan:
    r"""What a run will cost; `str(plan)` is a table."""

    task: str
    hours: int
    members: int
    mode: str
    windows: int
    evaluations: int
    solves: int
    iterations: int
    passes: Passes
    flops: int
    disk: int
    device: str
    seconds: float | None = None
    memory: int | None = None
    note: str = ""

    def __str__(self) -> str:
        p, rows = self.passes, []
        per = f"{self.evaluations} evaluations each" if self.evaluations > 1 else "1 evaluation"
        rows.append(("task", f"{self.task}, {self.hours} h, {_several(self.members, 'member')}"))
        rows.append(("windows", f"{self.windows} a member, {self.mode}, {per}"))
        calls = f"{p.denoiser_forward:,} forward, {p.denoiser_backward:,} backward"
        rows.append(("denoiser calls", calls))
        rows.append(("decodes", f"{p.decoder_forward:,} forward, {p.decoder_backward:,} backward"))
        if self.solves:
            told = f"{self.solves:,} solves of {self.iterations} iterations at most"
            rows.append(("solver", told))
        rows.append(("operations", f"{self.flops / 1e12:,.3g} TFLOP"))
        if self.memory is not None:
            rows.append(("memory", f"{_bytes(self.memory)}, estimated"))
        if self.seconds is not None:
            rows.append(("time", f"{_duration(self.seconds)} on {self.device}, {self.note}"))
        rows.append(("output", f"{_bytes(self.disk)} before compression"))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def plan(
    model: Model,
    task: str,
    hours: int,
    members: int,
    observations: Any,
    settings: Settings,
    device: str | torch.device | None = None,
    *,
    start: Any = None,
    variables: Sequence[str] | None = None,
    levels: Sequence[int] | None = None,
    latents: bool = False,
    batch: int | None = None,
    measured: bool = True,
) -> Plan:
    r"""What a run will cost.

    Arguments:
        model: The model.
        task: `"reanalysis"`, `"filter"` or `"forecast"`.
        hours: The hours of the period; of a forecast, those after its past.
        members: The number of members.
        observations: The observations, or what share of the hours has any, see
            :func:`seen_hours`, which are then taken for those of linear observables. A forecast
            takes none.
        settings: The settings, see :class:`~.settings.Settings`.
        device: Where it is to run, by default where the model is.
        start: The first hour, needed with observations.
        variables, levels, latents: What is given out.
        batch: The number of members drawn at once, by default as many as memory allows.
        measured: Whether passes are run, to tell time and memory.

    Example:
        >>> print(plan(model, "reanalysis", 24, 8, 1.0, settings))
    """
    if task not in TASKS:
        raise DataError(f"found the task {task!r}, expected {', '.join(TASKS)}")
    for name, value in (("hours", hours), ("members", members)):
        if value < 1:
            raise DataError(f"{name} must be 1 or more, found {value}")
    if device is not None:
        model.to(device)
    past = settings.past if task == "forecast" else 0
    seen = curved = np.zeros(past + hours, bool)
    if task != "forecast":
        seen = seen_hours(observations, start, hours)
        if settings.probes_of(True) != settings.probes_of(False):
            curved = curved_hours(model, observations, start, hours)
    # where errors persist, observations of hours that are given count too
    persists = model.representation is not None and settings.representation == "temporal"
    mode, windows = _windows(model.config.window, settings, seen, curved, past, persists)

    n = settings.sampler_of().evaluations
    total = _guided(windows, settings, model.config) * members
    # observations are balanced with hours that are given, once
    balanced = sum(observed for _, observed, _, beside in windows if beside)
    if settings.guidance in SOLVED:
        total = total + Passes(0, 0, balanced, STRENGTH_PROBES * balanced)
    solves = n * members * sum(guided for guided, *_ in windows)
    checked = MEMBERS if settings.background != "none" and seen.any() else 0
    if checked:  # drawn without observations, and compared with them
        nothing = np.zeros_like(seen)
        _, prior = _windows(model.config.window, settings, nothing, nothing, 0, False)
        compared = Passes(decoder_forward=int(seen.sum()))
        total = total + (_guided(prior, settings, model.config) + compared) * checked
        solves += n * checked * sum(guided for guided, *_ in prior)
    given, kept = 1 if task == "filter" else hours, fields(model, variables, levels)[0]
    drawn = model.representation is not None and settings.residual and len(kept) > 0
    together, pieces = blocks(kept, given, held(model)) if drawn else (members, [kept])
    if kept:
        total = total + Passes(decoder_forward=len(pieces) * given * members)
    if drawn:
        before = min(PAST_HOURS, past)
        total = total + Passes(decoder_forward=(int(seen.sum()) + before) * members)
        if any(field.name == RAIN for field in kept):
            total = total + Passes(decoder_forward=(before + hours) * members)
    channels = sum(len(field.channels) for field in kept)
    size = channels * math.prod(model.grid.shape)
    size += math.prod(model.config.latent_shape) if latents else 0

    found = Plan(
        task=task,
        hours=hours,
        members=members,
        mode=mode,
        windows=len(windows),
        evaluations=n,
        solves=solves if settings.guidance in SOLVED else 0,
        iterations=settings.iterations,
        passes=total,
        flops=_flops(model, total),
        disk=4 * size * given * members,
        device=_name(model.device),
    )
    if not measured:
        return found
    counts = sizes(observations, start, hours) if seen.any() else []
    most, each = largest_window(counts, model.config.window)
    fitting, at_a_time = affordable(model, settings, most, each)
    at_once = min(members, batch or fitting)
    cost = measure(model, min(at_once, 8), Precision.of(settings, model.device))
    drawing, free = max(members, checked) * (past + hours), free_memory(model.device)
    memory = cost.weights + drawing * 4 * math.prod(model.config.latent_shape) * 6
    evaluation = Memory.of(model, settings).total(
        at_once, at_a_time or most, each, model.autoencoder.at_once
    )
    writing = decode_batch(model) * decode_bytes(model)
    if drawn:
        memory += min(PAST_HOURS, past) * members * model.config.state_bytes
        lacking = ResidualMemory.of(model, past + hours)
        widest = max(sum(len(field.channels) for field in piece) for piece in pieces)
        few, most = min(at_once, together), lacking.affordable(free)
        writing += lacking.total(min(few * widest, most), few * given * widest)
    memory += max(evaluation, writing)
    note = f"{_several(at_once, 'member')} at once"
    seconds = sum(a * b for a, b in zip(total.numbers, cost.seconds, strict=True))
    if at_a_time is not None:  # decodings that are not kept are done again for each product
        note = f"{_several(at_a_time, 'hour')} decoded at once"
        seconds += total.decoder_backward * cost.seconds[2]
    note += "; from one pass of each kind"
    if drawn and seen.any():
        once = interpolating(model, kept, hours, ResidualMemory.of(model, hours).affordable(free))
        seconds += INTERPOLATED * once * members
        note += f", and {INTERPOLATED} iterations to draw what the decoder lacks"
    return replace(found, seconds=seconds, memory=int(memory), note=note)


def _guided(
    windows: Sequence[tuple[bool, int, bool, bool]], settings: Settings, config: Config
) -> Passes:
    r"""The passes of all evaluations of the windows of a member, see :func:`_windows`."""
    sampler, guidance, total = settings.sampler_of(), settings.guidance_of(), Passes()
    levels = sampler.levels(RectifiedSchedule(config.schedule.sigma_min, config.schedule.sigma_max))
    each = sampler.evaluations // sampler.steps
    # what is asked for at a noise level, and the number of evaluations that ask for it
    asked = Counter((guidance.most(s), probed(float(s))) for s in levels[: sampler.steps])
    for guided, observed, bent, _ in windows:
        for (iterations, noisy), count in asked.items():
            probes = settings.probes_of(bent) if noisy else 0
            made = iterations if observed else settings.iterations  # hours alone take all
            part = passes(settings.guidance, made, guided, observed, probes)
            total = total + part * (count * each)
    return total


def _windows(
    window: int,
    settings: Settings,
    seen: np.ndarray,
    curved: np.ndarray,
    known: int,
    persists: bool,
) -> tuple[str, list[tuple[bool, int, bool, bool]]]:
    r"""How windows are drawn, and of each whether it is guided, its observed hours, whether these
    have observations of a curved observable, and whether hours are given that these have to be
    balanced with."""
    length = len(seen)
    if settings.sequential(length, window, known):
        # where nothing is observed later, there is nothing to wait for
        lag = settings.lag_of(window) if seen.any() else 0
        found, balanced = [], set()
        for w in schedule(length, window, known, settings.past, lag, settings.new, settings.sweeps):
            here = [w.start + i for i in range(window) if w.start + i < length]
            free = [h for h in here if h - w.start not in set(w.given)]
            used = here if persists and seen[free].any() else free
            observed = int(seen[used].sum())
            given, bent = bool(w.given), bool(curved[used].any())
            key = (w.start, *(h for h in used if seen[h]))
            found.append((given or observed > 0, observed, bent, given and key not in balanced))
            balanced |= {key} if given else set()
        return "sequential", found
    count = (padded_length(length, window, settings.stride) - window) // settings.stride + 1
    found = []
    for start in range(0, count * settings.stride, settings.stride):
        observed, bent = int(seen[start:][:window].sum()), bool(curved[start:][:window].any())
        found.append((observed > 0 or known > start, observed, bent, known > start))
    return "composed", found


def _flops(model: Model, total: Passes) -> int:
    r"""Operations of passes. A backward pass, with respect to inputs alone, takes as many as a
    forward pass, but twice as many in attention."""
    config = model.config
    attention = config.denoiser.blocks * 4 * config.tokens**2 * config.denoiser.width
    forward, decode = denoiser_flops(config), decoder_flops(config)
    return (
        total.denoiser_forward * forward
        + total.denoiser_backward * (forward + attention)
        + (total.decoder_forward + total.decoder_backward) * decode
    )


# ---------------------------------------------------------------- words


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return _several(torch.get_num_threads(), "thread") if device.type == "cpu" else device.type


def _several(n: int, word: str) -> str:
    return f"{n:,} {word}" if n == 1 else f"{n:,} {word}s"


def _bytes(size: float) -> str:
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size / 1e3:.3g} kB"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.3g} h"
