"""The tensors of a capture: trace tensors, the fx graph that makes them, its inputs."""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy
import torch
from torch import fx
from torch.utils._pytree import PyTree

from smelt.base.class_tables import classes, isinstance
from smelt.base.default_device import MAKERS
from smelt.base.errors import Unsupported
from smelt.capture import _native as native
from smelt.capture.arrays.array import refuse_arrays
from smelt.capture.core.breaks import Break, Restart, UserError
from smelt.capture.core.interface import NO_OVERRIDE, Args, Interpreter, Kwargs, Numbers
from smelt.capture.core.registry import READ
from smelt.capture.core.sources import Source
from smelt.capture.tensors.ambient import DEVICES, present_modes
from smelt.capture.tensors.c_callbacks import CCallbackMode
from smelt.capture.tensors.fallible_ops import may_raise, note_caught, note_op, note_read
from smelt.capture.tensors.inference_tensors import InferenceTensors
from smelt.capture.tensors.number_nodes import NumberNodes
from smelt.capture.tensors.reads import Reads
from smelt.capture.tensors.speculation import Speculation
from smelt.capture.tensors.static_forms import static_form
from smelt.capture.tensors.trace_call import Runner, ValuesNeededError, name_of
from smelt.capture.tensors.transform_node import Pullback
from smelt.capture.tensors.writes import check_refused_write, check_write
from smelt.graph.ir.meta import OpaqueMeta, is_alike, is_opaque, may_overlap, meta_of
from smelt.graph.ir.module import Graph
from smelt.graph.ir.storage_view import layout_of
from smelt.graph.ir.symint import SYMBOLIC, as_real, decided_flags, from_torch, to_torch
from smelt.graph.nodes.conditional import Conditional
from smelt.graph.nodes.cut_points import EagerBoundary
from smelt.graph.nodes.eager_call import EagerCall
from smelt.graph.nodes.engine_nodes import is_backward_freed
from smelt.graph.nodes.gradients import DERIVATIVES
from smelt.graph.nodes.module_hooks import Around
from smelt.graph.nodes.thread_modes import Entered
from smelt.graph.trace.trace import EAGER_CALLS, TraceTensor, computed_before, trace_like
from smelt.graph.trace.unbacked import reading, require
from smelt.shapes.assumptions import Assumed
from smelt.shapes.real import Real
from smelt.shapes.size import Size, Symbol

INDEXING = (operator.getitem, operator.setitem)
"""Functions whose second argument is an index."""

TRACED = classes(TraceTensor, Pullback, Around, Entered)
"""Types of values that nodes make: tensors, and other values that a graph passes from one node to the next."""

READABLE = classes(torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""Classes of tensors that a graph may take as inputs without a look at the class."""


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether the tensor is of a wrapper subclass: it has no memory, and `__torch_dispatch__` is written in Python."""
    method = inspect.getattr_static(type(tensor), "__torch_dispatch__")
    if not isinstance(method, (classmethod, staticmethod)) or tensor.layout is not torch.strided:
        return False
    if not isinstance(getattr(method, "__func__", None), FunctionType):
        return False
    try:
        return tensor.untyped_storage().data_ptr() == 0 and tensor.device.type != "meta"
    except RuntimeError:  # the storage is invalid: it has never had memory
        return True


_UNINITIALIZED: tuple[type, ...] = (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer)


def unreadable(cls: type) -> str:
    """The reason why a graph takes no tensors of the class as inputs; empty if it may take them."""
    if getattr(cls, "__torch_dispatch__") != torch.Tensor.__torch_dispatch__:  # noqa: B009
        return "its __torch_dispatch__ gets the operators of the program, not those of a graph"
    if issubclass(cls, _UNINITIALIZED):
        return "it has no memory yet"
    return ""


@dataclass(slots=True)
class Input:
    """A graph input: the real tensor (or number) of this capture, its source and its placeholder."""

    tensor: Any
    source: Source
    node: fx.Node


class Tensors:
    """The graph of a capture, with the node that makes each trace tensor and the real tensor that each input
    represents.

    Attributes:
        graph: the graph under construction.
        inputs: the graph inputs, in the order of the placeholders.
        made: the traced value that each node made.
        writers: the nodes that wrote to a storage, by the storage's identity.
        mutated: the nodes that write to a tensor in place.
        region: number of the `checkpoint` call that the program is in, or None; becomes `node.meta["checkpoint"]`.
        redraws: whether the recomputation of that `checkpoint` call draws other random numbers.
        drawing_otherwise: nodes that draw in nested `checkpoint` calls of which exactly one draws anew.
        drawing: nodes that draw random numbers.
        checks: nodes that only raise an error.
        looking: nodes that raise an error for some values.
        asserts: whether some of the checks replace errors that the program itself raises.
        caught: whether the program catches an error that depends on tensors' values.
        guarded: whether the program would catch an error of an operation.
        read_guarded: whether the program would catch an error of reading a number from a GPU.
        branches: whether branches on tensors' values may become nodes in this graph, see `conditionals`.
        inner: identities of tensors of functions that transforms have run (`transform_body`), with the step that ran
            them.
        born: the step at which each tensor that a node makes was made, by identity.
        spent: the autograd nodes that a backward in the function has used up, by identity.
        inference: the trace tensors that were made in inference mode.
        kept_roots: roots of views whose storage offset the program has read, by the identity of the storage.
        named: regions of the profiler that the program opens, in order.
        computed: for inputs that have a history, the leaves from which they are computed, by identity.
    """

    branches = True

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm
        self.graph = Graph()
        self.inputs: list[Input] = []
        self.mutated: set[fx.Node] = set()
        self.c_callbacks = CCallbackMode(self)
        self.traced: dict[int, TraceTensor] = {}
        self.nodes: dict[int, fx.Node] = {}
        self.made: dict[fx.Node, object] = {}
        self.real: dict[int, torch.Tensor] = {}
        self.region: int | None = None
        self.redraws = False
        self.drawing_otherwise: set[fx.Node] = set()
        self._alive: list[object] = []
        self._made_leaves: set[int] = set()
        self.writers: dict[int, list[fx.Node]] = {}
        self._first: fx.Node | None = None
        self.number_node: Numbers = NumberNodes(self._append, self._shown)
        self.speculation = Speculation(self, vm.values.speculates)
        self.drawing: set[fx.Node] = set()
        self.looking: set[fx.Node] = set()
        self.inner: dict[int, int] = {}
        self._shared: set[int] = set()
        self._owners: dict[int, tuple[torch.Tensor, Source]] = {}
        self.checks: set[fx.Node] = set()
        self.asserts = self.caught = self.guarded = self.read_guarded = False
        self.reads = Reads(self)
        self.spent: dict[int, object] = {}
        self.born: dict[int, int] = {}
        self.kept_roots: dict[int, TraceTensor] = {}
        self.named: list[str] = []
        self.computed: dict[int, TraceTensor] = {}
        self.inference = InferenceTensors()
        self.runner = Runner(vm, self.inference)

    def release(self) -> None:
        """Drop all references to the program's tensors."""
        for table in (self.inputs, self.traced, self.real, self.made, self._alive, self._owners, self.spent):
            table.clear()
        self.computed.clear()
        self.kept_roots.clear()

    def is_special(self, tensor: TraceTensor) -> bool:
        """Whether writes to the tensor are refused, or the program made it a leaf."""
        return id(tensor) in self._made_leaves or id(tensor.storage_view.storage) in self._shared

    def describe_state(self) -> tuple[object, ...]:
        """What was noted besides nodes and tensors; equal descriptions follow as long as nothing else is noted."""
        flags = self.asserts, self.caught, self.guarded, self.read_guarded, self.redraws
        tables = (self.drawing_otherwise, self.inner, self._made_leaves, self._shared, self.spent, self.kept_roots)
        others = self.named, self.computed, self.reads.found
        return (*flags, *map(len, (*tables, *others)), self.speculation.describe_state())

    # -- identity -------------------------------------------------------------------------------------------------

    def handle(self, value: object) -> object:
        """The trace tensor of a real tensor that is an input; any other value unchanged."""
        return self.traced.get(id(value), value)

    def type_of(self, tensor: TraceTensor) -> type:
        """The class of a trace tensor as the program sees it."""
        real = self.real.get(id(tensor))
        if real is None:
            return self.vm.subclasses.class_of(tensor) or torch.Tensor
        return type(real)

    def stand_in(self, tensor: TraceTensor) -> torch.Tensor:
        """A real tensor for which isinstance and similar checks give the same results as for the traced one in
        eager.
        """
        real = self.real.get(id(tensor))
        if real is None:
            real = self.vm.subclasses.stand_in(tensor)
        return torch.empty(0, dtype=tensor.dtype) if real is None else real

    def read(self, value: torch.Tensor, source: Source) -> TraceTensor:
        """The trace tensor of a real tensor that was read from `source`; the tensor becomes an input of the graph."""
        if type(value) not in READABLE and is_wrapper(value):
            return self._read_wrapper(value, source)
        reason = "" if type(value) in READABLE else unreadable(type(value))
        if reason:
            raise Break(f"a tensor of class {type(value).__name__}", reason)
        try:
            layout_of(value)
        except Unsupported as error:
            raise Break(error.what, error.why or "", error.hint or "") from None
        opaque = is_opaque(value)
        sized = None if opaque else self.vm.sizes.of_tensor(value, source)
        self.vm.guards.check(source, native.TENSOR, value if sized is None else sized)
        if opaque:
            self.vm.guards.python(OpaqueMatch(meta_of(value)), [source])
        self.vm.register(value, source)
        traced = trace_like(value) if sized is None else trace_like(sized.meta)
        if _has_history(value):
            leaf, traced = traced, computed_before(traced)
            self.computed[id(leaf)] = leaf
        node = self._placeholder(source, meta_of(value) if sized is None else sized.meta)
        self.inputs.append(Input(value, source, node))
        self.traced[id(value)] = traced
        self.real[id(traced)] = value
        self.vm.sources[id(traced)] = source
        self.vm.subclasses.note_input(traced, type(value))
        self._owners[id(traced.storage_view.storage)] = value, source
        self.own(traced, node)
        if value.is_inference():
            self.inference.note(traced)
        return traced

    def _read_wrapper(self, value: torch.Tensor, source: Source) -> TraceTensor:
        """The trace tensor that stands for a wrapper: no graph takes it, only the tensors in it."""
        self.vm.guards.check(source, native.TENSOR, value)
        self.vm.register(value, source)
        traced = trace_like(meta_of(value))
        self.vm.subclasses.note_wrapper(traced, type(value))
        self.traced[id(value)] = traced
        self.real[id(traced)] = value
        self.vm.sources[id(traced)] = source
        self._alive.append(traced)
        return traced

    def read_number(self, value: int | float, size: Size | Real, source: Source) -> object:
        """A number that was read from `source` and differs between calls, as an input of the graph."""
        self.vm.guards.check(source, native.TYPE_IS, type(value))
        node = self._placeholder(source, size)
        self.inputs.append(Input(value, source, node))
        self.number_node.add_input(size, node)
        return to_torch(size)

    def object_input(self, value: object, source: Source) -> fx.Node:
        """The placeholder of an object that is not a tensor, for a node that takes the object unchanged."""
        known = next((each.node for each in self.inputs if each.tensor is value), None)
        if known is None:
            known = self._placeholder(source, None)
            self.inputs.append(Input(value, source, known))
        return known

    def prologue_input(self, value: Any, source: Source, number: Size | Real | None) -> fx.Node:
        """The placeholder of a tensor or number that the prologue makes."""
        node = self._placeholder(source, meta_of(value) if number is None else number)
        self.inputs.append(Input(value, source, node))
        return node

    @property
    def is_empty(self) -> bool:
        """Whether the graph computes nothing yet."""
        return self._first is None

    def is_input_memory(self, tensor: TraceTensor) -> bool:
        """Whether the tensor lies in the memory of an input."""
        return id(tensor.storage_view.storage) in self._owners

    def forbid_writes(self, tensor: TraceTensor) -> None:
        """Refuse later writes to the tensor, which shares memory with an object outside of the graph."""
        self._shared.add(id(tensor.storage_view.storage))

    def _placeholder(self, source: Source, val: object) -> fx.Node:
        name = _NOT_NAME.sub("_", source.text).strip("_")[-_MAX_NAME_LENGTH:].lstrip("_0123456789") or "input"
        name = "self_" if name == "self" else name  # fx keeps `self` for the graph module
        if self._first is None:
            node = self.graph.placeholder(name)
        else:
            with self.graph.inserting_before(self._first):
                node = self.graph.placeholder(name)
        node.target = node.name  # fx makes names unique; the target is the argument's name in the code
        node.meta["source"] = source.text
        node.meta["val"] = val
        return node

    def _append(self, kind: str, target: object, args: Args, kwargs: Kwargs | None = None) -> fx.Node:
        """Append a node to the graph, and note the first node that is not an input."""
        node = self.graph.create_node(kind, target, args, kwargs or {})
        if self._first is None:  # the first node may be a mode switch
            self._first = next(n for n in self.graph.nodes if n.op != "placeholder")
        return node

    def _shown(self, number: Symbol | Real) -> tuple[str, tuple[object, ...]]:
        if number.origin is not None:
            return self.reads.shown(number)
        container, source = self.vm.sizes.origin(number)
        return "size", (next(i.node for i in self.inputs if i.source is container), source.key)

    def own(self, tensor: TraceTensor, node: fx.Node) -> None:
        """Note that `node` makes `tensor`."""
        self.nodes[id(tensor)] = node
        self.made[node] = tensor
        self.born[id(tensor)] = self.vm.step
        self._alive.append(tensor)

    def made_tensors(self) -> Iterator[tuple[fx.Node, TraceTensor]]:
        """Each node that makes a tensor, with the tensor; other nodes make other values, such as an entered mode."""
        return ((node, value) for node, value in self.made.items() if type(value) is TraceTensor)

    def has_node(self, value: object) -> bool:
        """Whether a node makes this value, in this graph or an enclosing one."""
        return id(value) in self.nodes

    def node_outside(self, value: object) -> fx.Node:
        """The node of a value that this graph does not make.

        Raises:
            Break: no graph makes the value.
        """
        self.refuse_inner(value)
        raise Break("a tensor of unknown origin", "it was made where capture could not see it")

    def refuse_inner(self, value: object) -> None:
        """Refuse a tensor of a function inside a transform: outside, it would represent a batch or have derivatives.

        Raises:
            Restart: the value is such a tensor, and is used outside of the transform.
        """
        if id(value) in self.inner:
            stop = Break("a tensor leaves the function that a transform runs", "return it from the function")
            raise Restart(self.inner[id(value)], stop)

    # -- recording ------------------------------------------------------------------------------------------------

    def run(self, target: object, args: Args, kwargs: Mapping[str, object], method: str | None = None) -> Any:
        """Run a torch callable on trace tensors, and record a node if it made or changed a tensor.

        Args:
            method: record a call of this method of the first argument instead of a function call.

        Raises:
            Break: the call needs a tensor's values, or cannot be traced.
            UserError: an error that the call raises in eager as well.
        """
        if self.vm.subclasses.present:
            self._refuse_overridden(target, args, kwargs)
            out = self.vm.subclasses.desugar(target, args, kwargs)
            if out is not NO_OVERRIDE:
                return out
        return self._run(target, args, kwargs, method)

    def _run(self, target: object, args: Args, kwargs: Mapping[str, object], method: str | None) -> PyTree:
        EAGER_CALLS.begin()
        granted = self.vm.sizes.owner.granted
        args, kwargs = decided_flags(args), {name: decided_flags(value) for name, value in kwargs.items()}
        if self.vm.prologue.ops or self.vm.prologue.arrays:
            args = self.vm.prologue.inputs.lift(args, target in INDEXING)
            kwargs = self.vm.prologue.inputs.lift(kwargs)
        try:
            out, written = self._attempt(target, args, kwargs)
        except ValuesNeededError as needed:
            known = len(self.vm.effects.deferred)
            with self.speculation.preferring_reads():
                out = static_form(self.vm, target, args, kwargs, method)
            if out is not NotImplemented:
                self.runner.warn(needed.given_warnings, known)
                return out
            try:
                reads = self.vm.values.are_read or (self.vm.sizes.dynamic is False and _is_factor(kwargs))
                if not reads or self is not self.vm.outermost:
                    raise
                with reading(self.reads):
                    out, written = self._attempt(target, args, kwargs)
                note_read(self.vm, args)
            except ValuesNeededError:
                self.reads.take()
                out = static_form(self.vm, target, args, kwargs, method)
                if out is NotImplemented:
                    raise needed.to_break() from None
                return out
        raises = self.vm.sizes.owner.granted != granted
        if raises or may_raise(self.vm, target, args):
            note_caught(self.vm, target)
        note_op(self.vm)
        return self.note(out, written, self.runner.drew, target, args, kwargs, method, raises)

    def _refuse_overridden(self, target: object, args: Args, kwargs: Mapping[str, object]) -> None:
        """Refuse an operation of which a `__torch_function__` would see another call than capture makes."""
        for tensor in self.vm.subclasses.overridden((*args, *kwargs.values())):
            name = self.type_of(tensor).__name__
            raise Break(f"{name_of(target)} of a {name}", "capture does not know what its __torch_function__ would get")

    def _attempt(self, target: object, args: Args, kwargs: Mapping[str, object]) -> tuple[Any, list[TraceTensor]]:
        if self.vm.python.arrays:
            refuse_arrays(name_of(target), args, kwargs)
        try:
            return self.runner.attempt(target, args, kwargs)
        except UserError as error:
            if self.runner.drew:  # a program that catches the error continues with the generator's state after the draw
                why = f"random numbers are drawn before it raises {type(error.error).__name__}"
                raise Break(f"{name_of(target)} fails", why, "mend the call, or its arguments") from None
            storages = dict.fromkeys(id(tensor.storage_view.storage) for tensor in self.runner.refused)
            check_refused_write(self.vm, [self._owners[each] for each in storages if each in self._owners])
            raise

    def _note_write(self, tensor: TraceTensor, node: fx.Node) -> None:
        self._refuse_shared(tensor)
        if id(tensor.storage_view.storage) in self._owners:
            check_write(self.vm, tensor, *self._owners[id(tensor.storage_view.storage)])
        self.writers.setdefault(id(tensor.storage_view.storage), []).append(node)

    def note(
        self,
        out: object,
        written: Sequence[TraceTensor],
        drew: bool,
        target: object,
        args: Args,
        kwargs: Mapping[str, object],
        method: str | None = None,
        raises: bool = False,
    ) -> Any:
        """Record a call that has run, unless it has no visible effect; returns its result.

        Args:
            out: the result.
            written: the tensors that the call wrote to.
            drew: whether the call draws random numbers.
            raises: whether the call raises an error for some unbacked sizes; its result is valid for the others.
        """
        new = self.reads.take()
        if not written and not drew and not new and not self._fresh(out):
            if isinstance(out, torch.Tensor) and type(out) is not TraceTensor:
                raise Break(f"{name_of(target)} gives a tensor that capture did not see", "its values are not an input")
            return out
        self.vm.work += 1
        for tensor in () if self.vm.ambient.inference else written:
            # may raise, before anything is recorded: the program may catch the error
            self.inference.refuse_write(tensor)
        node = self._record(target, args, kwargs, method)
        kinds = (drew, self.drawing), (self.runner.looked, self.looking), (raises, self.checks), (written, self.mutated)
        for applies, nodes in kinds:
            if applies:
                nodes.add(node)
        for tensor in written:
            self._note_write(tensor, node)
        self._assign(out, node)
        self.reads.record(node, new, out)
        if isinstance(out, SYMBOLIC) and len(new) == 1:
            node.meta["val"] = new[0][0]
            self.number_node.add_input(new[0][0], node)
        return out

    def check(self, fact: Assumed, text: str, error: str) -> None:
        """Record a check of a fact about a number, which raises `error` with this text where the fact does not hold."""
        compute = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, ">=": operator.ge}[fact.sign]
        self.vm.work += 1
        condition = self._append("call_function", compute, (self.number_node(fact.left), self.number_node(fact.right)))
        condition.meta["val"] = None
        node = self._record(require, (condition, text, error), {}, None)
        node.meta["val"] = None
        self.checks.add(node)

    def record_boundary(self, target: EagerBoundary, args: Args) -> None:
        """Record an eager boundary that has no result."""
        self.vm.work += 1
        self._record(target, args, {}, None).meta["val"] = None

    def note_used_up(self, nodes: Iterable[object]) -> None:
        """Note the autograd nodes that a backward has run. Nodes that saved nothing, such as those of leaves, can run
        repeatedly.
        """
        self.spent |= {id(node): node for node in nodes if is_backward_freed(node)}

    def writers_of(self, node: fx.Node) -> list[fx.Node]:
        """The nodes that wrote to the memory of the node's tensor so far."""
        tensor = self.made.get(node)
        return self.writers.get(id(tensor.storage_view.storage), []) if type(tensor) is TraceTensor else []

    def first_view(self, tensor: TraceTensor) -> int | None:
        """The step that made the first tensor in this tensor's memory; None if there is no such step, or if nothing was
        written to the memory.
        """
        memory = tensor.storage_view.storage
        if not self.writers.get(id(memory)):
            return None
        beside = (t for _, t in self.made_tensors() if t.storage_view.storage is memory and id(t) not in self.real)
        return min((self.born[id(t)] for t in beside), default=None)

    def make_leaf(self, tensor: TraceTensor) -> TraceTensor:
        """Record `tensor.requires_grad_()` on a tensor that the graph makes and that does not leave the graph."""
        self.runner.run(torch.Tensor.requires_grad_, (tensor,), {})
        self.vm.work += 1
        node = self._record(None, (tensor,), {}, "requires_grad_")
        node.meta["val"] = meta_of(tensor)
        self.mutated.add(node)
        self._made_leaves.add(id(tensor))
        return tensor

    # -- branches ---------------------------------------------------------------------------------------------------

    def phi_tensor(self, condition: TraceTensor, a: TraceTensor | None, b: TraceTensor | None) -> TraceTensor:
        """A new tensor with the metadata and history of `a` if `condition` is true, else of `b`; one of them may be
        None.
        """
        x, y = (b if a is None else a), (a if b is None else b)
        if self.vm.subclasses.present and self.vm.subclasses.holds_instance([x, y]):
            raise Break("a branch that gives a tensor of a subclass", "its class would depend on the tensor's value")
        out: TraceTensor = self.runner.run(_choose, (condition, x, y), {})
        self._shared |= {id(t.storage_view.storage) for t in (x, y, out) if t is not None}
        self._alive += [x, y]
        return out

    def _refuse_shared(self, tensor: TraceTensor) -> None:
        if id(tensor.storage_view.storage) in self._shared:
            raise Break("a write to a tensor that came out of a branch", "it may share its memory with another one")
        root = tensor.storage_view.storage.root
        if root is not None and may_overlap(root.layout.val.shape, root.layout.val.stride):
            raise Break("a write to an argument whose elements share memory", "a graph's values have an element each")

    def is_made_leaf(self, node: fx.Node) -> bool:
        """Whether the program made the node's tensor a leaf."""
        tensor = self.made.get(node)
        return tensor is not None and id(tensor) in self._made_leaves

    def contains_made_leaf(self, outputs: Iterable[TraceTensor]) -> bool:
        """Whether the program made one of the tensors a leaf."""
        return any(id(t) in self._made_leaves for t in outputs)

    def replace_by_conditional(
        self,
        target: Conditional,
        condition: TraceTensor,
        operands: list[fx.Node],
        nodes: list[fx.Node],
        metas: tuple[object, ...],
        outputs: list[TraceTensor],
    ) -> None:
        """Replace the nodes of a branch's two arms by one node; `outputs` are the tensors that it returns."""
        node = self._append("call_function", target, (self.nodes[id(condition)], *operands))
        node.meta["val"] = metas
        node.meta["at"] = self.vm.where()
        node.meta["callers"] = self.vm.frames[-1].callers if self.vm.frames else None
        gone = set(nodes)
        for group in (self.mutated, self.drawing, self.drawing_otherwise):
            if not group.isdisjoint(gone):
                group -= gone
                group.add(node)
        for writers in self.writers.values():
            if not gone.isdisjoint(writers):
                writers[:] = [*(each for each in writers if each not in gone), node]
        for each in reversed(nodes):
            made = self.made.pop(each, None)
            if made is not None and self.nodes.get(id(made)) is each:
                del self.nodes[id(made)]
            self.graph.erase_node(each)
        if self._first in gone:
            self._first = next(n for n in self.graph.nodes if n.op != "placeholder")
        for index, tensor in enumerate(outputs):
            child = self.graph.call_function(_getitem, (node, index))
            child.meta["val"] = metas[index]
            self.own(tensor, child)

    def _fresh(self, out: object) -> bool:
        if type(out) in TRACED:
            return not self.has_node(out)
        if isinstance(out, (list, tuple)):
            return any(map(self._fresh, out))
        return isinstance(out, dict) and any(map(self._fresh, out.values()))

    def _record(self, target: object, args: Args, kwargs: Mapping[str, object], method: str | None) -> fx.Node:
        if self.vm.ambient.dirty:
            self.vm.ambient.sync(self.graph)
        kwargs = dict(kwargs)
        if self.vm.ambient.names_devices and target in MAKERS and kwargs.get("device") is None:
            kwargs["device"] = torch.get_default_device()
        arguments = self.argument(args), self.argument(kwargs)
        if EAGER_CALLS.names:
            target, arguments, method = self._in_eager(method or target), (arguments, {}), None
        if method is not None:
            node = self._append("call_method", method, *arguments)
        else:
            node = self._append("call_function", target, *arguments)
        if self.region is not None:
            node.meta["checkpoint"] = self.region
        node.meta["at"] = self.vm.where()
        node.meta["callers"] = self.vm.frames[-1].callers if self.vm.frames else None
        if isinstance(target, EagerBoundary):
            node.meta["step"] = self.vm.step
        return node

    def _in_eager(self, call: Any) -> EagerCall:
        """A node target that runs a call in eager which compiled code does not support, for example on sparse
        tensors.
        """
        names, EAGER_CALLS.names = EAGER_CALLS.names, []
        what = f"{names[-1]} {EAGER_CALLS.why}"
        self.refuse_cut(what)
        if call in DERIVATIVES:
            raise Break(what, "derivatives inside of a graph stay whole")
        if not self.vm.ambient.inside_region(self.graph):
            return EagerCall(call, names)
        gradients_on, *casts, _ = present_modes()
        casts = [(device, *cast) for device, cast in zip(DEVICES, casts, strict=True)]
        return EagerCall(call, names, (gradients_on, *casts))

    def refuse_cut(self, what: str) -> None:
        """Require that the graph can be cut at this point, which is possible only between nodes of its outermost level.

        Raises:
            Break: the program is in a checkpoint, a transform or a branch, or it has computed gradients.
        """
        if type(self) is not Tensors or self.region is not None or self.vm.control.branching:
            raise Break(f"{what} inside checkpoint, a transform or a branch", "a graph is not cut in there")
        if any(node.target in DERIVATIVES for node in self.graph.nodes):
            raise Break(f"{what} after gradients were computed", "a graph with its own gradients stays whole")

    def _assign(self, out: Any, node: fx.Node) -> None:
        """Give each new tensor of a result its node."""
        if type(out) is TraceTensor:
            node.meta.setdefault("val", meta_of(out))
            if id(out) not in self.nodes:
                self.own(out, node)
                if self.vm.ambient.inference and out.storage_view.parent is None:
                    self.inference.note(out)
        elif type(out) in TRACED:
            node.meta["val"] = None
            self.own(out, node)
        elif isinstance(out, (list, tuple)):
            node.meta["val"] = tuple(
                meta_of(o) if type(o) is TraceTensor else None if type(o) in TRACED else o for o in out
            )
            for index, item in enumerate(out):
                if self._fresh(item):
                    child = self.graph.call_function(_getitem, (node, index))
                    self._assign(item, child)
        else:
            node.meta["val"] = None

    # -- arguments of nodes -----------------------------------------------------------------------------------------

    def writes_inputs(self) -> bool:
        """Whether the graph writes to memory that existed before it."""
        return any(id(tensor.storage_view.storage) in self.writers for tensor in self.traced.values())

    def is_written(self, entry: Input) -> bool:
        """Whether the graph writes to an input that the prologue does not make."""
        traced = self.traced.get(id(entry.tensor))
        return traced is not None and id(traced.storage_view.storage) in self.writers

    def argument(self, value: Any) -> Any:
        """A value as an argument of an fx node."""
        kind = type(value)
        if kind in TRACED:
            return self.nodes.get(id(value)) or self.node_outside(value)
        if kind is tuple or kind is list:
            return kind([self.argument(v) for v in value])
        if kind is dict:
            return {k: self.argument(v) for k, v in value.items()}
        if kind in _ATOMS or kind is fx.Node:
            return value
        if kind is torch.SymInt:
            return self.number_node(from_torch(value))
        if kind is torch.SymFloat:
            return self.number_node(as_real(from_torch(value)))
        if kind is slice:
            return slice(self.argument(value.start), self.argument(value.stop), self.argument(value.step))
        if isinstance(value, tuple):
            return tuple(self.argument(v) for v in value)
        return _constant_argument(value)


def _constant_argument(value: object) -> object:
    """A value that is a constant in an fx node: plain numbers, text, functions.

    Raises:
        Break: a graph cannot contain such a value.
    """
    if isinstance(value, (numpy.number, numpy.bool_)):
        return value.item()  # operators treat them as plain numbers
    if isinstance(value, (int, float, str)):
        return value
    if callable(value) and hasattr(value, "__qualname__"):
        return value
    what = f"a {type(value).__name__} as argument of a tensor operation"
    raise Break(what, "a graph holds tensors and plain numbers")


class OpaqueMatch:
    """The guard on properties of a sparse or quantised tensor that its class, shape, dtype and dispatch keys do not
    show.
    """

    def __init__(self, meta: Any) -> None:
        self.meta: OpaqueMeta = meta
        self.__name__ = self.__qualname__ = f"is_alike[{meta.layout}, {meta.details}]"

    def __call__(self, tensor: torch.Tensor) -> bool:
        return is_alike(self.meta, tensor)


def _is_factor(kwargs: Mapping[str, object]) -> bool:
    """Whether the tensor whose number an operation reads is only a factor: no size and no branch depends on it."""
    factor = kwargs.get("alpha", kwargs.get("value"))
    return type(factor) is TraceTensor and not factor.dim() and factor.is_floating_point()


def _choose(condition: Any, a: Any, b: Any) -> Any:
    return torch.where(condition != 0, a, b)


def _has_history(tensor: torch.Tensor) -> bool:
    try:
        return tensor.requires_grad and not tensor.is_leaf
    except RuntimeError as error:  # a view whose base was written in another mode: its use raises this error
        raise Break("a tensor that autograd forbids to use", str(error).split(". ")[0]) from None


_getitem = operator.getitem

_MAX_NAME_LENGTH = 80
"""Maximum number of characters in the name of a graph input; its comment has the whole name."""

_NOT_NAME = re.compile(r"\W+")
_ATOMS = classes(
    *(int, float, bool, str, complex, type(None), type(...)),
    *(torch.dtype, torch.device, torch.memory_format, torch.layout),
)


@READ(torch.Tensor)
def read_tensor(vm: Interpreter, value: torch.Tensor, source: Source) -> TraceTensor:
    """Read a real tensor, which becomes a graph input."""
    return vm.tensors.read(value, source)
