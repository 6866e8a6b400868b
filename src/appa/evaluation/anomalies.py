r"""The covariance of anomalies in space and time, estimated by streaming over a store.

Three passes over the hours of the training data, of which no more than a block is ever held:

1. the variance of anomalies :math:`x - \mu` at each point, regressed on harmonics of the year where
   the data cover it, hence :math:`\sigma`;
2. for the Fourier coefficients :math:`\hat{a}_m` of normalized anomalies along parallels, weighted
   by the root of area, the product :math:`Y_m = C_m \Omega_m` of their covariance with a few random
   vectors: its orthonormal basis :math:`Q_m` spans the leading modes (the randomized range finder
   of Halko, Martinsson & Tropp, 2011);
3. with :math:`b = Q_m^* \hat{a}_m` and the remainder :math:`r = \hat{a}_m - Q_m b`, products at
   lags of 0 to :math:`p` hours within uninterrupted stretches.

Eigenvectors of :math:`\overline{b \, b^*}` turn :math:`Q_m` into the modes.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from ..data.climatology import regressors
from ..data.grids import Grid
from ..data.states import Standardizer, undefined
from ..data.statistics import select
from ..data.stores import open_store
from ..data.variables import ATMOSPHERIC, SURFACE, channels
from ..data.windows import runs
from ..errors import DataError
from ..progress import progress
from .covariances import KIND, LEAST, Covariance, dropped, static_statistics
from .streaming import Climate, open_climatology

__all__ = ["estimate"]

BLOCK = 24  # hours read at once
CONDITION = 30.0  # of the normal equations, beyond which seasons cannot be told apart
TINY = 1e-12  # a variance of nothing
MORE = 16  # random vectors beside those that become modes


def estimate(
    store: Any,
    climatology: Any,
    *,
    modes: int = 96,
    waves: int | None = None,
    lags: int = 23,
    seasons: int = 1,
    every: int = 3,
    split: tuple[str | None, str | None] | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> Covariance:
    r"""Estimates the covariance of anomalies from a store.

    Arguments:
        store: What :func:`appa.open_store` takes: hourly states, of one or several trajectories.
        climatology: The climatology of training data: itself, its file, or `"planet"`.
        modes: The number of modes :math:`K` of each wavenumber.
        waves: The largest wavenumber that has modes, by default two thirds of the grid's.
        lags: The largest lag in hours.
        seasons: The harmonics of the year in the variance; none where the data do not cover it.
        every: Of how many hours one is taken for variances and the space of modes.
        split: The first and last time to take, by default all.
        seed: The seed of the random vectors.
        device: Where it is computed.

    Example:
        >>> cov = estimate("train.zarr", "climatology.nc", split=("1901", "1936"))
        >>> cov.save("cov.nc")
    """
    return Estimation(open_store(store), climatology, split, device)(
        modes, waves, lags, seasons, every, seed
    )


class Estimation:
    r"""The passes over a store."""

    def __init__(self, ds: xr.Dataset, climatology: Any, split: Any, device: Any):
        clim = open_climatology(climatology)
        if clim is None or "coefficient" not in clim.dims:
            raise DataError(f"{climatology} is no climatology; fit one: appa data climatology")
        names = [n for n in (*SURFACE, *ATMOSPHERIC) if n in clim and n in ds]
        if not names:
            raise DataError(
                "the store and the climatology have no variable in common; fit one of this store: "
                "appa data climatology STORE OUT"
            )
        self.land, self.static = undefined(ds), ds.get("geopotential_at_surface")
        trajectory = ds["trajectory"] if "trajectory" in ds.coords else None
        ds = select(ds, names, split)
        self.ds, self.device = ds, torch.device(device)
        self.times = ds["time"].values
        mine = None if trajectory is None else ds["trajectory"].values
        self.stretches = runs(self.times.astype("datetime64[h]"), mine)
        self.grid = Grid.from_coordinates(ds["latitude"], ds["longitude"])

        upper = any("level" in ds[n].dims for n in names)
        levels = ds["level"].values.astype(int).tolist() if upper else []
        self.standardizer = _standardizer(clim, names, levels, self.land)
        self.channels = self.standardizer.channels
        domain: Any = SimpleNamespace(
            channels=self.channels,
            grid=self.grid,
            device=self.device,
            mean=self.standardizer.mean.flatten().double().numpy(),
            std=self.standardizer.std.flatten().double().numpy(),
        )
        self.domain, self.climate = domain, Climate(clim, domain)
        self.shape = (len(self.channels), *self.grid.shape)
        weights = np.maximum(self.grid.weights, 1e-3 * self.grid.weights.max())
        self.root = torch.from_numpy(np.sqrt(weights)).float().to(device)

    def __call__(
        self, modes: int, waves: int | None, lags: int, seasons: int, every: int, seed: int
    ) -> Covariance:
        c, h, w = self.shape
        waves = w // 3 if waves is None else waves
        longest = int(np.diff(self.stretches, axis=1).max(initial=0))
        if not 1 <= modes <= c * h:
            raise DataError(f"found modes={modes}, expected from 1 to {c * h}, of {c}×{h} values")
        if not 0 <= waves <= w // 2:
            raise DataError(f"found waves={waves}; a grid of {w} longitudes has 0 to {w // 2}")
        if lags < 1 or longest <= lags:
            raise DataError(
                f"the longest stretch of consecutive hours has {longest}, of which lags up to "
                f"{lags} cannot be measured; give hourly data, or lags below {longest}"
            )
        total = sum(1 for _ in self.blocks(every)) * 2 + sum(1 for _ in self.blocks())
        with progress(total, "covariance", "blocks") as bar:
            beta = self.variances(seasons, every, bar)
            scale = self.deviations(beta)
            basis, power = self.basis(scale, modes, waves, every, seed, bar)
            found = self.products(scale, basis, lags, bar)
        return self.finish(beta, basis, power, modes, *found)

    # ---------------------------------------------------------------- reading

    def blocks(self, every: int = 1) -> Iterator[tuple[bool, np.ndarray]]:
        r"""Hours read at once, and whether they go on from those before."""
        for start, stop in self.stretches:
            for first in range(start, stop, BLOCK * every):
                hours = np.arange(first, min(first + BLOCK * every, stop), every)
                yield first > start, hours

    def anomalies(self, hours: np.ndarray) -> Tensor:
        r"""Standardized anomalies, with shape :math:`(T, C, H, W)`."""
        step = int(hours[1] - hours[0]) if len(hours) > 1 else 1
        part = self.ds.isel(time=slice(int(hours[0]), int(hours[-1]) + 1, step))
        x = self.standardizer.to_tensor(part).to(self.device)
        return x - self.climate.at(self.times[hours])

    def coefficients(self, hours: np.ndarray, scale: Any) -> Tensor:
        r"""Those of waves of normalized anomalies, weighted, with shape :math:`(F, P, T)`."""
        a = self.anomalies(hours) * scale(self.times[hours]) * self.root[:, None]
        return torch.fft.rfft(a, norm="ortho").flatten(1, 2).permute(2, 1, 0).contiguous()

    # ---------------------------------------------------------------- passes

    def variances(self, seasons: int, every: int, bar: Any) -> np.ndarray:
        r"""The coefficients of variances, with shape :math:`(1 + 2 S, C, H, W)`."""
        hours = np.concatenate([part for _, part in self.blocks(every)])
        while seasons and _condition(regressors(self.times[hours], seasons)) > CONDITION:
            seasons -= 1
        gram, sums = np.zeros((1 + 2 * seasons,) * 2), torch.zeros(1 + 2 * seasons, *self.shape)
        sums = sums.to(self.device, torch.float64)
        for _, part in self.blocks(every):
            x = regressors(self.times[part], seasons)
            gram += x.T @ x
            square = self.anomalies(part).double().square()
            sums += torch.tensordot(torch.from_numpy(x.T).to(square), square, 1)
            bar.advance()
        return np.linalg.solve(gram, sums.flatten(1).cpu().numpy()).reshape(sums.shape)

    def deviations(self, beta: np.ndarray) -> Any:
        r"""What gives :math:`1 / \sigma` at times, 0 where nothing varies.

        Where a part of a parallel is land to a variable, what is left counts for all of it.
        """
        b = torch.from_numpy(beta).float().to(self.device)
        share = (b[0] > TINY).float().mean(-1, keepdim=True).clip(min=1 / b.shape[-1])
        seasons = (len(beta) - 1) // 2

        def scale(times: np.ndarray) -> Tensor:
            x = torch.from_numpy(regressors(times, seasons)).to(b)
            variance = torch.maximum(torch.tensordot(x, b, 1), LEAST * b[0])
            return torch.where(variance > TINY, share * variance, torch.inf).rsqrt()

        return scale

    def basis(
        self, scale: Any, modes: int, waves: int, every: int, seed: int, bar: Any
    ) -> tuple[Tensor, Tensor]:
        r"""The bases :math:`Q_m`, with shape :math:`(M, P, K')`, and the mean of
        :math:`|\hat{a}|^2`, with shape :math:`(F, P)`."""
        c, h, w = self.shape
        size = min(modes + MORE, c * h)
        generator = torch.Generator().manual_seed(seed)
        omega = torch.randn(waves + 1, c * h, size, dtype=torch.complex64, generator=generator)
        for m in self.real(waves + 1):
            omega[m].imag.zero_()
        omega = omega.to(self.device)
        y, count = torch.zeros_like(omega), 0
        power = torch.zeros(w // 2 + 1, c * h, device=self.device, dtype=torch.float64)
        for _, part in self.blocks(every):
            f = self.coefficients(part, scale)
            power += f.abs().double().square().sum(-1)
            f, count = f[: waves + 1], count + len(part)
            y += f @ (f.mH @ omega)
            bar.advance()
        return torch.linalg.qr(y / count)[0], power / count

    def products(self, scale: Any, basis: Tensor, lags: int, bar: Any) -> tuple[Tensor, Tensor]:
        r"""Mean products of the coefficients in the bases at lags of 0 to :math:`p` hours, with
        shape :math:`(p + 1, M, K', K')`, and of the remainder, with shape :math:`(p + 1, F, C)`."""
        (c, h, _), waves = self.shape, len(basis)
        inner = torch.zeros(lags + 1, waves, *basis.shape[2:] * 2, dtype=torch.complex128)
        rest, count = torch.zeros(lags + 1, self.grid.longitudes // 2 + 1, c), torch.zeros(lags + 1)
        inner, rest = inner.to(self.device), rest.to(self.device, torch.complex128)
        past: tuple[Tensor, Tensor] | None = None
        for goes_on, part in self.blocks():
            f = self.coefficients(part, scale)
            b = basis.mH @ f[:waves]
            f[:waves] -= basis @ b
            if past is not None and goes_on:
                b, f = torch.cat([past[0], b], -1), torch.cat([past[1], f], -1)
            new, t = len(part), f.shape[-1]
            # pairs of all hours at once, a product of matrices for each wave and channel
            rows = f.unflatten(1, (c, h))
            pairs = rows[..., t - new :].mT @ rows.conj()
            for l in range(min(lags, t - 1) + 1):  # noqa: E741
                start = max(t - new, l)
                inner[l] += b[..., start:] @ b[..., start - l : t - l].mH
                rest[l] += pairs.diagonal(t - new - l, -2, -1).sum(-1)
                count[l] += t - start
            past = b[..., -lags:], f[..., -lags:]
            bar.advance()
        count = count.to(self.device)
        return inner / count[:, None, None, None], rest / count[:, None, None]

    # ---------------------------------------------------------------- the end

    def finish(
        self,
        beta: np.ndarray,
        basis: Tensor,
        power: Tensor,
        modes: int,
        inner: Tensor,
        rest: Tensor,
    ) -> Covariance:
        r"""Turns bases into modes, and puts all in a file's form."""
        c, h, _ = self.shape
        waves = len(basis)
        values, vectors = torch.linalg.eigh(inner[0])
        for m in self.real(waves):  # real, not only up to a phase
            values[m], turned = torch.linalg.eigh(inner[0, m].real)
            vectors[m] = turned.to(vectors)
        values, vectors = values.flip(-1).clip(min=0), vectors.flip(-1)
        size = values.sqrt()
        inverse = torch.where(size > 1e-6 * size[:, :1], 1 / size, 0)
        turn = vectors * inverse[:, None]
        lag = (turn.mH @ inner[1:] @ turn).cpu().numpy()
        u = (basis.to(vectors) @ vectors * size[:, None]).mT.unflatten(-1, (c, h))
        u = (u / self.root).cpu().numpy()

        weight = self.root.double().square().cpu().numpy()
        total = power.unflatten(-1, (c, h)).cpu().numpy() / weight
        residual = total.copy()
        residual[:waves] -= (np.abs(u) ** 2).sum(axis=1)
        residual = np.maximum(residual, 0)
        here = rest[0].real.clip(min=1e-30)
        rest_lags = (rest[1:] / here).cpu().numpy()
        if u.shape[1] > modes:
            residual, rest_lags = dropped(
                self.grid, u[:, modes:], lag[..., modes:, modes:], residual, rest_lags
            )
        u, lag = u[:, :modes], lag[..., :modes, :modes]

        # every wave but those of one phase stands for two coefficients
        twice = np.where(np.isin(np.arange(len(total)), self.real(len(total))), 1.0, 2.0)
        part = ((np.abs(u) ** 2 * weight).sum((1, 2, 3)) * twice[:waves]).sum()
        explained = float(part / ((total * weight).sum((1, 2)) * twice).sum())
        single = np.float32
        space = ("channel", "latitude", "longitude")
        levels = [np.nan if ch.level is None else float(ch.level) for ch in self.channels]
        data: dict[str, Any] = {
            "climate": (("coefficient", *space), self.climate.beta.cpu().numpy()),
            "variance": (("season", *space), beta.astype(single)),
            "modes": (("part", "wave", "mode", *space[:2]), _parts(u)),
            "lags": (("part", "lag", "wave", "mode", "other"), _parts(lag)),
            "residual": (("wavenumber", *space[:2]), residual.astype(single)),
            "residual_lags": (("part", "lag", "wavenumber", "channel"), _parts(rest_lags)),
            "mean": ("channel", self.domain.mean),
            "std": ("channel", self.domain.std),
        }
        if self.land is not None:
            data["undefined"] = (space[1:], self.land.astype(np.int8))
        if self.static is not None:
            data["geopotential_at_surface"] = self.static.transpose(*space[1:]).variable
        coords = {
            "channel": [ch.name for ch in self.channels],
            "variable": ("channel", [ch.variable for ch in self.channels]),
            "level": ("channel", levels, {"units": "hPa"}),
            "lag": ("lag", np.arange(1, len(lag) + 1), {"units": "h"}),
            "latitude": ("latitude", self.grid.latitude, {"units": "degrees_north"}),
            "longitude": ("longitude", self.grid.longitude, {"units": "degrees_east"}),
        }
        first, last = (str(t.astype("datetime64[h]")) for t in (self.times.min(), self.times.max()))
        about = {
            **KIND.attrs,
            "harmonics": self.climate.harmonics,
            "diurnal": self.climate.diurnal,
            "hours": len(self.times),
            "stretches": len(self.stretches),
            "first_time": first,
            "last_time": last,
            "explained": explained,
        }
        return Covariance(xr.Dataset(data, coords, about))

    def real(self, waves: int) -> list[int]:
        r"""The wavenumbers whose coefficients are real."""
        w = self.grid.longitudes
        return [m for m in range(waves) if m == 0 or 2 * m == w]


def _standardizer(
    clim: xr.Dataset, names: list[str], levels: list[int], land: np.ndarray | None
) -> Standardizer:
    r"""One with means and deviations of the climatology itself, which only set the units."""
    every = channels(
        [n for n in names if n in SURFACE], [n for n in names if n in ATMOSPHERIC], levels
    )
    mean, std = np.empty((2, len(every)))
    for k, channel in enumerate(every):
        field = clim[channel.variable].isel(coefficient=0)
        if channel.level is not None:
            if channel.level not in clim["level"].values:
                raise DataError(
                    f"the climatology has no {channel.variable} at {channel.level} hPa, which the "
                    "store has; fit one of this store: appa data climatology STORE OUT"
                )
            field = field.sel(level=channel.level)
        mean[k], std[k] = np.nanmean(field), np.nanstd(field)
    std = np.where(std > 1e-10 * np.abs(mean), std, np.maximum(np.abs(mean), 1.0))
    table = static_statistics(
        [ch.variable for ch in every], np.array([ch.level or 0 for ch in every]), mean, std
    )
    surface = [n for n in names if n in SURFACE]
    return Standardizer(table, surface, [n for n in names if n in ATMOSPHERIC], levels, land)


def _parts(x: np.ndarray) -> np.ndarray:
    return np.stack([np.real(x), np.imag(x)]).astype(np.float32)


def _condition(x: np.ndarray) -> float:
    r"""The condition number of normal equations, scaled to a unit diagonal."""
    gram = x.T @ x
    scale = np.sqrt(np.maximum(np.diag(gram), 1e-12))
    return float(np.linalg.cond(gram / np.outer(scale, scale)))
