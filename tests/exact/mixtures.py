r"""A mixture of Gaussians seen through a non-linear observable, by numerical integration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from appa.diffusion.guidance import Guidance
from appa.diffusion.sampling import Sampler

from .drawing import converged, draw, many_steps
from .priors import GaussianDenoiser, MixtureDenoiser, NonlinearLikelihood
from .processes import ar1

__all__ = ["MIXTURES", "Mixture", "Speed"]


@dataclass
class Mixture:
    r"""A prior :math:`\sum_k w_k \, \mathcal{N}(m_k, s_k^2 I)` and an observation :math:`y = f(z)
    + e` of it.

    The modes are halves of the line, or quadrants of the plane, of :math:`z`.
    """

    weights: np.ndarray
    means: np.ndarray
    stds: np.ndarray
    function: Callable[[Any], Any]  #: of (n, D) to (n, N), tensors
    y: np.ndarray
    error: float

    def modes(self, z: np.ndarray) -> np.ndarray:
        r"""The number of the mode each point is of."""
        return ((z > 0) * 2 ** np.arange(z.shape[1])).sum(axis=1)

    def posterior(self, reach: float = 4.0, points: int = 801) -> np.ndarray:
        r"""The exact weights of the modes, summed over an even grid."""
        dims = self.means.shape[1]
        axis = np.linspace(-reach, reach, points if dims > 1 else 20001)
        z = np.stack(np.meshgrid(*[axis] * dims, indexing="ij"), axis=-1).reshape(-1, dims)
        square = ((z[:, None] - self.means) ** 2).sum(axis=2)
        prior = (self.weights * np.exp(-0.5 * square / self.stds**2) / self.stds**dims).sum(axis=1)
        seen = self.function(torch.from_numpy(z)).numpy()
        density = prior * np.exp(-0.5 * (((self.y - seen) / self.error) ** 2).sum(axis=1))
        mass = np.bincount(self.modes(z), density, minlength=2**dims)
        return mass / mass.sum()

    def draws(
        self, count: int, sampler: Sampler | None = None, guidance: Guidance | None = None
    ) -> np.ndarray:
        r"""Draws of the package, with shape :math:`(B, D)`."""
        dims = self.means.shape[1]
        denoiser = MixtureDenoiser(self.weights, self.means, self.stds)
        likelihood = NonlinearLikelihood(self.function, self.y, self.error)
        s = sampler or many_steps()
        noises = 1 + (s.steps * s.corrections if "corrector" in s.name else 0)
        noise = np.random.default_rng(0).standard_normal((count, noises * dims))
        return draw(denoiser, [likelihood], noise, 1, 1, s, guidance or converged())

    def drawn(self, count: int, **kwargs: Any) -> np.ndarray:
        r"""The shares of the modes among draws."""
        modes = self.modes(self.draws(count, **kwargs))
        return np.bincount(modes, minlength=2 ** self.means.shape[1]) / count


def square(z: Any) -> Any:
    return z**2


def radius(z: Any) -> Any:
    return z.norm(dim=1, keepdim=True)


MIXTURES = {
    # two modes of unlike weights, whose sign the observation does not tell
    "z²": Mixture(
        np.array([0.7, 0.3]), np.array([[1.0], [-1.0]]), np.array([0.3, 0.3]), square,
        np.array([1.0]), 0.2,
    ),
    # the observation prefers the lighter mode
    "z², nearer to one": Mixture(
        np.array([0.6, 0.4]), np.array([[1.3], [-0.9]]), np.array([0.3, 0.3]), square,
        np.array([1.0]), 0.3,
    ),
    # in the plane, where the distance from the origin is seen
    "‖z‖": Mixture(
        np.array([0.5, 0.3, 0.2]), np.array([[1.0, 1.0], [-1.0, 0.8], [-0.9, -1.1]]),
        np.array([0.3, 0.3, 0.3]), radius, np.array([1.4]), 0.1,
    ),
}  # fmt: skip


@dataclass
class Speed:
    r"""A wind :math:`(u, v)` of independent components, each made of a few of many latents of a
    Gaussian process in space, whose speed is seen."""

    latents: int
    mean: float = 6.0  #: of u, in m/s; that of v is 0
    std: float = 4.0
    y: float = 5.0
    error: float = 1.0
    reach: float = 3.0  #: of the correlation between latents

    def __post_init__(self) -> None:
        x, rng = np.arange(self.latents), np.random.default_rng(0)
        self.cov = np.exp(-0.5 * ((x[:, None] - x) / self.reach) ** 2)
        self.rows = np.zeros((2, self.latents))
        for row, center in zip(self.rows, (self.latents // 3, 2 * self.latents // 3), strict=True):
            row[center - 4 : center + 5] = rng.standard_normal(9)
            row *= self.std / np.sqrt(row @ self.cov @ row)

    def wind(self, z: Any, rows: Any) -> Any:
        u, v = (z @ rows.T).T
        return u + self.mean, v

    def posterior(self) -> tuple[float, float]:
        r"""The exact mean and standard deviation of u, summed over an even grid."""
        axis = self.std * np.linspace(-6, 6, 801)
        u, v = self.mean + axis[:, None], axis
        prior = np.exp(-0.5 * ((u - self.mean) ** 2 + v**2) / self.std**2)
        density = prior * np.exp(-0.5 * ((np.hypot(u, v) - self.y) / self.error) ** 2)
        weight = density.sum(axis=1) / density.sum()
        mean = (weight * u[:, 0]).sum()
        return float(mean), float(np.sqrt((weight * (u[:, 0] - mean) ** 2).sum()))

    def drawn(
        self,
        count: int,
        guidance: Guidance | None = None,
        seed: int = 0,
        first: int | None = None,
        batch: int | None = None,
        sampler: Sampler | None = None,
    ) -> np.ndarray:
        r"""Draws of u with the noise of a seed, by members whose numbers, and with them signs, are
        that seed's own, or begin at the first."""

        def seen(z: Any) -> Any:
            u, v = self.wind(z, torch.from_numpy(self.rows))
            return (u**2 + v**2 + 1e-4).sqrt()[:, None]

        denoiser = GaussianDenoiser(ar1(self.cov), 1)
        likelihood = NonlinearLikelihood(seen, np.array([self.y]), self.error)
        corrected = sampler is not None and sampler.name == "predictor-corrector"
        more = 1 + (sampler.steps * sampler.corrections if corrected and sampler else 0)
        noise = np.random.default_rng(seed).standard_normal((count, more * self.latents))
        first = seed * count if first is None else first
        z = draw(denoiser, [likelihood], noise, 1, 1, sampler, guidance, first, batch)
        return self.wind(z, self.rows)[0]
