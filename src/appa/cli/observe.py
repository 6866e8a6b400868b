r"""`appa observe`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import own_observables

if TYPE_CHECKING:
    import pandas as pd

    from ..observations.networks import Network
    from ..observations.records import Record

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    r"""Adds the commands of this file to the application."""
    app.command()(observe)


def observe(
    store: Annotated[str, typer.Argument(help="The truth: a path, a URL, or 'planet'.")],
    out: Annotated[
        Path,
        typer.Option(help="The table to write: .parquet, .csv or .csv.gz.", show_default=False),
    ],
    swath: Annotated[
        Path | None,
        typer.Option(help="The satellites' dataset, .nc or .zarr; by default OUT's name.swath.nc."),
    ] = None,
    network: Annotated[
        str, typer.Option(help="'paper-density' or 'paper-stations'.")
    ] = "paper-density",
    start: Annotated[
        str | None, typer.Option(help="The first hour, e.g. 2021-03-21T06; by default the store's.")
    ] = None,
    hours: Annotated[int, typer.Option(min=1, help="How many hours.")] = 24,
    seed: Annotated[
        int, typer.Option(min=0, help="Selects stations, noise and those held out.")
    ] = 0,
    stations: Annotated[
        int | None, typer.Option(min=0, help="How many stations, at most one a grid box.")
    ] = None,
    stations_file: Annotated[
        Path | None, typer.Option(help="NOAA's isd-history.csv, to take stations from.")
    ] = None,
    active: Annotated[
        str | None,
        typer.Option(
            metavar="DAY",
            help="Take the file's stations of this day, or 'any'; by default of these hours.",
        ),
    ] = None,
    satellite: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME@FILE", help="A real satellite from a file of two-line elements; repeat."
        ),
    ] = None,
    constellation: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Copies of the reference orbiter; 0 for none."),
    ] = None,
    swath_width: Annotated[
        float | None, typer.Option(help="Of satellites, in km; by default 1112, 5° each side.")
    ] = None,
    footprint: Annotated[
        float | None, typer.Option(help="In km: grid points closer than this are thinned.")
    ] = None,
    shift_epoch: Annotated[
        bool, typer.Option("--shift-epoch", help="Move real orbits to these hours.")
    ] = False,
    station_error: Annotated[
        float | None, typer.Option(help="In standard deviations; by default 0.01.")
    ] = None,
    satellite_error: Annotated[
        float | None, typer.Option(help="In standard deviations; by default 0.1.")
    ] = None,
    station_variables: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Observables, with commas; NAME=ERROR in its unit, which derived ones need.",
        ),
    ] = None,
    satellite_variables: Annotated[
        str | None, typer.Option(metavar="NAMES", help="The same for satellites.")
    ] = None,
    observables: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.py", help="A file that registers observables of your own; repeat."
        ),
    ] = None,
    hold_out: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Share of stations kept apart for verification."),
    ] = None,
    hold_out_to: Annotated[
        Path | None, typer.Option(help="Their table; by default OUT's name.held-out.")
    ] = None,
    member: Annotated[
        int | None, typer.Option(min=0, help="Which member is the truth, if there are several.")
    ] = None,
    statistics: Annotated[
        Path | None,
        typer.Option(help="Standard deviations, statistics.nc; by default of these hours."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that exist.")
    ] = False,
) -> None:
    """Synthesize observations of a store, with the noise their errors tell of.

    Stations go to a table, satellites to a gridded dataset beside it, in the forms in which
    real observations are read. Files appear when all are complete.

    Example: appa observe planet --network paper-density --hours 24 --out obs.parquet --hold-out 0.2

    Example: appa observe era5.zarr --start 2020-06-01 --out obs.csv --swath swath.zarr
    --stations-file isd-history.csv --satellite METOP-B@weather.tle --swath-width 2200
    --footprint 50 --shift-epoch
    """
    from ..data.grids import Grid
    from ..data.stores import open_store
    from ..observations.building import build_network
    from ..observations.records import hours_of, record

    own_observables(observables)
    ds = open_store(store)
    if member is not None and "member" in ds.dims:
        ds = ds.isel(member=member)
    ds = hours_of(ds, start, hours)
    grid = Grid.from_coordinates(ds["latitude"].values, ds["longitude"].values)
    times = ds["time"].values
    chosen, excluded = build_network(
        grid,
        times,
        network,
        stations=stations,
        stations_file=stations_file,
        active=active,
        satellites=satellite or (),
        copies=constellation,
        width=swath_width,
        footprint=footprint,
        shift_epoch=shift_epoch,
        station_error=station_error,
        satellite_error=satellite_error,
        station_variables=station_variables,
        satellite_variables=satellite_variables,
        seed=seed,
    )
    deviations, whose = _statistics(store, statistics)
    written = record(
        ds,
        chosen,
        out,
        swath=swath,
        held_out=hold_out,
        held_out_to=hold_out_to,
        seed=seed,
        statistics=deviations,
        overwrite=overwrite,
        attrs={"store": store, "start": str(times[0])[:16], "hours": hours, "deviations": whose},
    )
    if excluded is not None and len(excluded):
        _tell_excluded(excluded, stations_file)
    _tell(chosen, chosen.coverage(grid, times), written, grid, times, whose)


def _statistics(store: str, path: Path | None) -> tuple[Any, str]:
    from ..data import planet
    from ..data.statistics import load

    if path is not None:
        return load(path), f"in {path}"
    if store == "planet":
        return planet.statistics(), "of the planet's training years"
    return None, "of these hours"


def _tell_excluded(excluded: pd.DataFrame, path: Path | None) -> None:
    typer.echo(f"{path}, rows by reason:")
    for _, row in excluded.iterrows():
        typer.echo(f"{row['count']:>8,}  {row['reason']}, e.g. {row['example']}")
    typer.echo("")


def _tell(
    network: Network,
    coverage: pd.DataFrame,
    written: Record,
    grid: Any,
    times: Any,
    whose: str,
) -> None:
    h, w = grid.shape
    hours, number = len(times), len(network.satellites)
    boxes, satellites = coverage["stations"].iloc[0], coverage["satellites"]
    names = ", ".join(s.name for s in network.satellites if s.name)
    rows = {
        "network": network.name,
        "grid": f"{h}×{w}, {grid.kind}",
        "period": f"{str(times[0])[:13]} to {str(times[-1])[:13]}, {hours} states",
        "stations": f"{len(network.stations):,}, in {boxes:.1f} % of the grid's boxes: "
        f"{len(written.table):,} observations",
        "satellites": f"{number}{f' ({names})' if names else ''}, seeing {satellites.mean():.1f} % "
        f"of the area an hour ({satellites.min():.1f} to {satellites.max():.1f}), "
        f"{coverage['since_start'].iloc[-1]:.1f} % in all: {written.gridded:,} observations",
    }
    if written.held is not None:
        kept, held = (t["station"].nunique() for t in (written.table, written.held))
        rows["held out"] = (
            f"{held:,} of {kept + held:,} stations ({100 * held / (kept + held):.1f} %): "
            f"{len(written.held):,} observations more"
        )
    if not len(network.stations):
        rows["stations"] = "none, and no table"
    if not number:
        rows["satellites"] = "none, and no dataset"
    rows["errors"] = f"in shares of the standard deviations {whose}, or in units where given so"
    for name, text in rows.items():
        typer.echo(f"{name:<12}{text}")
    for what, path in written.files.items():
        typer.echo(f"{what} → {path}")
