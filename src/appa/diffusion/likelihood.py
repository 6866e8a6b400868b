r"""What is known of a window: observations :math:`y = \mathcal{A}(z) + \eta`.

A likelihood gives the departure :math:`y - \mathcal{A}(z)`, which guidance differentiates, and a
root :math:`L` of the covariance :math:`\Sigma_y = L L^\top` of :math:`\eta \sim \mathcal{N}(0,
\Sigma_y)`, by the products of its inverse with vectors. Departures rather than values: those of
angles turn around, and some are computed without the cancellation a difference would have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = [
    "GaussianLikelihood",
    "HoursLikelihood",
    "Likelihood",
    "NumberedLikelihood",
    "StackedLikelihood",
    "probed_gain",
    "probed_strength",
    "random_signs",
    "strength_of",
    "twice_differentiated",
]

STRENGTH_PROBES = 4


class Likelihood(Protocol):
    r"""What guidance asks of observations of a window.

    One may also have `curved`: which observations are of a strongly curved observable, with shape
    :math:`(N)`, or :py:`None` where none is; and `numbers`: those of the members :math:`B`, which
    tell their random signs apart however members are batched, see :class:`NumberedLikelihood`.
    """

    @property
    def variance(self) -> Tensor:
        r"""The diagonal of :math:`\Sigma_y`, with shape :math:`(N)`."""
        ...

    def departure(self, z: Tensor) -> Tensor:
        r"""Departures :math:`y - \mathcal{A}(z)` of windows with shape :math:`(B, W, C, H, W')`,
        with shape :math:`(B, N)`, twice differentiable."""
        ...

    def linearize(self, z: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        r"""The departures, and the products :math:`A w` with the Jacobian of :math:`\mathcal{A}`
        there, with shape :math:`(B, N)`; see :func:`twice_differentiated`."""
        ...

    def whiten(self, v: Tensor, transposed: bool = False) -> Tensor:
        r"""The products :math:`L^{-1} v`, or :math:`L^{-\top} v`, with shape :math:`(B, N)`."""
        ...

    def gain(self, z: Tensor) -> Tensor:
        r"""The diagonal of :math:`A A^\top`, with shape :math:`(N)`; see :func:`probed_gain`.

        Arguments:
            z: Any window, with shape :math:`(1, W, C, H, W')`, which is not looked at but for its
                shape, precision and device.
        """
        ...

    def strength(self, z: Tensor) -> Tensor:
        r"""The mean of the diagonal of :math:`L^{-1} A A^\top L^{-\top}`, with shape :math:`()`:
        how many times the error's variance observations of independent latents of variance one
        have; see :func:`probed_strength`.

        Arguments:
            z: Any window, as of :meth:`gain`.
        """
        ...

    def members(self, chosen: slice) -> Likelihood:
        r"""The likelihood of some members, where each has observations of its own."""
        ...


def twice_differentiated(
    departure: Callable[[Tensor], Tensor], z: Tensor
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    r"""Departures, and products with the Jacobian of :math:`\mathcal{A}`, of whatever autograd
    knows.

    Products :math:`A^\top u` are a backward pass, and products :math:`A w` the backward pass of
    that one, in which :math:`u` enters linearly: neither computes :math:`\mathcal{A}(z)` again.

    Arguments:
        departure: From windows to departures :math:`y - \mathcal{A}(z)`.
        z: Windows, with shape :math:`(B, W, C, H, W')`, that require gradients.
    """
    found = departure(z)
    state: list[Tensor] = []

    def product(w: Tensor) -> Tensor:
        if not state:
            with torch.enable_grad():
                u = torch.zeros_like(found, requires_grad=True)
                state[:] = u, torch.autograd.grad(found, z, -u, create_graph=True)[0]
        u, back = state
        return torch.autograd.grad(back, u, w, retain_graph=True)[0]

    return found, product


def probed_gain(likelihood: Any, z: Tensor, probes: int = 16) -> Tensor:
    r"""The diagonal of :math:`A A^\top` at :math:`z = 0`, estimated with random signs."""
    return torch.stack([v.square() for v in _probes(likelihood, z, probes)]).mean(dim=0)[0]


def probed_strength(likelihood: Any, z: Tensor) -> Tensor:
    r"""The mean of the diagonal of :math:`L^{-1} A A^\top L^{-\top}` at :math:`z = 0`, likewise;
    of many observations, a few probes tell their mean."""
    return strength_of([likelihood.whiten(v) for v in _probes(likelihood, z, STRENGTH_PROBES)])


def strength_of(probed: Sequence[Tensor]) -> Tensor:
    r"""The mean square of products :math:`L^{-1} A w` with random signs, as far as it is defined at
    :math:`z = 0`, or 1."""
    squares = torch.cat(list(probed)).square()
    squares = squares[squares.isfinite()]
    return squares.mean() if squares.numel() else torch.ones((), device=squares.device)


def random_signs(z: Tensor, probes: int) -> list[Tensor]:
    r"""Random signs with the shape of windows."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 2, z.shape, generator=generator).to(z) * 2 - 1 for _ in range(probes)]


def _probes(likelihood: Any, z: Tensor, probes: int) -> list[Tensor]:
    r"""Products of :math:`A` at :math:`z = 0` with random signs, with shape :math:`(1, N)` each."""
    with torch.enable_grad():
        _, product = likelihood.linearize(torch.zeros_like(z).requires_grad_())
    with torch.no_grad():
        return [product(w).detach() for w in random_signs(z, probes)]


class GaussianLikelihood:
    r"""Creates a likelihood with independent errors.

    Arguments:
        operator: The operator :math:`\mathcal{A}`, from windows with shape
            :math:`(B, W, C, H, W')` to values with shape :math:`(B, N)`.
        y: The values observed, with shape :math:`(N)`.
        variance: The variance of each one's error, with shape :math:`()` or :math:`(N)`.
    """

    def __init__(self, operator: Callable[[Tensor], Tensor], y: Tensor, variance: Tensor | float):
        self.operator, self.y = operator, y
        self.variance = torch.as_tensor(variance, dtype=y.dtype, device=y.device).expand(y.shape)

    def departure(self, z: Tensor) -> Tensor:
        return self.y - self.operator(z)

    def linearize(self, z: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return twice_differentiated(self.departure, z)

    def whiten(self, v: Tensor, transposed: bool = False) -> Tensor:
        return v / self.variance.sqrt()

    def gain(self, z: Tensor) -> Tensor:
        return probed_gain(self, z)

    def strength(self, z: Tensor) -> Tensor:
        return probed_strength(self, z)

    def members(self, chosen: slice) -> GaussianLikelihood:
        return self


class HoursLikelihood:
    r"""Creates the likelihood of latents that are known, up to a little noise.

    Departures are in units of the noise, as those of other observations are in units of their
    errors: a solver that stops at a residual would else not see these.

    Arguments:
        z: The latents known of each member, with shape :math:`(M, P, C, H, W')`.
        hours: The hours of the window they are those of, with shape :math:`(P)`.
        noise: The standard deviation of the noise, with a shape that expands to a latent's.
    """

    def __init__(self, z: Tensor, hours: Sequence[int] | Tensor, noise: Tensor | float):
        self.z, self.hours = z, torch.as_tensor(hours, device=z.device)
        self.noise = torch.as_tensor(noise, dtype=z.dtype, device=z.device)
        self.variance = torch.ones(z[0].numel(), dtype=z.dtype, device=z.device)

    def departure(self, z: Tensor) -> Tensor:
        return ((self.z - z[:, self.hours]) / self.noise).flatten(1)

    def linearize(self, z: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return self.departure(z), lambda w: (w[:, self.hours] / self.noise).flatten(1)

    def whiten(self, v: Tensor, transposed: bool = False) -> Tensor:
        return v

    def gain(self, z: Tensor) -> Tensor:
        return (1 / self.noise**2).expand(self.z.shape[1:]).flatten()

    def strength(self, z: Tensor) -> Tensor:
        return self.gain(z).mean()

    def members(self, chosen: slice) -> HoursLikelihood:
        return HoursLikelihood(self.z[chosen], self.hours, self.noise)


class NumberedLikelihood:
    r"""Creates a likelihood whose members have numbers.

    What guidance draws at random for a member, such as signs that probe curvature, depends on the
    member's number alone: not on who else is in its batch, nor on rounding, as whatever is computed
    from latents would.

    Arguments:
        likelihood: The likelihood, of members :math:`B` or of any.
        numbers: The number of each member, from 0 to :math:`2^{63} - 1`.
    """

    def __init__(self, likelihood: Likelihood, numbers: Sequence[int]):
        self.likelihood, self.numbers = likelihood, tuple(numbers)

    @property
    def variance(self) -> Tensor:
        return self.likelihood.variance

    @property
    def curved(self) -> Tensor | None:
        return getattr(self.likelihood, "curved", None)

    def departure(self, z: Tensor) -> Tensor:
        return self.likelihood.departure(z)

    def linearize(self, z: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return self.likelihood.linearize(z)

    def whiten(self, v: Tensor, transposed: bool = False) -> Tensor:
        return self.likelihood.whiten(v, transposed)

    def gain(self, z: Tensor) -> Tensor:
        return self.likelihood.gain(z)

    def strength(self, z: Tensor) -> Tensor:
        return self.likelihood.strength(z)

    def members(self, chosen: slice) -> NumberedLikelihood:
        return NumberedLikelihood(self.likelihood.members(chosen), self.numbers[chosen])


class StackedLikelihood:
    r"""Creates the likelihood of several independent kinds of observations.

    Arguments:
        parts: Their likelihoods.
    """

    def __init__(self, parts: Sequence[Likelihood]):
        self.parts = tuple(parts)
        self.variance = torch.cat([part.variance for part in self.parts])

    @property
    def numbers(self) -> tuple[int, ...] | None:
        found = (getattr(part, "numbers", None) for part in self.parts)
        return next((numbers for numbers in found if numbers is not None), None)

    @property
    def curved(self) -> Tensor | None:
        found = [getattr(part, "curved", None) for part in self.parts]
        if all(part is None for part in found):
            return None
        rows = zip(found, (part.variance for part in self.parts), strict=True)
        return torch.cat(
            [v.new_zeros(len(v), dtype=torch.bool) if c is None else c for c, v in rows]
        )

    def departure(self, z: Tensor) -> Tensor:
        return torch.cat([part.departure(z) for part in self.parts], dim=1)

    def linearize(self, z: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        departures, products = zip(*(part.linearize(z) for part in self.parts), strict=True)
        return (
            torch.cat(departures, dim=1),
            lambda w: torch.cat([product(w) for product in products], dim=1),
        )

    def whiten(self, v: Tensor, transposed: bool = False) -> Tensor:
        split = v.split([len(part.variance) for part in self.parts], dim=1)
        white = [p.whiten(w, transposed) for p, w in zip(self.parts, split, strict=True)]
        return torch.cat(white, dim=1)

    def gain(self, z: Tensor) -> Tensor:
        return torch.cat([part.gain(z) for part in self.parts])

    def strength(self, z: Tensor) -> Tensor:
        counts = torch.tensor([len(part.variance) for part in self.parts]).to(z)
        return torch.stack([p.strength(z) for p in self.parts]) @ counts / counts.sum()

    def balance(self, z: Tensor, v: float) -> Tensor:
        r"""Factors of whitened observations with shape :math:`(N)`, :math:`(1 + v s)^{-1/2}` of
        those of a kind with strength :math:`s`, with which all kinds are of size one where latents
        have the variance :math:`v` around what is known of them.

        Arguments:
            z: Any window, as of :meth:`gain`.
            v: The variance :math:`v`.
        """
        kinds = [(1 + v * part.strength(z)) ** -0.5 for part in self.parts]
        counts = [len(part.variance) for part in self.parts]
        return torch.cat([k.expand(n) for k, n in zip(kinds, counts, strict=True)])

    def members(self, chosen: slice) -> StackedLikelihood:
        return StackedLikelihood([part.members(chosen) for part in self.parts])
