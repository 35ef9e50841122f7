"""Finds the operations of the user's program from which the values of a schedule come."""

from __future__ import annotations

from collections.abc import Container, Iterable

from torch import fx

from smelt.abi.steps import Origin
from smelt.loops.ir import LoopProgram, Pointwise
from smelt.schedule.plan import Schedule


def computed_by(plan: Schedule, number: int) -> list[str]:
    """Returns the values that the kernels of a unit compute, including those without a buffer, operands first."""
    return with_inlined(plan.program, plan.made_by(number), plan.stored)


def with_inlined(program: LoopProgram, names: Iterable[str], stored: Container[str]) -> list[str]:
    """Returns the values, each after the pointwise values without a buffer that are inlined into it."""
    found: dict[str, None] = {}
    begun: set[str] = set()
    stack = [(name, False) for name in reversed([*names])]
    while stack:
        name, complete = stack.pop()
        if complete:
            found[name] = None
        elif name not in begun:
            begun.add(name)
            stack.append((name, True))
            inputs = dict.fromkeys(program.nodes[name].inputs)
            stack += [
                (each, False)
                for each in reversed(inputs)
                if each not in stored and isinstance(program.nodes.get(each), Pointwise)
            ]
    return [*found]


def origins_of(program: LoopProgram, names: Iterable[str]) -> tuple[Origin, ...]:
    """Returns the operations from which these values were lowered, each once, in the order of the values."""
    found: dict[tuple[int, str, bool], Origin] = {}
    unknown: dict[str, Origin] = {}
    for name in names:
        node = _call_of(program, name)
        meta = {} if node is None else node.meta
        operation, at = meta.get("from") or meta.get("of"), meta.get("line")
        if operation is None or at is None:
            unknown.setdefault(name, Origin(None, name))
            continue
        backward = "of" in meta
        key = id(at), operation, backward
        if key not in found:
            found[key] = Origin(at, operation, backward)
    return tuple(found.values() or unknown.values())


def _call_of(program: LoopProgram, name: str) -> fx.Node | None:
    """Returns the call from which a value was lowered, even if the schedule added a suffix to its name (`sum_1_part`);
    None if it is unknown.
    """
    while name not in program.calls and "_" in name:
        name = name.rpartition("_")[0]
    found = program.calls.get(name)
    return None if found is None else found[0]
