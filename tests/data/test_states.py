r"""States against standardization by hand in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xarray as xr

from appa.data import statistics
from appa.data.grids import Grid
from appa.data.states import Standardizer, undefined
from appa.data.variables import ATMOSPHERIC, LEVELS, SURFACE, VARIABLES
from appa.errors import DataError

from .public_layout import canonical, hours

GRID = Grid("equiangular", 19, 36)


@pytest.fixture(scope="module")
def ds() -> xr.Dataset:
    return canonical(hours("2020-06-01", 12, every=5), levels=LEVELS)


@pytest.fixture(scope="module")
def stats(ds) -> xr.Dataset:
    return statistics.compute(ds)


def test_channels_are_in_the_papers_order(ds, stats):
    x = Standardizer(stats).to_tensor(ds)
    assert x.shape == (12, 71, 19, 36)
    assert x.dtype == torch.float32
    c = 0
    for name in SURFACE + ATMOSPHERIC:
        for level in [None] if VARIABLES[name].surface else LEVELS:
            sel = {} if level is None else {"level": level}
            y = ds[name].sel(sel).values.astype(np.float64)
            mean, std = stats[name].sel(sel).values
            expected = np.nan_to_num((y - mean) / std)
            # The mean is rounded to single precision, and so is the difference
            tolerance = 4e-7 * (1 + np.nanmax(abs(expected))) + np.spacing(np.float32(mean)) / std
            np.testing.assert_allclose(x[:, c].numpy(), expected, atol=tolerance, rtol=0)
            c += 1
    assert c == 71
    # standardized by their own statistics: mean 0, deviation 1
    sea = ~np.isnan(ds["sea_surface_temperature"].values)
    for channel in (0, 3, 40, 70):
        assert abs(x[:, channel].mean()) < 1e-5
        assert abs(x[:, channel].std(correction=0) - 1) < 1e-5
    assert abs(x[:, 4][torch.from_numpy(sea)].std(correction=0) - 1) < 1e-5


def test_round_trip(ds, stats):
    standardizer = Standardizer(stats, land_mask=undefined(ds))
    back = standardizer.to_dataset(standardizer.to_tensor(ds), ds["time"].values, GRID)
    for name in SURFACE + ATMOSPHERIC:
        assert back[name].dims == ds[name].dims
        assert back[name].dtype == np.float32
        assert back[name].attrs["units"] == VARIABLES[name].units
        y = ds[name].values
        # rounding of the difference, the quotient, the product and the sum
        mean = stats[name].values[0]
        spread = np.nanmax(abs(y - (mean[:, None, None] if y.ndim == 4 else mean)))
        tolerance = 3 * np.spacing(np.float32(spread)) + np.spacing(np.float32(np.nanmax(abs(y))))
        np.testing.assert_allclose(back[name].values, y, atol=tolerance, rtol=0)
    for dim in ("time", "level", "latitude", "longitude"):
        np.testing.assert_array_equal(back[dim].values, ds[dim].values)
        assert back[dim].attrs["standard_name"]


def test_undefined_sst_is_zero_and_undefined_again(ds, stats):
    land = ds["land_sea_mask"].values > 0
    assert 0.1 < land.mean() < 0.6
    sst = list(SURFACE).index("sea_surface_temperature")
    for mask in (undefined(ds), ds["land_sea_mask"]):
        standardizer = Standardizer(stats, land_mask=mask)
        x = standardizer.to_tensor(ds)
        assert (x[:, sst, land] == 0).all()
        assert (x[:, sst, ~land] != 0).any(0).all()
        back = standardizer.to_dataset(x + 1, ds["time"], ds)["sea_surface_temperature"].values
        assert (np.isnan(back) == land).all()
    without = undefined(ds.drop_vars("sea_surface_temperature"))
    np.testing.assert_array_equal(without, land)
    assert undefined(ds[["temperature"]]) is None
    # without a mask there is nothing to go by
    free = Standardizer(stats).to_dataset(x, ds["time"], ds)["sea_surface_temperature"]
    assert not np.isnan(free.values).any()


def test_coasts_may_be_either(ds, stats):
    r"""A share of land between 0 and 1 decides nothing on the way in."""
    ds = ds.copy(deep=True)
    share = ds["land_sea_mask"].values.copy()
    j, i = np.argwhere(share == 0)[5]
    ds["sea_surface_temperature"].values[:, j, i] = np.nan
    with pytest.raises(DataError, match="sea_surface_temperature at 2020-06-01T00 is undefined"):
        Standardizer(stats, land_mask=share).to_tensor(ds)
    share[j, i] = 0.2
    assert Standardizer(stats, land_mask=share).to_tensor(ds)[0, 4, j, i] == 0


def test_subsets_members_and_single_states(ds, stats):
    names = (("total_precipitation", "2m_temperature"), ("geopotential",))
    standardizer = Standardizer(stats, *names, levels=(850, 500))
    assert [c.name for c in standardizer.channels] == ["tp", "t2m", "z850", "z500"]
    x = standardizer.to_tensor(ds)
    full = Standardizer(stats).to_tensor(ds)
    torch.testing.assert_close(x, full[:, [5, 0, 6 + 3 * 13 + 10, 6 + 3 * 13 + 7]])

    one = standardizer.to_tensor(ds.isel(time=3))
    torch.testing.assert_close(one, x[3])
    again = standardizer.to_dataset(one, ds["time"].values[3], GRID)
    assert again["geopotential"].dims == ("level", "latitude", "longitude")
    assert again["time"].values == ds["time"].values[3]

    members = xr.concat([ds, ds + 1.0], "member").transpose("time", "member", ...)
    y = standardizer.to_tensor(members)
    assert y.shape == (2, 12, 4, 19, 36)
    torch.testing.assert_close(y[0], x)
    back = standardizer.to_dataset(y, ds["time"].values, GRID)
    assert back["geopotential"].dims == ("member", "time", "level", "latitude", "longitude")
    assert back["2m_temperature"].dims == ("member", "time", "latitude", "longitude")
    np.testing.assert_allclose(
        back["2m_temperature"].values[1], ds["2m_temperature"].values + 1, atol=2e-4
    )

    surface = Standardizer(stats, ("2m_temperature",), ())
    assert "level" not in surface.to_dataset(surface.to_tensor(ds), ds["time"], ds).coords


def test_from_a_configuration(ds, stats):
    from appa.config import load_config

    standardizer = Standardizer.from_config(load_config("era5-0.25deg"), stats, undefined(ds))
    assert len(standardizer.channels) == 71
    torch.testing.assert_close(standardizer.to_tensor(ds), Standardizer(stats).to_tensor(ds))


def test_half_precision_states_come_back_in_single(ds, stats):
    standardizer = Standardizer(stats)
    x = standardizer.to_tensor(ds.isel(time=slice(0, 2)))
    back = standardizer.to_dataset(x.to(torch.bfloat16), ds["time"].values[:2], GRID)
    z, std = back["geopotential"].values, stats["geopotential"].sel(statistic="std").values
    expected = ds["geopotential"].values[:2]
    # bfloat16 keeps 8 bits of the standardized value, and none of the mean's are lost
    limit = 2.0**-8 * abs(x).max().item() * std[:, None, None]
    assert (abs(z - expected) <= limit + 0.1).all()


def test_lazy_and_dask_datasets(ds, stats, tmp_path):
    ds.to_zarr(tmp_path / "store.zarr", zarr_format=2)
    x = Standardizer(stats).to_tensor(ds)
    lazy = xr.open_zarr(tmp_path / "store.zarr", chunks=None)
    torch.testing.assert_close(Standardizer(stats).to_tensor(lazy), x, rtol=0, atol=0)
    torch.testing.assert_close(Standardizer(stats).to_tensor(lazy.chunk(time=5)), x, rtol=0, atol=0)


def test_faults_are_named(ds, stats):
    standardizer = Standardizer(stats, land_mask=undefined(ds))
    bad = ds.copy(deep=True)
    bad["temperature"].values[7, 7, 3, 4:6] = np.nan
    bad["temperature"].values[9, 7, 3, 4] = np.nan
    with pytest.raises(
        DataError, match=r"temperature at 500 hPa at 2020-06-02T11 is undefined.*2 of 684.*3 such"
    ):
        standardizer.to_tensor(bad)
    with pytest.raises(DataError, match="of member 1 is"):
        standardizer.to_tensor(xr.concat([ds, bad], "member"))

    bad = ds.copy(deep=True)
    bad["sea_surface_temperature"].values[2] = -np.inf
    with pytest.raises(DataError, match="sea_surface_temperature at 2020-06-01T10 is infinite"):
        Standardizer(stats).to_tensor(bad)

    with pytest.raises(DataError, match="no variable '2m_temperature'"):
        standardizer.to_tensor(ds.drop_vars("2m_temperature"))
    with pytest.raises(DataError, match="no temperature at 600 hPa; the nearest level is 500"):
        standardizer.to_tensor(ds.drop_sel(level=[600, 700]))
    with pytest.raises(DataError, match="the statistics have no temperature at 975 hPa"):
        Standardizer(stats, levels=(975,))
    with pytest.raises(DataError, match="latitude runs from -90 to 90"):
        standardizer.to_tensor(ds.isel(latitude=slice(None, None, -1)))
    with pytest.raises(DataError, match=r"land mask has shape \(19, 36\)"):
        standardizer.to_tensor(ds.isel(longitude=slice(0, 18)))
    with pytest.raises(DataError, match="land mask has shape"):
        Standardizer(stats, land_mask=np.zeros(5))
    x = standardizer.to_tensor(ds)
    with pytest.raises(DataError, match=r"\(12, 71, 19, 36\), expected \(3, 71, 19, 36\)"):
        standardizer.to_dataset(x, ds["time"].values[:3], GRID)


def test_undefined_looks_past_hours_without_data():
    from appa.data.states import undefined

    rng = np.random.default_rng(0)
    sst = rng.normal(290, 5, (6, 4, 8)).astype(np.float32)
    sst[:, :2, :3] = np.nan
    expected = np.isnan(sst[-1])
    sst[:3] = np.nan  # a time axis that begins before its data
    dims = ("time", "latitude", "longitude")
    ds = xr.Dataset({"sea_surface_temperature": (dims, sst)})
    np.testing.assert_array_equal(undefined(ds), expected)
    # With no data at all, the land mask decides.
    mask = (("latitude", "longitude"), expected.astype(np.float32))
    nothing = xr.Dataset({"sea_surface_temperature": (dims, sst[:3]), "land_sea_mask": mask})
    np.testing.assert_array_equal(undefined(nothing), expected)
