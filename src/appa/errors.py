r"""Errors a user can act on.

Every message names the cause, the value found, and what to do. The command line prints an
:class:`AppaError` as one message and exits with status 2; anything else is a bug and keeps its
traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["AppaError", "ConfigError", "DataError", "StoreError", "UnfinishedStoreError", "nearest"]


class AppaError(Exception):
    r"""Base of every error raised on purpose."""


class ConfigError(AppaError):
    r"""A configuration has an unknown key or an impossible value."""


class DataError(AppaError):
    r"""Data that cannot be what they are said to be."""


class StoreError(AppaError):
    r"""A store is missing, damaged, or not in a layout Appa reads."""


class UnfinishedStoreError(StoreError):
    r"""A store whose writing was interrupted."""


def nearest(word: str, known: Iterable[str]) -> str:
    r"""A hint naming the known word closest to an unknown one.

    Returns:
        ``"; did you mean 'x'?"``, or the list of known words where none is close.
    """
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(known)}"
