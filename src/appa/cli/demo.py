r"""`appa demo` and `appa info`."""

from __future__ import annotations

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    r"""Adds the commands of this file to the application."""
