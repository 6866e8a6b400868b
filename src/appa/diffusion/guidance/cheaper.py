r"""Cheaper guidances, each with another guess at :math:`V = \mathbb{V}[z \mid z_t]`.

=========== ============================================================ =======================
name        what it takes for the covariance of the observations         Jacobian of the denoiser
=========== ============================================================ =======================
`sda`       diagonal: :math:`\Sigma_y + \gamma \, v_t \,                 once
            \operatorname{diag}(A A^\top)`
`tmpd`      diagonal: :math:`\Sigma_y + A V A^\top \mathbf{1}`           twice
`pgdm`      :math:`\Sigma_y + v_t A A^\top`                              once
`jfps`      :math:`\Sigma_y + v_t A A^\top`                              never
`diffpir`   :math:`\Sigma_y + (\sigma_t^2 / \lambda) A A^\top`           never
`dps`       none: a step of fixed length along the gradient              once
=========== ============================================================ =======================

with :math:`v_t = \sigma_t^2 / (\sigma_t^2 + 1)`, the variance that remains of standardized,
independent latents. On Gaussian priors with correlations none of them is right: see
`tests/exact/README.md`. (Of :mod:`azula.guidance`, RePaint is not among them, which knows
observations of latents themselves alone, nor TDS, whose members would depend on each other.)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..likelihood import Likelihood
from .base import Gradient, Guidance
from .linear import Linearized

__all__ = ["DPS", "JFPS", "PGDM", "SDA", "TMPD", "DiffPIR"]


class SDA(Gradient):
    r"""Score-based data assimilation (Rozet and Louppe, 2023): a diagonal :math:`\gamma \, v_t`.

    In place of a variance to be set for each kind of observation, :math:`\operatorname{diag}(A
    A^\top)` is estimated, at :math:`z = 0`.

    Arguments:
        gamma: The factor :math:`\gamma`.
        kwargs: Arguments of :class:`Guidance`, not used.
    """

    def __init__(self, gamma: float = 1.0, **kwargs):
        super().__init__(**kwargs)
        self.gamma = gamma

    def weigh(self, observed, sigma_t, cov_z):
        likelihood = observed.likelihood
        v_t = sigma_t**2 / (sigma_t**2 + 1)
        gain = likelihood.gain(observed.z[:1])
        return observed.departure / (likelihood.variance + self.gamma * v_t * gain)


class TMPD(Gradient):
    r"""Tweedie moment projected diffusion (Boys et al., 2023): the rows of :math:`A V A^\top` are
    summed to its diagonal."""

    def weigh(self, observed, sigma_t, cov_z):
        ones = torch.ones_like(observed.departure)
        variance = observed.A(cov_z(observed.At(ones))).clip(min=0)
        return observed.departure / (observed.likelihood.variance + variance)


class PGDM(Gradient):
    r"""Pseudoinverse-guided diffusion (Song et al., 2023): :math:`v` with :math:`v_t I` for
    :math:`V`, and the correction :math:`V A^\top v` with the denoiser's own."""

    def correct(self, observed, sigma_t, cov_z):
        v_t = sigma_t**2 / (sigma_t**2 + 1)
        along = self.solve(observed, sigma_t, lambda w: v_t * w, observed.departure)
        return cov_z(along / v_t)


class DPS(Gradient):
    r"""Diffusion posterior sampling (Chung et al., 2022): a step of fixed length.

    .. math:: \hat{z} - \zeta \, \sigma_t^2 \, \nabla_{z_t} \|y - \mathcal{A}(d(z_t))\|_{\Sigma_y}

    with the variances of :math:`\Sigma_y`; scaled with :math:`\sigma_t^2`, it is the same whatever
    the sampler.

    Arguments:
        zeta: The strength :math:`\zeta`.
        kwargs: Arguments of :class:`Guidance`, not used.
    """

    def __init__(self, zeta: float = 1.0, **kwargs):
        super().__init__(**kwargs)
        self.zeta = zeta

    def weigh(self, observed, sigma_t, cov_z):
        v = observed.departure / observed.likelihood.variance
        norm = torch.linalg.vecdot(observed.departure, v).sqrt()[:, None]
        return self.zeta * v / norm.clip(min=torch.finfo(v.dtype).tiny)


class Isotropic(Guidance):
    r"""Guidances that take :math:`V` for a multiple of the identity, and need no gradient through
    the denoiser."""

    def __call__(
        self,
        denoise: Callable[[Tensor], Tensor],
        z_t: Tensor,
        sigma_t: Tensor | float,
        likelihood: Likelihood,
    ) -> Tensor:
        with torch.no_grad():
            mean = denoise(z_t)
        observed = Linearized(likelihood, mean)
        sigma_t = torch.as_tensor(sigma_t, dtype=z_t.dtype, device=z_t.device)
        v_t = self.spread(sigma_t)
        return mean + self.solve(observed, sigma_t, lambda w: v_t * w, observed.departure)

    def spread(self, sigma_t: Tensor) -> Tensor:
        r"""The variance of :math:`V`."""
        raise NotImplementedError


class JFPS(Isotropic):
    r"""Jacobian-free posterior sampling: :math:`V = v_t \, I`."""

    def spread(self, sigma_t: Tensor) -> Tensor:
        return sigma_t**2 / (sigma_t**2 + 1)


class DiffPIR(Isotropic):
    r"""Diffusion plug-and-play restoration (Zhu et al., 2023): :math:`V = \sigma_t^2 / \lambda`.

    Arguments:
        lmbda: The strength :math:`\lambda` of the prior.
        kwargs: Arguments of :class:`Guidance`.
    """

    def __init__(self, lmbda: float = 10.0, **kwargs):
        super().__init__(**kwargs)
        self.lmbda = lmbda

    def spread(self, sigma_t: Tensor) -> Tensor:
        return sigma_t**2 / self.lmbda
