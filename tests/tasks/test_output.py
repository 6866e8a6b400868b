r"""Ensembles on their way out: values, attributes, and what a kill leaves."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

from appa.config import parse_config
from appa.data import statistics
from appa.data.writing import make_template
from appa.errors import DataError, StoreError, UnfinishedStoreError
from appa.tasks.analyses import (
    last_hour,
    open_analysis,
    past_latents,
    past_residuals,
    until,
)
from appa.tasks.building import build_autoencoder, build_denoiser
from appa.tasks.decoding import decode_store
from appa.tasks.fields import decode_batch, fields
from appa.tasks.folders import ModelError, gather
from appa.tasks.model import Model
from appa.tasks.output import EnsembleWriter, provenance, to_dataset

from ..processes import Process
from . import small

SURFACE = ("2m_temperature", "sea_surface_temperature", "total_precipitation")
ATMOSPHERIC = ("temperature", "specific_humidity")
LEVELS = (500, 850, 1000)
M, T = 3, 5
TIMES = np.datetime64("2001-01-05T06", "h") + np.arange(T)


def make(origin: str = "small") -> Model:
    r"""A model with random weights, of humid states over a small continent."""
    config = small.config(
        data={
            **small.config().data.model_dump(),
            "surface": SURFACE,
            "atmospheric": ATMOSPHERIC,
            "levels": LEVELS,
        }
    )
    shape = (4, small.H, small.W)
    ds = make_template(
        TIMES[:4],
        config.grid.latitude,
        config.grid.longitude,
        LEVELS,
        surface=SURFACE,
        atmospheric=ATMOSPHERIC,
        static={"land_sea_mask": small.LAND},
    )
    rng = np.random.default_rng(0)
    for name in (*SURFACE, *ATMOSPHERIC):
        levels = [len(LEVELS)] if name in ATMOSPHERIC else []
        x = rng.normal(280, 5, (shape[0], *levels, *shape[1:]))
        if name in ("total_precipitation", "specific_humidity"):
            x = rng.exponential(1e-3, x.shape)
        if name == "sea_surface_temperature":
            x[..., small.LAND] = np.nan
        ds[name] = ds[name].copy(data=x.astype(np.float32))
    stats = statistics.compute(ds, split=("2001-01-05", "2001-01-05"))
    torch.manual_seed(0)
    config = parse_config(config.model_dump())
    autoencoder = build_autoencoder(config)
    with torch.no_grad():  # fresh, it gives a fifth of the deviation of states
        autoencoder.decoder.levels[-1].conv.weight.mul_(5)
    return Model(
        config,
        autoencoder,
        build_denoiser(config),
        torch.randn(3),
        torch.rand(3) + 0.5,
        gather(stats, ds),
        origin,
    )


@pytest.fixture(scope="module")
def model() -> Model:
    return make()


def draws(model: Model) -> torch.Tensor:
    shape = (M, T, *model.config.latent_shape)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def written(path: Path, model: Model, z: torch.Tensor, **options) -> Path:
    attrs = provenance(model, "reanalysis", seed=7, settings={"steps": 4}, observations="a1b2")
    with EnsembleWriter(path, model, TIMES, M, attrs=attrs, **options) as writer:
        writer.write([2, 0], slice(0, T), z[[2, 0]])
        writer.write(slice(1, 2), slice(3, None), z[1:2, 3:])
        assert not path.exists()
        writer.write(slice(1, 2), slice(0, 3), z[1:2, :3])
        return writer.finish()


# ---------------------------------------------------------------- values


def test_values_are_those_of_the_decoder(model, tmp_path):
    r"""Each field against the decoder's channel, mean and deviation, one state at a time."""
    z = draws(model)
    residual = torch.randn(M, T, *model.config.state_shape) / 10
    ds = to_dataset(model, z, TIMES, residual=residual, negatives="keep", batch=4)
    assert ds["specific_humidity"].dims == ("member", "time", "level", "latitude", "longitude")
    assert (ds["time"].values == TIMES).all()
    with torch.no_grad():
        for m, t in ((0, 0), (1, 4), (2, 2)):
            x = (model.decode(z[m, t]) + residual[m, t]).double().numpy()
            for c, channel in enumerate(model.config.channels):
                stats = model.statistics[channel.variable]
                stats = stats if channel.level is None else stats.sel(level=channel.level)
                mean, std = (float(stats.sel(statistic=s)) for s in ("mean", "std"))
                y = mean + std * x[c]
                if channel.variable == "sea_surface_temperature":
                    y = np.where(small.LAND, np.nan, y)
                found = ds[channel.variable].isel(member=m, time=t)
                found = found if channel.level is None else found.sel(level=channel.level)
                np.testing.assert_allclose(found, y, rtol=1e-5, atol=1e-5 * std)


@pytest.mark.parametrize("name", ["analysis.zarr", "analysis.nc"])
def test_written_in_parts_it_is_the_same(model, tmp_path, name):
    z = draws(model)
    path = written(tmp_path / name, model, z, latents=True, batch=4)
    attrs = provenance(model, "reanalysis", seed=7, settings={"steps": 4}, observations="a1b2")
    whole = to_dataset(model, z, TIMES, latents=True, attrs=attrs)
    with xr.open_dataset(path) as ds:
        # how many states are decoded at once is felt in the last bits
        xr.testing.assert_allclose(ds, whole, rtol=1e-5, atol=1e-6)
        for var in ds.variables:
            told = {k: v for k, v in ds[var].attrs.items() if k != "negative_share"}
            expected = dict(whole[var].attrs)
            share = expected.pop("negative_share", None)
            assert told == expected
            assert ds[var].attrs.get("negative_share") == pytest.approx(share, abs=0.01)
        assert {k: ds.attrs[k] for k in attrs} == attrs
        assert torch.equal(torch.from_numpy(ds["latents"].values), z)
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]  # nothing else is left
    assert not (path / ".appa").exists()


def test_only_what_is_asked_for(model):
    options = {"variables": ["specific_humidity", "2m_temperature"], "levels": [1000, 500]}
    z = draws(model)
    ds, whole = to_dataset(model, z, TIMES, **options), to_dataset(model, z, TIMES)
    assert set(ds.data_vars) == {"2m_temperature", "specific_humidity"}
    xr.testing.assert_equal(
        ds["specific_humidity"], whole["specific_humidity"].sel(level=[500, 1000])
    )
    flat = to_dataset(model, z, TIMES, variables=["2m_temperature"])
    assert "level" not in flat.coords
    latents = to_dataset(model, z, TIMES, variables=[], latents=True)
    assert set(latents.variables) == {"latents", "member", "time"}


def test_mistakes_are_named(model, tmp_path):
    z = draws(model)
    with pytest.raises(DataError, match="did you mean 'temperature'"):
        to_dataset(model, z, TIMES, variables=["temprature"])
    with pytest.raises(DataError, match="no level of 900 hPa; the nearest is 850"):
        to_dataset(model, z, TIMES, levels=[900])
    with pytest.raises(DataError, match="nothing to give out"):
        to_dataset(model, z, TIMES, variables=[])
    with pytest.raises(DataError, match="'clip' or 'keep'"):
        to_dataset(model, z, TIMES, negatives="drop")
    z[1, 3, 0, 0, 0] = torch.nan
    with pytest.raises(DataError, match="member 1 at 2001-01-05T09 are not finite"):
        to_dataset(model, z, TIMES)


def test_negative_values(model):
    r"""Their share is told; clipping changes them and nothing else."""
    z = draws(model)
    kept, clipped = (to_dataset(model, z, TIMES, negatives=n) for n in ("keep", "clip"))
    for name in (*SURFACE, *ATMOSPHERIC):
        a, b = kept[name], clipped[name]
        if name not in ("total_precipitation", "specific_humidity"):
            xr.testing.assert_identical(a, b)
            continue
        share = float((a < 0).mean())
        assert 0.01 < share < 0.99
        assert a.attrs["negative_share"] == b.attrs["negative_share"] == pytest.approx(share)
        assert "kept" in a.attrs["comment"]
        assert f"{100 * share:.3g} %" in b.attrs["comment"]
        np.testing.assert_array_equal(b, np.maximum(a, 0))


def test_a_model_without_names(tmp_path):
    config = small.config(
        data={**small.config().data.model_dump(), "unnamed": 4, "surface": (), "atmospheric": ()}
    )
    torch.manual_seed(0)
    nameless = Model(
        config, build_autoencoder(config), build_denoiser(config), torch.zeros(3), torch.ones(3)
    )
    z = draws(nameless)
    ds = to_dataset(nameless, z, TIMES)
    assert ds["state"].dims == ("member", "time", "channel", "latitude", "longitude")
    with torch.no_grad():
        np.testing.assert_allclose(ds["state"], nameless.decode(z), atol=1e-5)
    with pytest.raises(DataError, match="without names"):
        fields(nameless, ["2m_temperature"])


def test_at_least_one_state_is_decoded_at_once(model):
    assert decode_batch(model, share=1e-12) == 1
    assert decode_batch(model, most=8) == 8  # of 9×16 points


# ---------------------------------------------------------------- conventions


@pytest.mark.parametrize("name", ["analysis.zarr", "analysis.nc"])
def test_it_follows_the_conventions(model, tmp_path, name):
    r"""What a checker of CF-1.11 looks at, on the bare file."""
    path = written(tmp_path / name, model, draws(model), latents=True)
    with xr.open_dataset(path, decode_cf=False) as ds:
        assert ds.attrs["Conventions"] == "CF-1.11"
        assert ds.attrs["title"]
        assert ds.attrs["source"].startswith("appa ")
        for var in ds.variables:
            attrs = ds[var].attrs
            assert attrs["units"] or var == "channel", var
            assert attrs["long_name"], var
            assert ds[var].dtype.kind in "fi", var
        axes = {"time": "T", "level": "Z", "latitude": "Y", "longitude": "X"}
        assert {c: ds[c].attrs["axis"] for c in axes} == axes
        names = {"time": "time", "level": "air_pressure", "member": "realization"}
        assert {c: ds[c].attrs["standard_name"] for c in names} == names
        assert ds["level"].attrs["positive"] == "down"
        assert ds["time"].attrs["units"] == "hours since 1900-01-01"
        assert ds["time"].attrs["calendar"] in ("standard", "proleptic_gregorian")
        assert int(ds["time"][0]) == (TIMES[0] - np.datetime64("1900-01-01T00")).astype(int)
        for c in ("latitude", "longitude", "level", "time", "member"):
            assert "_FillValue" not in ds[c].attrs  # coordinates are never missing
            assert (np.diff(ds[c]) != 0).all()
        for v in (*SURFACE, *ATMOSPHERIC):
            assert ds[v].attrs["standard_name"]
            order = [d for d in ("member", "time", "level", "latitude", "longitude")]
            assert list(ds[v].dims) == [d for d in order if d in ds[v].dims]
            assert ds[v].dtype == np.float32


def test_it_plots(model, tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    ds = xr.open_dataset(written(tmp_path / "analysis.zarr", model, draws(model)))
    drawn = ds["temperature"].sel(level=850).mean("member").isel(time=0).plot()
    assert drawn.get_array().size == small.H * small.W
    matplotlib.pyplot.close("all")


# ---------------------------------------------------------------- kills and mistakes


def die(path: Path) -> None:
    r"""Writes some states, and is killed while it notes that."""
    model = make()
    writer = EnsembleWriter(path, model, TIMES, M, attrs=provenance(model, "reanalysis"))
    writer.write([0, 1], slice(0, 3), draws(model)[:2, :3])
    with open(writer.directory / "written.jsonl", "a") as log:
        log.write('[2, 0, 5, {"total_prec')  # cut short
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_killed_it_goes_on(model, tmp_path):
    path = tmp_path / "analysis.zarr"
    with Process(die, path) as process:
        assert process.wait() == -signal.SIGKILL, process.said
    assert not path.exists()
    with pytest.raises(StoreError, match="unfinished"):
        open_analysis(f"{path}.partial")

    attrs = provenance(model, "reanalysis")
    other = provenance(model, "reanalysis", seed=1)
    with pytest.raises(StoreError, match="seed was None, is 1"):
        EnsembleWriter(path, model, TIMES, M, attrs=other)
    z = draws(model)
    with EnsembleWriter(path, model, TIMES, M, attrs=attrs) as writer:
        assert writer.written([0, 1], slice(0, 3))
        assert not writer.written([2], slice(0, 1))
        with pytest.raises(UnfinishedStoreError, match=r"9 of the 15 states.*member 0 at .*T09"):
            writer.finish()
        writer.write([0, 1], slice(3, 5), z[:2, 3:])
        writer.write([2], slice(0, 5), z[2:])
        writer.attrs["solver_residual"] = 0.25  # what is known in the end only
        writer.finish()
    whole = to_dataset(model, z, TIMES, attrs=attrs)
    with xr.open_dataset(path) as ds:
        xr.testing.assert_allclose(ds, whole, rtol=1e-5, atol=1e-6)
        share = whole["total_precipitation"].attrs["negative_share"]
        assert ds["total_precipitation"].attrs["negative_share"] == pytest.approx(share, abs=0.01)
        assert ds.attrs["solver_residual"] == 0.25


def test_what_lets_it_go_on(model, tmp_path, monkeypatch):
    r"""Defaults that a model has come to have since change nothing, since settings are told; its
    schedule would, and so may another version, which is named."""
    path, settings = tmp_path / "analysis.zarr", {"steps": 4}

    def begin(config):
        attrs = provenance(model, "reanalysis", settings=settings)
        attrs["configuration"] = config.to_yaml()
        with EnsembleWriter(path, model, TIMES, M, attrs=attrs) as writer:
            writer.write([0], slice(0, 1), draws(model)[:1, :1])

    config = model.config
    begin(config)
    begin(config.model_copy(update={"sampling": config.sampling.model_copy(update={"steps": 7})}))
    schedule = config.schedule.model_copy(update={"sigma_max": 700.0})
    with pytest.raises(
        StoreError, match=r"schedule.sigma_max was '1000.0', is '700.0'\. It is kept"
    ):
        begin(config.model_copy(update={"schedule": schedule}))
    monkeypatch.setattr("appa.tasks.ensembles.__version__", "9.9")
    with pytest.raises(StoreError, match=r"version was '[0-9.]+', is '9.9'"):
        begin(config)


def test_nothing_is_overwritten(model, tmp_path):
    path = written(tmp_path / "analysis.zarr", model, draws(model))
    with pytest.raises(StoreError, match="exists already"):
        written(path, model, draws(model))
    (tmp_path / "other.zarr.partial").mkdir()
    (tmp_path / "other.zarr.partial" / "thesis.tex").write_text("")
    with pytest.raises(StoreError, match="in the way"):
        written(tmp_path / "other.zarr", model, draws(model))


def test_wrong_shapes(model, tmp_path):
    z, attrs = draws(model), provenance(model, "reanalysis")
    with EnsembleWriter(tmp_path / "x.zarr", model, TIMES, M, attrs=attrs) as writer:
        with pytest.raises(DataError, match="latents have shape"):
            writer.write([0], slice(0, 2), z[:1])
        with pytest.raises(DataError, match="residuals have shape"):
            writer.write([0], slice(0, T), z[:1], residual=z[:1])


# ---------------------------------------------------------------- read again


def test_decoded_later(model, tmp_path):
    z = draws(model)
    path = written(tmp_path / "latents.zarr", model, z, variables=[], latents=True)
    assert set(xr.open_dataset(path).data_vars) == {"latents"}
    out = decode_store(model, path, tmp_path / "decoded.zarr", ["temperature"], [850])
    with xr.open_dataset(out) as ds:
        expected = to_dataset(model, z, TIMES, variables=["temperature"], levels=[850])
        xr.testing.assert_allclose(ds, expected, rtol=1e-5)
        assert ds.attrs["seed"] == 7
        # what the decoder lacks is not drawn again
        assert json.loads(ds.attrs["settings"]) == {"steps": 4, "residual": False}
    with pytest.raises(DataError, match="no latents"):
        decode_store(model, out, tmp_path / "again.zarr")
    torch.manual_seed(5)
    other = make("another")
    with torch.no_grad():
        next(other.autoencoder.parameters()).add_(1)
    with pytest.raises(ModelError, match="another model"):
        decode_store(other, path, tmp_path / "again.zarr")


def test_a_forecast_starts_from_latents_or_states(model, tmp_path):
    z = draws(model)
    path = written(tmp_path / "analysis.zarr", model, z, latents=True)
    found, times = past_latents(model, path, 2)
    assert torch.equal(found, z[:, -2:])
    assert (times == TIMES[-2:]).all()
    early = xr.open_dataset(path).isel(time=slice(0, 4))
    assert torch.equal(past_latents(model, early, 3)[0], z[:, 1:4])
    assert torch.equal(past_latents(model, early.isel(time=[0, 2, 3]), 3)[0], z[:, 2:4])  # a gap

    # without latents, and without members, states are encoded
    ds = to_dataset(model, z, TIMES, negatives="keep")
    with torch.no_grad():
        expected = model.encode(model.standardizer.to_tensor(ds))
    found, _ = past_latents(model, ds, 3, batch=2)
    torch.testing.assert_close(found, expected[:, -3:], rtol=1e-4, atol=1e-4)
    found, _ = past_latents(
        model, ds.isel(member=1, time=4, drop=True).assign_coords(time=TIMES[4]), 2
    )
    torch.testing.assert_close(found, expected[1:2, -1:], rtol=1e-4, atol=1e-4)

    # as they are where the latents are another model's
    other = make("another")
    with torch.no_grad():
        next(other.autoencoder.parameters()).add_(0.5)
        whole = to_dataset(model, z, TIMES, negatives="keep", latents=True)
        expected = other.encode(model.standardizer.to_tensor(whole))
    found, _ = past_latents(other, whole, 2)
    torch.testing.assert_close(found, expected[:, -2:], rtol=1e-4, atol=1e-4)
    with pytest.raises(DataError, match="neither states nor latents"):
        past_latents(other, whole[["latents"]], 2)


def test_a_forecast_starts_from_the_last_hours_whatever_their_order(model, tmp_path):
    r"""Latents, states and what the decoder lacks of them; an hour that is there twice is not taken
    for one before it."""
    z = draws(model)
    ds = to_dataset(model, z, TIMES, negatives="keep", latents=True)
    mixed = ds.isel(time=[3, 4, 0, 2, 1])
    past, times = past_latents(model, mixed, 2)
    assert torch.equal(past, z[:, -2:])
    assert (times == TIMES[-2:]).all()
    lacks = [past_residuals(model, source, past, 2) for source in (mixed, ds)]
    assert torch.equal(*lacks)
    xr.testing.assert_equal(until(mixed, TIMES[2]), ds.isel(time=slice(0, 3)))
    twice = xr.concat([ds, ds.isel(time=[1])], dim="time")
    for read in (lambda: past_latents(model, twice, 2), lambda: until(twice, TIMES[2])):
        with pytest.raises(DataError, match=f"hour {str(TIMES[1])[:13]} more than once"):
            read()


@pytest.mark.parametrize("name", ["window.zarr", "window.nc"])
def test_the_last_hour_alone(model, tmp_path, name):
    path = written(tmp_path / name, model, draws(model), latents=True)
    out = last_hour(path, tmp_path / f"last-{name}")
    with xr.open_dataset(path) as window, xr.open_dataset(out) as last:
        xr.testing.assert_equal(last, window.isel(time=[-1]))
        assert last.attrs["task"] == "filter"
        assert last["total_precipitation"].attrs["comment"] == "negative values are set to 0"
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([name, f"last-{name}"])
