r"""Statistics against float64 numpy on the whole array at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from appa.data import climatology, netcdf, reduction, statistics
from appa.data.stores import open_store
from appa.errors import DataError, StoreError

LEVELS = [50, 500, 1000]


def dataset(hours: int = 60, seed: int = 0, dtype: type = np.float32) -> xr.Dataset:
    r"""Noise with the scales of the atmosphere, and SST undefined on a third of the points."""
    rng = np.random.default_rng(seed)
    h, w = 8, 16

    def noise(mean: float, std: float, *shape: int) -> np.ndarray:
        return (mean + std * rng.standard_normal((hours, *shape, h, w))).astype(dtype)

    z = np.stack([noise(2e5, 400), noise(5.5e4, 2e3), noise(1e3, 900)], axis=1)
    sst = noise(290, 8)
    sst[:, rng.random((h, w)) < 1 / 3] = np.nan
    return xr.Dataset(
        {
            "2m_temperature": (("time", "latitude", "longitude"), noise(278, 21)),
            "mean_sea_level_pressure": (("time", "latitude", "longitude"), noise(1e5, 900)),
            "sea_surface_temperature": (("time", "latitude", "longitude"), sst),
            "geopotential": (("time", "level", "latitude", "longitude"), z),
            "specific_humidity": (
                ("time", "level", "latitude", "longitude"),
                noise(3e-6, 4e-7, 3),
            ),
            "land_sea_mask": (("latitude", "longitude"), np.zeros((h, w), np.float32)),
        },
        {
            "time": np.datetime64("2019-12-30T00", "ns")
            + np.arange(hours) * np.timedelta64(1, "h"),
            "level": LEVELS,
            "latitude": np.linspace(90, -90, h),
            "longitude": np.arange(w) * 360 / w,
        },
    )


def numpy_statistics(ds: xr.Dataset, name: str) -> np.ndarray:
    r"""Mean and standard deviation by float64 numpy, all at once."""
    x = ds[name].values.astype(np.float64)
    axes = (0, x.ndim - 2, x.ndim - 1)
    return np.stack([np.nanmean(x, axis=axes), np.nanstd(x, axis=axes)])


@pytest.fixture
def small_blocks(monkeypatch):
    # Blocks of 7 hours of the largest variable, so that 60 hours need 9, and a second tree level.
    monkeypatch.setattr(reduction, "BLOCK_BYTES", 7 * 3 * 8 * 16 * 4)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("chunks", [None, {"time": 5}])
def test_agrees_with_numpy(chunks):
    ds = dataset()
    lazy = ds if chunks is None else ds.chunk(chunks)
    stats = statistics.compute(lazy)
    assert "land_sea_mask" not in stats
    assert list(stats["statistic"].values) == ["mean", "std"]
    assert list(stats["level"].values) == LEVELS
    for name in stats:
        np.testing.assert_allclose(stats[name].values, numpy_statistics(ds, name), rtol=1e-9)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("mean", "std", "dtype"),
    [
        (2e5, 5e-1, np.float32),  # 30 times the spacing of single precision
        (1e6, 1e-3, np.float64),
        (1e-7, 1e-9, np.float32),
        (-1e6, 1e3, np.float32),
    ],
)
def test_adversarial_scales(mean, std, dtype):
    rng = np.random.default_rng(1)
    x = (mean + std * rng.standard_normal((60, 8, 16))).astype(dtype)
    # A trend makes the means of blocks differ by far more than their spread
    x += (np.arange(60)[:, None, None] * std).astype(dtype)
    ds = dataset()[["2m_temperature"]].astype(dtype)
    ds["2m_temperature"].values = x
    stats = statistics.compute(ds)["2m_temperature"].values
    np.testing.assert_allclose(stats, numpy_statistics(ds, "2m_temperature"), rtol=1e-6)
    naive = np.sqrt(np.mean(np.square(x, dtype=dtype)) - np.mean(x) ** 2)
    if abs(mean) > 1e5 and std < 1:  # the data are adversarial: the textbook formula fails
        assert not abs(naive / stats[1] - 1) < 1e-2


@pytest.mark.usefixtures("small_blocks")
def test_split_is_inclusive_of_its_last_day():
    ds = dataset()
    stats = statistics.compute(ds, split=("2019-12-31", "2019"))
    day = ds.isel(time=slice(24, 48))
    for name in stats:
        np.testing.assert_allclose(stats[name].values, numpy_statistics(day, name), rtol=1e-9)
    shuffled = ds.isel(time=np.random.default_rng(0).permutation(60))
    again = statistics.compute(shuffled, split=("2019-12-31", "2019"))
    xr.testing.assert_allclose(again, stats, rtol=1e-12)

    with pytest.raises(DataError, match=r"no hours from 1993 to 1994.*2019-12-30T00"):
        statistics.compute(ds, split=("1993", "1994"))
    with pytest.raises(DataError, match="is no period"):
        statistics.compute(ds, split=("the beginning", None))


@pytest.mark.usefixtures("small_blocks")
def test_distributed_gives_the_same():
    distributed = pytest.importorskip("distributed")
    ds = dataset()
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        from_client = statistics.compute(ds, scheduler=client)
        from_address = statistics.compute(ds.chunk(time=5), scheduler=cluster.scheduler_address)
    expected = statistics.compute(ds)
    xr.testing.assert_allclose(from_client, expected, rtol=1e-12)
    xr.testing.assert_allclose(from_address, expected, rtol=1e-12)


def test_memory_is_a_block_at_a_time(monkeypatch):
    monkeypatch.setattr(reduction, "BLOCK_BYTES", 1)
    ds = dataset()
    assert reduction.time_blocks(ds) == [(i, i + 1) for i in range(60)]
    # a chunk is read whole: blocks end where chunks end
    assert reduction.time_blocks(ds.chunk(time=24)) == [(0, 24), (24, 48), (48, 60)]


def test_a_variable_wholly_undefined_in_a_block(monkeypatch):
    monkeypatch.setattr(reduction, "BLOCK_BYTES", 1)
    ds = dataset()
    ds["sea_surface_temperature"].values[:10] = np.nan
    stats = statistics.compute(ds, variables=["sea_surface_temperature"])
    expected = numpy_statistics(ds, "sea_surface_temperature")
    np.testing.assert_allclose(stats["sea_surface_temperature"].values, expected, rtol=1e-9)


def test_impossible_data_are_named():
    ds = dataset()
    ds["geopotential"].values[25, 1, 2, 3:5] = np.inf
    with pytest.raises(DataError, match=r"geopotential at 500 hPa is infinite at 2 points.*31T01"):
        statistics.compute(ds)

    ds = dataset()
    ds["specific_humidity"].values[:, 2] = np.float32(0.1)
    with pytest.raises(DataError, match=r"specific_humidity at 1000 hPa is the constant 0\.1"):
        statistics.compute(ds)

    ds = dataset()
    ds["sea_surface_temperature"].values[:] = np.nan
    with pytest.raises(DataError, match="sea_surface_temperature has no defined values"):
        statistics.compute(ds)

    with pytest.raises(DataError, match="did you mean '2m_temperature'"):
        statistics.compute(ds, variables=["2m_temprature"])
    with pytest.raises(DataError, match="has 1 members"):
        statistics.compute(ds.expand_dims("member"))
    with pytest.raises(DataError, match="no hours"):
        statistics.compute(ds.isel(time=slice(0, 0)))


def test_save_and_load(tmp_path):
    stats = statistics.compute(dataset())
    path = statistics.save(stats, tmp_path / "run" / "statistics.nc")
    assert [p.name for p in path.parent.iterdir()] == ["statistics.nc"]
    loaded = statistics.load(path)
    xr.testing.assert_identical(loaded, stats)
    assert loaded.attrs["hours"] == 60
    assert loaded.attrs["first_time"] == "2019-12-30T00"


def test_load_the_authors_layout(tmp_path):
    r"""Their Zarr store: single precision, levels in any order, other statistics beside."""
    stats = statistics.compute(dataset())
    theirs = stats.astype(np.float32).isel(level=[2, 0, 1]).transpose("level", "statistic")
    extra = theirs.sel(statistic=["mean"]).assign_coords(statistic=["max"])
    theirs = xr.concat([extra, theirs], "statistic")
    theirs.to_zarr(tmp_path / "stats_era5.zarr", zarr_format=2)
    loaded = statistics.load(tmp_path / "stats_era5.zarr")
    assert list(loaded["level"].values) == LEVELS
    for name in stats:
        assert loaded[name].dims == stats[name].dims
        np.testing.assert_allclose(loaded[name].values, stats[name].values, rtol=1e-7)


def test_load_says_what_is_wrong(tmp_path):
    path = statistics.save(statistics.compute(dataset()), tmp_path / "statistics.nc")
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2):
        path.write_bytes(whole[:size])
        with pytest.raises(StoreError, match=r"truncated or of another kind.*appa data statistics"):
            statistics.load(path)
    with pytest.raises(StoreError, match="no file with statistics at"):
        statistics.load(tmp_path / "nowhere.nc")

    dataset().to_netcdf(tmp_path / "states.nc")
    with pytest.raises(StoreError, match="holds no statistics"):
        statistics.load(tmp_path / "states.nc")

    stats = statistics.compute(dataset())
    stats["2m_temperature"].loc[{"statistic": "std"}] = 0
    path.unlink()
    statistics.save(stats, path)
    with pytest.raises(DataError, match="2m_temperature is the constant"):
        statistics.load(path)


# What is written over, and where ----------------------------------------------------------------


def test_only_statistics_are_replaced_by_statistics(tmp_path):
    stats = statistics.compute(dataset())
    path = statistics.save(stats, tmp_path / "statistics.nc")
    stats.attrs["hours"] = 61
    assert statistics.load(statistics.save(stats, path)).attrs["hours"] == 61

    clim = climatology.fit(dataset(), harmonics=0)
    with pytest.raises(StoreError, match=r"holds statistics: only a climatology may be replaced"):
        climatology.save(clim, path)
    dataset().to_netcdf(tmp_path / "states.nc")
    (tmp_path / "notes.txt").write_text("do not lose these")
    path.write_bytes(path.read_bytes()[:100])
    for victim in (path, tmp_path / "states.nc", tmp_path / "notes.txt"):
        before = victim.read_bytes()
        with pytest.raises(StoreError, match="exists already and is no file of Appa's"):
            statistics.save(stats, victim)
        assert victim.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 3


def test_the_store_itself_is_never_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dataset().to_netcdf("states.nc")
    (tmp_path / "link.nc").symlink_to("states.nc")
    stores = ("states.nc", tmp_path / "states.nc", f"file://{tmp_path}/states.nc", "*.nc")
    for store in stores:
        for out in ("states.nc", "link.nc", tmp_path / "states.nc"):
            with pytest.raises(StoreError, match="is the store itself"):
                netcdf.probe(out, statistics.KIND, store)
    netcdf.probe("statistics.nc", statistics.KIND, "states.nc")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.nc", "states.nc"]


def test_places_that_cannot_be_written(tmp_path):
    stats = statistics.compute(dataset())
    (tmp_path / "file").write_text("")
    places = {tmp_path: "is a folder", tmp_path / "file" / "a" / "s.nc": "cannot be written"}
    if Path("/proc/self").exists():  # where even root cannot
        places[Path("/proc/self/statistics.nc")] = "cannot be written"
    for path, message in places.items():
        for attempt in (
            lambda p: netcdf.probe(p, statistics.KIND),
            lambda p: statistics.save(stats, p),
        ):
            with pytest.raises(StoreError, match=message):
                attempt(path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_files_are_cf(tmp_path):
    path = statistics.save(statistics.compute(dataset()), tmp_path / "statistics.nc")
    with xr.open_dataset(path) as ds:
        assert ds.attrs["Conventions"].startswith("CF-")


# Reading ----------------------------------------------------------------------------------------


def damage(array: Path) -> None:
    r"""Overwrites the middle of the second hour's chunk, or of the shard, with zeros."""
    files = sorted(p for p in array.rglob("*") if p.is_file() and p.suffix != ".json")
    file = files[1] if len(files) > 1 else files[0]
    content = bytearray(file.read_bytes())
    size = len(content)
    content[size // 3 : size // 2] = bytes(size // 2 - size // 3)
    if len(files) > 1:
        content[:16] = bytes(16)
    file.write_bytes(content)


def damaged_store(path: Path, ds: xr.Dataset, layout: str) -> Path:
    r"""A store of which hours of the geopotential cannot be read."""
    if layout == "appa":
        from appa.data.writing import StoreWriter

        with StoreWriter(path, ds, compression="zstd") as writer:
            for i in writer.remaining:
                writer.write(i, ds.isel(time=writer.blocks[i]))
            writer.finish()
    else:
        chunks = {name: {"chunks": (1, *ds[name].shape[1:])} for name in ds if ds[name].ndim > 2}
        ds.to_zarr(path, zarr_format=3, consolidated=False, encoding=chunks)
    damage(path / "geopotential")
    return path


@pytest.mark.parametrize("layout", ["appa", "zarr"])
def test_damage_is_named(layout, tmp_path):
    ds = open_store(damaged_store(tmp_path / "a.zarr", dataset(), layout))
    message = r"geopotential (at|from) 2019-12-30T.* cannot be read \(.*appa data check STORE"
    with pytest.raises(StoreError, match=message):
        statistics.compute(ds)
    with pytest.raises(StoreError, match=message):
        climatology.fit(ds, harmonics=0)


@pytest.mark.parametrize("address", ["nonsense", "", "gopher://host:70", "tcp://127.0.0.1:1"])
def test_no_scheduler(address, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(reduction, "TIMEOUT", 0.5)
    with pytest.raises(StoreError, match=r"no Dask scheduler answers at .*`dask scheduler` starts"):
        statistics.compute(dataset(), scheduler=address)
    # and the process goes on without one
    assert float(dataset().chunk(time=20)["2m_temperature"].mean()) > 0
