r"""Representation error: what the decoder cannot express.

A state is its reconstruction and a remainder,

.. math:: x = D(z) + r , \qquad z = E(x) ,

so an observation :math:`y = \mathcal{A}(x) + e` errs from :math:`\mathcal{A}(D(z))` by :math:`r` as
well as by its own error. :math:`r` is taken for Gaussian and independent of :math:`z`, with
covariance

.. math:: B_c = S_c \, (T_c \otimes \Sigma_c) \, S_c

for each channel :math:`c`, and channels independent of each other: a map :math:`s_c` of standard
deviations (:math:`S = \mathrm{diag}\, s`), a correlation :math:`T` in time and :math:`\Sigma` in
space. All are estimated from reconstructed hours of members the autoencoder has not seen, about
zero rather than about a mean: what the decoder always gets wrong at a place is a part of :math:`r`
that persists.

* :math:`s^2_c(p) = \overline{r^2}`, at each grid point, in standardized units;
* :math:`T`: :math:`\overline{r_t \, r_{t + l}}` over :math:`\overline{r^2}` of the same pairs,
  pooled over the globe;
* :math:`\Sigma`: products at pairs of points along parallels and meridians, over
  :math:`s(p) \, s(p')`, pooled by great-circle distance. A wind's component is that of a vector
  whose Cartesian components have the correlation, since east turns around a pole:
  :math:`\rho(d)` is multiplied by :math:`\cos \Delta\lambda` for :math:`u` and by :math:`\sin
  \varphi \sin \varphi' \cos \Delta\lambda + \cos \varphi \cos \varphi'` for :math:`v`.

Correlations are used as the mixtures of :mod:`appa.observations.correlations`. The correlation
between channels is estimated too; only derived observables, which mix channels, make use of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ..data import netcdf
from ..data.grids import Grid, great_circle
from ..data.variables import VARIABLES, Channel
from ..errors import DataError
from .correlations import EARTH, Mixture, Series, SpaceAtoms, TimeAtoms, degrees_of
from .moments import Sums, distances, turning

__all__ = ["AUTOENCODER_DIGEST", "FILE", "Representation", "estimate"]

FILE = "representation.nc"
AUTOENCODER_DIGEST = "autoencoder_digest"  # the attribute that says whose residuals these are
KIND = netcdf.Kind(
    "representation",
    "a representation error",
    "estimate one with: appa representation MODEL --data STORE",
)

Array = NDArray[np.float64]


class Representation:
    r"""The covariance of :math:`r`.

    Arguments:
        dataset: `std` (channel, latitude, longitude) of :math:`r`, standardized and 0 where a
            variable is undefined; `state`, the mean of :math:`x`, likewise; `correlation`
            (channel, lag) in hours from 0; `spatial` (channel, distance) in km from 0; `cross`
            (channel, other); and `variable`, `level` of each channel.
    """

    def __init__(self, dataset: xr.Dataset):
        self.dataset = dataset
        missing = {"std", "state", "correlation", "spatial", "cross"} - set(dataset.data_vars)
        if missing:
            raise DataError(
                f"a representation error lacks {', '.join(sorted(missing))}; {KIND.remedy}"
            )
        self.grid = Grid.from_coordinates(dataset["latitude"], dataset["longitude"])
        levels = [None if np.isnan(level) else int(level) for level in dataset["level"].values]
        names = [str(name) for name in dataset["variable"].values]
        self.channels = [Channel(*pair) for pair in zip(names, levels, strict=True)]
        self.std = dataset["std"].transpose("channel", ...).values.astype(np.float64)
        self._time: dict[int, Mixture] = {}
        self._space: dict[int, Series] = {}
        self.kernels: dict[int, Tensor] = {}  # of appa.observations.crowding

    @classmethod
    def of(
        cls,
        grid: Grid,
        channels: Sequence[Channel],
        std: ArrayLike,
        correlation: ArrayLike,
        length: ArrayLike,
        state: ArrayLike = 0.0,
        cross: ArrayLike | None = None,
    ) -> Representation:
        r"""One with given moments, and a Gaussian correlation in space.

        Arguments:
            grid, channels: The grid and the channels of states.
            std: Standard deviations, broadcast to :math:`(C, H, W)`.
            correlation: Correlations at lags of 0, 1, … hours, broadcast to :math:`(C, l)`.
            length: Standard deviations of the Gaussians in km, broadcast to :math:`(C)`.
            state: Mean states, broadcast to :math:`(C, H, W)`.
            cross: The correlation between channels; the identity by default.
        """
        count = len(channels)
        shape = (count, *grid.shape)
        distance = distances(grid)
        length = np.broadcast_to(np.asarray(length, np.float64), count)
        correlation = np.asarray(correlation, np.float64)
        moments = {
            "std": np.broadcast_to(std, shape),
            "state": np.broadcast_to(state, shape),
            "correlation": np.broadcast_to(correlation, (count, correlation.shape[-1])),
            "distance": distance,
            "spatial": np.exp(-((distance / length[:, None]) ** 2) / 2),
            "cross": np.eye(count) if cross is None else np.asarray(cross),
        }
        return cls(_dataset(grid, channels, moments))

    # ---------------------------------------------------------------- correlations

    @cached_property
    def spacing(self) -> float:
        r"""The distance between the grid's parallels in km."""
        return np.pi * EARTH / self.grid.latitudes

    def in_time(self, channel: int, lag: ArrayLike) -> Array:
        r"""The correlation of a channel at lags in hours, beyond those measured too."""
        if channel not in self._time:
            ds = self.dataset
            value = ds["correlation"].values[channel]
            self._time[channel] = Mixture(TimeAtoms(), ds["lag"].values, value)
        return self._time[channel](np.abs(np.asarray(lag, np.float64)))

    def series(self, channel: int) -> Series:
        r"""The correlation of a channel in space."""
        if channel not in self._space:
            ds = self.dataset
            value = ds["spatial"].values[channel]
            mixture = Mixture(SpaceAtoms(self.spacing), ds["distance"].values, value)
            self._space[channel] = Series(mixture, degrees_of(self.grid))
        return self._space[channel]

    def in_space(self, channel: int, distance: ArrayLike) -> Array:
        r"""The correlation of a channel at distances in km, but for the turning of vectors."""
        return self.series(channel)(distance)

    def between(
        self, channel: int, lat1: ArrayLike, lon1: ArrayLike, lat2: ArrayLike, lon2: ArrayLike
    ) -> Array:
        r"""The correlation of a channel between places in degrees, which broadcast."""
        distance = great_circle(lat1, lon1, lat2, lon2, radius=EARTH)
        turn = turning(self.channels[channel], lat1, lon1, lat2, lon2)
        return self.in_space(channel, distance) * turn

    @cached_property
    def length(self) -> Array:
        r"""Where the measured correlation in space has fallen to :math:`e^{-1/2}`, in km, with
        shape :math:`(C)`: a Gaussian's standard deviation."""
        return self.dataset["length"].values

    @cached_property
    def cross(self) -> Array:
        r"""The correlation between channels, with shape :math:`(C, C)`."""
        return self.dataset["cross"].values.astype(np.float64)

    # ---------------------------------------------------------------- files

    def assign_attrs(self, attrs: Mapping[str, Any]) -> Representation:
        r"""The same with more attributes: what it was estimated of."""
        return Representation(self.dataset.assign_attrs(attrs))

    @property
    def autoencoder(self) -> str | None:
        r"""The digest of the autoencoder it was estimated of, if that is known."""
        return self.dataset.attrs.get(AUTOENCODER_DIGEST)

    def save(self, path: str | Path) -> Path:
        r"""Writes it to a NetCDF file, such as `representation.nc` in a model folder.

        Maps keep six bits, 0.8 %, which is less than they are uncertain by, and a quarter of their
        size.
        """
        ds = self.dataset.drop_encoding()
        for name in ("std", "state"):
            ds[name].encoding = {"zlib": True, "complevel": 9, "quantize_mode": "BitRound"}
            ds[name].encoding["significant_digits"] = 6
        return netcdf.save(ds, path, KIND)

    @classmethod
    def load(cls, path: str | Path) -> Representation:
        r"""Reads it from a file, or from a model folder."""
        path = Path(path)
        return cls(netcdf.load(path / FILE if (path / FILE).is_file() else path, KIND))

    def __repr__(self) -> str:
        std = np.sqrt((self.std**2 * self.grid.weights[:, None]).mean((1, 2)))
        shape = " × ".join(map(str, self.grid.shape))
        return (
            f"Representation({len(std)} channels on {shape}, std {std.min():.3f}–{std.max():.3f})"
        )


# ---------------------------------------------------------------- estimation


def estimate(
    reconstruct: Callable[[Tensor], Tensor],
    states: Iterable[Tensor],
    grid: Grid,
    lags: int = 23,
    *,
    channels: Sequence[Channel],
    land: NDArray[np.bool_] | None = None,
    batch: int = 8,
) -> Representation:
    r"""Estimates the covariance of :math:`r` in one pass over held-out trajectories.

    Arguments:
        reconstruct: :math:`D \circ E`, of standardized states :math:`(B, C, H, W)`.
        states: Segments of trajectories, each of consecutive hours, with shape
            :math:`(T, C, H, W)`; a day each and many of them, of different seasons and members.
        grid: The grid of states.
        lags: The largest lag in hours.
        channels: The channels of states.
        land: Where variables of the sea are undefined, with shape :math:`(H, W)`.
        batch: The number of states reconstructed at once.

    Example:
        >>> rep = estimate(lambda x: model.decode(model.encode(x)), loader, model.grid,
        ...     channels=model.standardizer.channels, land=model.standardizer.land)
        >>> rep.save("models/planet/representation.nc")
    """
    shape = (len(channels), *grid.shape)
    defined = np.ones(shape, bool)
    if land is not None:
        sea = [VARIABLES[c.variable].missing == "land" for c in channels]
        defined[sea] = ~np.asarray(land, bool)
    sums = Sums(grid, defined, lags)
    for x in states:
        if x.ndim != 4 or tuple(x.shape[1:]) != shape:
            raise DataError(
                f"found a segment with shape {tuple(x.shape)}, expected (hours, "
                f"{', '.join(map(str, shape))}); give one trajectory's hours at a time"
            )
        with torch.no_grad():
            r = torch.cat([part - reconstruct(part) for part in x.split(batch)])
        if not bool(torch.isfinite(r).all()):
            raise DataError(
                "a reconstruction is not finite; standardize the states, and check the weights"
            )
        sums.add(x, r)
    if sums.longest < 2:
        raise DataError(
            f"found {sums.hours} hours, no two of them in one segment, so that nothing is known "
            "of how r persists; give segments of consecutive hours, a day or more each"
        )
    return Representation(_dataset(grid, channels, sums.moments(channels)))


def _dataset(grid: Grid, channels: Sequence[Channel], moments: dict[str, Any]) -> xr.Dataset:
    r"""The file's dataset."""
    space, distance = ("channel", "latitude", "longitude"), moments["distance"]
    # the first distance at which a correlation is below a Gaussian's at its standard deviation
    spatial, low = moments["spatial"], np.exp(-0.5)
    filled = np.where(np.isfinite(spatial), spatial, np.inf)
    k = np.maximum(np.argmax(filled < low, axis=1), 1)
    rows = np.arange(len(channels))
    near, far = np.minimum(filled[rows, k - 1], 1.0), filled[rows, k]
    share = np.divide(near - low, near - far, out=np.ones(len(k)), where=near > far)
    length = distance[k - 1] + np.clip(share, 0, 1) * (distance[k] - distance[k - 1])
    levels = [np.nan if c.level is None else float(c.level) for c in channels]
    correlation = moments["correlation"].astype(np.float32)
    return xr.Dataset(
        {
            "std": (space, moments["std"].astype(np.float32), {"units": "1"}),
            "state": (space, moments["state"].astype(np.float32), {"units": "1"}),
            "correlation": (("channel", "lag"), correlation),
            "spatial": (("channel", "distance"), moments["spatial"].astype(np.float32)),
            "cross": (("channel", "other"), moments["cross"].astype(np.float32)),
            "length": ("channel", length, {"units": "km"}),
        },
        {
            "channel": [c.name for c in channels],
            "variable": ("channel", [c.variable for c in channels]),
            "level": ("channel", levels, {"units": "hPa"}),
            "other": [c.name for c in channels],
            "lag": ("lag", np.arange(correlation.shape[1]), {"units": "h"}),
            "distance": ("distance", distance, {"units": "km"}),
            "latitude": ("latitude", grid.latitude, {"units": "degrees_north"}),
            "longitude": ("longitude", grid.longitude, {"units": "degrees_east"}),
        },
        {key: moments[key] for key in ("hours", "segments") if key in moments},
    )
