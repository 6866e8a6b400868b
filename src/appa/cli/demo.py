r"""`appa demo` and `appa info`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from ..demo import Day

__all__ = ["register"]

NEXT = {
    "appa data check planet": "look for faults in the bundled store",
    "appa config show planet": "see how it is configured",
    "appa data simulate --help": "make more of it",
}


def register(app: typer.Typer) -> None:
    r"""Adds the commands of this file to the application."""
    app.command()(demo)
    app.command()(info)


def demo(
    directory: Annotated[Path, typer.Argument(help="Where to write.")] = Path("demo"),
    hours: Annotated[int, typer.Option(help="How many hours to observe.")] = 24,
    seed: Annotated[int, typer.Option(help="Selects stations and noise.", min=0)] = 0,
) -> None:
    """Observe the bundled planet with the default network, print what is seen and draw it.

    Example: appa demo --hours 48
    """
    from rich.console import Console

    from ..demo import first_hours, make_folder, observe_planet, write
    from ..plots.style import require

    require()
    truth = first_hours(hours)
    make_folder(directory)
    console = Console()
    day = observe_planet(truth, seed=seed)
    report(day, console)
    files = [*write(day, directory), *draw(day, directory)]

    console.print("\nWritten:")
    for path in files:
        console.print(f"  {path}", highlight=False, soft_wrap=True)
    console.print("\nNext:")
    for command, purpose in NEXT.items():
        console.print(f"  [bold]{command:<28}[/bold]{purpose}", highlight=False)


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
    from ..demo import written_whole
    from ..plots.gallery import plot_gallery, plot_network

    gallery, network = directory / "observations.png", directory / "network.png"
    with written_whole(gallery) as path:
        plot_gallery(day.truth, day.table, day.swath).savefig(path, dpi=150)
    land, times = day.truth.get("land_sea_mask"), day.truth["time"].values
    with written_whole(network) as path:
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
