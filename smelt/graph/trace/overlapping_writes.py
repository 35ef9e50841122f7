"""Refuses writes to memory that the same operator reads, or writes twice: a graph's values have no order of writes.

An operator of a graph reads its operands and then returns new values. Eager's kernels process element after element, so
one may read what another has just written: if elements of the written tensor share memory (windows, `expand`), or if an
operand is in the same memory as the result (`x[2::2].add_(x[:-2:2])`, `torch.mm(a, b, out=a)`). Eager refuses most such
calls, for which `eager_errors` gets the error from the operator. If eager accepts the call, its values depend on the
kernel: the call runs in eager. The order does not matter if each address gets one value: all elements are equal, or the
source shares memory in the same way, or elements are random.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy
import torch

from smelt.base.errors import Unsupported
from smelt.base.torch_private import OpOverload, name_in_namespace, schema_of
from smelt.graph.ir.functional_form import DRAWING
from smelt.graph.ir.meta import extent, may_overlap
from smelt.graph.ir.schema import OpInfo, depends_on_strides, find_op
from smelt.graph.ir.storage_view import Layout, ViewedTensor
from smelt.graph.meta_rules.constant_values import known_value
from smelt.graph.trace.in_bounds import distinct_offsets, element_offsets

aten = torch.ops.aten


def require_no_order(func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Require that the result of a write operator does not depend on the order in which its kernel writes.

    Raises:
        Unsupported: the result depends on the order, or the operator is a library's and reads memory that it writes.
    """
    if func in _ONE_VALUE or func in DRAWN_ALIKE:
        return
    for targets, others in _write_steps(func, info, args, kwargs):
        if any(map(overlaps_itself, targets)):
            # this compares sizes, so it is done only if it matters
            if func is aten.copy_.default and is_one_value(args[1]):
                return
            if func is aten.copy_.default and _writes_one_element_per_address(args[0], args[1]):
                continue
            raise Unsupported(f"{func} on elements that share memory", why="its order decides what they hold")
        for i, target in enumerate(targets):
            beside = [("", other) for other in targets[:i]] + others
            if any(_reads_written(func, target, name, other) for name, other in beside):
                raise Unsupported(f"{func} on arguments that share memory", why="it writes to one of them")


_ONE_VALUE = frozenset({aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default})
"""Operators that write one value to all elements; the value is read before the first write."""

DRAWN_ALIKE = DRAWING - {aten.bernoulli_.Tensor}
"""Random operators that draw all elements from one distribution, so that it does not matter which of several elements
an address keeps.
"""


def is_one_value(source: Any) -> bool:
    """Whether all elements of a copied tensor are equal: autograd copies such gradients of `zero_` through views."""
    if not isinstance(source, ViewedTensor):
        return False
    if source.storage_view.storage.filled:
        return True
    known = known_value(source)
    if known is not None and known.numel() and bool((known == known.reshape(-1)[0]).all()):
        return True
    shape, stride, _ = _numbers(source.storage_view.layout)
    return 0 not in shape and all(n == 1 or s == 0 for n, s in zip(shape, stride, strict=True))


def _writes_one_element_per_address(target: ViewedTensor, source: Any) -> bool:
    """Whether elements of the target that share memory get the same element of the source."""
    if not isinstance(source, ViewedTensor) or source.storage_view.storage is target.storage_view.storage:
        return False
    (shape, written, _), (own, steps, _) = _numbers(target.storage_view.layout), _numbers(source.storage_view.layout)
    steps = tuple(0 if n == 1 else s for n, s in zip(own, steps, strict=True))
    # strides after the copy's broadcast; it was checked before that the shapes fit
    read = (0,) * (len(shape) - len(own)) + steps
    if written == read:
        return True
    if math.prod(shape) > _MAX_COMPARED_ELEMENTS:
        return False
    _, first, at = numpy.unique(element_offsets(shape, written, 0), return_index=True, return_inverse=True)
    found = element_offsets(shape, read, 0)
    return bool((found[first][at.reshape(-1)] == found).all())


def argument(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """Returns the argument that a call passes for the parameter `name` (its default if none is passed)."""
    if name in kwargs:
        return kwargs[name]
    position = _parameter_positions(func)[name]
    return args[position] if position < len(args) else schema_of(func).arguments[position].default_value


@functools.cache
def _parameter_positions(func: OpOverload) -> dict[str, int]:
    """Returns the positions of parameters by name, cached: torch makes new objects for the whole schema at each
    access.
    """
    return {parameter.name: i for i, parameter in enumerate(schema_of(func).arguments)}


def written_tensors(
    func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[ViewedTensor]:
    """Returns the tensors to which a call writes."""
    return [tensor for name in info.written for tensor in _tensors(argument(func, args, kwargs, name))]


_Named = list[tuple[str, ViewedTensor]]


def _write_steps(
    func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[list[ViewedTensor], _Named]]:
    """Yields for each step of the operator the tensors that it writes, and (parameter, tensor) that it reads. Lists are
    processed item by item.
    """
    if not name_in_namespace(func).startswith("_foreach_"):
        named_arguments = [*zip(_parameter_positions(func), args, strict=False), *kwargs.items()]
        read = [(name, t) for name, value in named_arguments if name not in info.written for t in _tensors(value)]
        yield written_tensors(func, info, args, kwargs), read
        return
    lists = [value for value in (*args, *kwargs.values()) if isinstance(value, (list, tuple))]
    for i, target in enumerate(written_tensors(func, info, args, kwargs)):
        items = [value[i] for value in lists if len(value) > i]
        yield [target], [("", one) for one in items if isinstance(one, ViewedTensor) and one is not target]


def _tensors(value: Any) -> Iterator[ViewedTensor]:
    if isinstance(value, ViewedTensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)


def overlaps_itself(tensor: ViewedTensor) -> bool:
    """Whether two elements of the tensor are the same memory."""
    layout = tensor.storage_view.layout
    if not may_overlap(layout.val.shape, layout.val.stride):
        return False
    shape, stride, offset = _numbers(layout)
    if 0 in shape:
        return False
    if extent(shape, stride) > _MAX_COMPARED_ELEMENTS or 0 in (s for n, s in zip(shape, stride, strict=True) if n > 1):
        return True
    found = distinct_offsets(shape, stride, offset)
    return len(numpy.unique(found)) < len(found)


def _reads_written(func: OpOverload, target: ViewedTensor, name: str, other: ViewedTensor) -> bool:
    """Whether a write to one element of the result changes an element of `other` from which another one is computed."""
    if target.storage_view.storage is not other.storage_view.storage:
        return False
    if depends_on_strides(func):  # an operator of a library, about which nothing is known
        return True
    own, read = target.storage_view.layout, other.storage_view.layout
    if own is read and _in_place(func, name):
        return False
    return _overlap(own, read)


def _in_place(func: OpOverload, name: str) -> bool:
    """Whether the operator may overwrite its argument `name`, element by element or as its in-place form does."""
    operator = name_in_namespace(func)
    if torch.Tag.pointwise in func.tags or operator in _POINTWISE or operator.startswith("_foreach_"):
        return True
    return name == schema_of(func).arguments[0].name and find_op(f"aten::{operator}_") is not None


_POINTWISE = frozenset(
    "copy_ where gelu gelu_ mish mish_ hardswish hardswish_ threshold threshold_ copysign copysign_ gcd gcd_ lcm lcm_ "
    "threshold_backward gelu_backward".split()
)
"""Names of elementwise operators without PyTorch's tag."""


def _overlap(a: Layout, b: Layout) -> bool:
    """Whether two layouts in one storage have elements in common."""
    (shape, stride, offset), (other_shape, other_stride, other_offset) = first, second = _numbers(a), _numbers(b)
    sizes = a.val.dtype.itemsize, b.val.dtype.itemsize
    begins = offset * sizes[0], other_offset * sizes[1]
    ends = begins[0] + extent(shape, stride) * sizes[0], begins[1] + extent(other_shape, other_stride) * sizes[1]
    if 0 in shape or 0 in other_shape or ends[0] <= begins[1] or ends[1] <= begins[0]:
        return False
    if sizes[0] != sizes[1]:
        return True
    windows = _windows(first, second)
    if windows is not None:
        return all(i < j + m and j < i + n for (i, n), (j, m) in zip(*windows, strict=True))
    if max(extent(shape, stride), extent(other_shape, other_stride)) > _MAX_COMPARED_ELEMENTS:
        return True
    return bool(numpy.isin(distinct_offsets(*first), distinct_offsets(*second)).any())


_MAX_COMPARED_ELEMENTS = 1 << 18
"""Maximum number of elements of memory whose offsets are compared one by one."""

_Numbers = tuple[tuple[int, ...], tuple[int, ...], int]


def _windows(*layouts: _Numbers) -> list[list[tuple[int, int]]] | None:
    """Returns for each layout (start, length) in each of the blocks into which the strides divide the memory,
    or None.
    """
    moving = [{s: n for n, s in zip(shape, stride, strict=True) if n != 1 and s} for shape, stride, _ in layouts]
    steps = sorted({1}.union(*moving), reverse=True)
    if any(large % small for large, small in zip(steps, steps[1:], strict=False)):
        return None
    out = []
    for (shape, stride, offset), lengths in zip(layouts, moving, strict=True):
        if len(lengths) < sum(n != 1 and s != 0 for n, s in zip(shape, stride, strict=True)):
            return None  # two dimensions have the same stride
        windows, above = [], None
        for step in steps:
            start, offset = divmod(offset, step)
            length = lengths.get(step, 1)
            if above is not None and start + length > above // step:
                return None
            windows.append((start, length))
            above = step
        out.append(windows)
    return out


def _numbers(layout: Layout) -> _Numbers:
    """Returns shape, strides and offset; symbolic ones are specialized to those of the example."""
    return tuple(map(int, layout.val.shape)), tuple(map(int, layout.val.stride)), int(layout.offset)
