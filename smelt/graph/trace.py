"""The trace tensor: a tensor without data on which PyTorch programs run to learn metadata, or to be recorded.

Capture runs one torch function at a time on trace tensors and reads the result's metadata. Autograd runs a whole graph
under a `TraceMode` with a recorder, which writes every operator down. `propagate` is the rule both use: results get the
metadata that PyTorch's own meta kernels answer, remembered per (operator, layouts, scalars).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from smelt.base.errors import Unsupported
from smelt.base.torch_c import disabled_torch_function
from smelt.graph.meta import TensorMeta, channels_last_stride, extent, is_channels_last
from smelt.graph.schema import Kind, OpInfo, op_info

aten = torch.ops.aten
META = torch.device("meta")


class DataDependent(Unsupported):
    """An operator whose result, or whose result's shape, depends on the values in a tensor."""


class Layout:
    """The metadata of a trace tensor: its TensorMeta and its offset in the storage (elements).

    Equal layouts are the same object as far as memory of past layouts goes, so they hash and compare by identity.
    """

    __slots__ = ("val", "offset", "_on_meta")

    def __init__(self, val: TensorMeta, offset: int) -> None:
        self.val, self.offset = val, offset
        self._on_meta: torch.Tensor | None = None

    def fresh(self) -> torch.Tensor:
        """A new tensor on the meta device with this layout."""
        val = self.val
        if self.offset == 0:
            return torch.empty_strided(val.shape, val.stride, dtype=val.dtype, device=META)
        whole = torch.empty(self.offset + extent(val.shape, val.stride), dtype=val.dtype, device=META)
        return whole.as_strided(val.shape, val.stride, self.offset)

    def on_meta(self) -> torch.Tensor:
        """A tensor on the meta device with this layout, shared by all readers."""
        if self._on_meta is None:
            self._on_meta = self.fresh()
        return self._on_meta


_layouts: dict[tuple[Any, ...], Layout] = {}
_answers: dict[tuple[Any, ...], Any] = {}
_LIMIT = 100_000  # remembered layouts and answers: enough for many models, a bound for processes that never end


def layout_for(
    shape: tuple[int, ...], dtype: torch.dtype, stride: tuple[int, ...], device: torch.device, offset: int = 0
) -> Layout:
    """The one layout with these properties."""
    key = (shape, dtype, stride, device, offset)
    try:
        known = _layouts.get(key)
    except TypeError:  # symbolic sizes have no hash
        return Layout(TensorMeta(shape, dtype, stride, device), offset)
    if known is None:
        if len(_layouts) > _LIMIT:
            _layouts.clear()
            _answers.clear()
        known = _layouts[key] = Layout(TensorMeta(shape, dtype, stride, device), offset)
    return known


class Storage:
    """What stands for memory: every trace tensor that views the same memory has the same Storage.

    Attributes:
        version: counts writes; a place whose value is of an older version must be replayed.
        root: the place that covers the memory.
        constant: the real tensor, when the memory holds a constant of the program.
    """

    __slots__ = ("version", "root", "constant")

    def __init__(self) -> None:
        self.version = 0
        self.root: Place | None = None
        self.constant: torch.Tensor | None = None


class Step:
    """One view operator on the way from a parent place to a child: `op(parent, *args, **kwargs)[index]`.

    `grad` is the grad mode it was taken in.
    """

    __slots__ = ("op", "args", "kwargs", "index", "grad")

    def __init__(self, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], index: int | None) -> None:
        self.op, self.args, self.kwargs, self.index = op, tuple(args), dict(kwargs), index
        self.grad = torch.is_grad_enabled()

    def __call__(self, parent: Any) -> Any:
        """Apply the step to a real tensor or a trace tensor."""
        out = self.op(parent, *self.args, **self.kwargs)
        return out if self.index is None else out[self.index]


class Place:
    """Where a trace tensor's elements are: a storage, and the steps that lead there from the storage's root.

    Attributes:
        layout: metadata of the tensor at this place.
        parent, step: how it views another place; None for the root.
        node: the recorder's value of this place as of storage version `version`.
    """

    __slots__ = ("layout", "storage", "parent", "step", "node", "version")

    def __init__(self, layout: Layout, parent: Place | None = None, step: Step | None = None) -> None:
        self.layout, self.parent, self.step = layout, parent, step
        self.node: Any = None
        self.version = -1
        if parent is None:
            self.storage = Storage()
            self.storage.root = self
        else:
            self.storage = parent.storage


class TraceTensor(torch.Tensor):
    """A tensor with metadata, autograd history and a place, but no data."""

    __slots__ = ("place",)
    place: Place

    @staticmethod
    def __new__(cls, place: Place) -> TraceTensor:
        val = place.layout.val
        self = torch.Tensor._make_wrapper_subclass(
            cls, val.shape, strides=val.stride, storage_offset=place.layout.offset, dtype=val.dtype, device=val.device
        )
        self.place = place
        return self

    def __init__(self, place: Place) -> None:
        pass

    __torch_function__ = disabled_torch_function

    @classmethod
    def __torch_dispatch__(
        cls, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return propagate(func, args, kwargs or {}, None)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"TraceTensor({self.place.layout.val}{', requires_grad' if self.requires_grad else ''})"

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        """The same place without autograd history, as for real tensors."""
        return torch.Tensor.data.__get__(self)

    @data.setter
    def data(self, other: TraceTensor) -> None:
        torch.Tensor.data.__set__(self, other)
        self.place = other.place

    def tolist(self) -> Any:
        raise _depends("tensor.tolist()")

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise _depends("tensor.numpy()")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise _depends("numpy.asarray(tensor)")

    def __deepcopy__(self, memo: dict[int, Any]) -> TraceTensor:
        out = self.detach().clone().requires_grad_(self.requires_grad)
        memo[id(self)] = out
        return out


def _depends(what: str) -> DataDependent:
    return DataDependent(
        f"{what} needs the values of a tensor",
        why="a graph is captured from shapes and dtypes; values are not known yet",
        hint="keep the computation in tensors (torch.where, masks), or move this read out of the compiled function",
    )


class Recorder(Protocol):
    """Who writes operators down. Places carry the recorder's values in `node`."""

    def pure(self, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], answer: Any, outputs: Any) -> None:
        """`outputs` (one trace tensor, or a list with None gaps) are the fresh results of a pure operator."""

    def write(
        self,
        op: OpOverload,
        info: OpInfo,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        answer: Any,
        outputs: Sequence[Any],
    ) -> None:
        """The operator writes to the arguments that `info` names; `outputs` are its fresh results."""

    def constant(self, tensor: torch.Tensor) -> TraceTensor:
        """A real tensor met during the trace: the same trace tensor each time."""

    def literal(self, tensor: torch.Tensor) -> TraceTensor:
        """A real tensor that the program just made from numbers (`torch.tensor([1, 2])`)."""


class TraceMode(TorchDispatchMode):
    """While active, every operator, also one without tensor arguments, makes trace tensors.

    Args:
        recorder: told of each operator; None to only propagate metadata.
    """

    def __init__(self, recorder: Recorder | None = None) -> None:
        super().__init__()
        self.recorder = recorder

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No wrapper around `__torch_dispatch__` that would import torch's own compiler at the first operator."""
        return False

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if op_info(func).composite:
            with self:
                return func.decompose(*args, **(kwargs or {}))
        return propagate(func, args, kwargs or {}, self.recorder)


def trace_like(source: torch.Tensor | TensorMeta, requires_grad: bool | None = None) -> TraceTensor:
    """A trace tensor with the metadata of `source` and a storage of its own (offset 0).

    Raises:
        Unsupported: the tensor is not a plain strided one.
    """
    if isinstance(source, torch.Tensor):
        if requires_grad is None:
            requires_grad = source.requires_grad
        layout = layout_of(source)
        val = layout.val
    else:
        val = source
        requires_grad = val.requires_grad if requires_grad is None else requires_grad
    out = TraceTensor(Place(layout_for(val.shape, val.dtype, val.stride, val.device)))
    return out.requires_grad_() if requires_grad else out


def layout_of(tensor: torch.Tensor) -> Layout:
    """The layout of a real or traced tensor."""
    if type(tensor) is TraceTensor:
        return tensor.place.layout
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        kind = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else str(tensor.layout)
        raise Unsupported(f"a {kind} tensor", why="graphs hold strided tensors only", hint="convert it before the call")
    if tensor.is_conj() or tensor.is_neg():
        raise Unsupported("a tensor with a lazy conjugate or negative bit", hint="call resolve_conj()/resolve_neg()")
    return layout_for(
        tuple(tensor.shape), tensor.dtype, tuple(tensor.stride()), tensor.device, int(tensor.storage_offset())
    )


def propagate(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    """Run one operator on trace tensors (and scalars): metadata, aliasing and, with a recorder, a record.

    Real tensors among the arguments become constants of the recorder, or only lend their metadata.

    Raises:
        DataDependent: values are needed to know the result.
        Unsupported: no metadata rule is known.
    """
    info = op_info(func)
    if info.composite:
        return func.decompose(*args, **kwargs)
    rule = _SPECIAL.get(func)
    if rule is None and info.moves:
        rule = _view_in_place
    if rule is not None:
        return rule(func, args, kwargs, recorder)
    rewrite = _REWRITES.get(func)
    if rewrite is not None:
        func, args = rewrite(tuple(args))
        info = op_info(func)
    args, kwargs = _as_traced(args, kwargs, recorder)
    answer = answer_for(func, args, kwargs)
    if info.kind is Kind.PURE:
        if type(answer) is Layout:
            out = TraceTensor(Place(answer))
        else:
            out = _fresh(answer)
        if recorder is not None:
            recorder.pure(func, args, kwargs, answer, out)
        return out
    if info.kind is Kind.VIEW:
        return _view(func, args, kwargs, answer)
    return _write(func, info, args, kwargs, answer, recorder)


def _fresh(answer: Any) -> Any:
    """New trace tensors for an answer: layouts become tensors, the rest stays."""
    if type(answer) is Layout:
        return TraceTensor(Place(answer))
    if isinstance(answer, (list, tuple)):
        return type(answer)(_fresh(a) for a in answer)
    return answer


def _view(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], answer: Any) -> Any:
    parent = args[0].place
    if func is aten.as_strided.default:  # says where in the storage, whatever it is called on
        parent = _whole(parent)
        args, kwargs = (args[0], args[1], args[2], answer.offset), {}
    if type(answer) is Layout:
        return TraceTensor(Place(answer, parent, Step(func, args[1:], kwargs, None)))
    return [TraceTensor(Place(a, parent, Step(func, args[1:], kwargs, i))) for i, a in enumerate(answer)]


def _whole(place: Place) -> Place:
    """The root of the place's storage, without history if the place has none."""
    root = place.storage.root
    assert root is not None
    while place.parent is not None:
        if place.step is not None and place.step.op is aten.detach.default:
            return Place(root.layout, root, Step(aten.detach.default, (), {}, None))
        place = place.parent
    return root


def _write(
    func: OpOverload,
    info: OpInfo,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    answer: Any,
    recorder: Recorder | None,
) -> Any:
    answers = answer if isinstance(answer, (list, tuple)) else [answer]
    fresh = [_fresh(a) for a, source in zip(answers, info.returned, strict=False) if source is None]
    if recorder is not None:
        recorder.write(func, info, args, kwargs, answer, fresh)
    if not info.returned:
        return None
    values = iter(fresh)
    outs = [argument(func, args, kwargs, name) if name is not None else next(values) for name in info.returned]
    return outs[0] if len(outs) == 1 else tuple(outs)


def argument(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """The value that a call gives to the parameter `name` (its default when it gives none)."""
    if name in kwargs:
        return kwargs[name]
    for i, parameter in enumerate(func._schema.arguments):
        if parameter.name == name:
            return args[i] if i < len(args) else parameter.default_value
    raise KeyError(name)


def _as_traced(
    args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The same arguments with every real tensor replaced by a trace tensor."""

    def foreign(value: Any) -> bool:
        kind = type(value)
        if kind is TraceTensor:
            return False
        if kind is list or kind is tuple:
            return any(map(foreign, value))
        return isinstance(value, torch.Tensor)

    def traced(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(traced(v) for v in value)
        if isinstance(value, torch.Tensor) and type(value) is not TraceTensor:
            return trace_like(value.detach()) if recorder is None else recorder.constant(value)
        return value

    if any(map(foreign, args)):
        args = tuple(traced(a) for a in args)
    if kwargs and any(map(foreign, kwargs.values())):
        kwargs = {k: traced(v) for k, v in kwargs.items()}
    return args, kwargs


# -- answers: what a meta kernel says -----------------------------------------------------------------------------


def _key(value: Any) -> Any:
    kind = type(value)
    if kind is TraceTensor:
        return value.place.layout
    if kind is int or kind is float or kind is bool:
        return (value, kind)  # 1, 1.0 and True are equal but promote differently
    if kind is list or kind is tuple:
        return tuple(map(_key, value))
    return value


def answer_for(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the operator returns for these trace tensors and scalars, with a Layout for each tensor.

    Raises:
        DataDependent: values are needed to know it.
        Unsupported: there is no rule.
    """
    info = op_info(func)
    try:
        key = (func, torch.get_default_dtype(), *map(_key, args), *((k, _key(v)) for k, v in kwargs.items()))
        known = _answers.get(key)
    except TypeError:  # symbolic sizes have no hash
        return _ask(func, info, args, kwargs)
    if known is None:
        known = _answers[key] = _ask(func, info, args, kwargs)
    return known


def _ask(func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    device = _device(args, kwargs)
    writes = info.kind is Kind.WRITE

    def to_meta(value: Any) -> Any:
        kind = type(value)
        if kind is TraceTensor:
            # written arguments need memory of their own: kernels check overlap with the others
            return value.place.layout.fresh() if writes else value.place.layout.on_meta()
        if isinstance(value, (list, tuple)):
            return kind(map(to_meta, value))
        return META if kind is torch.device else value

    def from_meta(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            shape, stride = tuple(value.shape), tuple(value.stride())
            return layout_for(shape, value.dtype, stride, device, value.storage_offset())
        if isinstance(value, (list, tuple)):
            return type(value)(map(from_meta, value))
        return value

    given = {k: to_meta(v) for k, v in kwargs.items() if k != "pin_memory"}
    if "device" not in given and func in _factories(func):
        given["device"] = META
    try:
        out = func(*map(to_meta, args), **given)
    except NotImplementedError as error:
        raise _no_meta(func, error) from error
    answer = from_meta(out)
    rule = _CPU_ANSWERS.get(func) if device.type == "cpu" else None
    return answer if rule is None else rule(answer, args)


def _factories(func: OpOverload) -> tuple[OpOverload, ...]:
    """`(func,)` when the operator creates a tensor from no tensor and so needs a device."""
    arguments = func._schema.arguments
    tensors = any("Tensor" in str(a.type) for a in arguments)
    return (func,) if not tensors and any(a.name == "device" for a in arguments) else ()


def _no_meta(func: OpOverload, error: Exception) -> Unsupported:
    shape_in_data = torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags
    if shape_in_data or "nonzero" in str(error):
        return _depends(f"{func}")
    return Unsupported(
        f"{func} cannot be traced", why="it has no metadata rule: " + str(error).splitlines()[0], hint="run it in eager"
    )


def _device(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    """The device of the results: asked for, or of the first tensor argument with dimensions, or the CPU."""
    asked = kwargs.get("device")
    if asked is not None:
        return torch.device(asked)
    scalar: torch.device | None = None
    stack = [*reversed(args), *kwargs.values()]
    while stack:
        value = stack.pop()
        if type(value) is TraceTensor:
            val = value.place.layout.val
            if val.shape:
                return val.device
            scalar = scalar or val.device
        elif isinstance(value, (list, tuple)):
            stack.extend(reversed(value))
    return scalar or torch.get_default_device()


# -- operators that a meta kernel cannot answer -------------------------------------------------------------------

Rule = Callable[[OpOverload, Sequence[Any], Mapping[str, Any], "Recorder | None"], Any]


def _lift(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    (value,) = args
    if type(value) is TraceTensor:
        return value
    return trace_like(value) if recorder is None else recorder.literal(value)


def _scalar(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    value = args[0]
    if type(value) is TraceTensor:
        storage = value.place.storage
        if storage.constant is not None and storage.version == 0 and value.place.parent is None:
            return storage.constant.item()
        raise _depends("reading a tensor as a Python number (.item(), bool(), int(), float())")
    return value.item()


def _on_real(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    """Ask the real operator, on uninitialised memory: for questions about metadata only."""

    def real(value: Any) -> Any:
        if type(value) is TraceTensor:
            val = value.place.layout.val
            out = torch.empty_strided(val.shape, val.stride, dtype=val.dtype, device=val.device)
            return out.requires_grad_(value.requires_grad)
        return value

    return func(*map(real, args), **{k: real(v) for k, v in kwargs.items()})


def _no(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    return False


def _unknown_shape(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    raise _depends(f"{func}")


def _view_in_place(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    """`x.t_()` and its kind: the tensor object moves to a view of the place where it was."""
    view = op_info(func).functional
    if view is None:
        raise Unsupported(f"{func} cannot be traced", why="it changes a tensor's shape in place")
    args[0].data = propagate(view, (TraceTensor(args[0].place), *args[1:]), kwargs, recorder)
    return args[0]


def _set(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    args[0].data = _as_traced(args[1:2], {}, recorder)[0][0]
    return args[0]


def _resize(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    tensor, shape = args[0], tuple(args[1])
    if tuple(tensor.shape) != shape:
        if tensor.numel():
            raise Unsupported("resizing a tensor that has elements", hint="make a new tensor of the wanted shape")
        args[0].data = propagate(aten.new_empty.default, (TraceTensor(tensor.place), shape), {}, recorder)
    return tensor


_SPECIAL: dict[OpOverload, Rule] = {
    aten.lift_fresh.default: _lift,
    aten.lift.default: _lift,
    aten._local_scalar_dense.default: _scalar,
    aten._fused_sdp_choice.default: _on_real,
    aten.set_.source_Tensor: _set,
    aten.resize_.default: _resize,
    aten.is_pinned.default: _no,
    aten.nonzero.default: _unknown_shape,
    aten.masked_select.default: _unknown_shape,
    aten._unique2.default: _unknown_shape,
    aten.unique_consecutive.default: _unknown_shape,
    aten.unique_dim.default: _unknown_shape,
    aten.repeat_interleave.Tensor: _unknown_shape,
    aten.equal.default: _unknown_shape,
}


# -- operators that are another operator in disguise --------------------------------------------------------------

Call = tuple[OpOverload, tuple[Any, ...]]


def _batch_norm(args: tuple[Any, ...]) -> Call:
    """`native_batch_norm` writes its running statistics without saying so; the others say it."""
    x, weight, bias, mean, var, training, momentum, eps = args
    if not training:
        return aten._native_batch_norm_legit_no_training.default, (x, weight, bias, mean, var, momentum, eps)
    if mean is None:
        return aten._native_batch_norm_legit.no_stats, (x, weight, bias, training, momentum, eps)
    return aten._native_batch_norm_legit.default, args


def _batch_norm_backward(args: tuple[Any, ...]) -> Call:
    """In training the running statistics are not read: without them nobody has to keep them."""
    if args[7]:
        args = (*args[:3], None, None, *args[5:])
    return aten.native_batch_norm_backward.default, args


def _conj(args: tuple[Any, ...]) -> Call:
    """No lazy bits: conjugate at once."""
    return aten._conj_physical.default, args


_REWRITES: dict[OpOverload, Callable[[tuple[Any, ...]], Call]] = {
    aten.native_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten._conj.default: _conj,
}


# -- where CPU kernels answer otherwise than meta kernels ----------------------------------------------------------


def _changed(layout: Layout, **changes: Any) -> Layout:
    val = dataclasses.replace(layout.val, **changes)
    return layout_for(val.shape, val.dtype, val.stride, val.device, layout.offset)


def _convolution_cpu(answer: Layout, args: Sequence[Any]) -> Layout:
    """Channels last comes out of a 2-d convolution when input or weight is (but not of a dilated float64 one)."""
    x, weight = args[0].place.layout.val, args[1].place.layout.val
    dilated = x.dtype is torch.float64 and any(d > 1 for d in args[5]) and not args[6]
    if x.ndim != 4 or dilated or not any(is_channels_last(v.shape, v.stride) for v in (x, weight)):
        return answer
    return _changed(answer, stride=channels_last_stride(answer.val.shape))


def _like_input_cpu(answer: Layout, args: Sequence[Any]) -> Layout:
    """Channels last comes out when the input is."""
    val = args[0].place.layout.val
    if val.ndim != 4 or not is_channels_last(val.shape, val.stride):
        return answer
    return _changed(answer, stride=channels_last_stride(answer.val.shape))


def _statistics_dtype(args: Sequence[Any]) -> torch.dtype:
    """Normalisations keep statistics in the dtype of their parameters, else of the input."""
    dtypes = [a.dtype for a in (*args[1:5], args[0]) if isinstance(a, torch.Tensor)]
    return dtypes[0]


def _batch_norm_cpu(answer: Any, args: Sequence[Any]) -> Any:
    dtype = _statistics_dtype(args)
    return (answer[0], *(_changed(a, dtype=dtype) for a in answer[1:3]), *answer[3:])


def _batch_norm_eval_cpu(answer: Any, args: Sequence[Any]) -> Any:
    dtype = _statistics_dtype(args)
    return (answer[0], *(_changed(a, dtype=dtype, shape=(0,), stride=(1,)) for a in answer[1:]))


def _group_norm_cpu(answer: Any, args: Sequence[Any]) -> Any:
    dtype = _statistics_dtype(args[:3])
    return (answer[0], *(_changed(a, dtype=dtype) for a in answer[1:]))


def _group_norm_backward_cpu(answer: Any, args: Sequence[Any]) -> Any:
    return (None if answer[0] is None else _changed(answer[0], dtype=args[1].dtype), *answer[1:])


_CPU_ANSWERS: dict[OpOverload, Callable[[Any, Sequence[Any]], Any]] = {
    aten.convolution.default: _convolution_cpu,
    aten.pixel_shuffle.default: _like_input_cpu,
    aten.pixel_unshuffle.default: _like_input_cpu,
    aten.reflection_pad2d.default: _like_input_cpu,
    aten.reflection_pad2d_backward.default: _like_input_cpu,
    aten._native_batch_norm_legit.default: _batch_norm_cpu,
    aten._native_batch_norm_legit.no_stats: _batch_norm_cpu,
    aten._native_batch_norm_legit_functional.default: _batch_norm_cpu,
    aten._native_batch_norm_legit_no_training.default: _batch_norm_eval_cpu,
    aten.native_group_norm.default: _group_norm_cpu,
    aten.native_group_norm_backward.default: _group_norm_backward_cpu,
}
