"""Kernels as C++ translation units: equal kernels once, in units of similar size that cores compile in parallel.

Kernels are exported functions of raw pointers. Segments (runs of kernels between two externs) are `void f(char **P)`:
P holds base pointers, followed by the addresses of the kernels, so that units need not be linked with each other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from smelt.codegen.cpp.kernel import Kernel, render_kernel
from smelt.codegen.cpp.scatter import render_scatter
from smelt.codegen.cpp.target import Renderer
from smelt.codegen.cpp.vector_math import header
from smelt.loops.ir import Scatter
from smelt.schedule.group import Group
from smelt.schedule.plan import Schedule
from smelt.shapes.size import Symbol, same


class CppRenderer(Renderer):
    """C++17 with OpenMP for GCC and clang."""

    name = "cpp"


@dataclass(frozen=True)
class Launch:
    """A call of kernel `kernel` (an index) with buffers, symbols and streams as arguments."""

    kernel: int
    buffers: tuple[str, ...]
    symbols: tuple[Symbol, ...] = ()
    streams: tuple[int, ...] = ()


@dataclass
class Kernels:
    """Distinct kernels, the launch that each group became, and the translation units (source, kernels inside)."""

    kernels: list[Kernel]
    launches: dict[int, Launch]
    units: list[tuple[str, list[int]]]

    def text_of(self, number: int) -> tuple[str, str]:
        """Name and text of the kernel of a group; empty strings if it has none."""
        launch = self.launches.get(number)
        if launch is None:
            return "", ""
        name = kernel_name(launch.kernel)
        return name, self.kernels[launch.kernel].function(name)


def render_kernels(plan: Schedule, target: Renderer) -> Kernels:
    """Render every group of a schedule."""
    kernels: list[Kernel] = []
    known: dict[tuple[object, ...], int] = {}
    launches: dict[int, Launch] = {}
    of_layers: dict[tuple[object, ...], tuple[Launch, Group]] = {}
    for number in plan.steps:
        group = plan.groups.get(number)
        if group is None or any(same(v.size, 0) for v in group.order):
            continue
        equal = _form(group, plan)
        if equal in of_layers:
            launches[number] = _like(*of_layers[equal], group)
            continue
        kernel = render_scatter(group, plan, target) if group.scatter else render_kernel(group, plan, target)
        key = (kernel.lines, kernel.types, len(kernel.symbols), len(kernel.streams))
        if key not in known:
            known[key] = len(kernels)
            kernels.append(kernel)
        launches[number] = Launch(known[key], kernel.buffers, kernel.symbols, kernel.streams)
        of_layers[equal] = launches[number], group
    return Kernels(kernels, launches, _units(kernels, plan.machine.loops.kernels_per_unit))


def _form(group: Group, plan: Schedule) -> tuple[object, ...]:
    """A key that is equal for groups of equal layers with equal kernels: it has all that depends on other groups."""
    over = [n in plan.memory.in_place or n in plan.over_inputs or n in plan.over_others for n in group.members]
    stored = [name in plan.stored for name in group.members]
    scatters = [
        (plan.starts_in_place(member.node), member.name in plan.over_inputs)
        for member in group.members.values()
        if isinstance(member.node, Scatter)
    ]
    original = group.like.group.number if group.like is not None else group.number
    return original, any(over), *stored, *scatters


def _like(launch: Launch, group: Group, other: Group) -> Launch:
    """The launch of a group that differs from that of `launch` only in buffers and random streams."""
    buffers = dict(zip(group.accesses, other.accesses, strict=True))
    streams = launch.streams
    if streams and group.like is not None:
        back = {own: original for original, own in group.like.streams.items()}
        streams = tuple([back[stream] for stream in streams])
    if streams and other.like is not None:
        streams = tuple([other.like.streams[stream] for stream in streams])
    return replace(launch, buffers=tuple([buffers.get(name, name) for name in launch.buffers]), streams=streams)


def kernel_name(index: int) -> str:
    """The exported name of a kernel."""
    return f"kernel{index}"


def _units(kernels: Sequence[Kernel], each: int) -> list[tuple[str, list[int]]]:
    if not kernels:
        return []
    count = min(-(-len(kernels) // each), max(2, os.cpu_count() or 1))
    bins: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for index in sorted(range(len(kernels)), key=lambda i: -sum(map(len, kernels[i].lines))):
        lightest = loads.index(min(loads))
        bins[lightest].append(index)
        loads[lightest] += sum(map(len, kernels[index].lines))
    return [(_unit([(i, kernels[i]) for i in sorted(inside)]), sorted(inside)) for inside in bins if inside]


def _unit(kernels: Sequence[tuple[int, Kernel]]) -> str:
    used = {name for _, kernel in kernels for name in kernel.used}
    sources = [header(used)]
    for index, kernel in kernels:
        sources.append(kernel.function(kernel_name(index)))
    return "\n".join(sources)


def segment_source(segments: Sequence[Sequence[str]]) -> str:
    """The functions of the segments: each is a list of calls. They come last in their unit."""
    # not optimised: they are only calls, and optimising them took a quarter of compile time on deep models
    sources = ['#pragma GCC optimize("O0")\n']
    for number, calls in enumerate(segments):
        body = "\n".join("    " + call for call in calls)
        sources.append(f'extern "C" void segment{number}(char **P) {{\n{body}\n}}\n')
    return "\n".join(sources)
