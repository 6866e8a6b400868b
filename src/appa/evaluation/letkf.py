r"""The local ensemble transform Kalman filter (Hunt et al., 2007).

Of :math:`M` members with mean :math:`\bar{x}` and perturbations :math:`X`, seen by whitened
observables as :math:`\bar{a}` and :math:`Y`, and whitened observations :math:`y = \mathcal{A}(x) +
e`, :math:`e \sim \mathcal{N}(0, I)`, the analysis at a place is in the span of the members,

.. math::
    x_m & = \bar{x} + X W_{:, m} , \qquad
    W = w \mathbf{1}^\top + ((M - 1) \, \tilde{P})^{1/2} , \\
    \tilde{P} & = \left( \tfrac{M - 1}{\rho} I + Y^\top C \, Y \right)^{-1} , \qquad
    w = \tilde{P} \, Y^\top C \, (y - \bar{a}) .

The diagonal :math:`C` is what localizes: observations count for less the further they are from the
place, as if their errors were larger. It is a product of functions of the distance along the
ground and of the difference in height, each Gaspari and Cohn's (1999) with the curvature of a
normal density of a given standard deviation at 0. Observations at one place share the first
factor, so that :math:`Y^\top C Y` is a weighted sum of one matrix a place, and what is computed is
exact.

Sampling errors make ensembles too sure of themselves. Perturbations before are inflated by
:math:`\sqrt{\rho}` where something is seen, and those after are relaxed to the spread before
(Whitaker and Hamill, 2012),

.. math:: X_a \leftarrow X_a \left( 1 + \alpha \, \frac{\sigma_b - \sigma_a}{\sigma_a} \right) .
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import DataError

__all__ = ["gaspari_cohn", "local_weights", "relax", "taper", "transform", "weigh"]

BATCH = 8192  # places whose matrices are decomposed at once


def gaspari_cohn(r: Tensor) -> Tensor:
    r"""The fifth-order piecewise rational correlation of Gaspari and Cohn, their equation 4.10.

    Arguments:
        r: Distances in units of half the support: 1 at 0, 5/24 at 1, 0 from 2 on.
    """
    r = r.abs()
    near = 1 + r**2 * (-5 / 3 + r * (5 / 8 + r * (1 / 2 - r / 4)))
    s = r.clamp(min=1)
    far = 4 - 2 / (3 * s) + s * (-5 + s * (5 / 3 + s * (5 / 8 + s * (-1 / 2 + s / 12))))
    return torch.where(r <= 1, near, torch.where(r < 2, far, 0.0)).clamp(min=0)


def taper(distance: Tensor, length: float | None) -> Tensor:
    r"""What observations count for at a distance.

    Arguments:
        distance: The distances.
        length: The standard deviation of the normal density it resembles, in the same unit; it
            vanishes at :math:`2 \sqrt{10 / 3} \approx 3.65` of it. Without, all count fully.
    """
    if length is None:
        return torch.ones_like(distance)
    if not length > 0:
        raise DataError(f"found a localization of {length:g}; give a length above 0, or none")
    return gaspari_cohn(distance / (math.sqrt(10 / 3) * length))


def transform(precision: Tensor, pull: Tensor, inflation: float = 1.0) -> Tensor:
    r"""The weights of an analysis.

    Arguments:
        precision: :math:`Y^\top C Y`, with shape :math:`(*, M, M)`.
        pull: :math:`Y^\top C (y - \bar{a})`, with shape :math:`(*, M)`.
        inflation: The factor :math:`\rho` of variances before.

    Returns:
        The weights :math:`W`, with shape :math:`(*, M, M)`.
    """
    m = precision.shape[-1]
    if m < 2:
        raise DataError(f"found an ensemble of {m} member; a filter needs 2 or more")
    eye = torch.eye(m, dtype=precision.dtype, device=precision.device)
    values, vectors = torch.linalg.eigh(precision + (m - 1) / inflation * eye)
    root = (vectors * ((m - 1) / values).sqrt().unsqueeze(-2)) @ vectors.mT
    mean = vectors @ ((vectors.mT @ pull.unsqueeze(-1)) / values.unsqueeze(-1))
    return root + mean


def local_weights(
    seen: Tensor,
    departure: Tensor,
    place: Tensor,
    horizontal: Tensor,
    vertical: Tensor | None = None,
    inflation: float = 1.0,
) -> Tensor:
    r"""The weights at :math:`G` points and :math:`K` heights.

    Where nothing is seen, members stay as they are.

    Arguments:
        seen: Whitened perturbations :math:`Y^\top` of members, with shape :math:`(M, n)`.
        departure: The whitened :math:`y - \bar{a}`, with shape :math:`(n)`.
        place: The place of each observation, from 0 to :math:`P - 1`, with shape :math:`(n)`.
        horizontal: What an observation at a place counts for at a point, with shape
            :math:`(G, P)`.
        vertical: What an observation counts for at a height, with shape :math:`(K, n)`; by
            default 1 at one height.
        inflation: The factor :math:`\rho` of variances before.

    Returns:
        The weights, with shape :math:`(G, K, M, M)`, in double precision: observations may be a
        thousand times as sharp as the members.
    """
    m, n = seen.shape
    points, places = horizontal.shape
    kind = {"dtype": torch.float64, "device": seen.device}
    horizontal = horizontal.to(**kind)
    vertical = torch.ones(1, n, **kind) if vertical is None else vertical.to(**kind)
    # one block of rows a place, as long as the longest
    order = torch.argsort(place)
    counts = torch.bincount(place, minlength=places)
    row = torch.arange(n, device=seen.device) - (counts.cumsum(0) - counts)[place[order]]
    most = int(counts.max()) if n else 0
    rows = torch.zeros(places, most, m + 1, **kind)
    rows[place[order], row] = torch.cat([seen, departure[None]]).to(**kind).T[order]

    eye = torch.eye(m, **kind)
    weights = eye.repeat(points, len(vertical), 1, 1)
    for k, share in enumerate(vertical):
        c = torch.zeros(places, most, 1, **kind)
        c[place[order], row, 0] = share[order]
        at_place = rows[..., :m].mT @ (c * rows)  # (P, M, M + 1)
        sees = (c.sum((1, 2)) > 0).to(**kind)
        touched = torch.nonzero(horizontal @ sees > 0)[:, 0]
        for some in touched.split(BATCH):
            sums = (horizontal[some] @ at_place.flatten(1)).unflatten(1, (m, m + 1))
            weights[some, k] = transform(sums[..., :m], sums[..., m], inflation)
    return weights


def weigh(weights: Tensor, x: Tensor) -> Tensor:
    r"""Members after an analysis, :math:`\bar{x} + X W`.

    Arguments:
        weights: The weights, with shape :math:`(G, K, M, M)`.
        x: The members before, with shape :math:`(M, *, K, G)`: of several fields at once, since to
            read the weights takes longer than to multiply by them.
    """
    x = x.to(weights.dtype)
    mean = x.mean(0)
    rows = (x - mean).reshape(len(x), -1, *x.shape[-2:]).permute(3, 2, 1, 0)  # (G, K, *, M)
    return mean + (rows @ weights).permute(3, 2, 1, 0).reshape(x.shape)


def relax(before: Tensor, after: Tensor, alpha: float) -> Tensor:
    r"""Relaxes the spread of an analysis to that before it.

    Arguments:
        before, after: Members, with shape :math:`(M, *)`.
        alpha: The share :math:`\alpha` of the lost spread that is given back.
    """
    mean, sigma = after.mean(0), after.std(0)
    factor = 1 + alpha * (before.std(0) - sigma) / sigma.clamp(min=torch.finfo(after.dtype).tiny)
    return mean + torch.where(sigma > 0, factor, 1.0) * (after - mean)
