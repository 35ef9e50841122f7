"""A value that Python code without tensors computes at each call: a random number, a clock's time, a NumPy array.

During capture it has an example value. What the program computes from it is computed at each call by the same Python
(`prologue`); where the program needs its value, the example is assumed and guarded, or the graph ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy

from smelt.base.class_tables import isinstance
from smelt.capture.core.breaks import Break
from smelt.capture.core.interface import Prologue
from smelt.capture.core.sources import Source
from smelt.graph.trace.trace import text


def copy_as_laid_out(array: numpy.ndarray) -> numpy.ndarray:
    """A copy in its own memory with the array's memory layout."""
    out = array.copy("K")
    if out.strides != array.strides and array.size:
        ends = [(count - 1) * step for count, step in zip(array.shape, array.strides, strict=True)]
        before = -sum(end for end in ends if end < 0)
        length = before + sum(end for end in ends if end > 0) + array.itemsize
        if length <= _MAX_COPY_FACTOR * array.nbytes:
            out = numpy.ndarray(array.shape, array.dtype, numpy.empty(length, numpy.uint8), before, array.strides)
            out[...] = array
    out.flags.writeable = array.flags.writeable
    return out


_MAX_COPY_FACTOR = 64
"""Limit of a copy's memory, as a multiple of the memory of its elements."""


class PrologueValue:
    """The result of an operation of the prologue.

    Attributes:
        prologue: the prologue that it belongs to.
        index: its name there is `_h{index}`.
        example: the value at this call.
        constant: it is the same at every call.
        certain: it always has the type and shape of the example, and computing it raises no error.
        source: the source of an external array.
        repeats: a guard may compute it ahead of time with the same result: it does not come from a clock.
        range: the least and the largest value of a number, where they are known.
    """

    __slots__ = ("prologue", "index", "example", "constant", "certain", "source", "range", "repeats", "__weakref__")

    def __init__(
        self, prologue: Prologue, index: int, example: Any, constant: bool, certain: bool, source: Source | None = None
    ) -> None:
        self.prologue, self.index, self.example = prologue, index, example
        self.constant, self.certain, self.source = constant, certain, source
        self.range: tuple[Any, Any] | None = None
        self.repeats = True

    @property
    def name(self) -> str:
        """Its name in residual code."""
        return f"_h{self.index}"

    @property
    def changes(self) -> bool:
        """Whether it is mutable."""
        return not isinstance(self.example, IMMUTABLE)

    def read(self, *args: object, **kwargs: object) -> Any:
        """Raise the break: C code needs the value."""
        raise varies(f"a {type(self.example).__name__}")

    def __bool__(self) -> bool:
        return bool(self.prologue.known(self))

    def __int__(self) -> int:
        return int(self.prologue.known(self))

    def __float__(self) -> float:
        return float(self.prologue.known(self))

    def __index__(self) -> int:
        known: int = self.prologue.known(self).__index__()
        return known

    def __hash__(self) -> int:
        return hash(self.prologue.known(self))

    def __eq__(self, other: object) -> Any:
        if self is other:
            return True
        return self.prologue.known(self) == (self.prologue.known(other) if isinstance(other, PrologueValue) else other)

    def __ne__(self, other: object) -> Any:
        return not self == other


_REFUSED = (
    "lt le gt ge len iter next contains getitem setitem delitem call str repr format copy deepcopy reduce_ex complex "
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul neg pos abs "
    "invert and rand or ror xor rxor lshift rlshift rshift rrshift divmod rdivmod round trunc floor ceil array "
    "array_ufunc array_function enter exit reversed bytes fspath"
)
for _name in _REFUSED.split():
    if _name != "next":  # defining it would make the value an iterator
        setattr(PrologueValue, f"__{_name}__", PrologueValue.read)

IMMUTABLE = (int, float, complex, str, bytes, bool, type(None), numpy.generic, numpy.dtype)


def varies(what: str) -> Break:
    """The break where the program needs to know such a value."""
    return Break(
        f"the program asks for {what} that differs from call to call",
        "it is drawn, read from a clock or computed from an array of numpy, and there is no graph for each value",
        "decide outside of the compiled function, or compute with it instead",
    )


class PrologueMethod:
    """A method of such a value."""

    __slots__ = ("owner", "name")

    def __init__(self, owner: PrologueValue, name: str) -> None:
        self.owner, self.name = owner, name

    def __eq__(self, other: object) -> bool:
        return type(other) is PrologueMethod and self.owner is other.owner and self.name == other.name

    def __hash__(self) -> int:
        return hash((id(self.owner), self.name))

    def __repr__(self) -> str:
        if text.refuse is not None:
            text.refuse()
        return f"HostMethod({self.name})"

    def __call__(self, *_: object, **__: object) -> Any:
        """Makes the object callable for `callable()`; the interpreter does not call it this way."""
        raise Break("a method of a value that is computed at each call, called by C code")


def values_in(value: Any) -> Iterator[PrologueValue]:
    """The prologue values in nested containers."""
    kind = type(value)
    if kind is PrologueValue:
        yield value
    elif kind is PrologueMethod:
        yield value.owner
    elif kind is tuple or kind is list:
        for item in value:
            yield from values_in(item)
    elif kind is dict:
        for item in value.values():
            yield from values_in(item)
    elif kind is slice:
        yield from values_in((value.start, value.stop, value.step))
