"""Text of values: `str`, `repr`, `format`, `str.format` and `print`, through the program's own methods."""

from __future__ import annotations

import _string  # type: ignore[import-not-found]
import enum
import json.encoder
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from smelt.base.class_tables import by_class, classes, isinstance
from smelt.capture.arrays.array import ArrayMethod
from smelt.capture.calls import calls
from smelt.capture.calls.builtin_functions import visible
from smelt.capture.core import sources
from smelt.capture.core.breaks import Break, user, user_raise
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.prologue_value import PrologueMethod, PrologueValue
from smelt.capture.core.registry import TENSOR_METHODS, special
from smelt.capture.core.unbacked_text import UnknownText, refuse_unknown
from smelt.capture.core.values import LEAVES
from smelt.capture.python import containers
from smelt.capture.python.attribute_reads import load_class_attr, load_object_attr, python_method
from smelt.capture.python.attribute_writes import is_external
from smelt.capture.python.effects import CONTAINERS
from smelt.graph.meta_rules.constant_values import known_value
from smelt.graph.trace.trace import TraceTensor


def _text_method(vm: Interpreter, fn: Callable[..., object], value: object) -> object:
    """The Python method of the program that gives a value's text; None if there is no such method."""
    names = [{str: "__str__", repr: "__repr__", format: "__format__"}[fn]]
    if fn is str and type(value).__str__ is object.__str__:
        names.append("__repr__")
    found = (python_method(vm, value, name) for name in names)
    return next((method for method in found if method is not None), None)


def to_text(vm: Interpreter, fn: Callable[..., object], value: object, *rest: object) -> object:
    """The result of `fn`, which is `str`, `repr` or `format`, for a value; `rest` is the format specification."""
    if type(value) in _BOUND and visible(vm, value) is not value:
        raise Break("the text of a method written in C", "it shows an address")
    if type(value) is PrologueValue:
        return vm.prologue.run(fn, (value, *rest), {})
    if type(value) is TraceTensor:
        known = known_value(value)
        return UnknownText.of(vm) if known is None else fn(known, *rest)
    if type(value) is UnknownText:
        return value
    return _text_of_object(vm, fn, value, rest)


def _text_of_object(vm: Interpreter, fn: Callable[..., object], value: object, rest: tuple[object, ...]) -> object:
    text = container_text(vm, value) if not rest or rest == ("",) else None
    if text is not None:
        return text
    _guard_text(vm, value)
    method = _text_method(vm, fn, value)
    if method is not None:
        return vm.call(method, (value, *rest), {})
    if fn is format and type(value).__format__ is object.__format__ and rest in ((), ("",)):
        return to_text(vm, str, value)
    if id(value) in vm.sources and not rest and not isinstance(value, (*CONTAINERS, types.FunctionType)):
        if vm.effects.pending():
            raise Break(f"the text of a {type(value).__name__} after a write", "C code shows it as it was before")
        return vm.external(user(fn, value), sources.called(vm.sources[id(value)], fn, fn.__name__))
    return vm.native(fn, vm.effects.plain(value), *rest)


def _guard_text(vm: Interpreter, value: object) -> None:
    """Guard the names that the text of a class or of a member of an enumeration contains."""
    if isinstance(value, type):
        load_class_attr(vm, value, "__module__")
        load_class_attr(vm, value, "__qualname__")
    elif isinstance(value, enum.Enum):
        load_class_attr(vm, type(value), "__name__")
        load_object_attr(vm, value, "_name_")
        load_object_attr(vm, value, "_value_")


_BOUND = classes(PrologueMethod, ArrayMethod, types.MethodType)
_BRACKETS = by_class({list: "[]", tuple: "()", set: "{}", dict: "{}"})


def container_text(vm: Interpreter, value: object) -> object:
    """The text of a builtin container, with methods of its items interpreted; None where all items are plain data."""
    brackets = _BRACKETS.get(type(value))
    if brackets is None:
        return None
    mirror = vm.effects.mirror(value)
    items = [*mirror, *mirror.values()] if type(mirror) is dict else list(mirror)
    if all(type(item) in LEAVES for item in items):
        return None
    with vm.effects.opened(mirror):
        texts = [to_text(vm, repr, item) for item in items]
    half = len(mirror)
    shown: list[tuple[object, ...]] = [(text,) for text in texts]
    if type(value) is dict:
        shown = [(key, ": ", item) for key, item in zip(texts[:half], texts[half:], strict=True)]
    comma = "," if type(value) is tuple and half == 1 else ""
    spaced = [piece for each in shown for piece in (", ", *each)][1:]
    return joined(vm, [brackets[0], *spaced, comma, brackets[1]])


def joined(vm: Interpreter, pieces: Iterable[Any]) -> object:
    """The concatenated pieces. If a piece is unknown text, the result is unknown; if a piece is a prologue value, so is
    the result.
    """
    pieces = list(pieces)
    if any(type(piece) is PrologueValue for piece in pieces):
        return vm.prologue.run("".join, (pieces,), {})
    unknown = next((piece for piece in pieces if type(piece) is UnknownText), None)
    return "".join(pieces) if unknown is None else unknown


@special(str)
def to_str(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `str(object)`."""
    return to_text(vm, str, args[0]) if len(args) == 1 and not kwargs else vm.native(str, *args, **kwargs)


@special(repr)
def to_repr(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `repr(object)`."""
    return to_text(vm, repr, *args)


@special(format)
def to_format(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `format(object[, spec])`."""
    return to_text(vm, format, *args)


def _register_methods() -> None:
    for name, fn in (("__str__", str), ("__repr__", repr), ("__format__", format)):

        def show(
            vm: Interpreter,
            tensor: TraceTensor,
            *rest: object,
            tensor_contents: object = None,
            fn: Callable[..., object] = fn,
        ) -> object:
            if fn is not format and rest or tensor_contents is not None:
                raise Break("the text of a tensor with its own contents", "it is made of values")
            return to_text(vm, fn, tensor, *rest)

        TENSOR_METHODS[name] = show


_register_methods()


_make_encoder: Any = vars(json.encoder)["c_make_encoder"]


@special(_make_encoder)
def make_encoder(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Make the C encoder of `json`, which calls a function of the program for objects of unsupported types."""
    markers, default, *rest = args
    return vm.native(_make_encoder, markers, calls.callback(vm, default, reads=True), *rest, **kwargs)


@special(str.format)
def format_string(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `str.format(...)`: the interpreter formats each field."""
    text, *given = args
    refuse_unknown((text,))
    if all(type(value) in LEAVES for value in (*given, *kwargs.values())):
        return vm.native(str.format, *args, **kwargs)
    return joined(vm, _formatted(vm, text, _Fields(given, kwargs)))


class _Fields:
    """The arguments of one call of `str.format`; a field selects one by keyword, by number, or by its order."""

    def __init__(self, args: list[object], kwargs: Kwargs) -> None:
        self.args, self.kwargs = args, kwargs
        self.next = 0
        self.numbered: bool | None = None

    def find(self, name: Any) -> object:
        """The argument that the name at the beginning of a field selects."""
        if name != "" and type(name) is str:
            return user(self.kwargs.__getitem__, name)
        numbered = name != ""
        if self.numbered is not None and self.numbered is not numbered:
            modes = ("manual field specification", "automatic field numbering")[:: 1 if self.numbered else -1]
            user_raise(ValueError(f"cannot switch from {modes[0]} to {modes[1]}"))
        self.numbered = numbered
        if not numbered:
            name, self.next = self.next, self.next + 1
        if name >= len(self.args):
            user_raise(IndexError(f"Replacement index {name} out of range for positional args tuple"))
        return self.args[name]


def _formatted(vm: Interpreter, text: str, fields: _Fields, depth: int = 2) -> Iterator[object]:
    """The pieces of a text with its fields formatted."""
    if not depth:
        user_raise(ValueError("Max string recursion exceeded"))
    parser = user(_string.formatter_parser, text)
    while (parsed := user(next, parser, None)) is not None:
        literal, field, spec, conversion = parsed
        if literal:
            yield literal
        if field is None:
            continue
        value = _field(vm, field, fields)
        if conversion:
            if conversion not in _CONVERSIONS:
                user_raise(ValueError(f"Unknown conversion specifier {conversion!r}"))
            value = vm.call(_CONVERSIONS[conversion], (value,), {})
        if spec and "{" in spec:
            spec = joined(vm, _formatted(vm, spec, fields, depth - 1))
        yield value if type(value) is str and not spec else vm.call(format, (value, spec), {})


_CONVERSIONS = {"s": str, "r": repr, "a": ascii}


def _field(vm: Interpreter, field: str, fields: _Fields) -> object:
    """The value of a field such as `0.name[key]`."""
    first, rest = user(_string.formatter_field_name_split, field)
    value = fields.find(first)
    for is_attribute, key in user(list, rest):
        value = vm.load_attr(value, key) if is_attribute else containers.subscript(vm, value, key)
    return value


@special(print)
def print_call(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of `print(...)`: runs now if the frame made the stream, else after the graph with the present
    texts.
    """
    for between in (kwargs.get("sep"), kwargs.get("end")):
        if between is not None and not isinstance(between, (str, UnknownText)):
            raise Break("print() with arguments that it refuses", "it raises at this line")
    target = kwargs.get("file")
    if target is None and vm.effects.variable(sys, "stdout") is not None:
        target = vm.load_attr(sys, "stdout")
        if target is not sys.stdout:
            kwargs = {**kwargs, "file": target}
    args = tuple(value if type(value) in _PRINTED_AS_IS else to_text(vm, str, value) for value in args)
    if target is not None and not is_external(vm, target):
        calls.call_native(vm, print, args, kwargs)
        return
    calls.defer(vm, print, args, kwargs)


_PRINTED_AS_IS = classes(*LEAVES, TraceTensor)
