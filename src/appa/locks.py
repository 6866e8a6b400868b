r"""Locks on folders: one process writes, others are told who does."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import IO

from .errors import StoreError

__all__ = ["hold"]


def hold(folder: Path, what: Path | None = None) -> IO[str]:
    r"""Takes the lock of a folder, which lasts as long as the file that is returned is open.

    Arguments:
        folder: The folder.
        what: What is written, for the message, if not the folder.
    """
    lock = open(folder / "lock", "a+")  # noqa: SIM115
    try:
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip() or "another process"
        lock.close()
        raise StoreError(
            f"{what or folder} is being written by {holder}; wait for it, or stop it and rerun"
        ) from None
    except (OSError, ImportError):
        pass  # a file system, or a system, without locks
    lock.truncate(0)
    lock.write(f"process {os.getpid()} on {socket.gethostname()}")
    lock.flush()
    return lock
