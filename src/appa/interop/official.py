r"""The authors' published checkpoints, converted into a model folder.

.. code-block:: text

    RUN/latents/DUMP/ae/{config.yaml, model.pth}                        the autoencoder
    RUN/latents/DUMP/stats.pth                                          mean and std of its latents
    RUN/latents/DUMP/denoisers/NAME/LAP/{config.yaml, model_last.pth}   a denoiser of them

Their settings become a configuration of ours; what they do not tell (splits, training) is that of
the preset `era5-0.25deg`, and they are drawn as any model is. Tensors are the matter of
:mod:`appa.interop.tensors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import yaml
from torch import Tensor

from ..config import Config, load_config, parse_config
from ..data.states import Standardizer
from ..data.variables import ATMOSPHERIC, LEVELS, SURFACE, channels
from ..errors import nearest
from ..sections import Sampling
from ..tasks.building import build_autoencoder, build_denoiser
from ..tasks.folders import (
    AUTOENCODER,
    DENOISER,
    ModelError,
    load_statistics,
    missing,
    some,
    whole,
    write_config,
    write_statistics,
    write_weights,
)
from .tensors import autoencoder_names, convert, denoiser_names, read_tensors

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["import_official"]

BASE = "era5-0.25deg"  # what the authors' files do not tell: splits, training
CHECKPOINTS = ("model_last", "model_best")

# What our networks are, and other values of the authors' settings are not.
AUTOENCODER_IS = {
    "patch_size": [1, 1],
    "pixel_shuffle": True,
    "ffn_factor": 1,
    "saturation": "softclip2",
}
BACKBONE_IS = {
    "arch": "vit",
    "ffn_factor": 4,
    "qk_norm": True,
    "rope": True,
    "window_size": None,
}
TRAINING_IS = {
    "noise_schedule": "rectified",
    "blanket_dt": 1,
    "standardize": True,
    "inject_ae_noise": True,
}
SATURATION = 5.0  # softclip2
# at most of a level, and of channels, hours or a grid: forty times theirs and more
BLOCKS, SIZES = 2**10, 2**16

Tensors = dict[str, Tensor]


class Files(NamedTuple):
    r"""Where the tensors of a model are; settings are in a `config.yaml` beside them."""

    autoencoder: Path
    statistics: Path
    denoiser: Path


def import_official(
    run: str | Path,
    out: str | Path,
    *,
    dump: str | None = None,
    denoiser: str | None = None,
    lap: str | None = None,
    which: str = "model_last",
    statistics: str | Path | None = None,
) -> Path:
    r"""Converts a checkpoint of the authors into a model folder.

    Arguments:
        run: The authors' run.
        out: The folder to write, which must not exist yet.
        dump: The latent dump, where the run has several.
        denoiser: The name of the denoiser, where the dump has several.
        lap: The lap of its training, where there are several.
        which: The weights, `"model_last"` or `"model_best"`.
        statistics: Statistics of the states: the authors' Zarr store, or a file of
            `appa data statistics`. They also name the channels where their number is not that of
            the published model. Without them the model has standardized states only.

    Returns:
        The folder.

    Example:
        >>> import_official("appa-run", "appa-official", statistics="stats_era5.zarr")
        >>> model = appa.load("appa-official")
    """
    files = _locate(Path(run), dump, denoiser, lap, which)
    weights, latents = read_tensors(files.autoencoder), read_tensors(files.statistics)
    stats = None if statistics is None else load_statistics(statistics)
    config = _config(files, weights, stats)
    if stats is not None:
        stats = _select(config, stats, statistics)
    _check_latents(files.statistics, latents, config.latent_shape[0])

    with torch.device("meta"):  # names and shapes, no memory
        autoencoder_, denoiser_ = build_autoencoder(config), build_denoiser(config)
    ae, vit = config.autoencoder, config.denoiser
    names = autoencoder_names(ae.blocks, ae.decoder_blocks)
    weights = convert(files.autoencoder, weights, *names, autoencoder_)
    names = denoiser_names(vit.blocks, vit.width, vit.modulation)
    others = convert(files.denoiser, read_tensors(files.denoiser), *names, denoiser_)

    with whole(out) as folder:
        write_config(folder, config)
        write_weights(folder / AUTOENCODER, weights)
        write_weights(
            folder / DENOISER,
            {f"denoiser.{name}": tensor for name, tensor in others.items()}
            | {f"latents.{name}": latents[name] for name in ("mean", "std")},
        )
        if stats is not None:
            write_statistics(folder, stats)
    return Path(out)


# ---------------------------------------------------------------- which files


def _locate(
    run: Path, dump: str | None, denoiser: str | None, lap: str | None, which: str
) -> Files:
    if which not in CHECKPOINTS:
        raise ModelError(f"found {which!r}, expected weights{nearest(which, CHECKPOINTS)}")
    root = _choose(run / "latents", dump, "dump", "latent dumps")
    name = _choose(root / "denoisers", denoiser, "denoiser", "denoisers")
    folder = _choose(name, lap, "lap", "laps")
    return Files(root / "ae" / "model.pth", root / "stats.pth", folder / f"{which}.pth")


def _choose(folder: Path, name: str | None, option: str, words: str) -> Path:
    r"""The folder of that name, or the only one there is."""
    if not folder.is_dir():
        raise ModelError(f"{missing(folder)}; expected RUN/latents/DUMP/denoisers/NAME/LAP")
    found = sorted(p.name for p in folder.iterdir() if p.is_dir() and p.name[0] != ".")
    if name is None and len(found) == 1:
        return folder / found[0]
    if name is not None and name in found:
        return folder / name
    if not found:
        raise ModelError(f"{folder} holds no {words}; copy the whole run again")
    if name is None:
        raise ModelError(
            f"{folder} holds {len(found)} {words}: {', '.join(found)}; choose one with "
            f"--{option}, e.g. --{option} {found[0]}"
        )
    raise ModelError(f"{folder} holds no {name!r}{nearest(name, found)}")


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ModelError(f"{missing(path)}; copy the whole run again")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise ModelError(f"{path} is not YAML ({error}); copy it again") from None
    if not isinstance(values, dict):
        raise ModelError(f"{path} holds no settings, but {type(values).__name__}; copy it again")
    return values


# ---------------------------------------------------------------- configuration


class Settings:
    r"""A section of the authors' settings.

    Arguments:
        path: The file.
        values: What it holds.
        name: The section.
        expected: What the section has in the published models, and ours cannot have otherwise.
    """

    def __init__(
        self, path: Path, values: Mapping[str, Any], name: str, expected: Mapping[str, Any]
    ):
        section = values.get(name)
        if not isinstance(section, Mapping):
            raise ModelError(f"{path} has no section {name!r}{nearest(name, map(str, values))}")
        self.path, self.name, self.values = path, name, section
        for key, value in expected.items():
            if self.values.get(key, value) != value:
                raise self.wrong(key, repr(value))

    def __getitem__(self, key: str) -> Any:
        if key not in self.values:
            raise ModelError(
                f"{self.path}: {self.name} lacks {key!r}{nearest(key, map(str, self.values))}"
            )
        found = self.values[key]
        # else no network could be made of them, not even to compare its shapes
        most = BLOCKS if key == "hid_blocks" else SIZES
        several = found if isinstance(found, list) else [found]
        if any(type(n) is int and n > most for n in several):
            raise self.wrong(key, f"at most {most:,}")
        return found

    def numbers(self, key: str, length: int | None = None) -> list[int]:
        r"""Whole numbers, so many of them."""
        found = self[key]
        if not isinstance(found, list) or not all(type(n) is int and n > 0 for n in found):
            raise self.wrong(key, "positive whole numbers")
        if not found or len(found) != (length or len(found)):
            raise self.wrong(key, f"{length or 'some'} numbers")
        return found

    def wrong(self, key: str, expected: str) -> ModelError:
        return ModelError(
            f"{self.path}: {self.name}.{key} is {self.values[key]!r}, expected {expected} as in "
            "the published models: this one cannot be converted"
        )


def _config(files: Files, weights: Tensors, stats: xr.Dataset | None) -> Config:
    r"""Our configuration of their networks."""
    path = files.autoencoder.with_name("config.yaml")
    ae = Settings(path, _read_yaml(path), "ae", AUTOENCODER_IS)
    path = files.denoiser.with_name("config.yaml")
    vit = Settings(path, _read_yaml(path), "backbone", BACKBONE_IS)
    train = Settings(path, _read_yaml(path), "train", TRAINING_IS)

    h, w = ae.numbers("shape", 2)
    widths = ae.numbers("hid_channels")
    blocks = ae.numbers("hid_blocks", len(widths))
    if ae["resize"] != 2 ** (len(widths) - 1):
        raise ae.wrong("resize", f"{2 ** (len(widths) - 1)} for {len(widths)} levels")
    patch = vit.numbers("patch_size", 3)
    if patch[1:] != [1, 1]:
        raise vit.wrong("patch_size", "patches of hours, [2, 1, 1]")
    window = train["blanket_size"]
    if type(window) is not int or window < 2:
        raise train.wrong("blanket_size", "hours of a window, a whole number,")

    base = load_config(BASE).model_dump()
    values = base | {
        "data": {
            **_channels(ae, stats),
            "grid": {"kind": "equiangular", "latitudes": h, "longitudes": w},
            "splits": base["data"]["splits"],
        },
        "window": window,
        "autoencoder": {
            "latent_channels": _latent_channels(files, weights, blocks),
            "hidden_channels": widths,
            "blocks": blocks,
            "longitude": "halo",
            "latent_noise": ae["noise_level"],
            "saturation": SATURATION,
        },
        "denoiser": {
            "width": vit["hid_channels"],
            "blocks": vit["hid_blocks"],
            "heads": vit["attention_heads"],
            "modulation": vit["mod_features"],
            "patch": patch[0],
        },
        "schedule": {
            "kind": "rectified",
            "sigma_min": train["sigma_min"],
            "sigma_max": train["sigma_max"],
        },
        "sampling": {"stride": _stride(window), "past": min(Sampling().past, window // 2)},
    }
    return parse_config(values, f"what was made of {ae.path} and {vit.path}")


def _stride(window: int) -> int:
    r"""Half a window, or an hour more where that leaves unlike numbers before and after."""
    half = window // 2
    return half + (window - half) % 2


def _channels(ae: Settings, stats: xr.Dataset | None) -> dict[str, Any]:
    r"""What the channels are: the published ones, those of the statistics, or numbers."""
    count = ae["in_channels"]
    if count == len(channels()):
        names = {"surface": SURFACE, "atmospheric": ATMOSPHERIC, "levels": LEVELS}
        return names | {"source": "arco"}
    if stats is None:
        return {"unnamed": count}
    surface = tuple(name for name in SURFACE if name in stats)
    atmospheric = tuple(name for name in ATMOSPHERIC if name in stats)
    if atmospheric and "level" not in stats.coords:
        raise ModelError(
            f"the statistics have {atmospheric[0]} and others without a coordinate level, so that "
            "nobody knows what their channels are; give the statistics the autoencoder was trained "
            "with, or none"
        )
    levels = tuple(stats["level"].values.tolist()) if atmospheric else ()
    if len(surface) + len(atmospheric) * len(levels) != count:
        raise ModelError(
            f"the statistics have {len(surface)} surface variables and {len(atmospheric)} on "
            f"{len(levels)} levels, {len(surface) + len(atmospheric) * len(levels)} channels, but "
            f"the autoencoder has {count}; give the statistics it was trained with, or none"
        )
    return {"surface": surface, "atmospheric": atmospheric, "levels": levels}


def _latent_channels(files: Files, weights: Tensors, blocks: list[int]) -> int:
    r"""The channels of latents by the tensors, since a published configuration has another."""
    name = f"encoder.descent.{len(blocks) - 1}.{blocks[-1] + 1}.bias"
    if name not in weights:
        raise ModelError(
            f"{files.autoencoder} lacks {name}, which the settings beside it lead to; it has "
            f"{some(list(weights)) or 'no tensor'}: is it the right file?"
        )
    if weights[name].ndim != 1:
        raise ModelError(
            f"{files.autoencoder}: {name} has shape {tuple(weights[name].shape)}, expected one "
            "number for each channel of latents; copy the whole run again"
        )
    return len(weights[name])


def _select(config: Config, stats: xr.Dataset, origin: Any) -> xr.Dataset:
    r"""The statistics of a model's variables and levels, which they must have."""
    Standardizer.from_config(config, stats)
    fields = [str(n) for n, v in stats.data_vars.items() if "statistic" not in v.dims]
    for name in fields:
        if stats[name].shape != config.grid.shape:
            raise ModelError(
                f"{name} in {origin} has shape {stats[name].shape}, but the model's grid is "
                f"{config.grid.shape}; give statistics of this grid"
            )
    names = [*config.data.surface, *config.data.atmospheric]
    stats = stats[[*names, *fields]]
    return stats.sel(level=list(config.data.levels)) if config.data.atmospheric else stats


def _check_latents(path: Path, latents: Tensors, count: int) -> None:
    if set(latents) != {"mean", "std"}:
        raise ModelError(f"{path} holds {some(list(latents)) or 'nothing'}, expected mean and std")
    for name, tensor in latents.items():
        if tensor.shape != (count,):
            raise ModelError(
                f"{path}: {name} has shape {tuple(tensor.shape)}, but latents have {count} "
                "channels; it belongs to another dump"
            )
        if not tensor.isfinite().all() or (name == "std" and (tensor <= 0).any()):
            raise ModelError(f"{path}: {name} is {tensor.tolist()}: it is damaged; copy it again")
