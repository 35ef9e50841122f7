"""Captures the function inside a transform into a separate graph, on trace tensors as the function sees them.

PyTorch's transform calls the function with wrapped tensors (one example of a batch, or one that records derivatives).
The interpreter works on trace tensors with the same metadata, outside of the transform; then the graph runs on the
wrapped tensors. Tensors of the enclosing graph that the function uses become further inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from smelt.base import torch_c
from smelt.base.class_tables import isinstance
from smelt.capture.core import interface
from smelt.capture.core.breaks import Break, through_c
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.sources import Source
from smelt.capture.tensors.ambient import Ambient
from smelt.capture.tensors.finish_graph import prune
from smelt.capture.tensors.graph_module import CapturedGraph
from smelt.capture.tensors.number_nodes import NumberNodes
from smelt.capture.tensors.speculation import Speculation
from smelt.capture.tensors.tensors import TRACED, Tensors
from smelt.capture.tensors.trace_call import ValuesNeededError
from smelt.capture.tensors.transform_node import BLANK, Body, TransformCall
from smelt.graph.ir.meta import TensorMeta, meta_of
from smelt.graph.ir.symint import from_torch, to_torch
from smelt.graph.trace.trace import TraceTensor, trace_like
from smelt.shapes.real import Real
from smelt.shapes.size import Size


class InnerTensors(Tensors):
    """The tensors of a function inside a transform.

    Args:
        outer: the tensors of the enclosing graph, to which the inputs of the capture belong.

    Attributes:
        lifted: values of the enclosing graph that this graph uses, in the order of their placeholders.
    """

    branches = False

    def __init__(self, vm: Interpreter, outer: Tensors) -> None:
        super().__init__(vm)
        self.outer = outer
        self.traced, self.real, self.inputs, self.inner = outer.traced, outer.real, outer.inputs, outer.inner
        self.inference = outer.inference
        self.speculation = Speculation(self, False)
        self.number_node = _LiftedNumbers(self)
        self.lifted: list[Any] = []
        self._count = 0

    def read(self, value: torch.Tensor, source: Source) -> TraceTensor:
        """An input of the capture."""
        return self.outer.read(value, source)

    def read_number(self, value: int | float, size: Size | Real, source: Source) -> object:
        """An input of the capture."""
        return self.outer.read_number(value, size, source)

    def has_node(self, value: object) -> bool:
        """Whether a node makes this value, in this graph or an enclosing one."""
        return id(value) in self.nodes or self.outer.has_node(value)

    def node_outside(self, value: Any) -> fx.Node:
        """The placeholder for a value of the enclosing graph; the value becomes an input of this graph.

        Raises:
            Break: no graph makes the value.
        """
        if not self.outer.has_node(value):
            self.refuse_inner(value)
            raise Break("a tensor of unknown origin", "it was made where capture could not see it")
        node = self.lift(value, meta_of(value) if type(value) is TraceTensor else None)
        self.own(value, node)
        return node

    def lift(self, value: object, meta: object) -> fx.Node:
        """A new placeholder for a value of the enclosing graph."""
        node = self.placeholder("outside", meta)
        self.lifted.append(value)
        return node

    def placeholder(self, name: str, meta: object) -> fx.Node:
        """A new placeholder of this graph."""
        unique = f"{name}_{self._count}"
        self._count += 1
        if self._first is None:
            node = self.graph.placeholder(unique)
        else:
            with self.graph.inserting_before(self._first):
                node = self.graph.placeholder(unique)
        node.meta["val"] = meta
        return node

    def close(self, results: Sequence[object]) -> fx.GraphModule:
        """Finish the graph with the given results; returns it as a module."""
        self.vm.ambient.close(self.graph)
        output = self.graph.output(tuple(map(self.argument, results)))
        output.meta["val"] = tuple(meta_of(r) if type(r) is TraceTensor else None for r in results)
        prune(self)
        for tensor in self._alive:
            if not self.outer.has_node(tensor):
                self.inner[id(tensor)] = self.vm.step
        self.outer._alive.extend(self._alive)
        return CapturedGraph({}, self.graph)

    def written(self, tensor: object) -> bool:
        """Whether the function wrote to the memory of the tensor."""
        return type(tensor) is TraceTensor and id(tensor.storage_view.storage) in self.writers


class _LiftedNumbers(NumberNodes):
    """Placeholders for symbolic numbers, which the enclosing graph computes."""

    def __init__(self, tensors: InnerTensors) -> None:
        self._tensors = tensors
        self._nodes = {}

    def __call__(self, number: object) -> object:
        """The placeholder for a symbolic number; other values unchanged."""
        if not isinstance(number, (Size, Real)):
            return number
        key = str(number)
        if key not in self._nodes:
            self._nodes[key] = self._tensors.lift(to_torch(number), number)
        return self._nodes[key]


class TransformedFunction:
    """The function of the program, as a transform calls it during capture.

    Attributes:
        outside: values of the enclosing graph that the functions use.
        written: the values among `outside` that the functions write to.
        drew: whether the functions draw random numbers.
    """

    def __init__(self, vm: Interpreter, function: object, region: TransformCall) -> None:
        self.vm, self.function, self.region = vm, function, region
        assert isinstance(vm.tensors, Tensors)
        self.outer = vm.tensors
        self.outside: list[object] = []
        self.written: list[TraceTensor] = []
        self.drew = False

    def __call__(self, *args: object, **kwargs: object) -> object:
        with self._outside_transform() as inner:
            body = self._interpret(inner, args, kwargs)
        self.region.bodies.append(body)
        return body(args, kwargs, self.outside)

    @contextmanager
    def _outside_transform(self) -> Iterator[InnerTensors]:
        """A context in which the transform and the dispatch mode of the running call are suspended."""
        vm, ambient, grad = self.vm, self.vm.ambient, torch.is_grad_enabled()
        with self.outer.runner.paused(), torch_c.outside_transforms():
            vm.tensors = inner = InnerTensors(vm, self.outer)
            vm.ambient = Ambient()
            vm.ambient.log, vm.ambient.inference = ambient.log[:], ambient.inference
            try:
                yield inner
            finally:
                vm.ambient.restore()
                vm.tensors, vm.ambient = self.outer, ambient
                torch.set_grad_enabled(grad)

    def _interpret(self, inner: InnerTensors, args: Args, kwargs: Kwargs) -> Body:
        vm = self.vm
        leaves, spec = tree_flatten((args, kwargs))
        new = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and not self.outer.has_node(leaf)]
        for i in new:
            leaves[i] = _trace_like_wrapped(inner, leaves[i])
        if new:
            args, kwargs = tree_unflatten(leaves, spec)
        result = through_c(lambda: vm.call(self.function, args, kwargs))
        if vm.ambient.switched():
            raise Break("a transformed function leaves a mode switched", "a graph inside a graph cannot hold it")
        leaves, spec = tree_flatten(vm.effects.plain(result))
        made = [leaf for leaf in leaves if is_made(leaf)]
        graph = inner.close(made)
        begin = len(self.outside)
        self.outside += inner.lifted
        self.written += [each for each in inner.lifted if inner.written(each)]
        self.drew = self.drew or bool(inner.drawing)
        leaves = [BLANK if is_made(leaf) else leaf for leaf in leaves]
        return Body(graph, new, slice(begin, len(self.outside)), leaves, spec)


def _trace_like_wrapped(inner: InnerTensors, wrapped: torch.Tensor) -> TraceTensor:
    """A trace tensor with the metadata of a wrapped tensor."""
    shape, stride = from_torch(tuple(wrapped.shape)), from_torch(tuple(wrapped.stride()))
    meta = TensorMeta(shape, wrapped.dtype, stride, wrapped.device, wrapped.requires_grad)
    out = trace_like(meta)
    inner.own(out, inner.placeholder("given", meta))
    return out


def is_made(leaf: object) -> bool:
    """Whether a leaf is of a type that graph nodes make."""
    return type(leaf) in TRACED or isinstance(leaf, (torch.SymInt, torch.SymFloat))


def capture_call(vm: Interpreter, region: TransformCall, function: object, operands: list[object]) -> list[object]:
    """Run a transformed call of the program and record it as a node; returns its flat results."""
    tensors = vm.tensors
    vm.work += 1
    capturing = TransformedFunction(vm, function, region)

    def named(*args: object, **kwargs: object) -> object:
        return capturing(*args, **kwargs)

    named.__name__ = getattr(function, "__name__", type(function).__name__)
    try:
        out, written = tensors.runner.attempt(region.run, (named, operands), {})
    except ValuesNeededError as needed:
        raise needed.to_break() from None
    written += capturing.written
    results: list[Any] = tensors.note(out, written, capturing.drew, region, (operands, capturing.outside), {})
    if vm.ambient.inference:
        _note_inference(tensors, results, [*operands, *capturing.outside])
    return results


def _note_inference(tensors: interface.Tensors, results: list[object], operands: list[object]) -> None:
    """Mark results as tensors of inference mode: their memory may belong to an inner tensor, which was not marked."""
    known = {id(each.storage_view.storage) for each in operands if type(each) is TraceTensor}
    for each in results:
        if type(each) is TraceTensor and id(each.storage_view.storage) not in known:
            tensors.inference.note(each)
