r"""Tables of the structure of analyses: energy by wavelength, balances, changes with time; see
`results_page.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from prior_page import number, table
from results_figures import energies as spectra_of
from results_figures import quantiles
from results_scores import Results

from appa.evaluation.trajectories import jackknife

__all__ = ["balanced", "changes", "energies"]

BANDS = ((10_000.0, np.inf), (3_000.0, 10_000.0), (1_270.0, 3_000.0))  # km; the planet has no more
LEVELS = (250, 500, 850)
SOURCES = ("members", "truth")
FAST = 6  # hours
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
    r"""Medians of balances of members and what stands beside them, the truth's in parentheses."""
    first = results.first
    kinds = {"members": "balances", "decoder": "decoder-balances"}
    kinds |= {"interpolation": "interpolation-balances"}
    products = {k: p if k == "decoder" else f"{p}-{first}" for k, p in kinds.items()}
    found = {
        name: quantiles(results, product).sel(quantile=0.5)
        for name, product in products.items()
        if product in results.parts
    }
    if "members" not in found:
        return "\n"
    main, rows = found["members"], []
    levels = [p for p in LEVELS if p in main["level"].values]
    for name, words, digits in (
        ("angle", "angle of wind and gradient of geopotential, °", 1),
        ("angle_spread", "its spread, °", 1),
        ("correlation", "correlation with the geostrophic wind", 3),
        ("speed_correlation", "correlation of magnitudes", 3),
    ):
        if name in main:
            at = [[ds[name].sel(level=p) for ds in found.values()] for p in levels]
            rows.append([words, *(_beside(parts, digits) for parts in at)])
    names = f"{', '.join(found)} (truth)"
    parts = [table([names, *(f"{p} hPa" for p in levels)], rows)] if rows else []
    if "residual" in main:
        layers = list(zip(main["top"].values, main["bottom"].values, strict=True))
        chosen = [k for k, (_, bottom) in enumerate(layers) if bottom in BOTTOMS]
        at = [[ds["residual"].isel(layer=k) for ds in found.values()] for k in chosen]
        heads = [f"{layers[k][1]:.0f}–{layers[k][0]:.0f} hPa" for k in chosen]
        words = "thickness against the hypsometric integral, m"
        parts.append(table([words, *heads], [[names, *(_beside(parts, 2) for parts in at)]]))
    return "\n".join(parts)


def _beside(parts: Sequence[xr.DataArray], digits: int) -> str:
    members = ", ".join(number(float(at.sel(source="members")), digits) for at in parts)
    return f"{members} ({number(float(parts[0].sel(source='truth')), digits)})"


def changes(results: Results) -> str:
    r"""How fast members change from hour to hour, over how fast the truth does, and across joints:
    ratios of root mean squares, and of energies where that is told."""
    rows, channels = [], results.channels
    for hours in results.windows:
        dates = list(results.parts.get(f"changes-{hours}", {}).values())
        if not dates:
            continue
        known = [c for c in channels if c in dates[0]["channel"].values]
        squares = np.stack([ds["tendency_std"].sel(channel=known) ** 2 for ds in dates])
        for k, lag in enumerate(dates[0]["lag"].values):
            axis = dates[0]["tendency_std"].dims.index("lag") + 1
            members, truth = (_of(squares.take(k, axis), dates, source) for source in SOURCES)
            cells = _ratios(np.sqrt, members, truth)
            rows.append([f"{hours} h: change over {lag} h", *cells, str(len(dates))])
        fast = dates[0]["period"].values <= FAST
        power = np.stack([ds["spectrum"].sel(channel=known).values[..., fast].sum(-1)
                          for ds in dates])  # fmt: skip
        members, truth = (_of(power, dates, source) for source in SOURCES)
        cells = _ratios(lambda x: x, members, truth)
        rows.append([f"{hours} h: energy of periods to {FAST} h", *cells, str(len(dates))])
        jumps = [ds["jump"].sel(channel=known, order=1) for ds in dates]
        if np.isfinite(jumps[0]).all():
            # of mean squares, whose root is how much faster, as of the rows above
            members, truth = (np.stack([j.sel(source=s) for j in jumps]) for s in SOURCES)
            cells = _ratios(np.sqrt, members, truth)
            rows.append([f"{hours} h: across joints over other hours", *cells, str(len(dates))])
    if not rows:
        return "\nThis has not been told of these dates.\n\n"
    return table(["members over truth", *known, "dates"], rows)


def _of(values: NDArray[Any], dates: Sequence[xr.Dataset], source: str) -> NDArray[Any]:
    return values[:, dates[0]["source"].values.tolist().index(source)]


def _ratios(of: Callable[[Any], Any], members: NDArray[Any], truth: NDArray[Any]) -> list[str]:
    r"""The ratio of means over dates, :math:`(D, C)`, and its standard error by the jackknife."""
    both = np.stack([members, truth])
    value, error = jackknife(np.moveaxis(both, 0, 1), lambda m: of(m[:, 0] / m[:, 1]))
    told = zip(value, error, strict=True)
    return [f"{number(v, 2)} ± {number(e, 2)}" for v, e in told]
