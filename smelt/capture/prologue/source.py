"""Prologues as Python source: for residual code, and for guards that compute the prologue's values ahead of time."""

from __future__ import annotations

import functools
import random
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy
import torch

from smelt.base.class_tables import classes, isinstance
from smelt.base.python_text import LITERALS, arguments, new_name
from smelt.capture import _native as native
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.prologue_value import PrologueValue
from smelt.capture.core.sources import Source


@dataclass
class Op:
    """One recorded operation.

    Attributes:
        value: the result of the operation.
        pure: whether the operation has no side effects.
        certain: whether the operation never raises an error and its result always has the same kind.
        instruction: (code identity, index) of the program's instruction.
    """

    fn: Callable[..., object]
    args: Args
    kwargs: Kwargs
    value: PrologueValue
    pure: bool
    certain: bool
    instruction: tuple[int, int]


# -- kinds ------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """The properties of a value that capture assumes: its type, and for arrays and tensors dtype, shape and strides,
    for lists and tuples the length, for dicts the keys.
    """

    value: object


class OtherKindError(Exception):
    """A value's kind differs from that during capture; `instruction` is the instruction that computes the value."""

    instruction: tuple[int, int] | None = None


def kind_of(value: object) -> Kind:
    """The kind of a value."""
    return Kind(_kind(value))


def _kind(value: object) -> object:
    kind = type(value)
    if type(value) is list or type(value) is tuple:
        return kind, len(value)
    if type(value) is dict:
        return kind, tuple(value)
    if isinstance(value, numpy.ndarray):
        return kind, value.dtype.str, value.shape, value.strides
    if isinstance(value, torch.Tensor):
        return kind, value.dtype, tuple(value.shape), value.stride()
    return kind


def expect(value: object, kind: Kind, instruction: tuple[int, int] | None = None) -> None:
    """Check that the value is of this kind.

    Raises:
        OtherKindError: the value has another kind.
    """
    found = _kind(value)
    if found != kind.value:
        error = OtherKindError(f"{found} instead of {kind.value}")
        error.instruction = instruction
        raise error


class Steady:
    """Records whether the values of a prologue have had the assumed kinds at all calls so far."""

    def __init__(self, unsteady: set[tuple[int, int]]) -> None:
        self._unsteady, self._holds = unsteady, True

    def holds(self) -> bool:
        """Whether the values have had the assumed kinds at all calls so far."""
        return self._holds

    def fail(self, error: Exception) -> None:
        """Record that the prologue failed; the frame runs in eager, which draws the same numbers."""
        if isinstance(error, OtherKindError):
            self._holds = False
            if error.instruction is not None:
                self._unsteady.add(error.instruction)


@dataclass
class PrologueCall:
    """The prologue as residual code calls it.

    Attributes:
        run: the prologue function; `source` is its text.
        arguments: expressions for the external values that the function reads.
        generators: the external random generators that the function may draw from.
        results: names of the function's results.
        certain: whether the function raises no error.
    """

    run: Callable[..., object]
    source: str
    arguments: list[str]
    generators: list[Generator]
    results: list[str]
    certain: bool


GENERATORS = (random.Random, numpy.random.RandomState, numpy.random.Generator)
"""Classes of objects whose methods draw random numbers."""
GENERATOR_CLASSES = classes(*GENERATORS)

Generator: TypeAlias = random.Random | numpy.random.RandomState | numpy.random.Generator

GLOBAL_GENERATORS: tuple[Generator, ...] = (random._inst, numpy.random.mtrand._rand)
"""The generators that the functions of `random` and `numpy.random` use."""

# -- states of random generators ------------------------------------------------------------


class State:
    """Recorded states of random generators, which can be restored."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Generator, object]] = {}

    @classmethod
    def of(cls, generators: Iterable[Generator]) -> State:
        """Record the present states of the generators."""
        out = cls()
        for generator in generators:
            out.keep(generator)
        return out

    def keep(self, generator: Generator) -> None:
        """Record the present state of a generator, unless an earlier one is recorded."""
        if id(generator) not in self._kept:
            self._kept[id(generator)] = generator, _state(generator)

    def restore(self) -> None:
        """Set the generators back to the recorded states."""
        for generator, state in self._kept.values():
            _setter(generator)(state)
        self._kept.clear()


def _setter(generator: Generator) -> Callable[[Any], object]:
    """The function that sets the state of the generator."""
    if isinstance(generator, random.Random):
        return generator.setstate
    if isinstance(generator, numpy.random.RandomState):
        return generator.set_state
    return functools.partial(setattr, generator.bit_generator, "state")


def _state(generator: Generator) -> object:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, numpy.random.RandomState):
        return generator.get_state()
    return generator.bit_generator.state


def generators_of(ops: Iterable[Op], vm: Interpreter) -> list[Generator]:
    """The external generators that a prologue may draw from, without those passed as arguments."""
    drawn = [op.args[0] for op in ops if op.args and isinstance(op.args[0], GENERATORS)]
    found = {id(g): g for g in drawn if vm.source_of(g) is None} | {id(g): g for g in GLOBAL_GENERATORS}
    return list(found.values())


def prologue_call(
    ops: Sequence[Op], used: dict[int, PrologueValue], vm: Interpreter, fetched: Callable[[Source], str]
) -> PrologueCall:
    """The prologue function of some operations.

    Args:
        used: the values that the function has to return, by index.
        fetched: returns the expression of an external value in residual code.
    """
    read: dict[str, str] = {}

    def name(source: Source) -> str:
        return read.setdefault(fetched(source), f"a{len(read)}")

    text = Text(name, vm.source_of)
    text.lines(ops)  # records which sources are read
    results = [op.value.name for op in ops if op.value.index in used]
    run, source = compiled(text, ops, results, list(read.values()), "host")
    generators = generators_of(ops, vm)
    return PrologueCall(run, source, list(read), generators, results, all(op.certain for op in ops))


def states_of(
    generators: Sequence[Generator], values: Sequence[object]
) -> list[tuple[Callable[[Any], object], object]]:
    """(function that sets the state, present state) of each given generator and of each generator among a prologue's
    arguments.

    The caller restores a state by calling the generator's own function. A function of smelt could fail while the
    program runs, and nothing could then repeat the restoration.
    """
    every = {id(g): g for g in (*generators, *(each for each in values if isinstance(each, GENERATORS)))}
    return [(_setter(generator), _state(generator)) for generator in every.values()]


# -- source ------------------------------------------------------------


class Text:
    """Writes operations as Python source.

    Args:
        fetched: returns the expression of an external value.
        source_of: returns the source of an object, or None.
    """

    def __init__(self, fetched: Callable[[Source], str], source_of: Callable[[object], Source | None]) -> None:
        self.fetched, self.source_of = fetched, source_of
        self.constants: dict[str, object] = {}
        self._names: dict[int, str] = {}

    def lines(self, ops: Sequence[Op]) -> list[str]:
        """Write one statement per operation."""
        return [f"{op.value.name} = {self._call(op)}" for op in ops]

    def __call__(self, value: object) -> str:
        """The expression of an argument."""
        kind = type(value)
        if type(value) is PrologueValue:
            return value.name if value.source is None else self.fetched(value.source)
        if kind in LITERALS:
            return LITERALS[kind](value)
        if type(value) is tuple:
            return f"({', '.join(map(self, value))}{',' if len(value) == 1 else ''})"
        if type(value) is list:
            return f"[{', '.join(map(self, value))}]"
        if type(value) is dict:
            return f"{{{', '.join(f'{self(k)}: {self(v)}' for k, v in value.items())}}}"
        if type(value) is slice:
            return f"slice({self(value.start)}, {self(value.stop)}, {self(value.step)})"
        source = self.source_of(value)
        return self.fetched(source) if source is not None else self._constant(value, kind.__name__)

    def _call(self, op: Op) -> str:
        argument_text = arguments(map(self, op.args), [(name, self(value)) for name, value in op.kwargs.items()])
        return f"{self._constant(op.fn, getattr(op.fn, '__name__', 'call'))}({argument_text})"

    def _constant(self, value: object, hint: str) -> str:
        known = self._names.get(id(value))
        if known is None:
            name = new_name(hint, self.constants)
            self.constants[name] = value
            known = self._names[id(value)] = f"_c.{name}"
        return known


def compiled(
    text: Text, ops: Sequence[Op], results: Sequence[str], arguments: Sequence[str], name: str
) -> tuple[Callable[..., tuple[object, ...]], str]:
    """(a function that runs operations and returns some values, the function's source); the hook ignores its frames."""
    body = [*text.lines(ops), f"return {', '.join(results)}{',' if len(results) == 1 else ''}" if results else "return"]
    source = f"def {name}({', '.join(['_c', *arguments])}):\n" + textwrap.indent("\n".join(body), "    ") + "\n"
    scope: dict[str, Any] = {}
    exec(compile(source, f"<smelt {name}>", "exec"), scope)
    run, constants = scope[name], SimpleNamespace(**text.constants)

    def call(*values: object) -> object:
        return run(constants, *values)

    return native.Quiet(call), source


class Peek:
    """A guard that the prologue will compute the assumed values: it computes or draws them and restores the generators.

    Attributes:
        sources: sources of the external values that the prologue reads, in the order of the guard's arguments.
        found: the assumed values with their types.
    """

    def __init__(self, ops: Sequence[Op], pins: Sequence[PrologueValue], vm: Interpreter) -> None:
        read: dict[int, Source] = {}

        def fetched(source: Source) -> str:
            index = vm.guards.fetch(source)
            read[index] = source
            return f"f{index}"

        text = Text(fetched, vm.source_of)
        text.lines(ops)  # records which sources are read
        self._generators = generators_of(ops, vm)
        arguments = [f"f{index}" for index in sorted(read)]
        self.sources = [read[index] for index in sorted(read)]
        self._run, self.source = compiled(text, ops, [value.name for value in pins], arguments, "peek")
        self.found = tuple((type(v.example), v.example) for v in pins)
        self.__name__ = self.__qualname__ = f"drawn values are {[v.example for v in pins]}"

    def pins(self, *values: object) -> tuple[object, ...] | None:
        """The values that the prologue would compute now, with their types; None if it would raise an error."""
        states = states_of(self._generators, values)
        try:
            return tuple((type(v), v) for v in self._run(*values))
        except Exception:
            return None
        finally:
            for set_state, state in states:
                set_state(state)

    def __call__(self, *values: object) -> bool:
        return bool(self.pins(*values) == self.found)
