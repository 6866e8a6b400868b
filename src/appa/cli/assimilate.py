r"""`appa reanalysis`, `appa filter` and `appa forecast`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import drawing, load, output, settings_of, takes, told

if TYPE_CHECKING:
    import xarray as xr

    from ..observations.collection import Observations
    from ..tasks.model import Model

__all__ = ["register"]

ModelArgument = Annotated[str, typer.Argument(help="A bundled model, or a model folder.")]
ObservationsArgument = Annotated[
    list[str],
    typer.Argument(metavar="OBS...", help="Observations: .csv, .parquet, .nc or .zarr files."),
]
OutOption = Annotated[Path, typer.Option(help="Where to write: .zarr, or .nc.", show_default=False)]
StartOption = Annotated[
    str, typer.Option(help="The first hour, UTC, e.g. 2021-03-21T00.", show_default=False)
]
HoursOption = Annotated[int, typer.Option(min=1, help="How many hours.")]
MembersOption = Annotated[int, typer.Option(min=1, help="How many members.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Another seed, another ensemble.")]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Refuse observations of which any cannot be used.")
]
ThinOption = Annotated[
    float | None,
    typer.Option(metavar="KM", help="Keep observations of a kind this far apart only."),
]
DeviceOption = Annotated[
    str | None, typer.Option(help="Where networks run; by default CUDA where there is one.")
]
BatchOption = Annotated[
    int | None, typer.Option(min=1, help="Members drawn at once; by default what memory allows.")
]


def register(app: typer.Typer) -> None:
    r"""Adds the commands of this file to the application."""
    app.command("reanalysis")(reanalysis)
    app.command("filter")(filtering)
    app.command("forecast")(forecast)


@takes(settings=drawing, given=output)
def reanalysis(
    model: ModelArgument,
    observations: ObservationsArgument,
    out: OutOption,
    start: StartOption,
    settings: Any,
    given: Any,
    hours: HoursOption = 24,
    members: MembersOption = 8,
    seed: SeedOption = 0,
    strict: StrictOption = False,
    thin: ThinOption = None,
    device: DeviceOption = None,
    batch: BatchOption = None,
) -> None:
    """Draw an ensemble of trajectories that agree with observations.

    Killed, the same command goes on at the last step that was kept.

    Example: appa reanalysis planet obs.parquet --start 2021-03-21T00 --hours 24 --out analysis.zarr
    """
    from ..tasks.assimilation import reanalysis as run

    _ready(out)
    loaded = load(model, device)
    chosen = settings_of(loaded, settings)
    used = _read(observations, start, hours, strict, thin, loaded)
    with told():
        ds = run(
            loaded,
            used,
            start,
            hours,
            members=members,
            seed=seed,
            settings=chosen,
            out=out,
            batch=batch,
            **given,
        )
    _tell(out, ds)


@takes(settings=drawing, given=output)
def filtering(
    model: ModelArgument,
    observations: ObservationsArgument,
    out: OutOption,
    start: StartOption,
    settings: Any,
    given: Any,
    hours: HoursOption = 24,
    members: MembersOption = 8,
    seed: SeedOption = 0,
    window_out: Annotated[
        Path | None, typer.Option(help="Write the hours before the last too, to this place.")
    ] = None,
    strict: StrictOption = False,
    thin: ThinOption = None,
    device: DeviceOption = None,
    batch: BatchOption = None,
) -> None:
    """Draw the last state of a period, given the observations up to it.

    Example: appa filter planet obs.parquet --start 2021-03-21T00 --hours 24 --out latest.zarr
    """
    from ..tasks.analyses import last_hour, open_analysis
    from ..tasks.assimilation import filtering, reanalysis

    _ready(out)
    if window_out is not None:
        _ready(window_out)
    loaded = load(model, device)
    chosen = settings_of(loaded, settings)
    used = _read(observations, start, hours, strict, thin, loaded)
    run, place = (filtering, out) if window_out is None else (reanalysis, window_out)
    with told():
        ds = run(
            loaded,
            used,
            start,
            hours,
            members=members,
            seed=seed,
            settings=chosen,
            out=place,
            batch=batch,
            **given,
        )
    if window_out is not None:
        _tell(window_out, ds)
        ds = open_analysis(last_hour(window_out, out))
    _tell(out, ds)


@takes(settings=drawing, given=output)
def forecast(
    model: ModelArgument,
    source: Annotated[
        str,
        typer.Argument(
            metavar="FROM", help="An analysis, or a store of states: a path, or 'planet'."
        ),
    ],
    out: OutOption,
    settings: Any,
    given: Any,
    hours: HoursOption = 48,
    members: Annotated[
        int | None, typer.Option(min=1, help="How many members; by default as many as FROM has.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="The last hour that is known; by default the last of FROM.")
    ] = None,
    all_at_once: Annotated[
        bool, typer.Option("--all-at-once", help="Compose all windows, not one after another.")
    ] = False,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    batch: BatchOption = None,
) -> None:
    """Draw what comes after an analysis, or after given states.

    Goes on from the latents an analysis carries, or encodes states; --past says how many hours
    of them, --new how many hours are added at a time.

    Example: appa forecast planet analysis.zarr --hours 48 --out forecast.zarr
    """
    from ..tasks.analyses import open_analysis, until
    from ..tasks.assimilation import forecast as run

    _ready(out)
    loaded = load(model, device)
    past = until(open_analysis(source), at)
    with told():
        ds = run(
            loaded,
            past,
            hours,
            members=members,
            seed=seed,
            settings=settings_of(loaded, settings),
            out=out,
            batch=batch,
            all_at_once=all_at_once,
            **given,
        )
    _tell(out, ds)


# ---------------------------------------------------------------- what is told


def _ready(out: Path) -> None:
    r"""Raises what would be in the way after hours of work; says what there is to go on with."""
    from ..errors import StoreError

    if out.exists():
        raise StoreError(f"{out} exists already; remove it or choose another name")
    if out.suffix not in (".zarr", ".nc"):
        raise StoreError(f"found {str(out)!r} to write to; name a .zarr or .nc, e.g. {out}.zarr")
    if Path(f"{out}.run").is_dir():
        typer.echo(f"{out}.run holds an earlier run: going on with it", err=True)


def _read(
    sources: list[str], start: str, hours: int, strict: bool, thin: float | None, model: Model
) -> Observations:
    r"""Reads the observations of a period, and tells which are used and which are not."""
    from ..errors import DataError
    from ..observations import thinning
    from ..observations.reading import read_observations
    from ..tasks.plan import coverage

    levels = model.config.data.levels
    found = read_observations(list(sources), strict=strict, levels=levels).between(start, hours)
    if strict and len(found.excluded):
        raise DataError(
            f"some observations cannot be used, which --strict refuses:\n{found.report()}"
        )
    if thin is not None:
        found = thinning.thin(found, thin)
    typer.echo(found.summary().to_string())
    typer.echo(found.report())
    hour, ever = coverage(found, model.grid)
    typer.echo(
        f"{len(found):,} observations in {len(found.hours)} of {hours} hours, of {hour:.1f} % of "
        f"the area an hour, {ever:.1f} % in all"
    )
    return found


def _tell(out: Path, ds: xr.Dataset) -> None:
    r"""Says where an ensemble is, and how to open it."""
    names = [str(name) for name in ds.data_vars if name != "latents"]
    latents = ", with latents" if "latents" in ds else ""
    typer.echo(
        f"{out} is complete: {ds.sizes['member']} members, {ds.sizes['time']} hours, "
        f"{len(names)} variables{latents}"
    )
    opener = "open_dataset" if out.suffix == ".nc" else "open_zarr"
    typer.echo(f"open it: import xarray; ds = xarray.{opener}({str(out)!r})")
