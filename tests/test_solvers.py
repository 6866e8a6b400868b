r"""Solvers against direct solutions."""

import pytest
import torch

from appa.solvers import SOLVERS, cg, gmres


def system(members: int, n: int, symmetric: bool, seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    Q = torch.randn(members, n, n, generator=g, dtype=torch.float64)
    A = torch.eye(n, dtype=torch.float64) + (Q @ Q.mT if symmetric else Q) / n
    b = torch.randn(members, n, generator=g, dtype=torch.float64)
    return A, b


def product(A):
    return lambda v: torch.einsum("bij,bj->bi", A, v)


@pytest.mark.parametrize(("solver", "symmetric"), [(gmres, False), (gmres, True), (cg, True)])
def test_solutions(solver, symmetric):
    A, b = system(3, 40, symmetric)
    x, residual, iterations = solver(product(A), b, iterations=80, tolerance=1e-10)
    assert torch.allclose(x, torch.linalg.solve(A, b), rtol=0, atol=1e-8)
    assert residual.max() <= 1e-10
    assert iterations <= 40
    # the residual told is the one there is
    left = (b - product(A)(x)).norm(dim=1) / b.norm(dim=1)
    assert left.max() < 2e-10


@pytest.mark.parametrize("name", SOLVERS)
def test_the_residual_told_is_the_one_there_is(name):
    A, b = system(2, 60, symmetric=True)
    for n in (1, 2, 5):
        x, residual, iterations = SOLVERS[name](product(A), b, iterations=n)
        left = (b - product(A)(x)).norm(dim=1) / b.norm(dim=1)
        assert iterations == n
        assert torch.allclose(left, residual, rtol=1e-8)
        assert residual.min() > 1e-3


def test_gmres_is_the_least_residual_of_its_space():
    r"""Against least squares over the Krylov space."""
    A, b = system(1, 30, symmetric=False)
    krylov = [b[0]]
    for _ in range(3):
        krylov.append(A[0] @ krylov[-1])
    K = torch.stack(krylov, dim=1)
    y = torch.linalg.lstsq(A[0] @ K, b[0][:, None]).solution
    x, _, _ = gmres(product(A), b, iterations=4)
    assert torch.allclose(x[0], (K @ y)[:, 0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", SOLVERS)
def test_a_member_does_not_depend_on_the_others(name):
    r"""Though they need other numbers of iterations."""
    A, b = system(3, 40, symmetric=True)
    A[1] = torch.eye(40, dtype=torch.float64) * 2  # there in one iteration
    together = SOLVERS[name](product(A), b, iterations=40, tolerance=1e-3)
    for k in range(3):
        alone = SOLVERS[name](product(A[k : k + 1]), b[k : k + 1], iterations=40, tolerance=1e-3)
        assert torch.allclose(together.x[k], alone.x[0], rtol=0, atol=1e-12)
        assert torch.allclose(together.residual[k], alone.residual[0], rtol=0, atol=1e-12)
    assert torch.allclose(together.x[1], b[1] / 2)


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_to_solve(name, dtype):
    b = torch.zeros(2, 5, dtype=dtype)
    b[1, 0] = 1
    x, residual, _ = SOLVERS[name](lambda v: v, b, iterations=3, tolerance=1e-6)
    assert torch.equal(x, b)
    assert residual.tolist() == [0, 0]
