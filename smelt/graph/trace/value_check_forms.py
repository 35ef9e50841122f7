"""Torch functions whose C++ code reads values (to check, warn or choose a formula), in a form without such reads.

If eager checks the values, the graph checks them as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.graph.ir.storage_view import ViewedTensor
from smelt.graph.ir.sym_bool import SymbolicPredicate, compare
from smelt.graph.ir.symint import from_torch
from smelt.graph.trace import product_gradients


def in_checked_form(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
    """Returns the function to call instead of the torch function or method of this name; None if no other form is
    needed.
    """
    form = _FORMS.get(name)
    if form is None:
        return None
    tensor = args[0] if args else kwargs.get("input")
    return form[1] if isinstance(tensor, ViewedTensor) and form[0](args, kwargs) else None


def _require(condition: torch.Tensor, text: str) -> None:
    """Require that the condition, a tensor of one element, is true; the graph raises the error."""
    number = from_torch(condition.to(torch.int64).item())
    question = compare("<", number, 1, True)
    if not isinstance(question, SymbolicPredicate):
        if not question:
            raise RuntimeError(text)
    elif not question.expect(text, "RuntimeError"):
        question.ask()


def _cov(
    x: torch.Tensor,
    *,
    correction: int = 1,
    fweights: torch.Tensor | None = None,
    aweights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute `torch.cov` with weights, in the order of operations of PyTorch
    (aten/src/ATen/native/Correlation.cpp).
    """
    rows = x.reshape(1, -1) if x.dim() < 2 else x
    count = rows.shape[1]
    weightings = [(name, w) for name, w in (("fweights", fweights), ("aweights", aweights)) if w is not None]
    fits = all(w.dim() <= 1 and w.numel() == count and _FLOATING[name] == _is_floating(w) for name, w in weightings)
    if not fits or x.dim() > 2 or not count:
        return torch.cov(x, correction=correction, fweights=fweights, aweights=aweights)  # raises the error
    for name, w in weightings:
        _require(w.detach().min() >= 0, f"cov(): {name} cannot be negative")
    weights = weightings[0][1] if len(weightings) == 1 else weightings[0][1] * weightings[1][1]
    total = weights.sum()
    _require(total.detach() != 0, "cov(): weights sum to zero, can't be normalized")
    centred = rows - ((rows * weights).sum(1) / total).unsqueeze(1)
    freedom = total - correction
    if aweights is not None and correction != 0:
        freedom = total - correction * (weights * aweights).sum() / total
    freedom = torch.where(freedom <= 0, 0, freedom)
    return torch.true_divide(centred @ (centred * weights).t().conj(), freedom).squeeze()


_FLOATING = {"fweights": False, "aweights": True}


def _is_floating(x: torch.Tensor) -> bool | None:
    """Whether the tensor contains floating point numbers; None if it contains neither those nor integers."""
    if x.dtype.is_complex or x.dtype is torch.bool:
        return None
    return x.dtype.is_floating_point


def _has_weights(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return kwargs.get("fweights") is not None or kwargs.get("aweights") is not None


def _index_fill(x: torch.Tensor, dim: int, index: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Compute `index_fill` by a mask: the formula of its derivative needs `unique` indices, and a mask has each
    once.
    """
    shape = x.shape if x.dim() else [1]
    chosen = torch.zeros(shape[dim], dtype=torch.bool, device=x.device).index_fill(0, index, True)
    chosen = chosen.reshape([-1 if d == dim % len(shape) else 1 for d in range(len(shape))])
    return torch.where(chosen if x.dim() else chosen.reshape([]), value.to(x.dtype), x)


def _index_fill_(x: torch.Tensor, dim: int, index: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return x.copy_(_index_fill(x, dim, index, value))


def _fills_with_history(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    value = kwargs.get("value", args[3] if len(args) > 3 else None)
    return isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled() and value.dim() == 0


_FORMS: dict[str, tuple[Callable[[Sequence[Any], dict[str, Any]], bool], Callable[..., Any]]] = {
    "cov": (_has_weights, _cov),
    "index_fill": (_fills_with_history, _index_fill),
    "index_fill_": (_fills_with_history, _index_fill_),
    "prod": (product_gradients.has_gradients, product_gradients.prod),
}
