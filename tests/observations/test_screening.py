from __future__ import annotations

import tracemalloc

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from appa.data.grids import Grid
from appa.observations import gridded
from appa.observations.collection import Observations
from appa.observations.reading import read_observations

GRID = Grid("equiangular", 91, 180)
LEVELS = [300, 500, 700, 850]
HOUR = 2 * 2 * 4 * len(LEVELS) * 91 * 180  # bytes: two variables and their errors


def swath(hours: int, step: str = "h") -> xr.Dataset:
    r"""A strip of longitudes an hour, which moves on."""
    coords = {
        "time": pd.date_range("2021-03-21", periods=hours, freq=step),
        "level": LEVELS,
        "latitude": GRID.latitude,
        "longitude": GRID.longitude,
    }
    ds = xr.Dataset(coords=coords)
    for name, mean in (("temperature", 250.0), ("u_component_of_wind", 5.0)):
        x = np.full((hours, len(LEVELS), *GRID.shape), np.nan, "f4")
        for k in range(hours):
            x[k, :, :, (7 * k) % 160 : (7 * k) % 160 + 20] = mean + k
        ds[name] = (tuple(coords), x)
        ds[f"{name}_error"] = (tuple(coords), np.where(np.isnan(x), x, np.float32(0.5)))
    return ds


def plant(ds: xr.Dataset) -> xr.Dataset:
    r"""One fault of each kind, of a temperature, in hours of their own; and an error of nothing."""
    ds = ds.copy(deep=True)
    t, e = ds["temperature"].values, ds["temperature_error"].values
    t[1, 0, 40, 10], t[2, 1, 40, 20], e[3, 2, 40, 25], e[4, 3, 40, 30] = np.inf, 20.0, 0, np.nan
    e[5, 0, 0, 170] = 1.0  # where nothing was seen
    return ds


FAULTS = {
    "not a number": 1,
    "value beyond plausible range": 1,
    "no or non-positive error": 2,
}


def counts(observations: Observations) -> dict[str, int]:
    return dict(zip(observations.excluded["reason"], observations.excluded["count"], strict=True))


def peak(source, monkeypatch) -> tuple[int, Observations]:
    r"""The most that reading holds beside its source, in bytes."""
    monkeypatch.setattr(gridded, "SAMPLE", 1000)  # does not depend on the size of a field
    read_observations(source)  # imports and caches
    tracemalloc.start()
    try:
        out = read_observations(source)
        return tracemalloc.get_traced_memory()[1], out
    finally:
        tracemalloc.stop()


def test_a_good_swath_in_memory_is_not_copied(monkeypatch):
    r"""A day takes no more than an hour does: its own size twice."""
    ds = swath(24)
    most, out = peak(ds, monkeypatch)
    assert most < 2 * HOUR
    assert len(out) == 24 * 2 * len(LEVELS) * 91 * 20
    assert np.shares_memory(out.gridded["temperature"].values, ds["temperature"].values)


def test_what_is_left_out_takes_a_copy_and_leaves_the_source_alone(monkeypatch):
    ds = plant(swath(24))
    before = ds.copy(deep=True)
    most, out = peak(ds, monkeypatch)
    assert most < 12 * HOUR + 2 * HOUR  # the temperature and its error are half of all
    xr.testing.assert_identical(ds, before)
    assert counts(out) == FAULTS
    assert len(out) == 24 * 2 * len(LEVELS) * 91 * 20 - 4
    np.testing.assert_array_equal(
        out.gridded["temperature"].isnull(), out.gridded["temperature_error"].isnull()
    )


@pytest.mark.parametrize("whole", [True, False])
def test_a_file_is_read_an_hour_at_a_time(tmp_path, monkeypatch, whole):
    r"""Whether it is stored in one piece or in hours; what is left out is the same as in memory."""
    ds = plant(swath(24))
    path = tmp_path / ("obs.nc" if whole else "obs.zarr")
    if whole:
        ds.to_netcdf(path)
    else:
        ds.chunk(time=1).to_zarr(path)
    most, out = peak(path, monkeypatch)
    assert most < 4 * HOUR  # buffers and graphs beside two
    known = read_observations(ds)
    assert counts(out) == FAULTS
    assert len(out) == len(known)
    assert out.gridded["temperature"].chunks is not None
    xr.testing.assert_equal(out.gridded.compute(), known.gridded)
    assert out.digest() == known.digest()
    for example, same in zip(out.excluded["example"], known.excluded["example"], strict=True):
        assert example.partition(": ")[2] == same.partition(": ")[2]


def test_times_between_hours_in_files_and_memory(tmp_path):
    r"""Every twenty minutes: the whole hour counts first, and the others where it saw nothing."""
    ds = swath(9, "20min")
    ds.to_netcdf(tmp_path / "obs.nc")
    memory, file = read_observations(ds), read_observations(tmp_path / "obs.nc")
    t = ds["temperature"].values
    # 00:00, 00:20 | 01:00, 00:40, 01:20 | 02:00, 01:40, 02:20 | 02:40
    for hour, turns in enumerate([(0, 1), (3, 2, 4), (6, 5, 7), (8,)]):
        expected = t[turns[0]]
        for k in turns[1:]:
            expected = np.where(np.isnan(expected), t[k], expected)
        np.testing.assert_array_equal(memory.gridded["temperature"].values[hour], expected)
    assert len(memory) + counts(memory)["duplicate"] == 2 * int(np.isfinite(t).sum())
    assert memory.digest() == file.digest()
    assert counts(memory) == counts(file)
    assert len(memory) == len(file)


def test_fields_in_memory_add_up_to_what_they_do_in_files(tmp_path):
    r"""Hours and levels that one or both have, of one or two variables."""
    a, b = swath(5), swath(7).isel(time=slice(3, 7), level=slice(1, 4))
    b = b.roll(longitude=4, roll_coords=False).drop_vars(["u_component_of_wind"])
    b = b.drop_vars(["u_component_of_wind_error"])
    a.to_netcdf(tmp_path / "a.nc")
    memory, file = read_observations([a, b]), read_observations([tmp_path / "a.nc", b])
    assert memory.gridded.sizes["time"] == 7
    xr.testing.assert_equal(memory.gridded, file.gridded.compute())
    assert counts(memory) == counts(file)
    # strips of 20 longitudes in two hours, of which 16 are shared, on three levels
    assert counts(memory)["duplicate"] == 2 * 16 * 3 * 91
    assert len(memory) == len(file) == len(Observations(gridded=memory.gridded))
