r"""Every layout opens as the same dataset, lazily; what is wrong is named."""

from __future__ import annotations

import itertools
import pickle
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from appa.data.stores import canonicalize, open_store
from appa.data.variables import VARIABLES
from appa.data.writing import StoreWriter
from appa.errors import DataError, StoreError, UnfinishedStoreError

from .public_layout import (
    LEVELS_37,
    canonical,
    fields,
    hours,
    write_arco,
    write_weatherbench2,
)

LEVELS = (100, 500, 850)
TIMES = hours("2020-02-28T21", 5)
SHAPE = (7, 12)


@pytest.fixture(scope="module")
def truth() -> xr.Dataset:
    return canonical(TIMES, SHAPE, LEVELS)


def assert_canonical(ds: xr.Dataset, truth: xr.Dataset) -> None:
    assert set(ds.data_vars) == set(truth.data_vars)
    for name, expected in truth.data_vars.items():
        assert ds[name].dims == expected.dims
        assert ds[name].dtype == np.float32
        np.testing.assert_array_equal(ds[name].values, expected.values, err_msg=str(name))
        assert ds[name].attrs == expected.attrs
    assert list(ds.level.values) == sorted(ds.level.values)
    assert ds.level.dtype == np.int64
    assert ds.time.dtype == np.dtype("datetime64[ns]")
    for name in ("time", "level", "latitude", "longitude"):
        np.testing.assert_array_equal(ds[name].values, truth[name].values)
    assert ds.latitude.attrs["units"] == "degrees_north"


def disguise(ds: xr.Dataset, order: tuple[str, ...], up: bool, lon: str) -> xr.Dataset:
    r"""The same data with other dimension order, latitude direction and longitudes."""
    if lon == "pm180":
        ds = ds.assign_coords(longitude=(ds.longitude + 180) % 360 - 180).sortby("longitude")
    elif lon == "rolled":
        ds = ds.roll(longitude=5, roll_coords=True)
    elif lon == "down":
        ds = ds.isel(longitude=slice(None, None, -1))
    if up:
        ds = ds.isel(latitude=slice(None, None, -1), level=slice(None, None, -1))
    return ds.transpose(*order, missing_dims="ignore")


ORDERS = list(itertools.permutations(("time", "level", "latitude", "longitude")))
KINDS = ("zarr2", "zarr3", "netcdf")
# Every order of dimensions with every convention, and each of these in each format.
CASES = [
    (order, up, lon, KINDS[(i + j + k) % 3])
    for i, order in enumerate(ORDERS)
    for j, up in enumerate((False, True))
    for k, lon in enumerate(("0-360", "pm180", "rolled", "down"))
]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_layouts(order: tuple[str, ...], tmp_path: Path, truth: xr.Dataset) -> None:
    truth = truth[["sea_surface_temperature", "temperature", "land_sea_mask"]]
    for case in [case for case in CASES if case[0] == order]:
        _, up, lon, kind = case
        ds = disguise(truth, order, up, lon)
        path = tmp_path / f"{up}-{lon}-{kind}"
        if kind == "netcdf":
            path = path.with_suffix(".nc")
            ds.to_netcdf(path)
        else:
            ds.to_zarr(path, zarr_format=int(kind[-1]), consolidated=False)
        assert_canonical(open_store(path), truth)
        assert_canonical(canonicalize(ds), truth)
    assert_canonical(open_store(path, chunks={"time": 2}), truth)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("write", [write_weatherbench2, write_arco])
def test_public_layouts(write, zarr_format: int, tmp_path: Path) -> None:
    path = write(tmp_path / "a.zarr", TIMES, SHAPE, zarr_format=zarr_format)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds = open_store(path)
    assert_canonical(ds, canonical(TIMES, SHAPE, LEVELS_37))


def test_aliases_and_scalars(tmp_path: Path, truth: xr.Dataset) -> None:
    r"""The Climate Data Store's NetCDF files, one level and one hour each as a scalar."""
    names = {"time": "valid_time", "level": "pressure_level", "latitude": "lat", "longitude": "lon"}
    ds = truth.rename(names).assign_coords(number=0, expver=("valid_time", ["1"] * 5))
    ds.astype(np.float64).to_netcdf(tmp_path / "cds.nc")
    assert_canonical(open_store(tmp_path / "cds.nc"), truth)

    one = truth[["temperature", "2m_temperature"]].isel(time=2, level=1)
    one.to_zarr(tmp_path / "one.zarr", consolidated=False)
    for source in (one, tmp_path / "one.zarr"):
        ds = open_store(source)
        assert ds.temperature.dims == ("time", "level", "latitude", "longitude")
        assert_canonical(ds, truth[["temperature", "2m_temperature"]].isel(time=[2], level=[1]))

    # In Pa, and with a scalar `time` beside the dimension, as from GRIB files.
    pascal = truth.assign_coords(level=truth.level * 100.0).rename(time="valid_time")
    assert_canonical(canonicalize(pascal.assign_coords(time=TIMES[0])), truth)


def test_members_trajectories_and_static_fields_with_time(truth: xr.Dataset) -> None:
    ds = truth.expand_dims(number=[3, 4], axis=-1).drop_vars(["land_sea_mask"])
    mask = truth.land_sea_mask.expand_dims(time=TIMES)
    ds = ds.assign(land_sea_mask=mask).assign_coords(trajectory=("time", np.arange(5)))
    out = canonicalize(ds)
    assert out.temperature.dims == ("member", "time", "level", "latitude", "longitude")
    assert list(out.member.values) == [3, 4]
    assert list(out.trajectory.values) == [0, 1, 2, 3, 4]
    assert out.trajectory.dims == ("time",)
    np.testing.assert_array_equal(out.land_sea_mask.values, truth.land_sea_mask.values)


def test_values_are_the_analytic_fields(tmp_path: Path) -> None:
    r"""Places are right, not only consistent: compared with the functions of place and time."""
    path = write_weatherbench2(tmp_path / "wb2.zarr", TIMES, SHAPE)
    ds = open_store(path).sel(latitude=[60.0, -30.0], longitude=[330.0, 30.0], level=[850, 500])
    expected = fields(TIMES, np.array([60.0, -30.0]), np.array([330.0, 30.0]), LEVELS_37)
    picked = [LEVELS_37.index(850), LEVELS_37.index(500)]
    np.testing.assert_allclose(ds.temperature, expected["temperature"][:, picked], rtol=1e-6)
    np.testing.assert_allclose(ds["2m_temperature"], expected["2m_temperature"], rtol=1e-6)


def test_indexing_reads_what_numpy_would(tmp_path: Path, truth: xr.Dataset) -> None:
    r"""Any indexing of the lazy arrays agrees with indexing the values in memory."""
    source = disguise(truth, ("longitude", "level", "time", "latitude"), True, "rolled")
    source.to_zarr(tmp_path / "a.zarr", consolidated=False)
    lazy, eager = open_store(tmp_path / "a.zarr").temperature, truth.temperature
    rng = np.random.default_rng(0)
    for _ in range(60):
        key = {}
        for dim, n in eager.sizes.items():
            a, b = sorted(rng.integers(0, n + 1, 2))
            choices = [
                int(rng.integers(n)),
                slice(a, b),
                slice(None, None, -1),
                slice(n - 1, None, -2),
                rng.integers(0, n, 3),
                slice(None),
            ]
            key[dim] = choices[rng.integers(len(choices))]
        np.testing.assert_array_equal(lazy.isel(key).values, eager.isel(key).values)
        nested = lazy.isel(time=slice(1, 5)).isel(latitude=[2, 5, 2]).isel(time=-1)
        np.testing.assert_array_equal(nested, eager.isel(time=4, latitude=[2, 5, 2]))
    points = {d: xr.DataArray(rng.integers(0, n, 9), dims="p") for d, n in eager.sizes.items()}
    np.testing.assert_array_equal(lazy.isel(points), eager.isel(points))
    assert lazy.isel(time=0).values.flags["C_CONTIGUOUS"]


def test_reads_one_state_for_one_state(tmp_path: Path) -> None:
    r"""With every other chunk destroyed, opening and reading an hour still work."""
    path = write_weatherbench2(tmp_path / "wb2.zarr", TIMES, SHAPE)
    for name in VARIABLES:
        for chunk in (path / name).iterdir():
            if not chunk.name.startswith(".") and not chunk.name.startswith("2."):
                chunk.write_bytes(b"no chunk")
    for chunks in (None, {}):
        ds = open_store(path, chunks=chunks)
        hour = ds.isel(time=2).load()
        xr.testing.assert_equal(hour, canonical(TIMES, SHAPE).isel(time=2))
        with pytest.raises(RuntimeError):  # the damage is real
            ds.isel(time=1)["temperature"].load()


def test_opened_datasets_travel_to_other_processes(tmp_path: Path) -> None:
    path = write_weatherbench2(tmp_path / "wb2.zarr", TIMES, SHAPE)
    ds = pickle.loads(pickle.dumps(open_store(path)))
    assert_canonical(ds, canonical(TIMES, SHAPE))


def test_chunks_follow_the_store(tmp_path: Path) -> None:
    path = write_weatherbench2(tmp_path / "wb2.zarr", TIMES, SHAPE)
    stored = open_store(path, chunks={})
    assert stored.temperature.chunks == ((1,) * 5, (37,), (7,), (12,))
    asked = open_store(path, chunks={"time": 3, "level": 10, "nonsense": 4})
    assert asked.temperature.chunks == ((3, 2), (10, 10, 10, 7), (7,), (12,))
    assert open_store(path).temperature.chunks is None


def test_many_files(tmp_path: Path, truth: xr.Dataset) -> None:
    for k, part in enumerate((slice(0, 2), slice(2, 5))):
        up = disguise(truth.isel(time=part), ORDERS[17], k == 1, "pm180")
        up.to_netcdf(tmp_path / f"{k}.nc")
    assert_canonical(open_store(tmp_path), truth)
    assert_canonical(open_store(str(tmp_path / "*.nc")), truth)
    assert_canonical(open_store([tmp_path / "1.nc", tmp_path / "0.nc"]), truth)
    surface = [name for name in truth.data_vars if "level" not in truth[name].dims]
    truth[surface].to_netcdf(tmp_path / "surface.nc")
    truth.drop_vars(surface).to_netcdf(tmp_path / "levels.nc")
    assert_canonical(open_store([tmp_path / "surface.nc", tmp_path / "levels.nc"]), truth)
    truth.isel(time=[0], latitude=slice(3)).to_netcdf(tmp_path / "part.nc")
    with pytest.raises(DataError, match="do not fit together"):
        open_store([tmp_path / "part.nc", tmp_path / "1.nc"])
    with pytest.raises(StoreError, match=r"no file matches .*\*\.grib"):
        open_store(str(tmp_path / "*.grib"))


def test_urls(tmp_path: Path, truth: xr.Dataset) -> None:
    import fsspec

    path = write_weatherbench2(tmp_path / "wb2.zarr", TIMES, SHAPE, LEVELS)
    truth.to_netcdf(tmp_path / "a.nc")
    memory = fsspec.filesystem("memory")
    memory.put(str(path), "/stores-test/wb2.zarr", recursive=True)
    memory.put(str(tmp_path / "a.nc"), "/stores-test/a.nc")
    assert_canonical(open_store("memory://stores-test/wb2.zarr"), truth)
    assert_canonical(open_store("memory://stores-test/a.nc"), truth)
    assert_canonical(open_store(f"file://{path}"), truth)
    with pytest.raises(StoreError, match=r"memory://stores-test/nothing\.zarr cannot be opened"):
        open_store("memory://stores-test/nothing.zarr")
    with pytest.raises(StoreError, match=r"memory://stores-test/nothing\.nc cannot be copied"):
        open_store("memory://stores-test/nothing.nc")


def test_what_is_not_there(tmp_path: Path) -> None:
    write_weatherbench2(tmp_path / "era5.zarr", TIMES[:1], SHAPE, (500,))
    with pytest.raises(StoreError, match=r"did you mean 'era5\.zarr'\?"):
        open_store(tmp_path / "era6.zarr")
    for name in ("something-else.nc", "nosuch.zarr"):  # alike only in what all stores end in
        with pytest.raises(StoreError, match=r"holds era5\.zarr"):
            open_store(tmp_path / name)
    with pytest.raises(StoreError, match="there is no folder"):
        open_store(tmp_path / "a" / "b" / "c.zarr")
    (tmp_path / "notes").mkdir()
    with pytest.raises(StoreError, match=r"and .*notes is empty"):
        open_store(tmp_path / "notes" / "a.zarr")
    with pytest.raises(StoreError, match=r"no store.*holds nothing"):
        open_store(tmp_path / "notes")


def test_unfinished(tmp_path: Path, truth: xr.Dataset) -> None:
    writer = StoreWriter(tmp_path / "a.zarr", truth, block=2)
    writer.write(1, truth.isel(time=writer.blocks[1]))
    for path in (tmp_path / "a.zarr", tmp_path / "a.zarr.partial"):
        with pytest.raises(UnfinishedStoreError, match="1 of 3 blocks"):
            open_store(path)
        with pytest.raises(FileNotFoundError):
            xr.open_zarr(path)
    for i in writer.remaining:
        writer.write(i, truth.isel(time=writer.blocks[i]))
    writer.finish()
    assert_canonical(open_store(tmp_path / "a.zarr"), truth)


@pytest.mark.parametrize("format", ["NETCDF4", "NETCDF3_64BIT"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_truncated_netcdf(format, share: float, tmp_path: Path, truth: xr.Dataset) -> None:
    path = tmp_path / "a.nc"
    truth.to_netcdf(path, format=format)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(StoreError, match=r"a\.nc .*(empty|cut short)"):
        open_store(path)


def test_damaged(tmp_path: Path, truth: xr.Dataset) -> None:
    truth.to_zarr(tmp_path / "a.zarr", zarr_format=3, consolidated=False)
    shutil.copytree(tmp_path / "a.zarr", tmp_path / "b.zarr")
    (tmp_path / "a.zarr" / "zarr.json").write_text('{"zarr_format"')
    with pytest.raises(StoreError, match="is damaged"):
        open_store(tmp_path / "a.zarr")
    (tmp_path / "b.zarr" / "temperature" / "zarr.json").write_text("{")
    with pytest.raises(StoreError, match=r"b\.zarr cannot be opened as a Zarr store"):
        open_store(tmp_path / "b.zarr")
    (tmp_path / "note.nc").write_text("dear diary " * 100)
    with pytest.raises(StoreError, match=r"note\.nc cannot be read as NetCDF"):
        open_store(tmp_path / "note.nc")


def faults(truth: xr.Dataset) -> dict[str, tuple[xr.Dataset, str]]:
    def coordinate(name: str, values) -> xr.Dataset:
        return truth.assign_coords({name: np.asarray(values)})

    lat, lon = truth.latitude.values, truth.longitude.values
    cyclic = xr.concat([truth, truth.isel(longitude=[0])], "longitude")
    cyclic["longitude"] = np.append(lon, 360.0)
    short = {v.name: v.short for v in VARIABLES.values()}
    return {
        "95 degrees": (coordinate("latitude", [95.0, *lat[1:]]), "latitude 95 is outside"),
        "latitude NaN": (coordinate("latitude", [*lat[:-1], np.nan]), "latitude .* no numbers"),
        "latitude twice": (coordinate("latitude", [*lat[:-1], lat[0]]), "90.0 appears 2 times"),
        "back and forth": (truth.isel(latitude=[0, 2, 1, 3, 4, 5, 6]), "neither up nor down"),
        "longitude twice": (coordinate("longitude", [*lon[:-1], lon[3]]), "90.0 appears 2 times"),
        "cyclic": (cyclic, r"0 and 360 are the same: drop one with .*slice\(-1\)"),
        "longitude NaN": (coordinate("longitude", [*lon[:-1], np.nan]), "longitude .* no numbers"),
        "longitude 400": (coordinate("longitude", [*lon[:-1], 400]), "from 0 to 400"),
        "shuffled": (truth.isel(longitude=[3, 1, 2, *range(4, 12), 0]), "back and forth"),
        "level twice": (coordinate("level", [100, 500, 500]), "level 500 appears 2 times"),
        "level 0.5": (coordinate("level", [0.5, 500, 850]), "whole hPa; found 0.5"),
        "level NaN": (coordinate("level", [100, 500, np.nan]), "level .* no numbers"),
        "no date": (coordinate("time", np.arange(5)), "time .* no dates.*hours since"),
        "NaT": (coordinate("time", [*TIMES[:-1], np.datetime64("NaT")]), "undefined in 1 of 5"),
        "no latitude": (truth.rename(latitude="y"), "there is no latitude"),
        "no values": (truth.drop_vars("latitude"), "dimension latitude has no coordinate"),
        "short names": (truth[list(VARIABLES)].rename(short), "t2m → 2m_temperature"),
        "strangers": (truth[["temperature"]].rename(temperature="ta"), "found ta"),
        "steps": (truth.expand_dims(step=[0, 6]), "a dimension 'step' of 2"),
        "no level": (truth.drop_vars("temperature").assign(temperature=truth["2m_temperature"]),
                     "temperature has no level"),
    }  # fmt: skip


@pytest.mark.parametrize("fault", faults(canonical(TIMES, SHAPE, LEVELS)))
def test_impossible_coordinates(fault: str, truth: xr.Dataset) -> None:
    ds, message = faults(truth)[fault]
    with pytest.raises(DataError, match=message):
        open_store(ds)


def test_another_calendar(truth: xr.Dataset, tmp_path: Path) -> None:
    ds = truth.convert_calendar("360_day", align_on="date")
    ds.to_netcdf(tmp_path / "a.nc")
    with pytest.raises(DataError, match=r"a\.nc: time has the calendar 360_day"):
        open_store(tmp_path / "a.nc")


def test_no_network(monkeypatch) -> None:
    def nowhere(*_: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.delenv("HTTPS_PROXY", raising=False)
    monkeypatch.delenv("https_proxy", raising=False)
    monkeypatch.setattr("socket.getaddrinfo", nowhere)
    with pytest.raises(StoreError, match=r"no network .*HTTPS_PROXY.*or 'planet'"):
        open_store("gs://bucket/era5.zarr")


@pytest.mark.parametrize("lazy", [True, False])
def test_units_that_are_told_are_converted(tmp_path, lazy):
    told = {
        "mean_sea_level_pressure": ("hPa", lambda x: x / 100),
        "2m_temperature": ("degC", lambda x: x - 273.15),
        "total_precipitation": ("mm", lambda x: x * 1000),
    }
    ds = open_store("planet").isel(time=slice(0, 2)).load()
    other = ds.copy(deep=True)
    for name, (units, turn) in told.items():
        other[name] = turn(ds[name]).assign_attrs(units=units)
    other = other.assign_coords(level=("level", ds["level"].values * 100.0, {"units": "Pa"}))
    if lazy:
        other.to_netcdf(tmp_path / "a.nc")
    got = open_store(tmp_path / "a.nc" if lazy else other)
    for name in told:
        assert got[name].attrs["units"] == ds[name].attrs["units"]
        np.testing.assert_allclose(got[name].values, ds[name].values, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(got["level"], ds["level"])


def test_low_pressures_in_pascals_are_told_by_their_units():
    ds = open_store("planet").isel(time=[0], level=[0, 1]).load()
    pascals = ds.assign_coords(level=("level", [1000.0, 2000.0], {"units": "Pa"}))
    np.testing.assert_array_equal(open_store(pascals)["level"], [10, 20])
