r"""What trajectories are like, summed up as they come.

With :math:`x` standardized states, :math:`a` their anomalies from the climatology, :math:`n` the
trajectories, :math:`t` their hours and :math:`w` the weights by area of
:mod:`appa.evaluation.streaming`, for each channel:

* the autocorrelation at lag :math:`\tau`, pooled over space, trajectories and hours,

  .. math:: \rho_\tau = \frac{\sum_{n, t, i} w_i \, a_{n, t, i} \, a_{n, t + \tau, i}}
      {\sqrt{\sum_{n, t, i} w_i \, a_{n, t, i}^2 \; \sum_{n, t, i} w_i \, a_{n, t + \tau, i}^2}}
      , \qquad 1 \leq t \leq L - \tau ,

  to which a lasting departure from the climatology adds, as it does to the variance;
* the variance hour by hour, :math:`v_t = \langle \sum_i w_i \, a_{n, t, i}^2 \rangle_n`;
* tendencies :math:`x_t - x_{t-1}` and curvatures :math:`x_{t+1} - 2 x_t + x_{t-1}`, as root mean
  squares, and their ratio across the joints of composed windows to elsewhere. A joint is an hour
  :math:`t` from which on another window gives the trajectory: its tendency is across the joint,
  and so are the curvatures at :math:`t - 1` and :math:`t`;
* the mean of :math:`x`, and the standard deviations of :math:`x` and of :math:`a`, at each point;
* mean squares of the differences between neighbouring longitudes;
* spectra of the first, the middle and the last hour.

Standard errors are those of the jackknife over trajectories: these are independent of each other,
their hours are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from .spectra import Spectra
from .streaming import Climate, Domain

__all__ = ["LONGEST", "Trajectories", "jackknife"]

LONGEST = 48  # the longest lag, in hours


def jackknife(
    values: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    r"""A function of means over the first axis, and its standard error.

    .. math:: \hat\theta = f(\bar v) , \qquad
        e^2 = \frac{N - 1}{N} \sum_n (\theta_{(n)} - \bar\theta)^2 , \qquad
        \theta_{(n)} = f \Big( \frac{1}{N - 1} \sum_{m \neq n} v_m \Big)

    Arguments:
        values: Independent values :math:`v`, with shape :math:`(N, *)`.
        statistic: The function :math:`f`, which maps :math:`(K, *)` to :math:`(K, *')`.

    Returns:
        The estimate and its error, NaN where :math:`N = 1`, with shape :math:`(*')`.
    """
    n, total = len(values), values.sum(0)
    estimate = statistic(total[None] / n)[0]
    if n == 1:
        return estimate, np.full(estimate.shape, np.nan)
    left = statistic((total - values) / (n - 1))
    return estimate, np.sqrt((n - 1) * left.var(0))


class Trajectories:
    r"""Sums up trajectories of one length.

    Arguments:
        domain: The channels, grid and weights.
        climate: What anomalies are from.
        length: The hours :math:`L` of a trajectory.
    """

    def __init__(self, domain: Domain, climate: Climate, length: int):
        self.domain, self.climate, self.length = domain, climate, length
        c, (h, w) = len(domain.channels), domain.grid.shape
        self.lags = np.arange(min(length, LONGEST + 1))
        # by trajectory, channel, and lag or hour
        self.parts: list[tuple[np.ndarray, ...]] = []
        # sums of x, x², a and a², of every other trajectory
        self.sums = np.zeros((2, 4, c, h, w))
        self.counts = np.zeros(2)
        self.differences = np.zeros((c, w))
        self.spectral = [k for k in range(c) if k not in domain.masked]
        self.spectra = Spectra(domain.grid, domain.std[self.spectral])
        #: The first state, physical, with shape :math:`(C, H, W)`, and its time.
        self.example: np.ndarray | None = None
        self.example_time = np.datetime64("NaT", "ns")

    def update(self, x: Tensor, dates: np.ndarray) -> None:
        r"""Adds trajectories.

        Arguments:
            x: Standardized states, with shape :math:`(N, L, C, H, W)`.
            dates: Their hours, with shape :math:`(N, L)`.
        """
        domain = self.domain
        halves = (sum(len(part[0]) for part in self.parts) + np.arange(len(x))) % 2
        parts = [self._channel(x[:, :, k], dates, halves, k) for k in range(x.shape[2])]
        self.parts.append(tuple(np.stack(values, 1) for values in zip(*parts, strict=True)))
        self.counts += self.length * np.bincount(halves, minlength=2)
        if self.spectral:
            hours = sorted({0, self.length // 2, self.length - 1})
            states = x[:, hours][:, :, self.spectral].flatten(0, 1)
            self.spectra.update(states.cpu().numpy())
        if self.example is None:
            y = x[0, 0].cpu().double().numpy()
            y = y * domain.std[:, None, None] + domain.mean[:, None, None]
            self.example = np.where(domain.defined, y, np.nan)
            self.example_time = dates[0, 0].astype("datetime64[ns]")

    def _channel(
        self, x: Tensor, dates: np.ndarray, halves: np.ndarray, k: int
    ) -> tuple[np.ndarray, ...]:
        r"""The sums of one channel, with shape :math:`(N, L, H, W)`: a channel at a time needs
        little memory besides the states."""
        weights = self.domain.weights[k]
        anomaly = x - self.climate.at(dates, k)
        # in double precision where there is one: lower ones would shift correlations
        exact = torch.float32 if x.device.type == "mps" else torch.float64
        scaled = (anomaly * weights.sqrt()).flatten(2).to(exact)
        gram = (scaled @ scaled.mT).cpu().double().numpy()  # (N, L, L)
        squares = np.diagonal(gram, axis1=1, axis2=2)
        products = [
            (
                np.trace(gram, lag, axis1=1, axis2=2),
                squares[:, : self.length - lag].sum(1),
                squares[:, lag:].sum(1),
            )
            for lag in self.lags
        ]
        tendency = x[:, 1:] - x[:, :-1]
        changes = [
            (d.square() * weights).sum((-2, -1)).cpu().double().numpy()
            for d in (tendency, tendency[:, 1:] - tendency[:, :-1])
        ]
        for half in (0, 1):
            chosen = torch.from_numpy(np.flatnonzero(halves == half)).to(x.device)
            y, a = x[chosen].flatten(0, 1), anomaly[chosen].flatten(0, 1)
            for total, field in zip(self.sums[half, :, k], (y, y**2, a, a**2), strict=True):
                total += field.sum(0).cpu().double().numpy()
        steps = self.domain.steps(x.flatten(0, 1), k)
        self.differences[k] += len(x) * steps.cpu().double().numpy()
        return np.moveaxis(np.array(products), -1, 0), squares, *changes

    def _gathered(self, part: int) -> np.ndarray:
        return np.concatenate([values[part] for values in self.parts])

    @property
    def count(self) -> int:
        r"""The number of trajectories :math:`N`."""
        return sum(len(part[0]) for part in self.parts)

    def autocorrelation(self) -> tuple[np.ndarray, np.ndarray]:
        r"""The autocorrelations by lag and their errors, with shape :math:`(C, \tau)`."""

        def correlation(m: np.ndarray) -> np.ndarray:
            return m[..., 0] / np.sqrt(m[..., 1] * m[..., 2])

        return jackknife(self._gathered(0), correlation)

    def variance(self) -> tuple[np.ndarray, np.ndarray]:
        r"""The variances hour by hour and their errors, with shape :math:`(C, L)`."""
        return jackknife(self._gathered(1), lambda m: m)

    def changes(self, order: int) -> np.ndarray:
        r"""The tendencies (order 1) or curvatures (order 2) as root mean squares hour by hour,
        with shape :math:`(C, L)`, NaN where an hour has none."""
        found = np.full((len(self.domain.channels), self.length), np.nan)
        found[:, 1 : self.length + 1 - order] = np.sqrt(self._gathered(1 + order).mean(0))
        return found

    def across(self, order: int, joints: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        r"""The ratio of tendencies or curvatures across joints to those elsewhere, and its error,
        with shape :math:`(C)`; NaN where there are no joints.

        Arguments:
            order: 1 for tendencies, 2 for curvatures.
            joints: The hours at which another window begins to give the trajectory.
        """
        values = self._gathered(1 + order)
        hours = np.arange(1, self.length + 1 - order)
        there = np.isin(hours, joints)
        if order == 2:
            there |= np.isin(hours + 1, joints)
        if not there.any() or there.all():
            nothing = np.full(values.shape[1], np.nan)
            return nothing, nothing
        pair = np.stack((values[..., there].mean(-1), values[..., ~there].mean(-1)), -1)
        with np.errstate(invalid="ignore", divide="ignore"):  # a prescribed SST may not change
            return jackknife(pair, lambda m: np.sqrt(m[..., 0] / m[..., 1]))

    def moments(self, half: int | None = None) -> tuple[np.ndarray, ...]:
        r"""At each point the mean of :math:`x`, its standard deviation, and the mean and standard
        deviation of anomalies, each with shape :math:`(C, H, W)`.

        Arguments:
            half: Of every other trajectory, beginning with the first or the second; else, of all.
        """
        sums = self.sums.sum(0) if half is None else self.sums[half]
        count = self.counts.sum() if half is None else self.counts[half]
        mean, square, bias, weather = sums / count
        return (
            mean,
            np.sqrt(np.maximum(square - mean**2, 0)),
            bias,
            np.sqrt(np.maximum(weather - bias**2, 0)),
        )

    def steps(self) -> np.ndarray:
        r"""Mean squares of the differences to the next column, with shape :math:`(C, W)`."""
        return self.differences / self.count
