r"""The fields of states that are given out: a choice of variables and levels, restored.

Where a variable is undefined (SST over land), so it is here. A decoder knows nothing of signs:
specific humidity and precipitation come out slightly negative where they are near zero. Such values
are counted, and set to zero unless they are to be kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..costs import decoder_convolutions
from ..data.variables import VARIABLES
from ..errors import DataError, nearest
from ..machine import free_memory
from .folders import ModelError
from .model import Model

__all__ = ["NONNEGATIVE", "Field", "blocks", "decode_batch", "decode_bytes", "fields", "held"]

NONNEGATIVE = ("total_precipitation", "specific_humidity")
ROUNDING = 1e-5  # of a standard deviation, which zero may be missed by


@dataclass(frozen=True)
class Field:
    r"""A variable of the output: which channels of a state it is, and how they are restored."""

    name: str
    dims: tuple[str, ...]
    channels: list[int]
    attrs: dict[str, str]
    mean: Tensor
    std: Tensor
    undefined: np.ndarray | None = None
    levels: slice | None = None  # which of the variable's these are, where not all

    def part(self, levels: slice) -> Field:
        r"""Some of its levels."""
        return replace(
            self,
            channels=self.channels[levels],
            mean=self.mean[levels],
            std=self.std[levels],
            levels=levels,
        )

    def restore(self, x: Tensor, clip: bool) -> tuple[np.ndarray, np.ndarray]:
        r"""Physical values of its standardized channels :math:`(B, c, H, W)`, with shape :math:`(B,
        [c,] H, W)`, and how many of each state were negative where none can be."""
        x = x.to(torch.float32)
        y = (x * self.std.to(x) + self.mean.to(x)).cpu().numpy()
        y = y if len(self.dims) == 3 else y[:, 0]
        if self.name not in NONNEGATIVE:
            negative = np.zeros(len(y), np.int64)
        else:
            none = -ROUNDING * self.std.cpu().numpy()  # (L, 1, 1)
            negative = (y < none).reshape(len(y), -1).sum(axis=1)
            y = np.maximum(y, 0, out=y) if clip else y
        if self.undefined is not None:
            y[..., self.undefined] = np.nan
        return y, negative


def fields(
    model: Model, variables: Sequence[str] | None = None, levels: Sequence[int] | None = None
) -> tuple[list[Field], tuple[int, ...]]:
    r"""The variables asked for, by default all of the model's, and their levels.

    Arguments:
        model: The model.
        variables: Names, `2m_temperature` or `t2m`.
        levels: Pressures in hPa.
    """
    n, space = len(model.config.channels), ("latitude", "longitude")
    if model.unnamed:
        if variables or levels:
            raise DataError(
                f"{model.origin} has channels without names, of which no variables or levels can "
                "be chosen; leave both out for all of its channels"
            )
        zero, one = torch.zeros(n, 1, 1), torch.ones(n, 1, 1)
        attrs = {"long_name": "standardized state", "units": "1"}
        all_of_it = [Field("state", ("channel", *space), list(range(n)), attrs, zero, one)]
        return all_of_it if variables is None else [], ()
    data, states = model.config.data, model.standardizer
    names = [*data.surface, *data.atmospheric]
    chosen = names if variables is None else [_long(name, names, model) for name in variables]
    kept = data.levels if levels is None else tuple(sorted({int(level) for level in levels}))
    for level in kept:
        if level not in data.levels:
            close = min(data.levels, key=lambda other: abs(other - level), default=None)
            told = f"; the nearest is {close}" if close else ", and none at all"
            raise DataError(f"{model.origin} has no level of {level} hPa{told}")
    if chosen and states is None:
        raise ModelError(
            f"{model.origin} has no statistics of its states, whose physical values are therefore "
            "unknown; import it again with them: appa import-official RUN OUT --statistics FILE"
        )
    found = []
    for name in (name for name in names if name in chosen):  # in the order of a state
        assert states is not None
        surface = VARIABLES[name].surface
        where = [
            i
            for i, c in enumerate(states.channels)
            if c.variable == name and (surface or c.level in kept)
        ]
        if not where:
            continue
        dims = space if surface else ("level", *space)
        undefined = states.land if VARIABLES[name].missing == "land" else None
        attrs = VARIABLES[name].attrs
        found.append(
            Field(name, dims, where, attrs, states.mean[where], states.std[where], undefined)
        )
    return found, kept if any("level" in field.dims for field in found) else ()


def _long(word: str, names: list[str], model: Model) -> str:
    r"""The variable that a word stands for: its name, or its short one."""
    short = {VARIABLES[name].short: name for name in names}
    if word in names or word in short:
        return short.get(word, word)
    stem = word.rstrip("0123456789")
    name = short.get(stem, stem)
    if stem != word and name in names and not VARIABLES[name].surface:
        level = word[len(stem) :]
        raise DataError(
            f"found {word!r} among variables, a variable at a level: all that are chosen have the "
            f"same levels, given apart; for example --variables {stem} --levels {level}, or "
            f"variables=[{stem!r}], levels=[{level}]"
        )
    raise DataError(f"{model.origin} has no variable {word!r}{nearest(word, [*names, *short])}")


def decode_bytes(model: Model) -> int:
    r"""An estimate of the memory it takes to decode a state: input and output of the widest
    convolution, and what becomes of them, twice; and the state, once more restored."""
    widest = max((c + d) * pixels for c, d, pixels in decoder_convolutions(model.config))
    return 2 * 4 * widest + 2 * model.config.state_bytes


def decode_batch(model: Model, share: float = 0.25, most: int = 32) -> int:
    r"""How many states may be decoded at once, within a share of the memory that is free."""
    free = free_memory(model.device)
    return max(1, min(most, int(share * free) // decode_bytes(model)))


def held(model: Model, share: float = 0.25) -> int:
    r"""How many single fields, one channel of one hour each, may be held at once, within a share of
    the memory that is free."""
    return max(1, int(share * free_memory(model.device)) // (4 * math.prod(model.grid.shape)))


def blocks(chosen: Sequence[Field], hours: int, most: int) -> tuple[int, list[list[Field]]]:
    r"""The number of members that are held at once over some hours, and fields put together, or
    taken apart by levels, so that they fit.

    Arguments:
        chosen: The fields.
        hours: The number of hours.
        most: The number of single fields that may be held. One channel of one member is, anyhow.
    """
    room = max(1, most // max(hours, 1))  # for channels
    members = max(1, room // max(1, sum(len(field.channels) for field in chosen)))
    found: list[list[Field]] = []
    left = 0
    for field in chosen:
        n = len(field.channels)
        for first in range(0, n, room):
            part = field if n <= room else field.part(slice(first, min(first + room, n)))
            if len(part.channels) > left:
                found.append([])
                left = room
            found[-1].append(part)
            left -= len(part.channels)
    return members, found
