"""The position of a trace tensor's elements in memory: layouts, storages, and view steps from a storage's root."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from smelt.base.errors import Unsupported
from smelt.base.torch_private import OpOverload
from smelt.graph.ir.memo import remember
from smelt.graph.ir.meta import OpaqueMeta, TensorMeta, extent, is_lazy, is_opaque, meta_of
from smelt.shapes.size import Size

META = torch.device("meta")
_CONJ, _NEG_VIEW = torch.ops.aten._conj.default, torch.ops.aten._neg_view.default


class Layout:
    """The metadata of a trace tensor: its TensorMeta and its offset in the storage (elements).

    Equal layouts are one object as long as the table of layouts keeps it, so they hash and compare by identity.

    Attributes:
        symbolic: whether a size, a stride or the offset is not a plain number.
    """

    __slots__ = ("val", "offset", "symbolic", "_on_meta")

    def __init__(self, val: TensorMeta, offset: int) -> None:
        self.val, self.offset = val, offset
        self.symbolic = val.symbolic or isinstance(offset, Size)
        self._on_meta: torch.Tensor | None = None

    def fresh(self) -> torch.Tensor:
        """Make a new meta-device tensor with this layout."""
        val = self.val
        if self.offset == 0:
            return torch.empty_strided(val.shape, val.stride, dtype=val.dtype, device=META)
        whole = torch.empty(self.offset + extent(val.shape, val.stride), dtype=val.dtype, device=META)
        return whole.as_strided(val.shape, val.stride, self.offset)

    def on_meta(self) -> torch.Tensor:
        """Returns a meta-device tensor with this layout; each call returns the same object."""
        if self._on_meta is None:
            self._on_meta = self.fresh()
        return self._on_meta


_layouts: dict[tuple[Any, ...], Layout] = {}


def with_index(device: torch.device) -> torch.device:
    """Returns the device with the index that a new tensor gets: for "cuda" that of the current GPU."""
    if device.index is not None or device.type in ("cpu", "meta"):
        return device
    return torch.device(device.type, torch.get_device_module(device).current_device())


def layout_for(
    shape: tuple[int, ...], dtype: torch.dtype, stride: tuple[int, ...], device: torch.device, offset: int = 0
) -> Layout:
    """Returns the layout object with these properties; equal layouts are one object."""
    key = (shape, dtype, stride, device, offset)
    known = _layouts.get(key)
    if known is None:
        known = remember(_layouts, key, Layout(TensorMeta(shape, dtype, stride, with_index(device)), offset))
    return known


def opaque_layout(val: OpaqueMeta) -> Layout:
    """Returns the layout object of an opaque tensor; equal layouts are one object."""
    known = opaque_layouts.get(val)
    if known is None:
        known = remember(opaque_layouts, val, Layout(val, 0))
    return known


opaque_layouts: dict[OpaqueMeta, Layout] = {}
"""Layout objects of opaque tensors; empty until a trace has met an opaque tensor."""


class Storage:
    """The memory of trace tensors: all views of the same memory have the same Storage.

    Attributes:
        version: number of writes; a view whose value is of an older version must be replayed.
        root: the view that covers the memory.
        constant: the real tensor if the memory contains a constant of the program, else None.
        filled: whether all elements have the same value.
        reshaped: whether a view of it changed its shape in place. After a write the engine rebuilds the history of
            views, by the view's original operator.
        resized: whether a tensor was resized to fewer of its elements, and may be resized back.
    """

    __slots__ = ("version", "root", "constant", "filled", "reshaped", "resized")

    def __init__(self) -> None:
        self.version = 0
        self.root: StorageView | None = None
        self.constant: torch.Tensor | None = None
        self.filled = self.reshaped = self.resized = False


class Step:
    """One view operator between a parent view and a child: `op(parent, *args, **kwargs)[index]`.

    Attributes:
        grad: whether gradients were enabled.
        data: number of the step's version counter if the step is `parent.data`, which unlike `parent.detach()` has its
            own counter.
    """

    __slots__ = ("op", "args", "kwargs", "index", "grad", "data")
    counts = itertools.count()

    def __init__(self, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], index: int | None) -> None:
        self.op, self.args, self.kwargs, self.index = op, tuple(args), dict(kwargs), index
        self.grad = torch.is_grad_enabled()
        self.data: int | None = None

    def __call__(self, parent: Any) -> Any:
        """Apply the step to a real tensor or a trace tensor."""
        if self.data is not None:
            return parent.data
        out = self.op(parent, *self.args, **self.kwargs)
        return out if self.index is None else out[self.index]


class StorageView:
    """The position of a trace tensor's elements: a storage, and the steps from the storage's root.

    Attributes:
        layout: metadata of the tensor.
        parent, step: the view from which it is taken, and the operator; None for the root.
        node: the recorder's value of this view at storage version `version`.
        rows: the sparse form of the tensor, if it is a sparse gradient.
        conjugate, negative: whether the values are the conjugates or negatives of the memory's contents (`conj()`).
    """

    __slots__ = ("layout", "storage", "parent", "step", "node", "version", "rows", "conjugate", "negative")

    def __init__(self, layout: Layout, parent: StorageView | None = None, step: Step | None = None) -> None:
        self.layout, self.parent, self.step = layout, parent, step
        self.node: Any = None
        self.version = -1
        self.rows: Rows | None = None
        if parent is None:
            self.conjugate = self.negative = False
            self.storage = Storage()
            self.storage.root = self
        else:
            op = None if step is None else step.op
            self.conjugate = parent.conjugate ^ (op is _CONJ)
            self.negative = parent.negative ^ (op is _NEG_VIEW)
            self.storage = parent.storage


class Rows(NamedTuple):
    """A sparse gradient: `values[k]` is added to row `indices[0, k]` of the dense gradient, for each k whose index is
    not `but`.
    """

    indices: ViewedTensor
    values: ViewedTensor
    but: int | None


class ViewedTensor(torch.Tensor):
    """The base class of `TraceTensor`: a tensor object with the storage view that it represents."""

    __slots__ = ("storage_view",)
    storage_view: StorageView


def layout_of(tensor: torch.Tensor) -> Layout:
    """Returns the layout of a real or traced tensor."""
    if isinstance(tensor, ViewedTensor):
        return tensor.storage_view.layout
    if tensor.is_nested:
        raise Unsupported("a nested tensor", why="graphs hold tensors of one shape", hint="convert it before the call")
    if is_opaque(tensor):
        val = meta_of(tensor)
        assert isinstance(val, OpaqueMeta)
        return opaque_layout(replace(val, requires_grad=False))
    if tensor.layout is not torch.strided:
        kind = str(tensor.layout)
        raise Unsupported(
            f"a {kind} tensor", why="graphs know nothing of its memory", hint="convert it before the call"
        )
    if is_lazy(tensor):
        what = "a lazy conjugate or negative, or zeros without memory"
        raise Unsupported(what, hint="call resolve_conj(), resolve_neg() or clone()")
    return layout_for(
        tuple(tensor.shape), tensor.dtype, tuple(tensor.stride()), tensor.device, int(tensor.storage_offset())
    )
