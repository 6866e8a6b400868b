r"""The figures of `docs/results/assimilation.md`; see `results_page.py`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from appa.evaluation.calibration import coverage, frequencies, pit, reliability, uniformity
from appa.evaluation.scores import metrics, pool
from appa.evaluation.spectra import QUANTILES
from appa.plots.calibration import plot_ranks
from appa.plots.curves import plot_levels, plot_scores
from appa.plots.prior import plot_spectra
from appa.plots.structure import plot_balances, plot_wavelengths

__all__ = ["SYSTEMS", "calibrated", "figures"]

SYSTEMS = {  # what forecasts stand beside, and the products' names
    "forecast": "forecast",
    "full-state": "forecast-full",
    "full-state, decoded": "forecast-encoded",
    "persistence of the analysis": "persistence-analysis",
    "persistence of the truth": "persistence-truth",
    "climatology": "climatology",
    "prior": "prior",
}
COLUMNS = 5  # channels of a figure


def figures(results: Any) -> dict[str, Callable[[], Any]]:
    r"""What draws the figures that there are results for, by name."""
    first, channels = results.first, results.shown[:COLUMNS]
    found: dict[str, Callable[[], Any]] = {
        "windows": lambda: plot_windows(results, channels),
        "hours": lambda: plot_hours(results, channels),
        "levels": lambda: plot_levels(levels(results)),
    }
    later = {k: p for k, p in SYSTEMS.items() if p in results.parts}
    more: dict[str, Callable[[], Any]] = {
        "ranks": lambda: plot_calibration(results),
        "spectra": lambda: plot_spectra(energies(results), tuple(results.channels)),
        "wavelengths": lambda: plot_waves(results),
        "balances": lambda: plot_balances(quantiles(results, f"balances-{first}")),
    }
    if later:
        scores = {k: partial(results.by_lead, p) for k, p in later.items()}
        found["forecasts"] = lambda: plot_scores({k: f() for k, f in scores.items()}, channels)
    return found | {k: draw for k, draw in more.items() if f"{k}-{first}" in results.parts}


def plot_calibration(results: Any) -> Any:
    ranks = calibrated(results, f"ranks-{results.first}")
    assert ranks is not None
    rows = ("ranks", "coverage", *(("reliability",) if "reliability_ratio" in ranks else ()))
    few = [c for c in results.channels if c in ranks["channel"].values][:COLUMNS]
    return plot_ranks(ranks, few or None, rows=rows)


def plot_waves(results: Any) -> Any:
    waves = wavelengths(results)
    few = [c for c in results.channels if c in waves["channel"].values][:COLUMNS]
    return plot_wavelengths(waves, few)


def plot_hours(results: Any, channels: list[str]) -> Any:
    r"""Scores by the hour of the window."""
    inside = {"analysis": results.by_hour(results.main)}
    if f"interpolation-{results.first}" in results.parts:
        inside["interpolation"] = results.by_hour(f"interpolation-{results.first}")
    figure = plot_scores(inside, channels)
    _below(figure, "hour of the window")
    return figure


def plot_windows(results: Any, channels: list[str]) -> Any:
    r"""Scores by the length of the window."""
    scores = {"analysis": results.by_window(False), "filter": results.by_window(True)}
    if any(name.startswith("interpolation-") for name in results.parts):
        scores["interpolation"] = results.by_window(True, "interpolation")
    figure = plot_scores(scores, channels)
    lengths = results.windows
    for ax in figure.axes:
        ax.set_xscale("log", base=2)
        ax.set_xticks(lengths, [str(h) for h in lengths])
        ax.minorticks_off()
    _below(figure, "window, h")
    return figure


def _below(figure: Any, words: str) -> None:
    for ax in figure.axes:
        if ax.get_xlabel():
            ax.set_xlabel(words)


def levels(results: Any) -> dict[str, xr.Dataset]:
    r"""Scores of all dates by channel, of analyses and what stands beside them."""
    kinds = {"analysis": results.main, "climatology": "climatology", "prior": "prior"}
    kinds["interpolation"] = f"interpolation-{results.first}"
    found = {}
    for name, product in kinds.items():
        if product in results.parts:
            parts = [pool(ds) for ds in results.parts[product].values()]
            joined = xr.concat(parts, "time", coords="minimal", compat="override")
            found[name] = metrics(pool(joined.assign_attrs(parts[0].attrs)))
    return found


def calibrated(results: Any, product: str) -> xr.Dataset | None:
    r"""What the ranks of all dates tell, each date being one sample."""
    parts = list(results.parts.get(product, {}).values())
    if not parts:
        return None
    counts: xr.Dataset = xr.concat(  # type: ignore
        [part[["count"]] for part in parts],
        "time",
        coords="minimal",
        compat="override",
        combine_attrs="override",
    )
    ds = uniformity(counts)
    ds["frequency"], ds["pit"] = frequencies(counts), pit(counts)
    covered = coverage(counts)
    ds["coverage"], ds["coverage_expected"] = covered["coverage"], covered["expected"]
    if all("sorted" in part for part in parts):
        total = sum(part["sorted"].astype(np.float64) for part in parts)
        sums = xr.Dataset({"sorted": total}, attrs=counts.attrs)
        for name, value in reliability(sums).data_vars.items():
            ds[f"reliability_{name}"] = value
    return ds.assign_attrs(counts.attrs)


def quantiles(results: Any, product: str) -> xr.Dataset:
    r"""Quantiles over the states of all dates."""
    parts = list(results.parts[product].values())
    joined = xr.concat(parts, "state", coords="minimal", compat="override")
    found = joined.astype(np.float64).quantile(QUANTILES, "state")
    return found.transpose("source", "quantile", ...)


def energies(results: Any) -> xr.Dataset:
    r"""Quantiles of spectra, those of optimal interpolation beside them."""
    found = quantiles(results, f"spectra-{results.first}")
    product = f"interpolation-spectra-{results.first}"
    if product in results.parts:
        other = quantiles(results, product).sel(source=["members"])
        other = other.assign_coords(source=["interpolation"])
        found = xr.concat([found, other], "source", coords="minimal", compat="override")
    return found.transpose("source", "quantile", "channel", "wavenumber")


def wavelengths(results: Any) -> xr.Dataset:
    r"""Error and spread by wavelength of all dates, and the ratio that follows."""
    parts = list(results.parts[f"wavelengths-{results.first}"].values())
    joined = xr.concat(
        [part[["error", "variance"]] for part in parts],
        "date",
        coords="minimal",
        compat="override",
        combine_attrs="override",
    )
    means = joined.astype(np.float64).mean("date", skipna=False, keep_attrs=True)
    members = int(means.attrs["members"])
    ratio = np.sqrt((members + 1) / members * means["variance"] / means["error"])
    return means.assign(ratio=ratio.where(means["error"] > 0))
