"""Operators that library kernels compute: a rule for each prim of kind `kernel`, and the special functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from smelt.base.torch_private import schema_of
from smelt.graph.ir.meta import TensorMeta, is_dense
from smelt.prims.dtypes import is_integral
from smelt.prims.kernels import special
from smelt.prims.ops import PRIMS
from smelt.prims.registry import Lowering, any_dtype, aten, decomposition, dtype_of
from smelt.prims.table import Kind, Prim
from smelt.shapes.size import same_all

POINTWISE_KERNELS = frozenset({*special.UNARY, *special.BINARY, "polygamma", "frexp", "gcd"})
"""Names of the pointwise kernels, whose operands the rules below promote and broadcast first."""

WITHOUT_GENERIC_RULE = frozenset(
    "view_as_real view_as_complex adaptive_avg_pool2d adaptive_avg_pool2d_backward scatter_reduce "
    "tril_indices triu_indices to_device".split()
)
"""Names of the kernels that do not get a generic rule in the loop below, because other rules emit them."""

ANY_DTYPE_MODULES = frozenset({"linalg", "fourier"})
"""Names of the modules of `prims.kernels` whose kernels also take dtypes that generated kernels lack, such as
complex.
"""


def call_kernel(p: Lowering, prim: Prim, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Emit the kernel's prim with the operator's arguments; the results get the strides that eager gives them."""
    value = p.emit(prim, *arguments(prim, args, kwargs))
    set_eager_strides(value, p.result)
    return value


def arguments(prim: Prim, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Returns all arguments of the prim, from a call of its kernel; omitted arguments get their defaults."""
    assert prim.kernel is not None
    schema = schema_of(prim.kernel).arguments
    by_name = {a.name: v for a, v in zip(schema, args, strict=False)} | kwargs
    fixed = [a for a in schema if not a.kwarg_only]
    named = {a.name: a for a in schema if a.kwarg_only}
    wanted = fixed + [named[name] for name in prim.parameters[len(fixed) :]]
    ready = [by_name.get(a.name, a.default_value if a.has_default_value() else None) for a in wanted]
    return tuple(tuple(v) if isinstance(v, list) else v for v in ready)


def set_eager_strides(value: Any, result: Any) -> None:
    """Give the values of a kernel the strides of the ATen operator's results, if these are dense."""
    if isinstance(value, tuple):
        for one, meta in zip(value, result, strict=True):
            set_eager_strides(one, meta)
    elif isinstance(value, Node) and isinstance(result, TensorMeta):
        own = value.meta["val"]
        if same_all(own.shape, result.shape) and is_dense(result.shape, result.stride):
            _set_meta(value, replace(own, stride=result.stride))


def _set_meta(value: Node, meta: TensorMeta) -> None:
    """Replace the meta of a value, also in the node of which the value is one of several results."""
    value.meta["val"] = meta
    source = value.args[0] if value.args else None
    if isinstance(source, Node) and isinstance(source.meta["val"], tuple) and isinstance(value.args[1], int):
        metas, position = source.meta["val"], value.args[1]
        source.meta["val"] = (*metas[:position], meta, *metas[position + 1 :])


def _rule(prim: Prim) -> Callable[..., Any]:
    return lambda p, *args, **kwargs: call_kernel(p, prim, args, kwargs)


for _prim in PRIMS.values():
    if _prim.kind is Kind.KERNEL and _prim.name not in POINTWISE_KERNELS | WITHOUT_GENERIC_RULE:
        assert _prim.kernel is not None
        decomposition(_prim.kernel)(_rule(_prim))
        if _prim.meta.__module__.rpartition(".")[2] in ANY_DTYPE_MODULES:
            any_dtype(_prim.kernel)
any_dtype(aten.hash_tensor.default)  # its result is uint64


@decomposition(aten.tril_indices.default)
def tril_indices(p: Lowering, rows: int, columns: int, offset: int = 0, **options: Any) -> Node:
    return p.tril_indices(rows, columns, offset, p.out.dtype, torch.strided, p.out.device)


@decomposition(aten.triu_indices.default)
def triu_indices(p: Lowering, rows: int, columns: int, offset: int = 0, **options: Any) -> Node:
    return p.triu_indices(rows, columns, offset, p.out.dtype, torch.strided, p.out.device)


# -- special functions


def _unary(name: str) -> Callable[..., Any]:
    return lambda p, x: p.pointwise(lambda a: p.emit(PRIMS[name], a), x, dtype=p.out.dtype)


def _binary(name: str) -> Callable[..., Any]:
    def rule(p: Lowering, x: Any, y: Any) -> Node:
        def compute(a: Any, b: Any) -> Node:
            like = a if isinstance(a, Node) else b
            a, b = (v if isinstance(v, Node) else p.full_like(like, v) for v in (a, b))
            return p.emit(PRIMS[name], a, b)

        return p.pointwise(compute, x, y, dtype=p.out.dtype)

    return rule


for _name in special.UNARY:
    decomposition(getattr(aten, _name).default)(_unary(_name))
for _name in special.BINARY:
    _packet = getattr(aten, _name)
    _overloads = [getattr(_packet, o) for o in _packet.overloads() if not o.endswith("out")]
    decomposition(*_overloads)(_binary(_name))
decomposition(aten.gcd.default)(lambda p, x, y: p.pointwise(lambda a, b: p.gcd(a, b), x, y))


@decomposition(aten.lcm.default)
def lcm(p: Lowering, x: Node, y: Node) -> Node:
    def compute(a: Node, b: Node) -> Node:
        common = p.gcd(a, b)
        return p.abs(p.mul(p.where(p.eq(common, 0), 0, p.floor_div(a, p.maximum(common, 1))), b))

    return p.pointwise(compute, x, y)


@decomposition(aten.polygamma.default)
def polygamma(p: Lowering, n: int, x: Node) -> Node:
    return p.pointwise(lambda a: p.digamma(a) if n == 0 else p.polygamma(n, a), x, dtype=p.out.dtype)


@decomposition(aten.special_polygamma.default)
def special_polygamma(p: Lowering, n: int, x: Node) -> Node:
    return polygamma(p, n, x)


@decomposition(aten.mvlgamma.default)
def mvlgamma(p: Lowering, x: Node, order: int) -> Node:
    def compute(a: Node) -> Node:
        total = p.lgamma(a)
        for i in range(1, order):
            total = p.add(total, p.lgamma(p.sub(a, i / 2)))
        return p.add(total, order * (order - 1) / 4 * LOG_PI) if order > 1 else total

    return p.pointwise(compute, x, dtype=p.out.dtype)


LOG_PI = 1.1447298858494002


@decomposition(aten.frexp.Tensor)
def frexp(p: Lowering, x: Node) -> Any:
    if is_integral(dtype_of(x)):
        return NotImplemented
    mantissa, exponent = p.frexp(p.widen(x))
    return p.convert(mantissa, dtype_of(x)), p.convert(exponent, torch.int32)
