r"""Random numbers that depend on what they are for, and on nothing else.

Everything random about element :math:`i` of the global batch of update :math:`s` is a function of
:math:`(\text{seed}, s, i)`: how elements are shared out among ranks and micro-steps changes
nothing, no random state needs saving, and a device draws the bits that another does. The function
is SplitMix64 (Steele et al., 2014), number :math:`n` of the stream with key :math:`k` being

.. math:: x = \mathrm{mix}(k + n \, \gamma) , \qquad \gamma = \lfloor 2^{64} / \phi \rfloor ,

and the halves of :math:`x` give two numbers in :math:`[0, 1)`, or two normal ones (Box and Muller,
1958). It is made of sums, products and shifts of tensors, without a state. It is not to be compiled
along with the network that uses it: compilers take a counter for an index of 32 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["key", "keys", "normal", "uniform"]

WORD = 2**64


def _signed(x: int) -> int:
    r"""The integer that 64 bits are read as."""
    x %= WORD
    return x - WORD if x >= WORD // 2 else x


GAMMA = 0x9E3779B97F4A7C15
FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SHIFTS = (30, 27, 31)


def key(*numbers: int) -> int:
    r"""The key of a stream that belongs to some numbers, a signed integer of 64 bits."""
    x = 0
    for n in numbers:
        x = (x + n + GAMMA) % WORD
        for shift, factor in zip(SHIFTS, (*FACTORS, 1), strict=True):
            x = ((x ^ (x >> shift)) * factor) % WORD
    return _signed(x)


def keys(seed: int, step: int, first: int, count: int, device: torch.device) -> Tensor:
    r"""The keys of elements :math:`i`, from the first on, of the batch of an update.

    Returns:
        The keys, with shape :math:`(B)`. Nothing is copied from the host.
    """
    index = torch.arange(first, first + count, device=device)
    return _mix(index * _signed(GAMMA) + key(seed, step))


def uniform(keys: Tensor, stream: int) -> Tensor:
    r"""A number in :math:`[0, 1)` of each key, with its shape; others in another stream."""
    return _halves(_mix(keys + key(stream)))[1]


def normal(keys: Tensor, shape: Sequence[int], stream: int) -> Tensor:
    r"""Standard normal noise, each element's its own; another in another stream.

    Arguments:
        keys: The keys of :math:`B` elements, with shape :math:`(B)`.
        shape: The shape of an element.
        stream: The number of the stream.

    Returns:
        Noise with shape :math:`(B, *)`.
    """
    size = math.prod(shape)
    n = torch.arange((size + 1) // 2, device=keys.device)
    start = _mix(keys + key(stream))
    u, v = _halves(_mix(start[:, None] + n * _signed(GAMMA)))
    radius = torch.sqrt(-2 * torch.log(1 - u))
    angle = 2 * math.pi * v
    both = torch.cat((radius * torch.cos(angle), radius * torch.sin(angle)), dim=1)
    return both[:, :size].reshape(-1, *shape)


def _mix(x: Tensor) -> Tensor:
    r"""SplitMix64's function of 64 bits."""
    for shift, factor in zip(SHIFTS, (*FACTORS, None), strict=True):
        # an integer's sign must not be shifted in
        x = x ^ ((x >> shift) & (2 ** (64 - shift) - 1))
        x = x if factor is None else x * _signed(factor)
    return x


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    r"""Two numbers in :math:`[0, 1)` of 64 bits, each of 24, the digits of single precision."""
    u, v = (x >> 40) & (2**24 - 1), (x >> 8) & (2**24 - 1)
    return u.to(torch.float32) * 2.0**-24, v.to(torch.float32) * 2.0**-24
