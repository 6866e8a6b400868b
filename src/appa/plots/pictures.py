r"""Sections of a run's page that show its fields: a gallery, maps of the last hour, and how errors
are distributed."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from ..data.variables import VARIABLES
from ..evaluation.report import RUN, Evidence
from ..evaluation.report_runs import stretches
from .analysis import plot_ensemble
from .calibration import plot_histogram
from .evidence import absent, image, several
from .page import Section, paragraph
from .structure import plot_four

__all__ = ["errors", "gallery", "maps"]

GALLERY = ("t2m", "z500", "q700")  # of which those that are there, or else the first
HOURS = 3  # of a gallery, from the first to the last
MEMBERS = 2
COARSE = 78  # dots per inch of maps that are many and small


def gallery(evidence: Evidence) -> Section:
    r"""Truth, what was seen of it, members, their mean and spread, at some hours."""
    section, known = Section("Gallery"), _known(evidence)
    if not known:
        return _nameless(section)
    channels = [c for c in GALLERY if c in known] or known[: len(GALLERY)]
    parts = stretches(evidence.ensemble)
    times = parts[0]["time"].values
    chosen = np.unique(np.linspace(0, len(times) - 1, HOURS).round().astype(int))
    members, seen = min(MEMBERS, evidence.members), _seen(evidence, times)
    options: dict[str, Any] = {"hours": list(times[chosen]), "members": members, **seen}
    shown = f"truth, {'observations, ' if seen else ''}members, mean and spread"
    figures = {
        f"Gallery of {channel}: {shown}, at {len(chosen)} hours.": plot_ensemble(
            evidence.truth, parts[0], panels=[(channel, None)], **options
        )
        for channel in channels
    }
    lasting = "" if len(parts) == 1 else f" Hours of the first of {len(parts)} stretches."
    if seen:
        told = " Of observations, the latest of each place up to the hour is drawn."
    else:
        told = " What was observed is not shown: --observations FILE adds it."
    return section.add(
        image(
            figures,
            "Truth, members and mean share colours. Members should look as sharp as the truth and "
            "move as it does; they differ where nothing was seen, and the mean is smoother there. "
            f"The spread should be small where there are observations.{told}{lasting}",
            COARSE,
        )
    )


def _seen(evidence: Evidence, times: np.ndarray) -> dict[str, Any]:
    r"""The observations of some hours, as a gallery takes them, or nothing."""
    if evidence.seen is None:
        return {}
    hours = int((times[-1] - times[0]) / np.timedelta64(1, "h")) + 1
    used = evidence.seen.between(times[0], hours)
    # by the hour they are matched to: the others would be those of the next
    table = used.points.assign(time=used.points["hour"]) if len(used.points) else None
    found = {"table": table, "swath": used.gridded}
    return found if any(part is not None for part in found.values()) else {}


def maps(evidence: Evidence) -> Section:
    section, known = Section("Maps"), _known(evidence)
    if not known:
        return _nameless(section)
    return section.add(
        image(
            {
                f"Maps of {channel}: truth, ensemble mean, its error, and spread.": plot_four(
                    evidence.ensemble, evidence.truth, channel
                )
                for channel in known
            },
            "The last hour. Truth and mean share colours. The error should look like noise without "
            "the weather's shape, and be large where the spread is.",
        )
    )


def errors(evidence: Evidence) -> Section:
    section, found = Section("Signed errors"), evidence.errors
    if found is None:
        return absent(section, evidence, "errors")
    known = [c for c in evidence.channels if np.isfinite(_density(found, c)).any()]
    if not known:
        return section.add(paragraph("Not shown: no field is defined anywhere.", "missing"))
    return section.add(
        image(
            {
                f"Distributions of signed errors of {', '.join(group)}.": plot_histogram(
                    found, group
                )
                for group in several(known)
            },
            "Estimate less truth by area, of all hours: narrow about 0 is good, a shift is a bias. "
            "The bias and the share beyond the axis are told in the corner, of the members."
            + (
                " Their mean errs less, by √2 where they are many and drawn as the truth is."
                if evidence.members > 1
                else ""
            ),
        )
    )


# ---------------------------------------------------------------- parts


def _density(found: xr.Dataset, channel: str) -> xr.DataArray:
    return found["density"].sel(channel=channel)


def _known(evidence: Evidence) -> list[str]:
    r"""The channels drawn whose variables maps know."""
    means = evidence.means[RUN]
    return [c for c in evidence.channels if means["variable"].sel(channel=c).item() in VARIABLES]


def _nameless(section: Section) -> Section:
    reason = "none of the run's variables has a name that maps know"
    return section.add(paragraph(f"Not shown: {reason}.", "missing"))
