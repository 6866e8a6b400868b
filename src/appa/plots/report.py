r"""The page of a run: the evidence as sections of text, tables and figures.

All numbers are of :class:`appa.evaluation.report.Evidence`; here they are given their units and put
into words. Every section is there. One that has nothing to show says why.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import xarray as xr

from .. import __version__
from ..evaluation.comparison import FEWEST, LEFT, alike, by_chance
from ..evaluation.forecasts import HOUR
from ..evaluation.regions import REGIONS
from ..evaluation.report import CLIMATE, RUN, Evidence
from ..evaluation.report_runs import by_stretch, stretches
from ..progress import progress
from .curves import plot_levels, plot_scores
from .departures import observations
from .evidence import (
    NONE,
    calibration,
    first_region,
    folded,
    image,
    labels,
    number,
    physics,
    several,
    spectra,
    time,
    wavelengths,
)
from .page import Html, Section, details, listing, page, paragraph, points, preformatted, table
from .pictures import errors, gallery, maps
from .structure import words_of

__all__ = ["report_page"]


def report_page(evidence: Evidence) -> str:
    r"""The page, as HTML.

    Arguments:
        evidence: What :func:`appa.evaluation.report.gather` found.

    Example:
        >>> html = report_page(gather("analysis.zarr", "planet", climatology="planet"))
    """
    name = evidence.about.get("task", "ensemble")
    lead = (
        f"{evidence.about['hours']}; {evidence.members} "
        f"{'member' if evidence.members == 1 else 'members'}, {evidence.about['grid']} points."
    )
    made: tuple[Callable[[Evidence], Section], ...] = (
        short,
        what,
        scores,
        differences,
        curves,
        gallery,
        maps,
        errors,
        calibration,
        wavelengths,
        spectra,
        physics,
        time,
        fields,
        observations,
    )
    foot = f"Written by appa {__version__}. The page holds all of its figures and loads nothing."
    sections = []
    with progress(len(made), "drawing", unit="sections") as p:
        for part in made:
            sections.append(part(evidence))
            p.advance()
    return page(f"Evidence for a {name}", lead, sections, foot)


# ---------------------------------------------------------------- sections


def short(evidence: Evidence) -> Section:
    r"""What the numbers below come to, in sentences."""
    region, named = first_region(evidence), labels(evidence)
    run, found = evidence.pooled()[RUN].sel(region=region), []
    ratio = run["ratio"].values[np.isfinite(run["ratio"].values)]
    if ratio.size:
        found.append(
            f"Spread over skill is {np.median(ratio):.2f} in the median of {ratio.size} channels, "
            f"from {ratio.min():.2f} to {ratio.max():.2f}; 1 is right."
        )
    for name, gap in evidence.differences.items():
        at = gap.sel(region=region)
        for score, words in (("skill", "skill"), ("crps", "CRPS")):
            lower, real = at[f"{score}_difference"] < 0, at[f"{score}_real"]
            text = f"Its {words} is lower than that of {name} in {int(lower.sum())} of "
            text += f"{at.sizes['channel']} channels"
            if at["enough"].any():
                text += f", really so in {int((lower & real).sum())}, and really higher in "
                text += f"{int((~lower & real).sum())}; about {by_chance(at, [score])} would be "
                text += "either by chance alone"
            found.append(text + ".")
    if evidence.calibration is not None:
        p = evidence.calibration["p"].sel(region=region).values
        p = p[np.isfinite(p)]
        found.append(
            f"Ranks of the truth are uneven (p < 0.05) in {int((p < 0.05).sum())} of {p.size} "
            "channels."
            if p.size
            else f"There are too few days or runs to test the truth's ranks: it takes {FEWEST}."
        )
    subject = f"The {named[RUN]}, {region}:"
    return Section("In short").add(paragraph(subject), points(found))


def what(evidence: Evidence) -> Section:
    section = Section("What it is")
    section.add(listing(evidence.about.items(), "The run, and what it is compared with"))
    if evidence.configuration:
        section.add(
            details("Configuration of the model", preformatted(evidence.configuration.strip()))
        )
    return section


def scores(evidence: Evidence) -> Section:
    section, pooled, named = Section("Scores"), evidence.pooled(), labels(evidence)
    section.add(
        paragraph(
            "Skill is the root-mean-square error of the ensemble mean, spread the root of the mean "
            "variance, CRPS the fair continuous ranked probability score: small is good. The ratio "
            "of spread to skill, corrected for the number of members, is 1 of an ensemble drawn as "
            "the truth is, below 1 of one too sure of itself. All hours together, weighted by area."
        )
    )
    run = pooled[RUN]
    for region in run["region"].values.tolist():
        made = folded(partial(score_table, pooled, named, region), run)
        if region == first_region(evidence):
            section.add(*made)
        else:
            section.add(details(f"{region}: {REGIONS[region]}", *made))
    every = set(run["channel"].values.tolist())
    whole = {named[k]: v for k, v in pooled.items() if every <= set(v["channel"].values.tolist())}
    figures = {
        f"{words} by pressure level, a panel a variable.": plot_levels(
            whole, name=name, region=first_region(evidence)
        )
        for name, words in (("skill", "Skill"), ("ratio", "Spread over skill"))
        if np.isfinite(run["level"]).any() and np.isfinite(run[name]).any()
    }
    if figures:
        caption = "Scores of all hours by height: smaller skill is better, a ratio of 1 is right."
        section.add(image(figures, caption))
    return section


def score_table(
    pooled: dict[str, xr.Dataset], named: dict[str, str], region: str, channels: list[str]
) -> Html:
    r"""Scores of the run, and of what stands beside it, in a region."""
    run = pooled[RUN].sel(region=region)
    others = [name for name in pooled if name != RUN]
    heads = ["channel", "what", "unit", "skill", "spread", "ratio", "CRPS"]
    heads += [f"{score}, {named[name]}" for name in others for score in ("skill", "CRPS")]
    rows = []
    for channel in channels:
        words, scale, unit = words_of(run, channel)
        at = run.sel(channel=channel)
        row = [channel, words, unit, number(at["skill"], scale), number(at["spread"], scale)]
        row += [number(at["ratio"], digits=2), number(at["crps"], scale)]
        for name in others:
            known = channel in pooled[name]["channel"].values
            beside = pooled[name].sel(region=region, channel=channel) if known else None
            row += [NONE if beside is None else number(beside[k], scale) for k in ("skill", "crps")]
        rows.append(row)
    return table(heads, rows, f"Scores, {region} ({REGIONS[region]})", text=3)


def differences(evidence: Evidence) -> Section:
    section, named = Section("Differences to baselines"), labels(evidence)
    if not evidence.differences:
        reason = "no baseline was given; --baseline NAME=PATH and --climatology add them"
        return section.add(paragraph(f"Not shown: {reason}.", "missing"))
    run = named[RUN]
    section.add(
        paragraph(
            f"Scores of the {run} less those of a baseline at the same hours: below 0 the {run} is "
            "better. Intervals of 95 % are from days, or runs of several dates, resampled together "
            "for both; those that resemble the next count as fewer. A difference is real where its "
            f"interval excludes 0; it takes {FEWEST} of them at least to say so."
        )
    )
    region = first_region(evidence)
    for name, found in evidence.differences.items():
        at = found.sel(region=region)
        section.add(*folded(partial(difference_table, at, run, name, region), at))
    return section


def difference_table(
    found: xr.Dataset, run: str, name: str, region: str, channels: list[str]
) -> Html:
    r"""Scores of the run less those of a baseline."""
    heads = ["channel", "what", "unit"]
    for word in ("skill", "CRPS"):
        heads += [f"{word}, {run}", f"{word}, {name}", "difference", "95 %", "real"]
    rows, marks = [], []
    for channel in channels:
        words, scale, unit = words_of(found, channel)
        row, mark = [channel, words, unit], ["", "", ""]
        for score in ("skill", "crps"):
            cells, kind = difference(found.sel(channel=channel), score, scale)
            row += cells
            mark += ["", "", kind, "", kind]
        rows.append(row)
        marks.append(mark)
    blocks, days = found.attrs["blocks"], found.attrs["days"]
    told = f"{blocks} {'block' if blocks == 1 else 'blocks'} of "
    told += "whole runs, by their first day" if found.attrs["runs"] > 1 else f"{24 * days} hours"
    caption = f"{run} less {name}, {region}, from {told}{alike(found)}"
    if not found["enough"].any():
        needed = FEWEST if found["filled"].max() < FEWEST else LEFT
        caption += f": too few to say that a difference is real, it takes {needed}"
    return table(heads, rows, caption, text=3, marks=marks)


def difference(at: xr.Dataset, score: str, scale: float) -> tuple[list[str], str]:
    r"""The cells of a difference, and whether it is for the better."""
    low, high = at[f"{score}_low"], at[f"{score}_high"]
    ends = NONE
    if np.isfinite(low) and np.isfinite(high):
        ends = f"{number(low, scale, sign=True)} … {number(high, scale, sign=True)}"
    real, change = bool(at[f"{score}_real"]), float(at[f"{score}_difference"])
    kind = ("better" if change < 0 else "worse") if real else ""
    cells = [number(at[f"{score}_b"], scale), number(at[f"{score}_a"], scale)]
    return [*cells, number(change, scale, sign=True), ends, kind or NONE], kind


def curves(evidence: Evidence) -> Section:
    lead = evidence.start is not None
    section, named = Section("Scores by lead time" if lead else "Scores by hour"), labels(evidence)
    parts = stretches(evidence.ensemble)
    if not lead and len(parts) > 1:
        by_hour = {named[name]: by_stretch(part, parts) for name, part in evidence.means.items()}
    else:
        by_hour = {named[name]: part for name, part in evidence.scores().items()}
    figures = {
        f"Skill, CRPS and spread over skill of {', '.join(group)} by hour.": plot_scores(
            {n: s for n, s in by_hour.items() if set(group) & set(s["channel"].values.tolist())},
            group,
            region=first_region(evidence),
            start=evidence.start,
        )
        for group in several(evidence.channels)
    }
    for figure in figures.values() if any("lead_time" in s.dims for s in by_hour.values()) else ():
        for ax in figure.axes:
            ax.set_xlabel("hour of a stretch" if ax.get_xlabel() else "")
    after = "the last hour that was known" if lead else "the first hour"
    if not lead and len(parts) > 1:
        after += f" of each of {len(parts)} stretches, which bands are resampled from, of 95 %"
    return section.add(
        image(
            figures,
            f"Hours since {after}. Lower skill and CRPS are better, and below climatology at all; "
            f"a ratio near 1 is right, and should stay there.{_lengths([] if lead else parts)}",
        )
    )


def _lengths(parts: list[xr.Dataset]) -> str:
    r"""What is to know of stretches that are not of one length."""
    hours = [int((p["time"].values[-1] - p["time"].values[0]) / HOUR) for p in parts]
    few, most = min(hours, default=0), max(hours, default=0)
    if few == most:
        return ""
    whole = sum(count == most for count in hours)
    return (
        f" Stretches end {few} to {most} hours after their first: curves beyond {few} are of fewer "
        f"of them, of {whole} at the end, without bands where these would be of none."
    )


def fields(evidence: Evidence) -> Section:
    section, named = Section("Scores of whole fields"), labels(evidence)
    section.add(
        paragraph(
            "The energy score is the CRPS of a field as a whole, the variogram score asks for "
            "differences between points within 1,000 km, of which it takes the root: it sees wrong "
            "correlations that other scores do not. Both are fair, and small is good."
        )
    )
    names = list(evidence.fields)
    heads = ["channel", "what", "unit"]
    heads += [f"{kind}, {named[name]}" for name in names for kind in ("energy", "variogram")]
    rows = []
    means = {name: part.sel(region="global").mean("time") for name, part in evidence.fields.items()}
    for channel in evidence.channels:
        words, scale, unit = words_of(evidence.fields[RUN], channel)
        row = [channel, words, unit]
        for part in means.values():
            known = channel in part["channel"].values
            at = part.sel(channel=channel) if known else None
            row += [
                NONE if at is None else number(at[kind], scale)  # its power 2 p is 1
                for kind in ("energy", "variogram")
            ]
        rows.append(row)
    caption = "Energy and variogram scores, global, the mean over hours"
    section.add(table(heads, rows, caption, text=3))
    if CLIMATE in evidence.means:
        section.add(paragraph("A climatology has no members to take them of.", "missing"))
    return section
