r"""What was tuned, and on what: settings carry the periods they were chosen on, which are refused
when something is scored with them.

A period is of a whole trajectory where the truth tells them apart: hours of one member some days
from each other share its climate anomalies, and settings that were chosen on some of them are not
independent of the others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import xarray as xr

from ..data.clock import as_datetime64
from ..errors import ConfigError, DataError, StoreError, nearest

__all__ = ["Periods", "Tuned", "edges", "load", "periods", "save", "untouched"]

Periods = tuple[tuple[str, str], ...]
S = TypeVar("S")


def periods(truth: xr.Dataset, windows: Iterable[np.ndarray]) -> Periods:
    r"""The periods that windows are of, as pairs of the first and the last hour.

    Arguments:
        truth: The truth; where it has a coordinate `trajectory`, a period is all that it has of
            the trajectories of a window.
        windows: The hours of each window.
    """
    hours = as_datetime64(truth["time"].values).astype("datetime64[h]")
    known = truth["trajectory"].values if "trajectory" in truth.coords else None
    found: list[tuple[str, str]] = []
    for times in windows:
        times = np.asarray(times).astype("datetime64[h]")
        spans = [times]
        if known is not None and np.ndim(known) == 1:
            here = np.unique(known[np.isin(hours, times)])
            spans += [hours[known == number] for number in here]
        # a member's hours are of consecutive years, and no other member's are between them
        pair = str(min(s.min() for s in spans)), str(max(s.max() for s in spans))
        if pair not in found:
            found.append(pair)
    return tuple(found)


def untouched(tuned: Periods, times: np.ndarray) -> None:
    r"""Raises where hours that are to be scored were tuned on, or others of the same trajectory."""
    for first, last in tuned:
        if times[0] <= np.datetime64(last) and np.datetime64(first) <= times[-1]:
            here = " to ".join(str(t.astype("datetime64[h]")) for t in (times[0], times[-1]))
            raise DataError(
                f"the settings were tuned on {first} to {last}, which {here} overlaps: scores of "
                "it would say too much; choose hours of another trajectory, or tune on others"
            )


def edges(best: Any, grid: Mapping[str, Sequence[Any]]) -> list[str]:
    r"""Where the best of all values tried is the least or the largest, so that there may be better.

    Arguments:
        best: The settings that were chosen.
        grid: The values tried of each, of which none is the largest.
    """
    found = []
    for name, values in grid.items():
        ordered = sorted(math.inf if v is None else v for v in values)
        value = getattr(best, name)
        value = math.inf if value is None else value
        if len(ordered) > 1 and value in (ordered[0], ordered[-1]) and value != math.inf:
            which = "least" if value == ordered[0] else "largest"
            found.append(f"the best {name}, {value:g}, is the {which} that was tried")
    return found


class Tuned:
    r"""Settings that are tuned, a dataclass with a field `tuned`, as files and against hours."""

    kinds: ClassVar[dict[str, type]]
    r"""The types of numbers, see :func:`load`."""
    remedy: ClassVar[str]
    r"""What makes a file of them."""
    tuned: Periods

    def save(self, path: str | Path) -> Path:
        r"""Writes them to a JSON file."""
        return save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        r"""Reads them."""
        return load(cls, path, cls.kinds, cls.remedy)

    def untouched(self, times: np.ndarray) -> None:
        r"""Raises where hours to be scored were tuned on, or are of the same trajectory."""
        untouched(self.tuned, times)


def save(settings: Any, path: str | Path) -> Path:
    r"""Writes settings, a dataclass, to a JSON file."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(json.dumps(asdict(settings), indent=1) + "\n")
        partial.replace(path)
    except OSError as error:
        raise StoreError(f"cannot write {str(path)!r} ({error}); choose another folder") from error
    return path


def load(cls: Callable[..., S], path: str | Path, kinds: dict[str, type], remedy: str) -> S:
    r"""Reads settings.

    Arguments:
        cls: Their dataclass, with a field `tuned`.
        path: The file.
        kinds: The types of numbers, by name; other fields are sequences of words.
        remedy: What makes such a file, for messages.
    """
    try:
        found: Any = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise StoreError(f"{str(path)!r} holds no settings ({error}); {remedy}") from error
    known = {f.name: f.default for f in fields(cls)}  # type: ignore[arg-type]
    try:
        found = dict(found)
        for key, value in found.items():
            if key not in known:
                raise ConfigError(f"{str(path)!r} has an unknown {key!r}{nearest(key, known)}")
            if key == "tuned":
                pairs = ((np.datetime64(a), np.datetime64(b)) for a, b in value)
                found[key] = tuple((str(a), str(b)) for a, b in pairs)
            elif key not in kinds:
                found[key] = _words(key, value)
            elif value is not None and (isinstance(value, bool) or kinds[key](value) != value):
                raise ValueError(f"{key} is {value!r}")
        return cls(**found)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{str(path)!r} holds no settings ({error}); {remedy}") from error


def _words(key: str, value: Sequence[Any]) -> tuple[str, ...]:
    if isinstance(value, str) or not all(isinstance(word, str) for word in value):
        raise ValueError(f"{key} is {value!r}")
    return tuple(value)
