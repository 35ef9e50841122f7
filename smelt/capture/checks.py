"""Checks that only raise: assertions on tensors' values are not part of a graph, as `python -O` drops `assert`."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributions import Distribution, distribution

from smelt.capture.breaks import UserError
from smelt.capture.registry import special
from smelt.capture.torch_calls import call_torch
from smelt.graph.known import known_value
from smelt.graph.trace import TraceTensor


@special(torch._assert)
def assert_that(vm: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """`torch._assert(condition, message)`: a condition on tensors is not checked in a graph."""
    if type(args[0]) is not TraceTensor and not args[0]:
        raise UserError(AssertionError(*args[1:]))


@special(torch._is_all_true)
def is_all_true(vm: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The check of a distribution's parameters or sample: a condition on tensors is not checked in a graph.

    Like `assert`, it only raises, and torch lets a program switch it off. Elsewhere the answer needs values.
    """
    if vm.where().code in _VALIDATION and type(args[0]) is TraceTensor:
        return True
    return call_torch(vm, torch._is_all_true, args, kwargs)


_VALIDATION = {
    function.__code__
    for function in (
        Distribution.__init__,
        Distribution._validate_sample,
        getattr(distribution, "_all_true_or_runtime_assert", None),  # asks on behalf of both from torch 2.15 on
    )
    if function is not None
}


@special(torch._check_tensor_all)
def check_all(vm: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch._check_tensor_all(condition, message)`"""
    return _check_all(vm, RuntimeError, *args, **kwargs)


@special(torch._check_tensor_all_with)
def check_all_with(vm: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch._check_tensor_all_with(error_type, condition, message)`"""
    return _check_all(vm, *args, **kwargs)


def _check_all(vm: Any, error_type: type[Exception], cond: Any, message: Any = None) -> None:
    if type(cond) is not TraceTensor:
        raise UserError(TypeError(f"cond must be a tensor, but got {type(cond)}"))
    known = known_value(cond)
    if known is not None and not known.all():
        text = "Expected cond to be True" if message is None else vm.call(message, (), {})
        raise UserError(error_type(text))
