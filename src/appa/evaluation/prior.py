r"""Is what the prior draws weather?

Trajectories are drawn for the hours of truth windows spread over a split, decoded, and what the
decoder cannot express is added to them, drawn from its own distribution. Truth, draws, and the
reconstructions of the truth, which are the best that is decoded, are summed up in the same way by
:class:`appa.evaluation.trajectories.Trajectories`, which defines the quantities: autocorrelation,
variance hour by hour, tendencies inside windows and across their joints, mean and standard
deviation at each point, differences across the seam, spectra.

Maps of finite sets of trajectories differ even where both are of the same weather. By how much is
estimated from halves of the truth: two sets of :math:`N` differ by :math:`1 / \sqrt 2` of what two
sets of :math:`N / 2` do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from ..diffusion.sampling import Noise, hour_numbers
from ..errors import DataError
from ..observations.residual import STREAM, ResidualSampler
from ..progress import progress
from ..tasks.prior import draw_prior, prior_settings, window_count
from .reconstruction import fine_energy, named, relative_steps, resolved, seam, shown
from .spectra import QUANTILES, truncation, wavelength
from .streaming import Climate, Domain, batches, open_climatology, windows
from .trajectories import Trajectories

if TYPE_CHECKING:
    from ..tasks.model import Model

__all__ = ["LAGS", "PAPER", "SOURCES", "score_prior", "summarize"]

SOURCES = ("truth", "reconstruction", "draws")
PAPER = ("t2m", "u10", "v10", "tp", "q700", "z500", "z850", "t850")  # of the paper's figures
SPACE = ("latitude", "longitude")
LAGS = (1, 6, 12, 23, 24, 36, 48)  # hours, those that are told


def score_prior(
    model: Model,
    store: Any,
    *,
    climatology: Any,
    members: int = 64,
    hours: Sequence[int] = (24, 72),
    stride: int | None = None,
    steps: int | None = None,
    understated: float | None = None,
    mode: str | None = None,
    split: str | tuple[Any, Any] | None = "test",
    channels: Sequence[str] | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
    batch: int = 4,
    decode: int = 16,
    residual: bool = True,
) -> xr.Dataset:
    r"""Compares trajectories drawn from the prior with those of a store.

    Arguments:
        model: A model with a denoiser, as :func:`appa.load` gives it.
        store: The store; its hours may have gaps, but it must hold stretches of each length.
        climatology: The climatology anomalies are from: itself, its file, or `planet`.
        members: The number of trajectories of each length.
        hours: Their lengths :math:`L`, 2 or more, in any order.
        stride: The hours :math:`\Delta` between windows, by default the configuration's.
        steps: The steps of the sampler, by default the configuration's.
        understated: The share by which noise is understated, likewise.
        mode: Beyond a window, `sequential`, windows one after the other, as by default, or
            `composed`.
        split: As in :func:`appa.evaluation.reconstruction.score_autoencoder`.
        channels: The channels scored, by default the surface fields and all others on the levels
            :data:`appa.evaluation.reconstruction.LEVELS`.
        seed: The seed of the draws and of the hours they are for.
        device: Where the networks run.
        batch: The number of trajectories, and of windows, at once.
        decode: The number of states encoded and decoded at once.
        residual: Whether draws have what the decoder cannot express, where the model knows it, as
            those of :meth:`appa.tasks.model.Model.sample` do.

    Returns:
        Scores by `length`, `source` (truth, reconstruction, draws) and `channel`; what a shorter
        trajectory does not have is NaN. See :func:`summarize` for the figures to quote.
    """
    clim = open_climatology(climatology)
    if clim is None:
        raise DataError(
            "anomalies need a climatology: fit one with appa data climatology STORE OUT, or give "
            "'planet' for the bundled planet's"
        )
    hours = sorted(set(hours))
    if not hours or hours[0] < 2:
        raise DataError(
            f"found trajectories of {hours[0] if hours else 'no'} hours, expected 2 or more: what "
            "is scored is how they change from hour to hour"
        )
    window, stride = model.config.window, int(stride or model.config.sampling.stride)
    if stride > window or (window - stride) % 2:
        raise DataError(
            f"found a stride of {stride}, expected from 1 to the window, {window}, and "
            f"{'odd' if window % 2 else 'even'} as it: a window gives its middle hours"
        )
    domain = Domain(model, store, channels, device)
    if channels is None:
        domain = Domain(model, store, [domain.names[k] for k in shown(domain)], device)
    climate = Climate(clim, domain)
    model.to(device)
    rep = model.representation if residual else None
    remainder = None if rep is None else ResidualSampler(rep, device=domain.device)
    loaders = [
        windows(model, store, split, hours=length, count=members, batch=batch, seed=seed)
        for length in hours
    ]
    settings = prior_settings(
        model.config, mode=mode, stride=stride, steps=steps, understated=understated
    )
    counts = [window_count(length, window, settings) for length in hours]
    total = sum(n * len(loader.starts) for n, loader in zip(counts, loaders, strict=True))

    parts = []
    with progress(settings.steps * total, "drawing and scoring", "steps of windows") as p:
        for length, loader in zip(hours, loaders, strict=True):
            sources = {name: Trajectories(domain, climate, length) for name in SOURCES}
            for x, dates in loader:
                several = len(x)
                numbers = range(sources["draws"].count, sources["draws"].count + several)
                z = draw_prior(
                    model,
                    dates,
                    numbers,
                    settings,
                    seed=seed,
                    batch=batch,
                    advance=lambda count, n=several: p.advance(count * n),
                )
                found = _states(model, domain, x.flatten(0, 1), z.flatten(0, 1), decode)
                for name, states in found:
                    states = states.unflatten(0, dates.shape)
                    if name == "draws" and remainder is not None:
                        noise = Noise(seed, numbers, hour_numbers(dates), key=(STREAM,))
                        above = model.above_zero(z, rep, decode)
                        r = remainder.free(
                            length, several, noise, channels=domain.index, above=above
                        )
                        states = states + r
                    sources[name].update(states, dates)
            parts.append(_dataset(domain, sources, settings.joints(length, window, observed=False)))

    scores = xr.concat(
        parts,
        xr.DataArray(list(hours), dims="length", name="length", attrs={"units": "h"}),
        join="outer",
        coords="minimal",
        data_vars="all",
        compat="override",
    )
    about = {
        "mode": "sequential" if settings.sequential(max(hours), window) else "composed",
        "members": members,
        "stride": stride,
        "window": window,
        "steps": settings.steps,
        "understated": settings.understated,
        "seed": seed,
    }
    drawn = "none" if remainder is None else "drawn"
    return scores.assign_attrs(about, residual=drawn, split=str(split), store=named(store))


@torch.no_grad()
def _states(
    model: Model, domain: Domain, x: Tensor, z: Tensor, decode: int
) -> Iterator[tuple[str, Tensor]]:
    r"""The scored channels of states of each source, one source after the other."""
    yield "truth", domain.select(x).to(domain.device)
    again = [
        domain.select(model.decode(model.encode(part.to(domain.device)))).float()
        for part in batches(x, decode)
    ]
    yield "reconstruction", torch.cat(again)
    del again
    yield "draws", torch.cat([domain.select(model.decode(p)).float() for p in batches(z, decode)])


def _dataset(
    domain: Domain, sources: Mapping[str, Trajectories], joints: Sequence[int]
) -> xr.Dataset:
    r"""The scores of trajectories of one length."""
    truth = sources["truth"]
    length, last = truth.length, truncation(domain.grid)
    joints = [hour for hour in joints if hour < length]
    mapped = [k for k, name in enumerate(domain.names) if name in PAPER]
    scale, place = domain.std[mapped, None, None], domain.mean[mapped, None, None]
    weights = domain.weights.cpu().double().numpy()

    def distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.sqrt((weights * (a - b) ** 2).sum((-2, -1)))

    def physical(field: np.ndarray, offset: Any = 0.0) -> np.ndarray:
        field = np.where(domain.defined[mapped], scale * field[mapped] + offset, np.nan)
        return field.astype(np.float32)

    rows: dict[str, list[np.ndarray]] = {}
    _, _, bias, weather = truth.moments()
    unit = np.sqrt((weights * weather**2).sum((-2, -1)))
    unit = np.where(unit > 0.01, unit, np.nan)  # a prescribed SST has no weather
    for source in sources.values():
        energy = np.full((len(QUANTILES), len(domain.channels), last + 1), np.nan)
        if source.spectral:
            energy[:, source.spectral] = source.spectra.quantiles()
        m, s, b, w = source.moments()
        rho, rho_error = source.autocorrelation()
        variance, variance_error = source.variance()
        across, across_error = source.across(1, joints)
        kink, kink_error = source.across(2, joints)
        for name, value in {
            "autocorrelation": rho,
            "autocorrelation_error": rho_error,
            "variance": variance,
            "variance_error": variance_error,
            "tendency": source.changes(1),
            "curvature": source.changes(2),
            "tendency_across": across,
            "tendency_across_error": across_error,
            "curvature_across": kink,
            "curvature_across_error": kink_error,
            "steps": source.steps(),
            "spectrum": energy,
            "mean_distance": distance(b, bias) / unit,
            "std_distance": distance(w, weather) / unit,
            "std_ratio": np.sqrt((weights * w**2).sum((-2, -1))) / unit,
            "mean": physical(m, place),
            "std": physical(s),
            "weather_std": physical(w),
            "example": np.asarray(source.example, np.float32)[mapped],
        }.items():
            rows.setdefault(name, []).append(value)

    halves = [truth.moments(half) for half in (0, 1)] if truth.count > 1 else [truth.moments()] * 2
    kinds = {
        "lag": ("autocorrelation", "autocorrelation_error"),
        "hour": ("variance", "variance_error", "tendency", "curvature"),
        "longitude": ("steps",),
    }
    dims: dict[str, tuple[str, ...]] = {
        name: ("channel", dim) for dim, names in kinds.items() for name in names
    }
    dims["spectrum"] = ("quantile", "channel", "wavenumber")
    dims |= dict.fromkeys(("mean", "std", "weather_std", "example"), ("mapped", *SPACE))
    data: dict[str, Any] = {
        name: (("source", *dims.get(name, ("channel",))), np.stack(values))
        for name, values in rows.items()
    }
    data["mean_expected"] = ("channel", distance(halves[0][2], halves[1][2]) / unit / np.sqrt(2))
    data["std_expected"] = ("channel", distance(halves[0][3], halves[1][3]) / unit / np.sqrt(2))
    data["weather"] = ("channel", unit, {"units": "standard deviations"})
    data["joint"] = ("hour", np.isin(np.arange(length), joints).astype(np.float64))
    data["trajectories"] = ((), truth.count)
    data["example_time"] = ((), truth.example_time)
    coords = domain.coordinates() | {
        "source": list(SOURCES),
        "mapped": [domain.names[k] for k in mapped],
        "lag": ("lag", truth.lags, {"units": "h"}),
        "hour": ("hour", np.arange(length), {"units": "h"}),
        "quantile": list(QUANTILES),
        "wavenumber": np.arange(last + 1),
        "wavelength": ("wavenumber", wavelength(np.arange(last + 1)), {"units": "km"}),
    }
    return xr.Dataset(data, coords)


def summarize(scores: xr.Dataset) -> dict[str, Any]:
    r"""The figures to quote, for each length of trajectories."""
    return {str(int(length)): _summary(scores.sel(length=length)) for length in scores["length"]}


def _summary(scores: xr.Dataset) -> dict[str, Any]:
    channels = [c for c in PAPER if c in scores["channel"].values]
    rho = scores["autocorrelation"].sel(channel=channels)
    lags = [lag for lag in LAGS if lag in rho["lag"] and np.isfinite(rho.sel(lag=lag)).any()]
    short = [lag for lag in lags if lag < 24]
    rho = rho.sel(lag=lags)
    errors = scores["autocorrelation_error"].sel(channel=channels, lag=lags)
    error = (errors.sel(source=["truth", "draws"]) ** 2).sum("source") ** 0.5
    gap = (rho - rho.sel(source="truth")).sel(source=["reconstruction", "draws"])
    ratio = scores["variance"] / scores["variance"].sel(source="truth").mean("hour")
    by_hour = ratio.sel(source="draws", channel=channels).mean("channel").dropna("hour")
    tendency = (scores["tendency"] ** 2).mean("hour") ** 0.5
    found: dict[str, Any] = {
        "trajectories": int(scores["trajectories"]),
        "autocorrelation": {
            c: {
                str(lag): {s: float(rho.sel(channel=c, lag=lag, source=s)) for s in SOURCES}
                | {"error": float(error.sel(channel=c, lag=lag))}
                for lag in lags
            }
            for c in channels
        },
        "autocorrelation_gap": {
            s: float(abs(gap.sel(source=s, lag=short)).max()) for s in ("reconstruction", "draws")
        },
        "variance_ratio": _each(ratio.sel(channel=channels).mean("hour"), "draws"),
        "variance_by_hour": {"least": float(by_hour.min()), "most": float(by_hour.max())},
        "tendency_ratio": _each(tendency.sel(channel=channels), "draws", True),
        "std_ratio": _each(scores["std_ratio"].sel(channel=channels), "draws"),
        "mean_distance": _each(scores["mean_distance"].sel(channel=channels), "draws"),
        "mean_expected": _each(scores["mean_expected"].sel(channel=channels)),
        "mean_distance_total": float(scores["mean_distance"].sel(source="draws").mean()),
        "mean_expected_total": float(scores["mean_expected"].mean()),
        "std_distance_total": float(scores["std_distance"].sel(source="draws").mean()),
        "std_expected_total": float(scores["std_expected"].mean()),
        "resolved": resolved(scores, "draws"),
        "fine_energy": fine_energy(scores, "draws"),
    }
    for source in ("reconstruction", "draws"):
        found[f"seam_{source}"] = seam(relative_steps(scores, source).values)
    if float(scores["joint"].sum()) > 0:
        for name in ("tendency_across", "curvature_across"):
            found[name] = {
                c: {s: float(scores[name].sel(source=s, channel=c)) for s in ("truth", "draws")}
                | {"error": float(scores[f"{name}_error"].sel(source="draws", channel=c))}
                for c in channels
            }
    return found


def _each(
    values: xr.DataArray, source: str | None = None, relative: bool = False
) -> dict[str, float]:
    r"""Values by channel, of a source, or relative to the truth's."""
    if source is not None:
        truth = values.sel(source="truth")
        values = values.sel(source=source) / truth if relative else values.sel(source=source)
    return dict(zip(values["channel"].values.tolist(), values.values.tolist(), strict=True))
