"""The entry of capture: makes callables whose frames are captured while they run."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from types import CodeType, FunctionType, MethodType
from typing import Any

from smelt.base.options import Options
from smelt.capture import _native as native
from smelt.capture import policy
from smelt.capture.calibrate import calibrate
from smelt.capture.session import SESSION, CompileGraph, Session, Slots


def _on_frame(
    code: CodeType, function: FunctionType, slots: Slots, globals: dict[str, Any], builtins: dict[str, Any]
) -> None:
    session = SESSION.get()
    if session is not None:
        session.frame(code, function, slots, globals)


def _on_resume(
    point: native.ResumePoint,
    function: FunctionType | None,
    slots: Slots,
    globals: dict[str, Any],
    builtins: dict[str, Any],
) -> None:
    session = SESSION.get()
    if session is not None:
        session.resumed(point, function, slots, globals)


@functools.cache
def start() -> None:
    """Set up the hook, once per process."""
    calibrate()
    native.skip_prefixes(policy.skipped_prefixes())
    native.set_callback(_on_frame)
    native.set_resume_callback(_on_resume)


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def compile_callable(fn: Callable[..., Any], compile_graph: CompileGraph, options: Options | None = None) -> Any:
    """A callable that does what `fn` does, with its tensor work compiled by `compile_graph`.

    Args:
        fn: a Python function, a bound method or an object with `__call__`.
        compile_graph: (graph module, example inputs, report, options) -> callable(*inputs) -> flat tuple of tensors.

    Raises:
        Unsupported: (when called) with `fullgraph`, something cannot be captured.
    """
    start()
    session = Session(compile_graph, options or Options())
    _sessions.add(session)

    def compiled(*args: Any, **kwargs: Any) -> Any:
        token = SESSION.set(session)
        try:
            return native.call(fn, args, kwargs)
        finally:
            SESSION.reset(token)

    target = fn if isinstance(fn, (FunctionType, MethodType)) else type(fn).__call__
    out: Any = functools.wraps(target)(compiled)
    out._smelt_session = session
    out.__wrapped__ = fn
    return out


def reset() -> None:
    """Forget every compiled version in memory."""
    native.clear_all()
    for session in list(_sessions):
        session.places.clear()
        session.points.clear()
        session.breaks.clear()
