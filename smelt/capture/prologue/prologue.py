"""The prologue of a capture: computations without tensors that Python makes at each call, before the graph runs.

Random numbers, clocks and NumPy arrays are computed here. During capture each operation runs once, on example values,
and is recorded; the states of random generators are restored at the end. Residual code runs the recorded operations
first.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from smelt.base.class_tables import classes, isinstance
from smelt.base.process_state import keep
from smelt.capture import _native as native
from smelt.capture.core.breaks import Break, UserError, user
from smelt.capture.core.foreign_memory import refuse_windows
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.prologue_value import IMMUTABLE, PrologueValue, copy_as_laid_out, values_in, varies
from smelt.capture.core.sources import Source
from smelt.capture.prologue.arguments import Method, Whole, apart, as_now, examples, fits, is_plain_result, may_share
from smelt.capture.prologue.calls import (
    CERTAIN,
    CLOCKS,
    EXACT,
    MAKERS,
    MUTATING,
    PLAIN_METHODS,
    PURE_METHODS,
    SEEDED,
    SOURCES,
    answer_by_range,
    range_of,
)
from smelt.capture.prologue.inputs import PrologueInputs
from smelt.capture.prologue.source import GENERATORS, GLOBAL_GENERATORS, Op, Peek, State, expect, kind_of

MAX_PINNED_VALUES = 3
"""Maximum number of values that one capture may assume: each may double the number of cache entries."""


_FILLED = classes(list, tuple, dict)


@dataclass(frozen=True)
class _Drawing:
    """How a call uses random generators.

    Attributes:
        name: the name of the function or method.
        owner: the object whose method it is.
        outside: whether the call uses a generator that existed before the compiled function was called, or reads a
            clock.
        made: whether the call is a method of a generator that the prologue makes.
        unseeded: whether the call makes or seeds a generator without a given seed.
    """

    name: Any
    owner: object
    outside: bool
    made: bool
    unseeded: bool

    @property
    def draws(self) -> bool:
        return self.outside or self.made

    @classmethod
    def of(cls, fn: object, args: Args, kwargs: Kwargs, method: str | None) -> _Drawing:
        name = method or getattr(fn, "__name__", "")
        owner = args[0] if method is not None else getattr(fn, "__self__", None)
        outside = isinstance(owner, GENERATORS) or fn in SOURCES
        made = method is not None and isinstance(owner, PrologueValue) and isinstance(owner.example, GENERATORS)
        begins = name == "seed" or fn in MAKERS
        unseeded = begins and not any(a is not None for a in (*args[bool(method) :], *kwargs))
        return cls(name, owner, outside, made, unseeded)


def _note_kind(out: PrologueValue, step: object, drawing: _Drawing, args: Args, kwargs: Kwargs) -> None:
    """Record that the time of a clock differs at every call, or the range of a random number."""
    if step in CLOCKS:
        out.repeats = False
    if drawing.outside:
        out.range = range_of(drawing.owner, drawing.name, args[1:], bool(kwargs))


class Prologue:
    """The prologue of one capture.

    Attributes:
        ops: the operations, in order.
        pins: values that capture assumes and guards.
        used: the values that residual code uses, by index.
        acts: number of operations with side effects, which run even if their results are not used.
        inputs: prologue values that are graph inputs.
    """

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm
        self.ops: list[Op] = []
        self.pins: list[PrologueValue] = []
        self.used: dict[int, PrologueValue] = {}
        self.arrays: dict[int, PrologueValue] = {}
        self.acts = 0
        self.allowed = True
        self._count = 0
        self._state = State()
        self.inputs = PrologueInputs(vm, self)
        self._read: dict[int, tuple[numpy.ndarray, PrologueValue]] = {}
        self._repeats = True
        self._shared: list[PrologueValue] = []
        self.pinned: dict[int, object] = {}
        self._checked: set[int] = set()

    # -- values -----------------------------------------------------------------------------------------------------

    def external(self, array: numpy.ndarray, source: Source) -> PrologueValue:
        """The prologue value of an external array, which is read at each call; its shape and dtype are guarded."""
        found = self.arrays.get(id(array))
        if found is None:
            self._count += 1
            found = PrologueValue(self, self._count - 1, copy_as_laid_out(array), False, True, source)
            self.arrays[id(array)] = found
            self._read[id(array)] = array, found
            self.vm.keep(array)
        return found

    def handle(self, value: object) -> object:
        """The prologue value of an external array; any other value unchanged."""
        return self.arrays.get(id(value), value)

    def read_from(self, value: PrologueValue) -> tuple[numpy.ndarray, Source] | None:
        """The external array that a prologue value represents, and its source; None for other values."""
        array = next((array for array, read in self._read.values() if read is value), None)
        return None if array is None or value.source is None else (array, value.source)

    def known(self, value: PrologueValue) -> Any:
        """The plain value of a prologue value: if it is not constant, capture assumes the example and a guard checks
        it.

        Raises:
            Break: the value cannot be assumed, for example because it differs at each call.
        """
        if value.constant or value.index in self.pinned:
            return value.example
        if not isinstance(value.example, IMMUTABLE):
            raise varies(f"a {type(value.example).__name__}")
        if (
            not value.repeats
            or not self._repeats
            or not self.vm.values.speculates
            or len(self.pins) >= MAX_PINNED_VALUES
            or self.vm.outermost is not self.vm.tensors
        ):
            raise varies(f"a {type(value.example).__name__}")
        self.vm.work += 1
        self.pins.append(value)
        self.pinned[value.index] = value.example
        return value.example

    def shape(self, value: PrologueValue) -> None:
        """Assume the value's kind (type and shape), which residual code checks."""
        if not value.certain and not value.constant and value.index not in self._checked:
            self._checked.add(value.index)
            instruction = next(op.instruction for op in self.ops if op.value is value)
            self._add(expect, (value, kind_of(value.example), instruction), {}, None, pure=False, certain=False)

    def length(self, value: PrologueValue) -> object:
        """The result of `len(value)`: a prologue value for a text, a constant for other values, whose kind is then
        assumed.
        """
        if isinstance(value.example, (str, bytes)):
            return self.run(len, (value,), {})
        self.shape(value)
        return user(len, value.example)

    def items(self, value: PrologueValue) -> list[object]:
        """The result of `list(value)`, with a prologue value or constant for each item."""
        length = self.length(value)
        count = self.known(length) if type(length) is PrologueValue else length
        assert isinstance(count, int)
        return [self.run(operator.getitem, (value, index), {}) for index in range(count)]

    def shares(self, array: PrologueValue) -> None:
        """Note that a tensor shares memory with the array: later writes to either are refused."""
        self._shared.append(array)

    # -- running ----------------------------------------------------------------------------------------------------

    def run(self, fn: Any, args: Args, kwargs: Kwargs, method: str | None = None) -> Any:
        """Run an operation on the examples and record it; returns its result.

        Args:
            fn: a function; ignored for a method.
            method: the name of a method of the first argument.

        Raises:
            Break: the operation cannot be part of a prologue.
            UserError: the operation raises an error.
        """
        refuse_windows(args)
        args, kwargs = self.arguments(args), self.arguments(kwargs)
        self._refuse_opaque((*args, *kwargs.values()))
        values = list(values_in((args, kwargs)))
        answer = answer_by_range(fn, *args) if len(args) == 2 and values and not kwargs else None
        if answer is not None:
            return answer
        return self._compute(fn, args, kwargs, method, values)

    def _compute(self, fn: Any, args: Args, kwargs: Kwargs, method: str | None, values: list[PrologueValue]) -> object:
        """Run an operation on the examples and record it. `values`: the prologue values among the arguments."""
        drawing = _Drawing.of(fn, args, kwargs, method)
        if drawing.outside:
            self._draw(SEEDED.get(fn, drawing.owner) if method is None else drawing.owner)
        self._repeats = self._repeats and not drawing.unseeded
        constant = not drawing.outside and not drawing.unseeded and all(v.constant for v in values)
        writes = self._writes(fn, args, kwargs, method, values)
        certain = all(v.certain for v in values) and self._is_certain(fn, drawing.name, args, kwargs, drawing.draws)
        out = self._on_examples(fn, args, kwargs, method, drawing.draws)
        if not constant and (writes or drawing.made):
            self._mark_changing(values)
        step = fn if method is None else Method(method)
        pure = not writes and not drawing.draws
        out = self._result(step, args, kwargs, out, constant, certain, pure=pure, values=values)
        if type(out) is PrologueValue:
            _note_kind(out, step, drawing, args, kwargs)
        return out

    def _on_examples(
        self, fn: Callable[..., object], args: Args, kwargs: Kwargs, method: str | None, draws: bool
    ) -> object:
        """The result of an operation, or of a method of the first argument, on the example values."""
        positional, named = examples(args), examples(kwargs)
        call = getattr(positional[0], method) if method is not None else fn
        self.vm.work += 1  # counted before: a break inside leaves the effects of what ran until then
        try:
            return native.uncaptured_call(call, *(positional[1:] if method is not None else positional), **named)
        except Exception as error:
            if draws:
                name = method or getattr(fn, "__name__", "")
                raise Break(f"{name}() of a random generator raises", "what it drew before counts") from None
            raise UserError(error) from None

    def run_function(self, fn: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
        """Run a function of the program that draws random numbers, and record it as one operation; see `functions`."""
        for generator in GLOBAL_GENERATORS:
            self._draw(generator)
        positional, named = examples(args), examples(kwargs)
        before, fn = State.of(GLOBAL_GENERATORS), Whole(fn)
        self.vm.work += 1
        try:
            out = native.uncaptured_call(fn, *positional, **named)
        except Exception:
            before.restore()
            raise
        values = list(values_in((args, kwargs)))
        return self._result(fn, args, kwargs, copy.deepcopy(out), False, False, pure=False, values=values)

    def arguments(self, value: object) -> Any:
        """A copy of the arguments in their present state; see `as_now`."""
        return as_now(self.vm.effects.plain(value))

    def _refuse_opaque(self, value: object) -> None:
        """End the graph at objects that numpy would read through `__index__` or `__array__`, which have no guards."""
        if type(value) is tuple or type(value) is list or type(value) is slice:
            for item in (value.start, value.stop, value.step) if isinstance(value, slice) else value:
                self._refuse_opaque(item)
        elif not isinstance(value, (PrologueValue, *GENERATORS)):
            self.vm.effects.refuse_opaque(numpy.array, (value,))

    def _result(
        self,
        fn: Callable[..., object],
        args: Args,
        kwargs: Kwargs,
        out: object,
        constant: bool,
        certain: bool,
        pure: bool,
        values: Sequence[PrologueValue],
    ) -> object:
        if not fits(out):
            raise Break(f"numpy or random gives a {type(out).__name__}")
        known = next((v for v in values if v.example is out and v.changes), None)
        if known is not None:  # an in-place operator
            self._add(fn, args, kwargs, None, pure=False, certain=certain)
            return known
        if constant and pure and is_plain_result(out):
            return out
        if out is None and (certain or constant):
            self._add(fn, args, kwargs, None, pure=pure, certain=certain)
            return None
        value = self._add(fn, args, kwargs, out, pure=pure, certain=certain or constant)
        value.constant = constant
        return self.unpacked(value)

    def unpacked(self, value: PrologueValue) -> object:
        """The items of a prologue value that is a list or tuple, as a list or tuple of prologue values."""
        out = value.example
        if out is None:
            self.shape(value)
            return None
        if type(out) not in _FILLED:
            return value
        if value.constant and is_plain_result(out):
            return out.copy() if type(out) is not tuple else out
        self.shape(value)
        keys = list(out) if type(out) is dict else range(len(out))
        items = []
        for key in keys:
            # its length has been checked
            item = self._add(operator.getitem, (value, key), {}, out[key], pure=True, certain=True)
            item.constant, item.certain = value.constant, value.certain
            items.append(self.unpacked(item))
        return dict(zip(keys, items, strict=True)) if type(out) is dict else type(out)(items)

    def _add(
        self, fn: Callable[..., object], args: Args, kwargs: Kwargs, out: object, *, pure: bool, certain: bool
    ) -> PrologueValue:
        self._check_location()
        value = PrologueValue(self, self._count, out, False, certain)
        value.repeats = all(v.repeats for v in values_in((args, kwargs)))
        self._count += 1
        frame = self.vm.frames[-1] if self.vm.frames else None
        location = (id(frame.code), frame.pc) if frame is not None else (0, 0)
        if location in self.vm.sizes.changes.unsteady:
            raise varies("the size of an array")
        self.ops.append(Op(fn, args, kwargs, value, pure, certain, location))
        if not pure or not certain:
            self.acts += 1
        return value

    def _check_location(self) -> None:
        vm = self.vm
        if not self.allowed or vm.tensors is not vm.outermost:
            raise Break("random numbers or arrays of numpy in a function that a transform runs")
        if vm.tensors.region is not None:
            raise Break("random numbers or arrays of numpy under checkpoint", "the recomputation draws other ones")

    def _draw(self, owner: object) -> None:
        """Note that the next operation changes the state of a generator, which is restored at the end of the
        capture."""
        self._check_location()
        if isinstance(owner, GENERATORS):
            self._state.keep(owner)
            keep(self._state.restore)

    def restore(self) -> None:
        """Restore the states of random generators at the end of the capture, as if nothing had been drawn."""
        self._state.restore()

    def _writes(
        self,
        fn: Callable[..., object] | None,
        args: Args,
        kwargs: Kwargs,
        method: str | None,
        values: list[PrologueValue],
    ) -> bool:
        """Whether the operation writes to one of its arguments.

        Raises:
            Break: the operation writes to an external value, or to one that shares memory with a tensor.
        """
        if not any(v.changes for v in values):
            return False
        written = list(values_in(_written(fn, args, kwargs, method, values)))
        if not written:
            return False
        for value in written:
            for other in [*self.arrays.values(), *self._shared]:
                if may_share(value.example, other.example):
                    raise Break("an array of numpy is written that the outside, or a tensor, sees")
        return True

    def _mark_changing(self, values: list[PrologueValue]) -> None:
        """Mark values that share memory with a written value as no longer constant."""
        for op in self.ops:
            if op.value.constant and any(may_share(op.value.example, v.example) for v in values):
                op.value.constant = False
        for value in values:
            value.constant = value.constant and not value.changes

    @staticmethod
    def _is_certain(fn: Callable[..., object] | None, name: str, args: Args, kwargs: Kwargs, draws: bool) -> bool:
        """Whether the operation raises no error and the kind of its result follows from the kinds of its arguments."""
        depends = any(True for _ in values_in((args, kwargs)))
        beside = any(True for _ in values_in((args[1:], kwargs)))
        if draws:
            return not beside and name in EXACT
        if fn is None:
            return name in PLAIN_METHODS and not beside
        if fn is operator.getitem:
            return isinstance(args[0], PrologueValue) and isinstance(args[0].example, numpy.ndarray) and not beside
        return fn in CERTAIN or not depends

    def check_disjoint(self) -> None:
        """Check and guard that the graph writes to no memory of external arrays, which are read before the graph runs.

        Raises:
            Break: the graph writes to such memory.
        """
        tensors = self.vm.tensors
        written = [i for i in tensors.inputs if tensors.is_written(i)] if self.arrays else []
        if not written:
            return
        arrays = [(array, value.source) for array, value in self._read.values() if value.source is not None]
        if not apart(*(array for array, _ in arrays), *(i.tensor for i in written)):
            raise Break("an array of numpy shows what the graph writes", "it is read before the graph runs")
        self.vm.guards.python(apart, [*(source for _, source in arrays), *(i.source for i in written)])

    # -- the end -------------------------------------------------------------------------------------------------

    def use(self, value: PrologueValue) -> str:
        """Mark the value as used by residual code; returns its name."""
        if value.source is None:
            self.used[value.index] = value
        return value.name

    def program(self) -> list[Op]:
        """The operations that the values used so far depend on."""
        return needed(self.ops, self.used)

    def guard(self) -> None:
        """Add the guard on the assumed values, which computes or draws them ahead of the prologue."""
        pins = [value for value in self.pins if not value.constant]
        if not pins:
            return
        last = max(value.index for value in pins)
        ops = [op for op in needed(self.ops, {v.index: v for v in pins}) if op.value.index <= last]
        peek = Peek(ops, pins, self.vm)
        if peek.sources:
            self.vm.guards.python(peek, peek.sources)
        else:
            self.vm.guards.flag(peek.pins, (), peek.found)


def _written(
    fn: Callable[..., object] | None, args: Args, kwargs: Kwargs, method: str | None, values: list[PrologueValue]
) -> object:
    """The arguments to which an operation writes; all `values` among them for an unknown method."""
    if "out" in kwargs:
        return kwargs["out"]
    if method is not None:
        return () if method in PURE_METHODS else values
    if isinstance(fn, numpy.ufunc):
        return args[fn.nin :]
    in_place = getattr(fn, "__name__", "") in _IN_PLACE and isinstance(fn, type(operator.iadd))
    return args[:1] if in_place or fn in MUTATING else ()


def needed(ops: list[Op], used: Iterable[int]) -> list[Op]:
    """The operations that some values depend on, and all operations with side effects."""
    wanted, out = set(used), []
    for op in reversed(ops):
        if not op.pure or not op.certain or op.value.index in wanted:
            out.append(op)
            wanted |= {v.index for v in values_in((op.args, op.kwargs))}
    return out[::-1]


_IN_PLACE = frozenset("iadd iand ifloordiv ilshift imatmul imul imod ior ipow irshift isub itruediv ixor".split()) | {
    "setitem",
    "delitem",
}
