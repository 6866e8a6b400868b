r"""Latents that are decoded later.

What the decoder lacks of a reanalysis is drawn again, as it was: it follows from latents,
observations, and the seed. That of a filter does not follow from its one hour, nor that of a
forecast, which goes on from states that are elsewhere: these are decoded without.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..errors import DataError
from ..machine import free_memory
from ..progress import progress
from .analyses import open_analysis
from .assimilation import given_observations
from .folders import ModelError
from .memory import ResidualMemory
from .model import Model
from .output import EnsembleWriter, model_digest
from .posterior import Posterior
from .settings import Settings

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["DECODED", "decode_store"]

DECODED = "decoded from latents; no residual is added"


def decode_store(
    model: Model,
    path: str | Path,
    out: str | Path,
    variables: Sequence[str] | None = None,
    levels: Sequence[int] | None = None,
    *,
    observations: Any = None,
    negatives: str = "clip",
    latents: bool = False,
) -> Path:
    r"""Decodes the latents of an ensemble to variables and levels it was not given out with.

    Where what the decoder lacks is not drawn again the attributes say so, `comment` in words and
    `settings` by their `residual`.

    Arguments:
        model: The model that drew it.
        path: The ensemble, with `latents`.
        out: Where the decoded ensemble goes.
        variables, levels: What is decoded, by default all.
        observations: Those that a reanalysis was given, of which what the decoder lacks is drawn
            again. One that was given none needs none.
        negatives, latents: See :class:`~.ensembles.Ensemble`.
    """
    ds = open_analysis(path)
    if "latents" not in ds:
        raise DataError(f"{path} has no latents to decode; draw it again with --latents")
    if ds.attrs.get("model_digest") != model_digest(model):
        raise ModelError(
            f"{path} was drawn by another model than {model.origin}, {ds.attrs.get('model')}; its "
            "latents mean nothing to this one: name that model"
        )
    posterior = _posterior(model, ds, observations)
    # the fit was that of the variables which were given out
    attrs = {key: value for key, value in ds.attrs.items() if key != "fit"}
    if posterior is None:
        for name in ("residual_solver_residual", "residual_unused"):
            attrs.pop(name, None)
        settings = json.loads(ds.attrs.get("settings", "{}")) | {"residual": False}
        attrs |= {"comment": DECODED, "settings": json.dumps(settings)}
    members, hours = ds.sizes["member"], ds.sizes["time"]
    writer = EnsembleWriter(
        out,
        model,
        ds["time"].values,
        members,
        variables=variables,
        levels=levels,
        latents=latents,
        negatives=negatives,
        attrs=attrs,
    )
    # r is drawn over all hours at once
    block = writer.batch if posterior is None else hours
    with writer, progress(members * hours, "decoding", unit="states") as p:
        for member in range(members):
            for hour in range(0, hours, block):
                here = slice(hour, min(hour + block, hours))
                if writer.written([member], here):
                    p.skip(here.stop - here.start)
                    continue
                z = torch.from_numpy(ds["latents"].isel(member=[member], time=here).to_numpy())
                number = int(ds["member"].values[member]) if "member" in ds.coords else member
                r = None if posterior is None else posterior.residual(z, [number], _seed(ds))
                writer.write([member], here, z, r)
                p.advance(here.stop - here.start)
        return writer.finish()


def _seed(ds: xr.Dataset) -> int:
    return int(ds.attrs.get("seed", 0))


def _posterior(model: Model, ds: xr.Dataset, observations: Any) -> Posterior | None:
    r"""What an ensemble was drawn from, if what the decoder lacks follows from that."""
    task, digest = ds.attrs.get("task"), ds.attrs.get("observations_digest")
    known = json.loads(ds.attrs.get("settings", "{}"))
    drawn = known.get("residual", False) and model.representation is not None
    if observations is None and (digest is not None or not drawn or task != "reanalysis"):
        return None
    if not drawn:
        raise DataError(
            "the ensemble was drawn without what the decoder lacks, which is all that observations "
            "are needed for; leave them out"
        )
    if task != "reanalysis":
        raise DataError(
            f"what the decoder lacks of a {task} does not follow from its latents and "
            "observations; leave these out, or draw it again with the variables that are wanted"
        )
    settings = Settings.of(model.config, **known)
    if settings.background != "none":
        raise DataError(
            f"the ensemble's observations were compared with the prior (background "
            f"{settings.background!r}), which decoding does not do again; leave them out, or draw "
            "it again with the variables that are wanted"
        )
    times = ds["time"].values
    posterior, used = given_observations(model, observations, times[0], len(times), settings)
    found = None if used is None else used.digest()
    if found != digest:
        raise DataError(
            f"the observations have the digest {found}, those of the ensemble {digest}: give those "
            "it was drawn from, read as they were then (appa.read_observations with the same "
            "options)"
        )
    memory = ResidualMemory.of(model, len(times))
    posterior.residuals_at_once = memory.affordable(free_memory(model.device))
    return posterior
