"""`if condition: raise ...` and `assert condition` on a tensor's value: the graph continues, and checks the condition.

Where the check fails, the frame runs in eager, which raises the program's own error with its own message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from smelt.base.class_tables import isinstance
from smelt.capture.core.breaks import Break
from smelt.capture.core.bytecode import Decoded
from smelt.capture.core.frames import Frame
from smelt.capture.core.interface import Interpreter
from smelt.capture.tensors.torch_calls import call_tensor_method
from smelt.graph.ir.sym_bool import SymbolicPredicate, compare
from smelt.graph.ir.symint import from_torch
from smelt.graph.trace.trace import TraceTensor

_MAX_INSTRUCTIONS = 60
"""Maximum number of instructions from a branch to its `raise`."""

_ERROR_MAKING = (
    "LOAD_",
    "BUILD_",
    "FORMAT_",
    "CONVERT_",
    "CALL",
    "PRECALL",
    "PUSH_NULL",
    "KW_NAMES",
    "BINARY_",
    "COPY",
)
"""Instructions that may come between a branch and its `raise`: those that make an error and its text."""


Check = Callable[[Any, Any, bool], bool]
"""Function that records a check that the truth value of a condition is not the given one; returns False if the
condition cannot be checked.
"""


def assume_no_raise(
    vm: Interpreter, f: Frame, condition: Any, when_true: int, when_false: int, check: Check | None = None
) -> bool:
    """Continue on the arm that does not raise, and record a check of the condition. Returns False if neither arm or
    both only raise, or if the condition cannot be checked.
    """
    check = check or _check
    for truth, raising, other in ((True, when_true, when_false), (False, when_false, when_true)):
        if only_raises(f.decoded, raising) and not only_raises(f.decoded, other):
            if not check(vm, condition, truth):
                return False
            f.pc = other
            return True
    return False


def only_raises(decoded: Decoded, start: int) -> bool:
    """Whether the instructions from `start` on only make an error and raise it."""
    at = start
    for _ in range(_MAX_INSTRUCTIONS):
        name = decoded.names[at]
        if name == "RAISE_VARARGS":
            return True
        if name == "JUMP_FORWARD":  # jumps to the end of `assert a < b < c`
            at = decoded.instructions[at][1]
            continue
        if not name.startswith(_ERROR_MAKING) and name not in ("NOP", "SWAP", "POP_TOP"):
            return False
        at += 1
    return False


def require_true(vm: Interpreter, condition: TraceTensor) -> bool:
    """Record a check that the condition is true. Returns False if the condition cannot be checked."""
    return _check(vm, condition, False)


def _check(vm: Interpreter, condition: TraceTensor, raises: bool) -> bool:
    """Record a check that the truth value of the condition is not `raises`. Returns False if it cannot be checked."""
    reads = vm.plan.checks and vm.values.are_read and vm.tensors is vm.outermost and not vm.control.branching
    if not reads or vm.tensors.region is not None:
        return False
    try:
        flag = vm.tensors.run(torch.ne, (condition, 0), {})
        number = vm.tensors.run(torch.Tensor.to, (flag, torch.int64), {}, method="to")
        number = from_torch(call_tensor_method(vm, "item", (number,), {}))
    except Break:
        return False
    predicate = compare("==", number, 1, raises)
    if not isinstance(predicate, SymbolicPredicate) or predicate.fact is None:
        return False
    if predicate.expect("", "RuntimeError"):
        vm.tensors.check(predicate.fact, "what the program asserts of a tensor is wrong", "RuntimeError")
        vm.tensors.asserts = True
        return True
    return False
