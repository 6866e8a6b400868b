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

from ..diffusion.likelihood import HoursLikelihood, Likelihood, StackedLikelihood
from ..diffusion.sampling import Keeper, Noise, draw
from ..diffusion.sequential import draw_sequential, schedule
from ..diffusion.trajectory import padded_length
from ..observations.errors import WindowCovariance
from ..observations.operators import HourOperator, StateSpace
from ..observations.representation import Representation
from ..observations.residual import draw_residual
from .model import Model
from .settings import Settings

__all__ = ["Posterior", "StatesLikelihood"]

RESIDUAL = 2**20  # tells its noise apart from that of windows, which are counted from 0


class StatesLikelihood:
    r"""Creates the likelihood of a window's latents, given observations of their states.

    Arguments:
        model: The model, whose decoder is used.
        operators: The observations of each hour of the window, :py:`None` where there are none.
        covariance: The covariance of their errors.
    """

    def __init__(
        self,
        model: Model,
        operators: Sequence[HourOperator | None],
        covariance: WindowCovariance,
    ):
        self.model, self.covariance = model, covariance
        self.operators = [(hour, op) for hour, op in enumerate(operators) if op is not None]
        self.hours = [hour for hour, _ in self.operators]

    @property
    def variance(self) -> Tensor:
        return self.covariance.variance

    def departure(self, z: Tensor) -> Tensor:
        return self._departure(self.model.decode(z[:, self.hours]))

    def linearize(self, z: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        x, changes = self.model.linearize(z[:, self.hours])
        states = x.detach().unbind(1)

        def product(w: Tensor) -> Tensor:
            dx = changes(w[:, self.hours]).unbind(1)
            parts = [op.tangent(states[k], dx[k]) for k, (_, op) in enumerate(self.operators)]
            return torch.cat(parts, dim=1)

        return self._departure(x), product

    def _departure(self, x: Tensor) -> Tensor:
        # unbound, since the derivative of each hour's selection would be of all hours' size
        states = x.unbind(1)  # (B, C, H, W) each
        return torch.cat([op.departure(states[k]) for k, (_, op) in enumerate(self.operators)], 1)

    def cov(self, v: Tensor) -> Tensor:
        return self.covariance.matmul(v)

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
    """

    def __init__(
        self,
        model: Model,
        times: np.ndarray,
        settings: Settings,
        operators: Sequence[HourOperator | None] = (),
        representation: Representation | None = None,
        known: Tensor | None = None,
    ):
        self.model, self.times, self.settings = model, times, settings
        device = model.device
        found = [op.to(device) if op is not None else None for op in operators]
        self.operators = found or [None] * len(times)
        self.representation = representation if settings.representation != "none" else None
        self.known = known.to(device) if known is not None else None
        self.guidance, self.sampler = settings.guidance_of(), settings.sampler_of()
        self.window = model.config.window
        self.space = StateSpace.of(model) if found else None
        # what latents were trained with, in their standardized unit
        noise = model.config.autoencoder.latent_noise or 1e-2
        self.noise = (noise / model.latent_scale).view(-1, 1, 1)
        if settings.mode == "auto":
            self.sequential = len(times) > self.window or known is not None
        else:
            self.sequential = settings.mode == "sequential"

    @property
    def windows(self) -> int:
        r"""The number of windows that are integrated one after the other."""
        if not self.sequential:
            return 1
        known, s = 0 if self.known is None else self.known.shape[1], self.settings
        lag = self._lag
        return len(schedule(len(self.times), self.window, known, s.past, lag, s.new, s.sweeps))

    @property
    def _lag(self) -> int:
        # where nothing is observed later, there is nothing to wait for
        seen = any(op is not None for op in self.operators)
        return self.settings.lag_of(self.window) if seen else 0

    def observed(self, start: int, hours: Iterable[int]) -> Likelihood | None:
        r"""What is observed of the window that begins at an hour, at some of its hours."""
        chosen = set(hours)
        here = [
            self.operators[start + i] if i in chosen and start + i < len(self.operators) else None
            for i in range(self.window)
        ]
        if self.space is None or not any(op is not None for op in here):
            return None
        kind = self.settings.representation
        covariance = WindowCovariance(here, self.representation, self.space, kind)
        return StatesLikelihood(self.model, here, covariance)

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
        known = None
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
        if self.sequential:
            return draw_sequential(
                self.model.denoiser,
                self.times,
                members,
                observe=self.observed,
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
            self._composed(start, known) for start in range(0, length - self.window + 1, stride)
        ]
        z = draw(
            self.model.denoiser,
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
        r"""Draws what the decoder cannot express, given latents and observations.

        Arguments:
            z: Standardized latents of the whole period, with shape :math:`(M, L, c, h, w)`.
            members: Which members they are.
            seed: The seed.

        Returns:
            What to add to decoded, standardized states, with shape :math:`(M, L, C, H, W)`, or
            :py:`None` where nothing is known of it, or it is not asked for.
        """
        rep, space = self.representation, self.space
        if rep is None or space is None or not self.settings.residual:
            return None
        parts = [
            op.departure(self.model.decode(z[:, hour]))
            for hour, op in enumerate(self.operators)
            if op is not None
        ]
        noise = Noise(seed, members, key=(RESIDUAL,))
        return draw_residual(self.operators, torch.cat(parts, dim=1), rep, space, noise)[0]

    def _composed(self, start: int, known: Tensor | None) -> Likelihood | None:
        r"""What a composed window is guided by: observations, and hours that are known."""
        given = 0 if known is None else max(0, min(known.shape[1] - start, self.window))
        seen = self.observed(start, range(given, self.window))
        if not given:
            return seen
        assert known is not None
        hours = HoursLikelihood(known[:, start : start + given], range(given), self.noise)
        return hours if seen is None else StackedLikelihood([seen, hours])
