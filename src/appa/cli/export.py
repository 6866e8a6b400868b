r"""`appa export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import words

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    r"""Adds the command of this file to the application."""
    app.command()(export)


def export(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="An ensemble, several as a pattern in quotes, or a store of states: a path, or "
            "'planet'.",
        ),
    ],
    out: Annotated[Path, typer.Argument(help="The Zarr store to write, which must not exist.")],
    kind: Annotated[
        str | None,
        typer.Option(
            "--as", help="predictions or targets; by default targets for states without members."
        ),
    ] = None,
    names: Annotated[
        str,
        typer.Option(
            help="ecmwf: time and prediction_timedelta, as loaders rename; plain: init_time and "
            "lead_time."
        ),
    ] = "ecmwf",
    variables: Annotated[
        str | None, typer.Option(help="Variables, with commas; by default all.")
    ] = None,
) -> None:
    """Write forecasts or analyses as WeatherBench-X and WeatherBench2 read them.

    Example: appa export 'runs/*.zarr' predictions.zarr
    """
    from ..interop.weatherbench import export as write

    chosen = words(variables) if variables else None
    path = write(source, out, kind=kind, names=names, variables=chosen)

    import xarray as xr

    with xr.open_zarr(path, chunks=None, decode_timedelta=True) as ds:
        sizes = ", ".join(f"{dim} {size}" for dim, size in ds.sizes.items())
    typer.echo(f"{path} is written: {sizes}")
