r"""Scores against sums written out, and areas known in closed form."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr

from appa.data.grids import Grid
from appa.errors import DataError
from appa.evaluation.comparison import by_chance, compare
from appa.evaluation.ensembles import ensemble_statistics, normal_statistics
from appa.evaluation.scores import evaluate, rmse, standardized_rmse

GRID = Grid("gaussian", 24, 48)
DIMS = ("time", "level", "latitude", "longitude")


def field(hours: int = 3, levels: int = 2) -> xr.DataArray:
    rng = np.random.default_rng(0)
    return xr.DataArray(
        rng.normal(280, 2, (hours, levels, *GRID.shape)).astype("float32"),
        coords={
            "time": pd.date_range("2021-03-21", periods=hours, freq="h"),
            "level": np.arange(levels) * 350 + 500,
            "latitude": GRID.latitude,
            "longitude": GRID.longitude,
        },
        dims=DIMS,
    )


def test_half_the_globe():
    r"""A field that is off by c on the northern half of the area and right elsewhere is off by
    :math:`c / \sqrt 2`."""
    truth = field().isel(level=0)
    north = xr.DataArray(np.where(GRID.latitude > 0, 3.0, 0.0), dims="latitude")
    error = standardized_rmse(truth + north, truth, 2.0)
    assert float(error) == pytest.approx(3 / 2 / np.sqrt(2), rel=1e-5)


def test_area_counts_not_rows():
    truth = field().isel(level=0)
    polar = xr.DataArray(np.where(np.arange(24) == 0, 1.0, 0.0), dims="latitude")
    share = np.sqrt(GRID.area[0].sum() / GRID.area.sum())
    found = rmse((truth + polar).transpose("longitude", ...), truth)
    assert float(found) == pytest.approx(share, rel=1e-4)


def test_undefined_values_take_no_part():
    r"""Against the sums, with other points undefined in each hour and in each of the two."""
    rng = np.random.default_rng(1)
    truth, estimate = field(), field() + rng.normal(size=(3, 2, *GRID.shape))
    truth = truth.where(rng.random(truth.shape) < np.array([0.9, 0.5, 0.1])[:, None, None, None])
    estimate = estimate.where(rng.random(truth.shape) < 0.8)
    found = rmse(estimate, truth)
    assert found.dims == ("level",)
    x, y = estimate.values, truth.values
    for k in range(2):
        top = bottom = 0.0
        for t, i, j in np.ndindex(3, *GRID.shape):
            d = float(x[t, k, i, j]) - float(y[t, k, i, j])
            if np.isfinite(d):
                top, bottom = top + GRID.weights[i] * d**2, bottom + GRID.weights[i]
        assert float(found[k]) == pytest.approx(np.sqrt(top / bottom), rel=1e-12)
    assert np.isnan(rmse(truth * np.nan, truth)).all()


def test_levels_have_deviations_of_their_own():
    truth = field()
    shift = xr.DataArray([1.0, 3.0], {"level": truth["level"]})
    deviation = xr.DataArray([2.0, 12.0], {"level": truth["level"]})
    found = standardized_rmse(truth + shift, truth, deviation)
    np.testing.assert_allclose(found, [0.5, 0.25], rtol=1e-6)
    assert rmse(truth + shift, truth, ("latitude", "longitude")).dims == ("time", "level")


def test_other_hours_are_an_error():
    with pytest.raises(DataError, match="not of the same hours and places"):
        rmse(field().isel(time=slice(2)), field())


# ---------------------------------------------------------------- ensembles


def ensemble(members: int, hours: int = 3, seed: int = 0, dtype="float32") -> xr.Dataset:
    r"""Standard normal members: a surface field with holes, and one with two levels."""
    rng = np.random.default_rng(seed)
    levels = field(hours).astype(dtype)
    shape = (members, *levels.shape)
    noise = xr.DataArray(rng.normal(size=shape).astype(dtype), dims=("member", *DIMS))
    surface = (levels.isel(level=0, drop=True) * 0 + noise.isel(level=0)).astype(dtype)
    ds = xr.Dataset({"sea_surface_temperature": surface, "temperature": levels * 0 + noise})
    return ds.transpose("member", "time", "level", "latitude", "longitude")


def world(hours: int = 3, seed: int = 100, dtype="float32") -> xr.Dataset:
    r"""A truth drawn as the members are, undefined over land for one variable."""
    ds = ensemble(1, hours, seed, dtype).isel(member=0, drop=True)
    land = xr.DataArray((np.arange(48) % 4 == 0) * np.ones((24, 1)), dims=("latitude", "longitude"))
    ds["sea_surface_temperature"] = ds["sea_surface_temperature"].where(land < 0.5)
    return ds.assign(land_sea_mask=land.astype(dtype))


POINTS = 3 * 24 * 48  # of the globe, in three hours; by area as if they were about 0.8 as many
CHANNELS = ["sst", "t500", "t850"]


@pytest.mark.parametrize("members", [2, 3, 10])
def test_fair_crps_of_another_library(members):
    r"""`scoringrules` with its estimators `fair` and `pwm`. Its default `qd`, `nrg` and `int` have
    :math:`2 M^2` below the second term and are larger; `akr` takes few of its pairs. With one
    member `fair` is NaN, where ours is the absolute error."""
    sr = pytest.importorskip("scoringrules", reason="the extra 'dev' is not installed")
    rng = np.random.default_rng(members)
    x, y = rng.normal(size=(2000, members)), rng.normal(1, 2, size=2000)
    found = ensemble_statistics((x - y[:, None]).T)["crps"]
    expected = sr.crps_ensemble(y, x, estimator="fair", backend="numpy")
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    expected = sr.crps_ensemble(y, x, estimator="pwm", backend="numpy")
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    of_tensor = ensemble_statistics(torch.from_numpy((x - y[:, None]).T))
    np.testing.assert_allclose(of_tensor["crps"], expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(of_tensor["variance"], x.var(1, ddof=1), rtol=0, atol=1e-12)
    # far from zero in single precision: geopotential
    x32, y32 = (5e5 + 1e3 * x).astype("float32"), (5e5 + 1e3 * y).astype("float32")
    found = ensemble_statistics((x32 - y32[:, None]).T)["crps"]
    exact = sr.crps_ensemble(
        y32.astype(float), x32.astype(float), estimator="fair", backend="numpy"
    )
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-6 * 1e3)

    sigma = rng.uniform(0.1, 3, 2000)
    found = normal_statistics(x[:, 0] - y, sigma)["crps"]
    np.testing.assert_allclose(found, sr.crps_normal(y, x[:, 0], sigma), rtol=0, atol=1e-12)
    assert normal_statistics(np.array([2.0]), np.array([0.0]))["crps"] == 2.0


def test_whole_scores_of_another_library():
    r"""Means by area over hours and points that are defined, with its values at points."""
    sr = pytest.importorskip("scoringrules", reason="the extra 'dev' is not installed")
    truth, members = world(), ensemble(5)
    scores = evaluate(members, truth, by="all", regions=("global", "tropics", "ocean"))
    assert scores["channel"].values.tolist() == CHANNELS
    assert scores["units"].dims == ("channel",)
    for k, (name, level) in enumerate(
        [("sea_surface_temperature", None), ("temperature", 500), ("temperature", 850)]
    ):
        x, y = members[name].astype(float), truth[name].astype(float)
        x, y = (v if level is None else v.sel(level=level) for v in (x, y))
        crps = sr.crps_ensemble(
            y.values, x.transpose(..., "member").values, estimator="fair", backend="numpy"
        )
        area = GRID.area / GRID.area.sum()
        tropics = area * (np.abs(GRID.latitude) < 20)[:, None]
        ocean = area * (1 - truth["land_sea_mask"].values)
        for region, weight in (("global", area), ("tropics", tropics), ("ocean", ocean)):
            weight = np.where(np.isfinite(y.values), weight, 0.0)

            def mean(values, weight=weight):
                return np.nansum(values * weight) / weight.sum()

            at = scores.sel(region=region).isel(channel=k)
            assert float(at["crps"]) == pytest.approx(mean(crps), abs=1e-6)
            error = (x.mean("member") - y).values
            assert float(at["skill"]) == pytest.approx(np.sqrt(mean(error**2)), abs=1e-6)
            variance = x.var("member", ddof=1).values
            assert float(at["spread"]) == pytest.approx(np.sqrt(mean(variance)), abs=1e-6)
            ratio = np.sqrt(6 / 5 * mean(variance) / mean(error**2))
            assert float(at["ratio"]) == pytest.approx(ratio, abs=1e-6)
    # a quarter of the points of SST is land
    share = scores["share"].sel(region="global")
    np.testing.assert_allclose(share, [0.75, 1, 1], rtol=1e-12)


def test_undefined_members_are_told():
    r"""Where one member of an ensemble has no value but the truth has, there is no score."""
    truth, members = world(), ensemble(4)
    area = GRID.area / GRID.area.sum()
    values = members["temperature"].transpose("member", "time", "level", "latitude", "longitude")
    values = values.copy()
    values[1, :, 0, 2] = np.nan
    share = 100 * area[2].sum()
    with pytest.warns(UserWarning, match=f"{share:.2g} % of t500 is undefined"):
        scores = evaluate(members.assign(temperature=values), truth, by="all")
    np.testing.assert_allclose(scores["share"][0], [0.75, 1 - share / 100, 1], rtol=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(members, truth, by="all")


def test_expectations_of_normal_draws():
    r"""Members and truth of N(0, 1): skill² is 1 + 1/M, spread and ratio 1, CRPS 1/√π whatever M;
    with members of N(0, s²), E|x − y| − E|x − x'| / 2 = √(2 (1 + s²) / π) − s / √π."""
    truth = world()
    error = 5 / np.sqrt(0.75 * 0.75 * POINTS)  # five deviations of a mean of terms of order 1
    for m, s in ((2, 1.0), (8, 1.0), (8, 0.5), (8, 2.0)):
        scores = evaluate(s * ensemble(m), truth, by="all").isel(region=0)
        skill = np.sqrt(1 + s**2 / m)
        np.testing.assert_allclose(scores["skill"], skill, rtol=error)
        np.testing.assert_allclose(scores["spread"], s, rtol=error)
        ratio = np.sqrt((m + 1) / m) * s / skill
        np.testing.assert_allclose(scores["ratio"], ratio, rtol=2 * error)
        crps = np.sqrt(2 * (1 + s**2) / np.pi) - s / np.sqrt(np.pi)
        np.testing.assert_allclose(scores["crps"], crps, atol=error)
    # the distribution itself, of infinitely many members
    normal = xr.zeros_like(truth)
    normal = normal.assign({f"{n}_std": xr.ones_like(truth[n]) for n in ("temperature",)})
    scores = evaluate(normal, truth, variables=["temperature"], by="all").isel(region=0)
    np.testing.assert_allclose(scores["crps"], 1 / np.sqrt(np.pi), atol=error)
    np.testing.assert_allclose(scores["ratio"], 1, rtol=error)


def test_one_member_and_constants():
    truth = world()
    one = truth.drop_vars("land_sea_mask") + 2.0
    for estimate in (one, one.expand_dims(member=1)):
        scores = evaluate(estimate, truth).isel(region=0)
        assert scores.sizes["time"] == 3
        np.testing.assert_allclose(scores["skill"], 2, rtol=1e-6)
        np.testing.assert_allclose(scores["crps"], 2, rtol=1e-6)
        assert np.isnan(scores["spread"]).all()
        assert np.isnan(scores["ratio"]).all()
    same = evaluate(one.expand_dims(member=3), truth, by="all").isel(region=0)
    np.testing.assert_allclose(same["crps"], 2, rtol=1e-6)
    np.testing.assert_allclose(same["spread"], 0, atol=1e-6)
    # one of many that is right in the hour it has: mean error c (M − 1) / M, variance c² / M
    member = xr.DataArray([0.0, 2, 2, 2], dims="member")
    scores = evaluate(truth.drop_vars("land_sea_mask") + member, truth, by="all").isel(region=0)
    np.testing.assert_allclose(scores["skill"], 1.5, rtol=1e-6)
    np.testing.assert_allclose(scores["spread"], 1, rtol=1e-6)
    np.testing.assert_allclose(scores["crps"], 1.5 - 0.5, rtol=1e-6)


def test_regions_share_the_globe():
    r"""An error in one region is that region's; the area-weighted squares make the globe's."""
    truth = world()
    north = xr.DataArray(np.where(GRID.latitude >= 20, 3.0, 0.0), dims="latitude")
    names = ("global", "northern-extratropics", "tropics", "southern-extratropics", "land")
    fields = truth[["temperature"]] + north
    scores = evaluate(fields, truth, regions=names, by="all")["skill"].isel(channel=0)
    np.testing.assert_allclose(scores.values[1:4], [3, 0, 0], atol=1e-6)
    parts = [GRID.area[GRID.latitude >= 20].sum() / GRID.area.sum()]
    assert float(scores[0]) == pytest.approx(3 * np.sqrt(parts[0]), rel=1e-6)
    assert float(scores[4]) == pytest.approx(float(scores[0]), rel=1e-6)  # columns are land
    with pytest.raises(DataError, match="did you mean 'tropics'"):
        evaluate(fields, truth, regions=("tropic",))
    with pytest.raises(DataError, match="no land_sea_mask"):
        evaluate(fields, truth.drop_vars("land_sea_mask"), regions=("land",))


def test_an_hour_at_a_time(monkeypatch):
    r"""Lazily, in blocks of hours and levels: the same scores, and never more than a block."""
    import dask.array

    import appa.data.reduction as reduction
    import appa.evaluation.ensembles as ensembles

    truth, members = world(7), ensemble(4, 7)
    whole = evaluate(members, truth)
    hour = 4 * 2 * 24 * 48 * 4  # bytes of the members of the field with levels
    monkeypatch.setattr(reduction, "BLOCK_BYTES", hour)
    monkeypatch.setattr(ensembles, "MOST", hour // 2)
    sizes = []

    def block(values):
        sizes.append(values.nbytes)
        return values

    parts = members.chunk(time=1, level=1)
    for name in parts.data_vars:
        parts[name] = parts[name].copy(data=dask.array.map_blocks(block, parts[name].data))
    sizes.clear()
    lazy = evaluate(parts, truth.chunk(time=3), workers=1)
    xr.testing.assert_allclose(lazy, whole, rtol=1e-12)
    assert sum(sizes) == members.nbytes - sum(c.nbytes for c in members.coords.values())
    assert max(sizes) <= hour // 2

    # tiles with all hours: rows and columns at a time, each read once
    parts = members.chunk(time=-1, member=1, latitude=8, longitude=16)
    for name in parts.data_vars:
        parts[name] = parts[name].copy(data=dask.array.map_blocks(block, parts[name].data))
    monkeypatch.setattr(ensembles, "MOST", 4 * 7 * 2 * 8 * 16 * 4)
    monkeypatch.setattr(ensembles, "SLAB", 4 * 16 * 3)
    sizes.clear()
    xr.testing.assert_allclose(evaluate(parts, truth, workers=1), whole, rtol=1e-12)
    assert sum(sizes) == members.nbytes - sum(c.nbytes for c in members.coords.values())


def test_hours_levels_and_variables_both_have():
    truth, members = world(), ensemble(2)
    with pytest.warns(UserWarning, match="1 of 3 hours are not scored"):
        scores = evaluate(members, truth.isel(time=slice(1, None)), start="2021-03-20T23")
    np.testing.assert_array_equal(scores["lead_time"], [2, 3])
    with pytest.warns(UserWarning, match=r"not scored at \[500\] hPa"):
        scores = evaluate(members, truth.isel(level=[1]))
    assert scores["channel"].values.tolist() == ["sst", "t850"]
    scores = evaluate(members, truth, variables=["t850", "sst"], by="all")
    assert scores["channel"].values.tolist() == ["t850", "sst"]
    with pytest.raises(DataError, match="did you mean 't850'"):
        evaluate(members, truth, variables=["t851"])
    later = truth.assign_coords(time=truth["time"] + np.timedelta64(99, "D"))
    with pytest.raises(DataError, match=r"T00 to 2021-03-21T02, and the .* no hour in common"):
        evaluate(members, later)
    half = members.assign_coords(time=members["time"] + np.timedelta64(30, "m"))
    with pytest.raises(DataError, match="T00:30 to 2021-03-21T02:30, and the truth, 2021-03-21T00"):
        evaluate(half, truth)
    normal = members.isel(member=0).assign(temperature_std=members["temperature"].std("member"))
    with pytest.raises(DataError, match="not in canonical order"):  # who knows what of it
        evaluate(normal.isel(latitude=slice(None, None, -1)), truth)
    with pytest.raises(DataError, match="regrid"):
        evaluate(members.isel(longitude=slice(None, None, 2)), truth)


def test_other_orders_units_and_names():
    r"""South first, from the date line, in °C, with other names: the same scores."""
    truth, members = world(), ensemble(2)
    other = members.isel(latitude=slice(None, None, -1), level=[1, 0]).roll(longitude=24)
    east = (np.roll(GRID.longitude, 24) + 180) % 360 - 180
    other = other.assign_coords(longitude=east).rename(member="number", latitude="lat")
    other["temperature"] = (other["temperature"] - 273.15).assign_attrs(units="°C")
    found = evaluate(other, truth, by="all")
    xr.testing.assert_allclose(found, evaluate(members, truth, by="all"), rtol=1e-4)


def test_hemispheres():
    r"""Of a grid with a row on the equator, which is off by 1: each has half of it."""
    grid = Grid("equiangular", 5, 8)
    truth = xr.Dataset(
        {"2m_temperature": (("time", "latitude", "longitude"), np.zeros((1, 5, 8), "f4"))},
        {"time": [np.datetime64("2021-01-01", "ns")]}
        | {"latitude": grid.latitude, "longitude": grid.longitude},
    )
    row = xr.DataArray([0.0, 0, 1, 2, 0], dims="latitude")
    names = ("northern-hemisphere", "southern-hemisphere")
    square = evaluate(truth + row, truth, regions=names, by="all")["skill"].values[:, 0] ** 2
    equator = np.sin(np.deg2rad(22.5))  # of a hemisphere's area
    middle = np.sin(np.deg2rad(67.5)) - equator
    np.testing.assert_allclose(square, [equator, equator + 4 * middle], rtol=1e-6)


def test_standardized():
    truth = world()
    stats = xr.Dataset(
        {
            "sea_surface_temperature": ("statistic", [0.0, 4.0]),
            "temperature": (("statistic", "level"), [[0.0, 0.0], [2.0, 0.5]]),
        },
        {"statistic": ["mean", "std"], "level": [500, 850]},
    )
    scores = evaluate(ensemble(3), truth, statistics=stats, by="all").isel(region=0)
    for name in ("skill", "spread", "crps"):
        ratio = scores[name] / scores[f"{name}_standardized"]
        np.testing.assert_allclose(ratio, [4, 2, 0.5], rtol=1e-12)


# ---------------------------------------------------------------- comparisons


def runs(days: int, seed: int, gap: float = 0.0, pairs: int = 1) -> list[xr.Dataset]:
    r"""Squared errors of two runs on every third day: days that are hard for both, slow changes of
    each, a gap; and as many independent pairs of these, as channels."""
    rng = np.random.default_rng(seed)
    hard = np.repeat(rng.gamma(4, size=(days, pairs)), 24, axis=0)
    first = pd.date_range("2021-01-01", periods=days, freq="3D")
    time = first.repeat(24) + pd.to_timedelta(np.tile(np.arange(24), days), "h")
    names = [f"t{k}" for k in range(pairs)]
    dims, found = ("region", "time", "channel"), []
    for k in range(2):
        own = np.repeat(rng.normal(0, 0.3, (days, pairs)), 24, axis=0)
        own += rng.normal(0, 0.1, own.shape)
        square = (hard + 10 + own + k * gap)[None]
        data = {name: (dims, square) for name in ("squared_error", "variance", "crps")}
        data |= {name: (dims, np.ones_like(square)) for name in ("weight", "share")}
        coords = {"region": ["global"], "time": time, "channel": names}
        for name, value in (("variable", "t2m"), ("level", np.nan), ("units", "K")):
            coords[name] = ("channel", [value] * pairs)
        found.append(xr.Dataset(data, coords, {"members": 4}))
    return found


def test_intervals_hold_what_they_say():
    r"""The true difference is 0 in each of 400 pairs of ten days: 95 % of intervals hold it, to
    three deviations of a binomial share. Intervals of hours as if independent do not."""
    a, b = runs(10, 0, pairs=400)
    found = compare(a, b, resamples=500)
    share = float(found["crps_real"].mean())
    assert share == pytest.approx(0.05, abs=3 * np.sqrt(0.05 * 0.95 / 400))
    assert by_chance(found, ["crps"]) == "20"
    assert by_chance(found.isel(channel=slice(3))) == "0.3"  # of skill and CRPS
    assert by_chance(compare(*(run.isel(time=slice(120)) for run in (a, b)), resamples=10)) == "0"
    assert by_chance(compare(a, a, resamples=10)) == "0"
    time = pd.date_range("2021-01-01", periods=240, freq="2D")  # every hour a block
    hours = [run.assign_coords(time=time) for run in (a, b)]
    assert float(compare(*hours, resamples=500)["crps_real"].mean()) > 0.3


def test_a_difference_is_found_because_it_is_paired():
    r"""A gap of 2 among days that differ by 2: unpaired it would be 1.2 deviations of the mean."""
    found = compare(*runs(10, 1, gap=2.0)).isel(region=0, channel=0)
    assert found["crps_real"]
    assert found["crps_low"] < found["crps_difference"] < found["crps_high"]
    assert float(found["crps_difference"]) == pytest.approx(2, abs=5 * 0.3 * np.sqrt(2 / 10))
    skill = found["skill_b"] - found["skill_a"]
    assert float(found["skill_difference"]) == pytest.approx(float(skill), rel=1e-12)
    same = compare(runs(10, 1)[0], runs(10, 1)[0]).isel(region=0, channel=0)
    assert not same["crps_real"]
    few = compare(*runs(5, 1, gap=2.0)).isel(region=0, channel=0)
    assert few["crps_low"] > 0
    assert not few["crps_real"]
    assert np.isnan(compare(*runs(1, 1))["crps_low"]).all()


def test_relative_differences_have_intervals_of_their_own():
    r"""A run that is a tenth worse on every day is a tenth worse, whichever days are drawn; its
    difference is not the same for all. Of errors of 0 there is no share."""
    a = runs(10, 1)[0]
    found = compare(a, a.assign(crps=1.1 * a["crps"])).isel(region=0, channel=0)
    for end in ("", "_low", "_high"):
        assert float(found[f"crps_relative{end}"]) == pytest.approx(0.1, rel=1e-9)
    low, high = (float(found[f"crps_{end}"] / found["crps_a"]) for end in ("low", "high"))
    assert low < 0.097 < 0.103 < high
    # of roots, and of two runs that differ by chance, as b / a − 1 is of all hours
    found = compare(*runs(10, 1)).isel(region=0, channel=0)
    for name in ("skill", "crps"):
        share = float(found[f"{name}_b"] / found[f"{name}_a"] - 1)
        assert float(found[f"{name}_relative"]) == pytest.approx(share, rel=1e-9)
        assert found[f"{name}_relative_low"] < share < found[f"{name}_relative_high"]
    none = compare(a.assign(crps=0 * a["crps"]), a)
    assert np.isnan(none[["crps_relative", "crps_relative_low"]].to_array()).all()
    assert np.isfinite(none["crps_low"]).all()
