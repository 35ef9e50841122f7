"""Slices and indices that only values tell: `x[:n]` after `n = t.item()`, `x[y.argmax()]`.

Python cuts bounds off at the ends and counts negative ones from the back, whatever the number is. So the graph computes
the bound that results, on a tensor of no dimensions, and reads that: a number between 0 and the size. The length of the
slice is such a number as well, and not a difference of two, so that nothing has to be known of it.
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
    """What a tensor is indexed with, bounds of slices that nobody knows replaced by ones within the tensor."""
    parts = key if type(key) is tuple else (key,)
    if not vm.values.are_read or not any(type(part) is slice and _is_unknown(part) for part in parts):
        return key
    out: list[Any] = []
    dim = 0
    for at, part in enumerate(parts):
        if type(part) is slice and dim < tensor.dim():
            out.append(_remembered(vm, tensor.shape[dim], part) if _is_unknown(part) else part)
        else:
            out.append(part)
        dim = tensor.dim() - sum(map(taken, parts[at + 1 :])) if part is Ellipsis else dim + taken(part)
    return tuple(out) if type(key) is tuple else out[0]


def unknown_item(vm: Interpreter, tensor: TraceTensor, key: object) -> object:
    """`tensor[n]`, `tensor[:, n]` where only values tell `n`; NotImplemented for any other index."""
    selected, rest = _without_numbers(vm, tensor, key)
    if selected is NotImplemented or not rest:
        return selected
    return vm.tensors.run(operator.getitem, (selected, known_slices(vm, selected, rest)), {})


def set_unknown_item(vm: Interpreter, tensor: TraceTensor, key: object, value: object) -> bool:
    """`tensor[n] = value` where only values tell `n`; False for any other index."""
    selected, rest = _without_numbers(vm, tensor, key)
    if selected is NotImplemented:
        return False
    vm.tensors.run(operator.setitem, (selected, known_slices(vm, selected, rest or (...,)), value), {})
    return True


def _without_numbers(vm: Interpreter, tensor: TraceTensor, key: object) -> tuple[Any, tuple[Any, ...]]:
    """The tensor with the elements selected that such numbers stand for, and the rest of the index."""
    parts = key if type(key) is tuple else (key,)
    if not vm.values.are_read or not any(map(_is_number, parts)) or not all(map(_is_basic, parts)):
        return NotImplemented, ()
    if sum(map(taken, parts)) > tensor.dim():
        return NotImplemented, ()
    for at in reversed(range(len(parts))):
        if _is_number(parts[at]):
            after = ... in [p for p in parts[:at] if type(p) is not TraceTensor]
            dim = -sum(map(taken, parts[at:])) if after else sum(map(taken, parts[:at]))
            tensor = _select(vm, tensor, dim, parts[at])
            parts = (*parts[:at], *parts[at + 1 :])
    return tensor, parts


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


def _is_number(part: object) -> bool:
    """A number that only values tell, perhaps in a tensor."""
    if type(part) is TraceTensor:
        return not part.dim() and part.dtype in _INDICES
    return type(part) is torch.SymInt and is_unbacked(from_torch(part))


_BASIC = classes(int, torch.SymInt, slice)


def _is_basic(part: object) -> bool:
    """What makes a view."""
    return part is None or part is ... or type(part) in _BASIC or _is_number(part)


_INDICES = frozenset({torch.int64, torch.int32, torch.int16, torch.int8})
"""Types of numbers that select an element; tensors of others are masks."""


def _is_unknown(part: slice) -> bool:
    return any(type(v) is TraceTensor or is_unbacked(from_torch(v)) for v in (part.start, part.stop))


def taken(part: object) -> int:
    """How many dimensions an index stands for."""
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    return part.dim() if type(part) is TraceTensor and part.dtype in (torch.bool, torch.uint8) else 1


def _remembered(vm: Interpreter, size: object, part: slice) -> slice:
    """The same slice of tensors of one size has one length."""
    given = (part.start, part.stop, part.step, size)
    key = tuple(text(from_torch(v)) if isinstance(v, torch.SymInt) else v for v in given)
    if vm.control.branching or vm.control.decided or any(type(v) is TraceTensor for v in given):
        return _known(vm, size, part)
    if key not in vm.control.slices:
        vm.control.slices[key] = _known(vm, size, part)
    return vm.control.slices[key]


def _known(vm: Interpreter, size: Any, part: slice) -> slice:
    step = 1 if part.step is None else part.step
    if type(step) is not int or step < 1 or not all(map(_is_whole, (part.start, part.stop))):
        return part
    start = 0 if part.start is None else _bound(vm, part.start, size)
    stop = size if part.stop is None else _bound(vm, part.stop, size)
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
    """Where in 0 to `size` a bound of a slice is: a tensor of no dimensions where nobody knows."""
    if type(value) is not TraceTensor:
        number, whole = from_torch(value), from_torch(size)
        if not is_unbacked(number):
            value = value + size if value < 0 else value
            return 0 if value < 0 else size if value > size else value
        owner = (number if isinstance(number, Size) else whole).owner
        if owner.prove("<", number, 0) is False and owner.prove("<", whole, number) is False:
            return to_torch(number)
    run, scalar = vm.tensors.run, _scalar(vm, value)
    negative = run(torch.lt, (scalar, 0), {})
    return run(torch.clamp, (run(torch.where, (negative, run(torch.add, (scalar, size), {}), scalar), {}), 0, size), {})


def _scalar(vm: Interpreter, value: object) -> object:
    if type(value) is TraceTensor:
        return value
    return vm.tensors.run(torch.scalar_tensor, (value,), {"dtype": torch.int64})


def _read(vm: Interpreter, scalar: object, most: object) -> Any:
    """The number in a tensor, which is known to be 0 to `most`."""
    value = vm.tensors.run(torch.Tensor.item, (scalar,), {}, method="item")
    number = from_torch(value)
    if isinstance(number, Size):
        for fact in (Assumed(">=", number, 0, ""), Assumed(">=", from_torch(most), number, "")):
            _expect(vm, number, fact, "a slice lies within its tensor", "RuntimeError")  # for stages that trace again
    return value


def _expect(vm: Interpreter, number: Size, fact: Assumed, text: str, error: str) -> None:
    """The graph checks that the fact holds."""
    number.owner.learn(fact)
    vm.tensors.check(fact, text, error)
