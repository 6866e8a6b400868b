r"""`appa config`: show and check configurations."""

from __future__ import annotations

import typer

__all__ = ["app"]

app = typer.Typer(help="Show and check configurations.", no_args_is_help=True)
