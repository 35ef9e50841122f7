"""Generators of the captured program: iterators that interpret the generator's body, even if C code consumes them."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable

from smelt.base.class_tables import isinstance
from smelt.capture.core.breaks import UserError, pass_on, through_c
from smelt.capture.core.except_clauses import acts_on
from smelt.capture.core.frames import YIELD, Frame
from smelt.capture.core.interface import Interpreter


def _made(kind: object, value: object, traceback: object) -> BaseException:
    """The exception that `throw` raises: an instance, or one made from a class and a value as in Python."""
    if traceback is not None and type(traceback) is not types.TracebackType:
        raise TypeError("throw() third argument must be a traceback object")
    if isinstance(kind, type) and issubclass(kind, BaseException):
        if isinstance(value, kind):
            error: object = value
        else:
            error = kind(*(() if value is None else value if isinstance(value, tuple) else (value,)))
    elif isinstance(kind, BaseException):
        if value is not None:
            raise TypeError("instance exception may not have a separate value")
        error = kind
    else:
        raise TypeError(
            f"exceptions must be classes or instances deriving from BaseException, not {type(kind).__name__}"
        )
    if type(traceback) is types.TracebackType and isinstance(error, BaseException):
        error.__traceback__ = traceback
    assert isinstance(error, BaseException)
    return error


class TracedGenerator:
    """The result of calling a generator function during capture."""

    def __init__(self, vm: Interpreter, frame: Frame) -> None:
        self.vm, self.frame = vm, frame
        self.started = self.done = False
        self.born = vm.step
        vm.python.generators.append(self)

    def __iter__(self) -> TracedGenerator:
        return self

    def __next__(self) -> object:
        return self.send(None)

    def send(self, value: object) -> object:
        """Resume the body with a value; returns the next yielded value.

        Raises:
            StopIteration: the body returned.
            TypeError: a value was sent to a generator that has not begun.
        """
        if self.done:
            raise StopIteration
        if not self.started and value is not None:
            raise TypeError("can't send non-None value to a just-started generator")
        self.frame.stack.append(value)
        return self._resume()

    def throw(
        self, kind: BaseException | type[BaseException], value: BaseException | None = None, traceback: object = None
    ) -> object:
        """Resume the body by raising an exception at the yield; returns the next yielded value."""
        error = _made(kind, value, traceback)
        before, self.done = self.done, True  # unless the body handles the exception and yields
        self.vm.work += 1
        try:
            if before or not self.started:
                pass_on(error)
            through_c(functools.partial(self.vm.unwind, self.frame, UserError(error)))
        finally:
            del error, kind, value  # the exception refers to this frame
        self.done = False
        return self._resume()

    def close(self) -> None:
        """Run the body's `finally` clauses."""
        if self.done or not self.started:
            self.done = True
            return
        try:
            self.throw(GeneratorExit())
        except (GeneratorExit, StopIteration):
            return
        raise RuntimeError("generator ignored GeneratorExit")

    @property
    def must_close(self) -> bool:
        """Whether a `finally` or `with` would run if the generator were dropped now."""
        if self.done or not self.started:
            return False
        return acts_on(self.frame, self.frame.pc - 1, (GeneratorExit,))

    def release(self) -> None:
        """Drop the references to the program's objects."""
        self.frame.release()

    def _resume(self) -> object:
        self.vm.work += 1  # after a break in the body, the generator is no longer where it was before
        self.started = True
        self.done = True  # set back if it yields
        try:
            result = self.vm.reenter(lambda: self.vm.run(self.frame))
        except StopIteration as error:
            raise RuntimeError("generator raised StopIteration") from error
        if result is YIELD:
            self.done = False
            return self.frame.value
        raise StopIteration(self.frame.value)


GENERATOR_METHODS: dict[object, Callable[..., object]] = {
    TracedGenerator.send: types.GeneratorType.send,
    TracedGenerator.throw: types.GeneratorType.throw,
    TracedGenerator.close: types.GeneratorType.close,
    TracedGenerator.__next__: types.GeneratorType.__next__,
    TracedGenerator.__iter__: types.GeneratorType.__iter__,
}
"""Method of a traced generator -> the method of a real generator that the program sees in its place."""
