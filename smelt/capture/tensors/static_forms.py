"""Static forms of operators whose result, or number of elements, depends on values: equivalent calls with known shapes.

The values come from `speculation`; where they stay unknown, the graph ends at the operator.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from smelt.base.class_tables import isinstance
from smelt.capture.core.breaks import UserError
from smelt.capture.core.conditional_value import PhiValue
from smelt.capture.core.interface import Args, Interpreter
from smelt.capture.python.unbacked_slices import set_unknown_item, taken, unknown_item
from smelt.capture.tensors.input_scalars import number_at_entry
from smelt.graph.ir.meta import is_opaque
from smelt.graph.ir.symint import from_torch
from smelt.graph.trace.trace import TraceTensor


def static_form(
    vm: Interpreter, target: object, args: Args, kwargs: Mapping[str, object], method: str | None = None
) -> Any:
    """The result of the call in a form whose shapes are known; NotImplemented if the needed values stay unknown.

    Raises:
        Break, UserError: as for other calls of torch.
    """
    name = getattr(target, "__name__", "")
    form = STATIC_FORMS.get(name)
    if form is not None and args and type(args[0]) is TraceTensor and "out" not in kwargs:
        found = form(vm, *args, **kwargs)
        if found is not None:
            return None if found is NO_RESULT else found
    for first in (1,) if method is not None else (1, 0):  # the first argument of a function is rarely a number
        numbers = (*args[:first], *_numbers(vm, args[first:]))
        named = dict(zip(kwargs, _numbers(vm, tuple(kwargs.values())), strict=True))
        if _leaves((args, dict(kwargs))) == _leaves((numbers, named)):
            continue
        try:
            return vm.tensors.run(target, numbers, named, method)
        except UserError as refused:
            if not isinstance(refused.error, TypeError):  # the call takes a tensor there, and no number
                raise
    return NotImplemented


def _leaves(value: object) -> list[int]:
    return [id(leaf) for leaf in pytree.tree_leaves(value)]


def _numbers(vm: Interpreter, value: Any) -> Any:
    """The nested `value` with 0-dimensional integer tensors replaced by numbers, if their values are known."""
    kind = type(value)
    if kind is TraceTensor:
        if value.dim() or value.dtype.is_floating_point or value.dtype is torch.bool:
            return value
        found = vm.tensors.speculation.value(value)
        return value if found is None else found.item()
    if kind is tuple or kind is list:
        return kind(_numbers(vm, each) for each in value)
    if kind is slice:
        bounds = value.start, value.stop, value.step
        found = _numbers(vm, bounds)
        return value if all(a is b for a, b in zip(bounds, found, strict=True)) else slice(*found)
    return value


def _indices(vm: Interpreter, mask: TraceTensor) -> tuple[object, ...] | None:
    """The indices of a mask's true elements, one tensor for each dimension; None if the number of elements is
    unknown.
    """
    count = vm.tensors.speculation.count(mask)
    if count is None:
        return None
    found = vm.tensors.run(torch.nonzero_static, (mask,), {"size": count})
    return tuple(vm.tensors.run(torch.unbind, (found, 1), {}))


def _getitem(vm: Interpreter, tensor: TraceTensor, key: object) -> object:
    """Static form of `tensor[mask]` and `tensor[mask, ...]`, and of indices that are tensors without dimensions."""
    if vm.ambient.indexes_by_tensors and all(type(each) is TraceTensor for each in _items(key)):
        return vm.tensors.run(torch.ops.aten.index.Tensor, (tensor, list(_items(key))), {})
    if any(map(_is_flag, _items(key))):
        return vm.tensors.run(operator.getitem, _with_flag_dimensions(vm, tensor, key), {})
    index = _index(vm, key)
    if index is not None:
        return vm.tensors.run(operator.getitem, (tensor, index), {})
    item = unknown_item(vm, tensor, key)
    return None if item is NotImplemented else item


def _setitem(vm: Interpreter, tensor: TraceTensor, key: object, value: object) -> object:
    """Static form of `tensor[mask, ...] = values`."""
    if any(map(_is_flag, _items(key))):
        vm.tensors.run(operator.setitem, (*_with_flag_dimensions(vm, tensor, key), value), {})
        return NO_RESULT
    index = _index(vm, key) if _masks_fit(tensor, key) else None
    if index is None:
        return NO_RESULT if set_unknown_item(vm, tensor, key, value) else None
    vm.tensors.run(operator.setitem, (tensor, index, value), {})
    return NO_RESULT


def _items(key: object) -> tuple[object, ...]:
    return key if isinstance(key, tuple) else (key,)


def _is_flag(item: object) -> bool:
    """Whether an index item is a 0-dimensional mask."""
    return type(item) is TraceTensor and item.dtype in (torch.bool, torch.uint8) and not item.dim()


def _with_flag_dimensions(vm: Interpreter, tensor: TraceTensor, key: object) -> tuple[TraceTensor, tuple[object, ...]]:
    """The tensor and the index with a new dimension of size 1 for each 0-dimensional mask, which then selects or drops
    that dimension's element.
    """
    items = _items(key)
    for at, item in enumerate(items):
        if _is_flag(item):
            behind = ... in [p for p in items[:at] if type(p) is not TraceTensor]
            dim = tensor.dim() - sum(map(taken, items[at:])) if behind else sum(map(taken, items[:at]))
            tensor, mask = (vm.tensors.run(torch.unsqueeze, (x, d), {}) for x, d in ((tensor, dim), (item, 0)))
            items = (*items[:at], mask, *items[at + 1 :])
    return tensor, items


def _masks_fit(tensor: TraceTensor, key: object) -> bool:
    """Whether each mask has the same sizes as the dimensions that it selects from, which its indices would not show."""
    items = _items(key)
    for at, item in enumerate(items):
        if type(item) is TraceTensor and item.dtype in (torch.bool, torch.uint8):
            behind = ... in [p for p in items[:at] if type(p) is not TraceTensor]
            first = tensor.dim() - sum(map(taken, items[at:])) if behind else sum(map(taken, items[:at]))
            if not item.dim() or tensor.shape[first : first + item.dim()] != item.shape:
                return False
    return True


def _index(vm: Interpreter, key: object) -> tuple[object, ...] | None:
    """The index with masks replaced by index tensors, and 0-dimensional tensors by numbers; None if a mask is unknown
    or nothing is replaced.
    """
    items = _items(key)
    folded_items: list[Any] = []
    for item in _numbers(vm, items) if isinstance(key, (slice, tuple)) else items:
        if type(item) is TraceTensor and item.dtype in (torch.bool, torch.uint8):
            known = _indices(vm, item)
            if known is None:
                return None
            folded_items.extend(known)
        else:
            folded_items.append(item)
    same = len(folded_items) == len(items) and all(map(operator.is_, folded_items, items))
    return None if same else tuple(folded_items)


def _nonzero(vm: Interpreter, tensor: TraceTensor, *, as_tuple: bool = False) -> object:
    """Static form of `torch.nonzero(tensor)`."""
    if as_tuple and not tensor.dim():
        tensor = vm.tensors.run(torch.unsqueeze, (tensor, 0), {})
    count = vm.tensors.speculation.count(tensor)
    if count is None:
        return None
    if type(count) is int and count == 0:
        shape, stride = (tensor.dim(), 0), (0, 1)
        options = {"dtype": torch.int64, "device": tensor.device}
        by_dimension = vm.tensors.run(torch.empty_strided, (shape, stride), options)
    else:
        found = vm.tensors.run(torch.nonzero_static, (tensor,), {"size": count})
        by_dimension = vm.tensors.run(torch.Tensor.contiguous, (vm.tensors.run(torch.t, (found,), {}),), {})
    if as_tuple:
        return tuple(vm.tensors.run(torch.unbind, (by_dimension,), {}))
    return vm.tensors.run(torch.t, (by_dimension,), {})  # as in eager: the indices of a dimension are contiguous


def _where(vm: Interpreter, condition: TraceTensor, *rest: object) -> object:
    """Static form of `torch.where(condition)`."""
    return None if rest else _nonzero(vm, condition, as_tuple=True)


def _masked_select(vm: Interpreter, tensor: TraceTensor, mask: TraceTensor) -> object:
    """Static form of `torch.masked_select(tensor, mask)`."""
    if tensor.shape != mask.shape:
        tensor, mask = vm.tensors.run(torch.broadcast_tensors, (tensor, mask), {})
    if not mask.dim():  # an index without dimensions would remove a dimension
        tensor, mask = (vm.tensors.run(torch.atleast_1d, (x,), {}) for x in (tensor, mask))
    return _getitem(vm, tensor, mask)


def _repeat_interleave(vm: Interpreter, tensor: TraceTensor, *args: Any, **kwargs: Any) -> object:
    """Static form of `torch.repeat_interleave(tensor, repeats)`."""
    repeats = args[0] if args else kwargs.get("repeats", tensor)
    if type(repeats) is not TraceTensor or kwargs.get("output_size") is not None:
        return None
    values = vm.tensors.speculation.value(repeats)
    if values is None:
        return None
    if (values < 0).any():
        return None  # the kernel that is given a size writes beyond its result
    size = int(values.sum())
    if repeats.numel() == 1 and type(tensor) is TraceTensor and repeats is not tensor and tensor.dim():
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        size *= tensor.numel() if dim is None else tensor.shape[dim]
    return vm.tensors.run(torch.repeat_interleave, (tensor, *args), {**kwargs, "output_size": size})


def _one_hot(vm: Interpreter, tensor: TraceTensor, num_classes: int = -1) -> object:
    """Static form of `F.one_hot(tensor)`."""
    values = vm.tensors.speculation.value(tensor) if num_classes == -1 else None
    if values is None:
        return None
    return vm.tensors.run(torch.nn.functional.one_hot, (tensor, int(values.max()) + 1), {})


def _item(vm: Interpreter, tensor: TraceTensor) -> object:
    """Static form of `tensor.item()` and of Python's number conversions."""
    number = number_at_entry(vm, tensor)
    if number is not None:
        return number
    values = vm.tensors.speculation.value(tensor)
    return None if values is None else values.item()


def _tolist(vm: Interpreter, tensor: TraceTensor) -> object:
    """Static form of `tensor.tolist()`."""
    values = vm.tensors.speculation.value(tensor)
    return _listed(vm, tensor) if values is None else values.tolist()


def _listed(vm: Interpreter, tensor: TraceTensor) -> object:
    """The elements as nested lists of numbers that the graph reads one by one; None if there are too many, or the graph
    cannot read them.
    """
    reads = vm.values.are_read and vm.tensors is vm.outermost
    if not reads or is_opaque(tensor) or tensor.dtype is torch.bool or tensor.dtype.is_complex:
        return None
    shape = from_torch(tensor.shape)
    if not all(type(size) is int for size in shape) or math.prod(shape) > MAX_LISTED_ELEMENTS:
        return None
    return _numbers_of(vm, tensor)


def _numbers_of(vm: Interpreter, tensor: TraceTensor) -> object:
    if not tensor.dim():
        return vm.tensors.run(torch.Tensor.item, (tensor,), {}, "item")
    return [_numbers_of(vm, row) for row in vm.tensors.run(torch.unbind, (tensor,), {})]


def _is_nonzero(vm: Interpreter, tensor: TraceTensor) -> object:
    """Static form of `torch.is_nonzero(tensor)`."""
    values = vm.tensors.speculation.value(tensor)
    return None if values is None else bool(values)


def _equal(vm: Interpreter, tensor: TraceTensor, other: TraceTensor) -> object:
    """Static form of `torch.equal(tensor, other)`."""
    if tensor.shape != other.shape:
        return False
    if tensor.dtype != other.dtype or is_opaque(tensor) or is_opaque(other):
        return None
    same = vm.tensors.run(torch.all, (vm.tensors.run(torch.eq, (tensor, other), {}),), {})
    return _truth(vm, same, "torch.equal")


def _allclose(vm: Interpreter, input: TraceTensor, other: TraceTensor, *args: object, **kwargs: object) -> object:
    """Static form of `torch.allclose(tensor, other, rtol, atol, equal_nan)`."""
    close = vm.tensors.run(torch.isclose, (input, other, *args), kwargs)
    return _truth(vm, vm.tensors.run(torch.all, (close,), {}), "torch.allclose")


def _truth(vm: Interpreter, condition: TraceTensor, function: str) -> object:
    """The truth value of a tensor as the result of a function, on which a branch may depend."""
    known = _is_nonzero(vm, condition)
    if known is not None or not vm.control.branches or not vm.tensors.branches or vm.tensors is not vm.outermost:
        return known
    vm.control.undecided = True
    return PhiValue(condition, True, False, None, vm.step, function)


def _tensor_split(vm: Interpreter, tensor: TraceTensor, sections: object, dim: int = 0) -> object:
    """Static form of `torch.tensor_split(tensor, indices)` with the indices in a tensor."""
    values = vm.tensors.speculation.value(sections) if type(sections) is TraceTensor else None
    return None if values is None else vm.tensors.run(torch.tensor_split, (tensor, values.tolist(), dim), {})


NO_RESULT = object()
"""Returned by a static form that has made all effects of a call without a result."""

MAX_LISTED_ELEMENTS = 64
"""Maximum number of elements of a tensor whose list becomes numbers that the graph reads."""

STATIC_FORMS: dict[str, Callable[..., Any]] = {
    "getitem": _getitem,
    "__getitem__": _getitem,
    "setitem": _setitem,
    "__setitem__": _setitem,
    "nonzero": _nonzero,
    "argwhere": _nonzero,
    "where": _where,
    "masked_select": _masked_select,
    "repeat_interleave": _repeat_interleave,
    "one_hot": _one_hot,
    "item": _item,
    "__int__": _item,
    "__index__": _item,
    "tolist": _tolist,
    "__bool__": _is_nonzero,
    "is_nonzero": _is_nonzero,
    "equal": _equal,
    "allclose": _allclose,
    "tensor_split": _tensor_split,
}
"""Static forms, by the name of a torch function or method."""
