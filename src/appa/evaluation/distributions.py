r"""What fields are like, wherever: spectra of members beside the truth's, and signed errors.

* Spectra (:mod:`appa.evaluation.spectra`) are taken of every member and of the truth, at hours
  spread over a run; of each wavenumber the median and the 5 and 95 % quantiles over states are
  kept. Where members are drawn as the truth is, both agree.
* Errors :math:`x_m - y` of members and :math:`\bar{x} - y` of their mean are counted by area in
  equal bins about 0, which reach to four times the root of their mean square at three hours of the
  run. What lies beyond is told, and not drawn.

No more fields are held than a block of hours of one variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from ..data.grids import Grid
from ..data.reduction import reduce_blocks
from ..data.stores import open_store
from ..errors import DataError
from .ensembles import blocks_of, matched, read_block, scored_channels, short_name
from .spectra import QUANTILES, power_spectrum, truncation, wavelength

__all__ = ["signed_errors", "spectra"]

REACH = 4.0  # of the bins, in root-mean-square errors
HOURS = 48  # of spectra


def spectra(
    estimate: xr.Dataset,
    truth: Any,
    *,
    variables: Sequence[str] | None = None,
    hours: int = HOURS,
    scheduler: Any = None,
    workers: int | None = None,
) -> xr.Dataset:
    r"""Quantiles of the spectra of members and truth.

    Arguments:
        estimate, truth, variables, scheduler, workers: As of
            :func:`appa.evaluation.ensembles.averages`. A field that is undefined somewhere has no
            spectrum.
        hours: The most hours of which spectra are taken.

    Returns:
        `spectrum` in the unit squared, with dimensions `(source, quantile, channel, wavenumber)`,
        `source` being `truth` and `members`, and `wavelength` in km.
    """
    if hours < 1:
        raise DataError(f"spectra are of 1 hour or more, found hours={hours}")
    estimate, truth, channels, grid = _opened(estimate, truth, variables)
    there = estimate.sizes["time"]
    index = np.unique(np.linspace(0, there - 1, min(hours, there)).round().astype(int))
    estimate, truth = estimate.isel(time=index), truth.isel(time=index)
    work = partial(_spectra, estimate, truth, grid)
    found = _reduce(work, estimate, channels, scheduler, workers)

    last = truncation(grid) + 1
    values = np.full((2, len(QUANTILES), len(channels), last), np.nan)
    for k, channel in enumerate(channels):
        blocks = [part[channel] for part in found if channel in part]
        for s in range(2):
            energy = np.concatenate([block[s] for block in blocks])
            energy = energy[np.isfinite(energy).all(axis=1)]
            if len(energy):
                values[s, :, k] = np.quantile(energy, QUANTILES, axis=0)
    degree = np.arange(last)
    told = {"long_name": "energy by total wavenumber, in the unit squared"}
    dims = ("source", "quantile", "channel", "wavenumber")
    coords: dict[str, Any] = {
        "source": ["truth", "members"],
        "quantile": list(QUANTILES),
        "wavenumber": degree,
        "wavelength": ("wavenumber", wavelength(degree), {"units": "km"}),
        **_coordinates(truth, channels),
    }
    about = {"members": estimate.sizes["member"], "hours": len(index)}
    return xr.Dataset({"spectrum": (dims, values, told)}, coords, about)


def _spectra(estimate: xr.Dataset, truth: xr.Dataset, grid: Grid, part: Any) -> list[Any]:
    r"""The spectra of truth and members of a part by channel, each with shape
    :math:`(N, L + 1)`."""
    name, levels, start, stop = part
    hours, threads = slice(start, stop), 0 if grid.longitudes >= 1000 else 1
    found = {}
    both = [read_block(ds[name], levels, hours) for ds in (truth, estimate)]
    for k, level in enumerate(levels):
        parts = []
        for x in both:
            fields = x[:, :, k].reshape(-1, *grid.shape)
            energy = np.full((len(fields), truncation(grid) + 1), np.nan)
            whole = np.isfinite(fields).all(axis=(1, 2))
            energy[whole] = power_spectrum(fields[whole], grid, threads=threads)
            parts.append(energy)
        found[name, level] = parts
    return [found]


def signed_errors(
    estimate: xr.Dataset,
    truth: Any,
    *,
    variables: Sequence[str] | None = None,
    bins: int = 81,
    scheduler: Any = None,
    workers: int | None = None,
) -> xr.Dataset:
    r"""Histograms of signed errors by area.

    Arguments:
        estimate, truth, variables, scheduler, workers: As of
            :func:`appa.evaluation.ensembles.averages`.
        bins: The number of bins, of which an odd one is centred on 0.

    Returns:
        `density`, in the inverse of the unit, with dimensions `(source, channel, bin)`, `source`
        being `members` and `mean`, or `members` alone where there is one; `error`, the bins'
        centres, with dimensions `(channel, bin)`; `outside`, the share beyond the bins, and
        `bias`, the mean error, with dimensions `(source, channel)`.
    """
    if bins < 2:
        raise DataError(f"a histogram has 2 bins or more, found bins={bins}")
    estimate, truth, channels, grid = _opened(estimate, truth, variables)
    sources = ["members", "mean"] if estimate.sizes["member"] > 1 else ["members"]
    half = _reach(estimate, truth, channels, grid)
    work = partial(_count, estimate, truth, grid, half, bins, len(sources))
    found = _reduce(work, estimate, channels, scheduler, workers)
    counts = np.zeros((len(sources), len(channels), bins + 3))  # two beyond, and the sum of errors
    for part in found:
        for channel, values in part.items():
            counts[:, channels.index(channel)] += values
    total = counts[..., :-1].sum(axis=-1)
    total = np.where(total > 0, total, np.nan)
    reach = np.array([half[channel] for channel in channels])
    width = 2 * reach / bins
    centre = -reach[:, None] + width[:, None] * (np.arange(bins) + 0.5)
    dims = ("source", "channel", "bin")
    data = {
        "density": (
            dims,
            counts[..., 1 : bins + 1] / total[..., None] / width[:, None],
            {"long_name": "density of signed errors by area"},
        ),
        "outside": (
            dims[:2],
            (counts[..., 0] + counts[..., bins + 1]) / total,
            {"long_name": "share of the area beyond the bins", "units": "1"},
        ),
        "bias": (dims[:2], counts[..., -1] / total, {"long_name": "mean error"}),
        "error": (dims[1:], centre, {"long_name": "signed error"}),
    }
    coords = {"source": sources, **_coordinates(truth, channels)}
    return xr.Dataset(data, coords, {"members": estimate.sizes["member"]})


def _reach(
    estimate: xr.Dataset, truth: xr.Dataset, channels: Sequence[tuple[str, int | None]], grid: Grid
) -> dict[tuple[str, int | None], float]:
    r"""The half-width of each channel's bins, from three hours."""
    last, found = estimate.sizes["time"] - 1, {}
    for name, level in channels:
        square = []
        for t in {0, last // 2, last}:
            x, y = (read_block(ds[name], (level,), slice(t, t + 1)) for ds in (estimate, truth))
            d = np.asarray(x - y, np.float64)
            w = np.broadcast_to(grid.weights[:, None], d.shape)
            if (known := np.isfinite(d)).any():
                square.append(np.average(d[known] ** 2, weights=w[known]))
        found[name, level] = REACH * (float(np.sqrt(np.mean(square))) if square else 1.0) or 1.0
    return found


def _count(
    estimate: xr.Dataset,
    truth: xr.Dataset,
    grid: Grid,
    half: dict[tuple[str, int | None], float],
    bins: int,
    sources: int,
    part: Any,
) -> list[Any]:
    r"""The area of errors by bin of a part, by channel, with shape :math:`(S, B + 3)`: those in two
    more bins beyond the ends, and last the sum of errors."""
    name, levels, start, stop = part
    hours, found = slice(start, stop), {}
    x, y = (read_block(ds[name], levels, hours) for ds in (estimate, truth))
    w = np.broadcast_to(grid.weights[:, None], grid.shape)
    for k, level in enumerate(levels):
        reach, values = half[name, level], np.zeros((sources, bins + 3))
        for t in range(x.shape[1]):
            d = (x[:, t, k] - y[:, t, k]).astype(np.float64)
            defined = np.isfinite(d).all(axis=0)
            errors = [d[:, defined], d[:, defined].mean(axis=0, keepdims=True)]
            for s in range(sources):
                area = np.broadcast_to(w[defined] / len(errors[s]), errors[s].shape)
                index = np.floor((errors[s] + reach) * bins / (2 * reach)) + 1
                index = np.clip(index, 0, bins + 1).astype(np.int64)
                values[s, :-1] += np.bincount(index.ravel(), area.ravel(), bins + 2)
                values[s, -1] += (area * errors[s]).sum()
        found[name, level] = values
    return [found]


# ---------------------------------------------------------------- what both need


def _opened(estimate: xr.Dataset, truth: Any, variables: Sequence[str] | None) -> Any:
    estimate, truth = matched(estimate, open_store(truth))
    channels = scored_channels(estimate, truth, variables)
    grid = Grid.from_coordinates(truth["latitude"].values, truth["longitude"].values)
    return estimate, truth, channels, grid


def _reduce(work: Any, estimate: xr.Dataset, channels: Any, scheduler: Any, workers: Any) -> Any:
    names = dict.fromkeys(name for name, _ in channels)
    return reduce_blocks(
        work,
        lambda groups: [item for group in groups for item in group],
        [part for name in names for part in blocks_of(estimate, name, channels)],
        scheduler=scheduler,
        workers=workers,
        description="reading",
    )


def _coordinates(truth: xr.Dataset, channels: Sequence[tuple[str, int | None]]) -> dict[str, Any]:
    levels = [np.nan if p is None else float(p) for _, p in channels]
    units = [str(truth[name].attrs.get("units", "1")) for name, _ in channels]
    return {
        "channel": ("channel", [short_name(*c) for c in channels]),
        "variable": ("channel", [name for name, _ in channels]),
        "level": ("channel", levels, {"units": "hPa"}),
        "units": ("channel", units),
    }
