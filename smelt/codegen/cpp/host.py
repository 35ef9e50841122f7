"""Schedule in, C++ kernels and host program out. A run of kernels is a segment: a C function of the pointer table."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.abi.rendered import Rendered
from smelt.abi.steps import Step
from smelt.base.errors import CompileError
from smelt.base.text import Writer
from smelt.codegen.cpp.units import CppRenderer, Kernels, Launch, kernel_name, render_kernels, segment_source
from smelt.codegen.host import Host
from smelt.codegen.parameters import FAULT
from smelt.schedule.origins import computed_by, origins_of
from smelt.schedule.plan import Schedule
from smelt.shapes.size import IntLike, Size, Symbol


def render_cpp(plan: Schedule) -> Rendered:
    """The C++ sources and the host program of a schedule."""
    kernels = render_kernels(plan, CppRenderer())
    host = CppHost(plan, kernels)
    text = host.text()
    sources = [source for source, _ in kernels.units]
    exports = [[kernel_name(i) for i in inside] for _, inside in kernels.units]
    if host.segments:  # into the smallest unit: starting another compiler costs more than compiling them
        smallest = min(range(len(sources)), key=lambda i: len(sources[i]))
        sources[smallest] += segment_source(host.segments)
        exports[smallest] += [f"segment{i}" for i in range(len(host.segments))]
    return Rendered(sources, exports, text, host.constants, steps=host.shown_steps, text_of=kernels.text_of)


class CppHost(Host):
    """The host program of C++ kernels."""

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
        """The step of a group for reports; its arguments have slots already."""
        arguments: list[tuple[int, int] | int] = [self.address(name) for name in launch.buffers]
        arguments += [(self.symbol_slot(symbol), 0) for symbol in launch.symbols]
        origins = origins_of(self.plan.program, computed_by(self.plan, number))
        return Step(origins, slot, (*arguments, *launch.streams))

    def address(self, name: str) -> tuple[int, int]:
        """The slot of a buffer, and its offset from the slot's address."""
        if name == FAULT:
            return self.fault, 0
        if not self.in_arena(name):
            return self.slots[name], 0
        return (self.offset_slots[name], 0) if self.symbols else (0, self.plan.memory.offsets[name])

    def kernel_names(self, number: int) -> str:
        launch = self.kernels.launches.get(number)
        return "no kernel" if launch is None else kernel_name(launch.kernel)

    def launcher(self, touched: IntLike) -> str:
        """The name of the function that launches kernels that touch this many bytes."""
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
