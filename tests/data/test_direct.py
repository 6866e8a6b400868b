r"""Direct reads against Zarr's own."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import xarray as xr

from appa.data.direct import DirectArray
from appa.data.layout import make_template
from appa.data.shards import write_shard
from appa.data.stores import open_store
from appa.data.writing import StoreWriter

HOURS, LEVELS, H, W = 23, 5, 6, 8
KEYS = [
    {},
    {"time": 5},
    {"time": slice(3, 19)},
    {"time": slice(None, None, -1)},
    {"time": slice(20, 2, -3)},
    {"time": [5, 6, 7, 3, 21]},
    {"time": slice(4, 4)},
    {"time": slice(6, 9), "latitude": slice(None, None, -2), "longitude": 3},
]
LEVEL_KEYS = [
    {"level": 3},
    {"level": [4, 1], "time": slice(7, 13)},
    {"level": slice(1, 3), "time": 11},
    {"level": slice(4, 0, -2), "time": slice(1, 9, 2)},
    {"level": slice(0, 0)},
]


@pytest.fixture(scope="module", params=["none", "zstd"])
def store(request, tmp_path_factory):
    r"""A store with shards of 6 hours and a last one that is not full."""
    rng = np.random.default_rng(0)
    time = np.datetime64("2021-01-01", "ns") + np.arange(HOURS) * np.timedelta64(1, "h")
    template = make_template(
        time,
        np.linspace(75, -75, H),
        np.arange(W) * 45.0,
        [100, 300, 500, 850, 1000],
        surface=["2m_temperature"],
        atmospheric=["temperature"],
    )
    path = tmp_path_factory.mktemp("direct") / "store.zarr"
    with StoreWriter(path, template, block=6, compression=request.param) as writer:
        for i, hours in enumerate(writer.blocks):
            part = template.isel(time=hours)
            for name in part.data_vars:
                values = rng.normal(size=part[name].shape).astype(np.float32)
                part[name] = (part[name].dims, values)
            writer.write(i, part)
        writer.finish()
    return path, request.param


@pytest.mark.parametrize("key", KEYS + LEVEL_KEYS, ids=str)
def test_any_selection_is_zarrs(store, key):
    ours, zarrs = open_store(store[0]), xr.open_zarr(store[0], chunks=None)
    for name in ("2m_temperature", "temperature"):
        if "level" in key and name != "temperature":
            continue
        expected = zarrs[name].isel(key)
        assert ours[name].isel(key).shape == expected.shape
        np.testing.assert_array_equal(ours[name].isel(key).values, expected.values)


def test_it_survives_pickling(store):
    ours = open_store(store[0])
    copy = pickle.loads(pickle.dumps(ours))
    np.testing.assert_array_equal(copy["temperature"].values, ours["temperature"].values)


def test_uncompressed_stores_take_it(store, monkeypatch):
    calls = []
    read = DirectArray._read
    monkeypatch.setattr(
        DirectArray, "_read", lambda self, key: calls.append(key) or read(self, key)
    )
    open_store(store[0])["temperature"].isel(time=0).load()
    assert bool(calls) == (store[1] == "none")


def test_a_shard_written_by_hand_is_the_one_zarr_writes(tmp_path):
    import zarr

    rng = np.random.default_rng(1)
    for hours in (6, 4):  # full, and the last one of a store
        values = rng.normal(size=(hours, LEVELS, H, W)).astype(np.float32)
        array = zarr.create_array(
            tmp_path / f"zarr{hours}",
            shape=values.shape,
            chunks=(1, LEVELS, H, W),
            shards=(6, LEVELS, H, W),
            dtype="float32",
            compressors=None,
        )
        array[:] = values
        write_shard(tmp_path / f"ours{hours}", values, 6)
        theirs = (tmp_path / f"zarr{hours}" / "c" / "0" / "0" / "0" / "0").read_bytes()
        assert (tmp_path / f"ours{hours}").read_bytes() == theirs


@pytest.mark.parametrize("store", ["none"], indirect=True)  # others are read through Zarr
@pytest.mark.parametrize("hours", [[0, 22], [3, 9, 15]])
def test_a_list_of_hours_reads_those_hours_only(store, monkeypatch, hours):
    from appa.data import shards

    read = []
    ranges = shards.read_ranges
    for module in (shards, __import__("appa.data.reading", fromlist=["_"])):
        if hasattr(module, "read_ranges"):
            monkeypatch.setattr(
                module,
                "read_ranges",
                lambda parts: read.extend(n for _, _, n in parts) or ranges(parts),
            )
    open_store(store[0])["temperature"].isel(time=hours).load()
    hour = LEVELS * H * W * 4
    # The hours, and the indexes of the shards they are in.
    assert len(hours) * hour <= sum(read) <= len(hours) * (hour + 6 * 16 + 4)


@pytest.mark.parametrize("store", ["none"], indirect=True)  # others are read through Zarr
def test_forked_processes_do_not_share_what_they_read(store):
    # A plain torch DataLoader forks; each worker must read into memory of its own.
    import torch

    ds = open_store(store[0])
    expected = xr.open_zarr(store[0], chunks=None)["temperature"].values

    class Hours(torch.utils.data.Dataset):
        def __len__(self):
            return 3 * HOURS

        def __getitem__(self, i):
            return i % HOURS, ds["temperature"].isel(time=i % HOURS).values

    Hours()[0]  # the parent's buffer exists before the fork
    loader = torch.utils.data.DataLoader(
        Hours(), num_workers=2, multiprocessing_context="fork", shuffle=True
    )
    for i, x in loader:
        np.testing.assert_array_equal(x[0].numpy(), expected[int(i)])


@pytest.mark.parametrize("store", ["none"], indirect=True)  # others are read through Zarr
def test_dropped_datasets_close_their_files(store):
    import gc
    import os

    def count():
        return len(os.listdir("/proc/self/fd"))

    ds = open_store(store[0]).load()
    del ds
    gc.collect()
    gc.disable()  # without its help
    try:
        before = count()
        for _ in range(5):
            open_store(store[0])["temperature"].values  # noqa: B018
        assert count() <= before + 4  # one dataset's files at the most
    finally:
        gc.enable()
