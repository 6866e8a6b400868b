r"""Checkpoints that are written whole or not at all.

A checkpoint is a folder:

.. code-block:: text

    checkpoints/step-00002000/
        tensors.safetensors    every tensor of the state, bit for bit
        state.json             the rest: what is nested in what, numbers, strings
        manifest.json          size and SHA-256 of the two files above

It is built under another name, forced to the disk, and renamed once complete; only then are older
ones removed. Whatever moment a process is killed at, the newest complete checkpoint is intact. A
checkpoint whose files do not agree with its manifest is left out, with a warning, and the one
before it is used. Nothing is pickled: a checkpoint from elsewhere can hold wrong numbers, not code.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..errors import AppaError

__all__ = ["CheckpointError", "Checkpoints", "fsync"]

FORMAT = 1
NAME = re.compile(r"step-(\d{8,})(?:-(\d+))?")
PARTIAL = ".partial"
TENSORS, STATE, MANIFEST = "tensors.safetensors", "state.json", "manifest.json"
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class CheckpointError(AppaError):
    r"""A checkpoint cannot be written, or none can be read."""


class Damaged(Exception):
    r"""Why a checkpoint is not whole."""


class Checkpoints:
    r"""The checkpoints of one training, in one folder.

    A state is made of dictionaries, lists, tuples and sets, nested in any way, of tensors, numbers,
    strings and :py:`None`. It comes back with the same types, values and `dtype`, on the CPU.
    Tensors that share memory come back as separate ones.

    Arguments:
        folder: The folder, which is created with the first checkpoint.
        keep: The number of checkpoints to keep. One more than that needs to fit on the disk.

    Example:
        >>> checkpoints = Checkpoints("run/training/autoencoder/checkpoints")
        >>> checkpoints.save(2000, {"model": model.state_dict(), "epoch": 3})
        >>> step, state = checkpoints.latest()
    """

    def __init__(self, folder: str | Path, keep: int = 2):
        if keep < 1:
            raise CheckpointError(f"at least 1 checkpoint must be kept, found keep={keep}")
        self.folder, self.keep = Path(folder), keep
        self.damaged: set[str] = set()

    def steps(self) -> list[int]:
        r"""The steps there are checkpoints of, in order, whole or damaged."""
        return sorted({step for step, _, _ in self._found()})

    def written(self, step: int) -> float:
        r"""When the newest checkpoint of a step was written, as :func:`time.time` counts."""
        return max(path.stat().st_mtime for found, _, path in self._found() if found == step)

    def save(self, step: int, state: dict[str, Any]) -> Path:
        r"""Writes the state after a number of steps, then removes older checkpoints.

        Returns:
            The folder of the checkpoint.
        """
        if step < 0:
            raise CheckpointError(f"a checkpoint's step must be 0 or more, found {step}")
        tensors: dict[str, Tensor] = {}
        text = json.dumps({"format": FORMAT, "step": step, "state": _flatten(state, "", tensors)})
        partial = self.folder / f"step-{step:08d}-{os.getpid()}{PARTIAL}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._clean()
            partial.mkdir()
            manifest = {
                TENSORS: _write(partial / TENSORS, _serialize(tensors)),
                STATE: _write(partial / STATE, [text.encode()]),
            }
            _write(partial / MANIFEST, [json.dumps({"format": FORMAT, "files": manifest}).encode()])
            fsync(partial)
            # A damaged checkpoint of the same step stays in place until this one is.
            attempts = [attempt for found, attempt, _ in self._found() if found == step]
            again = f"-{max(attempts) + 1}" if attempts else ""
            path = self.folder / f"step-{step:08d}{again}"
            os.rename(partial, path)
            fsync(self.folder)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise self._unwritten(step, error) from error
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self._prune(path)
        return path

    def latest(self) -> tuple[int, dict[str, Any]] | None:
        r"""Reads the newest checkpoint that is whole.

        Returns:
            The number of steps and the state after them, or :py:`None` if there is no checkpoint.
        """
        found = self._found()
        causes = []
        for step, _, path in reversed(found):
            try:
                state = _read(path, step)
            except Damaged as cause:
                self.damaged.add(path.name)
                causes.append(f"{path}: {cause}")
                continue
            for cause in causes:
                warnings.warn(f"checkpoint left out, {cause}; using step {step}", stacklevel=2)
            return step, state
        if found:
            told = "\n  ".join(causes)
            raise CheckpointError(
                f"no checkpoint in {self.folder} is whole:\n  {told}\n"
                "copy one back from elsewhere, or remove the folder to start from step 0"
            )
        return None

    def _found(self) -> list[tuple[int, int, Path]]:
        r"""Step, attempt and path of each checkpoint, oldest first."""
        if not self.folder.is_dir():
            return []
        names = [(NAME.fullmatch(path.name), path) for path in self.folder.iterdir()]
        return sorted((int(m[1]), int(m[2] or 0), path) for m, path in names if m)

    def _prune(self, newest: Path) -> None:
        r"""Removes what is older than the last few, and what is damaged or was overtaken."""
        found = [path for _, _, path in self._found()]
        last = found.index(newest)
        whole = [path for path in found[:last] if path.name not in self.damaged]
        kept = {newest, *whole[max(0, len(whole) - self.keep + 1) :]}
        for path in found:
            if path not in kept:
                # Renamed first: half a checkpoint must not look like a damaged one.
                gone = path.with_name(path.name + PARTIAL)
                try:
                    os.rename(path, gone)
                    shutil.rmtree(gone)
                except OSError as error:
                    warnings.warn(f"{path} cannot be removed: {error}", stacklevel=3)

    def _clean(self) -> None:
        r"""Removes what killed processes left."""
        for path in self.folder.glob(f"step-*{PARTIAL}"):
            shutil.rmtree(path, ignore_errors=True)

    def _unwritten(self, step: int, error: OSError) -> CheckpointError:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        why = f"disk full ({error.strerror})" if full else str(error)
        do = "make room" if full else "mend that"
        last = [n for n, _, path in self._found() if path.name not in self.damaged]
        kept = (
            f"the last checkpoint, at step {last[-1]}, is intact: {do}, and the same command goes "
            "on there"
            if last
            else f"there is no earlier one: {do} and start again"
        )
        return CheckpointError(
            f"{why}: the checkpoint of step {step} cannot be written to {self.folder}; {kept}"
        )


def fsync(path: Path) -> None:
    r"""Forces a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot, for folders: there is no more to be done then.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


# Structure

Plain = bool | int | str | None


def _flatten(x: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    r"""A state as JSON, its tensors by name. Containers are `[kind, content]`."""
    if isinstance(x, Tensor):
        if x.dtype not in DTYPES or x.layout is not torch.strided or x.is_quantized:
            raise TypeError(f"a checkpoint cannot hold the tensor {path}: {x.dtype}, {x.layout}")
        name = f"{len(tensors)}{path}"
        tensors[name] = x
        return ["tensor", name]
    if isinstance(x, dict):
        items = []
        for k, v in x.items():
            if not isinstance(k, Plain):
                raise TypeError(f"a checkpoint cannot hold the key {k!r} in {path or 'the state'}")
            items.append([k, _flatten(v, f"{path}/{k}", tensors)])
        return ["dict", items]
    for kind in (list, tuple, set):
        if isinstance(x, kind):
            items = sorted(x) if kind is set else x
            return [
                kind.__name__,
                [_flatten(v, f"{path}/{i}", tensors) for i, v in enumerate(items)],
            ]
    if isinstance(x, float):
        return float(x) if math.isfinite(x) else ["float", repr(float(x))]
    if isinstance(x, Plain):
        return x
    raise TypeError(
        f"a checkpoint cannot hold {path}, {type(x).__name__} {x!r:.60}: it takes tensors, "
        "numbers, strings, None, and dictionaries, lists, tuples and sets of them"
    )


def _unflatten(x: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(x, list):
        return x
    kind, content = x
    if kind == "tensor":
        return tensors[content]
    if kind == "float":
        return float(content)
    if kind == "dict":
        return {k: _unflatten(v, tensors) for k, v in content}
    return {"list": list, "tuple": tuple, "set": set}[kind](_unflatten(v, tensors) for v in content)


# Files

Chunks = Iterator[bytes | memoryview] | list[bytes]


def _serialize(tensors: dict[str, Tensor]) -> Iterator[bytes | memoryview]:
    r"""The bytes of a safetensors file, a tensor at a time.

    The library's own writer wants every tensor on the CPU at once, and hides what the system says
    about a write that fails.
    """
    header, end = {}, 0
    for name, x in tensors.items():
        start, end = end, end + x.numel() * x.element_size()
        shape = list(x.shape)
        header[name] = {"dtype": DTYPES[x.dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for x in tensors.values():
        if x.numel():
            x = x.detach().to("cpu").resolve_neg().contiguous()
            yield x.reshape(-1).view(torch.uint8).numpy().data


def _write(path: Path, chunks: Chunks) -> dict[str, Any]:
    r"""Writes a file to the disk, and says how long it is and what its bytes sum up to."""
    digest, size = hashlib.sha256(), 0
    with open(path, "wb") as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    return {"size": size, "sha256": digest.hexdigest()}


def _read(path: Path, step: int) -> dict[str, Any]:
    r"""The state in a checkpoint whose files are as they were written."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        files = manifest["files"]
        known = {TENSORS: files[TENSORS], STATE: files[STATE]}
    except FileNotFoundError:
        raise Damaged(f"{MANIFEST} is missing") from None
    except OSError as error:
        raise Damaged(f"{MANIFEST} cannot be read ({error})") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Damaged(f"{MANIFEST} is garbled") from None
    if manifest.get("format") != FORMAT:
        raise Damaged(f"it is of format {manifest.get('format')}, this version reads {FORMAT}")
    for name, expected in known.items():
        _verify(path / name, expected)
    try:
        tensors = load_file(path / TENSORS)
        told = json.loads((path / STATE).read_text())
        # The library maps the file, which will be removed one day.
        state = _unflatten(told["state"], {name: x.clone() for name, x in tensors.items()})
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise Damaged(f"it cannot be read ({type(error).__name__}: {error})") from None
    if told.get("step") != step:
        raise Damaged(f"it is of step {told.get('step')}, its name says {step}")
    return state


def _verify(path: Path, expected: Any) -> None:
    try:
        size = path.stat().st_size
        if size != expected["size"]:
            raise Damaged(f"{path.name} has {size} bytes, {expected['size']} were written")
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != expected["sha256"]:
            raise Damaged(f"the bytes of {path.name} are not those that were written (SHA-256)")
    except FileNotFoundError:
        raise Damaged(f"{path.name} is missing") from None
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read ({error})") from None
    except (KeyError, TypeError):
        raise Damaged(f"{MANIFEST} is garbled") from None
