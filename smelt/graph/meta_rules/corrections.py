"""Corrections of PyTorch's meta kernels on every device: strides and dtypes that the operators' kernels return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.base.torch_private import OpOverload
from smelt.graph.ir.meta import TensorMeta, is_dense
from smelt.graph.ir.storage_view import Layout
from smelt.graph.meta_rules.elementwise import result_stride
from smelt.graph.meta_rules.layouts import as_before, fresh, val_of
from smelt.shapes.size import known_at_most, same

aten = torch.ops.aten


def with_gaps_of(val: TensorMeta) -> Layout | None:
    """Returns the layout of a copy of all memory that a tensor spans; None if it has no gaps, or has elements and an
    expanded dimension.
    """
    if is_dense(val.shape, val.stride):
        return None
    expanded = (not (known_at_most(n, 1) or known_at_most(1, s)) for n, s in zip(val.shape, val.stride, strict=True))
    if not same(val.numel, 0) and any(expanded):
        return None
    return fresh(val, val.shape, None, val.stride)


def _written_view(answer: Layout, args: Sequence[Any]) -> Layout:
    """Returns the layout of a result that is the first argument with a region overwritten: laid out like it, gaps
    included.
    """
    return with_gaps_of(val_of(args[0])) or answer


def _in_rows(answer: Layout, args: Sequence[Any]) -> Layout:
    return fresh(answer.val, answer.val.shape)


def _gradient_of_input(answer: Layout, args: Sequence[Any]) -> Layout:
    """Returns the layout of the gradient of a loss's first argument: row-major, in that argument's dtype."""
    val = val_of(args[1])
    return fresh(val, answer.val.shape)


def _each_loss(answer: Layout, args: Sequence[Any]) -> Layout:
    """Correct a loss per element: for fp16 and bf16 PyTorch computes in float32 and copies operands to new memory,
    without overlap.
    """
    val = answer.val
    if not val.shape:
        return answer
    return fresh(val, val.shape, None, result_stride(val.shape, [val_of(a) for a in args[:2]], False))


def _huber_loss(answer: Layout, args: Sequence[Any]) -> Layout:
    """Returns the layout of a result that is allocated like the first operand."""
    val = val_of(args[0])
    return as_before(val) if answer.val.shape == val.shape else answer


def _with_logits(answer: Layout, args: Sequence[Any]) -> Layout:
    """Returns the layout of a result that is allocated like the target, by `1 - target`."""
    val, target = answer.val, val_of(args[1])
    if not val.shape or val.shape != target.shape:
        return answer
    return fresh(val, val.shape, None, as_before(target).val.stride)


def _sorted(answer: Any, args: Sequence[Any]) -> Any:
    """Correct a sort: without elements, the result has the argument's strides."""
    val = val_of(args[0])
    return (as_before(val), as_before(val, torch.int64)) if same(val.numel, 0) else answer


def _rolled(answer: Layout, args: Sequence[Any]) -> Layout:
    """Correct a roll along given dimensions: without elements, the result has the argument's strides."""
    val, dims = val_of(args[0]), args[2] if len(args) > 2 else ()
    return as_before(val) if dims and same(val.numel, 0) else answer


def rotated(answer: Any, args: Sequence[Any]) -> Layout:
    """Returns the layout after a rotation by quarter turns: an even number flips, which keeps the order of dimensions;
    an odd number also transposes.
    """
    turns_and_dims: tuple[Any, ...] = (*args[1:3], *(1, (0, 1))[len(args) - 1 :])
    val, (k, (one, other)) = val_of(args[0]), turns_and_dims
    if k % 4 == 0:
        return fresh(val, val.shape)
    shape, stride = list(val.shape), list(as_before(val).val.stride)
    if k % 2:
        shape[one], shape[other] = shape[other], shape[one]
        stride[one], stride[other] = stride[other], stride[one]
    return fresh(val, shape, None, stride)


def _prelu_gradients(answer: Any, args: Sequence[Any]) -> Any:
    """Returns the layouts of two gradients that are allocated like their arguments."""
    return as_before(val_of(args[1])), as_before(val_of(args[1]))


def _written_copy(answer: Layout, args: Sequence[Any]) -> Layout:
    """Returns the layout of the first argument with some elements overwritten: allocated like it."""
    return as_before(val_of(args[0]))


CORRECTIONS: dict[OpOverload, Callable[[Any, Sequence[Any]], Any]] = {
    aten.select_scatter.default: _written_view,
    aten.slice_scatter.default: _written_view,
    aten.diagonal_scatter.default: _written_view,
    aten.binary_cross_entropy_with_logits.default: _with_logits,
    aten.mse_loss.default: _each_loss,
    aten.smooth_l1_loss.default: _each_loss,
    aten.huber_loss.default: _huber_loss,
    aten.mse_loss_backward.default: _gradient_of_input,
    aten.smooth_l1_loss_backward.default: _gradient_of_input,
    aten.index_put.default: _written_copy,
    aten._unsafe_index_put.default: _written_copy,
    aten._unsafe_masked_index_put_accumulate.default: _written_copy,
    aten.sort.default: _sorted,
    aten.sort.stable: _sorted,
    aten.roll.default: _rolled,
    aten.rot90.default: rotated,
    aten._prelu_kernel_backward.default: _prelu_gradients,
    aten.diag_embed.default: _in_rows,
    aten.normal.Tensor_Tensor: _in_rows,
    aten.normal.Tensor_float: _in_rows,
    aten.normal.float_Tensor: _in_rows,
}
"""For each operator, a function of (the meta kernel's answer, the arguments) that returns the operator's result."""
