"""Branches on tensors' values as nodes of the graph: both arms are captured, up to their join.

So layers that are skipped at random, or rarely needed corrections, do not end the graph. An arm may compute with
tensors, write to inputs of the graph, set variables and change objects that the function made. The changes of the first
arm are undone before the second arm is captured, and `merge` combines the states of both at the join.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from smelt.base.class_tables import isinstance
from smelt.capture._native import NULL
from smelt.capture.control_flow.asserts import assume_no_raise
from smelt.capture.control_flow.merge import Arm, CannotMerge, Merge
from smelt.capture.control_flow.unbacked_conditions import as_condition, check_predicate, predicate_of
from smelt.capture.core.breaks import Break, Restart, UserError, bare
from smelt.capture.core.conditional_value import PhiValue, refuse_undecided
from smelt.capture.core.frames import RETURN, Frame, Unread
from smelt.capture.core.interface import Interpreter
from smelt.capture.core.liveness import live_slots
from smelt.capture.core.postdominators import RETURNS, join_of
from smelt.capture.core.prologue_value import PrologueValue
from smelt.capture.python import containers
from smelt.capture.python.snapshot import CannotUndo, Snapshot, set_content
from smelt.capture.python.stack_opcodes import read_variable
from smelt.capture.tensors.ambient import present_modes
from smelt.capture.tensors.graph_module import CapturedGraph
from smelt.graph.ir.meta import meta_of
from smelt.graph.ir.symint import SYMBOLIC_CLASSES
from smelt.graph.nodes.conditional import Conditional, cut_out, operands_of
from smelt.graph.trace.trace import TraceTensor


def jump(vm: Interpreter, f: Frame, value: object, when_true: int, when_false: int) -> object | None:
    """Jump by the truth of `value`; RETURN where both arms of a branch return.

    Raises:
        Break: the truth value depends on a tensor's value, and the two arms cannot become one node.
    """
    if type(value) is PhiValue:
        if not value.plain:
            value.read()
        if bool(value.true) == bool(value.false):
            value = bool(value.true)
        elif not value.true:
            return jump(vm, f, value.condition, when_false, when_true)
        else:
            value = value.condition
    if type(value) is PrologueValue:
        return _jump_on_prologue(vm, f, value, when_true, when_false)
    if type(value) is TraceTensor:
        known = vm.control.decided.get(id(value))
        if known is None and vm.tensors.speculation.value(value) is None and value.numel() == 1:
            if assume_no_raise(vm, f, value, when_true, when_false):
                return None
            return capture_arms(vm, f, value, when_true, when_false)
        value = value if known is None else known
    elif type(value) in SYMBOLIC_CLASSES:
        return _jump_on_number(vm, f, value, when_true, when_false)
    f.pc = when_true if containers.truth(vm, value) else when_false
    return None


def _jump_on_prologue(
    vm: Interpreter, f: Frame, value: PrologueValue, when_true: int, when_false: int
) -> object | None:
    """Branch on a random number: record a node with both arms, or else capture this call's arm and guard the
    condition.
    """
    branch = (id(f.code), f.pc - 1)
    if not value.constant and branch not in vm.control.refused and vm.control.branches and vm.tensors.branches:
        try:
            return jump(vm, f, vm.prologue.inputs.condition(value), when_true, when_false)
        except Break:
            if branch not in vm.control.refused:
                raise
            raise Restart(-1, None) from None  # capture restarts, without this branch as a node
    f.pc = when_true if containers.truth(vm, value) else when_false
    return None


def _jump_on_number(vm: Interpreter, f: Frame, value: object, when_true: int, when_false: int) -> object | None:
    """Branch on an unbacked number: record a node; if the branch cannot be one, the graph ends where the number is
    read.
    """
    predicate, branch = predicate_of(vm, value), (id(f.code), f.pc - 1)
    if predicate is not None and branch not in vm.control.refused and branch not in vm.control.branching:
        if assume_no_raise(vm, f, predicate, when_true, when_false, check_predicate):
            return None
        if vm.control.branches_on_numbers and vm.control.branches and vm.tensors.branches:
            try:
                return capture_arms(vm, f, as_condition(vm, predicate), when_true, when_false)
            except Break as stop:
                bare(stop)
                vm.control.refused.add(branch)
    f.pc = when_true if containers.truth(vm, value) else when_false
    return None


def capture_arms(vm: Interpreter, f: Frame, condition: TraceTensor, when_true: int, when_false: int) -> object | None:
    """Capture both arms of the jump before `f.pc` and continue at their join.

    Raises:
        Break: the branch cannot be a node.
    """
    branch = (id(f.code), f.pc - 1)
    if (
        branch in vm.control.refused
        or branch in vm.control.branching
        or not (vm.control.branches and vm.tensors.branches)
    ):
        raise containers.tensor_value("a branch on a tensor's value")
    vm.work += 1
    vm.control.branching.add(branch)
    try:
        return _Branch(vm, f, condition).run(when_true, when_false)
    except (Break, UserError, CannotMerge, CannotUndo) as stop:
        vm.control.refused.add(branch)
        reason = "one of them raises" if isinstance(stop, UserError) else getattr(stop, "title", None) or str(stop)
        bare(stop)
    finally:
        vm.control.branching.discard(branch)
    raise _cannot_be_node(reason)


def _cannot_be_node(reason: str) -> Break:
    refused = containers.tensor_value("a branch on a tensor's value")
    refused.why += f", and its two arms cannot be one node: {reason}"
    return refused


class _Branch:
    """The state of one branch while its arms are captured."""

    def __init__(self, vm: Interpreter, f: Frame, condition: TraceTensor) -> None:
        self.vm, self.f, self.condition, self.tensors = vm, f, condition, vm.tensors
        join = join_of(f.decoded, f.pc - 1)
        if join is None or f.generator is not None:
            raise CannotMerge("they do not meet in this function")
        if self.tensors.region is not None or vm.ambient.inside_region(self.tensors.graph):
            raise CannotMerge("it is under torch.no_grad, autocast or checkpoint")
        self.join = join
        self.locals, self.stack = f.locals[:], f.stack[:]
        self.modes = present_modes()
        roots = [value for frame in vm.frames for value in (*frame.locals, *frame.stack, frame.kw_names)]
        self.before = Snapshot(vm, roots)

    def run(self, when_true: int, when_false: int) -> object | None:
        true, false = self._arm(when_true, True), self._arm(when_false, False)
        f, merging = self.f, Merge(self.vm, self.condition, self.before)
        if self.join == RETURNS:
            f.value = merging.expression(true.value, false.value)
        else:
            live = live_slots(f.decoded, self.join)
            stack = [merging.expression(a, b) for a, b in zip(true.stack, false.stack, strict=True)]
            slots = enumerate(zip(true.locals, false.locals, strict=True))
            f.locals[:] = [
                a if a is b else merging(self._read(i, a), self._read(i, b)) if i in live else NULL
                for i, (a, b) in slots
            ]
            f.stack[:] = stack
            f.pc = self.join
        for key, merged in [(key, merging.contents(key, true, false)) for key in true.changes | false.changes]:
            set_content(self.before.contents[key][0], merged)
        self._replace(true, false, merging)
        return RETURN if self.join == RETURNS else None

    def _read(self, slot: int, value: object) -> Any:
        """The value of a variable after one arm. A variable that only the other arm has read is read here as well, with
        guards.
        """
        if type(value) is not Unread:
            return value
        self.f.locals[slot] = value
        return read_variable(self.vm, self.f, slot)

    # -- one arm ------------------------------------------------------------------------------------------------------

    def _arm(self, start: int, truth: bool) -> Arm:
        vm, f, tensors = self.vm, self.f, self.tensors
        last = next(iter(reversed(tensors.graph.nodes)))
        f.pc, f.locals[:], f.stack[:] = start, self.locals, self.stack
        numbers = tensors.number_node.known()
        speculates, tensors.speculation.allowed = tensors.speculation.allowed, False
        acts = vm.prologue.acts
        vm.control.decided[id(self.condition)] = truth
        if len(vm.control.branching) == 1:
            vm.control.arm_iterations = 0
        result, instructions = None, f.decoded.instructions
        try:
            while f.pc != self.join and result is None:
                handler, arg = instructions[f.pc]
                f.pc += 1
                result = handler(vm, f, arg)
                if vm.control.undecided and result is None:
                    refuse_undecided(f)
        finally:
            tensors.speculation.allowed = speculates
            del vm.control.decided[id(self.condition)]
        if result is not (RETURN if self.join == RETURNS else None):
            raise CannotMerge("they do not meet in this function")
        if vm.prologue.acts != acts:
            raise CannotMerge("random numbers are drawn, or arrays of numpy written, in one of them")
        nodes = self._added(last)
        tensors.number_node.restore(numbers)
        self._check_writes(set(nodes))
        return Arm(nodes, f, self.before.take_changes())

    def _added(self, last: fx.Node) -> list[fx.Node]:
        if present_modes() != self.modes or self.vm.ambient.inside_region(self.tensors.graph):
            raise CannotMerge("a mode is switched in one of them and not back")
        nodes, node = [], last.next
        while node.op != "root":
            if node.op != "placeholder":
                nodes.append(node)
            node = node.next
        return nodes

    def _check_writes(self, nodes: set[fx.Node]) -> None:
        tensors = self.tensors
        if nodes.isdisjoint(tensors.mutated):
            return
        if any(map(tensors.is_made_leaf, nodes)):
            raise CannotMerge("a tensor is set to require gradients in one of them")
        older = {id(t.storage_view.storage) for node, t in tensors.made_tensors() if node not in nodes}
        input_storages = {id(t.storage_view.storage) for t in tensors.traced.values() if not t.requires_grad}
        for storage, writers in tensors.writers.items():
            if storage in older and storage not in input_storages and not nodes.isdisjoint(writers):
                raise CannotMerge("one of them writes to a tensor that the function made before")

    # -- the join -----------------------------------------------------------------------------------------------------

    def _replace(self, true: Arm, false: Arm, merging: Merge) -> None:
        """Replace the nodes of both arms by one node."""
        tensors, nodes = self.tensors, [*true.nodes, *false.nodes]
        if not nodes and not merging.outputs:
            return
        ends = [[self._node(pair[side]) for pair in merging.outputs] for side in (0, 1)]
        operands = list(dict.fromkeys([*operands_of(true.nodes, ends[0]), *operands_of(false.nodes, ends[1])]))
        if not set(operands).isdisjoint(nodes):
            raise CannotMerge("one of them uses what the other computes")
        arms = [cut_out(arm.nodes, operands, end) for arm, end in zip((true, false), ends, strict=True)]
        target = Conditional(*(CapturedGraph({}, arm) for arm in arms))
        outputs = [out for _, _, out in merging.outputs]
        tensors.replace_by_conditional(target, self.condition, operands, nodes, tuple(map(meta_of, outputs)), outputs)

    def _node(self, tensor: TraceTensor | None) -> fx.Node | None:
        return None if tensor is None else self.tensors.nodes[id(tensor)]
