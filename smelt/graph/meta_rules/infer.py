"""Metadata inference: the layouts that an operator returns, from its rule, else from PyTorch's meta kernel; cached."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from smelt.base.errors import SmeltError, Unsupported
from smelt.base.log import log
from smelt.base.torch_private import OpOverload, name_in_namespace, schema_of
from smelt.base.warned import heard
from smelt.graph.ir.memo import remember
from smelt.graph.ir.meta import channels_last_stride, contiguous_stride, is_channels_last
from smelt.graph.ir.schema import Kind, OpInfo, op_info
from smelt.graph.ir.storage_view import META, Layout, StorageView, ViewedTensor, layout_for, with_index
from smelt.graph.ir.symint import has_size
from smelt.graph.meta_rules.accepted_calls import is_plain
from smelt.graph.meta_rules.corrections import CORRECTIONS
from smelt.graph.meta_rules.device_errors import raise_for_devices
from smelt.graph.meta_rules.eager_errors import refusal, sharing, too_large
from smelt.graph.meta_rules.elementwise import elementwise, elementwise_rule
from smelt.graph.meta_rules.layouts import in_format_of_volume
from smelt.graph.meta_rules.oversized import require_memory
from smelt.graph.meta_rules.probe_op import probe
from smelt.graph.meta_rules.rules import rule_for
from smelt.graph.meta_rules.symbolic_rules import SYMBOLIC_RULES, written
from smelt.graph.meta_rules.symbolic_windows import UPSAMPLES
from smelt.shapes.real import Real
from smelt.shapes.size import Size, hint
from smelt.shapes.unbacked import is_unbacked

aten = torch.ops.aten


class DataDependent(Unsupported):
    """Raised for an operator whose result, or its shape, depends on the values in a tensor."""


def depends_on_values(what: str) -> DataDependent:
    return DataDependent(
        f"{what} needs the values of a tensor",
        why="a graph is captured from shapes and dtypes; values are not known yet",
        hint="keep the computation in tensors (torch.where, masks), or move this read out of the compiled function",
    )


_answers: dict[tuple[Any, ...], Any] = {}


def _key(value: Any) -> Any:
    kind = type(value)
    if issubclass(kind, ViewedTensor):
        return value.storage_view.layout
    if kind is int or kind is float or kind is bool or kind is Size:
        return (value, kind)  # 1, 1.0 and True are equal but promote differently
    if issubclass(kind, (list, tuple)):  # fx has separate list classes
        return tuple(map(_key, value))
    return value


def infer_meta(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns the operator's result for these trace tensors and scalars, with a Layout for each tensor.

    Raises:
        DataDependent: the values of a tensor are needed.
        Unsupported: no rule applies.
    """
    info = op_info(func)
    key = (func, torch.get_default_dtype(), *map(_key, args), *((k, _key(v)) for k, v in kwargs.items()))
    if info.kind is Kind.WRITE:
        key = (*key, sharing((*args, *kwargs.values())))
    known = _answers.get(key)
    if known is None:
        # In an outer trace mode the tensors that are made here would become constants of the trace.
        with _disable_current_modes():
            known = remember(_answers, key, _infer_checked(func, info, args, kwargs))
    return known


def _infer_checked(func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns the result by metadata rules, unless the operator itself refuses such arguments."""
    raise_for_devices(func, info, args, kwargs)
    doubted: Exception | None = None
    try:
        answer = _infer(func, info, args, kwargs)
    except SmeltError:
        raise
    except Exception as error:
        doubted = error
    refused = None
    if doubted is None and info.kind is Kind.PURE:
        refused = too_large(answer)
        if refused is None:
            require_memory(answer)
    try:
        refused = refused or refusal(func, info, args, kwargs, doubted)
    except Unsupported:  # the meta kernel of some version of PyTorch refuses arguments that the operator accepts
        answer = _by_symbolic_rule(func, info, args, kwargs, True)
        if answer is None:
            raise
        return answer
    if doubted is not None:
        raise refused or doubted  # outside of the `except` clause: the program sees the error without a context
    if refused is None:
        return answer
    if _is_symbolic(args, kwargs):
        _pinned(func, args, kwargs)  # the operator may accept other sizes
    raise refused


def _infer(func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if name_in_namespace(func) in _NOT_STRIDED:
        raise Unsupported(f"{func}", why="graphs hold strided tensors only", hint="keep it out of the function")
    own = rule_for(func, info)
    if own is not None:
        answer = own(func, args, kwargs)
        if answer is not None:
            return answer
    symbolic, plain = _is_symbolic(args, kwargs), is_plain(func, args, kwargs)
    if symbolic or plain:
        answer = _by_symbolic_rule(func, info, args, kwargs, plain)
        if answer is not None:
            return answer
    if symbolic:
        args, kwargs = _pinned(func, args, kwargs)
        answer = own and own(func, args, kwargs)
        if answer is not None:
            return answer
    return _by_running(func, info, args, kwargs)


def _by_symbolic_rule(
    func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any], plain: bool
) -> Any:
    """Returns the result by a rule for symbolic sizes; None without one, or if the operator refuses the example's
    sizes.
    """
    rule = SYMBOLIC_RULES.get(func)
    if rule is None and info.kind is Kind.WRITE and info.written == ("self",) and info.returned == ("self",):
        rule = written
    answer = None if rule is None else rule(func, args, kwargs)
    if answer is None or plain or not _refused_example(func, info, args, kwargs):
        return answer
    return None


def _by_running(func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns the result by the operator's meta kernel, or by a run on small values; all sizes are numbers."""
    device = _device(args, kwargs)

    def from_meta(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            shape, stride = tuple(value.shape), tuple(value.stride())
            # a fake kernel that chooses the device itself
            device_known = value.device != META and func.namespace != "aten"
            where = with_index(value.device) if device_known else device
            return layout_for(shape, value.dtype, stride, where, int(value.storage_offset()))
        if isinstance(value, (list, tuple)):
            return type(value)(map(from_meta, value))
        return value

    if device.type == "cpu" and (func in _PROBED or (info.kind is Kind.PURE and _may_be_empty(func, args))):
        out = probe(func, args, kwargs)
        if out is not None:
            return from_meta(out)
    try:
        out = _on_meta(func, info, args, kwargs)
    except NotImplementedError as error:
        out = probe(func, args, kwargs) if device.type == "cpu" and info.kind is Kind.PURE else None
        if out is None:
            raise _no_metadata(func, error) from error
        return from_meta(out)
    except RuntimeError as error:
        if func.namespace != "aten" and _NO_FAKE in str(error):
            raise _no_metadata(func, error) from error
        raise
    return _corrected(from_meta(out), func, info, args, kwargs, device)


def _may_be_empty(func: OpOverload, args: Sequence[Any]) -> bool:
    """Whether an argument has no elements: meta kernels then give wrong strides, or raise errors, where kernels do not.

    Backward operators are excluded. Some read a workspace that the forward has saved (`mkldnn_rnn_layer_backward`); an
    artificial one would crash the process.
    """
    if schema_of(func).name.endswith("_backward"):
        return False
    return any(isinstance(a, ViewedTensor) and 0 in a.storage_view.layout.val.shape for a in args)


def _corrected(
    answer: Any, func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any], device: torch.device
) -> Any:
    """Returns the meta kernel's result, corrected if kernels give another one."""
    if info.outs and info.functional is not None and _resizes_as_computed(info.functional):
        return _out_layout(answer, info, info.functional, args, kwargs)
    if func in _STRIDES_BY_RULE:
        symbolic = SYMBOLIC_RULES[func](func, args, kwargs)
        return answer if symbolic is None else _changed(answer, stride=symbolic.val.stride)
    mend = _ANSWERS.get(func) or CORRECTIONS.get(func) or (_CPU_ANSWERS.get(func) if device.type == "cpu" else None)
    return answer if mend is None else mend(answer, args)


def _resizes_as_computed(functional: OpOverload) -> bool:
    return functional in _RESIZE_AS_COMPUTED or elementwise_rule(functional, op_info(functional)) is elementwise


_RESIZE_AS_COMPUTED = frozenset(
    {
        aten.addr.default,
        aten.cat.default,
        aten.polar.default,
        aten.cholesky_inverse.default,
        aten.linalg_householder_product.default,
        aten.linalg_ldl_solve.default,
        aten.linalg_lu_solve.default,
        aten.ormqr.default,
    }
)
"""Operators with this property, besides the elementwise ones."""


def _out_layout(
    answer: Any, info: OpInfo, functional: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Returns the layout of an `out=` without elements, which is that of the plain result; PyTorch's meta kernels make
    it row-major.
    """
    written = [kwargs.get(name) for name in info.written]
    if type(answer) is not Layout or not isinstance(written[0], ViewedTensor) or written[0].numel():
        return answer
    computed = infer_meta(functional, args, {k: v for k, v in kwargs.items() if k not in info.written}).val
    return layout_for(computed.shape, answer.val.dtype, computed.stride, answer.val.device)


def _on_meta(func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns the result of the operator's meta kernel; symbolic sizes are replaced by those of the example."""
    writes = info.kind is Kind.WRITE

    def to_meta(value: Any) -> Any:
        kind = type(value)
        if kind is Real:  # metadata does not depend on the value
            return value.hint
        if kind is Size:
            return hint(value)
        if issubclass(kind, ViewedTensor):
            layout = _at_example_sizes(value.storage_view.layout)
            # written arguments need separate memory: kernels check overlap with the others
            return layout.fresh() if writes else layout.on_meta()
        if isinstance(value, (list, tuple)):
            return kind(map(to_meta, value))
        return META if kind is torch.device else value

    named = {k: to_meta(v) for k, v in kwargs.items() if k != "pin_memory"}
    if "device" not in named and func in _needing_device(func):
        named["device"] = META
    if not writes or not op_info(func).outs:
        return func(*map(to_meta, args), **named)
    # suppresses the warning that an `out=` of another shape is resized: the program's own call gives it
    with heard(None):
        return func(*map(to_meta, args), **named)


def _is_open(layout: Layout) -> bool:
    return layout.symbolic


def _at_example_sizes(layout: Layout) -> Layout:
    val = layout.val
    if not _is_open(layout):
        return layout
    shape, stride = tuple(map(hint, val.shape)), tuple(map(hint, val.stride))
    return layout_for(shape, val.dtype, stride, val.device, hint(layout.offset))


def _refused_example(func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the operator refuses the example's sizes, which rules for symbolic sizes do not check."""
    if any(map(_has_unbacked_size, (*args, *kwargs.values()))):
        return False
    try:
        _on_meta(func, info, args, kwargs)
    except NotImplementedError:
        return False
    except (RuntimeError, ValueError, IndexError, TypeError):
        return True
    return False


def _has_unbacked_size(value: Any) -> bool:
    """Whether a size is unbacked, so that the example's size is only a guess."""
    if isinstance(value, ViewedTensor):
        layout = value.storage_view.layout
        return is_unbacked(*layout.val.shape, *layout.val.stride, layout.offset)
    return any(map(_has_unbacked_size, value)) if isinstance(value, (list, tuple)) else is_unbacked(value)


def _is_symbolic(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return (
        has_size(tuple(args)) or has_size(tuple(kwargs.values())) or any(map(_has_symbols, (*args, *kwargs.values())))
    )


def _has_symbols(value: Any) -> bool:
    if isinstance(value, ViewedTensor):
        return _is_open(value.storage_view.layout)
    return isinstance(value, (list, tuple)) and any(map(_has_symbols, value))


def _pinned(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    """Returns the arguments with every symbolic size specialized to its example, for an operator without a rule for
    symbolic sizes.
    """

    def pin(value: Any) -> Any:
        if type(value) is Size:
            return int(value)
        if isinstance(value, ViewedTensor) and _has_symbols(value):
            layout = value.storage_view.layout
            for size in (*layout.val.shape, *layout.val.stride, layout.offset):
                int(size)
            return _Pinned(StorageView(_at_example_sizes(layout)))
        if isinstance(value, (list, tuple)):
            return type(value)(map(pin, value))
        return value

    log("sizes", lambda: f"{func} has no rule for symbolic sizes: they are pinned")
    return tuple(map(pin, args)), {k: pin(v) for k, v in kwargs.items()}


class _Pinned(ViewedTensor):
    """A tensor that has only a layout."""

    @staticmethod
    def __new__(cls, view: StorageView) -> _Pinned:
        val = view.layout.val
        self = torch.Tensor._make_wrapper_subclass(cls, val.shape, strides=val.stride, dtype=val.dtype)
        self.storage_view = view
        return self

    def __init__(self, view: StorageView) -> None:
        pass

    @classmethod
    def __torch_dispatch__(cls, func: OpOverload, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        raise AssertionError(f"{func} on a tensor that stands for its layout")


def _needing_device(func: OpOverload) -> tuple[OpOverload, ...]:
    """Returns `(func,)` if the operator creates a tensor from no tensor and so needs a device, else ()."""
    arguments = schema_of(func).arguments
    tensors = any("Tensor" in str(a.type) for a in arguments)
    return (func,) if not tensors and any(a.name == "device" for a in arguments) else ()


def _no_metadata(func: OpOverload, error: Exception) -> Unsupported:
    shape_in_data = torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags
    if shape_in_data or "nonzero" in str(error):
        return depends_on_values(f"{func}")
    if func.namespace != "aten":
        name = func.name().removesuffix(".default")
        why = "which tensors it makes is unknown before it runs; it runs in eager"
        return Unsupported(
            f"{func} has no fake kernel", why=why, hint=f"torch.library.register_fake({name!r}, function)"
        )
    return Unsupported(
        f"{func} cannot be traced", why="it has no metadata rule: " + str(error).splitlines()[0], hint="run it in eager"
    )


_NO_FAKE = "There was no fake impl registered"
"""The text of `torch.library.custom_op`'s error for an operator without a fake kernel."""


def _device(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    """Returns the device of the results: the requested one, or that of the first tensor argument with dimensions, or
    the CPU.
    """
    device = kwargs.get("device")
    if device is not None:
        return torch.device(device)
    scalar: torch.device | None = None
    stack = [*reversed(args), *kwargs.values()]
    while stack:
        value = stack.pop()
        if isinstance(value, ViewedTensor):
            val = value.storage_view.layout.val
            if val.shape:
                return val.device
            scalar = scalar or val.device
        elif isinstance(value, (list, tuple)):
            stack.extend(reversed(value))
    return scalar or torch.get_default_device()


# -- where kernels differ from meta kernels ------------------------------------------------------------------------


def _changed(layout: Layout, **changes: Any) -> Layout:
    val = dataclasses.replace(layout.val, **changes)
    return layout_for(val.shape, val.dtype, val.stride, val.device, layout.offset)


def _like_cpu(position: int) -> Callable[[Layout, Sequence[Any]], Layout]:
    """Returns a correction: the result is channels last if the argument at `position` is; for a volume without a batch,
    its depth is meant.
    """

    def rule(answer: Layout, args: Sequence[Any]) -> Layout:
        val = args[position].storage_view.layout.val
        if not is_channels_last(val.shape, val.stride):
            return answer
        return _changed(answer, stride=channels_last_stride(answer.val.shape))

    return rule


def _shuffled_cpu(answer: Layout, args: Sequence[Any]) -> Layout:
    """Returns new memory, channels last or row-major; the meta kernel gives a view if no element moves.

    Without elements, the result has the argument's strides.
    """
    val = args[0].storage_view.layout.val
    if 0 in val.shape:
        return _changed(answer, stride=val.stride)
    last = val.ndim == 4 and is_channels_last(val.shape, val.stride)
    return _changed(answer, stride=(channels_last_stride if last else contiguous_stride)(answer.val.shape))


def _unshuffled_cpu(answer: Layout, args: Sequence[Any]) -> Layout:
    """Returns a layout that is channels last if the argument is; without elements and with nothing to move, it has the
    argument's strides.
    """
    val = args[0].storage_view.layout.val
    if args[1] == 1 and 0 in val.shape:
        return _changed(answer, stride=val.stride)
    return _like_cpu(0)(answer, args)


def _typed_like_first(answer: Layout, args: Sequence[Any]) -> Layout:
    return _changed(answer, dtype=args[0].dtype)


_NOT_STRIDED = frozenset(
    [f"{prefix}to_sparse{kind}" for prefix in ("", "_") for kind in ("", "_csr", "_csc", "_bsr", "_bsc")]
    + ["to_mkldnn", "quantize_per_tensor", "quantize_per_channel", "quantize_per_tensor_dynamic"]
)
"""Operators whose results have no strides, or contain more than their elements."""

_PROBED = frozenset(
    {
        aten._cdist_backward.default,
        aten._linalg_svd.default,
        aten.im2col.default,
        aten.index_fill.int_Scalar,
        aten.max_unpool2d.default,
        aten.nonzero_static.default,
    }
)
"""Operators whose meta kernels give strides that differ from those of the CPU kernels."""


def _eigenvectors_cpu(answer: Any, args: Sequence[Any]) -> Any:
    """Returns layouts in LAPACK's order: vectors are columns, each contiguous."""
    values, vectors = answer
    *batch, across, down = vectors.val.stride
    return values, _changed(vectors, stride=(*batch, down, across))


def _rows_cpu(answer: Layout, args: Sequence[Any]) -> Layout:
    return _changed(answer, stride=contiguous_stride(answer.val.shape))


_STRIDES_BY_RULE = frozenset(
    {
        aten.addr.default,
        aten.amax.default,
        aten.amin.default,
        aten.binary_cross_entropy_backward.default,
        aten.fill.Scalar,
        aten.linalg_vector_norm.default,
        aten.prod.dim_int,
        aten.randint_like.default,
        aten.randint_like.low_dtype,
        aten.rsub.Tensor,
        *UPSAMPLES,
        aten.grid_sampler_2d.default,
    }
)
"""Operators whose meta kernels give wrong strides for sizes 0 and 1; the rules for symbolic sizes are correct."""

_ANSWERS: dict[OpOverload, Callable[[Any, Sequence[Any]], Any]] = {aten.huber_loss.default: _typed_like_first}


def _volumes_cpu(answer: Sequence[Layout], args: Sequence[Any]) -> Sequence[Layout]:
    """Correct volumes without a batch, which are channels last if the argument is."""
    val = args[0].storage_view.layout.val
    return answer if val.ndim != 4 else [in_format_of_volume(val, each.val.shape, each.val.dtype) for each in answer]


_CPU_ANSWERS: dict[OpOverload, Callable[[Any, Sequence[Any]], Any]] = {
    aten.linalg_eig.default: _eigenvectors_cpu,
    aten.channel_shuffle.default: _shuffled_cpu,
    aten.max_pool3d_with_indices.default: _volumes_cpu,
    aten.pixel_shuffle.default: _like_cpu(0),
    aten.pixel_unshuffle.default: _unshuffled_cpu,
    aten.reflection_pad2d.default: _like_cpu(0),
    aten.reflection_pad2d_backward.default: _like_cpu(1),
    aten.reflection_pad3d.default: _like_cpu(0),
    aten.reflection_pad3d_backward.default: _like_cpu(1),
    aten.replication_pad2d.default: _like_cpu(0),
    aten.replication_pad2d_backward.default: _like_cpu(1),
    aten.replication_pad3d.default: _like_cpu(0),
    aten.replication_pad3d_backward.default: _like_cpu(1),
    aten.upsample_bicubic2d_backward.default: _rows_cpu,
}
