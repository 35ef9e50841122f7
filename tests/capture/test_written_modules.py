"""A variable of a module is one place, whether it is written by name, through the module or through its dictionary."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from tests.capture.harness import compiled, same

settings = types.ModuleType("settings_of_a_test")
exec("scale = 1\ndef apply(x):\n    return x * scale\n", vars(settings))
sys.modules[settings.__name__] = settings
this = sys.modules[__name__]
number = 0


def through_the_module(x: Tensor) -> Any:
    settings.scale = 3
    y = settings.apply(x)
    settings.scale = 1
    return y, settings.apply(x)


def by_name_first(x: Tensor) -> Any:
    global number
    number = 7
    found: list[Any] = [this.number]  # type: ignore[attr-defined]
    this.number = 8  # type: ignore[attr-defined]
    found.append(number)
    del this.number  # type: ignore[attr-defined]
    try:
        found.append(number)
    except NameError as error:
        found.append(str(error))
    number = 3
    return x + 1, found, this.number, globals()["number"]  # type: ignore[attr-defined]


def by_the_dictionary_first(x: Tensor) -> Any:
    globals()["number"] = 4
    found = [number, this.number]  # type: ignore[attr-defined]
    this.number = 6  # type: ignore[attr-defined]
    return x + 1, [*found, number, globals()["number"], vars(this)["number"]]


def new_and_removed(x: Tensor) -> Any:
    settings.new = x * 2
    found = [hasattr(settings, "new"), "new" in vars(settings)]
    kept = settings.new
    del settings.new
    return kept, [*found, hasattr(settings, "new"), getattr(settings, "new", 7)]


def over_a_break(x: Tensor) -> Any:
    settings.scale = x.sum().item()
    y = settings.apply(x)
    settings.scale = 1
    return y, settings.apply(x)


def by_methods(x: Tensor) -> Any:
    setattr(settings, "scale", 5)  # noqa: B010
    y = settings.apply(x)
    types.ModuleType.__setattr__(settings, "scale", 6)
    z = settings.apply(x)
    settings.scale = 1
    return y, z, settings.apply(x)


def replaced_for_a_time(x: Tensor) -> Any:
    with mock.patch.object(settings, "scale", 7):
        y = settings.apply(x)
    return y, settings.apply(x)


CASES: list[Callable[[Tensor], Any]] = [
    through_the_module,
    by_name_first,
    by_the_dictionary_first,
    new_and_removed,
    over_a_break,
    by_methods,
    replaced_for_a_time,
]


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_it_is_as_in_eager(fn: Callable[[Tensor], Any]) -> None:
    global number
    run = compiled(fn)
    for _ in range(3):
        number = 0
        want = fn(torch.ones(2))
        left = number, settings.scale
        number = 0
        got = run(torch.ones(2))
        assert same(want, got), f"eager {want!r}\ncompiled {got!r}"
        assert left == (number, settings.scale)


def test_a_module_without_a_name() -> None:
    """`ModuleType.__new__` makes one that has no `__name__`: what it lacks is told as in eager."""

    def attributes(x: Tensor) -> Any:
        found: list[Any] = []
        nameless = types.ModuleType.__new__(types.ModuleType)
        for name in ("__name__", "__doc__", "other"):
            try:
                found.append(getattr(nameless, name))
            except AttributeError as error:
                found.append(str(error))
        return x + 1, found

    given = types.ModuleType.__new__(types.ModuleType)

    def of_one_given(x: Tensor) -> Any:
        given.here = 2  # type: ignore[attr-defined]
        del given.here  # type: ignore[attr-defined]
        try:
            return x, given.here  # type: ignore[attr-defined]
        except AttributeError as error:
            return x + 1, str(error), given.__doc__ == types.ModuleType.__doc__

    for fn in (attributes, of_one_given):
        x = torch.ones(2)
        assert repr(compiled(fn)(x)) == repr(fn(x)) == repr(compiled(fn)(x))
