r"""`appa evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import told, words

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["register"]

MANY, FEW = 20, (850, 700, 500, 250)  # channels of a table, and levels of one with more
LEADS = (1, 6, 12, 24, 48, 72, 120, 168, 240)  # hours of tables of forecasts, and the last


def register(app: typer.Typer) -> None:
    r"""Adds the command of this file to the application."""
    app.command()(evaluate)


def evaluate(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="A [B]",
            help="An ensemble: .zarr, .nc, or any store of states; several dates as a pattern in "
            "quotes, or with commas. B: another one of the same hours, to compare it with.",
        ),
    ],
    truth: Annotated[str, typer.Option(help="The truth: a path, a URL, or 'planet'.")],
    climatology: Annotated[
        str | None,
        typer.Option(help="A climatology to score beside A, or 'planet' for the bundled one."),
    ] = None,
    persistence: Annotated[
        bool,
        typer.Option(
            "--persistence", help="Score beside forecasts A the truth of the last known hour."
        ),
    ] = False,
    regions: Annotated[
        str,
        typer.Option(
            help="With commas: global, northern-hemisphere, southern-hemisphere, "
            "northern-extratropics, southern-extratropics, tropics, land, ocean."
        ),
    ] = "global",
    variables: Annotated[
        str | None,
        typer.Option(help="Variables, or channels such as z500, with commas; by default all."),
    ] = None,
    leads: Annotated[
        str | None,
        typer.Option(help="Lead times of forecasts to show, in hours with commas."),
    ] = None,
    days: Annotated[
        int, typer.Option(min=1, help="Days that are resampled together, or runs issued in them.")
    ] = 1,
    margin: Annotated[
        float, typer.Option(min=0, help="Percent by which B may be worse and still be no worse.")
    ] = 2.0,
    seed: Annotated[int, typer.Option(min=0, help="The seed of resampling.")] = 0,
    scheduler: Annotated[
        str | None, typer.Option(help="A Dask scheduler, e.g. tcp://host:8786; else threads.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the scores of every hour to this .nc file.")
    ] = None,
) -> None:
    """Score an ensemble against the truth, or tell which of two is better.

    Skill is the error of the ensemble mean, CRPS that of the ensemble (fair), ratio spread over
    skill. Forecasts are scored by lead time, several dates together. Of two, differences are told
    with 95 % intervals from resampled days, or dates; and whether B is no worse by a margin.

    Example: appa evaluate analysis.zarr --truth planet --regions global,tropics

    Example: appa evaluate 'runs/*.zarr' --truth planet --leads 6,24,72
    """
    from ..data import netcdf
    from ..evaluation.files import KIND
    from ..evaluation.forecasts import open_runs, run_averages
    from ..evaluation.scores import metrics, pool

    if len(runs) > 2:
        raise typer.BadParameter(
            f"{len(runs)} ensembles, where two are compared; several dates of one go in quotes, "
            "as in 'runs/*.zarr'",
            param_hint="A [B]",
        )
    if out is not None:
        netcdf.probe(out, KIND)
    chosen: dict[str, Any] = {"regions": words(regions), "scheduler": scheduler}
    if variables is not None:
        chosen["variables"] = words(variables)
    hours = _hours(leads)
    given = {name: open_runs(path) for name, path in zip("AB", runs, strict=False)}
    _alike(given)
    _have_leads(given["A"], hours)
    given |= _beside(given["A"], truth, climatology, persistence)
    with told():
        means = {name: run_averages(part, truth, **chosen) for name, part in given.items()}
    if out is not None:
        scores = {name: metrics(_by_date(part)) for name, part in means.items()}
        netcdf.save(_joined(scores), out, KIND)

    for name, path in zip("AB", runs, strict=False):
        typer.echo(f"{name}  {path}: {_about(means[name])}")
    for lead in _leads(means["A"], hours):
        at, title = means, ""
        if lead is not None:
            at = {k: m.sel(lead_time=[lead]) for k, m in means.items() if lead in m["lead_time"]}
            title = f", {lead:g} h ahead{_of_dates(at['A'])}"
        for region in chosen["regions"]:
            part = {name: m.sel(region=[region]) for name, m in at.items()}
            shown = _shown(part["A"])
            alone = {name: m for name, m in part.items() if name != "B"}
            if len(alone) > 1 or "B" not in means:
                dims = ("init_time", "lead_time") if lead is not None else "time"
                scores = {k: metrics(pool(m, dims)).isel(region=0) for k, m in alone.items()}
                _table(region + title, scores, shown)
            if "B" in part:
                _differences(region + title, part, shown, days, margin, seed)
    left = means["A"].sizes["channel"] - len(_shown(means["A"]))
    if left:
        where = f"{out} has all" if out is not None else "--variables shows them, --out has all"
        typer.echo(f"{left} other channels are scored too: {where}")
    if out is not None:
        typer.echo(f"{out} is written")


def _alike(given: dict[str, list[xr.Dataset]]) -> None:
    r"""Raises where one of two is a forecast and the other is not, before both are scored."""
    from ..errors import DataError
    from ..evaluation.forecasts import issued

    kinds = {name: issued(runs[0]) is not None for name, runs in given.items()}
    if len(set(kinds.values())) > 1:
        one, other = sorted(kinds, key=lambda name: not kinds[name])
        raise DataError(
            f"{one} is a forecast, and {other} does not say when it was issued: forecasts are "
            "compared with forecasts; give two of a kind"
        )


def _beside(
    runs: list[xr.Dataset], truth: str, climatology: str | None, persistence: bool
) -> dict[str, list[xr.Dataset]]:
    r"""What is scored beside runs, at their hours."""
    from ..data.stores import open_store
    from ..evaluation.baselines import climate, persisted
    from ..evaluation.forecasts import issued

    found: dict[str, list[xr.Dataset]] = {}
    names = [str(name) for name in runs[0].data_vars]
    levels = runs[0]["level"].values.tolist() if "level" in runs[0].coords else None
    if climatology is not None:
        found["climatology"] = []
        for run in runs:
            part = climate(climatology, run["time"].values, names, levels)
            start = issued(run)
            about = {} if start is None else {"forecast_reference_time": str(start)}
            found["climatology"].append(part.assign_attrs(about))
    if persistence:
        known = open_store(truth)
        found["persistence"] = [persisted(known, run, names) for run in runs]
    return found


def _hours(wanted: str | None) -> list[float] | None:
    r"""The lead times that are asked for."""
    if wanted is None:
        return None
    try:
        hours = [float(word) for word in words(wanted)]
    except ValueError:
        hours = []
    if not hours:
        raise typer.BadParameter(
            f"found {wanted!r}, expected hours such as 6,24,72", param_hint="--leads"
        )
    return hours


def _have_leads(runs: list[xr.Dataset], hours: list[float] | None) -> None:
    r"""Raises where lead times are asked for that no run has, before all are scored."""
    from ..errors import DataError
    from ..evaluation.forecasts import HOUR, issued

    if hours is None:
        return
    known: set[float] = set()
    for run in runs:
        start = issued(run)
        if start is None:
            raise DataError(
                "--leads is for forecasts; the ensemble does not say when it was issued"
            )
        known |= {float(h) for h in (run["time"].values.ravel() - start) / HOUR}
    lost = [hour for hour in hours if hour not in known]
    if lost:
        ends = f"{min(known):g} to {max(known):g} h"
        raise DataError(f"no forecast has lead time {lost[0]:g} h; they have {ends}")


def _leads(means: xr.Dataset, wanted: list[float] | None) -> list[Any]:
    r"""The lead times that are shown, or nothing for all hours together."""
    if "lead_time" not in means.dims:
        return [None]
    known = means["lead_time"].values.tolist()
    if wanted is None:
        return [hour for hour in known if hour in LEADS or hour == known[-1]]
    lost = [hour for hour in wanted if hour not in known]
    if lost:
        from ..errors import DataError

        raise DataError(
            f"there is no truth {lost[0]:g} h ahead; there is {known[0]:g} to {known[-1]:g} h ahead"
        )
    return wanted


def _of_dates(means: xr.Dataset) -> str:
    r"""Of how many dates a lead time is, where some do not reach it."""
    every = means.sizes["init_time"]
    there = int((means["weight"] > 0).any(["region", "lead_time", "channel"]).sum())
    return f", {there} of {every} dates" if there < every else ""


def _by_date(means: xr.Dataset) -> xr.Dataset:
    r"""Forecasts by lead time, all dates together; others as they are."""
    from ..evaluation.scores import pool

    return pool(means, "init_time") if "init_time" in means.dims else means


def _about(means: xr.Dataset) -> str:
    m = means.attrs["members"]
    members = f"{m} members" if m > 1 else "1 state an hour"
    if "init_time" in means.dims:
        dates, hours = means.sizes["init_time"], means["lead_time"].values
        many = f"{dates} forecasts" if dates > 1 else "1 forecast"
        return f"{members}, {many} of {hours[0]:g} to {hours[-1]:g} h"
    runs = len(set(means["start"].values.tolist())) if "start" in means.coords else 1
    return f"{members}, {means.sizes['time']} hours" + (f" in {runs} runs" if runs > 1 else "")


def _shown(scores: xr.Dataset) -> list[str]:
    r"""The channels of a table: all, or of many those at the surface and on a few levels."""
    import numpy as np

    names, levels = scores["channel"].values.tolist(), scores["level"].values
    if len(names) <= MANY:
        return names
    return [n for n, p in zip(names, levels, strict=True) if np.isnan(p) or p in FEW]


def _look(scores: xr.Dataset, channel: str) -> tuple[float, str]:
    r"""The scale and the unit a channel is shown in."""
    from ..plots.curves import look_of

    return look_of(scores.sel(channel=channel))[:2]


def _table(region: str, scores: dict[str, xr.Dataset], channels: list[str]) -> None:
    r"""Prints the scores of one run, and of others beside it."""
    run, others = scores["A"], {k: part for k, part in scores.items() if k != "A"}
    heads = ["", "unit", "skill", "spread", "ratio", "CRPS"]
    heads += [f"{word}, {name[:4]}." for name in others for word in ("skill", "CRPS")]
    rows = []
    for channel in channels:
        scale, unit = _look(run, channel)
        at = run.sel(channel=channel)
        row = [channel, unit, *(_number(at[k], scale) for k in ("skill", "spread"))]
        row += [_number(at["ratio"], 1, 2), _number(at["crps"], scale)]
        for other in others.values():
            known = channel in other["channel"].values
            beside = other.sel(channel=channel) if known else None
            row += ["·" if beside is None else _number(beside[k], scale) for k in ("skill", "crps")]
        rows.append(row)
    _print(region, heads, rows)


def _differences(
    region: str,
    means: dict[str, xr.Dataset],
    channels: list[str],
    days: int,
    margin: float,
    seed: int,
) -> None:
    r"""Prints the scores of two runs, which differences are real, and where B is no worse."""
    from ..evaluation.comparison import FEWEST, LEFT, alike, by_chance, compare, no_worse

    found = compare(means["A"], means["B"], days=days, seed=seed).isel(region=0)
    found = found.squeeze("lead_time") if "lead_time" in found.dims else found
    known = [c for c in channels if c in found["channel"].values]
    verdicts = []
    for score, word in (("skill", "skill"), ("crps", "CRPS")):
        rows, verdict = [], no_worse(found, margin, score)
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
            told = verdict.sel(channel=channel).item().replace("not told", "·")
            rows.append([*row, f"{at['difference']:+.3g}", ends, better, told])
            verdicts.append(better)
        heads = ["", "unit", f"{word}, A", f"{word}, B", "B − A", "95 %", "better"]
        _print(region, [*heads, f"B, by {margin:g} %"], rows)
    blocks = found.attrs["blocks"]
    one = "block" if blocks == 1 else "blocks"
    told = f"{blocks} {one} of {days * 24} hours"
    if "init_time" in means["A"].dims or any("start" in means[name].coords for name in "AB"):
        several = days > 1 or found.attrs["dates"] > blocks  # of one day
        told = f"{blocks} {one} of dates" if several else f"{blocks} dates"
    told += alike(found.sel(channel=known))
    if not found["enough"].sel(channel=known).any():
        needed = FEWEST if found["filled"].sel(channel=known).max() < FEWEST else LEFT
        typer.echo(f"{told}: {needed} or more are needed to say that a difference is real, "
                   "or B no worse")  # fmt: skip
    else:
        real = sum(v != "·" for v in verdicts)
        typer.echo(
            f"{told}: {real} of {len(verdicts)} differences are real; about "
            f"{by_chance(found.sel(channel=known))} would be by chance alone"
        )


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
