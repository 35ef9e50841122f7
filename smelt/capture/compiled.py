"""The entry of capture: makes callables whose frames are captured while they run."""

from __future__ import annotations

import copyreg
import functools
import inspect
import sys
import warnings
import weakref
from collections.abc import Callable
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any, Literal

import torch

from smelt.base import torch_c
from smelt.base.class_tables import isinstance
from smelt.base.errors import SmeltWarning
from smelt.base.options import Options
from smelt.capture import _native as native
from smelt.capture import hook
from smelt.capture.core import compiler_marks, policy
from smelt.capture.core.breaks import ROOT, Break
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.interposed import comes_between
from smelt.capture.core.registry import special
from smelt.capture.session import CompileGraph, Session, Slots, WhenReturned
from smelt.capture.torch.deferred_capture import Steps, run_in_steps


def _on_frame(
    code: CodeType, function: FunctionType, slots: Slots, globals: dict[str, object], builtins: dict[str, object]
) -> WhenReturned | Literal[False]:
    session: Session | None = native.owner()
    if comes_between(code, slots):
        return False
    if session is None or _importing() or torch_c.derivatives_outside() or _written_down():
        return None
    return session.frame(code, function, slots, globals)


def _on_resume(
    point: native.ResumePoint,
    function: FunctionType | None,
    slots: Slots,
    globals: dict[str, object],
    builtins: dict[str, object],
) -> WhenReturned:
    session: Session | None = native.owner()
    if session is None or torch_c.derivatives_outside() or _written_down():
        return None
    return session.resumed(point, function, slots, globals)


def _on_watched() -> None:
    text = "a debugger or a coverage tool follows every line: compiled functions run as they are meanwhile"
    warnings.warn(SmeltWarning(text), stacklevel=2)


@functools.cache
def _on_other_left() -> None:
    text = (
        "torch.compile runs what smelt has compiled: that runs as smelt compiled it, and torch.compile's graph ends "
        "before it\n  try: leave torch.compile away here"
    )
    warnings.warn(SmeltWarning(text), stacklevel=3)


def _written_down() -> bool:
    """Whether `torch.jit.trace` or `torch.fx.symbolic_trace` is tracing the program."""
    return torch_c.get_tracing_state() is not None or compiler_marks.written_as_graph()


def _importing() -> bool:
    """Whether the frame that is about to start belongs to an import that the compiled program caused.

    Bodies of modules and classes do no tensor work, and half of their state does not exist yet.
    """
    frame = sys._getframe(2)
    while frame is not None and frame.f_code not in _REGIONS:
        if frame.f_code.co_filename == _IMPORTLIB:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


_IMPORTLIB = "<frozen importlib._bootstrap>"


@functools.cache
def start() -> None:
    """Set up the hook, once per process."""
    hook.answer(_on_frame, _on_resume, _on_watched)
    for code in _REGIONS:
        torch_c.hide_from_torch_compile(code)
    native.set_other_compiler(torch_c.frame_callback, torch_c.set_frame_callback, _on_other_left)


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()

watching: list[Callable[[Session], None]] = []
"""Functions that are called with each new session, and with each session that is about to forget its entries."""


def new_session(compile_graph: CompileGraph, options: Options) -> Session:
    """The session of a compiled callable that has no entries yet."""
    start()
    session = Session(compile_graph, options)
    _sessions.add(session)
    for record in watching:
        record(session)
    return session


# cloudpickle pickles compiled functions by their content, like all functions that cannot be imported by name
copyreg.pickle(Session, lambda session: (new_session, (session.compile_graph, session.options)))


_CALLS = "lambda fn: lambda *args, **kwargs: fn(*args, **kwargs)"
_CALLS_FIRST = "lambda fn, /, *args, **kwargs: fn(*args, **kwargs)"


def _function_and_self(fn: Callable[..., object]) -> tuple[Callable[..., object], object]:
    """Split a callable into a function and the object that it is bound to (None: not bound).

    A bound method or a callable object gives a function that takes the object as its first argument. The compiled
    function is bound to the object by Python's own means, so that `copy.deepcopy` binds it to the copy of the object,
    as it does with a method in eager.
    """
    if isinstance(fn, MethodType):
        return fn.__func__, fn.__self__
    if isinstance(fn, (FunctionType, BuiltinFunctionType, torch.nn.Module)):
        return fn, None
    called = type(fn).__call__
    return (called if _has_frame(called) else _named(eval(compile(_CALLS_FIRST, ROOT, "eval")), fn)), fn


def _has_frame(fn: Callable[..., object]) -> bool:
    """Whether the function has frames that capture compiles; False for C functions and for functions of torch."""
    code = getattr(fn, "__code__", None)
    return code is not None and not code.co_filename.startswith(policy.skipped_prefixes())


def _in_steps(fn: Callable[..., object]) -> str:
    """The kind of object, "generator" or "coroutine", that calls of the function return; "" for other results."""
    return "coroutine" if inspect.iscoroutinefunction(fn) else "generator" if inspect.isgeneratorfunction(fn) else ""


def _with_frame(fn: Callable[..., object], receiver: object) -> Callable[..., object]:
    """`fn`, wrapped in a Python function if it has no frame that capture would compile.

    Args:
        receiver: the object that `fn` is a method of; None for other functions.
    """
    if isinstance(fn, torch.nn.Module):
        # `nn.Module.compile()` stored a call through torch.compile in `_compiled_call_impl`
        return fn if fn.__dict__.get("_compiled_call_impl") is None else fn._call_impl
    if _has_frame(fn):
        return fn
    return _named(eval(compile(_CALLS, ROOT, "eval"))(fn), fn if receiver is None else receiver)


def _named(caller: FunctionType, called: object) -> FunctionType:
    """The function with the name by which messages call it: that of the callable, or of the callable's class."""
    name = getattr(called, "__qualname__", type(called).__qualname__)
    caller.__code__ = caller.__code__.replace(co_name=name.rpartition(".")[2], co_qualname=name)
    return caller


def _region(
    run: Callable[..., object], fn: Callable[..., object], body: str, session: Session
) -> Callable[..., object]:
    """A function that calls `run` while the frame hook is active.

    Args:
        run: `fn`, or a Python function that calls it.
        fn: the function that the program wants compiled.
        body: "generator" or "coroutine" if calls return one; the hook is then active in each of its steps. Otherwise
        "".
    """
    if body == "coroutine":

        async def compiled_coroutine(*args: object, **kwargs: object) -> object:
            session.leaves_body(body, fn)
            return await Steps(native.call(run, args, kwargs, session).__await__(), session)

        return compiled_coroutine
    if body == "generator":

        def compiled_generator(*args: object, **kwargs: object) -> object:
            session.leaves_body(body, fn)
            return run_in_steps(native.call(run, args, kwargs, session), session)

        return compiled_generator

    def compiled(*args: object, **kwargs: object) -> Any:
        if torch.compiler._is_exporting_flag:  # read without a function call: this runs at every call
            return fn(*args, **kwargs)
        try:
            result = native.call(run, args, kwargs, session)
        except BaseException:
            if session.raised:
                session.call_ended(returned=False)
            raise
        if session.raised:
            session.call_ended(returned=True)
        return result

    return compiled


def compile_callable(
    fn: Callable[..., object], compile_graph: CompileGraph, options: Options | None = None, beside: Any = None
) -> Any:
    """A callable with the behaviour of `fn`, whose tensor operations are compiled by `compile_graph`.

    Args:
        fn: a Python function, a bound method or an object with `__call__`.
        compile_graph: (graph module, example inputs, report, options) -> callable(*inputs) -> flat tuple of tensors.
        beside: the result of an earlier call with the same `compile_graph` and options; the two callables share their
            cache entries.

    The body of a generator or coroutine function runs uncompiled, and functions that it calls are captured; `explain`
    says so.

    Raises:
        Unsupported: the result raises this if, with `fullgraph`, something cannot be captured.
    """
    function, receiver = _function_and_self(fn)
    session = new_session(compile_graph, options or Options()) if beside is None else beside._smelt_session

    body = _in_steps(fn if isinstance(fn, functools.partial) else function)
    compiled = _region(_with_frame(function, receiver), function, body, session)
    target = fn if isinstance(fn, (FunctionType, MethodType)) else type(fn).__call__
    out: Any = functools.wraps(target)(compiled)
    out._smelt_session = session
    out.__wrapped__ = function
    out._torchdynamo_disable = compiler_marks.UNLESS_EXPORTED
    out._torchdynamo_disable_msg = compiler_marks.FOR_TORCH_ALONE
    return out if receiver is None else MethodType(out, receiver)


@special(compile_callable)
def compile_inside(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """A compile call in captured code is a graph break: each call of it makes a callable with its own session."""
    raise Break("a function is compiled", "compiled functions are made in Python", "compile it outside of the function")


compiler_marks.REGION_CODES.update(code for code in _region.__code__.co_consts if isinstance(code, CodeType))
_REGIONS = compiler_marks.REGION_CODES | {run_in_steps.__code__}
"""The codes of the frames in which compiled calls begin."""


def reset() -> None:
    """Forget every cache entry in memory."""
    native.clear_all()
    for session in list(_sessions):
        for record in watching:
            record(session)
        session.sites.clear()
        session.points.clear()
        session.breaks.clear()
