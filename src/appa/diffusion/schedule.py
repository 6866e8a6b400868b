r"""The noise schedule, and grids of noise levels.

Diffusion is variance exploding, :math:`z_t = z + \sigma_t \, \epsilon`. The rectified schedule
takes the quotient of noise and signal of a straight path between both,

.. math:: \sigma_t = \frac{t + (1 - t) \, \sigma_\min}{t \, (1 / \sigma_\max - 1) + 1} ,

so that times drawn evenly in :math:`[0, 1]` are densest, in :math:`\log \sigma`, around
:math:`\sigma = 1`.
"""

from __future__ import annotations

import azula.noise
import torch
from torch import Tensor

__all__ = ["RectifiedSchedule"]


class RectifiedSchedule(azula.noise.Schedule):
    r"""Creates a rectified, variance exploding schedule.

    :class:`azula.noise.RectifiedSchedule` scales the signal as well; this one is its quotient
    :math:`\sigma_t / \alpha_t` with :math:`\alpha_t = 1`.

    Arguments:
        sigma_min: The noise level :math:`\sigma_\min` at :math:`t = 0`.
        sigma_max: The noise level :math:`\sigma_\max` at :math:`t = 1`.
    """

    def __init__(self, sigma_min: float = 1e-3, sigma_max: float = 1e3):
        self.sigma_min, self.sigma_max = sigma_min, sigma_max

    def __call__(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones_like(t), self.sigma(t)

    def sigma(self, t: Tensor) -> Tensor:
        r"""The noise level :math:`\sigma_t`, with the shape of :math:`t`."""
        return (t + (1 - t) * self.sigma_min) / (t * (1 / self.sigma_max - 1) + 1)

    def time(self, sigma: Tensor) -> Tensor:
        r"""The time :math:`t` of a noise level, the inverse of :meth:`sigma`."""
        return (sigma - self.sigma_min) / (1 - self.sigma_min + sigma * (1 - 1 / self.sigma_max))
