"""Calls of torch's higher-order operators (`cond`, `scan`, `flex_attention`, ...): their Python forms are captured."""

from __future__ import annotations

import sys
from types import FunctionType

import torch

from smelt.capture.core.by_code import ByCode
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import CALL, special
from smelt.capture.torch import higher_order_forms as forms

_FORMS: dict[tuple[str, str], forms.Function] = {
    ("cond", "cond_op"): forms.cond,
    ("scan", "scan_op"): forms.scan,
    ("map", "map_impl"): forms.map_rows,
    ("associative_scan", "associative_scan_op"): forms.associative_scan,
    ("flex_attention", "flex_attention"): forms.flex_attention,
}
"""(module of `torch._higher_order_ops`, name of the operator) -> its Python form."""


_conditionals: ByCode[dict[tuple[int, ...], FunctionType]] = ByCode()


def _conditional_of_caller(vm: Interpreter) -> FunctionType:
    """`forms.cond` with code of its own for each call in the program. Capture knows a branch by its code and
    instruction: the branches of two calls, or of a call within another, are different ones.
    """
    code = vm.frames[-2].code if len(vm.frames) > 1 else vm.frames[-1].code
    copies = _conditionals.get(code) or _conditionals.put(code, {})
    place = tuple(frame.pc for frame in vm.frames[-2:])
    if place not in copies:
        form = forms.cond
        copies[place] = FunctionType(form.__code__.replace(), form.__globals__, form.__name__, form.__defaults__)
    return copies[place]


def _register(operator: object, form: forms.Function) -> None:
    @CALL(type(operator))
    def call(vm: Interpreter, fn: object, args: Args, kwargs: Kwargs) -> object:
        return vm.call(_conditional_of_caller(vm) if form is forms.cond else form, args, kwargs)


@special(torch._higher_order_ops.while_loop)
def while_loop(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `while_loop`: the loop is unrolled while the condition is known at capture.

    Raises:
        Break: the condition depends on values that are not.
    """
    return vm.call(forms.while_loop, args, kwargs)


@special(forms.index_by_tensors)
def index_by_tensors(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Interpret a function of `flex_attention`, in which tensors without dimensions are indices."""
    ambient = vm.ambient
    ambient.indexes_by_tensors = True
    try:
        return vm.call(args[0], args[1:], {})
    finally:
        ambient.indexes_by_tensors = False


for (module, name), form in _FORMS.items():
    operator = getattr(sys.modules.get(f"torch._higher_order_ops.{module}"), name, None)
    if operator is not None:
        _register(operator, form)
