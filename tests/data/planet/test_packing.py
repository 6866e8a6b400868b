r"""Packing: the error is what rounding says, and nothing is lost on the way."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from appa.data import planet
from appa.data.planet.packing import pack, unpack
from appa.data.stores import open_store
from appa.data.variables import ATMOSPHERIC, LEVELS, SURFACE
from appa.errors import DataError, StoreError


def dataset(seed=0):
    rng = np.random.default_rng(seed)
    sst = 290 + rng.normal(0, 1, (5, 4, 6)).cumsum(axis=0)
    sst[:, :2, :3] = np.nan
    return xr.Dataset(
        {
            "temperature": (("time", "level", "y", "x"), 250 + rng.normal(0, 9, (5, 3, 4, 6))),
            "sea_surface_temperature": (("time", "y", "x"), sst),
            "ground": (("y", "x"), rng.normal(0, 1, (4, 6)).astype(np.float32)),
        },
        {"time": np.datetime64("2021-01-01", "ns") + np.arange(5) * np.timedelta64(1, "h")},
        {"title": "a test", "count": np.int64(3)},
    ).assign_coords(level=[100, 500, 850])


def test_round_trip_errs_by_rounding_alone(tmp_path):
    ds = dataset()
    steps = {"temperature": np.array([0.1, 0.2, 0.4]), "sea_surface_temperature": 0.05}
    pack(ds, tmp_path / "a.zip", steps)
    got = unpack(tmp_path / "a.zip")
    assert got.attrs == {"title": "a test", "count": 3}
    xr.testing.assert_equal(got["time"], ds["time"])
    xr.testing.assert_identical(got["ground"].drop_vars(()), ds["ground"])
    for name, step in steps.items():
        error = np.abs(got[name].values - ds[name].values)
        limit = np.reshape(step, (1, -1, 1, 1) if np.ndim(step) else ()) / 2 + 1e-4
        assert (
            error[np.isfinite(error)] <= np.broadcast_to(limit, error.shape)[np.isfinite(error)]
        ).all()
        np.testing.assert_array_equal(np.isnan(got[name]), np.isnan(ds[name]))


def test_what_cannot_be_packed_is_refused(tmp_path):
    ds = dataset()
    with pytest.raises(DataError, match="too small"):
        pack(ds, tmp_path / "a.zip", {"temperature": 1e-4})
    ds["sea_surface_temperature"][2, 3, 3] = np.nan
    with pytest.raises(DataError, match="some times only"):
        pack(ds, tmp_path / "a.zip", {"sea_surface_temperature": 0.05})
    assert not (tmp_path / "a.zip").exists()


def test_a_truncated_file_is_named(tmp_path):
    pack(dataset(), tmp_path / "a.zip", {})
    whole = (tmp_path / "a.zip").read_bytes()
    (tmp_path / "a.zip").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreError, match=r"a\.zip is missing or damaged"):
        unpack(tmp_path / "a.zip")


def test_the_excerpt_is_canonical_and_whole():
    ds = open_store("planet")
    assert dict(ds.sizes) == {"time": 96, "level": 13, "latitude": 48, "longitude": 96}
    assert tuple(ds["level"].values) == LEVELS
    assert ds["latitude"][0] > ds["latitude"][-1]
    hours = np.diff(ds["time"].values) / np.timedelta64(1, "h")
    assert (hours == 1).all()
    for name in (*SURFACE, *ATMOSPHERIC):
        assert ds[name].dtype == np.float32
        defined = np.isfinite(ds[name].values)
        if name == "sea_surface_temperature":
            sea = np.broadcast_to(ds["land_sea_mask"].values < 0.5, defined.shape)
            np.testing.assert_array_equal(defined, sea)
        else:
            assert defined.all(), name


def test_the_stated_packing_error_of_the_excerpt():
    # Values are multiples of the recorded step, so the error is uniform on ± step / 2.
    import zarr
    from zarr.storage import ZipStore

    group = zarr.open_group(ZipStore(planet._bundled("planet.zarr.zip"), mode="r"), mode="r")
    ds, statistics = open_store("planet"), planet.statistics()
    for name in (*SURFACE, *ATMOSPHERIC):
        rms = np.asarray(group[name].attrs["step"]) / np.sqrt(12)
        own = ds[name].std(("time", "latitude", "longitude")).values
        climate = statistics[name].sel(statistic="std").values
        assert (rms < 0.01 * own).all(), name
        assert (rms < 0.01 * climate).all(), name
        step = np.reshape(group[name].attrs["step"], (-1, 1, 1) if rms.ndim else ())
        multiple = ds[name].isel(time=17).values / step
        np.testing.assert_allclose(multiple, np.rint(multiple), atol=0.01, equal_nan=True)


def test_the_bundle_fits_in_its_share_of_the_repository():
    assert planet._bundled("planet.zarr.zip").stat().st_size <= 12e6


def test_what_a_caller_changes_stays_theirs():
    ds = open_store("planet")
    hour = ds["2m_temperature"].isel(time=1)
    celsius = hour.values
    celsius -= 273.15
    assert float(ds["2m_temperature"].isel(time=1).mean()) > 250
    planet.climatology()["2m_temperature"][:] = 0
    assert float(planet.climatology()["2m_temperature"].max()) > 250
