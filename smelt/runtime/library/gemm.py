"""Matrix products: ATen (on CPUs MKL), oneDNN's linear, and smelt's kernel (native/products/gemm.c), timed per shape.

On processors for which MKL has no tuned path (AMD), oneDNN and smelt's kernel run fp32 products at more than twice the
speed of `torch.mm`. Smelt's kernel writes into a given tensor, takes any strides and needs no allocation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from smelt.runtime import _native
from smelt.runtime.library.externs import Candidate, Spec, register
from smelt.runtime.memory import fresh
from smelt.runtime.tuned import LIBRARY

DECLARATION = """\
typedef struct {
    long long batch, m, n, k;
    long long a_batch, a_row, a_column, b_batch, b_row, b_column, c_batch, c_row, c_column;
    long long accumulate, bias_column, bias_row;
} smelt_gemm;
typedef void (*smelt_sgemm)(const smelt_gemm *, const float *a, const float *b, float *c, const float *bias);
"""
"""C declarations with which generated code calls the native product by its address: `smelt_gemm` and `smelt_sgemm` of
native/products/gemm.h. Call it outside parallel regions; strides count elements; bias may be NULL."""

address = _native.sgemm_address
"""Address of the native product, a `smelt_sgemm`."""


@register("mm")
def mm(params: Mapping[str, Any], inputs: list[Spec | None], outputs: list[Spec]) -> list[Candidate]:
    """Returns the candidates for a[m, k] @ b[k, n]."""
    a, b = _operands(inputs)
    return _candidates(a, b, outputs[0], torch.mm)


@register("bmm")
def bmm(params: Mapping[str, Any], inputs: list[Spec | None], outputs: list[Spec]) -> list[Candidate]:
    """Returns the candidates for a[batch, m, k] @ b[batch, k, n]."""
    a, b = _operands(inputs)
    return _candidates(a, b, outputs[0], torch.bmm)


@register("addmm")
def addmm(params: Mapping[str, Any], inputs: list[Spec | None], outputs: list[Spec]) -> list[Candidate]:
    """Returns the candidates for beta * x + alpha * a[m, k] @ b[k, n], given a, b and x."""
    return [_with_term(torch.addmm, params)]


@register("baddbmm")
def baddbmm(params: Mapping[str, Any], inputs: list[Spec | None], outputs: list[Spec]) -> list[Candidate]:
    """Returns the candidates for beta * x + alpha * a[batch, m, k] @ b[batch, k, n], given a, b and x."""
    return [_with_term(torch.baddbmm, params)]


def _with_term(function: Any, params: Mapping[str, Any]) -> Candidate:
    beta, alpha = params["beta"], params["alpha"]

    def call(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return function(x, a, b, beta=beta, alpha=alpha)

    def into(result: torch.Tensor, a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return function(x, a, b, beta=beta, alpha=alpha, out=result)

    return Candidate("aten", call, into)


def _operands(inputs: list[Spec | None]) -> tuple[Spec, Spec]:
    a, b = inputs
    assert a is not None and b is not None
    return a, b


def _candidates(a: Spec, b: Spec, out: Spec, function: Any) -> list[Candidate]:
    aten = _aten(out, function)
    if a.dtype is not torch.float32:
        return [aten]
    own = _own(a, b, out, certain=a.shape[-1] * out.shape[-1] * out.shape[-2] <= LIBRARY.untimed_multiplications)
    onednn = [_onednn()] if len(a.shape) == 2 and torch.backends.mkldnn.is_available() else []
    return [own, *onednn, aten]  # first, so that it wins ties: it needs no allocation


def _aten(out: Spec, function: Any) -> Candidate:
    def into(result: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return function(a, b, out=result)

    return Candidate("aten", function, into)


def _onednn() -> Candidate:
    linear = torch.ops.mkldnn._linear_pointwise.default

    def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return linear(a, b.t(), None, "none", [], "")  # linear computes x @ w.T

    return Candidate("onednn", call)


def _own(a: Spec, b: Spec, out: Spec, certain: bool) -> Candidate:
    """Returns the native kernel bound to these strides."""
    run = _native.Gemm(a.shape, a.stride, b.shape, b.stride, out.stride)
    make = fresh(out.shape, out.stride, out.dtype)

    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return run(make(), x, y)

    return Candidate("own", call, run, certain)
