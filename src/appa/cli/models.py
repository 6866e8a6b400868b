r"""`appa import-official`, `appa encode`, `appa decode` and `appa representation`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .options import load, output, reading, takes

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    r"""Adds the commands of this file to the application."""
    app.command("import-official")(import_official)
    app.command()(encode)
    app.command()(decode)
    app.command()(representation)


def import_official(
    run: Annotated[Path, typer.Argument(help="The authors' run: RUN/latents/DUMP/….")],
    out: Annotated[Path, typer.Argument(help="The model folder to write.")],
    dump: Annotated[str | None, typer.Option(help="The latent dump, if there are several.")] = None,
    denoiser: Annotated[str | None, typer.Option(help="The denoiser, if several.")] = None,
    lap: Annotated[str | None, typer.Option(help="The lap of its training, if several.")] = None,
    which: Annotated[str, typer.Option(help="'model_last' or 'model_best'.")] = "model_last",
    statistics: Annotated[
        Path | None,
        typer.Option(help="Mean and std of states: the authors' stats_era5_….zarr, or a .nc file."),
    ] = None,
) -> None:
    """Convert the authors' published checkpoints into a model folder.

    No code in a checkpoint is executed: a file that holds any is refused.

    Example: appa import-official appa-run official --statistics stats_era5.zarr
    """
    from ..costs import facts
    from ..interop.official import import_official as run_import
    from ..tasks.folders import read_config

    run_import(
        run,
        out,
        dump=dump,
        denoiser=denoiser,
        lap=lap,
        which=which,
        statistics=statistics,
    )
    told = facts(read_config(out))
    typer.echo(f"{out} is complete, a model with these parameters: {told['parameters']}")
    typer.echo(f"states {told['state']}, latents {told['latent']}, tokens {told['tokens']}")
    if statistics is None:
        typer.echo(
            "without --statistics it knows standardized states only, and no physical values",
            err=True,
        )


def encode(
    model: Annotated[str, typer.Argument(help="A model with an autoencoder: a folder or a name.")],
    store: Annotated[str, typer.Argument(help="A store: a path, a URL, or 'planet'.")],
    out: Annotated[Path, typer.Argument(help="The latent store to write.")],
    batch: Annotated[int, typer.Option(min=1, help="States encoded at once.")] = 16,
    block: Annotated[
        int | None, typer.Option(min=1, help="Hours finished at a time; by default a shard's.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Threads that read states.")] = 4,
    device: Annotated[
        str | None, typer.Option(help="E.g. cpu or cuda:1; by default a GPU if there is one.")
    ] = None,
) -> None:
    """Encode a store into a latent store, with the statistics of its latents.

    Killed, it goes on where it was when the same command is given again. Under
    torchrun, processes share the work: torchrun --no-python --nproc-per-node 4 appa encode ….

    Example: appa encode run planet-1901.zarr latents.zarr
    """
    import os

    from ..tasks.encoding import encode as run_encode

    run_encode(model, store, out, batch=batch, block=block, workers=workers, device=device)
    if os.environ.get("RANK", "0") == "0":
        typer.echo(f"{out} is complete")


@takes(given=output, rules=reading)
def decode(
    model: Annotated[str, typer.Argument(help="The model that drew it: a folder or a name.")],
    ensemble: Annotated[Path, typer.Argument(help="An ensemble that was kept with its latents.")],
    out: Annotated[Path, typer.Option(help="Where to write: .zarr, or .nc.", show_default=False)],
    given: Any,
    rules: Any,
    observations: Annotated[
        list[str] | None,
        typer.Option(help="Those of a reanalysis; once for each file.", show_default=False),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="E.g. cpu or cuda:1; by default a GPU if there is one.")
    ] = None,
) -> None:
    """Decode the latents of an ensemble, to variables and levels it was not given out with.

    What the decoder lacks of a reanalysis, which the run drew and added, is drawn again as it was,
    if its observations are given, with the options they were read with.

    Example: appa decode planet analysis.zarr --variables temperature --levels 850 --out t850.zarr
    --observations stations.csv
    """
    import numpy as np
    import xarray as xr

    from ..tasks.analyses import open_analysis
    from ..tasks.decoding import DECODED, decode_store
    from .assimilate import read_period

    loaded, used = load(model, device), None
    if observations:
        times = open_analysis(ensemble)["time"].values
        start = str(np.datetime_as_string(times[0], unit="h"))
        used, _ = read_period(observations, start, len(times), rules, loaded)
    done = decode_store(loaded, ensemble, out, observations=used, **given)
    with xr.open_dataset(done) as ds:
        without = ds.attrs.get("comment") == DECODED
    rest = f": {DECODED}, unlike in what was drawn with --residual" if without else ""
    typer.echo(f"{done} is complete{rest}")


def representation(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    data: Annotated[str, typer.Option(help="The store: a path, a URL, or 'planet'.")],
    split: Annotated[
        str, typer.Option(help="'train', 'validation' or 'test', as the configuration has them.")
    ] = "validation",
    count: Annotated[
        int, typer.Option("--windows", min=1, help="Windows, spread over the split.")
    ] = 64,
    batch: Annotated[int, typer.Option(min=1, help="States at once.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other windows.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="The file; by default representation.nc in the folder.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="E.g. cpu or cuda:1; by default a GPU if there is one.")
    ] = None,
) -> None:
    """Estimate what the decoder cannot express, which is part of any observation's error.

    Assimilation finds the file in the model folder, and uses it unless told otherwise.

    Example: appa representation runs/era5 --data era5.zarr
    """
    from ..evaluation.representing import represent
    from ..observations.representation import FILE

    loaded = load(str(model), device)
    found = represent(loaded, data, split, count=count, batch=batch, seed=seed)
    typer.echo(f"{found.save(out or model / FILE)} is complete: {found!r}")
