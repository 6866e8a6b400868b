r"""A network on many ranks: how its work is split, and how its state is saved.

Two strategies split the work of :math:`R` ranks:

* `ddp`: each rank holds the whole network, and gradients are averaged over ranks;
* `fsdp` (FSDP2): parameters, gradients and the average of the weights are cut into :math:`R` parts,
  and gathered level by level, block by block, when they are needed.

What is saved is whole whatever the strategy: tensors are gathered on the first rank, and cut again
when they are loaded, by any number of ranks.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from ..tasks.ranks import Ranks, distributed

__all__ = [
    "STRATEGIES",
    "Ranks",
    "accumulating",
    "distributed",
    "load",
    "load_optimizer",
    "optimizer_state",
    "replicate",
    "shard",
    "whole",
]

STRATEGIES = ("ddp", "fsdp")


# Modules


def shard(ranks: Ranks, network: nn.Module, units: Sequence[nn.Module]) -> None:
    r"""Cuts the parameters of a network into a part for each rank, in place.

    Arguments:
        ranks: The ranks.
        network: The network; it is called as a module, or what it holds never comes together.
        units: The modules whose parameters are gathered together.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # A reconstruction is a view, without the grid's margins. It would be wrong to change it in
    # place, which nobody does; a copy would take memory, and every rank would warn of it.
    told = "FSDP2-wrapped module .* returned a view tensor"
    warnings.filterwarnings("ignore", message=told, category=UserWarning)
    mesh = init_device_mesh(ranks.device.type, (ranks.world,))
    for unit in units:
        fully_shard(unit, mesh=mesh)
    fully_shard(network, mesh=mesh)


def replicate(ranks: Ranks, module: nn.Module) -> nn.Module:
    r"""A module whose gradients are averaged over ranks."""
    from torch.nn.parallel import DistributedDataParallel

    if ranks.world == 1:
        return module
    ids = [ranks.device.index] if ranks.device.type == "cuda" else None
    known = signature(DistributedDataParallel).parameters
    # Buffers are constants, which no update need send; torch 2.13 has another name for it.
    buffers = next(k for k in ("forward_sync_buffers", "broadcast_buffers") if k in known)
    # Gradients in their buckets save a copy.
    options: dict[str, Any] = {buffers: False, "gradient_as_bucket_view": True}
    return DistributedDataParallel(module, device_ids=ids, **options)


@contextmanager
def accumulating(module: nn.Module, network: nn.Module, last: bool) -> Iterator[None]:
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


def whole(ranks: Ranks, tree: Any) -> Any:
    r"""Nested containers of tensors, each gathered from all ranks; on the CPU.

    Every rank calls it, but the first alone gets tensors: on others they are :py:`None`.
    """
    if isinstance(tree, Mapping):
        return {k: whole(ranks, v) for k, v in tree.items()}
    if isinstance(tree, list | tuple | set):
        return type(tree)(whole(ranks, v) for v in tree)
    if isinstance(tree, Tensor):
        if hasattr(tree, "full_tensor"):
            tree = tree.full_tensor()  # type: ignore[attr-defined]
        return tree.detach().to("cpu", copy=True) if ranks.main else None
    return tree


def load(targets: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    r"""Copies whole tensors, which every rank has, into tensors that may be cut."""
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(cut(values[name].to(target.device), target))


def optimizer_state(ranks: Ranks, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    r"""The whole state of an optimiser, without its settings, which are configuration."""
    state = optimizer.state_dict()
    groups = [{k: g[k] for k in ("step_count", "base_lr") if k in g} for g in state["param_groups"]]
    found = {"state": whole(ranks, state["state"]), "groups": whole(ranks, groups)}
    if hasattr(optimizer, "inner_group"):  # how far SOAP is from its next basis
        found["inner"] = dict(optimizer.inner_group)  # type: ignore[attr-defined]
    return found


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    r"""Loads what :func:`optimizer_state` gave."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    # SOAP keeps its state whole; Adam's is cut, and laid out, as the parameters are.
    follows = not hasattr(optimizer, "inner_group")

    def place(value: Any, p: Tensor) -> Any:
        if isinstance(value, Mapping):
            return {k: place(v, p) for k, v in value.items()}
        if follows and isinstance(value, Tensor) and value.ndim and value.shape == p.shape:
            # a file holds rows; kernels that walk through memory need the parameter's strides
            return torch.empty_like(p, requires_grad=False).copy_(cut(value.to(p.device), p))
        return value

    placed = {k: place(v, parameters[k]) for k, v in state["state"].items()}
    groups = optimizer.state_dict()["param_groups"]
    for group, saved in zip(groups, state["groups"], strict=True):
        group.update(saved)
    optimizer.load_state_dict({"state": placed, "param_groups": groups})
    if "inner" in state:
        optimizer.inner_group = dict(state["inner"])  # type: ignore[attr-defined]


def cut(value: Tensor, like: Tensor) -> Tensor:
    r"""A whole tensor, cut as another is."""
    if not hasattr(like, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    # Every rank has the same values: nothing needs to be sent.
    return distribute_tensor(value, mesh, placements, src_data_rank=None)
