r"""`appa baseline`: estimates that need no model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .letkf import register, several_of

__all__ = ["app"]

app = typer.Typer(help="Estimates to stand beside the model's.", no_args_is_help=True)

Observed = Annotated[
    list[str], typer.Argument(help="Observations: .parquet, .csv, .nc, .zarr; several are joined.")
]
Known = Annotated[Path, typer.Option(help="The covariance, from appa baseline covariance.")]
Tried = Annotated[
    str | None,
    typer.Option(
        metavar="N,N,…",
        help="Values to try, the first first. Without any of these four, the usual ones of all.",
    ),
]
Device = Annotated[
    str | None, typer.Option(help="Where it is computed; by default a GPU where there is one.")
]


@app.command()
def covariance(
    store: Annotated[str, typer.Argument(help="Hourly training data: a path, URL, or 'planet'.")],
    out: Annotated[Path, typer.Option(help="The .nc to write.", show_default=False)],
    climatology: Annotated[
        str, typer.Option(help="Its climatology, or 'planet' for the bundled one.")
    ] = "planet",
    modes: Annotated[int, typer.Option(min=1, help="Modes of each zonal wavenumber.")] = 96,
    lags: Annotated[int, typer.Option(min=1, help="The largest lag in hours.")] = 23,
    every: Annotated[
        int, typer.Option(min=1, help="Take one of so many hours for variances and modes.")
    ] = 3,
    first: Annotated[str | None, typer.Option(help="The first date to take.")] = None,
    last: Annotated[str | None, typer.Option(help="The last date to take.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the random projections.")] = 0,
    device: Device = None,
) -> None:
    """Estimate the covariance of anomalies in space and time, for optimal interpolation.

    Example: appa baseline covariance train.zarr --climatology climatology.nc --last 1936
    --out cov.nc
    """
    from ..data import netcdf
    from ..evaluation.anomalies import estimate
    from ..evaluation.covariances import KIND
    from ..machine import find_device

    netcdf.probe(out, KIND, store)
    found = estimate(
        store,
        climatology,
        modes=modes,
        lags=lags,
        every=every,
        split=(first, last),
        seed=seed,
        device=find_device(device),
    )
    about = found.dataset.attrs
    found.save(out)
    typer.echo(
        f"{about['hours']:,} hours in {about['stretches']:,} stretches; "
        f"{found.dataset.sizes['wave']} × {found.modes} modes explain {about['explained']:.1%}"
    )
    typer.echo(f"{out} is written")


@app.command()
def oi(
    observations: Observed,
    covariance: Known,
    start: Annotated[str, typer.Option(help="The first hour, e.g. 2021-03-24T00.")],
    out: Annotated[Path, typer.Option(help="The .zarr or .nc to write.", show_default=False)],
    hours: Annotated[int, typer.Option(min=1, help="How many hours.")] = 24,
    members: Annotated[int, typer.Option(min=0, help="Members; 0 for the mean alone.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="The seed.")] = 0,
    settings: Annotated[
        Path | None, typer.Option(help="Tuned settings, from appa baseline tune.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Members at once.")] = 8,
    iterations: Annotated[int, typer.Option(min=1, help="The most iterations.")] = 1000,
    tolerance: Annotated[
        float, typer.Option(min=0, help="The residual at which to stop, over the departures.")
    ] = 1e-2,
    device: Device = None,
) -> None:
    """Optimal interpolation in space and time over a window.

    Example: appa baseline oi obs.parquet obs.swath.nc --covariance cov.nc --start 2021-03-24T00
    --hours 24 --members 10 --settings tuned.json --out oi.zarr
    """
    from ..evaluation.covariances import Covariance
    from ..evaluation.interpolation import Settings, interpolate
    from ..machine import find_device
    from .options import told

    with told():
        found = interpolate(
            Covariance.load(covariance),
            observations,
            start,
            hours,
            members=members,
            seed=seed,
            settings=None if settings is None else Settings.load(settings),
            out=out,
            batch=batch,
            iterations=iterations,
            tolerance=tolerance,
            device=find_device(device),
        )
    typer.echo(f"{members or 'the mean and no'} members × {hours} hours in "
               f"{found.attrs['iterations']} iterations, to a residual of "
               f"{found.attrs['residual']:.2g}")  # fmt: skip
    typer.echo(f"{out} is written")


@app.command()
def tune(
    observations: Observed,
    covariance: Known,
    truth: Annotated[str, typer.Option(help="The truth: a path, a URL, or 'planet'.")],
    start: Annotated[
        list[str], typer.Option(help="The first hour of a window; repeat. Do not score them.")
    ],
    out: Annotated[Path, typer.Option(help="The .json to write.", show_default=False)],
    hours: Annotated[int, typer.Option(min=1, help="How many hours of each.")] = 24,
    members: Annotated[int, typer.Option(min=2, help="Members of each trial.")] = 8,
    localization: Tried = None,
    modes: Tried = None,
    order: Tried = None,
    error: Tried = None,
    iterations: Annotated[int, typer.Option(min=1, help="The most iterations.")] = 1000,
    tolerance: Annotated[
        float, typer.Option(min=0, help="The residual at which to stop, over the departures.")
    ] = 1e-2,
    device: Device = None,
) -> None:
    """Choose what minimises the CRPS of optimal interpolation, on dates that are not scored.

    Example: appa baseline tune obs.parquet obs.swath.nc --covariance cov.nc --truth valid.zarr
    --start 2020-02-01T00 --start 2020-08-01T00 --localization 25,15,40 --error 1,0.7
    --out tuned.json
    """
    from ..evaluation.covariances import Covariance
    from ..evaluation.interpolation import GRID, KINDS, tune
    from ..evaluation.tuning import edges
    from ..machine import find_device
    from ..observations.reading import read_observations
    from .options import told, writable

    writable(out)
    asked = {"localization": localization, "modes": modes, "order": order, "error": error}
    grid = {k: several_of(k, v, KINDS[k]) for k, v in asked.items() if v is not None} or GRID
    known = Covariance.load(covariance)
    with told():
        read = read_observations(observations)
        best, table = tune(
            known,
            [(read, first) for first in start],
            truth,
            hours=hours,
            grid=grid,
            members=members,
            iterations=iterations,
            tolerance=tolerance,
            device=find_device(device),
        )
    typer.echo(table.to_string(index=False, float_format="{:.4f}".format, na_rep="·"))
    # of modes and orders there are no more than the covariance has
    for line in edges(best, {k: v for k, v in grid.items() if k in ("localization", "error")}):
        typer.echo(f"{line}: there may be better ones beyond")
    best.save(out)
    typer.echo(f"{out} is written")


register(app)
