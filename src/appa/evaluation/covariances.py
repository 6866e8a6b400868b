r"""A Gaussian model of weather in space and time: anomalies from the climatology, hour by hour.

A state is :math:`x_t = \mu_t + \sigma_t \circ a_t`, with :math:`\mu_t` its climatology and
:math:`\sigma_t` the deviation of anomalies at each point and time of the year. The covariance of
the normalized anomalies :math:`a` is taken to be the same at all longitudes, so that the Fourier
coefficients :math:`\hat{a}_m` along parallels are independent of each other for different
wavenumbers :math:`m`. Each is a vector of all channels and latitudes,

.. math:: \hat{a}_{m, t} = U_m \, b_{m, t} + r_{m, t} ,

a combination of :math:`K` multivariate empirical modes, and a remainder. Coefficients :math:`b_m`
and remainders are stationary processes in time (:mod:`appa.evaluation.autoregression`): the
former with all correlations among modes, so that waves travel and balances hold, the latter
independent between channels and latitudes. Every point of a parallel is a sample of the same
covariance, hence several thousand modes can be told from noise rather than several hundred; what
depends on longitude is in :math:`\mu` and :math:`\sigma`.

Correlations between distant latitudes may be tapered: with :math:`\rho(\varphi, \varphi') = \sum_k
w_k(\varphi) \, w_k(\varphi')` a correlation, :math:`B \circ \rho = \sum_k \mathrm{diag}(w_k) \, B
\, \mathrm{diag}(w_k)`.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from ..data import netcdf
from ..data.climatology import regressors
from ..data.grids import Grid
from ..data.states import Standardizer
from ..data.variables import VARIABLES
from ..errors import DataError
from ..observations.operators import StateSpace
from .autoregression import Autoregression

__all__ = ["KIND", "Covariance", "Prior", "static_statistics"]

KIND = netcdf.Kind(
    "covariance", "a covariance", "estimate one with: appa baseline covariance STORE --out cov.nc"
)
NEEDED = ("climate", "variance", "modes", "lags", "residual", "residual_lags", "mean", "std")
ORDER = 6  # hours
LEAST = 0.1  # of the mean variance, below which no season's is
ENOUGH = 0.999  # of a taper's trace


class Covariance:
    r"""What is known of anomalies, see :func:`appa.evaluation.anomalies.estimate`.

    Arguments:
        dataset: All in standardized units: `climate` (coefficient, channel, latitude, longitude)
            and `variance` (season, …), regressed on :func:`appa.data.climatology.regressors`;
            `modes` (part, wave, mode, channel, latitude), scaled to coefficients of variance 1,
            and `lags` (part, lag, wave, mode, other), the correlations of the latter at lags of 1,
            2, … hours; `residual` (wavenumber, channel, latitude), variances of the remainder, and
            `residual_lags` (part, lag, wavenumber, channel); `mean`, `std`, `variable` and
            `level` of each channel. `part` is real and imaginary.
    """

    def __init__(self, dataset: xr.Dataset):
        self.dataset = dataset
        if missing := [name for name in NEEDED if name not in dataset]:
            raise DataError(f"a covariance lacks {', '.join(missing)}; {KIND.remedy}")
        self.grid = Grid.from_coordinates(dataset["latitude"], dataset["longitude"])
        self._processes: dict[Any, Processes] = {}  # the last ones

    @cached_property
    def standardizer(self) -> Standardizer:
        r"""What its states are."""
        ds = self.dataset
        names = [str(name) for name in ds["variable"].values]
        surface = [n for n in dict.fromkeys(names) if VARIABLES[n].surface]
        upper = [n for n in dict.fromkeys(names) if not VARIABLES[n].surface]
        levels = [int(p) for p in dict.fromkeys(ds["level"].values) if np.isfinite(p)]
        stats = static_statistics(names, ds["level"].values, ds["mean"].values, ds["std"].values)
        land = ds["undefined"].values.astype(bool) if "undefined" in ds else None
        return Standardizer(stats, surface, upper, levels, land)

    @cached_property
    def space(self) -> StateSpace:
        r"""Where its states live."""
        return StateSpace.from_statistics(self.standardizer, self.grid, self.dataset)

    @property
    def modes(self) -> int:
        r"""The number of modes of each wavenumber."""
        return self.dataset.sizes["mode"]

    @property
    def lags(self) -> int:
        r"""The largest lag in hours."""
        return self.dataset.sizes["lag"]

    def climate(self, times: Any) -> tuple[np.ndarray, np.ndarray]:
        r"""The mean :math:`\mu_t` and the deviation :math:`\sigma_t`, with shape :math:`(T, C, H,
        W)`."""
        ds = self.dataset
        x = regressors(times, int(ds.attrs["harmonics"]), int(ds.attrs["diurnal"]))
        mean = np.tensordot(x, ds["climate"].values.astype(np.float64), 1)
        beta = ds["variance"].values.astype(np.float64)
        variance = np.tensordot(regressors(times, (len(beta) - 1) // 2), beta, 1)
        return mean, np.sqrt(np.maximum(variance, LEAST * beta[0]))

    def seen(self, times: Any) -> str | None:
        r"""The hours it was estimated from, where any of the times are among them."""
        about, times = self.dataset.attrs, np.asarray(times, "datetime64[s]")
        if "first_time" not in about:
            return None
        first, last = (np.datetime64(about[key]) for key in ("first_time", "last_time"))
        if not (times[0] <= last and first <= times[-1]):
            return None
        return f"{about['first_time']} to {about['last_time']}"

    def processes(
        self,
        hours: int,
        modes: int,
        order: int,
        localization: float | None,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Processes:
        r"""What a :class:`Prior` is of at all dates alike; the last is kept for the next date."""
        key = (hours, modes, order, localization, device, dtype)
        if key not in self._processes:
            self._processes.clear()  # before the next takes its room
            self._processes[key] = Processes.of(self, *key)
        return self._processes[key]

    def save(self, path: str | Path) -> Path:
        r"""Writes it to a NetCDF file."""
        ds = self.dataset.drop_encoding()
        for name in NEEDED[:6]:
            ds[name].encoding = {"zlib": True, "complevel": 1, "shuffle": True}
        return netcdf.save(ds, path, KIND)

    @classmethod
    def load(cls, path: str | Path) -> Covariance:
        r"""Reads it from a file."""
        return cls(netcdf.load(path, KIND))


class Processes(NamedTuple):
    r"""Modes and remainders of hours, whichever they are, with :math:`M` wavenumbers that have
    modes of :math:`F`."""

    modes: Tensor  # (M, H, K, C): latitudes apart, which the taper is of
    process: Autoregression
    root: Tensor  # of the remainder's, (F, C, T, T), and that times its adjoint
    pairs: Tensor
    amplitude: Tensor  # (F, C, 1, H, 1)
    taper: Tensor  # (k, H)

    @classmethod
    def of(
        cls,
        covariance: Covariance,
        hours: int,
        modes: int,
        order: int,
        localization: float | None,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Processes:
        ds, grid, kind = covariance.dataset, covariance.grid, dtype.to_complex()
        every = _complex(ds["modes"])  # (M, K, C, H)
        lags, rest = _complex(ds["lags"]), _complex(ds["residual_lags"])
        residual = ds["residual"].values.astype(np.float64)  # (F, C, H)
        if modes < covariance.modes:
            residual, rest = dropped(grid, every[:, modes:], lags[..., modes:, modes:],
                                     residual, rest)  # fmt: skip
        double = torch.complex128
        process = Autoregression(_tensor(lags[:order, :, :modes, :modes], device, double))
        rest = _tensor(rest[:order, ..., None, None], device, double)
        eye = torch.eye(hours, dtype=double, device=device)[:, None]
        root = Autoregression(rest)(eye.expand(*rest.shape[1:3], *eye.shape))[..., 0, :]
        return cls(
            _tensor(every[:, :modes].transpose(0, 3, 1, 2), device, kind),
            process.to(kind),
            root.to(kind),
            (root @ root.mH).to(kind),  # of scalars, the matrix of all pairs of hours is small
            _tensor(np.sqrt(np.maximum(residual, 0)), device, dtype)[:, :, None, :, None],
            _tensor(_taper(grid.latitude, localization), device, dtype),
        )


class Prior:
    r"""The distribution of the states of consecutive hours.

    Arguments:
        covariance: The covariance.
        times: The hours, with shape :math:`(T)`.
        modes: How many modes of each wavenumber are used, by default all; the others are part of
            the remainder.
        order: The order of the processes, by default :data:`ORDER` or, if that is less, the
            largest lag.
        localization: The standard deviation in degrees of a Gaussian that tapers correlations
            between latitudes; by default nothing does.
        device, dtype: Where and how precisely it is computed.
    """

    def __init__(
        self,
        covariance: Covariance,
        times: Any,
        *,
        modes: int | None = None,
        order: int | None = None,
        localization: float | None = None,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
    ):
        modes = covariance.modes if modes is None else modes
        order = min(covariance.lags, ORDER) if order is None else order
        if not 0 <= modes <= covariance.modes:
            raise DataError(f"found modes={modes}; the covariance has {covariance.modes}")
        if not 0 <= order <= covariance.lags:
            raise DataError(f"found order={order}; the covariance has {covariance.lags} lags")
        if localization is not None and not localization > 0:
            raise DataError(f"found localization={localization}; give degrees above 0, e.g. 30")
        self.grid, self.dtype, self.device = covariance.grid, dtype, torch.device(device)
        #: The mean :math:`\mu`, and the deviation :math:`\sigma`, with shape :math:`(T, C, H, W)`.
        self.mean, self.deviation = (
            _tensor(x, self.device, dtype) for x in covariance.climate(times)
        )
        self.modes, self.process, self.root, self.pairs, self.amplitude, self.taper = (
            covariance.processes(len(self.mean), modes, order, localization, self.device, dtype)
        )

    # ---------------------------------------------------------------- products and draws

    def product(self, x: Tensor) -> Tensor:
        r"""The products :math:`B x` with the covariance, with shape :math:`(B, T, C, H, W)`."""
        f = torch.fft.rfft(x * self.deviation, norm="ortho").permute(4, 2, 1, 3, 0)
        f = f.contiguous()  # (F, C, T, H, B)
        out = (self.pairs @ f.flatten(-2)).view(f.shape) * self.amplitude.square()
        waves, _, k, _ = self.modes.shape
        if k:
            # conjugate, so that it is none of the modes
            low = f[:waves].permute(0, 3, 1, 2, 4).conj().flatten(3)  # (M, H, C, T B)
            b = _mixed(self.taper, (self.modes @ low).conj())  # (M, k, K, T B)
            # hours follow each other, so that all roots of the taper are one process
            b = b.unflatten(3, (-1, len(x))).permute(0, 3, 2, 1, 4).flatten(3)
            self._compose(out, self.process(self.process.adjoint(b)))
        return self._field(out)

    def draw(self, seeds: list[int]) -> Tensor:
        r"""Draws of :math:`x - \mu`, with shape :math:`(B, T, C, H, W)`, each of its own seed."""
        hours, count, (h, w) = len(self.mean), self.mean.shape[1], self.grid.shape
        waves, _, k, _ = self.modes.shape
        parts: list[list[Tensor]] = [[], []]
        for seed in seeds:
            generator = torch.Generator().manual_seed(seed)
            for which, shape in enumerate(
                ((w // 2 + 1, count, hours, h), (len(self.taper), waves, hours, k))
            ):
                xi = torch.randn(shape, dtype=self.dtype.to_complex(), generator=generator)
                # coefficients of waves that have one phase only are real, of the same variance
                only = torch.randn(2, *shape[1:] if not which else shape[2:],
                                   dtype=self.dtype, generator=generator)  # fmt: skip
                axis = xi if not which else xi.movedim(1, 0)
                for m, value in zip((0, w // 2), only, strict=True):
                    if m < len(axis) and (m == 0 or w % 2 == 0):
                        axis[m] = value.to(xi.dtype)
                parts[which].append(xi.to(self.device))
        rest, xi = torch.stack(parts[0], dim=-1), torch.stack(parts[1], dim=-1)
        out = (self.root @ rest.flatten(-2)).view(rest.shape) * self.amplitude
        if k:
            self._compose(out, self.process(xi.permute(1, 2, 3, 0, 4).flatten(3)))
        return self._field(out)

    def _compose(self, out: Tensor, b: Tensor) -> None:
        r"""Adds modes with coefficients :math:`(M, T, K, k B)` to :math:`(F, C, T, H, B)`."""
        b = b.unflatten(3, (len(self.taper), -1)).permute(0, 3, 2, 1, 4).flatten(3)
        low = self.modes.mT @ _mixed(self.taper.mT, b)  # (M, H, C, T B)
        low = low.unflatten(3, (out.shape[2], -1))
        out[: len(low)] += low.permute(0, 2, 3, 1, 4)

    def _field(self, f: Tensor) -> Tensor:
        x = torch.fft.irfft(f.permute(4, 2, 1, 3, 0), n=self.grid.longitudes, norm="ortho")
        return x * self.deviation


# ---------------------------------------------------------------- parts


def dropped(
    grid: Grid, modes: np.ndarray, lags: np.ndarray, residual: np.ndarray, rest: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    r"""The remainder with modes that are no longer used.

    Arguments:
        grid: The grid.
        modes: Those modes, with shape :math:`(M, D, C, H)`.
        lags: Correlations among them, with shape :math:`(p, M, D, D)`.
        residual: The variance without them, with shape :math:`(F, C, H)`.
        rest: The correlations without them, with shape :math:`(p, F, C)`.
    """
    residual, rest, weight = residual.copy(), rest.copy(), grid.weights
    before = (residual * weight).sum(-1)
    for m, u in enumerate(modes):
        residual[m] += (np.abs(u) ** 2).sum(axis=0)
        after = (residual[m] * weight).sum(-1)
        for l in range(len(rest)):  # noqa: E741
            moved = np.tensordot(lags[l, m].T, u, 1)  # of u_i R_ij u_j*, summed over i
            product = (moved * u.conj() * weight).sum(axis=(0, -1))
            total = rest[l, m] * before[m] + product
            rest[l, m] = np.divide(total, after, out=np.zeros_like(total), where=after > 0)
    return residual, rest


def static_statistics(
    names: Any, levels: np.ndarray, mean: np.ndarray, std: np.ndarray
) -> xr.Dataset:
    r"""The statistics of channels, as :class:`~appa.data.states.Standardizer` takes them."""
    data: dict[str, Any] = {}
    for name in dict.fromkeys(names):
        here = [k for k, other in enumerate(names) if other == name]
        pair = np.stack([mean[here], std[here]])
        if VARIABLES[name].surface:
            data[name] = xr.DataArray(pair[:, 0], dims="statistic")
        else:
            at = {"level": levels[here].astype(int)}
            data[name] = xr.DataArray(pair, at, ("statistic", "level"))
    return xr.Dataset(data, {"statistic": ["mean", "std"]})


def _taper(latitude: np.ndarray, length: float | None) -> np.ndarray:
    r"""The roots :math:`w_k` of a taper, with shape :math:`(k, H)`, the largest only."""
    if length is None:
        return np.ones((1, len(latitude)))
    rho = np.exp(-((latitude[:, None] - latitude) ** 2) / (2 * length**2))
    values, vectors = np.linalg.eigh(rho)
    values, vectors = values[::-1], vectors[:, ::-1]
    count = 1 + int(np.searchsorted(np.cumsum(values), ENOUGH * values.sum()))
    roots = vectors[:, :count] * np.sqrt(np.maximum(values[:count], 0))
    return (roots / np.linalg.norm(roots, axis=1, keepdims=True)).T


def _mixed(weights: Tensor, x: Tensor) -> Tensor:
    r"""The products of real weights :math:`(i, j)` with :math:`(M, j, K, n)`, which is complex.

    Sums over channels come before, or after, those over latitudes, which alone the taper knows:
    :math:`C + k` products of a mode and latitude instead of :math:`C k`."""
    y = torch.view_as_real(x.resolve_conj()).flatten(2)
    return torch.view_as_complex((weights @ y).unflatten(2, (*x.shape[2:], 2)))


def _tensor(x: np.ndarray, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(x)).to(device, dtype)


def _complex(part: xr.DataArray) -> np.ndarray:
    real, imaginary = part.transpose("part", ...).values.astype(np.float64)
    return real + 1j * imaginary
