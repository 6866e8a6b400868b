r"""Tables of the structure of analyses: energy by wavelength, balances; see `results_page.py`."""

from __future__ import annotations

import numpy as np
import xarray as xr
from prior_page import number, table
from results_figures import energies as spectra_of
from results_figures import quantiles
from results_scores import Results

__all__ = ["balanced", "energies"]

BANDS = ((10_000.0, np.inf), (3_000.0, 10_000.0), (1_270.0, 3_000.0))  # km; the planet has no more
LEVELS = (250, 500, 850)
BOTTOMS = (1000, 850, 500, 250)  # of layers


def energies(results: Results) -> str:
    r"""The energy of members over the truth's, by bands of wavelengths."""
    if f"spectra-{results.first}" not in results.parts:
        return "\n"
    found, rows = spectra_of(results), []
    wavelength = found["wavelength"].values
    for source in [s for s in found["source"].values if s != "truth"]:
        for low, high in BANDS:
            at = (wavelength >= low) & (wavelength < high) & (found["wavenumber"].values > 0)
            cells = []
            for channel in found["channel"].values:
                part = found["spectrum"].sel(channel=channel).isel(wavenumber=np.flatnonzero(at))
                medians = part.sel(quantile=0.5).sum("wavenumber")
                ratio = float(medians.sel(source=source) / medians.sel(source="truth"))
                cells.append(number(ratio, 2))
            band = f"{low:,.0f}–{high:,.0f} km" if np.isfinite(high) else f"over {low:,.0f} km"
            rows.append([f"{source}, {band}", *cells])
    return table(["energy over the truth's", *found["channel"].values.tolist()], rows)


def balanced(results: Results) -> str:
    r"""Medians of balances, those of the truth in parentheses."""
    if f"balances-{results.first}" not in results.parts:
        return "\n"
    found = quantiles(results, f"balances-{results.first}").sel(quantile=0.5)
    rows = []
    for name, words, digits in (
        ("angle", "angle of wind and gradient of geopotential, °", 1),
        ("angle_spread", "its spread, °", 1),
        ("correlation", "correlation with the geostrophic wind", 3),
        ("speed_correlation", "correlation of magnitudes", 3),
    ):
        if name in found:
            levels = [p for p in LEVELS if p in found["level"].values]
            at = found[name].sel(level=levels)
            rows.append([words, *(_beside(at.sel(level=p), digits) for p in levels)])
    header = ["members (truth)", *(f"{p} hPa" for p in LEVELS if p in found["level"].values)]
    parts = [table(header, rows)] if rows else []
    if "residual" in found:
        layers = list(zip(found["top"].values, found["bottom"].values, strict=True))
        chosen = [k for k, (_, bottom) in enumerate(layers) if bottom in BOTTOMS]
        cells = [_beside(found["residual"].isel(layer=k), 2) for k in chosen]
        names = [f"{layers[k][1]:.0f}–{layers[k][0]:.0f} hPa" for k in chosen]
        words = "thickness against the hypsometric integral, m"
        parts.append(table([words, *names], [["members (truth)", *cells]]))
    return "\n".join(parts)


def _beside(at: xr.DataArray, digits: int) -> str:
    members, truth = (float(at.sel(source=s)) for s in ("members", "truth"))
    return f"{number(members, digits)} ({number(truth, digits)})"
