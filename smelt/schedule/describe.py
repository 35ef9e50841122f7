"""Describes a schedule as text: kernels with loops and values, memory, and each fusion decision with its reason."""

from __future__ import annotations

from collections import Counter

from smelt.loops.describe import extern_name
from smelt.schedule.group import Group, Role
from smelt.schedule.plan import Schedule
from smelt.schedule.realize import metas_of


def describe(plan: Schedule) -> str:
    """Describe the whole schedule."""
    lines = [_summary(plan), ""]
    bundles = {bundle[0]: bundle for bundle in plan.bundles}
    for number in plan.steps:
        if number in bundles:
            lines.append(f"the next {len(bundles[number])} kernels need nothing of each other")
        group = plan.groups.get(number)
        if group is None:
            extern = plan.externs[number]
            lines.append(f"extern {extern.name} = {extern_name(extern.target)}")
        else:
            lines += _group(group, plan)
    lines += ["", *_memory(plan), "", *_decisions(plan)]
    return "\n".join(lines) + "\n"


def _summary(plan: Schedule) -> str:
    values = sum(len(g.members) for g in plan.groups.values())
    return f"{len(plan.groups)} kernels for {values} values, {len(plan.externs)} external calls"


def _group(group: Group, plan: Schedule) -> list[str]:
    kind = "scatter" if group.scatter else "pointwise" if group.flat else "rows"
    loops = []
    for role in Role:
        sizes = "x".join(str(v.size) for v in group.variables(role))
        if sizes and not group.flat:
            loops.append(f"{role.value} {sizes}")
    head = f"kernel {kind} over {', '.join(loops) or 'x'.join(str(v.size) for v in group.order) or '1'}"
    members = [
        f"    {name}: {metas_of(member.node)} {member.nest_level.value}{_describe_storage(name, plan)}"
        for name, member in group.members.items()
    ]
    read = [name for name in group.accesses if name not in group.members]
    return [head, *members, f"    reads {', '.join(read) or 'nothing'}"]


def _describe_storage(name: str, plan: Schedule) -> str:
    """Describe where a value is stored, and which value it overwrites."""
    offset = plan.memory.offsets.get(name)
    where = "" if name not in plan.stored else " -> output" if offset is None else f" -> arena {offset}"
    where = " -> memory of its own" if name in plan.dedicated else where
    over = plan.over_inputs.get(name) or plan.over_others.get(name)
    where += f" (over {over})" if over else ""
    return where + (f" (over {plan.memory.in_place[name]})" if name in plan.memory.in_place else "")


def _memory(plan: Schedule) -> list[str]:
    memory = plan.memory
    saved = 100 * (1 - memory.size / memory.naive) if memory.naive else 0.0
    return [
        f"arena {memory.size} bytes for {memory.naive} bytes of intermediates ({saved:.0f} % reused), "
        f"{len(memory.in_place)} written in place; {plan.needed} bytes with what lies elsewhere"
    ]


def _decisions(plan: Schedule) -> list[str]:
    merged = [d for d in plan.decisions if d.refusal is None]
    refused = {(d.left, d.right): d for d in plan.decisions if d.refusal is not None}
    lines = [f"fused {len(merged)} pairs:"]
    lines += [f"    {d.left} with {d.right}: saves {d.saved} bytes" for d in merged]
    reasons = Counter(d.refusal for d in refused.values())
    lines.append(f"refused {len(refused)} pairs ({len(reasons)} reasons):")
    lines += [f"    {d.left} with {d.right} ({d.saved} bytes): {d.refusal}" for d in refused.values()]
    return lines
