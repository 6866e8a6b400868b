r"""A store appears whole or not at all, whatever happens to the process that writes it."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

from appa.data.writing import StoreWriter, make_template, shard_hours, unfinished
from appa.errors import DataError, StoreError, UnfinishedStoreError

from ..processes import Process
from .public_layout import canonical, hours

LEVELS = (500, 850)


@pytest.fixture(scope="module")
def source() -> xr.Dataset:
    ds = canonical(hours("2020-02-28T00", 50), (7, 12), LEVELS)
    ds["2m_temperature"][13] = np.nan  # a lost hour is stored like any other
    return ds.assign_coords(trajectory=("time", np.arange(50) // 30))


def complete(writer: StoreWriter, source: xr.Dataset) -> Path:
    for i in writer.remaining:
        writer.write(i, source.isel(time=writer.blocks[i]))
    return writer.finish()


def files(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_what_goes_in_comes_out(compression: str, source: xr.Dataset, tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "a.zarr", source, block=12, compression=compression) as writer:
        assert writer.blocks == [slice(12 * i, min(12 * i + 12, 50)) for i in range(5)]
        path = complete(writer, source)
    assert os.listdir(tmp_path) == ["a.zarr"]
    assert ".appa" not in os.listdir(path)
    for consolidated in (None, True, False):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ds = xr.open_zarr(path, consolidated=consolidated)
        xr.testing.assert_identical(ds.load(), source)
        assert ds.time.encoding["units"] == "hours since 1900-01-01"


def test_layout_on_disk(source: xr.Dataset, tmp_path: Path) -> None:
    r"""Hours are byte ranges in order of time, read here with nothing but numpy."""
    path = complete(StoreWriter(tmp_path / "a.zarr", source, block=12), source)
    for name in ("temperature", "2m_temperature"):
        array = zarr.open_array(path / name)
        assert array.metadata.zarr_format == 3
        assert array.chunks == (1, *source[name].shape[1:])
        assert array.shards == (12, *source[name].shape[1:])
        assert np.isnan(array.fill_value)
        (sharding,) = array.metadata.to_dict()["codecs"]
        assert [codec["name"] for codec in sharding["configuration"]["codecs"]] == ["bytes"]
        for shard in range(5):
            raw = (path / name / "c" / str(shard) / "/".join("0" * (array.ndim - 1))).read_bytes()
            index = np.frombuffer(raw[-12 * 16 - 4 : -4], "<u8").reshape(12, 2)
            held = source[name].values[12 * shard : 12 * shard + 12]
            size = held[0].nbytes
            expected = [(k * size, size) for k in range(len(held))]
            expected += [(2**64 - 1, 2**64 - 1)] * (12 - len(held))
            assert [tuple(map(int, row)) for row in index] == expected
            values = np.frombuffer(raw[: len(held) * size], "<f4").reshape(held.shape)
            np.testing.assert_array_equal(values, held)


def test_shards_hold_at_most_256_mib_and_fit_days() -> None:
    state = {(721, 1440): 4, (121, 240): 144, (48, 96): 720}
    for (h, w), expected in state.items():
        assert shard_hours(13 * h * w) == expected
    for values in np.random.default_rng(0).integers(1, 2e8, 200):
        n = shard_hours(int(values))
        assert n == 1 or 4 * n * values <= 2**28
        assert n <= 720
        assert 24 % n == 0 or n % 24 == 0
        better = [m for m in range(n + 1, 721) if (24 % m == 0 or (m % 24 == 0 and 720 % m == 0))]
        assert all(4 * m * values > 2**28 for m in better)


def test_shards_divide_blocks(source: xr.Dataset, tmp_path: Path) -> None:
    for block, shard in ((None, 720), (50, 50), (1, 1), (7, 7), (1440, 720), (900, 450)):
        with StoreWriter(tmp_path / f"{block}.zarr", source, block=block) as writer:
            assert writer.shard == shard
            assert writer.block == (block or 720)


def test_template_takes_no_memory() -> None:
    year = np.datetime64("2020-01-01", "h") + np.arange(8784)
    ds = make_template(
        year, np.linspace(90, -90, 721), np.arange(1440) / 4, trajectory=np.zeros(8784)
    )
    assert ds.nbytes > 2e12
    assert ds["temperature"].dims == ("time", "level", "latitude", "longitude")
    assert ds["2m_temperature"].dims == ("time", "latitude", "longitude")
    assert ds["temperature"].attrs["units"] == "K"
    assert ds["level"].attrs["units"] == "hPa"


def test_continues_where_it_stopped(source: xr.Dataset, tmp_path: Path) -> None:
    whole = complete(StoreWriter(tmp_path / "a.zarr", source, block=12), source)
    with StoreWriter(tmp_path / "b.zarr", source, block=12, plan={"n": 1}) as writer:
        writer.write(3, source.isel(time=writer.blocks[3]))
        writer.write(1, source[["temperature"]].isel(time=writer.blocks[1]))
        assert writer.finished == {3}
        assert "temperature" not in writer.missing(1)
        assert len(writer.missing(1)) == 10
        (writer.directory / "notes.txt").write_text("of the job")
        with pytest.raises(UnfinishedStoreError, match=r"4 of the 5 blocks .* block 0"):
            writer.finish()
    assert unfinished(tmp_path / "b.zarr") == unfinished(tmp_path / "b.zarr.partial") == (1, 5)
    assert unfinished(tmp_path / "a.zarr") is None

    with StoreWriter(tmp_path / "b.zarr", source, block=12, plan={"n": 1}) as writer:
        assert writer.remaining == [0, 1, 2, 4]
        assert (writer.directory / "notes.txt").read_text() == "of the job"
        before = (writer.path_partial / "temperature/c/3/0/0/0").stat().st_mtime_ns
        path = complete(writer, source)
    assert (path / "temperature/c/3/0/0/0").stat().st_mtime_ns == before
    assert files(path) == files(whole)


def test_another_plan_is_refused(source: xr.Dataset, tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    StoreWriter(path, source, block=12, plan={"start": "2020", "levels": [1, 2]}).close()

    def differs(message: str, ds: xr.Dataset = source, **kwargs) -> None:
        kwargs = {"block": 12, "plan": {"start": "2020", "levels": [1, 2]}, **kwargs}
        with pytest.raises(StoreError, match=f"another plan.*{message}"):
            StoreWriter(path, ds, **kwargs)

    differs("start was '2020', is '2021'", plan={"start": "2021", "levels": [1, 2]})
    differs(r"levels was \[1, 2\], is None", plan={"start": "2020"})
    differs("seed was None, is 3", plan={"start": "2020", "levels": [1, 2], "seed": 3})
    differs("block was 12, is 24", block=24)
    differs("compression was 'none', is 'zstd'", compression="zstd")
    differs("time was 50 values .* is 49 values", source.isel(time=slice(1, None)))
    differs("level was 2 values from 500 to 850, is 1 values", source.isel(level=[0]))
    differs("land_sea_mask", source.assign(land_sea_mask=1 - source.land_sea_mask))
    differs("variables.temperature", source.drop_vars("temperature"))
    StoreWriter(path, source, block=12, plan={"levels": (1, 2), "start": "2020"}).close()


def test_one_job_at_a_time(source: xr.Dataset, tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "a.zarr", source, block=12)
    with pytest.raises(StoreError, match=f"being written by process {os.getpid()} on"):
        StoreWriter(tmp_path / "a.zarr", source, block=12)
    worker = pickle.loads(pickle.dumps(writer))  # workers write on behalf of the job
    for i in worker.remaining:
        worker.write(i, source.isel(time=worker.blocks[i]))
    assert len(pickle.dumps(writer)) < 5000
    writer.close()
    with StoreWriter(tmp_path / "a.zarr", source, block=12) as writer:
        writer.finish()
    with pytest.raises(StoreError, match="exists already; remove it"):
        StoreWriter(tmp_path / "a.zarr", source, block=12)


def test_what_is_in_the_way(source: xr.Dataset, tmp_path: Path) -> None:
    (tmp_path / "a.zarr.partial").mkdir()
    StoreWriter(tmp_path / "a.zarr", source).close()  # an empty folder is not
    (tmp_path / "b.zarr.partial").mkdir()
    (tmp_path / "b.zarr.partial" / "thesis.tex").touch()
    with pytest.raises(StoreError, match="is in the way"):
        StoreWriter(tmp_path / "b.zarr", source)
    assert (tmp_path / "b.zarr.partial" / "thesis.tex").exists()
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot write"):
        StoreWriter(tmp_path / "file" / "c.zarr", source)
    writer = StoreWriter(tmp_path / "d.zarr", source)
    (tmp_path / "d.zarr").mkdir()
    with pytest.raises(StoreError, match="exists already"):
        complete(writer, source)


def test_wrong_blocks_are_refused(source: xr.Dataset, tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "a.zarr", source, block=12)
    block = source.isel(time=writer.blocks[0])
    with pytest.raises(DataError, match=r"block 1 .* another time"):
        writer.write(1, block)
    with pytest.raises(DataError, match="another latitude"):
        writer.write(0, block.isel(latitude=slice(None, None, -1)))
    with pytest.raises(DataError, match="has pressure; expected 2m_temperature"):
        writer.write(0, block.rename(temperature="pressure"))
    with pytest.raises(DataError, match="has shape"):
        writer.put("temperature", 0, block["2m_temperature"].values)
    with pytest.raises(StoreError, match="not whole shards of 12 hours"):
        writer.put("temperature", 6, block["temperature"].values)
    with pytest.raises(StoreError, match="neither 'none' nor 'zstd'"):
        StoreWriter(tmp_path / "b.zarr", source, compression="lz4")
    with pytest.raises(StoreError, match="time must be first"):
        StoreWriter(tmp_path / "b.zarr", source.transpose("latitude", ...))
    with pytest.raises(StoreError, match="no variable has time"):
        StoreWriter(tmp_path / "b.zarr", source[["land_sea_mask", "trajectory"]])
    assert writer.finished == set()
    writer.write(0, block.astype(np.float64).transpose(..., "time"))
    assert writer.finished == {0}
    array = zarr.open_array(writer.path_partial / "temperature", mode="r")
    np.testing.assert_array_equal(array[:12], block["temperature"].values)


def test_killed_before_and_after_the_blocks(source: xr.Dataset, tmp_path: Path) -> None:
    r"""Between making the folder and the plan, and between renaming and tidying up."""
    path = tmp_path / "a.zarr"
    with StoreWriter(path, source, block=12) as writer:
        writer.write(0, source.isel(time=writer.blocks[0]))
        (writer.directory / "plan.json").unlink()
        assert unfinished(path) == (0, 0)
    with StoreWriter(path, source, block=24) as writer:
        assert writer.finished == set()
        complete(writer, source)
    (path / ".appa").mkdir()
    xr.testing.assert_identical(xr.open_zarr(path).load(), source)
    with pytest.raises(StoreError, match="exists already"):
        StoreWriter(path, source, block=24)
    assert not (path / ".appa").exists()


def job(path: Path, pause: float = 0.0, limit: int | None = None) -> None:
    r"""Writes twenty blocks, and says first how many are there.

    Arguments:
        path: The store.
        pause: Seconds before each block.
        limit: The size no file may exceed, in bytes.
    """
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    times = np.datetime64("2020-01-01", "ns") + np.arange(480) * np.timedelta64(1, "h")
    template = make_template(
        times,
        np.linspace(90, -90, 61),
        np.arange(120) * 3.0,
        surface=("2m_temperature", "total_precipitation"),
        atmospheric=("temperature",),
        levels=(500, 850),
    )
    with StoreWriter(path, template, block=24, plan={"job": "test"}) as writer:
        print(len(writer.finished), flush=True)
        for i in writer.remaining:
            time.sleep(pause)
            hours = writer.blocks[i]
            block = template.isel(time=hours)
            t = np.arange(hours.start, hours.stop, dtype=np.float32)
            for k, name in enumerate(writer.variables):
                shape = block[name].shape
                x = t.reshape(-1, *(1,) * (len(shape) - 1)) + 1000 * k
                block[name] = block[name].dims, np.broadcast_to(x, shape)
            writer.write(i, block)
        writer.finish()


@pytest.mark.slow
def test_killed_in_the_middle(tmp_path: Path) -> None:
    path, partial = tmp_path / "a.zarr", tmp_path / "a.zarr.partial"
    rng = np.random.default_rng(0)
    for kill in range(2):
        marks = partial / ".appa" / "done" / "total_precipitation"
        with Process(job, path, 0.1) as process:  # time to kill it in, however busy the machine
            process.until(lambda process=process: process.said.endswith("\n"))
            found = int(process.said)
            if kill:
                assert found == done  # noqa: F821
            process.until(lambda marks=marks, found=found: len(os.listdir(marks)) >= found + 4)
            time.sleep(rng.uniform(0, 0.2))  # in a write, or between two
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
        with pytest.raises(FileNotFoundError):
            xr.open_zarr(path)
        with pytest.raises(FileNotFoundError):
            xr.open_zarr(partial)
        counted = unfinished(path)
        assert counted is not None
        done = counted[0]
        assert 4 <= done < 20
        # What is marked is whole.
        for k, name in enumerate(("2m_temperature", "total_precipitation", "temperature")):
            array = zarr.open_array(partial / name, mode="r")
            for marker in os.listdir(partial / ".appa" / "done" / name):
                if not marker.isdigit():
                    continue
                t = np.arange(24 * int(marker), 24 * int(marker) + 24, dtype=np.float32)
                values = np.asarray(array[t[0].astype(int) : t[0].astype(int) + 24])
                flat = values.reshape(24, -1)
                np.testing.assert_array_equal(
                    flat, np.broadcast_to(t[:, None] + 1000 * k, flat.shape)
                )

    # What a writer killed in the middle of a file leaves.
    stray = partial / "temperature" / "c" / "0" / "0" / "0" / "0.1234.partial"
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_bytes(b"half")
    for target, count in ((path, done), (tmp_path / "b.zarr", 0)):
        with Process(job, target) as process:
            assert process.wait() == 0, process.said
            assert process.said == f"{count}\n"
    assert files(path) == files(tmp_path / "b.zarr")


@pytest.mark.slow
def test_no_room_left(tmp_path: Path) -> None:
    r"""A limit on the size of files stands for a full disk: the same call fails."""
    shard = 24 * 61 * 120 * 4
    # room for a surface field's, not for levels'
    with Process(job, tmp_path / "a.zarr", 0.0, int(1.5 * shard)) as process:
        assert process.wait() == 1
        message = process.said
    assert "StoreError: no room left for" in message
    assert "make room and rerun" in message
    assert unfinished(tmp_path / "a.zarr") == (0, 20)
    assert not list((tmp_path / "a.zarr.partial" / "temperature").rglob("*.partial"))
    with Process(job, tmp_path / "a.zarr") as process:
        assert process.wait() == 0, process.said
        assert process.said == "0\n"
    assert len(xr.open_zarr(tmp_path / "a.zarr").time) == 480
