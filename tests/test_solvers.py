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
    x, residual, iterations, _ = solver(product(A), b, iterations=80, tolerance=1e-10)
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
        x, residual, iterations, _ = SOLVERS[name](product(A), b, iterations=n)
        left = (b - product(A)(x)).norm(dim=1) / b.norm(dim=1)
        assert iterations == n
        assert torch.allclose(left, residual, rtol=1e-8)
        assert residual.min() > 1e-3


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("iterations", [1, 3, 80])
def test_an_image_is_that_of_the_solution(name, iterations):
    r"""Of members that stop by themselves, too."""
    A, b = system(3, 40, symmetric=True)
    b[2] = 0
    C = torch.randn(2, 5, 40, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def both(v):
        return product(A)(v), torch.einsum("cdn,bn->bcd", C, v)

    found = SOLVERS[name](both, b, iterations=iterations, tolerance=1e-8)
    expected = SOLVERS[name](product(A), b, iterations=iterations, tolerance=1e-8)
    assert torch.equal(found.x, expected.x)
    assert expected.image is None
    assert torch.allclose(found.image, torch.einsum("cdn,bn->bcd", C, found.x), atol=1e-12)


def test_gmres_is_the_least_residual_of_its_space():
    r"""Against least squares over the Krylov space."""
    A, b = system(1, 30, symmetric=False)
    krylov = [b[0]]
    for _ in range(3):
        krylov.append(A[0] @ krylov[-1])
    K = torch.stack(krylov, dim=1)
    y = torch.linalg.lstsq(A[0] @ K, b[0][:, None]).solution
    x, _, _, _ = gmres(product(A), b, iterations=4)
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
    x, residual, _, _ = SOLVERS[name](lambda v: v, b, iterations=3, tolerance=1e-6)
    assert torch.equal(x, b)
    assert residual.tolist() == [0, 0]


def test_an_approximate_inverse_saves_iterations():
    r"""Of a badly scaled system, whose diagonal is most of it."""
    A, b = system(3, 60, symmetric=True)
    scale = torch.logspace(0, 2, 60, dtype=torch.float64)
    A = scale[:, None] * A * scale
    plain = cg(product(A), b, iterations=500, tolerance=1e-8)
    better = cg(product(A), b, 500, 1e-8, precondition=lambda v: v / torch.diagonal(A, 0, 1, 2))
    assert better.iterations < plain.iterations / 2
    exact = torch.linalg.solve(A, b)
    assert torch.allclose(better.x, exact, rtol=0, atol=1e-6 * float(exact.abs().max()))
    left = (b - product(A)(better.x)).norm(dim=1) / b.norm(dim=1)
    assert left.max() < 2e-8
    assert torch.allclose(left, better.residual, rtol=1e-3)
    # the inverse itself is there at once
    direct = cg(product(A), b, 9, 1e-8, precondition=lambda v: torch.linalg.solve(A, v))
    assert direct.iterations == 1


def test_a_member_with_an_approximate_inverse_does_not_depend_on_the_others():
    A, b = system(3, 40, symmetric=True)
    A[1] = torch.diag(torch.linspace(1, 9, 40, dtype=torch.float64))  # there in one iteration
    diagonal = torch.diagonal(A, 0, 1, 2)
    together = cg(product(A), b, 40, 1e-3, precondition=lambda v: v / diagonal)
    for k in range(3):
        one = slice(k, k + 1)
        alone = cg(product(A[one]), b[one], 40, 1e-3, lambda v, one=one: v / diagonal[one])
        assert torch.allclose(together.x[k], alone.x[0], rtol=0, atol=1e-12)
    assert together.iterations > 1
    assert torch.allclose(together.x[1], b[1] / diagonal[1])
