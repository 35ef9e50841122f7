"""Collectives without a functional operator of PyTorch: each runs as eager runs it, on a copy of what it writes.

One operator takes them all. Its namespace is one of `graph.ir.schema.COLLECTIVES`, so that each call runs, once and in
the program's order, and gets the strides that the program gave its operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.abi.collectives import BEGIN, group_named, reduction


def _call(written: Any, read: Sequence[Any], name: str, group: str, peer: int, op: str) -> Any:
    out = written.clone()
    BEGIN[name](group_named(group), out, read, peer, reduction(op)).wait()
    return out


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
"""(the tensor to write, tensors that it reads, a key of `BEGIN`, the group's name, the rank in the group that gives or
gets, the reduction or "") -> the new value of the first. Lists that are written are the first tensor's rows."""
