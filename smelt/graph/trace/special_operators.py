"""Operators that a meta kernel cannot infer, and operators that are rewritten as others."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from smelt.base.errors import Unsupported
from smelt.base.torch_private import OpOverload, schema_of
from smelt.graph.ir.meta import contiguous_stride, extent, is_dense, may_overlap, meta_of
from smelt.graph.ir.schema import op_info
from smelt.graph.meta_rules.constant_values import known_value, remember
from smelt.graph.meta_rules.infer import depends_on_values, infer_meta
from smelt.graph.meta_rules.least_squares import least_squares
from smelt.graph.trace import sparse
from smelt.graph.trace.trace import (
    REWRITES,
    SPECIAL,
    Call,
    Recorder,
    Step,
    StorageView,
    TraceTensor,
    argument,
    as_traced,
    note_new_shape,
    ordinary,
    propagate,
    root_of,
    tensors_for,
    trace_like,
)
from smelt.graph.trace.unbacked import current, measure, read_scalar
from smelt.shapes.size import same
from smelt.shapes.unbacked import is_unbacked

aten = torch.ops.aten


def _lift(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    (value,) = args
    if type(value) is TraceTensor:
        return value
    if recorder is not None:
        return recorder.literal(value)
    traced = trace_like(value)
    remember(traced, value.clone())  # the value may be in an array of the program, to which the program may write
    return traced


def _scalar(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    value = args[0]
    if type(value) is TraceTensor:
        known = known_value(value)
        if known is not None:
            return known.item()
        return read_scalar(value, "reading a tensor as a Python number (.item(), bool(), int(), float())")
    return value.item()


def _measure(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    """Run an operator whose results have a data-dependent number of rows."""
    args, kwargs = as_traced(args, kwargs, recorder)
    measured = measure(func, args, kwargs)
    out = tensors_for(measured.answer)
    if recorder is not None:
        recorder.pure(func, args, kwargs, measured.answer, out)
    if measured.new:
        current(f"{func}").read_size(
            measured.rows, out if measured.shows is None else out[measured.shows], measured.dim
        )
    return out


def _lstsq(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    """Run `linalg_lstsq`: there are residuals only if all matrices have full rank and more rows than columns, so their
    number depends on values.
    """
    args, kwargs = as_traced(args, kwargs, recorder)
    answer = least_squares(func, args, kwargs)
    if answer is None:
        return _measure(func, args, kwargs, recorder)
    out = tensors_for(answer)
    if recorder is not None:
        recorder.pure(func, args, kwargs, answer, out)
    return out


def _conjugate(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    """Compute the conjugate; the argument may be a number of the program, which the engine passes as a Python
    number.
    """
    if not isinstance(args[0], torch.Tensor):
        return torch.tensor(args[0].conjugate())
    return ordinary(func, op_info(func), args, kwargs, recorder)


def _lazy(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    """Returns a view whose values are the conjugates, or the negatives, of the memory's contents."""
    if not isinstance(args[0], torch.Tensor):
        return _conjugate(func, args, kwargs, recorder)
    view = as_traced(args, kwargs, recorder)[0][0].storage_view
    return TraceTensor(StorageView(view.layout, view, Step(func, (), {}, None)))


def _as_real(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    if args[0].is_conj():
        raise RuntimeError(
            "view_as_real doesn't work on unresolved conjugated tensors.  To resolve the conjugate tensor so you can "
            "view it as real, use self.resolve_conj(); however, be warned that the resulting tensor will NOT alias the "
            "original."
        )
    return ordinary(func, op_info(func), args, kwargs, recorder)


def _cast(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    """Convert; the argument may be a number of the program, which the engine passes as a Python number."""
    if isinstance(args[0], torch.Tensor):
        return ordinary(func, op_info(func), args, kwargs, recorder)
    dtype = kwargs.get("dtype") or torch.tensor(args[0]).dtype
    return propagate(aten.full.default, ([], args[0]), {"dtype": dtype, "device": kwargs.get("device")}, recorder)


def _select_masked(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    tensor, mask = propagate(aten.broadcast_tensors.default, (list(args),), {}, recorder)
    if not mask.ndim:  # an index without dimensions would remove a dimension
        tensor, mask = (propagate(aten.view.default, (x, [1]), {}, recorder) for x in (tensor, mask))
    return propagate(aten.index.Tensor, (tensor, [mask]), kwargs, recorder)


def _index(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    """Run an indexing operator; masks are replaced by the indices of their true elements."""
    indices = list(as_traced(tuple(args[1]), {}, recorder)[0])
    if any(map(_is_mask, indices)) and _rows_count(args):
        _refuse_misfits(as_traced(args[:1], {}, recorder)[0][0], indices)
        current(f"{func}")
        args = (args[0], [each for index in indices for each in _as_indices(index, recorder)], *args[2:])
    return ordinary(func, op_info(func), args, kwargs, recorder)


def _refuse_misfits(tensor: TraceTensor, indices: Sequence[Any]) -> None:
    """Require that masks have the shape of the dimensions that they index: a wrong mask may give valid indices, so no
    later check finds it.

    Raises:
        IndexError: a mask does not fit, as in eager. Unbacked sizes are not compared.
    """
    sizes, first = tensor.storage_view.layout.val.shape, 0
    for index in indices:
        mask = index.storage_view.layout.val.shape if _is_mask(index) else ()
        for at, (a, b) in enumerate(zip(mask, sizes[first:], strict=False)):
            if not is_unbacked(a, b) and a != b:
                text = f"The shape of the mask {[*map(int, mask)]} at index {at} does not match"
                raise IndexError(f"{text} the shape of the indexed tensor {[*map(int, sizes)]} at index {first + at}")
        first += len(mask) if _is_mask(index) else 1


def _is_mask(index: Any) -> bool:
    return type(index) is TraceTensor and index.dtype in (torch.bool, torch.uint8)


def _rows_count(args: Sequence[Any]) -> bool:
    """Whether the number of selected elements is needed, which it is not if one number is written to all of them.

    If that number requires gradients, its backward selects the elements, and can no longer read their number.
    """
    return len(args) < 3 or not isinstance(args[2], torch.Tensor) or args[2].ndim > 0 or args[2].requires_grad


def _as_indices(index: Any, recorder: Recorder | None) -> list[Any]:
    if not _is_mask(index):
        return [index]
    found = propagate(aten.nonzero.default, (index,), {}, recorder)
    return [propagate(aten.select.int, (found, 1, d), {}, recorder) for d in range(index.ndim)]


def _on_real(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    """Run the real operator on uninitialised memory: for queries about metadata only."""

    def real(value: Any) -> Any:
        if type(value) is TraceTensor:
            val = value.storage_view.layout.val
            out = torch.empty_strided(val.shape, val.stride, dtype=val.dtype, device=val.device)
            return out.requires_grad_(value.requires_grad)
        return value

    return func(*map(real, args), **{k: real(v) for k, v in kwargs.items()})


def _no(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    return False


def _same_size(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    return bool(tuple(args[0].shape) == tuple(args[1].shape))


def _unsafe_split(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    """Returns chunks that share memory with the whole without being views of it for autograd: slices."""
    tensor, sizes, dim = (argument(func, args, kwargs, a.name) for a in schema_of(func).arguments)
    length = tensor.shape[dim]
    if not isinstance(sizes, (list, tuple)):
        sizes = [min(sizes, length - start) for start in range(0, int(length), int(sizes))] if sizes else []
        sizes = sizes or [0]  # a dimension without elements is one chunk
    ends = list(itertools.accumulate(sizes))
    if not ends or ends[-1] != length or any(n < 0 for n in sizes):
        return ordinary(func, op_info(func), args, kwargs, recorder)  # raises the error
    ranges = zip([0, *ends], ends, strict=False)
    return [propagate(aten.slice.Tensor, (tensor, dim, start, end, 1), {}, recorder) for start, end in ranges]


def _channel_shuffle(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None
) -> Any:
    """Run `channel_shuffle`: a tensor without elements is returned itself (as an alias), as there is nothing to
    move.
    """
    if same(args[0].numel(), 0):
        return propagate(aten.alias.default, args[:1], {}, recorder)
    return ordinary(func, op_info(func), args, kwargs, recorder)


def _same_storage(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    """Whether two storages have the same number of elements; the engine asks this about a tensor and its forward
    derivative.
    """
    one, other = (root_of(a.storage_view).layout.val if type(a) is TraceTensor else meta_of(a) for a in args[:2])
    return bool(extent(one.shape, one.stride) == extent(other.shape, other.stride))


def _equal(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    """Whether two tensors are equal, which depends on values; C++ code compares constants that it has made itself."""
    known = [known_value(x) if type(x) is TraceTensor else x for x in args]
    if known[0] is not None and known[1] is not None:
        return torch.equal(known[0], known[1])
    raise depends_on_values(f"{func}")


def _allclose(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    """Decide a condition of derivatives on their gradients, which raise an error if it is false; the graph checks it
    instead.
    """
    if recorder is None or not recorder.backward:
        raise depends_on_values(f"{func}")
    values = [argument(func, args, kwargs, a.name) for a in schema_of(func).arguments]
    a, b = as_traced(values[:2], {}, recorder)[0]
    recorder.expect_close(a, b, *values[2:])
    return True


def _repeats(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    """Returns as many indices as `output_size` specifies, or a data-dependent number."""
    if kwargs.get("output_size") is None:
        return _measure(func, args, kwargs, recorder)
    return ordinary(func, op_info(func), args, kwargs, recorder)


def _set(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    """Make the tensor a view of another one's memory, with its own conjugation and negation."""
    tensor, ((source,), _) = args[0], as_traced(args[1:2], {}, recorder)
    if tensor.storage_view.conjugate is not source.storage_view.conjugate:
        source = propagate(aten._conj.default, (source,), {}, recorder)
    if tensor.storage_view.negative is not source.storage_view.negative:
        source = propagate(aten._neg_view.default, (source,), {}, recorder)
    tensor.data = source
    return tensor


def _resize(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    tensor, shape = args[0], tuple(args[1])
    if tuple(tensor.shape) == shape:
        return tensor
    before, stride = TraceTensor(tensor.storage_view), contiguous_stride(shape)
    root, first = root_of(tensor.storage_view).layout.val, tensor.storage_view.layout.offset
    if kwargs.get("memory_format") not in (None, torch.contiguous_format):
        raise Unsupported("resize_() in another memory format", hint="make a new tensor of the wanted shape")
    if not root.numel:
        tensor.move_to(propagate(aten.new_empty.default, (before, shape), {}, recorder))
    elif first + extent(shape, stride) <= extent(root.shape, root.stride):
        note_new_shape(func, tensor)
        tensor.storage_view.storage.resized = True
        tensor.move_to(propagate(aten.as_strided.default, (before, shape, stride, first), {}, recorder))
    else:  # the program would expect its views to grow with it
        raise Unsupported("resize_() beyond a tensor's memory", hint="make a new tensor of the wanted shape")
    return tensor


def _strided(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    """Returns fresh memory with gaps or overlaps as a view of memory without: the graph's own values have neither."""
    shape, stride = args[-2:]
    if is_dense(shape, stride):
        return ordinary(func, op_info(func), args, kwargs, recorder)
    length = extent(shape, stride)
    contiguous = propagate(func, (*args[:-2], [length], [1]), kwargs, recorder)
    return propagate(aten.as_strided.default, (contiguous, shape, stride, 0), {}, recorder)


def _scattered(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    """Run a scatter: eager writes to a copy with the tensor's strides (dense if one is 0); in windows one write changes
    several.
    """
    (value,), _ = as_traced(args[:1], {}, recorder)
    shape, stride = value.storage_view.layout.val.shape, value.storage_view.layout.val.stride
    if may_overlap(shape, stride) and not any(
        same(s, 0) and not same(n, 1) for n, s in zip(shape, stride, strict=True)
    ):
        raise Unsupported(f"{func} of elements that share memory", why="what is written to one shows in others")
    return ordinary(func, op_info(func), args, kwargs, recorder)


def _scattered_strided(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None
) -> Any:
    """Run a write to a strided view of a copy: the kernel counts its offset from the beginning of the caller's storage.

    The storages of an input and of a value of the graph begin elsewhere than in eager.
    """
    (value, src, *where), kwargs = as_traced(args, kwargs, recorder)
    infer_meta(func, (value, src, *where), kwargs)  # raises the errors of arguments that eager refuses
    layout = value.storage_view.layout
    shape, stride = layout.val.shape, layout.val.stride
    if may_overlap(shape, stride):
        raise Unsupported(f"{func} of elements that share memory", why="what is written to one shows in others")
    size, steps, first = (argument(func, (value, src, *where), kwargs, n) for n in ("size", "stride", "storage_offset"))
    copy = propagate(aten.new_empty_strided.default, (value, shape, stride), {}, recorder)
    propagate(aten.copy_.default, (copy, value), {}, recorder)
    at = 0 if first is None else first - layout.offset
    written = propagate(aten.as_strided.default, (copy, size, steps, at), {}, recorder)
    propagate(aten.copy_.default, (written, src), {}, recorder)
    return copy


def _call(recorder: Recorder | None) -> sparse.Call:
    return lambda op, *args, **kwargs: propagate(op, args, kwargs, recorder)


def _bag_backward(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    if not argument(func, args, kwargs, "sparse"):
        return ordinary(func, op_info(func), args, kwargs, recorder)
    given = as_traced([argument(func, args, kwargs, a.name) for a in schema_of(func).arguments], {}, recorder)[0]
    return sparse.of_bags(_call(recorder), given)


def _coordinates(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None) -> Any:
    if recorder is None or not recorder.backward:
        raise Unsupported("a sparse tensor", why="graphs hold strided tensors only", hint="keep it out of the function")
    size, indices, values = as_traced(args[2:5], {}, recorder)[0]
    return sparse.of_coordinates(_call(recorder), size, indices, values)


def _sum_of_gradients(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None
) -> Any:
    out = ordinary(func, op_info(func), args, kwargs, recorder)
    if recorder is not None and recorder.backward and len(args) == 2 and not kwargs:
        a, b = (x.storage_view.rows if type(x) is TraceTensor else None for x in args)
        if a is not None and b is not None:
            out.storage_view.rows = sparse.add_rows(_call(recorder), a, b)
    return out


SPECIAL |= {
    aten.select_scatter.default: _scattered,
    aten.slice_scatter.default: _scattered,
    aten.diagonal_scatter.default: _scattered,
    aten.as_strided_scatter.default: _scattered_strided,
    aten.add.Tensor: _sum_of_gradients,
    aten._embedding_bag_backward.default: _bag_backward,
    aten._sparse_coo_tensor_with_dims_and_tensors.default: _coordinates,
    aten.lift_fresh.default: _lift,
    aten.lift.default: _lift,
    aten._local_scalar_dense.default: _scalar,
    aten._fused_sdp_choice.default: _on_real,
    aten.set_.source_Tensor: _set,
    aten.resize_.default: _resize,
    aten.empty_strided.default: _strided,
    aten.new_empty_strided.default: _strided,
    aten._to_copy.default: _cast,
    aten._conj.default: _lazy,
    aten._neg_view.default: _lazy,
    aten.view_as_real.default: _as_real,
    aten._conj_physical.default: _conjugate,
    aten.is_pinned.default: _no,
    aten.is_same_size.default: _same_size,
    aten._has_same_storage_numel.default: _same_storage,
    aten.nonzero.default: _measure,
    aten._unique2.default: _measure,
    aten.unique_consecutive.default: _measure,
    aten.unique_dim.default: _measure,
    aten._ctc_loss.Tensor: _measure,
    aten.bincount.default: _measure,
    aten.linalg_lstsq.default: _lstsq,
    aten.masked_select.default: _select_masked,
    aten.index.Tensor: _index,
    aten.index_put.default: _index,
    aten.index_put_.default: _index,
    aten._index_put_impl_.default: _index,
    aten.repeat_interleave.Tensor: _repeats,
    aten.allclose.default: _allclose,
    aten.equal.default: _equal,
    aten.channel_shuffle.default: _channel_shuffle,
    aten.unsafe_split.Tensor: _unsafe_split,
    aten.unsafe_split_with_sizes.default: _unsafe_split,
}


# -- operators that are rewritten as others ------------------------------------------------------------------------


def _batch_norm(args: tuple[Any, ...]) -> Call:
    """Rewrite `native_batch_norm`, which writes its running statistics without a mention in its schema, as an operator
    with the right schema.
    """
    x, weight, bias, mean, var, training, momentum, eps = args
    if not training:
        return aten._native_batch_norm_legit_no_training.default, (x, weight, bias, mean, var, momentum, eps)
    if mean is None:
        return aten._native_batch_norm_legit.no_stats, (x, weight, bias, training, momentum, eps)
    return aten._native_batch_norm_legit.default, args


def _batch_norm_backward(args: tuple[Any, ...]) -> Call:
    """Rewrite the backward: training does not read the running statistics, and without them nothing has to keep them
    alive.
    """
    if args[7]:
        args = (*args[:3], None, None, *args[5:])
    return aten.native_batch_norm_backward.default, args


def _cudnn_batch_norm(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder | None
) -> tuple[Any, ...]:
    """Run the library's batch norm as the native one, plus an empty reserve."""
    native, given = _batch_norm(tuple(args))
    out, mean, rstd = propagate(native, given, {}, recorder)
    options = {"dtype": torch.uint8, "device": args[0].device}
    return out, mean, rstd, propagate(aten.empty.memory_format, ([0],), options, recorder)


def _cudnn_batch_norm_backward(args: tuple[Any, ...]) -> Call:
    x, grad, weight, _, _, mean, rstd, eps, _ = args
    wanted = [True, True, True]
    return aten.native_batch_norm_backward.default, (grad, x, weight, None, None, mean, rstd, True, eps, wanted)


SPECIAL |= {
    aten.cudnn_batch_norm.default: _cudnn_batch_norm,
    # of equivalent kernels, among which eager chooses by the values of lengths, torch's own is always used
    **{
        getattr(packet, overload): lambda *_: False
        for packet in (getattr(aten, f"_use_{library}_ctc_loss", None) for library in ("cudnn", "miopen"))
        if packet is not None
        for overload in packet.overloads()
    },
}
REWRITES |= {
    # a composition of views, which may move no element; but the CPU kernel returns new memory
    aten.native_channel_shuffle.default: lambda args: (aten.channel_shuffle.default, args),
    aten.cudnn_batch_norm_backward.default: _cudnn_batch_norm_backward,
    aten.native_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
}
