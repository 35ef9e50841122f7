"""The assumptions of a compiled version about its symbolic sizes: the guards that dynamic shapes need.

One `Assumptions` belongs to one captured graph. It creates the symbols and decides comparisons of sizes. Each answer
that is true for the example but not for every size is recorded, with the line of the user's code that needed it.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from smelt.base.errors import SmeltError, SpecializationError
from smelt.shapes.real import Real, evaluate_real, real_text, sign_of
from smelt.shapes.size import (
    LARGEST,
    Bound,
    Division,
    Factor,
    IntLike,
    Modulo,
    Monomial,
    Size,
    Symbol,
    evaluate,
    exact_quotient,
    hint,
    key,
    lowest,
    make,
    modulo,
    of_factor,
    same,
    substitute,
    symbols,
    text,
)
from smelt.shapes.unbacked import DataDependent, Origin, data_dependent, is_unbacked, numbers_in, usually

_KEEP = "keep it in tensors until after the graph, or read it outside of the compiled function"

_serials = itertools.count()
"""Distinguishes the symbols of different graphs."""


class Assumed(NamedTuple):
    """The assumption `left <sign> right` (sign: ==, !=, <, >=); `reason`: the user's line, or the stage, that compared
    the values.
    """

    sign: str
    left: IntLike
    right: IntLike
    reason: str

    def __str__(self) -> str:
        return f"{text(self.left)} {self.sign} {text(self.right)}"

    def holds(self, values: Any) -> bool:
        """Whether the assumption is true for given values of the symbols (a mapping)."""
        a, b = evaluate(self.left, values), evaluate(self.right, values)
        match self.sign:
            case "==":
                return a == b
            case "!=":
                return a != b
            case "<":
                return a < b
            case _:
                return a >= b


class AssumedReal(NamedTuple):
    """The assumption that `left <sign> right` has this `answer`, for floating-point numbers, for which `not <` differs
    from `>=`.
    """

    sign: str
    left: Any
    right: Any
    answer: bool
    reason: str

    def __str__(self) -> str:
        comparison = f"{real_text(self.left)} {self.sign} {real_text(self.right)}"
        return comparison if self.answer else f"not {comparison}"

    def holds(self, values: Mapping[Any, Any]) -> bool:
        """Whether the assumption is true for given values of symbols and leaves."""
        compare = _COMPARISONS[self.sign]
        return compare(evaluate_real(self.left, values), evaluate_real(self.right, values)) == self.answer


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}


class Assumptions:
    """The symbols of a graph, and the assumptions about them.

    Attributes:
        symbols: every symbol, in order of creation.
        assumed: assumptions that have to be checked before compiled code is used, besides each symbol's range.
        where: function that returns the line of the user's program that is being processed, for the reasons.
        kept: symbols that the user marked as dynamic: specializing one is an error.
        tightened: number of times that the range of a symbol became narrower.
        refused: the error about a `kept` symbol, once raised; it is raised anew if the program has caught it.
        expects: callback with each fact that compiled code has to check, and the text and class of the error.
        granted: number of such facts.
        small_is_usual: whether unbacked sizes of 0 and 1 are treated like larger ones, because PyTorch's derivative
            formulas are running.
        data_dependent: the error about an unbacked number, kept in the same way as `refused`.
        written: sizes whose values in the example are in texts that nobody has seen so far.
    """

    def __init__(self, where: Callable[[], str] | None = None) -> None:
        self.symbols: list[Symbol] = []
        self.assumed: list[Assumed | AssumedReal] = []
        self._reals = 0
        self.where = where or (lambda: "")
        self.kept: set[Symbol] = set()
        self.refused: SpecializationError | None = None
        self.data_dependent: DataDependent | None = None
        self.small_is_usual = False
        self.expects: Callable[[Assumed, str, str], None] | None = None
        self.serial = next(_serials)
        self.tightened = 0
        self.granted = 0
        self.written: list[Size] = []
        self._answers: dict[tuple[str, str], bool] = {}
        self._recorded_facts: set[str] = set()
        self._values: dict[Factor, IntLike] = {}
        self._least: list[tuple[IntLike, int]] = []

    def symbol(self, value: int, low: int = 2, high: Bound = None, kept: bool = False, wide: bool = False) -> Size:
        """Create a symbol whose value in the example is `value`.

        Args:
            low, high: bounds of the values that compiled code has to support. Sizes 0 and 1 get separate versions,
                because broadcasting and empty tensors follow other rules.
            kept: whether the user marked it as dynamic, so that specializing it raises an error.
            wide: whether it is a number of the program, which may exceed every size.

        Raises:
            SmeltError: the example is outside of the range.
        """
        if value < low or (high is not None and value > high):
            raise SmeltError(f"a size of {value} outside of its range {low} to {high}")
        symbol = Symbol(f"s{len(self.symbols)}", value, self, low, high, wide=wide)
        self.symbols.append(symbol)
        if kept:
            self.kept.add(symbol)
        return of_factor(symbol)

    def real(self, value: float) -> Real:
        """Create a floating-point input whose value in the example is `value`."""
        self._reals += 1
        return Real(None, (), self, f"f{self._reals - 1}", value)

    def unbacked(self, origin: Origin, low: int, high: Bound) -> Size:
        """Create an unbacked symbol, known only from the values of a tensor, within `low` and `high`."""
        wide = low < 0
        high = LARGEST if wide and high is None else high
        guess = _GUESS if high is None else min(_GUESS, -(-high // 2))
        symbol = Symbol(f"u{len(self.symbols)}", max(low, guess), self, low, high, origin, wide)
        self.symbols.append(symbol)
        return of_factor(symbol)

    def unbacked_real(self, origin: Origin) -> Real:
        """Create an unbacked floating-point number."""
        self._reals += 1
        return Real(None, (), self, f"f{self._reals - 1}", 0.5, origin)

    def refuse(self, comparison: str, *values: Any, hint: str = _KEEP) -> NoReturn:
        """Refuse a comparison that cannot be decided before the graph runs.

        Raises:
            DataDependent: always.
        """
        numbers = [number for value in values for number in numbers_in(value)]
        if self.data_dependent is None:  # a copy is kept, because the raised error keeps its frames alive
            self.data_dependent = data_dependent(comparison, numbers, self.where(), hint)
        raise data_dependent(comparison, numbers, self.where(), hint)

    def may_compute(self, compute: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Check that a graph may compute with unbacked floats: Python raises errors where tensors return inf or nan.

        Raises:
            DataDependent: the graph may not compute this.
        """
        if not is_unbacked(*args) or compute in _NEVER_RAISE:
            return
        if compute is operator.truediv and isinstance(args[1], (int, float)) and args[1] != 0:
            return
        self.refuse(f"{compute.__name__} of {', '.join(map(real_text, args))}", *args)

    def decide_real(self, sign: str, a: Any, b: Any) -> bool:
        """Decide a comparison by the example; the answer becomes an assumption."""
        if is_unbacked(a, b):
            self.refuse(f"{real_text(a)} {sign} {real_text(b)}", a, b)
        left, right = (v.hint if isinstance(v, Real) else hint(v) for v in (a, b))
        fact = AssumedReal(sign, a, b, bool(_COMPARISONS[sign](left, right)), self.where())
        if str(fact) not in self._recorded_facts:
            self._recorded_facts.add(str(fact))
            self.assumed.append(fact)
        return fact.answer

    def pin_real(self, value: Real) -> float:
        """Returns the example's value as a plain number, which becomes an assumption."""
        if is_unbacked(value):
            self.refuse(f"the value of {value}", value)
        number = float(value.hint)
        # for nan the assumption is that the value does not equal itself
        self.decide_real("==", value, value if number != number else number)
        if number == 0:
            self.decide_real("==", Real(sign_of, (value,), self), sign_of(number))
        return number

    def decide(self, sign: str, a: IntLike, b: IntLike) -> bool:
        """Decide `a < b` or `a == b`: by proof, by an earlier answer, or by the example and a new assumption."""
        known = self.prove(sign, a, b)
        if known is not None:
            return known
        if is_unbacked(a, b):
            return self._usual(sign, b - a) if self.small_is_usual else self._refuse_question(sign, a, b)
        difference = _reduced(self.simplify(b - a))
        answer = hint(difference) > 0 if sign == "<" else hint(difference) == 0
        self._answers[_question(sign, difference)] = answer
        self._assume(sign if answer else {"<": ">=", "==": "!="}[sign], a, b)
        return answer

    def prove(self, sign: str, a: IntLike, b: IntLike) -> bool | None:
        """Whether `a < b` or `a == b` for all sizes under the assumptions so far; None if that is unknown."""
        difference = _reduced(self.simplify(b - a))
        if sign == "<":
            if self._at_least(difference, 1):
                return True
            if self._at_least(-difference, 0):
                return False
        else:
            if same(difference, 0):
                return True
            if not isinstance(difference, Size) or self._at_least(difference, 1) or self._at_least(-difference, 1):
                return False
            if self.is_zero(difference):
                return True
        return self._answers.get(_question(sign, difference))

    def is_zero(self, value: IntLike) -> bool:
        """Whether equalities, and divisions known to be exact, show that a value is 0."""
        return same(self._without_divisions(self.simplify(value)), 0)

    def _without_divisions(self, value: IntLike) -> IntLike:
        """Returns a value that is 0 where `value` is, without divisions that are known to be exact: 2*(s // 2) becomes
        s.
        """
        for _ in range(4):
            exact = [f for f in _top(value) if type(f) is Division and same(modulo(f.of, f.by), 0)]
            if not exact or not isinstance(value, Size):
                return value
            division = exact[0]
            assert isinstance(division, Division)
            total: IntLike = 0
            for monomial, c in value.terms:
                times, rest = monomial.count(division), tuple(f for f in monomial if f != division)
                if times > 1:
                    return value
                total = total + make({rest: c}) * (division.of if times else division.by)
            value = self.simplify(total)
        return value

    def _at_least(self, value: IntLike, least: int) -> bool:
        """Whether the ranges, or an earlier answer, show that `value >= least`."""
        low = lowest(value)
        if low is not None and low >= least:
            return True
        for known, bound in self._least:
            low = lowest(value - known)
            if low is not None and low + bound >= least:
                return True
        return False

    def pin(self, value: Size) -> int:
        """Specialize a size: returns the example's value as a plain number, and assumes that the size equals it."""
        simple = self.simplify(value)
        if not isinstance(simple, Size):
            return simple
        if is_unbacked(simple):
            self.refuse(f"the value of {simple}", simple)
        number = hint(simple)
        self.decide("==", simple, number)
        return number

    def write(self, value: Size) -> str:
        """Returns the text of the example's value, for a message that may turn out never to be shown."""
        self.written.append(value)
        return str(hint(value))

    def pin_written(self) -> None:
        """Specialize the sizes in the texts of `write`, because the message is shown."""
        while self.written:
            self.pin(self.written.pop())

    def simplify(self, value: IntLike) -> IntLike:
        """Returns the value with all known equalities substituted."""
        if self._values and isinstance(value, Size):
            return substitute(value, self._values)
        return value

    def value_of(self, factor: Factor) -> IntLike:
        """Returns the known value of a division or a remainder, else the factor itself."""
        known = self._values.get(factor)
        return of_factor(factor) if known is None else known

    def assumption_rollback(self) -> Callable[[], bool]:
        """Returns a function that undoes all assumptions made after this call; that function returns whether there were
        any.
        """
        count, ranges = len(self.assumed), [(symbol, symbol.low, symbol.high) for symbol in self.symbols]
        answers, comparison, values, least = (
            {**self._answers},
            {*self._recorded_facts},
            {**self._values},
            [*self._least],
        )

        def back() -> bool:
            if len(self.assumed) == count:
                return False
            del self.assumed[count:]
            for symbol, low, high in ranges:
                symbol.low, symbol.high = low, high
            self._answers, self._recorded_facts, self._values, self._least = answers, comparison, values, least
            return True

        return back

    def _assume(self, sign: str, a: IntLike, b: IntLike) -> None:
        reason = self.where()
        fact = Assumed(sign, a, b, reason)
        if sign == "==":
            self._refuse_pinned(fact)
            self._learn(self.simplify(b - a))
        elif sign in ("<", ">="):
            self._tighten(self.simplify(b - a) if sign == "<" else self.simplify(a - b), 1 if sign == "<" else 0)
        self.assumed.append(fact)

    def _usual(self, sign: str, difference: IntLike) -> bool:
        """Decide a comparison as for sizes of at least 2, where derivative formulas compare a size with 0 or 1."""
        if usually(difference, 1, 2):
            return sign == "<"
        if usually(-difference, 0 if sign == "<" else 1, 2):
            return False
        return self._refuse_question(sign, 0, difference)

    def _refuse_question(self, sign: str, a: IntLike, b: IntLike) -> NoReturn:
        comparison, opposite = (f"{text(a)} {s} {text(b)}" for s in (sign, {"<": ">=", "==": "!="}[sign]))
        hint = (
            f"say before it what always holds: torch._check({comparison}), or torch._check({opposite}), for these "
            "numbers"
        )
        self.refuse(comparison, a, b, hint=hint)

    def expect(self, fact: Assumed, text: str, error: str) -> None:
        """Assume a fact about values that compiled code checks: the code raises an error if the fact is false."""
        self.granted += 1
        if self.expects is not None:
            self.expects(fact, text, error)
        self.learn(fact)

    def learn(self, fact: Assumed) -> None:
        """Record that `fact` is true because compiled code checks it, so that no guard is needed."""
        difference = self.simplify(fact.right - fact.left)
        if not fact.holds(_Guesses()):
            _change_guess(difference, fact.sign)
        match fact.sign:
            case "==":
                self._answers[_question("==", _reduced(difference))] = True
                self._learn(difference)
            case "!=":
                self._answers[_question("==", _reduced(difference))] = False
            case "<":
                self._tighten(difference, 1)
            case _:
                self._tighten(-difference, 0)
        self.tightened += 1

    def _refuse_pinned(self, fact: Assumed) -> None:
        """Raise an error if the fact would make a size that the user marked as dynamic a number (or another size's
        value).
        """
        difference = self.simplify(fact.right - fact.left)
        marked = [s for s in symbols(difference) if s in self.kept]
        if len(set(symbols(difference))) == 1 and marked and not any(type(f) is Modulo for f in _factors(difference)):
            self.refused = _pinned_although_marked(fact, marked[0])
            # the raised error keeps the frames through which it passes alive
            raise _pinned_although_marked(fact, marked[0])

    def _learn(self, difference: IntLike) -> None:
        """Derive from `difference == 0` that a factor which is a term alone with coefficient 1 equals the rest."""
        if not isinstance(difference, Size):
            return
        unit = math.gcd(*(c for _, c in difference.terms))
        for monomial, c in sorted(reversed(difference.terms), key=_unbacked_first):
            if len(monomial) != 1 or abs(c) != unit:
                continue
            factor = monomial[0]
            rest = make({m: -d // c for m, d in difference.terms if m != monomial})
            if factor in _factors(rest) or (is_unbacked(rest) and not is_unbacked(of_factor(factor))):
                continue  # an input's symbol is not replaced by an unbacked one
            single = {factor: rest}
            self._values = {f: substitute(v, single) for f, v in self._values.items()} | single
            return

    def _tighten(self, difference: IntLike, least: int) -> None:
        """Derive from `difference >= least` the range of a symbol that is its only term, else an answer for later
        comparisons.
        """
        self._least.append((difference, least))
        if not isinstance(difference, Size) or len(difference.terms) > 2:
            return
        (monomial, c), *rest = difference.terms
        if len(monomial) != 1 or (rest and rest[0][0]):
            return
        factor, constant = monomial[0], rest[0][1] if rest else 0
        bound = -(-(least - constant) // c) if c > 0 else (constant - least) // -c
        self.tightened += 1
        if type(factor) is Division and not isinstance(factor.by, Size):
            by: int = factor.by  # a // b >= n implies a >= n * b; a // b <= n implies a <= n * b + b - 1
            self._tighten(factor.of - bound * by if c > 0 else bound * by + by - 1 - factor.of, 0)
        elif isinstance(factor, Symbol):
            self._limit(factor, bound, c > 0)

    def _limit(self, symbol: Symbol, bound: int, below: bool) -> None:
        """Set a bound of a symbol: the minimum if `below`, else the maximum. If both are equal, the symbol's value is
        known.
        """
        if below:
            symbol.low = max(symbol.low, bound)
        else:
            symbol.high = bound if symbol.high is None else min(symbol.high, bound)
        if symbol.low == symbol.high and not is_unbacked(of_factor(symbol)):
            self._learn(of_factor(symbol) - symbol.low)


def _pinned_although_marked(fact: Assumed, symbol: Symbol) -> SpecializationError:
    return SpecializationError(
        f"a size is marked dynamic, but the program needs it to be {hint(of_factor(symbol))}",
        at=fact.reason or None,
        why=f"this line asked for {fact}, where {symbol} is the size",
        hint="rewrite the line for any size, or take the mark off (smelt.mark_static)",
    )


def _unbacked_first(term: tuple[Monomial, int]) -> bool:
    """Sort key: unbacked numbers first, since an equality replaces them."""
    return not (len(term[0]) == 1 and is_unbacked(of_factor(term[0][0])))


class _Guesses:
    """The values of symbols in the example."""

    def __getitem__(self, symbol: Symbol) -> int:
        return symbol.hint


def _change_guess(difference: IntLike, sign: str) -> None:
    """Change the example of an unbacked number so that `0 <sign> difference` is true."""
    change = (sign in ("!=", "<")) - hint(difference)
    for monomial, c in difference.terms if isinstance(difference, Size) else ():
        symbol = monomial[0] if len(monomial) == 1 else None
        if abs(c) == 1 and isinstance(symbol, Symbol) and symbol.origin is not None:
            example = symbol.hint + c * change
            if sign in ("<", ">=") and 0 <= symbol.low <= example < symbol.hint:
                example = (symbol.low + example + 1) // 2  # not the bound itself, which is a special case
            if example >= symbol.low and (symbol.high is None or example <= symbol.high):
                symbol.hint = example
                return


_GUESS = 1024
"""Example value, for estimates of work, of a number without an example."""

_NEVER_RAISE = frozenset({operator.add, operator.sub, operator.mul, operator.neg, operator.abs, float})
"""Functions that Python's floats and tensors compute alike for all values."""


def _reduced(difference: IntLike) -> IntLike:
    """Returns the difference divided by positive factors that all of its terms share; its sign is the same."""
    if not isinstance(difference, Size):
        return difference
    shared = list(difference.terms[0][0])
    for monomial, _ in difference.terms[1:]:
        shared = [f for f in shared if f in monomial]
    positive = []
    for factor in shared:
        if factor.low > 0 and all(m.count(factor) >= shared.count(factor) for m, _ in difference.terms):
            positive.append(factor)
    common = make({tuple(sorted(positive)): math.gcd(*(c for _, c in difference.terms))})
    found = exact_quotient(difference, common)
    return difference if found is None else found


def _top(value: IntLike) -> list[Factor]:
    """Returns the factors of a size's products."""
    return [f for monomial, _ in value.terms for f in monomial] if isinstance(value, Size) else []


def _question(sign: str, difference: IntLike) -> tuple[str, str]:
    """Returns a key of the comparison `difference > 0` or `difference == 0`. `a - b` and `b - a` have the same key for
    equality.
    """
    if sign == "==" and isinstance(difference, Size) and difference.terms[0][1] < 0:
        difference = -difference
    return sign, key(difference)


def _factors(value: IntLike) -> set[Factor]:
    """Returns the factors of a size's products, and the factors inside of these."""
    found: set[Factor] = set()
    if isinstance(value, Size):
        for monomial, _ in value.terms:
            for factor in monomial:
                found.add(factor)
                found |= set(symbols(of_factor(factor)))
    return found
