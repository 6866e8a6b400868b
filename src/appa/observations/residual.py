r"""Drawing what the decoder cannot express, given observations and latents.

With the latents drawn, :math:`r` is still free: :math:`D(z)` alone misses the observations by as
much as the decoder errs, and lacks small scales. For each channel, observations of it tell

.. math:: y - \mathcal{A}(D(z)) = H r + e , \qquad r \sim \mathcal{N}(0, B) , \qquad
    e \sim \mathcal{N}(0, I)

in whitened units, over the hours of a period at once, and a draw from :math:`p(r \mid y, z)` is
optimal interpolation with perturbed observations,

.. math:: r = r_b + B H^\top (H B H^\top + I)^{-1} (y - \mathcal{A}(D(z)) - H r_b - e') ,

with :math:`r_b` and :math:`e'` drawn from their distributions. It is exact for the covariance
:math:`B = S (T \otimes \Sigma) S` of :mod:`appa.observations.representation`. :math:`H`
interpolates, as :math:`\mathcal{A}` does. A few correlation lengths away from observations
:math:`r` is as free as before. Over land that of the sea surface is zero.

Nothing is ever as large as observations times observations: products with :math:`\Sigma` and its
root are those of :mod:`appa.observations.harmonics`. The system is solved by conjugate gradients,
preconditioned by the blocks of each place's own hours. Levels of a variable that are seen at the
same places, as a satellite sees them, are solved side by side.

Observations between levels and derived ones see several channels at once, which are then solved
for together: see :mod:`appa.observations.mixing`. One that is derived from whole fields does not
move :math:`r`: it has had its say about :math:`z`.

Precipitation is nowhere below zero, and mostly near it. A Gaussian :math:`r_b` would be: cut off at
zero it rained half as much again as it should. Where the decoded state is told, its :math:`r_b` is
turned into one that has no state below zero and, on average, the same mean and variance: see
:mod:`appa.observations.rain`.

After the last observation :math:`r` goes on from its last hours :math:`p` by itself. Since its
covariance is separable, each point's own hours are all there is to know, and over the next hours
:math:`f`

.. math:: r_f \mid r_p \sim \mathcal{N}\big( T_{fp} T_{pp}^{-1} \, r_p , \;
    S \, (T_{ff} - T_{fp} T_{pp}^{-1} T_{pf}) \otimes \Sigma \, S \big) .
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from ..solvers import Solution
from .ahead import ahead
from .errors import check_channels
from .harmonics import Correlated, Harmonics, root_of
from .mixing import Coupled, Mixed, Slopes, mixed_groups
from .rain import TINY, Above, bounded
from .representation import Representation
from .stencils import StateSpace
from .systems import Piece, Places, Rows, System, by_channel, rows_of

__all__ = ["STREAM", "Report", "ResidualSampler"]

AHEAD = 4  # channels whose noise is kept at most
STREAM = 2**20  # tells its noise apart from that of windows, which are counted from 0
PAST = 24  # hours; of a planet's r, more would tell what follows by 2 % at most
ROUNDING = 1e-5  # the variance r is known within
OFTEN = 2.5  # standard deviations that are taken for Gaussian


class Noise(Protocol):
    r"""Standard normal noise of members, the same for the same step."""

    def __call__(self, shape: Sequence[int], *step: int) -> Tensor:
        r"""Noise with shape :math:`(M, *)`."""
        ...


@dataclass
class Report:
    r"""What a draw did.

    Arguments:
        used: The number of observations that took part.
        unused: The number of those that did not, in any channel.
        iterations: The most iterations a channel took.
        residual: The largest relative residual left.
    """

    used: int = 0
    unused: int = 0
    iterations: int = 0
    residual: float = 0.0
    channels: list[str] = field(default_factory=list)  # those that were observed

    def add(self, found: Solution, used: int, channels: Iterable[str]) -> None:
        r"""Adds what was solved for some channels."""
        self.used += used
        self.iterations = max(self.iterations, found.iterations)
        self.residual = max(self.residual, float(found.residual.max()))
        self.channels += channels


class ResidualSampler:
    r"""Draws :math:`r`, with what all members and chunks of them share kept.

    Arguments:
        rep: The covariance of :math:`r`.
        space: Where states live. Only observations need it.
        device: Where draws are made.

    Example:
        >>> sampler = ResidualSampler(model.representation, StateSpace.of(model), z.device)
        >>> r, report = sampler.draw(operators, departure, noise)
        >>> r = sampler.forward(r, 24, noise)  # the day after
    """

    def __init__(
        self,
        rep: Representation,
        space: StateSpace | None = None,
        device: torch.device | str = "cpu",
    ):
        if space is not None:
            check_channels(rep, space)
        self.rep, self.space, self.device = rep, space, torch.device(device)
        self._harmonics: Harmonics | None = None
        self._priors: dict[tuple[int, int], Correlated] = {}
        self._seen: tuple[list[Any], dict[int, list[Piece]]] = ([], {})
        self._mixed: dict[bool, list[Mixed]] = {}  # of the same, with derived ones or without
        self._kept: dict[int, Rows] = {}  # of the operators seen last
        self._places: Places | None = None

    @property
    def harmonics(self) -> Harmonics:
        r"""The harmonics of the grid."""
        if self._harmonics is None:
            self._harmonics = Harmonics(self.rep.grid, self.device)
        return self._harmonics

    def prior(self, channel: int, hours: int) -> Correlated:
        r"""The correlation of a channel."""
        if (channel, hours) not in self._priors:
            self._priors[channel, hours] = Correlated(self.rep, channel, hours, self.harmonics)
        return self._priors[channel, hours]

    @torch.no_grad()
    def draw(
        self,
        operators: Sequence[Any],
        departure: Tensor,
        noise: Noise,
        *,
        channels: Sequence[int] | None = None,
        above: Mapping[int, Above] | None = None,
        slopes: Sequence[Slopes] | None = None,
        solved: dict[int, Solution] | None = None,
        tolerance: float = 1e-5,
        iterations: int = 500,
        advance: Callable[[int], None] = lambda channels: None,
    ) -> tuple[Tensor, Report]:
        r"""Draws :math:`r \sim p(r \mid y, z)`.

        Arguments:
            operators: The operators of consecutive hours, :py:`None` where nothing was seen.
            departure: The whitened departures :math:`y - \mathcal{A}(D(z))` of members, one hour
                after the other, with shape :math:`(M, N)`. Where nothing was seen in any hour
                :math:`N` is 0, and the draw is of :math:`p(r)`.
            noise: Noise of the members, of which steps `(channel, 0)` and `(channel, 1)` are used.
            channels: Which channels to draw, all by default. One at a time keeps memory small.
            above: Where channels that are bounded from below are, those of :meth:`tied` too.
            slopes: Those of the operators of each hour at :math:`D(z)`, see
                :func:`~appa.observations.mixing.slopes_of`; without them, derived observables do
                not take part.
            solved: Where solutions for channels that are tied together are kept, for the other
                channels of the same members.
            tolerance: The relative residual at which the solver stops.
            iterations: The most iterations it does.
            advance: What is called with the number of channels that were drawn since.

        Returns:
            The draws, standardized, to be added to :math:`D(z)`, with shape
            :math:`(M, L, C, H, W)`, and a report.
        """
        rep, device = self.rep, self.device
        count = sum(len(operator.rows) for operator in operators if operator is not None)
        if departure.ndim != 2 or departure.shape[1] != count:
            raise DataError(
                f"found departures with shape {tuple(departure.shape)}, expected (members, "
                f"{count}): those of all hours, one after the other"
            )
        chosen = list(range(len(rep.channels)) if channels is None else channels)
        shape = (len(operators), *rep.grid.shape)
        observed, groups = self._observed(operators), self._groups(operators, slopes)
        tied = {c for group in groups for c in group.channels}
        observed = {c: pieces for c, pieces in observed.items() if c not in tied}
        out = torch.zeros(len(departure), shape[0], len(chosen), *shape[1:], device=device)
        used = sum(len(which) for pieces in observed.values() for _, which, _ in pieces)
        report = Report(unused=count - used - sum(len(group.which) for group in groups))
        place = {c: k for k, c in enumerate(chosen) if rep.std[c].any()}
        for c, eps in self._noise(place, len(operators), noise, 0):
            out[:, :, place[c]] = self._before(c, len(operators), eps, above)
        for group in self._alike(operators, observed, place):
            system, at = self._system(operators, observed, group), [place[c] for c in group]
            u = out[:, :, at].movedim(2, 0)
            size = (system.which.shape[1],)
            eps = torch.stack([noise(size, c, 1).to(device) for c in group])
            b = departure[:, system.which].to(u).movedim(1, 0) + eps - system.observe(u)
            found = system.solve(b, iterations, tolerance)
            out[:, :, at] = (u + system.spread(found.x.view_as(b))).movedim(0, 2)
            report.add(found, system.which.numel(), [rep.channels[c].name for c in group])
            advance(len(group))
        kept: dict[int, Solution] = {} if solved is None else solved
        for mixed in groups:
            own = [c for c in mixed.channels if c in place]
            if not own:
                continue
            system = Coupled(mixed, slopes or (), rep, self.prior, shape, device)
            if mixed.channels[0] not in kept:
                eps = noise((len(mixed.which),), mixed.channels[0], 1).to(device)
                b = departure[:, mixed.which.to(departure.device)].to(out) + eps
                for c in mixed.channels:
                    if rep.std[c].any():
                        if c in place:
                            u = out[:, :, place[c]]
                        else:
                            eps = next(self._noise([c], shape[0], noise, 0))[1]
                            u = self._before(c, shape[0], eps, above)
                        b = b - system.observe(c, u)
                kept[mixed.channels[0]] = system.solve(b, iterations, tolerance)
            found = kept[mixed.channels[0]]
            for c in own:
                out[:, :, place[c]] += system.spread(c, found.x)
            report.add(found, len(mixed.which), [rep.channels[c].name for c in own])
            advance(len(own))
        for c, k in place.items():
            out[:, :, k] *= self._std(c)
        advance(len(chosen) - len(report.channels))
        return out, report

    def tied(self, operators: Sequence[Any], channels: Iterable[int]) -> list[int]:
        r"""Channels that observations tie to any of some, these included."""
        chosen = set(channels)
        for group in self._groups(operators, ()):
            if chosen.intersection(group.channels):
                chosen.update(group.channels)
        return sorted(chosen)

    def _noise(
        self, channels: Iterable[int], hours: int, noise: Noise, step: int
    ) -> Iterator[tuple[int, Tensor]]:
        r"""One channel after another with its noise. A core makes 10⁸ numbers a second, of which a
        day at 0.25° takes 5 × 10⁹ a member: beside a GPU some do so at once, while it draws."""
        # of what threads share, none of them makes anything
        sizes = {c: self.prior(c, hours).space.size for c in channels}
        # on a CPU they would only be in the way of those that draw
        threads = 1 if self.device.type == "cpu" else torch.get_num_threads()
        made = ahead(lambda c: noise((hours, sizes[c]), c, step), list(sizes), AHEAD, threads)
        return zip(sizes, made, strict=True)

    def _before(
        self, channel: int, hours: int, eps: Tensor, above: Mapping[int, Above] | None
    ) -> Tensor:
        r"""A draw of :math:`r_b` of a channel, of unit variance: :math:`(M, L, H, W)`."""
        u = self.prior(channel, hours).color(eps.to(self.device))
        if not above or channel not in above:
            return u
        return bounded(u, above[channel], self._std(channel))

    def _groups(self, operators: Sequence[Any], slopes: Sequence[Slopes] | None) -> list[Mixed]:
        r"""Channels that observations tie together; by derived ones too, where slopes are known."""
        observed, derived = self._observed(operators), slopes is not None
        if self.space is None:
            return []
        if derived not in self._mixed:
            self._mixed[derived] = mixed_groups(operators, observed, self.space, derived)
        return self._mixed[derived]

    def free(self, hours: int, members: int, noise: Noise, **options: Any) -> Tensor:
        r"""Draws :math:`r \sim p(r)`, where nothing was seen; see :meth:`draw`."""
        nothing = torch.zeros(members, 0, device=self.device)
        return self.draw([None] * hours, nothing, noise, **options)[0]

    @torch.no_grad()
    def forward(
        self,
        past: Tensor,
        hours: int,
        noise: Noise,
        *,
        channels: Sequence[int] | None = None,
        above: Mapping[int, Above] | None = None,
    ) -> Tensor:
        r"""Draws :math:`r` over the next hours, given the past ones and nothing else.

        Arguments:
            past: :math:`r` of consecutive hours, standardized, with shape :math:`(M, P, C, H, W)`,
                of which the last :data:`PAST` are used; :math:`P` may be 0.
            hours: The number of hours :math:`L` that follow.
            noise: Noise of the members, of which steps `(channel, 2)` are used.
            channels: Which channels those of `past` are, all by default.
            above: As of :meth:`draw`, in the last hours of `past` that are used and over those that
                follow.

        Returns:
            The draws, standardized, with shape :math:`(M, L, C, H, W)`.
        """
        rep, device = self.rep, self.device
        chosen = list(range(len(rep.channels)) if channels is None else channels)
        if past.ndim != 5 or tuple(past.shape[2:]) != (len(chosen), *rep.grid.shape):
            raise DataError(
                f"found past hours with shape {tuple(past.shape)}, expected (members, hours, "
                f"{', '.join(map(str, (len(chosen), *rep.grid.shape)))})"
            )
        past = past[:, max(past.shape[1] - PAST, 0) :]
        out = torch.zeros(len(past), hours, *past.shape[2:], device=device)
        place = {c: k for k, c in enumerate(chosen) if rep.std[c].any()}
        for c, eps in self._noise(place, hours, noise, 2):
            k, std, eps = place[c], self._std(c), eps.to(device)
            gain, root = _continuation(rep, c, past.shape[1], hours)
            new = self.prior(c, hours).space.color(root.to(eps) @ eps)
            # S commutes with what acts on hours alone
            before = past[:, :, k].to(new)
            if above and c in above:
                split = past.shape[1]
                there = Above(above[c].state[:, -(split + hours) :], above[c].rate)
                # what was turned is Gaussian no longer, but close to it in units of its own
                scale = there.scale(std).clip(min=TINY)
                before = (before / scale[:, :split]).clip(-OFTEN, OFTEN)
                new = new + torch.einsum("st,mthw->mshw", gain.to(new), before)
                later = Above(there.state[:, split:], there.rate)
                out[:, :, k] = std * bounded(new, later, std)
                continue
            out[:, :, k] = torch.einsum("st,mthw->mshw", gain.to(new), before) + std * new
        return out

    def _observed(self, operators: Sequence[Any]) -> dict[int, list[Piece]]:
        before, observed = self._seen
        same = len(before) == len(operators) and all(
            a is b for a, b in zip(before, operators, strict=True)
        )
        if not same:
            seen = any(operator is not None for operator in operators)
            if seen and self.space is None:
                raise DataError("r given observations needs to know where states live; give space")
            observed = by_channel(operators, self.space) if self.space is not None else {}
            self._seen, self._kept, self._mixed = (list(operators), observed), {}, {}
            self._places = None
        return observed

    def _rows(self, operators: Sequence[Any], pieces: list[Piece], channel: int) -> Rows:
        if channel not in self._kept:
            assert self.space is not None
            time = self.prior(channel, len(operators)).time[0]
            if self._places is None:
                self._places = Places.of(operators)
            rows = rows_of(self._places, pieces, self.rep, self.space, channel, time)
            self._kept[channel] = rows.to(self.device)
        return self._kept[channel]

    def _alike(
        self, operators: Sequence[Any], observed: Mapping[int, list[Piece]], channels: Iterable[int]
    ) -> list[list[int]]:
        r"""Channels that are observed, those of one variable together where they are alike."""
        groups: list[list[int]] = []
        for c in channels:
            if c not in observed:
                continue
            rows = self._rows(operators, observed[c], c)
            for group in groups:
                first = group[0]
                same = self.rep.channels[first].variable == self.rep.channels[c].variable
                if same and self._kept[first].alike(rows):
                    group.append(c)
                    break
            else:
                groups.append([c])
        return groups

    def _system(
        self, operators: Sequence[Any], observed: Mapping[int, list[Piece]], group: list[int]
    ) -> System:
        rows = [self._rows(operators, observed[c], c) for c in group]
        hours = len(operators)
        return System(rows, [self.prior(c, hours) for c in group], (hours, *self.rep.grid.shape))

    def _std(self, channel: int) -> Tensor:
        return torch.from_numpy(self.rep.std[channel]).float().to(self.device)


def _continuation(
    rep: Representation, channel: int, past: int, hours: int
) -> tuple[Tensor, Tensor]:
    r"""The gain :math:`T_{fp} T_{pp}^{-1}`, with shape :math:`(L, P)`, and a root of what is left,
    with shape :math:`(L, L)`."""
    lag = np.arange(past + hours)
    times = rep.in_time(channel, np.abs(lag[:, None] - lag))
    across, within = times[past:, :past], times[:past, :past]
    # Hours of a smooth r are nearly dependent, and known to single precision.
    gain = np.linalg.solve(within + ROUNDING * np.eye(past), across.T).T
    return torch.from_numpy(gain), root_of(times[past:, past:] - gain @ across.T)
