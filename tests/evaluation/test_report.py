r"""The evidence for a run, of worlds whose answers are known."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from appa.data.grids import Grid
from appa.data.variables import G
from appa.errors import DataError
from appa.evaluation.balances import balances
from appa.evaluation.physics import EARTH
from appa.evaluation.regions import REGIONS
from appa.evaluation.report import gather
from appa.evaluation.report_runs import by_stretch, opened, stretches
from appa.evaluation.scores import evaluate

GRID = Grid("gaussian", 16, 32)
LEVELS = [300, 500, 850]
HOURS = 8


def world(hours: int = HOURS) -> xr.Dataset:
    r"""An isothermal atmosphere of 250 K whose wind :math:`u = U \cos \varphi` is geostrophic, with
    :math:`U = 20` m/s, and a temperature at the surface that is noise."""
    rng = np.random.default_rng(0)
    phi = np.radians(GRID.latitude)[:, None]
    # ∂Φ/∂φ = −2 Ω a U sin φ cos φ
    tilt = -EARTH.omega * EARTH.radius * 20.0 * np.sin(phi) ** 2
    height = EARTH.gas * 250.0 * np.log(1000 / np.array(LEVELS, float))
    shape = (hours, len(LEVELS), *GRID.shape)
    fields = {
        "temperature": np.full(shape, 250.0),
        "geopotential": np.broadcast_to(height[:, None, None] + tilt, shape),
        "u_component_of_wind": np.broadcast_to(20.0 * np.cos(phi), shape),
        "v_component_of_wind": np.zeros(shape),
    }
    dims = ("time", "level", "latitude", "longitude")
    ds = xr.Dataset(
        {name: (dims, values.astype(np.float32)) for name, values in fields.items()},
        {
            "time": pd.date_range("2021-03-21", periods=hours, freq="h"),
            "level": LEVELS,
            "latitude": GRID.latitude,
            "longitude": GRID.longitude,
        },
    )
    noise = rng.normal(280, 5, (hours, *GRID.shape)).astype(np.float32)
    return ds.assign({"2m_temperature": (("time", *dims[2:]), noise, {"units": "K"})})


def shifted(truth: xr.Dataset, shifts: list[float], **attrs: str) -> xr.Dataset:
    r"""Members that are the truth with temperatures shifted, in K."""
    parts = [
        truth.assign({n: truth[n] + np.float32(s) for n in ("temperature", "2m_temperature")})
        for s in shifts
    ]
    members = xr.DataArray(np.arange(len(shifts)), dims="member", name="member")
    return xr.concat(parts, members).assign_attrs(attrs)


def test_balances():
    r"""Geopotential that is hydrostatic for 250 K has a residual of R/g ln(p₂/p₁) a kelvin that
    temperature is off; the wind is the geostrophic one, by construction."""
    truth = world(3)
    found = balances(shifted(truth, [-2.0, -2.0]), truth)
    assert found is not None
    depth = EARTH.gas / G * np.log(np.array(LEVELS[1:]) / np.array(LEVELS[:-1]))
    residual = found["residual"].sel(quantile=0.5)
    assert found["top"].values.tolist() == LEVELS[:-1]
    assert np.abs(residual.sel(source="truth")).max() < 0.02  # single precision of 80,000 m²/s²
    np.testing.assert_allclose(residual.sel(source="members"), 2 * depth, atol=0.02)
    for source in ("truth", "members"):
        at = found.sel(source=source)
        np.testing.assert_allclose(at["angle"], 90, atol=0.1)
        np.testing.assert_allclose(at["ratio"], 1, atol=0.01)
        np.testing.assert_allclose(at["correlation"], 1, atol=0.01)
    assert balances(shifted(truth, [0.0])[["2m_temperature"]], truth) is None
    level = shifted(truth, [0.0])[["geopotential", "temperature"]].isel(level=[0])
    assert balances(level, truth) is None  # no layer


@pytest.fixture(scope="module")
def truth() -> xr.Dataset:
    return world()


@pytest.fixture(scope="module")
def evidence(truth):
    shifts = [-1.0, 0.0, 1.0, 2.0]
    table = observed(truth, 0.5)
    return gather(
        shifted(truth, shifts, task="reanalysis", joints="[2, 5]", observations_digest="abc"),
        truth,
        baselines={"warmer": shifted(truth, [3.0]), "colder": shifted(truth, [-4.0, -2.0])},
        observations=table,
        held_out=observed(truth, 1.0),
        background=shifted(truth, [-3.0, 3.0]),
        workers=1,
    )


def observed(truth: xr.Dataset, shift: float) -> pd.DataFrame:
    r"""Soundings of temperature at grid points, off by a shift, with errors of 0.5 K."""
    places = [(3, 5), (8, 20), (12, 31)]
    rows = []
    for time in truth["time"].values:
        for i, j in places:
            value = float(truth["temperature"].sel(time=time, level=500)[i, j]) + shift
            rows.append((time, GRID.latitude[i], GRID.longitude[j], "temperature", 500, value, 0.5))
    columns = ["time", "latitude", "longitude", "variable", "level", "value", "error"]
    return pd.DataFrame(rows, columns=columns)


def test_scores(evidence, truth):
    r"""Shifts of −1, 0, 1 and 2 K have the mean 1/2, the variance 5/3, and a fair CRPS of
    1 − 20 / (2 · 12)."""
    pooled = evidence.pooled()
    run = pooled["run"].sel(channel=["t2m", "t500"])
    np.testing.assert_allclose(run["skill"], 0.5, atol=1e-4)
    np.testing.assert_allclose(run["spread"], np.sqrt(5 / 3), atol=1e-4)
    np.testing.assert_allclose(run["crps"], 1 - 20 / 24, atol=1e-4)
    np.testing.assert_allclose(pooled["warmer"]["skill"].sel(channel="t500"), 3, atol=1e-4)
    # the same as is told elsewhere
    alone = evaluate(evidence.ensemble, truth, by="all", regions=["tropics"])
    one = pooled["run"].sel(region="tropics")
    np.testing.assert_allclose(one["crps"], alone["crps"].isel(region=0), rtol=1e-6)
    gap = evidence.differences["warmer"].sel(region="global", channel="t850")
    assert float(gap["skill_difference"]) == pytest.approx(0.5 - 3, abs=1e-4)
    assert not bool(gap["skill_real"])  # of one day
    # neither land nor sea: the truth has no mask of them
    assert set(REGIONS) - set(run["region"].values.tolist()) == {"land", "ocean"}


def test_structure(evidence):
    r"""Of four members shifted by −1, 0, 1 and 2 K the truth equals one, and ranks second or third;
    a shift is energy at wavenumber 0, and no change in time."""
    frequency = evidence.calibration["frequency"].sel(region="global", channel="t850")
    np.testing.assert_allclose(frequency[[0, 3, 4]], 0, atol=1e-12)
    assert float(frequency[1:3].sum()) == pytest.approx(1)
    error = evidence.wavelengths["error"].sel(channel="t2m")
    assert float(error[0]) == pytest.approx(0.25, abs=1e-3)
    assert float(error[1:].sum()) < 1e-6
    energy = evidence.fields["run"].sel(region="global")
    # a field shifted by s has the norm |s|: the energy score is the CRPS
    np.testing.assert_allclose(energy["energy"].sel(channel="t850"), 1 - 20 / 24, atol=1e-4)
    np.testing.assert_allclose(energy["variogram"].sel(channel="t2m"), 0, atol=1e-3)
    at = evidence.temporal.sel(channel="t2m")
    np.testing.assert_allclose(at["tendency_ratio"], 1, atol=1e-4)
    assert evidence.temporal.attrs["joints"] == "[[2, 5]]"
    spectrum = evidence.spectra["spectrum"].sel(channel="t2m").isel(wavenumber=slice(1, None))
    # the members' are those of the truth, each four times
    np.testing.assert_allclose(
        *(spectrum.sel(source=s, quantile=0.5) for s in ("truth", "members")), rtol=0.5
    )
    assert evidence.missing == {}


def test_errors_and_altitudes(evidence):
    r"""Members are 0.5 K too warm on average, as is their mean. Altitudes, counted from the lowest
    level, are too high by temperature: by R/g ln(850/p) of that, of the 2 hours of 4 members."""
    bias = evidence.errors["bias"].sel(channel="t850")
    np.testing.assert_allclose(bias, 0.5, atol=1e-4)
    found = evidence.consistency
    assert [ds.attrs["states"] for ds in found.values()] == [8, 8]
    depth = EARTH.gas / G * np.log(850 / np.array(LEVELS))
    for name, warm in (("truth", 0.0), ("members", 0.5)):
        ds = found[name]
        # single precision of 80,000 m²/s²; and altitude grows faster than h, by 2 h/a at 9 km
        np.testing.assert_allclose(ds["difference_mean"], -warm * depth, rtol=3e-3, atol=0.02)
        assert (ds["sine"].isel(value=-1) == ds["sine"].max("value")).all()
        np.testing.assert_allclose(ds["correlation"], 1, atol=0.01)
    # of shifts −1, 0, 1, 2 the deviation is √5/2
    spread = found["members"]["difference_std"].isel(level=0)
    assert float(spread) == pytest.approx(np.sqrt(5) / 2 * depth[0], rel=3e-3)
    assert len(evidence.seen.points) == 3 * HOURS


def test_how_much_faster_is_a_ratio_of_roots(evidence):
    r"""Mean squares 4 times as large, with an interval from 1 to 9, are changes twice as fast."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("cmocean")
    from appa.plots.evidence import time

    made = {"jump_excess": 4.0, "jump_excess_low": 1.0, "jump_excess_high": 9.0}
    temporal = evidence.temporal.copy(deep=True)
    for name, value in made.items():
        temporal[name] = xr.full_like(temporal[name], value)
    # of t2m alone: the rest of this world stands still, and has no spectrum to draw
    few = replace(evidence, temporal=temporal, channels=["t2m"])
    table = str(time(few).items[1])
    rows = [re.findall("<td[^>]*>([^<]*)", row) for row in re.findall("<tr.*?</tr>", table)]
    rows = [row for row in rows if row]
    assert len(rows) == temporal.sizes["channel"]
    for row in rows:
        assert row[-4:] == ["2", "1 … 3"] * 2


def test_a_gallery_is_of_one_stretch(evidence, truth, tmp_path, monkeypatch):
    r"""First, middle and last hour, with the observations of that stretch at their hours: those of
    another date would be news from elsewhere."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("cmocean")
    from matplotlib.figure import Figure

    from appa.plots import pictures

    calls = []

    def drawn(y, ensemble, table=None, swath=None, *, panels, hours, members):
        calls.append((panels, hours, members, table, swath))
        return Figure()

    monkeypatch.setattr(pictures, "plot_ensemble", drawn)
    told = str(pictures.gallery(evidence).items)
    assert "the latest of each place up to the hour" in told
    first = truth["time"].values[0]
    hours = [int((h - first) / np.timedelta64(1, "h")) for h in calls[0][1]]
    assert hours == [0, 4, 7]  # of 8
    assert [call[0] for call in calls] == [[("t2m", None)], [("z500", None)]]
    assert {call[2] for call in calls} == {2}
    assert len(calls[0][3]) == 3 * HOURS
    assert calls[0][4] is None

    calls.clear()
    paths = []
    for k, part in enumerate((slice(3), slice(4, 8))):
        run = shifted(truth.isel(time=part), [-1.0, 1.0], task="reanalysis")
        run.to_netcdf(tmp_path / f"{k}.nc")
        paths.append(str(tmp_path / f"{k}.nc"))
    table = observed(truth, 0.5)
    table["time"] += pd.Timedelta("20min")  # matched to the hour before
    found = gather(paths, truth, observations=table, variables=["t500"], regions=["global"])
    told = str(pictures.gallery(found).items)
    assert "Hours of the first of 2 stretches" in told
    (call,) = calls
    assert call[0] == [("t500", None)]
    np.testing.assert_array_equal(call[1], truth["time"].values[:3])
    np.testing.assert_array_equal(np.unique(call[3]["time"]), truth["time"].values[:3])

    calls.clear()
    alone = gather(shifted(truth, [0.0]), truth, variables=["t500"], regions=["global"])
    assert "What was observed is not shown" in str(pictures.gallery(alone).items)
    assert calls[0][2:] == (1, None, None)


def test_observations(evidence):
    r"""Values 0.5 K too high with errors of 0.5 K: departures of members are 3, 1, −1 and −3
    errors, of a background 7 and −5; variances are 20/3 and 72."""
    assert list(evidence.innovations.index) == [("temperature", 500.0)]
    row = evidence.innovations.iloc[0]
    assert row["count"] == 3 * HOURS
    expected = {"oa_mean": 0, "oa_found": 0, "oa_expected": 1 - 3 / 4 * 20 / 3}
    expected |= {"ob_mean": 1, "ob_found": 1, "ob_expected": 1 + 3 / 2 * 72}
    expected |= {"error_found": 0, "background_found": 1 - 72 / 2}
    for key, value in expected.items():
        assert row[key] == pytest.approx(value, abs=2e-3 * max(1, abs(value))), key
    # a spread larger than the error lets less than nothing be expected of O−A: · on the page
    pytest.importorskip("matplotlib")
    pytest.importorskip("cmocean")
    from appa.plots.departures import observations

    section = str(observations(evidence).items[1])
    assert re.findall("<th[^>]*>([^<]*)", section).index("O−A², found") > 0
    assert len(re.findall("<td[^>]*>−", section)) == 0
    # 1 K too high: the mean is 0.5 K below
    held = evidence.verification.iloc[0]
    assert held["bias"] == pytest.approx(-0.5, abs=1e-3)
    assert held["departure"] == pytest.approx(0.5, abs=1e-3)
    assert held["spread"] == pytest.approx(np.sqrt(5 / 3), abs=1e-3)
    assert evidence.about["digest of its observations"] == "abc"
    assert "not those the run has seen" in evidence.about["digest of the observations given"]
    assert evidence.about["observations given"] == f"{3 * HOURS} compared"


def test_less(truth):
    r"""A forecast of one member beyond the truth: what it cannot have is told, joints stay where
    they are, and O−B are its departures."""
    run = shifted(truth, [0.0], task="forecast", joints="[3, 6]").isel(member=0)
    with pytest.warns(UserWarning, match="2 of 8 hours are not scored"):
        found = gather(run, truth.isel(time=slice(2, None)), variables=["t2m"], regions=["tropics"])
    assert found.start == np.datetime64("2021-03-20T23")
    assert set(found.missing) == {"calibration", "wavelengths"}
    assert "one member" in found.missing["calibration"]
    assert found.temporal is not None
    assert found.temporal.attrs["joints"] == "[[1, 4]]"
    assert found.channels == ["t2m"]
    two = shifted(truth, [-1.0, 1.0], task="forecast").isel(time=slice(5))
    found = gather(
        two, truth, variables=["t500"], regions=["global"], observations=observed(truth, 0.5)
    )
    assert found.innovations is not None
    assert found.innovations["ob_mean"].item() == pytest.approx(1, abs=1e-3)
    assert "oa_mean" not in found.innovations


def test_refused(truth):
    run = shifted(truth, [-1.0, 1.0])
    with pytest.raises(DataError, match="cannot be called 'run'"):
        gather(run, truth, baselines={"run": run})
    late = run.assign_coords(time=run["time"] + np.timedelta64(9, "D"))
    with pytest.raises(DataError, match="the baseline late has 2021-03-30T00 to 2021-03-30T07"):
        gather(run, truth, baselines={"late": late}, variables=["t2m"])


def test_analyses_of_several_dates_are_one_page(tmp_path):
    r"""Dates whose errors are 1 and 3 K: pooled by hour, and never across the gap."""
    later = world(4).assign_coords(time=pd.date_range("2022-03-21", periods=4, freq="h"))
    truth = xr.concat([world(4), later], "time", data_vars="minimal")
    paths = []
    for number, shift in ((1, 3.0), (0, 1.0)):
        part = truth.isel(time=slice(4 * number, 4 * number + 4))
        path = tmp_path / f"{number}.nc"
        shifted(part, [shift - 1, shift + 1], task="reanalysis", joints="[2]").to_netcdf(path)
        paths.append(str(path))
    names = ["2m_temperature", "geopotential"]
    found = gather(paths, truth, regions=["global"], variables=names, workers=1)
    assert found.about["hours"] == "8 hours in 2 stretches, 2021-03-21T00 to 2022-03-21T03 UTC"
    np.testing.assert_array_equal(found.ensemble["time"], truth["time"])
    skill = found.pooled()["run"]["skill"].sel(channel="t2m", region="global")
    np.testing.assert_allclose(skill, np.sqrt(5), rtol=1e-5)
    # a shift does not change with time: tendencies are the truth's, none is of a year
    assert "temporal" not in found.missing
    np.testing.assert_allclose(found.temporal["tendency_ratio"].sel(channel="t2m"), 1, rtol=1e-4)

    by = by_stretch(found.means["run"], stretches(found.ensemble))
    by = by.sel(channel="t2m", region="global")
    assert by["lead_time"].values.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(by["skill"], np.sqrt(5), rtol=1e-5)
    assert (by["skill_low"] < by["skill"]).all()

    with pytest.raises(DataError, match="share hours"):
        gather([paths[0], paths[0]], truth)
    forecast = xr.open_dataset(paths[0]).assign_attrs(task="forecast")
    forecast.to_netcdf(tmp_path / "forecast.nc")
    with pytest.raises(DataError, match="2 runs with forecasts, and a page is of one"):
        gather([str(tmp_path / "forecast.nc"), paths[1]], truth)


def test_runs_of_consecutive_days_stay_apart(tmp_path):
    r"""Two runs without a gap whose members trade places, and one that is shorter: changes of 30 K
    from one run to the next are no weather, and the last hour is of the longer run alone."""
    truth, paths = world(12), []
    for k, (hours, shifts) in enumerate(((slice(6), [0.0, 30.0]), (slice(6, 12), [30.0, 0.0]))):
        run = shifted(truth.isel(time=hours), shifts, task="reanalysis", joints="[2]")
        run.to_netcdf(tmp_path / f"{k}.nc")
        paths.append(str(tmp_path / f"{k}.nc"))
    names, options = ["2m_temperature"], {"regions": ["global"], "workers": 1}
    beside = {"warmer": shifted(truth, [60.0])}
    found = gather(paths, truth, variables=names, baselines=beside, **options)
    assert found.about["hours"].startswith("12 hours in 2 stretches, ")
    np.testing.assert_allclose(found.temporal["tendency_ratio"], 1, rtol=1e-4)
    assert found.temporal.attrs["joints"] == "[[2], [2]]"
    # of one day, and two runs
    assert found.differences["warmer"].attrs["dates"] == found.differences["warmer"].attrs["runs"]
    assert found.differences["warmer"].attrs["runs"] == 2

    # hours the truth has not, at the beginning of the first, move its joints
    with pytest.warns(UserWarning, match="1 of 12 hours are not scored"):
        late = gather(paths, truth.isel(time=slice(1, None)), variables=names, **options)
    assert [p.sizes["time"] for p in stretches(late.ensemble)] == [5, 6]
    assert "runs have 5 and 6 along time" in late.missing["temporal"]
    by = by_stretch(late.means["run"], stretches(late.ensemble)).sel(channel="t2m")
    assert by["lead_time"].values.tolist() == [0, 1, 2, 3, 4, 5]
    np.testing.assert_allclose(by["skill"], 15, rtol=1e-4)
    assert np.isfinite(by["skill_low"].values).all(axis=0).tolist() == 5 * [True] + [False]

    pytest.importorskip("matplotlib")
    pytest.importorskip("cmocean")
    from appa.plots.report import curves, differences

    told = "curves beyond 4 are of fewer of them, of 1 at the end"
    assert told in str(curves(late).items)
    assert "are of fewer" not in str(curves(found).items)
    assert "from 1 block of whole runs, by their first day" in str(differences(found).items)


def test_how_many_differences_are_real_by_chance(truth):
    r"""Two states drawn alike, eight days of four channels: a twentieth of four."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("cmocean")
    from appa.plots.report import short

    daily = truth[["temperature", "2m_temperature"]].assign_coords(
        time=pd.date_range("2021-03-21", periods=HOURS, freq="D")
    )
    rng = np.random.default_rng(0)
    one, two = (daily.map(lambda x: x + rng.normal(size=x.shape)) for _ in range(2))
    options = {"regions": ["global"], "workers": 1}
    found = gather(one, daily, baselines={"other": two}, **options)
    told = "really so in [01], and really higher in [01]; about 0.2 would be either by chance alone"
    assert len(re.findall(told, str(short(found).items))) == 2  # skill and CRPS
    few = gather(one.isel(time=slice(5)), daily, baselines={"other": two}, **options)
    assert "chance" not in str(short(few).items)


def test_ranks_are_tested_by_run(tmp_path):
    r"""Three runs over midnight, of four days, are three samples, as of differences."""
    truth, paths = world(76), []
    for k in range(3):
        run = shifted(truth.isel(time=slice(24 * k + 12, 24 * k + 28)), [-1.0, 1.0])
        run.assign_attrs(task="reanalysis").to_netcdf(tmp_path / f"{k}.nc")
        paths.append(str(tmp_path / f"{k}.nc"))
    beside = {"warmer": shifted(truth, [60.0])}
    options = {"variables": ["t2m"], "regions": ["global"], "workers": 1}
    found = gather(paths, truth, baselines=beside, **options)
    assert found.differences["warmer"].attrs["blocks"] == 3
    assert found.calibration["blocks"].item() == 3


def test_a_run_has_a_step_of_its_own(tmp_path):
    r"""States of every 3 hours are one stretch, which a missing one parts; of a week, none are."""
    truth = world(13)
    coarse = shifted(truth, [-1.0, 1.0]).isel(time=slice(None, None, 3))
    found = gather(coarse, truth, variables=["2m_temperature"], regions=["global"], workers=1)
    assert found.about["hours"] == "5 hours, 2021-03-21T00 to 2021-03-21T12 UTC"
    assert [p.sizes["time"] for p in stretches(found.ensemble)] == [5]
    assert found.missing["temporal"].startswith("states are 3 h apart")
    assert [p.sizes["time"] for p in stretches(coarse.isel(time=[0, 1, 2, 4]))] == [3, 1]
    weeks = coarse.assign_coords(time=pd.date_range("2021-03-21", periods=5, freq="7D"))
    assert [p.sizes["time"] for p in stretches(weeks)] == [1] * 5
    # an hourly run beside it keeps its own
    later = shifted(world(3), [0.0, 0.0]).assign_coords(
        time=pd.date_range("2021-03-21T15", periods=3, freq="h")
    )
    for name, run in (("a", coarse), ("b", later)):
        run.assign_attrs(task="reanalysis").to_netcdf(tmp_path / f"{name}.nc")
    both = opened([str(tmp_path / "b.nc"), str(tmp_path / "a.nc")])
    assert [p.sizes["time"] for p in stretches(both)] == [5, 3]
