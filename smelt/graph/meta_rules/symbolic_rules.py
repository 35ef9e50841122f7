"""Metadata of operators on symbolic sizes; for static sizes these operators use PyTorch's meta kernels.

A rule returns layouts, or None: then sizes are specialized to the example's and the meta kernel is run, which also
raises eager's error for wrong arguments. Comparisons of sizes may add assumptions, as everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.base.torch_private import schema_of
from smelt.graph.ir.meta import TensorMeta, channels_last_stride, contiguous_stride
from smelt.graph.ir.storage_view import layout_for
from smelt.graph.meta_rules.corrections import rotated, with_gaps_of
from smelt.graph.meta_rules.elementwise import broadcast, elementwise, result_stride
from smelt.graph.meta_rules.layouts import (
    Rule,
    arguments_by_name,
    as_before,
    fresh,
    in_format,
    layout,
    like,
    row_major_like,
    val_of,
)
from smelt.graph.meta_rules.symbolic_views import VIEW_RULES
from smelt.graph.meta_rules.symbolic_windows import WINDOW_RULES
from smelt.shapes.size import IntLike, same

aten = torch.ops.aten


def _clone(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    match kwargs.get("memory_format"):
        case None | torch.preserve_format:
            return as_before(val, kwargs.get("dtype"))
        case torch.contiguous_format:
            return fresh(val, val.shape, kwargs.get("dtype"))
        case torch.channels_last if val.ndim == 4:
            return fresh(val, val.shape, kwargs.get("dtype"), channels_last_stride(val.shape))
    return None


def _to_copy(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    device = kwargs.get("device")
    if device is not None and torch.device(device) != val_of(args[0]).device:
        return None
    return _clone(func, args, kwargs)


def written(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """Returns the layout of the first argument, which is written."""
    return layout(args[0])


def _index_select(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, dim, index = val_of(args[0]), args[1], val_of(args[2])
    if not val.ndim or index.ndim > 1:
        return None
    dim %= val.ndim
    return fresh(val, (*val.shape[:dim], index.shape[0] if index.ndim else 1, *val.shape[dim + 1 :]))


def _repeat(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, times = val_of(args[0]), args[1]
    lead = len(times) - val.ndim
    if lead < 0:
        return None
    own = (*(1,) * lead, *val.shape)
    return fresh(val, [n * t for n, t in zip(own, times, strict=True)])


def _topk(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, k = val_of(args[0]), args[1]
    dim = args[2] if len(args) > 2 else -1
    if not val.ndim or k > val.shape[dim]:
        return None
    shape = list(val.shape)
    shape[dim] = k
    return fresh(val, shape), fresh(val, shape, torch.int64)


def _baddbmm(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    a, b = val_of(args[1]), val_of(args[2])
    fits = a.ndim == b.ndim == 3 and a.shape[0] == b.shape[0] and a.shape[2] == b.shape[1] and a.dtype == b.dtype
    return fresh(a, (a.shape[0], a.shape[1], b.shape[2])) if fits else None


def _mv(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    a, b = val_of(args[0]), val_of(args[1])
    fits = a.ndim == 2 and b.ndim == 1 and a.shape[1] == b.shape[0] and a.dtype == b.dtype
    return fresh(a, a.shape[:1]) if fits else None


def _expanded(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """Returns a row-major result, whose shape is the first argument's broadcast with the mask's."""
    val = val_of(args[0])
    shape = broadcast([val, val_of(args[1])])
    return None if shape is None else fresh(val, shape)


def _new_like(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    device = kwargs.get("device")
    if device is not None and torch.device(device) != val_of(args[0]).device:
        return None
    return _clone(func, args, kwargs)


def _embedding_backward(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    grad = val_of(args[0])
    return fresh(grad, (args[2], grad.shape[-1]))


def _attention_backward(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """Returns gradients in the order of dimensions (batch, length, heads, width) in memory."""
    made = []
    for x in args[1:4]:
        batch, heads, length, width = val_of(x).shape
        stride = (length * heads * width, width, heads * width, 1)
        made.append(fresh(val_of(x), val_of(x).shape, None, stride))
    return tuple(made)


def _roll(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """The layout of `roll`. On a CPU it concatenates two slices, so images keep their memory format."""
    val, dims = val_of(args[0]), arguments_by_name(func, args, kwargs)["dims"]
    if dims and same(val.numel, 0):
        return as_before(val)
    joined = val.device.type == "cpu" and dims
    return in_format(val, val.shape) if joined else fresh(val, val.shape)


def _reduced_shape(val: TensorMeta, named: Mapping[str, Any], all_of: bool) -> list[IntLike]:
    """Returns the shape without the dimensions `dim`, or with 1 for them. `all_of`: whether an empty list means all."""
    dims, keep = named.get("dim"), bool(named.get("keepdim"))
    axes = [dims] if isinstance(dims, int) else list(range(val.ndim) if dims is None else dims)
    if not axes and all_of:
        axes = list(range(val.ndim))
    gone = {d % max(val.ndim, 1) for d in axes}
    return [1 if d in gone else n for d, n in enumerate(val.shape) if keep or d not in gone]


def _reduction(
    dtype: torch.dtype | None = None, results: int = 1, integer_dtype: torch.dtype | None = None, all_of: bool = True
) -> Rule:
    """Returns the rule of a reduction `op(x, dims, keepdim)`.

    Args:
        dtype: the dtype of the (last) result; None: that of the input.
        results: 2 for values and positions.
        whole: dtype of the result for integers.
        all_of: whether an empty list of dimensions means all of them, as None does.
    """

    def rule(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
        val, named = val_of(args[0]), arguments_by_name(func, args, kwargs)
        shape = _reduced_shape(val, named, all_of)
        integral = not (val.dtype.is_floating_point or val.dtype.is_complex)
        made = named.get("dtype") or (integer_dtype if integral and integer_dtype else None)
        if dtype is torch.bool and val.dtype is torch.uint8:
            made = torch.uint8
        if results == 2:
            return fresh(val, shape, made), fresh(val, shape, dtype or made)
        return fresh(val, shape, made or dtype)

    return rule


def _written_view(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    return with_gaps_of(val_of(args[0])) or as_before(val_of(args[0]))


def _sort(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    return as_before(val_of(args[0])), as_before(val_of(args[0]), torch.int64)


def _scan_with_indices(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    return fresh(val, val.shape), fresh(val, val.shape, torch.int64)


def _scan(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    whole = not (val.dtype.is_floating_point or val.dtype.is_complex)
    return fresh(val, val.shape, kwargs.get("dtype") or (torch.int64 if whole else None))


def _dropout(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    return as_before(val), as_before(val, torch.bool)


def loss(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """The rule of losses with `reduction`: a scalar, or one value for each element. Some have the first operand's
    dtype.
    """
    operands = [val_of(a) for a in args if isinstance(a, torch.Tensor)]
    dtype = _common_dtype(operands) if func in _PROMOTED else operands[0].dtype
    if arguments_by_name(func, args, kwargs)["reduction"] != 0:
        return fresh(operands[0], (), dtype)
    if func is aten.huber_loss.default:
        return as_before(operands[0]) if operands[0].shape == operands[1].shape else None
    shape = broadcast(operands)
    if shape is None:
        return None
    if func is aten.binary_cross_entropy_with_logits.default:  # the result is computed into `1 - target`
        target = operands[1]
        return fresh(operands[0], shape, dtype, as_before(target).val.stride if target.shape == shape else None)
    return fresh(operands[0], shape, dtype, _common_stride(operands, shape))


def _common_dtype(operands: Sequence[TensorMeta]) -> torch.dtype:
    """Returns `torch.result_type` of the first two; with a tensor subclass that function would load
    torch.distributed.
    """
    first, second = operands[:2]
    if first.dtype is second.dtype:
        return first.dtype
    return torch.result_type(*(torch.empty((0,) * bool(x.shape), dtype=x.dtype) for x in (first, second)))


_PROMOTED = (aten.mse_loss.default, aten.smooth_l1_loss.default)


def _common_stride(operands: Sequence[TensorMeta], shape: Sequence[IntLike]) -> Any:
    return result_stride(tuple(shape), operands, False)  # type: ignore[arg-type]


def _nll_images(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, reduction = val_of(args[0]), args[3]
    if val.ndim != 4:
        return None
    each = (val.shape[0], *val.shape[2:])
    return fresh(val, each if reduction == 0 else ()), fresh(val, ())


def picked(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """The rule of indexing with integers.

    The dimensions of the indices replace the indexed dimensions if these are neighbours; else they come first. The
    kernel orders the result by the memory order of the dimensions that are kept. (PyTorch: `restride_src` in
    aten/src/ATen/native/TensorAdvancedIndexing.cpp.)
    """
    val, indices = val_of(args[0]), args[1]
    indexed_dims = [d for d, i in enumerate(indices) if i is not None]
    found = [val_of(indices[d]) for d in indexed_dims]
    if not indexed_dims or len(indices) > val.ndim or any(i.dtype not in (torch.int64, torch.int32) for i in found):
        return None
    shape = broadcast(found)
    if shape is None:
        return None
    kept = [d for d in range(val.ndim) if d not in indexed_dims]
    front = 0 if indexed_dims != list(range(indexed_dims[0], indexed_dims[-1] + 1)) else indexed_dims[0]
    sizes = [val.shape[d] for d in kept]
    source = [val.stride[d] for d in kept]
    whole = (*sizes[:front], *shape, *sizes[front:])
    walked = TensorMeta(whole, val.dtype, (*source[:front], *(0,) * len(shape), *source[front:]), val.device)
    operands = [walked]
    for i in found:
        operands.append(_as_walked(i, shape, front, len(sizes) - front))
    return fresh(val, whole, None, result_stride(whole, operands, False))


def _picked_in_rows(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """The rule of a selection by a mask, whose result is row-major."""
    found = picked(func, (args[0], args[2]), kwargs)
    return None if found is None else fresh(found.val, found.val.shape)


def _as_walked(index: TensorMeta, shape: Sequence[IntLike], before: int, after: int) -> TensorMeta:
    """Returns the metadata of `index.expand(shape)` with dimensions of size 1 added before and after, whose strides
    break ties in the memory order.
    """
    steps: list[IntLike] = []
    for d in range(len(shape) - 1, -1, -1):
        at = d - (len(shape) - index.ndim)
        inner = shape[d + 1] * steps[0] if steps else 1
        own = index.stride[at] if at >= 0 else inner
        steps.insert(0, own if at >= 0 and same(index.shape[at], shape[d]) or same(shape[d], 1) else 0)
    outer, inner = (shape[0] * steps[0], steps[-1]) if shape else (1, 1)
    whole = ((1,) * before + tuple(shape) + (1,) * after, (outer,) * before + tuple(steps) + (inner,) * after)
    return TensorMeta(whole[0], index.dtype, whole[1], index.device)  # type: ignore[arg-type]


def _product(shape_of: Any) -> Rule:
    """Returns the rule of a row-major product, whose shape `shape_of` computes from the two matrices or vectors."""

    def rule(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
        a, b = (val_of(x) for x in args[1:3]) if len(args) > 2 else (val_of(x) for x in args[:2])
        shape = shape_of(a, b) if a.dtype is b.dtype else None
        return None if shape is None else fresh(a, shape)

    return rule


def _dot_shape(a: TensorMeta, b: TensorMeta) -> Any:
    return () if a.ndim == b.ndim == 1 and a.shape[0] == b.shape[0] else None


def _addmv_shape(a: TensorMeta, b: TensorMeta) -> Any:
    if any(same(n, 0) for n in a.shape):  # the result is the unchanged summand
        return None
    return a.shape[:1] if a.ndim == 2 and b.ndim == 1 and a.shape[1] == b.shape[0] else None


def _addr(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """The rule of `addr`: elementwise on the summand, the first vector as a column and the second as a row."""
    x, a, b = (val_of(each) for each in args[:3])
    if a.ndim != 1 or b.ndim != 1 or not x.dtype is a.dtype is b.dtype:
        return None
    shape = (a.shape[0], b.shape[0])
    column = replace(a, shape=(*a.shape, 1), stride=(*a.stride, 1))
    if x.ndim > 2 or broadcast([x, replace(a, shape=shape, stride=(1, 1))]) != shape:
        return None
    return fresh(x, shape, None, result_stride(shape, [x, column, b], False))


def _addbmm_shape(a: TensorMeta, b: TensorMeta) -> Any:
    fits = a.ndim == b.ndim == 3 and a.shape[0] == b.shape[0] and a.shape[2] == b.shape[1]
    return (a.shape[1], b.shape[2]) if fits else None


def _trace(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    return fresh(val, (), None if val.dtype.is_floating_point or val.dtype.is_complex else torch.int64)


def _diag_embed(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, named = val_of(args[0]), arguments_by_name(func, args, kwargs)
    a, b = sorted(named[d] % (val.ndim + 1) for d in ("dim1", "dim2"))
    size = val.shape[-1] + abs(named["offset"])
    shape = list(val.shape[:-1])
    for d in (a, b):
        shape.insert(d, size)
    return fresh(val, shape)


def _of_shape(position: int) -> Rule:
    """Returns the rule of a fresh row-major tensor with the shape given by an argument, and the dtype of the first."""

    def rule(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
        return fresh(val_of(args[0]), args[position])

    return rule


def _new_strided(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    if kwargs.get("device") not in (None, val_of(args[0]).device):
        return None
    return fresh(val_of(args[0]), args[1], kwargs.get("dtype"), args[2])


def _empty_strided(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    device = torch.device(kwargs.get("device") or torch.get_default_device())
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    return layout_for(tuple(args[0]), dtype, tuple(args[1]), device)


def _like_drawn(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """The rule of `randint_like` and its overloads."""
    return as_before(val_of(args[0]), kwargs.get("dtype"))


def _drawn(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """The rule of `randint` and its overloads: the first list is the shape."""
    shape = tuple(next(a for a in args if isinstance(a, (list, tuple))))
    whole = "randint" in schema_of(func).name or "randperm" in schema_of(func).name
    dtype = kwargs.get("dtype") or (torch.int64 if whole else torch.get_default_dtype())
    device = torch.device(kwargs.get("device") or torch.get_default_device())
    return layout_for(shape, dtype, contiguous_stride(shape), device)


def _eye(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    shape = (args[0], args[1] if len(args) > 1 else args[0])
    device = torch.device(kwargs.get("device") or torch.get_default_device())
    return layout_for(shape, kwargs.get("dtype") or torch.get_default_dtype(), contiguous_stride(shape), device)


def _randperm(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    device = torch.device(kwargs.get("device") or torch.get_default_device())
    return layout_for((args[0],), kwargs.get("dtype") or torch.int64, (1,), device)


def _searchsorted(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[1] if func is aten.searchsorted.Tensor else args[0])
    return fresh(val, val.shape, torch.int32 if arguments_by_name(func, args, kwargs)["out_int32"] else torch.int64)


def _glu(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, dim = val_of(args[0]), arguments_by_name(func, args, kwargs)["dim"]
    if not val.ndim or val.shape[dim] % 2 != 0:
        return None
    dim %= val.ndim
    half = TensorMeta((*val.shape[:dim], val.shape[dim] // 2, *val.shape[dim + 1 :]), val.dtype, val.stride, val.device)
    return fresh(val, half.shape, None, _common_stride([half, half], half.shape))


def _cdist_backward(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """Returns the gradient with respect to the first operand, with the batch dimensions of both operands broadcast."""
    a, b = val_of(args[1]), val_of(args[2])
    batch = broadcast([fresh(v, v.shape[:-2]).val for v in (a, b)])
    if batch is None or any(same(n, 0) for n in (*a.shape, *b.shape)):
        return None
    return fresh(a, (*batch, *a.shape[-2:]))


def _cdist(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    a, b = val_of(args[0]), val_of(args[1])
    batch = broadcast([fresh(v, v.shape[:-2]).val for v in (a, b)])
    if batch is None or a.shape[-1] != b.shape[-1]:
        return None
    return fresh(a, (*batch, a.shape[-2], b.shape[-2]))


def _multinomial(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    return fresh(val, (*val.shape[:-1], args[1]), torch.int64)


_flag, _number = torch.bool, torch.int64

SYMBOLIC_RULES: dict[Any, Rule] = {
    **VIEW_RULES,
    **WINDOW_RULES,
    aten.clone.default: _clone,
    aten._to_copy.default: _to_copy,
    aten.new_empty_strided.default: _new_strided,
    aten.empty_strided.default: _empty_strided,
    aten.index_select.default: _index_select,
    aten.index.Tensor: picked,
    aten._unsafe_index.Tensor: picked,
    aten.repeat.default: _repeat,
    aten.roll.default: _roll,
    aten.rot90.default: lambda f, a, k: rotated(None, tuple(arguments_by_name(f, a, k).values())),
    aten.sort.default: _sort,
    aten.sort.stable: _sort,
    aten.topk.default: _topk,
    aten.baddbmm.default: _baddbmm,
    aten.mv.default: _mv,
    aten.dot.default: _product(_dot_shape),
    aten.vdot.default: _product(_dot_shape),
    aten.addmv.default: _product(_addmv_shape),
    aten.addr.default: _addr,
    aten.addbmm.default: _product(_addbmm_shape),
    aten.trace.default: _trace,
    aten.diag_embed.default: _diag_embed,
    aten.diagonal_backward.default: _of_shape(1),
    aten.unfold_backward.default: _of_shape(1),
    aten.cummax.default: _scan_with_indices,
    aten.cummin.default: _scan_with_indices,
    aten.cumprod.default: _scan,
    aten.cumsum.default: _scan,
    aten.logcumsumexp.default: _scan,
    aten.nll_loss2d_forward.default: _nll_images,
    aten.nll_loss2d_backward.default: row_major_like(1),
    aten.native_dropout.default: _dropout,
    aten.glu.default: _glu,
    aten.glu_backward.default: row_major_like(1),
    aten._cdist_forward.default: _cdist,
    aten._euclidean_dist.default: _cdist,
    aten._cdist_backward.default: _cdist_backward,
    aten.multinomial.default: _multinomial,
    aten.searchsorted.Tensor: _searchsorted,
    aten.bucketize.Tensor: _searchsorted,
    aten.take.default: lambda f, a, k: fresh(val_of(a[0]), val_of(a[1]).shape),
    aten.embedding_dense_backward.default: _embedding_backward,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
    **{
        op: elementwise
        for op in (aten.rsub.Tensor, aten.rsub.Scalar, aten.hardtanh_backward.default, aten.complex.default)
        + (aten.softshrink_backward.default, aten.hardshrink_backward.default, aten.polar.default)
    },
    aten.masked_fill.Tensor: _expanded,
    aten.masked_scatter.default: _expanded,
    aten.masked_scatter_backward.default: _of_shape(2),
    aten._unsafe_masked_index.default: _picked_in_rows,
    **{getattr(aten, f"{name}_like").default: _new_like for name in "empty zeros ones full rand randn".split()},
    aten._prelu_kernel_backward.default: like(1, results=2),
    aten.log_sigmoid_backward.default: like(),
    aten.randperm.default: _randperm,
    aten.eye.default: _eye,
    aten.eye.m: _eye,
    **{op: _drawn for op in (aten.randint.default, aten.randint.low, aten.normal.float_float)},
    **{op: _like_drawn for op in (aten.randint_like.default, aten.randint_like.low_dtype)},
    **{
        op: like()
        for op in (aten.flip.default, aten.index_put.default, aten._unsafe_index_put.default, aten.uniform.default)
        + (aten.exponential.default, aten.normal_functional.default, aten.geometric.default, aten.log_normal.default)
        + (aten.cauchy.default, aten.index_fill.int_Scalar, aten.index_fill.int_Tensor, aten.fill.Scalar)
        + (aten.put.default,)
    },
    **{
        op: _written_view
        for op in (aten.slice_scatter.default, aten.select_scatter.default, aten.diagonal_scatter.default)
    },
    **{
        op: row_major_like()
        for op in (aten.triu.default, aten.tril.default, aten.bernoulli.p, aten.bernoulli.default)
        + (aten.scatter.src, aten.scatter.value, aten.scatter.reduce, aten.scatter.value_reduce)
        + (aten.scatter_add.default, aten.scatter_reduce.two, aten.index_copy.default, aten.index_reduce.default)
        + (aten.index_add.default, aten._softmax.default, aten._log_softmax.default)
        + (aten.renorm.default, aten.normal.Tensor_float)
    },
    **{
        op: row_major_like(1)
        for op in (
            aten.mse_loss_backward.default,
            aten.smooth_l1_loss_backward.default,
            aten.huber_loss_backward.default,
        )
    },
    aten.binary_cross_entropy_backward.default: like(1),
    **{
        op: loss
        for op in (aten.mse_loss.default, aten.smooth_l1_loss.default, aten.huber_loss.default)
        + (aten.binary_cross_entropy.default, aten.binary_cross_entropy_with_logits.default)
    },
    **{
        op: _reduction()
        for op in (aten.amax.default, aten.amin.default, aten.var.correction, aten.std.correction)
        + (aten.linalg_vector_norm.default, aten.max.default, aten.min.default)
        + (aten.mean.default, aten.median.default, aten.nanmedian.default)
        + (aten.norm.Scalar, aten.norm.ScalarOpt_dim, aten.norm.ScalarOpt_dim_dtype)
    },
    aten.logsumexp.default: lambda f, a, k: _reduction(integer_dtype=torch.get_default_dtype())(f, a, k),
    **{
        op: _reduction(integer_dtype=_number)
        for op in (aten.sum.default, aten.prod.default, aten.prod.dim_int, aten.nansum.default)
    },
    **{
        op: _reduction(_number)
        for op in (aten.argmax.default, aten.argmin.default, aten.count_nonzero.default)
        + (aten.count_nonzero.dim_IntList,)
    },
    **{
        op: _reduction(_flag, all_of=False)
        for op in (aten.any.default, aten.any.dim, aten.all.default, aten.all.dim, aten.any.dims, aten.all.dims)
    },
    **{
        op: _reduction(_number, 2)
        for op in (aten.max.dim, aten.min.dim, aten.median.dim, aten.nanmedian.dim, aten.mode.default)
        + (aten.kthvalue.default,)
    },
    **{op: _reduction(None, 2) for op in (aten.var_mean.correction, aten.std_mean.correction, aten.aminmax.default)},
}
"""Rules of operators that are not elementwise and have no rule for static sizes."""
