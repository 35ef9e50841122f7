"""Code objects decoded once: instructions with their handlers, jump targets as indices, the exception table.

The version tables (`opcodes.py311` ...) say how each opcode is decoded and which function gives it meaning.
"""

from __future__ import annotations

import opcode
from bisect import bisect_right
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from smelt.base.class_tables import isinstance

if TYPE_CHECKING:
    from smelt.capture.core.frames import Frame
    from smelt.capture.core.interface import Interpreter

Handler: TypeAlias = "Callable[[Interpreter, Frame, Any], object]"

CALL_PREFIXES = frozenset({"PRECALL", "KW_NAMES"})
"""Instructions that belong to the call behind them; 3.13 has none."""


class Site(NamedTuple):
    """The input of a decoder: the code, the byte offset of the next instruction (after inline caches), the argument."""

    code: CodeType
    next: int
    arg: int


class Jump(int):
    """A decoded argument: a byte offset, to be replaced by the index of the instruction there."""


class Op(NamedTuple):
    """One row of a version's opcode table: the handler, and the function that decodes the raw argument."""

    handler: Handler
    decode: Callable[[Site], Any]


class Covered(NamedTuple):
    """One row of the exception table, in instruction indices: start <= index < end jumps to target."""

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


class Decoded:
    """A code object decoded for interpretation. It does not keep the code alive.

    Attributes:
        instructions: (handler, argument) by index.
        names, raw: opcode names and raw arguments by index.
        offsets: byte offset of each instruction (of its first EXTENDED_ARG).
        targets: index of an instruction -> index of its jump target.
        handlers: exception table rows, by start.
        attributes, free: the code's `co_names` and `co_freevars`.
        live, joins: cached results of `liveness` and `postdominators`.
    """

    __slots__ = (
        "instructions", "names", "raw", "offsets", "index_of", "handlers", "targets", "_starts",
        "attributes", "free", "live", "joins",
    )  # fmt: skip

    def __init__(self, code: CodeType, table: dict[str, Op]) -> None:
        self.attributes, self.free = code.co_names, code.co_freevars
        self.live: list[set[int]] | None = None
        self.joins: list[int | None] | None = None
        self.names: list[str] = []
        self.raw: list[int] = []
        self.offsets: list[int] = []
        self.index_of: dict[int, int] = {}
        self.targets: dict[int, int] = {}
        sites = self._scan(code)
        self.instructions = [self._decode(table, at, site) for at, site in enumerate(sites)]
        self.handlers = sorted(self._exception_table(code))
        self._starts = [row.start for row in self.handlers]

    def _scan(self, code: CodeType) -> list[Site]:
        """Split the bytes into instructions; EXTENDED_ARG is folded, caches are skipped."""
        sites: list[Site] = []
        raw, names, args, offsets, index_of = code.co_code, self.names, self.raw, self.offsets, self.index_of
        start, arg, at, end = 0, 0, 0, len(raw)
        while at < end:
            op = raw[at]
            arg = arg << 8 | raw[at + 1]
            index_of[at] = len(names)
            after = at + _WIDTH[op]
            if op != _EXTENDED:
                names.append(_NAMES[op])
                args.append(arg)
                offsets.append(start)
                sites.append(Site(code, after, arg))
                start, arg = after, 0
            at = after
        return sites

    def _decode(self, table: dict[str, Op], index: int, site: Site) -> tuple[Handler, Any]:
        op = table.get(self.names[index])
        if op is None:
            return table["unknown"].handler, self.names[index]
        value = op.decode(site)
        if type(value) is Jump:
            value = self.targets[index] = self.index_of[value]
        return op.handler, value

    def units(self, index: int) -> int:
        """The position of an instruction as CPython pushes it for RERAISE: in code units, after any EXTENDED_ARG."""
        prefixes = 0
        raw = self.raw[index] >> 8
        while raw:
            prefixes, raw = prefixes + 1, raw >> 8
        return self.offsets[index] // 2 + prefixes

    def begin_of(self, index: int) -> int:
        """The instruction at which a frame must resume to execute this one: KW_NAMES precedes a call and belongs to
        it."""
        while index and self.names[index - 1] in CALL_PREFIXES:
            index -= 1
        return index

    def handler_at(self, index: int) -> Covered | None:
        """The exception table row that covers an instruction."""
        at = bisect_right(self._starts, index) - 1
        if at >= 0 and self.handlers[at].start <= index < self.handlers[at].end:
            return self.handlers[at]
        return None

    def _exception_table(self, code: CodeType) -> list[Covered]:
        """Rows of `co_exceptiontable` (format: CPython Objects/exception_handling_notes.txt)."""
        data, rows, at = code.co_exceptiontable, [], 0

        def number() -> int:
            nonlocal at
            value, more = 0, True
            while more:
                byte = data[at]
                at += 1
                value, more = value << 6 | byte & 63, bool(byte & 64)
            return value

        while at < len(data):
            start, length, target, flags = number() * 2, number() * 2, number() * 2, number()
            last = self.index_of.get(start + length, len(self.names))
            rows.append(Covered(self.index_of[start], last, self.index_of[target], flags >> 1, bool(flags & 1)))
        return rows


def _widths() -> list[int]:
    """Bytes of each opcode with its inline cache."""
    known: Any = opcode._inline_cache_entries  # type: ignore[attr-defined]
    if isinstance(known, dict):
        known = [known.get(opcode.opname[op], 0) for op in range(256)]
    return [2 + 2 * units for units in known]


_WIDTH = _widths()
_NAMES = tuple(opcode.opname)
_EXTENDED = opcode.EXTENDED_ARG
