r"""`appa increment`: what one observation changes, everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .assimilate import BatchOption, DeviceOption, ModelArgument, SeedOption, tell_read
from .options import drawing, load, reading, settings_of, takes, told, writable

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    r"""Adds the command of this file to the application."""
    app.command()(increment)


@takes(settings=drawing, rules=reading)
def increment(
    model: ModelArgument,
    channel: Annotated[str, typer.Argument(help="What is observed, e.g. t2m or z500.")],
    at: Annotated[
        str, typer.Option(metavar="LAT,LON", help="Where, in degrees.", show_default=False)
    ],
    start: Annotated[
        str, typer.Option(help="The first hour, UTC, e.g. 2021-03-21T00.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="The .nc to write.", show_default=False)],
    settings: Any,
    rules: Any,
    hour: Annotated[int, typer.Option(min=0, help="When, hours after the first.")] = 0,
    hours: Annotated[
        int | None, typer.Option(min=1, help="How many hours are drawn; by default a window.")
    ] = None,
    departure: Annotated[
        float | None,
        typer.Option(
            help="How far it is from the mean, in the variable's unit; by default one deviation of "
            "members."
        ),
    ] = None,
    deviation: Annotated[
        float | None,
        typer.Option(help="Its error, one standard deviation, by default the same."),
    ] = None,
    known: Annotated[
        list[str] | None,
        typer.Option(metavar="OBS", help="Observations known besides; repeat. Without, none."),
    ] = None,
    beside: Annotated[
        Path | None,
        typer.Option(
            help="Members of another system that have the hour: a background, e.g. of an LETKF."
        ),
    ] = None,
    members: Annotated[int, typer.Option(min=2, help="How many members.")] = 32,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    batch: BatchOption = None,
) -> None:
    """Tell what a single observation changes, everywhere.

    The change of the ensemble's mean, what the covariance of its members says it should be, and
    what that of another system's does. A background of the LETKF is its last hour where the
    observations of that hour are left out.

    Example: appa increment planet z500 --at 50,10 --start 2021-03-21T00 --hour 12 --out one.nc
    """
    from ..data import netcdf
    from ..evaluation.files import KIND
    from ..tasks.increments import single_observation

    latitude, longitude = _place(at)
    writable(out)
    loaded = load(model, device)
    variable, level = _channel(loaded, channel)
    used, already = None, []
    if known:
        used, already = tell_read(known, start, hours or loaded.config.window, rules, loaded)
    with told(already):
        found = single_observation(
            loaded,
            variable,
            latitude,
            longitude,
            start,
            hour=hour,
            level=level,
            departure=departure,
            error=deviation,
            observations=used,
            beside=beside,
            hours=hours,
            members=members,
            seed=seed,
            settings=settings_of(loaded, settings),
            batch=batch,
        )
    netcdf.save(found, out, KIND)
    a = found.attrs
    typer.echo(
        f"{channel} at {latitude:g}, {longitude:g}: {a['departure']:.4g} from the mean, with an "
        f"error of {a['error']:.4g}; members spread by {a['spread']:.4g}"
    )
    for line in _told(found, variable, level, latitude, longitude, hour):
        typer.echo(line)
    typer.echo(f"{out} is written")


def _told(
    found: xr.Dataset,
    variable: str,
    level: int | None,
    latitude: float,
    longitude: float,
    hour: int,
) -> list[str]:
    r"""The change there, and how alike the fields of changes are, by area."""
    import numpy as np

    lines, change = [], None
    for name, words in (("", "drawn"), ("_expected", "by its members"), ("_beside", "beside")):
        if variable + name not in found:
            continue
        x = found[variable + name]
        x = x.isel(time=hour) if "time" in x.dims else x
        x = x if level is None else x.sel(level=level)
        here = float(x.sel(latitude=latitude, longitude=longitude % 360, method="nearest"))
        line = f"  {words:<16}changes it by {here:.4g}"
        if change is not None:
            weight = np.cos(np.radians(x["latitude"])) * x.notnull()
            both = float((weight * x * change).sum())
            size = float(np.sqrt((weight * x**2).sum() * (weight * change**2).sum()))
            line += f"; alike everywhere by {both / size:.2f}" if size else ""
        change = x if change is None else change
        lines.append(line)
    return lines


def _place(text: str) -> tuple[float, float]:
    from ..errors import DataError

    try:
        latitude, longitude = (float(word) for word in text.split(","))
    except ValueError:
        raise DataError(f"found --at {text!r}; give latitude and longitude, e.g. 50,10") from None
    if not -90 <= latitude <= 90:
        raise DataError(f"found a latitude of {latitude:g}; it is from -90 to 90, and comes first")
    return latitude, longitude


def _channel(model: Any, name: str) -> tuple[str, int | None]:
    from ..errors import DataError, nearest

    known = {channel.name: channel for channel in model.config.channels}
    known |= {c.variable: c for c in model.config.channels if c.level is None}
    if name not in known:
        raise DataError(f"the model has no channel {name!r}{nearest(name, list(known))}")
    return known[name].variable, known[name].level
