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
uncertain as it is large. Signs are others at every noise level, so that its errors cancel along the
way rather than add up, and others of every member, so that what is left is no error of the mean
over members. They are a member's own by its number, if the likelihood tells
(:class:`~appa.diffusion.likelihood.NumberedLikelihood`), and by its place in the batch otherwise.
(:class:`azula.guidance.MMPSDenoiser` is the same for a fixed number of iterations, and computes
:math:`\mathcal{A}(\hat{z})` once more for every product.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ..likelihood import Likelihood
from .base import Gradient

__all__ = ["MMPS", "PROBES", "SMALL", "probed"]

PROBES = 2  # of observables that are curved, unless said otherwise

#: The noise level below which nothing is probed. Since :math:`V \leq \sigma_t^2`, the second order
#: is at most :math:`10^{-4}` of what it is in the prior. Of a wind of 5 m/s with a standard
#: deviation of 4 m/s that is :math:`2 \cdot 10^{-4}` m/s, where speeds are measured to 0.5 m/s, and
#: differences of decodings in half precision, of which it is computed, are rounding only.
SMALL = 0.01


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
        chosen = torch.ones_like(departure[0], dtype=torch.bool)
        if probes is None:
            curved = getattr(likelihood, "curved", None)
            probes, chosen = (0, chosen) if curved is None else (PROBES, curved)
        if probes and probed(float(sigma_t)):
            z, level = observed.z.detach(), round(100 * math.log(float(sigma_t)))
            numbers = getattr(likelihood, "numbers", None) or range(len(z))
            for probe in range(probes):
                bend = curvature(likelihood, cov_z, z, signs(z, numbers, level, probe))
                # a probe may leave where an observable is defined, and then tells nothing
                told = chosen & bend.isfinite()
                departure = torch.where(told, departure + bend / probes, departure)
        return self.solve(observed, sigma_t, cov_z, departure)


def probed(sigma_t: float) -> bool:
    r"""Whether curvature is probed at a noise level."""
    return sigma_t >= SMALL


def signs(z: Tensor, numbers: Sequence[int], level: int, probe: int) -> Tensor:
    r"""Random signs with the shape of windows, each member's own.

    Arguments:
        z: Windows, with shape :math:`(B, W, C, H, W')`.
        numbers: The numbers of the members, with shape :math:`(B)`.
        level: The number of the noise level.
        probe: The number of the probe.
    """
    sequence = np.random.SeedSequence([2**19 + level, probe])
    common = int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
    generator, found = torch.Generator(), []
    for number in numbers:
        generator.manual_seed(number ^ common)
        found.append(torch.randint(0, 2, z.shape[1:], generator=generator, dtype=torch.int8))
    return torch.stack(found).to(z) * 2 - 1


@torch.no_grad()
def curvature(
    likelihood: Likelihood, cov_z: Callable[[Tensor], Tensor], z: Tensor, u: Tensor
) -> Tensor:
    r"""Half the trace of :math:`-\nabla^2 \! \mathcal{A} \, V`, estimated with one probe.

    With signs :math:`u` and :math:`w = V u`, :math:`u^\top \nabla^2 \! \mathcal{A} \, w` is a
    difference of second differences along :math:`a u \pm w / a`, of like size by the choice of
    :math:`a`.

    Arguments:
        likelihood: The likelihood.
        cov_z: The products with :math:`V`.
        z: Windows :math:`\hat{z}`, with shape :math:`(B, W, C, H, W')`.
        u: The signs, likewise.

    Returns:
        What to add to departures, with shape :math:`(B, N)`.
    """
    w = cov_z(u)
    small = torch.finfo(z.dtype).tiny
    size = w.flatten(1).norm(dim=1).clip(min=small) / u.flatten(1).norm(dim=1)
    a = size.sqrt().view(-1, *[1] * (z.ndim - 1))
    p, m = (a * u + w / a) / 2, (a * u - w / a) / 2
    d = likelihood.departure
    return (d(z + p) + d(z - p) - d(z + m) - d(z - m)) / 2
