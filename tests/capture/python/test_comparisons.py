"""What C code hashes and compares is guarded: what is in a key, and which object it is."""

from __future__ import annotations

import collections
import enum
import functools
import operator
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import smelt
from smelt.capture.explain import describe
from tests.capture.harness import compiled, same
from tests.guard_programs import differs


@dataclass(frozen=True)
class Frozen:
    a: int = 0


class Plain:
    pass


class Hashed:
    def __init__(self, n: int) -> None:
        self.n = n

    def __hash__(self) -> int:
        return self.n

    def __eq__(self, other: object) -> bool:
        return type(other) is Hashed and self.n == other.n


class Index:
    def __init__(self, n: int) -> None:
        self.n = n

    def __index__(self) -> int:
        return self.n


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Shown(int):
    def __repr__(self) -> str:
        return "shown"


Pair = collections.namedtuple("Pair", "a b")
ONE, TWO = Plain(), Plain()
TABLE = {(1, 2): 7, ONE: 8, Frozen(1): 9, Hashed(1): 10, frozenset([1]): 11, (1, (2, 3)): 12, ("a", ONE): 13}

PAIRS: list[tuple[Any, Any]] = [
    (tuple([1, 2]), tuple([1, 3])),
    ((1, tuple([2, 3])), (1, tuple([2, 4]))),
    (ONE, TWO),
    (Frozen(1), Frozen(2)),
    (Hashed(1), Hashed(2)),
    (frozenset([1]), frozenset([2])),
    (("a", ONE), ("a", TWO)),
    (Pair(1, 2), Pair(1, 3)),
    ((Frozen(1),), (Frozen(2),)),
    (frozenset([(1, 2)]), frozenset([(1, 3)])),
]


def _keys() -> dict[Any, int]:
    return {(1, 2): 7, ONE: 8, Frozen(1): 9, Hashed(1): 10, frozenset([1]): 11, ("a", ONE): 13, (Frozen(1),): 15}


def _added(k: Any) -> int:
    held = {(1, 2), ONE, Frozen(1), frozenset([1])}
    held.add(k)
    return len(held)


def _removed(k: Any) -> int:
    held = [(1, 2), ONE, Frozen(1), frozenset([1])]
    if k in held:
        held.remove(k)
    return len(held)


LOOKUPS: dict[str, Callable[[Any], Any]] = {
    "get": lambda k: _keys().get(k),
    "in": lambda k: (k in _keys(), k in {(1, 2), ONE, Frozen(1)}, k in [ONE, (1, 2)], k in (ONE, (1, 2))),
    "item": lambda k: _keys()[k] if k in _keys() else None,
    "made": lambda k: ({k: 1}.get((1, 2)), {k: 1}.get(ONE), ONE in {k}, {k: 1}.get(frozenset([1]))),
    "table": lambda k: (TABLE.get(k), k in TABLE, dict(TABLE).pop(k, 0), dict(TABLE).setdefault(k, 5)),
    "set": lambda k: (len({k, ONE, (1, 2)}), len({k} & {ONE, (1, 2)}), {k} <= {ONE, (1, 2)}, _added(k)),
    "list": lambda k: ([(1, 2), ONE].count(k), _removed(k)),
    "from keys": lambda k: (len(dict.fromkeys([k, ONE, (1, 2)])), collections.Counter([ONE, (1, 2)])[k]),
    "equal": lambda k: (k == (1, 2), k == ONE, [k] == [ONE], {"k": k} == {"k": ONE}, k == frozenset([1])),
    "hash": lambda k: (hash(k) == hash(ONE), hash((0, k)) == hash((0, ONE)), hash(k) == hash((1, 2))),
}


@pytest.mark.parametrize("lookup", LOOKUPS)
def test_keys(lookup: str) -> None:
    look = LOOKUPS[lookup]
    for pair in PAIRS:
        for first, second in (pair, pair[::-1]):
            run = compiled(lambda x, k: (x + 1, look(k)), recompile_limit=30)
            for key in (first, second, first, second):
                assert run(torch.ones(1), key)[1] == look(key), (first, second)


def test_objects_made_anew_are_no_new_versions() -> None:
    run = compiled(lambda x, k: (x + 1, k == ONE, len({k, ONE})))
    for _ in range(20):
        assert run(torch.ones(1), Plain())[1:] == (False, 2)
    assert len(describe(run._smelt_session).guards) == 1


def test_a_constant_is_not_what_was_handed_in() -> None:
    """Python merges equal constants of a file: the argument is the very tuple that the function compares it with."""
    run = compiled(lambda x, k: (x + 1, k == (5, 6), k in ((5, 6), 1), ((5, 6), 3)))
    for key, there in (((5, 7), False), ((5, 6), True), ((5, 7), False), ((5, 6), True)):
        assert run(torch.ones(1), key)[1:] == (there, there, ((5, 6), 3))


def test_keys_of_a_cache() -> None:
    calls = []

    @functools.lru_cache
    def cached(k: Any) -> Any:
        calls.append(k)
        return k == (1, 2)

    run = compiled(lambda x, k: (x + 1, cached(k)))
    for _ in range(2):
        for key in PAIRS[0]:
            assert run(torch.ones(1), key)[1] is (key == (1, 2))
    assert calls == [*PAIRS[0]]


def test_a_namespace_is_compared_by_what_it_holds() -> None:
    run = compiled(lambda x, v: (x + 1, v == types.SimpleNamespace(a=1)))
    for a in (1, 2, 1):
        assert run(torch.ones(1), types.SimpleNamespace(a=a))[1] is (a == 1)


INDEXED: dict[str, Callable[[Any], Any]] = {
    "list": lambda i: ([5, 6, 7][i], [5, 6, 7][i:], [5, 6, 7][:i:2]),
    "tuple": lambda i: (5, 6, 7)[i],
    "text": lambda i: ("abc"[i], b"abc"[i:], range(9)[i]),
    "deque": lambda i: collections.deque([5, 6, 7])[i],
    "array": lambda i: int(np.arange(5)[i]),
    "written": lambda i: _written([5, 6, 7], i),
}


def _written(held: list[int], i: Any) -> list[int]:
    held[i] = 9
    del held[i:]
    return held


@pytest.mark.parametrize("way", INDEXED)
def test_objects_as_indices(way: str) -> None:
    run = compiled(lambda x, i: (x + 1, INDEXED[way](i)), recompile_limit=30)
    for n in (0, 2, 0, 1):
        assert run(torch.ones(1), Index(n))[1] == INDEXED[way](Index(n))


NUMBERS: dict[str, Callable[[Any], Any]] = {
    "greater": lambda n: (n > 2**70, n >= 2**63, n < 2**80, n == 2**70),
    "power": lambda n: (n**3 > 2**63, n * n < 2**64, n * 2**40 > 2**65),
    "other": lambda n: (n % 10, min(n, 2**80), n | 2**70, divmod(n, 7), n.bit_length()),
}


@pytest.mark.parametrize("way", NUMBERS)
def test_numbers_beyond_every_size(way: str) -> None:
    for numbers in ((3, 4, 2**70 + 1, 5, 2**70), (2**70, 2**70 + 1, 2**90), (3, 4, 2**21, 2**22, 2**62, 2**63 - 1)):
        run = compiled(lambda x, n: (x + 1, NUMBERS[way](n)), recompile_limit=30)
        for n in numbers:
            assert run(torch.ones(1), n)[1] == NUMBERS[way](n), n


def test_classes_that_a_tensor_belongs_to_by_an_attribute() -> None:
    run = compiled(lambda x, t: (x + t, isinstance(t, torch.nn.Buffer), isinstance(t, (int, torch.nn.Buffer))))
    for t in (torch.ones(1), torch.nn.Buffer(torch.ones(1)), torch.ones(1)):
        assert run(torch.ones(1), t)[1:] == (isinstance(t, torch.nn.Buffer),) * 2


def test_the_layout_of_arrays() -> None:
    def fn(x: Any, a: Any) -> Any:
        return x + 1, a.strides, a[1:].strides, a.T.strides, a.flags.writeable

    run = compiled(fn, recompile_limit=30)
    base = np.zeros((4, 6))
    for array in (base, base[:, ::2], base[::-1], np.broadcast_to(np.zeros(1), (4, 6)), base.T, base[:, ::2].T, base):
        assert same(fn(torch.ones(1), array), run(torch.ones(1), array))


def test_texts_of_numbers_with_names() -> None:
    run = compiled(lambda x, v: (x + 1, str(v), repr(v), f"{v}", f"{v!r}", str([v])), recompile_limit=30)
    for value in (Level.LOW, Level.HIGH, Shown(3), 1):
        assert run(torch.ones(1), value)[1:] == (str(value), repr(value), f"{value}", f"{value!r}", str([value]))


def test_weak_proxies() -> None:
    ONE.k, TWO.k = 1, 2  # type: ignore[attr-defined]
    run = compiled(lambda x, v: (x * v.k, v.k + 1))
    for each in (ONE, TWO, ONE):
        product, number = run(torch.ones(1), weakref.proxy(each))
        assert (product.item(), number) == (each.k, each.k + 1)  # type: ignore[attr-defined]


def test_programs() -> None:
    found = [text for text in map(differs, range(60)) if text is not None]
    assert not found, "\n".join(found)


def closed(n):
    def inner(x):
        return x + n

    return inner


KEPT = [closed(1), closed(2)]
PAIR = (KEPT[0], KEPT[1])

_WHICH = {
    "is": lambda x, v: (x * 2, v is KEPT[0]),
    "is, read before": lambda x, v: (lambda kept: (x * 2, v is kept))(KEPT[0]),
    "is, swapped": lambda x, v: (x * 2, KEPT[1] is not v),
    "is, called": lambda x, v: (v(x), v is KEPT[0]),
    "is, in a loop": lambda x, v: (x * 2, [v is each for each in KEPT]),
    "is, behind a break": lambda x, v: (x.tolist(), v is KEPT[0]),
    "equal": lambda x, v: (x * 2, v == KEPT[0]),
    "not equal": lambda x, v: (x * 2, v != KEPT[0]),
    "equal tuples": lambda x, v: (x * 2, (v, 1) == (KEPT[0], 1)),
    "in a tuple": lambda x, v: (x * 2, v in PAIR),
    "in a list": lambda x, v: (x * 2, v in KEPT),
    "in a set": lambda x, v: (x * 2, v in {KEPT[0], KEPT[1]}),
    "counted": lambda x, v: (x * 2, KEPT.count(v)),
    "index": lambda x, v: (x * 2, PAIR.index(v) if v in PAIR else -1),
    "key": lambda x, v: (x * 2, {KEPT[0]: 1, KEPT[1]: 2}.get(v, 0)),
    "two in a set": lambda x, v: (x * 2, len({v, KEPT[0]})),
}


@pytest.mark.parametrize("name", _WHICH)
def test_a_function_of_the_same_code_is_not_another_one(name):
    """A function that is handed in is known by its code, one that a module holds by itself."""
    compiled = smelt.compile(_WHICH[name], backend="eager")
    for order in ([closed(1), KEPT[1], KEPT[0]], [KEPT[0], closed(2), KEPT[1], closed(1)]):
        smelt.reset()
        for each in (*order, *order):
            got, want = compiled(torch.ones(1), each), _WHICH[name](torch.ones(1), each)
            assert got[1] == want[1]


_MADE: dict[str, Callable[[], Any]] = {
    "values": lambda: {"a": 1}.values(),
    "keys": lambda: {"a": 1}.keys(),
    "items, ordered": lambda: collections.OrderedDict(a=1).items(),
    "proxy": lambda: types.MappingProxyType({"a": 1}),
    "array": lambda: np.ones(2),
    "class": lambda: type("T", (), {}),
    "list": lambda: [1],
    "iterator": lambda: iter([1]),
}
_WHICH_OBJECT: dict[str, Callable[..., Any]] = {
    "is": lambda x, v, held: (x * 2, v is held[0], held[0] is not v),
    "is, of two arguments": lambda x, v, held: (x * 2, (lambda a, b: a is b)(v, *held)),
    "is, behind a break": lambda x, v, held: (x.tolist(), v is held[0]),
    "id": lambda x, v, held: (x * 2, id(v) == id(held[0])),
    "is, of a global": lambda x, v, held: (x * 2, v is KEPT_OBJECT[0]),
    "by C code": lambda x, v, held: (x * 2, operator.is_(v, held[0]), list(map(operator.is_not, [v], held))),
}
KEPT_OBJECT: list[Any] = [None]


@pytest.mark.parametrize("kind", _MADE)
@pytest.mark.parametrize("way", _WHICH_OBJECT)
def test_an_equal_object_is_not_the_same_one(way: str, kind: str) -> None:
    kept = KEPT_OBJECT[0] = _MADE[kind]()
    values = [kept, _MADE[kind](), kept, _MADE[kind]()]
    for order in (values, values[::-1], [kept, *values]):
        run = compiled(_WHICH_OBJECT[way], recompile_limit=8)
        for each in order:
            want = _WHICH_OBJECT[way](torch.ones(1), each, [kept])
            assert run(torch.ones(1), each, [kept])[1:] == want[1:]


@pytest.mark.parametrize("kind", ["values", "class"])
def test_an_equal_object_is_not_equal(kind: str) -> None:
    """Views of values and classes are equal to themselves alone."""
    kept, other = _MADE[kind](), _MADE[kind]()
    run = compiled(lambda x, v: (x + 1, v == kept, v in (kept, 5), [kept].count(v)), recompile_limit=8)
    for each in (kept, other, kept, _MADE[kind](), kept):
        same = each is kept
        assert run(torch.ones(1), each)[1:] == (same, same, int(same))


NAN = float("nan")
OTHER = float("nan")
PART = complex(NAN, 1)


@dataclass
class Held:
    value: Any


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, a, b: (x + 1, a is b, a is not NAN),
        lambda x, a, b: (x + 1 if a is b else x - 1, a == b),
        lambda x, a, b: (x + 1, [a] == [b], (a,) == (NAN,), Held(a) == Held(b)),
        lambda x, a, b: (x + 1, a in (NAN, 1), [a, b].count(b), (a, b).index(b)),
        lambda x, a, b: (x + 1, {a: 1}.get(b), {NAN: 1}.get(a), len({a, b})),
        lambda x, a, b: (x + 1, {NAN: 1}[a] if a in {NAN: 1} else 2),
        lambda x, a, b: (x + 1, list(map(operator.is_, (a, b), (b, NAN)))),
        lambda x, a, b: (x + 1, a if a in TABLE else b, TABLE.get(b)),
    ],
)
def test_which_nan_it_is(fn: Callable[..., Any]) -> None:
    """A NaN is equal to no value and found where it stands itself: guards that let any other pass gave its answer."""
    run = compiled(fn)
    for a, b in [(NAN, NAN), (NAN, OTHER), (OTHER, NAN), (OTHER, OTHER), (PART, PART), (PART, complex(NAN, 1))]:
        got, want = run(torch.ones(2), a, b), fn(torch.ones(2), a, b)
        assert same(got, want), (a is b, a is NAN)
    for a, b in [(np.float32(NAN), np.float32(NAN)), (np.float32(NAN),) * 2]:
        assert same(run(torch.ones(2), a, b), fn(torch.ones(2), a, b))


TABLE = {NAN: 1, PART: 2}


def test_a_nan_that_is_handed_on_is_the_callers() -> None:
    run = compiled(lambda x, a: (x + 1, a, [a]))
    for value in (NAN, OTHER, PART, complex(NAN, 1), np.float64(NAN), np.float64(NAN)):
        _, one, (other,) = run(torch.ones(2), value)
        assert one is value and other is value


def test_any_nan_is_accepted_where_its_bits_are_not_compared() -> None:
    run = compiled(lambda x, a: (x * a, a == 1.0, a in (1.0, None)))
    for _ in range(3):
        run(torch.ones(2), float("nan"))
    assert len(describe(run._smelt_session).guards) == 1
