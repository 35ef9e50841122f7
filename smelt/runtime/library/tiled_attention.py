"""Smelt's attention kernels, for `attention_tiled`: chooses text, blocks and arguments.

The text is in `attention_source`. Sizes and strides are arguments, so one kernel serves all sizes of a kind; separate
kernels are built by alignment, head size, and whether blocks divide the lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from smelt.abi.attention import PADDED_ROWS, padded
from smelt.abi.kernel_source import Config, KernelSource, ceil_power
from smelt.abi.random_source import key_step
from smelt.base.imports import late
from smelt.runtime.launch import Table
from smelt.runtime.library.attention_memory import from_words
from smelt.runtime.library.attention_source import attention_source
from smelt.runtime.library.externs import Candidate, Spec, empty_as, register

if TYPE_CHECKING:
    from smelt.runtime.triton.kernels import Kernels, Segment
    from smelt.runtime.triton.plan import Argument, Launch
else:
    Kernels = late("smelt.runtime.triton.kernels", "Kernels")

Params = Mapping[str, Any]
Specs = list[Spec | None]

ALIGNED = 16
"""Alignment of wide loads in bytes, and the divisor of strides (in elements) that is declared to Triton."""

SHORTEST = 16
"""Minimum side of a product's operand, in elements."""

_POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.int64: "*i64"}


@dataclass(frozen=True)
class Blocks:
    """Rows and columns of a program's block of scores, its number of warps, and its pipeline stages."""

    rows: int
    columns: int
    warps: int
    stages: int


BLOCKS: dict[tuple[str, bool, bool], Blocks] = {
    ("forward", True, False): Blocks(128, 32, 8, 2),
    ("forward", True, True): Blocks(64, 32, 4, 2),
    ("forward", False, False): Blocks(64, 64, 4, 3),
    ("forward", False, True): Blocks(128, 64, 8, 3),
    ("by_rows", True, False): Blocks(64, 32, 4, 2),
    ("by_rows", True, True): Blocks(64, 32, 4, 2),
    ("by_rows", False, False): Blocks(64, 64, 4, 2),
    ("by_rows", False, True): Blocks(64, 64, 4, 2),
    ("by_columns", True, False): Blocks(32, 64, 4, 2),
    ("by_columns", True, True): Blocks(16, 64, 4, 2),
    ("by_columns", False, False): Blocks(64, 64, 4, 2),
    ("by_columns", False, True): Blocks(64, 64, 8, 2),
}
"""Blocks by (kernel, whether elements have 32 bits, whether heads are wider than 64).

Chosen by ptxas's reports for Hopper: no register is spilled, and two or three blocks fit on a multiprocessor, which
hides the latency of moving transposed operands of TF32 products through registers.
"""


class Sizes:
    """Properties that all kernels of a call share: lengths, head sizes, layouts of operands."""

    def __init__(self, params: Params, q: Spec, k: Spec, v: Spec, bias: Spec | None) -> None:
        self.batch, self.heads, self.rows, self.width = q.shape
        self.columns, self.width_v = k.shape[2], v.shape[3]
        self.params, self.dtype, self.bias = params, q.dtype, bias
        scale, self.dropout = params["scale"], params["dropout"]
        self.scale = self.width**-0.5 if scale is None else float(scale)
        self.pairs = self.batch * self.heads
        self.padded = padded(self.rows)

    def blocks(self, name: str) -> Blocks:
        """Returns the blocks of a kernel, reduced to the lengths."""
        wide = max(self.width, self.width_v) > 64
        found = BLOCKS[name, self.dtype is torch.float32, wide]
        least = PADDED_ROWS if name == "forward" else SHORTEST  # the last block writes all padded rows of the logsumexp
        rows, columns = min(found.rows, _power(self.rows, least)), min(found.columns, _power(self.columns))
        return Blocks(rows, columns, found.warps if rows * columns >= 2048 else 4, found.stages)

    def constants(self, blocks: Blocks) -> dict[str, int]:
        rows = 0 if self.bias is None else 1 if self.bias.stride[2] == 0 or self.bias.shape[2] == 1 else 2
        return {
            "D": self.width, "DV": self.width_v, "BLOCK_D": _power(self.width), "BLOCK_V": _power(self.width_v),
            "CAUSAL": int(self.params["causal"]), "BIAS": rows, "DROP": int(self.dropout > 0),
            "WIDE": int(self.pairs * self.rows * self.columns > 2**32),
            "WHOLE_M": int(self.rows % blocks.rows == 0), "WHOLE_N": int(self.columns % blocks.columns == 0),
            "BLOCK_M": blocks.rows, "BLOCK_N": blocks.columns,
        }  # fmt: skip

    def text(self, name: str) -> str:
        return attention_source(name, self.scale, 1.0 - self.dropout, self.params["precision"])

    def numbers(self) -> dict[str, int]:
        """Returns the arguments of every kernel; the last is added to the seed."""
        step = key_step(self.params["stream"]) if self.dropout else 0
        sizes = {"heads": self.heads, "rows": self.rows, "columns": self.columns, "padded": self.padded}
        return sizes | {"step": step}


def _power(size: int, least: int = SHORTEST) -> int:
    """Returns the smallest power of two that is at least `size` and `least`."""
    return max(least, ceil_power(size))


class AttentionKernel:
    """One kernel with the layouts of its arguments: `kernel(device, tensors)` launches it on the current stream.

    Args:
        operands: layout of each pointer by name, in order; None: the operand is absent, and another operand's pointer
            is passed.
        laid_out: the letter with which the names of an operand's strides begin, by operand; the strides of batch, head
            and row are arguments of the kernel.
        extra: constants that only this kernel has.
    """

    def __init__(
        self,
        name: str,
        sizes: Sizes,
        operands: Mapping[str, Spec | None],
        laid_out: Mapping[str, str],
        extra: Mapping[str, int],
        blocks: Blocks | None = None,
    ) -> None:
        self.name, self.sizes, self.blocks = name, sizes, blocks or sizes.blocks(name)
        self.operands, self.laid_out = operands, laid_out
        shared = self.blocks.columns if name == "by_columns" else self.blocks.rows
        self.programs = -(-(sizes.columns if name == "by_columns" else sizes.rows) // shared) * sizes.pairs
        self.numbers = sizes.numbers() | self._strides()
        self.constants = sizes.constants(self.blocks) | dict(extra) | self._steps()
        self.segments: dict[torch.device, Segment] = {}

    def _strides(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for operand, letter in self.laid_out.items():
            spec = self.operands[operand]
            row = "n" if operand in ("k", "v", "dk", "dv") else "m"
            strides = (0, 0, 0) if spec is None else _canonical_strides(spec)[:3]
            found |= dict(zip((letter + "b", letter + "h", letter + row), strides, strict=True))
        return found

    def _steps(self) -> dict[str, int]:
        """Returns the strides along the last dimension, as constants; mostly 1."""
        found = {}
        for operand, letter in self.laid_out.items():
            spec = self.operands[operand]
            found["BN" if letter == "b" else letter.upper() + "D"] = 1 if spec is None else _canonical_strides(spec)[3]
        return found

    def source(self) -> KernelSource:
        """Returns the source of the kernel."""
        pointers = [(name, _POINTERS[self._stand_in(name, spec)]) for name, spec in self.operands.items()]
        integers = [(name, "i64" if self._is_long(name) else "i32") for name in self.numbers]
        divisible = [name for name, number in self.numbers.items() if number % ALIGNED == 0 and name != "step"]
        divisible += self.operands
        config = Config(tuple(self.constants.items()), self.blocks.warps, self.blocks.stages)
        label = f"attention_{self.name}"
        text, signature = self.sizes.text(self.name), (*pointers, *integers)
        return KernelSource(text, signature, tuple(divisible), (config,), label, contract=True)

    def _stand_in(self, name: str, spec: Spec | None) -> torch.dtype:
        return spec.dtype if spec is not None else torch.int64 if name == "seed" else self.sizes.dtype

    def _is_long(self, name: str) -> bool:
        """Whether offsets within a head may need 64 bits; offsets of heads and batches always have 64."""
        if name == "step" or name[1:] in ("b", "h"):
            return True
        length = max(self.sizes.rows, self.sizes.columns)
        return len(name) == 2 and self.numbers[name] * length >= 2**31

    def segment(self, device: torch.device) -> Segment:
        known = self.segments.get(device)
        if known is None:
            pointers: list[Argument] = [(slot, 0) for slot in range(len(self.operands))]
            launch: Launch = (0, ((self.programs, None),), [*pointers, *self.numbers.values()])
            known = self.segments[device] = Kernels([self.source()], device).segment([launch])
        return known

    def __call__(self, tensors: Sequence[Tensor | None]) -> None:
        first = tensors[0]
        assert first is not None
        filled = [first if tensor is None else tensor for tensor in tensors]
        table = Table(len(filled))
        for slot, tensor in enumerate(filled):
            table.bind(slot, tensor)
        self.segment(first.device)(table)


def _canonical_strides(spec: Spec) -> tuple[int, ...]:
    """Returns the strides, with 0 for dimensions of one element: unused strides must not cause another build."""
    pairs = enumerate(zip(spec.shape, spec.stride, strict=True))
    return tuple(0 if size == 1 and d < 3 else step for d, (size, step) in pairs)


def forward_kernel(params: Params, inputs: Specs, outputs: Specs, blocks: Blocks | None = None) -> AttentionKernel:
    """Returns the forward kernel, whose operands are q, k, v, bias, seed, out and sums."""
    q, k, v, bias, seed = inputs
    assert q is not None and k is not None and v is not None
    sizes = Sizes(params, q, k, v, bias)
    operands = dict(zip("q k v bias seed out sums".split(), (q, k, v, bias, seed, *outputs), strict=True))
    letters = {"q": "q", "k": "k", "v": "v", "out": "o", "bias": "b"}
    return AttentionKernel("forward", sizes, operands, letters, {"SUMS": int(params["sums"])}, blocks)


@register("attention_tiled", on_device=True)
def tiled(params: Params, inputs: Specs, outputs: list[Spec]) -> list[Candidate]:
    kernel = forward_kernel(params, inputs, list(outputs))
    _begin(params, [kernel])

    def call(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, seed: Tensor | None) -> tuple[Tensor, Tensor]:
        out, sums = (empty_as(spec, q.device) for spec in outputs)
        kernel((q, k, v, bias, seed, out, sums))
        return out, sums

    return [Candidate("triton", from_words(call))]  # keys and values are read many times, so aligned copies are cheap


def rows_kernel(params: Params, inputs: Specs, results: Specs, blocks: Blocks | None = None) -> AttentionKernel:
    """Returns the kernel that walks the columns, whose operands are grad, q, k, v, bias, seed, out, sums, deltas, dq
    and dbias.
    """
    grad, q, k, v, bias, out, sums, seed = inputs
    assert q is not None and k is not None and v is not None
    sizes = Sizes(params, q, k, v, bias)
    dq, _, _, dbias = results
    specs = (grad, q, k, v, bias, seed, out, sums, _deltas(q), dq, dbias)
    operands = dict(zip("grad q k v bias seed out sums deltas dq dbias".split(), specs, strict=True))
    letters = {"grad": "g", "q": "q", "k": "k", "v": "v", "out": "o", "bias": "b", "dq": "r"}
    return AttentionKernel("by_rows", sizes, operands, letters, {"SCORES": int(dbias is not None)}, blocks)


def columns_kernel(params: Params, inputs: Specs, results: Specs, blocks: Blocks | None = None) -> AttentionKernel:
    """Returns the kernel that walks the rows, whose operands are grad, q, k, v, bias, seed, sums, deltas, dk and dv."""
    grad, q, k, v, bias, _, sums, seed = inputs
    assert q is not None and k is not None and v is not None
    sizes = Sizes(params, q, k, v, bias)
    specs = (grad, q, k, v, bias, seed, sums, _deltas(q), *results[1:3])
    operands = dict(zip("grad q k v bias seed sums deltas dk dv".split(), specs, strict=True))
    letters = {"grad": "g", "q": "q", "k": "k", "v": "v", "bias": "b", "dk": "r", "dv": "s"}
    return AttentionKernel("by_columns", sizes, operands, letters, {}, blocks)


def _deltas(q: Spec) -> Spec:
    """Returns the spec of the sums of out * grad over each row."""
    return Spec.in_rows(q.shape[:3], torch.float32)


def gradient_specs(params: Params, inputs: Specs, outputs: Sequence[Spec]) -> Specs:
    """Returns the layouts of the gradients of q, k, v and bias; the first three even if they are not requested."""
    wanted = iter(outputs)
    found = [next(wanted) if one else None for one in params["mask"]]
    for position, spec in enumerate(inputs[1:4]):
        assert spec is not None
        found[position] = found[position] or Spec.in_rows(spec.shape, spec.dtype)
    return found


@register("attention_tiled_backward", on_device=True)
def tiled_backward(params: Params, inputs: Specs, outputs: list[Spec]) -> list[Candidate]:
    results, mask = gradient_specs(params, inputs, outputs), params["mask"]
    by_rows, by_columns = rows_kernel(params, inputs, results), columns_kernel(params, inputs, results)
    _begin(params, [by_rows, by_columns])
    deltas_like = by_rows.operands["deltas"]
    assert deltas_like is not None

    def call(
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        out: Tensor,
        sums: Tensor,
        seed: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        deltas = empty_as(deltas_like, q.device)
        dq, dk, dv, dbias = (None if spec is None else empty_as(spec, q.device) for spec in results)
        by_rows((grad, q, k, v, bias, seed, out, sums, deltas, dq, dbias))
        by_columns((grad, q, k, v, bias, seed, sums, deltas, dk, dv))
        return tuple(one if wanted else None for one, wanted in zip((dq, dk, dv, dbias), mask, strict=True))

    return [Candidate("triton", from_words(call))]


def _begin(params: Params, kernels: Sequence[AttentionKernel]) -> None:
    """Begin to build the kernels while the program is made."""
    device = params.get("device")
    if device is not None and device.type == "cuda":
        for kernel in kernels:
            kernel.segment(device)
