"""Finds how the loop variables of two groups correspond, from one access of each to the same buffer.

Both accesses are written as mixed-radix numbers: a sum of coefficient * variable. Walking from the smallest coefficient
and splitting the larger variable wherever sizes differ gives pairs of variables with equal coefficients and sizes, so
equal values of the pairs mean the same element. This is how a (batch, length, width) loop and a (batch * length, heads,
width / heads) loop over the same memory become one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from smelt.schedule.dependencies import Names
from smelt.shapes.expr import ZERO, Atom, Expr, Var, variable
from smelt.shapes.size import IntLike, hint, known_divides, same

Digits = Sequence[tuple[IntLike, Var]]


@dataclass
class Alignment:
    """The digits into which the variables of both sides are split (innermost first), and the pairs of equal digits.

    `joined`: variables whose range the other side covers by a loop over chunks and a loop within a chunk, as
    expressions over those two variables.
    """

    left: dict[Var, list[Var]] = field(default_factory=dict)
    right: dict[Var, list[Var]] = field(default_factory=dict)
    pairs: list[tuple[Var, Var, Var]] = field(default_factory=list)
    joined: dict[Var, Expr] = field(default_factory=dict)

    def substitution(self, side: dict[Var, list[Var]]) -> dict[Atom, Expr]:
        """Returns for each split variable its expression over the common variables."""
        values: dict[Atom, Expr] = {}
        for var, pieces in side.items():
            if pieces == [var]:
                continue
            if var in self.joined:
                values[var] = self.joined[var]
                continue
            total = ZERO
            step: IntLike = 1
            for piece in pieces:
                total = total + variable(piece) * step
                step *= piece.size
            values[var] = total
        return values


Limits = Mapping[Var, tuple[Var, IntLike]]
"""For each loop within a chunk: the loop over the chunks, and the total that ends the last chunk early (see Group)."""


def align(
    left: Digits,
    right: Digits,
    names: Names,
    into: Alignment | None = None,
    limits: tuple[Limits, Limits] = ({}, {}),
) -> Alignment | str:
    """Pair the variables of two accesses; a returned string is the reason why that is impossible."""
    result = into or Alignment()
    a, b = list(left)[::-1], list(right)[::-1]
    while a and b:
        short = a[-1][1] in limits[0], b[-1][1] in limits[1]
        if short[0] != short[1]:
            refusal = _pair_chunks(b, a, limits[0], result, True) if short[0] else _pair_chunks(a, b, limits[1], result)
            if refusal is not None:
                return refusal
            continue
        refusal = _pair_innermost(a, b, names, result)
        if refusal is not None:
            return refusal
    return "one covers more elements than the other" if a or b else result


def _pair_innermost(
    a: list[tuple[IntLike, Var]], b: list[tuple[IntLike, Var]], names: Names, result: Alignment
) -> str | None:
    """Pair one digit of the innermost variable of each side and remove it from both; a returned string is the reason
    why that is impossible.
    """
    (ca, va), na = a[-1], _rest(a[-1], result.left)
    (cb, vb), nb = b[-1], _rest(b[-1], result.right)
    if same(na, 0) or same(nb, 0):
        return "one covers no elements"
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
    return None


def _pair_chunks(
    loops: list[tuple[IntLike, Var]],
    chunks: list[tuple[IntLike, Var]],
    limits: Limits,
    result: Alignment,
    chunks_left: bool = False,
) -> str | None:
    """Pair variables that cover a range in order with (chunk, position in chunk) over the same range, whose last chunk
    is short.

    `chunks_left`: whether the chunked side is the left one.
    """
    side, other = (result.right, result.left) if chunks_left else (result.left, result.right)
    step, low = chunks.pop()
    high, total = limits[low]
    if low in other or not chunks or chunks[-1][1] != high or not same(chunks.pop()[0], step * low.size):
        return "chunks do not follow each other"
    row = variable(high) * low.size + variable(low)
    size: IntLike = 1
    while loops and not same(size, total):
        (c, var), rest = loops.pop(), row // size
        if var in side or not same(c, step * size):
            return f"the chunks of {total} have no partner"
        size = size * var.size
        result.joined[var] = rest if same(size, total) else rest % var.size
        side[var] = [] if not same(size, total) else [low, high]
        result.pairs += [(v, var, v) if chunks_left else (var, v, v) for v in (low, high)]
    if not same(size, total):
        return f"the chunks of {total} have no partner"
    other |= {low: [low], high: [high]}
    return None


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
    """Returns the size of a variable divided by the sizes of the digits that are already split off."""
    rest = digit[1].size
    for piece in pieces.get(digit[1], ()):
        rest //= piece.size
    return rest
