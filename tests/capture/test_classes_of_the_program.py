"""Classes of the program are not asked by the compiler: neither a metaclass for hashes, nor an object for its class."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.capture.harness import compiled

calls: list[str] = []


def metaclass(how: str) -> type:
    """A metaclass with a `__hash__` and an `__eq__` of its own."""

    def refuse(cls: type, *other: object) -> Any:
        calls.append("hash or eq")
        raise TypeError("not to be asked")

    def number(cls: type) -> int:
        calls.append("hash")
        return hash(int)

    def equal(cls: type, other: object) -> bool:
        calls.append("eq")
        return True

    names = {
        "refuses": {"__hash__": refuse, "__eq__": refuse},
        "has no hash": {"__hash__": None, "__eq__": refuse},
        "equals all": {"__hash__": number, "__eq__": equal},
    }
    return type("Meta", (type,), names[how])


def lying(how: Any) -> type:
    """A base class whose objects tell another class."""

    class ByProperty:
        @property
        def __class__(self) -> Any:
            calls.append("class")
            return how

        @__class__.setter
        def __class__(self, value: object) -> None: ...

    class ByHook:
        def __getattribute__(self, name: str) -> Any:
            if name == "__class__":
                calls.append("class")
                return how
            return object.__getattribute__(self, name)

    return ByHook if how in (list, torch.nn.Module) else ByProperty


class Plain:
    pass


def programs(meta: type, base: type) -> dict[str, Callable[[Tensor], Any]]:
    """Programs around objects of one class, by name."""

    class Item(base, metaclass=meta):  # type: ignore[misc, valid-type]
        k = 3

        def __init__(self, v: int = 2) -> None:
            self.v = v

        def f(self, t: Tensor) -> Tensor:
            return t * self.v + self.k

        @property
        def p(self) -> int:
            return self.v + 1

        def __add__(self, other: Any) -> Any:
            return other + self.v

        def __iter__(self) -> Iterator[int]:
            return iter([1, self.v])

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: object) -> bool:
            return True

        def __repr__(self) -> str:
            return "Item()"

        def __del__(self) -> None:
            pass

    class Part(Item):
        def f(self, t: Tensor) -> Tensor:
            return super().f(t) + 1

    class Slots(base, metaclass=meta):  # type: ignore[misc, valid-type]
        __slots__ = ("q",)

    item, part, slots = Item(), Part(), Slots()
    slots.q = 5
    holder = types.SimpleNamespace(item=item)

    def write(t: Tensor) -> Tensor:
        item.v = 9
        out = item.f(t)
        item.v = 2
        return out

    def write_slot(t: Tensor) -> Tensor:
        slots.q = 6
        out = t + slots.q
        slots.q = 5
        return out

    def write_class(t: Tensor) -> Tensor:
        Item.k = 4
        out = t + item.k
        Item.k = 3
        return out

    def around(t: Tensor) -> Tensor:
        with item as entered:
            t = t * entered.v
            raise KeyError
        return t

    def broken(t: Tensor) -> Tensor:
        t = t + item.v
        t.data_ptr()
        return item.f(t)

    def branched(t: Tensor) -> Tensor:
        t = t + item.v if t.sum() > 0 else t - item.v
        return t

    def generated(t: Tensor) -> Tensor:
        def items() -> Iterator[Any]:
            yield item
            yield Item(7)

        for each in items():
            t = each.f(t)
        return t

    def matched(t: Tensor) -> Tensor:
        match item:
            case Item(v=v):
                return t + v
        return t

    def statement(t: Tensor) -> Tensor:
        class Local(metaclass=meta):
            z = 4

        return t + Local.z

    def made(t: Tensor) -> Any:
        fresh = Part(4)
        return fresh.f(t), [fresh].pop().v

    return {
        **{f.__name__: f for f in (write, write_slot, write_class, around, broken, branched, generated, matched)},
        **{f.__name__: f for f in (statement, made)},
        "method": lambda t: item.f(t),
        "inherited": lambda t: part.f(t),
        "attribute": lambda t: holder.item.f(t) * holder.item.p,
        "constructor": lambda t: Item(3).f(t),
        "operator": lambda t: item + t,
        "iteration": lambda t: sum((t + each for each in item), t),
        "classes": lambda t: (t + isinstance(part, Item) + issubclass(Part, Item), type(item) is Item),
        "copied": lambda t: copy.copy(item).f(t),
        "copied deeply": lambda t: copy.deepcopy(item).f(t),
        "text": lambda t: (t + 1, f"{item!r}", repr(item)),
        "partial": lambda t: functools.partial(item.f)(t),
        "mapped": lambda t: sum(map(item.f, [t, t])),
        "its class": lambda t: type(item)(5).f(t),
        "dictionary": lambda t: t + Item.__dict__["k"] + {"a": item}["a"].v,
    }


NAMES = tuple(programs(type, Plain))


def agrees(name: str, meta: type, base: type) -> None:
    """Results are eager's, and so is what the class was asked: nothing but by C code which eager calls as well."""
    x, out = torch.arange(4.0), []
    plain = programs(meta, base)[name]
    fast = compiled(programs(meta, base)[name])
    for fn in (plain, fast):
        for _ in range(2):
            calls.clear()
            results = fn(x)
            asked = list(calls)
            tensors = results if type(results) is tuple else (results,)
            out.append(([each.tolist() if type(each) is Tensor else each for each in tensors], asked))
    assert out[2:] == out[:2]


@pytest.mark.parametrize("how", ["refuses", "has no hash", "equals all"])
@pytest.mark.parametrize("name", [name for name in NAMES if "copied" not in name])  # copying hashes the class
def test_metaclasses_that_hash_and_compare(name: str, how: str) -> None:
    agrees(name, metaclass(how), Plain)


@pytest.mark.parametrize("how", [dict, list, torch.Tensor, torch.nn.Module, type, types.FunctionType, 5], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_objects_that_report_another_class(name: str, how: Any) -> None:
    agrees(name, type, lying(how))


class Functional(torch.autograd.Function, metaclass=type("M", (type(torch.autograd.Function),), {"__eq__": None})):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 3


def test_a_function_of_autograd_whose_class_cannot_be_compared() -> None:
    x = torch.arange(4.0, requires_grad=True)
    compiled(lambda t: Functional.apply(t) + 1)(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3.0] * 4


class Counted:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.v = 2

    def __getattribute__(self, name: str) -> Any:
        calls.append(name)
        return object.__getattribute__(self, name)


def twice(t: Tensor, c: Counted) -> Tensor:
    return t * c.v + c.v


def written(t: Tensor, c: Counted) -> Tensor:
    c.v = c.v + 1
    return t * c.v


def asked_for_its_class(t: Tensor, c: Counted) -> Any:
    return t + isinstance(c, int), isinstance(c, (str, Counted)), c.__class__ is Counted


def copied(t: Tensor, c: Counted) -> Tensor:
    return t + copy.copy(c).v


@pytest.mark.parametrize("fn", [twice, written, asked_for_its_class, copied], ids=lambda fn: fn.__name__)
def test_a_hook_is_asked_each_time(fn: Callable[..., Any]) -> None:
    x, one, other = torch.arange(4.0), Counted(), Counted()
    fast = compiled(fn)
    for _ in range(3):
        calls.clear()
        want = str(fn(x, one)), list(calls)
        calls.clear()
        assert want == (str(fast(x, other)), list(calls))


class Told:
    @property
    def __class__(self) -> Any:
        return dict

    @__class__.setter
    def __class__(self, value: object) -> None: ...


def believed(t: Tensor, o: Any) -> Any:
    match o:
        case dict():
            t = t + 1
    return t, isinstance(o, dict), isinstance(o, Told), isinstance(o, (list, int)), isinstance(o, (list, dict))


def test_the_program_uses_the_class_that_an_object_reports() -> None:
    x = torch.arange(4.0)
    want, got = believed(x, Told()), compiled(believed)(x, Told())
    assert want[0].tolist() == got[0].tolist() and want[1:] == got[1:] == (True, True, False, True)
