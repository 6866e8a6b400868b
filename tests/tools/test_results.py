r"""The results page's driver: the same answers as the tasks give, whenever it is interrupted."""

from __future__ import annotations

import importlib
import json
import re
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import appa
from appa.data import climatology as climatologies
from appa.data.netcdf import load, save
from appa.errors import DataError, StoreError
from appa.evaluation.anomalies import estimate
from appa.evaluation.covariances import KIND as COVARIANCE
from appa.evaluation.ensembles import averages
from appa.evaluation.interpolation import Settings
from appa.observations.networks import named_network
from appa.sections import Sampling
from appa.tasks.simulated import synthesize

from ..evaluation.worlds import (
    GRID,
    SPREAD,
    climatology,
    dataset,
    memory,
    season,
    stretches,
    untrained,
)
from .conftest import TOOLS

pytest.importorskip("ducc0")
pytestmark = pytest.mark.filterwarnings("ignore:.*does not know what its decoder:UserWarning")

STEPS, ITERATIONS, MEMBERS, STATIONS = 2, 3, 4, 6
OPTIONS = [
    *("--dates", "2", "--members", str(MEMBERS), "--stations", str(STATIONS)),
    *("--set", f"steps={STEPS}", "--set", f"iterations={ITERATIONS}", "--set", "tolerance=0.0"),
    *("--windows", "8,2", "--source", "8", "--leads", "1,3,6", "--device", "cpu"),
    *("--variations", "sda,stations-by-4", "--each", "2", "--interpolated", "2"),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    r"""A model with random weights, a truth in three stretches, and its climatology."""
    folder = tmp_path_factory.mktemp("results")
    untrained().save(folder / "model")
    times = stretches(3, 16, "2004-02-01")
    x = SPREAD * memory(3, 16, 0.9, 0) + season(times)[..., None, None, None]
    ds = dataset(x.reshape(-1, 4, *GRID.shape), times.ravel())
    ds["land_sea_mask"] = (("latitude", "longitude"), np.zeros(GRID.shape, np.float32))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Consolidated metadata")
        ds.to_zarr(folder / "store.zarr")
    climatologies.save(climatology(), folder / "climatology.nc")
    times = stretches(8, 24, "2001-02-01")
    x = SPREAD * memory(8, 24, 0.9, 1) + season(times)[..., None, None, None]
    past = dataset(x.reshape(-1, 4, *GRID.shape), times.ravel())
    options = {"modes": 2, "waves": 2, "lags": 3, "seasons": 0, "every": 6}
    estimate(past, climatology(), **options).save(folder / "covariance.nc")
    return folder


def arguments(world: Path, out: Path) -> list[str]:
    where = [str(world / "model"), str(world / "store.zarr"), "--out", str(out)]
    for name in ("climatology", "covariance"):
        where += [f"--{name}", str(world / f"{name}.nc")]
    return [*where, *OPTIONS]


@pytest.fixture
def run(world, tools):
    def call(out: Path, *more: str) -> None:
        tools("results").main([*arguments(world, out), *more])

    return call


@pytest.fixture(scope="module")
def whole(world, tmp_path_factory):
    r"""All of it, in one go."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS))
        out = tmp_path_factory.mktemp("whole") / "out"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            importlib.import_module("results").main(arguments(world, out))
    return out


def products(out: Path) -> dict[str, Path]:
    return {str(p.relative_to(out)): p for p in sorted(out.glob("parts/*/*.nc"))}


def test_interrupted_and_moved(run, whole, tools, tmp_path, monkeypatch):
    r"""A run that is interrupted, packed and goes on elsewhere ends with the same files."""
    results, told = tools("results"), []

    def tell(line: str) -> None:
        told.append(line)
        if len(told) == 2:
            raise KeyboardInterrupt

    few = ("--only", "reanalysis-2,baselines,prior,v-sda")
    with monkeypatch.context() as patch:
        patch.setattr(results, "tell", tell)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "a", *few)
    volumes = tools("results_files").pack(tmp_path / "a", tmp_path / "packed", 10_000)
    begun = products(tmp_path / "a")
    assert len(begun) == 5  # of two jobs
    assert len(volumes) > 1
    assert all(path.stat().st_size < 10_000 for path in volumes)
    with monkeypatch.context() as patch:
        patch.setattr(results, "tell", told.append)
        run(tmp_path / "b", *few, "--resume", *map(str, volumes))
    # what is there is not done again; the second date has no variations
    jobs = [re.sub(r":.*", "", line) for line in told]
    assert len(set(jobs)) == len(jobs) == 4 + 3

    expected, found = products(whole), products(tmp_path / "b")
    assert len(found) == 7 + 6
    kind = tools("results_plan").KIND
    for name, path in found.items():
        one, other = (load(p, kind) for p in (path, expected[name]))
        xr.testing.assert_equal(one, other)
        for ds in (one, other):
            ds.attrs.pop("seconds", None)
        assert one.attrs == other.attrs

    with pytest.raises(StoreError, match="members"):
        run(tmp_path / "b", "--members", "5")


def test_as_the_tasks_draw(world, whole, tools):
    r"""Means are those of the public tasks' ensembles, and passes those of the formulas."""
    kind = tools("results_plan").KIND
    model, store = appa.load(str(world / "model")), appa.open_store(str(world / "store.zarr"))
    now = np.datetime64(json.loads((whole / "about.json").read_text())["dates"][0], "ns")
    hour = np.timedelta64(1, "h")
    truth = store.sel(time=slice(now - 7 * hour, now))
    seen = synthesize(model, truth, named_network(GRID, stations=STATIONS), 0)
    options = {"members": MEMBERS, "steps": STEPS, "iterations": ITERATIONS, "tolerance": 0.0}
    analysis = model.reanalysis(seen, now - 7 * hour, 8, **options)
    forecast = model.forecast(analysis, 6, **options)
    full = model.forecast(truth, 6, **options)
    folder = whole / "parts" / str(now.astype("datetime64[h]"))
    for product, ensemble in (
        ("reanalysis-8", analysis),
        ("forecast", forecast.sel(time=now + hour * np.array([1, 3, 6]))),
        ("forecast-full", full.sel(time=now + hour * np.array([1, 3, 6]))),
    ):
        found = load(folder / f"{product}.nc", kind)
        expected = averages(ensemble.drop_vars("latents"), store)
        for name in ("squared_error", "variance", "crps"):
            # files are in single precision
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, err_msg=product)

    cost, short = (load(folder / f"reanalysis-{h}.nc", kind).attrs for h in (8, 2))
    for found, hours in ((cost, 8), (short, 2)):
        # the first of the two levels, 1000 and 0.001, has few iterations
        products = min(Sampling().early, ITERATIONS) + ITERATIONS
        assert found["denoiser"] == products + STEPS
        assert found["decoder"] == hours * (2 * products + STEPS)
        assert found["products"] == products
    sda = load(folder / "v-sda.nc", kind).attrs
    assert (sda["denoiser"], sda["products"]) == (STEPS * 2, 0)


def test_page(whole, tools, tmp_path, capsys):
    r"""Tables quote what was scored, words by hand stay, and every figure can be drawn."""
    pytest.importorskip("matplotlib")
    page = tools("results_page")
    page.main([str(whole), "--out", str(tmp_path), "--figures", "spectra"])
    assert "assimilation-spectra.png" in capsys.readouterr().out
    text = (tmp_path / "assimilation.md").read_text()
    kind = tools("results_plan").KIND
    last = [load(p, kind).isel(time=-1, region=0) for p in whole.glob("parts/*/reanalysis-2.nc")]
    error = np.mean([float(ds["squared_error"].sel(channel="t2m")) for ds in last])
    table = text.split("filter, the last hour: skill")[1]
    told = re.search(r"\| 2 h \| [^|]* \| ([\d.]+) \(", table)
    assert told is not None
    assert float(told[1]) == pytest.approx(np.sqrt(error), abs=0.06)
    assert "| filter, CRPS | " in text.split("against optimal interpolation")[1]
    assert re.search(r"residual of [\d.e-]+ at most, in \d+ iterations", text)
    assert "192 hours of 2001-02-01" in text
    assert "as they are by default, not tuned" in text

    # the control of windows, with the dates that each row is of
    control = text.split("CRPS of the filter")[1]
    assert re.search(r"\| interpolation, 2 → 8 h \| .* \| 2 \|\n", control)
    assert re.search(r"\| interpolation, 8 h \| .* \| 2 \|\n", table)

    # a forecast against persistence of the truth, whose CRPS is the absolute error
    ahead = {
        name: np.mean([
            float(load(p, kind).isel(region=0, time=-1)["crps"].sel(channel="t2m"))
            for p in whole.glob(f"parts/*/{name}.nc")
        ])
        for name in ("forecast", "persistence-truth")
    }  # fmt: skip
    told = re.search(r"\| persistence of the truth, t2m \|(?: [^|]* \|)*? [*]*([−\d.]+) %[^|]*\|\n",
                     text.split("CRPS of the forecast against")[1])  # fmt: skip
    assert told is not None
    expected = 100 * (ahead["forecast"] / ahead["persistence-truth"] - 1)
    assert float(told[1].replace("−", "-")) == pytest.approx(expected, abs=0.06)

    # changes over an hour of members over the truth's, dates pooled
    parts = [load(p, kind)["tendency_std"] for p in whole.glob("parts/*/changes-8.nc")]
    at = [part.sel(channel="t2m", lag=1) ** 2 for part in parts]
    ratio = np.sqrt(sum(float(p.sel(source="members")) for p in at)
                    / sum(float(p.sel(source="truth")) for p in at))  # fmt: skip
    told = re.search(r"\| 8 h: change over 1 h \| ([\d.]+) ± ", text)
    assert told is not None
    assert float(told[1]) == pytest.approx(ratio, abs=0.006)

    # energy of members over the truth's, all wavelengths of this world being large
    parts = [load(p, kind)["spectrum"] for p in whole.glob("parts/*/spectra-8.nc")]
    joined = xr.concat(parts, "state").sel(channel="t2m").quantile(0.5, "state")
    long = joined.isel(wavenumber=np.flatnonzero((joined["wavelength"] >= 1e4)
                                                 & (joined["wavenumber"] > 0)))  # fmt: skip
    ratio = long.sel(source="members").sum() / long.sel(source="truth").sum()
    told = re.search(r"\| members, over 10,000 km \| ([\d.]+) \|", text)
    assert told is not None
    assert float(told[1]) == pytest.approx(float(ratio), abs=0.006)
    assert "| sda | guidance |" in text
    assert "| stations ÷ 4 | network |" in text

    results = tools("results_scores").Results(whole)
    drawn = {name: draw() for name, draw in tools("results_figures").figures(results).items()}
    shown = set(re.findall(r"\(figures/assimilation-(.*?)\.png\)", text))
    assert set(drawn) == shown - {"balances"}  # of which this world has not the variables
    assert all(figure.axes for figure in drawn.values())

    changed = text.replace("## Forecasts", "## Forecasts, by hand")
    assert page.fill(changed, results) == changed

    # of another folder, whose dates may be others, what is asked for alone
    old = re.sub(r"(<!-- begin (?:windows|interpolation) -->\n).*?(?=<!-- end)", r"\1old\n", text,
                 flags=re.DOTALL)  # fmt: skip
    assert old.count("old\n<!-- end") == 2
    some = page.fill(old, results, names=["controls", "interpolation"])
    assert some.count("old\n<!-- end") == 1
    assert "| filter, CRPS | " in some
    assert "192 hours of 2001-02-01" in some.split("<!-- begin controls -->")[1]
    with pytest.raises(SystemExit, match=r"windws.*did you mean 'windows'"):
        page.main([str(whole), "--out", str(tmp_path), "--tables", "windws"])

    # the same dates at another setting: here at the same
    both = page.fill(changed, results, page.read([whole], results))
    assert re.search(r"\| filter, 8 h: CRPS \| 0\.0 % \(0\.0 to 0\.0\) \|", both)
    assert "They have not been drawn." in both


def test_what_the_page_says_of_sweeps_runs(monkeypatch):
    r"""As it stands, but for the draws, which take minutes: two days of observations of five hours,
    without sweeps and with four."""
    page = (TOOLS.parent / "docs" / "results" / "assimilation.md").read_text()
    (lines,) = re.findall(r"\n((?:    .*\n)*    .*sweeps=n.*\n)", page)
    calls = []

    def drawn(model, observations, start, hours, **options):
        calls.append((observations, start, hours, options))

    monkeypatch.setattr("appa.tasks.assimilation.reanalysis", drawn)
    exec(compile(textwrap.dedent(lines), "assimilation.md", "exec"), {})
    assert [options["settings"].sweeps for *_, options in calls] == [0, 4]
    for (table, swath), start, hours, options in calls:
        assert (hours, options["members"], options["settings"].steps) == (48, 2, 12)
        seen = [0, 12, 24, 36, 47]
        times = np.datetime64(start, "h") + np.array(seen)
        np.testing.assert_array_equal(np.unique(table["time"]).astype("datetime64[h]"), times)
        np.testing.assert_array_equal(swath["time"].values.astype("datetime64[h]"), times)


def test_what_is_scored_was_not_tuned_on(run, world, tmp_path):
    r"""Neither are dates scored that settings were tuned on, nor those of the covariance."""
    settings = Settings(tuned=(("2004-01-01T00", "2004-12-31T23"),))
    tuned = str(settings.save(tmp_path / "tuned.json"))
    with pytest.raises(DataError, match="tuned on 2004-01-01T00"):
        run(tmp_path / "a", "--tuned", tuned)
    estimated = load(world / "covariance.nc", COVARIANCE).assign_attrs(last_time="2010-01-01T00")
    save(estimated, tmp_path / "covariance.nc", COVARIANCE)
    with pytest.raises(DataError, match="the covariance was estimated from"):
        run(tmp_path / "a", "--covariance", str(tmp_path / "covariance.nc"))
    assert not (tmp_path / "a").exists()


def test_dates(tools):
    r"""Dates share no hour or trajectory, lie in the split, and more of them begin alike."""
    results, hour = tools("results"), np.timedelta64(1, "h")
    times = stretches(6, 40, "2004-01-03").ravel()
    # the third stretch is of two trajectories
    trajectory = np.repeat(np.arange(6), 40) + 10 * (np.arange(240) // 20 == 5)
    store = xr.Dataset(coords={"time": times.astype("datetime64[ns]")})
    store = store.assign_coords(trajectory=("time", trajectory))
    chosen = results.choose_dates(store, 10, 6, 8, "2004-01-04", "2004-12-31")
    assert chosen[:3] == results.choose_dates(store, 10, 6, 3, "2004-01-04", "2004-12-31")
    spans = np.stack([now + hour * np.arange(-9, 7) for now in chosen])
    assert len(np.unique(spans)) == spans.size
    assert np.isin(spans, store["time"].values).all()
    for span in spans:
        assert len(np.unique(store["trajectory"].sel(time=span))) == 1
    assert (spans >= np.datetime64("2004-01-04")).all()
    assert len(np.unique(np.asarray(chosen).astype("datetime64[h]").astype(int) % 24)) > 4
    with pytest.raises(DataError, match="the store has 12 dates"):
        results.choose_dates(store, 10, 6, 13, "2004-01-01", "2004-12-31")


def test_the_filter_has_all_hours_and_the_members_of_one_year(
    run, world, tools, tmp_path, monkeypatch
):
    r"""Members 1, 2 and 6 off the truth are off by 3 on average, with a variance of 7; hours ago
    they were as many times as far off."""
    cases, calls = tools("results_cases"), []
    truth = appa.open_store(world / "store.zarr")
    (tmp_path / "letkf.json").write_text(json.dumps({"members": 3, "length": 700.0}))

    class Compiled:
        circulation = "circulation"

        def __init__(self, settings):
            self.settings = settings

    def year(circulation, path, count, **options):
        calls.append(("year", circulation, path, count, options))

    def cycle(seen, start, hours, out, *, seed, trajectories, weather, cycling):
        assert cycling.settings.length == 700
        times = start + np.timedelta64(1, "h") * np.arange(hours)
        np.testing.assert_array_equal(seen.hours, times)
        calls.append(("cycle", start, hours, trajectories, weather))
        there = truth.sel(time=times).drop_vars("land_sea_mask")
        ago = xr.DataArray(np.arange(hours, 0.0, -1), {"time": there["time"]})
        off = xr.DataArray([1.0, 2.0, 6.0], dims="member") * ago
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Consolidated metadata")
            (there + off).transpose("member", "time", ...).to_zarr(out)
        return out

    for name, value in (("Cycling", Compiled), ("year_of_weather", year), ("cycle", cycle)):
        monkeypatch.setattr(cases, name, value)
    out = tmp_path / "out"
    more = ("--letkf", str(tmp_path / "letkf.json"), "--cycled", "8", "--rarely", "1")
    run(out, *more, "--only", "letkf")
    # the year is there before the first date, and of the same simulations at all
    assert [call[0] for call in calls][:2] == ["year", "year"]
    assert {str(call) for call in calls if call[0] == "year"} == {str(calls[0])}
    assert calls[0][1:4] == ("circulation", out / "weather.npz", 3)
    cycled = [call for call in calls if call[0] == "cycle"]
    assert len({call[1] for call in cycled}) == 2
    assert {call[2:] for call in cycled} == {(8, cases.TRAJECTORIES, out / "weather.npz")}
    found = products(out)
    assert len(found) == 4
    for path in found.values():
        ds = load(path, tools("results_plan").KIND)
        # after 1, 2, 4 and 8 hours of eight
        ago = xr.DataArray([1.0] if path.stem == "letkf" else [8.0, 7, 5, 1], dims="time")
        for key, value in (("squared_error", 9), ("variance", 7)):
            np.testing.assert_allclose(*xr.broadcast(ds[key], value * ago**2), rtol=1e-3)
    calls.clear()
    run(out, *more, "--only", "letkf")
    assert not calls  # all is there
