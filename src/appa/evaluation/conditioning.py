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

Observations that are dense and sharp make :math:`C = H B H^\top` steep: its eigenvalues, variances
in units of the errors', fall from some hundred thousand to nothing, and conjugate gradients take
the root of their range in iterations. Its largest ones are found beforehand, all at once, by a
randomized Nyström approximation :math:`C \approx U \Lambda U^\top` (Frangella, Tropp & Udell,
2023), which every member's system shares,

.. math:: P^{-1} = U \left( \frac{\lambda_r + 1}{\Lambda + I} - I \right) U^\top + I ,

and what is left is the root of the :math:`r`-th.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from ..errors import DataError
from ..observations.operators import HourOperator
from ..observations.parts import Linear, Part
from ..progress import progress
from .covariances import Prior

__all__ = ["ITERATIONS", "TOLERANCE", "Interpolation", "Observed", "nystrom", "solve"]

ITERATIONS, TOLERANCE = 1000, 1e-2
EACH, RANK = 128, 1024
ENTRIES = 2**29  # of a preconditioner: 2 GiB in single precision
CHUNK = 2**14  # observations that are summed over at once
KNOWN = 8  # an eigenvalue's distance from rounding, 2e-4 of the largest in single precision


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
        self.shape, self.mean, self.error = tuple(mean.shape), mean, error
        departures = [mean.new_zeros(0)]
        # of all hours at once, what is seen of which number of the window, and how much it counts
        numbers, rows = ([torch.zeros(0, dtype=torch.long, device=mean.device)] for _ in range(2))
        weights, count = [mean.new_zeros(0)], 0
        self.derived: list[tuple[int, Part, slice]] = []
        for t, operator in enumerate(operators):
            if operator is None:
                continue
            operator = operator.to(mean.device)
            departures.append(operator.departure(mean[t][None])[0])
            for part in operator.parts:
                here = torch.arange(count, count + len(part), device=mean.device)
                count += len(part)
                if isinstance(part, Linear):
                    index, weight = part.stencil
                    numbers.append((index + t * mean[0].numel()).flatten())
                    rows.append(here.repeat_interleave(index.shape[1]))
                    weights.append(weight.flatten().to(mean))
                else:
                    self.derived.append((t, part, slice(count - len(part), count)))
        self.numbers, self.rows, self.weights = map(torch.cat, (numbers, rows, weights))
        #: The whitened departures of observations from the mean, with shape :math:`(n)`.
        self.departure = torch.cat(departures) / error

    def __len__(self) -> int:
        return len(self.departure)

    @torch.no_grad()
    def product(self, x: Tensor) -> Tensor:
        r"""The whitened :math:`H x`, with shape :math:`(B, n)`, of :math:`(B, T, C, H, W)`."""
        out = x.new_zeros(len(x), len(self))
        out.index_add_(1, self.rows, x.flatten(1).index_select(1, self.numbers) * self.weights)
        for t, part, rows in self.derived:
            out[:, rows] = part.tangent(self.mean[t].expand(len(x), *self.shape[1:]), x[:, t])
        return out / self.error

    def adjoint(self, v: Tensor) -> Tensor:
        r"""The products :math:`H^\top v`, with shape :math:`(B, T, C, H, W)`."""
        v = v / self.error
        out = v.new_zeros(len(v), *self.shape)
        out.view(len(v), -1).index_add_(
            1, self.numbers, v.index_select(1, self.rows) * self.weights
        )
        for t, part, rows in self.derived:
            with torch.enable_grad():
                at = self.mean[t].expand(len(v), *self.shape[1:]).clone().requires_grad_()
                out[:, t] += torch.autograd.grad(part(at), at, v[:, rows])[0]
        return out


class Interpolation:
    r"""The posterior of a window.

    Arguments:
        prior: The prior.
        observed: The observations.
        iterations, tolerance: When conjugate gradients stop: at the latest, and at which norm of
            the residual, over that of departures. Whitened departures are some ten errors large,
            hence a hundredth is a tenth of the observations' errors.
        systems: How many systems will be solved: finding eigenvalues takes as many products as
            there are, and pays off where several share them.
        rank: The number :math:`r` of eigenvalues found beforehand, by default :data:`EACH` for
            each system and :data:`RANK` at most, less where their vectors would not fit in memory;
            0 for none.
    """

    def __init__(
        self,
        prior: Prior,
        observed: Observed,
        iterations: int = ITERATIONS,
        tolerance: float = TOLERANCE,
        systems: int = 1,
        rank: int | None = None,
    ):
        self.prior, self.observed = prior, observed
        self.iterations, self.tolerance = iterations, tolerance
        count = max(1, len(observed))
        most = min(EACH * max(1, systems), RANK, max(1, ENTRIES // count))
        self.rank = min(count, most if rank is None else rank)
        self.taken = 0  #: The iterations of the last system.
        self.residual = 0.0  #: The largest residual of all systems, over their right-hand sides.

    @cached_property
    def preconditioner(self) -> Callable[[Tensor], Tensor] | None:
        r"""The products with :math:`P^{-1}`."""
        if not self.rank or not len(self.observed):
            return None
        return nystrom(self._product, self.observed.departure, self.rank)

    def _product(self, v: Tensor) -> Tensor:
        return self.observed.product(self.prior.product(self.observed.adjoint(v)))

    @torch.no_grad()
    def gain(self, d: Tensor) -> Tensor:
        r"""The increments :math:`B H^\top (H B H^\top + I)^{-1} d` of departures :math:`(B, n)`."""
        prior, observed = self.prior, self.observed
        if not len(observed):
            return prior.mean.new_zeros(len(d), *prior.mean.shape)
        v, residual, self.taken = solve(
            self._product, d, self.iterations, self.tolerance, self.preconditioner
        )
        worst = float(residual.max())
        self.residual = max(self.residual, worst)
        if not worst <= self.tolerance:
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
    product: Callable[[Tensor], Tensor],
    d: Tensor,
    iterations: int,
    tolerance: float,
    preconditioner: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor, int]:
    r"""Solves :math:`(C + I) v = d` by conjugate gradients.

    Residuals that are updated drift from those that are, the more so in single precision. Where
    they are small, those that are get computed, and where these are not, it begins anew from them.
    What is returned is the best that was met, no worse than :math:`v = 0`. A preconditioner that
    rounding has made indefinite, of which slopes :math:`r^\top P^{-1} r \leq 0` tell, is left out
    from there on.

    Arguments:
        product: The products with :math:`C`.
        d: The right-hand sides, with shape :math:`(B, n)`.
        iterations: The largest number of iterations.
        tolerance: The norm of the residual, over that of :math:`d`, at which to stop.
        preconditioner: The products with :math:`P^{-1}`, positive definite, by default :math:`I`.

    Returns:
        The solutions, the residuals with shape :math:`(B)`, and the number of iterations.
    """
    inverse = preconditioner
    size = _dot(d, d).clip(min=1e-300)
    v, r, done = torch.zeros_like(d), d, 0
    error = torch.where(_dot(d, d) > 0, 1.0, 0.0).double()
    while done < iterations and bool((error > tolerance).any()):
        x, best, least, rest = v, v, error, r
        z = r if inverse is None else inverse(r)
        p, slope = z, _dot(r, z)
        going, definite = error > tolerance, True
        while done < iterations and bool(going.any()):
            q = product(p) + p
            curve = _dot(p, q)
            downhill = (slope > 0) & (curve > 0)
            definite = definite and bool(downhill[going].all())
            going = going & downhill
            # what has arrived stays where it is
            alpha = torch.where(going, slope / curve, 0).to(d)[:, None]
            x, rest, done = x + alpha * p, rest - alpha * q, done + 1
            left = (_dot(rest, rest) / size).sqrt()
            better = left < least
            best, least = torch.where(better[:, None], x, best), torch.where(better, left, least)
            z = rest if inverse is None else inverse(rest)
            new = _dot(rest, z)
            p = z + torch.where(going, new / slope, 0).to(d)[:, None] * p
            slope = torch.where(going, new, slope)
            going = going & (left > 0.8 * tolerance)
        rest = d - best - product(best)
        found, before = (_dot(rest, rest) / size).sqrt(), error
        better = found < before
        v, r = (torch.where(better[:, None], *pair) for pair in ((best, v), (rest, r)))
        error = torch.where(better, found, before)
        if not definite and inverse is not None:
            inverse = None
        elif not definite or bool((error > before / 2)[error > tolerance].any()):
            break  # as small as rounding allows
    return v, error, done


def nystrom(
    product: Callable[[Tensor], Tensor], like: Tensor, rank: int, *, seed: int = 0, batch: int = 16
) -> Callable[[Tensor], Tensor]:
    r"""The preconditioner of :math:`C + I` from products of :math:`C` with random vectors.

    With :math:`Y = C \Omega`, :math:`C \approx Y (\Omega^\top Y)^{-1} Y^\top`. Sums over
    observations are in double precision; :math:`C + \nu I` is taken, with :math:`\nu` as small as
    rounding allows.

    A vector of eigenvalue :math:`\lambda` is known to :math:`\delta = \epsilon \lambda_1 /
    \lambda`, by which it reaches into the first's direction. With these two, :math:`P` is definite
    while :math:`\lambda_r^2 / (\lambda_1 \lambda) > \delta^2`, hence with all for
    :math:`\lambda_r > \epsilon^{2/3} \lambda_1`; none below :data:`KNOWN` times that is taken.

    Arguments:
        product: The products with :math:`C`.
        like: A vector, with shape :math:`(n)`.
        rank: The number of random vectors.
        seed: Their seed.
        batch: The number of products at once.
    """
    rank = min(rank, len(like))
    generator = torch.Generator(like.device).manual_seed(seed)
    # of few digits, so that they take less room and are still what the products were with
    random = torch.randn(
        rank, len(like), generator=generator, device=like.device, dtype=torch.bfloat16
    )
    y = like.new_empty(rank, len(like))
    with progress(rank, "preconditioning", "products") as bar:
        for k in range(0, rank, batch):
            y[k : k + batch] = product(random[k : k + batch].to(like))
            bar.advance(min(batch, rank - k))
    core, gram, norm = (torch.zeros(rank, rank, dtype=torch.float64, device=like.device)
                        for _ in range(3))  # fmt: skip
    for columns, omega in zip(y.split(CHUNK, 1), random.split(CHUNK, 1), strict=True):
        a, b = columns.double(), omega.double()
        core += b @ a.T
        gram += a @ a.T
        norm += b @ b.T
    del random
    core, epsilon = (core + core.T) / 2, torch.finfo(like.dtype).eps
    shift = epsilon * float((gram.trace() / norm.trace()).sqrt())
    if not math.isfinite(shift) or not bool(core.isfinite().all()):
        raise DataError(
            f"products with the covariance of {len(like)} observations are not finite in "
            f"{str(like.dtype).removeprefix('torch.')}; look for errors of 0 or variances that are "
            "not finite, or compute in double precision"
        )
    if shift == 0:
        return lambda r: r  # nothing is known of what is observed
    # at the largest |λ|, √n of the root of their mean square at most, it is definite
    most = 10 * math.sqrt(len(like)) * shift / epsilon
    root, failed = torch.linalg.cholesky_ex(core + shift * norm)
    while failed and shift < most:
        shift *= 10
        root, failed = torch.linalg.cholesky_ex(core + shift * norm)
    if failed:
        raise DataError(
            f"products with the covariance of {len(like)} observations are not those of a matrix: "
            f"no shift up to {shift:.2g} makes it definite; estimate it again"
        )
    # Ω is not kept: of Y + νΩ, only Y is composed, which is the same but for ν
    half = torch.linalg.solve_triangular(root, gram + 2 * shift * core, upper=False)
    whole = torch.linalg.solve_triangular(root, half.mT, upper=False)
    values, vectors = torch.linalg.eigh((whole + whole.mT) / 2)
    keep = values > max(shift, KNOWN * epsilon ** (2 / 3) * float(values[-1]))
    values, vectors = values[keep], vectors[:, keep]
    if not len(values):
        return lambda r: r
    mix = torch.linalg.solve_triangular(root.mT, vectors / values.sqrt(), upper=True)
    mix = mix.T.to(like)
    scale = ((values[0] + 1) / (values + 1) - 1).to(like)
    basis = torch.empty(len(values), len(like), dtype=like.dtype, device=like.device)
    for columns, out in zip(y.split(CHUNK, 1), basis.split(CHUNK, 1), strict=True):
        out.copy_(mix @ columns)
    del y
    return lambda r: r + (scale * (r @ basis.T)) @ basis


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.vecdot(a.double(), b.double())
