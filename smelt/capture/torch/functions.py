"""torch.autograd.Function and checkpoint in captured code: one node, or a call in eager with a captured backward."""

from __future__ import annotations

import functools
import inspect
import threading
import types
import warnings
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.utils.checkpoint
from torch.autograd.function import BackwardCFunction
from torch.utils.checkpoint import noop_context_fn

from smelt.base.class_tables import isinstance
from smelt.capture import _native as native
from smelt.capture.calls import calls
from smelt.capture.core import sources
from smelt.capture.core.breaks import Break, UserError
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import special
from smelt.capture.tensors.torch_calls import call_torch
from smelt.capture.torch.autograd_function_reads import Context, call_forward, guard_reads
from smelt.capture.torch.deferred_capture import captured_later
from smelt.capture.torch.recomputation import CheckpointEffects, recomputed_region
from smelt.graph.nodes.custom_functions import BackwardState, is_steady, writes_outside
from smelt.graph.nodes.gradients import note_keeping
from smelt.graph.trace.trace import TraceTensor


class FunctionApply:
    """`cls.apply` of a user's torch.autograd.Function as the target of a graph node.

    Attributes:
        state: mutable state of the program that the Function's backward reads, or None.
        keeps: whether the call has switched `set_materialize_grads` off: absent gradients are passed as None.
    """

    def __init__(self, cls: type, state: BackwardState | None, keeps: bool) -> None:
        self.cls, self.state, self.keeps = cls, state, keeps
        self.__name__ = self.__qualname__ = f"{cls.__name__}_apply"

    def without_state(self) -> FunctionApply:
        """A target for the same Function without checks of the state that its backward reads."""
        return FunctionApply(self.cls, None, self.keeps)

    def __call__(self, *args: object) -> object:
        out = self.cls.apply(*args)  # type: ignore[attr-defined]
        if self.keeps:
            note_keeping(self.cls, out)
        return out


_applies: weakref.WeakValueDictionary[tuple[int, bool], FunctionApply] = weakref.WeakValueDictionary()
"""(id of the Function's class, `keeps`) -> target of nodes. The value keeps the class alive, so its id is not reused
while the entry exists.
"""
_APPLY: Any = vars(torch.autograd.Function)["apply"]
_APPLY = getattr(_APPLY, "__func__", _APPLY)  # `apply` is written in C from torch 2.15 on


@special(_APPLY)
def apply_function(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Call `apply` of a user's Function, which becomes one node, so that the Function's own `backward` is used."""
    cls, *given = args
    if not torch.is_grad_enabled() and not kwargs:
        return _without_derivative(vm, cls, tuple(given))
    if writes_outside(cls):
        raise Break(f"{cls.__name__}.apply", "its backward writes to an input or a result of the graph")
    state, keeps = guard_reads(vm, cls, given)
    if state is None:
        target = _applies.setdefault((id(cls), keeps), FunctionApply(cls, None, keeps))
    elif is_steady(cls):
        vm.guards.flag(is_steady, (cls,), True)
        target = FunctionApply(cls, state, keeps)
    else:
        raise Break(f"{cls.__name__}.apply", "what its backward reads was changed after its forward had run")
    try:
        return call_torch(vm, target, tuple(given), kwargs)
    except UserError as raised:  # perhaps only because the tensors have no values, which a run in eager shows
        raise Break(f"{cls.__name__}.apply", f"its forward does not run on tensors without values: {raised}") from None


def _without_derivative(vm: Interpreter, cls: type[torch.autograd.Function], operands: Args) -> object:
    """Call a Function without gradients: its `forward` is inlined.

    Raises:
        Break: `forward` returns one of its arguments, for which PyTorch would make a new tensor object.
    """
    ctx = Context(tuple(type(a) is TraceTensor and a.requires_grad for a in operands))
    out, _ = call_forward(vm, cls, ctx, operands)
    results = out if isinstance(out, (tuple, list)) else (out,)
    if any(type(result) is TraceTensor and any(result is a for a in operands) for result in results):
        raise Break(f"{cls.__name__}.apply", "it gives an argument back, of which PyTorch makes another tensor")
    return out


@special(torch.utils.checkpoint.checkpoint)
def checkpoint(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `checkpoint(function, *args)`: inlines the function and marks the nodes that the backward
    recomputes.
    """
    given = dict(kwargs)
    own = {name: given.pop(name) for name in _CHECKPOINT_OPTIONS if name in given}
    if own.get("context_fn", noop_context_fn) is not noop_context_fn:
        raise Break("checkpoint with context_fn", "its contexts are entered once more while gradients are computed")
    reentrant = own.get("use_reentrant")
    if reentrant is None:
        calls.defer(vm, warnings.warn, (_REENTRANT_WARNING,), {})
        reentrant = True
    function, *rest = args
    if given and reentrant:
        raise UserError(ValueError("Unexpected keyword arguments: " + ",".join(given)))
    detached = reentrant and not any(type(a) is TraceTensor and a.requires_grad for a in rest)
    stops_early = not reentrant and own.get("early_stop") is not False
    # a detached function runs without gradients, whatever parameters it uses
    below = vm.ambient.gradients(False) if detached and torch.is_grad_enabled() else nullcontext()
    redraws = own.get("preserve_rng_state", True) is False
    with below, recomputed_region(vm, once=detached, stops_early=stops_early, redraws=redraws):
        return vm.call(function, tuple(rest), given)


_CHECKPOINT_OPTIONS = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")
_REENTRANT_WARNING = "torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly."


# -- calls between two graphs, whose later computations are captured as well ---------------------------------------


def apply_eagerly(apply: Callable[..., object], *args: object, **kwargs: object) -> object:
    """Call `cls.apply(*args)` in eager; the `backward` of the Function is captured when it runs."""
    session = native.owner()
    cls: Any = getattr(apply, "__self__", None)
    # a Function without its own `backward` has a `vjp` or no derivative
    if session is None or cls.backward is torch.autograd.Function.backward:
        return apply(*args, **kwargs)
    return _captured_backward(cls, session).apply(*args, **kwargs)


def checkpoint_eagerly(
    checkpoint: Callable[..., object], function: Callable[..., object], *args: object, **kwargs: object
) -> object:
    """Call `checkpoint(function, *args)` in eager; the function is captured, also when the backward recomputes it."""
    session = native.owner()
    if session is not None:
        session.draw_as_eager()  # the recomputation must draw the same numbers, in whichever graph it runs
        function = captured_later(session, function)
    return checkpoint(function, *args, **kwargs)


def checkpoint_to_the_end(
    checkpoint: Callable[..., object], function: Callable[..., object], *args: object, **kwargs: object
) -> object:
    """Call `checkpoint_eagerly` without early stop: the backward recomputes the whole function."""
    if kwargs.get("use_reentrant") is False:
        kwargs["early_stop"] = False
    return checkpoint_eagerly(checkpoint, function, *args, **kwargs)


def checkpoint_as_it_is(
    checkpoint: Callable[..., object], function: Callable[..., object], *args: object, **kwargs: object
) -> object:
    """Call `checkpoint(function, *args)` in eager; the function is not captured."""
    return checkpoint(functools.partial(native.uncaptured_call, function), *args, **kwargs)


def eager_form(callee: object, cause: Break | None) -> Callable[..., object] | None:
    """The function `form` by which residual code calls `callee`, as `form(callee, *args, **kwargs)`; None for a plain
    call.

    Args:
        cause: the break that ended the graph at the call, if known.
    """
    if callee is torch.utils.checkpoint.checkpoint:
        if isinstance(cause, CheckpointEffects):
            return checkpoint_to_the_end if cause.captured else checkpoint_as_it_is
        return checkpoint_eagerly
    if getattr(callee, "__func__", None) is _APPLY:
        return apply_eagerly
    owner = getattr(callee, "__self__", None)
    named = isinstance(callee, types.BuiltinMethodType) and callee.__name__ == "apply"
    if named and isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
        return apply_eagerly
    return None


_subclasses: weakref.WeakKeyDictionary[Any, dict[int, type]] = weakref.WeakKeyDictionary()
"""Session -> id of the Function's class -> its subclass, which keeps the class alive."""


def _captured_backward(cls: Any, session: Any) -> Any:
    """A subclass of the Function whose `backward` is captured."""
    known = _subclasses.setdefault(session, {})
    if id(cls) not in known:
        backward = staticmethod(_unpack_once(captured_later(session, cls.backward)))
        names = {"backward": backward, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
        known[id(cls)] = made = type(cls.__name__, (cls,), names)
        made._backward_cls.saved_tensors = property(saved_once)  # type: ignore[attr-defined]
    return known[id(cls)]


# -- saved tensors that a backward reads ---------------------------------------------------------------------------

_SAVED: types.GetSetDescriptorType = inspect.getattr_static(BackwardCFunction, "saved_tensors")
_unpacked: dict[tuple[int, int], tuple[object, ...] | None] = {}
"""Unpacked saved tensors of running backwards, by thread and context; None: not read yet."""


def _unpack_once(backward: Callable[..., object]) -> Callable[..., object]:
    """A backward that unpacks its saved tensors only once, however often capture, guards and residual code read them.

    Unpacking calls the program's saved-tensor hooks; the hooks of `checkpoint` raise an error at a second call.
    """

    def visited(ctx: object, *gradients: object) -> object:
        key = threading.get_ident(), id(ctx)
        _unpacked[key] = None
        try:
            return backward(ctx, *gradients)
        finally:
            _unpacked.pop(key, None)

    return visited


def saved_once(ctx: object) -> tuple[object, ...]:
    """The tensors `ctx.saved_tensors`, which are unpacked once in each run of a backward."""
    key = threading.get_ident(), id(ctx)
    found = _unpacked.get(key)
    if found is None:
        found = _SAVED.__get__(ctx)
        if key in _unpacked:
            _unpacked[key] = found
    return found


@special(saved_once)
def read_saved(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `ctx.saved_tensors` in a backward."""
    source = vm.source_of(args[0])
    if source is None:
        raise Break("ctx.saved_tensors", "the context was made inside")
    return vm.external(saved_once(args[0]), sources.called(source, saved_once, "saved_tensors"))
