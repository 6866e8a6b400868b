r"""Tables of the results page, of scores whose differences are known."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from appa.data.netcdf import save
from appa.evaluation.comparison import compare

from ..evaluation.worlds import stretches

pytest.importorskip("ducc0")


def test_changes_across_joints_are_ratios_of_roots(tools):
    r"""Members whose changes across joints are of 6 times the mean square of others', where the
    truth's are of 1.5, jump twice as fast; 8 and 2 are of another date, and as much."""
    dims = ("source", "channel")
    coords = {"source": ["truth", "members"], "channel": ["t2m"], "lag": [1], "order": [1, 2]}
    coords["period"] = ("frequency", [12.0, 4.0])

    def date(jump: tuple[float, float]) -> xr.Dataset:
        data = {
            "tendency_std": ((*dims, "lag"), [[[2.0]], [[3.0]]]),
            "spectrum": ((*dims, "frequency"), [[[1.0, 2.0]], [[1.0, 8.0]]]),
            "jump": ((*dims, "order"), [[[j, np.nan]] for j in jump]),
        }
        return xr.Dataset(data, coords)

    parts = {"changes-72": {0: date((1.5, 6.0)), 1: date((2.0, 8.0))}}
    results = SimpleNamespace(windows=[72], channels=["t2m", "z500"], parts=parts)
    _, _, *rows = tools("results_structure").changes(results).splitlines()
    assert rows == [
        "| 72 h: change over 1 h | 1.50 ± 0.00 | 2 |",
        "| 72 h: energy of periods to 6 h | 4.00 ± 0.00 | 2 |",
        "| 72 h: across joints over other hours | 2.00 ± 0.00 | 2 |",
    ]
    # of dates that differ, 5 and 3.5 over 1 and 1: √4.25, and by the jackknife of roots
    uneven = {0: date((1.0, 5.0)), 1: date((1.0, 3.5))}
    error = np.sqrt((2 - 1) * np.var([np.sqrt(3.5), np.sqrt(5.0)]))
    results.parts = {"changes-72": uneven}
    row = tools("results_structure").changes(results).splitlines()[-1]
    assert (
        row == f"| 72 h: across joints over other hours | {np.sqrt(4.25):.2f} ± {error:.2f} | 2 |"
    )


def test_against_a_converged_setting(tools):
    r"""Of eight dates a setting that is 1 % worse is no worse by 2 %, one that is 5 % worse is."""
    rng, dims = np.random.default_rng(0), ("region", "time", "channel")
    hard = rng.uniform(0.9, 1.1, 8)
    time = pd.date_range("2021-01-01", periods=8, freq="30D")
    about = {"variable": "all", "level": np.nan, "units": "1"}
    coords = {"region": ["global"], "time": time, "channel": ["all"]}
    coords |= {name: ("channel", [value]) for name, value in about.items()}

    def run(factor: float) -> xr.Dataset:
        crps = (factor * hard * rng.uniform(0.999, 1.001, 8))[None, :, None]
        data = {name: (dims, crps**2) for name in ("squared_error", "variance")}
        data |= {"crps": (dims, crps)}
        data |= {name: (dims, np.ones_like(crps)) for name in ("weight", "share")}
        return xr.Dataset(data, coords, {"members": 4, "denoiser": 100 * factor})

    runs = {"reanalysis-24": run(1.05), "v-default": run(1.01), "v-converged": run(1.0)}
    results = SimpleNamespace(
        main="reanalysis-24",
        first=24,
        shown=["all"],
        parts={name: {0: ds} for name, ds in runs.items()},
        about={"variations": [[f"v-{n}", n, "setting", 24] for n in ("default", "converged")]},
        runs=runs.__getitem__,
    )
    _, _, *rows = tools("results_own").converged(results).splitlines()
    ratio = np.sqrt(5 / 4)
    assert re.fullmatch(r"\| as it is set: CRPS \| \*\*5\.0 % .*\*\* worse \| 105 \| 8 \|", rows[0])
    assert re.fullmatch(r"\| default: CRPS \| \*\*1\.0 % .*\*\* no worse \| 101 \| 8 \|", rows[2])
    assert rows[3].startswith(f"| default: spread / skill | {ratio:.2f} |")
    assert rows[4] == f"| converged: spread / skill | {ratio:.2f} | 100 | 8 |"
    assert len(rows) == 5


def test_budget_table(tools, tmp_path):
    r"""What is real is in bold, in percent of the reference's; of the decoder, skill is told."""
    rows = [("reference", "skill", 2.0, None, None), ("reference", "crps", 1.0, None, None)]
    rows += [("decoder", "skill", 1.5, -0.25, True), ("decoder", "crps", 1.2, 0.2, True)]
    rows += [("bias", "skill", 3.0, 0.5, True), ("bias", "crps", 1.03, 0.03, False)]
    names = ["variation", "score", "value", "relative", "real"]
    found = pd.DataFrame(rows, columns=names).assign(region="global", channel="t2m")
    found.to_csv(tmp_path / "budget.csv", index=False)
    told = tools("results_budget").budget(tmp_path / "budget.csv").splitlines()
    assert told[0] == "| CRPS | t2m |"
    assert told[2:] == [
        "| the reference: skill | 2 |",
        "| the reference: CRPS | 1 |",
        "| the truth, encoded and decoded: skill | **−25.0 %** |",
        "| observations biased by their error | 3.0 % |",
    ]


def test_a_share_has_an_interval_of_its_own(tools):
    r"""A fifth better of every date is a fifth, of easy dates and of hard ones."""
    change, dims = tools("results_cells").change, ("region", "init_time", "lead_time", "channel")
    crps = xr.DataArray(np.arange(1.0, 9).reshape(1, 8, 1, 1), dims=dims)
    data = {name: crps for name in ("squared_error", "variance", "crps")}
    data |= {name: xr.ones_like(crps) for name in ("weight", "share")}
    coords = {"region": ["global"], "channel": ["t2m"], "lead_time": [6.0]}
    coords["init_time"] = stretches(8, 1, "2004-01-03").ravel().astype("datetime64[ns]")
    for name, value in (("variable", "2m_temperature"), ("level", np.nan), ("units", "K")):
        coords[name] = ("channel", [value])
    a = xr.Dataset(data, coords, {"members": 2})
    found = compare(a, a.assign(crps=0.8 * a["crps"])).isel(lead_time=0)
    assert found["crps_high"] - found["crps_low"] > 0.1 * found["crps_a"]
    assert change(found, "t2m") == "**−20.0 % (−20.0 to −20.0)**"


def test_variations_that_are_no_worse(tools):
    r"""A tenth better and a tenth worse of each date are told; of five dates nothing is, nor of a
    variation whose other dates diverged."""
    about = {"variations": [[name, name, "steps", 8] for name in ("less", "more", "few", "lost")]}
    known = [("reanalysis-8", 1.0, 8), ("less", 0.9, 8), ("more", 1.1, 8), ("few", 0.9, 5),
             ("lost", 0.9, 7)]  # fmt: skip
    runs, cost = {}, {"denoiser": 1, "decoder": 1, "seconds": 1.0, "processes": 1, "members": 2}
    for name, factor, dates in known:
        crps = xr.DataArray(np.arange(1.0, 9)[None, :, None], dims=("region", "time", "channel"))
        data = {key: factor * crps for key in ("squared_error", "variance", "crps")}
        data |= {key: xr.ones_like(crps) for key in ("weight", "share")}
        coords = {"region": ["global"], "channel": ["t2m"]}
        coords["time"] = stretches(8, 1, "2004-01-03").ravel().astype("datetime64[ns]")
        for key, value in (("variable", "2m_temperature"), ("level", np.nan), ("units", "K")):
            coords[key] = ("channel", [value])
        runs[name] = xr.Dataset(data, coords, cost).isel(time=slice(dates))
    parts = {name: {0: run} for name, run in runs.items()}
    results = SimpleNamespace(main="reanalysis-8", first=8, about=about, parts=parts, of=parts.get)
    results.diverged, results.shown, results.runs = {"lost": 1}, ["t2m"], runs.get
    head, _, *rows = tools("results_page").variations(results).splitlines()
    column = head.split(" | ").index("no worse than as set by 2 %")
    assert [row.split(" | ")[column] for row in rows] == ["", "no worse", "worse", "·", "·"]


def test_the_filter_by_the_hours_it_has_seen(tools, tmp_path):
    r"""A filter that is a fifth better with each hour of three, of eight dates: that is told of the
    second and the third."""
    page, scores, plan = (tools(f"results_{name}") for name in ("page", "scores", "plan"))
    dates = stretches(8, 1, "2004-01-03").ravel().astype("datetime64[h]")
    about = {"first": 3, "windows": [3], "letkf": {"hours": 3}}
    (tmp_path / "about.json").write_text(json.dumps(about))
    coords = {"region": ["global"], "channel": ["t2m"]}
    for key, value in (("variable", "2m_temperature"), ("level", np.nan), ("units", "K")):
        coords[key] = ("channel", [value])
    for k, now in enumerate(dates):
        crps = (1 + 0.1 * k) * 0.8 ** np.arange(3.0)
        times = (now + np.arange(-2, 1)).astype("datetime64[ns]")
        data = {key: (("region", "time", "channel"), value * np.ones((1, 3, 1)))
                for key, value in (("crps", crps[None, :, None]), ("squared_error", 1.0),
                                   ("variance", 1.0), ("weight", 1.0), ("share", 1.0))}  # fmt: skip
        ds = xr.Dataset(data, coords | {"time": times}, {"members": 4})
        for name in ("letkf-cycled", "reanalysis-3"):
            save(ds, tmp_path / "parts" / str(now) / f"{name}.nc", plan.KIND)
    values, gains = page.cycled(scores.Results(tmp_path)).split("\n\n")
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in values.splitlines()[2:]]
    assert rows == [["1 h", "1.35", "8"], ["2 h", "1.08", "8"], ["3 h", "0.864", "8"]]
    for row, words in zip(gains.splitlines()[2:], ("1 → 2 h", "2 → 3 h"), strict=True):
        assert row.startswith(f"| {words} | **−20.0 % (−20.0 to −20.0)** |"), row
