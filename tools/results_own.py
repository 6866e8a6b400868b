r"""Tables of what was drawn at the model's own setting, beside drafts of the same dates."""

from __future__ import annotations

import xarray as xr
from pages import number, table
from results_cells import MARGIN, change, digits_of, verdict
from results_scores import Results

from appa.evaluation.comparison import compare

__all__ = ["converged", "settings", "stages"]

TOLD = (6, 24, 48, 72)  # lead times
REFERENCE = "v-converged"
STAGES = {
    "v-without-residual": "the first alone",
    "v-representation-diagonal": "both, without memory in the first",
    "v-without-the-first-stage": "the second alone",
    "v-neither-stage": "neither, the paper's",
}


def stages(own: Results) -> str:
    r"""Spread over skill and CRPS with each stage of what the decoder lacks on and off."""
    rows: list[list[str]] = []
    for product, words in STAGES.items():
        if product not in own.parts:
            continue
        found = compare(own.runs(own.main), own.runs(product))
        dates = str(found.attrs["dates"])
        if not rows:
            rows.append(["both stages", *_ratios(found, own, "a"), "", dates])
        rows.append([words, *_ratios(found, own, "b"), change(found, own.shown[0]), dates])
    header = ["spread / skill", *own.shown, f"CRPS, {own.shown[0]}", "dates"]
    return table(header, rows) if rows else "\nThey have not been drawn.\n\n"


def settings(draft: Results, own: Results) -> str:
    r"""What the model's own setting changes in a draft's CRPS, and its spread over skill."""
    found = {
        f"{words}, {own.first} h": compare(*(r.runs(r.main, last=last) for r in (draft, own)))
        for words, last in (("reanalysis", False), ("filter", True))
    }
    if "forecast" in own.parts:
        later = compare(*(r.leads_of("forecast") for r in (draft, own)))
        for lead in [h for h in TOLD if h in later["lead_time"].values]:
            found[f"forecast, +{lead} h"] = later.sel(lead_time=lead)
    rows = []
    for words, ds in found.items():
        cells = [change(ds, c) for c in own.shown]
        rows.append([f"{words}: CRPS", *cells, str(ds.attrs["dates"])])
    for words, ds in found.items():
        rows.append([f"{words}: spread / skill", *_ratios(ds, own, "b"), str(ds.attrs["dates"])])
    return table(["at the model's own setting", *own.shown, "dates"], rows)


def converged(results: Results) -> str:
    r"""Settings against one whose steps and iterations leave next to nothing."""
    if REFERENCE not in results.parts:
        return "\nIt has not been drawn.\n\n"
    known = {results.main: "as it is set"}
    known |= {product: name for product, name, _, hours in results.about["variations"]
              if hours == results.first and product != REFERENCE}  # fmt: skip
    reference, rows = results.runs(REFERENCE), []
    for product, name in known.items():
        if product not in results.parts:
            continue
        found = compare(reference, results.runs(product))
        cells = [f"{change(found, c)} {verdict(found, c)}".strip(" ·") for c in results.shown]
        rows.append([f"{name}: CRPS", *cells, _passes(results, product), str(found.attrs["dates"])])
        rows.append([f"{name}: spread / skill", *_ratios(found, results, "b"), "", ""])
    found = compare(reference, reference)
    rows.append(["converged: spread / skill", *_ratios(found, results, "b"),
                 _passes(results, REFERENCE), str(found.attrs["dates"])])  # fmt: skip
    header = [f"against converged, no worse by {MARGIN:g} %?", *results.shown]
    return table([*header, "denoiser passes", "dates"], rows)


def _passes(results: Results, product: str) -> str:
    costs = [ds.attrs["denoiser"] for ds in results.parts[product].values()]
    return number(sum(costs) / len(costs), 0)


def _ratios(found: xr.Dataset, own: Results, end: str) -> list[str]:
    at = found[f"ratio_{end}"].isel(region=0)
    values = [float(at.sel(channel=c)) for c in own.shown]
    return [number(v, digits_of(v)) for v in values]
