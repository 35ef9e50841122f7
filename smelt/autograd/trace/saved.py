"""Finds the tensors that eager's autograd graph saves for a traced program, from the engine's nodes after the forward.

The caller may write to an input or a result before the backward. If eager saved that tensor, the write is an error or
changes the gradients; if not, it has no effect on them. So a compiled backward reads an input or a result directly only
if eager saves it, and otherwise reads a separate value.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import fx
from torch.nn import Parameter

from smelt.autograd.trace.functionalize import GraphRecorder
from smelt.autograd.trace.inputs import Input
from smelt.autograd.trace.views import read_view
from smelt.graph.ir.meta import TensorMeta, is_dense
from smelt.graph.nodes.engine_nodes import history, saved_by
from smelt.graph.trace.trace import Storage, StorageView, TraceTensor
from smelt.shapes.size import hint

MAX_EXTRA_COPY_BYTES = 1 << 16
"""Maximum size, in bytes, of a value that may be copied although eager does not copy it."""


def saved_views(heads: Iterable[torch.Tensor]) -> Iterator[StorageView]:
    """Yields the storage views of the tensors saved in the autograd history of `heads`, except tensors overwritten
    since.
    """
    for node in history(heads):
        for value in saved_by(node):
            for one in value if isinstance(value, (list, tuple)) else (value,):
                if type(one) is TraceTensor:
                    yield one.storage_view


class Reads(NamedTuple):
    """An input that the backward reads, and the forms in which eager saves it.

    Attributes:
        one: the input.
        example: the example tensor of the input.
        itself: whether eager saves this tensor object, or a `checkpoint` call reads it in its second run.
        views: the views of the input that eager saves, except those that a `checkpoint` call recreates.
    """

    one: Input
    example: torch.Tensor
    itself: bool
    views: Sequence[StorageView]

    @property
    def large(self) -> bool:
        """Whether the input is not a leaf and is larger than `MAX_EXTRA_COPY_BYTES`."""
        return not self.example.is_leaf and hint(self.one.leaf.storage_view.layout.val.nbytes) > MAX_EXTRA_COPY_BYTES

    @property
    def is_alias_of_input(self) -> bool:
        """Whether the input is saved as an alias and never copied."""
        return self.large or isinstance(self.example, Parameter)

    @property
    def is_one_value(self) -> bool:
        """Whether forward and backward may use the same value for the input."""
        return (self.is_alias_of_input and not self.itself) or (self.large and not self.views)


def read_as_saved(rec: GraphRecorder, reads: Iterable[Reads]) -> dict[fx.Node, fx.Node]:
    """Give each of these inputs a second node in the graph: its value when the backward runs.

    Values that the forward computed are unaffected. So are views that eager saves in addition to the input itself: they
    refer to the memory that the input had in the forward, even after `x.data = y`. Two kinds of inputs keep a single
    node, so that the backward can recompute from them: parameters that eager saves only as views, and large non-leaf
    inputs that eager does not save both directly and as views.

    Returns:
        The second node of each input, by its first.
    """
    late = {}
    for each in reads:
        one, node, storage = each.one, each.one.node, each.one.storage_view.storage
        if each.is_one_value or storage.version or node.op != "placeholder":
            continue
        wholes = [one.leaf, one.seen]  # they differ if the input was computed before the graph
        kind: Literal["alias", "input"] = "alias" if each.is_alias_of_input and storage not in rec.cloned else "input"
        late[node] = _bind_anew(rec, node, wholes, (kind, node.name))
        if each.itself and each.views:
            memory = _later(rec, node, one.leaf.storage_view.layout.val, ("memory", node.name))
            ends = {tensor.storage_view for tensor in wholes}
            for view in each.views:
                view.node, view.version = _seen_in(rec, memory, view, ends), storage.version
    return late


def _seen_in(rec: GraphRecorder, memory: fx.Node, view: StorageView, ends: Container[StorageView]) -> fx.Node:
    if view in ends or view.parent is None:
        return memory
    return read_view(rec.emit, _seen_in(rec, memory, view.parent, ends), view)


def results_as_saved(
    rec: GraphRecorder, program: Sequence[TraceTensor], saved: Container[Storage], inputs: Container[Storage]
) -> None:
    """Give a second node, as `read_as_saved` does for inputs, to results in memory that eager saves, be they the whole
    memory or views of it.

    Results in the memory of an input are excluded. The node of a result in other memory may still be an input's, since
    copies are not recorded in the graph.
    """
    for i, out in enumerate(program):
        view, val, root = out.storage_view, out.storage_view.layout.val, out.storage_view.storage.root
        if root is None or view.storage not in saved or not is_dense(val.shape, val.stride):
            continue
        node = rec.value(view)
        made = node.op == "call_function" or (node.op == "placeholder" and view.storage not in inputs)
        if made and "checkpoint" not in node.meta:
            rec.assign(view, _later(rec, node, val, ("output", i)))


Where = tuple[Literal["input", "alias", "memory", "output"], Any]
"""A tensor that the backward reads: (kind, name of an input or position of a result).

"input", "output": the tensor as it is when the backward runs. "alias": the memory that the input had in the forward,
saved as an alias if the backward recomputes from it, else as a copy. "memory": the contents, when the backward runs, of
the memory that the input had in the forward.
"""


def _later(rec: GraphRecorder, node: fx.Node, val: TensorMeta, where: Where) -> fx.Node:
    later = rec.graph.call_function(torch.ops.aten.alias.default, (node,))
    later.meta.update(val=val, as_saved=where, backward=True)
    return later


def _bind_anew(rec: GraphRecorder, node: fx.Node, tensors: Sequence[TraceTensor], where: Where) -> fx.Node:
    later = _later(rec, node, tensors[0].storage_view.layout.val, where)
    tensors[-1].storage_view.storage.version += 1
    for tensor in tensors:
        rec.bind(tensor, later)
    return later
