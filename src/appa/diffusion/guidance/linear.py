r"""The observation operator at a window, linearized once.

With :math:`A` the Jacobian of :math:`\mathcal{A}` at :math:`\hat{z}`, products
:math:`A^\top u` are a backward pass through the departures, and products :math:`A w` are the
likelihood's own: neither computes :math:`\mathcal{A}(\hat{z})` again.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..likelihood import Likelihood

__all__ = ["Linearized"]


class Linearized:
    r"""Linearizes observations around windows.

    Arguments:
        likelihood: The likelihood.
        z: The windows :math:`\hat{z}`, with shape :math:`(B, W, C, H, W')`.
    """

    def __init__(self, likelihood: Likelihood, z: Tensor):
        self.likelihood = likelihood
        with torch.enable_grad():
            self.z = z.detach().requires_grad_()
            self._departure, self._product = likelihood.linearize(self.z)
        #: The departures :math:`y - \mathcal{A}(\hat{z})`, with shape :math:`(B, N)`.
        self.departure = self._departure.detach()

    def At(self, u: Tensor) -> Tensor:
        r"""The products :math:`A^\top u`, with the shape of the windows."""
        return torch.autograd.grad(self._departure, self.z, -u, retain_graph=True)[0]

    @torch.no_grad()
    def A(self, w: Tensor) -> Tensor:
        r"""The products :math:`A w`, with shape :math:`(B, N)`."""
        return self._product(w)

    def whitened(
        self, cov_z: Callable[[Tensor], Tensor]
    ) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        r"""The products with :math:`I + L^{-1} A V A^\top L^{-\top}`, and those with
        :math:`V A^\top L^{-\top}`, given those with :math:`V`."""
        whiten = self.likelihood.whiten

        def product(u: Tensor) -> tuple[Tensor, Tensor]:
            w = cov_z(self.At(whiten(u, True)))
            return u + whiten(self.A(w)), w

        return product
