"""Parameters of a kernel (pointers, symbols of sizes, random streams), and C text of values computed from sizes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from smelt.codegen.scope import Scopes
from smelt.shapes.size import Division, Factor, IntLike, Modulo, Size, Symbol, known_at_most, terms_of

FAULT = "!fault"
"""Name of the pseudo-buffer of the fault word, through which kernels report values that eager refuses."""


class Arguments:
    """The parameters of a kernel, in order of first use: pointers, then the symbols of its sizes, then streams.

    Each layer of a model draws from a separate random stream; with streams as parameters, all layers can share a
    kernel.
    """

    def __init__(self) -> None:
        self.buffers: list[str] = []
        self.symbols: list[Symbol] = []
        self.streams: list[int] = []
        self.written: set[str] = set()

    def pointer(self, buffer: str) -> str:
        """Returns the parameter that points to a buffer."""
        if buffer not in self.buffers:
            self.buffers.append(buffer)
        return f"a{self.buffers.index(buffer)}"

    def symbol(self, symbol: Symbol) -> str:
        """Returns the parameter with the value of a symbol."""
        if symbol not in self.symbols:
            self.symbols.append(symbol)
        return f"z{self.symbols.index(symbol)}"

    def stream(self, number: int) -> str:
        """Returns the parameter with the number of a random stream."""
        if number not in self.streams:
            self.streams.append(number)
        return f"u{self.streams.index(number)}"


class SizeRenderer:
    """Renders sizes: values computed from symbols become constants at the start of the kernel."""

    quotient = "/"

    def __init__(self, scopes: Scopes, arguments: Arguments) -> None:
        self.scopes, self.arguments = scopes, arguments

    def size(self, value: IntLike) -> str:
        """Returns the C text of a size: a number, or the name of a constant at the start of the kernel."""
        if not isinstance(value, Size):
            return str(value)
        text = self.polynomial(value, self.size)
        return text if text.isalnum() else self.scopes.define("int64_t", text, torch.int64, 0, "d").text

    def int_size(self, value: IntLike) -> str:
        """Returns the text of a size below 2^31 as the bound of an `int`."""
        text = self.size(value)
        return self.scopes.define("int", f"(int){text}", torch.int32, 0, "e").text if isinstance(value, Size) else text

    def whole_size(self, value: IntLike) -> str:
        """Returns the C text of a size in terms of the kernel's parameters only."""
        return f"({self.polynomial(value, self.whole_size)})"

    def polynomial(self, value: IntLike, operand: Callable[[IntLike], str]) -> str:
        """Returns the C text of a size; `operand` renders the operands of divisions."""
        terms = []
        for monomial, c in terms_of(value):
            factors = [self.factor(f, operand) for f in monomial]
            terms.append(" * ".join(factors if c == 1 and factors else [str(c), *factors]))
        return " + ".join(terms).replace("+ -", "- ") or "0"

    def factor(self, factor: Factor, operand: Callable[[IntLike], str]) -> str:
        match factor:
            case Symbol():
                return self.arguments.symbol(factor)
            case Division(of=of, by=by):
                above, below = operand(of), operand(by)
                if isinstance(factor, Modulo):
                    rest = f"({above} % {below})"
                    return rest if known_at_most(0, of) else f"(({rest} + {below}) % {below})"
                down = "" if known_at_most(0, of) else f" - ({above} % {below} < 0)"  # C rounds towards zero
                return f"({above} {self.quotient} {below}{down})"
        raise AssertionError(factor)
