"""PyTorch's attention kernels on CUDA (flash, memory-efficient, cuDNN), without dropout.

Forwards return (out, logsumexp of each row), backwards return the gradients, as the prims `attention_*` specify.
PyTorch chose one of the three kernels when the graph was captured. Under max-autotune the other kernels and smelt's
`attention_tiled` are candidates, too: they differ only in the layout of the logsumexp, so forward and backward are
chosen independently.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from smelt.abi.attention import ATTENTIONS, Sums, padded
from smelt.abi.cudnn_attention import cudnn_attention_backward
from smelt.runtime.library import tiled_attention
from smelt.runtime.library.attention_memory import in_words
from smelt.runtime.library.externs import Candidate, Spec, empty_as, register

aten = torch.ops.aten
Params = Mapping[str, Any]
Specs = list[Spec | None]
Forward = Callable[..., tuple[Tensor, Tensor]]
"""Function (q, k, v, bias) -> (out, logsumexp of each row)."""

Backward = Callable[..., tuple[Tensor | None, ...]]
"""Function (grad, q, k, v, bias, out, logsumexp) -> gradients of q, k, v and bias."""

HALF = (torch.float16, torch.bfloat16)

WIDEST = 128
"""Maximum head size that all kernels support."""


def _no_numbers(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns unused seed and offset of dropout, on the device, so that there is no synchronising copy."""
    nothing = torch.empty((), dtype=torch.int64, device=x.device)
    return nothing, nothing


def _repeated(bias: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """Returns the bias expanded to every batch, head and row, without copying."""
    return None if bias is None else bias.expand(*q.shape[:3], k.shape[2])


# -- the kernels


def _flash(params: Params) -> Forward:
    op, causal, scale = aten._scaled_dot_product_flash_attention.default, params["causal"], params["scale"]
    return lambda q, k, v, bias=None: op(q, k, v, 0.0, causal, scale=scale)[:2]


def _flash_backward(params: Params) -> Backward:
    op, causal, scale = aten._scaled_dot_product_flash_attention_backward.default, params["causal"], params["scale"]

    def call(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor, sums: Tensor) -> Any:
        numbers = torch.empty(2, dtype=torch.uint64, device=q.device), _no_numbers(q)[0]
        lengths = q.shape[2], k.shape[2]
        return op(grad, q, k, v, out, sums, None, None, *lengths, 0.0, causal, *numbers, scale=scale)

    return call


def _efficient(params: Params) -> Forward:
    op, sums = aten._scaled_dot_product_efficient_attention.default, params.get("sums", True)
    causal, scale = params["causal"], params["scale"]
    return lambda q, k, v, bias=None: op(q, k, v, _repeated(bias, q, k), sums, 0.0, causal, scale=scale)[:2]


def _efficient_backward(params: Params) -> Backward:
    op, mask = (
        aten._scaled_dot_product_efficient_attention_backward.default,
        params.get("mask", (True, True, True, False)),
    )
    causal, scale = params["causal"], params["scale"]

    def call(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor, sums: Tensor) -> Any:
        bias = _repeated(bias, q, k)
        found = op(grad, q, k, v, bias, out, sums, *_no_numbers(q), 0.0, list(mask), causal, scale=scale)
        return tuple(one if wanted else None for one, wanted in zip(found, mask, strict=True))

    return call


def _cudnn(params: Params) -> Forward:
    op, sums = aten._scaled_dot_product_cudnn_attention.default, params.get("sums", True)
    causal, scale = params["causal"], params["scale"]

    def call(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        out, found, *_ = op(q, k, v, _repeated(bias, q, k), sums, 0.0, causal, scale=scale)
        return out, found if sums else torch.empty(0, dtype=torch.float32, device=q.device)

    return call


def _cudnn_backward(params: Params) -> Backward:
    causal, scale = params["causal"], params["scale"]

    def call(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor, sums: Tensor) -> Any:
        lengths, bias_of_heads = (q.shape[2], k.shape[2]), _repeated(bias, q, k)
        rest = sums, *_no_numbers(q), bias_of_heads, None, None, *lengths, 0.0, causal
        return cudnn_attention_backward(grad, q, k, v, out, *rest, scale=scale)

    return call


FORWARDS: dict[str, Callable[[Params], Forward]] = {"flash": _flash, "efficient": _efficient, "cudnn": _cudnn}
BACKWARDS: dict[str, Callable[[Params], Backward]] = {
    "flash": _flash_backward, "efficient": _efficient_backward, "cudnn": _cudnn_backward,
}  # fmt: skip


# -- alternatives for each kernel


def _stored(sums: Tensor, kind: str, rows: int) -> Tensor:
    """Returns the logsumexp, of shape (batch, heads, rows) and possibly more, in the layout of a kind of kernel."""
    match ATTENTIONS[kind].sums:
        case Sums.ROWS:
            return sums.contiguous()
        case Sums.COLUMN:
            return sums[..., None].contiguous()
        case Sums.PADDED:
            rest = padded(rows) - rows
            return torch.nn.functional.pad(sums, (0, rest), value=math.inf) if rest else sums.contiguous()
        case Sums.BY_ROW:
            raise AssertionError(f"attention_{kind} is no kernel of a GPU")


def _rows(sums: Tensor, kind: str, rows: int) -> Tensor:
    """Returns the logsumexp as (batch, heads, rows): the inverse of `_stored`."""
    return sums[..., 0] if ATTENTIONS[kind].sums is Sums.COLUMN else sums[..., :rows]


def _others(kind: str, params: Params, q: Spec, k: Spec, v: Spec, bias: Spec | None) -> list[str]:
    """Returns the kinds of kernels that may replace this one: their results are the same, with errors of the
    same size.
    """
    if not params.get("measured") or q.dtype not in HALF or params.get("mask", (False,))[-1]:
        return []
    alike = q.shape[:2] == k.shape[:2] and k.shape == v.shape and q.shape[3] == v.shape[3]
    if not alike or q.shape[3] % 8 or q.shape[3] > WIDEST:
        return []
    if params["causal"] and q.shape[2] != k.shape[2]:  # the kernels align causal masks differently
        return []
    known = ("flash", "cudnn", "efficient", "tiled") if bias is None else ("cudnn", "efficient")
    return [other for other in known if other != kind]


def _tiled_params(params: Params, **more: Any) -> dict[str, Any]:
    how = {"causal": params["causal"], "scale": params["scale"], "device": params.get("device")}
    return how | {"dropout": 0.0, "stream": 0, "precision": "tf32"} | more


def _padded(q: Spec) -> Spec:
    """Returns the spec of the logsumexp in the layout of `attention_tiled`."""
    return Spec.in_rows((*q.shape[:2], padded(q.shape[2])), torch.float32)


def _tiled(params: Params, q: Spec, k: Spec, v: Spec, out: Spec) -> Forward:
    (kernel,) = tiled_attention.tiled(_tiled_params(params, sums=True), [q, k, v, None, None], [out, _padded(q)])
    return lambda q, k, v, bias=None: kernel.call(q, k, v, None, None)


def _tiled_backward(params: Params, mask: Sequence[bool], specs: Mapping[str, Any], outputs: list[Spec]) -> Backward:
    grad, q, k, v, out = (specs[name] for name in ("grad", "q", "k", "v", "out"))
    inputs = [grad, q, k, v, None, out, _padded(q), None]
    (kernel,) = tiled_attention.tiled_backward(_tiled_params(params, mask=(*mask, False)), inputs, outputs)
    return lambda grad, q, k, v, bias, out, sums: kernel.call(grad, q, k, v, None, out, sums, None)


def _forward_candidates(kind: str, params: Params, inputs: Specs, outputs: list[Spec]) -> list[Candidate]:
    own = FORWARDS[kind](params)
    q, k, v, bias = (*inputs, None)[:4]
    assert q is not None and k is not None and v is not None
    found = [Candidate("aten", in_words(own, inputs))]
    how = {name: value for name, value in params.items() if name != "sums"}

    def named(other: str) -> Candidate:
        run = _tiled(params, q, k, v, outputs[0]) if other == "tiled" else FORWARDS[other](how)

        def call(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
            out, sums = run(q, k, v, bias)
            if 0 in outputs[1].shape:
                return out, empty_as(outputs[1], q.device)
            return out, _stored(_rows(sums, other, q.shape[2]), kind, q.shape[2])

        return Candidate(other, call if other == "tiled" else in_words(call, inputs))

    return found + [named(other) for other in _others(kind, params, q, k, v, bias)]


ORDER = ("grad", "q", "k", "v", "bias", "out", "sums")
"""Order of the operands of a `Backward`."""


def _in_order(kind: str, run: Backward) -> Callable[..., Any]:
    """Returns a backward as a function of the inputs in the order of a kind."""
    names = ATTENTIONS[kind].gradients_of
    if names == ORDER:
        return run
    positions = [names.index(name) if name in names else None for name in ORDER]
    return lambda *operands: run(*[None if position is None else operands[position] for position in positions])


def _backward_candidates(kind: str, params: Params, inputs: Specs, outputs: list[Spec]) -> list[Candidate]:
    specs: dict[str, Any] = dict(zip(ATTENTIONS[kind].gradients_of, inputs, strict=True))
    wanted = tuple(params.get("mask", (True, True, True)))
    how = {name: value for name, value in params.items() if name != "mask"}

    def named(other: str) -> Backward:
        if other == "tiled":
            run = _tiled_backward(params, wanted[:3], specs, outputs)
        else:
            run = BACKWARDS[other](how)

        def call(
            grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor, sums: Tensor
        ) -> tuple[Tensor | None, ...]:
            gradients = run(grad, q, k, v, bias, out, _stored(_rows(sums, kind, q.shape[2]), other, q.shape[2]))
            made = (one if asked else None for one, asked in zip(gradients[:3], wanted[:3], strict=True))
            return (*made, *(None for _ in wanted[3:]))

        return call

    def in_order(name: str, run: Backward) -> Callable[..., Any]:
        call = _in_order(kind, run)
        return call if name == "tiled" else in_words(call, inputs)

    others = _others(kind, params, specs["q"], specs["k"], specs["v"], specs.get("bias"))
    found = [("aten", BACKWARDS[kind](params)), *((other, named(other)) for other in others)]
    return [Candidate(name, in_order(name, run)) for name, run in found]


for _kind in FORWARDS:
    for _name, _candidates in ((_kind, _forward_candidates), (f"{_kind}_backward", _backward_candidates)):
        register(f"attention_{_name}", on_device=True, measured=True)(functools.partial(_candidates, _kind))
