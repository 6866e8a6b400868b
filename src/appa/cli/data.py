r"""`appa data`: fetch, simulate, check and summarize stores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["app"]

app = typer.Typer(help="Fetch, simulate, check and summarize stores.", no_args_is_help=True)

StoreArgument = Annotated[str, typer.Argument(help="A store: a path, a URL, or 'planet'.")]


@app.command()
def fetch(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="[SOURCE] OUT",
            help="What to copy: 'arco', 'weatherbench2', a path or a URL (gs, s3, https, file); by "
            "default the preset's source. And the store to write.",
        ),
    ],
    preset: Annotated[
        str | None, typer.Option(help="A configuration: variables, levels, grid, source, splits.")
    ] = None,
    start: Annotated[str | None, typer.Option(help="The first hour, e.g. 2020-01-01.")] = None,
    end: Annotated[
        str | None, typer.Option(help="The last hour; a day stands for its last hour.")
    ] = None,
    variables: Annotated[
        str | None, typer.Option(help="Names, with commas; by default the paper's 11.")
    ] = None,
    levels: Annotated[
        str | None, typer.Option(help="In hPa, with commas; by default the paper's 13.")
    ] = None,
    grid: Annotated[
        str | None,
        typer.Option(help="Remap to this grid, e.g. 121x240 or gaussian:48x96."),
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Hours between states.")] = 1,
    compression: Annotated[
        str, typer.Option(help="'none', which trains fastest, or 'zstd'.")
    ] = "none",
    block: Annotated[
        int | None, typer.Option(min=1, help="Hours finished at a time; by default a day or more.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads; by default as many as fit, at most 8.")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A Dask scheduler to run on instead.")
    ] = None,
) -> None:
    """Copy a selection of ERA5 into a local store laid out for training.

    Says what it will copy and how much room that takes, shows the time left.
    Killed, it goes on where it was when the same command is given again;
    until it is complete, no reader takes OUT for a store.

    Example: appa data fetch era5.zarr --preset era5-1.5deg --start 2020-01-01 --end 2020-01-31

    Example: appa data fetch weatherbench2 t850.zarr --start 2020-01 --end 2020-03 --every 6
    --variables temperature --levels 850 --grid 121x240
    """
    from ..config import load_config
    from ..data.fetch import fetch as run
    from ..data.fetch import parse_grid
    from ..data.variables import ATMOSPHERIC, LEVELS, SURFACE, variable
    from ..errors import DataError

    if len(places) > 2:
        raise DataError(f"expected [SOURCE] OUT, found {len(places)}: {', '.join(places)}")
    out, source = places[-1], places[0] if len(places) == 2 else None
    surface, atmospheric, chosen, remap = SURFACE, ATMOSPHERIC, LEVELS, None
    if preset is not None:
        config = load_config(preset)
        surface, atmospheric = config.data.surface, config.data.atmospheric
        chosen, remap, source = config.data.levels, config.grid, source or config.data.source
        splits = config.data.splits
        start, end = start or str(splits.train[0]), end or str(splits.test[1])
    if source is None:
        raise DataError("there is no source: name one, e.g. appa data fetch weatherbench2 OUT")
    if start is None or end is None:
        raise DataError("say which hours: --start and --end, e.g. --start 2020-01 --end 2020-12")
    if variables is not None:
        names = [variable(name.strip()).name for name in variables.split(",") if name.strip()]
        surface = tuple(name for name in names if variable(name).surface)
        atmospheric = tuple(name for name in names if not variable(name).surface)
    if levels is not None:
        try:
            chosen = tuple(int(level) for level in levels.split(",") if level.strip())
        except ValueError:
            raise DataError(f"levels {levels!r} are not hPa; e.g. 500,850,1000") from None

    store = run(
        source,
        out,
        start=start,
        end=end,
        surface=surface,
        atmospheric=atmospheric,
        levels=chosen,
        grid=parse_grid(grid) if grid else remap,
        every=every,
        compression=compression,
        block=block,
        workers=workers,
        scheduler=scheduler,
    )
    typer.echo(f"{store} is complete")


@app.command()
def simulate(
    out: Annotated[Path, typer.Argument(help="The store to write.")],
    members: Annotated[int, typer.Option(min=1, help="Independent trajectories.")] = 1,
    years: Annotated[int, typer.Option(min=1, help="Years of each, of 365 days.")] = 1,
    days: Annotated[int | None, typer.Option(min=1, help="Days of each, instead of years.")] = None,
    first_year: Annotated[
        int,
        typer.Option(help="The first member's first year; others follow in years of their own."),
    ] = 2021,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other trajectories.")] = 0,
    every: Annotated[int, typer.Option(min=1, help="Hours between states.")] = 1,
    stretch: Annotated[
        int | None, typer.Option(min=1, help="Store this many hours out of every EACH days only.")
    ] = None,
    each: Annotated[
        int | None, typer.Option(min=1, help="Days between beginnings of stretches.")
    ] = None,
    held_out: Annotated[
        int,
        typer.Option(
            min=0,
            help="Besides, this many members for validation (of 2020, 2019, …) and for testing "
            "(of 2021, 2022, …).",
        ),
    ] = 0,
    spin_up: Annotated[
        int, typer.Option(min=90, help="Days thrown away first; it takes about 180 to settle.")
    ] = 180,
    diurnal: Annotated[bool, typer.Option(help="Let the sun rise and set.")] = True,
    compression: Annotated[str, typer.Option(help="'none' or 'zstd'.")] = "none",
    encode: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Store latents of this model's autoencoder instead of states, in far less room.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Where MODEL encodes, e.g. cpu or cuda:1; by default a GPU if there is one."
        ),
    ] = None,
) -> None:
    """Simulate a planet: a real circulation model, in ERA5's schema.

    Runs on a GPU where JAX finds one, many members at once, and on a CPU otherwise. Killed, it
    goes on where it was when the same command is given again.

    Example: appa data simulate planet-2021.zarr --members 2 --days 30

    Example: appa data simulate planet.zarr --members 40 --first-year 1901 --held-out 2
    --days 360 --stretch 48 --each 15

    Example: appa data simulate latents.zarr --members 36 --first-year 1901 --encode runs/planet
    """
    from ..data.planet.simulation import Plan
    from ..data.planet.simulation import simulate as run

    plan = Plan(
        members,
        days or 365 * years,
        first_year,
        seed,
        every,
        spin_up,
        diurnal,
        stretch,
        each,
        held_out,
    )
    beside = f" + 2 × {held_out} held out" if held_out else ""
    hours = f"{stretch} h of every {each} days, " if stretch else ""
    typer.echo(
        f"{members}{beside} × {plan.days} days after {plan.spin_up} of spin-up, {hours}a state "
        f"every {every} h: {len(plan.times()):,} states, "
        + (f"latents of {encode}" if encode else f"{plan.nbytes / 1e9:.1f} GB before compression")
    )
    if encode is None:
        run(out, plan, compression=compression)
    else:
        from ..tasks.encoding import encode_simulation

        encode_simulation(encode, plan, out, compression=compression, device=device)
    typer.echo(f"{out} is complete")


def _opened(store: str) -> Any:
    r"""The store, with a warning for what it has under names that are not read."""
    from ..data.canonical import unrecognised
    from ..data.stores import open_store

    ds = open_store(store)
    for short, name in unrecognised(ds).items():
        typer.echo(
            f"warning: {short} of {store} was not recognised and is left out; WeatherBench2's "
            f"name is {name}",
            err=True,
        )
    return ds


SchedulerOption = Annotated[
    str | None, typer.Option(help="Address of a Dask scheduler, e.g. tcp://host:8786.")
]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="Threads, without a scheduler.")]


@app.command()
def check(
    store: StoreArgument,
    expect: Annotated[
        str | None,
        typer.Option(
            metavar="PRESET", help="A configuration whose variables, levels and grid to expect."
        ),
    ] = None,
    climatology: Annotated[
        str | None,
        typer.Option(help="Climatology of this atmosphere, or 'planet', to find flipped fields."),
    ] = None,
    step: Annotated[int, typer.Option(min=1, help="Hours between states.")] = 1,
    scheduler: SchedulerOption = None,
    workers: WorkersOption = None,
) -> None:
    """Check a store: missing hours, NaN, flipped latitudes, impossible values, mistaken units.

    Reads every hour once. Exits with status 1 where something is wrong.

    Example: appa data check planet
    """
    from ..config import load_config
    from ..data import planet
    from ..data.checks import check as run
    from ..data.climatology import load
    from ..data.stores import open_store

    ds = open_store(store)
    bundled = climatology == "planet"
    findings = run(
        ds,
        climatology=planet.climatology() if bundled else load(climatology) if climatology else None,
        hourly=step,
        expect=load_config(expect) if expect else None,
        scheduler=scheduler,
        workers=workers,
    )
    if not findings:
        levels = ds.sizes.get("level", 1)
        known = [var for var in ds.data_vars.values() if "time" in var.dims]
        channels = sum(levels if "level" in var.dims else 1 for var in known)
        first, last = (str(t.astype("datetime64[h]")) for t in ds["time"].values[[0, -1]])
        shape = f"{ds.sizes['latitude']}×{ds.sizes['longitude']}"
        typer.echo(
            f"clean: {store}, {len(known)} variables ({channels} channels), {ds.sizes['time']} "
            f"hours from {first} to {last}, {shape}"
        )
        return

    from rich.console import Console
    from rich.table import Column, Table

    # On a narrow terminal words are folded, never cut; an hour stays in one piece.
    heads = ("what", "variable", "level", "when", "found", "what to do")
    table = Table(*(Column(h, overflow="fold", min_width=14 * (h == "when")) for h in heads))
    for f in findings:
        table.add_row(f.kind, f.variable, f.level, f.when, f.found, f.advice)
    # A file or pipe gets whole lines, not lines folded at 80 characters.
    terminal = Console().is_terminal
    Console(width=None if terminal else 240).print(table)
    typer.echo(f"{store}: {len(findings)} finding{'s' if len(findings) > 1 else ''}")
    raise typer.Exit(1)


@app.command()
def statistics(
    store: StoreArgument,
    out: Annotated[Path, typer.Argument(help="The NetCDF file to write, e.g. statistics.nc.")],
    start: Annotated[str | None, typer.Option(help="First time, e.g. 1993.")] = None,
    end: Annotated[str | None, typer.Option(help="Last time, included, e.g. 2019.")] = None,
    config: Annotated[
        str | None, typer.Option(metavar="PRESET", help="Take a configuration's training period.")
    ] = None,
    scheduler: SchedulerOption = None,
    workers: WorkersOption = None,
) -> None:
    """Compute the mean and standard deviation of each variable and level.

    A model is standardized with the statistics of its training years: give them.

    Example: appa data statistics era5.zarr statistics.nc --start 1993 --end 2019
    """
    from ..config import load_config
    from ..data import statistics as module
    from ..data.netcdf import probe

    if config is not None:
        period = load_config(config).data.splits.period("train")
        start, end = start or period.start, end or period.stop
    probe(out, module.KIND, store)
    stats = module.compute(_opened(store), split=(start, end), scheduler=scheduler, workers=workers)
    module.save(stats, out)
    typer.echo(
        f"{out}: {len(stats.data_vars)} variables over {stats.attrs['hours']} hours, "
        f"{stats.attrs['first_time']} to {stats.attrs['last_time']}"
    )


@app.command()
def climatology(
    store: StoreArgument,
    out: Annotated[Path, typer.Argument(help="The NetCDF file to write, e.g. climatology.nc.")],
    harmonics: Annotated[int, typer.Option(min=0, help="Harmonics of the year.")] = 3,
    diurnal: Annotated[int, typer.Option(min=0, help="Harmonics of the day.")] = 0,
    start: Annotated[str | None, typer.Option(help="First time, e.g. 1993.")] = None,
    end: Annotated[str | None, typer.Option(help="Last time, included, e.g. 2019.")] = None,
    scheduler: SchedulerOption = None,
    workers: WorkersOption = None,
) -> None:
    """Fit the expected state for a time of the year, and the deviation of weather from it.

    Example: appa data climatology era5.zarr climatology.nc
    """
    from ..data import climatology as module
    from ..data.netcdf import probe

    probe(out, module.KIND, store)
    clim = module.fit(
        _opened(store),
        harmonics,
        diurnal,
        split=(start, end),
        scheduler=scheduler,
        workers=workers,
    )
    module.save(clim, out)
    typer.echo(
        f"{out}: {harmonics} harmonics of the year, {diurnal} of the day, over "
        f"{clim.attrs['hours']} hours, {clim.attrs['first_time']} to {clim.attrs['last_time']}"
    )
