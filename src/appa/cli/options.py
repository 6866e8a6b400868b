r"""Options that several commands share, each told once.

A group of options is a function: its parameters are the options, what it returns is what a command
gets in their place.

    @takes(settings=drawing, output=output)
    def reanalysis(model: ..., settings: Any, output: Any) -> None: ...
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..tasks.model import Model
    from ..tasks.settings import Settings

__all__ = [
    "drawing",
    "drawing_ahead",
    "load",
    "output",
    "own_observables",
    "reading",
    "settings_of",
    "takes",
    "told",
    "words",
    "writable",
]

DRAWING, OUTPUT = "How it is drawn", "What is given out"
READING = "How observations are read"


def words(text: str) -> list[str]:
    r"""What stands between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def takes(**groups: Callable[..., dict[str, Any]]) -> Callable[[Callable], Callable]:
    r"""Gives a command the options of groups, each under the name of a parameter."""

    def decorate(command: Callable) -> Callable:
        options = {
            name: inspect.signature(group, eval_str=True).parameters
            for name, group in groups.items()
        }

        @functools.wraps(command)
        def run(**values: Any) -> Any:
            for name, group in groups.items():
                values[name] = group(**{key: values.pop(key) for key in options[name]})
            return command(**values)

        own = inspect.signature(command, eval_str=True).parameters
        every = [p for name, p in own.items() if name not in groups]
        every += [p for part in options.values() for p in part.values()]
        every = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in every]
        run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in every}
        return run

    return decorate


def drawing(
    setting: Annotated[
        str | None,
        typer.Option(
            help="Settings that belong together: 'draft', 'paper', or 'model', its own.",
            rich_help_panel=DRAWING,
        ),
    ] = None,
    sampler: Annotated[
        str | None,
        typer.Option(help="multistep, ddim or predictor-corrector.", rich_help_panel=DRAWING),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Diffusion steps.", rich_help_panel=DRAWING)
    ] = None,
    guidance: Annotated[
        str | None,
        typer.Option(help="mmps, sda, tmpd, pgdm, jfps, diffpir or dps.", rich_help_panel=DRAWING),
    ] = None,
    solver: Annotated[
        str | None, typer.Option(help="gmres or cg.", rich_help_panel=DRAWING)
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(min=1, help="The most iterations of a solve.", rich_help_panel=DRAWING),
    ] = None,
    early: Annotated[
        int | None,
        typer.Option(
            min=1, help="The most of them where noise is above 30.", rich_help_panel=DRAWING
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="The residual a solve may leave, more of it where noise is above 30.",
            rich_help_panel=DRAWING,
        ),
    ] = None,
    curvature: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Probes of observables' curvature; by default 2 of those that are curved.",
            rich_help_panel=DRAWING,
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(help="auto, float32, bfloat16 or float16.", rich_help_panel=DRAWING),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(help="auto, composed or sequential windows.", rich_help_panel=DRAWING),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(min=1, help="Hours between composed windows.", rich_help_panel=DRAWING),
    ] = None,
    past: Annotated[
        int | None,
        typer.Option(min=1, help="Hours given to each window.", rich_help_panel=DRAWING),
    ] = None,
    lag: Annotated[
        int | None,
        typer.Option(min=0, help="Hours the next window draws again.", rich_help_panel=DRAWING),
    ] = None,
    new: Annotated[
        int | None,
        typer.Option(min=1, help="The most hours a window adds.", rich_help_panel=DRAWING),
    ] = None,
    sweeps: Annotated[
        int | None,
        typer.Option(min=0, help="Sweeps over windows' interiors.", rich_help_panel=DRAWING),
    ] = None,
    representation: Annotated[
        str | None,
        typer.Option(
            help="What the decoder cannot express, as an error: none, diagonal or temporal.",
            rich_help_panel=DRAWING,
        ),
    ] = None,
    residual: Annotated[
        bool | None,
        typer.Option("--residual/--no-residual", help="Draw it too.", rich_help_panel=DRAWING),
    ] = None,
    background: Annotated[
        str | None,
        typer.Option(
            help="Observations far from what the prior draws: none, check (left out) or huber "
            "(count for less).",
            rich_help_panel=DRAWING,
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="How far, in standard deviations.", rich_help_panel=DRAWING),
    ] = None,
) -> dict[str, Any]:
    r"""How an ensemble is drawn: a named setting, and single ones that differ from it."""
    return locals()


def without(group: Callable[..., dict[str, Any]], *names: str) -> Callable[..., dict[str, Any]]:
    r"""A group less some of its options."""

    @functools.wraps(group)
    def less(**values: Any) -> dict[str, Any]:
        return group(**values)

    every = inspect.signature(group, eval_str=True)
    kept = [p for name, p in every.parameters.items() if name not in names]
    less.__signature__ = every.replace(parameters=kept)  # type: ignore[attr-defined]
    return less


# a forecast observes nothing, see `Settings.ahead`, whose `OBSERVED` these are
drawing_ahead = without(drawing, "lag", "curvature", "representation", "background", "threshold")


def reading(
    units: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=UNIT",
            help="The unit of a variable, of level or of elevation, e.g. t2m=°C; repeat.",
            rich_help_panel=READING,
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=NAME",
            help="What a column is, e.g. TEMP=2m_temperature; repeat.",
            rich_help_panel=READING,
        ),
    ] = None,
    error: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SD",
            help="The error of a variable that has none, in its values' unit, e.g. t2m=0.5, or "
            'in another, "msl=50 Pa"; repeat.',
            rich_help_panel=READING,
        ),
    ] = None,
    within: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="How far from a whole hour an observation may be, with its unit: 10min.",
            rich_help_panel=READING,
        ),
    ] = "30min",
    thin: Annotated[
        float | None,
        typer.Option(
            metavar="KM",
            help="Keep observations of a kind this far apart only.",
            rich_help_panel=READING,
        ),
    ] = None,
    observables: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.py",
            help="A file that registers observables of your own; repeat.",
            rich_help_panel=READING,
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Refuse observations of which any cannot be used.",
            rich_help_panel=READING,
        ),
    ] = False,
) -> dict[str, Any]:
    r"""How observations are read, see :func:`appa.read_observations`, and which are kept. A user's
    own observables are imported."""
    own_observables(observables)
    errors: dict[str, Any] = _pairs("--error", error, "t2m=0.5")
    for name, text in errors.items():
        with contextlib.suppress(ValueError):  # one with a unit stays text
            errors[name] = float(text)
    return {
        "units": _pairs("--units", units, "t2m=°C"),
        "columns": _pairs("--column", column, "TEMP=2m_temperature"),
        "error": errors,
        "tolerance": within,
        "thin": thin,
        "strict": strict,
    }


def own_observables(files: list[str] | None) -> None:
    r"""Imports files that register observables."""
    if files:
        from ..observations.own import load_observables

        for path in files:
            load_observables(path)


def _pairs(option: str, given: list[str] | None, example: str) -> dict[str, Any]:
    from ..errors import DataError

    found = {}
    for text in given or ():
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise DataError(f"found {option} {text!r}; give a name and what it has: {example}")
        found[name] = value
    return found


def output(
    variables: Annotated[
        str | None,
        typer.Option(
            help="Variables, with commas, e.g. t2m,msl,z; by default all.", rich_help_panel=OUTPUT
        ),
    ] = None,
    levels: Annotated[
        str | None,
        typer.Option(help="Levels in hPa, with commas; by default all.", rich_help_panel=OUTPUT),
    ] = None,
    latents: Annotated[
        bool,
        typer.Option(help="Keep latents too, to go on from.", rich_help_panel=OUTPUT),
    ] = True,
    negatives: Annotated[
        str,
        typer.Option(
            help="Negative humidity and precipitation: 'clip' at zero, or 'keep'.",
            rich_help_panel=OUTPUT,
        ),
    ] = "clip",
) -> dict[str, Any]:
    r"""What of an ensemble is given out."""
    from ..errors import DataError

    found: dict[str, Any] = {"latents": latents, "negatives": negatives}
    if variables is not None:
        found["variables"] = words(variables)
    if levels is not None:
        try:
            found["levels"] = [int(level) for level in levels.split(",") if level.strip()]
        except ValueError:
            raise DataError(f"levels {levels!r} are not hPa; e.g. 500,850,1000") from None
    return found


def load(model: str, device: str | None) -> Model:
    r"""Loads a model to a device, by default a GPU where there is one."""
    from ..machine import find_device
    from ..tasks.loading import load

    with told():
        return load(model, find_device(device))


def settings_of(model: Model, chosen: dict[str, Any]) -> Settings:
    r"""The settings that :func:`drawing` gathered; a forecast's, where they say whether it is drawn
    `all_at_once`."""
    from ..tasks.settings import Settings

    single = {key: value for key, value in chosen.items() if key != "setting"}
    make = Settings.ahead if "all_at_once" in single else Settings.of
    return make(model.config, chosen["setting"], **single)


def writable(path: Path) -> None:
    r"""Raises unless a small file can be written there, before the work it tells of."""
    from ..errors import StoreError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
        if path.is_dir():
            raise IsADirectoryError("it is a folder")
    except OSError as error:
        raise StoreError(f"cannot write {path} ({error}); choose another name") from error


@contextmanager
def told(already: Iterable[str] = ()) -> Iterator[None]:
    r"""Tells warnings as a command does: one line, without the code they come from.

    Arguments:
        already: Rows of tables, by how they begin, that a user was shown before: reasons for which
            observations are left out.
    """

    known = tuple(f"{reason} " for reason in already)

    def show(message: Any, *_: Any) -> None:
        head, *lines = str(message).split("\n")
        rest = [line for line in lines if not line.startswith(known)]
        if len(rest) == len(lines) or len(rest) > 1:  # more than the heads of a table's columns
            print("\n".join([f"warning: {head}", *rest]), file=sys.stderr, flush=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        warnings.simplefilter("once", UserWarning)
        yield
