r"""The authors' tensors: read from pickles, and given our names.

Every tensor is accounted for: it becomes a weight of ours, or it is a constant that ours computes
and must have that value, or it is an error that names it. A `.pth` file is a pickle, which may hold
code: only tensors are ever read from one, and a file that asks for more is refused.
"""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from ..tasks.folders import ModelError, missing, some

__all__ = ["autoencoder_names", "convert", "denoiser_names", "read_tensors"]

# what weights may be, and arithmetic is for: float8 has none, nor a scale
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
REAL = (*FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)

Tensors = dict[str, Tensor]
Names = tuple[dict[str, str], Tensors]


def read_tensors(path: Path) -> Tensors:
    r"""The tensors of a pickled state dict. Nothing else is unpickled, and no code is run."""
    if not path.is_file():
        raise ModelError(f"{missing(path)}; copy the whole run again")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles of other protocols, refused anyway
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        code = re.search(r"(?:GLOBAL|global:?) ([\w.]+)", str(error))
        asks = f"asks to call {code[1]}" if code else "holds something else"
        raise ModelError(
            f"{path} is no file of tensors: it {asks}. Nothing of it was executed. Weights hold "
            "tensors only: get the file anew from its authors, or save its state_dict()"
        ) from None
    except Exception as error:  # of any kind: garbled bytes are read as anything
        cause = (str(error) or type(error).__name__).splitlines()[0].split(". ")[0]
        raise ModelError(
            f"{path} cannot be read ({cause}): its {path.stat().st_size:,} bytes are cut short or "
            "no file of tensors; copy it again"
        ) from None
    if not isinstance(tensors, Mapping) or not all(isinstance(t, Tensor) for t in tensors.values()):
        raise ModelError(
            f"{path} holds {type(tensors).__name__}, expected tensors by name; "
            "is it the right file?"
        )
    for name, tensor in tensors.items():
        if fault := _fault(name, tensor):
            raise ModelError(
                f"{path}: {fault}, expected real numbers by name; get the file anew from its "
                "authors, or save its state_dict()"
            )
    return dict(tensors)


def _fault(name: object, tensor: Tensor) -> str | None:
    r"""What is wrong with a tensor that is no weight of any network here, if anything."""
    if not isinstance(name, str):
        return f"a tensor is named {name!r}"
    if tensor.is_meta:
        return f"{name} has a shape and no values"
    if tensor.layout != torch.strided:
        return f"{name} is sparse"
    if tensor.dtype not in REAL:
        return f"{name} holds {tensor.dtype}".replace("torch.", "")
    return None


def autoencoder_names(blocks: Sequence[int], decoder_blocks: Sequence[int]) -> Names:
    r"""Our modules by theirs, and their constants by name; decoder blocks are finest first."""
    names, constants, last = {}, {}, len(blocks) - 1

    def block(theirs: str, ours: str) -> None:
        names[f"{theirs}.ffn.0"], names[f"{theirs}.ffn.3"] = f"{ours}.conv1", f"{ours}.conv2"
        constants[f"{theirs}.norm.eps"] = torch.tensor(1e-5)

    for k, n in enumerate(blocks):
        down = "" if k == 0 else ".1"  # after space-to-depth
        names[f"encoder.descent.{k}.0{down}"] = f"encoder.levels.{k}.conv"
        for j in range(n):
            block(f"encoder.descent.{k}.{j + 1}", f"encoder.levels.{k}.blocks.{j}")
    names[f"encoder.descent.{last}.{blocks[-1] + 1}"] = "encoder.conv"

    names["decoder.ascent.0.0"] = "decoder.conv"
    for k, n in enumerate(reversed(decoder_blocks)):
        start = 1 if k == 0 else 0
        for j in range(n):
            block(f"decoder.ascent.{k}.{start + j}", f"decoder.levels.{k}.blocks.{j}")
        up = "" if k == last else ".0"  # before depth-to-space
        names[f"decoder.ascent.{k}.{start + n}{up}"] = f"decoder.levels.{k}.conv"
    return names, constants


def denoiser_names(blocks: int, width: int, modulation: int) -> Names:
    r"""Our modules by theirs, and their constants by name."""
    names = {
        "in_proj": "backbone.embed",
        "out_proj": "backbone.project",
        "positional_embedding.2": "backbone.place",
    }
    for k in range(blocks):
        theirs, ours = f"blocks.{k}", f"backbone.blocks.{k}"
        names[theirs] = f"{ours}.attention.rotation"  # its theta
        names[f"{theirs}.ada_zero.0"] = f"{ours}.modulation.0"
        names[f"{theirs}.ada_zero.2"] = f"{ours}.modulation.2"
        names[f"{theirs}.msa.qkv_proj"] = f"{ours}.attention.qkv"
        names[f"{theirs}.msa.y_proj"] = f"{ours}.attention.out"
        names[f"{theirs}.ffn.0"] = f"{ours}.mlp.0"
        names[f"{theirs}.ffn.3"] = f"{ours}.mlp.2"
    frequencies = {
        "positional_embedding.0.freqs": width,
        "diffusion_time_encoder.freqs": modulation,
    }
    constants = {
        name: 100 ** -torch.linspace(0, 1, features // 2) for name, features in frequencies.items()
    }
    return names, constants


def convert(
    path: Path,
    tensors: Tensors,
    names: Mapping[str, str],
    constants: Mapping[str, Tensor],
    network: nn.Module,
) -> Tensors:
    r"""Their tensors under our names.

    Arguments:
        path: The file, for messages.
        tensors: Their tensors.
        names: Our modules by theirs.
        constants: What those that are no weights must be.
        network: Our network, of which names and shapes are looked at.
    """
    expected = {name: tuple(t.shape) for name, t in network.state_dict().items()}
    inverse = {ours: theirs for theirs, ours in names.items()}
    found, faults = {}, []
    for name, tensor in tensors.items():
        module, _, leaf = name.rpartition(".")
        if name in constants:
            value = constants[name]
            if tensor.shape != value.shape or not torch.allclose(tensor.float(), value, rtol=1e-4):
                faults.append(f"{name} is not the published constant")
        elif (ours := f"{names.get(module, '')}.{leaf}") not in expected:
            faults.append(f"{name} is not known")
        elif tuple(tensor.shape) != expected[ours]:
            faults.append(f"{name} has shape {tuple(tensor.shape)}, not {expected[ours]}")
        elif not tensor.isfinite().all():
            faults.append(f"{name} is not finite")
        else:
            found[ours] = tensor
    present = set(tensors)
    for ours in expected:
        module, _, leaf = ours.rpartition(".")
        if f"{inverse[module]}.{leaf}" not in present:
            faults.append(f"{inverse[module]}.{leaf} is missing")
    faults += [f"{name} is missing" for name in constants if name not in present]
    if faults:
        raise ModelError(
            f"{path} does not fit the configuration beside it: {some(faults, '; ')}. Copy the "
            "whole run again, and check that the files are of one model"
        )
    return found
