"""Depthwise convolutions on a GPU and their gradients by smelt's kernels: chooses source text, blocks and arguments.

cuDNN compiles a kernel for each size of image at its first use in a thread, under a lock; this took 10 of the 15 s of
the first step of MobileNetV3. These kernels are built like all others, in parallel, and kept in the store.

A thread reads vectors of channels, each element once for all windows that contain it. Tensors that are not aligned to
words are copied: reading them element by element would load each cache line many times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from smelt.abi.kernel_source import Config, KernelSource, ceil_power, floor_power
from smelt.base.imports import late
from smelt.runtime.launch import Table
from smelt.runtime.library import depthwise_source as source
from smelt.runtime.library.attention_memory import at_words
from smelt.runtime.library.depthwise_source import Window
from smelt.runtime.library.externs import Candidate, Spec, empty_as
from smelt.runtime.tuned import DEPTHWISE

if TYPE_CHECKING:
    from smelt.runtime.triton.kernels import Kernels, Segment
    from smelt.runtime.triton.plan import Argument, Launch
else:
    Kernels = late("smelt.runtime.triton.kernels", "Kernels")

Params = Mapping[str, Any]

DTYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}

ALIGNED = 16
"""Alignment of wide loads in bytes."""

MAX_ELEMENTS = 2**31 - 1
"""Maximum number of elements of an image, and of items of all threads, because indices have 32 bits."""

MAX_TAPS = 121
"""Maximum number of elements of a window: a thread of the weight gradient keeps a sum in registers for each element."""


def fits(params: Params, x: Spec, w: Spec, out: Spec) -> bool:
    """Whether the kernels support a convolution: images in channels-last memory, one channel per group, not
    transposed.
    """
    if params["transposed"] or len(x.shape) != 4 or w.shape[1] != 1 or params["groups"] != x.shape[1]:
        return False
    if x.dtype not in DTYPES or not (x.dtype is w.dtype is out.dtype) or math.prod(w.shape[2:]) > MAX_TAPS:
        return False
    if any(not spec.channels_last or 0 in spec.shape for spec in (x, out)):
        return False
    most = MAX_ELEMENTS * Shape(params, x, w, out).vector
    return all(max(_reach(s), *s.stride) <= MAX_ELEMENTS and math.prod(s.shape) <= most for s in (x, out))


def _reach(image: Spec) -> int:
    """Returns the offset of the last element of an image from its first."""
    return sum((size - 1) * step for size, step in zip(image.shape[1:], image.stride[1:], strict=True))


class Shape:
    """Properties that all kernels of a convolution share.

    Args:
        x, out: the images, or their gradients.
    """

    def __init__(self, params: Params, x: Spec, w: Spec, out: Spec) -> None:
        self.x, self.out, self.dtype = x, out, x.dtype
        self.times = w.shape[0] // x.shape[1]
        self.size: tuple[int, int] = (w.shape[2], w.shape[3])
        self.params = params
        lengths = [x.shape[1], *(s for spec in (x, out) for d, s in enumerate(spec.stride) if d != 1)]
        self.vector = math.gcd(ALIGNED // x.dtype.itemsize, *lengths)

    def operands(self, *names: str) -> dict[str, str]:
        """Returns the element type of each pointer operand, by name."""
        return dict.fromkeys(names, DTYPES[self.dtype])

    def window(self, along: int) -> Window:
        stride, padding, dilation = (tuple(self.params[name]) for name in ("stride", "padding", "dilation"))
        return Window(self.size, stride, padding, dilation, self.times, along)

    def numbers(self, read: Spec, made: Spec, along: int, vector: int) -> dict[str, int]:
        """Returns the integer arguments of a kernel that reads and writes images of these layouts, by name. `along`:
        pixels in a row that a thread computes; `vector`: adjacent channels of which one item consists.
        """
        batch, channels, rows, columns = made.shape
        groups = -(-columns // along)
        sizes = (batch * rows * groups * (channels // vector), groups, rows, columns, *read.shape[2:])
        steps = (spec.stride[d] // self.vector for spec in (read, made) for d in (0, 2, 3))
        return dict(zip(source.NUMBERS, (*sizes, channels // self.vector, *steps), strict=True))

    def along(self, made: Spec, most: int, least: int = 1) -> int:
        """Returns the number of adjacent pixels of a row that a thread computes: a multiple of `least`, at most `most`;
        fewer if there would be too few threads or if rows are short.
        """
        batch, channels, rows, columns = made.shape
        found = max(most, least)
        while found > least:
            unused, with_half = -columns % found, -columns % (found // 2)
            threads = batch * channels * rows * -(-columns // found) // self.vector
            if threads >= DEPTHWISE.busy_threads and unused <= with_half + columns / 8:
                break
            found //= 2
        return -(-found // least) * least


class DepthwiseKernel:
    """One kernel with its arguments; `source()` is its source, `launch(number, slots)` its launch.

    Args:
        operands: element type of each pointer by name, in the order of the text's parameters.
        numbers: the other parameters by name.
        extents: extents of the grid.
    """

    def __init__(
        self,
        name: str,
        text: str,
        operands: Mapping[str, str],
        numbers: Mapping[str, int],
        config: Config,
        extents: Sequence[tuple[int, str | None]],
    ) -> None:
        self.name, self.text, self.operands, self.numbers = name, text, operands, numbers
        self.config, self.extents = config, tuple(extents)

    def source(self) -> KernelSource:
        """Returns the source of the kernel."""
        signature = [*self.operands.items(), *((name, "i32") for name in self.numbers)]
        label = f"depthwise_{self.name}"
        return KernelSource(self.text, tuple(signature), tuple(self.operands), (self.config,), label, contract=True)

    def launch(self, number: int, slots: Sequence[int]) -> Launch:
        """Returns the launch of the kernel, as number `number` of several, with the tensors at these slots as
        operands.
        """
        pointers: list[Argument] = [(slot, 0) for slot in slots]
        return (number, self.extents, [*pointers, *self.numbers.values()])


def forward_kernel(shape: Shape, bias: bool) -> DepthwiseKernel:
    """Returns the forward kernel; its operands are x, w, the bias and the result."""
    stride = shape.params["stride"][1]
    # with a larger stride windows overlap less, so a thread reads more elements for each pixel
    along = shape.along(
        shape.out,
        DEPTHWISE.row_elements
        if stride == 1
        else DEPTHWISE.row_elements // 2
        if shape.size[1] >= 2 * stride
        else DEPTHWISE.row_elements // 4,
    )
    text = source.forward_source(shape.window(along), bias)
    operands = shape.operands("read", "w", "bias", "made")
    return _by_items("forward", text, operands, shape.numbers(shape.x, shape.out, along, shape.vector), shape)


def input_kernel(shape: Shape) -> DepthwiseKernel:
    """Returns the kernel of the input gradient; its operands are the result's gradient, w and the input's gradient."""
    stride = shape.params["stride"][1]
    along = shape.along(shape.x, DEPTHWISE.row_elements if stride == 1 else DEPTHWISE.row_elements // 2, stride)
    text = source.input_source(shape.window(along))
    operands = shape.operands("read", "w", "made")
    return _by_items("input", text, operands, shape.numbers(shape.out, shape.x, along, shape.vector), shape)


def _by_items(
    name: str, text: str, operands: Mapping[str, str], numbers: Mapping[str, int], shape: Shape
) -> DepthwiseKernel:
    config = Config((("V", shape.vector), ("BLOCK", DEPTHWISE.threads)), DEPTHWISE.threads // 32)
    return DepthwiseKernel(name, text, operands, numbers, config, [(numbers["items"], "BLOCK")])


def weight_kernels(shape: Shape, gradient: Spec) -> tuple[DepthwiseKernel, DepthwiseKernel, Spec]:
    """Returns the kernels of the weight gradient (one computes partial sums from the result's gradient and x, one adds
    the partial sums), and the layout of the partial sums.
    """
    (high, wide), (batch, channels, _, columns) = shape.size, shape.out.shape
    window = shape.window(min(4 if high * wide <= DEPTHWISE.small_window_elements else 2, ceil_power(columns)))
    vector = min(shape.vector, floor_power(DEPTHWISE.registers // window.num_registers()))
    block = _channel_block(channels, vector)
    positions, blocks = DEPTHWISE.threads * vector // block, -(-channels // block)
    walk, (begin, steps) = window.walk()[0], _steps(window, shape.x.shape[2], shape.out.shape[2])
    groups = -(-columns // window.along)
    segments = max(
        1, min(DEPTHWISE.weight_programs * positions // (batch * walk * groups * blocks), steps // DEPTHWISE.min_rows)
    )
    length = -(-steps // segments)
    segments = -(-steps // length)
    items = batch * walk * segments * groups
    turns = max(1, round(-(-items // positions) * blocks / DEPTHWISE.weight_programs))
    count, cells = -(-items // (positions * turns)), channels * high * wide
    numbers = shape.numbers(shape.x, shape.out, window.along, channels) | {"items": items}
    numbers = {"turns": turns, "segments": segments, "length": length, "begin": begin} | numbers
    config = Config((("V", shape.vector), ("PLACES", positions), ("CHANNELS", block)), DEPTHWISE.threads // 32)
    operands = shape.operands("made", "read") | {"parts": "*fp32"}
    extents = [(channels, "CHANNELS"), (count, None)]
    partial_sums = DepthwiseKernel("weight", source.weight_source(window), operands, numbers, config, extents)
    return partial_sums, _sum_kernel(shape, gradient, count), Spec((count, cells), (cells, 1), torch.float32)


def _steps(window: Window, height: int, rows: int) -> tuple[int, int]:
    """Returns (the first row of the result whose window contains a row of x, number of steps from there to the
    last).
    """
    walk, meetings = window.walk()
    stride, padding = window.stride[0], window.padding[0]
    offsets = [offset for offset, _ in meetings]
    first = max(0, -(-(padding - max(offsets)) // stride))
    last = min(rows - 1 + window.oldest * walk, (height - 1 + padding - min(offsets)) // stride)
    return first, max(1, -(-(last + 1 - first) // walk))


def _channel_block(channels: int, vector: int) -> int:
    """Returns the number of channels that one program (thread block) computes: the largest block size that leaves
    little of the last block unused.
    """
    blocks = [b for b in (64, 32, 16) if b >= vector]
    unused = {b: -channels % b / channels for b in blocks}
    return next((b for b in blocks if unused[b] <= 1 / 8), blocks[-1])


def _sum_kernel(shape: Shape, gradient: Spec, count: int) -> DepthwiseKernel:
    channels, cells = shape.out.shape[1], shape.out.shape[1] * math.prod(shape.size)
    step, _, down, right = gradient.stride
    numbers = {"count": count, "cells": cells, "channels": channels, "step": step, "down": down, "right": right}
    operands = {"parts": "*fp32"} | shape.operands("out")
    config = Config((("PARTS", 32), ("CELLS", 32)), 4)
    return DepthwiseKernel("sum", source.sum_source(shape.size[1]), operands, numbers, config, [(cells, "CELLS")])


class Bound:
    """Kernels that run one after another: `bound(device, tensors)`.

    Args:
        kernels: kernels with the names of their operands' tensors, in order.
        names: names of the tensors that calls pass.
    """

    def __init__(self, kernels: Sequence[tuple[DepthwiseKernel, Sequence[str]]], names: Sequence[str]) -> None:
        self.kernels, self.names = kernels, names
        self.segments: dict[torch.device, Segment] = {}

    def segment(self, device: torch.device) -> Segment:
        known = self.segments.get(device)
        if known is None:
            made = Kernels([kernel.source() for kernel, _ in self.kernels], device)
            slots = {name: slot for slot, name in enumerate(self.names)}
            launches = [
                kernel.launch(number, [slots[name] for name in names])
                for number, (kernel, names) in enumerate(self.kernels)
            ]
            known = self.segments[device] = made.segment(launches)
        return known

    def __call__(self, tensors: Sequence[Tensor]) -> None:
        table = Table(len(tensors))
        for slot, tensor in enumerate(tensors):
            table.bind(slot, tensor)
        self.segment(tensors[0].device)(table)

    def begin(self, device: torch.device | None) -> None:
        """Start building the kernels in the background while the program is compiled."""
        if device is not None and device.type == "cuda":
            self.segment(device)


def _by_element(w: Tensor) -> Tensor:
    """Returns the weight with its channels innermost, the layout of `prims/passes/channels_last.py`."""
    return w.permute(2, 3, 1, 0).contiguous()


def forward(params: Params, x: Spec, w: Spec, out: Spec, bias: bool) -> Candidate:
    """Returns the candidate for (x, w[, bias]) -> out."""
    names = ("read", "w", "bias", "made")
    bound = Bound([(forward_kernel(Shape(params, x, w, out), bias), names)], names)
    bound.begin(params.get("device"))

    def into(result: Tensor, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        x, w, bias = at_words(x, _by_element(w), bias)
        bound((x, w, x if bias is None else bias, result))
        return result

    def call(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        return into(empty_as(out, x.device), x, w, bias)

    return Candidate("depthwise", call, into)


def backward(params: Params, grad: Spec, x: Spec, w: Spec, outputs: Sequence[Spec]) -> Candidate:
    """Returns the candidate for (grad, x, w) -> the gradients that the mask asks for."""
    shape, results = Shape(params, x, w, grad), iter(outputs)
    by_x, by_w, _ = (next(results) if wanted else None for wanted in params["mask"])
    kernels: list[tuple[DepthwiseKernel, Sequence[str]]] = []
    scratch = None
    if by_x is not None:
        kernels.append((input_kernel(Shape(params, by_x, w, grad)), ("grad", "w", "by_x")))
    if by_w is not None:
        partial_sums, total, scratch = weight_kernels(shape, by_w)
        kernels += [(partial_sums, ("grad", "x", "parts")), (total, ("parts", "by_w"))]
    bound = Bound(kernels, ("grad", "x", "w", "by_x", "by_w", "parts"))
    bound.begin(params.get("device"))

    def call(grad: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor | None, ...]:
        dx, dw, partial_sums = (None if spec is None else empty_as(spec, x.device) for spec in (by_x, by_w, scratch))
        if kernels:
            grad, x, w = at_words(grad, x, w if by_x is None else _by_element(w))
            bound((grad, x, w, *(grad if made is None else made for made in (dx, dw, partial_sums))))
        return dx, dw, grad.sum((0, 2, 3)) if params["mask"][2] else None

    return Candidate("depthwise", call)
