"""What eager's autograd graph saves of a traced program: read from the engine's own nodes after the forward.

The caller may write to an input or a result before the backward. Where eager saved that tensor, this is an error, or
the gradients follow; where it saved something else, gradients are as if nothing had happened. So a compiled backward
takes such tensors by themselves only where eager does, and otherwise values of its own.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import fx
from torch.nn import Parameter

from smelt.autograd.trace.functionalize import GraphRecorder
from smelt.autograd.trace.inputs import Input
from smelt.graph.ir.meta import is_dense
from smelt.graph.nodes.engine_nodes import history, saved_by
from smelt.graph.trace.trace import Storage, StorageView, TraceTensor
from smelt.shapes.size import hint

SMALL = 1 << 16
"""Bytes of a value that a copy may be taken of where eager takes none."""


def saved_places(heads: Iterable[torch.Tensor]) -> Iterator[StorageView]:
    """The places of the tensors that the histories of `heads` have saved, but for those overwritten since."""
    for node in history(heads):
        for value in saved_by(node):
            for one in value if isinstance(value, (list, tuple)) else (value,):
                if type(one) is TraceTensor:
                    yield one.place


def read_as_saved(rec: GraphRecorder, saved: Iterable[tuple[Input, torch.Tensor]]) -> set[Storage]:
    """From here on each of these inputs, which eager saves, is another value: what it is when the backward runs.

    What the forward computed of it stays what it was. Left out are parameters; large inputs that were computed before,
    so that what a block computes of its input can be computed again; and inputs of a `checkpoint` call, which eager,
    too, computes again from what they are then.

    Returns:
        The memory of the inputs that are.
    """
    apart = set()
    for one, example in saved:
        node, storage, val = one.node, one.place.storage, one.leaf.place.layout.val
        large = not example.is_leaf and hint(val.nbytes) > SMALL
        if large or storage.version or isinstance(example, Parameter) or node.op != "placeholder":
            continue
        if any("checkpoint" in user.meta for user in node.users):
            continue
        apart.add(storage)
        _bind_anew(rec, node, [one.leaf, one.seen], ("input", node.name))  # two where the input was computed before
    return apart


def results_as_saved(rec: GraphRecorder, program: Sequence[TraceTensor], saved: Container[Storage]) -> None:
    """The same for small results that eager saves."""
    for i, out in enumerate(program):
        place, val = out.place, out.place.layout.val
        if place.parent is not None or place.storage not in saved or not is_dense(val.shape, val.stride):
            continue
        node = rec.value(place)
        if node.op == "call_function" and hint(val.nbytes) <= SMALL and "checkpoint" not in node.meta:
            _bind_anew(rec, node, [out], ("output", i))


def _bind_anew(
    rec: GraphRecorder, node: fx.Node, tensors: Sequence[TraceTensor], where: tuple[Literal["input", "output"], Any]
) -> None:
    later = rec.graph.call_function(torch.ops.aten.alias.default, (node,))
    later.meta.update(val=tensors[0].place.layout.val, as_saved=where, backward=True)
    tensors[-1].place.storage.version += 1
    for tensor in tensors:
        rec.bind(tensor, later)
