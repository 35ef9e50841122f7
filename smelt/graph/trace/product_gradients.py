"""The derivative of `torch.prod` on trace tensors: eager's formula counts the zeros of the input, which needs values.

The formula that PyTorch traces instead never reads the result. Both agree for an input that is unchanged. For an input
that was written since (`x.data`, NumPy), eager's gradient combines the former result and the new elements, as does the
formula of this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Dims = int | None


def has_gradients(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether `prod` with these arguments records a derivative that reads values."""
    x = args[0] if args else kwargs["input"]
    if not (x.requires_grad and torch.is_grad_enabled()) or not x.dim():
        return False
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    dtype = kwargs.get("dtype")
    floating = dtype is None or dtype.is_floating_point or dtype.is_complex
    return floating and "out" not in kwargs and (dim is None or type(dim) is int)


def prod(
    input: torch.Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Compute `torch.prod` of a trace tensor, with a derivative that reads the result wherever eager's does."""
    product: torch.Tensor = _Product.apply(input, dim, keepdim, dtype)
    return product


class _Product(torch.autograd.Function):
    like_operator = True  # like an operator, it returns no gradient if it receives none

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: Dims, keepdim: bool, dtype: torch.dtype | None) -> torch.Tensor:
        result = torch.prod(x, dtype=dtype) if dim is None else torch.prod(x, dim, keepdim, dtype=dtype)
        ctx.save_for_backward(x, result)
        ctx.dim, ctx.keepdim = dim, keepdim
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,), (x, result) = grads, ctx.saved_tensors
        x = x.to(grad.dtype)
        if ctx.dim is not None and not ctx.keepdim:
            grad, result = grad.unsqueeze(ctx.dim), result.unsqueeze(ctx.dim)
        if not x.numel():
            return grad * (result / x).conj(), None, None, None
        zeros = (x == 0).sum()
        # a quotient by 0 would itself have a derivative
        nonzero = grad * (result / torch.where(zeros == 0, x, 1)).conj()
        if ctx.dim is None:
            others = torch.where(zeros > 1, 0, _of_others(grad, x.reshape(-1), 0).reshape(x.shape))
        else:
            others = _of_others(grad, x, ctx.dim)
        return torch.where(zeros == 0, nonzero, others), None, None, None


def _of_others(grad: torch.Tensor, x: torch.Tensor, dim: int) -> torch.Tensor:
    """Returns for each element the gradient times the product of all other elements."""
    count = x.shape[dim]
    if count == 1:
        return grad.expand(x.shape)
    one = torch.ones_like(x.narrow(dim, 0, 1))
    before = torch.cat([one, x.narrow(dim, 0, count - 1)], dim).cumprod(dim)
    behind = torch.cat([one, x.narrow(dim, 1, count - 1).flip(dim)], dim).cumprod(dim).flip(dim)
    return grad * (before * behind).conj()
