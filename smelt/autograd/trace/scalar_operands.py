"""Operands that are numbers given at each call (learning rates, step counts): passed as 0-d tensors.

If an operator cannot take a tensor, the number is specialized to its example value, and a guard checks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import fx

from smelt.base.torch_private import OpOverload, schema_of
from smelt.graph.ir.functional_form import number_form
from smelt.graph.ir.meta import TensorMeta
from smelt.shapes.real import Real

aten = torch.ops.aten

Call = tuple[OpOverload, tuple[Any, ...], Mapping[str, Any]]


class Numbers(Protocol):
    """The recorder's methods that this module uses."""

    def number(self, real: Real) -> fx.Node:
        """Returns a 0-d float64 tensor that has the number's value at each call."""

    def emit(self, op: OpOverload, *args: Any, **kwargs: Any) -> fx.Node:
        """Append the call of `op` to the graph; returns its node."""


def has_real(values: Iterable[Any]) -> bool:
    """Whether one of the values, or an item of a list or tuple among them, is a number given at each call (`Real`)."""
    for value in values:  # takes half the time of `any`, which matters because it runs for each new node
        if type(value) is Real or (isinstance(value, (list, tuple)) and Real in map(type, value)):
            return True
    return False


def with_numbers(rec: Numbers, op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], vals: Any) -> Call:
    """Returns the call with 0-d tensors in place of numbers given at each call; if that is impossible, the example's
    number.

    Types are promoted as for numbers: `float16 * number` is float16, `int64 * number` has the default dtype.
    """
    if "alpha" in kwargs and type(kwargs["alpha"]) is not Real and kwargs["alpha"] == 1:
        kwargs = {k: v for k, v in kwargs.items() if k != "alpha"}
    form = _TENSOR_FORMS.get(op)
    if form is not None and isinstance(vals, TensorMeta) and "alpha" not in kwargs:
        return _on_tensors(rec, form, args, kwargs, vals)
    named = _FORMS.get(op)
    if named is not None and _floating(vals):
        return _in_form(rec, op, named, args, kwargs)
    return op, _pinned(args), {k: _pinned(v) for k, v in kwargs.items()}


def _pinned(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(_pinned, value))
    return float(value) if type(value) is Real else value


# -- operators that take two tensors as well ---------------------------------------------------------------------------


def _on_tensors(
    rec: Numbers, form: tuple[OpOverload, bool], args: tuple[Any, ...], kwargs: Mapping[str, Any], vals: TensorMeta
) -> Call:
    if vals.dtype in _HALVES and not vals.shape and _takes_numbers_whole(form[0], vals.device):
        wide = rec.emit(form[0], *_arranged(form, [_wide(rec, arg) for arg in args]), **kwargs)
        return aten._to_copy.default, (wide,), {"dtype": vals.dtype}
    return form[0], _arranged(form, _as_tensors(rec, args)), kwargs


def _as_tensors(rec: Numbers, args: tuple[Any, ...]) -> list[Any]:
    made = []
    floating = [v for v in (a.meta["val"] for a in args if isinstance(a, fx.Node)) if v.dtype.is_floating_point]
    for arg in args:
        if type(arg) is Real:
            arg = rec.number(arg)
            if not floating:
                arg = rec.emit(aten._to_copy.default, arg, dtype=torch.get_default_dtype())
            elif not any(val.shape for val in floating):  # among 0-d tensors the wider dtype would win
                arg = rec.emit(aten._to_copy.default, arg, dtype=floating[0].dtype)
        made.append(arg)
    return made


def _wide(rec: Numbers, arg: Any) -> Any:
    """Returns a 16-bit operand, or the number beside it, as float32, in which eager computes."""
    if type(arg) is Real:
        arg = rec.number(arg)
    return rec.emit(aten._to_copy.default, arg, dtype=torch.float32) if isinstance(arg, fx.Node) else arg


def _takes_numbers_whole(op: OpOverload, device: torch.device) -> bool:
    """Whether eager does not round a number to 16 bits before it computes with a 16-bit tensor."""
    packet = op.overloadpacket
    return packet in (aten.mul, aten.div) or device.type == "cuda" and packet in (aten.add, aten.sub)


def _arranged(form: tuple[OpOverload, bool], args: list[Any]) -> tuple[Any, ...]:
    return (args[1], args[0], *args[2:]) if form[1] else tuple(args)


_TENSOR_FORMS: dict[OpOverload, tuple[OpOverload, bool]] = {
    **{
        getattr(getattr(aten, name), overload): (getattr(aten, name).Tensor, False)
        for name in ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge")
        for overload in ("Tensor", "Scalar")
    },
    aten.rsub.Scalar: (aten.sub.Tensor, True),
    aten.pow.Tensor_Scalar: (aten.pow.Tensor_Tensor, False),
}
"""For each operator with a number operand, the overload that takes a tensor, and whether its operands are swapped."""

_HALVES = (torch.float16, torch.bfloat16)


# -- operators whose numbers stay numbers for torch --------------------------------------------------------------------


def _in_form(
    rec: Numbers, op: OpOverload, named: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Call:
    parameters = [a.name for a in schema_of(op).arguments]
    arguments = {**dict(zip(parameters, args, strict=False)), **kwargs}
    taken = tuple(name for name in named if name in arguments and has_real((arguments[name],)))
    first: Any = arguments[parameters[0]]
    val = (first[0] if isinstance(first, (list, tuple)) else first).meta["val"]
    dtype = torch.float64 if val.dtype == torch.float64 else torch.float32

    def tensor(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [tensor(v) for v in value]
        if type(value) is not Real:
            return rec.emit(aten.full.default, [], float(value), dtype=dtype, device=val.device)
        number = rec.number(value)
        return number if dtype is torch.float64 else rec.emit(aten._to_copy.default, number, dtype=dtype)

    arguments = {name: tensor(value) if name in taken else _pinned(value) for name, value in arguments.items()}
    form = number_form(op, taken)
    names = [a.name for a in schema_of(form).arguments if not a.kwarg_only and a.name in arguments]
    return form, tuple(arguments.pop(name) for name in names), arguments


def _floating(vals: Any) -> bool:
    metas = vals if isinstance(vals, (list, tuple)) else (vals,)
    return bool(metas) and all(isinstance(m, TensorMeta) and m.dtype.is_floating_point for m in metas)


_FORMS: dict[OpOverload, tuple[str, ...]] = {
    **{getattr(aten, name).Tensor: ("alpha",) for name in ("add", "sub", "rsub")},
    aten.addcmul.default: ("value",),
    aten.addcdiv.default: ("value",),
    aten.lerp.Scalar: ("weight",),
    **{
        getattr(getattr(aten, f"_foreach_{name}"), overload): (parameter,)
        for name in ("add", "sub", "mul", "div")
        for overload, parameter in (("Scalar", "scalar"), ("ScalarList", "scalars"))
    },
    **{getattr(aten, f"_foreach_{name}").List: ("alpha",) for name in ("add", "sub")},
    **{
        getattr(getattr(aten, f"_foreach_{name}"), overload): (parameter,)
        for name in ("addcmul", "addcdiv")
        for overload, parameter in (("Scalar", "value"), ("ScalarList", "scalars"))
    },
    aten._foreach_lerp.Scalar: ("weight",),
}
"""For each operator, the number parameters for which its decomposition accepts a 0-d tensor."""
