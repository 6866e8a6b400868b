r"""What is installed here: versions, devices, bundled data and models, presets."""

from __future__ import annotations

import os
import platform
from importlib import metadata, resources

__all__ = ["collect"]

CORE = (
    "numpy",
    "xarray",
    "zarr",
    "dask",
    "netCDF4",
    "pandas",
    "pyarrow",
    "torch",
    "azula",
    "safetensors",
    "sgp4",
)
OPTIONAL = {
    "jcm": "planet",
    "matplotlib": "plots",
    "cmocean": "plots",
    "gcsfs": "era5",
    "heavyball": "train",
    "submitit": "train",
    "ducc0": "evaluation",
}


def installed(package: str) -> str | None:
    r"""The version of another package, where it is installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def collect() -> dict[str, dict[str, str]]:
    r"""Gathers what a report of a problem should hold.

    Returns:
        Sections, each of names and values: `versions`, `devices`, `bundled data`, `bundled models`,
        `presets`.
    """

    from . import __version__
    from .config import presets

    versions = {
        "appa": __version__,
        "python": f"{platform.python_version()}, {platform.system()} {platform.machine()}",
    }
    versions |= {name: installed(name) or "missing; install Appa again" for name in CORE}
    for name, extra in OPTIONAL.items():
        hint = f"not installed; pip install 'appa-assimilation[{extra}]'"
        versions[name] = installed(name) or hint

    return {
        "versions": versions,
        "devices": devices(),
        "bundled data": bundled(),
        "bundled models": models(),
        "presets": {name: f"appa config show {name}" for name in presets()},
    }


def devices() -> dict[str, str]:
    import torch

    found = {"cpu": f"{os.cpu_count()} cores, {torch.get_num_threads()} threads used by torch"}
    for k in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(k)
        found[f"cuda:{k}"] = f"{card.name}, {card.total_memory / 2**30:.0f} GiB"
    if torch.backends.mps.is_available():
        found["mps"] = "Apple GPU"
    return found


def bundled() -> dict[str, str]:
    from .data.stores import open_store

    folder = resources.files("appa.data.bundled")
    size = sum(
        len(item.read_bytes())
        for item in folder.iterdir()
        if item.is_file() and not item.name.endswith(".py")
    )
    ds = open_store("planet")
    time = ds["time"].values.astype("datetime64[h]")
    channels = sum(v.sizes.get("level", 1) for v in ds.data_vars.values() if "time" in v.dims)
    return {
        "planet": f"{time[0]} to {time[-1]}, {len(time)} hours, {channels} channels, "
        f"{ds.sizes['latitude']}×{ds.sizes['longitude']}, {size / 1e6:.1f} MB packed",
    }


def models() -> dict[str, str]:
    from .errors import AppaError
    from .tasks.folders import DENOISER, read_config
    from .tasks.loading import bundled

    found = {}
    for name, folder in bundled().items():
        try:
            config = read_config(folder)
        except AppaError as error:  # a report of a problem should not end with it
            found[name] = str(error)
            continue
        state, latent = (" × ".join(map(str, s)) for s in (config.state_shape, config.latent_shape))
        windows = f"windows of {config.window} h" if (folder / DENOISER).exists() else "no denoiser"
        size = sum(item.stat().st_size for item in folder.rglob("*") if item.is_file())
        found[name] = f"states {state}, latents {latent}, {windows}, {size / 1e6:.1f} MB"
    return found or {"none": "docs/training.md tells how to train one"}
