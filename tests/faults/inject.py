"""Faults, and the places where they can be raised.

A place is found in a run without a fault, and named so that a later run meets it: the n-th event of a kind.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import inspect
import opcode
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch

import smelt
from smelt.capture import _native as native
from smelt.capture import compiled

OURS = str(Path(smelt.__file__).parent)
_CONTEXTS = (torch.autograd.grad_mode.__file__, torch.amp.autocast_mode.__file__, torch.utils._device.__file__)
_PUSH = opcode.opmap["PUSH_EXC_INFO"]


@functools.cache
def _handlers_begin(code: CodeType) -> frozenset[int]:
    """Where handlers begin: nothing is raised there but by a trace function, after which CPython takes the stack's top
    for the exception that was handled before."""
    operations = code.co_code[::2]
    return frozenset(2 * at for at, operation in enumerate(operations) if operation == _PUSH)


RUN_IN_C = inspect.CO_GENERATOR | inspect.CO_COROUTINE
"""Python swallows what is raised in a generator that it closes because nobody holds it any more."""


class Calls:
    """Raises at the `at`-th event of a profile function in code of ours: calls and returns, of Python and of C.

    Args:
        contexts: also in torch's context managers.
    """

    def __init__(self, error: BaseException, events: frozenset[str], at: int = -1, contexts: bool = False) -> None:
        self.error, self.events, self.left, self.raised = error, events, at, False
        self.files = (OURS, *_CONTEXTS) if contexts else (OURS,)

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event in self.events and code.co_filename.startswith(self.files) and not code.co_flags & RUN_IN_C:
            self.left -= 1
            if self.left == 0:
                self.raised = True
                raise self.error

    def __enter__(self) -> Calls:
        sys.setprofile(self)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def count(self) -> int:
        """How many events there were."""
        return -1 - self.left


INTERRUPTS = frozenset({"call", "return", "c_call", "c_return"})
FAILURES = frozenset({"call", "c_call"})


class Opcodes:
    """Raises before one instruction of a capture: the `turn`-th time that `code` comes to `offset`; or lists them all.

    Traces only while the compiler works: compiled functions run as they are under a trace function.
    """

    def __init__(self, error: BaseException, place: tuple[CodeType, int] | None = None, turn: int = 1) -> None:
        self.error, self.place, self.left, self.raised = error, place, turn, False
        self.found: dict[tuple[CodeType, int], int] = {}

    def _frame(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if self.place is None:
            wanted = code.co_filename.startswith(OURS) or code.co_filename.endswith(("contextlib.py", "grad_mode.py"))
        else:
            wanted = code is self.place[0]
        if not wanted or code.co_flags & RUN_IN_C and self.place is None and "contextlib" in code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            at = frame.f_code, frame.f_lasti
            if self.place is None:
                if at[1] not in _handlers_begin(frame.f_code):
                    self.found[at] = self.found.get(at, 0) + 1
            elif at[1] == self.place[1] and not self.raised:
                self.left -= 1
                if self.left == 0:
                    self.raised = True
                    raise self.error
        return self._opcode

    def _traced(self, callback: Callable[..., Any]) -> Callable[..., Any]:
        def traced(*args: Any) -> Any:
            if self.raised:
                return callback(*args)
            sys.settrace(self._frame)
            try:
                return callback(*args)
            finally:
                sys.settrace(None)

        return traced

    def __enter__(self) -> Opcodes:
        native.set_callback(self._traced(compiled._on_frame))
        native.set_resume_callback(self._traced(compiled._on_resume))
        return self

    def __exit__(self, *error: object) -> None:
        native.set_callback(compiled._on_frame)
        native.set_resume_callback(compiled._on_resume)


@contextlib.contextmanager
def signalled(error: BaseException, seconds: float) -> Iterator[Callable[[], bool]]:
    """A signal comes after so many seconds; its handler raises. Gives what tells whether it has."""
    came: list[bool] = []

    def handler(*_: Any) -> None:
        came.append(True)
        raise error

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield lambda: bool(came)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def thrown(error: type[BaseException], seconds: float) -> Iterator[Callable[[], bool]]:
    """Another thread has `error` raised in this one after so many seconds."""
    target, done = threading.get_ident(), threading.Event()
    throw = ctypes.pythonapi.PyThreadState_SetAsyncExc
    came: list[bool] = []

    def wait() -> None:
        if not done.wait(seconds):
            came.append(True)
            throw(ctypes.c_ulong(target), ctypes.py_object(error))

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield lambda: bool(came)
    finally:
        done.set()
        thread.join()  # here it comes at the latest: CPython 3.11 does not forget one that is taken back


@contextlib.contextmanager
def out_of_memory(after: int, count: int) -> Iterator[Callable[[], bool]]:
    """`count` allocations of Python's fail, after so many that work."""
    import _testcapi

    if sys.version_info >= (3, 12):
        _hold_codes()
    _testcapi.set_nomemory(after, after + count)
    try:
        yield lambda: False
    finally:
        _testcapi.remove_mem_hooks()


_held: set[int] = set()


def _hold_codes() -> None:
    """CPython 3.12 and 3.13 take a reference too many from a code object where there is no memory for its function:
    with more of them it lives on."""
    hold = ctypes.pythonapi.Py_IncRef
    frozen = gc.get_freeze_count()
    gc.unfreeze()  # what tests have imported is among them
    waiting: list[Any] = [each.__code__ for each in gc.get_objects() if isinstance(each, FunctionType)]
    if frozen:
        gc.freeze()
    while waiting:
        code = waiting.pop()
        if id(code) in _held:
            continue
        _held.add(id(code))
        for _ in range(_ENOUGH):
            hold(ctypes.py_object(code))
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]


_ENOUGH = 20


def at_depth(levels: int, run: Callable[[], Any]) -> Any:
    """`run()` with so many frames below it."""
    return run() if levels <= 0 else at_depth(levels - 1, run)


def moment(rng: random.Random, seconds: float) -> float:
    """When to interrupt a run that takes so long; the clock of signals knows no 0."""
    return max(rng.random() * seconds, 1e-5)


def timed(run: Callable[[], Any]) -> float:
    """Seconds of a run."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
