r"""Gradients out of proportion, whose updates are left out.

Once in many thousand updates a gradient is many times as large as others. A step along it, even
clipped, may take latents to where they saturate and gradients vanish, and what was learned does not
come back. With :math:`n` the norm of the gradients before they are clipped, and :math:`\bar n` its
running mean, an update is left out where :math:`n > k \, \bar n`: weights and the optimiser's
moments stay as they are. The mean moves by

.. math:: \bar n \leftarrow \bar n + (1 - \beta_s) \left( \min(n, k \, \bar n) - \bar n \right) ,
    \qquad \beta_s = \min\left(\beta, \frac{s}{s + 10}\right) ,

so that a spike hardly changes it, while gradients that stay large become the usual ones: it grows
by :math:`1 + (1 - \beta)(k - 1)` an update, and no training is stuck. While networks find their
first shape, norms change by orders of magnitude, and none is left out.

All of it stays on the device: the host need not wait, and a CUDA graph can hold it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["Spikes"]

BETA = 0.98
FREE = 100  # updates at first of which none is left out


class Spikes:
    r"""Watches the norm of gradients.

    Arguments:
        factor: How many times the running mean is too much, :math:`k`.
        device: Where norms are.
    """

    def __init__(self, factor: float, device: torch.device):
        self.factor = factor
        #: The running mean, the norms seen, and the updates left out, each with shape :math:`()`.
        self.mean, self.seen, self.left_out = (torch.zeros((), device=device) for _ in range(3))

    @torch.no_grad()
    def __call__(self, norm: Tensor) -> Tensor:
        r"""Takes a norm into account.

        Arguments:
            norm: The norm of the gradients, with shape :math:`()`.

        Returns:
            Whether the update is to be left out, a boolean with shape :math:`()`. A norm that is
            not finite is no spike: it is an error, or how half precision finds its scale.
        """
        norm = norm.to(self.mean)
        finite = torch.isfinite(norm)
        free, bound = self.seen < FREE, self.factor * self.mean
        spike = finite & (norm > bound) & ~free
        weight = 1 - torch.clamp(self.seen / (self.seen + 10), max=BETA)
        told = torch.where(free, norm, torch.minimum(norm, bound))
        moved = self.mean + weight * (told - self.mean)
        self.mean.copy_(torch.where(finite, moved, self.mean))
        self.seen.add_(finite)
        self.left_out.add_(spike)
        return spike

    def state_dict(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "seen": self.seen, "left_out": self.left_out}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name, value in self.state_dict().items():
            value.copy_(state[name])
