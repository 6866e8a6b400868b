r"""Model folders: what they hold, and how it is read and written.

=========================  ====================================================================
file                       holds
=========================  ====================================================================
`config.yaml`              the whole configuration
`statistics.nc`            mean and deviation of each variable and level, the static fields, where
                           SST is `undefined`, and `normals` where the autoencoder sees departures
                           from them; none for a model without named channels
`autoencoder.safetensors`  the autoencoder's weights
`denoiser.safetensors`     the denoiser's weights, below `denoiser.`, and the mean and deviation
                           of the latents it was trained on, `latents.mean` and `latents.std`
=========================  ====================================================================

The weights say in their metadata which format they are in, and a denoiser's, which autoencoder made
the latents it was trained on. Single or half precision on disk, they are in single precision in
memory. Each file is written aside and renamed: it is whole or not there. A folder in which a
network is being trained is a model folder too, whose denoiser may come later.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ..config import Config, load_config
from ..data import netcdf
from ..data import statistics as state_statistics
from ..data.grids import same_places
from ..data.states import undefined
from ..data.variables import STATIC
from ..errors import AppaError, DataError

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "FORMAT",
    "ModelError",
    "check_grid",
    "digest",
    "fit",
    "gather",
    "load_statistics",
    "made_by",
    "missing",
    "read_config",
    "read_statistics",
    "read_weights",
    "some",
    "whole",
    "write_config",
    "write_statistics",
    "write_weights",
]

FORMAT = 1

CONFIG = "config.yaml"
STATISTICS = "statistics.nc"
AUTOENCODER = "autoencoder.safetensors"
DENOISER = "denoiser.safetensors"

UNDEFINED = "undefined"
NORMALS = "normals"
SEVERAL = 6  # tensors named in a message; more become a number


class ModelError(AppaError):
    r"""A model is missing, damaged, or not one that Appa reads."""


# ---------------------------------------------------------------- configuration


def write_config(folder: str | Path, config: Config) -> Path:
    r"""Writes a model's configuration, every value written out."""
    path = Path(folder) / CONFIG
    with aside(path) as partial:
        partial.write_text(config.to_yaml(), encoding="utf-8")
    return path


def read_config(folder: str | Path) -> Config:
    r"""Reads a model's configuration."""
    path = Path(folder) / CONFIG
    if not path.is_file():
        raise ModelError(f"{missing(path)}; a model folder has a {CONFIG}: is it the right one?")
    return load_config(path)


# ---------------------------------------------------------------- statistics and static fields


def check_grid(store: xr.Dataset, config: Config) -> None:
    r"""Raises unless a store has one state an hour, on the grid of a configuration."""
    if "member" in store.dims:
        raise DataError(
            f"the store has {store.sizes['member']} members; take one, e.g. ds.isel(member=0)"
        )
    grid, shape = config.grid, (store.sizes["latitude"], store.sizes["longitude"])
    if not same_places(store, grid):
        (h, w), kind = grid.shape, grid.kind
        first = ", ".join(f"{x:.2f}°" for x in store["latitude"].values[:2])
        raise DataError(
            f"the store's grid, {shape[0]}×{shape[1]} from latitudes {first} on, is not the "
            f"model's, {kind} {h}×{w}; remap the store: appa data fetch STORE OUT --grid "
            f"{kind}:{h}x{w}"
        )


def gather(stats: xr.Dataset, store: xr.Dataset | None) -> xr.Dataset:
    r"""What a model keeps of the store it is trained on.

    Arguments:
        stats: Mean and standard deviation of each variable and level, as
            :func:`appa.data.statistics.compute` gives them.
        store: The store, as a canonical dataset.

    Returns:
        The statistics, the static fields the store has, and where its SST is undefined, as
        `undefined`, with shape :math:`(H, W)`.
    """
    if store is None:
        return stats
    fields: dict[str, Any] = {name: store[name] for name in STATIC if name in store}
    if "sea_surface_temperature" in stats and (mask := undefined(store)) is not None:
        attrs = {"long_name": "where the sea surface temperature is undefined"}
        fields[UNDEFINED] = (("latitude", "longitude"), mask, attrs)
    coords = {name: store[name].variable for name in ("latitude", "longitude")} if fields else {}
    return stats.assign_coords(coords).assign(
        {
            name: field if isinstance(field, tuple) else field.variable.load()
            for name, field in fields.items()
        }
    )


def write_statistics(folder: str | Path, stats: xr.Dataset) -> Path:
    r"""Writes what :func:`gather` gathered."""
    stats = stats.copy()
    for var in stats.variables.values():
        large = var.ndim > 1 and var.size > 4096
        var.encoding = {"zlib": True, "shuffle": True} if large else {}
    return netcdf.save(stats, Path(folder) / STATISTICS, state_statistics.KIND)


def read_statistics(folder: str | Path, config: Config) -> xr.Dataset | None:
    r"""Reads the statistics and static fields of a model; :py:`None` where it has none.

    Arguments:
        folder: The model folder.
        config: Its configuration, whose grid the fields must have.
    """
    path = Path(folder) / STATISTICS
    if not path.exists():
        return None
    stats = load_statistics(path)
    for name in (*STATIC, UNDEFINED):
        if name in stats and stats[name].shape != config.grid.shape:
            raise ModelError(
                f"{name} in {path} has shape {stats[name].shape}, but the grid of {CONFIG} is "
                f"{config.grid.shape}: the files are of two models; copy the whole folder again"
            )
    return stats


def load_statistics(path: str | Path) -> xr.Dataset:
    r"""Statistics of states, see :func:`appa.data.statistics.load`, with the static fields and
    the mask beside them where the file has these."""
    stats = state_statistics.load(path)
    fields = netcdf.load(path, state_statistics.KIND)
    fields = fields[[name for name in (*STATIC, UNDEFINED, NORMALS) if name in fields]]
    if UNDEFINED in fields:
        fields[UNDEFINED] = fields[UNDEFINED].astype(bool)
    coords = {name: fields[name].variable for name in fields.coords}
    return stats.assign_coords(coords).assign({n: f.variable for n, f in fields.items()})


# ---------------------------------------------------------------- weights


def write_weights(
    path: str | Path,
    tensors: Mapping[str, Tensor],
    half: bool = False,
    autoencoder: str | None = None,
) -> Path:
    r"""Writes tensors to a safetensors file, which replaces the one before it when it is whole.

    Arguments:
        path: The file, e.g. `RUN/autoencoder.safetensors`.
        tensors: The tensors by name, on any device.
        half: Whether weights are stored in half precision. Statistics of latents never are.
        autoencoder: Of a denoiser, the :func:`digest` of the autoencoder that made its latents,
            where it is known.
    """
    metadata = {"format": "pt", "appa": str(FORMAT)}
    if autoencoder is not None:
        metadata["autoencoder"] = autoencoder
    path, stored = Path(path), {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu()
        if tensor.is_floating_point():
            exact = not half or name.startswith("latents.")
            tensor = tensor.to(torch.float32 if exact else torch.float16)
        # no two of a file may share memory
        stored[name] = tensor.clone(memory_format=torch.contiguous_format)
    with aside(path) as partial:
        save_file(stored, partial, metadata=metadata)
    return path


def read_weights(path: str | Path) -> dict[str, Tensor]:
    r"""Reads the tensors of a safetensors file, in single precision."""
    with _opened(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return {k: t.to(torch.float32) if t.is_floating_point() else t for k, t in tensors.items()}


def made_by(path: str | Path) -> str | None:
    r"""The :func:`digest` of the autoencoder whose latents a denoiser was trained on, if its file
    says so: imported ones do not."""
    with _opened(path) as file:
        return (file.metadata() or {}).get("autoencoder")


@contextmanager
def _opened(path: str | Path) -> Iterator[Any]:
    r"""An open safetensors file, in a format that is known."""
    path = Path(path)
    if not path.is_file():
        raise ModelError(f"{missing(path)}; train it, or copy the whole model folder again")
    try:
        with safe_open(path, "pt") as file:
            _check_format(path, (file.metadata() or {}).get("appa", "1"))
            yield file
    except (SafetensorError, OSError, ValueError) as error:
        size = path.stat().st_size
        raise ModelError(
            f"{path} cannot be read as weights ({_first_line(error)}): its {size:,} bytes are cut "
            "short or no safetensors file; copy or write it again"
        ) from None


def fit(module: nn.Module, tensors: Mapping[str, Tensor], path: str | Path) -> None:
    r"""Puts weights into a network, whose tensors must have the same names and shapes.

    Arguments:
        module: The network that a configuration describes.
        tensors: The weights by name.
        path: The file they come from, for messages.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    faults = [f"{name} is missing" for name in expected if name not in found]
    faults += [f"{name} is not known" for name in found if name not in expected]
    faults += [
        f"{name} has shape {found[name]}, not {shape}"
        for name, shape in expected.items()
        if found.get(name, shape) != shape
    ]
    if faults:
        raise ModelError(
            f"{path} does not fit the configuration beside it: {some(faults, '; ')}. Is it the "
            "configuration these weights were trained with? Copy the whole model folder again"
        )
    module.load_state_dict(dict(tensors))


def digest(tensors: Mapping[str, Tensor]) -> str:
    r"""A hash of tensors: of their names, shapes and values in single precision."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().to(torch.float32).contiguous()
        sha.update(f"{name} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.numpy().tobytes())
    return sha.hexdigest()


def _check_format(path: Path, found: str) -> None:
    if not found.isdigit() or int(found) > FORMAT:
        raise ModelError(
            f"{path} is in format {found} of model folders, and this version of Appa reads up to "
            f"{FORMAT}: install a newer one (pip install --upgrade appa-assimilation)"
        )


# ---------------------------------------------------------------- files


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    r"""A name to write to, which becomes `path` if that succeeds and is removed if it does not."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()
        mode = partial.stat().st_mode
        yield partial
        partial.chmod(mode)  # safetensors would keep it from everyone else
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"cannot write {path} ({_first_line(error)}); make room, or choose another folder"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


@contextmanager
def whole(folder: str | Path) -> Iterator[Path]:
    r"""A folder to write to, which becomes `folder` if all of it succeeds.

    The folder must not exist yet, or be empty.
    """
    folder = Path(os.path.abspath(folder))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelError(f"{folder} exists already; remove it or choose another name")
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        yield partial
        os.replace(partial, folder)  # over an empty folder too
    except OSError as error:
        raise ModelError(f"cannot write {folder} ({error}); choose another folder") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def missing(path: Path) -> str:
    r"""That a file is missing, and what there is instead."""
    folder = path.parent
    if not folder.is_dir():
        return f"there is no folder {folder}"
    names = sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))
    return f"there is no {path.name} in {folder}, which holds {some(names) or 'nothing'}"


def some(words: list[str], separator: str = ", ") -> str:
    r"""The first few words, and how many more there are."""
    more = [f"and {len(words) - SEVERAL} more"] if len(words) > SEVERAL else []
    return separator.join([*words[:SEVERAL], *more])


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
