r"""The likelihood of a window's latents, given observations of the states they decode to.

An observation :math:`y = \mathcal{M}(x) + \eta` of the state :math:`x = D_\psi(z) + r` is one of
the latent through the decoder,

.. math:: y = \mathcal{M}(D_\psi(z)) + \eta + M r , \qquad
    \Sigma_y = \mathbb{V}[\eta] + M \, \mathbb{V}[r] \, M^\top ,

with :math:`M` the Jacobian of :math:`\mathcal{M}`: what the decoder cannot express is part of its
error. Only hours that are observed are decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..diffusion.likelihood import STRENGTH_PROBES, probed_gain, random_signs, strength_of
from ..observations.errors import WindowCovariance
from ..observations.operators import HourOperator
from .model import Model
from .precision import Precision

__all__ = ["StatesLikelihood"]

Group = Sequence[tuple[int, HourOperator]]  # hours of a window, and what is seen of them


class StatesLikelihood:
    r"""Creates the likelihood of a window's latents, given observations of their states.

    Arguments:
        model: The model, whose decoder is used.
        operators: The observations of each hour of the window, :py:`None` where there are none.
        covariance: The covariance of their errors.
        at_once: The number of hours that are decoded at once. With fewer than are observed, less
            memory is taken and more is computed: decodings are not kept for products with the
            Jacobian and its transpose, but done again.
        precision: That of the decoder, by default single. All else is in single precision.
    """

    def __init__(
        self,
        model: Model,
        operators: Sequence[HourOperator | None],
        covariance: WindowCovariance,
        at_once: int | None = None,
        precision: Precision | None = None,
    ):
        self.model, self.covariance = model, covariance
        self.precision = precision or Precision("float32", model.device)
        seen = [(hour, op) for hour, op in enumerate(operators) if op is not None]
        size = at_once or len(seen)
        self.groups = [seen[i : i + size] for i in range(0, len(seen), size)]
        self._gain: Tensor | None = None
        self._strength: Tensor | None = None
        curved = torch.cat([op.curved for _, op in seen])
        #: Which observations are of a curved observable, if any.
        self.curved = curved if bool(curved.any()) else None

    @property
    def variance(self) -> Tensor:
        return self.covariance.variance

    def departure(self, z: Tensor) -> Tensor:
        return torch.cat([self._departure(g, self._decode(g, z)) for g in self.groups], dim=1)

    def linearize(self, z: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        if len(self.groups) == 1:
            return self._linearize(self.groups[0], z)

        def products(w: Tensor) -> Tensor:
            # one group's linearization at a time is kept
            return torch.cat([self._linearize(g, z.detach())[1](w) for g in self.groups], dim=1)

        parts: list[Any] = [_Again.apply(z, self, group) for group in self.groups]
        return torch.cat(parts, dim=1), products

    def _linearize(self, group: Group, z: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        hours = [hour for hour, _ in group]
        with self.precision():
            x, changes = self.model.linearize(z[:, hours])
        states = x.detach().unbind(1)

        def product(w: Tensor) -> Tensor:
            with self.precision():
                dx = changes(w[:, hours]).unbind(1)
            each = zip(group, states, dx, strict=True)  # hour by hour
            return torch.cat([op.tangent(at, by) for (_, op), at, by in each], dim=1)

        return self._departure(group, x), product

    def _decode(self, group: Group, z: Tensor) -> Tensor:
        with self.precision():
            return self.model.decode(z[:, [hour for hour, _ in group]])

    def _departure(self, group: Group, x: Tensor) -> Tensor:
        # unbound, since the derivative of each hour's selection would be of all hours' size
        states = x.unbind(1)  # (B, C, H, W) each
        return torch.cat([op.departure(states[k]) for k, (_, op) in enumerate(group)], dim=1)

    def whiten(self, v: Tensor, transposed: bool = False) -> Tensor:
        return self.covariance.whiten(v, transposed)

    def gain(self, z: Tensor) -> Tensor:
        if self._gain is None:
            self._gain = probed_gain(self, z)
        return self._gain

    def strength(self, z: Tensor) -> Tensor:
        if self._strength is None:
            # hour by hour: it is asked for while an evaluation has linearized all hours already
            signs = random_signs(z, STRENGTH_PROBES)
            found: list[list[Tensor]] = [[] for _ in signs]
            with torch.no_grad():
                for one in (pair for group in self.groups for pair in group):
                    _, product = self._linearize([one], torch.zeros_like(z))
                    for rows, w in zip(found, signs, strict=True):
                        rows.append(product(w))
            self._strength = strength_of([self.whiten(torch.cat(rows, dim=1)) for rows in found])
        return self._strength

    def members(self, chosen: slice) -> StatesLikelihood:
        return self


class _Again(torch.autograd.Function):
    r"""Departures of a group of hours, whose decoder is linearized when gradients are asked for."""

    @staticmethod
    def forward(ctx, z: Tensor, likelihood: StatesLikelihood, group: Group) -> Tensor:
        ctx.save_for_backward(z)
        ctx.likelihood, ctx.group = likelihood, group
        return likelihood._departure(group, likelihood._decode(group, z))

    @staticmethod
    @once_differentiable
    def backward(ctx, u: Tensor) -> tuple[Tensor, None, None]:
        with torch.enable_grad():
            z = ctx.saved_tensors[0].detach().requires_grad_()
            departure = ctx.likelihood._linearize(ctx.group, z)[0]
        return torch.autograd.grad(departure, z, u)[0], None, None
