r"""Denoisers known in closed form, as the package takes a trained one, and likelihoods for them.

A Gaussian prior of covariance :math:`C` has :math:`\mathbb{E}[z \mid z_t] = C (C + \sigma_t^2
I)^{-1} z_t`; a mixture of Gaussians has the mean of its components' means, weighted by what each
says of :math:`z_t`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn as nn
from torch import Tensor

from appa.diffusion.denoiser import less
from appa.diffusion.likelihood import probed_gain, probed_strength, twice_differentiated
from appa.diffusion.schedule import RectifiedSchedule

from .posteriors import Network
from .processes import Process

__all__ = [
    "GaussianDenoiser",
    "LinearLikelihood",
    "MixtureDenoiser",
    "NonlinearLikelihood",
    "dates",
]


class Analytic(nn.Module):
    r"""What a denoiser of windows of :math:`W` hours has beside its mean."""

    def __init__(self, window: int, shape: tuple[int, int, int], sigma_min: float = 1e-3):
        super().__init__()
        self.schedule = RectifiedSchedule(sigma_min)
        self.window, self.latent_shape = window, shape
        self.evaluations = 0  # how many windows were denoised
        self.understated = 0.0  # as a model may do to its network

    def forward(self, z_t: Tensor, sigma_t: Tensor | float, dates: Any) -> Tensor:
        self.evaluations += len(z_t)
        sigma_t = torch.as_tensor(sigma_t, dtype=z_t.dtype).expand(len(z_t))[:, None]
        sigma_t = less(sigma_t, self.understated)
        return self.flat_mean(z_t.flatten(1), sigma_t).view_as(z_t)

    def flat_mean(self, z_t: Tensor, sigma_t: Tensor) -> Tensor:
        raise TypeError("a denoiser has a mean")


class GaussianDenoiser(Analytic):
    r"""Of windows of a Gaussian process, each number a channel."""

    def __init__(self, process: Process, window: int = 24, sigma_min: float = 1e-3):
        super().__init__(window, (process.dims, 1, 1), sigma_min)
        values, vectors = np.linalg.eigh(process.covariance(window))
        self.values = nn.Parameter(torch.from_numpy(values.clip(min=0)), requires_grad=False)
        self.vectors = nn.Parameter(torch.from_numpy(vectors), requires_grad=False)

    def flat_mean(self, z_t: Tensor, sigma_t: Tensor) -> Tensor:
        return (z_t @ self.vectors * (self.values / (self.values + sigma_t**2))) @ self.vectors.T


class MixtureDenoiser(Analytic):
    r"""Of a mixture :math:`\sum_k w_k \, \mathcal{N}(m_k, s_k^2 I)` of windows of one hour.

    Arguments:
        weights: :math:`w_k`, with shape :math:`(K)`.
        means: :math:`m_k`, with shape :math:`(K, D)`.
        stds: :math:`s_k`, with shape :math:`(K)`.
    """

    def __init__(self, weights: np.ndarray, means: np.ndarray, stds: np.ndarray):
        super().__init__(1, (means.shape[1], 1, 1))
        self.weights, self.means, self.stds = (
            nn.Parameter(torch.from_numpy(np.asarray(a, dtype=float)), requires_grad=False)
            for a in (weights, means, stds)
        )

    def flat_mean(self, z_t: Tensor, sigma_t: Tensor) -> Tensor:
        var = self.stds**2 + sigma_t**2  # (B, K)
        away = z_t[:, None] - self.means  # (B, K, D)
        log = self.weights.log() - 0.5 * (away.square().sum(-1) / var + z_t.shape[1] * var.log())
        mean = self.means + (self.stds**2 / var)[..., None] * away
        return (torch.softmax(log, dim=1)[..., None] * mean).sum(1)


class LinearLikelihood:
    r"""Of :math:`y = A z + e`, with :math:`e \sim \mathcal{N}(0, R)`, in a window."""

    def __init__(self, a: np.ndarray, r: np.ndarray, y: np.ndarray):
        self.a, self.r, self.y = (torch.from_numpy(np.ascontiguousarray(m)) for m in (a, r, y))
        self.variance = torch.diagonal(self.r).clone()

    @classmethod
    def of(cls, network: Network) -> LinearLikelihood | None:
        r"""Of the observations of a window's hours, in units of their errors as the package has
        them; none where nothing was seen."""
        if not len(network):
            return None
        a, r, y = network.joint()
        std = np.sqrt(np.diag(r))
        return cls(a / std[:, None], r / std[:, None] / std, y / std)

    def departure(self, z: Tensor) -> Tensor:
        return self.y - z.flatten(1) @ self.a.T

    def linearize(self, z: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return self.departure(z), lambda w: w.flatten(1) @ self.a.T

    def whiten(self, v: Tensor, transposed: bool = False) -> Tensor:
        root = torch.linalg.cholesky(self.r)
        root = root.mT if transposed else root
        return torch.linalg.solve_triangular(root, v.mT, upper=transposed).mT

    def gain(self, z: Tensor) -> Tensor:
        return self.a.square().sum(dim=1)

    def strength(self, z: Tensor) -> Tensor:
        return self.whiten(self.a.mT).square().sum(dim=0).mean()

    def members(self, chosen: slice) -> LinearLikelihood:
        return self


class NonlinearLikelihood:
    r"""Of :math:`y = f(z) + e` with independent errors, in a window."""

    def __init__(self, function: Any, y: np.ndarray, std: float):
        self.function, self.y = function, torch.from_numpy(np.asarray(y, dtype=float))
        self.variance = torch.full_like(self.y, std**2)
        self.curved = torch.ones_like(self.y, dtype=torch.bool)

    def departure(self, z: Tensor) -> Tensor:
        return self.y - self.function(z.flatten(1))

    def linearize(self, z: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return twice_differentiated(self.departure, z)

    def whiten(self, v: Tensor, transposed: bool = False) -> Tensor:
        return v / self.variance.sqrt()

    def gain(self, z: Tensor) -> Tensor:
        return probed_gain(self, z)

    def strength(self, z: Tensor) -> Tensor:
        return probed_strength(self, z)

    def members(self, chosen: slice) -> NonlinearLikelihood:
        return self


def dates(hours: int) -> np.ndarray:
    r"""Hours, which these denoisers do not look at."""
    return np.datetime64("2021-03-21T00") + np.arange(hours)
