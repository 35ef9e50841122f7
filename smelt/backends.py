"""The registry of backends: `(torch-level GraphModule, example inputs) -> callable`, as the ecosystem writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any, overload

import torch
from torch import fx

from smelt.base.errors import OptionError, shown, unknown_name

Backend = Callable[[fx.GraphModule, Sequence[torch.Tensor]], Callable[..., Any]]
ENTRY_POINTS = "smelt_backends"
"""The entry-point group through which installed packages offer backends."""

_registered: dict[str, Backend] = {}
BUILT_IN = ("aot_eager", "eager", "smelt")


@overload
def register_backend(compiler: Backend, name: str | None = None) -> Backend: ...
@overload
def register_backend(compiler: None = None, name: str | None = None) -> Callable[[Backend], Backend]: ...
def register_backend(compiler: Backend | None = None, name: str | None = None) -> Any:
    """Register `compiler(gm, example_inputs) -> callable` under `name` (default: the function's name).

    Works as a decorator with or without arguments. The callable takes the graph's inputs positionally and
    returns a tuple of tensors.

    Raises:
        OptionError: the name belongs to a built-in backend or is not a valid name, or the backend cannot be called.
    """
    if compiler is None:
        return lambda fn: register_backend(fn, name)
    if not callable(compiler):
        raise OptionError(f"a backend is a callable (gm, example_inputs) -> callable, got {shown(compiler)}")
    chosen = name or getattr(compiler, "__name__", None)
    if not isinstance(chosen, str):
        raise OptionError(f"a backend's name is a text, got {shown(chosen)}", hint="register_backend(compiler, name)")
    if chosen in BUILT_IN:
        raise OptionError(f"backend name {chosen!r} is built in", hint="choose another name")
    _registered[chosen] = compiler
    return compiler


def list_backends() -> list[str]:
    """Names that `compile(backend=...)` accepts: built in, registered and installed through entry points."""
    installed = {point.name for point in entry_points(group=ENTRY_POINTS)}
    return sorted({*BUILT_IN, *_registered, *installed})


class CallableBackend(str):
    """The name of a backend that the user passed as a callable; the name keeps the callable alive.

    Attributes:
        compiler: the callable.
    """

    compiler: Backend


def check_backend(backend: str | Backend) -> str:
    """The name of a backend; a `CallableBackend` if the backend was passed as a callable.

    Raises:
        OptionError: the name is unknown (the message lists the valid names and the nearest one).
    """
    if callable(backend):
        name = CallableBackend(f"{getattr(backend, '__name__', type(backend).__name__)}@{id(backend):x}")
        name.compiler = backend
        return name
    if not isinstance(backend, str):
        hint = f"one of {', '.join(list_backends())}, or a callable (gm, example_inputs) -> callable"
        raise OptionError(f"backend wants a name or a callable, got {shown(backend)}", hint=hint)
    backend = str.__str__(backend)  # a subclass of str may define comparison
    if backend not in BUILT_IN and backend not in _registered:
        for point in entry_points(group=ENTRY_POINTS):
            if point.name == backend:
                _registered[backend] = point.load()
                return backend
        raise unknown_name("backend", backend, list_backends())
    return backend


def is_built_in(name: str) -> bool:
    """Whether a name that `check_backend` returned names a built-in backend."""
    return name in BUILT_IN and not isinstance(name, CallableBackend)


def user_backend(name: str) -> Backend:
    """The function of a backend that is not built in, by the name that `check_backend` returned."""
    return name.compiler if isinstance(name, CallableBackend) else _registered[name]
