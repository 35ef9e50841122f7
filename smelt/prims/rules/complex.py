"""Decompositions for complex tensors: each rule computes the real and the imaginary component as real tensors.

Generated kernels have no complex dtypes. `combine` joins the two components where a library kernel or the caller
needs a complex tensor. If another rule reads that tensor, simplification cancels `view_as_real` of `view_as_complex`:
only real tensors remain between library kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from smelt.base.torch_private import schema_of
from smelt.graph.ir.meta import TensorMeta
from smelt.prims.dtypes import REAL
from smelt.prims.registry import (
    DECOMPOSITIONS,
    Lowering,
    aten,
    complex_decomposition,
    decomposition,
    dtype_of,
    rank_of,
)
from smelt.prims.rules.views import cut

Pair = tuple[Any, Any]


def is_complex(x: Any) -> bool:
    """Whether x is a node of a complex dtype or a Python complex number."""
    return dtype_of(x).is_complex if isinstance(x, Node) else isinstance(x, complex)


def components(p: Lowering, x: Any) -> Pair:
    """Returns (real, imaginary) of a node or number; the imaginary component of a real operand is the number 0."""
    if not isinstance(x, Node):
        return (x.real, x.imag) if isinstance(x, complex) else (x, 0)
    if not is_complex(x):
        return x, 0
    pair = p.view_as_real(x)
    last = rank_of(x)
    shape = x.meta["val"].shape
    return p.reshape(cut(p, pair, last, 0, 1), shape), p.reshape(cut(p, pair, last, 1, 2), shape)


def combine(p: Lowering, real: Node, imaginary: Any) -> Node:
    """Returns the complex tensor with the given components; the imaginary one may be a number."""
    if not isinstance(imaginary, Node):
        imaginary = p.full_like(real, imaginary)
    last = rank_of(real)
    return p.view_as_complex(p.cat((p.keep(real, (last,)), p.keep(imaginary, (last,))), last))


def _real_meta(meta: Any) -> Any:
    if isinstance(meta, (tuple, list)):
        return tuple(map(_real_meta, meta))
    if isinstance(meta, TensorMeta) and meta.dtype.is_complex:
        return replace(meta, dtype=REAL[meta.dtype])
    return meta


def _as_real(p: Lowering, op: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply the operator's rule for real tensors; during the call `p.result` is the meta of one component of the
    result.
    """
    result, p.result = p.result, _real_meta(p.result)
    value = DECOMPOSITIONS[op](p, *args, **kwargs)
    p.result = result
    return value


# -- linear operators: each component of the result depends only on the same component of the operands


def _component(p: Lowering, value: Any, component: int) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(_component(p, v, component) for v in value)
    if is_complex(value):
        chosen = components(p, value)[component]
        return chosen
    return value


def _per_component(op: Any, *extra: int) -> Callable[..., Any]:
    """Returns the rule of a linear operator: its rule for real tensors, applied to the real and to the imaginary
    components.

    Args:
        extra: positions of operands whose imaginary component is zeros if they are real. Other real operands, such as
            sizes and masks, are the same in both applications.
    """

    def rule(p: Lowering, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(v, complex) for v in kwargs.values()):
            return NotImplemented
        results = []
        for component in (0, 1):
            operands = [
                _imaginary_of_real(p, a)
                if component and i in extra and not is_complex(a)
                else _component(p, a, component)
                for i, a in enumerate(args)
            ]
            results.append(_as_real(p, op, *operands, **{k: _component(p, v, component) for k, v in kwargs.items()}))
        real, imaginary = results
        if real is NotImplemented or imaginary is NotImplemented:
            return NotImplemented
        if isinstance(real, tuple):
            return tuple(combine(p, a, b) for a, b in zip(real, imaginary, strict=True))
        return combine(p, real, imaginary)

    return rule


def _imaginary_of_real(p: Lowering, x: Any) -> Any:
    """The imaginary component of a real operand: zeros of its shape, or 0."""
    return p.full_like(x, 0) if isinstance(x, Node) else 0


MOVES = """
view.default _unsafe_view.default reshape.default squeeze.default squeeze.dim squeeze.dims unsqueeze.default
expand.default permute.default transpose.int t.default slice.Tensor narrow.default select.int unbind.int split.Tensor
split_with_sizes.default diagonal.default flip.default roll.default repeat.default slice_backward.default
select_backward.default diagonal_backward.default index_select.default gather.default index.Tensor clone.default
alias.default detach.default sum.default sum.dim_IntList mean.default mean.dim neg.default tril.default triu.default
_reshape_alias.default view_copy.default unfold.default
""".split()
"""Operators that are linear in their only tensor operand."""

JOINS = {
    "add.Tensor": (0, 1), "sub.Tensor": (0, 1), "where.self": (1, 2), "slice_scatter.default": (0, 1),
    "select_scatter.default": (0, 1), "masked_fill.Scalar": (0, 2), "constant_pad_nd.default": (0, 2),
    "copy.default": (1,),
}  # fmt: skip
"""Operators that are linear in several operands, and the positions of these; some of the operands may be real."""


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload)


for _name in MOVES:
    complex_decomposition(_overload(_name))(_per_component(_overload(_name)))
for _name, _positions in JOINS.items():
    complex_decomposition(_overload(_name))(_per_component(_overload(_name), *_positions))


def _concatenation(op: Any) -> Callable[..., Any]:
    def rule(p: Lowering, tensors: Any, dim: int = 0) -> Node:
        pairs = [(a, b if isinstance(b, Node) else p.full_like(a, b)) for a, b in (components(p, x) for x in tensors)]
        return combine(p, *(_as_real(p, op, tuple(components), dim) for components in zip(*pairs, strict=True)))

    return rule


for _op in (aten.cat.default, aten.stack.default):
    complex_decomposition(_op)(_concatenation(_op))


# -- from and to real numbers


@complex_decomposition(aten.view_as_real.default, aten.view_as_real_copy.default)
def view_as_real(p: Lowering, x: Node) -> Node:
    return p.view_as_real(x)


@complex_decomposition(aten.view_as_complex.default, aten.view_as_complex_copy.default)
def view_as_complex(p: Lowering, x: Node) -> Node:
    return p.view_as_complex(x)


@complex_decomposition(aten.complex.default)
def from_components(p: Lowering, real: Node, imaginary: Node) -> Node:
    return combine(p, *(p.broadcast(x, p.out.shape) for x in (real, imaginary)))


@complex_decomposition(aten.polar.default)
def polar(p: Lowering, size: Node, angle: Node) -> Node:
    size, angle = (p.broadcast(x, p.out.shape) for x in (size, angle))
    return combine(p, p.mul(size, p.cos(angle)), p.mul(size, p.sin(angle)))


@complex_decomposition(aten._to_copy.default)
def to_copy(p: Lowering, x: Node, **options: Any) -> Any:
    real, imaginary = components(p, x)
    dtype = _real_meta(p.out).dtype
    if p.out.device != x.meta["val"].device:
        return NotImplemented
    if p.out.dtype is torch.bool:
        return p.logical_or(p.ne(real, 0.0), p.ne(imaginary, 0.0))
    if not p.out.dtype.is_complex:
        return p.convert(real, dtype)
    return combine(p, p.convert(real, dtype), p.convert(imaginary, dtype) if isinstance(imaginary, Node) else 0)


@complex_decomposition(
    aten.full.default,
    aten.zeros.default,
    aten.zeros_like.default,
    aten.ones.default,
    aten.ones_like.default,
    aten.full_like.default,
    aten.new_zeros.default,
    aten.new_full.default,
    aten.empty_like.default,
    aten.empty.memory_format,
)
def constant(p: Lowering, *args: Any, **options: Any) -> Node:
    assert p.node is not None
    name = schema_of(p.node.target).name
    value = args[-1] if "full" in name else 1 if "ones" in name else 0
    if not p.out.dtype.is_complex:
        return p.full(p.out.shape, value, p.out.dtype, p.out.device)
    a, b = components(p, value)
    dtype = REAL[p.out.dtype]
    return combine(p, p.full(p.out.shape, a, dtype, p.out.device), b)


# -- arithmetic


def _result_components(p: Lowering, x: Any) -> Pair:
    """The components of x, in the precision and shape of the result; components that are numbers are unchanged."""
    dtype = _real_meta(p.out).dtype
    return tuple(  # type: ignore[return-value]
        p.broadcast(p.convert(v, dtype), p.out.shape) if isinstance(v, Node) else v for v in components(p, x)
    )


def _product(p: Lowering, x: Pair, y: Pair) -> Pair:
    """The components of x * y. As in eager, terms with the imaginary component of a real operand are omitted."""
    (a, b), (c, d) = x, y
    if not isinstance(d, Node) and d == 0:
        return _times(p, a, c), _times(p, b, c)
    if not isinstance(b, Node) and b == 0:
        return _times(p, c, a), _times(p, d, a)
    return p.sub(p.mul(a, c), p.mul(b, d)), p.add(p.mul(a, d), p.mul(b, c))


def _times(p: Lowering, x: Any, y: Any) -> Any:
    """x * y for two components; each may be a number."""
    if isinstance(x, Node):
        return p.mul(x, y)
    return p.mul(y, x) if isinstance(y, Node) else x * y


@complex_decomposition(aten.mul.Tensor, aten.mul.Scalar)
def mul(p: Lowering, x: Any, y: Any) -> Node:
    return combine(p, *_product(p, _result_components(p, x), _result_components(p, y)))


@complex_decomposition(aten.div.Tensor, aten.div.Scalar)
def div(p: Lowering, x: Any, y: Any) -> Any:
    if not isinstance(x, Node):
        return NotImplemented
    (a, b), (c, d) = _result_components(p, x), _result_components(p, y)
    if not isinstance(d, Node) and d == 0:
        return combine(p, p.div(a, c), p.div(b, c) if isinstance(b, Node) else b)
    if not isinstance(c, Node):
        c, d = p.full_like(a, c), p.full_like(a, d)
    if not isinstance(b, Node):
        b = p.full_like(a, b)
    return combine(p, *_quotient(p, a, b, c, d))


@complex_decomposition(aten.reciprocal.default)
def reciprocal(p: Lowering, x: Node) -> Node:
    real, imaginary = components(p, x)
    return combine(p, *_quotient(p, p.full_like(real, 1.0), p.full_like(real, 0.0), real, imaginary))


def _quotient(p: Lowering, a: Node, b: Node, c: Node, d: Node) -> tuple[Node, Node]:
    """The components of (a + bi) / (c + di), computed from the ratio of c and d: c * c + d * d could overflow.

    Source: R. L. Smith, Algorithm 116: Complex division. Communications of the ACM 5 (8), 1962.
    """
    swap = p.lt(p.abs(c), p.abs(d))
    large, small = p.where(swap, d, c), p.where(swap, c, d)
    ratio = p.where(p.eq(large, 0), 0.0, p.div(small, large))
    scale = p.reciprocal(p.add(large, p.mul(small, ratio)))
    with_large, with_small = p.where(swap, b, a), p.where(swap, a, b)
    real = p.mul(p.add(with_large, p.mul(with_small, ratio)), scale)
    imaginary = p.mul(p.sub(with_small, p.mul(with_large, ratio)), scale)
    return real, p.where(swap, p.neg(imaginary), imaginary)


@complex_decomposition(aten.eq.Tensor, aten.eq.Scalar)
def eq(p: Lowering, x: Any, y: Any) -> Node:
    return p.logical_not(ne(p, x, y))


@complex_decomposition(aten.ne.Tensor, aten.ne.Scalar)
def ne(p: Lowering, x: Any, y: Any) -> Node:
    common = result_dtype_of(x, y)
    dtype = REAL.get(common, common)
    (a, b), (c, d) = (
        [p.broadcast(p.convert(v, dtype), p.out.shape) if isinstance(v, Node) else v for v in components(p, value)]
        for value in (x, y)
    )
    return p.logical_or(_differ(p, a, c), _differ(p, b, d))


def result_dtype_of(*operands: Any) -> torch.dtype:
    """The dtype to which eager promotes the operands, which are nodes and numbers."""
    like = [torch.empty((0,) * rank_of(x), dtype=dtype_of(x)) if isinstance(x, Node) else x for x in operands]
    return torch.result_type(*like)


def _differ(p: Lowering, a: Any, b: Any) -> Node:
    """a != b for two components; each may be a number."""
    if isinstance(a, Node):
        return p.ne(a, b)
    return p.ne(b, a) if isinstance(b, Node) else p.full(p.out.shape, a != b, torch.bool, p.out.device)


@complex_decomposition(aten._conj_physical.default, aten.conj_physical.default, aten._conj.default)
def conjugate(p: Lowering, x: Node) -> Node:
    real, imaginary = components(p, x)
    return combine(p, real, p.neg(imaginary))


@complex_decomposition(aten.abs.default)
def size(p: Lowering, x: Node) -> Node:
    return p.hypot(*components(p, x))


@complex_decomposition(aten.angle.default)
def angle(p: Lowering, x: Node) -> Node:
    real, imaginary = components(p, x)
    return p.atan2(imaginary, real)


@complex_decomposition(aten.sgn.default)
def direction(p: Lowering, x: Node) -> Node:
    real, imaginary = components(p, x)
    length = p.hypot(real, imaginary)
    none = p.eq(length, 0)
    return combine(p, *(p.where(none, 0.0, p.div(v, length)) for v in (real, imaginary)))


@complex_decomposition(aten.exp.default)
def exp(p: Lowering, x: Node) -> Node:
    real, imaginary = components(p, x)
    length = p.exp(real)
    return combine(p, p.mul(length, p.cos(imaginary)), p.mul(length, p.sin(imaginary)))


@complex_decomposition(aten.mm.default, aten.bmm.default)
def matrix_product(p: Lowering, x: Node, y: Node) -> Any:
    """Four real products, each summed separately: so the product of a matrix and its adjoint is exactly Hermitian."""
    (a, b), (c, d) = components(p, x), components(p, y)
    if not isinstance(b, Node) or not isinstance(d, Node):
        return NotImplemented
    product = p.mm if rank_of(x) == 2 else p.bmm
    return combine(p, p.sub(product(a, c), product(b, d)), p.add(product(a, d), product(b, c)))


@decomposition(aten.angle.default)
def real_angle(p: Lowering, x: Node) -> Node:
    """0 for positive numbers and 0, pi for negative ones, NaN for NaN."""

    def compute(a: Node) -> Node:
        phase = p.where(p.lt(a, 0), torch.pi, p.full_like(a, 0.0))
        return p.where(p.isnan(a), a, phase)

    return p.pointwise(compute, x, dtype=p.out.dtype)


for _op in (aten._conj_physical.default, aten.conj_physical.default):
    decomposition(_op)(lambda p, x: x)
