"""The C evaluator of guards: every kind of fetch and check. The part without tensors needs no torch."""

from __future__ import annotations

import builtins
import collections
import gc
import weakref
from typing import Any

import pytest

from smelt.capture import _native as native

LOCAL, NULL = native.LOCAL, native.NULL
GLOBAL_NAME = "a global"


def guards(fetches: list[Any], checks: list[Any] = (), outputs: list[int] | None = None) -> native.Guards:  # type: ignore[assignment]
    """All values are outputs unless said otherwise."""
    return native.Guards(fetches, checks, range(len(fetches)) if outputs is None else outputs)


def fetched(value: Any, kind: int, key: Any) -> Any:
    """What one fetch on `value` gives; KeyError when it fails."""
    found = guards([(-1, LOCAL, 0), (0, kind, key)], [], [1]).check((value,), {})
    if found is None:
        raise KeyError(key)
    return found[0]


def passes(value: Any, kind: int, operand: Any) -> bool:
    """Whether one check on `value` holds, on the fast way and while a step may run Python."""
    check = (0, kind, operand)
    fast = guards([(-1, LOCAL, 0)], [check]).check((value,), {}) is not None
    slow = guards([(-1, LOCAL, 0), (0, native.ATTR, "__class__")], [check]).check([value], {}) is not None
    assert fast == slow
    return fast


class Module:
    """Shaped like torch.nn.Module, as far as guards look."""

    shared = "class attribute"

    def __init__(self) -> None:
        self.training = True
        self._parameters = {"weight": "w", "bias": None}
        self._buffers: dict[str, Any] = {}
        self._modules: dict[str, Any] = {}
        self._forward_hooks: dict[int, Any] = collections.OrderedDict()

    def method(self) -> None: ...


class Slotted:
    __slots__ = ("a", "__weakref__")


# ------------------------------------------------------------------------------------------------- fetches


def test_roots() -> None:
    cell_value = [1]

    def func() -> Any:
        return cell_value

    things = [
        (-1, LOCAL, 1), (-1, native.GLOBALS, None), (-1, native.GLOBAL, "GLOBAL_NAME"), (-1, native.GLOBAL, "len"),
        (-1, native.BUILTINS, None), (-1, native.FUNC, None), (-1, native.CLOSURE, 0), (-1, native.CLOSURE_CELL, 0),
        (-1, native.CONST, cell_value), (-1, native.WEAK, weakref.ref(func)),
    ]  # fmt: skip
    got = guards(things).check((1, 2), globals(), func)
    assert got == (
        2, globals(), GLOBAL_NAME, len, vars(builtins), func, cell_value, func.__closure__[0], cell_value, func,
    )  # fmt: skip


def test_roots_that_fail_or_are_unset() -> None:
    def check(kind: int, key: Any, func: Any = None) -> Any:
        return guards([(-1, kind, key)]).check((NULL,), {}, func)

    assert check(LOCAL, 0) == (NULL,)
    assert check(LOCAL, 1) is None
    assert check(native.GLOBAL, "no such name") is None
    assert check(native.FUNC, None) is None
    assert check(native.CLOSURE, 0) is None
    assert check(native.CLOSURE, 0, passes) is None
    dead = Slotted()
    reference = weakref.ref(dead)
    del dead
    assert check(native.WEAK, reference) is None

    def unset() -> Any:
        return later

    assert check(native.CLOSURE, 0, unset) == (NULL,)
    later = 1


def test_attributes() -> None:
    module = Module()
    assert fetched(module, native.ATTR, "shared") == "class attribute"
    assert fetched(module, native.ATTR, "method") == module.method
    assert fetched(module, native.TYPE_ATTR, "method") is Module.__dict__["method"]
    assert fetched(module, native.TYPE_ATTR, "training") is NULL
    assert fetched(Module, native.CLASS_ATTR, "shared") == "class attribute"
    assert fetched(module, native.INSTANCE_DICT, None) is module.__dict__
    assert fetched(module, native.TYPE, None) is Module
    for value, kind, key in [
        (module, native.ATTR, "missing"), (3, native.INSTANCE_DICT, None), (Slotted(), native.INSTANCE_DICT, None),
        (module, native.CLASS_ATTR, "shared"),
    ]:  # fmt: skip
        with pytest.raises(KeyError):
            fetched(value, kind, key)


def test_items() -> None:
    class Dict(dict):
        def __missing__(self, key: Any) -> Any:
            raise AssertionError

        __getitem__ = __missing__

    big = 10**30
    for d in ({"a": 1, 2: "b", big: 3, (1, "x"): 4}, Dict({"a": 1, 2: "b", big: 3, (1, "x"): 4})):
        assert [fetched(d, native.DICT_ITEM, key) for key in ("a", 2, big, (1, "x"))] == [1, "b", 3, 4]
        assert fetched(d, native.DICT_ITEM_OR_MISSING, "a") == 1
        assert fetched(d, native.DICT_ITEM_OR_MISSING, "b") is NULL
    assert [fetched([1, 2, 3], native.LIST_ITEM, i) for i in (0, -1)] == [1, 3]
    assert [fetched((1, 2, 3), native.TUPLE_ITEM, i) for i in (2, -3)] == [3, 1]
    ordered = collections.OrderedDict(a=1, b=2, c=3)
    ordered.move_to_end("c", last=False)
    assert [fetched(ordered, native.DICT_VALUE, i) for i in range(3)] == [3, 1, 2]
    assert [fetched({"x": 7, 3: 8}, native.DICT_VALUE, i) for i in range(2)] == [7, 8]
    cell = (lambda: cell).__closure__[0]  # type: ignore[index]
    assert fetched(cell, native.CELL, None) is cell
    for value, kind, key in [
        ({"a": 1}, native.DICT_ITEM, "b"), ([1], native.DICT_ITEM, 0), ([1], native.LIST_ITEM, 1),
        ([], native.LIST_ITEM, -1),
        ((1,), native.LIST_ITEM, 0), ((1,), native.TUPLE_ITEM, -2), (3, native.CELL, None),
        (3, native.DICT_ITEM_OR_MISSING, 1), ({"a": 1}, native.DICT_VALUE, 1), ({"a": 1}, native.DICT_VALUE, -1),
        (ordered, native.DICT_VALUE, 3), ([1], native.DICT_VALUE, 0),
    ]:  # fmt: skip
        with pytest.raises(KeyError):
            fetched(value, kind, key)


def test_module_members() -> None:
    module = Module()
    assert fetched(module, native.MODULE_MEMBER, ("_parameters", "weight")) == "w"
    assert fetched(module, native.MODULE_MEMBER, ("_parameters", "bias")) is None
    for key in (("_parameters", "gamma"), ("_tables", "weight")):
        with pytest.raises(KeyError):
            fetched(module, native.MODULE_MEMBER, key)


def test_calls() -> None:
    assert fetched([3, 1], native.CALL, sorted) == [1, 3]
    with pytest.raises(KeyError):
        fetched(1, native.CALL, len)


def test_a_type_check_protects_the_next_fetch() -> None:
    touched = []

    class Touchy:
        @property
        def value(self) -> int:
            touched.append(self)
            return 1

    tree = guards([(-1, LOCAL, 0), (0, native.ATTR, "value")], [(1, native.EQ, 1), (0, native.TYPE_IS, int)])
    assert tree.check((Touchy(),), {}) is None
    assert not touched


def test_interrupts_are_not_swallowed() -> None:
    def interrupt(value: Any) -> Any:
        raise KeyboardInterrupt

    tree = guards([(-1, LOCAL, 0)], [(0, native.PYTHON, interrupt)])
    with pytest.raises(KeyboardInterrupt):
        tree.check((1,), {})
    with pytest.raises(KeyboardInterrupt):
        tree.failure((1,), {})


# ------------------------------------------------------------------------------------------------- checks


def test_identity_and_type() -> None:
    thing: list[Any] = []
    assert passes(thing, native.IS, thing) and not passes([], native.IS, thing)
    assert passes([], native.IS_NOT, thing) and not passes(thing, native.IS_NOT, thing)
    assert passes(True, native.TYPE_IS, bool) and not passes(True, native.TYPE_IS, int)
    assert passes(NULL, native.MISSING, None) and not passes(None, native.MISSING, None)


NAN = float("nan")


@pytest.mark.parametrize(
    ("value", "constant", "equal"),
    [
        (1, 1, True), (1, 2, False), (1, 1.0, False), (True, 1, False), (1, True, False), (10**40, 10**40, True),
        (10**40, 10**40 + 1, False), ("a" + "b" * 3, "abbb", True), ("ä", "a", False), ("", "x", False),
        (0.0, -0.0, False), (-0.0, -0.0, True), (NAN, float("nan"), True), (NAN, 1.0, False), (0.5, 0.5, True),
        (None, None, True), (None, 0, False), (False, False, True), (..., ..., True), (b"a", b"a", True),
        (0j, complex(0.0, -0.0), False), (1j, 1j, True), ((1, ("a", 0.0)), (1, ("a", 0.0)), True),
        ((1, ("a", 0.0)), (1, ("a", -0.0)), False), ((1, 2), (1, 2, 3), False), ((1,), (1.0,), False),
        (frozenset({1}), frozenset({1}), True), (range(3), range(3), True), (slice(1), slice(1), True),
    ],
)  # fmt: skip
def test_equality(value: Any, constant: Any, equal: bool) -> None:
    assert passes(value, native.EQ, constant) == equal


def test_lengths_and_ranges() -> None:
    for value in (
        [1, 2],
        (1, 2),
        {1: 1, 2: 2},
        {1, 2},
        frozenset("ab"),
        "ab",
        b"ab",
        collections.OrderedDict(a=1, b=2),
    ):
        assert passes(value, native.LEN, 2) and not passes(value, native.LEN, 3)
    assert not passes(collections.deque([1, 2]), native.LEN, 2)
    assert [passes(n, native.RANGE, (2, 5)) for n in (1, 2, 5, 6, 3.0, True, 10**40)] == [False, True, True] + [
        False
    ] * 4


def test_keys() -> None:
    d = {"a": 1, 2: 2}
    assert passes(d, native.DICT_KEYS, ("a", 2)) and not passes(d, native.DICT_KEYS, (2, "a"))
    assert not passes(d, native.DICT_KEYS, ("a",)) and not passes([], native.DICT_KEYS, ())
    assert passes(d, native.HAS_KEY, 2) and not passes(d, native.HAS_KEY, "b") and not passes([], native.HAS_KEY, 2)
    assert passes(d, native.NOT_KEY, "b") and not passes(d, native.NOT_KEY, 2) and not passes([], native.NOT_KEY, 2)


def test_keys_that_compare_in_python() -> None:
    class Key:
        def __init__(self, name: str) -> None:
            self.name = name

        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            if self.name == "bad":
                raise RuntimeError
            return isinstance(other, Key) and other.name == self.name

    d = {Key("a"): 1}
    assert fetched(d, native.DICT_ITEM, Key("a")) == 1
    assert passes(d, native.NOT_KEY, Key("b"))
    assert not passes({Key("bad"): 1}, native.NOT_KEY, Key("b"))


def test_weak_identity() -> None:
    thing, other = Slotted(), Slotted()
    tree = guards([(-1, LOCAL, 0)], [(0, native.WEAK_IS, weakref.ref(thing))], [])
    assert tree.check((thing,), {}) == () and tree.check((other,), {}) is None
    del thing
    assert tree.check((other,), {}) is None


def test_an_entry_is_dropped_when_its_object_died() -> None:
    def f(a: Any) -> Any:
        return "original"

    def g(a: Any, _c: Any, _f: Any) -> Any:
        return "new"

    thing = Slotted()
    tree = guards([(-1, LOCAL, 0)], [(0, native.WEAK_IS, weakref.ref(thing))], [])
    entry = native.add_entry(f.__code__, tree, g.__code__, None)
    assert [native.call(f, (x,)) for x in (thing, 1)] == ["new", "original"] and entry.alive
    del thing
    assert native.call(f, (1,)) == "original"
    assert not entry.alive and native.entries(f.__code__) == []


def test_aliasing() -> None:
    a, b = [1], [1]
    two = [(-1, LOCAL, 0), (-1, LOCAL, 1)]
    assert guards(two, [(1, native.ALIASED, 0)]).check((a, a), {}) is not None
    assert guards(two, [(1, native.ALIASED, 0)]).check((a, b), {}) is None
    assert guards(two, [(1, native.NOT_ALIASED, 0)]).check((a, b), {}) is not None
    assert guards(two, [(1, native.NOT_ALIASED, 0)]).check((a, a), {}) is None
    for count in (3, 90, 700):
        things = [Slotted() for _ in range(count)]
        many = guards([(-1, LOCAL, i) for i in range(count)], [(count - 1, native.NONE_ALIASED, tuple(range(count)))])
        assert many.check(things, {}) is not None
        things[count // 2] = things[0]
        assert many.check(things, {}) is None


def test_module_check() -> None:
    hooks = ("_forward_hooks",)
    module = Module()
    assert passes(module, native.MODULE, (True, hooks)) and passes(module, native.MODULE, (None, hooks))
    assert not passes(module, native.MODULE, (False, hooks)) and not passes(module, native.MODULE, (True, ("missing",)))
    module.training = False
    assert passes(module, native.MODULE, (False, hooks))
    module._forward_hooks[0] = print
    assert not passes(module, native.MODULE, (False, hooks)) and passes(module, native.MODULE, (False, ()))
    assert not passes(3, native.MODULE, (None, ()))


def test_attribute_stores_are_seen_however_they_happen() -> None:
    """Instances keep attributes outside their dict until somebody asks for it, and stores are specialised."""
    module = Module()
    tree = guards([(-1, LOCAL, 0)], [(0, native.MODULE, (True, ("_forward_hooks",)))], [])

    def store(value: bool) -> None:
        module.training = value

    for i in range(100):
        store(i % 2 == 0)
        assert (tree.check((module,), {}) is not None) == (i % 2 == 0)
    store(True)
    assert tree.check((module,), {}) is not None
    module.__dict__["training"] = False
    assert tree.check((module,), {}) is None
    module.__dict__ = {**module.__dict__, "training": True}
    assert tree.check((module,), {}) is not None
    module._forward_hooks = {1: 2}
    assert tree.check((module,), {}) is None


def test_python_checks() -> None:
    assert passes(3, native.PYTHON, lambda x: x > 2) and not passes(1, native.PYTHON, lambda x: x > 2)
    assert not passes("a", native.PYTHON, lambda x: x > 2)
    fetches = [(-1, LOCAL, 0), (-1, LOCAL, 1)]
    both = guards(fetches, [(1, native.PYTHON, (lambda a, b: a < b, (0, 1)))])
    assert both.check((1, 2), {}) is not None and both.check((2, 1), {}) is None


# ------------------------------------------------------------------------------------------------- the whole


def test_failure_reports() -> None:
    tree = guards(
        [(-1, LOCAL, 0), (0, native.DICT_ITEM, "a"), (-1, LOCAL, 1)],
        [(2, native.EQ, 5), (1, native.TYPE_IS, int), (1, native.EQ, 7)],
    )
    assert tree.failure(({"a": 7}, 5), {}) is None
    assert tree.failure(({"b": 7}, 5), {}) == ("fetch", 1, {"b": 7})
    assert tree.failure(({"a": 7.0}, 5), {}) == ("check", 1, 7.0)
    assert tree.failure(({"a": 8}, 5), {}) == ("check", 2, 8)
    assert tree.failure(({"a": 7}, 6), {}) == ("check", 0, 6)
    assert tree.failure(({"a": 7},), {}) == ("fetch", 2, NULL)


def test_guard_tree_exposes_its_fetches_checks_and_outputs() -> None:
    fetches = ((-1, LOCAL, 0), (0, native.ATTR, "x"))
    checks = ((0, native.TYPE_IS, int),)
    tree = native.Guards(fetches, checks, [1, 0])
    assert (tree.fetches, tree.checks, tree.outputs) == (fetches, checks, (1, 0))
    assert native.FETCH_NAMES[native.ATTR] == "ATTR" and native.CHECK_NAMES[native.TYPE_IS] == "TYPE_IS"
    assert repr(tree) == "<Guards: 2 fetches, 1 checks, 2 outputs>"


@pytest.mark.parametrize(
    ("fetches", "checks", "outputs"),
    [
        ([(0, LOCAL, 0)], [], []), ([(-1, native.ATTR, "a")], [], []), ([(-1, LOCAL, 0),
        (1, native.ATTR, "a")], [], []),
        ([(-1, 99, 0)], [], []), ([(-1, LOCAL, -1)], [], []), ([(-1, LOCAL, "x")], [], []), ([(-1, LOCAL)], [], []),
        ([(-1, LOCAL, 0), (0, native.ATTR, 3)], [], []), ([(-1, LOCAL, 0),
        (0, native.MODULE_MEMBER, "weight")], [], []),
        ([(-1, LOCAL, 0), (0, native.CALL, 3)], [], []), ([(-1, native.WEAK, 3)], [], []),
        ([(-1, LOCAL, 0), (0, native.DICT_ITEM, [])], [], []), ([(-1, LOCAL, 0)], [], [1]),
        ([(-1, LOCAL, 0)], [], ["a"]),
        ([(-1, LOCAL, 0)], [(0, 99, 0)], []), ([(-1, LOCAL, 0)], [(1, native.IS, 0)], []),
        ([], [(-1, native.IS, 0)], []),
        ([(-1, LOCAL, 0)], [(0, native.TYPE_IS, 3)], []), ([(-1, LOCAL, 0)], [(0, native.LEN, -1)], []),
        ([(-1, LOCAL, 0)], [(0, native.ALIASED, 1)], []), ([(-1, LOCAL, 0)], [(0, native.NONE_ALIASED, (0, 1))], []),
        ([(-1, LOCAL, 0)], [(0, native.TENSOR, 3)], []), ([(-1, LOCAL, 0)], [(0, native.STATE, ())], []),
        ([(-1, LOCAL, 0)], [(0, native.MODULE, (1, ()))], []),
        ([(-1, LOCAL, 0)], [(0, native.PYTHON, (len, (1,)))], []),
        ([(-1, LOCAL, 0)], [(0, native.RANGE, (1, 2, 3))], []), ([(-1, LOCAL, 0)], [(0, native.WEAK_IS, 3)], []),
        ([(-1, LOCAL, 0)], [(0, native.HAS_KEY, [])], []), ([(-1, LOCAL, 0)], [(0, native.DICT_KEYS, ["a"])], []),
    ],
)  # fmt: skip
def test_malformed_guards_are_refused(fetches: Any, checks: Any, outputs: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        native.Guards(fetches, checks, outputs)


def test_guards_run_no_hooked_frames() -> None:
    seen = []

    class Object:
        @property
        def value(self) -> int:
            seen.append(native.is_active())
            return 1

    def f(a: Any) -> Any:
        return "original"

    def g(a: Any, _c: Any, _f: Any) -> Any:
        return native.is_active()

    native.add_entry(f.__code__, guards([(-1, LOCAL, 0), (0, native.ATTR, "value")], [], []), g.__code__, None)
    assert native.call(f, (Object(),)) is True
    assert seen == [False]
    native.clear(f.__code__)


def test_references_are_neither_leaked_nor_lost() -> None:
    class Value:
        @property
        def fresh(self) -> list[Any]:
            return [self]

    value = Value()
    fetches = [(-1, LOCAL, 0), (0, native.ATTR, "fresh"), (1, native.LIST_ITEM, 0), (0, native.CALL, repr)]
    hit = guards(fetches, [(2, native.ALIASED, 0), (1, native.LEN, 1)])
    miss = guards(fetches, [(3, native.EQ, "x")])
    dies = weakref.ref(value)
    for _ in range(1000):
        assert hit.check((value,), {}) is not None
        assert miss.check((value,), {}) is None
        assert miss.failure((value,), {})[0] == "check"  # type: ignore[index]
    del value
    gc.collect()
    assert dies() is None


def test_value_removed_by_a_fetch_while_guards_run_stays_valid() -> None:
    class Value:
        @property
        def emptied(self) -> bool:
            table.clear()
            return True

    fetches = [(-1, LOCAL, 0), (0, native.DICT_ITEM, "x"), (0, native.DICT_ITEM, "y"), (1, native.ATTR, "emptied")]
    for checks, hits in (([(1, native.TYPE_IS, Value)], True), ([(2, native.TYPE_IS, Value)], False)):
        table = {"x": Value(), "y": Value()}
        dies = [weakref.ref(value) for value in table.values()]
        kept = native.Guards(fetches, checks, [1]).check((table,), {})
        assert [type(each) for each in kept or ()] == [Value] * hits  # "y" is gone when it is looked at
        del kept
        assert [ref() for ref in dies] == [None, None]


def test_guards_are_collected_in_cycles() -> None:
    thing = Module()
    thing.guards = guards([(-1, native.CONST, thing)], [(0, native.IS, thing)])  # type: ignore[attr-defined]
    dies = weakref.ref(thing)
    del thing
    gc.collect()
    assert dies() is None


def test_many_fetches_use_the_heap() -> None:
    fetches = [(-1, LOCAL, i % 3) for i in range(2000)]
    values = ("a", "b", "c")
    assert guards(fetches).check(values, {}) == tuple(values[i % 3] for i in range(2000))
    assert 0 < min(guards(fetches).time(values, {}, None, 3) for _ in range(10)) < 0.01
    with pytest.raises(ValueError):
        guards(fetches).time((), {}, None, 3)
