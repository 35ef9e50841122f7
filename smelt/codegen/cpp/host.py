"""Schedule in, C++ kernels and host program out. Each distinct kernel is rendered once.

A run of kernels is a segment: a C function of the pointer table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from smelt.abi.rendered import Rendered
from smelt.abi.steps import Step
from smelt.base.errors import CompileError
from smelt.base.text import Writer
from smelt.codegen.cpp.kernel import Kernel, render_kernel
from smelt.codegen.cpp.scatter import render_scatter
from smelt.codegen.cpp.target import Renderer
from smelt.codegen.cpp.units import kernel_name, segment_source, translation_units
from smelt.codegen.host import Host
from smelt.codegen.parameters import FAULT
from smelt.loops.ir import Scatter
from smelt.schedule.group import Group
from smelt.schedule.origins import computed_by, origins_of
from smelt.schedule.plan import Schedule
from smelt.shapes.size import IntLike, Size, Symbol, same


class CppRenderer(Renderer):
    """The target C++17 with OpenMP, for GCC and clang."""

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
    """Distinct kernels, the launch of each group, and the translation units (source, indices of the kernels inside)."""

    kernels: list[Kernel]
    launches: dict[int, Launch]
    units: list[tuple[str, list[int]]]

    def text_of(self, number: int) -> tuple[str, str]:
        """Returns name and text of the kernel of a group; empty strings if it has none."""
        launch = self.launches.get(number)
        if launch is None:
            return "", ""
        name = kernel_name(launch.kernel)
        return name, self.kernels[launch.kernel].function(name)


def render_cpp(plan: Schedule) -> Rendered:
    """Render the C++ sources and the host program of a schedule."""
    kernels = render_kernels(plan, CppRenderer())
    host = CppHost(plan, kernels)
    text = host.text()
    sources = [source for source, _ in kernels.units]
    exports = [[kernel_name(i) for i in inside] for _, inside in kernels.units]
    if host.segments:  # segments go into the smallest unit: starting another compiler costs more than compiling them
        smallest = min(range(len(sources)), key=lambda i: len(sources[i]))
        sources[smallest] += segment_source(host.segments)
        exports[smallest] += [f"segment{i}" for i in range(len(host.segments))]
    return Rendered(sources, exports, text, host.constants, steps=host.shown_steps, text_of=kernels.text_of)


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
    return Kernels(kernels, launches, translation_units(kernels, plan.machine.loops.kernels_per_unit))


def _form(group: Group, plan: Schedule) -> tuple[object, ...]:
    """Returns a key that is equal for groups of equal layers with equal kernels: it includes all facts that depend on
    other groups.
    """
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
    """Returns the launch of group `other`, which differs from `launch`, that of `group`, only in buffers and random
    streams.
    """
    buffers = dict(zip(group.accesses, other.accesses, strict=True))
    streams = launch.streams
    if streams and group.like is not None:
        back = {own: original for original, own in group.like.streams.items()}
        streams = tuple([back[stream] for stream in streams])
    if streams and other.like is not None:
        streams = tuple([other.like.streams[stream] for stream in streams])
    return replace(launch, buffers=tuple([buffers.get(name, name) for name in launch.buffers]), streams=streams)


class CppHost(Host):
    """Writes the host program of C++ kernels."""

    gives_arena_back = True

    def __init__(self, plan: Schedule, kernels: Kernels) -> None:
        super().__init__(plan, {number: launch.buffers for number, launch in kernels.launches.items()})
        self.kernels = kernels
        self.kernel_slots: dict[int, int] = {}
        self.symbol_slots: dict[Symbol, int] = {}

    def launches(self, body: Writer, groups: Sequence[int], bound: set[str]) -> None:
        calls: list[str] = []
        steps: list[Step] = []
        touched: IntLike = 0
        for number in groups:
            launch = self.kernels.launches.get(number)
            if launch is None:
                continue
            kernel = self.kernels.kernels[launch.kernel]
            slot = self.kernel_slots.get(launch.kernel)
            if slot is None:
                slot = self.kernel_slots[launch.kernel] = self.new_slot()
            arguments = []
            for name, memory in zip(launch.buffers, kernel.types, strict=True):
                if name == FAULT:
                    self.fault = self.fault or self.new_slot()
                    arguments.append(f"(int64_t *)P[{self.fault}]")
                    continue
                arguments.append(f"({memory} *){self.pointer(body, name, bound)}")
                touched += self.nbytes(name)
            arguments += [f"(int64_t)P[{self.symbol_slot(s)}]" for s in launch.symbols]
            arguments += map(str, launch.streams)
            numbers = len(launch.symbols) + len(launch.streams)
            types = ", ".join([*(f"{t} *" for t in kernel.types), *["int64_t"] * numbers])
            calls.append(f"((void (*)({types}))P[{slot}])({', '.join(arguments)});")
            steps.append(self.step_of(number, launch, slot))
            self.shown_steps.of[self.plan.made_by(number)[0]] = steps[-1]
        if calls:
            self.shown_steps.segments[f"segment{len(self.segments)}"] = steps
            body(f"{self.launcher(touched)}(segment{len(self.segments)}, table)")
            self.segments.append(calls)

    def step_of(self, number: int, launch: Launch, slot: int) -> Step:
        """Make the step of a group for reports; its arguments already have slots."""
        arguments: list[tuple[int, int] | int] = [self.address(name) for name in launch.buffers]
        arguments += [(self.symbol_slot(symbol), 0) for symbol in launch.symbols]
        origins = origins_of(self.plan.program, computed_by(self.plan, number))
        return Step(origins, slot, (*arguments, *launch.streams))

    def address(self, name: str) -> tuple[int, int]:
        """Returns the slot of a buffer, and its offset from the slot's address."""
        if name == FAULT:
            return self.fault, 0
        if not self.in_arena(name):
            return self.slots[name], 0
        return (self.offset_slots[name], 0) if self.symbols else (0, self.plan.memory.offsets[name])

    def kernel_names(self, number: int) -> str:
        launch = self.kernels.launches.get(number)
        return "no kernel" if launch is None else kernel_name(launch.kernel)

    def launcher(self, touched: IntLike) -> str:
        """Returns the name of the function that launches kernels that touch `touched` bytes."""
        least = self.plan.machine.loops.min_unlocked_bytes
        if not isinstance(touched, Size):
            return "launch_short" if touched < least else "launch"
        name = f"launch{len(self.launchers)}"
        self.launchers.append(f"{name} = launch_short if {touched} < {least} else launch")
        return name

    def symbol_slot(self, symbol: Symbol) -> int:
        slot = self.symbol_slots.get(symbol)
        if slot is None:
            if symbol not in self.symbols:
                raise CompileError(f"codegen: a kernel needs the size {symbol}, which is no input")
            slot = self.symbol_slots[symbol] = self.new_slot()
        return slot

    def pointer(self, body: Writer, name: str, bound: set[str]) -> str:
        if self.in_arena(name):
            if self.symbols:
                if name not in self.offset_slots:
                    self.offset_slots[name] = self.new_slot()
                return f"P[{self.offset_slots[name]}]"
            return f"(P[0] + {self.plan.memory.offsets[name]})"
        self.bind(body, name, bound)
        return f"P[{self.slots[name]}]"

    def define_segments(self, w: Writer) -> None:
        for i in range(len(self.segments)):
            w(f'segment{i} = address("segment{i}")')

    def addresses(self) -> dict[int, str]:
        kernels = {self.kernel_slots[i]: f'address("{kernel_name(i)}")' for i in sorted(self.kernel_slots)}
        return kernels | {slot: str(symbol) for symbol, slot in self.symbol_slots.items()}
