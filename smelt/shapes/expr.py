"""Integer index expressions: linear forms over variables, floor divisions and remainders, simplified as they are built.

They are used by loops (index remaps of views), schedule (whether two accesses are equal or cover the same elements) and
codegen (strides, hoisting). Every variable has a range 0 .. size-1, so most divisions that reshapes introduce are
simplified away. Division and remainder round towards minus infinity, as in Python.

Coefficients, constants, sizes and divisors are plain numbers or symbolic sizes (`smelt.shapes.size`). These are
compared by form in this module: two that are not known to be equal are treated as different, and nothing is assumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from smelt.shapes.size import (
    IntLike,
    Size,
    Symbol,
    common,
    exact_quotient,
    floordiv,
    hint,
    is_symbolic,
    key,
    known_at_most,
    known_equal,
    known_less,
    same,
    split,
    value_in,
)

FAR = 2**62
"""Represents an unknown bound."""


class Atom:
    """An atom of a linear form: a variable, a runtime value, a floor division or a remainder.

    Attributes:
        key: identity; it contains the sizes of variables, because simplified forms depend on them and are cached.
        text: the printed form.
    """

    __slots__ = ("key", "text", "low", "high", "_hash")

    def __init__(self, key: str, text: str, low: IntLike, high: IntLike) -> None:
        self.key, self.text, self.low, self.high = key, text, low, high
        self._hash = hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Atom) and self.key == other.key)

    def __repr__(self) -> str:
        return self.text


class Var(Atom):
    """A loop variable with values 0 .. size-1. Equal names and sizes mean equal variables."""

    __slots__ = ("name", "size")

    def __init__(self, name: str, size: IntLike) -> None:
        super().__init__(f"{name}:{_identity(size)}", name, 0, _last(size))
        self.name, self.size = name, size


class Runtime(Atom):
    """An integer loaded from memory; `value` is the value that the interpreter of the loop body made of it."""

    __slots__ = ("value",)

    def __init__(self, name: str, size: IntLike, value: object = None) -> None:
        # forms are cached beyond one kernel: the same name may represent another value in the next
        of = "" if value is None else f":{value!r}"
        super().__init__(f"{name}:{_identity(size)}{of}", name, 0, _last(size))
        self.value = value


class Quotient(Atom):
    """`of // by` for a positive number `by`."""

    __slots__ = ("of", "by")

    def __init__(self, of: Expr, by: IntLike) -> None:
        low, high = _quotient_range(of, by)
        super().__init__(f"({of.key()} // {_identity(by)})", f"({of} // {_factor(by)})", low, high)
        self.of, self.by = of, by


class Remainder(Atom):
    """`of % by` for a positive number `by`."""

    __slots__ = ("of", "by")

    def __init__(self, of: Expr, by: IntLike) -> None:
        super().__init__(f"({of.key()} % {_identity(by)})", f"({of} % {_factor(by)})", 0, by - 1)
        self.of, self.by = of, by


class Expr:
    """`const + sum(coefficient * atom)`. Immutable; terms are sorted by atom, so equal forms compare equal."""

    __slots__ = ("terms", "const", "_hash", "_range")

    def __init__(self, terms: tuple[tuple[Atom, IntLike], ...], const: IntLike) -> None:
        self.terms, self.const = terms, const
        self._hash = hash((terms, const))
        self._range: tuple[IntLike, IntLike] | None = None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, Expr):
            return self._hash == other._hash and self.const == other.const and self.terms == other.terms
        return not self.terms and isinstance(other, (int, Size)) and same(self.const, other)

    def __add__(self, other: Expr | IntLike) -> Expr:
        if not isinstance(other, Expr):
            return self if _is_zero(other) else Expr(self.terms, self.const + other)
        if not other.terms:
            return self if _is_zero(other.const) else Expr(self.terms, self.const + other.const)
        if not self.terms:
            return other if _is_zero(self.const) else Expr(other.terms, self.const + other.const)
        sums = dict(self.terms)
        for atom, coefficient in other.terms:
            sums[atom] = sums.get(atom, 0) + coefficient
        return _normal(sums, self.const + other.const)

    __radd__ = __add__

    def __neg__(self) -> Expr:
        return self * -1

    def __sub__(self, other: Expr | IntLike) -> Expr:
        return self + (-other)

    def __rsub__(self, other: Expr | IntLike) -> Expr:
        return -self + other

    def __mul__(self, by: IntLike) -> Expr:
        if by.__class__ is not Size:
            if by == 1:
                return self
            if by == 0:
                return ZERO
        return Expr(tuple((atom, c * by) for atom, c in self.terms), self.const * by)

    __rmul__ = __mul__

    def __floordiv__(self, by: IntLike) -> Expr:
        return _floordiv(self, by)

    def __mod__(self, by: IntLike) -> Expr:
        return _mod(self, by)

    def __str__(self) -> str:
        terms = [atom.text if same(c, 1) else f"{_factor(c)}*{atom.text}" for atom, c in self.terms]
        if not _is_zero(self.const) or not terms:
            terms.append(str(self.const))
        return " + ".join(terms).replace("+ -", "- ")

    __repr__ = __str__

    def key(self) -> str:
        """Returns text that is equal exactly for equal expressions."""
        return "+".join([f"{_identity(c)}*{atom.key}" for atom, c in self.terms] + [_identity(self.const)])

    def range(self) -> tuple[IntLike, IntLike]:
        """Returns the lowest and highest value (valid bounds, which are exact for sums of different variables)."""
        if self._range is None:
            low = high = self.const
            for atom, c in self.terms:
                if c.__class__ is Size and not known_less(0, c):
                    if not known_less(c, 0):
                        low, high = -FAR, FAR
                        break
                    low += c * atom.high
                    high += c * atom.low
                elif c.__class__ is Size or c > 0:
                    low += c * atom.low
                    high += c * atom.high
                else:
                    low += c * atom.high
                    high += c * atom.low
            self._range = (low, high)
        return self._range

    def coefficient(self, atom: Atom) -> IntLike:
        """Returns the factor of `atom` in the linear form, 0 when absent. Occurrences inside other atoms are not
        included.
        """
        for other, c in self.terms:
            if other == atom:
                return c
        return 0

    def is_linear(self) -> bool:
        """Whether every atom is a loop variable."""
        return all(type(atom) is Var for atom, _ in self.terms)

    def atoms(self) -> Iterator[Atom]:
        """Yields variables and runtime values, also those inside divisions; repeats are possible."""
        for atom, _ in self.terms:
            if isinstance(atom, (Quotient, Remainder)):
                yield from atom.of.atoms()
            else:
                yield atom

    def divisions(self) -> Iterator[Quotient | Remainder]:
        """Yields every floor division and remainder, inner ones first."""
        for atom, _ in self.terms:
            if isinstance(atom, (Quotient, Remainder)):
                yield from atom.of.divisions()
                yield atom

    def substitute(self, values: Mapping[Atom, Expr]) -> Expr:
        """Returns the expression with variables replaced, simplified anew."""
        if not self.terms:
            return self
        result = constant(self.const)
        for atom, c in self.terms:
            if isinstance(atom, Quotient):
                result = result + (atom.of.substitute(values) // atom.by) * c
            elif isinstance(atom, Remainder):
                result = result + (atom.of.substitute(values) % atom.by) * c
            else:
                value = values.get(atom)
                result = result + (value * c if value is not None else Expr(((atom, c),), 0))
        return result

    def evaluate(self, values: Mapping[Atom, int], sizes: Mapping[Symbol, int] | None = None) -> int:
        """Returns the value for given variables (any type with + * // % works, such as integer arrays) and symbols."""
        result = value_in(self.const, sizes)
        for atom, c in self.terms:
            if isinstance(atom, Quotient):
                x = atom.of.evaluate(values, sizes) // value_in(atom.by, sizes)
            elif isinstance(atom, Remainder):
                x = atom.of.evaluate(values, sizes) % value_in(atom.by, sizes)
            else:
                x = values[atom]
            result = result + x * value_in(c, sizes)
        return result


ZERO = Expr((), 0)
ONE = Expr((), 1)


def constant(value: IntLike) -> Expr:
    """Returns the expression of one number."""
    return ZERO if _is_zero(value) else Expr((), value)


def variable(atom: Atom) -> Expr:
    """Returns the expression of one atom; a variable with a single value is 0."""
    return ZERO if _is_zero(atom.low) and _is_zero(atom.high) else Expr(((atom, 1),), 0)


def flat_index(index: Sequence[Expr], strides: Sequence[IntLike]) -> Expr:
    """Returns sum(index * stride)."""
    sums: dict[Atom, IntLike] = {}
    const: IntLike = 0
    for component, stride in zip(index, strides, strict=True):
        const += component.const * stride
        for atom, c in component.terms:
            sums[atom] = sums.get(atom, 0) + c * stride
    return _normal(sums, const)


def reshape_index(index: Sequence[Expr], new: Sequence[IntLike], old: Sequence[IntLike]) -> tuple[Expr, ...]:
    """Returns the index, in the row-major tensor of shape `old`, of element `index` of a tensor of shape `new`.

    Sizes are matched in groups of equal product, so that divisions appear only inside a group that needs them. Symbolic
    products are matched by form; the example decides which side to extend, and in the worst case all sizes are one
    group.
    """
    plain = not is_symbolic(new) and not is_symbolic(old)  # comparing symbolic sizes may assume something
    return (_remembered if plain else _reshaped)(tuple(index), tuple(new), tuple(old))


def _reshaped(index: tuple[Expr, ...], new: tuple[IntLike, ...], old: tuple[IntLike, ...]) -> tuple[Expr, ...]:
    result: list[Expr] = []
    i = j = 0
    while i < len(new) or j < len(old):
        first, begin = i, j
        have: IntLike = 1
        want: IntLike = 1
        if i < len(new):
            have, i = new[i], i + 1
        if j < len(old):
            want, j = old[j], j + 1
        while not known_equal(have, want) and (i < len(new) or j < len(old)):
            if i < len(new) and (j == len(old) or hint(have) <= hint(want)):
                have, i = have * new[i], i + 1
            else:
                want, j = want * old[j], j + 1
        result += _regroup(index[first:i], new[first:i], old[begin:j])
    return tuple(result)


_remembered = lru_cache(maxsize=16384)(_reshaped)


def _regroup(index: Sequence[Expr], new: Sequence[IntLike], old: Sequence[IntLike]) -> list[Expr]:
    if len(new) == len(old) == 1:
        return [index[0]]
    if all(same(n, 1) for n in old):
        return [ZERO] * len(old)
    flat = ZERO
    for component, size in zip(index, new, strict=True):
        flat = flat * size + component
    result = []
    step: IntLike = 1
    for dim, size in reversed(list(enumerate(old))):
        if same(size, 1):
            result.append(ZERO)
            continue
        rest = flat // step
        result.append(rest % size if not all(same(n, 1) for n in old[:dim]) else rest)
        step *= size
    return result[::-1]


def _is_zero(value: IntLike) -> bool:
    return value.__class__ is not Size and value == 0  # a Size is never the constant 0


def _last(size: IntLike) -> IntLike:
    """Returns the highest value of a variable."""
    return size - 1 if isinstance(size, Size) else max(size - 1, 0)


def _identity(value: IntLike) -> str:
    """Returns text that distinguishes sizes, those of different graphs included."""
    return key(value) if isinstance(value, Size) else str(value)


def _factor(value: IntLike) -> str:
    """Returns the text of a number inside a product."""
    return f"({value})" if isinstance(value, Size) and len(value.terms) > 1 else str(value)


def _key(term: tuple[Atom, IntLike]) -> str:
    return term[0].key


def _without_remainder(sums: dict[Atom, IntLike], atom: Remainder, c: IntLike) -> dict[Atom, IntLike] | None:
    """Returns the terms with c*y, except for its constant, in place of c*(y % n) and c*n*(y // n); None if the latter
    is absent.
    """
    floor = _floordiv(atom.of, atom.by)
    if len(floor.terms) != 1 or not _is_zero(floor.const) or not same(floor.terms[0][1], 1):
        return None
    quotient = _as_in(sums, floor.terms[0][0])
    if not same(sums.get(quotient, 0), c * atom.by):
        return None
    rest = {a: k for a, k in sums.items() if a is not atom and a != quotient}
    rest.pop(atom, None)
    for a, k in atom.of.terms:
        rest[a] = rest.get(a, 0) + k * c
    return rest


def _normal(sums: dict[Atom, IntLike], const: IntLike) -> Expr:
    """Sort, drop zeros, and join c*(y % n) + c*n*(y // n) into c*y."""
    remainders = [a for a, c in sums.items() if type(a) is Remainder and not _is_zero(c)]
    for atom in remainders:
        c = sums.get(atom, 0)
        rest = None if _is_zero(c) else _without_remainder(sums, atom, c)
        if rest is not None:
            return _normal(rest, const + atom.of.const * c)
    terms = [term for term in sums.items() if term[1].__class__ is Size or term[1]]
    if len(terms) > 1:
        terms.sort(key=_key)
    return Expr(tuple(terms), const)


def _as_in(sums: dict[Atom, IntLike], quotient: Atom) -> Atom:
    """Returns an equal atom that is among the terms, if there is one: (y // a + x) // b equals (y + a*x) // (a*b)."""
    if quotient in sums or type(quotient) is not Quotient:
        return quotient
    inner = next((a for a, c in quotient.of.terms if type(a) is Quotient and same(c, 1)), None)
    if inner is None:
        return quotient
    rest = quotient.of - Expr(((inner, 1),), 0)
    return Quotient(inner.of + rest * inner.by, inner.by * quotient.by)


def _quotient_range(of: Expr, by: IntLike) -> tuple[IntLike, IntLike]:
    low, high = of.range()
    if not isinstance(low, Size) and not isinstance(high, Size) and not isinstance(by, Size):
        return low // by, high // by
    if not known_less(0, by):
        return -FAR, FAR
    return 0 if known_at_most(0, low) else -FAR, floordiv(high, by) if known_at_most(0, high) else FAR


def _split(e: Expr, by: IntLike) -> tuple[Expr, Expr]:
    """Returns (quotient, rest) with e = by * quotient + rest, term by term; the rest keeps a constant in 0 .. by-1 (if
    all are numbers).
    """
    multiples, rest = [], []
    for atom, c in e.terms:
        quotient = exact_quotient(c, by)
        if quotient is not None:
            multiples.append((atom, quotient))
        else:
            rest.append((atom, c))
    above, below = split(e.const, by)
    return Expr(tuple(multiples), above), Expr(tuple(rest), below)


def _digits(rest: Expr, by: IntLike) -> tuple[IntLike, Expr, Expr] | None:
    """Returns (unit, high, low) with rest = unit * high + low, 0 <= low < unit and unit dividing `by`, the mixed-radix
    cut of a reshape; or None.
    """
    for unit in sorted({common(c, by) for _, c in rest.terms}, key=hint, reverse=True):
        if same(unit, 1):
            return None
        high, low = _split(rest, unit)
        bottom, top = low.range()
        if high.terms and known_at_most(0, bottom) and known_less(top, unit):
            return unit, high, low
    return None


def _one_quotient(low: IntLike, high: IntLike, by: IntLike) -> IntLike | None:
    """Returns `low // by` if it is known to equal `high // by`, else None."""
    if not isinstance(low, Size) and not isinstance(high, Size) and not isinstance(by, Size):
        return low // by if low // by == high // by else None
    if known_at_most(0, low) and known_less(high, by):
        return 0
    return -1 if known_less(high, 0) and known_at_most(0, low + by) else None


@lru_cache(maxsize=65536)
def _floordiv(e: Expr, by: IntLike) -> Expr:
    if same(by, 1):
        return e
    if not isinstance(by, Size) and by <= 0:
        raise ZeroDivisionError(f"{e} // {by}")
    quotient, rest = _split(e, by)
    once = _one_quotient(*rest.range(), by)
    if once is not None:
        return quotient + once
    cut = _digits(rest, by)
    if cut is not None:
        unit, upper, _ = cut
        return quotient + _floordiv(upper, by // unit)
    if len(rest.terms) == 1 and _is_zero(rest.const):
        atom, c = rest.terms[0]
        if same(c, 1) and type(atom) is Quotient:
            return quotient + _floordiv(atom.of, atom.by * by)
        if same(c, 1) and type(atom) is Remainder and exact_quotient(atom.by, by) is not None:
            # (y % (a*b)) // b == (y // b) % a
            return quotient + _mod(_floordiv(atom.of, by), atom.by // by)
    return quotient + Expr(((Quotient(rest, by), 1),), 0)


@lru_cache(maxsize=65536)
def _mod(e: Expr, by: IntLike) -> Expr:
    if same(by, 1):
        return ZERO
    if not isinstance(by, Size) and by <= 0:
        raise ZeroDivisionError(f"{e} % {by}")
    _, rest = _split(e, by)
    once = _one_quotient(*rest.range(), by)
    if once is not None:
        return rest - by * once
    cut = _digits(rest, by)
    if cut is not None:
        unit, upper, lower = cut
        return _mod(upper, by // unit) * unit + lower
    if len(rest.terms) == 1 and _is_zero(rest.const):
        atom, c = rest.terms[0]
        if same(c, 1) and type(atom) is Remainder and exact_quotient(atom.by, by) is not None:
            return _mod(atom.of, by)
    return Expr(((Remainder(rest, by), 1),), 0)


def forget_divisions() -> None:
    """Clear the caches of quotients, remainders and reshapes, which keep symbols alive."""
    _remembered.cache_clear()
    _floordiv.cache_clear()
    _mod.cache_clear()
