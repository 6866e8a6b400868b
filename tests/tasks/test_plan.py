r"""What a run will cost, against what runs did."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr

import appa.tasks.plan as planning
import appa.tasks.runs as runs
from appa.config import load_config
from appa.errors import DataError
from appa.observations import observables
from appa.observations.reading import read_observations
from appa.observations.representation import Representation
from appa.tasks.assimilation import forecast, reanalysis
from appa.tasks.fields import fields
from appa.tasks.loading import load
from appa.tasks.measuring import Cost, interpolating, measure
from appa.tasks.memory import Memory, largest_window
from appa.tasks.model import Model
from appa.tasks.plan import Passes, passes, plan
from appa.tasks.runs import affordable
from appa.tasks.seen import coverage, curved_hours, seen_hours
from appa.tasks.settings import Settings

from . import small

START = "2001-01-03T00"
# of networks that were not trained, systems are ill-conditioned: only their cost is looked at
pytestmark = pytest.mark.filterwarnings("ignore:a linear system was left")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Model:
    folder = tmp_path_factory.mktemp("plan") / "small"
    folder.mkdir()
    return load(small.write_model(folder, denoiser=True))


def observed(hours: list[int], variable: str = "2m_temperature"):
    r"""Eight observations in each of some hours."""
    rows = [
        {
            "time": np.datetime64(START) + np.timedelta64(hour, "h"),
            "latitude": -60 + 15 * k,
            "longitude": 40.0 * k,
            "variable": variable,
            "level": np.nan,
            "value": 280.0 + k,
            "error": 1.0,
        }
        for hour in hours
        for k in range(8)
    ]
    return read_observations(pd.DataFrame(rows))


class Counter:
    r"""Counts passes through the networks: what goes forward, and what goes through it again, back
    or in products with its Jacobian."""

    def __init__(self, model: Model):
        self.model, self.counts = model, dict.fromkeys(("d", "d back", "x", "x back"), 0)

    def __enter__(self) -> dict[str, int]:
        self.decode, self.linearize = self.model.decode, self.model.linearize
        self.handle = self.model.denoiser.register_forward_hook(
            lambda module, args, y: self.see("d", y, len(y))
        )

        def decode(z):
            x = self.decode(z)
            self.see("x", x, z[..., 0, 0, 0].numel())
            return x

        def linearize(z):
            x, product = self.linearize(z)
            n = z[..., 0, 0, 0].numel()
            self.see("x", x, n)

            def counted(dz):
                self.counts["x back"] += n
                return product(dz)

            return x, counted

        self.model.decode = decode  # type: ignore[method-assign]
        self.model.linearize = linearize  # type: ignore[method-assign]
        return self.counts

    def see(self, name: str, y: torch.Tensor, n: int) -> None:
        self.counts[name] += n
        if y.requires_grad:
            y.register_hook(lambda g: self.counts.__setitem__(f"{name} back", self.back(name, n)))

    def back(self, name: str, n: int) -> int:
        return self.counts[f"{name} back"] + n

    def __exit__(self, *_: object) -> None:
        self.handle.remove()
        del self.model.decode, self.model.linearize


@pytest.mark.parametrize("guidance", ["mmps", "tmpd", "dps", "pgdm", "jfps"])
@pytest.mark.parametrize("mode", ["composed", "sequential"])
def test_a_reanalysis_costs_what_was_planned(model, guidance, mode):
    r"""Denoiser and decoder, forward and back, with hours observed here and there."""
    k, members = 3, 2
    settings = Settings.of(
        model.config,
        steps=2,
        guidance=guidance,
        iterations=k,
        tolerance=0.0,
        mode=mode,
        representation="none",
    )
    observations = observed([0, 1, 5])
    planned = plan(
        model, "reanalysis", 8, members, observations, settings, start=START, measured=False
    )
    with Counter(model) as counts:
        reanalysis(model, observations, START, 8, members=members, settings=settings, batch=1)
    p = planned.passes
    assert counts["d"] == p.denoiser_forward
    assert counts["d back"] == p.denoiser_backward
    assert counts["x"] == p.decoder_forward
    assert counts["x back"] == p.decoder_backward


@pytest.mark.parametrize("mode", ["composed", "sequential"])
def test_a_background_costs_what_was_planned(model, mode):
    r"""Members of the prior are drawn, and decoded where there are observations."""
    how = {"steps": 2, "iterations": 2, "tolerance": 0.0, "mode": mode, "representation": "none"}
    settings = Settings.of(model.config, background="huber", **how)
    observations = observed([0, 1, 5])
    without, planned = (
        plan(model, "reanalysis", 8, 1, observations, s, start=START, measured=False).passes
        for s in (Settings.of(model.config, **how), settings)
    )
    with Counter(model) as counts:
        reanalysis(model, observations, START, 8, members=1, settings=settings, batch=1)
    assert tuple(counts.values()) == planned.numbers
    assert planned.decoder_forward - without.decoder_forward == 16 * 3
    assert planned.denoiser_forward > 10 * without.denoiser_forward


@pytest.mark.parametrize("mode", ["composed", "sequential"])
@pytest.mark.parametrize("curvature", [None, 3])
def test_probes_are_planned(model, monkeypatch, mode, curvature):
    r"""Of windows with a curved observable, unless said otherwise, and while there is noise: the
    last of four levels is 0.001."""
    monkeypatch.setattr(observables, "REGISTRY", dict(observables.known()))

    @observables.observable("far", units="K2", inputs=("2m_temperature",))
    def far(t):
        return (t - 280) ** 2

    settings = Settings.of(
        model.config, steps=4, iterations=1, tolerance=0.0, mode=mode, representation="none"
    ).model_copy(update={"curvature": curvature})
    seen = observed([0, 1, 7]) + observed([1], "far")
    assert curved_hours(model, seen, START, 8).tolist() == [False, True] + [False] * 6
    assert not curved_hours(model, 1.0, START, 8).any()
    planned = plan(model, "reanalysis", 8, 1, seen, settings, start=START, measured=False)
    with Counter(model) as counts:
        reanalysis(model, seen, START, 8, members=1, settings=settings)
    p = planned.passes
    assert counts == {
        "d": p.denoiser_forward,
        "d back": p.denoiser_backward,
        "x": p.decoder_forward,
        "x back": p.decoder_backward,
    }
    none = settings.model_copy(update={"curvature": 0})
    least = plan(model, "reanalysis", 8, 1, seen, none, start=START, measured=False).passes
    assert p.denoiser_backward > least.denoiser_backward


@pytest.mark.parametrize("mode", ["composed", "sequential"])
def test_a_forecast_costs_what_was_planned(model, mode):
    settings = Settings.of(model.config, steps=3, iterations=2, tolerance=0.0, mode=mode)
    planned = plan(model, "forecast", 6, 2, None, settings, measured=False)
    past = small.states().isel(time=slice(0, 2))
    with Counter(model) as counts:
        forecast(model, past, 6, members=2, settings=settings, all_at_once=mode == "composed")
    p = planned.passes
    assert counts == {
        "d": p.denoiser_forward,
        "d back": p.denoiser_backward,
        "x": p.decoder_forward,
        "x back": 0,
    }
    assert p.decoder_forward == 12
    assert p.decoder_backward == 0


def test_the_paper():
    r"""Its reanalysis of a day: 32 steps of 3 evaluations, 2 iterations, every hour observed."""
    config = load_config("era5-0.25deg")
    stub = SimpleNamespace(
        config=config,
        grid=config.grid,
        origin="paper",
        unnamed=False,
        representation=None,
        device=torch.device("cpu"),
        standardizer=SimpleNamespace(
            channels=config.channels,
            mean=torch.zeros(71, 1, 1),
            std=torch.ones(71, 1, 1),
            land=None,
        ),
    )
    found = plan(stub, "reanalysis", 24, 1, 1.0, Settings.of(config, "paper"), measured=False)  # type: ignore[arg-type]
    assert found.passes == Passes(96, 2 * 96, 24 * 96 + 24, 4 * 24 * 96)
    assert found.solves == 96
    assert found.disk == 24 * 71 * 721 * 1440 * 4
    assert "96 forward, 192 backward" in str(found)


def test_passes():
    assert passes("mmps", 5, False, 0) == Passes(1)
    assert passes("mmps", 5, True, 0) == Passes(1, 5)  # hours that are given are not decoded
    assert passes("mmps", 5, True, 10) == Passes(1, 5, 10, 100)
    assert passes("mmps", 5, True, 10, probes=2) == Passes(1, 7, 90, 100)


def test_hours_that_are_seen():
    assert seen_hours(None, None, 3).tolist() == [False] * 3
    assert seen_hours(1.0, None, 5).all()
    assert seen_hours(0.25, None, 48).sum() == 12
    assert np.flatnonzero(seen_hours(observed([0, 2]), START, 4)).tolist() == [0, 2]
    with pytest.raises(DataError, match="--start"):
        seen_hours(observed([0]), None, 4)
    with pytest.raises(DataError, match="share"):
        seen_hours(24.0, None, 4)


def test_memory_is_planned_for_what_a_run_asks_for(model, monkeypatch):
    r"""The window with most observations, not the mean of windows."""
    asked = []

    def heard(model, settings, observed, observations, workers=1):
        asked.append((observed, observations))
        return affordable(model, settings, observed, observations, workers)

    for module in (runs, planning):
        monkeypatch.setattr(module, "affordable", heard)
    one = {"steps": 1, "iterations": 1, "representation": "none"}
    seen, settings = observed([0, 1, 2, 9]), Settings.of(model.config, **one)
    plan(model, "reanalysis", 12, 1, seen, settings, start=START)
    reanalysis(model, seen, START, 12, members=1, settings=settings)
    assert asked == [(4, 32)] * 2  # of windows of 4 hours, at most
    assert largest_window([3, 9, 1, 5], 2) == (2, 14)
    assert largest_window([], 2) == (0, 0)


def test_coverage(model):
    r"""Eight cells of an even grid, of areas that differences of sines give."""
    points = observed([0, 3]).points[:8]
    row = np.rint(points["latitude"] / 22.5)
    south, north = np.deg2rad(22.5 * (row - 0.5)), np.deg2rad(22.5 * (row + 0.5))
    expected = 100 * (np.sin(north) - np.sin(south)).sum() / 2 / small.W
    hour, ever = coverage(observed([0, 3]), model.grid)
    assert (hour, ever) == pytest.approx((expected, expected), rel=1e-6)  # the same in both hours

    field = np.full((1, small.H, small.W), np.nan)
    field[0, 2] = 280.0  # a whole circle of latitude
    dims = ("time", "latitude", "longitude")
    seen = xr.Dataset(
        {"2m_temperature": (dims, field), "2m_temperature_error": (dims, field / 280)},
        {
            "time": [np.datetime64(START, "ns") + np.timedelta64(1, "h")],
            "latitude": np.asarray(model.grid.latitude),
            "longitude": np.asarray(model.grid.longitude),
        },
    )
    seen["2m_temperature"].attrs["units"] = "K"
    south, north = np.deg2rad(45 - 11.25), np.deg2rad(45 + 11.25)
    circle = 100 * (np.sin(north) - np.sin(south)) / 2
    inside = 100 * ((row == 2) / small.W).sum() * (np.sin(north) - np.sin(south)) / 2
    both = observed([0, 3]) + read_observations(seen)
    hour, ever = coverage(both, model.grid)
    assert hour == pytest.approx((2 * expected + circle) / 3, rel=1e-6)
    assert ever == pytest.approx(expected + circle - inside, rel=1e-6)


def test_measured(model):
    r"""Time is positive and adds up."""
    cost = measure(model, windows=2)
    assert min(cost.seconds) > 0
    weights = [*model.autoencoder.parameters(), *model.denoiser.parameters()]
    assert cost.weights == 4 * sum(p.numel() for p in weights)
    settings = Settings.of(model.config, steps=2, iterations=2)
    found = plan(model, "filter", 4, 2, 1.0, settings)
    assert found.seconds is not None
    assert found.memory is not None
    assert found.memory > cost.weights + Memory.of(model, settings).total(2, 4, 0, 1)
    assert "2 members at once; from one pass of each kind" in str(found)
    assert found.disk == 2 * 4 * 4 * small.H * small.W


def test_what_the_decoder_lacks_is_in_the_time(model, monkeypatch):
    r"""Systems are solved to draw it given observations, and nothing but these takes longer."""
    settings, taken = Settings.of(model.config, steps=1), []
    monkeypatch.setattr(planning, "measure", lambda *_: Cost((0.0, 0.0, 0.0, 0.0), 0))

    def seconds(seen: float, **changes) -> float:
        found = plan(model, "filter", 4, 3, seen, settings.model_copy(update=changes))
        taken.append("to draw what the decoder lacks" in str(found))
        assert found.seconds is not None
        return found.seconds

    assert seconds(1.0) == 0
    persists = np.exp(-np.arange(24) / 30)
    rep = Representation.of(model.grid, model.standardizer.channels, 0.3, persists, 1500.0)
    monkeypatch.setattr(model, "representation", rep)
    once = interpolating(model, fields(model)[0], 4, 1)
    assert once > 0
    monkeypatch.setattr(planning, "interpolating", lambda *_: once)
    assert seconds(1.0) == pytest.approx(3 * planning.INTERPOLATED * once)
    assert seconds(0.0) == seconds(1.0, residual=False) == 0
    assert taken == [False, True, False, False]


def test_mistakes_are_named(model):
    settings = Settings.of(model.config)
    with pytest.raises(DataError, match="expected reanalysis, filter, forecast"):
        plan(model, "hindcast", 4, 2, 1.0, settings, measured=False)
    with pytest.raises(DataError, match="members must be 1 or more, found 0"):
        plan(model, "filter", 4, 0, 1.0, settings, measured=False)
    assert len(fields(model)[0]) == 3
