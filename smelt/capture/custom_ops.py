"""Operators that `torch.library.custom_op` and `triton_op` made, called as the objects that these give."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from torch.library import CustomOpDef

from smelt.capture import calls
from smelt.capture.registry import CALL


@CALL(CustomOpDef)
def call_custom_op(vm: Any, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One node; but an operator that launches Triton kernels is looked into, so that each launch is a node."""
    body = _launching(vars(op).get("_init_fn"))
    if body is not None and vars(op).get("_backward_fn") is None:
        return vm.call(body, args, kwargs)
    return calls.call_instance(vm, op, args, kwargs)


def _launching(function: Any) -> FunctionType | None:
    """The user's function inside what `triton_op` made of it; None for an operator of another kind."""
    if not isinstance(function, FunctionType) or "set_wrap_triton_enabled" not in function.__code__.co_names:
        return None
    held = (cell.cell_contents for cell in function.__closure__ or ())
    return next((value for value in held if isinstance(value, FunctionType)), None)
