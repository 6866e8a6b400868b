r"""Stationary Gaussian vectors in time, given their correlations at a few lags.

With :math:`R_l = \mathbb{E}[x_{t+l} \, x_t^*]`, :math:`R_0 = I` and :math:`R_1, \dots, R_p` given,
the process of largest entropy is the autoregression of order :math:`p`,

.. math:: x_t = \sum_{j=1}^{p} A_j \, x_{t-j} + Q \, \xi_t , \qquad \xi_t \sim \mathcal{N}(0, I) ,

whose correlations are exactly the given ones up to lag :math:`p` and decay by its dynamics beyond.
All of it follows from one Cholesky factor :math:`L` of the block-Toeplitz matrix :math:`T` of
:math:`p + 1` hours: :math:`L` itself makes the first of them out of white noise, its last rows
:math:`A` and :math:`Q`. There is a process only if :math:`T` is positive definite, which measured
correlations need not be: each :math:`R_l` is then divided by :math:`1 + \epsilon`, with the least
:math:`\epsilon` that makes it so. That is to add a little white noise, and keeps it Toeplitz.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Autoregression"]

FLOOR = 1e-4  # the least eigenvalue of T


class Autoregression:
    r"""The white noise :math:`\xi` of a process to its values :math:`x = G \xi`, and back.

    Arguments:
        lags: The correlations :math:`R_1, \dots, R_p`, with shape :math:`(p, *, K, K)`, real or
            complex; :math:`p = 0` for white noise.
    """

    def __init__(self, lags: Tensor):
        self.order, k = len(lags), lags.shape[-1]
        here = torch.eye(k, dtype=lags.dtype, device=lags.device).expand(lags.shape[1:])
        toeplitz = torch.cat(
            [
                torch.cat(
                    [
                        here if i == j else lags[i - j - 1] if i > j else lags[j - i - 1].mH
                        for j in range(self.order + 1)
                    ],
                    dim=-1,
                )
                for i in range(self.order + 1)
            ],
            dim=-2,
        )
        least = torch.linalg.eigvalsh(toeplitz)[..., 0]
        #: The :math:`\epsilon` of each process, with shape :math:`(*)`.
        self.ridge = ((FLOOR - least) / (1 - FLOOR)).clip(min=0)
        ridge = self.ridge[..., None, None]
        eye = torch.eye(toeplitz.shape[-1], dtype=lags.dtype, device=lags.device)
        self.factor = torch.linalg.cholesky((toeplitz + ridge * eye) / (1 + ridge))
        n = self.order * k
        first, last = self.factor[..., :n, :n], self.factor[..., n:, :n]
        self.noise = self.factor[..., n:, n:]
        # in order of time, from t - p to t - 1
        self.weights = torch.linalg.solve_triangular(first, last, upper=False, left=False)

    def to(self, dtype: torch.dtype) -> Autoregression:
        r"""Products in another precision from now on."""
        self.factor, self.noise = self.factor.to(dtype), self.noise.to(dtype)
        self.weights = self.weights.to(dtype)
        return self

    def __call__(self, xi: Tensor) -> Tensor:
        r"""The products :math:`G \xi`, with shape :math:`(*, T, K, B)` as :math:`\xi`."""
        hours, k = xi.shape[-3:-1]
        head = min(hours, self.order + 1)
        factor = self.factor[..., : head * k, : head * k]
        x = torch.empty_like(xi)
        begun = factor @ xi[..., :head, :, :].flatten(-3, -2)
        x[..., :head, :, :] = begun.unflatten(-2, (head, k))
        for t in range(head, hours):
            x[..., t, :, :] = self.noise @ xi[..., t, :, :]
            if self.order:
                past = x[..., t - self.order : t, :, :].flatten(-3, -2)
                x[..., t, :, :] += self.weights @ past
        return x

    def adjoint(self, x: Tensor) -> Tensor:
        r"""The products :math:`G^* x`, with shape :math:`(*, T, K, B)` as :math:`x`."""
        hours, k = x.shape[-3:-1]
        head = min(hours, self.order + 1)
        x, xi = x.clone(), torch.empty_like(x)
        for t in range(hours - 1, head - 1, -1):
            xi[..., t, :, :] = self.noise.mH @ x[..., t, :, :]
            if self.order:
                past = self.weights.mH @ x[..., t, :, :]
                x[..., t - self.order : t, :, :] += past.unflatten(-2, (self.order, k))
        factor = self.factor[..., : head * k, : head * k]
        begun = factor.mH @ x[..., :head, :, :].flatten(-3, -2)
        xi[..., :head, :, :] = begun.unflatten(-2, (head, k))
        return xi
