r"""Runs that go on where they were killed.

A draw is a loop of diffusion steps, each a function of the last one's tensors and of noise that
depends on seed, member and step alone. Its tensors after any step are therefore all it takes to go
on, and to end with the answer it would have had:

.. code-block:: text

    OUT.run/
        key.json                                  what the run is: another one is refused
        members-0-8/window-3/step-00000012.safetensors
        members-0-8/window-2/result.safetensors   of what is finished

A file is written aside, forced to the disk and renamed, and carries a digest of its tensors. The
last two steps are kept, so that where a disk has lost one, the one before it is there. The first
step is written, and from then on as many as writing is cheap beside: a kill costs little.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, contiguous_format, tensor, uint8

from ..errors import AppaError
from ..locks import hold

__all__ = ["RunError", "RunState", "begun_otherwise", "differences"]

RESULT = "result.safetensors"
STEP = re.compile(r"step-(\d{8,})\.safetensors")
KEPT = 2
SHARE = 0.05
UNREADABLE = (SafetensorError, OSError, ValueError)


class RunError(AppaError):
    r"""A run cannot go on, or its steps cannot be kept."""


class RunState:
    r"""The steps of a run, in a folder that is gone when the run is finished.

    Arguments:
        folder: The folder, by convention `OUT.run` beside the run's output `OUT`.
        key: What determines the answer, as plain JSON: the configuration, the digests of
            observations and weights, the seed, the settings. A run goes on under the same key only.
        share: The share of the time that writing may take: a step is written where the last write
            took less than this share of the time since. One that was not is written after all
            where the run ends with an error, Ctrl-C or SIGTERM: leave the `with` block.

    Example:
        >>> with RunState("analysis.zarr.run", {"seed": 0}) as state:
        ...     kept = state.load("members-0-8") or {"z": noise, "step": torch.tensor(0)}
        ...     z = kept["z"]
        ...     for i in range(int(kept["step"]), steps):
        ...         z = step(z, i)
        ...         state.save("members-0-8", {"z": z}, i + 1)
        ...     state.done("members-0-8", {"z": z})
        ...     state.remove()
    """

    def __init__(self, folder: str | Path, key: Mapping[str, Any], share: float = SHARE):
        self.folder, self.share = Path(os.path.abspath(folder)), share
        self.key = json.loads(json.dumps(dict(key)))
        self._last: tuple[float, float] | None = None  # when the last write ended, what it took
        self._pending: dict[str, tuple[dict[str, Tensor], list[int], int]] = {}
        notes = self.folder / "key.json"
        if self.folder.exists() and not notes.exists() and any(self._strangers()):
            raise RunError(
                f"{self.folder} is in the way: it holds no run of Appa's; move it elsewhere"
            )
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
        self._lock: IO[str] | None = hold(self.folder)
        try:
            self._check(notes)
        except BaseException:
            self.close()
            raise

    def _check(self, notes: Path) -> None:
        try:
            known = json.loads(notes.read_text())
        except (OSError, ValueError):  # none, or cut short: no step can be trusted to be this run's
            known = None
        if known is not None:
            if told := list(differences(known, self.key)):
                out = str(self.folder).removesuffix(".run")
                beside = [Path(f"{out}.partial")] if out != str(self.folder) else []
                raise RunError(begun_otherwise([self.folder, *beside], told))
            return
        with self._writing():
            for item in self._strangers():
                shutil.rmtree(item) if item.is_dir() else item.unlink()
            partial = notes.with_name(f".{notes.name}.partial")
            partial.write_text(json.dumps(self.key, indent=1))
            _fsync(partial)
            os.replace(partial, notes)

    def _strangers(self) -> Iterator[Path]:
        return (p for p in self.folder.iterdir() if p.name != "lock")

    # ---------------------------------------------------------------- steps

    def load(self, name: str) -> dict[str, Tensor] | None:
        r"""The tensors of the last whole step of a part of the run, or of its result.

        Returns:
            The tensors, on the CPU, and `step`, the number of steps made, with shape :math:`()`.
            :py:`None` where nothing is kept.
        """
        place = self._place(name)
        files = sorted(place.glob("step-*.safetensors"), key=_number, reverse=True)
        causes = []
        for file in [place / RESULT, *files]:
            if not file.exists():
                continue
            try:
                found = _read(file)
            except UNREADABLE as error:
                causes.append(f"{file} is damaged ({(str(error).splitlines() or ['?'])[0]})")
                with contextlib.suppress(OSError):
                    file.unlink()
                continue
            for cause in causes:
                warnings.warn(f"{cause}: going on from step {int(found['step'])}", stacklevel=2)
            # a part that is done, and of which nothing was to be kept, has nothing to go on from
            return found if len(found) > 1 else None
        for cause in causes:
            warnings.warn(f"{cause}: {name} starts again from its first step", stacklevel=2)
        return None

    def save(
        self, name: str, tensors: Mapping[str, Tensor], step: int, force: bool = False
    ) -> bool:
        r"""Keeps what is known after a step.

        Arguments:
            name: The part of the run, e.g. `"members-0-8/window-3"`.
            tensors: The tensors, on any device, by names other than `step`.
            step: The number of steps made.
            force: Whether to write it however much the last one took.

        Returns:
            Whether it was written now.
        """
        kept = dict(tensors)
        # until it is written whole: what ends a run may come in between
        self._pending[name] = kept, [t._version for t in kept.values()], step
        if not force and self._last is not None:
            ended, took = self._last
            if took >= self.share * (time.monotonic() - ended):
                return False
        place, copies = self._place(name), _copies(kept)
        begun = time.monotonic()  # what a device had still to compute is not writing
        with self._writing():
            place.mkdir(parents=True, exist_ok=True)
            _write(place / f"step-{step:08d}.safetensors", copies, step)
        # of a part that went back a step, later ones are of another try
        others = sorted(
            (n, f) for f in place.glob("step-*.safetensors") if (n := _number(f)) != step
        )
        before = [file for n, file in others if n < step]
        for _, file in others:
            if file not in before[1 - KEPT :]:
                file.unlink(missing_ok=True)
        self._pending.pop(name, None)
        now = time.monotonic()
        self._last = now, now - begun
        return True

    def done(self, name: str, tensors: Mapping[str, Tensor] | None = None) -> None:
        r"""Marks a part as finished, keeps its result, if it is needed, and forgets its steps."""
        place = self._place(name)
        self._pending.pop(name, None)
        with self._writing():
            place.mkdir(parents=True, exist_ok=True)
            _write(place / RESULT, _copies(tensors or {}), -1)
            for file in place.glob("step-*.safetensors"):
                file.unlink()

    def finished(self, name: str) -> bool:
        r"""Whether a part is finished: :meth:`load` gives the result it was marked with."""
        with contextlib.suppress(*UNREADABLE):
            return bool(_read(self._place(name) / RESULT))
        return False

    def _place(self, name: str) -> Path:
        parts = name.split("/")
        if not all(re.fullmatch(r"[\w.=-]*[\w=-]", part) for part in parts):
            raise ValueError(f"{name!r} is no name of a part; e.g. 'members-0-8/window-3'")
        return self.folder.joinpath(*parts)

    # ---------------------------------------------------------------- the end

    def flush(self) -> None:
        r"""Writes the steps that were not yet; not those whose tensors were changed since."""
        for name, (tensors, versions, step) in list(self._pending.items()):
            if [t._version for t in tensors.values()] == versions:
                self.save(name, tensors, step, force=True)

    def remove(self) -> None:
        r"""Removes the folder: the run is finished, and its answer is kept elsewhere."""
        self._pending.clear()
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        r"""Lets another process go on with the run."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> RunState:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self.flush()
        self.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, SafetensorError) as error:
            full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
            do = "make room" if full else "mend that"
            raise RunError(
                f"cannot write {self.folder} ({error}); what is there is kept: {do}, and the same "
                "command goes on"
            ) from error


# ---------------------------------------------------------------- what others use too


def differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    r"""What differs between two nested descriptions, in words.

    Example:
        >>> list(differences({"seed": 0}, {"seed": 1}))
        ['seed was 0, is 1']
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differences(old.get(key), new.get(key), f"{where}.{key}".lstrip("."))
    elif old != new:
        if isinstance(old, str) and isinstance(new, str) and old[:1] == new[:1] == "{":
            with contextlib.suppress(ValueError):  # settings, as attributes have them
                yield from differences(json.loads(old), json.loads(new), where)
                return
        if isinstance(old, str) and isinstance(new, str) and "\n" in old + new:
            lines = set(old.splitlines()), set(new.splitlines())
            gone = [line.strip() for line in old.splitlines() if line not in lines[1]]
            come = [line.strip() for line in new.splitlines() if line not in lines[0]]
            old, new = (", ".join(some[:3]) or "without" for some in (gone, come))
            yield f"{where} was “{old}”, is “{new}”"
        else:
            yield f"{where} was {old!r}, is {new!r}"


def begun_otherwise(places: Sequence[Path], told: Sequence[str], other: str = "name") -> str:
    r"""The message of a run that finds another one's work in its place.

    Arguments:
        places: Where that work lies; some may not exist.
        told: What differs, of :func:`differences`.
        other: What a user may choose another one of.
    """
    there = " and ".join(str(place) for place in places if place.exists())
    return (
        f"there is an unfinished run that was begun otherwise: {'; '.join(told)}. It is kept, and "
        f"goes on when it is run as it was begun; to begin anew, remove {there}, or choose another "
        f"{other}"
    )


# ---------------------------------------------------------------- files


def _number(file: Path) -> int:
    found = STEP.fullmatch(file.name)
    return int(found[1]) if found else -1


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # no two tensors of a file may share memory
    return {
        k: t.detach().to("cpu").clone(memory_format=contiguous_format) for k, t in tensors.items()
    }


def _write(path: Path, tensors: Mapping[str, Tensor], step: int) -> None:
    kept = {**tensors, "step": tensor(step)}
    partial = path.with_name(f".{path.name}.partial")
    try:
        save_file(kept, partial, metadata={"digest": _digest(kept)})
        _fsync(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Tensor]:
    with safe_open(path, "pt") as file:
        # copies: the library maps the file, which is removed two steps on
        found = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        told = (file.metadata() or {}).get("digest")
    if told != _digest(found):
        raise ValueError("its numbers are not those that were written")
    return found


def _digest(tensors: Mapping[str, Tensor]) -> str:
    r"""A hash of tensors, bit for bit."""
    sha = hashlib.sha256()
    for name, x in sorted(tensors.items()):
        sha.update(f"{name} {x.dtype} {tuple(x.shape)}\n".encode())
        sha.update(x.reshape(-1).view(uint8).numpy().data)
    return sha.hexdigest()


def _fsync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
