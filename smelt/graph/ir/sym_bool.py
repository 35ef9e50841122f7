"""Undecided predicates over sizes: the contents of a `torch.SymBool`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smelt.shapes.assumptions import Assumed
from smelt.shapes.size import Size, hint
from smelt.shapes.unbacked import is_unbacked


class SymbolicPredicate:
    """A comparison of sizes that can be neither proved nor disproved, or a combination of such.

    Attributes:
        ask: function that decides the predicate; may add an assumption.
        prove: function that returns its truth if that is the same for all sizes, else None.
        example: its truth for the sizes of the example.
        fact: the assumption that corresponds to its truth; None for a combination.
        operands: the predicates of a combination.
    """

    __slots__ = ("ask", "prove", "example", "fact", "operands")

    def __init__(
        self,
        ask: Callable[[], bool],
        prove: Callable[[], bool | None],
        example: bool,
        fact: Assumed | None = None,
        operands: tuple[SymbolicPredicate, ...] = (),
    ) -> None:
        self.ask, self.prove, self.example, self.fact, self.operands = ask, prove, example, fact, operands

    def expect(self, text: str, error: str) -> bool:
        """Assume that the predicate is true, and make compiled code check it. Returns False if it has no unbacked
        sizes, or was decided false.

        Args:
            text, error: the error that the code raises otherwise.
        """
        sizes = self.sizes()
        if not is_unbacked(*sizes):
            return False
        if self.fact is None:
            return self.ask()
        if self.prove() is None:
            next(s.owner for s in sizes if isinstance(s, Size)).expect(self.fact, text, error)
        return True

    def sizes(self) -> list[Any]:
        """The sizes that the predicate compares."""
        own = [] if self.fact is None else [self.fact.left, self.fact.right]
        return own + [size for operand in self.operands for size in operand.sizes()]


def compare(sign: str, a: Any, b: Any, negated: bool = False) -> bool | SymbolicPredicate:
    """Returns `a < b` or `a == b`, or with `negated` the opposite."""
    if not isinstance(a, Size) and not isinstance(b, Size):
        return ((a < b) if sign == "<" else (a == b)) != negated
    owner = (a if isinstance(a, Size) else b).owner

    def prove() -> bool | None:
        known = owner.prove(sign, a, b)
        return known if known is None else known != negated

    known = prove()
    if known is not None:
        return known
    left, right = hint(a), hint(b)
    example = (left < right) if sign == "<" else (left == right)
    fact = Assumed(_OPPOSITE[sign] if negated else sign, a, b, "")
    return SymbolicPredicate(lambda: owner.decide(sign, a, b) != negated, prove, example != negated, fact)


_OPPOSITE = {"<": ">=", "==": "!=", ">=": "<", "!=": "=="}


def both(a: bool | SymbolicPredicate, b: bool | SymbolicPredicate) -> bool | SymbolicPredicate:
    """Returns `a and b`."""
    if isinstance(a, bool):
        return b if a else False
    if isinstance(b, bool):
        return a if b else False

    def prove() -> bool | None:
        first, second = a.prove(), b.prove()
        return False if first is False or second is False else True if first and second else None

    return SymbolicPredicate(lambda: a.ask() and b.ask(), prove, a.example and b.example, None, (a, b))


def opposite(a: bool | SymbolicPredicate) -> bool | SymbolicPredicate:
    """Returns `not a`."""
    if isinstance(a, bool):
        return not a

    def prove() -> bool | None:
        known = a.prove()
        return known if known is None else not known

    fact = a.fact and a.fact._replace(sign=_OPPOSITE[a.fact.sign])
    return SymbolicPredicate(lambda: not a.ask(), prove, not a.example, fact, a.operands)


def either(a: bool | SymbolicPredicate, b: bool | SymbolicPredicate) -> bool | SymbolicPredicate:
    """Returns `a or b`."""
    return opposite(both(opposite(a), opposite(b)))
