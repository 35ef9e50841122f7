"""Aligns operands to words of 16 bytes for kernels that read them many times.

The libraries' attention kernels also need aligned rows, and PyTorch does not check this for them: one refuses the call
("query is not correctly aligned (strideM)"), others fail on the GPU, which ends the context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from smelt.abi.arena import extent
from smelt.abi.kernel_source import ALIGNMENT
from smelt.runtime import _native
from smelt.runtime.library.externs import Spec


def in_words(call: Callable[..., Any], specs: Sequence[Spec | None]) -> Callable[..., Any]:
    """Returns `call`, extended to operands of any alignment; its first operand is a query or a gradient.

    An operand whose strides leave heads or rows unaligned is copied at each call; another operand is copied only in
    calls in which its address is unaligned.
    """
    (first, *_) = specs
    scattered = [spec is not None and first is not None and _scattered(spec, first) for spec in specs]
    run = from_words(call)
    if not any(scattered):
        return run

    def in_rows(*tensors: Tensor | None) -> Any:
        pairs = zip(tensors, scattered, strict=False)
        return run(*(_gathered(t) if t is not None and apart else t for t, apart in pairs))

    return in_rows


def from_words(call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `call` for tensors of any alignment: those that are not aligned to a word are copied."""

    def run(*tensors: Tensor | None) -> Any:
        return call(*at_words(*tensors))

    return run


def at_words(*tensors: Any) -> tuple[Any, ...]:
    """Returns the tensors (or None), with copies of those that are not aligned to a word."""
    if _native.aligned(*tensors):
        return tensors
    return tuple(None if tensor is None else _moved(tensor) for tensor in tensors)


def _scattered(spec: Spec, like: Spec) -> bool:
    """Whether rows are not contiguous or not aligned to words; False for the logsumexp."""
    if len(spec.shape) != 4 or 0 in spec.shape or spec.dtype is not like.dtype:
        return False
    *steps, last = (step for size, step in zip(spec.shape, spec.stride, strict=True))
    used = (step for size, step in zip(spec.shape, steps, strict=False) if size > 1)
    return (last != 1 and spec.shape[-1] > 1) or any(step * spec.dtype.itemsize % ALIGNMENT for step in used)


def _gathered(tensor: Tensor) -> Tensor:
    """Returns a copy whose rows are aligned to words; dimensions of stride 0 keep that stride."""
    once = tensor[tuple(slice(1) if step == 0 else slice(None) for step in tensor.stride()[:-1])]
    width = once.shape[-1]
    memory = once.new_empty((*once.shape[:-1], width + -width % (ALIGNMENT // once.dtype.itemsize)))
    return memory[..., :width].copy_(once).expand(tensor.shape)


def _moved(tensor: Tensor) -> Tensor:
    """Returns the tensor if its address is aligned to a word, else an aligned copy with the same strides."""
    if _native.aligned(tensor):
        return tensor
    shape, stride = tensor.shape, tensor.stride()
    memory = tensor.as_strided((extent(shape, stride),), (1,)).clone()
    return memory.as_strided(shape, stride)
