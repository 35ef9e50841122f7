"""Saves and restores the state of the process and of this thread that the compiler changes while it works.

Each change of state is undone in a `finally` block. An interrupt may come before or inside that block, so each capture
also compares the state after it with the state before it, and restores what differs. `preserving` does this in C, and
retries if another interrupt arrives.

Some of the state belongs to the process: a thread may read a value that another thread has changed temporarily. So
threads that compile at the same time share the values that the first of them read, and the last of them restores these.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import atexit
import contextlib
import functools
import gc
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
import torch.utils.checkpoint
from torch.utils import _device, _python_dispatch

from smelt.base import _native, torch_c
from smelt.base.locks import held_locks, release_locks


class Switch(NamedTuple):
    """A variable of the process or of a thread that is saved and restored.

    Attributes:
        read: returns the present value.
        write: sets a value that `read` returned earlier.
        shared: the variable belongs to the process, not to the thread.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    shared: bool = False


def _globals_of(module: Any, *names: str) -> Switch:
    def write(values: tuple[Any, ...]) -> None:
        for name, value in zip(names, values, strict=True):
            setattr(module, name, value)

    return Switch(names[0], lambda: tuple([getattr(module, name, None) for name in names]), write, shared=True)


def _collecting(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()


_WARNINGS = _globals_of(warnings, "filters", "showwarning", "_showwarnmsg_impl")


def _warn_as(before: tuple[Any, ...]) -> None:
    _WARNINGS.write(before)
    getattr(warnings, "_filters_mutated", lambda: None)()  # resets the memory of shown warnings


SWITCHES = [
    # modes first: they would intercept the functions below
    *(Switch(*each) for each in torch_c.MODE_STATE),
    _globals_of(_python_dispatch, *(name for name in vars(_python_dispatch) if name.startswith("_is_in_"))),
    _globals_of(_device, "CURRENT_DEVICE"),
    _globals_of(torch._GLOBAL_DEVICE_CONTEXT, "device_context")._replace(shared=False),
    _globals_of(torch.utils.checkpoint, "_enable_checkpoint_early_stop"),
    _globals_of(torch.autograd.graph, "_allow_mutation_on_saved_tensors_enabled"),
    *(Switch(*each, shared=each[0] in torch_c.SHARED_STATE) for each in torch_c.AUTOGRAD_STATE),
    Switch("kernels of attention", torch_c.attention_kernels, torch_c.set_attention_kernels, shared=True),
    Switch("default dtype", torch.get_default_dtype, torch.set_default_dtype, shared=True),
    _WARNINGS._replace(write=_warn_as),  # `catch_warnings` replaces these lists; filters that an import inserts stay
    Switch("collection", gc.isenabled, _collecting, shared=True),
]
"""All variables that are saved, in the order in which they are restored; `switch` appends to the list."""


def switch(name: str, read: Callable[[], Any], write: Callable[[Any], object], *, shared: bool = False) -> None:
    """Add a variable of the compiler that is changed temporarily to SWITCHES; for the arguments see `Switch`."""
    SWITCHES.append(Switch(name, read, write, shared))


class _Drawn(threading.local):
    """State of the compilation that runs in this thread.

    Attributes:
        undo: functions that restore the random generators from which the capture draws; None outside of a capture.
        first: the values of SWITCHES and the ids of locked locks, as the outermost compilation found them.
        interrupted: whether a signal handler runs that has interrupted the compilation.
    """

    undo: list[Callable[[], object]] | None = None
    first: tuple[list[tuple[Switch, Any]], Any] = ([], ())
    interrupted = False


_drawn = _Drawn()


def keep(restore: Callable[[], object]) -> None:
    """Register `restore`, which resets a random generator, to be called if an error ends the capture of this thread.

    Captures do not save the generators in advance, since other threads draw from them during the capture, and a
    generator whose lock another thread had at a fork blocks forever.
    """
    if _drawn.undo is not None:
        _drawn.undo.append(restore)


def saved() -> Callable[[BaseException | None], None]:
    """Save the state; returns `restore(error)`, which restores it. `error` is the exception that ended the compilation,
    or None; after an error the random generators are restored, too.
    """
    own = [(each, each.read()) for each in SWITCHES if not each.shared]
    if _native.inside()[0] == 1:
        _drawn.first = own, held_locks()
        if threading.get_ident() == threading.main_thread().ident:
            _native.watch_handlers(tuple(_handlers()), _as_the_program)
    restore_shared = _saved_shared()
    outer = _drawn.undo
    undo: list[Callable[[], object]] = []

    def restore(error: BaseException | None) -> None:
        if error is not None:
            _close_blocks(error)
        last = _native.inside()[0] == 1  # of several greenlets, the outermost need not be the last to end
        _write(_drawn.first[0] if last else own)
        restore_shared()
        if error is not None:
            torch_c.leave_forward_level()
        if last:
            release_locks(_drawn.first[1])
        if error is not None:
            for undo_step in reversed(undo):
                undo_step()
        _drawn.undo = outer

    _drawn.undo = undo
    return restore


_found: dict[str, list[tuple[Switch, Any]]] = {}
"""The shared values before the first of the threads that compile now; empty while no thread compiles."""


def _saved_shared() -> Callable[[], None]:
    """Save the shared state; the returned function restores it if this is the outermost call of the last thread."""
    depth, threads = _native.inside()
    values = [(each, each.read()) for each in SWITCHES if each.shared]
    if depth == 1:
        values = _found.setdefault("before", values)  # atomic: the first thread has changed nothing yet

    def restore() -> None:
        now, others = _native.inside()
        if others == 1 and now == 1:
            _write(_found.get("before", values))  # the last call: greenlets end in any order
        elif others == 1 and (depth == 1 or threads == 1):
            _write(values)

    return restore


def _as_the_program() -> Callable[[], None]:
    """Set the state of this thread to the values before the outermost compilation; returns a function that undoes this.

    A signal handler that interrupts a compilation runs in this state: its operations are not traced, and gradients are
    recorded as the program has set it.
    """
    present = [(each, each.read()) for each, _ in _drawn.first[0]]

    def back() -> None:
        _drawn.interrupted = False
        _write(present)

    _drawn.interrupted = True
    try:
        _write(_drawn.first[0])
    except BaseException:
        back()
        raise
    return back


def interrupts_compilation() -> bool:
    """Whether this thread runs a signal handler that interrupted a compilation.

    Such a handler compiles nothing: the interrupted compilation may have acquired locks (smelt's or an executor's) that
    are not released before the handler returns.
    """
    return _drawn.interrupted


_getsignal: Callable[[int], Any] = _signal.getsignal
"""`signal.getsignal` without the conversion of numbers to enumeration members, which takes a hundred times as long."""
_SIGNALS = tuple(int(number) for number in signal.valid_signals())


def _handlers() -> set[FunctionType]:
    """The Python functions of the program that handle signals."""
    found = set()
    for number in _SIGNALS:
        handler = _getsignal(number)
        if type(handler) in _NO_HANDLERS:
            continue
        while isinstance(handler, (MethodType, functools.partial)):
            handler = handler.__func__ if isinstance(handler, MethodType) else handler.func
        function = handler if isinstance(handler, FunctionType) else type(handler).__call__
        if isinstance(function, FunctionType):
            found.add(function)
    return found


_NO_HANDLERS = (type(None), int, type(signal.default_int_handler))


def _write(values: list[tuple[Switch, Any]]) -> None:
    for each, before in values:
        if not _same(each.read(), before):
            each.write(before)


def _close_blocks(error: BaseException) -> None:
    """Close the generators of context managers that an interrupt has ended while they were entered or left.

    Otherwise a generator would end, and change state back, only when the traceback that refers to it is freed.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        block = frame.f_locals.get("self") if frame.f_code.co_filename == contextlib.__file__ else None
        generator = getattr(block, "gen", None)
        if generator is not None and generator.gi_frame is not None and not generator.gi_running:
            with contextlib.suppress(Exception):
                generator.close()


def _same(now: Any, before: Any) -> bool:
    """Whether two values are equal. Items of tuples, which are modes and lists of the program, are compared by
    identity.
    """
    if type(before) is not tuple:
        return bool(now == before)
    return len(now) == len(before) and all(
        a is b or (type(b) is tuple and a == b) for a, b in zip(now, before, strict=True)
    )


_native.set_preserver(saved, _found)
os.register_at_fork(after_in_child=_native.forget_other_threads)
atexit.register(_native.end_threads_alone)  # a program that still runs keeps its handlers
preserving = _native.preserving
"""`preserving(fn, *args, **kwargs)` calls `fn` and restores the state afterwards, also after an error or interrupt."""
