r"""`appa plan`: what a run will cost, before it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .assimilate import (
    BatchOption,
    DeviceOption,
    HoursOption,
    MembersOption,
    ModelArgument,
    read_period,
)
from .options import drawing, drawing_ahead, load, output, reading, settings_of, takes

if TYPE_CHECKING:
    from ..tasks.model import Model

__all__ = ["app"]

app = typer.Typer(help="What a run will cost: calls, memory and time.", no_args_is_help=True)

ObservationsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[OBS...]", help="Observations, of the hours from --start on."),
]
StartOption = Annotated[str | None, typer.Option(help="The first hour, UTC, with OBS.")]
ShareOption = Annotated[
    float,
    typer.Option(min=0, max=1, help="Without OBS, the share of hours that have observations."),
]
MeasureOption = Annotated[
    bool, typer.Option(help="Run a pass of each kind on this device, for time and memory.")
]


@app.command()
@takes(settings=drawing, given=output, rules=reading)
def reanalysis(
    model: ModelArgument,
    settings: Any,
    given: Any,
    rules: Any,
    observations: ObservationsArgument = None,
    start: StartOption = None,
    share: ShareOption = 1.0,
    hours: HoursOption = 24,
    members: MembersOption = 8,
    device: DeviceOption = None,
    batch: BatchOption = None,
    measure: MeasureOption = True,
) -> None:
    """What a reanalysis will cost.

    Example: appa plan reanalysis planet --hours 24 --members 8
    """
    loaded = load(model, device)
    seen = _seen(loaded, observations, start, hours, share, rules)
    _plan(loaded, "reanalysis", hours, members, seen, settings, given, start, batch, measure)


@app.command("filter")
@takes(settings=drawing, given=output, rules=reading)
def filtering(
    model: ModelArgument,
    settings: Any,
    given: Any,
    rules: Any,
    observations: ObservationsArgument = None,
    start: StartOption = None,
    share: ShareOption = 1.0,
    hours: HoursOption = 24,
    members: MembersOption = 8,
    device: DeviceOption = None,
    batch: BatchOption = None,
    measure: MeasureOption = True,
) -> None:
    """What a filter will cost.

    Example: appa plan filter planet obs.parquet --start 2021-03-21T00 --hours 24
    """
    loaded = load(model, device)
    seen = _seen(loaded, observations, start, hours, share, rules)
    _plan(loaded, "filter", hours, members, seen, settings, given, start, batch, measure)


@app.command()
@takes(settings=drawing_ahead, given=output)
def forecast(
    model: ModelArgument,
    settings: Any,
    given: Any,
    hours: HoursOption = 48,
    members: MembersOption = 8,
    all_at_once: Annotated[
        bool, typer.Option("--all-at-once", help="Compose windows, as --mode composed.")
    ] = False,
    device: DeviceOption = None,
    batch: BatchOption = None,
    measure: MeasureOption = True,
) -> None:
    """What a forecast will cost.

    Example: appa plan forecast planet --hours 48 --members 8 --new 6
    """
    settings["all_at_once"] = all_at_once
    loaded = load(model, device)
    _plan(loaded, "forecast", hours, members, None, settings, given, None, batch, measure)


def _seen(
    model: Model,
    observations: list[str] | None,
    start: str | None,
    hours: int,
    share: float,
    rules: dict[str, Any],
) -> Any:
    r"""The observations, or the share of hours that is to have some."""
    from ..errors import DataError
    from ..observations import checks

    if not observations:
        return share
    if start is None:
        raise DataError("say when the period starts: --start, e.g. --start 2021-03-21T00")
    found, lost = read_period(observations, start, hours, rules, model)
    excluded = checks.join([found.excluded, lost])
    if len(excluded):  # nothing is dropped without a word
        typer.echo(checks.describe(excluded))
    return found


def _plan(
    model: Model,
    task: str,
    hours: int,
    members: int,
    seen: Any,
    settings: dict[str, Any],
    given: dict[str, Any],
    start: str | None,
    batch: int | None,
    measure: bool,
) -> None:
    from ..tasks.plan import plan

    kept = {key: value for key, value in given.items() if key != "negatives"}
    found = plan(
        model,
        task,
        hours,
        members,
        seen,
        settings_of(model, settings),
        start=start,
        batch=batch,
        measured=measure,
        **kept,
    )
    typer.echo(str(found))
