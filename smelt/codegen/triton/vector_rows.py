"""Reads and writes, in whole words, of rows that are not aligned to words (see vector_access.py)."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from smelt.codegen.scope import V
from smelt.codegen.triton.body import TileBody
from smelt.codegen.triton.tiles import Axis, is_fixed, padded
from smelt.codegen.triton.vector_access import Words
from smelt.loops.ir import Index
from smelt.schedule.plan import Schedule
from smelt.schedule.realize import metas_of
from smelt.shapes.expr import Expr, flat_index


class WordRows(TileBody):
    """Adds word access to a body renderer. `words`: the alignment of rows along the last axis, or None if they are
    aligned.
    """

    axes: list[Axis]

    def __init__(self, plan: Schedule) -> None:
        super().__init__(plan)
        self.words: Words | None = None
        self.starts: dict[str, str] = {}
        self.completed_loads: set[str] = set()
        self.one_by_one = False

    def bit(self, axis: Axis) -> int:
        return 1 << self.axes.index(axis)

    def open_words(self, axis: Axis, words: Words) -> None:
        """Open an axis whose blocks begin at a word boundary of each row."""
        bit, name = self.bit(axis), f"{axis.name}index"
        _, skip = self.row_start(words)
        depth = bit | skip.depth
        mask, in_row = f"{axis.name}mask", f"{axis.name}0"
        inside = f"({name} >= {skip.text}) & ({name} < {skip.text} + {axis.size})"
        self.scopes.line(f"{mask} = {inside}", depth)
        self.axis_masks[bit] = V(mask, torch.bool, depth)
        self.names[words.var], self.depths[words.var] = in_row, depth
        self.scopes.line(f"{in_row} = {name} - {skip.text}", depth)

    def ends_of(self, axis: Axis) -> str:
        """Returns a test of whether a walked block reaches beyond its row; empty if each element has to be masked."""
        if self.words is None or not axis.walked or axis is not self.axes[-1]:
            return ""
        start = self.starts[axis.name]
        return f"({start} == 0) | ({start} + {axis.block} > {axis.size})"

    def row_start(self, words: Words) -> tuple[V, V]:
        """Returns (offset of the word in which a row begins, number of elements from there to the row)."""
        depth = self.depth_of(words.start)
        start = self.scopes.define("", self.text_of(words.start), torch.int64, depth, "start")
        base = self.scopes.define("", f"{start.text} // {words.size} * {words.size}", torch.int64, depth, "base")
        return base, self.scopes.define("", f"{start.text} - {base.text}", torch.int64, depth, "skip")

    def in_words(self, name: str, offset: Expr) -> tuple[str, list[V], int] | None:
        """Returns (pointers, masks of the other axes, axes) of an offset if it belongs to an element of the row, else
        None.
        """
        words = self.words
        if words is None or self.masks or not words.holds(offset):
            return None
        axis = self.axes[-1]
        base, skip = self.row_start(words)
        depth = self.bit(axis) | skip.depth
        others = [m for bit, m in self.axis_masks.items() if bit != self.bit(axis) and depth & bit]
        for mask in others:
            depth |= mask.depth
        return f"{self.arguments.pointer(name)} + ({base.text} + {axis.name}index)", others, depth

    def pointers(self, name: str, offset: Expr, also: int = 0) -> tuple[str, str, int]:
        """Returns pointers and mask of a read of the row: all words with an element of it that are in the buffer (see
        `completed`).
        """
        found = self.in_words(name, offset)
        if found is None or self.words is None:
            return super().pointers(name, offset, also)
        text, masks, depth = found
        axis = self.axes[-1]
        if self.one_by_one:
            return text, " & ".join([*(m.text for m in masks), f"{axis.name}mask"]), depth
        end = self.row_end(self.words, axis, "" if axis.walked else self.unaligned_end_size(name, self.words.size))
        return text, " & ".join([*(m.text for m in masks), f"({axis.name}index < {end})"]), depth

    def reaches_past_end(self, names: Iterable[str]) -> str:
        """Returns a test of whether a word of the tile's rows reaches beyond the end of one of these buffers; empty if
        none can.
        """
        words = self.words
        if words is None:
            return ""
        totals = dict.fromkeys(total for name in names if (total := self.unaligned_end_size(name, words.size)))
        if not totals:
            return ""
        base, skip = self.row_start(words)
        row = f"{base.text} + {skip.text}"
        furthest = f"tl.max({row})" if skip.depth else row
        tests = [f"({furthest} + {padded(self.axes[-1].size, words)} > {total})" for total in totals]
        return self.scopes.define("", " | ".join(tests), torch.bool, skip.depth, "last").text

    def row_end(self, words: Words, axis: Axis, total: str) -> str:
        """Returns the end of a row's last word; with `total`, the end of its last word that is in a buffer of that
        size.
        """
        base, skip = self.row_start(words)
        reach = f"{skip.text} + {padded(axis.size, words)}"
        if total:
            reach = f"tl.minimum({reach}, {total} - {base.text})"
        end = f"({reach}) // {words.size} * {words.size}"
        return self.scopes.define("", end, torch.int64, skip.depth, "end").text

    def unaligned_end_size(self, name: str, size: int) -> str:
        """Returns the size of a buffer in elements, if its end may not be aligned to words; else empty.

        The word with the last element then reaches beyond the buffer.
        """
        shape, strides = metas_of(self.plan.program.nodes[name]).shape, self.plan.strides[name]
        total = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        return "" if is_fixed(total) and int(total) % size == 0 else self.size(total)

    def completed(self, name: str, index: Index, load: str, axes: int) -> str:
        """Read the elements of a buffer's last word one by one, if that word reaches beyond the buffer.

        Only programs with the buffer's last row do so, and only in the blocks that contain its end. Walked rows have a
        separate loop for it: a branch in the loop costs a third of its speed.
        """
        found, words, axis = self.in_words(name, flat_index(index, self.plan.strides[name])), self.words, self.axes[-1]
        if found is None or words is None or axis.walked:
            return load
        total = self.unaligned_end_size(name, words.size)
        if not total:
            return load
        address, masks, _ = found
        value = self.scopes.define("", load, torch.int64, axes).text
        if value in self.completed_loads:
            return value
        self.completed_loads.add(value)
        test = self.reaches_past_end([name])
        start, end = self.starts[axis.name], self.row_end(words, axis, total)
        if start:
            test = f"{test} & ({start} + {axis.block} > {int(axis.size) - words.size})"
        rest = " & ".join([f"{axis.name}mask", f"({axis.name}index >= {end})", *(m.text for m in masks)])
        self.scopes.line(f"if {test}:", axes)
        self.scopes.line(f"    {value} = tl.where({rest}, tl.load({address}, {rest}, other=0), {value})", axes)
        return value

    def store_words(self, text: str, masks: list[V], depth: int, value: str) -> None:
        """Write the words that are entirely in the row, and, in blocks with the row's ends, the remaining elements one
        by one.
        """
        words, axis = self.words, self.axes[-1]
        assert words is not None
        name, size = f"{axis.name}index", words.size
        _, skip = self.row_start(words)
        first = f"({skip.text} + {size - 1}) // {size} * {size}"
        last = f"({skip.text} + {axis.size}) // {size} * {size}"
        first, last = (self.scopes.define("", t, torch.int64, skip.depth, "end").text for t in (first, last))
        whole = self.scopes.define("", f"({name} >= {first}) & ({name} < {last})", torch.bool, depth, "whole").text
        others = "".join(f" & {m.text}" for m in masks)
        self.scopes.later(f"tl.store({text}, {value}, {whole}{others})", depth)
        start, indent = self.starts[axis.name], ""
        if start:
            ends = f"({start} < {size}) | ({start} + {axis.block} > {int(axis.size) - size})"
            self.scopes.later(f"if {ends}:", depth)
            indent = "    "
        rest = f"{axis.name}mask & ({whole} == 0){others}"
        self.scopes.later(f"{indent}tl.store({text}, {value}, {rest})", depth)
