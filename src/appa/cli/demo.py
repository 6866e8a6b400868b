r"""`appa demo` and `appa info`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    r"""Adds the commands of this file to the application."""
    app.command()(demo)
    app.command()(info)


def demo(
    directory: Annotated[Path, typer.Argument(help="Where to write.")] = Path("demo"),
    hours: Annotated[int, typer.Option(help="How many hours to observe.")] = 24,
    seed: Annotated[int, typer.Option(help="Selects stations and noise.", min=0)] = 0,
) -> None:
    """Observe the bundled planet with the default network, print what is seen and draw it.

    Example: appa demo --hours 48
    """
    from ..demo import run

    run(directory, hours=hours, seed=seed)


def info() -> None:
    """Show versions, devices, bundled data and presets.

    Example: appa info
    """
    from rich.console import Console
    from rich.table import Table

    from ..info import collect

    table = Table(show_header=False, box=None)
    for section, rows in collect().items():
        table.add_row(f"[bold]{section}[/bold]", "")
        for name, value in rows.items():
            table.add_row(f"  {name}", value)
    Console().print(table, highlight=False)
