"""Copies calls of equal modules: a decoder's blocks after the second one are not interpreted.

The second call of a class is recorded: its guards on what is reached through the module, and the nodes that it appended
to the graph. A further call appends copies of the nodes, with the other module's tensors and arguments, if the recorded
guards hold for its module, its arguments are alike and the state of the capture is the same. Only a call whose one
effect are nodes and its result is copied. Everything else is interpreted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING

from torch import fx, nn

from smelt.base.class_tables import classes, isinstance
from smelt.capture import _native as native
from smelt.capture.core.breaks import Restart
from smelt.capture.core.sources import PROLOGUE, Source
from smelt.capture.equal_calls.context import (
    Indescribable,
    describe,
    describe_context,
    describe_tensor,
    describe_traces,
    describe_writes,
    is_plain_result,
)
from smelt.capture.equal_calls.fragment import Fragment
from smelt.capture.equal_calls.relative_guards import Check, RelativeGuards
from smelt.graph.trace.trace import TraceTensor
from smelt.shapes.real import Real
from smelt.shapes.size import Size

if TYPE_CHECKING:
    from smelt.capture.core.interface import Args, Interpreter, Kwargs

MIN_NODES = 8
"""Minimum number of graph nodes of a call that is worth recording."""
MAX_RECORDINGS = 4
"""Maximum number of recorded calls of one class."""
MAX_FAILURES = 2
"""Maximum number of calls of one class that turn out not to be recordable."""

_GRADIENTS = frozenset({"backward", "grad"})
NOT_COPIED = object()


@dataclass
class Situation:
    """What a call is given.

    Attributes:
        context: the state of the capture.
        arguments: a description of the arguments, and of what the program has written to attributes and variables, in
            which the tensors are numbered.
        tensors: these tensors.
        described: a description of each of them.
    """

    context: tuple[object, ...]
    arguments: object
    tensors: list[TraceTensor]
    described: list[tuple[object, ...]]


@dataclass
class Recording:
    """What one call did.

    Attributes:
        guards: the guards on its module.
        inputs: the placeholders of the module's tensors, by the step that reads the tensor.
        registered: the steps whose values became external objects.
        fragment: the nodes that it appended, and its result.
    """

    situation: Situation
    guards: RelativeGuards
    inputs: dict[int, fx.Node]
    registered: list[int]
    fragment: Fragment


@dataclass
class _Known:
    """The calls of one class so far."""

    recordings: list[Recording] = field(default_factory=list)
    failures: int = 0


class EqualCalls:
    """The recorded calls of one capture.

    Attributes:
        allowed: whether calls may be copied.
        copied: number of calls that were copied.
    """

    def __init__(self, vm: Interpreter, allowed: bool) -> None:
        self.vm, self.allowed = vm, allowed
        self.copied = 0
        self._known: dict[type, _Known] = {}
        self._records = False

    def release(self) -> None:
        """Drop the references to the program's objects."""
        self._known.clear()

    def begin(self, code: CodeType) -> None:
        """Begin the capture of a frame; calls are not copied if its code seems to compute gradients."""
        self.allowed = self.allowed and _GRADIENTS.isdisjoint(code.co_names)

    def require_history(self) -> None:
        """Start over without copies if there are any, because tensors that a copied call makes have no autograd
        history of their own.

        Raises:
            Restart: calls were copied.
        """
        self.allowed = False
        if self.copied:
            raise Restart(-1, None, self.vm.plan.without("copies", "gradients are computed inside"))

    def call(self, module: nn.Module, args: Args, kwargs: Kwargs, interpret: Callable[[], object]) -> object:
        """The result of calling a module without hooks: by a copy of an earlier call, or else by `interpret`."""
        source = self.vm.sources.get(id(module))
        if source is None or not self._may_repeat(source):
            return interpret()
        known = self._known.get(type(module))
        graph = self.vm.tensors.graph
        if known is None:
            before = len(graph.nodes)
            out = interpret()
            worth = len(graph.nodes) - before >= MIN_NODES
            self._known[type(module)] = _Known(failures=0 if worth else MAX_FAILURES)
            return out
        if known.failures >= MAX_FAILURES:
            return interpret()
        try:
            now = self._situation(args, kwargs)
        except Indescribable:
            known.failures += 1
            return interpret()
        for recording in known.recordings:
            out = self._copy(recording, now, module, source)
            if out is not NOT_COPIED:
                return out
        if self._records or len(known.recordings) == MAX_RECORDINGS:
            return interpret()
        return self._record(known, now, module, source, (args, kwargs), interpret)

    def _may_repeat(self, source: Source) -> bool:
        """Whether the module is an item of a list of modules, and calls may be copied here."""
        if not self.allowed or self.vm.tensors is not self.vm.outermost:
            return False
        return source.kind == native.MODULE_MEMBER and source.key[1].isdecimal()

    def _situation(self, args: Args, kwargs: Kwargs) -> Situation:
        tensors: list[TraceTensor] = []
        arguments = [describe(self.vm, args, tensors), describe(self.vm, kwargs, tensors)]
        arguments.append(describe_writes(self.vm, tensors))
        if any(id(tensor) not in self.vm.outermost.nodes for tensor in tensors):
            raise Indescribable
        described = [describe_tensor(self.vm, tensor) for tensor in tensors]
        return Situation(describe_context(self.vm), arguments, tensors, described)

    # -- recording --------------------------------------------------------------------------------------------------

    def _record(
        self,
        known: _Known,
        now: Situation,
        module: nn.Module,
        source: Source,
        given: tuple[Args, Kwargs],
        interpret: Callable[[], object],
    ) -> object:
        vm, tensors = self.vm, self.vm.outermost
        traces, externals, generators = describe_traces(vm), len(vm.externals()), len(vm.python.generators)
        writers = {key: len(nodes) for key, nodes in tensors.writers.items()}
        last = next(iter(reversed(tensors.graph.nodes)), None)
        self._records = True
        try:
            result = interpret()
        finally:
            self._records = False
        try:
            if last is None or describe_traces(vm) != traces or self._situation(*given) != now:
                raise Indescribable
            if any(generator.must_close for generator in vm.python.generators[generators:]):
                raise Indescribable
            nodes = [node for node in _after(last) if node.op != "placeholder"]
            fragment = Fragment(vm, nodes, result, now.tensors)
            fragment.refuse_writes({key for key, each in tensors.writers.items() if len(each) != writers.get(key)})
            guards = RelativeGuards(vm, module, source)
            if not _is_written(vm, module, guards.values(module) or ()):
                registered = guards.registered(vm, vm.externals()[externals:], module)
                inputs = _inputs(vm, guards, module)
                _refuse_operands(vm, fragment, guards, {*inputs.values(), *(tensors.nodes[id(t)] for t in now.tensors)})
                known.recordings.append(Recording(now, guards, inputs, registered, fragment))
        except Indescribable:
            known.failures += 1
        return result

    # -- copying ----------------------------------------------------------------------------------------------------

    def _copy(self, recording: Recording, now: Situation, module: nn.Module, source: Source) -> object:
        """The result of a copy of the recorded call; NOT_COPIED if the recorded call is another one than this."""
        operands = self._operands(recording.situation, now)
        values = None if operands is None else recording.guards.values(module)
        if operands is None or values is None or _is_written(self.vm, module, values):
            return NOT_COPIED
        sources = recording.guards.sources(source)
        if not recording.guards.are_new(self.vm, values, sources):
            return NOT_COPIED
        if not self._repeat_guards(recording, values, source, sources, operands):
            return NOT_COPIED
        for step in recording.registered:
            if id(values[step]) not in self.vm.sources:
                self.vm.register(values[step], sources[step])
        self.copied += 1
        return recording.fragment.copy(operands, now.tensors)

    def _operands(self, before: Situation, now: Situation) -> dict[fx.Node, fx.Node] | None:
        """The node of each tensor of the recorded call's situation -> that of this call's; None if they differ."""
        if before.context != now.context or before.arguments != now.arguments or before.described != now.described:
            return None
        nodes, operands = self.vm.outermost.nodes, {}
        for a, b in zip(before.tensors, now.tensors, strict=True):
            if a is not b and not (is_plain_result(self.vm, a) and is_plain_result(self.vm, b)):
                return None
            operands[nodes[id(a)]] = nodes[id(b)]
        return operands

    def _repeat_guards(
        self,
        recording: Recording,
        values: Sequence[object],
        source: Source,
        sources: Sequence[Source],
        operands: dict[fx.Node, fx.Node],
    ) -> bool:
        """Add the guards on this call's module, and the placeholders of its tensors to `operands`; False if one of the
        values is an input of another kind.
        """
        guards = self.vm.guards
        self.vm.work += 1
        try:
            for check in recording.guards.checks:
                guards.blamed = (check.at,)
                path = sources[check.step] if check.step >= 0 else source
                if check.shared is not None:
                    guards.same(check.shared, path)
                elif check.kind == native.ALIASED and type(check.operand) is int:
                    guards.same(sources[check.operand] if check.operand >= 0 else source, path)
                elif check.kind == native.TENSOR or check.kind == native.EQ and type(check.operand) in _NUMBERS:
                    handle = self.vm.external(values[check.step], path)
                    if not self._is_alike(recording, check, values[check.step], handle, operands):
                        return False
                else:
                    guards.check(path, check.kind, check.operand)
        finally:
            guards.blamed = ()
        return True

    def _is_alike(
        self, recording: Recording, check: Check, value: object, handle: object, operands: dict[fx.Node, fx.Node]
    ) -> bool:
        """Whether a number or tensor of the module was read as in the recorded call: as the number itself, or as an
        input with the same metadata, which is added to `operands`.
        """
        if check.kind == native.EQ:
            return handle is value  # a number that has changed between calls becomes an input
        tensors, before = self.vm.outermost, recording.inputs[check.step]
        if type(handle) is not TraceTensor or id(handle) not in tensors.real:
            return False
        operands[before] = tensors.nodes[id(handle)]
        recorded: TraceTensor = tensors.made[before]
        return describe_tensor(self.vm, recorded) == describe_tensor(self.vm, handle)


_NUMBERS = classes(int, float)


def _after(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes that follow in the graph."""
    while (node := node.next).op != "root":
        yield node


def _is_written(vm: Interpreter, module: nn.Module, values: Sequence[object]) -> bool:
    """Whether the program has written to the module, or to one of these objects."""
    own = {id(module), *map(id, values)}
    return any(target in own for _, target, _ in vm.effects.stores)


def _inputs(vm: Interpreter, guards: RelativeGuards, module: nn.Module) -> dict[int, fx.Node]:
    """The placeholders of the module's tensors.

    Raises:
        Indescribable: one of them has a history from before the frame, or its values were assumed.
    """
    tensors, found = vm.outermost, {}
    values = guards.values(module) or ()
    for step in {check.step for check in guards.checks if check.kind == native.TENSOR}:
        handle = tensors.traced.get(id(values[step]))
        if handle is None or handle.requires_grad and not handle.is_leaf:
            raise Indescribable
        found[step] = tensors.nodes[id(handle)]
        if tensors.speculation.assumes(found[step]):
            raise Indescribable
    return found


def _refuse_operands(vm: Interpreter, fragment: Fragment, guards: RelativeGuards, known: set[fx.Node]) -> None:
    """Require that the recorded nodes take, from outside, `known` nodes, numbers, and tensors that do not belong to the
    module.

    Raises:
        Indescribable: they take what another call might have to take from elsewhere.
    """
    sources = {entry.node: entry.source for entry in vm.outermost.inputs}
    for node in fragment.outside - known:
        source = sources.get(node)
        if isinstance(node.meta["val"], (Size, Real)):
            continue
        if source is None or source.kind == PROLOGUE or guards.covers(vm, source):
            raise Indescribable
