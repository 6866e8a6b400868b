r"""Training: one loop for both networks, on one device or on many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .loop import train_autoencoder, train_denoiser

__all__ = ["train_autoencoder", "train_denoiser"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from . import loop

        return getattr(loop, name)
    raise AttributeError(f"module 'appa.training' has no attribute {name!r}")
