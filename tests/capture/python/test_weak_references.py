"""Callbacks of weak references run when eager runs them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.capture.harness import compiled, same

LOG: list[Any] = []


class Object:
    def method(self) -> int:
        return 4


def _reference(obj: Any) -> Any:
    return weakref.ref(obj, lambda _: LOG.append("dead"))


def _two(obj: Any) -> Any:
    return [weakref.ref(obj, lambda _, at=at: LOG.append(at)) for at in range(2)]  # type: ignore[misc]


def _method(obj: Any) -> Any:
    return weakref.WeakMethod(obj.method, lambda _: LOG.append("dead"))


WATCHING: dict[str, Callable[[Any], Any]] = {
    "ref": _reference,
    "two": _two,
    "finalize": lambda obj: weakref.finalize(obj, LOG.append, "dead"),
    "method": _method,
}


def _deleted(x: Tensor, watch: Any) -> Any:
    obj = Object()
    kept = watch(obj)
    y = x + 1
    LOG.append("before")
    del obj
    LOG.append("after")
    return y, len([kept])


def _rebound(x: Tensor, watch: Any) -> Any:
    obj: Any = Object()
    kept = watch(obj)
    y = x + 1
    obj = None
    LOG.append("after")
    return y * 2, len([kept, obj])


def _in_a_container(x: Tensor, watch: Any) -> Any:
    obj = Object()
    kept, held = watch(obj), {"a": obj}
    del obj
    LOG.append("held")
    y = x + 1
    held.pop("a")
    LOG.append("after")
    return y, len([kept])


def _left(x: Tensor, watch: Any) -> Any:
    def inner() -> Any:
        obj = Object()
        return watch(obj), x + 1

    kept = inner()
    LOG.append("after")
    return kept[1]


def _given(x: Tensor, watch: Any) -> Any:
    return _dropping(x, [Object()], watch)


def _dropping(x: Tensor, held: list[Any], watch: Any) -> Any:
    kept = watch(held[0])
    y = x + 1
    LOG.append("before")
    held.clear()
    LOG.append("after")
    return y, len([kept])


@pytest.mark.parametrize("watch", WATCHING)
@pytest.mark.parametrize("f", [_deleted, _rebound, _in_a_container, _left, _given], ids=lambda f: f.__name__)
def test_callbacks_run_when_the_object_dies(f: Callable[..., Any], watch: str) -> None:
    run, seen = compiled(f), []
    for each in (f, run, run, run):
        LOG.clear()
        value = each(torch.ones(2), WATCHING[watch])
        seen.append((value, list(LOG)))
    for value, log in seen[1:]:
        assert log == seen[0][1]
        assert same(value, seen[0][0])


def test_an_object_from_outside_that_is_watched() -> None:
    def f(x: Tensor, held: list[Any]) -> Tensor:
        y = x + 1
        LOG.append("before")
        held.pop()
        LOG.append("after")
        return y * 2

    run = compiled(f)
    for watched in (False, True, True, False):
        LOG.clear()
        held = [Object()]
        kept = _reference(held[0]) if watched else None
        run(torch.ones(2), held)
        assert LOG == (["before", "dead", "after"] if watched else ["before", "after"])
        del kept


def test_a_weak_set_stays_in_the_graph() -> None:
    def f(x: Tensor) -> Any:
        held, first, second = weakref.WeakSet[Any](), Object(), Object()
        held.add(first)
        held.add(second)
        del first
        return len(held), second in held, x + 1

    run = compiled(f, fullgraph=True)
    for _ in range(2):
        assert run(torch.ones(2))[:2] == (1, True)
