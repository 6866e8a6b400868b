r"""`letkf`, a command of the baselines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import reading, takes, told, words, writable

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["register", "several_of"]

BOUNDLESS = ("length", "depth", "relaxation", "representation")  # settings that may be either way
FILTER, MEMBERS = "How it is filtered", "Where members come from"


def register(group: typer.Typer) -> None:
    r"""Adds the command of this file to a group."""
    group.command("letkf")(letkf)


@takes(rules=reading)
def letkf(
    observations: Annotated[
        list[str],
        typer.Argument(metavar="OBS...", help="Observations: .csv, .parquet, .nc or .zarr files."),
    ],
    start: Annotated[
        str, typer.Option(help="The hour of the first cycle, UTC, e.g. 2021-03-21T00.")
    ],
    rules: Any,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where analyses are written, .zarr; with --tune, all that was tried, .csv, or the "
            "best settings, .json."
        ),
    ] = None,
    hours: Annotated[int, typer.Option(min=1, help="How many hours are cycled.")] = 72,
    discard: Annotated[
        int, typer.Option(min=0, help="The first hours, which are not written or scored.")
    ] = 0,
    tune: Annotated[
        str | None,
        typer.Option(
            metavar="TRUTH",
            help="Score settings against this store instead of writing; those of the filter may "
            "then be several, with commas, and are the usual ones if none are. They are tried one "
            "after the other. Take a trajectory that is not scored.",
        ),
    ] = None,
    tuned: Annotated[
        Path | None,
        typer.Option(
            help="Settings of the filter, from --tune, in place of those below; hours of a "
            "trajectory they were tuned on are refused."
        ),
    ] = None,
    members: Annotated[int, typer.Option(min=2, help="How many members.")] = 32,
    every: Annotated[
        str, typer.Option(help="Hours between analyses.", rich_help_panel=FILTER)
    ] = "1",
    length: Annotated[
        str,
        typer.Option(
            help="Horizontal localization, a deviation in km, or 'none'.", rich_help_panel=FILTER
        ),
    ] = "500",
    depth: Annotated[
        str,
        typer.Option(
            help="Vertical localization, a deviation in ln p, or 'none'.", rich_help_panel=FILTER
        ),
    ] = "0.3",
    inflation: Annotated[
        str, typer.Option(help="Factor of variances before.", rich_help_panel=FILTER)
    ] = "1",
    relaxation: Annotated[
        str,
        typer.Option(help="Share of lost spread that is given back.", rich_help_panel=FILTER),
    ] = "0.7",
    representation: Annotated[
        str,
        typer.Option(
            help="Error beside the instrument's, in standard deviations.", rich_help_panel=FILTER
        ),
    ] = "0.1",
    exclude: Annotated[
        str,
        typer.Option(
            help="Observables not assimilated, with commas; '' for none.", rich_help_panel=FILTER
        ),
    ] = "total_precipitation",
    seed: Annotated[
        int, typer.Option(min=0, help="Selects the first members.", rich_help_panel=MEMBERS)
    ] = 0,
    spin_up: Annotated[
        int, typer.Option(min=5, help="Days from rest, by 5.", rich_help_panel=MEMBERS)
    ] = 180,
    trajectories: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Simulations they are taken from, 10 days apart; by default one each.",
            rich_help_panel=MEMBERS,
        ),
    ] = None,
    weather: Annotated[
        Path | None,
        typer.Option(
            help="A year of their simulations, .npz, made if it is not there: for several dates.",
            rich_help_panel=MEMBERS,
        ),
    ] = None,
) -> None:
    """Cycle a local ensemble Kalman filter with the planet's own circulation model.

    A perfect model and, tuned, the strongest classical answer the planet allows. Killed, the same
    command goes on. Needs the extra 'planet'.

    Example: appa baseline letkf obs.parquet obs.swath.nc --start 2021-03-21T00 --hours 96
    --discard 48 --out letkf.zarr

    Example: appa baseline letkf obs.parquet --start 2019-06-01T00 --tune truth.zarr
    --length 500,800,1200 --relaxation 0.8,0.9,0.95 --out tuned.json
    """
    from ..errors import DataError
    from ..evaluation.cycling import Settings
    from ..evaluation.perfect import best, cycle
    from ..evaluation.perfect import tune as try_all
    from ..evaluation.tuning import edges
    from ..observations import thinning
    from ..observations.reading import read_observations
    from ..tasks.analyses import open_analysis

    several = {
        "every": several_of("every", every, int),
        "length": several_of("length", length, float),
        "depth": several_of("depth", depth, float),
        "inflation": several_of("inflation", inflation, float),
        "relaxation": several_of("relaxation", relaxation, float),
        "representation": several_of("representation", representation, float),
    }
    if tune is None:
        many = [name for name, values in several.items() if len(values) > 1]
        if many:
            raise DataError(f"found several values of {', '.join(many)}; those are for --tune")
        if out is None:
            raise DataError("found neither --out nor --tune; say where analyses go: --out x.zarr")
    elif out is not None:
        writable(out)
    left_out = tuple(words(exclude))
    one = Settings(members, exclude=left_out, **{name: v[0] for name, v in several.items()})
    if tuned is not None:
        if tune is not None:
            raise DataError("found --tuned and --tune; what was tuned is not tuned again")
        one = Settings.load(tuned)
    thin = rules.pop("thin")
    common: dict[str, Any] = {
        "settings": one,
        "discard": discard,
        "seed": seed,
        "spin_up": spin_up,
        "trajectories": trajectories,
        "weather": weather,
    }
    with told():
        read = read_observations(observations, **rules)
        read = read if thin is None else thinning.thin(read, thin)
        if tune is None:
            assert out is not None
            ds = open_analysis(cycle(read, start, hours, out, **common))
            typer.echo(f"{out} is complete: {ds.sizes['member']} members, {ds.sizes['time']} hours")
            return
        choices = {name: values for name, values in several.items() if len(values) > 1}
        table = try_all(read, open_analysis(tune), start, hours, choices or None, **common)
    _tell(table, None if out is not None and out.suffix == ".json" else out)
    if out is not None and out.suffix == ".json":
        chosen = best(table)
        for line in edges(chosen, {k: v for k, v in table.attrs["grid"].items() if k in BOUNDLESS}):
            typer.echo(f"{line}: there may be better ones beyond")
        chosen.save(out)
        typer.echo(f"{out} is written")


def several_of(name: str, text: str, kind: Any) -> list[Any]:
    r"""The values of a setting, which may be several, and none."""
    from ..errors import DataError

    try:
        return [None if word == "none" else kind(word) for word in words(text)] or [None]
    except ValueError:
        raise DataError(f"found --{name} {text!r}; give numbers, e.g. 500,800") from None


def _tell(table: pd.DataFrame, out: Path | None) -> None:
    r"""Prints what was tried, best first, and keeps it where asked to."""
    typer.echo(table.to_string(index=False, float_format=lambda x: f"{x:.4g}", na_rep="none"))
    if out is not None:
        partial = out.with_name(f".{out.name}.partial")
        table.to_csv(partial, index=False)
        partial.replace(out)
        typer.echo(f"{out} is written")
