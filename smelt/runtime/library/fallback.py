"""Externs whose only implementation is ATen's: attention, sorts, scans, and any ATen overload by name."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt.abi.attention import ATTENTIONS
from smelt.abi.fake_kernels import OF_TORCH, check_results, in_same_order, is_of_torch
from smelt.abi.kernels import BINDINGS, KERNELS
from smelt.base.errors import CompileError
from smelt.base.python_text import arguments
from smelt.base.torch_private import address_of_storage, schema_of
from smelt.runtime.library.attention_memory import in_words
from smelt.runtime.library.externs import EXTERNS, Candidate, Spec, register
from smelt.runtime.memory import empty_strided

aten = torch.ops.aten
Call = Callable[..., Any]
ON_CPU = ATTENTIONS["cpu"]


@dataclass(frozen=True)
class Slot:
    """A reference to input number `index` in the `args` and `kwargs` of an ATen overload."""

    index: int


def _only(bind: Callable[[Mapping[str, Any]], Call]) -> Callable[..., list[Candidate]]:
    def candidates(params: Mapping[str, Any], inputs: list[Spec | None], outputs: list[Spec]) -> list[Candidate]:
        return [Candidate("aten", bind(params))]

    return candidates


def _attention(op: Call, tensors: Sequence[str]) -> Callable[[Mapping[str, Any]], Call]:
    """Returns the factory of the library's attention for CPUs. `tensors`: names of its operands, of which the bias may
    be missing.
    """
    assert tensors[-1] == "bias"
    first = len(tensors) - 1

    def bind(p: Mapping[str, Any]) -> Call:
        dropout, causal, scale = p["dropout"], p["causal"], p["scale"]

        def call(*given: torch.Tensor | None) -> Any:
            bias = given[first] if len(given) > first else None
            return op(*given[:first], dropout, causal, attn_mask=bias, scale=scale)

        return call

    return bind


def _sort(p: Mapping[str, Any]) -> Call:
    dim, descending, stable = p["dim"], p["descending"], p["stable"]
    return lambda x: tuple(torch.sort(x, dim=dim, descending=descending, stable=stable))


def _topk(p: Mapping[str, Any]) -> Call:
    k, dim, largest, ordered = p["k"], p["dim"], p["largest"], p["ordered"]
    return lambda x: tuple(torch.topk(x, k, dim, largest, ordered))


def _scan(function: Call) -> Callable[[Mapping[str, Any]], Call]:
    def bind(p: Mapping[str, Any]) -> Call:
        dim = p["dim"]
        return lambda x: function(x, dim, dtype=x.dtype)

    return bind


def _max_pool(p: Mapping[str, Any]) -> Call:
    kernel, stride, padding, dilation, ceil = (p[n] for n in ("kernel", "stride", "padding", "dilation", "ceil"))
    op = aten.max_pool2d_with_indices.default
    return lambda x: op(x, kernel, stride, padding, dilation, ceil)


def _avg_pool(p: Mapping[str, Any]) -> Call:
    names = ("kernel", "stride", "padding", "ceil", "count_padding", "divisor")
    kernel, stride, padding, ceil, count_padding, divisor = (p[n] for n in names)
    op = aten.avg_pool2d.default
    return lambda x: op(x, kernel, stride, padding, ceil, count_padding, divisor)


for _name, _bind in {
    "attention_cpu": _attention(aten._scaled_dot_product_flash_attention_for_cpu.default, ON_CPU.tensors),
    "attention_cpu_backward": _attention(
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default, ON_CPU.gradients_of
    ),
    "sort": _sort,
    "topk": _topk,
    "cumsum": _scan(torch.cumsum),
    "cumprod": _scan(torch.cumprod),
    "max_pool2d": _max_pool,
    "avg_pool2d": _avg_pool,
}.items():
    EXTERNS[_name] = _only(_bind)


@register("max_pool2d_backward")
def max_pool2d_backward(params: Mapping[str, Any], inputs: list[Spec | None], outputs: list[Spec]) -> list[Candidate]:
    """Returns the candidates for (grad, indices) -> the gradient of the pooled tensor; the kernel reads only that
    tensor's shape and layout.
    """
    windows = [params[n] for n in ("kernel", "stride", "padding", "dilation")]
    (out,), grad = outputs, inputs[0]
    assert grad is not None
    op, ceil = aten.max_pool2d_with_indices_backward.default, _rounded_up(out.shape[-2:], grad.shape[-2:], *windows)

    def call(grad: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return op(grad, empty_strided(out.shape, out.stride, out.dtype, grad.device), *windows, ceil, indices)

    return [Candidate("aten", call)]


def _rounded_up(sizes: Any, counts: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> bool:
    """Returns the kernel's `ceil_mode` argument: whether the result has more windows than fit completely."""
    each = zip(sizes, counts, kernel, stride, padding, dilation, strict=True)
    return any((n + 2 * p - d * (k - 1) - 1) // s + 1 < count for n, count, k, s, p, d in each)


@register("avg_pool2d_backward")
def avg_pool2d_backward(params: Mapping[str, Any], inputs: list[Spec | None], outputs: list[Spec]) -> list[Candidate]:
    """Returns the candidates for grad -> the gradient of the pooled tensor; the kernel reads only that tensor's shape
    and layout.

    PyTorch's channels-last kernel on CUDA gives wrong numbers for overlapping windows (2.11: relative error 1 for
    32x512x14x14, windows of 3, stride 2), so on CUDA the other kernel runs and its result is converted. Strides of
    dimensions of size 1 also decide which kernel runs.
    """
    names = ("kernel", "stride", "padding", "ceil", "count_padding", "divisor")
    options, (out,) = [params[n] for n in names], outputs
    op, rows = aten.avg_pool2d_backward.default, out == Spec.in_rows(out.shape, out.dtype)

    def call(grad: torch.Tensor) -> torch.Tensor:
        like = empty_strided(out.shape, out.stride, out.dtype, grad.device)
        if grad.is_cuda and not rows:
            return like.copy_(op(grad, grad.new_empty(out.shape), *options))
        return op(grad, like, *options)

    return [Candidate("aten", call)]


WITH_LINE: dict[str, Call] = {}
"""For overloads of this table, the function that runs instead on tensors of the CPU; it gets the user's line first."""


@register("aten")
def overload(params: Mapping[str, Any], inputs: list[Spec | None], outputs: list[Spec]) -> list[Candidate]:
    """Returns the candidate for any ATen overload, `params["overload"]` = "aten.name.overload", with `args`/`kwargs`
    that contain Slots.
    """
    namespace, name, variant = params["overload"].split(".")
    try:
        op = getattr(getattr(getattr(torch.ops, namespace), name), variant)
    except AttributeError as error:
        raise CompileError(f"torch has no operator {params['overload']}") from error
    args, kwargs = params.get("args"), params.get("kwargs", {})
    if args is None:
        args = tuple(Slot(i) for i in range(len(inputs)))
    own = WITH_LINE.get(params["overload"])
    if own is not None and set(params["devices"]) == {"cpu"}:
        return [Candidate("own", _call_with(functools.partial(own, params.get("line", "")), args, kwargs))]
    call = _call_with(KERNELS.get(op, BINDINGS.get(op, op)), args, kwargs)
    if namespace == "aten" and _ATTENTION.match(name):
        return [Candidate("aten", in_words(call, inputs))]
    if namespace in OF_TORCH:  # torch's operators return views of arguments only if their schemas say so
        return [Candidate("aten", call)]
    run = call
    if not is_of_torch(params["overload"]):
        run = _checked_against_fake(params["overload"], call, inputs, outputs, params["devices"])
    return [Candidate("aten", run if _shows_arguments(op) else _in_new_memory(run))]


_ATTENTION = re.compile(r"_(scaled_dot_product_)?(flash|efficient|cudnn)_attention(_forward|_backward)?$")
"""Names of ATen's attention kernels for GPUs."""


def _shows_arguments(op: Any) -> bool:
    return any(result.alias_info is not None for result in schema_of(op).returns)


def _checked_against_fake(
    name: str, call: Call, inputs: list[Spec | None], outputs: list[Spec], devices: Sequence[str]
) -> Call:
    """Returns `call` with a check that results have the shapes and types of the registered fake kernel, for which the
    rest of the program was compiled.

    Raises:
        WrongFake: (when called) shapes or types differ.
    """

    def run(*tensors: Any) -> Any:
        in_order = all(s is None or t is None or in_same_order(t, s) for t, s in zip(tensors, inputs, strict=False))
        result = call(*tensors)
        check_results(name, result, outputs, devices, in_order)
        return result

    return run


def _in_new_memory(call: Call) -> Call:
    """Returns `call` with results in new memory: an operator of a user's library may return its arguments."""

    def run(*tensors: Any) -> Any:
        result = call(*tensors)
        given = {
            address_of_storage(t.untyped_storage()) for t in tensors if t is not None and t.layout is torch.strided
        }

        def own(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return tuple(map(own, value))
            if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
                return value
            return value.clone() if address_of_storage(value.untyped_storage()) in given else value

        return own(result)

    return run


def _call_with(op: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    """Returns a function of the input tensors, generated as source once, so that calls do not substitute slots."""
    constants: list[Any] = []

    def text(value: Any) -> str:
        match value:
            case Slot(index):
                return f"t[{index}]"
            case list() | tuple() if len(value) > 1 and all(isinstance(v, Slot) for v in value):
                first, last = value[0].index, value[-1].index
                # a thousand lookups would take longer than the concatenation
                if [v.index for v in value] == list(range(first, last + 1)):
                    return f"t[{first}:{last + 1}]"
                return f"({', '.join(f't[{v.index}]' for v in value)})"
            case list() | tuple():
                inner = "".join(f"{text(item)}, " for item in value)
                return f"[{inner}]" if isinstance(value, list) else f"({inner})"
            case _:
                constants.append(value)
                return f"c[{len(constants) - 1}]"

    words = arguments(map(text, args), [(name, text(value)) for name, value in kwargs.items()])
    scope: dict[str, Any] = {"op": op, "c": constants}
    exec(f"def call(*t):\n    return op({words})\n", scope)
    return scope["call"]
