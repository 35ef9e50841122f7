"""The state of the process and of this thread that the compiler switches while it works, saved and restored.

Every switch has its own `finally`. An interrupt may come between a switch and its `finally`, or inside of it, so each
capture compares the state before it with the state after it, and restores what differs. `preserving` does that in C,
and retries when an interrupt arrives meanwhile.

Some of the state is the process's: what a thread finds there may be what another one has switched for a time. Threads
that are inside at once share what the first of them has found, and the last one restores it.
"""

from __future__ import annotations

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
    """One piece of state.

    Attributes:
        read: its value now.
        write: makes a value that was read before the present one.
        shared: all threads have it in common.
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
    getattr(warnings, "_filters_mutated", lambda: None)()  # a warning that was shown once may be shown anew


SWITCHES = [
    # modes first: the functions below would ask them
    *(Switch(*each) for each in torch_c.MODE_STATE),
    _globals_of(_python_dispatch, *(name for name in vars(_python_dispatch) if name.startswith("_is_in_"))),
    _globals_of(_device, "CURRENT_DEVICE"),
    _globals_of(torch._GLOBAL_DEVICE_CONTEXT, "device_context")._replace(shared=False),
    _globals_of(torch.utils.checkpoint, "_enable_checkpoint_early_stop"),
    _globals_of(torch.autograd.graph, "_allow_mutation_on_saved_tensors_enabled"),
    *(Switch(*each, shared=each[0] in torch_c.SHARED_STATE) for each in torch_c.AUTOGRAD_STATE),
    Switch("kernels of attention", torch_c.attention_kernels, torch_c.set_attention_kernels, shared=True),
    Switch("default dtype", torch.get_default_dtype, torch.set_default_dtype, shared=True),
    _WARNINGS._replace(write=_warn_as),  # as `catch_warnings` swaps them; what an import adds stays
    Switch("collection", gc.isenabled, _collecting, shared=True),
]
"""In the order in which they are restored; `switch` adds to it."""


def switch(name: str, read: Callable[[], Any], write: Callable[[Any], object], *, shared: bool = False) -> None:
    """Declare a variable of the compiler that is changed temporarily."""
    SWITCHES.append(Switch(name, read, write, shared))


class _Drawn(threading.local):
    """What puts random generators back that the capture of this thread draws from; None outside of one."""

    undo: list[Callable[[], object]] | None = None
    first: tuple[list[tuple[Switch, Any]], Any] = ([], ())  # what the outermost call has found: state and locked locks
    interrupted = False  # by a handler of signals, which runs now


_drawn = _Drawn()


def keep(restore: Callable[[], object]) -> None:
    """Note that random numbers are about to be drawn: `restore` is also called if a fault ends the capture.

    Captures do not save the generators in advance: other threads draw from them meanwhile, and a generator whose lock
    another thread had at a fork blocks forever.
    """
    if _drawn.undo is not None:
        _drawn.undo.append(restore)


def saved() -> Callable[[BaseException | None], None]:
    """The state now, as what restores it: `restore(error)`, with what has ended the compilation.

    After a failure that includes random generators.
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
        last = _native.inside()[0] == 1  # greenlets end in any order
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
"""The shared state as the first of the threads now inside found it; empty while no thread is inside."""


def _saved_shared() -> Callable[[], None]:
    """The shared state before anybody who is inside has switched it, as what restores it behind the last of them."""
    depth, threads = _native.inside()
    values = [(each, each.read()) for each in SWITCHES if each.shared]
    if depth == 1:
        values = _found.setdefault("before", values)  # in one step: who comes first has switched nothing yet

    def restore() -> None:
        now, others = _native.inside()
        if others == 1 and now == 1:
            _write(_found.get("before", values))  # the last one: greenlets end in any order
        elif others == 1 and (depth == 1 or threads == 1):
            _write(values)

    return restore


def _as_the_program() -> Callable[[], None]:
    """Give this thread the state that the outermost compilation has found, as what gives it back the present one.

    For a handler of signals: what it computes or saves is not traced, and gradients are on where they were.
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
    """Whether this thread runs a handler that came in the middle of a compilation.

    Nothing is compiled there: the interrupted one may hold locks, its own or of executors, that never come free.
    """
    return _drawn.interrupted


_getsignal: Callable[[int], Any] = getattr(signal.getsignal, "__wrapped__", signal.getsignal)
"""Without numbers made into their names, which takes a hundred times as long."""
_SIGNALS = tuple(int(number) for number in signal.valid_signals())


def _handlers() -> set[FunctionType]:
    """The program's own handlers of signals."""
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
    """End the `with` blocks that an interrupt met on their way in or out.

    Else their generators end, and switch what they had switched, when the last one drops the traceback that holds them.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        block = frame.f_locals.get("self") if frame.f_code.co_filename == contextlib.__file__ else None
        generator = getattr(block, "gen", None)
        if generator is not None and generator.gi_frame is not None and not generator.gi_running:
            with contextlib.suppress(Exception):
                generator.close()


def _same(now: Any, before: Any) -> bool:
    """Whether two values are equal; items of tuples are compared by identity, because they are modes and lists of the
    program.
    """
    if type(before) is not tuple:
        return bool(now == before)
    return len(now) == len(before) and all(
        a is b or (type(b) is tuple and a == b) for a, b in zip(now, before, strict=True)
    )


_native.set_preserver(saved, _found)
os.register_at_fork(after_in_child=_native.forget_other_threads)
atexit.register(_native.end_threads_alone)  # a running program keeps the handler that it has
preserving = _native.preserving
"""`preserving(fn, *args, **kwargs)`: `fn(...)`, whatever ends it, leaves the state as it was."""
