r"""How windows are read: shards in any order, damaged, compressed; systems without direct reads."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
import torch
import xarray as xr
import zarr

from appa.data import shards
from appa.data.shards import File, Range, read_ranges
from appa.data.sources import finite
from appa.data.windows import WindowLoader
from appa.data.writing import StoreWriter
from appa.errors import StoreError, UnfinishedStoreError

from .small_windows import (
    ATMOSPHERIC,
    H,
    T,
    W,
    dataset,
    states,
    statistics,
    write,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("windows") / "store.zarr", dataset())


@pytest.fixture
def copy(store, tmp_path) -> Path:
    return Path(shutil.copytree(store, tmp_path / "copy.zarr"))


@pytest.fixture(params=[None, 1000])
def block(request, monkeypatch) -> None:
    r"""Whether reads are small for what one may be, or large, and a state takes several."""
    if request.param is not None:
        monkeypatch.setattr(shards, "BLOCK", request.param)


def test_hours_never_written_and_out_of_order(copy, block):
    r"""A shard may hold its chunks in any order, and leave some out."""
    array = zarr.open_array(copy / "geopotential", config={"write_empty_chunks": False})
    array[5:9] = np.nan
    shard = copy / "geopotential/c/0/0/0/0"
    data = shard.read_bytes()
    index = np.frombuffer(data[-4 - 16 * 24 : -4], "<u8").reshape(24, 2).copy()
    present = index[:, 0] != 2**64 - 1
    assert present.sum() == 20
    chunks = [data[i : i + n] for i, n in index[present].tolist()]
    index[present, 0] = index[present, 0][::-1]
    table = index.tobytes()
    checksum = google_crc32c.value(table).to_bytes(4, "little")
    shard.write_bytes(b"".join([*chunks[::-1], table, checksum]))
    (copy / "temperature/c/1/0/0/0").unlink()
    expected = xr.open_zarr(copy, chunks=None).load()
    assert np.isnan(expected["temperature"].values).any()
    loader = WindowLoader(copy, 15, 1, shuffle=False, variables=ATMOSPHERIC, direct=True)
    for start, (x, _) in zip(loader.starts, loader, strict=True):
        hours = slice(start, start + 15)
        both = [expected[name].isel(time=hours).values for name in ATMOSPHERIC]
        np.testing.assert_array_equal(x[0].numpy(), np.concatenate(both, axis=1))


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("size", [50, 5000])
def test_a_truncated_shard_is_named(copy, direct, size):
    shard = copy / "temperature/c/1/0/0/0"
    with open(shard, "r+b") as f:
        f.truncate(size)
    with pytest.raises(StoreError, match=r"temperature/c/1/0/0/0 is damaged"):
        list(WindowLoader(copy, 1, 1, direct=direct))


@pytest.mark.parametrize("direct", [True, False])
def test_a_shard_truncated_under_us_is_named(copy, direct):
    loader = WindowLoader(copy, 1, 1, direct=direct, prefetch=1)
    list(loader)  # indexes are known and files open
    for shard in (copy / "geopotential/c").rglob("0"):
        if shard.is_file():
            with open(shard, "r+b") as f:
                f.truncate(4000)
    with pytest.raises(StoreError, match=r"geopotential/c/./0/0/0 is damaged: it ends at"):
        list(loader)


def test_a_damaged_index_is_named(copy):
    shard = copy / "temperature/c/0/0/0/0"
    data = bytearray(shard.read_bytes())
    data[-20] ^= 1
    shard.write_bytes(data)
    with pytest.raises(StoreError, match="checksum"):
        list(WindowLoader(copy, 1, 1))


def test_a_failing_read_elsewhere_is_an_appa_error(tmp_path):
    path = tmp_path / "v2.zarr"
    chunks = {"temperature": {"chunks": (8, 4, H, W)}}
    dataset().to_zarr(path, zarr_format=2, consolidated=True, encoding=chunks)
    (path / "temperature/1.0.0.0").write_bytes(b"not compressed at all")
    with pytest.raises(StoreError, match=r"'temperature' at hours (8|9|1[0-5]) to"):
        list(WindowLoader(path, 1, 1))


def test_compressed_chunks(tmp_path):
    path = write(tmp_path / "zstd.zarr", dataset(), "zstd")
    loader = WindowLoader(path, 2, 1, levels=[1000, 500], shuffle=False, direct=True)
    x, _ = next(iter(loader))
    np.testing.assert_array_equal(x[0].numpy(), states()[:2][:, [0, 1, 5, 3, 9, 7]])

    shard = path / "temperature/c/1/0/0/0"
    data = bytearray(shard.read_bytes())
    data[:16] = bytes(16)  # the head of the first chunk
    shard.write_bytes(data)
    with pytest.raises(StoreError, match="temperature/c/1/0/0/0 is damaged: a chunk"):
        list(WindowLoader(path, 1, 1))


@pytest.mark.skipif(
    not Path("/proc/version").exists(), reason="needs procfs, which has no O_DIRECT"
)
def test_file_systems_without_direct_reads():
    path = Path("/proc/version")
    file = File(path, direct=True)
    assert not file.direct
    buffer, skip = file.read(3, 10)
    assert buffer[skip : skip + 10] == path.read_bytes()[3:13]


def test_many_ranges_at_once(tmp_path):
    data = np.random.default_rng(0).integers(0, 256, 1_000_003, np.uint8).tobytes()
    (tmp_path / "data").write_bytes(data)
    file = File(tmp_path / "data", direct=True)
    starts = np.random.default_rng(1).integers(0, 900_000, 300).tolist()  # deeper than the queue
    ranges = [Range(file, start, 1 + 37 * i) for i, start in enumerate(starts)]
    ranges.append(Range(file, len(data) - 5, 5))
    buffer, places = read_ranges(ranges)
    for (_, start, n), at in zip(ranges, places, strict=True):
        assert buffer[at : at + n] == data[start : start + n]
    with pytest.raises(StoreError, match="ends at 1000003 bytes, before 1000004"):
        read_ranges([*ranges, Range(file, 1_000_000, 4)])


def test_systems_without_asynchronous_reads(store, monkeypatch):
    expected = [x for x, _ in WindowLoader(store, 1, 4, direct=True, standardizer=statistics())]
    monkeypatch.setattr(shards, "aio_queue", lambda: None)
    found = [x for x, _ in WindowLoader(store, 1, 4, direct=True, standardizer=statistics())]
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def test_an_interrupted_consumer_leaves_no_thread(store):
    def threads() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name.startswith("appa-windows")]

    def interrupted() -> None:
        for _ in loader:
            assert threads()
            raise KeyboardInterrupt

    loader = WindowLoader(store, 1, 1)
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    for _ in range(100):
        if not threads():
            break
        time.sleep(0.05)
    assert not threads()
    assert len(list(loader)) == T


def test_an_unfinished_store_is_refused(tmp_path):
    StoreWriter(tmp_path / "store.zarr", dataset(), block=24).close()
    for name in ("store.zarr", "store.zarr.partial"):
        with pytest.raises(UnfinishedStoreError):
            WindowLoader(tmp_path / name, 1, 1)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_seen(value):
    x = np.random.default_rng(0).normal(size=(3, 5, 7)).astype(np.float32)
    assert finite(x)
    x[1, 2, 3] = value
    assert not finite(x)
