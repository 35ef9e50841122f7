"""Symbolic sizes: polynomials over symbols, each of which represents a dimension (or an integer argument) of a call.

A `Size` behaves like the positive integer that it represents. Arithmetic stays symbolic. A comparison is decided by the
ranges of the symbols if these are sufficient; else the example decides it, and the answer is recorded as an assumption
(see `assumptions`), which becomes a guard of the compiled code. So no use of a Size can be wrong, only less general
than possible: `int(size)` specializes it to the example's value.

Results that are plain numbers are `int`: code that never meets a symbol never meets a Size.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, Union

if TYPE_CHECKING:
    from smelt.shapes.assumptions import Assumptions
    from smelt.shapes.unbacked import Origin

IntLike: TypeAlias = Union[int, "Size"]
Monomial: TypeAlias = "tuple[Factor, ...]"
Bound: TypeAlias = int | None
"""Type of a bound; None: no bound on that side."""


class Factor:
    """A factor of a monomial: a symbol, or a floor division or remainder of two sizes.

    Attributes:
        key: identity as text; unique in the process.
        hint: the value in the example.
        low, high: bounds of all values that it may have.
    """

    __slots__ = ("key", "hint", "owner", "_hash")
    low: int
    high: Bound

    def __init__(self, key: str, hint: int, owner: Assumptions) -> None:
        self.key, self.hint, self.owner = key, hint, owner
        self._hash = hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Factor) and self.key == other.key)

    def __lt__(self, other: Factor) -> bool:
        return self.key < other.key


class Symbol(Factor):
    """A number that is known when the compiled code runs; created by `Assumptions.symbol`.

    Attributes:
        origin: the position where it is read, if it is known only from the values of a tensor (see `unbacked`), else
            None; the hint is then a guess.
        wide: whether it may be any integer of 64 bits; other symbols are sizes, which memory bounds.
    """

    __slots__ = ("name", "low", "high", "origin", "wide")

    def __init__(
        self,
        name: str,
        hint: int,
        owner: Assumptions,
        low: int,
        high: Bound,
        origin: Origin | None = None,
        wide: bool = False,
    ) -> None:
        super().__init__(f"{name}@{owner.serial}", hint, owner)
        self.name, self.low, self.high, self.origin, self.wide = name, low, high, origin, wide

    def __repr__(self) -> str:
        return self.name


class Division(Factor):
    """The floor division `of // by` (or `of % by`, see Modulo) if that is not a polynomial; `by` is positive."""

    __slots__ = ("of", "by", "_known", "_bounds")
    sign = "//"
    compute: Callable[[Any, Any], Any] = staticmethod(operator.floordiv)

    def __init__(self, of: IntLike, by: IntLike, owner: Assumptions) -> None:
        super().__init__(f"({key(of)} {self.sign} {key(by)})", type(self).compute(hint(of), hint(by)), owner)
        self.of, self.by = of, by
        self._known = -1
        self._bounds: tuple[int, Bound] = (0, None)

    @property
    def low(self) -> int:  # type: ignore[override]
        """Lowest value, as far as it is currently known."""
        return self._up_to_date()[0]

    @property
    def high(self) -> Bound:  # type: ignore[override]
        """Highest value, as far as it is currently known."""
        return self._up_to_date()[1]

    def _up_to_date(self) -> tuple[int, Bound]:
        if self._known != self.owner.tightened:
            self._known = self.owner.tightened
            self._bounds = self.bounds()
        return self._bounds

    def bounds(self) -> tuple[int, Bound]:
        low, high = bounds(self.of)
        # a comparison has already shown that `by` is positive
        smallest, largest = max(lowest(self.by) or 1, 1), bounds(self.by)[1]
        if low is None:
            bottom = -(10**18)
        else:
            bottom = low // smallest if low < 0 else 0 if largest is None else low // largest
        return bottom, None if high is None else high // smallest

    def __repr__(self) -> str:
        return f"({_operand(self.of)} {self.sign} {_operand(self.by)})"


class Modulo(Division):
    """The remainder `of % by` if that is not a polynomial."""

    __slots__ = ()
    sign = "%"
    compute = staticmethod(operator.mod)

    def bounds(self) -> tuple[int, Bound]:
        largest = bounds(self.by)[1]
        return 0, None if largest is None else largest - 1


class Size:
    """The sum `sum(coefficient * monomial)` with at least one factor. Immutable; equal forms have equal hashes.

    `==` compares numbers and may add an assumption; `same(a, b)` compares forms.
    """

    __slots__ = ("terms", "_hash", "_bounds")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)
        self._bounds: tuple[int, Bound, Bound] | None = None

    def __hash__(self) -> int:
        return self._hash

    @property
    def owner(self) -> Assumptions:
        """The assumptions to which its symbols belong."""
        for monomial, _ in self.terms:
            if monomial:
                return monomial[0].owner
        raise AssertionError("a Size without a symbol")

    # arithmetic

    def __add__(self, other: Any) -> IntLike:
        if not isinstance(other, (int, Size)):
            return NotImplemented
        sums = dict(self.terms)
        for monomial, c in terms_of(other):
            sums[monomial] = sums.get(monomial, 0) + c
        return make(sums)

    __radd__ = __add__

    def __neg__(self) -> IntLike:
        return Size(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: Any) -> IntLike:
        return self + -other if isinstance(other, (int, Size)) else NotImplemented

    def __rsub__(self, other: Any) -> IntLike:
        return -self + other if isinstance(other, (int, Size)) else NotImplemented

    def __mul__(self, other: Any) -> IntLike:
        if isinstance(other, int):
            return Size(tuple((m, c * other) for m, c in self.terms)) if other else 0
        if not isinstance(other, Size):
            return NotImplemented
        sums: dict[Monomial, int] = {}
        for m, c in self.terms:
            for n, d in other.terms:
                product = tuple(sorted(m + n)) if m and n else m or n
                sums[product] = sums.get(product, 0) + c * d
        return make(sums)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> IntLike:
        return floordiv(self, other) if isinstance(other, (int, Size)) else NotImplemented

    def __rfloordiv__(self, other: Any) -> IntLike:
        return floordiv(other, self) if isinstance(other, int) else NotImplemented

    def __mod__(self, other: Any) -> IntLike:
        return modulo(self, other) if isinstance(other, (int, Size)) else NotImplemented

    def __rmod__(self, other: Any) -> IntLike:
        return modulo(other, self) if isinstance(other, int) else NotImplemented

    def __divmod__(self, other: Any) -> tuple[IntLike, IntLike]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[IntLike, IntLike]:
        return other // self, other % self

    def __pow__(self, exponent: int) -> IntLike:
        if type(exponent) is not int or exponent < 0:
            return int(self) ** exponent
        result: IntLike = 1
        for _ in range(exponent):
            result = result * self
        return result

    def __abs__(self) -> IntLike:
        return self if self >= 0 else -self

    # comparisons: decided by proof, else by the example and an assumption

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, (int, Size)):
            return self.owner.decide("==", self, other)
        return NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other if isinstance(other, (int, Size)) else NotImplemented

    def __lt__(self, other: Any) -> bool:
        return self.owner.decide("<", self, other) if isinstance(other, (int, Size)) else NotImplemented

    def __gt__(self, other: Any) -> bool:
        return self.owner.decide("<", other, self) if isinstance(other, (int, Size)) else NotImplemented

    def __le__(self, other: Any) -> bool:
        return not self.owner.decide("<", other, self) if isinstance(other, (int, Size)) else NotImplemented

    def __ge__(self, other: Any) -> bool:
        return not self.owner.decide("<", self, other) if isinstance(other, (int, Size)) else NotImplemented

    def __bool__(self) -> bool:
        return self != 0

    def __index__(self) -> int:
        return self.owner.pin(self)

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.owner.pin(self))

    def __truediv__(self, other: Any) -> Any:
        return int(self) / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / int(self)

    def __str__(self) -> str:
        return text(self)

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


def _operand(value: IntLike) -> str:
    """Returns text that may be an operand of an operator."""
    source = text(value)
    return source if source.isidentifier() or source.isdecimal() else f"({source})"


# -- forms ---------------------------------------------------------------------------------------------------------


def terms_of(value: IntLike) -> tuple[tuple[Monomial, int], ...]:
    """Returns the terms of a Size or of a number."""
    if isinstance(value, Size):
        return value.terms
    return (((), int(value)),) if value else ()


def make(sums: Mapping[Monomial, int]) -> IntLike:
    """Returns the simplest value with these coefficients: a plain int if no factor is left."""
    terms = [(m, c) for m, c in sums.items() if c]
    if not terms:
        return 0
    if len(terms) == 1 and not terms[0][0]:
        return terms[0][1]
    terms.sort(key=_order)
    return Size(tuple(terms))


def _order(term: tuple[Monomial, int]) -> tuple[int, list[str]]:
    """Sort key of terms: products first, the number last."""
    return (-len(term[0]), [f.key for f in term[0]])


def of_factor(factor: Factor) -> Size:
    """Returns the size of one factor."""
    return Size((((factor,), 1),))


def as_symbol(value: object) -> Symbol | None:
    """Returns the symbol if the value consists only of a symbol, else None."""
    if isinstance(value, Size) and len(value.terms) == 1:
        (monomial, c) = value.terms[0]
        if c == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return monomial[0]
    return None


def same(a: IntLike, b: IntLike) -> bool:
    """Whether both have the same form. Adds no assumption."""
    if a is b:  # as are most, small numbers
        return True
    if isinstance(a, Size):
        return isinstance(b, Size) and a.terms == b.terms
    return not isinstance(b, Size) and a == b


def same_all(a: Sequence[IntLike], b: Sequence[IntLike]) -> bool:
    """Whether both have the same forms, one by one. Adds no assumption."""
    return len(a) == len(b) and all(map(same, a, b))


def key(value: IntLike) -> str:
    """Returns text that is equal exactly for equal forms."""
    return "+".join(f"{c}*{'*'.join(f.key for f in m)}" for m, c in terms_of(value)) or "0"


def text(value: IntLike) -> str:
    """Returns Python source over the symbols' names."""
    terms: list[str] = []
    for monomial, c in terms_of(value):
        factors = [repr(f) for f in monomial]
        if abs(c) != 1 or not factors:
            factors.append(str(abs(c)))
        sign = ("-" if c < 0 else "") if not terms else (" - " if c < 0 else " + ")
        terms.append(sign + "*".join(factors))
    return "".join(terms) or "0"


def substitute_names(source: str, names: Mapping[str, str]) -> str:
    """Returns Python source of a size with its symbols' names replaced."""
    return _NAME.sub(lambda found: names.get(found.group(), found.group()), source)


_NAME = re.compile(r"\b[fsu]\d+\b")


def hint(value: IntLike) -> int:
    """Returns the value in the example. It is for estimates only: a choice that depends on it must not change
    results.
    """
    if not isinstance(value, Size):
        return value
    total = 0
    for monomial, c in value.terms:
        for factor in monomial:
            c *= factor.hint
        total += c
    return total


def evaluate(value: IntLike, values: Mapping[Symbol, int]) -> int:
    """Returns the number for given values of the symbols."""
    if not isinstance(value, Size):
        return value
    total = 0
    for monomial, c in value.terms:
        for factor in monomial:
            if isinstance(factor, Division):
                c *= type(factor).compute(evaluate(factor.of, values), evaluate(factor.by, values))
            else:
                c *= values[factor]  # type: ignore[index]
        total += c
    return total


def substitute(value: IntLike, values: Mapping[Factor, IntLike]) -> IntLike:
    """Returns the value with some factors replaced."""
    if not isinstance(value, Size):
        return value
    total: IntLike = 0
    for monomial, c in value.terms:
        product: IntLike = c
        for factor in monomial:
            if factor in values:
                product = product * values[factor]
            elif isinstance(factor, Modulo):
                product = product * modulo(substitute(factor.of, values), substitute(factor.by, values))
            elif isinstance(factor, Division):
                product = product * floordiv(substitute(factor.of, values), substitute(factor.by, values))
            else:
                product = product * of_factor(factor)
        total = total + product
    return total


def simplified(values: Any) -> Any:
    """Returns sizes with the equalities substituted that their owner has learned."""
    return tuple(v.owner.simplify(v) if isinstance(v, Size) else v for v in values)


def value_in(value: IntLike, values: Mapping[Symbol, int] | None) -> int:
    """Returns a plain number unchanged, and the number of a Size for given values of the symbols."""
    if not isinstance(value, Size):
        return value
    assert values is not None, f"no values for the symbols of {value}"
    return evaluate(value, values)


def symbols(*values: IntLike) -> Iterator[Symbol]:
    """Yields the symbols in these values, inner ones included; repeats are possible."""
    for value in values:
        if isinstance(value, Size):
            for monomial, _ in value.terms:
                for factor in monomial:
                    if isinstance(factor, Division):
                        yield from symbols(factor.of, factor.by)
                    else:
                        assert isinstance(factor, Symbol)
                        yield factor


def is_symbolic(values: Iterable[object]) -> bool:
    """Whether one of them is a Size."""
    # takes half the time of `any`, which matters because it runs tens of thousands of times for metas
    for value in values:
        if isinstance(value, Size):
            return True
    return False


# -- facts that are true for every value of the symbols ------------------------------------------------------------


def bounds(value: IntLike) -> tuple[Bound, Bound]:
    """Returns bounds of the number's values, which are valid but not always reached."""
    if not isinstance(value, Size):
        return value, value
    tightened = value.owner.tightened
    if value._bounds is None or value._bounds[0] != tightened:
        low: Bound = 0
        high: Bound = 0
        for monomial, c in value.terms:
            bottom, top = _product_bounds(monomial)
            if c < 0:
                bottom, top = top, bottom
            low = None if low is None or bottom is None else low + c * bottom
            high = None if high is None or top is None else high + c * top
        value._bounds = (tightened, low, high)
    return value._bounds[1:]


def _product_bounds(monomial: Monomial) -> tuple[Bound, Bound]:
    low: Bound = 1
    high: Bound = 1
    for factor in monomial:
        if factor.low < 0:
            return None, None
        low = None if low is None else low * factor.low
        high = None if high is None or factor.high is None else high * factor.high
    return low, high


def known_less(a: IntLike, b: IntLike) -> bool:
    """Whether the bounds show that a < b for every value of the symbols. Adds no assumption."""
    low = lowest(b - a)
    return low is not None and low > 0


def known_at_most(a: IntLike, b: IntLike) -> bool:
    """Whether the bounds show that a <= b for every value of the symbols. Adds no assumption."""
    low = lowest(b - a)
    return low is not None and low >= 0


def smaller(a: IntLike, b: IntLike) -> IntLike:
    """Returns `min(a, b)`, without an assumption if one is known to be at most the other."""
    return a if known_at_most(a, b) else b if known_at_most(b, a) else min(a, b)


def larger(a: IntLike, b: IntLike) -> IntLike:
    """Returns `max(a, b)`, without an assumption if one is known to be at most the other."""
    return a if known_at_most(b, a) else b if known_at_most(a, b) else max(a, b)


def known_equal(a: IntLike, b: IntLike) -> bool:
    """Whether a == b for every value of the symbols under the assumptions so far. Adds no assumption."""
    if same(a, b):
        return True
    if not isinstance(a, Size) and not isinstance(b, Size):
        return a == b
    owner = (a if isinstance(a, Size) else b).owner  # type: ignore[union-attr]
    return owner.is_zero(b - a)


def known_divides(by: IntLike, value: IntLike) -> bool:
    """Whether `by` divides `value` for every value of the symbols. Adds no assumption."""
    if not isinstance(by, Size) and not isinstance(value, Size):
        return by != 0 and value % by == 0
    return exact_quotient(value, by) is not None


LARGEST = 2**63 - 1
"""Largest number that a graph can represent."""
FAR = 2**62
"""A number that exceeds every size: PyTorch keeps sizes and counts of elements in 64 bits, and `x[1:]` ends at 2**63 -
1.
"""


def lowest(value: IntLike) -> Bound:
    """Returns a lower bound of `value`, the highest that three methods find: ranges of the factors, differences of
    products joined term by term, and floor divisions bounded by their operands.
    """
    if not isinstance(value, Size):
        return value
    low = bounds(value)[0]
    if low is not None and low >= 1:
        return low
    if value.terms[-1][1] >= FAR and not value.terms[-1][0] and not any(s.wide for s in symbols(value)):
        return 1
    low = _higher(low, _joined(value))
    return _higher(low, _undivided(value)) if low is None or low < 1 else low


def _higher(low: Bound, other: Bound) -> Bound:
    return other if low is None or (other is not None and other > low) else low


def _joined(value: Size) -> Bound:
    """Returns a lower bound found by joining terms: `s0*s1 - s0` has no bound by intervals alone, so a negative term
    that divides a positive one is joined with it.
    """
    rest = dict(value.terms)
    total = 0
    for m, c in sorted(((m, c) for m, c in value.terms if c < 0 and m), key=lambda t: -len(t[0])):
        need = -c
        for n, d in sorted(((n, d) for n, d in rest.items() if d > 0 and len(n) >= len(m)), key=lambda t: len(t[0])):
            left = _without(n, m)
            if left is None:
                continue
            per, _ = _product_bounds(left)  # n >= per * m for all values
            if not per:
                continue
            used = min(d, -(-need // per))
            rest[n] = d - used
            need -= used * per
            if need <= 0:
                break
        rest[m] = -need
    for m, c in rest.items():
        bottom, top = _product_bounds(m)
        if c < 0:
            bottom = top
        if bottom is None:
            return None
        total += c * bottom
    return total


def _undivided(value: Size) -> Bound:
    """Returns a lower bound derived from a multiple of the value without one floor division: `a // b` is in [(a - b +
    1) / b, a / b].
    """
    for found in dict.fromkeys(f for monomial, _ in value.terms for f in monomial):
        if type(found) is not Division or isinstance(found.by, Size):
            continue
        by: int = found.by
        total: IntLike = 0
        for monomial, c in value.terms:
            rest = tuple(f for f in monomial if f != found)
            if len(rest) == len(monomial):
                total = total + make({rest: c}) * by
            elif len(rest) == len(monomial) - 1 and all(f.low >= 0 for f in rest):
                total = total + make({rest: c}) * (found.of if c < 0 else found.of - (by - 1))
            else:
                break
        else:
            low = lowest(total)
            return None if low is None else -(-low // by)
    return None


def _without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """Returns `monomial / divisor`, or None if it does not divide."""
    left = list(monomial)
    for factor in divisor:
        if factor not in left:
            return None
        left.remove(factor)
    return tuple(left)


# -- division --------------------------------------------------------------------------------------------------------


def exact_quotient(value: IntLike, by: IntLike) -> IntLike | None:
    """Returns `value / by` if that is certainly a polynomial, else None."""
    if not isinstance(by, Size):
        if by == 0:
            return None
        if not isinstance(value, Size):
            return value // by if value % by == 0 else None
        if any(c % by for _, c in value.terms):
            return None
        return Size(tuple((m, c // by) for m, c in value.terms))
    if same(value, 0):
        return 0
    # Long division by the leading term; it ends because degrees fall.
    quotient: IntLike = 0
    rest: IntLike = value
    (lead, c), steps = by.terms[0], 0
    while isinstance(rest, Size):
        m, d = rest.terms[0]
        left = _without(m, lead)
        if left is None or d % c or steps > 16:
            return None
        term = make({left: d // c})
        quotient, rest, steps = quotient + term, rest - term * by, steps + 1
    return quotient if rest == 0 else None


def common(a: IntLike, b: IntLike) -> IntLike:
    """Returns a divisor of both: the greatest one of two numbers; for polynomials one of them, or the common factor of
    all terms.
    """
    if not isinstance(a, Size) and not isinstance(b, Size):
        return math.gcd(a, b)
    for one, other in ((a, b), (b, a)):
        if not same(one, 0) and exact_quotient(other, one) is not None:
            return -one if not isinstance(one, Size) and one < 0 else one
    unit = math.gcd(*(c for _, c in (*terms_of(a), *terms_of(b))))
    shared: list[Factor] = []
    (first, _), *others = (*terms_of(a), *terms_of(b))
    rest = [list(m) for m, _ in others]
    for factor in first:
        if all(factor in m for m in rest):
            shared.append(factor)
            for m in rest:
                m.remove(factor)
    return make({tuple(shared): unit})


def content(value: IntLike) -> int:
    """Returns the greatest number that divides the value for all values of its symbols."""
    return math.gcd(*(c for _, c in value.terms)) if isinstance(value, Size) else value


def split(value: IntLike, by: IntLike) -> tuple[IntLike, IntLike]:
    """Returns (quotient, rest) with value = by * quotient + rest; the quotient has every term that `by` divides."""
    if not isinstance(by, Size):
        if not isinstance(value, Size):
            return divmod(value, by)
        quotient, rest = {}, {}
        for m, c in terms_of(value):
            quotient[m] = c // by if (c % by == 0 or not m) else 0
            rest[m] = c - quotient[m] * by
        return make(quotient), make(rest)
    if len(by.terms) == 1:
        (lead, c), wholes, rests = by.terms[0], {}, {}
        for m, d in terms_of(value):
            left = _without(m, lead)
            if left is not None and d % c == 0:
                wholes[left] = d // c
            else:
                rests[m] = d
        return make(wholes), make(rests)
    exact = exact_quotient(value, by)
    return (exact, 0) if exact is not None else (0, value)


def _common(a: IntLike, b: IntLike) -> IntLike:
    """Returns the largest product that divides every term of both."""
    terms = [*terms_of(a), *terms_of(b)]
    shared = list(terms[0][0])
    for monomial, _ in terms[1:]:
        left, kept = list(monomial), []
        for factor in shared:
            if factor in left:
                left.remove(factor)
                kept.append(factor)
        shared = kept
    return make({tuple(shared): math.gcd(*(c for _, c in terms))})


def _over(value: IntLike, by: IntLike) -> IntLike:
    quotient = exact_quotient(value, by)
    assert quotient is not None
    return quotient


def floordiv(value: IntLike, by: IntLike) -> IntLike:
    """Returns `value // by`, rounded towards minus infinity.

    Raises:
        ZeroDivisionError: `by` is 0.
    """
    if not isinstance(value, Size) and not isinstance(by, Size):
        return value // by
    if same(by, 1):
        return value
    if not isinstance(by, Size) and by < 0:
        return floordiv(-value, -by)
    if not by > 0:
        return int(value) // int(by)
    exact = exact_quotient(value, by)
    if exact is not None:
        return exact
    common = _common(value, by)
    if not same(common, 1):
        return floordiv(_over(value, common), _over(by, common))
    return _quotient(value, by)


def _quotient(value: IntLike, by: IntLike) -> IntLike:
    """Returns `value // by` for a positive `by`, which has no factor in common with `value` and does not divide it."""
    owner = (value if isinstance(value, Size) else by).owner  # type: ignore[union-attr]
    quotient, rest = split(value, by)
    if known_at_most(0, rest) and known_less(rest, by):
        return quotient
    if known_less(rest, 0) and known_at_most(0, rest + by):
        return quotient - 1
    nested = _nested_quotient(rest, by)
    return quotient + (owner.value_of(Division(rest, by, owner)) if nested is None else nested)


def _nested_quotient(value: IntLike, by: IntLike) -> IntLike | None:
    """Returns (x // a + c) // b as (x + c*a) // (a*b), for numbers a, b and c; None if `value` is not of that form."""
    if not isinstance(value, Size) or isinstance(by, Size) or (len(value.terms) > 1 and value.terms[-1][0]):
        return None
    (m, c), *others = value.terms
    if len(others) > 1 or len(m) != 1 or c != 1 or type(m[0]) is not Division or isinstance(m[0].by, Size):
        return None
    more = others[0][1] if others else 0
    return floordiv(m[0].of + more * m[0].by, m[0].by * by)


def modulo(value: IntLike, by: IntLike) -> IntLike:
    """Returns `value % by`, with the sign of `by`.

    Raises:
        ZeroDivisionError: `by` is 0.
    """
    if not isinstance(value, Size) and not isinstance(by, Size):
        return value % by
    owner = (value if isinstance(value, Size) else by).owner  # type: ignore[union-attr]
    if same(by, 1):
        return 0
    if not isinstance(by, Size) and by < 0:
        return -modulo(-value, -by)
    if not by > 0:
        return int(value) % int(by)
    if exact_quotient(value, by) is not None:
        return 0
    common = _common(value, by)
    if not same(common, 1):
        return modulo(_over(value, common), _over(by, common)) * common
    _, rest = split(value, by)
    if known_at_most(0, rest) and known_less(rest, by):
        return rest
    if known_less(rest, 0) and known_at_most(0, rest + by):
        return rest + by
    return owner.value_of(Modulo(rest, by, owner))
