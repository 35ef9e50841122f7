"""An error of smelt's own between a call's begin and its result: the frame runs in eager, and the user is told once."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import random
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.base import malloc
from smelt.base.errors import BuildError, CompileError, OptionError, SmeltError, SpecializationError, Unsupported
from smelt.capture import _native as native
from smelt.capture.interpreter import Interpreter
from smelt.capture.residual.reconstruct import Rebuild
from smelt.runtime import memory
from tests.capture.harness import same

MODULES = [
    "smelt.base.python_text",
    *(f"smelt.capture.tensors.{name}" for name in ("finish_graph", "cut_points", "rng_state")),
    *(f"smelt.capture.guards.{name}" for name in ("guards", "size_programs")),
    *(f"smelt.capture.residual.{name}" for name in ("residual", "reconstruct", "resumption", "error_locations")),
    "smelt.capture.prologue.source",
    "smelt.capture.core.sources",
    "smelt.capture.python.finalizers",
]


class InjectedError(Exception):
    pass


class Holder:
    pass


@smelt.disable
def outside(events: list[Any], what: Any) -> Any:
    events.append(what)
    return what


def stores(x: Tensor, p: Any, events: list[Any]) -> Any:
    p.kept = x * 2
    p.count = getattr(p, "count", 0) + 1
    events.append("stored")
    return {"a": [p.kept + 1]}, events


def breaks(x: Tensor, p: Any, events: list[Any]) -> Any:
    y = x * 2
    events.append("before")
    outside(events, "between")
    p.kept = y
    try:
        outside(events, y + 1)
    finally:
        events.append("after")
    return p, y + 1


def draws(x: Tensor, p: Any, events: list[Any]) -> Any:
    number = random.random()
    events.append(number)
    assert (x > 0).all()
    return torch.rand(3) * number + x, number


def makes(x: Tensor, p: Any, events: list[Any]) -> Any:
    made = Holder()
    made.__dict__["a b"] = x[: x.shape[0] - 1]
    setattr(made, "class", lambda z: z + x)
    print(end="")
    return made, (n for n in [1, x]), events


def used_up(x: Tensor, p: Any, events: list[Any]) -> Any:
    """Values that functions of smelt make when the residual runs, beside stores, draws of every kind and a log."""
    number, noise = random.random(), torch.rand(3)
    p.count = getattr(p, "count", 0) + 1
    items = enumerate([x + noise, number])
    next(items)
    generator, keys = (n for n in [1, 2]), iter({"a": x})
    next(generator), next(generator), next(generator, None), next(keys), next(keys, None)
    match = re.search("b+", "abbc")
    events.append(number)
    print(end="")
    return items, generator, keys, match and match.span(), noise


PROGRAMS: list[Callable[[Tensor, Any, list[Any]], Any]] = [stores, breaks, draws, makes, used_up]


def functions() -> Iterator[tuple[str, Any, str, Any]]:
    """(label, owner, name, function) of what these modules define."""
    for name in MODULES:
        module = importlib.import_module(name)
        for key, value in vars(module).items():
            if isinstance(value, types.FunctionType) and value.__module__ == name:
                yield f"{name}.{key}", module, key, value
            elif inspect.isclass(value) and value.__module__ == name:
                for attribute, method in vars(value).items():
                    if (
                        isinstance(method, types.FunctionType)
                        and not attribute.startswith("__")
                        or attribute == "__call__"
                    ):
                        yield f"{name}.{key}.{attribute}", value, attribute, method


@contextlib.contextmanager
def replaced(owner: Any, name: str, old: Any, new: Any) -> Iterator[None]:
    """`new` in place of a function wherever modules of smelt hold it."""
    places = [(owner, name)]
    if isinstance(owner, types.ModuleType):
        modules = [m for key, m in sys.modules.items() if key.startswith("smelt.")]
        places += [(m, key) for m in modules for key, value in [*vars(m).items()] if value is old]
    for holder, key in places:
        setattr(holder, key, new)
    try:
        yield
    finally:
        for holder, key in places:
            setattr(holder, key, old)


def outcome(fn: Any) -> Any:
    random.seed(0)
    torch.manual_seed(0)
    holder, events = Holder(), []
    seen = []
    for _ in range(2):
        result = fn(torch.ones(3), holder, events)
        if isinstance(result, tuple) and isinstance(result[0], Holder) and "class" in vars(result[0]):
            result = vars(result[0])["a b"], vars(result[0])["class"](torch.ones(3)), list(result[1])
        if isinstance(result, tuple) and isinstance(result[0], enumerate):
            result = [*result[0]], [*result[1]], [*result[2]], result[3:]
        seen.append(result)
    return seen, vars(holder), events, random.random(), torch.rand(1)


def called(fn: Any) -> list[str]:
    """The functions that a capture of `fn` calls."""
    found: dict[str, None] = {}
    with contextlib.ExitStack() as stack:
        for label, owner, name, function in [*functions()]:

            @functools.wraps(function)
            def seen(*args: Any, _label: str = label, _function: Any = function, **kwargs: Any) -> Any:
                found[_label] = None
                return _function(*args, **kwargs)

            native.skip(seen.__code__)  # residual code calls it
            stack.enter_context(replaced(owner, name, function, seen))
        outcome(smelt.compile(fn, backend="eager"))
    return [*found]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("behind", [0, 1, 4])
def test_every_function_may_fail(program: Any, behind: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SMELT_STRICT", "0")
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    want, known = outcome(program), {label: rest for label, *rest in functions()}
    told, failed = 0, []
    names = called(program)
    assert len(names) > 25
    for label in names:
        smelt.reset()
        owner, name, function = known[label]
        left = [behind]

        @functools.wraps(function)
        def fails(*args: Any, _function: Any = function, _left: list[int] = left, **kwargs: Any) -> Any:
            _left[0] -= 1
            if _left[0] == -1:
                raise InjectedError("injected")
            return _function(*args, **kwargs)

        native.skip(fails.__code__)
        with replaced(owner, name, function, fails), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                got = outcome(smelt.compile(program, backend="eager"))
            except Exception as error:
                failed.append((label, repr(error)))
                continue
        if not same(want, got):
            failed.append((label, f"{got} instead of {want}"))
        if left[0] < 0:
            mine = [each for each in caught if issubclass(each.category, smelt.SmeltWarning)]
            told += len(mine)
            if len(mine) > 1:
                failed.append((label, f"{len(mine)} warnings"))
    assert not failed, failed
    assert told


def test_strict_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_STRICT", "1")
    rebuild = importlib.import_module("smelt.capture.residual.reconstruct")

    def fails(*_: Any) -> Any:
        raise InjectedError("injected")

    with replaced(rebuild.Rebuild, "constant", rebuild.Rebuild.constant, fails), pytest.raises(InjectedError):
        smelt.compile(stores, backend="eager")(torch.ones(3), Holder(), [])


# -- which errors lead to eager ------------------------------------------------------------------------------


def plain(x: Tensor) -> Tensor:
    return x * 2


def number(n: int) -> int:
    return n + 1


@contextlib.contextmanager
def failing(owner: Any, name: str, error: Exception, times: int = 1) -> Iterator[list[int]]:
    """The first calls of a function of smelt raise; how many are left."""
    old, left = vars(owner)[name], [times]

    def fails(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return old(*args, **kwargs)

    with replaced(owner, name, old, fails):
        yield left


def warned(fn: Any, *args: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = fn(*args)
    return out, [str(each.message) for each in caught if issubclass(each.category, smelt.SmeltWarning)]


@pytest.mark.parametrize(("fn", "given"), [(plain, torch.ones(2)), (number, 1)])
@pytest.mark.parametrize("name", ["root_globals", "run_root", "release"])
def test_before_the_first_tensor(
    fn: Any, given: Any, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever the frame has met by then: one warning, and the report that it names."""
    monkeypatch.setenv("SMELT_STRICT", "0")
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    with failing(Interpreter, name, InjectedError("injected")):
        got, told = warned(smelt.compile(fn, backend="eager"), given)
    assert same(got, fn(given))
    assert len(told) == 1
    assert "injected" in told[0]
    assert (Path(told[0].split("report in ")[1].splitlines()[0]) / "traceback.txt").exists()
    monkeypatch.setenv("SMELT_STRICT", "1")
    with failing(Interpreter, name, InjectedError("injected")), pytest.raises(InjectedError):
        smelt.compile(fn, backend="eager")(given)


@pytest.mark.parametrize("kind", [SmeltError, CompileError, BuildError, Unsupported])
def test_internal_errors(kind: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SMELT_STRICT", "0")
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    with failing(Rebuild, "__call__", kind("injected")):
        got, told = warned(smelt.compile(plain, backend="eager"), torch.ones(2))
    assert torch.equal(got, torch.full((2,), 2.0))
    assert len(told) == 1


@pytest.mark.parametrize("kind", [OptionError, SpecializationError])
def test_errors_of_the_program(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_STRICT", "0")
    with failing(Rebuild, "__call__", kind("injected")), pytest.raises(kind, match="injected"):
        smelt.compile(plain, backend="eager")(torch.ones(2))


@pytest.mark.parametrize("kind", [MemoryError, torch.OutOfMemoryError])
@pytest.mark.parametrize("place", ["capture", "compile"])
def test_out_of_memory(kind: Any, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is given back, the call runs in eager, and a later one is compiled."""
    monkeypatch.setenv("SMELT_STRICT", "0")
    asked, compiled = [], []
    monkeypatch.setattr(malloc, "RECYCLED", [lambda: asked.append(True)])
    left = [1]

    def backend(gm: Any, inputs: Any) -> Any:
        left[0] -= 1
        if place == "compile" and left[0] == 0:
            raise kind("injected")
        compiled.append(gm)
        return gm.forward

    fn = smelt.compile(plain, backend=backend)
    with failing(Rebuild, "__call__", kind("injected"), int(place == "capture")):
        got, told = warned(fn, torch.ones(2))
    assert torch.equal(got, torch.full((2,), 2.0))
    assert len(told) == 1
    assert "memory ran out" in told[0]
    assert asked == [True]
    assert not compiled
    assert torch.equal(fn(torch.ones(2)), torch.full((2,), 2.0))
    assert len(compiled) == 1
    monkeypatch.setenv("SMELT_STRICT", "1")
    with failing(Rebuild, "__call__", kind("injected")), pytest.raises(kind):
        smelt.compile(plain, backend="eager")(torch.ones(2))


def test_recycled_outputs_are_given_back() -> None:
    assert memory.trim in malloc.RECYCLED
    malloc.give_back()
