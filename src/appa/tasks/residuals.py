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

from ..observations.rain import Above
from ..observations.residual import Noise, ResidualSampler
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
        #: The largest relative residual that interpolation left.
        self.left = 0.0

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
            above = self._above(few, channels, 0)
            departure = self.departure[few[0] : few[-1] + 1]
            r, report = self.sampler.draw(
                self.operators, departure, noise, channels=channels, above=above
            )
            self.left = max(self.left, report.residual)
            return r[:, self.hours]
        past = self.z.new_zeros(len(few), 0, len(channels), *self.model.grid.shape)
        if self.past is not None:
            past = self.past[[self.sources[i] for i in few]][:, :, channels].to(self.z)
        above = self._above(few, channels, self.known - past.shape[1])
        later = self.sampler.forward(
            past, len(self.operators) - self.known, noise, channels=channels, above=above
        )
        none = later.new_zeros(len(few), self.known, *later.shape[2:])
        return torch.cat([none, later], dim=1)[:, self.hours]

    def _above(self, few: list[int], channels: Sequence[int], first: int) -> dict[int, Above]:
        r"""Where precipitation is from an hour on, if it is among the channels."""
        if not any(map(self.model.rains, channels)):
            return {}
        return self.model.above_zero(self.z[few, first:], self.sampler.rep, self.batch)

    @cached_property
    def departure(self) -> Tensor:
        r"""Whitened departures from observations, with shape :math:`(M, N)`."""
        parts = []
        for hour, op in enumerate(self.operators):
            if op is None:
                continue
            found = [op.departure(self.model.decode(z)) for z in self.z[:, hour].split(self.batch)]
            parts.append(torch.cat(found))
        return torch.cat(parts, dim=1) if parts else self.z.new_zeros(len(self.z), 0)
