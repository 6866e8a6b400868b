r"""Exact posteriors of Gaussian processes, by two roads.

Conditioning the joint Gaussian of :math:`L` hours gives all of the smoother's covariance,

.. math::
    \mu = C A^\top (A C A^\top + R)^{-1} y , \quad \Sigma = C - C A^\top (A C A^\top + R)^{-1} A C ;

the Kalman filter and the Rauch-Tung-Striebel smoother go hour by hour and never form it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import block_diag, cho_factor, cho_solve

from .processes import Process

__all__ = ["Gaussian", "Network", "condition", "kalman", "smooth"]


@dataclass
class Gaussian:
    r"""A mean, with shape :math:`(n)`, and a covariance, with shape :math:`(n, n)`."""

    mean: np.ndarray
    cov: np.ndarray

    @property
    def std(self) -> np.ndarray:
        return np.sqrt(np.diag(self.cov))

    def part(self, index: slice | np.ndarray) -> Gaussian:
        return Gaussian(self.mean[index], self.cov[index][:, index])


@dataclass
class Network:
    r"""Observations :math:`y = A z + e` of the hours of a trajectory, :math:`e \sim
    \mathcal{N}(0, R)`, one matrix an hour; errors of different hours are independent.

    Arguments:
        matrices: :math:`A^i`, each with shape :math:`(n_i, D)`; :math:`n_i` may be zero.
        covs: :math:`R^i`, each with shape :math:`(n_i, n_i)`.
        values: :math:`y^i`, each with shape :math:`(n_i)`.
    """

    matrices: list[np.ndarray]
    covs: list[np.ndarray]
    values: list[np.ndarray]

    @property
    def hours(self) -> int:
        return len(self.matrices)

    def __len__(self) -> int:
        return sum(map(len, self.values))

    def __getitem__(self, hours: slice) -> Network:
        return Network(self.matrices[hours], self.covs[hours], self.values[hours])

    def joint(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        r"""All hours at once: :math:`A`, with shape :math:`(N, L D)`, :math:`R` and :math:`y`."""
        covs = [c for c in self.covs if len(c)]
        cov = block_diag(*covs) if covs else np.zeros((0, 0))
        return block_diag(*self.matrices), cov, np.concatenate(self.values)

    def only(self, hours: Iterable[int]) -> Network:
        r"""The same, without the observations of other hours."""
        chosen = set(hours)
        keep = [slice(None) if i in chosen else slice(0) for i in range(self.hours)]
        return Network(
            [a[k] for a, k in zip(self.matrices, keep, strict=True)],
            [r[k, k] for r, k in zip(self.covs, keep, strict=True)],
            [y[k] for y, k in zip(self.values, keep, strict=True)],
        )

    def padded(self, hours: int) -> Network:
        r"""The same, with unobserved hours after it."""
        extra = hours - self.hours
        dims = self.matrices[0].shape[1]
        return Network(
            [*self.matrices, *[np.zeros((0, dims))] * extra],
            [*self.covs, *[np.zeros((0, 0))] * extra],
            [*self.values, *[np.zeros(0)] * extra],
        )

    @property
    def seen(self) -> np.ndarray:
        r"""Which numbers of the trajectory an observation looks at, with shape :math:`(L D)`."""
        return (self.joint()[0] != 0).any(axis=0)

    def observe(self, z: np.ndarray, rng: np.random.Generator) -> Network:
        r"""Observations of a truth, with shape :math:`(L, D)`, with their errors drawn."""
        values = [
            a @ x + np.linalg.cholesky(r) @ rng.standard_normal(len(a)) if len(a) else np.zeros(0)
            for a, r, x in zip(self.matrices, self.covs, z, strict=True)
        ]
        return Network(self.matrices, self.covs, values)


def condition(prior: Gaussian, a: np.ndarray, r: np.ndarray, y: np.ndarray) -> Gaussian:
    r"""The posterior of a Gaussian given :math:`y = A z + e`; Joseph's form, which stays
    symmetric and positive with errors of any size."""
    if not len(y):
        return prior
    ca = prior.cov @ a.T
    gain = cho_solve(cho_factor(a @ ca + r), ca.T).T
    keep = np.eye(len(prior.mean)) - gain @ a
    mean = prior.mean + gain @ (y - a @ prior.mean)
    return Gaussian(mean, keep @ prior.cov @ keep.T + gain @ r @ gain.T)


def kalman(process: Process, network: Network) -> tuple[list[Gaussian], list[Gaussian]]:
    r"""The filter: of each hour, the companion state given the hours before, and given its own
    observations too. Hours without observations at the end are the exact forecast."""
    f, q, p0 = process.companion()
    before, after = [], []
    state = Gaussian(np.zeros(len(p0)), p0)
    for i, (a, r, y) in enumerate(zip(network.matrices, network.covs, network.values, strict=True)):
        if i:
            state = Gaussian(f @ state.mean, f @ state.cov @ f.T + q)
        before.append(state)
        wide = np.hstack((a, np.zeros((len(a), len(p0) - process.dims))))
        state = condition(state, wide, r, y)
        after.append(state)
    return before, after


def smooth(process: Process, network: Network) -> list[Gaussian]:
    r"""The Rauch-Tung-Striebel smoother: of each hour, its companion state given all hours."""
    f, _, _ = process.companion()
    before, after = kalman(process, network)
    smoothed = [after[-1]]
    for i in range(network.hours - 2, -1, -1):
        # the covariance of an AR(2)'s companion is regular: two hours differ by an innovation
        gain = np.linalg.solve(before[i + 1].cov, f @ after[i].cov).T
        mean = after[i].mean + gain @ (smoothed[0].mean - before[i + 1].mean)
        cov = after[i].cov + gain @ (smoothed[0].cov - before[i + 1].cov) @ gain.T
        smoothed.insert(0, Gaussian(mean, cov))
    return smoothed
