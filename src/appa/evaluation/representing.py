r"""What a model's decoder cannot express, estimated from states it was not trained on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..observations.representation import Representation, estimate
from ..progress import progress
from ..tasks.model import Model
from .streaming import standardizer, windows

__all__ = ["represent"]


def represent(
    model: Model,
    store: Any,
    split: str | tuple[Any, Any] | None = "validation",
    *,
    count: int = 64,
    hours: int | None = None,
    batch: int = 8,
    seed: int = 0,
) -> Representation:
    r"""Estimates the covariance of :math:`r = x - D_\psi(E_\psi(x))` in space and time.

    Arguments:
        model: The model, of which the autoencoder is needed.
        store: A store.
        split: The split, `"validation"` unless told: `"test"` would let scores know.
        count: The number of windows, spread over the split.
        hours: The hours of each, by default those of the model's window.
        batch: The number of states reconstructed at once.
        seed: The seed that spreads them.
    """
    hours = hours or model.config.window
    states = standardizer(model)
    loader = windows(model, store, split, hours=hours, count=count, batch=1, seed=seed)

    @torch.no_grad()
    def reconstruct(x: Tensor) -> Tensor:
        return model.reconstruct(x.to(model.device)).to(x.device, x.dtype)

    def segments() -> Iterator[Tensor]:
        with progress(len(loader), "reconstructing", unit="windows") as bar:
            for x, _ in loader:
                yield x[0]
                bar.advance()

    return estimate(
        reconstruct,
        segments(),
        model.grid,
        hours - 1,
        channels=states.channels,
        land=states.land,
        batch=batch,
    )
