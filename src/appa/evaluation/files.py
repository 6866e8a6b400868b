r"""Scores as files: all of them in NetCDF, the figures to quote in JSON."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import xarray as xr

from .. import costs
from ..config import Config
from ..data import netcdf
from ..errors import StoreError

__all__ = ["KIND", "about", "load_scores", "load_summary", "save_scores"]

KIND = netcdf.Kind("scores", "scores", "make them with: appa score autoencoder, appa score prior")


def about(config: Config) -> dict[str, float]:
    r"""What a model weighs, to stand beside its scores."""
    return {
        "compression": config.compression,
        "autoencoder_parameters": costs.autoencoder_parameters(config),
        "denoiser_parameters": costs.denoiser_parameters(config),
        "encoder_gflop": costs.encoder_flops(config) / 1e9,
        "decoder_gflop": costs.decoder_flops(config) / 1e9,
        "denoiser_gflop": costs.denoiser_flops(config) / 1e9,
        "window": config.window,
    }


def save_scores(
    scores: xr.Dataset, summary: dict[str, Any], folder: str | Path, name: str
) -> tuple[Path, Path]:
    r"""Writes `name.nc` and `name.json` to a folder; values that are not known become null."""
    path = Path(folder) / f"{name}.nc"
    scores = scores.copy()
    for variable in scores.data_vars.values():
        if variable.dtype.kind == "f" and variable.ndim:
            variable.encoding = {"zlib": True, "complevel": 4}
    netcdf.save(scores, path, KIND)
    told = path.with_suffix(".json")
    partial = told.with_name(f".{told.name}.partial")
    text = json.dumps(_plain(summary), indent=1, allow_nan=False) + "\n"
    try:
        partial.write_text(text)
        partial.replace(told)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise StoreError(f"cannot write {str(told)!r} ({error}); choose another folder") from error
    return path, told


def load_scores(folder: str | Path, name: str) -> xr.Dataset:
    r"""Reads scores back."""
    return netcdf.load(Path(folder) / f"{name}.nc", KIND)


def load_summary(folder: str | Path, name: str) -> dict[str, Any]:
    r"""Reads the figures to quote back."""
    return json.loads((Path(folder) / f"{name}.json").read_text())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
