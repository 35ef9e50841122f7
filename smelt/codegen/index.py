"""Renders index expressions (sums of loop variables, divisions and loaded indices) in the syntax of the target."""

from __future__ import annotations

from operator import itemgetter

from smelt.codegen.parameters import Arguments, SizeRenderer
from smelt.codegen.scope import Scopes, V
from smelt.shapes.expr import Atom, Expr, Quotient, Remainder, Runtime, Var
from smelt.shapes.size import IntLike, Size, bounds, known_at_most, known_less, same


class IndexRenderer(SizeRenderer):
    """Renders index expressions. `names` and `depths`: text and loop depth of each loop variable.

    `quotient`: the target's integer division (towards zero). `long`: the target's form of constants beyond 32 bits.
    `widened`: the target's form of a loop variable as an integer of 64 bits.
    """

    quotient = "/"
    long = "(int64_t){}"
    widened = "(int64_t){}"

    def __init__(self, scopes: Scopes, arguments: Arguments) -> None:
        super().__init__(scopes, arguments)
        self.depths: dict[Atom, int] = {}
        self.names: dict[Atom, str] = {}

    def depth_of(self, expr: Expr) -> int:
        """Returns the depth of the innermost loop on which an index expression depends."""
        return max((self.atom_depth(a) for a, _ in expr.terms), default=0)

    def atom_depth(self, atom: Atom) -> int:
        match atom:
            case Quotient() | Remainder():
                return self.depth_of(atom.of)
            case Runtime(value=V(depth=depth)):
                return depth
        return self.depths[atom]

    def text_of(self, expr: Expr) -> str:
        """Returns the text of an index expression, in 32 bits if every subexpression fits by the ranges of the
        variables.
        """
        texts, wide = [], self.may_exceed_32_bits(expr)
        # ordered by generated name: the text of equal kernels must not depend on original names of variables
        terms = sorted(((self.atom_text(atom), atom, c) for atom, c in expr.terms), key=itemgetter(0))
        for name, atom, c in terms:
            if wide and self.is_narrow(atom):
                name = self.widened.format(name)
            if isinstance(c, Size):
                texts.append(f"{self.size(c)} * {name}")
            else:
                texts.append(
                    name if c == 1 else f"{c} * {name}" if abs(c) < 2**31 else f"{self.long.format(c)} * {name}"
                )
        if not same(expr.const, 0) or not texts:
            texts.append(self.size(expr.const))
        return " + ".join(texts).replace("+ -", "- ")

    def may_exceed_32_bits(self, expr: Expr) -> bool:
        """Whether a product, or a sum in any order, of the terms computed in 32 bits may overflow."""
        if _fits_32_bits(expr):
            return False
        most = 0 if isinstance(expr.const, Size) else abs(expr.const)
        narrow = False
        for atom, c in expr.terms:
            if not isinstance(c, Size) and self.is_narrow(atom):
                most, narrow = most + abs(c) * _farthest(atom), True
        return narrow and most >= 2**31

    def is_narrow(self, atom: Atom) -> bool:
        """Whether the text of an atom is a 32-bit integer, as for a counter of a loop that is known to end within 32
        bits.
        """
        match atom:
            case Quotient() | Remainder():
                return not isinstance(atom.by, Size) and all(self.is_narrow(a) for a, _ in atom.of.terms)
            case Var():
                return known_less(atom.size, 2**31)
        return False

    def atom_text(self, atom: Atom) -> str:
        match atom:
            case Quotient(of=of, by=by):
                return self.division(of, by, self.quotient)
            case Remainder(of=of, by=by):
                return self.division(of, by, "%")
            case Runtime(value=V(text=text)):
                return text
        return self.names[atom]

    def division(self, of: Expr, by: IntLike, sign: str) -> str:
        """Returns floor division or remainder; operands that may be negative are shifted by a multiple of the
        divisor.
        """
        low, _ = of.range()
        if isinstance(by, Size) or isinstance(low, Size):
            return self.symbolic_division(of, by, sign)
        shift = -(low // by) if low < 0 else 0
        inner = f"({self.text_of(of + shift * by)}) {sign} {by}"
        return f"({inner} - {shift})" if shift and sign == self.quotient else f"({inner})"

    def symbolic_division(self, of: Expr, by: IntLike, sign: str) -> str:
        above, below = f"({self.text_of(of)})", self.size(by)
        if known_at_most(0, of.range()[0]):
            return f"({above} {sign} {below})"
        rest = f"{above} % {below}"  # C's division rounds towards zero
        return (
            f"({above} {sign} {below} - ({rest} < 0))" if sign == self.quotient else f"(({rest} + {below}) % {below})"
        )


def _farthest(atom: Atom) -> int:
    """Returns the largest magnitude of a 32-bit atom."""
    low, high = bounds(atom.low)[0], bounds(atom.high)[1]
    return 2**31 if low is None or high is None else max(abs(low), abs(high))


def _fits_32_bits(expr: Expr) -> bool:
    """Whether constant bounds show that the sum of all terms fits in 32 bits: a fast test that most indices pass."""
    most = 0 if isinstance(expr.const, Size) else abs(expr.const)
    for atom, c in expr.terms:
        low, high = atom.low, atom.high
        if isinstance(c, Size) or isinstance(low, Size) or isinstance(high, Size):
            return False
        most += abs(c) * max(abs(low), abs(high))
    return most < 2**31
