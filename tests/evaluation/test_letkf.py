r"""The filter against Kalman's, on Lorenz's 40 variables against the literature, and its way into
the planet's state."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from appa.errors import DataError
from appa.evaluation.letkf import gaspari_cohn, local_weights, relax, taper, weigh


def kalman(mean, cov, h, r, y):
    r"""The textbook's update."""
    gain = cov @ h.T @ np.linalg.inv(h @ cov @ h.T + r)
    return mean + gain @ (y - h @ mean), cov - gain @ h @ cov


def analysis(x, h, r, y, **options):
    r"""The filter's, of members (M, n) seen by a matrix, all at one place."""
    whitener = np.diag(np.diag(r) ** -0.5)
    seen = (x - x.mean(0)) @ (whitener @ h).T
    departure = whitener @ (y - h @ x.mean(0))
    weights = local_weights(
        torch.from_numpy(seen),
        torch.from_numpy(departure),
        torch.arange(len(y)) % 3,
        torch.ones(x.shape[1], 3, dtype=torch.float64),
        **options,
    )
    return weigh(weights, torch.from_numpy(x)[:, None])[:, 0].numpy()


@pytest.mark.parametrize("inflation", [1.0, 1.3])
def test_without_localization_it_is_the_kalman_update_of_the_ensemble(inflation):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 12)) @ rng.normal(size=(12, 12)) + 5
    h, r = rng.normal(size=(20, 12)), np.diag(rng.uniform(0.1, 2.0, 20))
    y = rng.normal(size=20)
    mean, cov = kalman(x.mean(0), inflation * np.cov(x.T), h, r, y)
    after = analysis(x, h, r, y, inflation=inflation)
    np.testing.assert_allclose(after.mean(0), mean, rtol=1e-10)
    np.testing.assert_allclose(np.cov(after.T), cov, rtol=0, atol=1e-10 * abs(cov).max())


def test_many_members_have_the_posterior_of_a_normal_prior():
    rng, m = np.random.default_rng(1), 400
    cov = np.array([[2.0, 1.2, 0.0], [1.2, 1.0, 0.3], [0.0, 0.3, 1.5]])
    h, r, y = np.array([[1.0, 0, 0], [0, 1.0, 1.0]]), np.diag([0.25, 0.5]), np.array([1.5, -1.0])
    exact, posterior = kalman(np.zeros(3), cov, h, r, y)
    x = rng.multivariate_normal(np.zeros(3), cov, m)
    after = analysis(x, h, r, y)
    # Covariances of M draws err by sqrt(2 / M) relative to theirs, and so do gain and mean: three
    # times that is 0.2 of the prior's deviations and of its largest variance.
    tolerance = 3 * math.sqrt(2 / m)
    assert np.abs(after.mean(0) - exact).max() < tolerance * math.sqrt(cov.max())
    assert np.abs(np.cov(after.T) - posterior).max() < tolerance * cov.max()
    assert np.abs(exact).max() > 5 * tolerance  # what is found is not the prior
    assert np.abs(cov - posterior).max() > 5 * tolerance


def test_observations_count_as_if_their_errors_were_larger():
    # R-localization at one point is the update with R divided by the tapers, factor by factor.
    rng = np.random.default_rng(2)
    x, h, y = rng.normal(size=(6, 5)), rng.normal(size=(9, 5)), rng.normal(size=9)
    place = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2])
    across, up = rng.uniform(0.1, 1, (1, 3)), rng.uniform(0.1, 1, (2, 9))
    d = y - h @ x.mean(0)
    weights = local_weights(
        torch.from_numpy((x - x.mean(0)) @ h.T),
        torch.from_numpy(d),
        place,
        torch.from_numpy(across),
        torch.from_numpy(up),
    )
    assert weights.shape == (1, 2, 6, 6)
    # five fields at once, at two heights of one point
    fields = weigh(weights, torch.from_numpy(x)[:, :, None, None].expand(6, 5, 2, 1)).numpy()
    for k in range(2):
        r = np.diag(1 / (across[0, place.numpy()] * up[k]))
        mean, cov = kalman(x.mean(0), np.cov(x.T), h, r, y)
        after = fields[:, :, k, 0]
        np.testing.assert_allclose(after.mean(0), mean, rtol=1e-9)
        np.testing.assert_allclose(np.cov(after.T), cov, rtol=0, atol=1e-10)


def test_members_stay_where_nothing_is_seen():
    across = torch.tensor([[1.0], [0.0]])
    weights = local_weights(
        torch.randn(4, 1), torch.ones(1), torch.zeros(1, dtype=torch.long), across, None, 1.5
    )
    assert torch.equal(weights[1, 0], torch.eye(4, dtype=torch.float64))
    assert not torch.equal(weights[0, 0], torch.eye(4, dtype=torch.float64))


def test_gaspari_and_cohn():
    # Their equation 4.10 by hand: at 1 both branches are 5/24, and 0.5 gives 263/384.
    r = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0], dtype=torch.float64)
    far = 1.5**5 / 12 - 1.5**4 / 2 + 1.5**3 * 5 / 8 + 1.5**2 * 5 / 3 - 5 * 1.5 + 4 - 4 / 9
    expected = torch.tensor([1, 263 / 384, 5 / 24, far, 0, 0], dtype=torch.float64)
    torch.testing.assert_close(gaspari_cohn(r), expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(gaspari_cohn(-r), expected, rtol=0, atol=1e-14)
    # A correlation: its matrix on a circle of chords is positive semi-definite.
    a = torch.linspace(0, 2 * math.pi, 41, dtype=torch.float64)[:-1]
    p = torch.stack([a.cos(), a.sin()], -1)
    assert torch.linalg.eigvalsh(gaspari_cohn(torch.cdist(p, p) / 0.6)).min() > -1e-12
    # Of a length, it has the curvature of a normal density with that deviation.
    d = torch.tensor([1.0], dtype=torch.float64)
    torch.testing.assert_close(1 - taper(d, 50.0), d**2 / 5000, rtol=0.02, atol=0)
    with pytest.raises(DataError, match="localization of 0"):
        taper(d, 0.0)


def test_spread_is_relaxed_to_what_it_was():
    before, after = torch.randn(5, 7, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    relaxed = relax(before, after, 0.7)
    torch.testing.assert_close(relaxed.mean(0), after.mean(0))
    torch.testing.assert_close(relaxed.std(0), 0.3 * after.std(0) + 0.7 * before.std(0))
    constant = torch.ones(5, 1, dtype=torch.float64)
    assert torch.equal(relax(constant, constant, 0.7), constant)


# ---------------------------------------------------------------- Lorenz's model of 40 variables


def lorenz(x, steps=1, dt=0.05):
    def tendency(x):
        return (torch.roll(x, -1, -1) - torch.roll(x, 2, -1)) * torch.roll(x, 1, -1) - x + 8.0

    for _ in range(steps):
        a = tendency(x)
        b = tendency(x + dt / 2 * a)
        c = tendency(x + dt / 2 * b)
        d = tendency(x + dt * c)
        x = x + dt / 6 * (a + 2 * b + 2 * c + d)
    return x


def cycled(members, length, inflation, cycles, scored):
    r"""The error of the mean and the spread of analyses of variables all seen with error 1."""
    torch.manual_seed(0)
    truth = lorenz(8 + torch.randn(40, dtype=torch.float64), 400)
    x = truth + torch.randn(members, 40, dtype=torch.float64)
    place = torch.arange(40)
    apart = (place[:, None] - place).abs()
    across = taper(torch.minimum(apart, 40 - apart).double(), length)
    error, spread = [], []
    for k in range(cycles):
        truth, x = lorenz(truth), lorenz(x)
        mean = x.mean(0)
        departure = truth + torch.randn_like(truth) - mean
        # without localization, one point stands for all
        points = across if length is not None else across[:1]
        weights = local_weights(x - mean, departure, place, points, None, inflation)
        x = weigh(weights.expand(40, -1, -1, -1), x[:, None])[:, 0]
        if k >= cycles - scored:
            error.append((x.mean(0) - truth).square().mean())
            spread.append(x.var(0).mean())
    return math.sqrt(np.mean(error)), math.sqrt(np.mean(spread))


@pytest.mark.parametrize(("members", "length", "inflation"), [(10, 4.0, 1.05), (24, None, 1.03)])
def test_lorenz_is_followed_as_in_the_literature(members, length, inflation):
    # With 40 variables seen at every step of 0.05 with error 1, tuned filters of 10 members with
    # localization (Hunt et al., 2007) and of 24 without (Bocquet, 2011) reach 0.19 to 0.22.
    error, spread = cycled(members, length, inflation, 400, 300)
    assert 0.16 < error < 0.24
    assert 0.8 < spread / error < 1.25


def test_lorenz_is_lost_without_localization():
    # 10 members are fewer than the 13 directions that grow (Bocquet, 2011).
    error, _ = cycled(10, None, 1.03, 200, 50)
    assert error > 1


# ---------------------------------------------------------------- the planet's state


def test_the_planets_state_takes_what_is_added_to_its_columns():
    pytest.importorskip("jcm", reason="the circulation model is an extra, [planet]")
    import jax
    from dinosaur.primitive_equations import State
    from jcm.model import RunState

    from appa.data.planet.circulation import GRID, Circulation, Run
    from appa.data.planet.columns import Columns, Spectral

    circulation = Circulation()
    spectral = Spectral(circulation)
    # Two members at rest, with waves of temperature: modes beyond the truncation are zero.
    shape = (2, 8, *circulation.horizontal.modal_shape)
    zero = np.zeros(shape, np.float32)
    warm = zero.copy()
    warm[:, :, :4, 3] = 1.0
    state = State(zero, zero, warm, zero[:, :1], {"specific_humidity": zero}, np.zeros(2))
    rain = np.zeros((2, *GRID.shape[::-1]), np.float32)
    run = Run(RunState(state, {}, np.zeros(2), np.zeros(2)), rain)

    before = spectral.read(run)
    same = spectral.add(run, Columns(*(np.zeros(x.shape) for x in before)))
    leaves = zip(*(jax.tree_util.tree_leaves(r) for r in (run, same)), strict=True)
    assert all(np.array_equal(a, b) for a, b in leaves)

    # What the truncation holds comes back: solid-body rotation about two axes, and harmonics.
    phi, lam = np.radians(GRID.latitude)[:, None], np.radians(GRID.longitude)
    u = np.cos(phi) + np.sin(phi) * np.cos(lam)
    v = -np.sin(lam) + 0 * phi
    wave = np.cos(phi) ** 3 * np.cos(3 * lam)
    scale = np.arange(1.0, 3.0)[:, None, None, None]  # of the two members
    level = np.arange(8.0)[:, None, None]
    added = Columns(
        u_wind=scale * level * u,
        v_wind=scale * level * v,
        temperature=scale * level * wave,
        humidity=1e-3 * scale * level * wave,
        log_pressure=0.01 * scale[:, 0] * (wave + 0.5),
        precipitation=-np.ones(before.precipitation.shape),
    )
    after = spectral.read(spectral.add(run, added))
    for name, tolerance in (("u_wind", 1e-4), ("v_wind", 1e-4), ("temperature", 1e-3)):
        change = np.asarray(getattr(after, name)) - np.asarray(getattr(before, name))
        np.testing.assert_allclose(change, getattr(added, name), rtol=0, atol=tolerance)
    change = np.asarray(after.humidity) - np.asarray(before.humidity)
    np.testing.assert_allclose(change, added.humidity, rtol=0, atol=1e-7)
    # The mean, the mass of air, is the model's.
    change = np.asarray(after.log_pressure) - np.asarray(before.log_pressure)
    np.testing.assert_allclose(change, 0.01 * scale[:, 0] * wave, rtol=0, atol=1e-6)
    assert (np.asarray(after.precipitation) == 0).all()


# ---------------------------------------------------------------- a planet that turns


class Turning:
    r"""Columns over flat ground that move a point eastward an hour, seen as the planet is."""

    class model:
        class dycore:
            class constants:
                p0 = 1e5

    sigma = np.array([0.1, 0.5, 0.9])

    def static(self):
        flat = np.zeros((48, 96), np.float32)
        return {"land_sea_mask": flat, "geopotential_at_surface": flat}

    def first(self, members, seed):
        from appa.data.planet.circulation import GRID, Run
        from appa.data.planet.columns import Columns

        rng = np.random.default_rng(seed)
        phi, lam = np.radians(GRID.latitude)[:, None], np.radians(GRID.longitude)
        basis = [np.ones((48, 96)) * np.sin(phi), np.cos(phi) ** 2 * np.ones_like(lam)]
        for m in (1, 2, 3):
            basis += [np.cos(phi) ** m * f(m * lam) for f in (np.cos, np.sin)]

        # few numbers tell all: truths lie in the span of a dozen members
        c = rng.normal(size=(members, len(basis)))
        wave = np.einsum("mb,bhw->mhw", c, np.array(basis))
        other = np.einsum("mb,bhw->mhw", c[:, ::-1], np.array(basis))
        level = np.array([3.0, -2.0, 1.0])[:, None, None]
        columns = Columns(
            u_wind=5 * level * other[:, None],
            v_wind=level * wave[:, None],
            temperature=260 + level * wave[:, None],
            humidity=1e-3 + 0 * level * wave[:, None],
            log_pressure=0.01 * other,
            precipitation=0 * wave,
        )
        return Run(tuple(x.astype(np.float32) for x in columns), np.zeros(members))

    def advance(self, run, days, every=1):
        from appa.data.planet.circulation import Run
        from appa.data.planet.vertical import sea_level_pressure, to_pressure_levels
        from appa.data.variables import LEVELS

        fields, state = [], run.state
        for _ in range(round(24 * days)):
            u, v, t, q, log_pressure, rain = map(np.asarray, state)
            p, ground = 1e5 * np.exp(log_pressure), np.zeros_like(log_pressure)
            up = [np.moveaxis(x, 1, 0) for x in (t, u, v, q)]
            pressure = 100.0 * np.array(LEVELS)
            found = to_pressure_levels(pressure, self.sigma, p, ground, *up)._asdict()
            found = {name: np.moveaxis(x, 0, 1) for name, x in found.items()}
            found |= {
                "2m_temperature": t[:, -1],
                "10m_u_component_of_wind": u[:, -1],
                "10m_v_component_of_wind": v[:, -1],
                "mean_sea_level_pressure": sea_level_pressure(p, ground, t[:, -1], 0.9),
                "sea_surface_temperature": ground + 290,
                "total_precipitation": rain,
            }
            fields.append({name: x.astype(np.float32) for name, x in found.items()})
            state = tuple(np.roll(x, 1, -1) for x in state)
        stacked = {name: np.stack([f[name] for f in fields], 1) for name in fields[0]}
        return Run(state, run.precipitation), stacked

    def look(self, run, hours=1):
        return self.advance(run, hours / 24)[1]

    def read(self, run):
        from appa.data.planet.columns import Columns

        return Columns(*run.state)

    def add(self, run, increments):
        from appa.data.planet.circulation import Run

        changed = tuple(
            np.asarray(x) + np.asarray(d) for x, d in zip(run.state, increments, strict=True)
        )
        return Run(tuple(x.astype(np.float32) for x in changed), run.precipitation)


def test_a_turning_planet_is_found_and_a_killed_filter_goes_on(tmp_path):
    pytest.importorskip("jax", reason="the circulation model is an extra, [planet]")
    import appa
    from appa.data.planet import statistics
    from appa.evaluation.cycling import Cycling, Settings
    from appa.evaluation.perfect import best, cycle, tune
    from appa.observations.networks import Satellite, named_network
    from appa.observations.reading import read_observations
    from appa.observations.synthesis import observe

    world, hours = Turning(), 2
    times = np.datetime64("2021-03-21T00", "ns") + np.arange(hours) * np.timedelta64(1, "h")
    settings = Settings(members=12, length=5000.0, depth=None, representation=0.0)
    cycling = Cycling(settings, world, world)
    first = world.first(12, seed=1)
    x = cycling.states(world.advance(world.first(1, seed=0), hours / 24)[1])[0]
    truth = cycling.space.standardizer.to_dataset(x, times, cycling.space.grid)
    static = {k: (("latitude", "longitude"), v) for k, v in world.static().items()}
    truth = truth.assign(static)
    satellite = Satellite(variables=("temperature", "u_component_of_wind"))
    network = replace(named_network(cycling.space.grid), satellites=(satellite,))
    seen = observe(truth, network, statistics=statistics())
    seen = read_observations(list(seen))
    options = {"cycling": cycling, "first": first}

    def error(temperature):
        off = temperature.mean("member") - truth["temperature"]
        return off.std(("level", "latitude", "longitude")).values

    ds = appa.open_store(cycle(seen, times[0], hours, tmp_path / "a.zarr", **options))
    assert ds["temperature"].dims == ("member", "time", "level", "latitude", "longitude")
    np.testing.assert_array_equal(ds["time"].values, times)
    known = ds["temperature"].copy(data=world.advance(first, hours / 24)[1]["temperature"])
    assert error(ds["temperature"])[-1] < 0.1 * error(known)[-1]

    # Killed after the first of its two cycles, it goes on, or begins again if that was not saved
    # yet, to the same analyses.
    class Killed(Cycling):
        left = 1

        def __call__(self, *args):
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            return super().__call__(*args)

    again = {**options, "cycling": Killed(settings, world, world)}
    with pytest.raises(KeyboardInterrupt):
        cycle(seen, times[0], hours, tmp_path / "b.zarr", **again)
    assert not (tmp_path / "b.zarr").exists()
    again["cycling"].left = 2
    same = appa.open_store(cycle(seen, times[0], hours, tmp_path / "b.zarr", **again))
    np.testing.assert_array_equal(ds["temperature"].values, same["temperature"].values)

    # Tuning tells of the same analyses, and of one that sees both hours at once.
    table = tune(seen, truth, times[0], hours, {"every": [1, 2]}, **options)
    assert table["crps"].is_monotonic_increasing
    assert (table["error"] < 0.1).all()
    area = np.cos(np.radians(truth["latitude"]))
    off = (ds - truth).mean("member") ** 2
    std = statistics().sel(statistic="std")
    found = []
    for name in cycling.space.standardizer.names:
        if name != "sea_surface_temperature":
            per = np.sqrt(off[name].weighted(area).mean(("time", "latitude", "longitude")))
            found += np.atleast_1d((per / std[name]).values).tolist()
    by_hour = table.set_index("every").loc[1]
    np.testing.assert_allclose(by_hour["error"], np.mean(found), rtol=0.01)
    scores = appa.evaluate(ds, truth, by="all", statistics=statistics())
    scores = scores["crps_standardized"].sel(channel=scores["channel"] != "sst")
    np.testing.assert_allclose(by_hour["crps"], scores.mean(), rtol=0.01)
    with pytest.raises(DataError, match="multiples"):
        cycle(seen, times[0], 2, tmp_path / "c.zarr", discard=2, **options)

    # What is best knows the trajectory it was tuned on, of which nothing is cycled.
    chosen = best(table)
    assert chosen == replace(
        settings, every=int(table["every"][0]), tuned=(("2021-03-21T00", "2021-03-21T01"),)
    )
    assert Settings.load(chosen.save(tmp_path / "tuned.json")) == chosen
    with pytest.raises(DataError, match="tuned on 2021-03-21T00 to 2021-03-21T01, which"):
        cycle(seen, times[1], 1, tmp_path / "c.zarr", first=first,
              cycling=Cycling(replace(chosen, every=1), world, world))  # fmt: skip
    assert not (tmp_path / "c.zarr").exists()
    # one value of none among numbers, and none that survives
    table = table.assign(length=[None, 500.0])
    table.attrs["grid"]["length"] = [None, 500.0]
    assert best(table).length is None
    with pytest.raises(DataError, match="survived none"):
        best(table.assign(crps=np.nan))

    # Members -3, 1 and 2 deviations from the truth have an exact mean and a CRPS of 2 - 10/6, those
    # all 0.2 from it have 0.2 of both: the latter are better.
    class Known(Cycling):
        def tuned(self, **chosen):
            return Known(replace(self.settings, **chosen), world, world)

        def __call__(self, run, operators):
            self.now = getattr(self, "now", 0) + 1
            return run, {"temperature": np.zeros(1)}

        def states(self, fields):
            shifts = [-3.0, 1.0, 2.0] if self.settings.inflation == 1 else [0.2, 0.2, 0.2]
            return (
                x[None, self.now - 1 : self.now] + torch.tensor(shifts)[:, None, None, None, None]
            )

    known = Known(Settings(members=3), world, world)
    table = tune(seen, truth, times[0], hours, {"inflation": [1.0, 2.0]}, cycling=known,
                 first=first)  # fmt: skip
    assert best(table).inflation == 2
    np.testing.assert_allclose(table["crps"], [0.2, 1 / 3], rtol=1e-3)
    np.testing.assert_allclose(table["error"], [0.2, 0], atol=1e-3)

    # one setting after the other: the better inflation is kept while relaxations are tried
    choices = {"inflation": [1.0, 2.0], "relaxation": [0.7, 0.5, 0.9]}
    table = tune(seen, truth, times[0], hours, choices, cycling=known, first=first)
    assert set(zip(table["inflation"], table["relaxation"], strict=True)) == {
        (1.0, 0.7), (2.0, 0.7), (2.0, 0.5), (2.0, 0.9)
    }  # fmt: skip
    assert len(table) == 4


def test_edges_of_what_was_tried():
    from appa.evaluation.cycling import Settings
    from appa.evaluation.tuning import edges

    grid = {"length": (500.0, 350.0, 800.0), "depth": (0.3, None), "relaxation": (0.7, 0.5, 0.9)}
    assert edges(Settings(length=500.0, depth=None), grid) == []  # none is as large as can be
    assert edges(Settings(length=800.0, depth=None, relaxation=0.5), grid) == [
        "the best length, 800, is the largest that was tried",
        "the best relaxation, 0.5, is the least that was tried",
    ]
