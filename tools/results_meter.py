r"""Counts passes through the networks of a model, forward and backward, by watching them."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from appa.tasks.model import Model

__all__ = ["Meter"]


class Meter:
    r"""Counts while it is entered.

    `denoiser` counts windows that pass through the denoiser, forwards or backwards; `decoder`
    states that pass through the decoder, forwards, backwards, or as products with its Jacobian.

    Arguments:
        model: The model that is watched.
    """

    def __init__(self, model: Model):
        self.model = model
        self.counts = {"denoiser": 0, "decoder": 0}

    def __enter__(self) -> Meter:
        model = self.model
        decode, linearize = model.decode, model.linearize

        def decoded(z: Tensor) -> Tensor:
            return self._watch("decoder", decode(z), _states(z))

        def linearized(z: Tensor) -> Any:
            count = _states(z)
            x, changes = linearize(z)

            def product(dz: Tensor) -> Tensor:
                self.counts["decoder"] += count
                return changes(dz)

            return self._watch("decoder", x, count), product

        # in place of the methods, of this model alone
        model.decode, model.linearize = decoded, linearized  # type: ignore[method-assign]
        # the network, which denoisers in other precisions share
        self._hook = model.denoiser.backbone.register_forward_hook(
            lambda module, args, out: self._watch("denoiser", out, len(out))  # type: ignore
        )
        return self

    def __exit__(self, *args: Any) -> None:
        self._hook.remove()
        del self.model.decode, self.model.linearize

    def _watch(self, name: str, out: Tensor, count: int) -> Tensor:
        r"""Counts a pass, and every time a gradient passes back."""
        self.counts[name] += count
        if out.requires_grad:

            def back(gradient: Tensor) -> None:
                self.counts[name] += count

            out.register_hook(back)
        return out


def _states(z: Tensor) -> int:
    return math.prod(z.shape[:-3])
