r"""The section of a run's page on what observations say, those it has seen and those it has not."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ..data.variables import VARIABLES
from ..evaluation.report import Evidence
from .evidence import NONE, number
from .page import Section, paragraph, table

__all__ = ["observations"]

CHECKS = {
    "ob": "O−B",
    "oa": "O−A",
    "error": "error",
    "background": "background",
    "analysis": "analysis",
}


def observations(evidence: Evidence) -> Section:
    section = Section("Observations")
    seen, held = evidence.innovations, evidence.verification
    if seen is None:
        reason = "no observations were given; --observations FILE adds them, --background O−B"
        section.add(paragraph(f"Innovations are not shown: {reason}.", "missing"))
    else:
        section.add(
            paragraph(
                "Departures in units of the observations' errors: means, which should be 0, and "
                "mean squares with what the spread leads one to expect beside them. O−B is of an "
                "ensemble that has not seen them, O−A of one that has. With both, Desroziers' "
                "checks estimate the variances of errors, background and analysis: expected over "
                "found is 1 where errors are as large as they say, below 1 where they are larger. "
                f"What comes out below 0, which no variance is, is left open ({NONE}): of few "
                "observations, or where a spread is larger than the errors."
            )
        )
        known = {key: words for key, words in CHECKS.items() if f"{key}_found" in seen}
        heads = ["variable", "level", "count"]
        heads += [f"mean {words}" for key, words in known.items() if f"{key}_mean" in seen]
        for words in known.values():
            heads += [f"{words}², found", "expected", "ratio"]
        rows = []
        for at in records(seen):
            row = [*place(at), f"{int(at['count']):,}"]
            row += [number(at[f"{k}_mean"], sign=True) for k in known if f"{k}_mean" in seen]
            for key in known:
                squares = (at[f"{key}_{end}"] for end in ("found", "expected", "ratio"))
                row += [number(x if x >= 0 else float("nan")) for x in squares]
            rows.append(row)
        section.add(table(heads, rows, "Innovations, in units of errors", text=2))
    if held is None:
        reason = "none were given; --held-out FILE adds them"
        section.add(paragraph(f"Held-out observations are not shown: {reason}.", "missing"))
    else:
        section.add(
            paragraph(
                "Observations the run has not seen, with their own errors taken into account in "
                "skill, ratio and CRPS. They judge it without the truth."
            )
        )
        heads = ["variable", "level", "unit", "count"]
        keys = ("bias", "departure", "skill", "spread", "ratio", "crps")
        heads += [*keys[:-1], "CRPS"]
        rows = []
        for at in records(held):
            unit = VARIABLES[at["variable"]].units if at["variable"] in VARIABLES else ""
            row = [*place(at), unit, f"{int(at['count']):,}"]
            rows.append([*row, *(number(at[k], sign=k == "bias") for k in keys)])
        section.add(table(heads, rows, "At observations that were held out", text=3))
    return section


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return frame.reset_index().to_dict("records")  # type: ignore[return-value]


def place(at: dict[str, Any]) -> list[str]:
    level = at["level"]
    return [str(at["variable"]), "" if pd.isna(level) else f"{level:g} hPa"]
