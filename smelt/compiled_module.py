"""The compiled form of a module: an instance of a subclass with the same state and keys; only calls differ.

The compiled module shares the `__dict__` of the original module, so both have the same parameters, buffers, hooks,
`training` and attributes, and the keys of `state_dict()` have no prefix.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from smelt.base.errors import OptionError
from smelt.capture.core.compiler_marks import compiled_elsewhere, original_module, written_as_graph

_classes: weakref.WeakValueDictionary[int, type] = weakref.WeakValueDictionary()
"""Compiled class by `id` of the original class; the compiled class keeps the original alive, so the id stays valid."""


class _Signature:
    """The attribute `__signature__` of compiled modules and of their classes: the signature of the original module or
    class.
    """

    def __get__(self, module: Any, cls: type) -> inspect.Signature | None:
        if module is not None:
            return inspect.signature(original_of(module)) if hasattr(module, "_orig_mod") else None
        original = cls.__bases__[-1]
        return inspect.signature(original) if _classes.get(id(original)) is cls else None


class _Wrapped:
    """The attribute `__wrapped__` of a compiled module: the original module. Compiled classes do not have it."""

    def __get__(self, module: Any, cls: type) -> Any:
        if module is None or not hasattr(module, "_orig_mod"):
            raise AttributeError("__wrapped__")
        return original_of(module)


class CompiledModule:
    """Base of every compiled class, before the original class. Attributes that must not enter the shared `__dict__` are
    slots.
    """

    __slots__ = ("_orig_mod", "_smelt_call", "_smelt_remake")

    _orig_mod: nn.Module
    _smelt_call: Callable[..., Any]
    _smelt_remake: Recipe
    __signature__ = _Signature()
    __wrapped__ = _Wrapped()

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make an ordinary module of the original class: the result of calling the class of a compiled module."""
        original = cls.__bases__[-1]
        is_twin = _classes.get(id(original)) is cls  # False for a class that the program derived from it
        return original(*args, **kwargs) if is_twin else super().__new__(cls)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler._is_exporting_flag:  # the flag is read directly: this runs at every call
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        try:
            call = self._smelt_call
        except AttributeError:  # an instance of a subclass that the program derived
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        try:
            return call(*args, **kwargs)
        except NameError:  # `symbolic_trace` did not find the original in the model
            if not written_as_graph():
                raise
        return super().__call__(*args, **kwargs)  # type: ignore[misc]

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; `_orig_mod` is refused: in the shared state the module would become its own submodule."""
        if name == "_orig_mod":
            raise AttributeError("_orig_mod of a compiled module stays what it is: compile the other module")
        super().__setattr__(name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if not is_compiled_module(self):
            return self._ordinary_copy(memo, functools.partial(copy.deepcopy, memo=memo))
        return self._smelt_remake(copy.deepcopy(self._orig_mod, memo))

    def __copy__(self) -> Any:
        if not is_compiled_module(self):
            return self._ordinary_copy({}, lambda state: state)
        return self._smelt_remake(copy.copy(self._orig_mod))

    def _ordinary_copy(self, memo: dict[int, Any], of_state: Callable[[Any], Any]) -> Any:
        """Returns a copy, as `copy` makes it of any module, of a module whose class derives from a compiled class."""
        reduced: Any = super().__reduce_ex__(4)
        make, arguments, state = reduced[:3]
        made = memo[id(self)] = make(*arguments)
        made.__setstate__(of_state(state))
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        if not is_compiled_module(self):
            return super().__reduce_ex__(protocol)
        return self._smelt_remake.reduced(self._orig_mod)

    def aot_compile(self, *args: Any, **kwargs: Any) -> Any:
        """Compile for a call without running anything: only shapes and dtypes of the arguments are used.

        Returns:
            An artefact: `.save(path)` writes it, `.add(...)` compiles for other calls too, and `.apply(model)` makes a
            compiled model, as does `.apply` of the artefact that `smelt.load(path)` returns.
        """
        if not is_compiled_module(self):
            raise OptionError("this model is not compiled", hint="smelt.compile(model).aot_compile(...)")
        return self._smelt_remake.ahead(self._orig_mod, args, kwargs)


class Recipe(Protocol):
    """Interface of the objects that make a compiled module from a module, rebuild it from a pickle, or compile it
    ahead.
    """

    def __call__(self, module: nn.Module) -> Any:
        """Returns another module, compiled in the same way."""

    def reduced(self, module: nn.Module) -> tuple[Any, ...]:
        """Returns the content of pickles of the compiled module: a function that rebuilds it, and the arguments of that
        function.
        """

    def ahead(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Returns the artefact of the module with a version for calls with these kinds of arguments; see
        `smelt.ahead`.
        """


class Remake:
    """Compiles another module with the arguments that the first one was compiled with.

    Args:
        rebuild: `(module, kwargs) -> compiled module`; pickles refer to it by name, so it must be a global of a Python
            module.
        ahead: `(module, args, kwargs) -> artefact`; None: `aot_compile` raises an error.
    """

    def __init__(
        self,
        compile: Callable[..., Any],
        kwargs: Mapping[str, Any],
        rebuild: Callable[..., Any] | None = None,
        ahead: Callable[..., Any] | None = None,
    ) -> None:
        self.compile, self.kwargs, self.rebuild, self.make_ahead = compile, dict(kwargs), rebuild, ahead

    def __call__(self, module: nn.Module) -> Any:
        return self.compile(module, **self.kwargs)

    def reduced(self, module: nn.Module) -> tuple[Any, ...]:
        """See `Recipe.reduced`. The content has no instance of smelt's classes, because
        `torch.load(weights_only=True)` accepts only data.
        """
        return self.rebuild or self.compile, (module, self.kwargs)

    def ahead(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Returns the artefact of the module with a version for calls with these kinds of arguments."""
        if self.make_ahead is None:
            raise OptionError("this model is not compiled ahead", hint="smelt.compile(model).aot_compile(...)")
        return self.make_ahead(module, args, kwargs)


def compiled_module_of(module: nn.Module, call: Callable[..., Any], remake: Recipe) -> Any:
    """Returns a module that is an instance of `module`'s class, shares all its state, and runs `call` when called.

    Raises:
        OptionError: the class cannot be subclassed (TorchScript modules).
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise OptionError("a TorchScript module cannot be compiled", hint="compile the Python module it was made from")
    compiled: Any = object.__new__(_compiled_class(type(module)))
    object.__setattr__(compiled, "__dict__", module.__dict__)
    object.__setattr__(compiled, "_orig_mod", module)
    object.__setattr__(compiled, "_smelt_call", call)
    object.__setattr__(compiled, "_smelt_remake", remake)
    _share_states(module, compiled)
    return compiled


def _share_states(module: nn.Module, compiled: nn.Module) -> None:
    """Share the state that `fully_shard` and `replicate` store for a module in tables whose keys are modules."""
    states = sys.modules.get("torch.distributed._composable_state")  # not imported: no such state exists
    known: Any = getattr(states, "_module_state_mapping", None)
    if known is not None and module in known:
        known[compiled] = known[module]


def is_compiled_module(module: Any) -> bool:
    """Whether calls of a module run compiled code.

    Instances of a class that the program derived from a compiled class are ordinary modules.
    """
    return isinstance(module, CompiledModule) and hasattr(module, "_smelt_call")


class _Derived(CompiledModule):
    """Replaces `CompiledModule` as the first base where the original class itself derives from a compiled class."""

    __slots__ = ()
    __call__ = CompiledModule.__call__


def original_of(module: Any) -> Any:
    """Returns the module from which `smelt.compile` or `torch.compile` made a compiled module; other values
    unchanged.
    """
    while True:
        inner = module._orig_mod if is_compiled_module(module) else original_module(module)
        if inner is None:
            return module
        module = inner


def original_function(function: Any) -> Any:
    """Returns the function from which torch.compile made a function; other values unchanged."""
    while isinstance(function, types.FunctionType) and compiled_elsewhere(function):
        function = vars(function)["_torchdynamo_orig_callable"]
    return function


_when_compiled: list[Callable[[type], None]] = []


def when_compiled(notify: Callable[[type], None]) -> None:
    """Register a function that is called with each class of modules before its first module is compiled."""
    _when_compiled.append(notify)


def _compiled_class(cls: type) -> type:
    compiled = _classes.get(id(cls))
    if compiled is None:
        for notify in _when_compiled:
            notify(cls)
        try:
            first = _Derived if issubclass(cls, CompiledModule) else CompiledModule
            compiled = types.new_class(cls.__name__, (first, cls))
        except TypeError as error:
            raise OptionError(f"a module of class {cls.__name__} cannot be compiled", why=str(error)) from error
        compiled.__module__, compiled.__qualname__, compiled.__doc__ = cls.__module__, cls.__qualname__, cls.__doc__
        if "__firstlineno__" in vars(cls):  # from Python 3.13 on `inspect` finds the source by this attribute
            compiled.__firstlineno__ = cls.__firstlineno__  # type: ignore[attr-defined]
        _classes[id(cls)] = compiled
    return compiled


def _unpickle(remake: Remake, module: nn.Module) -> Any:
    """Rebuild a compiled module that an earlier version of smelt pickled."""
    return remake(module)
