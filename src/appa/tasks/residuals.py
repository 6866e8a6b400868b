r"""What the decoder lacks of members, drawn when it is written.

Of a channel, :math:`r` is drawn over all hours at once (:mod:`appa.observations.residual`); of a
state, all channels are written at once. In between would be members × hours × channels × grid: at
0.25°, 14 GB a member in two days. So it is drawn for as many members and channels as what writes
them asks for, and as many at a time as memory allows. Each member and channel has noise of its own,
so that it does not matter which are drawn together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..observations.mixing import Slopes, slopes_of
from ..observations.rain import Above
from ..observations.residual import Noise, ResidualSampler
from ..solvers import Solution
from .fields import decode_batch
from .model import Model

__all__ = ["Residuals"]


class Residuals:
    r"""What the decoder lacks of members whose latents are drawn: given observations, or the
    residuals of hours that are known, or neither.

    Arguments:
        model: The model.
        sampler: What draws.
        z: Standardized latents of the whole period, with shape :math:`(M, L, c, h, w)`.
        noise: What gives the noise of some members, by their places in `z`.
        hours: Which hours are given out.
        operators: The observations of each hour, if there are any.
        known: The number of first hours that are known, of which nothing is given.
        past: What the decoder lacked in the last of these, with shape :math:`(S, P, C, H, W)`.
        sources: Which of these each member goes on from.
        at_once: The number of channels of members drawn at once, by default all.
        batch: The number of states decoded at once, by default as many as memory allows.
    """

    def __init__(
        self,
        model: Model,
        sampler: ResidualSampler,
        z: Tensor,
        noise: Callable[[Sequence[int]], Noise],
        hours: slice = slice(None),
        *,
        operators: Sequence[Any] = (),
        known: int = 0,
        past: Tensor | None = None,
        sources: Sequence[int] = (),
        at_once: int | None = None,
        batch: int | None = None,
    ):
        self.model, self.sampler, self.z, self.noise, self.hours = model, sampler, z, noise, hours
        self.operators = list(operators) or [None] * z.shape[1]
        self.known, self.past, self.sources = known, past, list(sources)
        self.at_once = at_once or len(z) * len(model.config.channels)
        self.batch = batch or decode_batch(model)
        #: What is called with the number of channels of members that were drawn since.
        self.advance: Callable[[int], None] = lambda channels: None
        #: The largest relative residual that interpolation left.
        self.left = 0.0
        #: The number of observations that it could not use, see :mod:`..observations.mixing`.
        self.unused = 0
        self._solved: dict[tuple[int, ...], dict[int, Solution]] = {}

    @torch.no_grad()
    def __call__(self, members: slice, channels: Sequence[int]) -> Tensor:
        r"""What to add to decoded, standardized states, with shape :math:`(m, t, c, H, W)`.

        Arguments:
            members: Which members, by their places in `z`, :math:`m` of them.
            channels: Which channels, :math:`c` of them.
        """
        chosen = range(len(self.z))[members]
        count = len(range(self.z.shape[1])[self.hours])
        shape = (len(chosen), count, len(channels), *self.model.grid.shape)
        out = torch.empty(shape, device=self.model.device)
        for i in range(0, len(chosen), self.at_once):
            few = list(chosen[i : i + self.at_once])
            noise = self.noise(few)
            # channels besides members, where these are few: solved together they are faster
            most = max(1, self.at_once // len(few))
            for k in range(0, len(channels), most):
                part = self._channels(few, channels[k : k + most], noise)
                out[i : i + len(few), :, k : k + part.shape[2]] = part
        return out

    def whole(self) -> Tensor:
        r"""All of it, which may be large."""
        return self(slice(None), range(len(self.model.config.channels)))

    def _channels(self, few: list[int], channels: Sequence[int], noise: Noise) -> Tensor:
        r"""Some channels, with shape :math:`(m, t, c, H, W)`."""
        channels = list(channels)
        if not self.known:
            above = self._above(few, self.sampler.tied(self.operators, channels), 0)
            own = slice(few[0], few[-1] + 1)
            departure, slopes = self._observed
            r, report = self.sampler.draw(
                self.operators,
                departure[own],
                noise,
                channels=channels,
                above=above,
                slopes=[[None if s is None else s[own] for s in hour] for hour in slopes],
                solved=self._solved.setdefault(tuple(few), {}),
                advance=lambda number: self.advance(number * len(few)),
            )
            self.left, self.unused = max(self.left, report.residual), report.unused
            return r[:, self.hours]
        past = self.z.new_zeros(len(few), 0, len(channels), *self.model.grid.shape)
        if self.past is not None:
            past = self.past[[self.sources[i] for i in few]][:, :, channels].to(self.z)
        above = self._above(few, channels, self.known - past.shape[1])
        later = self.sampler.forward(
            past, len(self.operators) - self.known, noise, channels=channels, above=above
        )
        self.advance(len(channels) * len(few))
        none = later.new_zeros(len(few), self.known, *later.shape[2:])
        return torch.cat([none, later], dim=1)[:, self.hours]

    def _above(self, few: list[int], channels: Sequence[int], first: int) -> dict[int, Above]:
        r"""Where precipitation is from an hour on, if it is among the channels."""
        if not any(map(self.model.rains, channels)):
            return {}
        return self.model.above_zero(self.z[few, first:], self.sampler.rep, self.batch)

    @cached_property
    def _observed(self) -> tuple[Tensor, list[Slopes]]:
        r"""Whitened departures from observations, with shape :math:`(M, N)`, and slopes of each
        hour's."""
        parts, slopes = [], []
        for hour, op in enumerate(self.operators):
            slopes.append([])
            if op is None:
                continue
            found, each = [], []
            for z in self.z[:, hour].split(self.batch):
                x = self.model.decode(z)
                found.append(op.departure(x))
                each.append(slopes_of(op, x))
            parts.append(torch.cat(found))
            slopes[-1] = [
                None if of[0] is None else torch.cat(of) for of in zip(*each, strict=True)
            ]
        departure = torch.cat(parts, dim=1) if parts else self.z.new_zeros(len(self.z), 0)
        return departure, slopes
