"""Values that Python code without tensors computes at each call: random numbers, clock times, NumPy arrays.

During capture a prologue value has an example value. Operations of the program on it become operations of the prologue,
which runs them at each call (`prologue`). If the capture needs the value itself, the example is assumed and guarded, or
the graph ends.
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
    """A copy of the array in new memory with the array's strides, if the copy does not exceed `_MAX_COPY_FACTOR`."""
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
"""Maximum memory of a copy with the array's strides, as a multiple of the memory of its elements."""


class PrologueValue:
    """The result of an operation of the prologue.

    Attributes:
        prologue: the prologue that contains the operation.
        index: number of the value; its name in the prologue is `_h{index}`.
        example: the value at this call.
        constant: whether the value is the same at every call.
        certain: whether it always has the type and shape of the example, and its computation raises no error.
        source: the source of an external array; None for a computed value.
        repeats: whether a guard may compute it ahead of time with the same result (a clock's time is an exception).
        range: (minimum, maximum) of a number; None if unknown.
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
        """The value's name in residual code."""
        return f"_h{self.index}"

    @property
    def changes(self) -> bool:
        """Whether the value is mutable."""
        return not isinstance(self.example, IMMUTABLE)

    def read(self, *args: object, **kwargs: object) -> Any:
        """End the graph, because C code needs the value.

        Raises:
            Break: always.
        """
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
    """The break where the program needs a value that differs from call to call."""
    return Break(
        f"the program asks for {what} that differs from call to call",
        "it is drawn, read from a clock or computed from an array of numpy, and there is no graph for each value",
        "decide outside of the compiled function, or compute with it instead",
    )


class PrologueMethod:
    """A bound method of a prologue value."""

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
    """The prologue values in a value or its nested containers."""
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
