"""Collectives without a functional operator of PyTorch: each runs as eager runs it, on a copy of what it writes.

One operator takes them all. Its namespace is one of `graph.ir.schema.COLLECTIVES`, so that each call runs, once and in
the program's order, and gets the strides that the program gave its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Run = Callable[[Any, Any, Sequence[Any], int, Any], object]


def _reduce(group: Any, out: Any, read: Sequence[Any], peer: int, op: Any) -> None:
    torch.distributed.reduce(out, torch.distributed.get_global_rank(group, peer), op, group)


def _all_reduce(group: Any, out: Any, read: Sequence[Any], peer: int, op: Any) -> None:
    torch.distributed.all_reduce(out, op, group)


def _scatter(group: Any, out: Any, read: Sequence[Any], peer: int, op: Any) -> None:
    source = torch.distributed.get_global_rank(group, peer)
    torch.distributed.scatter(out, list(read) if group.rank() == peer else None, source, group)


def _gather(group: Any, out: Any, read: Sequence[Any], peer: int, op: Any) -> None:
    target = torch.distributed.get_global_rank(group, peer)
    torch.distributed.gather(read[0], list(out.unbind(0)) if group.rank() == peer else None, target, group)


def _reduce_scatter(group: Any, out: Any, read: Sequence[Any], peer: int, op: Any) -> None:
    torch.distributed.reduce_scatter(out, list(read), op, group)


def _barrier(group: Any, out: Any, read: Sequence[Any], peer: int, op: Any) -> None:
    torch.distributed.barrier(group)


RUN: dict[str, Run] = {
    "reduce": _reduce,
    "all_reduce": _all_reduce,
    "scatter": _scatter,
    "gather": _gather,
    "reduce_scatter": _reduce_scatter,
    "barrier": _barrier,
}


def _call(written: Any, read: Sequence[Any], name: str, group: str, peer: int, op: str) -> Any:
    out = written.clone()
    reduction = getattr(torch.distributed.ReduceOp, op) if op else None
    RUN[name](_group_named(group), out, read, peer, reduction)
    return out


def _group_named(name: str) -> Any:
    find: Any = torch.distributed.distributed_c10d._resolve_process_group
    return find(name)


def _registered() -> Any:
    """The operator, registered once in a process: torch refuses to define it again when the module is imported again,
    as after an import that was interrupted.
    """
    space = torch.ops.smelt_collectives
    if not hasattr(space, "call"):
        library = torch.library.Library("smelt_collectives", "FRAGMENT")
        library.define("call(Tensor written, Tensor[] read, str name, str group, int peer, str op) -> Tensor")
        library.impl("call", _call, "CompositeExplicitAutograd")
        library.impl("call", lambda written, *rest: torch.empty_like(written), "Meta")
        vars(space)["library"] = library  # the operator lives as long as its library
    return space.call.default


CALL = _registered()
"""(the tensor to write, tensors that it reads, a key of `RUN`, the group's name, the rank in the group that gives or
gets, the reduction or "") -> the new value of the first. Lists that are written are the first tensor's rows."""
