r"""A latent store holds the latents of every state, whatever happened while it was written."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from appa.data import planet
from appa.data.planet.circulation import Run
from appa.data.planet.simulation import Plan, simulate
from appa.data.states import Standardizer
from appa.data.variables import VARIABLES
from appa.data.windows import WindowLoader
from appa.data.writing import StoreWriter, unfinished
from appa.errors import DataError, StoreError
from appa.tasks import encoding
from appa.tasks.encoding import Moments, encode, encode_simulation
from appa.tasks.folders import ModelError, digest, read_weights, write_weights
from appa.tasks.loading import load_autoencoder

from ..processes import Process, ranks
from . import small


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    r"""A model, the store of its states, and their latents, written without interruption."""
    folder = tmp_path_factory.mktemp("encoding")
    small.write_model(folder / "model")
    small.write_states(folder / "states.zarr")
    run(folder, folder / "latents.zarr")
    return folder


def run(folder: Path, out: Path, **options) -> Path:
    options = {"batch": 4, "block": 8, "workers": 1} | options
    return encode(folder / "model", folder / "states.zarr", out, **options)


def files(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_latents_are_those_of_the_states(place):
    ds, truth = xr.open_zarr(place / "latents.zarr"), small.states()
    config, autoencoder = load_autoencoder(place / "model")
    fields = truth.sel(time="2001-01-01")
    stats = {}
    for name in (*small.SURFACE, *small.ATMOSPHERIC):  # numpy's, in double precision
        dims = [dim for dim in fields[name].dims if dim != "level"]
        x = fields[name].astype(np.float64)
        pair = [x.mean(dims).values, x.std(dims).values]
        stats[name] = (("statistic", "level")[: 1 + np.ndim(pair[0])], np.stack(pair))
    stats = xr.Dataset(stats, {"statistic": ["mean", "std"], "level": list(small.LEVELS)})
    standardizer = Standardizer.from_config(config, stats, small.LAND)
    with torch.no_grad():
        expected = autoencoder.encode(standardizer.to_tensor(truth))

    assert ds["latents"].dims == ("time", "channel", "y", "x")
    assert ds["latents"].dtype == np.float32
    np.testing.assert_array_equal(ds["time"].values, small.hours())  # the gap's both sides too
    np.testing.assert_array_equal(ds["trajectory"].values, np.arange(small.T) >= small.CHANGE)
    # standardized values differ by a rounding, divided or multiplied by the inverse
    np.testing.assert_allclose(ds["latents"].values, expected.numpy(), rtol=1e-5, atol=2e-6)
    assert ds.attrs["autoencoder"] == digest(autoencoder.state_dict())


def test_statistics_are_those_of_the_training_split(place):
    ds = xr.open_zarr(place / "latents.zarr")
    z = ds["latents"].sel(time="2001-01-01").values.astype(np.float64)
    assert 0 < len(z) < small.T
    np.testing.assert_allclose(ds["latents_mean"], z.mean((0, 2, 3)), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(ds["latents_std"], z.std((0, 2, 3)), rtol=1e-12)
    assert ds.attrs["statistics_period"] == "2001-01-01 to 2001-01-01"


def test_without_training_hours_all_count(place, tmp_path):
    ds = xr.open_zarr(place / "states.zarr").sel(time="2001-01-02").load()
    encode(place / "model", ds, tmp_path / "a.zarr", block=8)
    found = xr.open_zarr(tmp_path / "a.zarr")
    z = found["latents"].values.astype(np.float64)
    assert len(z) == ds.sizes["time"]
    np.testing.assert_allclose(found["latents_mean"], z.mean((0, 2, 3)), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found["latents_std"], z.std((0, 2, 3)), rtol=1e-12)
    assert found.attrs["statistics_period"] == "all hours"


def test_moments_of_latents_far_from_zero():
    r"""Sums of squares would lose all digits here."""
    rng = np.random.default_rng(0)
    z = (1e4 + rng.normal(size=(60, 2, 3, 5))).astype(np.float32)
    total = Moments.of(z[:0])
    for part in np.split(z, [0, 1, 7, 40]):
        total = total.merge(Moments.of(part))
    assert total.n == 60 * 15
    exact = z.astype(np.float64)
    np.testing.assert_allclose(total.mean, exact.mean((0, 2, 3)), rtol=1e-14)
    np.testing.assert_allclose(total.std, exact.std((0, 2, 3)), rtol=1e-10)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda ds: ds.drop_vars("2m_temperature"), "no '2m_temperature'"),
        (lambda ds: ds.isel(level=slice(1)), "no level"),
        (lambda ds: ds.assign_coords(time=ds["time"] + np.timedelta64(5, "m")), "off the hour"),
        (lambda ds: ds.isel(time=[*range(6), 9, 8, *range(10, 20)]), "T11:00 comes after .*T12:00"),
    ],
)
def test_a_store_that_does_not_fit_leaves_nothing(place, tmp_path, spoil, told):
    r"""Nothing in whose way the right one would be."""
    out = tmp_path / "latents.zarr"
    ds = xr.open_zarr(place / "states.zarr").load()
    with pytest.raises(DataError, match=told):
        encode(place / "model", spoil(ds), out, block=8)
    assert not list(tmp_path.iterdir())
    assert encode(place / "model", ds, out, block=8) == out


def test_windows_of_latents(place):
    loader = WindowLoader(place / "latents.zarr", window=4, batch_size=4, drop_last=False)
    assert loader.shape == small.config().latent_shape
    lengths = (small.GAP, small.CHANGE - small.GAP, small.T - small.CHANGE)
    assert len(loader.starts) == sum(n - 3 for n in lengths)  # none crosses a gap or trajectories
    assert sum(len(z) for z, _ in loader) == len(loader.starts)


@pytest.mark.parametrize("batch", [4, 3, 50])
def test_batches_fit_into_blocks(place, tmp_path, batch):
    r"""Batches that do not divide a block are made to; latents agree to rounding."""
    out = run(place, tmp_path / "a.zarr", batch=batch)
    found, expected = (xr.open_zarr(p)["latents"].values for p in (out, place / "latents.zarr"))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def die(folder: Path, out: Path, step: str) -> None:
    r"""Encodes, and is killed when it comes to a step for the fourth time."""
    owner: Any = StoreWriter if step == "mark" else encoding
    taken, count = getattr(owner, step), itertools.count(1)

    def killed(*args, **kwargs):
        if next(count) == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return taken(*args, **kwargs)

    setattr(owner, step, killed)
    run(folder, out)


@pytest.mark.parametrize("step", ["_note", "mark"])
def test_killed_and_resumed_as_if_never_interrupted(place, tmp_path, step):
    r"""Killed with a block's latents on disk, before or after its moments are."""
    out = tmp_path / "a.zarr"
    with Process(die, place, out, step) as ended:
        assert ended.wait() == -signal.SIGKILL, ended.said
    assert not out.exists()
    assert unfinished(out) == (3, 7)
    run(place, out)
    assert files(out) == files(place / "latents.zarr")


def twice(folder: Path, out: Path) -> None:
    r"""Encodes twice, and notes beside the store who does what."""
    note, rank = encoding._note, os.environ["RANK"]

    def noted(writer, i, moments):
        (out.parent / f"{i}.{rank}").touch()
        note(writer, i, moments)

    encoding._note = noted
    run(folder, out)
    try:
        run(folder, out)
    except StoreError as error:
        (out.parent / f"error.{rank}").write_text(str(error))


def test_two_processes_write_what_one_does(place, tmp_path):
    r"""Each has its share, and an error of the first, here of a second run, reaches both."""
    out = tmp_path / "a.zarr"
    ranks(twice, place, out)
    assert files(out) == files(place / "latents.zarr")
    shares = [{p.stem for p in tmp_path.glob(f"[0-9].{rank}")} for rank in range(2)]
    assert shares == [{"0", "2", "4", "6"}, {"1", "3", "5"}]
    for rank in range(2):
        assert "a.zarr exists already" in (tmp_path / f"error.{rank}").read_text()


def test_another_model_does_not_go_on(place, tmp_path):
    r"""What another autoencoder, or other statistics, began is not completed."""
    out = tmp_path / "a.zarr"
    with Process(die, place, out, "_note") as ended:
        assert ended.wait() == -signal.SIGKILL, ended.said
    small.write_model(tmp_path / "model", seed=1)
    with pytest.raises(StoreError, match="begun with another plan: autoencoder was"):
        encode(tmp_path / "model", place / "states.zarr", out, batch=4, block=8)


def test_store_of_another_grid(place, tmp_path):
    ds = small.states().isel(longitude=slice(None, None, 2))
    with pytest.raises(DataError, match=r"grid, 9×8 .* not the model's, equiangular 9×16.*--grid"):
        encode(place / "model", ds, tmp_path / "a.zarr")


def test_model_without_statistics(place, tmp_path):
    folder = small.write_model(tmp_path / "model")
    (folder / "statistics.nc").unlink()
    with pytest.raises(ModelError, match="it has no statistics"):
        encode(folder, place / "states.zarr", tmp_path / "a.zarr")


def test_latents_that_are_not_finite(place, tmp_path):
    folder = small.write_model(tmp_path / "model")
    weights = read_weights(folder / "autoencoder.safetensors")
    weights["encoder.conv.bias"][1] = np.inf
    write_weights(folder / "autoencoder.safetensors", weights)
    with pytest.raises(DataError, match="are not finite; the weights of the autoencoder"):
        encode(folder, place / "states.zarr", tmp_path / "a.zarr")


class Waves:
    r"""A circulation whose fields differ in every member, hour, variable, level and longitude.

    Arguments:
        fails: Called with the hour before each step.
    """

    def __init__(self, fails=lambda hour: None):
        self.fails = fails
        self.land = planet.open_planet()["land_sea_mask"].values

    def static(self):
        return {"land_sea_mask": self.land, "geopotential_at_surface": 0 * self.land}

    def start(self, seeds, times):
        return Run((np.array(seeds) % 97, times.astype("datetime64[h]").astype(int)), None)

    def spin_up(self, run, days):
        self.fails(run.state[1][0])
        return Run((run.state[0], run.state[1] + round(24 * days)), None)

    def advance(self, run, days, every=1):
        seeds, hours = map(np.asarray, run.state)  # JAX's, where it went on, in single precision
        hours = hours[:, None] + np.arange(0, round(24 * days), every)
        stats, fields = planet.statistics(), {}
        for k, (name, variable) in enumerate(VARIABLES.items()):
            phase = (seeds[:, None] + 0.1 * hours + k)[..., None, None, None]
            levels = np.arange(1 if variable.surface else 13)[:, None, None]
            wave = np.sin(phase + levels + np.arange(96) / 7) * np.ones((48, 1))
            mean, std = stats[name].transpose("statistic", ...).values.reshape(2, -1, 1, 1)
            values = (mean + std * wave).astype(np.float32)
            if variable.missing == "land":
                values[..., self.land >= 0.5] = np.nan
            fields[name] = values[:, :, 0] if variable.surface else values
        return self.spin_up(run, days), fields


def test_a_simulation_encoded_is_its_states_encoded(tmp_path):
    plan = Plan(members=2, days=6, first_year=1901, spin_up=2, stretch=8, each=2, every=4)
    simulate(tmp_path / "states.zarr", plan, circulation=Waves())
    encode("planet", tmp_path / "states.zarr", tmp_path / "two steps.zarr", device="cpu")

    stop = np.datetime64("1901-01-05", "h").astype(int)  # killed on the way, it goes on

    def fails(hour):
        if hour >= stop:
            raise KeyboardInterrupt

    out = tmp_path / "one step.zarr"
    with pytest.raises(KeyboardInterrupt):
        encode_simulation("planet", plan, out, device="cpu", circulation=Waves(fails))
    assert unfinished(out) is not None
    encode_simulation("planet", plan, out, batch=3, device="cpu", circulation=Waves())

    one, two = xr.open_zarr(out).load(), xr.open_zarr(tmp_path / "two steps.zarr").load()
    assert one.attrs == two.attrs
    xr.testing.assert_allclose(one, two, atol=1e-4)
    assert one["latents"].std("time").min() > 0.01


def test_a_simulation_of_another_grid(tmp_path):
    small.write_model(tmp_path / "model")
    with pytest.raises(DataError, match="grid"):
        encode_simulation(
            tmp_path / "model", Plan(days=2), tmp_path / "z.zarr", circulation=Waves()
        )


def test_latents_of_a_simulation_that_became_unstable(tmp_path):
    class Unstable(Waves):
        def advance(self, run, days, every=1):
            run, fields = super().advance(run, days, every)
            fields["temperature"][1, 1, 5, 10, 20] = np.nan
            return run, fields

    plan = Plan(members=2, days=2, first_year=1901, spin_up=1, every=12)
    with pytest.raises(DataError, match=r"member 1 .* unstable"):
        encode_simulation("planet", plan, tmp_path / "z.zarr", device="cpu", circulation=Unstable())
    assert unfinished(tmp_path / "z.zarr") is not None
