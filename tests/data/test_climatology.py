r"""Climatologies of records whose harmonics and noise were planted."""

from __future__ import annotations

import calendar
from datetime import datetime, timedelta

import numpy as np
import pytest
import xarray as xr

from appa.data import climatology, reduction
from appa.errors import DataError, StoreError

H, W, LEVELS = 4, 6, [500, 1000]


def times(start: str, end: str, every: int = 6) -> np.ndarray:
    return np.arange(start, end, every, dtype="datetime64[h]").astype("datetime64[ns]")


def phases(hours: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Shares of the year and of the day that have passed, by the standard library's calendar."""
    year, day = [], []
    for t in hours.astype("datetime64[s]").tolist():
        assert isinstance(t, datetime)
        length = timedelta(days=366 if calendar.isleap(t.year) else 365)
        year.append((t - datetime(t.year, 1, 1)) / length)
        day.append(t.hour / 24)
    return np.array(year), np.array(day)


def planted(hours: np.ndarray, noise: float = 0.0, seed: int = 0, dtype: type = np.float32):
    r"""A record with three annual and two diurnal harmonics that differ from point to point."""
    rng, weather = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    year, day = phases(hours)
    truth, data = {}, {}
    for name, shape, mean, scale in (
        ("2m_temperature", (H, W), 280.0, 10.0),
        ("sea_surface_temperature", (H, W), 290.0, 3.0),
        ("geopotential", (2, H, W), 2e5, 500.0),
    ):
        beta = scale * rng.standard_normal((11, *shape))
        beta[0] += mean
        columns = [np.ones_like(year)]
        for count, phase in ((3, year), (2, day)):
            for k in range(1, count + 1):
                columns += [np.cos(2 * np.pi * k * phase), np.sin(2 * np.pi * k * phase)]
        value = np.tensordot(np.stack(columns, 1), beta, 1)
        value = value + noise * scale * weather.standard_normal(value.shape)
        if name == "sea_surface_temperature":
            value[:, 0, 1:4] = np.nan
            beta[:, 0, 1:4] = np.nan
        dims = ("time", *(["level"] if len(shape) == 3 else []), "latitude", "longitude")
        data[name] = (dims, value.astype(dtype), {"units": "K"})
        truth[name] = beta
    coords = {
        "time": hours,
        "level": LEVELS,
        "latitude": np.linspace(90, -90, H),
        "longitude": np.arange(W) * 60.0,
    }
    return xr.Dataset(data, coords), truth


def test_planted_harmonics_are_recovered(monkeypatch):
    monkeypatch.setattr(reduction, "BLOCK_BYTES", 100 * 2 * H * W * 8)
    # Two years, one of them a leap year, every three hours: two diurnal harmonics need five
    ds, truth = planted(times("2019-01-01", "2021-01-01", 3), dtype=np.float64)
    clim = climatology.fit(ds, harmonics=3, diurnal=2)
    for name, beta in truth.items():
        # Coefficients are stored in single precision: half a spacing of the largest, the mean
        tolerance = np.spacing(np.float32(np.nanmax(abs(beta)))) / 2
        np.testing.assert_allclose(clim[name].values, beta, rtol=6e-8, atol=tolerance)
        assert np.nanmax(clim[f"{name}_std"].values) < 1e-6 * np.nanstd(ds[name].values)
    assert clim["geopotential"].dims == ("coefficient", "level", "latitude", "longitude")
    assert clim["geopotential_std"].dims == ("level", "latitude", "longitude")
    assert list(clim["coefficient"].values[[0, 1, 2, 7]]) == [
        "mean",
        "annual_cos_1",
        "annual_sin_1",
        "diurnal_cos_1",
    ]


def test_evaluate_continues_the_planted_signal():
    r"""Fitted on 2019 and 2020, evaluated in 2024, a leap year, to its last hour."""
    ds, _ = planted(times("2019-01-01", "2021-01-01", 3))
    clim = climatology.fit(ds, harmonics=3, diurnal=2)
    future, _ = planted(times("2024-02-28", "2025-01-01", 1)[::601])
    found = climatology.evaluate(clim, future["time"].values)
    assert found["time"].values[-1] > np.datetime64("2024-12-01")
    for name in future:
        assert found[name].dims == future[name].dims
        assert found[name].dtype == np.float32
        mean = np.nanmax(abs(future[name].values))
        # single precision: the data's rounding, the coefficients', and a sum of eleven terms
        tolerance = 12 * np.spacing(np.float32(mean))
        np.testing.assert_allclose(found[name].values, future[name].values, atol=tolerance, rtol=0)
    by_integers = climatology.evaluate(clim, [[2024, 2, 29, 12]])
    by_dates = climatology.evaluate(clim, np.datetime64("2024-02-29T12"))
    xr.testing.assert_identical(by_integers, by_dates)


def test_standard_deviation_of_white_noise():
    hours = times("2018-01-01", "2020-01-01")
    ds, _ = planted(hours, noise=0.3)
    clim = climatology.fit(ds, harmonics=3, diurnal=1)  # four hours a day tell one harmonic apart
    # A sample standard deviation scatters by 1 / √(2N): five of those over 24 to 48 points. The
    # second diurnal harmonic, left out, is noise as well: of 1 for even hours, sampled at ±1.
    for name, scale in (("2m_temperature", 10.0), ("geopotential", 500.0)):
        _, truth = planted(hours[:1])
        left_out = truth[name][9]  # cos(4πh/24) is ±1 every six hours, the sine is 0
        expected = np.sqrt((0.3 * scale) ** 2 + left_out**2)
        found = clim[f"{name}_std"].values
        np.testing.assert_allclose(found, expected, rtol=5 / np.sqrt(2 * len(hours)))
        # unbiased over all points
        assert abs(np.mean(found / expected) - 1) < 5 / np.sqrt(2 * len(hours) * found.size)


def test_small_anomalies_of_large_values():
    r"""Geopotential of 2e5 with anomalies of 100: their deviation keeps its digits."""
    ds, _ = planted(times("2018-01-01", "2020-01-01"), noise=0.2, dtype=np.float64)
    name = "geopotential"
    clim = climatology.fit(ds[[name]], harmonics=3, diurnal=1)
    x = climatology.regressors(ds["time"].values, 3, 1)
    y = ds[name].values.reshape(len(x), -1)
    beta, residual, *_ = np.linalg.lstsq(x, y, rcond=None)
    expected = np.sqrt(residual / (len(x) - x.shape[1]))
    np.testing.assert_allclose(clim[f"{name}_std"].values.ravel(), expected, rtol=1e-6)
    np.testing.assert_allclose(clim[name].values.reshape(len(beta), -1)[1:], beta[1:], atol=1e-3)


def test_undefined_stays_undefined():
    ds, _ = planted(times("2019-01-01", "2020-01-01"))
    clim = climatology.fit(ds, harmonics=1)
    land = np.isnan(ds["sea_surface_temperature"].values[0])
    expected = climatology.evaluate(clim, ds["time"].values[:2])["sea_surface_temperature"].values
    assert (np.isnan(expected) == land).all()
    assert (np.isnan(clim["sea_surface_temperature_std"].values) == land).all()

    ds["2m_temperature"].values[700, 1, 2] = np.nan
    with pytest.raises(DataError, match="2m_temperature is undefined at 1 of 24 points"):
        climatology.fit(ds, harmonics=1)
    ds["2m_temperature"].values[700, 1, 2] = np.inf
    with pytest.raises(DataError, match="2m_temperature is infinite at 1 of 24 points"):
        climatology.fit(ds, harmonics=1)


def test_short_records_are_refused():
    month, _ = planted(times("2020-01-01", "2020-02-01"))
    with pytest.raises(DataError, match=r"30\.75 days.*8% of the days.*harmonics=0, diurnal=0"):
        climatology.fit(month, harmonics=3)
    clim = climatology.fit(month, harmonics=0)
    mean = month["2m_temperature"].values.astype(np.float64).mean(0)
    np.testing.assert_allclose(clim["2m_temperature"].values[0], mean, rtol=1e-6)

    # Four hours a day alias the second harmonic of the day, whatever the number of years
    year, _ = planted(times("2019-01-01", "2020-01-01"))
    with pytest.raises(DataError, match="harmonics=3, diurnal=1"):
        climatology.fit(year, harmonics=3, diurnal=2)
    # Eleven months are enough for three harmonics, five are not
    climatology.fit(year.sel(time=slice(None, "2019-11")), harmonics=3)
    with pytest.raises(DataError, match=r"cannot tell 3 harmonics.*fewer: harmonics=1"):
        climatology.fit(year.sel(time=slice(None, "2019-06")), harmonics=3)
    with pytest.raises(DataError, match="negative"):
        climatology.fit(year, harmonics=-1)


def test_save_and_load(tmp_path):
    ds, _ = planted(times("2019-01-01", "2020-01-01"))
    ds["2m_temperature"].attrs["standard_name"] = "air_temperature"
    clim = climatology.fit(ds, harmonics=2)
    path = climatology.save(clim, tmp_path / "climatology.nc")
    loaded = climatology.load(path)
    xr.testing.assert_identical(loaded, clim)
    when = ds["time"].values[:3]
    xr.testing.assert_identical(
        climatology.evaluate(loaded, when), climatology.evaluate(clim, when)
    )

    # A deviation is not the quantity: it has a unit and no standard name
    assert loaded["2m_temperature"].attrs["standard_name"] == "air_temperature"
    assert set(loaded["2m_temperature_std"].attrs) == {"units", "long_name"}
    assert loaded.attrs["Conventions"].startswith("CF-")

    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 3])
    with pytest.raises(StoreError, match="truncated or of another kind"):
        climatology.load(path)
    ds.to_netcdf(tmp_path / "states.nc")
    with pytest.raises(StoreError, match="holds no climatology"):
        climatology.load(tmp_path / "states.nc")
    with pytest.raises(StoreError, match="no file with a climatology at"):
        climatology.load(tmp_path / "nowhere.nc")


def test_distributed_gives_the_same():
    distributed = pytest.importorskip("distributed")
    ds, _ = planted(times("2019-01-01", "2020-01-01"))
    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
    )
    with cluster, distributed.Client(cluster) as client:
        found = climatology.fit(ds.chunk(time=100), scheduler=client)
    xr.testing.assert_allclose(found, climatology.fit(ds), rtol=1e-6)
