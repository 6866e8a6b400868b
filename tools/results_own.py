r"""Tables of what was drawn at the model's own setting, beside drafts of the same dates."""

from __future__ import annotations

import xarray as xr
from pages import number, table
from results_cells import change, digits_of
from results_scores import Results

from appa.evaluation.comparison import compare

__all__ = ["settings", "stages"]

TOLD = (6, 24, 48, 72)  # lead times
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


def _ratios(found: xr.Dataset, own: Results, end: str) -> list[str]:
    at = found[f"ratio_{end}"].isel(region=0)
    values = [float(at.sel(channel=c)) for c in own.shown]
    return [number(v, digits_of(v)) for v in values]
