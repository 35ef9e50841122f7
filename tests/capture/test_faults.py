"""An error of smelt's own between a call's begin and its result: the frame runs in eager, and the user is told once."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import random
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
from tests.capture.harness import same

MODULES = [
    "smelt.base.python_text",
    *(f"smelt.capture.{name}" for name in ("closing", "cuts", "guards", "host_program", "located", "rebuild")),
    *(
        f"smelt.capture.{name}"
        for name in ("residual", "resumption", "sources", "finalizers", "draws", "size_programs")
    ),
]


RUNS_THEN = {"smelt.capture.host_program.State.restore", "smelt.capture.rebuild._set_state"}
"""What residual code and guards call when they run: it is part of the program then, and nothing is undone."""


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


PROGRAMS: list[Callable[[Tensor, Any, list[Any]], Any]] = [stores, breaks, draws, makes]


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
        seen.append(result)
    return seen, vars(holder), events, random.random(), torch.rand(1)


def called(fn: Any) -> list[str]:
    """The functions that a capture of `fn` calls."""
    found: dict[str, None] = {}
    with contextlib.ExitStack() as stack:
        for label, owner, name, function in [*functions()]:

            def seen(*args: Any, _label: str = label, _function: Any = function, **kwargs: Any) -> Any:
                found[_label] = None
                return _function(*args, **kwargs)

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
    for label in [name for name in names if name not in RUNS_THEN]:
        smelt.reset()
        owner, name, function = known[label]
        left = [behind]

        def fails(*args: Any, _function: Any = function, _left: list[int] = left, **kwargs: Any) -> Any:
            _left[0] -= 1
            if _left[0] == -1:
                raise InjectedError("injected")
            return _function(*args, **kwargs)

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
    rebuild = importlib.import_module("smelt.capture.rebuild")

    def fails(*_: Any) -> Any:
        raise InjectedError("injected")

    with replaced(rebuild.Rebuild, "constant", rebuild.Rebuild.constant, fails), pytest.raises(InjectedError):
        smelt.compile(stores, backend="eager")(torch.ones(3), Holder(), [])
