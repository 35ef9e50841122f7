"""`torch.tensor` of data that contains tensors, which becomes a stack of those tensors in the graph."""

from __future__ import annotations

import functools
from typing import Any

import torch

from smelt.base.class_tables import isinstance
from smelt.capture.arrays import methods as array_methods
from smelt.capture.arrays.array import TensorArray
from smelt.capture.core.breaks import Break
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.prologue_value import values_in
from smelt.capture.core.registry import CALL, TENSOR_METHODS, special
from smelt.capture.prologue import ops as prologue_ops
from smelt.capture.tensors.torch_calls import call_tensor_method, call_torch
from smelt.graph.trace.trace import TraceTensor


def _scalars(data: object) -> list[object]:
    """The leaves of nested lists.

    Raises:
        Break: one of the leaves is a tensor with dimensions.
    """
    leaves = list(_leaves(data))
    if any(type(leaf) is TraceTensor and leaf.dim() for leaf in leaves):
        raise Break("torch.tensor() of tensors with dimensions", "eager reads them", "torch.stack(tensors)")
    return leaves


@special(torch.tensor)
def tensor(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `torch.tensor(data, ...)`: nested lists with 0-dimensional tensors become stacks."""
    data = vm.effects.plain(args[0] if args else kwargs.get("data"))
    if type(data) is TensorArray:
        return array_methods.new_tensor(vm, data, kwargs)
    if any(True for _ in values_in((data, kwargs))):
        return prologue_ops.tensor_of(vm, torch.tensor, args, kwargs)
    if not isinstance(data, (list, tuple)) or not any(type(leaf) is TraceTensor for leaf in _leaves(data)):
        return call_torch(vm, torch.tensor, args, kwargs)
    settings = {name: value for name, value in kwargs.items() if name != "data"}
    dtype, device = settings.pop("dtype", None), settings.pop("device", None)
    if len(args) > 1 or any(settings.values()):
        raise Break(f"torch.tensor() of tensors with {', '.join(settings) or 'more arguments'}")
    leaves = _scalars(data)
    if dtype is None:
        dtype = functools.reduce(torch.promote_types, map(_dtype_of, leaves))
    device = torch.get_default_device() if device is None else torch.device(device)
    return _stack(vm, data, dtype, device)


@CALL(type(torch.IntTensor))
def of_old_type(vm: Interpreter, kind: Any, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `torch.IntTensor([4])` and similar: a tensor on the CPU with the type's dtype, whatever the
    defaults.
    """
    data = vm.effects.plain(args[0]) if len(args) == 1 and not kwargs else None
    if not isinstance(data, (list, tuple)) or isinstance(data, torch.Size) or kind.is_cuda:
        raise Break(f"{kind.__module__}.{kind.__name__}() of anything but a list", "", "torch.tensor or torch.empty")
    return tensor(vm, (list(data),), {"dtype": kind.dtype, "device": torch.device("cpu")})


def new(vm: Interpreter, x: object, *args: object, **kwargs: object) -> object:
    """`x.new(torch.Size([3]))` has the given shape, `x.new((3,))` the given element; a graph would pass a tuple in both
    cases.
    """
    if len(args) == 1 and isinstance(args[0], torch.Size):
        return call_tensor_method(vm, "new_empty", (x, *args), kwargs)
    args, kwargs = vm.effects.plain_all(args), vm.effects.plain(kwargs)
    return vm.tensors.run(torch.Tensor.new, (x, *args), kwargs, method="new")


TENSOR_METHODS["new"] = new


def _stack(vm: Interpreter, data: object, dtype: torch.dtype, device: torch.device) -> object:
    if isinstance(data, (list, tuple)):
        if not data:
            raise Break("torch.tensor() of an empty list among tensors")
        return vm.tensors.run(torch.stack, ([_stack(vm, each, dtype, device) for each in data],), {})
    if type(data) is TraceTensor:
        alone = vm.tensors.run(torch.Tensor.detach, (data,), {}, method="detach")
        return vm.tensors.run(torch.Tensor.to, (alone, device, dtype), {}, method="to")
    return vm.tensors.run(torch.full, ((), data), {"dtype": dtype, "device": device})


def _leaves(data: Any) -> Any:
    """The numbers and tensors of nested lists."""
    for each in data:
        if isinstance(each, (list, tuple)):
            yield from _leaves(each)
        else:
            yield each


def _dtype_of(value: object) -> torch.dtype:
    """The dtype of the tensor that `torch.tensor` makes from a single number or tensor."""
    if type(value) is TraceTensor:
        return value.dtype
    for kind, dtype in ((bool, torch.bool), (int, torch.int64), (torch.SymInt, torch.int64)):
        if isinstance(value, kind):
            return dtype
    if isinstance(value, (float, torch.SymFloat)):
        return torch.get_default_dtype()
    if isinstance(value, complex):
        return torch.promote_types(torch.get_default_dtype(), torch.complex32)
    raise Break(f"torch.tensor() of a {type(value).__name__} among tensors")
