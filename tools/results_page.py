r"""Makes the tables and figures of `docs/results/assimilation.md` from what `results.py` scored.

    python tools/results_page.py work/results
    python tools/results_page.py packed/results-*.zip --own own/results-*.zip
    python tools/results_page.py work/controls --tables controls,interpolation,letkf --figures none

Every number in a table of that page comes from here. A table stands between the comments
`begin NAME` and `end NAME`; the words around them are the page's own, and stay. A page that is not
there yet begins as `tools/results_page.md`. With `--tables`, those are made alone: of other dates
than the rest of the page, which the table *controls* tells.

The channel *all* is the mean over channels of squared errors, variances and CRPS, each in units of
the climatology's of the same dates, the prescribed sea surface temperature left out: 1 is what one
knows without observations.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from pages import filled, number, table
from results_budget import budget
from results_cells import MARGIN, SCORES, change, digits_of, heads, span, verdict
from results_figures import SYSTEMS, calibrated, figures
from results_files import unpack
from results_own import converged, settings, stages
from results_scores import ALL, Results, concat
from results_structure import balanced, changes, energies

from appa.errors import nearest
from appa.evaluation.comparison import compare
from appa.evaluation.dates import over_dates
from appa.evaluation.scores import metrics, pool
from appa.plots.curves import look_of
from appa.plots.saving import save

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
TEMPLATE = Path(__file__).with_suffix(".md")
FORECAST = ("t2m", "z500")  # channels of the table of forecasts
TOLD = (6, 24, 48, 72)  # lead times of tables


# ---------------------------------------------------------------- tables


def about(results: Results) -> str:
    told = results.about
    found = sorted(results.parts[results.main])
    years = sorted({int(str(now.astype("datetime64[Y]"))) for now in found})
    rows = [
        ["model", f"{Path(told['model']).name} (appa {told['version']})"],
        ["dates", f"{len(found)}, of {len(years)} held-out members ({years[0]}–{years[-1]})"],
        ["members of an ensemble", str(told["members"])],
        ["stations, satellites", f"{told['stations']}, {told['satellites']}"],
        ["device", f"{told['device']}, {told['processes']} processes at a time"],
    ]
    keys = ("sampler", "steps", "guidance", "solver", "iterations", "tolerance", "representation")
    keys += ("understated",)
    rows.append(["settings", ", ".join(f"{k} {told['settings'][k]}" for k in keys)])
    rows.append(["hours the model sees at once", str(told["window"])])
    if oi := told.get("interpolation"):
        rows.append(["interpolation's covariance", _estimated(oi)])
        rows.append(["interpolation's settings", _tuned(oi["settings"])])
    return table(("what", "which"), rows)


def _estimated(oi: dict[str, Any]) -> str:
    when = f"{oi['first_time']} to {oi['last_time']}" if "first_time" in oi else "unknown times"
    return f"{oi.get('hours', '?')} hours of {when}"


def _tuned(settings: dict[str, Any]) -> str:
    told = ", ".join(f"{k} {v}" for k, v in settings.items() if k != "tuned" and v is not None)
    on = ", ".join(f"{a} to {b}" for a, b in settings["tuned"])
    return f"{told}; " + (f"tuned on {on}" if on else "as they are by default, not tuned")


def windows(results: Results) -> str:
    parts = []
    for words, last in (("reanalysis, all hours", False), ("filter, the last hour", True)):
        scores, others = results.by_window(last).isel(region=0), None
        if f"interpolation-{results.first}" in results.parts:
            others = results.by_window(last, "interpolation").isel(region=0)
        for score in ("skill", "crps", "ratio"):
            rows = []
            for name, by in {"": scores, "interpolation, ": others}.items():
                for hours in by["lead_time"].values if by is not None else ():
                    at = by.sel(lead_time=hours)
                    cells = [span(at.sel(channel=c), score) for c in results.shown]
                    rows.append([f"{name}{hours:.0f} h", *cells, str(by.attrs["dates"])])
            header = [f"{words}: {SCORES[score]}", *heads(results, results.shown, score), "dates"]
            parts.append(table(header, rows))
    return "\n".join(parts)


def saturation(results: Results) -> str:
    r"""What the next longer window changes, of the same last hour."""
    rows = []
    for kind, words in (("reanalysis", ""), ("interpolation", "interpolation, ")):
        lengths = [h for h in results.about["windows"] if f"{kind}-{h}" in results.parts]
        for a, b in itertools.pairwise(lengths):
            found = compare(*(results.runs(f"{kind}-{h}", last=True) for h in (a, b)))
            cells = [change(found, c) for c in results.shown]
            rows.append([f"{words}{a} → {b} h", *cells, str(found.attrs["dates"])])
    return table(["CRPS of the filter", *results.shown, "dates"], rows)


def forecasts(results: Results) -> str:
    scores = {k: results.by_lead(p) for k, p in SYSTEMS.items() if p in results.parts}
    first = next(iter(scores.values()), None)
    if first is None:
        return "\n"
    leads = [h for h in TOLD if h in first["lead_time"].values] or first["lead_time"].values[-1:]
    parts = []
    for channel in [c for c in (ALL, *FORECAST) if c in results.shown]:
        for score in ("crps", "skill"):
            rows = [
                [name, *(span(_at(ds, h, channel), score) for h in leads), str(ds.attrs["dates"])]
                for name, ds in scores.items()
            ]
            head = heads(results, [channel], score)[0]
            header = [f"{SCORES[score]}, {head}", *(f"{h:.0f} h" for h in leads), "dates"]
            parts.append(table(header, rows))
    return "\n".join(parts)


def gains(results: Results) -> str:
    r"""Forecasts against what stands beside them, of the same dates and hours."""
    parts = []
    for name in ("forecast", "full-state"):
        if SYSTEMS[name] not in results.parts:
            continue
        run, rows = results.leads_of(SYSTEMS[name]), []
        leads = [h for h in TOLD if h in run["lead_time"].values] or run["lead_time"].values[-1:]
        for other, product in SYSTEMS.items():
            if other in ("forecast", name) or product not in results.parts:
                continue
            found = compare(results.leads_of(product), run)
            single = product == "persistence-truth"  # whose CRPS is an absolute error
            for channel in [c for c in (ALL, *FORECAST) if c in results.shown]:
                for score in ("crps", "skill")[: 1 + single]:
                    cells = [change(found.sel(lead_time=h), channel, score) for h in leads]
                    words = f", {SCORES[score]}" if score != "crps" else ""
                    rows.append([f"{other}, {channel}{words}", *cells])
        header = [f"CRPS of the {name} forecast against", *(f"{h:.0f} h" for h in leads)]
        header[0] = header[0].replace("forecast forecast", "forecast")
        parts.append(table(header, rows))
    return "\n".join(parts)


def _at(scores: xr.Dataset, lead: float, channel: str) -> xr.Dataset:
    return scores.isel(region=0).sel(lead_time=lead, channel=channel)


def spread(results: Results) -> str:
    r"""Spread over skill of analyses and forecasts."""
    columns: dict[str, xr.Dataset] = {}
    for words, last in (("reanalysis", False), ("filter", True)):
        columns[f"{words}, {results.first} h"] = results.of_window(results.first, last)
    if f"interpolation-{results.first}" in results.parts:
        by = results.of_window(results.first, False, "interpolation")
        columns[f"interpolation, {results.first} h"] = by
    for name in ("forecast", "full-state"):
        if SYSTEMS[name] in results.parts:
            by = results.by_lead(SYSTEMS[name])
            for lead in [h for h in TOLD if h in by["lead_time"].values]:
                columns[f"{name}, +{lead} h"] = by.sel(lead_time=lead)

    def row(channel: str, score: str) -> list[str]:
        return [span(ds.isel(region=0).sel(channel=channel), score) for ds in columns.values()]

    rows = [[channel, *row(channel, "ratio")] for channel in results.shown]
    rows.append([f"skill, {results.shown[0]}", *row(results.shown[0], "skill")])
    rows.append(["dates", *(str(ds.attrs["dates"]) for ds in columns.values())])
    return table(["spread / skill", *columns], rows)


def ranks(results: Results) -> str:
    rows = []
    for words, product in (("analysis", "ranks"), ("interpolation", "interpolation-ranks")):
        found = calibrated(results, f"{product}-{results.first}")
        if found is None:
            continue
        found = found.isel(region=0)
        for channel in found["channel"].values:
            at = found.sel(channel=channel)
            share, meant = (
                at[k].sel(interval=0.8).item() for k in ("coverage", "coverage_expected")
            )
            tests = [f"{number(at[k].item(), 2)} ({_p(at[f'p_{k}'].item())})"
                     for k in ("bias", "dispersion")]  # fmt: skip
            covered = f"{100 * share:.0f} % ({100 * meant:.0f} %)"
            rows.append([f"{words}, {channel}", *tests, _p(at["p"].item()), covered])
    header = ("ranks", "bias (p)", "dispersion (p)", "p, uniform", "coverage (expected)")
    return table(header, rows)


def _p(value: float) -> str:
    return "·" if not np.isfinite(value) else "< 0.001" if value < 1e-3 else f"{value:.3f}"


def interpolation(results: Results) -> str:
    product = f"interpolation-{results.first}"
    if product not in results.parts:
        return "\nNo covariance was given.\n\n"
    found = compare(results.runs(product), results.runs(results.main))
    last = compare(results.runs(product, last=True), results.runs(results.main, last=True))
    rows = []
    for words, ds in (("reanalysis", found), ("filter", last)):
        for score in ("skill", "crps"):
            cells = [change(ds, c, score) for c in results.shown]
            rows.append([f"{words}, {SCORES[score]}", *cells])
    costs = [ds.attrs for ds in results.parts[product].values()]
    worst = max(c["solver_residual"] for c in costs)
    most = max(int(c["iterations"]) for c in costs)
    told = f"Its systems are solved to a residual of {worst:.2g} at most, in {most} iterations.\n"
    return table(["against optimal interpolation", *results.shown], rows) + "\n" + told


def letkf(results: Results) -> str:
    r"""The last hour by the LETKF, by filters and by optimal interpolation, of the same dates."""
    if "letkf" not in results.parts:
        return "\nIt has not been run for these dates.\n\n"
    control, parts = results.runs("letkf"), []
    others = [f"reanalysis-{h}" for h in results.windows if h >= results.first]
    others = [p for p in (*others, f"interpolation-{results.first}") if p in results.parts]
    for score in ("skill", "crps", "ratio"):
        rows, first = [], None
        for product in others:
            if not results.parts["letkf"].keys() & results.parts[product].keys():
                continue
            found = compare(control, results.runs(product, last=True))
            at = found.isel(region=0)
            if first is None:
                first = ["LETKF", *(_value(at, c, f"{score}_a") for c in results.shown)]
                rows.append([*first, str(found.attrs["dates"])])
            kind, _, hours = product.rpartition("-")
            words = f"{'filter' if kind == 'reanalysis' else kind}, {hours} h"
            cells = [_value(at, c, f"{score}_b") for c in results.shown]
            if score != "ratio":
                cells = [
                    f"{cell} ({change(found, c, score)})"
                    for cell, c in zip(cells, results.shown, strict=True)
                ]
            rows.append([words, *cells, str(found.attrs["dates"])])
        header = [f"{SCORES[score]}", *heads(results, results.shown, score), "dates"]
        parts.append(table(header, rows))
    told = results.about["letkf"]
    seconds = np.mean([ds.attrs["seconds"] for ds in results.parts["letkf"].values()])
    words = ", ".join(f"{k} {told[k]}" for k in ("members", "length", "depth", "inflation"))
    words += f", relaxation {told['relaxation']}, representation {told['representation']}"
    return (
        "\n".join(parts)
        + f"\nIts settings: {words}; cycled hourly over {told['hours']} hours until a date, from "
        f"other weather of the season, in {seconds:.0f} s. Tuned on "
        + ", ".join(f"{a} to {b}" for a, b in told["tuned"])
        + ".\n"
    )


def cycled(results: Results) -> str:
    r"""The LETKF by the hours it has seen, and what more of them change: the control of how long
    a window should be."""
    if "letkf-cycled" not in results.parts:
        return "\nIt has not been run for these dates.\n\n"
    known, rows, gains = results.cycled(), [], []
    for hours, ds in known.items():
        at = metrics(pool(ds)).isel(region=0)
        cells = [_value(at, c, "crps") for c in results.shown]
        rows.append([f"{hours} h", *cells, str(ds.sizes["time"])])
    for (a, before), (b, after) in itertools.pairwise(known.items()):
        found = compare(before, after)
        cells = [change(found, c) for c in results.shown]
        gains.append([f"{a} → {b} h", *cells, str(found.attrs["dates"])])
    return "\n".join(
        [
            table(["LETKF: CRPS", *heads(results, results.shown, "crps"), "dates"], rows),
            table(["CRPS of the LETKF", *results.shown, "dates"], gains),
        ]
    )


def _value(at: xr.Dataset, channel: str, name: str) -> str:
    r"""A number of a comparison in the unit of its channel."""
    here = at.sel(channel=channel)
    scale = 1.0 if name.startswith("ratio") else look_of(here)[0]
    value = scale * float(here[name])
    return number(value, digits_of(value))


def variations(results: Results) -> str:
    r"""Skill, CRPS, ratio and cost of variations, beside the run they are compared with."""
    known = {results.main: ("as it is set", "", results.first)}
    for product, name, group, hours in results.about["variations"]:
        known[product] = (name, group, hours)
        if f"reanalysis-{hours}" not in known and hours != results.first:
            known[f"reanalysis-{hours}"] = (f"as it is set, {hours} h", "", hours)
    order = sorted(known, key=lambda p: (known[p][2] != results.first, known[p][2]))
    channel, rows = results.shown[0], []
    for product in order:
        name, group, hours = known[product]
        if results.diverged.get(product):
            name += f" (diverged at {results.diverged[product]} dates)"
        if product not in results.parts:
            if results.diverged.get(product):
                rows.append([name, group, *["·"] * 9])
            continue
        reference, runs = f"reanalysis-{hours}", results.runs(product)
        beside = reference
        if product == reference:  # of the dates and hours that variations have
            same = [p for p in order if known[p][2] == hours and p in results.parts]
            beside = next((p for p in same if p != reference), reference)
        found = compare(results.runs(beside), runs)
        at = found.isel(region=0).sel(channel=channel)
        scale = look_of(runs.sel(channel=channel))[0]
        values = [(scale if s != "ratio" else 1.0) * float(at[f"{s}_b"]) for s in SCORES]
        cells = [number(v, digits_of(v)) for v in values]
        # those that diverged are not among its dates, and would be worse
        spared = bool(results.diverged.get(product))
        told = [change(found, channel), "·" if spared else verdict(found, channel)]
        cells[2:2] = ["", ""] if product == reference else told
        costs = [ds.attrs for ds in results.parts[product].values()]
        for key, digits in (("denoiser", 0), ("decoder", 0), ("seconds", 2)):
            value = float(np.mean([c[key] / (c["processes"] if key == "seconds" else 1)
                                   for c in costs]))  # fmt: skip
            cells.append(number(value, digits))
        rows.append([name, group, *cells, str(found.attrs["dates"])])
    unit = heads(results, [channel], "crps")[0]
    header = ["variation", "of", f"skill, {unit}", "CRPS", "CRPS against as set"]
    header += [f"no worse than as set by {MARGIN:g} %"]
    header += ["spread / skill", "denoiser passes", "decoder passes", "s", "dates"]
    return table(header, rows)


def reconstruction(results: Results) -> str:
    r"""The error that the decoder has of the truth itself, where a full-state forecast starts."""
    if "decoder" not in results.parts:
        return "\n"
    scores = over_dates(
        concat(
            [
                pool(ds).expand_dims(init_time=[now], lead_time=[0.0])
                for now, ds in results.of("decoder").items()
            ],
            "init_time",
        ).transpose("region", "init_time", "lead_time", "channel")
    )
    cells = [span(_at(scores, 0.0, c), "skill") for c in results.shown]
    header = ["the truth, encoded and decoded", *heads(results, results.shown, "skill")]
    return table(header, [["skill", *cells]])


TABLES: dict[str, Callable[[Results], str]] = {
    "about": about,
    "controls": about,  # of the dates that classical answers stand beside
    "windows": windows,
    "saturation": saturation,
    "reconstruction": reconstruction,
    "forecasts": forecasts,
    "gains": gains,
    "spread": spread,
    "ranks": ranks,
    "energies": energies,
    "balances": balanced,
    "changes": changes,
    "interpolation": interpolation,
    "letkf": letkf,
    "cycled": cycled,
    "variations": variations,
    "converged": converged,
}


# ---------------------------------------------------------------- the page


def fill(text: str, results: Results, own: Results | None = None, names: Sequence[str] = ()) -> str:
    r"""A page with its tables made anew, or some of them; those of the model's own setting where
    they are given."""
    for name, make in TABLES.items():
        if name not in (names or TABLES):
            continue
        if name in ("changes", "cycled") and f"<!-- begin {name} -->" not in text:
            continue  # a page of dates that were drawn before it was told
        text = filled(text, name, make(results))
    if own is not None:
        text = filled(text, "settings", settings(results, own))
        if "<!-- begin stages -->" in text:
            text = filled(text, "stages", stages(own))
    return text


def read(paths: Sequence[Path], beside: Results | None = None) -> Results:
    r"""What a folder holds, or its archives."""
    if paths[0].is_dir():
        return Results(paths[0], beside)
    with tempfile.TemporaryDirectory() as folder:
        unpack(paths, Path(folder))
        return Results(Path(folder), beside)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("results", nargs="+", type=Path, help="a folder, or its archives")
    add("--own", nargs="+", type=Path, help="those at the model's own setting, of the same dates")
    add("--budget", type=Path, help="what `appa budget` found, its .csv")
    add("--out", type=Path, default=RESULTS, help="the folder of the page")
    add("--tables", default="", help="names, with commas; all by default")
    add("--figures", help="names, with commas; all by default, `none` for none")
    args = parser.parse_args(argv)
    names = [name.strip() for name in args.tables.split(",") if name.strip()]
    for name in names:
        if name not in TABLES:
            raise SystemExit(f"there is no table {name!r}{nearest(name, TABLES)}")
    results = read(args.results)
    own = read(args.own, results) if args.own else None
    page = args.out / "assimilation.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    text = (page if page.exists() else TEMPLATE).read_text()
    text = fill(text, results, own, names)
    if args.budget:
        text = filled(text, "budget", budget(args.budget))
    page.write_text(text)
    for name, draw in figures(results).items():
        if args.figures is None or name in args.figures.split(","):
            path = args.out / "figures" / f"assimilation-{name}.png"
            print(f"{path.name}: {save(draw(), path) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
