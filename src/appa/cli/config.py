r"""`appa config`: show and check configurations."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(help="Show and check configurations.", no_args_is_help=True)


@app.command()
def show(
    config: Annotated[
        str, typer.Argument(metavar="PRESET", help="A preset's name, or a YAML file.")
    ],
) -> None:
    """Print a configuration with every value written out, and what follows from it.

    The output is YAML: save it, change it, use it as a configuration.
    A file that begins with "extends: PRESET" need only say what differs.

    Example: appa config show era5-1.5deg > mine.yaml
    """
    from ..config import load_config
    from ..costs import facts

    found = load_config(config)
    typer.echo(f"# {config}")
    for name, value in facts(found).items():
        typer.echo(f"# {name + ':':<13}{value}")
    typer.echo(f"\n{found.to_yaml()}", nl=False)


@app.command()
def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A YAML file, or a preset's name.")],
) -> None:
    """Check a configuration: unknown keys, impossible values, parts that do not fit together.

    Prints one line a problem and exits with status 1, or says that all is well.

    Example: appa config check mine.yaml
    """
    from ..config import load_config
    from ..costs import facts
    from ..errors import ConfigError

    try:
        found = facts(load_config(file))
    except ConfigError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"ok: {file}: latent {found['latent']}, {found['compression']} compression")
