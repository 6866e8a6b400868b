r"""Kernels made of several operations, on a GPU.

What is done to every pixel of a layer or to every token, a norm or an activation, is cheap to
compute and dear to read and write: as separate operations it goes over memory once for each.
`torch.compile` makes one kernel of them. Only tensors large enough to be worth the seconds that
takes are treated so.

Elsewhere the same functions are called as they are: on CPUs, where no compiler works, and where a
network is compiled as a whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

__all__ = ["fused", "pixelwise", "tokenwise"]

FUSED = True  # whether anything is
LARGE = 2**23  # numbers of a tensor that is worth a kernel of its own
DEVICES = ("cuda",)  # where


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    r"""Makes one kernel of what reads and writes large tensors many times, where no graph is
    recorded."""
    return _unrecorded(function, _kernel(function))


def pixelwise(function: Callable[..., Any]) -> Callable[..., Any]:
    r"""Applies a function of pixels :math:`(N, C)` to fields :math:`(B, C, H, W)`, fused.

    With channels last in memory, as convolutions have them, pixels are rows: nothing is copied, and
    there is no doubt about the order of what comes out. A kernel knows its number of channels, so
    that a pixel is read once; the number of pixels may change.
    """
    kernel = _unrecorded(function, _kernel(function, rows=True))

    @wraps(function)
    def call(x: Tensor, *arguments: Any) -> Any:
        b, _, h, w = x.shape
        rows = [_rows(t) if isinstance(t, Tensor) else t for t in (x, *arguments)]
        found = kernel(*rows)
        fields = found if isinstance(found, tuple) else (found,)
        fields = tuple(t.unflatten(0, (b, h, w)).movedim(-1, 1) for t in fields)
        return fields if isinstance(found, tuple) else fields[0]

    return call


def tokenwise(function: Callable[..., Any]) -> Callable[..., Any]:
    r"""Makes one kernel of a function of tokens :math:`(B, N, D)`, and where a graph is recorded
    another of its products :math:`dy \mapsto J^\top dy`.

    These begin with the function's inputs, which is all that is kept. There are no second
    derivatives. Gradients of what tokens share, weights say, are sums over tokens: where they are
    asked for, in training, nothing is fused here.
    """
    kernel, product = _kernel(function), _kernel(_transposed(function))

    @wraps(function)
    def call(x: Tensor, *arguments: Any) -> Any:
        if not _suits(x) or _transformed():
            return function(x, *arguments)
        tensors = [t for t in (x, *arguments) if isinstance(t, Tensor) and t.requires_grad]
        if not tensors or not torch.is_grad_enabled():
            return kernel(*map(_detached, (x, *arguments)))
        if min(t.numel() for t in tensors) < x.numel():
            return function(x, *arguments)
        return _Recorded.apply(kernel, product, x, *arguments)

    return call


def _unrecorded(function: Callable[..., Any], kernel: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(x: Tensor, *arguments: Any) -> Any:
        if not _suits(x) or torch.is_grad_enabled():
            return function(x, *arguments)
        return kernel(x, *arguments)

    return call


def _suits(x: Tensor) -> bool:
    if torch.compiler.is_compiling():  # a larger kernel
        return False
    return FUSED and x.device.type in DEVICES and x.numel() >= LARGE


def _transformed() -> bool:
    r"""Whether derivatives are taken forward, or by what transforms functions."""
    return forward_ad._current_level >= 0 or peek_interpreter_stack() is not None


def _kernel(function: Callable[..., Any], rows: bool = False) -> Callable[..., Any]:
    r"""A function compiled when it is first called, or called as it is where that fails."""
    compiled: list[Callable[..., Any]] = []

    def call(*arguments: Any) -> Any:
        from torch import _dynamo as dynamo

        for t in arguments if rows else ():  # see `pixelwise`
            if isinstance(t, Tensor) and t.ndim == 2:
                dynamo.maybe_mark_dynamic(t, 0)
                dynamo.mark_static(t, 1)
        try:
            if not compiled:  # which takes seconds
                # a kernel for each width, and networks have more than the default allows
                dynamo.config.recompile_limit = max(dynamo.config.recompile_limit, 64)
                compiled.append(torch.compile(function))
            return compiled[0](*arguments)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # dynamo's own are, and those of compilers and of launches
            if isinstance(error.__cause__, TimeoutError):  # a caller's
                raise
            warnings.warn(f"{function.__name__} is not compiled: {error}", stacklevel=3)
            compiled[:] = [function]
            return function(*arguments)

    return call


def _transposed(function: Callable[..., Any]) -> Callable[..., Any]:
    r"""The products with the transposed Jacobian of a function."""

    def product(changes: Sequence[Tensor], chosen: Sequence[int], *arguments: Any) -> Any:
        def at(*tensors: Tensor) -> Any:
            given = list(arguments)
            for i, t in zip(chosen, tensors, strict=True):
                given[i] = t
            return function(*given)

        found, back = torch.func.vjp(at, *[arguments[i] for i in chosen])[:2]
        return back(tuple(changes) if isinstance(found, tuple) else changes[0])

    product.__name__ = f"{function.__name__}, transposed,"
    return product


class _Recorded(torch.autograd.Function):
    r"""A kernel, whose gradients are those of another."""

    @staticmethod
    def forward(ctx, kernel: Callable[..., Any], product: Callable[..., Any], *arguments: Any):
        ctx.product = product
        ctx.tensors = [i for i, t in enumerate(arguments) if isinstance(t, Tensor)]
        ctx.others = [None if isinstance(t, Tensor) else t for t in arguments]
        ctx.save_for_backward(*(arguments[i] for i in ctx.tensors))
        return kernel(*map(_detached, arguments))

    @staticmethod
    @once_differentiable
    def backward(ctx, *changes: Tensor) -> tuple[Any, ...]:
        arguments = list(ctx.others)
        for i, t in zip(ctx.tensors, ctx.saved_tensors, strict=True):
            arguments[i] = t.detach()
        chosen = tuple(i for i, asked in enumerate(ctx.needs_input_grad[2:]) if asked)
        found = dict(zip(chosen, ctx.product(changes, chosen, *arguments), strict=True))
        return None, None, *(found.get(i) for i in range(len(arguments)))


def _detached(x: Any) -> Any:
    r"""What a kernel need not tell from another, a weight say."""
    return x.detach() if isinstance(x, Tensor) else x


def _rows(x: Tensor) -> Tensor:
    return x.movedim(1, -1).flatten(0, -2)
