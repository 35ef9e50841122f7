"""Facts about a schedule for reports: bytes and operations of each unit, and how much memory is in use after it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from smelt.abi.program_facts import ProgramFacts, Unit
from smelt.abi.steps import Step, Steps
from smelt.graph.ir.meta import TensorMeta
from smelt.loops.facts import facts_of
from smelt.loops.ir import Extern, Item, Ref
from smelt.schedule.group import Group
from smelt.schedule.origins import computed_by, origins_of
from smelt.schedule.plan import Schedule
from smelt.shapes.size import hint

TextOf = Callable[[int], tuple[str, str]]
"""Function from the number of a unit to the name and the text of its kernels."""


def describe_program(name: str, target: str, plan: Schedule, steps: Steps, text_of: TextOf) -> ProgramFacts:
    """Collect all facts about one program except times, which the steps contain."""
    facts = ProgramFacts(name, target, arena=plan.memory.size, symbolic=bool(plan.program.symbols))
    facts.types = {name: _type(plan, name) for name in plan.program.nodes}
    for number in plan.steps:
        made = _made_by(plan, number)
        step = steps.of.get(made[0]) or _step(plan, number)
        facts.units.append(_unit(plan, number, made, step, text_of, facts.sources))
    facts.memory = _memory(plan)
    used = {name for unit in facts.units for name in (*unit.makes, *unit.reads)}
    facts.types = {name: text for name, text in facts.types.items() if name in used}
    return facts


def _is_library(plan: Schedule, number: int) -> bool:
    return number in plan.externs and number not in plan.products


def _made_by(plan: Schedule, number: int) -> list[str]:
    return [plan.externs[number].name] if _is_library(plan, number) else plan.made_by(number)


def _step(plan: Schedule, number: int) -> Step:
    """Make the step of a unit for which codegen wrote none."""
    names = _made_by(plan, number) if _is_library(plan, number) else computed_by(plan, number)
    return Step(origins_of(plan.program, names))


def _unit(plan: Schedule, number: int, made: list[str], step: Step, text_of: TextOf, sources: dict[str, str]) -> Unit:
    if _is_library(plan, number):
        return _library_call(plan, plan.externs[number], step)
    product = plan.products.get(number)
    groups = [plan.groups[n] for n in (product.group_numbers if product is not None else [number])]
    name, text = text_of(number)
    if text:
        sources[name] = text
    reads = [a for group in groups for a in group.accesses if a not in made]
    flops, kind, shape, dtype = sum(map(_flops, groups)), "kernel", _shape(groups[0]) if groups else "", ""
    if product is not None:
        flops += _flops_of_call(plan, product.extern)
        dtype = _dtype_of_call(plan, product.extern)
        reads += [operand.name for operand in product.operands]
        kind, shape = "product", ""
    read, makes = tuple(dict.fromkeys(reads)), tuple(name for name in made if name in plan.stored)
    source, moved = name if text else "", (_bytes_of(plan, read), _bytes_of(plan, makes))
    return Unit(kind, name, step, source, shape, makes, read, *moved, flops, dtype)


def _library_call(plan: Schedule, extern: Extern, step: Step) -> Unit:
    reads = tuple(dict.fromkeys(plan.buffer_of(name) for name in extern.inputs))
    name = getattr(extern.target, "name", None)
    name = name if isinstance(name, str) else str(extern.target)
    written, flops = sum(map(_bytes, _metas(extern.meta))), _flops_of_call(plan, extern)
    dtype, read = _dtype_of_call(plan, extern), _bytes_of(plan, reads)
    return Unit("library call", name, step, "", "", (extern.name,), reads, read, written, flops, dtype)


def _shape(group: Group) -> str:
    kind = "scatter" if group.scatter else "pointwise" if group.flat else "rows"
    return f"{kind} over {' x '.join(str(v.size) for v in group.order) or '1'}"


def _metas(meta: Any) -> list[TensorMeta]:
    return [m for m in (meta if isinstance(meta, tuple) else (meta,)) if isinstance(m, TensorMeta)]


def _type(plan: Schedule, name: str) -> str:
    node = plan.program.nodes[name]
    return ", ".join(map(str, _metas(node.meta)))


def _bytes(meta: TensorMeta) -> int:
    return int(hint(meta.nbytes))


def _bytes_of(plan: Schedule, names: tuple[str, ...]) -> int:
    """Returns the total bytes of these buffers."""
    nodes = (plan.program.nodes.get(name) for name in names)
    return sum(_bytes(meta) for node in nodes if node is not None for meta in _metas(node.meta))


def _flops(group: Group) -> int:
    """Returns the operations of a group: the sum over its values of operations per element times elements."""
    total = 0
    for member in group.members.values():
        shape = getattr(member.node, "source_shape", None) or getattr(member.node, "ranges", None)
        elements = math.prod(int(hint(n)) for n in (shape if shape is not None else member.node.meta.shape))
        total += elements * max(member.ops, 1 if shape is not None else 0)
    return total


def _flops_of_call(plan: Schedule, extern: Extern) -> int:
    """Returns the operations of a call; known for products, convolutions and attention (see the primitives'
    records).
    """
    count = facts_of(extern.target).flops
    if count is None:
        return 0
    return int(hint(count(_metas(extern.meta), _operands(plan, extern))))


def _operands(plan: Schedule, extern: Extern) -> list[TensorMeta]:
    return [_metas(plan.program.nodes[ref.name].meta)[0] for ref in extern.args if isinstance(ref, Ref)]


def _dtype_of_call(plan: Schedule, extern: Extern) -> str:
    """Returns the dtype of the operands of a product, convolution or attention; "" for other calls."""
    if facts_of(extern.target).flops is None:
        return ""
    operands = _operands(plan, extern)
    return str(operands[0].dtype).removeprefix("torch.") if operands else ""


def _memory(plan: Schedule) -> list[int]:
    """Returns the bytes of the program's results and intermediates that are live after each unit."""
    kept = {output.name for output in plan.program.outputs}
    change = [0] * (len(plan.steps) + 1)
    for position, number in enumerate(plan.steps):
        for name in _made_by(plan, number):
            node = plan.program.nodes[name]
            over = name in plan.memory.in_place or name in plan.over_inputs or name in plan.over_others
            if isinstance(node, Item) or over or not (name in plan.stored or isinstance(node, Extern)):
                continue
            size = sum(map(_bytes, _metas(node.meta)))
            change[position] += size
            if name not in kept:
                change[min(plan.last_use.get(name, position), len(plan.steps) - 1) + 1] -= size
    levels, level = [], 0
    for each in change[:-1]:
        level += each
        levels.append(level)
    return levels
