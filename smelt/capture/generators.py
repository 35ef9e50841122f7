"""Generators of the captured program: an iterator whose body is interpreted, so that C code can consume it too."""

from __future__ import annotations

from typing import Any

from smelt.capture.breaks import UserError
from smelt.capture.frames import YIELD


class TracedGenerator:
    """What a call of a generator function gives while capturing."""

    def __init__(self, vm: Any, frame: Any) -> None:
        self.vm, self.frame = vm, frame
        self.started = self.done = False

    def __iter__(self) -> TracedGenerator:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """Resume with a value; gives what is yielded next.

        Raises:
            StopIteration: the body returned.
        """
        if self.done:
            raise StopIteration
        self.frame.stack.append(value)
        return self._resume()

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        """Resume by raising an exception at the yield."""
        error = kind if isinstance(kind, BaseException) else kind() if value is None else value
        if self.done:
            raise error
        if not self.started:
            self.done = True
            raise error
        try:
            self.vm.unwind(self.frame, UserError(error))
        except UserError:
            self.done = True
            raise error from None
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

    def _resume(self) -> Any:
        self.started = True
        try:
            result = self.vm.tensors.watch.pause(self.vm.run, self.frame)
        except UserError as error:
            self.done = True
            if isinstance(error.error, StopIteration):
                raise RuntimeError("generator raised StopIteration") from error.error
            raise error.error from None
        except BaseException:
            self.done = True
            raise
        if result is YIELD:
            return self.frame.value
        self.done = True
        raise StopIteration(self.frame.value)
