"""Finds how the loop variables of two groups correspond, from one access of each to the same buffer.

Both accesses are written as mixed-radix numbers: a sum of coefficient * variable. Walking from the smallest coefficient
and splitting the larger variable wherever sizes differ gives pairs of variables with equal coefficients and sizes, so
equal values of the pairs mean the same element. This is how a (batch, length, width) loop and a (batch * length, heads,
width / heads) loop over the same memory become one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from smelt.schedule.dependencies import Names
from smelt.shapes.expr import ZERO, Atom, Expr, Var, variable
from smelt.shapes.size import IntLike, hint, known_divides, same

Digits = Sequence[tuple[IntLike, Var]]


@dataclass
class Alignment:
    """Pieces (innermost first) that the variables of either side split into, and which pieces are equal."""

    left: dict[Var, list[Var]] = field(default_factory=dict)
    right: dict[Var, list[Var]] = field(default_factory=dict)
    pairs: list[tuple[Var, Var, Var]] = field(default_factory=list)

    def substitution(self, side: dict[Var, list[Var]]) -> dict[Atom, Expr]:
        """Variable -> expression over the common variables."""
        values: dict[Atom, Expr] = {}
        for var, pieces in side.items():
            if pieces == [var]:
                continue
            total = ZERO
            step: IntLike = 1
            for piece in pieces:
                total = total + variable(piece) * step
                step *= piece.size
            values[var] = total
        return values


def align(left: Digits, right: Digits, names: Names, into: Alignment | None = None) -> Alignment | str:
    """Pair the variables of two accesses; the reason when that is impossible."""
    result = into or Alignment()
    a, b = list(left)[::-1], list(right)[::-1]
    while a and b:
        (ca, va), na = a[-1], _rest(a[-1], result.left)
        (cb, vb), nb = b[-1], _rest(b[-1], result.right)
        done_a, done_b = va.size // na, vb.size // nb
        if not same(ca * done_a, cb * done_b):
            return f"strides differ: {ca * done_a} of {va} and {cb * done_b} of {vb}"
        n = na if hint(na) <= hint(nb) else nb
        if same(n, 0) or not known_divides(n, na) or not known_divides(n, nb):
            return f"sizes {na} and {nb} do not divide"
        piece = va if same(n, va.size) else names.fresh(n)
        result.left.setdefault(va, []).append(piece)
        result.right.setdefault(vb, []).append(piece)
        result.pairs.append((va, vb, piece))
        if same(n, na):
            a.pop()
        if same(n, nb):
            b.pop()
    if a or b:
        return "one covers more elements than the other"
    return result


def align_sequences(left: Sequence[Var], right: Sequence[Var], names: Names, into: Alignment) -> Alignment | str:
    """Pair two lists of variables (outermost first) by their row-major order."""
    return align(_as_digits(left), _as_digits(right), names, into)


def _as_digits(order: Sequence[Var]) -> Digits:
    digits: list[tuple[IntLike, Var]] = []
    step: IntLike = 1
    for var in reversed(order):
        digits.append((step, var))
        step *= var.size
    return digits


def _rest(digit: tuple[IntLike, Var], pieces: dict[Var, list[Var]]) -> IntLike:
    """How much of a variable is not split off yet."""
    rest = digit[1].size
    for piece in pieces.get(digit[1], ()):
        rest //= piece.size
    return rest
