r"""Mixed precision on a CPU: matrix products and convolutions in bfloat16, as on a GPU."""

import warnings
from contextlib import contextmanager

import torch


@contextmanager
def mixed():
    r"""Without oneDNN, whose kernels in bfloat16 some CPUs do not survive."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about devices there are not
        with torch.backends.mkldnn.flags(enabled=False), torch.autocast("cpu", torch.bfloat16):
            yield
