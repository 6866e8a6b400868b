r"""Moment-matching posterior sampling (MMPS; Rozet et al., 2024).

Given :math:`z_t`, windows are taken for Gaussian with the denoiser's mean and, by Tweedie's
formula, the covariance :math:`V = \sigma_t^2 \, \nabla d(z_t)^\top`. Then

.. math::
    \mathbb{E}[z \mid z_t, y] \approx \hat{z} + V A^\top
    (\Sigma_y + A V A^\top)^{-1} (y - \mathcal{A}(\hat{z})), \qquad \hat{z} = d(z_t) ,

which is exact where the prior is Gaussian and :math:`\mathcal{A}` linear. The system is solved by
products alone. Of a trained network :math:`V` is not quite symmetric, as GMRES allows.
(:class:`azula.guidance.MMPSDenoiser` is the same for a fixed number of iterations, and computes
:math:`\mathcal{A}(\hat{z})` once more for every product.)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..likelihood import Likelihood
from ..solvers import SOLVERS
from .linear import Linearized

__all__ = ["MMPS", "Guidance"]


class Guidance:
    r"""What bends the denoiser's mean towards observations.

    Arguments:
        solver: The solver of linear systems, `gmres` or `cg`.
        iterations: Its largest number of iterations.
        tolerance: The relative residual at which it stops.
    """

    def __init__(self, solver: str = "gmres", iterations: int = 2, tolerance: float = 0.0):
        if solver not in SOLVERS:
            raise ValueError(f"unknown solver {solver!r}; there are {', '.join(SOLVERS)}")
        self.solver, self.iterations, self.tolerance = solver, iterations, tolerance
        #: The largest relative residual a solve was left with, and the number of products.
        self.residual, self.products = 0.0, 0

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

    def solve(self, A: Callable[[Tensor], Tensor], b: Tensor) -> Tensor:
        r"""Solves :math:`A v = b`, and remembers the residual."""
        x, residual, iterations = SOLVERS[self.solver](A, b, self.iterations, self.tolerance)
        self.residual = max(self.residual, residual.max().item())
        self.products += iterations
        return x


class MMPS(Guidance):
    r"""Creates MMPS, see :class:`Guidance`."""

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

        v = self.solve(observed.covariance(cov_z), observed.departure)
        return mean.detach() + cov_z(observed.At(v))
