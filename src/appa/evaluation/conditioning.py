r"""A Gaussian of a whole window, conditioned on all of its observations.

The prior of a window is Gaussian, :math:`x \sim \mathcal{N}(\mu, B)` (see
:mod:`appa.evaluation.covariances`), and observables are linearized at the climatology,
:math:`y = \mathcal{A}(\mu) + H (x - \mu) + e`. Operators are whitened, hence :math:`e \sim
\mathcal{N}(0, I)` but for a factor :math:`s` that tuning may give all errors, and

.. math:: \mathbb{E}[x \mid y] = \mu + B H^\top (H B H^\top + s^2 I)^{-1} (y - \mathcal{A}(\mu)) .

The system has as many unknowns as there are observations and is solved by conjugate gradients, with
products only. Members are exact draws of the posterior, by perturbed observations: with
:math:`x' \sim \mathcal{N}(0, B)` and :math:`e' \sim \mathcal{N}(0, s^2 I)`,

.. math:: x_i = \mu + x' + B H^\top (H B H^\top + s^2 I)^{-1} (y - \mathcal{A}(\mu) - H x' - e') .
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..errors import DataError
from ..observations.operators import HourOperator
from ..observations.parts import Linear
from .covariances import Prior

__all__ = ["Interpolation", "Observed", "solve"]


class Observed:
    r"""The observations of a window, linearized about its mean.

    Arguments:
        operators: An operator an hour, :py:`None` where nothing was seen.
        mean: The states linearized at, with shape :math:`(T, C, H, W)`.
        error: The factor :math:`s` of errors.
    """

    def __init__(self, operators: Sequence[HourOperator | None], mean: Tensor, error: float = 1.0):
        if not error > 0:
            raise DataError(f"found a factor of errors of {error}; give one above 0, usually 1")
        self.shape, self.mean, departures = tuple(mean.shape), mean, []
        self.hours: list[tuple[int, HourOperator]] = []
        for t, operator in enumerate(operators):
            if operator is not None:
                operator = operator.to(mean.device)
                self.hours.append((t, operator))
                departures.append(operator.departure(mean[t][None])[0])
        self.error = error
        #: The whitened departures of observations from the mean, with shape :math:`(n)`.
        self.departure = torch.cat(departures) / error if departures else mean.new_zeros(0)

    def __len__(self) -> int:
        return len(self.departure)

    @torch.no_grad()
    def product(self, x: Tensor) -> Tensor:
        r"""The whitened :math:`H x`, with shape :math:`(B, n)`, of :math:`(B, T, C, H, W)`."""
        found = []
        for t, operator in self.hours:
            at = self.mean[t].expand(len(x), *self.shape[1:])
            found.append(operator.tangent(at, x[:, t]))
        return torch.cat(found, dim=1) / self.error if found else x.new_zeros(len(x), 0)

    def adjoint(self, v: Tensor) -> Tensor:
        r"""The products :math:`H^\top v`, with shape :math:`(B, T, C, H, W)`."""
        out = v.new_zeros(len(v), *self.shape)
        v, start = v / self.error, 0
        for t, operator in self.hours:
            hour = out[:, t].view(len(v), -1)
            for part in operator.parts:
                u = v[:, start : start + len(part)]
                start += len(part)
                if isinstance(part, Linear):
                    spread = u[..., None] * part.gather.weight.to(v)
                    hour.index_add_(1, part.gather.index.flatten(), spread.flatten(1))
                else:
                    with torch.enable_grad():
                        at = self.mean[t].expand(len(v), *self.shape[1:]).clone().requires_grad_()
                        hour += torch.autograd.grad(part(at), at, u)[0].flatten(1)
        return out


class Interpolation:
    r"""The posterior of a window.

    Arguments:
        prior: The prior.
        observed: The observations.
        iterations, tolerance: When conjugate gradients stop: at the latest, and at which residual.
    """

    def __init__(
        self, prior: Prior, observed: Observed, iterations: int = 1000, tolerance: float = 1e-3
    ):
        self.prior, self.observed = prior, observed
        self.iterations, self.tolerance = iterations, tolerance
        self.taken = 0  #: The iterations of the last system.

    @torch.no_grad()
    def gain(self, d: Tensor) -> Tensor:
        r"""The increments :math:`B H^\top (H B H^\top + I)^{-1} d` of departures :math:`(B, n)`."""
        prior, observed = self.prior, self.observed
        if not len(observed):
            return prior.mean.new_zeros(len(d), *prior.mean.shape)

        def product(v: Tensor) -> Tensor:
            return observed.product(prior.product(observed.adjoint(v)))

        v, residual, self.taken = solve(product, d, self.iterations, self.tolerance)
        if (worst := float(residual.max())) > self.tolerance:
            warnings.warn(
                f"the interpolation is off by a residual of {worst:.2g} after {self.taken} "
                f"iterations, {self.tolerance:g} was asked for; allow more, or in double precision",
                stacklevel=3,
            )
        return prior.product(observed.adjoint(v))

    def mean(self) -> Tensor:
        r"""The posterior's mean, standardized, with shape :math:`(T, C, H, W)`."""
        return self.prior.mean + self.gain(self.observed.departure[None])[0]

    def product(self, x: Tensor) -> Tensor:
        r"""Products with the posterior's covariance, with shape :math:`(B, T, C, H, W)`."""
        x = self.prior.product(x)
        return x - self.gain(self.observed.product(x))

    def draw(self, seeds: Sequence[int]) -> Tensor:
        r"""Members, standardized, with shape :math:`(B, T, C, H, W)`, each of its own seed."""
        x = self.prior.draw(list(seeds))
        noise = []
        for seed in seeds:
            generator = torch.Generator().manual_seed(seed ^ 0x5EED)
            noise.append(torch.randn(len(self.observed), generator=generator, dtype=x.dtype))
        d = self.observed.departure - self.observed.product(x) - torch.stack(noise).to(x)
        return self.prior.mean + x + self.gain(d)


def solve(
    product: Callable[[Tensor], Tensor], d: Tensor, iterations: int, tolerance: float
) -> tuple[Tensor, Tensor, int]:
    r"""Solves :math:`(C + I) v = d`, :math:`C = H B H^\top`, by conjugate gradients in the inner
    product :math:`\langle a, b \rangle = a^\top C \, b`.

    Iterates are those of the variational problem, whose cost never rises (Gratton & Tshimanga,
    2009), so that they can be stopped early; those of the plain method only arrive in the end.

    Arguments:
        product: The products with :math:`C`.
        d: The right-hand sides, with shape :math:`(B, n)`.
        iterations: The largest number of iterations.
        tolerance: The norm of the residual, over that of :math:`d`, at which to stop.

    Returns:
        The solutions, the residuals with shape :math:`(B)`, and the number of products.
    """

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return torch.linalg.vecdot(a.double(), b.double()).clip(min=0)

    v, r = torch.zeros_like(d), d
    w = product(r)
    p, t, size = r, w, dot(r, w)
    first, done = size.clip(min=1e-300), 0
    going = size > 0
    while done < iterations and bool(going.any()):
        q = p + t
        alpha = torch.where(going, size / dot(q, t).clip(min=1e-300), 0).to(d)[:, None]
        v, r = v + alpha * p, r - alpha * q
        w, done = product(r), done + 1
        new = dot(r, w)
        beta = torch.where(going, new / size.clip(min=1e-300), 0).to(d)[:, None]
        p, t = r + beta * p, w + beta * t
        size = torch.where(going, new, size)
        going = going & (size > tolerance**2 * first)
    return v, torch.sqrt(size / first).to(d), done
