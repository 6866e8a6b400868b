r"""Reanalyses of a small model that rains: from observed rain to what is written, in blocks of any
size.

The model is untrained, but knows that its decoder lacks much of the rain.
"""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr

import appa.tasks.ensembles as ensembles
import appa.tasks.plan as planning
from appa.config import load_config
from appa.data import statistics
from appa.data.writing import make_template
from appa.observations.reading import read_observations
from appa.observations.representation import Representation
from appa.tasks.building import build_autoencoder, build_denoiser
from appa.tasks.fields import blocks, fields
from appa.tasks.folders import gather
from appa.tasks.memory import SHARE, ResidualMemory
from appa.tasks.model import Model
from appa.tasks.output import EnsembleWriter
from appa.tasks.plan import plan
from appa.tasks.settings import Settings

from . import small
from .test_plan import Counter

SURFACE = ("2m_temperature", "10m_v_component_of_wind", "total_precipitation")
ATMOSPHERIC = ("temperature", "specific_humidity")
LEVELS = (500, 850, 1000)
RAIN = "total_precipitation"
START, HOURS = "2001-01-05T06", 3
OPTIONS = {"members": 3, "seed": 1, "steps": 12}
MM = 1e-3  # of rain, in metres


@pytest.fixture(scope="module")
def model() -> Model:
    r"""Rain is exponential, with a mean of 1 mm; what the decoder lacks of it is 0.8 of that."""
    data = {"surface": SURFACE, "atmospheric": ATMOSPHERIC, "levels": LEVELS}
    config = small.config(data=small.config().data.model_dump() | data)
    time = np.datetime64(START, "h") + np.arange(4)
    rng = np.random.default_rng(0)
    ds = make_template(
        time,
        config.grid.latitude,
        config.grid.longitude,
        LEVELS,
        surface=SURFACE,
        atmospheric=ATMOSPHERIC,
        static={"land_sea_mask": small.LAND},
    )
    for name in (*SURFACE, *ATMOSPHERIC):
        x = rng.normal(280, 5, ds[name].shape)
        if name in (RAIN, "specific_humidity"):
            x = rng.exponential(MM, ds[name].shape)
        ds[name] = ds[name].copy(data=x.astype(np.float32))
    stats = statistics.compute(ds, split=("2001-01-05", "2001-01-05"))
    torch.manual_seed(0)
    made = Model(
        config,
        build_autoencoder(config),
        build_denoiser(config),
        torch.zeros(3),
        torch.ones(3),
        gather(stats, ds),
        "rainy",
    )
    assert made.standardizer is not None
    channels = made.standardizer.channels
    std = [0.8 if c.variable == RAIN else 0.3 for c in channels]
    made.representation = Representation.of(
        config.grid,
        channels,
        std=np.array(std)[:, None, None],
        correlation=np.exp(-np.arange(24) / 6),
        length=1500.0,
    )
    return made


def gauges(amount: float = 6 * MM) -> pd.DataFrame:
    r"""Two gauges, one in heavy rain and one that stays dry, and a thermometer."""
    rows = [
        {
            "time": np.datetime64(START) + np.timedelta64(hour, "h"),
            "latitude": latitude,
            "longitude": longitude,
            "variable": variable,
            "level": np.nan,
            "value": value,
            "error": error,
        }
        for hour in (0, 2)
        for variable, latitude, longitude, value, error in (
            (RAIN, 45.0, 90.0, amount, 0.3 * MM),  # grid points
            (RAIN, -22.5, 225.0, 0.0, 0.1 * MM),
            ("2m_temperature", 0.0, 180.0, 285.0, 1.0),
        )
    ]
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def analysis(model) -> xr.Dataset:
    return model.reanalysis(gauges(), START, HOURS, **OPTIONS)


def same(a: xr.Dataset, b: xr.Dataset, tolerance: float = 1e-5) -> None:
    r"""To a share of a standard deviation of each variable, and what single precision rounds."""
    for name in a.data_vars:
        atol = tolerance * float(a[name].std())
        np.testing.assert_allclose(a[name].values, b[name].values, rtol=2e-7, atol=atol)


def test_batches_hardly_change_it(model, analysis):
    r"""Where it hardly rains, what is drawn depends steeply on what is decoded, and on its last
    digits."""
    apart = model.reanalysis(gauges(), START, HOURS, batch=1, **OPTIONS)
    same(analysis[[RAIN]], apart[[RAIN]], 1e-3)


def test_it_never_rains_below_zero(model, analysis):
    r"""Not before values are clipped either, where nothing is observed: Gaussian draws, 0.8 of the
    mean wide, would be in one of ten places."""
    prior = model.reanalysis(None, START, HOURS, negatives="keep", **OPTIONS)
    assert float(prior[RAIN].min()) > -1e-5 * MM
    assert float((prior[RAIN] < 0.02 * MM).mean()) > 0.02  # it is dry here and there
    assert float(analysis[RAIN].min()) >= 0
    # interpolation knows no bound: what it takes below is clipped, and told
    assert 0 < analysis[RAIN].attrs["negative_share"] < 0.5


def test_gauges_are_believed(model, analysis):
    r"""An analysis is within a few errors of what it saw, where the prior is ten away."""
    prior = model.reanalysis(None, START, HOURS, **OPTIONS)
    for place, value, error in (((45.0, 90.0), 6 * MM, 0.3 * MM), ((-22.5, 225.0), 0, 0.1 * MM)):
        at = {"latitude": place[0], "longitude": place[1], "method": "nearest"}
        found, free = (
            abs(ds[RAIN].sel(**at).isel(time=[0, 2]) - value) for ds in (analysis, prior)
        )
        assert float(found.max()) < 4 * error
        assert float(found.mean()) < float(free.mean()) / 3
    # between the two hours it goes on raining, and far away it is as it was
    between = analysis[RAIN].sel(latitude=45.0, longitude=90.0, method="nearest").isel(time=1)
    assert float(between.mean()) > 3 * MM
    far = {"latitude": -67.5, "longitude": 45.0, "method": "nearest"}
    assert float(analysis[RAIN].sel(**far).mean()) < 3 * MM


# ---------------------------------------------------------------- blocks


@pytest.mark.parametrize("most", [HOURS, 4 * HOURS, 20 * HOURS])
def test_blocks_change_nothing(model, analysis, monkeypatch, tmp_path, most):
    r"""One channel of one member held at once, a few, or two members: as with all."""
    monkeypatch.setattr(ensembles, "held", lambda model: most)
    apart = model.reanalysis(gauges(), START, HOURS, out=tmp_path / "a.zarr", **OPTIONS)
    same(analysis.drop_vars("latents"), apart.load())
    for name in (RAIN, "specific_humidity"):
        told = [ds[name].attrs["negative_share"] for ds in (analysis, apart)]
        assert told[0] == pytest.approx(told[1], abs=1e-3)
    if most == HOURS:
        one = model.reanalysis(gauges(), START, HOURS, batch=1, variables=[RAIN], **OPTIONS)
        same(analysis[[RAIN]], one[[RAIN]], 1e-3)  # latents are drawn apart too
        later = {"members": 3, "seed": 2, "steps": 2}
        f = model.forecast(analysis, 2, **later)
        monkeypatch.undo()
        same(model.forecast(analysis, 2, **later), f)
        assert float(f[RAIN].min()) >= 0


def test_killed_between_blocks_it_goes_on(model, monkeypatch, tmp_path):
    monkeypatch.setattr(ensembles, "held", lambda model: HOURS)
    options = OPTIONS | {"steps": 2}
    whole = model.reanalysis(gauges(), START, HOURS, out=tmp_path / "whole.zarr", **options).load()
    place, calls = EnsembleWriter._place, 0

    def dying(self, *args):
        nonlocal calls
        calls += 1
        if calls == 15:  # of nine channels of three members
            raise KeyboardInterrupt
        place(self, *args)

    out = tmp_path / "a.zarr"
    with monkeypatch.context() as patch:
        patch.setattr(EnsembleWriter, "_place", dying)
        with pytest.raises(KeyboardInterrupt):
            model.reanalysis(gauges(), START, HOURS, out=out, **options)
    assert not out.exists()
    same(whole, model.reanalysis(gauges(), START, HOURS, out=out, **options).load(), 0.0)


def test_blocks_are_as_large_as_they_may_be(model):
    chosen = fields(model)[0]
    channels = [c for field in chosen for c in field.channels]
    assert len(channels) == 9
    for most in (1, 2, 3, 5, 8, 9, 17, 18, 40):
        members, pieces = blocks(chosen, HOURS, most * HOURS + 1)
        assert members == max(1, most // 9)
        assert [c for piece in pieces for field in piece for c in field.channels] == channels
        sizes = [sum(len(field.channels) for field in piece) for piece in pieces]
        assert max(sizes) <= most
        # no two beside each other would fit together, but for levels that stay together
        assert most < 3 or all(a + b > most - 2 for a, b in pairwise(sizes))
    assert blocks(chosen, HOURS, 0)[0] == 1


# ---------------------------------------------------------------- plans


@pytest.mark.parametrize("most", [4 * HOURS, 1000])
def test_a_plan_counts_what_is_decoded(model, monkeypatch, most):
    for module in (ensembles, planning):
        monkeypatch.setattr(module, "held", lambda model: most)
    settings = Settings.of(model.config, steps=2, iterations=2, tolerance=0.0)
    seen = read_observations(gauges())
    for task, run in (("reanalysis", model.reanalysis), ("filter", model.filter)):
        planned = plan(model, task, HOURS, 2, seen, settings, start=START, measured=False)
        with Counter(model) as counts:
            run(seen, START, HOURS, members=2, settings=settings)
        assert counts["x"] == planned.passes.decoder_forward
    analysis = model.reanalysis(seen, START, HOURS, members=2, settings=settings)
    planned = plan(model, "forecast", 4, 2, None, settings, measured=False)
    with Counter(model) as counts:
        model.forecast(analysis, 4, members=2, settings=settings)
    assert counts["x"] == planned.passes.decoder_forward


def test_a_plan_counts_residuals(model, monkeypatch):
    r"""Where they are what takes most: many channels of many hours, drawn by a small model."""
    monkeypatch.setattr(planning, "decode_batch", lambda model: 1)
    settings = Settings.of(model.config, steps=1, iterations=1)
    options = {"settings": settings, "observations": 1.0, "members": 8}
    with_, without = (
        plan(model, "reanalysis", 240, variables=names, **options).memory
        for names in (None, ["2m_temperature"])
    )
    assert with_ is not None
    assert without is not None
    points = small.H * small.W
    assert with_ - without >= 4 * 8 * 240 * 8 * points - 2**20


@pytest.mark.parametrize("gib", [16, 80, 140])
def test_residuals_of_the_paper_fit(gib):
    r"""Thirteen members of two days at 0.25° would be 184 GB. What is held, and what drawing takes,
    are each a quarter of what is free."""
    config = load_config("era5-0.25deg")
    points, free = 721 * 1440, gib * 2**30
    assert 13 * 48 * len(config.channels) * points * 4 == pytest.approx(184e9, rel=0.01)
    memory = ResidualMemory(config, 48)
    most = memory.affordable(free)
    room = free // 4 // (4 * points)
    channels = SimpleNamespace(
        channels=config.channels,
        mean=torch.zeros(71, 1, 1),
        std=torch.ones(71, 1, 1),
        land=None,
    )
    stub = SimpleNamespace(config=config, origin="paper", unnamed=False, standardizer=channels)
    together, pieces = blocks(fields(stub)[0], 48, room)  # type: ignore[arg-type]
    widest = max(sum(len(field.channels) for field in piece) for piece in pieces)
    held = together * 48 * widest
    total = memory.total(min(most, together * widest), held)
    assert total <= SHARE * free
    assert held <= room
