r"""Many reads at once, with Linux's asynchronous input/output.

A thread that reads small ranges one after the other waits for the disk each time, and for the
interpreter's lock. `io_submit` hands the kernel all of them at once and `io_getevents` waits for
the last, which takes a third of the processor time and keeps the disk busy. Files must be open with
`O_DIRECT`; others would be read one after the other all the same.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import platform
import sys
from collections.abc import Sequence

import numpy as np

__all__ = ["Queue"]

# The numbers of io_setup, io_destroy, io_getevents and io_submit, which libc does not wrap.
CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}

# struct iocb of linux/aio_abi.h; opcode 0 reads.
IOCB = np.dtype(
    [
        ("data", "<u8"),
        ("key", "<u4"),
        ("rw_flags", "<i4"),
        ("opcode", "<u2"),
        ("reqprio", "<i2"),
        ("fd", "<u4"),
        ("buf", "<u8"),
        ("nbytes", "<u8"),
        ("offset", "<i8"),
        ("reserved", "<u8"),
        ("flags", "<u4"),
        ("resfd", "<u4"),
    ]
)
EVENT = np.dtype([("data", "<u8"), ("obj", "<u8"), ("res", "<i8"), ("res2", "<i8")])


@functools.cache
def system() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


class Queue:
    r"""Reads of one thread.

    Arguments:
        depth: The most reads at once.
    """

    def __init__(self, depth: int = 128):
        self.context = ctypes.c_ulong(0)
        self.depth, self.calls = depth, CALLS.get(platform.machine())
        if self.calls is None or sys.platform != "linux" or sys.maxsize < 2**32:
            raise OSError(errno.ENOSYS, "no asynchronous reads here")
        self.requests, self.events = np.zeros(depth, IOCB), np.zeros(depth, EVENT)
        self.requests["data"] = np.arange(depth)
        self.pointers = self.requests.ctypes.data + IOCB.itemsize * np.arange(
            depth, dtype=np.uint64
        )
        if self._call(0, ctypes.c_long(depth), ctypes.byref(self.context)) < 0:
            raise OSError(ctypes.get_errno(), "io_setup failed")

    def __del__(self) -> None:
        if self.context.value:
            self._call(1, self.context)

    def read(
        self,
        files: Sequence[int],
        offsets: Sequence[int],
        lengths: Sequence[int],
        addresses: Sequence[int],
    ) -> list[int]:
        r"""Reads ranges of files into memory, and waits for them.

        Arguments:
            files: The file descriptor of each range.
            offsets: Where each range starts in its file.
            lengths: The bytes of each range.
            addresses: Where in memory each range goes.

        Returns:
            The bytes read of each range: 0 or less if it failed, or was not tried.
        """
        results: list[int] = []
        for i in range(0, len(files), self.depth):
            part = slice(i, i + self.depth)
            results += self._read(files[part], offsets[part], lengths[part], addresses[part])
        return results

    def _read(self, files, offsets, lengths, addresses) -> list[int]:
        n = len(files)
        requests = self.requests[:n]
        requests["fd"], requests["offset"] = files, offsets
        requests["nbytes"], requests["buf"] = lengths, addresses

        pointers = ctypes.c_void_p(self.pointers.ctypes.data)
        submitted = max(0, self._call(3, self.context, ctypes.c_long(n), pointers))
        results, done = [0] * n, 0
        # The kernel writes into memory until the last read has ended: always wait for it.
        while done < submitted:
            left = ctypes.c_long(submitted - done)
            events = ctypes.c_void_p(self.events.ctypes.data)
            got = self._call(2, self.context, left, left, events, None)
            if got < 0 and ctypes.get_errno() != errno.EINTR:
                raise OSError(ctypes.get_errno(), "io_getevents failed")
            for k, _, result, _ in self.events[: max(0, got)].tolist():
                results[k] = result
            done += max(0, got)
        return results

    def _call(self, call: int, *arguments) -> int:
        assert self.calls is not None
        return system().syscall(ctypes.c_long(self.calls[call]), *arguments)
