"""`if condition: x = torch.clamp(x, low, high)` with a tensor as condition: the body always runs, and `torch.where`
selects.

Models use this against values that are not finite. The body has to be cheap, and harmless if it runs although the
condition is false: it may only clamp tensors and assign local variables. Then the variables get `torch.where(condition,
new, old)`, which is bit for bit the result of eager, and the graph continues.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from smelt.base.class_tables import classes, isinstance
from smelt.capture._native import NULL
from smelt.capture.arrays.array import TensorArray
from smelt.capture.control_flow.conditionals import jump
from smelt.capture.core.breaks import UserError
from smelt.capture.core.bytecode import Decoded
from smelt.capture.core.conditional_value import TRUTH_TESTS, PhiValue
from smelt.capture.core.frames import Frame
from smelt.capture.core.interface import Interpreter
from smelt.capture.core.liveness import live_slots
from smelt.capture.core.prologue_value import PrologueValue
from smelt.capture.python import containers
from smelt.capture.python.attribute_reads import python_method
from smelt.capture.python.stack_opcodes import backward, counting_iterations, forward, opcode, read_variable
from smelt.capture.tensors.torch_calls import is_torch_builtin
from smelt.graph.ir.meta import meta_of
from smelt.graph.ir.symint import SYMBOLIC
from smelt.graph.trace.trace import TraceTensor

HARMLESS = frozenset({"clamp", "clip", "clamp_min", "clamp_max", "nan_to_num"})
"""Names of operators that may run although the program would not run them: they raise no error and have no infinite
derivative.
"""

MAX_INSTRUCTIONS = 60
"""Maximum number of instructions in the body of a branch."""

_LOADS = "LOAD_FAST LOAD_FAST_CHECK LOAD_FAST_LOAD_FAST LOAD_CONST LOAD_GLOBAL LOAD_ATTR LOAD_METHOD LOAD_DEREF".split()
_STORED = frozenset({"STORE_FAST", "STORE_FAST_STORE_FAST", "STORE_FAST_LOAD_FAST"})
_CALLS = ("CALL", "CALL_KW")
_OTHERS = "BINARY_OP UNARY_NEGATIVE PUSH_NULL PRECALL KW_NAMES COPY SWAP POP_TOP NOP CACHE EXTENDED_ARG".split()
_SIMPLE = frozenset([*_LOADS, *_STORED, *_CALLS, *_OTHERS])
_INFOS = (torch.finfo, torch.iinfo)


def _pop_jump(on: bool) -> Callable[[Any, Frame, int], object | None]:
    """The handler of a conditional jump, which pops a value and jumps if its truth value is `on`."""
    off = not on

    def pop_jump(vm: Interpreter, f: Frame, arg: int) -> object | None:
        value = f.stack.pop()
        if value is off:
            return None
        if value is on:
            f.pc = arg
            return None
        if type(value) is TensorArray and value.tensor.numel() == 1:
            value = value.tensor
        if type(value) is TraceTensor and python_method(vm, value, "__bool__") is not None:
            value = containers.truth(vm, value)
        elif type(value) is TraceTensor and compute_both(vm, f, value, arg, when=off):
            return None
        return jump(vm, f, value, arg, f.pc) if on else jump(vm, f, value, f.pc, arg)

    return pop_jump


for _on, _name in ((False, "IF_FALSE"), (True, "IF_TRUE")):
    opcode(f"POP_JUMP_{_name}", f"POP_JUMP_FORWARD_{_name}", decode=forward)(_pop_jump(_on))
    opcode(f"POP_JUMP_BACKWARD_{_name}", decode=backward)(counting_iterations(_pop_jump(_on)))


def to_bool(vm: Interpreter, f: Frame, arg: object) -> None:
    """TO_BOOL of 3.13: leaves a tensor on the stack for the jump that follows, which may capture both arms."""
    value = f.stack[-1]
    if type(value) in _DECIDED_BY_JUMP and f.decoded.names[f.pc] in TRUTH_TESTS:
        return
    f.stack[-1] = containers.truth(vm, value)


_DECIDED_BY_JUMP = classes(TraceTensor, TensorArray, PhiValue, PrologueValue, *SYMBOLIC)


def is_simple(decoded: Decoded, start: int, end: int) -> bool:
    """Whether the instructions from `start` to `end` only compute and store local variables and call clamping
    functions.
    """
    names = decoded.names[start:end]
    if not 0 < len(names) <= MAX_INSTRUCTIONS or not _SIMPLE.issuperset(names) or _STORED.isdisjoint(names):
        return False
    return any(_name_in(arg) in HARMLESS for _, arg in decoded.instructions[start:end])


def _name_in(arg: object) -> object:
    """The name in a decoded argument, which is preceded by a flag in some versions of Python; None without a name."""
    return arg[1] if type(arg) is tuple and len(arg) == 2 else arg if type(arg) is str else None


def _run_arm(vm: Interpreter, f: Frame, target: int) -> None:
    """Run the instructions up to `target`, whatever the condition is.

    Raises:
        Break: one of them calls something that may do more than compute, or raises an error of the program.
    """
    while f.pc != target:
        if f.decoded.names[f.pc] in _CALLS and not _harmless_call(f):
            raise containers.tensor_value("a branch on a tensor's value")
        handler, arg = f.decoded.instructions[f.pc]
        f.pc += 1
        try:
            handler(vm, f, arg)
        except UserError:  # at run time the program may not take this arm
            raise containers.tensor_value("a branch on a tensor's value") from None


def compute_both(vm: Interpreter, f: Frame, condition: TraceTensor, target: int, when: bool) -> bool:
    """Run the body of a branch, which ends at `target` and runs in eager if the condition's truth value is `when`, and
    select each variable it assigns by `torch.where`; returns False, with nothing run, if the branch does not have this
    form.

    Raises:
        Break: the body does something else than clamp tensors and assign variables.
    """
    if condition.dim() or condition.dtype != torch.bool or target <= f.pc or not is_simple(f.decoded, f.pc, target):
        return False
    if vm.tensors.speculation.value(condition) is not None:
        return False
    slots = _stored_slots(f.decoded, f.pc, target)
    live = live_slots(f.decoded, target)
    before = {slot: read_variable(vm, f, slot) if slot in live else NULL for slot in slots}
    last = next(iter(reversed(vm.tensors.graph.nodes)))
    depth = len(f.stack)
    vm.work += 1  # variables change: after a break in here, only a restart can end the graph before the branch
    _run_arm(vm, f, target)
    if len(f.stack) != depth or not _harmless_nodes(vm, last):
        raise containers.tensor_value("a branch on a tensor's value")
    for slot, old in before.items():
        f.locals[slot] = _choose(vm, condition, f.locals[slot], old, when) if slot in live else old
    return True


def _stored_slots(decoded: Decoded, start: int, end: int) -> set[int]:
    found: set[int] = set()
    for at in range(start, end):
        name, arg = decoded.names[at], decoded.raw[at]
        if name == "STORE_FAST":
            found.add(arg)
        elif name == "STORE_FAST_LOAD_FAST":
            found.add(arg >> 4)
        elif name == "STORE_FAST_STORE_FAST":
            found |= {arg >> 4, arg & 15}
    return found


def _harmless_call(f: Frame) -> bool:
    """Whether the next instruction calls a C function of torch, or gets the limits of a dtype."""
    count = f.decoded.raw[f.pc] + (f.decoded.names[f.pc] == "CALL_KW")
    called = f.stack[len(f.stack) - count - 2 : len(f.stack) - count]
    return all(map(_is_harmless, called))


def _is_harmless(called: object) -> bool:
    if called is NULL or type(called) is TraceTensor or type(getattr(called, "__self__", None)) is TraceTensor:
        return True
    return called in _INFOS or is_torch_builtin(called)


def _harmless_nodes(vm: Interpreter, last: Any) -> bool:
    node = last.next
    while node.op != "root":
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if name not in HARMLESS or node in vm.tensors.mutated:
            return False
        node = node.next
    return True


def _choose(vm: Interpreter, condition: TraceTensor, new: object, old: object, when: bool) -> Any:
    if new is old:
        return old
    if type(new) is not TraceTensor or type(old) is not TraceTensor or _layout_key(new) != _layout_key(old):
        raise containers.tensor_value("a branch on a tensor's value")
    if vm.subclasses.present and vm.subclasses.holds_instance([new, old]):
        raise containers.tensor_value("a branch on a tensor's value")
    pair = (new, old) if when else (old, new)
    chosen = vm.tensors.run(torch.where, (condition, *pair), {})
    if _layout_key(chosen) != _layout_key(old):
        raise containers.tensor_value("a branch on a tensor's value")
    return chosen


def _layout_key(tensor: TraceTensor) -> tuple[object, ...]:
    seen = meta_of(tensor)
    return tuple(seen.shape), tuple(seen.stride), seen.dtype, seen.device, tensor.requires_grad
