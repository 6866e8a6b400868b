r"""`appa plot`: a command a kind of figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import told, words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["app"]

app = typer.Typer(
    help="Draw maps, curves and animations of runs: a command a kind.", no_args_is_help=True
)

Run = Annotated[str, typer.Argument(help="A run: .zarr, .nc, or any store of states.")]
Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="[LABEL=]RUN...",
        help="Runs, with labels of the legend. Several of one label, or a pattern, are one system "
        "from several dates.",
    ),
]
Truth = Annotated[str, typer.Option(help="The truth: a path, a URL, or 'planet'.")]
Needed = Annotated[
    str | None, typer.Option("--truth", help="The truth; not needed for files of scores.")
]
Difference = Annotated[
    str | None, typer.Option("--truth", help="The truth, to draw the difference to it.")
]
Variable = Annotated[str, typer.Argument(help="A variable, or a channel such as t2m or z500.")]
Level = Annotated[int | None, typer.Option(help="The level in hPa, where it is not told.")]
Variables = Annotated[
    str | None, typer.Option(help="Channels such as t2m,z500, with commas; by default a few.")
]
Show = Annotated[
    str, typer.Option(help="Of an ensemble: 'mean', 'spread', or a member's number from 0.")
]
Region = Annotated[
    str,
    typer.Option(
        help="global, northern-hemisphere, southern-hemisphere, northern-extratropics, "
        "southern-extratropics, tropics, land or ocean."
    ),
]
Climatology = Annotated[
    str | None, typer.Option(help="A climatology to score too, or 'planet' for the bundled one.")
]
Projection = Annotated[str, typer.Option(help="equal-earth or plate-carree.")]
Out = Annotated[Path, typer.Option(help="The file: .png, .pdf or .svg.")]
Dpi = Annotated[int, typer.Option(min=20, max=1200, help="Dots per inch of a .png.")]


@app.command("map")
def map_(
    run: Run,
    variable: Variable,
    level: Level = None,
    hour: Annotated[
        str | None,
        typer.Option(help="A date, or hours since the first; by default the last hour."),
    ] = None,
    show: Show = "mean",
    truth: Difference = None,
    projection: Projection = "equal-earth",
    out: Out = Path("map.png"),
    dpi: Dpi = 150,
) -> None:
    """Draw one field at an hour: an ensemble's mean, its spread, a member, or the error of these.

    Example: appa plot map analysis.zarr z500 --show spread --hour 2021-03-21T12
    """
    from ..data.stores import open_store
    from ..plots.fields import plot_field
    from ..plots.gathering import coast_of
    from ..tasks.analyses import open_analysis

    _ready(out)
    ds, y = open_analysis(run), open_store(truth) if truth is not None else None
    options: dict[str, Any] = {"show": show, "truth": y, "projection": projection}
    options["land"] = coast_of(y, ds)
    _write(plot_field(ds, variable, level, hour, **options), out, dpi)


@app.command()
def gallery(
    run: Run,
    truth: Truth,
    observations: Annotated[
        list[str] | None,
        typer.Option(help="What was observed: .csv, .parquet, .nc or .zarr; repeat."),
    ] = None,
    variables: Variables = None,
    hours: Annotated[
        str | None,
        typer.Option(
            help="Dates, or hours since the first, with commas; by default the last hour."
        ),
    ] = None,
    members: Annotated[int, typer.Option(min=0, help="How many members are drawn.")] = 2,
    projection: Projection = "equal-earth",
    out: Out = Path("gallery.png"),
    dpi: Dpi = 130,
) -> None:
    """Draw the truth, what was seen of it, members, their mean and spread, at chosen hours.

    Example: appa plot gallery analysis.zarr --truth planet --variables t2m --hours 0,6,12,23
    """
    from ..data.stores import open_store
    from ..plots.analysis import COLUMNS, plot_ensemble
    from ..plots.gathering import observations_of
    from ..tasks.analyses import open_analysis

    _ready(out)
    seen = observations_of(observations)
    panels = [(word, None) for word in words(variables)] if variables is not None else COLUMNS
    options: dict[str, Any] = {"members": members, "projection": projection, **seen}
    figure = plot_ensemble(
        open_store(truth), open_analysis(run), panels=panels, hours=_chosen(hours), **options
    )
    _write(figure, out, dpi)


@app.command()
def skill(
    runs: Runs,
    truth: Needed = None,
    variables: Variables = None,
    scores: Annotated[
        str, typer.Option(help="Of skill, spread, crps and ratio, with commas.")
    ] = "skill,spread,crps,ratio",
    region: Region = "global",
    climatology: Climatology = None,
    persistence: Annotated[
        bool, typer.Option("--persistence", help="Score the truth of the hour before too.")
    ] = False,
    start: Annotated[str | None, typer.Option(help="The date that hours are counted from.")] = None,
    out: Out = Path("skill.png"),
    dpi: Dpi = 150,
) -> None:
    """Draw skill, spread, CRPS and their ratio against the hour, of runs and baselines.

    Of several dates it is by lead time, with 95 % intervals from resampled dates.

    Example: appa plot skill forecast.zarr --truth planet --climatology planet --persistence
    """
    from ..plots.curves import plot_scores
    from ..plots.gathering import scores_of

    _ready(out)
    channels = _chosen(variables)
    beside: dict[str, Any] = {"climatology": climatology, "persistent": persistence}
    with told():
        found = scores_of(runs, truth, variables=channels, region=region, **beside)
    options: dict[str, Any] = {"names": words(scores), "region": region, "start": start}
    _write(plot_scores(found, _shown(found, channels), **options), out, dpi)


@app.command()
def spectra(
    runs: Runs,
    truth: Needed = None,
    variables: Variables = None,
    out: Out = Path("spectra.png"),
    dpi: Dpi = 150,
) -> None:
    """Draw power spectra of members and truth by wavelength, medians and 5-95 % ranges.

    Example: appa plot spectra analysis.zarr --truth planet --variables t2m,z500,q700
    """
    from ..plots.gathering import spectra_of
    from ..plots.prior import SPECTRA, plot_spectra

    _ready(out)
    channels = _chosen(variables)
    with told():
        found = _scored(runs, "spectrum") or spectra_of(runs, truth, variables=channels)
    shown = SPECTRA
    if channels is not None:
        shown = _shown({"": found}, channels) if "variable" in found.coords else channels
    _write(plot_spectra(found, shown or SPECTRA), out, dpi)


@app.command()
def physics(
    runs: Runs,
    truth: Truth,
    paper: Annotated[
        bool, typer.Option("--paper", help="By the paper's formulas, which drop the metric.")
    ] = False,
    out: Out = Path("physics.png"),
    dpi: Dpi = 150,
) -> None:
    """Draw balances of members and truth, at 500 and 1000 hPa or the nearest levels there are.

    Densities of altitude by geopotential less that by temperature, and of the cosine and sine of
    the angle from the gradient of geopotential to the wind; how their sizes correlate, by level.

    Example: appa plot physics analysis.zarr --truth planet
    """
    from ..plots.physics import physics_of, plot_physics

    _ready(out)
    with told():
        found = physics_of(runs, truth, paper=paper)
    _write(plot_physics(found), out, dpi)


@app.command()
def levels(
    runs: Runs,
    truth: Needed = None,
    variables: Annotated[
        str | None, typer.Option(help="Variables, with commas; by default all.")
    ] = None,
    score: Annotated[str, typer.Option(help="skill, spread, crps or ratio.")] = "skill",
    region: Region = "global",
    climatology: Climatology = None,
    statistics: Annotated[
        str | None,
        typer.Option(help="Statistics to standardize surface fields by, or 'planet'."),
    ] = None,
    out: Out = Path("levels.png"),
    dpi: Dpi = 150,
) -> None:
    """Draw errors by variable and level; of an autoencoder, from its file of scores.

    Example: appa plot levels analysis.zarr --truth planet --climatology planet
    """
    from ..plots.curves import plot_levels
    from ..plots.gathering import levels_of
    from ..plots.prior import plot_rmse

    _ready(out)
    if (found := _scored(runs, "rmse")) is not None:
        _write(plot_rmse(found), out, dpi)
        return
    chosen = _chosen(variables)
    beside: dict[str, Any] = {"climatology": climatology, "statistics": statistics}
    with told():
        scores = levels_of(runs, truth, variables=chosen, region=region, **beside)
    _write(plot_levels(scores, name=score, region=region), out, dpi)


@app.command()
def ranks(
    run: Run,
    truth: Truth,
    variables: Variables = None,
    rows: Annotated[
        str, typer.Option(help="Of ranks, pit, coverage and reliability, with commas.")
    ] = "ranks,coverage",
    region: Region = "global",
    days: Annotated[int, typer.Option(min=1, help="Days of a block of the test.")] = 1,
    out: Out = Path("ranks.png"),
    dpi: Dpi = 150,
) -> None:
    """Draw rank histograms, PIT, coverage of intervals, and reliability by spread.

    Example: appa plot ranks analysis.zarr --truth planet --variables t2m,z500
    """
    from ..data.stores import open_store
    from ..evaluation.calibration import calibration
    from ..plots.calibration import plot_ranks
    from ..plots.gathering import channels_of
    from ..tasks.analyses import open_analysis

    _ready(out)
    ds, y = open_analysis(run), open_store(truth)
    chosen = _chosen(variables) or channels_of(ds, y)
    with told():
        found = calibration(ds, y, variables=chosen, regions=[region], days=days)
    _write(plot_ranks(found, region=region, rows=words(rows)), out, dpi)


@app.command()
def histogram(
    run: Run,
    truth: Needed = None,
    variables: Variables = None,
    out: Out = Path("histogram.png"),
    dpi: Dpi = 150,
) -> None:
    """Draw distributions of signed errors; of an autoencoder, from its file of scores.

    Example: appa plot histogram analysis.zarr --truth planet --variables t2m,z500
    """
    from ..evaluation.distributions import signed_errors
    from ..plots.calibration import plot_histogram
    from ..plots.gathering import channels_of, open_truth
    from ..plots.prior import plot_errors
    from ..tasks.analyses import open_analysis

    _ready(out)
    if (found := _scored([run], "histogram")) is not None:
        _write(plot_errors(found), out, dpi)
        return
    ds, y = open_analysis(run), open_truth(truth)
    chosen = _chosen(variables) or channels_of(ds, y)
    with told():
        errors = signed_errors(ds, y, variables=chosen)
    _write(plot_histogram(errors), out, dpi)


@app.command()
def animation(
    run: Run,
    variable: Variable,
    level: Level = None,
    show: Show = "mean",
    truth: Difference = None,
    every: Annotated[int, typer.Option(min=1, help="Hours between frames.")] = 1,
    fps: Annotated[float, typer.Option(help="Frames a second.")] = 6.0,
    projection: Projection = "equal-earth",
    out: Annotated[
        Path, typer.Option(help="The file: .gif, or .mp4 where there is ffmpeg or imageio-ffmpeg.")
    ] = Path("animation.gif"),
    dpi: Dpi = 100,
) -> None:
    """Draw a field that moves, an hour a frame.

    Example: appa plot animation analysis.zarr t2m --out t2m.gif
    """
    from ..data.stores import open_store
    from ..plots.animation import animate, ready
    from ..plots.gathering import coast_of
    from ..tasks.analyses import open_analysis

    ready(out)
    ds = open_analysis(run)
    y = open_store(truth) if truth is not None else None
    hours = ds["time"].values[::every] if "time" in ds.dims else None
    options: dict[str, Any] = {"show": show, "truth": y, "projection": projection}
    options["land"] = coast_of(y, ds)
    animate(ds, variable, out, level, hours=hours, fps=fps, dpi=dpi, **options)
    typer.echo(f"{out} is written")


# ---------------------------------------------------------------- parts


def _chosen(text: str | None) -> list[str] | None:
    return None if text is None else words(text)


def _ready(out: Path) -> None:
    r"""Raises what would be in the way after the work."""
    from ..plots.saving import checked
    from ..plots.style import require

    require()
    checked(out)


def _write(figure: Figure, out: Path, dpi: int) -> None:
    from ..plots.saving import save_figure

    save_figure(figure, out, dpi)
    typer.echo(f"{out} is written")


def _scored(runs: list[str], name: str) -> Any:
    r"""The scores of a file that `appa score` wrote, where the only run is one that has them."""
    from ..plots.gathering import saved

    found = saved(runs[0]) if len(runs) == 1 else None
    scores = next(iter(found.values())) if found else None
    return scores if scores is not None and name in scores else None


def _shown(scores: dict[str, Any], chosen: list[str] | None) -> list[str] | None:
    r"""The channels of curves: what was chosen may be variables, of which all channels are meant;
    and a file of scores may have many."""
    from ..plots.calibration import few

    first = next(iter(scores.values()))
    if chosen is None:
        return few(first)
    names = zip(first["channel"].values.tolist(), first["variable"].values.tolist(), strict=True)
    known = {channel: variable for channel, variable in names}
    found = [[c for c, v in known.items() if word in (c, v)] or [word] for word in chosen]
    return [channel for channels in found for channel in channels]
