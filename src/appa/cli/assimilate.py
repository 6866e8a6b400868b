r"""`appa reanalysis`, `appa filter` and `appa forecast`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import drawing, drawing_ahead, load, output, reading, settings_of, takes, told

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from ..observations.collection import Observations
    from ..tasks.model import Model
    from ..tasks.settings import Settings

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
DeviceOption = Annotated[
    str | None, typer.Option(help="Where networks run; by default CUDA where there is one.")
]
BatchOption = Annotated[
    int | None, typer.Option(min=1, help="Members drawn at once; by default what memory allows.")
]
WorkersOption = Annotated[
    int, typer.Option(min=1, help="Processes that draw, on a CPU: as many as it has cores.")
]


def register(app: typer.Typer) -> None:
    r"""Adds the commands of this file to the application."""
    app.command("reanalysis")(reanalysis)
    app.command("filter")(filtering)
    app.command("forecast")(forecast)


@takes(settings=drawing, given=output, rules=reading)
def reanalysis(
    model: ModelArgument,
    observations: ObservationsArgument,
    out: OutOption,
    start: StartOption,
    settings: Any,
    given: Any,
    rules: Any,
    hours: HoursOption = 24,
    members: MembersOption = 8,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    batch: BatchOption = None,
    workers: WorkersOption = 1,
) -> None:
    """Draw an ensemble of trajectories that agree with observations.

    Killed, the same command goes on at the last step that was kept.

    Example: appa reanalysis planet obs.parquet --start 2021-03-21T00 --hours 24 --out analysis.zarr
    """
    from ..tasks.assimilation import reanalysis as run

    _ready(out)
    loaded = load(model, device)
    chosen = settings_of(loaded, settings)
    used, already = tell_read(observations, start, hours, rules, loaded)
    with told(already):
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
            workers=workers,
            **given,
        )
    _tell(out, ds)


@takes(settings=drawing, given=output, rules=reading)
def filtering(
    model: ModelArgument,
    observations: ObservationsArgument,
    out: OutOption,
    start: StartOption,
    settings: Any,
    given: Any,
    rules: Any,
    hours: HoursOption = 24,
    members: MembersOption = 8,
    seed: SeedOption = 0,
    window_out: Annotated[
        Path | None, typer.Option(help="Write the hours before the last too, to this place.")
    ] = None,
    device: DeviceOption = None,
    batch: BatchOption = None,
    workers: WorkersOption = 1,
) -> None:
    """Draw the last state of a period, given the observations up to it.

    Killed, the same command goes on: at the last step that was kept, or from the window if that
    is whole.

    Example: appa filter planet obs.parquet --start 2021-03-21T00 --hours 24 --out latest.zarr
    """
    from ..tasks.analyses import last_hour, open_analysis
    from ..tasks.assimilation import filtering, reanalysis

    _ready(out)
    whole = window_out is not None and window_out.exists()
    if window_out is not None and not whole:
        _ready(window_out)
    loaded = load(model, device)
    chosen = settings_of(loaded, settings)
    used, already = tell_read(observations, start, hours, rules, loaded)
    run, place = (filtering, out) if window_out is None else (reanalysis, window_out)
    if window_out is not None and whole:
        ds = open_analysis(window_out)
        _check_same(window_out, ds, loaded, used, start, hours, members, seed, chosen, given)
        typer.echo(f"{window_out} is whole: going on from it", err=True)
    else:
        with told(already):
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
                workers=workers,
                **given,
            )
    if window_out is not None:
        _tell(window_out, ds)
        ds = open_analysis(last_hour(window_out, out))
    _tell(out, ds)


@takes(settings=drawing_ahead, given=output)
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
        bool, typer.Option("--all-at-once", help="Compose windows, as --mode composed.")
    ] = False,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    batch: BatchOption = None,
    workers: WorkersOption = 1,
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
    chosen = settings_of(loaded, settings | {"all_at_once": all_at_once})
    past = until(open_analysis(source), at)
    with told():
        ds = run(
            loaded,
            past,
            hours,
            members=members,
            seed=seed,
            settings=chosen,
            out=out,
            batch=batch,
            workers=workers,
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


def read_period(
    sources: list[str], start: str, hours: int, rules: dict[str, Any], model: Model
) -> tuple[Observations, pd.DataFrame]:
    r"""Reads the observations of a period.

    Arguments:
        sources: Files.
        start, hours: The period.
        rules: What :func:`~.options.reading` gathered.
        model: The model they are compared with.

    Returns:
        The observations, and a table of those that cannot be compared with the model's states.
    """
    import numpy as np

    from ..data.clock import as_datetime64
    from ..errors import DataError
    from ..observations import checks, thinning
    from ..observations.operators import StateSpace, incomparable
    from ..observations.reading import read_observations

    how = {key: rules[key] for key in ("units", "columns", "error", "tolerance", "strict")}
    try:
        found = read_observations(list(sources), levels=model.config.data.levels, **how)
    except DataError as error:
        words = {"units={": "--units", "columns={": "--column", "error={": "--error"}
        options = [option for word, option in words.items() if word in str(error)]
        more = f"\nhere, say it with {' or '.join(options)} NAME=…" if options else ""
        more = "\nhere, it is --within" if str(error).startswith("found a tolerance") else more
        raise DataError(f"{error}{more}") from None
    found = found.between(start, hours)
    times = as_datetime64(start) + np.arange(hours) * np.timedelta64(3600, "s")
    lost = incomparable(found, StateSpace.of(model), times)
    every = checks.join([found.excluded, lost])
    if rules["strict"] and len(every):
        raise DataError(
            f"some observations cannot be used, which --strict refuses:\n{checks.describe(every)}"
        )
    if rules["thin"] is not None:
        found = thinning.thin(found, rules["thin"])
        lost = incomparable(found, StateSpace.of(model), times)
    return found, lost


def tell_read(
    sources: list[str], start: str, hours: int, rules: dict[str, Any], model: Model
) -> tuple[Observations, list[str]]:
    r"""Reads the observations of a period, and tells which are used and which are not."""
    from ..observations import checks
    from ..tasks.seen import coverage

    found, lost = read_period(sources, start, hours, rules, model)
    typer.echo(found.summary().to_string())
    typer.echo("\n".join([checks.describe(checks.join([found.excluded, lost])), *found.notes]))
    hour, ever = coverage(found, model.grid)
    typer.echo(
        f"{len(found) - lost['count'].sum():,} observations in {len(found.hours)} of {hours} "
        f"hours, of {hour:.1f} % of the area an hour, {ever:.1f} % in all"
    )
    return found, lost["reason"].tolist()


def _check_same(
    path: Path,
    ds: xr.Dataset,
    model: Model,
    observations: Observations,
    start: str,
    hours: int,
    members: int,
    seed: int,
    settings: Settings,
    given: dict[str, Any],
) -> None:
    r"""Raises unless an ensemble is the one that a command would draw."""
    import numpy as np

    from ..data.clock import as_datetime64
    from ..errors import StoreError
    from ..tasks.ensembles import differing, provenance
    from ..tasks.fields import fields

    settings = settings.on(model.device)
    made = provenance(model, "reanalysis", seed=seed, settings=settings, observations=observations)
    kept, levels = fields(model, given.get("variables"), given.get("levels"))
    names = {field.name for field in kept} | ({"latents"} if given["latents"] else set())
    times = as_datetime64(start) + np.arange(hours) * np.timedelta64(3600, "s")
    differ = differing(ds, made)
    differ += ["members"] * (ds.sizes.get("member") != members)
    differ += ["hours"] * (not np.array_equal(as_datetime64(ds["time"].values), times))
    differ += ["variables"] * (set(map(str, ds.data_vars)) != names)
    differ += ["levels"] * (tuple(ds["level"].values if "level" in ds else ()) != levels)
    if differ:
        raise StoreError(
            f"{path} exists already, and is of another run: {', '.join(differ)} differ; remove it "
            "or choose another name"
        )


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
