"""Arguments and results of prologue operations: their present values, their example values and their supported
types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch

from smelt.base.class_tables import isinstance
from smelt.capture.core.breaks import Break
from smelt.capture.core.prologue_value import IMMUTABLE, PrologueMethod, PrologueValue
from smelt.capture.core.unbacked_text import refuse_unknown
from smelt.capture.prologue.source import GENERATORS, OtherKindError
from smelt.graph.ir.meta import extent
from smelt.graph.ir.symint import SYMBOLIC_CLASSES, pinned
from smelt.graph.trace.trace import TraceTensor

MAX_LIST_ITEMS = 1024
"""Maximum number of items of a list or tuple that an operation returns."""


class Method:
    """A function that calls the method of a given name on its first argument."""

    def __init__(self, name: str) -> None:
        self.name = self.__name__ = name

    def __call__(self, owner: object, *args: object, **kwargs: object) -> object:
        return getattr(owner, self.name)(*args, **kwargs)


class Whole:
    """A call of a function of the program that must leave its arguments unchanged."""

    def __init__(self, fn: Callable[..., object]) -> None:
        self.fn = fn
        self.__name__ = fn.__name__

    def __call__(self, *args: object, **kwargs: object) -> object:
        before = [repr(a) for a in (*args, *kwargs.values()) if type(a) is list or type(a) is dict]
        out = self.fn(*args, **kwargs)
        if [repr(a) for a in (*args, *kwargs.values()) if type(a) is list or type(a) is dict] != before:
            raise OtherKindError(f"{self.__name__} changes its arguments")
        return out


def may_share(a: object, b: object) -> bool:
    arrays = isinstance(a, numpy.ndarray) and isinstance(b, numpy.ndarray)
    return numpy.may_share_memory(a, b) if arrays else a is b and not isinstance(a, IMMUTABLE)


def fits(value: object) -> bool:
    """Whether a prologue operation may return the value."""
    if type(value) is tuple or type(value) is list:
        return len(value) <= MAX_LIST_ITEMS and all(map(fits, value))
    if type(value) is dict:
        return all(map(fits, value.values()))
    return isinstance(value, (*IMMUTABLE, type, numpy.ndarray, torch.Tensor, *GENERATORS))


def is_plain_result(value: object) -> bool:
    if type(value) is tuple or type(value) is list:
        return all(map(is_plain_result, value))
    return isinstance(value, (*IMMUTABLE, type))


def examples(value: Any) -> Any:
    kind = type(value)
    if kind is PrologueValue:
        return value.example
    if kind is tuple or kind is list:
        return kind([examples(item) for item in value])
    if kind is dict:
        return {key: examples(item) for key, item in value.items()}
    if kind is slice:
        return slice(*examples((value.start, value.stop, value.step)))
    return value


def as_now(value: object) -> object:
    """A copy of the arguments in their present state: containers are copied, since the program may change them, and
    symbolic sizes become plain numbers.

    Raises:
        Break: a prologue operation cannot take one of the arguments, such as a tensor or an iterator.
    """
    kind = type(value)
    if kind is TraceTensor:
        raise Break("numpy or random with a tensor", "it needs the tensor's values")
    if kind is PrologueMethod:
        raise Break("a method of a value that is computed at each call, handed to numpy, random or C code")
    if hasattr(kind, "__next__"):
        raise Break("an iterator that is handed to numpy or random", "it is used up once, when the program runs")
    refuse_unknown((value,))
    if kind in SYMBOLIC_CLASSES:
        return pinned((value,))[0]
    if type(value) is tuple or type(value) is list:
        items = [as_now(item) for item in value]
        return items if type(value) is list else tuple(items)
    if isinstance(value, numpy.ndarray):
        raise Break("an array of numpy that capture did not see being made")
    if type(value) is torch.Size:
        return tuple(map(as_now, value))
    if type(value) is dict:
        return {key: as_now(item) for key, item in value.items()}
    if type(value) is slice:
        return slice(*map(as_now, (value.start, value.stop, value.step)))
    return value


def apart(*values: object) -> bool:
    """Whether no array among the values shares memory with a tensor among them."""
    arrays = [value for value in values if isinstance(value, numpy.ndarray)]
    spans = [(start, start + size) for start, size in map(_memory, values) if size]
    return not any(
        low < numpy.lib.array_utils.byte_bounds(array)[1] and numpy.lib.array_utils.byte_bounds(array)[0] < high
        for array in arrays
        for low, high in spans
    )


def _memory(value: object) -> tuple[int, int]:
    """The address of a CPU tensor's memory and the number of bytes that it spans; (0, 0) for other values."""
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return 0, 0
    size = extent(tuple(value.shape), value.stride()) * value.element_size() if value.numel() else 0
    return value.data_ptr(), size
