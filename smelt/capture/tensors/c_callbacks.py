"""Torch functions and Python functions of the program that are called from C code while it runs under capture."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING

from torch.overrides import TorchFunctionMode

from smelt.base.class_tables import isinstance
from smelt.capture import _native as native
from smelt.capture.core import policy
from smelt.capture.core.breaks import through_c
from smelt.capture.core.frames import arguments_in
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.unbacked_text import text_break
from smelt.capture.python.attribute_reads import python_method
from smelt.graph.ir.symint import SYMBOLIC, SYMBOLIC_CLASSES, is_other_number, pinned
from smelt.graph.trace.trace import text

if TYPE_CHECKING:
    from smelt.capture.tensors.tensors import Tensors


def refuse_text() -> None:
    """Refuse to give C code the text of a tensor.

    Raises:
        Break: always.
    """
    raise text_break()


class CCallbackMode(TorchFunctionMode):
    """A torch-function mode that is on while the program runs C code; it records the torch functions that the C code
    calls.

    Python functions that the C code calls (`__lt__` in `sorted`, `__eq__` in `in`) are run by the interpreter.
    """

    def __init__(self, tensors: Tensors) -> None:
        super().__init__()
        self.tensors = tensors
        self._on = False

    def run(self, fn: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
        """Call C code with the mode on."""
        if self._on:
            return fn(*args, **kwargs)
        # a Python function that is not captured runs uninterpreted, including all functions that it calls
        lender = self.called if type(fn) is not FunctionType else None
        with self:
            return native.lend(lender, fn, args, kwargs)

    def called(self, fn: FunctionType, slots: Args) -> object:
        """Handle a Python function that C code is about to call: the interpreter runs it if it belongs to the program.

        Methods of symbolic numbers are the compiler's own and run as they are; torch would log them.
        """
        if slots and type(slots[0]) in SYMBOLIC_CLASSES:
            return native.lend(None, symbolic_method, (fn, *slots), {})
        if not policy.is_programs(fn):
            return native.NULL
        return self.tensors.vm.reenter(lambda: call_from_c(self.tensors.vm, fn, *arguments_in(fn, slots)))

    def __enter__(self) -> CCallbackMode:
        super().__enter__()
        self._on, text.refuse = True, refuse_text
        return self

    def __exit__(self, *error: object) -> None:
        self._on, text.refuse = False, None
        super().__exit__(*error)

    def pause(self, fn: Callable[..., object], *args: object) -> object:
        """Switch the mode off for a call from C code back into the interpreter."""
        if not self._on:
            return fn(*args)
        self.__exit__(None, None, None)
        try:
            return native.lend(None, fn, args, {})
        finally:
            self.__enter__()

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Args = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        self._on, text.refuse = False, None  # torch switches the mode off for the duration of this method
        run, handle = self.tensors.run, self.tensors.handle
        try:
            return native.lend(None, through_c, (lambda: run(func, tuple(map(handle, args)), kwargs or {}),), {})
        finally:
            self._on, text.refuse = True, refuse_text


def symbolic_method(fn: FunctionType, *slots: object) -> object:
    """The result of a symbolic number's method. If an operand has a foreign number type, the number's value is used."""
    name = _SYMBOLIC_METHODS.get(id(fn))
    if len(slots) == 2 and name is not None and is_other_number(type(slots[1])):
        number, other = pinned(slots[0]), slots[1]
        return _REFLECTED[name](other, number) if name in _REFLECTED else getattr(operator, name)(number, other)
    args, kwargs = arguments_in(fn, slots)
    return fn(*args, **kwargs)


_SYMBOLIC_METHODS = {
    id(method): name
    for kind in SYMBOLIC
    for name, method in vars(kind).items()
    if isinstance(method, FunctionType) and name.startswith("__") and (name in vars(operator) or "__r" in name)
}
_REFLECTED = {
    f"__r{name.strip('_')}__": getattr(operator, name)
    for name in vars(operator)
    if name.startswith("__") and f"__r{name.strip('_')}__" in vars(int)
}


def call_from_c(vm: Interpreter, fn: FunctionType, args: Args, kwargs: Kwargs) -> object:
    """Call a function that C code has looked up itself. A method is looked up once more, with guards.

    C code may read the contents of the result, and needs plain numbers from `__len__`, `__hash__` and conversions.
    """
    method = python_method(vm, args[0], fn.__name__) if args else None
    out = vm.effects.plain(vm.call(fn if method is None else method, args, kwargs))
    return pinned(out) if fn.__name__ in _GIVING_NUMBERS else out


_GIVING_NUMBERS = frozenset(map("__{}__".format, "hash len length_hint bool int index float complex round".split()))
