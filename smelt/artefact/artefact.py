"""Artefacts, which `compiled.aot_compile(...)` makes and `smelt.load` reads, and compiled callables made from them."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import nn

from smelt.artefact import machine
from smelt.artefact.codec import Decoder
from smelt.artefact.container import ArtefactError, Container, read, refused_as, write
from smelt.artefact.owner import ERROR, OTHERWISE, Owner, VersionReader
from smelt.artefact.programs import ProgramReader
from smelt.artefact.references import anchors_of, mark
from smelt.base.collection import no_collection
from smelt.base.errors import OptionError, shown
from smelt.capture import _native as native
from smelt.compiled_module import compiled_module_of, original_of

MODULE, FUNCTION = "module", "function"


class Artefact:
    """Compiled versions of a model or a function, as data and native code that has not run yet.

    Attributes:
        container: header, contents and blobs of the file.
        name: the name of the artefact in messages.
    """

    def __init__(self, container: Container, name: str) -> None:
        self.container, self.name = container, name

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the artefact to a file that only this user can read and write.

        Raises:
            OSError: writing failed; no partly written file is left.
        """
        write(path, self.container)

    def apply(self, target: Any, *, otherwise: str = ERROR) -> Any:
        """The model (or function) with its calls run by the compiled versions of the artefact.

        Args:
            target: an instance of the model's class, whose parameters are used, or the function.
            otherwise: the action for a call that fits no version: "error" raises, "original" runs it in eager.

        Returns:
            A module of the same class that shares all state, or a function, as from `smelt.compile`.

        Raises:
            ArtefactError: the artefact was made for another model or function, or another machine or installation.
        """
        if otherwise not in OTHERWISE:
            raise OptionError(f"otherwise wants one of {', '.join(map(repr, OTHERWISE))}, got {shown(otherwise)}")
        machine.check(self.container.header, self.name)
        original = original_of(target)
        with refused_as(f"{self.name} cannot be applied"), no_collection(collect=False):
            return self._applied(original, otherwise)

    def _applied(self, original: Any, otherwise: str) -> Any:
        contents = self.container.contents
        model = original if isinstance(original, nn.Module) else None
        function = function_of(original)
        self._check_kind(model)
        _check(contents["function"], mark(function), self.name)
        if model is not None:
            _check_state(contents["state"], state_of(model), self.name)
        owner, slots, anchors = Owner(function, otherwise), slots_of(function, model), anchors_of(function, model)
        decoder = functools.partial(Decoder, anchors, self.container.blobs)
        readers = [VersionReader(decoder(), data, slots, function) for data in contents["versions"]]
        graphs = [ProgramReader(decoder()).callable(data) for data in contents["graphs"]]
        for reader in readers:
            owner.add(reader.version(graphs))
        call = calling(original, owner)
        return call if model is None else compiled_module_of(model, call, Applied(self, otherwise))

    def _check_kind(self, model: nn.Module | None) -> None:
        kind = MODULE if model is not None else FUNCTION
        if self.container.contents["kind"] != kind:
            raise ArtefactError(f"{self.name} is for a {self.container.contents['kind']}, and this is a {kind}")

    def __repr__(self) -> str:
        contents = self.container.contents
        return f"<artefact of {contents['kind']} {contents['name']}, {len(contents['versions'])} versions>"


class Applied:
    """The recipe of a module that an artefact was applied to (`compiled_module.Recipe`)."""

    def __init__(self, artefact: Artefact, otherwise: str) -> None:
        self.artefact, self.otherwise = artefact, otherwise

    def __call__(self, module: nn.Module) -> Any:
        """Apply the artefact to another module."""
        return self.artefact.apply(module, otherwise=self.otherwise)

    def reduced(self, module: nn.Module) -> tuple[Any, ...]:
        """The content of a pickle: the model without compiled code, since native code is loaded only from artefacts."""
        return uncompiled, (module,)

    def ahead(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Raise an error: the model is already compiled."""
        raise ArtefactError("this model comes from an artefact", hint="smelt.compile(model).aot_compile(...)")


def uncompiled(module: nn.Module) -> nn.Module:
    """Rebuild the pickle of a model to which an artefact was applied, as the uncompiled model."""
    if not isinstance(module, nn.Module):
        raise TypeError("a pickle of a compiled module holds a module")
    return module


def load(path: str | os.PathLike[str]) -> Artefact:
    """Read an artefact that `compiled.aot_compile(...).save(path)` wrote; its `.apply(model)` makes a compiled model.

    An artefact contains native code and Python: load only files from people whom you trust to run code under your
    account. Reading the file runs none of this code and loads no pickle.

    Raises:
        FileNotFoundError: the file does not exist.
        ArtefactError: the file is not an artefact, is damaged, is writable by others, or was made for another machine
            or version.
    """
    with no_collection(collect=False):  # all objects that are read stay alive
        container = read(path)
    machine.check(container.header, os.fspath(path))
    try:
        contents = container.contents
        kinds = {"kind": str, "name": str, "function": list, "versions": list, "graphs": list, "state": dict}
        wrong = [name for name, kind in kinds.items() if type(contents[name]) is not kind]
    except KeyError as error:
        wrong = [str(error)]
    if wrong:
        raise ArtefactError(f"{os.fspath(path)} is no artefact that smelt can use", why=f"its {wrong[0]} is missing")
    return Artefact(container, os.fspath(path))


# -- models and functions ---------------------------------------------------------------------------------------------


def function_of(target: Any) -> FunctionType:
    """The function whose frame is replaced: a module's `forward`, or the function itself.

    Raises:
        ArtefactError: the target is neither a module nor a Python function.
    """
    found = target
    if isinstance(target, nn.Module):
        found = inspect.getattr_static(target, "forward", None)
        found = found if isinstance(found, FunctionType) else getattr(target.forward, "__func__", target.forward)
    if not isinstance(found, FunctionType):
        raise ArtefactError(
            f"an artefact is for a module or a function, and this is {shown(target)}",
            hint="compile a module, or a function at the top level of a Python module",
        )
    return found


def slots_of(function: FunctionType, model: nn.Module | None) -> tuple[Any, ...]:
    """The argument slots of a call in which only the slot of the model is filled."""
    code = function.__code__
    slots: list[Any] = [native.NULL] * native.argument_slots(code)
    if model is not None and code.co_argcount:
        slots[0] = model
    elif model is not None and code.co_flags & inspect.CO_VARARGS:
        slots[code.co_kwonlyargcount] = (model,)
    return tuple(slots)


def state_of(model: nn.Module) -> dict[str, Any]:
    """Name of each parameter and buffer of a model -> dtype, shape and device."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: [str(t.dtype), [*t.shape], str(t.device)] for name, t in named}


def _check_state(before: dict[str, Any], now: dict[str, Any], name: str) -> None:
    for key in [*before, *now]:
        if before.get(key) != now.get(key):
            there, here = (" ".join(map(str, each[key])) if key in each else "missing" for each in (before, now))
            why = f"{key} was {there}, and is {here}"
            raise ArtefactError(f"{name} was made for another model", why=why, hint="make it again for this one")


def _check(before: Any, now: Any, name: str) -> None:
    if before != now:
        same = before[:3] == now[:3]
        why = "its source has changed" if same else f"it is for {before[1]}.{before[2]}, and this is {now[1]}.{now[2]}"
        raise ArtefactError(f"{name} was made for another function", why=why, hint="make it again for this one")


def calling(original: Any, owner: Owner) -> Callable[..., Any]:
    """A callable that calls the original with the frame hook active, which runs the owner's compiled versions."""
    run: Any = original
    if isinstance(original, nn.Module) and original.__dict__.get("_compiled_call_impl") is not None:
        run = original._call_impl

    def compiled(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler._is_exporting_flag:  # the flag is read directly: this runs at every call
            return original(*args, **kwargs)
        return native.call(run, args, kwargs, owner)

    wrapped = original if isinstance(original, FunctionType) else type(original).__call__
    out: Any = functools.wraps(wrapped)(compiled)
    out.__wrapped__ = original
    return out
