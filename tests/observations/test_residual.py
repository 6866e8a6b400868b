r"""Drawing r given observations and latents, against conditioning written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import block_diag
from scipy.special import eval_legendre

from appa.data.grids import Grid
from appa.errors import DataError
from appa.observations.ahead import ahead
from appa.observations.errors import WindowCovariance
from appa.observations.harmonics import Correlated, Harmonics
from appa.observations.mixing import slopes_of
from appa.observations.representation import Representation, estimate
from appa.observations.residual import ResidualSampler

from .small_space import compiled, dense, dense_space, dense_time, make_space, places

T2M, U10, V10, SST = (
    "2m_temperature",
    "10m_u_component_of_wind",
    "10m_v_component_of_wind",
    "sea_surface_temperature",
)
MEMORY = 0.8 ** np.arange(24)


class Given:
    r"""Noise that is what it is told to be: (M, hours, H, W) and (M, n) by channel."""

    def __init__(self, members: int, channels=(), fields=None, errors=None):
        self.members, self.channels = members, list(channels)
        self.fields, self.errors = fields, errors

    def __call__(self, shape, *step):
        channel, which = step
        noise = (self.fields, self.errors)[which]
        if noise is None or channel not in self.channels:
            return torch.zeros(self.members, *shape)
        return noise.reshape(self.members, *shape)


def draw(operators, departure, rep, space, noise, **options):
    return ResidualSampler(rep, space, departure.device).draw(
        operators, departure, noise, **options
    )


def space_and_rep(grid, surface, std=0.1, length=2500.0, memory=MEMORY, land=None, sd=2.0):
    space = make_space(grid, surface, std=sd, land=land)
    return space, Representation.of(grid, space.standardizer.channels, std, memory, length)


def matrix_of(operators, shape) -> np.ndarray:
    r"""The whitened, linear A of all hours, (N, L·C·H·W), by passing basis states through it."""
    size, blocks = int(np.prod(shape)), []
    basis = torch.eye(size).reshape(size, *shape)
    for operator in operators:
        a = operator(basis) - operator(torch.zeros(1, *shape)) if operator else torch.empty(size, 0)
        blocks.append(a.T.double().numpy())
    out = np.zeros((sum(map(len, blocks)), len(blocks) * size))
    row = 0
    for t, block in enumerate(blocks):
        out[row : row + len(block), t * size : (t + 1) * size] = block
        row += len(block)
    return out


def gain_and_root(operators, rep, space, channel: int = 0):
    r"""The draw's affine map, by basis vectors: what departures and what noise add to r."""
    hours = len(operators)
    n = sum(len(o) for o in operators if o)
    options = {"channels": [channel], "tolerance": 1e-6}
    gain, report = draw(operators, torch.eye(n), rep, space, Given(n), **options)
    size = hours * Correlated(rep, channel, hours, Harmonics(rep.grid)).space.size
    fields = Given(size, [channel], fields=torch.eye(size))
    by_field, _ = draw(operators, torch.zeros(size, n), rep, space, fields, **options)
    parts = [by_field.flatten(1)]
    if report.used:
        errors = Given(report.used, [channel], errors=torch.eye(report.used))
        none = torch.zeros(report.used, n)
        by_error, _ = draw(operators, none, rep, space, errors, **options)
        parts.append(by_error.flatten(1))
    root = torch.cat(parts)
    return gain.flatten(1).T.double().numpy(), root.T.double().numpy()


# ---------------------------------------------------------------- the correlation


@pytest.mark.parametrize(
    "grid",
    [Grid("equiangular", 7, 12), Grid("gaussian", 8, 9), Grid("equiangular-cells", 6, 2)],
    ids=lambda grid: grid.kind,
)
@pytest.mark.parametrize("name", [T2M, U10, V10])
def test_correlation_by_wavenumbers(grid, name):
    _, rep = space_and_rep(grid, (name,))
    points, hours = int(np.prod(grid.shape)), 3
    expected = np.kron(dense_time(rep, 0, hours), dense_space(rep, 0))
    prior = Correlated(rep, 0, hours, Harmonics(grid))
    basis = torch.eye(hours * points).reshape(-1, hours, *grid.shape)
    assert prior.matmul(basis).flatten(1).numpy() == pytest.approx(expected, abs=1e-4)
    noise = torch.eye(hours * prior.space.size).view(-1, hours, prior.space.size)
    root = prior.color(noise).flatten(1).double().numpy()
    assert root.T @ root == pytest.approx(expected, abs=1e-4)


def test_draws_have_the_spectrum_of_r():
    # r of spherical harmonics of degrees 5 to 9 only. A correlation measured up to 4000 km tells
    # degrees apart by πR / 4000 km = 5: beyond 9 + 5 nothing may be left but rounding and noise.
    grid, degrees = Grid("gaussian", 20, 40), np.arange(5, 10)
    latitude, longitude = np.radians(places(grid))
    p = np.stack([np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude)])
    p = np.stack([*p, np.sin(latitude)], axis=-1)
    rho = sum(eval_legendre(int(k), np.clip(p @ p.T, -1, 1)) for k in degrees) / len(degrees)
    root = np.linalg.cholesky(rho + 1e-6 * np.eye(len(rho)))
    rng = np.random.default_rng(0)
    r = torch.from_numpy(rng.standard_normal((600, len(rho))) @ root.T).float()
    r = 0.1 * r.reshape(25, 24, 1, *grid.shape)
    space = make_space(grid, (T2M,))
    rep = estimate(torch.zeros_like, r, grid, channels=space.standardizer.channels)
    assert rep.dataset["spatial"].values.min() < -0.1
    prior = Correlated(rep, 0, 24, Harmonics(grid))
    noise = torch.randn(25, 24, prior.space.size, generator=torch.Generator().manual_seed(0))
    drawn = torch.from_numpy(rep.std[0]).float() * prior.color(noise)

    def power(x):  # about the equator, of zonal wavenumbers
        return torch.fft.rfft(x[..., 8:12, :]).abs().square().mean((0, 1, 2))

    found, expected = power(drawn), power(r[:, :, 0])
    assert found.sum() / expected.sum() == pytest.approx(1.0, abs=0.05)
    assert (found / expected)[:9] == pytest.approx(1.0, abs=0.3)
    assert expected[14:].sum() / expected.sum() < 1e-5
    assert found[14:].sum() / found.sum() < 5e-3


# ---------------------------------------------------------------- conditioning


def test_exact_conditioning():
    grid, hours = Grid("equiangular-cells", 5, 8), 4
    std = np.linspace(0.05, 0.2, 40).reshape(grid.shape)
    space, rep = space_and_rep(grid, (T2M, U10), std)
    rng = np.random.default_rng(0)
    rows = [  # three stations that miss hours, a grid point, and another channel
        (t, T2M, np.nan, lat, lon, error)
        for t in range(hours)
        for lat, lon, error in ((20, 33, 0.05), (24, 40, 0.1), (-50, 200, 0.02), (0, 90, 0.4))
        if rng.random() < 0.7
    ]
    operators = compiled(space, hours, [*rows, (1, U10, np.nan, 20, 33, 0.05)])
    a = matrix_of(operators, (2, *grid.shape)).reshape(-1, hours, 2, 40)
    own = a[:, :, 0].any((1, 2))
    h = a[:, :, 0].reshape(-1, hours * 40)
    assert own.sum() == len(rows)
    assert len(own) == len(rows) + 1

    b = dense(rep, 0, hours)
    exact = b @ h.T @ np.linalg.inv(h @ b @ h.T + np.eye(len(h)))
    gain, root = gain_and_root(operators, rep, space)
    assert gain[:, own] == pytest.approx(exact[:, own], abs=2e-4 * abs(exact).max())
    assert abs(gain[:, ~own]).max() == 0  # u10 says nothing of t2m
    covariance = b - exact @ h @ b
    assert root @ root.T == pytest.approx(covariance, abs=5e-4 * b.max())


def test_hours_without_observations_and_channels_without():
    grid = Grid("equiangular-cells", 5, 8)
    space, rep = space_and_rep(grid, (T2M, U10))
    operators = [None, *compiled(space, 1, [(0, T2M, np.nan, 20, 33, 0.05)]), None]
    gain, _ = gain_and_root(operators, rep, space)
    gain = gain.reshape(3, 40)
    # the hours beside it follow by the correlation in time alone
    assert gain[0] == pytest.approx(rep.in_time(0, 1) * gain[1], abs=1e-5)
    root = gain_and_root(operators, rep, space, channel=1)[1]
    assert root @ root.T == pytest.approx(dense(rep, 1, 3), abs=1e-5)
    nothing = draw([None], torch.zeros(2, 0), rep, space, Given(2))
    assert nothing[0].shape == (2, 1, 2, 5, 8)
    assert nothing[1].used == 0


def test_land_has_no_r():
    grid = Grid("equiangular-cells", 6, 10)
    land = np.zeros(grid.shape, bool)
    land[2:4, 3:6] = True
    space, rep = space_and_rep(grid, (SST,), np.where(land, 0.0, 0.1), land=land)
    place = (grid.latitude[2], (grid.longitude[2] + grid.longitude[3]) / 2)  # at the coast
    operators = compiled(space, 1, [(0, SST, np.nan, *place, 0.001)])
    size = Correlated(rep, 0, 1, Harmonics(grid)).space.size
    noise = Given(1, [0], fields=torch.randn(1, size, generator=torch.Generator().manual_seed(0)))
    r, _ = draw(operators, torch.full((1, 1), 30.0), rep, space, noise)
    assert (r[0, 0, 0][torch.from_numpy(land)] == 0).all()
    # 30 errors of 0.001, in units of a standard deviation of 2; the sea point is all of it
    assert float(r[0, 0, 0, 2, 2]) == pytest.approx(30 * 0.001 / 2, rel=2e-3)


def mixing_case():
    r"""Winds, temperatures on two levels and between, and wind speeds, over two hours."""
    grid, hours = Grid("equiangular-cells", 5, 8), 2
    space = make_space(grid, (T2M, U10, V10), ("temperature",), (500, 850), std=2.0)
    std = np.linspace(0.05, 0.2, 5)[:, None, None] * np.ones((5, *grid.shape))
    rep = Representation.of(grid, space.standardizer.channels, std, MEMORY, 2500.0)
    rows = [
        (t, name, level, *place, error)
        for t, place in ((0, (20, 33)), (1, (20, 33)), (1, (-30, 300)))
        for name, level, error in (
            ("10m_wind_speed", np.nan, 0.1),
            ("temperature", 700, 0.05),
            ("temperature", 850, 0.1),
            (U10, np.nan, 0.2),
            (T2M, np.nan, 0.1),
        )
    ]
    rows.append((1, "temperature", 600, 22, 35, 0.05))
    operators = compiled(space, hours, rows)
    generator = torch.Generator().manual_seed(0)
    return space, rep, operators, torch.randn(hours, *space.shape, generator=generator)


def slopes_at(operators, states, members: int):
    r"""Slopes of operators at the same states for all members."""
    pairs = zip(operators, states, strict=True)
    return [slopes_of(operator, x.expand(members, -1, -1, -1)) for operator, x in pairs]


def test_rows_of_several_channels_are_conditioned_on_exactly():
    r"""Against the posterior of all channels at once, of the operators' tangent."""
    space, rep, operators, states = mixing_case()
    hours, count = len(operators), len(rep.channels)
    size = int(np.prod(space.shape))
    basis = torch.eye(size).reshape(size, *space.shape)
    blocks = [
        operator.tangent(x.expand(size, -1, -1, -1), basis).T.double().numpy()
        for operator, x in zip(operators, states, strict=True)
    ]
    h = block_diag(*blocks)
    b = np.zeros((hours, count, 40, hours, count, 40))
    for c in range(count):
        b[:, c, :, :, c] = dense(rep, c, hours).reshape(hours, 40, hours, 40)
    b = b.reshape(h.shape[1], -1)
    n = len(h)
    exact = b @ h.T @ np.linalg.inv(h @ b @ h.T + np.eye(n))

    def drawn(departure, noise):
        slopes = slopes_at(operators, states, len(departure))
        r, report = draw(operators, departure, rep, space, noise, slopes=slopes, tolerance=1e-6)
        assert (report.used, report.unused) == (n, 0)
        return r.flatten(1).double().numpy()

    gain = drawn(torch.eye(n), Given(n)).T
    assert gain == pytest.approx(exact, abs=2e-4 * abs(exact).max())
    roots, rows = [], {0: 3, 1: 6, 3: 7}  # of each group, under its first channel
    for c in range(count):
        size = hours * Correlated(rep, c, hours, Harmonics(rep.grid)).space.size
        roots.append(drawn(torch.zeros(size, n), Given(size, [c], fields=torch.eye(size))))
    for c, k in rows.items():
        roots.append(drawn(torch.zeros(k, n), Given(k, [c], errors=torch.eye(k))))
    root = np.concatenate(roots).T
    covariance = b - exact @ h @ b
    assert root @ root.T == pytest.approx(covariance, abs=5e-4 * b.max())
    # given a row that sees both, two levels are independent no longer
    across = covariance.reshape(hours, count, 40, hours, count, 40)[:, 3, :, :, 4]
    assert across.min() < -0.05 * b.max()


def test_channels_that_are_tied_may_be_drawn_apart():
    space, rep, operators, states = mixing_case()
    slopes = slopes_at(operators, states, 2)
    n = sum(map(len, operators))
    departure = 5 * torch.randn(2, n, generator=torch.Generator().manual_seed(0))
    sampler, kept = ResidualSampler(rep, space), {}
    together, _ = sampler.draw(operators, departure, seeded(range(2)), slopes=slopes)
    for c in range(5):
        alone, _ = sampler.draw(
            operators, departure, seeded(range(2)), channels=[c], slopes=slopes, solved=kept
        )
        assert (together[:, :, c] - alone[:, :, 0]).abs().max() < 1e-4 * rep.std[c].max()
    assert sorted(kept) == [1, 3]  # solved once each
    assert sampler.tied(operators, [2]) == [1, 2]
    assert sampler.tied(operators, [0, 4]) == [0, 3, 4]
    few = slopes_at(operators, states, 1)
    one, _ = sampler.draw(operators, departure[1:], seeded([1]), slopes=few)
    assert (together[1] - one[0]).abs().max() < 1e-4 * rep.std.max()


def test_what_does_not_move_r_is_counted():
    space, rep, operators, _ = mixing_case()
    n = sum(map(len, operators))
    r, report = draw(operators, torch.ones(1, n), rep, space, Given(1))  # without slopes
    assert (report.used, report.unused) == (n - 3, 3)
    assert not r[:, :, 2].any()  # of v10 nothing but wind speed was seen
    with pytest.raises(DataError, match=rf"expected \(members, {n}\)"):
        draw(operators, torch.ones(1, 4), rep, space, Given(1))


def seeded(members):
    r"""Noise of members by themselves."""

    def draw(shape, *step):
        generators = [torch.Generator().manual_seed(hash((m, *step)) % 2**31) for m in members]
        return torch.stack([torch.randn(tuple(shape), generator=g) for g in generators])

    return draw


def test_members_do_not_depend_on_their_batch():
    grid = Grid("gaussian", 12, 24)
    space, rep = space_and_rep(grid, (T2M, U10), 0.3, 1500.0)
    rng = np.random.default_rng(0)
    rows = [
        (t, T2M, np.nan, *place, 0.1)
        for place in rng.uniform((-80, 0), (80, 360), (60, 2))
        for t in range(4)
    ]
    operators = compiled(space, 4, rows)
    departure = 6 * torch.randn(4, len(rows), generator=torch.Generator().manual_seed(0))
    departure[0] /= 100  # which takes fewer iterations
    sampler = ResidualSampler(rep, space)
    together, report = sampler.draw(operators, departure, seeded(range(4)))
    for m in range(4):
        apart, _ = sampler.draw(operators, departure[m : m + 1], seeded([m]))
        assert (together[m] - apart[0]).abs().max() < 1e-4 * 0.3
    one, _ = sampler.draw(operators, departure, seeded(range(4)), channels=[1])
    assert torch.equal(one[:, :, 0], together[:, :, 1])
    assert report.residual < 1e-5
    assert report.used == len(rows)
    # other operators are not those that were kept
    less, told = sampler.draw(operators[:2], departure[:, : len(rows) // 2], seeded(range(4)))
    fresh, _ = draw(operators[:2], departure[:, : len(rows) // 2], rep, space, seeded(range(4)))
    assert told.used == len(rows) // 2
    assert torch.equal(less, fresh)


@pytest.mark.parametrize("name", ["temperature", "v_component_of_wind"])
def test_levels_seen_alike_are_solved_as_if_alone(name):
    grid, levels = Grid("gaussian", 8, 16), (300, 500, 850)
    space = make_space(grid, (), (name,), levels)
    std = 0.1 * (1 + np.arange(3)[:, None, None] + np.cos(np.radians(grid.longitude)))
    std = np.broadcast_to(std, (3, *grid.shape))
    rep = Representation.of(grid, space.standardizer.channels, std, MEMORY, 2500.0)
    places = np.random.default_rng(0).uniform((-80, 0), (80, 360), (20, 2))
    rows = [
        (t, name, level, *place, error)
        for t in range(3)
        for level, error in zip(levels, (0.1, 0.5, 0.02), strict=True)
        for place in places[: 20 if level != 850 else 19]  # where one is not seen, it is alone
    ]
    operators = compiled(space, 3, rows)
    departure = 6 * torch.randn(2, len(rows), generator=torch.Generator().manual_seed(0))
    sampler = ResidualSampler(rep, space)
    together, report = sampler.draw(operators, departure, seeded(range(2)))
    assert sampler._alike(operators, sampler._observed(operators), range(3)) == [[0, 1], [2]]
    assert report.used == len(rows)
    for c in range(3):
        alone, _ = draw(operators, departure, rep, space, seeded(range(2)), channels=[c])
        assert (together[:, :, c] - alone[:, :, 0]).abs().max() < 1e-4 * std[c].max()


# ---------------------------------------------------------------- without observations


def test_without_observations_r_is_as_free_as_before():
    grid, hours = Grid("equiangular-cells", 5, 8), 3
    space, rep = space_and_rep(grid, (T2M, V10), np.linspace(0.05, 0.2, 40).reshape(grid.shape))
    for c in (0, 1):
        size = hours * Correlated(rep, c, hours, Harmonics(grid)).space.size
        noise = Given(size, [c], fields=torch.eye(size))
        r, report = draw([None] * hours, torch.zeros(size, 0), rep, space, noise)
        assert report.used == report.iterations == 0
        root = r[:, :, c].flatten(1).double().numpy()
        b = dense(rep, c, hours)
        assert root.T @ root == pytest.approx(b, abs=1e-4 * b.max())
        assert not r[:, :, 1 - c].any()


@pytest.mark.parametrize(("past", "hours"), [(4, 3), (1, 5), (0, 2)])
def test_continuation_is_conditioning(past, hours):
    grid = Grid("equiangular-cells", 4, 6)
    # of two memories, so that more than the last hour tells something
    memory = 0.5 * 0.95 ** np.arange(24) + 0.5 * 0.4 ** np.arange(24)
    std = np.linspace(0.05, 0.2, 24).reshape(grid.shape)
    _, rep = space_and_rep(grid, (T2M, U10), std, memory=memory)
    for c in (0, 1):
        b = dense(rep, c, past + hours)
        n = past * 24
        # a constant wind has no part along some vectors: a tiny noise makes the inverse exist
        inverse = np.linalg.inv(b[:n, :n] + 1e-9 * np.eye(n)) if n else np.zeros((0, 0))
        gain = b[n:, :n] @ inverse
        left = b[n:, n:] - gain @ b[:n, n:]
        size = hours * Correlated(rep, c, hours, Harmonics(grid)).space.size

        def eye(shape, *step, c=c, size=size):
            assert step == (c, 2)
            return torch.eye(size).reshape(size, *shape)

        sampler = ResidualSampler(rep, None, torch.device("cpu"))
        new = sampler.forward(torch.zeros(size, past, 1, 4, 6), hours, eye, channels=[c])
        root = new.flatten(1).double().numpy()
        assert root.T @ root == pytest.approx(left, abs=1e-4 * b.max())
        # departures of r's own shapes: those it never has tell nothing of the inverse
        shapes = np.random.default_rng(0).standard_normal((3, n)) @ b[:n, :n] / b.max()
        begun = torch.from_numpy(shapes).float().view(3, past, 1, 4, 6)
        mean = sampler.forward(
            begun, hours, lambda shape, *step: torch.zeros(3, *shape), channels=[c]
        )
        expected = shapes @ gain.T
        found = mean.flatten(1).double().numpy()
        assert found == pytest.approx(expected, abs=2e-3 * max(abs(expected).max(), 1))


def test_a_continued_draw_is_as_one_draw():
    r"""Sixty hours in one go, and twelve continued by twelve, have one correlation in time."""
    grid = Grid("gaussian", 8, 16)
    memory = (1 + np.arange(24) / 5) * np.exp(-np.arange(24) / 5)  # smooth, nearly dependent
    _, rep = space_and_rep(grid, (T2M,), 0.1, 1500.0, memory=memory)
    sampler, members = ResidualSampler(rep), 200
    generator = torch.Generator().manual_seed(0)

    def noise(shape, *step):
        return torch.randn(members, *shape, generator=generator)

    parts = [sampler.draw([None] * 12, torch.zeros(members, 0), noise)[0]]
    for _ in range(4):
        parts.append(sampler.forward(torch.cat(parts, dim=1), 12, noise))
    r = torch.cat(parts, dim=1)[:, :, 0]
    assert r.square().mean((0, 2, 3)).sqrt() == pytest.approx(0.1, rel=0.03)
    for lag in (1, 3, 12):
        products = (r[:, lag:] * r[:, :-lag]).mean((0, 2, 3)) / 0.1**2
        assert products == pytest.approx(float(rep.in_time(0, lag)), abs=0.05)
    with pytest.raises(DataError, match=r"expected \(members, hours, 1, 8, 16\)"):
        sampler.forward(r, 3, noise)


# ---------------------------------------------------------------- both stages


class Toy:
    r"""x = z + r on a small grid: z of nine waves that change smoothly, r white in space."""

    def __init__(self, memory: float, hours: int = 12, error: float = 0.01):
        grid = Grid("equiangular-cells", 4, 6)
        self.space, self.rep = space_and_rep(
            grid, (T2M,), 0.1, 1.0, memory ** np.arange(hours), sd=1.0
        )
        self.b = dense(self.rep, 0, hours)
        points = np.prod(grid.shape)
        assert abs(self.b[:points, :points] - 0.01 * np.eye(points)).max() < 1e-6
        latitude, longitude = np.radians(places(grid))
        x, y = np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude)
        up = np.sin(latitude)
        large = np.stack([x**0, x, y, up])
        small = np.stack([x * y, y * up, up * x, x**2 - y**2, 3 * up**2 - 1])
        waves = large.T @ large / 4 + 0.1**2 * small.T @ small
        lag = np.abs(np.subtract.outer(np.arange(hours), np.arange(hours)))
        self.c = np.kron((1 + lag / 8) * np.exp(-lag / 8), waves)
        seen = [(1, 1), (2, 4), (1, 4), (2, 2), (0, 0), (3, 3)]
        rows = [
            (t, T2M, np.nan, grid.latitude[i], grid.longitude[j], error)
            for t in range(hours)
            for i, j in seen
        ]
        self.operators = compiled(self.space, hours, rows)
        self.a = matrix_of(self.operators, (1, *grid.shape))
        self.seen = np.flatnonzero(self.a.any(0))

    def covariance(self, representation: str) -> np.ndarray:
        cov_y = WindowCovariance(self.operators, self.rep, self.space, representation)
        root = cov_y.color(torch.eye(len(self.a))).double().numpy()  # transposed
        return root.T @ root

    def latents(self, representation: str):
        r"""Gain and covariance of z given y, as a representation has it."""
        a, c = self.a, self.c
        gain = c @ a.T @ np.linalg.inv(a @ c @ a.T + self.covariance(representation))
        return gain, c - gain @ a @ c

    def error(self, gain: np.ndarray, of_r: float = 1.0) -> np.ndarray:
        r"""The true covariance of z + of_r · r − gain y."""
        a, eye = self.a, np.eye(len(self.c))
        z, r = eye - gain @ a, of_r * eye - gain @ a
        return z @ self.c @ z.T + r @ self.b @ r.T + gain @ gain.T


def ratio(spread: np.ndarray, error: np.ndarray, where=slice(None)) -> float:
    return float(np.sqrt(np.diag(spread)[where].mean() / np.diag(error)[where].mean()))


@pytest.mark.parametrize("memory", [0.0, 0.6, 0.95])
def test_both_stages_give_the_posterior(memory):
    toy = Toy(memory, hours=6)
    a, prior = toy.a, toy.c + toy.b
    exact = prior @ a.T @ np.linalg.inv(a @ prior @ a.T + np.eye(len(a)))
    posterior = prior - exact @ a @ prior

    gain, covariance = toy.latents("temporal")
    k, root = gain_and_root(toy.operators, toy.rep, toy.space)
    left = np.eye(len(prior)) - k @ a  # D(z) + K (y − A D(z)), of z drawn
    mean = left @ gain + k
    spread = left @ covariance @ left.T + root @ root.T
    assert mean == pytest.approx(exact, abs=1e-3 * abs(exact).max())
    assert spread == pytest.approx(posterior, abs=1e-3 * np.diag(posterior).max())
    seen = np.diag(spread)[toy.seen]
    assert seen == pytest.approx(np.diag(posterior)[toy.seen], rel=0.02)


def test_spread_and_skill_with_each_stage_on_and_off():
    r"""Of the latents, spread over skill is 0.6 to 0.7 where r is left out, 1.00 to 0.73 with a
    diagonal as r persists, and 1 with its correlation in time. Of states, r must be drawn given
    the observations: left out, the spread is too small, drawn regardless, too large."""
    table = {}
    for memory in (0.0, 0.6, 0.95):
        toy = Toy(memory)
        for representation in ("none", "diagonal", "temporal"):
            gain, covariance = toy.latents(representation)
            table[representation, memory] = ratio(covariance, toy.error(gain, of_r=0.0))
    for memory in (0.0, 0.6, 0.95):
        assert table["none", memory] < 0.75
        assert table["temporal", memory] == pytest.approx(1.0, abs=0.01)
    assert table["diagonal", 0.0] == pytest.approx(1.0, abs=0.01)
    assert 0.65 < table["diagonal", 0.95] < table["diagonal", 0.6] < 0.9

    toy = Toy(0.95)
    gain, covariance = toy.latents("temporal")
    k, root = gain_and_root(toy.operators, toy.rep, toy.space)
    left = np.eye(len(toy.c)) - k @ toy.a
    both = left @ covariance @ left.T + root @ root.T
    error = toy.error(left @ gain + k)
    off, regardless = toy.error(gain), covariance + toy.b
    assert ratio(covariance, off) < 0.97
    assert ratio(regardless, off) > 1.03
    # not so at stations, of which x is known better than z: there D(z) alone spreads too much
    assert ratio(covariance, off, toy.seen) > 1.03
    assert ratio(both, error) == pytest.approx(1.0, abs=0.01)
    assert ratio(both, error, toy.seen) == pytest.approx(1.0, abs=0.01)
    # the analysis fits its stations: from nearly half the decoder's error to the observations' own
    before, after = (np.sqrt(np.diag(e)[toy.seen].mean()) for e in (off, error))
    assert before > 0.03
    assert after < 0.0101


@pytest.mark.parametrize("threads", [1, 3])
def test_results_ahead_are_in_order_and_few(threads):
    r"""Threads make what is taken next, no more than is asked for, and errors come through."""
    begun: list[int] = []

    def square(k: int) -> int:
        begun.append(k)
        if k == 7:
            raise DataError("seven")
        return k * k

    found = ahead(square, list(range(10)), 4, threads)
    assert [next(found) for _ in range(3)] == [0, 1, 4]
    assert len(begun) <= 3 + 4
    assert [next(found) for _ in range(4)] == [9, 16, 25, 36]
    with pytest.raises(DataError, match="seven"):
        next(found)
    assert list(ahead(square, [], 4, threads)) == []
