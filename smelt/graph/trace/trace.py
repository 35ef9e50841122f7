"""The trace tensor: a tensor without data on which PyTorch programs run to learn metadata, or to be recorded.

Capture runs one torch function at a time on trace tensors and reads the result's metadata. Autograd runs a whole graph
under a `TraceMode` with a recorder, which records every operator. Both use `propagate`: it gets the results' metadata
from `infer` and records which tensors share memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch.autograd.graph import increment_version
from torch.utils._python_dispatch import TorchDispatchMode

from smelt.base.errors import Unsupported
from smelt.base.no_memory import refuse_address
from smelt.base.process_state import switch
from smelt.base.torch_c import disabled_torch_function, run_recipe, set_conjugate, set_negative
from smelt.base.torch_private import OpOverload, is_view, name_in_namespace
from smelt.graph.ir.meta import OpaqueMeta, TensorMeta
from smelt.graph.ir.schema import Kind, OpInfo, op_info
from smelt.graph.ir.storage_view import (
    Layout,
    Step,
    Storage,
    StorageView,
    layout_for,
    layout_of,
    opaque_layout,
    opaque_layouts,
)
from smelt.graph.ir.symint import Ratio, from_torch, has_symint, to_torch
from smelt.graph.meta_rules.constant_values import follow, forget, known_value
from smelt.graph.meta_rules.device_errors import devices_among, raise_for_devices
from smelt.graph.meta_rules.infer import DataDependent, depends_on_values, infer_meta
from smelt.graph.trace.deterministic import refuse_without_order
from smelt.graph.trace.inplace_view_ops import InplaceViewOps
from smelt.graph.trace.opaque import MAKERS, has_opaque, opaque_answer, stand_in
from smelt.graph.trace.overlapping_writes import argument, require_no_order, written_tensors
from smelt.graph.trace.unbacked import NEED_ELEMENTS, check_elements

aten = torch.ops.aten
__all__ = [
    "DataDependent",
    "Layout",
    "StorageView",
    "Recorder",
    "Step",
    "Storage",
    "TraceMode",
    "TraceTensor",
    "infer_meta",
    "argument",
    "note_new_shape",
    "layout_of",
    "propagate",
    "trace_like",
]


_data: Any = torch.Tensor.data
"""The descriptor of `tensor.data`: a read makes a detached tensor, an assignment swaps the metadata."""


class _Text(threading.local):
    """Per-thread state of the text of trace tensors. `refuse`, if set, is called when the text (`str`, `repr`) of one
    is requested, and raises an error. It is set while code of the program runs.
    """

    refuse: Callable[[], None] | None = None


text = _Text()
switch("text of tensors", lambda: text.refuse, lambda before: setattr(text, "refuse", before))


class TraceTensor(InplaceViewOps):
    """A tensor with metadata, autograd history and a storage view, but no data."""

    __slots__ = ()

    @staticmethod
    def __new__(cls, view: StorageView) -> TraceTensor:
        layout = view.layout
        val, offset = layout.val, layout.offset
        if type(val) is OpaqueMeta:
            opaque = stand_in(cls, val)
            opaque.storage_view = view
            return opaque  # type: ignore[return-value]
        shape, stride = val.shape, val.stride
        if layout.symbolic:
            shape, stride, offset = to_torch(shape), to_torch(stride), to_torch(offset)
        self = torch.Tensor._make_wrapper_subclass(
            cls, shape, strides=stride, storage_offset=offset, dtype=val.dtype, device=val.device
        )
        refuse_address(self, layout.symbolic)
        self.storage_view = view
        if view.conjugate:
            set_conjugate(self, True)
        if view.negative:
            set_negative(self, True)
        return self

    def __init__(self, view: StorageView) -> None:
        pass

    __torch_function__ = disabled_torch_function  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return to_torch(propagate(func, args, kwargs or {}, None))

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        if text.refuse is not None:
            text.refuse()
        return f"TraceTensor({self.storage_view.layout.val}{', requires_grad' if self.requires_grad else ''})"

    @property
    def data(self) -> torch.Tensor:
        """Returns a tensor with the same storage view without autograd history, as for real tensors."""
        out: TraceTensor = _data.__get__(self)
        assert out.storage_view.step is not None
        out.storage_view.step.data = next(Step.counts)
        return out

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        """Use the memory of `other`; each tensor keeps its own version counter."""
        assert isinstance(other, TraceTensor)
        self.move_to(other)
        step = Step(aten.detach.default, (), {}, None)
        step.data = next(Step.counts)
        self.storage_view = StorageView(other.storage_view.layout, other.storage_view, step)

    def move_to(self, other: TraceTensor) -> None:
        """Give this object the storage view of `other`; it keeps its history and version counter."""
        _data.__set__(self, other)
        self.storage_view = other.storage_view

    def tolist(self) -> Any:
        value = known_value(self)
        if value is not None:
            return value.tolist()
        raise depends_on_values("tensor.tolist()")

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise depends_on_values("tensor.numpy()")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise depends_on_values("numpy.asarray(tensor)")

    def data_ptr(self) -> int:
        raise depends_on_values("the address of a tensor")

    def __dlpack__(self, *_: Any, **__: Any) -> Any:
        raise depends_on_values("tensor.__dlpack__()")

    def __deepcopy__(self, memo: dict[int, Any]) -> TraceTensor:
        out = TraceTensor(StorageView(self.storage_view.layout))
        out.requires_grad_(self.requires_grad)
        memo[id(self)] = out
        return out


class Recorder(Protocol):
    """Records operators in a graph. Storage views carry the recorder's values in `node`.

    Attributes:
        backward: whether the autograd engine is running.
    """

    backward: bool

    def pure(self, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], answer: Any, outputs: Any) -> None:
        """Record a pure operator. `outputs`: its fresh results, a trace tensor or a list (None for absent ones)."""

    def write(
        self,
        op: OpOverload,
        info: OpInfo,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        answer: Any,
        outputs: Sequence[Any],
    ) -> None:
        """Record an operator that writes to the arguments that `info` names. `outputs`: its fresh results."""

    def constant(self, tensor: torch.Tensor) -> TraceTensor:
        """Returns the trace tensor for a real tensor that the traced program uses; the same object at each call."""

    def literal(self, tensor: torch.Tensor) -> TraceTensor:
        """Returns the trace tensor for a real tensor that the program has just made from numbers
        (`torch.tensor([1, 2])`).
        """

    def expect_close(self, a: TraceTensor, b: TraceTensor, rtol: float, atol: float, equal_nan: bool) -> None:
        """Record a check: later reads of the memory of `a` raise an error if `a` and `b` are not close."""


class TraceMode(TorchDispatchMode):
    """While active, every operator, also one without tensor arguments, makes trace tensors.

    Args:
        recorder: records each operator; None: metadata is only propagated.
    """

    def __init__(self, recorder: Recorder | None = None) -> None:
        super().__init__()
        self.recorder = recorder

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Avoid a wrapper around `__torch_dispatch__` that would import torch's own compiler at the first operator."""
        return False

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if op_info(func).composite:
            with self:
                return run_recipe(func, args, kwargs or {})
        return to_torch(propagate(func, args, kwargs or {}, self.recorder))


def trace_like(source: torch.Tensor | TensorMeta, requires_grad: bool | None = None) -> TraceTensor:
    """Returns a trace tensor with the metadata of `source` and a separate storage (offset 0).

    Raises:
        Unsupported: the tensor is not a plain strided tensor.
    """
    if isinstance(source, torch.Tensor):
        if requires_grad is None:
            requires_grad = source.requires_grad
        layout = layout_of(source)
        val = layout.val
    else:
        val = source
        requires_grad = val.requires_grad if requires_grad is None else requires_grad
    if type(val) is OpaqueMeta:
        out = TraceTensor(StorageView(opaque_layout(replace(val, requires_grad=False))))
    else:
        out = TraceTensor(StorageView(layout_for(val.shape, val.dtype, val.stride, val.device)))
    if requires_grad:
        out.requires_grad_()
    return out


class _EarlierComputation(torch.autograd.Function):
    like_operator = True  # like an operator, it returns no gradient if it receives none

    @staticmethod
    def forward(ctx: Any, leaf: TraceTensor) -> TraceTensor:
        ctx.set_materialize_grads(False)  # the program's functions need not return a gradient
        out = TraceTensor(StorageView(leaf.storage_view.layout))
        out.storage_view.node, out.storage_view.version = leaf.storage_view.node, 0
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> torch.Tensor | None:
        return grad


def computed_before(leaf: TraceTensor) -> TraceTensor:
    """Returns a copy of `leaf` that has a history, as the caller's input has, so that it may be written in place."""
    with torch.enable_grad():
        out: TraceTensor = _EarlierComputation.apply(leaf)
    return out


def propagate(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    """Run one operator on trace tensors (and scalars): metadata, aliasing and, with a recorder, a record.

    Real tensors among the arguments become constants of the recorder, or only contribute their metadata. Values that
    depend on constants alone are computed as well (see `constant_values`).

    Raises:
        DataDependent: values are needed to know the result.
        Unsupported: no metadata rule is known.
    """
    info = op_info(func)
    if info.composite:
        return run_recipe(func, args, kwargs)
    if has_symint(args) or (kwargs and has_symint(tuple(kwargs.values()))):
        args, kwargs = from_torch(tuple(args)), {k: from_torch(v) for k, v in kwargs.items()}
        func, args = _without_ratios(func, args, kwargs, recorder)
        info = op_info(func)
    if (opaque_layouts or name_in_namespace(func) in MAKERS or "layout" in kwargs) and _is_opaque(
        func, args, kwargs, recorder
    ):
        return _opaque(func, args, kwargs, recorder)
    rule = SPECIAL.get(func)
    if rule is None and info.moves:
        rule = _view_in_place
    if rule is not None:
        if len(devices_among((*args, *kwargs.values()))) > 1:
            raise_for_devices(func, info, args, kwargs)
        return rule(func, args, kwargs, recorder)
    rewrite = REWRITES.get(func)
    if rewrite is not None:
        func, args = rewrite(tuple(args))
        info = op_info(func)
    return ordinary(func, info, args, kwargs, recorder)


def _is_opaque(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> bool:
    """Whether the operator takes or returns opaque tensors; False if a backward returns sparse rows (`sparse`)."""
    if name_in_namespace(func) in MAKERS:
        return recorder is None
    if kwargs.get("layout", torch.strided) not in (None, torch.strided):
        return recorder is None
    return has_opaque(args) or has_opaque(tuple(kwargs.values()))


def _opaque(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    if recorder is not None:
        raise Unsupported(f"{func} in a compiled piece", why="sparse and quantised tensors run between the pieces")
    if name_in_namespace(func) not in _METADATA_QUERIES:
        EAGER_CALLS.note(func, "on sparse or quantised tensors")
    return tensors_for(opaque_answer(func, *as_traced(args, kwargs, None)))


class _EagerCalls(threading.local):
    """Operators that only eager can run, traced on this thread since `begin`, and the reason for the last one."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.why = ""

    def note(self, func: OpOverload, why: str) -> None:
        self.names.append(str(func))
        self.why = why

    def begin(self) -> None:
        self.names = []


EAGER_CALLS = _EagerCalls()
_METADATA_QUERIES = frozenset({"device", "sparse_dim", "dense_dim", "is_coalesced", "qscheme", "size", "sym_size"})

Rule = Callable[[OpOverload, Sequence[Any], Mapping[str, Any], "Recorder | None"], Any]
Call = tuple[OpOverload, tuple[Any, ...]]

SPECIAL: dict[OpOverload, Rule] = {}
"""Rules that replace metadata inference; `special_operators` and `collectives` add them."""

REWRITES: dict[OpOverload, Callable[[tuple[Any, ...]], Call]] = {}
"""Operators that are rewritten as another operator."""


def ordinary(
    func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None
) -> Any:
    args, kwargs = as_traced(args, kwargs, recorder)
    about = _SIZE_QUERIES.get(func)
    if about is not None:
        return about(args[0].storage_view.layout, *args[1:])
    if func in NEED_ELEMENTS and args[0].storage_view.layout.val.symbolic:
        check_elements(func, args, kwargs)
    refuse_without_order(func, args, kwargs)
    answer = infer_meta(func, args, kwargs)
    if info.kind is Kind.PURE:
        if info.silent:
            raise Unsupported(f"{func} does more than give tensors", why="what else it does a graph would leave out")
        if type(answer) is Layout:
            out = TraceTensor(StorageView(answer))
        else:
            out = tensors_for(answer)
        if recorder is not None:
            recorder.pure(func, args, kwargs, answer, out)
        elif info.derived_inside and _takes_gradients(args, out):
            EAGER_CALLS.note(func, "differentiated through what its kernel calls")
        follow(func, info, args, kwargs, out)
        return out
    if info.kind is Kind.VIEW:
        if info.picks:
            raise Unsupported(
                f"{func} shows memory of tensors that values may choose",
                why="its results are not all views of its first argument, or another tensor has a say in them",
                hint="give views from operators of one tensor",
            )
        out = _view(func, args, kwargs, answer)
    else:
        out = _write(func, info, args, kwargs, answer, recorder)
    given = (*args, *kwargs.values())
    if recorder is None and info.derived_inside and _takes_gradients(given, (out, given)):
        EAGER_CALLS.note(func, "differentiated through what its kernel calls")
    return out


def _takes_gradients(args: Sequence[Any], out: Any) -> bool:
    """Whether autograd records the operator in eager."""
    if not torch.is_grad_enabled() or not any(each.requires_grad for each in _tensors_in(args)):
        return False
    return any(each.dtype.is_floating_point or each.dtype.is_complex for each in _tensors_in(out))


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors_in(each)


_SIZE_QUERIES: dict[OpOverload, Callable[..., Any]] = {
    aten.sym_size.default: lambda layout: list(layout.val.shape),
    aten.sym_size.int: lambda layout, dim: layout.val.shape[dim],
    aten.sym_stride.default: lambda layout: list(layout.val.stride),
    aten.sym_stride.int: lambda layout, dim: layout.val.stride[dim],
    aten.sym_numel.default: lambda layout: layout.val.numel,
    aten.sym_storage_offset.default: lambda layout: layout.offset,
    # the sizes become plain numbers: they are specialized
    aten.size.default: lambda layout: list(map(int, layout.val.shape)),
    aten.stride.default: lambda layout: list(map(int, layout.val.stride)),
}
"""Queries that C++ code makes of a tensor with symbolic sizes."""


def tensors_for(answer: Any) -> Any:
    """Returns the result with a new trace tensor for each layout; other values unchanged."""
    if type(answer) is Layout:
        return TraceTensor(StorageView(answer))
    if isinstance(answer, (list, tuple)):
        return type(answer)(tensors_for(a) for a in answer)
    return answer


def _view(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], answer: Any) -> Any:
    parent = args[0].storage_view
    # offsets count from the storage's beginning, for any view on which it is called
    if func is aten.as_strided.default:
        parent = root_of_dtype(parent)
        args, kwargs = (args[0], args[1], args[2], answer.offset), {}
    if type(answer) is Layout:
        return TraceTensor(StorageView(answer, parent, Step(func, args[1:], kwargs, None)))
    return [TraceTensor(StorageView(a, parent, Step(func, args[1:], kwargs, i))) for i, a in enumerate(answer)]


def root_of_dtype(view: StorageView) -> StorageView:
    """Returns the root of the view's storage; if that has another dtype, the first of the view's parents with its
    dtype.

    Offsets and strides count elements of this dtype, and a view of the root would have the root's.
    """
    dtype, first = view.layout.val.dtype, view
    while first.parent is not None and first.parent.layout.val.dtype is dtype:
        first = first.parent
    if first.parent is None:
        return root_of(view)
    return view if _history(view, first)[0] else first


def root_of(view: StorageView) -> StorageView:
    """Returns the root of the view's storage, without history if the view has none, with the view's version counter."""
    root, top = view.storage.root, view
    assert root is not None
    while top.parent is not None:
        top = top.parent
    detached, apart = _history(view, top)
    if not detached:
        return top
    step = Step(aten.detach.default, (), {}, None)
    step.data = apart
    return StorageView(root.layout, root, step)


def _history(view: StorageView, behind: StorageView) -> tuple[bool, int | None]:
    """Returns whether the view is detached from `behind`, one of its parents, and the last version counter in
    between.
    """
    detached, apart = False, None
    while view is not behind:
        step, parent = view.step, view.parent
        assert step is not None and parent is not None
        detached |= step.op is aten.detach.default or torch.is_grad_enabled() and not step.grad
        apart = step.data if apart is None else apart
        view = parent
    return detached, apart


def _write(
    func: OpOverload,
    info: OpInfo,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    answer: Any,
    recorder: Recorder | None,
) -> Any:
    answers = answer if isinstance(answer, (list, tuple)) else [answer]
    fresh = [tensors_for(a) for a, source in zip(answers, info.returned, strict=False) if source is None]
    require_no_order(func, info, args, kwargs)
    for name in info.written:
        _expect_shape_of_history(func, argument(func, args, kwargs, name), args)
    if recorder is not None:
        recorder.write(func, info, args, kwargs, answer, fresh)
    else:
        _write_unrecorded(func, info, args, kwargs, answers)
    if info.counts_inside:
        increment_version(written_tensors(func, info, args, kwargs))
    if not info.returned:
        return None
    values = iter(fresh)
    outs = [argument(func, args, kwargs, name) if name is not None else next(values) for name in info.returned]
    return outs[0] if len(outs) == 1 else tuple(outs)


def _expect_shape_of_history(func: OpOverload, target: Any, args: Sequence[Any]) -> None:
    """Stop tracking the values of a written tensor.

    Raises:
        Unsupported: the tensor's history has another shape.
    """
    forget(target)
    if type(target) is TraceTensor and target.storage_view.storage.reshaped and torch.is_grad_enabled():
        if any(type(a) is TraceTensor and a.requires_grad for a in args):
            raise _reshaped_error(func)


def _write_unrecorded(
    func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any], answers: Sequence[Any]
) -> None:
    """Count the writes, and resize each `out=` to the shape of its result."""
    for target in written_tensors(func, info, args, kwargs):  # version counters miss writes by operators of libraries
        target.storage_view.storage.version += 1
    for one, returned in zip(answers, info.returned, strict=False):
        out = kwargs.get(returned) if returned is not None else None
        if type(one) is Layout and type(out) is TraceTensor:
            resize_out(out, one.val)


def resize_out(target: TraceTensor, val: TensorMeta) -> TraceTensor | None:
    """Resize an `out=` without elements to the result's shape; returns a tensor of that shape, or None if the `out=`
    already has it.

    Raises:
        Unsupported: the `out=` has elements, in another shape.
    """
    if val.shape == target.storage_view.layout.val.shape:
        return None
    if target.numel():
        raise Unsupported("out= with a tensor of another shape", hint="pass one of the result's shape")
    fresh = trace_like(val)
    target.move_to(fresh)
    return fresh


def as_traced(
    args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Returns the arguments with every real tensor replaced by a trace tensor."""
    if any(map(_is_real, args)):
        args = tuple([_traced(a, recorder) for a in args])
    if kwargs and any(map(_is_real, kwargs.values())):
        kwargs = {k: _traced(v, recorder) for k, v in kwargs.items()}
    return args, kwargs


def _is_real(value: Any) -> bool:
    """Whether the value is, or is a list or tuple that contains, a real tensor."""
    kind = type(value)
    if kind is TraceTensor:
        return False
    if kind is list or kind is tuple:
        return any(map(_is_real, value))
    return isinstance(value, torch.Tensor)


def _traced(value: Any, recorder: Recorder | None) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_traced(v, recorder) for v in value)
    if isinstance(value, torch.Tensor) and type(value) is not TraceTensor:
        return trace_like(value.detach()) if recorder is None else recorder.constant(value)
    return value


def _without_ratios(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None
) -> tuple[OpOverload, Sequence[Any]]:
    """Replace quotients of sizes: by tensors without dimensions for an operation on a tensor, else by numbers."""
    if not any(isinstance(a, Ratio) for a in args):
        return func, args
    tensors = _TENSOR_FORMS.get(func)
    if tensors is None or not isinstance(args[0], TraceTensor):
        return func, tuple(float(a) if isinstance(a, Ratio) else a for a in args)
    dtype = args[0].storage_view.layout.val.dtype
    wide = torch.float64 if args[0].ndim and dtype.is_floating_point else torch.get_default_dtype()

    def made(value: Any) -> Any:
        if not isinstance(value, Ratio):
            return value
        number, size = (
            propagate(aten.full.default, ([], n), {"dtype": wide}, recorder) for n in (value.number, value.size)
        )
        return propagate(aten.div.Tensor, (number, size), {}, recorder)

    return tensors, tuple(map(made, args))


_TENSOR_FORMS: dict[OpOverload, OpOverload] = {
    aten.add.Scalar: aten.add.Tensor,
    aten.sub.Scalar: aten.sub.Tensor,
    aten.rsub.Scalar: aten.rsub.Tensor,
    aten.mul.Scalar: aten.mul.Tensor,
    aten.div.Scalar: aten.div.Tensor,
    aten.add.Tensor: aten.add.Tensor,
    aten.sub.Tensor: aten.sub.Tensor,
    aten.mul.Tensor: aten.mul.Tensor,
    aten.div.Tensor: aten.div.Tensor,
    aten.pow.Tensor_Scalar: aten.pow.Tensor_Tensor,
}
"""For operators of a tensor and a number, the operator of two tensors."""


def _view_in_place(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    """Run `x.t_()` or a similar operator: the tensor object becomes a view of its former storage view."""
    view = op_info(func).functional
    if view is None:
        raise Unsupported(f"{func} cannot be traced", why="it changes a tensor's shape in place")
    note_new_shape(func, args[0])
    args[0].move_to(propagate(view, (TraceTensor(args[0].storage_view), *args[1:]), kwargs, recorder))
    return args[0]


def note_new_shape(func: OpOverload, tensor: TraceTensor) -> None:
    """Record that the shape of a tensor is about to change in place; if it is a view, later writes are restricted.

    Raises:
        Unsupported: the view's history would have to be rebuilt.
    """
    if not is_view(tensor):
        return
    storage = tensor.storage_view.storage
    if tensor.requires_grad and (storage.version or not torch.is_grad_enabled()):
        raise _reshaped_error(func)
    storage.reshaped = True


def _reshaped_error(func: OpOverload) -> Unsupported:
    why = "the history of a view that changed its shape in place is made again by what it was at first"
    return Unsupported(f"{func} on memory that such a view shows", why=why, hint="x = x.unsqueeze(0) makes a view")
