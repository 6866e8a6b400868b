r"""A user's own observables: a Python file that registers them, and their way to other processes.

A function goes to another process by its name, and is there only if what defines it is imported
there too. What stands under `if __name__ == "__main__":`, in a notebook or within a function is
not; its observable arrives without it, and tells so when it is asked for.
"""

from __future__ import annotations

import importlib.util
import pickle
import re
import sys
import traceback
import zlib
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NoReturn

from ..errors import DataError
from .observables import REGISTRY, Observable

__all__ = ["load_observables"]

_files: dict[str, Path] = {}  # by the names of modules


def load_observables(path: str | Path) -> list[str]:
    r"""Imports a Python file, so that observables it registers are known, here and in processes
    that draw.

    Arguments:
        path: The file, which registers its functions with :func:`appa.observable`.

    Returns:
        The names of the observables.

    Example:
        >>> load_observables("turbines.py")
        ['wind_power']
    """
    path = Path(path).resolve()
    if path.suffix != ".py" or not path.is_file():
        raise DataError(
            f"found {path} for observables; give a Python file that registers them with "
            "@appa.observable"
        )
    # the same in every process, and apart from files of the same name elsewhere
    stem = re.sub(r"\W", "_", path.stem)
    name = f"{stem}_{zlib.crc32(str(path).encode()):08x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name], before = module, dict(REGISTRY)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        lines = [
            f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)
        ]
        where = f", line {lines[-1]}" if lines else ""
        raise DataError(f"{path}{where} fails: {type(error).__name__}: {error}") from error
    _files[name] = path
    found = [key for key, o in REGISTRY.items() if o is not before.get(key)]
    if not found:
        raise DataError(f"{path} registers no observable; decorate functions with @appa.observable")
    return found


def _module(function: Any) -> str:
    return getattr(getattr(function, "func", function), "__module__", "")  # of a partial, too


# ---------------------------------------------------------------- to other processes


class Missing:
    r"""What stands for a function that another process does not know."""

    def __init__(self, name: str, module: str, why: str):
        self.name, self.module, self.why = name, module, why

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise DataError(
            f"the function of the observable {self.name!r}, of {self.module!r}, is not known to "
            f"processes that draw ({self.why}); define it at the top level of a module, not in a "
            "notebook, within a function or under if __name__ == '__main__', or use workers=1"
        )


def _reduce(observable: Observable) -> tuple[Callable[..., Observable], tuple[Any, ...]]:
    function, module = observable.function, _module(observable.function)
    try:
        by_name = pickle.dumps(function)
    except Exception:  # a lambda, or a function within another
        by_name = None
    bare = tuple(getattr(replace(observable, function=None), f) for f in _FIELDS)
    return _restore, (bare, by_name, module, _files.get(module))


def _restore(
    bare: tuple[Any, ...], by_name: bytes | None, module: str, path: Path | None
) -> Observable:
    observable = Observable(**dict(zip(_FIELDS, bare, strict=True)))
    try:
        if path is not None and module not in sys.modules:
            load_observables(path)
        if by_name is None:
            raise AttributeError("it has no name there")
        function = pickle.loads(by_name)
    except (AttributeError, ImportError, DataError) as error:
        function = Missing(observable.name, module, str(error))
    restored = replace(observable, function=function)
    REGISTRY.setdefault(observable.name, restored)  # errors of it are looked up by its name
    return restored


_FIELDS = tuple(Observable.__dataclass_fields__)
# of processes alone: copies in this one keep their functions
ForkingPickler.register(Observable, _reduce)
