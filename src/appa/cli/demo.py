r"""`appa demo` and `appa info`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from rich.console import Console

    from ..demo import Day
    from ..tasks.model import Model

__all__ = ["register"]

NEXT = {
    "appa data check planet": "look for faults in the bundled store",
    "appa config show planet": "see how it is configured",
    "appa data simulate --help": "make more of it",
}
# What comes after the chain.
AFTER = {
    "appa evaluate {0}/analysis.zarr --truth planet": "score every variable and level",
    "appa plot gallery {0}/analysis.zarr --truth planet": "look at more of it",
    "appa report {0}/analysis.zarr --truth planet": "all the evidence on one page",
    "appa reanalysis --help": "bring observations of your own",
}
CURVES = ("t2m", "u10", "msl", "t850", "z500", "q700")


def register(app: typer.Typer) -> None:
    r"""Adds the commands of this file to the application."""
    app.command()(demo)
    app.command()(info)


def demo(
    directory: Annotated[Path, typer.Argument(help="Where to write.")] = Path("demo"),
    model: Annotated[
        str, typer.Option(help="A bundled model or a model folder; 'none' to observe only.")
    ] = "planet",
    hours: Annotated[int, typer.Option(help="How many hours to observe.")] = 24,
    ahead: Annotated[int, typer.Option(min=1, help="How many hours to forecast.")] = 48,
    members: Annotated[int, typer.Option(min=1, help="How many members.")] = 2,
    setting: Annotated[
        str, typer.Option(help="How they are drawn: 'draft', 'paper', or 'model', its own.")
    ] = "draft",
    steps: Annotated[
        int | None, typer.Option(min=1, help="Diffusion steps; by default the setting's.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Selects stations, noise and members.", min=0)] = 0,
) -> None:
    """Observe the bundled planet, reconstruct it from what is seen, forecast, score and draw.

    Few members and steps, so that two CPU cores do it in minutes; more of both are better. Killed,
    the same command goes on at the last step that was kept.

    Example: appa demo --members 4
    """
    from rich.console import Console

    from ..demo import first_hours, make_folder, observe_planet, write
    from ..plots.style import require

    require()
    drawing = model != "none"
    truth = first_hours(hours)
    later = first_hours(hours + ahead) if drawing else truth
    make_folder(directory)
    console = Console()
    loaded = None
    if drawing:
        from ..chain import check_begun, check_fits, check_free
        from ..tasks.settings import Settings
        from .options import load

        loaded = load(model, None)
        check_fits(loaded, truth)
        check_free(directory)
        settings = Settings.of(loaded.config, setting, steps=steps)
        options = {"members": members, "settings": settings, "seed": seed}
        check_begun(directory, loaded, later, hours, **options)
    day = observe_planet(truth, seed=seed)
    report(day, console)
    files = [*write(day, directory), *draw(day, directory)]
    next_ = dict(NEXT)
    if loaded is not None:
        console.print()
        files += assimilate(loaded, day, later, directory, options, console)
        next_ = {k.format(directory): v for k, v in AFTER.items()} | next_

    console.print("\nWritten:")
    for path in files:
        console.print(f"  {path}", highlight=False, soft_wrap=True)
    console.print("\nNext:")
    width = max(map(len, next_)) + 2
    for command, purpose in next_.items():
        console.print(
            f"  [bold]{command:<{width}}[/bold]{purpose}", highlight=False, soft_wrap=True
        )


def assimilate(
    model: Model,
    day: Day,
    truth: xr.Dataset,
    directory: Path,
    options: dict[str, Any],
    console: Console,
) -> list[Path]:
    r"""Runs the chain, prints its scores and draws it."""
    import time

    from ..chain import run, save_scores, tables
    from ..evaluation.scores import metrics
    from ..plots.analysis import plot_ensemble, plot_scores
    from ..plots.saving import whole
    from .options import told

    s, start = options["settings"], time.monotonic()
    console.print(
        f"{model.origin}: {options['members']} members, {s.steps} steps of the {s.sampler} "
        f"sampler, {s.guidance} with at most {s.iterations} iterations of {s.solver}",
        highlight=False,
    )

    def tell(line: str) -> None:
        console.print(f"{time.monotonic() - start:4.0f} s  {line}", highlight=False)

    with told():
        chain = run(model, day, truth, directory, tell=tell, **options)
    tell("done")
    for title, table in tables(chain).items():
        console.print()
        scored(title, table, console)
    console.print(
        "\nskill: error of the ensemble mean; CRPS: of the ensemble, fair; least is best. ratio: "
        "spread over skill, best is 1.\nclim.: climatology; prior: members drawn without "
        "observations; pers.: the analysis as it was in its last hour.",
        highlight=False,
    )

    scores = save_scores(chain, directory / "scores.nc")
    gallery, curves = directory / "analysis.png", directory / "scores.png"
    with whole(gallery) as path:
        seen = (day.table, day.swath)
        plot_ensemble(truth, chain.analysis, *seen).savefig(path, dpi=130)
    lines = {name: metrics(means) for name, means in chain.means.items()}
    with whole(curves) as path:
        plot_scores(lines, CURVES, start=chain.now).savefig(path, dpi=130)
    stores = [directory / "analysis.zarr", directory / "forecast.zarr"]
    return [*stores, scores, gallery, curves]


def scored(title: str, scores: pd.DataFrame, console: Console) -> None:
    r"""Prints scores, in the units that maps are read in."""
    from rich.table import Table

    from ..demo import CHANNELS
    from ..plots.style import style

    heads = {"climatology": "clim.", "persistence": "pers.", "crps": "CRPS"}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title=title)
    table.title_justify, table.title_style = "left", "bold"
    table.add_column("", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    columns = [str(column) for column in scores.columns]
    order = [c for score in ("skill", "crps", "ratio") for c in columns if c.startswith(score)]
    for column in order:
        word = column.split("_")[-1]
        table.add_column(heads.get(word, word), justify="right", no_wrap=True)
    for channel in CHANNELS:
        look = style(channel.variable)
        row = scores.loc[channel.name]
        values = [row[c] * (1 if c == "ratio" else look.scale) for c in order]
        table.add_row(
            channel.name,
            "K" if look.units == "°C" else look.units,
            *(_figure(c, value) for c, value in zip(order, values, strict=True)),
        )
    console.print(table)


def _figure(column: str, value: float) -> str:
    if value != value:
        return "·"
    return f"{value:.2f}" if column == "ratio" else f"{value:.3g}"


def report(day: Day, console: Console) -> None:
    r"""Prints what the network saw."""
    import numpy as np
    from rich.table import Table

    from ..demo import CHANNELS, summarize
    from ..plots.maps import moment
    from ..plots.style import label, style

    times = day.truth["time"].values
    coverage = day.network.coverage(day.grid, times)
    upper = [name for name in day.swath.data_vars if not str(name).endswith("_error")]
    gridded = sum(int(np.isfinite(day.swath[name].values).sum()) for name in upper)
    channels = sum(day.swath[name].sizes.get("level", 1) for name in upper)

    seen = Table(box=None, show_header=False, pad_edge=False)
    seen.add_column(style="bold")
    seen.add_column()
    seen.add_row("network", day.network.name)
    h, w = day.grid.shape
    seen.add_row("period", f"{moment(times[0])} to {moment(times[-1])}: {len(times)} hours")
    seen.add_row("grid", f"{h}×{w}, {day.grid.kind}")
    seen.add_row(
        "stations",
        f"{len(day.network.stations)}, in {coverage['stations'].iloc[0]:.1f} % of the boxes; "
        f"{len(day.table):,} observations of {day.table['variable'].nunique()} surface variables",
    )
    seen.add_row(
        "satellites",
        f"{len(day.network.satellites)}, seeing {coverage['satellites'].mean():.1f} % of the area "
        f"an hour, {coverage['since_start'].iloc[-1]:.0f} % in {len(times)} hours; "
        f"{gridded:,} observations in {channels} upper-air channels",
    )
    console.print(seen, highlight=False)
    console.print()

    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),  # 80 columns must do
        caption="\nn, mean, sd, noise: of the observations. climatology: its error against the "
        "truth, in standard deviations of the variable.",
        caption_justify="left",
    )
    table.add_column("variable", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    for column in ("n", "mean", "sd", "noise", "climatology"):
        table.add_column(column, justify="right", no_wrap=True)
    summary = summarize(day)
    for channel in CHANNELS:
        look, row = style(channel.variable), summary.loc[channel.name]
        sd, error = look.scale * row["sd"], look.scale * row["error"]
        table.add_row(
            label(channel.variable, channel.level),
            look.units,
            f"{int(row['n']):,}",
            f"{float(look.shown(row['mean'])):.4g}",
            f"{sd:.3g}",
            f"{error:.2g}",
            f"{row['climatology']:.3f}",
        )
    console.print(table)


def draw(day: Day, directory: Path) -> list[Path]:
    r"""Draws what the network saw, and the network."""
    from ..plots.gallery import plot_gallery, plot_network
    from ..plots.saving import whole

    gallery, network = directory / "observations.png", directory / "network.png"
    with whole(gallery) as path:
        plot_gallery(day.truth, day.table, day.swath).savefig(path, dpi=150)
    land, times = day.truth.get("land_sea_mask"), day.truth["time"].values
    with whole(network) as path:
        plot_network(day.network, day.grid, times, land=land).savefig(path, dpi=150)
    return [gallery, network]


def info() -> None:
    """Show versions, devices, bundled data and models, and presets.

    Example: appa info
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from ..info import collect

    table = Table(show_header=False, box=None)
    for section, rows in collect().items():
        table.add_row(f"[bold]{section}[/bold]", "")
        for name, value in rows.items():
            table.add_row(f"  {name}", escape(value))
    Console().print(table, highlight=False)
