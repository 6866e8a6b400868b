r"""`appa plan`: what a run will cost, before it runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .assimilate import BatchOption, DeviceOption, HoursOption, MembersOption, ModelArgument
from .options import drawing, load, output, settings_of, takes

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
@takes(settings=drawing, given=output)
def reanalysis(
    model: ModelArgument,
    settings: Any,
    given: Any,
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
    seen = _seen(observations, start, hours, share)
    _plan(model, "reanalysis", hours, members, seen, settings, given, device, start, batch, measure)


@app.command("filter")
@takes(settings=drawing, given=output)
def filtering(
    model: ModelArgument,
    settings: Any,
    given: Any,
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
    seen = _seen(observations, start, hours, share)
    _plan(model, "filter", hours, members, seen, settings, given, device, start, batch, measure)


@app.command()
@takes(settings=drawing, given=output)
def forecast(
    model: ModelArgument,
    settings: Any,
    given: Any,
    hours: HoursOption = 48,
    members: MembersOption = 8,
    all_at_once: Annotated[
        bool, typer.Option("--all-at-once", help="Compose all windows, not one after another.")
    ] = False,
    device: DeviceOption = None,
    batch: BatchOption = None,
    measure: MeasureOption = True,
) -> None:
    """What a forecast will cost.

    Example: appa plan forecast planet --hours 48 --members 8 --new 6
    """
    settings["mode"] = "composed" if all_at_once else "sequential"
    _plan(model, "forecast", hours, members, None, settings, given, device, None, batch, measure)


def _seen(observations: list[str] | None, start: str | None, hours: int, share: float) -> Any:
    from ..errors import DataError
    from ..observations.reading import read_observations

    if not observations:
        return share
    if start is None:
        raise DataError("say when the period starts: --start, e.g. --start 2021-03-21T00")
    return read_observations(list(observations)).between(start, hours)


def _plan(
    model: str,
    task: str,
    hours: int,
    members: int,
    seen: Any,
    settings: dict[str, Any],
    given: dict[str, Any],
    device: str | None,
    start: str | None,
    batch: int | None,
    measure: bool,
) -> None:
    from ..tasks.plan import plan

    loaded = load(model, device)
    kept = {key: value for key, value in given.items() if key != "negatives"}
    found = plan(
        loaded,
        task,
        hours,
        members,
        seen,
        settings_of(loaded, settings),
        start=start,
        batch=batch,
        measured=measure,
        **kept,
    )
    typer.echo(str(found))
