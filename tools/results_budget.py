r"""The table of what `appa budget` found, see `results_page.py`."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from pages import number, table

__all__ = ["budget"]

WORDS = {
    "reference": "the reference",
    "setting": "a draft: its solver and its steps",
    "solver": "a draft's solver",
    "steps": "a draft's steps",
    "prior": "a truth drawn from the prior",
    "unobserved": "no observations",
    "representation": "the decoder's errors ignored",
    "errors × 0.5": "errors told half as large",
    "errors × 2": "errors told twice as large",
    "bias": "observations biased by their error",
}


def budget(path: Path) -> str:
    r"""CRPS of the reference, and what it changes by in percent, bold where that is real.

    The decoder is one field, whose CRPS is its mean absolute error: its skill is told instead.
    """
    found = pd.read_csv(path)
    channels = list(dict.fromkeys(found["channel"]))
    rows: list[list[str]] = []
    for name in dict.fromkeys(found["variation"]):
        score = "skill" if name in ("reference", "decoder") else "crps"
        part = found[(found["variation"] == name) & (found["region"] == found["region"][0])]
        if name == "reference":
            for key, words in (("skill", "skill"), ("crps", "CRPS")):
                at = part[part["score"] == key].set_index("channel")["value"]
                rows.append([f"{WORDS[name]}: {words}", *(f"{at[c]:.3g}" for c in channels)])
            continue
        at = part[part["score"] == score].set_index("channel")
        cells = [number(100 * float(at["relative"][c]), 1) for c in channels]
        cells = [f"{cell} %" for cell in cells]
        cells = [
            f"**{x}**" if at["real"][c] in (True, "True") else x
            for x, c in zip(cells, channels, strict=True)
        ]
        words = WORDS.get(name, name.replace("_", " "))
        words = "the truth, encoded and decoded: skill" if name == "decoder" else words
        rows.append([words, *cells])
    return table(["CRPS", *channels], rows)
