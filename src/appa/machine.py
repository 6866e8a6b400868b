r"""What a machine has: cores, devices, and memory that is free."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import AppaError, nearest

if TYPE_CHECKING:
    import torch

__all__ = ["DEVICES", "cores", "find_device", "free_memory"]

DEVICES = ("cpu", "cuda")


def cores() -> int:
    r"""The number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def find_device(device: str | torch.device | None = None) -> torch.device:
    r"""The device of a name; an error where this machine has none such.

    Arguments:
        device: `cpu`, `cuda`, `cuda:1`, or another that torch knows. By default, CUDA where there
            is a device.
    """
    import torch

    asked = str(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    kind, _, index = asked.partition(":")
    if kind not in DEVICES or (index and not index.isdigit()):
        try:
            return torch.empty(0, device=asked).device
        except (RuntimeError, AssertionError, NotImplementedError):
            raise AppaError(f"unknown device {asked!r}{nearest(kind, DEVICES)}") from None
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise AppaError("there is no CUDA device; leave out the device, or give cpu")
    if index and int(index) >= (count := torch.cuda.device_count()):
        raise AppaError(
            f"there is no CUDA device {index}: there are {count}, counted from 0; give another"
        )
    return torch.device(asked)


def free_memory(device: Any = None) -> int:
    r"""The bytes of memory that may still be taken, of a CUDA device where one is given."""
    if device is not None and device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return 4 * 2**30  # a system that does not say
