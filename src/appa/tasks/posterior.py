r"""The posterior of latents over a period, given observations of states.

An observation :math:`y = \mathcal{M}(x) + \eta` of the state :math:`x = D_\psi(z) + r` is one of
the latent through the decoder,

.. math:: y = \mathcal{M}(D_\psi(z)) + \eta + M r , \qquad
    \Sigma_y = \mathbb{V}[\eta] + M \, \mathbb{V}[r] \, M^\top ,

with :math:`M` the Jacobian of :math:`\mathcal{M}`: what the decoder cannot express is part of its
error. Only hours that are observed are decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..diffusion.likelihood import (
    HoursLikelihood,
    Likelihood,
    NumberedLikelihood,
    StackedLikelihood,
    probed_gain,
)
from ..diffusion.sampling import Keeper, Noise, draw, hour_number
from ..diffusion.sequential import draw_sequential, schedule
from ..diffusion.trajectory import padded_length
from ..observations.errors import WindowCovariance
from ..observations.operators import HourOperator, StateSpace
from ..observations.representation import Representation
from ..observations.residual import STREAM, ResidualSampler
from .model import Model
from .precision import Precision
from .settings import Settings

__all__ = ["Posterior", "StatesLikelihood"]

Group = Sequence[tuple[int, HourOperator]]  # hours of a window, and what is seen of them

MANY = 50_000_000  # observations whose errors' covariance is kept


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
            departure, product = self._linearize(self.groups[0], z)
            return departure, product

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
            # hour by hour in the precision of what observes them
            each = zip(group, states, dx, strict=True)
            parts = [op.tangent(_single(at), _single(by)) for (_, op), at, by in each]
            return torch.cat(parts, dim=1)

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

    def members(self, chosen: slice) -> StatesLikelihood:
        return self


class Posterior:
    r"""Creates the posterior over a period.

    Arguments:
        model: The model.
        times: The hours of the trajectory, with shape :math:`(L)`.
        settings: How it is drawn.
        operators: The observations of each hour, if there are any.
        representation: What the decoder cannot express, if it is known.
        known: The first latents, where they are known, with shape :math:`(M, K, c, h, w)`.
        known_residual: What the decoder lacked in the last of these hours, with shape
            :math:`(M, P, C, H, W)`, if that is known too.
        at_once: The number of hours decoded at once in guidance, by default all.
    """

    def __init__(
        self,
        model: Model,
        times: np.ndarray,
        settings: Settings,
        operators: Sequence[HourOperator | None] = (),
        representation: Representation | None = None,
        known: Tensor | None = None,
        known_residual: Tensor | None = None,
        at_once: int | None = None,
    ):
        self.model, self.times, self.settings, self.at_once = model, times, settings, at_once
        device = model.device
        found = [op.to(device) if op is not None else None for op in operators]
        self.operators = found or [None] * len(times)
        either = settings.representation != "none" or settings.residual
        self.representation = representation if either else None
        self.known = known.to(device) if known is not None else None
        self.known_residual = known_residual
        self._residuals: ResidualSampler | None = None
        self.guidance, self.sampler = settings.guidance_of(), settings.sampler_of()
        self.precision = Precision.of(settings, device)
        self.window = model.config.window
        self._likelihoods: dict[tuple[int, ...], StatesLikelihood] = {}
        self.space = StateSpace.of(model) if model.standardizer is not None else None
        # what latents were trained with, in their standardized unit
        noise = model.config.autoencoder.latent_noise or 1e-2
        self.noise = (noise / model.latent_scale).view(-1, 1, 1)
        self.sequential = settings.sequential(len(times), self.window, self.given)

    @property
    def windows(self) -> int:
        r"""The number of windows that are integrated one after the other."""
        if not self.sequential:
            return 1
        lag, s = self._lag, self.settings
        return len(schedule(len(self.times), self.window, self.given, s.past, lag, s.new, s.sweeps))

    @property
    def joints(self) -> list[int]:
        r"""The hours at which another window begins to give the trajectory."""
        return self.settings.joints(len(self.times), self.window, self.given, self._seen)

    @property
    def given(self) -> int:
        r"""The number of first hours that are known."""
        return 0 if self.known is None else self.known.shape[1]

    @property
    def _seen(self) -> bool:
        return any(op is not None for op in self.operators)

    @property
    def _lag(self) -> int:
        # where nothing is observed later, there is nothing to wait for
        return self.settings.lag_of(self.window) if self._seen else 0

    def observed(self, start: int, free: Iterable[int]) -> StatesLikelihood | None:
        r"""What is observed of the window that begins at an hour.

        Observations of hours that are given say nothing more about these. But where errors persist
        they do about the errors of the others, and are kept.

        Arguments:
            start: The first hour of the window.
            free: The hours of the window that are drawn.
        """
        free = set(free)
        persists = self.representation is not None and self.settings.representation == "temporal"
        chosen = range(self.window) if persists else free
        here = [
            self.operators[start + i] if i in chosen and start + i < len(self.operators) else None
            for i in range(self.window)
        ]
        seen = [i for i, op in enumerate(here) if op is not None]
        if self.space is None or not free.intersection(seen):
            return None
        key = (start, *seen)
        if key not in self._likelihoods:
            kind = self.settings.representation
            covariance = WindowCovariance(here, self.representation, self.space, kind)
            self._likelihoods[key] = StatesLikelihood(
                self.model, here, covariance, self.at_once, self.precision
            )
            # for the next members; but no more than fit in memory beside this window
            while sum(len(part.variance) for part in self._likelihoods.values()) > MANY:
                if len(self._likelihoods) == 1:
                    break
                del self._likelihoods[next(iter(self._likelihoods))]
        return self._likelihoods[key]

    def draw(
        self,
        members: Sequence[int],
        seed: int,
        *,
        batch: int | None = None,
        advance: Callable[[], None] = lambda: None,
        keeper: Keeper | None = None,
        name: str = "draw",
    ) -> Tensor:
        r"""Draws members of the posterior.

        Arguments:
            members: Which members.
            seed: The seed.
            batch: The number of windows denoised at once.
            advance: What is called after every step.
            keeper: Where steps are kept.
            name: The name they are kept under.

        Returns:
            Standardized latents, with shape :math:`(M, L, c, h, w)`.
        """
        known, denoiser = None, self.precision.denoiser(self.model.denoiser)
        if self.known is not None:
            known = self.known[[m % len(self.known) for m in members]]
        common: dict[str, Any] = {
            "guidance": self.guidance,
            "sampler": self.sampler,
            "seed": seed,
            "batch": batch,
            "advance": advance,
            "keeper": keeper,
            "name": name,
        }

        def observe(start: int, free: Iterable[int]) -> Likelihood | None:
            found = self.observed(start, free)
            if found is None or found.curved is None:
                return found
            return NumberedLikelihood(found, self._numbers(members, seed, start))

        if self.sequential:
            return draw_sequential(
                denoiser,
                self.times,
                members,
                observe=observe,
                known=known,
                noise=self.noise,
                past=self.settings.past,
                lag=self._lag,
                new=self.settings.new,
                sweeps=self.settings.sweeps,
                **common,
            )
        stride = self.settings.stride
        length = padded_length(len(self.times), self.window, stride)
        likelihoods = [
            self._composed(start, known, observe)
            for start in range(0, length - self.window + 1, stride)
        ]
        z = draw(
            denoiser,
            self.times,
            members,
            stride=stride,
            likelihoods=likelihoods if any(part is not None for part in likelihoods) else (),
            **common,
        )
        if known is not None:
            z[:, : known.shape[1]] = known
        return z

    @torch.no_grad()
    def residual(self, z: Tensor, members: Sequence[int], seed: int) -> Tensor | None:
        r"""Draws what the decoder cannot express: given latents and observations, or the residuals
        of the hours that are known.

        Arguments:
            z: Standardized latents of the whole period, with shape :math:`(M, L, c, h, w)`.
            members: Which members they are.
            seed: The seed.

        Returns:
            What to add to decoded, standardized states, with shape :math:`(M, L, C, H, W)`, or
            :py:`None` where nothing is known of it, or it is not asked for.
        """
        if self.representation is None or not self.settings.residual:
            return None
        if self._residuals is None:
            self._residuals = ResidualSampler(self.representation, self.space, self.model.device)
        noise = Noise(seed, members, hour_number(self.times), key=(STREAM,))
        if self.known is not None:
            past = self.known_residual
            if past is None:
                past = z.new_zeros(len(z), 0, *self.model.config.state_shape)
            else:
                past = past[[m % len(past) for m in members]].to(z)
            later = self._residuals.forward(past, len(self.times) - self.known.shape[1], noise)
            return torch.cat(
                [later.new_zeros(*later.shape[:1], self.known.shape[1], *later.shape[2:]), later],
                dim=1,
            )
        parts = [
            op.departure(self.model.decode(z[:, hour]))
            for hour, op in enumerate(self.operators)
            if op is not None
        ]
        departure = torch.cat(parts, dim=1) if parts else z.new_zeros(len(z), 0)
        return self._residuals.draw(self.operators, departure, noise)[0]

    def _numbers(self, members: Sequence[int], seed: int, start: int) -> list[int]:
        r"""Numbers of members in the window that begins at an hour, which tell their signs from
        those of other members, of other windows and with other seeds."""
        key = ((hour_number(self.times) + start) % 2**32,)
        sequences = (np.random.SeedSequence([seed, m], spawn_key=key) for m in members)
        return [int(s.generate_state(1, np.uint64)[0] >> np.uint64(1)) for s in sequences]

    def _composed(
        self,
        start: int,
        known: Tensor | None,
        observe: Callable[[int, Iterable[int]], Likelihood | None],
    ) -> Likelihood | None:
        r"""What a composed window is guided by: observations, and hours that are known."""
        given = 0 if known is None else max(0, min(known.shape[1] - start, self.window))
        seen = observe(start, range(given, self.window))
        if not given:
            return seen
        assert known is not None
        hours = HoursLikelihood(known[:, start : start + given], range(given), self.noise)
        return hours if seen is None else StackedLikelihood([seen, hours])


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


def _single(x: Tensor) -> Tensor:
    r"""In single precision at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
