r"""Cells and headers of the tables of `docs/results/assimilation.md`; see `results_page.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr
from prior_page import number
from results_scores import ALL, Results

from appa.evaluation.comparison import no_worse
from appa.plots.curves import look_of

__all__ = ["MARGIN", "SCORES", "change", "digits_of", "heads", "span", "verdict"]

MARGIN = 2.0  # percent by which a run may be worse and still be no worse
SCORES = {"skill": "skill", "crps": "CRPS", "ratio": "spread / skill"}


def span(at: xr.Dataset, score: str) -> str:
    r"""A score with its interval, in the unit shown."""
    scale = 1.0 if score == "ratio" else look_of(at)[0]
    value = scale * float(at[score])
    digits = digits_of(value)
    told = number(value, digits)
    if f"{score}_low" not in at or not np.isfinite(at[f"{score}_low"]):
        return told
    low, high = (number(scale * float(at[f"{score}_{end}"]), digits) for end in ("low", "high"))
    return f"{told} ({low}–{high})"


def change(found: xr.Dataset, channel: str, score: str = "crps") -> str:
    r"""A relative difference in percent with its interval, bold where the difference is real."""
    at = found.isel(region=0).sel(channel=channel)
    words = [f"{score}_relative{end}" for end in ("", "_low", "_high")]
    d, low, high = (number(100 * float(at[w]), 1) for w in words)
    told = f"{d} % ({low} to {high})" if low != "·" else f"{d} %"
    return f"**{told}**" if bool(at[f"{score}_real"]) else told


def verdict(found: xr.Dataset, channel: str) -> str:
    r"""Whether a run is no worse in CRPS by the margin, or a dot where that cannot be told."""
    at = no_worse(found.isel(region=0), MARGIN).sel(channel=channel)
    return at.item().replace("not told", "·")


def digits_of(value: float) -> int:
    r"""The digits after the point that show three of a value."""
    if not np.isfinite(value) or value == 0:
        return 2
    return int(np.clip(2 - np.floor(np.log10(abs(value))), 0, 4))


def heads(results: Results, channels: Sequence[str], score: str) -> list[str]:
    r"""Channels with their units."""
    sample = next(iter(results.of(results.main).values()))
    found = []
    for channel in channels:
        unit = look_of(sample.sel(channel=channel))[1]
        found.append(channel if score == "ratio" or channel == ALL else f"{channel}, {unit}")
    return found
