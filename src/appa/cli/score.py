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
    from ..data.netcdf import probe
    from ..evaluation.files import KIND, about
    from ..evaluation.reconstruction import score_autoencoder, summarize
    from ..tasks.model import load

    probe(out / "autoencoder.nc", KIND)
    place = _device(device)
    loaded = load(model, place)
    options: dict[str, Any] = {"climatology": climatology, "device": place, "batch": batch}
    options |= {"states": states, "seed": seed}
    scores = score_autoencoder(loaded, data, split, **options)
    train = train_data and score_autoencoder(loaded, train_data, "train", **options, spectra=1)
    summary = {"model": about(loaded.config)} | summarize(scores, train or None)
    _write(out, "autoencoder", scores, summary, loaded, data, figures)

    weather = summary.get("weather_by_channel", {})
    rows = [
        (name, f"{rmse:.3f}", _number(weather.get(name), 2))
        for name, rmse in summary["rmse_by_channel"].items()
    ]
    _print(("channel", "rmse", "of the weather"), rows)
    gap = f", {summary['rmse_train']:.4f} in training" if train is not None else ""
    seam = summary["seam_steps"]
    typer.echo(
        f"standardized RMSE {summary['rmse']:.4f}, the mean over {len(rows)} channels of "
        f"{summary['states']} states{gap}\nacross the seam differences are "
        f"{_number(seam['seam'], 2)} times the mean elsewhere, where they are "
        f"{_number(seam['low'], 2)} to {_number(seam['high'], 2)}"
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
    steps: Annotated[int, typer.Option(min=1, help="Steps of the sampler.")] = 64,
    split: SplitOption = "test",
    batch: Annotated[int, typer.Option(min=1, help="Trajectories at once.")] = 4,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    figures: FiguresOption = True,
) -> None:
    """Score what the prior draws: memory, variance, tendencies, climate, spectra, the seam.

    Draws trajectories for the hours of truth windows spread over the split.
    Writes prior.nc, prior.json and figures.

    Example: appa score prior planet --data planet --out scores --climatology planet --members 8
    """
    from ..data.netcdf import probe
    from ..errors import DataError
    from ..evaluation.files import KIND, about
    from ..evaluation.prior import score_prior, summarize
    from ..tasks.model import load

    try:
        lengths = [int(length) for length in hours.split(",")]
    except ValueError:
        raise DataError(f"hours {hours!r} are not lengths; e.g. 24,72") from None
    probe(out / "prior.nc", KIND)
    place = _device(device)
    loaded = load(model, place)
    scores = score_prior(
        loaded,
        data,
        climatology=climatology,
        members=members,
        hours=lengths,
        stride=stride,
        steps=steps,
        split=split,
        batch=batch,
        decode=4 * batch,
        seed=seed,
        device=place,
    )
    found = summarize(scores)
    told = {k: scores.attrs[k] for k in ("split", "members", "stride", "window", "steps")}
    summary = {"model": about(loaded.config), **told, "lengths": found}
    _write(out, "prior", scores, summary, loaded, data, figures)

    for length, part in found.items():
        lags = list(next(iter(part["autocorrelation"].values()), {}))
        rows = []
        for name, at in part["autocorrelation"].items():
            pairs = [f"{at[lag]['draws']:.3f} ({at[lag]['truth']:.3f})" for lag in lags]
            ratios = [f"{part[kind][name]:.2f}" for kind in ("variance_ratio", "tendency_ratio")]
            rows.append((name, *pairs, *ratios))
        typer.echo(f"{length} h, {part['trajectories']} trajectories: draws (truth)")
        _print(("channel", *(f"{lag} h" for lag in lags), "variance", "tendency"), rows)
        typer.echo(
            f"autocorrelations below a day differ by at most "
            f"{part['autocorrelation_gap']['draws']:.3f}"
        )


def _device(name: str | None) -> str:
    import torch

    return name or ("cuda" if torch.cuda.is_available() else "cpu")


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


def _number(value: float | None, digits: int) -> str:
    return "·" if value is None or value != value else f"{value:.{digits}f}"
