r"""What the decoder cannot express, drawn in the end: a small model that knows of it.

Whether it is drawn right is in `tests/observations/test_residual.py`.
"""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr

import appa.tasks.ensembles as ensembles
from appa.errors import AppaError
from appa.observations import observables
from appa.observations.operators import StateSpace, compile_observations
from appa.observations.reading import read_observations
from appa.observations.representation import Representation
from appa.tasks.decoding import decode_store
from appa.tasks.loading import load
from appa.tasks.model import Model
from appa.tasks.posterior import Posterior

from . import small
from .test_assimilation import START, STEPS, same, stations


@pytest.fixture(scope="module")
def knowing(tmp_path_factory) -> Model:
    r"""The small model, which knows that its decoder lacks something that lasts."""
    folder = tmp_path_factory.mktemp("knowing") / "model"
    folder.mkdir()
    small.write_model(folder, denoiser=True)
    made = load(folder)
    assert made.standardizer is not None
    rep = Representation.of(
        made.grid,
        made.standardizer.channels,
        std=0.3,
        correlation=np.exp(-np.arange(24) / 30),
        length=1500.0,
    )
    rep.save(folder / "representation.nc")
    return load(folder)


@pytest.fixture
def registered(monkeypatch):
    r"""Observables of several fields at a place, and of a whole one."""
    monkeypatch.setattr(observables, "REGISTRY", dict(observables.known()))

    @observables.observable(
        "lapse", units="K", inputs=("temperature_850", "temperature_500", "2m_temperature")
    )
    def lapse(low, high, surface):
        return low - 0.5 * high - 0.5 * surface

    @observables.observable("mean_field", units="K", inputs=("2m_temperature",), local=False)
    def mean_field(t):
        return t - t.mean((-2, -1), keepdim=True) + 280


def residual_of(model: Model, ds: xr.Dataset) -> np.ndarray:
    r"""What was added to decoded states, in standard deviations."""
    z = torch.from_numpy(ds["latents"].values)
    with torch.no_grad():
        decoded = model.decode(z)
    names = ["2m_temperature", "temperature"]  # SST is undefined over land
    x = model.standardizer.to_tensor(ds.drop_vars("latents"))  # type: ignore[union-attr]
    keep = [k for k, c in enumerate(model.standardizer.channels) if c.variable in names]  # type: ignore[union-attr]
    return (x - decoded)[:, :, keep].numpy()


def test_residuals_are_drawn_with_and_without_observations(knowing):
    options = {"members": 4, "seed": 1, **STEPS}
    for seen in (stations(), None):
        a = knowing.reanalysis(seen, START, 4, **options)
        r = residual_of(knowing, a)
        # with stations they are also what an untrained decoder misses them by
        assert 0.2 < r.std() < (0.4 if seen is None else 1.0)
        # they last, as they are said to: 0.97 from hour to hour
        assert 0.9 < np.corrcoef(r[:, 0].ravel(), r[:, 1].ravel())[0, 1] < 1.0
    off = knowing.reanalysis(stations(), START, 4, residual=False, **options)
    assert np.abs(residual_of(knowing, off)).max() < 1e-4


@pytest.mark.parametrize("fits", [True, False])
def test_processes_draw_what_the_decoder_lacks_where_it_fits(knowing, monkeypatch, fits):
    options = {"members": 2, "seed": 5, "batch": 1, "variables": ["temperature"], **STEPS}
    alone = knowing.reanalysis(stations(), START, 4, **options)
    drawn, residual = [], Posterior.residual
    monkeypatch.setattr(Posterior, "residual", lambda *a: drawn.append(a) or residual(*a))
    if not fits:
        monkeypatch.setattr(ensembles, "held", lambda model: 1)
    apart = knowing.reanalysis(stations(), START, 4, workers=2, **options)
    same(alone, apart, 1e-4)
    assert len(drawn) == (0 if fits else 2)  # here
    for name in ("solver_products", "residual_unused"):
        assert apart.attrs[name] == alone.attrs[name]


@pytest.mark.parametrize("seen", [True, False])
def test_it_is_drawn_again_when_latents_are_decoded(knowing, tmp_path, seen):
    options = {"members": 2, "seed": 5, "latents": True, **STEPS}
    table, path = stations() if seen else None, tmp_path / "a.zarr"
    whole = knowing.reanalysis(table, START, 4, out=path, **options)
    done = decode_store(knowing, path, tmp_path / "b.zarr", ["temperature"], observations=table)
    with xr.open_dataset(done) as again:
        same(again[["temperature"]], whole, 1e-4)
        assert "fit" not in again.attrs  # that was of all variables
        assert json.loads(again.attrs["settings"])["residual"]
        assert "comment" not in again.attrs
    if not seen:
        return
    done = decode_store(knowing, path, tmp_path / "c.zarr", ["temperature"])
    with xr.open_dataset(done) as without:
        assert np.abs(without["temperature"] - whole["temperature"]).max() > 0.1
        assert not json.loads(without.attrs["settings"])["residual"]
    second = whole.isel(member=[1]).load()  # a member has noise of its own, wherever it stands
    second.drop_encoding().to_zarr(tmp_path / "second.zarr")
    again = tmp_path / "again.zarr"
    done = decode_store(knowing, tmp_path / "second.zarr", again, observations=table)
    with xr.open_dataset(done) as alone:
        same(alone[["temperature"]], second, 1e-4)
    out = tmp_path / "d.zarr"
    with pytest.raises(AppaError, match="digest"):
        decode_store(knowing, path, out, observations=table.head(3))
    knowing.filter(table, START, 4, out=tmp_path / "f.zarr", **options)
    with pytest.raises(AppaError, match="of a filter does not follow"):
        decode_store(knowing, tmp_path / "f.zarr", out, observations=table)


def test_either_stage_may_be_off(knowing):
    r"""Without the first, latents are drawn as if nothing were known of residuals, and these after
    that."""
    options = {"members": 2, "seed": 1, "representation": "none", **STEPS}
    second = knowing.reanalysis(stations(), START, 4, **options)
    none = knowing.reanalysis(stations(), START, 4, residual=False, **options)
    np.testing.assert_array_equal(second["latents"], none["latents"])
    assert residual_of(knowing, second).std() > 0.2
    assert np.abs(residual_of(knowing, none)).max() < 1e-4


@pytest.mark.parametrize("mode", ["composed", "sequential"])
def test_analyses_fit_their_stations(knowing, mode):
    r"""Decoded latents miss them by what the decoder lacks; with it, by their errors."""
    table = stations(7, error=0.05)
    options = {"members": 4, "steps": 16, "iterations": 60, "mode": mode, "seed": 1}
    misfits = []
    for residual in (True, False):
        a = knowing.reanalysis(table, START, 7, residual=residual, **options)
        operators = compile_observations(
            read_observations(table), StateSpace.of(knowing), a["time"].values
        )
        x = knowing.standardizer.to_tensor(a.drop_vars("latents"))  # type: ignore[union-attr]
        parts = [op.departure(x[:, k]) for k, op in enumerate(operators) if op is not None]
        misfits.append(float(torch.cat(parts, dim=1).square().mean().sqrt()))
    # perturbed observations are 1 apart, give or take what seven hours of four members tell; of
    # departures of ten and more, little may be left
    assert misfits[0] < 1.5 < 10 < misfits[1]


@pytest.mark.usefixtures("registered")
def test_analyses_fit_what_is_between_levels(knowing):
    r"""And what is derived: decoded latents miss both by what the decoder lacks."""
    level = stations(variable="temperature", level=700.0, value=265.0, error=0.05)
    layer = stations(variable="lapse", value=5.0, error=0.05, latitude=-30.0)
    table = pd.concat([level, layer], ignore_index=True)
    misfits = []
    for residual in (True, False):
        options = {"members": 2, "steps": 12, "iterations": 60, "seed": 1}
        a = knowing.reanalysis(table, START, 4, residual=residual, **options)
        read = read_observations(table)
        operators = compile_observations(read, StateSpace.of(knowing), a["time"].values)
        x = knowing.standardizer.to_tensor(a.drop_vars("latents"))  # type: ignore[union-attr]
        parts = [op.departure(x[:, k]) for k, op in enumerate(operators) if op is not None]
        misfits.append(torch.cat(parts, dim=1).square().mean().sqrt().item())
        assert a.attrs["residual_unused"] == 0
    # an untrained decoder misses them by hundreds of errors, of which a hundredth may be left
    assert misfits[0] < 4 < 200 < misfits[1]


@pytest.mark.usefixtures("registered")
@pytest.mark.filterwarnings("ignore:members miss")
def test_the_fit_is_that_of_what_is_written(knowing, monkeypatch, tmp_path):
    r"""Of each observable, over members and hours, however states were put together."""
    table = pd.concat(
        [stations(), stations(variable="lapse", value=5.0, latitude=-30.0),
         stations(variable="mean_field", value=280.0)], ignore_index=True
    )  # fmt: skip
    options = {"members": 3, "batch": 2, "seed": 1, **STEPS}

    def fit(a) -> dict[str, float]:
        read, space = read_observations(table), StateSpace.of(knowing)
        operators = compile_observations(read, space, a["time"].values)
        x = knowing.standardizer.to_tensor(a.drop_vars("latents", errors="ignore"))
        squares = [
            pd.DataFrame({"name": op.rows["variable"].to_numpy(), "square": row})
            for k, op in enumerate(operators)
            if op is not None
            for row in op.departure(x[:, k]).square().numpy()
        ]
        return pd.concat(squares).groupby("name")["square"].mean().pow(0.5).to_dict()

    whole = knowing.reanalysis(table, START, 4, **options)
    assert json.loads(whole.attrs["fit"]) == pytest.approx(fit(whole), rel=2e-3)
    assert set(fit(whole)) == {"2m_temperature", "lapse", "mean_field"}
    last = knowing.filter(table, START, 4, out=tmp_path / "last.zarr", **options)
    assert json.loads(last.attrs["fit"]) == pytest.approx(fit(last.load()), rel=2e-3)
    # what is not written, or not at once, is not compared; the rest is as before
    chosen = {"variables": ["2m_temperature", "sea_surface_temperature"], **options}
    part = knowing.reanalysis(table, START, 4, **chosen)
    mine = json.loads(part.attrs["fit"])
    assert set(mine) <= {"2m_temperature", "mean_field"}
    assert mine["2m_temperature"] == pytest.approx(fit(whole)["2m_temperature"], rel=2e-3)
    monkeypatch.setattr(ensembles, "held", lambda model: 4)
    pieces = json.loads(knowing.reanalysis(table, START, 4, **options).attrs["fit"])
    assert pieces["2m_temperature"] == pytest.approx(fit(whole)["2m_temperature"], rel=2e-2)
    assert "lapse" not in pieces
    assert "fit" not in knowing.reanalysis(None, START, 4, members=1, steps=1).attrs


def test_a_bad_fit_is_told(knowing):
    r"""One step cannot fit what is a hundred errors away; what fits is not named."""
    good = stations(error=5000.0, variable="temperature", level=850.0, value=285.0)
    table = pd.concat([stations(error=1e-3), good], ignore_index=True)
    told = r"2m_temperature by [\d.e+]+, expected about 1; take more steps or iterations"
    with pytest.warns(UserWarning, match=f"in errors: {told}.*the decoder cannot express"):
        knowing.reanalysis(table, START, 4, members=1, steps=1, residual=False)


@pytest.mark.usefixtures("registered")
def test_what_residuals_cannot_fit_is_told(knowing):
    table = stations(variable="mean_field", value=280.0)
    with pytest.warns(UserWarning, match="6 observations are derived from whole fields"):
        a = knowing.reanalysis(table, START, 4, members=1, **STEPS)
    assert a.attrs["residual_unused"] == 6


def test_batches_change_no_residual(knowing):
    options = {"members": 3, "seed": 1, **STEPS}
    together = knowing.reanalysis(stations(), START, 4, **options)
    apart = knowing.reanalysis(stations(), START, 4, batch=1, **options)
    same(together, apart, 1e-3)  # kelvins, of standard deviations of several


def test_residuals_go_on_into_a_forecast(knowing):
    a = knowing.reanalysis(None, START, 4, members=4, **STEPS)
    f = knowing.forecast(a, 5, **STEPS)
    before, after = residual_of(knowing, a)[:, -1], residual_of(knowing, f)
    found = [np.corrcoef(before.ravel(), after[:, k].ravel())[0, 1] for k in (0, 4)]
    assert np.allclose(found, np.exp(-np.array([1, 5]) / 30), atol=0.06)
    assert 0.2 < after[:, 4].std() < 0.4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_draws_what_a_cpu_does(knowing):
    options = {"members": 2, "seed": 1, "iterations": 40, **STEPS}
    here = knowing.reanalysis(stations(), START, 4, **options)
    knowing.to("cuda")
    try:
        there = knowing.reanalysis(stations(), START, 4, precision="float32", **options)
        later = knowing.forecast(there, 3, **STEPS)
    finally:
        knowing.to("cpu")
    same(here, there, 0.05)  # kelvins, a hundredth of a standard deviation
    assert np.isfinite(later["temperature"].values).all()
