"""Functions that check a condition and raise an error. Conditions on tensors' values are checked in graphs only on a
CPU.

For tensors on a GPU, the host would have to wait for the value.
"""

from __future__ import annotations

import builtins

import torch
from torch.distributions import Distribution, distribution

from smelt.base.class_tables import isinstance
from smelt.capture.control_flow.asserts import require_true
from smelt.capture.core.breaks import Break, UserError, user
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import special
from smelt.capture.tensors.fallible_ops import note_caught
from smelt.capture.tensors.torch_calls import call_torch
from smelt.graph.ir.sym_bool import SymbolicPredicate
from smelt.graph.ir.symint import symbolic_value
from smelt.graph.meta_rules.constant_values import known_value
from smelt.graph.trace.trace import TraceTensor


@special(torch._assert)
def assert_that(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of `torch._assert(condition, message)`: checked in the graph for tensors on a CPU, not checked for
    tensors on a GPU.

    If the check fails, the frame runs in eager, which raises the error.
    """
    condition, *message = args or (kwargs["condition"],)
    if type(condition) is TraceTensor and known_value(condition) is None:
        if condition.device.type == "cpu":
            require_true(vm, condition)
    elif not condition:
        raise UserError(AssertionError(*message or (kwargs["message"],)))


@special(torch._assert_async)
def assert_later(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `torch._assert_async(condition, message)`: checked in the graph for tensors on a CPU, where
    eager raises at once.
    """
    condition = args[0] if args else None
    if type(condition) is TraceTensor and condition.device.type == "cpu" and condition.numel() == 1:
        if known_value(condition) is None and require_true(vm, condition):
            return None
    return call_torch(vm, torch._assert_async, args, kwargs)


@special(torch._is_all_true)
def is_all_true(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `torch._is_all_true` in the check of a distribution's parameters or sample: if the check fails,
    the frame runs in eager, which raises the error.

    For tensors on a GPU the graph does not check: the host would have to wait, and programs may switch the check off.
    In other code the result needs tensor values.
    """
    at = vm.where()
    if at is not None and at.code in _VALIDATION and type(args[0]) is TraceTensor and known_value(args[0]) is None:
        if args[0].device.type == "cpu":
            require_true(vm, call_torch(vm, torch._is_all_true, args, kwargs))
        return True
    return call_torch(vm, torch._is_all_true, args, kwargs)


_VALIDATION = {
    function.__code__
    for function in (
        Distribution.__init__,
        Distribution._validate_sample,
        getattr(distribution, "_all_true_or_runtime_assert", None),  # called by both from torch 2.15 on
    )
    if function is not None
}


@special(torch._check_tensor_all)
def check_all(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of `torch._check_tensor_all(condition, message)`."""
    _check_all(vm, RuntimeError, *args, **kwargs)


@special(torch._check_tensor_all_with)
def check_all_with(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of `torch._check_tensor_all_with(error_type, condition, message)`."""
    _check_all(vm, *args, **kwargs)


def _check_all(vm: Interpreter, error_type: type[Exception], cond: object, message: object = None) -> None:
    if type(cond) is not TraceTensor:
        raise UserError(TypeError(f"cond must be a tensor, but got {type(cond)}"))
    known = known_value(cond)
    if known is None and cond.device.type == "cpu":
        require_true(vm, call_torch(vm, torch._is_all_true, (cond,), {}))
    elif known is not None and not known.all():
        text = "Expected cond to be True" if message is None else vm.call(message, (), {})
        raise UserError(error_type(text))


@special(torch._check)
def check(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of `torch._check(condition, message)`."""
    _check(vm, RuntimeError, *args, **kwargs)


@special(torch._check_with)
def check_with(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of `torch._check_with(error_type, condition, message)`, which the checks with other errors call."""
    _check(vm, *args, **kwargs)


@special(torch._check_is_size)
def check_is_size(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of `torch._check_is_size(number, message, max=...)`."""
    _check_is_size(vm, *args, **kwargs)


def _check_is_size(vm: Interpreter, i: int | torch.SymInt, message: object = None, *, max: int | None = None) -> None:
    _check(vm, RuntimeError, i >= 0, message)
    if max is not None:
        _check(vm, RuntimeError, i <= max, message)


def _check(vm: Interpreter, error_type: type[Exception], cond: object, message: object = None) -> None:
    if type(cond) is torch.SymBool:
        question = symbolic_value(cond)
        if isinstance(question, SymbolicPredicate) and question.fact is not None:
            name = error_type.__name__ if getattr(builtins, error_type.__name__, None) is error_type else "RuntimeError"
            if question.expect("", name):
                note_caught(vm, "torch._check()", name)
                vm.tensors.check(question.fact, _text(vm, message), name)
                return
        cond = user(bool, cond)
    if not isinstance(cond, bool):
        kind = "a Tensor. For tensor conditions, use torch._check_tensor_all() to assert that all elements are true."
        raise UserError(TypeError(f"cond must be a bool, but got {kind if type(cond) is TraceTensor else type(cond)}"))
    if not cond:
        raise UserError(error_type(_DEFAULT if message is None else str(vm.call(message, (), {}))))


def _text(vm: Interpreter, message: object) -> str:
    """The text of an error that a graph may raise. A message with unbacked numbers is replaced by a general text: eager
    raises the program's own.
    """
    if message is None:
        return _DEFAULT
    owner = vm.sizes.owner
    before = owner.data_dependent
    try:
        text = vm.call(message, (), {})
    except (Break, UserError):
        text = None
    owner.data_dependent = before
    return text if isinstance(text, str) else "a torch._check failed"


_DEFAULT = (
    "Expected cond to be True, but got False. (Could this error message be improved? If so, please report an "
    "enhancement request to PyTorch.)"
)
