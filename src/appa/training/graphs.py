r"""An update as one launch.

Small networks leave a GPU waiting for its host, which launches some hundred kernels an update. A
CUDA graph records them once and launches them together. What it reads and writes stays where it
was: inputs are copied into place, parameters and the optimiser's state change in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["Graph"]


class Graph:
    r"""Records a function of tensors, and runs it again from then on.

    Arguments:
        function: A function that waits for nothing and allocates the same each time. It must
            have run before, so that all it makes once is made.
        inputs: Its inputs, for their shapes. The function is recorded, not run.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor]):
        self.inputs = [x.clone() for x in inputs]
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # Other threads read ahead into pinned memory meanwhile, which is none of the recording's
        # business: by default it would forbid that, and their reading would fail.
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.outputs = function(*self.inputs)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        for mine, x in zip(self.inputs, inputs, strict=True):
            mine.copy_(x)
        self.graph.replay()
        return tuple(y.clone() for y in self.outputs)  # the next run writes over them
