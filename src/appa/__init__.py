r"""Global atmospheric data assimilation with latent diffusion.

Appa reconstructs the global atmosphere from whatever observations there are, with their
uncertainty. Names are imported when they are first used, so that `import appa` is quick.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import Config, load_config
    from .data.grids import Grid
    from .data.stores import open_store
    from .data.windows import WindowLoader
    from .observations.networks import Network, named_network
    from .observations.synthesis import observe
    from .tasks.model import Model, load

__all__ = [
    "Config",
    "Grid",
    "Model",
    "Network",
    "WindowLoader",
    "load",
    "load_config",
    "named_network",
    "observe",
    "open_store",
]

__version__ = metadata.version("appa-assimilation")

_HOMES = {
    "Config": "config",
    "Grid": "data.grids",
    "Model": "tasks.model",
    "Network": "observations.networks",
    "WindowLoader": "data.windows",
    "load": "tasks.model",
    "load_config": "config",
    "named_network": "observations.networks",
    "observe": "observations.synthesis",
    "open_store": "data.stores",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module 'appa' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
