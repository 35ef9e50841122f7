"""Independent pointwise kernels in one launch: the program's number selects the kernel whose block it computes.

    pid = tl.program_id(0)
    if pid < 40:                                # members of equal code: one body, with the pointers and the size of
        if pid < 25: b0_0, b0_1, n0, f0 = ...   # the member that the program belongs to
        else: ...
        body0(pid - f0, n0, b0_0, b0_1, 1024)
    else: ...

Members with one contiguous axis differ only in pointers and size, so hundreds of them share one body. A program finds
its member by binary search over programs, not members, so large members take few comparisons. All branches are uniform,
and they select kernel parameters, which the GPU has in constant memory: no table is written before a launch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from smelt.abi.kernel_source import Config, KernelSource
from smelt.abi.random_source import key_step
from smelt.codegen.parameters import FAULT, Arguments
from smelt.codegen.triton.kernel import KernelRenderer, TritonKernel, pointer_type, render_kernel
from smelt.codegen.triton.library import module_head
from smelt.codegen.triton.tiles import Axis, Tiling, flat_configs, make_tiling
from smelt.schedule.group import Group
from smelt.schedule.plan import Schedule
from smelt.schedule.realize import metas_of
from smelt.shapes.size import hint

VECTOR = 16
"""Divisor of a size for which its elements are read in wide words."""

Location = Callable[[str], Hashable]
"""Function from the name of a buffer to a key that is equal for buffers which can share a pointer."""


@dataclass(frozen=True)
class _Body:
    """Code that members share: its lines, types of its pointers, number of random streams, configuration, and the
    functions that it calls.

    vectors: whether the sizes of its members are multiples of VECTOR, so that Triton reads wide words. large: whether
    each of the members takes longer than a launch.
    """

    lines: tuple[str, ...]
    types: tuple[str, ...]
    streams: int
    config: Config
    functions: frozenset[str]
    vectors: bool
    large: bool


@dataclass(frozen=True)
class _Member:
    """A kernel in a bundle: the buffers of its pointers, its random streams, its size (0: a constant in the code), and
    its number of programs."""

    label: str
    buffers: tuple[str, ...]
    streams: tuple[int, ...]
    size: int
    programs: int


Class = tuple[_Body, list[_Member]]


def _step(stream: int) -> str:
    return f"tl.full([], {key_step(stream)}, tl.int64)"


def render_bundle(groups: Sequence[Group], plan: Schedule, autotune: bool = False) -> list[TritonKernel] | None:
    """Render the kernels that compute pointwise groups of fixed sizes together; returns None if one of the groups may
    set a fault.
    """
    location = locations_of(plan)
    tilings = [make_tiling(group, plan, bundled=True) for group in groups]
    (config,) = flat_configs(sum(hint(t.axes[0].size) for t in tilings if len(t.axes) == 1), plan.machine.tiles)
    classes: dict[_Body, list[tuple[Group, _Member]]] = {}
    for group, tiling in zip(groups, tilings, strict=True):
        if len(tiling.axes) == 1:
            tiling = replace(tiling, configs=(config,))
        renderer = _MemberRenderer(tiling, plan, group.label(), location)
        body, member = renderer.member()
        if FAULT in member.buffers or renderer.arguments.symbols:
            return None
        classes.setdefault(body, []).append((group, member))
    kernels: list[TritonKernel] = []
    for chosen in _launches(list(classes.items()), plan, location):
        if sum(len(members) for _, members in chosen) == 1:
            kernels.append(render_kernel(chosen[0][1][0][0], plan, autotune))
        else:
            kernel = _Launch([(b, [m for _, m in members]) for b, members in chosen], plan, location).kernel()
            groups = [group for _, members in chosen for group, _ in members]
            kernels.append(replace(kernel, computes=_stored_by(groups, plan)))
    return kernels


def _stored_by(groups: Iterable[Group], plan: Schedule) -> tuple[str, ...]:
    return tuple(name for group in groups for name in group.members if name in plan.stored)


def locations_of(plan: Schedule) -> Location:
    """Returns a function from a buffer to its location; buffers at the same address with the same element type have one
    location.
    """

    def location(buffer: str) -> Hashable:
        if buffer == FAULT:
            return FAULT
        dtype = metas_of(plan.program.nodes[buffer]).dtype
        at = plan.over_inputs.get(buffer, buffer)
        while at in plan.memory.in_place:
            at = plan.memory.in_place[at]
        return at, dtype

    return location


Members = list[tuple[Group, _Member]]


def _launches(
    classes: list[tuple[_Body, Members]], plan: Schedule, location: Location
) -> Iterator[list[tuple[_Body, Members]]]:
    """Yields bodies and members of each launch, within its limits. Large kernels share a launch only with kernels of
    equal code.
    """
    limits = plan.machine.launches
    open_ones: dict[Hashable, tuple[list[tuple[_Body, Members]], set[Hashable]]] = {}
    for number, (body, members) in enumerate(classes):
        key = (body.config.num_warps, number if body.large else None)
        for chosen_members in _within_pointer_limit(members, location, limits.max_pointers):
            pointers = {location(buffer) for _, member in chosen_members for buffer in member.buffers}
            chosen, known = open_ones.get(key, ([], set()))
            lines = sum(len(other.lines) for other, _ in chosen) + len(body.lines)
            full = len(known | pointers) > limits.max_pointers or len(chosen) == limits.max_bodies
            if chosen and (full or lines > limits.max_lines):
                yield open_ones.pop(key)[0]
                chosen, known = [], set()
            open_ones[key] = [*chosen, (body, chosen_members)], known | pointers
    for chosen, _ in open_ones.values():
        yield chosen


def _within_pointer_limit(members: Members, location: Location, most: int) -> Iterator[Members]:
    """Divide the members of a class into as few lists as the limit of pointers in a launch allows."""
    chosen_members: Members = []
    known: set[Hashable] = set()
    for group, member in members:
        pointers = {location(buffer) for buffer in member.buffers}
        if chosen_members and len(known | pointers) > most:
            yield chosen_members
            chosen_members, known = [], set()
        chosen_members.append((group, member))
        known |= pointers
    yield chosen_members


class _Shared(Arguments):
    """Parameters of a kernel with one pointer for all buffers at one location."""

    def __init__(self, location: Location) -> None:
        super().__init__()
        self.location = location
        self.numbers: dict[Hashable, int] = {}

    def pointer(self, buffer: str) -> str:
        number = self.numbers.setdefault(self.location(buffer), len(self.buffers))
        if number == len(self.buffers):
            self.buffers.append(buffer)
        return f"a{number}"


class _MemberRenderer(KernelRenderer):
    """Renders a flat kernel as a function of its program's number and its size."""

    def __init__(self, tiling: Tiling, plan: Schedule, label: str, location: Location) -> None:
        super().__init__(tiling, plan, label)
        self.arguments = _Shared(location)

    @property
    def plain(self) -> bool:
        """Whether the code does not depend on the size."""
        return len(self.axes) == 1 and len(self.axes[0].variables) <= 1

    def member(self) -> tuple[_Body, _Member]:
        size = int(self.axes[0].size) if self.plain else 0
        self.render()
        programs = 1
        for extent, block in self.extents:
            programs *= -(-int(extent) // dict(self.configs[0].constants)[str(block)])
        buffers = tuple(self.arguments.buffers)
        types = tuple(pointer_type(name, self.plan) for name in buffers)
        nodes = self.plan.program.nodes
        large = (
            sum(hint(metas_of(nodes[name]).nbytes) for name in buffers if name != FAULT)
            > self.plan.machine.launches.large_bytes
        )
        lines = tuple(self.scopes.finish())
        streams = tuple(self.arguments.streams)
        body = _Body(lines, types, len(streams), self.configs[0], frozenset(self.used), size % VECTOR == 0, large)
        return body, _Member(self.label, buffers, streams, size, programs)

    def bound(self, axis: Axis) -> str:
        return "n" if self.plain else super().bound(axis)

    def always_inside(self, axis: Axis) -> bool:
        return not self.plain and super().always_inside(axis)

    def program_start(self, axis: Axis, dimension: int) -> str:
        number = "pid"
        if len(self.axes) > 1:
            last = self.axes[-1]
            across = -(-int(last.size) // dict(self.configs[0].constants)[last.block])
            number = f"(pid % {across})" if axis is last else f"(pid // {across})"
        return f"{number}{'.to(tl.int64)' if self.wide else ''} * {axis.block}"


class _Launch:
    """Writes the kernel of a bundle."""

    def __init__(self, classes: list[Class], plan: Schedule, location: Location) -> None:
        self.plan, self.location = plan, location
        ordered = [(body, sorted(members, key=lambda m: -m.programs)) for body, members in classes]
        self.classes = sorted(ordered, key=lambda c: -sum(m.programs for m in c[1]))
        self.arguments = _Shared(location)
        self.lines: list[str] = []

    def kernel(self) -> TritonKernel:
        total = self.select(self.classes, 0, 0)
        buffers = tuple(self.arguments.buffers)
        signature = tuple((f"a{number}", pointer_type(name, self.plan)) for number, name in enumerate(buffers))
        names = tuple(name for name, _ in signature)
        used = {name for body, _ in self.classes for name in body.functions}
        bodies = [self.function(number, body) for number, (body, _) in enumerate(self.classes)]
        entry = ["@triton.jit", f"def kernel({', '.join(names)}):", "    pid = tl.program_id(0)", *self.lines]
        text = "\n\n".join([module_head(used), *bodies, "\n".join(entry)]) + "\n"
        labels = [member.label for _, members in self.classes for member in members]
        # the label becomes the kernel's name, so it must begin like an identifier
        label = f"{labels[0]} and {len(labels) - 1} others"
        config = Config((), self.classes[0][0].config.num_warps)
        source = KernelSource(text, signature, names, (config,), label)
        return TritonKernel(source, buffers, (), ((total, None),))

    def function(self, number: int, body: _Body) -> str:
        """Write the function of a body; returns its name."""
        pointers = [f"a{i}" for i in range(len(body.types))]
        pointers += [f"u{i}" for i in range(body.streams)]
        constants = [f"{name}: tl.constexpr" for name, _ in body.config.constants]
        parameters = ", ".join(["pid", "n", *pointers, *constants])
        return "\n".join(
            ["@triton.jit", f"def body{number}({parameters}):", *(f"    {line}" for line in body.lines), ""]
        )

    def select(self, classes: list[Class], first: int, depth: int) -> int:
        """Assign programs to each class, from `first` on; returns the number after the last program."""
        (body, members), rest = classes[0], classes[1:]
        after = first + sum(member.programs for member in members)
        if not rest:
            self.call(body, members, first, depth)
            return after
        self.line(depth, f"if pid < {after}:")
        self.call(body, members, first, depth + 1)
        self.line(depth, "else:")
        return self.select(rest, after, depth + 1)

    def differences(self, members: Iterable[_Member]) -> list[list[str]]:
        """Returns the arguments of a body that differ between members: pointers, then numbers of random streams,
        then the number of elements.
        """
        chosen = [(member, [self.arguments.pointer(name) for name in member.buffers]) for member in members]
        return [
            [*pointers, *map(_step, member.streams), f"tl.full([], {member.size}, tl.int32)"]
            for member, pointers in chosen
        ]

    def call(self, body: _Body, members: list[_Member], first: int, depth: int) -> None:
        """Write the selection of a member's arguments (pointers, streams, size, first program), and the call of the
        body.
        """
        number = next(i for i, (other, _) in enumerate(self.classes) if other is body)
        chosen = self.differences(members)
        names = [f"b{number}_{i}" for i in range(len(body.types) + body.streams)] + [f"n{number}"]
        common = [len({values[i] for values in chosen}) == 1 for i in range(len(names))]
        given = [values if same else name for name, values, same in zip(names, chosen[0], common, strict=True)]
        start = str(first)
        if len(members) > 1:
            wanted = [[(n, v) for n, v, same in zip(names, c, common, strict=True) if not same] for c in chosen]
            start = f"f{number}"
            self.halve(members, wanted, first, start, depth)
        constants = [str(value) for _, value in body.config.constants]
        self.line(depth, f"body{number}({', '.join([f'pid - {start}', given[-1], *given[:-1], *constants])})")

    def halve(
        self, members: list[_Member], chosen: list[list[tuple[str, str]]], first: int, start: str, depth: int
    ) -> int:
        """Write branches to the member of a program, by binary search; returns the number after the last program of
        these members.
        """
        (member, *_), (values, *_) = members, chosen
        if len(members) == 1:
            for name, value in [*values, (start, f"tl.full([], {first}, tl.int32)")]:
                self.line(depth, f"{name} = {value}")
            return first + member.programs
        half = sum(member.programs for member in members) / 2
        count, at = 0, 0.0
        while count < len(members) - 1 and at < half:
            at += members[count].programs
            count += 1
        self.line(depth, f"if pid < {first + int(at)}:")
        middle = self.halve(members[:count], chosen[:count], first, start, depth + 1)
        self.line(depth, "else:")
        return self.halve(members[count:], chosen[count:], middle, start, depth + 1)

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * (depth + 1) + text)
