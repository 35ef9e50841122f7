"""Rows that are not aligned to 16-byte words: tiles begin at the word before the row, to read and write whole words.

A row of 50,257 scores of bfloat16 may begin at any even address, so Triton would read one element at a time. Instead, a
tile's offsets are counted from the last word boundary at or before its row: `base` is the offset of that boundary in
memory, `skip` the number of elements between it and the row.

    base = start // 8 * 8
    skip = start - base
    r0 = rindex - skip                              # the position in the row, from -7 on
    rmask = (rindex >= skip) & (rindex < skip + n)

Reads take whole words. A word with an element of the row is in the buffer, which is aligned to words; its other
elements are not used. Only the buffer's last word may reach beyond its end: the row's elements in it are read one by
one. Writes take the words that are entirely in the row, and write its elements at both ends one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from smelt.schedule.group import Member
from smelt.schedule.plan import Schedule
from smelt.schedule.realize import metas_of
from smelt.shapes.expr import Expr, Var, flat_index, variable

WORD = 16
"""Number of bytes of the widest load."""


@dataclass(frozen=True)
class Words:
    """Alignment of rows along `var`, which begin at offset `start`; it may not be a multiple of `size`, the number of
    elements of a word.
    """

    var: Var
    start: Expr
    size: int

    def holds(self, offset: Expr) -> bool:
        """Whether an offset is the offset of an element of the row."""
        return offset - variable(self.var) == self.start


def row_words(members: Iterable[Member], plan: Schedule, var: Var) -> Words | None:
    """Returns the common alignment of rows along `var`, if most accesses along it begin at one offset that is not
    aligned; else None.
    """
    sizes: dict[Expr, list[int]] = {}
    others = 0
    for name, offset in accesses(members, plan):
        if var not in set(offset.atoms()):
            continue
        start = offset - variable(var)
        if var in set(start.atoms()):
            others += 1
            continue
        sizes.setdefault(start, []).append(_dtype(name, plan).itemsize)
    if not sizes:
        return None
    start = max(sizes, key=lambda s: len(sizes[s]))
    size = WORD // min(sizes[start])
    others += sum(len(each) for other, each in sizes.items() if other != start)
    if size < 2 or others >= len(sizes[start]) or not _plain(start) or _is_multiple(start, size):
        return None
    return Words(var, start, size)


def accesses(members: Iterable[Member], plan: Schedule) -> Iterable[tuple[str, Expr]]:
    """Yields the buffers that are read or written, with the offset of each access."""
    listed = list(members)
    own = {member.name for member in listed}
    for member in listed:
        if member.name in plan.stored:
            yield member.name, flat_index(member.index, plan.strides[member.name])
        for read in member.reads:
            if read.name in plan.stored and read.name not in own:
                yield read.name, flat_index(read.index, plan.strides[read.name])


def _dtype(name: str, plan: Schedule) -> torch.dtype:
    return metas_of(plan.program.nodes[name]).dtype


def _plain(start: Expr) -> bool:
    """Whether an offset is a sum of loop variables with constant factors, and never negative."""
    numbers = (start.const, *(c for _, c in start.terms))
    return start.is_linear() and all(isinstance(n, int) and n >= 0 for n in numbers)


def _is_multiple(start: Expr, size: int) -> bool:
    return all(int(n) % size == 0 for n in (start.const, *(c for _, c in start.terms)))
