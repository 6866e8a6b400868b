r"""What a model's decoder cannot express, estimated from states it was not trained on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.stores import open_store
from ..data.windows import WindowLoader
from ..observations.representation import AUTOENCODER_DIGEST, Representation, estimate
from ..progress import progress
from ..tasks.folders import digest
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

    found = estimate(
        reconstruct,
        segments(),
        model.grid,
        hours - 1,
        channels=states.channels,
        land=states.land,
        batch=batch,
    )
    return found.assign_attrs(_provenance(model, store, split, loader, hours))


def _provenance(
    model: Model, store: Any, split: Any, loader: WindowLoader, hours: int
) -> dict[str, Any]:
    r"""The attributes that say what it was estimated of."""
    first, last = loader.times[loader.starts], loader.times[loader.starts + hours - 1]
    years = np.unique(np.concatenate([first, last]).astype("datetime64[Y]")).astype(str)
    ds = store if hasattr(store, "attrs") else open_store(store)
    attrs: dict[str, Any] = {
        AUTOENCODER_DIGEST: digest(model.autoencoder.state_dict()),
        "split": split if isinstance(split, str) else json.dumps(split, default=str),
        "years": " ".join(years),
        "first_hour": str(first.min()),
        "last_hour": str(last.max()),
        "windows": len(first),
    }
    if isinstance(store, (str, Path)):  # its name, not where it lies
        attrs["store"] = str(store).rstrip("/").rsplit("/", 1)[-1]
    if "title" in ds.attrs:
        attrs["store_title"] = str(ds.attrs["title"])
    return attrs
