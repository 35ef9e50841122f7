"""Triton kernels and the host program of a schedule: runs of kernels are segments, which launch them together from C.

Segments are bound when the program is loaded; `kernels`, handed in, makes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from smelt.base.errors import CompileError
from smelt.base.kernel_source import KernelSource
from smelt.base.text import Writer
from smelt.codegen.host import Host, Rendered
from smelt.codegen.parameters import FAULT
from smelt.codegen.triton.kernel import TritonKernel, render_kernel
from smelt.codegen.triton.scatter import render_scatter
from smelt.schedule.plan import Schedule
from smelt.schedule.realize import metas_of
from smelt.shapes.size import IntLike, Symbol, same


def render_triton(plan: Schedule, device: torch.device, autotune: bool = False) -> Rendered:
    """The Triton sources and the host program of a schedule whose tensors live on `device`."""
    kernels = {number: _kernels(plan, number, autotune) for number in plan.steps if number in plan.groups}
    host = TritonHost(plan, kernels, device)
    text = host.text()
    return Rendered([], [], text, host.constants, kernels=host.sources, device=device)


def print_kernels(sources: Sequence[KernelSource]) -> str:
    """Triton modules one after another, each with the values that its names belong to and its configurations."""
    parts = []
    for number, source in enumerate(sources):
        configs = "\n".join(f"#   {config}" for config in source.configs)
        parts.append(f"# kernel {number}: {source.name}\n{configs}\n{source.source}")
    return "\n\n".join(parts)


def _kernels(plan: Schedule, number: int, autotune: bool) -> list[TritonKernel]:
    group = plan.groups[number]
    if any(same(v.size, 0) for v in group.order):
        return []
    return render_scatter(group, plan, autotune) if group.scatter else [render_kernel(group, plan, autotune)]


class TritonHost(Host):
    """Launches Triton kernels. Equal sources are built once."""

    def __init__(self, plan: Schedule, kernels: dict[int, list[TritonKernel]], device: torch.device) -> None:
        self.kernels, self.device = kernels, device
        self.sources: list[KernelSource] = []
        self.known: dict[tuple[object, ...], int] = {}
        super().__init__(plan, {number: [b for k in each for b in k.buffers] for number, each in kernels.items()})

    def launches(self, body: Writer, groups: Sequence[int], bound: set[str]) -> None:
        lines: list[str] = []
        for number in groups:
            for kernel in self.kernels[number]:
                arguments = [self.pointer(body, name, bound) for name in kernel.buffers]
                arguments += [self.symbol(s) for s in kernel.symbols]
                extents = "".join(f"({size}, {block!r}), " for size, block in kernel.extents)
                lines.append(f"({self.source(kernel)}, ({extents}), ({''.join(a + ', ' for a in arguments)})),")
        if lines:
            body(f"segment{len(self.segments)}(table)")
            self.segments.append(lines)

    def source(self, kernel: TritonKernel) -> int:
        """The number of a kernel's source."""
        source = kernel.source
        key = (source.source, source.signature, source.divisible, source.configs)
        if key not in self.known:
            self.known[key] = len(self.sources)
            self.sources.append(source)
        return self.known[key]

    def pointer(self, body: Writer, name: str, bound: set[str]) -> str:
        if name == FAULT:
            self.fault = self.fault or self.new_slot()
            return f"({self.fault}, 0)"
        if self.in_arena(name):
            return f"(0, {self.place(name)})"
        self.bind(body, name, bound)
        return f"({self.slots[name]}, 0)"

    def place(self, name: str) -> str:
        """Where a buffer lies in the arena."""
        return f"offsets[{self.arena_numbers[name]}]" if self.symbols else str(self.plan.memory.offsets[name])

    def symbol(self, symbol: Symbol) -> str:
        if symbol not in self.symbols:
            raise CompileError(f"codegen: a kernel needs the size {symbol}, which is no input")
        return str(symbol)

    def define_segments(self, w: Writer) -> None:
        for number, lines in enumerate(self.segments):
            with w.block(f"segment{number} = kernels.segment([", "])"):
                w(*lines)

    def addresses(self) -> dict[int, str]:
        return {}

    def nbytes(self, name: str) -> IntLike:
        return metas_of(self.nodes[name]).nbytes
