r"""What a machine has: cores, and memory that is free."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

__all__ = ["cores", "free_memory"]


def cores() -> int:
    r"""The number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
