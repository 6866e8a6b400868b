r"""Moment-matching posterior sampling (MMPS; Rozet et al., 2024).

Given :math:`z_t`, windows are taken for Gaussian with the denoiser's mean and, by Tweedie's
formula, the covariance :math:`V = \sigma_t^2 \, \nabla d(z_t)^\top`. Then

.. math::
    \mathbb{E}[z \mid z_t, y] \approx \hat{z} + V A^\top
    (\Sigma_y + A V A^\top)^{-1} (y - \mathcal{A}(\hat{z})), \qquad \hat{z} = d(z_t) ,

which is exact where the prior is Gaussian and :math:`\mathcal{A}` linear. The system is solved by
products alone. Of a trained network :math:`V` is not quite symmetric, as GMRES allows.

Where :math:`\mathcal{A}` is strongly curved (:math:`z^2`, :math:`|z|`) and the prior has several
modes, :math:`\mathcal{A}(\hat{z})` is not what to expect of :math:`\mathcal{A}(z)`, and the modes
get wrong weights. With *probes*, its second order is added,

.. math:: \mathbb{E}[\mathcal{A}(z) \mid z_t] \approx \mathcal{A}(\hat{z}) + \frac{1}{2}
    \operatorname{tr}(\nabla^2 \! \mathcal{A}(\hat{z}) \, V) ,

the trace estimated with random signs: one product with :math:`V` and four evaluations of
:math:`\mathcal{A}` each. It vanishes for linear operators. Of many latents the estimate is as
uncertain as it is large; signs are others at every noise level, so that its errors cancel along the
way rather than add up.
(:class:`azula.guidance.MMPSDenoiser` is the same for a fixed number of iterations, and computes
:math:`\mathcal{A}(\hat{z})` once more for every product.)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..likelihood import Likelihood
from .base import Gradient

__all__ = ["MMPS", "PROBES"]

PROBES = 2  # of observables that are curved, unless said otherwise


class MMPS(Gradient):
    r"""Creates MMPS.

    Arguments:
        probes: The number of probes of the curvature of :math:`\mathcal{A}`. By default
            :data:`PROBES`, of those observations alone that a likelihood says are `curved`, and
            none where none is.
        kwargs: Arguments of :class:`Guidance`.
    """

    def __init__(self, probes: int | None = None, **kwargs):
        super().__init__(**kwargs)
        self.probes = probes

    def correct(self, observed, sigma_t, cov_z):
        departure, likelihood, probes = observed.departure, observed.likelihood, self.probes
        chosen = torch.ones_like(departure[0])
        if probes is None:
            curved = getattr(likelihood, "curved", None)
            probes, chosen = (0, chosen) if curved is None else (PROBES, curved)
        level = round(100 * math.log(float(sigma_t))) if probes else 0
        for probe in range(probes):
            bend = curvature(likelihood, observed.z.detach(), cov_z, (level, probe))
            departure = departure + chosen * bend / probes
        return self.solve(observed, sigma_t, cov_z, departure)


@torch.no_grad()
def curvature(
    likelihood: Likelihood, z: Tensor, cov_z: Callable[[Tensor], Tensor], probe: tuple[int, int]
) -> Tensor:
    r"""Half the trace of :math:`-\nabla^2 \! \mathcal{A} \, V`, estimated with one probe.

    With signs :math:`u` and :math:`w = V u`, :math:`u^\top \nabla^2 \! \mathcal{A} \, w` is a
    difference of second differences along :math:`a u \pm w / a`, of like size by the choice of
    :math:`a`.

    Arguments:
        likelihood: The likelihood.
        z: Windows :math:`\hat{z}`, with shape :math:`(B, W, C, H, W')`.
        cov_z: The products with :math:`V`.
        probe: The numbers of the noise level and of the probe, which give the signs.

    Returns:
        What to add to departures, with shape :math:`(B, N)`.
    """
    level, number = probe
    generator = torch.Generator().manual_seed(2**20 * number + 2**19 + level)
    u = torch.randint(0, 2, z.shape[1:], generator=generator).to(z) * 2 - 1
    u = u.expand_as(z)
    w = cov_z(u)
    small = torch.finfo(z.dtype).tiny
    size = w.flatten(1).norm(dim=1).clip(min=small) / u.flatten(1).norm(dim=1)
    a = size.sqrt().view(-1, *[1] * (z.ndim - 1))
    p, m = (a * u + w / a) / 2, (a * u - w / a) / 2
    d = likelihood.departure
    return (d(z + p) + d(z - p) - d(z + m) - d(z - m)) / 2
