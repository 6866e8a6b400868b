r"""What guidances have in common.

Guidance bends the denoiser's mean :math:`\hat{z} = d(z_t)` towards observations, with
:math:`\mathcal{A}` linearized around it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...solvers import SOLVERS
from ..likelihood import HoursLikelihood, Likelihood, StackedLikelihood
from .linear import Linearized

__all__ = ["CLOSE", "Gradient", "Guidance"]

CLOSE = 0.1
MUCH = 30.0  # noise, from where on a solve need not be as exact


class Guidance:
    r"""What bends the denoiser's mean towards observations.

    Arguments:
        solver: The solver of linear systems, `gmres` or `cg`.
        iterations: Its largest number of iterations.
        tolerance: The relative residual at which it stops, where there is not much noise.
        early: The largest number of iterations where there is, by default as many.
    """

    def __init__(
        self,
        solver: str = "gmres",
        iterations: int = 2,
        tolerance: float = 0.0,
        early: int | None = None,
    ):
        if solver not in SOLVERS:
            raise ValueError(f"unknown solver {solver!r}; there are {', '.join(SOLVERS)}")
        self.solver, self.iterations, self.tolerance = solver, iterations, tolerance
        self.early = iterations if early is None else min(early, iterations)
        self.forget()

    def forget(self) -> None:
        r"""Begins to count anew."""
        #: The largest relative residual a solve was left with, the largest at noise levels up to
        #: :data:`CLOSE`, where it is decided how observations fit, and the number of products.
        self.residual, self.misfit, self.products = 0.0, 0.0, 0

    def recall(self, counts: Sequence[float]) -> None:
        r"""Goes on from what was counted before: residual, misfit and products, none of which grows
        less."""
        residual, misfit, products = counts
        self.residual, self.misfit = max(self.residual, residual), max(self.misfit, misfit)
        self.products = max(self.products, int(products))

    def __call__(
        self,
        denoise: Callable[[Tensor], Tensor],
        z_t: Tensor,
        sigma_t: Tensor | float,
        likelihood: Likelihood,
    ) -> Tensor:
        r"""
        Arguments:
            denoise: The denoiser at :math:`\sigma_t`, from :math:`z_t` to :math:`d(z_t)`.
            z_t: Noisy windows, with shape :math:`(B, W, C, H, W')`.
            sigma_t: Their noise level.
            likelihood: The observations of these windows.

        Returns:
            The means :math:`\mathbb{E}[z \mid z_t, y]`, with the shape of `z_t`.
        """
        raise NotImplementedError

    def most(self, sigma_t: Tensor | float) -> int:
        r"""The largest number of iterations at a noise level, with observations."""
        return self.iterations if float(sigma_t) <= MUCH else self.early

    def solve(
        self,
        observed: Linearized,
        sigma_t: Tensor,
        cov_z: Callable[[Tensor], Tensor],
        departure: Tensor,
    ) -> Tensor:
        r"""The correction :math:`V A^\top v` with :math:`(\Sigma_y + A V A^\top) \, v` the
        departure, a sum of products that the solver asks for anyway. Remembers the residual.

        With :math:`\Sigma_y = L L^\top` the system is solved for :math:`L^\top v`, as
        :math:`I + L^{-1} A V A^\top L^{-\top}`. What little noise leaves to correct is near the
        identity then, and takes a few iterations, however different the errors are: precipitation
        is represented thirty times worse than its gauges measure, pressure twice.

        Hours that are given are a hundred times sharper than observations, and a solver that is
        content with few iterations, or a residual, would fit these alone: kinds are balanced
        (:meth:`~appa.diffusion.likelihood.StackedLikelihood.balance`), by the variance that remains
        of standardized, independent latents. (On the planet, the last hour of a window given the
        four before it and observations was 44 % worse after 4 iterations without.)

        What a solve leaves undone while there is much noise is corrected by later ones, and noise
        hides it meanwhile: the tolerance grows with it, as :math:`\epsilon \max(1, \sigma_t / 30)`.
        In exact cases that saves a tenth of the products and changes nothing else. (From 10 on it
        would save a fifth, and rounding would grow to more than batches may differ by.)

        For the same reason iterations may be few there (`early`): in exact cases that saves a fifth
        to a quarter of the products, and moments stay within a percent. Hours that are given alone,
        as to forecasts, take no decoding, and all iterations.
        """
        b = observed.likelihood.whiten(departure)
        solver, product = SOLVERS[self.solver], observed.whitened(cov_z)
        if isinstance(observed.likelihood, StackedLikelihood):
            remains = float(sigma_t**2 / (sigma_t**2 + 1))
            scale = observed.likelihood.balance(observed.z.detach()[:1], remains)
            b, product = scale * b, _scaled(product, scale)
        tolerance = self.tolerance * max(1.0, float(sigma_t) / MUCH)
        alone = isinstance(observed.likelihood, HoursLikelihood)
        most = self.iterations if alone else self.most(sigma_t)
        _, residual, iterations, correction = solver(product, b, most, tolerance)
        left = torch.nan_to_num(residual, nan=math.inf).max().item()
        self.residual, self.products = max(self.residual, left), self.products + iterations
        if float(sigma_t) <= CLOSE:
            self.misfit = max(self.misfit, left)
        assert correction is not None  # the products are pairs
        return correction


def _scaled(
    product: Callable[[Tensor], tuple[Tensor, Tensor]], scale: Tensor
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    r"""The products with :math:`S A S`, a diagonal :math:`S`, and those of another matrix with
    :math:`S`."""

    def both(u: Tensor) -> tuple[Tensor, Tensor]:
        w, image = product(scale * u)
        return scale * w, image

    return both


class Gradient(Guidance):
    r"""Guidances :math:`\hat{z} + V A^\top v` along the gradient through the denoiser, :math:`V =
    \sigma_t^2 \, \nabla d(z_t)^\top`, each with a :math:`v` of its own."""

    def __call__(
        self,
        denoise: Callable[[Tensor], Tensor],
        z_t: Tensor,
        sigma_t: Tensor | float,
        likelihood: Likelihood,
    ) -> Tensor:
        with torch.enable_grad():
            z_t = z_t.detach().requires_grad_()
            mean = denoise(z_t)
        observed = Linearized(likelihood, mean)

        def cov_z(v: Tensor) -> Tensor:
            return sigma_t**2 * torch.autograd.grad(mean, z_t, v, retain_graph=True)[0]

        sigma = torch.as_tensor(sigma_t, dtype=z_t.dtype, device=z_t.device)
        return mean.detach() + self.correct(observed, sigma, cov_z)

    def correct(
        self, observed: Linearized, sigma_t: Tensor, cov_z: Callable[[Tensor], Tensor]
    ) -> Tensor:
        r"""The correction :math:`V A^\top v`, with the shape of the windows."""
        return cov_z(observed.At(self.weigh(observed, sigma_t, cov_z)))

    def weigh(
        self, observed: Linearized, sigma_t: Tensor, cov_z: Callable[[Tensor], Tensor]
    ) -> Tensor:
        r"""The vector :math:`v`, with shape :math:`(B, N)`."""
        raise NotImplementedError
