"""Captured forms of functions of `math` on symbolic numbers, which C code would read as plain ones."""

from __future__ import annotations

import math

import torch

from smelt.capture.calls.calls import call_native
from smelt.capture.core.breaks import user
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import special


@special(math.sqrt)
def sqrt(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `math.sqrt(number)`: the root of a symbolic number is symbolic, too.

    Raises:
        UserError: the number is negative; the sign of a symbolic one is guarded.
    """
    value = args[0]
    if (type(value) is torch.SymInt or type(value) is torch.SymFloat) and not user(_is_negative, value):
        return user(torch.sym_sqrt, value)
    return call_native(vm, math.sqrt, args, kwargs)


def _is_negative(value: float) -> bool:
    return bool(value < 0)
