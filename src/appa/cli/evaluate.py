r"""`appa evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["register"]

MANY, FEW = 20, (850, 700, 500, 250)  # channels of a table, and levels of one with more


def register(app: typer.Typer) -> None:
    r"""Adds the command of this file to the application."""
    app.command()(evaluate)


def evaluate(
    a: Annotated[str, typer.Argument(help="An ensemble: .zarr, .nc, or any store of states.")],
    truth: Annotated[str, typer.Option(help="The truth: a path, a URL, or 'planet'.")],
    b: Annotated[
        str | None, typer.Argument(help="Another one of the same hours, to compare it with.")
    ] = None,
    climatology: Annotated[
        str | None,
        typer.Option(help="A climatology to score beside them, or 'planet' for the bundled one."),
    ] = None,
    regions: Annotated[
        str,
        typer.Option(
            help="With commas: global, northern-extratropics, southern-extratropics, tropics, "
            "land, ocean."
        ),
    ] = "global",
    variables: Annotated[
        str | None,
        typer.Option(help="Variables, or channels such as z500, with commas; by default all."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="Days that are resampled together.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="The seed of resampling.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Write the scores of every hour to this .nc file.")
    ] = None,
) -> None:
    """Score an ensemble against the truth, or tell which of two is better.

    Skill is the error of the ensemble mean, CRPS that of the ensemble (fair), ratio spread over
    skill. Of two, differences are told with 95 % intervals from resampled days.

    Example: appa evaluate analysis.zarr --truth planet --regions global,tropics
    """
    from ..data import netcdf
    from ..evaluation.baselines import climate
    from ..evaluation.ensembles import averages
    from ..evaluation.files import KIND
    from ..evaluation.scores import metrics, pool
    from ..tasks.analyses import open_analysis
    from .options import told

    if out is not None:
        netcdf.probe(out, KIND)
    chosen: dict[str, Any] = {"regions": _words(regions)}
    if variables is not None:
        chosen["variables"] = _words(variables)
    runs = {"A": open_analysis(a)} | ({"B": open_analysis(b)} if b is not None else {})
    if climatology is not None:
        run = runs["A"]
        levels = run["level"].values.tolist() if "level" in run.coords else None
        names = [str(name) for name in run.data_vars]
        runs["climatology"] = climate(climatology, run["time"].values, names, levels)
    with told():
        means = {name: averages(run, truth, **chosen) for name, run in runs.items()}
    if out is not None:
        netcdf.save(_joined({name: metrics(part) for name, part in means.items()}), out, KIND)

    hours = means["A"].sizes["time"]
    typer.echo(f"A  {a}: {_members(means['A'])}, {hours} hours")
    if b is not None:
        typer.echo(f"B  {b}: {_members(means['B'])}")
    pooled = {name: metrics(pool(part)) for name, part in means.items()}
    shown = _shown(pooled["A"])
    for region in chosen["regions"]:
        at = {name: part.sel(region=region) for name, part in pooled.items()}
        if b is None:
            _table(region, at, shown)
        else:
            _differences(region, means, shown, days, seed)
    left = means["A"].sizes["channel"] - len(shown)
    if left:
        where = f"{out} has all" if out is not None else "--variables shows them, --out has all"
        typer.echo(f"{left} other channels are scored too: {where}")
    if out is not None:
        typer.echo(f"{out} is written")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _members(means: xr.Dataset) -> str:
    m = means.attrs["members"]
    return f"{m} members" if m > 1 else "1 state an hour"


def _shown(scores: xr.Dataset) -> list[str]:
    r"""The channels of a table: all, or of many those at the surface and on a few levels."""
    import numpy as np

    names, levels = scores["channel"].values.tolist(), scores["level"].values
    if len(names) <= MANY:
        return names
    return [n for n, p in zip(names, levels, strict=True) if np.isnan(p) or p in FEW]


def _look(scores: xr.Dataset, channel: str) -> tuple[float, str]:
    r"""The scale and the unit a channel is shown in."""
    from ..data.variables import VARIABLES
    from ..plots.style import style

    at = scores.sel(channel=channel)
    name = str(at["variable"].item())
    if name not in VARIABLES:
        return 1.0, str(at["units"].item())
    look = style(name)
    return look.scale, "K" if look.units == "°C" else look.units


def _table(region: str, scores: dict[str, xr.Dataset], channels: list[str]) -> None:
    r"""Prints the scores of one run, and of climatology beside it."""
    run, climate = scores["A"], scores.get("climatology")
    heads = ["", "unit", "skill", "spread", "ratio", "CRPS"]
    heads += ["skill, clim.", "CRPS, clim."] if climate is not None else []
    rows = []
    for channel in channels:
        scale, unit = _look(run, channel)
        at = run.sel(channel=channel)
        row = [channel, unit, *(_number(at[k], scale) for k in ("skill", "spread"))]
        row += [_number(at["ratio"], 1, 2), _number(at["crps"], scale)]
        if climate is not None:
            known = channel in climate["channel"].values
            beside = climate.sel(channel=channel) if known else None
            row += ["·" if beside is None else _number(beside[k], scale) for k in ("skill", "crps")]
        rows.append(row)
    _print(region, heads, rows)


def _differences(
    region: str, means: dict[str, xr.Dataset], channels: list[str], days: int, seed: int
) -> None:
    r"""Prints the scores of two runs, and which differences are real."""
    from ..evaluation.comparison import FEWEST, compare

    a, b = (means[name].sel(region=[region]) for name in "AB")
    found = compare(a, b, days=days, seed=seed).isel(region=0)
    known = [c for c in channels if c in found["channel"].values]
    verdicts = []
    for score, word in (("skill", "skill"), ("crps", "CRPS")):
        rows = []
        for channel in known:
            scale, unit = _look(found, channel)
            at = {
                key: float(found[f"{score}_{key}"].sel(channel=channel)) * scale
                for key in ("a", "b", "difference", "low", "high")
            }
            real = bool(found[f"{score}_real"].sel(channel=channel))
            better = ("B" if at["difference"] < 0 else "A") if real else "·"
            ends = "·" if at["low"] != at["low"] else f"{at['low']:+.3g} … {at['high']:+.3g}"
            row = [channel, unit, f"{at['a']:.3g}", f"{at['b']:.3g}"]
            rows.append([*row, f"{at['difference']:+.3g}", ends, better])
            verdicts.append(better)
        heads = ["", "unit", f"{word}, A", f"{word}, B", "B − A", "95 %", "better"]
        _print(region, heads, rows)
    blocks = found.attrs["blocks"]
    told = f"{blocks} {'block' if blocks == 1 else 'blocks'} of {days * 24} hours"
    if blocks < FEWEST:
        typer.echo(f"{told}: {FEWEST} or more are needed to say that a difference is real")
    else:
        real = sum(v != "·" for v in verdicts)
        typer.echo(f"{told}: {real} of {len(verdicts)} differences are real")


def _number(value: Any, scale: float, digits: int | None = None) -> str:
    value = float(value) * scale
    if value != value:
        return "·"
    return f"{value:.3g}" if digits is None else f"{value:.{digits}f}"


def _joined(scores: dict[str, xr.Dataset]) -> xr.Dataset:
    r"""Scores with a dimension `estimate`, where there are several."""
    import xarray as xr

    if len(scores) == 1:
        return scores["A"]
    names = xr.DataArray(list(scores), dims="estimate", name="estimate")
    parts = [part.drop_attrs(deep=False) for part in scores.values()]
    return xr.concat(parts, names, join="outer", coords="minimal", compat="override")


def _print(region: str, heads: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    columns = [Column(h, justify="left" if k < 2 else "right") for k, h in enumerate(heads)]
    table = Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0), title=region)
    table.title_justify, table.title_style = "left", "bold"
    for row in rows:
        table.add_row(*row)
    Console(width=None if Console().is_terminal else 100).print("", table)
