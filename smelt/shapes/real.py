"""Symbolic floating-point numbers, known when compiled code runs: learning rates, scales, numbers computed from sizes.

A `Real` is an expression over numbers among the inputs and symbolic sizes. It computes as Python's float does. A
comparison is decided by the example and becomes an assumption; `float(real)` specializes it to the example's value.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from smelt.shapes.size import Size, evaluate, hint, key, symbols, text

if TYPE_CHECKING:
    from smelt.shapes.assumptions import Assumptions
    from smelt.shapes.unbacked import Origin


def sign_of(value: float) -> float:
    """Returns -1.0 or 1.0, also for a zero."""
    return math.copysign(1.0, value)


_SIGNS: dict[Callable[..., Any], str] = {
    operator.add: "({} + {})",
    operator.sub: "({} - {})",
    operator.mul: "({} * {})",
    operator.truediv: "({} / {})",
    operator.floordiv: "({} // {})",
    operator.mod: "({} % {})",
    operator.pow: "({} ** {})",
    operator.neg: "(-{})",
    operator.abs: "abs({})",
    math.sqrt: "({} ** 0.5)",
    float: "float({})",
    sign_of: "(-1.0 if float({}).hex()[0] == '-' else 1.0)",
}


class Real:
    """A number `compute(*args)` over Reals, Sizes and numbers; a leaf has a `name` instead.

    Attributes:
        hint: the value in the example.
        owner: the assumptions that decide comparisons of it.
        key: identity as text.
        origin: for an unbacked leaf, the position where it is read (see `unbacked`).
    """

    __slots__ = ("compute", "args", "name", "hint", "owner", "key", "origin")

    def __init__(
        self,
        compute: Callable[..., Any] | None,
        args: tuple[Any, ...],
        owner: Assumptions,
        name: str = "",
        value: Any = 0,
        origin: Origin | None = None,
    ) -> None:
        self.compute, self.args, self.owner, self.name, self.origin = compute, args, owner, name, origin
        self.hint: Any = value if compute is None else compute(*map(_hint, args))
        self.key = f"{name}@{owner.serial}" if compute is None else _SIGNS[compute].format(*map(_key, args))

    def __hash__(self) -> int:
        return hash(self.key)

    def __add__(self, other: Any) -> Any:
        return make(operator.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return make(operator.add, other, self)

    def __sub__(self, other: Any) -> Any:
        return make(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return make(operator.sub, other, self)

    def __mul__(self, other: Any) -> Any:
        return make(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return make(operator.mul, other, self)

    def __truediv__(self, other: Any) -> Any:
        return make(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return make(operator.truediv, other, self)

    def __floordiv__(self, other: Any) -> Any:
        return make(operator.floordiv, self, other)

    def __mod__(self, other: Any) -> Any:
        return make(operator.mod, self, other)

    def __pow__(self, other: Any) -> Any:
        return make(operator.pow, self, other)

    def __rpow__(self, other: Any) -> Any:
        return make(operator.pow, other, self)

    def __neg__(self) -> Any:
        return make(operator.neg, self)

    def __abs__(self) -> Any:
        return make(operator.abs, self)

    def __lt__(self, other: Any) -> bool:
        return self.owner.decide_real("<", self, other)

    def __gt__(self, other: Any) -> bool:
        return self.owner.decide_real(">", self, other)

    def __le__(self, other: Any) -> bool:
        return self.owner.decide_real("<=", self, other)

    def __ge__(self, other: Any) -> bool:
        return self.owner.decide_real(">=", self, other)

    def __eq__(self, other: object) -> bool:
        return self.owner.decide_real("==", self, other) if isinstance(other, (int, float, Real, Size)) else False

    def __bool__(self) -> bool:
        return self != 0.0

    def __float__(self) -> float:
        return self.owner.pin_real(self)

    def __str__(self) -> str:
        return real_text(self)

    __repr__ = __str__


def make(compute: Callable[..., Any], *args: Any) -> Any:
    """Returns `compute(*args)` as a Real.

    Raises:
        TypeError: the result is not a float (a complex root): the caller's program then raises the same error as eager,
            for the example.
    """
    owner = next((a.owner for a in args if isinstance(a, (Real, Size))), None)
    if owner is None:
        return compute(*args)
    if not all(isinstance(a, (Real, Size, int, float)) for a in args):
        return NotImplemented
    owner.may_compute(compute, args)
    return Real(compute, args, owner)


def _hint(value: Any) -> Any:
    return value.hint if isinstance(value, Real) else hint(value) if isinstance(value, Size) else value


def _key(value: Any) -> str:
    return value.key if isinstance(value, Real) else key(value) if isinstance(value, Size) else repr(value)


def real_text(value: Any) -> str:
    """Returns Python source over the names of symbols and leaves."""
    if isinstance(value, Size):
        return f"({text(value)})"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if not isinstance(value, Real):
        return repr(value) if sign_of(value) > 0 else f"({value!r})"  # -2 ** n is -(2 ** n)
    if value.compute is None:
        return value.name
    return _SIGNS[value.compute].format(*map(real_text, value.args))


def leaves(value: Any) -> set[Real]:
    """Returns the inputs of which a Real is made."""
    if not isinstance(value, Real):
        return set()
    return {value} if value.compute is None else set().union(*map(leaves, value.args))


def sizes_in(value: Any) -> set[Any]:
    """Returns the symbols of the sizes in a Real."""
    if isinstance(value, Size):
        return set(symbols(value))
    return set().union(*map(sizes_in, value.args)) if isinstance(value, Real) and value.args else set()


def evaluate_real(value: Any, numbers: Mapping[Any, Any]) -> Any:
    """Returns the number, for given values of leaves (by name) and of symbols."""
    if isinstance(value, Size):
        return evaluate(value, numbers)
    if not isinstance(value, Real):
        return value
    if value.compute is None:
        return numbers[value.name]
    return value.compute(*(evaluate_real(a, numbers) for a in value.args))
