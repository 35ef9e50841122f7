"""Slices and indices with data-dependent bounds: `x[:n]` after `n = t.item()`, `x[y.argmax()]`.

Python clamps bounds, and counts negative ones from the end. The graph does the same on a tensor without dimensions, and
reads the result: a number between 0 and the size. It also reads the length of the slice, which is not computed as a
difference of two bounds, so that no property of this difference has to be proved.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from smelt.base.class_tables import classes, isinstance
from smelt.capture.core.interface import Interpreter
from smelt.graph.ir.symint import from_torch, to_torch
from smelt.graph.trace.trace import TraceTensor
from smelt.shapes.assumptions import Assumed
from smelt.shapes.size import Size, text
from smelt.shapes.unbacked import is_unbacked


def known_slices(vm: Interpreter, tensor: TraceTensor, key: object) -> Any:
    """The index for a tensor, with data-dependent bounds of slices replaced by bounds within the tensor."""
    items = key if type(key) is tuple else (key,)
    if not vm.values.are_read or not any(type(item) is slice and _is_unknown(item) for item in items):
        return key
    out: list[Any] = []
    dim = 0
    for at, item in enumerate(items):
        if type(item) is slice and dim < tensor.dim():
            out.append(_remembered(vm, tensor.shape[dim], item) if _is_unknown(item) else item)
        else:
            out.append(item)
        dim = tensor.dim() - sum(map(taken, items[at + 1 :])) if item is Ellipsis else dim + taken(item)
    return tuple(out) if type(key) is tuple else out[0]


def unknown_item(vm: Interpreter, tensor: TraceTensor, key: object) -> object:
    """`tensor[n]`, `tensor[:, n]` for a data-dependent `n`; NotImplemented for any other index."""
    selected, rest = _without_numbers(vm, tensor, key)
    if selected is NotImplemented or not rest:
        return selected
    return vm.tensors.run(operator.getitem, (selected, known_slices(vm, selected, rest)), {})


def set_unknown_item(vm: Interpreter, tensor: TraceTensor, key: object, value: object) -> bool:
    """`tensor[n] = value` for a data-dependent `n`; False for any other index."""
    selected, rest = _without_numbers(vm, tensor, key)
    if selected is NotImplemented:
        return False
    vm.tensors.run(operator.setitem, (selected, known_slices(vm, selected, rest or (...,)), value), {})
    return True


def _without_numbers(vm: Interpreter, tensor: TraceTensor, key: object) -> tuple[Any, tuple[Any, ...]]:
    """(tensor after the selection at data-dependent indices, rest of the index); NotImplemented without such an
    index."""
    items = key if type(key) is tuple else (key,)
    if not vm.values.are_read or not any(map(_is_number, items)) or not all(map(_is_basic, items)):
        return NotImplemented, ()
    if sum(map(taken, items)) > tensor.dim():
        return NotImplemented, ()
    for at in reversed(range(len(items))):
        if _is_number(items[at]):
            after = ... in [p for p in items[:at] if type(p) is not TraceTensor]
            dim = -sum(map(taken, items[at:])) if after else sum(map(taken, items[:at]))
            tensor = _select(vm, tensor, dim, items[at])
            items = (*items[:at], *items[at + 1 :])
    return tensor, items


def _select(vm: Interpreter, tensor: TraceTensor, dim: int, index: object) -> Any:
    """`tensor.select(dim, index)`"""
    if type(index) is TraceTensor:
        index = vm.tensors.run(torch.Tensor.item, (index,), {}, method="item")
    number, size = from_torch(index), from_torch(tensor.shape[dim])
    if isinstance(number, Size) and is_unbacked(number):
        for fact in (Assumed("<", number, size, ""), Assumed(">=", number, -size, "")):
            _expect(vm, number, fact, "index is out of range", "IndexError")
        index = _bound(vm, index, tensor.shape[dim])
        index = _read(vm, index, tensor.shape[dim] - 1) if type(index) is TraceTensor else index
    return vm.tensors.run(torch.select, (tensor, dim, index), {})


def _is_number(item: object) -> bool:
    """Whether the item is a data-dependent number, also as a tensor."""
    if type(item) is TraceTensor:
        return not item.dim() and item.dtype in _INDICES
    return type(item) is torch.SymInt and is_unbacked(from_torch(item))


_BASIC = classes(int, torch.SymInt, slice)


def _is_basic(item: object) -> bool:
    """Whether the item is basic: an index of such items gives a view."""
    return item is None or item is ... or type(item) in _BASIC or _is_number(item)


_INDICES = frozenset({torch.int64, torch.int32, torch.int16, torch.int8})
"""Dtypes of tensors whose number selects an element."""


def _is_unknown(item: slice) -> bool:
    return any(type(v) is TraceTensor or is_unbacked(from_torch(v)) for v in (item.start, item.stop))


def taken(item: object) -> int:
    """The number of the tensor's dimensions that an item of an index consumes."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return item.dim() if type(item) is TraceTensor and item.dtype in (torch.bool, torch.uint8) else 1


def _remembered(vm: Interpreter, size: object, item: slice) -> slice:
    """The slice for a data-dependent one, cached by bounds and size so that equal slices have the same length."""
    bounds = (item.start, item.stop, item.step, size)
    key = tuple(text(from_torch(v)) if isinstance(v, torch.SymInt) else v for v in bounds)
    if vm.control.branching or vm.control.decided or any(type(v) is TraceTensor for v in bounds):
        return _known(vm, size, item)
    if key not in vm.control.slices:
        vm.control.slices[key] = _known(vm, size, item)
    return vm.control.slices[key]


def _known(vm: Interpreter, size: Any, item: slice) -> slice:
    step = 1 if item.step is None else item.step
    if type(step) is not int or step < 1 or not all(map(_is_whole, (item.start, item.stop))):
        return item
    start = 0 if item.start is None else _bound(vm, item.start, size)
    stop = size if item.stop is None else _bound(vm, item.stop, size)
    if not any(type(bound) is TraceTensor for bound in (start, stop)):
        return slice(start, stop, step)
    first = _read(vm, start, size) if type(start) is TraceTensor else start
    if type(start) is int and start == 0:
        length = stop
    else:
        length = vm.tensors.run(torch.clamp, (vm.tensors.run(torch.sub, (_scalar(vm, stop), start), {}),), {"min": 0})
    last = first + _read(vm, length, size - first)
    return slice(first, last, step)


def _is_whole(value: object) -> bool:
    if type(value) is TraceTensor:
        return not value.dim() and not value.is_floating_point() and not value.is_complex()
    return value is None or isinstance(value, (int, torch.SymInt))


def _bound(vm: Interpreter, value: Any, size: Any) -> object:
    """A slice's bound, clamped to 0 ... `size`; a tensor without dimensions if it is data-dependent."""
    if type(value) is not TraceTensor:
        number, length = from_torch(value), from_torch(size)
        if not is_unbacked(number):
            value = value + size if value < 0 else value
            return 0 if value < 0 else size if value > size else value
        owner = (number if isinstance(number, Size) else length).owner
        if owner.prove("<", number, 0) is False and owner.prove("<", length, number) is False:
            return to_torch(number)
    run, scalar = vm.tensors.run, _scalar(vm, value)
    negative = run(torch.lt, (scalar, 0), {})
    return run(torch.clamp, (run(torch.where, (negative, run(torch.add, (scalar, size), {}), scalar), {}), 0, size), {})


def _scalar(vm: Interpreter, value: object) -> object:
    if type(value) is TraceTensor:
        return value
    return vm.tensors.run(torch.scalar_tensor, (value,), {"dtype": torch.int64})


def _read(vm: Interpreter, scalar: object, most: object) -> Any:
    """Read the number in a tensor, with checks that it is between 0 and `most`."""
    value = vm.tensors.run(torch.Tensor.item, (scalar,), {}, method="item")
    number = from_torch(value)
    if isinstance(number, Size):
        for fact in (Assumed(">=", number, 0, ""), Assumed(">=", from_torch(most), number, "")):
            # needed by later stages, which trace the graph
            _expect(vm, number, fact, "a slice lies within its tensor", "RuntimeError")
    return value


def _expect(vm: Interpreter, number: Size, fact: Assumed, text: str, error: str) -> None:
    """Assume a fact, and record a check in the graph that it is true."""
    number.owner.learn(fact)
    vm.tensors.check(fact, text, error)
