r"""`appa data`: fetch, simulate, check and summarize stores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(help="Fetch, simulate, check and summarize stores.", no_args_is_help=True)

StoreArgument = Annotated[str, typer.Argument(help="A store: a path, a URL, or 'planet'.")]
