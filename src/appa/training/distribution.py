r"""One process or many: who this process is, and what it shares with the others.

`torchrun` starts a process for each device and tells it, through its environment, its rank
:math:`r` and the number of processes :math:`R`; without it, :math:`R = 1` and nothing here
communicates. Two strategies split the work:

* `ddp`: each rank holds the whole network, and gradients are averaged over ranks;
* `fsdp` (FSDP2): parameters, gradients and the average of the weights are cut into :math:`R` parts,
  and gathered level by level, block by block, when they are needed.

What is saved is whole whatever the strategy: tensors are gathered on the first rank, and cut again
when they are loaded, by any number of ranks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import AppaError, nearest

__all__ = ["STRATEGIES", "Ranks", "distributed"]

STRATEGIES = ("ddp", "fsdp")


@dataclass(frozen=True)
class Ranks:
    r"""The place of this process among all.

    Arguments:
        rank: The rank :math:`r`.
        world: The number of ranks :math:`R`.
        device: The device of this rank.
    """

    rank: int
    world: int
    device: torch.device

    @property
    def main(self) -> bool:
        r"""Whether this is the first rank, which writes and prints."""
        return self.rank == 0

    def barrier(self) -> None:
        r"""Waits for all ranks."""
        if self.world > 1:
            dist.barrier()

    def mean(self, x: Tensor) -> Tensor:
        r"""The mean of a tensor over ranks."""
        if self.world > 1:
            x = x.clone()
            dist.all_reduce(x)
            x /= self.world
        return x

    def any(self, flag: bool) -> bool:
        r"""Whether a flag is set on any rank."""
        if self.world == 1:
            return flag
        x = torch.tensor(float(flag), device=self.device)
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        return bool(x.item())

    def known(self, flag: bool) -> bool:
        r"""The flag of the first rank."""
        if self.world == 1:
            return flag
        x = torch.tensor(float(flag), device=self.device)
        dist.broadcast(x, 0)
        return bool(x.item())

    def agree(self, number: int, what: str) -> None:
        r"""Raises unless all ranks have the same number."""
        if self.world == 1:
            return
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, number)
        if len(set(found)) > 1:
            raise AppaError(
                f"ranks disagree about {what}: {found}; do all nodes see the same folder?"
            )

    # Modules

    def shard(self, network: nn.Module, units: Sequence[nn.Module]) -> None:
        r"""Cuts the parameters of a network into a part for each rank, in place.

        Arguments:
            network: The network; it is called as a module, or what it holds never comes together.
            units: The modules whose parameters are gathered together.
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(self.device.type, (self.world,))
        for unit in units:
            fully_shard(unit, mesh=mesh)
        fully_shard(network, mesh=mesh)

    def replicate(self, module: nn.Module) -> nn.Module:
        r"""A module whose gradients are averaged over ranks."""
        from torch.nn.parallel import DistributedDataParallel

        if self.world == 1:
            return module
        ids = [self.device.index] if self.device.type == "cuda" else None
        # Buffers are constants; gradients in their buckets save a copy.
        return DistributedDataParallel(
            module, device_ids=ids, broadcast_buffers=False, gradient_as_bucket_view=True
        )

    @contextmanager
    def accumulating(self, module: nn.Module, network: nn.Module, last: bool) -> Iterator[None]:
        r"""Within it gradients are summed; those of all ranks only at the last micro-step."""
        from torch.distributed.fsdp import FSDPModule
        from torch.nn.parallel import DistributedDataParallel

        context: AbstractContextManager[Any] = nullcontext()
        if isinstance(network, FSDPModule):
            network.set_requires_gradient_sync(last)
        elif isinstance(module, DistributedDataParallel) and not last:
            context = module.no_sync()
        with context:
            yield

    # States

    def whole(self, tree: Any) -> Any:
        r"""Nested containers of tensors, each gathered from all ranks; on the CPU.

        Every rank calls it, but the first alone gets tensors: on others they are :py:`None`.
        """
        if isinstance(tree, Mapping):
            return {k: self.whole(v) for k, v in tree.items()}
        if isinstance(tree, list | tuple | set):
            return type(tree)(self.whole(v) for v in tree)
        if isinstance(tree, Tensor):
            if hasattr(tree, "full_tensor"):
                tree = tree.full_tensor()  # type: ignore[attr-defined]
            return tree.detach().to("cpu", copy=True) if self.main else None
        return tree

    def load(self, targets: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
        r"""Copies whole tensors, which every rank has, into tensors that may be cut."""
        with torch.no_grad():
            for name, target in targets.items():
                target.copy_(cut(values[name].to(target.device), target))

    def load_optimizer(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        r"""Loads what :meth:`optimizer_state` gave."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        # SOAP keeps its state whole; Adam's is cut as the parameters are.
        follows = not hasattr(optimizer, "inner_group")

        def place(value: Any, p: Tensor) -> Any:
            if isinstance(value, Mapping):
                return {k: place(v, p) for k, v in value.items()}
            if follows and isinstance(value, Tensor) and value.shape == p.shape:
                return cut(value.to(p.device), p)
            return value

        placed = {k: place(v, parameters[k]) for k, v in state["state"].items()}
        groups = optimizer.state_dict()["param_groups"]
        for group, saved in zip(groups, state["groups"], strict=True):
            group.update(saved)
        optimizer.load_state_dict({"state": placed, "param_groups": groups})
        if "inner" in state:
            optimizer.inner_group = dict(state["inner"])  # type: ignore[attr-defined]

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        r"""The whole state of an optimiser, without its settings, which are configuration."""
        state = optimizer.state_dict()
        groups = [
            {k: g[k] for k in ("step_count", "base_lr") if k in g} for g in state["param_groups"]
        ]
        found = {"state": self.whole(state["state"]), "groups": self.whole(groups)}
        if hasattr(optimizer, "inner_group"):  # how far SOAP is from its next basis
            found["inner"] = dict(optimizer.inner_group)  # type: ignore[attr-defined]
        return found


def cut(value: Tensor, like: Tensor) -> Tensor:
    r"""A whole tensor, cut as another is."""
    if not hasattr(like, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    # Every rank has the same values: nothing needs to be sent.
    return distribute_tensor(value, mesh, placements, src_data_rank=None)


@contextmanager
def distributed(device: str | None = None) -> Iterator[Ranks]:
    r"""Takes this process's place among those `torchrun` started, if it did.

    Arguments:
        device: `cpu` or `cuda`. By default, CUDA where there is a device.

    Example:
        >>> with distributed() as ranks:
        ...     print(ranks.rank, ranks.device)
    """
    kinds = ("cpu", "cuda")
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind not in kinds:
        raise AppaError(f"unknown device {kind!r}{nearest(kind, kinds)}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise AppaError("there is no CUDA device; leave out the device, or give cpu")
    world = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if kind == "cuda":
        if local >= torch.cuda.device_count():
            raise AppaError(
                f"local rank {local} has no device of its own: there are "
                f"{torch.cuda.device_count()}; start as many processes a node (--nproc-per-node)"
            )
        torch.cuda.set_device(local)
    place = torch.device(kind, local) if kind == "cuda" else torch.device("cpu")
    if world == 1:
        yield Ranks(0, 1, place)
        return

    already = dist.is_initialized()
    if not already:
        # Reading a large store into memory may take one rank longer than another.
        dist.init_process_group(
            "nccl" if kind == "cuda" else "gloo",
            timeout=timedelta(hours=1),
            device_id=place if kind == "cuda" else None,
        )
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), place)
    finally:
        if not already:
            dist.destroy_process_group()
