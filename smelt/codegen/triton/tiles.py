"""Turns a group's variables into the tile of a Triton kernel: axes that the grid divides, and axes that programs walk.

    FLAT    every element by itself: one axis (x); two (y, x) where accesses are contiguous along different variables;
            or the columns of one row (x), where each program has one row because rows have values of their own or are
            not aligned to words
    ROW     x: rows, r: what a row reduction folds, whole in a tile or in a loop
    COLUMN  x: columns (contiguous), r: the rows that a column reduction folds, in a loop
    MIXED   r: a chunk of the rows, which a program walks; i: all columns. One loop folds rows and columns

Block sizes are powers of two. The first configuration of a kernel is the heuristic's; max-autotune tries the others.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from smelt.abi.kernel_source import Config, ceil_power, floor_power
from smelt.codegen.coordinates import Coordinates
from smelt.codegen.nest import Nest
from smelt.codegen.triton.vector_access import Words, accesses, row_words
from smelt.loops.ir import Pointwise
from smelt.schedule.dependencies import weight
from smelt.schedule.group import Group, NestLevel, Role
from smelt.schedule.machine import Tiles
from smelt.schedule.plan import Schedule
from smelt.schedule.realize import metas_of
from smelt.shapes.expr import Var, flat_index
from smelt.shapes.size import IntLike, Size, hint, is_symbolic

STAGES = "STAGES"
"""Name of the constant for the number of pipeline stages: rows of the mixed form are loaded while earlier ones are
folded.
"""


class Form(enum.Enum):
    """The forms of a kernel's programs and tiles; see above."""

    FLAT = "flat"
    ROW = "row"
    COLUMN = "column"
    MIXED = "mixed"


@dataclass
class Axis:
    """One dimension of the tile.

    `walked`: the axis is a loop over blocks; `single_block`: one block covers it; else the grid divides it.
    """

    name: str
    variables: list[Var]
    walked: bool = False
    single_block: bool = False

    @property
    def block(self) -> str:
        return f"{self.name.upper()}BLOCK"

    @property
    def size(self) -> IntLike:
        return math.prod(v.size for v in self.variables)


@dataclass
class Tiling:
    """The axes of the tile in order, and the variables that have a single value in a program.

    `extents`: for each dimension of the grid, the number of elements and the name of the constant that is their block
    size. The variables with a single value per program come first, or last if `rows_last`. `words`: the alignment of
    rows along the last axis relative to words, if rows may begin anywhere.
    """

    nest: Nest
    form: Form
    axes: list[Axis]
    program: list[Var]
    configs: tuple[Config, ...]
    extents: tuple[tuple[IntLike, str | None], ...]
    rows_last: bool = False
    words: Words | None = None

    @property
    def online(self) -> bool:
        """Whether sums of exp(x - max(x)) are folded in the loop of the maximum, so that rows are read once less."""
        return self.form is Form.ROW and any(axis.walked for axis in self.axes)

    @property
    def folded(self) -> Axis | None:
        """The axis that is walked, or that row reductions fold; None without such an axis."""
        return next((axis for axis in self.axes if axis.name == "r"), None)


def make_tiling(group: Group, plan: Schedule, autotune: bool = False, bundled: bool = False) -> Tiling:
    """Choose the tile of a group. `bundled`: the grid has one dimension, since a bundle divides program numbers."""
    return _Builder(group, plan, autotune, bundled).build()


class _Builder(Coordinates):
    def __init__(self, group: Group, plan: Schedule, autotune: bool, bundled: bool) -> None:
        super().__init__(group, plan)
        self.autotune, self.bundled, self.tiles = autotune, bundled, plan.machine.tiles

    def build(self) -> Tiling:
        self.arrange()
        kept, folded, inner = (self.of(role) for role in (Role.KEPT, Role.FOLDED, Role.INNER))
        nest = Nest(self.members, kept, folded, inner, False, self.group.flat, self.limits)
        has = self.group.has
        if self.group.flat or not (has(NestLevel.ROW) or has(NestLevel.COLUMN)):
            return self.flat(nest)
        if not has(NestLevel.COLUMN):
            return self.rows(nest)
        if has(NestLevel.ROW) or has(NestLevel.OUTER):
            return self.mixed(nest)
        return self.columns(nest)

    def flat(self, nest: Nest) -> Tiling:
        rival = self.rival(self.tiles.min_side_elements)
        if rival is None:
            by_rows = None if self.bundled else self.by_rows(nest)
            if by_rows is not None:
                return by_rows
            axis = Axis("x", list(self.order))
            configs = flat_configs(axis.size, self.tiles, self.flat_elements(), self.autotune)
            return Tiling(nest, Form.FLAT, [axis], [], configs, ((axis.size, "XBLOCK"),))
        last = self.order[-1]
        y = Axis("y", [*(v for v in self.order if v not in (rival, last)), rival])
        x = Axis("x", [last])
        tiles = [Config((("XBLOCK", 64), ("YBLOCK", self.tiles.short_side_elements)), 4)]
        if self.autotune:
            tiles += [Config((("XBLOCK", b), ("YBLOCK", n)), w) for b, n, w in ((32, 64, 4), (64, 64, 8), (128, 16, 4))]
        return Tiling(nest, Form.FLAT, [y, x], [], tuple(tiles), ((y.size, "YBLOCK"), (x.size, "XBLOCK")))

    def flat_elements(self) -> int:
        """Returns the number of elements of a thread of the flat form: half as many if values take much arithmetic."""
        return (
            self.tiles.flat_thread_elements
            if self.arithmetic() < self.tiles.much_additions
            else self.tiles.flat_thread_elements // 2
        )

    def by_rows(self, nest: Nest) -> Tiling | None:
        """Returns the flat form by rows: a program's row is found without a division, its row values are read once, and
        rows need not be aligned. None if that form does not fit.
        """
        if len(self.order) < 2 or self.limits:
            return None
        *outer, last = self.order
        rows = math.prod(v.size for v in outer)
        if is_symbolic([rows, last.size]) or int(rows) > self.plan.machine.hardware.grid_rows:
            return None
        words = row_words(self.members.values(), self.plan, last)
        if words is None and not self.has_row_values(last):
            return None
        width = padded(last.size, words)
        blocks = self.tiles.row_block_elements if words is not None else self.tiles.row_block_elements[:1]
        block = next((b for b in blocks if -width % b <= width / 8), None)
        if block is None:
            return None
        configs = [Config((("XBLOCK", block),), max(1, block // (32 * self.flat_elements())))]
        if self.autotune:
            sizes = ((1024, 4), (2048, 4), (2048, 8), (4096, 8))
            configs += [Config((("XBLOCK", b),), w) for b, w in sizes if -width % b <= width / 8]
        x = Axis("x", [last])
        extents = ((width, "XBLOCK"), (rows, None))
        return Tiling(nest, Form.FLAT, [x], outer, _distinct(configs), extents, True, words)

    def has_row_values(self, last: Var) -> bool:
        """Whether a value is common to all elements of a row."""
        for _, offset in accesses(self.members.values(), self.plan):
            atoms = set(offset.atoms())
            if last not in atoms and atoms:
                return True
        return False

    def stores_along(self, axis: Axis) -> bool:
        """Whether a value is stored along an axis."""
        inside = {*axis.variables}
        stored = (m for m in self.members.values() if m.name in self.plan.stored)
        return any(inside & set(flat_index(m.index, self.plan.strides[m.name]).atoms()) for m in stored)

    def words_of(self, axis: Axis) -> Words | None:
        """Returns the alignment to words of rows along an axis of one variable; None if word access does not help."""
        if self.limits or len(axis.variables) != 1 or is_symbolic([axis.size]):
            return None
        return row_words(self.members.values(), self.plan, axis.variables[0])

    def reads_wide_segments(self, columns: int, chunks: int) -> bool:
        """Whether blocks of two segments waste little and still give enough programs."""
        segment = self.tiles.segment_columns
        even = columns % (2 * segment) == 0 or (columns % segment and -columns % (2 * segment) <= columns // 64)
        return bool(even) and chunks * columns >= self.tiles.wide_programs * 2 * segment

    def rows(self, nest: Nest) -> Tiling:
        x, r = Axis("x", [*nest.kept, *nest.folded]), Axis("r", list(nest.inner))
        width, rows = hint(r.size), hint(x.size)
        r.single_block = not is_symbolic([r.size]) and width <= self.longest()
        r.walked = not r.single_block
        words = self.words_of(r)
        if (
            words is not None
            and r.single_block
            and (self.stores_along(r) or ceil_power(padded(width, words)) > ceil_power(width))
        ):
            # both ends of each row would be written element by element; a larger tile costs more than words save
            words = None
        configs = self.whole_rows(r, rows) if r.single_block else self.walked_rows(r, rows, words)
        return Tiling(nest, Form.ROW, [x, r], [], _distinct(configs), ((x.size, "XBLOCK"),), words=words)

    def longest(self) -> int:
        """Returns the maximum length of a row that one tile may have: shorter if many row values are live at once."""
        live = len({read.name for m in self.members.values() for read in m.reads})
        return (
            self.tiles.max_row_elements
            if live <= 4
            else self.tiles.max_row_elements // 2
            if live <= 10
            else self.tiles.max_row_elements // 4
        )

    def elements_of_a_thread(self, folded: Axis, wanted: int, least: int, most: int) -> int:
        """Returns the number of elements of a row for a thread so that it reads `wanted` bytes of all tensors that vary
        along the rows.
        """
        return max(least, min(most, floor_power(wanted // max(self.row_bytes(folded), 1))))

    def row_bytes(self, folded: Axis) -> int:
        """Returns the bytes read for an element of a row, over all tensors that vary by row; others, such as weights,
        stay in a cache.
        """
        inside = {*folded.variables}
        found: dict[str, int] = {}
        for member in self.members.values():
            for read in member.reads:
                if read.name in self.members or read.name not in self.plan.stored:
                    continue
                atoms = {atom for atom, _ in flat_index(read.index, self.plan.strides[read.name]).terms}
                if atoms & inside and atoms - inside:
                    found[read.name] = metas_of(self.plan.program.nodes[read.name]).dtype.itemsize
        return sum(found.values())

    def columns(self, nest: Nest) -> Tiling:
        if not is_symbolic([v.size for v in nest.folded]) and hint(nest.size(nest.folded)) <= self.tiles.thread_rows:
            many = (
                hint(nest.size([*nest.kept, *nest.inner]))
                >= self.tiles.busy_programs * self.tiles.flat_block_elements // 2
            )
            if many and not self.contiguous_along(nest.folded):
                return self.few_rows(nest)
        wide = hint(math.prod(v.size for v in nest.inner))
        # each chunk has separate programs: blocks that span ends of rows could not be read in wide words
        program = list(nest.kept) if wide >= self.tiles.min_own_columns else []
        x = Axis("x", list(nest.inner) if program else [*nest.kept, *nest.inner])
        r = Axis("r", list(nest.folded), walked=True)
        count = math.prod(v.size for v in program)
        extents: tuple[tuple[IntLike, str | None], ...] = ((x.size, "XBLOCK"),)
        if program:
            extents = ((count, None), *extents)
        configs = self.staged_columns(x, r, count) if program else []
        if not configs:
            configs = self.columns_in_turn(hint(x.size), hint(r.size), hint(count))
        return Tiling(nest, Form.COLUMN, [x, r], program, _distinct(configs), extents)

    def columns_in_turn(self, columns: int, rows: int, chunks: int) -> list[Config]:
        """Returns configurations that read a tile, fold it and then read the next: first the heuristic's, then others
        for max-autotune.
        """
        block = column_block(columns)
        while block > 16 and columns * chunks // block < self.tiles.busy_programs // 4:
            block //= 2
        warps = column_warps(chunks * -(-columns // block), rows, self.tiles)
        height = min(self.column_tile(warps) // block, max(4, ceil_power(rows)))
        configs = [Config((("XBLOCK", block), ("RBLOCK", height)), warps)]
        if self.autotune:
            configs += [
                Config((("XBLOCK", b), ("RBLOCK", n)), w) for b in (32, 64, 128) for n in (8, 16, 32) for w in (2, 4)
            ]
        return configs

    def whole_rows(self, r: Axis, rows: int) -> list[Config]:
        """Returns configurations with tiles of one or several whole rows."""
        tiles, block = self.tiles, ceil_power(hint(r.size))
        several = max(1, min(tiles.short_rows_elements // block, floor_power(max(rows // tiles.busy_programs, 1))))
        if rows // several < 2 * tiles.busy_programs:
            each = 8
        elif self.row_bytes(r) <= tiles.one_tensor_bytes:
            each = self.elements_of_a_thread(r, tiles.row_bytes, 8, 32)
        else:
            each = self.elements_of_a_thread(r, tiles.several_tensors_bytes, 8, 32)
            several = min(several, max(1, tiles.several_tensors_threads * each // block))
        configs = [_row_config(several, block, max(1, min(16, several * block // (32 * each))))]
        if self.autotune:
            shapes = [(s, w) for s in (1, 2, 4, 8) for w in (2, 4, 8, 16) if s * block <= tiles.max_row_elements]
            configs += [_row_config(s, block, w) for s, w in shapes]
        return configs

    def walked_rows(self, r: Axis, rows: int, words: Words | None) -> list[Config]:
        """Returns configurations in which a program walks each row in blocks."""
        tiles = self.tiles
        if rows >= 2 * tiles.busy_programs:
            each = self.elements_of_a_thread(r, tiles.walked_bytes, 4, 16)
            block = (tiles.walked_threads if words is None else tiles.word_rows_threads) * each
        elif rows < tiles.busy_programs // 8:
            each, block = tiles.lone_block_elements // tiles.walked_threads, tiles.lone_block_elements
        else:
            inputs = sum(len(m.reads) for m in self.members.values())
            each, block = 4, tiles.walked_block_elements if inputs <= 8 else tiles.walked_block_elements // 2
        block = min(block, max(64, ceil_power(hint(r.size))))
        configs = [_row_config(1, block, max(1, min(16, block // (32 * each))))]
        if self.autotune:
            configs += [_row_config(1, b, w) for b in (1024, 2048, 4096) for w in (4, 8, 16)]
        return configs

    def staged_columns(self, x: Axis, r: Axis, count: IntLike) -> list[Config]:
        """Returns configurations of many programs with few warps that prefetch rows; empty if there are few programs.

        Wide blocks read longer contiguous ranges of memory. If values take much arithmetic, programs have more warps.
        """
        if self.limits or is_symbolic([x.size, r.size, count]):
            return []
        columns, rows, chunks = int(x.size), int(r.size), int(count)
        wide = self.reads_wide_segments(columns, chunks)
        block = 2 * self.tiles.segment_columns if wide else column_block(columns)
        height = min(self.tiles.column_rows * max(1, self.tiles.segment_columns // block), ceil_power(rows))
        if chunks * -(-columns // block) < self.tiles.busy_programs // 2 or height < self.tiles.column_rows:
            return []
        stages = self.stages(
            (self.tiles.segment_columns if columns % self.tiles.segment_columns else block) * height, r
        )
        shapes = [(block, height, 2)]
        if self.arithmetic() >= self.tiles.much_additions:
            shapes = [(block, self.tiles.wide_rows, 2) if wide else (block, height, 4)]
        if self.autotune:
            shapes += [(b, n, w) for b in (32, 64, 128) for n in (8, 16, 32) for w in (2, 4, 8)]
        return [Config((("XBLOCK", b), ("RBLOCK", n), (STAGES, stages)), w) for b, n, w in shapes]

    def stages(self, elements: int, axis: Axis) -> int:
        """Returns the number of pipeline stages for tiles of this many elements: three, or fewer if they need much
        shared memory.
        """
        return 1 + min(2, self.tiles.pipelined_bytes // max(elements * self.row_bytes(axis), 1))

    def arithmetic(self) -> int:
        """Returns the cost of all values of the group for one element, in additions."""
        nodes, left, seen = self.plan.program.nodes, list(self.members), set(self.members)
        total = 0
        while left:
            node = nodes[left.pop()]
            total += weight(node.op) if isinstance(node, Pointwise) else 0
            inputs = {*getattr(node, "inputs", ())} - seen - self.plan.stored
            seen |= inputs
            left += inputs
        return total

    def few_rows(self, nest: Nest) -> Tiling:
        """Returns the tiling of short columns: each thread folds whole columns, without exchange, and all accesses are
        wide.
        """
        x, r = Axis("x", [*nest.kept, *nest.inner]), Axis("r", list(nest.folded), walked=True)
        sizes = (512, 256, 1024) if self.autotune else (512,)
        configs = [Config((("XBLOCK", size), ("RBLOCK", 1)), 4 if size >= 512 else 2) for size in sizes]
        return Tiling(nest, Form.COLUMN, [x, r], [], tuple(configs), ((x.size, "XBLOCK"),))

    def contiguous_along(self, folded: Sequence[Var]) -> bool:
        """Whether a tensor is contiguous along the folded axis, so that neighbouring threads would read far apart."""
        for expr, size in self.offsets():
            strides = {atom: hint(c) for atom, c in expr.terms if isinstance(atom, Var)}
            if size and any(strides.get(v) == 1 for v in folded) and any(v not in folded for v in strides):
                return True
        return False

    def column_tile(self, warps: int) -> int:
        """Returns the number of elements of a tile of columns: enough loads at once to cover the latency of memory."""
        inputs = len({read.name for m in self.members.values() for read in m.reads})
        tile = min(self.tiles.column_tile_elements, 1024 * warps)
        return tile if inputs <= 2 else tile // 2

    def mixed(self, nest: Nest) -> Tiling:
        r, i = Axis("r", list(nest.folded), walked=True), Axis("i", list(nest.inner), single_block=True)
        block = ceil_power(hint(i.size))
        rows = max(1, min(4, self.tiles.mixed_tile_elements // block))

        def config(rows: int, warps: int) -> Config:
            return Config((("IBLOCK", block), ("RBLOCK", rows), (STAGES, self.stages(rows * block, i))), warps)

        configs = [config(rows, max(1, min(16, block * rows // 512)))]
        if self.autotune:
            configs += [config(n, w) for n in (1, 2, 4, 8) for w in (4, 8, 16) if n * block <= 8192]
        count = math.prod(v.size for v in nest.kept)
        return Tiling(nest, Form.MIXED, [r, i], list(nest.kept), _distinct(configs), ((count, None),))


def padded(size: IntLike, words: Words | None) -> int:
    """Returns the number of elements that a tile needs to cover a row that begins anywhere in a word."""
    return int(size) if words is None else int(size) + words.size - 1


def flat_configs(
    size: IntLike, tiles: Tiles, elements: int | None = None, autotune: bool = False
) -> tuple[Config, ...]:
    """Returns configurations with `elements` elements per thread, if that gives every multiprocessor enough work."""
    count, elements = hint(size), elements or tiles.flat_thread_elements
    block = min(tiles.flat_block_elements, max(128, floor_power(count // tiles.busy_programs)))
    chosen = Config((("XBLOCK", block),), max(1, block // (32 * elements)))
    if not autotune:
        return (chosen,)
    others = [Config((("XBLOCK", b),), w) for b, w in ((256, 4), (512, 4), (1024, 4), (1024, 8), (2048, 8))]
    return _distinct([chosen, *others])


def column_block(columns: int) -> int:
    """Returns the widest block with which unused columns are at most an eighth of all columns, or the block with the
    least unused.
    """
    blocks = (64, 32, 16)
    unused = {block: -columns % block / columns for block in blocks}
    return next((block for block in blocks if unused[block] <= 1 / 8), min(blocks, key=lambda block: unused[block]))


def column_warps(programs: int, rows: int, tiles: Tiles) -> int:
    """Returns the number of warps of a program: as few as keep the GPU busy, since warps that fold the same columns
    wait at barriers.

    Each warp has at least sixteen rows.
    """
    wanted = math.log2(max(tiles.column_warps / max(programs, 1), 1))
    return max(2, min(8, 1 << round(wanted), floor_power(rows // 16)))


def _row_config(rows: int, block: int, warps: int | None = None) -> Config:
    """Returns a configuration of rows; its warps have eight to sixteen elements per thread."""
    return Config((("XBLOCK", rows), ("RBLOCK", block)), warps or max(1, min(16, rows * block // 256)))


def _distinct(configs: Sequence[Config]) -> tuple[Config, ...]:
    return tuple(dict.fromkeys(configs))


def is_fixed(size: IntLike) -> bool:
    """Whether a size is a number, not symbolic."""
    return not isinstance(size, Size)
