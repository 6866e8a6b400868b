r"""`appa calibrate` and `appa budget`: tests of a sampler where the truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .assimilate import (
    BatchOption,
    DeviceOption,
    HoursOption,
    ModelArgument,
    SeedOption,
    WorkersOption,
)
from .options import drawing, load, settings_of, takes, told, words

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr

__all__ = ["register"]

StartOption = Annotated[
    str, typer.Option(help="The first hour of the first run, UTC, e.g. 2021-03-21T00.")
]
CountOption = Annotated[int, typer.Option(min=1, help="How many runs.")]
EveryOption = Annotated[int, typer.Option(min=1, help="Hours from one run's start to the next's.")]
NetworkOption = Annotated[str, typer.Option(help="A network, as of appa observe.")]
StationsOption = Annotated[
    int | None, typer.Option(min=0, help="How many stations, at most one a box.")
]
RegionsOption = Annotated[str, typer.Option(help="Regions, with commas, as of appa evaluate.")]


def register(app: typer.Typer) -> None:
    r"""Adds the commands of this file to the application."""
    app.command()(calibrate)
    app.command()(budget)


@takes(settings=drawing)
def calibrate(
    model: ModelArgument,
    out: Annotated[
        Path, typer.Option(help="A folder for the ranks of each simulation.", show_default=False)
    ],
    start: StartOption,
    settings: Any,
    count: CountOption = 30,
    every: EveryOption = 24,
    hours: HoursOption = 24,
    members: Annotated[int, typer.Option(min=2, help="How many members.")] = 15,
    network: NetworkOption = "paper-density",
    stations: StationsOption = None,
    errors: Annotated[
        float, typer.Option(help="What errors are multiplied by that the task is told.")
    ] = 1.0,
    bias: Annotated[
        float, typer.Option(help="What is added to observations, in units of their errors.")
    ] = 0.0,
    regions: RegionsOption = "global",
    seed: SeedOption = 0,
    device: DeviceOption = None,
    batch: BatchOption = None,
    workers: WorkersOption = 1,
) -> None:
    """Test a sampler on truths drawn from its own prior.

    Each truth is observed and drawn again; where the sampler is right, its ranks among members
    are uniform, and members are as far from the observations as it is. Killed, the same command
    goes on, and --count may grow.

    Example: appa calibrate planet --start 2021-03-21T00 --count 30 --out simulated
    """
    from ..data import netcdf
    from ..evaluation.comparison import FEWEST
    from ..evaluation.files import KIND
    from ..evaluation.simulation import FAMILIES
    from ..tasks.simulated import simulation_based_calibration

    loaded = load(model, device)
    dates = _dates(start, count, every)
    change = {"errors": errors, "bias": bias}
    with told():
        found = simulation_based_calibration(
            loaded,
            _network(loaded, network, stations, dates, hours),
            dates,
            hours=hours,
            members=members,
            settings=settings_of(loaded, settings),
            change=change if change != {"errors": 1.0, "bias": 0.0} else None,
            regions=words(regions),
            seed=seed,
            out=out,
            batch=batch,
            workers=workers,
        )
    netcdf.save(found, out / "calibration.nc", KIND)
    typer.echo(f"simulations: {count}, of {hours} hours and {members} members each")
    for kind, dim in FAMILIES.items():
        if f"{kind}_p" not in found:
            continue
        least = float(found[f"{kind}_least"])
        verdict = "not calibrated" if least < 0.05 else "nothing against it"
        if count < FEWEST:  # of which no p is known, or none that could be small
            verdict = f"too few simulations to tell, {FEWEST} at the least"
        typer.echo(
            f"{kind:<8}bias {float(found[f'{kind}_bias'].mean()):+.3f}  dispersion "
            f"{float(found[f'{kind}_dispersion'].mean()):.3f}  least p {least:.2g}, of all "
            f"{found.sizes[dim]}: {verdict}"
        )
    if "misfit_ratio" in found:
        typer.echo(_misfit(found))
    typer.echo(f"{out / 'calibration.nc'} is written")


def _misfit(found: xr.Dataset) -> str:
    r"""How closely members fit what they were given, over how closely the truth does."""
    truth, members = (float(x) for x in found["misfit"].mean("simulation"))
    spread, count = float(found["misfit_spread"]), found.sizes["simulation"]
    over = f" ± {spread:.3f} over {count} simulations" if count > 1 else " of one simulation"
    rest = int(found.attrs["simulations"]) - count
    return (
        f"misfit  truth {truth:.3f}  members {members:.3f}, mean squares in units of errors; "
        f"members/truth {float(found['misfit_ratio']):.3f}{over}: an exact posterior has 1"
        + (f" ({rest} were kept without it)" if rest else "")
    )


@takes(settings=drawing)
def budget(
    model: ModelArgument,
    truth: Annotated[str, typer.Option(help="The truth: a path, a URL, or 'planet'.")],
    out: Annotated[
        Path, typer.Option(help="A folder for what is found of each run.", show_default=False)
    ],
    start: StartOption,
    settings: Any,
    count: CountOption = 6,
    every: EveryOption = 24,
    hours: HoursOption = 24,
    members: Annotated[int, typer.Option(min=2, help="How many members.")] = 10,
    network: NetworkOption = "paper-density",
    stations: StationsOption = None,
    only: Annotated[
        str | None, typer.Option(help="Variations, with commas; by default all.")
    ] = None,
    withhold: Annotated[
        str | None,
        typer.Option(help="Variables withheld one after the other, e.g. t2m,msl."),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="What the reference is converged by, where 128 steps and 100 iterations take too "
            "long: steps=48,iterations=40.",
        ),
    ] = None,
    variables: Annotated[
        str, typer.Option(help="Variables, or channels such as z500, with commas.")
    ] = "t2m,z500,t850",
    regions: RegionsOption = "global",
    margin: Annotated[
        float,
        typer.Option(min=0, help="Percent by which a run may be worse and still be no worse."),
    ] = 2.0,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    batch: BatchOption = None,
    workers: WorkersOption = 1,
) -> None:
    """Tell where the error of an analysis comes from.

    Runs of the same dates, observations and seed differ from a converged reference in one thing
    each. It is told which differences are real, and which runs are no worse by a margin. Killed,
    the same command goes on.

    Example: appa budget planet --truth planet --start 2021-03-21T00 --count 3 --out budget
    """
    from ..evaluation.budget import error_budget_table
    from ..evaluation.comparison import FEWEST
    from ..tasks.experiments import CONVERGED, error_budget

    loaded = load(model, device)
    dates = _dates(start, count, every)
    with told():
        means = error_budget(
            loaded,
            truth,
            _network(loaded, network, stations, dates, hours),
            dates,
            hours=hours,
            members=members,
            settings=settings_of(loaded, settings),
            reference=None if reference is None else CONVERGED | _pairs(reference),
            chosen=_chosen(only),
            withheld=_chosen(withhold) or (),
            variables=_chosen(variables),
            regions=words(regions) or ["global"],
            seed=seed,
            out=out,
            batch=batch,
            workers=workers,
        )
    table = error_budget_table(means, days=-(-every // 24), margin=margin)
    path = out / "budget.csv"
    partial = path.with_name(f".{path.name}.partial")
    table.to_csv(partial, index=False)
    partial.replace(path)
    for score in ("skill", "crps"):
        for region in dict.fromkeys(table["region"]):
            part = table[(table["score"] == score) & (table["region"] == region)]
            where = "" if "," not in regions else f", {region}"
            typer.echo(f"{score}{where}: the reference's, and what others differ by, * where real; "
                       f"whether they are no worse by {margin:g} %")  # fmt: skip
            typer.echo(_by_channel(part) + "\n")
    if count * every < 24 * FEWEST:
        typer.echo(f"which differences are real, or runs no worse, cannot be told: {count} runs "
                   f"start on fewer than {FEWEST} days")  # fmt: skip
    typer.echo(f"{path} is written")


def _by_channel(part: Any) -> str:
    r"""A row for each variation, a column for each channel."""
    import pandas as pd

    cells = [
        f"{row.value:.3g}{'':12}"
        if row.difference != row.difference
        else f"{100 * row.relative:+.1f} %{'*' if row.real is True else ' '} "
        f"{row.verdict.replace('not told', '·'):8}"
        for row in part.itertuples()
    ]
    shown = pd.DataFrame({"variation": part["variation"], "channel": part["channel"], "": cells})
    order = list(dict.fromkeys(part["variation"])), list(dict.fromkeys(part["channel"]))
    shown = shown.pivot(index="variation", columns="channel", values="").loc[order]
    return shown.rename_axis(None, axis=1).rename_axis(None).to_string()


def _chosen(text: str | None) -> list[str] | None:
    return None if text is None else words(text)


def _pairs(text: str) -> dict[str, Any]:
    r"""Settings as they are written on one line."""
    import yaml

    from ..errors import DataError

    found = [word.partition("=") for word in words(text)]
    for key, sign, value in found:
        if not (key and sign and value):
            raise DataError(f"found --reference {text}; give KEY=VALUE with commas, e.g. steps=48")
    return {key.strip(): yaml.safe_load(value) for key, _, value in found}


def _dates(start: str, count: int, every: int) -> list[np.datetime64]:
    import numpy as np

    from ..data.clock import as_datetime64

    return list(as_datetime64(start) + np.arange(count) * every * np.timedelta64(3600, "s"))


def _network(model: Any, name: str, stations: int | None, dates: Any, hours: int) -> Any:
    import numpy as np

    from ..observations.building import build_network

    times = dates[0] + np.arange(hours) * np.timedelta64(3600, "s")
    return build_network(model.grid, times, name, stations=stations)[0]
