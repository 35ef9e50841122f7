"""The results of `torch.linalg.lstsq`; the number of residuals may depend on values.

PyTorch's derivative counts the residuals, which is possible only for plain numbers. If the number depends on values,
the residuals get a derivative in this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from smelt.base.errors import Unsupported
from smelt.base.torch_private import OpOverload
from smelt.graph.ir.meta import TensorMeta
from smelt.graph.ir.storage_view import Layout, ViewedTensor, layout_for
from smelt.graph.meta_rules.infer import depends_on_values
from smelt.graph.meta_rules.layouts import arguments_by_name, val_of

_CPU = torch.device("cpu")
_FIXED_COUNT_DRIVERS = ("gels", "gelsy", None)
"""The first driver assumes full rank, the second (the default on the CPU) gives no residuals."""


def least_squares(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Layout, ...] | None:
    """Returns the layouts of the results; None if the number of residuals depends on values.

    Raises:
        DataDependent: the number depends on values, and there is more than one matrix.
        Unsupported: sizes are symbolic, or the device is not the CPU.
    """
    arguments = arguments_by_name(func, args, kwargs)
    if _has_fixed_count(val_of(arguments["self"]).shape, arguments["driver"]):
        return _run_kernel(func, arguments)
    if val_of(arguments["self"]).ndim > 2 or val_of(arguments["b"]).ndim != 2:
        raise depends_on_values(f"{func} of a batch")
    return None


def _has_fixed_count(shape: Sequence[Any], driver: str | None) -> bool:
    rows, columns = shape[-2:]
    return rows <= columns or driver in _FIXED_COUNT_DRIVERS


def with_gradients(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[..., Any] | None:
    """Returns a function to call instead of `torch.linalg.lstsq` on trace tensors; None if none is needed."""
    if target is not torch.linalg.lstsq or not args or not isinstance(args[0], ViewedTensor):
        return None
    return None if _has_fixed_count(args[0].storage_view.layout.val.shape, kwargs.get("driver")) else _with_gradients


def _with_gradients(a: Tensor, b: Tensor, *args: Any, **kwargs: Any) -> Any:
    found: Any = torch.linalg.lstsq(a, b, *args, **kwargs)
    if not found.residuals.requires_grad:
        return found
    missed = torch.matmul(a, found.solution.detach()) - b
    squares = (missed.conj() * missed).real if b.is_complex() else missed.square()
    residuals = _Residuals.apply(found.residuals.detach(), squares.sum(-2))
    return type(found)((found.solution, residuals, found.rank, found.singular_values))


class _Residuals(torch.autograd.Function):
    """The first argument, with the derivative of the second, which has all possible residuals."""

    like_operator = True  # like an operator, it returns no gradient if it receives none

    @staticmethod
    def forward(ctx: Any, residuals: Tensor, every: Tensor) -> Tensor:
        ctx.count = every.shape[-1]
        return residuals.view_as(residuals)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        return None, torch.cat([grad, grad.new_zeros([ctx.count - grad.shape[-1]])])


def without_residuals(func: OpOverload, arguments: Mapping[str, Any]) -> tuple[Layout, Layout, Layout]:
    """Returns (solution, rank, singular values)."""
    solution, _, rank, values = _run_kernel(func, arguments)
    return solution, rank, values


def _run_kernel(func: OpOverload, arguments: Mapping[str, Any]) -> tuple[Layout, ...]:
    """Returns the results of the kernel for a matrix of full rank with these sizes."""
    a, b = val_of(arguments["self"]), val_of(arguments["b"])
    if a.symbolic or b.symbolic or a.device != _CPU or b.device != _CPU:
        raise Unsupported(f"{func} of sizes that change", hint="mark_static, or dynamic=False")
    with torch.no_grad():
        matrix = _zeros(a)
        matrix.diagonal(dim1=-2, dim2=-1).fill_(1)
        found = func(matrix, _zeros(b), arguments["rcond"], driver=arguments["driver"])
    return tuple(layout_for(tuple(x.shape), x.dtype, tuple(x.stride()), x.device) for x in found)


def _zeros(val: TensorMeta) -> torch.Tensor:
    return torch.empty_strided(val.shape, val.stride, dtype=val.dtype).zero_()
