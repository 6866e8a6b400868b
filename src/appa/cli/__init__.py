r"""The command line: one file a command group; each command parses, calls one function, prints.

Nothing heavy is imported until a command runs: `appa --help` answers at once.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    r"""Entry point of the `appa` command."""
    import typer

    from ..errors import AppaError
    from . import config, data, demo

    app = typer.Typer(
        name="appa",
        help="Reconstructs the global atmosphere from observations.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.add_typer(config.app, name="config")
    app.add_typer(data.app, name="data")
    demo.register(app)

    try:
        app()
    except AppaError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
