r"""Optimisers, the schedule of their learning rate, and the average of the weights they give.

The learning rate of update :math:`s \in \{0, \dots, S - 1\}` is a function of :math:`s` alone,

.. math:: \eta_s = \eta \cdot \min\left(1, \frac{s + 1}{s_w + 1}\right) \cdot
    f\left(\frac{s - s_w}{S - s_w}\right) , \qquad
    f(u) = 1 , \quad 1 - u \quad \text{or} \quad \tfrac{1}{2} (1 + \cos \pi u) ,

with :math:`s_w` updates of warm-up and :math:`f(u) = 1` for :math:`u < 0`. The average of the
weights (EMA) moves by

.. math:: \bar\theta \leftarrow \bar\theta + (1 - \beta_s) (\theta - \bar\theta) , \qquad
    \beta_s = \min\left(\beta, \frac{1 + s}{10 + s}\right) ,

short at first, so that it forgets the weights it began with.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError, nearest

__all__ = ["EMA", "learning_rate", "make_optimizer", "set_learning_rate"]

# Updates between new bases of SOAP's preconditioner, as in its authors' code.
PRECONDITION_EVERY = 10
# Sides of a weight longer than this are not preconditioned, but split as a kernel's are.
PRECONDITION_UP_TO = 2048


# How much of the averages of gradients, and of their squares, an update keeps.
BETAS = {"adam": (0.9, 0.999), "soap": (0.95, 0.95)}


def make_optimizer(
    kind: str,
    parameters: Iterable[nn.Parameter],
    lr: float,
    betas: tuple[float, float] | None = None,
    *,
    compile: bool = False,
) -> torch.optim.Optimizer:
    r"""An optimiser by its name in the configuration.

    SOAP is HeavyBall's (Vyas et al., 2024). Under FSDP2 every rank holds its whole state, which
    Adam's shards.

    Arguments:
        kind: `soap` or `adam`.
        parameters: What to optimise.
        lr: The learning rate.
        betas: How much of the averages of gradients, and of their squares, a step keeps. By
            default, what the optimiser's authors chose.
        compile: Whether SOAP's steps are compiled.
    """
    if kind not in BETAS:
        raise ConfigError(f"unknown optimizer {kind!r}{nearest(kind, BETAS)}")
    betas = betas or BETAS[kind]
    parameters = [p for p in parameters if p.requires_grad]
    device = parameters[0].device.type
    if kind == "adam" and device == "cuda":
        # a rate on the device, and steps counted there, can be recorded; see appa.training.graphs
        rate = torch.tensor(lr, device=parameters[0].device)
        return torch.optim.Adam(parameters, lr=rate, betas=betas, fused=True, capturable=True)
    if kind == "adam":
        return torch.optim.Adam(parameters, lr=lr, betas=betas)
    try:
        import heavyball
    except ImportError as error:
        raise ConfigError(
            f"the optimizer 'soap' needs a package that is not installed ({error}); install "
            "the extra with pip install 'appa-assimilation[train]', or set optimizer: adam"
        ) from error
    # The mode is global. Autotuning would cost minutes and win nothing on small matrices.
    heavyball.utils.compile_mode = "default" if compile else None
    warnings.filterwarnings("ignore", "Learning rate changed between steps")
    return heavyball.SOAP(
        parameters,
        lr=lr,
        betas=betas,
        weight_decay=0.0,
        precondition_frequency=PRECONDITION_EVERY,
        max_precond_dim=PRECONDITION_UP_TO,
        consume_grad=False,
    )


def learning_rate(step: int, *, base: float, decay: str, steps: int, warmup: int = 0) -> float:
    r"""The learning rate :math:`\eta_s` of update :math:`s`.

    Arguments:
        step: The update :math:`s`, from 0.
        base: The learning rate :math:`\eta`.
        decay: `none`, `linear` or `cosine`.
        steps: The number of updates :math:`S`.
        warmup: The number of updates :math:`s_w` of warm-up.
    """
    u = min(max(0.0, (step - warmup) / max(1, steps - warmup)), 1.0)
    if decay == "linear":
        f = 1 - u
    elif decay == "cosine":
        f = (1 + math.cos(math.pi * u)) / 2
    elif decay == "none":
        f = 1.0
    else:
        raise ConfigError(f"unknown decay {decay!r}{nearest(decay, ('none', 'linear', 'cosine'))}")
    return base * min(1.0, (step + 1) / (warmup + 1)) * f


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    r"""Sets the learning rate of the next step."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):  # which may be recorded: it stays where it is
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


class EMA:
    r"""The exponential moving average :math:`\bar\theta` of parameters.

    Sharded parameters are averaged shard by shard: nothing is communicated.

    Arguments:
        module: The module whose parameters are averaged.
        decay: The decay :math:`\beta`.
    """

    def __init__(self, module: nn.Module, decay: float):
        self.decay = decay
        self.names = [name for name, _ in module.named_parameters()]
        self.parameters = [p for _, p in module.named_parameters()]
        self.averages = [p.detach().clone() for p in self.parameters]

    def state_dict(self) -> dict[str, Tensor]:
        r"""The averages by the names of the parameters."""
        return dict(zip(self.names, self.averages, strict=True))

    @torch.no_grad()
    def update(self, step: int) -> None:
        r"""Moves the average after update :math:`s`, counted from 0."""
        beta = min(self.decay, (1 + step) / (10 + step))
        averages, values = _local(self.averages), _local(self.parameters)
        torch._foreach_lerp_(averages, values, 1 - beta)  # pyright: ignore

    @contextmanager
    def applied(self) -> Iterator[None]:
        r"""Within it the module has the averaged weights; then its own again, bit by bit.

        Values are copied, not exchanged: what was compiled keeps its addresses.
        """
        with torch.no_grad():
            values, averages = _local(self.parameters), _local(self.averages)
            kept = [v.clone() for v in values]
            torch._foreach_copy_(values, averages)  # pyright: ignore
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(values, kept)  # pyright: ignore


def _local(tensors: list[Any]) -> list[Tensor]:
    r"""The part of each tensor that is on this rank."""
    return [t.to_local() if hasattr(t, "to_local") else t.detach() for t in tensors]
