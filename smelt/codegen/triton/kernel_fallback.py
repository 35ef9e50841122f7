"""The fallback of a kernel: computes the same values with the primitives' references, over the same memory.

It runs if Triton, the driver or the device refuses the kernel. Several launches may share a kernel's source; the
differences between them (pointers, sizes, random streams) are arguments of the kernel, which the fallback takes, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from smelt.abi.random_source import GOLDEN
from smelt.codegen.triton.combined_launch import locations_of
from smelt.codegen.triton.kernel import TritonKernel
from smelt.loops.interpret import Interpreter, Sizes, Space, run_node, scattered
from smelt.loops.ir import Node, Scatter, Value
from smelt.schedule.plan import Schedule
from smelt.schedule.realize import metas_of
from smelt.shapes.expr import Expr
from smelt.shapes.size import IntLike, value_in

Memory = Callable[[int, tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
"""Function that makes a tensor at an address: (address, shape, strides in elements, dtype)."""

STREAM_OF_STEP = pow(GOLDEN, -1, 2**64)


class KernelFallback:
    """A function `second(memory, addresses, numbers)` that writes the same values as the kernel.

    Args:
        kernel: the kernel of a launch.
        plan: the schedule to which the launch belongs.
    """

    def __init__(self, kernel: TritonKernel, plan: Schedule, device: torch.device) -> None:
        self.kernel, self.plan, self.device = kernel, plan, device
        self.nodes: Mapping[str, Node] = plan.program.nodes

    def __call__(self, memory: Memory, addresses: Sequence[int], numbers: Sequence[int]) -> None:
        """Compute all values, then write the results.

        Args:
            memory: function that makes a tensor at an address.
            addresses: addresses of the kernel's buffers.
            numbers: the kernel's other arguments.
        """
        sizes: Sizes = dict(zip(self.kernel.symbols, numbers, strict=False))
        steps = numbers[len(self.kernel.symbols) :]
        streams = {own: _stream(step) for own, step in zip(self.kernel.streams, steps, strict=True)}
        buffers = _Buffers(self, memory, addresses, sizes)

        def space(values: Mapping[str, Any], ranges: Sequence[IntLike], sizes: Sizes) -> Interpreter:
            return _Space(values, ranges, sizes, self.device, streams)

        values = _Values(self, buffers, sizes, space)
        made = {name: values[name] for name in self.kernel.computes}
        for name, value in made.items():
            buffers[name].copy_(value)

    def computes(self, name: str) -> bool:
        """Whether the kernel computes a value."""
        return name in self.kernel.computes

    def value(self, name: str, values: _Values) -> Any:
        """Returns the value of a node: read from memory, or computed from other values."""
        node = self.nodes[name]
        if not self.computes(name):
            if values.buffers.known(name):
                return values.buffers[name]
        elif isinstance(node, Scatter) and self.kernel.scatter_step == "base":
            ops = values.space(values, node.meta.shape, values.sizes)
            return node.base(ops, ops.index).expand(ops.ranges)
        elif isinstance(node, Scatter):  # another kernel has written the base
            return scattered(node, values.buffers[name], values, values.sizes, values.space)
        return run_node(node, values, values.sizes, values.space)


class _Values(dict[str, Any]):
    """The values that the kernel reads and computes, evaluated on demand."""

    def __init__(self, way: KernelFallback, buffers: _Buffers, sizes: Sizes, space: Space) -> None:
        super().__init__()
        self.way, self.buffers, self.sizes, self.space = way, buffers, sizes, space

    def __missing__(self, name: str) -> Any:
        value = self[name] = self.way.value(name, self)
        return value


class _Buffers:
    """The memory of a launch by name of value."""

    def __init__(self, way: KernelFallback, memory: Memory, addresses: Sequence[int], sizes: Sizes) -> None:
        self.plan, self.memory, self.sizes = way.plan, memory, sizes
        self.at = dict(zip(way.kernel.buffers, addresses, strict=True))
        # a bundle's kernel has one pointer for all buffers at one location
        location = locations_of(way.plan)
        self.location = location
        self.by_location = {location(name): address for name, address in self.at.items()}

    def known(self, name: str) -> bool:
        """Whether a value is in a buffer of the kernel."""
        return name in self.at or (name in self.plan.stored and self.location(name) in self.by_location)

    def __getitem__(self, name: str) -> torch.Tensor:
        address = self.at[name] if name in self.at else self.by_location[self.location(name)]
        meta = metas_of(self.plan.program.nodes[name])
        shape = tuple(value_in(n, self.sizes) for n in meta.shape)
        stride = tuple(value_in(n, self.sizes) for n in self.plan.strides[name])
        return self.memory(address, shape, stride, meta.dtype)


class _Space(Interpreter):
    """An iteration space on a device, with the launch's streams of random numbers."""

    def __init__(
        self,
        values: Mapping[str, Any],
        ranges: Sequence[IntLike],
        sizes: Sizes,
        device: torch.device,
        streams: Mapping[int, int],
    ) -> None:
        super().__init__(values, ranges, sizes, device)
        self.streams = streams

    def random(self, seed: Value, stream: int, index: Expr, count: IntLike) -> Value:
        return super().random(seed, self.streams.get(stream, stream), index, count)


def _stream(step: int) -> int:
    """Returns the stream to which a step belongs (see `key_step`)."""
    return (step * STREAM_OF_STEP - 1) % 2**64


def kernel_fallback(kernel: TritonKernel, plan: Schedule, device: torch.device) -> KernelFallback | None:
    """Returns the fallback of a kernel; None for a product, whose alternative is the library's call."""
    return KernelFallback(kernel, plan, device) if kernel.computes else None
