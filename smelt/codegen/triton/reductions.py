"""Triton text of reductions: the accumulator's initial value, its update with a tile, and one result per row."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from smelt.codegen.triton.target import VALUE_TYPES
from smelt.loops.facts import FOLDS

_EDGES = {
    torch.int64: (-(2**63), 2**63 - 1),
    torch.int32: (-(2**31), 2**31 - 1),
    torch.int16: (-(2**15), 2**15 - 1),
    torch.int8: (-(2**7), 2**7 - 1),
    torch.uint8: (0, 255),
}
LARGEST_INDEX = 2**63 - 1
"""The index of an empty fold, larger than every real index."""


@dataclass(frozen=True)
class Accumulator:
    """The text of a reduction of values of `dtype`. `axis`: the tile axis that it folds."""

    kind: str
    dtype: torch.dtype
    axis: int

    @property
    def finds(self) -> bool:
        """Whether the result is an index (argmax, argmin)."""
        return FOLDS[self.kind].finds

    @property
    def logical(self) -> bool:
        return self.dtype is torch.bool

    @property
    def accumulator_type(self) -> str:
        """The type of the accumulator: int32 for booleans and small integers."""
        if self.logical or self.dtype in (torch.int8, torch.int16, torch.uint8):
            return "tl.int32"
        return VALUE_TYPES[self.dtype]

    @property
    def combine(self) -> str:
        """The name of the fold's operation: sum, prod, max or min."""
        combine = FOLDS[self.kind].combine
        return {"sum": "max", "prod": "min"}.get(combine, combine) if self.logical else combine

    @property
    def start(self) -> str:
        """The neutral element."""
        if self.combine in ("sum", "prod"):
            number: object = 0 if self.combine == "sum" else 1
        elif self.logical:
            number = 0 if self.combine == "max" else 1
        elif self.dtype.is_floating_point:
            number = "float('-inf')" if self.combine == "max" else "float('inf')"
        else:
            number = _EDGES[self.dtype][self.combine == "min"]
        return f"tl.full([], {number}, {self.accumulator_type})"

    def prepared(self, value: str) -> str:
        """Returns a value converted to the accumulator's type."""
        return f"{value}.to({self.accumulator_type})" if self.accumulator_type != VALUE_TYPES[self.dtype] else value

    def step(self, into: str, value: str) -> str:
        """Returns the accumulator after a tile."""
        match self.combine:
            case "sum":
                return f"{into} + {value}"
            case "prod":
                return f"{into} * {value}"
            case side if self.dtype.is_floating_point:
                return f"m_{side}imum({into}, {value})"
            case side:
                return f"tl.{side}imum({into}, {value})"

    def fold_tile(self, value: str) -> str:
        """Returns one value for each row of a tile; the folded axis has size 1."""
        match self.combine:
            case "sum":
                text = f"tl.sum({value}, {self.axis})"
                if self.dtype.is_floating_point:
                    text = f"({text} + 0.0)"  # sums begin at +0.0, so that the sum of -0.0 alone is +0.0
            case "prod":
                text = f"tl.reduce({value}, {self.axis}, times)"
            case side if self.dtype.is_floating_point:
                text = f"tl.reduce({value}, {self.axis}, m_{side}imum)"
            case side:
                text = f"tl.{side}({value}, {self.axis})"
        return self.finished(text)

    def finished(self, text: str) -> str:
        """Returns the folded value as a value of the reduction's dtype, broadcast over the tile."""
        text = f"tl.expand_dims({text}, {self.axis})"
        if self.logical and not self.finds:
            return f"({text} != 0)"
        return f"{text}.to({VALUE_TYPES[self.dtype]})" if self.accumulator_type != VALUE_TYPES[self.dtype] else text

    @property
    def functions(self) -> set[str]:
        """Library functions that the text calls."""
        if self.finds:
            return {f"best_{self.combine}"}
        if self.combine == "prod":
            return {"times"}
        return {f"m_{self.combine}imum"} if self.dtype.is_floating_point and self.combine != "sum" else set()
