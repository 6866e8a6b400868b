r"""Kernels made of several operations, on a GPU.

What is done to every pixel of a layer, a norm or an activation, is cheap to compute and dear to
read and write: as separate operations it goes over memory once for each. `torch.compile` makes one
kernel of them. Only tensors large enough to be worth the seconds that takes are treated so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

__all__ = ["fused", "pixelwise"]

FUSED = True  # whether anything is
LARGE = 2**24  # numbers of a tensor that is worth a kernel of its own


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    r"""Makes one kernel of what reads and writes large tensors many times, on CUDA and where no
    graph is recorded. Elsewhere it is called as it is, and so it is where no compiler works."""
    compiled: list[Callable[..., Any]] = []

    @wraps(function)
    def call(x: Tensor, *arguments: Any) -> Any:
        suits = FUSED and x.is_cuda and x.numel() >= LARGE
        if not suits or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return function(x, *arguments)
        from torch import _dynamo as dynamo

        for rows in (x, *arguments):
            if isinstance(rows, Tensor) and rows.ndim == 2:  # see `pixelwise`
                dynamo.maybe_mark_dynamic(rows, 0)
                dynamo.mark_static(rows, 1)
        try:
            if not compiled:  # which takes seconds
                # a kernel for each width, and networks have more than the default allows
                dynamo.config.recompile_limit = max(dynamo.config.recompile_limit, 64)
                compiled.append(torch.compile(function))
            return compiled[0](x, *arguments)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # dynamo's own are, and those of compilers and of launches
            warnings.warn(f"{function.__name__} is not compiled: {error}", stacklevel=2)
            compiled[:] = [function]
            return function(x, *arguments)

    return call


def pixelwise(function: Callable[..., Any]) -> Callable[..., Any]:
    r"""Applies a function of pixels :math:`(N, C)` to fields :math:`(B, C, H, W)`, fused.

    With channels last in memory, as convolutions have them, pixels are rows: nothing is copied, and
    there is no doubt about the order of what comes out. A kernel knows its number of channels, so
    that a pixel is read once; the number of pixels may change.
    """
    kernel = fused(function)

    @wraps(function)
    def call(x: Tensor, *arguments: Any) -> Any:
        b, _, h, w = x.shape
        rows = [_rows(t) if isinstance(t, Tensor) else t for t in (x, *arguments)]
        found = kernel(*rows)
        fields = found if isinstance(found, tuple) else (found,)
        fields = tuple(t.unflatten(0, (b, h, w)).movedim(-1, 1) for t in fields)
        return fields if isinstance(found, tuple) else fields[0]

    return call


def _rows(x: Tensor) -> Tensor:
    return x.movedim(1, -1).flatten(0, -2)
