"""Saved tensors of which one was written to, when only others of them are read.

Autograd returns all saved tensors of a node or raises. A compiled graph is one node where eager has one for each
operator: a tensor saved only for the gradient of an unused result may have been written to without consequence.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from smelt.base.torch_private import address_of_storage, saved_unchecked, version_of


def read_in_part(
    ctx: Any, read: Collection[int], count: int, versions: Mapping[int, int], error: RuntimeError
) -> list[torch.Tensor]:
    """The saved tensors of a node, unchecked but for those that are read.

    Args:
        ctx: the node's context.
        read: positions of those that are read, among the first `count`; the others are there for their versions, since
            one of the first may be a view of their memory.
        versions: of those that are results of the node, when they were saved.
        error: what autograd raised.

    Raises:
        RuntimeError: `error`, where one that is read was written to, or where this torch cannot tell.
    """
    try:
        found = saved_unchecked(ctx)
        if found is None:
            raise error
        memory = {address_of_storage(found[k][0].untyped_storage()) for k in read}
        for k, (tensor, check) in enumerate(found):
            if not (k in read if k < count else address_of_storage(tensor.untyped_storage()) in memory):
                continue
            if k not in versions:
                check()
            elif version_of(tensor) != versions[k]:
                raise error
    except RuntimeError:
        raise error from None
    return [tensor for tensor, _ in found]
