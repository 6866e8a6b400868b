r"""The command line: one file a command group; each command parses, calls one function, prints.

Nothing heavy is imported until a command runs: `appa --help` answers at once.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, NoReturn

import typer

__all__ = ["Interrupted", "main"]

INTERRUPTED = 130  # 128 + SIGINT, as shells have it
# commands that go on where they were
RESUMED = (
    ["data", "fetch"],
    ["data", "simulate"],
    ["train"],
    ["encode"],
    ["reanalysis"],
    ["filter"],
    ["forecast"],
    ["calibrate"],
    ["budget"],
    ["baseline", "letkf"],
    ["demo"],
)


class Interrupted(SystemExit):
    r"""The end of a command that heard Ctrl-C, saved its work and said so."""

    def __init__(self) -> None:
        super().__init__(INTERRUPTED)


def main() -> None:
    r"""Entry point of the `appa` command."""
    from ..errors import AppaError
    from ..termination import Terminated

    try:
        application()()
    except AppaError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        stopped()
    except Terminated as end:
        stopped(end.code)
    except SystemExit as end:
        # what Typer makes of Ctrl-C, without a word; a training has had its own
        if end.code == INTERRUPTED and not isinstance(end, Interrupted):
            stopped()
        raise


def application() -> typer.Typer:
    r"""The application, with all its commands."""
    from . import (
        assimilate,
        baseline,
        calibrate,
        config,
        data,
        demo,
        evaluate,
        export,
        increment,
        models,
        observe,
        plan,
        plot,
        report,
        score,
        train,
    )

    app = typer.Typer(
        name="appa",
        help="Reconstructs the global atmosphere from observations.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(common)
    app.add_typer(config.app, name="config")
    app.add_typer(data.app, name="data")
    app.add_typer(train.app, name="train")
    app.add_typer(score.app, name="score")
    models.register(app)
    observe.register(app)
    assimilate.register(app)
    evaluate.register(app)
    app.add_typer(plot.app, name="plot")
    report.register(app)
    calibrate.register(app)
    increment.register(app)
    app.add_typer(baseline.app, name="baseline")
    export.register(app)
    app.add_typer(plan.app, name="plan")
    demo.register(app)
    return app


def tell_version(wanted: bool) -> None:
    from .. import __version__

    if wanted:
        typer.echo(f"appa {__version__}")
        raise typer.Exit


def common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=tell_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


def stopped(code: Any = INTERRUPTED) -> NoReturn:
    r"""Says that Ctrl-C or SIGTERM was heard, and what becomes of the work."""
    goes_on = any(sys.argv[1 : 1 + len(words)] == words for words in RESUMED)
    line = "stopped; the same command goes on where it was" if goes_on else "stopped"
    print(f"\n{line}" if sys.stderr.isatty() else line, file=sys.stderr)
    sys.exit(code)
