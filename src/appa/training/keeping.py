r"""What a run folder holds already, and a training in it must not destroy.

A folder may hold more than the network that is trained: a denoiser, which knows the latents of one
autoencoder and of no other; values of the configuration that were set after the training began;
weights that no checkpoint stands for. A training writes over none of these: it keeps what it does
not depend on, and refuses what it would ruin.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from ..config import Config
from ..tasks.folders import (
    AUTOENCODER,
    CONFIG,
    DENOISER,
    ModelError,
    digest,
    made_by,
    read_config,
    read_weights,
    write_config,
)
from .checkpoints import Checkpoints
from .options import TrainingError, merged, others

__all__ = ["checkpoints", "held", "keep_apart", "keep_config", "keep_weights", "networks"]

# what a denoiser is made of, beside the latents it knows
BUILT = ("window", "denoiser", "schedule")


def checkpoints(folder: str | Path, name: str) -> Checkpoints:
    r"""The checkpoints of a network in a run folder."""
    return Checkpoints(Path(folder) / "training" / name / "checkpoints")


def networks(folder: str | Path) -> bool:
    r"""Whether a run folder has a network, or the beginnings of one."""
    folder = Path(folder)
    if any((folder / name).exists() for name in (AUTOENCODER, DENOISER)):
        return True
    return any(checkpoints(folder, name).steps() for name in ("autoencoder", "denoiser"))


# ---------------------------------------------------------------- weights


def keep_weights(folder: str | Path, name: str) -> None:
    r"""Raises where a training that begins would write over weights.

    Arguments:
        folder: The run folder.
        name: The network, `autoencoder` or `denoiser`.
    """
    file = Path(folder) / f"{name}.safetensors"
    if file.exists() and not checkpoints(folder, name).steps():
        raise TrainingError(
            f"{folder} has {file.name}, but no checkpoint to go on from: it would be overwritten; "
            f"choose another folder, and give it these weights to begin with: --init {folder}"
        )


def held(path: Path) -> tuple[str | None, str] | None:
    r"""The autoencoder that weights say they belong to, and their own :func:`digest`; nothing where
    there are none, or, with a warning, where they cannot be read."""
    if not path.exists():
        return None
    try:
        return made_by(path), digest(read_weights(path))
    except ModelError as error:
        warnings.warn(f"{error}; the checkpoint has them: written again", stacklevel=2)
        return None


def keep_apart(folder: str | Path, now: str | None, then: str, goes_on: bool) -> None:
    r"""Raises where a denoiser would lose the autoencoder whose latents it knows.

    Arguments:
        folder: The run folder.
        now: The digest of the autoencoder there, if there is one that can be read.
        then: The digest of the autoencoder that its checkpoint holds.
        goes_on: Whether it is trained further.
    """
    file = Path(folder) / DENOISER
    owner = made_by(file) if file.exists() else None
    if owner is None or owner not in (now, then):
        return
    if goes_on:
        why = "which further training would make useless"
    elif owner == now != then:
        why = f"which {AUTOENCODER} as its checkpoint has it would make useless"
    else:
        return
    raise TrainingError(
        f"{folder} has a denoiser of this autoencoder, {why}: it knows the latents of no other. "
        f"Copy the folder, and train the copy without it: cp -r {folder} COPY && rm -r "
        f"COPY/{DENOISER} COPY/training/denoiser, then the same command with --out COPY"
    )


# ---------------------------------------------------------------- configuration


def keep_config(
    folder: str | Path, config: Config, name: str, *, write: bool = True
) -> dict[str, tuple[Any, Any]]:
    r"""Writes the configuration of a training to its run folder. Where that has networks and a
    configuration, sections that this training does not depend on stay as they are.

    Arguments:
        folder: The run folder.
        config: The configuration given.
        name: The network, `autoencoder` or `denoiser`.
        write: Whether to write it, or to look only.

    Returns:
        Values that stay, and those that were given, by their key.
    """
    folder = Path(folder)
    if not (folder / CONFIG).is_file() or not networks(folder):
        if write:
            write_config(folder, config)
        return {}
    kept = read_config(folder)
    stay = others(kept, config, name)
    built = {key: pair for key, pair in stay.items() if key.split(".")[0] in BUILT}
    if built and (folder / DENOISER).exists():
        lines = "".join(f"\n  {key}: is {a}, given is {b}" for key, (a, b) in built.items())
        raise TrainingError(
            f"{folder} has a denoiser, and its {CONFIG} other values than those given:{lines}\n"
            f"give the run's own configuration, {folder / CONFIG}, or choose another folder"
        )
    now = merged(kept, config, name)
    if write and now != kept:
        write_config(folder, now)
    return stay
