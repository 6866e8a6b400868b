r"""Solves of steep systems, and the preconditioner that makes them quick."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from appa.errors import DataError
from appa.evaluation.conditioning import nystrom, solve


def test_steep_systems_are_solved():
    r"""Eigenvalues that fall as those of dense and sharp observations, from 10⁵ on: the exact
    solution is known, plain conjugate gradients are far from it."""
    n = 600
    rng = np.random.default_rng(0)
    u = np.linalg.qr(rng.standard_normal((n, n)))[0]
    values = 3e5 * np.exp(-np.arange(n) / 25)
    values[:400] += 30.0 * np.arange(400, 0, -1) / 400
    matrix = torch.from_numpy((u * values) @ u.T).float()
    d = torch.from_numpy(u @ (np.sqrt(values + 1)[:, None] * rng.standard_normal((n, 3)))).float()
    d = d.T.contiguous()
    exact = d.double().numpy() @ ((u / (values + 1)) @ u.T)

    def product(v):
        return v @ matrix

    _, residual, _ = solve(product, d, 60, 1e-3)
    assert float(residual.max()) > 0.1
    inverse = nystrom(product, d[0], 200)
    v, residual, taken = solve(product, d, 60, 1e-3, inverse)
    assert float(residual.max()) <= 1e-3
    assert taken < 60
    # the residual is that of what was returned, not the one that was updated
    off = d - v - product(v)
    np.testing.assert_allclose(residual, off.norm(dim=1) / d.norm(dim=1), rtol=1e-2)
    # |v - v*| ≤ |r|, eigenvalues of C + I being 1 or more
    assert (np.linalg.norm(v.numpy() - exact, axis=1) <= 1.1e-3 * np.linalg.norm(d, axis=1)).all()
    # of all eigenvalues it is the inverse, and of none there is nothing to do
    whole = nystrom(lambda v: v.double() @ matrix.double(), d[0].double(), n)
    np.testing.assert_allclose(whole(d.double()).numpy(), exact * (values[-1] + 1), rtol=0.02,
                               atol=0.02 * np.abs(exact).max())  # fmt: skip
    zero, residual, taken = solve(product, torch.zeros_like(d), 60, 1e-3, inverse)
    assert (float(zero.abs().max()), float(residual.max()), taken) == (0, 0, 0)


def smooth(n: int, length: float, ratio: float) -> tuple[np.ndarray, torch.Tensor]:
    r"""The covariance, in units of the errors', of points on a sphere of radius 1 with a Gaussian
    correlation, and departures that have it: the eigenvalues fall below rounding."""
    rng = np.random.default_rng(0)
    points = rng.standard_normal((n, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    apart = np.square(points[:, None] - points).sum(-1)
    matrix = ratio**2 * np.exp(-apart / (2 * length**2))
    values, vectors = np.linalg.eigh(matrix)
    d = vectors @ (np.sqrt(values.clip(0) + 1)[:, None] * rng.standard_normal((n, 3)))
    return matrix, torch.from_numpy(d.T.copy()).float()


def test_a_preconditioner_is_definite_where_eigenvalues_are_below_rounding():
    matrix, d = smooth(500, 0.31, 100.0)
    single = torch.from_numpy(matrix).float()

    def product(v):
        return v @ single

    inverse = nystrom(product, d[0], 256)
    p = inverse(torch.eye(500)).double()
    assert torch.linalg.eigvalsh((p + p.T) / 2).min() > 0
    v, residual, taken = solve(product, d, 100, 1e-2, inverse)
    assert float(residual.max()) <= 1e-2
    assert taken < 30  # without it, it takes 600
    exact = np.linalg.solve(matrix + np.eye(500), d.double().numpy().T).T
    off = np.linalg.norm(v.numpy() - exact, axis=1)
    assert (off <= 1.1e-2 * np.linalg.norm(d, axis=1)).all()  # |v - v*| ≤ |r|


def test_an_indefinite_preconditioner_is_left_out():
    matrix, d = smooth(200, 0.6, 10.0)
    double = torch.from_numpy(matrix)
    first = torch.linalg.eigh(double)[1][:, -1:].float()
    single = double.float()

    def product(v):
        return v @ single

    def wrong(r):  # the first direction is uphill
        return r - 1.5 * (r @ first) @ first.T

    v, residual, taken = solve(product, d, 200, 1e-2, wrong)
    assert float(residual.max()) <= 1e-2
    assert taken < 200
    np.testing.assert_allclose(
        residual, (d - v - product(v)).norm(dim=1) / d.norm(dim=1), rtol=1e-2
    )
    # out of iterations it is no worse than nothing, whatever it is given
    for few in (1, 2, 5):
        assert float(solve(product, d, few, 1e-9, wrong)[1].max()) <= 1
    # of no covariance at all, -10 I + I, there is no descent, and no end but the first
    v, residual, taken = solve(lambda v: -10 * v, d, 200, 1e-2)
    assert (float(v.abs().max()), residual.tolist(), taken) == (0, [1, 1, 1], 1)


def test_a_covariance_that_is_none_is_told():
    like = torch.ones(40)
    for product in (lambda v: v * torch.inf, lambda v: v * torch.nan):
        with pytest.raises(DataError, match="40 observations are not finite in float32"):
            nystrom(product, like, 8)
    # no variance but the errors', and none at all, leave nothing to do
    for scale in (0, -1):
        assert torch.equal(nystrom(lambda v, s=scale: s * v, like, 8)(like), like)
