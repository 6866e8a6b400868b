r"""The posterior of latents over a period, given observations of states: windows with what is
observed of each (:class:`appa.tasks.likelihood.StatesLikelihood`), drawn one after another or
composed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..diffusion.likelihood import (
    HoursLikelihood,
    Likelihood,
    NumberedLikelihood,
    StackedLikelihood,
)
from ..diffusion.sampling import Keeper, Noise, draw, hour_number
from ..diffusion.sequential import draw_sequential, schedule
from ..diffusion.trajectory import padded_length
from ..observations.errors import WindowCovariance
from ..observations.operators import HourOperator, StateSpace
from ..observations.representation import Representation
from ..observations.residual import STREAM, ResidualSampler
from .likelihood import StatesLikelihood
from .model import Model
from .precision import Precision
from .residuals import Residuals
from .settings import Settings

__all__ = ["Posterior"]

MANY = 50_000_000  # observations whose errors' covariance is kept


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
        #: The number of channels of members whose residuals are drawn at once, by default all.
        self.residuals_at_once: int | None = None
        self.guidance, self.sampler = settings.guidance_of(), settings.sampler_of()
        self.precision = Precision.of(settings, device)
        self.window = model.config.window
        self._likelihoods: dict[tuple[int, ...], StatesLikelihood] = {}
        self.space = StateSpace.of(model) if model.standardizer is not None else None
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
        understated = self.settings.understated
        known, denoiser = None, self.precision.denoiser(self.model.denoiser, understated)
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
                noise=self.model.latent_noise,
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

    def residual(
        self, z: Tensor, members: Sequence[int], seed: int, hours: slice = slice(None)
    ) -> Residuals | None:
        r"""What the decoder cannot express: given latents and observations, or the residuals of the
        hours that are known. It is drawn as it is asked for.

        Arguments:
            z: Standardized latents of the whole period, with shape :math:`(M, L, c, h, w)`.
            members: Which members they are.
            seed: The seed.
            hours: Which hours are given out.

        Returns:
            What gives residuals, or :py:`None` where nothing is known of them, or they are not
            asked for.
        """
        if self.representation is None or not self.settings.residual:
            return None
        if self._residuals is None:
            self._residuals = ResidualSampler(self.representation, self.space, self.model.device)
        first, past = hour_number(self.times), self.known_residual
        return Residuals(
            self.model,
            self._residuals,
            z.to(self.model.device),
            lambda few: Noise(seed, [members[i] for i in few], first, key=(STREAM,)),
            hours,
            operators=self.operators,
            known=self.given,
            past=past,
            sources=[m % len(past) for m in members] if past is not None else (),
            at_once=self.residuals_at_once,
        )

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
        noise = self.model.latent_noise
        hours = HoursLikelihood(known[:, start : start + given], range(given), noise)
        return hours if seen is None else StackedLikelihood([seen, hours])
