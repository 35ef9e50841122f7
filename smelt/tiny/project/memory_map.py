"""The memory map of a program as text: the use of the arena in the course of its calls, of RAM and of flash."""

from __future__ import annotations

from smelt.tiny.plan import Layout
from smelt.tiny.program import Program


def sizes_of(program: Program, layout: Layout) -> dict[str, int]:
    """Name -> bytes, of each value and scratch memory in the layout."""
    sizes = {name: value.bytes for name, value in program.values.items() if name in layout.offsets}
    for name in layout.offsets:
        if name not in sizes:
            sizes[name] = program.calls[layout.lives[name][0]].scratch
    return sizes


def busiest(program: Program, layout: Layout) -> tuple[int, list[tuple[str, int]]]:
    """The index of the call during which most bytes are in use, and (name, bytes) of the values in use then, largest
    first.
    """
    sizes = sizes_of(program, layout)
    calls = range(len(program.calls))

    def tensors_in_arena(call: int) -> list[tuple[str, int]]:
        over = {layout.in_place[name] for name in layout.in_place if layout.lives[name][0] == call}
        live = [n for n, (first, last) in layout.lives.items() if first <= call <= last and n not in over]
        return sorted(((name, sizes[name]) for name in live), key=lambda one: (-one[1], one[0]))

    number = max(calls, key=lambda call: sum(size for _, size in tensors_in_arena(call)))
    return number, tensors_in_arena(number)


def as_text(program: Program, layout: Layout, rows: dict[str, int], budgets: dict[str, int]) -> str:
    """The memory map: totals, the call that uses most memory, and each value with its offset and the calls during which
    it lives.

    Args:
        rows: category -> bytes.
        budgets: "RAM" and "flash" -> bytes.
    """
    number, tensors_in_arena = busiest(program, layout)
    sizes = sizes_of(program, layout)
    lines = ["budget"]
    lines += [
        f"  {name:<28}{size:>12,} B"
        for name, size in {**rows, **{f"{k} budget": v for k, v in budgets.items()}}.items()
    ]
    lines += ["", f"arena {layout.size:,} B; {layout.least:,} B are in use at once at the busiest call"]
    lines += [f"busiest: call {number} of {len(program.calls)}, {_title(program, number)}"]
    lines += [f"  {name:<44}{size:>10,} B" for name, size in tensors_in_arena]
    lines += ["", f"{'offset':>8} {'bytes':>8} {'calls':>11}  value"]
    for name in sorted(layout.offsets, key=lambda one: (layout.lives[one][0], layout.offsets[one])):
        first, last = layout.lives[name]
        over = f" (over {layout.in_place[name]})" if name in layout.in_place else ""
        lines.append(f"{layout.offsets[name]:>8} {sizes[name]:>8} {first:>5}-{last:<5}  {name}{over}")
    lines += ["", *(f"{i:>5}  {_title(program, i)}" for i in range(len(program.calls)))]
    return "\n".join(lines) + "\n"


def _title(program: Program, number: int) -> str:
    call = program.calls[number]
    return f"{call.kernel}{'' if call.op is None else f' {call.op.name}'}"
