r"""Ensembles read again, where forecasts start.

A forecast starts from the last hours of an ensemble. Its latents are taken where it carries them
and they are of the same model, or else its states are encoded.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..data.clock import as_datetime64
from ..data.stores import open_store
from ..errors import DataError, StoreError
from .folders import ModelError, check_grid
from .model import Model
from .output import model_digest, quiet

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "in_order",
    "last_hour",
    "open_analysis",
    "past_latents",
    "past_residuals",
    "until",
]

PAST_HOURS = 4  # whose residuals a forecast goes on from


def open_analysis(path: str | Path) -> xr.Dataset:
    r"""Opens an ensemble that Appa wrote, latents included, or any store of states; lazily."""
    import xarray as xr

    local = Path(str(path))
    if local.name.endswith(".partial") and (local / ".appa").is_dir():
        raise StoreError(
            f"{local} is unfinished; rerun the command that was writing it to complete it"
        )
    try:
        if (local / "zarr.json").exists():
            ds = xr.open_dataset(local, engine="zarr")
        elif local.suffix == ".nc" and local.is_file():
            ds = xr.open_dataset(local)
        else:
            return open_store(path)
    except (OSError, ValueError) as error:
        raise StoreError(f"{local} cannot be opened ({error}); write or copy it again") from error
    return ds if "model_digest" in ds.attrs else open_store(path)


@torch.no_grad()
def past_latents(model: Model, source: Any, past: int, batch: int = 4) -> tuple[Tensor, np.ndarray]:
    r"""The latents a forecast starts from.

    Arguments:
        model: The model.
        source: An ensemble, or a dataset of states, or the path of either.
        past: The number of its last hours to take, whatever their order; or as many as there are
            and follow one another.
        batch: The number of states encoded at once.

    Returns:
        Standardized latents, with shape :math:`(M, K, c, h, w)`, and their hours, with shape
        :math:`(K)`.
    """
    ds = open_analysis(source) if isinstance(source, str | Path) else source
    ds = in_order(_with(ds, "time"))
    times = as_datetime64(ds["time"].values)
    gaps = np.flatnonzero(np.diff(times) != np.timedelta64(1, "h"))
    first = max(len(times) - past, int(gaps[-1]) + 1 if len(gaps) else 0)
    ds, times = _with(ds.isel(time=slice(first, None)), "member"), times[first:]

    if "latents" in ds and ds.attrs.get("model_digest") == model_digest(model):
        dims = ("member", "time", "latent_channel", "latent_y", "latent_x")
        return torch.from_numpy(ds["latents"].transpose(*dims).values.astype(np.float32)), times
    if model.standardizer is None:
        raise ModelError(
            f"{model.origin} cannot encode states: it has no statistics of them, and the source "
            "has no latents of this model"
        )
    if not any(name in ds for name in model.standardizer.names):
        raise DataError(
            f"the source has neither states nor latents of {model.origin} to go on from; it has "
            f"{', '.join(map(str, ds.data_vars))}"
        )
    ds = ds.drop_vars("latents", errors="ignore")
    check_grid(ds.isel(member=0, drop=True), model.config)
    parts = []
    for member in range(ds.sizes["member"]):  # few states at a time in memory
        for hour in range(0, len(times), batch):
            part = ds.isel(member=member, time=slice(hour, hour + batch), drop=True)
            x = model.standardizer.to_tensor(part)
            parts.append(model.encode(x.to(model.device)).cpu())
    return torch.cat(parts).unflatten(0, (ds.sizes["member"], len(times))), times


@torch.no_grad()
def past_residuals(model: Model, source: Any, z: Tensor, hours: int = PAST_HOURS) -> Tensor | None:
    r"""What the decoder lacks of the states a forecast starts from, :math:`x - D_\psi(z)`.

    Arguments:
        model: The model.
        source: The ensemble or the states that :func:`past_latents` took `z` from.
        z: The latents, with shape :math:`(M, K, c, h, w)`.
        hours: The number of hours to look at, of the last.

    Returns:
        Standardized residuals, with shape :math:`(M, P, C, H, W)`, or :py:`None` where the source
        does not have all of the model's variables and levels.
    """
    ds = open_analysis(source) if isinstance(source, str | Path) else source
    ds = in_order(_with(ds, "time"))
    states, count = model.standardizer, min(hours, z.shape[1])
    if states is None or not all(name in ds for name in states.names):
        return None
    if "level" in ds and not set(states.levels) <= set(ds["level"].values.tolist()):
        return None
    ds = ds.drop_vars("latents", errors="ignore").isel(time=slice(ds.sizes["time"] - count, None))
    ds = _with(ds, "member")
    parts = []
    for member in range(len(z)):
        x = states.to_tensor(ds.isel(member=member, drop=True))
        parts.append(x - model.decode(z[member, -count:].to(model.device)).cpu())
    return torch.stack(parts)


def in_order(source: xr.Dataset) -> xr.Dataset:
    r"""A dataset whose hours follow one another, as files that were put together may not; refuses
    hours that it has more than once."""
    times = as_datetime64(source["time"].values)
    if (np.diff(times) > np.timedelta64(0)).all():
        return source
    order = np.argsort(times, kind="stable")
    again = np.flatnonzero(np.diff(times[order]) == np.timedelta64(0))
    if len(again):
        hour = times[order][again[0]].astype("datetime64[h]")
        raise DataError(
            f"the source has the hour {hour} more than once, and it cannot be told which to go on "
            "from; keep one of each: xarray's drop_duplicates('time')"
        )
    return source.isel(time=order)


def until(source: xr.Dataset, at: Any = None) -> xr.Dataset:
    r"""A dataset up to an hour, by default all of it."""
    if at is None or "time" not in source.dims:
        return source
    source = in_order(source)
    times, last = source["time"].values, as_datetime64(at)
    found = np.flatnonzero(as_datetime64(times) == last)
    if not len(found):
        first, end = (t.astype("datetime64[h]") for t in times[[0, -1]])
        raise DataError(f"there is no hour {at} to go on from: the source has {first} to {end}")
    return source.isel(time=slice(0, int(found[0]) + 1))


def last_hour(ensemble: str | Path, out: str | Path) -> Path:
    r"""Writes the last hour of a reanalysis as what it is, a filter's."""
    import xarray as xr
    from dask.config import set as set_options

    out = Path(os.path.abspath(out))
    if out.exists():
        raise StoreError(f"{out} exists already; remove it or choose another name")
    partial = out.with_name(f".{out.name}.partial")
    engine = "netcdf4" if Path(ensemble).suffix == ".nc" else "zarr"
    try:
        with xr.open_dataset(ensemble, chunks={}, engine=engine) as ds:
            ds = ds.isel(time=[-1]).assign_attrs(task="filter", title="filter of the atmosphere")
            ds.attrs.pop("fit", None)  # it is that of all hours
            for var in ds.variables.values():
                if share := var.attrs.pop("negative_share", None):  # it is that of all hours
                    var.attrs["comment"] = var.attrs["comment"].replace(
                        f", {100 * share:.3g} % of all,", ""
                    )
                kept = ("units", "calendar", "_FillValue", "dtype")
                var.encoding = {k: v for k, v in var.encoding.items() if k in kept}
            with set_options(scheduler="synchronous"), quiet():
                if out.suffix == ".nc":
                    ds.to_netcdf(partial)
                else:
                    ds.to_zarr(partial, zarr_format=3, consolidated=True)
        os.replace(partial, out)
    except OSError as error:
        raise StoreError(f"cannot write {out} ({error}); choose another place") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        partial.unlink(missing_ok=True)
    return out


def _with(ds: xr.Dataset, dim: str) -> xr.Dataset:
    from ..evaluation.partition import with_dimension

    return with_dimension(ds, dim)
