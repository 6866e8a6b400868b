r"""What is installed here: versions, devices, bundled data, presets."""

from __future__ import annotations

import os
import platform
from importlib import metadata, resources

__all__ = ["collect"]

CORE = ("numpy", "xarray", "zarr", "dask", "netCDF4", "pandas", "torch")
OPTIONAL = {"jcm": "planet", "matplotlib": "plots", "cmocean": "plots", "gcsfs": "era5"}


def version(package: str) -> str | None:
    r"""The version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def collect() -> dict[str, dict[str, str]]:
    r"""Gathers what a report of a problem should hold.

    Returns:
        Sections, each of names and values: `versions`, `devices`, `bundled data`, `presets`.
    """

    versions = {
        "appa": version("appa-assimilation") or "not installed",
        "python": f"{platform.python_version()}, {platform.system()} {platform.machine()}",
    }
    versions |= {name: version(name) or "missing; install Appa again" for name in CORE}
    for name, extra in OPTIONAL.items():
        hint = f"not installed; pip install 'appa-assimilation[{extra}]'"
        versions[name] = version(name) or hint

    return {
        "versions": versions,
        "devices": devices(),
        "bundled data": bundled(),
        "presets": presets(),
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


def presets() -> dict[str, str]:
    names = (item.name for item in resources.files("appa.presets").iterdir())
    found = sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))
    return {name: f"appa config show {name}" for name in found}
