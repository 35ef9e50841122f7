"""Reads a node's saved tensors when one of them was written to but only others are used.

Autograd returns all saved tensors of a node, or raises if one of them was written to. In eager each operator is a node,
and a write to a tensor that was saved only for the gradient of an unused result has no consequence. A compiled graph is
a single node, so this module makes the check for each saved tensor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from smelt.base.torch_private import address_of_storage, saved_unchecked, version_of


def used_saved_tensors(
    ctx: Any, used: Collection[int], count: int, versions: Mapping[int, int], error: RuntimeError
) -> list[torch.Tensor]:
    """Returns all saved tensors of a node, after a version check of those that are used.

    Args:
        ctx: the node's context.
        used: positions of the tensors that the backward reads, among the first `count`. Later tensors are saved only
            for their version counters, because one of the first may be a view of their memory.
        count: the number of saved tensors that a backward may read.
        versions: for positions of saved tensors that are results of the node, the version when the tensor was saved.
        error: the error that autograd raised for `ctx.saved_tensors`.

    Raises:
        RuntimeError: `error`, if a used tensor was written to, or if this torch gives no access to single saved
        tensors.
    """
    try:
        found = saved_unchecked(ctx)
        if found is None:
            raise error
        memory = {address_of_storage(found[k][0].untyped_storage()) for k in used}
        for k, (tensor, check) in enumerate(found):
            if not (k in used if k < count else address_of_storage(tensor.untyped_storage()) in memory):
                continue
            if k not in versions:
                check()
            elif version_of(tensor) != versions[k]:
                raise error
    except RuntimeError:
        raise error from None
    return [tensor for tensor, _ in found]
