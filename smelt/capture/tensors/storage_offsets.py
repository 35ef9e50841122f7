"""Calls with offsets into a tensor's storage: `as_strided` and its variants, `storage_offset`, views as larger dtypes.

Eager counts an offset from the beginning of a tensor's storage, a graph from the first element of its input.
"""

from __future__ import annotations

from typing import Any

import torch

from smelt.capture.core import sources
from smelt.capture.core.breaks import Break
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import special
from smelt.capture.guards.questions import BeginsAtMultiple
from smelt.graph.ir.meta import is_dense, reach
from smelt.graph.ir.storage_view import StorageView
from smelt.graph.ir.symint import from_torch, to_torch
from smelt.graph.trace.in_bounds import lies_within
from smelt.graph.trace.trace import TraceTensor
from smelt.shapes.size import Size, same

aten = torch.ops.aten


@special(torch.as_strided, aten.as_strided, aten.as_strided.default)
def as_strided(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `torch.as_strided(x, size, stride, storage_offset)`."""
    args, kwargs = relative_to_input(vm, *map(vm.effects.plain, args), **kwargs)
    return vm.tensors.run(torch.as_strided, args, kwargs)


@special(torch.as_strided_copy, aten.as_strided_copy, aten.as_strided_copy.default)
def as_strided_copy(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `torch.as_strided_copy`: a row-major copy of the view that `torch.as_strided` gives."""
    if kwargs.get("out") is not None:
        raise Break("torch.as_strided_copy(out=)", "its offset counts from the beginning of a storage")
    view = as_strided(vm, args, {name: value for name, value in kwargs.items() if name != "out"})
    return vm.tensors.run(torch.clone, (view,), {"memory_format": torch.contiguous_format})


@special(torch.as_strided_scatter, aten.as_strided_scatter, aten.as_strided_scatter.default)
def as_strided_scatter(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `torch.as_strided_scatter(x, src, size, stride, storage_offset)`."""
    return scatter_strided(vm, *map(vm.effects.plain, args), **kwargs)


def scatter_strided(vm: Interpreter, input: object, src: object, *where: object, **named: object) -> object:
    """The result of `as_strided_scatter` for arguments whose offset counts from the beginning of the storage."""
    if named.pop("out", None) is not None:
        raise Break("torch.as_strided_scatter(out=)", "its offset counts from the beginning of a storage")
    if type(input) is TraceTensor and type(src) is TraceTensor:
        size, stride, first = _strided_arguments(*where, **named)  # type: ignore[arg-type]
        where, named = relative_to_input(vm, input, size, stride, first)[0][1:], {}
        begins = first is None or where[2] is first and same(input.storage_view.layout.offset, 0)
        if torch.is_grad_enabled() and (input.requires_grad or src.requires_grad):
            if not (begins and input.is_contiguous()):
                storage_offset(vm, input)  # makes the eager code that runs instead get this input with its true offset
                raise Break("as_strided_scatter() of a view", "eager's gradients are of other elements")
    return vm.tensors.run(torch.as_strided_scatter, (input, src, *where), named)


def _strided_arguments(
    size: object, stride: object, storage_offset: int | None = None
) -> tuple[object, object, int | None]:
    return size, stride, storage_offset


@special(torch.view_as_complex, aten.view_as_complex, aten.view_as_complex.default)
def view_as_complex(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `torch.view_as_complex(x)`, which refuses a storage offset of x that is an odd number of
    elements.
    """
    for arg in (*args, *kwargs.values()):
        if type(arg) is TraceTensor:
            require_aligned_offset(vm, arg, 2 * arg.itemsize)
    return vm.tensors.run(torch.view_as_complex, tuple(map(vm.effects.plain, args)), kwargs)


@special(aten.view, aten.view.dtype)
def view(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of the operator `aten.view`, which views a tensor as another dtype or another shape."""
    args = tuple(map(vm.effects.plain, args))
    require_aligned_view(vm, args, kwargs)
    return vm.tensors.run(aten.view, args, kwargs)


def require_aligned_view(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """End the graph where eager refuses `view(x, dtype)` because of x's storage offset.

    The graph may give x another layout, and then eager's error would not occur.
    """
    dtype = next((each for each in (*args[1:], *kwargs.values()) if type(each) is torch.dtype), None)
    if dtype is not None and type(args[0]) is TraceTensor and dtype.itemsize > args[0].itemsize:
        require_aligned_offset(vm, args[0], dtype.itemsize)


def require_aligned_offset(vm: Interpreter, tensor: TraceTensor, size: int) -> None:
    """End the graph where a tensor's storage offset is not a multiple of `size` bytes.

    For an input, a guard requires that the offset stays a multiple if it is one now, and otherwise that it stays the
    same.
    """
    base = _root_tensor(vm, tensor)
    if base is None:
        return
    real, source = vm.tensors.real.get(id(base)), vm.sources.get(id(base))
    begins = BeginsAtMultiple(size)
    at = tensor.storage_view.layout.offset
    if real is not None and source is not None and begins(real) and same(base.storage_view.layout.offset, 0):
        vm.guards.python(begins, [source])
    elif source is not None:
        at = from_torch(storage_offset(vm, tensor))
    if not bool(at * tensor.itemsize % size == 0):
        storage_offset(vm, tensor)  # makes the eager code, which raises the error, get this input with its true offset
        raise Break("a view as larger numbers of a tensor that begins in the middle of one", _ONLY_INPUTS)


def relative_to_input(
    vm: Interpreter, input: TraceTensor, size: object, stride: object, storage_offset: int | None = None
) -> tuple[Args, Kwargs]:
    """The arguments of `as_strided`, with an offset that counts from the graph's input and not from its storage."""
    base = None if storage_offset is None else _root_tensor(vm, input)
    if storage_offset is not None and base is not None and id(base) in vm.sources:
        storage_offset -= _input_offset(vm, base, input)
        if storage_offset < 0:
            raise Break("as_strided() that reaches before its argument", _ONLY_INPUTS)
    _require_in_bounds(vm, input, size, stride, storage_offset)
    return (input, size, stride, storage_offset), {}


def _root_tensor(vm: Interpreter, tensor: TraceTensor) -> TraceTensor | None:
    """The root tensor of a tensor's storage: the input or result by which the memory entered the graph; None if the
    graph has none.
    """
    root = tensor.storage_view.storage.root
    return next((made for _, made in vm.tensors.made_tensors() if made.storage_view is root), None)


def _input_offset(vm: Interpreter, base: TraceTensor, view: TraceTensor) -> Any:
    """The storage offset of an input, in elements of `view`, a view of it that may have another dtype.

    The graph counts its own offsets from there.
    """
    begin = storage_offset(vm, base) - to_torch(base.storage_view.layout.offset)
    return begin if base.itemsize == view.itemsize else begin * base.itemsize // view.itemsize


_ONLY_INPUTS = "a graph reads no memory beside its inputs"


def _require_in_bounds(vm: Interpreter, input: TraceTensor, size: Any, stride: Any, first: Any) -> None:
    """End the graph if `as_strided` would read elements outside of the tensor by which the memory entered the graph."""
    root = input.storage_view.storage.root
    if root is None or not isinstance(size, (list, tuple)) or not isinstance(stride, (list, tuple)):
        return  # the operator raises the error
    first = input.storage_view.layout.offset if first is None else first
    size, stride, first = from_torch((tuple(size), tuple(stride), first))
    if any(type(n) is not Size and (type(n) is not int or n < 0) for n in (*size, *stride, first)):
        return
    readable = _readable_view(input, root)
    val, at = readable.layout.val, first - readable.layout.offset
    if any(same(n, 0) for n in size):
        return
    if is_dense(val.shape, val.stride):  # the comparison of symbolic sizes becomes a guard, as in tracing
        inside = bool(at >= 0) and bool(reach(size, stride, at) <= val.numel)
    else:
        inside = lies_within(size, stride, at, val)
    if not inside:
        storage_offset(vm, input)  # makes the eager code that runs instead get this input with its true offset
        raise Break("as_strided() that reaches beside its argument", _ONLY_INPUTS)


def _readable_view(tensor: TraceTensor, root: StorageView) -> StorageView:
    """The elements that `as_strided` may read: with gradients, only those of the tensor that it is called on."""
    return tensor.storage_view if tensor.requires_grad and torch.is_grad_enabled() else root


def storage_offset(vm: Interpreter, tensor: TraceTensor) -> object:
    """The storage offset of a tensor, in elements. It is guarded for an input; for a view of an input it is computed
    from the input's offset.

    For a tensor that the graph makes, it is the same number as in eager. The program may use it to read neighbouring
    elements, even after the graph: if such a view leaves the graph, its root becomes a result as well, so that the root
    keeps its layout.
    """
    real, source = vm.tensors.real.get(id(tensor)), vm.sources.get(id(tensor))
    if real is None or source is None:
        base = _root_tensor(vm, tensor)
        if base is None:
            raise Break("storage_offset() of a tensor that the graph makes", "compiled code lays it out as it likes")
        begin = to_torch(tensor.storage_view.layout.offset)
        if id(base) in vm.sources:
            return begin + _input_offset(vm, base, tensor)
        vm.tensors.kept_roots[id(base.storage_view.storage)] = base
        return begin
    return vm.external(real.storage_offset(), sources.called(source, torch.Tensor.storage_offset, "offset"))
