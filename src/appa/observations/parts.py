r"""The parts of an observation operator: rows that are evaluated together.

Variables of the state are weighted sums, :class:`Linear`. Any other observable gathers its inputs,
calls its function once for all of its rows, and whitens the departure from the values observed,
:class:`Derived`:

.. math:: \mathcal{A}(x)_i = \frac{f(a_1(x), \dots, a_m(x))_i - v_i}{\sigma_i} ,

modulo the period of an angle.

An observable is *curved* where its second order is not small beside its first as far as states go:
over steps :math:`s` of its inputs about their means :math:`m`, normal with the standard deviations
that states are standardized with, those over all places and seasons (the weather of one place
varies less, and :math:`f` looks straighter to it), over all rows for which that is finite,

.. math:: \lVert f(m + s) - 2 f(m) + f(m - s) \rVert > \kappa \, \lVert f(m + s) - f(m - s)
    \rVert ,

or where it is finite for none: what is not defined a standard deviation away is not straight.

So are wind speed and relative humidity; pressures, thicknesses and brightness temperatures are as
good as linear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import DataError
from .observables import Observable
from .stencils import Gather

__all__ = ["Derived", "Linear", "Part"]


CURVED = 0.2  # κ; wind speed has 0.5 and more, the pressure at a station less than 0.1


class Part(Protocol):
    @property
    def curved(self) -> bool: ...
    @property
    def stencil(self) -> tuple[Tensor, Tensor] | None: ...
    def __len__(self) -> int: ...
    def __call__(self, x: Tensor) -> Tensor: ...
    def tangent(self, x: Tensor, dx: Tensor) -> Tensor: ...
    def inflate(self, factor: Tensor) -> Part: ...
    def to(self, device: Any) -> Part: ...


@dataclass(frozen=True, eq=False)
class Linear:
    r"""Variables of the state: whitened values are weighted sums of standardized ones."""

    gather: Gather
    curved = False

    def __len__(self) -> int:
        return len(self.gather.weight)

    def __call__(self, x: Tensor) -> Tensor:
        return self.gather(x.flatten(1))

    @property
    def stencil(self) -> tuple[Tensor, Tensor]:
        r"""Which numbers of a flattened state rows see, and their weights, :math:`(n, k)`."""
        return self.gather.index, self.gather.weight

    def tangent(self, x: Tensor, dx: Tensor) -> Tensor:
        gather = self.gather
        return (gather if gather.offset is None else replace(gather, offset=None))(dx.flatten(1))

    def inflate(self, factor: Tensor) -> Linear:
        return Linear(replace(self.gather, weight=self.gather.weight / factor[:, None]))

    def to(self, device: Any) -> Linear:
        return Linear(self.gather.to(device))


@dataclass(frozen=True, eq=False)
class Derived:
    r"""Observables that are functions of others.

    Arguments:
        observable: The observable.
        inputs: What gathers its inputs; of whole fields, what they are taken from.
        keywords: The keywords its function takes.
        columns: The number of levels of each input that has a column, 0 of the others.
        reference: The values observed, with shape :math:`(n)`.
        error: Their errors, with shape :math:`(n)`.
        place: What interpolates the result, if the function takes whole fields.
        shape: The grid's :math:`(H, W)`, or :math:`(n)`.
    """

    observable: Observable
    inputs: tuple[Gather, ...]
    keywords: Mapping[str, Any]
    columns: tuple[int, ...]
    reference: Tensor
    error: Tensor
    place: Gather | None
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.error)

    def tangent(self, x: Tensor, dx: Tensor) -> Tensor:
        # by the derivative of a derivative, which any function that autograd knows has
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            u = torch.zeros(len(x), len(self), dtype=x.dtype, device=x.device, requires_grad=True)
            (back,) = torch.autograd.grad(self(x), x, u, create_graph=True)
        return torch.autograd.grad(back, u, dx)[0]

    @property
    def stencil(self) -> tuple[Tensor, Tensor] | None:
        r"""Which numbers of a flattened state rows see, and the weights of these in the inputs,
        :math:`(n, k)`; nothing where a function takes whole fields, and may see them all."""
        if self.place is not None:
            return None
        pairs = [
            (self._by_row(gather.index, k), self._by_row(gather.weight, k))
            for gather, k in zip(self.inputs, self.columns, strict=True)
        ]
        index, weight = zip(*pairs, strict=True)
        return torch.cat(index, dim=-1), torch.cat(weight, dim=-1)

    def slopes(self, x: Tensor) -> Tensor | None:
        r"""The derivatives of :math:`\mathcal{A}` with respect to the numbers of :attr:`stencil` at
        states :math:`(B, C, H, W)`, with shape :math:`(B, n, k)`; 0 where there is none."""
        if self.place is not None:
            return None
        with torch.enable_grad():
            inputs = [gather(x.detach().flatten(1)).requires_grad_() for gather in self.inputs]
            # a row depends on its own inputs alone, so that one sum has all derivatives
            total = (self._evaluate(inputs) / self.error.to(x.dtype)).sum()
            found = torch.autograd.grad(total, inputs, materialize_grads=True)
        parts = [
            self._by_row(g.unsqueeze(-1) * gather.weight.to(x.dtype), k)
            for g, gather, k in zip(found, self.inputs, self.columns, strict=True)
        ]
        return torch.cat(parts, dim=-1).nan_to_num(0.0, 0.0, 0.0)

    def _by_row(self, values: Tensor, columns: int) -> Tensor:
        r"""Numbers of an input, :math:`(*, K n, k)`, row by row: :math:`(*, n, K k)`."""
        values = values.unflatten(-2, (columns or 1, len(self)))
        return values.movedim(-3, -2).flatten(-2)

    def inflate(self, factor: Tensor) -> Derived:
        return replace(self, error=self.error * factor)

    @property
    def curved(self) -> bool:
        r"""Whether it is far from linear in the state. An angle is not said to be: it has no mean
        that a second order could correct."""
        if self.observable.period is not None:
            return False
        generator, inputs = torch.Generator().manual_seed(0), []
        for gather in self.inputs:
            size = gather.weight.sum(dim=1)  # of as many standard deviations
            step = size * torch.randn(len(size), generator=generator).to(size)
            mean = torch.zeros_like(size) if gather.offset is None else gather.offset
            inputs.append(torch.stack([mean + step, mean, mean - step]))
        with torch.no_grad():
            high, middle, low = self._evaluate(inputs)
        finite = high.isfinite() & middle.isfinite() & low.isfinite()
        if not bool(finite.any()):
            return True
        high, middle, low = high[finite], middle[finite], low[finite]
        second, first = (high - 2 * middle + low).norm(), (high - low).norm()
        return bool(second > CURVED * first)

    def __call__(self, x: Tensor) -> Tensor:
        flat, observable = x.flatten(1), self.observable
        result = self._evaluate([gather(flat) for gather in self.inputs])
        departure = result - self.reference.to(x.dtype)
        if observable.period is not None:
            departure = departure - observable.period * torch.round(departure / observable.period)
        return departure / self.error.to(x.dtype)

    def _evaluate(self, inputs: Sequence[Tensor]) -> Tensor:
        r"""The observable of its gathered inputs, :math:`(B, n)`."""
        observable, count, dtype = self.observable, len(inputs[0]), inputs[0].dtype
        values = [
            value.unflatten(1, (k, *self.shape) if k else self.shape)
            for value, k in zip(inputs, self.columns, strict=True)
        ]
        keywords = {
            key: value.to(dtype) if isinstance(value, Tensor) else value
            for key, value in self.keywords.items()
        }
        assert observable.function is not None
        result = observable.function(*values, **keywords)
        levels = (max(self.columns),) if self.place and observable.levels == "level" else ()
        expected = (count, *levels, *self.shape)
        if tuple(result.shape) != expected:
            raise DataError(
                f"the function of {observable.name!r} returned shape {tuple(result.shape)}, "
                f"expected {expected}; its inputs have "
                f"{', '.join(str(tuple(v.shape)) for v in values)}"
            )
        return result if self.place is None else self.place(result.flatten(1))

    def to(self, device: Any) -> Derived:
        keywords = {
            k: v.to(device) if isinstance(v, Tensor) else v for k, v in self.keywords.items()
        }
        return replace(
            self,
            inputs=tuple(gather.to(device) for gather in self.inputs),
            keywords=keywords,
            reference=self.reference.to(device),
            error=self.error.to(device),
            place=None if self.place is None else self.place.to(device),
        )
