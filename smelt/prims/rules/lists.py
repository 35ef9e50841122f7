"""The `_foreach_*` operators of optimizers: one pointwise operator per tensor of the list, so that they can fuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from smelt.base.torch_private import OpOverload
from smelt.prims.registry import DECOMPOSITIONS, Decomposition, Lowering, aten, decomposition, dtype_of
from smelt.prims.rules import casts, creation, elementwise, reductions

BINARY = {"add": "add", "sub": "sub", "mul": "mul", "div": "div", "clamp_max": "minimum", "clamp_min": "maximum"}
BINARY |= {"maximum": "maximum", "minimum": "minimum"}


def _each(rule: Callable[..., Any], p: Lowering, *columns: Sequence[Any], **options: Any) -> Any:
    """Returns the results of `rule` for each tensor of a list.

    Args:
        columns: per operand of the rule, its values for all results: the call for result i takes item i of each.
        options: further arguments, the same for all results.
    """
    metas, results = p.result, []
    for meta, row in zip(metas, zip(*columns, strict=True), strict=True):
        p.result = meta
        results.append(rule(p, *row, **options))
    p.result = metas
    return NotImplemented if any(r is NotImplemented for r in results) else tuple(results)


def _overload(name: str, overload: str) -> list[OpOverload]:
    packet = getattr(aten, f"_foreach_{name}", None)
    return [getattr(packet, overload)] if packet is not None and overload in packet.overloads() else []


def _register(name: str, overload: str, rule: Decomposition) -> None:
    decomposition(*_overload(name, overload))(rule)


def _unary(rule: Decomposition) -> Decomposition:
    return lambda p, xs: _each(rule, p, xs)


def _pairwise(name: str) -> Decomposition:
    def compute(p: Lowering, x: Node, y: Any, alpha: Any) -> Any:
        if dtype_of(x) is torch.bool:
            return NotImplemented
        if isinstance(alpha, Node) or alpha != 1:
            rule = elementwise.add if name == "add" else elementwise.sub
            return rule(p, x, y, alpha)
        dtype = p.out.dtype if name == "div" else None
        unrounded = elementwise.UNROUNDED.get(name, ())
        return p.pointwise(lambda a, b: getattr(p, name)(a, b), x, y, dtype=dtype, unrounded=unrounded)

    return compute


def _with_list(rule: Decomposition) -> Decomposition:
    return lambda p, xs, ys, alpha=1: _each(rule, p, xs, ys, alpha=alpha)


def _with_shared_operand(rule: Decomposition) -> Decomposition:
    return lambda p, xs, y, alpha=1: _each(rule, p, xs, [y] * len(xs), alpha=alpha)


for _name in (*elementwise.UNARY, "frac"):
    _register(_name, "default", _unary(DECOMPOSITIONS[getattr(aten, _name).default]))
for _name, _prim in BINARY.items():
    _register(_name, "List", _with_list(_pairwise(_prim)))
    _register(_name, "ScalarList", _with_list(_pairwise(_prim)))
    _register(_name, "Scalar", _with_shared_operand(_pairwise(_prim)))
    _register(_name, "Tensor", _with_shared_operand(_pairwise(_prim)))


def _power(p: Lowering, x: Any, y: Any) -> Node:
    return p.pointwise(lambda a, b: p.pow(a, b), x, y, dtype=p.out.dtype)


_register("pow", "List", lambda p, xs, ys: _each(_power, p, xs, ys))
_register("pow", "ScalarList", lambda p, xs, ys: _each(_power, p, xs, ys))
_register("pow", "Scalar", lambda p, xs, y: _each(_power, p, xs, [y] * len(xs)))
_register("pow", "ScalarAndTensor", lambda p, x, ys: _each(_power, p, [x] * len(ys), ys))


for _name, _rule in {"addcmul": elementwise.addcmul, "addcdiv": elementwise.addcdiv}.items():

    def _shared_value(p: Lowering, xs: Any, a: Any, b: Any, value: Any = 1, _rule: Decomposition = _rule) -> Any:
        return _each(_rule, p, xs, a, b, value=value)

    def _value_list(p: Lowering, xs: Any, a: Any, b: Any, values: Any, _rule: Decomposition = _rule) -> Any:
        return _each(lambda p, x, y, z, v: _rule(p, x, y, z, value=v), p, xs, a, b, values)

    def _value_tensor(p: Lowering, xs: Any, a: Any, b: Any, values: Node, _rule: Decomposition = _rule) -> Any:
        each = [p.reshape(p.slice(values, (i,), (i + 1,), (1,)), ()) for i in range(len(xs))]
        return _each(lambda p, x, y, z, v: _rule(p, x, y, z, value=v), p, xs, a, b, each)

    _register(_name, "Tensor", _value_tensor)
    _register(_name, "Scalar", _shared_value)
    _register(_name, "ScalarList", _value_list)

_register("lerp", "Scalar", lambda p, xs, ys, w: _each(elementwise.lerp, p, xs, ys, [w] * len(xs)))
_register("lerp", "ScalarList", lambda p, xs, ys, ws: _each(elementwise.lerp, p, xs, ys, ws))
_register("max", "default", lambda p, xs: _each(DECOMPOSITIONS[aten.max.default], p, xs))
_register("clone", "default", lambda p, xs, memory_format=None: tuple(xs))
_register("lerp", "List", lambda p, xs, ys, ws: _each(elementwise.lerp, p, xs, ys, ws))
_register("zero", "default", lambda p, xs: _each(creation.zeros, p, xs))
_register("copy", "default", lambda p, xs, ys, non_blocking=False: _each(casts.copy, p, xs, ys))


@decomposition(aten._foreach_norm.Scalar)
def norm(p: Lowering, xs: Sequence[Node], order: Any = 2, dtype: Any = None) -> Any:
    return _each(lambda p, x: reductions.vector_norm(p, x, order), p, xs)
