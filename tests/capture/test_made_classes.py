"""Classes and their kin that a compiled function makes are others at each call, as in eager."""

from __future__ import annotations

import collections
import types
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt


def _tuple(x: Tensor) -> Any:
    kind = collections.namedtuple("kind", "a b")
    return kind, kind(x * 2, 3)


def _with_defaults(x: Tensor) -> Any:
    kind = collections.namedtuple("kind", ["a", "b"], defaults=[7], module="elsewhere")
    return kind, kind(x * 2)


def _with_an_attribute(x: Tensor) -> Any:
    kind = collections.namedtuple("kind", "a")
    kind.scale = 3  # type: ignore[attr-defined]
    return kind, kind(x * kind.scale)  # type: ignore[attr-defined]


def _nested(x: Tensor) -> Any:
    inner = collections.namedtuple("inner", "a")
    outer = collections.namedtuple("outer", "b")
    return inner, outer([inner(x * 2), inner(x + 1)]), outer, inner._make([x])


def _held(x: Tensor) -> Any:
    kind = collections.namedtuple("kind", "a")
    return kind, {kind: x * 2}, lambda y: kind(y)


def _of_types(x: Tensor) -> Any:
    kind: Any = typing.NamedTuple("kind", [("a", int), ("b", int)])
    return kind, kind(x * 2, 3)


def _variable(x: Tensor) -> Any:
    variable = typing.TypeVar("variable", bound=int)  # type: ignore[misc]
    return variable, x * 2


def _module(x: Tensor) -> Any:
    module: Any = types.ModuleType("made")
    module.scale = 3
    return module, x * module.scale


def _new_type(x: Tensor) -> Any:
    kind: Any = typing.NewType("kind", int)  # type: ignore[valid-newtype]
    return kind, x * kind(2)


MAKING: list[Callable[[Tensor], Any]] = [
    *(_tuple, _with_defaults, _with_an_attribute, _nested, _held, _of_types, _variable, _module, _new_type)
]


def _shown(value: Any, made: Any) -> Any:
    """What can be compared of a result; what was made is named."""
    if value is made:
        return "made"
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        own = type(value)
        return own is made, own.__name__, own.__module__, value._fields, [_shown(item, made) for item in value]
    if isinstance(value, (list, tuple)):
        return [_shown(item, made) for item in value]
    if isinstance(value, dict):
        return [(_shown(key, made), _shown(item, made)) for key, item in value.items()]
    if isinstance(value, types.FunctionType):
        return _shown(value(torch.ones(1)), made)
    return getattr(value, "__name__", value)


@pytest.mark.parametrize("f", MAKING, ids=lambda f: f.__name__.strip("_"))
def test_each_call_makes_another_one(f: Callable[[Tensor], Any]) -> None:
    run, x = smelt.compile(f), torch.ones(2)
    results = [run(x) for _ in range(3)]
    assert len({id(result[0]) for result in results}) == 3
    for result in results:
        expected = f(x)
        assert _shown(result, result[0]) == _shown(expected, expected[0])
        assert getattr(result[0], "scale", None) == getattr(expected[0], "scale", None)


@pytest.mark.parametrize("f", [_tuple, _with_defaults, _nested], ids=lambda f: f.__name__.strip("_"))
def test_in_one_graph(f: Callable[[Tensor], Any]) -> None:
    run = smelt.compile(f, fullgraph=True)
    for _ in range(3):
        run(torch.ones(2))
    assert smelt.stats()["graphs"] == 1


def _used_variable(x: Tensor) -> Any:
    variable = typing.TypeVar("variable")  # type: ignore[misc]
    made: Any = typing.Dict[str, variable]  # type: ignore[valid-type]  # noqa: UP006
    return made.__parameters__ == (variable,), made[int] == typing.Dict[str, int], x + 1  # noqa: UP006


NAMED: dict[str, Callable[[], Any]] = {
    "TypeVar": lambda: typing.TypeVar("made"),  # type: ignore[misc]
    "ParamSpec": lambda: typing.ParamSpec("made"),  # type: ignore[misc]
    "TypeVarTuple": lambda: typing.TypeVarTuple("made"),  # type: ignore[misc]
    "NewType": lambda: typing.NewType("made", int),  # type: ignore[valid-newtype]
    "TypedDict": lambda: typing.TypedDict("made", {"a": int}),  # type: ignore[misc]
    "NamedTuple": lambda: typing.NamedTuple("made", [("a", int)]),  # type: ignore[misc]
}


@pytest.mark.parametrize("name", NAMED)
def test_named_types_belong_to_the_program(name: str) -> None:
    make = NAMED[name]

    def f(x: Tensor) -> Any:
        made = make()
        return made.__module__, made.__name__, made, x + 1

    run = smelt.compile(f)
    results = [run(torch.ones(2)) for _ in range(3)]
    assert [result[:2] for result in results] == [(__name__, "made")] * 3
    assert len({id(result[2]) for result in results}) == 3


def test_generic_alias_of_a_type_variable_holds_that_of_its_call() -> None:
    run = smelt.compile(_used_variable)
    for _ in range(3):
        assert run(torch.ones(2))[:2] == (True, True)
