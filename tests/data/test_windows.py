r"""Windows are what xarray reads, in an order that a seed determines."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

from appa.data import shards
from appa.data.reading import CompressedArray, LazyArray, ShardedArray
from appa.data.states import Standardizer
from appa.data.windows import WindowLoader, runs
from appa.errors import DataError

from .public_layout import write_weatherbench2
from .small_windows import (
    ATMOSPHERIC,
    CHANGE,
    GAP,
    LAND,
    LEVELS,
    RUNS,
    SURFACE,
    H,
    T,
    W,
    dataset,
    dates,
    hours_of,
    standardized,
    states,
    statistics,
    write,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("windows") / "store.zarr", dataset())


@pytest.fixture(params=[None, 1000])
def block(request, monkeypatch) -> None:
    r"""Whether reads are small for what one may be, or large, and a state takes several."""
    if request.param is not None:
        monkeypatch.setattr(shards, "BLOCK", request.param)


@pytest.mark.parametrize("window", [1, 5])
@pytest.mark.parametrize("direct", [True, False])
def test_windows_are_what_was_written(store, block, window, direct):
    loader = WindowLoader(store, window, 3, direct=direct)
    assert all(isinstance(source.array, ShardedArray) for source in loader.sources)
    truth, time = states(), dates().astype("datetime64[h]")
    seen = []
    for x, when in loader:
        assert x.shape == (3, window, 10, H, W)
        assert x.dtype == torch.float32
        assert when.shape == (3, window)
        index = np.searchsorted(time, when)
        np.testing.assert_array_equal(x.numpy(), truth[index])
        seen += index[:, 0].tolist()
    possible = [s for i, j in RUNS for s in range(i, j - window + 1)]
    assert len(seen) == len(possible) // 3 * 3
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(possible)


def test_windows_are_what_xarray_reads(store):
    ds = xr.open_zarr(store, chunks=None)
    for x, when in WindowLoader(store, 4, 2, variables=["geopotential"]):
        for window, hours in zip(x, when, strict=True):
            index = np.searchsorted(ds.time.values, hours.astype("datetime64[ns]"))
            expected = ds["geopotential"].isel(time=slice(index[0], index[-1] + 1)).load()
            np.testing.assert_array_equal(window.numpy(), expected.values)


@pytest.mark.parametrize("kind", ["zstd", "dataset", "netcdf"])
def test_other_stores_give_the_same(store, tmp_path, kind):
    if kind == "zstd":
        other = write(tmp_path / "zstd.zarr", dataset(), "zstd")
    elif kind == "netcdf":
        other = tmp_path / "store.nc"
        dataset().to_netcdf(other)
    else:
        other = dataset()
    options = {"standardizer": statistics(), "seed": 3}
    fast = WindowLoader(store, 3, 4, **options)
    slow = WindowLoader(other, 3, 4, **options)
    reader = CompressedArray if kind == "zstd" else LazyArray
    assert all(isinstance(source.array, reader) for source in slow.sources)
    for (x, t), (y, u) in zip(fast, slow, strict=True):
        assert torch.equal(x, y)
        np.testing.assert_array_equal(t, u)


def test_public_layout(tmp_path):
    r"""Latitude ascending, longitude before latitude: values still land in canonical places."""
    write_weatherbench2(
        tmp_path / "wb2.zarr",
        np.datetime64("2020-01-01T00", "ns") + np.arange(6) * 3_600_000_000_000,
    )
    from appa.data.stores import open_store

    ds = open_store(tmp_path / "wb2.zarr")
    loader = WindowLoader(
        tmp_path / "wb2.zarr", 2, 2, variables=["temperature"], levels=[500, 850], shuffle=False
    )
    x, _ = next(iter(loader))
    expected = ds["temperature"].sel(level=[500, 850]).isel(time=slice(0, 2)).values
    np.testing.assert_array_equal(x[0].numpy(), expected)


@pytest.mark.parametrize("dim", ["latitude", "longitude", "level"])
def test_the_layout_in_another_order(tmp_path, dim):
    r"""Files that hold values in another order than the dataset are not read as they are."""
    order = np.arange(dataset().sizes[dim])[::-1]
    if dim == "longitude":  # from -180
        order = np.roll(order[::-1], W // 2)
    ds = dataset().isel({dim: order})
    if dim == "longitude":
        ds = ds.assign_coords(longitude=(ds.longitude + 180) % 360 - 180)
    loader = WindowLoader(write(tmp_path / "other.zarr", ds), 3, 1, shuffle=False)
    x, _ = next(iter(loader))
    np.testing.assert_array_equal(x[0].numpy(), states()[:3])


def test_standardized(store, block):
    standardizer = Standardizer(statistics(), SURFACE, ATMOSPHERIC, LEVELS, LAND)
    time, truth = dates().astype("datetime64[h]"), standardized()
    for chosen in (standardizer, statistics()):
        for x, when in WindowLoader(store, 2, 4, standardizer=chosen):
            expected = truth[np.searchsorted(time, when)]
            # Values are up to 36 with rounding 2^-24 relative, deviations from 0.7 up.
            np.testing.assert_allclose(x.numpy(), expected, atol=36 * 2**-23 / 0.7)
            assert (x[:, :, 1].numpy()[..., LAND] == 0).all()
            assert (x[:, :, 1].numpy()[..., ~LAND] != 0).all()
    (x, _) = next(iter(WindowLoader(store, T // 4, 1, standardizer=standardizer, shuffle=False)))
    same = standardizer.to_tensor(dataset().isel(time=slice(0, T // 4)))
    torch.testing.assert_close(x[0], same, rtol=2**-22, atol=0)  # a quotient, or a product


def test_stored_values_keep_undefined(store):
    x, _ = next(iter(WindowLoader(store, 1, 1)))
    assert torch.isnan(x[0, 0, 1][torch.from_numpy(LAND)]).all()
    assert torch.isnan(x).sum() == LAND.sum()


@pytest.mark.parametrize(
    ("name", "index", "message"),
    [
        ("geopotential", (30, 2, 1, 1), "geopotential at 850 hPa .* 1 of 84 .*2002-01-01T11"),
        ("sea_surface_temperature", (4, 0, 0), "sea_surface_temperature .*2001-12-31T04"),
    ],
)
def test_undefined_is_an_error(tmp_path, block, name, index, message):
    ds = dataset()
    ds[name].values[index] = np.nan
    loader = WindowLoader(write(tmp_path / "nan.zarr", ds), 1, 1, standardizer=statistics())
    with pytest.raises(DataError, match=message):
        list(loader)


def test_no_window_crosses_a_gap_or_a_trajectory(store):
    windows = hours_of(WindowLoader(store, 6, 1))
    assert len(windows) == sum(j - i - 5 for i, j in RUNS)
    for window in windows:
        assert any(i <= window[0] and window[-1] < j for i, j in RUNS)
        assert np.diff(window).tolist() == [1] * 5
    # Without the trajectory, the windows that cross its change are there.
    windows = hours_of(WindowLoader(dataset().drop_vars("trajectory"), 6, 1))
    assert any(window[0] < CHANGE <= window[-1] for window in windows)
    assert not any(window[0] < GAP <= window[-1] for window in windows)


def test_runs():
    time = dates()
    assert runs(time).tolist() == [[0, GAP], [GAP, T]]
    assert runs(time[[0, 1, 1, 2, 1, 2]]).tolist() == [[0, 2], [2, 4], [4, 6]]
    assert runs(time[:0]).tolist() == []
    assert runs(time[::6][:3]).tolist() == [[0, 1], [1, 2], [2, 3]]


def test_split(store):
    hours = hours_of(WindowLoader(store, 1, 1, split=("2001", "2001"), shuffle=False))
    assert [h for (h,) in hours] == list(range(24))
    hours = hours_of(WindowLoader(store, 2, 1, split=("2002-01-01T00", None), shuffle=False))
    assert [h for h, _ in hours] == [24, *range(26, 44), *range(45, 59)]


def test_a_split_of_hours_out_of_order():
    r"""None can be found; of all hours, stretches can."""
    back = dataset().isel(time=[0, 1, 2, 5, 4, 3, *range(6, 20)])
    with pytest.raises(DataError, match=r"2001-12-31T04:00 comes after 2001-12-31T05:00; sort"):
        WindowLoader(back, 2, 1, split=("2001", "2001"))
    assert len(WindowLoader(back, 2, 1)) == 2 + 13
    with pytest.raises(DataError, match="cannot find the hours from spring to fall"):
        WindowLoader(dataset(), 2, 1, split=("spring", "fall"))


def test_levels_and_variables(store, block):
    options = {"variables": ["geopotential", "2m_temperature"], "levels": [1000, 200, 500]}
    loader = WindowLoader(store, 2, 1, shuffle=False, **options)
    x, _ = next(iter(loader))
    expected = states()[0:2][:, [0, 9, 6, 7]]  # surface first, then the levels as asked
    np.testing.assert_array_equal(x[0].numpy(), expected)
    with pytest.raises(DataError, match="300 hPa"):
        WindowLoader(store, 2, 1, levels=[300])
    with pytest.raises(DataError, match="did you mean 'temperature'"):
        WindowLoader(store, 2, 1, variables=["temperatur"])
    with pytest.raises(DataError, match="no 'total_precipitation'"):
        WindowLoader(store, 2, 1, variables=["total_precipitation"])


def test_order_is_determined(store):
    first, same = WindowLoader(store, 3, 2, seed=1), WindowLoader(store, 3, 2, seed=1, workers=1)
    epochs = [hours_of(first) for _ in range(2)]
    assert epochs == [hours_of(same) for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert hours_of(WindowLoader(store, 3, 2, seed=2)) != epochs[0]
    same.set_epoch(0)
    assert hours_of(same) == epochs[0]
    ordered = hours_of(WindowLoader(store, 3, 2, shuffle=False))
    assert ordered == sorted(ordered)


@pytest.mark.parametrize("taken", [1, 4, 17])
def test_resumes_in_the_middle_of_an_epoch(store, taken):
    options = {"standardizer": statistics(), "seed": 5}
    loader = WindowLoader(store, 4, 3, **options)  # 51 windows, 17 batches
    list(loader)  # the first epoch
    whole, state, after = [], None, None
    for k, (x, t) in enumerate(loader, 1):
        whole.append((x, t))
        if k == taken:
            state = loader.state_dict()
    after = next(iter(loader))

    resumed = WindowLoader(store, 4, 3, workers=1, prefetch=1, **options)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    resumed.set_epoch(1)  # as a training loop does; the position stays
    rest = list(resumed)
    assert len(rest) == len(whole) - taken
    for (x, t), (y, u) in zip(whole[taken:], rest, strict=True):
        assert torch.equal(x, y)
        np.testing.assert_array_equal(t, u)
    assert resumed.epoch == 2
    assert torch.equal(next(iter(resumed))[0], after[0])


def test_a_new_iteration_starts_over(store):
    loader = WindowLoader(store, 2, 2)
    first = [t for _, t in itertools.islice(loader, 3)]
    again = [t for _, t in itertools.islice(loader, 3)]
    np.testing.assert_array_equal(first, again)


def test_resumes_on_other_ranks(store):
    r"""Two ranks with batches of 3 do what one rank with batches of 6 does."""
    loader = WindowLoader(store, 2, 6)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    _, expected = next(iterator)
    found = []
    for rank in range(2):
        part = WindowLoader(store, 2, 3, rank=rank, world_size=2)
        part.load_state_dict(state)
        found.append(next(iter(part))[1])
    np.testing.assert_array_equal(np.concatenate(found), expected)

    with pytest.raises(DataError, match="after 6 windows with batches of 4"):
        WindowLoader(store, 2, 4).load_state_dict(state)
    with pytest.raises(DataError, match="window was 2, is 3; seed was 0, is 1"):
        WindowLoader(store, 3, 6, seed=1).load_state_dict(state)


@pytest.mark.parametrize("drop_last", [True, False])
def test_ranks_share_the_windows(store, drop_last):
    options = {"world_size": 3, "drop_last": drop_last, "seed": 2}
    loaders = [WindowLoader(store, 1, 7, rank=rank, **options) for rank in range(3)]  # 60 windows
    parts = [[window[0] for window in hours_of(loader)] for loader in loaders]
    assert len({len(loader) for loader in loaders}) == 1
    assert len({len(part) for part in parts}) == 1
    together = [hour for part in parts for hour in part]
    if drop_last:
        assert len(loaders[0]) == 2
        assert len(together) == len(set(together)) == 42
    else:
        assert len(loaders[0]) == 3
        assert set(together) == set(range(T))
        assert len(together) == 60  # 18 are left for the last batch, which 3 divides


def test_last_batch_is_completed_on_every_rank(store):
    options = {"world_size": 4, "drop_last": False, "split": ("2001", "2001")}  # 24 windows
    loaders = [WindowLoader(store, 2, 5, rank=rank, **options) for rank in range(4)]
    parts = [hours_of(loader) for loader in loaders]
    assert [len(part) for part in parts] == [6] * 4  # 23 windows, one of them twice
    starts = [window[0] for part in parts for window in part]
    assert set(starts) == set(range(23))


def test_kept_batches_stay_and_dropped_memory_is_used_again(store):
    loader = WindowLoader(store, 1, 2, prefetch=1, standardizer=statistics())
    expected = [x.clone() for x, _ in loader]
    loader.set_epoch(0)
    kept = [x[:, 0] for x, _ in loader]  # views hold the memory too
    assert len({x.data_ptr() for x in kept}) == len(loader)
    assert all(torch.equal(x, y[:, 0]) for x, y in zip(kept, expected, strict=True))
    places = {x.data_ptr() for x, _ in loader}
    assert len(places) <= loader.prefetch + 2 < len(loader)


def test_latents(tmp_path):
    x = np.random.default_rng(0).standard_normal((30, 5, 3, 4), dtype=np.float32)
    ds = xr.Dataset(
        {"latents": (("time", "channel", "latitude", "longitude"), x)}, {"time": dates()[:30]}
    )
    for path in (write(tmp_path / "latents.zarr", ds), ds):
        loader = WindowLoader(path, 4, 2, shuffle=False)
        assert loader.shape == (5, 3, 4)
        batch, _ = next(iter(loader))
        np.testing.assert_array_equal(batch[1].numpy(), x[1:5])
        with pytest.raises(DataError, match="latents"):
            WindowLoader(path, 4, 2, levels=[500])
    assert isinstance(WindowLoader(tmp_path / "latents.zarr", 1, 1).sources[0].array, ShardedArray)


def test_half_precision_latents(tmp_path):
    x = np.random.default_rng(0).standard_normal((9, 2, 3, 4)).astype(np.float16)
    ds = xr.Dataset({"latents": (("time", "channel", "y", "x"), x)}, {"time": dates()[:9]})
    loader = WindowLoader(write(tmp_path / "latents.zarr", ds), 9, 1, direct=True)
    batch, _ = next(iter(loader))
    np.testing.assert_array_equal(batch[0].numpy(), x.astype(np.float32))


def test_too_short(store):
    with pytest.raises(DataError, match=r"window of 27 hours .*lengths: 26, 19, 15"):
        WindowLoader(store, 27, 1)
    with pytest.raises(DataError, match="from 2003 to 2004"):
        WindowLoader(store, 1, 1, split=("2003", "2004"))
    with pytest.raises(DataError, match="51 windows of 4 hours are too few"):
        WindowLoader(store, 4, 30, world_size=2)


def test_wrong_arguments(store, tmp_path):
    for wrong in ({"rank": 2}, {"rank": -1}, {"workers": 0}, {"prefetch": 0}):
        with pytest.raises(DataError, match=next(iter(wrong))):
            WindowLoader(store, 1, 1, **{"world_size": 2, **wrong})
    with pytest.raises(DataError, match="window"):
        WindowLoader(store, 0, 1)
    with pytest.raises(DataError, match="select one member"):
        WindowLoader(dataset().drop_vars("land_sea_mask").expand_dims(member=2), 1, 1)
    standardizer = Standardizer(statistics(), SURFACE, ATMOSPHERIC, LEVELS, np.zeros((3, 4), bool))
    with pytest.raises(DataError, match="of its own"):
        WindowLoader(store, 1, 1, standardizer=standardizer, levels=[500])
    with pytest.raises(DataError, match="land mask"):
        WindowLoader(store, 1, 1, standardizer=standardizer)


def test_states_off_the_hour_are_refused():
    time = np.datetime64("2021-01-01", "ns") + np.arange(8) * np.timedelta64(30, "m")
    ds = xr.Dataset(
        {"2m_temperature": (("time", "latitude", "longitude"), np.ones((8, 4, 8), np.float32))},
        {"time": time, "latitude": np.linspace(80, -80, 4), "longitude": np.arange(8) * 45.0},
    )
    with pytest.raises(DataError, match="2021-01-01T00:30, off the hour"):
        WindowLoader(ds, 2, 1)
