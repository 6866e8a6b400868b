r"""How much of a state survives the autoencoder.

For states :math:`x` of a split and their reconstructions :math:`\hat x = D_\psi(E_\psi(x))`,
standardized, the error of channel :math:`c` is

.. math:: \operatorname{RMSE}_c = \sqrt{\left\langle
    \sum_i w_{c i} \, (\hat x_{c i} - x_{c i})^2 \right\rangle}

with :math:`\langle \cdot \rangle` the mean over states and :math:`w` the weights by area, over the
sea only for SST (see :mod:`appa.evaluation.streaming`); the headline is the mean of
:math:`\operatorname{RMSE}_c` over channels. As most of the standard deviation that standardizes is
climate, the error is also given in units of the weather's own, :math:`\operatorname{RMSE}_c / s_c`,
but for channels that have next to none, :math:`s_c < 0.01`, such as a prescribed SST.

Besides: the bias, the distribution of signed errors, spectra of truth and reconstruction, and what
happens at the seam, where the last longitude meets the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from ..data.variables import VARIABLES
from ..progress import progress
from .spectra import QUANTILES, Spectra, truncation, wavelength
from .streaming import Domain, open_climatology, weather_deviation, windows

if TYPE_CHECKING:
    from ..tasks.model import Model

__all__ = [
    "EDGES",
    "LEVELS",
    "everywhere",
    "fine_energy",
    "named",
    "relative_steps",
    "resolved",
    "score_autoencoder",
    "seam",
    "shown",
    "summarize",
]

EDGES = np.linspace(-1, 1, 201)  # of the bins of signed errors, in standard deviations
LEVELS = (850, 700, 500, 250)  # of spectra, in hPa
HEADLINE = ("t2m", "t850", "z500")  # whose error in units of the weather has a target


def score_autoencoder(
    model: Model,
    store: Any,
    split: str | tuple[Any, Any] | None = "test",
    *,
    states: int = 500,
    climatology: Any = None,
    device: str | torch.device = "cpu",
    batch: int = 16,
    spectra: int = 100,
    seed: int = 0,
) -> xr.Dataset:
    r"""Scores the reconstructions of states spread over a split.

    Arguments:
        model: A model, as :func:`appa.load` gives it.
        store: The store, in any form :class:`appa.data.windows.WindowLoader` takes.
        split: `train`, `validation` or `test` as the model's configuration has them, two dates, or
            :py:`None` for the whole store.
        states: The number of states.
        climatology: A climatology, its file, or `planet` for the bundled one: without it, errors
            are not given in units of the weather.
        device: Where the networks run.
        batch: The number of states at once.
        spectra: The number of states of which spectra are taken, of the surface fields but SST and
            of all others on the levels :data:`LEVELS`.
        seed: The seed by which states are chosen.

    Returns:
        Scores by `channel`; see :func:`summarize` for the figures to quote.
    """
    domain = Domain(model, store, device=device)
    clim = open_climatology(climatology)
    weather = None if clim is None else weather_deviation(clim, domain)
    loader = windows(model, store, split, hours=1, count=states, batch=batch, seed=seed)
    total = len(loader.starts)
    model.to(device)

    sums = _Sums(domain, every=max(1, total // max(spectra, 1)))
    with torch.no_grad(), progress(total, "reconstructing", unit="states") as p:
        for x, dates in loader:
            x = x[:, 0].to(domain.device)
            sums.update(x, model.reconstruct(x).float(), dates[:, 0])
            p.advance(len(dates))
    attrs = {"split": str(split), "states": total, "seed": seed, "store": named(store)}
    return sums.dataset(weather).assign_attrs(attrs)


class _Sums:
    r"""What is kept of the states seen so far."""

    def __init__(self, domain: Domain, every: int):
        self.domain, self.every, self.count = domain, every, 0
        self.square: list[np.ndarray] = []
        self.bias: list[np.ndarray] = []
        self.years: list[np.ndarray] = []
        c, (h, w) = len(domain.channels), domain.grid.shape
        self.counts = np.zeros((c, h, len(EDGES) + 1), np.int64)
        self.columns = np.zeros((c, w))
        self.steps = np.zeros((2, c, w))
        self.shown = [k for k in shown(domain) if k not in domain.masked]
        self.spectra = [Spectra(domain.grid, domain.std[self.shown]) for _ in range(2)]

    def update(self, x: Tensor, y: Tensor, dates: np.ndarray) -> None:
        domain, n = self.domain, len(x)
        error = y - x
        self.square.append(domain.average(error.square()).cpu().double().numpy())
        self.bias.append(domain.average(error).cpu().double().numpy())
        self.years.append(dates.astype("datetime64[Y]").astype(int) + 1970)
        self.counts += self._histogram(error)
        self.columns += n * domain.columns(error.square()).cpu().double().numpy()
        for steps, z in zip(self.steps, (x, y), strict=True):
            steps += n * domain.steps(z).cpu().double().numpy()
        chosen = [k for k in range(n) if (self.count + k) % self.every == 0]
        for spectra, z in zip(self.spectra, (x, y), strict=True):
            if chosen:
                spectra.update(z[chosen][:, self.shown].cpu().numpy())
        self.count += n

    def _histogram(self, error: Tensor) -> np.ndarray:
        r"""Counts of errors by channel and latitude, which have one weight, in the bins and in the
        two beyond them."""
        _, c, h, _ = error.shape
        bins, width = len(EDGES) + 1, EDGES[1] - EDGES[0]
        index = ((error - EDGES[0]) / width).floor_().clamp_(-1, bins - 2).add_(1)
        index.masked_fill_(self.domain.weights <= 0, bins)  # one more, for what is undefined
        rows = torch.arange(c * h, dtype=torch.int32, device=error.device).view(c, h, 1)
        index = index.int().add_((bins + 1) * rows)
        counts = torch.bincount(index.flatten(), minlength=c * h * (bins + 1))
        return counts.view(c, h, bins + 1)[..., :bins].cpu().numpy()

    def dataset(self, weather: np.ndarray | None) -> xr.Dataset:
        domain = self.domain
        square, bias, years = map(np.concatenate, (self.square, self.bias, self.years))
        members = np.unique(years)
        by_year = np.stack([square[years == year].mean(0) for year in members])
        weights = domain.weights.cpu().double().numpy().max(-1)  # of a defined point in a row
        share = (self.counts * weights[..., None]).sum(1) / self.count
        last = truncation(domain.grid)
        energy = np.full((2, len(QUANTILES), len(domain.channels), last + 1), np.nan)
        for k, spectra in enumerate(self.spectra):
            if spectra.parts and self.shown:
                energy[k][:, self.shown] = spectra.quantiles()

        rmse = np.sqrt(square.mean(0))
        data: dict[str, Any] = {
            "rmse": ("channel", rmse, {"units": "standard deviations"}),
            "bias": ("channel", bias.mean(0), {"units": "standard deviations"}),
            "rmse_year": (("year", "channel"), np.sqrt(by_year)),
            "states_year": ("year", [(years == year).sum() for year in members]),
            "deviation": ("channel", domain.std, {"long_name": "what standardizes the channel"}),
            "histogram": (("channel", "bin"), share[:, 1:-1], {"long_name": "share of the area"}),
            "outside": ("channel", share[:, 0] + share[:, -1]),
            "error_longitude": (("channel", "longitude"), self.columns / self.count),
            "steps": (("source", "channel", "longitude"), self.steps / self.count),
            "spectrum": (("source", "quantile", "channel", "wavenumber"), energy),
        }
        if weather is not None:
            told = {"long_name": "standard deviation of anomalies from the climatology"}
            data["weather"] = ("channel", weather, told | {"units": "standard deviations"})
            relative = np.where(weather > 0.01, rmse / weather, np.nan)
            data["rmse_weather"] = ("channel", relative, {"units": "of the weather's"})
        coords = domain.coordinates() | {
            "year": members,
            "bin": (EDGES[1:] + EDGES[:-1]) / 2,
            "source": ["truth", "reconstruction"],
            "quantile": list(QUANTILES),
            "wavenumber": np.arange(last + 1),
            "wavelength": ("wavenumber", wavelength(np.arange(last + 1)), {"units": "km"}),
        }
        return xr.Dataset(data, coords)


def shown(domain: Domain, levels: Sequence[int] = LEVELS) -> list[int]:
    r"""The channels of spectra: the surface fields, and the others on a few levels."""
    present = sorted({c.level for c in domain.channels if c.level is not None})
    near = {min(present, key=lambda p: abs(p - level)) for level in levels} if present else set()
    return [k for k, c in enumerate(domain.channels) if c.level is None or c.level in near]


def seam(profile: np.ndarray) -> dict[str, float]:
    r"""A quantity between neighbouring columns at the seam, and everywhere else.

    Arguments:
        profile: The quantity between each column and the next, with shape :math:`(C, W)`, the last
            being between the last column and the first.

    Returns:
        The mean over channels of its ratio to the channel's mean elsewhere: at the `seam`, and the
        5 % and 95 % quantiles over the other columns, `low` and `high`; NaN where it is 0.
    """
    profile = profile[np.nansum(profile[:, :-1], axis=1) > 0]
    if len(profile) == 0:
        return dict.fromkeys(("seam", "low", "high"), np.nan)
    inside = np.nanmean(profile[:, :-1], axis=1, keepdims=True)
    # SST may be undefined in whole columns
    ratio = np.ma.masked_invalid(profile / inside).mean(axis=0).filled(np.nan)
    low, high = np.nanquantile(ratio[:-1], [0.05, 0.95])
    return {"seam": float(ratio[-1]), "low": float(low), "high": float(high)}


def summarize(scores: xr.Dataset, train: xr.Dataset | None = None) -> dict[str, Any]:
    r"""The figures to quote.

    Arguments:
        scores: Scores of a held-out split.
        train: Scores of the training split, for the gap between both.
    """
    rmse = scores["rmse"]
    variables = list(dict.fromkeys(scores["variable"].values.tolist()))
    by_variable = {v: float(rmse[scores["variable"] == v].mean()) for v in variables}
    by_year = scores["rmse_year"].mean("channel")
    found: dict[str, Any] = {
        "split": scores.attrs["split"],
        "states": int(scores.attrs["states"]),
        "rmse": float(rmse.mean()),
        "rmse_by_year": {int(y): float(v) for y, v in zip(by_year["year"], by_year, strict=True)},
        "rmse_by_variable": by_variable,
        "rmse_by_channel": _by_channel(rmse),
        "bias_largest": float(abs(scores["bias"]).max()),
    }
    if "rmse_weather" in scores:
        weather = _by_channel(scores["rmse_weather"])
        found["weather_headline"] = {c: weather[c] for c in HEADLINE if c in weather}
        found["weather_by_channel"] = weather
    if train is not None:
        found["rmse_train"] = float(train["rmse"].mean())
        found["test_over_train"] = found["rmse"] / found["rmse_train"]
    error = everywhere(scores)["error_longitude"].values
    found["seam_error"] = seam((error + np.roll(error, -1, -1)) / 2)
    found["seam_steps"] = seam(relative_steps(scores, "reconstruction").values)
    found["resolved"] = resolved(scores, "reconstruction")
    found["fine_energy"] = fine_energy(scores, "reconstruction")
    return found


def everywhere(scores: xr.Dataset) -> xr.Dataset:
    r"""The scores of channels that are defined everywhere: no coast crosses their seam."""
    keep = [VARIABLES[v].missing is None for v in scores["variable"].values]
    return scores.isel(channel=np.flatnonzero(keep))


def relative_steps(scores: xr.Dataset, source: str) -> xr.DataArray:
    r"""Mean square differences between neighbouring longitudes, relative to the truth's."""
    steps = everywhere(scores)["steps"]
    truth = steps.sel(source="truth")
    return steps.sel(source=source) / truth.where(truth > 0)


def fine_energy(scores: xr.Dataset, source: str, km: float = 3000.0) -> dict[str, float]:
    r"""The energy at wavelengths below `km` relative to the truth's, by channel, from medians."""
    median = scores["spectrum"].sel(quantile=0.5)
    total = median.isel(wavenumber=np.flatnonzero(scores["wavelength"].values < km))
    total = total.sum("wavenumber", skipna=False)
    ratio = (total.sel(source=source) / total.sel(source="truth")).dropna("channel")
    return _by_channel(ratio)


def resolved(scores: xr.Dataset, source: str, least: float = 0.5) -> dict[str, float]:
    r"""The wavelength in km down to which the median spectrum of a source keeps at least a part of
    the truth's energy, by channel.

    Energies below :math:`10^{-8}` of a channel's are rounding, and not looked at.
    """
    median = scores["spectrum"].sel(quantile=0.5)
    found = {}
    for channel in scores["channel"].values.tolist():
        truth = median.sel(source="truth", channel=channel).values[1:]
        other = median.sel(source=source, channel=channel).values[1:]
        if not np.isfinite(truth).all():
            continue
        lost = (other < least * truth) & (truth > 1e-8 * truth.sum())
        count = int(lost.argmax()) if lost.any() else len(truth)
        if count:
            found[channel] = float(scores["wavelength"].values[count])
    return found


def _by_channel(values: xr.DataArray) -> dict[str, float]:
    return dict(zip(values["channel"].values.tolist(), values.values.tolist(), strict=True))


def named(store: Any) -> str:
    return "a dataset" if isinstance(store, xr.Dataset) else str(store)
