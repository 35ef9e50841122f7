"""C text of reductions: the accumulator's initial value, its update with a value, and its result."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from smelt.codegen.cpp.target import UNSIGNED, VALUE_TYPES
from smelt.loops.facts import FOLDS

LOWEST = {
    torch.int64: "INT64_MIN", torch.int32: "INT32_MIN", torch.int16: "INT16_MIN", torch.int8: "INT8_MIN",
    torch.uint8: "0",
}  # fmt: skip
HIGHEST = {
    torch.int64: "INT64_MAX", torch.int32: "INT32_MAX", torch.int16: "INT16_MAX", torch.int8: "INT8_MAX",
    torch.uint8: "UINT8_MAX",
}  # fmt: skip


@dataclass
class Accumulator:
    """The text of one reduction. With nested inner loops, the innermost loop computes a partial sum, which is then
    added.

    `ordered`: whether an arg kind visits indices in increasing order, so that it is enough to keep the first of equal
    values. `ends`: by level, the low bits of the loop counter at which a partial sum is added to the next level.
    """

    kind: str
    dtype: torch.dtype
    name: str
    ctype: str
    start: str
    nested: bool
    ordered: bool = True
    ends: tuple[int, ...] = ()

    @property
    def vector(self) -> bool:
        return not FOLDS[self.kind].finds

    @property
    def nan(self) -> str | None:
        """Name of the variable that records a NaN, which the vector maximum would lose; None if no such variable is
        needed.
        """
        return f"{self.name}_nan" if self.kind in ("amax", "amin") and self.dtype.is_floating_point else None

    @property
    def innermost(self) -> str:
        return f"{self.name}_part" if self.nested and self.vector else self.name

    @property
    def declare(self) -> list[str]:
        lines = [f"{self.ctype} {self.name} = {self.start};"]
        if not self.vector:
            lines.append(f"int64_t {self.name}_at = 0;")
        if self.nan:
            lines.append(f"int {self.nan} = 0;")
        return [*lines, *(f"{self.ctype} {name} = 0;" for name in self.levels[1:])]

    @property
    def levels(self) -> list[str]:
        """Names of the accumulator and, for partial sums, of the accumulators of the outer levels."""
        return [self.name, *(f"{self.name}_level{n}" for n in range(1, len(self.ends) + 1))]

    @property
    def begin_partial(self) -> list[str]:
        return [f"{self.ctype} {self.innermost} = {self.start};"] if self.nested and self.vector else []

    @property
    def end_partial(self) -> list[str]:
        return [self.combine(self.name, self.innermost)] if self.nested and self.vector else []

    def add_full_partials(self, counter: str, width: str = "") -> list[str]:
        """Returns the lines at the end of an iteration that add full partial sums to the next level; `width`: the width
        of accumulator arrays.
        """
        lines = []
        for low, high, end in zip(self.levels, self.levels[1:], self.ends, strict=False):
            step = f"{high} += {low}; {low} = 0;"
            if width:
                step = f"for (int i = 0; i < {width}; i++) {{ {high}[i] += {low}[i]; {low}[i] = 0; }}"
            lines.append(f"    if (({counter} & {end}) == {end}) {{ {step} }}")
        return lines

    @property
    def clauses(self) -> list[str]:
        if not self.vector:
            return []
        sign = {"sum": "+", "prod": "*", "amax": "max", "amin": "min", "any": "|", "all": "&"}[self.kind]
        clauses = [f"reduction({sign}:{self.innermost})"]
        return [*clauses, f"reduction(|:{self.nan})"] if self.nan else clauses

    @property
    def result(self) -> str:
        if not self.vector:
            return f"{self.name}_at"
        if self.nan:
            return f"{self.nan} ? ({self.ctype})NAN : {self.name}"
        if self.ends:
            return " + ".join(self.levels)
        return f"{self.name} != 0" if self.dtype is torch.bool else self.name

    def combine(self, into: str, value: str) -> str:
        """Returns one step of the fold, in a form that the vectoriser recognises."""
        match self.kind:
            case "sum":
                return f"{into} += {value};"
            case "prod":
                return f"{into} *= {value};"
            case "amax":
                return f"{into} = {value} > {into} ? {value} : {into};"
            case "amin":
                return f"{into} = {value} < {into} ? {value} : {into};"
            case "any":
                return f"{into} |= {value};"
            case "all":
                return f"{into} &= {value};"
        raise AssertionError(self.kind)

    def update(self, value: str, where: str) -> list[str]:
        """Returns the lines that fold a value; `where` is its index along the reduced dimension (for arg kinds)."""
        if self.vector:
            lines = [self.combine(self.innermost, value)]
            return [*lines, f"{self.nan} |= {value} != {value};"] if self.nan else lines
        better = f"{value} {'>' if self.kind == 'argmax' else '<'} {self.name}"
        floating = self.dtype.is_floating_point
        if floating:
            better = f"({better} || {value} != {value}) && {self.name} == {self.name}"
        if not self.ordered:
            equal = f"{value} == {self.name}"
            equal = f"({equal} || ({value} != {value} && {self.name} != {self.name}))" if floating else equal
            better = f"({better}) || ({where} < {self.name}_at && {equal})"
        first = f"({where}) == 0"
        return [f"if ({first} || ({better})) {{ {self.name} = {value}; {self.name}_at = {where}; }}"]

    def update_slot(self, slot: str, value: str) -> str:
        """Returns one step of a column reduction. Each lane has a separate accumulator, which keeps a NaN without
        further code.
        """
        if self.kind in ("amax", "amin"):
            sign = ">" if self.kind == "amax" else "<"
            nan = f" | ({value} != {value})" if self.dtype.is_floating_point else ""
            return f"{slot} = ({value} {sign} {slot}){nan} ? {value} : {slot};"
        return self.combine(slot, value)


def fold(
    kind: str, dtype: torch.dtype, name: str, nested: bool, ordered: bool = True, ends: tuple[int, ...] = ()
) -> Accumulator:
    """Make the text of a reduction of `dtype` values into the accumulator `name`."""
    if dtype is torch.bool:
        folded = FOLDS[kind]
        kind = kind if folded.finds else LOGICAL[folded.combine]
        ctype = "bool" if folded.finds else "uint8_t"
    elif kind in ("sum", "prod") and dtype in UNSIGNED:
        ctype = UNSIGNED[dtype]
    else:
        ctype = VALUE_TYPES[dtype]
    rounds = kind == "sum" and dtype.is_floating_point
    return Accumulator(kind, dtype, name, ctype, _start(kind, dtype), nested, ordered, ends if rounds else ())


LOGICAL = {"sum": "any", "max": "any", "prod": "all", "min": "all"}
"""The equivalent logical fold for each fold of bools."""


def _start(kind: str, dtype: torch.dtype) -> str:
    """Returns the initial value of an accumulator. For arg kinds the first element always replaces it."""
    fold = FOLDS[kind]
    if fold.neutral is not None or fold.finds:
        return str(int(fold.neutral or 0))
    if dtype.is_floating_point:
        return "-INFINITY" if fold.combine == "max" else "INFINITY"
    return (LOWEST if fold.combine == "max" else HIGHEST)[dtype]
