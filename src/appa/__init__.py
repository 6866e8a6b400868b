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
    from .evaluation.scores import evaluate
    from .observations.collection import Observations
    from .observations.networks import Network, Satellite, named_network
    from .observations.observables import observable
    from .observations.reading import read_observations
    from .observations.synthesis import hold_out, observe
    from .observations.thinning import thin
    from .tasks.loading import load
    from .tasks.model import Model

__all__ = [
    "Config",
    "Grid",
    "Model",
    "Network",
    "Observations",
    "Satellite",
    "WindowLoader",
    "evaluate",
    "hold_out",
    "load",
    "load_config",
    "named_network",
    "observable",
    "observe",
    "open_store",
    "read_observations",
    "thin",
]

__version__ = metadata.version("appa-assimilation")

_HOMES = {
    "Config": "config",
    "Grid": "data.grids",
    "Model": "tasks.model",
    "Network": "observations.networks",
    "Observations": "observations.collection",
    "Satellite": "observations.networks",
    "WindowLoader": "data.windows",
    "evaluate": "evaluation.scores",
    "hold_out": "observations.synthesis",
    "load": "tasks.loading",
    "load_config": "config",
    "named_network": "observations.networks",
    "observable": "observations.observables",
    "observe": "observations.synthesis",
    "open_store": "data.stores",
    "read_observations": "observations.reading",
    "thin": "observations.thinning",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module 'appa' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
