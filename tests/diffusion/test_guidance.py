r"""Guidance against conditional Gaussians."""

import pytest
import torch

from appa.diffusion.guidance import GUIDANCES
from appa.diffusion.guidance.linear import Linearized
from appa.diffusion.guidance.mmps import MMPS, SMALL, curvature, signs
from appa.diffusion.likelihood import (
    GaussianLikelihood,
    HoursLikelihood,
    NumberedLikelihood,
    StackedLikelihood,
)

N, M = 12, 5
EYE = torch.eye(N, dtype=torch.float64)


def prior(independent: bool, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    Q = torch.randn(N, N, generator=g, dtype=torch.float64)
    return EYE if independent else Q @ Q.T / N + 0.1 * EYE


def denoise(cov: torch.Tensor, sigma: float):
    K = cov @ torch.linalg.inv(cov + sigma**2 * EYE)
    return lambda z_t: (z_t.flatten(1) @ K.T).view(z_t.shape)


def exact(cov, sigma, A, variance, y, z_t):
    r"""E[z | z_t, y], by conditioning on both at once."""
    H = torch.cat([EYE, A])
    R = torch.diag(torch.cat([torch.full((N,), sigma**2, dtype=torch.float64), variance]))
    S = H @ cov @ H.T + R
    data = torch.cat([z_t.flatten(1), y.expand(len(z_t), -1)], dim=1)
    return (torch.linalg.solve(S, data.T).T @ (H @ cov)).view(z_t.shape)


def case(orthonormal: bool, seed: int = 1):
    g = torch.Generator().manual_seed(seed)
    A = torch.randn(M, N, generator=g, dtype=torch.float64)
    if orthonormal:
        A = EYE[torch.randperm(N, generator=g)[:M]]
    y = torch.randn(M, generator=g, dtype=torch.float64)
    z_t = torch.randn(3, N, 1, 1, 1, generator=g, dtype=torch.float64)
    variance = torch.linspace(0.01, 0.3, M, dtype=torch.float64)
    return A, y, variance, z_t


def likelihood(A, y, variance):
    return GaussianLikelihood(lambda z: z.flatten(1) @ A.T, y, variance)


@pytest.mark.parametrize("sigma", [0.05, 0.7, 20.0])
@pytest.mark.parametrize("solver", ["gmres", "cg"])
def test_mmps_is_exact_for_gaussians(sigma, solver):
    cov = prior(independent=False)
    A, y, variance, z_t = case(orthonormal=False)
    mmps = GUIDANCES["mmps"](solver=solver, iterations=2 * M, tolerance=1e-12)
    found = mmps(denoise(cov, sigma), z_t, sigma, likelihood(A, y, variance))
    assert torch.allclose(found, exact(cov, sigma, A, variance, y, z_t), rtol=0, atol=1e-9)
    assert 0 < mmps.residual < 1e-8
    assert 0 < mmps.products <= 2 * M


@pytest.mark.parametrize("name", ["sda", "tmpd", "pgdm", "jfps"])
@pytest.mark.parametrize("sigma", [0.05, 0.7, 20.0])
def test_cheaper_ones_are_exact_where_their_guess_is(name, sigma):
    r"""Independent latents, each observed once."""
    cov = prior(independent=True)
    A, y, variance, z_t = case(orthonormal=True)
    guidance = GUIDANCES[name](iterations=2 * M)
    found = guidance(denoise(cov, sigma), z_t, sigma, likelihood(A, y, variance))
    assert torch.allclose(found, exact(cov, sigma, A, variance, y, z_t), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("sigma", "early", "products"), [(29, 2, 5), (30, 2, 5), (31, 2, 2), (31, 9, 5)]
)
def test_iterations_are_few_where_there_is_much_noise(sigma, early, products):
    r"""Up to 30 as many as may be, above it as many as are early, and never more than elsewhere."""
    cov = prior(independent=False)
    A, y, variance, z_t = case(orthonormal=False)
    guidance = GUIDANCES["mmps"](iterations=5, early=early)
    guidance(denoise(cov, sigma), z_t, float(sigma), likelihood(A, y, variance))
    assert guidance.products == products
    # hours alone take no decoding
    guidance.forget()
    z = torch.zeros(3, 8, 1, 1, 1, dtype=torch.float64)
    guidance(denoise(cov, sigma), z_t, float(sigma), HoursLikelihood(z, range(8), 0.01))
    assert guidance.products == 5


def test_diffpir_is_a_quadratic_compromise():
    r"""The least of |y - A z|² / variance + λ / σ² |z - d(z_t)|²."""
    cov, sigma, lmbda = prior(independent=False), 0.7, 3.0
    A, y, variance, z_t = case(orthonormal=False)
    guidance = GUIDANCES["diffpir"](lmbda=lmbda, iterations=M)  # type: ignore[call-arg]
    found = guidance(denoise(cov, sigma), z_t, sigma, likelihood(A, y, variance))
    z = denoise(cov, sigma)(z_t).flatten(1)
    P = A.T @ torch.diag(1 / variance) @ A + lmbda / sigma**2 * EYE
    best = torch.linalg.solve(P, (y / variance) @ A + lmbda / sigma**2 * z, left=False)
    assert torch.allclose(found.flatten(1), best, rtol=0, atol=1e-9)


def test_dps_goes_down_the_norm():
    cov, sigma = prior(independent=False), 0.7
    A, y, variance, z_t = case(orthonormal=False)
    d = denoise(cov, sigma)
    found = GUIDANCES["dps"](zeta=0.5)(d, z_t, sigma, likelihood(A, y, variance))  # type: ignore[call-arg]
    z = z_t.clone().requires_grad_()
    norm = ((y - d(z).flatten(1) @ A.T).square() / variance).sum(dim=1).sqrt()
    (gradient,) = torch.autograd.grad(norm.sum(), z)
    assert torch.allclose(found, d(z_t) - 0.5 * sigma**2 * gradient, rtol=0, atol=1e-12)


def test_linearized_products_are_those_of_the_jacobian():
    g = torch.Generator().manual_seed(0)
    B = torch.randn(M, N, generator=g, dtype=torch.float64)

    def operator(z):
        return torch.sin(z.flatten(1) @ B.T) + z.flatten(1)[:, :M] ** 3

    z = torch.randn(2, N, 1, 1, 1, generator=g, dtype=torch.float64)
    seen = Linearized(GaussianLikelihood(operator, torch.zeros(M).double(), 1.0), z)
    for b in range(2):
        J = torch.autograd.functional.jacobian(lambda v: operator(v[None])[0], z[b]).flatten(1)
        w = torch.randn(2, N, 1, 1, 1, generator=g, dtype=torch.float64)
        u = torch.randn(2, M, generator=g, dtype=torch.float64)
        assert torch.allclose(seen.A(w)[b], J @ w[b].flatten(), rtol=0, atol=1e-12)
        assert torch.allclose(seen.At(u)[b].flatten(), J.T @ u[b], rtol=0, atol=1e-12)


def test_hours_that_are_given_come_back():
    r"""And the hours between them are the conditional mean."""
    cov, sigma = prior(independent=False), 0.7
    z_t = torch.randn(3, N, 1, 1, 1, dtype=torch.float64, generator=torch.Generator())
    z = torch.randn(3, 4, 1, 1, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    hours = [0, 1, 5, 11]
    given = HoursLikelihood(z, hours, 0.01)
    mmps = GUIDANCES["mmps"](iterations=10, tolerance=1e-12)
    found = mmps(denoise(cov, sigma), z_t, sigma, given)
    A = EYE[hours]
    for k in range(3):
        expected = exact(
            cov, sigma, A, torch.full((4,), 1e-4).double(), z[k].flatten(), z_t[k : k + 1]
        )
        assert torch.allclose(found[k], expected[0], rtol=0, atol=1e-9)
    # some members, and beside other observations
    one = StackedLikelihood([given, likelihood(*case(False)[:3])]).members(slice(2, 3))
    assert one.departure(z_t[2:]).shape == (1, 4 + M)
    assert torch.allclose(one.departure(z_t[2:])[:, :4], (z[2:] - z_t[2:, hours]).flatten(1) / 0.01)
    v = torch.ones(1, 4 + M, dtype=torch.float64)
    assert torch.equal(one.whiten(v)[0], one.variance.rsqrt())


@pytest.mark.parametrize("solver", ["gmres", "cg"])
@pytest.mark.parametrize("sigma", [0.1, 1.0, 20.0])
def test_given_hours_do_not_outweigh_observations(solver, sigma, monkeypatch):
    r"""Hours as sharp as latents' noise beside blunt observations of the others: exact in the end,
    and on the way there nearer than a solver that takes both as they are."""
    hours, size, given = 16, 4, 4
    g = torch.Generator().manual_seed(0)
    n, m = hours * size, 40
    t = torch.arange(hours, dtype=torch.float64)
    Q = torch.randn(size, size, generator=g, dtype=torch.float64)
    cov = torch.kron(0.95 ** (t[:, None] - t).abs(), Q @ Q.T / size + 0.1 * torch.eye(size))
    A = torch.randn(m, n, generator=g, dtype=torch.float64) / 4
    A[:, : given * size] = 0
    truth = torch.linalg.cholesky(cov) @ torch.randn(n, generator=g, dtype=torch.float64)
    y = A @ truth + 0.5 * torch.randn(m, generator=g, dtype=torch.float64)
    z = truth.view(1, hours, size, 1, 1)
    z_t = z + sigma * torch.randn(z.shape, generator=g, dtype=torch.float64)

    eye = torch.eye(n, dtype=torch.float64)
    H = torch.cat([A, eye[: given * size]])
    variance = torch.cat([torch.full((m,), 0.25), torch.full((given * size,), 1e-4)]).double()
    K = cov @ torch.linalg.inv(cov + sigma**2 * eye)
    V, mean = sigma**2 * K, K @ z_t.flatten()
    data = torch.cat([y, truth[: given * size]])
    v = torch.linalg.solve(H @ V @ H.T + torch.diag(variance), data - H @ mean)
    expected = mean + V @ H.T @ v

    seen = GaussianLikelihood(lambda z: z.flatten(1) @ A.T, y, torch.tensor(0.25).double())
    both = StackedLikelihood([seen, HoursLikelihood(z[:, :given], range(given), 1e-2)])

    def error(iterations: int) -> float:
        mmps = GUIDANCES["mmps"](solver=solver, iterations=iterations, tolerance=1e-12)
        found = mmps(lambda z: (z.flatten(1) @ K.T).view(z.shape), z_t, sigma, both)
        free = slice(given * size, None)
        return (found.flatten() - expected)[free].norm().item() / expected[free].norm().item()

    assert error(200) < 1e-7
    balanced = error(5)
    scale = both.balance(z, sigma**2 / (sigma**2 + 1))
    assert scale[-1] < 0.2 * scale[0]
    monkeypatch.setattr(both, "balance", lambda z, v: torch.ones_like(both.variance).double())
    assert balanced < 0.75 * error(5)


def test_an_unknown_solver():
    with pytest.raises(ValueError, match="there are gmres, cg"):
        GUIDANCES["mmps"](solver="lu")


def test_curvature_is_the_second_order_of_the_mean():
    r"""Of squares it is exact: E[z²] = ẑ² + V, for probes enough; of a linear operator, nothing."""
    cov, sigma = prior(independent=True), 0.7
    V = (1 / (1 / torch.diag(cov) + 1 / sigma**2)).diag()
    z = torch.randn(2, N, 1, 1, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def cov_z(v):
        return (v.flatten(1) @ V).view(v.shape)

    squares = GaussianLikelihood(lambda z: z.flatten(1) ** 2, torch.zeros(N).double(), 1.0)
    # independent latents: one probe of signs has no error
    u = signs(z, (0, 1), 0, 0)
    found = curvature(squares, cov_z, z, u)
    assert torch.allclose(found, -torch.diag(V).expand(2, -1), rtol=0, atol=1e-10)
    A, y, variance, _ = case(orthonormal=False)
    assert curvature(likelihood(A, y, variance), cov_z, z, u).abs().max() < 1e-12


class Told(MMPS):
    r"""Tells what probes change."""

    def solve(self, observed, sigma_t, cov_z, departure):
        self.changed = departure - observed.departure
        return super().solve(observed, sigma_t, cov_z, departure)


def test_only_what_is_curved_is_probed():
    r"""Of linear observables nothing more is computed, and beside a curved one nothing changes."""
    A, y, variance, _ = case(orthonormal=False)
    linear = likelihood(A, y, variance)
    squares = GaussianLikelihood(lambda z: z.flatten(1) ** 2, torch.zeros(N).double(), 1.0)
    squares.curved = torch.ones(N, dtype=torch.bool)
    both = StackedLikelihood([linear, squares])
    assert StackedLikelihood([linear, linear]).curved is None
    assert both.curved.tolist() == [False] * len(y) + [True] * N

    z_t = torch.randn(
        2, N, 1, 1, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    guide = Told(iterations=3)
    guide(lambda z: z / (1 + 0.7**2), z_t, 0.7, linear)
    assert not guide.changed.any()
    guide(lambda z: z / (1 + 0.7**2), z_t, 0.7, both)
    assert not guide.changed[:, : len(y)].any()
    # V = σ² / (1 + σ²): minus half the trace of the second derivative, 2, times that
    expected = torch.full((2, N), -(0.7**2) / (1 + 0.7**2), dtype=torch.float64)
    assert torch.allclose(guide.changed[:, len(y) :], expected, atol=1e-9)


def test_nothing_is_probed_where_noise_is_small():
    r"""What it would change is a ten-thousandth of what the prior leaves open."""
    squares = GaussianLikelihood(lambda z: z.flatten(1) ** 2, torch.zeros(N).double(), 1.0)
    z_t = torch.ones(1, N, 1, 1, 1, dtype=torch.float64)
    for probes in (None, 3):
        squares.curved = torch.ones(N, dtype=torch.bool)
        guide = Told(probes, iterations=3)
        guide(lambda z: z / (1 + SMALL**2), z_t, SMALL, squares)
        assert torch.allclose(guide.changed, torch.full_like(guide.changed, -(SMALL**2)), rtol=1e-3)
        guide(lambda z: z / (1 + SMALL**2), z_t, 0.99 * SMALL, squares)
        assert not guide.changed.any()


def test_what_is_not_finite_changes_nothing():
    r"""A logarithm, near zero, of which probes step into the negative: unless it is curved nothing
    of it is asked for, and where it is, only what can be told."""
    logs = GaussianLikelihood(lambda z: z.flatten(1).log(), torch.zeros(N).double(), 1.0)
    squares = GaussianLikelihood(lambda z: z.flatten(1) ** 2, torch.zeros(N).double(), 1.0)
    squares.curved = torch.ones(N, dtype=torch.bool)
    z_t = torch.full((2, N, 1, 1, 1), 0.05, dtype=torch.float64)
    guide = Told(iterations=3)

    def found(*parts):
        return guide(lambda z: z / (1 + 0.7**2), z_t, 0.7, StackedLikelihood(parts))

    assert found(logs, squares).isfinite().all()
    assert not guide.changed[:, :N].any()
    assert guide.changed[:, N:].all()
    logs.curved = squares.curved
    assert found(logs, squares).isfinite().all()
    assert not guide.changed[:, :N].any()


def test_signs_are_a_members_own():
    r"""By its number, whoever is beside it; others of another level or probe."""
    z = torch.zeros(3, N, 4, 1, 1, dtype=torch.float64)
    u = signs(z, (7, 8, 9), 5, 0)
    assert set(u.unique().tolist()) == {-1.0, 1.0}
    assert torch.equal(u[1:], signs(z[1:], (8, 9), 5, 0))
    others = [signs(z, (7, 8, 9), level, probe) for level, probe in ((5, 1), (-5, 0), (6, 0))]
    several = torch.cat([u, *others]).flatten(1)
    assert (torch.corrcoef(several) - torch.eye(12)).abs().max() < 5 / (4 * N) ** 0.5

    A, y, variance, z_t = case(orthonormal=False)

    def operator(z):  # of sums of latents: signs matter
        return (z.flatten(1) @ A.T) ** 2

    seen = GaussianLikelihood(operator, y, variance)
    seen.curved = torch.ones(M, dtype=torch.bool)
    guide, z_t = Told(iterations=3), z_t[:1].expand(3, -1, -1, -1, -1)

    def changed(likelihood, z_t):
        guide(lambda z: z / (1 + 0.7**2), z_t, 0.7, likelihood)
        return guide.changed

    given = HoursLikelihood(z_t[:, :1], [0], 1.0)
    together = StackedLikelihood([given, NumberedLikelihood(seen, (7, 8, 9))])
    whole = changed(together, z_t)
    assert (whole[0] - whole[1]).abs().max() > 1e-3
    for chosen in (slice(0, 1), slice(1, 3)):
        part = changed(together.members(chosen), z_t[chosen])
        assert torch.allclose(part, whole[chosen], rtol=0, atol=1e-9)
    by_place = changed(NumberedLikelihood(seen, range(3)), z_t)  # where members have no numbers
    assert torch.allclose(changed(seen, z_t), by_place, rtol=0, atol=1e-12)
