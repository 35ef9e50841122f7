"""What eager's autograd graph saves of a traced program: read from the engine's own nodes after the forward.

The caller may write to an input or a result before the backward. Where eager saved that tensor, this is an error, or
the gradients follow; where it saved something else, gradients are as if nothing had happened. So a compiled backward
takes such tensors by themselves only where eager does, and otherwise values of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from smelt.graph.nodes_of_engine import saved_by
from smelt.graph.trace import Place, TraceTensor


def saved_places(heads: Iterable[torch.Tensor]) -> Iterator[Place]:
    """The places of the tensors that the histories of `heads` have saved, but for those overwritten since."""
    waiting: list[Any] = [head.grad_fn for head in heads]
    seen: set[Any] = {None}
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        waiting += [before for before, _ in node.next_functions]
        for value in saved_by(node):
            for one in value if isinstance(value, (list, tuple)) else (value,):
                if type(one) is TraceTensor:
                    yield one.place
