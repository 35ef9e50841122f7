"""Writes the host program: Python text with `call(inputs) -> outputs`, which binds pointers and runs the steps.

The loader supplies the names that the text uses: `extern`, `Slot`, `Workspaces`, `launch`, `launch_short`, `fresh`,
`torch`, `address(name)` (for kernels and segments) and `constants`.

If results are returned in stages, the text defines a generator `steps`, and a function `call` that runs it (`Staged`).

With symbolic sizes the text defines `at(s0, ...)`, which makes a version of the program for given values of the
symbols, and `call` makes and caches these versions (`Sized`; it also uses `Version` and `place_buffers`). Kernels then
read their sizes from the table that also has their pointers.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt.abi.fake_kernels import is_of_torch
from smelt.abi.steps import Step, Steps
from smelt.base.python_text import quoted, scalar
from smelt.base.text import Writer
from smelt.codegen.parameters import FAULT
from smelt.loops.ir import Constant, Extern, Input, Item, Ref, references
from smelt.schedule.buffer_assignment import writes_into
from smelt.schedule.origins import origins_of
from smelt.schedule.plan import Schedule
from smelt.schedule.products import Product
from smelt.schedule.realize import StridedView, metas_of
from smelt.schedule.stages import Stage
from smelt.shapes.size import IntLike, same, same_all


@dataclass
class _Step:
    """One step of the program: an extern call, a product with its prologues and epilogue, or a run of kernels.

    `check`: the step may only run after the fault word showed that every index so far was in range.
    """

    externs: Extern | None
    groups: list[int]
    last: int
    check: bool = False
    product: Product | None = None


class Host:
    """Writes the text of a program with kernels in C++; other targets override the launches of kernels.

    Args:
        buffers: the arguments of the kernels of each group.
        bundles: groups that share a launch, if they follow each other; none of them sets faults.

    Attributes:
        gives_arena_back: whether the arena is freed after its last use in a call; other programs do not share such an
            arena.
        asserts: whether a fault ends the process or its CUDA context; otherwise kernels set a fault word, which the
            program reads.
    """

    gives_arena_back = False
    asserts = False

    def __init__(
        self, plan: Schedule, buffers: Mapping[int, Sequence[str]], bundles: Sequence[Sequence[int]] = ()
    ) -> None:
        self.plan, self.nodes = plan, plan.program.nodes
        self.buffers = buffers
        self.bundle_of = {number: bundle for bundle in bundles for number in bundle}
        self.constants: list[torch.Tensor] = []
        self.segments: list[list[str]] = []
        self.symbols = plan.program.symbols
        self.stages = [] if plan.watched is not None else plan.stages
        self.views: dict[tuple[int | str, torch.dtype, tuple[IntLike, ...], tuple[IntLike, ...]], int] = {}
        self.view_names: dict[StridedView, str] = {}
        self.inputs = plan.program.inputs
        self.variable: dict[str, str] = {name: f"x{i}" for i, name in enumerate(self.inputs)}
        self.slots: dict[str, int] = {name: i + 1 for i, name in enumerate(self.inputs)}
        self.next_slot = len(self.inputs) + 1
        self.constant_slots: dict[int, int] = {}
        self.items: dict[str, dict[int, str]] = {}
        for node in self.nodes.values():
            match node:
                case Constant(name=name, tensor=tensor):
                    self.variable[name] = f"constants[{len(self.constants)}]"
                    self.slots[name] = self.constant_slots[len(self.constants)] = self.new_slot()
                    self.constants.append(tensor)
                case Item(name=name, inputs=(source,), position=position):
                    self.items.setdefault(source, {})[position] = name
        self.fresh, self.results = itertools.count(), itertools.count()
        self.outputs = {o.name: o for o in plan.program.outputs if o.name is not None}
        self.extern_lines: list[tuple[str, str]] = []
        self.offset_slots: dict[str, int] = {}
        self.makers: dict[tuple[tuple[IntLike, ...], tuple[IntLike, ...], torch.dtype], str] = {}
        self.launchers: list[str] = []
        self.arena_numbers = {name: i for i, name in enumerate(plan.memory.offsets)}
        self.fault = 0
        self.binds = False
        self.made: list[str] = []
        self.shown_steps = Steps()
        self.steps = self.make_steps()
        self.drops = self.plan_drops()

    def new_slot(self) -> int:
        slot = self.next_slot
        self.next_slot += 1
        return slot

    def in_arena(self, name: str) -> bool:
        return name in self.plan.memory.offsets

    # steps

    def updates_inputs(self, number: int) -> bool:
        """Whether a kernel, or one that shares its launch, overwrites an input."""
        made = (name for each in self.bundle_of.get(number, [number]) for name in self.plan.made_by(each))
        return any(name in self.plan.over_inputs for name in made)

    def make_steps(self) -> list[_Step]:
        """Returns the steps of the program: externs and runs of kernels.

        A kernel that overwrites an input runs after the check of all indices so far, so that the inputs are unchanged
        if the program raises.
        """
        steps: list[_Step] = []
        doubtful = False
        for position, number in enumerate(self.plan.steps):
            extern, product = self.plan.externs.get(number), self.plan.products.get(number)
            if extern is not None and product is None:
                steps.append(_Step(extern, [], position))
                continue
            doubtful = doubtful or (not self.asserts and FAULT in self.buffers.get(number, ()))
            if steps and number in self.bundle_of and self.bundle_of[number][0] in steps[-1].groups:
                steps[-1].groups.append(number)
                steps[-1].last = position
                continue
            check = doubtful and self.updates_inputs(number)
            if product is not None:
                steps.append(_Step(None, [number], position, check, product))
            elif self.may_follow(steps, number) and not check:
                steps[-1].groups.append(number)
                steps[-1].last = position
            else:
                steps.append(_Step(None, [number], position, check))
            doubtful = doubtful and not check
        return steps

    def may_follow(self, steps: Sequence[_Step], number: int) -> bool:
        """Whether kernels may join the run before them."""
        if not steps or number in self.plan.breaks or self.plan.watched is not None:
            return False
        return steps[-1].externs is None and steps[-1].product is None

    def plan_drops(self) -> dict[int, list[str]]:
        """Returns by index of a step the tensors to drop after it; none for the last step, since returning
        drops all.
        """
        of_position = {}
        first = 0
        for index, step in enumerate(self.steps):
            for position in range(first, step.last + 1):
                of_position[position] = index
            first = step.last + 1
        drops: dict[int, list[str]] = {}
        # the debug mode keeps these tensors, to fill them with poison
        shared = self.plan.watched.shared if self.plan.watched is not None else frozenset[str]()
        overwritten = {*shared, *self.plan.over_inputs.values(), *self.plan.over_others.values()}
        for name, position in self.plan.last_use.items():
            node = self.nodes[name]
            if name in self.outputs or self.in_arena(name) or isinstance(node, Constant):
                continue
            if name in overwritten:
                continue  # still used: as the output that overwrites it, or by the debug mode
            if isinstance(node.meta, tuple):
                continue
            index = of_position[position]
            if index < len(self.steps) - 1:
                drops.setdefault(index, []).append(name)
        return drops

    # text

    def text(self) -> str:
        body = Writer()
        bound: set[str] = set()
        ended = self.arena_ended()
        for index, step in enumerate(self.steps):
            if step.check:
                body(*REFUSE)
            if self.plan.watched is None:
                self.step(body, step, bound)
            else:
                self.watched_step(body, index, step, bound)
            names = [self.variable[n] for n in self.drops.get(index, []) if n in self.variable]
            if names:
                body(f"del {', '.join(names)}")
            if index == ended and self.uses_workspace():  # an arena of size 0 needs no workspace
                body("release(workspace)")
            self.hand_out(body, step)
        head = self.head()
        call = self.call_text(body)
        return head + "\n" + call if not self.symbols else self.sized(head, call)

    def call_text(self, body: Writer) -> str:
        """Write the text of the function `call`."""
        call = Writer()
        with call.block(f"def {'steps' if self.stages else 'call'}(inputs):"):
            call('"""Boxed: takes the tensors in the list, which it empties; returns the list of results."""')
            call(*self.watching())
            if self.inputs:
                unpacked = ", ".join(self.variable[n] for n in self.inputs)
                call(f"{unpacked}{',' if len(self.inputs) == 1 else ''} = inputs")
            if self.uses_workspace():
                call("workspace = take()", "table = workspace.table")
                if self.views:
                    call("v = workspace.views")
                if self.inputs:
                    call("table.bind_all(1, inputs)")
            call("inputs.clear()")
            call(*body.text().splitlines())
            if self.fault and not self.asserts:
                call(*REFUSE)
            if self.uses_workspace():
                call("give(workspace)")
            self.give_results(call)
        if self.stages:
            call("", f"call = Staged(steps, {tuple(stage.results for stage in self.stages)})")
        return call.text()

    def give_results(self, call: Writer) -> None:
        """Write the lines that end a call and return its results."""
        results = [self.variable[o.name] if o.name else str(o.number) for o in self.plan.program.outputs]
        listed = f"[{', '.join(results)}]"
        if self.stages:
            self.give_stage(call, self.stages[-1])
        else:
            call(f"return {listed if self.plan.watched is None else f'w.returned({listed})'}")

    def hand_out(self, body: Writer, step: _Step) -> None:
        """Write the lines that yield the results of a stage that ends with this step; the last stage's results are
        returned.
        """
        for stage in self.stages[:-1]:
            if stage.last == step.last:
                if self.fault and not self.asserts:
                    body(*REFUSE)
                self.give_stage(body, stage)

    def give_stage(self, body: Writer, stage: Stage) -> None:
        """Yield a stage's results without keeping references: autograd steals a gradient to which there is no other
        reference.
        """
        outputs = [self.plan.program.outputs[i] for i in stage.results]
        body(f"given = [{', '.join(self.variable[o.name] if o.name else str(o.number) for o in outputs)}]")
        names = dict.fromkeys(self.variable[o.name] for o in outputs if o.name)
        own = [name for name in names if name.isidentifier()]
        if own:
            body(f"del {', '.join(own)}")
        body("yield given")

    def watching(self) -> list[str]:
        """Returns the lines that begin a call in the debug mode for memory: they copy the inputs that are
        overwritten.
        """
        if self.plan.watched is None:
            return []
        over = {i: name for i, name in enumerate(self.inputs) if name in self.plan.over_inputs.values()}
        return ["w = watch.begin()", *([f"w.surround(inputs, {over!r})"] if over else [])]

    def step(self, body: Writer, step: _Step, bound: set[str]) -> None:
        """Write the lines of one step."""
        if step.externs is not None:
            return self.extern_step(body, step.externs, bound)
        self.make_room(body, step.groups, bound)
        if step.product is not None:
            self.product(body, step.product, bound)
        else:
            self.launches(body, step.groups, bound)

    def first_updates_inputs(self, step: _Step) -> bool:
        """Whether the first kernel of a step overwrites an input."""
        makers = self.plan.made_by(step.groups[0]) if step.groups else []
        return any(name in self.plan.over_inputs for name in makers)

    def ended_at(self, index: int) -> list[str]:
        """Returns, as text, the buffers whose memory would be reused after a step without the debug mode."""
        shared = self.plan.watched.shared if self.plan.watched is not None else ()
        return [repr(n) for n, at in self.plan.last_use.items() if n in shared and self.step_at(at) == index]

    def watched_step(self, body: Writer, index: int, step: _Step, bound: set[str]) -> None:
        """Write the lines of one step in the debug mode for memory: allocate its buffers, run it, check them."""
        run, self.made = Writer(), []
        self.step(run, step, bound)
        makes = [line for line in run.text().splitlines() if " = w.empty(" in line]
        body(*makes)
        repeats = bool(self.made) and not self.first_updates_inputs(step)
        named = ", ".join(f"{name!r}: {self.variable[name]}" for name in dict.fromkeys(self.made))
        taken = [name for name in self.plan.read_by(self.plan.steps[step.last]) if name in self.plan.dedicated]
        with body.block(f"for _ in w.step({index}, {{{named}}}, {taken}, {repeats}):"):
            body(*(line for line in run.text().splitlines() if line and line not in makes))
            body("pass")
        ended = self.ended_at(index)
        if ended:
            body(f"w.ended({', '.join(ended)})")

    def step_at(self, position: int) -> int:
        """Returns the index of the step that contains a position of the plan."""
        return next(i for i, step in enumerate(self.steps) if step.last >= position)

    def define_watch(self, w: Writer) -> None:
        """Define the facts that the debug mode for memory reports about each step: its name, and the user's lines of
        its values.
        """
        known = self.plan.watched.lines if self.plan.watched is not None else {}
        with w.block("watch = Watch([", "])"):
            for step in self.steps:
                made = [step.externs.name] if step.externs is not None else self.plan.made_by(step.groups[0])
                lines = {name: known[name] for name in made if name in known}
                name = _identifier(step.externs) if step.externs is not None else self.kernel_names(step.groups[0])
                w(f"({name!r}, {lines!r}),")

    def kernel_names(self, number: int) -> str:
        """Returns the names of the kernels of a group."""
        raise NotImplementedError

    def arena_ended(self) -> int | None:
        """Returns the step with the arena's last use; None if it is the last step."""
        if not (self.gives_arena_back and self.plan.memory.offsets):
            return None
        index = next(i for i, step in enumerate(self.steps) if step.last >= self.plan.arena_end)
        return index if index < len(self.steps) - 1 else None

    def sized(self, head: str, call: str) -> str:
        """Returns the text of a program with symbolic sizes."""
        names = ", ".join(map(str, self.symbols))
        w = Writer()
        docstring, _, rest = head.partition("\n")
        w(docstring, "")
        if self.arena_numbers:
            w(f"LIVES = {self.plan.memory.lives}", "")
        with w.block(f"def at({names}):"):
            w('"""The program for these sizes."""')
            if self.arena_numbers:
                w(f"offsets, room = place_buffers(LIVES, [{', '.join(map(str, self.plan.memory.sizes))}])")
            self.define_makers(w)
            w(*self.launchers, *rest.strip().splitlines(), "", *call.splitlines())
            externs = ", ".join(name for name, _ in self.extern_lines)
            w(f"return Version(call, [{externs}], {'workspaces' if self.uses_workspace() else None})")
        w("", f"call = Sized(at, {len(self.symbols)})")
        return w.text()

    def uses_workspace(self) -> bool:
        return bool(self.segments or self.views or self.binds)

    def head(self) -> str:
        w = Writer()
        w('"""Generated by smelt: runs kernels and external operations in order."""', "")
        for name, definition in self.extern_lines:
            w(f"{name} = {definition}")
        if not self.symbols:
            self.define_makers(w)
        self.define_segments(w)
        if self.plan.watched is not None:
            self.define_watch(w)
        if self.uses_workspace():
            addresses = ", ".join(f"{slot}: {text}" for slot, text in self.addresses().items())
            room = "room" if self.symbols and self.arena_numbers else self.plan.memory.size
            constants = ", ".join(f"{slot}: constants[{i}]" for i, slot in self.constant_slots.items())
            with w.block("workspaces = Workspaces(", ")"):
                w(f"{self.next_slot}, {room},", f"{{{addresses}}},", f"{{{constants}}},")
                with w.block("[", "],"):
                    for offset, dtype, shape, stride in self.views:
                        w(f"({offset}, {dtype}, {shape}, {stride}),")
                if self.offset_slots:
                    offsets = (f"{s}: offsets[{self.arena_numbers[name]}]" for name, s in self.offset_slots.items())
                    w(f"places={{{', '.join(offsets)}}},")
                if self.fault:
                    w(f"fault={self.fault},")
            w("take, give, release = workspaces.take, workspaces.give, workspaces.release")
        return w.text()

    def define_makers(self, w: Writer) -> None:
        """Define functions that allocate the tensors written outside of the arena."""
        for (shape, stride, dtype), name in self.makers.items():
            w(f"{name} = fresh({shape}, {stride}, {dtype})")

    # kernels

    def define_segments(self, w: Writer) -> None:
        """Define names for the segments."""
        raise NotImplementedError

    def addresses(self) -> dict[int, str]:
        """Returns the text of the value by slot, for slots that contain addresses of kernels, not of tensors."""
        raise NotImplementedError

    def make_room(self, body: Writer, groups: Sequence[int], bound: set[str]) -> None:
        """Write the lines that allocate the tensors outside of the arena that kernels write."""
        fresh: list[str] = []
        over: dict[str, str] = {}
        for number in groups:
            for name in self.plan.made_by(number):
                old = self.plan.over_inputs.get(name) or self.plan.over_others.get(name)
                if old is not None:
                    over[name] = old
                elif name in self.plan.stored and not self.in_arena(name) and name not in self.variable:
                    fresh.append(name)
                    self.variable[name] = f"o{next(self.fresh)}"
        for name in fresh:
            # no kernel writes a tensor without elements, so it is bound only if a kernel takes it
            self.allocate(body, name)
        for name, old in over.items():
            self.bind(body, old, bound)
            self.variable[name], self.slots[name] = self.variable[old], self.slots[old]
            bound.add(name)

    def launches(self, body: Writer, groups: Sequence[int], bound: set[str]) -> None:
        """Write the launches of a run of kernels."""
        raise NotImplementedError

    def product(self, body: Writer, product: Product, bound: set[str]) -> None:
        """Write the lines that run a product, by kernels or by the library, with its prologues and epilogue."""
        raise NotImplementedError

    def nbytes(self, name: str) -> IntLike:
        return metas_of(self.nodes[name]).nbytes

    def bind(self, body: Writer, name: str, bound: set[str]) -> None:
        if isinstance(self.nodes[name], (Input, Constant)) or name in bound:
            return
        bound.add(name)
        self.binds = True
        self.slots[name] = self.new_slot()
        body(f"table.bind({self.slots[name]}, {self.variable[name]})")

    def allocate(self, body: Writer, name: str) -> None:
        meta = metas_of(self.nodes[name])
        shape, stride = self.shown(name) or (meta.shape, self.plan.strides[name])
        if self.plan.watched is not None:
            self.made.append(name)
            body(f"{self.variable[name]} = w.empty({name!r}, {shape}, {stride}, {meta.dtype})")
            return
        maker = self.makers.setdefault((shape, stride, meta.dtype), f"make{len(self.makers)}")
        body(f"{self.variable[name]} = {maker}()")

    # externs

    def extern_step(self, body: Writer, node: Extern, bound: set[str]) -> None:
        refs = _tensors(node)
        arguments = ", ".join("None" if name is None else self.argument(name) for name in refs)
        function = self.define_extern(node, refs)
        if self.in_arena(node.name):
            body(f"{function}.into({self.argument(node.name)}, {arguments})")
            return
        alone = node.name in self.plan.dedicated or node.name in self.plan.over_others.values()
        if writes_into(node) and (alone or self.shown(node.name) is not None):
            self.variable[node.name] = f"o{next(self.fresh)}"
            self.allocate(body, node.name)
            body(f"{function}.into({self.argument(node.name)}, {arguments})")
            return
        if isinstance(node.meta, tuple):
            names = []
            for i in range(len(node.meta)):
                item = self.items.get(node.name, {}).get(i)
                names.append("_" if item is None else self.result_name(item))
            body(f"{', '.join(names)}{',' if len(names) == 1 else ''} = {function}.call({arguments})")
            if "_" in names:
                body("del _")
            return
        body(f"{self.result_name(node.name)} = {function}.call({arguments})")

    def define_extern(self, node: Extern, refs: Sequence[str | None]) -> str:
        """Define an extern and return its name in the text."""
        function = f"{_identifier(node)}_{len(self.extern_lines)}"
        step = self.shown_steps.externs[function] = Step(origins_of(self.plan.program, [node.name]))
        self.shown_steps.of[node.name] = step
        self.extern_lines.append((function, self.definition(node, refs)))
        return function

    def result_name(self, name: str) -> str:
        self.variable[name] = f"e{next(self.results)}"
        return self.variable[name]

    def argument(self, name: str) -> str:
        view = self.plan.views.get(name)
        if view is None:
            view = StridedView(name, metas_of(self.nodes[name]).shape, self.plan.strides[name], 0)
            if not self.in_arena(name) and self.shown(name) is None:
                return self.variable[name]
        if self.in_arena(view.base):
            return self.arena_view(view)
        base = self.variable[view.base]
        offset = f"{base}.storage_offset()" + ("" if same(view.offset, 0) else f" + {view.offset}")
        return f"{base}.as_strided({view.shape}, {view.stride}, {offset})"

    def shown(self, name: str) -> tuple[tuple[IntLike, ...], tuple[IntLike, ...]] | None:
        """Returns the (shape, strides) in which to allocate a value that is a result in another shape, or None; see
        products_write_outputs.py.
        """
        output = self.outputs.get(name)
        if output is None or output.meta is None:
            return None
        shape, stride = output.meta.shape, output.meta.stride
        # the result of a square product may be the transpose, which has the same shape
        same_order = same_all(stride, self.plan.strides[name])
        return None if same_all(shape, metas_of(self.nodes[name]).shape) and same_order else (shape, stride)

    def arena_view(self, view: StridedView) -> str:
        known = self.view_names.get(view)
        if known is None:
            dtype = metas_of(self.nodes[view.base]).dtype
            inside = view.offset * dtype.itemsize
            offset: int | str
            if self.symbols:
                offset = f"offsets[{self.arena_numbers[view.base]}]" + ("" if same(inside, 0) else f" + {inside}")
            else:
                offset = self.plan.memory.offsets[view.base] + int(inside)
            entry = (offset, dtype, view.shape, view.stride)
            known = self.view_names[view] = f"v[{self.views.setdefault(entry, len(self.views))}]"
        return known

    def definition(self, node: Extern, refs: Sequence[str | None]) -> str:
        inputs = ", ".join("None" if name is None else self.spec(name) for name in refs)
        metas = node.meta if isinstance(node.meta, tuple) else (node.meta,)
        outputs = ", ".join(f"({m.shape}, {m.stride}, {m.dtype})" for m in metas if hasattr(m, "stride"))
        if node.parameters:
            static = {p: a for p, a in zip(node.parameters, node.args, strict=True) if not _is_tensor(p, a, node)}
            params = "{" + ", ".join(f"{k!r}: {literal(v)}" for k, v in static.items()) + "}"
            return f"extern({node.target.name!r}, {params}, [{inputs}], [{outputs}])"
        slots = iter(range(len(refs)))
        args = literal(_slotted(node.args, slots))
        kwargs = literal(_slotted(node.kwargs, slots))
        devices = ""
        # a custom operator's metadata comes from a user's fake kernel, so results are checked
        if not is_of_torch(str(node.target)):
            devices = f", 'devices': {[m.device.type for m in metas if hasattr(m, 'stride')]}"
        line = f", 'line': {literal(node.line)}" if node.line else ""
        params = f"{{'args': {args}, 'kwargs': {kwargs}{devices}{line}}}"
        return f"extern({str(node.target)!r}, {params}, [{inputs}], [{outputs}])"

    def spec(self, name: str) -> str:
        meta = metas_of(self.nodes[name])
        view = self.plan.views.get(name)
        stride = view.stride if view is not None else self.plan.strides[name]
        return f"({meta.shape}, {stride}, {meta.dtype})"


REFUSE = ("if workspace.fault[0]:", "    workspaces.refuse(workspace)")
"""Lines that raise the error described by the fault word."""

TENSOR_OPTIONAL = frozenset({"bias", "seed"})
"""Names of parameters of prims that are a tensor or None."""


def _is_tensor(parameter: str, value: Any, node: Extern) -> bool:
    return isinstance(value, Ref) or (value is None and parameter in TENSOR_OPTIONAL)


def _tensors(node: Extern) -> list[str | None]:
    """Returns the tensor arguments in order; an absent optional tensor of a prim is None."""
    if node.parameters:
        pairs = zip(node.parameters, node.args, strict=True)
        return [a.name if isinstance(a, Ref) else None for p, a in pairs if _is_tensor(p, a, node)]
    return [*references(node.args), *references(node.kwargs)]


@dataclass(frozen=True)
class _Slot:
    index: int

    def __repr__(self) -> str:
        return f"Slot({self.index})"


def _slotted(value: Any, slots: Any) -> Any:
    match value:
        case Ref():
            return _Slot(next(slots))
        case tuple():
            return tuple(_slotted(item, slots) for item in value)
        case list():
            return [_slotted(item, slots) for item in value]
        case dict():
            return {key: _slotted(item, slots) for key, item in value.items()}
    return value


def literal(value: Any) -> str:
    """Returns a constant argument as Python text."""
    match value:
        case torch.device():
            return f"torch.device({quoted(str(value))})"
        case None | bool() | int() | float() | str():
            return scalar(value)
        case tuple():
            return "(" + "".join(f"{literal(item)}, " for item in value) + ")"
        case list():
            return "[" + ", ".join(literal(item) for item in value) + "]"
        case dict():
            return "{" + ", ".join(f"{literal(k)}: {literal(item)}" for k, item in value.items()) + "}"
    return repr(value)


def _identifier(node: Extern) -> str:
    name = getattr(node.target, "name", None)
    text = name if isinstance(name, str) else str(node.target).split(".")[1]
    return "".join(c if c.isalnum() else "_" for c in text)
