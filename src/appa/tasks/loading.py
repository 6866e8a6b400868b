r"""Models read from their folders: bundled ones by name, others by path."""

from __future__ import annotations

import warnings
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from ..config import Config
from ..diffusion.denoiser import Denoiser
from ..errors import nearest
from ..machine import find_device
from ..nn.autoencoder import Autoencoder
from ..observations.representation import FILE as REPRESENTATION
from ..observations.representation import Representation
from .building import build_autoencoder, build_denoiser
from .folders import (
    AUTOENCODER,
    CONFIG,
    DENOISER,
    ModelError,
    digest,
    fit,
    made_by,
    read_config,
    read_statistics,
    read_weights,
    some,
)
from .model import Model

__all__ = ["bundled", "find", "load", "load_autoencoder"]


def load(name_or_folder: str | Path, device: str | torch.device | None = None) -> Model:
    r"""Loads a model.

    Arguments:
        name_or_folder: A bundled model, a folder that training wrote, or an imported model.
        device: Where its networks go, by default the CPU.

    Example:
        >>> model = load("planet")
    """
    folder = find(name_or_folder)
    place = None if device is None else find_device(device)
    config, autoencoder = load_autoencoder(folder)
    denoiser, mean, std = None, None, None
    if (folder / DENOISER).exists():
        _check_made_by(folder, autoencoder)
        denoiser, mean, std = _load_denoiser(folder, config)
    statistics = read_statistics(folder, config)
    path, rep = folder / REPRESENTATION, None
    if path.exists():
        rep = Representation.load(path)
        _check_estimated_of(path, rep, autoencoder)
    model = Model(config, autoencoder, denoiser, mean, std, statistics, str(name_or_folder), rep)
    return model if place is None else model.to(place)


def load_autoencoder(folder: Path) -> tuple[Config, Autoencoder]:
    r"""The configuration and the autoencoder of a model folder, whose normals a
    :class:`appa.tasks.model.Model` gives it."""
    config = read_config(folder)
    weights = read_weights(folder / AUTOENCODER)
    autoencoder = build_autoencoder(config)
    fit(autoencoder, weights, folder / AUTOENCODER)
    return config, autoencoder


def _check_made_by(folder: Path, autoencoder: Autoencoder) -> None:
    r"""Raises where the denoiser says that it knows the latents of another autoencoder."""
    path, found = folder / DENOISER, made_by(folder / DENOISER)
    if found is not None and found != (here := digest(autoencoder.state_dict())):
        raise ModelError(
            f"{path} was trained on latents of the autoencoder {found[:12]}, but {AUTOENCODER} "
            f"beside it is {here[:12]}: another one, or trained further since. Copy the whole "
            "model folder again; or move the denoiser away, encode again and train it anew"
        )


def _check_estimated_of(path: Path, rep: Representation, autoencoder: Autoencoder) -> None:
    r"""Warns where a representation error says that it is another autoencoder's. It is no error,
    or there would be no model to estimate it anew of."""
    found = rep.autoencoder
    if found is not None and found != (here := digest(autoencoder.state_dict())):
        warnings.warn(
            f"{path} is stale: it was estimated of the autoencoder {found[:12]}, but {AUTOENCODER} "
            f"beside it is {here[:12]}, and the spread of analyses will be wrong; make it anew "
            f"with: appa representation {path.parent} --data STORE",
            stacklevel=3,
        )


def _load_denoiser(folder: Path, config: Config) -> tuple[Denoiser, Tensor, Tensor]:
    path = folder / DENOISER
    tensors = read_weights(path)
    latents = {name: tensors.pop(f"latents.{name}", None) for name in ("mean", "std")}
    channels = config.latent_shape[0]
    for name, tensor in latents.items():
        if tensor is None or tensor.shape != (channels,):
            found = "none" if tensor is None else f"shape {tuple(tensor.shape)}"
            raise ModelError(
                f"{path}: found {found} for latents.{name}, expected {channels} numbers; it is no "
                f"denoiser of this model: copy the whole model folder again"
            )
    denoiser = build_denoiser(config)
    fit(denoiser, {name.removeprefix("denoiser."): t for name, t in tensors.items()}, path)
    return denoiser, latents["mean"], latents["std"]  # type: ignore[return-value]


def bundled() -> dict[str, Path]:
    r"""The models that come with the package, by name."""
    root = Path(str(resources.files("appa"))) / "models"
    folders = sorted(root.iterdir()) if root.is_dir() else []
    return {folder.name: folder for folder in folders if (folder / CONFIG).is_file()}


def find(name_or_folder: str | Path) -> Path:
    r"""The folder of a model, by the name of a bundled one or by its path."""
    models, name, folder = bundled(), str(name_or_folder), Path(name_or_folder).expanduser()
    if name in models:
        return models[name]
    if any(folder.glob("latents/*/ae")) and not (folder / AUTOENCODER).exists():
        raise ModelError(
            f"{folder} is a run in the layout of the authors' checkpoints; convert it with: appa "
            f"import-official {folder} OUT"
        )
    if (folder / CONFIG).is_file():
        return folder
    if folder.is_dir():
        names = sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))
        raise ModelError(
            f"{folder} is no model folder: it has no {CONFIG}, and holds {some(names) or 'nothing'}"
        )
    known = f"{nearest(name, models)}" if models else "; no models are bundled"
    raise ModelError(f"there is no model folder {folder}, and no bundled model {name!r}{known}")
