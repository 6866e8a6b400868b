r"""Random numbers that depend on what they are for, and on nothing else.

Everything random about element :math:`i` of the global batch of update :math:`s` comes from a
generator seeded with :math:`(\text{seed}, s, i)`: how elements are shared out among ranks and
micro-steps changes nothing, and no random state needs saving.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["bits", "normal", "uniform"]

WORD = 2**64 - 1


def bits(*key: int) -> int:
    r"""Sixty-four random bits of a key: SplitMix64 (Steele et al., 2014), a number at a time."""
    x = 0
    for k in key:
        x = (x + k + 0x9E3779B97F4A7C15) & WORD
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
        x ^= x >> 31
    return x


def uniform(*key: int) -> float:
    r"""A number in :math:`[0, 1)`."""
    return (bits(*key) >> 11) * 2.0**-53


def normal(
    shape: Sequence[int],
    keys: Sequence[tuple[int, ...]],
    device: torch.device,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Standard normal noise, each element's its own.

    Arguments:
        shape: The shape of an element.
        keys: What seeds the generator of each of :math:`B` elements.
        device: Where the noise is made, which its values depend on.
        generator: A generator of that device, to use for it.

    Returns:
        Noise with shape :math:`(B, *)`.
    """
    generator = generator or torch.Generator(device)
    noise = torch.empty((len(keys), *shape), device=device)
    for element, key in zip(noise.unbind(), keys, strict=True):
        generator.manual_seed(bits(*key))
        element.normal_(generator=generator)
    return noise
