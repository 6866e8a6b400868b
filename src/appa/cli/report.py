r"""`appa report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    r"""Adds the command of this file to the application."""
    app.command()(report)


def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="An ensemble: .zarr, .nc, or any store of states; of several dates, analyses.",
        ),
    ],
    truth: Annotated[str, typer.Option(help="The truth: a path, a URL, or 'planet'.")],
    out: Annotated[
        Path | None,
        typer.Option(help="The page, .html; by default here, by the run's name."),
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="Another run to stand beside it; repeat."),
    ] = None,
    climatology: Annotated[
        str | None,
        typer.Option(
            help="A climatology to stand beside it, 'planet' for the bundled one, or 'none'; by "
            "default the bundled one for the planet."
        ),
    ] = None,
    observations: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Observations the run has seen; repeat."),
    ] = None,
    held_out: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Observations it has not seen; repeat."),
    ] = None,
    background: Annotated[
        str | None,
        typer.Option(help="A run of the same hours without observations, for O−B."),
    ] = None,
    regions: Annotated[
        str | None,
        typer.Option(help="Regions with commas, e.g. global,tropics; by default all."),
    ] = None,
    variables: Annotated[
        str | None,
        typer.Option(help="Variables, or channels such as z500, with commas; by default all."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="Days that are resampled together.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="The seed of resampling.")] = 0,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads; by default one a core.")
    ] = None,
) -> None:
    """Write one page with all of the evidence for a run: a file to open or to mail.

    Scores beside baselines, a gallery, maps, signed errors, calibration, spectra, physics, changes
    in time, and what observations say. Nothing is loaded from elsewhere.

    Example: appa report analysis.zarr --truth planet --baseline oi=oi.zarr --out report.html

    Example: appa report runs/*.zarr --truth truth.zarr --out report.html
    """
    from ..evaluation.report import gather
    from ..plots.page import ready, save
    from ..plots.report import report_page
    from ..plots.style import require
    from .options import told, words

    require()
    place = ready(out or Path(f"{Path(runs[0]).stem or 'run'}.html"))
    if climatology is None and truth == "planet":
        climatology = "planet"
    with told():
        evidence = gather(
            runs[0] if len(runs) == 1 else runs,
            truth,
            climatology=None if climatology == "none" else climatology,
            baselines=_baselines(baseline),
            variables=words(variables) if variables is not None else None,
            regions=words(regions) if regions is not None else None,
            observations=observations,
            held_out=held_out,
            background=background,
            days=days,
            seed=seed,
            workers=workers,
        )
        text = report_page(evidence)
    size = save(text, place).stat().st_size
    typer.echo(f"{place} is written, {size / 1e6:.1f} MB: open it in a browser")


def _baselines(given: list[str] | None) -> dict[str, str]:
    from ..errors import DataError

    found: dict[str, str] = {}
    for text in given or ():
        name, equals, path = (part.strip() for part in text.partition("="))
        if not (name and equals and path):
            raise DataError(f"found --baseline {text!r}; give a name and a path: oi=oi.zarr")
        if name in found:
            raise DataError(f"found --baseline {name}=… twice; give each a name of its own")
        found[name] = path
    return found
