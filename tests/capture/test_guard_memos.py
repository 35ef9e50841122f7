"""Guards remember what dicts and classes held by CPython's versions of them: no write may pass unseen.

`check` goes through the memos, `failure` takes every guard by itself: the two must always agree.
"""

from __future__ import annotations

import collections
import random
from typing import Any

import pytest

from smelt.capture import _native as native

LOCAL, NULL = native.LOCAL, native.NULL


class Plain:
    """Attributes in the object itself (3.11, 3.12: until its dictionary is asked for; 3.13: also afterwards)."""

    def __init__(self) -> None:
        self.a, self.b, self.training = 1, "x", True
        self.table = {"w": 1.5}
        self.hooks = collections.OrderedDict()


class Slots:
    __slots__ = ("__dict__",)

    def __init__(self) -> None:
        Plain.__init__(self)  # type: ignore[arg-type]


def many() -> Plain:
    """More attributes than CPython keeps inside of objects."""
    out = Plain()
    for i in range(60):
        setattr(out, f"more{i}", i)
    return out


def tree() -> native.Guards:
    fetches = [
        (-1, LOCAL, 0), (0, native.INSTANCE_DICT, None), (1, native.DICT_ITEM, "a"), (1, native.DICT_ITEM, "b"),
        (0, native.MODULE_MEMBER, ("table", "w")), (1, native.DICT_ITEM_OR_MISSING, "gone"),
        (1, native.DICT_ITEM, "table"),
    ]  # fmt: skip
    checks = [
        (0, native.MODULE, (True, ("hooks",))), (2, native.EQ, 1), (3, native.EQ, "x"), (4, native.EQ, 1.5),
        (5, native.MISSING, None), (1, native.NOT_KEY, "forward"), (6, native.DICT_KEYS, ("w",)),
    ]  # fmt: skip
    return native.Guards(fetches, checks, [4])


def holds(guards: native.Guards, value: Any, function: Any = None) -> bool:
    fast = guards.check((value,), {}, function)
    assert (fast is not None) == (guards.failure((value,), {}, function) is None)
    return fast is not None


def write_a(thing: Any, value: Any) -> None:
    thing.a = value


def write_training(thing: Any, value: Any) -> None:
    thing.training = value


MUTATIONS: list[tuple[Any, Any]] = [
    (lambda t: write_a(t, 2), lambda t: write_a(t, 1)),
    (lambda t: write_training(t, False), lambda t: write_training(t, True)),
    (lambda t: t.__dict__.__setitem__("b", "y"), lambda t: t.__dict__.update(b="x")),
    (lambda t: setattr(t, "forward", 1), lambda t: delattr(t, "forward")),
    (lambda t: setattr(t, "gone", 1), lambda t: t.__dict__.pop("gone")),
    (lambda t: t.hooks.__setitem__(1, 2), lambda t: t.hooks.popitem()),
    (lambda t: setattr(t, "hooks", {1: 2}), lambda t: setattr(t, "hooks", {})),
    (lambda t: t.table.__setitem__("w", 2.5), lambda t: t.table.__setitem__("w", 1.5)),
    (lambda t: t.table.setdefault("v", 1), lambda t: t.table.pop("v")),
    (lambda t: setattr(t, "table", {"w": 0.0}), lambda t: setattr(t, "table", {"w": 1.5})),
    (lambda t: t.table.clear(), lambda t: t.table.update(w=1.5)),
    (lambda t: object.__setattr__(t, "a", 1.0), lambda t: object.__setattr__(t, "a", 1)),
    (lambda t: delattr(t, "a"), lambda t: setattr(t, "a", 1)),
    (
        lambda t: setattr(t, "__dict__", {**t.__dict__, "a": 3}),
        lambda t: setattr(t, "__dict__", {**t.__dict__, "a": 1}),
    ),
]


@pytest.mark.parametrize("make", [Plain, Slots, many])
def test_no_write_passes_unseen(make: Any) -> None:
    guards, things, rng = tree(), [make(), make()], random.Random(0)
    for _ in range(2000):  # specialised instructions write differently
        thing = rng.choice(things)
        for each in things:
            assert holds(guards, each)
        change, undo = rng.choice(MUTATIONS)
        change(thing)
        assert not holds(guards, thing)
        undo(thing)
        assert holds(guards, thing)


def test_no_write_to_a_class_passes_unseen() -> None:
    class Meta(type): ...

    class Base(metaclass=Meta):
        a = 1

    class Child(Base): ...

    class Other:
        a = 1

    guards = native.Guards(
        [(-1, native.CONST, Child), (0, native.CLASS_ATTR, "a"), (0, native.CLASS_ATTR, "b")],
        [(1, native.EQ, 1), (2, native.MISSING, None)],
        [],
    )
    for _ in range(1500):  # past the versions that 3.13 gives one class
        assert holds(guards, None)
        Base.a = 2
        assert not holds(guards, None)
        Base.a = 1
        assert holds(guards, None)
        Child.b = 1
        assert not holds(guards, None)
        del Child.b
    Child.__bases__ = (Other,)
    assert holds(guards, None)
    Other.b = 3
    assert not holds(guards, None)


def test_unwritten_values_are_read_once() -> None:
    thing = Plain()
    guards = native.Guards(
        [
            (-1, LOCAL, 0), (0, native.INSTANCE_DICT, None), (1, native.DICT_ITEM, "a"), (-1, native.CONST, Plain),
            (3, native.CLASS_ATTR, "__init__"), (0, native.MODULE_MEMBER, ("table", "w")),
        ],
        [(0, native.MODULE, (True, ("hooks",))), (2, native.EQ, 1), (4, native.IS, Plain.__init__)],
        [],
    )  # fmt: skip
    thing.other = 1  # type: ignore[attr-defined]
    assert holds(guards, thing)
    before = guards.renewed
    for _ in range(100):
        assert holds(guards, thing)
    assert guards.renewed == before
    thing.a = 2
    assert not holds(guards, thing) and guards.renewed > before


def test_another_object_in_the_same_memory_is_seen() -> None:
    things = [Plain(), many()]
    guards = native.Guards(
        [(-1, LOCAL, 0), (0, native.INSTANCE_DICT, None), (1, native.DICT_ITEM, "a"), (1, native.DICT_ITEM, "table")],
        [(2, native.EQ, 10**6), (3, native.TYPE_IS, dict)],
        [],
    )
    for thing in things * 200:
        thing.a = int("1000000")
        thing.table = {}
        assert holds(guards, thing)
        thing.a = int("1000001")  # takes the place of the other number, once that is gone
        assert not holds(guards, thing)
        thing.a = int("1000000")
        thing.table = None  # type: ignore[assignment]
        thing.table = []  # type: ignore[assignment]
        assert not holds(guards, thing)


def test_hooks_that_come_and_go_in_the_same_memory_are_seen() -> None:
    guards = native.Guards([(-1, LOCAL, 0)], [(0, native.MODULE, (None, ("hooks", "more")))], [])
    thing = Plain()
    for empty in (dict, collections.OrderedDict) * 100:
        thing.hooks, thing.more = empty(), empty()  # type: ignore[attr-defined]
        assert holds(guards, thing)
        thing.more[1] = 2  # type: ignore[attr-defined]
        assert not holds(guards, thing)
        thing.more.clear()  # type: ignore[attr-defined]
        assert holds(guards, thing)
        thing.hooks = None  # type: ignore[assignment]
        thing.hooks = empty(a=1)
        assert not holds(guards, thing)


def test_globals_and_their_shadowing() -> None:
    space: dict[str, Any] = {"x": 1}
    guards = native.Guards(
        [(-1, native.GLOBALS, None), (0, native.DICT_ITEM, "x"), (0, native.DICT_ITEM_OR_MISSING, "len")],
        [(1, native.EQ, 1), (2, native.MISSING, None)],
        [],
    )

    def fast(globals: dict[str, Any]) -> bool:
        answer = guards.check((), globals)
        assert (answer is None) == (guards.failure((), globals) is not None)
        return answer is not None

    exec("def write(v):\n    global x\n    x = v\ndef shadow():\n    global len\n    len = 3", space)
    for _ in range(200):
        assert fast(space) and fast({"x": 1}) and not fast({"x": 2})
        space["write"](2)
        assert not fast(space)
        space["write"](1)
        assert fast(space)
    space["shadow"]()
    assert not fast(space)


def test_order_of_an_ordered_dict() -> None:
    held = collections.OrderedDict(a=1, b=2)
    guards = native.Guards([(-1, LOCAL, 0)], [(0, native.DICT_KEYS, ("a", "b")), (0, native.HAS_KEY, "a")], [])
    assert holds(guards, held)
    held.move_to_end("a")
    assert not holds(guards, held) and not holds(guards, {"b": 2, "a": 1}) and holds(guards, {"a": 1, "b": 2})


def test_another_class_of_the_same_object_is_seen() -> None:
    class Twin(Plain): ...

    thing = Plain()
    thing.child = Plain()  # type: ignore[attr-defined]
    guards = native.Guards(
        [(-1, LOCAL, 0), (0, native.INSTANCE_DICT, None), (1, native.DICT_ITEM, "child")],
        [(2, native.TYPE_IS, Plain)],
        [],
    )
    assert holds(guards, thing)
    thing.child.__class__ = Twin  # type: ignore[attr-defined]
    assert not holds(guards, thing)


def test_aliases_among_remembered_items() -> None:
    guards = native.Guards(
        [(-1, LOCAL, 0), (0, native.DICT_ITEM, "a"), (0, native.DICT_ITEM, "b"), (0, native.DICT_ITEM_OR_MISSING, "a")],
        [(2, native.ALIASED, 1), (2, native.PYTHON, (lambda a, b: a == [1], (1, 2)))],
        [1, 3],
    )
    one = [1]
    held = {"a": one, "b": one}
    assert guards.check((held,), {}) == (one, one)
    held["b"] = [1]
    assert not holds(guards, held)
    held["b"] = one
    assert holds(guards, held)
    one.append(2)
    assert not holds(guards, held)


def test_dictionary_guards_fail_for_values_that_are_no_dict() -> None:
    guards = native.Guards(
        [(-1, LOCAL, 0), (0, native.DICT_ITEM, "a")], [(1, native.EQ, 1), (0, native.NOT_KEY, "b")], []
    )
    assert holds(guards, {"a": 1}) and not holds(guards, 3) and not holds(guards, [1]) and not holds(guards, Plain())
