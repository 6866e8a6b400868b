r"""What a decoder lacks of a variable that is nowhere below zero, and mostly near it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Above", "bounded"]

FAR = 12.0  # standard deviations above a bound, from where it does not matter
TINY = 1e-12


@dataclass(frozen=True)
class Above:
    r"""Where a channel is that is bounded from below.

    Arguments:
        state: How far :math:`D(z)` is above the bound, :math:`a`, in standard deviations, with
            shape :math:`(M, L, H, W)`.
        rate: How fast the variance of :math:`r` grows with it, :math:`k`.
    """

    state: Tensor
    rate: float

    def scale(self, std: Tensor) -> Tensor:
        r"""The standard deviation :math:`\sqrt{k s a}` of :math:`r` there, given :math:`s`."""
        return torch.sqrt(self.rate * std * self.state.to(std).clip(min=0))


def bounded(u: Tensor, above: Above, std: Tensor) -> Tensor:
    r"""Turns standard normal draws :math:`u` so that :math:`a + s u` is nowhere negative.

    What the decoder lacks of rain is as variable as there is rain: on the planet its variance is
    :math:`v = k s a` within a fifth where it rains, with :math:`k` such that its average is that of
    :math:`s^2`. A Gaussian that is cut off at zero has this variance and the mean :math:`a`,

    .. math:: \max(0, \mu + \sigma u) , \qquad \sigma \, A(t) = a , \qquad
        \frac{B(t)}{A(t)^2} = \frac{a^2 + v}{a^2} , \qquad t = \mu / \sigma ,

    with :math:`A(t) = \phi(t) + t \Phi(t)` and :math:`B(t) = (1 + t^2) \Phi(t) + t \phi(t)`: far
    above zero it is Gaussian; near it, seldom anything and then much. Where :math:`v > 6 \cdot 10^4
    a^2` the variance is less than :math:`v`, and without rain there is none. Optimal interpolation
    is not exact for what is turned: its gain takes the variance for :math:`s^2` everywhere.

    Arguments:
        u: The draws, with shape :math:`(M, L, H, W)`.
        above: Where the states are.
        std: The standard deviation :math:`s`, with shape :math:`(H, W)`.

    Returns:
        :math:`u'` for which :math:`a + s u'` is what is said above.
    """
    a, scale = above.state.to(u).clip(min=0), above.scale(std).to(u)
    t = torch.linspace(FAR, -4, 1601, dtype=torch.float64)
    density = torch.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    share = torch.special.ndtr(t)
    mean = density + t * share
    ratio = ((1 + t * t) * share + t * density) / mean.square() - 1  # v / a², rising
    keys, t, mean = (v.to(u) for v in (ratio.log(), t, mean.log()))
    key = 2 * (scale.clip(min=TINY).log() - a.clip(min=TINY).log())
    i = torch.searchsorted(keys, key.contiguous()).clip(1, len(keys) - 1)
    part = ((key - keys[i - 1]) / (keys[i] - keys[i - 1])).clip(0, 1)
    found = t[i - 1] + part * (t[i] - t[i - 1])
    sigma = a * torch.exp(-(mean[i - 1] + part * (mean[i] - mean[i - 1])))
    x = torch.where(a > FAR * scale, a + scale * u, sigma * (found + u)).clip(min=0)
    return torch.where(std == 0, u, (x - above.state.to(u)) / std.clip(min=TINY))
