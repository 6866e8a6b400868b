r"""Sections of a run's page on what its fields are like: calibrated, balanced, right at all scales
and in time; and what all sections are made with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ..evaluation.comparison import FEWEST
from ..evaluation.report import RUN, Evidence
from .calibration import plot_ranks
from .page import Html, Section, details, paragraph, picture, table
from .physics import plot_physics, shown_levels
from .prior import plot_spectra
from .saving import png
from .structure import plot_balances, plot_changes, plot_wavelengths, words_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["calibration", "physics", "spectra", "time", "wavelengths"]

COLUMNS = 3  # channels of a figure
MANY, FEW = 20, (850, 700, 500, 250)  # channels of a table, and levels of one with more
ENDS = ("jump_excess_low", "jump_excess_high")
NONE = "·"


# ---------------------------------------------------------------- parts of sections


def number(value: Any, scale: float = 1.0, digits: int | None = None, sign: bool = False) -> str:
    r"""A number as it is shown: three digits, or so many after the point."""
    value = float(value) * scale
    if value != value:
        return NONE
    text = f"{value:{'+' if sign else ''}{'.3g' if digits is None else f'.{digits}f'}}"
    return text.replace("-", "−")


def several(channels: Sequence[str]) -> list[list[str]]:
    r"""Channels in groups, a figure each, of about the same size."""
    count = -(-len(channels) // COLUMNS)
    return [list(part) for part in np.array_split(np.array(channels, object), count)]


def image(figures: Mapping[str, Figure], caption: str, dpi: float = 100) -> Html:
    r"""Figures by what they show, with one caption."""
    images = [png(figure, size=150_000, dpi=dpi) for figure in figures.values()]
    return picture(images, list(figures), caption)


def usual(ds: xr.Dataset) -> list[str]:
    r"""The channels of a table: all, or of many those at the surface and on a few levels."""
    names, levels = ds["channel"].values.tolist(), ds["level"].values
    if len(names) <= MANY:
        return names
    return [n for n, p in zip(names, levels, strict=True) if np.isnan(p) or p in FEW]


def folded(make: Callable[[list[str]], Html], ds: xr.Dataset) -> list[Html]:
    r"""A table of the usual channels, and one of all to unfold where there are more."""
    every, few = ds["channel"].values.tolist(), usual(ds)
    more = [] if few == every else [details(f"All {len(every)} channels", make(every))]
    return [make(few), *more]


def absent(section: Section, evidence: Evidence, part: str) -> Section:
    return section.add(
        paragraph(f"Not shown: {evidence.missing.get(part, 'it was not computed')}.", "missing")
    )


def labels(evidence: Evidence) -> dict[str, str]:
    r"""What estimates are called in tables and figures."""
    own = "forecast" if evidence.start is not None else "analysis"
    return {
        name: (own if name == RUN and own not in evidence.means else name)
        for name in evidence.means
    }


def first_region(evidence: Evidence) -> str:
    regions = evidence.means[RUN]["region"].values.tolist()
    return "global" if "global" in regions else regions[0]


# ---------------------------------------------------------------- sections


def calibration(evidence: Evidence) -> Section:
    section, found = Section("Calibration"), evidence.calibration
    if found is None:
        return absent(section, evidence, "calibration")
    region, flat = first_region(evidence), 100 / found.sizes["rank"]
    groups = several(evidence.channels)
    section.add(
        image(
            {
                f"Rank and PIT histograms of {', '.join(group)}.": plot_ranks(
                    found, group, region=region, rows=("ranks", "pit")
                )
                for group in groups
            },
            "How often the truth lies below all members, between two, above all, and the same as "
            f"a density of 10 bins: flat at {flat:.1f} % and at 1 is calibrated, a ∪ too sure of "
            "itself, a ∩ too unsure, a slope biased.",
        )
    )
    reliable = "reliability_ratio" in found
    section.add(
        image(
            {
                f"Coverage of intervals, and errors by spread, of {', '.join(group)}.": plot_ranks(
                    found,
                    group,
                    region=region,
                    rows=("coverage", "reliability") if reliable else ("coverage",),
                )
                for group in groups
            },
            "How often an interval holds the truth against how often it should: on the line is "
            "right, below it the ensemble is too sure of itself. "
            + (
                "Below, points sorted by the spread of half of the members, with the error the "
                "other half should have and has: on the line spread tells the error."
                if reliable
                else "Errors by spread take 4 members or more."
            ),
        )
    )
    section.add(
        paragraph(
            "The test takes days, or runs of several dates, as the sample, as neighbouring points "
            "and hours are not independent. A bias above 0 is that of an ensemble too low, a "
            "dispersion above 1 of one too sure of itself or biased; p is the probability of ranks "
            f"as uneven by chance, below 0.05 taken for uneven, and left open ({NONE}) with fewer "
            f"than {FEWEST} of them."
        )
    )
    return section.add(*folded(lambda names: rank_table(found, region, names), found))


def rank_table(found: xr.Dataset, region: str, channels: list[str]) -> Html:
    heads = ["channel", "what", "bias", "p, bias", "dispersion", "p, dispersion", "p, ranks"]
    heads += ["independent ranks", "blocks", "count as"]
    heads += [f"{100 * p:.0f} % covers, %" for p in found["interval"].values]
    rows = []
    for channel in channels:
        at = found.sel(region=region, channel=channel)
        row = [channel, words_of(found, channel)[0], number(at["bias"], digits=3, sign=True)]
        row += [number(at["p_bias"], digits=3), number(at["dispersion"], digits=2)]
        row += [number(at[key], digits=3) for key in ("p_dispersion", "p")]
        row += [number(at["effective"]), number(at["blocks"], digits=0)]
        row += [number(at["independent"], digits=0)]
        rows.append([*row, *(number(c, 100, 1) for c in at["coverage"].values)])
    should = ", ".join(f"{100 * p:.1f}" for p in found["coverage_expected"].values)
    caption = f"Tests of uniform ranks, {region}; intervals should cover {should} %"
    return table(heads, rows, caption, text=2)


def wavelengths(evidence: Evidence) -> Section:
    section, found = Section("Spread by wavelength"), evidence.wavelengths
    if found is None:
        return absent(section, evidence, "wavelengths")
    return section.add(
        image(
            {
                f"Energy of error and spread by wavelength, and ratio: {', '.join(group)}.": (
                    plot_wavelengths(found, group)
                )
                for group in several(evidence.channels)
            },
            "Above, the error of the mean and what the spread leads one to expect, which should "
            "lie on each other; below, the root of their ratio, which should be 1 at all scales.",
        )
    )


def spectra(evidence: Evidence) -> Section:
    section, found = Section("Spectra"), evidence.spectra
    if found is None:
        return absent(section, evidence, "spectra")
    spectrum = found["spectrum"]
    known = [c for c in evidence.channels if np.isfinite(spectrum.sel(channel=c)).any()]
    if not known:
        return section.add(paragraph("Not shown: no field is defined everywhere.", "missing"))
    return section.add(
        image(
            {
                f"Power spectra of {', '.join(group)}, members and truth.": plot_spectra(
                    found, group
                )
                for group in several(known)
            },
            "Medians over states with the range of 5 to 95 %. Members should have the truth's "
            "energy at every wavelength: below it they are too smooth, above it noisy.",
        )
    )


def physics(evidence: Evidence) -> Section:
    section, found = Section("Physics"), evidence.balances
    if found is None:
        return absent(section, evidence, "balances")
    consistency(section, evidence)
    words = "Hypsometric residual and geostrophic balance by pressure, members and truth."
    section.add(
        image(
            {words: plot_balances(found)},
            "Medians over states with the range of 5 to 95 %. Members should be as far from "
            "balance as the truth is. The residual is thickness from geopotential less that from "
            "temperature; the angle from the height gradient to the wind is 90° in geostrophic "
            "balance.",
        )
    )
    middle = found.sel(quantile=0.5)
    if "residual" in found:
        rows = [
            [f"{top:g} to {bottom:g} hPa", *(number(v) for v in pair)]
            for top, bottom, pair in zip(
                found["top"].values,
                found["bottom"].values,
                middle["residual"].transpose("layer", "source").values,
                strict=True,
            )
        ]
        told = "Hypsometric residual, root mean square in m, median over states"
        section.add(table(["layer", *found["source"].values.tolist()], rows, told))
    if "angle" in found:
        names = {"angle": "angle, °", "correlation": "correlation of winds"}
        names |= {"speed_correlation": "correlation of speeds", "ratio": "wind / geostrophic"}
        sources = found["source"].values.tolist()
        heads = ["level", *(f"{words}, {s}" for words in names.values() for s in sources)]
        rows = []
        for p in found["level"].values:
            at = middle.sel(level=p)
            cells = [number(at[name].sel(source=s)) for name in names for s in sources]
            rows.append([f"{p:g} hPa", *cells])
        told = "Geostrophic balance from 20° to 80° of latitude, median over states"
        section.add(table(heads, rows, told))
    return section


def consistency(section: Section, evidence: Evidence) -> None:
    r"""The paper's figure of balances."""
    found = evidence.consistency
    if found is None:
        absent(section, evidence, "consistency")
        return
    rows = " and ".join(f"{p:g} hPa" for p in shown_levels(found.values()))
    states = " and ".join(f"{ds.attrs['states']} of the {name}" for name, ds in found.items())
    section.add(
        image(
            {
                f"Densities of ΔH and of the wind's angle at {rows}, and how its size goes with "
                "the geostrophic wind's by pressure, members and truth.": plot_physics(found)
            },
            "ΔH is the altitude of a level from geopotential less that from temperature, θ the "
            "angle from the gradient of geopotential to the wind, which in balance is 90°: cos θ "
            "at 0, sin θ at 1. Near the surface friction turns the wind, and the truth's too. "
            "Members should lie on the truth's curves; a wider ΔH is noise between levels. Of "
            f"states, {states}; by area, the wind's from 20° to 80° of latitude.",
        )
    )


def time(evidence: Evidence) -> Section:
    section, found = Section("Changes in time"), evidence.temporal
    if found is None:
        return absent(section, evidence, "temporal")
    section.add(
        image(
            {
                f"Spectra in time and quantiles of tendencies of {', '.join(group)}.": (
                    plot_changes(found, group)
                )
                for group in several(evidence.channels)
            },
            "Above, power by period: members on the truth's curve change as fast as it does. "
            "Below, quantiles of changes from 0.1 to 99.9 %: on the line both change alike.",
        )
    )
    heads = ["channel", "what", "unit"]
    lags = found["lag"].values.tolist()
    for lag in lags:
        heads += [f"{lag} h, truth", f"{lag} h, members", "ratio", "±"]
    heads += ["jump", "95 %", "bend", "95 %"]
    rows = []
    for channel in found["channel"].values.tolist():
        words, scale, unit = words_of(found, channel)
        at, row = found.sel(channel=channel), [channel, words, unit]
        for lag in lags:
            std = at["tendency_std"].sel(lag=lag)
            row += [number(std.sel(source=s), scale) for s in ("truth", "members")]
            row += [number(at[f"tendency_ratio{end}"].sel(lag=lag)) for end in ("", "_error")]
        for order in (1, 2):
            # of mean squares, whose root is how much faster
            jump = np.sqrt(at.sel(order=order)[["jump_excess", *ENDS]])
            low, high = (number(jump[end]) for end in ENDS)
            row += [number(jump["jump_excess"]), NONE if NONE in (low, high) else f"{low} … {high}"]
        rows.append(row)
    caption = (
        "Standard deviation of tendencies, members' over truth's with its standard error; and how "
        "much faster members change, and bend, where windows join than the truth does at the same "
        "hours, by roots of mean squares over those of other hours: 1 is right, "
        f"{NONE} where the run has no or too few joints"
    )
    return section.add(table(heads, rows, caption, text=3))
