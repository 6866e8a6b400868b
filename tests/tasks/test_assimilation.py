r"""Reanalysis, filter and forecast with a small model that knows nothing: how they hang together.

Whether posteriors are right is in `tests/exact`.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr

import appa.diffusion.sequential as sequential
import appa.tasks.assimilation as assimilation
import appa.tasks.background as background
import appa.tasks.runs as runs
from appa.diffusion.guidance.linear import Linearized
from appa.diffusion.likelihood import probed_strength
from appa.diffusion.sampling import Noise
from appa.errors import AppaError, ConfigError
from appa.observations import observables
from appa.observations.checks import huber_weights
from appa.tasks.analyses import past_latents
from appa.tasks.likelihood import StatesLikelihood
from appa.tasks.loading import load
from appa.tasks.model import Model
from appa.tasks.settings import Settings

from . import small

START = "2001-01-01T03"
STEPS = {"steps": 6}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Model:
    folder = tmp_path_factory.mktemp("model")
    found = load(small.write_model(folder, denoiser=True))
    found.origin = "small"
    return found


def stations(hours: int = 4, error: float = 0.5, **columns) -> pd.DataFrame:
    r"""Two stations' temperatures, every hour but the second."""
    seen = [k for k in range(hours) if k != 1]
    time = np.datetime64(START) + np.repeat(seen, 2).astype("timedelta64[h]")
    n = len(time)
    rows = {
        "time": time,
        "latitude": np.tile([10.0, 40.0], n // 2),
        "longitude": np.tile([20.0, 200.0], n // 2),
        "variable": "2m_temperature",
        "level": np.nan,
        "value": 280 + 3 * np.sin(np.arange(n)),
        "error": error,
        "station": np.tile(["a", "b"], n // 2),
        "elevation": np.nan,
    }
    return pd.DataFrame(rows | columns)


# An untrained model does not know what its decoder lacks, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:small does not know what its decoder:UserWarning")


def same(a: xr.Dataset, b: xr.Dataset, tolerance: float = 0.0) -> None:
    for name in a.data_vars:
        np.testing.assert_allclose(a[name].values, b[name].values, rtol=0, atol=tolerance)


# ---------------------------------------------------------------- what comes out


def test_reanalysis(model):
    a = model.reanalysis(stations(), START, 4, members=3, seed=1, **STEPS)
    assert dict(a.sizes) | {"member": 3, "time": 4, "level": 2} == dict(a.sizes)
    assert a["time"].values[0] == np.datetime64(START)
    assert a["2m_temperature"].attrs["units"] == "K"
    assert a.attrs["seed"] == 1
    assert a.attrs["solver_products"] > 0
    # members differ, the same seed is the same answer, and another one another
    assert a["2m_temperature"].std("member").min() > 0
    same(a, model.reanalysis(stations(), START, 4, members=3, seed=1, **STEPS))
    other = model.reanalysis(stations(), START, 4, members=3, seed=2, **STEPS)
    assert abs(a - other)["temperature"].max() > 0.1


@pytest.mark.parametrize("mode", ["composed", "sequential"])
def test_batches_and_other_members_change_nothing(model, mode):
    options = {"seed": 1, "mode": mode, **STEPS}
    a = model.reanalysis(stations(7), START, 7, members=3, **options)
    same(a, model.reanalysis(stations(7), START, 7, members=3, batch=1, **options), 1e-3)
    two = model.reanalysis(stations(7), START, 7, members=2, **options)
    same(a.isel(member=slice(2)), two, 1e-3)  # kelvins: 1e-4 of a standard deviation


@pytest.mark.parametrize("mode", ["composed", "sequential"])
def test_curved_observables_are_probed(model, monkeypatch, mode):
    r"""And they alone; batches and other members change nothing, other seeds and windows do."""
    monkeypatch.setattr(observables, "REGISTRY", dict(observables.known()))

    @observables.observable("far", units="K2", inputs=("2m_temperature",))
    def far(t):
        return (t - 280) ** 2

    settings = Settings.of(model.config, mode=mode, **STEPS)
    settings = settings.model_copy(update={"curvature": None})
    linear, _ = assimilation.given_observations(model, stations(), START, 4, settings)
    assert linear.observed(0, range(4)).curved is None
    odd = stations(7, error=50.0)
    odd = odd.assign(variable=["far", "2m_temperature"] * 6, value=[9.0, 281.0] * 6)
    both, _ = assimilation.given_observations(model, odd, START, 7, settings)
    seen = both.observed(0, range(4))
    assert seen.curved.tolist() == [False, True] * 3  # an hour's variables of the state come first
    a = both.draw(range(2), seed=1)
    rounding = 1e-4 + 1e-5 * a.abs().max()  # latents of an untrained model may be large
    assert (a[1] - both.draw([1], seed=1)[0]).abs().max() < rounding
    assert (a - both.draw(range(2), seed=1, batch=1)).abs().max() < rounding
    numbers = [n for s, start in ((1, 0), (1, 1), (2, 0)) for n in both._numbers([0, 1], s, start)]
    assert len(set(numbers)) == 6
    both.settings = both.settings.model_copy(update={"curvature": 0})
    both.guidance = both.settings.guidance_of()
    assert (a - both.draw(range(2), seed=1)).abs().max() > 10 * rounding


def test_without_observations_it_is_the_prior(model):
    a = model.reanalysis(None, START, 4, members=2, seed=3, **STEPS)
    prior = model.sample(START, 4, members=2, seed=3, **STEPS)
    same(a.drop_vars("latents"), prior, 1e-3)


def test_a_filter_is_the_last_hour(model):
    a = model.reanalysis(stations(), START, 4, members=2, **STEPS)
    last = model.filter(stations(), START, 4, members=2, **STEPS)
    same(a.isel(time=[-1]), last)


def test_states_that_are_seen_come_back(model):
    r"""Of a state the decoder can make, seen everywhere: within its errors."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(1, 4, *model.config.latent_shape, generator=generator)
    times = np.datetime64(START) + np.arange(4)
    truth = model.to_dataset(z, times).isel(member=0)
    fields = truth[["2m_temperature", "temperature"]]
    seen = fields.assign({f"{n}_error": xr.full_like(fields[n], 0.1) for n in fields.data_vars})
    a = model.reanalysis(
        seen, START, 4, members=2, steps=16, iterations=30, tolerance=0, representation="none"
    )
    for name in fields.data_vars:
        error = (a[name] - truth[name]) / 0.1
        assert float((error**2).mean()) < 1.0
    # without, it is another state altogether
    prior = model.reanalysis(None, START, 4, members=2, steps=16)
    assert float((((prior - truth)["temperature"] / 0.1) ** 2).mean()) > 100


# ---------------------------------------------------------------- forecasts


@pytest.mark.parametrize("all_at_once", [False, True])
def test_a_forecast_goes_on(model, all_at_once):
    r"""From the latents of an analysis: its hours are those after, and the past is its own."""
    a = model.reanalysis(stations(), START, 4, members=2, **STEPS)
    settings = Settings.of(model.config, iterations=200, tolerance=1e-4, steps=12)
    options = {"settings": settings, "all_at_once": all_at_once}
    f = assimilation.forecast(model, a, 5, **options)
    assert f["time"].values[0] == a["time"].values[-1] + np.timedelta64(1, "h")
    assert f.sizes["time"] == 5
    assert f.sizes["member"] == 2
    past, times = past_latents(model, a, 2)
    assert (times == a["time"].values[-2:]).all()
    np.testing.assert_array_equal(past, a["latents"].values[:, -2:])
    # each member goes on from its own past, one after the other where there are more
    more = assimilation.forecast(model, a, 5, members=3, **options)
    same(more.isel(member=slice(2)), f, 1e-3)
    assert abs(more.isel(member=0) - more.isel(member=2))["temperature"].max() > 0.01


def test_a_forecast_from_states(model):
    r"""Which are encoded; fewer than asked for do, and those before a gap are left out."""
    ds = small.states().isel(time=slice(0, small.GAP + 1))
    past, times = past_latents(model, ds, 4)
    assert past.shape[:2] == (1, 1)  # after the gap there is one hour
    assert times[0] == ds["time"].values[-1]
    past, times = past_latents(model, ds.isel(time=slice(0, 3)), 2)
    x = model.standardizer.to_tensor(ds.isel(time=slice(1, 3)))
    with torch.no_grad():
        assert torch.allclose(past[0], model.encode(x), rtol=0, atol=1e-5)
    f = model.forecast(ds.isel(time=slice(0, 2)), 3, members=2, **STEPS)
    assert f.sizes["member"] == 2
    assert f["time"].values[0] == ds["time"].values[2]


def test_a_forecasts_mode(model):
    r"""A mode that is asked for is taken; what has nothing to act on is refused."""
    past, once = small.states().isel(time=slice(0, 2)), {"members": 1, "seed": 4, **STEPS}
    composed = model.forecast(past, 4, mode="composed", **once)
    xr.testing.assert_identical(model.forecast(past, 4, all_at_once=True, **once), composed)
    other = model.forecast(past, 4, **once)
    assert abs(other - composed)["temperature"].max() > 0.01
    settings = Settings.of(model.config, mode="composed", **STEPS)
    own = assimilation.forecast(model, past, 4, members=1, seed=4, settings=settings)
    xr.testing.assert_identical(own, composed)
    with pytest.raises(ConfigError, match="background=check, which is about observations"):
        model.forecast(past, 4, background="check")
    with pytest.raises(ConfigError, match="all hours at once are asked for"):
        model.forecast(past, 4, mode="sequential", all_at_once=True)


def test_new_hours_a_window(model):
    f = model.forecast(small.states().isel(time=slice(0, 2)), 4, members=1, new=1, past=2, **STEPS)
    assert f.sizes["time"] == 4


# ---------------------------------------------------------------- going on after a kill


@pytest.mark.parametrize("mode", ["composed", "sequential"])
@pytest.mark.parametrize("dies", [4, 9])
def test_killed_it_goes_on(model, tmp_path, monkeypatch, mode, dies):
    r"""In the first part or in the second, with the attributes it would have had."""
    options = {"members": 3, "seed": 5, "mode": mode, "batch": 2, "latents": True, **STEPS}
    whole = model.reanalysis(stations(7), START, 7, out=tmp_path / "whole.zarr", **options).load()
    integrate = assimilation.Posterior.draw
    steps = 0

    def dying(self, *args, **kwargs):
        def advance():
            nonlocal steps
            steps += 1
            if steps == dies:
                raise KeyboardInterrupt

        return integrate(self, *args, **(kwargs | {"advance": advance}))

    out = tmp_path / "a.zarr"
    with monkeypatch.context() as patch:
        patch.setattr(assimilation.Posterior, "draw", dying)
        with pytest.raises(KeyboardInterrupt):
            model.reanalysis(stations(7), START, 7, out=out, **options)
    assert not out.exists()
    with pytest.raises(AppaError, match="seed"):
        model.reanalysis(stations(7), START, 7, out=out, **(options | {"seed": 6}))
    resumed = model.reanalysis(stations(7), START, 7, out=out, **options)
    same(whole, resumed.load())
    assert whole.attrs["solver_products"] > 0
    assert resumed.attrs == whole.attrs
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.zarr", "whole.zarr"]


# ---------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"start": "2001-01-01T03:30"}, "one whole hour"),
        ({"hours": 0}, "1 hour or more"),
        ({"members": 0}, "found members=0, expected 1"),
        ({"seed": -1}, "found seed=-1, expected 0"),
        ({"workers": 0}, "found workers=0, expected 1"),
        ({"start": "2002-01-01T00"}, "no observation is left"),
        ({"variables": ["2m_temperatur"]}, "2m_temperature"),
        ({"steps": 0}, "steps"),
        ({"guidance": "mmpss"}, "mmps"),
        ({"setting": "papper"}, "did you mean 'paper'"),
        ({"past": 4}, "past"),
    ],
)
def test_what_is_wrong_is_told(model, change, told):
    arguments = {"observations": stations(), "start": START, "hours": 4, **STEPS} | change
    with pytest.raises(AppaError, match=told):
        model.reanalysis(**arguments)


def test_the_papers_setting(model):
    s = Settings.of(model.config, "paper", steps=7)
    assert (s.sampler, s.steps, s.corrections, s.iterations) == ("predictor-corrector", 7, 2, 2)
    assert (s.representation, s.residual, s.mode) == ("none", False, "composed")
    assert s.stride == model.config.sampling.stride
    a = model.reanalysis(stations(), START, 4, members=1, setting="paper", steps=3)
    assert np.isfinite(a["temperature"].values).all()


# ---------------------------------------------------------------- gross errors


@pytest.mark.parametrize("method", ["check", "huber"])
def test_gross_errors_do_not_count(model, method):
    r"""A value that is plausible, but far from anything the prior draws."""
    good = stations()
    bad = good.assign(value=np.where(good.index == 2, 320.0, good["value"]))
    options = {"members": 2, "seed": 1, "steps": 12}
    without = model.reanalysis(good.drop(index=2), START, 4, **options)
    fooled = model.reanalysis(bad, START, 4, **options)
    told = pytest.warns(UserWarning, match=r"too far from the background")
    with told if method == "check" else nullcontext():
        kept = model.reanalysis(bad, START, 4, background=method, threshold=10.0, **options)
    untouched = model.reanalysis(good, START, 4, background=method, threshold=10.0, **options)
    name = "2m_temperature"

    def distance(a, b):
        return float(abs(a[name] - b[name]).max())

    assert distance(untouched, model.reanalysis(good, START, 4, **options)) < 1e-3
    share = distance(kept, without) / distance(fooled, without)
    assert share < (1e-3 if method == "check" else 0.2)
    if method == "check":  # what is left out makes no fit better
        one, other = (json.loads(a.attrs["fit"])[name] for a in (kept, without))
        assert one == pytest.approx(other, rel=1e-2)


@pytest.mark.parametrize("represented", [1.0, 1.4])
def test_huber_bounds_what_a_gross_error_does(represented):
    r"""A thermometer of 0.2 K, 24 times the 0.73 K away that are expected: it moves the mean as
    one 5 times that far does, by 3.38 K, and farther out by no more."""
    error, expected, k = 0.2, 0.73, 5.0  # σ, of which a part joins later, and √(s² + σ²)
    spread = (expected**2 - error**2) ** 0.5
    grows = error / represented
    most = spread**2 / expected**2 * k * expected
    assert represented > 1 or most == pytest.approx(3.38, abs=0.01)
    d = expected * torch.tensor([0.5, 5.0, 24.0, -24.0, 2400.0], dtype=torch.float64)
    weight = huber_weights(d, torch.full_like(d, expected), k)
    own = [torch.full_like(d, x / grows) for x in (spread, error)]
    factor = background.inflation(weight, *own)
    variance = (factor * grows) ** 2 + error**2 - grows**2
    moved = spread**2 / (spread**2 + variance) * d
    exact = spread**2 / expected**2 * d[:1]
    np.testing.assert_allclose(moved, [*exact, most, most, -most, most], rtol=1e-12)


@pytest.mark.parametrize("dies", [2, 8])
def test_a_background_is_kept(model, tmp_path, monkeypatch, capsys, dies):
    r"""It is drawn once, as many windows at once as memory affords, and tells how far it is."""
    draw, drawn, steps = assimilation.Posterior.draw, [], 0
    monkeypatch.setattr(runs, "affordable", lambda *_: (3, None))
    monkeypatch.setattr(sys.modules["appa.progress"], "SHORT", 0.0)

    def dying(self, members, seed, **kwargs):
        def advance():
            nonlocal steps
            steps += 1
            kwargs["advance"]()
            if steps == dies:
                raise KeyboardInterrupt

        drawn.append((seed, len(members), kwargs["batch"]))
        return draw(self, members, seed, **(kwargs | {"advance": advance}))

    options = {"members": 1, "seed": 1, "background": "huber", "latents": True, **STEPS}
    whole = model.reanalysis(stations(), START, 4, out=tmp_path / "whole.zarr", **options).load()
    with monkeypatch.context() as patch:
        patch.setattr(assimilation.Posterior, "draw", dying)
        with pytest.raises(KeyboardInterrupt):
            model.reanalysis(stations(), START, 4, out=tmp_path / "a.zarr", **options)
        resumed = model.reanalysis(stations(), START, 4, out=tmp_path / "a.zarr", **options)
    same(whole, resumed.load())
    assert resumed.attrs == whole.attrs
    prior, member = (2**31, 16, 3), (1, 1, 1)
    # killed in the first, it goes on there; and after it, it is not drawn again
    assert drawn == ([prior, prior, member] if dies == 2 else [prior, member, member])
    assert "drawing the background: 1/6 steps" in capsys.readouterr().err


# ---------------------------------------------------------------- noise, memory, what is known


def test_noise_is_not_drawn_twice(model):
    r"""Neither by a forecast that goes on from an analysis with the same seed, nor a day later."""
    options = {"members": 1, "seed": 0, "mode": "sequential", **STEPS}
    noises = {}

    def hear(name):
        class Heard(Noise):
            def __call__(self, shape, *step):
                drawn = super().__call__(shape, *step)
                noises.setdefault(name, []).append(drawn.flatten()[:40])
                return drawn

        return Heard

    with pytest.MonkeyPatch.context() as patch:
        for name in ("analysis", "next"):
            patch.setattr(sequential, "Noise", hear(name))
            start = START if name == "analysis" else "2001-01-02T03"
            a = model.reanalysis(None, start, 7, **options)
        patch.setattr(sequential, "Noise", hear("forecast"))
        model.forecast(a.isel(time=slice(0, 4)), 3, members=1, seed=0, **STEPS)
    drawn = torch.stack([noise for part in noises.values() for noise in part])
    assert len(drawn) >= 5
    assert torch.corrcoef(drawn).fill_diagonal_(0).abs().max() < 5 / 40**0.5


@pytest.mark.parametrize("at_once", [1, 2])
def test_hours_decoded_apart_are_the_same_likelihood(model, at_once):
    r"""Departures, and products with the Jacobian and its transpose."""
    settings = Settings.of(model.config)
    wind = stations(error=1.0)
    posterior, _ = assimilation.given_observations(model, wind, START, 4, settings)
    whole = posterior.observed(0, range(4))
    apart = StatesLikelihood(model, posterior.operators, whole.covariance, at_once)
    generator = torch.Generator().manual_seed(0)
    z, w = torch.randn(2, 2, 4, *model.config.latent_shape, generator=generator)
    a, b = Linearized(whole, z), Linearized(apart, z)
    u = torch.randn(a.departure.shape, generator=generator)
    assert len(apart.groups) > 1
    for x, y in ((a.departure, b.departure), (a.A(w), b.A(w)), (a.At(u), b.At(u))):
        assert torch.allclose(x, y, rtol=1e-4, atol=1e-5)
    assert torch.allclose(b.At(u), a.At(u), rtol=1e-4, atol=1e-5)  # and once more


def test_what_is_excluded_is_told(model):
    rows = stations()
    bad = pd.concat([rows, rows.head(1).assign(latitude=123.0), rows.head(1).assign(value=np.nan)])
    with pytest.warns(UserWarning, match=r"(?s)left out.*coordinates"):
        model.reanalysis(bad, START, 4, members=1, steps=1)


def test_one_hour_tells_no_motion(model):
    with pytest.warns(UserWarning, match="starts from one hour"):
        model.forecast(small.states().isel(time=[0]), 2, members=1, steps=1)


def test_two_processes_draw_what_one_does(model, tmp_path):
    options = {"members": 3, "seed": 5, "batch": 1, **STEPS}
    alone = model.reanalysis(stations(), START, 4, **options)
    out = tmp_path / "a.zarr"
    apart = model.reanalysis(stations(), START, 4, workers=2, out=out, latents=True, **options)
    same(alone, apart.load(), 1e-4)
    assert apart.attrs["solver_products"] == alone.attrs["solver_products"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.zarr"]


def test_strength_is_probed_hour_by_hour(model, monkeypatch):
    r"""While all hours are linearized elsewhere, one more at a time fits in memory."""
    settings = Settings.of(model.config, **STEPS)
    posterior, _ = assimilation.given_observations(model, stations(), START, 4, settings)
    seen, z = posterior.observed(0, range(4)), torch.randn(1, 4, *model.config.latent_shape)
    expected = probed_strength(seen, z)
    sizes, linearize = [], model.linearize
    monkeypatch.setattr(model, "linearize", lambda z: sizes.append(z.shape[1]) or linearize(z))
    assert float(seen.strength(z)) == pytest.approx(float(expected), rel=1e-5)
    assert set(sizes) == {1}
    assert seen.strength(z) is seen.strength(z)
