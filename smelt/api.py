"""The public API: compile, explain, reset."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from smelt.ahead import CompileAhead, compile_ahead
from smelt.backends import Backend, check_backend, is_built_in, user_backend
from smelt.base.errors import OptionError, shown
from smelt.base.options import Options, resolve_options
from smelt.base.stats import reset_stats
from smelt.capture import compiled as capture
from smelt.capture import equal_modules
from smelt.capture import explain as capture_explain
from smelt.capture.core.compiler_marks import is_compiled_by_smelt
from smelt.compiled_module import (
    Remake,
    compiled_module_of,
    is_compiled_module,
    original_function,
    original_of,
    when_compiled,
)
from smelt.driver import compile_graph
from smelt.integrations import accelerate_models, lightning

NOT_GIVEN: Any = object()
"""Default of the argument `model` of `compile`, which then returns a decorator."""


def compile(
    model: Any = NOT_GIVEN,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Backend = "smelt",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Make a module or function faster. It is compiled at the first call, for the shapes of that call.

    Args:
        model: an `nn.Module` or a callable; without it, a decorator is returned.
        fullgraph: a graph break is an error (`Unsupported`) instead of a second graph.
        dynamic: None: the sizes of the first call are static; sizes (and integers among the arguments) that a later
            call changes become symbols, so that the second version supports every size. True: sizes are symbols from
            the first call. False: sizes are always static; a new size compiles a new version, up to
            `options={"recompile_limit": 8}`. `smelt.mark_dynamic` and `smelt.mark_static` decide for single dimensions.
        backend: "smelt", "aot_eager", "eager", a registered name, or a callable `(gm, example_inputs) -> callable`.
        mode: "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"; all the same on a CPU.
        options: single settings instead of a mode.
        disable: return `model` unchanged.

    Returns:
        For a module: a module of the same class family that shares all state with it (same `state_dict` keys,
        parameters, hooks, attributes, `train()`/`eval()`; `copy.deepcopy` and pickling give compiled modules).
        For a callable: a callable.

    Raises:
        OptionError: an unknown backend, mode or option, or a value of the wrong type.
        TypeError: `model` cannot be compiled.
    """
    kwargs: dict[str, Any] = {
        "fullgraph": fullgraph,
        "dynamic": dynamic,
        "backend": backend,
        "mode": mode,
        "options": options,
        "disable": disable,
    }
    chosen = chosen_options(**kwargs)
    if model is NOT_GIVEN:
        return functools.partial(compile, **kwargs)
    _check_target(model)
    if disable:
        return model
    if isinstance(model, nn.Module):
        accelerate_models.take_functions()
        module = original_of(model)
        call = capture.compile_callable(module, compile_graph, chosen)
        if chosen.backend == "smelt":  # a backend of the user's own is called for each module
            equal_modules.enter(module, call._smelt_session)
        ahead = functools.partial(compile_ahead, options=chosen)
        return compiled_module_of(module, call, Remake(compile, kwargs, compiled_again, ahead))
    function = original_function(model)
    compiled = capture.compile_callable(function, compile_graph, chosen)
    getattr(compiled, "__func__", compiled).aot_compile = CompileAhead(function, chosen)
    return compiled


def compiled_again(module: nn.Module, kwargs: Mapping[str, Any]) -> Any:
    """Rebuild a pickled compiled module. `torch.load(weights_only=True)` also calls it, on untrusted data."""
    if not isinstance(module, nn.Module) or not isinstance(kwargs, Mapping):
        raise TypeError("a pickle of a compiled module holds a module and arguments of smelt.compile")
    return compile(module, **kwargs)


when_compiled(lightning.take_functions)


def explain(
    fn: Callable[..., Any],
    *,
    dynamic: bool | None = None,
    backend: str | Backend = "smelt",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., capture_explain.Explanation]:
    """`explain(fn)(*args)` compiles and runs `fn` once; returns its graphs, graph breaks with reasons, and guards."""
    _check_target(fn)
    target = original_function(original_of(fn))
    return capture_explain.explain(target, compile_graph, chosen_options(False, dynamic, backend, mode, options))


def lookup_backend(backend: str | Backend) -> Callable[..., Callable[..., Any]]:
    """Returns the function `(gm, example_inputs) -> callable` of a backend, found by its name.

    Built-in backends also take `mode` and `options`, as `compile` does. The graph comes from another capture (Dynamo,
    for example), which checks its own guards: its symbolic sizes stay symbols, all other sizes are static.

    Raises:
        OptionError: the name is unknown (the message lists the valid names and the nearest one).
    """
    name = check_backend(backend)
    return functools.partial(_compile_captured, name) if is_built_in(name) else user_backend(name)


def _compile_captured(
    backend: str,
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    sizes = (n for x in example_inputs for n in (x.shape if isinstance(x, torch.Tensor) else (x,)))
    dynamic = any(isinstance(n, torch.SymInt) for n in sizes)
    compiled = compile(gm, dynamic=dynamic, backend=backend, mode=mode, options=options)
    return lambda *inputs: compiled(*inputs)


def reset() -> None:
    """Discard everything compiled in this process, and reset the counters of `stats()`. The disk cache is kept."""
    capture.reset()
    reset_stats()


def is_compiled(module: Any) -> bool:
    """Whether `module` is a module that `smelt.compile` returned."""
    return is_compiled_module(module) or is_compiled_by_smelt(module)


def _check_target(model: Any) -> None:
    """Raise TypeError if `model` cannot be compiled; the message says what to compile instead."""
    if isinstance(model, nn.Module):
        return
    problem = None
    if isinstance(model, type):
        problem = f"{shown(model)} is a class", "compile an instance of it, or a method"
    elif inspect.iscoroutine(model) or inspect.isgenerator(model) or inspect.isasyncgen(model):
        problem = f"{shown(model)} has begun to run", "compile the function that makes it"
    elif isinstance(model, torch.jit.ScriptFunction):
        problem = "a TorchScript function has no Python code", "compile the Python function it was made from"
    elif not callable(model):
        problem = f"{shown(model)} cannot be called", "@smelt.compile() without a model is a decorator"
    if problem is not None:
        what, hint = problem
        raise TypeError(f"smelt.compile takes an nn.Module or a function, and {what}\n  try: {hint}")


def chosen_options(
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Backend = "smelt",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Options:
    """The options that the arguments of `compile` select; all arguments are checked here.

    Raises:
        OptionError: an unknown backend, mode or option, or a value of the wrong type.
    """
    chosen = resolve_options(
        backend=check_backend(backend), mode=mode, fullgraph=fullgraph, dynamic=dynamic, options=options
    )
    if type(disable) is not bool:
        raise OptionError(f"disable wants True or False, got {shown(disable)}")
    return chosen
