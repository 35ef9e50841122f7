"""Collectives by name: each is begun as a call of torch.distributed that writes one tensor, and returns its handle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Begin = Callable[[Any, torch.Tensor, Sequence[Any], int, Any], Any]
"""(group, the tensor to write, tensors that it reads, the rank in the group that gives or gets, the reduction) -> the
handle."""

dist: Any = torch.distributed
"""Where torch was built without it, it lacks the functions below, and no program has a collective."""


def _all_reduce(group: Any, out: torch.Tensor, read: Sequence[Any], peer: int, op: Any) -> Any:
    return dist.all_reduce(out, op, group, async_op=True)


def _broadcast(group: Any, out: torch.Tensor, read: Sequence[Any], peer: int, op: Any) -> Any:
    return dist.broadcast(out, _global(group, peer), group, async_op=True)


def _reduce(group: Any, out: torch.Tensor, read: Sequence[Any], peer: int, op: Any) -> Any:
    return dist.reduce(out, _global(group, peer), op, group, async_op=True)


def _scatter(group: Any, out: torch.Tensor, read: Sequence[Any], peer: int, op: Any) -> Any:
    given = list(read) if group.rank() == peer else None
    return dist.scatter(out, given, _global(group, peer), group, async_op=True)


def _gather(group: Any, out: torch.Tensor, read: Sequence[Any], peer: int, op: Any) -> Any:
    targets = list(out.unbind(0)) if group.rank() == peer else None
    return dist.gather(read[0], targets, _global(group, peer), group, async_op=True)


def _reduce_scatter(group: Any, out: torch.Tensor, read: Sequence[Any], peer: int, op: Any) -> Any:
    return dist.reduce_scatter(out, list(read), op, group, async_op=True)


def _all_gather_into_tensor(group: Any, out: torch.Tensor, read: Sequence[Any], peer: int, op: Any) -> Any:
    return dist.all_gather_into_tensor(out, read[0], group, async_op=True)


def _reduce_scatter_tensor(group: Any, out: torch.Tensor, read: Sequence[Any], peer: int, op: Any) -> Any:
    return dist.reduce_scatter_tensor(out, read[0], op, group, async_op=True)


def _barrier(group: Any, out: torch.Tensor, read: Sequence[Any], peer: int, op: Any) -> Any:
    return dist.barrier(group, async_op=True)


def _global(group: Any, rank: int) -> int:
    rank_everywhere: int = dist.get_global_rank(group, rank)
    return rank_everywhere


BEGIN: dict[str, Begin] = {
    "all_gather_into_tensor": _all_gather_into_tensor,
    "all_reduce": _all_reduce,
    "barrier": _barrier,
    "broadcast": _broadcast,
    "gather": _gather,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "scatter": _scatter,
}


def group_named(name: str) -> Any:
    """Returns the process group with a name.

    Raises:
        RuntimeError: there is none (any more).
    """
    return dist.distributed_c10d._resolve_process_group(name)


def reduction(name: str) -> Any:
    """Returns the reduction with a name in upper or lower case; None for ""."""
    return getattr(dist.ReduceOp, name.upper()) if name else None
