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


def _deleted_tensor(x: Tensor) -> Any:
    t = x * 2
    r = weakref.ref(t)
    lives = r() is t
    del t
    return x + 1, lives, r() is None


def _rebound_tensor(x: Tensor) -> Any:
    t = x * 2
    r = weakref.ref(t)
    t = t + 1
    return t, r() is None


def _of_a_callee(x: Tensor) -> Any:
    def inner() -> Any:
        t = x * 2
        return weakref.ref(t), t + 1

    r, y = inner()
    return y if r() is not None else y * 3


def _of_a_view(x: Tensor) -> Any:
    t = x.view(2)
    y, r = t.sin(), weakref.ref(t)
    del t
    return y, r() is None


def _second_name(x: Tensor) -> Any:
    t = x * 2
    r, kept = weakref.ref(t), t
    del t
    return kept + 1, r() is kept


def _in_an_attribute(x: Tensor) -> Any:
    obj: Any = Object()
    obj.t = x * 2
    r = weakref.ref(obj.t)
    lives = r() is obj.t
    obj.t = None
    return x + 1, lives, r() is None


def _in_a_list(x: Tensor) -> Any:
    held = [x * 2]
    r = weakref.ref(held[0])
    held.clear()
    return x + 1, r() is None


def _behind_a_break(x: Tensor) -> Any:
    t = x * 2
    r, total = weakref.ref(t), t.sum().item()
    del t
    return x + total, r() is None


def _in_a_weak_table(x: Tensor) -> Any:
    held: Any = weakref.WeakValueDictionary()
    t = x * 2
    held["a"] = t
    before = len(held)
    del t
    return x + 1, before, len(held), "a" in held


def _argument_of_an_exception(x: Tensor) -> Any:
    try:
        raise ValueError(Object())
    except ValueError as error:
        r = weakref.ref(error.args[0])
        lives = r() is not None
    return x + 1, lives, r() is None


def _a_function(x: Tensor) -> Any:
    def inner() -> int:
        return 4

    r = weakref.ref(inner)
    k = r()()  # type: ignore[misc]
    del inner
    return x + k, r() is None


def _proxy_that_dies(x: Tensor) -> Any:
    obj = Object()
    p = weakref.proxy(obj)
    k = p.method()
    del obj
    try:
        p.method()
    except ReferenceError as error:
        return x * k, str(error)
    return x


LIVES = [
    _deleted_tensor, _rebound_tensor, _of_a_callee, _of_a_view, _second_name, _in_an_attribute, _in_a_list,
    _behind_a_break, _in_a_weak_table, _argument_of_an_exception, _a_function, _proxy_that_dies,
]  # fmt: skip


@pytest.mark.parametrize("f", LIVES, ids=lambda f: f.__name__)
def test_weak_references_die_with_what_the_frame_lets_go(f: Callable[..., Any]) -> None:
    run = compiled(f)
    for _ in range(3):
        assert same(run(torch.ones(2)), f(torch.ones(2)))


def _dead() -> Any:
    return weakref.proxy(Object())


def _attribute(x: Tensor, p: Any) -> Any:
    y = x * 2
    try:
        p.method()
    except ReferenceError as error:
        return y, str(error)
    return y + 1


def _asked(x: Tensor, p: Any) -> Any:
    y = x * 2
    try:
        return y, isinstance(p, Object), bool(p)
    except ReferenceError as error:
        return y, str(error)


def _held_unread(x: Tensor, p: Any) -> Any:
    held = [p], (p, 1)
    return x * 2, len(held[0]), type(p).__name__


@pytest.mark.parametrize("f", [_attribute, _asked, _held_unread], ids=lambda f: f.__name__)
def test_proxies_of_what_is_dead(f: Callable[..., Any]) -> None:
    run, alive = compiled(f), Object()
    for p in (_dead(), _dead(), weakref.proxy(alive), _dead()):
        assert same(run(torch.ones(2), p), f(torch.ones(2), p))


class Sized:
    def __init__(self, size: int) -> None:
        self.size = size

    def __bool__(self) -> bool:
        return self.size > 1

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, k: int) -> int:
        return self.size + k


def test_a_proxy_is_asked_at_each_call() -> None:
    def f(x: Tensor, p: Any) -> Any:
        return x * len(p), bool(p), p[1], 1 if p else 2, isinstance(p, Sized)

    run = compiled(f)
    for size in (1, 3, 0, 3):
        held = Sized(size)
        assert same(run(torch.ones(2), weakref.proxy(held)), f(torch.ones(2), weakref.proxy(held)))
