"""The graph nodes and the result of one call, which other calls copy."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import fx
from torch.autograd.graph import increment_version
from torch.fx.node import map_arg

from smelt.base.class_tables import classes, isinstance
from smelt.base.torch_private import OpOverload
from smelt.capture.core.policy import is_frozen
from smelt.capture.core.values import LEAVES
from smelt.capture.equal_calls.context import Indescribable, is_plain_result
from smelt.capture.tensors.reads import version
from smelt.graph.ir.meta import TensorMeta, meta_of
from smelt.graph.ir.symint import SYMBOLIC_CLASSES
from smelt.graph.nodes.modes import MODE_CHANGES
from smelt.graph.trace.trace import TraceTensor, computed_before, trace_like

if TYPE_CHECKING:
    from smelt.capture.core.interface import Interpreter


@dataclass(frozen=True, slots=True)
class Made:
    """A tensor that a call made, as it was when the call returned.

    Attributes:
        node: the node that made it.
        writers: the nodes that wrote to it.
        versions: the tensor's version counter, and that of its memory.
        filled: whether all its elements are the same.
        inference: whether it was made in inference mode.
    """

    node: fx.Node
    writers: Sequence[fx.Node]
    meta: TensorMeta
    requires_grad: bool
    versions: tuple[int, int]
    filled: bool
    inference: bool


class Fragment:
    """The nodes of one call.

    Args:
        vm: the capture.
        nodes: the nodes that the call appended to the graph, in order.
        result: the result of the call.
        given: the trace tensors that the call was given.

    Attributes:
        outside: the operands that are no nodes of the call.

    Raises:
        Indescribable: a node is no plain operation, or the result contains something else than tensors of these nodes,
            given tensors and constants.
    """

    def __init__(self, vm: Interpreter, nodes: Sequence[fx.Node], result: object, given: Sequence[TraceTensor]) -> None:
        self.vm, self.nodes, self.result = vm, nodes, result
        self._given = {id(tensor): index for index, tensor in enumerate(given)}
        self._inside = set(nodes)
        self.outside = {operand for node in nodes for operand in node.all_input_nodes} - self._inside
        self._made: dict[int, Made] = {}
        if not all(map(_is_plain, nodes)):
            raise Indescribable
        self._refuse_result(result)

    def refuse_writes(self, written: set[int]) -> None:
        """Require that these written storages belong to tensors that the call made.

        Raises:
            Indescribable: the call wrote to another tensor.
        """
        made = {storage for node in self.nodes for storage in self._storage(node)}
        outside = {storage for operand in self.outside for storage in self._storage(operand)}
        if not written <= made - outside:
            raise Indescribable

    def copy(self, operands: Mapping[fx.Node, fx.Node], given: Sequence[TraceTensor]) -> object:
        """Append copies of the nodes to the graph; returns the result of the copied call.

        Args:
            operands: what the copies take instead of nodes outside of the fragment; they take other nodes themselves.
            given: the trace tensors that the copied call is given.
        """
        tensors = self.vm.outermost
        copies = dict(operands)
        for node in self.nodes:
            args = map_arg(node.args, lambda each: copies.get(each, each))
            kwargs = map_arg(node.kwargs, lambda each: copies.get(each, each)) if node.kwargs else None
            copy = tensors.graph.create_node(node.op, node.target, args, kwargs)
            copy.meta.update(node.meta)
            copies[node] = copy
        for group in (tensors.mutated, tensors.drawing, tensors.looking, tensors.checks, tensors.drawing_otherwise):
            if not group.isdisjoint(self._inside):
                group.update([copies[node] for node in self.nodes if node in group])
        return self._result(self.result, copies, given, {})

    def _storage(self, node: fx.Node) -> Iterator[int]:
        tensor = self.vm.outermost.made.get(node)
        if type(tensor) is TraceTensor:
            yield id(tensor.storage_view.storage)

    def _refuse_result(self, value: object) -> None:
        kind = type(value)
        if isinstance(value, TraceTensor):
            if id(value) in self._given:
                return
            if self.vm.outermost.nodes.get(id(value)) not in self._inside or not is_plain_result(self.vm, value):
                raise Indescribable
            self._made[id(value)] = self._as_made(value)
        elif kind is tuple and isinstance(value, tuple):
            for item in value:
                self._refuse_result(item)
        elif kind not in LEAVES or kind in SYMBOLIC_CLASSES:
            raise Indescribable

    def _result(
        self,
        value: object,
        copies: Mapping[fx.Node, fx.Node],
        given: Sequence[TraceTensor],
        made: dict[int, TraceTensor],
    ) -> object:
        if type(value) is tuple:
            return tuple([self._result(item, copies, given, made) for item in value])
        if type(value) is not TraceTensor:
            return value
        if id(value) in self._given:
            return given[self._given[id(value)]]
        if id(value) not in made:
            made[id(value)] = self._like(self._made[id(value)], copies)
        return made[id(value)]

    def _as_made(self, tensor: TraceTensor) -> Made:
        tensors, memory, meta = self.vm.outermost, tensor.storage_view.storage, meta_of(tensor)
        if not isinstance(meta, TensorMeta):
            raise Indescribable
        node, writers = tensors.nodes[id(tensor)], tuple(tensors.writers.get(id(memory), ()))
        inference = tensor in tensors.inference
        return Made(node, writers, meta, tensor.requires_grad, version(tensor), memory.filled, inference)

    def _like(self, made: Made, copies: Mapping[fx.Node, fx.Node]) -> TraceTensor:
        """The tensor that a copied node makes in the place of a tensor of the recorded call."""
        tensors = self.vm.outermost
        out = trace_like(made.meta, made.requires_grad)
        if made.requires_grad:
            self.vm.keep(out)
            out = computed_before(out)
        memory = out.storage_view.storage
        for _ in range(made.versions[0]):
            increment_version(out)
        memory.version, memory.filled = made.versions[1], made.filled
        if made.writers:
            tensors.writers[id(memory)] = [copies[node] for node in made.writers]
        if made.inference:
            tensors.inference.note(out)
        tensors.own(out, copies[made.node])
        return out


def _is_plain(node: fx.Node) -> bool:
    """Whether a node is an operation that other modules may repeat: a function of torch or Python, with constants."""
    if not node.meta.keys() <= _META or not all(map(_is_atom, (*node.args, *node.kwargs.values()))):
        return False
    if node.op == "call_method":
        return True
    target = node.target
    if node.op != "call_function" or target in MODE_CHANGES:
        return False
    if type(target) is types.FunctionType:
        return is_frozen(target.__module__)
    return isinstance(target, (types.BuiltinFunctionType, types.MethodDescriptorType, OpOverload))


_META = frozenset({"val", "at", "callers"})


def _is_atom(value: object) -> bool:
    """Whether an argument of a node is another node or a constant, or contains nothing else."""
    if isinstance(value, fx.Node):
        return True
    if isinstance(value, (tuple, list)):
        return all(map(_is_atom, value))
    if isinstance(value, dict):
        return all(map(_is_atom, value.values()))
    if isinstance(value, slice):
        return all(map(_is_atom, (value.start, value.stop, value.step)))
    return type(value) in _ATOMS


_ATOMS = classes(
    *(int, float, bool, str, complex, type(None), type(...)),
    *(torch.dtype, torch.device, torch.memory_format, torch.layout, torch.Size),
)
