r"""States are standardized with statistics of their own, or with known ones that fit them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from appa.config import load_config
from appa.data import planet
from appa.data.states import Standardizer
from appa.data.stores import open_store
from appa.errors import DataError
from appa.tasks.folders import write_statistics
from appa.training import train_autoencoder
from appa.training.distribution import Ranks
from appa.training.scales import find_statistics, origin
from appa.training.start import intentions

from . import small
from .commands import write_config

ALONE = Ranks(0, 1, torch.device("cpu"))
NAMES = ["2m_temperature", "sea_surface_temperature", "temperature", "specific_humidity"]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return load_config(write_config(tmp_path_factory.mktemp("scales")))


@pytest.fixture(scope="module")
def simulated():
    r"""The training days of that configuration, as the bundled store has them."""
    ds = open_store("planet")[NAMES].sel(level=[500, 850]).isel(time=slice(48))
    return ds.load()


def changed(ds, attrs):
    r"""Another planet on the same grid: ten times the values, and five more."""
    return (10 * ds + 5).assign_attrs(attrs)


def test_the_simulated_planet_has_the_bundled_statistics(config, simulated, tmp_path):
    stats = find_statistics(config, simulated, tmp_path, None, ALONE)
    expected = planet.statistics()["temperature"].sel(level=[500, 850])
    np.testing.assert_array_equal(stats["temperature"].sel(level=[500, 850]), expected)
    assert "normals" in stats
    assert "bundled planet" in origin(config, simulated, tmp_path)


def test_simulations_say_what_they_are():
    r"""Those that `appa data simulate` makes, in whatever version of the circulation model."""
    pytest.importorskip("jcm")
    from appa.data.planet.simulation import Plan, _template

    assert planet.is_planet(_template(Plan(members=1, days=1), {}))


def test_another_store_on_its_grid_has_statistics_of_its_own(config, simulated, tmp_path):
    ds = changed(simulated, {"title": "another"})
    assert origin(config, ds, tmp_path) == "of the training split, computed first"
    stats = find_statistics(config, ds, tmp_path, None, ALONE)
    x = Standardizer.from_config(config, stats).to_tensor(ds).double()
    mean, std = x.mean((0, 2, 3)), x.std((0, 2, 3))
    defined = [0, 2, 3, 4, 5]  # undefined SST is 0, and counts for none of the statistics
    torch.testing.assert_close(mean[defined], torch.zeros(5).double(), rtol=0, atol=1e-4)
    torch.testing.assert_close(std[defined], torch.ones(5).double(), rtol=0, atol=1e-4)
    # the mean over time of what normals are taken from, rounded to 2^-8
    torch.testing.assert_close(
        torch.from_numpy(stats["normals"].values).double(), x.mean(0), rtol=0, atol=2**-9 + 1e-4
    )


def test_a_store_that_is_no_planet_but_says_so(config, simulated, tmp_path):
    ds = changed(simulated, simulated.attrs)
    with pytest.raises(
        DataError, match=r"2m_temperature in the store is not on the scale.*bundled"
    ):
        find_statistics(config, ds, tmp_path, None, ALONE)


@pytest.mark.parametrize(
    ("name", "change"),
    [("temperature", lambda x: x - 273.15), ("specific_humidity", lambda x: 1000 * x)],
)
def test_other_units_than_the_run_began_with(config, simulated, tmp_path, name, change):
    r"""A run's statistics are known, and a store in °C or g/kg is not on their scale."""
    write_statistics(tmp_path, planet.statistics())
    assert find_statistics(config, simulated, tmp_path, None, ALONE) is not None
    ds = simulated.assign({name: change(simulated[name])})
    with pytest.raises(DataError, match=rf"{name} at 500 hPa .*statistics.nc.*--statistics FILE"):
        find_statistics(config, ds, tmp_path, None, ALONE)


def test_a_run_does_not_go_on_with_states_on_another_scale(tmp_path):
    config, run = small.configuration(), tmp_path / "run"
    store = small.write(tmp_path / "store.zarr", small.states())
    train_autoencoder(config, store, run, steps=1, logger="none", device="cpu")
    ds = small.states()
    for name in small.ATMOSPHERIC:
        ds[name] = ds[name] * 100
    other = small.write(tmp_path / "other.zarr", ds)
    with pytest.raises(DataError, match="temperature at 500 hPa in the store is not on the scale"):
        train_autoencoder(config, other, run, steps=2, logger="none", device="cpu")


def test_it_is_said_which(tmp_path):
    arguments = {"config": load_config("planet"), "data": "planet", "out": tmp_path}
    said = intentions("autoencoder", arguments)
    assert "statistics: the bundled planet's, of its training simulation" in said
    file = Path("mine.nc")
    assert "statistics: those in mine.nc" in intentions(
        "autoencoder", arguments | {"statistics": file}
    )
    write_statistics(tmp_path, planet.statistics())
    said = intentions("autoencoder", arguments)
    assert f"statistics: those in {tmp_path / 'statistics.nc'}" in said
