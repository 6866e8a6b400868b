r"""`appa score`: what an autoencoder keeps of states, and whether what a prior draws is weather."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["app"]

app = typer.Typer(help="Score an autoencoder's reconstructions, or a prior.", no_args_is_help=True)

ModelArgument = Annotated[str, typer.Argument(help="A bundled model, or a model folder.")]
DataOption = Annotated[str, typer.Option(help="The store: a path, a URL, or 'planet'.")]
OutOption = Annotated[Path, typer.Option(help="The folder for scores and figures.")]
SplitOption = Annotated[
    str, typer.Option(help="'train', 'validation' or 'test', as the configuration has them.")
]
SeedOption = Annotated[int, typer.Option(min=0, help="Another seed, other states and draws.")]
DeviceOption = Annotated[
    str | None, typer.Option(help="Where networks run; by default CUDA where there is one.")
]
FiguresOption = Annotated[bool, typer.Option(help="Draw figures too.")]


@app.command()
def autoencoder(
    model: ModelArgument,
    data: DataOption,
    out: OutOption,
    split: SplitOption = "test",
    train_data: Annotated[
        str | None,
        typer.Option(metavar="STORE", help="A store with training hours, for the gap to them."),
    ] = None,
    states: Annotated[int, typer.Option(min=1, help="States, spread over the split.")] = 500,
    climatology: Annotated[
        str | None,
        typer.Option(
            help="A climatology, or 'planet' for the bundled one: errors relative to the weather."
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="States at once.")] = 16,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    figures: FiguresOption = True,
) -> None:
    """Score the reconstructions of an autoencoder: errors, spectra, the seam.

    Writes autoencoder.nc, autoencoder.json and figures.

    Example: appa score autoencoder planet --data planet --out scores --climatology planet
    """
    from ..evaluation.files import about
    from ..evaluation.reconstruction import score_autoencoder, summarize
    from ..machine import find_device
    from ..tasks.loading import load

    _ready(out / "autoencoder.nc", figures)
    place = find_device(device)
    loaded = load(model, place)
    options: dict[str, Any] = {"climatology": climatology, "device": place, "batch": batch}
    options |= {"states": states, "seed": seed}
    scores = score_autoencoder(loaded, data, split, **options)
    train = train_data and score_autoencoder(loaded, train_data, "train", **options, spectra=1)
    summary: dict[str, Any] = {"scored": model, "model": about(loaded.config)}
    summary |= summarize(scores, train or None)
    _write(out, "autoencoder", scores, summary, loaded, data, figures)

    _print(("variable", "rmse", "of the weather"), _errors(scores))
    channels, gap = scores.sizes["channel"], ""
    if train is not None:
        apart = 100 * abs(summary["test_over_train"] - 1)
        gap = f"; {summary['rmse_train']:.4f} in training, {apart:.0f} % apart"
    typer.echo(
        f"standardized RMSE {summary['rmse']:.4f}, the mean over {channels} channels of "
        f"{_several(scores.attrs['states'], 'state')}{gap}\n{_seam(summary['seam_steps'])}"
    )


@app.command()
def prior(
    model: ModelArgument,
    data: DataOption,
    out: OutOption,
    climatology: Annotated[
        str, typer.Option(help="The climatology anomalies are from, or 'planet'.")
    ],
    members: Annotated[int, typer.Option(min=1, help="Trajectories of each length.")] = 64,
    hours: Annotated[str, typer.Option(help="Their lengths, with commas.")] = "24,72",
    stride: Annotated[
        int | None, typer.Option(min=1, help="Hours between windows, instead of the model's.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of the sampler, instead of the model's.")
    ] = None,
    understated: Annotated[
        float | None,
        typer.Option(min=0, max=0.99, help="Share by which noise is understated, likewise."),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(help="Beyond a window: sequential, as by default, or composed windows."),
    ] = None,
    split: SplitOption = "test",
    batch: Annotated[int, typer.Option(min=1, help="Trajectories at once.")] = 4,
    residual: Annotated[
        bool, typer.Option(help="Whether to draw what the decoder cannot express, too.")
    ] = True,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    figures: FiguresOption = True,
) -> None:
    """Score what the prior draws: memory, variance, tendencies, climate, spectra, the seam.

    Draws trajectories for the hours of truth windows spread over the split.
    Writes prior.nc, prior.json and figures.

    Example: appa score prior planet --data planet --out scores --climatology planet --members 8
    """
    from ..errors import DataError
    from ..evaluation.files import about
    from ..evaluation.prior import score_prior, summarize
    from ..machine import find_device
    from ..tasks.loading import load

    try:
        lengths = [int(length) for length in hours.split(",")]
    except ValueError:
        raise DataError(f"hours {hours!r} are not lengths; e.g. 24,72") from None
    _ready(out / "prior.nc", figures)
    place = find_device(device)
    loaded = load(model, place)
    scores = score_prior(
        loaded,
        data,
        climatology=climatology,
        members=members,
        hours=lengths,
        stride=stride,
        steps=steps,
        understated=understated,
        mode=mode,
        split=split,
        batch=batch,
        decode=4 * batch,
        residual=residual,
        seed=seed,
        device=place,
    )
    found = summarize(scores)
    about_it = ("split", "mode", "members", "stride", "window", "steps", "understated", "residual")
    told = {k: scores.attrs[k] for k in about_it}
    summary = {"scored": model, "model": about(loaded.config), **told, "lengths": found}
    _write(out, "prior", scores, summary, loaded, data, figures)

    for length, part in found.items():
        lags = list(next(iter(part["autocorrelation"].values()), {}))
        lags = [lag for lag in lags if int(lag) >= 24] or lags
        rows = []
        for name, at in part["autocorrelation"].items():
            pairs = [f"{at[lag]['draws']:.3f} ({at[lag]['truth']:.3f})" for lag in lags]
            ratios = [f"{part[kind][name]:.2f}" for kind in ("variance_ratio", "tendency_ratio")]
            rows.append((name, *pairs, *ratios))
        count = part["trajectories"]
        fewer = f" ({split} has no more)" if count < members else ""
        typer.echo(f"{length} h, {_several(count, 'trajectory')}{fewer}: draws (truth)")
        _print(("channel", *(f"{lag} h" for lag in lags), "variance", "tendency"), rows)
        by_hour, edge = part["variance_by_hour"], part["seam_draws"]
        lines = [
            f"autocorrelations below a day differ by {part['autocorrelation_gap']['draws']:.3f} at "
            "most",
            f"the variance is {by_hour['least']:.2f} to {by_hour['most']:.2f} of the truth's, hour "
            "by hour, the mean over these channels",
        ]
        if across := part.get("tendency_across"):
            values = [at["draws"] for at in across.values()]
            lines.append(
                f"tendencies across joints of windows are {min(values):.2f} to {max(values):.2f} "
                "times those elsewhere"
            )
        typer.echo("\n".join([*lines, _seam(edge)]))


def _ready(scores: Path, figures: bool) -> None:
    r"""Raises what would be in the way after hours of work."""
    from ..data.netcdf import probe
    from ..evaluation.files import KIND

    probe(scores, KIND)
    if figures:
        from ..plots.style import require

        require()


def _write(
    out: Path, name: str, scores: xr.Dataset, summary: Any, model: Any, data: str, figures: bool
) -> None:
    from ..data.stores import open_store
    from ..evaluation.files import save_scores

    for fields in (model.statistics, open_store(data)):
        if "land_sea_mask" in fields and "land_sea_mask" not in scores:
            land = fields["land_sea_mask"].variable.load()
            scores["land_sea_mask"] = (("latitude", "longitude"), land.values)
    path, told = save_scores(scores, summary, out, name)
    typer.echo(f"{path}, {told}")
    if figures:
        from ..plots.draws import figures as draw
        from ..plots.prior import save

        for kind, figure in draw(scores).items():
            save(figure, out / f"{name}-{kind}.png")


def _print(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    columns = [Column(head, justify="right" if k else "left") for k, head in enumerate(heads)]
    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    Console(width=None if Console().is_terminal else 160).print(table)


def _errors(scores: xr.Dataset) -> list[tuple[str, str, str]]:
    r"""Errors by variable, over all of its levels, and of the channels that have a target."""
    from ..data.variables import VARIABLES
    from ..evaluation.reconstruction import HEADLINE

    rows = []
    variables = scores["variable"].values.tolist()
    for name in dict.fromkeys(variables):
        levels, short = variables.count(name), VARIABLES[name].short
        told = short if VARIABLES[name].surface else f"{short}, {_several(levels, 'level')}"
        rows.append((told, scores.isel(channel=[k for k, v in enumerate(variables) if v == name])))
    aloft = [c for c in HEADLINE if c in scores["channel"].values and c not in dict(rows)]
    rows += [(name, scores.sel(channel=[name])) for name in aloft]
    return [
        (
            told,
            _number(float(part["rmse"].mean()), 3),
            _number(float(part["rmse_weather"].mean()) if "rmse_weather" in part else None, 2),
        )
        for told, part in rows
    ]


def _seam(edge: dict[str, float]) -> str:
    return (
        f"differences across the seam are {_number(edge['seam'], 2)} times the mean elsewhere, "
        f"where {_number(edge['low'], 2)} to {_number(edge['high'], 2)} is usual"
    )


def _several(n: int, word: str) -> str:
    plural = f"{word.removesuffix('y')}ies" if word.endswith("y") else f"{word}s"
    return f"{n:,} {word if n == 1 else plural}"


def _number(value: float | None, digits: int) -> str:
    return "·" if value is None or value != value else f"{value:.{digits}f}"
